"""XTTS v2's vocoder: the GPT's states and a voice to a 24 kHz waveform, with HiFi-GAN.

The codes are never decoded. The state at each code, 1,024 numbers, is interpolated to the frames of the waveform, and
the speaker vector is added at every stage of the network. Padding is masked before every convolution: an utterance
gives the same waveform in any batch.

Shapes: B utterances, n states, G width of the GPT, C channels, T samples at the rate of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.features import batch_by_length, exact_float32
from voxgraft.checkpoints.base import ByteSource, Shape
from voxgraft.checkpoints.load import read_tensor_shapes, read_tensors
from voxgraft.checkpoints.torch_file import read_torch_tensor
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError, GraftError
from voxgraft.models.base import (
    BaseFiles,
    Clip,
    Latents,
    PublishedTensors,
    Vocoder,
    require_a_voice_each,
    require_exact_tensors,
    require_finite_array,
)
from voxgraft.models.chatterbox.hift import NormedConv, NormedTransposedConv, fold_weight_norm
from voxgraft.models.xtts.encoder import DiscreteVAE, DVAESize, read_xtts_voices
from voxgraft.models.xtts.family import DVAE_NAME, MEL_STATS_FILE, SPEAKERS_NAME, read_xtts_size
from voxgraft.models.xtts.model import LATENTS_ARRAY, SPEAKER_ARRAY
from voxgraft.models.xtts.shapes import (
    NUM_MELS,
    RESBLOCK_DILATIONS,
    RESBLOCK_KERNELS,
    SPEAKER_VECTOR_WIDTH,
    VOCODER_ENDS_KERNEL,
    VOCODER_KERNELS,
    VOCODER_PREFIX,
    VOCODER_RATES,
    VOICE_LATENTS,
    XTTSSize,
    read_xtts_config,
    vocoder_shapes,
)
from voxgraft.nn.layers import init_empty_weights

SAMPLE_RATE = 24_000
# States to frames of the 22,050 Hz that the GPT knows, then to frames of 24 kHz.
STATE_SCALES = (4.0, SAMPLE_RATE / 22_050)
HOP = math.prod(VOCODER_RATES)
# The last one is torch's default, left in by HiFi-GAN's authors.
SLOPE, LAST_SLOPE = 0.1, 0.01


def interpolate_states(states: Tensor, speed: float = 1.0) -> Tensor:
    """States at the codes to one for every 256 samples, in the steps of the original. [n, G] -> [T, G]

    One step with the product of the scales would give other numbers. Where a step does not change the number of states,
    torch copies them, here and in the original.
    """
    scales = STATE_SCALES if speed == 1.0 else (1.0 / speed, *STATE_SCALES)
    x = states.T[None]
    for scale in scales:
        if int(x.shape[-1] * scale) == 0:  # so fast, or so short, that nothing is left
            return states[:0]
        x = F.interpolate(x, scale_factor=scale, mode="linear")
    return x[0].T


@dataclass(frozen=True, slots=True)
class HiFiGANSize:
    """The sizes that may differ; as published by default. Rates and kernels are fixed."""

    channels: int = 512
    inputs: int = 1024
    speaker: int = SPEAKER_VECTOR_WIDTH

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> HiFiGANSize:
        """The size that the tensors of a file have; as published where they do not say."""
        first, voice = shapes.get("conv_pre.weight", ()), shapes.get("cond_layer.weight", ())
        if len(first) != 3 or len(voice) != 3 or not all((*first, *voice)) or first[0] % (1 << len(VOCODER_RATES)):
            return cls()
        return cls(first[0], first[1], voice[1])


class HiFiGAN(nn.Module):
    """Four stages of upsampling, the voice added at each, followed by the mean of three residual blocks."""

    def __init__(self, size: HiFiGANSize | None = None) -> None:
        super().__init__()
        self.size = size or HiFiGANSize()
        width = self.size.channels
        self.conv_pre = nn.Conv1d(self.size.inputs, width, VOCODER_ENDS_KERNEL, padding=VOCODER_ENDS_KERNEL // 2)
        self.cond_layer = nn.Conv1d(self.size.speaker, width, 1)
        self.ups, self.conds, self.resblocks = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for rate, kernel in zip(VOCODER_RATES, VOCODER_KERNELS, strict=True):
            self.ups.append(NormedTransposedConv(width, width // 2, kernel, rate, padding=(kernel - rate) // 2))
            width //= 2
            self.conds.append(nn.Conv1d(self.size.speaker, width, 1))
            self.resblocks.extend(HiFiGANBlock(width, kernel) for kernel in RESBLOCK_KERNELS)
        self.conv_post = nn.Conv1d(width, 1, VOCODER_ENDS_KERNEL, padding=VOCODER_ENDS_KERNEL // 2, bias=False)
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, path: Path, prefix: str = VOCODER_PREFIX) -> tuple[HiFiGANSize, dict[str, Shape]]:
        """Size and tensors, as stored in `model.pth`; refused, by name, unless it has all and, there, no other."""
        stored = read_tensor_shapes(path, prefix)
        size = HiFiGANSize.of(stored)
        shapes = vocoder_shapes(size.inputs, size.channels, size.speaker)
        require_exact_tensors(stored, shapes, "HiFi-GAN of XTTS v2", path)
        return size, shapes

    @classmethod
    def load(cls, path: Path, prefix: str = VOCODER_PREFIX) -> HiFiGAN:
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

        Frames behind the end of an utterance must be zeros, and its waveform stops there. Without `lengths` all are as
        long as the longest. The caller chooses between `exact_float32` and the TF32 of CUDA's convolutions.
        """
        voice = voices[:, :, None]
        mask, rate, num_frames = None, 1, states.shape[1]
        x = self.conv_pre(states.transpose(1, 2)) + self.cond_layer(voice)
        if lengths is not None:
            mask = mask_of(lengths, num_frames)
            x = x * mask
        blocks = iter(self.resblocks)
        for up, cond, own_rate in zip(self.ups, self.conds, VOCODER_RATES, strict=True):
            rate *= own_rate
            x = up(F.leaky_relu(x, SLOPE)) + cond(voice)
            if lengths is not None:
                mask = mask_of(lengths * rate, num_frames * rate)
                x = x * mask
            total: Tensor = next(blocks)(x, mask)
            for _ in RESBLOCK_KERNELS[1:]:
                total = total + next(blocks)(x, mask)
            x = total / len(RESBLOCK_KERNELS)
        wave: Tensor = self.conv_post(F.leaky_relu(x, LAST_SLOPE)).tanh()
        return wave[:, 0]

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
            NormedConv(width, width, kernel, dilation=step, padding=step * (kernel // 2)) for step in RESBLOCK_DILATIONS
        )
        self.convs2 = nn.ModuleList(NormedConv(width, width, kernel, padding=kernel // 2) for _ in RESBLOCK_DILATIONS)

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


# Frames of 256 samples, padding included, that go through the network together.
BATCH_FRAMES = 6_000
MIN_SPEED, MAX_SPEED = 0.25, 4.0


class XTTSVocoder(Vocoder):
    """HiFi-GAN of a base's checkpoint. Names and shapes are checked when it is found, weights are read when it sounds.

    A voice needs nothing but its speaker vector, which every prepared clip has.
    """

    sample_rate = SAMPLE_RATE
    needs_latents: ClassVar[bool] = True

    def __init__(
        self,
        path: Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        *,
        refusal: CheckpointError | None = None,
        speed: float = 1.0,
    ) -> None:
        """A half-precision `dtype` allows TF32; None is exact float32. `refusal` says why the file has no whole one.

        `speed` is the original's: states are interpolated to fewer or more of them.
        """
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise ConfigError("config-value", f"a speed of {speed:g}", expected=f"{MIN_SPEED:g} to {MAX_SPEED:g}")
        self.path, self.device, self.dtype, self.refusal, self.speed = path, device, dtype, refusal, speed

    @classmethod
    def find(
        cls, files: BaseFiles, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> XTTSVocoder | None:
        """The vocoder of a base; None where the checkpoint has the language model alone."""
        path, refusal = files.checkpoint, None
        if not read_tensor_shapes(path, VOCODER_PREFIX):
            return None
        try:
            HiFiGAN.read_shapes(path)
        except CheckpointError as error:
            refusal = error
        return cls(path, device, dtype, refusal=refusal)

    @cached_property
    def network(self) -> HiFiGAN:
        """Read when the first sound is made: whoever asks for codes alone does not wait for it."""
        return HiFiGAN.load(self.path).to(self.device)

    def validate(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def why_not(self, voice: Clip) -> str:
        if self.refusal is not None:
            return self.refusal.finding.found
        return "" if SPEAKER_ARRAY in voice.voice else "the voice has no speaker vector"

    @torch.no_grad()
    def sound(
        self, codes: Sequence[Sequence[int]], voices: Sequence[Clip], latents: Sequence[Latents] | None = None
    ) -> list[NDArray[np.float32]]:
        """Utterances of similar length go together; each is what it would be alone, up to rounding.

        The states are all that is read. There may be one more than codes: the original also sounds the state that
        predicted the stop.
        """
        require_a_voice_each(codes, voices)
        self.validate()
        if latents is None or len(latents) != len(codes):
            found = f"{len(codes)} utterances and {0 if latents is None else len(latents)} latents"
            raise GraftError("packing", found, expected="the same number of each")
        frames: dict[int, Tensor] = {}
        vectors: dict[int, Tensor] = {}
        for index, (own, voice, states) in enumerate(zip(codes, voices, latents, strict=True)):
            if len(own):
                vectors[index] = self._get_vector(voice)
                frames[index] = self._interpolate(own, states)
        waves = [np.zeros(0, dtype=np.float32)] * len(codes)
        indices = [index for index, own in frames.items() if len(own)]
        with exact_float32() if self.dtype is None else nullcontext():
            for batch in batch_by_length([len(frames[index]) for index in indices], BATCH_FRAMES):
                places = [indices[number] for number in batch]
                rendered = self.network.vocode(
                    [frames[place] for place in places], [vectors[place] for place in places]
                )
                for place, wave in zip(places, rendered, strict=True):
                    waves[place] = wave.cpu().numpy()
        return waves

    def _get_vector(self, voice: Clip) -> Tensor:
        if why := self.why_not(voice):
            raise AudioError("vocoder-voice", why, where=self.path.parent)
        vector = np.asarray(voice.voice[SPEAKER_ARRAY])
        require_finite_array(vector, (self.network.size.speaker,), "a speaker vector")
        return torch.from_numpy(vector.astype(np.float32)).to(self.device)

    def _interpolate(self, codes: Sequence[int], states: Latents) -> Tensor:
        """-> [T, G]"""
        values = np.asarray(states)
        has_stop = values.ndim == 2 and len(values) == len(codes) + 1
        require_finite_array(values, (len(codes) + has_stop, self.network.size.inputs), "latents")
        return interpolate_states(torch.from_numpy(values.astype(np.float32)).to(self.device), self.speed)


def list_xtts_files(files: BaseFiles) -> tuple[PublishedTensors, ...]:
    """The checkpoint with all its parts, the DVAE, and what may be beside them."""
    config = read_xtts_config(files.config) if files.config is not None else {}

    def read_voices(path: Path) -> dict[str, Any]:
        voices = read_xtts_voices(path).values()
        return {"latents": tuple(sorted({voice.voice[LATENTS_ARRAY].shape for voice in voices}))}

    def read_statistics(path: Path) -> dict[str, Any]:
        source = ByteSource(path)
        try:
            return {"numbers": read_torch_tensor(source).shape}
        finally:
            source.close()

    return (
        PublishedTensors(
            (files.checkpoint.name,),
            "GPT, HiFi-GAN and speaker encoder",
            lambda path: read_xtts_size(config, read_tensor_shapes(path), files),
            (XTTSSize(),),
        ),
        PublishedTensors(
            (DVAE_NAME,), "DVAE: codes of a recording", lambda path: DiscreteVAE.read_shapes(path)[0], (DVAESize(),)
        ),
        PublishedTensors(
            (MEL_STATS_FILE,), "mel statistics", read_statistics, ({"numbers": (NUM_MELS,)},), needed=False
        ),
        PublishedTensors(
            (SPEAKERS_NAME,),
            "voices by name",
            read_voices,
            ({"latents": ((VOICE_LATENTS, XTTSSize().width),)},),
            needed=False,
        ),
    )
