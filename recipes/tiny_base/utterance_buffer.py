"""The corpus on one device: all waves in one buffer, texts as ids, and batches in a few fixed shapes.

Everything is uploaded once; a batch is one gather. Fixed shapes let FFT plans and kernels be reused.

Shapes: B utterances, S samples of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.tiny_base.corpus import SPEAKERS, Utterance
from recipes.tiny_base.fitting import TrainingSetup, allow_tf32
from recipes.tiny_base.texts import LANGUAGES, normalize_letters
from voxgraft.asr import CTCSymbols
from voxgraft.audio.features import exact_float32
from voxgraft.models.tiny.model import SAMPLE_RATE, TinyCodec

__all__ = [
    "Batch",
    "UtteranceBuffer",
    "WaveBuffer",
    "encode_corpus",
    "iter_batches",
    "iter_batches_forever",
    "upload_corpus",
]

BUCKET_SAMPLES = 6_400
"""Batch lengths are multiples of this: 0.4 s, ten codes."""

CODES_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Batch:
    """Zero-padded utterances."""

    waves: Tensor  # [B, S], between -1 and 1
    lengths: Tensor  # [B], in samples
    speakers: Tensor  # [B]
    languages: Tensor  # [B]
    letters: Tensor  # [B, .]
    phones: Tensor  # [B, .]
    num_letters: Tensor  # [B], on the CPU: the CTC loss asks for it there
    num_phones: Tensor  # [B], on the CPU
    num_samples: Tensor  # [B], `lengths` on the CPU


class HasWave(Protocol):
    """An utterance of the corpus, or a clip of a pack."""

    @property
    def wave(self) -> NDArray[np.int16]:
        """At 16 kHz."""


class WaveBuffer:
    """Waves by index."""

    def __init__(self, corpus: Sequence[HasWave], device: torch.device) -> None:
        self.device = device
        self.lengths = np.array([len(utterance.wave) for utterance in corpus], np.int64)
        self.row = torch.from_numpy(np.concatenate([utterance.wave for utterance in corpus])).to(device)
        self.starts = torch.from_numpy(np.cumsum(self.lengths) - self.lengths).to(device)

    def waves(self, places: NDArray[np.int64], num_samples: int, row: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Waves as a zero-padded batch [B, S], and their lengths; `row`: another buffer of the same layout."""
        there = torch.from_numpy(places).to(self.device, non_blocking=True)
        lengths = torch.from_numpy(self.lengths[places]).to(self.device, non_blocking=True)
        span = torch.arange(num_samples, device=self.device)
        source = self.row if row is None else row
        samples = source[(self.starts[there][:, None] + span).clamp_max(len(source) - 1)]
        return samples * (span < lengths[:, None]) / 32768.0, lengths

    def crops(self, places: NDArray[np.int64], num_samples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """A random segment of each wave: [B, S], and its length."""
        lengths = np.minimum(self.lengths[places], num_samples)
        offsets = torch.from_numpy(rng.integers(0, self.lengths[places] - lengths + 1)).to(self.device)
        counts = torch.from_numpy(lengths).to(self.device)
        span = torch.arange(num_samples, device=self.device)
        starts = self.starts[torch.from_numpy(places).to(self.device)] + offsets
        samples = self.row[(starts[:, None] + span).clamp_max(len(self.row) - 1)]
        return samples * (span < counts[:, None]) / 32768.0, counts


class UtteranceBuffer(WaveBuffer):
    """Utterances by index: waves, speakers, languages, letters and phones."""

    def __init__(self, corpus: Sequence[Utterance], symbols: CTCSymbols, device: torch.device) -> None:
        super().__init__(corpus, device)
        # The recipe's own voices first: their numbers are those of the codec's table.
        self.names = (*SPEAKERS, *sorted({utterance.speaker for utterance in corpus} - set(SPEAKERS)))
        speakers = torch.tensor([self.names.index(utterance.speaker) for utterance in corpus])
        numbered = list(symbols.by_language)
        languages = torch.tensor([numbered.index(utterance.language) for utterance in corpus])
        self.speakers, self.languages = speakers.to(device), languages.to(device)
        self.speaker_numbers = speakers.numpy()
        self._of_speaker = {number: np.flatnonzero(self.speaker_numbers == number) for number in range(len(self.names))}
        letter, phone = index_symbols(symbols.letters), index_symbols(symbols.phones)
        spelled = [[letter[c] for c in normalize_letters(u.text, u.language) if c in letter] for u in corpus]
        spoken = [[phone[p] for p in u.phones if p in phone] for u in corpus]
        (self.letters, self.num_letters), (self.phones, self.num_phones) = pad_sequences(spelled), pad_sequences(spoken)

    def of_speaker(self, number: int) -> NDArray[np.int64]:
        """Indices of a speaker's utterances, in order."""
        return self._of_speaker[number]

    def batch(self, places: NDArray[np.int64], num_samples: int, row: Tensor | None = None) -> Batch:
        """A batch of utterances; `row`: another buffer of the same layout, such as reconstructed waves."""
        waves, lengths = self.waves(places, num_samples, row)
        chosen = torch.from_numpy(places)
        there = chosen.to(self.device, non_blocking=True)
        num_letters, num_phones = self.num_letters[chosen], self.num_phones[chosen]
        letters = self.letters[chosen, : int(num_letters.max())]
        phones = self.phones[chosen, : int(num_phones.max())]
        return Batch(
            waves=waves,
            lengths=lengths,
            speakers=self.speakers[there],
            languages=self.languages[there],
            letters=letters.to(self.device, non_blocking=True),
            phones=phones.to(self.device, non_blocking=True),
            num_letters=num_letters,
            num_phones=num_phones,
            num_samples=torch.from_numpy(self.lengths[places]),
        )


def encode_corpus(corpus: Sequence[Utterance], codec: TinyCodec, device: torch.device) -> list[NDArray[np.int32]]:
    """The codes of every utterance, in large batches."""
    if not corpus:
        return []
    utterance_buffer = WaveBuffer(corpus, device)
    codec = codec.to(device)
    found: dict[int, NDArray[np.int32]] = {}
    for places, num_samples in iter_batches(utterance_buffer.lengths, CODES_SECONDS * SAMPLE_RATE, None):
        with exact_float32():
            codes, counts = codec.encode(*utterance_buffer.waves(places, num_samples))
        rows = codes.to(torch.int32).cpu().numpy()
        found.update(zip(places.tolist(), (r[:n] for r, n in zip(rows, counts.tolist(), strict=True)), strict=True))
    return [found[place] for place in range(len(corpus))]


def iter_batches(
    lengths: NDArray[np.int64], budget_samples: int, rng: np.random.Generator | None
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Indices and lengths of batches of about `budget_samples` each: one pass over the corpus.

    With `rng` the order is random and the last batch of a shape is filled up; without it each utterance occurs once.
    """
    buckets = -(-lengths // BUCKET_SAMPLES)
    found: list[tuple[NDArray[np.int64], int]] = []
    for bucket in np.unique(buckets):
        own = np.flatnonzero(buckets == bucket)
        size = max(1, budget_samples // int(bucket * BUCKET_SAMPLES))
        if rng is not None:
            own = np.concatenate([rng.permutation(own), rng.choice(own, -len(own) % size)])
        parts = (own[first : first + size] for first in range(0, len(own), size))
        found.extend((part, int(bucket * BUCKET_SAMPLES)) for part in parts)
    order = range(len(found)) if rng is None else rng.permutation(len(found))
    for place in order:
        yield found[place]


def iter_batches_forever(
    lengths: NDArray[np.int64], budget_samples: int, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Repeat `iter_batches` without end."""
    while True:
        yield from iter_batches(lengths, budget_samples, rng)


def upload_corpus(corpus: Sequence[Utterance], setup: TrainingSetup) -> tuple[CTCSymbols, UtteranceBuffer]:
    """How every training begins: the training part of the corpus on the device, and its symbols."""
    torch.manual_seed(setup.seed)
    allow_tf32()
    train = [utterance for utterance in corpus if utterance.split == "train"]
    symbols = collect_symbols(train)
    return symbols, UtteranceBuffer(train, symbols, setup.device)


def collect_symbols(corpus: Sequence[Utterance]) -> CTCSymbols:
    """Every letter and phone of the corpus, in a fixed order."""
    languages = (*LANGUAGES, *sorted({utterance.language for utterance in corpus} - set(LANGUAGES)))
    letters: dict[str, set[str]] = {language: set() for language in languages}
    phones: dict[str, set[str]] = {language: set() for language in languages}
    for utterance in corpus:
        letters[utterance.language].update(normalize_letters(utterance.text, utterance.language))
        phones[utterance.language].update(utterance.phones)
    by_language = {language: (frozenset(letters[language]), frozenset(phones[language])) for language in languages}
    all_letters, all_phones = set().union(*letters.values()), set().union(*phones.values())
    return CTCSymbols(tuple(sorted(all_letters)), tuple(sorted(all_phones)), by_language)


def index_symbols(symbols: Sequence[str]) -> dict[str, int]:
    """Ids of the symbols; 0 is the CTC blank."""
    return {symbol: number for number, symbol in enumerate(symbols, 1)}


def pad_sequences(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Zero-padded table of the rows, and their lengths."""
    counts = torch.tensor([len(row) for row in rows])
    table = torch.zeros(len(rows), int(counts.max()), dtype=torch.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return table, counts
