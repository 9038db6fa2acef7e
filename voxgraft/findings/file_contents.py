"""What a checkpoint file holds beside the model: code that would run, and the leftovers of a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from voxgraft.checkpoints.model import Checkpoint
from voxgraft.checkpoints.opening import dangerous_globals
from voxgraft.checkpoints.pickles import Dictionary
from voxgraft.checkpoints.torch_file import TorchCheckpoint
from voxgraft.checkpoints.torch_tensors import BadTensor, is_tensor, tensor_of
from voxgraft.errors import Finding, VoxgraftError, finding
from voxgraft.findings.subject import Subject
from voxgraft.findings.text_tables import text_tables

_OPTIMIZER_KEYS = ("optimizer", "optimizer_state_dict", "optim", "optimizer_state")
_MOMENT = "exp_avg"
_MOST_PARAMETERS = 100_000
_NAMED = 5


def pickle_findings(subject: Subject) -> list[Finding]:
    """Names that loading a file would import and that could run anything."""
    findings: list[Finding] = []
    for path in subject.checkpoint_paths or ():
        try:
            names = dangerous_globals(path)
        except VoxgraftError as error:
            findings.append(error.finding)
            continue
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            found = f"{path.name} would import {', '.join(names[:_NAMED])}{more}"
            findings.append(finding("pickle-code", found, expected="tensors and plain values", where=path))
    return findings


def extra_findings(subject: Subject) -> list[Finding]:
    """A list of everything beside the tensors, and moments that were made for another table."""
    checkpoint = subject.checkpoint
    if checkpoint is None or not checkpoint.extras:
        return []
    listed = "; ".join(f"{extra.name}: {extra.description}" for extra in checkpoint.extras)
    found = f"{len(checkpoint.extras)} things beside the model's tensors: {listed}"
    findings = [finding("checkpoint-extras", found, where=checkpoint.path)]
    return findings + _moment_findings(subject, checkpoint)


def _moment_findings(subject: Subject, checkpoint: Checkpoint) -> list[Finding]:
    """Moments with the width of a text table, but with a number of rows that no tensor of the model has."""
    if not isinstance(checkpoint, TorchCheckpoint) or subject.family is None:
        return []
    model_shapes = {info.shape for info in checkpoint.tensors.values()}
    moments = set(_moment_shapes(checkpoint))
    findings: list[Finding] = []
    for point, info in text_tables(checkpoint, subject.family).items():
        odd = sorted(shape for shape in moments - model_shapes if shape[1:] == info.shape[1:])
        if point.role == "embedding" and odd and info.shape not in moments:
            found = f"the optimizer state has moments of {list(odd[0])}, {info.name} is {list(info.shape)}"
            cure = "voxgraft takes no optimizer state from elsewhere; in the old trainer start a fresh one."
            item = finding("moments-mismatch", found, where=checkpoint.path, cure=cure, level="warning")
            findings.append(item)
    return findings


def _moment_shapes(checkpoint: TorchCheckpoint) -> Iterator[tuple[int, ...]]:
    entries = checkpoint.archive.tree.entries
    optimizer = next((entries[key] for key in _OPTIMIZER_KEYS if key in entries), None)
    state = optimizer.entries.get("state") if isinstance(optimizer, Dictionary) else None
    if not isinstance(state, Dictionary):
        return
    for node in islice(state.entries.values(), _MOST_PARAMETERS):
        moment = node.entries.get(_MOMENT) if isinstance(node, Dictionary) else None
        if moment is not None and is_tensor(moment):
            try:
                yield tensor_of(moment).shape
            except BadTensor:
                continue
