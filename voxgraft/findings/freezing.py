"""The freeze settings of an old config: where the boundary lies, and what a mask on the gradient does not stop."""

from __future__ import annotations

import math

from voxgraft.errors import Finding, finding
from voxgraft.findings.old_numbers import OldConfigNumbers
from voxgraft.findings.subject import CheckSubject

_DEFAULT_STEPS = 100_000


def freeze_findings(subject: CheckSubject) -> list[Finding]:
    """The boundary against the base's size, the switch, and the leak."""
    old = subject.old
    if old is None:
        return []
    base = subject.base_pieces or (old.original_pieces.count if old.original_pieces else None)
    findings = _freeze_boundary_findings(old, base, subject.grown.size if subject.grown else None)
    if old.freeze_original is False:
        found = "freeze_original_embeddings is false: the base's text rows are trained on the new language"
        findings.append(finding("freeze-off", found, expected="true", where=old.path))
    elif old.freeze_original or old.freeze_until is not None:
        findings += _freeze_leak_findings(old)
    return findings


def _freeze_boundary_findings(old: OldConfigNumbers, base: int | None, pieces: int | None) -> list[Finding]:
    stated = old.freeze_until
    if stated is None:
        return []
    at, where = stated.count, old.path
    pieces = pieces or (old.pieces.count if old.pieces else None)
    findings: list[Finding] = []
    if pieces is not None and at > pieces:
        found = (
            f"{stated.key} is {at:,}, past the {pieces:,} pieces there are; old trainers then lower it by themselves"
        )
        findings.append(finding("freeze-boundary", found, expected=f"{base or pieces:,}", where=where))
    elif base is not None and at < base:
        found = f"{stated.key} is {at:,}, the base has {base:,} pieces: base rows {at:,} to {base - 1:,} are trained"
        findings.append(finding("freeze-boundary", found, expected=f"{base:,}", where=where))
    elif base is not None and at > base:
        found = f"{stated.key} is {at:,}, the base has {base:,} pieces: new rows {base:,} to {at - 1:,} never learn"
        findings.append(finding("freeze-boundary", found, expected=f"{base:,}", where=where))
    elif base is not None:
        found = f"{stated.key} is {at:,}, the base's number of pieces; voxgraft needs no boundary"
        findings.append(finding("freeze-needless", found, where=where))
    return findings


def _freeze_leak_findings(old: OldConfigNumbers) -> list[Finding]:
    """AdamW takes `rate x decay` of every value at every step, whatever its gradient."""
    rate, decay = old.learning_rate, old.weight_decay
    if rate is None or decay is None or not rate.value * decay.value:
        return []
    steps = old.steps.count if old.steps and old.steps.count else _DEFAULT_STEPS
    left = math.exp(-rate.value * decay.value * steps)
    found = (
        f"a rate of {rate.value:g} with weight decay {decay.value:g} leaves {left:.2%} of a masked row "
        f"after {steps:,} steps"
    )
    return [finding("freeze-leaks", found, expected="100%", where=old.path)]
