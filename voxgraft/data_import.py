"""The verb `data import`: recordings with texts become clips with a manifest. Goes on where it was killed."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxgraft.amounts import format_names, pluralize
from voxgraft.data_settings import DataImportSettings
from voxgraft.errors import ConfigError, Finding, finding
from voxgraft.families import get_family
from voxgraft.importing.bringing import ImportOptions, SourceImportResult
from voxgraft.importing.dataset import DatasetFolder
from voxgraft.importing.edges import CutOptions
from voxgraft.importing.problems import REFUSAL_CODES, SourceProblem
from voxgraft.importing.running import (
    Doubled,
    ImportLoss,
    ImportResult,
    ReimportPolicy,
    compute_import_loss,
    doubled_sources,
    import_sources,
)
from voxgraft.importing.sources import find_sources
from voxgraft.importing.told import (
    MAX_SHOWN_PROBLEMS,
    PROBLEMS_FILE,
    format_problems,
    store_scan_problems,
    write_problems_file,
)
from voxgraft.results import Line, Table

__all__ = [
    "DataImportResult",
    "build_import_options",
    "build_reimport_policy",
    "compute_max_clip_seconds",
    "data_import",
]

DEFAULT_MAX_CLIP_SECONDS = 15.0
MAX_CODES_SHARE = 0.8
"""Of what a family can hear at most: a clip's codes stand behind a prompt and a text."""
ASSUMED_VOCABULARY_SIZE = 1_000
MAX_SPEAKERS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class DataImportResult:
    """What was brought in, and every line that was not."""

    dataset: Path
    done: ImportResult
    problems: tuple[SourceProblem, ...]
    used: int = 0
    """Clips of the whole dataset that can be used."""
    left_out: ImportLoss = field(default_factory=ImportLoss)
    max_left_out: float = 1.0
    doubled: tuple[Doubled, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if nothing can be used, if something was not done as asked, or if too much was left out."""
        return int(any(item.level == "error" for item in self.findings()))

    def _locate_problems(self) -> list[SourceProblem]:
        """Problems with the whole path of their file: every list may be called metadata.csv."""
        folders = {}
        for journal in self.done.journals:
            text = Path(str(journal.source.get("text")))
            folders[journal.recording] = text if journal.source.get("kind") == "folder" else text.parent
        placed = {
            problem: replace(problem, file=str(folders.get(one.recording, Path()) / problem.file))
            for one in self.done.source_results
            for problem in one.problems
        }
        return [placed.get(problem, problem) for problem in self.problems]

    def findings(self) -> list[Finding]:
        """What is wrong with the import as a whole."""
        found = [problem.finding() for problem in self.problems if problem.code in REFUSAL_CODES]
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
            f"{one.same:,} of {pluralize(one.clips, 'clip')} of {one.new} are in {one.old} too" for one in self.doubled
        ]
        names = dict.fromkeys(one.old for one in self.doubled)
        flags = " ".join(f"--recording {shlex.quote(name)}" for name in names)
        cure = (
            f"if {format_names([one.new for one in self.doubled])} replaces {format_names([*names])}, remove the older clips: "
            f"`voxgraft data remove {shlex.quote(str(self.dataset))} {flags}`. "
            "If two people read the same sentences, there is nothing to do."
        )
        return [finding("source-doubled", format_names(told), where=self.dataset, cure=cure)]

    def _digits(self) -> list[Finding]:
        """Digits that stay in the texts, since nobody knows how they are said in the language."""
        used = [clip for one in self.done.journals for clip in one.clips if clip.is_used]
        left = [clip.text for clip in used if any(map(str.isdecimal, clip.text))]
        if not left:
            return []
        shown = next(word for word in left[0].split() if any(map(str.isdecimal, word)))
        told = f"{len(left):,} of {pluralize(len(used), 'text')} keep digits, the first {shown!r:.40}"
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
            for one in self.done.source_results
        ]
        return {
            "dataset": str(self.dataset),
            "new_clips": self.done.new_clips,
            "recordings": recordings,
            "known": self.done.known,
            "used_clips": self.used,
            "left_out": round(self.left_out.share, 4),
            "doubled": [{"new": one.new, "old": one.old, "same": one.same} for one in self.doubled],
            "speakers": {one.recording: list(one.speakers) for one in self.done.source_results},
            "problems": [problem.to_json() for problem in self.problems],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.done.source_results:
            rows = tuple(
                (
                    one.recording,
                    f"{one.clips:,}",
                    f"{one.seconds / 60:.1f}",
                    f"{one.rejected:,}",
                    _format_import_state(one.failed),
                )
                for one in self.done.source_results
            )
            lines.append(Table(("source", "clips", "minutes", "rejected", ""), rows))
        if self.done.known:
            lines.append(f"there already, unchanged: {', '.join(self.done.known[:MAX_SHOWN_PROBLEMS])}")
        lines.append(f"{pluralize(self.done.new_clips, 'new clip')} in {self.dataset / 'manifest.jsonl'}")
        lines += _format_speaker_lines(self.done.source_results)
        if self.done.source_results or self.problems:
            lines += format_problems(self._locate_problems(), self.dataset / PROBLEMS_FILE)
        own = [item for item in self.findings() if item.code not in REFUSAL_CODES]
        if self.left_out.share and not any(item.level == "error" for item in own):
            lines.append(f"{self.left_out}; within what --max-left-out allows ({self.max_left_out:.0%})")
        return [*lines, *(line for item in own for line in item.lines())]


def _format_speaker_lines(brought: Sequence[SourceImportResult]) -> list[Line]:
    """Who is taken to speak, why, and how that is changed."""
    by: dict[str, list[SourceImportResult]] = {}
    for one in brought:
        if one.speakers:
            by.setdefault(one.speaker_origin, []).append(one)
    lines: list[Line] = []
    for why, own in by.items():
        names = list(dict.fromkeys(name for one in own for name in one.speakers))
        shown = format_names(names, MAX_SPEAKERS_SHOWN)
        clips = pluralize(sum(one.clips for one in own), "clip")
        lines.append(f"{pluralize(len(names), 'speaker')} for {clips} ({why}): {shown}")
    if lines:
        lines.append(
            "to change that: --speaker NAME if it is one person, or --speaker-from folder, recording or file; "
            "for clips that are there already with --reimport (in run.yaml: data.speaker, data.speaker_from)"
        )
    return lines


def _format_import_state(failed: bool) -> str:
    return "failed" if failed else ""


def data_import(settings: DataImportSettings, again: ReimportPolicy | None = None) -> DataImportResult:
    """Find sources, cut them, and write the manifest."""
    again = again or build_reimport_policy(settings)
    if settings.media is not None and len(settings.sources) != 1:
        told = f"--media names one file for {len(settings.sources)} sources"
        raise ConfigError("config-value", told, expected="one subtitle file")
    dataset = DatasetFolder(settings.dataset)
    found = find_sources(settings.sources, settings.language, settings.media, settings.encoding)
    with dataset.locked():
        done = import_sources(dataset, found.sources, build_import_options(settings), settings.workers, again)
        problems = store_scan_problems(dataset, settings.sources, (*found.problems, *done.problems))
        write_problems_file(dataset)
        used = sum(clip.is_used for clip in dataset.clips())
        doubled = tuple(doubled_sources(dataset, done.source_results))
    brought = (problem for one in done.source_results for problem in one.problems)
    left_out = compute_import_loss(done.journals, found.problems)
    allowed = settings.max_left_out
    return DataImportResult(settings.dataset, done, (*problems, *brought), used, left_out, allowed, doubled)


def build_reimport_policy(settings: DataImportSettings) -> ReimportPolicy:
    """Which sources are imported again, and which other options must not be ignored in silence."""
    # The rest of the settings say where things lie and how much is done at once.
    asked = settings.model_fields_set - {"dataset", "sources", "media", "family", "workers", "reimport", "max_left_out"}
    return ReimportPolicy(settings.reimport, asked=frozenset(asked))


def compute_max_clip_seconds(settings: DataImportSettings) -> float:
    """The longest clip: as was said, else what people say in one breath or two, as far as the family can hear it."""
    if settings.longest is not None:
        return settings.longest
    if settings.family is None:
        return DEFAULT_MAX_CLIP_SECONDS
    kind = get_family(settings.family)
    return min(DEFAULT_MAX_CLIP_SECONDS, MAX_CODES_SHARE * kind.frame(ASSUMED_VOCABULARY_SIZE).max_codes / kind.code_hz)


def build_import_options(settings: DataImportSettings) -> ImportOptions:
    """How clips are made, as the settings say it."""
    longest = compute_max_clip_seconds(settings)
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
