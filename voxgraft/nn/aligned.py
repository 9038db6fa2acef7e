"""A linear layer whose number of outputs is no multiple of eight, at full speed.

Half-precision kernels want rows of logits that begin at a multiple of 16 bytes. Those of 8,194 speech rows do not. The
matrix is filled up with zeros inside the step, never in a file, and what comes of them is cut off again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor

__all__ = ["padded_linear"]

OUTPUT_ALIGNMENT = 64
MAX_UNPADDED_POSITIONS = 64
"""Positions up to which the plain layer is as fast."""


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, filled up where that is faster. [N, W], [V, W] -> [N, V]"""
    missing = -len(weight) % OUTPUT_ALIGNMENT
    half = x.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled(x.device.type)
    if not (x.is_cuda and half and missing and x.dim() == 2 and len(x) > MAX_UNPADDED_POSITIONS):
        return F.linear(x, weight, bias)
    filled = F.linear(x, F.pad(weight, (0, 0, 0, missing)), None if bias is None else F.pad(bias, (0, missing)))
    return filled[:, : len(weight)]
