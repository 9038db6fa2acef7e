"""Published checkpoint files without torch: open, read, write, grow, prove. Pickles are followed, never run."""

from voxgraft.checkpoints.grow import GrownTensor, GrowthReport, grow
from voxgraft.checkpoints.model import Checkpoint, Extra, TensorInfo
from voxgraft.checkpoints.opening import dangerous_globals, open_checkpoint, open_foreign
from voxgraft.checkpoints.plan import GrowthPlan, TableGrowth
from voxgraft.checkpoints.rows import read_rows_file, write_rows
from voxgraft.checkpoints.verify import GrowthProof, verify_growth
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch

__all__ = [
    "Checkpoint",
    "Extra",
    "GrownTensor",
    "GrowthPlan",
    "GrowthProof",
    "GrowthReport",
    "TableGrowth",
    "TensorBytes",
    "TensorInfo",
    "dangerous_globals",
    "grow",
    "open_checkpoint",
    "open_foreign",
    "read_rows_file",
    "verify_growth",
    "write_rows",
    "write_safetensors",
    "write_torch",
]
