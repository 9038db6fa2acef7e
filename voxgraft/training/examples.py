"""From items of the data order to packed batches: text and codes of one clip, the voice of another.

Everything random was decided by the data order; here nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from voxgraft.corpus.clips import ClipDataset
from voxgraft.corpus.stream import Sample
from voxgraft.errors import VoxgraftError
from voxgraft.families.base import EmotionSource, Family
from voxgraft.families.encoding import Clip
from voxgraft.families.layout import IGNORED_TARGET, SequencePart, TokenSequence, build_sequence
from voxgraft.families.model import PackedBatch, SpeechModel, pack_batch
from voxgraft.families.moulds import BatchBucketSet, ClipLengths
from voxgraft.training.nearness import KLBatch

__all__ = ["BatchBuilder"]


@dataclass(frozen=True)
class BatchBuilder:
    """The sets of a run as what a model learns from."""

    family: Family
    model: SpeechModel
    sets: Sequence[ClipDataset]
    emotion_from: EmotionSource = "target"
    near: frozenset[int] = frozenset()
    """Sets (replay) on whose items the model is to stay near the base."""
    unscored: frozenset[int] = frozenset()
    """Those of them that no cross-entropy is taken of: what the base said itself teaches it nothing but its habits."""

    def batch(
        self,
        items: Sequence[Sample],
        texts: Sequence[Sample] = (),
        voices: Sequence[Sample] = (),
        device: str | None = None,
    ) -> PackedBatch:
        """A pack of items. `texts` and `voices` may name others whose text, or whose prompt, is used instead.

        On the model's device unless another is named.
        """
        texts, voices = texts or items, voices or items
        layouts = [self._layout(item, text) for item, text in zip(items, texts, strict=True)]
        layouts = [
            _drop_targets(layout) if item.set in self.unscored else layout
            for item, layout in zip(items, layouts, strict=True)
        ]
        return self._pack_items(items, layouts, voices, device)

    def kl_batch(self, items: Sequence[Sample]) -> KLBatch | None:
        """The items of a pack that are to stay near the base; None where there is none."""
        chosen = [item for item in items if item.set in self.near]
        if not chosen:
            return None
        batch = self._pack_items(chosen, [self._layout(item, item) for item in chosen], chosen)
        ends = np.cumsum([self.num_positions(item) for item in items])
        # The speech is the end of an item, and its last position is asked nothing.
        places = [
            np.arange(end - len(self.sets[item.set].codes(item.clip)) - 2, end - 1)
            for item, end in zip(items, ends, strict=True)
            if item.set in self.near
        ]
        return KLBatch(batch, torch.from_numpy(np.concatenate(places)).to(self.model.device))

    def num_scored_positions(self, items: Sequence[Sample]) -> tuple[int, int]:
        """Text and speech positions that items are asked about."""
        asked = [item for item in items if item.set not in self.unscored]
        text = sum(int(self.sets[item.set].num_text[item.clip]) + 1 for item in asked if not item.silent)
        return text, self._num_speech_positions(asked)

    def num_kl_positions(self, items: Sequence[Sample]) -> int:
        """Speech positions at which the items are to stay near the base."""
        return self._num_speech_positions([item for item in items if item.set in self.near])

    def num_positions(self, item: Sample) -> int:
        """Positions that an item takes in a pack."""
        clips = self.sets[item.set]
        frame = self.model.frame
        return frame.num_conditioning + int(clips.num_text[item.clip]) + 2 + int(clips.num_codes[item.clip]) + 2

    def cuda_graph_buckets(self, pack_tokens: int) -> BatchBucketSet:
        """The sizes that packs of these sets are filled up to."""
        slots = self.model.frame.num_conditioning
        lengths = [
            ClipLengths(np.asarray(clips.num_text) + 2, np.asarray(clips.num_codes) + 2, slots) for clips in self.sets
        ]
        return BatchBucketSet(lengths, pack_tokens)

    def name(self, item: Sample) -> str:
        """The clip's id, as the user knows it."""
        return self.sets[item.set].infos[item.clip].id

    def describe_item(self, item: Sample) -> str:
        """The clip's id and, since that may be what is wrong, the id of the one that lends its voice."""
        where, clip = item.prompt
        return f"{self.name(item)} with the voice of {self.sets[where].infos[clip].id}"

    def _pack_items(
        self,
        items: Sequence[Sample],
        layouts: Sequence[TokenSequence],
        voices: Sequence[Sample],
        device: str | None = None,
    ) -> PackedBatch:
        """A pack; what cannot be packed is looked for one by one, so that the error names it."""
        conditions = [self._condition(item, voice) for item, voice in zip(items, voices, strict=True)]
        silent = [item.silent for item in items]
        try:
            return pack_batch(self.model, layouts, conditions, silent=silent if any(silent) else (), device=device)
        except VoxgraftError:
            for voice, layout, condition in zip(voices, layouts, conditions, strict=True):
                self._require_packable(voice, layout, condition)
            raise

    def _require_packable(self, item: Sample, layout: TokenSequence, condition: Any) -> None:
        try:
            pack_batch(self.model, [layout], [condition])
        except VoxgraftError as error:
            where = f"{self.sets[item.set].name}, {self.describe_item(item)}"
            raise type(error).of(replace(error.finding, where=where)) from None

    def _num_speech_positions(self, items: Sequence[Sample]) -> int:
        return sum(int(self.sets[item.set].num_codes[item.clip]) + 1 for item in items)

    def _layout(self, item: Sample, text: Sample) -> TokenSequence:
        return build_sequence(
            self.model.frame, self.sets[text.set].text_ids(text.clip), self.sets[item.set].codes(item.clip)
        )

    def _condition(self, item: Sample, voice: Sample) -> Any:
        where, clip = voice.prompt
        prompt = self._clip(where, clip)
        return self.family.condition(prompt, self._clip(item.set, item.clip), emotion_from=self.emotion_from)

    def _clip(self, where: int, clip: int) -> Clip:
        return Clip(self.sets[where].codes(clip), self.sets[where].voice(clip))


def _drop_targets(layout: TokenSequence) -> TokenSequence:
    """The same sequence, of which no loss asks anything."""

    def silent(part: SequencePart) -> SequencePart:
        return replace(part, targets=np.full_like(part.targets, IGNORED_TARGET))

    return replace(layout, text=silent(layout.text), speech=silent(layout.speech))
