"""voxgraft teaches a pretrained text-to-speech language model a new language and proves that it keeps the old ones.

The Python interface: `load` and `TTS` speak; `graft`, `train` and `evaluate` are the commands of these names; every
error is an `Error`. Names are imported when they are used, so that `import voxgraft` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from voxgraft.core.errors import VoxgraftError as Error

if TYPE_CHECKING:
    from voxgraft.pipeline.api import evaluate, graft, train
    from voxgraft.synthesis.api import TTS, load

__all__ = ["TTS", "Error", "__version__", "evaluate", "graft", "load", "train"]
__version__ = "0.1.0"

# `graft` is a package of voxgraft too; that package can be called (see its __init__.py).
_PLACES = {
    "TTS": "voxgraft.synthesis.api",
    "load": "voxgraft.synthesis.api",
    "train": "voxgraft.pipeline.api",
    "evaluate": "voxgraft.pipeline.api",
}


def __getattr__(name: str) -> Any:
    if name == "graft":
        return import_module("voxgraft.graft")
    if name not in _PLACES:
        raise AttributeError(f"module 'voxgraft' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
