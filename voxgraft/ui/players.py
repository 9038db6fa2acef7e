"""Sounds and pictures of a project as HTML: players, pictures, links. The browser fetches the files from `pages.py`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxgraft.ui.context import PageContext
from voxgraft.ui.pages import file_url

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
