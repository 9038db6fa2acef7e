"""The tiny family's networks: a T3 with its voices, and a codec from recordings to codes and back.

The language model is Chatterbox's T3 with a constant prompt; tensors have T3's names. Its voice is a one-hot speaker
of a table, or a vector that the codec's speaker encoder computes of a recording. The codec is convolutions around
finite scalar quantization, with an inverse STFT at the end.

Shapes: B utterances or clips, S samples, F mel frames (100 a second), N codes (25 a second in a base), L digits of a
code, V numbers of a voice vector.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.features import (
    HOP,
    LogMel,
    Waveform,
    WaveformLimits,
    batch_by_length,
    exact_float32,
    validate_waveforms,
)
from voxgraft.core.errors import AudioError, CheckpointError, FileError, GraftError
from voxgraft.models.base import Clip, ClipEncoder, Latents, SequenceSpec, Vocoder, require_a_voice_each
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.chatterbox.model import T3, T3ConditionBatch
from voxgraft.models.tiny.family import (
    CODEC_NAME,
    VOICES_NAME,
    find_speaker_index,
    read_voices,
    tiny_sequence_spec,
)
from voxgraft.nn.layers import no_init_weights

# T3 has an input for emotion; the tiny base was trained with this one value, so nothing else would mean anything.
FIXED_EMOTION = 0.5


class TinyT3(T3):
    """T3 at any size, conditioned on a speaker's number, or on a vector of a recording (`clones_voices`)."""

    def __init__(self, size: T3Size, *, clones_voices: bool = False) -> None:
        super().__init__(size)
        self.clones_voices = clones_voices

    @property
    def spec(self) -> SequenceSpec:
        return tiny_sequence_spec(self.num_text_ids, self.size)

    def collate(self, conditions: Sequence[Any]) -> T3ConditionBatch:
        if self.clones_voices:
            return self._collate_vectors(conditions)
        num_speakers = self.size.speaker_width
        for condition in conditions:
            speaker = np.asarray(condition)
            if speaker.shape != (1,) or not np.issubdtype(speaker.dtype, np.integer):
                found = f"a speaker as {speaker.dtype} of shape {list(speaker.shape)}"
                raise GraftError("condition-form", found, expected="a list with one whole number")
            if not 0 <= int(speaker[0]) < num_speakers:
                found = f"speaker {int(speaker[0])}"
                raise GraftError("condition-form", found, expected=f"0 to {num_speakers - 1}, as in the base")
        # A one-hot vector through T3's speaker layer is a table of speakers; prompt and emotion are constants.
        numbers = torch.tensor([int(condition[0]) for condition in conditions])  # [B]
        return build_voice_conditions(F.one_hot(numbers, num_speakers).float())

    def _collate_vectors(self, conditions: Sequence[Any]) -> T3ConditionBatch:
        width = self.size.speaker_width
        voices = [np.asarray(condition) for condition in conditions]
        for voice in voices:
            if voice.shape != (width,) or voice.dtype.kind != "f" or not np.isfinite(voice).all():
                found = f"a voice as {voice.dtype} of shape {list(voice.shape)}"
                raise GraftError("condition-form", found, expected=f"{width} finite numbers, as of the base's encoder")
        return build_voice_conditions(torch.from_numpy(np.stack(voices).astype(np.float32)))


def build_voice_conditions(voices: Tensor) -> T3ConditionBatch:
    """Conditions of utterances whose voices are given, [B, speakers or V]; prompt and emotion are constants."""
    zeros = torch.zeros(len(voices), dtype=torch.long, device=voices.device)
    return T3ConditionBatch(
        speaker=voices,
        prompt=zeros[:, None],  # [B, 1]
        prompt_lengths=torch.ones_like(zeros),  # [B]
        emotion=torch.full_like(zeros, FIXED_EMOTION, dtype=torch.float32),  # [B]
    )


SAMPLE_RATE = 16_000
CODE_HZ = 25
SAMPLES_PER_CODE = SAMPLE_RATE // CODE_HZ
STFT_WINDOW = 4 * HOP
# Of a spectral magnitude: an untrained head must not overflow.
MAX_LOG_MAGNITUDE = 6.0
CODEC_FORMAT = "voxgraft-codec-1"


@dataclass(frozen=True, slots=True)
class TinyCodecConfig:
    """Sizes. A code is a number whose digits, one in each of `levels`, are the rounded latent."""

    speakers: tuple[str, ...]
    """Names of the table; none in a codec that computes voices of recordings."""
    levels: tuple[int, ...] = (8, 8, 8, 5)
    num_mels: int = 80
    encoder_width: int = 256
    decoder_width: int = 384
    voice_width: int = 256
    """Of the decoder at 50 and 100 frames a second."""
    encoder_blocks: tuple[int, ...] = (2, 3, 2)
    """At 100, 50 and 25 frames a second. With two stages codes have 50 Hz; a base needs 25."""
    decoder_blocks: tuple[int, ...] = (3, 2, 4)
    """At 25, 50 and 100 frames a second."""
    voice_vector: int = 0
    """Numbers of a voice vector, which the speaker encoder computes of a recording; 0: the table's voices."""
    speaker_width: int = 192
    """Of the speaker encoder."""
    speaker_blocks: int = 4

    @property
    def frames_per_code(self) -> int:
        """Every stage but the first halves the rate."""
        return 1 << (len(self.encoder_blocks) - 1)


class TinyCodec(nn.Module):
    """Encoder, rounding, decoder. Float32; deterministic on a CPU."""

    def __init__(self, config: TinyCodecConfig) -> None:
        super().__init__()
        self.config = config
        self.speakers = config.speakers
        self.num_codes = math.prod(config.levels)
        self.samples_per_code = HOP * config.frames_per_code
        self.encoder = CodecEncoder(config)
        self.digits = FiniteScalarQuantizer(config.levels)
        self.decoder = CodecDecoder(config)
        self.speaker_encoder = VoiceVectorEncoder(config) if config.voice_vector else None

    @property
    def clones_voices(self) -> bool:
        """Whether voices are computed of recordings."""
        return self.speaker_encoder is not None

    @classmethod
    def open(cls, path: Path) -> Self:
        """A codec from its file, which says its own sizes; float32, ready to use."""
        from voxgraft.checkpoints import open_checkpoint
        from voxgraft.checkpoints.load import read_tensors

        with open_checkpoint(path) as checkpoint:
            notes = dict(checkpoint.metadata or {})
        try:
            stored: dict[str, Any] = json.loads(notes["codec"])
            if (found := stored.pop("format")) != CODEC_FORMAT:
                raise ValueError(f"format {found!r}")
            values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
            config = TinyCodecConfig(**values)
            if bool(config.speakers) == bool(config.voice_vector):
                raise ValueError(f"{len(config.speakers)} speakers and a voice vector of {config.voice_vector} numbers")
            if not config.encoder_blocks or len(config.encoder_blocks) != len(config.decoder_blocks):
                raise ValueError(f"stages {config.encoder_blocks} and {config.decoder_blocks}")
        except (AttributeError, KeyError, TypeError, ValueError) as fault:
            expected = f"metadata in the format {CODEC_FORMAT}, with speakers, levels and widths"
            found = f"the file's metadata has no {fault}" if isinstance(fault, KeyError) else f"{fault}"
            raise CheckpointError("codec-notes", found, expected=expected, where=path) from fault
        with no_init_weights():
            codec = cls(config)
        shapes = {name: tuple(tensor.shape) for name, tensor in codec.state_dict().items()}
        codec.load_state_dict(read_tensors(path, shapes))
        return codec.eval().requires_grad_(False)

    def save(self, path: Path) -> None:
        """Write the weights in half precision, with the sizes in the file's own notes."""
        from safetensors.torch import save_file

        # One entry, since safetensors writes several in no fixed order.
        notes = {"codec": json.dumps({"format": CODEC_FORMAT, **asdict(self.config)})}
        # Half the size for the file that comes with the package; it is loaded as float32.
        state = {name: tensor.detach().to("cpu", torch.float16) for name, tensor in self.state_dict().items()}
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path, metadata=notes)

    @torch.no_grad()
    def encode(self, waves: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Codes [B, N] and how many of each row count, [B]: one for every 40 ms that has begun (at 25 Hz).

        `waves` are [B, S]; `lengths` says how many samples of each row count (all of them without it). On a CPU every
        clip goes through alone, so that its codes do not depend on its neighbours by one bit.
        """
        if waves.dim() != 2 or not waves.is_floating_point():
            found = f"a tensor {list(waves.shape)} of {str(waves.dtype).removeprefix('torch.')}"
            expected = "waves [clips, samples] of floating-point samples at 16,000 Hz"
            raise AudioError("audio-shape", found, expected=expected, where="the tiny codec")
        full = torch.full((waves.shape[0],), waves.shape[1], device=waves.device)
        lengths = full if lengths is None else lengths.to(waves.device)
        if lengths.shape != full.shape or bool((lengths < 1).any()) or bool((lengths > waves.shape[1]).any()):
            found = f"lengths {lengths.tolist()[:8]} for waves {list(waves.shape)}"
            raise AudioError("audio-too-short", found, expected="1 sample or more of each clip", where="the tiny codec")
        counts = -(-lengths // self.samples_per_code)
        if waves.device.type == "cpu":
            rows = [self._codes(wave[None, :length])[0] for wave, length in zip(waves, lengths.tolist(), strict=True)]
            return nn.utils.rnn.pad_sequence(rows, batch_first=True), counts
        return self._codes(waves, counts), counts

    def _codes(self, waves: Tensor, counts: Tensor | None = None) -> Tensor:
        return self.digits.numbers(self.digits.rounded(self.latents(waves, counts)))

    def latents(self, waves: Tensor, counts: Tensor | None = None) -> Tensor:
        """What is rounded, [B, N, L]; `counts` says how many codes each row has."""
        latents: Tensor = self.encoder(F.pad(waves, (0, -waves.shape[1] % self.samples_per_code)), counts)
        return latents

    @torch.no_grad()
    def embed_voices(self, waves: Sequence[Tensor]) -> Tensor:
        """One unit vector per recording [S], each computed as if it were alone. [B, V]"""
        assert self.speaker_encoder is not None
        return torch.cat([self.speaker_encoder(wave[None]) for wave in waves])

    @torch.no_grad()
    def decode(self, codes: Tensor, voice: str | Tensor, lengths: Tensor | None = None) -> Tensor:
        """Codes [N] or [B, N] to waves [640 N] or [B, 640 N] in a voice; zeros behind each row's length.

        The voice is a speaker's name of the table, or a vector [V] or [B, V].
        """
        rows = codes.shape[0] if codes.dim() == 2 else 1
        if isinstance(voice, str):
            voices = torch.full((rows,), find_speaker_index(self.speakers, voice, "the tiny codec"))
        else:
            voices = voice.expand(rows, -1)
        outside = (codes < 0) | (codes >= self.num_codes)
        if bool(outside.any()):
            found = f"code {int(codes[outside][0])}"
            raise AudioError("codes-outside", found, expected=f"0 to {self.num_codes - 1}", where="the tiny codec")
        batch = codes if codes.dim() == 2 else codes[None]
        waves: Tensor = self.decoder(self.digits.codes_to_digits(batch), voices.to(codes.device), lengths)
        return waves if codes.dim() == 2 else waves[0]


class FiniteScalarQuantizer(nn.Module):
    """Finite scalar quantization: every latent is squeezed into its range and rounded to a digit."""

    levels: Tensor
    places: Tensor

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        counts = torch.tensor(levels)
        self.register_buffer("levels", counts, persistent=False)
        self.register_buffer("places", torch.tensor([1, *levels[:-1]]).cumprod(0), persistent=False)

    def rounded(self, latents: Tensor) -> Tensor:
        """Digits around zero; gradients pass as if nothing had been rounded."""
        half = (self.levels - 1) * 0.5005  # a little more than the range, so that the last digits can be reached
        offset = (self.levels % 2 == 0) * 0.5  # an even number of digits has none at zero
        shift = torch.atanh(offset / half)
        squeezed = torch.tanh(latents.float() + shift) * half - offset
        # The straight-through estimator: rounded forwards, the identity backwards.
        return squeezed + (squeezed.round() - squeezed).detach()

    def numbers(self, digits: Tensor) -> Tensor:
        """[..., L] -> [...]"""
        return ((digits.round().long() + self.levels // 2) * self.places).sum(-1)

    def codes_to_digits(self, numbers: Tensor) -> Tensor:
        """[...] -> [..., L]"""
        digits = (numbers[..., None] // self.places) % self.levels
        return (digits - self.levels // 2).float()

    def scale_digits(self, digits: Tensor) -> Tensor:
        """Digits as the decoder takes them, between -1 and 1."""
        return digits / (self.levels // 2)


class CodecBlock(nn.Module):
    """Depthwise convolution over time, then two layers over channels, beside a straight way."""

    def __init__(self, width: int, num_speakers: int = 0, voice_vector: int = 0) -> None:
        super().__init__()
        self.mix = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.3))
        self.voice: nn.Module | None = nn.Embedding(num_speakers, width) if num_speakers else None
        if voice_vector:
            self.voice = nn.Linear(voice_vector, width)

    def forward(self, frames: Tensor, mask: Tensor | None, speakers: Tensor | None = None) -> Tensor:
        """[B, F, C] -> [B, F, C]; `speakers` are numbers [B] or vectors [B, V]."""
        # Convolutions want channels before time, linear layers and norms after it.
        mixed = self.mix(frames.transpose(1, 2)).transpose(1, 2)
        if self.voice is not None and speakers is not None:
            mixed = mixed + self.voice(speakers)[:, None]
        added = self.narrow(F.gelu(self.widen(self.norm(mixed))))
        return apply_mask(frames + self.scale * added, mask)


class VoiceVectorEncoder(nn.Module):
    """Whose voice a recording has: frames, and what matters of them over the whole recording (attention pooling)."""

    def __init__(self, config: TinyCodecConfig) -> None:
        super().__init__()
        width = config.speaker_width
        self.mel = LogMel(config.num_mels)
        # 50 frames a second are enough for a voice.
        self.enter = nn.Conv1d(config.num_mels, width, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(CodecBlock(width) for _ in range(config.speaker_blocks))
        self.norm = nn.LayerNorm(width)
        self.attend = nn.Linear(width, width)
        self.leave = nn.Linear(2 * width, config.voice_vector)

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Waves [B, S], samples that count of each [B] -> unit vectors [B, V]."""
        padded = F.pad(waves, (0, -waves.shape[1] % (2 * HOP)))
        mask = build_frame_mask(None if lengths is None else -(-lengths // (2 * HOP)), padded.shape[1] // (2 * HOP))
        mel = apply_mask(self.mel(padded), repeat_mask(mask, 2))
        frames = apply_mask(self.enter(mel.transpose(1, 2)).transpose(1, 2), mask)
        for block in self.blocks:
            frames = block(frames, mask)
        frames = self.norm(frames).float()
        scores = self.attend(frames).float()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(1)  # over time, each channel alone
        mean = (weights * frames).sum(1)
        spread = (weights * (frames - mean[:, None]).square()).sum(1).add(1e-5).sqrt()
        return F.normalize(self.leave(torch.cat([mean, spread], 1)).float(), dim=-1)


class CodecEncoder(nn.Module):
    """Log-mel frames, halved in rate by every stage but the first."""

    def __init__(self, config: TinyCodecConfig) -> None:
        super().__init__()
        width = config.encoder_width
        self.mel = LogMel(config.num_mels)
        self.enter = nn.Conv1d(config.num_mels, width, 5, padding=2)
        self.frames_per_code = config.frames_per_code
        self.halving = nn.ModuleList(
            nn.Conv1d(width, width, 2, stride=2) for _ in range(len(config.encoder_blocks) - 1)
        )
        self.stages = nn.ModuleList(nn.ModuleList(CodecBlock(width) for _ in range(n)) for n in config.encoder_blocks)
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, len(config.levels))

    def forward(self, waves: Tensor, counts: Tensor | None) -> Tensor:
        """[B, S] -> [B, N, L]; S is a multiple of a code's samples."""
        times = self.frames_per_code
        mask = build_frame_mask(counts, waves.shape[1] // (HOP * times))  # [B, N, 1]
        frames = apply_mask(self.mel(waves), repeat_mask(mask, times))  # [B, F, M]
        frames = apply_mask(self.enter(frames.transpose(1, 2)).transpose(1, 2), repeat_mask(mask, times))
        for number, stage in enumerate(self.stages):
            if number:
                frames = self.halving[number - 1](frames.transpose(1, 2)).transpose(1, 2)
            own = repeat_mask(mask, times >> number)
            frames = apply_mask(frames, own)
            for block in stage.children():
                frames = block(frames, own)
        latents: Tensor = self.leave(self.norm(frames))
        return latents


class CodecDecoder(nn.Module):
    """Digits, doubled in rate by every stage but the first, to a spectrum, to a wave."""

    window: Tensor

    def __init__(self, config: TinyCodecConfig) -> None:
        super().__init__()
        stages = len(config.decoder_blocks)
        widths = (config.decoder_width, *[config.voice_width] * (stages - 1))
        speakers = len(config.speakers)
        self.frames_per_code = config.frames_per_code
        self.digits = FiniteScalarQuantizer(config.levels)
        self.enter = nn.Conv1d(len(config.levels), widths[0], 3, padding=1)
        self.stages = nn.ModuleList(
            nn.ModuleList(CodecBlock(width, speakers, config.voice_vector) for _ in range(count))
            for width, count in zip(widths, config.decoder_blocks, strict=True)
        )
        self.doubling = nn.ModuleList(nn.Linear(widths[index], 2 * widths[index + 1]) for index in range(stages - 1))
        self.norm = nn.LayerNorm(widths[-1])
        self.leave = nn.Linear(widths[-1], STFT_WINDOW + 2)
        self.register_buffer("window", torch.hann_window(STFT_WINDOW), persistent=False)

    def forward(self, digits: Tensor, speakers: Tensor, counts: Tensor | None = None) -> Tensor:
        """[B, N, L], speakers [B] or vectors [B, V] -> [B, 640 N]"""
        mask = build_frame_mask(counts, digits.shape[1])
        frames = apply_mask(self.digits.scale_digits(digits), mask)
        frames = apply_mask(self.enter(frames.transpose(1, 2)).transpose(1, 2), mask)
        for number, stage in enumerate(self.stages):
            if number:
                frames = self.doubling[number - 1](frames).unflatten(-1, (2, -1)).flatten(1, 2)
            own = repeat_mask(mask, 1 << number)
            frames = apply_mask(frames, own)
            for block in stage.children():
                frames = block(frames, own, speakers)
        times = self.frames_per_code
        waves = self._wave(self.leave(self.norm(frames)).float(), repeat_mask(mask, times))
        return apply_mask(waves.view(len(waves), -1, HOP * times), mask).flatten(1)

    def _wave(self, spectrum: Tensor, mask: Tensor | None) -> Tensor:
        """Log magnitudes and phases [B, F, 2 K] to overlapping frames, added up. -> [B, 160 F]"""
        magnitude, phase = spectrum.chunk(2, -1)
        magnitude = magnitude.clamp(max=MAX_LOG_MAGNITUDE).exp()
        bins = torch.complex(magnitude * phase.cos(), magnitude * phase.sin())
        pieces = torch.fft.irfft(bins, STFT_WINDOW)  # [B, F, W]
        # Divided by the windows' own sum, so that frames which overlap differently at the ends keep their level.
        summed = overlap_add(apply_mask(pieces * self.window, mask))
        weight = overlap_add(apply_mask(self.window.square().expand(1, pieces.shape[1], -1), mask))
        margin = (STFT_WINDOW - HOP) // 2
        return summed[:, margin:-margin] / weight[:, margin:-margin].clamp_min(1e-3)


def overlap_add(pieces: Tensor) -> Tensor:
    """Pieces [B, F, W] that begin every W / 4 samples, summed where they overlap. -> [B, 160 (F + 3)]"""
    quarters = pieces.reshape(*pieces.shape[:2], 4, -1)  # [B, F, 4, 160]
    lines = [F.pad(quarters[:, :, quarter], (0, 0, quarter, 3 - quarter)) for quarter in range(4)]
    return torch.stack(lines).sum(0).flatten(1)


def build_frame_mask(counts: Tensor | None, longest: int) -> Tensor | None:
    """Which frames of a batch count, [B, N, 1]; None where all do."""
    if counts is None:
        return None
    return (torch.arange(longest, device=counts.device) < counts[:, None])[..., None]


def repeat_mask(mask: Tensor | None, times: int) -> Tensor | None:
    """The mask at a higher rate."""
    return mask if mask is None or times == 1 else mask.repeat_interleave(times, 1)


def apply_mask(frames: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros where the mask is false: what a convolution would see behind the end of a clip that is alone."""
    return frames if mask is None else frames * mask


BATCH_SAMPLES = 60 * SAMPLE_RATE
CODEC_LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=SAMPLE_RATE // CODE_HZ)
# Of a recording, the part that its voice is computed of: a voice needs no more.
MAX_VOICE_SAMPLES = 12 * SAMPLE_RATE


class TinyClipEncoder(ClipEncoder):
    """The codec of a base folder, and the names of its speakers."""

    sample_rate = SAMPLE_RATE

    def __init__(self, codec: TinyCodec, speakers: Sequence[str]) -> None:
        self.codec, self.speakers = codec, tuple(speakers)

    def encode(self, waves: Sequence[Waveform], speakers: Sequence[str] | None = None) -> list[Clip]:
        """Codes, and the voice of each clip: computed of it, or a speaker of the table.

        `speakers` says by name who speaks in each, for a table only; without it all are the first of the table.
        """
        checked = validate_waveforms(waves, CODEC_LIMITS)
        device = next(self.codec.parameters()).device
        if self.codec.clones_voices:
            with exact_float32():
                vectors = self.codec.embed_voices([wave[:MAX_VOICE_SAMPLES].to(device) for wave in checked])
            voices = [{"speaker": vector} for vector in vectors.cpu().numpy()]
        else:
            names = [self.speakers[0]] * len(waves) if speakers is None else list(speakers)
            if len(names) != len(waves):
                found = f"{len(waves)} clips and {len(names)} speakers"
                raise GraftError("packing", found, expected="the same number of each")
            voices = [dict(build_voice_clip(find_speaker_index(self.speakers, name)).voice) for name in names]
        codes: dict[int, NDArray[np.int64]] = {}
        for indices in batch_by_length([len(wave) for wave in checked], BATCH_SAMPLES):
            own = [checked[index] for index in indices]
            lengths = torch.tensor([len(wave) for wave in own], device=device)
            batch = nn.utils.rnn.pad_sequence(own, batch_first=True).to(device)
            with exact_float32():
                padded, counts = self.codec.encode(batch, lengths)  # [B, N], [B]
            for index, row, count in zip(indices, padded.cpu().numpy(), counts.tolist(), strict=True):
                codes[index] = row[:count].astype(np.int64)
        return [Clip(codes[index], voice) for index, voice in enumerate(voices)]


def load_codec(folder: Path, device: torch.device | str = "cpu") -> tuple[TinyCodec, tuple[str, ...]]:
    """Codec and names of the voices of a base folder; where they are a table, it must be the codec's, in its order."""
    from voxgraft.models.speech_model import find_part_file

    voices = read_voices(folder)
    path = find_part_file(folder, (CODEC_NAME,))
    codec = TinyCodec.open(path).to(device)
    if codec.samples_per_code != SAMPLES_PER_CODE:
        found = f"codes at {SAMPLE_RATE / codec.samples_per_code:g} Hz"
        raise CheckpointError("codec-notes", found, expected=f"{CODE_HZ} Hz, as every tiny base has", where=path)
    if codec.clones_voices != voices.clones_voices or codec.config.voice_vector != voices.width:
        found = f"{VOICES_NAME} has {f'vectors of {voices.width} numbers' if voices.clones_voices else 'a table'}"
        has = f"vectors of {codec.config.voice_vector} numbers" if codec.clones_voices else "a table of speakers"
        raise FileError("voices-broken", found, expected=f"{has}, as in {CODEC_NAME}", where=folder)
    if not voices.clones_voices and voices.names != tuple(codec.speakers):  # a number means the same row in both
        found = f"{VOICES_NAME} names {', '.join(voices.names)}"
        expected = f"{', '.join(codec.speakers)}, as in {CODEC_NAME}"
        raise FileError("voices-broken", found, expected=expected, where=folder)
    return codec, voices.names


def build_voice_clip(voice: int | NDArray[np.float32]) -> Clip:
    """A voice by its number in the table, or by its vector."""
    speaker = np.array([voice], dtype=np.int32) if isinstance(voice, int) else voice
    return Clip(voice={"speaker": speaker})


def build_tiny_condition(prompt: Clip) -> NDArray[Any]:
    """To sound like the speaker of that clip."""
    return np.asarray(prompt.voice["speaker"])


class TinyVocoder(Vocoder):
    """The codec of a base folder."""

    sample_rate = SAMPLE_RATE

    def __init__(self, codec: TinyCodec, speakers: Sequence[str]) -> None:
        self.codec, self.speakers = codec, tuple(speakers)

    @torch.no_grad()
    def sound(
        self,
        codes: Sequence[Sequence[int]],
        voices: Sequence[Clip],
        latents: Sequence[Latents] | None = None,  # noqa: ARG002 (codes say everything)
    ) -> list[NDArray[np.float32]]:
        """One utterance after another: their neighbours' padding would colour their ends."""
        require_a_voice_each(codes, voices)
        device = next(self.codec.parameters()).device
        waves = []
        for own, clip in zip(codes, voices, strict=True):
            wave = torch.zeros(0)
            if len(own):
                speaker = np.asarray(clip.voice["speaker"])
                voice: str | Tensor
                if self.codec.clones_voices:
                    voice = torch.from_numpy(speaker.astype(np.float32)).to(device)
                else:
                    voice = self.speakers[int(speaker[0])]
                with exact_float32():
                    wave = self.codec.decode(torch.tensor(list(own), device=device), voice)
            waves.append(wave.reshape(-1).float().cpu().numpy())
        return waves
