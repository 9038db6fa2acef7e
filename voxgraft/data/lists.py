"""Read lists of recordings with texts as other programs write them: a `TranscriptRow` or a problem for every line.

Tables (LJSpeech, F5-TTS, Piper, Coqui), JSON lines, GPT-SoVITS `.list`, festival `txt.done.data`, Kaldi folders, text
files beside audio files, parquet and arrow. Opens no audio.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import Any

from voxgraft.audio.files import AUDIO_SUFFIXES, MEDIA_SUFFIXES
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import (
    format_error_reason,
    is_encodable_text,
    is_file,
    is_manifest_header,
    parse_json,
    text_lines,
)
from voxgraft.core.languages import canonical_language_code
from voxgraft.core.results import pluralize
from voxgraft.data.manifest import SourceProblem
from voxgraft.data.names import FileMatch, describe_alike, find_alike, iter_alike
from voxgraft.data.subtitles import parse_error_line, read_encoded_text, read_text_skipping_bad_lines

# Column names in lists that people have; the first that exists counts.
COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "audio": tuple("audio audio_path audio_filepath audio_file file_name filename file path wav wav_path".split()),
    "text": ("text", "normalized_text", "normalised_text", "sentence", "transcription", "transcript", "raw_text"),
    "speaker": ("speaker", "speaker_id", "speaker_name", "spk", "client_id"),
    "recording": ("recording", "source_file", "recording_id", "session"),
    "start": ("start", "start_time", "offset"),
    "end": ("end", "end_time"),
    "seconds": ("duration", "seconds"),
    "language": ("language", "lang", "locale"),
    "id": ("id", "segment_id", "utt_id", "utt"),
}
KNOWN_COLUMNS = ", ".join(
    f"{kind} (or {', '.join(name for name in COLUMN_ALIASES[kind] if name != kind)})"
    for kind in ("audio", "text", "speaker")
)
# Keys of our own lists that go into the manifest.
KEPT_KEYS = ("machine_made", "confidence")
AUDIO_FOLDERS = ("", "wavs", "wav", "audio", "clips", "audios")
MIN_RECORDINGS = 3
_FORMAT_NAMES = ("mp3", "mp4", "3g2")
SIDECAR_SUFFIXES = (".normalized.txt", ".txt", ".lab")
# Folders of audio in VCTK and its copies at other rates, beside the folder `txt`.
VCTK_AUDIO_FOLDERS = ("wav48_silence_trimmed", "wav48", "wav24", "wav22", "wav16")
_MICROPHONE_SUFFIX = re.compile(r"_mic[12]$")
TABLE_DELIMITERS = ("|", "\t", ";", ",")
MAX_CSV_FIELD_CHARACTERS = 1 << 20
_MAX_SPEAKER_SHARE = 0.34
COLUMNAR_SUFFIXES = (".parquet", ".arrow")
# A Kaldi folder: the texts, and what says where and by whom they are spoken. Features and counts are not needed.
KALDI_TEXT, KALDI_AUDIO, KALDI_SPEAKERS, KALDI_SEGMENTS = "text", "wav.scp", "utt2spk", "segments"
KALDI_OTHER_FILES = (
    *("spk2utt", "spk2gender", "reco2dur", "utt2dur", "utt2num_frames", "utt2lang", "reco2file_and_channel"),
    *("feats.scp", "cmvn.scp", "vad.scp", "frame_shift", "text.norm"),
)
TABLE_SUFFIXES = (".csv", ".tsv", ".psv", ".jsonl", ".list")
# Lists by name: of festival, of CSS10 and KSS, of Multilingual LibriSpeech.
_LIST_NAMES = re.compile(
    r"metadata\.txt|.*\.done\.data|prompts\.data|transcripts?\.txt|transcript\.v\.[\d.]+\.txt", re.IGNORECASE
)
_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')
_WHOLE_QUOTED_CELL = re.compile(r'\s*"(?:[^"]|"")*"\s*')
_FESTIVAL_LINE = re.compile(r'\s*\(\s*([^\s()"]+)\s+"((?:[^"\\]|\\.)*)"\s*\)\s*')
_LIBRISPEECH_NAME = re.compile(r"(\d+)_(\d+)_\d+")
# GPT-SoVITS has its own codes for two languages.
_SOVITS_LANGUAGES = {"jp": "ja", "kr": "ko"}
# Rows can hold their audio, so a few of them are megabytes.
ARROW_BATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class TranscriptRow:
    """One line of a list."""

    line: int
    audio: str
    """As written in the list."""
    text: str
    original_text: str = ""
    speaker: str = ""
    recording: str = ""
    language: str = ""
    """Empty if the list does not say."""
    start: float = 0.0
    end: float | None = None
    """None: the whole file."""
    data: bytes | None = None
    """The audio file itself, if the list holds it."""
    other: tuple[tuple[str, Any], ...] = ()
    """What our own lists say of a text beside it: by which machine it was made, and with which confidence."""


RowsOrProblems = Iterator[TranscriptRow | SourceProblem]


def parse_transcript_row(values: Mapping[str, Any], line: int) -> TranscriptRow | str:
    """A row by the names of its columns, or what is wrong with it."""
    given = {str(name).strip().lower(): value for name, value in values.items() if value not in (None, "")}
    found = {
        kind: next((given[name] for name in names if name in given), None) for kind, names in COLUMN_ALIASES.items()
    }
    audio: Any = found["audio"]
    data: bytes | None = None
    if isinstance(audio, Mapping):  # as the Hugging Face datasets library stores audio
        data = audio.get("bytes")
        if data is not None and not isinstance(data, bytes):
            return f"its audio is {data!r:.40}, not bytes"
        audio = audio.get("path") or f"row-{line}.wav"
    audio = audio or found["id"]
    if not is_encodable_text(audio) or not is_encodable_text(found["text"]):
        missing = "no recording" if not is_encodable_text(audio) else "no text"
        return f"{missing} among {', '.join(map(repr, values))}"
    # Times in the audio file. A duration alone means the whole file.
    numbers: dict[str, float] = {}
    for name in ("start", "end", "seconds"):
        given_time: Any = found[name]
        if given_time is None:
            continue
        try:
            numbers[name] = float(given_time)
        except (TypeError, ValueError, OverflowError):
            numbers[name] = math.nan
        if not math.isfinite(numbers[name]) or numbers[name] < 0:
            return f"{name} is {found[name]!r:.40}, which is not a number of seconds"
    start = numbers.get("start", 0.0)
    end = numbers.get("end", start + numbers["seconds"] if "seconds" in numbers else None)
    if "start" not in numbers and "end" not in numbers:
        start, end = 0.0, None
    elif end is None:
        return f"a start ({start} s) without an end or a duration"
    elif end <= start:
        return f"it ends at {end} s, before it begins at {start} s"
    # Speakers are often numbers, and the first of them is 0.
    names = {
        name: "" if found[name] is None else str(found[name]).strip() for name in ("speaker", "recording", "language")
    }
    if not all(map(is_encodable_text, names.values())):
        return "a name contains half of a character"
    text = str(found["text"])
    other = tuple((key, given[key]) for key in KEPT_KEYS if isinstance(given.get(key), str | float | int))
    return TranscriptRow(line, str(audio), text, text, **names, start=start, end=end, data=data, other=other)


def is_list_name(name: str) -> bool:
    """Whether a file of this name is a list wherever it lies; `is_list` also looks at the files beside it."""
    return Path(name).suffix.lower() in TABLE_SUFFIXES or bool(_LIST_NAMES.fullmatch(name))


def is_list(path: Path) -> bool:
    """Whether a file is a list, by its name. Of a Kaldi folder, the texts are the list."""
    if path.name == KALDI_TEXT:
        return is_file(path.with_name(KALDI_AUDIO))
    if path.suffix.lower() in TABLE_SUFFIXES:
        return True
    # `transcript.txt` beside `transcript.wav` is the text of that file.
    return is_list_name(path.name) and not any(is_file(path.with_suffix(ending)) for ending in MEDIA_SUFFIXES)


def list_parts(path: Path) -> tuple[Path, ...]:
    """Files that a list is read from beside itself."""
    if path.name != KALDI_TEXT:
        return ()
    return tuple(
        part for name in (KALDI_AUDIO, KALDI_SPEAKERS, KALDI_SEGMENTS) if is_file(part := path.with_name(name))
    )


def list_folder(path: Path) -> Path:
    """The folder that names of audio files are relative to; festival keeps its list in `etc` beside `wav`."""
    return path.parent.parent if path.suffix == ".data" and path.parent.name == "etc" else path.parent


def find_audio_file(folder: Path, name: str, roots: Sequence[Path] | None = None) -> Path | None:
    """The file that a list means; suffix and the usual folders may be left out.

    With `roots`, only files in `folder` or one of them are found: a list from elsewhere must not choose what is read.
    A path of another machine is looked up there by its last parts.
    """
    return _find_named_file(folder, name, roots)[0]


def match_audio_files(
    folder: Path, names: Iterable[str], roots: Sequence[Path], *, any_case: bool = True
) -> dict[str, FileMatch]:
    """The files that the names of a list mean. A name that is written otherwise does not get the file of another."""
    found: dict[str, FileMatch] = {}
    exact: set[str] = set()
    for name in dict.fromkeys(names):
        path, wanted = _find_named_file(folder, name, roots)
        found[name] = FileMatch(path) if path else find_alike(wanted, any_case=any_case)
        exact |= {name} if path else set()
    users = Counter(os.path.abspath(match.path) for match in found.values() if match.path)
    return {
        name: FileMatch(alike=(match.path,))
        if match.path and name not in exact and users[os.path.abspath(match.path)] > 1
        else match
        for name, match in found.items()
    }


def _find_named_file(folder: Path, name: str, roots: Sequence[Path] | None) -> tuple[Path | None, list[Path]]:
    """The file under exactly this name, and all places where it could be."""
    windows = PureWindowsPath(name)
    is_windows = bool(windows.drive) and windows.is_absolute() and not name.startswith("/")
    given = Path(name.replace("\\", "/") if "/" not in name or is_windows else name)
    wanted: list[Path] = []
    for place in AUDIO_FOLDERS:
        for ending in ("", *AUDIO_SUFFIXES):
            path = folder / place / (str(given) + ending)
            if roots is None or not is_outside(path, (folder, *roots)):
                if is_file(path):
                    return path, []
                wanted.append(path)
    if roots is None or ".." in given.parts:
        return None, wanted
    # One part may be the name of any file: of a relative path, two must agree.
    is_absolute = is_windows or given.is_absolute()
    parts = windows.parts[1:] if is_windows else given.parts[1:] if is_absolute else given.parts
    for root in dict.fromkeys((folder, *roots)):
        for first in range(len(parts) - (not is_absolute)):
            if is_file(path := root.joinpath(*parts[first:])):
                return path, []
            wanted.append(path)
    return None, wanted


def is_outside(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a path leaves all these folders. Links inside of them are the user's own and may lead anywhere."""
    place = os.path.abspath(path)
    return not any(place.startswith(os.path.abspath(root).rstrip(os.sep) + os.sep) for root in roots)


def infer_recordings(rows: Sequence[TranscriptRow]) -> dict[int, str]:
    """The recording of each row, by its line: as stated, else the file name without the number at its end.

    If that leaves hardly any recordings, every file is one.
    """
    stems = {row.line: Path(row.recording or row.audio).stem or row.audio for row in rows}
    short = {}
    for row in rows:
        stem = short[row.line] = stems[row.line]
        if not row.recording:
            # No regex: it would take quadratic time on a long run of digits.
            end = len(stem)
            while end and stem[end - 1].isdecimal():
                end -= 1
            # `f_mp4.mp4` is no fourth part of `f_mp`.
            end = len(stem) if stem.lower().endswith(_FORMAT_NAMES) else end
            short[row.line] = stem if end == len(stem) else stem[:end].rstrip("-_. \t\r\n\f\v")
    useful = all(short.values()) and len(set(short.values())) >= min(MIN_RECORDINGS, len(set(stems.values())))
    return short if useful else stems


def read_transcript_list(path: Path, encoding: str | None = None) -> RowsOrProblems:
    """Rows of a list in order, and a problem for each line that is none."""
    if path.name == KALDI_TEXT:
        yield from _read_kaldi_rows(path, encoding)
        return
    text, broken = read_text_skipping_bad_lines(path, encoding)
    yield from (SourceProblem("text-encoding", found, path.name, line) for line, found in broken.items())
    if not text.strip() and not broken:
        raise FileError("table-unknown", f"{path.name} is empty", where=path)
    parsers = {
        ".jsonl": parse_transcript_jsonl,
        ".json": parse_transcript_jsonl,
        ".list": parse_sovits_list,
        ".data": parse_festival_list,
    }
    rows = parsers.get(path.suffix.lower(), parse_transcript_table)(text, path.name)
    if path.name.lower() != "transcripts.txt":
        yield from rows
        return
    for row in rows:  # Multilingual LibriSpeech: 4800_10003_000000 is audio/4800/10003/4800_10003_000000.flac
        named = _LIBRISPEECH_NAME.fullmatch(row.audio) if isinstance(row, TranscriptRow) else None
        if named is None or isinstance(row, SourceProblem):
            yield row
            continue
        speaker, book = named.groups()
        audio = f"audio/{speaker}/{book}/{row.audio}"
        yield replace(row, audio=audio, speaker=speaker, recording=f"{speaker}_{book}")


def parse_sovits_list(text: str, name: str) -> RowsOrProblems:
    """GPT-SoVITS: `audio|speaker|language|text`. The language counts only where a list has several.

    The program knows five languages; a list in any other has one of these in its place.
    """
    cells = [
        (number, [cell.strip() for cell in line.split("|", 3)])
        for number, line in enumerate(text_lines(text), 1)
        if line.strip()
    ]
    has_languages = len({values[2].lower() for _, values in cells if len(values) == 4}) > 1
    for line, values in cells:
        if len(values) != 4 or not values[0]:
            found = f"{len(values)} columns" if len(values) != 4 else "no recording"
            yield SourceProblem("table-line", f"{found} (expected: audio|speaker|language|text)", name, line)
        elif not values[3]:
            yield SourceProblem("transcript-empty", f"{values[0]} has no text", name, line)
        else:
            audio, speaker, language, said = values
            code = _SOVITS_LANGUAGES.get(language.lower()) or canonical_language_code(language) or ""
            yield TranscriptRow(line, audio, said, said, speaker, language=code if has_languages else "")


def parse_festival_list(text: str, name: str) -> RowsOrProblems:
    """Festival and festvox: `( name "text" )` on each line; the audio is `wav/name.wav`."""
    for line, content in enumerate(text_lines(text), 1):
        if not content.strip():
            continue
        found = _FESTIVAL_LINE.fullmatch(content)
        if found is None:
            yield SourceProblem("table-line", f'{content!r:.80} (expected: ( name "text" ))', name, line)
            continue
        said = re.sub(r"\\(.)", r"\1", found[2]).strip()
        if said:
            yield TranscriptRow(line, found[1], said, said)
        else:
            yield SourceProblem("transcript-empty", f"{found[1]} has no text", name, line)


def read_kaldi_audio_names(path: Path, encoding: str | None = None) -> Iterator[str]:
    """The files that a `wav.scp` names; commands, which are never run, are left out."""
    text, _ = read_text_skipping_bad_lines(path, encoding)
    values = (_split_kaldi_line(line)[1] for line in text_lines(text))
    return (value for value in values if value and not value.endswith("|"))


def _split_kaldi_line(line: str) -> tuple[str, str]:
    """The name and the value of a line of a Kaldi table."""
    name, _, value = line.strip().partition(" " if " " in line.strip() else "\t")
    return name, value.strip()


def _read_kaldi_rows(path: Path, encoding: str | None) -> RowsOrProblems:
    """A Kaldi folder by its file `text`. Every problem names the file of the four that it is in."""
    tables: dict[str, dict[str, tuple[int, str]]] = {}
    for part in (path, *list_parts(path)):
        text, broken = read_text_skipping_bad_lines(part, encoding)
        yield from (SourceProblem("text-encoding", found, part.name, line) for line, found in broken.items())
        if not text.strip() and not broken:
            raise FileError("table-unknown", f"{part.name} is empty", where=part)
        values = tables[part.name] = {}
        for number, content in enumerate(text_lines(text), 1):
            name, value = _split_kaldi_line(content)
            if not name:
                continue
            if not value:
                code = "transcript-empty" if part == path else "table-line"
                yield SourceProblem(code, f"{name!r:.80} has no value", part.name, number)
            elif name in values:
                found = f"{name!r:.80} is on line {values[name][0]} already"
                yield SourceProblem("table-double-id", found, part.name, number)
            else:
                values[name] = number, value
    audio, speakers = tables.get(KALDI_AUDIO, {}), tables.get(KALDI_SPEAKERS, {})
    # Kaldi wants a speaker for every utterance; where nobody knows them, each utterance is its own.
    is_known = any(name != speaker for name, (_, speaker) in speakers.items())
    for name, (line, value) in audio.items():
        if value.endswith("|"):
            yield SourceProblem("kaldi-pipe", f"{name}: {value!r:.120}", KALDI_AUDIO, line)
    for utterance, (line, said) in tables[path.name].items():
        place = {"audio": utterance}
        if KALDI_SEGMENTS in tables:
            at, segment = tables[KALDI_SEGMENTS].get(utterance, (0, ""))
            cells = segment.split()
            if len(cells) < 3:
                found = f"{segment!r:.80} (expected: a recording, a start and an end)" if at else "no segment"
                where = (KALDI_SEGMENTS, at) if at else (path.name, line)
                yield SourceProblem("table-line", f"{utterance}: {found}", *where)
                if at:  # the line of its text is left out for that reason
                    yield SourceProblem(
                        "table-line", f"{utterance}: line {at} of {KALDI_SEGMENTS} is broken", path.name, line
                    )
                continue
            place = {"audio": cells[0], "start": cells[1], "end": cells[2], "recording": cells[0]}
        recording = place["audio"]
        at, file = audio.get(recording, (0, ""))
        if not file or file.endswith("|"):
            found = f"line {at} of {KALDI_AUDIO} is a command" if at else f"{KALDI_AUDIO} has no {recording!r:.60}"
            yield SourceProblem("media-missing", f"{utterance}: {found}", path.name, line)
            continue
        speaker = speakers.get(utterance, (0, ""))[1] if is_known else ""
        made = parse_transcript_row({**place, "audio": file, "text": said, "speaker": speaker}, line)
        yield SourceProblem("table-line", f"{utterance}: {made}", path.name, line) if isinstance(made, str) else made


def parse_transcript_jsonl(text: str, name: str) -> RowsOrProblems:
    """JSON lines as speech programs write them; the header of a manifest of voxgraft is no row."""
    for number, line in enumerate(text_lines(text), 1):
        if not line.strip():
            continue
        try:
            values = parse_json(line, name)
        except VoxgraftError as error:
            yield SourceProblem("table-line", error.finding.found, name, number)
            continue
        if is_manifest_header(values):
            continue
        made = parse_transcript_row(values, number) if isinstance(values, dict) else "not a JSON object"
        yield _row_problem(made, values, name, number) if isinstance(made, str) else made


def parse_transcript_table(text: str, name: str) -> RowsOrProblems:
    """A table with or without a header: audio and text, and perhaps the normalized text or the speaker."""
    lines = [line for line in text_lines(text) if line.strip()]
    # The first mark that most lines have, in order of rarity in texts.
    seen = lines[:200]
    delimiter = next((mark for mark in TABLE_DELIMITERS if sum(mark in line for line in seen) * 2 > len(seen)), None)
    if delimiter is None:
        raise FileError("table-unknown", f"{name} has no columns: {lines[0]!r:.80}" if lines else f"{name} is empty")
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    stream = io.StringIO(text, newline="")
    # Tables with "|" or tabs are written without quotes, unless a program put every cell into them.
    is_quoted = delimiter in ",;" or all(map(_WHOLE_QUOTED_CELL.fullmatch, lines[0].split(delimiter)))
    if is_quoted:
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
    else:
        reader = csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    cells: list[tuple[int, list[str]] | SourceProblem] = []
    behind = 0
    while True:
        try:
            values = next(reader, None)
        except csv.Error as error:
            cells.append(
                SourceProblem("table-line", f"the line cannot be read: {error}", name, behind + 1, reader.line_num)
            )
            behind = reader.line_num
            continue
        if values is None:
            break
        first, behind = behind + 1, reader.line_num
        if any(cell.strip() for cell in values):
            cells.append((first, [cell.strip() for cell in values]))
    head = next((line[1] for line in cells if not isinstance(line, SourceProblem)), [])
    names = {cell.lower() for cell in head}
    has_header = names & {*COLUMN_ALIASES["text"]} and names & {*COLUMN_ALIASES["audio"], *COLUMN_ALIASES["id"]}
    is_half_header = names & {*COLUMN_ALIASES["text"], *COLUMN_ALIASES["audio"]} and len(names) > 1
    if is_half_header and not has_header:
        missing = "the recording" if names & {*COLUMN_ALIASES["text"]} else "the text"
        found = f"line 1 names the columns {', '.join(map(repr, head))}: none is {missing}"
        raise FileError("table-columns", found, expected=KNOWN_COLUMNS, where=name)
    rows = [item[1] for item in cells if not isinstance(item, SourceProblem)]
    usual_width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    # Most rows say which column has the file names. Line 1 may be a header in another language.
    audio_at = None if has_header else _find_file_column(rows[1:])
    has_foreign_header = audio_at is not None and not any(_is_file_name(cell) or _is_place(cell) for cell in head)
    triples = [values for values in rows if len(values) == 3]
    # The last column of LJSpeech's copies (audio|text|speaker), the second of Piper's (audio|speaker|text).
    has_speaker_last = _is_speaker_column([values[2] for values in triples])
    has_speaker_second = not has_speaker_last and _is_speaker_column([values[1] for values in triples])
    # CSS10 and KSS end in the length and a translation: audio|text|normalized|...|seconds|...
    width = len(rows[0]) if rows else 0
    is_long = width > 3 and any(
        all(len(values) == width and re.fullmatch(r"\d+(\.\d+)?", values[at]) for values in rows)
        for at in range(3, width)
    )
    if not has_header and ((usual_width > 3 and not is_long) or audio_at or (has_foreign_header and usual_width > 2)):
        found = f"line 1 names no known columns: {', '.join(map(repr, head))[:200]}"
        if audio_at is not None:
            found += f"; column {audio_at + 1} has the names of recordings"
        raise FileError("table-columns", found, expected=KNOWN_COLUMNS, where=name)
    for item in cells:
        if isinstance(item, SourceProblem):
            yield item
            continue
        line, values = item
        if has_header and values == head:
            continue
        if has_foreign_header and values is head:
            found = f"{', '.join(map(repr, head))} were taken as names of the columns of recordings and texts"
            yield SourceProblem("table-header", found, name, line)
            continue
        if has_header and not is_quoted:
            values = _read_quoted_cells(values, delimiter, len(head))
        cure, wanted_width = "", len(head) if has_header else usual_width
        if len(values) > wanted_width and (has_header or is_quoted):
            cure = f"the text contains {delimiter!r}; put it into double quotes, as in "
            cure += f'a.wav{delimiter}"One{delimiter} two."'
        elif len(values) > wanted_width:
            cure = f"remove {delimiter!r} from the text: it separates the columns."
        if has_header and len(values) != len(head):
            found = f"{len(values)} columns, but the header has {len(head)}"
            yield SourceProblem("table-line", found, name, line, cure=cure)
        elif has_header:
            named = dict(zip(head, values, strict=True))
            made = parse_transcript_row(named, line)
            yield _row_problem(made, named, name, line) if isinstance(made, str) else made
        elif not values[0]:
            found = f"the column of audio files is empty: {values!r:.80} (expected: audio and text)"
            yield SourceProblem("table-line", found, name, line)
        # A third column where most lines have two is the rest of a text with a comma.
        elif (len(values) not in (2, 3) and not is_long) or (is_quoted and usual_width == 2 and any(values[2:])):
            found = f"the line has {len(values)} columns: {values!r:.80} (expected: audio and text)"
            yield SourceProblem("table-line", found, name, line, cure=cure)
        elif not values[1]:
            yield SourceProblem("transcript-empty", f"{values[0]} has no text", name, line)
        else:
            audio, said, more = (*values, "")[:3]
            if has_speaker_second and len(values) == 3:
                said, more = more, said
                if not said:
                    yield SourceProblem("transcript-empty", f"{audio} has no text", name, line)
                    continue
            has_speaker = has_speaker_last or has_speaker_second
            spoken = said if has_speaker or not more else more
            yield TranscriptRow(line, audio, spoken, said, speaker=more if has_speaker else "")


def _is_file_name(cell: str) -> bool:
    return cell.lower().endswith(MEDIA_SUFFIXES)


def _is_place(cell: str) -> bool:
    """Whether it is a path from the root, or one that leaves its folder: no name of a column looks like this."""
    return bool(re.match(r"[A-Za-z]:[\\/]|[\\/]", cell)) or ".." in re.split(r"[\\/]", cell)


def _find_file_column(rows: Sequence[Sequence[str]]) -> int | None:
    """The first column in which most cells are names of media files with their endings."""
    counts = Counter(at for values in rows for at, cell in enumerate(values) if _is_file_name(cell))
    return min((at for at, count in counts.items() if count * 2 > len(rows)), default=None)


def _read_quoted_cells(values: list[str], delimiter: str, width: int) -> list[str]:
    """The cells of a line by the rules of csv, as pandas writes tables, where nothing else can be meant: a cell has
    doubled quotes inside of quotes, or the line has more cells than the header."""
    if len(values) == width and not any(map(_QUOTED_CELL.fullmatch, values)):
        return values
    try:
        cells = next(csv.reader([delimiter.join(values)], delimiter=delimiter, strict=True))
    except csv.Error:
        return values
    return [cell.strip() for cell in cells] if len(cells) == width else values


def _is_speaker_column(values: Sequence[str]) -> bool:
    """Whether a column without a name holds speakers: few names, each of them often, and none is a sentence."""
    labels = {value for value in values if value}
    is_few = len(values) >= 4 and 0 < len(labels) <= max(1, _MAX_SPEAKER_SHARE * len(values))
    return is_few and not any(" " in value for value in labels)


def _row_problem(found: str, values: object, name: str, line: int) -> SourceProblem:
    """What is wrong with a row; an empty text has its own code."""
    given = {str(key).strip().lower(): value for key, value in values.items()} if isinstance(values, dict) else {}
    is_empty = found.startswith("no text") and any(given.get(key) == "" for key in COLUMN_ALIASES["text"])
    return SourceProblem("transcript-empty" if is_empty else "table-line", found, name, line)


def read_sidecar_rows(folder: Path, sounds: Sequence[Path], encoding: str | None = None) -> RowsOrProblems:
    """A row for each audio file with a text of the same name beside it."""
    other_case: list[tuple[str, str]] = []
    for number, sound in enumerate(sounds, 1):
        match = match_sidecar(sound)
        text = match.path
        name = str(sound.relative_to(folder))
        if text is None:
            if match.alike:
                yield SourceProblem("name-ambiguous", f"no text for {name}: {describe_alike(match.alike)}", name)
            else:
                yield SourceProblem("text-missing", f"no text file next to {name}", name)
            continue
        if match.is_other_case:
            other_case.append((sound.name, text.name))
        beside = os.path.relpath(text, folder)
        try:
            # An empty file counts as an empty text, not as an unreadable file.
            said = " ".join(read_encoded_text(text, encoding).split()) if text.stat().st_size else ""
        except VoxgraftError as error:
            yield SourceProblem.of(error, beside, parse_error_line(error))
            continue
        if not said:
            yield SourceProblem("transcript-empty", f"the text of {name} is empty", beside, 1)
            continue
        yield TranscriptRow(number, name, said, said)
    yield from other_case_problems(other_case, str(folder))


def other_case_problems(pairs: Sequence[tuple[str, str]], file: str) -> Iterator[SourceProblem]:
    """One note for all files of a source that were found under a name in other case."""
    if pairs:
        (wanted, found), more = pairs[0], len(pairs) - 1
        others = f", and {pluralize(more, 'other file')} in the same way" if more else ""
        yield SourceProblem("name-case", f"{found} is used for {wanted}{others}", file)


def find_sidecar(sound: Path) -> Path | None:
    """The text of the same name beside an audio file, or as in VCTK: txt/p225/x.txt for wav48/p225/x.wav."""
    return match_sidecar(sound).path


def match_sidecar(sound: Path) -> FileMatch:
    """Like `find_sidecar`; also a text whose name is written otherwise, if it can belong to no other audio file."""
    beside = next((path for ending in SIDECAR_SUFFIXES if is_file(path := sound.with_suffix(ending))), None)
    if beside:
        return FileMatch(beside)
    if sound.parent.parent.name in VCTK_AUDIO_FOLDERS and not first_microphone_name(sound):
        stem = _MICROPHONE_SUFFIX.sub("", sound.stem)
        path = sound.parent.parent.parent / "txt" / sound.parent.name / f"{stem}.txt"
        if is_file(path):
            return FileMatch(path)
    match = find_alike([sound.with_suffix(ending) for ending in SIDECAR_SUFFIXES])
    if match.path is None:
        return match
    media = [sound.with_name(sound.stem + ending) for ending in MEDIA_SUFFIXES]
    rivals = {path.stem for path in iter_alike(media, any_case=match.is_other_case)} - {sound.stem}
    return FileMatch(alike=(match.path,)) if rivals else match


def find_vctk_audio(text: Path) -> Path | None:
    """The audio file that a text in VCTK's folder of texts belongs to."""
    if text.suffix != ".txt" or text.parent.parent.name != "txt":
        return None
    root = text.parent.parent.parent
    places = (root / folder / text.parent.name / text.stem for folder in VCTK_AUDIO_FOLDERS)
    names = (
        f"{place}{mark}{ending}" for place in places for mark in ("", "_mic1", "_mic2") for ending in (".flac", ".wav")
    )
    return next((path for name in names if is_file(path := Path(name))), None)


def first_microphone_name(sound: Path) -> str:
    """VCTK recorded with two microphones: for a file of the second, the name of the first; else empty."""
    if not sound.stem.endswith("_mic2"):
        return ""
    first = sound.with_stem(sound.stem.removesuffix("2") + "1")
    return first.name if is_file(first) else ""


def read_arrow_rows(path: Path) -> Iterator[TranscriptRow | SourceProblem]:
    """Rows of a parquet or arrow file in order, and a problem for each that is none."""
    wanted = {name for names in COLUMN_ALIASES.values() for name in names}
    for number, values in enumerate(_iter_arrow_values(path, wanted), 1):
        made = parse_transcript_row(values, number)
        yield SourceProblem("table-line", made, path.name, number) if isinstance(made, str) else made


def read_arrow_audio_names(path: Path) -> Iterator[str]:
    """Names of the audio files of the rows, without reading the audio itself."""
    wanted = {*COLUMN_ALIASES["audio"], *COLUMN_ALIASES["id"]}
    for values in _iter_arrow_values(path, wanted, sounds=False):
        row = parse_transcript_row({**values, "text": "x"}, 0)
        if isinstance(row, TranscriptRow):
            yield row.audio


def _iter_arrow_values(path: Path, wanted: set[str], *, sounds: bool = True) -> Iterator[dict[str, Any]]:
    """The wanted columns of every row. Without `sounds` the bytes of embedded audio are not read."""
    try:
        import pyarrow as arrow
        import pyarrow.ipc
    except ImportError:
        cure = "pip install 'voxgraft[parquet]'"
        raise ConfigError("extra-missing", "reading parquet and arrow files needs pyarrow", cure=cure) from None
    try:
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path) as table:
                names = []
                for field in table.schema_arrow:
                    if field.name.lower() not in wanted:
                        continue
                    if sounds or not arrow.types.is_struct(field.type):
                        names.append(field.name)
                    else:  # parquet names the parts of a struct with dots
                        names += [f"{field.name}.{part.name}" for part in field.type if part.name != "bytes"]
                for batch in table.iter_batches(batch_size=ARROW_BATCH_ROWS, columns=names):
                    yield from batch.to_pylist()
            return
        with arrow.memory_map(str(path)) as stream:
            try:
                reader = arrow.ipc.open_file(stream)
                batches: Any = (reader.get_batch(place) for place in range(reader.num_record_batches))
            except arrow.ArrowInvalid:  # the other of the two arrow formats
                stream.seek(0)
                batches = arrow.ipc.open_stream(stream)
            for batch in batches:
                chosen = batch.select([name for name in batch.schema.names if name.lower() in wanted])
                if not sounds:
                    columns = {}
                    for name, column in zip(chosen.schema.names, chosen.columns, strict=True):
                        if arrow.types.is_struct(column.type):
                            if column.type.get_field_index("path") < 0:
                                continue
                            column = arrow.StructArray.from_arrays([column.field("path")], ["path"])
                        columns[name] = column
                    chosen = arrow.RecordBatch.from_pydict(columns)
                for first in range(0, chosen.num_rows, ARROW_BATCH_ROWS):
                    yield from chosen.slice(first, ARROW_BATCH_ROWS).to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise FileError("table-unknown", f"{path.name}: {format_error_reason(error)}", where=path) from None
