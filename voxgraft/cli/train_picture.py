"""The picture of a run that trains: progress, losses with their levels and curves, and all that is worth a look.

For a console of any size, from 60 columns on; one with few rows gets small curves. Text is never read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voxgraft.cli.console import escape_control_characters
from voxgraft.cli.curves import braille_chart, sparkline
from voxgraft.cli.watched import LOSS_KEYS, STOPPING_MESSAGE, TrainProgress, format_retention
from voxgraft.history import SPEECH_LOSS, History, as_finite_float

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = ["STATE_STYLES", "format_learning_state", "render_note_line", "render_training"]

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
    """The whole picture for a console of any size; without `normalize_letters` no signs beyond ASCII."""
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
