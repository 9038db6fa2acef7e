"""Published checkpoint files without torch: open, read, write, grow, prove. Pickles are followed, never run."""

from voxgraft.checkpoints.grow import GrownTensor, GrowthReport, grow_checkpoint
from voxgraft.checkpoints.model import Checkpoint, CheckpointExtra, TensorInfo
from voxgraft.checkpoints.opening import find_dangerous_globals, open_any_checkpoint, open_checkpoint
from voxgraft.checkpoints.plan import GrowthPlan, TableGrowth
from voxgraft.checkpoints.rows import read_rows_file, write_rows_file
from voxgraft.checkpoints.verify import GrowthProof, verify_growth
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch

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
