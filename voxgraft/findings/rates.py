"""Learning rates against the family's sane ranges: those of a run, and the single one of an old config."""

from __future__ import annotations

from pathlib import Path

from voxgraft.errors import Finding, Level, finding
from voxgraft.families.base import Family
from voxgraft.findings.subject import CheckSubject
from voxgraft.run import RUN_FILE
from voxgraft.run_settings import TrainSettings

_RATE_SETTINGS = {"rows": "row_rate", "adapter": "adapter_rate", "body": "body_rate"}
_ERROR_FACTOR = 10.0
"""This many times outside the range nothing good can come of it: an error, not a warning."""


def run_rate_findings(subject: CheckSubject) -> list[Finding]:
    """The rates of the parts that the run's mode trains."""
    family, run = subject.family, subject.run
    if family is None or run is None:
        return []
    train = subject.settings.train
    findings: list[Finding] = []
    for part in _trained_parts(train):
        name = _RATE_SETTINGS[part]
        findings += _rate_findings(family, part, f"train.{name}", getattr(train, name), run / RUN_FILE)
    return findings


def _trained_parts(train: TrainSettings) -> tuple[str, ...]:
    """In merged mode an adapter is trained and folded in, unless the body itself is."""
    if train.mode == "rows-only":
        return ("rows",)
    return ("rows", "body") if train.mode == "merged" and train.full_body else ("rows", "adapter")


def old_rate_findings(subject: CheckSubject) -> list[Finding]:
    """An old trainer has one rate for everything, so it is judged as a rate for the body."""
    old, family = subject.old, subject.family
    if old is None or family is None or old.learning_rate is None:
        return []
    stated = old.learning_rate
    findings = _rate_findings(family, "body", f"{stated.key} (it moves the body too)", stated.value, old.path)
    if stated.as_text:
        found = f"{stated.key} is written as {stated.value:g} without a point"
        findings.append(finding("rate-as-text", found, where=old.path))
    return findings


def _rate_findings(family: Family, part: str, name: str, rate: float, where: Path) -> list[Finding]:
    allowed = family.rates[part]
    if allowed.low <= rate <= allowed.high:
        return []
    side = "below" if rate < allowed.low else "above"
    far = not allowed.low / _ERROR_FACTOR <= rate <= allowed.high * _ERROR_FACTOR
    found = f"{name} is {rate:g}, {side} the range for the {part} of {family.name}"
    expected = f"{allowed.low:g} to {allowed.high:g}"
    level: Level = "error" if far else "warning"
    return [finding("rate-out-of-range", found, expected=expected, where=where, level=level)]
