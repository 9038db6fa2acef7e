"""Train the built-in listener: letters and phones by CTC, half the time on the codec's resynthesis, often in noise.

Sees every language and is told which one it hears. Writes nothing: make.py does.

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
from recipes.tiny_base.fitting import Average, Clock, Course, half_precision, optimizer_of, quick_arithmetic, stepped
from recipes.tiny_base.pile import Batch, Pile, batches, endless, symbols_of
from voxgraft.asr import BuiltInRecognizer, CTCNetwork, CTCNetworkConfig, CTCSymbols, num_ctc_steps
from voxgraft.models.tiny.model import TinyCodec

__all__ = ["LISTENER_SIZES", "ListenerSize", "resynthesised", "train_listener"]

RATE = 1.2e-3
DROPOUT = 0.1
CODEC_SHARE = 0.5
NOISE_SHARE = 0.5
QUIETEST_NOISE_DB, LOUDEST_NOISE_DB = 40.0, 8.0
"""Below the speech."""
FAINTEST, LOUDEST = 0.3, 1.4
HIDDEN_SPANS, HIDDEN_FRAMES, HIDDEN_BANDS = 2, 14, 12
"""Stretches of time and bands of frequency that are hidden, and the longest of each."""
RESYNTHESIS_SECONDS = 600


@dataclass(frozen=True, slots=True)
class ListenerSize:
    """A listener's sizes and its batches."""

    num_mels: int
    width: int
    heads: int
    layers: int
    batch_seconds: int


LISTENER_SIZES = {"toy": ListenerSize(40, 48, 2, 2, 12), "full": ListenerSize(80, 256, 4, 5, 400)}


def train_listener(
    corpus: Sequence[Utterance], codec: TinyCodec, setup: Course
) -> tuple[BuiltInRecognizer, dict[str, object]]:
    """Train for so many seconds; gives the averaged listener on the CPU, and how it was trained."""
    torch.manual_seed(setup.seed)
    quick_arithmetic()
    began = time.monotonic()
    train = [utterance for utterance in corpus if utterance.split == "train"]
    symbols = symbols_of(train)
    pile = Pile(train, symbols, setup.device)
    other = resynthesised(pile, codec)
    setup.tell(f"listener: {len(train):,} utterances, all resynthesised, {time.monotonic() - began:.0f} s")
    config = _config(LISTENER_SIZES[setup.size], symbols)
    average, report = _fitted(CTCNetwork(config, DROPOUT).to(setup.device), pile, other, setup)
    plain = CTCNetwork(config)
    plain.load_state_dict(average.state_dict())
    return BuiltInRecognizer(plain.requires_grad_(False), symbols), report


def _fitted(network: CTCNetwork, pile: Pile, other: Tensor, setup: Course) -> tuple[CTCNetwork, dict[str, object]]:
    parameters = list(network.parameters())
    optimizer = optimizer_of(parameters, setup.device)
    average = Average(network)
    chance = np.random.default_rng(setup.seed)
    stream = endless(pile.lengths, LISTENER_SIZES[setup.size].batch_seconds * 16_000, chance)
    clock = Clock("listener", setup.seconds, setup.tell)
    while clock.share < 1.0:
        places, num_samples = next(stream)
        batch = pile.batch(places, num_samples, other if chance.random() < CODEC_SHARE else None)
        letters, phones = _losses(network, batch)
        (letters + phones).backward()  # type: ignore[no-untyped-call]
        stepped(optimizer, parameters, clock.rate(RATE))
        average.take(clock.step)
        clock.tick({"letters": letters, "phones": phones})
    report: dict[str, object] = {"steps": clock.step, "seconds": round(clock.elapsed), "seed": setup.seed}
    setup.tell(f"listener: {json.dumps(report)}")
    return average.model, report


def _config(size: ListenerSize, symbols: CTCSymbols) -> CTCNetworkConfig:
    counts = len(symbols.letters), len(symbols.phones), len(symbols.by_language)
    return CTCNetworkConfig(*counts, size.num_mels, size.width, size.heads, size.layers)


def _losses(network: CTCNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
    frames = hidden_in_part(network.mel(disturbed(batch)))
    with half_precision(frames.device):
        letters, phones = network.scores(frames, batch.lengths, batch.languages)
    steps = num_ctc_steps(batch.num_samples)
    # Of people's speech the letters are known, and no phones.
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
    """Waves louder or fainter, some of them in noise that is anywhere between dull and sharp. [B, S]"""
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


def hidden_in_part(frames: Tensor) -> Tensor:
    """Frames with stretches and bands set to their middle value. [B, F, M]"""
    kept = torch.ones_like(frames[:, :1, :1]).bool()
    for axis, longest in ((1, HIDDEN_FRAMES), (2, HIDDEN_BANDS)):
        count = frames.shape[axis]
        longest = min(longest, count // 4)
        places = torch.arange(count, device=frames.device)
        for _ in range(HIDDEN_SPANS):
            draws = torch.rand(2, frames.shape[0], 1, device=frames.device)
            start, width = draws[0] * count, draws[1] * longest
            own = (places < start) | (places >= start + width)  # [B, count]
            kept = kept & own.unsqueeze(3 - axis)
    return frames * kept


@torch.no_grad()
def resynthesised(pile: Pile, codec: TinyCodec) -> Tensor:
    """Every wave through the codec in its own voice, laid out like the pile's own row."""
    row = torch.zeros_like(pile.row)
    codec = codec.to(pile.device)
    for places, num_samples in batches(pile.lengths, RESYNTHESIS_SECONDS * 16_000, None):
        batch = pile.batch(places, num_samples)
        counts = -(-batch.lengths // codec.samples_per_code)
        with half_precision(pile.device):
            digits = codec.digits.rounded(codec.latents(batch.waves, counts))
            encoder = codec.speaker_encoder
            voices = batch.speakers if encoder is None else encoder(batch.waves, batch.lengths)
            made = codec.decoder(digits, voices, counts)
        inside = torch.arange(num_samples, device=pile.device) < batch.lengths[:, None]
        there = pile.starts[torch.from_numpy(places).to(pile.device)][:, None]
        target = (there + torch.arange(num_samples, device=pile.device))[inside]
        row[target] = (made[:, :num_samples].float().clamp(-1, 1) * 32767).round().short()[inside]
    return row
