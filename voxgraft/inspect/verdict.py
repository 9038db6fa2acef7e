"""Turn all findings of a diagnosis into one answer: RESUME, REPAIR or START FRESH, why, and the commands.

Rules come in the order of what cannot be undone: what was never the base or cannot be read, then what was learned under
wrong ids, then what `repair` can put right. This module reads no file.
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
    data_to_come: bool = False
    """Of a run without any saved step: whether there is nothing yet to learn from."""
    distance: float | None = None
    """How far the body moved; None where that was not measured, or is no matter."""
    point: float | None = None
    """Of a body that moved too far: the point between base and tuned that a repair would take, where it was measured
    that the result is near enough."""
    kept: bool | None = None
    """Whether old languages were measured, by ear or by held-out losses, and found to be as the base speaks them."""
    sounds: bool = False
    """Whether the base has a vocoder here, so that points can be chosen by ear."""
    has_optimizer: bool = False
    language: str | None = None
    has_new_rows: bool = True
    """Whether its text tables have more rows than the base's."""
    unusable: float = 0.0
    """Share of the body that is of another form, or in which nothing of the base is left."""
    empty_rows: float = 0.0
    """Share of the new rows of the embedding that are all zero. A head that is still empty is learned in training."""
    ruined_rows: float = 0.0
    """Share of the new rows of the embedding that are not finite."""
    not_finite: float = 0.0
    """Share of the body that is not finite."""
    dead_rows: bool = False
    """Whether rows of the speech tables are all zero."""
    noise: bool = False
    """Whether the new rows of the embedding look like random numbers."""
    learnt_by_moments: bool = False
    """Whether the optimizer shows that new rows were trained, whatever they look like."""
    short_rows: bool = False
    """Whether the text tables have the base's rows, and fewer than the tokenizer needs."""
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
    "the file cannot be read: {found}",
    "copy or download it again from where it was made; if that is all there is, nothing can be taken from it",
)
_WRONG_IDS_REASON = "new rows and body were learned on ids that mean something else, and no repair can tell which"
# By code of an error, by priority: with any of these, nothing is worth continuing with.
_FATAL_FAULTS: dict[str, tuple[str, str]] = {
    "checkpoint-stand-in": (
        "this never was {family}: nothing of the base was lost; start from the base",
        "a stand-in model was trained that borrows the text table alone; it spoke no language before either, and the "
        "base's own file is untouched",
    ),
    "checkpoint-family": ("this is another model: {found}", "nothing of it fits this base"),
    **dict.fromkeys(
        ("base-other", "graft-missing", "graft-broken", "graft-mismatch", "graft-other-tokenizer"),
        ("the run does not belong to its parts any more: {found}", "what was learned fits them no longer"),
    ),
    **dict.fromkeys(
        ("tensor-missing", "tensor-shape"),
        ("its text tables are not of the base's kind: {found}", "nothing of it fits this base"),
    ),
    "torch-checksum": ("the file was damaged after it was written: {found}", _UNREADABLE_FAULT[1]),
    "rows-scattered": ("the rows were numbered again: {found}", _WRONG_IDS_REASON),
    "rows-copied": (
        "the embedding was written over: {found}",
        "what its new rows had learned is nowhere else, and no base has it",
    ),
    "tokenizer-flat-map": (
        "it was trained with a flat map in place of a tokenizer: {found}",
        "texts were looked up letter by letter, without merges, tags and start: " + _WRONG_IDS_REASON,
    ),
    "special-ids-moved": ("the tokenizer numbers everything again: {found}", _WRONG_IDS_REASON),
    "tokenizer-not-grown": ("the tokenizer moved pieces of the base: {found}", _WRONG_IDS_REASON),
    "config-start-stop": (
        "texts began and ended with the wrong ids: {found}",
        "the model has learned marks that no program gives it",
    ),
    "proof-unknown-letters": (
        "letters of the language have no piece: {found}",
        "what is unknown in the text was never learned; make the tokenizer again, with every single character",
    ),
    "prepared-ids-unknown": ("the data was mostly unknown: {found}", "the tokenizer has to be made again"),
    "prepared-ids-outside": ("the data has ids without rows: {found}", _WRONG_IDS_REASON),
    "prepared-other-tokenizer": ("the data was spelled by another tokenizer: {found}", _WRONG_IDS_REASON),
    "prepared-codes-padded": (
        "it learned padding: {found}",
        "the body has learned to speak nothing and to stop too late; the base has not, and voxgraft cuts such data",
    ),
}
# By code of a finding: the repair that answers it, and the fault in words.
_REPAIRS_BY_CODE: dict[str, tuple[RepairKind, str]] = {
    "head-not-grown": ("head", "the embedding grew and the head did not"),
    "embedding-not-grown": ("head", "the head grew and the embedding did not"),
    "bias-not-grown": ("head", "the head grew and its bias did not"),
    "spare-row-copied": ("spare", "the base's spare row is on the first new piece"),
    "spare-counted-twice": ("spare", "it has a spare row too many"),
    "rows-padded": ("spare", "its text tables were filled up with rows that no piece uses"),
    "table-transposed": ("rows", "tables or matrices have their rows and columns exchanged"),
    "rows-shifted": ("rows", "its text rows only moved: they stand on other ids than their own"),
    "rows-swapped": ("rows", "its text rows only moved: embedding and head are swapped"),
    "base-rows-shrunk": ("rows", "weight decay has shrunk the base's rows under a gradient mask"),
    "base-rows-changed": ("rows", "the base's text rows were changed"),
    "head-missing": ("head", "the head for text is not in the file, or not whole"),
    "body-missing": ("missing", "tensors of the base are not in the file"),
    "body-form": ("missing", "tensors of the body have another form than the base's"),
    "body-lost": ("missing", "tensors of the body have nothing left of the base's"),
    "body-not-finite": ("missing", "tensors of the body hold values that are not finite, or absurdly large"),
    "body-overflow": ("missing", "values too large for fp16 became infinite when it was saved"),
    "speech-rows-lost": ("missing", "{found}"),
    "pickle-code": ("resave", "the file carries code that a loader could run"),
    "checkpoint-legacy": ("resave", "it is in the format that torch wrote before version 1.6"),
    "checkpoint-float64": ("resave", "its numbers are float64: {found}"),
}
# By code of a finding: what is added to RESUME, and what to do about it.
_RESUME_NOTES = {
    "config-vs-rows": ("its config is not its own", "write the number of pieces that it has into the config"),
    "config-vs-tokenizer": ("its config is not its own", "write the number of pieces that it has into the config"),
    "proof-changed": (
        "its tokenizer spells old languages otherwise",
        "give texts of old languages to the base's own tokenizer",
    ),
    "new-rows-zero": ("some new rows are still empty", "{found}: train on texts with their pieces"),
    "new-rows-equal": (
        "new rows are copies of one another, or of base rows",
        "{found}: only training tells them apart",
    ),
    "checkpoint-prefixed": (
        "a wrapper's name comes before all others, or other models beside it",
        "`voxgraft repair` writes the file without them",
    ),
    "body-extra": (
        "it holds tensors that the base does not have",
        "{found}: the original program ignores or refuses them",
    ),
    "moments-mismatch": ("its optimizer state is not to be used", "take the weights and a fresh optimizer"),
    "moments-on-base-rows": ("its optimizer state is not to be used", "take the weights and a fresh optimizer"),
    "moments-not-finite": ("its optimizer state is not to be used", "take the weights and a fresh optimizer"),
}
_OTHER_BASE_HINT = "; if it was made from another base (the English one, an older one), name that with --base"
# Codes of errors that are neither in _FATAL_FAULTS nor in _REPAIRS_BY_CODE and still have their answer.
_CODES_WITH_OWN_RULES = frozenset(
    "ids-past-table rows-vs-tokenizer tensor-not-finite "  # rows: misfit, ruined or repairable
    "config-vs-rows config-vs-tokenizer proof-changed moments-mismatch".split()  # added to RESUME
)
# What was opened is around the checkpoint, or stands for it.
_PACKED_CODES = ("checkpoint-tar", "torch-compressed", "checkpoint-lfs")
# Rounding to bf16 adds a little to a distance.
_ROUNDING_MARGIN = 0.02
# From this share on nothing of the whole is worth continuing with.
MAJORITY_SHARE = 0.5


def decide_verdict(findings: Sequence[Finding], case: DiagnosisCase, *, readable: bool = True) -> Verdict:
    """The answer to all findings at once."""
    errors = {item.code: item for item in reversed(findings) if item.level == "error"}
    told = {item.code: item for item in reversed(findings)}
    # A file that is whole, but not yet a checkpoint: the program that wrote or packed it can make one of it.
    item = errors.get("checkpoint-low-rank") or (errors.get("torch-contents") if "pickle-code" in told else None)
    item = item or next((errors[code] for code in _PACKED_CODES if code in errors), None)
    if item is not None and case.run is None:
        sentence = f"it has to be saved otherwise before anything can be said of it: {item.found}"
        cure = item.cure or CATALOGUE[item.code].cure
        return Verdict("REPAIR", sentence, f"by hand: {cure}", ("then voxgraft diagnose NEW",))
    code = next((code for code in _FATAL_FAULTS if code in errors), None)
    if code is not None or not readable:
        sentence, reason = _FATAL_FAULTS[code] if code is not None else _UNREADABLE_FAULT
        item = errors[code] if code is not None else next(iter(errors.values()), None)
        found = item.found if item else "nothing in it is known"
        return _start_fresh(sentence.format(found=found, family=case.family or "the base"), reason, case)
    return (
        _verdict_rows_misfit(told, errors, case)
        or _verdict_nothing_learned(told, case)
        or _verdict_ruined(errors, case)
        or _verdict_repair(told, case)
        or _verdict_unhandled_error(errors, case)
        or _verdict_resume(told, case)
    )


def _verdict_rows_misfit(told: dict[str, Finding], errors: dict[str, Finding], case: DiagnosisCase) -> Verdict | None:
    """Rows that do not fit the tokenizer, where no repair makes them fit."""
    item = errors.get("ids-past-table") or errors.get("rows-vs-tokenizer")
    if item is None or told.keys() & {"head-not-grown", "embedding-not-grown", "bias-not-grown"} or case.moved_fits:
        return None
    if case.short_rows:
        return None  # to grow is a repair like others
    reason = (
        "rows mean nothing without the tokenizer that they were learned with: name it with --tokenizer, or start again"
    )
    return _start_fresh(f"tokenizer and rows do not belong together: {item.found}", reason, case)


def _verdict_nothing_learned(told: dict[str, Finding], case: DiagnosisCase) -> Verdict | None:
    item = told.get("new-rows-untrained")
    if item is None and case.noise and not case.learnt_by_moments:
        item = told.get("new-rows-random")
    if item is None and case.empty_rows >= MAJORITY_SHARE:
        item = told.get("new-rows-zero")
    if item is None:
        return None
    untouched = "body-same" in told and "base-rows-same" in told
    sentence = f"nothing was learned of the new language: {item.found}"
    reason = "the base in it is untouched, so nothing is lost either" if untouched else "there is nothing to save"
    return _start_fresh(sentence, reason, case)


def _verdict_ruined(errors: dict[str, Finding], case: DiagnosisCase) -> Verdict | None:
    """Damage that the base could fix, but to so much of the whole that only the base would be left."""
    is_graft = case.run is not None and case.file is None
    if "tensor-not-finite" in errors and (is_graft or case.ruined_rows >= MAJORITY_SHARE):
        sentence = f"the new rows are lost: {errors['tensor-not-finite'].found}"
        return _start_fresh(sentence, "what is not finite cannot be brought back", case)
    item = errors.get("body-not-finite") or errors.get("body-overflow")
    if item is not None and case.not_finite >= MAJORITY_SHARE:
        what = "the training blew up" if "body-not-finite" in errors else "it does not fit into fp16"
        reason = (
            "what is not finite cannot be brought back; an earlier checkpoint, or one that is not fp16, may be whole"
        )
        return _start_fresh(f"{what}: {item.found}", reason, case)
    item = errors.get("body-form") or errors.get("body-lost")
    if item is not None and case.unusable >= MAJORITY_SHARE and ("body-form" in errors or not case.kept):
        reason = f"put right, it would be the base's own and nothing more{_OTHER_BASE_HINT}"
        return _start_fresh(f"the body is another: {item.found}", reason, case)
    if case.distance is not None and case.distance >= FAR_DISTANCE and not case.kept:
        sentence = f"the body is another: it moved by {case.distance:.0%} of its length"
        reason = "back where old languages can be heard, less than a tenth of what was learned would be left"
        return _start_fresh(sentence, reason + _OTHER_BASE_HINT, case)
    return None


def _verdict_repair(told: dict[str, Finding], case: DiagnosisCase) -> Verdict | None:
    faults: dict[RepairKind, list[str]] = {}
    for code, (repair, words) in _REPAIRS_BY_CODE.items():
        borne = case.kept and (code == "body-lost" or (code == "speech-rows-lost" and not case.dead_rows))
        if code in told and not borne:
            faults.setdefault(repair, []).append(words.format(found=told[code].found))
    if "tensor-not-finite" in told:
        faults.setdefault("rows", ["text rows are not finite"])
    item = told.get("ids-past-table") or told.get("rows-vs-tokenizer")
    if case.short_rows and item is not None and item.level == "error" and "head" not in faults:
        # `extend` reads a single file, and is enough where the base's rows are all there.
        one_file = case.file is None and not case.sharded and "checkpoint-prefixed" not in told
        whole_rows = bool(told.keys() & {"base-rows-same", "base-rows-rounded"})
        if not faults and not case.has_new_rows and not is_body_far(case) and one_file and whole_rows:
            command = f"voxgraft extend {_quote_path(case.checkpoint)} --tokenizer {_quote_path(case.tokenizer)}"
            own = f" --base-tokenizer {_quote_path(case.base_tokenizer)}" if case.base_tokenizer else ""
            output = _repaired_file_name(case.checkpoint, case.checkpoint.suffix)
            sentence = f"it has no rows for the new pieces: {item.found}"
            reason = "the base's rows are all there; growing adds the others"
            return Verdict("REPAIR", sentence, reason, (f"{command}{own} --output {output}",))
        faults["grow"] = [f"the tokenizer has more pieces than it has rows for: {item.found}"]
    if is_body_far(case):
        lost = "and old languages were measured to be worse" if case.kept is False else "enough to lose old languages"
        faults["body"] = [f"the body moved by {case.distance or 0:.1%} of its length, {lost}"]
    if not faults:
        return None
    if set(faults) != {"resave"}:
        faults.pop("resave", None)  # every repair saves the file again
    reason = "what was damaged has its original in the base; what was learned stays"
    if told.keys() & {"head-missing", "head-not-grown", "embedding-not-grown", "bias-not-grown", "tensor-not-finite"}:
        reason = (
            "what was damaged is taken from the base, or made from its rows; everything else that was learned stays"
        )
    if "body" in faults:
        reason = "between tuned and base lies a body that has both" + ("" if len(faults) == 1 else "; rows come back")
    elif "grow" in faults:
        reason = "rows are added for the last pieces; name the old tokenizer if this one was not grown from it"
    elif set(faults) == {"resave"}:
        reason = "nothing in it is broken; saving it again is enough"
    sentence = "; ".join(words for listed in faults.values() for words in listed)
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
        return _start_fresh(f"it cannot be read whole: {item.found}", cure, case)
    again = (
        f"voxgraft train {_quote_path(case.run)}" if case.run else f"voxgraft diagnose {_quote_path(case.checkpoint)}"
    )
    sentence = f"something has to be put right before it can continue: {item.found}"
    return Verdict("REPAIR", sentence, f"by hand: {cure}", (f"then {again}",))


def _verdict_resume(told: dict[str, Finding], case: DiagnosisCase) -> Verdict:
    if case.run is not None:
        return _verdict_resume_run(told, case)
    if case.distance:
        sentence = f"nothing is broken; the body moved by {case.distance:.1%} of its length"
        limit = f"{MOVED_DISTANCE:.1%}"
        reason = f"that is less than {limit}, up to which old languages have stayed; listen to them all the same"
        if case.kept:
            reason = "old languages were measured, and they are as the base speaks them"
    else:
        sentence = "nothing is wrong with it"
        reason = "the base in it is the base's own" if "body-same" in told else "no fault that we know shows in it"
    if case.is_base:
        rounded = told.keys() & {"base-rows-rounded", "body-rounded"}
        sentence = "it is the base, rounded to a shorter number format" if rounded else "it is identical to the base"
        reason = "every tensor is the base's own; nothing was trained in it, and nothing is broken"
    if (long := told.get("new-rows-scale")) is not None:
        sentence = f"the base in it is not damaged, but {long.found}"
        reason = (
            "such rows drown everything else in a sentence: listen to it before you continue, or grow the base again"
        )
    besides = {
        words: cure.format(found=told[code].found) for code, (words, cure) in _RESUME_NOTES.items() if code in told
    }
    sentence = ", but ".join([sentence, *besides])
    reason = "; ".join([reason, *besides.values()])
    # Ours cannot continue with another trainer's state: the trainer that wrote it can.
    if case.has_optimizer and not told.keys() & {"moments-mismatch", "moments-on-base-rows", "moments-not-finite"}:
        command = f"in the trainer that wrote it: --resume {_quote_path(case.checkpoint)}"
    else:
        command = f"in the trainer that wrote it: start from {_quote_path(case.checkpoint)} with a fresh optimizer"
    return Verdict("RESUME", sentence, reason, (command,))


def _verdict_resume_run(told: dict[str, Finding], case: DiagnosisCase) -> Verdict:
    """A run resumes from its newest complete step by itself; without any it starts again."""
    train = f"voxgraft train {_quote_path(case.run)}"
    if case.steps is None:
        sentence, reason = "nothing is wrong with the run; it has no saved step yet", "training begins at the start"
    elif not case.steps:
        found = told["step-damaged"].found if "step-damaged" in told else "none of its saved steps is whole"
        return Verdict("START FRESH", found, "there is no whole step to resume from", (f"{train} --fresh",))
    elif "step-damaged" in told:
        sentence = told["step-damaged"].found
        reason = f"step {case.steps[-1]:,} is whole, and training resumes from there"
    else:
        sentence, reason = "nothing is wrong with the run", f"it resumes from step {case.steps[-1]:,}"
    if worries := [item for item in told.values() if item.level == "warning" and item.code != "step-damaged"]:
        sentence = sentence.replace("nothing is wrong with", "nothing is broken in") + ", but it was warned"
        reason += "; first read what was reported: " + ", ".join(sorted({item.code for item in worries}))
    if case.data_to_come:
        sentence += ", and its data is still to come"
        train = f"voxgraft prepare {_quote_path(case.run)}, then {train}"
    return Verdict("RESUME", sentence, reason, (train,))


def _format_repair_command(case: DiagnosisCase, repairs: Collection[RepairKind]) -> str:
    parts = [f"voxgraft repair {_quote_path(case.file or case.checkpoint)}"]
    parts += [f"--base {_quote_path(case.base)}"] if case.base else []
    parts += [f"--tokenizer {_quote_path(case.tokenizer)}"] if case.tokenizer else []
    if "body" in repairs:
        language = f" --language {case.language or 'CODE'}"
        point = case.point if case.point is not None else estimate_repair_point(case.distance or MOVED_DISTANCE)
        parts.append(f"--choose{language}" if case.sounds else f"--body {point:g}")
    suffix = ".safetensors" if set(repairs) == {"resave"} else case.base_suffix
    return " ".join([*parts, f"--output {_repaired_file_name(case.checkpoint, suffix)}"])


def estimate_repair_point(distance: float) -> float:
    """A point at which the body is nearer to the base than old languages have borne, rounded towards the base.

    Distances are nearly proportional to the point. Where old languages were lost below that distance, half of the way
    is proposed.
    """
    share = (1 - _ROUNDING_MARGIN) * MOVED_DISTANCE / distance if distance >= MOVED_DISTANCE else 0.5
    return math.floor(100 * share) / 100


def _start_fresh(sentence: str, reason: str, case: DiagnosisCase) -> Verdict:
    if case.run is not None:
        run = _quote_path(case.run)
        commands = (f"voxgraft graft {run}", f"voxgraft train {run} --fresh")
    else:
        base, language = _quote_path(case.base) if case.base else "BASE", case.language or "CODE"
        commands = (f"voxgraft new RUN --base {base} --language {language} --texts TEXTS", "voxgraft graft RUN")
    return Verdict("START FRESH", sentence, reason, commands)


def _repaired_file_name(path: Path, suffix: str) -> str:
    return shlex.quote(f"{path.stem}.repaired{suffix}")


def _quote_path(path: Path | None) -> str:
    return shlex.quote(str(path)) if path is not None else "FILE"
