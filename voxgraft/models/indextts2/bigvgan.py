"""BigVGAN v2: mel spectrogram to waveform, with snake activations that are computed at twice the rate.

Written from the published tensor names and formulas of NVIDIA's BigVGAN (MIT). Weight norm is folded when a file is
loaded; the anti-aliasing filters are computed, as their 218 copies in the file are all equal.

Shapes: B clips, M mel bands, F frames, C channels, T samples at the rate of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.models.detect import linear_shapes, require_exact_tensors
from voxgraft.models.indextts2.s2mel import fold_weight_norm
from voxgraft.nn.layers import init_empty_weights

Shape = tuple[int, ...]
SAMPLE_RATE = 22_050
BIGVGAN_NAMES = ("bigvgan_generator.pt", "bigvgan_generator.safetensors")
UPSAMPLE_RATES = (4, 4, 2, 2, 2, 2)
HOP = math.prod(UPSAMPLE_RATES)
BLOCK_KERNELS = (3, 7, 11)
BLOCK_DILATIONS = (1, 3, 5)
OUTER_KERNEL = 7
FILTER_TAPS = 12
SNAKE_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class BigVGANSize:
    """The sizes that may differ; as published for 22 kHz by default. Rates and kernels are fixed."""

    channels: int = 1536
    mels: int = 80

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> BigVGANSize:
        """The size that the tensors of a file have; as published where they do not say."""
        first = shapes.get("conv_pre.weight_v") or shapes.get("conv_pre.weight") or ()
        if len(first) != 3 or first[0] < 1 or first[0] % (1 << len(UPSAMPLE_RATES)):
            return cls()
        return cls(first[0], first[1])


def bigvgan_shapes(size: BigVGANSize, *, weight_norm: bool) -> dict[str, Shape]:
    """Names and shapes of every tensor that is read: those of the file without the filters."""
    plain: dict[str, Shape] = linear_shapes("conv_pre", size.channels, size.mels, OUTER_KERNEL)
    width = size.channels
    for stage, rate in enumerate(UPSAMPLE_RATES):
        # A transposed convolution has its inputs first.
        plain[f"ups.{stage}.0.weight"] = (width, width // 2, 2 * rate)
        width //= 2
        plain[f"ups.{stage}.0.bias"] = (width,)
        for number, kernel in enumerate(BLOCK_KERNELS):
            block = f"resblocks.{len(BLOCK_KERNELS) * stage + number}"
            for layer in range(len(BLOCK_DILATIONS)):
                plain |= linear_shapes(f"{block}.convs1.{layer}", width, width, kernel)
                plain |= linear_shapes(f"{block}.convs2.{layer}", width, width, kernel)
            for layer in range(2 * len(BLOCK_DILATIONS)):
                plain |= {f"{block}.activations.{layer}.act.{name}": (width,) for name in ("alpha", "beta")}
    plain |= {f"activation_post.act.{name}": (width,) for name in ("alpha", "beta")}
    plain["conv_post.weight"] = (1, width, OUTER_KERNEL)  # no bias
    if not weight_norm:
        return plain
    shapes: dict[str, Shape] = {}
    for name, shape in plain.items():
        if name.endswith(".weight"):
            # The norm runs over all dimensions but the first, also where that is the inputs.
            shapes |= {f"{name}_g": (shape[0], 1, 1), f"{name}_v": shape}
        else:
            shapes[name] = shape
    return shapes


class BigVGAN(nn.Module):
    """The generator: six stages of upsampling, each followed by the mean of three residual blocks."""

    def __init__(self, size: BigVGANSize | None = None) -> None:
        super().__init__()
        self.size = size or BigVGANSize()
        width = self.size.channels
        self.conv_pre = nn.Conv1d(self.size.mels, width, OUTER_KERNEL, padding=OUTER_KERNEL // 2)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for rate in UPSAMPLE_RATES:
            # Padding of half a rate makes the length exactly `rate` times the input's. In the file each is alone
            # in a list.
            self.ups.append(nn.Sequential(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, padding=rate // 2)))
            width //= 2
            self.resblocks.extend(ResidualBlock(width, kernel) for kernel in BLOCK_KERNELS)
        self.activation_post = AntiAliasedSnake(width)
        self.conv_post = nn.Conv1d(width, 1, OUTER_KERNEL, padding=OUTER_KERNEL // 2, bias=False)
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, place: Path) -> tuple[Path, BigVGANSize, dict[str, Shape]]:
        """File, size and tensors of the published file or the folder that holds it, with weight norm or without.

        Refused, by name, unless the file has every tensor and none besides. Reads no values.
        """
        from voxgraft.checkpoints.tensors import read_tensor_shapes
        from voxgraft.models.speech_model import find_part_file

        path = find_part_file(place, BIGVGAN_NAMES)
        stored = read_tensor_shapes(path)
        size = BigVGANSize.of(stored)
        shapes = bigvgan_shapes(size, weight_norm=any(name.endswith(".weight_v") for name in stored))
        # The filters beside every activation are computed here; a file may leave them out.
        beside = [name.removesuffix("act.alpha") for name in shapes if name.endswith(".act.alpha")]
        filters = {f"{stem}{side}.filter" for stem in beside for side in ("upsample", "downsample.lowpass")}
        own = {name: shape for name, shape in stored.items() if name not in filters}
        require_exact_tensors(own, shapes, "BigVGAN v2 (22 kHz, 80 bands, 256 samples a frame)", path)
        return path, size, shapes

    @classmethod
    def load(cls, place: Path) -> BigVGAN:
        """From the published file or the folder that holds it, with weight norm or without."""
        from voxgraft.checkpoints.tensors import read_tensors

        path, size, shapes = cls.read_shapes(place)
        return cls.from_tensors(size, read_tensors(path, shapes))

    @classmethod
    def from_tensors(cls, size: BigVGANSize, tensors: Mapping[str, Tensor]) -> BigVGAN:
        """From tensors under the names of the published file, with weight norm or without."""
        with init_empty_weights():
            model = cls(size)
        model.load_state_dict(fold_weight_norm(tensors), assign=True)
        return model.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, mels: Tensor) -> Tensor:
        """Natural-log mels as they are: [B, M, F] -> [B, 256 F], between -1 and 1

        The caller chooses between `exact_float32` and the TF32 that CUDA's convolutions may use.
        """
        x = self.conv_pre(mels)
        blocks = iter(self.resblocks)
        for up in self.ups:  # no activation before it
            x = up(x)
            total: Tensor = next(blocks)(x)
            for _ in BLOCK_KERNELS[1:]:
                total = total + next(blocks)(x)
            x = total / len(BLOCK_KERNELS)
        wave: Tensor = self.conv_post(self.activation_post(x))
        return wave[:, 0].clamp(-1.0, 1.0)  # a clamp, not tanh

    def vocode(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Waves of mels [M, F]; those of one length go together. -> [256 F] a clip

        Padding would reach into the end of a shorter clip through some hundred layers, and a clip of a few seconds
        keeps a device busy on its own.
        """
        found: dict[int, Tensor] = {}
        for length in sorted({mel.shape[1] for mel in mels}):
            places = [place for place, mel in enumerate(mels) if mel.shape[1] == length]
            waves = self(torch.stack([mels[place] for place in places]))
            found |= dict(zip(places, waves, strict=True))
        return [found[place] for place in range(len(mels))]


class ResidualBlock(nn.Module):
    """Three pairs of convolutions, the first of each dilated, an activation before every one."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            nn.Conv1d(width, width, kernel, dilation=step, padding=step * (kernel // 2)) for step in BLOCK_DILATIONS
        )
        self.convs2 = nn.ModuleList(nn.Conv1d(width, width, kernel, padding=kernel // 2) for _ in BLOCK_DILATIONS)
        self.activations = nn.ModuleList(AntiAliasedSnake(width) for _ in range(2 * len(BLOCK_DILATIONS)))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        for layer, (first, second) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            inner = first(self.activations[2 * layer](x))
            x = x + second(self.activations[2 * layer + 1](inner))
        return x


@cache
def kaiser_sinc_filter() -> Tensor:
    """Taps of the half-band filter before and after every snake, their sum 1. float32 [12]"""
    attenuation = 2.285 * (FILTER_TAPS // 2 - 1) * math.pi * 4 * 0.3 + 7.95
    beta = 0.1102 * (attenuation - 8.7)
    window = torch.kaiser_window(FILTER_TAPS, periodic=False, beta=beta, dtype=torch.float64)
    places = (torch.arange(FILTER_TAPS, dtype=torch.float64) - (FILTER_TAPS - 1) / 2) / 2
    taps = window * torch.sinc(places) / 2
    return (taps / taps.sum()).float()


class SnakeBeta(nn.Module):
    """x + sin(e^alpha x)^2 / e^beta; both parameters are stored as logarithms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.beta = nn.Parameter(torch.zeros(width))


class AntiAliasedSnake(nn.Module):
    """Up to twice the rate, snake, and down again, so that what sin adds above half the rate does not fold back.

    The two samples that represent one at the higher rate are kept apart as even and odd phase, so that both filters
    work at the lower rate and nothing is interleaved or computed only to be thrown away. With the taps h:
    up, after the padding and cutting of the original, y[m] = 2 sum_i x[i] h[m + 5 - 2 i] with m = 2 t + phase;
    down z[t] = sum_k h[k] y[2 t + k - 5].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.act = SnakeBeta(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        # Sums of shifted rows take half the time of depthwise convolutions on a CPU (measured with one thread), and
        # twenty times as many kernels on a GPU.
        return self.filter_by_shifts(x) if x.device.type == "cpu" else self.filter_by_convolution(x)

    def filter_by_shifts(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        taps, length = kaiser_sinc_filter().tolist(), x.shape[-1]
        rate, scale = self.act.alpha.exp()[:, None], 1.0 / (self.act.beta.exp() + SNAKE_EPS)[:, None]
        padded = F.pad(x, (3, 3), mode="replicate")
        phases = []
        for phase in range(2):
            y = padded[..., phase : phase + length] * (2 * taps[11 - phase])
            for place in range(1, 6):
                shift = phase + place
                y.add_(padded[..., shift : shift + length], alpha=2 * taps[11 + phase - 2 * shift])
            phases.append(torch.addcmul(y, torch.sin(y * rate).square_(), scale))
        even, odd = phases
        # Before the first sample both phases repeat it, and after the last both repeat that one.
        first, last = even[..., :1].expand(-1, -1, 3), odd[..., -1:].expand(-1, -1, 3)
        even, odd = torch.cat([first, even, last], -1), torch.cat([first, odd, last], -1)
        z: Tensor = odd[..., :length] * taps[0]
        for place in range(1, 6):
            z.add_(odd[..., place : place + length], alpha=taps[2 * place])
        for place in range(1, 7):
            z.add_(even[..., place : place + length], alpha=taps[2 * place - 1])
        return z

    def filter_by_convolution(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        width = x.shape[1]
        up, down = _phase_filters(x.device)
        rate, scale = self.act.alpha.exp()[:, None, None], 1.0 / (self.act.beta.exp() + SNAKE_EPS)[:, None, None]
        phases = F.conv1d(F.pad(x, (3, 3), mode="replicate"), up.repeat(width, 1, 1), groups=width)
        phases = phases.view(*x.shape[:2], 2, -1)  # [B, C, 2, T]
        phases = torch.addcmul(phases, torch.sin(phases * rate).square(), scale)
        first, last = phases[..., :1, :1].expand(-1, -1, 2, 3), phases[..., 1:, -1:].expand(-1, -1, 2, 3)
        padded = torch.cat([first, phases, last], -1).flatten(1, 2)  # [B, 2 C, T + 6]
        return F.conv1d(padded, down.repeat(width, 1, 1), groups=width)


@cache
def _phase_filters(device: torch.device) -> tuple[Tensor, Tensor]:
    """The taps as convolutions at the lower rate: up [2, 1, 7], for each phase; down [1, 2, 7], over both."""
    taps = kaiser_sinc_filter()
    up, down = torch.zeros(2, 1, 7), torch.zeros(1, 2, 7)
    up[0, 0, :6], up[1, 0, 1:] = 2 * taps.flip(0)[0::2], 2 * taps.flip(0)[1::2]
    down[0, 0, 1:], down[0, 1, :6] = taps[1::2], taps[0::2]
    return up.to(device), down.to(device)
