"""Published checkpoint files without torch: open, read, write, grow, prove. Pickles are followed, never run."""

from voxgraft.checkpoints.base import Checkpoint, CheckpointExtra, TensorInfo
from voxgraft.checkpoints.grow import (
    GrownTensor,
    GrowthPlan,
    GrowthProof,
    GrowthReport,
    TableGrowth,
    grow_checkpoint,
    verify_growth,
)
from voxgraft.checkpoints.load import find_dangerous_globals, open_any_checkpoint, open_checkpoint
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
