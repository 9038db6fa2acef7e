"""Published checkpoint files without torch: open, read, write, grow, prove. Pickles are followed, never run.

Reading is imported at once, writing and growing on first use: most commands only read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from voxgraft.checkpoints.base import Checkpoint, CheckpointExtra, TensorInfo
from voxgraft.checkpoints.load import find_dangerous_globals, open_any_checkpoint, open_checkpoint

if TYPE_CHECKING:
    from voxgraft.checkpoints.grow import (
        GrownTensor,
        GrowthPlan,
        GrowthProof,
        GrowthReport,
        TableGrowth,
        grow_checkpoint,
        verify_growth,
    )
    from voxgraft.checkpoints.write import TensorBytes, read_rows_file, write_rows_file, write_safetensors, write_torch

__all__ = [
    "Checkpoint",
    "CheckpointExtra",
    "GrownTensor",
    "GrowthPlan",
    "GrowthProof",
    "GrowthReport",
    "TableGrowth",
    "TensorBytes",
    "TensorInfo",
    "find_dangerous_globals",
    "grow_checkpoint",
    "open_any_checkpoint",
    "open_checkpoint",
    "read_rows_file",
    "verify_growth",
    "write_rows_file",
    "write_safetensors",
    "write_torch",
]

_WRITERS = ("voxgraft.checkpoints.write", "voxgraft.checkpoints.grow")


def __getattr__(name: str) -> Any:
    """A name of `__all__` from the modules that write."""
    if name in __all__:
        for module in map(import_module, _WRITERS):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
