"""Find what there is to import, and read the lists of recordings with texts that other programs write.

A source is one recording with its subtitles, one list (a table, JSON lines, parquet or arrow), or one folder of audio
files with a text beside each. `find_sources` goes through files and folders and pairs recordings with their texts.
`read_transcript_list` and its neighbours give a `TranscriptRow` or a problem for every line. Opens no audio.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from voxgraft.audio.files import AUDIO_SUFFIXES, MEDIA_SUFFIXES
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import (
    format_error_reason,
    is_encodable_text,
    is_file,
    is_folder,
    parse_json,
    path_exists,
    require_file,
)
from voxgraft.core.languages import base_language, canonical_language_code
from voxgraft.data.folder import AudioStamp
from voxgraft.data.manifest import MANIFEST_HEADER_KEY, MANIFEST_NAME, SourceProblem
from voxgraft.data.subtitles import SUBTITLE_SUFFIXES, parse_error_line, read_encoded_text, read_text_skipping_bad_lines

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
AUDIO_FOLDERS = ("", "wavs", "wav", "audio", "clips", "audios")
MIN_RECORDINGS = 3
SIDECAR_SUFFIXES = (".normalized.txt", ".txt", ".lab")
# Folders of audio in VCTK and its copies at other rates, beside the folder `txt`.
VCTK_AUDIO_FOLDERS = ("wav48_silence_trimmed", "wav48", "wav24", "wav22", "wav16")
_MICROPHONE_SUFFIX = re.compile(r"_mic[12]$")
TABLE_DELIMITERS = ("|", "\t", ";", ",")
MAX_CSV_FIELD_CHARACTERS = 1 << 20
_MAX_SPEAKER_SHARE = 0.34
COLUMNAR_SUFFIXES = (".parquet", ".arrow")
# Rows can hold their audio, so a few of them are megabytes.
ARROW_BATCH_ROWS = 64
SourceKind = Literal["subtitles", "list", "columns", "folder"]
TABLE_SUFFIXES = (".csv", ".tsv", ".psv", ".jsonl")
HASHED_EDGE_BYTES = 1 << 20
MAX_FAULTY_LINE_BYTES = 1000
_FIELD_DELIMITERS = re.compile(r"[ ]*[|\t;,\"{}\r\n]+[ ]*")
_FIELD_DELIMITERS_AND_SPACES = re.compile(r"[|\t;,\"{}:\s]+")
MAX_FULLY_HASHED_BYTES = 16 << 20
# Of each audio file of a folder or list: there may be a hundred thousand.
HASHED_AUDIO_EDGE_BYTES = 16 << 10
# The longer form first: `film.pt-BR` is Portuguese, not a film `film.pt` in Breton.
_LANGUAGE_SUFFIXES = (
    re.compile(r"^(?P<stem>.+)[._-](?P<language>[A-Za-z]{2,3})[-_](?:[A-Za-z]{2,4}|\d{3})$"),
    re.compile(r"^(?P<stem>.+)[._-](?P<language>[A-Za-z]{2,3})$"),
)
_UNSAFE_CHARACTERS = re.compile(r"[^\w.\-]+")
DATASET_FILES = ("problems.jsonl", "measures.jsonl", "report.html", "report.json")
DATASET_FOLDERS = ("imports", "clips")
# What the Hugging Face datasets library writes beside its columns.
HF_DATASETS_FILES = ("dataset_info.json", "dataset_dict.json", "state.json")
# Beginnings of names of files about a dataset, which are not texts of audio files.
ABOUT_FILE_PREFIXES = ("readme", "license", "licence", "copying", "notice", "changelog", "speaker")
# In LibriTTS these hold the texts of `.normalized.txt` a second time.
LIBRITTS_COPY_SUFFIXES = (".original.txt", ".trans.tsv", ".book.tsv")
LIBRITTS_TABLES = ("speakers.tsv", "reader_book.tsv", "eval_sentences10.tsv")


@dataclass(frozen=True, slots=True)
class ImportSource:
    """One recording with its subtitles, or one list of recordings."""

    kind: SourceKind
    text: Path
    """The subtitles, the list, or the folder whose audio files have texts beside them."""
    media: Path | None = None
    files: tuple[Path, ...] = ()
    """Of a folder: its audio files, each with a text beside it."""
    sounds: tuple[tuple[str, Path | None], ...] = ()
    """Of a list: its audio files by the name in the list; None where the file is missing."""

    @property
    def name(self) -> str:
        """A name for its clips, which another source may have as well."""
        path = self.media or self.text
        if tree := self.tree:
            return sanitize_name("-".join(tree))
        plain = path.resolve().name if self.kind == "folder" else path.stem
        if self.kind == "list" and plain.lower() in ("metadata", "manifest", "train", "validated"):
            plain = f"{path.resolve().parent.name}-{plain}"
        return sanitize_name(plain)

    @property
    def tree(self) -> tuple[str, str] | None:
        """Speaker and chapter of a folder of the form of LibriTTS: 84/121123/84_121123_000007_000001.wav."""
        if self.kind != "folder" or not self.files:
            return None
        folder = self.text.resolve()
        speaker, chapter = folder.parent.name, folder.name
        starts = tuple(f"{speaker}{mark}{chapter}{mark}" for mark in "_-")
        return (speaker, chapter) if all(path.name.startswith(starts) for path in self.files) else None

    def to_json(self) -> dict[str, Any]:
        media = None if self.media is None else str(self.media.resolve())
        return {"kind": self.kind, "text": str(self.text.resolve()), "media": media}


def sanitize_name(name: str) -> str:
    """A safe folder name: no separators, no leading dots, at most 80 characters."""
    return _UNSAFE_CHARACTERS.sub("_", name).strip("._-")[:80] or "recording"


def find_sources(
    places: Sequence[Path], language: str, media: Path | None = None, encoding: str | None = None
) -> tuple[list[ImportSource], list[SourceProblem]]:
    """Sources in files and folders, including all subfolders, and what could not be used; an error if there is none."""
    finder = _SourceFinder(language, encoding)
    files: list[Path] = []
    for place in places:
        if not path_exists(place):
            raise FileError("file-missing", f"{place.name} does not exist", where=place)
        if is_folder(place):
            finder.scan_tree(place)
        else:
            files.append(place)
    finder.sort(files, media)
    sources, problems = list(dict.fromkeys(finder.sources)), list(dict.fromkeys(finder.problems))
    if not sources:
        seen = "; ".join(problem.found for problem in problems[:3])
        where = ", ".join(map(str, places))
        raise FileError("source-none", seen or f"{where} contains no recording with a text", where=where)
    return sorted(sources, key=lambda source: str(source.text)), problems


def compute_source_fingerprint(source: ImportSource) -> str:
    """A hash that recognizes a source wherever it is: its texts, and size and both ends of its audio files."""
    digest = hashlib.sha256(source.kind.encode())
    try:
        for sound in source.files:
            digest.update(
                sound.name.encode("utf-8", "surrogateescape") + b"\0" + _read_edges(sound, HASHED_AUDIO_EDGE_BYTES, 0)
            )
            if (text := find_sidecar(sound)) is not None:
                digest.update(hashlib.sha256(text.read_bytes()).digest())
        for path in (source.text, source.media):
            if path is not None and source.kind != "folder":
                digest.update(_read_edges(require_file(path), HASHED_EDGE_BYTES, MAX_FULLY_HASHED_BYTES))
    except OSError as error:
        raise FileError(
            "file-unreadable", f"{source.text.name}: {format_error_reason(error)}", where=source.text
        ) from None
    return digest.hexdigest()


def compute_audio_stamps(source: ImportSource, known: Mapping[str, AudioStamp | None]) -> dict[str, AudioStamp | None]:
    """Stamps of the audio files of a list, by name; None for a missing file. A copy of a file has the same hash.

    A file with the size and mtime of its known stamp is not read again.
    """
    stamps: dict[str, AudioStamp | None] = {}
    for name, path in source.sounds:
        if path is None:
            stamps[name] = None
            continue
        try:
            status = path.stat()
            before = known.get(name)
            if before is None or before[:2] != (status.st_size, status.st_mtime_ns):
                content = hashlib.sha256(_read_edges(path, HASHED_AUDIO_EDGE_BYTES, 0)).hexdigest()
                before = (status.st_size, status.st_mtime_ns, content)
            stamps[name] = before
        except OSError as error:
            raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
    return stamps


def _read_edges(path: Path, edge: int, whole: int) -> bytes:
    """All of a small file, both ends of a large one, and its size."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        data = stream.read(edge)
        if size > max(whole, 2 * edge):
            stream.seek(-edge, os.SEEK_END)
        return data + stream.read() + str(size).encode()


class _SourceFinder:
    """Goes from folder to folder and remembers which audio files the lists have named."""

    def __init__(self, language: str, encoding: str | None) -> None:
        self.language, self.encoding = language, encoding
        self.sources: list[ImportSource] = []
        self.problems: list[SourceProblem] = []
        self.named: set[str] = set()  # absolute paths of audio files that a list names
        self.places: dict[Path, set[tuple[str, float]]] = {}  # for each list its clips, as audio file and start

    def scan_tree(self, folder: Path) -> None:
        """A folder with all subfolders."""
        for root, folders, names in os.walk(
            folder,
            onerror=lambda error: self._report("file-unreadable", format_error_reason(error), error.filename),
        ):
            here = Path(root)
            is_dataset = MANIFEST_NAME in names and _is_voxgraft_manifest(here / MANIFEST_NAME)
            left_out = (*DATASET_FILES, *DATASET_FOLDERS) if is_dataset else ()
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in left_out)
            for name in (name for name in folders if os.path.islink(here / name)):
                self._report("source-unknown", f"{name} is a link to a folder; name the folder itself", here / name)
            paths = [here / name for name in sorted(names) if not name.startswith(".") and name not in left_out]
            if not self.sort(paths):
                folders[:] = [name for name in folders if name not in AUDIO_FOLDERS]

    def _report(self, code: str, found: str, path: Path | str) -> None:
        self.problems.append(SourceProblem(code, found, str(path)))

    def sort(self, paths: Sequence[Path], media: Path | None = None) -> bool:
        """Find sources among files of one folder; False if a list cannot be read, so that its audio is unknown."""
        kept = [path for path in paths if path.name not in LIBRITTS_TABLES]
        if any(path.name.endswith(".normalized.txt") for path in kept):
            kept = [path for path in kept if not path.name.endswith(LIBRITTS_COPY_SUFFIXES)]
        kinds: tuple[list[Path], ...] = ([], [], [], [], [])
        for path in dict.fromkeys(kept):
            end = path.suffix.lower()
            is_list = end in TABLE_SUFFIXES or path.name.lower() == "metadata.txt"
            is_kind = (end in SUBTITLE_SUFFIXES, is_list, end in COLUMNAR_SUFFIXES, end in MEDIA_SUFFIXES, True)
            kinds[is_kind.index(True)].append(path)
        subtitles, lists, columns, films, others = kinds
        own = [path for path in lists if _is_voxgraft_manifest(path)]
        for path in own:
            self._report("source-own", f"{path} is the manifest of a voxgraft dataset", path)
        lists = [path for path in lists if path not in own]
        used = self._pair(subtitles, films, media)
        sounds = {path: self._read_names(path) for path in (*lists, *columns)}
        unread = [path for path, names in sounds.items() if names is None]
        # Lists whose clips are all in a longer one are left out: `metadata_train.csv` beside `metadata.csv` would give
        # every clip twice, and a second speaker.
        longer_lists: list[Path] = []
        for path in sorted(lists, key=lambda path: -len(self.places.get(path, ()))):
            places = self.places.get(path, set())
            longer = next((one for one in longer_lists if places and places <= self.places[one]), None)
            if longer is None:
                longer_lists.append(path)
            else:
                self._report(
                    "list-repeated", f"all {len(places):,} audio files of {path.name} are in {longer.name}", path
                )
        lists = [path for path in lists if path in longer_lists]
        self.sources += [ImportSource("list", path, sounds=sounds[path] or ()) for path in lists]
        self.sources += [ImportSource("columns", path) for path in columns]  # most hold their audio inside
        listed = {film for film in films if os.path.abspath(film) in self.named}
        left = [film for film in films if film not in used and film not in listed]
        with_text = {film for film in left if film.suffix.lower() in AUDIO_SUFFIXES and find_sidecar(film)}
        for folder in sorted({film.parent for film in with_text}):
            files = tuple(sorted(film for film in with_text if film.parent == folder))
            self.sources.append(ImportSource("folder", folder, files=files))
        for film in left:
            if first_microphone_name(film):
                self._report(
                    "second-microphone", f"{film.name} is another recording of {first_microphone_name(film)}", film
                )
            elif film not in with_text and not unread:
                self._report("text-missing", f"no text for {film.name}", film)
        texts = {film.with_suffix(ending) for film in (*with_text, *listed) for ending in SIDECAR_SUFFIXES}
        for path in others:
            if path.name in HF_DATASETS_FILES or path in texts or find_vctk_audio(path):
                continue
            is_text = path.suffix in (".txt", ".lab") and not path.stem.lower().startswith(ABOUT_FILE_PREFIXES)
            if with_text and is_text and path.stem not in {film.stem for film in used}:
                self._report("media-missing", f"no recording for {path.name}", path)
            else:
                why = f": no recording named {path.stem}" if path.suffix.lower() in (".txt", ".lab") else ""
                self._report("source-unknown", f"{path.name} was skipped{why}", path)
        return not unread

    def _read_names(self, path: Path) -> tuple[tuple[str, Path | None], ...] | None:
        """Audio files by the names that a list has for them. None: the list cannot be read."""
        names: dict[str, None] = {}
        faulty: set[int] = set()
        try:
            if path.suffix.lower() in COLUMNAR_SUFFIXES:
                names = dict.fromkeys(read_arrow_audio_names(path))
            else:
                for row in read_transcript_list(path, self.encoding):
                    if isinstance(row, TranscriptRow):
                        self.places.setdefault(path, set()).add((row.audio, row.start))
                        names[row.audio] = None
                    else:
                        faulty |= set(row.lines)
        except VoxgraftError:
            return None
        found = {name: find_audio_file(path.parent, name) for name in names}
        # A file named on a line that cannot be used has its text there: that line is reported, not the file.
        sounds = list(found.values())
        if faulty:
            with path.open("rb") as stream:
                for number, line in enumerate(stream, 1):
                    if number not in faulty:
                        continue
                    # Without NULs, UTF-16 of Latin letters can be read as well.
                    text = line[:MAX_FAULTY_LINE_BYTES].decode("utf-8", "replace").replace("\0", "")
                    words = {*_FIELD_DELIMITERS.split(text), *_FIELD_DELIMITERS_AND_SPACES.split(text)}
                    sounds += [find_audio_file(path.parent, word) for word in sorted(words) if word]
        self.named |= {os.path.abspath(sound) for sound in sounds if sound}
        return tuple(sorted(found.items()))

    def _pair(self, subtitles: Sequence[Path], films: Sequence[Path], media: Path | None) -> set[Path]:
        """Pair every subtitle file with the media file of its name; returns the media that were used."""
        used: set[Path] = set()
        # Subtitles in the wanted language first, then those that name none. With the media given, any.
        own = canonical_language_code(self.language) or self.language
        spoken = {path: _language_in_name(path, films, subtitles, self.language) for path in subtitles}
        for path in sorted(spoken, key=lambda path: (spoken[path] is None, str(path))):
            named = spoken[path]
            if media is None and named is not None and named[1] != own:
                self._report("source-unknown", f"{path.name} is in another language ({named[1]}, not {own})", path)
                continue
            film = media or _find_media_beside(path, named[0] if named else path.stem, films)
            if film is None:
                self._report("media-missing", f"no recording for {path.name}", path)
            elif film in used:
                self._report("source-unknown", f"{film.name} has another text already", path)
            else:
                used.add(film)
                self.sources.append(ImportSource("subtitles", path, film))
        return used


def _is_voxgraft_manifest(path: Path) -> bool:
    """Whether a file is a manifest of voxgraft: its clips are cut already, and `data merge` takes them as they are."""
    try:
        with path.open("rb") as stream:
            return f'"{MANIFEST_HEADER_KEY}"'.encode() in stream.readline(200)
    except OSError:
        return False


def _language_in_name(
    subtitles: Path, films: Sequence[Path], others: Sequence[Path], language: str
) -> tuple[str, str] | None:
    """The film's name and the language in `film.am.srt`. An unknown code, or one without a film, is only a name."""
    if _find_media_beside(subtitles, subtitles.stem, films):
        return None
    for form in _LANGUAGE_SUFFIXES:
        match = form.match(subtitles.stem)
        if match is None:
            continue
        word, stem = match["language"], match["stem"]
        is_own = word.lower() == base_language(language)
        code = canonical_language_code(word) or (word.lower() if is_own else None)
        siblings = [path for path in others if path.stem == stem and path.parent == subtitles.parent]
        if code is not None and (siblings or _find_media_beside(subtitles, stem, films)):
            return stem, code
    return None


def _find_media_beside(subtitles: Path, stem: str, films: Sequence[Path]) -> Path | None:
    """The media file of a name: among those found, or beside subtitles that were given alone."""
    for film in films:
        if film.stem == stem and film.parent == subtitles.parent:
            return film
    beside = (subtitles.with_name(stem + ending) for ending in MEDIA_SUFFIXES)
    return next((path for path in beside if is_file(path)), None)


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
    return TranscriptRow(line, str(audio), text, text, **names, start=start, end=end, data=data)


def find_audio_file(folder: Path, name: str) -> Path | None:
    """The file that a list means; suffix and the usual folders may be left out."""
    given = Path(name.replace("\\", "/") if "/" not in name else name)
    for place in AUDIO_FOLDERS:
        for ending in ("", *AUDIO_SUFFIXES):
            path = folder / place / (str(given) + ending)
            if is_file(path):
                return path
    return None


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
            short[row.line] = stem if end == len(stem) else stem[:end].rstrip("-_. \t\r\n\f\v")
    useful = all(short.values()) and len(set(short.values())) >= min(MIN_RECORDINGS, len(set(stems.values())))
    return short if useful else stems


def read_transcript_list(path: Path, encoding: str | None = None) -> RowsOrProblems:
    """Rows of a list in order, and a problem for each line that is none."""
    text, broken = read_text_skipping_bad_lines(path, encoding)
    parsed = parse_transcript_jsonl if path.suffix.lower() in (".jsonl", ".json") else parse_transcript_table
    yield from (SourceProblem("text-encoding", found, path.name, line) for line, found in broken.items())
    yield from parsed(text, path.name)


def parse_transcript_jsonl(text: str, name: str) -> RowsOrProblems:
    """JSON lines as speech programs write them; the header of a manifest of voxgraft is no row."""
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if not line.strip():
            continue
        try:
            values = parse_json(line, name)
        except VoxgraftError as error:
            yield SourceProblem("table-line", error.finding.found, name, number)
            continue
        if isinstance(values, dict) and "voxgraft_manifest" in values:
            continue
        made = parse_transcript_row(values, number) if isinstance(values, dict) else "not a JSON object"
        yield _row_problem(made, values, name, number) if isinstance(made, str) else made


def parse_transcript_table(text: str, name: str) -> RowsOrProblems:
    """A table with or without a header: audio and text, and perhaps the normalized text or the speaker."""
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]
    # The first mark that most lines have, in order of rarity in texts.
    seen = lines[:200]
    delimiter = next((mark for mark in TABLE_DELIMITERS if sum(mark in line for line in seen) * 2 > len(seen)), None)
    if delimiter is None:
        raise FileError("table-unknown", f"{name} has no columns: {lines[0]!r:.80}" if lines else f"{name} is empty")
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    stream = io.StringIO(text, newline="")
    if delimiter in ",;":  # only these are used with quotes
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
    else:
        reader = csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    cells: list[tuple[int, list[str]] | SourceProblem] = []
    behind = 0
    while True:
        try:
            values = next(reader, None)
        except csv.Error as error:
            cells.append(SourceProblem("table-line", f"broken: {error}", name, behind + 1, reader.line_num))
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
    # A third column names speakers if there are few names, each of them often, and none is a sentence.
    third = [item[1][2] for item in cells if not isinstance(item, SourceProblem) and len(item[1]) == 3]
    labels = {value for value in third if value}
    is_few = len(third) >= 4 and len(labels) <= max(1, _MAX_SPEAKER_SHARE * len(third))
    speakers = is_few and not any(" " in value for value in labels)
    for item in cells:
        if isinstance(item, SourceProblem):
            yield item
            continue
        line, values = item
        if has_header and values == head:
            continue
        if has_header and len(values) != len(head):
            yield SourceProblem("table-line", f"{len(values)} columns, but the header has {len(head)}", name, line)
        elif has_header:
            named = dict(zip(head, values, strict=True))
            made = parse_transcript_row(named, line)
            yield _row_problem(made, named, name, line) if isinstance(made, str) else made
        elif len(values) not in (2, 3) or not values[0]:
            told = f"{len(values)} columns" if len(values) not in (2, 3) else "an empty column"
            yield SourceProblem("table-line", f"{told}, expected audio and text: {values!r:.80}", name, line)
        elif not values[1]:
            yield SourceProblem("transcript-empty", f"{values[0]} has no text", name, line)
        else:
            audio, said, more = (*values, "")[:3]
            spoken = said if speakers or not more else more
            yield TranscriptRow(line, audio, spoken, said, speaker=more if speakers else "")


def _row_problem(found: str, values: object, name: str, line: int) -> SourceProblem:
    """What is wrong with a row; an empty text has its own code."""
    given = {str(key).strip().lower(): value for key, value in values.items()} if isinstance(values, dict) else {}
    is_empty = found.startswith("no text") and any(given.get(key) == "" for key in COLUMN_ALIASES["text"])
    return SourceProblem("transcript-empty" if is_empty else "table-line", found, name, line)


def read_sidecar_rows(folder: Path, sounds: Sequence[Path], encoding: str | None = None) -> RowsOrProblems:
    """A row for each audio file with a text of the same name beside it."""
    for number, sound in enumerate(sounds, 1):
        text = find_sidecar(sound)
        name = str(sound.relative_to(folder))
        if text is None:
            yield SourceProblem("text-missing", f"no text file next to {name}", name)
            continue
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


def find_sidecar(sound: Path) -> Path | None:
    """The text of the same name beside an audio file, or as in VCTK: txt/p225/x.txt for wav48/p225/x.wav."""
    beside = next((path for ending in SIDECAR_SUFFIXES if is_file(path := sound.with_suffix(ending))), None)
    if beside or sound.parent.parent.name not in VCTK_AUDIO_FOLDERS or first_microphone_name(sound):
        return beside
    stem = _MICROPHONE_SUFFIX.sub("", sound.stem)
    path = sound.parent.parent.parent / "txt" / sound.parent.name / f"{stem}.txt"
    return path if is_file(path) else None


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
