"""From samples to features on torch: exact float32, mel spectra, checked waveforms, and batches of similar length."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.core.errors import AudioError


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Neither TF32 nor autocast inside the block, whatever training has chosen; also a decorator.

    Autocast rounds to half precision, and TF32 rounds the inputs of CUDA's products, convolutions and LSTMs to ten
    bits. Codes change with either, and so would prepared data with the machine. TF32 is a setting of the process: not
    for several threads.
    """
    cudnn: Any = torch.backends.cudnn  # `conv` and `rnn` are made at import, unseen by a type checker
    backends: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        with contextlib.ExitStack() as plain:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    plain.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


# Slaney's mel scale is linear up to 1 kHz and logarithmic above (27 steps from 1 kHz to 6.4 kHz).
MEL_BREAK_HZ = 1000.0
HZ_PER_MEL = 200.0 / 3
MEL_LOG_STEP = math.log(6.4) / 27.0
# HTK's is 2595 log10(1 + Hz / 700).
HTK_FACTOR, HTK_HZ = 2595.0, 700.0

TRIM_FRAME = 2048
TRIM_HOP = 512
# Mean square of a frame, -100 dB: what is quieter than this counts as equally quiet.
SILENCE_POWER = 1e-10


def mel_filters(
    sample_rate: int,
    num_fft: int,
    num_mels: int,
    top_hz: float | None = None,
    *,
    htk: bool = False,
    equal_areas: bool = True,
) -> Tensor:
    """Triangles from 0 Hz to `top_hz` or half the sample rate, on Slaney's mel scale or on HTK's. float32 [M, K]

    Each has the same area, or with `equal_areas` off the height 1.
    """
    nyquist = sample_rate / 2
    top = top_hz or nyquist
    if htk:
        mels = torch.linspace(0.0, HTK_FACTOR * math.log10(1 + top / HTK_HZ), num_mels + 2, dtype=torch.float64)
        edges = HTK_HZ * (10 ** (mels / HTK_FACTOR) - 1)  # Hz, [M + 2]
    else:
        break_mel = MEL_BREAK_HZ / HZ_PER_MEL
        top_mel = top / HZ_PER_MEL if top < MEL_BREAK_HZ else break_mel + math.log(top / MEL_BREAK_HZ) / MEL_LOG_STEP
        mels = torch.linspace(0.0, top_mel, num_mels + 2, dtype=torch.float64)
        logarithmic = MEL_BREAK_HZ * torch.exp(MEL_LOG_STEP * (mels - break_mel))
        edges = torch.where(mels < break_mel, mels * HZ_PER_MEL, logarithmic)
    frequencies = torch.linspace(0.0, nyquist, num_fft // 2 + 1, dtype=torch.float64)  # [K]
    widths = edges.diff()[:, None]  # [M + 1, 1]
    distances = frequencies - edges[:, None]  # [M + 2, K]
    rising = distances[:-2] / widths[:-1]
    falling = -distances[2:] / widths[1:]
    triangles = torch.minimum(rising, falling).clamp_min(0.0)  # [M, K]
    if equal_areas:
        triangles = triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return triangles.float()


def power_spectrum(wave: Tensor, window: Tensor, hop: int) -> Tensor:
    """Power in frames as long as the window, centred on every `hop`-th sample, the ends mirrored. [N] -> [K, F]

    F = 1 + N // hop. The mirror needs more samples than half a window.
    """
    num_fft = len(window)
    transformed = torch.stft(
        wave, num_fft, hop, window=window, center=True, pad_mode="reflect", normalized=False, return_complex=True
    )
    return transformed.abs().square()


def hifigan_mel(wave: Tensor, filters: Tensor, num_fft: int, hop: int) -> Tensor:
    """Log mel magnitudes as HiFi-GAN has them: mirrored ends, frames not centred. [N], [M, K] -> [N // hop, M]"""
    margin = (num_fft - hop) // 2
    padded = torch.nn.functional.pad(wave[None], (margin, margin), mode="reflect")[0]
    window = torch.hann_window(num_fft, device=wave.device)
    spectrum = torch.stft(padded, num_fft, hop, window=window, center=False, return_complex=True)  # [K, F]
    magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()
    with exact_float32():
        return (filters.to(wave.device) @ magnitude).clamp_min(1e-5).log().T


SINC_WIDTH, SINC_ROLLOFF = 6, 0.99


def resample_sinc(wave: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """Resampling by a Hann-windowed sinc, as torchaudio does it by default. [N] -> [ceil(N to / from)]

    Reference features of the vocoders were trained on it; the ordinary `resample` gives slightly other samples.
    """
    if from_hz == to_hz:
        return wave
    kernel, width = _sinc_kernel(from_hz, to_hz)
    stride = from_hz // math.gcd(from_hz, to_hz)
    padded = torch.nn.functional.pad(wave[None, None], (width, width + stride))
    phases = torch.nn.functional.conv1d(padded, kernel.to(wave)[:, None], stride=stride)  # [1, phases, steps]
    return phases[0].T.flatten()[: -(-len(wave) * to_hz // from_hz)]


@cache
def _sinc_kernel(from_hz: int, to_hz: int) -> tuple[Tensor, int]:
    """One row of taps for each phase of the output [phases, taps], and how many taps lie before the first sample."""
    divisor = math.gcd(from_hz, to_hz)
    source, target = from_hz // divisor, to_hz // divisor
    cutoff = min(source, target) * SINC_ROLLOFF
    width = math.ceil(SINC_WIDTH * source / cutoff)
    taps = torch.arange(-width, width + source, dtype=torch.float64) / source
    times = taps - torch.arange(target, dtype=torch.float64)[:, None] / target  # [phases, taps]
    times = (times * cutoff).clamp(-SINC_WIDTH, SINC_WIDTH)
    window = torch.cos(times * math.pi / SINC_WIDTH / 2).square()
    return (torch.sinc(times) * window * cutoff / source).float(), width


def find_sound_bounds(wave: Tensor, below_loudest_db: float) -> tuple[int, int]:
    """Start and end, in samples, of what is between the first and the last frame that is not too quiet. [N]

    A frame is too quiet if it is `below_loudest_db` or more below the loudest. A clip without any sound is kept whole.
    """
    powers = _frame_powers(wave)  # [F]
    loud = powers > powers.max() * 10 ** (-below_loudest_db / 10)
    loud_frames = loud.nonzero().flatten()
    return int(loud_frames[0]) * TRIM_HOP, min(len(wave), (int(loud_frames[-1]) + 1) * TRIM_HOP)


def compute_peak_frame_power(wave: Tensor) -> float:
    """Mean square of the loudest frame; SILENCE_POWER for silence."""
    return float(_frame_powers(wave).max())


def _frame_powers(wave: Tensor) -> Tensor:
    """Mean squares of overlapping frames, zeros before the start and after the end. [N] -> [F]"""
    squares = torch.nn.functional.pad(wave.double().square(), (TRIM_FRAME // 2, TRIM_FRAME // 2))
    return squares.unfold(0, TRIM_FRAME, TRIM_HOP).mean(-1).clamp_min(SILENCE_POWER)


SAMPLE_RATE = 16_000
FRAME_HZ = 100
HOP = SAMPLE_RATE // FRAME_HZ
STFT_WINDOW = 4 * HOP
# Added to the power of each band before the logarithm: what is quieter than this cannot be distinguished from silence.
POWER_FLOOR = 1e-5
# About the mean and the deviation of speech, so that the output lies around zero.
LOG_MEL_MEAN, LOG_MEL_STD = -4.0, 4.0


class LogMel(nn.Module):
    """Waves to frames. Has no parameters; its tables are computed when it is built, not saved."""

    window: Tensor
    filters: Tensor

    def __init__(self, num_mels: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(STFT_WINDOW), persistent=False)
        self.register_buffer("filters", mel_filters(SAMPLE_RATE, STFT_WINDOW, num_mels), persistent=False)  # [M, K]

    def forward(self, waves: Tensor) -> Tensor:
        """[B, S] -> [B, F, M]; S must be a multiple of 160."""
        margin = (STFT_WINDOW - HOP) // 2
        padded = nn.functional.pad(waves.float(), (margin, margin))
        spectrum = torch.stft(
            padded, STFT_WINDOW, HOP, window=self.window, center=False, return_complex=True
        )  # [B, K, F]
        power = torch.view_as_real(spectrum).square().sum(-1)  # [B, K, F]
        with torch.autocast(power.device.type, enabled=False):
            bands = power.transpose(1, 2) @ self.filters.T  # [B, F, M]
        return ((bands + POWER_FLOOR).log() - LOG_MEL_MEAN) / LOG_MEL_STD


Waveform = Tensor | NDArray[np.floating]
# Samples lie between -1 and 1, and resampling can overshoot a little. Beyond this they are 16-bit numbers.
MAX_SAMPLE_VALUE = 16.0
# A clip shorter than this share of the longest beside it costs more in padding than a batch of its own.
MIN_LENGTH_RATIO = 0.8


@dataclass(frozen=True, slots=True)
class WaveformLimits:
    """What a front end can take, in samples at its own rate."""

    sample_rate: int
    min_samples: int
    max_samples: int | None = None

    def describe(self, num_samples: int) -> str:
        """A number of samples as people read it."""
        return f"{num_samples:,} samples, {num_samples / self.sample_rate:.3f} s at {self.sample_rate:,} Hz"


def validate_waveforms(waves: Sequence[Waveform], limits: WaveformLimits) -> list[Tensor]:
    """Every clip checked as by `validate_waveform`; the error names the first that does not fit."""
    given: object = waves  # an array is a sequence too: of samples, or of channels
    if isinstance(given, Tensor | np.ndarray):
        found = f"one array of shape {list(given.shape)} instead of a list of clips"
        raise AudioError("audio-shape", found, expected="a list of waveforms", cure="put the waveform into a list.")
    return [validate_waveform(wave, limits, f"clip {number} of {len(waves)}") for number, wave in enumerate(waves, 1)]


def validate_waveform(wave: Waveform, limits: WaveformLimits, where: str = "") -> Tensor:
    """One clip as float32 samples on the CPU, [N]; refused unless it is finite, one channel, and long enough."""
    expected = "one channel: a list of floating-point samples between -1 and 1"
    if isinstance(wave, np.ndarray) and wave.dtype.kind == "f":
        with np.errstate(over="ignore"):  # too large becomes infinite, and is refused as that
            # A copy in native order: torch takes neither negative strides nor the other byte order.
            wave = torch.from_numpy(wave.astype(np.float32))
    if not isinstance(wave, Tensor):
        kind = f"an array of {wave.dtype}" if isinstance(wave, np.ndarray) else f"a {type(wave).__name__}"
        raise AudioError("audio-shape", kind, expected=expected, where=where)
    if not wave.dtype.is_floating_point or wave.dim() != 1:
        found = f"a tensor of shape {list(wave.shape)} and type {str(wave.dtype).removeprefix('torch.')}"
        raise AudioError("audio-shape", found, expected=expected, where=where)
    samples = wave.detach().to("cpu", torch.float32)
    found = limits.describe(len(samples)) if len(samples) else "no samples"
    if len(samples) < limits.min_samples:
        expected = f"at least {limits.describe(limits.min_samples)}"
        raise AudioError("audio-too-short", found, expected=expected, where=where)
    if limits.max_samples is not None and len(samples) > limits.max_samples:
        expected = f"at most {limits.describe(limits.max_samples)}"
        raise AudioError("audio-too-long", found, expected=expected, where=where)
    largest = float(samples.abs().max())  # NaN where any sample is NaN
    if not np.isfinite(largest):
        faults = int((~samples.isfinite()).sum())
        found = f"{faults:,} of {len(samples):,} samples are NaN or infinite"
        raise AudioError("audio-not-finite", found, where=where)
    if largest > MAX_SAMPLE_VALUE:
        found = f"the largest sample is {largest:,.0f}"
        raise AudioError("audio-scale", found, expected="between -1 and 1", where=where)
    return samples


def batch_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Places of clips of about one length, longest first, so that the longest times their number is within `budget`.

    A clip that is longer than the budget comes alone, and none has a neighbour that is much shorter.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        longest = lengths[batch[0]] if batch else 0
        if batch and (longest * (len(batch) + 1) > budget or lengths[index] < MIN_LENGTH_RATIO * longest):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def pad_rows(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Clips [T, C] of different lengths as one batch [B, T, C], zeros after each end, and where they are, [B, T].

    There is no mask if nothing had to be padded: a clip alone is computed as it always was, to the bit.
    """
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    batch = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    if bool((lengths == lengths[0]).all()):
        return batch, None
    return batch, torch.arange(batch.shape[1], device=batch.device) < lengths[:, None]


def run_padded_batches(
    network: Callable[[Tensor, Tensor | None], Tensor],
    rows: Sequence[Tensor],
    batch_frames: int,
    num_outputs: Callable[[int], int] = int,
) -> list[Tensor]:
    """`network(batch, mask)` over clips of similar length, each result cut to its own length and in the clips' order.

    `num_outputs` gives the frames of a result for those of a clip; as many unless it is given.
    """
    outputs: dict[int, Tensor] = {}
    for indices in batch_by_length([len(row) for row in rows], batch_frames):
        results = network(*pad_rows([rows[index] for index in indices]))
        for result, index in zip(results, indices, strict=True):
            outputs[index] = result[: num_outputs(len(rows[index]))].clone()
    return [outputs[index] for index in range(len(rows))]
