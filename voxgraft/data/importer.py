"""Brings one source in: its texts cleaned, its sound cut, each clip written and noted before the next.

Killed at any instant it goes on where it was: what is noted is there, and is not made again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from voxgraft.audio.files import AudioSamples, MediaReader, write_clip_audio
from voxgraft.audio.vad import RollingAudioBuffer, SileroVad
from voxgraft.core.errors import AudioError, FileError, VoxgraftError, WriteError
from voxgraft.core.results import format_names
from voxgraft.data.folder import DatasetFolder, ImportJournal, delete_file, read_import_journal
from voxgraft.data.manifest import ManifestClip, SourceProblem
from voxgraft.data.segment import NO_PAUSE, TOO_LONG, TOO_SHORT, AudioSegment, CutOptions, cut_segments
from voxgraft.data.sources import AudioStamp, ImportSource
from voxgraft.data.subtitles import Cue, clean_cues, dedupe_rolling_captions, read_subtitles
from voxgraft.data.tables import (
    TranscriptRow,
    find_audio_file,
    infer_recordings,
    read_arrow_rows,
    read_sidecar_rows,
    read_transcript_list,
)
from voxgraft.text.normalize import Normalizer, build_normalizer

MAX_ROW_SECONDS = 300.0
"""Longer ones are whole recordings, and one text does not say what is where."""


class HasSampleRate(Protocol):
    """What is asked of the options."""

    @property
    def rate(self) -> int: ...


def read_row_audio(
    rows: Iterable[TranscriptRow], folder: Path, options: HasSampleRate, problems: list[SourceProblem], name: str
) -> Iterator[tuple[TranscriptRow, AudioSamples, MediaReader]]:
    """Each row with its sound; rows without any are told. Parts of files come last, by file and in their order."""
    parts: dict[str, list[TranscriptRow]] = {}
    for row in rows:
        if row.data is None and find_audio_file(folder, row.audio) is None:
            problems.append(SourceProblem("media-missing", f"{row.audio} is not there", *_row_location(name, row)))
        elif row.is_part:
            own = "" if row.data is None else f"\0{row.line}"  # sounds inside a list may all have one name
            parts.setdefault(row.audio + own, []).append(row)
        else:
            try:
                media = _open_row_media(row, folder, options.rate)
                yield row, _read_whole_media(media), media
            except VoxgraftError as error:
                problems.append(SourceProblem.of(error, *_row_location(name, row)))
    for group in parts.values():
        yield from _read_row_parts(sorted(group, key=lambda row: row.start), folder, options, problems, name)


def _open_row_media(row: TranscriptRow, folder: Path, rate: int) -> MediaReader:
    path = Path(row.audio) if row.data is not None else find_audio_file(folder, row.audio)
    assert path is not None
    return MediaReader(path, rate, row.data)


def _read_whole_media(media: MediaReader) -> AudioSamples:
    blocks: list[AudioSamples] = []
    for block in media.blocks():
        blocks.append(block)
        if sum(map(len, blocks)) > MAX_ROW_SECONDS * media.rate:
            found = f"{media.path.name} is longer than {MAX_ROW_SECONDS:.0f} s, with one text for all of it"
            raise AudioError("audio-too-long", found, where=media.path)
    return np.concatenate(blocks)


def _row_location(name: str, row: TranscriptRow) -> tuple[str, int]:
    """Where something is wrong with a row: its line of the list, or its sound where there is no list."""
    return (name, row.line) if name else (row.audio, 0)


def _read_row_parts(
    rows: list[TranscriptRow], folder: Path, options: HasSampleRate, problems: list[SourceProblem], name: str
) -> Iterator[tuple[TranscriptRow, AudioSamples, MediaReader]]:
    try:
        media = _open_row_media(rows[0], folder, options.rate)
    except VoxgraftError as error:
        problems += [SourceProblem.of(error, *_row_location(name, row)) for row in rows]
        return
    tape = RollingAudioBuffer(media.blocks(), options.rate)
    for place, row in enumerate(rows):
        assert row.end is not None
        if row.end - row.start > MAX_ROW_SECONDS:
            found = f"a part of {row.end - row.start:,.0f} s, expected at most {MAX_ROW_SECONDS:.0f}"
            problems.append(SourceProblem("table-line", found, *_row_location(name, row)))
            continue
        try:
            tape.read_until(row.end, keep_from=row.start - 1.0)
        except VoxgraftError as error:
            problems += [SourceProblem.of(error, *_row_location(name, other)) for other in rows[place:]]
            return
        yield row, tape.samples(row.start, row.end), media


MIN_CLIP_SECONDS = 0.05
MAX_MISSING_SECONDS = 0.25
"""Where a recording ends so long before the end that a list gives for a part of it, words are missing."""
_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
"""What ends the name of one part of a dataset in several parquet files."""
CUT_VERSION = 2
"""Of how clips are cut: a source that was half cut in another way is begun anew."""

_CUT_FIELDS = ("audio", "start", "end", "seconds", "text_as_found")
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
        then = {**usual, **_options_by_flag({**ImportOptions(self.language).to_json(), **before})}
        now = self.flags()
        chosen = [name for name in now if names is None or name in names]
        return {name: (then[name], now[name]) for name in chosen if then[name] != now[name]}

    def flags(self) -> dict[str, Any]:
        """Values by the names of the settings that they come from."""
        return _options_by_flag(self.to_json())


def _options_by_flag(values: Mapping[str, Any]) -> dict[str, Any]:
    given = values.get("cut")
    cut = {**asdict(CutOptions()), **(given if isinstance(given, Mapping) else {})}
    own = {name: value for name, value in values.items() if name not in ("cut", "ending")}
    lengths = {name: cut[name] for name in ("shortest", "longest", "lead", "tail", "join_gap")}
    return {**own, "format": values["ending"], **lengths, "cut": "pauses" if cut["refine"] else "times"}


@dataclass(frozen=True, slots=True)
class SourceImportResult:
    """What became of one source."""

    recording: str
    clips: int
    seconds: float
    rejected: int
    problems: tuple[SourceProblem, ...] = ()
    failed: bool = False
    speakers: tuple[str, ...] = ()
    speaker_origin: str = ""
    """Where the names of the speakers come from, in words."""


@dataclass(frozen=True, slots=True)
class ImportTask:
    """One source that is to be brought in, and what is known of it."""

    source: ImportSource
    recording: str
    mark: str
    sounds: Mapping[str, AudioStamp | None] = field(default_factory=dict)
    previous: tuple[ManifestClip, ...] = ()
    """Its clips in the manifest, where it was imported before: what is the same keeps its id."""
    damaged: frozenset[str] = frozenset()
    """Clips of a published source whose files have to be written again."""


def import_source(dataset: DatasetFolder, task: ImportTask, options: ImportOptions) -> SourceImportResult:
    """Bring one source in, or what is missing of it. A source that fails is told as a problem."""
    source, recording = task.source, task.recording
    with dataset.worker_lock():
        journal = read_import_journal(dataset.journal_path(recording))
        rules = {"cutting": CUT_VERSION, "text": _normalizer_for_options(options.language, options).version}
        state = {**source.to_json(), "fingerprint": task.mark, "options": options.to_json(), "rules": rules}
        if journal.source != state or journal.find_changed_audio(task.sounds):
            # Clips that the manifest has stay on the disk until it has others: a kill must not leave it without them.
            again = journal.is_reimport or journal.is_published
            before = [] if again else journal.clips
            journal.begin(state, (path.name for path in source.files), task.sounds, again=again)
            for clip in before:
                delete_file(dataset.folder / clip.audio)
        whole = journal.ids - {clip.id for clip in journal.damaged(dataset.folder)}
        if not journal.is_done or len(whole) < len(journal.ids):
            problems: list[SourceProblem] = []
            try:
                ids = _ClipIdAllocator(recording, task.previous if journal.is_reimport else ())
                for clip, cut in _iter_source_clips(dataset, source, ids, options, problems):
                    _write_and_journal_clip(dataset, journal, clip, cut, options, whole)
            except WriteError:  # no fault of the source, and no other source would do better
                raise
            except VoxgraftError as error:
                journal.fail((*problems, SourceProblem.of(error, str(source.text.absolute()))))
                return SourceImportResult(recording, len(journal.clips), 0.0, 0, tuple(journal.problems), failed=True)
            if not journal.is_done:
                journal.finish(problems)
        clips = journal.clips
        return SourceImportResult(
            recording,
            len(clips),
            sum(clip.seconds for clip in clips),
            sum(not clip.is_used for clip in clips),
            tuple(journal.problems),
            speakers=tuple(dict.fromkeys(clip.speaker for clip in clips)),
            speaker_origin=_describe_speaker_origin(source, recording, clips, options),
        )


class _ClipIdAllocator:
    """Ids of the clips of one source. A clip that was there before has the id that it had."""

    def __init__(self, recording: str, previous: Sequence[ManifestClip]) -> None:
        self.recording = recording
        self._known: dict[tuple[str, float], list[ManifestClip]] = defaultdict(list)
        for clip in previous:
            self._known[clip.text_as_found, clip.start].append(clip)
        numbers = [int(number) for clip in previous if (number := clip.id.rpartition("-")[2]).isdecimal()]
        self._last = max(numbers, default=0)

    def next_id(self, text_as_found: str, start: float, recording: str) -> str:
        """The id of the next clip: by its text and its place, and if there are several by its recording."""
        if same := self._known.get((text_as_found, start)):
            clip = next((clip for clip in same if clip.recording == recording), same[0])
            same.remove(clip)
            return clip.id
        self._last += 1
        return f"{self.recording}-{self._last:05d}"


def _default_speaker(source: ImportSource, recording: str) -> str:
    """Who speaks in a list or a folder that does not say it: one person, known by the name of the source."""
    return source.tree[0] if source.tree else _SHARD_SUFFIX.sub("", recording)


def _describe_speaker_origin(
    source: ImportSource, recording: str, clips: Sequence[ManifestClip], options: ImportOptions
) -> str:
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


def rewrite_damaged_clips(dataset: DatasetFolder, task: ImportTask) -> SourceImportResult:
    """Write the files of single clips of a published source again, cut exactly as before."""
    source, recording = task.source, task.recording
    with dataset.worker_lock():
        journal = read_import_journal(dataset.journal_path(recording))
        before = {clip.id: clip for clip in journal.clips if clip.id in task.damaged}
        left, problems = dict(before), []
        try:
            options = _import_options_from_json(journal.source["options"])
            for clip, cut in _iter_source_clips(
                dataset, source, _ClipIdAllocator(recording, journal.clips), options, []
            ):
                old = left.get(clip.id)
                if old is not None and all(getattr(old, name) == getattr(clip, name) for name in _CUT_FIELDS):
                    journal.add(old, write_clip_audio(dataset.folder / old.audio, cut.samples, options.rate))
                    del left[clip.id]
                if not left:
                    break
        except WriteError:
            raise
        except VoxgraftError as error:
            problems.append(SourceProblem.of(error, str(source.text.absolute())))
        except (KeyError, TypeError, ValueError):  # options of another version
            pass
        if made := sorted(before.keys() - left.keys()):
            problems.append(
                SourceProblem(
                    "clip-remade", f"{len(made):,} damaged: {format_names(made)}", str(source.text.absolute())
                )
            )
        if left:
            problems.append(
                SourceProblem(
                    "clip-damaged", f"{len(left):,} damaged: {format_names(sorted(left))}", str(source.text.absolute())
                )
            )
        clips = journal.clips
        seconds = sum(clip.seconds for clip in clips)
        return SourceImportResult(
            recording, len(clips), seconds, sum(not clip.is_used for clip in clips), tuple(problems)
        )


def _import_options_from_json(values: dict[str, Any]) -> ImportOptions:
    """As `ImportOptions.to_json` wrote them."""
    return ImportOptions(**{**values, "cut": CutOptions(**values["cut"])})


def _write_and_journal_clip(
    dataset: DatasetFolder,
    journal: ImportJournal,
    clip: ManifestClip,
    cut: AudioSegment,
    options: ImportOptions,
    whole: Collection[str],
) -> None:
    """Write a clip, then note it. What was noted before the process was killed is whole."""
    if clip.id not in whole:
        journal.add(clip, write_clip_audio(dataset.folder / clip.audio, cut.samples, options.rate))


@dataclass(frozen=True, slots=True)
class _SourceSegment:
    """A cut with what its source says of it."""

    cut: AudioSegment
    speaker: str
    recording: str
    language: str
    file: str
    """That its text comes from."""


def _iter_source_clips(
    dataset: DatasetFolder,
    source: ImportSource,
    ids: _ClipIdAllocator,
    options: ImportOptions,
    problems: list[SourceProblem],
) -> Iterator[tuple[ManifestClip, AudioSegment]]:
    """Every clip of a source with its sound, in an order that is always the same."""
    found = _segments_from_subtitles if source.kind == "subtitles" else _segments_from_list
    for item in found(source, ids.recording, options, problems):
        cut, file, lines = item.cut, item.file, (item.cut.cues[0].line, item.cut.cues[-1].last_line)
        seconds = len(cut.samples) / options.rate
        if seconds < MIN_CLIP_SECONDS:
            told = f"{cut.text!r:.100} at {cut.start:.1f} s: the recording is over"
            problems.append(SourceProblem("media-short", told, file, *lines))
            continue
        text = _normalizer_for_options(item.language, options).normalise(cut.text).text
        if not text:
            problems.append(SourceProblem("subtitle-nothing-said", f"{cut.text!r:.100}", file, *lines))
        else:
            clip_id = ids.next_id(cut.original_text, round(cut.start, 4), item.recording)
            clip = ManifestClip(
                id=clip_id,
                audio=dataset.clip_path(ids.recording, clip_id, options.ending),
                seconds=round(seconds, 4),
                text=text,
                language=item.language,
                speaker=options.speaker or item.speaker,
                recording=item.recording,
                sample_rate=options.rate,
                text_as_found=cut.original_text,
                start=round(cut.start, 4),
                end=round(cut.start + seconds, 4),
                source=f"{file}:{lines[0]}",
                rejected=cut.reasons,
            )
            yield clip, cut


@lru_cache(maxsize=64)
def _normalizer_for_options(language: str, options: ImportOptions) -> Normalizer:
    return build_normalizer(language, fold_homophones=options.fold_homophones)


def _segments_from_subtitles(
    source: ImportSource, recording: str, options: ImportOptions, problems: list[SourceProblem]
) -> Iterator[_SourceSegment]:
    assert source.media is not None
    name = source.text.name
    read = read_subtitles(source.text, options.encoding)
    problems += read.problems
    cues, unsaid = clean_cues(read.cues, options.language, name)
    problems += unsaid
    if options.rolling:
        cues, again = dedupe_rolling_captions(cues, name)
        problems += again
    if not cues:
        raise FileError("subtitle-none", f"nothing is said in {name}: {read.cues[0].text!r:.80}", where=source.text)
    media = MediaReader(source.media, options.rate)
    voice = SileroVad(options.rate) if options.activity == "silero" else None
    how = replace(options.cut, language=options.language)
    for cut in cut_segments(RollingAudioBuffer(media.blocks(), options.rate, voice), cues, how):
        label = cut.cues[0].speaker
        who = source.media.resolve().parent.name if options.speaker_from == "folder" else recording
        yield _SourceSegment(cut, f"{recording}:{label}" if label else who, recording, options.language, name)
    problems += _decode_problems(media, source.media.name)


def _decode_problems(media: MediaReader, name: str) -> list[SourceProblem]:
    """What could not be decoded of a file."""
    if not media.damaged:
        return []
    found = f"{len(media.damaged):,} packets could not be decoded, the first at {media.damaged[0]:.1f} s"
    return [SourceProblem("media-damaged", found, name)]


def _segments_from_list(
    source: ImportSource, recording: str, options: ImportOptions, problems: list[SourceProblem]
) -> Iterator[_SourceSegment]:
    """Clips of a list: as long as its rows say, since they were cut before."""
    folder = source.text if source.kind == "folder" else source.text.parent
    rows: Iterable[TranscriptRow] = _deduplicate_rows(source, options, problems)
    known: dict[int, str] = {}
    if source.kind != "columns":  # rows that hold their sound are never all in memory
        rows = list(rows)
        known = infer_recordings(rows)
    # Rows of a folder have no line of a list: the sound itself is the place of what is wrong with it.
    listed = "" if source.kind == "folder" else source.text.name
    for row, samples, media in read_row_audio(rows, folder, options, problems, listed):
        end = row.start + len(samples) / options.rate
        file, line = (row.audio, 1) if source.kind == "folder" else (source.text.name, row.line)
        cue = Cue(row.start, end, row.text, line, line, original_text=row.original_text)
        is_whole = row.end is None or row.end - end <= MAX_MISSING_SECONDS
        reasons = (*_row_length_reasons(cue, options.cut), *(() if is_whole else (NO_PAUSE,)))
        cut = AudioSegment(samples, cue.start, cue.end, row.text, (cue,), reasons)
        own = known.get(row.line) or row.recording or row.speaker or f"{recording}-{row.line}"
        own = recording if source.tree else own  # the chapter
        who = {
            "auto": _default_speaker(source, recording),
            "folder": media.path.resolve().parent.name,
            "recording": own,
            "file": media.path.stem,
        }
        speaker = row.speaker or who[options.speaker_from]
        yield _SourceSegment(cut, speaker, own, row.language or options.language, file)
        problems += _decode_problems(media, row.audio)


def _deduplicate_rows(
    source: ImportSource, options: ImportOptions, problems: list[SourceProblem]
) -> Iterator[TranscriptRow]:
    """Rows that stand there for the first time. One recording cannot have two texts: the first counts."""
    seen: dict[tuple[str, float], TranscriptRow] = {}
    for row in _read_source_rows(source, options):
        if isinstance(row, SourceProblem):
            problems.append(row)
            continue
        first = seen.setdefault((row.audio, row.start), replace(row, data=None))
        if first.line != row.line and row.data is None and row.end == first.end:
            code = "table-duplicate" if row.text == first.text else "table-double-id"
            found = f"{row.audio} is on line {first.line} already: {first.text!r:.60}, and here {row.text!r:.60}"
            problems.append(SourceProblem(code, found, source.text.name, row.line))
            continue
        yield row


def _read_source_rows(source: ImportSource, options: ImportOptions) -> Iterator[TranscriptRow | SourceProblem]:
    if source.kind == "columns":
        return read_arrow_rows(source.text)
    if source.kind == "folder":
        return read_sidecar_rows(source.text, source.files, options.encoding)
    return read_transcript_list(source.text, options.encoding)


def _row_length_reasons(cue: Cue, options: CutOptions) -> tuple[str, ...]:
    seconds = cue.end - cue.start
    if seconds > options.longest:
        return (TOO_LONG,)
    return (TOO_SHORT,) if seconds < options.shortest else ()
