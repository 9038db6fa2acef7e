"""Chatterbox's clip encoder: speech codes at 25 a second, the voice vector, and the first seconds as a prompt.

Both networks run in exact float32 and mask their padding: a clip gives the same result in any batch.

Shapes: B clips, F mel frames, M mel bands, T codes, H heads of width D, W width of the network, E voice vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    find_sound_bounds,
    mel_filters,
    power_spectrum,
    run_padded_batches,
    validate_waveform,
    validate_waveforms,
)
from voxgraft.audio.files import resample
from voxgraft.core.errors import AudioError
from voxgraft.models.base import REFERENCE_AUDIO, Clip, ClipEncoder
from voxgraft.models.chatterbox.family import (
    MAX_PROMPT_CODES,
    SPEECH_CODE_DIGITS,
    SPEECH_CODE_LEVELS,
    SPEECH_TOKENIZER_KERNEL,
    SPEECH_TOKENIZER_MELS,
    SPEECH_TOKENIZER_PREFIX,
    T3_HEAD_WIDTH,
    VOICE_ENCODER_LAYERS,
    VOICE_ENCODER_MELS,
    VOICE_ENCODER_WIDTH,
)
from voxgraft.nn.layers import init_empty_weights, no_init_weights

# Tensors that follow from the sizes; one of the published files lacks them.
COMPUTED_TENSORS = ("_mel_filters", "window")

SAMPLE_RATE = 16_000
FRAME = 400
HOP = 160
# No network of this kind is wider; a damaged file can claim any number.
MAX_WIDTH = 1 << 14
FRAMES_PER_CODE = 4
MAX_FRAMES = 3000
# One code; 30 s, the longest that the tokenizer was made for.
TOKENIZER_LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=HOP * FRAMES_PER_CODE, max_samples=HOP * MAX_FRAMES)
ROPE_THETA = 10_000.0
# What upstream multiplies by before it rounds: 0.999 in float32.
ROUNDING_SCALE = 0.9990000128746033
BATCH_FRAMES = 12_000


@dataclass(frozen=True, slots=True)
class SpeechTokenizerSize:
    """The sizes that may differ; as published by default. Heads are 64 wide, always."""

    width: int = 1280
    layers: int = 6

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> SpeechTokenizerSize:
        """The size that the tensors of a file have; as published where they do not say."""
        conv = shapes.get("encoder.conv1.weight", ())
        layers = {name.split(".")[2] for name in shapes if name.startswith("encoder.blocks.")}
        width = conv[0] if conv else 0
        if not layers or width % T3_HEAD_WIDTH or not T3_HEAD_WIDTH <= width <= MAX_WIDTH:
            return cls()
        return cls(width, len(layers))


def count_codes(num_samples: int) -> int:
    """How many codes a clip of that many samples has."""
    return -(-(num_samples // HOP) // FRAMES_PER_CODE)


class SpeechTokenizer(nn.Module):
    """A small transformer whose last eight numbers, each rounded to one of three levels, spell the code."""

    _mel_filters: Tensor
    window: Tensor

    def __init__(self, size: SpeechTokenizerSize | None = None) -> None:
        super().__init__()
        self.size = size or SpeechTokenizerSize()
        self.encoder = SpeechTokenizerEncoder(self.size)
        # Nested under the names that upstream gives them.
        self.quantizer = nn.ModuleDict(
            {"_codebook": nn.ModuleDict({"project_down": nn.Linear(self.size.width, SPEECH_CODE_DIGITS)})}
        )
        self.register_buffer("_mel_filters", mel_filters(SAMPLE_RATE, FRAME, SPEECH_TOKENIZER_MELS))
        self.register_buffer("window", torch.hann_window(FRAME))
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, folder: Path) -> SpeechTokenizer:
        """From an `s3gen` file, or from the base folder that holds it; of that file only the tokenizer is read."""
        from voxgraft.checkpoints.load import read_tensor_shapes, read_tensors
        from voxgraft.models.chatterbox.family import S3GEN_FILES
        from voxgraft.models.speech_model import find_part_file

        path = find_part_file(folder, S3GEN_FILES)
        stored = read_tensor_shapes(path, SPEECH_TOKENIZER_PREFIX)
        size = SpeechTokenizerSize.of(stored)
        with init_empty_weights():
            tokenizer = cls(size)
        shapes = {name: tuple(tensor.shape) for name, tensor in tokenizer.state_dict().items()}
        needed = {name: shape for name, shape in shapes.items() if name in stored or name not in COMPUTED_TENSORS}
        computed = {
            "_mel_filters": mel_filters(SAMPLE_RATE, FRAME, SPEECH_TOKENIZER_MELS),
            "window": torch.hann_window(FRAME),
        }
        tokenizer.load_state_dict(computed | read_tensors(path, needed, SPEECH_TOKENIZER_PREFIX), assign=True)
        return tokenizer.requires_grad_(False)

    def encode(self, waves: Sequence[Waveform], batch_frames: int = BATCH_FRAMES) -> list[NDArray[np.int64]]:
        """The codes of each clip, 0 to 6560, as many as `count_codes` says and as if it were alone. 16 kHz waveforms.

        Silence has codes like any other sound. `batch_frames`: frames (100 a second) in one batch, padding included.
        """
        return [quantize_codes(numbers).cpu().numpy() for numbers in self.numbers(waves, batch_frames)]

    @torch.no_grad()
    def numbers(self, waves: Sequence[Waveform], batch_frames: int = BATCH_FRAMES) -> list[Tensor]:
        """What is rounded to codes: eight numbers for each code of each clip. -> [T, 8] a clip"""
        mels = [self.log_mel(wave) for wave in validate_waveforms(waves, TOKENIZER_LIMITS)]
        return run_padded_batches(self, mels, batch_frames, lambda frames: count_codes(frames * HOP))

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, F, M], and where the clips are, [B, F] -> [B, T, 8]"""
        with exact_float32():
            project_down = self.quantizer.get_submodule("_codebook.project_down")
            down: Tensor = project_down(self.encoder(mel, mask))
        return down

    def log_mel(self, wave: Tensor) -> Tensor:
        """The clip as the network sees it, scaled by its own loudest moment. [N] -> [F, M]"""
        # Whisper drops the last frame, which reaches beyond the end of the clip.
        power = power_spectrum(wave.to(self.window), self.window, HOP)[:, :-1]  # [201, F]
        with exact_float32():
            mel = self._mel_filters @ power  # [M, F]
        # Whisper's scaling: 8 decades below the loudest moment, shifted to about -1 to 1.
        logarithm = mel.clamp_min(1e-10).log10()
        floored = torch.maximum(logarithm, logarithm.max() - 8.0)
        return ((floored + 4.0) / 4.0).T


def quantize_codes(numbers: Tensor) -> Tensor:
    """Each number rounded to -1, 0 or 1: the digits of the code, lowest first. [..., 8] -> [...]"""
    digits = (ROUNDING_SCALE * numbers.tanh()).round().long() + 1
    return (digits * SPEECH_CODE_LEVELS ** torch.arange(SPEECH_CODE_DIGITS, device=numbers.device)).sum(-1)


class SpeechTokenizerEncoder(nn.Module):
    """Two convolutions that halve the frames each, then transformer blocks."""

    def __init__(self, size: SpeechTokenizerSize) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(SPEECH_TOKENIZER_MELS, size.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(size.width, size.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(SpeechTokenizerBlock(size.width) for _ in range(size.layers))

    def forward(self, mel: Tensor, mask: Tensor | None) -> Tensor:
        """[B, F, M], [B, F] -> [B, T, W]"""
        x = mel.transpose(1, 2)  # [B, M, F]
        for conv in (self.conv1, self.conv2):
            # What the bias makes of the padding is wiped out again: a clip alone has zeros there.
            mask = None if mask is None else mask[:, ::2]
            x = _apply_mask(F.gelu(conv(x)), None if mask is None else mask[:, None])
        x = x.transpose(1, 2)  # [B, T, W]
        frequencies = ROPE_THETA ** (-torch.arange(0, T3_HEAD_WIDTH, 2, device=x.device).float() / T3_HEAD_WIDTH)
        angles = torch.arange(x.shape[1], device=x.device).float()[:, None] * frequencies  # [T, D / 2]
        angles = torch.cat([angles, angles], dim=-1)
        turns = torch.stack([angles.cos(), angles.sin()])  # [2, T, D]
        for block in self.blocks:
            x = block(x, turns, mask)
        return x


class SpeechTokenizerBlock(nn.Module):
    """Attention and feed-forward, each normed before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = FsmnAttention(width)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, W], rotations, [B, T] -> [B, T, W]"""
        x = x + self.attn(self.attn_ln(x), turns, mask)
        fed: Tensor = self.mlp(self.mlp_ln(x))
        return x + fed


class FsmnAttention(nn.Module):
    """Attention over the whole clip, plus a memory of the near surroundings: the values through a depthwise filter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // T3_HEAD_WIDTH
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(
            width, width, SPEECH_TOKENIZER_KERNEL, padding=SPEECH_TOKENIZER_KERNEL // 2, groups=width, bias=False
        )

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, W], rotations, [B, T] -> [B, T, W]"""
        value = _apply_mask(self.value(x), None if mask is None else mask[:, :, None])
        memory = value + self.fsmn_block(value.transpose(1, 2)).transpose(1, 2)
        query, key = rotate_heads(self._split(self.query(x)), turns), rotate_heads(self._split(self.key(x)), turns)
        key_mask = None if mask is None else mask[:, None, None, :]
        context = F.scaled_dot_product_attention(query, key, self._split(value), attn_mask=key_mask)  # [B, H, T, D]
        attended: Tensor = self.out(context.transpose(1, 2).flatten(2)) + memory
        return attended

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, W] -> [B, H, T, D]"""
        return x.view(*x.shape[:2], self.heads, T3_HEAD_WIDTH).transpose(1, 2)


def rotate_heads(x: Tensor, turns: Tensor) -> Tensor:
    """Each pair (i, i + D / 2) turned by the angle of its position. [B, H, T, D] -> the same"""
    first, second = x.chunk(2, dim=-1)
    return x * turns[0] + torch.cat([-second, first], dim=-1) * turns[1]


def _apply_mask(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


WINDOW_FRAMES = 160
# 1.3 windows a second.
STEP_FRAMES = 77
# A last window that the clip does not fill counts if this much of it is filled.
MIN_WINDOW_FILL = 0.8
TRIM_DB = 20.0
WINDOWS_PER_BATCH = 256
VOICE_LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=FRAME)


class VoiceEncoder(nn.Module):
    """Three LSTM layers over windows of 1.6 s; a clip's voice is the mean of its windows."""

    mel_filters: Tensor
    hann: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(VOICE_ENCODER_MELS, VOICE_ENCODER_WIDTH, VOICE_ENCODER_LAYERS, batch_first=True)
        self.proj = nn.Linear(VOICE_ENCODER_WIDTH, VOICE_ENCODER_WIDTH)
        # Only upstream's training reads these two, but its files hold them.
        self.similarity_weight = nn.Parameter(torch.tensor([10.0]))
        self.similarity_bias = nn.Parameter(torch.tensor([-5.0]))
        self.register_buffer("mel_filters", mel_filters(SAMPLE_RATE, FRAME, VOICE_ENCODER_MELS), persistent=False)
        self.register_buffer("hann", torch.hann_window(FRAME), persistent=False)
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, path: Path) -> VoiceEncoder:
        """From a file, or from the base folder that holds it."""
        from voxgraft.checkpoints.load import read_tensors
        from voxgraft.models.chatterbox.family import VOICE_ENCODER_FILES
        from voxgraft.models.speech_model import find_part_file

        with no_init_weights():
            encoder = cls()
        shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
        encoder.load_state_dict(read_tensors(find_part_file(path, VOICE_ENCODER_FILES), shapes))
        return encoder

    @torch.no_grad()
    def embed(self, waves: Sequence[Waveform], *, trim: bool = True, step_frames: int = STEP_FRAMES) -> Tensor:
        """The voice of each clip, as if it were alone. 16 kHz waveforms -> [clips, E]

        A clip shorter than a window is filled up with silence, as upstream does; one without any sound is refused.
        """
        device = self.proj.weight.device
        windows = []
        for number, wave in enumerate(validate_waveforms(waves, VOICE_LIMITS), 1):
            where = f"clip {number} of {len(waves)}"
            if compute_peak_frame_power(wave) <= SILENCE_POWER:
                found = f"{VOICE_LIMITS.describe(len(wave))}, all of them silent"
                raise AudioError("audio-silent", found, expected="a voice", where=where)
            if trim:  # silence at the ends is not the voice's
                start, end = find_sound_bounds(wave, TRIM_DB)
                wave = validate_waveform(wave[start:end], VOICE_LIMITS, f"{where}, without the silence at its ends")
            windows.append(split_into_windows(self.mel(wave), step_frames))
        if not windows:
            return torch.zeros(0, VOICE_ENCODER_WIDTH, device=device)
        # Windows of all clips share batches; an LSTM computes each row alone.
        chunks = torch.split(torch.cat(windows), WINDOWS_PER_BATCH)
        voices = torch.cat([self(chunk.to(device)) for chunk in chunks])  # [all W, E]
        means = [own.mean(0) for own in torch.split(voices, [len(own) for own in windows])]
        return F.normalize(torch.stack(means), dim=-1)

    def forward(self, windows: Tensor) -> Tensor:
        """The voice in each window. [W, 160, M] -> [W, E]"""
        with exact_float32():
            _, (last_states, _) = self.lstm(windows)  # [layers, W, E]
            return F.normalize(torch.relu(self.proj(last_states[-1])), dim=-1)

    def mel(self, wave: Tensor) -> Tensor:
        """Mel power, not its logarithm. [N] on the CPU -> [F, M] on the CPU"""
        power = power_spectrum(wave, self.hann.cpu(), HOP)  # [201, F]
        with exact_float32():
            return (self.mel_filters.cpu() @ power).T


def split_into_windows(mel: Tensor, step_frames: int = STEP_FRAMES) -> Tensor:
    """Overlapping windows: every full one, and the next if it is filled enough. [F, M] -> [W, 160, M]"""
    num_frames = len(mel)
    num_windows = max(0, (num_frames - WINDOW_FRAMES) // step_frames + 1)
    left = num_frames - num_windows * step_frames
    if num_windows == 0 or left >= MIN_WINDOW_FILL * WINDOW_FRAMES:
        num_windows += 1
    needed = (num_windows - 1) * step_frames + WINDOW_FRAMES
    filled = F.pad(mel, (0, 0, 0, max(0, needed - num_frames)))
    return filled.unfold(0, WINDOW_FRAMES, step_frames)[:num_windows].transpose(1, 2)


PROMPT_SECONDS = 6
# Of a recording of a voice. The original uses all of it; more than this takes time and changes little.
MIN_VOICE_SECONDS, MAX_VOICE_SECONDS = 0.5, 300
# What S3Gen takes of it.
REFERENCE_SECONDS, REFERENCE_RATE = 10, 24_000


def cut_reference(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """The first ten seconds of a recording, as S3Gen uses it. -> at most 240,000 samples at 24 kHz"""
    # A second more than is kept, so that resampling ends in the recording and not at a cut.
    return resample(samples[: (REFERENCE_SECONDS + 1) * rate], rate, REFERENCE_RATE)[
        : REFERENCE_SECONDS * REFERENCE_RATE
    ]


class T3ClipEncoder(ClipEncoder):
    """Voice encoder and speech tokenizer of a base folder."""

    def __init__(self, voice: VoiceEncoder, tokenizer: SpeechTokenizer) -> None:
        self.voice, self.tokenizer = voice, tokenizer

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> T3ClipEncoder:
        """From the base folder: ve.pt and s3gen.pt, or the same as safetensors."""
        return cls(VoiceEncoder.load(folder).to(device), SpeechTokenizer.load(folder).to(device))

    def encode(self, waves: Sequence[Waveform]) -> list[Clip]:
        """The prompt is spelled from the first six seconds alone, as when speaking: later sound would colour it."""
        speakers = self.voice.embed(waves).cpu().numpy()
        longest = PROMPT_SECONDS * self.sample_rate
        whole = self.tokenizer.encode(waves)
        long = [index for index, wave in enumerate(waves) if len(wave) > longest]
        starts = dict(zip(long, self.tokenizer.encode([waves[index][:longest] for index in long]), strict=True))
        return [
            Clip(codes, {"speaker": speaker, "prompt": starts.get(index, codes)[:MAX_PROMPT_CODES]})
            for index, (codes, speaker) in enumerate(zip(whole, speakers, strict=True))
        ]

    def encode_voice(self, samples: NDArray[np.float32], rate: int) -> Clip:
        """A recording of any length as a voice to speak with: six seconds of codes, ten of sound, the voice of all.

        Unlike a clip to learn from, it may be longer than the tokenizer takes.
        """
        limits = WaveformLimits(rate, min_samples=math.ceil(MIN_VOICE_SECONDS * rate))
        wave = validate_waveform(samples[: MAX_VOICE_SECONDS * rate], limits, "the recording of the voice").numpy()
        resampled = resample(wave, rate, self.sample_rate)
        speaker = self.voice.embed([resampled])[0].cpu().numpy()
        prompt = self.tokenizer.encode([resampled[: PROMPT_SECONDS * self.sample_rate]])[0][:MAX_PROMPT_CODES]
        voice = {"speaker": speaker, "prompt": prompt, REFERENCE_AUDIO: cut_reference(wave, rate)}
        return Clip(prompt, voice)
