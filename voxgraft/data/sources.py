"""What there is to import: goes through files and folders and finds recordings with their texts.

A source is one recording with its subtitles, or one list. Reads lists only to see which sounds they name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from voxgraft.audio.files import MEDIA_SUFFIXES
from voxgraft.core.errors import FileError, VoxgraftError
from voxgraft.core.files import format_error_reason, is_file, is_folder, path_exists, require_file
from voxgraft.core.languages import canonical_language_code
from voxgraft.data.folder import AudioStamp
from voxgraft.data.manifest import MANIFEST_HEADER_KEY, MANIFEST_NAME, SourceProblem
from voxgraft.data.subtitles import SUBTITLE_SUFFIXES
from voxgraft.data.tables import (
    AUDIO_FOLDERS,
    COLUMNAR_SUFFIXES,
    SIDECAR_SUFFIXES,
    TranscriptRow,
    find_audio_file,
    find_sidecar,
    find_vctk_audio,
    first_microphone_name,
    is_audio_file,
    read_arrow_audio_names,
    read_transcript_list,
)

__all__ = [
    "ImportSource",
    "SourceScan",
    "compute_audio_stamps",
    "compute_source_fingerprint",
    "find_sources",
    "sanitize_name",
]

SourceKind = Literal["subtitles", "list", "columns", "folder"]
TABLE_SUFFIXES = (".csv", ".tsv", ".psv", ".jsonl")
HASHED_EDGE_BYTES = 1 << 20
MAX_FAULTY_LINE_BYTES = 1000
_FIELD_DELIMITERS = re.compile(r"[ ]*[|\t;,\"{}\r\n]+[ ]*")
_FIELD_DELIMITERS_AND_SPACES = re.compile(r"[|\t;,\"{}:\s]+")
MAX_FULLY_HASHED_BYTES = 16 << 20
HASHED_AUDIO_EDGE_BYTES = 16 << 10
"""Of each sound of a folder: there may be a hundred thousand."""
# The longer form first: `film.pt-BR` is Portuguese, and not a film `film.pt` in Breton.
_LANGUAGE_SUFFIXES = (
    re.compile(r"^(?P<stem>.+)[._-](?P<language>[A-Za-z]{2,3})[-_](?:[A-Za-z]{2,4}|\d{3})$"),
    re.compile(r"^(?P<stem>.+)[._-](?P<language>[A-Za-z]{2,3})$"),
)
_UNSAFE_CHARACTERS = re.compile(r"[^\w.\-]+")
DATASET_FILES = ("problems.jsonl", "measures.jsonl", "report.html", "report.json")
DATASET_FOLDERS = ("imports", "clips")
HF_DATASETS_FILES = ("dataset_info.json", "dataset_dict.json", "state.json")
"""What the datasets library writes beside its columns."""
ABOUT_FILE_PREFIXES = ("readme", "license", "licence", "copying", "notice", "changelog", "speaker")
"""How names of files begin that are about a dataset, and no text of a sound."""
LIBRITTS_COPY_SUFFIXES = (".original.txt", ".trans.tsv", ".book.tsv")
"""How names of files end that have the texts of `.normalized.txt` once more, in the folders of LibriTTS."""
LIBRITTS_TABLES = ("speakers.tsv", "reader_book.tsv", "eval_sentences10.tsv")


@dataclass(frozen=True, slots=True)
class ImportSource:
    """One recording with its subtitles, or one list of recordings."""

    kind: SourceKind
    text: Path
    """The subtitles, the list, or the folder whose sounds have texts beside them."""
    media: Path | None = None
    files: tuple[Path, ...] = ()
    """Of a folder: the sounds that are meant, each with a text beside it."""
    sounds: tuple[tuple[str, Path | None], ...] = ()
    """Of a list: each sound by the name that the list has for it; None where the file is missing."""

    @property
    def name(self) -> str:
        """A name for its clips, before it is known whether another source has it."""
        path = self.media or self.text
        if tree := self.tree:
            return sanitize_name("-".join(tree))
        plain = path.resolve().name if self.kind == "folder" else path.stem
        if self.kind == "list" and plain.lower() in ("metadata", "manifest", "train", "validated"):
            plain = f"{path.resolve().parent.name}-{plain}"
        return sanitize_name(plain)

    @property
    def tree(self) -> tuple[str, str] | None:
        """Speaker and chapter of a folder that lies as in LibriTTS: 84/121123/84_121123_000007_000001.wav."""
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
    """A name that can be that of a folder, and leads to no other."""
    return _UNSAFE_CHARACTERS.sub("_", name).strip("._-")[:80] or "recording"


@dataclass(slots=True)
class SourceScan:
    """Everything that was found."""

    sources: list[ImportSource] = field(default_factory=list)
    problems: list[SourceProblem] = field(default_factory=list)


def find_sources(
    places: Sequence[Path], language: str, media: Path | None = None, encoding: str | None = None
) -> SourceScan:
    """Sources in files and folders, folders with all that lies below them; an error if there is none."""
    finder = _SourceFinder(language, encoding)
    found = finder.found
    files: list[Path] = []
    for place in places:
        if not path_exists(place):
            raise FileError("file-missing", f"{place.name} is not there", where=place)
        if is_folder(place):
            finder.scan_tree(place)
        else:
            files.append(place)
    finder.sort(files, media)
    found.sources = list(dict.fromkeys(found.sources))
    found.problems = list(dict.fromkeys(found.problems))
    if not found.sources:
        seen = "; ".join(problem.found for problem in found.problems[:3])
        where = ", ".join(map(str, places))
        raise FileError("source-none", seen or "no recording with a text", where=where)
    found.sources.sort(key=lambda source: str(source.text))
    return found


def compute_source_fingerprint(source: ImportSource) -> str:
    """A hash by which a source is known again wherever it lies: its texts, and size and ends of its sounds."""
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
    """What the sounds of a list hold, by name; None for one that is missing. By content: a copy has the same hash.

    A file with the size and the time of its known mark is not read again.
    """
    marks: dict[str, AudioStamp | None] = {}
    for name, path in source.sounds:
        if path is None:
            marks[name] = None
            continue
        try:
            status = path.stat()
            before = known.get(name)
            if before is None or before[:2] != (status.st_size, status.st_mtime_ns):
                content = hashlib.sha256(_read_edges(path, HASHED_AUDIO_EDGE_BYTES, 0)).hexdigest()
                before = (status.st_size, status.st_mtime_ns, content)
            marks[name] = before
        except OSError as error:
            raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
    return marks


def _read_edges(path: Path, edge: int, whole: int) -> bytes:
    """A small file whole, of a large one both ends, and its size."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        data = stream.read(edge)
        if size > max(whole, 2 * edge):
            stream.seek(-edge, os.SEEK_END)
        return data + stream.read() + str(size).encode()


@dataclass(slots=True)
class _SourceFinder:
    """Goes from folder to folder and knows which sounds the lists have named so far."""

    language: str
    encoding: str | None
    found: SourceScan = field(default_factory=SourceScan)
    named: set[str] = field(default_factory=set)
    places: dict[Path, set[tuple[str, float]]] = field(default_factory=dict)
    """Sounds of each list by name, and where in them a clip starts."""

    def scan_tree(self, folder: Path) -> None:
        """A folder with all that lies below it."""
        for root, folders, names in os.walk(folder, onerror=self._unreadable):
            here = Path(root)
            left_out = (
                (*DATASET_FILES, *DATASET_FOLDERS)
                if MANIFEST_NAME in names and _is_voxgraft_manifest(here / MANIFEST_NAME)
                else ()
            )
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in left_out)
            for name in (name for name in folders if os.path.islink(here / name)):
                self._tell("source-unknown", f"{name} is a link to a folder; name the folder itself", here / name)
            paths = [here / name for name in sorted(names) if not name.startswith(".") and name not in left_out]
            if not self.sort(paths):
                folders[:] = [name for name in folders if name not in AUDIO_FOLDERS]

    def _unreadable(self, error: OSError) -> None:
        self._tell("file-unreadable", format_error_reason(error), error.filename)

    def _tell(self, code: str, told: str, path: Path | str) -> None:
        self.found.problems.append(SourceProblem(code, told, str(path)))

    def sort(self, paths: Sequence[Path], media: Path | None = None) -> bool:
        """Sources among files that lie together; False if a list cannot be read, so that nobody knows its sounds."""
        subtitles, lists, columns, films, others = _sort_by_kind(_drop_libritts_copies(paths))
        own = [path for path in lists if _is_voxgraft_manifest(path)]
        for path in own:
            self._tell("source-own", f"{path} is the manifest of a dataset of ours", path)
        lists = [path for path in lists if path not in own]
        used = self._pair(subtitles, films, media)
        sounds = {path: self._read_names(path) for path in (*lists, *columns)}
        unread = [path for path, names in sounds.items() if names is None]
        lists = self._drop_repeated_lists(lists)
        self.found.sources += [ImportSource("list", path, sounds=sounds[path] or ()) for path in lists]
        self.found.sources += [ImportSource("columns", path) for path in columns]  # most have their sounds inside
        listed = {film for film in films if os.path.abspath(film) in self.named}
        left = [film for film in films if film not in used and film not in listed]
        with_text = {film for film in left if is_audio_file(film) and find_sidecar(film)}
        for folder in sorted({film.parent for film in with_text}):
            files = tuple(sorted(film for film in with_text if film.parent == folder))
            self.found.sources.append(ImportSource("folder", folder, files=files))
        for film in left:
            if first_microphone_name(film):
                self._tell("second-microphone", f"{film.name} is {first_microphone_name(film)} again", film)
            elif film not in with_text and not unread:
                self._tell("text-missing", f"no text for {film.name}", film)
        texts = {film.with_suffix(ending) for film in (*with_text, *listed) for ending in SIDECAR_SUFFIXES}
        for path in others:
            if path.name in HF_DATASETS_FILES or path in texts or find_vctk_audio(path):
                continue
            is_text = path.suffix in (".txt", ".lab") and not path.stem.lower().startswith(ABOUT_FILE_PREFIXES)
            if with_text and is_text and path.stem not in {film.stem for film in used}:
                self._tell("media-missing", f"no recording for {path.name}", path)
            else:
                self._tell("source-unknown", f"{path.name} was not looked at{_explain_unknown_file(path)}", path)
        return not unread

    def _read_names(self, path: Path) -> tuple[tuple[str, Path | None], ...] | None:
        """Sounds by the names that a list has for them, noted as named. None: the list cannot be read."""
        found: dict[str, Path | None] = {}
        faulty: set[int] = set()
        try:
            for name in self._names(path, faulty):
                if name not in found:
                    found[name] = find_audio_file(path.parent, name)
        except VoxgraftError:
            return None
        # A sound on a line that cannot be used has a text there: that line is what is wrong, and it is reported.
        sounds = (*found.values(), *(_find_audio_on_lines(path, faulty) if faulty else ()))
        self.named |= {os.path.abspath(sound) for sound in sounds if sound}
        return tuple(sorted(found.items()))

    def _drop_repeated_lists(self, lists: Sequence[Path]) -> list[Path]:
        """Lists without those of which every line is of a sound, and of a place in it, that a longer one has already:
        `metadata_train.csv` beside `metadata.csv` would give every clip twice, and a second speaker."""
        kept: list[Path] = []
        for path in sorted(lists, key=lambda path: -len(self.places.get(path, ()))):
            places = self.places.get(path, set())
            longer = next((one for one in kept if places and places <= self.places[one]), None)
            if longer is None:
                kept.append(path)
            else:
                self._tell("list-repeated", f"all {len(places):,} sounds of {path.name} are in {longer.name}", path)
        return [path for path in lists if path in kept]

    def _names(self, path: Path, faulty: set[int]) -> Iterator[str]:
        if path.suffix.lower() in COLUMNAR_SUFFIXES:
            yield from read_arrow_audio_names(path)
            return
        for row in read_transcript_list(path, self.encoding):
            if isinstance(row, TranscriptRow):
                self.places.setdefault(path, set()).add((row.audio, row.start))
                yield row.audio
            else:
                faulty |= set(row.lines)

    def _pair(self, subtitles: Sequence[Path], films: Sequence[Path], media: Path | None) -> set[Path]:
        """Every subtitle file with the media file of its name; gives the media that were used."""
        used: set[Path] = set()
        for path in self._filter_by_language(subtitles, films, media):
            film = media or _find_media_for_subtitles(path, films, subtitles, self.language)
            if film is None:
                self._tell("media-missing", f"no recording for {path.name}", path)
            elif film in used:
                self._tell("source-unknown", f"{film.name} has another text already", path)
            else:
                used.add(film)
                self.found.sources.append(ImportSource("subtitles", path, film))
        return used

    def _filter_by_language(
        self, subtitles: Sequence[Path], films: Sequence[Path], media: Path | None
    ) -> Iterator[Path]:
        """Subtitle files of the language first, then those that name none. With the media given, any."""
        own = canonical_language_code(self.language) or self.language
        spoken = {path: _language_in_name(path, films, subtitles, self.language) for path in subtitles}
        for path in sorted(spoken, key=lambda path: (spoken[path] is None, str(path))):
            named = spoken[path]
            if media is None and named is not None and named[1] != own:
                self._tell("source-unknown", f"{path.name} is of another language ({named[1]}, not {own})", path)
            else:
                yield path


def _find_audio_on_lines(path: Path, lines: Set[int]) -> Iterator[Path]:
    """Sounds that are named on some lines of a list, in whatever form these are."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number not in lines:
                continue
            text = line[:MAX_FAULTY_LINE_BYTES].decode("utf-8", "replace").replace("\0", "")  # UTF-16 as well, if Latin
            names = {*_FIELD_DELIMITERS.split(text), *_FIELD_DELIMITERS_AND_SPACES.split(text)}
            found = (find_audio_file(path.parent, name) for name in sorted(names) if name)
            yield from (sound for sound in found if sound is not None)


def _drop_libritts_copies(paths: Iterable[Path]) -> list[Path]:
    """Without what LibriTTS has beside sounds and texts."""
    kept = [path for path in paths if path.name not in LIBRITTS_TABLES]
    texts = {path.name.partition(".")[0] for path in kept if path.name.endswith(".normalized.txt")}
    return [path for path in kept if not (texts and path.name.endswith(LIBRITTS_COPY_SUFFIXES))]


def _sort_by_kind(paths: Iterable[Path]) -> tuple[list[Path], ...]:
    """Subtitles, lists, columns, media, and all others."""
    kinds: tuple[list[Path], ...] = ([], [], [], [], [])
    for path in dict.fromkeys(paths):
        ending = path.suffix.lower()
        is_list = ending in TABLE_SUFFIXES or path.name.lower() == "metadata.txt"
        is_kind = (ending in SUBTITLE_SUFFIXES, is_list, ending in COLUMNAR_SUFFIXES, ending in MEDIA_SUFFIXES, True)
        kinds[is_kind.index(True)].append(path)
    return kinds


def _is_voxgraft_manifest(path: Path) -> bool:
    """Whether a file begins as a manifest of ours: its clips were cut once, and `data merge` takes them as they are."""
    try:
        with path.open("rb") as stream:
            return f'"{MANIFEST_HEADER_KEY}"'.encode() in stream.readline(200)
    except OSError:
        return False


def _explain_unknown_file(path: Path) -> str:
    return f": no recording named {path.stem}" if path.suffix.lower() in (".txt", ".lab") else ""


def _language_in_name(
    subtitles: Path, films: Sequence[Path], others: Sequence[Path], language: str
) -> tuple[str, str] | None:
    """The film's name and the language in `film.am.srt`. What is no known code, or names no film, is only a name."""
    if _find_media_beside(subtitles, subtitles.stem, films):
        return None
    for form in _LANGUAGE_SUFFIXES:
        match = form.match(subtitles.stem)
        if match is None:
            continue
        word, stem = match["language"], match["stem"]
        is_own = word.lower() == language.lower().partition("-")[0]
        code = canonical_language_code(word) or (word.lower() if is_own else None)
        siblings = [path for path in others if path.stem == stem and path.parent == subtitles.parent]
        if code is not None and (siblings or _find_media_beside(subtitles, stem, films)):
            return stem, code
    return None


def _find_media_beside(subtitles: Path, stem: str, films: Sequence[Path]) -> Path | None:
    """The media file of a name, among those that were found, or beside the subtitles where they were named alone."""
    for film in films:
        if film.stem == stem and film.parent == subtitles.parent:
            return film
    beside = (subtitles.with_name(stem + ending) for ending in MEDIA_SUFFIXES)
    return next((path for path in beside if is_file(path)), None)


def _find_media_for_subtitles(
    subtitles: Path, films: Sequence[Path], others: Sequence[Path], language: str
) -> Path | None:
    """The media file with the same name, with or without the language."""
    named = _language_in_name(subtitles, films, others, language)
    return _find_media_beside(subtitles, subtitles.stem if named is None else named[0], films)
