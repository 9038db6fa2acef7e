"""Causal attention over packed sequences and over a static KV cache: the only place where positions see each other.

A context says which positions see which; a backbone asks it and knows nothing of batches. Four backends: rows of
similar length, padded (sdpa); torch's kernel without padding (varlen); flex attention; our tiled Triton kernels, which
need Hopper and train fastest (measured in a whole step: 135.6k -> 144.1k positions/s). Needs torch only.

Shapes: T positions in a pack, B sequences, R rows of a cache, S its length, H heads, D width of a head.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.core.errors import GraftError
from voxgraft.nn.layers import map_tensors

# torch's varlen kernel, once `_has_varlen` has imported it.
varlen_attn: Any = None


AttentionBackend = Literal["sdpa", "varlen", "flex", "tiles"]
# Rows of one padded group are at least this share of its longest row.
MIN_GROUP_FILL = 0.8


class AttentionContext(Protocol):
    """Which positions see which, and where each is in its own sequence."""

    @property
    def positions(self) -> Tensor:
        """[T]"""
        ...

    @property
    def closed(self) -> Tensor | None:
        """Where an open gate of an adapter is closed; None: nowhere. [T] bool"""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[T, H, D] each -> [T, H, D]; every position sees its own sequence up to itself."""
        ...


def choose_attention_backend(
    device: torch.device | str, dtype: torch.dtype, learning_width: int | None = None
) -> AttentionBackend:
    """Without padding where the device has a kernel for that, else rows of similar length.

    `learning_width` is the width of a head where gradients are wanted.
    """
    # ROCm calls itself cuda too, but these kernels were only measured on NVIDIA's GPUs.
    if torch.device(device).type != "cuda" or torch.version.hip is not None or not _has_varlen():
        return "sdpa"
    capability = torch.cuda.get_device_capability(device)
    if learning_width is not None and supports_tiled_attention(capability, dtype, learning_width):
        return "tiles"
    return "varlen" if supports_varlen(capability, dtype) else "sdpa"


def supports_varlen(capability: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether a CUDA device has the kernel: not before Ampere, so that a T4 (7.5), in float16, takes padded rows."""
    return capability >= (8, 0) and dtype in (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Packing:
    """Sequences laid one after another without padding. Make one with `of`."""

    offsets: Tensor  # [B + 1] int32: where each sequence begins, and the end of the last
    positions: Tensor  # [T]
    rows: Tensor  # [T] the sequence that a position belongs to
    longest: int
    backend: AttentionBackend
    groups: tuple[Tensor, ...] = ()  # each [rows, length]: places in the pack of similar sequences, padded
    places: Tensor | None = None  # [T] where each position is in the groups laid flat
    tiles: Tensor | None = None  # [3, N, 3] work lists
    closed: Tensor | None = None  # [T] bool
    block_mask: Any = field(default=None, compare=False)

    @classmethod
    def of(
        cls, lengths: Sequence[int], device: torch.device | str = "cpu", backend: AttentionBackend | None = None
    ) -> Packing:
        """A pack of sequences of these lengths."""
        if not lengths or min(lengths) < 1:
            raise GraftError(
                "packing", f"sequences of the lengths {list(lengths)[:8]}", expected="one or more, none empty"
            )
        ends = np.cumsum(lengths)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(ends[-1]) - np.repeat(ends - np.asarray(lengths), lengths)
        packing = cls(
            offsets=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
            positions=torch.from_numpy(positions),
            rows=torch.from_numpy(rows),
            longest=max(lengths),
            backend=backend or choose_attention_backend(device, torch.bfloat16),
        )
        if packing.backend == "varlen" and not _has_varlen():
            raise GraftError("packing", "this torch has no varlen attention", expected="a torch version that has it")
        if packing.backend == "sdpa":
            groups, padded_positions = _group_by_length(np.asarray(lengths), ends - np.asarray(lengths))
            packing = replace(packing, groups=groups, places=padded_positions)
        if packing.backend == "tiles":
            packing = replace(packing, tiles=build_work_lists(np.asarray(lengths)))
        return packing.to(device)

    def to(self, device: torch.device | str) -> Packing:
        """The same pack with its tensors on a device."""
        moved = map_tensors(replace(self, block_mask=None), lambda tensor: tensor.to(device))
        return replace(moved, block_mask=_build_block_mask(moved)) if self.backend == "flex" else moved

    @property
    def last(self) -> Tensor:
        """The place of each sequence's last position. [B]"""
        return self.offsets[1:].long() - 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002 (a pack has no memory)
        if self.backend == "varlen":
            causal = (-1, 0)  # everything before a position, nothing after it
            out: Tensor = varlen_attn(
                q, k, v, self.offsets, self.offsets, self.longest, self.longest, window_size=causal
            )
            return out
        if self.backend == "tiles":
            assert self.tiles is not None
            return tiled_attention(q, k, v, self.tiles)
        if self.backend == "flex":
            # Outside a compiled block flex attention would materialise all scores; inside one it is compiled with it.
            kernel = _compile_flex() if q.is_cuda and not torch.compiler.is_compiling() else _import_flex()
            mixed: Tensor = kernel(*(x.transpose(0, 1)[None] for x in (q, k, v)), block_mask=self.block_mask)
            return mixed[0].transpose(0, 1)
        # sdpa, in groups of similar length. Causal attention needs no mask for padding at the end: no real position
        # sees it, and what padded positions compute is dropped by `places`.
        assert self.places is not None
        flat = []
        for group in self.groups:
            queries, keys, values = (x[group].transpose(1, 2) for x in (q, k, v))  # [rows, H, length, D] each
            out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            flat.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(flat)[self.places]


class KVCache:
    """Keys and values of every layer for R rows of up to S positions, allocated once.

    `filled` counts the positions of each row. It lives on the device, so that a step never waits for it.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int, int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        """`shape` is layers, rows, heads, length, head width."""
        layers, rows, heads, length, width = shape
        # Zeros, not empty: masked positions are multiplied by weight 0, and 0 times NaN would be NaN.
        self.keys = [torch.zeros(rows, heads, length, width, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.filled = torch.zeros(rows, dtype=torch.long, device=device)
        self.length = length
        self.num_rows = rows

    def view(self, num_rows: int, length: int) -> KVCache:
        """The first rows and positions of this cache, in the same memory."""
        part = copy.copy(self)
        part.keys = [keys[:num_rows, :, :length] for keys in self.keys]
        part.values = [values[:num_rows, :, :length] for values in self.values]
        part.filled, part.length, part.num_rows = self.filled[:num_rows], length, num_rows
        return part


@dataclass(frozen=True)
class PrefillContext:
    """Packed attention that also fills a cache: sequence b of the pack becomes row b, or `first_row` + b."""

    packing: Packing
    cache: KVCache
    first_row: int | None = None
    """None where the pack fills the whole cache."""

    def __post_init__(self) -> None:
        rows = len(self.packing.offsets) - 1
        end = rows if self.first_row is None else self.cache.num_rows
        if (
            (self.first_row or 0) + rows > self.cache.num_rows
            or end != self.cache.num_rows
            or self.packing.longest > self.cache.length
        ):
            found = f"{rows} sequences of up to {self.packing.longest} positions"
            expected = f"{self.cache.num_rows} of up to {self.cache.length}, as in the cache"
            raise GraftError("packing", found, expected=expected)

    @property
    def positions(self) -> Tensor:
        return self.packing.positions

    @property
    def closed(self) -> Tensor | None:
        return self.packing.closed

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Keys and values [T, H, D] go to [row, :, position] of the cache [R, H, S, D].
        cache_index = (self.packing.rows + (self.first_row or 0), slice(None), self.packing.positions)
        self.cache.keys[layer][cache_index] = k.to(self.cache.keys[layer].dtype)
        self.cache.values[layer][cache_index] = v.to(self.cache.values[layer].dtype)
        return self.packing.attend(layer, q, k, v)

    def finish(self) -> None:
        """Count what was filled; call once after the backbone's forward."""
        lengths, first = self.packing.offsets.diff(), self.first_row or 0
        self.cache.filled[first : first + len(lengths)].copy_(lengths)


class DecodeContext:
    """One more position for every row of a cache. Make a new one for each step, and `finish` it."""

    closed: Tensor | None = None  # speech has the gate of its sentence

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.positions = cache.filled  # [R]
        every = torch.arange(cache.length, device=cache.filled.device)
        self._seen = (every <= cache.filled[:, None])[:, None, None]  # [R, 1, 1, S]
        self._rows = torch.arange(cache.num_rows, device=cache.filled.device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[R, H, D] each -> [R, H, D]"""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self._rows, :, self.positions] = k.to(keys.dtype)
        values[self._rows, :, self.positions] = v.to(values.dtype)
        out = F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=self._seen)
        return out[:, :, 0]

    def finish(self) -> None:
        """Count the new position; call once after the backbone's forward."""
        self.cache.filled.add_(1)


@dataclass(frozen=True, slots=True)
class KeyMask:
    """Which frames of padded rows are heard, for attention without order. Make one with `build_key_mask`."""

    is_frame: Tensor  # [B, T] bool, true up to the end of each row
    lengths: Tensor  # [B] int32
    starts: Tensor  # [B + 1] int32: where rows begin when they are laid flat


def build_key_mask(is_frame: Tensor) -> KeyMask:
    """[B, T] bool; nothing waits for the device."""
    rows, longest = is_frame.shape
    starts = torch.arange(0, (rows + 1) * longest, longest, dtype=torch.int32, device=is_frame.device)
    return KeyMask(is_frame, is_frame.sum(1, dtype=torch.int32), starts)


def attend_frames(q: Tensor, k: Tensor, v: Tensor, keys: KeyMask | None) -> Tensor:
    """Every frame sees every frame of its row. [B, T, H, D] each -> [B, T, H, D]"""
    if keys is not None and q.is_cuda and supports_row_lengths(q.device, q.dtype, q.shape[-1]):
        return _attend_row_lengths(q, k, v, keys)
    mask = None if keys is None else keys.is_frame[:, None, None]
    queries, rest = q.transpose(1, 2), (k.transpose(1, 2), v.transpose(1, 2))
    return F.scaled_dot_product_attention(queries, *rest, attn_mask=mask).transpose(1, 2)


def _attend_row_lengths(q: Tensor, k: Tensor, v: Tensor, keys: KeyMask) -> Tensor:
    # `scaled_dot_product_attention` takes a slower kernel as soon as there is a mask.
    (rows, longest), flat = q.shape[:2], [part.flatten(0, 1) for part in (q, k, v)]
    out: Tensor = torch.ops.aten._flash_attention_forward(
        *flat, keys.starts, keys.starts, longest, longest, 0.0, False, False, seqused_k=keys.lengths
    )[0]
    return out.view(rows, longest, *out.shape[1:])


@cache
def supports_row_lengths(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether flash attention takes the length of each row here. Tried once, since the operator is torch's own."""
    if torch.version.hip is not None or dtype not in (torch.bfloat16, torch.float16) or width > 256 or width % 8:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    draw = torch.Generator(device).manual_seed(0)
    q, k, v = torch.empty(3, 2, 96, 2, width, device=device, dtype=dtype).normal_(generator=draw).unbind()
    keys = build_key_mask(torch.arange(96, device=device) < torch.tensor([[96], [37]], device=device))
    mask = keys.is_frame[:, None, None]
    expected = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    try:
        found = _attend_row_lengths(q, k, v, keys)
    except (RuntimeError, TypeError):
        return False
    return float((found - expected.transpose(1, 2)).abs().max()) < 0.03


def _group_by_length(lengths: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Sequences sorted by length, cut where they get too short for their group; padding repeats a row's first place."""
    # Longest first. A new group starts where padding would take more than a fifth of a row.
    order = np.argsort(-lengths, kind="stable")
    cuts = [0]
    for rank, index in enumerate(order):
        if lengths[index] < MIN_GROUP_FILL * lengths[order[cuts[-1]]]:
            cuts.append(rank)
    groups, padded_positions, before = [], np.empty(int(lengths.sum()), dtype=np.int64), 0
    for first, end in pairwise([*cuts, len(order)]):
        members = order[first:end]
        longest = int(lengths[members[0]])
        steps = np.arange(longest)
        inside = steps[None] < lengths[members][:, None]
        group = np.where(inside, starts[members][:, None] + steps, starts[members][:, None])
        padded_positions[group[inside]] = before + np.flatnonzero(inside)
        before += group.size
        groups.append(torch.from_numpy(group))
    return tuple(groups), torch.from_numpy(padded_positions)


@cache
def _has_varlen() -> bool:
    """Whether this torch has the kernel. Imported when it is requested: it brings torch's whole compiler along."""
    global varlen_attn  # not a call: a compiled block reads it as a constant
    try:
        from torch.nn.attention import varlen
    except ImportError:
        return False
    varlen_attn = varlen.varlen_attn
    return True


def _build_block_mask(packing: Packing) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    rows = packing.rows

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (rows[query] == rows[key]) & (query >= key)

    total = len(rows)
    return create_block_mask(visible, None, None, total, total, device=str(rows.device))


def _import_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention  # brings torch's compiler along

    return flex_attention


@cache
def _compile_flex() -> Any:
    return torch.compile(_import_flex())


@dataclass(frozen=True)
class TileConfig:
    """How a kernel cuts its work; the sizes below were measured on an H200."""

    tile: int
    """Rows of one program."""
    block: int
    """Rows that it loops over at a time."""
    warps: int
    stages: int
    """Blocks whose loads are in flight at once."""
    peel: bool
    """Whether blocks that all rows see have a loop of their own, without a mask."""
    heads_first: bool = False
    """Whether a tile is worked on in all heads before the next one is; else all tiles of a head."""
    registers: int | None = None
    """Maximum registers of a thread; None leaves it to the compiler."""


FORWARD_TILES = TileConfig(tile=64, block=64, warps=4, stages=3, peel=False)
QUERY_GRADIENT_TILES = TileConfig(tile=64, block=32, warps=4, stages=3, peel=False)
KEY_GRADIENT_TILES = TileConfig(tile=64, block=32, warps=4, stages=3, peel=False, registers=128)
# The head width that the sizes above were chosen for.
TILED_HEAD_WIDTH = 64


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
    work_lists = np.zeros((3, num_tiles or max(map(len, lists)), 3), dtype=np.int32)
    for line, entries in zip(work_lists, lists, strict=True):
        line[: len(entries)] = entries
    return torch.from_numpy(work_lists)


def max_num_tiles(num_positions: int, num_sequences: int) -> int:
    """Entries that are enough for so many positions, however they are shared out."""
    return num_positions // min(FORWARD_TILES.tile, QUERY_GRADIENT_TILES.tile, KEY_GRADIENT_TILES.tile) + num_sequences


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor) -> Tensor:
    """Every position sees its own sequence up to itself. [T, H, D] each, work lists -> [T, H, D]"""
    out: Tensor = _tiled_attention_op(q, k, v, tiles)[0]
    return out


def build_tile_list(lengths: NDArray[np.int64], tile: int, *, from_end: bool = False) -> NDArray[np.int64]:
    """A tile of queries works through the rows before it, one of keys through those after it (`from_end`). [N, 3]"""
    counts = -(-lengths // tile)  # tiles of each sequence; no tile crosses from one into the next
    ends = np.cumsum(lengths)
    begins, ends = np.repeat(ends - lengths, counts), np.repeat(ends, counts)
    firsts = begins + tile * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
    # Programs start in this order: most work first, so that no long one runs alone at the end.
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


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, cut: TileConfig, into: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The first of the three kernels over its work list, and the binary logarithm of each row's sum of weights.

    Written to `into` if it is given; its last dimension has no gaps. [T, H, D] each, [N, 3] -> [T, H, D], [H, T]
    """
    out = q.new_empty(q.shape) if into is None else into
    log_total = q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
    _launch_tile_kernel("attend_tile", (q, k, v, out, log_total, tiles), (q, k, v, out), cut)
    return out, log_total


def attention_query_gradients(
    qkv: tuple[Tensor, Tensor, Tensor], outs: tuple[Tensor, Tensor], log_total: Tensor, tiles: Tensor, cut: TileConfig
) -> tuple[Tensor, Tensor]:
    """The second: gradients of the queries, and what the third needs to know of each row. [T, H, D], [H, T, 2]"""
    out, d_out = outs
    dq, pairs = qkv[0].new_empty(qkv[0].shape), log_total.new_empty(*log_total.shape, 2)
    _launch_tile_kernel(
        "query_tile_gradients", (*qkv, out, d_out, log_total, pairs, dq, tiles), (*qkv, out, d_out), cut
    )
    return dq, pairs


def attention_key_gradients(
    qkv: tuple[Tensor, Tensor, Tensor], d_out: Tensor, pairs: Tensor, tiles: Tensor, cut: TileConfig
) -> tuple[Tensor, Tensor]:
    """The third: gradients of keys and values. [T, H, D] each"""
    dk, dv = (one.new_empty(one.shape) for one in qkv[1:])
    _launch_tile_kernel("key_tile_gradients", (*qkv, d_out, pairs, dk, dv, tiles), (*qkv, d_out), cut)
    return dk, dv


def _launch_tile_kernel(name: str, tensors: tuple[Tensor, ...], strided: tuple[Tensor, ...], cut: TileConfig) -> None:
    from voxgraft.nn import training_kernels

    num_positions, num_heads, width = tensors[0].shape
    strides = [stride for tensor in strided for stride in tensor.stride()[:2]]
    scale = math.log2(math.e) / math.sqrt(width)  # the kernels use exp2, which is faster than exp
    grid = (len(tensors[-1]), num_heads)
    kernel = getattr(training_kernels, name)[grid[::-1] if cut.heads_first else grid]
    sizes = (num_positions, scale, num_heads, width, cut.tile, cut.block, cut.peel, int(cut.heads_first))
    options = {"num_warps": cut.warps, "num_stages": cut.stages}
    options |= {} if cut.registers is None else {"maxnreg": cut.registers}
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
        kernel(*tensors, *strides, *sizes, **options)


def _make_dense(x: Tensor) -> Tensor:
    """The kernels read a head's numbers side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
