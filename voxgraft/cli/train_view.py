"""A run while it trains, for people: a live picture on a terminal, plain lines elsewhere.

Fed with what `progress.tell` says, from one thread only. What is told is data: it is never read as markup.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from voxgraft.cli.console import escape_control_characters
from voxgraft.cli.train_picture import STATE_STYLES, format_learning_state, render_note_line, render_training
from voxgraft.cli.watched import STOPPING_MESSAGE, TrainProgress, format_losses, format_validation
from voxgraft.errors import Finding
from voxgraft.history import as_finite_float

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["TrainLineView", "TrainLiveView", "TrainView"]

REDRAW_SECONDS = 1.0
"""Drawing takes some milliseconds of the training's time, so it is done once a second, and at once where it matters."""
REDRAW_AT_ONCE_EVENTS = ("opening", "stopping", "end")
LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


class TrainView(Protocol):
    """How a run is shown."""

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Something happened."""

    def refresh(self, jobs: Sequence[str]) -> None:
        """Time has passed; `jobs` are long jobs under way, in words."""

    def close(self) -> None:
        """Nothing more comes."""


def format_event(kind: str, step: int, values: Mapping[str, Any], progress: TrainProgress) -> list[tuple[str, str]]:
    """What is worth a line that stays, with its style: findings, samples, a change of state."""
    if kind == "opening":
        return [(line, "") for line in values.get("lines") or ()]
    if kind == "finding":
        keys = ("code", "found", "expected", "where", "cure", "level")
        item = Finding(**{key: str(values[key]) for key in keys if values.get(key)})  # type: ignore[arg-type]
        first, *rest = item.lines()
        return [(f"step {step:,}: {first}", LEVEL_STYLES.get(item.level, "")), *((line, "") for line in rest)]
    if kind == "samples":
        return [(f"step {step:,}: {_format_samples(values)}", "")]
    if kind == "interpolation":
        return [(f"step {step:,}: {_format_interpolation(values)}", "bold" if values.get("chosen") else "")]
    if kind == "stop-asked":
        return [(f"step {step:,}: stops: {values.get('why', '')}", "bold yellow")]
    if isinstance(values.get("state"), str) and progress.history.state_changed:
        return [(f"step {step:,}: {format_learning_state(values)}", STATE_STYLES.get(values["state"], ""))]
    return []


class TrainLineView:
    """One line for each line of the journal that says something, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._train_progress = TrainProgress()
        self._early: list[str] | None = []
        """Lines told before the opening ones, which come first."""

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        watched = self._train_progress
        was_stopping = watched.stopping
        watched.add(kind, step, values)
        lines = [text for text, _ in format_event(kind, step, values, watched)]
        if kind == "step":
            lines = [self._format_step(step, values), *lines]
        elif kind == "valid":
            lines = [f"step {step:,}  {format_validation(watched.history, values)}", *lines]
        elif kind == "saved":
            lines = [f"step {step:,}  saved"]
        elif kind == "stopping" and not was_stopping:
            lines = [f"step {step:,}  {STOPPING_MESSAGE}"]
        if kind == "opening":
            lines, self._early = [*lines, *(self._early or [])], None
        if self._early is None:
            self._print(lines)
        else:
            self._early += lines

    def refresh(self, jobs: Sequence[str]) -> None:
        """Lines say when they are due."""

    def close(self) -> None:
        self._print(self._early or [])
        self._early = None

    def _format_step(self, step: int, values: Mapping[str, Any]) -> str:
        watched = self._train_progress
        share = f" of {watched.num_steps:,} ({watched.share:.0%})" if watched.share is not None else ""
        facts = watched.facts()
        words = [f"step {step:,}{share}", format_losses(values), facts.get("speed", ""), watched.format_time_left()]
        words += [f"rates {facts['rates']}" if "rates" in facts else "", facts.get("memory", "")]
        return "  ".join(word for word in words if word)

    def _print(self, lines: Sequence[str]) -> None:
        if lines:
            self._stream.write("".join(f"{escape_control_characters(line)}\n" for line in lines))
            self._stream.flush()


class TrainLiveView:
    """A picture at the foot of the terminal; what stays scrolls by above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, markup=False, highlight=False, emoji=False)
        self._has_unicode = (getattr(stream, "encoding", "") or "").lower().replace("-", "").startswith("utf")
        self._train_progress = TrainProgress()
        self._early: list[tuple[str, str]] | None = []
        self._jobs: Sequence[str] = ()
        self._last_drawn_at = 0.0
        self._is_redraw_due = True
        self._live = Live(
            get_renderable=self._picture, console=self._console, auto_refresh=False, vertical_overflow="crop"
        )
        self._live.start()

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        self._train_progress.add(kind, step, values)
        self._is_redraw_due = self._is_redraw_due or kind in REDRAW_AT_ONCE_EVENTS
        lines = format_event(kind, step, values, self._train_progress)
        if kind == "opening":
            self._print(lines, opening=True)
            lines, self._early = self._early or [], None
        if self._early is None:
            self._print(lines)
        else:
            self._early += lines

    def refresh(self, jobs: Sequence[str]) -> None:
        now = time.monotonic()
        if self._is_redraw_due or now - self._last_drawn_at >= REDRAW_SECONDS:
            self._jobs, self._last_drawn_at, self._is_redraw_due = jobs, now, False
            self._live.refresh()

    def close(self) -> None:
        self._print(self._early or [])
        self._early, self._jobs = None, ()
        self._live.refresh()
        self._live.stop()

    def _print(self, lines: Sequence[tuple[str, str]], *, opening: bool = False) -> None:
        """Lines that stay; those of the opening have a name and words after it."""
        from rich.text import Text

        for text, style in lines:
            name, colon, rest = text.partition(": ")
            if opening and colon:
                self._console.print(render_note_line(f"{name}:", rest.strip(), style))
            else:
                self._console.print(Text(escape_control_characters(text), style))

    def _picture(self) -> RenderableType:
        return render_training(self._train_progress, self._console, jobs=self._jobs, unicode=self._has_unicode)


def _format_samples(values: Mapping[str, Any]) -> str:
    """Where samples lie, and how each of them ended."""
    words = []
    for spoken in values.get("spoken") or ():
        marks = [] if spoken.get("stopped", True) else ["did not stop"]
        marks += ["as at step 0"] if spoken.get("same_as_step_0") else []
        seconds = as_finite_float(spoken.get("seconds"))
        length = "" if seconds is None else f" {seconds:.1f} s"
        words.append(f"{spoken.get('name', '?')}{length}" + (f" ({'; '.join(marks)})" if marks else ""))
    return f"samples in {values.get('folder', '?')}: {', '.join(words)}" if words else "samples"


def _format_interpolation(values: Mapping[str, Any]) -> str:
    """One point on the way from the base to what was trained."""
    losses = {str(name): as_finite_float(loss) for name, loss in (values.get("speech_losses") or {}).items()}
    words = [f"{name} {loss:.4f}" for name, loss in losses.items() if loss is not None]
    chosen = ", chosen" if values.get("chosen") else ""
    return f"share {as_finite_float(values.get('share')) or 0:g} of what was trained: speech loss {', '.join(words)}{chosen}"
