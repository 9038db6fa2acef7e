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

from voxgraft.errors import FileError, VoxgraftError
from voxgraft.files import existing_file, is_file, is_folder, is_there, reason_of
from voxgraft.importing.columns import COLUMN_ENDINGS, sounds_named
from voxgraft.importing.language_codes import language_of_code
from voxgraft.importing.lists import SIDE_CARS, first_microphone, is_sound, read_list, side_car, sound_of_text
from voxgraft.importing.manifest import HEADER_KEY, NAME
from voxgraft.importing.media import MEDIA_ENDINGS
from voxgraft.importing.problems import Problem
from voxgraft.importing.rows import AUDIO_FOLDERS, Row, find_audio
from voxgraft.importing.subtitles import SUBTITLE_ENDINGS

__all__ = ["Found", "SoundMark", "Source", "find_sources", "fingerprint", "safe_name", "sound_marks"]

SoundMark = tuple[int, int, str]
"""Bytes, time of change in nanoseconds, and a hash of size and both ends of a sound."""
Kind = Literal["subtitles", "list", "columns", "folder"]
TABLE_ENDINGS = (".csv", ".tsv", ".psv", ".jsonl")
EDGE_BYTES = 1 << 20
MAX_FAULTY_LINE = 1000
_DELIMITERS = re.compile(r"[ ]*[|\t;,\"{}\r\n]+[ ]*")
_DELIMITERS_AND_SPACES = re.compile(r"[|\t;,\"{}:\s]+")
MAX_WHOLE_BYTES = 16 << 20
SOUND_EDGE_BYTES = 16 << 10
"""Of each sound of a folder: there may be a hundred thousand."""
# The longer form first: `film.pt-BR` is Portuguese, and not a film `film.pt` in Breton.
_LANGUAGES = (
    re.compile(r"^(?P<stem>.+)[._-](?P<language>[A-Za-z]{2,3})[-_](?:[A-Za-z]{2,4}|\d{3})$"),
    re.compile(r"^(?P<stem>.+)[._-](?P<language>[A-Za-z]{2,3})$"),
)
_UNSAFE = re.compile(r"[^\w.\-]+")
OWN_FILES = ("problems.jsonl", "measures.jsonl", "report.html", "report.json")
OWN_FOLDERS = ("imports", "clips")
FORM_FILES = ("dataset_info.json", "dataset_dict.json", "state.json")
"""What the datasets library writes beside its columns."""
ABOUT = ("readme", "license", "licence", "copying", "notice", "changelog", "speaker")
"""How names of files begin that are about a dataset, and no text of a sound."""
LIBRITTS_COPIES = (".original.txt", ".trans.tsv", ".book.tsv")
"""How names of files end that have the texts of `.normalized.txt` once more, in the folders of LibriTTS."""
LIBRITTS_TABLES = ("speakers.tsv", "reader_book.tsv", "eval_sentences10.tsv")


@dataclass(frozen=True, slots=True)
class Source:
    """One recording with its subtitles, or one list of recordings."""

    kind: Kind
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
            return safe_name("-".join(tree))
        plain = path.resolve().name if self.kind == "folder" else path.stem
        if self.kind == "list" and plain.lower() in ("metadata", "manifest", "train", "validated"):
            plain = f"{path.resolve().parent.name}-{plain}"
        return safe_name(plain)

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


def safe_name(name: str) -> str:
    """A name that can be that of a folder, and leads to no other."""
    return _UNSAFE.sub("_", name).strip("._-")[:80] or "recording"


@dataclass(slots=True)
class Found:
    """Everything that was found."""

    sources: list[Source] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def find_sources(
    places: Sequence[Path], language: str, media: Path | None = None, encoding: str | None = None
) -> Found:
    """Sources in files and folders, folders with all that lies below them; an error if there is none."""
    finder = _Finder(language, encoding)
    found = finder.found
    files: list[Path] = []
    for place in places:
        if not is_there(place):
            raise FileError("file-missing", f"{place.name} is not there", where=place)
        if is_folder(place):
            finder.look_through(place)
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


def fingerprint(source: Source) -> str:
    """A hash by which a source is known again wherever it lies: its texts, and size and ends of its sounds."""
    digest = hashlib.sha256(source.kind.encode())
    try:
        for sound in source.files:
            digest.update(sound.name.encode("utf-8", "surrogateescape") + b"\0" + _edges(sound, SOUND_EDGE_BYTES, 0))
            if (text := side_car(sound)) is not None:
                digest.update(hashlib.sha256(text.read_bytes()).digest())
        for path in (source.text, source.media):
            if path is not None and source.kind != "folder":
                digest.update(_edges(existing_file(path), EDGE_BYTES, MAX_WHOLE_BYTES))
    except OSError as error:
        raise FileError("file-unreadable", f"{source.text.name}: {reason_of(error)}", where=source.text) from None
    return digest.hexdigest()


def sound_marks(source: Source, known: Mapping[str, SoundMark | None]) -> dict[str, SoundMark | None]:
    """What the sounds of a list hold, by name; None for one that is missing. By content: a copy has the same hash.

    A file with the size and the time of its known mark is not read again.
    """
    marks: dict[str, SoundMark | None] = {}
    for name, path in source.sounds:
        if path is None:
            marks[name] = None
            continue
        try:
            status = path.stat()
            before = known.get(name)
            if before is None or before[:2] != (status.st_size, status.st_mtime_ns):
                content = hashlib.sha256(_edges(path, SOUND_EDGE_BYTES, 0)).hexdigest()
                before = (status.st_size, status.st_mtime_ns, content)
            marks[name] = before
        except OSError as error:
            raise FileError("file-unreadable", f"{path.name}: {reason_of(error)}", where=path) from None
    return marks


def _edges(path: Path, edge: int, whole: int) -> bytes:
    """A small file whole, of a large one both ends, and its size."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        data = stream.read(edge)
        if size > max(whole, 2 * edge):
            stream.seek(-edge, os.SEEK_END)
        return data + stream.read() + str(size).encode()


@dataclass(slots=True)
class _Finder:
    """Goes from folder to folder and knows which sounds the lists have named so far."""

    language: str
    encoding: str | None
    found: Found = field(default_factory=Found)
    named: set[str] = field(default_factory=set)
    places: dict[Path, set[tuple[str, float]]] = field(default_factory=dict)
    """Sounds of each list by name, and where in them a clip starts."""

    def look_through(self, folder: Path) -> None:
        """A folder with all that lies below it."""
        for root, folders, names in os.walk(folder, onerror=self._unreadable):
            here = Path(root)
            left_out = (*OWN_FILES, *OWN_FOLDERS) if NAME in names and _is_own(here / NAME) else ()
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in left_out)
            for name in (name for name in folders if os.path.islink(here / name)):
                self._tell("source-unknown", f"{name} is a link to a folder; name the folder itself", here / name)
            paths = [here / name for name in sorted(names) if not name.startswith(".") and name not in left_out]
            if not self.sort(paths):
                folders[:] = [name for name in folders if name not in AUDIO_FOLDERS]

    def _unreadable(self, error: OSError) -> None:
        self._tell("file-unreadable", reason_of(error), error.filename)

    def _tell(self, code: str, told: str, path: Path | str) -> None:
        self.found.problems.append(Problem(code, told, str(path)))

    def sort(self, paths: Sequence[Path], media: Path | None = None) -> bool:
        """Sources among files that lie together; False if a list cannot be read, so that nobody knows its sounds."""
        subtitles, lists, columns, films, others = _kinds(_without_copies(paths))
        own = [path for path in lists if _is_own(path)]
        for path in own:
            self._tell("source-own", f"{path} is the manifest of a dataset of ours", path)
        lists = [path for path in lists if path not in own]
        used = self._pair(subtitles, films, media)
        sounds = {path: self._read_names(path) for path in (*lists, *columns)}
        unread = [path for path, names in sounds.items() if names is None]
        lists = self._without_repeated(lists)
        self.found.sources += [Source("list", path, sounds=sounds[path] or ()) for path in lists]
        self.found.sources += [Source("columns", path) for path in columns]  # most have their sounds inside
        listed = {film for film in films if os.path.abspath(film) in self.named}
        left = [film for film in films if film not in used and film not in listed]
        with_text = {film for film in left if is_sound(film) and side_car(film)}
        for folder in sorted({film.parent for film in with_text}):
            files = tuple(sorted(film for film in with_text if film.parent == folder))
            self.found.sources.append(Source("folder", folder, files=files))
        for film in left:
            if first_microphone(film):
                self._tell("second-microphone", f"{film.name} is {first_microphone(film)} again", film)
            elif film not in with_text and not unread:
                self._tell("text-missing", f"no text for {film.name}", film)
        texts = {film.with_suffix(ending) for film in (*with_text, *listed) for ending in SIDE_CARS}
        for path in others:
            if path.name in FORM_FILES or path in texts or sound_of_text(path):
                continue
            is_text = path.suffix in (".txt", ".lab") and not path.stem.lower().startswith(ABOUT)
            if with_text and is_text and path.stem not in {film.stem for film in used}:
                self._tell("media-missing", f"no recording for {path.name}", path)
            else:
                self._tell("source-unknown", f"{path.name} was not looked at{_why(path)}", path)
        return not unread

    def _read_names(self, path: Path) -> tuple[tuple[str, Path | None], ...] | None:
        """Sounds by the names that a list has for them, noted as named. None: the list cannot be read."""
        found: dict[str, Path | None] = {}
        faulty: set[int] = set()
        try:
            for name in self._names(path, faulty):
                if name not in found:
                    found[name] = find_audio(path.parent, name)
        except VoxgraftError:
            return None
        # A sound on a line that cannot be used has a text there: that line is what is wrong, and it is reported.
        sounds = (*found.values(), *(_sounds_on(path, faulty) if faulty else ()))
        self.named |= {os.path.abspath(sound) for sound in sounds if sound}
        return tuple(sorted(found.items()))

    def _without_repeated(self, lists: Sequence[Path]) -> list[Path]:
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
        if path.suffix.lower() in COLUMN_ENDINGS:
            yield from sounds_named(path)
            return
        for row in read_list(path, self.encoding):
            if isinstance(row, Row):
                self.places.setdefault(path, set()).add((row.audio, row.start))
                yield row.audio
            else:
                faulty |= set(row.lines)

    def _pair(self, subtitles: Sequence[Path], films: Sequence[Path], media: Path | None) -> set[Path]:
        """Every subtitle file with the media file of its name; gives the media that were used."""
        used: set[Path] = set()
        for path in self._of_language(subtitles, films, media):
            film = media or _film_of(path, films, subtitles, self.language)
            if film is None:
                self._tell("media-missing", f"no recording for {path.name}", path)
            elif film in used:
                self._tell("source-unknown", f"{film.name} has another text already", path)
            else:
                used.add(film)
                self.found.sources.append(Source("subtitles", path, film))
        return used

    def _of_language(self, subtitles: Sequence[Path], films: Sequence[Path], media: Path | None) -> Iterator[Path]:
        """Subtitle files of the language first, then those that name none. With the media given, any."""
        own = language_of_code(self.language) or self.language
        spoken = {path: _named_language(path, films, subtitles, self.language) for path in subtitles}
        for path in sorted(spoken, key=lambda path: (spoken[path] is None, str(path))):
            named = spoken[path]
            if media is None and named is not None and named[1] != own:
                self._tell("source-unknown", f"{path.name} is of another language ({named[1]}, not {own})", path)
            else:
                yield path


def _sounds_on(path: Path, lines: Set[int]) -> Iterator[Path]:
    """Sounds that are named on some lines of a list, in whatever form these are."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number not in lines:
                continue
            text = line[:MAX_FAULTY_LINE].decode("utf-8", "replace").replace("\0", "")  # UTF-16 as well, if Latin
            names = {*_DELIMITERS.split(text), *_DELIMITERS_AND_SPACES.split(text)}
            found = (find_audio(path.parent, name) for name in sorted(names) if name)
            yield from (sound for sound in found if sound is not None)


def _without_copies(paths: Iterable[Path]) -> list[Path]:
    """Without what LibriTTS has beside sounds and texts."""
    kept = [path for path in paths if path.name not in LIBRITTS_TABLES]
    texts = {path.name.partition(".")[0] for path in kept if path.name.endswith(".normalized.txt")}
    return [path for path in kept if not (texts and path.name.endswith(LIBRITTS_COPIES))]


def _kinds(paths: Iterable[Path]) -> tuple[list[Path], ...]:
    """Subtitles, lists, columns, media, and all others."""
    kinds: tuple[list[Path], ...] = ([], [], [], [], [])
    for path in dict.fromkeys(paths):
        ending = path.suffix.lower()
        is_list = ending in TABLE_ENDINGS or path.name.lower() == "metadata.txt"
        is_kind = (ending in SUBTITLE_ENDINGS, is_list, ending in COLUMN_ENDINGS, ending in MEDIA_ENDINGS, True)
        kinds[is_kind.index(True)].append(path)
    return kinds


def _is_own(path: Path) -> bool:
    """Whether a file begins as a manifest of ours: its clips were cut once, and `data merge` takes them as they are."""
    try:
        with path.open("rb") as stream:
            return f'"{HEADER_KEY}"'.encode() in stream.readline(200)
    except OSError:
        return False


def _why(path: Path) -> str:
    return f": no recording named {path.stem}" if path.suffix.lower() in (".txt", ".lab") else ""


def _named_language(
    subtitles: Path, films: Sequence[Path], others: Sequence[Path], language: str
) -> tuple[str, str] | None:
    """The film's name and the language in `film.am.srt`. What is no known code, or names no film, is only a name."""
    if _beside(subtitles, subtitles.stem, films):
        return None
    for form in _LANGUAGES:
        match = form.match(subtitles.stem)
        if match is None:
            continue
        word, stem = match["language"], match["stem"]
        is_own = word.lower() == language.lower().partition("-")[0]
        code = language_of_code(word) or (word.lower() if is_own else None)
        siblings = [path for path in others if path.stem == stem and path.parent == subtitles.parent]
        if code is not None and (siblings or _beside(subtitles, stem, films)):
            return stem, code
    return None


def _beside(subtitles: Path, stem: str, films: Sequence[Path]) -> Path | None:
    """The media file of a name, among those that were found, or beside the subtitles where they were named alone."""
    for film in films:
        if film.stem == stem and film.parent == subtitles.parent:
            return film
    beside = (subtitles.with_name(stem + ending) for ending in MEDIA_ENDINGS)
    return next((path for path in beside if is_file(path)), None)


def _film_of(subtitles: Path, films: Sequence[Path], others: Sequence[Path], language: str) -> Path | None:
    """The media file with the same name, with or without the language."""
    named = _named_language(subtitles, films, others, language)
    return _beside(subtitles, subtitles.stem if named is None else named[0], films)
