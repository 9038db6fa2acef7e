"""Models that are easily taken for Chatterbox's T3 and are not, told by their tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from voxgraft.errors import Finding, finding
from voxgraft.families.description import Shape
from voxgraft.families.stand_in import is_stand_in, stand_in_parts

TEXT_EMBEDDING_NAME, SPEECH_EMBEDDING_NAME = "text_emb.weight", "speech_emb.weight"
GPT2_RELEASES = {(24, 1024): "Chatterbox Turbo", (12, 768): "Chatterbox Nano"}
"""Layers and width of the two published models with a GPT-2 backbone."""

_GPT2_LAYER = re.compile(r"tfmr\.h\.(\d{1,4})\.")


def check_t3_lookalike(path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
    """What to say of a T3 with another backbone, or of a stand-in for one; None for all other files."""
    if is_stand_in(shapes):
        found = f"{path.name} holds {stand_in_parts(shapes)}"
        expected = f"{TEXT_EMBEDDING_NAME}, text_head.weight and the body"
        return finding("checkpoint-stand-in", found, expected=expected, where=path)
    layers = {int(match[1]) for match in map(_GPT2_LAYER.match, shapes) if match}
    if TEXT_EMBEDDING_NAME not in shapes or not layers:
        return None
    rows, width = (*shapes[TEXT_EMBEDDING_NAME], 0, 0)[:2]
    name = GPT2_RELEASES.get((len(layers), width), "of the kind of Chatterbox Turbo and Nano")
    seen = [f"a GPT-2 backbone ({len(layers)} layers, {width:,} wide)", f"{rows:,} text rows"]
    if SPEECH_EMBEDDING_NAME in shapes:
        seen.append(f"{(*shapes[SPEECH_EMBEDDING_NAME], 0)[0]:,} speech rows")
    if not any(tensor.startswith("cond_enc.perceiver.") for tensor in shapes):
        seen.append("no perceiver")
    found = f"{path.name} is {name}: {', '.join(seen)}"
    expected = "the Llama backbone (tfmr.layers.*) of Chatterbox multilingual or English"
    return finding("base-turbo", found, expected=expected, where=path)
