"""The tensors of a Chatterbox T3 checkpoint: every name with its shape, at any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SPEECH_ROWS = 8194
SPEECH_POSITIONS = 4100
TEXT_POSITIONS = 2050
SPEAKER_WIDTH = 256
PERCEIVER_QUERIES = 32
UNUSED_ROWS = 8
"""The backbone's own token table is never read, but the stock loader insists on it."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class T3Size:
    """The sizes that may differ; as published by default. Stock code fixes the width at 1024."""

    text_rows: int = 2454
    width: int = 1024
    layers: int = 30
    mlp: int = 4096


def t3_shapes(size: T3Size) -> dict[str, Shape]:
    """Names and shapes in the order of the published file: 292 at full depth."""
    width = size.width
    shapes: dict[str, Shape] = {"tfmr.embed_tokens.weight": (UNUSED_ROWS, width)}
    for layer in range(size.layers):
        shapes |= {f"tfmr.layers.{layer}.{name}": shape for name, shape in _layer(size)}
    shapes["tfmr.norm.weight"] = (width,)
    shapes |= {f"cond_enc.{name}": shape for name, shape in _conditioning(width)}
    return shapes | {
        "text_emb.weight": (size.text_rows, width),
        "speech_emb.weight": (SPEECH_ROWS, width),
        "text_pos_emb.emb.weight": (TEXT_POSITIONS, width),
        "speech_pos_emb.emb.weight": (SPEECH_POSITIONS, width),
        "text_head.weight": (size.text_rows, width),
        "speech_head.weight": (SPEECH_ROWS, width),
    }


def _layer(size: T3Size) -> Iterator[tuple[str, Shape]]:
    width = size.width
    for part in ("q", "k", "v", "o"):
        yield f"self_attn.{part}_proj.weight", (width, width)
    for part in ("gate", "up"):
        yield f"mlp.{part}_proj.weight", (size.mlp, width)
    yield "mlp.down_proj.weight", (width, size.mlp)
    for place in ("input", "post_attention"):
        yield f"{place}_layernorm.weight", (width,)


def _conditioning(width: int) -> Iterator[tuple[str, Shape]]:
    yield "spkr_enc.weight", (width, SPEAKER_WIDTH)
    yield "spkr_enc.bias", (width,)
    yield "emotion_adv_fc.weight", (width, 1)
    yield "perceiver.pre_attention_query", (1, PERCEIVER_QUERIES, width)
    yield "perceiver.attn.norm.weight", (width,)
    yield "perceiver.attn.norm.bias", (width,)
    for part in ("to_q", "to_k", "to_v", "proj_out"):
        yield f"perceiver.attn.{part}.weight", (width, width)
        yield f"perceiver.attn.{part}.bias", (width,)
