"""IndexTTS-2's vocoder: codes, GPT latents and a voice to a 22.05 kHz waveform, with s2mel and BigVGAN.

BigVGAN v2 is here, s2mel has its own module; also how the original prepares a reference recording. Nothing is copied
from its GPL and bilibili-licensed code: this is written from descriptions of its steps, with its tensor names, and
checked against its outputs.

Shapes: n codes, P prompt frames, F target frames, M = 80 bands, G width of the GPT. In BigVGAN: B clips, C channels,
T samples at the rate of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

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
from voxgraft.checkpoints.base import Shape
from voxgraft.checkpoints.load import read_tensor_shapes, read_tensors
from voxgraft.core.errors import AudioError, CheckpointError, GraftError
from voxgraft.core.files import is_file, path_exists
from voxgraft.models.base import (
    REFERENCE_AUDIO,
    BaseFiles,
    Clip,
    Latents,
    PublishedTensors,
    Vocoder,
    linear_shapes,
    require_exact_tensors,
)
from voxgraft.models.campplus import CAMPPlus, CAMPPlusSize
from voxgraft.models.indextts2.dit import NUM_MELS
from voxgraft.models.indextts2.encoder import (
    DEFAULT_CONFIG_SIZES,
    STYLE,
    VECTORS_PER_EMOTION,
    SemanticCodec,
    SemanticCodecSize,
    SemanticQuantizer,
    import_transformers,
    read_emotion_matrix,
    read_w2v_bert_sizes,
)
from voxgraft.models.indextts2.family import (
    CAMPPLUS_NAME,
    CODEC_NAME,
    CONFIG_NAMED_FILES,
    STYLE_WIDTH,
    W2V_BERT_FILES,
    W2V_BERT_FOLDER,
    IndexTTS2,
    get_s2mel_name,
    get_statistics_name,
    get_vocoder_folder,
)
from voxgraft.models.indextts2.s2mel import (
    S2MEL_KEY,
    FlowPrompt,
    S2Mel,
    S2MelSize,
    count_target_frames,
    fold_weight_norm,
)
from voxgraft.models.indextts2.shapes import FEATURE_WIDTH, UnifiedVoiceSize, get_config_file_name, read_base_config
from voxgraft.nn.decode import smooth_snakes
from voxgraft.nn.layers import init_empty_weights

# ---- BigVGAN ---------------------------------------------------------------------------------------------------------
# Mel spectrogram to waveform, with snake activations that are computed at twice the rate. Written from the published
# tensor names and formulas of NVIDIA's BigVGAN (MIT). Weight norm is folded when a file is loaded; the anti-aliasing
# filters are computed, as their 218 copies in the file are all equal.

SAMPLE_RATE = 22_050
BIGVGAN_NAMES = ("bigvgan_generator.pt", "bigvgan_generator.safetensors")
UPSAMPLE_RATES = (4, 4, 2, 2, 2, 2)
HOP = math.prod(UPSAMPLE_RATES)
BLOCK_KERNELS = (3, 7, 11)
BLOCK_DILATIONS = (1, 3, 5)
OUTER_KERNEL = 7
FILTER_TAPS = 12
SNAKE_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class BigVGANSize:
    """The sizes that may differ; as published for 22 kHz by default. Rates and kernels are fixed."""

    channels: int = 1536
    mels: int = 80

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> BigVGANSize:
        """The size that the tensors of a file have; as published where they do not say."""
        first = shapes.get("conv_pre.weight_v") or shapes.get("conv_pre.weight") or ()
        if len(first) != 3 or first[0] < 1 or first[0] % (1 << len(UPSAMPLE_RATES)):
            return cls()
        return cls(first[0], first[1])


def bigvgan_shapes(size: BigVGANSize, *, weight_norm: bool) -> dict[str, Shape]:
    """Names and shapes of every tensor that is read: those of the file without the filters."""
    plain: dict[str, Shape] = linear_shapes("conv_pre", size.channels, size.mels, OUTER_KERNEL)
    width = size.channels
    for stage, rate in enumerate(UPSAMPLE_RATES):
        # A transposed convolution has its inputs first.
        plain[f"ups.{stage}.0.weight"] = (width, width // 2, 2 * rate)
        width //= 2
        plain[f"ups.{stage}.0.bias"] = (width,)
        for number, kernel in enumerate(BLOCK_KERNELS):
            block = f"resblocks.{len(BLOCK_KERNELS) * stage + number}"
            for layer in range(len(BLOCK_DILATIONS)):
                plain |= linear_shapes(f"{block}.convs1.{layer}", width, width, kernel)
                plain |= linear_shapes(f"{block}.convs2.{layer}", width, width, kernel)
            for layer in range(2 * len(BLOCK_DILATIONS)):
                plain |= {f"{block}.activations.{layer}.act.{name}": (width,) for name in ("alpha", "beta")}
    plain |= {f"activation_post.act.{name}": (width,) for name in ("alpha", "beta")}
    plain["conv_post.weight"] = (1, width, OUTER_KERNEL)  # no bias
    if not weight_norm:
        return plain
    shapes: dict[str, Shape] = {}
    for name, shape in plain.items():
        if name.endswith(".weight"):
            # The norm runs over all dimensions but the first, also where that is the inputs.
            shapes |= {f"{name}_g": (shape[0], 1, 1), f"{name}_v": shape}
        else:
            shapes[name] = shape
    return shapes


class BigVGAN(nn.Module):
    """The generator: six stages of upsampling, each followed by the mean of three residual blocks."""

    def __init__(self, size: BigVGANSize | None = None) -> None:
        super().__init__()
        self.size = size or BigVGANSize()
        width = self.size.channels
        self.conv_pre = nn.Conv1d(self.size.mels, width, OUTER_KERNEL, padding=OUTER_KERNEL // 2)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for rate in UPSAMPLE_RATES:
            # Padding of half a rate makes the length exactly `rate` times the input's. In the file each is alone
            # in a list.
            self.ups.append(nn.Sequential(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, padding=rate // 2)))
            width //= 2
            self.resblocks.extend(ResidualBlock(width, kernel) for kernel in BLOCK_KERNELS)
        self.activation_post = AntiAliasedSnake(width)
        self.conv_post = nn.Conv1d(width, 1, OUTER_KERNEL, padding=OUTER_KERNEL // 2, bias=False)
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, folder: Path) -> tuple[Path, BigVGANSize, dict[str, Shape]]:
        """File, size and tensors of the published file or the folder that holds it, with weight norm or without.

        Refused, by name, unless the file has every tensor and none besides. Reads no values.
        """
        from voxgraft.checkpoints.load import read_tensor_shapes
        from voxgraft.models.speech_model import find_part_file

        path = find_part_file(folder, BIGVGAN_NAMES)
        stored = read_tensor_shapes(path)
        size = BigVGANSize.of(stored)
        shapes = bigvgan_shapes(size, weight_norm=any(name.endswith(".weight_v") for name in stored))
        # The filters beside every activation are computed here; a file may leave them out.
        activations = [name.removesuffix("act.alpha") for name in shapes if name.endswith(".act.alpha")]
        filters = {f"{stem}{side}.filter" for stem in activations for side in ("upsample", "downsample.lowpass")}
        own = {name: shape for name, shape in stored.items() if name not in filters}
        require_exact_tensors(own, shapes, "BigVGAN v2 (22 kHz, 80 bands, 256 samples a frame)", path)
        return path, size, shapes

    @classmethod
    def load(cls, folder: Path) -> BigVGAN:
        """From the published file or the folder that holds it, with weight norm or without."""
        from voxgraft.checkpoints.load import read_tensors

        path, size, shapes = cls.read_shapes(folder)
        return cls.from_tensors(size, read_tensors(path, shapes))

    @classmethod
    def from_tensors(cls, size: BigVGANSize, tensors: Mapping[str, Tensor]) -> BigVGAN:
        """From tensors under the names of the published file, with weight norm or without."""
        with init_empty_weights():
            model = cls(size)
        model.load_state_dict(fold_weight_norm(tensors), assign=True)
        return model.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, mels: Tensor) -> Tensor:
        """Natural-log mels as they are: [B, M, F] -> [B, 256 F], between -1 and 1

        The caller chooses between `exact_float32` and the TF32 that CUDA's convolutions may use.
        """
        x = self.conv_pre(mels)
        blocks = iter(self.resblocks)
        for up in self.ups:  # no activation before it
            x = up(x)
            total: Tensor = next(blocks)(x)
            for _ in BLOCK_KERNELS[1:]:
                total = total + next(blocks)(x)
            x = total / len(BLOCK_KERNELS)
        wave: Tensor = self.conv_post(self.activation_post(x))
        return wave[:, 0].clamp(-1.0, 1.0)  # a clamp, not tanh

    def vocode(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Waves of mels [M, F]; those of one length go together. -> [256 F] a clip

        Padding would reach into the end of a shorter clip through some hundred layers, and a clip of a few seconds
        keeps a device busy on its own.
        """
        waves_by_index: dict[int, Tensor] = {}
        for length in sorted({mel.shape[1] for mel in mels}):
            indices = [index for index, mel in enumerate(mels) if mel.shape[1] == length]
            waves = self(torch.stack([mels[index] for index in indices]))
            waves_by_index |= dict(zip(indices, waves, strict=True))
        return [waves_by_index[index] for index in range(len(mels))]


class ResidualBlock(nn.Module):
    """Three pairs of convolutions, the first of each dilated, an activation before every one."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            nn.Conv1d(width, width, kernel, dilation=step, padding=step * (kernel // 2)) for step in BLOCK_DILATIONS
        )
        self.convs2 = nn.ModuleList(nn.Conv1d(width, width, kernel, padding=kernel // 2) for _ in BLOCK_DILATIONS)
        self.activations = nn.ModuleList(AntiAliasedSnake(width) for _ in range(2 * len(BLOCK_DILATIONS)))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        for layer, (first, second) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            inner = first(self.activations[2 * layer](x))
            x = x + second(self.activations[2 * layer + 1](inner))
        return x


@cache
def kaiser_sinc_filter() -> Tensor:
    """Taps of the half-band filter before and after every snake, their sum 1. float32 [12]"""
    attenuation = 2.285 * (FILTER_TAPS // 2 - 1) * math.pi * 4 * 0.3 + 7.95
    beta = 0.1102 * (attenuation - 8.7)
    window = torch.kaiser_window(FILTER_TAPS, periodic=False, beta=beta, dtype=torch.float64)
    offsets = (torch.arange(FILTER_TAPS, dtype=torch.float64) - (FILTER_TAPS - 1) / 2) / 2
    taps = window * torch.sinc(offsets) / 2
    return (taps / taps.sum()).float()


class SnakeBeta(nn.Module):
    """x + sin(e^alpha x)^2 / e^beta; both parameters are stored as logarithms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.beta = nn.Parameter(torch.zeros(width))


class AntiAliasedSnake(nn.Module):
    """Up to twice the rate, snake, and down again, so that what sin adds above half the rate does not fold back.

    The two samples that represent one at the higher rate are kept apart as even and odd phase, so that both filters
    work at the lower rate and nothing is interleaved or computed only to be thrown away. With the taps h:
    up, after the padding and cutting of the original, y[m] = 2 sum_i x[i] h[m + 5 - 2 i] with m = 2 t + phase;
    down z[t] = sum_k h[k] y[2 t + k - 5].
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.act = SnakeBeta(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        # Sums of shifted rows take half the time of depthwise convolutions on a CPU (measured with one thread), and
        # twenty times as many kernels on a GPU.
        if x.device.type == "cpu":
            return self.filter_by_shifts(x)
        found = smooth_snakes(x, self.act.alpha, self.act.beta, get_filter_taps(x.device))
        return self.filter_by_convolution(x) if found is None else found

    def filter_by_shifts(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        taps, length = kaiser_sinc_filter().tolist(), x.shape[-1]
        rate, scale = self.act.alpha.exp()[:, None], 1.0 / (self.act.beta.exp() + SNAKE_EPS)[:, None]
        padded = F.pad(x, (3, 3), mode="replicate")
        phases = []
        for phase in range(2):
            y = padded[..., phase : phase + length] * (2 * taps[11 - phase])
            for tap in range(1, 6):
                shift = phase + tap
                y.add_(padded[..., shift : shift + length], alpha=2 * taps[11 + phase - 2 * shift])
            phases.append(torch.addcmul(y, torch.sin(y * rate).square_(), scale))
        even, odd = phases
        # Before the first sample both phases repeat it, and after the last both repeat that one.
        first, last = even[..., :1].expand(-1, -1, 3), odd[..., -1:].expand(-1, -1, 3)
        even, odd = torch.cat([first, even, last], -1), torch.cat([first, odd, last], -1)
        z: Tensor = odd[..., :length] * taps[0]
        for tap in range(1, 6):
            z.add_(odd[..., tap : tap + length], alpha=taps[2 * tap])
        for tap in range(1, 7):
            z.add_(even[..., tap : tap + length], alpha=taps[2 * tap - 1])
        return z

    def filter_by_convolution(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        width = x.shape[1]
        up, down = _phase_filters(x.device)
        rate, scale = self.act.alpha.exp()[:, None, None], 1.0 / (self.act.beta.exp() + SNAKE_EPS)[:, None, None]
        phases = F.conv1d(F.pad(x, (3, 3), mode="replicate"), up.repeat(width, 1, 1), groups=width)
        phases = phases.view(*x.shape[:2], 2, -1)  # [B, C, 2, T]
        phases = torch.addcmul(phases, torch.sin(phases * rate).square(), scale)
        first, last = phases[..., :1, :1].expand(-1, -1, 2, 3), phases[..., 1:, -1:].expand(-1, -1, 2, 3)
        padded = torch.cat([first, phases, last], -1).flatten(1, 2)  # [B, 2 C, T + 6]
        return F.conv1d(padded, down.repeat(width, 1, 1), groups=width)


@cache
def get_filter_taps(device: torch.device) -> Tensor:
    """[12]"""
    return kaiser_sinc_filter().to(device)


@cache
def _phase_filters(device: torch.device) -> tuple[Tensor, Tensor]:
    """The taps as convolutions at the lower rate: up [2, 1, 7], for each phase; down [1, 2, 7], over both."""
    taps = kaiser_sinc_filter()
    up, down = torch.zeros(2, 1, 7), torch.zeros(1, 2, 7)
    up[0, 0, :6], up[1, 0, 1:] = 2 * taps.flip(0)[0::2], 2 * taps.flip(0)[1::2]
    down[0, 0, 1:], down[0, 1, :6] = taps[1::2], taps[0::2]
    return up.to(device), down.to(device)


# ---- the vocoder -----------------------------------------------------------------------------------------------------

NUM_FFT = 1024
MAX_REFERENCE_SECONDS = 15
# The original takes any length from 18 ms on; less than this is no voice, and the prompt would be a few frames.
MIN_REFERENCE_SECONDS = 0.5
FEATURE_RATE = 16_000
# Frames of prompt and target, padding included, that are solved together.
BATCH_FRAMES = 24_000
MAX_KEPT_VOICES = 16


def prepare_reference(
    samples: Waveform, rate: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """One channel of a recording of any usual rate, as the original's parts read it. It is cut at 15 s, as there.

    The speaker at 22,050 Hz for the mel; the speaker at 16 kHz for codes, speaker latents and the style; at 16 kHz for
    the emotion.

    The original makes two different 16 kHz signals: the speaker's by way of 22,050 Hz and with another resampler, the
    emotion's directly. That changes features a little, so it is reproduced. Too short and silent are refused.
    """
    limits = WaveformLimits(rate, min_samples=math.ceil(MIN_REFERENCE_SECONDS * rate))
    # A second more than is kept, so that resampling ends in the recording and not at a cut; more would cost time.
    first = samples[: (MAX_REFERENCE_SECONDS + 1) * rate] if samples.ndim == 1 else samples
    wave = validate_waveform(first, limits, "the reference recording")
    if compute_peak_frame_power(wave) <= SILENCE_POWER:
        raise AudioError("audio-silent", f"{limits.describe(len(wave))}, all of them silent", expected="a voice")
    speaker = _resample_like_librosa(wave.numpy(), rate, SAMPLE_RATE)[: MAX_REFERENCE_SECONDS * SAMPLE_RATE]
    speaker_16k = resample_sinc(torch.from_numpy(speaker), SAMPLE_RATE, FEATURE_RATE).numpy()
    emotion_16k = _resample_like_librosa(wave.numpy(), rate, FEATURE_RATE)[: MAX_REFERENCE_SECONDS * FEATURE_RATE]
    return speaker, speaker_16k, emotion_16k


def _resample_like_librosa(samples: NDArray[np.float32], from_hz: int, to_hz: int) -> NDArray[np.float32]:
    """soxr at high quality, and exactly as many samples as the rates say, rounded up."""
    resampled = resample(samples, from_hz, to_hz)
    num_samples = math.ceil(len(samples) * (to_hz / from_hz))
    return np.ascontiguousarray(np.pad(resampled, (0, max(0, num_samples - len(resampled))))[:num_samples])


def compute_mel(wave: Tensor) -> Tensor:
    """The mel of s2mel and BigVGAN: natural logarithms, 80 bands up to 11,025 Hz. [N] -> [M, N // 256]"""
    return hifigan_mel(wave, mel_filters(SAMPLE_RATE, NUM_FFT, NUM_MELS), NUM_FFT, HOP).T


@torch.no_grad()
@exact_float32()
def load_code_table(path: Path) -> Tensor:
    """What the semantic codec embeds each code as; its encoder is not read. -> [codes, 1024]"""
    prefix = "quantizer.quantizers.0."
    with init_empty_weights():
        quantizer = SemanticQuantizer(SemanticCodecSize.of(read_tensor_shapes(path)))
    shapes = {name: tuple(tensor.shape) for name, tensor in quantizer.state_dict().items()}
    quantizer.load_state_dict(read_tensors(path, shapes, prefix), assign=True)
    table: Tensor = quantizer.out_project(quantizer.codebook.weight)
    return table


# The networks of a vocoder, all on one device; and what the semantic codec embeds each code as, [codes, 1024].
VocoderParts = tuple[S2Mel, BigVGAN, Tensor]


class IndexTTS2Vocoder(Vocoder):
    """s2mel and BigVGAN of a base folder."""

    sample_rate = SAMPLE_RATE
    needs_latents: ClassVar[bool] = True

    seed: int = 0
    """Every utterance is drawn from a generator of its own with this seed, so that none depends on its neighbours."""

    def __init__(
        self, load: Callable[[], VocoderParts], dtype: torch.dtype | None = None, campplus: Path | None = None
    ) -> None:
        """A half-precision `dtype` is for the flow, the slowest part, with TF32 in BigVGAN; None is exact float32.

        `campplus` is the file of CAM++, which `add_recording` computes the style with.
        """
        self._load, self.dtype, self._campplus = load, dtype, campplus
        self._prompts: dict[int, tuple[Clip, FlowPrompt]] = {}

    @cached_property
    def parts(self) -> VocoderParts:
        """The networks, read when the first sound is made: whoever asks for codes alone does not wait for them."""
        return self._load()

    @classmethod
    def find(
        cls, files: BaseFiles, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> IndexTTS2Vocoder | None:
        """The vocoder of a base folder; None where a file of it is missing.

        Names and shapes of all tensors are checked at once, so that a wrong file is refused before anything is spoken.
        """
        names = (get_s2mel_name(files), get_vocoder_folder(files), CODEC_NAME)
        if not all(path_exists(files.folder / name) for name in names):
            return None
        s2mel, bigvgan, codec = (files.folder / name for name in names)
        settings = read_base_config(files.config) if files.config else {}
        size = S2Mel.read_size(s2mel, settings)
        width = settings["gpt"].get("model_dim") if isinstance(settings.get("gpt"), dict) else None
        if width is not None and size.latents[0] != width:
            found = f"s2mel takes latents of {size.latents[0]:,} numbers"
            raise CheckpointError("tensors-mismatch", found, expected=f"{width:,}, as in the GPT", where=s2mel)
        BigVGAN.read_shapes(bigvgan)

        def load() -> VocoderParts:
            flow, waves = S2Mel.load(s2mel, settings).to(device), BigVGAN.load(bigvgan).to(device)
            return flow, waves, load_code_table(codec).to(device)

        campplus = files.folder / CAMPPLUS_NAME
        return cls(load, dtype, campplus if is_file(campplus) else None)

    def why_not(self, voice: Clip) -> str:
        if REFERENCE_AUDIO not in voice.voice:
            return "there is no recording of the voice"
        if STYLE not in voice.voice:
            return f"the voice was encoded without CAM++ ({CAMPPLUS_NAME} is missing from the base folder)"
        return "" if len(voice.codes) else "the recording of the voice has no codes"

    def add_recording(self, voice: Clip, samples: NDArray[np.float32], rate: int) -> Clip:
        """As for any other reference, with the codes that the clip has: those of the 15 seconds that are kept."""
        speaker, speaker_16k, _ = prepare_reference(samples, rate)
        found: dict[str, NDArray[Any]] = {**voice.voice, REFERENCE_AUDIO: speaker}
        if self._campplus is not None:
            found[STYLE] = CAMPPlus.load(self._campplus).embed([speaker_16k])[0].float().numpy()
        return Clip(voice.codes[: round(IndexTTS2.code_hz * len(speaker) / SAMPLE_RATE)], found)

    @torch.no_grad()
    def sound(
        self, codes: Sequence[Sequence[int]], voices: Sequence[Clip], latents: Sequence[Latents] | None = None
    ) -> list[NDArray[np.float32]]:
        """Utterances of similar length are solved together; each is what it would be alone, up to rounding."""
        given = [np.zeros((0, 0))] * len(codes) if latents is None else latents
        if not len(codes) == len(voices) == len(given):
            counts = f"{len(codes)} utterances, {len(voices)} voices and {len(given)} latents"
            raise GraftError("packing", counts, expected="the same number of each")
        prompts: dict[int, FlowPrompt] = {}
        contents: dict[int, Tensor] = {}
        for index, (own, voice, states) in enumerate(zip(codes, voices, given, strict=True)):
            if len(own):
                prompts[index] = self.prepare_prompt(voice)
                contents[index] = self.embed_codes(own, states)
        rendered = [np.zeros(0, dtype=np.float32)] * len(codes)
        indices = list(contents)
        lengths = [prompts[position].mel.shape[1] + count_target_frames(len(codes[position])) for position in indices]
        for batch in batch_by_length(lengths, BATCH_FRAMES):
            batch_indices = [indices[number] for number in batch]
            noises = [self.draw_noise(lengths[number]) for number in batch]
            waves = self.render(
                [prompts[position] for position in batch_indices],
                [contents[position] for position in batch_indices],
                noises,
            )
            for position, wave in zip(batch_indices, waves, strict=True):
                rendered[position] = wave.cpu().numpy()
        return rendered

    def render(
        self, prompts: Sequence[FlowPrompt], contents: Sequence[Tensor], noises: Sequence[Tensor]
    ) -> list[Tensor]:
        """Content vectors [n, 1024] with noise [M, P + F] to waves [256 F]."""
        frames = [count_target_frames(len(content)) for content in contents]
        s2mel, bigvgan, _ = self.parts
        targets = s2mel.length_regulator(contents, frames)
        mels = s2mel.solve(prompts, targets, noises, dtype=self.dtype)
        with exact_float32() if self.dtype is None else nullcontext():
            return bigvgan.vocode(mels)

    def draw_noise(self, num_frames: int) -> Tensor:
        """Standard normal noise of prompt and target. Drawn on the CPU, so that it is the same on every device."""
        return torch.randn(NUM_MELS, num_frames, generator=torch.Generator().manual_seed(self.seed))

    @exact_float32()
    def embed_codes(self, codes: Sequence[int], latents: Latents) -> Tensor:
        """Codes and their latents as the length regulator takes them. -> [n, 1024]"""
        s2mel, _, table = self.parts
        width = s2mel.size.latents[0]
        if latents.shape != (len(codes), width) or not np.isfinite(latents).all():
            found = f"latents {list(latents.shape)} for {len(codes):,} codes"
            raise GraftError("condition-form", found, expected=f"finite numbers [{len(codes)}, {width}]")
        lowest, highest = min(codes), max(codes)
        if lowest < 0 or highest >= len(table):
            found = f"code {lowest if lowest < 0 else highest}"
            raise AudioError("codes-outside", found, expected=f"0 to {len(table) - 1:,}")
        states = torch.from_numpy(np.ascontiguousarray(latents, np.float32)).to(table.device)
        return s2mel.embed_content(table[torch.tensor(list(codes), device=table.device)], states)

    @torch.no_grad()
    def prepare_prompt(self, voice: Clip) -> FlowPrompt:
        """Mel, content and style of a voice's recording; kept for the voices that were used last."""
        cached = self._prompts.pop(id(voice), None)
        if cached is None or cached[0] is not voice:
            cached = (voice, self._compute_prompt(voice))
        self._prompts[id(voice)] = cached
        while len(self._prompts) > MAX_KEPT_VOICES:
            del self._prompts[next(iter(self._prompts))]
        return cached[1]

    def _compute_prompt(self, voice: Clip) -> FlowPrompt:
        if why := self.why_not(voice):
            raise GraftError("vocoder-voice", why)
        s2mel, _, table = self.parts

        def to_device(array: NDArray[Any], dtype: type[np.generic] = np.float32) -> Tensor:
            return torch.from_numpy(np.asarray(array, dtype)).to(table.device)

        style = to_device(voice.voice[STYLE])
        if style.shape != (s2mel.size.dit.style,):
            expected = f"[{s2mel.size.dit.style}], as in s2mel"
            raise GraftError("condition-form", f"a style {list(style.shape)}", expected=expected)
        mel = compute_mel(to_device(voice.voice[REFERENCE_AUDIO]))  # [M, P]
        # The quantized vectors alone: the prompt has no latents.
        (condition,) = s2mel.length_regulator([table[to_device(voice.codes, np.int64)]], [mel.shape[1]])
        return FlowPrompt(mel, condition, style)


def list_indextts2_files(files: BaseFiles) -> tuple[PublishedTensors, ...]:
    """All but the model that finds emotion in a text, which voxgraft does not use."""
    config = files.config
    settings = read_base_config(config) if config is not None else {}
    statistics = get_statistics_name(files)

    def read_gpt(path: Path) -> UnifiedVoiceSize:
        return UnifiedVoiceSize.of(settings, read_tensor_shapes(path), path, config or "config.yaml")

    def read_statistics(path: Path) -> None:
        require_exact_tensors(read_tensor_shapes(path), dict.fromkeys(("mean", "var"), (FEATURE_WIDTH,)), "file", path)

    num_rows = sum(VECTORS_PER_EMOTION)

    def read_emotions(path: Path) -> dict[str, Any]:
        return {"rows and width": read_emotion_matrix(path, "emotion vectors", num_rows).shape}

    emotions = [
        PublishedTensors(
            ((config is not None and get_config_file_name(settings, key, config)) or CONFIG_NAMED_FILES[key][0],),
            CONFIG_NAMED_FILES[key][1],
            read_emotions,
            ({"rows and width": (num_rows, width)},),
            needed=False,
        )
        for key, width in (("spk_matrix", STYLE_WIDTH), ("emo_matrix", UnifiedVoiceSize().width))
    ]
    w2v_bert = tuple(f"{W2V_BERT_FOLDER}/{name}" for name in W2V_BERT_FILES)
    bigvgan = tuple(f"{get_vocoder_folder(files)}/{name}" for name in BIGVGAN_NAMES)
    return (
        PublishedTensors((files.checkpoint.name,), "GPT: the language model", read_gpt, (UnifiedVoiceSize(),)),
        PublishedTensors((statistics,), "mean and variance of the features", read_statistics, (None,)),
        PublishedTensors(w2v_bert, "w2v-bert 2.0: features of a recording", _read_w2v_bert, (DEFAULT_CONFIG_SIZES,)),
        PublishedTensors(
            (CODEC_NAME,),
            "semantic codec: codes of a recording",
            lambda path: SemanticCodec.read_shapes(path)[0],
            (SemanticCodecSize(),),
        ),
        PublishedTensors(
            (get_s2mel_name(files),),
            "s2mel: codes and latents to a mel",
            lambda path: S2Mel.read_size(path, settings),
            (S2MelSize(),),
            key=S2MEL_KEY,
        ),
        PublishedTensors(
            bigvgan,
            "BigVGAN: a mel to sound",
            lambda path: BigVGAN.read_shapes(path)[1],
            (BigVGANSize(),),
            key="generator",
        ),
        PublishedTensors(
            (CAMPPLUS_NAME,), "CAM++: the voice", lambda path: CAMPPlus.read_shapes(path)[0], (CAMPPlusSize(),)
        ),
        *emotions,
    )


def _read_w2v_bert(path: Path) -> dict[str, Any]:
    """The network that its config describes, all 24 layers of it. Its names are those of transformers."""
    library, sizes = import_transformers(), read_w2v_bert_sizes(path.with_name("config.json"))
    with init_empty_weights():
        network = library.Wav2Vec2BertModel(library.Wav2Vec2BertConfig(**sizes))
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    stored = read_tensor_shapes(path)
    # What training alone needs may be in the file or not.
    require_exact_tensors({name: shape for name, shape in stored.items() if name in shapes}, shapes, "w2v-bert", path)
    return {name: sizes[name] for name in DEFAULT_CONFIG_SIZES}
