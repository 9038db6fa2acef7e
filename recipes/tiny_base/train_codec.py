"""Train the codec: reconstruct, keep the phones readable in the codes, and sharpen the sound with a critic at the end.

Sees every language. A codec that clones voices decodes in the voice of another piece of the same speaker, so that the
voice vector can hold nothing of what is said. Writes nothing: make.py does.
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

from recipes.tiny_base.codec_losses import Critic, PhoneReader, SpectralLoss, crops, ctc, feature_distance
from recipes.tiny_base.corpus import SPEAKERS, Utterance
from recipes.tiny_base.fitting import Average, Clock, Course, half_precision, optimizer_of, quick_arithmetic, stepped
from recipes.tiny_base.pile import Batch, Pile, batches, endless, symbols_of
from recipes.tiny_base.scoring import errors
from voxgraft.asr import CTCSymbols, decode_ctc_greedy
from voxgraft.models.tiny.model import TinyCodec, TinyCodecConfig

__all__ = ["CODEC_SIZES", "CodecSize", "train_codec"]

RATE = 8e-4
CRITIC_RATE = 3e-4
MEL_WEIGHT, SPECTRAL_WEIGHT, PHONE_WEIGHT = 2.0, 1.0, 0.5
CRITIC_WEIGHT, FEATURE_WEIGHT = 0.1, 0.4
CRITIC_FROM = 0.62
"""Share of the time after which the critic comes in: it costs more than everything else in a step."""
REFERENCE_SAMPLES = 48_000
"""Of the piece whose voice is imitated: 3 s."""
FAINTEST, LOUDEST = 0.4, 1.5
"""Clips are made fainter or louder, since recordings are."""


@dataclass(frozen=True, slots=True)
class CodecSize:
    """A codec's sizes and its batches."""

    config: TinyCodecConfig
    batch_seconds: int
    reader_width: int = 192
    critic_channels: int = 32
    crop_rows: int = 40
    crop_samples: int = 12_800


CODEC_SIZES = {
    "toy": CodecSize(
        TinyCodecConfig(SPEAKERS, (8, 8, 8, 5), 40, 48, 48, 48, encoder_blocks=(1, 1, 1), decoder_blocks=(1, 1, 1)),
        batch_seconds=12,
        reader_width=48,
        critic_channels=4,
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
        self.reader = PhoneReader(len(size.config.levels), len(symbols.phones), size.reader_width).to(device)
        self.critic = Critic(size.critic_channels).to(device)
        self.spectral = SpectralLoss().to(device)
        self.parameters = [*self.codec.parameters(), *self.reader.parameters()]
        self.optimizer = optimizer_of(self.parameters, device)
        self.critic_parameters = list(self.critic.parameters())
        self.critic_optimizer = optimizer_of(self.critic_parameters, device, beta2=0.95)
        self.averages = Average(self.codec), Average(self.reader)

    def step(self, batch: Batch, clock: Clock, reference: tuple[Tensor, Tensor] | None = None) -> dict[str, Tensor]:
        """One optimizer step, two where the critic takes part. `reference`: other pieces of the same speakers."""
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
        if clock.share > CRITIC_FROM:
            judged, more = self._judged(made, batch, clock)
            loss, losses = loss + judged, losses | more
        loss.backward()
        stepped(self.optimizer, self.parameters, clock.rate(RATE))
        for average in self.averages:
            average.take(clock.step)
        return losses

    def _judged(self, made: Tensor, batch: Batch, clock: Clock) -> tuple[Tensor, dict[str, Tensor]]:
        fake, true = crops([made, batch.waves], batch, self.size.crop_rows, self.size.crop_samples)
        with half_precision(self.device):
            for_true, for_fake = self.critic(true), self.critic(fake.detach())
            verdicts = [
                ((t[-1] - 1).square().mean() + f[-1].square().mean()) for t, f in zip(for_true, for_fake, strict=True)
            ]
            torch.stack(verdicts).sum().float().backward()  # type: ignore[no-untyped-call]
        stepped(self.critic_optimizer, self.critic_parameters, clock.rate(CRITIC_RATE) + 0.1 * CRITIC_RATE)
        self.critic.requires_grad_(False)
        with half_precision(self.device):
            for_fake = self.critic(fake)
            with torch.no_grad():
                for_true = self.critic(true)
            fooled = torch.stack([(f[-1] - 1).square().mean() for f in for_fake]).sum().float()
            alike = feature_distance(for_fake, for_true).float()
        self.critic.requires_grad_(True)
        judged = CRITIC_WEIGHT * fooled + FEATURE_WEIGHT * alike
        return judged, {"critic": torch.stack(verdicts).sum(), "fooled": fooled, "alike": alike}


def train_codec(
    corpus: Sequence[Utterance], setup: Course, size: CodecSize | None = None, human_share: float | None = None
) -> tuple[TinyCodec, dict[str, object]]:
    """Train for so many seconds and measure; gives the averaged codec in float32 on the device, and what was found.

    `human_share`: share of batches that are speakers who are not the recipe's own voices; None takes all clips alike.
    """
    torch.manual_seed(setup.seed)
    device = setup.device
    quick_arithmetic()
    train = [utterance for utterance in corpus if utterance.split == "train"]
    symbols = symbols_of(train)
    pile = Pile(train, symbols, device)
    setup.tell(f"codec: {len(train):,} utterances on {device}")
    chosen = size or CODEC_SIZES[setup.size]
    training = _Training(chosen, symbols, device)
    clock = Clock("codec", setup.seconds, setup.tell)
    chance = np.random.default_rng(setup.seed)
    stream = mixed_batches(pile, chosen.batch_seconds * 16_000, human_share, chance)
    clones = chosen.config.voice_vector > 0
    while clock.share < 1.0:
        places, num_samples = next(stream)
        batch = pile.batch(places, num_samples)
        reference = None
        if clones:
            gain = torch.from_numpy(chance.uniform(FAINTEST, LOUDEST, (len(places), 1))).float().to(device)
            batch = replace(batch, waves=(batch.waves * gain).clamp(-1, 1))
            reference = pile.crops(other_places(pile, places, chance), REFERENCE_SAMPLES, chance)
        clock.tick(training.step(batch, clock, reference))
    codec, reader = (training.averages[0].model, training.averages[1].model)
    report = measured(codec, reader, [u for u in corpus if u.split == "valid"], symbols, device)
    report |= {"steps": clock.step, "seconds": round(clock.elapsed), "seed": setup.seed}
    setup.tell(f"codec: {clock.step:,} steps; {json.dumps(report)}")
    return codec, report


def mixed_batches(
    pile: Pile, budget_samples: int, human_share: float | None, chance: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Batches without end, each of the recipe's own voices or of people, so many of them of people."""
    is_human = pile.speakers.cpu().numpy() >= len(SPEAKERS)
    if human_share is None or is_human.all() or not is_human.any():
        yield from endless(pile.lengths, budget_samples, chance)
    groups = [np.flatnonzero(~is_human), np.flatnonzero(is_human)]
    streams = [endless(pile.lengths[group], budget_samples, chance) for group in groups]
    while True:
        at = int(chance.random() < (human_share or 0.0))
        places, num_samples = next(streams[at])
        yield groups[at][places], num_samples


def other_places(pile: Pile, places: NDArray[np.int64], chance: np.random.Generator) -> NDArray[np.int64]:
    """For each clip another one of its speaker; itself where the speaker has no other."""
    found = places.copy()
    for row, place in enumerate(places.tolist()):
        own = pile.of_speaker(int(pile.speaker_numbers[place]))
        if len(own) > 1:
            # One of the others: those behind the clip's own place move up by one.
            drawn = int(chance.integers(len(own) - 1))
            found[row] = own[drawn + (drawn >= int(np.searchsorted(own, place)))]
    return found


@torch.no_grad()
def measured(
    codec: TinyCodec, reader: PhoneReader, valid: Sequence[Utterance], symbols: CTCSymbols, device: torch.device
) -> dict[str, object]:
    """How far the made speech is from the true, how many codes are used, and the phones that the codes alone give."""
    pile = Pile(valid, symbols, device)
    spectral = SpectralLoss().to(device)
    used = torch.zeros(codec.num_codes, device=device)
    mels: list[float] = []
    pairs: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
    for places, num_samples in batches(pile.lengths, 64 * 16_000, None):
        batch = pile.batch(places, num_samples)
        counts = -(-batch.lengths // codec.samples_per_code)
        digits = codec.digits.rounded(codec.latents(batch.waves, counts))
        inside = frame_numbers(codec.digits.numbers(digits), counts)
        used.index_add_(0, inside, torch.ones_like(inside, dtype=used.dtype))
        encoder = codec.speaker_encoder
        voices = batch.speakers
        if encoder is not None:
            others = other_places(pile, places, np.random.default_rng(0))
            voices = encoder(*pile.waves(others, int(pile.lengths[others].max() + -pile.lengths[others].max() % 160)))
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
