"""The Triton kernel of `flat_adamw`: one pass over parameters, gradients and moments. Checks nothing."""

# mypy: ignore-errors
# ruff: noqa: N803
# (Constants of a Triton compilation are written in capitals, and what a kernel needs it gets as parameters.)

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["ADAMW_BLOCK_SIZE", "adamw_step_kernel"]

ADAMW_BLOCK_SIZE = 1024


@triton.jit
def adamw_step_kernel(
    values,
    gradients,
    means,
    squares,
    copies,
    owners,
    steps,
    factor,
    rate,
    beta1,
    beta2,
    eps,
    decay,
    COPIED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of numbers that belong to one parameter. A step of 0 is a parameter that does not move.

    `factor` is what the gradient is shortened by; not a number is: nothing moves.
    """
    block = tl.program_id(0)
    step = tl.load(steps + tl.load(owners + block))
    shortened = tl.load(factor)
    if (step > 0) & (shortened == shortened):
        at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        gradient = tl.load(gradients + at) * shortened
        mean = tl.load(means + at)
        mean += (1 - beta1) * (gradient - mean)
        square = tl.load(squares + at) * beta2 + (1 - beta2) * gradient * gradient
        unbias1 = 1 - tl.exp2(step * tl.log2(beta1))
        unbias2 = 1 - tl.exp2(step * tl.log2(beta2))
        value = tl.load(values + at) * (1 - rate * decay)
        value -= (rate / unbias1) * mean / (tl.sqrt_rn(square) / tl.sqrt_rn(unbias2) + eps)
        tl.store(means + at, mean)
        tl.store(squares + at, square)
        tl.store(values + at, value)
        if COPIED:
            tl.store(copies + at, value.to(copies.dtype.element_ty))
