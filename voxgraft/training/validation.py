"""Losses on recordings that are never trained on, and what they say: whether the model reads, learns, or is stuck.

Text use is the speech loss with another sentence's text less the loss with the right text; voice use the same with
another speaker's prompt. When they stay near zero, the model is not reading, however its loss falls. The state of
learning (too early, learning, stuck, good enough) is a pure function of the journal and the options, so a resumed run
says the same; docs/training.md has the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import Finding, finding
from voxgraft.core.run import History, as_finite_float
from voxgraft.dataset.sampler import DeterministicSampler, Sample, pack_microbatches
from voxgraft.dataset.sets import count_text_ids
from voxgraft.dataset.shards import ClipDataset
from voxgraft.models.speech_model import compute_losses
from voxgraft.nn.adapter import find_lora_layers
from voxgraft.nn.rows import GrownLayer
from voxgraft.training.callbacks import Callback
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.trainable import TrainableModel, learning_rate_factor

if TYPE_CHECKING:
    from voxgraft.training.trainer import Trainer

MAX_SWAPPED_ITEMS = 64
"""Items on which text use and voice use are measured."""


@dataclass(frozen=True, slots=True)
class ValidationMetrics:
    """What validation found. A use is None where there are not two texts, or two speakers, to swap."""

    text_loss: float
    speech_loss: float
    text_use: float | None
    voice_use: float | None
    num_clips: int


class Validator:
    """Measures the same items in the same microbatches every time."""

    def __init__(
        self,
        trained: TrainableModel,
        examples: BatchBuilder,
        items: Sequence[Sample],
        microbatch_tokens: int,
        *,
        is_open: bool = True,
    ) -> None:
        """`is_open` says whether the adapter acts for these items: not for a base language of a gated graft."""
        self.trained, self.batch_builder, self.items = trained, examples, tuple(items)
        self.microbatch_tokens, self.is_open = microbatch_tokens, is_open
        # Spread over the whole set, which is sorted by recording.
        step = max(1, len(self.items) // MAX_SWAPPED_ITEMS)
        self._swap_items = self.items[::step][:MAX_SWAPPED_ITEMS]

    def run(self) -> ValidationMetrics:
        """Measure all losses, with the gate as in speaking."""
        text, speech = self._losses(self.items)
        right = self._losses(self._swap_items)[1]
        sets = self.batch_builder.sets
        texts = self._find_swaps(lambda item: sets[item.set].text_ids(item.clip).tobytes())
        voices = self._find_swaps(lambda item: sets[item.set].infos[item.clip].speaker)
        return ValidationMetrics(
            text,
            speech,
            None if texts is None else self._losses(self._swap_items, texts=texts)[1] - right,
            None if voices is None else self._losses(self._swap_items, voices=voices)[1] - right,
            len(self.items),
        )

    @torch.no_grad()
    def _losses(
        self, items: Sequence[Sample], texts: Sequence[Sample] = (), voices: Sequence[Sample] = ()
    ) -> tuple[float, float]:
        """Mean text and speech loss; `texts` and `voices` replace the items' own."""
        sums, counts = [0.0, 0.0], [0, 0]
        sets, gate = self.batch_builder.sets, self.trained.gate
        lengths = [
            self.batch_builder.num_positions(item)
            - int(sets[item.set].num_text[item.clip])
            + int(sets[text.set].num_text[text.clip])
            for item, text in zip(items, texts or items, strict=True)
        ]
        for chosen in pack_microbatches(lengths, max(self.microbatch_tokens, *lengths)):
            mine, their_texts, their_voices = (
                [group[index] for index in chosen] if group else () for group in (items, texts, voices)
            )
            batch = self.batch_builder.batch(mine, their_texts, their_voices)
            with nullcontext() if gate is None else gate.opened() if self.is_open else gate.closed():
                found = compute_losses(self.trained.model, batch)
            for at, (total, count) in enumerate(
                ((found.text_sum, found.text_count), (found.speech_sum, found.speech_count))
            ):
                sums[at] += float(total)
                counts[at] += count
        return sums[0] / max(1, counts[0]), sums[1] / max(1, counts[1])

    def _find_swaps(self, key: Callable[[Sample], object]) -> Sequence[Sample] | None:
        """For each item another one with a different key; None where one item has no such other."""
        swapped = []
        count = len(self._swap_items)
        for at, item in enumerate(self._swap_items):
            others = (self._swap_items[(at + shift) % count] for shift in range(1, count))
            other = next((one for one in others if key(one) != key(item)), None)
            if other is None:
                return None
            swapped.append(other)
        return swapped


@dataclass(frozen=True, slots=True)
class RetentionBound:
    """The share by which the loss of every base language may rise at most."""

    share: float
    languages: frozenset[str]

    def exceeded(self, first: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
        """Languages past the bound, and by which share of its first loss each has risen; the worst first.

        A language without a first loss cannot be judged.
        """
        rises = {
            name: now[name] / first[name] - 1
            for name in sorted(self.languages & first.keys() & now.keys())
            # Negated, so that a loss that is NaN is past every bound.
            if not now[name] <= first[name] * (1 + self.share)
        }
        return dict(sorted(rises.items(), key=lambda item: -item[1]))


AsrErrorFunction = Callable[[str], float | None]
"""The error of the new language as it is transcribed from the model as it is now; it is given a word for the
progress."""


@dataclass(frozen=True, slots=True)
class InterpolationPoint:
    """A point between base (0) and tuned (1), and the held-out speech losses there, the new language's first."""

    share: float
    losses: dict[str, float]
    exceeded: dict[str, float]
    """Base languages that are past the bound there, and by how much they have risen."""
    error: float | None = None
    """Of the new language as it is transcribed there, where something listens."""

    def to_json(self) -> dict[str, Any]:
        error_entry = {} if self.error is None else {"heard_error": self.error}
        return {"share": self.share, "speech_losses": self.losses, "past_bound": self.exceeded, **error_entry}


class WeightInterpolator:
    """A tuned model that can be taken back towards its base for a while."""

    def __init__(self, trained: TrainableModel, base: Mapping[str, Tensor]) -> None:
        """`base` has the base's own values of the backbone, where the backbone itself was trained; else it is empty."""
        self.trained, self.base = trained, base

    @contextmanager
    def at(self, share: float) -> Iterator[None]:
        """The model is at that point inside this block."""
        layers = list(find_lora_layers(self.trained.model).values())
        alphas = [layer.alpha for layer in layers]
        body = self.trained.optimizer_parameters("body") if "body" in self.trained.parameters else {}
        tuned = {name: value.detach().clone() for name, value in body.items()}

        @torch.no_grad()
        def load(values: Mapping[str, Tensor]) -> None:
            for name, value in values.items():
                body[name].copy_(value)
            self.trained.masters.copy_to_model()

        try:
            for layer, alpha in zip(layers, alphas, strict=True):
                layer.alpha = alpha * share
            # Training started from the base's values rounded to the dtype of the model's parameters.
            starts = {name: self.base[name].to(self.trained.parameters["body"][name].dtype) for name in tuned}
            load({name: interpolate_tensor(self.base[name], starts[name], tuned[name], share) for name in tuned})
            yield
        finally:
            for layer, alpha in zip(layers, alphas, strict=True):
                layer.alpha = alpha
            load(tuned)


def interpolate_tensor(base: Tensor, start: Tensor, tuned: Tensor, share: float) -> Tensor:
    """The base's values plus a share of what training added to those that it started from, in the base's dtype.

    Training may start from rounded values; what was lost there comes back with the base. Summed in float64, so that
    nothing added leaves the base's bits, and all of it gives the tuned ones.
    """
    added = tuned.to(base.device, torch.float64) - start.to(base.device, torch.float64)
    return (base.to(torch.float64) + share * added).to(base.dtype)


def measure_interpolation_points(
    interpolator: WeightInterpolator,
    validations: Mapping[str, Validator],
    shares: Sequence[float],
    passed: Callable[[Mapping[str, float]], dict[str, float]],
    asr_error: AsrErrorFunction | None = None,
) -> list[InterpolationPoint]:
    """Held-out speech losses of every language at each point, in the order of the shares, and the transcript there.

    `passed` names the base languages whose losses are past their bound.
    """
    points = []
    for share in sorted(set(shares)):
        with interpolator.at(share):
            losses = {name: validation.run().speech_loss for name, validation in validations.items()}
            error = asr_error(f"interpolation weight {share:g}") if asr_error else None
        points.append(InterpolationPoint(share, losses, passed(losses), error))
    return points


def choose_interpolation_point(points: Sequence[InterpolationPoint]) -> InterpolationPoint:
    """The best in the new language among the points within the bound; where there is none, nearest to the base.

    By the transcript where every point was listened to, else by loss. Of two that are equal the one nearer to the base.
    """
    within = [point for point in points if not point.exceeded]
    if not within:
        return min(points, key=lambda point: point.share)
    if all(point.error is not None for point in within):
        return min(within, key=lambda point: (point.error, point.share))
    return min(within, key=lambda point: (next(iter(point.losses.values())), point.share))


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
    """Below this, on average over four validations, the prompt makes no difference: the model does not use the
    voice."""
    unsure_voice_use: float = 0.02
    """The same below this, where the average is also less than twice its standard error."""
    good_text_use: float = 0.1
    """From here on a model reads."""
    better: float = 0.005
    """A loss is better when it is lower by more than this share of the one that it is compared with."""
    flat_rounds: int = 4
    """Validations without a better one that make a plateau, when they also are as many steps as `early_steps`."""
    min_rate_factor: float = 0.5
    """A plateau is reported while the learning rates have at least this share of their peak; later it is normal."""
    good_loss_fall: float = 0.1
    """Where text use cannot be measured: the share by which the loss has fallen in a model that has learned."""


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
    """The state word, why, and what is to be reported."""

    state: LearningState
    why: str
    findings: tuple[Finding, ...] = ()


def list_validation_points(history: History) -> list[ValidationPoint]:
    """All validations of the new language that the journal reports, by step."""
    others = [dict(history.held_out(key)) for key in ("text_use", "voice_use", "text_loss")]
    return [
        ValidationPoint(step, loss, *(known.get(step) for known in others))
        for step, loss in history.held_out("speech_loss")
    ]


def assess_learning(
    points: Sequence[ValidationPoint],
    options: TrainOptions,
    chance: float | None = None,
    limits: LearningThresholds | None = None,
) -> LearningStatus:
    """The state after the last of the looks. `chance` is the speech loss of a model that knows nothing."""
    # What is found names where it began and no current value, so that it stays the same text while it lasts.
    limits = limits or LearningThresholds()
    step = points[-1].step if points else 0
    early = max(limits.early_steps, 2 * options.warmup_steps)
    if step < early or len(points) < MIN_VALIDATIONS:
        too_short = f", after the end of this run ({options.steps:,} steps)" if early > options.steps else ""
        return LearningStatus("too early", f"step {step:,}; first judged at step {early:,}{too_short}")
    first, last = points[0], points[-1]
    judged = [point for point in points if point.step >= early]

    # The last look that was better than the mark before it. Slow gains add up until they are one.
    mark = first
    for point in points[1:]:
        if point.speech_loss < (1 - limits.better) * mark.speech_loss:
            mark = point
    rounds = sum(point.step > mark.step for point in points)
    flat = rounds >= limits.flat_rounds and last.step - mark.step >= limits.early_steps
    plateau = (
        f"held-out speech loss has not fallen by {limits.better:.1%} since step {mark.step:,}, "
        f"where it was {mark.speech_loss:.3f}"
    )
    # Whether the model reads; where that cannot be measured, whether its loss has fallen well.
    if last.text_use is not None:
        learned = last.text_use >= limits.good_text_use
    else:
        learned = last.speech_loss < (1 - limits.good_loss_fall) * first.speech_loss

    stuck: Finding | None = None
    by_chance = chance is not None and chance < first.speech_loss
    level = chance if chance is not None and by_chance else first.speech_loss
    if min(point.speech_loss for point in points[1:]) >= (1 - limits.better) * level:
        which = "what guessing gives" if by_chance else f"its level at step {first.step:,}"
        found = f"held-out speech loss has not fallen below {level:.3f}, {which}"
        stuck = finding("no-gain", found, expected="a fall")
    if not stuck:
        low = limits.low_text_use
        since = _find_first_step_holding(
            judged, 2, lambda pair: all(point.text_use is not None and point.text_use < low for point in pair)
        )
        if since is not None:
            found = f"text use has been under {low:g} since step {since:,}"
            stuck = finding("not-reading", found, expected=f"{low:g} or more")
    start = first.text_loss
    if not stuck and options.text_weight and start is not None:
        # The held-out text loss is no lower than at the start: the texts that are learned are others.
        since = _find_first_step_holding(
            judged, 2, lambda pair: all(point.text_loss is not None and point.text_loss >= start for point in pair)
        )
        if since is not None:
            found = f"held-out text loss has been over {start:.3f}, its level at step {first.step:,}, "
            stuck = finding("other-texts", f"{found}since step {since:,}", expected="a fall")
    if not stuck and flat and not learned and learning_rate_factor(step, options) >= limits.min_rate_factor:
        expected = f"a decrease within {limits.flat_rounds} validations while the learning rates are high"
        stuck = finding("plateau", plateau, expected=expected)

    findings = (*([stuck] if stuck else []), *_check_voice_use(judged, options, limits))
    if stuck or (flat and not learned):
        return LearningStatus("stuck", stuck.found if stuck else plateau, findings)
    use_values = {"text use": last.text_use, "voice use": last.voice_use}
    uses = ", ".join(f"{name} {'not measured' if use is None else f'{use:.3f}'}" for name, use in use_values.items())
    if flat:
        return LearningStatus("good enough", f"{uses}; {plateau}", findings)
    fallen = f"held-out speech loss {last.speech_loss:.3f}, at step {first.step:,} it was {first.speech_loss:.3f}"
    best = min(points, key=lambda point: point.speech_loss)
    if best.step < last.step:
        fallen += f", and {best.speech_loss:.3f} at step {best.step:,}, the best"
    return LearningStatus("learning", f"{fallen}; {uses}", findings)


def _check_voice_use(
    judged: Sequence[ValidationPoint], options: TrainOptions, limits: LearningThresholds
) -> list[Finding]:
    """Only a note where rows alone are trained: they cannot teach the model voices, and learn to read anyway."""

    def unused(looks: Sequence[ValidationPoint]) -> bool:
        uses = [look.voice_use for look in looks if look.voice_use is not None]
        if len(uses) < len(looks):
            return False
        # Zero within the noise: another prompt helps in some clips and hurts in others.
        average, error = mean(uses), stdev(uses) / math.sqrt(len(uses))
        return average < limits.low_voice_use or (average < limits.unsure_voice_use and average < 2 * error)

    since = _find_first_step_holding(judged, VOICE_USE_VALIDATIONS, unused)
    if since is None:
        return []
    found = f"voice use has been near zero since step {since:,}"
    expected = f"{limits.low_voice_use:g} or more on average of {VOICE_USE_VALIDATIONS} validations"
    if options.mode == "rows-only":
        cure = "no action needed for reading; to train the voices too, train an adapter (train.mode: gated)."
        return [finding("not-hearing", found, expected=expected, cure=cure, level="note")]
    return [finding("not-hearing", found, expected=expected)]


def _find_first_step_holding(
    judged: Sequence[ValidationPoint], count: int, holds: Callable[[Sequence[ValidationPoint]], bool]
) -> int | None:
    """The first step from which on every `count` looks in a row hold, up to the last; None where the last do not."""
    since = None
    for end in range(len(judged), count - 1, -1):
        if not holds(judged[end - count : end]):
            break
        since = judged[end - count].step
    return since


# Steps before a look whose texts count. A moment fades, but not within so few steps.
DEAD_ROW_WINDOW_STEPS = 250
# Clips that must have had a piece: under a loss scaler, steps may be left out at the beginning.
MIN_CLIPS_SEEN = 3
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
        model = self._trained.model
        modules = {name: model.get_submodule(name) for name in (model.text_embedding_name, model.text_head_name)}
        layers = {name: one for name, one in modules.items() if isinstance(one, GrownLayer) and one.rows.num_new}
        if not layers or step < 1:
            return []
        layout = next(iter(layers.values())).rows
        if self._in_data is None:  # rows whose pieces occur in the data at all. [N]
            self._in_data = count_text_ids(self._sets, layout.num_ids)[layout.base_pieces :] > 0
        still = {}
        for name, layer in layers.items():
            # A row has had a gradient if one of its moments is not zero.
            moments = self._optimizer.state.get(layer.new_weight, {})
            alive = torch.zeros(layout.num_new, dtype=torch.bool, device=layer.new_weight.device)
            for moment in ("exp_avg", "exp_avg_sq"):
                if isinstance(moments.get(moment), Tensor):
                    alive |= (moments[moment] != 0).any(dim=1)
            still[name] = self._in_data & ~alive.cpu().numpy()
        if not any(rows.any() for rows in still.values()):
            return []

        # In how many clips of the last steps each new row's piece occurred. [N]
        num_clips = np.zeros(layout.num_new, dtype=np.int64)
        for number in range(max(1, step - DEAD_ROW_WINDOW_STEPS + 1), step + 1):
            for item in self._stream.step(number):
                if not item.silent:
                    rows = np.unique(self._sets[item.set].text_ids(item.clip)) - layout.base_pieces
                    num_clips[rows[(rows >= 0) & (rows < layout.num_new)]] += 1
        met = num_clips >= MIN_CLIPS_SEEN
        found = []
        for name, rows in still.items():
            ids = (np.flatnonzero(rows & met) + layout.base_pieces).tolist()
            if ids:
                named = ", ".join(f"{self._piece_of(token)!r} ({token})" for token in ids[:MAX_ROWS_NAMED])
                more = f" and {len(ids) - MAX_ROWS_NAMED:,} more" if len(ids) > MAX_ROWS_NAMED else ""
                text = f"{len(ids):,} new rows in the training texts received no gradient: {named}{more}"
                found.append(finding("dead-rows", text, expected=f"none of {int(met.sum()):,}", where=name))
        return found


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
        """Write findings that are new or have changed to the journal; returns those that it already has."""
        known: list[Finding] = []
        for item in findings if self._trainer.first else ():
            # What the journal said last under this code of this place.
            previous = next(
                (
                    {name: str(event.values.get(name, "")) for name in item.to_json()}
                    for event in reversed(self._read_history().findings)
                    if (str(event.values.get("code", "")), str(event.values.get("where", "")))
                    == (item.code, item.where)
                ),
                None,
            )
            if previous == item.to_json():
                known.append(item)
            else:
                self._trainer.write("finding", step, **item.to_json())
        return known

    def on_validation(self, step: int, metrics: dict[str, ValidationMetrics]) -> dict[str, Any]:
        """The learning status: its word, and why."""
        now = next(iter(metrics.values()), None)
        if now is None or not self._trainer.first:
            return {}
        loss = as_finite_float(now.speech_loss)
        if loss is None:
            item = finding("loss-not-finite", "the validation loss is not finite", expected="a number")
            self._status = LearningStatus("stuck", item.found, (item,))
        else:
            known = self._read_history()
            look = ValidationPoint(step, loss, *map(as_finite_float, (now.text_use, now.voice_use, now.text_loss)))
            looks = [*(one for one in list_validation_points(known) if one.step < step), look]
            options, chance = self._trainer.stepper.options, known.chance.get("speech_loss")
            self._status = assess_learning(looks, options, chance, self._limits)
        return {"state": self._status.state, "why": self._status.why}

    def stop_reason(self, step: int, _metrics: dict[str, ValidationMetrics]) -> None:
        """After the validation's line: write what is wrong. Never a reason to stop; the user decides that."""
        if self._trainer.first:
            judged = self._status.findings if self._status else ()
            self.tell(step, (*judged, *(self._rows.findings(step) if self._rows else ())))

    def on_log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        if self._history is not None and kind != "step":  # many, long, and nothing here depends on them
            self._history.add(kind, step, values)

    def _read_history(self) -> History:
        """The journal so far. It is read late, after a resume has cut it, and then kept up to date by `on_log`."""
        if self._history is None:
            self._history = History.of(entry for entry in self._trainer.journal.read() if entry["kind"] != "step")
        return self._history
