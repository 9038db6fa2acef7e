"""The proof of a growth: two files are read side by side, and every byte that is not new must be the same.

Shares nothing with the writing in `grow_checkpoint` but the plan and the readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from voxgraft.checkpoints.model import Checkpoint, TensorInfo
from voxgraft.checkpoints.plan import GrowthPlan, TensorGrowth, fit_growth_plan
from voxgraft.errors import CheckpointError

ByteChunk = bytes | memoryview


@dataclass(frozen=True, slots=True)
class GrowthProof:
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
        return asdict(self)


def verify_growth(old: Checkpoint, new: Checkpoint, plan: GrowthPlan) -> GrowthProof:
    """Prove that `new` is `old` with exactly the plan's rows; an error that names the first difference."""
    growths = fit_growth_plan(old, plan)
    _check_file_properties(old, new)
    _check_aliases(old, new)
    compared: dict[tuple[object, ...], int] = {}
    for name, info in old.tensors.items():
        growth = growths.get(name)
        _check_shape(info, new.tensors[name], growth, new)
        place = (info.storage, info.start, info.shape, info.strides, info.dtype)
        if place not in compared:
            compared[place] = (
                _compare_grown_tensor(old, new, growth)
                if growth
                else _compare_tensor(old, new, info, new.tensors[name])
            )
    return GrowthProof(
        tensors_identical=len(old.tensors) - len(growths),
        tensors_grown=len(growths),
        rows_identical=sum(growth.info.shape[0] for growth in growths.values()),
        rows_new=sum(len(growth.table.new_rows) for growth in growths.values()),
        bytes_compared=sum(compared.values()),
    )


def _check_file_properties(old: Checkpoint, new: Checkpoint) -> None:
    """Format, wrapper, notes, names in their order, and the plain values beside them."""
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
    for what, (was, now) in pairs.items():
        if was != now:
            raise _difference_error(new, f"the {what} are not the same: {now!s:.80}", expected=f"{was!s:.80}")


def _check_aliases(old: Checkpoint, new: Checkpoint) -> None:
    """Names that stood for one tensor still do, and no others."""
    groups = [_alias_groups(checkpoint) for checkpoint in (old, new)]
    for name, group in groups[0].items():
        if groups[1][name] != group:
            raise _difference_error(new, f"{name} shares its values with {groups[1][name]}", expected=group)


def _alias_groups(checkpoint: Checkpoint) -> dict[str, str]:
    """For each name the first name that stands at the same place."""
    first: dict[tuple[object, ...], str] = {}
    found: dict[str, str] = {}
    for name, info in checkpoint.tensors.items():
        place = (info.storage, info.start, info.strides) if info.storage and info.num_values else (name,)
        found[name] = first.setdefault(place, name)
    return found


def _check_shape(info: TensorInfo, now: TensorInfo, growth: TensorGrowth | None, new: Checkpoint) -> None:
    shape = growth.shape if growth else info.shape
    if (now.dtype, now.shape) != (info.dtype, shape):
        found = f"{info.name} is {now.dtype} {list(now.shape)}"
        raise _difference_error(new, found, expected=f"{info.dtype} {list(shape)}")


def _compare_tensor(old: Checkpoint, new: Checkpoint, was: TensorInfo, now: TensorInfo) -> int:
    return _compare_streams(old.iter_bytes(was), new.iter_bytes(now), new, was.name)


def _compare_grown_tensor(old: Checkpoint, new: Checkpoint, growth: TensorGrowth) -> int:
    info, base, added = growth.info, growth.table.base_rows, len(growth.table.new_rows)
    now = new.tensors[info.name]
    count = _compare_tensor(old, new, info.rows(0, base), now.rows(0, base))
    count += _compare_streams(
        growth.new_bytes(), new.iter_bytes(now.rows(base, base + added)), new, f"{info.name} (new rows)"
    )
    return count + _compare_tensor(old, new, info.rows(base, info.shape[0]), now.rows(base + added, now.shape[0]))


def _compare_streams(was: Iterable[ByteChunk], now: Iterable[ByteChunk], new: Checkpoint, name: str) -> int:
    """The number of bytes, all equal, of two streams that are cut in pieces differently."""
    left, right = iter(was), iter(now)
    one = two = np.empty(0, np.uint8)
    count = 0
    while True:
        one = one if len(one) else np.frombuffer(next(left, b""), np.uint8)
        two = two if len(two) else np.frombuffer(next(right, b""), np.uint8)
        size = min(len(one), len(two))
        if not size and (len(one) or len(two)):
            raise _difference_error(new, f"{name} has {count:,} bytes in one of the files and more in the other")
        if not size:
            return count
        different = one[:size] != two[:size]
        if different.any():
            raise _difference_error(new, f"{name} differs at byte {count + int(different.argmax()):,}")
        count, one, two = count + size, one[size:], two[size:]


def _difference_error(new: Checkpoint, found: str, expected: str = "") -> CheckpointError:
    return CheckpointError("growth-differs", found, expected=expected, where=new.path)
