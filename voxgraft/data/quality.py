"""Decides which clips to reject, and measures them for it: thresholds, outliers, and clips that occur twice.

Nothing is deleted: reasons are written into the manifest, and a user can take a clip back. Metrics are cached in
`measures.jsonl`, so that a second report reads no audio.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from voxgraft.audio.files import read_clip_audio
from voxgraft.audio.metrics import (
    CLIP_METRIC_NAMES,
    AudioFingerprint,
    ClipMetrics,
    compute_audio_fingerprint,
    compute_clip_metrics,
    find_duplicate_audio,
)
from voxgraft.config.data import QualitySettings
from voxgraft.core import progress
from voxgraft.core.errors import FileError, VoxgraftError
from voxgraft.core.files import atomic_write, is_file, parse_json, read_lines
from voxgraft.core.languages import is_syllabic_language
from voxgraft.core.run import worker_pool
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.manifest import ManifestClip, SourceProblem

# Reasons that are found here, and removed when a clip is judged again; reasons of the import stay.
QUALITY_REASONS = frozenset(
    (
        *("too-short", "too-long", "too-slow", "too-fast", "silence", "long-pause", "noise", "clipping", "narrow-band"),
        *("other-script", "pace-outlier", "same-sound", "same-text", "sound-missing"),
    )
)
MIN_CLIPS_FOR_OUTLIERS = 20


def apply_quality_checks(
    clips: Sequence[ManifestClip],
    measures: Mapping[str, ClipMetrics],
    prints: Mapping[str, AudioFingerprint],
    settings: QualitySettings,
) -> list[ManifestClip]:
    """The clips with today's reasons to reject each."""
    reasons: dict[str, list[str]] = {clip.id: [r for r in clip.rejected if r not in QUALITY_REASONS] for clip in clips}
    for clip in clips:
        own = measures.get(clip.id)
        reasons[clip.id] += _quality_reasons(own, clip.language, settings) if own else ["sound-missing"]
    for name in _find_pace_outliers(clips, measures, settings):
        reasons[name].append("pace-outlier")
    taken_back = {clip.id for clip in clips if clip.taken_back}
    for earlier, later in find_duplicate_audio(prints):
        if earlier in taken_back or not reasons[earlier]:  # else the later one is the only copy that is used
            reasons[later].append("same-sound")
    # Clips with a text that their speaker has said often enough already.
    seen: Counter[tuple[str, str]] = Counter()
    for clip in clips:
        if clip.id in taken_back or not reasons[clip.id]:
            key = clip.speaker, " ".join(clip.text.split()).lower()
            seen[key] += 1
            if seen[key] > settings.same_text:
                reasons[clip.id].append("same-text")
    return [replace(clip, rejected=tuple(dict.fromkeys(reasons[clip.id]))) for clip in clips]


def _quality_reasons(own: ClipMetrics, language: str, settings: QualitySettings) -> list[str]:
    syllabic = is_syllabic_language(language)
    fastest = min(settings.fastest, settings.fastest_syllables) if syllabic else settings.fastest
    slowest = settings.slowest / 2 if syllabic else settings.slowest
    checks = {
        "too-short": own.seconds < settings.shortest,
        "too-long": own.seconds > settings.longest,
        "too-slow": own.letters_per_second < slowest,
        "too-fast": own.letters_per_second > fastest,
        "silence": own.silence > settings.silence,
        "long-pause": own.longest_pause > settings.pause,
        "noise": own.snr_db is not None and own.snr_db < settings.snr,
        "clipping": own.clipped > settings.clipped,
        "narrow-band": own.bandwidth_hz < settings.bandwidth,
        "other-script": own.script < settings.script,
    }
    return [name for name, found in checks.items() if found]


def _find_pace_outliers(
    clips: Sequence[ManifestClip], measures: Mapping[str, ClipMetrics], settings: QualitySettings
) -> list[str]:
    """Clips far from their speaker's usual pace: often their text is not what is spoken."""
    by_speaker: dict[str, list[str]] = defaultdict(list)
    for clip in clips:
        if clip.id in measures and measures[clip.id].letters_per_second > 0:
            by_speaker[clip.speaker].append(clip.id)
    found = []
    for names in by_speaker.values():
        if len(names) < MIN_CLIPS_FOR_OUTLIERS:
            continue
        paces = np.log([measures[name].letters_per_second for name in names])
        middle = np.median(paces)
        # The median absolute deviation, scaled to a standard deviation. It is robust against the outliers themselves.
        spread = max(1.4826 * float(np.median(np.abs(paces - middle))), 0.05)
        found += [
            name for name, pace in zip(names, paces, strict=True) if abs(pace - middle) > settings.outlier * spread
        ]
    return found


METRICS_FILE = "measures.jsonl"
# Metrics of another version are computed again.
METRICS_VERSION = 2
METRICS_BATCH_CLIPS = 32


@dataclass(slots=True)
class DatasetMetrics:
    """Metrics and audio fingerprints of a dataset, by clip id."""

    measures: dict[str, ClipMetrics] = field(default_factory=dict)
    fingerprints: dict[str, AudioFingerprint] = field(default_factory=dict)
    problems: list[SourceProblem] = field(default_factory=list)
    read: int = 0
    """Clips that were read; the others came from the cache."""


_MetricsEntry = tuple[str, str, ClipMetrics, AudioFingerprint]
"""Clip id, cache key, metrics, fingerprint."""


def compute_dataset_metrics(dataset: DatasetFolder, clips: Sequence[ManifestClip], workers: int = 0) -> DatasetMetrics:
    """Measure every clip. Clips that were measured before and did not change are not read again."""
    known = {entry[0]: entry for entry in _read_cached_metrics(dataset.folder / METRICS_FILE)}
    fresh = [clip for clip in clips if clip.id not in known or known[clip.id][1] != _metrics_cache_key(dataset, clip)]
    result, made = DatasetMetrics(read=len(fresh)), dict[str, _MetricsEntry]()
    with progress.progress_task("measuring clips", len(fresh)) as advance:
        for batch in _measure_in_batches(dataset, fresh, workers or os.cpu_count() or 1):
            for item in batch:
                if isinstance(item, SourceProblem):
                    result.problems.append(item)
                else:
                    made[item[0]] = item
            advance(len(batch))
    unchanged = known.keys() - {clip.id for clip in fresh}
    entries = [made.get(clip.id) or known[clip.id] for clip in clips if clip.id in made or clip.id in unchanged]
    if made or len(entries) != len(known):
        with atomic_write(dataset.folder / METRICS_FILE, overwrite=True) as stream:
            for name, key, measures, fingerprint in entries:
                packed = base64.b64encode(fingerprint.astype("<u4").tobytes()).decode()
                values = {"id": name, "key": key, "measures": measures.to_json(), "print": packed}
                stream.write(json.dumps(values).encode() + b"\n")
    result.measures = {name: measures for name, _, measures, _ in entries}
    result.fingerprints = {name: fingerprint for name, _, _, fingerprint in entries}
    return result


def _metrics_cache_key(dataset: DatasetFolder, clip: ManifestClip) -> str:
    """Changes when the clip's file or text does."""
    path = clip.resolve_audio(dataset.folder)
    stat = os.stat(path) if is_file(path) else None
    state = (METRICS_VERSION, stat and stat.st_size, stat and stat.st_mtime_ns, clip.text, clip.language)
    return hashlib.sha256(repr(state).encode()).hexdigest()[:24]


def _read_cached_metrics(path: Path) -> Iterator[_MetricsEntry]:
    """Metrics of earlier runs; a damaged file is ignored and written again."""
    if not is_file(path) or path.stat().st_size == 0:
        return
    try:
        for _, line in read_lines(path):
            values = parse_json(line, path)
            measures = ClipMetrics(**{name: values["measures"][name] for name in CLIP_METRIC_NAMES})
            prints = np.frombuffer(base64.b64decode(values["print"]), "<u4").astype(np.uint32)
            yield values["id"], values["key"], measures, prints
    except (VoxgraftError, KeyError, TypeError, ValueError):
        return


def _measure_in_batches(
    dataset: DatasetFolder, clips: Sequence[ManifestClip], workers: int
) -> Iterator[list[_MetricsEntry | SourceProblem]]:
    batches = [clips[at : at + METRICS_BATCH_CLIPS] for at in range(0, len(clips), METRICS_BATCH_CLIPS)]
    work = partial(_measure_batch, dataset)
    if min(workers, len(batches)) <= 1:
        yield from map(work, batches)
        return
    try:
        with worker_pool(min(workers, len(batches))) as pool:
            yield from pool.map(work, batches)
    except (BrokenProcessPool, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # without errno the pool broke while starting its processes ("handle is closed")
        found = "a process that measured clips was ended from outside (often for memory)"
        cure = "run the same command again, with fewer --workers."
        raise FileError("source-failed", found, where=dataset.folder, cure=cure) from None


def _measure_batch(dataset: DatasetFolder, clips: Sequence[ManifestClip]) -> list[_MetricsEntry | SourceProblem]:
    done: list[_MetricsEntry | SourceProblem] = []
    for clip in clips:
        try:
            samples, rate = read_clip_audio(clip.resolve_audio(dataset.folder))
        except VoxgraftError as error:
            done.append(SourceProblem("clip-audio-missing", f"{clip.id}: {error.finding.found}", clip.audio))
            continue
        own = compute_clip_metrics(samples, rate, clip.text, clip.language)
        done.append((clip.id, _metrics_cache_key(dataset, clip), own, compute_audio_fingerprint(samples, rate)))
    return done
