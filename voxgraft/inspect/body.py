"""Compare everything but the text tables with the base: the same bits, so that speech cannot have changed, or how far.

Both files are streamed once. Weights only give a distance; whether old languages suffered must be measured. The rest
reads the optimizer state in a checkpoint: sizes, step, rates, schedule, moments on rows that should be fixed. It uses
the pickle's description and the stored values; nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import (
    FLOAT_DTYPES,
    RAW_DTYPES,
    Checkpoint,
    TensorInfo,
    from_float32,
    pair_chunks,
    to_float32,
)
from voxgraft.checkpoints.load import iter_values
from voxgraft.checkpoints.pickles import PickleDict, PickleObject, is_tensor
from voxgraft.checkpoints.torch_file import TorchCheckpoint
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, Finding, VoxgraftError, finding
from voxgraft.inspect.subject import BLOCK_ROWS, CheckSubject, find_text_tables, is_stand_in
from voxgraft.inspect.verdict import MAJORITY_SHARE
from voxgraft.models.base import Family

# Parts whose matrices have a row for each code or position.
PARTS_WITH_ROWS = ("speech tables", "positions", "speed rows")
# Of the base's length: no training shrinks a row so far, and weight decay would shrink all of them.
_DEAD_ROW_RATIO = 1e-3
# By its own length: a row or a matrix that moved so far was not trained, but overwritten, emptied or damaged.
OVERWRITTEN_CHANGE = 0.5
# A row that was overwritten and has less than this cosine to the base's is another row.
_OTHER_ROW_COSINE = 0.5
# Median cosine of a table in which single rows can be called another. Below it, the whole table moved.
_STABLE_TABLE_COSINE = 0.9
# A row that became so many times longer or shorter, by the others of its table, was not trained. In a head it is always
# or never the answer, whatever its direction.
_OUTLIER_FACTOR = 8.0
# The same for start and stop, each of which decides alone whether a sentence begins or ends.
_MARK_OUTLIER_FACTOR = 2.5
# A bias decides alone whether a code is ever spoken: e to the 5th is 148 times as likely, or as unlikely.
_BIAS_STEP, _BIAS_SPREAD = 5.0, 10.0


class LostRows(NamedTuple):
    """Rows of one table in which nothing of the base is left."""

    rows: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    """Those of them that are all zero, or next to it."""
    names: tuple[str, ...] = ()
    """For people, start and stop first."""
    num_rows: int = 0
    moved: float = 0.0
    """Squared length of the change of all other rows."""
    base: float = 0.0
    """Squared length of the base's other rows."""


NO_LOST_ROWS = LostRows()


def find_lost_rows(subject: CheckSubject, name: str, marks: dict[int, str]) -> LostRows:
    """Rows of a table of the backbone that are zero or were overwritten. None where it has no row per code or position.

    `marks` names rows of the speech tables for people.
    """
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None or family.get_part_name(name) not in PARTS_WITH_ROWS:
        return NO_LOST_ROWS
    old, new = base.tensors[name], checkpoint.tensors[name]
    if old.shape != new.shape or len(old.shape) not in (1, 2) or not {old.dtype, new.dtype} <= set(FLOAT_DTYPES):
        return NO_LOST_ROWS

    is_speech = family.get_part_name(name) == "speech tables"
    named = {row: f", {mark}" for row, mark in marks.items() if is_speech and row < old.shape[0]}

    def read(one: Checkpoint, start: int, stop: int) -> NDArray[np.float64]:
        # Values that are not finite have findings of their own, and the base has the originals.
        values = one.read_rows(name, start, stop).astype(np.float64)
        return np.nan_to_num(values, nan=math.nan, posinf=math.nan, neginf=math.nan)

    if len(old.shape) == 1:
        before, after = (read(one, 0, old.shape[0]) for one in (base, checkpoint))
        moved, length = after - before, before
        lost = np.abs(moved) >= max(_BIAS_STEP, _BIAS_SPREAD * float(before.std()))
        dead = np.zeros_like(lost)
    else:
        measures = []
        for start in range(0, old.shape[0], BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, old.shape[0])
            before, after = (read(one, start, stop) for one in (base, checkpoint))
            lengths = [np.sqrt((values**2).sum(axis=1)) for values in (before, after, after - before)]
            measures.append(np.stack([*lengths, (before * after).sum(axis=1)]))
        length, left, moved, along = np.concatenate(measures, axis=1)  # each of shape [rows]
        some = length > 0
        cosine = along / np.maximum(length * left, 1e-30)
        dead = some & (left <= _DEAD_ROW_RATIO * length)
        alive = some & ~dead
        other = alive & (moved >= OVERWRITTEN_CHANGE * length) & (cosine < _OTHER_ROW_COSINE)
        finite = alive & np.isfinite(cosine)
        if not finite.any() or float(np.median(cosine[finite])) < _STABLE_TABLE_COSINE:
            other[:] = False
        else:
            times = left / np.maximum(length, 1e-30)
            usual = float(np.median(times[finite]))
            limits = np.full(len(times), _OUTLIER_FACTOR)
            limits[list(named)] = _MARK_OUTLIER_FACTOR
            other |= finite & ((times > limits * usual) | (limits * times < usual))
        lost = dead | other
    rows = np.flatnonzero(lost).tolist()
    names = tuple(f"row {row:,}{named.get(row, '')}" for row in sorted(rows, key=lambda row: (row not in named, row)))
    rest, base_rest = (float(np.nansum(values[~lost] ** 2)) for values in (moved, length))
    return LostRows(tuple(rows), tuple(np.flatnonzero(dead).tolist()), names, len(lost), rest, base_rest)


_MAX_NAMED_TENSORS = 3
# Mean step of single values. Biases near zero move by many times their length in any training, but not so far.
_LOST_MEAN_STEP = 0.1
# Of its own length: a computed table that is farther from the base's was damaged, since nothing trains it.
_RECOMPUTED_DISTANCE = 0.2
# A value that is larger than this, and so many times the base's, is ruined. Weights of both families are below 10, and
# AdamW moves a value by about the learning rate in a step.
_RUINED_VALUE, _RUINED_RATIO = 10.0, 100.0
# Values that are looked at before a whole piece is: most tensors show in these that they are full float32.
_PROBE_VALUES = 512
TensorChangeKind = Literal["same", "rounded", "changed", "form"]


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor against the base's: squared lengths of the difference and of the base's values, both 0 if unknown."""

    name: str
    how: TensorChangeKind
    """same bits; the base's, rounded to a shorter format; changed; another form (shape, or other whole numbers)."""
    moved: float = 0.0
    base: float = 0.0
    lost: bool = False
    """Nothing of the base's values is left in it."""
    num_values: int = 0
    """Of the base's tensor."""
    num_bad: int = 0
    """Values that `find_ruined_values` names. `moved` is measured on the others."""
    overflowed: bool = False
    """All of these are infinite and the tensor is kept as F16, which holds nothing above 65,504."""
    computed: bool = False
    """A table that the program computes. No training moves it, so it says nothing about how far a body moved."""
    has_rows: bool = False
    """A table with a row per code or position."""
    lost_rows: LostRows = NO_LOST_ROWS
    """Of a table with a row per code or position: rows in which nothing of the base is left."""


@dataclass(frozen=True, slots=True)
class BodyComparison:
    """All tensors that are no text table: those that both files have, compared, and those that only the base has."""

    changes: tuple[TensorChange, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...] = ()
    """Tensors that the base does not have, and that are no second name of another."""

    @property
    def unusable(self) -> list[TensorChange]:
        """Tensors in which nothing can have been learned: those of another form, and those that are lost."""
        return [one for one in self.changes if one.lost or one.how == "form"]

    @property
    def unusable_share(self) -> float:
        """Of all tensors or of all their values, whichever is more: a model is mostly matrices.

        Tables count as tensors only. The base has their rows, and in a small model they hold most of the values.
        """
        return self._larger_share(self.unusable, sum(one.num_values for one in self.unusable if not one.has_rows))

    @property
    def not_finite_share(self) -> float:
        """Of all values that are not finite, or of tensors that mostly are not, whichever is more."""
        ruined = [one for one in self.changes if 2 * one.num_bad >= max(one.num_values, 1)]
        return self._larger_share(ruined, sum(one.num_bad for one in self.changes))

    def _larger_share(self, tensors: list[TensorChange], num_values: int) -> float:
        total = sum(one.num_values for one in self.changes)
        return max(len(tensors) / max(len(self.changes), 1), num_values / max(total, 1))

    @property
    def lost_rows(self) -> dict[str, LostRows]:
        """Tables of which single rows are lost, by name."""
        return {one.name: one.lost_rows for one in self.changes if one.lost_rows.rows and not one.lost}

    @property
    def distance(self) -> float:
        """How far the whole backbone moved, by its length; values that are not finite are left out."""
        return relative_distance([one for one in self.changes if not one.computed])

    @property
    def verdict_distance(self) -> float:
        """The same without a few lost tensors, each of which would outweigh all others and is a fault of its own."""
        if self.unusable_share >= MAJORITY_SHARE:
            return self.distance
        return relative_distance([one for one in self.changes if not one.lost and not one.computed])


def relative_distance(changes: list[TensorChange]) -> float:
    """Length of the difference by length of the base's values, of several tensors together.

    Measured again without the tables of codes and positions, the larger counts: rows of codes that a training never
    reads stay as they are, and would dilute what happened to the layers.
    """
    groups = changes, [one for one in changes if not one.has_rows]
    squares = [sum(one.moved for one in group) / max(sum(one.base for one in group), 1e-30) for group in groups]
    return math.sqrt(max(squares))


def body_findings(subject: CheckSubject) -> list[Finding]:
    """Compare all other tensors, streaming. The claim about speech is made only if it was seen to hold."""
    body = compare_body(subject)
    return body_comparison_findings(subject, body) if body else []


def compare_body(subject: CheckSubject) -> BodyComparison | None:
    """The comparison itself; None where there is nothing to compare."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None or is_stand_in(checkpoint):
        return None
    names = body_tensor_names(base, family)
    there = [name for name in names if name in checkpoint.tensors]
    changes = []
    marks: dict[int, str] = {}
    if subject.base is not None:
        with contextlib.suppress(VoxgraftError):  # a base that is not whole is reported elsewhere
            size = family.infer_size(subject.base, {name: info.shape for name, info in base.tensors.items()})
            spec = family.sequence_spec(subject.base_pieces or 0, size)
            marks = {spec.speech_start: "start of speech", spec.speech_stop: "stop of speech"}
    with progress.progress_task(
        "comparing the other tensors with the base", sum(base.tensors[name].num_bytes for name in there)
    ) as advance:
        for name in sorted(there, key=lambda name: checkpoint.tensors[name].start):
            change = _compare_tensor(base, checkpoint, name, family)
            if change.how == "changed":
                # Single lost rows make neither the whole table a lost one nor the backbone a far one.
                rows = find_lost_rows(subject, name, marks)
                few = rows.rows and 2 * len(rows.rows) < rows.num_rows
                if few and not _is_tensor_lost(base.tensors[name], rows.moved, rows.base):
                    change = replace(change, lost_rows=rows, lost=False, moved=rows.moved)
            changes.append(change)
            advance(base.tensors[name].num_bytes)
    order = {name: at for at, name in enumerate(names)}
    changes.sort(key=lambda one: order[one.name])
    known = [info for name, info in checkpoint.tensors.items() if name in base.tensors]
    same_storage = {(info.storage, info.start) for info in known if info.storage}
    own = (info for name, info in checkpoint.tensors.items() if name not in base.tensors)
    extra = tuple(info.name for info in own if not info.storage or (info.storage, info.start) not in same_storage)
    missing = tuple(name for name in names if name not in checkpoint.tensors)
    return BodyComparison(tuple(changes), missing, extra)


def measure_blend_distance(subject: CheckSubject, body: BodyComparison, share: float) -> float:
    """The distance that a body repaired to `share` of its way from the base will be measured to have.

    Nearly proportional to the share, but a shorter number format rounds every value again, which adds to it.
    """
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None:
        return 0.0
    changes = []
    used = [one for one in body.changes if not one.computed and not one.lost and one.how != "form"]
    total = sum(base.tensors[one.name].num_bytes for one in used)
    with progress.progress_task(f"measuring the backbone at {share:g}", total) as advance:
        for one in used:
            changes.append(
                _compare_tensor(base, checkpoint, one.name, family, (share, one)) if one.how == "changed" else one
            )
            advance(base.tensors[one.name].num_bytes)
    return relative_distance(changes)


def body_comparison_findings(subject: CheckSubject, body: BodyComparison) -> list[Finding]:
    """What a comparison has to say."""
    where = subject.checkpoint.path if subject.checkpoint else ""
    findings: list[Finding] = []
    total, num_compared = len(body.changes) + len(body.missing), len(body.changes)

    def listed(names: Sequence[str]) -> str:
        return f" ({', '.join(names[:_MAX_NAMED_TENSORS])}{', ...' * (len(names) > _MAX_NAMED_TENSORS)})"

    def add(code: str, names: Sequence[str], what: str, expected: str = "", more: str = "") -> None:
        of = f"the base's {total:,}" if code == "body-missing" else f"{num_compared:,}"
        found = f"{len(names):,} of {of} backbone tensors {what}{listed(names)}{more}"
        if names:
            findings.append(finding(code, found, expected=expected, where=where))

    def named(how: TensorChangeKind) -> list[str]:
        return [change.name for change in body.changes if change.how == how]

    add("body-missing", body.missing, "are not in the file")
    for overflowed, code, values in (
        (False, "body-not-finite", "such values"),
        (True, "body-overflow", "infinite values in fp16"),
    ):
        affected = [change for change in body.changes if change.num_bad and change.overflowed == overflowed]
        more = f": {sum(change.num_bad for change in affected):,} {values}"
        how = "contain values that are not finite" + ("" if overflowed else ", or absurdly large")
        add(code, [change.name for change in affected], how, more=more)
    add("body-form", named("form"), "have another shape or data type", "the base's shapes and data types")
    expected = f"tensors that changed by less than {OVERWRITTEN_CHANGE:.0%} of their norm"
    lost = [change.name for change in body.changes if change.lost]
    add("body-lost", lost, "have nothing in common with the base", expected)
    for name, rows in body.lost_rows.items():
        how = "contain only zeros" if rows.dead == rows.rows else "are far from the base's values"
        found = f"{len(rows.rows):,} of {rows.num_rows:,} rows of {name} {how}{listed(rows.names)}"
        findings.append(
            finding("speech-rows-lost", found, expected="the base's values, or values trained from them", where=where)
        )
    moved = f"; together they changed by {body.distance:.2g} of their norm"
    add("body-changed", named("changed"), "differ from the base's", "the base's bits", more=moved)
    found = f"{len(body.extra):,} tensors are not in the base{listed(body.extra)}"
    extra = [finding("body-extra", found, expected="the base's tensors", where=where)] if body.extra else []
    if findings or not body.changes:
        return findings + extra
    # The claim that speech cannot have changed is made only where every tensor was seen to be the same.
    if rounded := named("rounded"):
        found = f"{len(rounded):,} of {total:,} backbone tensors are rounded to a lower precision, otherwise unchanged"
        findings.append(finding("body-rounded", found, where=where))
    elif heads := [change.name for change in body.changes if change.name.endswith("_head.weight")]:
        found = f"all {total:,} backbone tensors have the same bits as in the base, including {' and '.join(heads)}"
        findings.append(finding("body-same", found, where=where))
    return findings + extra


def body_tensor_names(base: Checkpoint, family: Family) -> list[str]:
    """The base's tensors that are no text table, nor a second name for one."""
    tables = [info for point in family.graft_points if (info := base.tensors.get(point.tensor)) is not None]
    return [
        name
        for name, info in base.tensors.items()
        if not any(info.storage == table.storage and info.same_bytes(table) for table in tables)
    ]


def _compare_tensor(
    base: Checkpoint,
    checkpoint: Checkpoint,
    name: str,
    family: Family,
    blend: tuple[float, TensorChange] | None = None,
) -> TensorChange:
    """One tensor against the base's. With `blend` (a share, and what the plain comparison has shown) the tensor that
    `repair` would write at that share is compared in its place.
    """
    old, new = base.tensors[name], checkpoint.tensors[name]
    has_rows = family.get_part_name(name) in PARTS_WITH_ROWS
    other = TensorChange(name, "form", num_values=old.num_values, computed=family.is_computed(name), has_rows=has_rows)
    floats = old.dtype in FLOAT_DTYPES and new.dtype in FLOAT_DTYPES
    if old.shape != new.shape or (not floats and old.dtype != new.dtype):
        return other
    exact = same = infinite = True
    moved = length = left = 0.0
    num_bad = num_seen = 0
    # `moved`, `length` and `left` are squared lengths, added up chunk by chunk.
    for base_values, tuned_values in pair_chunks(iter_values(base, old), iter_values(checkpoint, new)):
        equal = old.dtype == new.dtype and bool(np.array_equal(base_values.view(np.uint8), tuned_values.view(np.uint8)))
        if not floats:
            exact = exact and equal
            continue
        before = to_float32(base_values, old.dtype).astype(np.float32, copy=False)
        length += _sum_of_squares(before)
        num_seen += len(before)
        if equal:
            left += _sum_of_squares(before)
            continue
        exact = False
        after = to_float32(tuned_values, new.dtype).astype(np.float32, copy=False)
        if blend is not None:
            start = num_seen - len(before)
            rows = np.arange(start, num_seen) // max(old.num_values // max(old.shape[0], 1), 1) if old.shape else [0]
            lost_values = np.isin(rows, blend[1].lost_rows.rows)
            after = np.where(find_ruined_values(before, after) | lost_values, before, after)
            value = (before + blend[0] * (after.astype(np.float64) - before)).astype(np.float32)
            # As in `repair`: what became infinite in fp16 is kept in the base's own format.
            after = round_to_dtype(value, old.dtype if new.dtype == "F16" and blend[1].num_bad else new.dtype)
        rounded = _match_number_format(before, after, new.dtype)
        same = same and bool(np.array_equal(rounded.view(np.uint32), after.view(np.uint32)))
        if (ruined := find_ruined_values(before, after)).any():  # also what the shorter format cannot hold
            same = False
            num_bad += int(ruined.sum())
            infinite = infinite and bool(np.isinf(after[ruined]).all())
            rounded = np.where(ruined, before, rounded)
            after = np.where(ruined, before, after)
        with np.errstate(over="ignore", invalid="ignore"):
            moved += _sum_of_squares(after - rounded)
        left += _sum_of_squares(after)
    if exact:
        return replace(other, how="same", base=length)
    if not floats:
        return other
    lost = not same and ((length > 0 and left == 0) or _is_tensor_lost(old, moved, length))
    if other.computed and not lost:
        lost = not same and moved >= _RECOMPUTED_DISTANCE**2 * length
        same = not lost and not num_bad
    overflowed = bool(num_bad) and infinite and new.dtype == "F16"
    how: TensorChangeKind = "rounded" if same else "changed"
    return replace(other, how=how, moved=moved, base=length, lost=lost, num_bad=num_bad, overflowed=overflowed)


def _match_number_format(before: NDArray[np.float32], after: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """The base's values in the shortest format that holds all of the others, whatever type the file keeps them as.

    A checkpoint that was trained or exported as bf16 and saved as float32 is the base rounded, and did not drift.
    """
    own = before if dtype == "F32" else round_to_dtype(before, dtype)
    formats: list[str] = []
    for part in (slice(_PROBE_VALUES), slice(None)):
        pairs = ((name, round_to_dtype(after[part], name)) for name in ("BF16", "F16") if name != dtype)
        formats = [name for name, short in pairs if np.array_equal(short, after[part], equal_nan=True)]
        if not formats:
            return own
    candidates = [round_to_dtype(round_to_dtype(before, name), dtype) for name in formats]
    candidates = [candidates[0], *candidates, own] if dtype == "F32" else [own, *candidates]
    return next((candidate for candidate in candidates if np.array_equal(candidate, after)), candidates[0])


def round_to_dtype(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Values in another format, as float32 again."""
    with np.errstate(over="ignore", invalid="ignore"):
        return to_float32(from_float32(values, dtype), dtype).astype(np.float32, copy=False)


def find_ruined_values(before: NDArray[np.float32], after: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Values of a body that are not finite, or so large that no training made them: a flipped bit in an exponent."""
    size = np.abs(after)
    if size.max(initial=0.0) <= _RUINED_VALUE:  # nearly always, and false where a value is NaN
        return np.zeros(after.shape, bool)
    large = (size > _RUINED_VALUE) & (size > _RUINED_RATIO * np.abs(before))
    return np.asarray(large | ~np.isfinite(after))


def _is_tensor_lost(old: TensorInfo, moved: float, length: float) -> bool:
    """Whether a finite change is farther than any training goes."""
    if not math.isfinite(moved) or moved < OVERWRITTEN_CHANGE**2 * length:
        return False
    is_matrix = len(old.shape) > 1 and length > 0
    return is_matrix or math.sqrt(moved / max(old.num_values, 1)) >= _LOST_MEAN_STEP


def _sum_of_squares(values: NDArray[np.float32]) -> float:
    # In float32 for speed; in float64 only where squares overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.dot(values, values))
        return total if math.isfinite(total) else float(np.dot(values.astype(np.float64), values.astype(np.float64)))


class LayerChange(NamedTuple):
    """The tensors of one part, or of one numbered layer of it, together."""

    part: str
    name: str
    """The part, and the number of the layer where it has one."""
    tensors: int
    changed: int
    distance: float
    """Length of the change by length of the base's values; infinite where values are not finite."""

    def to_json(self) -> dict[str, Any]:
        finite = self.distance if math.isfinite(self.distance) else None
        return {"layer": self.name, "tensors": self.tensors, "changed": self.changed, "distance": finite}


def summarize_layers(body: BodyComparison, family: Family) -> list[LayerChange]:
    """Parts in the order of the base's tensors, their layers by number."""
    groups: dict[tuple[str, int | None], list[TensorChange]] = {}
    for one in body.changes:
        part = family.get_part_name(one.name)
        if part is not None:
            number = next((int(word) for word in one.name.split(".") if word.isdecimal() and len(word) < 5), None)
            groups.setdefault((part, number), []).append(one)
    order = {part: at for at, part in enumerate(dict.fromkeys(part for part, _ in groups))}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -1 if item[0][1] is None else item[0][1]))
    layers = []
    for (part, number), changes in ordered:
        changed = sum(one.how in ("changed", "form") for one in changes)
        distance = math.inf if any(one.num_bad for one in changes) else relative_distance(changes)
        name = part if number is None else f"{part} {number}"
        layers.append(LayerChange(part, name, len(changes), changed, distance))
    return layers


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
    finite: bool = True
    """Whether all of these values can be computed with; others count as zero in the lengths."""


def read_optimizer_snapshot(checkpoint: Checkpoint) -> OptimizerSnapshot | None:
    """What the file holds of an optimizer; None where it holds none."""
    if not isinstance(checkpoint, TorchCheckpoint):
        return None
    entries = checkpoint.archive.tree.entries
    node = next((entries[key] for key in _OPTIMIZER_KEYS if isinstance(entries.get(key), PickleDict)), None)
    if node is None:
        return None
    snapshot = OptimizerSnapshot()
    listed = node.entries.get("param_groups")
    groups = [group.entries for group in listed if isinstance(group, PickleDict)] if isinstance(listed, list) else []
    snapshot.rates, snapshot.first_rates, snapshot.weight_decay = (
        tuple(value for group in groups if (value := _as_finite_number(group.get(key))) is not None)
        for key in ("lr", "initial_lr", "weight_decay")
    )
    state = node.entries.get("state")
    parameters = state.entries.items() if isinstance(state, PickleDict) else ()
    for index, (key, parameter_state) in enumerate(islice(parameters, _MAX_PARAMETERS)):
        if not isinstance(parameter_state, PickleDict):
            continue
        first, second = (
            _find_float_tensor(checkpoint, parameter_state.entries.get(name)) for name in ("exp_avg", "exp_avg_sq")
        )
        if first is not None:
            same = second if second is not None and second.shape == first.shape else None
            snapshot.moments.append(ParameterMoments(key if type(key) is int else index, first, same))
        if snapshot.step is None:  # torch keeps the count as a tensor of one value, older versions as a number
            count = parameter_state.entries.get("step")
            info = _find_float_tensor(checkpoint, count)
            if info is not None and info.num_values == 1:
                count = float(_read_float_block(checkpoint, info).reshape(-1)[0])
            snapshot.step = _as_count(count)
    snapshot.moments.sort(key=lambda moment: moment.number)
    snapshot.file_step = next(
        (value for key in _CHECKPOINT_STEP_KEYS if (value := _as_count(entries.get(key))) is not None), None
    )
    schedule = next((entries[key] for key in _SCHEDULER_KEYS if isinstance(entries.get(key), PickleDict)), None)
    snapshot.last_epoch = _as_count(schedule.entries.get("last_epoch")) if schedule else None
    return snapshot


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
    order = {name: index for index, name in enumerate(checkpoint.tensors)}
    wide = sorted((info for info in tables if len(info.shape) == 2), key=lambda info: order[info.name])
    for shape in dict.fromkeys(info.shape for info in wide):
        same_shape = [info for info in wide if info.shape == shape]
        matching = [moment for moment in found.moments if moment.first.shape == shape and moment.second is not None]
        if len(matching) == len(same_shape):
            pairs = zip(same_shape, matching, strict=True)
            rows += [RowMoments(info.name, *_read_moment_norms(checkpoint, moment, shape[0])) for info, moment in pairs]
            continue
        if not pieces or matching:
            continue
        for count in dict.fromkeys((shape[0] - spare - pieces, shape[0] - pieces)):
            alone = [
                moment
                for moment in found.moments
                if moment.first.shape == (count, *shape[1:]) and moment.second is not None
            ]
            if count > 0 and len(alone) == len(same_shape):
                padding = (pieces, shape[0] - pieces - count)
                for info, moment in zip(same_shape, alone, strict=True):
                    first, second, finite = _read_moment_norms(checkpoint, moment, count)
                    rows.append(RowMoments(info.name, np.pad(first, padding), np.pad(second, padding), finite))
                break
    return rows


def optimizer_findings(subject: CheckSubject) -> list[Finding]:
    """Moments that were made for another table, or that move rows which should be fixed; step and schedule."""
    return examine_optimizer(subject)[2]


def examine_optimizer(subject: CheckSubject) -> tuple[OptimizerSnapshot | None, list[RowMoments], list[Finding]]:
    """What a checkpoint keeps of its optimizer, the moments of its text tables, and what is odd about them."""
    checkpoint, family, pieces = subject.checkpoint, subject.family, subject.base_pieces
    snapshot = read_optimizer_snapshot(checkpoint) if checkpoint is not None else None
    if checkpoint is None or family is None or snapshot is None:
        return None, [], []
    tables, where = find_text_tables(checkpoint, family), checkpoint.path
    rows = read_row_moments(checkpoint, snapshot, list(tables.values()), pieces, family.spare_rows)
    findings: list[Finding] = []
    # Moments with the width of a text table, but with a number of rows that no tensor of the model has.
    model_shapes = {info.shape for info in checkpoint.tensors.values()}
    moments = {moment.first.shape for moment in snapshot.moments}
    for point, info in tables.items():
        new = info.shape[0] - pieces if pieces is not None else 0
        alone = {(count, *info.shape[1:]) for count in (new, new - family.spare_rows) if new}  # new rows on their own
        unmatched = sorted(shape for shape in moments - model_shapes - alone if shape[1:] == info.shape[1:])
        if point.role == "embedding" and unmatched and info.shape not in moments:
            text = (
                f"the optimizer state has moments of shape {list(unmatched[0])}, but {info.name} is {list(info.shape)}"
            )
            cure = "in the other trainer, start a new optimizer. voxgraft never uses the state of another one."
            findings.append(finding("moments-mismatch", text, where=where, cure=cure, level="warning"))
    if nonfinite_tables := [moment.tensor for moment in rows if not moment.finite]:
        text = f"the optimizer's moments of {', '.join(nonfinite_tables)} are not finite"
        findings.append(finding("moments-not-finite", text, where=where))
    for moment in rows if pieces is not None else ():
        # When the base rows got gradients: never, up to the end, or once and not recently, compared with the new rows.
        old, is_new = moment.second[:pieces] > 0, moment.second[pieces:] > 0
        if not old.any():
            continue
        ratios = moment.first / np.maximum(moment.second, 1e-30)
        latest_old = float(ratios[:pieces][old].max())
        latest_new = float(ratios[pieces:][is_new].max()) if is_new.any() else 1.0
        how = "and these rows still get gradients"
        if latest_old < _STALE_MOMENT_RATIO * latest_new:
            how = "from earlier steps; the gradients of these rows are masked now, but the moments remain"
        text = f"the optimizer has moments for {int(old.sum()):,} base rows of {moment.tensor}, {how}"
        findings.append(finding("moments-on-base-rows", text, expected="none", where=where))
    # An optimizer that is younger than the file does not know what was learned before.
    step, file_step = snapshot.step, snapshot.file_step
    restarted = step is not None and bool(file_step) and step < _RESTARTED_STEP_RATIO * (file_step or 0)
    had = find_new_rows_with_gradients(subject, rows)
    if had is not None and not had.any() and not restarted:
        steps = f" in {step:,} steps" if step is not None else ""
        text = f"none of the {len(had):,} new rows of {family.graft_points[0].tensor} received a gradient{steps}"
        findings.append(finding("new-rows-untrained", text, where=where))
    if restarted:
        text = f"the file is at step {file_step:,}, but its optimizer made {step:,} steps"
        findings.append(finding("optimizer-restarted", text, where=where))
    pairs = list(zip(snapshot.rates, snapshot.first_rates, strict=False))
    if pairs and all(rate <= _ENDED_RATE_RATIO * first for rate, first in pairs):
        text = f"the learning rate has decayed to {pairs[0][0]:.2g} from {pairs[0][1]:.2g}"
        findings.append(finding("schedule-ended", text, where=where))
    return snapshot, rows, findings


def find_new_rows_with_gradients(subject: CheckSubject, rows: list[RowMoments]) -> NDArray[np.bool_] | None:
    """Which new rows of the embedding ever had a gradient; None where the optimizer does not say."""
    family, pieces = subject.family, subject.base_pieces
    own = next((one for one in rows if family and one.tensor == family.graft_points[0].tensor), None)
    if own is None or family is None or pieces is None or not own.finite:
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
) -> tuple[NDArray[np.float32], NDArray[np.float32], bool]:
    first, second, finite = np.empty(num_rows, np.float32), np.empty(num_rows, np.float32), True
    assert kept.second is not None
    for start in range(0, num_rows, BLOCK_ROWS):
        part = slice(start, min(start + BLOCK_ROWS, num_rows))
        with np.errstate(over="ignore", invalid="ignore"):
            first_values = _read_float_block(checkpoint, kept.first.rows(part.start, part.stop))
            second_values = _read_float_block(checkpoint, kept.second.rows(part.start, part.stop))
            finite = finite and bool(np.isfinite(first_values).all() and np.isfinite(second_values).all())
            first_values, second_values = np.nan_to_num(first_values), np.nan_to_num(second_values)
            first[part] = np.sqrt((first_values * first_values).sum(axis=1))
            second[part] = np.sqrt(np.abs(second_values).sum(axis=1))
    return np.nan_to_num(first), np.nan_to_num(second), finite


def _read_float_block(checkpoint: Checkpoint, info: TensorInfo) -> NDArray[np.float32]:
    raw = np.frombuffer(b"".join(map(bytes, checkpoint.iter_bytes(info))), RAW_DTYPES[info.dtype])
    return to_float32(raw, info.dtype).astype(np.float32, copy=False).reshape(info.shape)


def _as_finite_number(node: Any) -> float | None:
    plain = isinstance(node, int | float) and not isinstance(node, bool) and abs(node) < 1e30
    return float(node) if plain and math.isfinite(node) else None


def _as_count(node: Any) -> int | None:
    number = _as_finite_number(node)
    return int(number) if number is not None and number >= 0 else None
