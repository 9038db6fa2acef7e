"""CAM++ (CAMPPlus): the speaker's vector that Chatterbox's S3Gen and IndexTTS-2's s2mel are conditioned on.

A small 2-D ResNet over frequency, then densely connected 1-D layers, each gated by the mean of its surroundings, then
mean and deviation over time. One network for both families: 937 tensors under the names that 3D-Speaker published.

Shapes: B clips, N samples (16 kHz), T fbank frames (100 a second), U frames after the stride of 2, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.audio.features import Waveform, WaveformLimits, exact_float32, validate_waveforms
from voxgraft.models.base import require_exact_tensors
from voxgraft.nn.layers import init_empty_weights

SAMPLE_RATE = 16_000
NUM_BINS = 80
FRAME, HOP, NUM_FFT = 400, 160, 512
PRE_EMPHASIS = 0.97
LOW_HZ, HIGH_HZ = 20.0, 8000.0
LOG_FLOOR = torch.finfo(torch.float32).eps
# The deviation over time divides by frames - 1, so that two frames must be left after the stride of 2.
MIN_FRAMES = 3
CAMPPLUS_LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=FRAME + (MIN_FRAMES - 1) * HOP)

EMBEDDING_WIDTH = 192
HEAD_CHANNELS = 32
# Dense layers in each block, and their dilations.
BLOCKS = ((12, 1), (24, 2), (16, 2))
SEGMENT_FRAMES = 100
# Counts training steps; eval mode never reads it, and some exports leave it out.
COUNTER = "num_batches_tracked"


def kaldi_fbank(wave: Tensor) -> Tensor:
    """Kaldi's log mel filter bank without dither, whole frames only. 16 kHz samples in -1 to 1: [N] -> [T, 80]

    Kaldi itself works on 16-bit numbers; both families feed it samples in -1 to 1, which moves all but silence alike.
    """
    frames = wave.float().unfold(-1, FRAME, HOP)  # [T, 400]
    frames = frames - frames.mean(-1, keepdim=True)
    # The first sample of a frame is its own predecessor.
    frames = frames - PRE_EMPHASIS * torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
    # Povey's window: a symmetric Hann window to the power of 0.85.
    window = torch.hann_window(FRAME, periodic=False, dtype=torch.float64).pow(0.85).float().to(wave.device)
    spectrum = torch.fft.rfft(frames * window, NUM_FFT)  # [T, 257]
    power = torch.view_as_real(spectrum).square().sum(-1)[..., :-1]  # [T, 256]: no filter reaches the Nyquist bin
    with exact_float32():
        return (power @ kaldi_filters().to(wave.device).T).clamp_min(LOG_FLOOR).log()


@cache
def kaldi_filters() -> Tensor:
    """Triangles that are linear in mel, from 20 to 8000 Hz. float32 [80, 256]"""

    def mel(hz: Tensor) -> Tensor:
        return 1127.0 * torch.log1p(hz / 700.0)

    low, high = mel(torch.tensor([LOW_HZ, HIGH_HZ], dtype=torch.float64)).tolist()
    edges = torch.linspace(low, high, NUM_BINS + 2, dtype=torch.float64)  # [82]
    bins = mel(torch.arange(NUM_FFT // 2, dtype=torch.float64) * (SAMPLE_RATE / NUM_FFT))  # [256]
    distances = (bins - edges[:, None]) / (edges[1] - edges[0])  # [82, 256]
    return torch.minimum(distances[:-2], -distances[2:]).clamp_min(0.0).float()


@dataclass(frozen=True, slots=True)
class CAMPPlusSize:
    """The sizes that may differ; as published by default."""

    growth: int = 32
    """Channels that each dense layer adds."""
    bottleneck: int = 128
    start: int = 128

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> CAMPPlusSize:
        """The size that the tensors of a file have; as published where they do not say."""
        layer = shapes.get("xvector.block1.tdnnd1.cam_layer.linear_local.weight", ())
        tdnn = shapes.get("xvector.tdnn.linear.weight", ())
        if len(layer) != 3 or len(tdnn) != 3 or min(*layer, *tdnn) < 1 or layer[1] % 2:
            return cls()
        return cls(layer[0], layer[1], tdnn[0])


class CAMPPlus(nn.Module):
    """Filter bank to voice vector. The vector is not normed."""

    def __init__(self, size: CAMPPlusSize | None = None) -> None:
        super().__init__()
        self.size = size or CAMPPlusSize()
        self.head = FrequencyResNet()
        self.xvector = DenseTdnn(self.size)
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, path: Path, prefix: str = "") -> tuple[CAMPPlusSize, dict[str, tuple[int, ...]]]:
        """Size and tensors of a file, whose names start with `prefix`; refused, by name, unless it has every one."""
        from voxgraft.checkpoints.load import read_tensor_shapes

        stored = read_tensor_shapes(path, prefix)
        size = CAMPPlusSize.of(stored)
        with init_empty_weights():
            shapes = {name: tuple(tensor.shape) for name, tensor in cls(size).state_dict().items()}
        shapes = {name: shape for name, shape in shapes.items() if name in stored or not name.endswith(COUNTER)}
        require_exact_tensors(stored, shapes, "CAMPPlus", path)
        return size, shapes

    @classmethod
    def load(cls, path: Path, prefix: str = "") -> CAMPPlus:
        """From a file whose tensors have `prefix` before their names; what lies outside the prefix is left alone."""
        from voxgraft.checkpoints.load import read_tensors

        size, shapes = cls.read_shapes(path, prefix)
        with init_empty_weights():
            network = cls(size)
        floats = {name: shape for name, shape in shapes.items() if not name.endswith(COUNTER)}
        names = network.state_dict().keys()
        counters = {name: torch.zeros((), dtype=torch.int64) for name in names if name.endswith(COUNTER)}
        network.load_state_dict(counters | read_tensors(path, floats, prefix), assign=True)
        return network.requires_grad_(False).eval()

    def forward(self, fbank: Tensor) -> Tensor:
        """Filter banks less their mean over time, all of one length. [B, T, 80] -> [B, 192]

        There is no mask: run clips of different lengths one at a time.
        """
        with exact_float32():
            vectors: Tensor = self.xvector(self.head(fbank.transpose(1, 2)))
        return vectors

    @torch.no_grad()
    def embed(self, waves: Sequence[Waveform]) -> Tensor:
        """The voice of each clip, one at a time. 16 kHz waveforms -> [clips, 192]"""
        device = next(self.parameters()).device
        vectors = []
        for wave in validate_waveforms(waves, CAMPPLUS_LIMITS):
            fbank = kaldi_fbank(wave.to(device))  # [T, 80]
            vectors.append(self((fbank - fbank.mean(0))[None]))
        return torch.cat(vectors) if vectors else torch.zeros(0, EMBEDDING_WIDTH, device=device)


class FrequencyResNet(nn.Module):
    """Image convolutions that take the 80 bins down to 10 and leave time as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, HEAD_CHANNELS, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(HEAD_CHANNELS)
        self.layer1 = nn.Sequential(FrequencyBlock(2), FrequencyBlock(1))
        self.layer2 = nn.Sequential(FrequencyBlock(2), FrequencyBlock(1))
        self.conv2 = nn.Conv2d(HEAD_CHANNELS, HEAD_CHANNELS, 3, stride=(2, 1), padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(HEAD_CHANNELS)

    def forward(self, fbank: Tensor) -> Tensor:
        """[B, 80, T] -> [B, 320, T], channel by channel ten bins"""
        image = F.relu(self.bn1(self.conv1(fbank[:, None])))  # [B, 32, 80, T]
        image = self.layer2(self.layer1(image))  # [B, 32, 20, T]
        return F.relu(self.bn2(self.conv2(image))).flatten(1, 2)


class FrequencyBlock(nn.Module):
    """Two convolutions beside a straight way, with a stride along frequency."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(HEAD_CHANNELS, HEAD_CHANNELS, 3, stride=(stride, 1), padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(HEAD_CHANNELS)
        self.conv2 = nn.Conv2d(HEAD_CHANNELS, HEAD_CHANNELS, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(HEAD_CHANNELS)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut.append(nn.Conv2d(HEAD_CHANNELS, HEAD_CHANNELS, 1, stride=(stride, 1), bias=False))
            self.shortcut.append(nn.BatchNorm2d(HEAD_CHANNELS))

    def forward(self, image: Tensor) -> Tensor:
        """[B, 32, bins, T] -> [B, 32, bins / stride, T]"""
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(image)))))
        return F.relu(inner + self.shortcut(image))


class DenseTdnn(nn.Module):
    """Time-delay layers whose outputs are appended to their inputs, and statistics over time at the end."""

    def __init__(self, size: CAMPPlusSize) -> None:
        super().__init__()
        self.tdnn = ConvNorm(HEAD_CHANNELS * NUM_BINS // 8, size.start, 5, stride=2)
        width = size.start
        for number, (layers, dilation) in enumerate(BLOCKS, 1):
            self.add_module(f"block{number}", DenseBlock(size, width, layers, dilation))
            width += layers * size.growth
            self.add_module(f"transit{number}", NormConv(width, width // 2))
            width //= 2
        self.out_nonlinear = Norm(width)
        self.dense = ConvNorm(2 * width, EMBEDDING_WIDTH, 1, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 320, T] -> [B, 192]"""
        x = F.relu(self.tdnn(x))  # [B, C, U]
        for number in range(1, len(BLOCKS) + 1):
            x = self.get_submodule(f"transit{number}")(self.get_submodule(f"block{number}")(x))
        x = F.relu(self.out_nonlinear(x))
        statistics = torch.cat([x.mean(-1), x.std(-1)], dim=-1)  # [B, 2 C]
        vectors: Tensor = self.dense(statistics[..., None])
        return vectors[..., 0]


class Norm(nn.Module):
    """Holds a BatchNorm under the name that the published files give it."""

    def __init__(self, width: int, *, affine: bool = True) -> None:
        super().__init__()
        self.batchnorm = nn.BatchNorm1d(width, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.batchnorm(x)
        return normed


class ConvNorm(nn.Module):
    """Convolution, then BatchNorm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, affine: bool = True) -> None:
        super().__init__()
        self.linear = nn.Conv1d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.nonlinear = Norm(outputs, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.nonlinear(self.linear(x))
        return normed


class NormConv(nn.Module):
    """BatchNorm and ReLU, then a layer over channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.nonlinear = Norm(inputs)
        self.linear = nn.Conv1d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.linear(F.relu(self.nonlinear(x)))
        return mixed


class DenseBlock(nn.Module):
    """Layers `tdnnd1`, `tdnnd2` and so on; the channels of each are appended after its input."""

    def __init__(self, size: CAMPPlusSize, width: int, layers: int, dilation: int) -> None:
        super().__init__()
        for number in range(layers):
            self.add_module(f"tdnnd{number + 1}", DenseLayer(size, width + number * size.growth, dilation))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, U] -> [B, C + layers * growth, U]"""
        for layer in self.children():
            x = torch.cat([x, layer(x)], dim=1)
        return x


class DenseLayer(nn.Module):
    """A bottleneck over channels, then the context-aware layer."""

    def __init__(self, size: CAMPPlusSize, width: int, dilation: int) -> None:
        super().__init__()
        self.nonlinear1 = Norm(width)
        self.linear1 = nn.Conv1d(width, size.bottleneck, 1, bias=False)
        self.nonlinear2 = Norm(size.bottleneck)
        self.cam_layer = ContextAwareLayer(size, dilation)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, U] -> [B, growth, U]"""
        inner = self.linear1(F.relu(self.nonlinear1(x)))
        added: Tensor = self.cam_layer(F.relu(self.nonlinear2(inner)))
        return added


class ContextAwareLayer(nn.Module):
    """A convolution, gated by the mean of the whole clip plus the mean of the frame's own segment of 100 frames."""

    def __init__(self, size: CAMPPlusSize, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(size.bottleneck, size.growth, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(size.bottleneck, size.bottleneck // 2, 1)
        self.linear2 = nn.Conv1d(size.bottleneck // 2, size.growth, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, bottleneck, U] -> [B, growth, U]"""
        num_frames = x.shape[-1]
        # With ceil_mode the last segment is averaged over the frames that it has. [B, bottleneck, segments]
        segments = F.avg_pool1d(x, SEGMENT_FRAMES, SEGMENT_FRAMES, ceil_mode=True)
        gates = torch.sigmoid(self.linear2(F.relu(self.linear1(x.mean(-1, keepdim=True) + segments))))
        gated: Tensor = self.linear_local(x) * gates.repeat_interleave(SEGMENT_FRAMES, dim=-1)[..., :num_frames]
        return gated
