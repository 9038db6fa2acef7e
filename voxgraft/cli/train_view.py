"""A run while it trains, for people: a live picture on a terminal, plain lines elsewhere.

Fed with what `progress.tell` says, from one thread only. What is told is data: it is never read as markup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from voxgraft.cli.console import escape_control_characters
from voxgraft.cli.progress import DownsampledCurve, braille_chart, sparkline
from voxgraft.core.errors import Finding
from voxgraft.core.journal import SPEECH_LOSS, SPEED_WINDOW_STEPS, TEXT_LOSS, History, as_finite_float
from voxgraft.core.progress import active_seconds
from voxgraft.core.results import format_bytes, format_duration, format_learning_rate

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


LOSS_KEYS = {"text": TEXT_LOSS, "speech": SPEECH_LOSS}
STOPPING_MESSAGE = "finishing the step and saving ... (once more: stop at once)"
SKIPPED_TIMING_STEPS = 2
"""First steps that are slower than the rest: compilation, first touch of memory."""


@dataclass
class TrainProgress:
    """A run as it is told, line by line."""

    clock: Callable[[], float] = active_seconds
    history: History = field(default_factory=History)
    step: int = 0
    """The step that is being made, or the last one."""
    current_activity: str = "starting"
    saved_step: int | None = None
    stopping: bool = False
    curves: dict[str, DownsampledCurve] = field(
        default_factory=lambda: {key: DownsampledCurve() for key in LOSS_KEYS.values()}
    )
    """Training losses."""
    _timed: list[tuple[float, int]] = field(default_factory=list)
    """When steps began, and their numbers: the first that counts, and the last."""
    _begun: int = 0
    _positions: int | None = None
    """Of a step, now; those before may have had others."""

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One more thing that was told."""
        if kind == "opening":
            self._open(step, values)
        elif kind == "doing":
            self.step, self.current_activity = max(self.step, step), str(values.get("what", ""))
            if self.current_activity == "step":
                self._time(step)
        elif kind == "saved":
            self.saved_step = step
        elif kind == "stopping":
            self.stopping = True
        else:
            self._remember(kind, step, values)
            self.step = max(self.step, step)

    @property
    def num_steps(self) -> int:
        return self.history.num_steps

    @property
    def share(self) -> float | None:
        """How much of the run is done."""
        return min(1.0, self.step / self.num_steps) if self.num_steps else None

    def format_time_left(self) -> str:
        """How long it will take, in words."""
        seconds = self._seconds_per_step()
        if not self.num_steps or self.history.ended:
            return ""
        if seconds is None:
            return f"time known after {SPEED_WINDOW_STEPS} steps"
        return f"{format_duration((self.num_steps - self.step) * seconds)} left"

    def facts(self) -> dict[str, str]:
        """Speed, rates and memory of the last line, in words."""
        if not self.history.steps:
            return {}
        last = self.history.steps[self.history.last_logged]
        speed, epoch = as_finite_float(last.get("positions_per_second")), as_finite_float(last.get("epoch"))
        kl = as_finite_float(last.get("kl"))
        rates = [f"{part} {format_learning_rate(rate)}" for part, rate in (last.get("rates") or {}).items()]
        found = {
            "speed": f"{speed:,.0f} tokens/s" if speed is not None else "",
            "pass": f"pass {epoch:,.2f}" if epoch is not None else "",
            "rates": ", ".join(rates),
            "kl": f"{kl:.4f}" if kl is not None else "",
            "memory": f"memory {_format_memory(last)}" if _format_memory(last) else "",
        }
        return {name: text for name, text in found.items() if text}

    def _open(self, step: int, values: Mapping[str, Any]) -> None:
        for entry in values.get("entries") or ():
            self._remember(entry["kind"], entry["step"], entry)
        self.history.num_steps = values.get("steps") or self.history.num_steps
        self._positions = values.get("positions")
        self.step = step

    def _remember(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """A run may take weeks: of its steps only the curves and the last lines are kept."""
        self.history.add(kind, step, values)
        if kind == "step":
            for key, curve in self.curves.items():
                if (value := as_finite_float(values.get(key))) is not None:
                    curve.add(value)
            while len(self.history.steps) > SPEED_WINDOW_STEPS:
                del self.history.steps[next(iter(self.history.steps))]

    def _time(self, step: int) -> None:
        self._begun += 1
        if self._begun > SKIPPED_TIMING_STEPS:
            self._timed = [*self._timed[:1], (self.clock(), step)]

    def _seconds_per_step(self) -> float | None:
        """As measured here, with everything between the steps; before that as the journal has it from earlier."""
        if len(self._timed) == 2 and self._timed[1][1] - self._timed[0][1] >= SPEED_WINDOW_STEPS - SKIPPED_TIMING_STEPS:
            (first, step), (last, later) = self._timed
            return (last - first) / (later - step)
        return self.history.seconds_per_step(self._positions) if len(self.history.steps) >= SPEED_WINDOW_STEPS else None


def format_losses(values: Mapping[str, Any]) -> str:
    """The losses of a line."""
    kl = {"kl": "kl"} if "kl" in values else {}
    return "  ".join(f"{name} {_format_number(values.get(key), '.4f')}" for name, key in {**LOSS_KEYS, **kl}.items())


def format_validation(history: History, values: Mapping[str, Any]) -> str:
    """What a validation found, with the levels that it is to be held against."""
    name = str(values.get("set", ""))
    words = [f"held out {name}: {format_losses(values)}"]
    uses = {use: as_finite_float(values.get(f"{use}_use")) for use in ("text", "voice")}
    words += [f"{use} use {gap:+.4f}" for use, gap in uses.items() if gap is not None]
    if name == history.language:
        first = {key: history.initial_loss(key) for key in LOSS_KEYS.values()}
        for word, levels in (("step 0", first), ("chance", history.chance)):
            known = [_format_number(levels.get(key), ".2f") for key in LOSS_KEYS.values()]
            words.append(f"{word} {'/'.join(known)}")
        words += [f"state {history.state.values['state']}"] if history.state else []
    elif points := history.retention(name):
        words.append(f"{points[-1][1]:+.2%} since step 0")
    return "  ".join(words)


def format_retention(history: History) -> str:
    """How every base language stands against step 0."""
    known = {name: history.retention(name) for name in history.base_languages}
    words = [f"{name} {points[-1][1]:+.2%}" for name, points in known.items() if points]
    return f"{', '.join(words)} (speech loss since step 0)" if words else ""


def _format_number(value: Any, form: str) -> str:
    known = as_finite_float(value)
    return "-" if known is None else format(known, form)


def _format_memory(line: Mapping[str, Any]) -> str:
    """The process's memory, and on CUDA what is in use, kept, and was the most."""
    process = as_finite_float(line.get("memory_process_bytes"))
    words = [f"{format_bytes(process)}"] if process is not None else []
    cuda = [as_finite_float(line.get(f"memory_cuda{name}_bytes")) for name in ("", "_reserved", "_peak")]
    if (now := cuda[0]) is not None:
        others = [
            f"{format_bytes(value)} {word}" for value, word in zip(cuda[1:], ("kept", "at most"), strict=True) if value
        ]
        words.append(f"CUDA {format_bytes(now)} ({', '.join(others)})" if others else f"CUDA {format_bytes(now)}")
    return ", ".join(words)


CHART_ROWS = 6
MIN_ROWS_FOR_CHARTS, MIN_ROWS_IF_NARROW = 24, 28
"""A terminal with fewer rows gets sparklines alone; words take more rows on a narrow one."""
MAX_COLUMNS = 120
LOSS_TABLE_COLUMNS = 51
"""What the figures of the losses take."""
END_REASON_LABELS = {"told": "stopped as told", "no-better": "no longer getting better"}
STATE_STYLES = {"stuck": "bold red", "learning": "green", "good enough": "bold green"}


def render_training(
    progress: TrainProgress, console: Console, *, jobs: Sequence[str] = (), unicode: bool = True
) -> RenderableType:
    """The whole picture for a console of any size; without `unicode` no signs beyond ASCII."""
    from rich.console import Group

    width = min(console.width, MAX_COLUMNS)
    rows = MIN_ROWS_FOR_CHARTS if width >= 80 else MIN_ROWS_IF_NARROW
    charts = unicode and console.height >= rows and len(progress.curves[SPEECH_LOSS].points) > 1
    parts: list[RenderableType] = [_render_head(progress), _render_bar(progress, width)]
    parts.append(_render_losses(progress, width, unicode and not charts))
    parts += [_render_charts(progress, width)] if charts else []
    parts += [render_note_line(name, text, style) for name, text, style in _collect_notes(progress)]
    parts += [render_note_line("now", job, "") for job in jobs]
    parts.append(_render_foot(progress))
    return Group(*parts)


def _render_head(watched: TrainProgress) -> Text:
    from rich.text import Text

    total = f" of {watched.num_steps:,}" if watched.num_steps else ""
    doing = "" if watched.current_activity == "step" or watched.history.ended else f"  {watched.current_activity}"
    if watched.stopping and not watched.history.ended:
        doing = (
            f"  {watched.current_activity}, then stopping"  # the foot says more, unless the terminal is too low for it
        )
    state = watched.history.state
    text = Text.assemble((f"step {watched.step:,}", "bold"), total, (doing, "cyan"), no_wrap=True)
    if state is not None:
        word = str(state.values["state"])
        text.append(f"  {word}", STATE_STYLES.get(word, "yellow"))
    return text


def _render_bar(watched: TrainProgress, width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    words = watched.format_time_left()
    if watched.share is None:
        return words
    words = f"{watched.share:.0%}  {words}".rstrip()
    row = Table.grid(padding=(0, 2))
    row.add_row(ProgressBar(1.0, watched.share, width=max(10, width - len(words) - 2)), words)
    return row


def _render_losses(watched: TrainProgress, width: int, curves: bool) -> Table:
    """Both losses with every level that they are to be held against, and small curves if there are no large ones."""
    from rich.table import Table

    history = watched.history
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("loss", min_width=6, no_wrap=True)
    for column in ("train", "held out", "best", "step 0", "chance"):
        table.add_column(column, justify="right", no_wrap=True, min_width=6)
    room = width - LOSS_TABLE_COLUMNS
    table.add_column("", no_wrap=True, style="green")
    for name, key in LOSS_KEYS.items():
        held_out = history.held_out(key)
        best = history.valid.get(history.language, {}).get(history.best_step, {}) if history.best_step else {}
        cells = [
            watched.curves[key].last,
            held_out[-1][1] if held_out else None,
            as_finite_float(best.get(key)),
            history.initial_loss(key),
            history.chance.get(key),
        ]
        figures = ["-" if value is None else f"{value:.3f}" for value in cells]
        line = sparkline(watched.curves[key].points, min(room, 40)) if curves and room >= 8 else ""
        table.add_row(name, *figures, line)
    return table


def _render_charts(watched: TrainProgress, width: int) -> Table:
    """The two losses side by side; where there is little room, speech alone."""
    from rich.table import Table
    from rich.text import Text

    chosen = LOSS_KEYS if width >= 60 else {"speech": SPEECH_LOSS}
    grid = Table.grid(padding=(0, 2))
    each = (width - 2 * (len(chosen) - 1)) // len(chosen)
    cells = []
    for name, key in chosen.items():
        values = watched.curves[key].points
        levels = {"chance": watched.history.chance.get(key), "step 0": watched.history.initial_loss(key)}
        rows = braille_chart(
            values, each, CHART_ROWS, {word: level for word, level in levels.items() if level is not None}
        )
        title = f"{name} loss  {max(values):.2f} to {min(values):.2f}" if values else f"{name} loss"
        cells.append(Text("\n").join([Text(title, "dim"), *(Text(row, "green", no_wrap=True) for row in rows)]))
    grid.add_row(*cells)
    return grid


def _collect_notes(watched: TrainProgress) -> list[tuple[str, str, str]]:
    """Everything beside the losses: a name, words and a style."""
    history, facts = watched.history, watched.facts()
    points = {name: history.held_out(f"{name}_use") for name in ("text", "voice")}
    uses = [f"{name} {known[-1][1]:+.4f}" for name, known in points.items() if known]
    saved = [f"step {watched.saved_step:,}"] if watched.saved_step is not None else []
    saved += [f"best is step {history.best_step:,}"] if history.best_step else []
    saved += [f"samples of step {max(history.samples):,}"] if history.samples else []
    state = history.state.values if history.state else {}
    notes = [
        ("use", ", ".join(uses), ""),
        ("retention", format_retention(history), ""),
        ("KL", f"{facts['kl']} from the base, on replay" if "kl" in facts else "", ""),
        ("speed", ", ".join(facts[name] for name in ("speed", "pass", "memory") if name in facts), ""),
        ("rates", facts.get("rates", ""), ""),
        ("state", format_learning_state(state) if state else "", STATE_STYLES.get(state.get("state", ""), "")),
        ("saved", ", ".join(saved), ""),
        ("findings", _format_findings(history), "yellow"),
    ]
    return [note for note in notes if note[1]]


def _format_findings(history: History) -> str:
    """What is worth knowing of those that came while training; notes are no worry."""
    worries = [item for item in history.findings if item.values.get("level") != "note"]
    if not worries:
        return ""
    last = worries[-1]
    return f"{len(worries):,}, the last at step {last.step:,}: {last.values.get('code', '')}"


def render_note_line(name: str, text: str, style: str) -> RenderableType:
    """A name and what there is to say, which may take several rows of its own column."""
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_column(width=10, no_wrap=True, style="dim")
    row.add_column(overflow="fold")
    row.add_row(name, Text(escape_control_characters(text), style))
    return row


def _render_foot(watched: TrainProgress) -> Text:
    from rich.text import Text

    if ended := watched.history.ended:
        reason = str(ended.values.get("reason", ""))
        return Text(f"ended: {END_REASON_LABELS.get(reason, reason)}", "bold")
    if watched.stopping:
        return Text(STOPPING_MESSAGE, "bold yellow")
    return Text("Ctrl-C finishes the step and saves", "dim")


def format_learning_state(values: Mapping[str, Any]) -> str:
    """The state word with its reason."""
    return f"{values['state']}: {values['why']}" if values.get("why") else str(values["state"])


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
