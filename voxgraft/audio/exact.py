"""Float32 that is float32: on CUDA, convolutions and LSTMs otherwise round to ten bits (TF32), and codes change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["exact_float32"]


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """No TF32 inside the block, whatever training has chosen. The setting is the process's: not for several threads."""
    # torch makes two of these when it is imported, unseen by a type checker.
    backends: list[Any] = [
        torch.backends.cuda.matmul,
        *(getattr(torch.backends.cudnn, kind) for kind in ("conv", "rnn")),
    ]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
