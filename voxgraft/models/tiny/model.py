"""The tiny family's networks: a T3 with voices by number, and a codec from recordings to codes and back.

The language model is Chatterbox's T3 with a one-hot speaker instead of a voice vector and a constant prompt; tensors
have T3's names. The codec is convolutions around finite scalar quantisation, with an inverse STFT at the end.

Shapes: B utterances or clips, S samples, F mel frames (100 a second), N codes (25 a second), L digits of a code.
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


@dataclass(frozen=True, slots=True)
class TinyCondition:
    """How one utterance should sound: like this speaker of the table."""

    speaker: NDArray[np.integer[Any]]  # [1]


class TinyT3(T3):
    """T3 at any size, conditioned on a speaker's number."""

    @property
    def spec(self) -> SequenceSpec:
        return tiny_sequence_spec(self.num_text_ids, self.size)

    def collate(self, conditions: Sequence[Any]) -> T3ConditionBatch:
        num_speakers = self.size.speaker_width
        for condition in conditions:
            speaker = np.asarray(condition.speaker)
            if speaker.shape != (1,) or not np.issubdtype(speaker.dtype, np.integer):
                found = f"a speaker as {speaker.dtype} of shape {list(speaker.shape)}"
                raise GraftError("condition-form", found, expected="a list with one whole number")
            if not 0 <= int(speaker[0]) < num_speakers:
                found = f"speaker {int(speaker[0])}"
                raise GraftError("condition-form", found, expected=f"0 to {num_speakers - 1}, as in the base")
        # A one-hot vector through T3's speaker layer is a table of speakers; prompt and emotion are constants.
        numbers = torch.tensor([int(condition.speaker[0]) for condition in conditions])  # [B]
        return T3ConditionBatch(
            speaker=F.one_hot(numbers, num_speakers).float(),  # [B, speakers]
            prompt=torch.zeros_like(numbers)[:, None],  # [B, 1]
            prompt_lengths=torch.ones_like(numbers),  # [B]
            emotion=torch.full_like(numbers, FIXED_EMOTION, dtype=torch.float32),  # [B]
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
    levels: tuple[int, ...] = (8, 8, 8, 5)
    num_mels: int = 80
    encoder_width: int = 256
    decoder_width: int = 384
    voice_width: int = 256
    """Of the decoder at 50 and 100 frames a second."""
    encoder_blocks: tuple[int, ...] = (2, 3, 2)
    """At 100, 50 and 25 frames a second."""
    decoder_blocks: tuple[int, ...] = (3, 2, 4)
    """At 25, 50 and 100 frames a second."""


class TinyCodec(nn.Module):
    """Encoder, rounding, decoder. Float32; deterministic on a CPU."""

    def __init__(self, config: TinyCodecConfig) -> None:
        super().__init__()
        self.config = config
        self.speakers = config.speakers
        self.num_codes = math.prod(config.levels)
        self.encoder = CodecEncoder(config)
        self.digits = FiniteScalarQuantizer(config.levels)
        self.decoder = CodecDecoder(config)

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
        except (AttributeError, KeyError, TypeError, ValueError) as fault:
            expected = f"the metadata of a codec ({CODEC_FORMAT}: speakers, levels, widths)"
            raise CheckpointError("codec-notes", f"{fault}", expected=expected, where=path) from fault
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
        """Codes [B, N] and how many of each row count, [B]: one for every 40 ms that has begun.

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
        counts = -(-lengths // SAMPLES_PER_CODE)
        if waves.device.type == "cpu":
            rows = [self._codes(wave[None, :length])[0] for wave, length in zip(waves, lengths.tolist(), strict=True)]
            return nn.utils.rnn.pad_sequence(rows, batch_first=True), counts
        return self._codes(waves, counts), counts

    def _codes(self, waves: Tensor, counts: Tensor | None = None) -> Tensor:
        return self.digits.numbers(self.digits.rounded(self.latents(waves, counts)))

    def latents(self, waves: Tensor, counts: Tensor | None = None) -> Tensor:
        """What is rounded, [B, N, L]; `counts` says how many codes each row has."""
        latents: Tensor = self.encoder(F.pad(waves, (0, -waves.shape[1] % SAMPLES_PER_CODE)), counts)
        return latents

    @torch.no_grad()
    def decode(self, codes: Tensor, speaker: str, lengths: Tensor | None = None) -> Tensor:
        """Codes [N] or [B, N] to waves [640 N] or [B, 640 N] in a speaker's voice; zeros behind each row's length."""
        index = find_speaker_index(self.speakers, speaker, "the tiny codec")
        number = torch.full((codes.shape[0] if codes.dim() == 2 else 1,), index)
        outside = (codes < 0) | (codes >= self.num_codes)
        if bool(outside.any()):
            found = f"code {int(codes[outside][0])}"
            raise AudioError("codes-outside", found, expected=f"0 to {self.num_codes - 1}", where="the tiny codec")
        batch = codes if codes.dim() == 2 else codes[None]
        waves: Tensor = self.decoder(self.digits.codes_to_digits(batch), number.to(codes.device), lengths)
        return waves if codes.dim() == 2 else waves[0]


class FiniteScalarQuantizer(nn.Module):
    """Finite scalar quantisation: every latent is squeezed into its range and rounded to a digit."""

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

    def __init__(self, width: int, num_speakers: int = 0) -> None:
        super().__init__()
        self.mix = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.3))
        self.voice = nn.Embedding(num_speakers, width) if num_speakers else None

    def forward(self, frames: Tensor, mask: Tensor | None, speakers: Tensor | None = None) -> Tensor:
        """[B, F, C] -> [B, F, C]"""
        # Convolutions want channels before time, linear layers and norms after it.
        mixed = self.mix(frames.transpose(1, 2)).transpose(1, 2)
        if self.voice is not None and speakers is not None:
            mixed = mixed + self.voice(speakers)[:, None]
        added = self.narrow(F.gelu(self.widen(self.norm(mixed))))
        return apply_mask(frames + self.scale * added, mask)


class CodecEncoder(nn.Module):
    """Log-mel frames, halved in rate twice."""

    def __init__(self, config: TinyCodecConfig) -> None:
        super().__init__()
        width = config.encoder_width
        self.mel = LogMel(config.num_mels)
        self.enter = nn.Conv1d(config.num_mels, width, 5, padding=2)
        self.halving = nn.ModuleList(nn.Conv1d(width, width, 2, stride=2) for _ in range(2))
        self.stages = nn.ModuleList(nn.ModuleList(CodecBlock(width) for _ in range(n)) for n in config.encoder_blocks)
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, len(config.levels))

    def forward(self, waves: Tensor, counts: Tensor | None) -> Tensor:
        """[B, S] -> [B, N, L]; S is a multiple of 640."""
        mask = build_frame_mask(counts, waves.shape[1] // SAMPLES_PER_CODE)  # [B, N, 1]
        frames = apply_mask(self.mel(waves), repeat_mask(mask, 4))  # [B, F, M]
        frames = apply_mask(self.enter(frames.transpose(1, 2)).transpose(1, 2), repeat_mask(mask, 4))
        for number, stage in enumerate(self.stages):
            if number:
                frames = self.halving[number - 1](frames.transpose(1, 2)).transpose(1, 2)
            own = repeat_mask(mask, 4 >> number)
            frames = apply_mask(frames, own)
            for block in stage.children():
                frames = block(frames, own)
        latents: Tensor = self.leave(self.norm(frames))
        return latents


class CodecDecoder(nn.Module):
    """Digits, doubled in rate twice, to a spectrum, to a wave."""

    window: Tensor

    def __init__(self, config: TinyCodecConfig) -> None:
        super().__init__()
        widths = (config.decoder_width, config.voice_width, config.voice_width)
        speakers = len(config.speakers)
        self.digits = FiniteScalarQuantizer(config.levels)
        self.enter = nn.Conv1d(len(config.levels), widths[0], 3, padding=1)
        self.stages = nn.ModuleList(
            nn.ModuleList(CodecBlock(width, speakers) for _ in range(count))
            for width, count in zip(widths, config.decoder_blocks, strict=True)
        )
        self.doubling = nn.ModuleList(nn.Linear(widths[index], 2 * widths[index + 1]) for index in range(2))
        self.norm = nn.LayerNorm(widths[-1])
        self.leave = nn.Linear(widths[-1], STFT_WINDOW + 2)
        self.register_buffer("window", torch.hann_window(STFT_WINDOW), persistent=False)

    def forward(self, digits: Tensor, speakers: Tensor, counts: Tensor | None = None) -> Tensor:
        """[B, N, L], [B] -> [B, 640 N]"""
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
        waves = self._wave(self.leave(self.norm(frames)).float(), repeat_mask(mask, 4))
        return apply_mask(waves.view(len(waves), -1, SAMPLES_PER_CODE), mask).flatten(1)

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


class TinyClipEncoder(ClipEncoder):
    """The codec of a base folder, and the names of its speakers."""

    sample_rate = SAMPLE_RATE

    def __init__(self, codec: TinyCodec, speakers: Sequence[str]) -> None:
        self.codec, self.speakers = codec, tuple(speakers)

    def encode(self, waves: Sequence[Waveform], speakers: Sequence[str] | None = None) -> list[Clip]:
        """`speakers` says by name who speaks in each; without it all are the first of the table."""
        names = [self.speakers[0]] * len(waves) if speakers is None else list(speakers)
        if len(names) != len(waves):
            raise GraftError(
                "packing", f"{len(waves)} clips and {len(names)} speakers", expected="the same number of each"
            )
        voices = [build_voice_clip(find_speaker_index(self.speakers, name)).voice for name in names]
        checked = validate_waveforms(waves, CODEC_LIMITS)
        device = next(self.codec.parameters()).device
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
    """Codec and speakers of a base folder, which must be the same ones in the same order."""
    from voxgraft.models.speech_model import find_part_file

    speakers = read_voices(folder)
    codec = TinyCodec.open(find_part_file(folder, (CODEC_NAME,))).to(device)
    if speakers != tuple(codec.speakers):  # a speaker's number means the same row in both
        found = f"{VOICES_NAME} names {', '.join(speakers)}"
        expected = f"{', '.join(codec.speakers)}, as in {CODEC_NAME}"
        raise FileError("voices-broken", found, expected=expected, where=folder)
    return codec, speakers


def build_voice_clip(number: int) -> Clip:
    """A voice that comes from no recording."""
    return Clip(voice={"speaker": np.array([number], dtype=np.int32)})


def build_tiny_condition(prompt: Clip) -> TinyCondition:
    """To sound like the speaker of that clip."""
    return TinyCondition(np.asarray(prompt.voice["speaker"]))


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
        for own, voice in zip(codes, voices, strict=True):
            wave = torch.zeros(0)
            if len(own):
                speaker = self.speakers[int(voice.voice["speaker"][0])]
                with exact_float32():
                    wave = self.codec.decode(torch.tensor(list(own), device=device), speaker)
            waves.append(wave.reshape(-1).float().cpu().numpy())
        return waves
