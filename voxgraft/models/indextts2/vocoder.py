"""IndexTTS-2's waveform end: codes, GPT latents and a voice to a 22.05 kHz waveform, with s2mel and BigVGAN.

Also how the original prepares a reference recording. Its GPL and bilibili-licensed code was not read: this is written
from descriptions of its steps and checked against its outputs.

Shapes: n codes, P prompt frames, F target frames, M = 80 bands, G width of the GPT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.audio.features import (
    SILENCE_POWER,
    Waveform,
    WaveformLimits,
    batch_by_length,
    compute_peak_frame_power,
    exact_float32,
    hifigan_mel,
    mel_filters,
    resample_sinc,
    validate_waveform,
)
from voxgraft.audio.files import resample
from voxgraft.core.errors import AudioError, GraftError
from voxgraft.core.files import path_exists
from voxgraft.models.base import REFERENCE_AUDIO, BaseFiles, Clip, Latents, Vocoder
from voxgraft.models.indextts2.bigvgan import HOP, SAMPLE_RATE, BigVGAN
from voxgraft.models.indextts2.dit import NUM_MELS
from voxgraft.models.indextts2.emotion import STYLE
from voxgraft.models.indextts2.encoder import SemanticCodecSize, SemanticQuantizer
from voxgraft.models.indextts2.family import (
    CAMPPLUS_NAME,
    CODEC_NAME,
    get_s2mel_name,
    get_vocoder_folder,
)
from voxgraft.models.indextts2.s2mel import FlowPrompt, S2Mel, count_target_frames
from voxgraft.models.indextts2.shapes import read_base_config
from voxgraft.nn.layers import init_empty_weights

NUM_FFT = 1024
MAX_REFERENCE_SECONDS = 15
# The original takes any length from 18 ms on; less than this is no voice, and the prompt would be a few frames.
MIN_REFERENCE_SECONDS = 0.5
FEATURE_RATE = 16_000
# Frames of prompt and target, padding included, that are solved together.
BATCH_FRAMES = 24_000
MAX_KEPT_VOICES = 16


@dataclass(frozen=True, slots=True)
class ReferenceWaves:
    """A recording as the original's parts hear it, each at most 15 s long."""

    speaker: NDArray[np.float32]  # 22,050 Hz: the mel
    speaker_16k: NDArray[np.float32]  # for codes, speaker latents and the style
    emotion_16k: NDArray[np.float32]  # for the emotion


def prepare_reference(samples: Waveform, rate: int) -> ReferenceWaves:
    """One channel of a recording of any usual rate. What is longer than 15 s is cut, as in the original.

    The original makes two different 16 kHz signals: the speaker's by way of 22,050 Hz and with another resampler, the
    emotion's directly. That changes features a little, so it is reproduced. Too short and silent are refused.
    """
    limits = WaveformLimits(rate, min_samples=math.ceil(MIN_REFERENCE_SECONDS * rate))
    # A second more than is kept, so that resampling ends in the recording and not at a cut; more would cost time.
    first = samples[: (MAX_REFERENCE_SECONDS + 1) * rate] if samples.ndim == 1 else samples
    wave = validate_waveform(first, limits, "the reference recording")
    if compute_peak_frame_power(wave) <= SILENCE_POWER:
        raise AudioError("audio-silent", f"{limits.told(len(wave))}, all of them silent", expected="a voice")
    speaker = _resample_like_librosa(wave.numpy(), rate, SAMPLE_RATE)[: MAX_REFERENCE_SECONDS * SAMPLE_RATE]
    speaker_16k = resample_sinc(torch.from_numpy(speaker), SAMPLE_RATE, FEATURE_RATE).numpy()
    emotion_16k = _resample_like_librosa(wave.numpy(), rate, FEATURE_RATE)[: MAX_REFERENCE_SECONDS * FEATURE_RATE]
    return ReferenceWaves(speaker, speaker_16k, emotion_16k)


def _resample_like_librosa(samples: NDArray[np.float32], from_hz: int, to_hz: int) -> NDArray[np.float32]:
    """soxr at high quality, and exactly as many samples as the rates say, rounded up."""
    found = resample(samples, from_hz, to_hz)
    wanted = math.ceil(len(samples) * (to_hz / from_hz))
    return np.ascontiguousarray(np.pad(found, (0, max(0, wanted - len(found))))[:wanted])


def compute_mel(wave: Tensor) -> Tensor:
    """The mel of s2mel and BigVGAN: natural logarithms, 80 bands up to 11,025 Hz. [N] -> [M, N // 256]"""
    return hifigan_mel(wave, mel_filters(SAMPLE_RATE, NUM_FFT, NUM_MELS), NUM_FFT, HOP).T


def has_waveform_end(files: BaseFiles) -> bool:
    """Whether all files that make sound of codes are in a base folder; whether they are whole is seen by loading."""
    names = (get_s2mel_name(files), get_vocoder_folder(files), CODEC_NAME)
    return all(path_exists(files.folder / name) for name in names)


@torch.no_grad()
@exact_float32()
def load_code_table(path: Path) -> Tensor:
    """What the semantic codec embeds each code as; its encoder is not read. -> [codes, 1024]"""
    from voxgraft.checkpoints.tensors import read_tensor_shapes, read_tensors

    prefix = "quantizer.quantizers.0."
    with init_empty_weights():
        quantizer = SemanticQuantizer(SemanticCodecSize.of(read_tensor_shapes(path)))
    shapes = {name: tuple(tensor.shape) for name, tensor in quantizer.state_dict().items()}
    quantizer.load_state_dict(read_tensors(path, shapes, prefix), assign=True)
    table: Tensor = quantizer.out_project(quantizer.codebook.weight)
    return table


class IndexTTS2Vocoder(Vocoder):
    """s2mel and BigVGAN of a base folder."""

    sample_rate = SAMPLE_RATE
    needs_latents: ClassVar[bool] = True

    seed: int = 0
    """Every utterance is drawn from a generator of its own with this seed, so that none depends on its neighbours."""

    def __init__(self, s2mel: S2Mel, bigvgan: BigVGAN, code_table: Tensor) -> None:
        """`code_table` holds what the semantic codec embeds each code as. [codes, 1024]"""
        device = code_table.device
        self.s2mel, self.bigvgan, self.code_table = s2mel.to(device), bigvgan.to(device), code_table
        self._prompts: dict[int, tuple[Clip, FlowPrompt]] = {}

    @property
    def device(self) -> torch.device:
        return self.code_table.device

    @classmethod
    def load(cls, files: BaseFiles, device: torch.device | str = "cpu") -> IndexTTS2Vocoder:
        """From the base folder: s2mel as the config names it, BigVGAN's folder, and the codec's quantizer."""
        settings = read_base_config(files.config) if files.config else {}
        s2mel = S2Mel.load(files.folder / get_s2mel_name(files), settings)
        bigvgan = BigVGAN.load(files.folder / get_vocoder_folder(files))
        return cls(s2mel, bigvgan, load_code_table(files.folder / CODEC_NAME).to(device))

    def why_not(self, voice: Clip) -> str:
        if REFERENCE_AUDIO not in voice.voice:
            return "there is no recording of the voice"
        if STYLE not in voice.voice:
            return f"the voice was heard without CAM++ ({CAMPPLUS_NAME} is not in the base folder)"
        return "" if len(voice.codes) else "the recording of the voice has no codes"

    @torch.no_grad()
    def sound(
        self, codes: Sequence[Sequence[int]], voices: Sequence[Clip], latents: Sequence[Latents] | None = None
    ) -> list[NDArray[np.float32]]:
        """Utterances of similar length are solved together; each is what it would be alone, up to rounding."""
        given = [np.zeros((0, 0))] * len(codes) if latents is None else latents
        if not len(codes) == len(voices) == len(given):
            counts = f"{len(codes)} utterances, {len(voices)} voices and {len(given)} latents"
            raise GraftError("packing", counts, expected="as many of each")
        prompts: dict[int, FlowPrompt] = {}
        contents: dict[int, Tensor] = {}
        for place, (own, voice, states) in enumerate(zip(codes, voices, given, strict=True)):
            if len(own):
                prompts[place] = self.prepare_prompt(voice)
                contents[place] = self.embed_codes(own, states)
        found = [np.zeros(0, dtype=np.float32)] * len(codes)
        places = list(contents)
        lengths = [prompts[at].mel.shape[1] + count_target_frames(len(codes[at])) for at in places]
        for batch in batch_by_length(lengths, BATCH_FRAMES):
            some = [places[number] for number in batch]
            noises = [self.draw_noise(lengths[number]) for number in batch]
            waves = self.render([prompts[at] for at in some], [contents[at] for at in some], noises)
            for at, wave in zip(some, waves, strict=True):
                found[at] = wave.cpu().numpy()
        return found

    def render(
        self, prompts: Sequence[FlowPrompt], contents: Sequence[Tensor], noises: Sequence[Tensor]
    ) -> list[Tensor]:
        """Content vectors [n, 1024] with noise [M, P + F] to waves [256 F]."""
        frames = [count_target_frames(len(content)) for content in contents]
        targets = self.s2mel.length_regulator(contents, frames)
        return self.bigvgan.vocode(self.s2mel.solve(prompts, targets, noises))

    def draw_noise(self, num_frames: int) -> Tensor:
        """Standard normal noise of prompt and target. Drawn on the CPU, so that it is the same on every device."""
        return torch.randn(NUM_MELS, num_frames, generator=torch.Generator().manual_seed(self.seed))

    @exact_float32()
    def embed_codes(self, codes: Sequence[int], latents: Latents) -> Tensor:
        """Codes and their latents as the length regulator takes them. -> [n, 1024]"""
        width = self.s2mel.size.latents[0]
        if latents.shape != (len(codes), width) or not np.isfinite(latents).all():
            found = f"latents {list(latents.shape)} for {len(codes):,} codes"
            raise GraftError("condition-form", found, expected=f"finite numbers [{len(codes)}, {width}]")
        own = torch.tensor(list(codes))
        if int(own.min()) < 0 or int(own.max()) >= len(self.code_table):
            found = f"code {int(own.min()) if int(own.min()) < 0 else int(own.max())}"
            raise AudioError("codes-outside", found, expected=f"0 to {len(self.code_table) - 1:,}")
        states = torch.from_numpy(np.ascontiguousarray(latents, np.float32)).to(self.device)
        return self.s2mel.embed_content(self.code_table[own.to(self.device)], states)

    def prepare_prompt(self, voice: Clip) -> FlowPrompt:
        """Mel, content and style of a voice's recording; kept for the voices that were used last."""
        if (kept := self._prompts.pop(id(voice), None)) is None or kept[0] is not voice:
            if why := self.why_not(voice):
                raise GraftError("vocoder-voice", why)
            wave = torch.from_numpy(np.asarray(voice.voice[REFERENCE_AUDIO], np.float32)).to(self.device)
            mel = compute_mel(wave)  # [M, P]
            # The quantised vectors alone: the prompt has no latents.
            content = self.code_table[torch.from_numpy(np.asarray(voice.codes, np.int64)).to(self.device)]
            (condition,) = self.s2mel.length_regulator([content], [mel.shape[1]])
            style = torch.from_numpy(np.asarray(voice.voice[STYLE], np.float32)).to(self.device)
            if style.shape != (self.s2mel.size.dit.style,):
                expected = f"[{self.s2mel.size.dit.style}], as s2mel has it"
                raise GraftError("condition-form", f"a style {list(style.shape)}", expected=expected)
            kept = (voice, FlowPrompt(mel, condition, style))
        self._prompts[id(voice)] = kept
        while len(self._prompts) > MAX_KEPT_VOICES:
            del self._prompts[next(iter(self._prompts))]
        return kept[1]
