"""What is encoded and not yet in a set: one file a batch of clips, whole or absent, until the sets are written.

A file says itself which clips it holds, under the key of each: its sound and the front end that it went through.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from voxgraft.corpus.clips import AnyArray
from voxgraft.errors import Finding
from voxgraft.files import atomic_write, is_folder

__all__ = ["BatchHeader", "BatchStore", "EncodedClip", "batch_path", "write_batch_file"]

BATCH_SUFFIX = ".safetensors"
CLIPS_METADATA_KEY, FAILED_METADATA_KEY = "clips", "failed"
CODES_TENSOR, VOICE_TENSOR_PREFIX = "codes", "voice."
MAX_OPEN_BATCHES = 64


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """What is kept of a clip's sound."""

    key: str
    seconds: float
    """As long as the sound really is."""
    codes: AnyArray
    voice: Mapping[str, AnyArray]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What stands at the head of one file."""

    path: Path
    clips: tuple[tuple[str, float, int], ...]
    """Key, seconds and number of codes of each."""
    failed: Mapping[str, Finding] = field(default_factory=dict)
    """What is wrong with clips of the batch that have no codes, by key."""


def batch_path(folder: Path, name: str) -> Path:
    """The place of a batch."""
    return folder / f"{name}{BATCH_SUFFIX}"


def write_batch_file(path: Path, clips: Sequence[EncodedClip], failed: Mapping[str, Finding]) -> None:
    """Write a batch, whole or not at all. Who writes the same batch a second time writes the same bytes."""
    arrays: dict[str, AnyArray] = {}
    for place, clip in enumerate(clips):
        arrays[f"{place}.{CODES_TENSOR}"] = np.ascontiguousarray(clip.codes, dtype=np.int32)
        arrays |= {
            f"{place}.{VOICE_TENSOR_PREFIX}{name}": np.ascontiguousarray(array) for name, array in clip.voice.items()
        }
    notes = {
        CLIPS_METADATA_KEY: json.dumps([(clip.key, clip.seconds, len(clip.codes)) for clip in clips]),
        FAILED_METADATA_KEY: json.dumps({key: asdict(item) for key, item in failed.items()}, ensure_ascii=False),
    }
    with atomic_write(path, overwrite=True) as stream:
        stream.write(save(arrays, notes))


class BatchStore:
    """All batches of a folder, found by the keys of their clips. A damaged file counts as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, tuple[Path, int, float, int]] = {}
        """File, place in it, seconds and number of codes, by key."""
        self.failed: dict[str, Finding] = {}
        for path in sorted(folder.glob(f"*{BATCH_SUFFIX}")) if is_folder(folder) else ():
            if (found := _read_batch_header(path)) is not None:
                self._index_batch(found)
        self._arrays = lru_cache(MAX_OPEN_BATCHES)(_read_batch_arrays)

    def add(self, name: str) -> None:
        """Take in a batch that was written since."""
        if (found := _read_batch_header(batch_path(self.folder, name))) is not None:
            self._index_batch(found)

    def _index_batch(self, file: BatchHeader) -> None:
        for place, (key, seconds, num_codes) in enumerate(file.clips):
            self.places[key] = (file.path, place, seconds, num_codes)
        self.failed |= file.failed

    def clip(self, key: str) -> EncodedClip:
        """A clip that is in `places`."""
        path, place, seconds, _ = self.places[key]
        arrays, start = self._arrays(path), f"{place}."
        own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        voice = {
            name.removeprefix(VOICE_TENSOR_PREFIX): array
            for name, array in own.items()
            if name.startswith(VOICE_TENSOR_PREFIX)
        }
        return EncodedClip(key, seconds, own[CODES_TENSOR], dict(sorted(voice.items())))


def _read_batch_header(path: Path) -> BatchHeader | None:
    try:
        with safe_open(str(path), framework="numpy") as file:
            notes = file.metadata() or {}
            clips = tuple(
                (str(key), float(seconds), int(codes)) for key, seconds, codes in json.loads(notes[CLIPS_METADATA_KEY])
            )
            failed = {key: Finding(**item) for key, item in json.loads(notes[FAILED_METADATA_KEY]).items()}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    return BatchHeader(path, clips, failed)


def _read_batch_arrays(path: Path) -> dict[str, Any]:
    with safe_open(str(path), framework="numpy") as file:
        return dict(_iter_tensors(file))


def _iter_tensors(file: Any) -> Iterator[tuple[str, AnyArray]]:
    for name in file.keys():  # noqa: SIM118 (it is no mapping)
        yield name, file.get_tensor(name)
