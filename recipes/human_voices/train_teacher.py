"""Train the CTC teacher: a recognizer of letters (human speech) and phones (synthetic speech), with augmentation.

The teacher is not shipped. Its features of original and reconstructed speech are compared in the codec's loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.human_voices.network import CTCTeacher
from recipes.human_voices.speech_buffer import SpeechBuffer, TrainingClip, add_noise, augment_channel
from recipes.tiny_base.codec_losses import ctc
from recipes.tiny_base.fitting import (
    TimeBudget,
    TrainingSetup,
    WeightEMA,
    build_optimizer,
    half_precision,
    optimizer_step,
)
from recipes.tiny_base.scoring import errors
from recipes.tiny_base.train_recognizer import spec_augment
from recipes.tiny_base.utterance_buffer import index_symbols, iter_batches, pad_sequences

__all__ = ["collect_symbols", "decode_greedy", "train_teacher"]

LEARNING_RATE = 1e-3
MAX_SAMPLES = 12 * 16_000
HUMAN_BATCH_SHARE = 0.6
"""Share of batches with human speech; the others have synthetic speech."""


def collect_symbols(clips: Sequence[TrainingClip]) -> tuple[str, ...]:
    """Every letter and phone in a fixed order; id 0 is the CTC blank."""
    return tuple(sorted({symbol for clip in clips for symbol in clip.symbols}))


def train_teacher(
    teacher: CTCTeacher, clips: Sequence[TrainingClip], buffer: SpeechBuffer, setup: TrainingSetup, batch_seconds: int
) -> tuple[CTCTeacher, dict[str, object]]:
    """Train for the given seconds; returns the EMA of the weights, and a report."""
    number = index_symbols(collect_symbols(clips))
    targets, counts = pad_sequences([[number[symbol] for symbol in clip.symbols] for clip in clips])
    parameters = list(teacher.parameters())
    optimizer = build_optimizer(parameters, setup.device)
    ema = WeightEMA(teacher)
    budget = TimeBudget("teacher", setup.seconds, setup.log)
    stream = _stream(clips, buffer, batch_seconds, np.random.default_rng(setup.seed))
    while budget.share < 1.0:
        places, num_samples = next(stream)
        own = torch.from_numpy(buffer.clip_numbers[places])
        lengths = torch.from_numpy(buffer.clip_lengths[places])
        on_device = lengths.to(setup.device, non_blocking=True)
        starts = torch.from_numpy(buffer.clip_starts[places]).to(setup.device, non_blocking=True)
        waves = buffer.slice_at(starts, num_samples)
        waves = waves * (torch.arange(num_samples, device=setup.device) < on_device[:, None])
        waves, _ = augment_channel(waves, waves[:, :320])
        frames = spec_augment(teacher.mel(add_noise(waves)))
        with half_precision(setup.device):
            _, scores = teacher.forward_frames(frames, on_device)
        loss = ctc(
            scores.float().log_softmax(-1),
            targets[own, : int(counts[own].max())].to(setup.device, non_blocking=True),
            -(-lengths // 320),
            counts[own],
        )
        torch.autograd.backward(loss)
        optimizer_step(optimizer, parameters, budget.rate(LEARNING_RATE))
        ema.update(budget.step)
        budget.count_step({"symbols": loss})
    report: dict[str, object] = {"steps": budget.step, "seconds": round(budget.elapsed)}
    setup.log(f"teacher: {json.dumps(report)}")
    return ema.model, report


def _stream(
    clips: Sequence[TrainingClip], buffer: SpeechBuffer, batch_seconds: int, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Endless batches of clips with transcripts: human speech at every speed, and synthetic speech."""
    usable = np.array([bool(clips[at].symbols) for at in buffer.clip_numbers]) & (buffer.clip_lengths <= MAX_SAMPLES)
    people = np.array([clips[at].has_speeds for at in buffer.clip_numbers])
    groups = [np.flatnonzero(usable & people), np.flatnonzero(usable & ~people)]
    probabilities = [HUMAN_BATCH_SHARE, 1 - HUMAN_BATCH_SHARE]
    kept = [(group, share) for group, share in zip(groups, probabilities, strict=True) if len(group)]

    def iter_batches_forever(group: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], int]]:
        while True:
            for places, num_samples in iter_batches(buffer.clip_lengths[group], batch_seconds * 16_000, rng):
                yield group[places], num_samples

    streams = [iter_batches_forever(group) for group, _ in kept]
    chances = np.array([share for _, share in kept])
    while True:
        yield next(streams[int(rng.choice(len(kept), p=chances / chances.sum()))])


def decode_greedy(scores: Tensor, counts: Sequence[int], symbols: Sequence[str]) -> list[tuple[str, ...]]:
    """CTC greedy decoding: the best path without repeats and blanks."""
    best = scores.argmax(-1).cpu().numpy()
    hypothesis = []
    for path, count in zip(best, counts, strict=True):
        cut = path[:count]
        kept = cut[np.flatnonzero(np.diff(cut, prepend=-1))]
        hypothesis.append(tuple(symbols[place - 1] for place in kept if place))
    return hypothesis


def compute_error_rates(pairs: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]]) -> dict[str, float]:
    """Edits per symbol, by language."""
    return {language: round(errors(own), 4) for language, own in sorted(pairs.items())}
