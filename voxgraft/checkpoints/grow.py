"""Grow a checkpoint's text tables: a new file with more rows in which everything else has the same bits.

The file is streamed; the input is only read; the output appears complete or not at all. `verify_growth` compares input
and output. Computing the new rows is left to `graft.rows`.
"""

from __future__ import annotations

import itertools
import math
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import (
    FLOAT_DTYPES,
    ByteSink,
    ByteSource,
    Checkpoint,
    CheckpointExtra,
    TensorInfo,
    from_float32,
    pair_chunks,
    row_major_strides,
    to_float32,
)
from voxgraft.checkpoints.pickles import PickleDict, TorchTensor, is_plain_tree, is_small_scalar
from voxgraft.checkpoints.torch_file import TorchCheckpoint
from voxgraft.checkpoints.write import StorageBytes, TensorBytes, write_safetensors, write_torch_tree
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError
from voxgraft.core.files import atomic_write, path_exists, require_disk_space

BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class TableGrowth:
    """New rows for one tensor: float32 [rows, width], or [rows] for a bias."""

    base_rows: int
    spare_rows: int
    new_rows: NDArray[np.float32]


GrowthPlan = dict[str, TableGrowth]
"""The tensors that grow, by name."""


class TensorGrowth(NamedTuple):
    """One tensor of a plan that fits: its place in the file and its new rows."""

    info: TensorInfo
    table: TableGrowth

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape after growth."""
        return (self.info.shape[0] + len(self.table.new_rows), *self.info.shape[1:])

    def chunks(self, checkpoint: Checkpoint) -> Iterator[bytes | memoryview]:
        """The bytes of the grown tensor: base rows, new rows, spare rows."""
        # A spare row stays last, as in the base: no text uses it.
        yield from checkpoint.iter_bytes(self.info.rows(0, self.table.base_rows))
        yield from self.new_bytes()
        yield from checkpoint.iter_bytes(self.info.rows(self.table.base_rows, self.info.shape[0]))

    def new_bytes(self) -> Iterator[bytes]:
        """The bytes of the new rows alone, in the tensor's own type."""
        for start in range(0, len(self.table.new_rows), BLOCK_ROWS):
            yield from_float32(self.table.new_rows[start : start + BLOCK_ROWS], self.info.dtype).tobytes()

    def overlaps(self, other: TensorInfo) -> bool:
        """Whether another tensor is a view of some of the same bytes."""
        own = self.info
        same = own.storage == other.storage and min(own.span_bytes, other.span_bytes) > 0
        return same and own.start < other.start + other.span_bytes and other.start < own.start + own.span_bytes


def fit_growth_plan(checkpoint: Checkpoint, plan: GrowthPlan) -> dict[str, TensorGrowth]:
    """The plan for this checkpoint, with every name of a grown tensor, aliases too; an error if it does not fit."""
    planned = {name: _fit_table(checkpoint, name, table) for name, table in plan.items()}
    counts = {name: len(growth.table.new_rows) for name, growth in planned.items()}
    if len(set(counts.values())) > 1:
        found = "; ".join(f"{name} gets {count} new rows" for name, count in counts.items())
        raise _growth_error("growth-uneven", found, checkpoint, expected="the same number for each")
    for one, two in itertools.combinations(planned.values(), 2):
        same_rows = one.table.base_rows == two.table.base_rows and np.array_equal(
            one.table.new_rows, two.table.new_rows
        )
        if one.overlaps(two.info) and not (one.info.same_bytes(two.info) and same_rows):
            found = f"{one.info.name} and {two.info.name} are one table and would get different rows"
            raise _growth_error("growth-tied", found, checkpoint)
    grown = dict(planned)
    for name, info in checkpoint.tensors.items():
        for growth in planned.values() if name not in planned else ():
            if info.same_bytes(growth.info):  # a second name for the same values grows along
                grown[name] = TensorGrowth(info, growth.table)
            elif growth.overlaps(info):
                found = f"{name} {list(info.shape)} is a view of a part of {growth.info.name}"
                raise _growth_error("growth-view", found, checkpoint)
    return grown


def _fit_table(checkpoint: Checkpoint, name: str, table: TableGrowth) -> TensorGrowth:
    info = checkpoint.info(name)
    new = table.new_rows
    if info.dtype not in FLOAT_DTYPES or len(info.shape) not in (1, 2):
        found = f"{name} is {info.dtype} {list(info.shape)}"
        raise _growth_error("growth-table", found, checkpoint, expected=f"a table or bias of {', '.join(FLOAT_DTYPES)}")
    rows = table.base_rows + table.spare_rows
    if min(table.base_rows, table.spare_rows) < 0 or info.shape[0] != rows:
        found = f"{name} has {info.shape[0]:,} rows"
        expected = f"{rows:,}: {table.base_rows:,} pieces and {table.spare_rows} spare"
        raise _growth_error("growth-rows", found, checkpoint, expected=expected)
    if new.dtype != np.float32 or new.ndim != len(info.shape) or new.shape[1:] != info.shape[1:]:
        found = f"the new rows of {name} are {new.dtype} {list(new.shape)}"
        raise _growth_error(
            "growth-table", found, checkpoint, expected=f"float32 [rows{''.join(f', {n}' for n in info.shape[1:])}]"
        )
    for start in range(0, len(new), BLOCK_ROWS):
        # Checked after the conversion: a finite float32 can overflow in F16.
        block = to_float32(from_float32(new[start : start + BLOCK_ROWS], info.dtype), info.dtype)
        if not np.isfinite(block).all():
            row = start + int(np.argmin(np.isfinite(block).reshape(len(block), -1).all(axis=1)))
            raise _growth_error(
                "growth-not-finite", f"new row {row} of {name} is not finite as {info.dtype}", checkpoint
            )
    return TensorGrowth(info, table)


def _growth_error(code: str, found: str, checkpoint: Checkpoint, expected: str = "") -> CheckpointError:
    return CheckpointError(code, found, expected=expected, where=checkpoint.path)


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """What `grow_checkpoint` did. The hashes are None unless they were asked for."""

    input: str
    output: str
    input_sha256: str | None
    output_sha256: str | None
    tensors_copied: int
    grown: tuple[dict[str, Any], ...]
    """Tensors with more rows: `name`, `dtype`, `old_shape` and `new_shape`."""
    left_out: tuple[CheckpointExtra, ...]
    """What the output does not have: optimizer, scheduler, random states. They do not fit a grown table."""
    bytes_written: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def grow_checkpoint(
    checkpoint: Checkpoint, plan: GrowthPlan, output: Path, *, overwrite: bool = False, hashed: bool = False
) -> GrowthReport:
    """Write `checkpoint` with the plan's new rows to `output`. `verify_growth` proves the result."""
    growths = fit_growth_plan(checkpoint, plan)
    # Bytes to write by storage, or by tensor where there are no storages: aliases are written once.
    sizes: dict[str, int] = {}
    tensors: dict[str, TensorBytes] = {}
    for name, info in checkpoint.tensors.items():
        if name in growths:
            chunks = partial(growths[name].chunks, checkpoint)
            tensors[name] = TensorBytes(info.dtype, growths[name].shape, chunks)
            sizes[f"grown {info.storage} {info.start}"] = tensors[name].num_bytes
        else:
            tensors[name] = TensorBytes(info.dtype, info.shape, partial(checkpoint.iter_bytes, info))
            if isinstance(checkpoint, TorchCheckpoint):
                sizes[f"storage {info.storage}"] = checkpoint.get_record(info.storage).size
            else:
                sizes[f"tensor {name}"] = info.num_bytes
    size = sum(sizes.values())
    check_output_path(checkpoint, output, size)
    with (
        _hash_in_background(checkpoint.path, hashed) as input_hash,
        atomic_write(output, overwrite=overwrite) as stream,
        progress.progress_task(f"writing {output.name}", size) as advance,
    ):
        sink = ByteSink(stream, hashed=hashed, advance=advance)
        if isinstance(checkpoint, TorchCheckpoint):
            _write_grown_torch(sink, checkpoint, growths, tensors)
        else:
            order = sorted(tensors, key=lambda name: checkpoint.tensors[name].start)
            write_safetensors(sink, tensors, checkpoint.metadata, order)
        input_sha256 = input_hash.result() if input_hash else None
        checkpoint.source.check_unchanged()
    return GrowthReport(
        input=str(checkpoint.path),
        output=str(output),
        input_sha256=input_sha256,
        output_sha256=sink.sha256,
        tensors_copied=len(checkpoint.tensors) - len(growths),
        grown=tuple(
            {"name": name, "dtype": one.info.dtype, "old_shape": one.info.shape, "new_shape": one.shape}
            for name, one in growths.items()
        ),
        left_out=tuple(extra for extra in checkpoint.extras if not extra.kept),
        bytes_written=sink.position,
    )


def check_output_path(checkpoint: Checkpoint, output: Path, size: int) -> None:
    """Refuse the input itself as a place to write to, and a disk that is too small."""
    if path_exists(output) and output.samefile(checkpoint.path):
        raise CheckpointError("growth-onto-input", f"{output.name} is the input itself", where=output)
    require_disk_space(output.absolute().parent, size, output.name, where=output)


def _write_grown_torch(
    sink: ByteSink,
    checkpoint: TorchCheckpoint,
    growths: Mapping[str, TensorGrowth],
    grown: Mapping[str, TensorBytes],
) -> None:
    """The same dictionaries in the same order, with the new tensors, and without what does not fit them any more."""
    storages: dict[str, StorageBytes] = {}
    # New key of each storage. A grown tensor gets one of its own, shared by its aliases, which start at the same byte.
    keys: dict[tuple[str, int | None], str] = {}
    tensors: dict[str, TorchTensor] = {}

    def verified_chunks(growth: TensorGrowth) -> Iterable[bytes | memoryview]:
        # The new bytes get a checksum of their own, so the old ones are verified before they are used.
        record, crc = checkpoint.get_record(growth.info.storage), 0
        for chunk in checkpoint.source.chunks(record.start, record.size):
            crc = zlib.crc32(chunk, crc)
        checkpoint.verify_checksum(growth.info.storage, crc)
        return growth.chunks(checkpoint)

    for name, tensor in checkpoint.torch_tensors.items():
        growth = growths.get(name)
        place = (tensor.storage, checkpoint.tensors[name].start if growth else None)
        key = keys.setdefault(place, str(len(keys)))
        if growth:
            shape = growth.shape
            tensors[name] = replace(
                tensor,
                storage=key,
                storage_items=math.prod(shape),
                offset=0,
                shape=shape,
                strides=row_major_strides(shape),
            )
            storages.setdefault(key, StorageBytes(grown[name].num_bytes, partial(verified_chunks, growth)))
        else:
            tensors[name] = replace(tensor, storage=key)
            record = checkpoint.get_record(tensor.storage)
            chunks = partial(checkpoint.source.chunks, record.start, record.size)
            check = partial(checkpoint.verify_checksum, tensor.storage)
            storages.setdefault(key, StorageBytes(record.size, chunks, check))
    old = checkpoint.state_dict
    tree = _copy_dictionary(old, tensors)
    # `_metadata` (module versions) is kept where it is plain; other attributes of the dictionary are not.
    if isinstance(old.state, PickleDict) and set(old.state.entries) == {"_metadata"}:
        tree.state = old.state if is_plain_tree(old.state.entries["_metadata"]) else None
    if checkpoint.wrapper is not None:
        tree = _copy_dictionary(checkpoint.archive.tree, {checkpoint.wrapper: tree})
    write_torch_tree(sink, tree, storages, checkpoint.archive.folder)


def _copy_dictionary(old: PickleDict, replaced: Mapping[str, Any]) -> PickleDict:
    new = PickleDict(ordered=old.ordered)
    for key, node in old.entries.items():
        if key in replaced:
            new.entries[key] = replaced[key]
        elif isinstance(key, str) and is_small_scalar(node):
            new.entries[key] = node
    return new


@contextmanager
def _hash_in_background(path: Path, hashed: bool) -> Iterator[Future[str] | None]:
    """Hash the input in a thread of its own while the block runs; given up if the block fails."""
    if not hashed:
        yield None
        return
    stop = threading.Event()

    def compute() -> str:
        digest, source = sha256(), ByteSource(path)
        try:
            for chunk in source.chunks(0, source.size):
                digest.update(chunk)
                if stop.is_set():
                    break
        finally:
            source.close()
        return digest.hexdigest()

    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(compute)
        except BaseException:
            stop.set()
            raise


class GrowthProof(NamedTuple):
    """What was compared and found equal."""

    tensors_identical: int
    """Tensors that did not grow, by name (aliases count)."""
    tensors_grown: int
    rows_identical: int
    """Old rows of the grown tensors, the spare ones among them."""
    rows_new: int
    """New rows of the grown tensors that hold exactly the plan's values in the file's type."""
    bytes_compared: int

    def to_json(self) -> dict[str, int]:
        return self._asdict()


def verify_growth(old: Checkpoint, new: Checkpoint, plan: GrowthPlan) -> GrowthProof:
    """Prove that `new` is `old` with exactly the plan's rows; an error that names the first difference."""
    growths = fit_growth_plan(old, plan)
    # Format, wrapper, notes, names in their order, the plain values beside them, and which names share values.
    pairs: Mapping[str, tuple[object, object]] = {
        "format": (old.format, new.format),
        "wrapper": (old.wrapper, new.wrapper),
        "metadata": (old.metadata, new.metadata),
        "names": (list(old.tensors), list(new.tensors)),
        "values beside the tensors": (
            [(extra.name, repr(extra.value)) for extra in old.extras if extra.kept],
            [(extra.name, repr(extra.value)) for extra in new.extras],
        ),
    }
    for what, (was, is_now) in pairs.items():
        if was != is_now:
            found = f"the {what} are not the same: {is_now!s:.80}"
            raise _growth_error("growth-differs", found, new, expected=f"{was!s:.80}")
    groups = _alias_groups(new)
    for name, group in _alias_groups(old).items():
        if groups[name] != group:
            found = f"{name} shares its values with {groups[name]}"
            raise _growth_error("growth-differs", found, new, expected=group)
    compared: dict[tuple[object, ...], int] = {}
    for name, info in old.tensors.items():
        growth, now = growths.get(name), new.tensors[name]
        shape = growth.shape if growth else info.shape
        if (now.dtype, now.shape) != (info.dtype, shape):
            found = f"{name} is {now.dtype} {list(now.shape)}"
            raise _growth_error("growth-differs", found, new, expected=f"{info.dtype} {list(shape)}")
        place = (info.storage, info.start, info.shape, info.strides, info.dtype)
        if place in compared:  # an alias
            continue
        if growth is None:
            compared[place] = _compare_streams(old.iter_bytes(info), new.iter_bytes(now), new, name)
            continue
        base, last = growth.table.base_rows, growth.table.base_rows + len(growth.table.new_rows)
        spare = info.rows(base, info.shape[0])
        compared[place] = (
            _compare_streams(old.iter_bytes(info.rows(0, base)), new.iter_bytes(now.rows(0, base)), new, name)
            + _compare_streams(growth.new_bytes(), new.iter_bytes(now.rows(base, last)), new, f"{name} (new rows)")
            + _compare_streams(old.iter_bytes(spare), new.iter_bytes(now.rows(last, now.shape[0])), new, name)
        )
    return GrowthProof(
        tensors_identical=len(old.tensors) - len(growths),
        tensors_grown=len(growths),
        rows_identical=sum(growth.info.shape[0] for growth in growths.values()),
        rows_new=sum(len(growth.table.new_rows) for growth in growths.values()),
        bytes_compared=sum(compared.values()),
    )


def _alias_groups(checkpoint: Checkpoint) -> dict[str, str]:
    """For each name the first name at the same position."""
    first: dict[tuple[object, ...], str] = {}
    found: dict[str, str] = {}
    for name, info in checkpoint.tensors.items():
        place = (info.storage, info.start, info.strides) if info.storage and info.num_values else (name,)
        found[name] = first.setdefault(place, name)
    return found


def _compare_streams(
    was: Iterable[bytes | memoryview], now: Iterable[bytes | memoryview], new: Checkpoint, name: str
) -> int:
    """The number of bytes, all equal, of two streams that may be cut into chunks differently."""
    count = 0
    left, right = ((np.frombuffer(chunk, np.uint8) for chunk in stream) for stream in (was, now))
    for one, two in pair_chunks(left, right):
        if len(one) != len(two):
            found = f"{name} has {count:,} bytes in one of the files and more in the other"
            raise _growth_error("growth-differs", found, new)
        different = one != two
        if different.any():
            found = f"{name} differs at byte {count + int(different.argmax()):,}"
            raise _growth_error("growth-differs", found, new)
        count += len(one)
    return count
