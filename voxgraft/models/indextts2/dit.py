"""IndexTTS-2's flow estimator: a diffusion transformer (DiT) over mel frames with a WaveNet head.

Written from the published tensor names and from formulas. Weight norm is folded when a file is loaded (`s2mel`), and
everything that depends on the time alone is computed once for all solver steps (`FlowEstimator.times`).

Shapes: B rows, T frames (prompt, then target), M = 80 mel bands, d width, C content width, S style width, L blocks,
H heads, W WaveNet layers, K solver steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.nn.attention import KeyMask, attend_frames, build_key_mask
from voxgraft.nn.flow_ops import add_norm, gate, rotate_pairs, swiglu
from voxgraft.nn.layers import FusableModule

NUM_MELS = 80
TIME_FREQUENCIES = 128
TIME_SCALE = 1000.0
ROPE_BASE = 10_000.0
RMS_EPS = 1e-5
FINAL_NORM_EPS = 1e-6
# Rows of the original's position table; a longer clip has no positions.
MAX_FRAMES = 16_384


@dataclass(frozen=True, slots=True)
class DiTSize:
    """Sizes of the estimator; as published by default."""

    width: int = 512
    heads: int = 8
    """No tensor shows it; config.yaml does."""
    layers: int = 13
    mlp: int = 1536
    content: int = 512
    style: int = 192
    wavenet_layers: int = 8
    wavenet_kernel: int = 5


# Where the frames of a padded batch are: which are heard, [B, T] bool; frames to mirror behind each row's end (0) and
# where they go (1), [B, 2, R] with R = reflect padding. A batch of one length has none, so that a clip alone costs
# nothing.
FrameMask = tuple[Tensor, Tensor]


def build_frame_mask(
    lengths: Sequence[int], reflect: int, device: torch.device | str, longest: int | None = None
) -> FrameMask | None:
    """`lengths` are the frames of each row, `longest` those of the padded batch; None where no row is padded."""
    longest = longest or max(lengths)
    if min(lengths) == longest:
        return None
    counts = torch.tensor(lengths, device=device)[:, None]  # [B, 1]
    frame_mask = torch.arange(longest, device=device) < counts
    steps = torch.arange(reflect, device=device)
    # A clip too short to be mirrored gets zeros appended first, as in the original; padding is zero here anyway.
    ends = counts.clamp_min(reflect + 1)
    # In the padded row, frame t is at t + reflect.
    return frame_mask, torch.stack([ends - 2 - steps, ends + reflect + steps], 1)


class FlowEstimator(nn.Module):
    """v(x, t | prompt mel, style, content). Tensor names are the file's, less the weight norm."""

    def __init__(self, size: DiTSize) -> None:
        super().__init__()
        self.size = size
        d = size.width
        self.t_embedder = TimeEmbedding(d)
        self.t_embedder2 = TimeEmbedding(d)
        self.cond_projection = nn.Linear(size.content, d)
        self.cond_x_merge_linear = nn.Linear(2 * NUM_MELS + d + size.style, d)
        self.transformer = DiTTransformer(size)
        self.skip_linear = nn.Linear(d + NUM_MELS, d)
        self.conv1 = nn.Linear(d, d)  # a convolution by its name only
        self.wavenet = WaveNet(d, size.wavenet_layers, size.wavenet_kernel)
        self.res_projection = nn.Linear(d, d)
        self.final_layer = FinalLayer(d)
        self.conv2 = nn.Conv1d(d, NUM_MELS, 1)

    def times(self, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All that is computed from the times t1..tK (0 to 1) and from nothing else. [K] -> three tables

        [K, 2 L + 1, 2, d]: scale (with the norm's own weight) and shift of every adaptive norm. [K, W, 2 d]: of the
        WaveNet. [K, 2, d]: 1 + scale, and shift, of the final layer.
        """
        first, second = self.t_embedder(times), self.t_embedder2(times)  # [K, d] twice
        shift, scale = self.final_layer.modulation(first).chunk(2, -1)
        wavenet = self.wavenet.cond_layer(second).unflatten(-1, (self.size.wavenet_layers, -1))
        return self.transformer.modulations(first), wavenet, torch.stack([1 + scale, shift], 1)

    def condition(self, prompt: Tensor, content: Tensor, style: Tensor) -> Tensor:
        """The part of the input that no solver step changes: [B, T, M], [B, T, C], [B, S] -> [B, T, d]"""
        weight: Tensor = self.cond_x_merge_linear.weight  # columns: x, prompt, content, style
        columns = [NUM_MELS, NUM_MELS, self.size.width, self.size.style]
        _, of_prompt, of_content, of_style = torch.split(weight, columns, 1)
        merged = F.linear(prompt, of_prompt) + F.linear(self.cond_projection(content), of_content)
        return merged + F.linear(style, of_style, self.cond_x_merge_linear.bias)[:, None]

    def rotary(self, num_frames: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions, straight through prompt and target. -> [T, d / 2 H] twice"""
        head_width = self.size.width // self.size.heads
        device = self.conv1.weight.device
        # In float32, as the original: at frame 1,000 an angle is off by up to 6e-5, which the trained weights know.
        rates = 1.0 / ROPE_BASE ** (torch.arange(0, head_width, 2, device=device).float() / head_width)
        angles = torch.arange(num_frames, device=device).float()[:, None] * rates
        return angles.cos(), angles.sin()

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        times: tuple[Tensor, Tensor, Tensor],
        rotary: tuple[Tensor, Tensor],
        mask: FrameMask | None = None,
    ) -> Tensor:
        """One call for R = B rows, or R = 2 B where guidance has each x twice. [B, T, M], [R, T, d] -> [R, T, M]

        `times` are the tables of one step.
        """
        norms, wavenet, final = times
        repeats = len(condition) // len(x)

        def repeat(part: Tensor) -> Tensor:  # what comes of x alone is the same in both halves
            return part if repeats == 1 else part.repeat(repeats, 1, 1)

        merged = condition + repeat(F.linear(x, self.cond_x_merge_linear.weight[:, :NUM_MELS]))
        hidden = self.transformer(merged, norms, rotary, mask)  # [R, T, d]
        # The long skip brings the noisy x, without the prompt.
        of_hidden, of_x = torch.split(self.skip_linear.weight, [self.size.width, NUM_MELS], 1)
        skipped = F.linear(hidden, of_hidden, self.skip_linear.bias) + repeat(F.linear(x, of_x))
        features = self.wavenet(self.conv1(skipped).transpose(1, 2), wavenet, mask)  # [R, d, T]
        y = features.transpose(1, 2) + self.res_projection(skipped)
        velocity: Tensor = F.linear(self.final_layer(y, final), self.conv2.weight[..., 0], self.conv2.bias)
        return velocity


class TimeEmbedding(nn.Module):
    """Cosines and sines of 1000 t, then two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * TIME_FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, times: Tensor) -> Tensor:
        """[K] -> [K, d]"""
        steps = torch.arange(TIME_FREQUENCIES, device=times.device, dtype=torch.float32)
        rates = torch.exp(-math.log(10_000.0) * steps / TIME_FREQUENCIES)
        angles = TIME_SCALE * times[:, None] * rates
        embedded: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], -1))
        return embedded


class DiTTransformer(nn.Module):
    """Blocks with U-shaped skips: the first half hands its outputs to the second, last in, first out."""

    def __init__(self, size: DiTSize) -> None:
        super().__init__()
        middle = size.layers // 2
        self.layers = nn.ModuleList(DiTBlock(size, has_skip=layer > middle) for layer in range(size.layers))
        self.norm = AdaptiveNorm(size.width)

    def modulations(self, times: Tensor) -> Tensor:
        """Scale and shift of every norm, attention and feed-forward of each block in turn, then the last. [K, d]"""
        norms: list[AdaptiveNorm] = []
        for layer in self.layers:
            assert isinstance(layer, DiTBlock)
            norms += [layer.attention_norm, layer.ffn_norm]
        return torch.stack([norm.modulation(times) for norm in (*norms, self.norm)], 1)  # [K, 2 L + 1, 2, d]

    def forward(self, x: Tensor, modulations: Tensor, rotary: tuple[Tensor, Tensor], mask: FrameMask | None) -> Tensor:
        """[R, T, d], [2 L + 1, 2, d] -> [R, T, d]"""
        keys = None if mask is None else build_key_mask(mask[0].repeat(len(x) // len(mask[0]), 1))
        middle, skips = len(self.layers) // 2, list[Tensor]()
        for number, layer in enumerate(self.layers):
            skip = skips.pop() if number > middle else None
            x = layer(x, modulations[2 * number : 2 * number + 2], rotary, keys, skip)
            if number < middle:
                skips.append(x)
        return modulate(x, modulations[-1])


class AdaptiveNorm(nn.Module):
    """RMS norm whose scale and shift come from the time: no "1 +", and the same on every frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_layer = nn.Linear(width, 2 * width)
        self.norm = nn.RMSNorm(width, eps=RMS_EPS)

    def modulation(self, times: Tensor) -> Tensor:
        """[K, d] -> [K, 2, d]"""
        scale, shift = self.project_layer(times).chunk(2, -1)
        return torch.stack([scale * self.norm.weight, shift], 1)


def modulate(x: Tensor, modulation: Tensor) -> Tensor:
    """RMS norm, then a scale and a shift. [R, T, d], [2, d] -> [R, T, d]"""
    return torch.addcmul(modulation[1], F.rms_norm(x, x.shape[-1:], eps=RMS_EPS), modulation[0])


def add_modulated(x: Tensor, delta: Tensor | None, modulation: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x + delta, and `modulate` of it for a matrix in `dtype`. [R, T, d] twice, [2, d] -> [R, T, d] twice"""
    return add_norm(x, delta, modulation[0], modulation[1], RMS_EPS, dtype, centred=False)


class DiTBlock(nn.Module):
    """Attention and SwiGLU, each behind an adaptive norm; in the second half first a skip is merged in."""

    def __init__(self, size: DiTSize, *, has_skip: bool) -> None:
        super().__init__()
        self.attention = DiTAttention(size)
        self.feed_forward = SwiGlu(size)
        self.attention_norm = AdaptiveNorm(size.width)
        self.ffn_norm = AdaptiveNorm(size.width)
        # Every block owns one in the file; those of the first half and of the middle are never read.
        self.skip_in_linear = nn.Linear(2 * size.width, size.width) if has_skip else None

    def forward(
        self,
        x: Tensor,
        modulations: Tensor,
        rotary: tuple[Tensor, Tensor],
        keys: KeyMask | None,
        skip: Tensor | None,
    ) -> Tensor:
        """[R, T, d], [2, 2, d] -> [R, T, d]"""
        if self.skip_in_linear is not None and skip is not None:
            x = self.skip_in_linear(torch.cat([x, skip], -1))
        dtype = self.attention.wqkv.weight.dtype
        x, normed = add_modulated(x, None, modulations[0], dtype)
        x, normed = add_modulated(x, self.attention(normed, rotary, keys), modulations[1], dtype)
        out: Tensor = x + self.feed_forward(normed)
        return out


class DiTAttention(nn.Module):
    """Every frame sees every frame; rotary positions on neighbouring pairs of columns."""

    def __init__(self, size: DiTSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.wqkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.wo = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], keys: KeyMask | None) -> Tensor:
        """[R, T, d] -> [R, T, d]"""
        qkv = self.wqkv(x).unflatten(-1, (3, self.heads, -1))  # [R, T, 3, H, D]
        out: Tensor = self.wo(attend_frames(*rotate_pairs(qkv, *rotary), keys).flatten(-2))
        return out


class SwiGlu(nn.Module):
    """w2(SiLU(w1 x) * w3 x); `w1` and `w3` of the file are one matrix here."""

    def __init__(self, size: DiTSize) -> None:
        super().__init__()
        self.w13 = nn.Linear(size.width, 2 * size.mlp, bias=False)
        self.w2 = nn.Linear(size.mlp, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[R, T, d] -> [R, T, d]"""
        out: Tensor = self.w2(swiglu(self.w13(x)))
        return out


class WaveNet(FusableModule):
    """Gated convolutions of dilation 1 that are mirrored at both ends of a clip, and conditioned on the time.

    After `fuse`, frames stay rows in memory and a convolution is a matrix product with the frames of each window: in
    half precision CUDA's convolutions would turn the layout of every input and output.
    """

    def __init__(self, width: int, layers: int, kernel: int) -> None:
        super().__init__()
        self.reflect = kernel // 2
        self.cond_layer = nn.Linear(width, 2 * width * layers)
        self.in_layers = nn.ModuleList(nn.Conv1d(width, 2 * width, kernel) for _ in range(layers))
        self.res_skip_layers = nn.ModuleList(
            nn.Conv1d(width, 2 * width if layer < layers - 1 else width, 1) for layer in range(layers)
        )
        self.taps: list[Tensor] | None = None  # [2 d, kernel * d] of each layer

    def fuse(self) -> None:
        self.taps = []
        for layer in self.in_layers:
            assert isinstance(layer, nn.Conv1d)
            self.taps.append(layer.weight.transpose(1, 2).flatten(1))
            del layer.weight

    def forward(self, y: Tensor, times: Tensor, mask: FrameMask | None) -> Tensor:
        """[R, d, T], [W, 2 d] -> [R, d, T]; zero in the padding"""
        if self.taps is not None:
            return self._forward_rows(y.transpose(1, 2), times, mask, self.taps).transpose(1, 2)
        width = y.shape[1]
        frame_mask = None if mask is None else mask[0].repeat(len(y) // len(mask[0]), 1)[:, None]  # [R, 1, T]
        # The original masks only after the first layer, so that padding leaks into the end of shorter clips.
        y = y if frame_mask is None else y * frame_mask
        out: Tensor | None = None
        for convolution, res_skip, time in zip(self.in_layers, self.res_skip_layers, times, strict=True):
            added = res_skip(gate(convolution(self._mirrored(y, mask)), time))  # [R, 2 d, T]
            if added.shape[1] == width:  # the last layer has no residual half
                out = added if out is None else out + added
                break
            residual, skip = added.split(width, 1)
            y = y + residual if frame_mask is None else (y + residual) * frame_mask
            out = skip if out is None else out + skip
        assert out is not None
        return out if frame_mask is None else out * frame_mask

    def _forward_rows(self, y: Tensor, times: Tensor, mask: FrameMask | None, taps: Sequence[Tensor]) -> Tensor:
        """The same with frames as rows. [R, T, d], [W, 2 d] -> [R, T, d]"""
        # A clip too short to be mirrored gets zeros appended, as in the other way.
        missing, length = max(0, self.reflect + 1 - y.shape[1]), y.shape[1]
        y = F.pad(y, (0, 0, 0, missing))
        rows, padded_length, width = y.shape
        frame_mask = None if mask is None else mask[0].repeat(rows // len(mask[0]), 1)  # [R, T]
        frame_mask = frame_mask if frame_mask is None else F.pad(frame_mask, (0, missing))[..., None]  # [R, T, 1]
        windows = self._windows(rows, padded_length, frame_mask, y.device)
        y = y if frame_mask is None else y * frame_mask
        out: Tensor | None = None
        for own, convolution, res_skip, time in zip(taps, self.in_layers, self.res_skip_layers, times, strict=True):
            assert isinstance(convolution, nn.Conv1d)
            assert isinstance(res_skip, nn.Conv1d)
            seen = y.reshape(-1, width).index_select(0, windows).view(-1, own.shape[1])  # [R T, kernel * d]
            gated = gate(F.linear(seen, own, convolution.bias)[..., None], time)[..., 0]  # [R T, d]
            added = F.linear(gated, res_skip.weight[..., 0], res_skip.bias).view(rows, padded_length, -1)
            if added.shape[2] == width:  # the last layer has no residual half
                out = added if out is None else out + added
                break
            residual, skip = added[..., :width], added[..., width:]
            y = y + residual
            if missing:  # the zeros stay zeros, because the other order appends them again
                y = F.pad(y[:, :length], (0, 0, 0, missing))
            y = y if frame_mask is None else y * frame_mask
            out = skip if out is None else out + skip
        assert out is not None
        out = out if frame_mask is None else out * frame_mask
        return out[:, :length]

    def _windows(self, rows: int, length: int, frame_mask: Tensor | None, device: torch.device) -> Tensor:
        """Which frame of all rows each place of each window shows, mirrored at the row's own ends. -> [R T kernel]"""
        frames = torch.arange(length, device=device)[:, None]
        frames = (frames + torch.arange(-self.reflect, self.reflect + 1, device=device)).abs()  # [T, kernel]
        counts = torch.full((rows,), length, device=device) if frame_mask is None else frame_mask.sum((1, 2))
        last = counts.clamp_min(self.reflect + 1)[:, None, None] - 1
        # Windows in the padding show anything: they are wiped out.
        own = torch.where(frames > last, 2 * last - frames, frames).clamp_min(0)  # [R, T, kernel]
        return (own + length * torch.arange(rows, device=device)[:, None, None]).flatten()

    def _mirrored(self, y: Tensor, mask: FrameMask | None) -> Tensor:
        """[R, d, T] -> [R, d, T + 2 reflect], each row mirrored at its own end"""
        missing = self.reflect + 1 - y.shape[-1]
        if missing > 0:  # too short to be mirrored: zeros are appended, and what came of them is cut off
            return F.pad(F.pad(y, (0, missing)), (self.reflect, self.reflect), mode="reflect")[..., :-missing]
        padded = F.pad(y, (self.reflect, self.reflect), mode="reflect")
        if mask is None:
            return padded
        source, target = mask[1].repeat(len(y) // len(mask[1]), 1, 1).unbind(1)  # [R, reflect] each
        shape = (-1, y.shape[1], -1)
        values = y.gather(2, source[:, None].expand(*shape))
        return padded.scatter(2, target[:, None].expand(*shape), values)


class FinalLayer(nn.Module):
    """LayerNorm without weights, scaled and shifted by the time, then a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def modulation(self, times: Tensor) -> Tensor:
        """[K, d] -> [K, 2 d], shift first"""
        out: Tensor = self.adaLN_modulation(times)
        return out

    def forward(self, y: Tensor, modulation: Tensor) -> Tensor:
        """[R, T, d], [2, d] -> [R, T, d]"""
        normed = F.layer_norm(y, y.shape[-1:], eps=FINAL_NORM_EPS)
        out: Tensor = self.linear(torch.addcmul(modulation[1], normed, modulation[0]))
        return out
