"""The optimizer state in a checkpoint: sizes, step, rates, schedule, and moments on rows that should be fixed.

Read from the pickle's description and the stored values; nothing is unpickled. Tells findings; fixes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import FLOAT_DTYPES, RAW_DTYPES, Checkpoint, TensorInfo, to_float32
from voxgraft.checkpoints.pickles import PickleDict, PickleObject, is_tensor
from voxgraft.checkpoints.torch_file import TorchCheckpoint
from voxgraft.core.errors import CheckpointError, Finding, finding
from voxgraft.inspect.subject import BLOCK_ROWS, CheckSubject, find_text_tables

# Keys under which trainers put these, in the order in which they are tried.
_OPTIMIZER_KEYS = ("optimizer", "optimizer_state_dict", "optim", "optimizer_state")
_SCHEDULER_KEYS = ("scheduler", "scheduler_state_dict", "lr_scheduler")
_CHECKPOINT_STEP_KEYS = ("step", "global_step", "steps")
_MAX_PARAMETERS = 100_000
# Under a mask the first moment fades by a tenth a step, the second by a thousandth: after 66 steps this is left.
_STALE_MOMENT_RATIO = 1e-3
_ENDED_RATE_RATIO = 0.01
_RESTARTED_STEP_RATIO = 0.9


class ParameterMoments(NamedTuple):
    """What the optimizer keeps for one parameter."""

    number: int
    first: TensorInfo
    second: TensorInfo | None


@dataclass(slots=True)
class OptimizerSnapshot:
    """What a checkpoint records of its optimizer; None or empty where it does not say."""

    moments: list[ParameterMoments] = field(default_factory=list)
    step: int | None = None
    """Of the optimizer itself: how often it has stepped since it was made."""
    file_step: int | None = None
    """What the checkpoint calls its step."""
    rates: tuple[float, ...] = ()
    first_rates: tuple[float, ...] = ()
    weight_decay: tuple[float, ...] = ()
    last_epoch: int | None = None
    """The schedule's own count."""

    def to_json(self) -> dict[str, Any]:
        return {
            "parameters": len(self.moments),
            "step": self.step,
            "file_step": self.file_step,
            "rates": list(self.rates),
            "first_rates": list(self.first_rates),
            "weight_decay": list(self.weight_decay),
            "schedule_step": self.last_epoch,
        }


class RowMoments(NamedTuple):
    """Lengths of both moments of each row of one text table. Shape [rows]."""

    tensor: str
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    """Of the square root of the second moment."""


def read_optimizer_snapshot(checkpoint: Checkpoint) -> OptimizerSnapshot | None:
    """What the file holds of an optimizer; None where it holds none."""
    if not isinstance(checkpoint, TorchCheckpoint):
        return None
    entries = checkpoint.archive.tree.entries
    node = next((entries[key] for key in _OPTIMIZER_KEYS if isinstance(entries.get(key), PickleDict)), None)
    if node is None:
        return None
    found = OptimizerSnapshot()
    listed = node.entries.get("param_groups")
    groups = [group.entries for group in listed if isinstance(group, PickleDict)] if isinstance(listed, list) else []
    found.rates, found.first_rates, found.weight_decay = (
        tuple(value for group in groups if (value := _as_finite_number(group.get(key))) is not None)
        for key in ("lr", "initial_lr", "weight_decay")
    )
    state = node.entries.get("state")
    parameters = state.entries.items() if isinstance(state, PickleDict) else ()
    for index, (key, kept) in enumerate(islice(parameters, _MAX_PARAMETERS)):
        if not isinstance(kept, PickleDict):
            continue
        first, second = (_find_float_tensor(checkpoint, kept.entries.get(name)) for name in ("exp_avg", "exp_avg_sq"))
        if first is not None:
            same = second if second is not None and second.shape == first.shape else None
            found.moments.append(ParameterMoments(key if type(key) is int else index, first, same))
        if found.step is None:  # torch keeps the count as a tensor of one value, older versions as a number
            count = kept.entries.get("step")
            info = _find_float_tensor(checkpoint, count)
            if info is not None and info.num_values == 1:
                count = float(_read_float_block(checkpoint, info).reshape(-1)[0])
            found.step = _as_count(count)
    found.moments.sort(key=lambda one: one.number)
    found.file_step = next(
        (value for key in _CHECKPOINT_STEP_KEYS if (value := _as_count(entries.get(key))) is not None), None
    )
    schedule = next((entries[key] for key in _SCHEDULER_KEYS if isinstance(entries.get(key), PickleDict)), None)
    found.last_epoch = _as_count(schedule.entries.get("last_epoch")) if schedule else None
    return found


def read_row_moments(
    checkpoint: Checkpoint,
    found: OptimizerSnapshot,
    tables: list[TensorInfo],
    pieces: int | None = None,
    spare: int = 0,
) -> list[RowMoments]:
    """The moments of text tables. Parameters have the order of the tensors, so equal shapes are assigned by order.

    None where there are fewer moments than tables of one shape: whose they are would be a guess. With the base's number
    of `pieces`, also those of new rows that are a parameter of their own.
    """
    rows: list[RowMoments] = []
    order = {name: at for at, name in enumerate(checkpoint.tensors)}
    wide = sorted((info for info in tables if len(info.shape) == 2), key=lambda info: order[info.name])
    for shape in dict.fromkeys(info.shape for info in wide):
        own = [info for info in wide if info.shape == shape]
        kept = [one for one in found.moments if one.first.shape == shape and one.second is not None]
        if len(kept) == len(own):
            pairs = zip(own, kept, strict=True)
            rows += [RowMoments(info.name, *_read_moment_norms(checkpoint, one, shape[0])) for info, one in pairs]
            continue
        if not pieces or kept:
            continue
        for count in dict.fromkeys((shape[0] - spare - pieces, shape[0] - pieces)):
            alone = [one for one in found.moments if one.first.shape == (count, *shape[1:]) and one.second is not None]
            if count > 0 and len(alone) == len(own):
                padding = (pieces, shape[0] - pieces - count)
                for info, one in zip(own, alone, strict=True):
                    first, second = (np.pad(part, padding) for part in _read_moment_norms(checkpoint, one, count))
                    rows.append(RowMoments(info.name, first, second))
                break
    return rows


def optimizer_findings(subject: CheckSubject) -> list[Finding]:
    """Moments that were made for another table, or that move rows which should be fixed; step and schedule."""
    return examine_optimizer(subject)[2]


def examine_optimizer(subject: CheckSubject) -> tuple[OptimizerSnapshot | None, list[RowMoments], list[Finding]]:
    """What a checkpoint keeps of its optimizer, the moments of its text tables, and what is odd about them."""
    checkpoint, family, pieces = subject.checkpoint, subject.family, subject.base_pieces
    found = read_optimizer_snapshot(checkpoint) if checkpoint is not None else None
    if checkpoint is None or family is None or found is None:
        return None, [], []
    tables, where = find_text_tables(checkpoint, family), checkpoint.path
    rows = read_row_moments(checkpoint, found, list(tables.values()), pieces, family.spare_rows)
    findings: list[Finding] = []
    # Moments with the width of a text table, but with a number of rows that no tensor of the model has.
    model_shapes = {info.shape for info in checkpoint.tensors.values()}
    moments = {one.first.shape for one in found.moments}
    for point, info in tables.items():
        new = info.shape[0] - pieces if pieces is not None else 0
        alone = {(count, *info.shape[1:]) for count in (new, new - family.spare_rows) if new}  # new rows by themselves
        odd = sorted(shape for shape in moments - model_shapes - alone if shape[1:] == info.shape[1:])
        if point.role == "embedding" and odd and info.shape not in moments:
            text = f"the optimizer state has moments of {list(odd[0])}, {info.name} is {list(info.shape)}"
            cure = "voxgraft takes no optimizer state from elsewhere; in the old trainer start a fresh one."
            findings.append(finding("moments-mismatch", text, where=where, cure=cure, level="warning"))
    for one in rows if pieces is not None else ():
        # When the base rows got gradients: never, up to the end, or once and not recently, compared with the new rows.
        old, is_new = one.second[:pieces] > 0, one.second[pieces:] > 0
        if not old.any():
            continue
        ratios = one.first / np.maximum(one.second, 1e-30)
        latest_old = float(ratios[:pieces][old].max())
        latest_new = float(ratios[pieces:][is_new].max()) if is_new.any() else 1.0
        how = "and gets gradients for them: nothing keeps them fixed"
        if latest_old < _STALE_MOMENT_RATIO * latest_new:
            how = "from a time when they were trained; their gradients have been masked since, the moments were not"
        text = f"the optimizer keeps moments of {int(old.sum()):,} base rows of {one.tensor}, {how}"
        findings.append(finding("moments-on-base-rows", text, expected="none", where=where))
    # An optimizer that is younger than the file does not know what was learnt before.
    step, file_step = found.step, found.file_step
    restarted = step is not None and bool(file_step) and step < _RESTARTED_STEP_RATIO * (file_step or 0)
    had = find_new_rows_with_gradients(subject, rows)
    if had is not None and not had.any() and not restarted:
        steps = f" in {step:,} steps" if step is not None else ""
        text = f"none of the {len(had):,} new rows of {family.graft_points[0].tensor} has had a gradient{steps}"
        findings.append(finding("new-rows-untrained", text, where=where))
    if restarted:
        text = f"the file says step {file_step:,}, its optimizer has made {step:,} steps"
        findings.append(finding("optimizer-restarted", text, where=where))
    pairs = list(zip(found.rates, found.first_rates, strict=False))
    if pairs and all(rate <= _ENDED_RATE_RATIO * first for rate, first in pairs):
        text = f"the learning rate has come down to {pairs[0][0]:.2g} from {pairs[0][1]:.2g}"
        findings.append(finding("schedule-ended", text, where=where))
    return found, rows, findings


def find_new_rows_with_gradients(subject: CheckSubject, rows: list[RowMoments]) -> NDArray[np.bool_] | None:
    """Which new rows of the embedding ever had a gradient; None where the optimizer does not say."""
    family, pieces = subject.family, subject.base_pieces
    own = next((one for one in rows if family and one.tensor == family.graft_points[0].tensor), None)
    if own is None or family is None or pieces is None:
        return None
    new = own.second[pieces : len(own.second) - family.spare_rows]
    return np.asarray(new > 0) if len(new) else None


def _find_float_tensor(checkpoint: TorchCheckpoint, node: Any) -> TensorInfo | None:
    if not isinstance(node, PickleObject) or not is_tensor(node):
        return None
    try:
        info = checkpoint.locate_tensor("a moment", node)
    except CheckpointError:  # what the optimizer keeps is not needed for anything: an odd entry is ignored
        return None
    return info if info.dtype in FLOAT_DTYPES else None


def _read_moment_norms(
    checkpoint: Checkpoint, kept: ParameterMoments, num_rows: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    first, second = np.empty(num_rows, np.float32), np.empty(num_rows, np.float32)
    assert kept.second is not None
    for start in range(0, num_rows, BLOCK_ROWS):
        part = slice(start, min(start + BLOCK_ROWS, num_rows))
        with np.errstate(over="ignore", invalid="ignore"):
            one = np.nan_to_num(_read_float_block(checkpoint, kept.first.rows(part.start, part.stop)))
            two = np.nan_to_num(_read_float_block(checkpoint, kept.second.rows(part.start, part.stop)))
            first[part] = np.sqrt((one * one).sum(axis=1))
            second[part] = np.sqrt(np.abs(two).sum(axis=1))
    return np.nan_to_num(first), np.nan_to_num(second)


def _read_float_block(checkpoint: Checkpoint, info: TensorInfo) -> NDArray[np.float32]:
    raw = np.frombuffer(b"".join(map(bytes, checkpoint.iter_bytes(info))), RAW_DTYPES[info.dtype])
    return to_float32(raw, info.dtype).astype(np.float32, copy=False).reshape(info.shape)


def _as_finite_number(node: Any) -> float | None:
    plain = isinstance(node, int | float) and not isinstance(node, bool) and abs(node) < 1e30
    return float(node) if plain and math.isfinite(node) else None


def _as_count(node: Any) -> int | None:
    number = _as_finite_number(node)
    return int(number) if number is not None and number >= 0 else None
