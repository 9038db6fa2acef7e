"""Sizes of Chatterbox's networks, and the tensors of T3: every name with its shape, and the size by looking.

Needs no torch: `show` and `check` read headers only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import CheckpointError
from voxgraft.models.base import SequenceSpec
from voxgraft.models.detect import linear_shapes, norm_shapes, prefix_shapes, require_exact_tensors

# Of T3's backbone, and of the speech tokenizer.
T3_HEAD_WIDTH = 64
# The backbone's own token table is never read, but the stock loader insists on it.
UNUSED_TOKEN_ROWS = 8
# Before the speech tokenizer's names in s3gen.pt.
SPEECH_TOKENIZER_PREFIX = "tokenizer."
VOICE_ENCODER_WIDTH, VOICE_ENCODER_LAYERS, VOICE_ENCODER_MELS = 256, 3, 40
SPEECH_TOKENIZER_MELS, SPEECH_TOKENIZER_KERNEL = 128, 31
SPEECH_CODE_DIGITS, SPEECH_CODE_LEVELS = 8, 3
# 6561: a code is a number of eight digits, each of three levels.
NUM_SPEECH_CODES = SPEECH_CODE_LEVELS**SPEECH_CODE_DIGITS

PERCEIVER_QUERY_NAME = "cond_enc.perceiver.pre_attention_query"

_T3_LAYER = re.compile(r"tfmr\.layers\.(\d{1,4})\.")
_T3_PARTS = {
    "tfmr.": "backbone",
    "cond_enc.": "conditioning",
    "text_emb.": "text tables",
    "text_head.": "text tables",
    "speech_emb.": "speech tables",
    "speech_head.": "speech tables",
    "text_pos_emb.": "positions",
    "speech_pos_emb.": "positions",
}


@dataclass(frozen=True, slots=True)
class T3Size:
    """The sizes that may differ; as published by default. Stock code fixes the width at 1024."""

    text_rows: int = 2454
    width: int = 1024
    layers: int = 30
    mlp: int = 4096
    heads: int = 0
    """No tensor shows it; 0 means heads of the published width of 64."""
    speech_rows: int = 8194
    text_positions: int = 2050
    speech_positions: int = 4100
    speaker_width: int = 256
    perceiver_queries: int = 32
    perceiver_heads: int = 4

    def __post_init__(self) -> None:
        if not self.heads:
            object.__setattr__(self, "heads", max(1, self.width // T3_HEAD_WIDTH))

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], where: str | Path = "") -> T3Size:
        """The size of the T3 that these tensors are; an error with the differences where they make no whole one."""
        published = cls()
        # The first side that most tensors of a kind have: one damaged tensor does not make all others look wrong.
        norms = Counter(shape[0] for name, shape in shapes.items() if name.endswith("layernorm.weight") and shape)
        gates = Counter(shape[0] for name, shape in shapes.items() if name.endswith("mlp.gate_proj.weight") and shape)
        width = norms.most_common(1)[0][0] if norms else published.width
        layers = {int(match[1]) for match in map(_T3_LAYER.match, shapes) if match}
        size = cls(
            text_rows=_read_dimension(shapes, "text_emb.weight", 0, published.text_rows),
            width=width,
            # Up to the last layer that exists, so that a missing one before it is noticed.
            layers=max((layer + 1 for layer in layers if layer < len(shapes)), default=0),
            mlp=gates.most_common(1)[0][0] if gates else 4 * width,
            speech_rows=_read_dimension(shapes, "speech_emb.weight", 0, published.speech_rows),
            text_positions=_read_dimension(shapes, "text_pos_emb.emb.weight", 0, published.text_positions),
            speech_positions=_read_dimension(shapes, "speech_pos_emb.emb.weight", 0, published.speech_positions),
            speaker_width=_read_dimension(shapes, "cond_enc.spkr_enc.weight", 1, published.speaker_width),
            perceiver_queries=_read_dimension(shapes, PERCEIVER_QUERY_NAME, 1, published.perceiver_queries),
        )
        # The size was read from a few tensors; now every name and shape must follow from it.
        require_exact_tensors(shapes, t3_shapes(size), "T3", where)
        if not (size.layers and size.width) or size.width % (2 * size.heads) or size.width % size.perceiver_heads:
            found = f"a T3 of {size.layers:,} layers that is {size.width:,} wide"
            expected = f"layers, and a multiple of {T3_HEAD_WIDTH} that can be cut into heads"
            raise CheckpointError("tensors-mismatch", found, expected=expected, where=where)
        return size


def t3_shapes(size: T3Size) -> dict[str, Shape]:
    """Names and shapes in the order of the published file: 292 at full depth."""
    width = size.width
    layer: dict[str, Shape] = {f"self_attn.{part}_proj.weight": (width, width) for part in ("q", "k", "v", "o")}
    layer |= {f"mlp.{part}_proj.weight": (size.mlp, width) for part in ("gate", "up")}
    layer["mlp.down_proj.weight"] = (width, size.mlp)
    layer |= {f"{place}_layernorm.weight": (width,) for place in ("input", "post_attention")}
    shapes: dict[str, Shape] = {"tfmr.embed_tokens.weight": (UNUSED_TOKEN_ROWS, width)}
    for number in range(size.layers):
        shapes |= prefix_shapes(f"tfmr.layers.{number}", layer)
    shapes["tfmr.norm.weight"] = (width,)
    shapes |= linear_shapes("cond_enc.spkr_enc", width, size.speaker_width)
    shapes["cond_enc.emotion_adv_fc.weight"] = (width, 1)
    shapes[PERCEIVER_QUERY_NAME] = (1, size.perceiver_queries, width)
    shapes |= norm_shapes("cond_enc.perceiver.attn.norm", width)
    for part in ("to_q", "to_k", "to_v", "proj_out"):
        shapes |= linear_shapes(f"cond_enc.perceiver.attn.{part}", width, width)
    return shapes | {
        "text_emb.weight": (size.text_rows, width),
        "speech_emb.weight": (size.speech_rows, width),
        "text_pos_emb.emb.weight": (size.text_positions, width),
        "speech_pos_emb.emb.weight": (size.speech_positions, width),
        "text_head.weight": (size.text_rows, width),
        "speech_head.weight": (size.speech_rows, width),
    }


def t3_part_name(tensor: str) -> str:
    """The part of the model that a tensor belongs to, in a word for people."""
    return next((part for start, part in _T3_PARTS.items() if tensor.startswith(start)), "other")


def is_t3(names: Iterable[str]) -> bool:
    """Whether these are the names of a T3 with the Llama backbone, whole or not."""
    return {"text_emb.weight", "speech_emb.weight", "tfmr.layers.0.self_attn.q_proj.weight"} <= set(names)


def has_one_query(shapes: Mapping[str, Shape]) -> bool:
    """Whether prompts are read by a single query: published T3s have 32, a small one with voices by number has one."""
    return shapes.get(PERCEIVER_QUERY_NAME, ())[:2] == (1, 1)


def speech_tokenizer_shapes(width: int = 1280, layers: int = 6) -> dict[str, Shape]:
    """The learned tensors of the speech tokenizer, without SPEECH_TOKENIZER_PREFIX: 102 at the published size.

    Its mel filters and its window, which the published file holds as well, are computed.
    """
    block: dict[str, Shape] = {}
    for part in ("query", "key", "value", "out"):
        block |= linear_shapes(f"attn.{part}", width, width)
    del block["attn.key.bias"]
    block["attn.fsmn_block.weight"] = (width, 1, SPEECH_TOKENIZER_KERNEL)
    block |= norm_shapes("attn_ln", width)
    block |= linear_shapes("mlp.0", 4 * width, width) | linear_shapes("mlp.2", width, 4 * width)
    block |= norm_shapes("mlp_ln", width)
    shapes = linear_shapes("encoder.conv1", width, SPEECH_TOKENIZER_MELS, 3)
    shapes |= linear_shapes("encoder.conv2", width, width, 3)
    for layer in range(layers):
        shapes |= prefix_shapes(f"encoder.blocks.{layer}", block)
    return shapes | linear_shapes("quantizer._codebook.project_down", SPEECH_CODE_DIGITS, width)


def _read_dimension(shapes: Mapping[str, Shape], name: str, axis: int, published: int) -> int:
    """One side of a tensor; the published one where there is no such tensor, which is then found missing."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else published


TEXT_START_ID, TEXT_STOP_ID = 255, 0
# Rows 6563 to 8193 of the speech tables mean nothing: no target is ever one of them.
SPEECH_START_ID, SPEECH_STOP_ID = NUM_SPEECH_CODES, NUM_SPEECH_CODES + 1
# Six seconds of codes: the most that the published model was given.
MAX_PROMPT_CODES = 150


def t3_sequence_spec(num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
    """The original program begins to speak with two start ids, both at position 0."""
    size = size or T3Size()
    return SequenceSpec(
        num_text_ids=num_text_ids,
        text_start=TEXT_START_ID,
        text_stop=TEXT_STOP_ID,
        num_codes=NUM_SPEECH_CODES,
        speech_start=SPEECH_START_ID,
        speech_stop=SPEECH_STOP_ID,
        max_text=size.text_positions - 2,
        max_codes=size.speech_positions - 4,
        num_conditioning=size.perceiver_queries + 2,
        guided=True,
        stock_start_positions=(0, 0),
        stock_first_position=1,
        initial_penalized_codes=(SPEECH_START_ID,),
    )
