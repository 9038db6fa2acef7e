"""Whether a run learns, in one word with its reason: too early, learning, stuck, good enough.

A pure function of what the journal holds and of the options, so that a run that was stopped and gone on with says the
same. docs/watching.md has the definitions for people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from voxgraft.core.errors import Finding, finding
from voxgraft.core.journal import History
from voxgraft.training.options import TrainOptions, learning_rate_factor

__all__ = [
    "LearningState",
    "LearningStatus",
    "LearningThresholds",
    "ValidationPoint",
    "assess_learning",
    "list_validation_points",
]

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
