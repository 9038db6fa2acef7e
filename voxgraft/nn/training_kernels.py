"""Triton kernels for training: attention over packed sequences, cross-entropy, their gradients, a flat AdamW step.

Attention has one program for each tile that exists. Imported only where Triton is, by `nn/attention.py`, which makes
the work lists and chooses the sizes; the kernels check nothing. A program reads its own rows once and loops over those
that they see or are seen by. No sum is shared between programs (no atomics), so results are deterministic.

Shapes: T positions, H heads of width D, N tiles of a work list. Tensors of positions are [T, H, D] with any strides but
the last, which is 1; what is made is laid out densely. Powers are of two: `log_total` is the binary logarithm of the
sum of 2 ** score, [H, T], and the scores are scaled by `scale` = log2(e) / sqrt(D). Tiles are counted along `AXIS` of
the grid, heads along the other; programs start in the order of axis 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: ignore-errors
# ruff: noqa: N803
# (Triton's language looks like Python and is not: constants of the compilation are written in capitals, and what a
# kernel needs it gets as parameters, however many.)


LN_2 = tl.constexpr(0.6931471805599453)  # ln 2: from binary logarithms back to the scores' own scale


@triton.jit
def _load_tile(tiles_at, AXIS: tl.constexpr):
    """First row of this program's tile, and where its sequence begins and ends; an unused entry is all zeros."""
    entry = tiles_at + tl.program_id(AXIS) * 3
    return tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)


@triton.jit
def _head_pointer(at, start, row_stride, head_stride, AXIS: tl.constexpr):
    """Where the numbers of this program's head begin in the first row of a sequence."""
    # int64: a pack of 100,000 positions times 1,280 numbers leaves the range of int32.
    return at + start.to(tl.int64) * row_stride + tl.program_id(1 - AXIS).to(tl.int64) * head_stride


@triton.jit
def _load_rows(at, rows, row_stride, length, D: tl.constexpr, INSIDE: tl.constexpr):
    """Some rows of a sequence; zeros past its end, unless all are known to be inside. [rows, D]"""
    pointers = at + rows[:, None] * row_stride + tl.arange(0, D)[None, :]
    if INSIDE:
        return tl.load(pointers)
    return tl.load(pointers, mask=(rows < length)[:, None], other=0.0)


@triton.jit
def _store_rows(at, rows, row_stride, length, values, D: tl.constexpr):
    pointers = at + rows[:, None] * row_stride + tl.arange(0, D)[None, :]
    tl.store(pointers, values.to(at.dtype.element_ty), mask=(rows < length)[:, None])


@triton.jit
def _update_softmax(q, k, v, rows, keys, state, scale, MASKED: tl.constexpr):
    """One more block of keys in a running softmax: highest score, sum of weights, weighted values."""
    highest, total, mixed = state
    scores = tl.dot(q, tl.trans(k))
    if MASKED:
        scores = tl.where(rows[:, None] >= keys[None, :], scores, -float("inf"))
    higher = tl.maximum(highest, tl.max(scores, 1))
    # Sums so far were relative to the old maximum.
    fade = tl.exp2((highest - higher) * scale)
    weights = tl.exp2(scores * scale - (higher * scale)[:, None])
    total = total * fade + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * fade[:, None])
    return higher, total, mixed


@triton.jit(do_not_specialize=["T", "H"])
def attend_tile(
    q_at, k_at, v_at, out_at, log_total_at, tiles_at, q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head,
    T, scale, H,  # noqa: ARG001 (all three kernels are launched alike)
    D: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, PEEL: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """A tile of queries over the keys up to each, BLOCK at a time; `PEEL` masks only the blocks that need it."""
    first, start, end = _load_tile(tiles_at, AXIS)
    if first >= end:  # an unused entry: CUDA graphs replay a fixed number of programs
        return
    length, before = end - start, first - start
    rows, block = before + tl.arange(0, TILE), tl.arange(0, BLOCK)
    k_at, v_at = _head_pointer(k_at, start, k_row, k_head, AXIS), _head_pointer(v_at, start, v_row, v_head, AXIS)
    q = _load_rows(_head_pointer(q_at, start, q_row, q_head, AXIS), rows, q_row, length, D, False)
    state = (tl.full([TILE], -float("inf"), tl.float32), tl.zeros([TILE], tl.float32), tl.zeros([TILE, D], tl.float32))
    seen = 0
    if PEEL:
        seen = before // BLOCK * BLOCK  # every row of the tile sees all of these
        for at in range(0, seen, BLOCK):
            k = _load_rows(k_at, at + block, k_row, length, D, True)
            v = _load_rows(v_at, at + block, v_row, length, D, True)
            state = _update_softmax(q, k, v, rows, at + block, state, scale, False)
    for at in range(seen, tl.minimum(before + TILE, length), BLOCK):
        k = _load_rows(k_at, at + block, k_row, length, D, False)
        v = _load_rows(v_at, at + block, v_row, length, D, False)
        state = _update_softmax(q, k, v, rows, at + block, state, scale, True)
    highest, total, mixed = state
    # Rows past the end of the sequence are never stored, so what was computed for them does not matter.
    _store_rows(_head_pointer(out_at, start, out_row, out_head, AXIS), rows, out_row, length, mixed / total[:, None], D)
    line = log_total_at + tl.program_id(1 - AXIS).to(tl.int64) * T + start
    tl.store(line + rows, highest * scale + tl.log2(total), mask=rows < length)


@triton.jit
def _add_query_gradient(q, k, v, d_out, log_total, inner, rows, keys, dq, scale, MASKED: tl.constexpr):
    scores = tl.dot(q, tl.trans(k))
    # The forward pass kept only `log_total`: the softmax's weights are computed again from it, not stored.
    weights = tl.exp2(scores * scale - log_total[:, None])
    if MASKED:
        weights = tl.where(rows[:, None] >= keys[None, :], weights, 0.0)
    # The softmax's gradient: each weight times (its own gradient minus the row's mean gradient, `inner`).
    d_scores = weights * (tl.dot(d_out, tl.trans(v)) - inner[:, None])
    return tl.dot(d_scores.to(k.dtype), k, dq)


@triton.jit(do_not_specialize=["T", "H"])
def query_tile_gradients(
    q_at, k_at, v_at, out_at, d_out_at, log_total_at, pairs_at, dq_at, tiles_at, q_row, q_head, k_row, k_head,
    v_row, v_head, out_row, out_head, d_row, d_head, T, scale, H,
    D: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, PEEL: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries; also `pairs`: each row's `log_total`, and its output times its gradient.

    pairs: [H, T, 2]
    """
    first, start, end = _load_tile(tiles_at, AXIS)
    if first >= end:
        return
    length, before = end - start, first - start
    rows, block = before + tl.arange(0, TILE), tl.arange(0, BLOCK)
    k_at, v_at = _head_pointer(k_at, start, k_row, k_head, AXIS), _head_pointer(v_at, start, v_row, v_head, AXIS)
    d_out = _load_rows(_head_pointer(d_out_at, start, d_row, d_head, AXIS), rows, d_row, length, D, False)
    out = _load_rows(_head_pointer(out_at, start, out_row, out_head, AXIS), rows, out_row, length, D, False)
    inner = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
    line = tl.program_id(1 - AXIS).to(tl.int64) * T + start
    log_total = tl.load(log_total_at + line + rows, mask=rows < length, other=0.0)
    pairs = pairs_at + (line + rows) * 2
    tl.store(pairs, log_total, mask=rows < length)
    tl.store(pairs + 1, inner, mask=rows < length)
    q = _load_rows(_head_pointer(q_at, start, q_row, q_head, AXIS), rows, q_row, length, D, False)
    dq = tl.zeros([TILE, D], tl.float32)
    seen = 0
    if PEEL:
        seen = before // BLOCK * BLOCK
        for at in range(0, seen, BLOCK):
            k = _load_rows(k_at, at + block, k_row, length, D, True)
            v = _load_rows(v_at, at + block, v_row, length, D, True)
            dq = _add_query_gradient(q, k, v, d_out, log_total, inner, rows, at + block, dq, scale, False)
    for at in range(seen, tl.minimum(before + TILE, length), BLOCK):
        k = _load_rows(k_at, at + block, k_row, length, D, False)
        v = _load_rows(v_at, at + block, v_row, length, D, False)
        dq = _add_query_gradient(q, k, v, d_out, log_total, inner, rows, at + block, dq, scale, True)
    # scale * ln 2 = 1 / sqrt(D): the scores were scaled for powers of two, their gradient is for powers of e.
    _store_rows(_head_pointer(dq_at, start, H * D, D, AXIS), rows, H * D, length, dq * (scale * LN_2), D)


@triton.jit
def _load_pair(at, rows, length):
    """Two numbers of each row. As one tensor they are fetched once for all threads; as two, by every thread."""
    both = tl.load(at + rows[:, None] * 2 + tl.arange(0, 2)[None, :], mask=(rows < length)[:, None], other=0.0)
    return tl.split(both)


@triton.jit
def _add_key_gradients(q, k, v, d_out, log_total, inner, rows, keys, sums, scale, MASKED: tl.constexpr):
    """What one block of queries adds to the gradients of keys and values; rows that are zeros add nothing."""
    dk, dv = sums
    # Transposed against the query kernel, so that both sums below are plain products over the block.
    scores = tl.dot(k, tl.trans(q))  # [TILE, BLOCK]
    weights = tl.exp2(scores * scale - log_total[None, :])
    if MASKED:
        weights = tl.where(rows[None, :] >= keys[:, None], weights, 0.0)
    dv = tl.dot(weights.to(d_out.dtype), d_out, dv)
    d_scores = weights * (tl.dot(v, tl.trans(d_out)) - inner[None, :])
    dk = tl.dot(d_scores.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=["T", "H"])
def key_tile_gradients(
    q_at, k_at, v_at, d_out_at, pairs_at, dk_at, dv_at, tiles_at, q_row, q_head, k_row, k_head, v_row, v_head,
    d_row, d_head, T, scale, H,
    D: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, PEEL: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values from the queries at and after them, BLOCK at a time."""
    first, start, end = _load_tile(tiles_at, AXIS)
    if first >= end:
        return
    length, before = end - start, first - start
    keys, block = before + tl.arange(0, TILE), tl.arange(0, BLOCK)
    q_at, d_out_at = (
        _head_pointer(q_at, start, q_row, q_head, AXIS),
        _head_pointer(d_out_at, start, d_row, d_head, AXIS),
    )
    line = pairs_at + (tl.program_id(1 - AXIS).to(tl.int64) * T + start) * 2
    k = _load_rows(_head_pointer(k_at, start, k_row, k_head, AXIS), keys, k_row, length, D, False)
    v = _load_rows(_head_pointer(v_at, start, v_row, v_head, AXIS), keys, v_row, length, D, False)
    sums = (tl.zeros([TILE, D], tl.float32), tl.zeros([TILE, D], tl.float32))
    partly = length
    if PEEL:
        partly = tl.minimum(before + TILE, length)  # after the tile every row sees all of it
    for at in range(before, partly, BLOCK):
        rows = at + block
        q = _load_rows(q_at, rows, q_row, length, D, False)
        d_out = _load_rows(d_out_at, rows, d_row, length, D, False)
        log_total, inner = _load_pair(line, rows, length)
        sums = _add_key_gradients(q, k, v, d_out, log_total, inner, rows, keys, sums, scale, True)
    if PEEL:
        for at in range(before + tl.cdiv(TILE, BLOCK) * BLOCK, length, BLOCK):
            rows = at + block
            q = _load_rows(q_at, rows, q_row, length, D, False)
            d_out = _load_rows(d_out_at, rows, d_row, length, D, False)
            log_total, inner = _load_pair(line, rows, length)
            sums = _add_key_gradients(q, k, v, d_out, log_total, inner, rows, keys, sums, scale, False)
    dk, dv = sums
    _store_rows(_head_pointer(dk_at, start, H * D, D, AXIS), keys, H * D, length, dk * (scale * LN_2), D)
    _store_rows(_head_pointer(dv_at, start, H * D, D, AXIS), keys, H * D, length, dv, D)


ADAMW_BLOCK_SIZE = 1024


@triton.jit
def adamw_step_kernel(
    values, gradients, means, squares, copies, owners, steps, factor, rate, beta1, beta2, eps, decay,
    COPIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """AdamW on a block of numbers that belong to one parameter. A step of 0 is a parameter without a gradient.

    The gradient is multiplied by `factor` (clipping). A factor of NaN leaves everything as it is, so a non-finite step
    is skipped without the CPU having to look.
    """
    block = tl.program_id(0)
    step = tl.load(steps + tl.load(owners + block))
    shortened = tl.load(factor)
    if (step > 0) & (shortened == shortened):  # NaN is not equal to itself
        at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        gradient = tl.load(gradients + at) * shortened
        mean = tl.load(means + at)
        mean += (1 - beta1) * (gradient - mean)
        square = tl.load(squares + at) * beta2 + (1 - beta2) * gradient * gradient
        # 1 - beta ** step; sqrt_rn rounds as torch does.
        unbias1 = 1 - tl.exp2(step * tl.log2(beta1))
        unbias2 = 1 - tl.exp2(step * tl.log2(beta2))
        value = tl.load(values + at) * (1 - rate * decay)
        value -= (rate / unbias1) * mean / (tl.sqrt_rn(square) / tl.sqrt_rn(unbias2) + eps)
        tl.store(means + at, mean)
        tl.store(squares + at, square)
        tl.store(values + at, value)
        if COPIED:  # the model's half-precision copy
            tl.store(copies + at, value.to(copies.dtype.element_ty))


@triton.jit
def _add_to_total(values, highest, total):
    """A running sum of exponentials, relative to the highest value so far."""
    higher = tl.maximum(highest, tl.max(values, 0))
    return higher, total * tl.exp(highest - higher) + tl.sum(tl.exp(values - higher), 0)


@triton.jit
def cross_entropy_kernel(
    logits, targets, losses, log_totals, logit_row, V, IGNORED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Cross-entropy of one row of logits, in float32 whatever they are kept in; 0 where the target is ignored."""
    target = tl.load(targets + tl.program_id(0))
    line, block = logits + tl.program_id(0).to(tl.int64) * logit_row, tl.arange(0, BLOCK)
    highest, total = -float("inf"), 0.0
    # Whole blocks without a mask: with one the compiler loads number by number.
    whole = V // BLOCK * BLOCK
    for at in range(0, whole, BLOCK):
        highest, total = _add_to_total(tl.load(line + at + block).to(tl.float32), highest, total)
    rest = tl.load(line + whole + block, mask=whole + block < V, other=-float("inf")).to(tl.float32)
    highest, total = _add_to_total(rest, highest, total)
    log_total = highest + tl.log(total)
    chosen = tl.load(line + tl.where(target == IGNORED, 0, target)).to(tl.float32)
    tl.store(log_totals + tl.program_id(0), log_total)
    tl.store(losses + tl.program_id(0), tl.where(target == IGNORED, 0.0, log_total - chosen))


@triton.jit
def _logit_gradient(values, columns, target, log_total, scale):
    return (tl.exp(values.to(tl.float32) - log_total) - tl.where(columns == target, 1.0, 0.0)) * scale


@triton.jit
def cross_entropy_gradient_kernel(
    logits, targets, log_totals, scale_at, gradients, logit_row, gradient_row, V,
    IGNORED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the summed losses by one row of logits: softmax less one at the target, times `scale`."""
    row, block = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    target, log_total = tl.load(targets + row), tl.load(log_totals + row)
    scale = tl.where(target == IGNORED, 0.0, tl.load(scale_at))
    line, out = logits + row * logit_row, gradients + row * gradient_row
    whole = V // BLOCK * BLOCK
    for at in range(0, whole, BLOCK):
        gradient = _logit_gradient(tl.load(line + at + block), at + block, target, log_total, scale)
        tl.store(out + at + block, gradient.to(gradients.dtype.element_ty))
    inside = whole + block < V
    rest = tl.load(line + whole + block, mask=inside, other=0.0)
    gradient = _logit_gradient(rest, whole + block, target, log_total, scale)
    tl.store(out + whole + block, gradient.to(gradients.dtype.element_ty), mask=inside)
