"""Train the built-in recognizer: letters and phones by CTC, half of the batches after the codec, often with noise.

Trains on every language; the language is an input. make.py writes the files.

Shapes: B utterances, S samples, F frames, M mel bands.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recipes.tiny_base.codec_losses import ctc
from recipes.tiny_base.corpus import Utterance
from recipes.tiny_base.fitting import (
    TimeBudget,
    TrainingSetup,
    WeightEMA,
    build_optimizer,
    half_precision,
    optimizer_step,
)
from recipes.tiny_base.utterance_buffer import (
    Batch,
    UtteranceBuffer,
    iter_batches,
    iter_batches_forever,
    upload_corpus,
)
from voxgraft.asr import BuiltInRecognizer, CTCNetwork, CTCNetworkConfig, CTCSymbols, num_ctc_steps
from voxgraft.models.tiny.model import TinyCodec

__all__ = ["RECOGNIZER_SIZES", "RecognizerSize", "resynthesize_corpus", "train_recognizer"]

LEARNING_RATE = 1.2e-3
DROPOUT = 0.1
CODEC_SHARE = 0.5
NOISE_SHARE = 0.5
QUIETEST_NOISE_DB, LOUDEST_NOISE_DB = 40.0, 8.0
"""Noise levels, in dB below the speech."""
FAINTEST, LOUDEST = 0.3, 1.4
NUM_MASKS, MAX_MASKED_FRAMES, MAX_MASKED_BANDS = 2, 14, 12
"""SpecAugment: number of masks per axis, and their maximum width in frames and bands."""
RESYNTHESIS_SECONDS = 600


@dataclass(frozen=True, slots=True)
class RecognizerSize:
    """Sizes of the recognizer and of a batch."""

    num_mels: int
    width: int
    heads: int
    layers: int
    batch_seconds: int


RECOGNIZER_SIZES = {"toy": RecognizerSize(40, 48, 2, 2, 12), "full": RecognizerSize(80, 256, 4, 5, 400)}


def train_recognizer(
    corpus: Sequence[Utterance], codec: TinyCodec, setup: TrainingSetup
) -> tuple[BuiltInRecognizer, dict[str, object]]:
    """Train for the given seconds; returns the EMA of the recognizer on the CPU, and a report."""
    began = time.monotonic()
    symbols, utterance_buffer = upload_corpus(corpus, setup)
    other = resynthesize_corpus(utterance_buffer, codec)
    count = len(utterance_buffer.lengths)
    setup.log(f"listener: {count:,} utterances, all resynthesised, {time.monotonic() - began:.0f} s")
    config = _config(RECOGNIZER_SIZES[setup.size], symbols)
    average, report = _fitted(CTCNetwork(config, DROPOUT).to(setup.device), utterance_buffer, other, setup)
    plain = CTCNetwork(config)
    plain.load_state_dict(average.state_dict())
    return BuiltInRecognizer(plain.requires_grad_(False), symbols), report


def _fitted(
    network: CTCNetwork, utterance_buffer: UtteranceBuffer, other: Tensor, setup: TrainingSetup
) -> tuple[CTCNetwork, dict[str, object]]:
    parameters = list(network.parameters())
    optimizer = build_optimizer(parameters, setup.device)
    average = WeightEMA(network)
    rng = np.random.default_rng(setup.seed)
    stream = iter_batches_forever(utterance_buffer.lengths, RECOGNIZER_SIZES[setup.size].batch_seconds * 16_000, rng)
    budget = TimeBudget("listener", setup.seconds, setup.log)
    while budget.share < 1.0:
        places, num_samples = next(stream)
        batch = utterance_buffer.batch(places, num_samples, other if rng.random() < CODEC_SHARE else None)
        letters, phones = _losses(network, batch)
        (letters + phones).backward()  # type: ignore[no-untyped-call]
        optimizer_step(optimizer, parameters, budget.rate(LEARNING_RATE))
        average.update(budget.step)
        budget.count_step({"letters": letters, "phones": phones})
    report: dict[str, object] = {"steps": budget.step, "seconds": round(budget.elapsed), "seed": setup.seed}
    setup.log(f"listener: {json.dumps(report)}")
    return average.model, report


def _config(size: RecognizerSize, symbols: CTCSymbols) -> CTCNetworkConfig:
    counts = len(symbols.letters), len(symbols.phones), len(symbols.by_language)
    return CTCNetworkConfig(*counts, size.num_mels, size.width, size.heads, size.layers)


def _losses(network: CTCNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
    frames = spec_augment(network.mel(disturbed(batch)))
    with half_precision(frames.device):
        letters, phones = network.scores(frames, batch.lengths, batch.languages)
    steps = num_ctc_steps(batch.num_samples)
    # Human clips have letters, but no phones.
    known = batch.num_phones > 0
    here = known.to(phones.device)
    spoken = phones[here].float().log_softmax(-1)
    return (
        ctc(letters.float().log_softmax(-1), batch.letters, steps, batch.num_letters),
        ctc(spoken, batch.phones[here], steps[known], batch.num_phones[known])
        if bool(known.any())
        else letters.new_zeros(()),
    )


def disturbed(batch: Batch) -> Tensor:
    """Random gain, and noise of random color in some of the waves. [B, S]"""
    waves = batch.waves
    rows = waves.shape[0]
    inside = torch.arange(waves.shape[1], device=waves.device) < batch.lengths[:, None]

    def drawn(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(rows, 1, device=waves.device)

    power = waves.square().sum(1, keepdim=True) / batch.lengths[:, None]
    white = torch.randn_like(waves)
    noise = white + drawn(-0.95, 0.95) * white.roll(1, 1)
    noise = noise / noise.square().mean(1, keepdim=True).sqrt()
    below = drawn(LOUDEST_NOISE_DB, QUIETEST_NOISE_DB)
    noisy = (torch.rand(rows, 1, device=waves.device) < NOISE_SHARE) * noise * power.sqrt() * 10 ** (-below / 20)
    return (waves + noisy) * inside * drawn(FAINTEST, LOUDEST)


def spec_augment(frames: Tensor) -> Tensor:
    """SpecAugment: set random spans of time and frequency to the mean value. [B, F, M]"""
    kept = torch.ones_like(frames[:, :1, :1]).bool()
    for axis, longest in ((1, MAX_MASKED_FRAMES), (2, MAX_MASKED_BANDS)):
        count = frames.shape[axis]
        longest = min(longest, count // 4)
        places = torch.arange(count, device=frames.device)
        for _ in range(NUM_MASKS):
            draws = torch.rand(2, frames.shape[0], 1, device=frames.device)
            start, width = draws[0] * count, draws[1] * longest
            own = (places < start) | (places >= start + width)  # [B, count]
            kept = kept & own.unsqueeze(3 - axis)
    return frames * kept


@torch.no_grad()
def resynthesize_corpus(utterance_buffer: UtteranceBuffer, codec: TinyCodec) -> Tensor:
    """Encode and decode every wave in its own voice; same layout as the buffer's samples."""
    row = torch.zeros_like(utterance_buffer.row)
    codec = codec.to(utterance_buffer.device)
    for places, num_samples in iter_batches(utterance_buffer.lengths, RESYNTHESIS_SECONDS * 16_000, None):
        batch = utterance_buffer.batch(places, num_samples)
        counts = -(-batch.lengths // codec.samples_per_code)
        with half_precision(utterance_buffer.device):
            digits = codec.digits.rounded(codec.latents(batch.waves, counts))
            encoder = codec.speaker_encoder
            voices = batch.speakers if encoder is None else encoder(batch.waves, batch.lengths)
            made = codec.decoder(digits, voices, counts)
        inside = torch.arange(num_samples, device=utterance_buffer.device) < batch.lengths[:, None]
        there = utterance_buffer.starts[torch.from_numpy(places).to(utterance_buffer.device)][:, None]
        target = (there + torch.arange(num_samples, device=utterance_buffer.device))[inside]
        row[target] = (made[:, :num_samples].float().clamp(-1, 1) * 32767).round().short()[inside]
    return row
