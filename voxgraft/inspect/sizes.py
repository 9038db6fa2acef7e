"""Checks of numbers: tokenizer, text tables and configs must agree on one size, and learning rates must be sensible.

Also the checks of a checkpoint file that need neither base nor text: pickled code, values that are not finite, extras.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from voxgraft.checkpoints.base import Checkpoint
from voxgraft.checkpoints.load import find_dangerous_globals
from voxgraft.core.errors import Finding, Level, VoxgraftError, finding
from voxgraft.core.results import Table
from voxgraft.core.run import RUN_FILE
from voxgraft.graft.folder import ROWS_NAME
from voxgraft.graft.rows import RowCount, text_table_findings
from voxgraft.inspect.optimizer import read_optimizer_snapshot, read_row_moments
from voxgraft.inspect.rows import is_unread_row
from voxgraft.inspect.subject import CheckSubject, OldConfigNumbers, StatedNumber, find_text_tables, is_stand_in
from voxgraft.models.base import Family
from voxgraft.models.detect import stand_in_parts


def size_table(subject: CheckSubject) -> Table | None:
    """All sizes side by side, for people."""
    rows: list[tuple[str, str, str]] = []
    if subject.old and subject.old.pieces:
        rows.append((subject.old.pieces.key, f"{subject.old.pieces.count:,}", subject.old.path.name))
    if subject.base_tokenizer:
        rows.append(("base pieces", f"{subject.base_tokenizer.size:,}", subject.base_tokenizer.path.name))
    if subject.grown:
        rows.append(("grown pieces", f"{subject.grown.size:,}", subject.grown.path.name))
    for checkpoint in filter(None, (subject.base_checkpoint, subject.checkpoint)):
        tables = find_text_tables(checkpoint, subject.family).values() if subject.family else ()
        rows += [(f"rows of {info.name}", f"{info.shape[0]:,}", checkpoint.path.name) for info in tables]
    return Table(("size", "number", "file"), tuple(rows)) if rows else None


def base_size_findings(subject: CheckSubject) -> list[Finding]:
    """The base by itself: its tokenizer, its tables, its own config."""
    base, tokenizer, checkpoint = subject.base, subject.base_tokenizer, subject.base_checkpoint
    if base is None or tokenizer is None or checkpoint is None or subject.family is None:
        return []
    findings = _row_count_findings(checkpoint, subject.family, tokenizer.size)
    stated = subject.family.read_config_pieces(base.config) if base.config else None
    if stated is not None:
        number = StatedNumber("the number of text tokens in the base's config", stated)
        findings += _config_size_findings(number, subject.family, tokenizer.size, str(base.config))
    if not findings and subject.checkpoint is None:
        findings += _spare_row_note(subject.family, tokenizer.size, checkpoint)
    return findings


def row_size_findings(subject: CheckSubject) -> list[Finding]:
    """The checkpoint's tables against the tokenizer; without a tokenizer against each other."""
    checkpoint, family, tokenizer = subject.checkpoint, subject.family, subject.tokenizer
    if checkpoint is None or family is None:
        return []
    tables = find_text_tables(checkpoint, family)
    if is_stand_in(checkpoint):
        return _stand_in_findings(subject)
    first = next(iter(tables.values()), None)
    pieces = tokenizer.size if tokenizer else first.shape[0] - family.spare_rows if first else 0
    heads = [f"{point.tensor} is not in the file" for point in family.graft_points if point.role != "embedding"]
    findings = [
        finding("head-missing", item.found, where=item.where)
        if item.code == "tensor-missing" and item.found in heads
        else item
        for item in _row_count_findings(checkpoint, family, pieces, subject)
    ]
    if not findings and tokenizer is not None:
        findings += _spare_row_note(family, pieces, checkpoint)
    return findings


def old_config_size_findings(subject: CheckSubject) -> list[Finding]:
    """The old config's number against the tokenizer, and against the rows; and its start and stop."""
    old, family, tokenizer = subject.old, subject.family, subject.tokenizer
    if old is None or family is None:
        return []
    # Start and stop of a text, which the model learnt on its own ids.
    pairs = ((old.start_text, family.start_id), (old.stop_text, family.stop_id))
    wrong = [(stated, own) for stated, own in pairs if stated is not None and stated.count != own]
    findings: list[Finding] = []
    if wrong:
        found = ", ".join(f"{stated.key} is {stated.count:,}" for stated, _ in wrong)
        expected = ", ".join(f"{own:,}" for _, own in wrong)
        findings.append(finding("config-start-stop", found, expected=expected, where=old.path))
    if old.pieces is None:
        return findings
    if tokenizer is not None:
        findings += _config_size_findings(old.pieces, family, tokenizer.size, str(old.path))
    if subject.any_checkpoint is None:
        return findings
    table = next(iter(find_text_tables(subject.any_checkpoint, family).values()), None)
    num_rows = old.pieces.count + family.spare_rows
    if table is None or table.shape[0] == num_rows or (family.spare_rows and table.shape[0] == old.pieces.count):
        return findings
    sum_of = f"{old.pieces.count:,} + {family.spare_rows} spare = " if family.spare_rows else ""
    found = f"{old.pieces.key} is {old.pieces.count:,}, {table.name} has {table.shape[0]:,} rows"
    where = f"{old.path} and {subject.any_checkpoint.path}"
    return [*findings, finding("config-vs-rows", found, expected=f"{sum_of}{num_rows:,} rows", where=where)]


def graft_size_findings(subject: CheckSubject) -> list[Finding]:
    """The graft's rows against the base's tables. That its own parts fit together was seen when it was opened."""
    graft, family = subject.graft, subject.family
    if graft is None or subject.base_checkpoint is None or subject.base_tokenizer is None:
        return []
    findings: list[Finding] = []
    if family is not None and family.name != graft.card.family:
        found = f"the graft is for {graft.card.family}, the base is {family.name}"
        findings.append(finding("graft-mismatch", found, where=graft.folder))
        return findings
    if graft.card.base_pieces != subject.base_tokenizer.size:
        found = f"the graft is for a base of {graft.card.base_pieces:,} pieces"
        expected = f"{subject.base_tokenizer.size:,}, as {subject.base_tokenizer.path.name} has"
        findings.append(finding("graft-mismatch", found, expected=expected, where=graft.folder))
    where = graft.folder / ROWS_NAME
    for name, rows in graft.rows.items():
        info = subject.base_checkpoint.tensors.get(name)
        if info is not None and info.shape[1:] != rows.shape[1:]:
            found = f"rows of {name} have the shape {list(rows.shape[1:])}"
            findings.append(finding("graft-mismatch", found, expected=f"{list(info.shape[1:])}", where=where))
        if not np.isfinite(rows).all():
            findings.append(finding("tensor-not-finite", f"{name} holds values that are not finite", where=where))
    return findings


def _row_count_findings(
    checkpoint: Checkpoint, family: Family, pieces: int, subject: CheckSubject | None = None
) -> list[Finding]:
    """`row_findings`, with a row too many named for what it is."""
    items = text_table_findings(checkpoint, family, pieces)
    doubled = pieces + 2 * family.spare_rows
    tables = find_text_tables(checkpoint, family)
    if not family.spare_rows or {info.shape[0] for info in tables.values()} != {doubled}:
        return items
    if subject is not None and subject.base_checkpoint is not None and not has_second_spare_row(subject, pieces):
        return [replace(item, found=f"{item.found}; row {pieces:,} is no second spare row") for item in items]
    found = f"{doubled:,} rows for {pieces:,} pieces: the spare row was added twice"
    named = finding("spare-counted-twice", found, expected=f"{pieces + family.spare_rows:,}", where=checkpoint.path)
    return [named if item.code == "rows-vs-tokenizer" else item for item in items]


def has_second_spare_row(subject: CheckSubject, pieces: int) -> bool:
    """Whether the row behind the last piece was provably never trained. Sizes alone do not show that: a tokenizer that
    lacks one piece of those that were learnt gives the same numbers.
    """
    checkpoint, family = subject.checkpoint, subject.family
    if checkpoint is None or family is None:
        return False
    optimizer = read_optimizer_snapshot(checkpoint)
    tables = list(find_text_tables(checkpoint, family).values())
    moments = read_row_moments(checkpoint, optimizer, tables) if optimizer else []
    own = next((one.second for one in moments if one.tensor == family.graft_points[0].tensor), None)
    return is_unread_row(subject, pieces, own)


def _spare_row_note(family: Family, pieces: int, checkpoint: Checkpoint) -> list[Finding]:
    note = RowCount(pieces, 0, family.spare_rows).spare_note()
    return [finding("spare-row", note, where=checkpoint.path)] if note else []


def _config_size_findings(stated: StatedNumber, family: Family, pieces: int, where: str) -> list[Finding]:
    number = stated.count
    if number == pieces:
        return []
    found = f"{stated.key} is {number:,}, the tokenizer has {pieces:,} pieces (ids 0 to {pieces - 1:,})"
    twice = family.spare_rows and number == pieces + family.spare_rows
    code = "spare-counted-twice" if twice else "config-vs-tokenizer"
    return [finding(code, found, expected=f"{pieces:,}", where=where)]


def _stand_in_findings(subject: CheckSubject) -> list[Finding]:
    checkpoint, family, tokenizer = subject.checkpoint, subject.family, subject.tokenizer
    if checkpoint is None or family is None:
        return []
    found = f"{checkpoint.path.name} holds {stand_in_parts(checkpoint.tensors)}"
    lacking = ", ".join(point.tensor for point in family.graft_points)
    findings = [finding("checkpoint-stand-in", found, expected=f"{lacking} and the body", where=checkpoint.path)]
    table = next(iter(find_text_tables(checkpoint, family).values()), None)
    if table is not None and tokenizer is not None and table.shape[0] != tokenizer.size:
        found = f"{table.name} has {table.shape[0]:,} rows, the tokenizer {tokenizer.size:,} pieces"
        code = "ids-past-table" if table.shape[0] < tokenizer.size else "rows-vs-tokenizer"
        findings.append(finding(code, found, expected=f"{tokenizer.size:,} rows", where=checkpoint.path))
    return findings


_VALUE_BLOCK_ROWS = 4096


def nonfinite_row_findings(subject: CheckSubject) -> list[Finding]:
    """Rows with values that are not finite, in the checkpoint that was given, else in the base's."""
    checkpoint, family = subject.any_checkpoint, subject.family
    if checkpoint is None or family is None:
        return []
    findings: list[Finding] = []
    for info in find_text_tables(checkpoint, family).values():
        bad: list[int] = []
        for start in range(0, info.shape[0], _VALUE_BLOCK_ROWS):
            stop = min(start + _VALUE_BLOCK_ROWS, info.shape[0])
            finite = np.isfinite(checkpoint.read_rows(info.name, start, stop)).reshape(stop - start, -1).all(axis=1)
            bad += (np.flatnonzero(~finite) + start).tolist()
        if bad:
            found = f"{len(bad):,} of {info.shape[0]:,} rows of {info.name} are not finite, the first is row {bad[0]:,}"
            findings.append(finding("tensor-not-finite", found, where=checkpoint.path))
    return findings


_MAX_NAMED_GLOBALS = 5


def pickle_findings(subject: CheckSubject) -> list[Finding]:
    """Names that loading a file would import and that could run anything."""
    findings: list[Finding] = []
    for path in subject.checkpoint_paths or ():
        try:
            names = find_dangerous_globals(path)
        except VoxgraftError as error:
            findings.append(error.finding)
            continue
        if names:
            more = f" and {len(names) - _MAX_NAMED_GLOBALS} more" if len(names) > _MAX_NAMED_GLOBALS else ""
            found = f"{path.name} would import {', '.join(names[:_MAX_NAMED_GLOBALS])}{more}"
            findings.append(finding("pickle-code", found, expected="tensors and plain values", where=path))
    return findings


def checkpoint_extra_findings(subject: CheckSubject) -> list[Finding]:
    """A list of everything beside the tensors."""
    checkpoint = subject.checkpoint
    if checkpoint is None or not checkpoint.extras:
        return []
    listed = "; ".join(f"{extra.name}: {extra.description}" for extra in checkpoint.extras)
    found = f"{len(checkpoint.extras)} things beside the model's tensors: {listed}"
    return [finding("checkpoint-extras", found, where=checkpoint.path)]


_RATE_SETTINGS = {"rows": "lr_rows", "adapter": "lr_adapter", "body": "lr_backbone"}
# This many times outside the range nothing good can come of it: an error, not a warning.
_ERROR_FACTOR = 10.0


def run_rate_findings(subject: CheckSubject) -> list[Finding]:
    """The rates of the parts that the run's mode trains."""
    family, run = subject.family, subject.run
    if family is None or run is None:
        return []
    train = subject.settings.train
    # In merged mode an adapter is trained and folded in, unless the body itself is.
    second = "body" if train.mode == "merged" and train.full_body else "adapter"
    findings: list[Finding] = []
    for part in ("rows",) if train.mode == "rows-only" else ("rows", second):
        name = _RATE_SETTINGS[part]
        findings += _rate_findings(family, part, f"train.{name}", getattr(train, name), run / RUN_FILE)
    return findings


def old_rate_findings(subject: CheckSubject) -> list[Finding]:
    """An old trainer has one rate for everything, so it is judged as a rate for the body."""
    old, family = subject.old, subject.family
    if old is None or family is None or old.learning_rate is None:
        return []
    stated = old.learning_rate
    findings = _rate_findings(family, "body", f"{stated.key} (it moves the body too)", stated.value, old.path)
    if stated.as_text:
        found = f"{stated.key} is written as {stated.value:g} without a point"
        findings.append(finding("rate-as-text", found, where=old.path))
    return findings


def _rate_findings(family: Family, part: str, name: str, rate: float, where: Path) -> list[Finding]:
    allowed = family.rates[part]
    if allowed.low <= rate <= allowed.high:
        return []
    side = "below" if rate < allowed.low else "above"
    far = not allowed.low / _ERROR_FACTOR <= rate <= allowed.high * _ERROR_FACTOR
    found = f"{name} is {rate:g}, {side} the range for the {part} of {family.name}"
    expected = f"{allowed.low:g} to {allowed.high:g}"
    level: Level = "error" if far else "warning"
    return [finding("rate-out-of-range", found, expected=expected, where=where, level=level)]


_DEFAULT_STEPS = 100_000


def freeze_findings(subject: CheckSubject) -> list[Finding]:
    """The boundary against the base's size, the switch, and the leak."""
    old = subject.old
    if old is None:
        return []
    base = subject.base_pieces or (old.original_pieces.count if old.original_pieces else None)
    findings = _freeze_boundary_findings(old, base, subject.grown.size if subject.grown else None)
    rate, decay = old.learning_rate, old.weight_decay
    if old.freeze_original is False:
        found = "freeze_original_embeddings is false: the base's text rows are trained on the new language"
        findings.append(finding("freeze-off", found, expected="true", where=old.path))
    elif (old.freeze_original or old.freeze_until is not None) and rate and decay and rate.value * decay.value:
        # AdamW takes `rate x decay` of every value at every step, whatever its gradient.
        steps = old.steps.count if old.steps and old.steps.count else _DEFAULT_STEPS
        left = math.exp(-rate.value * decay.value * steps)
        found = (
            f"a rate of {rate.value:g} with weight decay {decay.value:g} leaves {left:.2%} of a masked row "
            f"after {steps:,} steps"
        )
        findings.append(finding("freeze-leaks", found, expected="100%", where=old.path))
    return findings


def _freeze_boundary_findings(old: OldConfigNumbers, base: int | None, pieces: int | None) -> list[Finding]:
    stated = old.freeze_until
    if stated is None:
        return []
    at, where = stated.count, old.path
    pieces = pieces or (old.pieces.count if old.pieces else None)
    if pieces is not None and at > pieces:
        found, expected = (
            f"past the {pieces:,} pieces there are; old trainers then lower it by themselves",
            base or pieces,
        )
    elif base is not None and at < base:
        found, expected = f"the base has {base:,} pieces: base rows {at:,} to {base - 1:,} are trained", base
    elif base is not None and at > base:
        found, expected = f"the base has {base:,} pieces: new rows {base:,} to {at - 1:,} never learn", base
    elif base is not None:
        found = f"{stated.key} is {at:,}, the base's number of pieces; voxgraft needs no boundary"
        return [finding("freeze-needless", found, where=where)]
    else:
        return []
    return [finding("freeze-boundary", f"{stated.key} is {at:,}, {found}", expected=f"{expected:,}", where=where)]
