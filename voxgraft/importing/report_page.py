"""`report.html` of a dataset: one page without a network, with figures, histograms, the worst clips, and players.

All text is escaped, since texts are data.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

import numpy as np

from voxgraft.amounts import pluralize
from voxgraft.importing.estimates import TrainingEstimate, describe_measured_results
from voxgraft.importing.manifest import ManifestClip
from voxgraft.importing.measuring import ClipMetrics
from voxgraft.importing.summary import DatasetSummary, format_duration

__all__ = ["DataReportPage", "render_data_report"]

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
    css = resources.files("voxgraft").joinpath("data/report/report.css").read_text(encoding="utf-8")
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
