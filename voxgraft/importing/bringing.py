"""Brings one source in: its texts cleaned, its sound cut, each clip written and noted before the next.

Killed at any instant it goes on where it was: what is noted is there, and is not made again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from voxgraft.amounts import first_of
from voxgraft.errors import FileError, VoxgraftError, WriteError
from voxgraft.importing.cleaning import clean_cues
from voxgraft.importing.columns import read_columns
from voxgraft.importing.cues import Cue
from voxgraft.importing.cutting import NO_PAUSE, TOO_LONG, TOO_SHORT, Cut, cut_cues
from voxgraft.importing.dataset import Dataset, Journal, discard, read_journal
from voxgraft.importing.edges import CutOptions
from voxgraft.importing.lists import read_list, side_car_rows
from voxgraft.importing.manifest import ManifestClip
from voxgraft.importing.media import Media
from voxgraft.importing.problems import Problem
from voxgraft.importing.rolling import unrolled
from voxgraft.importing.row_cuts import row_cuts
from voxgraft.importing.rows import Row, recordings_of
from voxgraft.importing.sound_files import write_clip
from voxgraft.importing.sources import SoundMark, Source
from voxgraft.importing.subtitles import read_subtitles
from voxgraft.importing.tape import Tape
from voxgraft.importing.voice_model import VoiceModel
from voxgraft.normalising import Normaliser, normaliser_of

__all__ = ["Brought", "ImportOptions", "Task", "bring", "remake"]

SHORTEST_SECONDS = 0.05
SHORT_SECONDS = 0.25
"""Where a recording ends so long before the end that a list gives for a part of it, words are missing."""
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
"""What ends the name of one part of a dataset in several parquet files."""
VERSION = 2
"""Of how clips are cut: a source that was half cut in another way is begun anew."""

_CUT = ("audio", "start", "end", "seconds", "text_as_found")
"""What must agree before a clip's file is written again."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How sources are brought in; a source that was half done with others is begun anew."""

    language: str
    rate: int = 24_000
    ending: str = "flac"
    encoding: str | None = None
    speaker: str | None = None
    speaker_from: str = "auto"
    """Who speaks where the source does not say it: `auto`, or by `folder`, `recording` or `file`."""
    rolling: bool = True
    fold_homophones: bool = False
    activity: str = "energy"
    """What tells speech from pauses: `energy`, or `silero` beside it."""
    cut: CutOptions = field(default_factory=CutOptions)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def differences(
        self, before: Mapping[str, Any], names: Collection[str] | None = None
    ) -> dict[str, tuple[Any, Any]]:
        """Options that were others when a source was imported, as (then, now), by the names of their flags.

        Of `names` alone, where given. What a journal of an older version does not have was the default.
        """
        usual = ImportOptions(self.language).flags()
        then = {**usual, **_flags({**ImportOptions(self.language).to_json(), **before})}
        now = self.flags()
        chosen = [name for name in now if names is None or name in names]
        return {name: (then[name], now[name]) for name in chosen if then[name] != now[name]}

    def flags(self) -> dict[str, Any]:
        """Values by the names of the settings that they come from."""
        return _flags(self.to_json())


def _flags(values: Mapping[str, Any]) -> dict[str, Any]:
    given = values.get("cut")
    cut = {**asdict(CutOptions()), **(given if isinstance(given, Mapping) else {})}
    own = {name: value for name, value in values.items() if name not in ("cut", "ending")}
    lengths = {name: cut[name] for name in ("shortest", "longest", "lead", "tail", "join_gap")}
    return {**own, "format": values["ending"], **lengths, "cut": "pauses" if cut["refine"] else "times"}


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of one source."""

    recording: str
    clips: int
    seconds: float
    rejected: int
    problems: tuple[Problem, ...] = ()
    failed: bool = False
    speakers: tuple[str, ...] = ()
    speakers_by: str = ""
    """Where the names of the speakers come from, in words."""


@dataclass(frozen=True, slots=True)
class Task:
    """One source that is to be brought in, and what is known of it."""

    source: Source
    recording: str
    mark: str
    sounds: Mapping[str, SoundMark | None] = field(default_factory=dict)
    previous: tuple[ManifestClip, ...] = ()
    """Its clips in the manifest, where it was imported before: what is the same keeps its id."""
    damaged: frozenset[str] = frozenset()
    """Clips of a published source whose files have to be written again."""


def bring(dataset: Dataset, task: Task, options: ImportOptions) -> Brought:
    """Bring one source in, or what is missing of it. A source that fails is told as a problem."""
    source, recording = task.source, task.recording
    with dataset.worked_on():
        journal = read_journal(dataset.journal_path(recording))
        rules = {"cutting": VERSION, "text": _normaliser(options.language, options).version}
        state = {**source.to_json(), "fingerprint": task.mark, "options": options.to_json(), "rules": rules}
        if journal.source != state or journal.other_sounds(task.sounds):
            # Clips that the manifest has stay on the disk until it has others: a kill must not leave it without them.
            again = journal.is_again or journal.is_published
            before = [] if again else journal.clips
            journal.begin(state, (path.name for path in source.files), task.sounds, again=again)
            for clip in before:
                discard(dataset.folder / clip.audio)
        whole = journal.ids - {clip.id for clip in journal.damaged(dataset.folder)}
        if not journal.is_done or len(whole) < len(journal.ids):
            problems: list[Problem] = []
            try:
                ids = _Ids(recording, task.previous if journal.is_again else ())
                for clip, cut in _clips(dataset, source, ids, options, problems):
                    _keep(dataset, journal, clip, cut, options, whole)
            except WriteError:  # no fault of the source, and no other source would do better
                raise
            except VoxgraftError as error:
                journal.fail((*problems, Problem.of(error, str(source.text.absolute()))))
                return Brought(recording, len(journal.clips), 0.0, 0, tuple(journal.problems), failed=True)
            if not journal.is_done:
                journal.finish(problems)
        clips = journal.clips
        return Brought(
            recording,
            len(clips),
            sum(clip.seconds for clip in clips),
            sum(not clip.is_used for clip in clips),
            tuple(journal.problems),
            speakers=tuple(dict.fromkeys(clip.speaker for clip in clips)),
            speakers_by=_speakers_by(source, recording, clips, options),
        )


class _Ids:
    """Ids of the clips of one source. A clip that was there before has the id that it had."""

    def __init__(self, recording: str, previous: Sequence[ManifestClip]) -> None:
        self.recording = recording
        self._known: dict[tuple[str, float], list[ManifestClip]] = defaultdict(list)
        for clip in previous:
            self._known[clip.text_as_found, clip.start].append(clip)
        numbers = [int(number) for clip in previous if (number := clip.id.rpartition("-")[2]).isdecimal()]
        self._last = max(numbers, default=0)

    def next(self, text_as_found: str, start: float, recording: str) -> str:
        """The id of the next clip: by its text and its place, and if there are several by its recording."""
        if same := self._known.get((text_as_found, start)):
            clip = next((clip for clip in same if clip.recording == recording), same[0])
            same.remove(clip)
            return clip.id
        self._last += 1
        return f"{self.recording}-{self._last:05d}"


def _default_speaker(source: Source, recording: str) -> str:
    """Who speaks in a list or a folder that does not say it: one person, known by the name of the source."""
    return source.tree[0] if source.tree else _SHARD.sub("", recording)


def _speakers_by(source: Source, recording: str, clips: Sequence[ManifestClip], options: ImportOptions) -> str:
    if options.speaker:
        return "as --speaker says"
    if options.speaker_from != "auto":
        return f"one for each {options.speaker_from}, as --speaker-from says"
    if source.kind == "subtitles":
        has_labels = any(clip.speaker != recording for clip in clips)
        return "labels in the subtitles" if has_labels else "one for each recording with subtitles"
    if any(clip.speaker != _default_speaker(source, recording) for clip in clips):
        return "the speaker column"
    if source.kind == "folder":
        return "names of the folders"
    return "no speaker column: one for the whole list"


def remake(dataset: Dataset, task: Task) -> Brought:
    """Write the files of single clips of a published source again, cut exactly as before."""
    source, recording = task.source, task.recording
    with dataset.worked_on():
        journal = read_journal(dataset.journal_path(recording))
        before = {clip.id: clip for clip in journal.clips if clip.id in task.damaged}
        left, problems = dict(before), []
        try:
            options = _options_from(journal.source["options"])
            for clip, cut in _clips(dataset, source, _Ids(recording, journal.clips), options, []):
                old = left.get(clip.id)
                if old is not None and all(getattr(old, name) == getattr(clip, name) for name in _CUT):
                    journal.add(old, write_clip(dataset.folder / old.audio, cut.samples, options.rate))
                    del left[clip.id]
                if not left:
                    break
        except WriteError:
            raise
        except VoxgraftError as error:
            problems.append(Problem.of(error, str(source.text.absolute())))
        except (KeyError, TypeError, ValueError):  # options of another version
            pass
        if made := sorted(before.keys() - left.keys()):
            problems.append(
                Problem("clip-remade", f"{len(made):,} damaged: {first_of(made)}", str(source.text.absolute()))
            )
        if left:
            problems.append(
                Problem("clip-damaged", f"{len(left):,} damaged: {first_of(sorted(left))}", str(source.text.absolute()))
            )
        clips = journal.clips
        seconds = sum(clip.seconds for clip in clips)
        return Brought(recording, len(clips), seconds, sum(not clip.is_used for clip in clips), tuple(problems))


def _options_from(values: dict[str, Any]) -> ImportOptions:
    """As `ImportOptions.to_json` wrote them."""
    return ImportOptions(**{**values, "cut": CutOptions(**values["cut"])})


def _keep(
    dataset: Dataset, journal: Journal, clip: ManifestClip, cut: Cut, options: ImportOptions, whole: Collection[str]
) -> None:
    """Write a clip, then note it. What was noted before the process was killed is whole."""
    if clip.id not in whole:
        journal.add(clip, write_clip(dataset.folder / clip.audio, cut.samples, options.rate))


@dataclass(frozen=True, slots=True)
class _Sounding:
    """A cut with what its source says of it."""

    cut: Cut
    speaker: str
    recording: str
    language: str
    file: str
    """That its text comes from."""


def _clips(
    dataset: Dataset, source: Source, ids: _Ids, options: ImportOptions, problems: list[Problem]
) -> Iterator[tuple[ManifestClip, Cut]]:
    """Every clip of a source with its sound, in an order that is always the same."""
    found = _subtitle_cuts if source.kind == "subtitles" else _list_cuts
    for item in found(source, ids.recording, options, problems):
        cut, file, lines = item.cut, item.file, (item.cut.cues[0].line, item.cut.cues[-1].last_line)
        seconds = len(cut.samples) / options.rate
        if seconds < SHORTEST_SECONDS:
            told = f"{cut.text!r:.100} at {cut.start:.1f} s: the recording is over"
            problems.append(Problem("media-short", told, file, *lines))
            continue
        text = _normaliser(item.language, options).normalise(cut.text).text
        if not text:
            problems.append(Problem("subtitle-nothing-said", f"{cut.text!r:.100}", file, *lines))
        else:
            clip_id = ids.next(cut.as_found, round(cut.start, 4), item.recording)
            clip = ManifestClip(
                id=clip_id,
                audio=dataset.clip_path(ids.recording, clip_id, options.ending),
                seconds=round(seconds, 4),
                text=text,
                language=item.language,
                speaker=options.speaker or item.speaker,
                recording=item.recording,
                sample_rate=options.rate,
                text_as_found=cut.as_found,
                start=round(cut.start, 4),
                end=round(cut.start + seconds, 4),
                source=f"{file}:{lines[0]}",
                rejected=cut.reasons,
            )
            yield clip, cut


@lru_cache(maxsize=64)
def _normaliser(language: str, options: ImportOptions) -> Normaliser:
    return normaliser_of(language, fold_homophones=options.fold_homophones)


def _subtitle_cuts(
    source: Source, recording: str, options: ImportOptions, problems: list[Problem]
) -> Iterator[_Sounding]:
    assert source.media is not None
    name = source.text.name
    read = read_subtitles(source.text, options.encoding)
    problems += read.problems
    cues, unsaid = clean_cues(read.cues, options.language, name)
    problems += unsaid
    if options.rolling:
        cues, again = unrolled(cues, name)
        problems += again
    if not cues:
        raise FileError("subtitle-none", f"nothing is said in {name}: {read.cues[0].text!r:.80}", where=source.text)
    media = Media(source.media, options.rate)
    voice = VoiceModel(options.rate) if options.activity == "silero" else None
    how = replace(options.cut, language=options.language)
    for cut in cut_cues(Tape(media.blocks(), options.rate, voice), cues, how):
        label = cut.cues[0].speaker
        who = source.media.resolve().parent.name if options.speaker_from == "folder" else recording
        yield _Sounding(cut, f"{recording}:{label}" if label else who, recording, options.language, name)
    problems += _damage(media, source.media.name)


def _damage(media: Media, name: str) -> list[Problem]:
    """What could not be decoded of a file."""
    if not media.damaged:
        return []
    found = f"{len(media.damaged):,} packets could not be decoded, the first at {media.damaged[0]:.1f} s"
    return [Problem("media-damaged", found, name)]


def _list_cuts(source: Source, recording: str, options: ImportOptions, problems: list[Problem]) -> Iterator[_Sounding]:
    """Clips of a list: as long as its rows say, since they were cut before."""
    folder = source.text if source.kind == "folder" else source.text.parent
    rows: Iterable[Row] = _kept_rows(source, options, problems)
    known: dict[int, str] = {}
    if source.kind != "columns":  # rows that hold their sound are never all in memory
        rows = list(rows)
        known = recordings_of(rows)
    # Rows of a folder have no line of a list: the sound itself is the place of what is wrong with it.
    listed = "" if source.kind == "folder" else source.text.name
    for row, samples, media in row_cuts(rows, folder, options, problems, listed):
        end = row.start + len(samples) / options.rate
        file, line = (row.audio, 1) if source.kind == "folder" else (source.text.name, row.line)
        cue = Cue(row.start, end, row.text, line, line, as_found=row.as_found)
        is_whole = row.end is None or row.end - end <= SHORT_SECONDS
        reasons = (*_length_reasons(cue, options.cut), *(() if is_whole else (NO_PAUSE,)))
        cut = Cut(samples, cue.start, cue.end, row.text, (cue,), reasons)
        own = known.get(row.line) or row.recording or row.speaker or f"{recording}-{row.line}"
        own = recording if source.tree else own  # the chapter
        who = {
            "auto": _default_speaker(source, recording),
            "folder": media.path.resolve().parent.name,
            "recording": own,
            "file": media.path.stem,
        }
        speaker = row.speaker or who[options.speaker_from]
        yield _Sounding(cut, speaker, own, row.language or options.language, file)
        problems += _damage(media, row.audio)


def _kept_rows(source: Source, options: ImportOptions, problems: list[Problem]) -> Iterator[Row]:
    """Rows that stand there for the first time. One recording cannot have two texts: the first counts."""
    seen: dict[tuple[str, float], Row] = {}
    for row in _rows(source, options):
        if isinstance(row, Problem):
            problems.append(row)
            continue
        first = seen.setdefault((row.audio, row.start), replace(row, data=None))
        if first.line != row.line and row.data is None and row.end == first.end:
            code = "table-duplicate" if row.text == first.text else "table-double-id"
            found = f"{row.audio} is on line {first.line} already: {first.text!r:.60}, and here {row.text!r:.60}"
            problems.append(Problem(code, found, source.text.name, row.line))
            continue
        yield row


def _rows(source: Source, options: ImportOptions) -> Iterator[Row | Problem]:
    if source.kind == "columns":
        return read_columns(source.text)
    if source.kind == "folder":
        return side_car_rows(source.text, source.files, options.encoding)
    return read_list(source.text, options.encoding)


def _length_reasons(cue: Cue, options: CutOptions) -> tuple[str, ...]:
    seconds = cue.end - cue.start
    if seconds > options.longest:
        return (TOO_LONG,)
    return (TOO_SHORT,) if seconds < options.shortest else ()
