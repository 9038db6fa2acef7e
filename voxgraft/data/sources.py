"""Find what there is to import in files and folders, and recognize a source that was imported before.

A source is one recording with its subtitles, one list (`data/lists.py`), or one folder of audio files with a text
beside each. `find_sources` goes through files and folders and pairs recordings with their texts. Opens no audio.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

from voxgraft.audio.files import AUDIO_SUFFIXES, MEDIA_SUFFIXES, VIDEO_SUFFIXES
from voxgraft.core.errors import FileError, VoxgraftError
from voxgraft.core.files import format_error_reason, is_file, is_folder, is_manifest, path_exists, require_file
from voxgraft.core.languages import base_language, canonical_language_code
from voxgraft.core.results import pluralize
from voxgraft.data.folder import AudioStamp
from voxgraft.data.lists import (
    AUDIO_FOLDERS,
    COLUMNAR_SUFFIXES,
    KALDI_AUDIO,
    KALDI_OTHER_FILES,
    KALDI_SEGMENTS,
    KALDI_SPEAKERS,
    KALDI_TEXT,
    SIDECAR_SUFFIXES,
    TranscriptRow,
    find_audio_file,
    find_exact_sidecar,
    find_sidecar,
    find_vctk_audio,
    first_microphone_name,
    is_list,
    list_folder,
    list_parts,
    match_audio_files,
    match_sidecar,
    names_its_columns,
    read_arrow_audio_names,
    read_transcript_list,
)
from voxgraft.data.manifest import MANIFEST_NAME, SourceProblem
from voxgraft.data.names import FileMatch, Listings, describe_alike, iter_alike, normalize_name
from voxgraft.data.subtitles import SUBTITLE_SUFFIXES, is_label_track

SourceKind = Literal["subtitles", "list", "columns", "folder"]
_SoundsByName = tuple[tuple[str, Path | None], ...]
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
# Folders for parts of one dataset: `train/anna` and `test/anna` are one person.
PARTS = "train|training|test|testing|dev|eval|val|valid|validation"
DATASET_FILES = ("problems.jsonl", "measures.jsonl", "heard.jsonl", "report.html", "report.json")
DATASET_FOLDERS = ("imports", "clips", "transcripts")
# What the Hugging Face datasets library writes beside its columns.
HF_DATASETS_FILES = ("dataset_info.json", "dataset_dict.json", "state.json")
# XTTS's web UIs write the language beside their tables; `--language` says it here.
LANGUAGE_FILE = "lang.txt"
# Beginnings of names of files about a dataset, which are not texts of audio files.
ABOUT_FILE_PREFIXES = ("readme", "license", "licence", "copying", "notice", "changelog", "speaker")
# In LibriTTS these hold the texts of `.normalized.txt` a second time.
LIBRITTS_COPY_SUFFIXES = (".original.txt", ".trans.tsv", ".book.tsv")
LIBRITTS_TABLES = ("speakers.tsv", "reader_book.tsv", "eval_sentences10.tsv")
# Common Voice: the list of all clips that people accepted, its three parts, lists of clips that nobody accepted, and
# tables that are no lists of clips.
COMMON_VOICE_LIST, COMMON_VOICE_PARTS = "validated.tsv", ("train.tsv", "dev.tsv", "test.tsv")
COMMON_VOICE_UNACCEPTED = ("invalidated.tsv", "other.tsv")
COMMON_VOICE_TABLES = ("clip_durations.tsv", "reported.tsv", "validated_sentences.tsv", "unvalidated_sentences.tsv")
COMMON_VOICE_COLUMNS = frozenset(("client_id", "path", "sentence"))
# Older versions did not know these endings.
LATER_AUDIO_SUFFIXES = (".m4b", ".caf", ".au")
LIST_CODES = ("list-numbers", "list-unaccepted")
_NUMBER = re.compile(r"[-+]?[\d.,:]+(e[-+]?\d+)?", re.IGNORECASE)


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
    roots: tuple[Path, ...] = ()
    """Folders beside its own in which a list may name audio files: those that the user named."""

    @property
    def folder(self) -> Path:
        """The folder that names of audio files are relative to."""
        return self.text if self.kind == "folder" else list_folder(self.text)

    @property
    def name(self) -> str:
        """A name for its clips, which another source may have as well."""
        path = self.media or self.text
        if tree := self.tree:
            return sanitize_name("-".join(tree))
        plain = path.resolve().name if self.kind == "folder" else path.stem
        if self.kind == "list" and (plain == KALDI_TEXT or path.suffix == ".data"):
            return sanitize_name(list_folder(path.resolve()).name)
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

    @property
    def default_speaker(self) -> str:
        """The speaker by the place of the source, if it names none; empty: the place says nothing.

        In M-AILABS the speaker is a folder (`by_book/female/NAME/BOOK/metadata.csv`). Parts of one dataset, each with
        its own list (`train/metadata.csv`, `metadata_eval.csv`), have one speaker together.
        """
        if tree := self.tree:
            return tree[0]
        place = self.text.resolve()
        folders = place.parent.parts
        if self.kind == "list" and len(folders) > 4 and folders[-4] == "by_book":
            return folders[-2]
        if self.kind != "list" or not re.fullmatch(rf"metadata(_({PARTS}))?|{KALDI_TEXT}", place.stem):
            return ""
        if re.fullmatch(PARTS, folders[-1]):
            return sanitize_name(folders[-2])
        return sanitize_name(folders[-1]) if "_" in place.stem else ""

    def to_json(self) -> dict[str, Any]:
        media = None if self.media is None else str(self.media.resolve())
        return {"kind": self.kind, "text": str(self.text.resolve()), "media": media}


def sanitize_name(name: str) -> str:
    """A safe folder name: no separators, no leading dots, at most 80 characters; combining signs (जी) stay."""
    safe = "".join(
        one if one.isalnum() or one in "._-" or unicodedata.category(one).startswith("M") else " " for one in name
    )
    return "_".join(safe.split()).strip("._-")[:80] or "recording"


def find_sources(
    places: Sequence[Path], language: str, media: Path | None = None, encoding: str | None = None
) -> tuple[list[ImportSource], list[SourceProblem]]:
    """Sources in files and folders, including all subfolders, and what could not be used; an error if there is none."""
    roots = tuple(dict.fromkeys(place if is_folder(place) else place.parent for place in places))
    finder = _SourceFinder(language, encoding, roots, {os.path.abspath(place) for place in places})
    files: list[Path] = []
    for place in places:
        if not path_exists(place):
            raise FileError("file-missing", f"{place.name} does not exist", where=place)
        if is_folder(place):
            finder.scan_tree(place)
        else:
            files.append(place)
    finder.sort(files, media)
    # A list in a later folder may name audio files of an earlier one.
    problems = [
        problem
        for problem in dict.fromkeys(finder.problems)
        if problem.code not in ("text-missing", "source-unknown") or os.path.abspath(problem.file) not in finder.named
    ]
    sources = list(dict.fromkeys(finder.sources))
    if not sources:
        # What is wrong with a list says more than its recordings, which then have no text.
        problems.sort(key=lambda problem: problem.code not in LIST_CODES)
        seen = "; ".join(problem.found for problem in problems[:3])
        where = ", ".join(map(str, places))
        cure = problems[0].finding().cure if problems and problems[0].code in LIST_CODES else ""
        raise FileError("source-none", seen or f"{where} contains no recording with a text", where=where, cure=cure)
    return sorted(sources, key=lambda source: str(source.text)), problems


def compute_source_fingerprint(source: ImportSource) -> str:
    """A hash that recognizes a source wherever it is: its texts, and size and both ends of its audio files."""
    digest, listings = hashlib.sha256(source.kind.encode()), Listings()
    try:
        for sound in source.files:
            digest.update(
                sound.name.encode("utf-8", "surrogateescape") + b"\0" + _read_edges(sound, HASHED_AUDIO_EDGE_BYTES, 0)
            )
            if (text := find_sidecar(sound, listings)) is not None:
                digest.update(hashlib.sha256(text.read_bytes()).digest())
        for path in (source.text, source.media, *(list_parts(source.text) if source.kind == "list" else ())):
            if path is not None and source.kind != "folder":
                digest.update(_read_edges(require_file(path), HASHED_EDGE_BYTES, MAX_FULLY_HASHED_BYTES))
    except OSError as error:
        raise FileError(
            "file-unreadable", f"{source.text.name}: {format_error_reason(error)}", where=source.text
        ) from None
    return digest.hexdigest()


def find_later_files(source: ImportSource) -> set[str]:
    """Names of files of a folder that older versions did not use: videos, and those whose text is written otherwise."""
    later = (*LATER_AUDIO_SUFFIXES, *VIDEO_SUFFIXES)
    return {sound.name for sound in source.files if sound.suffix.lower() in later or find_exact_sidecar(sound) is None}


def find_later_names(source: ImportSource, names: Iterable[str]) -> set[str]:
    """Of names in a list, those whose file older versions did not find, as it is written otherwise."""
    sounds = dict(source.sounds)
    found = set()
    for name in names:
        path = sounds.get(name)
        is_later = path is not None and path.suffix.lower() in LATER_AUDIO_SUFFIXES and not name.endswith(path.suffix)
        is_exact = not is_later and find_audio_file(source.folder, name, source.roots) is not None
        if path is not None and (not is_exact or PureWindowsPath(name).drive):
            found.add(name)
    return found


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

    def __init__(self, language: str, encoding: str | None, roots: tuple[Path, ...], given: set[str]) -> None:
        self.language, self.encoding, self.roots = language, encoding, roots
        self.given = given  # absolute paths of files and folders that the user named
        self.sources: list[ImportSource] = []
        self.problems: list[SourceProblem] = []
        self.named: set[str] = set()  # absolute paths of audio files that a list names
        self.places: dict[Path, set[tuple[str, float]]] = {}  # for each list its clips, as audio file and start
        self.sounds: dict[Path, _SoundsByName | None] = {}  # for each list that was read
        self.listings: Listings = {}  # of one folder and those that its lists name
        self.numbers: dict[Path, str] = {}  # lists with numbers in place of texts, and the first of these

    def scan_tree(self, folder: Path) -> None:
        """A folder with all subfolders."""
        for root, folders, names in os.walk(
            folder,
            onerror=lambda error: self._report("file-unreadable", format_error_reason(error), error.filename),
        ):
            here = Path(root)
            is_dataset = MANIFEST_NAME in names and is_manifest(here / MANIFEST_NAME)
            left_out = (*DATASET_FILES, *DATASET_FOLDERS) if is_dataset else ()
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in left_out)
            for name in (name for name in folders if os.path.islink(here / name)):
                self._report("source-unknown", f"{name} is a link to a folder; name the folder itself", here / name)
            paths = [here / name for name in sorted(names) if not name.startswith(".") and name not in left_out]
            if not self.sort(self._leave_out_of_common_voice(here, paths)):
                folders[:] = [name for name in folders if name not in AUDIO_FOLDERS]

    def _report(self, code: str, found: str, path: Path | str, cure: str = "") -> None:
        self.problems.append(SourceProblem(code, found, str(path), cure=cure))

    def _leave_out_of_common_voice(self, folder: Path, paths: Sequence[Path]) -> list[Path]:
        """The files of a folder without those lists of Common Voice that are not to be imported.

        `invalidated.tsv` holds clips that people rejected, `other.tsv` clips that too few people have heard.
        """
        lists = {
            path.name: path
            for path in paths
            if path.name in (COMMON_VOICE_LIST, *COMMON_VOICE_PARTS, *COMMON_VOICE_UNACCEPTED)
            and _read_header(path) >= COMMON_VOICE_COLUMNS
        }
        if not lists:
            return list(paths)
        used = [COMMON_VOICE_LIST] if COMMON_VOICE_LIST in lists else [*COMMON_VOICE_PARTS]
        kept = {name for name, path in lists.items() if name in used or os.path.abspath(path) in self.given}
        # The names are read in any case, so that no clip of these lists is reported as a recording without a text.
        sounds = {name: dict(self._read_names(path) or ()) for name, path in lists.items()}
        known = {audio for name in kept for audio in sounds[name]}
        left = {name: count for name in lists if name not in kept and (count := len(sounds[name].keys() - known))}
        if left:
            shown = ", ".join(f"{name} ({pluralize(count, 'clip')})" for name, count in left.items())
            found = f"not imported from Common Voice: {shown}; imported: {', '.join(sorted(kept)) or 'nothing'}"
            example = shlex.quote(str(lists[max(left, key=lambda name: name == "other.tsv")]))
            cure = f"no action needed. To import one of these lists anyway, add its file to the sources: {example}"
            self._report("list-unaccepted", found, folder, cure)
        return [
            path
            for path in paths
            if path.name not in COMMON_VOICE_TABLES and (path.name not in lists or path.name in kept)
        ]

    def sort(self, paths: Sequence[Path], media: Path | None = None) -> bool:
        """Find sources among files of one folder; False if a list cannot be read, so that its audio is unknown."""
        self.listings.clear()
        kept = [path for path in paths if path.name not in LIBRITTS_TABLES]
        for path in [path for path in kept if path.name == KALDI_AUDIO]:
            parts = (KALDI_AUDIO, KALDI_SPEAKERS, KALDI_SEGMENTS, *KALDI_OTHER_FILES)
            kept = [other for other in kept if other.parent != path.parent or other.name not in parts]
            if is_file(path.with_name(KALDI_TEXT)):
                kept.append(path.with_name(KALDI_TEXT))
            else:
                self._report("text-missing", f"{path.name} without the file {KALDI_TEXT} beside it", path)
        if any(path.name.endswith(".normalized.txt") for path in kept):
            kept = [path for path in kept if not path.name.endswith(LIBRITTS_COPY_SUFFIXES)]
        kinds: tuple[list[Path], ...] = ([], [], [], [], [])
        for path in dict.fromkeys(kept):
            end = path.suffix.lower()
            is_subtitles = end in SUBTITLE_SUFFIXES or is_label_track(path)
            is_kind = (is_subtitles, is_list(path), end in COLUMNAR_SUFFIXES, end in MEDIA_SUFFIXES, True)
            kinds[is_kind.index(True)].append(path)
        subtitles, lists, columns, films, others = kinds
        own = [path for path in lists if is_manifest(path)]
        for path in own:
            self._report("source-own", f"{path} is the manifest of a voxgraft dataset", path)
        lists = [path for path in lists if path not in own]
        used = self._pair(subtitles, films, media)
        sounds = {path: self._read_names(path) for path in (*lists, *columns)}
        for path in [path for path in lists if path in self.numbers]:
            lists.remove(path)
            found = f"{path.name} has only numbers where texts should be, the first {self.numbers[path]!r:.40}"
            self._report("list-numbers", found, path)
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
        self.sources += [ImportSource("list", path, sounds=sounds[path] or (), roots=self.roots) for path in lists]
        self.sources += [ImportSource("columns", path) for path in columns]  # most hold their audio inside
        listed = {film for film in films if os.path.abspath(film) in self.named}
        left = [film for film in films if film not in used and film not in listed]
        sidecars = {film: match_sidecar(film, self.listings) for film in left}
        with_text = {film: match.path for film, match in sidecars.items() if match.path}
        # A text belongs to one file: beside `a.wav`, the video `a.mp4` is its source or a copy.
        names = {film.with_suffix("") for film in with_text if film.suffix.lower() in AUDIO_SUFFIXES}
        copies = {film for film in with_text if film.suffix.lower() in VIDEO_SUFFIXES and film.with_suffix("") in names}
        for film in copies:
            del with_text[film]
        for folder in sorted({film.parent for film in with_text}):
            files = tuple(sorted(film for film in with_text if film.parent == folder))
            self.sources.append(ImportSource("folder", folder, files=files))
        for film in left:
            if first_microphone_name(film):
                self._report(
                    "second-microphone", f"{film.name} is another recording of {first_microphone_name(film)}", film
                )
            elif alike := sidecars[film].alike:
                self._report("name-ambiguous", f"no text for {film.name}: {describe_alike(alike)}", film)
            elif film in copies:
                found = f"{film.name} was skipped: an audio file of the same name has the text"
                self._report("source-unknown", found, film)
            elif film not in with_text and not unread:
                self._report("text-missing", f"no text for {film.name}", film)
        # A list may name files of any type.
        listed |= {path for path in others if os.path.abspath(path) in self.named}
        texts = {film.with_suffix(ending) for film in (*with_text, *listed) for ending in SIDECAR_SUFFIXES}
        texts |= {*with_text.values(), *(path for match in sidecars.values() for path in match.alike)}
        for path in others:
            if path.name in HF_DATASETS_FILES or path in texts or path in listed or find_vctk_audio(path):
                continue
            if path.name == LANGUAGE_FILE and any(table.parent == path.parent for table in lists):
                continue
            is_text = path.suffix in (".txt", ".lab") and not path.stem.lower().startswith(ABOUT_FILE_PREFIXES)
            if with_text and is_text and path.stem not in {film.stem for film in used}:
                self._report("media-missing", f"no recording for {path.name}", path)
            else:
                why = f": no recording named {path.stem}" if path.suffix.lower() in (".txt", ".lab") else ""
                self._report("source-unknown", f"{path.name} was skipped{why}", path)
        return not unread

    def _read_names(self, path: Path) -> _SoundsByName | None:
        """Audio files by the names that a list has for them. None: the list cannot be read."""
        if path not in self.sounds:
            self.sounds[path] = self._find_sounds(path)
        return self.sounds[path]

    def _find_sounds(self, path: Path) -> _SoundsByName | None:
        names: dict[str, None] = {}
        texts: list[str] = []  # the audio of the rows whose text is not a number
        as_text = ""  # the first number
        faulty: set[int] = set()
        try:
            if path.suffix.lower() in COLUMNAR_SUFFIXES:
                names = dict.fromkeys(read_arrow_audio_names(path))
            else:
                for row in read_transcript_list(path, self.encoding):
                    if isinstance(row, TranscriptRow):
                        if not _NUMBER.fullmatch(row.text.strip()):
                            texts.append(row.audio)
                        elif not as_text:
                            as_text = row.text.strip()
                        self.places.setdefault(path, set()).add((row.audio, row.start))
                        names[row.audio] = None
                    else:
                        faulty |= set(row.lines)
        except VoxgraftError:
            return None
        is_table = path.suffix.lower() not in COLUMNAR_SUFFIXES
        matches = match_audio_files(list_folder(path), names, self.roots, any_case=is_table, listings=self.listings)
        found = {name: match.path for name, match in matches.items()}
        # A first line without a recording is a header with names of columns that are not known.
        heads = [audio for audio in [*names][:1] if found[audio] is None and not audio.lower().endswith(MEDIA_SUFFIXES)]
        if as_text and (not texts or texts == heads) and not names_its_columns(path, self.encoding):
            self.numbers[path] = as_text
            return ()  # its recordings may have their texts elsewhere
        # A file named on a line that cannot be used has its text there: that line is reported, not the file.
        sounds = [*found.values(), *(file for match in matches.values() for file in match.alike)]
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
        spoken = {path: _language_in_name(path, films, subtitles, self.language, self.listings) for path in subtitles}
        stems = {path: named[0] if named else path.stem for path, named in spoken.items()}
        matches = {path: _find_media_beside(path, stem, films, self.listings) for path, stem in stems.items()}
        is_exact = {path: match.path is not None and match.path.stem == stems[path] for path, match in matches.items()}
        for path in sorted(spoken, key=lambda path: (spoken[path] is None, not is_exact[path], str(path))):
            named, match = spoken[path], matches[path]
            if media is None and named is not None and named[1] != own:
                self._report("source-unknown", f"{path.name} is in another language ({named[1]}, not {own})", path)
                continue
            film = media or match.path
            is_annotation = path.suffix.lower() in (".textgrid", ".txt")
            if film is None and path.suffix.lower() == ".txt":  # Audacity's own name for the file is `Label Track.txt`
                beside = [one for one in films if one.parent == path.parent]
                film = beside[0] if len(beside) == 1 else None
            whole = find_sidecar(film, self.listings) if film and is_annotation else None
            if film is not None and whole is not None and whole != path:
                self._report("source-unknown", f"{path.name} was skipped: {whole.name} has the whole text", path)
            elif film is None and match.alike:
                self._report("name-ambiguous", f"no recording for {path.name}: {describe_alike(match.alike)}", path)
            elif film is None:
                self._report("media-missing", f"no recording for {path.name}", path)
            elif film in used:
                self._report("source-unknown", f"{path.name} was skipped: {film.name} already has another text", path)
            else:
                if film == match.path and match.is_other_case:
                    self._report("name-case", f"{film.name} is used for {path.name}", path)
                used.add(film)
                self.sources.append(ImportSource("subtitles", path, film))
        return used


def _read_header(path: Path) -> set[str]:
    """The names of the columns in the first line of a table with tabs; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            line = stream.readline(MAX_FAULTY_LINE_BYTES).removeprefix(codecs.BOM_UTF8)
    except OSError:
        return set()
    return {cell.strip().lower() for cell in line.decode("utf-8", "replace").split("\t")}


def _language_in_name(
    subtitles: Path, films: Sequence[Path], others: Sequence[Path], language: str, listings: Listings
) -> tuple[str, str] | None:
    """The film's name and the language in `film.am.srt`. An unknown code, or one without a film, is only a name."""
    if _find_media_beside(subtitles, subtitles.stem, films, listings).path:
        return None
    for form in _LANGUAGE_SUFFIXES:
        match = form.match(subtitles.stem)
        if match is None:
            continue
        word, stem = match["language"], match["stem"]
        is_own = word.lower() == base_language(language)
        code = canonical_language_code(word) or (word.lower() if is_own else None)
        siblings = [path for path in others if path.stem == stem and path.parent == subtitles.parent]
        if code is not None and (siblings or _find_media_beside(subtitles, stem, films, listings).path):
            return stem, code
    return None


def _find_media_beside(subtitles: Path, stem: str, films: Sequence[Path], listings: Listings) -> FileMatch:
    """The media file of a name: among those found, or beside subtitles that were given alone."""
    for film in films:
        if film.stem == stem and film.parent == subtitles.parent:
            return FileMatch(film)
    beside = [subtitles.with_name(stem + ending) for ending in MEDIA_SUFFIXES]
    if exact := next((path for path in beside if is_file(path)), None):
        return FileMatch(exact)
    # `film.mp4` and `film.wav` have one name: which of them is used does not matter.
    for any_case in (False, True):
        if found := list(iter_alike(beside, any_case=any_case, listings=listings)):
            if len({path.stem for path in found}) > 1:
                return FileMatch(alike=tuple(found))
            is_other_case = normalize_name(found[0].stem) != normalize_name(stem)
            return FileMatch(found[0], is_other_case=is_other_case)
    return FileMatch()
