"""Read torch's `.pth` and `.pt` files: the model's tensors, and a list of what else is inside.

Both formats are read: zip archives (torch 1.6 and later) and the older sequence of pickles. The pickle is followed,
never run (`pickles`). Values stay in the file until they are requested.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import ByteSource, Checkpoint, CheckpointExtra, CheckpointFormat, TensorInfo, item_bytes
from voxgraft.checkpoints.pickles import (
    MAX_PICKLE_BYTES,
    PERSISTENT_ID,
    STORAGE_DTYPES,
    UNTYPED_STORAGE,
    NodeDescriber,
    PickleDict,
    PickleInterpreter,
    PickleObject,
    PickleParseError,
    TensorParseError,
    TorchTensor,
    child_nodes,
    is_small_scalar,
    is_tensor,
    parse_tensor,
    read_pickle,
)
from voxgraft.core.errors import CheckpointError
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import is_encodable_text

MAX_DIRECTORY_BYTES = 32 << 20
# Records of the zip format (APPNOTE.TXT of PKWARE, sections 4.3.7 to 4.3.16), with their signatures as first field.
LOCAL_HEADER = struct.Struct("<4s5H3I2H")
CENTRAL_HEADER = struct.Struct("<4s6H3I5H2I")
END_RECORD = struct.Struct("<4s4H2IH")
END64_RECORD = struct.Struct("<4sQ2H2I4Q")
LOCATOR64_RECORD = struct.Struct("<4sIQI")
LOCAL_SIGNATURE, CENTRAL_SIGNATURE, END_SIGNATURE = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64_SIGNATURE, LOCATOR64_SIGNATURE = b"PK\x06\x06", b"PK\x06\x07"
MAX_UINT16, MAX_UINT32 = 0xFFFF, 0xFFFFFFFF
ENCRYPTED_FLAG = 1
ZIP64_EXTRA = 1


@dataclass(frozen=True, slots=True)
class ZipRecord:
    """One file inside the archive: its bytes are `size` bytes of the archive from `start`."""

    name: str
    start: int
    size: int
    crc: int
    header: int
    """Where its own header starts."""


def read_zip_records(source: ByteSource) -> dict[str, ZipRecord]:
    """All records by name, folders left out; an error for a directory that is broken or inconsistent.

    Python's `zipfile` is not used: it accepts overlapping records and a directory of any size.
    """
    directory_start, directory_size, count = _find_directory(source)
    records: dict[str, ZipRecord] = {}
    data = source.read(directory_start, directory_size)
    at = 0
    for _ in range(count):
        record, at = _parse_directory_entry(source, data, at, directory_start)
        if record.name in records:
            raise _archive_error(source, f"the record {record.name!r} appears twice")
        records[record.name] = record
    if at != len(data):
        raise _archive_error(source, f"{len(data) - at} bytes follow the last entry of the directory")
    end = 0
    for record in sorted(records.values(), key=lambda record: record.header):
        if record.header < end:  # this is how a small archive pretends to be a large one
            raise _archive_error(source, f"the record {record.name!r} overlaps the one before it")
        end = record.start + record.size
    return {name: record for name, record in records.items() if not name.endswith("/")}


def _find_directory(source: ByteSource) -> tuple[int, int, int]:
    """Start, size and number of entries of the central directory."""
    # The end record is the last thing in the file, but for a comment of up to 64 KiB.
    tail_start = max(0, source.size - END_RECORD.size - MAX_UINT16)
    tail = source.read(tail_start, source.size - tail_start)
    at = tail.rfind(END_SIGNATURE)
    if at < 0 or at + END_RECORD.size > len(tail):
        found = f"the archive of {source.size:,} bytes has no directory at its end"
        raise CheckpointError("checkpoint-truncated", found, where=source.path)
    _, disk, first_disk, here, count, size, start, comment = END_RECORD.unpack_from(tail, at)
    end = tail_start + at
    if (disk, first_disk) != (0, 0) or here != count or end + END_RECORD.size + comment != source.size:
        raise _archive_error(source, "the end record of the archive is inconsistent")
    locator_at = end - LOCATOR64_RECORD.size
    if locator_at >= 0 and source.read(locator_at, 4) == LOCATOR64_SIGNATURE:
        # The same facts in 64 bits; those that fit in 32 bits must agree.
        _, _, end, _ = LOCATOR64_RECORD.unpack(source.read(locator_at, LOCATOR64_RECORD.size))
        if end + END64_RECORD.size > locator_at:
            raise _archive_error(source, f"the 64-bit end record is missing at {end:,}")
        signature, _, _, _, _, _, here, *large = END64_RECORD.unpack(source.read(end, END64_RECORD.size))
        pairs = zip((count, size, start), large, (MAX_UINT16, MAX_UINT32, MAX_UINT32), strict=True)
        agree = all(short in (long, limit) for short, long, limit in pairs)
        count, size, start = large
        if signature != END64_SIGNATURE or here != count or not agree:
            raise _archive_error(source, "the two end records of the archive differ")
    if start + size != end or size > MAX_DIRECTORY_BYTES:
        raise _archive_error(source, f"a directory of {size:,} bytes at {start:,} that should end at {end:,}")
    if count * CENTRAL_HEADER.size > size:
        raise _archive_error(source, f"{count:,} entries in a directory of {size:,} bytes")
    return start, size, count


def _parse_directory_entry(source: ByteSource, data: bytes, at: int, limit: int) -> tuple[ZipRecord, int]:
    """The record that is described at `at`, and where the next description starts. Records end before `limit`."""
    if at + CENTRAL_HEADER.size > len(data):
        raise _archive_error(source, "the directory ends inside an entry")
    fields = CENTRAL_HEADER.unpack_from(data, at)
    signature, flags, method, crc, packed, size = fields[0], fields[3], fields[4], *fields[7:10]
    name_size, extra_size, comment_size, header = *fields[10:13], fields[16]
    name_end = at + CENTRAL_HEADER.size + name_size
    end = name_end + extra_size + comment_size
    if signature != CENTRAL_SIGNATURE or end > len(data):
        raise _archive_error(source, "an entry of the directory is damaged")
    # Names are compared as bytes with the local header; the decoded form is only for people and for lookups.
    name_bytes = data[at + CENTRAL_HEADER.size : name_end]
    if MAX_UINT32 in (size, packed, header):
        # Values that do not fit in 32 bits are in the zip64 extra field, in this order.
        extra, field = data[name_end : name_end + extra_size], 0
        while True:
            if field + 4 > len(extra):
                raise _archive_error(source, "a record of over 4 GiB without its 64-bit size")
            kind, length = struct.unpack_from("<2H", extra, field)
            if kind == ZIP64_EXTRA:
                break
            field += 4 + length
        body = extra[field + 4 : field + 4 + length]
        wide = iter(struct.unpack_from(f"<{len(body) // 8}Q", body))
        size, packed, header = (
            next(wide, MAX_UINT32) if value == MAX_UINT32 else value for value in (size, packed, header)
        )
    name = name_bytes.decode("utf-8", "backslashreplace")
    if method != 0:
        raise CheckpointError("torch-compressed", f"the record {name!r} is compressed", where=source.path)
    if flags & ENCRYPTED_FLAG or packed != size:
        raise _archive_error(source, f"the record {name!r} is encrypted or has two sizes, {size:,} and {packed:,}")
    if header + LOCAL_HEADER.size > source.size:
        raise _archive_error(source, f"the record {name_bytes!r} should be at {header:,}, past the end")
    local = LOCAL_HEADER.unpack(source.read(header, LOCAL_HEADER.size))
    start = header + LOCAL_HEADER.size + int(local[9]) + int(local[10])
    if local[0] != LOCAL_SIGNATURE or local[9] != name_size or start > source.size:
        raise _archive_error(source, f"there is no record {name_bytes!r} at {header:,}")
    if source.read(header + LOCAL_HEADER.size, name_size) != name_bytes:
        raise _archive_error(source, f"the record at {header:,} is not {name_bytes!r}")
    if start + size > limit:
        raise _archive_error(source, f"the record {name!r} reaches past the directory")
    return ZipRecord(name, start, size, crc, header), end


def _archive_error(source: ByteSource, found: str, expected: str = "") -> CheckpointError:
    return CheckpointError("torch-archive", found, expected=expected, where=source.path)


# Keys under which trainers put the state dict, in the order in which they are tried.
STATE_DICT_KEYS = ("model", "model_state_dict", "state_dict", "module", "net", "generator", "weights")
# Dictionaries around the one that holds a model's dictionary.
MAX_WRAPPER_LEVELS = 2
# The one tensor that every model of a known family has.
TEXT_TABLE_NAMES = tuple(dict.fromkeys(facts.text_table for facts in FAMILIES.values()))


@dataclass(frozen=True, slots=True)
class TorchArchive:
    """The archive around the tensors: its records, and the tree that the pickle describes."""

    records: Mapping[str, ZipRecord]
    folder: str
    tree: PickleDict
    has_checksums: bool
    """torch has an option to omit the checksums; then every one is zero."""


class TorchCheckpoint(Checkpoint):
    """A checkpoint in a torch archive, with what a writer of the same kind needs beside the tensors."""

    def __init__(
        self,
        source: ByteSource,
        archive: TorchArchive,
        tensors: Mapping[str, TorchTensor],
        wrapper: str | None,
        kind: CheckpointFormat = "torch-zip",
    ) -> None:
        infos = {name: _locate_tensor(name, tensor, archive, source) for name, tensor in tensors.items()}
        # What is no tensor of the model: beside the state dict, and inside it.
        outer = archive.tree.entries
        others = [(key, node) for key, node in outer.items() if key != wrapper] if wrapper is not None else []
        inside = outer if wrapper is None else outer[wrapper].entries
        others += [(key, node) for key, node in inside.items() if not is_tensor(node)]
        describer = NodeDescriber()
        extras = []
        for key, node in others:
            scalar = is_small_scalar(node) and isinstance(key, str)
            value = node if scalar else None
            extras.append(CheckpointExtra(str(key)[:80], describer.describe(node), scalar, value))
        super().__init__(source, kind, infos, wrapper=wrapper, extras=tuple(extras))
        self.archive = archive
        self.torch_tensors = tensors

    @property
    def state_dict(self) -> PickleDict:
        """The part of the tree that holds the tensors."""
        tree = self.archive.tree if self.wrapper is None else self.archive.tree.entries[self.wrapper]
        assert isinstance(tree, PickleDict)
        return tree

    def get_record(self, storage: str) -> ZipRecord:
        """The record that holds a storage's bytes."""
        return self.archive.records[f"{self.archive.folder}data/{storage}"]

    def is_whole_record(self, info: TensorInfo) -> bool:
        """Whether a tensor's bytes are exactly those for which the archive states a checksum."""
        record = self.get_record(info.storage)
        return info.contiguous and (info.start, info.num_bytes) == (record.start, record.size) and record.size > 0

    def locate_tensor(self, name: str, node: PickleObject) -> TensorInfo:
        """The place of a tensor that is not part of the model, such as a moment of its optimizer."""
        return _locate_tensor(name, _describe_tensor(name, node, self.source), self.archive, self.source)

    def _values(self, info: TensorInfo) -> NDArray[np.generic]:
        values = super()._values(info)
        if self.is_whole_record(info):
            self.verify_checksum(info.storage, zlib.crc32(values.reshape(-1).view(np.uint8).data))
        return values

    def verify_checksum(self, storage: str, found: int) -> None:
        """Refuse bytes whose CRC-32 is not the one that the archive states."""
        record = self.get_record(storage)
        if self.archive.has_checksums and found != record.crc:
            text = f"the record {record.name} has checksum {found:08x}"
            raise CheckpointError("torch-checksum", text, expected=f"{record.crc:08x}", where=self.path)


def read_torch_archive(source: ByteSource) -> TorchCheckpoint:
    """The checkpoint in a file that starts like a zip archive; an error for anything that is not right."""
    return _find_model(source, _read_archive(source), "torch-zip")


def _find_model(source: ByteSource, archive: TorchArchive, kind: CheckpointFormat) -> TorchCheckpoint:
    """The model among everything that a file holds."""
    archive = replace(archive, tree=_flatten_pipeline(archive.tree))
    wrapper, state = _find_state_dict(archive.tree, source)
    return TorchCheckpoint(source, archive, _parse_state_dict(state, source), wrapper, kind)


def read_torch_state_dict(source: ByteSource, key: str) -> TorchCheckpoint:
    """The tensors under one key of a file that holds several dictionaries of them."""
    archive = _read_archive(source)
    part = archive.tree.entries.get(key)
    if not isinstance(part, PickleDict):
        raise _contents_error(source, f"there is no dictionary of tensors under {key}")
    return TorchCheckpoint(source, archive, _parse_state_dict(part, source), key)


def read_nested_torch(source: ByteSource, key: str) -> TorchCheckpoint:
    """All tensors under a key whose dictionaries hold dictionaries, named `table.tensor`; without the key, all of them.

    IndexTTS-2's s2mel.pth is {"net": {"cfm": {...}, "length_regulator": {...}}}, with an optimizer beside it.
    """
    archive = _read_archive(source)
    outer = archive.tree.entries.get(key, archive.tree)
    if not isinstance(outer, PickleDict):
        raise _contents_error(source, f"there is no dictionary of tensors under {key}")
    flat: dict[Any, Any] = {}
    for table, node in outer.entries.items():
        inner = node.entries if isinstance(node, PickleDict) else {}
        flat |= {f"{table}.{name}": value for name, value in inner.items() if is_tensor(value)}
        if is_tensor(node):
            flat[table] = node
    if not flat:
        keys = ", ".join(str(name)[:40] for name in list(outer.entries)[:6])
        raise _contents_error(source, f"no tensors among its entries ({keys})")
    archive = replace(archive, tree=PickleDict(entries=flat))
    return TorchCheckpoint(source, archive, _parse_state_dict(archive.tree, source), None)


def read_torch_tensor(source: ByteSource) -> NDArray[np.generic]:
    """The values of a file that holds one tensor on its own, or one under whatever name."""
    archive = _read_archive(source, alone="tensor")
    found = {str(name): node for name, node in archive.tree.entries.items() if is_tensor(node)}
    if len(found) != 1:
        raise _contents_error(source, f"it contains {len(found):,} tensors", "one tensor")
    tensors = {name: _describe_tensor(name, node, source) for name, node in found.items()}
    return TorchCheckpoint(source, archive, tensors, None).read(next(iter(tensors)))


def read_torch_records(source: ByteSource) -> tuple[dict[str, ZipRecord], str, bytes]:
    """All records, the one folder that they are in (with its slash), and the bytes of the pickle."""
    records = read_zip_records(source)
    folders = [name.removesuffix("data.pkl") for name in records if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(folders) != 1:
        found = f"a zip archive with {', '.join(list(records)[:3]) or 'nothing'}"
        raise _archive_error(source, found, "a data.pkl as torch.save writes it")
    if folders[0] + "constants.pkl" in records:
        raise _contents_error(source, "it is a TorchScript program")
    record = records[folders[0] + "data.pkl"]
    if record.size > MAX_PICKLE_BYTES:
        found = f"the pickle has {record.size:,} bytes"
        raise CheckpointError("torch-pickle", found, expected=f"at most {MAX_PICKLE_BYTES:,}", where=source.path)
    return records, folders[0], source.read(record.start, record.size)


def _read_archive(source: ByteSource, alone: str | None = None) -> TorchArchive:
    """What is in the file; a tensor that exists `alone` gets that name."""
    records, folder, data = read_torch_records(source)
    pickle = records[folder + "data.pkl"]
    has_checksums = pickle.crc != 0
    if has_checksums and zlib.crc32(data) != pickle.crc:
        found = f"the record {pickle.name} has checksum {zlib.crc32(data):08x}"
        raise CheckpointError("torch-checksum", found, expected=f"{pickle.crc:08x}", where=source.path)
    order = records.get(folder + "byteorder")
    if order is not None and source.read(order.start, min(order.size, 16)) != b"little":
        raise _contents_error(source, "its numbers are not little-endian")
    tree = read_pickle(data, source.path)
    if alone is not None and is_tensor(tree):
        tree = PickleDict(entries={alone: tree})
    return TorchArchive(records, folder, _require_dict(tree, source), has_checksums)


def _require_dict(tree: Any, source: ByteSource) -> PickleDict:
    """What a file holds as a dictionary; entries of a list (a model, and its step behind it) are named by number."""
    if isinstance(tree, list | tuple) and any(isinstance(node, PickleDict) for node in tree):
        return PickleDict(entries={str(at): node for at, node in enumerate(tree)})
    if not isinstance(tree, PickleDict):
        raise _contents_error(source, f"it contains {NodeDescriber().describe(tree)} but no dictionary of tensors")
    return tree


def _find_state_dict(tree: PickleDict, source: ByteSource) -> tuple[str | None, PickleDict]:
    """The dictionary that holds the tensors, and its key (None: it is the whole file)."""
    inner = {key: node for key, node in tree.entries.items() if isinstance(key, str) and isinstance(node, PickleDict)}
    for key in STATE_DICT_KEYS:
        if key in inner and _tensor_share(inner[key]) > 0:
            return key, inner[key]
    # Random states and averages also hold tensors, so that only what is mostly tensors counts as a model.
    # Each is counted once: in a hostile file thousands of entries lead to the same large one.
    distinct = {id(node): node for node in inner.values()}
    mostly = {at for at, node in distinct.items() if _tensor_share(node) >= 0.5}
    models = [key for key, node in inner.items() if id(node) in mostly]
    if _tensor_share(tree) >= 0.5 or (_tensor_share(tree) > 0 and not models):
        return None, tree
    if len(models) > 1:  # a pipeline saved as one: the model that reads text is the one that is meant
        models = [key for key in models if any(_is_text_table(name) for name in inner[key].entries)] or models
        models = [key for key in models if "ema" not in key.lower()] or models  # the model before an average of it
    if len(models) == 1:
        return models[0], inner[models[0]]
    if models:
        raise _contents_error(source, f"tensors are under several keys: {', '.join(models[:6])}")
    whole = next((node for node in tree.entries.values() if isinstance(node, PickleObject) and node.state), None)
    keys = ", ".join(str(key)[:40] for key in list(tree.entries)[:6])
    found = f"none of its entries is a dictionary of tensors; its entries: {keys or 'none'}"
    raise _contents_error(source, found + (f"; it contains a whole object, {whole.maker}" if whole else ""))


def _flatten_pipeline(tree: PickleDict) -> PickleDict:
    """A tree whose model is at most one level deep: its neighbours move to the outer level, too.

    Pipelines are saved as {"model": {"t3": {...}, "s3gen": {...}}}. Deeper ones are not known.
    """
    # Each dictionary is searched once: in a hostile file thousands of entries lead to the same large one.
    known: dict[int, bool] = {}

    def has_text_table(node: PickleDict) -> bool:
        if id(node) not in known:
            known[id(node)] = any(_is_text_table(name) and is_tensor(value) for name, value in node.entries.items())
        return known[id(node)]

    for _ in range(MAX_WRAPPER_LEVELS):
        inner = {key: node for key, node in tree.entries.items() if isinstance(node, PickleDict)}
        distinct = {id(node): key for key, node in reversed(inner.items())}
        if any(map(is_tensor, tree.entries.values())) or any(has_text_table(inner[key]) for key in distinct.values()):
            return tree
        for key in reversed(distinct.values()):
            below = (node for node in inner[key].entries.values() if isinstance(node, PickleDict))
            if any(map(has_text_table, below)):
                break
        else:
            return tree
        tree = PickleDict(
            entries={name: node for name, node in tree.entries.items() if name != key} | inner[key].entries
        )
    return tree


def _is_text_table(name: Any) -> bool:
    return isinstance(name, str) and any(name == own or name.endswith(f".{own}") for own in TEXT_TABLE_NAMES)


def _tensor_share(node: PickleDict) -> float:
    return sum(map(is_tensor, node.entries.values())) / max(len(node.entries), 1)


def _parse_state_dict(state: PickleDict, source: ByteSource) -> dict[str, TorchTensor]:
    """The tensors of a dictionary by name; everything else in it is left out."""
    nodes = {name: node for name, node in state.entries.items() if is_tensor(node)}
    if invalid_names := [name for name in nodes if not is_encodable_text(name)]:
        raise _contents_error(source, f"a tensor has the name {invalid_names[0]!a:.40}, which is not a string")
    return {name: _describe_tensor(name, node, source) for name, node in nodes.items()}


def _describe_tensor(name: str, node: PickleObject, source: ByteSource) -> TorchTensor:
    try:
        return parse_tensor(node.maker, node.args)
    except TensorParseError as error:
        raise CheckpointError("torch-tensor", f"the tensor {name}: {error}", where=source.path) from None


def _locate_tensor(name: str, tensor: TorchTensor, archive: TorchArchive, source: ByteSource) -> TensorInfo:
    record = archive.records.get(f"{archive.folder}data/{tensor.storage}")
    needed = tensor.storage_items * (1 if tensor.storage_class == UNTYPED_STORAGE else item_bytes(tensor.dtype))
    if record is None or record.size != needed:
        there = f"{record.size:,} bytes" if record else "missing"
        found = f"the values of {name} (record data/{tensor.storage}) are {there}"
        raise CheckpointError("torch-storage", found, expected=f"{needed:,} bytes", where=source.path)
    start = record.start + tensor.offset * item_bytes(tensor.dtype)
    return TensorInfo(name, tensor.dtype, tensor.shape, start, tensor.strides, tensor.storage)


def _contents_error(
    source: ByteSource, found: str, expected: str = "a dictionary of tensor names and tensors"
) -> CheckpointError:
    return CheckpointError("torch-contents", found, expected=expected, where=source.path)


# The number that torch wrote in front of its files before they were zip archives.
LEGACY_MAGIC = bytes.fromhex("6cfc9c46f9206aa85019")
LEGACY_PROTOCOL = 1001
# The values of each storage are preceded by their number, in 8 bytes.
COUNT_BYTES = 8
# How much of the file is read to find the end of the pickles: most need far less than the first.
_READ_SIZES = (1 << 20, 16 << 20, MAX_PICKLE_BYTES)
_NUM_PICKLES = 5
_MAX_TREE_NODES = 3_000_000


def read_legacy_torch(source: ByteSource) -> TorchCheckpoint:
    """The checkpoint in a torch file from before the archives; an error for anything that is not right."""
    # Five pickles (magic number, protocol, system, the object, keys of the storages), then every storage: the number of
    # its values, and the values.
    values, start, _ = read_legacy_pickles(source)
    magic, protocol, system, tree, keys = values
    if magic != int.from_bytes(LEGACY_MAGIC, "little") or protocol != LEGACY_PROTOCOL:
        raise _archive_error(source, f"it states protocol {protocol!r:.40}", f"{LEGACY_PROTOCOL}")
    if isinstance(system, PickleDict) and system.entries.get("little_endian") is False:
        raise _archive_error(source, "its numbers are not little-endian")
    tree = _require_dict(tree, source)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise _archive_error(source, "its list of storages is not a list of names")
    # Type and number of values of every storage that the tree names, by its key.
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
        else:
            waiting += child_nodes(node)
    records: dict[str, ZipRecord] = {}
    for key in keys:
        kind, count = kinds.get(key, ("", 0))
        if kind not in STORAGE_DTYPES:
            raise _archive_error(source, f"the storage {key[:40]!r} is of {kind or 'no'} kind")
        if start + COUNT_BYTES > source.size:
            raise CheckpointError("checkpoint-truncated", f"the file ends before storage {key[:40]}", where=source.path)
        stored_count = int.from_bytes(source.read(start, COUNT_BYTES), "little", signed=True)
        if stored_count != count:
            raise _archive_error(source, f"the storage {key[:40]!r} has {stored_count:,} values", f"{count:,}")
        size, start = count * item_bytes(STORAGE_DTYPES[kind]), start + COUNT_BYTES
        if start + size > source.size:
            found = f"the file has {source.size:,} bytes, its storages need {start + size:,} or more"
            raise CheckpointError("checkpoint-truncated", found, where=source.path)
        records[f"data/{key}"] = ZipRecord(f"data/{key}", start, size, 0, start)
        start += size
    return _find_model(source, TorchArchive(records, "", tree, has_checksums=False), "torch-legacy")


def read_legacy_pickles(source: ByteSource, *, partial: bool = False) -> tuple[list[Any], int, list[str]]:
    """What the pickles of a legacy file describe, where its storages start, and the names that they would import.

    `partial` gives the names also where the pickles break off.
    """
    error = PickleParseError("it has no end marker")
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
