"""S3Gen, Chatterbox's vocoder: speech codes and a reference recording to a 24 kHz waveform.

Flow (codes to mel), HiFT (mel to samples) and CAMPPlus (the reference's voice) of one published file, the vocoder that
a base folder has, and its streaming. Every random number is an argument or comes from the generator that is passed in.

Shapes: P codes and F mel frames of the reference, N codes of an utterance, T = 2 (P + N) frames of both, L samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

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
from voxgraft.checkpoints.base import ByteSource, Shape
from voxgraft.checkpoints.load import read_tensor_shapes, read_tensors
from voxgraft.checkpoints.torch_file import read_torch_state_dict
from voxgraft.core.errors import AudioError, CheckpointError, Finding, GraftError, finding
from voxgraft.core.files import is_file
from voxgraft.models.base import (
    REFERENCE_AUDIO,
    Clip,
    Latents,
    SoundStream,
    Vocoder,
    prefix_shapes,
    require_a_voice_each,
    require_exact_tensors,
)
from voxgraft.models.campplus import COUNTER, CAMPPlus, CAMPPlusSize
from voxgraft.models.chatterbox.encoder import (
    FRAME,
    REFERENCE_SECONDS,
    SpeechTokenizer,
    SpeechTokenizerSize,
    cut_reference,
)
from voxgraft.models.chatterbox.family import (
    CONDITIONS_NAME,
    NUM_SPEECH_CODES,
    S3GEN_FILES,
    SPEECH_TOKENIZER_MELS,
    SPEECH_TOKENIZER_PREFIX,
    speech_tokenizer_shapes,
)
from voxgraft.models.chatterbox.flow import FRAMES_PER_CODE, LOOKAHEAD, NUM_MELS, SPEAKER_WIDTH, CodeToMel, FlowSize
from voxgraft.models.chatterbox.hift import (
    DILATIONS,
    F0_LAYERS,
    HOP,
    NUM_HARMONICS,
    RESIDUAL_KERNELS,
    SAMPLE_RATE,
    SOURCE_DOWNSAMPLES,
    SOURCE_KERNELS,
    STFT_HOP,
    STFT_WINDOW,
    UPSAMPLES,
    HiFT,
    HiftSize,
    fold_weight_norm,
    published_shapes,
)
from voxgraft.nn.layers import SolverGraphs, init_empty_weights, no_init_weights, pad_frames

MEL_FFT = 1920
MEL_TOP_HZ = 8000.0
TOKENIZER_RATE = 16_000
# The original takes any length from 45 ms on; less than this is no voice.
REFERENCE_LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=SAMPLE_RATE // 2)
# The first frame of the vocoder has nothing before it: 20 ms of silence, then 20 ms of fading in.
FADE_SAMPLES = HOP
# Mel frames in one batch, padding and references included.
BATCH_FRAMES = 12_000
MAX_CACHED_REFERENCES = 16
# What a whole S3Gen has; a file for preparing data may hold the last alone.
S3GEN_PARTS = ("flow.", "mel2wav.", SPEECH_TOKENIZER_PREFIX)


@dataclass(frozen=True, slots=True)
class S3GenSize:
    """The sizes of the parts; as published by default."""

    flow: FlowSize = field(default_factory=FlowSize)
    hift: HiftSize = field(default_factory=HiftSize)
    speaker: CAMPPlusSize = field(default_factory=CAMPPlusSize)

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> S3GenSize:
        """The size that the tensors of a file have; as published where they do not say."""

        def side(name: str, axis: int, published: int) -> int:
            shape = shapes.get(name, ())
            return shape[axis] if axis < len(shape) and shape[axis] > 0 else published

        def count(prefix: str, published: int) -> int:
            numbers = {name[len(prefix) :].partition(".")[0] for name in shapes if name.startswith(prefix)}
            known = [int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) < 5]
            # Up to the last one that exists, so that a missing one before it is noticed.
            return max((number + 1 for number in known if number < len(shapes)), default=published)

        standard, unet = FlowSize(), "flow.decoder.estimator."
        inner = side(f"{unet}mid_blocks.0.1.0.attn1.to_q.weight", 0, standard.inner)
        flow = FlowSize(
            encoder_layers=count("flow.encoder.encoders.", standard.encoder_layers),
            encoder_mlp=side("flow.encoder.encoders.0.feed_forward.w_1.weight", 0, standard.encoder_mlp),
            width=side(f"{unet}final_proj.weight", 1, standard.width),
            inner=inner if inner % standard.head_width == 0 else standard.inner,
            transformers=count(f"{unet}down_blocks.0.1.", standard.transformers),
            mid_blocks=count(f"{unet}mid_blocks.", standard.mid_blocks),
            meanflow=f"{unet}time_embed_mixer.weight" in shapes,
        )
        width = side("mel2wav.conv_pre.bias", 0, HiftSize().width)
        hift = HiftSize(
            width if width % 8 == 0 else HiftSize().width, side("mel2wav.f0_predictor.condnet.0.bias", 0, 512)
        )
        prefix = "speaker_encoder."
        speaker = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
        return cls(flow, hift, CAMPPlusSize.of(speaker))


@dataclass(frozen=True, slots=True)
class S3GenReference:
    """Whose voice it is, as S3Gen takes it."""

    codes: Tensor  # [P]
    mel: Tensor  # [F, 80]
    speaker: Tensor  # [192]

    def __post_init__(self) -> None:
        shapes = [list(self.codes.shape), list(self.mel.shape), list(self.speaker.shape)]
        if self.codes.dim() != 1 or self.mel.dim() != 2 or shapes[1][1] != NUM_MELS or shapes[2] != [SPEAKER_WIDTH]:
            found = f"a reference of codes {shapes[0]}, mel {shapes[1]} and speaker {shapes[2]}"
            raise GraftError("condition-form", found, expected=f"[P], [F, {NUM_MELS}] and [{SPEAKER_WIDTH}]")
        # An odd number of frames has one that belongs to no code.
        if len(self.mel) not in (FRAMES_PER_CODE * len(self.codes), FRAMES_PER_CODE * len(self.codes) + 1):
            found = f"a reference of {len(self.codes)} codes and {len(self.mel)} mel frames"
            raise GraftError("condition-form", found, expected="two frames per code, and at most one more")

    def num_frames(self, num_codes: int) -> int:
        """Mel frames of an utterance of that many codes: one less than two each where the reference is odd."""
        return FRAMES_PER_CODE * (len(self.codes) + num_codes) - len(self.mel)


@dataclass(frozen=True, slots=True)
class S3GenNoise:
    """All that is random about one utterance."""

    flow: Tensor  # [80, T], normal
    phases: Tensor  # [9, 1], uniform in -pi to pi
    source: Tensor  # [9, L], normal

    @classmethod
    def draw(
        cls, generator: torch.Generator, num_codes: int, reference: S3GenReference, *, meanflow: bool = False
    ) -> S3GenNoise:
        """In upstream's order: a CPU generator with its seed gives its numbers."""
        device = generator.device
        new = FRAMES_PER_CODE * num_codes
        # The mean flow draws the utterance's own frames first, then all of them.
        own = torch.randn(NUM_MELS, new, generator=generator, device=device) if meanflow else None
        frames = FRAMES_PER_CODE * len(reference.codes) + new
        flow = torch.randn(NUM_MELS, frames, generator=generator, device=device)
        if own is not None:
            flow[:, frames - new :] = own
        phases = torch.rand(NUM_HARMONICS, 1, generator=generator, device=device) * (2 * math.pi) - math.pi
        samples = HOP * reference.num_frames(num_codes)
        return cls(flow, phases, torch.randn(NUM_HARMONICS, samples, generator=generator, device=device))


class S3Gen(nn.Module):
    """Flow, vocoder and voice encoder. The speech tokenizer of the same file is a model of its own."""

    fade: Tensor
    filters: Tensor

    def __init__(self, size: S3GenSize | None = None) -> None:
        super().__init__()
        self.size = size or S3GenSize()
        self.flow_dtype: torch.dtype | None = None
        """Half precision for the flow, which takes most of the time, with TF32 in HiFT; None is exact float32."""
        self.flow = CodeToMel(self.size.flow)
        self.mel2wav = HiFT(self.size.hift)
        self.speaker_encoder = CAMPPlus(self.size.speaker)
        self.graphs = SolverGraphs(self.flow.graphs)
        """Of HiFT; encoder and decoder of the flow have their own. They run in turn and share their memory."""
        rise = torch.linspace(math.pi, 0.0, FADE_SAMPLES).cos().add(1.0) / 2
        self.register_buffer("fade", torch.cat([torch.zeros(FADE_SAMPLES), rise]), persistent=False)
        filters = mel_filters(SAMPLE_RATE, MEL_FFT, NUM_MELS, MEL_TOP_HZ)
        self.register_buffer("filters", filters, persistent=False)
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, path: Path) -> S3Gen:
        """From an `s3gen` file, whose tensors must be exactly those of a whole S3Gen."""
        size = validate_s3gen_file(path)
        with no_init_weights():
            model = cls(size)
        shapes = {name: shape for name, shape in published_shapes(model).items() if not name.endswith(COUNTER)}
        counters = {name: tensor for name, tensor in model.state_dict().items() if name.endswith(COUNTER)}
        model.load_state_dict(counters | fold_weight_norm(read_tensors(path, shapes)), assign=True)
        return model.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        return self.fade.device

    def precision(self) -> AbstractContextManager[None]:
        """How products and convolutions are rounded inside this block."""
        return exact_float32() if self.flow_dtype is None else nullcontext()

    @torch.no_grad()
    def prepare_reference(self, wave: Waveform, tokenizer: SpeechTokenizer) -> S3GenReference:
        """The voice of a 24 kHz recording, of which the first ten seconds count."""
        samples = validate_waveform(wave[: REFERENCE_SECONDS * SAMPLE_RATE], REFERENCE_LIMITS, "the reference")
        if compute_peak_frame_power(samples) <= SILENCE_POWER:
            found = f"{REFERENCE_LIMITS.describe(len(samples))}, all of them silent"
            raise AudioError("audio-silent", found, expected="a voice", where="the reference")
        samples = samples.to(self.device)
        mel = hifigan_mel(samples, self.filters, MEL_FFT, HOP)  # [F, 80]
        resampled = resample_sinc(samples, SAMPLE_RATE, TOKENIZER_RATE)
        codes = torch.from_numpy(tokenizer.encode([resampled])[0])[: len(mel) // FRAMES_PER_CODE]
        return S3GenReference(codes, mel, self.speaker_encoder.embed([resampled])[0])

    @torch.no_grad()
    def generate(
        self,
        codes: Sequence[Sequence[int]],
        references: Sequence[S3GenReference],
        noise: Sequence[S3GenNoise],
        steps: int | None = None,
    ) -> list[Tensor]:
        """One batch: the waveform of each utterance, as if it were alone. -> [L] each"""
        with self.precision():
            mels = self.generate_mels(codes, references, noise, steps)
            counts = [len(mel) for mel in mels]
            mel = nn.utils.rnn.pad_sequence(mels, batch_first=True).transpose(1, 2)  # [B, 80, frames]
            phases = torch.stack([own.phases for own in noise]).to(self.fade)  # [B, 9, 1]
            source = _pad_last([own.source.to(self.fade) for own in noise])  # [B, 9, L]
            # Float32 runs as it is: the exact path has no second way.
            longest = mel.shape[-1] if self.flow_dtype is None else pad_frames(mel.shape[-1], self.device)
            mel = F.pad(mel, (0, longest - mel.shape[-1]))
            source = F.pad(source[..., : HOP * longest], (0, max(0, HOP * longest - source.shape[-1])))
            lengths = None if min(counts) == longest else torch.tensor(counts, device=self.device)
            inputs = (mel, phases, source) if lengths is None else (mel, phases, source, lengths)
            if self.flow_dtype is None:
                waves = self.mel2wav(*inputs)[0]
            else:
                kind = self.mel2wav.conv_pre.weight.data_ptr()
                all_frames = len(mel) * longest
                waves = self.graphs.run(lambda *given: self.mel2wav(*given)[0], kind, *inputs, num_frames=all_frames)
        waves[:, : len(self.fade)] *= self.fade[: waves.shape[1]]
        return [wave[: HOP * count] for wave, count in zip(waves, counts, strict=True)]

    @torch.no_grad()
    def generate_mels(
        self,
        codes: Sequence[Sequence[int]],
        references: Sequence[S3GenReference],
        noise: Sequence[S3GenNoise],
        steps: int | None = None,
    ) -> list[Tensor]:
        """The mel of each utterance without its reference, as if it were alone. -> [frames, 80] each"""
        rows = [
            torch.cat([reference.codes.cpu(), validate_codes(own)])
            for own, reference in zip(codes, references, strict=True)
        ]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)  # [B, P + N]
        counts = torch.tensor([len(row) for row in rows])
        mask = None
        if len(set(counts.tolist())) > 1:
            mask = (torch.arange(ids.shape[1]) < counts[:, None]).to(self.device)
        num_frames = FRAMES_PER_CODE * ids.shape[1]
        prompt = self.fade.new_zeros(len(rows), num_frames, NUM_MELS)
        for row, reference in zip(prompt, references, strict=True):
            row[: len(reference.mel)] = reference.mel
        speaker = torch.stack([reference.speaker.to(self.fade) for reference in references])
        start = _pad_last([own.flow for own in noise]).transpose(1, 2).to(self.fade)  # [B, T, 80]
        mel = self.flow(ids.to(self.device), speaker, prompt, start, mask, steps, self.flow_dtype)  # [B, T, 80]
        return [
            own[len(reference.mel) : FRAMES_PER_CODE * len(row)]
            for own, reference, row in zip(mel, references, rows, strict=True)
        ]


def _pad_last(rows: Sequence[Tensor]) -> Tensor:
    """Rows [C, n] of different lengths, zeros behind each. -> [B, C, longest]"""
    return nn.utils.rnn.pad_sequence([row.T for row in rows], batch_first=True).transpose(1, 2)


def validate_codes(codes: Sequence[int]) -> Tensor:
    """Codes of one utterance as a tensor; refused unless all of them are some. -> [N]"""
    row = np.asarray(codes)
    if row.ndim != 1 or not len(row) or row.dtype.kind not in "iu":
        found = f"speech codes as {row.dtype} of shape {list(row.shape)}"
        raise AudioError("codes-outside", found, expected="one-dimensional whole numbers", where="S3Gen")
    if row.min() < 0 or row.max() >= NUM_SPEECH_CODES:
        found = f"code {int(row[(row < 0) | (row >= NUM_SPEECH_CODES)][0])}"
        raise AudioError("codes-outside", found, expected=f"0 to {NUM_SPEECH_CODES - 1}", where="S3Gen")
    return torch.from_numpy(row.astype(np.int64))


def validate_s3gen_file(path: Path) -> S3GenSize:
    """The size of a whole S3Gen; an error that names the tensors which are missing, of another shape, or unknown.

    Tables that can be computed and counters of training steps may be absent, as they are in some published files.
    """
    stored = read_tensor_shapes(path)
    size = S3GenSize.of(stored)
    with init_empty_weights():
        expected = published_shapes(S3Gen(size))
    prefix = SPEECH_TOKENIZER_PREFIX
    tokenizer = SpeechTokenizerSize.of(
        {name.removeprefix(prefix): shape for name, shape in stored.items() if name.startswith(prefix)}
    )
    expected |= prefix_shapes(prefix.rstrip("."), speech_tokenizer_shapes(tokenizer.width, tokenizer.layers))
    tables = {prefix + "_mel_filters": (SPEECH_TOKENIZER_MELS, FRAME // 2 + 1), prefix + "window": (FRAME,)}
    optional = {name for name in expected if name.endswith(COUNTER)} | set(tables)
    needed = {name: shape for name, shape in (expected | tables).items() if name in stored or name not in optional}
    require_exact_tensors(stored, needed, "S3Gen", path)
    return size


def read_built_in_reference(path: Path) -> S3GenReference:
    """The vocoder's half of `conds.pt`."""
    names = ("prompt_token", "prompt_feat", "embedding")
    with read_torch_state_dict(ByteSource(path), "gen") as part:
        if missing := [name for name in names if name not in part.tensors]:
            raise CheckpointError("tensors-mismatch", f"{' and '.join(missing)} not in {path.name}", where=path)
        codes, mel, speaker = (np.asarray(part.read(name)) for name in names)
    if mel.ndim != 3 or not len(mel):
        raise CheckpointError(
            "tensors-mismatch", f"prompt_feat is {list(mel.shape)}", expected="[1, F, 80]", where=path
        )
    # Ids may have been cast to the model's float type by whoever saved them.
    codes = codes.reshape(-1)[: mel.shape[1] // FRAMES_PER_CODE].astype(np.int64)
    return S3GenReference(
        validate_codes(codes.tolist()),
        torch.from_numpy(mel[0].astype(np.float32)),
        torch.from_numpy(speaker.reshape(-1).astype(np.float32)),
    )


@cache
def find_watermarker() -> Any | None:
    """The original program's inaudible watermark; None where its package is not installed."""
    try:
        make = import_module("perth").PerthImplicitWatermarker
    except ModuleNotFoundError:
        return None
    return None if make is None else make()  # the package has None there if something that it needs is missing


@dataclass
class S3GenVocoder(Vocoder):
    """S3Gen of a base folder. Names and shapes are checked when it is found, weights are read when it first sounds.

    Its sound has the Perth watermark, as the original program's has, where the package `resemble-perth` is installed.
    """

    path: Path
    conditions: Path | None = None
    device: str = "cpu"
    dtype: torch.dtype | None = None
    """Half precision for the flow on CUDA; None is float32 throughout."""
    seed: int = 0
    """Every utterance is drawn from a generator of its own with this seed, so that none depends on its neighbours."""
    refusal: CheckpointError | None = None
    """Why the file is no whole S3Gen. Training continues without sound; who asks for nothing but sound is refused."""
    sample_rate = SAMPLE_RATE
    _model: S3Gen | None = None
    _tokenizer: SpeechTokenizer | None = None
    _references: dict[bytes, S3GenReference] = field(default_factory=dict)

    @classmethod
    def find(cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> S3GenVocoder | None:
        """None where the folder has no S3Gen, or one for preparing data alone."""
        path = next((folder / name for name in S3GEN_FILES if is_file(folder / name)), None)
        if path is None:
            return None
        names = list(read_tensor_shapes(path))
        if not all(any(name.startswith(part) for name in names) for part in S3GEN_PARTS):
            return None
        refusal = None
        try:
            validate_s3gen_file(path)
        except CheckpointError as error:
            refusal = error
        conditions = folder / CONDITIONS_NAME
        return cls(path, conditions if is_file(conditions) else None, device, dtype, refusal=refusal)

    def validate(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def findings(self) -> list[Finding]:
        if find_watermarker() is not None:
            return []
        return [finding("watermark-absent", "the speech has no watermark: the package resemble-perth is not installed")]

    def why_not(self, voice: Clip) -> str:
        if self.refusal is not None:
            return self.refusal.finding.found
        if REFERENCE_AUDIO in voice.voice or self.conditions is not None:
            return ""
        return f"there is neither a recording of the voice nor {CONDITIONS_NAME} in the base folder"

    def add_recording(self, voice: Clip, samples: NDArray[np.float32], rate: int) -> Clip:
        return Clip(voice.codes, {**voice.voice, REFERENCE_AUDIO: cut_reference(samples, rate)})

    @property
    def model(self) -> S3Gen:
        if self._model is None:
            self._model = S3Gen.load(self.path).to(self.device)
            self._model.flow_dtype = self.dtype
        return self._model

    def sound(
        self,
        codes: Sequence[Sequence[int]],
        voices: Sequence[Clip],
        latents: Sequence[Latents] | None = None,  # noqa: ARG002 (codes say everything)
    ) -> list[NDArray[np.float32]]:
        require_a_voice_each(codes, voices)
        self.validate()
        mark = find_watermarker()
        waves = [np.zeros(0, dtype=np.float32)] * len(codes)
        nonempty = [index for index, own in enumerate(codes) if len(own)]
        references = {index: self.reference(voices[index]) for index in nonempty}
        lengths = [FRAMES_PER_CODE * (len(references[index].codes) + len(codes[index])) for index in nonempty]
        for batch in batch_by_length(lengths, BATCH_FRAMES):
            indices = [nonempty[number] for number in batch]
            own = [references[index] for index in indices]
            noise = [self.draw_noise(len(codes[index]), references[index]) for index in indices]
            for index, wave in zip(
                indices, self.model.generate([codes[position] for position in indices], own, noise), strict=True
            ):
                samples = wave.cpu().numpy()
                marked = samples if mark is None else mark.apply_watermark(samples, sample_rate=SAMPLE_RATE)
                waves[index] = np.asarray(marked, dtype=np.float32)
        return waves

    def stream(self, voice: Clip, max_codes: int) -> SoundStream:

        self.validate()
        reference = self.reference(voice)
        return S3GenSoundStream(self.model, reference, self.draw_noise(max_codes, reference), find_watermarker())

    def reference(self, voice: Clip) -> S3GenReference:
        """The recording's voice, or the built-in one; prepared once for each recording."""
        if why := self.why_not(voice):
            raise AudioError("vocoder-voice", why, where=self.path.parent)
        recording = voice.voice.get(REFERENCE_AUDIO)
        name = b"" if recording is None else blake2b(np.ascontiguousarray(recording).tobytes(), digest_size=16).digest()
        if name not in self._references:
            while len(self._references) >= MAX_CACHED_REFERENCES:
                self._references.pop(next(iter(self._references)))
            self._references[name] = self._prepare(recording)
        return self._references[name]

    def _prepare(self, recording: NDArray[np.floating] | None) -> S3GenReference:
        if recording is None:
            assert self.conditions is not None
            return read_built_in_reference(self.conditions)
        if self._tokenizer is None:
            self._tokenizer = SpeechTokenizer.load(self.path).to(self.device)
        return self.model.prepare_reference(np.asarray(recording, dtype=np.float32), self._tokenizer)

    def draw_noise(self, num_codes: int, reference: S3GenReference) -> S3GenNoise:
        """All random numbers of an utterance, from a generator with the vocoder's seed."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        return S3GenNoise.draw(generator, num_codes, reference, meanflow=self.model.size.flow.meanflow)


# ---- streaming -------------------------------------------------------------------------------------------------------
# Sound of a sentence's start while its last codes are still being drawn. Each call of the flow sees the reference and
# all codes so far. Its last codes wait for the three that they look ahead at; the frames before them are kept as they
# are, and later calls only add frames. The vocoder decodes each piece of the growing mel with enough frames on both
# sides that no sample depends on where the pieces were cut. Joins are exact: the streamed sound is the waveform of the
# kept mel, without any fading over.
#
# The kept mel is not the mel of the whole sentence at once: attention in encoder and U-Net sees all codes in both
# directions, so that early frames would still change with late codes.

# The pitch of a frame depends on one frame for each layer on either side.
F0_CONTEXT = F0_LAYERS


def _decoder_context() -> int:
    """Mel frames on either side that a sample depends on, through the mel or through the source."""
    reach = {kernel: kernel // 2 * (sum(DILATIONS) + len(DILATIONS)) for kernel in (*RESIDUAL_KERNELS, *SOURCE_KERNELS)}
    spectra = HOP // STFT_HOP
    through_mel, through_source, rate = 3.0, 0.0, 1  # conv_pre
    for (kernel, stride, _), (down, _, _), own in zip(UPSAMPLES, SOURCE_DOWNSAMPLES, SOURCE_KERNELS, strict=True):
        through_mel += kernel / stride / rate
        through_source += kernel / stride / rate
        rate *= stride
        through_source = max(through_source, down / spectra + reach[own] / rate)
        through_mel += reach[max(RESIDUAL_KERNELS)] / rate
        through_source += reach[max(RESIDUAL_KERNELS)] / rate
    # conv_post, and the windows of both transforms.
    return math.ceil(max(through_mel, through_source) + (3 + 2 * STFT_WINDOW / STFT_HOP) / spectra)


CONTEXT = _decoder_context()


class S3GenStream:
    """One utterance: feed it codes as they come, and finish it. Each call gives the samples that are certain."""

    def __init__(self, model: S3Gen, reference: S3GenReference, noise: S3GenNoise) -> None:
        """`noise` is that of the longest utterance there may be; a shorter one uses its start."""
        self.model, self.reference, self.noise = model, reference, noise
        self.codes: list[int] = []
        self.mel = model.fade.new_zeros(NUM_MELS, 0)  # [80, frames that are kept]
        self.source = model.fade.new_zeros(0)  # [samples whose pitch is certain]
        self._cycles: Tensor | float = 0.0  # of each harmonic, [1, 9, 1]
        self._sounded = 0
        self._ended = False

    def feed(self, codes: Sequence[int]) -> Tensor:
        """More codes. -> [samples], often none at first"""
        return self._go_on(codes, last=False)

    def finish(self, codes: Sequence[int] = ()) -> Tensor:
        """The last codes, if there are more, and all samples that are left. -> [samples]"""
        return self._go_on(codes, last=True)

    @torch.no_grad()
    def _go_on(self, codes: Sequence[int], *, last: bool) -> Tensor:
        if self._ended:
            raise GraftError("packing", "codes for an utterance that was finished", expected="a new stream")
        if len(codes):
            self.codes += validate_codes(codes).tolist()
        longest = (self.noise.flow.shape[1] - FRAMES_PER_CODE * len(self.reference.codes)) // FRAMES_PER_CODE
        if len(self.codes) > longest:
            found = f"the utterance has {len(self.codes):,} codes"
            raise AudioError("codes-outside", found, expected=f"at most {longest:,}")
        self._ended = last
        with self.model.precision():
            self._grow_mel(last=last)
            self._grow_source(last=last)
            return self._sound(last=last)

    def _grow_mel(self, *, last: bool) -> None:
        ready = len(self.codes) if last else len(self.codes) - LOOKAHEAD
        if ready <= 0 or self.reference.num_frames(ready) <= self.mel.shape[1]:
            return
        frames = FRAMES_PER_CODE * (len(self.reference.codes) + len(self.codes))
        noise = S3GenNoise(self.noise.flow[:, :frames], self.noise.phases, self.noise.source)
        (mel,) = self.model.generate_mels([self.codes], [self.reference], [noise])
        fresh = mel[self.mel.shape[1] : self.reference.num_frames(ready)].T
        self.mel = torch.cat([self.mel, fresh], dim=1)

    def _grow_source(self, *, last: bool) -> None:
        """Pitch and source of the frames that no later frame can change."""
        start, known = self.source.shape[0] // HOP, self.mel.shape[1]
        end = known if last else known - F0_CONTEXT
        if end <= start:
            return
        first = max(0, start - F0_CONTEXT)
        pitch = self.model.mel2wav.f0_predictor(self.mel[None, :, first:])[
            :, start - first : end - first
        ]  # [1, frames]
        noise = self.noise.source[None, :, HOP * start : HOP * end].to(self.source)
        source = self.model.mel2wav.m_source(pitch, self.noise.phases[None].to(self.source), noise, self._cycles)
        self._cycles = self._cycles + self.model.mel2wav.m_source.count_cycles(pitch)
        self.source = torch.cat([self.source, source[0]])

    def _sound(self, *, last: bool) -> Tensor:
        known = self.source.shape[0] // HOP
        end = known if last else known - CONTEXT
        if end <= self._sounded:
            return self.source[:0]
        first, begin = max(0, self._sounded - CONTEXT), self._sounded
        wave = self.model.mel2wav.decode(self.mel[None, :, first:known], self.source[None, HOP * first :])[0]
        wave = wave[HOP * (begin - first) : HOP * (end - first)]
        fade = self.model.fade[HOP * begin :][: len(wave)]
        wave[: len(fade)] *= fade
        self._sounded = end
        return wave


# Samples before a piece that the watermark is computed with, so that it does not restart at every join.
MARK_CONTEXT = SAMPLE_RATE // 2


class S3GenSoundStream:
    """A stream as the engine takes it: samples in memory of the CPU, with the watermark where there is one."""

    def __init__(self, model: S3Gen, reference: S3GenReference, noise: S3GenNoise, mark: Any | None = None) -> None:
        self._stream, self._mark = S3GenStream(model, reference, noise), mark
        self._before = np.zeros(0, dtype=np.float32)

    def feed(self, codes: Sequence[int]) -> NDArray[np.float32]:
        return self._marked(self._stream.feed(codes))

    def finish(self, codes: Sequence[int] = ()) -> NDArray[np.float32]:
        return self._marked(self._stream.finish(codes))

    def _marked(self, wave: Tensor) -> NDArray[np.float32]:
        samples: NDArray[np.float32] = wave.float().cpu().numpy()
        if self._mark is None or not len(samples):
            return samples
        known = np.concatenate([self._before, samples])
        marked = self._mark.apply_watermark(known, sample_rate=SAMPLE_RATE)
        self._before = known[-MARK_CONTEXT:]
        return np.asarray(marked, dtype=np.float32)[len(known) - len(samples) :]
