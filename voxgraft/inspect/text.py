"""Checks of texts and sizes: unknown letters and digits in texts; tokenizer, text tables and configs agree on one size.

Also the checks of a checkpoint file that need neither base nor text: pickled code, values that are not finite, extras.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import Checkpoint
from voxgraft.checkpoints.load import find_dangerous_globals
from voxgraft.config.run import find_overrides
from voxgraft.core import progress
from voxgraft.core.errors import Finding, Level, VoxgraftError, finding
from voxgraft.core.files import is_file, is_folder
from voxgraft.core.languages import describe_character
from voxgraft.core.results import Table, pluralize
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.manifest import resolve_manifest_path
from voxgraft.dataset.run_data import train_setting_findings
from voxgraft.graft.folder import (
    GRAFT_CARD_NAME,
    ROWS_NAME,
    Graft,
    find_pronunciations,
    graft_language_findings,
    read_pronunciations,
)
from voxgraft.graft.rows import RowCount, text_table_findings
from voxgraft.inspect.body import read_optimizer_snapshot, read_row_moments
from voxgraft.inspect.rows import are_last_rows_unread, is_unread_row
from voxgraft.inspect.subject import CheckSubject, StatedNumber, are_rows_finite, find_text_tables, is_stand_in
from voxgraft.models import stand_in_parts
from voxgraft.models.base import Family
from voxgraft.text.encoder import TextEncoder, check_text_language, prove_text_encoder
from voxgraft.text.normalize import TextRules
from voxgraft.tokenizers import WORD_START, TextCorpus, Tokenizer
from voxgraft.tokenizers.formats import FlatMapTokenizer
from voxgraft.tokenizers.prove import check_word_boundaries, find_unknown_letters


def size_table(subject: CheckSubject) -> Table | None:
    """All sizes side by side, for people."""
    rows: list[tuple[str, str, str]] = []
    if subject.old and subject.old.pieces:
        rows.append((subject.old.pieces.key, f"{subject.old.pieces.whole:,}", subject.old.path.name))
    if subject.base_tokenizer:
        rows.append(
            ("base tokens", f"{subject.base_tokenizer.size:,}", f"{subject.base_tokenizer.path.name} of the base")
        )
    if subject.grown:
        rows.append(("extended tokens", f"{subject.grown.size:,}", subject.grown.path.name))
    for checkpoint in filter(None, (subject.base_checkpoint, subject.checkpoint)):
        tables = find_text_tables(checkpoint, subject.family).values() if subject.family else ()
        # A trained file often has the name of the base's.
        file = f"{checkpoint.path.name}{' of the base' if checkpoint is subject.base_checkpoint else ''}"
        rows += [(f"rows of {info.name}", f"{info.shape[0]:,}", file) for info in tables]
    return Table(("size", "number", "file"), tuple(rows)) if rows else None


def base_size_findings(subject: CheckSubject) -> list[Finding]:
    """The base on its own: its tokenizer, its tables, its own config."""
    base, tokenizer, checkpoint = subject.base, subject.base_tokenizer, subject.base_checkpoint
    if base is None or tokenizer is None or checkpoint is None or subject.family is None:
        return []
    findings = _row_count_findings(checkpoint, subject.family, tokenizer.size)
    config_pieces = subject.family.read_config_pieces(base.config) if base.config else None
    if config_pieces is not None:
        number = StatedNumber("the number of text tokens in the base's config", config_pieces)
        findings += _config_size_findings(number, subject.family, tokenizer.size, str(base.config))
    if not findings and subject.checkpoint is None:
        findings += _spare_row_note(subject.family, tokenizer.size, checkpoint)
    return findings


def row_size_findings(subject: CheckSubject) -> list[Finding]:
    """The checkpoint's tables against the tokenizer; without a tokenizer against each other."""
    checkpoint, family, tokenizer = subject.checkpoint, subject.family, subject.tokenizer
    if checkpoint is None or family is None:
        return []
    table = next(iter(find_text_tables(checkpoint, family).values()), None)
    if is_stand_in(checkpoint):
        found = f"{checkpoint.path.name} contains {stand_in_parts(checkpoint.tensors)}"
        tensor_names = ", ".join(point.tensor for point in family.graft_points)
        findings = [
            finding("checkpoint-stand-in", found, expected=f"{tensor_names} and the backbone", where=checkpoint.path)
        ]
        if table is not None and tokenizer is not None and table.shape[0] != tokenizer.size:
            found = f"{table.name} has {table.shape[0]:,} rows, but the tokenizer has {tokenizer.size:,} tokens"
            code = "ids-past-table" if table.shape[0] < tokenizer.size else "rows-vs-tokenizer"
            findings.append(finding(code, found, expected=f"{tokenizer.size:,} rows", where=checkpoint.path))
        return findings
    pieces = tokenizer.size if tokenizer else table.shape[0] - family.spare_rows if table else 0
    heads = tuple(f"{point.tensor} is " for point in family.graft_points if point.role != "embedding")
    findings = [
        finding("head-missing", item.found, where=item.where)  # of a head nothing is needed that the base lacks
        if item.code in ("tensor-missing", "tensor-shape") and item.found.startswith(heads)
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
    # Start and stop of a text, which the model learned on its own ids.
    pairs = ((old.start_text, family.start_id), (old.stop_text, family.stop_id))
    wrong = [
        (config_number, own) for config_number, own in pairs if config_number is not None and config_number.whole != own
    ]
    findings: list[Finding] = []
    if wrong:
        found = ", ".join(f"{config_number.key} is {config_number.whole:,}" for config_number, _ in wrong)
        expected = ", ".join(f"{own:,}" for _, own in wrong)
        findings.append(finding("config-start-stop", found, expected=expected, where=old.path))
    if old.pieces is None:
        return findings
    if tokenizer is not None:
        findings += _config_size_findings(old.pieces, family, tokenizer.size, str(old.path))
    if subject.any_checkpoint is None:
        return findings
    table = next(iter(find_text_tables(subject.any_checkpoint, family).values()), None)
    num_rows = old.pieces.whole + family.spare_rows
    if table is None or table.shape[0] == num_rows or (family.spare_rows and table.shape[0] == old.pieces.whole):
        return findings
    sum_of = f"{old.pieces.whole:,} + {family.spare_rows} unused = " if family.spare_rows else ""
    found = f"{old.pieces.key} is {old.pieces.whole:,}, {table.name} has {table.shape[0]:,} rows"
    where = f"{old.path} and {subject.any_checkpoint.path}"
    tokens = table.shape[0] - family.spare_rows
    cure = f"set {old.pieces.key} to {tokens} in the config, or extend the checkpoint with `voxgraft extend`."
    return [*findings, finding("config-vs-rows", found, expected=f"{sum_of}{num_rows:,} rows", where=where, cure=cure)]


def graft_size_findings(subject: CheckSubject) -> list[Finding]:
    """The graft's rows against the base's tables. That its own parts fit together was seen when it was opened."""
    graft, family = subject.graft, subject.family
    if graft is None or subject.base_checkpoint is None or subject.base_tokenizer is None:
        return []
    if family is not None and family.name != graft.card.family:
        found = f"the graft is for {graft.card.family}, the base is {family.name}"
        return [finding("graft-mismatch", found, where=graft.folder)]
    findings: list[Finding] = []
    if graft.card.base_pieces != subject.base_tokenizer.size:
        found = f"the graft is for a base of {graft.card.base_pieces:,} tokens"
        expected = f"{subject.base_tokenizer.size:,}, as {subject.base_tokenizer.path.name} has"
        findings.append(finding("graft-mismatch", found, expected=expected, where=graft.folder))
    where = graft.folder / ROWS_NAME
    for name, rows in graft.rows.items():
        info = subject.base_checkpoint.tensors.get(name)
        if info is not None and info.shape[1:] != rows.shape[1:]:
            found = f"rows of {name} have the shape {list(rows.shape[1:])}"
            findings.append(finding("graft-mismatch", found, expected=f"{list(info.shape[1:])}", where=where))
        if not np.isfinite(rows).all():
            findings.append(finding("tensor-not-finite", f"{name} contains values that are not finite", where=where))
    return findings


def _row_count_findings(
    checkpoint: Checkpoint, family: Family, pieces: int, subject: CheckSubject | None = None
) -> list[Finding]:
    """`row_findings`, with a row too many named for what it is."""
    items = text_table_findings(checkpoint, family, pieces)
    doubled = pieces + 2 * family.spare_rows
    sizes = {info.shape[0] for info in find_text_tables(checkpoint, family).values()}
    is_doubled = bool(family.spare_rows) and sizes == {doubled}
    if len(sizes) == 1 and not is_doubled and subject is not None and (count := count_padding_rows(subject, pieces)):
        found = f"{max(sizes):,} rows for {pieces:,} tokens: the last {count:,} rows were never used"
        padded = finding("rows-padded", found, expected=f"{pieces + family.spare_rows:,}", where=checkpoint.path)
        return [padded if item.code == "rows-vs-tokenizer" else item for item in items]
    if not is_doubled:
        return items
    if subject is not None and subject.base_checkpoint is not None and not has_second_spare_row(subject, pieces):
        return [replace(item, found=f"{item.found}; row {pieces:,} is not a second unused row") for item in items]
    found = f"{doubled:,} rows for {pieces:,} tokens: the unused last row was added twice"
    named = finding("spare-counted-twice", found, expected=f"{pieces + family.spare_rows:,}", where=checkpoint.path)
    return [named if item.code == "rows-vs-tokenizer" else item for item in items]


def has_second_spare_row(subject: CheckSubject, pieces: int) -> bool:
    """Whether the row behind the last piece was provably never trained. Sizes alone do not show that: a tokenizer that
    lacks one piece of those that were learned gives the same numbers.
    """
    return is_unread_row(subject, pieces, _embedding_moments(subject))


def count_padding_rows(subject: CheckSubject, pieces: int) -> int:
    """Rows behind the pieces and the spare row, as a table that is filled up to a multiple of 64 has them; 0 where one
    of them may have been trained.
    """
    checkpoint, family = subject.checkpoint, subject.family
    table = find_text_tables(checkpoint, family).get(family.graft_points[0]) if checkpoint and family else None
    # Without a tokenizer of its own, all that is known of a checkpoint is the base's number of pieces.
    if table is None or family is None or subject.grown is None:
        return 0
    count = table.shape[0] - pieces - family.spare_rows
    return count if count > 0 and are_last_rows_unread(subject, count, _embedding_moments(subject)) else 0


def _embedding_moments(subject: CheckSubject) -> NDArray[np.float32] | None:
    """Length of the second moment of each row of the embedding; None where the optimizer does not say."""
    checkpoint, family = subject.checkpoint, subject.family
    optimizer = read_optimizer_snapshot(checkpoint) if checkpoint is not None else None
    if checkpoint is None or family is None or optimizer is None:
        return None
    moments = read_row_moments(checkpoint, optimizer, list(find_text_tables(checkpoint, family).values()))
    return next((one.second for one in moments if one.tensor == family.graft_points[0].tensor and one.finite), None)


def _spare_row_note(family: Family, pieces: int, checkpoint: Checkpoint) -> list[Finding]:
    note = RowCount(pieces, 0, family.spare_rows).spare_note()
    return [finding("spare-row", note, where=checkpoint.path)] if note else []


def _config_size_findings(config_number: StatedNumber, family: Family, pieces: int, where: str) -> list[Finding]:
    number = config_number.whole
    if number == pieces:
        return []
    found = f"{config_number.key} is {number:,}, but the tokenizer has {pieces:,} tokens (ids 0 to {pieces - 1:,})"
    twice = family.spare_rows and number == pieces + family.spare_rows
    code = "spare-counted-twice" if twice else "config-vs-tokenizer"
    return [finding(code, found, expected=f"{pieces:,}", where=where)]


_VALUE_BLOCK_ROWS = 4096


def nonfinite_row_findings(subject: CheckSubject) -> list[Finding]:
    """Rows with values that are not finite, in the checkpoint that was given, else in the base's."""
    checkpoint, family = subject.any_checkpoint, subject.family
    if checkpoint is None or family is None:
        return []
    findings: list[Finding] = []
    for info in find_text_tables(checkpoint, family).values():
        bad_rows: list[int] = []
        large = False
        for start in range(0, info.shape[0], _VALUE_BLOCK_ROWS):
            stop = min(start + _VALUE_BLOCK_ROWS, info.shape[0])
            rows = checkpoint.read_rows(info.name, start, stop)
            not_finite = ~are_rows_finite(rows)
            bad_rows += (np.flatnonzero(not_finite) + start).tolist()
            large = large or bool((not_finite & np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))).any())
        if bad_rows:
            how = "not finite" + (", or too large to compute with" if large else "")
            found = f"{len(bad_rows):,} of {info.shape[0]:,} rows of {info.name} are {how}"
            found += f", the first is row {bad_rows[0]:,}"
            findings.append(finding("tensor-not-finite", found, where=checkpoint.path))
    return findings


_MAX_NAMED_GLOBALS = 5


_NEVER_EXECUTE = "do not open it with torch.load(weights_only=False)."
# By what was found: the base's own file, tensors by name, or an object that only its own program can read.
_PICKLE_CURES = {
    "base": f"{_NEVER_EXECUTE} Get the base again from its publisher: `voxgraft download --help` lists the bases.",
    "tensors": f"{_NEVER_EXECUTE} Copy the tensors without executing the file: "
    "`voxgraft repair CHECKPOINT --base BASE --output NEW.safetensors`.",
    "object": f"{_NEVER_EXECUTE} voxgraft finds no state dict in the file, so `repair` cannot convert it. "
    "Ask the author of the file for model.state_dict() in a .safetensors file.",
}


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
            found = f"loading {path.name} would import {', '.join(names[:_MAX_NAMED_GLOBALS])}{more}"
            own = path == subject.settings.checkpoint
            cure = (
                _PICKLE_CURES["base"]
                if not own
                else _PICKLE_CURES["object" if subject.checkpoint is None else "tensors"]
            )
            expected = "tensors and plain values"
            findings.append(finding("pickle-code", found, expected=expected, where=path, cure=cure))
    return findings


def checkpoint_extra_findings(subject: CheckSubject) -> list[Finding]:
    """A list of everything beside the tensors."""
    checkpoint = subject.checkpoint
    if checkpoint is None or not checkpoint.extras:
        return []
    listed = "; ".join(f"{extra.name} ({extra.description})" for extra in checkpoint.extras)
    found = f"besides the model's tensors, the file has {pluralize(len(checkpoint.extras), 'other object')}: {listed}"
    return [finding("checkpoint-extras", found, where=checkpoint.path)]


_RATE_SETTINGS = {"rows": "lr_rows", "adapter": "lr_adapter", "body": "lr_backbone"}
# This many times outside the range nothing good can come of it: an error, not a warning.
_ERROR_FACTOR = 10.0


def run_setting_findings(subject: CheckSubject) -> list[Finding]:
    """What every command on a run needs, and settings of training that contradict each other."""
    run, settings = subject.run, subject.settings
    if run is None:
        return []
    findings: list[Finding] = []
    # A graft states its own language.
    language = settings.language if subject.graft is None else subject.graft.card.language
    for name, value, fix in (
        ("base", settings.base, "the folder of a base (`voxgraft download --help` lists those that can be downloaded)"),
        ("language", language, "the code of the new language, such as am"),
    ):
        if value is None:
            cure = f"set `{name}` in {RUN_FILE} to {fix}."
            findings.append(finding("config-missing", f"`{name}` is not given", where=run / RUN_FILE, cure=cure))
    from_flags = find_overrides(RunFolder(run), settings)
    is_flag = any(f"train.{name}" in from_flags for name in ("steps", "epochs", "mode", "full_backbone"))
    return findings + train_setting_findings(settings.train, "command line" if is_flag else run / RUN_FILE)


def run_rate_findings(subject: CheckSubject) -> list[Finding]:
    """The rates of the parts that the run's mode trains."""
    family, run = subject.family, subject.run
    if family is None or run is None:
        return []
    train = subject.settings.train
    # In merged mode an adapter is trained and folded in, unless the backbone itself is.
    second = "body" if train.mode == "merged" and train.full_backbone else "adapter"
    findings: list[Finding] = []
    from_flags = find_overrides(RunFolder(run), subject.settings)
    for part in ("rows",) if train.mode == "rows-only" else ("rows", second):
        name = _RATE_SETTINGS[part]
        where = "command line" if f"train.{name}" in from_flags else run / RUN_FILE
        findings += _rate_findings(family, part, f"train.{name}", getattr(train, name), where)
    return findings


def old_rate_findings(subject: CheckSubject) -> list[Finding]:
    """An old trainer has one rate for everything, so it is judged as a rate for the backbone."""
    old, family = subject.old, subject.family
    if old is None or family is None or old.learning_rate is None:
        return []
    rate = old.learning_rate
    findings = _rate_findings(family, "body", f"{rate.key} (it applies to the backbone too)", rate.value, old.path)
    if rate.as_text:
        found = f"{rate.key} is written as {rate.value:g} without a decimal point"
        findings.append(finding("rate-as-text", found, where=old.path))
    return findings


def _rate_findings(family: Family, part: str, name: str, rate: float, where: Path | str) -> list[Finding]:
    low, high = family.rates[part]
    if low <= rate <= high:
        return []
    side = "below" if rate < low else "above"
    far = not low / _ERROR_FACTOR <= rate <= high * _ERROR_FACTOR
    found = f"{name} is {rate:g}, {side} the range for the {'backbone' if part == 'body' else part} of {family.name}"
    expected = f"{low:g} to {high:g}"
    level: Level = "error" if far else "warning"
    return [finding("rate-out-of-range", found, expected=expected, where=where, level=level)]


_DEFAULT_STEPS = 100_000


def freeze_findings(subject: CheckSubject) -> list[Finding]:
    """The boundary against the base's size, the switch, and the leak."""
    old = subject.old
    if old is None:
        return []
    base = subject.base_pieces or (old.original_pieces.whole if old.original_pieces else None)
    pieces = (subject.grown.size if subject.grown else None) or (old.pieces.whole if old.pieces else None)
    findings: list[Finding] = []
    if (boundary := old.freeze_until) is not None:
        first_trained = boundary.whole
        found, expected = "", base or pieces or 0
        if pieces is not None and first_trained > pieces:
            found = f"but the tokenizer has {pieces:,} tokens; the other trainers then lower the value silently"
        elif base is not None and first_trained < base:
            found = f"but the base has {base:,} tokens: base rows {first_trained:,} to {base - 1:,} are trained"
        elif base is not None and first_trained > base:
            found = f"but the base has {base:,} tokens: new rows {base:,} to {first_trained - 1:,} are never trained"
        elif base is not None:
            needless = (
                f"{boundary.key} is {first_trained:,}, the base's number of tokens; voxgraft does not need this setting"
            )
            findings.append(finding("freeze-needless", needless, where=old.path))
        if found:
            found = f"{boundary.key} is {first_trained:,}, {found}"
            findings.append(finding("freeze-boundary", found, expected=f"{expected:,}", where=old.path))
    rate, decay = old.learning_rate, old.weight_decay
    if old.freeze_original is False:
        found = "freeze_original_embeddings is false: the base's text rows are trained on the new language"
        findings.append(finding("freeze-off", found, expected="true", where=old.path))
    elif (old.freeze_original or old.freeze_until is not None) and rate and decay and rate.value * decay.value:
        # AdamW takes `rate x decay` of every value at every step, whatever its gradient.
        steps = old.steps.whole if old.steps and old.steps.whole else _DEFAULT_STEPS
        left = math.exp(-rate.value * decay.value * steps)
        found = (
            f"with learning rate {rate.value:g} and weight decay {decay.value:g}, a masked row shrinks to {left:.2%} "
            f"in {steps:,} steps"
        )
        findings.append(finding("freeze-leaks", found, expected="100%", where=old.path))
    return findings


_NUM_EXAMPLES = 3
_MAX_NAMED_CHARACTERS = 10
# Tokens; a longer sentence is cut, so that a report stays readable.
_MAX_SHOWN_TOKENS = 60


def text_findings(subject: CheckSubject) -> list[Finding]:
    """Shares, unknown characters with their counts, and three sentences piece by piece."""
    texts, text_encoder, tokenizer = subject.texts, subject.text_encoder, subject.tokenizer
    if texts is None or text_encoder is None or tokenizer is None:
        return []
    counts: Counter[int] = Counter()
    unknown: Counter[str] = Counter()
    with progress.progress_task("encoding the texts", len(texts.sentences)) as advance:
        for sentence in texts.sentences:
            ids = encode_sentence(text_encoder, sentence)
            counts.update(ids)
            if tokenizer.unknown_id in ids:
                unknown.update(tokenizer.unknown_text(text_for_tokenizer(text_encoder, sentence)))
            advance(1)
    where = ", ".join(map(str, subject.text_paths))
    new_text, pieces = text_encoder.new_text(texts.sentences), subject.base_pieces
    total, num_unknown = counts.total(), counts[tokenizer.unknown_id]
    findings = [
        *check_word_boundaries(new_text),
        *digit_findings(text_encoder.rules, texts.sentences, where),
        *(check_text_language(text_encoder.language, texts.sentences) if text_encoder.language else []),
    ]
    if subject.grown is None and subject.pending_rules is not None and text_encoder.language is not None:
        return [*findings, *_pending_character_findings(text_encoder, texts, unknown, where)]
    # How many tokens are on new rows, on base rows, and unknown.
    tail = f"{num_unknown / max(total, 1):.1%} unknown ({num_unknown:,})"
    if total and pieces is None:
        found = f"of {total:,} tokens, {tail}; to count tokens with new rows, give --base"
        findings.append(finding("text-share", found, where=where))
    elif total and pieces is not None:
        new = sum(count for token, count in counts.items() if token >= pieces)
        new_text_tokens = new - sum(
            count for token, count in counts.items() if token >= pieces and token in tokenizer.control_ids
        )
        old = (total - new - num_unknown) / total
        found = f"of {total:,} tokens, {new / total:.1%} have new rows, {old:.1%} have base rows, {tail}"
        findings.append(finding("text-share", found, where=where))
        # Every text of the new language has the tag.
        new_rows = tokenizer.size - pieces - sum(token >= pieces for token in tokenizer.control_ids)
        if not new_text_tokens and new_rows > 0:
            found = f"none of {total:,} tokens has one of the {new_rows:,} new rows for letters"
            findings.append(finding("text-off-new-rows", found, where=where))
    is_extended = subject.settings.tokenizer.file is not None or (
        subject.run is not None and is_folder(RunFolder(subject.run).graft)
    )
    # Letters and signs separately, as in `prove`: a letter of the language without a piece is an error.
    letters = frozenset(find_unknown_letters(tokenizer, unknown, new_text))
    for code, kind in (("proof-unknown-letters", "letters"), ("proof-unknown-symbols", "signs")):
        missing = [
            (sign, count)
            for sign, count in unknown.most_common()
            if (sign in letters) == (kind == "letters") and not sign.isspace() and sign != WORD_START
        ]
        if not missing:
            continue
        message = f"{len(missing):,} {kind} of the text have no token: {_list_characters(missing)}"
        item = finding(
            code, f"{message} ({num_unknown:,} unknown tokens in all)", expected="a token for each", where=where
        )
        if subject.grown is None and is_extended:
            continue  # the tokenizer that has these pieces cannot be read, which is reported
        if subject.grown is None:  # the base is not meant to spell the new language yet
            item = replace(
                item, level="warning", cure="extend the tokenizer: `voxgraft graft RUN` adds tokens for them."
            )
        findings.append(item)
    # The first, the middle and the last sentence in full.
    last = len(texts.sentences) - 1
    chosen = (
        dict.fromkeys(round(position * last / (_NUM_EXAMPLES - 1)) for position in range(_NUM_EXAMPLES))
        if last >= 0
        else {}
    )
    for sentence in (texts.sentences[position] for position in chosen):
        spelled = format_pieces(tokenizer, encode_sentence(text_encoder, sentence))
        findings.append(finding("text-spelled", f"{sentence!r:.200} is encoded as: {spelled}"))
    return findings


def _pending_character_findings(
    text_encoder: TextEncoder, texts: TextCorpus, unknown: Counter[str], where: str
) -> Iterator[Finding]:
    """Before there is a graft: which characters its tokenizer will add, and which will still have no token."""
    from voxgraft.tokenizers.train import plan_characters  # what learns tokenizers is not needed by other checks

    base = text_encoder.base
    prepared = map(text_encoder.prepare, texts.sentences)
    planned = set(plan_characters(base, text_encoder.prepare, str(text_encoder.language), prepared).new)
    added = f"{pluralize(len(planned), 'character')} that {base.path.name} of the base lacks"
    text = f"the run has no graft yet; its tokenizer will get tokens for {added}"
    if not planned:
        text = "the run has no graft yet; the base has a token for every letter of the language"
    yield finding("text-share", text, where=where)
    left = [
        (sign, count)
        for sign, count in unknown.most_common()
        if sign not in planned and not sign.isspace() and sign != WORD_START
    ]
    if left:
        found = f"{pluralize(len(left), 'character')} will have no token: {_list_characters(left)}"
        yield finding("proof-unknown-symbols", found, expected="a token for each", where=where)


def _list_characters(counted: Sequence[tuple[str, int]]) -> str:
    """The first characters with their counts, and how many more there are."""
    first = counted[:_MAX_NAMED_CHARACTERS]
    listed = "; ".join(f"{describe_character(sign)} ({count:,}×)" for sign, count in first)
    return f"{listed}; and {len(counted) - len(first):,} more" if len(counted) > len(first) else listed


def text_rule_findings(subject: CheckSubject) -> list[Finding]:
    """Whether the graft states its text rules, and whether the clips were imported by the same ones."""
    graft, run = subject.graft, subject.run
    if graft is None:
        return []
    if graft.card.text is None:
        return [
            finding("text-rules-missing", f"{GRAFT_CARD_NAME} has no rules for text normalization", where=graft.folder)
        ]
    findings = pronunciation_findings(graft)
    if run is None:
        return findings
    manifest = resolve_manifest_path(subject.settings.data.dataset, RunFolder(run).data)
    used = {
        str(rules.get("text"))
        for journal in DatasetFolder(manifest.parent).journals()
        if isinstance(rules := (journal.source or {}).get("rules"), dict)
        and (journal.source or {}).get("options", {}).get("language") == graft.card.language
    }
    # Pronunciations are applied when texts are encoded, not when clips are imported.
    imported = replace(graft.card.rules, pronunciations={}).identity
    other = sorted(used - {imported})
    if not other:
        return findings
    found = f"clips were imported with the rules {', '.join(other)}"
    return [*findings, finding("text-rules-import", found, expected=imported, where=manifest.parent)]


def pronunciation_findings(graft: Graft) -> list[Finding]:
    """Listed words that normalization writes otherwise: a run's list follows it, and a graft's own does not."""
    path = find_pronunciations(graft.folder)
    if path is None or not is_file(path):
        return []
    rules = graft.card.rules
    changed = {word: now for word in read_pronunciations(path) if (now := rules.normalize_word(word)) != word}
    if not changed:
        return []
    shown = ", ".join(f"{word!r:.40} becomes {now!r:.40}" for word, now in list(changed.items())[:_NUM_EXAMPLES])
    found = f"normalization changes {pluralize(len(changed), 'listed word')}: {shown}"
    if path.parent != graft.folder:
        return [
            finding(
                "pronunciations-changed", f"{found}; the list is used with the new spelling", where=path, level="note"
            )
        ]
    return [finding("pronunciations-changed", f"{found}; in the graft's list these words are never found", where=path)]


def digit_findings(rules: TextRules, sentences: Sequence[str], where: str = "") -> list[Finding]:
    """Digits that the text rules leave in sentences."""
    left = [sentence for sentence in sentences if any(map(str.isdecimal, rules.apply(sentence)))]
    if not left:
        return []
    example = next(part for part in rules.apply(left[0]).split() if any(map(str.isdecimal, part)))
    found = f"{len(left):,} of {len(sentences):,} texts keep digits, the first {example!r:.40}"
    return [finding("text-digits", found, where=where)]


def encode_sentence(text_encoder: TextEncoder, sentence: str) -> list[int]:
    """Ids of a sentence of the new language, with its tag where the language is known and has one."""
    tokenizer = text_encoder.grown or text_encoder.base
    if text_encoder.language is not None and not isinstance(tokenizer, FlatMapTokenizer):
        return text_encoder.encode(sentence, text_encoder.language)
    return tokenizer.encode(text_for_tokenizer(text_encoder, sentence))


def text_for_tokenizer(text_encoder: TextEncoder, sentence: str) -> str:
    """The text that the tokenizer receives. The forks look up characters of a flat map in the raw text."""
    return sentence if isinstance(text_encoder.grown, FlatMapTokenizer) else text_encoder.prepare(sentence)


def format_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """A spelling for people: pieces with their ids, unknowns marked."""
    unknown = "[UNK]"
    parts = [f"{unknown if token == tokenizer.unknown_id else tokenizer.shown(token)} ({token})" for token in ids]
    more = f" ... ({len(parts):,} tokens)" if len(parts) > _MAX_SHOWN_TOKENS else ""
    return ", ".join(parts[:_MAX_SHOWN_TOKENS]) + more


# What a proof would say a second time.
_REPORTED_ELSEWHERE = frozenset({"tokenizer-flat-map", "tokenizer-gaps", "tag-splits"})


def tokenizer_findings(subject: CheckSubject) -> list[Finding]:
    """Everything that shows without the base: a flat map, gaps, moved specials, deleted ids, a tag that splits."""
    tokenizer, family, language = subject.tokenizer, subject.family, subject.settings.language
    if tokenizer is None:
        return []
    where, ids = tokenizer.path, tokenizer.ids
    findings: list[Finding] = []
    if isinstance(tokenizer, FlatMapTokenizer):
        found = f"{where.name} is a flat map of {len(ids):,} tokens to ids, without merges"
        findings.append(finding("tokenizer-flat-map", found, where=where))
    # Holes that the base has are as published; without the base they look like any others.
    known = {*subject.base_tokenizer.gaps} if subject.base_tokenizer is not None else set()
    gaps = sorted({*tokenizer.gaps} - known)
    if gaps and not (subject.base_tokenizer is None and family is not None and family.has_id_gaps):
        found = (
            f"{len(ids):,} tokens, but ids up to {tokenizer.size - 1:,}: {len(gaps):,} ids "
            f"have no token, the first is {gaps[0]:,}"
        )
        findings.append(finding("tokenizer-gaps", found, expected="ids without gaps", where=where))
    if family is None:
        return findings
    if moved := {piece: at for piece, at in family.special_ids.items() if ids.get(piece) != at}:
        now = ", ".join(f"{piece} {f'has id {ids[piece]}' if piece in ids else 'is missing'}" for piece in moved)
        expected = ", ".join(f"{piece} with id {at}" for piece, at in moved.items())
        findings.append(finding("special-ids-moved", now, expected=expected, where=where))
    own = {at: piece for piece, at in family.special_ids.items()}
    for at in sorted(family.deleted_ids):
        piece = tokenizer.pieces[at] if at < tokenizer.size else None
        if piece is not None and piece != own.get(at):
            found = f"{piece!r} has id {at}, which the original program deletes from every text"
            findings.append(finding("piece-on-deleted-id", found, where=where))
    graft = subject.graft
    if graft is not None and (other := graft_language_findings(graft, language)):
        return [*findings, *other]
    tag = family.tag(language) if language and subject.grown is not None else None
    if tag and not tokenizer.has_control_token(tag):
        spelled = " ".join(map(tokenizer.shown, tokenizer.encode(tag)))
        there = "is in the vocabulary, but is not an added token" if tag in ids else "is not in the tokenizer"
        found = f"the tag {tag} {there} and is encoded as {spelled}"
        findings.append(finding("tag-splits", found, expected="one token", where=where))
    return findings


def tokenizer_proof_findings(subject: CheckSubject) -> list[Finding]:
    """Promise 1 on the built-in corpus and the user's own. What the new text itself becomes is another topic."""
    base, grown, family, settings = subject.base_tokenizer, subject.grown, subject.family, subject.settings
    if base is None or grown is None or family is None or grown.sha256 == base.sha256:
        return []
    text_encoder = TextEncoder.of(family, base, grown, settings.language, subject.rules)
    proof = prove_text_encoder(text_encoder, TextCorpus(()), settings.proof_texts)
    items = [item for item in proof.findings if item.code not in _REPORTED_ELSEWHERE]
    return [replace(item, where=item.where or str(grown.path)) for item in items]
