"""XTTS v2's vocoder: the GPT's states and a voice to a 24 kHz waveform, with HiFi-GAN.

The codes are never decoded. The state at each code, 1,024 numbers, is interpolated to the frames of the waveform, and
the speaker vector is added at every stage of the network. Padding is masked before every convolution: an utterance
gives the same waveform in any batch.

Shapes: B utterances, n states, G width of the GPT, C channels, T samples at the rate of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.checkpoints.base import Shape
from voxgraft.checkpoints.load import read_tensor_shapes, read_tensors
from voxgraft.models.base import require_exact_tensors
from voxgraft.models.chatterbox.hift import NormedConv, NormedTransposedConv, fold_weight_norm, published_shapes
from voxgraft.models.xtts.encoder import SPEAKER_WIDTH
from voxgraft.nn.layers import init_empty_weights

SAMPLE_RATE = 24_000
DECODER_PREFIX = "hifigan_decoder.waveform_decoder."
# States to frames of the 22,050 Hz that the GPT knows, then to frames of 24 kHz.
STATE_SCALES = (4.0, SAMPLE_RATE / 22_050)
UPSAMPLE_RATES, UPSAMPLE_KERNELS = (8, 8, 2, 2), (16, 16, 4, 4)
HOP = math.prod(UPSAMPLE_RATES)
BLOCK_KERNELS, BLOCK_DILATIONS = (3, 7, 11), (1, 3, 5)
OUTER_KERNEL = 7
# The last one is torch's default, left in by HiFi-GAN's authors.
SLOPE, LAST_SLOPE = 0.1, 0.01


def interpolate_states(states: Tensor, speed: float = 1.0) -> Tensor:
    """States at the codes to one for every 256 samples, in the steps of the original. [n, G] -> [T, G]

    One step with the product of the scales would give other numbers.
    """
    scales = STATE_SCALES if speed == 1.0 else (1.0 / speed, *STATE_SCALES)
    x = states.T[None]
    for scale in scales:
        x = F.interpolate(x, scale_factor=scale, mode="linear")
    return x[0].T


def count_frames(num_states: int, speed: float = 1.0) -> int:
    """Frames of 256 samples for that many states."""
    count = num_states if speed == 1.0 else math.floor(num_states * (1.0 / speed))
    for scale in STATE_SCALES:
        count = math.floor(count * scale)
    return count


@dataclass(frozen=True, slots=True)
class HiFiGANSize:
    """The sizes that may differ; as published by default. Rates and kernels are fixed."""

    channels: int = 512
    inputs: int = 1024
    speaker: int = SPEAKER_WIDTH

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> HiFiGANSize:
        """The size that the tensors of a file have; as published where they do not say."""
        first, voice = shapes.get("conv_pre.weight", ()), shapes.get("cond_layer.weight", ())
        if len(first) != 3 or len(voice) != 3 or not all((*first, *voice)) or first[0] % (1 << len(UPSAMPLE_RATES)):
            return cls()
        return cls(first[0], first[1], voice[1])


class HiFiGAN(nn.Module):
    """Four stages of upsampling, the voice added at each, followed by the mean of three residual blocks."""

    def __init__(self, size: HiFiGANSize | None = None) -> None:
        super().__init__()
        self.size = size or HiFiGANSize()
        width = self.size.channels
        self.conv_pre = nn.Conv1d(self.size.inputs, width, OUTER_KERNEL, padding=OUTER_KERNEL // 2)
        self.cond_layer = nn.Conv1d(self.size.speaker, width, 1)
        self.ups, self.conds, self.resblocks = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for rate, kernel in zip(UPSAMPLE_RATES, UPSAMPLE_KERNELS, strict=True):
            self.ups.append(NormedTransposedConv(width, width // 2, kernel, rate, padding=(kernel - rate) // 2))
            width //= 2
            self.conds.append(nn.Conv1d(self.size.speaker, width, 1))
            self.resblocks.extend(HiFiGANBlock(width, kernel) for kernel in BLOCK_KERNELS)
        self.conv_post = nn.Conv1d(width, 1, OUTER_KERNEL, padding=OUTER_KERNEL // 2, bias=False)
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, path: Path, prefix: str = DECODER_PREFIX) -> tuple[HiFiGANSize, dict[str, Shape]]:
        """Size and tensors, as stored in `model.pth`; refused, by name, unless it has all and, there, no other."""
        stored = read_tensor_shapes(path, prefix)
        size = HiFiGANSize.of(stored)
        with init_empty_weights():
            shapes = published_shapes(cls(size))
        require_exact_tensors(stored, shapes, "HiFi-GAN of XTTS v2", path)
        return size, shapes

    @classmethod
    def load(cls, path: Path, prefix: str = DECODER_PREFIX) -> HiFiGAN:
        """From `model.pth`."""
        size, shapes = cls.read_shapes(path, prefix)
        return cls.from_tensors(size, read_tensors(path, shapes, prefix))

    @classmethod
    def from_tensors(cls, size: HiFiGANSize, tensors: Mapping[str, Tensor]) -> HiFiGAN:
        """From tensors under the names of the published file; weight norm is folded."""
        with init_empty_weights():
            model = cls(size)
        model.load_state_dict(fold_weight_norm(tensors), assign=True)
        return model.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, states: Tensor, voices: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Frames [B, T, G], speaker vectors [B, S], frames of each [B] -> [B, 256 T]

        Behind the end of an utterance there are zeros. Without `lengths` all are as long as the longest. The caller
        chooses between `exact_float32` and the TF32 that CUDA's convolutions may use.
        """
        voice = voices[:, :, None]
        rate, num_frames = 1, states.shape[1]

        def apply_mask(x: Tensor) -> Tensor:
            return x if lengths is None else x * mask_of(lengths * rate, num_frames * rate)

        x = self.conv_pre(apply_mask(states.transpose(1, 2))) + self.cond_layer(voice)
        blocks = iter(self.resblocks)
        for up, cond, own_rate in zip(self.ups, self.conds, UPSAMPLE_RATES, strict=True):
            x = up(apply_mask(F.leaky_relu(x, SLOPE)))
            rate *= own_rate
            x = apply_mask(x + cond(voice))
            mask = None if lengths is None else mask_of(lengths * rate, num_frames * rate)
            total: Tensor = next(blocks)(x, mask)
            for _ in BLOCK_KERNELS[1:]:
                total = total + next(blocks)(x, mask)
            x = total / len(BLOCK_KERNELS)
        return apply_mask(self.conv_post(F.leaky_relu(x, LAST_SLOPE)).tanh())[:, 0]

    def vocode(self, states: Sequence[Tensor], voices: Sequence[Tensor]) -> list[Tensor]:
        """Waves of one batch of utterances: frames [T, G] and speaker vectors [S] -> [256 T] each"""
        counts = [len(one) for one in states]
        lengths = None if len(set(counts)) == 1 else torch.tensor(counts, device=states[0].device)
        waves = self(nn.utils.rnn.pad_sequence(list(states), batch_first=True), torch.stack(list(voices)), lengths)
        return [wave[: HOP * count] for wave, count in zip(waves, counts, strict=True)]


def mask_of(lengths: Tensor, longest: int) -> Tensor:
    """Which samples count. [B] -> [B, 1, longest]"""
    return (torch.arange(longest, device=lengths.device) < lengths[:, None])[:, None]


class HiFiGANBlock(nn.Module):
    """Three pairs of convolutions beside straight ways, the first of each pair dilated."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            NormedConv(width, width, kernel, dilation=step, padding=step * (kernel // 2)) for step in BLOCK_DILATIONS
        )
        self.convs2 = nn.ModuleList(NormedConv(width, width, kernel, padding=kernel // 2) for _ in BLOCK_DILATIONS)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, C, T], zeros where the mask is false -> the same"""
        for first, second in zip(self.convs1, self.convs2, strict=True):
            # A leaky ReLU of zero is zero: what the mask has wiped out stays so.
            inner = first(F.leaky_relu(x, SLOPE))
            if mask is not None:
                inner = inner * mask
            added = second(F.leaky_relu(inner, SLOPE))
            x = x + (added if mask is None else added * mask)
        return x
