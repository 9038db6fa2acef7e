"""Triton's kernels without a GPU: interpreted, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def run_interpreted(worker: str, path: Path) -> Any:
    """What a module of `tests.support.workers` writes to `path`, where it may find what it is given.

    Whether a kernel is interpreted is decided when Triton is imported. Skips the calling test where it is not installed."""
    if find_spec("triton") is None:
        pytest.skip("NOT TESTED: Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.workers.{worker}", str(path)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(path)
