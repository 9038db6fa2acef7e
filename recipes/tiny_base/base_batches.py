"""What the base learns from: utterances as rows of one of a few fixed lengths, on the device, in an order by seed.

Fixed shapes let a step be captured once and replayed. Trains nothing.

Shapes: n utterances of a shelf, B of a batch, L positions of a row, S speakers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from recipes.tiny_base.tokenizer import Speller
from voxgraft.models.base import IdArray, SequenceSpec, build_sequence
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.tiny.family import tiny_sequence_spec
from voxgraft.nn import IGNORE_INDEX

__all__ = ["Bucket", "Example", "Rows", "buckets", "concatenate_examples", "order"]

SHARES = (0.2, 0.4, 0.6, 0.8, 0.93, 1.0)
"""Quantiles of the utterance lengths that give the row lengths."""
LENGTH_STEP, BATCH_STEP = 8, 8


@dataclass(frozen=True, slots=True)
class Example:
    """One utterance: text, codes and speaker."""

    language: str
    text: str
    codes: np.ndarray[tuple[int], np.dtype[np.integer]]
    speaker: int
    voice: np.ndarray[tuple[int], np.dtype[np.float32]] | None = None
    """For a base that clones voices: the vector of another recording of the speaker."""


@dataclass(frozen=True)
class Rows:
    """Padded sequences. Text and speech ids share one numbering, as do positions."""

    ids: Tensor  # [n, L] of text; from the number of text rows on, of speech
    positions: Tensor  # [n, L] likewise
    text_targets: Tensor  # [n, L]
    speech_targets: Tensor  # [n, L]
    speakers: Tensor  # [n, S] one at the speaker's number, or a voice vector

    def to(self, device: torch.device | str) -> Rows:
        return Rows(*(getattr(self, field.name).to(device) for field in fields(self)))

    def at(self, places: Tensor) -> Rows:
        return Rows(*(getattr(self, field.name).index_select(0, places) for field in fields(self)))

    def copy_(self, other: Rows) -> None:
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(other, field.name))


@dataclass(frozen=True)
class Bucket:
    """Utterances of similar length, and the batch size."""

    rows: Rows
    batch: int

    def __len__(self) -> int:
        return len(self.rows.ids)


def concatenate_examples(examples: Sequence[Example], share: float, seed: int) -> list[Example]:
    """Additional examples: two of the same speaker and language, concatenated, to train on longer texts."""
    rng = random.Random(f"joined {seed}")
    groups: dict[tuple[str, int], list[Example]] = {}
    for example in examples:
        groups.setdefault((example.language, example.speaker), []).append(example)
    made = []
    for first in rng.sample(list(examples), int(share * len(examples))):
        second = rng.choice(groups[first.language, first.speaker])
        mark = "" if first.text.rstrip()[-1:] in ".,?!" else ","
        text = f"{first.text.rstrip()}{mark} {second.text}"
        made.append(
            Example(first.language, text, np.concatenate([first.codes, second.codes]), first.speaker, first.voice)
        )
    return made


def buckets(
    examples: Sequence[Example],
    speller: Speller,
    size: T3Size,
    batch_positions: int,
    rng: random.Random | None = None,
) -> list[Bucket]:
    """Examples grouped by length; those that are too long for the model are left out.

    With `rng`, some words are encoded letter by letter.
    """
    spec = tiny_sequence_spec(size.text_rows, size)
    spelled = ((example, speller.ids(example.text, example.language, rng)) for example in examples)
    rows = [
        _row(example, ids, spec, size)
        for example, ids in spelled
        if len(ids) <= spec.max_text and 0 < len(example.codes) <= spec.max_codes
    ]
    lengths = np.array([len(parts[0]) for parts, _ in rows])
    ends = sorted({-(-int(np.quantile(lengths, share)) // LENGTH_STEP) * LENGTH_STEP for share in SHARES})
    made, shorter = [], 0
    for end in ends:
        own = [row for row, length in zip(rows, lengths, strict=True) if shorter < length <= end]
        shorter = end
        if own:
            batch = max(1, batch_positions // end // BATCH_STEP) * BATCH_STEP
            made.append(Bucket(_filled(own, end, size.speaker_width), min(batch, len(own))))
    return made


def order(kept: Sequence[Bucket], seed: int) -> Iterator[tuple[int, Tensor]]:
    """Endless batches as (bucket, indices), shuffled in every epoch; incomplete batches are dropped."""
    rng = np.random.default_rng(seed)
    while True:
        batches: list[tuple[int, Tensor]] = []
        for number, bucket in enumerate(kept):
            places = torch.from_numpy(rng.permutation(len(bucket)))
            full = len(bucket) // bucket.batch * bucket.batch
            batches += [(number, some) for some in torch.split(places[:full], bucket.batch)]
        for at in rng.permutation(len(batches)):
            yield batches[at]


def _row(example: Example, ids: list[int], spec: SequenceSpec, size: T3Size) -> tuple[list[IdArray], Example]:
    layout = build_sequence(spec, ids, example.codes)
    text, speech, none = layout.text, layout.speech, np.zeros(spec.num_conditioning, dtype=np.int64)
    unscored = (np.full_like(part, IGNORE_INDEX) for part in (none, text.ids, speech.ids))
    before, over_text, over_speech = unscored
    parts = [
        np.concatenate([none, text.ids, speech.ids + size.text_rows]),
        np.concatenate([none, text.positions, speech.positions + size.text_positions]),
        np.concatenate([before, text.targets, over_speech]),
        np.concatenate([before, over_text, speech.targets]),
    ]
    return parts, example


def _filled(rows: Sequence[tuple[list[IdArray], Example]], length: int, num_speakers: int) -> Rows:
    tables = [np.full((len(rows), length), filling, dtype=np.int64) for filling in (0, 0, IGNORE_INDEX, IGNORE_INDEX)]
    for at, (parts, _) in enumerate(rows):
        for table, part in zip(tables, parts, strict=True):
            table[at, : len(part)] = part
    speakers = np.zeros((len(rows), num_speakers), dtype=np.float32)
    for at, (_, example) in enumerate(rows):
        if example.voice is None:
            speakers[at, example.speaker] = 1
        else:
            speakers[at] = example.voice
    ids, positions, text_targets, speech_targets = map(torch.from_numpy, tables)
    return Rows(ids, positions, text_targets, speech_targets, torch.from_numpy(speakers))
