"""Published checkpoint files without torch: open, read, write, grow, prove. Pickles are followed, never run.

Only reading is imported here: most commands do nothing else. `write` writes and grows.
"""

from voxgraft.checkpoints.base import Checkpoint, CheckpointExtra, TensorInfo
from voxgraft.checkpoints.load import find_dangerous_globals, open_any_checkpoint, open_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointExtra",
    "TensorInfo",
    "find_dangerous_globals",
    "open_any_checkpoint",
    "open_checkpoint",
]
