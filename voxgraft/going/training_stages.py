"""Stages of the model: the graft, the look before training, and training. Decides by cards, journal and saved steps."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection
from typing import Any

from voxgraft.bases import resolve_base_family, resolve_base_folder
from voxgraft.check import CheckResult, check
from voxgraft.corpus.set_header import read_dataset_index
from voxgraft.errors import ConfigError, VoxgraftError, raise_first_error
from voxgraft.families.tensors import read_tensor_shapes
from voxgraft.files import is_file, is_folder
from voxgraft.findings import open_check_subject
from voxgraft.findings.belonging import provenance_findings
from voxgraft.going.stage import PipelineContext, PipelineStage, StageDecision
from voxgraft.graft import GraftResult, graft
from voxgraft.graft_folder import GraftCard, load_graft
from voxgraft.history import History, HistoryEvent
from voxgraft.journal import RunJournal
from voxgraft.merged_folder import MERGED_CARD as MERGED_CARD
from voxgraft.merged_folder import MERGED_FOLDER_NAME
from voxgraft.run_data import (
    DEFAULT_STEPS,
    DataRequirements,
    build_sampler,
    compute_set_weights,
    load_run_data,
    resolve_num_steps,
)
from voxgraft.run_settings import TrainSettings
from voxgraft.settings import CheckSettings, GraftSettings, TrainCommandSettings
from voxgraft.tokenizers import open_tokenizer
from voxgraft.train import TrainResult, train
from voxgraft.training.resuming import FIXED_OPTIONS
from voxgraft.training.step_folders import read_step_state

__all__ = ["CHECK_STAGE", "GRAFT_STAGE", "TRAIN_STAGE", "require_steps_left"]

IDENTITY_LABELS = {
    "family": "family",
    "language": "language",
    "tokenizer_sha256": "tokenizer",
    "num_rows": "number of rows",
}
"""What a saved step cannot change, by the words for it."""
COMPARED_OPTIONS = (
    *("mode", "full_body", "rank", "weight_decay", "clip", "schedule", "warmup_steps", "final_share"),
    *("kl_weight", "tokens_per_step", "emotion_from", "seed"),
)
"""Settings of training that stand in a saved step under the same name."""
RATE_PARTS = {"row_rate": "rows", "adapter_rate": "adapter", "body_rate": "body"}


def _decide_graft(work: PipelineContext) -> StageDecision:
    card = work.card
    if card is None:
        return StageDecision(True, "no graft yet", "there was no graft yet")
    with open_check_subject(work.verb_settings(CheckSettings)) as subject:
        changed = [item.found for item in provenance_findings(subject)]
    if not changed:
        return StageDecision(False, f"{card.num_rows:,} rows, made of these texts, these settings and this base")
    return work.changed(changed[0]) if work.is_trained else StageDecision(True, changed[0])


def _run_graft(work: PipelineContext) -> GraftResult:
    return graft(work.verb_settings(GraftSettings))


def _decide_check(work: PipelineContext) -> StageDecision:
    coming = _decide_train(work)
    if coming.runs:
        return StageDecision(True, "training comes next", "training came next")
    return StageDecision(False, "nothing is to be trained")


def _run_check(work: PipelineContext) -> CheckResult:
    return check(work.verb_settings(CheckSettings))


def _decide_train(work: PipelineContext) -> StageDecision:
    saved, card = work.last_step, work.card
    if saved is None or card is None:
        return StageDecision(True, "no step is saved yet", "no step was saved yet")
    values = read_step_state(saved)["values"]
    if other := _why_identity_differs(values["identity"], card):
        return StageDecision(True, f"step {saved.step:,} was made with {other}")
    over = _why_training_finished(work, values["standing"])
    if changed := _list_changes(work, values["identity"], is_over=bool(over)):
        return work.changed("; ".join(changed))
    if not over:
        return StageDecision(True, f"goes on from step {saved.step:,}", f"went on from step {saved.step:,}")
    if _has_trained_output(work, card):
        return StageDecision(False, over)
    return StageDecision(True, f"{over}, and it has left nothing yet", f"{over}, and it had left nothing yet")


def _run_train(work: PipelineContext) -> TrainResult:
    return train(work.verb_settings(TrainCommandSettings, fresh=_should_restart(work)))


def require_steps_left(work: PipelineContext, changes: Collection[str]) -> None:
    """Raise where a flag asks for fewer steps than are trained: it would change run.yaml, and nothing else."""
    saved = work.last_step
    given = [key for key in ("train.steps", "train.epochs") if key in changes]
    if not given or saved is None or work.card is None or _should_restart(work):
        return
    wanted = _resolve_num_steps(work)
    if wanted < saved.step:
        flags = ", ".join(f"--{key} {getattr(work.settings.train, key.partition('.')[2])}" for key in given)
        cure = (
            f"give more than {saved.step:,} steps to train further, or no number to use what is trained; to begin "
            f"again, write the number into run.yaml and run `voxgraft train {shlex.quote(str(work.run.path))} --fresh`."
        )
        found = f"{flags} asks for {wanted:,} steps, and {saved.step:,} are trained: nothing is left to train"
        expected = f"more than {saved.step:,} steps; run.yaml was not changed"
        raise ConfigError("config-value", found, expected=expected, where=work.run.settings, cure=cure)


def _should_restart(work: PipelineContext) -> bool:
    """Only if that was asked for, and what is saved is not what the run asks for now."""
    saved, card = work.last_step, work.card
    if work.told.when_changed != "fresh" or saved is None or card is None:
        return False
    values = read_step_state(saved)["values"]
    identity, is_over = values["identity"], bool(_why_training_finished(work, values["standing"]))
    return bool(_why_identity_differs(identity, card) or _list_changes(work, identity, is_over=is_over))


def _list_changes(work: PipelineContext, identity: dict[str, Any], *, is_over: bool) -> list[str]:
    """What a training that is over was not done with, or what one that is not over cannot go on with."""
    options = _list_changed_options(work.settings.train, identity)
    if is_over:
        return [*_list_changed_sets(work, identity), *options.values()]
    return [words for name, words in options.items() if name in FIXED_OPTIONS]


def _why_identity_differs(identity: dict[str, Any], card: GraftCard) -> str:
    """What no training goes on over."""
    now = {name: getattr(card, name) for name in IDENTITY_LABELS}
    other = [f"another {word}" for name, word in IDENTITY_LABELS.items() if identity.get(name) != now[name]]
    if identity.get("base_sha256") != card.base["checkpoint_sha256"]:
        other.append("another base")
    return " and ".join(other)


def _why_training_finished(work: PipelineContext, standing: dict[str, Any]) -> str:
    """Why no step is to follow, as far as the journal tells; empty where some are."""
    settings, journal = work.settings.train, RunJournal(work.run.journal).read()
    ended = History.of(journal).ended
    if ended is None:
        return ""
    reason = ended.values.get("reason")
    if reason == "done" and ended.step >= (wanted := _resolve_num_steps(work)):
        more = f"{ended.step:,} steps are done, and run.yaml asks for {wanted:,}"
        return more if ended.step > wanted else f"all {ended.step:,} steps are done"
    rounds = standing.get("rounds_without_better", 0)
    if reason == "no-better" and 0 < settings.patience <= rounds and ended.step >= settings.min_steps:
        return f"it ended at step {ended.step:,}, no longer getting better"
    return _why_training_stopped(journal, ended) if reason == "told" else ""


def _resolve_num_steps(work: PipelineContext) -> float:
    """Steps that the run asks for. What epochs make of replay that the base speaks itself only `train` can say."""
    settings = work.settings
    train, merged = settings.train, settings.train.mode == "merged"
    if train.epochs is None:
        return train.steps or DEFAULT_STEPS
    if merged or settings.base is None:
        return math.inf
    family = resolve_base_family(resolve_base_folder(settings.base), settings.family)
    files = family.files(resolve_base_folder(settings.base))
    base = (family, files, open_tokenizer(files.tokenizer))
    wanted = DataRequirements.of(
        work.run, settings, load_graft(work.run.graft), base, read_tensor_shapes(files.checkpoint)
    )
    data = load_run_data(wanted, merged=merged)
    raise_first_error(data.findings)
    stream = build_sampler(
        settings, wanted.frame, data.train, compute_set_weights(data.train, (), settings.data.replay_share)
    )
    return resolve_num_steps(train, stream)


def _why_training_stopped(journal: list[dict[str, Any]], ended: HistoryEvent) -> str:
    """A guard has asked for the end: to go on against it is for a person to decide."""
    asked = (line for line in journal if line["kind"] == "stop-asked" and line["step"] == ended.step)
    why = next((str(line.get("why")) for line in asked), "")
    return f"it was stopped at step {ended.step:,}: {why}; `voxgraft train` goes on all the same" if why else ""


def _has_trained_output(work: PipelineContext, card: GraftCard) -> bool:
    if work.settings.train.mode == "merged":
        return is_file(work.run.path / MERGED_FOLDER_NAME / MERGED_CARD)
    return "trained" in card.method


def _list_changed_sets(work: PipelineContext, identity: dict[str, Any]) -> list[str]:
    """Sets of ours whose clips are others now. The forks' manifests say nothing of themselves."""
    data, found = work.settings.data, []
    for role, key, named in (("train", "sets", data.train), ("valid", "held_out", data.valid)):
        known = set(identity.get(key, {}).values())
        for place in named or (work.run.data_set(role),):
            try:
                same = not is_folder(place) or read_dataset_index(place).fingerprint in known
            except VoxgraftError as error:
                return [error.finding.found]
            found += [] if same else [f"{place.name} has other clips now"]
    return found


def _list_changed_options(train: TrainSettings, identity: dict[str, Any]) -> dict[str, str]:
    """Settings of training that are not those of the saved step, by name, in words."""
    options = identity.get("options", {})
    now = {name: getattr(train, name) for name in COMPARED_OPTIONS}
    before = {name: options.get(name) for name in COMPARED_OPTIONS}
    now |= {name: getattr(train, name) for name in RATE_PARTS}
    before |= {name: options.get("rates", {}).get(part) for name, part in RATE_PARTS.items()}
    for name, usual in (("alpha", float(train.rank)), ("text_weight", None), ("speech_weight", None)):
        stated = getattr(train, name)
        now[name] = before[name] = options.get(name)
        if stated is not None or usual is not None:
            now[name] = stated if stated is not None else usual
    return {name: f"train.{name} is {now[name]}, and was {before[name]}" for name in now if now[name] != before[name]}


GRAFT_STAGE = PipelineStage("graft", _decide_graft, _run_graft)
CHECK_STAGE = PipelineStage("check", _decide_check, _run_check)
TRAIN_STAGE = PipelineStage("train", _decide_train, _run_train)
