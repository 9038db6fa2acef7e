"""Losses of the codec: spectral distances, CTC of phones from the codes, and a spectrogram discriminator.

Means are over speech only: padding is zero in both signals and is not counted.

Shapes: B clips, S samples, N codes, L digits, P phones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from recipes.tiny_base.utterance_buffer import Batch
from voxgraft.audio.features import HOP, LOG_MEL_STD, LogMel
from voxgraft.models.tiny.model import CodecBlock, apply_mask, build_frame_mask, repeat_mask

__all__ = ["Discriminator", "PhoneHead", "SpectralLoss", "crops", "ctc", "feature_matching_loss"]

WINDOWS = (256, 512, 1024)
DISCRIMINATOR_WINDOWS = (512, 1024)
QUIET = 5e-3


class SpectralLoss(nn.Module):
    """Distance of two batches of waves in mel bands and in spectra of several resolutions."""

    def __init__(self, num_mels: int = 80) -> None:
        super().__init__()
        self.mel = LogMel(num_mels)
        for size in WINDOWS:
            self.register_buffer(f"window{size}", torch.hann_window(size), persistent=False)

    def forward(self, made: Tensor, true: Tensor, speech_samples: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S], [B, S], how many samples of the batch are speech -> mel and spectral distance."""
        mel_true = self.mel(true)
        mel = (self.mel(made) - mel_true).abs().sum() / (speech_samples / HOP * mel_true.shape[-1])
        spectral = made.new_zeros(())
        for size in WINDOWS:
            window = self.get_buffer(f"window{size}")
            one, other = magnitudes(made, window), magnitudes(true, window)
            cells = speech_samples / (size // 4) * (size // 2 + 1)
            logarithmic = ((one + QUIET).log() - (other + QUIET).log()).abs().sum() / cells
            linear = (one - other).abs().sum() / other.sum()
            spectral = spectral + (logarithmic + linear) / len(WINDOWS)
        return mel * (LOG_MEL_STD / 2), spectral  # in units of a magnitude's logarithm


def magnitudes(waves: Tensor, window: Tensor) -> Tensor:
    """[B, S] -> [B, K, F]"""
    size = len(window)
    spectrum = torch.stft(waves, size, size // 4, window=window, pad_mode="constant", return_complex=True)
    return (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()


class PhoneHead(nn.Module):
    """CTC head that recognizes phones from the codes alone, so that the codes keep the content. Not shipped."""

    def __init__(self, num_digits: int, num_phones: int, width: int = 192, depth: int = 3) -> None:
        super().__init__()
        self.enter = nn.Conv1d(num_digits, 2 * width, 3, padding=1)
        self.blocks = nn.ModuleList(CodecBlock(width) for _ in range(depth))
        self.leave = nn.Linear(width, num_phones + 1)

    def forward(self, digits: Tensor, counts: Tensor) -> Tensor:
        """[B, N, L], [B] -> log probabilities [B, 2 N, P + 1]"""
        mask = build_frame_mask(counts, digits.shape[1])
        frames = self.enter(apply_mask(digits, mask).transpose(1, 2)).transpose(1, 2)
        twice = repeat_mask(mask, 2)
        frames = apply_mask(frames.unflatten(-1, (2, -1)).flatten(1, 2), twice)
        for block in self.blocks:
            frames = block(frames, twice)
        scores: Tensor = self.leave(frames)
        return scores.float().log_softmax(-1)


def ctc(log_probabilities: Tensor, targets: Tensor, num_steps: Tensor, num_targets: Tensor) -> Tensor:
    """CTC loss for each target symbol; lengths are on the CPU. [B, T, .], [B, .], [B], [B]"""
    losses = functional.ctc_loss(
        log_probabilities.transpose(0, 1), targets, num_steps, num_targets, reduction="sum", zero_infinity=True
    )
    return losses / max(1, int(num_targets.sum()))


class Discriminator(nn.Module):
    """Spectrogram discriminators at two resolutions."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.discriminators = nn.ModuleList(SpectrogramDiscriminator(size, channels) for size in DISCRIMINATOR_WINDOWS)

    def forward(self, waves: Tensor) -> list[list[Tensor]]:
        """[B, S] -> for each resolution the feature maps of all layers, the output last."""
        return [discriminator(waves) for discriminator in self.discriminators]


class SpectrogramDiscriminator(nn.Module):
    """Convolutions over time and frequency."""

    window: Tensor

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        shapes = [(2, 1), (channels, 2), (channels, 2), (channels, 2)]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(entering, channels, (9, 3), stride=(stride, 1), padding=(4, 1)))
            for entering, stride in shapes
        )
        self.output_layer = weight_norm(nn.Conv2d(channels, 1, (3, 3), padding=1))

    def forward(self, waves: Tensor) -> list[Tensor]:
        """[B, S] -> maps"""
        size = len(self.window)
        spectrum = torch.stft(waves.float(), size, size // 4, window=self.window, return_complex=True)
        frames = torch.view_as_real(spectrum).permute(0, 3, 1, 2).contiguous()  # [B, 2, K, F]
        seen: list[Tensor] = []
        for layer in self.layers:
            frames = functional.leaky_relu(layer(frames), 0.1)
            seen.append(frames)
        return [*seen, self.output_layer(frames)]


def feature_matching_loss(made: list[list[Tensor]], true: list[list[Tensor]]) -> Tensor:
    """Feature-matching loss: mean relative distance of the discriminator's feature maps."""
    pairs = [(m, t) for one, other in zip(made, true, strict=True) for m, t in zip(one[:-1], other[:-1], strict=True)]
    distances = [(m - t).abs().mean() / t.abs().mean().clamp_min(1e-3) for m, t in pairs]
    return torch.stack(distances).mean()


def crops(waves: list[Tensor], batch: Batch, num_rows: int, num_samples: int) -> list[Tensor]:
    """The same random segments of several batches of waves [B, S]; shorter clips keep their zero padding."""
    size = min(num_samples, batch.waves.shape[1])
    rows = batch.waves.shape[0]
    chosen = torch.randperm(rows, device=batch.waves.device)[:num_rows]
    free = (batch.lengths[chosen] - size).clamp_min(0)
    starts = (torch.rand(len(chosen), device=free.device) * (free + 1)).long()
    span = starts[:, None] + torch.arange(size, device=free.device)
    return [wave[chosen].gather(1, span) for wave in waves]
