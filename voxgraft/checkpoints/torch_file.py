"""Reading torch's `.pth` and `.pt` archives: the model's tensors, and a list of what else is inside.

The pickle is followed, never run (`pickles`). The values stay in the file until they are asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.contents import NodeBudget, describe_node, is_small_scalar
from voxgraft.checkpoints.dtypes import item_bytes
from voxgraft.checkpoints.model import Checkpoint, CheckpointExtra, CheckpointFormat, TensorInfo
from voxgraft.checkpoints.pickles import MAX_PICKLE_BYTES, PickleDict, PickleObject, read_pickle
from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.torch_tensors import UNTYPED_STORAGE, TensorParseError, TorchTensor, is_tensor, parse_tensor
from voxgraft.checkpoints.zip_records import ZipRecord, read_zip_records
from voxgraft.errors import CheckpointError
from voxgraft.files import is_encodable_text

STATE_DICT_KEYS = ("model", "model_state_dict", "state_dict", "module", "net", "generator", "weights")
"""Keys under which trainers put the state dict, in the order in which they are tried."""
MAX_WRAPPER_LEVELS = 2
"""Dictionaries around the one that holds a model's dictionary."""
TEXT_TABLE_NAMES = ("text_emb.weight", "text_embedding.weight")
"""The one tensor that every model of a known family has."""


@dataclass(frozen=True, slots=True)
class TorchArchive:
    """The archive around the tensors: its records, and the tree that the pickle describes."""

    records: Mapping[str, ZipRecord]
    folder: str
    tree: PickleDict
    has_checksums: bool
    """torch can be told to leave the checksums out; then every one is zero."""


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
        extras = tuple(_list_extras(archive.tree, wrapper))
        super().__init__(source, kind, infos, wrapper=wrapper, extras=extras)
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

    def get_checksum(self, storage: str) -> int | None:
        """The CRC-32 that the archive states for a storage, if it states any."""
        return self.get_record(storage).crc if self.archive.has_checksums else None

    def is_whole_record(self, info: TensorInfo) -> bool:
        """Whether a tensor's bytes are exactly those for which the archive states a checksum."""
        record = self.get_record(info.storage)
        return info.contiguous and (info.start, info.num_bytes) == (record.start, record.size) and record.size > 0

    def locate_tensor(self, name: str, node: PickleObject) -> TensorInfo:
        """Where the values of a tensor lie that is no part of the model, such as a moment of its optimizer."""
        return _locate_tensor(name, _describe_tensor(name, node, self.source), self.archive, self.source)

    def _values(self, info: TensorInfo) -> NDArray[np.generic]:
        values = super()._values(info)
        if self.is_whole_record(info):
            self.verify_checksum(info.storage, zlib.crc32(values.reshape(-1).view(np.uint8).data))
        return values

    def verify_checksum(self, storage: str, found: int) -> None:
        """Refuse bytes whose CRC-32 is not the one that the archive states."""
        expected = self.get_checksum(storage)
        if expected is not None and found != expected:
            name = self.get_record(storage).name
            text = f"the record {name} has checksum {found:08x}"
            raise CheckpointError("torch-checksum", text, expected=f"{expected:08x}", where=self.path)


def read_torch_archive(source: ByteSource) -> TorchCheckpoint:
    """The checkpoint in a file that starts like a zip archive; an error for anything that is not right."""
    return find_model_in_archive(source, _read_archive(source))


def find_model_in_archive(
    source: ByteSource, archive: TorchArchive, kind: CheckpointFormat = "torch-zip"
) -> TorchCheckpoint:
    """The model among everything that a file holds."""
    archive = replace(archive, tree=_flatten_pipeline(archive.tree))
    wrapper, state = _find_state_dict(archive.tree, source)
    tensors = {name: _describe_tensor(name, node, source) for name, node in state.entries.items() if is_tensor(node)}
    return TorchCheckpoint(source, archive, tensors, wrapper, kind)


def read_torch_state_dict(source: ByteSource, key: str) -> TorchCheckpoint:
    """The tensors under one key of a file that holds several dictionaries of them."""
    archive = _read_archive(source)
    part = archive.tree.entries.get(key)
    if not isinstance(part, PickleDict):
        raise _contents_error(source, f"there is no dictionary of tensors under {key}")
    state = _require_text_names(part, source)
    tensors = {name: _describe_tensor(name, node, source) for name, node in state.entries.items() if is_tensor(node)}
    return TorchCheckpoint(source, archive, tensors, key)


def read_torch_tensor(source: ByteSource) -> NDArray[np.generic]:
    """The values of a file that holds one tensor by itself, or one under whatever name."""
    archive = _read_archive(source, alone="tensor")
    found = {str(name): node for name, node in archive.tree.entries.items() if is_tensor(node)}
    if len(found) != 1:
        raise _contents_error(source, f"it holds {len(found):,} tensors", "one tensor")
    tensors = {name: _describe_tensor(name, node, source) for name, node in found.items()}
    return TorchCheckpoint(source, archive, tensors, None).read(next(iter(tensors)))


def read_data_pickle(source: ByteSource) -> bytes:
    """The bytes of the pickle in the archive."""
    records = read_zip_records(source)
    return _read_pickle_bytes(source, records[_find_archive_folder(source, records) + "data.pkl"])


def _read_archive(source: ByteSource, alone: str | None = None) -> TorchArchive:
    """What is in the file; a tensor that stands there `alone` gets that name."""
    records = read_zip_records(source)
    folder = _find_archive_folder(source, records)
    pickle = records[folder + "data.pkl"]
    data = _read_pickle_bytes(source, pickle)
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
    if not isinstance(tree, PickleDict):
        raise _contents_error(source, f"it holds {describe_node(tree, NodeBudget())} and no dictionary of tensors")
    return TorchArchive(records, folder, tree, has_checksums)


def _find_archive_folder(source: ByteSource, records: Mapping[str, ZipRecord]) -> str:
    """The one folder that everything in the archive stands in, with its slash."""
    folders = [name.removesuffix("data.pkl") for name in records if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(folders) != 1:
        shown = ", ".join(list(records)[:3]) or "nothing"
        found = f"a zip archive with {shown}"
        raise CheckpointError("torch-archive", found, expected="a data.pkl as torch.save writes it", where=source.path)
    if folders[0] + "constants.pkl" in records:
        raise _contents_error(source, "it is a TorchScript program")
    return folders[0]


def _read_pickle_bytes(source: ByteSource, record: ZipRecord) -> bytes:
    if record.size > MAX_PICKLE_BYTES:
        found = f"the pickle has {record.size:,} bytes"
        raise CheckpointError("torch-pickle", found, expected=f"at most {MAX_PICKLE_BYTES:,}", where=source.path)
    return source.read(record.start, record.size)


def _find_state_dict(tree: PickleDict, source: ByteSource) -> tuple[str | None, PickleDict]:
    """The dictionary that holds the tensors, and the key under which it stands (None: it is the whole file)."""
    inner = {key: node for key, node in tree.entries.items() if isinstance(key, str) and isinstance(node, PickleDict)}
    for key in STATE_DICT_KEYS:
        if key in inner and _tensor_share(inner[key]) > 0:
            return key, _require_text_names(inner[key], source)
    # Random states and averages also hold tensors, so that only what is mostly tensors counts as a model.
    # Each is counted once: in a hostile file thousands of entries lead to the same large one.
    distinct = {id(node): node for node in inner.values()}
    mostly = {at for at, node in distinct.items() if _tensor_share(node) >= 0.5}
    models = [key for key, node in inner.items() if id(node) in mostly]
    if _tensor_share(tree) >= 0.5 or (_tensor_share(tree) > 0 and not models):
        return None, _require_text_names(tree, source)
    if len(models) > 1:  # a pipeline saved as one: the model that reads text is the one that is meant
        models = [key for key in models if any(_is_text_table(name) for name in inner[key].entries)] or models
    if len(models) == 1:
        return models[0], _require_text_names(inner[models[0]], source)
    if models:
        raise _contents_error(source, f"tensors stand under several keys: {', '.join(models[:6])}")
    whole = next((node for node in tree.entries.values() if isinstance(node, PickleObject) and node.state), None)
    keys = ", ".join(str(key)[:40] for key in list(tree.entries)[:6])
    found = f"no dictionary of tensors among its entries ({keys})"
    raise _contents_error(source, found + (f"; it holds a whole object, {whole.maker}" if whole else ""))


def _flatten_pipeline(tree: PickleDict) -> PickleDict:
    """A tree whose model stands at most one level deep: what stands with it comes up to the outer level.

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


def _require_text_names(state: PickleDict, source: ByteSource) -> PickleDict:
    odd = [key for key, node in state.entries.items() if is_tensor(node) and not is_encodable_text(key)]
    if odd:
        raise _contents_error(source, f"a tensor has the name {odd[0]!a:.40}, which is no text")
    return state


def _describe_tensor(name: str, node: PickleObject, source: ByteSource) -> TorchTensor:
    try:
        return parse_tensor(node)
    except TensorParseError as error:
        raise CheckpointError("torch-tensor", f"the tensor {name}: {error}", where=source.path) from None


def _locate_tensor(name: str, tensor: TorchTensor, archive: TorchArchive, source: ByteSource) -> TensorInfo:
    storage = tensor.storage
    record = archive.records.get(f"{archive.folder}data/{storage.key}")
    needed = storage.num_items * (1 if storage.kind == UNTYPED_STORAGE else item_bytes(tensor.dtype))
    if record is None or record.size != needed:
        there = f"{record.size:,} bytes" if record else "missing"
        found = f"the values of {name} (record data/{storage.key}) are {there}"
        raise CheckpointError("torch-storage", found, expected=f"{needed:,} bytes", where=source.path)
    start = record.start + tensor.offset * item_bytes(tensor.dtype)
    return TensorInfo(name, tensor.dtype, tensor.shape, start, tensor.strides, storage.key)


def _list_extras(tree: PickleDict, wrapper: str | None) -> Iterator[CheckpointExtra]:
    """What is no tensor of the model: beside the state dict, and inside it."""
    inside = tree if wrapper is None else tree.entries[wrapper]
    beside = {} if wrapper is None else {key: node for key, node in tree.entries.items() if key != wrapper}
    inner = {key: node for key, node in inside.entries.items() if not is_tensor(node)}
    looks = NodeBudget()
    for key, node in [*beside.items(), *inner.items()]:
        scalar = is_small_scalar(node) and isinstance(key, str)
        yield CheckpointExtra(str(key)[:80], describe_node(node, looks), scalar, node if scalar else None)


def _contents_error(
    source: ByteSource, found: str, expected: str = "a dictionary of tensors by name"
) -> CheckpointError:
    return CheckpointError("torch-contents", found, expected=expected, where=source.path)
