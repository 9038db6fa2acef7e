"""The verb `check`: everything in a run, or in loose files, that would go wrong. Changes nothing."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import ConfigError, Finding
from voxgraft.findings import CheckOutcome, open_check_subject, run_checks
from voxgraft.findings.sizes import size_table
from voxgraft.preparing.choosing import resolve_text_files
from voxgraft.results import Line, Table, style_line
from voxgraft.settings import CheckSettings

_LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_INPUT_NAMES = ("run", "base", "checkpoint", "base_config", "texts", "prepared")
_NO_FIX_NEEDED = "none is needed."


@dataclass(frozen=True, slots=True)
class CheckResult:
    """All findings at once, and what was looked at; exit 1 if any of them is an error."""

    outcome: CheckOutcome
    sizes: Table | None
    not_given: tuple[str, ...]
    run: Path | None = None

    @property
    def exit_code(self) -> int:
        return 1 if self.outcome.errors else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "fine": not self.outcome.errors,
            "checked": list(self.outcome.checked),
            "not_checked": self.outcome.not_checked,
            "not_given": list(self.not_given),
            "sizes": self.sizes.to_json() if self.sizes else [],
            "findings": [item.to_json() for item in self.outcome.findings],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [self.sizes] if self.sizes else []
        for level in _LEVEL_STYLES:
            for item in self.outcome.findings:
                lines += _format_check_finding(item) if item.level == level else []
        lines.append(f"checked: {', '.join(self.outcome.checked) or 'nothing'}")
        by_reason: dict[str, list[str]] = {}
        for topic, reason in self.outcome.not_checked.items():
            by_reason.setdefault(reason, []).append(topic)
        if by_reason:
            skipped = (f"{', '.join(topics)} ({reason})" for reason, topics in by_reason.items())
            lines.append(f"not checked: {'; '.join(skipped)}")
        if self.not_given:
            lines.append(f"not given: {', '.join(self.not_given)}")
        return [*lines, self.verdict, *self._next()]

    def _next(self) -> list[Line]:
        """What the run needs now. Clips that are not prepared yet are no fault, but nothing can be trained without."""
        if self.run is None:
            return []
        run, codes = shlex.quote(str(self.run)), {item.code for item in self.outcome.findings}
        if self.outcome.errors:
            return ["next: cure the errors; training does not start while there is one"]
        if "graft-missing" in codes:
            return [f"next: voxgraft graft {run}"]
        if codes & {"set-missing", "set-incomplete"}:
            return [f"next: voxgraft prepare {run}; training cannot start before there are clips"]
        return [f"next: voxgraft train {run}"]

    @property
    def verdict(self) -> Line:
        """How many findings there are of each level."""
        counts = {level: sum(item.level == level for item in self.outcome.findings) for level in _LEVEL_STYLES}
        listed = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items())
        return style_line((listed, _LEVEL_STYLES["error"] if counts["error"] else "bold green"))


def check(settings: CheckSettings) -> CheckResult:
    """Look at everything that was given. What cannot be read is a finding; the rest is still looked at."""
    given = {name: bool(getattr(settings, name)) for name in _INPUT_NAMES}
    given["texts"] = bool(resolve_text_files(settings, settings.run))
    given["tokenizer"] = settings.tokenizer.file is not None or settings.run is not None
    if not any(given.values()):
        found = "neither a run nor any file to look at is given"
        raise ConfigError("config-missing", found, expected="RUN, or one of --base, --tokenizer, --checkpoint ...")
    with open_check_subject(settings) as subject:
        outcome = run_checks(subject)
        sizes = size_table(subject)
    names = (name.replace("_", "-") for name, there in given.items() if not there)
    listed = tuple("--" + name if name != "run" else "RUN" for name in names)
    return CheckResult(outcome, sizes, listed, settings.run)


def _format_check_finding(item: Finding) -> list[Line]:
    first, *rest = item.lines()
    return [style_line((first, _LEVEL_STYLES[item.level])), *(line for line in rest if _NO_FIX_NEEDED not in line)]
