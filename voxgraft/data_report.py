"""The verb `data report`: measures every clip, rejects by thresholds, writes a page. Deletes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxgraft.data_settings import DataReportSettings
from voxgraft.errors import ConfigError, find_nearest_name
from voxgraft.files import write_json, write_text
from voxgraft.importing.dataset import DatasetFolder, open_dataset_folder
from voxgraft.importing.estimates import TrainingEstimate, describe_measured_results, estimate_training
from voxgraft.importing.judging import apply_quality_checks
from voxgraft.importing.listening_through import DatasetMetrics, compute_dataset_metrics
from voxgraft.importing.manifest import ManifestClip, write_manifest
from voxgraft.importing.report_page import DataReportPage, render_data_report
from voxgraft.importing.summary import DatasetSummary, format_duration
from voxgraft.importing.told import collect_problems
from voxgraft.results import Line, Table

__all__ = ["DataReportResult", "data_report"]

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
