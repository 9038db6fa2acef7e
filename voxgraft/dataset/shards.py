"""What a clip and a set of clips are, and the files that voxgraft keeps them in: shards and `set.json`.

A shard is one safetensors file for some clips. Ragged arrays (text ids, codes) are stored end to end, with the end of
each clip in `NAME_ends`; the other voice arrays have one row per clip. `dataset/sets` writes and opens whole sets,
`dataset/indextts2_manifest` opens those of other trainers. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import RAW_DTYPES, ByteSink, ByteSource, Checkpoint, TensorInfo, read_safetensors
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.core.errors import CheckpointError, FileError, GraftError
from voxgraft.core.files import MAX_LINE_BYTES, is_encodable_text, is_file, read_json, require_folder, write_json
from voxgraft.models.base import Clip

DatasetRole = Literal["train", "valid", "replay"]
Int32Array = NDArray[np.int32]
AnyArray = NDArray[Any]
MAX_LISTED_CLIPS = 5


@dataclass(frozen=True, slots=True)
class DatasetProvenance:
    """What a set depends on; if one of these changes, it must be prepared again."""

    tokenizer_sha256: str
    base_sha256: str
    front_end: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """Rules that normalized the texts; empty if they were taken as they are."""


@dataclass(frozen=True, slots=True)
class DatasetHeader:
    """What all clips of a set have in common."""

    family: str
    language: str
    role: DatasetRole
    code_hz: float
    """Speech codes per second."""
    made_from: DatasetProvenance


class ClipDataset(ABC):
    """Clips by their place, from 0 to `len(set) - 1`. Opening one reads no ids, codes or voices of sets of voxgraft.

    A set that brings its own prompts (`prompt_of`) has their voices and infos at places from `len(set)` on; those
    places lend a voice and nothing else.
    """

    name: str
    """Unlike that of every other set of a run: the data order depends on it."""
    header: DatasetHeader
    infos: Sequence[Clip]
    """The clips without ids, codes and voice."""
    num_text: NDArray[np.int64]
    num_codes: NDArray[np.int64]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.num_codes)

    @abstractmethod
    def text_ids(self, clip: int) -> Int32Array: ...

    def closed(self, clip: int) -> Int32Array | None:  # noqa: ARG002 (of sets that store it)
        """By text id: 1 where the text is of a base language; None for a clip in one language."""
        return None

    @abstractmethod
    def codes(self, clip: int) -> Int32Array: ...

    @abstractmethod
    def voice(self, clip: int) -> dict[str, AnyArray]:
        """The family's arrays, not to be written to."""

    def voice_clip(self, clip: int) -> Clip:
        """Codes, voice and length of a clip, as `Family.condition` takes them."""
        return Clip(self.codes(clip), self.voice(clip), seconds=self.infos[clip].seconds)

    def shard_files(self) -> Mapping[Path, str]:
        """Files whose bytes are still to be compared with the SHA-256 that the set states for them; none by default."""
        return {}

    def prompt_of(self, clip: int) -> int | None:  # noqa: ARG002 (sets with prompts of their own look at it)
        """The place of the voice that a clip is learned with, where the set says so itself."""
        return None


def format_clip_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(name if len(name) <= 80 else f"{name[:77]}..." for name in names[:MAX_LISTED_CLIPS])
    more = len(names) - MAX_LISTED_CLIPS
    return listed + (f" and {more:,} more" if more > 0 else "")


class DatasetSubset(ClipDataset):
    """Some clips of a set in which all of a speaker's clips have one and the same voice.

    Each speaker's voice is lent by a place after the clips, as where a set brings its own prompts.
    """

    def __init__(self, whole: ClipDataset, clips: Sequence[int], name: str, role: DatasetRole, language: str) -> None:
        self._whole, self.name = whole, name
        self.header = replace(whole.header, role=role, language=language)
        first_clips: dict[str, int] = {}  # the first clip of each speaker lends the voice
        for clip in clips:
            first_clips.setdefault(whole.infos[clip].speaker, clip)
        speakers = {speaker: len(clips) + position for position, speaker in enumerate(first_clips)}
        self._prompts = [speakers[whole.infos[clip].speaker] for clip in clips]
        self._places = [*clips, *first_clips.values()]
        self.infos = [whole.infos[clip_index] for clip_index in self._places]
        self.num_text = whole.num_text[list(clips)]
        self.num_codes = whole.num_codes[list(clips)]
        self.fingerprint = whole.fingerprint

    def text_ids(self, clip: int) -> Int32Array:
        return self._whole.text_ids(self._places[clip])

    def closed(self, clip: int) -> Int32Array | None:
        return self._whole.closed(self._places[clip])

    def codes(self, clip: int) -> Int32Array:
        """None for a place that only lends its voice."""
        return self._whole.codes(self._places[clip]) if clip < len(self) else np.zeros(0, dtype=np.int32)

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._whole.voice(self._places[clip])

    def shard_files(self) -> Mapping[Path, str]:
        return self._whole.shard_files()

    def prompt_of(self, clip: int) -> int:
        return self._prompts[clip]


# Names of the arrays of a shard. `text` and `codes` of all clips are stored end to end; `text_ends` and `codes_ends`
# (I64) hold the place behind each clip. `voice.NAME` likewise if it is ragged, else with one row per clip. A shard in
# which some text has two languages also has `closed`: 1 for every text id of a base language, nothing for other clips.
# Beside it, one JSON line per clip with what people know of it.
CLIP_LINE_KEYS = ("id", "speaker", "recording", "seconds", "text")
VOICE_PREFIX, ENDS_SUFFIX = "voice.", "_ends"
TEXT_KEY, CODES_KEY, CLOSED_KEY = "text", "codes", "closed"
FLOAT_DTYPES = ("F32", "F16")
_ID_DTYPE, _OFFSET_DTYPE = "I32", "I64"
_INT32_LIMITS = np.iinfo(np.int32)

DATASET_INDEX_NAME = "set.json"
DATASET_FORMAT = "voxgraft-set-1"
MAX_SHOWN_DIFFERENCES = 8
# If one of these differs, the set was never meant for the run; otherwise it was, and is out of date.
IDENTITY_KEYS = ("family", "language", "role", "code_hz", "made_from.base_sha256")
_SHA256 = re.compile("[0-9a-f]{64}")
# Checksum of everything else in set.json; sets of earlier versions have none.
CHECKSUM_KEY = "checksum"
_INDEX_KEYS = {"format", "family", "language", "role", "code_hz", "counts", "voice", "made_from", "shards"}


class VoiceArraySpec(NamedTuple):
    """Type and shape of one of the family's arrays in every clip; the shape is None for ids of any number."""

    dtype: str
    shape: tuple[int, ...] | None

    @classmethod
    def of(cls, array: AnyArray) -> VoiceArraySpec | None:
        """The form of an array; None for one that no set can hold."""
        if array.ndim == 1 and np.issubdtype(array.dtype, np.integer):
            return cls(_ID_DTYPE, None)
        dtype = next((name for name in FLOAT_DTYPES if RAW_DTYPES[name] == array.dtype), None)
        return cls(dtype, array.shape) if dtype is not None and array.size else None


class ShardFile(NamedTuple):
    """A file of a set, as set.json states it."""

    file: str
    bytes: int
    sha256: str


def get_voice_specs(clip: Clip) -> dict[str, VoiceArraySpec]:
    """The voice arrays of the first clip of a set; every other clip must have the same."""
    forms: dict[str, VoiceArraySpec] = {}
    for name, array in clip.voice.items():
        form = VoiceArraySpec.of(np.asarray(array))
        if form is None or not name.isidentifier() or name.endswith(ENDS_SUFFIX):
            found = f"the voice array {name!r} is {np.asarray(array).dtype} {np.shape(array)}"
            expected = "float32 or float16 of any shape, or one-dimensional whole numbers; a plain name"
            raise _clip_error(clip, found, expected)
        forms[name] = form
    return forms


def check_clip(clip: Clip, forms: Mapping[str, VoiceArraySpec]) -> Clip:
    """The clip with arrays as a shard holds them; an error that names the clip if an array does not fit the set."""
    found = {name: VoiceArraySpec.of(np.asarray(array)) for name, array in clip.voice.items()}
    if found != forms:
        found_forms = {name: f"{np.asarray(array).dtype} {np.shape(array)}" for name, array in clip.voice.items()}
        raise _clip_error(clip, f"the voice arrays {found_forms}", f"{dict(forms)}, as in the first clip")
    if len(clip.closed) not in (0, len(clip.text_ids)):
        found_marks = f"{len(clip.closed)} marks of the gate for {len(clip.text_ids)} text ids"
        raise _clip_error(clip, found_marks, "one for each, or none")
    ragged = {TEXT_KEY: clip.text_ids, CODES_KEY: clip.codes, CLOSED_KEY: np.asarray(clip.closed, dtype=np.int32)}
    ragged |= {name: array for name, array in clip.voice.items() if forms[name].shape is None}
    ids: dict[str, Int32Array] = {}
    for key, values in ragged.items():
        array = np.asarray(values)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            shape = f"{key} as {array.dtype} of shape {list(array.shape)}"
            raise _clip_error(clip, shape, "one-dimensional whole numbers")
        if array.size and not (_INT32_LIMITS.min <= int(array.min()) and int(array.max()) <= _INT32_LIMITS.max):
            limits = f"{key} from {int(array.min())} to {int(array.max())}"
            raise _clip_error(clip, limits, "32-bit numbers")
        ids[key] = array.astype(np.int32)
    voice = {name: ids[name] if name in ids else np.asarray(array) for name, array in clip.voice.items()}
    return replace(clip, text_ids=ids[TEXT_KEY], codes=ids[CODES_KEY], closed=ids[CLOSED_KEY], voice=voice)


def write_shard(
    folder: Path, number: int, clips: Sequence[Clip], forms: Mapping[str, VoiceArraySpec]
) -> tuple[ShardFile, ShardFile, int]:
    """Write the two files of a shard, synced to disk: arrays, and one JSON line per clip. `clips` are checked."""
    arrays_name, lines_name = get_shard_names(number)
    ragged: dict[str, list[Any]] = {
        TEXT_KEY: [clip.text_ids for clip in clips],
        CODES_KEY: [clip.codes for clip in clips],
    }
    if any(len(clip.closed) for clip in clips):
        ragged[CLOSED_KEY] = [clip.closed for clip in clips]
    tensors: dict[str, TensorBytes] = {}
    for name, form in forms.items():
        arrays = [clip.voice[name] for clip in clips]
        if form.shape is None:
            ragged[VOICE_PREFIX + name] = arrays
        else:
            tensors[VOICE_PREFIX + name] = _tensor_bytes(form.dtype, (len(clips), *form.shape), arrays)
    for name, parts in ragged.items():
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        tensors[name] = _tensor_bytes(_ID_DTYPE, (int(ends[-1]),), parts)
        tensors[name + ENDS_SUFFIX] = _tensor_bytes(_OFFSET_DTYPE, ends.shape, [ends])
    # "xb": the folder is new, and no name may be written twice.
    with (folder / arrays_name).open("xb") as stream:
        sink = ByteSink(stream, hashed=True)
        write_safetensors(sink, tensors)
        stream.flush()
        os.fsync(stream.fileno())
    lines = []
    for clip in clips:
        texts = (clip.id, clip.speaker, clip.recording, clip.text)
        if not all(map(is_encodable_text, texts)) or not (clip.id and clip.speaker):
            raise _clip_error(clip, f"id {clip.id!r}, speaker {clip.speaker!r}", "non-empty UTF-8 texts")
        if not (isinstance(clip.seconds, int | float) and 0 < clip.seconds < float("inf")):
            raise _clip_error(clip, f"{clip.seconds!r} seconds", "a number above 0")
        entry = {**{key: getattr(clip, key) for key in CLIP_LINE_KEYS}, "seconds": float(clip.seconds)}
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise _clip_error(clip, f"a line of {len(line):,} bytes", f"at most {MAX_LINE_BYTES:,}")
        lines.append(line)
    joined = b"".join(lines)
    with (folder / lines_name).open("xb") as stream:
        stream.write(joined)
        stream.flush()
        os.fsync(stream.fileno())
    written = ShardFile(arrays_name, sink.position, str(sink.sha256))
    return written, ShardFile(lines_name, len(joined), hashlib.sha256(joined).hexdigest()), len(clips)


def _tensor_bytes(dtype: str, shape: tuple[int, ...], arrays: Sequence[Any]) -> TensorBytes:
    return TensorBytes(dtype, shape, lambda: (np.ascontiguousarray(array).tobytes() for array in arrays))


def _clip_error(clip: Clip, found: str, expected: str) -> FileError:
    return FileError("clip-form", f"clip {clip.id!r}: {found}", expected=expected)


class Shard:
    """An existing shard: its structure is read and checked, its values are not."""

    def __init__(self, path: Path, num_clips: int, forms: Mapping[str, VoiceArraySpec]) -> None:
        self.path, self.num_clips, self.forms = path, num_clips, forms
        try:
            source = ByteSource(path)
            try:
                self._read_structure(read_safetensors(source))
            finally:
                source.close()
        except CheckpointError as error:
            raise self._error(error.finding.found, error.finding.expected) from None
        self.num_text, self.num_codes = np.diff(self._ends[TEXT_KEY]), np.diff(self._ends[CODES_KEY])

    def _read_structure(self, file: Checkpoint) -> None:
        self.size = file.source.size
        self._infos: Mapping[str, TensorInfo] = file.tensors
        ragged = [TEXT_KEY, CODES_KEY, *([CLOSED_KEY] if CLOSED_KEY in file.tensors else [])]
        ragged += [VOICE_PREFIX + name for name, form in self.forms.items() if form.shape is None]
        expected = {
            VOICE_PREFIX + name: (form.dtype, (self.num_clips, *form.shape))
            for name, form in self.forms.items()
            if form.shape is not None
        }
        names = {*expected, *ragged, *(name + ENDS_SUFFIX for name in ragged)}
        if set(file.tensors) != names:
            others = ", ".join(sorted(set(file.tensors) ^ names)[:6])
            raise self._error(f"missing or unexpected arrays: {others:.200}", "the set's own arrays")
        for name in ragged:
            expected[name] = (_ID_DTYPE, (file.tensors[name].num_values,))
            expected[name + ENDS_SUFFIX] = (_OFFSET_DTYPE, (self.num_clips,))
        for name, (dtype, shape) in expected.items():
            info = file.tensors[name]
            if info.dtype != dtype or info.shape != shape:
                raise self._error(f"{name} is {info.dtype} {list(info.shape)}", f"{dtype} {list(shape)}")
        self._ends: dict[str, NDArray[np.int64]] = {}
        for name in ragged:
            ends: NDArray[np.int64] = file.read(name + ENDS_SUFFIX).astype(np.int64)
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
            # Compared, not subtracted: the difference of two forged numbers may not fit into 64 bits.
            wrong = np.flatnonzero(ends < starts)
            if len(wrong):
                at = int(wrong[0])
                found = f"{name}{ENDS_SUFFIX}: clip {at} starts at {int(starts[at]):,} and ends at {int(ends[at]):,}"
                raise self._error(found, "increasing ends")
            num_values = file.tensors[name].num_values
            if int(ends[-1]) != num_values:
                raise self._error(f"{name}{ENDS_SUFFIX} ends at {int(ends[-1]):,}", f"{num_values:,}, as {name} has")
            self._ends[name] = np.concatenate([starts[:1], ends])
        if CLOSED_KEY in self._ends:
            counts, num_text = (np.diff(self._ends[name]) for name in (CLOSED_KEY, TEXT_KEY))
            if wrong_clips := np.flatnonzero((counts != 0) & (counts != num_text)).tolist():
                found = f"{CLOSED_KEY} has {counts[wrong_clips[0]]:,} entries for clip {wrong_clips[0]}"
                raise self._error(found, f"{num_text[wrong_clips[0]]:,}, as it has text ids, or none")

    def _error(self, found: str, expected: str) -> FileError:
        return FileError("set-damaged", f"{self.path.name}: {found}", expected=expected, where=self.path)

    def open_memory_map(self) -> NDArray[np.uint8]:
        """The file's bytes, memory-mapped."""
        try:
            file = np.asarray(np.memmap(self.path, np.uint8, "r"))
        except (OSError, ValueError) as error:
            raise FileError("file-unreadable", f"{self.path.name}: {error}", where=self.path) from None
        # Offsets were checked against the old size.
        if len(file) != self.size:
            raise self._error(f"the file changed to {len(file):,} bytes", f"{self.size:,}, as when it was opened")
        return file

    def ids(self, file: NDArray[np.uint8], name: str, clip: int) -> Int32Array:
        """A clip's part of a ragged array; empty for an array that the shard does not have."""
        if name not in self._ends:
            return np.zeros(0, dtype=np.int32)
        ends = self._ends[name]
        return self._values(file, name, int(ends[clip]), int(ends[clip + 1])).view(np.int32)

    def voice(self, file: NDArray[np.uint8], clip: int) -> dict[str, AnyArray]:
        """All of the family's arrays of a clip."""
        arrays: dict[str, AnyArray] = {}
        for name, form in self.forms.items():
            if form.shape is None:
                arrays[name] = self.ids(file, VOICE_PREFIX + name, clip)
            else:
                size = int(np.prod(form.shape))
                values = self._values(file, VOICE_PREFIX + name, clip * size, (clip + 1) * size)
                arrays[name] = values.reshape(form.shape)
        return arrays

    def _values(self, file: NDArray[np.uint8], name: str, begin: int, end: int) -> AnyArray:
        info, dtype = self._infos[name], RAW_DTYPES[self._infos[name].dtype]
        return file[info.start + begin * dtype.itemsize : info.start + end * dtype.itemsize].view(dtype)


def get_shard_names(number: int) -> tuple[str, str]:
    """File names of a shard, arrays and lines. They are fixed: a set never refers to files outside its folder."""
    return f"shard-{number:05d}.safetensors", f"shard-{number:05d}.jsonl"


@dataclass(frozen=True, slots=True)
class DatasetIndex:
    """The content of set.json."""

    header: DatasetHeader
    counts: Mapping[str, float]
    voice: Mapping[str, VoiceArraySpec]
    shards: tuple[tuple[ShardFile, ShardFile, int], ...]
    """File of arrays, file of lines, and number of clips of each shard."""

    @property
    def fingerprint(self) -> str:
        """One hash for all bytes of the clips."""
        hashes = "".join(arrays.sha256 + lines.sha256 for arrays, lines, _ in self.shards)
        return hashlib.sha256(hashes.encode()).hexdigest()


def write_dataset_index(folder: Path, file: DatasetIndex) -> None:
    """Write set.json. It is written last: a folder without it is no set."""
    document = {
        "format": DATASET_FORMAT,
        **asdict(file.header),
        "counts": dict(file.counts),
        "voice": {
            name: {"dtype": form.dtype, "shape": form.shape and list(form.shape)} for name, form in file.voice.items()
        },
        "shards": [
            {**arrays._asdict(), "clips": clips, "lines": lines._asdict()} for arrays, lines, clips in file.shards
        ],
    }
    write_json(folder / DATASET_INDEX_NAME, {**document, CHECKSUM_KEY: compute_index_checksum(document)})


def read_dataset_index(folder: Path) -> DatasetIndex:
    """The content of set.json; an error for anything that `write_dataset_index` would not have written."""
    path = require_folder(folder) / DATASET_INDEX_NAME
    if not is_file(path):
        raise FileError("set-incomplete", f"{folder.name} has no {DATASET_INDEX_NAME}", where=folder)
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != DATASET_FORMAT:
        declared = document.get("format") if isinstance(document, dict) else document
        raise FileError(
            "set-format", f"set.json states the format {declared!r:.80}", expected=DATASET_FORMAT, where=path
        )
    declared = document.pop(CHECKSUM_KEY, None)
    if set(document) != _INDEX_KEYS:
        raise _index_error(path, f"the keys {', '.join(map(str, sorted(document)))}", ", ".join(sorted(_INDEX_KEYS)))
    if declared is not None and declared != compute_index_checksum(document):
        found = f"{DATASET_INDEX_NAME} changed since it was written: its {CHECKSUM_KEY} differs"
        raise FileError("set-damaged", found, expected=f"{declared!s:.16}...", where=path)
    if not isinstance(document["shards"], list):
        raise _index_error(path, f"shards {document['shards']!r:.80}", "a list")
    shards = []
    for number, entry in enumerate(document["shards"]):
        names = get_shard_names(number)
        is_plain = isinstance(entry, dict) and type(entry.get("clips")) is int and entry["clips"] > 0
        files = []
        for name, file_entry in zip(names, (entry, entry.get("lines")) if is_plain else (), strict=False):
            is_named = (
                isinstance(file_entry, dict) and file_entry.get("file") == name and type(file_entry.get("bytes")) is int
            )
            if is_named and isinstance(file_entry.get("sha256"), str) and _SHA256.fullmatch(file_entry["sha256"]):
                files.append(ShardFile(name, file_entry["bytes"], file_entry["sha256"]))
        if len(files) != 2:
            expected = f"{names[0]} and {names[1]}, sizes and hashes"
            raise _index_error(path, f"shard {number}: {entry!r:.120}", expected)
        shards.append((files[0], files[1], entry["clips"]))
    counts, total = document["counts"], sum(clips for _, _, clips in shards)
    if not isinstance(counts, dict) or counts.get("clips") != total:
        raise _index_error(path, f"counts {counts!r:.120}", f"{total:,} clips, as the shards have")
    if not shards:
        raise GraftError("set-empty", f"{folder.name} contains no clip", where=path)
    header = _parse_header(document, path)
    if not isinstance(document["voice"], dict):
        raise _index_error(path, f"voice {document['voice']!r:.80}", "arrays by name")
    forms: dict[str, VoiceArraySpec] = {}
    for name, entry in document["voice"].items():
        dtype, shape = (entry.get("dtype"), entry.get("shape", 0)) if isinstance(entry, dict) else (None, 0)
        sizes = isinstance(shape, list) and all(type(size) is int and 0 < size < 1 << 20 for size in shape)
        if not ((sizes and dtype in FLOAT_DTYPES) or (shape is None and dtype == "I32")):
            raise _index_error(path, f"the voice array {name!r:.40} as {entry!r:.80}", "dtype and shape")
        forms[name] = VoiceArraySpec(str(dtype), tuple(shape) if isinstance(shape, list) else None)
    return DatasetIndex(header, counts, forms, tuple(shards))


def _parse_header(document: dict[str, Any], path: Path) -> DatasetHeader:
    family, language, role, code_hz = (document[key] for key in ("family", "language", "role", "code_hz"))
    provenance = document["made_from"]
    is_plain = isinstance(family, str) and isinstance(language, str) and role in get_args(DatasetRole)
    if not is_plain or not isinstance(code_hz, int | float) or not 0 < code_hz < 1e6:
        found = f"family {family!r:.40}, language {language!r:.40}, role {role!r:.40}, code_hz {code_hz!r:.40}"
        raise _index_error(path, found, f"names, one of {', '.join(get_args(DatasetRole))}, and codes per second")
    names = set(DatasetProvenance.__slots__)
    if not isinstance(provenance, dict) or set(provenance) | {"text"} != names:  # older sets do not state text rules
        raise _index_error(path, f"made_from {provenance!r:.120}", ", ".join(sorted(names)))
    hashes = all(
        isinstance(provenance[name], str) for name in ("tokenizer_sha256", "base_sha256", "text") if name in provenance
    )
    if not hashes or not all(isinstance(provenance[name], dict) for name in ("front_end", "settings")):
        raise _index_error(path, f"made_from {provenance!r:.120}", "two hashes, and what was set")
    return DatasetHeader(family, language, role, float(code_hz), DatasetProvenance(**provenance))


def _index_error(path: Path, found: str, expected: str) -> FileError:
    return FileError("set-format", found, expected=expected, where=path)


def compute_index_checksum(document: Mapping[str, Any]) -> str:
    """SHA-256 of the values of set.json, independent of their layout in the file."""
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def require_matching_header(folder: Path, header: DatasetHeader, expected: Mapping[str, Any]) -> None:
    """Raise with both columns unless the set is what the run expects; only what `expected` names is compared."""
    found, required = _flatten(asdict(header)), _flatten(expected)
    # Whole groups are compared as groups: a setting that only one side has is a difference too.
    made_from = expected.get("made_from")
    named = made_from if isinstance(made_from, Mapping) else {}
    groups = {f"made_from.{key}" for key in ("front_end", "settings") if key in named}
    keys = dict.fromkeys(required) | dict.fromkeys(
        key for key in found if any(key.startswith(group + ".") for group in groups)
    )
    rows = [
        (key, found.get(key, "-"), required.get(key, "-"))
        for key in keys
        if found.get(key, "-") != required.get(key, "-")
    ]
    if not rows:
        return
    width = max(len(key) for key, _, _ in rows[:MAX_SHOWN_DIFFERENCES])
    lines = [f"{'':<{width}}  {'the clips':<20}  this run"]
    for key, *values in rows[:MAX_SHOWN_DIFFERENCES]:
        texts = (value.strip('"') for value in values)
        found_text, required_text = (
            f"{text[:16]}..." if _SHA256.fullmatch(text) else text if len(text) <= 40 else f"{text[:37]}..."
            for text in texts
        )
        lines.append(f"{key:<{width}}  {found_text:<20}  {required_text}")
    lines += [f"and {len(rows) - MAX_SHOWN_DIFFERENCES} more"] if len(rows) > MAX_SHOWN_DIFFERENCES else []
    code = "set-foreign" if any(key in IDENTITY_KEYS for key, _, _ in rows) else "set-stale"
    is_tokenizer = [key for key, _, _ in rows] == ["made_from.tokenizer_sha256"]
    cause = "another tokenizer" if is_tokenizer else "other values than the run has now"
    message = f"the prepared clips in `{folder.name}` were made with {cause}:\n    " + "\n    ".join(lines)
    raise GraftError(code, message, where=folder)


def _flatten(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested values by dotted names, as the JSON text of each."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{before}{key}.")
        else:
            # 50 and 50.0 are the same setting.
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
            flat[before + key] = json.dumps(number, ensure_ascii=False, default=str)
    return flat
