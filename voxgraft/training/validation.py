"""Losses on recordings that are never learnt from, and whether the model reads the text and hears the voice.

Text use is the speech loss with another sentence's text less the loss with the right text; voice use the same with
another speaker's prompt. When they stay near zero, the model is not reading, however its loss falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from voxgraft.corpus.packs import pack_microbatches
from voxgraft.corpus.stream import Sample
from voxgraft.families.model import compute_losses
from voxgraft.training.examples import BatchBuilder
from voxgraft.training.parts import TrainableModel

__all__ = ["ValidationMetrics", "Validator"]

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
    """The same items in the same packs every time."""

    def __init__(
        self,
        trained: TrainableModel,
        examples: BatchBuilder,
        items: Sequence[Sample],
        pack_tokens: int,
        *,
        is_open: bool = True,
    ) -> None:
        """`is_open` says whether the adapter acts for these items: not for a base language of a gated graft."""
        self.is_open = is_open
        self.trained, self.batch_builder, self.items, self.pack_tokens = trained, examples, tuple(items), pack_tokens
        # Spread over the whole set, which is sorted by recording.
        step = max(1, len(self.items) // MAX_SWAPPED_ITEMS)
        self._swap_items = self.items[::step][:MAX_SWAPPED_ITEMS]

    def run(self) -> ValidationMetrics:
        """All losses anew, with the gate as in speaking."""
        text, speech = self._losses(self.items)
        right = self._losses(self._swap_items)[1]
        texts, voices = self._find_swaps(self._text), self._find_swaps(self._speaker)
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
        sums, counts = [0.0, 0.0], [0, 0]
        lengths = [self._length(item, text) for item, text in zip(items, texts or items, strict=True)]
        for chosen in pack_microbatches(lengths, max(self.pack_tokens, *lengths)):
            mine, their_texts, their_voices = (
                [group[index] for index in chosen] if group else () for group in (items, texts, voices)
            )
            batch = self.batch_builder.batch(mine, their_texts, their_voices)
            with self._set_gate():
                found = compute_losses(self.trained.model, batch)
            for at, (total, count) in enumerate(
                ((found.text_sum, found.text_count), (found.speech_sum, found.speech_count))
            ):
                sums[at] += float(total)
                counts[at] += count
        return sums[0] / max(1, counts[0]), sums[1] / max(1, counts[1])

    def _set_gate(self) -> AbstractContextManager[None]:
        gate = self.trained.gate
        return nullcontext() if gate is None else gate.opened() if self.is_open else gate.closed()

    def _length(self, item: Sample, text: Sample) -> int:
        sets = self.batch_builder.sets
        own = self.batch_builder.num_positions(item)
        return own - int(sets[item.set].num_text[item.clip]) + int(sets[text.set].num_text[text.clip])

    def _find_swaps(self, key: object) -> Sequence[Sample] | None:
        """For each item another one that differs in what matters; None where there is none."""
        assert callable(key)
        swapped = []
        count = len(self._swap_items)
        for at, item in enumerate(self._swap_items):
            others = (self._swap_items[(at + shift) % count] for shift in range(1, count))
            other = next((one for one in others if key(one) != key(item)), None)
            if other is None:
                return None
            swapped.append(other)
        return swapped

    def _text(self, item: Sample) -> bytes:
        return self.batch_builder.sets[item.set].text_ids(item.clip).tobytes()

    def _speaker(self, item: Sample) -> str:
        return self.batch_builder.sets[item.set].infos[item.clip].speaker
