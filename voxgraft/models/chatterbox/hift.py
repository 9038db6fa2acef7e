"""HiFT, S3Gen's vocoder: a mel spectrogram to a 24 kHz waveform.

A network gives the pitch of each frame. Sines at nine harmonics of it, with noise, are the source; the decoder shapes
the source's spectrum by the mel and ends in an inverse STFT of 16 samples. Random numbers are arguments.

Padding is masked before every convolution: an utterance gives the same waveform in any batch.

Shapes: B utterances, T mel frames (50 a second), L samples (480 T), K STFT frames (120 T + 1), C channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.models.chatterbox.flow import NUM_MELS
from voxgraft.nn.decode import apply_snake

SAMPLE_RATE = 24_000
HOP = 480
NUM_HARMONICS = 9
SINE_AMPLITUDE = 0.1
VOICED_NOISE, UNVOICED_NOISE = 0.003, SINE_AMPLITUDE / 3
# A frame whose pitch is above this is voiced.
VOICED_HZ = 10.0

STFT_WINDOW, STFT_HOP = 16, 4
SPECTRUM = STFT_WINDOW + 2
MAX_MAGNITUDE = 100.0
MAX_SAMPLE = 0.99
# Kernel, stride and padding.
UPSAMPLES = ((16, 8, 4), (11, 5, 3), (7, 3, 2))
SOURCE_DOWNSAMPLES = ((30, 15, 7), (6, 3, 1), (1, 1, 0))
RESIDUAL_KERNELS = (3, 7, 11)
SOURCE_KERNELS = (7, 7, 11)
DILATIONS = (1, 3, 5)
SLOPE, LAST_SLOPE = 0.1, 0.01
F0_LAYERS = 5


@dataclass(frozen=True, slots=True)
class HiftSize:
    """The sizes that may differ; as published by default."""

    width: int = 512
    f0_width: int = 512


class NormedConv(nn.Conv1d):
    """A convolution that is published with weight norm; here it has the weight itself."""


class NormedTransposedConv(nn.ConvTranspose1d):
    """A transposed convolution that is published with weight norm; here it has the weight itself."""


GAIN, DIRECTION = "parametrizations.weight.original0", "parametrizations.weight.original1"


def published_shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network's tensors as files have them: gain and direction for weights with weight norm."""
    kinds = NormedConv | NormedTransposedConv
    normed = {name for name, module in network.named_modules() if isinstance(module, kinds)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in network.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        if owner in normed and leaf == "weight":
            shapes[f"{owner}.{GAIN}"] = (tensor.shape[0], 1, 1)
            shapes[f"{owner}.{DIRECTION}"] = tuple(tensor.shape)
        else:
            shapes[name] = tuple(tensor.shape)
    return shapes


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors with gain and direction made into weights, as the networks here hold them."""
    folded: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith(GAIN):
            # Over all axes but the first, which is that of the inputs where the convolution is transposed.
            direction = state[name.removesuffix(GAIN) + DIRECTION]
            norm = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
            folded[name.removesuffix(GAIN) + "weight"] = direction * (tensor / norm)
        elif not name.endswith(DIRECTION):
            folded[name] = tensor
    return folded


class HiFT(nn.Module):
    """Pitch, source and decoder."""

    analysis: Tensor
    synthesis: Tensor
    window: Tensor

    def __init__(self, size: HiftSize) -> None:
        super().__init__()
        self.size = size
        width = size.width
        widths = [width >> number for number in range(1, len(UPSAMPLES) + 1)]
        self.m_source = HarmonicSource()
        self.conv_pre = NormedConv(NUM_MELS, width, 7, padding=3)
        self.ups = nn.ModuleList(
            NormedTransposedConv(2 * own, own, kernel, stride, padding)
            for own, (kernel, stride, padding) in zip(widths, UPSAMPLES, strict=True)
        )
        self.source_downs = nn.ModuleList(
            nn.Conv1d(SPECTRUM, own, kernel, stride, padding)
            for own, (kernel, stride, padding) in zip(widths, SOURCE_DOWNSAMPLES, strict=True)
        )
        self.source_resblocks = nn.ModuleList(map(SnakeBlock, widths, SOURCE_KERNELS))
        self.resblocks = nn.ModuleList(SnakeBlock(own, kernel) for own in widths for kernel in RESIDUAL_KERNELS)
        self.conv_post = NormedConv(widths[-1], SPECTRUM, 7, padding=3)
        self.f0_predictor = PitchPredictor(size.f0_width)
        window, analysis, synthesis = _fourier_kernels()
        self.register_buffer("window", window.square()[None, None], persistent=False)  # [1, 1, 16]
        self.register_buffer("analysis", analysis[:, None], persistent=False)  # [18, 1, 16]
        self.register_buffer("synthesis", synthesis[:, None], persistent=False)  # [18, 1, 16]

    def forward(
        self, mel: Tensor, phases: Tensor, noise: Tensor, lengths: Tensor | None = None, cache: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mels [B, 80, T], phases [B, 9, 1], noise [B, 9, L] and frames of each [B] -> waveforms [B, L], source [B, L]

        `cache` is the start of a source that was sounded already, [B, m]: a chunk of a stream resumes from there.
        """
        source: Tensor = self.m_source(self.f0_predictor(mel, _mask(lengths, mel.shape[-1])), phases, noise)
        if cache is not None:
            source = torch.cat([cache, source[:, cache.shape[1] :]], dim=1)
        return self.decode(mel, source, lengths), source

    def decode(self, mel: Tensor, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[B, 80, T], [B, L], [B] -> [B, L]; zeros behind each one's end"""
        num_frames = mel.shape[-1]
        num_spectra = num_frames * HOP // STFT_HOP + 1
        spectra_mask = None if lengths is None else _mask(lengths * (HOP // STFT_HOP) + 1, num_spectra)
        spectrum = _apply(self._spectrum(source, lengths), spectra_mask)  # [B, 18, K]
        x = _apply(self.conv_pre(_apply(mel, _mask(lengths, num_frames))), _mask(lengths, num_frames))
        rate = 1
        for number, (up, down, from_source) in enumerate(
            zip(self.ups, self.source_downs, self.source_resblocks, strict=True)
        ):
            rate *= UPSAMPLES[number][1]
            x = up(F.leaky_relu(x, SLOPE))  # [B, C, rate T]
            if number == len(UPSAMPLES) - 1:
                x = F.pad(x, (1, 0), mode="reflect")  # [B, C, K]
                mask = spectra_mask
            else:
                mask = None if lengths is None else _mask(lengths * rate, num_frames * rate)
            x = _apply(x + from_source(_apply(down(spectrum), mask), mask), mask)
            blocks = [self.resblocks[len(RESIDUAL_KERNELS) * number + own] for own in range(len(RESIDUAL_KERNELS))]
            x = torch.stack([block(x, mask) for block in blocks]).mean(0)
        waves = self._wave(self.conv_post(F.leaky_relu(x, LAST_SLOPE)), spectra_mask)
        samples_mask = None if lengths is None else _mask(lengths * HOP, num_frames * HOP)
        return _apply(waves.clamp(-MAX_SAMPLE, MAX_SAMPLE)[:, None], samples_mask)[:, 0]

    def _spectrum(self, source: Tensor, lengths: Tensor | None) -> Tensor:
        """Real, then imaginary parts of a centred STFT, mirrored at each one's own ends. [B, L] -> [B, 18, K]"""
        margin, num_samples = STFT_WINDOW // 2, source.shape[1]
        if lengths is None:
            padded = F.pad(source[:, None], (margin, margin), mode="reflect")  # [B, 1, L + 16]
        else:
            positions = torch.arange(-margin, num_samples + margin, device=source.device).abs()
            last = (lengths * HOP - 1)[:, None]  # [B, 1]
            mirrored = torch.where(positions > last, 2 * last - positions, positions).clamp_min(0)  # [B, L + 16]
            padded = source.gather(1, mirrored)[:, None]
        return F.conv1d(padded, self.analysis, stride=STFT_HOP)

    def _wave(self, spectrum: Tensor, mask: Tensor | None) -> Tensor:
        """Log magnitudes and phases to overlapping frames, added up. [B, 18, K] -> [B, L]"""
        magnitude, phase = spectrum.chunk(2, dim=1)
        magnitude = _apply(magnitude.exp().clamp_max(MAX_MAGNITUDE), mask)
        # Upstream calls the sine of the network's output the phase.
        phase = phase.sin()
        parts = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=1)  # [B, 18, K]
        summed = F.conv_transpose1d(parts, self.synthesis, stride=STFT_HOP)
        ones = spectrum.new_ones(1, 1, spectrum.shape[-1]) if mask is None else mask.to(spectrum.dtype)
        weight = F.conv_transpose1d(ones, self.window, stride=STFT_HOP)
        margin = STFT_WINDOW // 2
        if mask is not None:
            weight = weight.clamp_min(1e-8)  # behind the end of an utterance there is no frame
        return (summed[:, 0, margin:-margin]) / weight[:, 0, margin:-margin]


def _fourier_kernels() -> tuple[Tensor, Tensor, Tensor]:
    """The window [16], and windowed Fourier transforms of 16 samples, forth and back, as kernels [18, 16]."""
    window = torch.hann_window(STFT_WINDOW, dtype=torch.float64)
    bins = torch.arange(STFT_WINDOW // 2 + 1, dtype=torch.float64)[:, None]
    angles = 2 * math.pi / STFT_WINDOW * bins * torch.arange(STFT_WINDOW, dtype=torch.float64)  # [9, 16]
    forth = torch.cat([angles.cos(), -angles.sin()]) * window
    # Every bin but the first and the last also counts for its mirror image.
    twice = torch.full_like(bins, 2.0)
    twice[0] = twice[-1] = 1.0
    back = torch.cat([twice * angles.cos(), -twice * angles.sin()]) / STFT_WINDOW * window
    return window.float(), forth.float(), back.float()


def _mask(lengths: Tensor | None, longest: int) -> Tensor | None:
    """Which frames count, [B, 1, longest]; None where all do."""
    if lengths is None:
        return None
    return (torch.arange(longest, device=lengths.device) < lengths[:, None])[:, None]


def _apply(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros where the mask is false: what a convolution sees behind the end of an utterance that is alone."""
    return x if mask is None else x * mask


class PitchPredictor(nn.Module):
    """Convolutions from the mel to the pitch in Hz."""

    def __init__(self, width: int) -> None:
        super().__init__()
        convs = (NormedConv(width if number else NUM_MELS, width, 3, padding=1) for number in range(F0_LAYERS))
        # Upstream's Sequential has an ELU after each.
        self.condnet = nn.ModuleDict({str(2 * number): conv for number, conv in enumerate(convs)})
        self.classifier = nn.Linear(width, 1)

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, 80, T], [B, 1, T] -> [B, T]"""
        x = _apply(mel, mask)
        for conv in self.condnet.values():
            x = _apply(F.elu(conv(x)), mask)
        pitch: Tensor = self.classifier(x.transpose(1, 2))
        return pitch[..., 0].abs()


class HarmonicSource(nn.Module):
    """Sines at nine harmonics with a little noise where there is a pitch, noise where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(NUM_HARMONICS, 1)

    def sines(self, f0: Tensor, phases: Tensor, noise: Tensor, cycles_before: Tensor | float = 0.0) -> Tensor:
        """Pitches [B, T], phases in radians [B, 9, 1], standard normal noise [B, 9, L] -> [B, 9, L]"""
        harmonics = torch.arange(1, NUM_HARMONICS + 1, device=f0.device)[:, None]
        steps = f0[:, None] * harmonics / SAMPLE_RATE  # [B, 9, T]: cycles per sample
        # The pitch is constant within a frame, so that only frames have to be summed. In float64, less whole cycles:
        # upstream's float32 sum of samples is off by 0.002 cycles after ten seconds.
        before = cycles_before + (steps.double().cumsum(-1) - steps.double()) * HOP  # [B, 9, T]
        counts = torch.arange(1, HOP + 1, device=f0.device)
        cycles = (before % 1.0).to(steps.dtype)[..., None] + steps[..., None] * counts  # [B, 9, T, 480]
        # The fundamental always starts at 0.
        start = phases * (harmonics > 1)
        waves = SINE_AMPLITUDE * torch.sin(2 * math.pi * (cycles.flatten(2) % 1.0) + start)  # [B, 9, L]
        voiced = (f0 > VOICED_HZ).repeat_interleave(HOP, dim=-1)[:, None]  # [B, 1, L]
        return torch.where(voiced, waves + VOICED_NOISE * noise, UNVOICED_NOISE * noise)

    def count_cycles(self, f0: Tensor) -> Tensor:
        """Cycles of each harmonic in all frames: what a source that resumes from there starts with. -> [B, 9, 1]"""
        harmonics = torch.arange(1, NUM_HARMONICS + 1, device=f0.device)[:, None]
        return (f0[:, None] * harmonics / SAMPLE_RATE).double().sum(-1, keepdim=True) * HOP

    def forward(self, f0: Tensor, phases: Tensor, noise: Tensor, cycles_before: Tensor | float = 0.0) -> Tensor:
        """-> [B, L]"""
        sines = self.sines(f0, phases, noise, cycles_before)
        mixed = F.conv1d(sines, self.l_linear.weight[..., None], self.l_linear.bias)  # [B, 1, L]
        return mixed[:, 0].tanh()


class Snake(nn.Module):
    """x + sin(a x)^2 / a, with an own a for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        if x.is_cuda and (found := apply_snake(x, self.alpha)) is not None:
            return found
        alpha = self.alpha[:, None]
        return x + (x * alpha).sin().square() / (alpha + 1e-9)


class SnakeBlock(nn.Module):
    """Three pairs of convolutions beside straight ways, the first of each pair dilated."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            NormedConv(width, width, kernel, dilation=dilation, padding=dilation * (kernel // 2))
            for dilation in DILATIONS
        )
        self.convs2 = nn.ModuleList(NormedConv(width, width, kernel, padding=kernel // 2) for _ in DILATIONS)
        self.activations1 = nn.ModuleList(Snake(width) for _ in DILATIONS)
        self.activations2 = nn.ModuleList(Snake(width) for _ in DILATIONS)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, C, T], zeros where the mask is false -> the same"""
        pairs = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for snake1, conv1, snake2, conv2 in pairs:
            # A snake of zero is zero: what the mask has wiped out stays so.
            x = x + _apply(conv2(snake2(_apply(conv1(snake1(x)), mask))), mask)
        return x
