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

from voxgraft.corpus.clips import Array
from voxgraft.errors import Finding
from voxgraft.files import is_folder, replacing

__all__ = ["BatchFile", "BatchFiles", "EncodedClip", "batch_path", "write_batch"]

SUFFIX = ".safetensors"
CLIPS, FAILED = "clips", "failed"
CODES, VOICE = "codes", "voice."
OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """What is kept of a clip's sound."""

    key: str
    seconds: float
    """As long as the sound really is."""
    codes: Array
    voice: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class BatchFile:
    """What stands at the head of one file."""

    path: Path
    clips: tuple[tuple[str, float, int], ...]
    """Key, seconds and number of codes of each."""
    failed: Mapping[str, Finding] = field(default_factory=dict)
    """What is wrong with clips of the batch that have no codes, by key."""


def batch_path(folder: Path, name: str) -> Path:
    """The place of a batch."""
    return folder / f"{name}{SUFFIX}"


def write_batch(path: Path, clips: Sequence[EncodedClip], failed: Mapping[str, Finding]) -> None:
    """Write a batch, whole or not at all. Who writes the same batch a second time writes the same bytes."""
    arrays: dict[str, Array] = {}
    for place, clip in enumerate(clips):
        arrays[f"{place}.{CODES}"] = np.ascontiguousarray(clip.codes, dtype=np.int32)
        arrays |= {f"{place}.{VOICE}{name}": np.ascontiguousarray(array) for name, array in clip.voice.items()}
    notes = {
        CLIPS: json.dumps([(clip.key, clip.seconds, len(clip.codes)) for clip in clips]),
        FAILED: json.dumps({key: asdict(item) for key, item in failed.items()}, ensure_ascii=False),
    }
    with replacing(path, overwrite=True) as stream:
        stream.write(save(arrays, notes))


class BatchFiles:
    """All batches of a folder, found by the keys of their clips. A damaged file counts as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, tuple[Path, int, float, int]] = {}
        """File, place in it, seconds and number of codes, by key."""
        self.failed: dict[str, Finding] = {}
        for path in sorted(folder.glob(f"*{SUFFIX}")) if is_folder(folder) else ():
            if (found := _read_head(path)) is not None:
                self._take_in(found)
        self._arrays = lru_cache(OPEN_FILES)(_read_arrays)

    def add(self, name: str) -> None:
        """Take in a batch that was written since."""
        if (found := _read_head(batch_path(self.folder, name))) is not None:
            self._take_in(found)

    def _take_in(self, file: BatchFile) -> None:
        for place, (key, seconds, num_codes) in enumerate(file.clips):
            self.places[key] = (file.path, place, seconds, num_codes)
        self.failed |= file.failed

    def clip(self, key: str) -> EncodedClip:
        """A clip that is in `places`."""
        path, place, seconds, _ = self.places[key]
        arrays, start = self._arrays(path), f"{place}."
        own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        voice = {name.removeprefix(VOICE): array for name, array in own.items() if name.startswith(VOICE)}
        return EncodedClip(key, seconds, own[CODES], dict(sorted(voice.items())))


def _read_head(path: Path) -> BatchFile | None:
    try:
        with safe_open(str(path), framework="numpy") as file:
            notes = file.metadata() or {}
            clips = tuple((str(key), float(seconds), int(codes)) for key, seconds, codes in json.loads(notes[CLIPS]))
            failed = {key: Finding(**item) for key, item in json.loads(notes[FAILED]).items()}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    return BatchFile(path, clips, failed)


def _read_arrays(path: Path) -> dict[str, Any]:
    with safe_open(str(path), framework="numpy") as file:
        return dict(_tensors(file))


def _tensors(file: Any) -> Iterator[tuple[str, Array]]:
    for name in file.keys():  # noqa: SIM118 (it is no mapping)
        yield name, file.get_tensor(name)
