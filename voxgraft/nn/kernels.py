"""Triton kernels that speak one code: every layer of a body for a handful of rows, attention over a cache, the draw.

Written for bandwidth: each weight is read once, straight into registers, by the program that needs it. Imported only
where Triton is (`nn/fast_step.py` and `nn/fast_draw.py` know); they work on a device's tensors and check nothing.

A kernel that is launched early (`EARLY`) loads its weights while the kernel before it still runs, and then waits. Each
kernel lets the next one in only after its own wait, so that what comes before the wait may read anything but what the
kernel directly before writes.

Shapes: R rows, K inputs and N outputs of a layer, H heads of width D, S positions of the cache. Activations that lie in
the path of the residual are kept as two numbers of half precision, the value and what its rounding lost: [2, R, K].
"""

# mypy: ignore-errors
# ruff: noqa: N803
# (Triton's language looks like Python and is not; its compile-time constants are written in capitals, and it has no
# other way to take many arguments than many parameters.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["activate", "add_norm", "added_linear", "attend", "normed_linear"]

GELU_SLOPE = tl.constexpr(1.5957691216057308)
GELU_CUBE = tl.constexpr(0.044715)


@triton.jit
def _wait(EARLY: tl.constexpr):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _weights(at, n, k, K: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Some lines of a matrix, cut along K into tiles; all loads are under way before the first is needed."""
    tiles = ()
    for first in tl.static_range(0, K, BLOCK_K):
        places = at + n[:, None] * K + (first + k)[None, :]
        if N % BLOCK_N == 0:
            tiles = tiles + (tl.load(places),)
        else:
            tiles = tiles + (tl.load(places, mask=(n < N)[:, None], other=0.0),)
    return tiles


@triton.jit
def _vector(at, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """One line of K numbers, cut as `_weights` cuts a matrix."""
    parts = ()
    for first in tl.static_range(0, K, BLOCK_K):
        parts = parts + (tl.load(at + (first + k)[None, :]),)
    return parts


@triton.jit
def _folded(x, LINES: tl.constexpr, BLOCK_K: tl.constexpr):
    """Sums of what one thread holds side by side, so that threads have less to tell each other later."""
    return tl.sum(tl.reshape(x, [LINES, BLOCK_K // 8, 8]), 2)


@triton.jit
def _rounded(at, lost_at, value, inside):
    """Store a number of the residual as its rounded value and what the rounding lost."""
    kind = at.dtype.element_ty
    kept = value.to(kind)
    tl.store(at, kept, mask=inside)
    tl.store(lost_at, (value - kept.to(tl.float32)).to(kind), mask=inside)


@triton.jit
def normed_linear(
    x_at,
    norm_at,
    norm_bias_at,
    weight_at,
    bias_at,
    out_at,
    eps,
    K: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    NORM: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out = activation(norm(x) weightᵀ + bias), for BLOCK_N outputs of all rows; `gated` has gates, then values."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    weights = _weights(weight_at, n, k, K, N, BLOCK_N, BLOCK_K)
    if ACTIVATION == "gated":
        values = _weights(weight_at + N * K, n, k, K, N, BLOCK_N, BLOCK_K)
    scale = _vector(norm_at, k, K, BLOCK_K)
    if NORM == "layer":
        shift = _vector(norm_bias_at, k, K, BLOCK_K)
    if BIAS:
        bias = tl.load(bias_at + n, mask=n < N, other=0.0).to(tl.float32)
    _wait(EARLY)
    for r in tl.static_range(R):
        kept = _vector(x_at + r * K, k, K, BLOCK_K)
        lost = _vector(x_at + (R + r) * K, k, K, BLOCK_K)
        x = ()
        total = tl.zeros([1, BLOCK_K // 8], tl.float32)
        squares = tl.zeros([1, BLOCK_K // 8], tl.float32)
        for c in tl.static_range(K // BLOCK_K):
            part = kept[c].to(tl.float32) + lost[c].to(tl.float32)
            squares += _folded(part * part, 1, BLOCK_K)
            if NORM == "layer":
                total += _folded(part, 1, BLOCK_K)
            x = x + (part,)
        mean = 0.0
        if NORM == "layer":
            mean = tl.sum(total) / K
        spread = tl.rsqrt(tl.sum(squares) / K - mean * mean + eps)
        sums = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
        value_sums = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
        for c in tl.static_range(K // BLOCK_K):
            part = (x[c] - mean) * (scale[c].to(tl.float32) * spread)
            if NORM == "layer":
                part += shift[c].to(tl.float32)
            sums += _folded(weights[c].to(tl.float32) * part, BLOCK_N, BLOCK_K)
            if ACTIVATION == "gated":
                value_sums += _folded(values[c].to(tl.float32) * part, BLOCK_N, BLOCK_K)
        out = tl.sum(sums, 1)
        if BIAS:
            out += bias
        if ACTIVATION == "gated":
            out = out * tl.sigmoid(out) * tl.sum(value_sums, 1)
        if ACTIVATION == "gelu":
            out = out * tl.sigmoid(GELU_SLOPE * (out + GELU_CUBE * out * out * out))
        tl.store(out_at + r * N + n, out.to(out_at.dtype.element_ty), mask=n < N)


@triton.jit
def added_linear(
    y_at,
    weight_at,
    bias_at,
    x_at,
    K: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x += y weightᵀ + bias, for BLOCK_N outputs of all rows."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    weights = _weights(weight_at, n, k, K, N, BLOCK_N, BLOCK_K)
    if BIAS:
        bias = tl.load(bias_at + n, mask=n < N, other=0.0).to(tl.float32)
    _wait(EARLY)
    for r in tl.static_range(R):
        y = _vector(y_at + r * K, k, K, BLOCK_K)
        sums = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
        for c in tl.static_range(K // BLOCK_K):
            sums += _folded(weights[c].to(tl.float32) * y[c].to(tl.float32), BLOCK_N, BLOCK_K)
        out = tl.sum(sums, 1)
        if BIAS:
            out += bias
        at, lost_at = x_at + r * N + n, x_at + (R + r) * N + n
        out += tl.load(at, mask=n < N, other=0.0).to(tl.float32)
        out += tl.load(lost_at, mask=n < N, other=0.0).to(tl.float32)
        _rounded(at, lost_at, out, n < N)


@triton.jit
def _turned(at, d, cos, sin, D: tl.constexpr, ROTARY: tl.constexpr):
    """A head's numbers, each pair (first half, second half) turned by its angle."""
    x = tl.load(at + d).to(tl.float32)
    if ROTARY:
        other = tl.load(at + (d + D // 2) % D).to(tl.float32)
        x = x * cos + tl.where(d < D // 2, -other, other) * sin
    return x


@triton.jit
def _attended(k, v, q, seen, state):
    """One more block of positions in a running softmax: (highest score, sum of weights, weighted values)."""
    highest, total, mixed = state
    scores = tl.where(seen, tl.sum(k.to(tl.float32) * q[None, :], 1), -float("inf"))
    higher = tl.maximum(highest, tl.max(scores, 0))
    fade = tl.exp(highest - higher)
    weights = tl.exp(scores - higher)
    mixed = mixed * fade + tl.sum(weights[:, None] * v.to(tl.float32), 0)
    return higher, total * fade + tl.sum(weights, 0), mixed


@triton.jit
def attend(
    qkv_at,
    rotation_at,
    keys_at,
    values_at,
    filled_at,
    out_at,
    length,
    scale,
    H: tl.constexpr,
    D: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_S: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One head of one row: turn query and key, put key and value into the cache, and look at all of the row.

    `filled` counts the new position already. `rotation` holds D / 2 cosines and as many sines for each position.
    """
    row, head = tl.program_id(0) // H, tl.program_id(0) % H
    d, s = tl.arange(0, D), tl.arange(0, BLOCK_S)
    position = tl.load(filled_at + row).to(tl.int32) - 1
    start = tl.program_id(0).to(tl.int64) * length * D
    places = start + s[:, None] * D + d[None, :]
    seen = s < position
    k = tl.load(keys_at + places, mask=seen[:, None], other=0.0)
    v = tl.load(values_at + places, mask=seen[:, None], other=0.0)
    cos, sin = 1.0, 0.0
    if ROTARY:
        cos = tl.load(rotation_at + position * D + d % (D // 2))
        sin = tl.load(rotation_at + position * D + D // 2 + d % (D // 2))
    _wait(EARLY)
    at = qkv_at + row * 3 * H * D + head * D
    kind = keys_at.dtype.element_ty
    q = _turned(at, d, cos, sin, D, ROTARY) * scale
    new_k = _turned(at + H * D, d, cos, sin, D, ROTARY).to(kind)
    new_v = tl.load(at + 2 * H * D + d).to(kind)
    tl.store(keys_at + start + position * D + d, new_k)
    tl.store(values_at + start + position * D + d, new_v)
    state = (tl.sum(q * new_k.to(tl.float32), 0), 1.0, new_v.to(tl.float32))
    state = _attended(k, v, q, seen, state)
    for first in tl.range(BLOCK_S, position, BLOCK_S):
        seen = first + s < position
        k = tl.load(keys_at + places + first * D, mask=seen[:, None], other=0.0)
        v = tl.load(values_at + places + first * D, mask=seen[:, None], other=0.0)
        state = _attended(k, v, q, seen, state)
    highest, total, mixed = state
    tl.store(out_at + (row * H + head) * D + d, (mixed / total).to(out_at.dtype.element_ty))


@triton.jit
def add_norm(
    y_at,
    x_at,
    norm_at,
    norm_bias_at,
    out_at,
    eps,
    num_rows,
    K: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x += y, out = norm(x), for one row."""
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK_K)
    inside = k < K
    scale = tl.load(norm_at + k, mask=inside, other=0.0).to(tl.float32)
    if NORM == "layer":
        shift = tl.load(norm_bias_at + k, mask=inside, other=0.0).to(tl.float32)
    _wait(EARLY)
    at, lost_at = x_at + row * K + k, x_at + (num_rows + row) * K + k
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32) + tl.load(lost_at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(y_at + row * K + k, mask=inside, other=0.0).to(tl.float32)
        _rounded(at, lost_at, x, inside)
    if NORM == "layer":
        x = tl.where(inside, x - tl.sum(x, 0) / K, 0.0)
    out = x * tl.rsqrt(tl.sum(x * x, 0) / K + eps) * scale
    if NORM == "layer":
        out += shift
    tl.store(out_at + row * K + k, out.to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def activate(
    x_at, out_at, total, N: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """The MLP's activation of `total` numbers, N in a row; `gated` reads rows of N gates and N values."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    _wait(EARLY)
    if ACTIVATION == "gated":
        at = x_at + place // N * (2 * N) + place % N
        x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        x = x * tl.sigmoid(x) * tl.load(at + N, mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.load(x_at + place, mask=inside, other=0.0).to(tl.float32)
        x = x * tl.sigmoid(GELU_SLOPE * (x + GELU_CUBE * x * x * x))
    tl.store(out_at + place, x.to(out_at.dtype.element_ty), mask=inside)
