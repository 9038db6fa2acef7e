"""Reading what torch.save wrote before version 1.6, and still writes on request: five pickles, then all storages.

The pickles are followed, never run. The values stay in the file until they are asked for.
"""

from __future__ import annotations

import io
from typing import Any

from voxgraft.checkpoints.contents import NodeBudget, describe_node
from voxgraft.checkpoints.dtypes import item_bytes
from voxgraft.checkpoints.pickles import (
    MAX_PICKLE_BYTES,
    PERSISTENT_ID,
    PickleDict,
    PickleInterpreter,
    PickleObject,
    PickleParseError,
)
from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.torch_file import TorchArchive, TorchCheckpoint, find_model_in_archive
from voxgraft.checkpoints.torch_tensors import STORAGE_DTYPES
from voxgraft.checkpoints.zip_records import ZipRecord
from voxgraft.errors import CheckpointError

__all__ = ["LEGACY_MAGIC", "list_legacy_globals", "read_legacy_torch"]

LEGACY_MAGIC = bytes.fromhex("6cfc9c46f9206aa85019")
"""The number that torch wrote in front of its files before they were zip archives."""
LEGACY_PROTOCOL = 1001
COUNT_BYTES = 8
"""Before the values of each storage stands how many there are."""
_READ_SIZES = (1 << 20, 16 << 20, MAX_PICKLE_BYTES)
"""How much of the file is read to find the end of the pickles: most need far less than the first."""
_NUM_PICKLES = 5
_MAX_TREE_NODES = 3_000_000


def read_legacy_torch(source: ByteSource) -> TorchCheckpoint:
    """The checkpoint in such a file; an error for anything that is not right."""
    values, end, _ = _read_pickles(source)
    magic, protocol, system, tree, keys = values
    if magic != int.from_bytes(LEGACY_MAGIC, "little") or protocol != LEGACY_PROTOCOL:
        raise _legacy_error(source, f"it states protocol {protocol!r:.40}", f"{LEGACY_PROTOCOL}")
    if isinstance(system, PickleDict) and system.entries.get("little_endian") is False:
        raise _legacy_error(source, "its numbers are not little-endian")
    if not isinstance(tree, PickleDict):
        raise CheckpointError(
            "torch-contents",
            f"it holds {describe_node(tree, NodeBudget())} and no dictionary of tensors",
            expected="a dictionary of tensors by name",
            where=source.path,
        )
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise _legacy_error(source, "its list of storages is no list of names")
    records = _locate_storages(source, keys, _find_storages(tree), end)
    return find_model_in_archive(source, TorchArchive(records, "", tree, has_checksums=False), "torch-legacy")


def list_legacy_globals(source: ByteSource) -> list[str]:
    """Every name that loading the file would import, also where the pickles break off."""
    return _read_pickles(source, partial=True)[2]


def _read_pickles(source: ByteSource, *, partial: bool = False) -> tuple[list[Any], int, list[str]]:
    """What the pickles describe, where the storages start, and the names that they would import."""
    error = PickleParseError("it has no end")
    names: dict[str, None] = {}
    for size in dict.fromkeys(min(size, source.size) for size in _READ_SIZES):
        stream = io.BytesIO(source.read(0, size))
        values: list[Any] = []
        try:
            for _ in range(_NUM_PICKLES):
                machine = PickleInterpreter()
                try:
                    values.append(machine.run(stream))
                finally:
                    names.update(dict.fromkeys(machine.globals))
            return values, stream.tell(), list(names)
        except PickleParseError as broken:  # perhaps only because the piece ends here
            error = broken
    if partial:
        return [], 0, list(names)
    code = "checkpoint-truncated" if source.size < _READ_SIZES[0] and "end" in str(error) else "torch-pickle"
    raise CheckpointError(code, f"the pickle cannot be read: {error}", where=source.path) from None


def _find_storages(tree: PickleDict) -> dict[str, tuple[str, int]]:
    """Type and number of values of every storage that the tree names, by its key."""
    waiting: list[Any] = [tree]
    seen: set[int] = set()
    kinds: dict[str, tuple[str, int]] = {}
    while waiting and len(seen) < _MAX_TREE_NODES:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, PickleObject) and node.maker == PERSISTENT_ID:
            identity = node.args
            if isinstance(identity, tuple) and len(identity) in (5, 6) and identity[0] == "storage":
                _, kind, key, _, count = identity[:5]
                if isinstance(key, str) and type(count) is int and count >= 0:
                    kinds[key] = str(kind), count
        elif isinstance(node, PickleObject):
            waiting += [node.args, node.state, *node.items]
        elif isinstance(node, PickleDict):
            waiting += [*node.entries.values(), node.state]
        elif isinstance(node, list | tuple):
            waiting += node
    return kinds


def _locate_storages(
    source: ByteSource, keys: list[str], kinds: dict[str, tuple[str, int]], start: int
) -> dict[str, ZipRecord]:
    """Where the values of each storage lie: one after another, each behind its count."""
    records: dict[str, ZipRecord] = {}
    for key in keys:
        kind, count = kinds.get(key, ("", 0))
        if kind not in STORAGE_DTYPES:
            raise _legacy_error(source, f"the storage {key[:40]!r} is of {kind or 'no'} kind")
        if start + COUNT_BYTES > source.size:
            raise CheckpointError("checkpoint-truncated", f"the file ends before storage {key[:40]}", where=source.path)
        stated = int.from_bytes(source.read(start, COUNT_BYTES), "little", signed=True)
        if stated != count:
            raise _legacy_error(source, f"the storage {key[:40]!r} has {stated:,} values", f"{count:,}")
        size, start = count * item_bytes(STORAGE_DTYPES[kind]), start + COUNT_BYTES
        if start + size > source.size:
            found = f"the file has {source.size:,} bytes, its storages need {start + size:,} or more"
            raise CheckpointError("checkpoint-truncated", found, where=source.path)
        records[f"data/{key}"] = ZipRecord(f"data/{key}", start, size, 0, start)
        start += size
    return records


def _legacy_error(source: ByteSource, found: str, expected: str = "") -> CheckpointError:
    return CheckpointError("torch-archive", found, expected=expected, where=source.path)
