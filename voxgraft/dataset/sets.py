"""Prepared sets on disk: a folder of shards, and `set.json`, which states what they were made from.

A set is complete or absent. A set that was made from other things than the run has is refused with the difference.
`ShardVerifier` compares hashes in the background while training starts.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from voxgraft.core.errors import ConfigError, FileError, GraftError
from voxgraft.core.files import (
    atomic_write_folder,
    compute_sha256,
    format_error_reason,
    parse_json,
    path_exists,
    read_lines,
    require_file,
)
from voxgraft.dataset.shards import (
    CLIP_LINE_KEYS,
    CODES_KEY,
    DATASET_INDEX_NAME,
    TEXT_KEY,
    AnyArray,
    ClipDataset,
    DatasetHeader,
    DatasetIndex,
    Int32Array,
    Shard,
    ShardFile,
    check_clip,
    get_voice_specs,
    read_dataset_index,
    require_matching_header,
    write_dataset_index,
    write_shard,
)
from voxgraft.models.base import Clip

CLIPS_PER_SHARD = 2000
# Totals of seconds may differ this much: sums of rounded numbers depend on their order.
MAX_SECONDS_ERROR = 0.01
# Shards that are memory-mapped at once; each keeps a file open.
MAX_MAPPED_SHARDS = 128
# Large enough that hashing releases the GIL for most of the time.
HASH_CHUNK_BYTES = 4 << 20


def write_clip_dataset(
    folder: Path, header: DatasetHeader, clips: Iterable[Clip], shard_clips: int = CLIPS_PER_SHARD
) -> None:
    """Write a set atomically, with one shard in memory at a time. An earlier set is kept as `NAME.previous`."""
    if shard_clips < 1:
        raise ConfigError("config-value", f"shards of {shard_clips} clips", expected="at least 1")
    source = iter(clips)
    first = next(source, None)
    if first is None:
        raise GraftError("set-empty", f"no clip to write for {folder.name}", where=folder)
    forms = get_voice_specs(first)
    infos: dict[str, Clip] = {}
    num_text = num_codes = 0
    with atomic_write_folder(folder) as temporary:
        shards: list[tuple[ShardFile, ShardFile, int]] = []
        remaining = chain([first], source)
        while batch := [check_clip(clip, forms) for clip in islice(remaining, shard_clips)]:
            for clip in batch:
                if clip.id in infos:
                    raise GraftError("set-duplicate-ids", f"two clips have the id {clip.id!r}", expected="one")
                infos[clip.id] = Clip(speaker=clip.speaker, recording=clip.recording, seconds=clip.seconds)
                num_text += len(clip.text_ids)
                num_codes += len(clip.codes)
            shards.append(write_shard(temporary, len(shards), batch, forms))
        counts = _count_totals(list(infos.values()), num_text, num_codes)
        write_dataset_index(temporary, DatasetIndex(header, counts, forms, tuple(shards)))


def open_clip_dataset(
    folder: Path, *, expected: Mapping[str, Any] | None = None, verify: Literal["sizes", "hashes"] = "hashes"
) -> ClipDataset:
    """Open an existing set. Its values stay on disk until they are used.

    `expected` is what the run has, as far as it matters, in the form of set.json: {"family": ..., "made_from": {...}}.
    Every byte is read once and compared with what set.json states. With `verify="sizes"` the arrays are left to the
    caller, who compares `ClipDataset.shard_files` (`ShardVerifier`).
    """
    if verify not in ("sizes", "hashes"):
        raise ConfigError("config-value", f"verify is {verify!r}", expected="sizes or hashes")
    file = read_dataset_index(folder)
    require_matching_header(folder, file.header, expected or {})
    shards: list[Shard] = []
    infos: list[Clip] = []
    for arrays, lines, num_clips in file.shards:
        for entry in (arrays, lines):
            path = folder / entry.file
            size = require_file(path).stat().st_size if path_exists(path) else None
            if size != entry.bytes:
                found = f"{entry.file} does not exist" if size is None else f"{entry.file} has {size:,} bytes"
                stated_size = f"{entry.bytes:,}, as {DATASET_INDEX_NAME} states"
                raise FileError("set-damaged", found, expected=stated_size, where=path)
        # Lines are always hashed: they are small, are read anyway, and the order of the samples depends on them.
        for entry in (arrays, lines) if verify == "hashes" else (lines,):
            _require_shard_hash(folder / entry.file, entry.sha256, compute_sha256(folder / entry.file))
        shards.append(Shard(folder / arrays.file, num_clips, file.voice))
        infos += _read_clip_infos(folder / lines.file, num_clips)
    seen: set[str] = set()
    twice = [info.id for info in infos if info.id in seen or seen.add(info.id)]  # type: ignore[func-returns-value]
    if twice:
        raise GraftError("set-duplicate-ids", f"{len(twice):,} ids appear twice, {twice[0]!r} first", where=folder)
    clips = ShardedDataset(folder, file, shards, infos)
    actual = _count_totals(infos, int(clips.num_text.sum()), int(clips.num_codes.sum()))
    stated: Mapping[str, Any] = file.counts
    wrong = [
        name
        for name, value in actual.items()
        if name in stated
        and not (isinstance(stated[name], int | float) and abs(stated[name] - value) <= MAX_SECONDS_ERROR)
    ]
    if wrong:
        found = f"{DATASET_INDEX_NAME} states " + ", ".join(f"{name} {stated[name]!r:.40}" for name in wrong)
        expected_text = ", ".join(f"{name} {actual[name]:,}" for name in wrong) + ", as the shards have"
        raise FileError("set-damaged", found, expected=expected_text, where=folder / DATASET_INDEX_NAME)
    clips.verified = verify == "hashes"
    return clips


class ShardedDataset(ClipDataset):
    """A set of voxgraft, memory-mapped."""

    def __init__(self, folder: Path, file: DatasetIndex, shards: Sequence[Shard], infos: Sequence[Clip]) -> None:
        self.folder, self.name, self.header, self.counts = folder, folder.name, file.header, file.counts
        self.infos = infos
        self.num_text = np.concatenate([shard.num_text for shard in shards])
        self.num_codes = np.concatenate([shard.num_codes for shard in shards])
        self.fingerprint = file.fingerprint
        self.verified = False
        self._hashes = {folder / arrays.file: arrays.sha256 for arrays, _, _ in file.shards}
        self._shards = shards
        self._first: NDArray[np.int64] = np.cumsum([0, *(shard.num_clips for shard in shards)])
        self._mapped = lru_cache(MAX_MAPPED_SHARDS)(lambda at: shards[at].open_memory_map())

    def text_ids(self, clip: int) -> Int32Array:
        shard, file, at = self._place(clip)
        return shard.ids(file, TEXT_KEY, at)

    def codes(self, clip: int) -> Int32Array:
        shard, file, at = self._place(clip)
        return shard.ids(file, CODES_KEY, at)

    def voice(self, clip: int) -> dict[str, AnyArray]:
        shard, file, at = self._place(clip)
        return shard.voice(file, at)

    def shard_files(self) -> Mapping[Path, str]:
        return {} if self.verified else self._hashes

    def _place(self, clip: int) -> tuple[Shard, NDArray[np.uint8], int]:
        if not 0 <= clip < len(self):
            raise IndexError(f"clip {clip} of {len(self)}")
        at = int(np.searchsorted(self._first, clip, "right")) - 1
        return self._shards[at], self._mapped(at), clip - int(self._first[at])


def _count_totals(infos: Sequence[Clip], num_text: int, num_codes: int) -> dict[str, float]:
    """The totals in set.json; a reader computes them again and compares."""
    return {
        "clips": len(infos),
        "speakers": len({info.speaker for info in infos}),
        "recordings": len({info.recording for info in infos}),
        "seconds": round(sum(info.seconds for info in infos), 3),
        "text_ids": num_text,
        "codes": num_codes,
    }


def _read_clip_infos(path: Path, num_clips: int) -> list[Clip]:
    infos = []
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        entry = parse_json(line, where)
        if not isinstance(entry, dict) or set(entry) != set(CLIP_LINE_KEYS):
            expected = ", ".join(CLIP_LINE_KEYS)
            raise FileError("set-damaged", "the line is not a clip", expected=expected, where=where)
        seconds = entry["seconds"]
        numeric = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
        if not numeric or not all(isinstance(entry[name], str) for name in ("id", "speaker", "recording", "text")):
            found = "a value of the line has the wrong type"
            raise FileError("set-damaged", found, expected="texts, seconds", where=where)
        infos.append(Clip(**{**entry, "seconds": float(seconds)}))
    if len(infos) != num_clips:
        raise FileError("set-damaged", f"{len(infos):,} lines in {path.name}", expected=f"{num_clips:,}", where=path)
    return infos


def _require_shard_hash(path: Path, stated: str, found: str) -> None:
    if found != stated:
        text = f"the bytes of {path.name} have the hash {found[:16]}..."
        raise FileError("set-damaged", text, expected=f"{stated[:16]}..., as the set states", where=path)


class ShardVerifier:
    """Hashes shards in a background thread, held-out sets first, each file once.

    Training starts meanwhile: hashing hundreds of gigabytes takes minutes.
    """

    def __init__(self, held_out: Iterable[ClipDataset], learnt: Iterable[ClipDataset]) -> None:
        first, second = (
            {path: stated for clips in sets for path, stated in clips.shard_files().items()}
            for sets in (held_out, learnt)
        )
        self._parts = (first, {path: stated for path, stated in second.items() if path not in first})
        self._done = (threading.Event(), threading.Event())
        self._error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._verify, name="verification", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop hashing: the result is no longer needed."""
        self._stopped.set()

    def look(self) -> None:
        """Raise the error found so far, if any; does not wait."""
        if self._error is not None:
            raise self._error

    def wait(self, *, held_out_only: bool = False) -> None:
        """Wait until all files, or those of the held-out sets, are compared; raise the error found."""
        self._done[0 if held_out_only else 1].wait()
        self.look()

    def _verify(self) -> None:
        try:
            for files, done in zip(self._parts, self._done, strict=True):
                for path, stated in files.items():
                    digest = hashlib.sha256()
                    try:
                        with path.open("rb", buffering=0) as stream:
                            while chunk := stream.read(HASH_CHUNK_BYTES):
                                if self._stopped.is_set():
                                    return
                                digest.update(chunk)
                    except OSError as error:
                        found = f"{path.name}: {format_error_reason(error)}"
                        raise FileError("file-unreadable", found, where=path) from None
                    _require_shard_hash(path, stated, digest.hexdigest())
                done.set()
        except Exception as error:
            self._error = error  # raised in the thread that calls look() or wait()
        finally:
            for done in self._done:
                done.set()
