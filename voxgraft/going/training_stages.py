"""Stages of the model: the graft, the look before training, and training. Decides by cards, journal and saved steps."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection
from typing import Any

from voxgraft.bases import base_family, base_folder
from voxgraft.check import CheckResult, check
from voxgraft.corpus.set_header import read_set_file
from voxgraft.errors import ConfigError, VoxgraftError, refuse
from voxgraft.families.tensors import stored_shapes
from voxgraft.files import is_file, is_folder
from voxgraft.findings import opened
from voxgraft.findings.belonging import belonging_findings
from voxgraft.going.stage import Decision, Stage, Work
from voxgraft.graft import GraftResult, graft
from voxgraft.graft_folder import GraftCard, open_graft
from voxgraft.history import Event, History
from voxgraft.journal import Journal
from voxgraft.merged_folder import CARD_NAME as MERGED_CARD
from voxgraft.merged_folder import MERGED_NAME
from voxgraft.run_data import DEFAULT_STEPS, Wanted, num_steps, open_data, order_of, shares
from voxgraft.run_settings import TrainSettings
from voxgraft.settings import CheckSettings, GraftSettings, TrainVerbSettings
from voxgraft.tokenizers import open_tokenizer
from voxgraft.train import TrainResult, train
from voxgraft.training.resuming import FIXED_OPTIONS
from voxgraft.training.step_folders import read_state_file

__all__ = ["CHECK", "GRAFT", "TRAIN", "require_steps_left"]

IDENTITY = {"family": "family", "language": "language", "tokenizer_sha256": "tokenizer", "num_rows": "number of rows"}
"""What a saved step cannot change, by the words for it."""
OPTIONS = (
    *("mode", "full_body", "rank", "weight_decay", "clip", "schedule", "warmup_steps", "final_share"),
    *("kl_weight", "tokens_per_step", "emotion_from", "seed"),
)
"""Settings of training that stand in a saved step under the same name."""
RATES = {"row_rate": "rows", "adapter_rate": "adapter", "body_rate": "body"}


def _decide_graft(work: Work) -> Decision:
    card = work.card
    if card is None:
        return Decision(True, "no graft yet", "there was no graft yet")
    with opened(work.settings_of(CheckSettings)) as subject:
        changed = [item.found for item in belonging_findings(subject)]
    if not changed:
        return Decision(False, f"{card.num_rows:,} rows, made of these texts, these settings and this base")
    return work.changed(changed[0]) if work.is_trained else Decision(True, changed[0])


def _graft(work: Work) -> GraftResult:
    return graft(work.settings_of(GraftSettings))


def _decide_check(work: Work) -> Decision:
    coming = _decide_train(work)
    if coming.runs:
        return Decision(True, "training comes next", "training came next")
    return Decision(False, "nothing is to be trained")


def _check(work: Work) -> CheckResult:
    return check(work.settings_of(CheckSettings))


def _decide_train(work: Work) -> Decision:
    saved, card = work.last_step, work.card
    if saved is None or card is None:
        return Decision(True, "no step is saved yet", "no step was saved yet")
    values = read_state_file(saved)["values"]
    if other := _other_identity(values["identity"], card):
        return Decision(True, f"step {saved.step:,} was made with {other}")
    over = _over(work, values["standing"])
    if changed := _changes(work, values["identity"], is_over=bool(over)):
        return work.changed("; ".join(changed))
    if not over:
        return Decision(True, f"goes on from step {saved.step:,}", f"went on from step {saved.step:,}")
    if _is_left(work, card):
        return Decision(False, over)
    return Decision(True, f"{over}, and it has left nothing yet", f"{over}, and it had left nothing yet")


def _train(work: Work) -> TrainResult:
    return train(work.settings_of(TrainVerbSettings, fresh=_begins_again(work)))


def require_steps_left(work: Work, changes: Collection[str]) -> None:
    """Raise where a flag asks for fewer steps than are trained: it would change run.yaml, and nothing else."""
    saved = work.last_step
    given = [key for key in ("train.steps", "train.epochs") if key in changes]
    if not given or saved is None or work.card is None or _begins_again(work):
        return
    wanted = _wanted_steps(work)
    if wanted < saved.step:
        flags = ", ".join(f"--{key} {getattr(work.settings.train, key.partition('.')[2])}" for key in given)
        cure = (
            f"give more than {saved.step:,} steps to train further, or no number to use what is trained; to begin "
            f"again, write the number into run.yaml and run `voxgraft train {shlex.quote(str(work.run.path))} --fresh`."
        )
        found = f"{flags} asks for {wanted:,} steps, and {saved.step:,} are trained: nothing is left to train"
        expected = f"more than {saved.step:,} steps; run.yaml was not changed"
        raise ConfigError("config-value", found, expected=expected, where=work.run.settings, cure=cure)


def _begins_again(work: Work) -> bool:
    """Only if that was asked for, and what is saved is not what the run asks for now."""
    saved, card = work.last_step, work.card
    if work.told.when_changed != "fresh" or saved is None or card is None:
        return False
    values = read_state_file(saved)["values"]
    identity, is_over = values["identity"], bool(_over(work, values["standing"]))
    return bool(_other_identity(identity, card) or _changes(work, identity, is_over=is_over))


def _changes(work: Work, identity: dict[str, Any], *, is_over: bool) -> list[str]:
    """What a training that is over was not done with, or what one that is not over cannot go on with."""
    options = _other_options(work.settings.train, identity)
    if is_over:
        return [*_other_sets(work, identity), *options.values()]
    return [words for name, words in options.items() if name in FIXED_OPTIONS]


def _other_identity(identity: dict[str, Any], card: GraftCard) -> str:
    """What no training goes on over."""
    now = {name: getattr(card, name) for name in IDENTITY}
    other = [f"another {word}" for name, word in IDENTITY.items() if identity.get(name) != now[name]]
    if identity.get("base_sha256") != card.base["checkpoint_sha256"]:
        other.append("another base")
    return " and ".join(other)


def _over(work: Work, standing: dict[str, Any]) -> str:
    """Why no step is to follow, as far as the journal tells; empty where some are."""
    settings, journal = work.settings.train, Journal(work.run.journal).read()
    ended = History.of(journal).ended
    if ended is None:
        return ""
    reason = ended.values.get("reason")
    if reason == "done" and ended.step >= (wanted := _wanted_steps(work)):
        more = f"{ended.step:,} steps are done, and run.yaml asks for {wanted:,}"
        return more if ended.step > wanted else f"all {ended.step:,} steps are done"
    rounds = standing.get("rounds_without_better", 0)
    if reason == "no-better" and 0 < settings.patience <= rounds and ended.step >= settings.min_steps:
        return f"it ended at step {ended.step:,}, no longer getting better"
    return _stopped(journal, ended) if reason == "told" else ""


def _wanted_steps(work: Work) -> float:
    """Steps that the run asks for. What epochs make of replay that the base speaks itself only `train` can say."""
    settings = work.settings
    train, merged = settings.train, settings.train.mode == "merged"
    if train.epochs is None:
        return train.steps or DEFAULT_STEPS
    if merged or settings.base is None:
        return math.inf
    family = base_family(base_folder(settings.base), settings.family)
    files = family.files(base_folder(settings.base))
    base = (family, files, open_tokenizer(files.tokenizer))
    wanted = Wanted.of(work.run, settings, open_graft(work.run.graft), base, stored_shapes(files.checkpoint))
    data = open_data(wanted, merged=merged)
    refuse(data.findings)
    stream = order_of(settings, wanted.frame, data.train, shares(data.train, (), settings.data.replay_share))
    return num_steps(train, stream)


def _stopped(journal: list[dict[str, Any]], ended: Event) -> str:
    """A guard has asked for the end: to go on against it is for a person to decide."""
    asked = (line for line in journal if line["kind"] == "stop-asked" and line["step"] == ended.step)
    why = next((str(line.get("why")) for line in asked), "")
    return f"it was stopped at step {ended.step:,}: {why}; `voxgraft train` goes on all the same" if why else ""


def _is_left(work: Work, card: GraftCard) -> bool:
    if work.settings.train.mode == "merged":
        return is_file(work.run.path / MERGED_NAME / MERGED_CARD)
    return "trained" in card.method


def _other_sets(work: Work, identity: dict[str, Any]) -> list[str]:
    """Sets of ours whose clips are others now. The forks' manifests say nothing of themselves."""
    data, found = work.settings.data, []
    for role, key, named in (("train", "sets", data.train), ("valid", "held_out", data.valid)):
        known = set(identity.get(key, {}).values())
        for place in named or (work.run.data_set(role),):
            try:
                same = not is_folder(place) or read_set_file(place).fingerprint in known
            except VoxgraftError as error:
                return [error.finding.found]
            found += [] if same else [f"{place.name} has other clips now"]
    return found


def _other_options(train: TrainSettings, identity: dict[str, Any]) -> dict[str, str]:
    """Settings of training that are not those of the saved step, by name, in words."""
    options = identity.get("options", {})
    now = {name: getattr(train, name) for name in OPTIONS}
    before = {name: options.get(name) for name in OPTIONS}
    now |= {name: getattr(train, name) for name in RATES}
    before |= {name: options.get("rates", {}).get(part) for name, part in RATES.items()}
    for name, usual in (("alpha", float(train.rank)), ("text_weight", None), ("speech_weight", None)):
        stated = getattr(train, name)
        now[name] = before[name] = options.get(name)
        if stated is not None or usual is not None:
            now[name] = stated if stated is not None else usual
    return {name: f"train.{name} is {now[name]}, and was {before[name]}" for name in now if now[name] != before[name]}


GRAFT = Stage("graft", _decide_graft, _graft)
CHECK = Stage("check", _decide_check, _check)
TRAIN = Stage("train", _decide_train, _train)
