"""What is left of the base, proven: its values, its speech logits with and without what was added, code for code.

Both systems compute on the same machine, in the same shapes, one after the other; equal means `torch.equal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from voxgraft.checkpoints import Checkpoint, open_checkpoint
from voxgraft.evaluating.rates import Score, score_without_interval, unmeasured_score
from voxgraft.evaluating.speaking import SpokenSentence
from voxgraft.evaluating.systems import SpeakingModel
from voxgraft.families.layout import build_sequence
from voxgraft.families.model import PackedBatch, compute_hidden_states, pack_batch
from voxgraft.families.tensors import read_stored_tensor
from voxgraft.training.nearness import kl_sum

__all__ = ["BaseValueChange", "LanguageRetention", "compare_base_values", "measure_retention"]

PROOF_BATCH_SIZE = 16
"""Utterances in one pack."""


@dataclass(frozen=True, slots=True)
class LanguageRetention:
    """What one base language has kept: logits over all positions of what the base said, and the codes themselves."""

    language: str
    equal: bool | None
    """None where it could not be measured; `why` tells."""
    largest_difference: float | None
    positions: int
    same_codes: int
    spoken: int
    kl: Score
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__ if name not in ("kl", "language")}
        return {**values, "kl": self.kl.to_json()}


@dataclass(frozen=True, slots=True)
class BaseValueChange:
    """How many values of the base's tensors are others than they were."""

    changed: int
    total: int
    tensors: tuple[str, ...]
    """The tensors that have changed."""
    compared: str
    """What was held against what, in words."""

    def to_json(self) -> dict[str, Any]:
        return {"changed": self.changed, "total": self.total, "tensors": list(self.tensors), "compared": self.compared}


def compare_base_values(base: SpeakingModel, after: SpeakingModel) -> BaseValueChange:
    """Compare every tensor of the base with the same one now, bit for bit; new rows do not count.

    Two checkpoints are compared as they are stored: in memory both may be rounded, and small changes lost. What has no
    checkpoint of its own is the base's, opened from the same file, and is compared where it computes.
    """
    spare, names = base.model.spare_rows, list(base.model.state_dict())
    if base.checkpoint is None or after.checkpoint is None:
        old, now = base.model.state_dict(), after.model.state_dict()
        dtype = str(next(base.model.parameters()).dtype).removeprefix("torch.")
        compared = f"the base as it computes alone and as it computes with {after.name}, in memory, in {dtype}"
        return _count_changes(names, old.__getitem__, now.get, spare, compared)
    with open_checkpoint(base.checkpoint) as one, open_checkpoint(after.checkpoint) as two:
        compared = f"{one.path.name} of the base and {two.path.name} of {after.name}, both as they are stored"
        return _count_changes(
            names, partial(_read_stored_tensor, one), partial(_read_stored_tensor, two), spare, compared
        )


def _count_changes(
    names: Sequence[str],
    old: Callable[[str], Tensor | None],
    new: Callable[[str], Tensor | None],
    spare_rows: int,
    compared: str,
) -> BaseValueChange:
    changed, total, tensors = 0, 0, []
    for name in names:
        was, now = old(name), new(name)
        assert was is not None
        total += was.numel()
        count = was.numel() if now is None else _count_different_values(was, now, spare_rows)
        changed += count
        tensors += [name] if count else []
    return BaseValueChange(changed, total, tuple(tensors), compared)


def _read_stored_tensor(checkpoint: Checkpoint, name: str) -> Tensor | None:
    return read_stored_tensor(checkpoint, name) if name in checkpoint.tensors else None


@torch.no_grad()
def measure_retention(
    base: SpeakingModel, after: SpeakingModel, before: Sequence[SpokenSentence], now: Sequence[SpokenSentence]
) -> LanguageRetention:
    """Whether a base language is spoken as before. `before` and `now` are what both said of the same sentences."""
    language = before[0].sentence.language if before else ""
    usable = [one for one in before if one.codes]
    same = sum(old.codes == new.codes for old, new in zip(before, now, strict=True) if old.codes is not None)
    if not usable:
        why = "the base could not say a sentence"
        return LanguageRetention(language, None, None, 0, same, 0, unmeasured_score(why), why)
    equal, largest, positions, kl = True, 0.0, 0, 0.0
    for first in range(0, len(usable), PROOF_BATCH_SIZE):
        some = usable[first : first + PROOF_BATCH_SIZE]
        old_hidden, old = _compute_speech_logits(base, _build_proof_batch(base, some), language)
        new_hidden, new = _compute_speech_logits(after, _build_proof_batch(after, some), language)
        equal = equal and torch.equal(old, new)
        largest = max(largest, float((old.float() - new.float()).abs().max()))
        positions += len(old)
        kl += float(kl_sum(after.model.speech_logits, new_hidden, base.model.speech_logits, old_hidden, chunk=None))
    return LanguageRetention(
        language, equal, largest, positions, same, len(usable), score_without_interval(kl / positions, positions)
    )


def _build_proof_batch(system: SpeakingModel, said: Sequence[SpokenSentence]) -> PackedBatch:
    """What the base said, to be said again: text as this system reads it, voice and codes as they were."""
    frame, language = system.model.frame, said[0].sentence.language
    layouts = [build_sequence(frame, system.ids(one.sentence.text, language), one.codes) for one in said]
    return pack_batch(system.model, layouts, [system.family.condition(one.voice.clip) for one in said])


def _compute_speech_logits(system: SpeakingModel, batch: PackedBatch, language: str) -> tuple[Tensor, Tensor]:
    with system.set_gate_for(language):
        hidden = compute_hidden_states(system.model, batch)[batch.speech.scored]
        return hidden, system.model.speech_logits(hidden)


def _count_different_values(old: Tensor, new: Tensor, spare_rows: int) -> int:
    """Values that differ in any bit. Where rows were added, the base's own stand first, and spare ones last."""
    if old.shape == new.shape:
        return sum(_count_different_bits(old, new))
    if old.shape[1:] != new.shape[1:] or len(new) < len(old):
        return old.numel()
    own = len(old) - spare_rows
    parts = [(old[:own], new[:own]), (old[own:], new[len(new) - spare_rows :] if spare_rows else new[:0])]
    return sum(count for one, two in parts for count in _count_different_bits(one, two))


def _count_different_bits(old: Tensor, new: Tensor) -> Iterator[int]:
    """In the wider of the two types, if they are kept in two: what one of them cannot hold has changed."""
    if old.numel():
        wide = torch.promote_types(old.dtype, new.dtype)
        whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[wide.itemsize]
        yield int((old.to(wide).contiguous().view(whole) != new.to(wide).contiguous().view(whole)).sum())
