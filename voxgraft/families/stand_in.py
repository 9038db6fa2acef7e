"""The stand-in that some trainers build in place of the real model, told by its tensors.

An encoder with a spectrogram decoder that borrows nothing but the base's text table.
"""

from __future__ import annotations

from collections.abc import Iterable

STAND_IN_PARTS = ("transformer_encoder.", "mel_decoder.", "duration_predictor.")
STAND_IN_TABLE = "text_embedding.weight"


def is_stand_in(names: Iterable[str]) -> bool:
    """Whether these are a stand-in's tensors."""
    names = set(names)
    return STAND_IN_TABLE in names and all(any(name.startswith(part) for name in names) for part in STAND_IN_PARTS)


def stand_in_parts(names: Iterable[str]) -> str:
    """What such a file holds, for people."""
    return ", ".join(sorted({name.split(".")[0] for name in names}))
