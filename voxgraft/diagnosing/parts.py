"""Files that are only a part of a model: low-rank adapters beside or without it, and what a run of ours keeps apart.

Told by their names and their neighbours; no values are read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from voxgraft.checkpoints import open_any_checkpoint
from voxgraft.errors import CheckpointError, Finding, VoxgraftError, finding
from voxgraft.files import is_file, is_folder
from voxgraft.findings import CheckSubject
from voxgraft.graft_folder import GRAFT_CARD_NAME
from voxgraft.training.step_folders import STEP_MANIFEST_NAME, STEP_STATE_NAME

__all__ = ["lora_findings", "refuse_partial_model"]

_LORA_NAME = re.compile(r"(?:^|\.)(?:lora_[A-Za-z]+|base_layer)(?:\.|$)")
"""PEFT's names: the factors, and the matrix that they are to be added to."""


def lora_findings(subject: CheckSubject) -> list[Finding]:
    """Whether what was learnt stands in factors that are still to be multiplied into the model."""
    path = subject.settings.checkpoint
    if path is None:
        return []
    names = subject.checkpoint.tensors if subject.checkpoint is not None else _read_tensor_names(path)
    own = [name for name in names if _LORA_NAME.search(name)]
    if not own:
        return []
    found = f"{len(own):,} of {len(names):,} tensors belong to a low-rank adapter that is not merged ({own[0]}, ...)"
    return [finding("checkpoint-low-rank", found, where=path)]


def _read_tensor_names(path: Path) -> Collection[str]:
    """Of a file that is no checkpoint of a family; none where it cannot be read, which is told elsewhere."""
    try:
        with open_any_checkpoint(path) as checkpoint:
            return list(checkpoint.tensors)
    except VoxgraftError:
        return []


def refuse_partial_model(path: Path) -> None:
    """A graft, a saved step and the files in them say nothing alone: what belongs to them is in their run."""
    folders = [path] if is_folder(path) else [path.parent, path.parent.parent]
    for folder in folders:
        if is_file(folder / GRAFT_CARD_NAME):
            what = "a graft"
        elif is_file(folder / STEP_MANIFEST_NAME) and is_file(folder / STEP_STATE_NAME):
            what = "a saved step of a run"
        else:
            continue
        found = f"{path.name} is {what}, or a part of it, and no whole model"
        raise CheckpointError("checkpoint-part", found, expected="a checkpoint, or a run", where=path)
