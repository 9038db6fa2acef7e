"""What a checkpoint file holds beside the model: code that would run, and the leftovers of a trainer."""

from __future__ import annotations

from voxgraft.checkpoints.opening import find_dangerous_globals
from voxgraft.errors import Finding, VoxgraftError, finding
from voxgraft.findings.subject import CheckSubject

_MAX_NAMED_GLOBALS = 5


def pickle_findings(subject: CheckSubject) -> list[Finding]:
    """Names that loading a file would import and that could run anything."""
    findings: list[Finding] = []
    for path in subject.checkpoint_paths or ():
        try:
            names = find_dangerous_globals(path)
        except VoxgraftError as error:
            findings.append(error.finding)
            continue
        if names:
            more = f" and {len(names) - _MAX_NAMED_GLOBALS} more" if len(names) > _MAX_NAMED_GLOBALS else ""
            found = f"{path.name} would import {', '.join(names[:_MAX_NAMED_GLOBALS])}{more}"
            findings.append(finding("pickle-code", found, expected="tensors and plain values", where=path))
    return findings


def checkpoint_extra_findings(subject: CheckSubject) -> list[Finding]:
    """A list of everything beside the tensors."""
    checkpoint = subject.checkpoint
    if checkpoint is None or not checkpoint.extras:
        return []
    listed = "; ".join(f"{extra.name}: {extra.description}" for extra in checkpoint.extras)
    found = f"{len(checkpoint.extras)} things beside the model's tensors: {listed}"
    return [finding("checkpoint-extras", found, where=checkpoint.path)]
