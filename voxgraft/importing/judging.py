"""Which clips are better left out, and why: measures against thresholds, outliers, and clips that are there twice.

Deletes nothing: reasons are written into the manifest, and anybody can take a clip back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from voxgraft.data_settings import QualitySettings
from voxgraft.importing.fingerprints import AudioFingerprint, find_duplicate_audio
from voxgraft.importing.manifest import ManifestClip
from voxgraft.importing.measuring import ClipMetrics

__all__ = ["QUALITY_REASONS", "apply_quality_checks"]

SYLLABIC_LANGUAGES = ("am", "ti", "gez", "gu", "hi", "km", "my", "ja", "zh", "ko", "ta", "te", "bn")
"""Languages whose letters are mostly syllables, or whose marks count for little."""
QUALITY_REASONS = frozenset(
    (
        *("too-short", "too-long", "too-slow", "too-fast", "silence", "long-pause", "noise", "clipping", "narrow-band"),
        *("other-script", "pace-outlier", "same-sound", "same-text", "sound-missing"),
    )
)
"""Reasons that are found here, and go when a clip is judged anew; those of the cutting stay."""
MIN_CLIPS_FOR_OUTLIERS = 20


def apply_quality_checks(
    clips: Sequence[ManifestClip],
    measures: Mapping[str, ClipMetrics],
    prints: Mapping[str, AudioFingerprint],
    settings: QualitySettings,
) -> list[ManifestClip]:
    """The clips with the reasons that speak against each today."""
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
    for name in _find_repeated_texts(
        [clip for clip in clips if clip.id in taken_back or not reasons[clip.id]], settings
    ):
        reasons[name].append("same-text")
    return [replace(clip, rejected=tuple(dict.fromkeys(reasons[clip.id]))) for clip in clips]


def _quality_reasons(own: ClipMetrics, language: str, settings: QualitySettings) -> list[str]:
    syllabic = language.lower().partition("-")[0] in SYLLABIC_LANGUAGES
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
    """Clips whose pace is far from what is usual for their speaker: often another text than what is said."""
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
        spread = max(1.4826 * float(np.median(np.abs(paces - middle))), 0.05)
        found += [
            name for name, pace in zip(names, paces, strict=True) if abs(pace - middle) > settings.outlier * spread
        ]
    return found


def _find_repeated_texts(clips: Sequence[ManifestClip], settings: QualitySettings) -> list[str]:
    """Clips that say what their speaker has said often enough."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for clip in clips:
        key = clip.speaker, " ".join(clip.text.split()).lower()
        seen[key] += 1
        if seen[key] > settings.same_text:
            found.append(clip.id)
    return found
