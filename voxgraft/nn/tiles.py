"""Causal attention over packed sequences in tiles that a work list names: made for training on short sequences.

The list holds exactly the tiles that exist, so that no program is started for what is not there. Its length depends on
the size of a pack alone, so that a recording serves every pack of that size. CUDA in half precision; needs Triton.

Shapes: T positions of a pack, B sequences, H heads, D width of a head, N entries of a work list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "FORWARD_TILES",
    "KEY_GRADIENT_TILES",
    "QUERY_GRADIENT_TILES",
    "TILED_HEAD_WIDTH",
    "TileConfig",
    "build_work_lists",
    "max_num_tiles",
    "supports_tiled_attention",
    "tiled_attention",
]


@dataclass(frozen=True)
class TileConfig:
    """How a kernel cuts its work."""

    tile: int
    """Rows of a program's own."""
    block: int
    """Rows that it walks over at a time."""
    warps: int
    stages: int
    """Blocks that are under way at once."""
    peel: bool
    """Whether blocks that all rows see have a loop of their own, without a mask."""
    heads_first: bool = False
    """Whether a tile is worked on in all heads before the next one is; else all tiles of a head."""
    registers: int | None = None
    """The most that a thread may have; None for what the compiler thinks best."""


FORWARD_TILES = TileConfig(tile=64, block=64, warps=4, stages=3, peel=False)
QUERY_GRADIENT_TILES = TileConfig(tile=64, block=32, warps=4, stages=3, peel=False)
KEY_GRADIENT_TILES = TileConfig(tile=64, block=32, warps=4, stages=3, peel=False, registers=128)
TILED_HEAD_WIDTH = 64
"""What the sizes above are chosen for."""


def supports_tiled_attention(capability: tuple[int, int], dtype: torch.dtype, head_width: int) -> bool:
    """Whether a CUDA device is one that the sizes are chosen for: Hopper or later, half precision."""
    fits = capability >= (9, 0) and dtype in (torch.bfloat16, torch.float16) and head_width == TILED_HEAD_WIDTH
    return fits and find_spec("triton") is not None


def build_work_lists(lengths: NDArray[np.int64], num_tiles: int | None = None) -> Tensor:
    """Of each kernel the tiles of sequences that lie one after another, those with most work first. [3, N, 3] int32

    An entry is a tile's first row and the begin and end of its sequence. `num_tiles` is N, if not as many as it takes;
    entries that are left over are zeros.
    """
    lists = [
        build_tile_list(lengths, FORWARD_TILES.tile),
        build_tile_list(lengths, QUERY_GRADIENT_TILES.tile),
        build_tile_list(lengths, KEY_GRADIENT_TILES.tile, from_end=True),
    ]
    made = np.zeros((3, num_tiles or max(map(len, lists)), 3), dtype=np.int32)
    for line, entries in zip(made, lists, strict=True):
        line[: len(entries)] = entries
    return torch.from_numpy(made)


def max_num_tiles(num_positions: int, num_sequences: int) -> int:
    """Entries that are enough for so many positions, however they are shared out."""
    return num_positions // min(FORWARD_TILES.tile, QUERY_GRADIENT_TILES.tile, KEY_GRADIENT_TILES.tile) + num_sequences


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor) -> Tensor:
    """Every position sees its own sequence up to itself. [T, H, D] each, work lists -> [T, H, D]"""
    out: Tensor = _tiled_attention_op(q, k, v, tiles)[0]
    return out


def build_tile_list(lengths: NDArray[np.int64], tile: int, *, from_end: bool = False) -> NDArray[np.int64]:
    """A tile of queries works through the rows before it, one of keys through those after it (`from_end`). [N, 3]"""
    counts = -(-lengths // tile)
    ends = np.cumsum(lengths)
    begins, ends = np.repeat(ends - lengths, counts), np.repeat(ends, counts)
    firsts = begins + tile * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
    work = ends - firsts if from_end else firsts - begins
    order = np.argsort(-work, kind="stable")
    return np.stack([firsts, begins, ends], 1)[order]


@torch.library.custom_op(
    "voxgraft::tiled_attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor tiles) -> (Tensor, Tensor)",
)
def _tiled_attention_op(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Output and the binary logarithm of each row's sum of weights. [T, H, D], [H, T]"""
    return attention_forward(_make_dense(q), _make_dense(k), _make_dense(v), tiles[0], FORWARD_TILES)


@_tiled_attention_op.register_fake
def _(q: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op(
    "voxgraft::tiled_attention_backward",
    mutates_args=(),
    schema=(
        "(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor log_total, Tensor tiles)"
        " -> (Tensor, Tensor, Tensor)"
    ),
)
def _tiled_attention_backward_op(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_total: Tensor, tiles: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values. [T, H, D] each"""
    d_out, q, k, v = map(_make_dense, (d_out, q, k, v))
    dq, pairs = attention_query_gradients((q, k, v), (out, d_out), log_total, tiles[1], QUERY_GRADIENT_TILES)
    dk, dv = attention_key_gradients((q, k, v), d_out, pairs, tiles[2], KEY_GRADIENT_TILES)
    return dq, dk, dv


@_tiled_attention_backward_op.register_fake
def _(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _tiled_attention_backward(ctx: Any, d_out: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, Tensor, None]:
    q, k, v, tiles, out, log_total = ctx.saved_tensors
    return *_tiled_attention_backward_op(d_out, q, k, v, out, log_total, tiles), None


_tiled_attention_op.register_autograd(_tiled_attention_backward, setup_context=_save_for_backward)


def attention_forward(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, cut: TileConfig) -> tuple[Tensor, Tensor]:
    """The first of the three kernels over its work list. [T, H, D] each, [N, 3] -> [T, H, D], [H, T]"""
    out, log_total = q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
    _launch_tile_kernel("attend_tile", (q, k, v, out, log_total, tiles), (q, k, v), cut)
    return out, log_total


def attention_query_gradients(
    qkv: tuple[Tensor, Tensor, Tensor], outs: tuple[Tensor, Tensor], log_total: Tensor, tiles: Tensor, cut: TileConfig
) -> tuple[Tensor, Tensor]:
    """The second: gradients of the queries, and what the third needs to know of each row. [T, H, D], [H, T, 2]"""
    out, d_out = outs
    dq, pairs = qkv[0].new_empty(qkv[0].shape), log_total.new_empty(*log_total.shape, 2)
    _launch_tile_kernel("query_tile_gradients", (*qkv, out, d_out, log_total, pairs, dq, tiles), (*qkv, d_out), cut)
    return dq, pairs


def attention_key_gradients(
    qkv: tuple[Tensor, Tensor, Tensor], d_out: Tensor, pairs: Tensor, tiles: Tensor, cut: TileConfig
) -> tuple[Tensor, Tensor]:
    """The third: gradients of keys and values. [T, H, D] each"""
    dk, dv = (one.new_empty(one.shape) for one in qkv[1:])
    _launch_tile_kernel("key_tile_gradients", (*qkv, d_out, pairs, dk, dv, tiles), (*qkv, d_out), cut)
    return dk, dv


def _launch_tile_kernel(name: str, tensors: tuple[Tensor, ...], strided: tuple[Tensor, ...], cut: TileConfig) -> None:
    from voxgraft.nn import attention_kernels

    num_positions, num_heads, width = tensors[0].shape
    strides = [stride for tensor in strided for stride in tensor.stride()[:2]]
    scale = math.log2(math.e) / math.sqrt(width)
    grid = (len(tensors[-1]), num_heads)
    kernel = getattr(attention_kernels, name)[grid[::-1] if cut.heads_first else grid]
    sizes = (num_positions, scale, num_heads, width, cut.tile, cut.block, cut.peel, int(cut.heads_first))
    options = {"num_warps": cut.warps, "num_stages": cut.stages}
    options |= {} if cut.registers is None else {"maxnreg": cut.registers}
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
        kernel(*tensors, *strides, *sizes, **options)


def _make_dense(x: Tensor) -> Tensor:
    """With a head's numbers side by side, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()
