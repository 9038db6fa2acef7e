"""Triton kernels for decoding: a backbone's layers for few rows, attention over a cache, sampling; and for vocoders.

Written for bandwidth: every weight is read once, straight into registers, by the program that needs it. Imported only
where Triton is, by `nn/decode.py` and `nn/flow_ops.py`, which choose the sizes; the kernels check nothing.

With programmatic dependent launch (`EARLY`, Hopper and later) a kernel starts while the one before it still runs, loads
its weights, and then waits. It lets the next kernel start only after its own wait. So code before the wait may read
anything except what the kernel directly before it writes.

Shapes: R rows, K inputs and N outputs of a layer, H heads of width D, S positions of the cache, P splits of it. The
residual `x` is kept as two numbers of half precision, the value and what its rounding lost: [2, R, K].
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# mypy: ignore-errors
# ruff: noqa: N803, N806, RUF005
# (Triton's language looks like Python and is not: constants of the compilation are written in capitals, tuples grow by
# addition, and what a kernel needs it gets as parameters, however many.)


GELU_SLOPE = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi): x sigmoid(2 t) is x (1 + tanh(t)) / 2
GELU_CUBE = tl.constexpr(0.044715)


@triton.jit
def _wait_for_previous(EARLY: tl.constexpr):
    if EARLY:
        # In this order: the next kernel must not start before the one before this one has finished, since it may read
        # what that one wrote.
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _load_weights(at, n, k, N, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Lines n of a matrix, cut along K into tiles; all loads are under way before the first is needed."""
    tiles = ()  # a tuple stays in registers; unrolled, so that no load waits for another
    for first in tl.static_range(0, K, BLOCK_K):
        tiles = tiles + (tl.load(at + n[:, None] * K + (first + k)[None, :], mask=(n < N)[:, None], other=0.0),)
    return tiles


@triton.jit
def _load_vector(at, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """K numbers, cut as `_load_weights` cuts a matrix."""
    parts = ()
    for first in tl.static_range(0, K, BLOCK_K):
        parts = parts + (tl.load(at + (first + k)[None, :]),)
    return parts


@triton.jit
def _fold_lanes(x, LINES: tl.constexpr, BLOCK_K: tl.constexpr):
    """Sums of the eight numbers that one thread holds side by side: threads then exchange an eighth as much."""
    return tl.sum(tl.reshape(x, [LINES, BLOCK_K // 8, 8]), 2)


@triton.jit
def _dot_lines(weights, x, first: tl.constexpr, LINES: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """The product of some lines of a matrix and a vector whose tiles begin at `first`. [LINES]"""
    sums = tl.zeros([LINES, BLOCK_K // 8], tl.float32)
    for c in tl.static_range(K // BLOCK_K):
        sums += _fold_lanes(weights[c].to(tl.float32) * x[first + c].to(tl.float32), LINES, BLOCK_K)
    return tl.sum(sums, 1)


@triton.jit
def _add_to_residual(x_at, place, lost, value, inside):
    """x += value; `lost` is how far behind a number what its rounding lost is."""
    kind = x_at.dtype.element_ty
    value += tl.load(x_at + place, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(x_at + lost + place, mask=inside, other=0.0).to(tl.float32)
    rounded = value.to(kind)
    # The sum in float32 as two half-precision numbers: dozens of layers add to it, and half precision alone drifts.
    tl.store(x_at + place, rounded, mask=inside)
    tl.store(x_at + lost + place, (value - rounded.to(tl.float32)).to(kind), mask=inside)
    return value


@triton.jit
def _load_residual_rows(
    x_at, scale, k, eps, K: tl.constexpr, R: tl.constexpr, NORM: tl.constexpr, BLOCK_K: tl.constexpr
):
    """The residual times a norm's scale, and each row's mean and one over its spread, to be applied to products."""
    x = ()
    means = ()
    spreads = ()
    for r in tl.static_range(R):
        # The residual is a pair of half-precision numbers: the value, and what its rounding lost.
        rounded = _load_vector(x_at + r * K, k, K, BLOCK_K)
        lost = _load_vector(x_at + (R + r) * K, k, K, BLOCK_K)
        total = tl.zeros([1, BLOCK_K // 8], tl.float32)
        squares = tl.zeros([1, BLOCK_K // 8], tl.float32)
        for c in tl.static_range(K // BLOCK_K):
            part = rounded[c].to(tl.float32) + lost[c].to(tl.float32)
            squares += _fold_lanes(part * part, 1, BLOCK_K)
            if NORM == "layer":
                total += _fold_lanes(part, 1, BLOCK_K)
            x = x + (part * scale[c].to(tl.float32),)
        mean = 0.0
        if NORM == "layer":
            mean = tl.sum(total) / K
        means = means + (mean,)
        # Variance as E[x^2] - E[x]^2, since the row is read once; rounding may make it negative.
        spreads = spreads + (tl.rsqrt(tl.maximum(tl.sum(squares) / K - mean * mean, 0.0) + eps),)
    return x, means, spreads


@triton.jit
def normed_linear(
    x_at, norm_at, weight_at, moments_at, out_at, eps,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr,
    ONCE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out = activation(norm(x) weightᵀ + bias) of all rows, BLOCK_N outputs at a turn; `gated` has gates, then values.

    Programs take turns until all outputs are made, reading ahead; `ONCE` says that one turn is enough. `moments` of a
    layer norm: the weights times its scale, and the weights times its shift plus the layer's bias. [2, N]
    """
    lines, k = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    first, stride = tl.program_id(0) * BLOCK_N, tl.num_programs(0) * BLOCK_N
    weights = _load_weights(weight_at, first + lines, k, N, K, BLOCK_K)
    values = ()
    if ACTIVATION == "gated":
        values = _load_weights(weight_at + N * K, first + lines, k, N, K, BLOCK_K)
    scale = _load_vector(norm_at, k, K, BLOCK_K)
    _wait_for_previous(EARLY)
    x, means, spreads = _load_residual_rows(x_at, scale, k, eps, K, R, NORM, BLOCK_K)
    for begin in range(first, N, stride):
        n = begin + lines
        if not ONCE:
            # Lines beyond N are masked in the load, so the last turn may read ahead of the matrix's end.
            next_weights = _load_weights(weight_at, n + stride, k, N, K, BLOCK_K)
            if ACTIVATION == "gated":
                next_values = _load_weights(weight_at + N * K, n + stride, k, N, K, BLOCK_K)
        for r in tl.static_range(R):
            out = _dot_lines(weights, x, r * (K // BLOCK_K), BLOCK_N, K, BLOCK_K)
            # The norm comes after the product: sum((x - mean) * spread * scale * w) + sum(shift * w). The sums that do
            # not depend on x are precomputed in `moments`.
            if NORM == "layer":
                out = (out - means[r] * tl.load(moments_at + n, mask=n < N, other=0.0)) * spreads[r]
                out += tl.load(moments_at + N + n, mask=n < N, other=0.0)
            else:
                out *= spreads[r]
            if ACTIVATION == "gated":
                out *= tl.sigmoid(out) * (_dot_lines(values, x, r * (K // BLOCK_K), BLOCK_N, K, BLOCK_K) * spreads[r])
            if ACTIVATION == "gelu":
                out *= tl.sigmoid(GELU_SLOPE * (out + GELU_CUBE * out * out * out))
            tl.store(out_at + r * N + n, out.to(out_at.dtype.element_ty), mask=n < N)
        if not ONCE:
            weights = next_weights
            if ACTIVATION == "gated":
                values = next_values


@triton.jit
def added_linear(
    y_at, weight_at, bias_at, x_at,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, BIAS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """x += y weightᵀ + bias, for BLOCK_N outputs of all rows."""
    n, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    weights = _load_weights(weight_at, n, k, N, K, BLOCK_K)
    if BIAS:
        bias = tl.load(bias_at + n, mask=n < N, other=0.0).to(tl.float32)
    _wait_for_previous(EARLY)
    for r in tl.static_range(R):
        out = _dot_lines(weights, _load_vector(y_at + r * K, k, K, BLOCK_K), 0, BLOCK_N, K, BLOCK_K)
        if BIAS:
            out += bias
        _add_to_residual(x_at, r * N + n, R * N, out, n < N)


@triton.jit
def mixed_linear(
    parts_at, lse_at, weight_at, bias_at, x_at,
    H: tl.constexpr, D: tl.constexpr, N: tl.constexpr, R: tl.constexpr, P: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """x += y weightᵀ + bias, where y is mixed from what `attend` found in P splits of the cache. parts: [P, R, H, D]"""
    K: tl.constexpr = H * D
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    line = n[None, :, None]
    h, d = tl.arange(0, BLOCK_H)[:, None, None], tl.arange(0, D)[None, None, :]
    weights = ()
    for first in tl.static_range(0, H, BLOCK_H):
        weights = weights + (tl.load(weight_at + line * K + (first + h) * D + d, mask=line < N, other=0.0),)
    if BIAS:
        bias = tl.load(bias_at + n, mask=n < N, other=0.0).to(tl.float32)
    _wait_for_previous(EARLY)
    for r in tl.static_range(R):
        sums = tl.zeros([BLOCK_H, BLOCK_N, D // 8], tl.float32)
        for c in tl.static_range(H // BLOCK_H):
            head = r * H + c * BLOCK_H + h
            highest = tl.load(lse_at + head)
            for p in tl.static_range(1, P):
                highest = tl.maximum(highest, tl.load(lse_at + p * R * H + head))
            y = tl.zeros([BLOCK_H, 1, D], tl.float32)
            total = tl.zeros([BLOCK_H, 1, 1], tl.float32)
            # Each split has its own softmax; their weights relative to the highest logarithm join them.
            for p in tl.static_range(P):
                share = tl.exp(tl.load(lse_at + p * R * H + head) - highest)
                y += share * tl.load(parts_at + (p * R * H + head) * D + d).to(tl.float32)
                total += share
            product = weights[c].to(tl.float32) * (y / total)
            sums += tl.sum(tl.reshape(product, [BLOCK_H, BLOCK_N, D // 8, 8]), 3)
        out = tl.sum(tl.sum(sums, 2), 0)
        if BIAS:
            out += bias
        _add_to_residual(x_at, r * N + n, R * N, out, n < N)


@triton.jit
def _load_rotated(at, d, cos, sin, D: tl.constexpr, ROTARY: tl.constexpr):
    """A head's numbers, each pair (first half, second half) turned by its angle."""
    x = tl.load(at + d).to(tl.float32)
    if ROTARY:
        other = tl.load(at + (d + D // 2) % D).to(tl.float32)
        x = x * cos + tl.where(d < D // 2, -other, other) * sin
    return x


@triton.jit
def _update_running_softmax(k, v, q, seen, state):
    """One more block of positions in a running softmax: highest score, sum of weights, weighted values."""
    highest, total, mixed = state
    scores = tl.where(seen, tl.sum(k.to(tl.float32) * q[None, :], 1), -float("inf"))
    higher = tl.maximum(highest, tl.max(scores, 0))
    fade = tl.exp(highest - higher)
    weights = tl.exp(scores - higher)
    mixed = mixed * fade + tl.sum(weights[:, None] * v.to(tl.float32), 0)
    return higher, total * fade + tl.sum(weights, 0), mixed


@triton.jit
def attend(
    qkv_at, rotation_at, keys_at, values_at, filled_at, out_at, lse_at, length, scale, num_rows,
    H: tl.constexpr, D: tl.constexpr, P: tl.constexpr, ROTARY: tl.constexpr, BLOCK_S: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One head of one row over one of P equal parts of its positions; the first also puts key and value into the cache.

    `filled` counts the new position already. `rotation` holds D / 2 cosines and as many sines for every position.
    Gives each part's own mean of the values, and the logarithm of its weight. [P, R, H, D], [P, R, H]
    """
    row_head, split = tl.program_id(0), tl.program_id(1)
    row, head = row_head // H, row_head % H
    d, s = tl.arange(0, D), tl.arange(0, BLOCK_S)
    position = tl.load(filled_at + row).to(tl.int32) - 1
    # Old positions are shared among P programs; a program of its own for every part keeps the whole device busy.
    first = split * tl.cdiv(position, P)
    end = tl.minimum(first + tl.cdiv(position, P), position)
    start = row_head.to(tl.int64) * length * D
    offsets = start + s[:, None] * D + d[None, :]
    # The cache before the new position was written by earlier steps, so it may be read before the wait.
    k = tl.load(keys_at + offsets + first * D, mask=(first + s < end)[:, None], other=0.0)
    v = tl.load(values_at + offsets + first * D, mask=(first + s < end)[:, None], other=0.0)
    cos, sin = 1.0, 0.0
    if ROTARY:
        cos = tl.load(rotation_at + position * D + d % (D // 2))
        sin = tl.load(rotation_at + position * D + D // 2 + d % (D // 2))
    _wait_for_previous(EARLY)
    qkv_head_at = qkv_at + row * 3 * H * D + head * D
    q = _load_rotated(qkv_head_at, d, cos, sin, D, ROTARY) * scale
    state = (-1e30, 0.0, tl.zeros([D], tl.float32))  # finite, so that a part without positions weighs nothing
    if split == 0:  # the new position belongs to no split's range; the first split adds it
        new_k = _load_rotated(qkv_head_at + H * D, d, cos, sin, D, ROTARY).to(keys_at.dtype.element_ty)
        new_v = tl.load(qkv_head_at + 2 * H * D + d).to(values_at.dtype.element_ty)
        tl.store(keys_at + start + position * D + d, new_k)
        tl.store(values_at + start + position * D + d, new_v)
        state = (tl.sum(q * new_k.to(tl.float32), 0), 1.0, new_v.to(tl.float32))
    for begin in range(first, end, BLOCK_S):  # the next block is loaded while this one is computed
        later = begin + BLOCK_S
        next_k = tl.load(keys_at + offsets + later * D, mask=(later + s < end)[:, None], other=0.0)
        next_v = tl.load(values_at + offsets + later * D, mask=(later + s < end)[:, None], other=0.0)
        state = _update_running_softmax(k, v, q, begin + s < end, state)
        k = next_k
        v = next_v
    highest, total, mixed = state
    total = tl.maximum(total, 1e-30)  # a part without positions would divide 0 by 0
    head_at = (split * num_rows + row) * H + head
    tl.store(out_at + head_at * D + d, (mixed / total).to(out_at.dtype.element_ty))
    if P > 1:
        tl.store(lse_at + head_at, highest + tl.log(total))


@triton.jit
def add_norm(
    y_at, x_at, norm_at, norm_bias_at, out_at, eps, num_rows,
    K: tl.constexpr, NORM: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """x += y, out = norm(x), for one row."""
    row, k = tl.program_id(0), tl.arange(0, BLOCK_K)
    inside = k < K
    scale = tl.load(norm_at + k, mask=inside, other=0.0).to(tl.float32)
    if NORM == "layer":
        shift = tl.load(norm_bias_at + k, mask=inside, other=0.0).to(tl.float32)
    _wait_for_previous(EARLY)
    y = tl.load(y_at + row * K + k, mask=inside, other=0.0).to(tl.float32)
    x = _add_to_residual(x_at, row * K + k, num_rows * K, y, inside)
    if NORM == "layer":
        # Padding (BLOCK_K is a power of two) must stay 0 after the mean is subtracted, or it would enter the variance.
        x = tl.where(inside, x - tl.sum(x, 0) / K, 0.0)
    out = x * tl.rsqrt(tl.sum(x * x, 0) / K + eps) * scale
    if NORM == "layer":
        out += shift
    tl.store(out_at + row * K + k, out.to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def activate(x_at, out_at, total, N: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """The MLP's activation of `total` numbers, N in a row; `gated` reads rows of N gates and N values."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < total
    _wait_for_previous(EARLY)
    if ACTIVATION == "gated":
        gate_at = x_at + offsets // N * (2 * N) + offsets % N
        x = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
        x *= tl.sigmoid(x) * tl.load(gate_at + N, mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.load(x_at + offsets, mask=inside, other=0.0).to(tl.float32)
        x *= tl.sigmoid(GELU_SLOPE * (x + GELU_CUBE * x * x * x))
    tl.store(out_at + offsets, x.to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def _to_sortable_int(x):
    """Integers in the order of the floating-point numbers: for negative ones all bits but the sign are flipped."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _find_threshold(keys, weights, enough):
    """The highest key at or above which there is `enough` weight, bit by bit: no sort is needed for top-k and top-p."""
    lowest = tl.where(tl.sum(tl.where(keys >= 0, weights, 0.0), 0) >= enough, 0, -2147483648)
    for bit in range(31):
        higher = lowest + (1 << (30 - bit))
        lowest = tl.where(tl.sum(tl.where(keys >= higher, weights, 0.0), 0) >= enough, higher, lowest)
    return lowest


@triton.jit
def sample_code_kernel(
    logits_at, heard_at, noise_at, settings_at, codes_at, spoken_at, stopped_at, filled_at, ids_at, positions_at,
    num_streams, max_codes, first_position,
    V: tl.constexpr, NUM_CODES: tl.constexpr, STOP: tl.constexpr, READABLE: tl.constexpr, GUIDED: tl.constexpr,
    DRAWN: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr, NUM_NOISE: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Sample one stream's next code from its logits, store it, and prepare the input of the next step.

    The same order as `filter_logits` and `sample_codes` in nn/decode.py. `settings` holds guidance, penalty,
    temperature, min-p, top-k and top-p. A stream that has `max_codes` stays in place: a graph always runs to its end.
    """
    n = tl.program_id(0)
    v = tl.arange(0, BLOCK_V)
    inside = v < V
    num_spoken = tl.load(spoken_at + n).to(tl.int32)
    x = tl.load(logits_at + n * V + v, mask=inside, other=-float("inf")).to(tl.float32)
    if GUIDED:
        without = tl.load(logits_at + (num_streams + n) * V + v, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(settings_at) * (x - without)
    penalty = tl.load(settings_at + 1)
    seen = tl.load(heard_at + n * V + v, mask=inside, other=0) != 0
    x = tl.where(seen, tl.where(x > 0, x / penalty, x * penalty), x)
    if READABLE:
        x = tl.where((v < NUM_CODES) | (v == STOP), x, -float("inf"))
    if DRAWN:
        x = x / tl.load(settings_at + 2)
        keys = _to_sortable_int(x)
        if TOP_K:
            x = tl.where(
                keys >= _find_threshold(keys, tl.where(inside, 1.0, 0.0), tl.load(settings_at + 4)), x, -float("inf")
            )
        # Not divided by their sum: min-p compares with the highest share, which is 1 here, and the draw is an argmax.
        shares = tl.exp(x - tl.max(x, 0))
        shares = tl.where(shares < tl.load(settings_at + 3), 0.0, shares)
        if TOP_P:
            enough = tl.load(settings_at + 5) * tl.sum(shares, 0)
            shares = tl.where(keys >= _find_threshold(keys, shares, enough), shares, 0.0)
        # argmax(share / exponential noise) draws with probability `share`.
        noise = tl.load(noise_at + (n * NUM_NOISE + num_spoken % NUM_NOISE) * V + v, mask=inside, other=1.0)
        x = tl.where(inside, shares / noise, -1.0)
    stopped = tl.load(stopped_at + n) != 0
    code = tl.where(stopped, STOP, tl.argmax(x, 0))
    # A graph runs CODES_PER_CHECK steps even if fewer codes are left: later ones are not stored.
    tl.store(
        codes_at + n * max_codes + tl.minimum(num_spoken, max_codes - 1), code.to(tl.int64), mask=num_spoken < max_codes
    )
    tl.store(heard_at + n * V + code, 1)
    tl.store(stopped_at + n, (stopped | (code == STOP)).to(tl.int8))
    tl.store(ids_at + n, code.to(tl.int64))
    tl.store(positions_at + n, tl.minimum(num_spoken + first_position, max_codes - 1 + first_position).to(tl.int64))
    tl.store(spoken_at + n, (num_spoken + 1).to(tl.int64))
    tl.store(filled_at + n, tl.load(filled_at + n) + 1)
    if GUIDED:
        tl.store(filled_at + num_streams + n, tl.load(filled_at + num_streams + n) + 1)


@triton.jit
def snake_kernel(x_at, alpha_at, out_at, total, C, T, BLOCK: tl.constexpr):
    """x + sin(alpha x)^2 / alpha, with an own alpha for each channel. [B, C, T] laid flat"""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    x = tl.load(x_at + place, mask=inside, other=0.0)
    alpha = tl.load(alpha_at + place // T % C, mask=inside, other=1.0)
    wave = tl.sin(x * alpha)
    tl.store(out_at + place, x + wave * wave / (alpha + 1e-9), mask=inside)


@triton.jit
def _smoothed_snake(x, first: tl.constexpr, start: tl.constexpr, taps_at, rate, scale):
    """One sample at twice the rate: six neighbours from `first` on, weighted by every other tap, then the snake."""
    y = x[first] * tl.load(taps_at + start)
    for tap in tl.static_range(1, 6):
        y += x[first + tap] * tl.load(taps_at + start - 2 * tap)
    y *= 2.0
    wave = tl.sin(y * rate)
    return y + wave * wave * scale


@triton.jit
def smoothed_snake_kernel(
    x_at, alpha_at, beta_at, taps_at, out_at, C, T, num_blocks, BLOCK: tl.constexpr
):  # fmt: skip
    """BigVGAN's activation: up to twice the rate, snake, and down again; see `AntiAliasedSnake`. [B, C, T]

    Every output computes the twelve samples that it needs at the higher rate, so that nothing of that rate is stored.
    """
    row = tl.program_id(0) // num_blocks
    t = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    rate = tl.exp(tl.load(alpha_at + row % C))
    scale = 1.0 / (tl.exp(tl.load(beta_at + row % C)) + 1e-9)
    row_at = x_at + row.to(tl.int64) * T
    # Before the first and after the last sample the input repeats it.
    x = ()
    for shift in tl.static_range(11):
        x = x + (tl.load(row_at + tl.minimum(tl.maximum(t + shift - 5, 0), T - 1)),)
    ends = ()
    for shift in tl.static_range(12):  # around the first sample, then around the last
        edge = tl.maximum(row * 0 + shift - 3, 0)
        if shift >= 6:
            edge = tl.maximum(T + shift - 9, 0)
        ends = ends + (tl.load(row_at + tl.minimum(edge, T - 1)),)
    first = _smoothed_snake(ends, 0, 11, taps_at, rate, scale)
    last = _smoothed_snake(ends, 6, 10, taps_at, rate, scale)
    z = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(12):
        # The sample 2 t + tap - 5 at twice the rate, odd for even taps; the result repeats its ends too.
        place = 2 * t + tap - 5
        y = _smoothed_snake(x, tap // 2, 10 if tap % 2 == 0 else 11, taps_at, rate, scale)
        y = tl.where(place < 0, first, tl.where(place > 2 * T - 1, last, y))
        z += y * tl.load(taps_at + tap)
    tl.store(out_at + row.to(tl.int64) * T + t, z, mask=t < T)


# ---- between the matrix products of flows; all compute in float32 ----------------------------------------------------


@triton.jit
def add_norm_kernel(
    x_at, delta_at, scale_at, shift_at, total_at, out_at, W, eps,
    HAS_DELTA: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """total = x + delta; out = its norm, scaled and shifted. One row [W] a program. CENTRED: layer norm, else RMS."""
    column = tl.arange(0, BLOCK)
    inside = column < W
    place = tl.program_id(0).to(tl.int64) * W + column
    x = tl.load(x_at + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta_at + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(total_at + place, x, mask=inside)
    y = _norm(x, inside, W, eps, CENTRED)
    scale = tl.load(scale_at + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(shift_at + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_at + place, y * scale + shift, mask=inside)


@triton.jit
def _norm(x, inside, W, eps, CENTRED: tl.constexpr):
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x, 0) / W, 0.0)
    return x / tl.sqrt(tl.sum(x * x, 0) / W + eps)


@triton.jit
def norm_mish_kernel(
    x_at, scale_at, shift_at, added_at, out_at, W, added_row, eps, BLOCK: tl.constexpr
):  # fmt: skip
    """mish(layer norm of x) + added, whose rows are `added_row` apart: W for one of each row, 0 for one of all."""
    column = tl.arange(0, BLOCK)
    inside = column < W
    row = tl.program_id(0).to(tl.int64)
    x = tl.load(x_at + row * W + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scale_at + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(shift_at + column, mask=inside, other=0.0).to(tl.float32)
    y = _norm(x, inside, W, eps, True) * scale + shift
    # tanh(log(1 + e^y)) is n / (n + 2) with n = e^y (e^y + 2); beyond 20 it is 1.
    power = tl.exp(tl.minimum(y, 20.0))
    n = power * (power + 2.0)
    added = tl.load(added_at + row * added_row + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_at + row * W + column, y * (n / (n + 2.0)) + added, mask=inside)


@triton.jit
def swiglu_kernel(x_at, out_at, total, M, BLOCK: tl.constexpr):
    """SiLU(first half) * second half. [N, 2 M] -> [N, M], laid flat"""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    gate_at = x_at + place // M * (2 * M) + place % M
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(gate_at + M, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_at + place, gate * tl.sigmoid(gate) * value, mask=inside)


@triton.jit
def rotate_kernel(qkv_at, cosines_at, sines_at, T, H, total, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Queries and keys of [R T, 3, H, 2 HALF] turned in place, each pair of columns by [T, HALF]; `total` pairs."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < total
    row = pair // (2 * H * HALF)
    place = row * (6 * H * HALF) + pair % (2 * H * HALF) * 2
    angle = row % T * HALF + pair % HALF
    cosine = tl.load(cosines_at + angle, mask=inside, other=0.0)
    sine = tl.load(sines_at + angle, mask=inside, other=0.0)
    even = tl.load(qkv_at + place, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(qkv_at + place + 1, mask=inside, other=0.0).to(tl.float32)
    tl.store(qkv_at + place, even * cosine - odd * sine, mask=inside)
    tl.store(qkv_at + place + 1, even * sine + odd * cosine, mask=inside)


@triton.jit
def gate_kernel(x_at, added_at, out_at, total, C, T, BLOCK: tl.constexpr):
    """tanh(first half + its own of added) * sigmoid(second half + its own). [R, 2 C, T], [2 C] -> [R, C, T], flat"""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    channel = place // T % C
    first_at = x_at + place + place // (C * T) * (C * T)
    first = tl.load(first_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(first_at + C * T, mask=inside, other=0.0).to(tl.float32)
    first += tl.load(added_at + channel, mask=inside, other=0.0).to(tl.float32)
    second += tl.load(added_at + C + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_at + place, (2.0 * tl.sigmoid(2.0 * first) - 1.0) * tl.sigmoid(second), mask=inside)
