"""Imports one source into a dataset: clean its texts, cut its audio, write each clip and record it in the journal.

A clip is recorded only after its file is complete. An import that was killed therefore resumes at the next clip.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.audio.files import AUDIO_SUFFIXES, AudioSamples, MediaReader, write_clip_audio
from voxgraft.audio.metrics import RollingAudioBuffer, SileroVad
from voxgraft.core.errors import AudioError, FileError, VoxgraftError, WriteError
from voxgraft.core.languages import is_language_code
from voxgraft.core.results import format_names, pluralize
from voxgraft.data.folder import CLIPS_FOLDER, AudioStamp, DatasetFolder, delete_file, read_import_journal
from voxgraft.data.lists import (
    AUDIO_FOLDERS,
    TranscriptRow,
    infer_recordings,
    is_outside,
    match_audio_files,
    other_case_problems,
    read_arrow_rows,
    read_sidecar_rows,
    read_transcript_list,
)
from voxgraft.data.manifest import ManifestClip, SourceProblem
from voxgraft.data.names import FileMatch, Listings, describe_alike
from voxgraft.data.segment import NO_PAUSE, NO_SPEECH, NOT_FINITE, CutOptions, cut_segments, has_speech, length_reasons
from voxgraft.data.sources import ImportSource
from voxgraft.data.subtitles import Cue, build_encoding_fix, clean_cues, dedupe_rolling_captions, read_subtitles
from voxgraft.text.normalize import build_normalizer, normalize_marked_text
from voxgraft.text.spans import SpanError, closing_codes, split_spans

# A longer file is a whole recording: one text for all of it does not say what is spoken where.
MAX_ROW_SECONDS = 300.0
MIN_CLIP_SECONDS = 0.05
# If a recording ends this long before the end that a list states for a part of it, words are missing.
MAX_MISSING_SECONDS = 0.25
FIRST_LINE_CURE = (
    "if line 1 has the names of the columns, change them to audio and text. "
    "Otherwise add the recording, or remove the line."
)
# End of the name of one of several parquet files of a dataset.
_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
# Version of the cutting rules: a source that was half cut by another version starts over.
CUT_VERSION = 3

# Fields that must agree before the file of a damaged clip is written again.
_CUT_FIELDS = ("audio", "start", "end", "seconds", "text_as_found")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How sources are imported; a source that was half imported with other options starts over."""

    language: str
    rate: int = 24_000
    ending: str = "flac"
    encoding: str | None = None
    speaker: str | None = None
    speaker_from: str = "auto"
    """Who speaks where the source does not say: `auto`, or by `folder`, `recording` or `file`."""
    rolling: bool = True
    fold_homophones: bool = False
    activity: str = "energy"
    """Voice activity detection: `energy`, or `silero` in addition."""
    cut: CutOptions = field(default_factory=CutOptions)

    def differences(
        self, before: Mapping[str, Any], names: Collection[str] | None = None
    ) -> dict[str, tuple[Any, Any]]:
        """Options that differ from those of an earlier import, as (then, now), by the names of their flags.

        Restricted to `names` if given. What a journal of an older version lacks was the default.
        """
        then = _options_by_flag({**asdict(ImportOptions(self.language)), **before})
        now = _options_by_flag(asdict(self))
        chosen = [name for name in now if names is None or name in names]
        return {name: (then[name], now[name]) for name in chosen if then[name] != now[name]}


def _options_by_flag(values: Mapping[str, Any]) -> dict[str, Any]:
    given = values.get("cut")
    cut = {**asdict(CutOptions()), **(given if isinstance(given, Mapping) else {})}
    own = {name: value for name, value in values.items() if name not in ("cut", "ending")}
    lengths = {name: cut[name] for name in ("shortest", "longest", "lead", "tail", "join_gap")}
    return {**own, "format": values["ending"], **lengths, "cut": "pauses" if cut["refine"] else "times"}


@dataclass(frozen=True, slots=True)
class SourceImportResult:
    """Result of importing one source."""

    recording: str
    clips: int
    seconds: float
    rejected: int
    problems: tuple[SourceProblem, ...] = ()
    failed: bool = False
    speakers: tuple[str, ...] = ()
    speaker_origin: str = ""
    """Where the speaker names come from, in words."""


SET_BY_SPEAKER_FROM = "set by --speaker-from"


@dataclass(frozen=True, slots=True)
class ImportTask:
    """One source to import, and what is known about it."""

    source: ImportSource
    recording: str
    mark: str
    sounds: Mapping[str, AudioStamp | None] = field(default_factory=dict)
    previous: tuple[ManifestClip, ...] = ()
    """Its clips in the manifest from an earlier import: equal clips keep their ids."""
    damaged: frozenset[str] = frozenset()
    """Ids of published clips whose files must be written again."""


def import_source(dataset: DatasetFolder, task: ImportTask, options: ImportOptions) -> SourceImportResult:
    """Import one source, or what is missing of it. A failure is returned as a problem, not raised."""
    if task.damaged:
        return _rewrite_damaged_clips(dataset, task)
    source, recording = task.source, task.recording
    with dataset.worker_lock():
        journal = read_import_journal(dataset.journal_path(recording))
        normalizer = build_normalizer(options.language, fold_homophones=options.fold_homophones)
        rules = {"cutting": CUT_VERSION, "text": normalizer.version}
        state = {**source.to_json(), "fingerprint": task.mark, "options": asdict(options), "rules": rules}
        if journal.source != state or journal.find_changed_audio(task.sounds):
            # Published clips stay on disk until the manifest holds their replacements: a kill must not lose them.
            again = journal.is_reimport or journal.is_published
            before = [] if again else journal.clips
            journal.begin(state, (path.name for path in source.files), task.sounds, again=again)
            for clip in before:
                delete_file(dataset.folder / clip.audio)
        # Also files of an import that was killed: a file can be damaged after it was recorded.
        intact = journal.ids - {clip.id for clip in journal.damaged(dataset.folder)}
        if not journal.is_done or len(intact) < len(journal.ids):
            problems: list[SourceProblem] = []
            try:
                ids = _ClipIdAllocator(recording, task.previous if journal.is_reimport else ())
                for clip, samples in _iter_source_clips(source, ids, options, problems):
                    if clip.id not in intact:
                        # The file first, then its journal entry: what is recorded is complete.
                        journal.add(clip, write_clip_audio(dataset.folder / clip.audio, samples, options.rate))
            except WriteError:  # the disk is full or read-only: other sources would fail too
                raise
            except VoxgraftError as error:
                problems.append(SourceProblem.of(error, str(source.text.absolute())))
                journal.fail(_fix_encodings(problems, options.language))
                return SourceImportResult(recording, len(journal.clips), 0.0, 0, tuple(journal.problems), failed=True)
            if not journal.is_done:
                journal.finish(_fix_encodings(problems, options.language))
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


def _fix_encodings(problems: Sequence[SourceProblem], language: str) -> list[SourceProblem]:
    """The same problems; those of encodings name one that fits the language."""
    fix = build_encoding_fix(language)
    return [replace(one, cure=fix) if one.code == "text-encoding" and not one.cure else one for one in problems]


def _rewrite_damaged_clips(dataset: DatasetFolder, task: ImportTask) -> SourceImportResult:
    """Write the files of single clips of a published source again, cut exactly as before."""
    source, recording = task.source, task.recording
    file = str(source.text.absolute())
    with dataset.worker_lock():
        journal = read_import_journal(dataset.journal_path(recording))
        before = {clip.id: clip for clip in journal.clips if clip.id in task.damaged}
        left, problems, skipped = dict(before), list[SourceProblem](), list[SourceProblem]()
        try:
            values = journal.source["options"]
            options = ImportOptions(**{**values, "cut": CutOptions(**values["cut"])})
            ids = _ClipIdAllocator(recording, journal.clips)
            for clip, samples in _iter_source_clips(source, ids, options, skipped):
                old = left.get(clip.id)
                if old is not None and all(getattr(old, name) == getattr(clip, name) for name in _CUT_FIELDS):
                    journal.add(old, write_clip_audio(dataset.folder / old.audio, samples, options.rate))
                    del left[clip.id]
                if not left:
                    break
        except WriteError:
            raise
        except VoxgraftError as error:
            problems.append(SourceProblem.of(error, file))
        except (KeyError, TypeError, ValueError):  # the journal holds options of another version
            pass
        # Where the whole source was read, another try would find the same. Recordings that are missing may come back.
        if not problems and not any(one.code.startswith(("media-", "file-")) for one in skipped):
            journal.give_up(left)
        for code, names in (("clip-remade", before.keys() - left.keys()), ("clip-damaged", left.keys())):
            if names:
                found = f"{pluralize(len(names), 'clip file')} missing or damaged: {format_names(sorted(names))}"
                problems.append(SourceProblem(code, found, file))
        clips = journal.clips
        seconds = sum(clip.seconds for clip in clips)
        rejected = sum(not clip.is_used for clip in clips)
        return SourceImportResult(recording, len(clips), seconds, rejected, tuple(problems))


class _ClipIdAllocator:
    """Gives ids to the clips of one source. A clip of an earlier import keeps its id."""

    def __init__(self, recording: str, previous: Sequence[ManifestClip]) -> None:
        self.recording = recording
        self._known: dict[tuple[str, float], list[ManifestClip]] = defaultdict(list)
        for clip in previous:
            self._known[clip.text_as_found, clip.start].append(clip)
        numbers = [int(number) for clip in previous if (number := clip.id.rpartition("-")[2]).isdecimal()]
        # Numbers are never reused: an id must not come to mean another clip.
        self._last = max(numbers, default=0)

    def next_id(self, text_as_found: str, start: float, recording: str) -> str:
        """The id of the next clip. An earlier clip is recognized by text and start, then by recording."""
        if same := self._known.get((text_as_found, start)):
            clip = next((clip for clip in same if clip.recording == recording), same[0])
            same.remove(clip)
            return clip.id
        self._last += 1
        return f"{self.recording}-{self._last:05d}"


def _default_speaker(source: ImportSource, recording: str) -> str:
    """Speaker of a list or folder that names none: one person, with the name of the source."""
    return source.default_speaker or _SHARD_SUFFIX.sub("", recording)


def _describe_speaker_origin(
    source: ImportSource, recording: str, clips: Sequence[ManifestClip], options: ImportOptions
) -> str:
    if options.speaker:
        return "set by --speaker"
    if options.speaker_from != "auto":
        return f"one per {options.speaker_from}, {SET_BY_SPEAKER_FROM}"
    if source.kind == "subtitles":
        has_labels = any(clip.speaker != recording for clip in clips)
        return "labels in the subtitles" if has_labels else "one per recording with subtitles"
    if any(clip.speaker != _default_speaker(source, recording) for clip in clips):
        return "the speaker column"
    if source.kind == "folder":
        return "names of the folders"
    return "one for the whole list, as it has no speaker column"


def _iter_source_clips(
    source: ImportSource,
    ids: _ClipIdAllocator,
    options: ImportOptions,
    problems: list[SourceProblem],
) -> Iterator[tuple[ManifestClip, AudioSamples]]:
    """Every clip of a source with its audio, always in the same order."""
    segments = _segments_from_subtitles if source.kind == "subtitles" else _segments_from_list
    for cut, samples, recording, language, file, other in segments(source, ids.recording, options, problems):
        lines = (cut.line, cut.last_line)
        seconds = len(samples) / options.rate
        # Subtitles of a longer version of the film continue after the end of the recording.
        if seconds < MIN_CLIP_SECONDS:
            found = f"the recording is too short for {cut.text!r:.100} at {cut.start:.1f} s"
            problems.append(SourceProblem("media-short", found, file, *lines))
            continue
        try:
            # A lone `[be]` in `[be]cause` is an insertion. Only of these two it is rather a span without its end.
            known = closing_codes(cut.text) | {"en", language.lower()}
            split_spans(cut.text, frozenset(filter(is_language_code, known)).__contains__)
        except SpanError as error:
            found = f"{cut.text!r:.80}, character {error.position}: {error.found}"
            problems.append(SourceProblem("text-span", found, file, *lines))
            continue
        normalizer = build_normalizer(language, fold_homophones=options.fold_homophones)
        text = normalize_marked_text(normalizer, cut.text).text
        if not text:
            problems.append(SourceProblem("subtitle-nothing-said", f"not speech: {cut.text!r:.100}", file, *lines))
            continue
        clip_id = ids.next_id(cut.original_text, round(cut.start, 4), recording)
        clip = ManifestClip(
            id=clip_id,
            audio=f"{CLIPS_FOLDER}/{ids.recording}/{clip_id}.{options.ending}",
            seconds=round(seconds, 4),
            text=text,
            language=language,
            speaker=options.speaker or cut.speaker,
            recording=recording,
            sample_rate=options.rate,
            text_as_found=cut.original_text,
            start=round(cut.start, 4),
            end=round(cut.start + seconds, 4),
            source=f"{file}:{lines[0]}",
            rejected=cut.marks,
            other=other,
        )
        yield clip, samples


SourceSegment = tuple[Cue, AudioSamples, str, str, str, dict[str, Any]]
"""A clip as it is cut, with its recording, language, the file of its text, and further keys of its clip."""


def _segments_from_subtitles(
    source: ImportSource, recording: str, options: ImportOptions, problems: list[SourceProblem]
) -> Iterator[SourceSegment]:
    assert source.media is not None
    name = source.text.name
    shown, unread = read_subtitles(source.text, options.encoding)
    problems += unread
    cues, silent = clean_cues(shown, options.language, name)
    problems += silent
    if options.rolling:
        cues, repeated = dedupe_rolling_captions(cues, name)
        problems += repeated
    if not cues:
        raise FileError("subtitle-none", f"no speech in {name}: {shown[0].text!r:.80}", where=source.text)
    # Decoded block by block: a film of hours is never in memory.
    media = MediaReader(source.media, options.rate)
    voice = SileroVad(options.rate) if options.activity == "silero" else None
    how = replace(options.cut, language=options.language)
    who = source.media.resolve().parent.name if options.speaker_from == "folder" else recording
    for cut, samples in cut_segments(RollingAudioBuffer(media.blocks(), options.rate, voice), cues, how):
        speaker = f"{recording}:{cut.speaker}" if cut.speaker else who
        cut = replace(_reject_not_finite(cut, media), speaker=speaker)
        yield cut, samples, recording, options.language, name, {}
    problems += [*_missing_problems(media, source.media.name), *_decode_problems(media, source.media.name)]


def _reject_not_finite(cut: Cue, media: MediaReader) -> Cue:
    """A clip with NaN or infinite samples, which are silence now, is rejected by that name."""
    if not media.has_not_finite(cut.start, cut.end):
        return cut
    return replace(cut, marks=(*cut.marks, NOT_FINITE))


def _missing_problems(media: MediaReader, file: str, line: int = 0) -> list[SourceProblem]:
    """A problem for a file that was cut off."""
    if media.missing is None:
        return []
    held, promised = media.missing
    found = f"{media.path.name} holds {held:,.2f} s of audio, but its header promises {promised:,.2f} s"
    return [SourceProblem("media-cut-off", found, file, line)]


def _decode_problems(media: MediaReader, name: str) -> list[SourceProblem]:
    """Problems for packets of a file that could not be decoded, and for samples that are no numbers."""
    problems = []
    if media.damaged:
        found = f"{len(media.damaged):,} packets could not be decoded, the first at {media.damaged[0]:.1f} s"
        problems.append(SourceProblem("media-damaged", found, name))
    if media.not_finite:
        found = f"{name} contains NaN or infinite samples, the first at {media.not_finite[0][0]:.1f} s"
        problems.append(SourceProblem("media-not-finite", found, name))
    return problems


def _segments_from_list(
    source: ImportSource, recording: str, options: ImportOptions, problems: list[SourceProblem]
) -> Iterator[SourceSegment]:
    """Clips of a list, as long as its rows say: they were cut before."""
    rows: Iterable[TranscriptRow] = _read_source_rows(source, options, problems)
    known: dict[int, str] = {}
    if source.kind != "columns":  # rows that hold their audio must never all be in memory
        rows = list(rows)
        known = infer_recordings(rows)
    previous: MediaReader | None = None
    for row, samples, media in read_row_audio(rows, source, options.rate, problems):
        end = row.start + len(samples) / options.rate
        file, line = (row.audio, 1) if source.kind == "folder" else (source.text.name, row.line)
        is_whole = row.end - end <= MAX_MISSING_SECONDS if row.end is not None else media.missing is None
        heard = () if has_speech(samples, options.rate) else (NO_SPEECH,)
        marks = (*length_reasons(end - row.start, options.cut), *heard, *(() if is_whole else (NO_PAUSE,)))
        own = known.get(row.line) or row.recording or row.speaker or f"{recording}-{row.line}"
        own = recording if source.tree else own  # the chapter
        who = {
            "auto": _default_speaker(source, recording),
            "folder": media.path.resolve().parent.name,
            "recording": own,
            "file": media.path.stem,
        }
        speaker, original_text = row.speaker or who[options.speaker_from], row.original_text or row.text
        cut = Cue(row.start, end, row.text, line, line, speaker, original_text, marks)
        cut = _reject_not_finite(cut, media)
        yield cut, samples, own, row.language or options.language, file, dict(row.other)
        if media is not previous:
            problems += _missing_problems(media, *_row_location(source, row))
        problems += _decode_problems(media, row.audio)
        previous = media


def _read_source_rows(
    source: ImportSource, options: ImportOptions, problems: list[SourceProblem]
) -> Iterator[TranscriptRow]:
    """The rows of a source without repetitions. A recording cannot have two texts: the first counts."""
    seen: dict[tuple[str, float], TranscriptRow] = {}
    if source.kind == "columns":
        rows = read_arrow_rows(source.text)
    elif source.kind == "folder":
        rows = read_sidecar_rows(source.text, source.files, options.encoding)
    else:
        rows = read_transcript_list(source.text, options.encoding)
    for row in rows:
        if isinstance(row, SourceProblem):
            problems.append(row)
            continue
        # Without the audio bytes: only what tells a repetition is kept.
        first = seen.setdefault((row.audio, row.start), replace(row, data=None))
        if first.line != row.line and row.data is None and row.end == first.end:
            code = "table-duplicate" if row.text == first.text else "table-double-id"
            found = f"{row.audio} is also on line {first.line}: {first.text!r:.60} there, {row.text!r:.60} here"
            problems.append(SourceProblem(code, found, source.text.name, row.line))
            continue
        yield row


def read_row_audio(
    rows: Iterable[TranscriptRow], source: ImportSource, rate: int, problems: list[SourceProblem]
) -> Iterator[tuple[TranscriptRow, AudioSamples, MediaReader]]:
    """Each row with its audio; a problem for each row without. Parts of files come last, by file and in their order."""
    parts: dict[str, list[TranscriptRow]] = {}
    places: dict[str, Path | None] = {}
    matches: dict[str, FileMatch] = {}
    if source.kind != "columns":  # rows that hold their audio must never all be in memory
        rows = list(rows)
        matches = match_audio_files(source.folder, (row.audio for row in rows if row.data is None), source.roots)
    listings: Listings = {}
    other_case = {name: match.path.name for name, match in matches.items() if match.path and match.is_other_case}
    problems += other_case_problems(list(other_case.items()), source.text.name)
    for row in rows:
        match = matches.get(row.audio, FileMatch())
        if row.data is None and source.kind == "columns":
            found_files = match_audio_files(source.folder, [row.audio], source.roots, any_case=False, listings=listings)
            match = found_files[row.audio]
        if row.data is None and match.alike:
            found = f"no recording {row.audio}: {describe_alike(match.alike)}"
            problems.append(SourceProblem("name-ambiguous", found, *_row_location(source, row)))
        elif row.data is None and match.path is None:
            code = "media-missing"
            # A list may leave the ending out: a bare 3 would not be read as a file.
            is_named = Path(row.audio).suffix.lower() in AUDIO_SUFFIXES
            named = row.audio if is_named else f"{row.audio}.wav (or another audio format)"
            folders = ", ".join(filter(None, AUDIO_FOLDERS))
            found = f"no recording {named} in the folder of the list or in its folders {folders}"
            if is_outside(source.folder / row.audio, (source.folder, *source.roots)):
                code, found = "path-outside", f"{row.audio} is not in {source.folder} or another folder that was given"
            cure = FIRST_LINE_CURE if code == "media-missing" and row.line == 1 and source.kind == "list" else ""
            problems.append(SourceProblem(code, found, *_row_location(source, row), cure=cure))
        elif row.end is not None:
            own = "" if row.data is None else f"\0{row.line}"  # audio inside a list may always have the same name
            parts.setdefault(row.audio + own, []).append(row)
            places[row.audio] = match.path
        else:
            try:
                media = MediaReader(match.path or Path(row.audio), rate, row.data)
                blocks: list[AudioSamples] = []
                for block in media.blocks():
                    blocks.append(block)
                    if sum(map(len, blocks)) > MAX_ROW_SECONDS * media.rate:
                        found = f"{media.path.name} is longer than {MAX_ROW_SECONDS:.0f} s, but has only one text"
                        raise AudioError("audio-too-long", found, where=media.path)
                yield row, np.concatenate(blocks), media
            except VoxgraftError as error:
                problems.append(SourceProblem.of(error, *_row_location(source, row)))
    for group in parts.values():
        group.sort(key=lambda row: row.start)
        yield from _read_row_parts(group, places.get(group[0].audio), source, rate, problems)


def _row_location(source: ImportSource, row: TranscriptRow) -> tuple[str, int]:
    """The place of a problem: the row's line in the list, or its audio file where there is no list."""
    return (row.audio, 0) if source.kind == "folder" else (source.text.name, row.line)


def _read_row_parts(
    rows: list[TranscriptRow], path: Path | None, source: ImportSource, rate: int, problems: list[SourceProblem]
) -> Iterator[tuple[TranscriptRow, AudioSamples, MediaReader]]:
    try:
        media = MediaReader(path or Path(rows[0].audio), rate, rows[0].data)
    except VoxgraftError as error:
        problems += [SourceProblem.of(error, *_row_location(source, row)) for row in rows]
        return
    buffer = RollingAudioBuffer(media.blocks(), rate)  # the file is decoded once for all its parts
    for place, row in enumerate(rows):
        assert row.end is not None
        if row.end - row.start > MAX_ROW_SECONDS:
            seconds = f"{row.end - row.start:,.0f} s of its recording"
            found = f"the line names {seconds} (expected: at most {MAX_ROW_SECONDS:.0f} s)"
            problems.append(SourceProblem("table-line", found, *_row_location(source, row)))
            continue
        try:
            buffer.read_until(row.end, keep_from=row.start - 1.0)
        except VoxgraftError as error:
            problems += [SourceProblem.of(error, *_row_location(source, other)) for other in rows[place:]]
            return
        yield row, buffer.samples(row.start, row.end), media
