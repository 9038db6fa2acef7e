"""What there is to import: goes through files and folders and finds recordings with their texts.

A source is one recording with its subtitles, or one list. Reads no text and no sound.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from voxgraft.errors import FileError
from voxgraft.files import existing_file, is_file, is_folder, is_there
from voxgraft.importing.columns import COLUMN_ENDINGS
from voxgraft.importing.lists import SIDE_CARS, is_sound
from voxgraft.importing.media import MEDIA_ENDINGS
from voxgraft.importing.problems import Problem
from voxgraft.importing.subtitles import SUBTITLE_ENDINGS

__all__ = ["Found", "Source", "find_sources", "fingerprint"]

Kind = Literal["subtitles", "list", "columns", "folder"]
TABLE_ENDINGS = (".csv", ".tsv", ".psv", ".jsonl")
EDGE_BYTES = 1 << 20
MAX_WHOLE_BYTES = 16 << 20
_LANGUAGE = re.compile(r"^(?P<stem>.+)[._-](?P<language>[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?)$")
_UNSAFE = re.compile(r"[^\w.\-]+")
OWN_FILES = ("manifest.jsonl", "problems.jsonl", "measures.jsonl")


@dataclass(frozen=True, slots=True)
class Source:
    """One recording with its subtitles, or one list of recordings."""

    kind: Kind
    text: Path
    """The subtitles, the list, or the folder whose sounds have texts beside them."""
    media: Path | None = None

    @property
    def name(self) -> str:
        """A name for its clips, before it is known whether another source has it."""
        path = self.media or self.text
        plain = path.name if self.kind == "folder" else path.stem
        if self.kind == "list" and plain.lower() in ("metadata", "manifest", "train", "validated"):
            plain = f"{path.resolve().parent.name}-{plain}"
        return _UNSAFE.sub("_", plain).strip("._-")[:80] or "recording"

    def to_json(self) -> dict[str, Any]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}


@dataclass(slots=True)
class Found:
    """Everything that was found."""

    sources: list[Source] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def find_sources(places: Sequence[Path], language: str, media: Path | None = None) -> Found:
    """Sources in files and folders, folders with all that lies below them; an error if there is none."""
    found = Found()
    files: list[Path] = []
    for place in places:
        if not is_there(place):
            raise FileError("file-missing", f"{place.name} is not there", where=place)
        if is_folder(place):
            _look_through(place, language, found)
        else:
            files.append(place)
    _sort_files(files, language, found, media)
    if not found.sources:
        seen = "; ".join(problem.found for problem in found.problems[:3])
        where = ", ".join(map(str, places))
        raise FileError("source-none", seen or "no recording with a text", where=where)
    found.sources.sort(key=lambda source: str(source.text))
    return found


def fingerprint(source: Source) -> str:
    """A hash by which a source is known again wherever it lies: its text, and size and ends of its sound."""
    digest = hashlib.sha256(source.kind.encode())
    if source.kind == "folder":
        for path in sorted(source.text.rglob("*")):
            if path.is_file():
                digest.update(
                    f"{path.relative_to(source.text)}:{path.stat().st_size}".encode("utf-8", "surrogateescape")
                )
        return digest.hexdigest()
    digest.update(_ends(source.text))
    if source.media is not None:
        digest.update(_ends(source.media))
    return digest.hexdigest()


def _ends(path: Path) -> bytes:
    """A small file whole, of a large one both ends, and its size."""
    size = existing_file(path).stat().st_size
    with path.open("rb") as stream:
        data = stream.read(EDGE_BYTES)
        if size > MAX_WHOLE_BYTES:
            stream.seek(-EDGE_BYTES, os.SEEK_END)
        return data + stream.read() + str(size).encode()


def _look_through(folder: Path, language: str, found: Found) -> None:
    for root, folders, names in os.walk(folder):
        folders.sort()
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = Path(root)
        if "manifest.jsonl" in names and "imports" in folders:
            folders[:] = [name for name in folders if name not in ("imports", "clips")]
        paths = [here / name for name in sorted(names) if not name.startswith(".") and name not in OWN_FILES[1:]]
        before = len(found.sources)
        _sort_files(paths, language, found)
        if any(source.kind == "list" for source in found.sources[before:]):
            folders[:] = [name for name in folders if name not in ("wavs", "wav", "audio", "clips", "audios")]


def _sort_files(paths: Sequence[Path], language: str, found: Found, media: Path | None = None) -> None:
    """Sources among files that lie together."""
    subtitles = [path for path in paths if path.suffix.lower() in SUBTITLE_ENDINGS]
    lists = [path for path in paths if path.suffix.lower() in TABLE_ENDINGS or path.name.lower() == "metadata.txt"]
    columns = [path for path in paths if path.suffix.lower() in COLUMN_ENDINGS]
    films = [path for path in paths if path.suffix.lower() in MEDIA_ENDINGS]
    used = _pair(subtitles, films, media, language, found)
    found.sources += [Source("list", path) for path in lists]
    found.sources += [Source("columns", path) for path in columns]
    left = [film for film in films if film not in used]
    with_text = [film for film in left if is_sound(film) and _side_car(film)]
    for folder in dict.fromkeys(film.parent for film in with_text):
        found.sources.append(Source("folder", folder))
    beside_list = bool(lists)
    for film in left:
        if film not in with_text and not beside_list:
            found.problems.append(Problem("text-missing", f"no text for {film.name}", str(film)))
    known = {*subtitles, *lists, *columns, *films}
    for path in paths:
        if path not in known and not _is_side_car(path):
            found.problems.append(Problem("source-unknown", f"{path.name} was not looked at", str(path)))


def _pair(
    subtitles: Sequence[Path], films: Sequence[Path], media: Path | None, language: str, found: Found
) -> set[Path]:
    """Every subtitle file with the media file of its name; gives the media that were used."""
    used: set[Path] = set()
    for path in _of_language(subtitles, language, found):
        film = media or _film_of(path, films)
        if film is None:
            found.problems.append(Problem("media-missing", f"no recording for {path.name}", str(path)))
        elif film in used:
            found.problems.append(Problem("source-unknown", f"{film.name} has another text already", str(path)))
        else:
            used.add(film)
            found.sources.append(Source("subtitles", path, film))
    return used


def _of_language(subtitles: Sequence[Path], language: str, found: Found) -> Iterable[Path]:
    """Of several subtitle files of one film those of the language; one that names no language is taken for it."""
    own = language.lower().partition("-")[0]
    stems = {path.stem for path in subtitles}
    for path in sorted(subtitles, key=lambda path: (not _LANGUAGE.match(path.stem), str(path))):
        named = _LANGUAGE.match(path.stem)
        other = named is not None and named["language"].lower().partition("-")[0][:2] != own[:2]
        siblings = {stem for stem in stems if named and stem != path.stem and stem.startswith(named["stem"])}
        if other and siblings:
            found.problems.append(Problem("source-unknown", f"{path.name} is of another language", str(path)))
        else:
            yield path


def _film_of(subtitles: Path, films: Sequence[Path]) -> Path | None:
    """The media file with the same name, with or without the language; it may lie beside files named alone."""
    named = _LANGUAGE.match(subtitles.stem)
    stems = [subtitles.stem, *([named["stem"]] if named else [])]
    for stem in stems:
        for film in films:
            if film.stem == stem and film.parent == subtitles.parent:
                return film
        for ending in MEDIA_ENDINGS:
            if is_file(beside := subtitles.with_name(stem + ending)):
                return beside
    return None


def _side_car(sound: Path) -> bool:
    return any(is_file(sound.with_suffix(ending)) for ending in SIDE_CARS)


def _is_side_car(path: Path) -> bool:
    return path.suffix.lower() in (".txt", ".lab") or path.name in OWN_FILES or path.suffix.lower() == ".json"
