"""The command `data import`: plan which sources to import, run them in several processes, publish one manifest.

One source is imported by `data/importer`. Sources that changed since their import are refused, kept or imported again,
as the `ReimportPolicy` says. `preview_import` makes the same plan without doing anything, for the pipeline.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from voxgraft.config.data import DataImportSettings
from voxgraft.core import progress
from voxgraft.core.errors import CATALOGUE, ConfigError, FileError, Finding, VoxgraftError, finding
from voxgraft.core.files import is_file, path_exists
from voxgraft.core.languages import is_same_language, language_findings
from voxgraft.core.results import Line, Table, format_names, pluralize
from voxgraft.core.run import worker_pool
from voxgraft.data.folder import (
    MAX_SHOWN_PROBLEMS,
    PROBLEMS_FILE,
    AudioStamp,
    DatasetFolder,
    ImportJournal,
    format_problems,
    store_scan_problems,
    write_problems_file,
)
from voxgraft.data.importer import SET_BY_SPEAKER_FROM, ImportOptions, ImportTask, SourceImportResult, import_source
from voxgraft.data.manifest import LOST_CLIP_CODES, REFUSAL_CODES, SourceProblem
from voxgraft.data.segment import REJECTION_MEANINGS, CutOptions
from voxgraft.data.sources import (
    COMMON_VOICE_UNACCEPTED,
    PARTS,
    ImportSource,
    compute_audio_stamps,
    compute_source_fingerprint,
    find_later_files,
    find_later_names,
    find_sources,
)
from voxgraft.models import get_family
from voxgraft.text.encoder import check_text_script

# Clips with the same text count as one clip within this difference: two people need different times for a sentence.
SAME_SECONDS = 0.1
# From this share of the smaller source, and this number of clips, a source is taken for a copy of another.
DOUBLED_SHARE, DOUBLED_CLIPS = 0.5, 3
DEFAULT_MAX_CLIP_SECONDS = 15.0
# Of a family's maximum number of codes: a clip's codes come after a prompt and a text.
MAX_CODES_SHARE = 0.8
ASSUMED_VOCABULARY_SIZE = 1_000
MAX_SPEAKERS_SHOWN = 6
DoubledSource = tuple[str, str, int, int]
"""A new source, an older one that has the same clips, how many of them are the same, and the new one's clips."""


@dataclass(slots=True)
class ImportPlan:
    """What an import does, or would do, by the names of the sources."""

    tasks: list[ImportTask] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    """Recordings that were imported before and did not change."""
    copies: dict[str, str] = field(default_factory=dict)
    """By recording of this import: another source that is a copy of it, and is not imported a second time."""
    problems: list[SourceProblem] = field(default_factory=list)
    """Sources that are refused: they changed, without an option that says what to do, or cannot be read."""
    notes: list[SourceProblem] = field(default_factory=list)
    """About sources that did not change, of which more could be imported now."""
    kept: list[SourceProblem] = field(default_factory=list)
    """Sources that changed and whose clips stay as they are, as requested."""
    refused: list[str] = field(default_factory=list)
    """Recordings of the sources that are refused."""
    new: list[str] = field(default_factory=list)
    """In a preview: sources that were never imported, or that were not finished."""
    failed: list[str] = field(default_factory=list)
    """In a preview: sources that could not be imported and have not changed since."""
    again: list[str] = field(default_factory=list)
    """In a preview: sources that would be imported again."""
    damaged: list[str] = field(default_factory=list)
    """In a preview: ids of clips whose files are missing or damaged, and would be written again."""


def compute_import_loss(journals: Sequence[ImportJournal], found: Iterable[SourceProblem] = ()) -> tuple[float, str]:
    """How much of some sources gave no clip although it should have: the share, and the sentence that tells it.

    Counts what is left out of sources, by their journals, and of files that belong to no source (`found`). The share is
    the larger of the share of lines (or recordings) and the share of whole sources.
    """
    failed = sum(not journal.is_done for journal in journals)
    problems = [problem for journal in journals if journal.is_done for problem in journal.problems]
    lost = sum(problem.code in LOST_CLIP_CODES for problem in (*problems, *found))
    of_lines = lost + sum(len(journal.clips) for journal in journals)
    share = max(lost / max(1, of_lines), failed / max(1, len(journals)))
    lines = f"{lost:,} of {pluralize(of_lines, 'line')} were left out"
    sources = f"{failed:,} of {pluralize(len(journals), 'source')} could not be imported"
    return share, " and ".join([lines] * bool(lost) + [sources] * bool(failed)) or lines


@dataclass(frozen=True, slots=True)
class ReimportPolicy:
    """When a source that was imported before is imported again."""

    changed: bool = False
    """Whether sources that changed, or that other options would cut differently, are imported again."""
    keep: bool = False
    """Whether otherwise their clips are used as they are, without an error."""
    asked: frozenset[str] | None = None
    """Explicitly given options: a difference to the first import is reported, not ignored. None: all."""
    cure: str = "run the same command again with --reimport."
    verify: bool = True
    """Whether every clip file is read, and all with another content are made again: also clips that a user edited.
    Otherwise only files that are missing or cannot be used are.
    """


def doubled_sources(dataset: DatasetFolder, results: Iterable[SourceImportResult]) -> list[DoubledSource]:
    """Pairs of sources that look like one, such as a folder that was renamed and imported once more.

    Clips are the same if their files are, or if their text and nearly their length are (the audio was cleaned).
    """
    new = {one.recording for one in results if one.clips and not one.failed}
    if not new:
        return []
    published = {clip.id for clip in dataset.clips()}
    journals = [journal for journal in dataset.journals() if journal.ids & published]
    clips = {journal.recording: [clip for clip in journal.clips if clip.id in published] for journal in journals}
    sums = {journal.recording: journal.sums for journal in journals}
    # Lengths in steps of half the tolerance: equal or neighbouring steps are within it.
    step = SAME_SECONDS / 2
    holders: dict[Hashable, set[str]] = defaultdict(set)
    for name, own in clips.items():
        for clip in own:
            place = round(clip.seconds / step)
            for key in (sums[name].get(clip.id), *((clip.text, at) for at in (place - 1, place, place + 1))):
                holders[key].add(name)
    shared: Counter[tuple[str, str]] = Counter()
    for name in sorted(new & clips.keys()):
        for clip in clips[name]:
            written, spoken = sums[name].get(clip.id), (clip.text, round(clip.seconds / step))
            shared.update((name, old) for old in (holders[written] if written else set()) | holders[spoken])
    found = []
    for (name, old), same in sorted(shared.items()):
        least = max(DOUBLED_CLIPS, DOUBLED_SHARE * min(len(clips[name]), len(clips[old])))
        # Of two sources that are both new the second is the copy.
        if name != old and same >= least and (old not in new or old < name):
            found.append((name, old, same, len(clips[name])))
    return found


def preview_import(
    dataset: DatasetFolder,
    sources: Sequence[ImportSource],
    options: ImportOptions,
    policy: ReimportPolicy,
) -> ImportPlan:
    """What an import would do. Changes nothing. An error if another process works on the dataset.

    Clip files are compared by size alone, unless sources that changed are to be imported again.
    """
    with dataset.locked():
        found = _plan_import(dataset, sources, options, policy, verify=policy.changed)
        journals = {journal.recording: journal for journal in dataset.journals()}
    for task in found.tasks:
        journal = journals.get(task.recording)
        if task.damaged:
            found.damaged += sorted(task.damaged)
        elif journal is None or not (journal.is_published or journal.problems):
            found.new.append(task.source.name)
        elif journal.is_published:
            found.again.append(task.source.name)
        else:
            same = journal.source.get("fingerprint") == task.mark and not journal.find_changed_audio(task.sounds)
            (found.failed if same else found.new).append(task.source.name)
    return found


def _plan_import(
    dataset: DatasetFolder,
    sources: Sequence[ImportSource],
    options: ImportOptions,
    again: ReimportPolicy,
    *,
    verify: bool = False,
) -> ImportPlan:
    """The sources to import, each under its own name.

    Sources whose clips are damaged or missing are among them. `verify` reads every clip file to see this.
    """
    done = ImportPlan()
    journals = [journal for journal in dataset.journals() if journal.source]
    marks = {str(journal.source.get("fingerprint")): journal for journal in journals}
    clips = list(dataset.clips())
    ids, taken = {clip.id for clip in clips}, dataset.reserved_names(clips)
    tasks: dict[str, ImportTask] = {}
    for source in sources:
        try:
            mark = compute_source_fingerprint(source)
            more: set[str] = set()
            if mark not in marks and not again.changed:
                source, mark, more = _leave_out_later_files(source, mark, journals)
            journal = marks.get(mark) or _find_moved_journal(source, journals)
            sounds = compute_audio_stamps(source, (journal and journal.sounds) or {})
            # Two people may read the same list: the same texts and file names, but other audio files.
            is_elsewhere = mark in tasks or (journal and journal.source.get("text") != source.to_json()["text"])
            other = tasks[mark].sounds if mark in tasks else (journal and journal.sounds) or {}
            now, then = ({name: stamp[2] for name, stamp in one.items() if stamp} for one in (sounds, other))
            if is_elsewhere and any(then.get(name, content) != content for name, content in now.items()):
                own_mark = _mark_with_audio(mark, now)
                if own_mark not in marks:
                    later = find_later_names(source, now)
                    before_mark = _mark_with_audio(mark, {name: now[name] for name in now.keys() - later})
                    own_mark = before_mark if before_mark in marks else own_mark
                # The other list is still there, so this one is not its changed copy.
                if own_mark in marks or mark in tasks or is_file(Path(str(journal and journal.source.get("text")))):
                    mark, journal = own_mark, marks.get(own_mark)
        except VoxgraftError as error:
            done.problems.append(SourceProblem.of(error, str(source.text)))
            continue
        if mark in tasks:  # a copy of a source of this import
            done.known.append(tasks[mark].recording)
            done.copies[tasks[mark].recording] = str(source.text)
            continue
        if journal is None:
            lower = {other.lower() for other in taken}  # some file systems ignore case
            number, name = 2, source.name
            while name.lower() in lower:
                name, number = f"{source.name}-{number}", number + 1
            taken.add(name)
            tasks[mark] = ImportTask(source, name, mark, sounds)
            continue
        problem = _find_source_change(source, journal, mark, sounds, options, again)
        if journal.is_published and problem is None:
            done.known.append(journal.recording)
            more |= set(journal.find_changed_audio(sounds))
            if more:
                found = f"{source.text.name} was imported as {journal.recording}; "
                found += f"{pluralize(len(more), 'more file')} can be used now: {format_names(sorted(more))}"
                done.notes.append(SourceProblem("source-more", found, str(source.text), cure=again.cure))
            # Clips that a user removed from the manifest are not missing.
            damaged = {clip.id for clip in journal.damaged(dataset.folder, quick=not verify)} & ids
            if damaged:
                tasks[mark] = ImportTask(source, journal.recording, mark, sounds, damaged=frozenset(damaged))
        elif not journal.is_published or again.changed or not journal.clips:
            journals.remove(journal)  # no second source may take it
            marks.pop(str(journal.source.get("fingerprint")), None)
            before = dataset.clips_of(journal.recording, clips)
            tasks[mark] = ImportTask(source, journal.recording, mark, sounds, tuple(before))
        else:
            assert problem is not None
            (done.kept if again.keep else done.problems).append(problem)
            (done.known if again.keep else done.refused).append(journal.recording)
    done.known, done.tasks = list(dict.fromkeys(done.known)), list(tasks.values())
    return done


def _find_source_change(
    source: ImportSource,
    journal: ImportJournal,
    mark: str,
    sounds: Mapping[str, AudioStamp | None],
    options: ImportOptions,
    again: ReimportPolicy,
) -> SourceProblem | None:
    """How a source or its options differ from those at import time; None if they are the same."""
    name, was = source.text.name, f"was imported as {journal.recording}"
    if str(journal.source.get("fingerprint")) != mark:
        what = "its text" if source.kind == "list" else "its text or its audio"
        return SourceProblem(
            "source-changed", f"{name} {was}, and {what} changed since", str(source.text), cure=again.cure
        )
    heard = journal.find_changed_audio(sounds)
    if journal.clips and not again.changed:  # what older versions did not find has not changed
        missing = [name for name in heard if journal.sounds and journal.sounds[name] is None]
        later = find_later_names(source, missing)
        heard = [name for name in heard if name not in later]
    if heard:
        found = f"{name} {was}, and {format_names(heard)} changed or were added since"
        return SourceProblem("source-changed", found, str(source.text), cure=again.cure)
    before = journal.source.get("options")
    asked = None if again.changed else again.asked
    if others := options.differences(before, asked) if isinstance(before, Mapping) else {}:
        shown = {key: ["not given" if one is None else one for one in pair] for key, pair in others.items()}
        message = ", ".join(f"{key} {then} (now {now})" for key, (then, now) in shown.items())
        return SourceProblem("import-settings", f"{name} {was} with {message}", str(source.text), cure=again.cure)
    return None


def _leave_out_later_files(
    source: ImportSource, mark: str, journals: Iterable[ImportJournal]
) -> tuple[ImportSource, str, set[str]]:
    """A folder as an older version imported it, its fingerprint, and the files that this version uses in addition."""
    later = find_later_files(source) if source.kind == "folder" else set()
    names = {path.name for path in source.files}
    for journal in journals if later else ():
        if journal.is_published and journal.clips and journal.files < names and names - journal.files <= later:
            part = replace(source, files=tuple(path for path in source.files if path.name in journal.files))
            if (part_mark := compute_source_fingerprint(part)) == journal.source.get("fingerprint"):
                return part, part_mark, names - journal.files
    return source, mark, set()


def _mark_with_audio(mark: str, contents: Mapping[str, str]) -> str:
    """The fingerprint of a list that another source has too, with other audio files."""
    return hashlib.sha256(f"{mark}{sorted(contents.items())}".encode()).hexdigest()


def _mention_imported_lists(
    dataset: DatasetFolder, problems: Sequence[SourceProblem], sources: Sequence[ImportSource]
) -> list[SourceProblem]:
    """The same problems. Those of lists that are left out name the clips that an older version imported from them."""
    used = {source.to_json()["text"] for source in sources}
    done = []
    for problem in problems:
        counts: dict[str, int] = {}
        if problem.code == "list-unaccepted":
            folder = Path(problem.file).resolve()
            clips = list(dataset.clips())
            texts = {str(folder / name) for name in COMMON_VOICE_UNACCEPTED} - used
            for journal in dataset.journals():
                if journal.source.get("text") in texts and (own := dataset.clips_of(journal.recording, clips)):
                    counts[journal.recording] = len(own)
        if counts:
            shown = ", ".join(f"{name} ({pluralize(count, 'clip')})" for name, count in sorted(counts.items()))
            found = f"{problem.found}. Imported earlier and still in the dataset: {shown}"
            flags = " ".join(f"--recording {shlex.quote(name)}" for name in sorted(counts))
            command = f"voxgraft data remove {shlex.quote(str(dataset.folder))} {flags}"
            cure = f"remove the clips that were imported earlier: `{command}`. To keep them, no action is needed."
            problem = replace(problem, found=found, cure=cure)
        done.append(problem)
    return done


def _find_moved_journal(source: ImportSource, journals: Iterable[ImportJournal]) -> ImportJournal | None:
    """The journal of the source in the same place with other content; else of a place of that name that is gone."""
    place, files = source.to_json(), {path.name for path in source.files}
    alike = [
        journal
        for journal in journals
        if journal.source.get("kind") == place["kind"] and (not files or files & journal.files)
    ]
    for journal in alike:
        if journal.source.get("text") == place["text"]:
            return journal
    # A folder that was moved as a whole keeps the names of the file and of its folder.
    name = Path(place["text"]).parts[-2:]
    places = [(journal, Path(str(journal.source.get("text")))) for journal in alike]
    moved = [journal for journal, path in places if path.parts[-2:] == name and not path_exists(path)]
    return moved[0] if len(moved) == 1 else None


def _run_import_tasks(
    dataset: DatasetFolder, tasks: Sequence[ImportTask], options: ImportOptions, workers: int
) -> Iterator[SourceImportResult]:
    work = partial(import_source, dataset, options=options)
    if min(workers, len(tasks)) <= 1:
        yield from map(work, tasks)
        return
    try:
        with worker_pool(min(workers, len(tasks))) as pool:
            for future in as_completed([pool.submit(work, task) for task in tasks]):
                yield future.result()
    except BrokenProcessPool:
        found = "a process was killed (often out of memory); finished work is kept"
        raise FileError("source-failed", found, where=dataset.folder, cure="run the same command again.") from None


@dataclass(frozen=True, slots=True)
class DataImportResult:
    """What was imported, and every line that was not."""

    dataset: Path
    plan: ImportPlan
    source_results: tuple[SourceImportResult, ...]
    journals: tuple[ImportJournal, ...]
    """Journals of all these sources after the import."""
    new_clips: int
    problems: tuple[SourceProblem, ...]
    used: int = 0
    """Clips of the whole dataset that can be used."""
    left_out: tuple[float, str] = (0.0, "")
    """Share of the sources that gave no clip, and the sentence that tells it."""
    max_left_out: float = 1.0
    doubled: tuple[DoubledSource, ...] = ()
    language: str = ""

    @property
    def exit_code(self) -> int:
        """1 if nothing can be used, if something was not done as asked, or if too much was left out."""
        return int(any(item.level == "error" for item in self.findings()))

    def findings(self) -> list[Finding]:
        """What is wrong with the import as a whole."""
        found = language_findings(self.language) if self.language else []
        found += [problem.finding() for problem in self.problems if problem.code in REFUSAL_CODES]
        if not self.used:
            counts = Counter(reason for one in self.journals for clip in one.clips for reason in clip.rejected)
            why = "; ".join(
                f"{pluralize(count, 'clip')} rejected as {reason}"
                + (f" ({REJECTION_MEANINGS[reason]})" if reason in REJECTION_MEANINGS else "")
                for reason, count in counts.most_common()
            )
            message = "no clip can be used" + (f": {why}" if why else "")
            cure = "fix the sources, or give other ones, then run the same command again."
            found.append(finding("import-empty", message, where=self.dataset, cure="" if self.problems else cure))
        elif self.left_out[0] > self.max_left_out:
            expected = f"at most {self.max_left_out:.0%} (--max-left-out)"
            found.append(finding("import-left-out", self.left_out[1], expected=expected, where=self.dataset))
        if self.doubled:
            copied = [
                f"{same:,} of {pluralize(clips, 'clip')} of {new} are in {old} too"
                for new, old, same, clips in self.doubled
            ]
            names = dict.fromkeys(old for _, old, *_ in self.doubled)
            flags = " ".join(f"--recording {shlex.quote(name)}" for name in names)
            copies = format_names([new for new, *_ in self.doubled])
            cure = (
                f"if {copies} replaces {format_names([*names])}, remove the older clips: "
                f"`voxgraft data remove {shlex.quote(str(self.dataset))} {flags}`. "
                "If two people read the same sentences, no action is needed."
            )
            found.append(finding("source-doubled", format_names(copied), where=self.dataset, cure=cure))
        if shared := self._find_shared_speaker_names():
            found.append(finding("speakers-same-name", format_names(shared), where=self.dataset))
        # `graft` refuses texts in another script; so early, it is still only a warning.
        used = [clip for one in self.journals for clip in one.clips if clip.is_used]
        own = [clip.text for clip in used if is_same_language(clip.language, self.language)]
        for item in check_text_script(self.language, own):
            cure = f"{item.cure} Then import again with --reimport."
            found.append(replace(item, level="warning", where=str(self.dataset), cure=cure))
        # Digits stay in the text where no rule says how the language reads them.
        if left := [clip.text for clip in used if any(map(str.isdecimal, clip.text))]:
            shown = next(word for word in left[0].split() if any(map(str.isdecimal, word)))
            kept = f"{len(left):,} of {pluralize(len(used), 'text')} keep digits, the first {shown!r:.40}"
            cure = f"{CATALOGUE['text-digits'].cure} Then import again with --reimport."
            found.append(finding("text-digits", kept, where=self.dataset, cure=cure))
        return found

    def _find_shared_speaker_names(self) -> list[str]:
        """Speakers that --speaker-from has named after folders or files of several places."""
        folders = {journal.recording: journal.source_folder for journal in self.journals}
        places: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for one in self.source_results:
            if one.speaker_origin.endswith(SET_BY_SPEAKER_FROM) and one.recording in folders:
                place = tuple(part for part in folders[one.recording].parts if not re.fullmatch(PARTS, part))
                for name in one.speakers:
                    places[name].add(place)
        found = []
        for name, own in places.items():
            if len(own) > 1:
                first, second = ("/".join(place[-2:]) for place in sorted(own)[:2])
                found.append(f"{name} is in {len(own)} folders, such as {first} and {second}")
        return found

    def to_json(self) -> dict[str, Any]:
        recordings = [
            {
                "recording": one.recording,
                "clips": one.clips,
                "seconds": round(one.seconds, 3),
                "rejected": one.rejected,
                "failed": one.failed,
            }
            for one in self.source_results
        ]
        return {
            "dataset": str(self.dataset),
            "new_clips": self.new_clips,
            "recordings": recordings,
            "known": self.plan.known,
            "used_clips": self.used,
            "left_out": round(self.left_out[0], 4),
            "doubled": [{"new": new, "old": old, "same": same} for new, old, same, _ in self.doubled],
            "speakers": {one.recording: list(one.speakers) for one in self.source_results},
            "problems": [problem.to_json() for problem in self.problems],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.source_results:
            rows = tuple(
                (
                    one.recording,
                    f"{one.clips:,}",
                    f"{one.seconds / 60:.1f}",
                    f"{one.rejected:,}",
                    "failed" if one.failed else "imported",
                )
                for one in self.source_results
            )
            lines.append(Table(("source", "clips", "minutes", "rejected", "state"), rows))
        if before := [name for name in self.plan.known if name not in self.plan.copies]:
            lines.append(f"imported before, unchanged: {', '.join(before[:MAX_SHOWN_PROBLEMS])}")
        for original, copy in list(self.plan.copies.items())[:MAX_SHOWN_PROBLEMS]:
            lines.append(f"{copy} is a copy of the source {original}; it is used once")
        lines.append(f"{pluralize(self.new_clips, 'new clip')} in {self.dataset / 'manifest.jsonl'}")
        # The speakers, why they are taken for that, and how to change it.
        by: dict[str, list[SourceImportResult]] = defaultdict(list)
        for one in self.source_results:
            if one.speakers:
                by[one.speaker_origin].append(one)
        for why, own in by.items():
            names = list(dict.fromkeys(name for one in own for name in one.speakers))
            clips = pluralize(sum(one.clips for one in own), "clip")
            shown = format_names(names, MAX_SPEAKERS_SHOWN)
            lines.append(f"{pluralize(len(names), 'speaker')} for {clips} ({why}): named {shown}")
        if by:
            lines.append(
                "to change the speakers: --speaker NAME (one person), or --speaker-from folder, recording or file, "
                "each with --reimport for imported clips (in run.yaml: data.speaker, data.speaker_from)"
            )
        if self.source_results or self.problems:
            # Whole paths: every list may be called metadata.csv.
            folders = {journal.recording: journal.source_folder for journal in self.journals}
            located = {
                problem: replace(problem, file=str(folders.get(one.recording, Path()) / problem.file))
                for one in self.source_results
                for problem in one.problems
            }
            problems = [located.get(problem, problem) for problem in self.problems]
            lines += format_problems(problems, self.dataset / PROBLEMS_FILE)
            if rejected := sum(one.rejected for one in self.source_results):
                clips = pluralize(sum(one.clips for one in self.source_results), "clip")
                info = f"voxgraft data info {shlex.quote(str(self.dataset))}"
                lines.append(f"rejected: {rejected:,} of {clips}; `{info}` counts the reasons")
        found = [item for item in self.findings() if item.code not in REFUSAL_CODES]
        if self.left_out[0] and not any(item.level == "error" for item in found):
            lines.append(f"{self.left_out[1]}; --max-left-out allows {self.max_left_out:.0%}")
        return [*lines, *(line for item in found for line in item.lines())]


def data_import(settings: DataImportSettings, again: ReimportPolicy | None = None) -> DataImportResult:
    """Find sources, cut them, and write the manifest."""
    again = again or build_reimport_policy(settings)
    if settings.media is not None and len(settings.sources) != 1:
        message = f"--media gives one file for {len(settings.sources)} sources"
        cure = "give the one subtitle file that belongs to the recording, or omit --media."
        raise ConfigError("config-value", message, expected="one subtitle file", cure=cure)
    dataset = DatasetFolder(settings.dataset)
    sources, unused = find_sources(settings.sources, settings.language, settings.media, settings.encoding)
    options, results = build_import_options(settings), list[SourceImportResult]()
    with dataset.locked():
        dataset.reconcile_published()
        unused = _mention_imported_lists(dataset, unused, sources)
        plan = _plan_import(dataset, sources, options, again, verify=again.verify)
        with progress.progress_task("importing sources", len(plan.tasks)) as advance:
            for result in _run_import_tasks(dataset, plan.tasks, options, settings.workers or os.cpu_count() or 1):
                results.append(result)
                advance(1)
        results.sort(key=lambda result: result.recording)
        new_clips = dataset.publish()
        own = {*(task.recording for task in plan.tasks), *plan.known, *plan.refused}
        journals = tuple(journal for journal in dataset.journals() if journal.recording in own)
        problems = store_scan_problems(dataset, settings.sources, (*unused, *plan.problems, *plan.notes))
        write_problems_file(dataset)
        used = sum(clip.is_used for clip in dataset.clips())
        doubled = tuple(doubled_sources(dataset, results))
    return DataImportResult(
        settings.dataset,
        plan,
        tuple(results),
        journals,
        new_clips,
        (*problems, *(problem for one in results for problem in one.problems)),
        used,
        compute_import_loss(journals, unused),
        settings.max_left_out,
        doubled,
        settings.language,
    )


def build_reimport_policy(settings: DataImportSettings) -> ReimportPolicy:
    """Which sources are imported again, and which options must not be ignored silently."""
    # These settings say where things are and how many run at once: they do not change clips.
    asked = settings.model_fields_set - {"dataset", "sources", "media", "family", "workers", "reimport", "max_left_out"}
    return ReimportPolicy(settings.reimport, asked=frozenset(asked))


def build_import_options(settings: DataImportSettings) -> ImportOptions:
    """Import options from the settings."""
    longest = settings.longest
    if longest is None:  # one or two breaths of speech, if the family can hold that many codes
        longest = DEFAULT_MAX_CLIP_SECONDS
        if settings.family is not None:
            kind = get_family(settings.family)
            max_codes = MAX_CODES_SHARE * kind.sequence_spec(ASSUMED_VOCABULARY_SIZE).max_codes
            longest = min(longest, max_codes / kind.code_hz)
    if settings.shortest >= longest:
        found = f"shortest is {settings.shortest} s and longest {longest:g} s"
        cure = "reduce --shortest, or increase --longest (if --longest is not set, --family can limit the length)."
        raise ConfigError("config-value", found, expected="--shortest below --longest", cure=cure)
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
