"""Train the ear: a recognizer of people's letters and synthetic voices' phones, by CTC, in any room and at any speed.

It is no product: the codec is trained to make speech of which it sees the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.human_voices.network import Ear
from recipes.human_voices.sound_row import SoundRow, Spoken, disturbed, filtered
from recipes.tiny_base.codec_losses import ctc
from recipes.tiny_base.fitting import Average, Clock, Course, half_precision, optimizer_of, stepped
from recipes.tiny_base.pile import batches, numbers, padded
from recipes.tiny_base.scoring import errors
from recipes.tiny_base.train_listener import hidden_in_part

__all__ = ["greedy", "symbols_of", "train_ear"]

RATE = 1e-3
LONGEST_SAMPLES = 12 * 16_000
SHARE_OF_KNOWN = 0.6
"""Of batches that are people's; the rest is synthetic."""


def symbols_of(clips: Sequence[Spoken]) -> tuple[str, ...]:
    """Every letter and phone, in a fixed order; 0 stays free for the blank."""
    return tuple(sorted({symbol for clip in clips for symbol in clip.symbols}))


def train_ear(
    ear: Ear, clips: Sequence[Spoken], row: SoundRow, course: Course, batch_seconds: int
) -> tuple[Ear, dict[str, object]]:
    """Train for so many seconds; gives the averaged ear."""
    number = numbers(symbols_of(clips))
    targets, counts = padded([[number[symbol] for symbol in clip.symbols] for clip in clips])
    parameters = list(ear.parameters())
    optimizer = optimizer_of(parameters, course.device)
    average = Average(ear)
    clock = Clock("ear", course.seconds, course.tell)
    stream = _stream(clips, row, batch_seconds, np.random.default_rng(course.seed))
    while clock.share < 1.0:
        places, num_samples = next(stream)
        own = torch.from_numpy(row.clip_numbers[places])
        lengths = torch.from_numpy(row.clip_lengths[places])
        on_device = lengths.to(course.device, non_blocking=True)
        starts = torch.from_numpy(row.clip_starts[places]).to(course.device, non_blocking=True)
        waves = row.at(starts, num_samples)
        waves = waves * (torch.arange(num_samples, device=course.device) < on_device[:, None])
        waves, _ = filtered(waves, waves[:, :320])
        frames = hidden_in_part(ear.mel(disturbed(waves)))
        with half_precision(course.device):
            _, scores = ear.of_frames(frames, on_device)
        loss = ctc(
            scores.float().log_softmax(-1),
            targets[own, : int(counts[own].max())].to(course.device, non_blocking=True),
            -(-lengths // 320),
            counts[own],
        )
        torch.autograd.backward(loss)
        stepped(optimizer, parameters, clock.rate(RATE))
        average.take(clock.step)
        clock.tick({"symbols": loss})
    report: dict[str, object] = {"steps": clock.step, "seconds": round(clock.elapsed)}
    course.tell(f"ear: {json.dumps(report)}")
    return average.model, report


def _stream(
    clips: Sequence[Spoken], row: SoundRow, batch_seconds: int, chance: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Batches of clips with known symbols without end: people's at every speed, and synthetic ones."""
    usable = np.array([bool(clips[at].symbols) for at in row.clip_numbers]) & (row.clip_lengths <= LONGEST_SAMPLES)
    people = np.array([clips[at].has_speeds for at in row.clip_numbers])
    groups = [np.flatnonzero(usable & people), np.flatnonzero(usable & ~people)]
    shares = [SHARE_OF_KNOWN, 1 - SHARE_OF_KNOWN]
    kept = [(group, share) for group, share in zip(groups, shares, strict=True) if len(group)]

    def endless(group: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], int]]:
        while True:
            for places, num_samples in batches(row.clip_lengths[group], batch_seconds * 16_000, chance):
                yield group[places], num_samples

    streams = [endless(group) for group, _ in kept]
    chances = np.array([share for _, share in kept])
    while True:
        yield next(streams[int(chance.choice(len(kept), p=chances / chances.sum()))])


def greedy(scores: Tensor, counts: Sequence[int], symbols: Sequence[str]) -> list[tuple[str, ...]]:
    """The best path of each row without repeats and blanks."""
    best = scores.argmax(-1).cpu().numpy()
    said = []
    for path, count in zip(best, counts, strict=True):
        cut = path[:count]
        kept = cut[np.flatnonzero(np.diff(cut, prepend=-1))]
        said.append(tuple(symbols[place - 1] for place in kept if place))
    return said


def error_by_language(pairs: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]]) -> dict[str, float]:
    """Edits a symbol, by language."""
    return {language: round(errors(own), 4) for language, own in sorted(pairs.items())}
