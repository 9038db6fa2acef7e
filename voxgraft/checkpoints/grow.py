"""Growing a checkpoint's text tables: a new file with more rows in which everything else is the same bits.

The file streams through; the input is only read; the output appears whole or not at all. Where the new rows come from
is somebody else's business.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from voxgraft import progress
from voxgraft.checkpoints.contents import is_plain_tree, is_small_scalar
from voxgraft.checkpoints.model import Checkpoint, CheckpointExtra, row_major_strides
from voxgraft.checkpoints.pickles import PickleDict
from voxgraft.checkpoints.plan import GrowthPlan, TensorGrowth, fit_growth_plan
from voxgraft.checkpoints.sink import ByteSink
from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.torch_file import TorchCheckpoint
from voxgraft.checkpoints.torch_tensors import TorchTensor
from voxgraft.checkpoints.write import StorageBytes, TensorBytes, write_safetensors, write_torch_tree
from voxgraft.errors import CheckpointError, FileError
from voxgraft.files import atomic_write, free_disk_bytes, path_exists

SLACK_BYTES = 64 << 20
"""Room beyond the values themselves for headers and for the file system."""


@dataclass(frozen=True, slots=True)
class GrownTensor:
    """One tensor before and after."""

    name: str
    dtype: str
    old_shape: tuple[int, ...]
    new_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """What `grow_checkpoint` did. The hashes are None unless they were asked for."""

    input: str
    output: str
    input_sha256: str | None
    output_sha256: str | None
    tensors_copied: int
    grown: tuple[GrownTensor, ...]
    left_out: tuple[CheckpointExtra, ...]
    """What the output does not have: optimizer, scheduler, random states. They do not fit a grown table."""
    bytes_written: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def grow_checkpoint(
    checkpoint: Checkpoint, plan: GrowthPlan, output: Path, *, overwrite: bool = False, hashed: bool = False
) -> GrowthReport:
    """Write `checkpoint` with the plan's new rows to `output`. See `verify.verify_growth` for the proof."""
    growths = fit_growth_plan(checkpoint, plan)
    size = sum(_bytes_to_write(checkpoint, growths).values())
    check_output_path(checkpoint, output, size)
    write = _write_grown_torch if isinstance(checkpoint, TorchCheckpoint) else _write_grown_safetensors
    with (
        _hash_in_background(checkpoint.path, hashed) as input_hash,
        atomic_write(output, overwrite=overwrite) as stream,
        progress.progress_task(f"writing {output.name}", size) as advance,
    ):
        sink = ByteSink(stream, hashed=hashed, advance=advance)
        write(sink, checkpoint, growths)
        input_sha256 = input_hash.result() if input_hash else None
        checkpoint.source.check_unchanged()
    return GrowthReport(
        input=str(checkpoint.path),
        output=str(output),
        input_sha256=input_sha256,
        output_sha256=sink.sha256,
        tensors_copied=len(checkpoint.tensors) - len(growths),
        grown=tuple(GrownTensor(n, g.info.dtype, g.info.shape, g.shape) for n, g in growths.items()),
        left_out=tuple(extra for extra in checkpoint.extras if not extra.kept),
        bytes_written=sink.position,
    )


def check_output_path(checkpoint: Checkpoint, output: Path, size: int) -> None:
    """Refuse the input itself as a place to write to, and a disk that is too small."""
    if path_exists(output) and output.samefile(checkpoint.path):
        raise CheckpointError("growth-onto-input", f"{output.name} is the input itself", where=output)
    free = free_disk_bytes(output.absolute().parent)
    if free is not None and free < size + SLACK_BYTES:
        found = f"{output.name} needs {size:,} bytes, {free:,} are free"
        raise FileError("disk-too-small", found, where=output)


def _bytes_to_write(checkpoint: Checkpoint, growths: Mapping[str, TensorGrowth]) -> dict[str, int]:
    """Bytes to write by storage, or by tensor where there are no storages."""
    sizes: dict[str, int] = {}
    for name, info in checkpoint.tensors.items():
        if name in growths:
            sizes[f"grown {info.storage} {info.start}"] = growths[name].tensor_bytes(checkpoint).num_bytes
        elif isinstance(checkpoint, TorchCheckpoint):
            sizes[f"storage {info.storage}"] = checkpoint.get_record(info.storage).size
        else:
            sizes[f"tensor {name}"] = info.num_bytes
    return sizes


def _write_grown_safetensors(sink: ByteSink, checkpoint: Checkpoint, growths: Mapping[str, TensorGrowth]) -> None:
    tensors: dict[str, TensorBytes] = {}
    for name, info in checkpoint.tensors.items():
        growth = growths.get(name)
        copied = TensorBytes(info.dtype, info.shape, lambda info=info: checkpoint.iter_bytes(info))  # type: ignore[misc]
        tensors[name] = growth.tensor_bytes(checkpoint) if growth else copied
    order = sorted(tensors, key=lambda name: checkpoint.tensors[name].start)
    write_safetensors(sink, tensors, checkpoint.metadata, order)


def _write_grown_torch(sink: ByteSink, checkpoint: Checkpoint, growths: Mapping[str, TensorGrowth]) -> None:
    assert isinstance(checkpoint, TorchCheckpoint)
    storages: dict[str, StorageBytes] = {}
    keys: dict[tuple[str, int | None], str] = {}
    tensors: dict[str, TorchTensor] = {}
    for name, tensor in checkpoint.torch_tensors.items():
        growth = growths.get(name)
        place = (tensor.storage.key, checkpoint.tensors[name].start if growth else None)
        key = keys.setdefault(place, str(len(keys)))
        if growth:
            tensors[name] = _resize_tensor(tensor, growth.shape, key)
            storages.setdefault(key, _grown_storage(checkpoint, growth))
        else:
            tensors[name] = replace(tensor, storage=replace(tensor.storage, key=key))
            storages.setdefault(key, _copied_storage(checkpoint, tensor.storage.key))
    write_torch_tree(sink, _build_grown_tree(checkpoint, tensors), storages, checkpoint.archive.folder)


def _resize_tensor(tensor: TorchTensor, shape: tuple[int, ...], key: str) -> TorchTensor:
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    storage = replace(tensor.storage, key=key, num_items=count)
    return replace(tensor, storage=storage, offset=0, shape=shape, strides=row_major_strides(shape))


def _copied_storage(checkpoint: TorchCheckpoint, key: str) -> StorageBytes:
    record = checkpoint.get_record(key)
    return StorageBytes(
        record.size,
        lambda: checkpoint.source.chunks(record.start, record.size),
        lambda crc: checkpoint.verify_checksum(key, crc),
    )


def _grown_storage(checkpoint: TorchCheckpoint, growth: TensorGrowth) -> StorageBytes:
    def chunks() -> Iterable[bytes | memoryview]:
        # The new bytes have a checksum of their own, so the old ones are checked before they are used.
        record, crc = checkpoint.get_record(growth.info.storage), 0
        for chunk in checkpoint.source.chunks(record.start, record.size):
            crc = zlib.crc32(chunk, crc)
        checkpoint.verify_checksum(growth.info.storage, crc)
        return growth.chunks(checkpoint)

    return StorageBytes(growth.tensor_bytes(checkpoint).num_bytes, chunks)


def _build_grown_tree(checkpoint: TorchCheckpoint, tensors: Mapping[str, TorchTensor]) -> PickleDict:
    """The same dictionaries in the same order, with the new tensors, and without what does not fit them any more."""
    old = checkpoint.state_dict
    state = _copy_dictionary(old, tensors)
    notes = old.state
    # `_parse_metadata` (module versions) is kept where it is plain; other attributes of the dictionary are not.
    if (
        isinstance(notes, PickleDict)
        and set(notes.entries) == {"_metadata"}
        and is_plain_tree(notes.entries["_metadata"])
    ):
        state.state = notes
    if checkpoint.wrapper is None:
        return state
    return _copy_dictionary(checkpoint.archive.tree, {checkpoint.wrapper: state})


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
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_hash_unless_stopped, path, stop)
        try:
            yield future
        except BaseException:
            stop.set()
            raise


def _hash_unless_stopped(path: Path, stop: threading.Event) -> str:
    digest, source = sha256(), ByteSource(path)
    try:
        for chunk in source.chunks(0, source.size):
            digest.update(chunk)
            if stop.is_set():
                break
    finally:
        source.close()
    return digest.hexdigest()
