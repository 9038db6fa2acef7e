"""Turn all findings of a diagnosis into one answer: RESUME, REPAIR or START FRESH, why, and the commands.

Rules come in the order of what cannot be undone: what was never the base or cannot be read, then what was learned under
wrong ids, then what `repair` can fix. This module reads no file.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from voxgraft.core.errors import CATALOGUE, Finding

VerdictWord = Literal["RESUME", "REPAIR", "START FRESH"]
RepairKind = Literal["rows", "spare", "head", "missing", "grow", "body", "resave"]
# Distances of a body that was trained. In seven trainings of the tiny base without replay no old language had lost
# anything below the first (docs/diagnosis.md); in one of them English was half gone at twice that. From the second on,
# the way back to the first leaves less than a tenth of what was learned.
MOVED_DISTANCE, FAR_DISTANCE = 0.015, 0.3


@dataclass(frozen=True, slots=True)
class DiagnosisCase:
    """What the verdict is about, beside the findings."""

    checkpoint: Path
    base: Path | None
    tokenizer: Path | None
    family: str = ""
    """As people write it; empty where it is not known."""
    base_tokenizer: Path | None = None
    base_suffix: str = ".safetensors"
    """Of the base's own checkpoint: the format that stock software reads."""
    file: Path | None = None
    """The file that a repair would read, where `checkpoint` is a folder."""
    run: Path | None = None
    steps: tuple[int, ...] | None = None
    """Of a run: its whole saved steps; None where none was ever saved."""
    flags: tuple[str, ...] = ()
    """Of a run: the flags that its newest whole step was trained with, which run.yaml does not have."""
    prepare: str = ""
    """Of a run: the command that prepares its data."""
    data_to_come: bool = False
    """Of a run without any saved step: whether there is nothing yet to learn from."""
    distance: float | None = None
    """How far the backbone moved; None where that was not measured, or is no matter."""
    point: float | None = None
    """Of a body that moved too far: the point between base and tuned that a repair would take, where it was measured
    that the result is near enough."""
    kept: bool | None = None
    """Whether old languages were measured, by transcription or by held-out losses, and found to be as the base
    speaks them."""
    sounds: bool = False
    """Whether the base has a vocoder here, so that points can be chosen by transcription."""
    has_optimizer: bool = False
    language: str | None = None
    has_new_rows: bool = True
    """Whether its text tables have more rows than the base's."""
    unusable: float = 0.0
    """Share of the backbone that is of another form, or in which nothing of the base is left."""
    empty_rows: float = 0.0
    """Share of the new rows of the embedding that are all zero. A head that is still empty is learned in training."""
    ruined_rows: float = 0.0
    """Share of the new rows of the embedding that are not finite."""
    not_finite: float = 0.0
    """Share of the backbone that is not finite."""
    dead_rows: bool = False
    """Whether rows of the speech tables are all zero."""
    noise: bool = False
    """Whether the new rows of the embedding look like random numbers."""
    learnt_by_moments: bool = False
    """Whether the optimizer shows that new rows were trained, whatever they look like."""
    short_rows: bool = False
    """Whether the text tables have the base's rows, and fewer than the tokenizer needs."""
    cut_rows: bool = False
    """Whether the text tables are the beginning of the base's, and end before its last row."""
    moved_fits: bool = False
    """Whether the number of rows is explained by rows that were put before the others."""
    sharded: bool = False
    """Whether the model is saved in several files."""
    is_base: bool = False
    """Whether it is the base itself, under whatever name."""


class Verdict(NamedTuple):
    """The answer. `sentence` says what happened, `reason` why the word is the right one."""

    word: VerdictWord
    sentence: str
    reason: str
    commands: tuple[str, ...]
    repairs: tuple[RepairKind, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


# What a finding means for the whole: in a sentence, and why nothing is left to continue with.
_UNREADABLE_FAULT = (
    "the file cannot be read, and without a good copy of it there is nothing to save: {found}",
    "nothing can be recovered from this file. If you can copy or download it again, diagnose that copy first",
)
_UNREADABLE_CODE = (
    "loading this file would run code: {found}",
    "it contains no weights that can be read safely; get them as .safetensors from a source that you trust",
)
_WRONG_IDS_REASON = "new rows and backbone were trained on wrong ids, and a repair cannot know the right ones"
# By code of an error, by priority: with any of these, nothing is worth continuing with.
_FATAL_FAULTS: dict[str, tuple[str, str]] = {
    "checkpoint-stand-in": (
        "this was never {family}, so nothing of the base was lost",
        "another model was trained that has only the base's text embedding; it spoke no language before, and the "
        "base's own file is untouched",
    ),
    "checkpoint-family": ("this is another model: {found}", "none of it fits this base"),
    **dict.fromkeys(
        (
            "base-other",
            "graft-missing",
            "graft-broken",
            "graft-mismatch",
            "graft-other-tokenizer",
            "graft-other-language",
        ),
        ("the run and its parts no longer belong together: {found}", "the training no longer fits them"),
    ),
    "tensor-missing": ("its text embedding was left out: {found}", "its trained new rows are stored nowhere else"),
    "tensor-shape": ("its text embedding or head does not have the base's type: {found}", "none of it fits this base"),
    "torch-checksum": (
        "without a good copy there is nothing to save; the file was damaged after it was written: {found}",
        _UNREADABLE_FAULT[1],
    ),
    "rows-scattered": ("the rows were renumbered: {found}", _WRONG_IDS_REASON),
    "rows-copied": (
        "the embedding was overwritten: {found}",
        "its trained new rows are stored nowhere else",
    ),
    "tokenizer-flat-map": (
        "it was trained with a flat map instead of a tokenizer: {found}",
        "texts were looked up letter by letter, without merges, tags and start: " + _WRONG_IDS_REASON,
    ),
    "special-ids-moved": ("the tokenizer assigns all ids again: {found}", _WRONG_IDS_REASON),
    "tokenizer-not-grown": ("the tokenizer changed ids of base tokens: {found}", _WRONG_IDS_REASON),
    "tokenizer-duplicate-id": ("the tokenizer gives a token another id than its file says: {found}", _WRONG_IDS_REASON),
    "config-start-stop": (
        "texts had the wrong start and stop ids: {found}",
        "the model was trained with marks that no program uses",
    ),
    "proof-unknown-letters": (
        "letters of the language have no token: {found}",
        "unknown parts of the text were never learned; create the tokenizer again, with every single character",
    ),
    "prepared-ids-unknown": ("the data was mostly unknown: {found}", "the tokenizer must be created again"),
    "prepared-ids-outside": ("the data has ids without rows: {found}", _WRONG_IDS_REASON),
    "prepared-other-tokenizer": ("the data was encoded with another tokenizer: {found}", _WRONG_IDS_REASON),
    "prepared-codes-padded": (
        "it was trained on padding: {found}",
        "the backbone has learned to speak padding and to stop too late; the base has not, and voxgraft cuts such data",
    ),
}
# By code of a finding: the repair that answers it, and the fault in words.
_REPAIRS_BY_CODE: dict[str, tuple[RepairKind, str]] = {
    "head-not-grown": ("head", "the embedding was extended, but not the head"),
    "embedding-not-grown": ("head", "the head was extended, but not the embedding"),
    "bias-not-grown": ("head", "the head was extended, but not its bias"),
    "spare-row-copied": ("spare", "the first new token has a copy of the base's spare (unused) row"),
    "spare-counted-twice": ("spare", "it has one spare row too many"),
    "rows-padded": ("spare", "its text embedding and head have extra rows that no token uses"),
    "table-transposed": ("rows", "its text embedding or other matrices are transposed"),
    "rows-shifted": ("rows", "its text rows are only shifted to wrong ids"),
    "rows-swapped": ("rows", "its text rows are intact, but text embedding and text head are swapped"),
    "base-rows-shrunk": ("rows", "weight decay shrank the base's rows despite a gradient mask"),
    "base-rows-changed": ("rows", "the base's text rows were changed"),
    "head-missing": ("head", "the text head is missing from the file, or incomplete"),
    "body-missing": ("missing", "tensors of the base are missing from the file"),
    "body-form": ("missing", "tensors of the backbone have another shape or type than the base's"),
    "body-lost": ("missing", "tensors of the backbone have nothing in common with the base's"),
    "body-not-finite": ("missing", "tensors of the backbone contain values that are not finite, or absurdly large"),
    "body-overflow": ("missing", "values too large for fp16 became infinite when it was saved"),
    "speech-rows-lost": ("missing", "{found}"),
    "pickle-code": ("resave", "the file contains code that a loader could execute"),
    "checkpoint-legacy": ("resave", "it is in the format that torch wrote before version 1.6"),
    "checkpoint-float64": ("resave", "its numbers are float64: {found}"),
}
# By code of a finding: what is added to RESUME, and what to do about it.
_RESUME_NOTES = {
    "config-vs-rows": ("its config belongs to another model", "write its number of tokens into the config"),
    "config-vs-tokenizer": ("its config belongs to another model", "write its number of tokens into the config"),
    "proof-changed": (
        "its tokenizer encodes old languages differently",
        "encode texts of old languages with the base's own tokenizer",
    ),
    "new-rows-zero": ("some new rows are still empty", "{found}; train on texts with the tokens of these rows"),
    "new-rows-equal": (
        "new rows are copies of one another, or of base rows",
        "{found}: only training makes them different",
    ),
    "last-row-copied": (
        "its last new row is a copy of the base's last row",
        "{found}: only training on texts with this token makes it different",
    ),
    "checkpoint-prefixed": (
        "its tensor names have a prefix, or the file contains other models",
        "`voxgraft repair` writes the file without them",
    ),
    "body-extra": (
        "it has tensors that the base does not have",
        "{found}: the original program ignores or refuses them",
    ),
    "moments-mismatch": ("its optimizer state must not be used", "use the weights with a new optimizer"),
    "moments-on-base-rows": ("its optimizer state must not be used", "use the weights with a new optimizer"),
    "moments-not-finite": ("its optimizer state must not be used", "use the weights with a new optimizer"),
}
_OTHER_BASE_HINT = "; if it was trained from another base (the English one, an older one), give that with --base"
# Codes of errors that are neither in _FATAL_FAULTS nor in _REPAIRS_BY_CODE and still have their answer.
_CODES_WITH_OWN_RULES = frozenset(
    "ids-past-table rows-vs-tokenizer tensor-not-finite "  # rows: misfit, ruined or repairable
    "config-vs-rows config-vs-tokenizer proof-changed moments-mismatch".split()  # added to RESUME
)
# What was opened is around the checkpoint, or means it.
_PACKED_CODES = ("checkpoint-tar", "torch-compressed", "checkpoint-lfs")
# Rounding to bf16 adds a little to a distance.
_ROUNDING_MARGIN = 0.02
# From this share on nothing of the whole is worth continuing with.
MAJORITY_SHARE = 0.5


def decide_verdict(findings: Sequence[Finding], case: DiagnosisCase, *, readable: bool = True) -> Verdict:
    """The answer to all findings at once."""
    errors = {item.code: item for item in reversed(findings) if item.level == "error"}
    by_code = {item.code: item for item in reversed(findings)}
    # A file that is whole, but not yet a checkpoint: the program that wrote or packed it can make one of it.
    item = errors.get("checkpoint-low-rank") or (errors.get("torch-contents") if "pickle-code" in by_code else None)
    item = item or next((errors[code] for code in _PACKED_CODES if code in errors), None)
    if item is not None and case.run is None:
        sentence = f"the file cannot be judged in this form: {item.found}"
        cure = item.cure or CATALOGUE[item.code].cure
        by_hand = f"by hand: {cure}"
        if "pickle-code" in by_code:
            by_hand = f"loading the file runs code. Only if you trust its source, do this by hand: {cure}"
        return Verdict("REPAIR", sentence, by_hand, ("then voxgraft diagnose NEW",))
    if "graft-missing" in errors and case.run is not None and case.steps is None:
        # The word is that of a run without a graft; nothing was ever trained in this one.
        sentence, reason = "the run was not started yet: it has no graft", "nothing was trained, so nothing is lost"
        go = case.prepare if case.prepare.startswith("voxgraft go") else f"voxgraft go {_quote_path(case.run)}"
        return Verdict("START FRESH", sentence, reason, (go,))
    code = next((code for code in _FATAL_FAULTS if code in errors), None)
    if code is not None or not readable:
        item = errors[code] if code is not None else next(iter(errors.values()), None)
        sentence, reason = _FATAL_FAULTS[code] if code is not None else _UNREADABLE_FAULT
        if code is None and "pickle-code" in by_code:
            item, (sentence, reason) = by_code["pickle-code"], _UNREADABLE_CODE
        found = item.found if item else "nothing in it is known"
        return _start_fresh(sentence.format(found=found, family=case.family or "the base"), reason, case)
    return (
        _verdict_rows_misfit(by_code, errors, case)
        or _verdict_nothing_learned(by_code, case)
        or _verdict_ruined(errors, case)
        or _verdict_repair(by_code, case)
        or _verdict_unhandled_error(errors, case)
        or _verdict_resume(by_code, case)
    )


def _verdict_rows_misfit(
    by_code: dict[str, Finding], errors: dict[str, Finding], case: DiagnosisCase
) -> Verdict | None:
    """Rows that do not fit the tokenizer, where no repair makes them fit."""
    item = errors.get("ids-past-table") or errors.get("rows-vs-tokenizer")
    if item is None or by_code.keys() & {"head-not-grown", "embedding-not-grown", "bias-not-grown"} or case.moved_fits:
        return None
    if case.short_rows or case.cut_rows:
        return None  # to grow is a repair like others, and so is to fetch rows from the base
    reason = (
        "rows are useless without the tokenizer that they were trained with: give it with --tokenizer, or start over"
    )
    return _start_fresh(f"tokenizer and rows do not belong together: {item.found}", reason, case)


def _verdict_nothing_learned(by_code: dict[str, Finding], case: DiagnosisCase) -> Verdict | None:
    item = by_code.get("new-rows-untrained")
    if item is None and case.noise and not case.learnt_by_moments:
        item = by_code.get("new-rows-random")
    if item is None and case.empty_rows >= MAJORITY_SHARE:
        item = by_code.get("new-rows-zero")
    if item is None:
        return None
    untouched = "body-same" in by_code and "base-rows-same" in by_code
    sentence = f"the new language was not learned: {item.found}"
    reason = (
        "the base's tensors in it are unchanged, so nothing else is lost" if untouched else "there is nothing to save"
    )
    return _start_fresh(sentence, reason, case)


def _verdict_ruined(errors: dict[str, Finding], case: DiagnosisCase) -> Verdict | None:
    """Damage that the base could fix, but to so much of the whole that only the base would be left."""
    is_graft = case.run is not None and case.file is None
    if "tensor-not-finite" in errors and (is_graft or case.ruined_rows >= MAJORITY_SHARE):
        sentence = f"the new rows are lost: {errors['tensor-not-finite'].found}"
        return _start_fresh(sentence, "values that are not finite cannot be restored", case)
    item = errors.get("body-not-finite") or errors.get("body-overflow")
    if item is not None and case.not_finite >= MAJORITY_SHARE:
        what = "the training diverged" if "body-not-finite" in errors else "it does not fit into fp16"
        reason = "values that are not finite cannot be restored; an earlier or a non-fp16 checkpoint may be intact"
        return _start_fresh(f"{what}: {item.found}", reason, case)
    item = errors.get("body-form") or errors.get("body-lost")
    if item is not None and case.unusable >= MAJORITY_SHARE and ("body-form" in errors or not case.kept):
        reason = f"repaired, it would be identical to the base{_OTHER_BASE_HINT}"
        return _start_fresh(f"the backbone is another one: {item.found}", reason, case)
    if case.distance is not None and case.distance >= FAR_DISTANCE and not case.kept:
        sentence = f"the backbone is another one: it changed by {case.distance:.0%} of its norm"
        reason = "close enough to the base for old languages, less than a tenth of the training would remain"
        return _start_fresh(sentence, reason + _OTHER_BASE_HINT, case)
    return None


def _verdict_repair(by_code: dict[str, Finding], case: DiagnosisCase) -> Verdict | None:
    faults: dict[RepairKind, list[str]] = {}
    for code, (repair, phrase) in _REPAIRS_BY_CODE.items():
        borne = case.kept and (code == "body-lost" or (code == "speech-rows-lost" and not case.dead_rows))
        if code in by_code and not borne:
            faults.setdefault(repair, []).append(phrase.format(found=by_code[code].found))
    if "tensor-not-finite" in by_code:
        # First: where it is the only damage, it is also why the rows are not the base's.
        faults.setdefault("rows", []).insert(0, "text rows contain NaN, infinite or absurdly large values")
    item = by_code.get("ids-past-table") or by_code.get("rows-vs-tokenizer")
    if case.cut_rows and item is not None and "head" not in faults:
        faults.setdefault("rows", []).append(f"its text embedding or head lacks base rows: {item.found}")
    if case.short_rows and item is not None and item.level == "error" and "head" not in faults:
        # `extend` reads a single file, and is enough where the base's rows are all there.
        one_file = case.file is None and not case.sharded and "checkpoint-prefixed" not in by_code
        whole_rows = bool(by_code.keys() & {"base-rows-same", "base-rows-rounded"})
        if not faults and not case.has_new_rows and not is_body_far(case) and one_file and whole_rows:
            command = f"voxgraft extend {_quote_path(case.checkpoint)} --tokenizer {_quote_path(case.tokenizer)}"
            own = f" --base-tokenizer {_quote_path(case.base_tokenizer)}" if case.base_tokenizer else ""
            output = _repaired_file_name(case.checkpoint, case.checkpoint.suffix)
            sentence = f"it has no rows for the new tokens: {item.found}"
            reason = "the base's rows are complete; extending adds the others"
            return Verdict("REPAIR", sentence, reason, (f"{command}{own} --output {output}",))
        faults["grow"] = [f"the tokenizer has more tokens than it has rows for: {item.found}"]
    if is_body_far(case):
        lost = "and old languages are measurably worse" if case.kept is False else "enough to lose old languages"
        faults["body"] = [f"the backbone changed by {case.distance or 0:.1%} of its norm, {lost}"]
    if not faults:
        return None
    if set(faults) != {"resave"}:
        faults.pop("resave", None)  # every repair saves the file again
    reason = "the base has the original of every damaged part; the training is kept"
    if by_code.keys() & {
        "head-missing",
        "head-not-grown",
        "embedding-not-grown",
        "bias-not-grown",
        "tensor-not-finite",
    }:
        reason = "damaged parts are taken from the base or built from its rows; all other training is kept"
    if "body" in faults:
        reason = "an interpolation between tuned and base keeps both" + (
            "" if len(faults) == 1 else "; rows are restored"
        )
    elif "grow" in faults:
        reason = "rows are added for the last tokens; give the old tokenizer if this one does not extend it"
    elif set(faults) == {"resave"}:
        reason = "nothing in it is damaged; saving it again is enough"
    sentence = "; ".join(phrase for listed in faults.values() for phrase in listed)
    return Verdict("REPAIR", sentence, reason, (_format_repair_command(case, tuple(faults)),), tuple(faults))


def is_body_far(case: DiagnosisCase) -> bool:
    """Whether old languages are lost, as far as anybody knows."""
    moved = case.distance is not None and case.distance > 0
    return moved and (case.kept is False or (case.kept is None and (case.distance or 0) >= MOVED_DISTANCE))


def _verdict_unhandled_error(errors: dict[str, Finding], case: DiagnosisCase) -> Verdict | None:
    """Errors that no other rule knows: whatever they are, they have to be fixed before training can continue."""
    answered = _CODES_WITH_OWN_RULES | _FATAL_FAULTS.keys() | _REPAIRS_BY_CODE.keys()
    item = next((item for code, item in reversed(errors.items()) if code not in answered), None)
    if item is None:
        return None
    cure = item.cure or CATALOGUE[item.code].cure
    if case.run is None and CATALOGUE[item.code].area == "checkpoints":
        return _start_fresh(f"it cannot be read completely: {item.found}", cure, case)
    again = _format_train_command(case) if case.run else f"voxgraft diagnose {_quote_path(case.checkpoint)}"
    sentence = f"one problem must be fixed before it can continue: {item.found}"
    return Verdict("REPAIR", sentence, f"by hand: {cure}", (f"then {again}",))


def _verdict_resume(by_code: dict[str, Finding], case: DiagnosisCase) -> Verdict:
    if case.run is not None:
        return _verdict_resume_run(by_code, case)
    if case.distance:
        sentence = f"nothing is damaged; the backbone changed by {case.distance:.1%} of its norm"
        limit = f"{MOVED_DISTANCE:.1%}"
        reason = f"this is below {limit}, where old languages were kept so far; listen to them anyway"
        if case.kept:
            reason = "old languages were measured and are as good as the base's"
    else:
        sentence = "nothing is wrong with it"
        reason = "its base part is identical to the base" if "body-same" in by_code else "no known problem was found"
    if case.is_base:
        rounded = by_code.keys() & {"base-rows-rounded", "body-rounded"}
        sentence = "it is the base, rounded to a shorter number format" if rounded else "it is identical to the base"
        reason = "every tensor equals the base's; nothing was trained, and nothing is damaged"
    if (scale_finding := by_code.get("new-rows-scale")) is not None:
        sentence = f"the base in it is not damaged, but {scale_finding.found}"
        reason = "such rows dominate every sentence: listen before you continue, or extend the base again"
    notes = {
        phrase: cure.format(found=by_code[code].found)
        for code, (phrase, cure) in _RESUME_NOTES.items()
        if code in by_code
    }
    sentence = ", but ".join([sentence, *notes])
    reason = "; ".join([reason, *notes.values()])
    # Ours cannot continue with another trainer's state: the trainer that wrote it can.
    if case.has_optimizer and not by_code.keys() & {"moments-mismatch", "moments-on-base-rows", "moments-not-finite"}:
        command = f"in the trainer that wrote it: --resume {_quote_path(case.checkpoint)}"
    else:
        command = f"in the trainer that wrote it: start from {_quote_path(case.checkpoint)} with a new optimizer"
    return Verdict("RESUME", sentence, reason, (command,))


def _verdict_resume_run(by_code: dict[str, Finding], case: DiagnosisCase) -> Verdict:
    """A run resumes from its newest complete step on its own; without any it starts again."""
    train = _format_train_command(case)
    if case.steps is None:
        sentence, reason = (
            "nothing is wrong with the run; it has no checkpoint yet",
            "training starts from the beginning",
        )
    elif not case.steps:
        found = by_code["step-damaged"].found if "step-damaged" in by_code else "none of its checkpoints is complete"
        return Verdict("START FRESH", found, "there is no complete step to resume from", (f"{train} --fresh",))
    elif "step-damaged" in by_code:
        sentence = by_code["step-damaged"].found
        reason = f"step {case.steps[-1]:,} is complete, and training resumes from it"
    else:
        sentence, reason = "nothing is wrong with the run", f"it resumes from step {case.steps[-1]:,}"
    if warnings := [item for item in by_code.values() if item.level == "warning" and item.code != "step-damaged"]:
        sentence = sentence.replace("nothing is wrong with", "nothing is damaged in") + "; there were warnings"
        reason += "; first read the findings: " + ", ".join(sorted({item.code for item in warnings}))
    if case.data_to_come:
        sentence += "; its data is not prepared yet"
        prepare = case.prepare or f"voxgraft prepare {_quote_path(case.run)}"
        # `go` prepares and trains, too.
        train = prepare if prepare.startswith("voxgraft go") else f"{prepare}, then {train}"
    return Verdict("RESUME", sentence, reason, (train,))


def _format_repair_command(case: DiagnosisCase, repairs: Collection[RepairKind]) -> str:
    parts = [f"voxgraft repair {_quote_path(case.file or case.checkpoint)}"]
    parts += [f"--base {_quote_path(case.base)}"] if case.base else []
    parts += [f"--tokenizer {_quote_path(case.tokenizer)}"] if case.tokenizer else []
    if "body" in repairs:
        # A new language can be spoken only with the tokenizer that has it.
        language = f" --language {case.language or 'CODE'}" if case.tokenizer else ""
        point = case.point if case.point is not None else estimate_repair_point(case.distance or MOVED_DISTANCE)
        parts.append(f"--choose{language}" if case.sounds else f"--body {point:g}")
    suffix = ".safetensors" if set(repairs) == {"resave"} else case.base_suffix
    return " ".join([*parts, f"--output {_repaired_file_name(case.checkpoint, suffix)}"])


def estimate_repair_point(distance: float) -> float:
    """A point at which the backbone is nearer to the base than old languages have borne, rounded towards the base.

    Distances are nearly proportional to the point. Where old languages were lost below that distance, half of the way
    is proposed.
    """
    share = (1 - _ROUNDING_MARGIN) * MOVED_DISTANCE / distance if distance >= MOVED_DISTANCE else 0.5
    return math.floor(100 * share) / 100


def _start_fresh(sentence: str, reason: str, case: DiagnosisCase) -> Verdict:
    if case.run is not None:
        commands = (f"voxgraft graft {_quote_path(case.run)}", f"{_format_train_command(case)} --fresh")
    else:
        base, language = _quote_path(case.base) if case.base else "BASE", case.language or "CODE"
        commands = (f"voxgraft new RUN --base {base} --language {language} --texts TEXTS", "voxgraft graft RUN")
    return Verdict("START FRESH", sentence, reason, commands)


def _format_train_command(case: DiagnosisCase) -> str:
    """Training with the settings of the steps that the run has."""
    return " ".join([f"voxgraft train {_quote_path(case.run)}", *case.flags])


def _repaired_file_name(path: Path, suffix: str) -> str:
    return shlex.quote(f"{path.stem}.repaired{suffix}")


def _quote_path(path: Path | None) -> str:
    return shlex.quote(str(path)) if path is not None else "FILE"
