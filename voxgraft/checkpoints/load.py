"""Open checkpoints of any supported format, and name what is often saved under a checkpoint's name instead.

The format is detected from the first bytes, never from the file's name. Also here: models in several files (shards),
names and number formats that other trainers leave (prefixes, float64, transposed tables), reading values in chunks, and
torch tensors out of checkpoints. torch is imported on use: looking at a checkpoint does not need it.
"""

from __future__ import annotations

import bisect
import copy
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import (
    ALL_FLOAT_DTYPES,
    BITS_ONLY_DTYPES,
    FLOAT_DTYPES,
    PREFIX_BYTES,
    RAW_DTYPES,
    TORCH_DTYPES,
    ByteSource,
    Checkpoint,
    CheckpointExtra,
    Shape,
    TensorInfo,
    read_safetensors,
)
from voxgraft.checkpoints.pickles import MAX_PICKLE_BYTES, SAFE_GLOBALS, PickleDict, TorchTensor, find_unsafe_globals
from voxgraft.checkpoints.torch_file import (
    LEGACY_MAGIC,
    TEXT_TABLE_NAMES,
    TorchArchive,
    TorchCheckpoint,
    ZipRecord,
    read_legacy_pickles,
    read_legacy_torch,
    read_nested_torch,
    read_torch_archive,
    read_torch_records,
)
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import is_file, is_folder, read_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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
                found = f"the files end at byte {self.size:,}, before the expected end"
                raise CheckpointError("checkpoint-truncated", found, where=self.path)
            count = min(len(view), self.starts[at + 1] - start)
            self.sources[at].fill(start - self.starts[at], view[:count])
            start, view = start + count, view[count:]

    def check_unchanged(self) -> None:
        for source in self.sources:
            source.check_unchanged()


def find_shards(path: Path) -> Path | None:
    """The index, or the first counted file, of the model in shards at a path; None if there is none.

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


def open_shards(path: Path) -> Checkpoint:
    """The whole model that `find_shards` has found, checked through the structure of every file."""
    files, tensors_by_file = _resolve_shard_files(path)
    sources: list[ByteSource] = []
    try:
        parts: list[Checkpoint] = []
        seen_names: set[str] = set()
        for file in files:
            source = ByteSource(file)
            sources.append(source)
            is_archive = source.read(0, min(source.size, 4)).startswith(b"PK")
            parts.append(read_torch_archive(source) if is_archive else read_safetensors(source))
            part = parts[-1].tensors.keys()
            if duplicate := next((name for name in part if name in seen_names), None):
                raise _shards_error(f"{duplicate} is in {file.name} and in an earlier file", path)
            indexed_names = tensors_by_file.get(file.name, ())
            if missing_name := next((name for name in indexed_names if name not in part), None):
                raise _shards_error(f"{missing_name} is not in {file.name}, although the index lists it there", path)
            seen_names |= part
        joined = _JoinedSource(path, sources)
        archives = [shard for shard in parts if isinstance(shard, TorchCheckpoint)]
        if not archives:
            moved = [
                replace(info, start=info.start + offset)
                for offset, shard in zip(joined.starts, parts, strict=False)
                for info in shard.tensors.values()
            ]
            return Checkpoint(joined, "safetensors", {info.name: info for info in moved})
        if len(archives) < len(parts):
            raise _shards_error("torch archives and safetensors files among its files", path)
        # Torch archives keep their checksums: their records only start at a later position of the joined bytes.
        tensors: dict[str, TorchTensor] = {}
        records: dict[str, ZipRecord] = {}
        for number, archive in enumerate(archives):
            for name, tensor in archive.torch_tensors.items():
                key = f"{number}/{tensor.storage}"
                tensors[name] = replace(tensor, storage=key)
                record = archive.get_record(tensor.storage)
                records[f"data/{key}"] = replace(record, start=record.start + joined.starts[number])
        has_checksums = all(archive.archive.has_checksums for archive in archives)
        return TorchCheckpoint(joined, TorchArchive(records, "", PickleDict(), has_checksums), tensors, None)
    except BaseException:
        for source in sources:
            source.close()
        raise


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
        raise _shards_error(f"{len(missing):,} of {len(files):,} files do not exist: {', '.join(missing[:3])}", path)
    return files, tensors


def _shards_error(found: str, path: Path) -> CheckpointError:
    return CheckpointError("checkpoint-shards", found, where=path)


HEAD_BYTES = 512
TAR_MAGIC_OFFSET = 257
WEB_PAGE_STARTS = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<error")
OTHER_FORMATS = {
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array file",
    b"\x1f\x8b": "a gzip archive",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"\x7fELF": "a program",
    b"RIFF": "an audio or video file",
    b"{": "a JSON file",
    b"[": "a JSON file",
}


def open_checkpoint(path: Path, *, legacy: bool = False) -> Checkpoint:
    """The checkpoint in a safetensors or torch file, checked through its whole structure; its values are not read.

    `legacy` also opens torch files from before the archives (torch 1.6), as which no base is published.
    """
    source = ByteSource(path)
    try:
        head = source.read(0, min(source.size, HEAD_BYTES))
        start = head.lstrip().lower()
        if legacy and _is_legacy(head):
            return read_legacy_torch(source)
        if head.startswith(b"PK\x03\x04"):
            return read_torch_archive(source)
        if head.startswith(b"version https://git-lfs"):
            code, found = "checkpoint-lfs", f"a Git LFS pointer of {source.size} bytes, not the file itself"
        elif start.startswith(WEB_PAGE_STARTS):
            code, found = "checkpoint-page", f"a web page: {start[:40].decode(errors='replace').strip()}"
        elif head[TAR_MAGIC_OFFSET : TAR_MAGIC_OFFSET + 5] == b"ustar":
            code, found = "checkpoint-tar", "a tar archive"
        elif _is_legacy(head):
            code, found = "checkpoint-legacy", "a torch file from before torch 1.6"
        elif _is_safetensors(head):
            return read_safetensors(source)
        elif _is_pickle(head):
            code, found = "checkpoint-pickle", "a bare pickle"
        else:
            kind = next((kind for magic, kind in OTHER_FORMATS.items() if head.startswith(magic)), "")
            code, found = "checkpoint-unknown", kind or "neither a safetensors file nor a torch file, or it is damaged"
        raise CheckpointError(code, f"{path.name} is {found}", where=path)
    except BaseException:
        source.close()
        raise


def open_any_checkpoint(path: Path) -> Checkpoint:
    """As `open_checkpoint`, and also what trainers leave behind and no base is published as: a torch file from before
    the archives, and a model in several files (its folder, its index, or one of them).
    """
    shards = find_shards(path)
    return open_shards(shards) if shards is not None else open_checkpoint(path, legacy=True)


def open_nested_checkpoint(path: Path, key: str) -> Checkpoint:
    """As `open_checkpoint`, for a torch file whose tensors lie in several dictionaries under one key."""
    source = ByteSource(path)
    try:
        if source.read(0, min(source.size, 4)) == b"PK\x03\x04":  # the zip archive of torch.save
            return read_nested_torch(source, key)
    except BaseException:
        source.close()
        raise
    source.close()
    return open_checkpoint(path)


def find_dangerous_globals(path: Path) -> list[str]:
    """Names that a pickle in this file would import and that are not known to be harmless, such as `posix.system`.

    Empty for safetensors. Works for torch archives, for torch files from before the archives and for bare pickles.
    Settings that an original program keeps in its published checkpoint are harmless.
    """
    harmless = {name for facts in FAMILIES.values() for name in facts.pickled_classes}
    shards = find_shards(path)
    names: dict[str, None] = {}
    for file in _resolve_shard_files(shards)[0] if shards is not None else [path]:
        source = ByteSource(file)
        try:
            head = source.read(0, min(source.size, HEAD_BYTES))
            if _is_legacy(head):
                names_there = read_legacy_pickles(source, partial=True)[2]
                found = [name for name in names_there if name not in SAFE_GLOBALS]
            elif head.startswith(b"PK"):
                found = find_unsafe_globals(read_torch_records(source)[2])
            elif _is_safetensors(head):
                found = []
            else:
                found = find_unsafe_globals(source.read(0, min(source.size, MAX_PICKLE_BYTES)))
        finally:
            source.close()
        names.update(dict.fromkeys(name for name in found if name not in harmless))
    return list(names)


def _is_legacy(head: bytes) -> bool:
    return LEGACY_MAGIC in head[:32] and _is_pickle(head)


def _is_safetensors(head: bytes) -> bool:
    """A length in eight bytes, then JSON. A file that is JSON from its first byte has no such length."""
    prefix, brace = head[:PREFIX_BYTES], head[PREFIX_BYTES : PREFIX_BYTES + 1]
    return brace == b"{" and not (prefix.isascii() and b"\x00" not in prefix)


def _is_pickle(head: bytes) -> bool:
    return len(head) > 1 and head[0] == 0x80 and head[1] <= 5


# What data parallel training, torch.compile, PEFT and trainers with a class of their own around the model put before
# every name, alone or before each other. A family that has one of them before its own names says so (`own_prefix`).
WRAPPER_PREFIXES = (
    *("module.", "_orig_mod.", "base_model.model.", "model."),
    *(prefix for facts in FAMILIES.values() for prefix in facts.wrapper_prefixes),
)
# The same inside a name, where only a part of the model was compiled, sharded or recomputed.
_PART_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
# Models that the original programs hold beside the language model.
_OTHER_MODEL_PREFIXES = tuple(prefix for facts in FAMILIES.values() for prefix in facts.other_model_prefixes)


def unwrap_parts(checkpoint: Checkpoint) -> Checkpoint:
    """The same open file without the words that wrappers around parts of the model put into the names of these parts.

    The same object where there are none. Where two names would become one, all stay as they are.
    """
    prefix = _find_prefix(list(checkpoint.tensors))
    if 2 * sum(name.startswith(prefix) for name in checkpoint.tensors) < len(checkpoint.tensors):
        prefix = ""  # the text table is in a wrapper, and most of the model is not
    short = {
        name: prefix + ".".join(word for word in name.removeprefix(prefix).split(".") if word not in _PART_WRAPPERS)
        for name in checkpoint.tensors
        if name.startswith(prefix)
    }
    names = {name: short.get(name, name) for name in checkpoint.tensors}
    if all(name == own for name, own in names.items()) or len(set(names.values())) < len(names):
        return checkpoint
    found = copy.copy(checkpoint)  # of the same kind: an archive keeps its checksums and its optimizer state
    found.tensors = {names[name]: replace(info, name=names[name]) for name, info in checkpoint.tensors.items()}
    return found


def find_model_prefix(checkpoint: Checkpoint) -> str:
    """The prefix of the model's own names, as found before its text table; empty if there is none."""
    return _find_prefix(list(unwrap_parts(checkpoint).tensors))


def _find_prefix(names: Sequence[str]) -> str:
    prefix = _find_outer_prefix(names)
    for facts in FAMILIES.values():
        if facts.own_prefix and prefix.endswith(facts.own_prefix):
            outer = prefix.removesuffix(facts.own_prefix)
            if any(name.startswith(outer + facts.own_prefix_mark) for name in names):
                return outer
    return prefix


def _find_outer_prefix(names: Sequence[str]) -> str:
    # Wrappers' names that all tensors start with, one after another.
    shared = ""
    while names and (
        found := next((wrapper for wrapper in WRAPPER_PREFIXES if names[0].startswith(shared + wrapper)), "")
    ):
        if not all(name.startswith(shared + found) for name in names):
            break
        shared += found
    prefixes = [
        name.removesuffix(table)
        for name in names
        for table in TEXT_TABLE_NAMES
        if name == table or name.endswith(f".{table}")
    ]
    if not prefixes or shared in prefixes:
        return shared

    def rank(prefix: str) -> tuple[bool, bool, int]:
        # The trained model before an average of it, then what consists of wrappers' names only, then the shortest.
        rest = prefix
        while rest and (found := next((wrapper for wrapper in WRAPPER_PREFIXES if rest.startswith(wrapper)), "")):
            rest = rest.removeprefix(found)
        return "ema" in prefix, bool(rest), len(prefix)

    return min(prefixes, key=rank)


def strip_model_prefix(checkpoint: Checkpoint) -> Checkpoint:
    """The same open file with the model's own names alone; everything beside it becomes an `CheckpointExtra`."""
    checkpoint = unwrap_parts(checkpoint)
    prefix, others = find_model_prefix(checkpoint), set(list_other_model_tensors(checkpoint))
    if not prefix and not others:
        return checkpoint
    own = {name: info for name, info in checkpoint.tensors.items() if name not in others}
    found = copy.copy(checkpoint)  # of the same kind: an archive keeps its checksums and its optimizer state
    found.tensors = {(short := name.removeprefix(prefix)): replace(info, name=short) for name, info in own.items()}
    sizes: dict[str, list[int]] = {}
    for name in sorted(others):
        sizes.setdefault(name.partition(".")[0], []).append(checkpoint.tensors[name].num_bytes)
    for part, part_sizes in sizes.items():
        what = f"{len(part_sizes):,} tensors of another model, {sum(part_sizes) / 1e6:,.1f} MB"
        found.extras = (*found.extras, CheckpointExtra(f"{part}.*"[:80], what, kept=False))
    return found


def list_other_model_tensors(checkpoint: Checkpoint) -> list[str]:
    """Tensors of other models in the same file."""
    prefix = find_model_prefix(checkpoint)
    return [
        name
        for name in unwrap_parts(checkpoint).tensors
        if not name.startswith(prefix) or name.removeprefix(prefix).startswith(_OTHER_MODEL_PREFIXES)
    ]


def iter_values(checkpoint: Checkpoint, info: TensorInfo) -> Iterator[NDArray[np.generic]]:
    """The raw values in chunks, each valid until the next is requested. Verifies the checksums of an archive."""
    crc = 0
    has_checksum = isinstance(checkpoint, TorchCheckpoint) and checkpoint.is_whole_record(info)
    for piece in checkpoint.iter_bytes(info):
        crc = zlib.crc32(piece, crc) if has_checksum else 0
        yield np.frombuffer(piece, RAW_DTYPES[info.dtype])
    if has_checksum and isinstance(checkpoint, TorchCheckpoint):
        checkpoint.verify_checksum(info.storage, crc)


_TRANSPOSE_SAMPLE_ROWS = 256
# No tokenizer has more pieces. A hostile file can state any number, in a few bytes, and every row is looked at.
MAX_TABLE_ROWS = 1 << 20
# Median cosine with the base's rows: a table that was trained on, or whose rows have shrunk, is still recognized.
_MIN_TRANSPOSE_COSINE = 0.9


def forms_of(
    checkpoint: Checkpoint, base: Checkpoint | None, tables: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the tensors that are float64, and of the text tables (`tables`) and matrices that are transposed.

    Without the base only float64 is recognized.
    """
    own = base.tensors if base is not None else {}
    doubles = tuple(
        name
        for name, info in checkpoint.tensors.items()
        if info.dtype == "F64" and (name not in own or own[name].dtype != "F64")
    )
    if base is None:
        return doubles, ()
    read = in_forms(checkpoint, doubles)
    transposed = [name for name in tables if _is_transposed(read, base, name)]
    matrices = [
        name for name, old in own.items() if len(old.shape) == 2 and name in read.tensors and name not in tables
    ]
    turned = [name for name in matrices if read.tensors[name].shape == own[name].shape[::-1]]
    if any(own[name].shape[0] != own[name].shape[1] and _is_transposed(read, base, name) for name in turned):
        # A program that keeps its layers the other way round (Conv1D and Linear) has transposed square ones as well.
        transposed += [name for name in turned if _is_transposed(read, base, name)]
    return doubles, tuple(transposed)


def in_forms(checkpoint: Checkpoint, doubles: Sequence[str], transposed: Sequence[str] = ()) -> Checkpoint:
    """The same open file with float64 as float32, and with rows first in the tables that are transposed."""
    if not doubles and not transposed:
        return checkpoint
    found = copy.copy(checkpoint)  # of the same kind: an archive keeps its optimizer state
    tensors = dict(checkpoint.tensors)
    for name in doubles:
        tensors[name] = replace(tensors[name], dtype="F32", stored="F64")
    for name in transposed:
        tensors[name] = replace(tensors[name], shape=tensors[name].shape[::-1], strides=tensors[name].strides[::-1])
    found.tensors = tensors
    return found


def _is_transposed(checkpoint: Checkpoint, base: Checkpoint, name: str) -> bool:
    """Whether a table has the base's width as its number of rows, and the base's rows as its columns."""
    new, old = checkpoint.tensors.get(name), base.tensors.get(name)
    if new is None or old is None or len(new.shape) != 2 or len(old.shape) != 2:
        return False
    width = old.shape[1]
    # A hostile file can state any number of rows.
    if new.shape[0] != width or new.shape[1] > MAX_TABLE_ROWS or not {new.dtype, old.dtype} <= set(FLOAT_DTYPES):
        return False
    count = min(_TRANSPOSE_SAMPLE_ROWS, old.shape[0], new.shape[1])

    def cosine(other: Checkpoint) -> float:
        left, right = (
            np.nan_to_num(one.read_rows(name, 0, count).astype(np.float64), posinf=0.0, neginf=0.0)
            for one in (base, other)
        )
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        return float(np.median((left * right).sum(axis=1) / np.maximum(lengths, 1e-30)))

    if not count or (new.shape[1] == width and cosine(checkpoint) >= _MIN_TRANSPOSE_COSINE):
        return False  # of a square table the values alone show which way round it is
    return cosine(in_forms(checkpoint, (), (name,))) >= _MIN_TRANSPOSE_COSINE


# Misfits that the error names; the rest are counted.
MAX_LISTED_MISMATCHES = 10


def read_tensors(
    path: Path, shapes: Mapping[str, Shape], prefix: str = "", dtype: torch.dtype | str | None = "float32"
) -> dict[str, Tensor]:
    """The tensors that `shapes` names, in its order and under its names; in the file each name starts with `prefix`.

    All that are missing or of another shape are refused in one error, before any value is read; what else the file
    holds is left alone. `dtype=None` keeps each tensor as it is stored. In memory: the result and one tensor more.
    """
    found = dict(iter_tensors(path, shapes, prefix, dtype))
    return {name: found[name] for name in shapes}


def iter_tensors(
    path: Path,
    shapes: Mapping[str, Shape],
    prefix: str = "",
    dtype: torch.dtype | str | None = "float32",
    *,
    integers: Collection[str] = (),
) -> Iterator[tuple[str, Tensor]]:
    """As `read_tensors`, one at a time and in the order of the file, for moving each to a device at once.

    Every name and shape is checked before the first tensor is read. Each tensor is the caller's own copy. `integers`
    names those that are whole numbers (counters of a batch norm) and stay so.
    """
    import torch

    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    with open_checkpoint(path) as checkpoint:
        misfits = []
        for name, shape in shapes.items():
            info = checkpoint.tensors.get(prefix + name)
            if info is None:
                misfits.append(f"{prefix}{name} {list(shape)} is missing")
            elif info.shape != tuple(shape):
                misfits.append(f"{prefix}{name} is {list(info.shape)}, not {list(shape)}")
            elif name in integers and info.dtype != "I64":
                misfits.append(f"{prefix}{name} is {info.dtype}, not I64")
            elif dtype is not None and name not in integers and info.dtype not in ALL_FLOAT_DTYPES:
                misfits.append(f"{prefix}{name} is {info.dtype}, not floating point")
        if misfits:
            more = f"; and {len(misfits) - MAX_LISTED_MISMATCHES} more" if len(misfits) > MAX_LISTED_MISMATCHES else ""
            listed = "; ".join(misfits[:MAX_LISTED_MISMATCHES]) + more
            found = f"{len(misfits)} of {len(shapes)} tensors do not fit: {listed}"
            expected = "every tensor of the model, with its shape in the model"
            raise CheckpointError("tensors-mismatch", found, expected=expected, where=checkpoint.path)
        infos = {name: checkpoint.tensors[prefix + name] for name in shapes}
        total = sum(info.num_bytes for info in infos.values())
        with progress.progress_task(f"reading {path.name}", total) as advance:
            for name, info in sorted(infos.items(), key=lambda item: item[1].start):
                tensor = read_stored_tensor(checkpoint, info.name)
                tensor = tensor if dtype is None or name in integers else tensor.to(dtype)
                yield name, tensor
                del tensor  # else it would stay in memory while the next one is read
                advance(info.num_bytes)
        checkpoint.source.check_unchanged()


def read_tensor_shapes(path: Path, prefix: str = "") -> dict[str, Shape]:
    """The shape of every tensor whose name starts with `prefix`, by the rest of its name. No values are read."""
    with open_checkpoint(path) as checkpoint:
        matching = {name: info for name, info in checkpoint.tensors.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): info.shape for name, info in matching.items()}


def read_stored_tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    """One tensor of an opened checkpoint, in the type in which it is stored."""
    import torch

    dtype, raw = checkpoint.tensors[name].dtype, checkpoint.read(name, raw=True)
    if dtype not in BITS_ONLY_DTYPES:
        return torch.from_numpy(raw)
    # NumPy carries these formats as bits only. Not every torch takes unsigned 16-bit integers from it, so the bits go
    # through a signed type.
    return torch.from_numpy(raw.view(np.dtype(f"i{raw.dtype.itemsize}"))).view(getattr(torch, TORCH_DTYPES[dtype]))
