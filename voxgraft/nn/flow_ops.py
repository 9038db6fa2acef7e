"""What lies between the matrix products of vocoders' flows: one kernel each in half precision on CUDA, else torch.

A flow of a few seconds is bound by the number of kernels, one of many rows by how often activations are read and
written. Float32, other devices and systems without Triton compute with torch, in the order of the original programs.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FUSE_FLOWS = True
"""Off in a benchmark that compares both ways."""
_BLOCK = 1024
_WIDEST = 4096
_failed = False


def _fuses(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels compute a part whose result is wanted in `dtype`."""
    return FUSE_FLOWS and not _failed and x.is_cuda and dtype.itemsize == 2 and _has_triton()


@cache
def _has_triton() -> bool:
    return torch.version.hip is None and find_spec("triton") is not None


def _launch(name: str, programs: int, x: Tensor, *arguments: Any, **constants: Any) -> bool:
    global _failed
    try:
        from voxgraft.nn import decode_kernels

        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            getattr(decode_kernels, name)[(programs,)](*arguments, **constants)
    except Exception as failure:  # of the compiler, in whatever form: torch's own kernels do the same
        _failed = True
        reason = str(failure).strip().partition("\n")[0]
        warnings.warn(
            f"Triton kernels of flows are off: {type(failure).__name__} {reason}", RuntimeWarning, stacklevel=3
        )
        return False
    return True


def _row_block(width: int) -> int:
    return 1 << (width - 1).bit_length()


def add_norm(
    x: Tensor, delta: Tensor | None, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype, *, centred: bool
) -> tuple[Tensor, Tensor]:
    """x + delta, and its layer norm (`centred`) or RMS norm, scaled and shifted. [..., W], [W] -> [..., W] twice

    `dtype` is that of the matrix that reads the norm; without a kernel autocast rounds for it.
    """
    width = x.shape[-1]
    if _fuses(x, dtype) and width <= _WIDEST:
        x = x.contiguous()
        delta = None if delta is None else delta.contiguous()
        total = x if delta is None else torch.empty_like(x, dtype=torch.promote_types(x.dtype, delta.dtype))
        normed = torch.empty_like(x, dtype=dtype)
        arguments = (
            x,
            x if delta is None else delta,
            scale.contiguous(),
            shift.contiguous(),
            total,
            normed,
            width,
            eps,
        )
        sizes = {"HAS_DELTA": delta is not None, "CENTRED": centred, "BLOCK": _row_block(width)}
        if _launch("add_norm_kernel", x.numel() // width, x, *arguments, **sizes):
            return total, normed
    total = x if delta is None else x + delta
    if centred:
        return total, F.layer_norm(total, (width,), scale, shift, eps)
    return total, torch.addcmul(shift, F.rms_norm(total, (width,), eps=eps), scale)


def norm_mish(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, added: Tensor, dtype: torch.dtype, *, fuse: torch.dtype
) -> Tensor:
    """mish(layer norm of x) + added, in `dtype` where a kernel computes it. [B, T, C], [B or 1, T or 1, C]

    `fuse` is the dtype of the matrices.
    """
    width = x.shape[-1]
    same = added.shape == x.shape
    if _fuses(x, fuse) and width <= _WIDEST and (same or added.numel() == width):
        x, added = x.contiguous(), added.contiguous()
        out = torch.empty_like(x, dtype=dtype)
        arguments = (x, scale, shift, added, out, width, width if same else 0, eps)
        if _launch("norm_mish_kernel", x.numel() // width, x, *arguments, BLOCK=_row_block(width)):
            return out
    return F.mish(F.layer_norm(x, (width,), scale, shift, eps)) + added


def swiglu(x: Tensor) -> Tensor:
    """SiLU(first half) * second half. [..., 2 M] -> [..., M]"""
    if _fuses(x, x.dtype):
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        arguments = (x, out, out.numel(), out.shape[-1])
        if _launch("swiglu_kernel", -(-out.numel() // _BLOCK), x, *arguments, BLOCK=_BLOCK):
            return out
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


def rotate_pairs(qkv: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """RoPE on columns (2j, 2j + 1) of queries and keys. [R, T, 3, H, D], [T, D / 2] twice -> [R, T, H, D] thrice

    `qkv` is used up: a kernel turns it in place.
    """
    rows, length, _, heads, width = qkv.shape
    if _fuses(qkv, qkv.dtype) and qkv.is_contiguous():
        total = rows * length * heads * width
        arguments = (qkv, cosines.contiguous(), sines.contiguous(), length, heads, total)
        if _launch("rotate_kernel", -(-total // _BLOCK), qkv, *arguments, HALF=width // 2, BLOCK=_BLOCK):
            query, key, value = qkv.unbind(2)
            return query, key, value
    # A pair is a complex number and its rotation a product with one, so that three kernels do it.
    x = qkv[:, :, :2]
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * torch.complex(cosines, sines)[:, None, None]).flatten(-2).to(x.dtype)
    query, key = turned.unbind(2)
    return query, key, qkv[:, :, 2]


def gate(x: Tensor, added: Tensor) -> Tensor:
    """tanh(first half) * sigmoid(second half), after an own number is added to each channel. [R, 2 C, T], [2 C]"""
    if _fuses(x, x.dtype):
        x = x.contiguous()
        out = x.new_empty(x.shape[0], x.shape[1] // 2, x.shape[2])
        arguments = (x, added.contiguous(), out, out.numel(), out.shape[1], out.shape[2])
        if _launch("gate_kernel", -(-out.numel() // _BLOCK), x, *arguments, BLOCK=_BLOCK):
            return out
    width = x.shape[1] // 2
    x = x + added[:, None].to(x.dtype)
    return x[:, :width].tanh() * x[:, width:].sigmoid()
