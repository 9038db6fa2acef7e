"""From items of the data order to packed batches: text and codes of one clip, the voice of another.

Everything random was decided by the data order; here nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voxgraft.corpus.clips import ClipSet
from voxgraft.corpus.stream import Item
from voxgraft.families.base import EmotionFrom, Family
from voxgraft.families.encoding import Clip
from voxgraft.families.layout import Layout, lay_out
from voxgraft.families.model import PackedBatch, SpeechModel, pack

__all__ = ["Examples"]


@dataclass(frozen=True)
class Examples:
    """The sets of a run as what a model learns from."""

    family: Family
    model: SpeechModel
    sets: Sequence[ClipSet]
    emotion_from: EmotionFrom = "target"

    def batch(self, items: Sequence[Item], texts: Sequence[Item] = (), voices: Sequence[Item] = ()) -> PackedBatch:
        """A pack of items. `texts` and `voices` may name others whose text, or whose prompt, is used instead."""
        texts, voices = texts or items, voices or items
        layouts = [self._layout(item, text) for item, text in zip(items, texts, strict=True)]
        conditions = [self._condition(item, voice) for item, voice in zip(items, voices, strict=True)]
        silent = [item.silent for item in items]
        return pack(self.model, layouts, conditions, silent=silent if any(silent) else ())

    def num_scored(self, items: Sequence[Item]) -> tuple[int, int]:
        """Text and speech positions that items are asked about."""
        text = sum(int(self.sets[item.set].num_text[item.clip]) + 1 for item in items if not item.silent)
        speech = sum(int(self.sets[item.set].num_codes[item.clip]) + 1 for item in items)
        return text, speech

    def num_positions(self, item: Item) -> int:
        """Positions that an item takes in a pack."""
        clips = self.sets[item.set]
        frame = self.model.frame
        return frame.num_conditioning + int(clips.num_text[item.clip]) + 2 + int(clips.num_codes[item.clip]) + 2

    def name(self, item: Item) -> str:
        """The clip's id, as the user knows it."""
        return self.sets[item.set].infos[item.clip].id

    def _layout(self, item: Item, text: Item) -> Layout:
        return lay_out(self.model.frame, self.sets[text.set].text_ids(text.clip), self.sets[item.set].codes(item.clip))

    def _condition(self, item: Item, voice: Item) -> Any:
        where, clip = voice.prompt
        prompt = self._clip(where, clip)
        return self.family.condition(prompt, self._clip(item.set, item.clip), emotion_from=self.emotion_from)

    def _clip(self, where: int, clip: int) -> Clip:
        return Clip(self.sets[where].codes(clip), self.sets[where].voice(clip))
