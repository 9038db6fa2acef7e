"""One shard of a set: a safetensors file of arrays, mapped into memory, and a file of lines about its clips.

Ragged arrays are all values in a row, with the place where each clip's values end. Knows nothing of sets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.dtypes import RAW_DTYPES
from voxgraft.checkpoints.model import Checkpoint, TensorInfo
from voxgraft.checkpoints.safetensors_file import read_safetensors
from voxgraft.checkpoints.sink import ByteSink
from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.corpus.clips import AnyArray, ClipInfo, Int32Array, PreparedClip
from voxgraft.errors import CheckpointError, FileError
from voxgraft.files import MAX_LINE_BYTES, is_encodable_text

__all__ = [
    "ENDS_SUFFIX",
    "FLOAT_DTYPES",
    "VOICE_PREFIX",
    "Shard",
    "ShardClip",
    "ShardFile",
    "VoiceArraySpec",
    "write_shard",
]

VOICE_PREFIX, ENDS_SUFFIX = "voice.", "_ends"
TEXT_KEY, CODES_KEY = "text", "codes"
FLOAT_DTYPES = ("F32", "F16")
_ID_DTYPE, _OFFSET_DTYPE = "I32", "I64"
_INT32_LIMITS = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class VoiceArraySpec:
    """What one of the family's arrays is in every clip: its type, and its shape; None for as many ids as it likes."""

    dtype: str
    shape: tuple[int, ...] | None

    @classmethod
    def of(cls, array: AnyArray) -> VoiceArraySpec | None:
        """The form of an array; None for one that no set can keep."""
        if array.ndim == 1 and np.issubdtype(array.dtype, np.integer):
            return cls(_ID_DTYPE, None)
        dtype = next((name for name in FLOAT_DTYPES if RAW_DTYPES[name] == array.dtype), None)
        return cls(dtype, array.shape) if dtype is not None and array.size else None


@dataclass(frozen=True, slots=True)
class ShardClip:
    """A clip whose arrays have been looked at: nothing but what a shard can hold."""

    info: ClipInfo
    text_ids: Int32Array
    codes: Int32Array
    voice: Mapping[str, AnyArray]

    @classmethod
    def of(cls, clip: PreparedClip, forms: Mapping[str, VoiceArraySpec]) -> ShardClip:
        """An error that names the clip where an array has not the form that the set's first clip gave it."""
        found = {name: VoiceArraySpec.of(np.asarray(array)) for name, array in clip.voice.items()}
        if found != forms:
            shown = {name: f"{np.asarray(array).dtype} {np.shape(array)}" for name, array in clip.voice.items()}
            raise _clip_error(clip.info, f"the voice arrays {shown}", f"{dict(forms)}, as in the first clip")
        voice = {
            name: np.asarray(array) if forms[name].shape is not None else to_int32_ids(array, clip.info, name)
            for name, array in clip.voice.items()
        }
        text, codes = to_int32_ids(clip.text_ids, clip.info, TEXT_KEY), to_int32_ids(clip.codes, clip.info, CODES_KEY)
        return cls(clip.info, text, codes, voice)

    def line(self) -> bytes:
        """The clip's line, as JSON."""
        info = self.info
        texts = (info.id, info.speaker, info.recording, info.text)
        if not all(map(is_encodable_text, texts)) or not (info.id and info.speaker):
            raise _clip_error(info, f"id {info.id!r}, speaker {info.speaker!r}", "texts that UTF-8 can hold, not empty")
        if not (isinstance(info.seconds, int | float) and 0 < info.seconds < float("inf")):
            raise _clip_error(info, f"{info.seconds!r} seconds", "a number above 0")
        values = (info.id, info.speaker, info.recording, float(info.seconds), info.text)
        entry = dict(zip(ClipInfo.__slots__, values, strict=True))
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise _clip_error(info, f"a line of {len(line):,} bytes", f"at most {MAX_LINE_BYTES:,}")
        return line


def to_int32_ids(ids: Sequence[int] | AnyArray, info: ClipInfo, what: str) -> Int32Array:
    """Whole numbers in a row as the shard keeps them."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise _clip_error(info, f"{what} as {array.dtype} of shape {list(array.shape)}", "whole numbers in a row")
    if array.size and not (_INT32_LIMITS.min <= int(array.min()) and int(array.max()) <= _INT32_LIMITS.max):
        raise _clip_error(info, f"{what} from {int(array.min())} to {int(array.max())}", "numbers of 32 bits")
    return array.astype(np.int32)


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A file of a set, as set.json states it."""

    file: str
    bytes: int
    sha256: str


def write_shard(path: Path, clips: Sequence[ShardClip], forms: Mapping[str, VoiceArraySpec]) -> ShardFile:
    """The arrays of some clips as one file, on the disk for good when this returns."""
    tensors = _ragged_tensors(TEXT_KEY, [clip.text_ids for clip in clips]) | _ragged_tensors(
        CODES_KEY, [clip.codes for clip in clips]
    )
    for name, form in forms.items():
        arrays = [clip.voice[name] for clip in clips]
        if form.shape is None:
            tensors |= _ragged_tensors(VOICE_PREFIX + name, arrays)
        else:
            tensors[VOICE_PREFIX + name] = _concatenated_tensor(form.dtype, (len(clips), *form.shape), arrays)
    with path.open("xb") as stream:
        sink = ByteSink(stream, hashed=True)
        write_safetensors(sink, tensors)
        stream.flush()
        os.fsync(stream.fileno())
    return ShardFile(path.name, sink.position, str(sink.sha256))


def _ragged_tensors(name: str, arrays: Sequence[AnyArray]) -> dict[str, TensorBytes]:
    ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)
    return {name: _concatenated_tensor(_ID_DTYPE, (int(ends[-1]),), arrays), name + ENDS_SUFFIX: TensorBytes.of(ends)}


def _concatenated_tensor(dtype: str, shape: tuple[int, ...], arrays: Sequence[AnyArray]) -> TensorBytes:
    return TensorBytes(dtype, shape, lambda: (np.ascontiguousarray(array).tobytes() for array in arrays))


class Shard:
    """A shard that is there: its structure read and checked, its values not yet looked at."""

    def __init__(self, path: Path, num_clips: int, forms: Mapping[str, VoiceArraySpec]) -> None:
        self.path, self.num_clips, self.forms = path, num_clips, forms
        try:
            source = ByteSource(path)
            try:
                self._read(read_safetensors(source))
            finally:
                source.close()
        except CheckpointError as error:
            raise _shard_error(path, error.finding.found, error.finding.expected) from None

    def _read(self, file: Checkpoint) -> None:
        self.size = file.source.size
        self._infos: Mapping[str, TensorInfo] = file.tensors
        ragged = [
            TEXT_KEY,
            CODES_KEY,
            *(VOICE_PREFIX + name for name, form in self.forms.items() if form.shape is None),
        ]
        fixed = {VOICE_PREFIX + name: form for name, form in self.forms.items() if form.shape is not None}
        expected = {*ragged, *(name + ENDS_SUFFIX for name in ragged), *fixed}
        if set(file.tensors) != expected:
            names = ", ".join(sorted(set(file.tensors) ^ expected)[:6])
            raise _shard_error(
                self.path, f"arrays that are missing or not the set's: {names:.200}", "the set's own arrays"
            )
        for name, form in fixed.items():
            self._require(name, form.dtype, (self.num_clips, *(form.shape or ())))
        self._ends = {name: self._read_ends(file, name) for name in ragged}

    def _read_ends(self, file: Checkpoint, name: str) -> NDArray[np.int64]:
        num_values = file.tensors[name].num_values
        self._require(name, _ID_DTYPE, (num_values,))
        self._require(name + ENDS_SUFFIX, _OFFSET_DTYPE, (self.num_clips,))
        ends: NDArray[np.int64] = file.read(name + ENDS_SUFFIX).astype(np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        # Compared, not subtracted: the difference of two lies may not fit into 64 bits.
        wrong = np.flatnonzero(ends < starts)
        if len(wrong):
            at = int(wrong[0])
            found = f"{name}{ENDS_SUFFIX}: clip {at} starts at {int(starts[at]):,} and ends at {int(ends[at]):,}"
            raise _shard_error(self.path, found, "ends that never go back")
        if int(ends[-1]) != num_values:
            raise _shard_error(
                self.path, f"{name}{ENDS_SUFFIX} ends at {int(ends[-1]):,}", f"{num_values:,}, as {name} has"
            )
        return np.concatenate([starts[:1], ends])

    def _require(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        info = self._infos[name]
        if info.dtype != dtype or info.shape != shape:
            found = f"{name} is {info.dtype} {list(info.shape)}"
            raise _shard_error(self.path, found, f"{dtype} {list(shape)}")

    @property
    def num_text(self) -> NDArray[np.int64]:
        return np.diff(self._ends[TEXT_KEY])

    @property
    def num_codes(self) -> NDArray[np.int64]:
        return np.diff(self._ends[CODES_KEY])

    def open_memory_map(self) -> NDArray[np.uint8]:
        """The file's bytes, read by the system when they are looked at."""
        try:
            file = np.asarray(np.memmap(self.path, np.uint8, "r"))
        except (OSError, ValueError) as error:
            raise FileError("file-unreadable", f"{self.path.name}: {error}", where=self.path) from None
        if len(file) != self.size:
            raise _shard_error(
                self.path, f"the file changed to {len(file):,} bytes", f"{self.size:,}, as when it was opened"
            )
        return file

    def ids(self, file: NDArray[np.uint8], name: str, clip: int) -> Int32Array:
        """A clip's part of a ragged array."""
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


def _clip_error(info: ClipInfo, found: str, expected: str) -> FileError:
    return FileError("clip-form", f"clip {info.id!r}: {found}", expected=expected)


def _shard_error(path: Path, found: str, expected: str) -> FileError:
    return FileError("set-damaged", f"{path.name}: {found}", expected=expected, where=path)
