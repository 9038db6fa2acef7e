"""The checkpoints of an export: the base with more rows, and the one that has the new language in its body.

Each is written atomically, read again, and compared with the base: names, shapes and bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voxgraft.checkpoints import Checkpoint, TensorInfo, open_checkpoint
from voxgraft.checkpoints.base import ByteSink, from_float32
from voxgraft.checkpoints.grow import GrowthPlan, TableGrowth, grow_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError
from voxgraft.core.files import CHUNK_BYTES, atomic_write, compute_sha256
from voxgraft.export.sources import ExportSource
from voxgraft.models.load import grow_model, load_model, save_model
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.adapter import merge_adapter
from voxgraft.nn.freeze import load_new_rows
from voxgraft.nn.peft import load_peft_adapter, read_peft_folder

__all__ = ["ExportedCheckpoint", "write_drop_in_checkpoint", "write_grown_checkpoint", "write_merged_checkpoint"]

BASE_DTYPE = "base"
ROUNDED_DTYPE = "BF16"


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """One checkpoint as it was read again."""

    file: str
    sha256: str
    num_bytes: int
    names: int
    """Names with the right shapes in the file."""
    expected: int
    """Names that the family's model has."""
    same: int
    """Tensors that are the base's, bit for bit; rounded where that was asked for."""
    changed: int
    """Tensors of the body that the new language has changed."""
    base_rows: int
    """Rows of the base in each text table, all of them the same bits."""
    new_rows: int
    dtype: str
    exact: bool
    """Whether the values are in the base's own number format."""

    @property
    def precision(self) -> str:
        """Exact is said only of what is the base's own, bit for bit, wherever it is the base at all."""
        if not self.exact:
            return "rounded from the base"
        return "in the base's own format" if self.changed else "exact"

    @property
    def kept(self) -> str:
        """What is the base's, and whether to the bit."""
        how = "bit for bit" if self.exact else "rounded"
        return f"{self.same} tensors and {self.base_rows:,} rows of each text table, {how}"

    @property
    def kept_and_changed(self) -> str:
        return f"{self.kept}; {self.changed} tensors changed" if self.changed else self.kept

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "precision": self.precision, "kept": self.kept}


def write_grown_checkpoint(source: ExportSource, path: Path, *, dtype: str) -> ExportedCheckpoint:
    """The base with the graft's rows behind its own, and nothing else changed."""
    card = source.graft.card
    spare = source.family.spare_rows
    plan = GrowthPlan({name: TableGrowth(card.base_pieces, spare, rows) for name, rows in source.graft.rows.items()})
    with open_checkpoint(source.files.checkpoint) as base:
        # A grown file keeps the format of the base, and its name is the stock program's choice.
        if (path.suffix == ".safetensors") != (base.format == "safetensors"):
            found = f"{base.path.name} is a {base.format} file, and the stock program wants {path.name}"
            raise CheckpointError("output-suffix", found, where=base.path)
        grow_checkpoint(base, plan, path)
        _round_checkpoint(path, dtype)
        return _verify_written_checkpoint(base, path, source, dtype, body_may_change=False)


def write_merged_checkpoint(source: ExportSource, path: Path, *, dtype: str) -> ExportedCheckpoint:
    """What merged training has left, or the base with the adapter in its weights for good."""
    if source.merged_checkpoint is not None:
        with source.merged_checkpoint.open("rb") as stream, atomic_write(path) as new:
            shutil.copyfileobj(stream, new, CHUNK_BYTES)
    else:
        save_model(_load_merged_model(source), path)
    _round_checkpoint(path, dtype)
    with open_checkpoint(source.files.checkpoint) as base:
        return _verify_written_checkpoint(base, path, source, dtype, body_may_change=True)


def write_drop_in_checkpoint(
    source: ExportSource, path: Path, places: Mapping[int, int], *, dtype: str
) -> ExportedCheckpoint:
    """The merged one in the base's own size: `places` says at which old id each new one stands."""
    model = _load_merged_model(source)
    state = model.state_dict()
    base_pieces = source.graft.card.base_pieces
    new, old = torch.tensor(list(places.keys())), torch.tensor(list(places.values()))
    for point in source.family.graft_points:
        table = state[point.tensor]
        kept = torch.cat([table[:base_pieces], table[source.graft.tokenizer.size :]])
        kept[old] = table[new]
        state[point.tensor] = kept
    tensors = {name: _to_tensor_bytes(tensor) for name, tensor in state.items()}
    with atomic_write(path) as stream:
        write_safetensors(stream, tensors, None) if path.suffix == ".safetensors" else write_torch(stream, tensors)
    _round_checkpoint(path, dtype)
    with open_checkpoint(source.files.checkpoint) as base:
        return _verify_written_checkpoint(
            base, path, source, dtype, body_may_change=True, reused=frozenset(places.values())
        )


@torch.no_grad()
def _load_merged_model(source: ExportSource) -> SpeechModel:
    files = source.files
    if source.merged_checkpoint is not None:
        return load_model(source.family, replace(files, checkpoint=source.merged_checkpoint), dtype=None)
    model = load_model(source.family, files, dtype=None)
    grow_model(model, source.graft.card.num_rows)
    load_new_rows(model, {name: torch.from_numpy(values) for name, values in source.graft.rows.items()})
    if source.adapter is not None:
        load_peft_adapter(model, read_peft_folder(source.adapter))
        merge_adapter(model)
    return model


def _to_tensor_bytes(tensor: Tensor) -> TensorBytes:
    if tensor.dtype == torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
        return TensorBytes("BF16", tuple(tensor.shape), lambda: [bits.tobytes()])
    return TensorBytes.of(tensor.contiguous().numpy())


def _round_checkpoint(path: Path, dtype: str) -> None:
    """Write a file again with its float32 numbers in half the room."""
    if dtype == BASE_DTYPE:
        return
    with open_checkpoint(path) as checkpoint:
        tensors = {name: _round_tensor(checkpoint, info) for name, info in checkpoint.tensors.items()}
        total = sum(tensor.num_bytes for tensor in tensors.values())
        with (
            atomic_write(path, overwrite=True) as stream,
            progress.progress_task(f"rounding {path.name}", total) as advance,
        ):
            sink = ByteSink(stream, advance=advance)
            if checkpoint.format == "safetensors":
                write_safetensors(sink, tensors, checkpoint.metadata)
            else:
                write_torch(sink, tensors, wrapper=checkpoint.wrapper)


def _round_tensor(checkpoint: Checkpoint, info: TensorInfo) -> TensorBytes:
    if info.dtype != "F32":
        return TensorBytes(info.dtype, info.shape, lambda: checkpoint.iter_bytes(info))

    def chunks() -> Iterable[bytes]:
        yield from_float32(np.asarray(checkpoint.read(info.name), dtype=np.float32), ROUNDED_DTYPE).tobytes()

    return TensorBytes(ROUNDED_DTYPE, info.shape, chunks)


def _verify_written_checkpoint(
    base: Checkpoint,
    path: Path,
    source: ExportSource,
    dtype: str,
    *,
    body_may_change: bool,
    reused: frozenset[int] | None = None,
) -> ExportedCheckpoint:
    """Open what was written and compare it with the base; an error names the first thing that is not as it must be."""
    pieces, spare = source.graft.card.base_pieces, source.family.spare_rows
    size = pieces if reused is not None else source.graft.tokenizer.size
    tables = {point.tensor for point in source.family.graft_points}
    same = changed = 0
    with (
        open_checkpoint(path) as written,
        progress.progress_task(f"reading {path.name} again", len(written.tensors)) as advance,
    ):
        expected = require_tensor_names(written, source)
        names = [name for name in base.tensors if name in expected]
        for name in names:
            was, now = base.tensors[name], written.tensors[name]
            shape = (size + spare, *was.shape[1:]) if name in tables else was.shape
            wanted = was.dtype if dtype == BASE_DTYPE or was.dtype != "F32" else ROUNDED_DTYPE
            if (now.shape, now.dtype) != (shape, wanted):
                found = f"{name} is {now.dtype} {list(now.shape)}"
                raise _export_mismatch_error(path, found, f"{wanted} {list(shape)}")
            before, after = (_tensor_bits(one, name, now.dtype) for one in (base, written))
            if name in tables:
                # Base rows, and the spare ones behind them, are the base's; those of reused ids the new language's.
                kept_rows = np.ones(pieces, dtype=bool)
                kept_rows[list(reused or ())] = False
                old_spare = was.shape[0] - pieces
                tail = not old_spare or np.array_equal(before[pieces:], after[after.shape[0] - old_spare :])
                if not np.array_equal(before[:pieces][kept_rows], after[:pieces][kept_rows]) or not tail:
                    raise _export_mismatch_error(path, f"a base row of {name} is not the base's")
            elif np.array_equal(before, after):
                same += 1
            elif body_may_change:
                if not np.isfinite(np.asarray(written.read(name), dtype=np.float32)).all():
                    raise _export_mismatch_error(path, f"{name} holds values that are not finite")
                changed += 1
            else:
                raise _export_mismatch_error(path, f"{name} is not the base's")
            advance(1)
        exact = all(written.tensors[name].dtype == base.tensors[name].dtype for name in names)
        kinds = sorted({written.tensors[name].dtype for name in names})
    new_rows = len(reused) if reused is not None else source.graft.card.num_rows
    kept = pieces - len(reused or ())
    size_bytes = path.stat().st_size
    return ExportedCheckpoint(
        path.name,
        compute_sha256(path),
        size_bytes,
        len(names),
        len(expected),
        same,
        changed,
        kept,
        new_rows,
        ", ".join(kinds),
        exact,
    )


def require_tensor_names(written: Checkpoint, source: ExportSource) -> frozenset[str]:
    """All names that the family's model has at the base's size; an error unless the file has exactly these."""
    with torch.device("meta"):
        names = frozenset(source.family.build_empty_model(source.files).state_dict())
    there = {name for name in written.tensors if source.family.get_part_name(name) is not None}
    if there != names:
        lacking, more = sorted(names - there), sorted(there - names)
        found = f"{len(lacking)} names are missing ({', '.join(lacking[:3])}), "
        found += f"{len(more)} too many ({', '.join(more[:3])})"
        raise _export_mismatch_error(written.path, found, f"the {len(names)} names of {source.family.name}")
    return names


def _tensor_bits(checkpoint: Checkpoint, name: str, dtype: str) -> np.ndarray[Any, Any]:
    """A tensor's bits, after rounding where the other file is rounded. Signs of zero count."""
    raw = checkpoint.read(name, raw=True)
    if checkpoint.tensors[name].dtype != dtype:
        raw = from_float32(np.asarray(checkpoint.read(name), dtype=np.float32), dtype)
    return raw.view(np.dtype(f"u{raw.dtype.itemsize}")) if raw.dtype.kind == "f" else raw


def _export_mismatch_error(path: Path, found: str, expected: str = "") -> CheckpointError:
    return CheckpointError("export-differs", found, expected=expected, where=path)
