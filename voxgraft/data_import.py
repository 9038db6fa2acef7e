"""The verb `data import`: recordings with texts become clips with a manifest. Goes on where it was killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.data_settings import DataImportSettings
from voxgraft.errors import ConfigError
from voxgraft.families import family
from voxgraft.importing.bringing import ImportOptions
from voxgraft.importing.dataset import Dataset
from voxgraft.importing.edges import CutOptions
from voxgraft.importing.problems import Problem
from voxgraft.importing.running import Imported, import_sources
from voxgraft.importing.sources import find_sources
from voxgraft.importing.told import MOST_SHOWN, PROBLEMS, keep_found, problem_lines, write_problems
from voxgraft.results import Line, Table

__all__ = ["DataImportResult", "data_import", "longest_seconds"]

LONGEST_SECONDS = 15.0
HEARD_SHARE = 0.8
"""Of what a family can hear at most: a clip's codes stand behind a prompt and a text."""
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


def data_import(settings: DataImportSettings) -> DataImportResult:
    """Find sources, cut them, and write the manifest."""
    if settings.media is not None and len(settings.sources) != 1:
        told = f"--media names one file for {len(settings.sources)} sources"
        raise ConfigError("config-value", told, expected="one subtitle file")
    dataset = Dataset(settings.dataset)
    found = find_sources(settings.sources, settings.language, settings.media, settings.encoding)
    with dataset.locked():
        done = import_sources(dataset, found.sources, _options(settings), settings.workers)
        problems = keep_found(dataset, settings.sources, (*found.problems, *done.problems))
        write_problems(dataset)
    brought = (problem for one in done.brought for problem in one.problems)
    return DataImportResult(settings.dataset, done, (*problems, *brought))


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
