"""The Triton kernel that draws the next code of every stream, in the order of `nn/sampling.py`, and counts it.

Top-k and top-p look for their lowest score by halving, bit by bit, so that nothing is ever sorted. Imported only where
Triton is. Shapes: N streams, V speech rows.
"""

# mypy: ignore-errors
# ruff: noqa: N803
# (Triton's language looks like Python and is not; see `nn/kernels.py`.)

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["sample_code_kernel"]


@triton.jit
def _to_sortable_int(x):
    """Whole numbers in the order of floating-point ones."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _find_threshold(keys, weights, enough):
    """The highest key at or above which there is `enough` weight."""
    lowest = tl.where(tl.sum(tl.where(keys >= 0, weights, 0.0), 0) >= enough, 0, -2147483648)
    for bit in range(31):
        higher = lowest + (1 << (30 - bit))
        lowest = tl.where(tl.sum(tl.where(keys >= higher, weights, 0.0), 0) >= enough, higher, lowest)
    return lowest


@triton.jit
def sample_code_kernel(
    logits_at,
    heard_at,
    noise_at,
    settings_at,
    codes_at,
    spoken_at,
    stopped_at,
    filled_at,
    ids_at,
    positions_at,
    num_streams,
    max_codes,
    first_position,
    V: tl.constexpr,
    NUM_CODES: tl.constexpr,
    STOP: tl.constexpr,
    READABLE: tl.constexpr,
    GUIDED: tl.constexpr,
    DRAWN: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
    NUM_NOISE: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Draw one stream's next code from its logits, remember it, and say what is to be fed next.

    `settings` holds guidance, penalty, temperature, min-p, top-k and top-p. A stream that has spoken `max_codes` goes
    on in place, since it is asked for more only to the end of a graph.
    """
    n = tl.program_id(0)
    v = tl.arange(0, BLOCK_V)
    inside = v < V
    spoken = tl.load(spoken_at + n).to(tl.int32)
    x = tl.load(logits_at + n * V + v, mask=inside, other=-float("inf")).to(tl.float32)
    if GUIDED:
        without = tl.load(logits_at + (num_streams + n) * V + v, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(settings_at) * (x - without)
    penalty = tl.load(settings_at + 1)
    heard = tl.load(heard_at + n * V + v, mask=inside, other=0) != 0
    x = tl.where(heard, tl.where(x > 0, x / penalty, x * penalty), x)
    if READABLE:
        x = tl.where((v < NUM_CODES) | (v == STOP), x, -float("inf"))
    if DRAWN:
        x = x / tl.load(settings_at + 2)
        keys = _to_sortable_int(x)
        if TOP_K:
            x = tl.where(
                keys >= _find_threshold(keys, tl.where(inside, 1.0, 0.0), tl.load(settings_at + 4)), x, -float("inf")
            )
        shares = tl.exp(x - tl.max(x, 0))
        shares = tl.where(shares < tl.load(settings_at + 3), 0.0, shares)
        if TOP_P:
            enough = tl.load(settings_at + 5) * tl.sum(shares, 0)
            shares = tl.where(keys >= _find_threshold(keys, shares, enough), shares, 0.0)
        noise = tl.load(noise_at + (n * NUM_NOISE + spoken % NUM_NOISE) * V + v, mask=inside, other=1.0)
        x = tl.where(inside, shares / noise, -1.0)
    stopped = tl.load(stopped_at + n) != 0
    code = tl.where(stopped, STOP, tl.argmax(x, 0))
    tl.store(codes_at + n * max_codes + tl.minimum(spoken, max_codes - 1), code.to(tl.int64), mask=spoken < max_codes)
    tl.store(heard_at + n * V + code, 1)
    tl.store(stopped_at + n, (stopped | (code == STOP)).to(tl.int8))
    tl.store(ids_at + n, code.to(tl.int64))
    tl.store(positions_at + n, tl.minimum(spoken + first_position, max_codes - 1 + first_position).to(tl.int64))
    tl.store(spoken_at + n, (spoken + 1).to(tl.int64))
    tl.store(filled_at + n, tl.load(filled_at + n) + 1)
    if GUIDED:
        tl.store(filled_at + num_streams + n, tl.load(filled_at + num_streams + n) + 1)
