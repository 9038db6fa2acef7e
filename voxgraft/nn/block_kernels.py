"""Triton kernels between the matrix products of a frozen block with an adapter; `nn/gated_blocks.py` launches them.

Each reads what a product left, bias and adapter included, and writes what the next product reads. Where an adapter's
weight gradient is a sum over positions, a program adds up its own part of them and the parts are summed afterwards: no
atomics, so results are deterministic.

Shapes: T positions, W width, M width of the MLP, H heads of width D, R rank. `_row` is the distance between two rows.
Widths are multiples of the blocks; only positions need a mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: ignore-errors
# ruff: noqa: N803
# (Triton's language: constants of the compilation are written in capitals; see nn/training_kernels.py.)


@triton.jit
def _load(at, row, rows, columns, T):
    """Some rows and columns; zeros past the last position. [rows, columns]"""
    return tl.load(at + rows.to(tl.int64)[:, None] * row + columns[None, :], mask=(rows < T)[:, None], other=0.0)


@triton.jit
def _store(at, row, rows, columns, T, values):
    pointers = at + rows.to(tl.int64)[:, None] * row + columns[None, :]
    tl.store(pointers, values.to(at.dtype.element_ty), mask=(rows < T)[:, None])


@triton.jit
def _load_matrix(at, row, lines, columns):
    return tl.load(at + lines[:, None] * row + columns[None, :])


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def _gate_of(x, GELU: tl.constexpr):
    """SiLU and GELU (tanh) are both x sigmoid(z(x)): the sigmoid, and the derivative of z."""
    if GELU:  # z = 2 sqrt(2 / pi) (x + 0.044715 x**3)
        return _sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x)), 1.5957691216057308 * (
            1.0 + 0.134145 * x * x
        )
    return _sigmoid(x), tl.full(x.shape, 1.0, tl.float32)


@triton.jit
def add_norm_kernel(
    x_at, delta_at, weight_at, norm_bias_at, sum_at, out_at, stats_at, x_row, out_row, T, eps,
    W: tl.constexpr, DELTA: tl.constexpr, LAYER_NORM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sum = x + delta, and its norm; without `DELTA` the norm of x. stats: 1 / rms, mean. [2, T]"""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total, squares = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for at in range(0, W, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        value = _load(x_at, x_row, rows, columns, T).to(tl.float32)
        if DELTA:
            value += _load(delta_at, W, rows, columns, T).to(tl.float32)
            value = value.to(sum_at.dtype.element_ty)  # what is normed is the rounded sum, as without this kernel
            _store(sum_at, W, rows, columns, T, value)
            value = value.to(tl.float32)
        squares += tl.sum(value * value, 1)
        total += tl.sum(value, 1)
    mean = tl.zeros([ROWS], tl.float32)
    if LAYER_NORM:
        mean = total / W
    inverse = tl.rsqrt(squares / W - mean * mean + eps)
    tl.store(stats_at + rows, inverse, mask=rows < T)
    tl.store(stats_at + T + rows, mean, mask=rows < T)
    tl.debug_barrier()  # other threads of this program wrote the sum that is read again
    for at in range(0, W, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        if DELTA:
            value = _load(sum_at, W, rows, columns, T)
        else:
            value = _load(x_at, x_row, rows, columns, T)
        scaled = (value.to(tl.float32) - mean[:, None]) * inverse[:, None]
        weight = tl.load(weight_at + columns)[None, :]
        if LAYER_NORM:
            scaled = scaled * weight.to(tl.float32) + tl.load(norm_bias_at + columns).to(tl.float32)[None, :]
        else:
            scaled = scaled.to(out_at.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
        _store(out_at, out_row, rows, columns, T, scaled)


@triton.jit
def norm_gradient_kernel(
    x_at, d_norm_at, d_sum_at, weight_at, norm_bias_at, stats_at, out_at, norm_at, d_sum_row, out_row, T,
    W: tl.constexpr, SUM: tl.constexpr, LAYER_NORM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of x from that of its norm, plus `d_sum` if `SUM`; the norm itself is computed again. BLOCK >= W"""
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (rows < T)[:, None] & (columns < W)[None, :]
    places = rows.to(tl.int64)[:, None] * W + columns[None, :]
    inverse = tl.load(stats_at + rows, mask=rows < T, other=0.0)[:, None]
    mean = tl.load(stats_at + T + rows, mask=rows < T, other=0.0)[:, None]
    weight = tl.load(weight_at + columns, mask=columns < W, other=0.0).to(tl.float32)[None, :]
    scaled = (tl.load(x_at + places, mask=inside, other=0.0).to(tl.float32) - mean) * inverse
    scaled = tl.where(inside, scaled, 0.0)
    gradient = tl.load(d_norm_at + places, mask=inside, other=0.0).to(tl.float32) * weight
    result = gradient - scaled * (tl.sum(gradient * scaled, 1) / W)[:, None]
    if LAYER_NORM:
        result -= (tl.sum(gradient, 1) / W)[:, None]
        norm_bias = tl.load(norm_bias_at + columns, mask=columns < W, other=0.0).to(tl.float32)[None, :]
        tl.store(norm_at + places, (scaled * weight + norm_bias).to(norm_at.dtype.element_ty), mask=inside)
    else:
        rounded = scaled.to(norm_at.dtype.element_ty).to(tl.float32)
        tl.store(norm_at + places, (rounded * weight).to(norm_at.dtype.element_ty), mask=inside)
    result *= inverse
    if SUM:
        d_sum = d_sum_at + rows.to(tl.int64)[:, None] * d_sum_row + columns[None, :]
        result += tl.load(d_sum, mask=inside, other=0.0).to(tl.float32)
    target = out_at + rows.to(tl.int64)[:, None] * out_row + columns[None, :]
    tl.store(target, result.to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def rotate_heads_kernel(joint_at, cos_at, sin_at, joint_row, T, D: tl.constexpr, ROWS: tl.constexpr):
    """Queries and keys turned by their angles, in place. They are the first columns of a row of `joint`."""
    rows, low = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D // 2)
    first = tl.program_id(1) * D + low
    one = _load(joint_at, joint_row, rows, first, T).to(tl.float32)
    other = _load(joint_at, joint_row, rows, first + D // 2, T).to(tl.float32)
    cos, sin = _load(cos_at, D // 2, rows, low, T), _load(sin_at, D // 2, rows, low, T)
    _store(joint_at, joint_row, rows, first, T, one * cos - other * sin)
    _store(joint_at, joint_row, rows, first + D // 2, T, other * cos + one * sin)


@triton.jit
def heads_gradient_kernel(
    dq_at, dk_at, dv_at, joint_at, cos_at, sin_at, d_joint_at, d_up_at, joint_row, T, per_chunk,
    W: tl.constexpr, LAYER: tl.constexpr, D: tl.constexpr, R: tl.constexpr, TURN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients of q, k and v side by side, turned back, and one chunk's part of the gradient of `up`.

    d_up: [chunks, 3 W, R]
    """
    head, chunk = tl.program_id(0), tl.program_id(1)
    part = head * D // W
    column = (head - part * (W // D)) * D
    low, rank = tl.arange(0, D // 2), tl.arange(0, R)
    d_up, d_up_other = tl.zeros([D // 2, R], tl.float32), tl.zeros([D // 2, R], tl.float32)
    for at in range(chunk * per_chunk, tl.minimum(chunk * per_chunk + per_chunk, T), ROWS):
        rows = at + tl.arange(0, ROWS)
        places = rows.to(tl.int64)[:, None] * W + (column + low)[None, :]
        inside = (rows < T)[:, None]
        # Of the three gradients one is read: the masks of the others are empty.
        one = tl.load(dq_at + places, mask=inside & (part == 0), other=0.0).to(tl.float32)
        one += tl.load(dk_at + places, mask=inside & (part == 1), other=0.0).to(tl.float32)
        one += tl.load(dv_at + places, mask=inside & (part == 2), other=0.0).to(tl.float32)
        places += D // 2
        other = tl.load(dq_at + places, mask=inside & (part == 0), other=0.0).to(tl.float32)
        other += tl.load(dk_at + places, mask=inside & (part == 1), other=0.0).to(tl.float32)
        other += tl.load(dv_at + places, mask=inside & (part == 2), other=0.0).to(tl.float32)
        if TURN:  # noqa: SIM102
            if part < 2:
                cos, sin = _load(cos_at, D // 2, rows, low, T), _load(sin_at, D // 2, rows, low, T)
                one, other = one * cos + other * sin, other * cos - one * sin
        one, other = one.to(d_joint_at.dtype.element_ty), other.to(d_joint_at.dtype.element_ty)
        _store(d_joint_at, joint_row, rows, head * D + low, T, one)
        _store(d_joint_at, joint_row, rows, head * D + D // 2 + low, T, other)
        narrow = _load(joint_at, joint_row, rows, 3 * W + head * D // LAYER * R + rank, T)
        d_up = tl.dot(tl.trans(one), narrow, d_up)
        d_up_other = tl.dot(tl.trans(other), narrow, d_up_other)
    target = d_up_at + (chunk * 3 * W + head * D) * R
    tl.store(target + low[:, None] * R + rank[None, :], d_up)
    tl.store(target + (D // 2 + low)[:, None] * R + rank[None, :], d_up_other)


@triton.jit
def activate_kernel(
    joint_at, down_at, out_at, joint_row, out_row, T,
    M: tl.constexpr, R: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The MLP's inner values: silu(gate) * up if `GATED`, else gelu; and what the next layer's `down` makes of them.

    A row of `joint` begins with gate, up (or one of them). A row of `out` is the values, then what is made of them.
    """
    rows, rank = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, R)
    made = tl.zeros([ROWS, R], tl.float32)
    for at in tl.range(0, M, BLOCK, num_stages=STAGES):  # said here, so that loads are in flight that feed no dot
        columns = at + tl.arange(0, BLOCK)
        gate = _load(joint_at, joint_row, rows, columns, T).to(tl.float32)
        share, _ = _gate_of(gate, not GATED)
        value = gate * share
        if GATED:
            value *= _load(joint_at, joint_row, rows, M + columns, T).to(tl.float32)
        value = value.to(out_at.dtype.element_ty)
        _store(out_at, out_row, rows, columns, T, value)
        made = tl.dot(value, tl.trans(_load_matrix(down_at, M, rank, columns)), made)
    _store(out_at, out_row, rows, M + rank, T, made)


@triton.jit
def activation_gradient_kernel(
    joint_at, d_out_at, d_narrow_at, d_joint_at, d_down_at, d_up_at, joint_row, d_narrow_row, T, per_chunk,
    M: tl.constexpr, R: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of the inner values, and one chunk's part of the weight gradients of the adapters on both sides.

    `d_narrow` [T, R] is the gradient of what `down` made of the activation. The activation is computed again.
    d_down: [chunks, R, M], d_up: [chunks, inner, R]
    """
    chunk, rank = tl.program_id(1), tl.arange(0, R)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inner: tl.constexpr = 2 * M if GATED else M
    d_down, d_gate_up = tl.zeros([BLOCK, R], tl.float32), tl.zeros([BLOCK, R], tl.float32)
    d_up_up = tl.zeros([BLOCK, R], tl.float32)
    end = tl.minimum(chunk * per_chunk + per_chunk, T)
    for at in tl.range(chunk * per_chunk, end, ROWS, num_stages=STAGES):
        rows = at + tl.arange(0, ROWS)
        gate = _load(joint_at, joint_row, rows, columns, T).to(tl.float32)
        share, slope = _gate_of(gate, not GATED)
        value = gate * share
        d_out = _load(d_out_at, M, rows, columns, T).to(tl.float32)
        d_gate = d_out * (share + value * (1.0 - share) * slope)
        if GATED:
            d_up = (d_out * value).to(d_joint_at.dtype.element_ty)
            _store(d_joint_at, joint_row, rows, M + columns, T, d_up)
            narrow_up = _load(joint_at, joint_row, rows, inner + R + rank, T)
            d_up_up = tl.dot(tl.trans(d_up), narrow_up, d_up_up)
            up = _load(joint_at, joint_row, rows, M + columns, T).to(tl.float32)
            d_gate *= up
            value *= up
        d_gate = d_gate.to(d_joint_at.dtype.element_ty)
        _store(d_joint_at, joint_row, rows, columns, T, d_gate)
        narrow = _load(joint_at, joint_row, rows, inner + rank, T)
        d_gate_up = tl.dot(tl.trans(d_gate), narrow, d_gate_up)
        # Rows past the end have no gradients, so they add nothing here either.
        d_narrow = _load(d_narrow_at, d_narrow_row, rows, rank, T)
        d_down = tl.dot(tl.trans(value.to(d_narrow.dtype)), d_narrow, d_down)
    tl.store(d_down_at + (chunk * R + rank)[None, :] * M + columns[:, None], d_down)
    target = d_up_at + (chunk * inner + columns)[:, None] * R + rank[None, :]
    tl.store(target, d_gate_up)
    if GATED:
        tl.store(target + M * R, d_up_up)
