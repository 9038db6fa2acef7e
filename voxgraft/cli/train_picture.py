"""The picture of a run that trains: progress, losses with their levels and curves, and all that is worth a look.

For a console of any size, from 60 columns on; one with few rows gets small curves. Text is never read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voxgraft.cli.console import printable
from voxgraft.cli.curves import chart, sparkline
from voxgraft.cli.watched import FINISHING, LOSSES, Watched, retention_words
from voxgraft.history import SPEECH, History, number

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = ["STATES", "note_line", "picture", "state_words"]

CHART_ROWS = 6
ROWS_WITH_CHARTS, ROWS_IF_NARROW = 24, 28
"""A terminal with fewer rows gets sparklines alone; words take more rows on a narrow one."""
MOST_COLUMNS = 120
FIGURES_COLUMNS = 51
"""What the figures of the losses take."""
ENDINGS = {"told": "stopped as told", "no-better": "no longer getting better"}
STATES = {"stuck": "bold red", "learning": "green", "good enough": "bold green"}


def picture(watched: Watched, console: Console, *, jobs: Sequence[str] = (), letters: bool = True) -> RenderableType:
    """The whole picture for a console of any size; without `letters` no signs beyond ASCII."""
    from rich.console import Group

    width = min(console.width, MOST_COLUMNS)
    rows = ROWS_WITH_CHARTS if width >= 80 else ROWS_IF_NARROW
    charts = letters and console.height >= rows and len(watched.curves[SPEECH].points) > 1
    parts: list[RenderableType] = [_head(watched), _bar(watched, width)]
    parts.append(_losses(watched, width, letters and not charts))
    parts += [_charts(watched, width)] if charts else []
    parts += [note_line(name, text, style) for name, text, style in _notes(watched)]
    parts += [note_line("now", job, "") for job in jobs]
    parts.append(_foot(watched))
    return Group(*parts)


def _head(watched: Watched) -> Text:
    from rich.text import Text

    total = f" of {watched.num_steps:,}" if watched.num_steps else ""
    doing = "" if watched.doing == "step" or watched.history.ended else f"  {watched.doing}"
    if watched.stopping and not watched.history.ended:
        doing = f"  {watched.doing}, then stopping"  # the foot says more, unless the terminal is too low for it
    state = watched.history.state
    text = Text.assemble((f"step {watched.step:,}", "bold"), total, (doing, "cyan"), no_wrap=True)
    if state is not None:
        word = str(state.values["state"])
        text.append(f"  {word}", STATES.get(word, "yellow"))
    return text


def _bar(watched: Watched, width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    words = watched.left_words()
    if watched.share is None:
        return words
    words = f"{watched.share:.0%}  {words}".rstrip()
    row = Table.grid(padding=(0, 2))
    row.add_row(ProgressBar(1.0, watched.share, width=max(10, width - len(words) - 2)), words)
    return row


def _losses(watched: Watched, width: int, curves: bool) -> Table:
    """Both losses with every level that they are to be held against, and small curves if there are no large ones."""
    from rich.table import Table

    history = watched.history
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("loss", min_width=6, no_wrap=True)
    for column in ("train", "held out", "best", "step 0", "chance"):
        table.add_column(column, justify="right", no_wrap=True, min_width=6)
    room = width - FIGURES_COLUMNS
    table.add_column("", no_wrap=True, style="green")
    for name, key in LOSSES.items():
        held_out = history.held_out(key)
        best = history.valid.get(history.language, {}).get(history.best_step, {}) if history.best_step else {}
        cells = [
            watched.curves[key].last,
            held_out[-1][1] if held_out else None,
            number(best.get(key)),
            history.first_level(key),
            history.chance.get(key),
        ]
        figures = ["-" if value is None else f"{value:.3f}" for value in cells]
        line = sparkline(watched.curves[key].points, min(room, 40)) if curves and room >= 8 else ""
        table.add_row(name, *figures, line)
    return table


def _charts(watched: Watched, width: int) -> Table:
    """The two losses side by side; where there is little room, speech alone."""
    from rich.table import Table
    from rich.text import Text

    chosen = LOSSES if width >= 60 else {"speech": SPEECH}
    grid = Table.grid(padding=(0, 2))
    each = (width - 2 * (len(chosen) - 1)) // len(chosen)
    cells = []
    for name, key in chosen.items():
        values = watched.curves[key].points
        levels = {"chance": watched.history.chance.get(key), "step 0": watched.history.first_level(key)}
        rows = chart(values, each, CHART_ROWS, {word: level for word, level in levels.items() if level is not None})
        title = f"{name} loss  {max(values):.2f} to {min(values):.2f}" if values else f"{name} loss"
        cells.append(Text("\n").join([Text(title, "dim"), *(Text(row, "green", no_wrap=True) for row in rows)]))
    grid.add_row(*cells)
    return grid


def _notes(watched: Watched) -> list[tuple[str, str, str]]:
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
        ("retention", retention_words(history), ""),
        ("KL", f"{facts['kl']} from the base, on replay" if "kl" in facts else "", ""),
        ("speed", ", ".join(facts[name] for name in ("speed", "pass", "memory") if name in facts), ""),
        ("rates", facts.get("rates", ""), ""),
        ("state", state_words(state) if state else "", STATES.get(state.get("state", ""), "")),
        ("saved", ", ".join(saved), ""),
        ("findings", _finding_words(history), "yellow"),
    ]
    return [note for note in notes if note[1]]


def _finding_words(history: History) -> str:
    """What is worth knowing of those that came while training; notes are no worry."""
    worries = [item for item in history.findings if item.values.get("level") != "note"]
    if not worries:
        return ""
    last = worries[-1]
    return f"{len(worries):,}, the last at step {last.step:,}: {last.values.get('code', '')}"


def note_line(name: str, text: str, style: str) -> RenderableType:
    """A name and what there is to say, which may take several rows of its own column."""
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_column(width=10, no_wrap=True, style="dim")
    row.add_column(overflow="fold")
    row.add_row(name, Text(printable(text), style))
    return row


def _foot(watched: Watched) -> Text:
    from rich.text import Text

    if ended := watched.history.ended:
        reason = str(ended.values.get("reason", ""))
        return Text(f"ended: {ENDINGS.get(reason, reason)}", "bold")
    if watched.stopping:
        return Text(FINISHING, "bold yellow")
    return Text("Ctrl-C finishes the step and saves", "dim")


def state_words(values: Mapping[str, Any]) -> str:
    """The state word with its reason."""
    return f"{values['state']}: {values['why']}" if values.get("why") else str(values["state"])
