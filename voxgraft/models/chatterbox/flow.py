"""S3Gen's first half: speech codes to a mel spectrogram, by an upsampling conformer and conditional flow matching.

The conformer doubles the code rate and gives the mean that the flow starts out from. The flow is an ordinary
differential equation from noise to the mel, solved by Euler steps; its velocity is a U-Net without any downsampling.
Two forms were published: the standard one (10 steps, guided) and the mean flow (2 steps that are reported their end).

Padding is masked everywhere it could be seen: an utterance gives the same mel in any batch. Everything is laid out as
[batch, time, channels], so that a convolution is one matrix product and attention needs no transposition.

Shapes: B utterances, N codes (25 a second), T mel frames (50 a second), C channels, H heads of width D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.models.chatterbox.family import NUM_SPEECH_CODES
from voxgraft.nn.attention import KeyMask, attend_frames, build_key_mask
from voxgraft.nn.flow_ops import add_norm, norm_mish
from voxgraft.nn.layers import FusableModule, SolverGraphs, pad_frames, round_like

NUM_MELS = 80
SPEAKER_WIDTH = 192
FRAMES_PER_CODE = 2
ENCODER_WIDTH, ENCODER_HEADS = 512, 8
# The published code fixes the number of blocks after the upsampling.
UP_LAYERS = 4
LOOKAHEAD = 3
UP_KERNEL = 5
# The encoder's blocks have another epsilon than its other norms.
BLOCK_EPS = 1e-12
# Mel of the flow, mean, speaker and prompt, one after the other.
UNET_INPUTS = 4 * NUM_MELS
TIME_SCALE = 1000.0
GUIDANCE = 0.7
STANDARD_STEPS, MEANFLOW_STEPS = 10, 2


@dataclass(frozen=True, slots=True)
class FlowSize:
    """The sizes that may differ; as published by default."""

    encoder_layers: int = 6
    """Before the upsampling; there are always four after it."""
    encoder_mlp: int = 2048
    width: int = 256
    """Of the U-Net."""
    inner: int = 512
    """Of its attention, all heads together."""
    head_width: int = 64
    """No tensor shows it."""
    transformers: int = 4
    """In each block of the U-Net."""
    mid_blocks: int = 12
    meanflow: bool = False


class CodeToMel(nn.Module):
    """Codes of prompt and utterance, the prompt's mel and the speaker's vector to a mel."""

    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        self.size = size
        self.input_embedding = nn.Embedding(NUM_SPEECH_CODES, ENCODER_WIDTH)
        self.spk_embed_affine_layer = nn.Linear(SPEAKER_WIDTH, NUM_MELS)
        self.encoder = UpsampleConformer(size)
        self.encoder_proj = nn.Linear(ENCODER_WIDTH, NUM_MELS)
        self.graphs = SolverGraphs()
        """Of the encoder."""
        self.decoder = FlowDecoder(size, self.graphs)

    def encode(self, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """The flow's mean. Prompt and utterance in a row, [B, N], and where they are, [B, N] -> [B, 2 N, 80]"""
        mean: Tensor = self.encoder_proj(self.encoder(self.input_embedding(codes), mask))
        return mean

    def _encode_captured(self, codes: Tensor, mask: Tensor | None) -> Tensor:
        """The same as a CUDA graph, at the lengths that the decoder is captured for."""
        num_codes = codes.shape[1]
        padding = pad_frames(FRAMES_PER_CODE * num_codes, codes.device) // FRAMES_PER_CODE - num_codes
        if padding:
            mask = torch.ones_like(codes, dtype=torch.bool) if mask is None else mask
            codes, mask = F.pad(codes, (0, padding)), F.pad(mask, (0, padding))
        # A graph reads the table of positions where it is now: a longer one needs another graph.
        weight = self.encoder_proj.weight
        table = self.encoder.reserve_offsets(FRAMES_PER_CODE * codes.shape[1], weight)
        kind = (weight.data_ptr(), table.data_ptr(), len(table))
        inputs, all_frames = ((codes,) if mask is None else (codes, mask)), FRAMES_PER_CODE * codes.numel()
        mean = self.graphs.run(self.encode, kind, *inputs, num_frames=all_frames)
        return mean[:, : FRAMES_PER_CODE * num_codes]

    def project_speaker(self, vectors: Tensor) -> Tensor:
        """[B, 192], of any length -> [B, 80]"""
        projected: Tensor = self.spk_embed_affine_layer(F.normalize(vectors, dim=-1))
        return projected

    def forward(
        self,
        codes: Tensor,
        speaker: Tensor,
        prompt: Tensor,
        noise: Tensor,
        mask: Tensor | None = None,
        steps: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Codes [B, N], speakers [B, 192], prompt mels with zeros behind them [B, T, 80], noise [B, T, 80], and where
        the codes are [B, N] -> mels of prompt and utterance [B, T, 80]
        """
        mean = self._encode_captured(codes, mask) if dtype is not None else self.encode(codes, mask)
        frames = None if mask is None else mask.repeat_interleave(FRAMES_PER_CODE, dim=1)
        return self.decoder.solve(noise, mean, self.project_speaker(speaker), prompt, frames, steps, dtype)


class UpsampleConformer(nn.Module):
    """Transformer blocks with relative positions, the rate doubled between the sixth and the seventh."""

    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        self.embed = ScaledEmbed()
        self.pre_lookahead_layer = LookaheadLayer()
        self.encoders = nn.ModuleList(ConformerBlock(size.encoder_mlp) for _ in range(size.encoder_layers))
        self.up_layer = UpsampleLayer()
        self.up_embed = ScaledEmbed()
        self.up_encoders = nn.ModuleList(ConformerBlock(size.encoder_mlp) for _ in range(UP_LAYERS))
        self.after_norm = nn.LayerNorm(ENCODER_WIDTH)
        self._offsets: Tensor | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N, 512], [B, N] -> [B, 2 N, 512]"""
        x = self.embed(x)
        if mask is not None:  # the look-ahead of the last codes must see zeros, as behind the end of one alone
            x = x * mask[..., None]
        x = self.pre_lookahead_layer(x)
        x = self._attend(self.encoders, x, mask)
        x = self.up_embed(self.up_layer(x))
        x = self._attend(self.up_encoders, x, None if mask is None else mask.repeat_interleave(FRAMES_PER_CODE, dim=1))
        out: Tensor = self.after_norm(x)
        return out

    def _attend(self, blocks: nn.ModuleList, x: Tensor, mask: Tensor | None) -> Tensor:
        offsets = self._offset_table(x)
        for block in blocks:
            x = block(x, offsets, mask)
        return x

    def _offset_table(self, x: Tensor) -> Tensor:
        """Sinusoids of the offsets query - key, from the largest to the smallest. -> [2 N - 1, 512]"""
        length = x.shape[1]
        table = self.reserve_offsets(length, x)
        middle = len(table) // 2
        return table[middle - length + 1 : middle + length]

    def reserve_offsets(self, length: int, like: Tensor) -> Tensor:
        """The whole table that is kept, of so many positions or more."""
        table = self._offsets
        if table is None or len(table) < 2 * length - 1 or table.device != like.device or table.dtype != like.dtype:
            # Kept in a size that grows in steps, since every sentence has another length.
            most = -(-length // 512) * 512
            # As upstream, in float32 on the CPU: another rounding of the angles shows at long offsets.
            rates = torch.exp(torch.arange(0, ENCODER_WIDTH, 2).float() * -(math.log(10000.0) / ENCODER_WIDTH))
            angles = torch.arange(most - 1, -most, -1).float()[:, None] * rates  # [2 most - 1, 256]
            table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(like)  # sine and cosine in turn
            self._offsets = table
        return table


class ScaledEmbed(nn.Module):
    """Linear, norm, times sqrt(512); positions are added nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(ENCODER_WIDTH, ENCODER_WIDTH), nn.LayerNorm(ENCODER_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x) * math.sqrt(ENCODER_WIDTH)
        return out


class TimeConv(nn.Conv1d):
    """A convolution over [B, T, C] that pads nothing on its own."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, T + kernel - 1, C] -> [B, T, outputs]"""
        x = round_like(x, self.weight)
        windows = x.unfold(1, self.kernel_size[0], 1).flatten(2)  # [B, T, C * kernel], as the weight has it
        return F.linear(windows, self.weight.flatten(1), self.bias)


class CausalConv(TimeConv):
    """The same with zeros on the left alone: no frame sees a later one."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, outputs]"""
        return super().forward(F.pad(round_like(x, self.weight), (0, 0, self.kernel_size[0] - 1, 0)))


class LookaheadLayer(nn.Module):
    """Each code sees three later ones: the only convolution here that looks to the right."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = TimeConv(ENCODER_WIDTH, ENCODER_WIDTH, LOOKAHEAD + 1)
        self.conv2 = CausalConv(ENCODER_WIDTH, ENCODER_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, 512] -> [B, N, 512]"""
        seen = F.leaky_relu(self.conv1(F.pad(x, (0, 0, 0, LOOKAHEAD))))
        out: Tensor = x + self.conv2(seen)
        return out


class UpsampleLayer(nn.Module):
    """Every frame twice, then a causal convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = CausalConv(ENCODER_WIDTH, ENCODER_WIDTH, UP_KERNEL)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, 512] -> [B, 2 N, 512]"""
        out: Tensor = self.conv(x.repeat_interleave(FRAMES_PER_CODE, dim=1))
        return out


class ConformerBlock(nn.Module):
    """Attention and feed-forward, each normed before. Without the convolution module, in spite of the name."""

    def __init__(self, mlp: int) -> None:
        super().__init__()
        self.self_attn = RelativeAttention()
        self.feed_forward = FeedForward(mlp)
        self.norm_mha = nn.LayerNorm(ENCODER_WIDTH, eps=BLOCK_EPS)
        self.norm_ff = nn.LayerNorm(ENCODER_WIDTH, eps=BLOCK_EPS)

    def forward(self, x: Tensor, offsets: Tensor, mask: Tensor | None) -> Tensor:
        """[B, N, 512], [2 N - 1, 512], [B, N] -> [B, N, 512]"""
        x = x + self.self_attn(self.norm_mha(x), offsets, mask)
        fed: Tensor = self.feed_forward(self.norm_ff(x))
        return x + fed


class FeedForward(nn.Module):
    """Two layers with SiLU between them."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(ENCODER_WIDTH, inner)
        self.w_2 = nn.Linear(inner, ENCODER_WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w_2(F.silu(self.w_1(x)))
        return out


class RelativeAttention(nn.Module):
    """Transformer-XL's attention: a score is content with content plus content with offset, each with its own bias."""

    def __init__(self) -> None:
        super().__init__()
        width, heads = ENCODER_WIDTH, ENCODER_HEADS
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(width, width) for _ in range(4))
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, width // heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, width // heads))

    def forward(self, x: Tensor, offsets: Tensor, mask: Tensor | None) -> Tensor:
        """[B, N, 512], [2 N - 1, 512], [B, N] -> [B, N, 512]"""
        batch, length, _ = x.shape
        query = self.linear_q(x).unflatten(-1, (ENCODER_HEADS, -1))  # [B, N, H, D]
        key, value = (
            linear(x).unflatten(-1, (ENCODER_HEADS, -1)).transpose(1, 2) for linear in (self.linear_k, self.linear_v)
        )  # [B, H, N, D]
        content = (query + self.pos_bias_u).transpose(1, 2)
        position_query = (query + self.pos_bias_v).transpose(1, 2)
        positions = self.linear_pos(offsets).unflatten(-1, (ENCODER_HEADS, -1)).permute(1, 2, 0)  # [H, D, 2 N - 1]
        scale = key.shape[-1] ** -0.5
        scores = ((position_query @ positions) * scale).contiguous()  # [B, H, N, 2 N - 1]
        # Query i and key j meet in column N - 1 - (i - j): each row starts one column before the row above it.
        row_stride, strides = 2 * length - 2, scores.stride()
        bias = scores.as_strided(
            (batch, ENCODER_HEADS, length, length), (strides[0], strides[1], row_stride, 1), length - 1
        )
        bias = bias.contiguous()  # CUDA's attention kernels refuse rows that start at odd places
        if mask is not None:
            bias = bias.masked_fill(~mask[:, None, None], -torch.inf)
        context = F.scaled_dot_product_attention(content, key, value, attn_mask=bias, scale=scale)  # [B, H, N, D]
        out: Tensor = self.linear_out(context.transpose(1, 2).flatten(2))
        return out


class FlowDecoder(nn.Module):
    """Euler's method along the U-Net's velocity."""

    def __init__(self, size: FlowSize, beside: SolverGraphs | None = None) -> None:
        super().__init__()
        self.meanflow = size.meanflow
        self.estimator = FlowUNet(size)
        self.graphs = SolverGraphs(beside)

    def solve(
        self,
        noise: Tensor,
        mean: Tensor,
        speaker: Tensor,
        prompt: Tensor,
        mask: Tensor | None = None,
        steps: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Noise, mean and prompt [B, T, 80], speaker [B, 80], mask [B, T] -> mel [B, T, 80]

        A half-precision `dtype` is for the U-Net's matrix products (autocast); mel, times and steps stay float32.
        """
        times = step_times(steps or (MEANFLOW_STEPS if self.meanflow else STANDARD_STEPS), meanflow=self.meanflow)
        moments = times.to(noise)  # [steps + 1]
        lengths = tuple(times.diff().tolist())
        taus = self.estimator.embed_times(moments[:-1], moments[1:] if self.meanflow else None)  # [steps, 4 C]
        given = torch.cat([mean, speaker[:, None].expand(-1, mean.shape[1], -1), prompt], dim=-1)  # [B, T, 240]
        num_frames = noise.shape[1]
        padding = (pad_frames(num_frames, noise.device) if dtype is not None else num_frames) - num_frames
        if padding:
            mask = noise.new_ones(noise.shape[:2], dtype=torch.bool) if mask is None else mask
            noise, given, mask = (
                F.pad(noise, (0, 0, 0, padding)),
                F.pad(given, (0, 0, 0, padding)),
                F.pad(mask, (0, padding)),
            )
        if not self.meanflow:
            # Guidance: every utterance a second time, without mean, speaker and prompt.
            given = torch.cat([given, torch.zeros_like(given)])
            mask = None if mask is None else torch.cat([mask, mask])

        estimator = self.estimator if dtype is None else self.graphs.round_matrices(self.estimator, dtype)

        def integrate(x: Tensor, given: Tensor, taus: Tensor, mask: Tensor | None = None) -> Tensor:
            """Nothing in the loop depends on values: a GPU is never waited for, and the loop can be captured."""
            keys = None if mask is None else build_key_mask(mask)
            for length, tau in zip(lengths, taus[:, None], strict=True):
                with torch.autocast(x.device.type, dtype, enabled=dtype is not None):
                    velocity = estimator(x if self.meanflow else torch.cat([x, x]), given, tau, keys)
                velocity = velocity.to(x.dtype)
                if not self.meanflow:
                    guided, free = velocity.chunk(2)
                    velocity = (1.0 + GUIDANCE) * guided - GUIDANCE * free
                x = x + length * velocity
            return x

        # A model that was moved has other weights at other places, which a captured solver does not know.
        kind = (lengths, dtype, self.estimator.final_proj.weight.data_ptr())
        inputs = (noise, given, taus) if mask is None else (noise, given, taus, mask)
        if dtype is None:  # float32 runs as it is: the exact path has no second way
            return integrate(*inputs)
        solved = self.graphs.run(integrate, kind, *inputs, num_frames=noise.shape[0] * noise.shape[1])
        return solved[:, :num_frames]


def step_times(steps: int, *, meanflow: bool) -> Tensor:
    """Where the steps begin and end, from 0 to 1: even for the mean flow, else short ones first. [steps + 1]"""
    even = torch.linspace(0.0, 1.0, steps + 1)
    return even if meanflow else 1.0 - torch.cos(even * (0.5 * math.pi))


class FlowUNet(nn.Module):
    """The velocity of the flow: one level down, middle blocks, one level up, all at the same rate."""

    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        width = size.width
        self.time_mlp = TimeMlp(4 * width)
        if size.meanflow:
            self.time_embed_mixer = nn.Linear(8 * width, 4 * width, bias=False)
        self.down_blocks = nn.ModuleList([UNetBlock(size, UNET_INPUTS, has_conv=True)])
        self.mid_blocks = nn.ModuleList(UNetBlock(size, width) for _ in range(size.mid_blocks))
        self.up_blocks = nn.ModuleList([UNetBlock(size, 2 * width, has_conv=True)])
        self.final_block = CausalBlock(width, width)
        self.final_proj = TimeConv(width, NUM_MELS, 1)

    def embed_times(self, starts: Tensor, ends: Tensor | None = None) -> Tensor:
        """Times of the flow as the blocks take them; the mean flow also has ends. [S] -> [S, 4 C]"""
        tau: Tensor = self.time_mlp(starts)
        if ends is not None:
            tau = self.time_embed_mixer(torch.cat([tau, self.time_mlp(ends)], dim=-1))
        return F.mish(tau)

    def forward(self, x: Tensor, given: Tensor, tau: Tensor, keys: KeyMask | None = None) -> Tensor:
        """Flow [B, T, 80], mean, speaker and prompt [B, T, 240], times [B or 1, 4 C] -> [B, T, 80]

        Only attention has to be masked: convolutions look to the left, where no padding is.
        """
        down, up = self.down_blocks[0], self.up_blocks[0]
        skip = x = down(torch.cat([x, given], dim=-1), tau, keys)
        x = down.get_submodule("2")(x)
        for block in self.mid_blocks:
            x = block(x, tau, keys)
        x = up(torch.cat([x, skip], dim=-1), tau, keys)
        x = self.final_proj(self.final_block(up.get_submodule("2")(x)))
        return x if keys is None else x * keys.is_frame[..., None]


class TimeMlp(nn.Module):
    """Sinusoids of a time from 0 to 1, then two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(UNET_INPUTS, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, times: Tensor) -> Tensor:
        """[S] -> [S, 4 C]"""
        half = UNET_INPUTS // 2
        powers = torch.arange(half, device=times.device).float() * -(math.log(10000.0) / (half - 1))
        angles = TIME_SCALE * times.float()[:, None] * powers.exp()  # [S, 160]
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1).to(self.linear_1.weight.dtype)
        out: Tensor = self.linear_2(F.silu(self.linear_1(waves)))
        return out


class UNetBlock(nn.ModuleList):
    """A residual block (0), transformer blocks (1) and, at both ends of the U-Net, a causal convolution (2)."""

    def __init__(self, size: FlowSize, inputs: int, *, has_conv: bool = False) -> None:
        transformers = nn.ModuleList(UNetTransformer(size) for _ in range(size.transformers))
        super().__init__([FlowResidualBlock(inputs, size.width), transformers])
        if has_conv:
            self.append(CausalConv(size.width, size.width, 3))

    def forward(self, x: Tensor, tau: Tensor, keys: KeyMask | None) -> Tensor:
        """Without the convolution: the skip connection starts before it. [B, T, inputs] -> [B, T, C]"""
        x, delta = self[0](x, tau), None
        for block in self.get_submodule("1").children():
            x, delta = block(x, delta, keys)
        return x if delta is None else x + delta


class CausalBlock(nn.Module):
    """Causal convolution (0), norm over channels (2), Mish."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"0": CausalConv(inputs, outputs, 3), "2": nn.LayerNorm(outputs)})

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, inputs] -> [B, T, outputs]"""
        return F.mish(self.block["2"](self.block["0"](x)))

    def add_to(self, x: Tensor, added: Tensor, dtype: torch.dtype) -> Tensor:
        """The same plus `added`, in `dtype` where a kernel computes it. [B, T, inputs], [B or 1, T or 1, outputs]"""
        conv, norm = self.block["0"], self.block["2"]
        assert isinstance(conv, CausalConv)
        assert isinstance(norm, nn.LayerNorm)
        if conv.weight.dtype == torch.float32:  # nothing is fused there
            plain: Tensor = self(x) + added
            return plain
        return norm_mish(conv(x), norm.weight, norm.bias, norm.eps, added, dtype, fuse=conv.weight.dtype)


class FlowResidualBlock(nn.Module):
    """Two causal blocks with the time added between them, beside a straight way."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        # Upstream's Sequential begins with a Mish; it is the same for all blocks and done once, by `embed_times`.
        self.mlp = nn.ModuleDict({"1": nn.Linear(4 * width, width)})
        self.block1 = CausalBlock(inputs, width)
        self.block2 = CausalBlock(width, width)
        self.res_conv = TimeConv(inputs, width, 1)

    def forward(self, x: Tensor, tau: Tensor) -> Tensor:
        """[B, T, inputs], [B or 1, 4 C] -> [B, T, C]"""
        x = round_like(x, self.res_conv.weight)  # two convolutions read it
        inner = self.block1.add_to(x, self.mlp["1"](tau)[:, None], x.dtype)
        return self.block2.add_to(inner, self.res_conv(x), torch.float32)


class UNetTransformer(nn.Module):
    """Attention over all frames, without positions, and a feed-forward layer."""

    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width)
        self.attn1 = UNetAttention(size)
        self.norm3 = nn.LayerNorm(size.width)
        self.ff = UNetFeedForward(size.width)

    def forward(self, x: Tensor, delta: Tensor | None, keys: KeyMask | None) -> tuple[Tensor, Tensor]:
        """[B, T, C], and what is still to be added to it; the same afterwards"""
        dtype, first, second = self.attn1.dtype, self.norm1, self.norm3
        x, normed = add_norm(x, delta, first.weight, first.bias, first.eps, dtype, centred=True)
        attended = self.attn1(normed, keys)
        x, normed = add_norm(x, attended, second.weight, second.bias, second.eps, dtype, centred=True)
        return x, self.ff(normed)


class UNetAttention(FusableModule):
    """Every frame sees every other: only the convolutions of the U-Net are causal."""

    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        self.head_width = size.head_width
        self.to_q, self.to_k, self.to_v = (nn.Linear(size.width, size.inner, bias=False) for _ in range(3))
        self.to_out = nn.Sequential(nn.Linear(size.inner, size.width))
        self.to_qkv: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of its matrices."""
        return next(self.to_out.parameters()).dtype

    def fuse(self) -> None:
        self.to_qkv = torch.cat([self.to_q.weight, self.to_k.weight, self.to_v.weight])
        del self.to_q, self.to_k, self.to_v

    def forward(self, x: Tensor, keys: KeyMask | None) -> Tensor:
        """[B, T, C] -> [B, T, C]"""
        if self.to_qkv is None:
            query, key, value = (
                linear(x).unflatten(-1, (-1, self.head_width)) for linear in (self.to_q, self.to_k, self.to_v)
            )
        else:
            query, key, value = F.linear(x, self.to_qkv).view(*x.shape[:2], 3, -1, self.head_width).unbind(2)
        context = attend_frames(query, key, value, keys)  # [B, T, H, D]
        out: Tensor = self.to_out(context.flatten(2))
        return out


class UNetFeedForward(nn.Module):
    """Widen (net.0.proj), exact GELU, narrow (net.2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widen = nn.ModuleDict({"proj": nn.Linear(width, 4 * width)})
        self.net = nn.ModuleDict({"0": widen, "2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]"""
        widened = F.gelu(self.net.get_submodule("0.proj")(x))
        out: Tensor = self.net["2"](widened)
        return out
