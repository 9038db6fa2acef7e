"""The verb `data import`: recordings with texts become clips with a manifest. Goes on where it was killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.data_settings import DataImportSettings
from voxgraft.errors import ConfigError
from voxgraft.families import family
from voxgraft.files import replacing
from voxgraft.importing.bringing import ImportOptions
from voxgraft.importing.dataset import Dataset
from voxgraft.importing.edges import CutOptions
from voxgraft.importing.problems import Problem
from voxgraft.importing.running import Imported, import_sources
from voxgraft.importing.sources import find_sources
from voxgraft.results import Line, Table

__all__ = ["DataImportResult", "data_import", "longest_seconds"]

PROBLEMS = "problems.jsonl"
LONGEST_SECONDS = 15.0
HEARD_SHARE = 0.8
"""Of what a family can hear at most: a clip's codes stand behind a prompt and a text."""
MOST_SHOWN = 12
NUM_PIECES = 1_000


@dataclass(frozen=True, slots=True)
class DataImportResult:
    """What was brought in, and every line that was not."""

    dataset: Path
    done: Imported
    problems: tuple[Problem, ...]

    @property
    def exit_code(self) -> int:
        """1 if a source could not be brought in."""
        errors = any(problem.finding().level == "error" for problem in self.problems)
        return int(errors or any(brought.failed for brought in self.done.brought))

    def to_json(self) -> dict[str, Any]:
        recordings = [
            {
                "recording": one.recording,
                "clips": one.clips,
                "seconds": round(one.seconds, 3),
                "rejected": one.rejected,
                "failed": one.failed,
            }
            for one in self.done.brought
        ]
        return {
            "dataset": str(self.dataset),
            "new_clips": self.done.new_clips,
            "recordings": recordings,
            "known": self.done.known,
            "problems": [problem.to_json() for problem in self.problems],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.done.brought:
            rows = tuple(
                (one.recording, f"{one.clips:,}", f"{one.seconds / 60:.1f}", f"{one.rejected:,}", _state(one.failed))
                for one in self.done.brought
            )
            lines.append(Table(("recording", "clips", "minutes", "rejected", ""), rows))
        if self.done.known:
            lines.append(f"there already, left alone: {', '.join(self.done.known[:MOST_SHOWN])}")
        lines.append(f"{self.done.new_clips:,} new clips in {self.dataset / 'manifest.jsonl'}")
        if self.done.brought or self.problems:
            lines += problem_lines(self.problems, self.dataset / PROBLEMS)
        return lines


def _state(failed: bool) -> str:
    return "failed" if failed else ""


def problem_lines(problems: Sequence[Problem], file: Path) -> list[Line]:
    """The worst problems in full, and how many there are of each kind."""
    if not problems:
        return ["every line of the sources was used"]
    order = {"error": 0, "warning": 1, "note": 2}
    findings = sorted((problem.finding() for problem in problems), key=lambda item: order[item.level])
    shown = [item for item in findings if item.level != "note"][:MOST_SHOWN]
    counts = Counter(problem.code for problem in problems)
    told = ", ".join(f"{code} {count:,}" for code, count in counts.most_common())
    lines: list[Line] = [line for item in shown for line in item.lines()[:2]]
    return [*lines, f"not used as they stand: {told} (every line: {file})"]


def data_import(settings: DataImportSettings) -> DataImportResult:
    """Find sources, cut them, and write the manifest."""
    if settings.media is not None and len(settings.sources) != 1:
        told = f"--media names one file for {len(settings.sources)} sources"
        raise ConfigError("config-value", told, expected="one subtitle file")
    dataset = Dataset(settings.dataset)
    found = find_sources(settings.sources, settings.language, settings.media)
    done = import_sources(dataset, found.sources, _options(settings), settings.workers)
    problems = (*found.problems, *done.problems)
    _write_problems(dataset, found.problems, done.problems)
    return DataImportResult(settings.dataset, done, problems)


def longest_seconds(settings: DataImportSettings) -> float:
    """The longest clip: as was said, else what people say in one breath or two, as far as the family can hear it."""
    if settings.longest is not None:
        return settings.longest
    if settings.family is None:
        return LONGEST_SECONDS
    kind = family(settings.family)
    return min(LONGEST_SECONDS, HEARD_SHARE * kind.frame(NUM_PIECES).max_codes / kind.code_hz)


def _options(settings: DataImportSettings) -> ImportOptions:
    longest = longest_seconds(settings)
    if settings.shortest >= longest:
        found = f"shortest is {settings.shortest} s and longest {longest:g} s"
        raise ConfigError("config-value", found, expected="a shortest below the longest")
    cut = CutOptions(
        settings.shortest, longest, settings.lead, settings.tail, settings.join_gap, settings.cut == "pauses"
    )
    return ImportOptions(
        language=settings.language,
        rate=settings.rate,
        ending=settings.format,
        encoding=settings.encoding,
        speaker=settings.speaker,
        rolling=settings.rolling,
        fold_homophones=settings.fold_homophones,
        activity=settings.activity,
        cut=cut,
    )


def _write_problems(dataset: Dataset, looking: Sequence[Problem], now: Sequence[Problem]) -> None:
    """Everything that is known of all sources of the dataset, and of what was looked at just now."""
    kept = [problem for journal in dataset.journals() for problem in journal.problems]
    with replacing(dataset.folder / PROBLEMS, overwrite=True) as stream:
        for problem in dict.fromkeys((*kept, *looking, *now)):
            stream.write(json.dumps(problem.to_json(), ensure_ascii=False).encode() + b"\n")
