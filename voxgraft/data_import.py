"""The verb `data import`: recordings with texts become clips with a manifest. Goes on where it was killed."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxgraft.amounts import counted, first_of
from voxgraft.data_settings import DataImportSettings
from voxgraft.errors import ConfigError, Finding, finding
from voxgraft.families import family
from voxgraft.importing.bringing import Brought, ImportOptions
from voxgraft.importing.dataset import Dataset
from voxgraft.importing.edges import CutOptions
from voxgraft.importing.problems import REFUSALS, Problem
from voxgraft.importing.running import Again, Doubled, Imported, LeftOut, doubled_sources, import_sources, left_out_of
from voxgraft.importing.sources import find_sources
from voxgraft.importing.told import MOST_SHOWN, PROBLEMS, keep_found, problem_lines, write_problems
from voxgraft.results import Line, Table

__all__ = ["DataImportResult", "data_import", "import_again", "import_options", "longest_seconds"]

LONGEST_SECONDS = 15.0
HEARD_SHARE = 0.8
"""Of what a family can hear at most: a clip's codes stand behind a prompt and a text."""
NUM_PIECES = 1_000
MOST_NAMES = 6


@dataclass(frozen=True, slots=True)
class DataImportResult:
    """What was brought in, and every line that was not."""

    dataset: Path
    done: Imported
    problems: tuple[Problem, ...]
    used: int = 0
    """Clips of the whole dataset that can be used."""
    left_out: LeftOut = field(default_factory=LeftOut)
    max_left_out: float = 1.0
    doubled: tuple[Doubled, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if nothing can be used, if something was not done as asked, or if too much was left out."""
        return int(any(item.level == "error" for item in self.findings()))

    def _placed_problems(self) -> list[Problem]:
        """Problems with the whole path of their file: every list may be called metadata.csv."""
        folders = {}
        for journal in self.done.journals:
            text = Path(str(journal.source.get("text")))
            folders[journal.recording] = text if journal.source.get("kind") == "folder" else text.parent
        placed = {
            problem: replace(problem, file=str(folders.get(one.recording, Path()) / problem.file))
            for one in self.done.brought
            for problem in one.problems
        }
        return [placed.get(problem, problem) for problem in self.problems]

    def findings(self) -> list[Finding]:
        """What is wrong with the import as a whole."""
        found = [problem.finding() for problem in self.problems if problem.code in REFUSALS]
        if not self.used:
            counts = Counter(reason for one in self.done.journals for clip in one.clips for reason in clip.rejected)
            why = ", ".join(f"{count:,} clips are {reason}" for reason, count in counts.most_common())
            told = "there is no clip that can be used" + (f": {why}" if why else "")
            found.append(finding("import-empty", told, where=self.dataset))
        elif self.left_out.share > self.max_left_out:
            expected = f"at most {self.max_left_out:.0%} (--max-left-out)"
            found.append(finding("import-left-out", str(self.left_out), expected=expected, where=self.dataset))
        return [*found, *self._doubled(), *self._digits()]

    def _doubled(self) -> list[Finding]:
        """Sources that look like others which were renamed."""
        if not self.doubled:
            return []
        told = [
            f"{one.same:,} of {counted(one.clips, 'clip')} of {one.new} are in {one.old} too" for one in self.doubled
        ]
        names = dict.fromkeys(one.old for one in self.doubled)
        flags = " ".join(f"--recording {shlex.quote(name)}" for name in names)
        cure = (
            f"if {first_of([one.new for one in self.doubled])} replaces {first_of([*names])}, remove the older clips: "
            f"`voxgraft data remove {shlex.quote(str(self.dataset))} {flags}`. "
            "If two people read the same sentences, there is nothing to do."
        )
        return [finding("source-doubled", first_of(told), where=self.dataset, cure=cure)]

    def _digits(self) -> list[Finding]:
        """Digits that stay in the texts, since nobody knows how they are said in the language."""
        used = [clip for one in self.done.journals for clip in one.clips if clip.is_used]
        left = [clip.text for clip in used if any(map(str.isdecimal, clip.text))]
        if not left:
            return []
        shown = next(word for word in left[0].split() if any(map(str.isdecimal, word)))
        told = f"{len(left):,} of {counted(len(used), 'text')} keep digits, the first {shown!r:.40}"
        return [finding("text-digits", told, where=self.dataset)]

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
            "used_clips": self.used,
            "left_out": round(self.left_out.share, 4),
            "doubled": [{"new": one.new, "old": one.old, "same": one.same} for one in self.doubled],
            "speakers": {one.recording: list(one.speakers) for one in self.done.brought},
            "problems": [problem.to_json() for problem in self.problems],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.done.brought:
            rows = tuple(
                (one.recording, f"{one.clips:,}", f"{one.seconds / 60:.1f}", f"{one.rejected:,}", _state(one.failed))
                for one in self.done.brought
            )
            lines.append(Table(("source", "clips", "minutes", "rejected", ""), rows))
        if self.done.known:
            lines.append(f"there already, unchanged: {', '.join(self.done.known[:MOST_SHOWN])}")
        lines.append(f"{counted(self.done.new_clips, 'new clip')} in {self.dataset / 'manifest.jsonl'}")
        lines += _speaker_lines(self.done.brought)
        if self.done.brought or self.problems:
            lines += problem_lines(self._placed_problems(), self.dataset / PROBLEMS)
        own = [item for item in self.findings() if item.code not in REFUSALS]
        if self.left_out.share and not any(item.level == "error" for item in own):
            lines.append(f"{self.left_out}; within what --max-left-out allows ({self.max_left_out:.0%})")
        return [*lines, *(line for item in own for line in item.lines())]


def _speaker_lines(brought: Sequence[Brought]) -> list[Line]:
    """Who is taken to speak, why, and how that is changed."""
    by: dict[str, list[Brought]] = {}
    for one in brought:
        if one.speakers:
            by.setdefault(one.speakers_by, []).append(one)
    lines: list[Line] = []
    for why, own in by.items():
        names = list(dict.fromkeys(name for one in own for name in one.speakers))
        shown = first_of(names, MOST_NAMES)
        clips = counted(sum(one.clips for one in own), "clip")
        lines.append(f"{counted(len(names), 'speaker')} for {clips} ({why}): {shown}")
    if lines:
        lines.append(
            "to change that: --speaker NAME if it is one person, or --speaker-from folder, recording or file; "
            "for clips that are there already with --reimport (in run.yaml: data.speaker, data.speaker_from)"
        )
    return lines


def _state(failed: bool) -> str:
    return "failed" if failed else ""


def data_import(settings: DataImportSettings, again: Again | None = None) -> DataImportResult:
    """Find sources, cut them, and write the manifest."""
    again = again or import_again(settings)
    if settings.media is not None and len(settings.sources) != 1:
        told = f"--media names one file for {len(settings.sources)} sources"
        raise ConfigError("config-value", told, expected="one subtitle file")
    dataset = Dataset(settings.dataset)
    found = find_sources(settings.sources, settings.language, settings.media, settings.encoding)
    with dataset.locked():
        done = import_sources(dataset, found.sources, import_options(settings), settings.workers, again)
        problems = keep_found(dataset, settings.sources, (*found.problems, *done.problems))
        write_problems(dataset)
        used = sum(clip.is_used for clip in dataset.clips())
        doubled = tuple(doubled_sources(dataset, done.brought))
    brought = (problem for one in done.brought for problem in one.problems)
    left_out = left_out_of(done.journals, found.problems)
    allowed = settings.max_left_out
    return DataImportResult(settings.dataset, done, (*problems, *brought), used, left_out, allowed, doubled)


def import_again(settings: DataImportSettings) -> Again:
    """Which sources are imported again, and which other options must not be ignored in silence."""
    # The rest of the settings say where things lie and how much is done at once.
    asked = settings.model_fields_set - {"dataset", "sources", "media", "family", "workers", "reimport", "max_left_out"}
    return Again(settings.reimport, asked=frozenset(asked))


def longest_seconds(settings: DataImportSettings) -> float:
    """The longest clip: as was said, else what people say in one breath or two, as far as the family can hear it."""
    if settings.longest is not None:
        return settings.longest
    if settings.family is None:
        return LONGEST_SECONDS
    kind = family(settings.family)
    return min(LONGEST_SECONDS, HEARD_SHARE * kind.frame(NUM_PIECES).max_codes / kind.code_hz)


def import_options(settings: DataImportSettings) -> ImportOptions:
    """How clips are made, as the settings say it."""
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
        speaker_from=settings.speaker_from,
        rolling=settings.rolling,
        fold_homophones=settings.fold_homophones,
        activity=settings.activity,
        cut=cut,
    )
