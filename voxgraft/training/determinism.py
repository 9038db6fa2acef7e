"""The same bits from the same step on a CUDA device, for a price in speed."""

from __future__ import annotations

import os

import torch

__all__ = ["enable_deterministic_mode"]


def enable_deterministic_mode() -> None:
    """For this whole process: only kernels whose sums have a fixed order. A processor needs nothing for that."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Writing over memory that nothing reads costs time and shows nothing.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
