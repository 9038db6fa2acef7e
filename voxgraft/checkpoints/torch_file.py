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

from voxgraft.checkpoints.contents import Looks, description_of, is_scalar
from voxgraft.checkpoints.dtypes import item_bytes
from voxgraft.checkpoints.model import Checkpoint, Extra, Format, TensorInfo
from voxgraft.checkpoints.pickles import MAX_PICKLE_BYTES, Dictionary, Foreign, read_pickle
from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.torch_tensors import UNTYPED, BadTensor, TorchTensor, is_tensor, tensor_of
from voxgraft.checkpoints.zip_records import ZipRecord, zip_records
from voxgraft.errors import CheckpointError
from voxgraft.files import is_text

WRAPPERS = ("model", "model_state_dict", "state_dict", "module", "net", "generator", "weights")
"""Keys under which trainers put the state dict, in the order in which they are tried."""
MAX_LEVELS = 2
"""Dictionaries around the one that holds a model's dictionary."""
TEXT_TABLES = ("text_emb.weight", "text_embedding.weight")
"""The one tensor that every model of a known family has."""


@dataclass(frozen=True, slots=True)
class TorchArchive:
    """The archive around the tensors: its records, and the tree that the pickle describes."""

    records: Mapping[str, ZipRecord]
    folder: str
    tree: Dictionary
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
        kind: Format = "torch-zip",
    ) -> None:
        infos = {name: _info(name, tensor, archive, source) for name, tensor in tensors.items()}
        extras = tuple(_extras(archive.tree, wrapper))
        super().__init__(source, kind, infos, wrapper=wrapper, extras=extras)
        self.archive = archive
        self.torch_tensors = tensors

    @property
    def state_dict(self) -> Dictionary:
        """The part of the tree that holds the tensors."""
        tree = self.archive.tree if self.wrapper is None else self.archive.tree.entries[self.wrapper]
        assert isinstance(tree, Dictionary)
        return tree

    def record_of(self, storage: str) -> ZipRecord:
        """The record that holds a storage's bytes."""
        return self.archive.records[f"{self.archive.folder}data/{storage}"]

    def checksum_of(self, storage: str) -> int | None:
        """The CRC-32 that the archive states for a storage, if it states any."""
        return self.record_of(storage).crc if self.archive.has_checksums else None

    def is_whole_record(self, info: TensorInfo) -> bool:
        """Whether a tensor's bytes are exactly those for which the archive states a checksum."""
        record = self.record_of(info.storage)
        return info.contiguous and (info.start, info.num_bytes) == (record.start, record.size) and record.size > 0

    def info_of(self, name: str, node: Foreign) -> TensorInfo:
        """Where the values of a tensor lie that is no part of the model, such as a moment of its optimizer."""
        return _info(name, _tensor(name, node, self.source), self.archive, self.source)

    def _values(self, info: TensorInfo) -> NDArray[np.generic]:
        values = super()._values(info)
        if self.is_whole_record(info):
            self.check_sum(info.storage, zlib.crc32(values.reshape(-1).view(np.uint8).data))
        return values

    def check_sum(self, storage: str, found: int) -> None:
        """Refuse bytes whose CRC-32 is not the one that the archive states."""
        expected = self.checksum_of(storage)
        if expected is not None and found != expected:
            name = self.record_of(storage).name
            text = f"the record {name} has checksum {found:08x}"
            raise CheckpointError("torch-checksum", text, expected=f"{expected:08x}", where=self.path)


def read_torch(source: ByteSource) -> TorchCheckpoint:
    """The checkpoint in a file that starts like a zip archive; an error for anything that is not right."""
    return checkpoint_in(source, _archive(source))


def checkpoint_in(source: ByteSource, archive: TorchArchive, kind: Format = "torch-zip") -> TorchCheckpoint:
    """The model among everything that a file holds."""
    archive = replace(archive, tree=_opened_up(archive.tree))
    wrapper, state = _state_dict(archive.tree, source)
    tensors = {name: _tensor(name, node, source) for name, node in state.entries.items() if is_tensor(node)}
    return TorchCheckpoint(source, archive, tensors, wrapper, kind)


def read_torch_part(source: ByteSource, key: str) -> TorchCheckpoint:
    """The tensors under one key of a file that holds several dictionaries of them."""
    archive = _archive(source)
    part = archive.tree.entries.get(key)
    if not isinstance(part, Dictionary):
        raise _unusable(source, f"there is no dictionary of tensors under {key}")
    state = _named(part, source)
    tensors = {name: _tensor(name, node, source) for name, node in state.entries.items() if is_tensor(node)}
    return TorchCheckpoint(source, archive, tensors, key)


def read_torch_tensor(source: ByteSource) -> NDArray[np.generic]:
    """The values of a file that holds one tensor by itself, or one under whatever name."""
    archive = _archive(source, alone="tensor")
    found = {str(name): node for name, node in archive.tree.entries.items() if is_tensor(node)}
    if len(found) != 1:
        raise _unusable(source, f"it holds {len(found):,} tensors", "one tensor")
    tensors = {name: _tensor(name, node, source) for name, node in found.items()}
    return TorchCheckpoint(source, archive, tensors, None).read(next(iter(tensors)))


def read_data_pickle(source: ByteSource) -> bytes:
    """The bytes of the pickle in the archive."""
    records = zip_records(source)
    return _pickle_bytes(source, records[_folder(source, records) + "data.pkl"])


def _archive(source: ByteSource, alone: str | None = None) -> TorchArchive:
    """What is in the file; a tensor that stands there `alone` gets that name."""
    records = zip_records(source)
    folder = _folder(source, records)
    pickle = records[folder + "data.pkl"]
    data = _pickle_bytes(source, pickle)
    has_checksums = pickle.crc != 0
    if has_checksums and zlib.crc32(data) != pickle.crc:
        found = f"the record {pickle.name} has checksum {zlib.crc32(data):08x}"
        raise CheckpointError("torch-checksum", found, expected=f"{pickle.crc:08x}", where=source.path)
    order = records.get(folder + "byteorder")
    if order is not None and source.read(order.start, min(order.size, 16)) != b"little":
        raise _unusable(source, "its numbers are not little-endian")
    tree = read_pickle(data, source.path)
    if alone is not None and is_tensor(tree):
        tree = Dictionary(entries={alone: tree})
    if not isinstance(tree, Dictionary):
        raise _unusable(source, f"it holds {description_of(tree, Looks())} and no dictionary of tensors")
    return TorchArchive(records, folder, tree, has_checksums)


def _folder(source: ByteSource, records: Mapping[str, ZipRecord]) -> str:
    """The one folder that everything in the archive stands in, with its slash."""
    folders = [name.removesuffix("data.pkl") for name in records if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(folders) != 1:
        shown = ", ".join(list(records)[:3]) or "nothing"
        found = f"a zip archive with {shown}"
        raise CheckpointError("torch-archive", found, expected="a data.pkl as torch.save writes it", where=source.path)
    if folders[0] + "constants.pkl" in records:
        raise _unusable(source, "it is a TorchScript program")
    return folders[0]


def _pickle_bytes(source: ByteSource, record: ZipRecord) -> bytes:
    if record.size > MAX_PICKLE_BYTES:
        found = f"the pickle has {record.size:,} bytes"
        raise CheckpointError("torch-pickle", found, expected=f"at most {MAX_PICKLE_BYTES:,}", where=source.path)
    return source.read(record.start, record.size)


def _state_dict(tree: Dictionary, source: ByteSource) -> tuple[str | None, Dictionary]:
    """The dictionary that holds the tensors, and the key under which it stands (None: it is the whole file)."""
    inner = {key: node for key, node in tree.entries.items() if isinstance(key, str) and isinstance(node, Dictionary)}
    for key in WRAPPERS:
        if key in inner and _tensor_share(inner[key]) > 0:
            return key, _named(inner[key], source)
    # Random states and averages also hold tensors, so that only what is mostly tensors counts as a model.
    # Each is counted once: in a hostile file thousands of entries lead to the same large one.
    distinct = {id(node): node for node in inner.values()}
    mostly = {at for at, node in distinct.items() if _tensor_share(node) >= 0.5}
    models = [key for key, node in inner.items() if id(node) in mostly]
    if _tensor_share(tree) >= 0.5 or (_tensor_share(tree) > 0 and not models):
        return None, _named(tree, source)
    if len(models) > 1:  # a pipeline saved as one: the model that reads text is the one that is meant
        models = [key for key in models if any(_is_text_table(name) for name in inner[key].entries)] or models
    if len(models) == 1:
        return models[0], _named(inner[models[0]], source)
    if models:
        raise _unusable(source, f"tensors stand under several keys: {', '.join(models[:6])}")
    whole = next((node for node in tree.entries.values() if isinstance(node, Foreign) and node.state), None)
    keys = ", ".join(str(key)[:40] for key in list(tree.entries)[:6])
    found = f"no dictionary of tensors among its entries ({keys})"
    raise _unusable(source, found + (f"; it holds a whole object, {whole.maker}" if whole else ""))


def _opened_up(tree: Dictionary) -> Dictionary:
    """A tree whose model stands at most one level deep: what stands with it comes up to the outer level.

    Pipelines are saved as {"model": {"t3": {...}, "s3gen": {...}}}. Deeper ones are not known.
    """
    # Each dictionary is searched once: in a hostile file thousands of entries lead to the same large one.
    known: dict[int, bool] = {}

    def has_text_table(node: Dictionary) -> bool:
        if id(node) not in known:
            known[id(node)] = any(_is_text_table(name) and is_tensor(value) for name, value in node.entries.items())
        return known[id(node)]

    for _ in range(MAX_LEVELS):
        inner = {key: node for key, node in tree.entries.items() if isinstance(node, Dictionary)}
        distinct = {id(node): key for key, node in reversed(inner.items())}
        if any(map(is_tensor, tree.entries.values())) or any(has_text_table(inner[key]) for key in distinct.values()):
            return tree
        for key in reversed(distinct.values()):
            below = (node for node in inner[key].entries.values() if isinstance(node, Dictionary))
            if any(map(has_text_table, below)):
                break
        else:
            return tree
        tree = Dictionary(
            entries={name: node for name, node in tree.entries.items() if name != key} | inner[key].entries
        )
    return tree


def _is_text_table(name: Any) -> bool:
    return isinstance(name, str) and any(name == own or name.endswith(f".{own}") for own in TEXT_TABLES)


def _tensor_share(node: Dictionary) -> float:
    return sum(map(is_tensor, node.entries.values())) / max(len(node.entries), 1)


def _named(state: Dictionary, source: ByteSource) -> Dictionary:
    odd = [key for key, node in state.entries.items() if is_tensor(node) and not is_text(key)]
    if odd:
        raise _unusable(source, f"a tensor has the name {odd[0]!a:.40}, which is no text")
    return state


def _tensor(name: str, node: Foreign, source: ByteSource) -> TorchTensor:
    try:
        return tensor_of(node)
    except BadTensor as error:
        raise CheckpointError("torch-tensor", f"the tensor {name}: {error}", where=source.path) from None


def _info(name: str, tensor: TorchTensor, archive: TorchArchive, source: ByteSource) -> TensorInfo:
    storage = tensor.storage
    record = archive.records.get(f"{archive.folder}data/{storage.key}")
    needed = storage.num_items * (1 if storage.kind == UNTYPED else item_bytes(tensor.dtype))
    if record is None or record.size != needed:
        there = f"{record.size:,} bytes" if record else "missing"
        found = f"the values of {name} (record data/{storage.key}) are {there}"
        raise CheckpointError("torch-storage", found, expected=f"{needed:,} bytes", where=source.path)
    start = record.start + tensor.offset * item_bytes(tensor.dtype)
    return TensorInfo(name, tensor.dtype, tensor.shape, start, tensor.strides, storage.key)


def _extras(tree: Dictionary, wrapper: str | None) -> Iterator[Extra]:
    """What is no tensor of the model: beside the state dict, and inside it."""
    inside = tree if wrapper is None else tree.entries[wrapper]
    beside = {} if wrapper is None else {key: node for key, node in tree.entries.items() if key != wrapper}
    inner = {key: node for key, node in inside.entries.items() if not is_tensor(node)}
    looks = Looks()
    for key, node in [*beside.items(), *inner.items()]:
        scalar = is_scalar(node) and isinstance(key, str)
        yield Extra(str(key)[:80], description_of(node, looks), scalar, node if scalar else None)


def _unusable(source: ByteSource, found: str, expected: str = "a dictionary of tensors by name") -> CheckpointError:
    return CheckpointError("torch-contents", found, expected=expected, where=source.path)
