"""`report.html` of a dataset: one page without a network, with figures, histograms, the worst clips, and players.

All text is escaped, since texts are data.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.audio.metrics import ClipMetrics
from voxgraft.config.data import DataReportSettings
from voxgraft.core.errors import ConfigError, find_nearest_name
from voxgraft.core.files import write_json, write_text
from voxgraft.core.results import Line, Table, pluralize
from voxgraft.data.folder import DatasetFolder, collect_problems, open_dataset_folder
from voxgraft.data.manifest import DatasetSummary, ManifestClip, format_duration, write_manifest
from voxgraft.data.quality import DatasetMetrics, apply_quality_checks, compute_dataset_metrics
from voxgraft.models import family_names, get_family

POSITIONS_PER_STEP = 16_384
DEFAULT_STEPS = 10_000
POSITIONS_PER_SECOND = {"chatterbox": 147_857, "indextts2": 166_057}
"""Measured on one NVIDIA H200, gated, rank 32, 16k positions at once; docs/log.md has the run."""
TEXT_IDS_PER_LETTER = 0.7
NUM_CONDITIONING = 34
VOICE_BYTES_PER_CLIP = {"chatterbox": (256 + 150) * 4, "indextts2": (32 + 1) * 1280 * 4, "tiny": 4}
"""What is kept of a voice beside its codes, for each clip."""
BYTES_PER_ID = 4
"""Of a code and of an id."""
METADATA_BYTES_PER_CLIP = 120
"""What a set says of a clip beside its text."""
MEASURED_PHONE_ERRORS = ((10, 38.4), (30, 12.0), (60, 4.8))
"""Minutes of Amharic and phone error in %: tiny base, gated, rank 32, 800 steps; docs/log.md, 2026-11-15."""
_ASSUMED_NEW_PIECES = 1_000


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """One family's training on these clips."""

    family: str
    positions: int
    steps_a_pass: int
    passes: float
    """Passes over the data in the usual number of steps."""
    gpu_hours: float | None
    """Of an H200, for the usual number of steps; None where it was not measured."""
    disk_bytes: int
    """Of the sets."""
    most_disk_bytes: int
    """While sets are written: what is encoded lies in the batches too."""
    too_long: int
    """Clips that the family cannot hear whole."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate_training(clips: Sequence[ManifestClip]) -> list[TrainingEstimate]:
    """For every family, from the clips that are used."""
    used = [clip for clip in clips if clip.is_used]
    return [_estimate_for_family(name, used) for name in family_names()]


def _estimate_for_family(name: str, clips: Sequence[ManifestClip]) -> TrainingEstimate:
    kind = get_family(name)
    longest = kind.frame(_ASSUMED_NEW_PIECES).max_codes / kind.code_hz
    codes = sum(clip.seconds for clip in clips) * kind.code_hz
    letters = sum(len(clip.text) for clip in clips)
    ids = letters * TEXT_IDS_PER_LETTER
    positions = round(codes + ids + NUM_CONDITIONING * len(clips))
    encoded = codes * BYTES_PER_ID + len(clips) * VOICE_BYTES_PER_CLIP.get(name, 0)
    lines = sum(len(clip.text.encode()) + METADATA_BYTES_PER_CLIP for clip in clips)
    steps = max(1, -(-positions // POSITIONS_PER_STEP))
    speed = POSITIONS_PER_SECOND.get(name)
    return TrainingEstimate(
        family=name,
        positions=positions,
        steps_a_pass=steps,
        passes=round(DEFAULT_STEPS / steps, 1),
        gpu_hours=round(DEFAULT_STEPS * POSITIONS_PER_STEP / speed / 3600, 2) if speed else None,
        disk_bytes=round(encoded + ids * BYTES_PER_ID + lines),
        most_disk_bytes=round(2 * encoded + ids * BYTES_PER_ID + lines),
        too_long=sum(clip.seconds > longest for clip in clips),
    )


def describe_measured_results(summary: DatasetSummary) -> list[str]:
    """What this much data has given, as far as anybody knows."""
    table = ", ".join(f"{minutes} min {error} %" for minutes, error in MEASURED_PHONE_ERRORS)
    return [
        f"You have {format_duration(summary.seconds)} in {len(summary.speakers):,} voices. {_nearest_measurements(summary.seconds / 60)}",
        f"Measured by minutes of speech: {table} phone error. That was the tiny base, Amharic in synthetic voices, a "
        "gated graft of rank 32, 800 steps of 2,560 positions on a GPU; other bases and human voices need more.",
        "Not measured: how much human speech Chatterbox or IndexTTS-2 need. What others report for theirs reaches "
        "from 8 hours (one user, a language near to a known one) over 26 (with an adapter) to 100 and 1,000 hours.",
    ]


def _nearest_measurements(minutes: float) -> str:
    """The measurements on both sides of so many minutes."""
    below = [pair for pair in MEASURED_PHONE_ERRORS if pair[0] <= minutes]
    above = [pair for pair in MEASURED_PHONE_ERRORS if pair[0] > minutes]
    if not below:
        return f"That is less than anything that was measured: {above[0][0]} minutes gave {above[0][1]} % phone error."
    if not above:
        return f"{below[-1][0]} minutes gave {below[-1][1]} % phone error; what more gives was not measured."
    (less, worse), (more, better) = below[-1], above[0]
    return f"{less} minutes gave {worse} % phone error, {more} minutes {better} %."


MAX_PLAYERS = 24
MAX_PLAYER_BYTES = 600_000
MAX_TABLE_ROWS = 40
HISTOGRAM_BINS = 32
CHART_WIDTH, CHART_HEIGHT, CHART_BOTTOM = 360, 150, 22
METRIC_TITLES = {
    "seconds": "Length, seconds",
    "letters_per_second": "Letters a second",
    "silence": "Share without speech",
    "longest_pause": "Longest pause, seconds",
    "snr_db": "Speech above noise, dB",
    "level_db": "Level of the speech, dB",
    "bandwidth_hz": "Bandwidth, Hz",
    "script": "Share of letters in the language's script",
}
AUDIO_MIME_TYPES = {".flac": "audio/flac", ".wav": "audio/wav"}


@dataclass(frozen=True, slots=True)
class DataReportPage:
    """Everything that stands on the page."""

    name: str
    folder: Path
    clips: Sequence[ManifestClip]
    measures: Mapping[str, ClipMetrics]
    estimates: Sequence[TrainingEstimate]
    problems: Mapping[str, int]


def render_data_report(page: DataReportPage) -> str:
    """The whole page."""
    summary = DatasetSummary.of(page.clips)
    sections: list[tuple[str, str, str]] = [
        ("measures", "Measures", _render_histograms(page)),
        ("rejected", "Rejected", _render_reasons(page, summary)),
        ("worst", "The worst clips", _render_players(page, _worst_clips(page))),
        ("used", "A few that are used", _render_players(page, _typical_clips(page))),
        ("speakers", "Speakers and splits", _render_speakers(summary)),
        ("ahead", "What training will take", _render_estimates(page, summary)),
    ]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{title}</h2>{text}</section>' for name, title, text in sections)
    css = resources.files("voxgraft").joinpath("assets/report/report.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(page.name)}: data report</title>",
            f"<style>{css}\nsvg rect{{fill:var(--after)}} svg rect.out{{fill:var(--bad)}}</style></head><body>",
            _render_header(page, summary),
            f'<nav aria-label="Sections"><div>{links}</div></nav><main>{body}</main></body></html>',
            "",
        ]
    )


def _render_header(page: DataReportPage, summary: DatasetSummary) -> str:
    figures = [
        (format_duration(summary.seconds), "used", f"{summary.used:,} clips"),
        (
            format_duration(summary.rejected_seconds),
            "rejected",
            f"{summary.clips - summary.used:,} clips, none deleted",
        ),
        (f"{len(summary.speakers):,}", "speakers", pluralize(len(summary.recordings), "recording")),
        (f"{sum(page.problems.values()):,}", "lines not used as they stand", _format_counts(page.problems)),
    ]
    cards = "".join(
        f'<div class="card figure"><div class="big">{escape(big)}</div><div class="what">{escape(what)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
        for big, what, note in figures
    )
    return (
        f'<header class="top"><h1>{escape(page.name)}</h1><p>Every clip was measured, none was deleted. A rejected one '
        f"is taken back with <code>voxgraft data report DATASET --take-back ID</code>.</p>"
        f'<div class="figures">{cards}</div></header>'
    )


def _format_counts(counts: Mapping[str, int]) -> str:
    shown = sorted(counts.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{name} {count:,}" for name, count in shown) or "none"


def _render_histograms(page: DataReportPage) -> str:
    used = {clip.id for clip in page.clips if clip.is_used}
    cards = []
    for name, title in METRIC_TITLES.items():
        values = [(getattr(own, name), key in used) for key, own in page.measures.items()]
        known = [(float(value), inside) for value, inside in values if value is not None]
        if known:
            cards.append(f'<figure class="card"><h3>{escape(title)}</h3>{_render_histogram(known)}</figure>')
    lead = '<p class="lead">All clips; those that are rejected in the second colour.</p>'
    return lead + f'<div class="charts">{"".join(cards)}</div>'


def _render_histogram(values: Sequence[tuple[float, bool]]) -> str:
    """Bars for how many clips have which value; the outermost hundredth on either side is put into the last bars."""
    numbers = np.array([value for value, _ in values])
    low, high = (float(edge) for edge in np.percentile(numbers, (0.5, 99.5)))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, HISTOGRAM_BINS + 1)
    inside = np.clip(numbers, low, high)
    kept = np.array([used for _, used in values])
    whole = np.histogram(inside, edges)[0]
    good = np.histogram(inside[kept], edges)[0]
    top, width = max(1, int(whole.max())), CHART_WIDTH / HISTOGRAM_BINS
    bars = []
    for place, (all_of, used) in enumerate(zip(whole.tolist(), good.tolist(), strict=True)):
        tall, out = ((CHART_HEIGHT - CHART_BOTTOM) * count / top for count in (used, all_of - used))
        x = place * width
        bars.append(
            f'<rect x="{x:.1f}" y="{CHART_HEIGHT - CHART_BOTTOM - tall:.1f}" width="{width - 1:.1f}" height="{tall:.1f}"/>'
        )
        if out:
            y = CHART_HEIGHT - CHART_BOTTOM - tall - out
            bars.append(f'<rect class="out" x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{out:.1f}"/>')
    marks = "".join(
        f'<text x="{at * CHART_WIDTH:.0f}" y="{CHART_HEIGHT - 6}" text-anchor="{anchor}">{_format_number(low + at * (high - low))}</text>'
        for at, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    return f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img">{"".join(bars)}{marks}</svg>'


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _render_reasons(page: DataReportPage, summary: DatasetSummary) -> str:
    if not summary.reasons:
        return "<p class='lead'>No clip is rejected.</p>"
    rows = [
        (name, f"{count:,}", f"{count / max(1, len(page.clips)):.1%}") for name, count in summary.reasons.most_common()
    ]
    return _render_table(("reason", "clips", "of all"), rows)


def _worst_clips(page: DataReportPage) -> list[ManifestClip]:
    """Rejected clips, those with most reasons first, but something of every reason."""
    rejected = sorted((clip for clip in page.clips if clip.rejected), key=lambda clip: -len(clip.rejected))
    chosen: dict[str, ManifestClip] = {}
    for reason in dict.fromkeys(reason for clip in rejected for reason in clip.rejected):
        for clip in [clip for clip in rejected if reason in clip.rejected][:3]:
            chosen.setdefault(clip.id, clip)
    return list(chosen.values())[:MAX_PLAYERS]


def _typical_clips(page: DataReportPage) -> list[ManifestClip]:
    """Used clips from everywhere in the dataset."""
    used = [clip for clip in page.clips if clip.is_used]
    return used[:: max(1, len(used) // 8)][:8]


def _render_players(page: DataReportPage, clips: Sequence[ManifestClip]) -> str:
    if not clips:
        return "<p class='lead'>None.</p>"
    return f'<div class="says">{"".join(_render_player(page, clip) for clip in clips)}</div>'


def _render_player(page: DataReportPage, clip: ManifestClip) -> str:
    own = page.measures.get(clip.id)
    tags = "".join(f'<span class="tag">{escape(reason)}</span> ' for reason in clip.rejected)
    told = f"{clip.id} · {clip.speaker} · {clip.source}"
    if own:
        snr = "unknown" if own.snr_db is None else f"{own.snr_db:.0f} dB"
        told += f" · {own.seconds:.1f} s · {own.letters_per_second:.1f} letters/s"
        told += f" · above noise {snr} · up to {own.bandwidth_hz:,.0f} Hz"
    path = clip.resolve_audio(page.folder)
    sound = "<p class='soft'>the sound is not there</p>"
    if path.is_file() and path.stat().st_size <= MAX_PLAYER_BYTES:
        data = base64.b64encode(path.read_bytes()).decode()
        kind = AUDIO_MIME_TYPES.get(path.suffix, "audio/wav")
        sound = f'<audio controls preload="none" src="data:{kind};base64,{data}"></audio>'
    elif path.is_file():
        sound = f"<p class='soft'>too long for the page: {escape(clip.audio)}</p>"
    text = f'<div class="text">{escape(clip.text)}</div>'
    return f'<div class="card say">{text}{tags}{sound}<div class="who">{escape(told)}</div></div>'


def _render_speakers(summary: DatasetSummary) -> str:
    return _render_durations("speaker", summary.speakers) + _render_durations("split", summary.splits)


def _render_durations(name: str, found: Mapping[str, float]) -> str:
    longest = sorted(found.items(), key=lambda item: -item[1])[:MAX_TABLE_ROWS]
    return _render_table((name, "used"), [(own, format_duration(seconds)) for own, seconds in longest])


def _render_estimates(page: DataReportPage, summary: DatasetSummary) -> str:
    rows = [
        (
            one.family,
            f"{one.positions:,}",
            f"{one.steps_a_pass:,}",
            f"{one.passes:,g}",
            "not measured" if one.gpu_hours is None else f"{one.gpu_hours:g}",
            f"{one.disk_bytes / 1e6:,.0f} MB ({one.most_disk_bytes / 1e6:,.0f})",
            f"{one.too_long:,}",
        )
        for one in page.estimates
    ]
    heads = (
        "family",
        "positions",
        "steps a pass",
        "passes in 10,000 steps",
        "H200 hours",
        "disk for sets (while they are written)",
        "too long",
    )
    lead = "".join(f'<p class="lead">{escape(line)}</p>' for line in describe_measured_results(summary))
    return lead + _render_table(heads, rows)


def _render_table(heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


MANUAL_REJECTION = "by-hand"
"""The reason of clips that somebody has rejected."""


@dataclass(frozen=True, slots=True)
class DataReportResult:
    """What was measured and decided."""

    page: Path
    summary: DatasetSummary
    estimates: tuple[TrainingEstimate, ...]
    read: int
    missing: tuple[str, ...]
    rejected: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def exit_code(self) -> int:
        """1 if the sound of a clip is not there or broken."""
        return int(bool(self.missing))

    def to_json(self) -> dict[str, Any]:
        return {
            "page": str(self.page),
            **self.summary.to_json(),
            "measured": self.read,
            "missing_audio": list(self.missing),
            "rejected_clips": {name: list(reasons) for name, reasons in self.rejected},
            "estimates": [one.to_json() for one in self.estimates],
        }

    def lines(self) -> list[Line]:
        found = self.summary
        lines: list[Line] = [
            f"{found.used:,} of {found.clips:,} clips used: {format_duration(found.seconds)} in {len(found.speakers):,} voices"
        ]
        if found.reasons:
            rows = tuple((name, f"{count:,}") for name, count in found.reasons.most_common())
            lines.append(Table(("rejected for", "clips"), rows))
        if self.missing:
            lines.append(
                f"the sound of {len(self.missing):,} clips is missing or broken: {', '.join(self.missing[:8])}"
            )
        ahead = tuple(
            (
                one.family,
                f"{one.steps_a_pass:,}",
                "" if one.gpu_hours is None else f"{one.gpu_hours:g}",
                f"{one.disk_bytes / 1e6:,.0f} ({one.most_disk_bytes / 1e6:,.0f})",
                f"{one.too_long:,}",
            )
            for one in self.estimates
        )
        heads = ("family", "steps a pass", "H200 hours, 10,000 steps", "MB of sets (while written)", "too long")
        return [*lines, Table(heads, ahead), *describe_measured_results(found), f"page with players: {self.page}"]


def data_report(settings: DataReportSettings) -> DataReportResult:
    """Measure, judge, and write what was found into the manifest and onto a page."""
    dataset = open_dataset_folder(settings.dataset)
    with dataset.locked():
        clips = list(dataset.clips())
        _require_known_clips((*settings.take_back, *settings.reject), clips)
        heard = compute_dataset_metrics(dataset, clips, settings.workers)
        decided = [_apply_manual_decision(clip, settings) for clip in clips]
        judged = apply_quality_checks(decided, heard.measures, heard.fingerprints, settings.quality)
        if judged != clips:
            write_manifest(dataset.manifest, judged)
        return _write_report(dataset, judged, heard, settings)


def _apply_manual_decision(clip: ManifestClip, settings: DataReportSettings) -> ManifestClip:
    """What somebody has decided is over what was measured."""
    if clip.id in settings.reject:
        return replace(
            clip, rejected=(*(r for r in clip.rejected if r != MANUAL_REJECTION), MANUAL_REJECTION), taken_back=False
        )
    if clip.id in settings.take_back:
        return replace(clip, rejected=tuple(r for r in clip.rejected if r != MANUAL_REJECTION), taken_back=True)
    return clip


def _require_known_clips(ids: Sequence[str], clips: Sequence[ManifestClip]) -> None:
    known = {clip.id for clip in clips}
    for name in ids:
        if name not in known:
            hint = find_nearest_name(name, sorted(known))
            cure = f"did you mean `{hint}`?" if hint else ""
            raise ConfigError("clips-unknown", f"there is no clip {name!r}", cure=cure)


def _write_report(
    dataset: DatasetFolder, clips: list[ManifestClip], heard: DatasetMetrics, settings: DataReportSettings
) -> DataReportResult:
    found = estimate_training(clips)
    problems = Counter(problem.code for problem in collect_problems(dataset))
    page = DataReportPage(dataset.name, dataset.folder, clips, heard.measures, found, problems)
    write_text(dataset.folder / "report.html", render_data_report(page), overwrite=True)
    rejected = tuple((clip.id, clip.rejected) for clip in clips if clip.rejected)
    missing = tuple(clip.id for clip in clips if clip.id not in heard.measures)
    report = DataReportResult(
        dataset.folder / "report.html", DatasetSummary.of(clips), tuple(found), heard.read, missing, rejected
    )
    values = {**report.to_json(), "quality": settings.quality.model_dump(), "page": "report.html"}
    write_json(dataset.folder / "report.json", json.loads(json.dumps(values)), overwrite=True)
    return report
