"""Train the codec with reconstruction losses, a CTC loss on the codes and, at the end, a discriminator.

Trains on every language. A codec that clones voices decodes in the voice of another clip of the same speaker, so that
the voice vector cannot carry the content. make.py writes the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.tiny_base.codec_losses import Discriminator, PhoneHead, SpectralLoss, crops, ctc, feature_matching_loss
from recipes.tiny_base.corpus import SPEAKERS, Utterance
from recipes.tiny_base.fitting import (
    TimeBudget,
    TrainingSetup,
    WeightEMA,
    build_optimizer,
    half_precision,
    optimizer_step,
)
from recipes.tiny_base.scoring import errors
from recipes.tiny_base.utterance_buffer import (
    Batch,
    UtteranceBuffer,
    iter_batches,
    iter_batches_forever,
    upload_corpus,
)
from voxgraft.asr import CTCSymbols, decode_ctc_greedy
from voxgraft.models.tiny.model import TinyCodec, TinyCodecConfig

__all__ = ["CODEC_SIZES", "CodecSize", "train_codec"]

LEARNING_RATE = 8e-4
DISCRIMINATOR_RATE = 3e-4
MEL_WEIGHT, SPECTRAL_WEIGHT, PHONE_WEIGHT = 2.0, 1.0, 0.5
ADVERSARIAL_WEIGHT, FEATURE_MATCHING_WEIGHT = 0.1, 0.4
DISCRIMINATOR_START = 0.62
"""Share of the training time after which the discriminator is used; it costs more than the rest of a step."""
REFERENCE_SAMPLES = 48_000
"""Length of the reference segment for the voice: 3 s."""
FAINTEST, LOUDEST = 0.4, 1.5
"""Random gain, because the levels of recordings differ."""


@dataclass(frozen=True, slots=True)
class CodecSize:
    """A codec's sizes and its batches."""

    config: TinyCodecConfig
    batch_seconds: int
    reader_width: int = 192
    discriminator_channels: int = 32
    crop_rows: int = 40
    crop_samples: int = 12_800


CODEC_SIZES = {
    "toy": CodecSize(
        TinyCodecConfig(SPEAKERS, (8, 8, 8, 5), 40, 48, 48, 48, encoder_blocks=(1, 1, 1), decoder_blocks=(1, 1, 1)),
        batch_seconds=12,
        reader_width=48,
        discriminator_channels=4,
        crop_rows=2,
        crop_samples=3_200,
    ),
    "full": CodecSize(TinyCodecConfig(SPEAKERS), batch_seconds=256),
}


class _Training:
    """Models and optimizers of one training."""

    def __init__(self, size: CodecSize, symbols: CTCSymbols, device: torch.device) -> None:
        self.size, self.device = size, device
        self.codec = TinyCodec(size.config).to(device)
        self.reader = PhoneHead(len(size.config.levels), len(symbols.phones), size.reader_width).to(device)
        self.discriminator = Discriminator(size.discriminator_channels).to(device)
        self.spectral = SpectralLoss().to(device)
        self.parameters = [*self.codec.parameters(), *self.reader.parameters()]
        self.optimizer = build_optimizer(self.parameters, device)
        self.discriminator_parameters = list(self.discriminator.parameters())
        self.discriminator_optimizer = build_optimizer(self.discriminator_parameters, device, beta2=0.95)
        self.averages = WeightEMA(self.codec), WeightEMA(self.reader)

    def step(
        self, batch: Batch, budget: TimeBudget, reference: tuple[Tensor, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """One optimizer step, and one of the discriminator if used. `reference`: other clips of the speakers."""
        counts = -(-batch.lengths // self.codec.samples_per_code)
        encoder = self.codec.speaker_encoder
        with half_precision(self.device):
            digits = self.codec.digits.rounded(self.codec.latents(batch.waves, counts))
            voices = batch.speakers if encoder is None or reference is None else encoder(*reference)
            made = self.codec.decoder(digits, voices, counts)
            phones = self.reader(self.codec.digits.scale_digits(digits), counts)
        mel, spectral = self.spectral(made, batch.waves, batch.lengths.sum())
        made = made[:, : batch.waves.shape[1]]
        read = ctc(phones, batch.phones, 2 * -(-batch.num_samples // self.codec.samples_per_code), batch.num_phones)
        loss = MEL_WEIGHT * mel + SPECTRAL_WEIGHT * spectral + PHONE_WEIGHT * read
        losses = {"mel": mel, "spectral": spectral, "phones": read}
        if budget.share > DISCRIMINATOR_START:
            judged, more = self._adversarial_step(made, batch, budget)
            loss, losses = loss + judged, losses | more
        loss.backward()
        optimizer_step(self.optimizer, self.parameters, budget.rate(LEARNING_RATE))
        for average in self.averages:
            average.update(budget.step)
        return losses

    def _adversarial_step(self, made: Tensor, batch: Batch, budget: TimeBudget) -> tuple[Tensor, dict[str, Tensor]]:
        fake, true = crops([made, batch.waves], batch, self.size.crop_rows, self.size.crop_samples)
        with half_precision(self.device):
            real_maps, fake_maps = self.discriminator(true), self.discriminator(fake.detach())
            discriminator_losses = [
                ((t[-1] - 1).square().mean() + f[-1].square().mean()) for t, f in zip(real_maps, fake_maps, strict=True)
            ]
            torch.stack(discriminator_losses).sum().float().backward()  # type: ignore[no-untyped-call]
        optimizer_step(
            self.discriminator_optimizer,
            self.discriminator_parameters,
            budget.rate(DISCRIMINATOR_RATE) + 0.1 * DISCRIMINATOR_RATE,
        )
        self.discriminator.requires_grad_(False)
        with half_precision(self.device):
            fake_maps = self.discriminator(fake)
            with torch.no_grad():
                real_maps = self.discriminator(true)
            adversarial = torch.stack([(f[-1] - 1).square().mean() for f in fake_maps]).sum().float()
            feature_matching = feature_matching_loss(fake_maps, real_maps).float()
        self.discriminator.requires_grad_(True)
        judged = ADVERSARIAL_WEIGHT * adversarial + FEATURE_MATCHING_WEIGHT * feature_matching
        return judged, {
            "discriminator": torch.stack(discriminator_losses).sum(),
            "adversarial": adversarial,
            "feature_matching": feature_matching,
        }


def train_codec(
    corpus: Sequence[Utterance], setup: TrainingSetup, size: CodecSize | None = None, human_share: float | None = None
) -> tuple[TinyCodec, dict[str, object]]:
    """Train for the given seconds and evaluate; returns the EMA codec in float32 on the device, and a report.

    `human_share`: share of batches with human speakers (all but the recipe's synthetic voices); None: no difference.
    """
    device = setup.device
    symbols, utterance_buffer = upload_corpus(corpus, setup)
    setup.log(f"codec: {len(utterance_buffer.lengths):,} utterances on {device}")
    chosen = size or CODEC_SIZES[setup.size]
    training = _Training(chosen, symbols, device)
    budget = TimeBudget("codec", setup.seconds, setup.log)
    rng = np.random.default_rng(setup.seed)
    stream = mixed_batches(utterance_buffer, chosen.batch_seconds * 16_000, human_share, rng)
    clones = chosen.config.voice_vector > 0
    while budget.share < 1.0:
        places, num_samples = next(stream)
        batch = utterance_buffer.batch(places, num_samples)
        reference = None
        if clones:
            gain = torch.from_numpy(rng.uniform(FAINTEST, LOUDEST, (len(places), 1))).float().to(device)
            batch = replace(batch, waves=(batch.waves * gain).clamp(-1, 1))
            reference = utterance_buffer.crops(
                pick_reference_clips(utterance_buffer, places, rng), REFERENCE_SAMPLES, rng
            )
        budget.count_step(training.step(batch, budget, reference))
    codec, reader = (training.averages[0].model, training.averages[1].model)
    report = evaluate_codec(codec, reader, [u for u in corpus if u.split == "valid"], symbols, device)
    report |= {"steps": budget.step, "seconds": round(budget.elapsed), "seed": setup.seed}
    setup.log(f"codec: {budget.step:,} steps; {json.dumps(report)}")
    return codec, report


def mixed_batches(
    utterance_buffer: UtteranceBuffer, budget_samples: int, human_share: float | None, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Endless batches, each of synthetic or of human speech, with the given share of human ones."""
    is_human = utterance_buffer.speakers.cpu().numpy() >= len(SPEAKERS)
    if human_share is None or is_human.all() or not is_human.any():
        yield from iter_batches_forever(utterance_buffer.lengths, budget_samples, rng)
    groups = [np.flatnonzero(~is_human), np.flatnonzero(is_human)]
    streams = [iter_batches_forever(utterance_buffer.lengths[group], budget_samples, rng) for group in groups]
    while True:
        at = int(rng.random() < (human_share or 0.0))
        places, num_samples = next(streams[at])
        yield groups[at][places], num_samples


def pick_reference_clips(
    utterance_buffer: UtteranceBuffer, places: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """For each clip another clip of its speaker; the clip itself if the speaker has no other."""
    found = places.copy()
    for row, place in enumerate(places.tolist()):
        own = utterance_buffer.of_speaker(int(utterance_buffer.speaker_numbers[place]))
        if len(own) > 1:
            # One of the others: those behind the clip's own place move up by one.
            drawn = int(rng.integers(len(own) - 1))
            found[row] = own[drawn + (drawn >= int(np.searchsorted(own, place)))]
    return found


@torch.no_grad()
def evaluate_codec(
    codec: TinyCodec, reader: PhoneHead, valid: Sequence[Utterance], symbols: CTCSymbols, device: torch.device
) -> dict[str, object]:
    """How far the made speech is from the true, how many codes are used, and the phones that the codes alone give."""
    utterance_buffer = UtteranceBuffer(valid, symbols, device)
    spectral = SpectralLoss().to(device)
    used = torch.zeros(codec.num_codes, device=device)
    mels: list[float] = []
    pairs: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
    for places, num_samples in iter_batches(utterance_buffer.lengths, 64 * 16_000, None):
        batch = utterance_buffer.batch(places, num_samples)
        counts = -(-batch.lengths // codec.samples_per_code)
        digits = codec.digits.rounded(codec.latents(batch.waves, counts))
        inside = frame_numbers(codec.digits.numbers(digits), counts)
        used.index_add_(0, inside, torch.ones_like(inside, dtype=used.dtype))
        encoder = codec.speaker_encoder
        voices = batch.speakers
        if encoder is not None:
            others = pick_reference_clips(utterance_buffer, places, np.random.default_rng(0))
            voices = encoder(
                *utterance_buffer.waves(
                    others, int(utterance_buffer.lengths[others].max() + -utterance_buffer.lengths[others].max() % 160)
                )
            )
        made = codec.decoder(digits, voices, counts)[:, : batch.waves.shape[1]]
        mels.append(float(spectral(made, batch.waves, batch.lengths.sum())[0]))
        scores = reader(codec.digits.scale_digits(digits), counts)
        allowed = torch.ones(scores.shape[-1], dtype=torch.bool)
        for place, row in zip(places, decode_ctc_greedy(scores, allowed, (2 * counts).tolist()), strict=True):
            said = tuple(symbols.phones[k - 1] for k in row)
            pairs.setdefault(valid[place].language, []).append((valid[place].phones, said))
    shares = used[used > 0] / used.sum()
    return {
        "mel_distance": round(sum(mels) / len(mels), 4),
        "codes_used": int((used > 0).sum()),
        "bits_a_code": round(float(-(shares * shares.log2()).sum()), 2),
        "bits_possible": round(math.log2(codec.num_codes), 2),
        "phone_errors_of_codes": {language: round(errors(own), 4) for language, own in pairs.items()},
    }


def frame_numbers(numbers: Tensor, counts: Tensor) -> Tensor:
    """The codes of a batch [B, N] that are no padding, in one row."""
    return numbers[torch.arange(numbers.shape[1], device=numbers.device) < counts[:, None]]
