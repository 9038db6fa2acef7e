"""Published and golden files that are never part of the project, from `../shared`; a test that needs them is skipped without it."""

from __future__ import annotations

import json
import os
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

_BESIDE = Path(__file__).resolve().parents[3] / "shared"


def shared(relative: str) -> Path:
    """A file or folder of the shared test data; skips the calling test where it is absent."""
    root = Path(os.environ.get("VOXGRAFT_SHARED") or _BESIDE)
    path = root / relative
    if not path.exists():
        pytest.skip(f"NOT TESTED: {path} is absent (set VOXGRAFT_SHARED to the folder that holds {relative})")
    return path


Shape = tuple[int, ...]


@cache
def formula() -> ModuleType:
    """`golden_tensor`, `golden_floats`, `golden_ints` and `golden_wave`."""
    spec = spec_from_file_location("golden_weights", shared("golden/weights.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(family: str, key: str) -> dict[str, Shape]:
    """Tensor names and shapes of one of the original models, without those that it computes for itself."""
    known = json.loads(shared(f"golden/{family}/names.json").read_text())
    computed = known["computed_not_formula"].get(key, [])
    return {name: tuple(shape) for name, shape in known[key].items() if name not in computed}


def golden_state(tensors: dict[str, Shape]) -> dict[str, Tensor]:
    """The formula's weights by name."""
    return {name: torch.from_numpy(formula().golden_tensor(name, shape)) for name, shape in tensors.items()}


def expected(family: str, file: str = "expected.npz") -> dict[str, np.ndarray[Any, Any]]:
    """The original program's arrays."""
    with np.load(shared(f"golden/{family}/{file}")) as arrays:
        return dict(arrays)


def difference(found: Tensor, wanted: np.ndarray[Any, Any]) -> float:
    """The largest absolute difference between what we give and what the original gave."""
    assert tuple(found.shape) == wanted.shape
    return float((found.detach().double() - torch.from_numpy(wanted).double()).abs().max())
