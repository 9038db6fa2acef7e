"""XTTS v2's clip encoder: spectra, codes of a recording (DVAE), and whose voice it is (latents and speaker vector).

A voice enters the sound twice: as 32 latents before the text, which the conditioning encoder of the GPT computes
(`model.py`), and as a vector of 512 numbers in the vocoder, which a ResNet computes. The codes of the DVAE are targets
for training only: the vocoder never reads them.

Written from descriptions of the original's steps and its tensor names, and checked against its outputs. All networks
run in exact float32 and mask their padding: a clip gives the same result in any batch.

Shapes: B clips, N samples, T frames of 256 samples, M = 80 bands, C channels, D numbers of a codebook entry, K entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.audio.features import (
    Waveform,
    WaveformLimits,
    exact_float32,
    mel_filters,
    power_spectrum,
    run_padded_batches,
    validate_waveforms,
)
from voxgraft.checkpoints.base import Shape
from voxgraft.checkpoints.load import read_tensor_shapes, read_tensors
from voxgraft.models.base import require_exact_tensors
from voxgraft.models.campplus import COUNTER
from voxgraft.nn.layers import init_empty_weights

# ---- spectra ---------------------------------------------------------------------------------------------------------

SAMPLE_RATE = 22_050
NUM_MELS = 80
HOP, WINDOW = 256, 1024
TOP_HZ = 8_000.0
# The conditioning encoder and the DVAE read the same window through transforms of different length.
CONDITIONING_FFT, DVAE_FFT = 2048, 1024
POWER_FLOOR = 1e-5


def compute_conditioning_mel(wave: Tensor, mel_stats: Tensor) -> Tensor:
    """What the conditioning encoder reads. Samples at 22,050 Hz [N], statistics [M] -> [M, 1 + N // 256]"""
    return _compute_mel(wave, mel_stats, CONDITIONING_FFT)


def compute_dvae_mel(wave: Tensor, mel_stats: Tensor) -> Tensor:
    """What the DVAE reads. Samples at 22,050 Hz [N], statistics [M] -> [M, 1 + N // 256]"""
    return _compute_mel(wave, mel_stats, DVAE_FFT)


def _compute_mel(wave: Tensor, mel_stats: Tensor, num_fft: int) -> Tensor:
    """Natural logarithms of mel power, divided by the statistics: there is no mean to subtract."""
    window, filters = _mel_tables(num_fft, wave.device)
    with exact_float32():
        mel = filters @ power_spectrum(wave.float(), window, HOP)
    return mel.clamp_min(POWER_FLOOR).log() / mel_stats.to(mel)[:, None]


@cache
def _mel_tables(num_fft: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Window [num_fft], zeros on both sides of 1,024 samples, and filters [M, num_fft / 2 + 1]."""
    margin = (num_fft - WINDOW) // 2
    filters = mel_filters(SAMPLE_RATE, num_fft, NUM_MELS, TOP_HZ, htk=True)
    return F.pad(torch.hann_window(WINDOW), (margin, margin)).to(device), filters.to(device)


# ---- DVAE ------------------------------------------------------------------------------------------------------------

DVAE_NAME = "dvae.pth"
SAMPLES_PER_CODE = 1024
NUM_BLOCKS = 3
# What the DVAE's own training kept beside its weights.
TRAINING_STATE = (
    "codebook.cluster_size",
    "codebook.embed_avg",
    "discrete_loss.accumulator",
    "discrete_loss.accumulator_filled",
    "discrete_loss.accumulator_index",
)
# Frames that go through the DVAE together, padding included.
BATCH_FRAMES = 8_000


def count_codes(num_samples: int) -> int:
    """How many codes a clip has: those that begin within it. The DVAE gives one more for a multiple of 1,024."""
    return -(-num_samples // SAMPLES_PER_CODE)


@dataclass(frozen=True, slots=True)
class DVAESize:
    """The sizes that may differ; as published by default."""

    width: int = 512
    code_width: int = 512
    codes: int = 1024
    mels: int = NUM_MELS

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> DVAESize:
        """The size that the tensors of a file have; as published where they do not say."""
        first, table = shapes.get("encoder.0.0.weight", ()), shapes.get("codebook.embed", ())
        if len(first) != 3 or len(table) != 2 or not all((*first, *table)):
            return cls()
        return cls(first[0], *table, first[1])


class DiscreteVAE(nn.Module):
    """A mel spectrogram at a quarter of its rate, each frame as the nearest of 1,024 entries."""

    def __init__(self, size: DVAESize | None = None) -> None:
        super().__init__()
        self.size = size or DVAESize()
        width, inner = self.size.width, 2 * self.size.width
        self.encoder = nn.ModuleList(
            [
                nn.Sequential(nn.Conv1d(self.size.mels, width, 3, stride=2, padding=1), nn.ReLU()),
                nn.Sequential(nn.Conv1d(width, inner, 3, stride=2, padding=1), nn.ReLU()),
                *(DVAEBlock(inner) for _ in range(NUM_BLOCKS)),
                nn.Conv1d(inner, self.size.code_width, 1),
            ]
        )
        self.codebook = nn.ParameterDict({"embed": torch.zeros(self.size.code_width, self.size.codes)})
        self.decoder = nn.Sequential(
            nn.Conv1d(self.size.code_width, inner, 1),
            *(DVAEBlock(inner) for _ in range(NUM_BLOCKS)),
            nn.Sequential(UpsampledConv(inner, inner), nn.ReLU()),
            nn.Sequential(UpsampledConv(inner, width), nn.ReLU()),
            nn.Conv1d(width, self.size.mels, 1),
        )
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, path: Path) -> tuple[DVAESize, dict[str, Shape]]:
        """Size and tensors of a file, the state of its training left out; refused, by name, unless it is complete."""
        stored = read_tensor_shapes(path)
        used = {name: shape for name, shape in stored.items() if name not in TRAINING_STATE}
        size = DVAESize.of(used)
        with init_empty_weights():
            shapes = {name: tuple(tensor.shape) for name, tensor in cls(size).state_dict().items()}
        require_exact_tensors(used, shapes, "DVAE of XTTS v2", path)
        return size, shapes

    @classmethod
    def load(cls, path: Path) -> DiscreteVAE:
        """From `dvae.pth`."""
        size, shapes = cls.read_shapes(path)
        with init_empty_weights():
            model = cls(size)
        model.load_state_dict(read_tensors(path, shapes), assign=True)
        return model.requires_grad_(False)

    @torch.no_grad()
    def encode(self, mels: Sequence[Tensor], batch_frames: int = BATCH_FRAMES) -> list[Tensor]:
        """The codes of mels [M, T], each as if it were alone. -> [ceil(T / 4)] a clip"""
        rows = [mel.T.to(self.codebook["embed"]) for mel in mels]
        latents = run_padded_batches(self, rows, batch_frames, lambda frames: -(-frames // 4))
        return [self.quantize(latent)[0] for latent in latents]

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Tensor:
        """What is compared with the codebook. [B, T, M], and where the clips are, [B, T] -> [B, ceil(T / 4), D]"""
        x = frames.transpose(1, 2)
        with exact_float32():
            # Padding is wiped out before every convolution: a clip alone has zeros there.
            for layer in self.encoder:
                x = layer(x, mask) if isinstance(layer, DVAEBlock) else layer(x)
                if mask is not None:
                    # A frame after a stride of 2 exists if the one in its middle did.
                    mask = mask[:, ::2] if x.shape[-1] < mask.shape[-1] else mask
                    x = x * mask[:, None]
        return x.transpose(1, 2)

    @torch.no_grad()
    def quantize(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest entry, and by how much the second is farther away, as squared distances. [T, D] -> [T], [T]"""
        table = self.codebook["embed"]  # [D, K]: the entries are columns
        with exact_float32():
            distances = latents.square().sum(1, keepdim=True) - 2 * latents @ table + table.square().sum(0)
        nearest = distances.topk(2, largest=False).values
        return distances.argmin(1), nearest[:, 1] - nearest[:, 0]

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The mel that codes stand for, for comparisons: nothing sounds from it. [B, n] -> [B, M, 4 n]"""
        with exact_float32():
            mel: Tensor = self.decoder(self.codebook["embed"].T[codes].transpose(1, 2))
        return mel


class DVAEBlock(nn.Module):
    """Three convolutions beside a straight way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, C, T], zeros where the mask is false, [B, T] -> [B, C, T]"""
        inner = self.net[1](self.net[0](x))
        if mask is not None:
            inner = inner * mask[:, None]
        added: Tensor = self.net[4](self.net[3](self.net[2](inner)))
        return x + added


class UpsampledConv(nn.Module):
    """Every frame twice, then a convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, 2 T]"""
        convolved: Tensor = self.conv(x.repeat_interleave(2, dim=-1))
        return convolved


# ---- speaker vector --------------------------------------------------------------------------------------------------

SPEAKER_RATE = 16_000
SPEAKER_WIDTH = 512
SPEAKER_PREFIX = "hifigan_decoder.speaker_encoder."
SPEAKER_FFT, SPEAKER_WINDOW, SPEAKER_HOP, SPEAKER_BANDS = 512, 400, 160, 64
PRE_EMPHASIS = 0.97
SPEAKER_POWER_FLOOR = 1e-6
NORM_EPS = 1e-5
LAYER_BLOCKS, LAYER_WIDTHS = (3, 4, 6, 3), (32, 64, 128, 256)
SQUEEZE_RATIO, ATTENTION_WIDTH = 8, 128
# Tables that the original stores and that are computed here: pre-emphasis, window and filters.
COMPUTED_TABLES = {
    "torch_spec.0.filter": (1, 1, 2),
    "torch_spec.1.spectrogram.window": (SPEAKER_WINDOW,),
    "torch_spec.1.mel_scale.fb": (SPEAKER_FFT // 2 + 1, SPEAKER_BANDS),
}
# A mirrored half frame needs more samples than it has.
SPEAKER_LIMITS = WaveformLimits(SPEAKER_RATE, min_samples=SPEAKER_FFT // 2 + 1)


class ResNetSpeakerEncoder(nn.Module):
    """A ResNet over a mel spectrogram as an image, and attention that sums it up over time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, LAYER_WIDTHS[0], 3, padding=1)
        self.bn1 = nn.BatchNorm2d(LAYER_WIDTHS[0])
        inputs = LAYER_WIDTHS[0]
        for number, (blocks, width) in enumerate(zip(LAYER_BLOCKS, LAYER_WIDTHS, strict=True), 1):
            first = SqueezeExciteBlock(inputs, width, stride=1 if number == 1 else 2)
            layer = nn.Sequential(first, *(SqueezeExciteBlock(width, width) for _ in range(blocks - 1)))
            self.add_module(f"layer{number}", layer)
            inputs = width
        flat = LAYER_WIDTHS[-1] * SPEAKER_BANDS // 8
        self.attention = nn.Sequential(
            nn.Conv1d(flat, ATTENTION_WIDTH, 1),
            nn.ReLU(),
            nn.BatchNorm1d(ATTENTION_WIDTH),
            nn.Conv1d(ATTENTION_WIDTH, flat, 1),
            nn.Softmax(dim=2),
        )
        self.fc = nn.Linear(2 * flat, SPEAKER_WIDTH)
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, path: Path, prefix: str = SPEAKER_PREFIX) -> dict[str, Shape]:
        """The tensors that are read, of `model.pth`; refused, by name, unless it has all and, there, no other."""
        stored = read_tensor_shapes(path, prefix)
        with init_empty_weights():
            shapes = {name: tuple(tensor.shape) for name, tensor in cls().state_dict().items()}
        # Counters of training steps and computed tables may be in the file or not.
        needed = {name: shape for name, shape in shapes.items() if name in stored or not name.endswith(COUNTER)}
        tables = {name: shape for name, shape in COMPUTED_TABLES.items() if name in stored}
        require_exact_tensors(stored, needed | tables, "speaker encoder of XTTS v2", path)
        return {name: shape for name, shape in shapes.items() if not name.endswith(COUNTER)}

    @classmethod
    def load(cls, path: Path, prefix: str = SPEAKER_PREFIX) -> ResNetSpeakerEncoder:
        """From `model.pth`."""
        tensors = read_tensors(path, cls.read_shapes(path, prefix), prefix)
        with init_empty_weights():
            model = cls()
        counters = {name: torch.zeros((), dtype=torch.int64) for name in model.state_dict() if name.endswith(COUNTER)}
        model.load_state_dict(tensors | counters, assign=True)
        return model.requires_grad_(False).eval()

    @torch.no_grad()
    def embed(self, waves: Sequence[Waveform]) -> Tensor:
        """The voice of each recording at 16 kHz, as a unit vector. -> [clips, 512]

        Clips go through one by one: a mean over time runs in every block, and a clip of a few seconds keeps a device
        busy on its own.
        """
        checked = validate_waveforms(waves, SPEAKER_LIMITS)
        vectors = [self(self.compute_input(wave.to(self.fc.weight.device))[None])[0] for wave in checked]
        return F.normalize(torch.stack(vectors), dim=-1) if vectors else self.fc.weight.new_zeros(0, SPEAKER_WIDTH)

    def compute_input(self, wave: Tensor) -> Tensor:
        """Log mel powers, each band with mean 0 and variance 1 over the clip. [N] at 16 kHz -> [64, 1 + N // 160]"""
        logs = (compute_speaker_mel(wave) + SPEAKER_POWER_FLOOR).log()
        variance, mean = torch.var_mean(logs, dim=1, correction=0, keepdim=True)
        return (logs - mean) / (variance + NORM_EPS).sqrt()

    @torch.no_grad()
    def forward(self, mel: Tensor) -> Tensor:
        """The vector before its length is made 1. [B, 64, T] -> [B, 512]"""
        with exact_float32():
            x = self.bn1(F.relu(self.conv1(mel[:, None])))  # ReLU comes before the norm here and in the blocks
            for number in range(1, len(LAYER_BLOCKS) + 1):
                x = self.get_submodule(f"layer{number}")(x)
            x = x.flatten(1, 2)  # [B, 2048, T / 8], channel by channel eight bands
            weights = self.attention(x)
            mean = (x * weights).sum(2)
            deviation = ((x.square() * weights).sum(2) - mean.square()).clamp_min(NORM_EPS).sqrt()
            vectors: Tensor = self.fc(torch.cat([mean, deviation], dim=1))
        return vectors


def compute_speaker_mel(wave: Tensor) -> Tensor:
    """Mel power after pre-emphasis, not its logarithm. [N] at 16 kHz -> [64, 1 + N // 160]"""
    window, filters = _speaker_tables(wave.device)
    before = torch.cat([wave[1:2], wave[:-1]])  # mirrored: before the first sample is the second
    with exact_float32():
        return filters @ power_spectrum(wave - PRE_EMPHASIS * before, window, SPEAKER_HOP)


@cache
def _speaker_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Window [512], zeros on both sides of 400 samples, and filters [64, 257]."""
    margin = (SPEAKER_FFT - SPEAKER_WINDOW) // 2
    filters = mel_filters(SPEAKER_RATE, SPEAKER_FFT, SPEAKER_BANDS, htk=True, equal_areas=False)
    return F.pad(torch.hamming_window(SPEAKER_WINDOW), (margin, margin)).to(device), filters.to(device)


class SqueezeExciteBlock(nn.Module):
    """Two convolutions, weighed by channel, beside a straight way; the stride runs over bands and time."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.se = ChannelWeights(width)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, image: Tensor) -> Tensor:
        """[B, inputs, bands, T] -> [B, width, bands / stride, T / stride]"""
        inner = self.se(self.bn2(self.conv2(self.bn1(F.relu(self.conv1(image))))))
        return F.relu(inner + (image if self.downsample is None else self.downsample(image)))


class ChannelWeights(nn.Module):
    """Squeeze and excite: each channel times a number from 0 to 1 that the means of all channels give."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width // SQUEEZE_RATIO
        self.fc = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Sigmoid())

    def forward(self, image: Tensor) -> Tensor:
        """[B, C, bands, T] -> the same"""
        weights: Tensor = self.fc(image.mean((2, 3)))
        return image * weights[:, :, None, None]
