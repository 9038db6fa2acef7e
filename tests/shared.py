"""Published and golden files that are never part of the project: found beside it, else the test is skipped loudly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parent.parent.parent / "shared"


def shared(relative: str) -> Path:
    """A file or folder of the shared test data; skips the calling test where it is absent."""
    root = Path(os.environ.get("VOXGRAFT_SHARED") or _BESIDE)
    path = root / relative
    if not path.exists():
        pytest.skip(f"NOT TESTED: {path} is absent (set VOXGRAFT_SHARED to the folder that holds {relative})")
    return path
