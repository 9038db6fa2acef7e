"""The codec for human voices: local attention at 25 and 50 steps per second, dense layers at 100, an inverse STFT.

All layers are matrix products on [batch, time, channels], so a step on a GPU has few, large kernels and can be captured
as a CUDA graph. A linear layer over three neighbouring steps takes the place of a convolution.

Shapes: B clips, S samples, N codes (25 a second), T steps of any rate, C channels, L digits of a code, V voice vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.audio.features import HOP, LogMel
from voxgraft.models.tiny.model import STFT_WINDOW, FiniteScalarQuantizer, overlap_add

__all__ = ["CTCTeacher", "PeopleCodec", "PeopleCodecConfig", "Stage", "TeacherPredictor", "build_frame_mask"]

MAX_LOG_MAGNITUDE = 6.0


@dataclass(frozen=True, slots=True)
class PeopleCodecConfig:
    """Sizes. Each pair is (number of blocks, width)."""

    levels: tuple[int, ...] = (8, 8, 8, 5, 5)
    num_mels: int = 80
    encoder_fast: tuple[int, int] = (2, 256)
    """At 50 steps per second."""
    encoder_slow: tuple[int, int] = (2, 320)
    """At 25 steps per second."""
    decoder_slow: tuple[int, int] = (2, 352)
    decoder_fast: tuple[int, int] = (2, 288)
    decoder_frames: tuple[int, int] = (3, 256)
    """At 100 steps per second, without attention."""
    head_width: int = 32
    attention_seconds: float = 1.0
    """Attention span to either side."""
    voice_vector: int = 128
    voice: tuple[int, int] = (3, 160)


class Block(nn.Module):
    """Optional local attention, then a feed-forward layer over three neighbouring steps."""

    def __init__(self, width: int, heads: int, voice_vector: int = 0) -> None:
        super().__init__()
        self.heads = heads
        if heads:
            self.attention_norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.attention_output = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.ffn_in = nn.Linear(3 * width, 2 * width)
        self.ffn_out = nn.Linear(2 * width, width)
        self.voice = nn.Linear(voice_vector, 2 * width) if voice_vector else None
        with torch.no_grad():  # each block starts close to the identity
            for layer in (self.ffn_out, *([self.attention_output] if heads else [])):
                layer.weight.mul_(0.5)
            if self.voice is not None:
                self.voice.weight.mul_(0.5)

    def forward(self, steps: Tensor, attention_reach: int, mask: Tensor | None, voices: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]"""
        if self.heads:
            steps = steps + self._attend(self.attention_norm(steps), attention_reach, mask)
        inside = self.norm(steps)
        if self.voice is not None and voices is not None:
            scale, shift = self.voice(voices)[:, None].chunk(2, -1)
            inside = inside * (1 + scale) + shift
        return apply_mask(steps + self.ffn_out(F.gelu(self.ffn_in(stack_neighbours(apply_mask(inside, mask))))), mask)

    def _attend(self, steps: Tensor, attention_reach: int, mask: Tensor | None) -> Tensor:
        rows, count, width = steps.shape
        q, k, v = self.qkv(steps).view(rows, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # [B, H, T, D] each
        cosines, sines = rotary_tables(count, q.shape[-1], steps.device)
        q, k = apply_rotary(q, cosines, sines).to(v.dtype), apply_rotary(k, cosines, sines).to(v.dtype)
        allowed = local_attention_mask(count, attention_reach, steps.device)
        if mask is not None:
            # A row with all keys masked would give NaN, so padding attends to itself.
            allowed = (allowed & mask[:, None, None, :, 0]) | torch.eye(count, dtype=torch.bool, device=steps.device)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        attention_output: Tensor = self.attention_output(found.transpose(1, 2).reshape(rows, count, width))
        return attention_output


class Stage(nn.Module):
    """Blocks at one frame rate."""

    def __init__(self, blocks: int, width: int, head_width: int, attention_reach: int, voice_vector: int = 0) -> None:
        super().__init__()
        self.attention_reach = attention_reach
        heads = width // head_width if attention_reach else 0
        self.blocks = nn.ModuleList(Block(width, heads, voice_vector) for _ in range(blocks))

    def forward(self, steps: Tensor, mask: Tensor | None = None, voices: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            steps = block(steps, self.attention_reach, mask, voices)
        return steps


class PeopleCodec(nn.Module):
    """Encoder, finite scalar quantizer, decoder and speaker encoder."""

    def __init__(self, config: PeopleCodecConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_code = 4 * HOP
        self.digits = FiniteScalarQuantizer(config.levels)
        self.num_codes = math.prod(config.levels)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.speaker_encoder = VoiceEncoder(config)

    def latents(self, waves: Tensor, counts: Tensor | None = None) -> Tensor:
        """Latents before quantization, [B, N, L]."""
        found: Tensor = self.encoder(F.pad(waves, (0, -waves.shape[1] % self.samples_per_code)), counts)
        return found

    @torch.no_grad()
    def encode(self, waves: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Codes [B, N], and the number of valid codes per row."""
        full = torch.full((len(waves),), waves.shape[1], device=waves.device)
        counts = -(-(full if lengths is None else lengths) // self.samples_per_code)
        return self.digits.numbers(self.digits.rounded(self.latents(waves, counts))), counts

    @torch.no_grad()
    def decode(self, codes: Tensor, voices: Tensor, counts: Tensor | None = None) -> Tensor:
        """Codes [B, N] in voices [B, V] -> waves [B, 640 N]."""
        waves: Tensor = self.decoder(self.digits.codes_to_digits(codes), voices, counts)
        return waves


class Encoder(nn.Module):
    """Log-mel frames, stacked in pairs to 50 and again to 25 steps per second."""

    def __init__(self, config: PeopleCodecConfig) -> None:
        super().__init__()
        (fast, fast_width), (slow, slow_width) = config.encoder_fast, config.encoder_slow
        self.mel = LogMel(config.num_mels)
        self.input_layer = nn.Linear(6 * config.num_mels, fast_width)
        self.fast = Stage(fast, fast_width, config.head_width, 0)
        self.to_slow = nn.Linear(2 * fast_width, slow_width)
        self.slow = Stage(slow, slow_width, config.head_width, round(config.attention_seconds * 25))
        self.norm = nn.LayerNorm(slow_width)
        self.output_layer = nn.Linear(slow_width, len(config.levels))

    def forward(self, waves: Tensor, counts: Tensor | None) -> Tensor:
        """[B, S] -> [B, N, L]; S is a multiple of a code's samples."""
        mask = build_frame_mask(counts, waves.shape[1] // (4 * HOP))
        frames = apply_mask(self.mel(waves), repeat_mask(mask, 4))
        pairs = stack_pairs(frames)
        steps = self.fast(
            apply_mask(self.input_layer(stack_neighbours(pairs)), repeat_mask(mask, 2)), repeat_mask(mask, 2)
        )
        steps = self.slow(apply_mask(self.to_slow(stack_pairs(steps)), mask), mask)
        latents: Tensor = self.output_layer(self.norm(steps))
        return latents


class Decoder(nn.Module):
    """Quantized latents, upsampled twice, to a spectrum and a waveform."""

    window: Tensor

    def __init__(self, config: PeopleCodecConfig) -> None:
        super().__init__()
        (slow, slow_width), (fast, fast_width) = config.decoder_slow, config.decoder_fast
        frames, width = config.decoder_frames
        voice, attention_reach = config.voice_vector, config.attention_seconds
        self.digits = FiniteScalarQuantizer(config.levels)
        self.input_layer = nn.Linear(3 * len(config.levels), slow_width)
        self.slow = Stage(slow, slow_width, config.head_width, round(attention_reach * 25), voice)
        self.to_fast = nn.Linear(slow_width, 2 * fast_width)
        self.fast = Stage(fast, fast_width, config.head_width, round(attention_reach * 50), voice)
        self.to_frames = nn.Linear(fast_width, 2 * width)
        self.frames = Stage(frames, width, config.head_width, 0, voice)
        self.norm = nn.LayerNorm(width)
        self.output_layer = nn.Linear(width, STFT_WINDOW + 2)
        self.register_buffer("window", torch.hann_window(STFT_WINDOW), persistent=False)

    def forward(self, digits: Tensor, voices: Tensor, counts: Tensor | None = None) -> Tensor:
        """[B, N, L], [B, V] -> [B, 640 N]"""
        mask = build_frame_mask(counts, digits.shape[1])
        steps = apply_mask(self.input_layer(stack_neighbours(apply_mask(self.digits.scale_digits(digits), mask))), mask)
        steps = self.slow(steps, mask, voices)
        steps = self.fast(split_pairs(self.to_fast(steps), repeat_mask(mask, 2)), repeat_mask(mask, 2), voices)
        steps = self.frames(split_pairs(self.to_frames(steps), repeat_mask(mask, 4)), repeat_mask(mask, 4), voices)
        waves = self._wave(self.output_layer(self.norm(steps)).float(), repeat_mask(mask, 4))
        return apply_mask(waves.view(len(waves), -1, 4 * HOP), mask).flatten(1)

    def _wave(self, spectrum: Tensor, mask: Tensor | None) -> Tensor:
        """Log magnitudes and phases [B, T, 2 K] to a waveform, by inverse STFT and overlap-add."""
        magnitude, phase = spectrum.chunk(2, -1)
        magnitude = magnitude.clamp(max=MAX_LOG_MAGNITUDE).exp()
        pieces = torch.fft.irfft(torch.complex(magnitude * phase.cos(), magnitude * phase.sin()), STFT_WINDOW)
        summed = overlap_add(apply_mask(pieces * self.window, mask))
        weight = overlap_add(apply_mask(self.window.square().expand(1, pieces.shape[1], -1), mask))
        margin = (STFT_WINDOW - HOP) // 2
        return summed[:, margin:-margin] / weight[:, margin:-margin].clamp_min(1e-3)


class VoiceEncoder(nn.Module):
    """Speaker encoder: dense layers, then attention pooling over the recording."""

    def __init__(self, config: PeopleCodecConfig) -> None:
        super().__init__()
        blocks, width = config.voice
        self.mel = LogMel(config.num_mels)
        self.input_layer = nn.Linear(6 * config.num_mels, width)
        self.steps = Stage(blocks, width, config.head_width, 0)
        self.norm = nn.LayerNorm(width)
        self.attend = nn.Linear(width, width)
        self.output_layer = nn.Linear(2 * width, config.voice_vector)

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Waves [B, S], valid samples per row [B] -> unit vectors [B, V]."""
        padded = F.pad(waves, (0, -waves.shape[1] % (2 * HOP)))
        mask = build_frame_mask(None if lengths is None else -(-lengths // (2 * HOP)), padded.shape[1] // (2 * HOP))
        pairs = stack_pairs(apply_mask(self.mel(padded), repeat_mask(mask, 2)))
        steps = self.norm(self.steps(apply_mask(self.input_layer(stack_neighbours(pairs)), mask), mask)).float()
        scores = self.attend(steps).float()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(1)  # over time, each channel alone
        mean = (weights * steps).sum(1)
        spread = (weights * (steps - mean[:, None]).square()).sum(1).add(1e-5).sqrt()
        return F.normalize(self.output_layer(torch.cat([mean, spread], 1)).float(), dim=-1)


class CTCTeacher(nn.Module):
    """CTC recognizer of letters and phones at 50 steps per second; its features measure the content of speech."""

    def __init__(self, num_symbols: int, blocks: int = 6, width: int = 320, num_mels: int = 80) -> None:
        super().__init__()
        self.mel = LogMel(num_mels)
        self.input_layer = nn.Linear(6 * num_mels, width)
        self.stages = nn.ModuleList(Stage(blocks // 3, width, 64, 50) for _ in range(3))
        self.output_layer = nn.Linear(width, num_symbols + 1)

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """Features after each third of the layers, and logits [B, T, P + 1]; S is a multiple of 320."""
        return self.forward_frames(self.mel(waves), lengths)

    def forward_frames(self, frames: Tensor, lengths: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """The same, from mel frames."""
        mask = build_frame_mask(None if lengths is None else -(-lengths // (2 * HOP)), frames.shape[1] // 2)
        pairs = stack_pairs(apply_mask(frames, repeat_mask(mask, 2)))
        steps = apply_mask(self.input_layer(stack_neighbours(pairs)), mask)
        layer_features = []
        for stage in self.stages:
            steps = stage(steps, mask)
            layer_features.append(F.layer_norm(steps.float(), steps.shape[-1:]))
        return layer_features, self.output_layer(layer_features[-1])


class TeacherPredictor(nn.Module):
    """Predicts the teacher's features from the codes alone, so that the codes keep the content. Not shipped."""

    def __init__(self, num_digits: int, teacher_width: int, num_symbols: int, width: int = 256) -> None:
        super().__init__()
        self.input_layer = nn.Linear(3 * num_digits, 2 * width)
        self.stage = Stage(2, width, 64, 50)
        self.output_layer = nn.Linear(width, 2 * teacher_width + num_symbols + 1)
        self.teacher_width = teacher_width

    def forward(self, digits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, N, L] -> features of the teacher's last two thirds, [B, 2 N, C] each, and logits [B, 2 N, P + 1]."""
        steps = self.stage(split_pairs(self.input_layer(stack_neighbours(digits)), None))
        num_scores = self.output_layer.out_features - 2 * self.teacher_width
        middle, last, scores = self.output_layer(steps).split([self.teacher_width, self.teacher_width, num_scores], -1)
        return middle, last, scores


def stack_neighbours(steps: Tensor) -> Tensor:
    """Concatenate each step with its two neighbours, zeros at the ends. [B, T, C] -> [B, T, 3 C]"""
    padded = F.pad(steps, (0, 0, 1, 1))
    return torch.cat([padded[:, :-2], steps, padded[:, 2:]], -1)


def split_pairs(steps: Tensor, mask: Tensor | None) -> Tensor:
    """[B, T, 2 C] -> [B, 2 T, C]"""
    rows, count, width = steps.shape
    return apply_mask(steps.reshape(rows, 2 * count, width // 2), mask)


def stack_pairs(steps: Tensor) -> Tensor:
    """[B, 2 T, C] -> [B, T, 2 C]"""
    rows, count, width = steps.shape
    return steps.reshape(rows, count // 2, 2 * width)


@cache
def local_attention_mask(count: int, attention_reach: int, device: torch.device) -> Tensor:
    """Mask of steps within reach of each other. [T, T]"""
    places = torch.arange(count, device=device)
    return (places[:, None] - places).abs() <= attention_reach


@cache
def rotary_tables(count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, [T, D / 2] each."""
    rates = 1000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(count, device=device)[:, None] * rates
    return angles.cos(), angles.sin()


def apply_rotary(parts: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate pairs of channels by their position. [B, H, T, D]"""
    one, other = parts.float().chunk(2, -1)
    return torch.cat([one * cosines - other * sines, one * sines + other * cosines], -1)


def build_frame_mask(counts: Tensor | None, longest: int) -> Tensor | None:
    """Mask of valid steps, [B, T, 1]; None if all are valid."""
    return None if counts is None else (torch.arange(longest, device=counts.device) < counts[:, None])[..., None]


def repeat_mask(mask: Tensor | None, times: int) -> Tensor | None:
    """The mask at a higher rate."""
    return None if mask is None else mask.repeat_interleave(times, 1)


def apply_mask(steps: Tensor, mask: Tensor | None) -> Tensor:
    """Set masked steps to zero."""
    return steps if mask is None else steps * mask
