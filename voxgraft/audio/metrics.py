"""Voice activity, the quality of clips, and audio fingerprints, all with NumPy.

The activity detector measures energy over frames of 10 ms and adapts to the noise around it. It finds pauses, not
voices: loud music counts as speech, and `SileroVad` can be added to tell the two apart. `RollingAudioBuffer` gives
random access to the newest part of a long recording.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from voxgraft.audio.files import AudioSamples
from voxgraft.core.errors import ConfigError
from voxgraft.core.languages import count_letters_by_script, count_scripts, find_exemplar, is_letter

VAD_SAMPLE_RATE = 16_000
# Samples of one model call, and the samples before them that it needs again.
VAD_WINDOW_SAMPLES, VAD_CONTEXT_SAMPLES = 512, 64
VAD_MODEL_FILE = "data/silero_vad.onnx"


class SileroVad:
    """Runs over one recording from its beginning; gives the probability of a voice for every 10 ms so far."""

    def __init__(self, rate: int) -> None:
        spec = importlib.util.find_spec("silero_vad")
        try:
            import onnxruntime
        except ImportError:
            onnxruntime = None
        if spec is None or spec.origin is None or onnxruntime is None:
            found = "--activity silero needs silero-vad and onnxruntime"
            raise ConfigError("extra-missing", found, cure="pip install 'voxgraft[vad]'")
        options = onnxruntime.SessionOptions()
        # Every worker process has a core of its own.
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        options.log_severity_level = 3
        path = Path(spec.origin).parent / VAD_MODEL_FILE
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._resampler = soxr.ResampleStream(rate, VAD_SAMPLE_RATE, 1, dtype="float32", quality="LQ")
        self._state = np.zeros((2, 1, 128), np.float32)
        self._before = np.zeros(VAD_CONTEXT_SAMPLES, np.float32)
        self._rest = np.zeros(0, np.float32)
        self._windows: list[float] = []

    def process(self, samples: AudioSamples) -> None:
        """Process the next part of the recording."""
        buffered = np.concatenate([self._rest, self._resampler.resample_chunk(samples)])
        num_whole = len(buffered) // VAD_WINDOW_SAMPLES * VAD_WINDOW_SAMPLES
        for offset in range(0, num_whole, VAD_WINDOW_SAMPLES):
            window = buffered[offset : offset + VAD_WINDOW_SAMPLES]
            rate = np.array(VAD_SAMPLE_RATE, np.int64)
            inputs = {"input": np.concatenate([self._before, window])[None], "state": self._state, "sr": rate}
            probability, self._state = self._session.run(None, inputs)
            self._windows.append(float(probability[0, 0]))
            self._before = window[-VAD_CONTEXT_SAMPLES:]
        self._rest = buffered[num_whole:]

    def voice_probabilities(self, first: int, last: int) -> NDArray[np.float32]:
        """For frames of 10 ms; frames that are not processed yet count as a voice."""
        seconds = (np.arange(first, last) + 0.5) / LEVEL_FRAMES_PER_SECOND
        window_indices = (seconds * VAD_SAMPLE_RATE / VAD_WINDOW_SAMPLES).astype(np.int64)
        known = np.array(
            [*self._windows[window_indices[0] : window_indices[-1] + 1]] if len(window_indices) else [], np.float32
        )
        probabilities = np.ones(len(window_indices), np.float32)
        inside = window_indices - (window_indices[0] if len(window_indices) else 0) < len(known)
        probabilities[inside] = known[(window_indices - window_indices[0])[inside]] if len(window_indices) else known
        return probabilities


LEVEL_FRAMES_PER_SECOND = 100
MIN_LEVEL_DB = -100.0
MIN_VOICE_PROBABILITY = 0.3
# The model detects a voice a little late and its end a little early.
VOICE_MARGIN_FRAMES = 10
# Loudness of frames of 10 ms, in dB below full scale.
FrameLevels = NDArray[np.float32]


class RollingAudioBuffer:
    """A stream of mono blocks with random access to its newest part."""

    def __init__(self, blocks: Iterator[AudioSamples], rate: int, voice: SileroVad | None = None) -> None:
        self._blocks = blocks
        self._voice = voice
        self.rate = rate
        self._kept: deque[tuple[int, AudioSamples]] = deque()
        self._end = 0
        self._levels = np.zeros(1 << 14, np.float32)
        self._num_levels = 0
        self._rest = np.zeros(0, np.float32)
        self.judged: dict[tuple[int, int], NDArray[np.bool_]] = {}
        """Cache of `get_speech_frames`, by first frame and number of frames."""
        self.is_exhausted = False
        self.pinned_from = float("inf")
        """Audio from this time on is kept."""

    @property
    def seconds(self) -> float:
        """Seconds that were read so far."""
        return self._end / self.rate

    @property
    def num_kept(self) -> int:
        """Samples in memory."""
        return sum(len(block) for _, block in self._kept)

    def read_until(self, seconds: float, keep_from: float) -> None:
        """Read up to a time, or to the end; audio before `keep_from` may be dropped."""
        while self.seconds < seconds and not self.is_exhausted:
            block = next(self._blocks, None)
            if block is None:
                self.is_exhausted = True
                break
            self._kept.append((self._end, block))
            self._end += len(block)
            samples = np.concatenate([self._rest, block])
            frame_levels = compute_frame_levels(samples, self.rate)
            self._rest = samples[len(frame_levels) * (self.rate // LEVEL_FRAMES_PER_SECOND) :]
            num_levels = self._num_levels + len(frame_levels)
            if num_levels > len(self._levels):  # grow by doubling, so that long recordings are not copied each time
                enlarged = np.zeros(max(2 * len(self._levels), num_levels), np.float32)
                enlarged[: self._num_levels] = self._levels[: self._num_levels]
                self._levels = enlarged
            self._levels[self._num_levels : num_levels] = frame_levels
            self._num_levels = num_levels
            if self._voice is not None:
                self._voice.process(block)
            oldest = min(keep_from, self.pinned_from) * self.rate
            while self._kept and self._kept[0][0] + len(self._kept[0][1]) < oldest:
                self._kept.popleft()

    def samples(self, start: float, end: float) -> AudioSamples:
        """Audio between two times that are kept; shorter at the end of the recording."""
        first, last = round(start * self.rate), round(end * self.rate)
        parts = [
            block[max(0, first - at) : max(0, last - at)]
            for at, block in self._kept
            if at < last and at + len(block) > first
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def levels(self, start: float, end: float) -> tuple[FrameLevels, float]:
        """Levels of the frames between two times, and where the first of them begins."""
        first = max(0, int(start * LEVEL_FRAMES_PER_SECOND))
        last = min(self._num_levels, int(np.ceil(end * LEVEL_FRAMES_PER_SECOND)))
        return self._levels[first : max(first, last)], first / LEVEL_FRAMES_PER_SECOND

    def voice_frames(self, start: float, count: int) -> NDArray[np.bool_] | None:
        """Whether a voice is near each of `count` frames; None without a voice model."""
        if self._voice is None or not count:
            return None
        first, reach = round(start * LEVEL_FRAMES_PER_SECOND), VOICE_MARGIN_FRAMES
        probabilities = self._voice.voice_probabilities(max(0, first - reach), first + count + reach)
        likely = np.pad(probabilities > MIN_VOICE_PROBABILITY, (reach - min(reach, first), 0))
        windows = np.lib.stride_tricks.sliding_window_view(likely, 2 * reach + 1)
        return np.asarray(windows.any(axis=1))


def compute_frame_levels(samples: AudioSamples, rate: int) -> FrameLevels:
    """Level in dB of every whole frame, of differences between samples: low hum counts for little."""
    size = max(1, rate // LEVEL_FRAMES_PER_SECOND)
    count = len(samples) // size
    if not count:
        return np.zeros(0, np.float32)
    whole = samples[: count * size]
    # Differences grow as the rate falls: scale them to 16 kHz, so that levels are comparable between rates.
    differences = np.diff(whole, prepend=whole[:1]) * np.float32(rate / 16_000)
    power = np.square(differences).reshape(count, size).mean(axis=1)
    levels: FrameLevels = np.maximum(10.0 * np.log10(power + 1e-12), MIN_LEVEL_DB).astype(np.float32)
    return levels


# Zeros that a program inserted: they say nothing about the noise in the rest.
DIGITAL_SILENCE_DB = -95.0
# Nobody speaks more quietly than this, whatever the surroundings.
MIN_SPEECH_DB = -62.0
# If loud and soft differ by less, speech and pauses cannot be separated.
MIN_DYNAMIC_RANGE_DB = 6.0
# Stop consonants inside words are shorter.
MIN_PAUSE_SECONDS = 0.09
MIN_SPEECH_RUN_SECONDS = 0.03
MAX_SOFT_EDGE_SECONDS = 0.3
SPEECH_CACHE_SIZE = 256
# A sound this short with this much silence on both sides is a click, not a word.
MAX_CLICK_SECONDS, CLICK_ISOLATION_SECONDS = 0.08, 0.3


@dataclass(frozen=True, slots=True)
class Pause:
    """A span without speech, in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


def compute_speech_thresholds(levels: FrameLevels) -> tuple[float, float]:
    """Levels in dB: speech begins above the first and ends below the second. By how loud and soft the audio is."""
    audible = levels[levels > DIGITAL_SILENCE_DB]
    if len(audible) < 2:
        return MIN_SPEECH_DB, MIN_SPEECH_DB
    soft, loud = (float(value) for value in np.percentile(audible, (2, 97)))
    if loud - soft < MIN_DYNAMIC_RANGE_DB:
        flat = MIN_SPEECH_DB if loud > MIN_SPEECH_DB + 10 else loud + 1.0
        return flat, flat
    high = max(MIN_SPEECH_DB, soft + min(14.0, max(4.0, 0.28 * (loud - soft))))
    return high, min(high, max(MIN_SPEECH_DB - 6.0, soft + 4.0))


def detect_speech_frames(levels: FrameLevels, thresholds: tuple[float, float]) -> NDArray[np.bool_]:
    """Whether each frame is speech: soft ends are kept, short stops are bridged, clicks are removed."""
    active = _drop_short_runs(levels > thresholds[0], wanted=True, seconds=MIN_SPEECH_RUN_SECONDS)
    max_click, isolation = (s * LEVEL_FRAMES_PER_SECOND for s in (MAX_CLICK_SECONDS, CLICK_ISOLATION_SECONDS))
    runs = find_runs(active)
    for index, (first, last) in enumerate(runs):
        before = first - runs[index - 1][1] if index else len(active)
        after = runs[index + 1][0] - last if index + 1 < len(runs) else len(active)
        if last - first < max_click and min(before, after) >= isolation:
            active[first:last] = False
    # Words begin and end softly: audible frames next to speech belong to it.
    audible, reach = levels > thresholds[1], round(MAX_SOFT_EDGE_SECONDS * LEVEL_FRAMES_PER_SECOND)
    for first, last in find_runs(active):
        frames_before, frames_after = audible[max(0, first - reach) : first][::-1], audible[last : last + reach]
        active[first - _leading_run_length(frames_before) : first] = True
        active[last : last + _leading_run_length(frames_after)] = True
    return _drop_short_runs(active, wanted=False, seconds=MIN_PAUSE_SECONDS)


def get_speech_frames(buffer: RollingAudioBuffer, start: float, end: float) -> tuple[NDArray[np.bool_], float]:
    """Whether each frame of a span is speech, judged by the span itself, and where the first frame begins."""
    levels, begins = buffer.levels(start, end)
    # Levels never change once measured, so the position is a complete key. Crowded cues ask for the same frames.
    key = round(begins * LEVEL_FRAMES_PER_SECOND), len(levels)
    if (cached := buffer.judged.get(key)) is not None:
        return cached, begins
    active = detect_speech_frames(levels, compute_speech_thresholds(levels))
    voiced = buffer.voice_frames(begins, len(levels))
    if len(buffer.judged) >= SPEECH_CACHE_SIZE:
        buffer.judged.clear()
    active = buffer.judged[key] = active if voiced is None else active & voiced
    return active, begins


def find_pauses(active: NDArray[np.bool_], start: float) -> list[Pause]:
    """The spans without speech; `start` is where the first frame begins."""
    return [
        Pause(start + first / LEVEL_FRAMES_PER_SECOND, start + last / LEVEL_FRAMES_PER_SECOND)
        for first, last in find_runs(~active)
    ]


def find_runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First index and index after the last of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _leading_run_length(flags: NDArray[np.bool_]) -> int:
    """How many are true in a row from the beginning."""
    return int(np.argmin(flags)) if not flags.all() else len(flags)


def _drop_short_runs(flags: NDArray[np.bool_], *, wanted: bool, seconds: float) -> NDArray[np.bool_]:
    result = flags.copy()
    for first, last in find_runs(flags if wanted else ~flags):
        inside = first > 0 and last < len(flags)
        if last - first < seconds * LEVEL_FRAMES_PER_SECOND and inside:
            result[first:last] = not wanted
    return result


FFT_SIZE = 1024
# Beyond the bandwidth of a recording its spectrum lies more than this below its peak.
BANDWIDTH_FLOOR_DB = 60.0
MAX_SNR_DB = 80.0
CLIPPING_LEVEL = 0.985
# Frames without speech that are needed to estimate the noise level.
MIN_NOISE_FRAMES = 8


@dataclass(frozen=True, slots=True)
class ClipMetrics:
    """One clip, measured. Shares are from 0 to 1."""

    seconds: float
    letters_per_second: float
    silence: float
    """Share of frames without speech."""
    longest_pause: float
    snr_db: float | None
    """Speech above the noise between words; None for clips that are too short."""
    level_db: float
    """Level of the speech relative to full scale."""
    clipped: float
    """Share of samples in runs at the highest or lowest value."""
    bandwidth_hz: float
    """The highest frequency with energy, whatever the sample rate."""
    script: float
    """Share of letters in the script of the language."""


CLIP_METRIC_NAMES = tuple(own.name for own in fields(ClipMetrics))


def compute_clip_metrics(samples: AudioSamples, rate: int, text: str, language: str) -> ClipMetrics:
    """Measure one clip."""
    levels = compute_frame_levels(samples, rate)
    active = detect_speech_frames(levels, compute_speech_thresholds(levels))
    seconds = len(samples) / rate
    # Power of each frame without its mean (DC offset).
    size = rate // LEVEL_FRAMES_PER_SECOND
    count = len(samples) // size
    frames = samples[: count * size].reshape(count, size).astype(np.float64)
    power = np.square(frames - frames.mean(axis=1, keepdims=True)).mean(axis=1) if count else np.zeros(0)
    letters = sum(map(is_letter, text))
    pauses = [last - first for first, last in find_runs(~active)]
    speech = float(power[active].mean()) if active.any() else 0.0
    snr = None
    if len(power) >= MIN_NOISE_FRAMES and speech > 0:
        # Speech against the softer half of the pauses; without a pause, loud frames against the softest.
        quiet, loud = np.sort(power[~active]), speech
        if len(quiet) < MIN_NOISE_FRAMES:
            quiet, loud = np.sort(power)[: len(power) // 20 + 1], float(power[power >= np.median(power)].mean())
        noise = max(float(quiet[: max(1, len(quiet) // 2)].mean()), 1e-12)
        snr = round(min(MAX_SNR_DB, 10 * math.log10(max(loud - noise, 1e-12) / noise)), 1)
    # Three or more samples in a row at the same extreme are clipped; a single one is a peak.
    peak, clipped = float(np.abs(samples).max()) if len(samples) else 0.0, 0.0
    if peak >= CLIPPING_LEVEL:
        flat = find_runs(np.abs(samples) >= 0.999 * peak)
        clipped = sum(last - first for first, last in flat if last - first >= 3) / len(samples)
    # Bandwidth by the loudest frames of each frequency, so that sibilants count.
    count, bandwidth = len(samples) // FFT_SIZE, 0.0
    if count:
        windows = samples[: count * FFT_SIZE].reshape(count, FFT_SIZE) * np.hanning(FFT_SIZE).astype(np.float32)
        spectra = np.square(np.abs(np.fft.rfft(windows, axis=1)))
        loudest = 10 * np.log10(np.percentile(spectra, 95, axis=0) + 1e-12)
        smooth = np.convolve(loudest, np.ones(5) / 5, mode="same")
        bins = np.fft.rfftfreq(FFT_SIZE, 1 / rate)
        top = smooth[(bins > 100) & (bins < 4_000)].max()
        above = np.flatnonzero(smooth[:-3] > top - BANDWIDTH_FLOOR_DB)
        bandwidth = float(bins[above[-1]]) if len(above) else 0.0
    return ClipMetrics(
        seconds=round(seconds, 4),
        letters_per_second=round(letters / seconds, 3) if seconds else 0.0,
        silence=round(float(1 - active.mean()), 4) if len(active) else 1.0,
        longest_pause=round(max(pauses, default=0) / LEVEL_FRAMES_PER_SECOND, 2),
        snr_db=snr,
        level_db=round(10 * math.log10(speech + 1e-10), 1),
        clipped=round(clipped, 6),
        bandwidth_hz=round(bandwidth),
        script=round(compute_script_share(text, language), 4),
    )


def compute_script_share(text: str, language: str) -> float:
    """Share of letters in the language's script; 1 if the script is unknown."""
    entry = find_exemplar(language)
    own = count_scripts(entry.letters) if entry else {}
    letters = count_letters_by_script(Counter(text))
    if not own or not letters:
        return 1.0 if not own else 0.0
    return sum(letters[script] for script in own) / letters.total()


AudioFingerprint = NDArray[np.uint32]
FINGERPRINT_HZ = 40
FINGERPRINT_WINDOW_SECONDS = 0.37
FINGERPRINT_MIN_HZ, FINGERPRINT_MAX_HZ = 300.0, 3_400.0
FINGERPRINT_BITS = 24
# Values that occur in this many places say nothing: silence, hum.
MAX_OCCURRENCES = 60
MIN_MATCHING_HITS = 3
MAX_BIT_ERROR_RATE = 0.25
MIN_SHARED_SECONDS = 0.6
MIN_SHARED_SHARE = 0.5  # of the shorter clip


def compute_audio_fingerprint(samples: AudioSamples, rate: int) -> AudioFingerprint:
    """A 24-bit value for every 25 ms."""
    size, hop = round(FINGERPRINT_WINDOW_SECONDS * rate), rate // FINGERPRINT_HZ
    if len(samples) < size + hop:
        return np.zeros(0, np.uint32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    bins = np.fft.rfftfreq(size, 1 / rate)
    edges = np.geomspace(FINGERPRINT_MIN_HZ, FINGERPRINT_MAX_HZ, FINGERPRINT_BITS + 2)
    band_bins = np.searchsorted(bins, edges)
    window = np.hanning(size).astype(np.float32)
    energies = np.empty((len(frames), FINGERPRINT_BITS + 1))
    for first in range(0, len(frames), 256):  # windows overlap 15 times: all at once would take 15 times the memory
        power = np.square(np.abs(np.fft.rfft(frames[first : first + 256] * window, axis=1)))
        energies[first : first + 256] = np.add.reduceat(power[:, : band_bins[-1]], band_bins[:-1], axis=1)
    differences = np.diff(energies, axis=1)
    bits = np.diff(differences, axis=0) > 0
    fingerprint: AudioFingerprint = (bits @ (1 << np.arange(FINGERPRINT_BITS, dtype=np.uint32))).astype(np.uint32)
    return fingerprint


def find_duplicate_audio(prints: Mapping[str, AudioFingerprint]) -> Iterator[tuple[str, str]]:
    """Pairs of clips that hold the same sound, each pair once, in the order of the clips."""
    occurrences: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for name, fingerprint in prints.items():
        hits: Counter[tuple[str, int]] = Counter()
        for offset, value in enumerate(fingerprint.tolist()):
            matches = occurrences[value]
            if len(matches) <= MAX_OCCURRENCES:
                hits.update((other, offset - other_offset) for other, other_offset in matches)
        reported: set[str] = set()
        for (other, shift), count in hits.most_common(20):
            if count < MIN_MATCHING_HITS:
                break
            if other in reported:
                continue
            first, last = max(0, shift), min(len(fingerprint), len(prints[other]) + shift)
            shortest = min(len(fingerprint), len(prints[other]))
            if last - first < max(MIN_SHARED_SECONDS * FINGERPRINT_HZ, MIN_SHARED_SHARE * shortest):
                continue
            # Most bits must agree in both halves: sentences that begin with the same words agree in the first one.
            bit_errors = np.bitwise_count(fingerprint[first:last] ^ prints[other][first - shift : last - shift])
            worst = max(float(half.mean()) for half in np.array_split(bit_errors, 2))
            if worst <= MAX_BIT_ERROR_RATE * FINGERPRINT_BITS:
                reported.add(other)
                yield other, name
        for offset, value in enumerate(fingerprint.tolist()):
            occurrences[value].append((name, offset))
