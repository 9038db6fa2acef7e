"""How many voices a set of clips has, by statistics of their sound, with NumPy.

Each half of a clip gives one vector: pitch, and mean and deviation of cepstra over its voiced frames. The halves of a
clip have one voice and different words, so their difference measures what words do to a vector. Clips are divided into
clusters; the most clusters that are all clearly apart are the voices. Means of cepstra also change with room and
microphone; pitch and deviations change less, and must differ too. Thresholds were chosen on human voices: docs/log.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import AudioSamples, read_clip_audio, resample
from voxgraft.core.errors import VoxgraftError

VoiceVectors = NDArray[np.float32]
"""The vectors of a clip's two halves. [2, D]"""
VOICE_RATE_HZ = 16_000
# Of samples between -1 and 1.
SILENT_PEAK = 1e-3
HOP_SAMPLES, PITCH_FRAME_SAMPLES, CEPSTRUM_FRAME_SAMPLES = 160, 640, 400
MIN_PITCH_HZ, MAX_PITCH_HZ = 65, 400
# Periodic frames have a peak of the autocorrelation of at least this; the first peak near the highest is the period.
MIN_PERIODICITY, SAME_PEAK = 0.6, 0.9
LOUD_RANGE_DB = 25.0
# Mel bands up to 4 kHz, so that telephone speech and studio speech are compared by what both have.
NUM_BANDS, NUM_CEPSTRA, MIN_BAND_HZ, MAX_BAND_HZ = 26, 19, 80.0, 4_000.0
MIN_VOICED_FRAMES = 40
VECTOR_WIDTH = 1 + 2 * NUM_CEPSTRA

# Clips that are compared. More take longer and change little.
MAX_VOICE_CLIPS, MIN_VOICE_CLIPS = 200, 24
# Shorter clips say more about their words than about the voice. If there are enough long ones, only these are taken.
MIN_VOICE_SECONDS, GOOD_VOICE_SECONDS, ENOUGH_GOOD_CLIPS = 2.0, 4.0, 60
# Two clusters are two voices if their means are so many standard deviations apart; a single normal distribution that is
# divided in two has 2.7. By pitch and deviations of cepstra alone they must be so many apart.
MIN_SEPARATION, MIN_CHANNEL_FREE_SEPARATION = 5.5, 3.3
# A voice has at least this share of the clips and so many of them: single shouts and effects are no voices.
MIN_VOICE_SHARE, MIN_CLUSTER_CLIPS = 0.04, 6
# One voice is certain if no division came near the separation, and clips vary little more than their halves do.
MAX_ONE_VOICE_SEPARATION, MAX_ONE_VOICE_VARIANCE = 4.4, 9.0
MAX_VOICES = 8
_KMEANS_ITERATIONS, _KMEANS_STARTS, _MAX_DIMENSIONS, _SHRINKAGE = 12, 8, 8, 0.3


class VoiceCount(NamedTuple):
    """An estimate for a sample of clips."""

    voices: int
    clips: int
    is_one_certain: bool
    """Whether several voices can be excluded; one voice may also mean that no difference was found."""


def read_voice(path: Path) -> AudioSamples | None:
    """A clip as speaker encoders take it; None if its file cannot be read, which reports say, or is silent."""
    try:
        samples, rate = read_clip_audio(path)
        wave = resample(samples, rate, VOICE_RATE_HZ)
    except VoxgraftError:
        return None
    return wave if float(np.abs(samples).max(initial=0.0)) > SILENT_PEAK else None


def compute_voice_vectors(samples: AudioSamples, rate: int) -> VoiceVectors:
    """Pitch (octaves), means and deviations of cepstra for both halves of a clip; [0, D] with too little voice."""
    wave = resample(samples, rate, VOICE_RATE_HZ).astype(np.float64)
    nothing = np.zeros((0, VECTOR_WIDTH), np.float32)
    if len(wave) < 2 * PITCH_FRAME_SAMPLES:
        return nothing
    frames = np.lib.stride_tricks.sliding_window_view(wave, PITCH_FRAME_SAMPLES)[::HOP_SAMPLES]
    frames = frames - frames.mean(axis=1, keepdims=True)
    window = np.hanning(PITCH_FRAME_SAMPLES)
    power = np.square(np.abs(np.fft.rfft(frames * window, 1024)))
    # The autocorrelation of a windowed frame falls with the lag as that of the window does.
    fall = np.fft.irfft(np.square(np.abs(np.fft.rfft(window, 1024))))[: PITCH_FRAME_SAMPLES // 2]
    alike = np.fft.irfft(power, axis=1)[:, : PITCH_FRAME_SAMPLES // 2] / fall
    shortest, longest = VOICE_RATE_HZ // MAX_PITCH_HZ, VOICE_RATE_HZ // MIN_PITCH_HZ
    lags = alike[:, shortest:longest] / np.maximum(alike[:, :1], 1e-12)
    highest, rows = lags.max(axis=1), np.arange(len(lags))
    lag = (lags > SAME_PEAK * highest[:, None]).argmax(axis=1)
    for _ in range(8):  # from the flank to the top of the peak
        following = np.minimum(lag + 1, lags.shape[1] - 1)
        lag = np.where(lags[rows, following] > lags[rows, lag], following, lag)
    energy = power.sum(axis=1)
    loud = energy > np.percentile(energy, 95) * 10 ** (-LOUD_RANGE_DB / 10)
    voiced = np.flatnonzero(loud & (highest > MIN_PERIODICITY))
    if len(voiced) < MIN_VOICED_FRAMES:
        return nothing
    margin = (PITCH_FRAME_SAMPLES - CEPSTRUM_FRAME_SAMPLES) // 2
    inner = frames[voiced, margin:-margin] * np.hamming(CEPSTRUM_FRAME_SAMPLES)
    bands = np.square(np.abs(np.fft.rfft(inner, 512))) @ _mel_bands().T
    orders = np.arange(1, NUM_CEPSTRA + 1)[:, None]
    cosines = np.sqrt(2 / NUM_BANDS) * np.cos(np.pi / NUM_BANDS * (np.arange(NUM_BANDS) + 0.5) * orders)
    cepstra = np.log(bands + 1e-9) @ cosines.T  # without order 0, the loudness
    octaves = np.log2(VOICE_RATE_HZ / (shortest + lag[voiced]))
    parts = np.array_split(np.arange(len(voiced)), 2)
    vectors = [np.r_[np.median(octaves[part]), cepstra[part].mean(axis=0), cepstra[part].std(axis=0)] for part in parts]
    return np.array(vectors, np.float32)


def _mel_bands() -> NDArray[np.float64]:
    """Triangles on O'Shaughnessy's mel scale. [bands, 257]"""
    low, high = (1127 * np.log1p(hertz / 700) for hertz in (MIN_BAND_HZ, MAX_BAND_HZ))
    edges = 700 * np.expm1(np.linspace(low, high, NUM_BANDS + 2) / 1127)
    bins = np.fft.rfftfreq(512, 1 / VOICE_RATE_HZ)
    widths = np.diff(edges)[:, None]
    rising, falling = (bins - edges[:-2, None]) / widths[:-1], (edges[2:, None] - bins) / widths[1:]
    bands: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return bands


def count_voices(clips: Sequence[VoiceVectors], *, has_channel_free: bool = True) -> VoiceCount | None:
    """The number of voices of clips with vectors; None if there are too few clips for an estimate.

    With `has_channel_free` the vectors are those of `compute_voice_vectors`. Vectors of a speaker encoder have no parts
    that a microphone leaves alone.
    """
    known = [vectors for vectors in clips if len(vectors) == 2]
    if len(known) < MIN_VOICE_CLIPS:
        return None
    halves = np.stack(known).astype(np.float64)  # [N, 2, D]
    halves -= halves.mean(axis=(0, 1))
    if not has_channel_free:  # encoders have more dimensions than there are clips
        _, _, axes = np.linalg.svd(halves.reshape(-1, halves.shape[-1]), full_matrices=False)
        halves = halves @ axes[: min(40, len(known) // 2)].T
    # What words change has unit variance from here on. Few clips give a poor covariance: it is pulled to its diagonal.
    difference = halves[:, 0] - halves[:, 1]
    spread = difference.T @ difference / (2 * len(halves))
    spread = (1 - _SHRINKAGE) * spread + _SHRINKAGE * np.diag(np.diag(spread)) + 1e-9 * np.eye(len(spread))
    # Without the mixing of dimensions below: the parts that a microphone leaves alone stay apart.
    scaled = halves / np.sqrt(np.diag(spread))
    root = np.linalg.cholesky(spread)
    halves = np.linalg.solve(root, halves.reshape(-1, len(spread)).T).T.reshape(halves.shape)
    # What both halves share is the voice (and the room); words are not shared.
    shared = halves[:, 0].T @ halves[:, 1] / len(halves)
    values, axes = np.linalg.eigh((shared + shared.T) / 2)
    count = max(1, min(_MAX_DIMENSIONS, int((values > 0.5).sum())))
    points = halves.mean(axis=1) @ axes[:, ::-1][:, :count]  # [N, count]
    least = max(MIN_CLUSTER_CLIPS, round(MIN_VOICE_SHARE * len(points)))
    free = scaled[..., [0, *range(1 + NUM_CEPSTRA, VECTOR_WIDTH)]] if has_channel_free else None
    voices, widest = 1, 0.0
    for clusters in range(2, min(MAX_VOICES, len(points) // least) + 1):
        labels = kmeans(points, clusters)
        smallest, separation, channel_free = len(points), np.inf, np.inf
        for one, two in combinations(range(clusters), 2):
            both = np.isin(labels, (one, two))
            is_second = labels[both] == two
            sizes = int((~is_second).sum()), int(is_second.sum())
            smallest = min(smallest, *sizes)
            if min(sizes) < 2:
                break
            means = points[both][~is_second].mean(axis=0), points[both][is_second].mean(axis=0)
            separation = min(separation, _separation(points[both] @ (means[1] - means[0]), is_second))
            if free is not None and separation >= MIN_SEPARATION:
                channel_free = min(channel_free, _held_out_separation(free[both], is_second))
        if smallest < least:
            continue
        widest = max(widest, separation)
        if separation >= MIN_SEPARATION and channel_free >= MIN_CHANNEL_FREE_SEPARATION:
            voices = clusters
    varies_little = widest <= MAX_ONE_VOICE_SEPARATION and float(values[-1]) <= MAX_ONE_VOICE_VARIANCE
    return VoiceCount(voices, len(points), voices == 1 and varies_little)


def kmeans(points: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The cluster of each point: the best of several starts, whose centres are points far from each other. [N]"""
    chance = np.random.default_rng(0)
    lengths = np.square(points).sum(axis=1)

    def distances(centres: NDArray[np.float64]) -> NDArray[np.float64]:  # squared, [N, C]
        # Without an array of [N, C, D], which would not fit for many clips.
        squared: NDArray[np.float64] = lengths[:, None] - 2 * points @ centres.T + np.square(centres).sum(axis=1)
        return squared.clip(min=0.0)

    best, chosen = np.inf, np.zeros(len(points), np.int64)
    for _ in range(_KMEANS_STARTS):
        middle = points[chance.integers(len(points))][None]
        while len(middle) < count:
            away = distances(middle).min(axis=1)
            if away.max() <= 1e-12 * lengths.max():  # fewer distinct points than clusters
                break
            middle = np.concatenate([middle, points[chance.choice(len(points), 1, p=away / away.sum())]])
        labels = np.full(len(points), -1)
        for _ in range(_KMEANS_ITERATIONS):
            nearest = distances(middle).argmin(axis=1)
            if np.array_equal(nearest, labels):
                break
            labels = nearest
            members = labels == np.arange(len(middle))[:, None]  # [C, N]
            sizes = members.sum(axis=1)[:, None]
            middle = np.where(sizes > 0, members @ points / np.maximum(sizes, 1), middle)
        cost = float(distances(middle).min(axis=1).sum())
        if cost < best:
            best, chosen = cost, labels
    return chosen


def _separation(values: NDArray[np.float64], is_second: NDArray[np.bool_]) -> float:
    """Distance of two means in standard deviations of a part."""
    one, two = values[~is_second], values[is_second]
    deviation = np.sqrt((one.var() * len(one) + two.var() * len(two)) / len(values))
    return float((two.mean() - one.mean()) / max(deviation, 1e-9))


def _held_out_separation(halves: NDArray[np.float64], is_second: NDArray[np.bool_]) -> float:
    """The separation of two parts along a direction that is learned from one half of each clip, on the other half."""
    found = []
    for learned, judged in ((halves[:, 0], halves[:, 1]), (halves[:, 1], halves[:, 0])):
        means = learned[~is_second].mean(axis=0), learned[is_second].mean(axis=0)
        rest = learned - np.where(is_second[:, None], means[1], means[0])
        within = rest.T @ rest / len(rest)
        within += (0.5 * np.trace(within) / len(within) + 1e-9) * np.eye(len(within))
        found.append(_separation(judged @ np.linalg.solve(within, means[1] - means[0]), is_second))
    return sum(found) / 2
