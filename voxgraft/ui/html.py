"""Pieces of HTML: notes, findings, jobs, tables, players, pictures and links. All text is escaped here.

Players, pictures and links name addresses under which the server hands out files of a project (`server.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.results import EXIT_BAD_INPUT, format_duration
from voxgraft.ui.jobs import UiJob

if TYPE_CHECKING:
    from voxgraft.ui.forms import PageContext

# Words and kind of note, by state of a job.
JOB_STATE_LABELS = {
    "running": ("running", "busy"),
    "stopping": ("stopping: finishing the current step; press Stop again to end it at once", "busy"),
    "done": ("done", "good"),
    "failed": ("finished with problems: see below", "bad"),
    "stopped": ("stopped", "note"),
    "lost": ("ended unexpectedly (killed, or the machine was switched off); start it again to continue", "bad"),
}
MAX_LOG_BYTES = 16 << 10
# Codes of one utterance that are shown if it has no sound.
MAX_SHOWN_CODES = 400
# Codes of errors that are no mistake of the user's: a value, or a project, is only missing yet.
NEEDED_CODE, NO_PROJECT_CODE = "ui-needed", "ui-no-project"


def note_html(text: str, kind: str = "note") -> str:
    """A text in a box; `kind` is its colour: good, bad, warn, busy, note."""
    # Screen readers announce it when it appears, except for what changes every moment.
    role = "" if kind == "busy" else ' role="status"'
    return f'<div class="vg-note vg-{kind}"{role}>{escape(text)}</div>'


def error_html(error: VoxgraftError) -> str:
    """An error as a box with found, where and cure; a value that is only missing yet as one plain line."""
    if error.code == NEEDED_CODE:
        return note_html(error.finding.found, "bad")
    return finding_html(error.finding.to_json())


def finding_html(finding: Mapping[str, Any]) -> str:
    """A finding as a box: what was found, what was expected, where, the cure."""
    kind = {"error": "bad", "warning": "warn"}.get(str(finding.get("level")), "note")
    parts = [f"<strong>{escape(str(finding.get('code', '')))}</strong> {escape(str(finding.get('found', '')))}"]
    for key, word in (("expected", "expected"), ("where", "in"), ("cure", "fix")):
        if text := str(finding.get(key) or ""):
            parts.append(f"<small>{word}: {escape(text)}</small>")
    return f'<div class="vg-note vg-{kind}">{"<br>".join(parts)}</div>'


def findings_html(result: Mapping[str, Any]) -> str:
    """All findings of a command's result."""
    return "".join(map(finding_html, result.get("findings", ())))


def job_html(job: UiJob | None, is_json: bool = False, title: str = "Result") -> str:
    """A job: its state, its log, and its result unless that is JSON, which a tab shows in its own way."""
    if job is None:
        return ""
    state, log = job.state, job.tail("log.txt", MAX_LOG_BYTES).strip()
    words, kind = JOB_STATE_LABELS[state]
    if state == "failed" and job.exit_code == EXIT_BAD_INPUT:
        words = "failed: see below"
    parts = [note_html(f"{words} ({format_duration(job.seconds)})", kind)]
    if log:
        is_open = " open" if state != "done" else ""
        told = f'<div class="vg-tail" tabindex="0"><pre class="vg-log">{escape(log)}</pre></div>'
        parts.append(f"<details{is_open}><summary>Log</summary>{told}</details>")
    if not is_json and (output := job.tail("out.txt").strip()):
        named = escape(title)
        pre = f'<pre class="vg-result" tabindex="0" aria-label="{named}">{escape(output)}</pre>'
        parts.append(f'<div class="vg-title">{named}</div>{pre}')
    return "".join(parts)


def facts_html(pairs: Iterable[tuple[str, str, str]]) -> str:
    """Rows of name, value and kind, as a list that a screen reader reads in order."""
    rows = (
        f'<div class="vg-fact vg-{kind}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>'
        for name, value, kind in pairs
    )
    return f'<dl class="vg-facts">{"".join(rows)}</dl>'


def table_html(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table that can be scrolled sideways in a narrow window."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape('' if cell is None else str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="vg-scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def details_html(summary: str, names: Iterable[str]) -> str:
    """One line that unfolds to a list of names."""
    return f"<details><summary>{escape(summary)}</summary>{escape(', '.join(names))}</details>"


def audio_card_html(
    title: str, text: str, *, language: str = "", about: str = "", address: str = "", download_name: str = "",
    codes: Sequence[int] = (),
) -> str:  # fmt: skip
    """One utterance: its text, and a player; or its codes if it has no sound."""
    lang = f' lang="{escape(language)}"' if language else ""
    parts = [f"<strong>{escape(title)}</strong>", f'<div{lang} dir="auto">{escape(text)}</div>']
    if about:
        parts.append(f"<small>{escape(about)}</small>")
    if address:
        label = escape(f"{title}: {text}")
        parts.append(f'<audio controls preload="metadata" src="{escape(address)}" aria-label="{label}"></audio>')
        parts += [_download_anchor(address, download_name, "save this audio file")] if download_name else []
    elif codes:
        shown = " ".join(map(str, codes[:MAX_SHOWN_CODES])) + (" ..." if len(codes) > MAX_SHOWN_CODES else "")
        parts.append(f"<details><summary>{len(codes):,} codes, no sound</summary><code>{shown}</code></details>")
    else:
        parts.append("<small>no sound</small>")
    return f'<div class="vg-player">{"".join(parts)}</div>'


def audio_file_html(
    context: PageContext, path: Path, title: str, text: str, *, language: str = "", about: str = ""
) -> str:
    """One utterance whose sound is a file of the project."""
    address = context.file_url(path, versioned=True)
    return audio_card_html(title, text, language=language, about=about, address=address, download_name=path.name)


def audio_cards_html(cards: Iterable[str], empty: str = "") -> str:
    """Utterances side by side, which fold in a narrow window."""
    joined = "".join(cards)
    return f'<div class="vg-players">{joined}</div>' if joined else empty


def image_html(context: PageContext, path: Path, words: str) -> str:
    """A picture of the project; empty if there is none."""
    if not path.is_file():
        return ""
    return f'<img class="vg-picture" src="{escape(context.file_url(path, versioned=True))}" alt="{escape(words)}">'


def file_link(context: PageContext, path: Path, words: str, fragment: str = "") -> str:
    """A link that opens a file of the project in its own window; empty if there is none."""
    if not path.is_file():
        return ""
    address = escape(context.file_url(path) + fragment)
    return f'<a class="vg-link" href="{address}" target="_blank" rel="noopener">{escape(words)}</a>'


def download_link(context: PageContext, path: Path, words: str) -> str:
    """A link that saves a file of the project; empty if there is none."""
    return _download_anchor(context.file_url(path, versioned=True), path.name, words) if path.is_file() else ""


def _download_anchor(address: str, name: str, words: str) -> str:
    return f'<a class="vg-link" href="{escape(address)}" download="{escape(name)}">{escape(words)}</a>'
