"""Names as a wrapper around the model saves them (`module.`, `t3.`), and the model's own. Reads no values.

A program that saves its whole pipeline puts other models beside this one (`s3gen.`, `ve.`): they are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

from voxgraft.checkpoints.model import Checkpoint, CheckpointExtra
from voxgraft.checkpoints.torch_file import TEXT_TABLE_NAMES

__all__ = ["WRAPPER_PREFIXES", "find_model_prefix", "list_other_model_tensors", "strip_model_prefix"]

WRAPPER_PREFIXES = ("module.", "_orig_mod.", "base_model.model.", "model.", "t3.", "gpt.")
"""What data parallel training, torch.compile, PEFT and trainers with a class of their own around the model put before
every name, alone or before each other. No family has one of them before all of its own names."""
_OTHER_MODEL_PREFIXES = ("s3gen.", "ve.", "conds.", "s2mel.", "semantic_codec.", "bigvgan.", "campplus_model.")
"""Models that the stock programs hold beside the language model."""


def find_model_prefix(checkpoint: Checkpoint) -> str:
    """What stands before the model's own names, by what stands before its text table; empty where nothing does."""
    shared = _shared_prefix(checkpoint.tensors)
    places = [
        name.removesuffix(table)
        for name in checkpoint.tensors
        for table in TEXT_TABLE_NAMES
        if _is_table_name(name, table)
    ]
    if not places or shared in places:
        return shared
    return min(places, key=lambda prefix: ("ema" in prefix, not _is_wrapper_prefix(prefix), len(prefix)))


def strip_model_prefix(checkpoint: Checkpoint) -> Checkpoint:
    """The same open file with the model's own names alone; everything beside it becomes an `CheckpointExtra`."""
    prefix, others = find_model_prefix(checkpoint), set(list_other_model_tensors(checkpoint))
    if not prefix and not others:
        return checkpoint
    own = {name: info for name, info in checkpoint.tensors.items() if name not in others}
    found = copy.copy(checkpoint)  # of the same kind: an archive keeps its checksums and its optimizer state
    found.tensors = {(short := name.removeprefix(prefix)): replace(info, name=short) for name, info in own.items()}
    found.extras = (*checkpoint.extras, *_other_model_extras(checkpoint, others))
    return found


def list_other_model_tensors(checkpoint: Checkpoint) -> list[str]:
    """Tensors of other models in the same file."""
    prefix = find_model_prefix(checkpoint)
    return [
        name
        for name in checkpoint.tensors
        if not name.startswith(prefix) or name.removeprefix(prefix).startswith(_OTHER_MODEL_PREFIXES)
    ]


def _other_model_extras(checkpoint: Checkpoint, others: Iterable[str]) -> list[CheckpointExtra]:
    parts: dict[str, list[str]] = {}
    for name in sorted(others):
        parts.setdefault(name.partition(".")[0], []).append(name)
    return [
        CheckpointExtra(
            f"{part}.*"[:80],
            f"{len(names):,} tensors of another model, "
            f"{sum(checkpoint.tensors[name].num_bytes for name in names) / 1e6:,.1f} MB",
            kept=False,
        )
        for part, names in parts.items()
    ]


def _shared_prefix(tensors: Iterable[str]) -> str:
    """The wrappers' names that all tensors begin with; empty where one of them does not."""
    names, prefix = list(tensors), ""
    while names and (found := next((one for one in WRAPPER_PREFIXES if names[0].startswith(prefix + one)), "")):
        if not all(name.startswith(prefix + found) for name in names):
            break
        prefix += found
    return prefix


def _is_table_name(name: str, table: str) -> bool:
    return name == table or name.endswith(f".{table}")


def _is_wrapper_prefix(prefix: str) -> bool:
    while prefix and (found := next((one for one in WRAPPER_PREFIXES if prefix.startswith(one)), "")):
        prefix = prefix.removeprefix(found)
    return not prefix
