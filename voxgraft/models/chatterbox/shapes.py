"""The tensors of Chatterbox's checkpoints: every name with its shape, at any size, and the size by looking.

T3 is the language model; the voice encoder and the speech tokenizer are what preparing data needs beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from voxgraft.core.errors import CheckpointError
from voxgraft.models.detect import ShapeLike, require_exact_tensors
from voxgraft.models.sequence import SequenceSpec

T3_HEAD_WIDTH = 64
UNUSED_TOKEN_ROWS = 8
"""The backbone's own token table is never read, but the stock loader insists on it."""
SPEECH_TOKENIZER_PREFIX = "tokenizer."
"""Before the speech tokenizer's names in s3gen.pt."""
VOICE_ENCODER_WIDTH, VOICE_ENCODER_LAYERS, VOICE_ENCODER_MELS = 256, 3, 40
SPEECH_TOKENIZER_MELS, SPEECH_TOKENIZER_KERNEL, SPEECH_TOKENIZER_DIGITS = 128, 31, 8

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
    """No tensor shows it; 0 stands for heads of the published width of 64."""
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
    def of(cls, shapes: Mapping[str, ShapeLike], where: str | Path = "") -> T3Size:
        """The size of the T3 that these tensors are; an error with the differences where they make no whole one."""
        published = cls()
        width = _most_common_dimension(shapes, "layernorm.weight", published.width)
        size = cls(
            text_rows=_read_dimension(shapes, "text_emb.weight", 0, published.text_rows),
            width=width,
            layers=_count_layers(shapes),
            mlp=_most_common_dimension(shapes, "mlp.gate_proj.weight", 4 * width),
            speech_rows=_read_dimension(shapes, "speech_emb.weight", 0, published.speech_rows),
            text_positions=_read_dimension(shapes, "text_pos_emb.emb.weight", 0, published.text_positions),
            speech_positions=_read_dimension(shapes, "speech_pos_emb.emb.weight", 0, published.speech_positions),
            speaker_width=_read_dimension(shapes, "cond_enc.spkr_enc.weight", 1, published.speaker_width),
            perceiver_queries=_read_dimension(shapes, PERCEIVER_QUERY_NAME, 1, published.perceiver_queries),
        )
        require_exact_tensors(shapes, t3_shapes(size), "T3", where)
        if not (size.layers and size.width) or size.width % (2 * size.heads) or size.width % size.perceiver_heads:
            found = f"a T3 of {size.layers:,} layers that is {size.width:,} wide"
            expected = f"layers, and a multiple of {T3_HEAD_WIDTH} that can be cut into heads"
            raise CheckpointError("tensors-mismatch", found, expected=expected, where=where)
        return size


def t3_shapes(size: T3Size) -> dict[str, ShapeLike]:
    """Names and shapes in the order of the published file: 292 at full depth."""
    width = size.width
    shapes: dict[str, ShapeLike] = {"tfmr.embed_tokens.weight": (UNUSED_TOKEN_ROWS, width)}
    for layer in range(size.layers):
        shapes |= {f"tfmr.layers.{layer}.{name}": shape for name, shape in _llama_layer_shapes(size)}
    shapes["tfmr.norm.weight"] = (width,)
    shapes |= {f"cond_enc.{name}": shape for name, shape in _conditioning_shapes(size)}
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


def has_one_query(shapes: Mapping[str, ShapeLike]) -> bool:
    """Whether prompts are read by a single query: published T3s have 32, a small one with voices by number has one."""
    return shapes.get(PERCEIVER_QUERY_NAME, ())[:2] == (1, 1)


def voice_encoder_shapes() -> dict[str, ShapeLike]:
    """The 16 tensors of ve.pt, in its order."""
    shapes: dict[str, ShapeLike] = {"similarity_weight": (1,), "similarity_bias": (1,)}
    gates = 4 * VOICE_ENCODER_WIDTH
    for layer in range(VOICE_ENCODER_LAYERS):
        shapes |= {
            f"lstm.weight_ih_l{layer}": (gates, VOICE_ENCODER_WIDTH if layer else VOICE_ENCODER_MELS),
            f"lstm.weight_hh_l{layer}": (gates, VOICE_ENCODER_WIDTH),
            f"lstm.bias_ih_l{layer}": (gates,),
            f"lstm.bias_hh_l{layer}": (gates,),
        }
    return shapes | {"proj.weight": (VOICE_ENCODER_WIDTH, VOICE_ENCODER_WIDTH), "proj.bias": (VOICE_ENCODER_WIDTH,)}


def speech_tokenizer_shapes(width: int = 1280, layers: int = 6) -> dict[str, ShapeLike]:
    """The learnt tensors of the speech tokenizer, without SPEECH_TOKENIZER_PREFIX: 102 at the published size.

    Its mel filters and its window, which the published file holds as well, are computed.
    """
    shapes: dict[str, ShapeLike] = {}
    for number, inputs in ((1, SPEECH_TOKENIZER_MELS), (2, width)):
        shapes |= {f"encoder.conv{number}.weight": (width, inputs, 3), f"encoder.conv{number}.bias": (width,)}
    for layer in range(layers):
        shapes |= {f"encoder.blocks.{layer}.{name}": shape for name, shape in _speech_block_shapes(width)}
    down = "quantizer._codebook.project_down"
    return shapes | {f"{down}.weight": (SPEECH_TOKENIZER_DIGITS, width), f"{down}.bias": (SPEECH_TOKENIZER_DIGITS,)}


def _llama_layer_shapes(size: T3Size) -> Iterator[tuple[str, ShapeLike]]:
    width = size.width
    for part in ("q", "k", "v", "o"):
        yield f"self_attn.{part}_proj.weight", (width, width)
    for part in ("gate", "up"):
        yield f"mlp.{part}_proj.weight", (size.mlp, width)
    yield "mlp.down_proj.weight", (width, size.mlp)
    for place in ("input", "post_attention"):
        yield f"{place}_layernorm.weight", (width,)


def _conditioning_shapes(size: T3Size) -> Iterator[tuple[str, ShapeLike]]:
    width = size.width
    yield "spkr_enc.weight", (width, size.speaker_width)
    yield "spkr_enc.bias", (width,)
    yield "emotion_adv_fc.weight", (width, 1)
    yield "perceiver.pre_attention_query", (1, size.perceiver_queries, width)
    yield "perceiver.attn.norm.weight", (width,)
    yield "perceiver.attn.norm.bias", (width,)
    for part in ("to_q", "to_k", "to_v", "proj_out"):
        yield f"perceiver.attn.{part}.weight", (width, width)
        yield f"perceiver.attn.{part}.bias", (width,)


def _speech_block_shapes(width: int) -> Iterator[tuple[str, ShapeLike]]:
    for part in ("query", "key", "value", "out"):
        yield f"attn.{part}.weight", (width, width)
        if part != "key":
            yield f"attn.{part}.bias", (width,)
    yield "attn.fsmn_block.weight", (width, 1, SPEECH_TOKENIZER_KERNEL)
    yield from _norm_shapes("attn_ln", width)
    yield "mlp.0.weight", (4 * width, width)
    yield "mlp.0.bias", (4 * width,)
    yield "mlp.2.weight", (width, 4 * width)
    yield "mlp.2.bias", (width,)
    yield from _norm_shapes("mlp_ln", width)


def _norm_shapes(name: str, width: int) -> Iterator[tuple[str, ShapeLike]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _read_dimension(shapes: Mapping[str, ShapeLike], name: str, axis: int, published: int) -> int:
    """One side of a tensor; the published one where there is no such tensor, which is then found missing."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else published


def _most_common_dimension(shapes: Mapping[str, ShapeLike], ending: str, otherwise: int) -> int:
    """The first side that most tensors of a kind have: one damaged tensor does not make all others look wrong."""
    sides = Counter(shape[0] for name, shape in shapes.items() if name.endswith(ending) and shape)
    return sides.most_common(1)[0][0] if sides else otherwise


def _count_layers(shapes: Mapping[str, ShapeLike]) -> int:
    """Up to the last layer that is there, so that one which is missing before it is noticed."""
    layers = {int(match[1]) for match in map(_T3_LAYER.match, shapes) if match}
    return max((layer + 1 for layer in layers if layer < len(shapes)), default=0)


TEXT_START_ID, TEXT_STOP_ID = 255, 0
NUM_SPEECH_CODES = 6561
SPEECH_START_ID, SPEECH_STOP_ID = 6561, 6562
"""Rows 6563 to 8193 of the speech tables stand for nothing: no target is ever one of them."""
MAX_PROMPT_CODES = 150
"""Six seconds of codes: the most that the published model was given."""


def t3_sequence_spec(num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
    """The stock program begins to speak with two start ids, both at position 0."""
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
