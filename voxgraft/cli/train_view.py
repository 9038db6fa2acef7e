"""A training run while it runs: one model of what is known of it, and two views for the terminal.

`TrainProgress` collects the events of a run (`core.progress`); the web interface renders the same model. The live view
redraws a picture at the foot of a terminal, the line view writes to logs and pipes. Both are fed from one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TextIO

from voxgraft.cli.console import escape_control_characters
from voxgraft.core.errors import Finding
from voxgraft.core.progress import active_seconds
from voxgraft.core.results import LEVEL_STYLES, format_bytes, format_duration, format_learning_rate
from voxgraft.core.run import SPEECH_LOSS, SPEED_WINDOW_STEPS, TEXT_LOSS, History, as_finite_float

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LOSS_KEYS = {"text": TEXT_LOSS, "speech": SPEECH_LOSS}
LOSS_COLUMNS = ("train", "held out", "best", "step 0", "chance")
# Style on a terminal, and kind of note in the web interface, by state of learning.
STATE_STYLES = {"stuck": ("bold red", "bad"), "learning": ("green", "good"), "good enough": ("bold green", "good")}
END_REASON_LABELS = {"stopped": "stopped on request", "no-better": "no longer getting better"}
STOPPING_MESSAGE = "finishing the step and saving ... (press again to stop at once)"
# First steps that are slower than the rest: compilation, first touch of memory.
SKIPPED_TIMING_STEPS = 2
# Must be even: points are merged in pairs.
MAX_CURVE_POINTS = 1024


class DownsampledCurve:
    """A curve of any length in bounded memory: when it has too many points, every two become their mean."""

    def __init__(self) -> None:
        self.last: float | None = None
        self._means: list[float] = []
        self._open: list[float] = []
        self._stride = 1

    def add(self, value: float) -> None:
        self.last = value
        self._open.append(value)
        if len(self._open) == self._stride:
            self._means.append(sum(self._open) / self._stride)
            self._open = []
        if len(self._means) == MAX_CURVE_POINTS:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means = [(first + second) / 2 for first, second in pairs]
            self._stride *= 2

    @property
    def points(self) -> list[float]:
        """From first to last; values that do not fill a point yet count as one too."""
        return [*self._means, sum(self._open) / len(self._open)] if self._open else list(self._means)


@dataclass
class TrainProgress:
    """What is known of a run, updated event by event: from the process that trains, or from a journal."""

    clock: Callable[[], float] = active_seconds
    history: History = field(default_factory=History)
    max_logged_steps: int | None = SPEED_WINDOW_STEPS
    """Logged steps that are kept beside the curves: a run may take weeks. None keeps all."""
    step: int = 0
    """The step that is being computed, or the last one."""
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
    """Tokens of a step in this session; sessions before may have had others."""

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add one event. An opening has the journal so far."""
        lines: Sequence[tuple[str, int, Mapping[str, Any]]] = ()
        if kind == "opening":
            lines = [(entry["kind"], entry["step"], entry) for entry in values.get("entries") or ()]
        elif kind == "doing":
            self.step, self.current_activity = max(self.step, step), str(values.get("what", ""))
            if self.current_activity == "step":
                self._begun += 1
                if self._begun > SKIPPED_TIMING_STEPS:
                    self._timed = [*self._timed[:1], (self.clock(), step)]
        elif kind == "saved":
            self.saved_step = step
        elif kind == "stopping":
            self.stopping = True
        else:
            lines = [(kind, step, values)]
            self.step = max(self.step, step)
        for own_kind, own_step, own in lines:
            self.history.add(own_kind, own_step, own)
            if own_kind == "step":
                for key, curve in self.curves.items():
                    if (value := as_finite_float(own.get(key))) is not None:
                        curve.add(value)
                while self.max_logged_steps is not None and len(self.history.steps) > self.max_logged_steps:
                    del self.history.steps[next(iter(self.history.steps))]
        if kind == "opening":  # what this session was requested, over what the journal says of earlier ones
            self.history.num_steps = values.get("steps") or self.history.num_steps
            self._positions = values.get("positions")
            self.step = step

    @property
    def share(self) -> float | None:
        """How much of the run is done."""
        return min(1.0, self.step / self.history.num_steps) if self.history.num_steps else None

    @property
    def state(self) -> tuple[str, str]:
        """The state of learning, and the same with its reason; empty before the first assessment."""
        values = self.history.state.values if self.history.state else {}
        return (str(values["state"]), format_learning_state(values)) if values else ("", "")

    @property
    def end_text(self) -> str:
        """Why the run has ended; empty while it has not."""
        if self.history.ended is None:
            return ""
        reason = str(self.history.ended.values.get("reason", ""))
        return f"ended: {END_REASON_LABELS.get(reason, reason)}"

    def loss_rows(self) -> list[tuple[str, list[float | None]]]:
        """Both losses with every level to compare them with, as in LOSS_COLUMNS."""
        history = self.history
        best = history.valid.get(history.language, {}).get(history.best_step, {}) if history.best_step else {}
        rows = []
        for name, key in LOSS_KEYS.items():
            held_out = history.held_out(key)
            last = held_out[-1][1] if held_out else None
            levels = [as_finite_float(best.get(key)), history.initial_loss(key), history.chance.get(key)]
            rows.append((name, [self.curves[key].last, last, *levels]))
        return rows

    def uses(self) -> dict[str, float]:
        """How much the model uses its text and its voice, by the last validation that measured it."""
        points = {name: self.history.held_out(f"{name}_use") for name in ("text", "voice")}
        return {name: known[-1][1] for name, known in points.items() if known}

    def retentions(self) -> dict[str, float]:
        """Rise of the speech loss since step 0, as a share, by base language."""
        points = {name: self.history.retention(name) for name in self.history.base_languages}
        return {name: known[-1][1] for name, known in points.items() if known}

    def facts(self) -> dict[str, str]:
        """Speed, rates and memory of the last line, in words."""
        if not self.history.steps:
            return {}
        last = self.history.steps[max(self.history.steps)]
        speed, epoch, kl = (as_finite_float(last.get(key)) for key in ("positions_per_second", "epoch", "kl"))
        rates = [f"{part} {format_learning_rate(rate)}" for part, rate in (last.get("rates") or {}).items()]
        process = as_finite_float(last.get("memory_process_bytes"))
        memory = [format_bytes(process)] if process is not None else []
        allocated, reserved, peak = (
            as_finite_float(last.get(f"memory_cuda{name}_bytes")) for name in ("", "_reserved", "_peak")
        )
        if allocated is not None:
            more = [f"{format_bytes(value)} {word}" for value, word in ((reserved, "kept"), (peak, "at most")) if value]
            memory.append(f"CUDA {format_bytes(allocated)}" + (f" ({', '.join(more)})" if more else ""))
        found = {
            "speed": f"{speed:,.0f} tokens/s" if speed is not None else "",
            "pass": f"epoch {epoch:,.2f}" if epoch is not None else "",
            "rates": ", ".join(rates),
            "kl": f"{kl:.4f}" if kl is not None else "",
            "memory": f"memory {', '.join(memory)}" if memory else "",
        }
        return {name: text for name, text in found.items() if text}

    def format_time_left(self) -> str:
        """The time left in words.

        By the pace measured in this process, with everything between the steps; before that by the journal's pace.
        """
        if not self.history.num_steps or self.history.ended:
            return ""
        seconds = None
        if len(self._timed) == 2 and self._timed[1][1] - self._timed[0][1] >= SPEED_WINDOW_STEPS - SKIPPED_TIMING_STEPS:
            (first, step), (last, later) = self._timed
            seconds = (last - first) / (later - step)
        elif len(self.history.steps) >= SPEED_WINDOW_STEPS:
            seconds = self.history.seconds_per_step(self._positions)
        if seconds is None:
            return f"time known after {SPEED_WINDOW_STEPS} steps"
        return f"{format_duration((self.history.num_steps - self.step) * seconds)} left"


def format_learning_state(values: Mapping[str, Any]) -> str:
    """The state of learning with its reason."""
    return f"{values['state']}: {values['why']}" if values.get("why") else str(values["state"])


def format_losses(values: Mapping[str, Any]) -> str:
    """The losses of a journal line."""
    keys = {**LOSS_KEYS, "kl": "kl"} if "kl" in values else LOSS_KEYS
    return "  ".join(f"{name} {_format_number(values.get(key), '.4f')}" for name, key in keys.items())


def _format_number(value: Any, form: str) -> str:
    known = as_finite_float(value)
    return "-" if known is None else format(known, form)


# Drawing takes some milliseconds of the training's time: it is done once a second, and at once for these events.
REDRAW_SECONDS = 1.0
REDRAW_AT_ONCE_EVENTS = ("opening", "stopping", "end")
CHART_ROWS = 6
# A terminal with fewer rows gets sparklines alone; words take more rows on a narrow one.
MIN_ROWS_FOR_CHARTS, MIN_ROWS_IF_NARROW = 24, 28
MAX_COLUMNS = 120
# Columns that the figures of the losses take.
LOSS_TABLE_COLUMNS = 51


class TrainView:
    """Feeds a TrainProgress, and prints what stays. Events before the opening lines are printed after them."""

    def __init__(self) -> None:
        self._train_progress = TrainProgress()
        self._early: list[tuple[str, str]] | None = []

    def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Take an event."""
        lines = self._add_event(kind, step, values)
        if kind == "opening":
            self._print(lines, opening=True)
            lines, self._early = self._early or [], None
        if self._early is None:
            self._print(lines)
        else:
            self._early += lines

    def refresh(self, jobs: Sequence[str]) -> None:
        """Time has passed; `jobs` are long tasks under way, in words."""

    def close(self) -> None:
        """Nothing more follows."""
        self._print(self._early or [])
        self._early = None

    def _add_event(self, kind: str, step: int, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Lines, with their styles, for an event that is worth keeping: findings, samples, a change of state."""
        self._train_progress.add(kind, step, values)
        if kind == "opening":
            return [(line, "") for line in values.get("lines") or ()]
        if kind == "finding":
            keys = ("code", "found", "expected", "where", "cure", "level")
            item = Finding(**{key: str(values[key]) for key in keys if values.get(key)})  # type: ignore[arg-type]
            first, *rest = item.lines()
            return [(f"step {step:,}: {first}", LEVEL_STYLES.get(item.level, "")), *((line, "") for line in rest)]
        if kind == "samples":
            descriptions = []
            for sample in values.get("spoken") or ():
                marks = [] if sample.get("stopped", True) else ["did not stop"]
                marks += ["same as at step 0"] if sample.get("same_as_step_0") else []
                seconds = as_finite_float(sample.get("seconds"))
                length = "" if seconds is None else f" {seconds:.1f} s"
                descriptions.append(f"{sample.get('name', '?')}{length}" + (f" ({'; '.join(marks)})" if marks else ""))
            where = f" in {values.get('folder', '?')}: {', '.join(descriptions)}" if descriptions else ""
            return [(f"step {step:,}: samples{where}", "")]
        if kind == "interpolation":
            losses = {str(name): as_finite_float(loss) for name, loss in (values.get("speech_losses") or {}).items()}
            loss_text = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items() if loss is not None)
            share, chosen = as_finite_float(values.get("share")) or 0, ", chosen" if values.get("chosen") else ""
            text = f"step {step:,}: interpolation weight {share:g}: speech loss {loss_text}{chosen}"
            return [(text, "bold" if chosen else "")]
        if kind == "stop-asked":
            return [(f"step {step:,}: stopping: {values.get('why', '')}", "bold yellow")]
        if isinstance(values.get("state"), str) and self._train_progress.history.state_changed:
            style = STATE_STYLES.get(values["state"], ("", ""))[0]
            return [(f"step {step:,}: {format_learning_state(values)}", style)]
        return []

    def _print(self, lines: Sequence[tuple[str, str]], *, opening: bool = False) -> None:
        raise NotImplementedError


class TrainLineView(TrainView):
    """One line for each line of the journal that has news, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def _add_event(self, kind: str, step: int, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        progress = self._train_progress
        was_stopping = progress.stopping
        lines = super()._add_event(kind, step, values)
        if kind == "step":
            share = f" of {progress.history.num_steps:,} ({progress.share:.0%})" if progress.share is not None else ""
            facts = progress.facts()
            parts = [
                f"step {step:,}{share}",
                format_losses(values),
                facts.get("speed", ""),
                progress.format_time_left(),
            ]
            parts += [f"rates {facts['rates']}" if "rates" in facts else "", facts.get("memory", "")]
            return [("  ".join(part for part in parts if part), ""), *lines]
        if kind == "valid":
            history, name = progress.history, str(values.get("set", ""))
            parts = [f"step {step:,}", f"held out {name}: {format_losses(values)}"]
            uses = {use: as_finite_float(values.get(f"{use}_use")) for use in ("text", "voice")}
            parts += [f"{use} use {gap:+.4f}" for use, gap in uses.items() if gap is not None]
            if name == history.language:
                # The levels to compare it with.
                first = {key: history.initial_loss(key) for key in LOSS_KEYS.values()}
                for part, levels in (("step 0", first), ("chance", history.chance)):
                    known = [_format_number(levels.get(key), ".2f") for key in LOSS_KEYS.values()]
                    parts.append(f"{part} {'/'.join(known)}")
                parts += [f"state {history.state.values['state']}"] if history.state else []
            elif points := history.retention(name):
                parts.append(f"{points[-1][1]:+.2%} since step 0")
            return [("  ".join(parts), ""), *lines]
        # Saving is reported in logs only; the live picture shows the saved step all the time.
        if kind == "saved":
            return [(f"step {step:,}  saved", "")]
        if kind == "stopping" and not was_stopping:
            return [(f"step {step:,}  {STOPPING_MESSAGE}", "")]
        return lines

    def _print(self, lines: Sequence[tuple[str, str]], *, opening: bool = False) -> None:  # noqa: ARG002
        if lines:
            self._stream.write("".join(f"{escape_control_characters(text)}\n" for text, _ in lines))
            self._stream.flush()


class TrainLiveView(TrainView):
    """A picture at the foot of the terminal; lines that stay scroll by above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._console = Console(file=stream, markup=False, highlight=False, emoji=False)
        has_unicode = (getattr(stream, "encoding", "") or "").lower().replace("-", "").startswith("utf")
        self._jobs: Sequence[str] = ()
        self._last_drawn_at = 0.0
        self._is_redraw_due = True
        self._live = Live(
            get_renderable=lambda: render_training(
                self._train_progress, self._console, jobs=self._jobs, unicode=has_unicode
            ),
            console=self._console,
            auto_refresh=False,
            vertical_overflow="crop",
        )
        self._live.start()

    def refresh(self, jobs: Sequence[str]) -> None:
        now = time.monotonic()
        if self._is_redraw_due or now - self._last_drawn_at >= REDRAW_SECONDS:
            self._jobs, self._last_drawn_at, self._is_redraw_due = jobs, now, False
            self._live.refresh()

    def close(self) -> None:
        super().close()
        self._jobs = ()
        self._live.refresh()
        self._live.stop()

    def _add_event(self, kind: str, step: int, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        self._is_redraw_due = self._is_redraw_due or kind in REDRAW_AT_ONCE_EVENTS
        return super()._add_event(kind, step, values)

    def _print(self, lines: Sequence[tuple[str, str]], *, opening: bool = False) -> None:
        from rich.text import Text

        for text, style in lines:
            name, colon, rest = text.partition(": ")
            if opening and colon:  # opening lines have a name and words after it
                self._console.print(_render_note(f"{name}:", rest.strip(), style))
            else:
                self._console.print(Text(escape_control_characters(text), style))


def render_training(
    progress: TrainProgress, console: Console, *, jobs: Sequence[str] = (), unicode: bool = True
) -> RenderableType:
    """The whole picture for a console of any size; without `unicode` in ASCII alone."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    width = min(console.width, MAX_COLUMNS)
    rows = MIN_ROWS_FOR_CHARTS if width >= 80 else MIN_ROWS_IF_NARROW
    charts = unicode and console.height >= rows and len(progress.curves[SPEECH_LOSS].points) > 1
    ended = bool(progress.history.ended)

    total = f" of {progress.history.num_steps:,}" if progress.history.num_steps else ""
    doing = "" if progress.current_activity == "step" or ended else f"  {progress.current_activity}"
    if progress.stopping and not ended:
        doing = f"  {progress.current_activity}, then stopping"  # the foot, which says more, may be cropped
    head = Text.assemble((f"step {progress.step:,}", "bold"), total, (doing, "cyan"), no_wrap=True)
    if state := progress.state[0]:
        head.append(f"  {state}", STATE_STYLES.get(state, ("yellow", ""))[0])
    parts: list[RenderableType] = [head]

    time_text = progress.format_time_left()
    if progress.share is None:
        parts.append(time_text)
    else:
        time_text = f"{progress.share:.0%}  {time_text}".rstrip()
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(1.0, progress.share, width=max(10, width - len(time_text) - 2)), time_text)
        parts.append(bar)

    # The losses with every level to compare them with; sparklines beside them if there is no room for charts.
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("loss", min_width=6, no_wrap=True)
    for column in LOSS_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True, min_width=6)
    table.add_column("", no_wrap=True, style="green")
    room = width - LOSS_TABLE_COLUMNS
    for name, values in progress.loss_rows():
        points = progress.curves[LOSS_KEYS[name]].points
        line = sparkline(points, min(room, 40)) if unicode and not charts and room >= 8 else ""
        table.add_row(name, *("-" if value is None else f"{value:.3f}" for value in values), line)
    parts.append(table)

    if charts:
        # Both losses side by side; where there is little room, speech alone.
        chosen = LOSS_KEYS if width >= 60 else {"speech": SPEECH_LOSS}
        chart_width = (width - 2 * (len(chosen) - 1)) // len(chosen)
        cells = []
        for name, key in chosen.items():
            points = progress.curves[key].points
            levels = {"chance": progress.history.chance.get(key), "step 0": progress.history.initial_loss(key)}
            known = {word: level for word, level in levels.items() if level is not None}
            drawn = [Text(row, "green", no_wrap=True) for row in braille_chart(points, chart_width, CHART_ROWS, known)]
            title = f"{name} loss  {max(points):.2f} to {min(points):.2f}" if points else f"{name} loss"
            cells.append(Text("\n").join([Text(title, "dim"), *drawn]))
        grid = Table.grid(padding=(0, 2))
        grid.add_row(*cells)
        parts.append(grid)

    parts += [_render_note(name, text, style) for name, text, style in _collect_notes(progress)]
    parts += [_render_note("now", job, "") for job in jobs]
    if ended:
        foot = Text(progress.end_text, "bold")
    elif progress.stopping:
        foot = Text(STOPPING_MESSAGE, "bold yellow")
    else:
        foot = Text("Ctrl-C finishes the step and saves", "dim")
    return Group(*parts, foot)


def _collect_notes(progress: TrainProgress) -> list[tuple[str, str, str]]:
    """Everything beside the losses: a name, words and a style."""
    history, facts = progress.history, progress.facts()
    uses = ", ".join(f"{name} {use:+.4f}" for name, use in progress.uses().items())
    retention_text = ", ".join(f"{name} {rise:+.2%}" for name, rise in progress.retentions().items())
    saved = [f"step {progress.saved_step:,}"] if progress.saved_step is not None else []
    saved += [f"best is step {history.best_step:,}"] if history.best_step else []
    saved += [f"samples of step {max(history.samples):,}"] if history.samples else []
    state, reason = progress.state
    found = ""
    if worries := [item for item in history.findings if item.values.get("level") != "note"]:
        found = f"{len(worries):,}, the last at step {worries[-1].step:,}: {worries[-1].values.get('code', '')}"
    notes = [
        ("use", uses, ""),
        ("retention", f"{retention_text} (speech loss since step 0)" if retention_text else "", ""),
        ("KL", f"{facts['kl']} from the base, on replay" if "kl" in facts else "", ""),
        ("speed", ", ".join(facts[name] for name in ("speed", "pass", "memory") if name in facts), ""),
        ("rates", facts.get("rates", ""), ""),
        ("state", reason, STATE_STYLES.get(state, ("", ""))[0]),
        ("saved", ", ".join(saved), ""),
        ("findings", found, "yellow"),
    ]
    return [note for note in notes if note[1]]


def _render_note(name: str, text: str, style: str) -> RenderableType:
    """A name, and words that may take several rows of their own column."""
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_column(width=10, no_wrap=True, style="dim")
    row.add_column(overflow="fold")
    row.add_row(name, Text(escape_control_characters(text), style))
    return row


SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"
# Unicode numbers Braille patterns by their dots: U+2800 plus one bit for each of 4 rows by 2 columns.
BRAILLE_BLANK = 0x2800
BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
LEVEL_DASH = "┄"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values from first to last in at most `width` letters; more values than letters are averaged."""
    averaged = _average_to_width(values, width)
    if not averaged:
        return ""
    low, high = min(averaged), max(averaged)
    span = high - low or 1.0
    return "".join(SPARKLINE_BLOCKS[round((value - low) / span * (len(SPARKLINE_BLOCKS) - 1))] for value in averaged)


def braille_chart(values: Sequence[float], width: int, height: int, levels: Mapping[str, float]) -> list[str]:
    """The values as a curve in `height` rows of `width` letters; a level in its range is a dashed row with its name."""
    if not values or width < 2 or height < 2:
        return [" " * width] * height
    low, high = min(values), max(values)
    # A level far off would flatten the curve: one more than half the curve's own height away is left out.
    reach = (high - low) / 2
    shown_levels = {name: level for name, level in levels.items() if low - reach <= level <= high + reach}
    low, high = min([low, *shown_levels.values()]), max([high, *shown_levels.values()])

    def dot_row(value: float) -> int:
        """The row of dots, from the top."""
        share = (value - low) / (high - low) if high > low else 0.5
        return min(4 * height - 1, max(0, round((1 - share) * (4 * height - 1))))

    # As many values as there are columns of dots: averaged if there are more, interpolated if there are fewer.
    averaged = _average_to_width(values, 2 * width)
    positions = [index * (len(averaged) - 1) / (2 * width - 1) for index in range(2 * width)]
    ends = [*averaged, averaged[-1]]
    heights = [
        dot_row(ends[int(position)] + (ends[int(position) + 1] - ends[int(position)]) * (position % 1))
        for position in positions
    ]
    rows = [[BRAILLE_BLANK] * width for _ in range(height)]
    for column, (before, here) in enumerate(pairwise([heights[0], *heights])):
        for dot in range(min(before, here), max(before, here) + 1):
            rows[dot // 4][column // 2] |= BRAILLE_DOTS[dot % 4][column % 2]
    drawn = ["".join(chr(cell) for cell in row) for row in rows]

    marks: dict[int, list[str]] = {}
    for name, level in shown_levels.items():
        marks.setdefault(dot_row(level) // 4, []).append(name)
    for row, names in marks.items():
        label = f" {', '.join(names)} "
        dashed = drawn[row].replace(chr(BRAILLE_BLANK), LEVEL_DASH)
        free = width - len(label)
        has_room = free > 4 and all(cell == LEVEL_DASH for cell in dashed[free:])
        drawn[row] = dashed[:free] + label if has_room else dashed
    return [line.replace(chr(BRAILLE_BLANK), " ") for line in drawn]


def _average_to_width(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [index * count // width for index in range(width + 1)]
    return [sum(values[first:last]) / (last - first) for first, last in pairwise(edges)]
