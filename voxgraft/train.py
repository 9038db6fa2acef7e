"""The verb `train`: look at all that could go wrong, then train a run's graft, from the start or from where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import torch

from voxgraft import __version__, progress
from voxgraft.corpus.stream import items_of
from voxgraft.corpus.verification import Verification
from voxgraft.course import HALF, Course, chosen_device, open_course
from voxgraft.errors import CheckpointError, ConfigError, refuse
from voxgraft.evaluating.light import LightEvaluation, light_evaluation, spoken_steps
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.model import SpeechModel
from voxgraft.families.opening import open_model
from voxgraft.findings import look_at, opened
from voxgraft.journal import Journal
from voxgraft.merged_folder import Merged, write_merged
from voxgraft.only_now import only_now
from voxgraft.opening_lines import opening_lines
from voxgraft.results import Line
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.sample_texts import held_out_texts, sentences_of
from voxgraft.settings import CheckSettings, TrainVerbSettings
from voxgraft.tensorboard import EventFiles
from voxgraft.trained_graft import is_written, write_trained
from voxgraft.training.examples import Examples
from voxgraft.training.loop import Loop, Outcome
from voxgraft.training.parts import Trained, make_optimizer, prepare
from voxgraft.training.probe import fit_packs
from voxgraft.training.processes import Processes, processes
from voxgraft.training.resuming import Change, go_on
from voxgraft.training.samples import Sampler, Sentence
from voxgraft.training.seeds_way import LABEL
from voxgraft.training.step import Stepper
from voxgraft.training.step_folders import step_folders
from voxgraft.training.validation import Validation
from voxgraft.training.watch import Watch
from voxgraft.training.watch_rows import RowWatch

ENDINGS = {"done": "done", "told": "stopped as told", "no-better": "stopped: no longer getting better"}
EXIT_INTERRUPTED = 130
"""What was saved is whole, but it is not what was asked for: who waits for the end of training must not go on."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How training ended."""

    outcome: Outcome
    start: int
    graft: str | None
    merged: Merged | None = None
    label: str = ""
    further: str = ""
    """Where nothing was left to train: what would make it go on."""
    only_now: Mapping[str, str] = field(default_factory=dict)
    """Settings of this call that run.yaml does not have."""

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.was_interrupted else 0

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal has ended it."""
        return self.outcome.reason == "told" and not self.outcome.why

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.outcome.step,
            "started_from": self.start,
            "ended": self.outcome.reason,
            "already": bool(self.further),
            "best_step": self.outcome.standing.best_step,
            "best_loss": self.outcome.standing.best_loss,
            "graft": self.graft,
            "graft_step": self.graft_step if self.graft else None,
            "merged": str(self.merged.folder) if self.merged else None,
            "why": self.outcome.why,
            "label": self.label,
            "only_now": dict(self.only_now),
        }

    @property
    def graft_step(self) -> int:
        """The step that the graft is made of: the best, or the last where none is better."""
        return self.outcome.standing.best_step or self.outcome.step

    def lines(self) -> list[Line]:
        best = self.outcome.standing
        ending = f"{ENDINGS[self.outcome.reason]}, at step {self.outcome.step:,}"
        if self.further:
            ending = f"nothing is left to train: {ending}. To go on: {self.further}; to begin again: --fresh"
        lines: list[Line] = [f"trained {self.label}"] if self.label else []
        lines.append(f"stopped: {self.outcome.why}" if self.outcome.why else ending)
        if best.best_loss is not None:
            lines.append(f"best: step {best.best_step:,}, speech loss {best.best_loss:.4f} on held-out recordings")
        if self.outcome.choice:
            lines.append(f"  {self.outcome.choice}")
        if self.was_interrupted:
            lines.append("the same command goes on from here")
        if self.graft is not None:
            lines.append(f"graft: {self.graft}, with what was trained up to step {self.graft_step:,}")
        lines += _merged_lines(self.merged) if self.merged else ()
        if self.only_now:
            listed = ", ".join(f"{key}: {value}" for key, value in self.only_now.items())
            lines.append(f"only this time, since {RUN_FILE} says otherwise: {listed}")
            lines.append(f"  to go on with these, give them again; to keep them, write them into {RUN_FILE}")
        return lines


def train(settings: TrainVerbSettings) -> TrainResult:
    """Train a run. A run with saved steps goes on from the newest whole one by itself."""
    if settings.fresh and settings.from_step is not None:
        raise ConfigError("config-value", "--fresh and --from-step are both given", expected="one of the two")
    run = RunFolder(settings.run)
    with ExitStack() as stack:
        # Before anything that one process might meet alone: only who has joined can tell the others.
        group = stack.enter_context(processes(chosen_device(settings.train.device)))
        family, files = _without_errors(settings)
        stack.enter_context(run.lock() if group.is_first else nullcontext())
        course = open_course(run, settings, family, files, as_in_the_seeds=settings.as_in_the_seeds)
        refuse(course.findings)
        _refuse_lost_steps(course, settings)
        group.require_same(_seen(course))
        loop = _loop(course, group)
        watch = _watch(course, loop, _sentences(course, settings))
        if settings.train.listen_every:
            loop.judges.append(light_evaluation(course, loop, settings.train.listener))
        elif not settings.as_in_the_seeds:
            loop.compare_speech = spoken_steps(course, loop)
        if settings.train.tensorboard:
            loop.observers.append(EventFiles(run, loop.write).observe)
        changed: list[Change] = []
        loop.observers.append(lambda kind, _step, values: changed.extend(_change(kind, values)))
        start = go_on(loop, fresh=settings.fresh, from_step=settings.from_step)
        group.require_same({"step to go on from": str(start), "best step so far": str(loop.standing)})
        _fit_packs(course, loop, start)
        if group.is_first:
            _open(course, loop, start, changed)
            for item in watch.tell(start, course.findings):
                progress.tell("finding", start, item.to_json())  # it stands in the journal already
        further = _further(loop, start)
        loop.verification = verification = Verification(chain(*course.valid.values()), course.train)
        stack.callback(verification.stop)
        verification.start()
        outcome = _gone(loop, start)
        return replace(_left(course, loop, outcome, start), further=further, only_now=only_now(run, settings))


def _refuse_lost_steps(course: Course, settings: TrainVerbSettings) -> None:
    """A run that was trained, and has no step to go on from, is not begun again without a word from the user."""
    run, trained = course.run, course.graft.card.method.get("trained")
    if settings.fresh or settings.from_step is not None or step_folders(run):
        return
    last = max((entry["step"] for entry in Journal(run.journal).read()), default=0)
    found, cure = f"no saved step is there, and the journal tells of step {last:,}", "or begin again with --fresh."
    if isinstance(trained, dict):
        found = f"no saved step is there, and the graft's rows are those of step {trained['step']:,} of a training"
        cure = f"or begin again with --fresh: from these rows, or from new ones after `voxgraft graft {run.path}`."
    if last > 0 or isinstance(trained, dict):
        raise CheckpointError("steps-gone", found, where=run.steps, cure=f"put {run.steps.name}/ back, {cure}")


def _seen(course: Course) -> dict[str, str]:
    """What several processes must see alike, on whatever machine they are."""
    identity = course.identity
    options = {f"train.{key}": value for key, value in identity.pop("options").items()}
    steps = [folder.path.name for folder in step_folders(course.run)]
    seen = {"voxgraft": __version__, "torch": torch.__version__, **identity, **options, "saved steps": steps}
    return {key: json.dumps(value, ensure_ascii=False) for key, value in {**seen, **asdict(course.every)}.items()}


def _fit_packs(course: Course, loop: Loop, start: int) -> None:
    """On a CUDA device packs are as large as there is room for, unless the run says how large."""
    over = loop.begun and loop.over_at(start)
    if over or course.settings.train.pack_tokens is not None or not course.device.startswith("cuda"):
        return
    before = loop.pack_tokens
    found = loop.pack_tokens = fit_packs(loop.stepper, course.stream, before)
    for validation in loop.validations.values():
        validation.pack_tokens = min(validation.pack_tokens, found)
    if before is not None and before != found:
        loop.write("changed", start, key="packs that fit", was=before, now=found)


def _gone(loop: Loop, start: int) -> Outcome:
    try:
        return loop.go(start)
    except torch.OutOfMemoryError:
        found = "the device has no memory left for a validation or for speaking"
        expected = f"train.pack_tokens smaller than {loop.stepper.options.pack_tokens:,}, which leaves more of it"
        raise ConfigError("memory-too-small", found, expected=expected) from None


def _further(loop: Loop, start: int) -> str:
    """What would make a run go on that is over already."""
    over = loop.over_at(start) if loop.begun else None
    if over == "done":
        return f"more --train.steps than {loop.stepper.options.steps:,}"
    return f"a larger --train.patience than {loop.every.patience:,}" if over else ""


def _left(course: Course, loop: Loop, outcome: Outcome, start: int) -> TrainResult:
    """What training leaves in the run. A merged checkpoint is large: who interrupts does not wait for one."""
    mode, label = course.options.mode, LABEL if course.options.mode == "as-in-the-seeds" else ""
    over = outcome.reason != "told" or bool(outcome.why)
    hear = next((judge.error for judge in loop.judges if isinstance(judge, LightEvaluation)), None)
    merged = write_merged(course, loop, outcome, hear) if over and mode in ("merged", "as-in-the-seeds") else None
    # Rows that were trained with another body than the base's are no graft.
    is_graft = "body" not in loop.stepper.trained.parameters
    if is_graft and loop.first and not is_written(course, outcome):
        write_trained(course, loop, outcome)
    return TrainResult(outcome, start, str(course.run.graft) if is_graft else None, merged, label)


def _merged_lines(merged: Merged) -> list[Line]:
    lines: list[Line] = [
        f"{merged.folder.name}: {merged.folder}, a share of {merged.point.share:g} of step {merged.step:,}"
    ]
    return lines + [
        f"  {name}: speech loss {merged.first[name]:.4f} before, {loss:.4f} now"
        for name, loss in merged.point.losses.items()
        if name in merged.first
    ]


def _open(course: Course, loop: Loop, start: int, changed: Sequence[Change]) -> None:
    """Tell what is about to be trained, and what the journal knows so far."""
    lines = opening_lines(course, loop, start, changed)
    length = {"steps": course.options.steps, "positions": course.options.tokens_per_step}
    progress.tell("opening", start, {"lines": lines, **length, "entries": loop.journal.read()})


def _change(kind: str, values: Mapping[str, Any]) -> list[Change]:
    return [Change(values["key"], values["was"], values["now"], False)] if kind == "changed" else []


def _without_errors(settings: TrainVerbSettings) -> tuple[Family, BaseFiles]:
    """What `check` finds, but for the data, must hold no error; gives the base that it looked at."""
    values = {name: getattr(settings, name) for name in RunSettings.model_fields}
    with opened(CheckSettings(run=settings.run, **values)) as subject:
        refuse(look_at(subject, data=False).findings)
        if subject.family is None or subject.base is None:
            raise ConfigError("config-missing", "`base` is not given", where=settings.run / RUN_FILE)
        return subject.family, subject.base


def _loop(course: Course, group: Processes) -> Loop:
    """Everything fitted together, before the first step."""
    trained = _model(course)
    options = course.options
    order = course.stream.options
    near, unscored = course.near, course.unscored
    examples = Examples(course.family, trained.model, course.train, options.emotion_from, near, unscored)
    frozen = _frozen_copy(course) if near and trained.gate is None else None
    stepper = Stepper(trained, make_optimizer(trained, options), examples, options, group, frozen)
    validations = {}
    for language, sets in course.valid.items():
        held_out = Examples(course.family, trained.model, sets, options.emotion_from)
        items = items_of(sets, options.seed, order)
        # A base language is spoken with the gate closed, unless the adapter is to be folded in.
        is_open = options.mode == "merged" or language == course.graft.card.language
        validations[language] = Validation(trained, held_out, items, options.pack_tokens, is_open=is_open)
    loop = Loop(course.run, stepper, course.stream, validations, course.every)
    loop.identity, loop.bound = course.identity, course.bound
    loop.is_trained_graft = "trained" in course.graft.card.method
    loop.pieces = [piece or "" for piece in course.graft.tokenizer.pieces[course.graft.card.base_pieces :]]
    loop.observers.append(progress.tell)
    return loop


def _sentences(course: Course, settings: TrainVerbSettings) -> list[Sentence]:
    held_out = held_out_texts(course.valid[course.graft.card.language])
    return sentences_of(course.spelling, settings.train.sample_texts, held_out, course.options.seed)


def _watch(course: Course, loop: Loop, sentences: Sequence[Sentence]) -> Watch:
    """What looks whether the model learns, and speaks some sentences on the way."""
    if sentences:
        sounds = loop.first and course.settings.train.sample_sound
        vocoder = course.family.vocoder(course.files, course.device) if sounds else None
        loop.samplers.append(Sampler(loop, sentences, vocoder))
    pieces, stepper = course.graft.tokenizer.pieces, loop.stepper
    rows = RowWatch(stepper.trained, stepper.optimizer, course.stream, course.train, lambda at: str(pieces[at]))
    return Watch(loop, rows)


def _frozen_copy(course: Course) -> SpeechModel:
    """The base, to stay near to where the body itself is trained."""
    dtype = HALF.get(course.options.precision, torch.float32)
    return open_model(course.family, course.files, device=course.device, dtype=dtype)


def _model(course: Course) -> Trained:
    """The body is kept in half precision where there is one; what is trained of it has float32 masters."""
    options = course.options
    dtype = HALF.get(options.precision, torch.float32)
    model = open_model(course.family, course.files, device=course.device, dtype=dtype)
    rows = {name: torch.from_numpy(values) for name, values in course.graft.rows.items()}
    return prepare(model, rows, options)
