"""Small views: escaped texts in colour, and how a job stands. All text from files is data and never markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from voxgraft.amounts import format_duration
from voxgraft.errors import VoxgraftError
from voxgraft.ui.jobs import UiJob

JOB_STATE_LABELS = {
    "running": ("at work", "busy"),
    "stopping": ("stopping: it finishes what it has begun; Stop once more ends it at once", "busy"),
    "done": ("done", "good"),
    "failed": ("ended, but not all is well: see below", "bad"),
    "stopped": ("stopped", "note"),
    "lost": ("its end was not seen (killed, or the machine was switched off); start it again to go on", "bad"),
}

MAX_LOG_BYTES = 16 << 10
EXIT_BAD_INPUT = 2


def note_html(text: str, kind: str = "note") -> str:
    """One text in a box of a colour: good, bad, busy, note."""
    # Read out when it appears, except for what changes every moment.
    role = "" if kind == "busy" else ' role="status"'
    return f'<div class="vg-note vg-{kind}"{role}>{html.escape(text)}</div>'


def error_html(error: VoxgraftError) -> str:
    """An error as a box: what, where, cure; what is only not filled in yet in one plain line."""
    if error.code == "ui-needed":
        return note_html(error.finding.found, "bad")
    return finding_html(error.finding.to_json())


def finding_html(finding: Mapping[str, Any]) -> str:
    """A finding as a box: what was found, what was expected, where, the cure."""
    kind = {"error": "bad", "warning": "warn"}.get(str(finding.get("level")), "note")
    head = f"<strong>{html.escape(str(finding.get('code', '')))}</strong> {html.escape(str(finding.get('found', '')))}"
    parts = [head]
    for key, word in (("expected", "expected"), ("where", "in"), ("cure", "cure")):
        if text := str(finding.get(key) or ""):
            parts.append(f"<small>{word}: {html.escape(text)}</small>")
    return f'<div class="vg-note vg-{kind}">{"<br>".join(parts)}</div>'


def job_html(job: UiJob | None, is_json: bool = False, title: str = "Result") -> str:
    """How a job stands: one line, what it tells on the way, and its result (which for machines is shown elsewhere)."""
    if job is None:
        return ""
    state, log = job.state, job.log(MAX_LOG_BYTES).strip()
    words, kind = JOB_STATE_LABELS[state]
    if state == "failed" and job.exit_code == EXIT_BAD_INPUT:
        words = "was refused: see below"
    parts = [note_html(f"{words} ({format_duration(job.seconds)})", kind)]
    if log:
        is_open = " open" if state != "done" else ""
        told = f'<div class="vg-tail" tabindex="0"><pre class="vg-log">{html.escape(log)}</pre></div>'
        parts.append(f"<details{is_open}><summary>What it tells on the way</summary>{told}</details>")
    if not is_json and (output := job.output().strip()):
        named = html.escape(title, quote=True)
        pre = f'<pre class="vg-result" tabindex="0" aria-label="{named}">{html.escape(output)}</pre>'
        parts.append(f'<div class="vg-title">{named}</div>{pre}')
    return "".join(parts)


def job_change_stamp(job: UiJob) -> str:
    """Changes when there is something new to show of a job; one that runs shows its time."""
    return f"{job.folder.name}/{job.state}/{job.seconds if job.alive else 0:.0f}"


def facts_html(pairs: Iterable[tuple[str, str, str]]) -> str:
    """Rows of name, value and colour, as a list that a screen reader reads in order."""
    rows = (
        f'<div class="vg-fact vg-{kind}"><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>'
        for name, value, kind in pairs
    )
    return f'<dl class="vg-facts">{"".join(rows)}</dl>'


def table_html(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table that can be scrolled sideways in a narrow window."""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape('' if cell is None else str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="vg-scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
