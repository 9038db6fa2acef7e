"""The verb `plot`: the curves of a run as PNG and SVG, or those of several runs over each other.

Only reads journals, so it may be called while a run trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import FileError
from voxgraft.files import atomic_write, require_folder, require_output_path
from voxgraft.history import SPEECH_LOSS, History
from voxgraft.journal import RunJournal
from voxgraft.pictures import ImageFormat, render_run_comparison, render_run_curves
from voxgraft.results import Line, Table
from voxgraft.run import RunFolder
from voxgraft.settings import PlotSettings

__all__ = ["PlotResult", "plot"]

CURVES_NAME = "curves"
IMAGE_FORMATS: tuple[ImageFormat, ...] = ("png", "svg")


@dataclass(frozen=True, slots=True)
class PlotResult:
    """The pictures, and how the runs stand."""

    files: tuple[Path, ...]
    histories: dict[str, History]
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "files": [str(path) for path in self.files],
            "runs": {name: _summarize_history(history) for name, history in self.histories.items()},
        }

    def lines(self) -> list[Line]:
        rows = []
        for name, history in self.histories.items():
            stand = _summarize_history(history)
            losses = [stand[key] for key in ("speech_loss", "best_speech_loss")]
            figures = ["-" if loss is None else f"{loss:.4f}" for loss in losses]
            rows.append((name, f"{stand['step']:,}", *figures, f"{stand['best_step']:,}", stand["state"] or "-"))
        columns = ("run", "step", "held-out speech loss", "best", "at step", "state")
        return [Table(columns, tuple(rows)), *(f"picture: {path}" for path in self.files)]


def plot(settings: PlotSettings) -> PlotResult:
    """Draw one run, or compare several."""
    alone = len(settings.runs) == 1
    stem = settings.output or (settings.runs[0] / CURVES_NAME if alone else Path(CURVES_NAME))
    # What stands in a run under our own name is drawn anew; anything else is replaced only if asked.
    overwrite = settings.overwrite or (settings.output is None and alone)
    files = tuple(_with_format_suffix(stem, form) for form in IMAGE_FORMATS)
    for path in files:
        require_output_path(path, overwrite=overwrite)
    histories = _load_histories(settings.runs)
    if alone:
        name, history = next(iter(histories.items()))
        pictures = render_run_curves(history, _format_plot_title(name, history))
    else:
        pictures = render_run_comparison(histories, f"{len(histories)} runs on held-out recordings")
    for path, form in zip(files, IMAGE_FORMATS, strict=True):
        with atomic_write(path, overwrite=overwrite) as stream:
            stream.write(pictures[form])
    return PlotResult(files, histories)


def _load_histories(runs: tuple[Path, ...]) -> dict[str, History]:
    """By the names of their folders; where two have one name, by their paths."""
    names = [path.resolve().name or str(path) for path in runs]
    found: dict[str, History] = {}
    for path, name in zip(runs, names, strict=True):
        journal = RunJournal(RunFolder(require_folder(path)).journal)
        history = History.of(journal.read())
        if not history.steps and not history.valid:
            raise FileError("plot-nothing", f"{path} has no losses in its journal", where=journal.path)
        found[name if names.count(name) == 1 else str(path)] = history
    return found


def _format_plot_title(name: str, history: History) -> str:
    total = f" of {history.num_steps:,}" if history.num_steps else ""
    parts = [f"{name}: {history.language}" if history.language else name, f"step {history.last_step:,}{total}"]
    if history.state is not None:
        parts.append(str(history.state.values["state"]))
    return ", ".join(parts)


def _summarize_history(history: History) -> dict[str, Any]:
    held_out = history.held_out(SPEECH_LOSS)
    return {
        "step": history.last_step,
        "speech_loss": held_out[-1][1] if held_out else None,
        "best_step": history.best_step,
        "best_speech_loss": dict(held_out).get(history.best_step) if history.best_step else None,
        "state": history.state.values["state"] if history.state else None,
        "findings": len(history.findings),
    }


def _with_format_suffix(stem: Path, form: ImageFormat) -> Path:
    """The file of one format; an ending of either format that the user has typed is not doubled."""
    bare = stem.with_suffix("") if stem.suffix.lower() in (".png", ".svg") else stem
    return bare.with_name(f"{bare.name}.{form}")
