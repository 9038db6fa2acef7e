"""Sounds and pictures of a project as HTML: players, pictures, links. The browser fetches the files from `pages.py`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.core.errors import AudioError, VoxgraftError
from voxgraft.core.files import format_error_reason, require_file
from voxgraft.core.results import format_duration
from voxgraft.ui.commands import PageContext
from voxgraft.ui.files import PathFilter, Roots, file_url
from voxgraft.ui.jobs import UiJob

AUDIO_DATA_URL = re.compile(r"data:audio/wav;base64,[A-Za-z0-9+/=]+")
MAX_SHOWN_CODES = 400
"""Codes of one utterance that are shown where there is no sound."""


@dataclass(frozen=True, slots=True)
class AudioCard:
    """One thing to listen to: its words, what is to say of it, and where it is; or its codes where it has no sound."""

    title: str
    text: str
    language: str = ""
    about: str = ""
    address: str = ""
    download_name: str = ""
    """Name under which it can be saved; empty: no link for that."""
    codes: Sequence[int] = ()


def versioned_file_url(context: PageContext, path: Path, version: str = "") -> str:
    """Where the browser fetches a file; `version` makes it look again when the file has changed."""
    return file_url(context.pages, context.roots, path.resolve()) + (f"?v={version}" if version else "")


def audio_card_for_file(
    context: PageContext, path: Path, title: str, text: str, *, language: str = "", about: str = ""
) -> AudioCard:
    """A sound file of the project."""
    version = str(path.stat().st_mtime_ns)
    return AudioCard(title, text, language, about, versioned_file_url(context, path, version), path.name)


def audio_cards_html(sounds: Iterable[AudioCard], empty: str = "") -> str:
    """Cards side by side, which fold in a narrow window."""
    cards = "".join(map(_audio_card_html, sounds))
    return f'<div class="vg-players">{cards}</div>' if cards else empty


def image_html(context: PageContext, path: Path, words: str) -> str:
    """A picture of the project; nothing where it is not there."""
    if not path.is_file():
        return ""
    source = html.escape(versioned_file_url(context, path, str(path.stat().st_mtime_ns)), quote=True)
    return f'<img class="vg-picture" src="{source}" alt="{html.escape(words, quote=True)}">'


def download_link(context: PageContext, path: Path, words: str) -> str:
    """A link that saves a file of the project; nothing where it is not there."""
    if not path.is_file():
        return ""
    return _download_anchor(versioned_file_url(context, path, str(path.stat().st_mtime_ns)), path.name, words)


def _audio_card_html(sound: AudioCard) -> str:
    title, text = html.escape(sound.title), html.escape(sound.text)
    language = f' lang="{html.escape(sound.language, quote=True)}"' if sound.language else ""
    parts = [f"<strong>{title}</strong>", f'<div{language} dir="auto">{text}</div>']
    if sound.about:
        parts.append(f"<small>{html.escape(sound.about)}</small>")
    if sound.address:
        source = html.escape(sound.address, quote=True)
        label = html.escape(f"{sound.title}: {sound.text}", quote=True)
        parts.append(f'<audio controls preload="metadata" src="{source}" aria-label="{label}"></audio>')
        parts += (
            [_download_anchor(sound.address, sound.download_name, "save this sound")] if sound.download_name else []
        )
    elif sound.codes:
        shown = " ".join(map(str, sound.codes[:MAX_SHOWN_CODES])) + (
            " ..." if len(sound.codes) > MAX_SHOWN_CODES else ""
        )
        parts.append(f"<details><summary>{len(sound.codes):,} codes, no sound</summary><code>{shown}</code></details>")
    else:
        parts.append("<small>no sound</small>")
    return f'<div class="vg-player">{"".join(parts)}</div>'


def _download_anchor(address: str, name: str, words: str) -> str:
    escaped, saved = html.escape(address, quote=True), html.escape(name, quote=True)
    return f'<a class="vg-link" href="{escaped}" download="{saved}">{html.escape(words)}</a>'


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


MAX_PLAYER_SECONDS = 600


def read_player_audio(path: Path) -> tuple[int, Any]:
    """Sampling rate and samples (16 bits) of a sound file, as gradio's players take them."""
    import soundfile

    require_file(path)
    try:
        with soundfile.SoundFile(path) as stream:
            samples = stream.read(MAX_PLAYER_SECONDS * stream.samplerate, dtype="float32", always_2d=True)
            rate = int(stream.samplerate)
    except (soundfile.LibsndfileError, RuntimeError, ValueError) as error:
        raise AudioError("sound-broken", f"{path.name}: {format_error_reason(error)}", where=path) from None
    return rate, (np.clip(samples.mean(axis=1), -1, 1) * 32767).astype(np.int16)


WHISPER_FOLDERS = PathFilter(mark="model.bin")
"""A folder of faster-whisper."""


def recognizer_choices(roots: Roots) -> tuple[str, ...]:
    """Words for a setting that names a listener."""
    return ("built-in", "none", *(f"whisper:{folder}" for folder in roots.find(WHISPER_FOLDERS)))
