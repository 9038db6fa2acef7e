"""Names as a wrapper around the model saves them (`module.`, `t3.`), and the model's own. Reads no values."""

from __future__ import annotations

from dataclasses import replace

from voxgraft.checkpoints.model import Checkpoint

__all__ = ["WRAPPERS", "common_prefix", "without_prefix"]

WRAPPERS = ("module.", "_orig_mod.", "base_model.model.", "model.", "t3.", "gpt.")
"""What data parallel training, torch.compile, PEFT and trainers with a class of their own around the model put before
every name, alone or before each other. No family has one of them before all of its own names."""


def common_prefix(checkpoint: Checkpoint) -> str:
    """The wrappers' names that all tensors begin with; empty where one of them does not."""
    names, prefix = list(checkpoint.tensors), ""
    while names and (found := next((one for one in WRAPPERS if names[0].startswith(prefix + one)), "")):
        if not all(name.startswith(prefix + found) for name in names):
            break
        prefix += found
    return prefix


def without_prefix(checkpoint: Checkpoint) -> Checkpoint:
    """The same open file with the model's own names."""
    prefix = common_prefix(checkpoint)
    if not prefix:
        return checkpoint
    tensors = {(own := name.removeprefix(prefix)): replace(info, name=own) for name, info in checkpoint.tensors.items()}
    return Checkpoint(
        checkpoint.source,
        checkpoint.format,
        tensors,
        wrapper=checkpoint.wrapper,
        extras=checkpoint.extras,
        metadata=checkpoint.metadata,
    )
