"""Whether a run learns, in one word with its reason: too early, learning, stuck, good enough.

A pure function of what the journal holds and of the options, so that a run that was stopped and gone on with says the
same. docs/training.md has the definitions for people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import Finding, finding
from voxgraft.core.journal import History, as_finite_float
from voxgraft.dataset.checks import count_text_ids
from voxgraft.dataset.sampler import DeterministicSampler
from voxgraft.dataset.shards import ClipDataset
from voxgraft.nn.rows import GrownLayer, RowLayout
from voxgraft.training.callbacks import Callback
from voxgraft.training.trainable import TrainableModel, learning_rate_factor
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import ValidationMetrics

LearningState = Literal["too early", "learning", "stuck", "good enough"]
MIN_VALIDATIONS = 3
"""Step 0 and two validations."""
VOICE_USE_VALIDATIONS = 4


@dataclass(frozen=True, slots=True)
class LearningThresholds:
    """Where the line is drawn. Losses and uses are nats per speech code."""

    early_steps: int = 200
    """Nothing is judged before this step, nor before twice the warm-up."""
    low_text_use: float = 0.02
    """Below this, twice one after another, the text makes no difference: the model does not read."""
    low_voice_use: float = 0.005
    """Below this, on average over four validations, the prompt makes no difference: the model does not hear."""
    unsure_voice_use: float = 0.02
    """The same below this, where the average is also less than twice its standard error."""
    good_text_use: float = 0.1
    """From here on a model reads."""
    better: float = 0.005
    """A loss is better when it is lower by more than this share of the one that it is compared with."""
    flat_rounds: int = 4
    """Validations without a better one that make a plateau, when they also are as many steps as `early_steps`."""
    min_rate_factor: float = 0.5
    """A plateau is told while the rates have at least this share of their height; at their end the loss may be flat."""
    good_loss_fall: float = 0.1
    """Where text use cannot be measured: the share by which the loss has fallen in a model that has learnt."""


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """One validation of the new language. A use is None where it cannot be measured."""

    step: int
    speech_loss: float
    text_use: float | None = None
    voice_use: float | None = None
    text_loss: float | None = None


@dataclass(frozen=True, slots=True)
class LearningStatus:
    """The state word, why, and what is to be told."""

    state: LearningState
    why: str
    findings: tuple[Finding, ...] = ()


def list_validation_points(history: History) -> list[ValidationPoint]:
    """All validations of the new language that the journal tells of, by step."""
    others = [dict(history.held_out(key)) for key in ("text_use", "voice_use", "text_loss")]
    return [
        ValidationPoint(step, loss, *(known.get(step) for known in others))
        for step, loss in history.held_out("speech_loss")
    ]


def assess_learning(
    looks: Sequence[ValidationPoint],
    options: TrainOptions,
    chance: float | None = None,
    limits: LearningThresholds | None = None,
) -> LearningStatus:
    """The state after the last of the looks. `chance` is the speech loss of a model that knows nothing."""
    limits = limits or LearningThresholds()
    step = looks[-1].step if looks else 0
    early = max(limits.early_steps, 2 * options.warmup_steps)
    if step < early or len(looks) < MIN_VALIDATIONS:
        return LearningStatus("too early", f"step {step:,}; judged from step {early:,} on")
    judged = [look for look in looks if look.step >= early]
    mark = _find_last_improvement(looks, limits.better)
    flat, learnt = _is_plateau(looks, mark, limits), _has_learned(looks, limits)
    stuck = _check_no_gain(looks, chance, limits) or _check_text_use(judged, limits)
    if options.text_weight and not stuck:
        stuck = _check_text_loss(looks[0], judged)
    if not stuck and flat and not learnt and learning_rate_factor(step, options) >= limits.min_rate_factor:
        stuck = [finding("plateau", _format_plateau(mark, limits), expected=_format_plateau_expectation(limits))]
    told = (*stuck, *_check_voice_use(judged, options, limits))
    if stuck or (flat and not learnt):
        return LearningStatus("stuck", stuck[0].found if stuck else _format_plateau(mark, limits), told)
    if flat:
        return LearningStatus("good enough", f"{_format_uses(looks[-1])}; {_format_plateau(mark, limits)}", told)
    first, last = looks[0], looks[-1]
    fallen = f"held-out speech loss {last.speech_loss:.3f}, at step {first.step:,} it was {first.speech_loss:.3f}"
    best = min(looks, key=lambda look: look.speech_loss)
    if best.step < last.step:
        fallen += f", and {best.speech_loss:.3f} at step {best.step:,}, the best"
    return LearningStatus("learning", f"{fallen}; {_format_uses(last)}", told)


def _find_last_improvement(looks: Sequence[ValidationPoint], better: float) -> ValidationPoint:
    """The last look that was better than the mark before it. Slow gains add up until they are one."""
    mark = looks[0]
    for look in looks[1:]:
        if look.speech_loss < (1 - better) * mark.speech_loss:
            mark = look
    return mark


def _is_plateau(looks: Sequence[ValidationPoint], mark: ValidationPoint, limits: LearningThresholds) -> bool:
    rounds = sum(look.step > mark.step for look in looks)
    return rounds >= limits.flat_rounds and looks[-1].step - mark.step >= limits.early_steps


def _has_learned(looks: Sequence[ValidationPoint], limits: LearningThresholds) -> bool:
    """Whether the model reads; where that cannot be measured, whether its loss has fallen well."""
    use = looks[-1].text_use
    if use is not None:
        return use >= limits.good_text_use
    return looks[-1].speech_loss < (1 - limits.good_loss_fall) * looks[0].speech_loss


# What is found names where it began and no value of the day, so that it stays the same text while it lasts.


def _check_no_gain(looks: Sequence[ValidationPoint], chance: float | None, limits: LearningThresholds) -> list[Finding]:
    """No look is better than the model was at the start, or than guessing."""
    start = looks[0].speech_loss
    by_chance = chance is not None and chance < start
    level = chance if chance is not None and by_chance else start
    if min(look.speech_loss for look in looks[1:]) < (1 - limits.better) * level:
        return []
    which = "what guessing gives" if by_chance else f"its level at step {looks[0].step:,}"
    return [finding("no-gain", f"held-out speech loss has not come below {level:.3f}, {which}", expected="a fall")]


def _check_text_use(judged: Sequence[ValidationPoint], limits: LearningThresholds) -> list[Finding]:
    low = limits.low_text_use
    since = _find_first_step_holding(judged, 2, lambda pair: all(_is_below(look.text_use, low) for look in pair))
    found = f"text use has been under {low:g} since step {since or 0:,}"
    return [finding("not-reading", found, expected=f"{low:g} or more")] if since is not None else []


def _check_voice_use(
    judged: Sequence[ValidationPoint], options: TrainOptions, limits: LearningThresholds
) -> list[Finding]:
    """No alarm where rows alone are trained: they teach nobody to hear, and learn to read all the same."""
    since = _find_first_step_holding(
        judged, VOICE_USE_VALIDATIONS, lambda four: _is_voice_unused([look.voice_use for look in four], limits)
    )
    if since is None:
        return []
    found = f"voice use has been near zero since step {since:,}"
    expected = f"{limits.low_voice_use:g} or more on average of {VOICE_USE_VALIDATIONS} validations"
    if options.mode == "rows-only":
        cure = "none is needed for reading; to teach the voices as well, train an adapter (train.mode: gated)."
        return [finding("not-hearing", found, expected=expected, cure=cure, level="note")]
    return [finding("not-hearing", found, expected=expected)]


def _check_text_loss(first: ValidationPoint, judged: Sequence[ValidationPoint]) -> list[Finding]:
    """The text loss of held-out recordings is no lower than it was: what is learnt are other texts."""
    level = first.text_loss
    if level is None:
        return []
    since = _find_first_step_holding(
        judged, 2, lambda pair: all(look.text_loss is not None and look.text_loss >= level for look in pair)
    )
    found = f"held-out text loss has been over {level:.3f}, its level at step {first.step:,}, since step {since or 0:,}"
    return [finding("other-texts", found, expected="a fall")] if since is not None else []


def _is_below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


def _is_voice_unused(uses: Sequence[float | None], limits: LearningThresholds) -> bool:
    """Whether uses are zero as far as can be told: another prompt helps in some clips and hurts in others."""
    known = [use for use in uses if use is not None]
    if len(known) < len(uses):
        return False
    average, error = mean(known), stdev(known) / math.sqrt(len(known))
    return average < limits.low_voice_use or (average < limits.unsure_voice_use and average < 2 * error)


def _find_first_step_holding(
    judged: Sequence[ValidationPoint], count: int, holds: Callable[[Sequence[ValidationPoint]], bool]
) -> int | None:
    """The first step of the looks over which something has held up to the last, always of so many in a row."""
    since = None
    for end in range(len(judged), count - 1, -1):
        if not holds(judged[end - count : end]):
            break
        since = judged[end - count].step
    return since


def _format_plateau(mark: ValidationPoint, limits: LearningThresholds) -> str:
    share = f"{limits.better:.1%}"
    return (
        f"held-out speech loss has not fallen by {share} since step {mark.step:,}, where it was {mark.speech_loss:.3f}"
    )


def _format_plateau_expectation(limits: LearningThresholds) -> str:
    return f"a fall within {limits.flat_rounds} validations while the rates are up"


def _format_uses(look: ValidationPoint) -> str:
    shown = {"text use": look.text_use, "voice use": look.voice_use}
    return ", ".join(f"{name} {'not measured' if use is None else f'{use:.3f}'}" for name, use in shown.items())


DEAD_ROW_WINDOW_STEPS = 250
"""Steps before a look whose texts count. A moment fades, but not within so few steps."""
MIN_CLIPS_SEEN = 3
"""Clips that must have had a piece: under a loss scaler, steps may be left out at the beginning."""
MAX_ROWS_NAMED = 8


class DeadRowMonitor:
    """Looks for dead rows of one training."""

    def __init__(
        self,
        trained: TrainableModel,
        optimizer: torch.optim.Optimizer,
        stream: DeterministicSampler,
        sets: Sequence[ClipDataset],
        piece_of: Callable[[int], str],
    ) -> None:
        """`piece_of` gives the piece of an id, as people know it."""
        self._trained, self._optimizer, self._piece_of = trained, optimizer, piece_of
        self._stream, self._sets = stream, sets
        self._in_data: NDArray[np.bool_] | None = None

    def findings(self, step: int) -> list[Finding]:
        """Dead rows of each text table after a step. The same rows give the same text."""
        layers = self._layers()
        if not layers or step < 1:
            return []
        layout = next(iter(layers.values())).rows
        still = {name: self._rows_in_data(layout) & ~self._rows_with_gradient(layer) for name, layer in layers.items()}
        if not any(rows.any() for rows in still.values()):
            return []
        met = self._count_clips_seen(step, layout) >= MIN_CLIPS_SEEN
        return [
            self._finding(name, np.flatnonzero(rows & met) + layout.base_pieces, int(met.sum()))
            for name, rows in still.items()
            if (rows & met).any()
        ]

    def _layers(self) -> Mapping[str, GrownLayer]:
        model = self._trained.model
        names = (model.text_embedding_name, model.text_head_name)
        modules = {name: model.get_submodule(name) for name in names}
        return {name: found for name, found in modules.items() if isinstance(found, GrownLayer) and found.rows.num_new}

    def _rows_in_data(self, layout: RowLayout) -> NDArray[np.bool_]:
        """Rows whose pieces stand in the data at all, counted once. [N]"""
        if self._in_data is None:
            self._in_data = count_text_ids(self._sets, layout.num_ids)[layout.base_pieces :] > 0
        return self._in_data

    def _count_clips_seen(self, step: int, layout: RowLayout) -> NDArray[np.int64]:
        """In how many clips of the last steps each new row's piece was to be seen. [N]"""
        met = np.zeros(layout.num_new, dtype=np.int64)
        for number in range(max(1, step - DEAD_ROW_WINDOW_STEPS + 1), step + 1):
            for item in self._stream.step(number):
                if not item.silent:
                    rows = np.unique(self._sets[item.set].text_ids(item.clip)) - layout.base_pieces
                    met[rows[(rows >= 0) & (rows < layout.num_new)]] += 1
        return met

    def _rows_with_gradient(self, layer: GrownLayer) -> NDArray[np.bool_]:
        """Rows whose weight has had a gradient, as the moments tell. [N]"""
        moments = self._optimizer.state.get(layer.new_weight, {})
        alive = torch.zeros(layer.rows.num_new, dtype=torch.bool, device=layer.new_weight.device)
        for name in ("exp_avg", "exp_avg_sq"):
            if isinstance(moments.get(name), Tensor):
                alive |= (moments[name] != 0).any(dim=1)
        found: NDArray[np.bool_] = alive.cpu().numpy()
        return found

    def _finding(self, table: str, ids: NDArray[np.int64], num_met: int) -> Finding:
        named = ", ".join(f"{self._piece_of(token)!r} ({token})" for token in ids[:MAX_ROWS_NAMED].tolist())
        more = f" and {len(ids) - MAX_ROWS_NAMED:,} more" if len(ids) > MAX_ROWS_NAMED else ""
        text = f"{len(ids):,} new rows whose pieces were learnt from have had no gradient: {named}{more}"
        return finding("dead-rows", text, expected=f"none of {num_met:,}", where=table)


class LearningMonitor(Callback):
    """Watches one training, on the process that writes."""

    def __init__(
        self, loop: Trainer, rows: DeadRowMonitor | None = None, limits: LearningThresholds | None = None
    ) -> None:
        self._trainer, self._rows, self._limits = loop, rows, limits or LearningThresholds()
        self._history: History | None = None
        self._status: LearningStatus | None = None
        loop.callbacks.append(self)

    def tell(self, step: int, findings: Iterable[Finding]) -> list[Finding]:
        """Write findings that are not in the journal yet, or no longer what it says; gives those that are there."""
        known: list[Finding] = []
        for item in findings if self._trainer.first else ():
            if self._last(item) == item.to_json():
                known.append(item)
            else:
                self._trainer.write("finding", step, **item.to_json())
        return known

    def on_validation(self, step: int, metrics: dict[str, ValidationMetrics]) -> dict[str, Any]:
        """The learning status: its word, and why."""
        now = next(iter(metrics.values()), None)
        if now is None or not self._trainer.first:
            return {}
        self._status = self._judged(step, now)
        return {"state": self._status.state, "why": self._status.why}

    def _judged(self, step: int, now: ValidationMetrics) -> LearningStatus:
        loss = as_finite_float(now.speech_loss)
        if loss is None:
            item = finding("loss-not-finite", "the loss of held-out recordings is not finite", expected="a number")
            return LearningStatus("stuck", item.found, (item,))
        known = self._known()
        look = ValidationPoint(step, loss, *map(as_finite_float, (now.text_use, now.voice_use, now.text_loss)))
        looks = [*(one for one in list_validation_points(known) if one.step < step), look]
        return assess_learning(looks, self._trainer.stepper.options, known.chance.get("speech_loss"), self._limits)

    def stop_reason(self, step: int, _metrics: dict[str, ValidationMetrics]) -> None:
        """After the validation's line: write what is wrong. Never a reason to stop; the user decides that."""
        if self._trainer.first:
            judged = self._status.findings if self._status else ()
            self.tell(step, (*judged, *(self._rows.findings(step) if self._rows else ())))

    def on_log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        if self._history is not None and kind != "step":  # many, long, and nothing here depends on them
            self._history.add(kind, step, values)

    def _known(self) -> History:
        """The journal so far. It is read late, when a run that is gone on with has cut it, and then kept up."""
        if self._history is None:
            self._history = History.of(entry for entry in self._trainer.journal.read() if entry["kind"] != "step")
        return self._history

    def _last(self, item: Finding) -> dict[str, str] | None:
        """What the journal said last under this code of this place."""
        for event in reversed(self._known().findings):
            said = {name: str(event.values.get(name, "")) for name in item.to_json()}
            if (said["code"], said["where"]) == (item.code, item.where):
                return said
        return None
