"""XTTS v2's clip encoder: spectra, codes of a recording (DVAE), and whose voice it is (latents and speaker vector).

A voice enters the sound twice: as 32 latents before the text, which the conditioning encoder of the GPT computes
(`model.py`), and as a vector of 512 numbers in the vocoder, which a ResNet computes. The codes of the DVAE are targets
for training only: the vocoder never reads them.

Written from descriptions of the original's steps and its tensor names, and checked against its outputs. All networks
run in exact float32 and mask their padding: a clip gives the same result in any batch.

Shapes: B clips, N samples, T frames of 256 samples, M = 80 bands, C channels, D numbers of a codebook entry, K entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.features import (
    SILENCE_POWER,
    Waveform,
    WaveformLimits,
    compute_peak_frame_power,
    exact_float32,
    mel_filters,
    power_spectrum,
    resample_sinc,
    run_padded_batches,
    validate_waveform,
    validate_waveforms,
)
from voxgraft.audio.files import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, resample
from voxgraft.checkpoints.base import Shape
from voxgraft.checkpoints.load import open_nested_checkpoint, read_tensor_shapes, read_tensors
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError, FileError
from voxgraft.core.files import is_file
from voxgraft.core.rng import hash_int
from voxgraft.models.base import BaseFiles, Clip, ClipEncoder, require_exact_tensors
from voxgraft.models.xtts.family import DVAE_NAME
from voxgraft.models.xtts.model import LATENTS_ARRAY, SPEAKER_ARRAY
from voxgraft.models.xtts.shapes import (
    COUNTER_SUFFIX,
    DVAE_BLOCKS,
    MEL_STATS_NAME,
    NUM_MELS,
    SPEAKER_ATTENTION_WIDTH,
    SPEAKER_BLOCKS,
    SPEAKER_ENCODER_PREFIX,
    SPEAKER_FFT,
    SPEAKER_MELS,
    SPEAKER_VECTOR_WIDTH,
    SPEAKER_WINDOW,
    VOICE_LATENTS,
    dvae_shapes,
    is_computed,
    read_xtts_config,
    speaker_encoder_shapes,
)
from voxgraft.nn.layers import init_empty_weights

if TYPE_CHECKING:
    from voxgraft.models.xtts.model import XTTSModel

# ---- spectra ---------------------------------------------------------------------------------------------------------

SAMPLE_RATE = 22_050
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

SAMPLES_PER_CODE = 1024
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

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> DVAESize:
        """The size that the tensors of a file have; as published where they do not say."""
        first, table = shapes.get("encoder.0.0.weight", ()), shapes.get("codebook.embed", ())
        if len(first) != 3 or len(table) != 2 or not all((*first, *table)):
            return cls()
        return cls(first[0], *table)


class DiscreteVAE(nn.Module):
    """A mel spectrogram at a quarter of its rate, each frame as the nearest of 1,024 entries."""

    def __init__(self, size: DVAESize | None = None) -> None:
        super().__init__()
        self.size = size or DVAESize()
        width, inner = self.size.width, 2 * self.size.width
        self.encoder = nn.ModuleList(
            [
                nn.Sequential(nn.Conv1d(NUM_MELS, width, 3, stride=2, padding=1), nn.ReLU()),
                nn.Sequential(nn.Conv1d(width, inner, 3, stride=2, padding=1), nn.ReLU()),
                *(DVAEBlock(inner) for _ in range(DVAE_BLOCKS)),
                nn.Conv1d(inner, self.size.code_width, 1),
            ]
        )
        self.codebook = nn.ParameterDict({"embed": torch.zeros(self.size.code_width, self.size.codes)})
        self.decoder = nn.Sequential(
            nn.Conv1d(self.size.code_width, inner, 1),
            *(DVAEBlock(inner) for _ in range(DVAE_BLOCKS)),
            nn.Sequential(UpsampledConv(inner, inner), nn.ReLU()),
            nn.Sequential(UpsampledConv(inner, width), nn.ReLU()),
            nn.Conv1d(width, NUM_MELS, 1),
        )
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, path: Path) -> tuple[DVAESize, dict[str, Shape]]:
        """Size and tensors of a file, the state of its training left out; refused, by name, unless it is complete."""
        stored = read_tensor_shapes(path)
        used = {name: shape for name, shape in stored.items() if name not in TRAINING_STATE}
        size = DVAESize.of(used)
        shapes = dvae_shapes(size.width, size.code_width, size.codes)
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
    @exact_float32()
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
        """The mel of codes, for comparisons: no sound is made from it. [B, n] -> [B, M, 4 n]"""
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
SPEAKER_HOP = 160
PRE_EMPHASIS = 0.97
SPEAKER_POWER_FLOOR = 1e-6
NORM_EPS = 1e-5
SQUEEZE_RATIO = 8
# A mirrored half frame needs more samples than it has.
SPEAKER_LIMITS = WaveformLimits(SPEAKER_RATE, min_samples=SPEAKER_FFT // 2 + 1)


class ResNetSpeakerEncoder(nn.Module):
    """A ResNet over a mel spectrogram as an image, and attention that sums it up over time."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, num_blocks in enumerate(SPEAKER_BLOCKS):
            own = width << stage
            blocks = [SqueezeExciteBlock(inputs, own, stride=2 if stage else 1)]
            blocks += [SqueezeExciteBlock(own, own) for _ in range(num_blocks - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            inputs = own
        flat = inputs * (SPEAKER_MELS >> (len(SPEAKER_BLOCKS) - 1))
        self.attention = nn.Sequential(
            nn.Conv1d(flat, SPEAKER_ATTENTION_WIDTH, 1),
            nn.ReLU(),
            nn.BatchNorm1d(SPEAKER_ATTENTION_WIDTH),
            nn.Conv1d(SPEAKER_ATTENTION_WIDTH, flat, 1),
            nn.Softmax(dim=2),
        )
        self.fc = nn.Linear(2 * flat, SPEAKER_VECTOR_WIDTH)
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, path: Path, prefix: str = SPEAKER_ENCODER_PREFIX) -> tuple[int, dict[str, Shape]]:
        """Width and tensors that are read of `model.pth`; refused, by name, unless it has all and, there, no other."""
        stored = read_tensor_shapes(path, prefix)
        first = stored.get("conv1.weight", ())
        width = first[0] if first and first[0] >= 1 else 32
        shapes = speaker_encoder_shapes(width)
        require_exact_tensors(stored, shapes, "speaker encoder of XTTS v2", path)
        # Pre-emphasis, window and filters are computed here, and counters of training steps are of no use.
        return width, {name: shape for name, shape in shapes.items() if not is_computed(SPEAKER_ENCODER_PREFIX + name)}

    @classmethod
    def load(cls, path: Path, prefix: str = SPEAKER_ENCODER_PREFIX) -> ResNetSpeakerEncoder:
        """From `model.pth`."""
        width, shapes = cls.read_shapes(path, prefix)
        return cls.from_tensors(read_tensors(path, shapes, prefix), width)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], width: int = 32) -> ResNetSpeakerEncoder:
        """From tensors under the names of the published file, without computed tables and counters."""
        with init_empty_weights():
            model = cls(width)
        names = [name for name in model.state_dict() if name.endswith(COUNTER_SUFFIX)]
        counters = {name: torch.zeros((), dtype=torch.int64) for name in names}
        model.load_state_dict({**tensors, **counters}, assign=True)
        return model.requires_grad_(False).eval()

    @torch.no_grad()
    @exact_float32()
    def embed(self, waves: Sequence[Waveform]) -> Tensor:
        """The voice of each recording at 16 kHz, as a unit vector. -> [clips, 512]

        Clips go through one by one: a mean over time runs in every block, and a clip of a few seconds keeps a device
        busy on its own.
        """
        checked = validate_waveforms(waves, SPEAKER_LIMITS)
        vectors = [self(self.compute_input(wave.to(self.fc.weight.device))[None])[0] for wave in checked]
        return (
            F.normalize(torch.stack(vectors), dim=-1) if vectors else self.fc.weight.new_zeros(0, SPEAKER_VECTOR_WIDTH)
        )

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
            for number in range(1, len(SPEAKER_BLOCKS) + 1):
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
    filters = mel_filters(SPEAKER_RATE, SPEAKER_FFT, SPEAKER_MELS, htk=True, equal_areas=False)
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
        inner = max(1, width // SQUEEZE_RATIO)
        self.fc = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Sigmoid())

    def forward(self, image: Tensor) -> Tensor:
        """[B, C, bands, T] -> the same"""
        weights: Tensor = self.fc(image.mean((2, 3)))
        return image * weights[:, :, None, None]


# ---- the encoder -----------------------------------------------------------------------------------------------------

# Of a recording to learn from, the latents are those of 3 to 6 s, filled up to 6 s with silence, as in the original's
# trainer: the conditioning encoder has seen nothing else there.
MIN_CONDITIONING_SAMPLES, MAX_CONDITIONING_SAMPLES = 66_150, 132_300
CONDITIONING_BATCH = 16
# The original drops chunks of less than 0.33 s; of a shorter recording nothing is left.
MIN_VOICE_SAMPLES = math.ceil(0.33 * SAMPLE_RATE)
MAX_SETTING_SECONDS = 3600
# Where the config asks for that, every recording is scaled to it.
NORMALIZED_PEAK = 0.75
# The exact resampler keeps one filter for each of them; only odd rates have more.
MAX_RESAMPLING_PHASES = 1000

Recording = tuple[NDArray[np.float32], int]
"""Samples of one channel, and how many there are in a second."""


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """How recordings of a voice are cut, as the base's config says; as published by default."""

    max_seconds: float = 30
    """Of each recording."""
    conditioning_seconds: float = 30
    """Of all recordings together, for the latents."""
    chunk_seconds: float = 4
    normalize: bool = False

    @classmethod
    def of(cls, config: Path | None) -> ReferenceSettings:
        """From `config.json`; as published where it does not say."""
        settings = read_xtts_config(config) if config is not None else {}
        names = {
            "max_seconds": "max_ref_len",
            "conditioning_seconds": "gpt_cond_len",
            "chunk_seconds": "gpt_cond_chunk_len",
        }
        found = {own: settings[name] for own, name in names.items() if name in settings}
        for own, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_SETTING_SECONDS:
                expected = f"seconds, 1 to {MAX_SETTING_SECONDS:,}"
                where = config or ""
                raise ConfigError("base-config", f"{names[own]} is {value!r:.40}", expected=expected, where=where)
        return cls(**found, normalize=settings.get("sound_norm_refs") is True)


def split_conditioning_chunks(wave: Tensor, settings: ReferenceSettings) -> list[Tensor]:
    """The parts of a voice whose latents are averaged, [N] at 22,050 Hz; parts under 0.33 s are left out."""
    used = wave[: int(settings.conditioning_seconds * SAMPLE_RATE)]
    chunks = torch.split(used, int(settings.chunk_seconds * SAMPLE_RATE))
    return [chunk for chunk in chunks if len(chunk) >= MIN_VOICE_SAMPLES]


def choose_conditioning_span(wave: Tensor) -> tuple[int, int]:
    """Start and end of what a recording to learn from is conditioned on: 3 to 6 s, or half of a shorter one.

    Length and place depend on the samples alone. The original draws new ones at every step.
    """
    digest = hash_int("conditioning", crc32(wave.numpy().tobytes()))
    length = MIN_CONDITIONING_SAMPLES + digest % (MAX_CONDITIONING_SAMPLES - MIN_CONDITIONING_SAMPLES + 1)
    if length > len(wave):
        length = len(wave) // 2
    start = (digest >> 32) % (len(wave) - length + 1)
    return start, start + length


class XTTSClipEncoder(ClipEncoder):
    """The DVAE, the speaker encoder, and the conditioning encoder of the base itself."""

    sample_rate = SAMPLE_RATE

    def __init__(
        self,
        model: XTTSModel,
        speakers: ResNetSpeakerEncoder,
        mel_stats: Tensor,
        settings: ReferenceSettings,
        dvae: Path | DiscreteVAE,
    ) -> None:
        """`dvae` is read when the first recording to learn from is encoded: speaking needs no codes."""
        self.model, self.speakers, self.settings = model, speakers, settings
        self.mel_stats, self._dvae = mel_stats, dvae
        self.limits = WaveformLimits(SAMPLE_RATE, MIN_VOICE_SAMPLES, model.spec.max_codes * SAMPLES_PER_CODE)

    @classmethod
    def load(cls, files: BaseFiles, model: XTTSModel) -> XTTSClipEncoder:
        """From the base folder. Statistics and speaker encoder are read as stored: the model may be half precision."""
        speakers = ResNetSpeakerEncoder.load(files.checkpoint).to(model.device)
        mel_stats = read_tensors(files.checkpoint, {MEL_STATS_NAME: (NUM_MELS,)})[MEL_STATS_NAME]
        lowest = float(mel_stats.abs().nan_to_num(0.0, posinf=0.0).min())
        if lowest == 0:
            found = f"{MEL_STATS_NAME} contains values that are 0, NaN or infinite"
            expected = "finite values other than 0"
            raise CheckpointError("statistics-broken", found, expected=expected, where=files.checkpoint)
        settings = ReferenceSettings.of(files.config)
        return cls(model, speakers, mel_stats.to(model.device), settings, files.folder / DVAE_NAME)

    @cached_property
    def dvae(self) -> DiscreteVAE:
        """The network that turns recordings into codes; an error that names its file if that is missing."""
        if isinstance(self._dvae, DiscreteVAE):
            return self._dvae
        if not is_file(self._dvae):
            found = f"{self._dvae.name}, which turns recordings into codes, is not in the folder"
            cure = "copy the file into the base folder (`voxgraft download xtts` downloads it)."
            raise FileError("base-file-missing", found, where=self._dvae, cure=cure)
        return DiscreteVAE.load(self._dvae).to(self.model.device)

    @torch.no_grad()
    @exact_float32()
    def encode(self, waves: Sequence[Waveform]) -> list[Clip]:
        """Recordings to learn from: codes, the latents of a part of each, and the speaker vector of the whole."""
        checked = [
            _validate_voice(wave, self.limits, f"clip {number} of {len(waves)}").clamp(-1.0, 1.0)
            for number, wave in enumerate(waves, 1)
        ]
        on_device = [wave.to(self.mel_stats.device) for wave in checked]
        codes = self.dvae.encode([compute_dvae_mel(wave, self.mel_stats) for wave in on_device])
        parts = []
        for wave, own in zip(checked, on_device, strict=True):
            start, end = choose_conditioning_span(wave)
            parts.append(F.pad(own[start:end], (0, MAX_CONDITIONING_SAMPLES - (end - start))))
        latents = self._encode_chunks(parts)
        vectors = self._embed_speakers(checked)
        clips = []
        for wave, own_codes, own_latents, vector in zip(checked, codes, latents, vectors, strict=True):
            voice = {LATENTS_ARRAY: own_latents.cpu().numpy(), SPEAKER_ARRAY: vector.cpu().numpy()}
            clips.append(Clip(own_codes[: count_codes(len(wave))].cpu().numpy(), voice))
        return clips

    def encode_voice(self, samples: NDArray[np.float32], rate: int) -> Clip:
        """A recording of any length as a voice to speak with. It has no codes: nothing reads those of a voice."""
        return self.encode_recordings([(samples, rate)])

    @torch.no_grad()
    @exact_float32()
    def encode_recordings(self, recordings: Sequence[Recording]) -> Clip:
        """Recordings of one voice: latents of all of them joined, and the mean of their speaker vectors."""
        waves = [prepare_reference(samples, rate, self.settings) for samples, rate in recordings]
        # Every recording alone is long enough, so at least one chunk is.
        chunks = split_conditioning_chunks(torch.cat(waves).to(self.mel_stats.device), self.settings)
        latents = self._encode_chunks(chunks).mean(0)
        # Each vector has the length 1, and their mean is left shorter.
        vector = self._embed_speakers(waves).mean(0)
        return Clip(voice={LATENTS_ARRAY: latents.cpu().numpy(), SPEAKER_ARRAY: vector.cpu().numpy()})

    def _encode_chunks(self, chunks: Sequence[Tensor]) -> Tensor:
        """The latents of each chunk, [N] at 22,050 Hz; those of one length go together. -> [chunks, 32, W]"""
        mels = [compute_conditioning_mel(chunk, self.mel_stats) for chunk in chunks]
        weight = self.model.gpt.mel_embedding.weight
        latents: dict[int, Tensor] = {}
        for length in {mel.shape[1] for mel in mels}:
            same = [index for index, mel in enumerate(mels) if mel.shape[1] == length]
            for first in range(0, len(same), CONDITIONING_BATCH):
                batch = same[first : first + CONDITIONING_BATCH]
                stacked = torch.stack([mels[index] for index in batch])
                latents |= dict(zip(batch, self.model.gpt.voice_latents(stacked.to(weight)).float(), strict=True))
        return torch.stack([latents[index] for index in range(len(mels))])

    def _embed_speakers(self, waves: Sequence[Tensor]) -> Tensor:
        """The speaker vector of each wave at 22,050 Hz. -> [clips, 512]"""
        return self.speakers.embed([resample_sinc(wave, SAMPLE_RATE, SPEAKER_RATE) for wave in waves])


def prepare_reference(samples: Waveform, rate: int, settings: ReferenceSettings) -> Tensor:
    """A recording of a voice at 22,050 Hz, cut and between -1 and 1; too short and silent ones are refused."""
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        expected = f"{MIN_SAMPLE_RATE:,} to {MAX_SAMPLE_RATE:,}"
        raise AudioError("audio-shape", f"the sample rate is {rate:,}", expected=expected, where="the reference")
    limits = WaveformLimits(rate, min_samples=math.ceil(MIN_VOICE_SAMPLES * rate / SAMPLE_RATE))
    # A second more than is kept, so that resampling ends in the recording and not at a cut; more would cost time.
    first = samples[: int((settings.max_seconds + 1) * rate)] if samples.ndim == 1 else samples
    wave = _validate_voice(first, limits, "the reference recording")
    phases = SAMPLE_RATE // math.gcd(SAMPLE_RATE, rate)
    if phases <= MAX_RESAMPLING_PHASES:
        wave = resample_sinc(wave, rate, SAMPLE_RATE)
    else:
        wave = torch.from_numpy(resample(wave.numpy(), rate, SAMPLE_RATE))
    wave = wave.clamp(-1.0, 1.0)[: int(settings.max_seconds * SAMPLE_RATE)]
    return wave / wave.abs().max() * NORMALIZED_PEAK if settings.normalize else wave


def _validate_voice(wave: Waveform, limits: WaveformLimits, where: str) -> Tensor:
    """One recording that is no silence, as float32 on the CPU. -> [N]"""
    checked = validate_waveform(wave, limits, where)
    if compute_peak_frame_power(checked) <= SILENCE_POWER:
        found = f"{limits.describe(len(checked))}, all of them silent"
        raise AudioError("audio-silent", found, expected="a voice", where=where)
    return checked


def read_xtts_voices(path: Path) -> dict[str, Clip]:
    """The voices of `speakers_xtts.pth` by name, each two tensors: latents [1, 32, W] and speaker vector [1, 512, 1].

    Told apart by their shapes: the original goes by the order, whatever their names.
    """
    voices: dict[str, dict[str, NDArray[np.float32]]] = {}
    with open_nested_checkpoint(path, "") as file:
        for full_name, info in file.tensors.items():
            name = full_name.rpartition(".")[0]
            shape: tuple[int, ...]
            if name and len(info.shape) == 3 and info.shape[:2] == (1, VOICE_LATENTS):
                array, shape = LATENTS_ARRAY, info.shape[1:]
            elif name and info.shape == (1, SPEAKER_VECTOR_WIDTH, 1):
                array, shape = SPEAKER_ARRAY, (SPEAKER_VECTOR_WIDTH,)
            else:
                found = f"{full_name:.80} is {list(info.shape)}"
                expected = f"[1, {VOICE_LATENTS}, width] or [1, {SPEAKER_VECTOR_WIDTH}, 1] for each voice"
                raise CheckpointError("tensors-mismatch", found, expected=expected, where=path)
            voices.setdefault(name, {})[array] = np.asarray(file.read(full_name), np.float32).reshape(shape)
    for name, arrays in voices.items():
        if len(arrays) != 2:
            found = f"the voice {name:.80} has only {' and '.join(arrays)}"
            raise CheckpointError("tensors-mismatch", found, expected="latents and a speaker vector", where=path)
    return {name: Clip(voice=arrays) for name, arrays in voices.items()}
