"""One model in several safetensors or torch files: a folder with an index, or files that count themselves.

All of them together are one checkpoint; a tensor never crosses from one file into the next.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from voxgraft.checkpoints.model import Checkpoint
from voxgraft.checkpoints.pickles import PickleDict
from voxgraft.checkpoints.safetensors_file import read_safetensors
from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.torch_file import TorchArchive, TorchCheckpoint, read_torch_archive
from voxgraft.checkpoints.torch_tensors import TorchTensor
from voxgraft.checkpoints.zip_records import ZipRecord
from voxgraft.errors import CheckpointError
from voxgraft.files import is_file, is_folder, read_json

__all__ = ["find_shards", "list_shard_files", "open_shards"]

INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
_SHARD_FILE_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{3,6})-of-(?P<count>\d{3,6})(?P<suffix>\.safetensors|\.bin)")
MAX_SHARDS = 1000


class _JoinedSource(ByteSource):
    """Several files as one, by position."""

    def __init__(self, path: Path, sources: Sequence[ByteSource]) -> None:
        self.path = path
        self.sources = sources
        self.starts = [0]
        for source in sources:
            self.starts.append(self.starts[-1] + source.size)
        self.size = self.starts[-1]

    def close(self) -> None:
        for source in self.sources:
            source.close()

    def fill(self, start: int, view: memoryview) -> None:
        while len(view):
            at = bisect.bisect_right(self.starts, start) - 1
            if at >= len(self.sources):
                found = f"the files end at byte {self.size:,}, and more was to be read"
                raise CheckpointError("checkpoint-truncated", found, where=self.path)
            count = min(len(view), self.starts[at + 1] - start)
            self.sources[at].fill(start - self.starts[at], view[:count])
            start, view = start + count, view[count:]

    def check_unchanged(self) -> None:
        for source in self.sources:
            source.check_unchanged()


def find_shards(path: Path) -> Path | None:
    """The index, or the first counted file, of the model in shards that a path stands for; None where there is none.

    Where a folder has the model in both formats, the safetensors files are taken.
    """
    if is_folder(path):
        for suffix in INDEX_SUFFIXES:
            kind = "." + suffix.split(".")[1]
            indexes = sorted(path.glob(f"*{suffix}"))
            counted = sorted(one for one in path.glob(f"*{kind}") if _SHARD_FILE_NAME.fullmatch(one.name))
            if len(indexes) == 1 or (counted and not indexes):
                return indexes[0] if indexes else counted[0]
        return None
    if path.name.endswith(INDEX_SUFFIXES):
        return path
    match = _SHARD_FILE_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) < 2:
        return None
    index = path.with_name(f"{match['stem']}{match['suffix']}.index.json")
    return index if is_file(index) else path


def list_shard_files(path: Path) -> list[Path]:
    """All files of the model that `find_shards` has found."""
    return _resolve_shard_files(path)[0]


def open_shards(path: Path) -> Checkpoint:
    """The whole model that `find_shards` has found, checked through the structure of every file."""
    files, tensors_by_file = _resolve_shard_files(path)
    sources: list[ByteSource] = []
    try:
        parts: list[Checkpoint] = []
        there: set[str] = set()
        for file in files:
            sources.append(ByteSource(file))
            parts.append(_read_shard(sources[-1]))
            part = parts[-1].tensors.keys()
            if twice := next((name for name in part if name in there), None):
                raise _shards_error(f"{twice} is in {file.name} and in a file before it", path)
            wanted = tensors_by_file.get(file.name, ())
            if lacking := next((name for name in wanted if name not in part), None):
                raise _shards_error(f"{lacking} is not in {file.name}, where the index has it", path)
            there |= part
        return _join_shards(_JoinedSource(path, sources), parts)
    except BaseException:
        for source in sources:
            source.close()
        raise


def _read_shard(source: ByteSource) -> Checkpoint:
    head = source.read(0, min(source.size, 4))
    return read_torch_archive(source) if head.startswith(b"PK") else read_safetensors(source)


def _join_shards(source: _JoinedSource, parts: Sequence[Checkpoint]) -> Checkpoint:
    """All parts as one. Torch archives keep their checksums: their records only begin further on."""
    starts = source.starts
    archives = [part for part in parts if isinstance(part, TorchCheckpoint)]
    if not archives:
        moved = [
            replace(info, start=info.start + at)
            for at, part in zip(starts, parts, strict=False)
            for info in part.tensors.values()
        ]
        return Checkpoint(source, "safetensors", {info.name: info for info in moved})
    if len(archives) < len(parts):
        raise _shards_error("torch archives and safetensors files among its files", source.path)
    tensors: dict[str, TorchTensor] = {}
    records: dict[str, ZipRecord] = {}
    for number, part in enumerate(archives):
        for name, tensor in part.torch_tensors.items():
            key = f"{number}/{tensor.storage.key}"
            tensors[name] = replace(tensor, storage=replace(tensor.storage, key=key))
            record = part.get_record(tensor.storage.key)
            records[f"data/{key}"] = replace(record, start=record.start + starts[number])
    has_checksums = all(part.archive.has_checksums for part in archives)
    return TorchCheckpoint(source, TorchArchive(records, "", PickleDict(), has_checksums), tensors, None)


def _resolve_shard_files(path: Path) -> tuple[list[Path], dict[str, list[str]]]:
    """All files of the model in order, and which tensors the index puts into which of them."""
    tensors: dict[str, list[str]] = {}
    if path.name.endswith(INDEX_SUFFIXES):
        document = read_json(path)
        placed = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
            raise _shards_error(f"{path.name} has no `weight_map` of tensors to files", path)
        for name, file in placed.items():
            tensors.setdefault(file, []).append(name)
        names = sorted(tensors)
    else:
        match = _SHARD_FILE_NAME.fullmatch(path.name)
        assert match is not None  # `find_shards` has seen to it
        width, count = len(match["count"]), int(match["count"])
        names = [f"{match['stem']}-{at:0{width}d}-of-{match['count']}{match['suffix']}" for at in range(1, count + 1)]
    if len(names) > MAX_SHARDS or any(not name or "\0" in name or Path(name).name != name for name in names):
        raise _shards_error(f"{len(names):,} files, or some outside the folder", path)
    files = [path.with_name(name) for name in names]
    if missing := [file.name for file in files if not is_file(file)]:
        raise _shards_error(f"{len(missing):,} of {len(files):,} files are not there: {', '.join(missing[:3])}", path)
    return files, tensors


def _shards_error(found: str, path: Path) -> CheckpointError:
    return CheckpointError("checkpoint-shards", found, where=path)
