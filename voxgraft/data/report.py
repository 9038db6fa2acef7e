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
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import read_clip_audio
from voxgraft.audio.metrics import (
    CLIP_METRIC_NAMES,
    AudioFingerprint,
    ClipMetrics,
    compute_audio_fingerprint,
    compute_clip_metrics,
    find_duplicate_audio,
)
from voxgraft.audio.voices import (
    ENOUGH_GOOD_CLIPS,
    GOOD_VOICE_SECONDS,
    MAX_VOICE_CLIPS,
    MIN_VOICE_SECONDS,
    VECTOR_WIDTH,
    VoiceCount,
    VoiceVectors,
    compute_voice_vectors,
    count_voices,
    read_voice,
)
from voxgraft.config.data import DataReportSettings, QualitySettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, VoxgraftError, find_nearest_name, finding
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import atomic_write, is_file, parse_json, read_lines, write_json, write_text
from voxgraft.core.results import (
    BAD_COLOR,
    GOOD_COLOR,
    Line,
    SimpleResult,
    Table,
    data_url,
    draw_inline_chart,
    pluralize,
    render_page,
)
from voxgraft.core.run import worker_pool
from voxgraft.data.folder import DatasetFolder, collect_problems, open_dataset_folder
from voxgraft.data.manifest import MANUAL_REJECTION, DatasetSummary, ManifestClip, format_length, write_manifest
from voxgraft.models import get_family, load_speaker_encoder

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Reasons that are found here, and removed when a clip is judged again; reasons of the import stay.
QUALITY_REASONS = frozenset(
    (
        *("too-short", "too-long", "too-slow", "too-fast", "silence", "long-pause", "noise", "clipping", "narrow-band"),
        *("other-script", "pace-outlier", "same-sound", "same-text", "sound-missing"),
    )
)
MIN_CLIPS_FOR_OUTLIERS = 20
# With fewer clips no spread can be measured: then a clip may differ from the median by this factor.
MIN_CLIPS_FOR_MEDIAN, MAX_MEDIAN_FACTOR = 5, 3.0
# Readers and languages differ less than this (log scale); a smaller spread comes from very even readers.
MIN_PACE_SPREAD, MIN_SPEAKER_PACE_SPREAD = 0.15, 0.05
# Letters per second that no one speaks in any script, however the clips of a dataset are spread.
POSSIBLE_PACES = (0.5, 50.0)
METRICS_FILE = "measures.jsonl"
# Metrics of another version are computed again.
METRICS_VERSION = 3
METRICS_BATCH_CLIPS = 32
# Two names of one person are common and harmless; from so many on a single voice is a mistake.
MIN_SPEAKERS_FOR_ONE_VOICE = 3
POSITIONS_PER_STEP = 16_384
DEFAULT_STEPS = 10_000
TEXT_IDS_PER_LETTER = 0.7
NUM_CONDITIONING = 34
# Of a code and of a text id.
BYTES_PER_ID = 4
# What a set says of a clip beside its text.
METADATA_BYTES_PER_CLIP = 120
# Minutes of Amharic and phone error in %: tiny base, gated, rank 32, 800 steps; docs/log.md, 2026-11-15.
MEASURED_PHONE_ERRORS = ((10, 38.4), (30, 12.0), (60, 4.8))
_ASSUMED_NEW_PIECES = 1_000
MAX_PLAYERS = 24
MAX_PLAYER_BYTES = 600_000
MAX_TABLE_ROWS = 40
HISTOGRAM_BINS = 32
ESTIMATE_HEADS = (
    "family",
    "positions",
    "steps per epoch",
    "epochs in 10,000 steps",
    "H200 hours",
    "disk for sets (while they are written)",
    "too long",
)
METRIC_TITLES = {
    "seconds": "Length, seconds",
    "letters_per_second": "Letters per second",
    "silence": "Share without speech",
    "longest_pause": "Longest pause, seconds",
    "snr_db": "Signal-to-noise ratio, dB",
    "level_db": "Speech level, dB",
    "bandwidth_hz": "Bandwidth, Hz",
    "script": "Share of letters in the language's script",
}
AUDIO_MIME_TYPES = {".flac": "audio/flac", ".wav": "audio/wav"}


def compute_pace_limits(
    clips: Sequence[ManifestClip], measures: Mapping[str, ClipMetrics], settings: QualitySettings
) -> dict[str, tuple[float, float]]:
    """Minimum and maximum letters per second for each language, from the pace of its own clips.

    A letter of one script takes ten times as long as a letter of another, so no table of limits fits all languages.
    """
    paces: dict[str, list[float]] = defaultdict(list)
    for clip in clips:
        if (own := measures.get(clip.id)) is not None and own.letters_per_second > 0:
            paces[clip.language].append(float(np.log(own.letters_per_second)))
    limits: dict[str, tuple[float, float]] = {}
    for language in dict.fromkeys(clip.language for clip in clips):
        low, high = POSSIBLE_PACES
        values = paces[language]
        if len(values) >= MIN_CLIPS_FOR_MEDIAN:
            middle = float(np.median(values))
            reach = float(np.log(MAX_MEDIAN_FACTOR))
            if len(values) >= MIN_CLIPS_FOR_OUTLIERS:
                reach = settings.outlier * max(robust_spread(values), MIN_PACE_SPREAD)
            low, high = max(low, float(np.exp(middle - reach))), min(high, float(np.exp(middle + reach)))
        slowest = low if settings.slowest is None else settings.slowest
        limits[language] = slowest, high if settings.fastest is None else settings.fastest
    return limits


def robust_spread(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The median absolute deviation, scaled to a standard deviation. Up to half of the values may be wrong."""
    return 1.4826 * float(np.median(np.abs(np.asarray(values) - np.median(values))))


def apply_quality_checks(
    clips: Sequence[ManifestClip],
    measures: Mapping[str, ClipMetrics],
    prints: Mapping[str, AudioFingerprint],
    settings: QualitySettings,
) -> list[ManifestClip]:
    """The clips with today's reasons to reject each."""
    reasons: dict[str, list[str]] = {clip.id: [r for r in clip.rejected if r not in QUALITY_REASONS] for clip in clips}
    limits = compute_pace_limits(clips, measures, settings)
    for clip in clips:
        own = measures.get(clip.id)
        if own is None:
            reasons[clip.id].append("sound-missing")
            continue
        slowest, fastest = limits[clip.language]
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
        reasons[clip.id] += [name for name, is_bad in checks.items() if is_bad]
    # Clips far from their speaker's usual pace: often their text is not what is spoken.
    by_speaker: dict[str, list[str]] = defaultdict(list)
    for clip in clips:
        if clip.id in measures and measures[clip.id].letters_per_second > 0:
            by_speaker[clip.speaker].append(clip.id)
    for names in by_speaker.values():
        if len(names) < MIN_CLIPS_FOR_OUTLIERS:
            continue
        paces = np.log([measures[name].letters_per_second for name in names]).tolist()
        middle, spread = np.median(paces), max(robust_spread(paces), MIN_SPEAKER_PACE_SPREAD)
        for name, pace in zip(names, paces, strict=True):
            if abs(pace - middle) > settings.outlier * spread:
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


_MetricsEntry = tuple[str, str, ClipMetrics, AudioFingerprint, VoiceVectors]
"""Clip id, cache key, metrics, fingerprint, and the voice of both halves."""


def compute_dataset_metrics(
    dataset: DatasetFolder, clips: Sequence[ManifestClip], workers: int = 0
) -> tuple[dict[str, ClipMetrics], dict[str, AudioFingerprint], dict[str, VoiceVectors], int]:
    """Metrics, audio fingerprints and voices by clip id, and the number of clips that were read.

    Clips that were measured before and did not change come from the cache. Clips without audio have no metrics.
    """
    known = {entry[0]: entry for entry in _read_cached_metrics(dataset.folder / METRICS_FILE)}
    fresh = [clip for clip in clips if clip.id not in known or known[clip.id][1] != _metrics_cache_key(dataset, clip)]
    made: dict[str, _MetricsEntry] = {}
    with progress.progress_task("measuring clips", len(fresh)) as advance:
        for batch in _measure_in_batches(dataset, fresh, workers or os.cpu_count() or 1):
            made |= {entry[0]: entry for entry in batch if entry is not None}
            advance(len(batch))
    unchanged = known.keys() - {clip.id for clip in fresh}
    entries = [made.get(clip.id) or known[clip.id] for clip in clips if clip.id in made or clip.id in unchanged]
    if made or len(entries) != len(known):
        with atomic_write(dataset.folder / METRICS_FILE, overwrite=True) as stream:
            for name, key, own, fingerprint, voice in entries:
                packed = base64.b64encode(fingerprint.astype("<u4").tobytes()).decode()
                values = {"id": name, "key": key, "measures": asdict(own), "print": packed}
                values["voice"] = base64.b64encode(voice.astype("<f4").tobytes()).decode()
                stream.write(json.dumps(values).encode() + b"\n")
    found = {name: measures for name, _, measures, _, _ in entries}
    prints = {name: fingerprint for name, _, _, fingerprint, _ in entries}
    return found, prints, {name: voice for name, _, _, _, voice in entries}, len(fresh)


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
            voice = np.frombuffer(base64.b64decode(values["voice"]), "<f4").reshape(-1, VECTOR_WIDTH)
            yield values["id"], values["key"], measures, prints, voice.astype(np.float32)
    except (VoxgraftError, KeyError, TypeError, ValueError):
        return


def _measure_in_batches(
    dataset: DatasetFolder, clips: Sequence[ManifestClip], workers: int
) -> Iterator[list[_MetricsEntry | None]]:
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
        found = "a process that measured clips was killed (often out of memory)"
        cure = "run the same command again, with fewer --workers."
        raise FileError("source-failed", found, where=dataset.folder, cure=cure) from None


def _measure_batch(dataset: DatasetFolder, clips: Sequence[ManifestClip]) -> list[_MetricsEntry | None]:
    done: list[_MetricsEntry | None] = []
    for clip in clips:
        try:
            samples, rate = read_clip_audio(clip.resolve_audio(dataset.folder))
        except VoxgraftError:  # the report names clips without metrics
            done.append(None)
            continue
        own = compute_clip_metrics(samples, rate, clip.text, clip.language)
        heard = compute_audio_fingerprint(samples, rate), compute_voice_vectors(samples, rate)
        done.append((clip.id, _metrics_cache_key(dataset, clip), own, *heard))
    return done


def choose_voice_clips(clips: Sequence[ManifestClip]) -> list[ManifestClip]:
    """The clips by which voices are counted: spread over all that are used and long enough."""
    long = [clip for clip in clips if clip.is_used and clip.seconds >= MIN_VOICE_SECONDS]
    good = [clip for clip in long if clip.seconds >= GOOD_VOICE_SECONDS]
    own = good if len(good) >= ENOUGH_GOOD_CLIPS else long
    return (
        [own[len(own) * at // MAX_VOICE_CLIPS] for at in range(MAX_VOICE_CLIPS)] if len(own) > MAX_VOICE_CLIPS else own
    )


def voice_findings(clips: Sequence[ManifestClip], counted: VoiceCount | None, manifest: Path) -> list[Finding]:
    """A warning if the speaker names of the clips that were compared clearly disagree with their voices."""
    if counted is None:
        return []
    names = len({clip.speaker for clip in clips if clip.is_used})
    heard = f"{pluralize(counted.voices, 'voice')} in {counted.clips:,} clips that were compared"
    message = f"{pluralize(names, 'speaker name')}, but about {heard}"
    # Judged by the names of the sample: of thousands of clips, five of another person may not be in it.
    speakers = len({clip.speaker for clip in choose_voice_clips(clips)})
    if speakers >= MIN_SPEAKERS_FOR_ONE_VOICE and counted.is_one_certain:
        return [finding("speakers-one-voice", message, where=manifest)]
    if counted.voices >= 2 * speakers:
        return [finding("speakers-many-voices", message, where=manifest)]
    return []


def encode_voices(dataset: DatasetFolder, clips: Sequence[ManifestClip], base: Path) -> list[VoiceVectors]:
    """Both halves of each clip by the speaker encoder of a base. Clips that cannot be read are left out."""
    encoder = load_speaker_encoder(base)
    found = []
    with progress.progress_task("comparing voices", len(clips)) as advance:
        for clip in clips:
            advance(1)
            if (samples := read_voice(clip.resolve_audio(dataset.folder))) is not None:
                found.append(encoder.embed(np.array_split(samples, 2)).cpu().numpy())
    return found


def estimate_training(clips: Sequence[ManifestClip]) -> list[dict[str, Any]]:
    """One family's training on the clips that are used, for every family."""
    used = [clip for clip in clips if clip.is_used]
    ids = sum(len(clip.text) for clip in used) * TEXT_IDS_PER_LETTER
    lines = sum(len(clip.text.encode()) + METADATA_BYTES_PER_CLIP for clip in used)
    found = []
    for name, facts in FAMILIES.items():
        kind = get_family(name)
        longest = kind.sequence_spec(_ASSUMED_NEW_PIECES).max_codes / kind.code_hz
        codes = sum(clip.seconds for clip in used) * kind.code_hz
        positions = round(codes + ids + NUM_CONDITIONING * len(used))
        encoded = codes * BYTES_PER_ID + len(used) * facts.voice_bytes_per_clip
        steps = max(1, -(-positions // POSITIONS_PER_STEP))
        speed = facts.positions_per_second
        found.append(
            {
                "family": name,
                "positions": positions,
                "steps_a_pass": steps,
                # In the usual number of steps, and H200 hours for these; None where that was not measured.
                "passes": round(DEFAULT_STEPS / steps, 1),
                "gpu_hours": round(DEFAULT_STEPS * POSITIONS_PER_STEP / speed / 3600, 2) if speed else None,
                "disk_bytes": round(encoded + ids * BYTES_PER_ID + lines),
                # While sets are written, what is encoded lies in the batches too.
                "most_disk_bytes": round(2 * encoded + ids * BYTES_PER_ID + lines),
                # Clips that the family cannot encode completely.
                "too_long": sum(clip.seconds > longest for clip in used),
            }
        )
    return found


def describe_measured_results(summary: DatasetSummary) -> list[str]:
    """What this much data has given, as far as it was measured."""
    table = ", ".join(f"{minutes} min {error} %" for minutes, error in MEASURED_PHONE_ERRORS)
    below = [pair for pair in MEASURED_PHONE_ERRORS if pair[0] <= summary.seconds / 60]
    above = [pair for pair in MEASURED_PHONE_ERRORS if pair[0] > summary.seconds / 60]
    if not below:
        near = (
            f"This is less than the smallest measured amount: {above[0][0]} minutes gave {above[0][1]} % phone error."
        )
    elif not above:
        near = f"{below[-1][0]} minutes gave {below[-1][1]} % phone error; larger amounts were not measured."
    else:
        (less, worse), (more, better) = below[-1], above[0]
        near = f"{less} minutes gave {worse} % phone error, {more} minutes {better} %."
    return [
        f"You have {format_length(summary.seconds)} by {pluralize(len(summary.speakers), 'speaker')}. {near}",
        f"Phone error by minutes of speech: {table}. This was measured with the tiny base, Amharic in synthetic voices "
        "and 800 steps. Other bases and human voices need more.",
        "How much speech the published bases need was not measured. Other projects report 8 hours (one user, a "
        "language close to a known one), 26 hours (with an adapter), and 100 to 1,000 hours.",
    ]


def render_data_report(
    name: str,
    folder: Path,
    clips: Sequence[ManifestClip],
    measures: Mapping[str, ClipMetrics],
    estimates: Sequence[Mapping[str, Any]],
    problem_counts: Mapping[str, int],
    counted: VoiceCount | None = None,
) -> str:
    """The whole page."""
    summary = DatasetSummary.of(clips)
    problems = sorted(problem_counts.items(), key=lambda item: -item[1])[:4]
    total = max(1, len(clips))
    used = [clip for clip in clips if clip.is_used]
    used_ids = {clip.id for clip in used}
    charts = []
    for metric, title in METRIC_TITLES.items():
        values = [(getattr(own, metric), key in used_ids) for key, own in measures.items()]
        known = [(float(value), inside) for value, inside in values if value is not None]
        if known:
            charts.append(draw_inline_chart(title, partial(_draw_histogram, values=known), height=2.2))
    # Players: rejected clips with most reasons first, but some of every reason; and used clips from everywhere.
    rejected = sorted((clip for clip in clips if clip.rejected), key=lambda clip: -len(clip.rejected))
    worst: dict[str, ManifestClip] = {}
    for reason in dict.fromkeys(reason for clip in rejected for reason in clip.rejected):
        for clip in [clip for clip in rejected if reason in clip.rejected][:3]:
            worst.setdefault(clip.id, clip)
    typical = used[:: max(1, len(used) // 8)][:8]
    speakers, splits = (
        [(label, format_length(seconds)) for label, seconds in sorted(found.items(), key=lambda item: -item[1])]
        for found in (summary.speakers, summary.splits)
    )
    return render_page(
        "data_report.html",
        name=name,
        figures=[
            (format_length(summary.seconds), "used", f"{summary.used:,} clips"),
            (
                format_length(summary.rejected_seconds),
                "rejected",
                f"{summary.clips - summary.used:,} clips, none deleted",
            ),
            (
                f"{len(summary.speakers):,}",
                "speakers",
                pluralize(len(summary.recordings), "recording")
                + (f", about {counted.voices} voices" if counted else ""),
            ),
            (
                f"{sum(problem_counts.values()):,}",
                "lines left out or changed",
                ", ".join(f"{code} {count:,}" for code, count in problems) or "none",
            ),
        ],
        histograms=charts,
        reasons=[(reason, f"{count:,}", f"{count / total:.1%}") for reason, count in summary.reasons.most_common()],
        worst=[_describe_player(folder, clip, measures) for clip in list(worst.values())[:MAX_PLAYERS]],
        typical=[_describe_player(folder, clip, measures) for clip in typical],
        speakers=speakers[:MAX_TABLE_ROWS],
        splits=splits[:MAX_TABLE_ROWS],
        measured_results=describe_measured_results(summary),
        estimate_heads=ESTIMATE_HEADS,
        estimates=[
            (
                one["family"],
                f"{one['positions']:,}",
                f"{one['steps_a_pass']:,}",
                f"{one['passes']:,g}",
                "not measured" if one["gpu_hours"] is None else f"{one['gpu_hours']:g}",
                f"{one['disk_bytes'] / 1e6:,.0f} MB ({one['most_disk_bytes'] / 1e6:,.0f})",
                f"{one['too_long']:,}",
            )
            for one in estimates
        ],
    )


def _draw_histogram(axes: Axes, values: Sequence[tuple[float, bool]]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    numbers, is_used = np.array([value for value, _ in values]), np.array([used for _, used in values])
    # One clip of an hour would squeeze all others into one bar: the outermost hundredth goes into the last bars.
    low, high = (float(edge) for edge in np.percentile(numbers, (0.5, 99.5)))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    shown = np.clip(numbers, low, high)
    stacks, colors = [shown[is_used], shown[~is_used]], [GOOD_COLOR, BAD_COLOR]
    axes.hist(stacks, np.linspace(low, high, HISTOGRAM_BINS + 1).tolist(), stacked=True, color=colors, rwidth=0.9)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.margins(x=0)


def _describe_player(folder: Path, clip: ManifestClip, measures: Mapping[str, ClipMetrics]) -> dict[str, Any]:
    facts = [clip.id, clip.speaker, clip.source]
    if own := measures.get(clip.id):
        snr = "unknown" if own.snr_db is None else f"{own.snr_db:.0f} dB"
        facts += [f"{own.seconds:.1f} s", f"{own.letters_per_second:.1f} letters/s"]
        facts += [f"SNR {snr}", f"up to {own.bandwidth_hz:,.0f} Hz"]
    path = clip.resolve_audio(folder)
    source, why = "", "the audio file is missing"
    if path.is_file() and path.stat().st_size <= MAX_PLAYER_BYTES:
        source = data_url(path.read_bytes(), AUDIO_MIME_TYPES.get(path.suffix, "audio/wav"))
    elif path.is_file():
        why = f"too long for the page: {clip.audio}"
    return {
        "text": clip.text,
        "rejected": clip.rejected,
        "source": source,
        "why": why,
        "facts": " · ".join(map(str, facts)),
    }


def data_report(settings: DataReportSettings) -> SimpleResult:
    """Measure, judge, and write what was found into the manifest and onto a page. Exit code 1 if audio is missing."""
    dataset = open_dataset_folder(settings.dataset)
    with dataset.locked():
        clips = list(dataset.clips())
        known = {clip.id for clip in clips}
        for name in (*settings.take_back, *settings.reject):
            if name not in known:
                hint = find_nearest_name(name, sorted(known))
                cure = f"did you mean `{hint}`?" if hint else ""
                raise ConfigError("clips-unknown", f"there is no clip {name!r}", cure=cure)
        measures, fingerprints, heard, num_read = compute_dataset_metrics(dataset, clips, settings.workers)
        decided = []
        for clip in clips:  # a decision of the user overrides what was measured
            if clip.id in settings.reject or clip.id in settings.take_back:
                others = tuple(reason for reason in clip.rejected if reason != MANUAL_REJECTION)
                is_rejected = clip.id in settings.reject
                reasons = (*others, MANUAL_REJECTION) if is_rejected else others
                clip = replace(clip, rejected=reasons, taken_back=not is_rejected)
            decided.append(clip)
        judged = apply_quality_checks(decided, measures, fingerprints, settings.quality)
        if judged != clips:
            write_manifest(dataset.manifest, judged)
        estimates = estimate_training(judged)
        chosen = choose_voice_clips(judged)
        if settings.voices is None:
            counted = count_voices([heard[clip.id] for clip in chosen if clip.id in heard])
        else:
            counted = count_voices(encode_voices(dataset, chosen, settings.voices), has_channel_free=False)
        unlike = voice_findings(judged, counted, dataset.manifest)
        problems = Counter(problem.code for problem in collect_problems(dataset))
        html = render_data_report(dataset.name, dataset.folder, judged, measures, estimates, problems, counted)
        page = dataset.folder / "report.html"
        write_text(page, html, overwrite=True)
        summary, missing = DatasetSummary.of(judged), [clip.id for clip in judged if clip.id not in measures]
        values = {
            "page": str(page),
            **summary.to_json(),
            "measured": num_read,
            "voices": counted and counted._asdict(),
            "findings": [item.to_json() for item in unlike],
            "missing_audio": missing,
            "rejected_clips": {clip.id: list(clip.rejected) for clip in judged if clip.rejected},
            "estimates": estimates,
            "letters_per_second": {
                language: [round(limit, 2) for limit in pair]
                for language, pair in compute_pace_limits(clips, measures, settings.quality).items()
            },
        }
        kept = {**values, "quality": settings.quality.model_dump(), "page": page.name}
        write_json(dataset.folder / "report.json", json.loads(json.dumps(kept)), overwrite=True)
    speakers = f"{format_length(summary.seconds)} by {pluralize(len(summary.speakers), 'speaker')}"
    lines: list[Line] = [f"{summary.used:,} of {summary.clips:,} clips used: {speakers}"]
    lines += [line for item in unlike for line in item.lines()]
    if summary.reasons:
        rows = tuple((name, f"{count:,}") for name, count in summary.reasons.most_common())
        lines.append(Table(("rejected for", "clips"), rows))
    if reviewed := summary.review_line():
        lines.append(reviewed)
    paces = (f"{language} {low:g} to {high:g}" for language, (low, high) in values["letters_per_second"].items())
    lines.append(f"limits for letters per second: {', '.join(paces)}")
    if missing:
        lines.append(f"the audio of {len(missing):,} clips is missing or damaged: {', '.join(missing[:8])}")
    ahead = tuple(
        (
            one["family"],
            f"{one['steps_a_pass']:,}",
            "" if one["gpu_hours"] is None else f"{one['gpu_hours']:g}",
            f"{one['disk_bytes'] / 1e6:,.0f} ({one['most_disk_bytes'] / 1e6:,.0f})",
            f"{one['too_long']:,}",
        )
        for one in estimates
    )
    heads = (
        "family",
        "steps per epoch",
        "hours on an H200, 10,000 steps",
        "encoded clips, MB (peak)",
        "clips too long",
    )
    lines += [Table(heads, ahead), *describe_measured_results(summary), f"page with players: {page}"]
    return SimpleResult(values, tuple(lines), int(bool(missing)))
