"""Float32 that is float32: autocast rounds to half precision, and CUDA's convolutions and LSTMs to ten bits (TF32).

Codes change with either, so that what is prepared would depend on who prepares it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["exact_float32"]


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Neither TF32 nor autocast inside the block, whatever training has chosen; also a decorator.

    The first setting is the process's: not for several threads.
    """
    # torch makes two of these when it is imported, unseen by a type checker.
    backends: list[Any] = [
        torch.backends.cuda.matmul,
        *(getattr(torch.backends.cudnn, kind) for kind in ("conv", "rnn")),
    ]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        with contextlib.ExitStack() as plain:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    plain.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
