"""Losses on recordings that are never trained on, and whether the model reads the text and uses the voice.

Text use is the speech loss with another sentence's text less the loss with the right text; voice use the same with
another speaker's prompt. When they stay near zero, the model is not reading, however its loss falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from voxgraft.dataset.sampler import Sample, pack_microbatches
from voxgraft.models.speech_model import compute_losses
from voxgraft.nn.adapter import find_lora_layers
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.trainable import TrainableModel

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
        heard = {} if self.error is None else {"heard_error": self.error}
        return {"share": self.share, "speech_losses": self.losses, "past_bound": self.exceeded, **heard}


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
    between: WeightInterpolator,
    validations: Mapping[str, Validator],
    shares: Sequence[float],
    passed: Callable[[Mapping[str, float]], dict[str, float]],
    hear: AsrErrorFunction | None = None,
) -> list[InterpolationPoint]:
    """Held-out speech losses of every language at each point, in the order of the shares, and the transcript there.

    `passed` names the base languages whose losses are past their bound.
    """
    points = []
    for share in sorted(set(shares)):
        with between.at(share):
            losses = {name: validation.run().speech_loss for name, validation in validations.items()}
            error = hear(f"interpolation weight {share:g}") if hear else None
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
