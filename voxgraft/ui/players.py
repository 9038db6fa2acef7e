"""Sounds and pictures of a project as HTML: players, pictures, links. The browser fetches the files from `pages.py`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxgraft.ui.context import Context
from voxgraft.ui.pages import page_address

SOUND_DATA = re.compile(r"data:audio/wav;base64,[A-Za-z0-9+/=]+")
MOST_CODES = 400
"""Codes of one utterance that are shown where there is no sound."""


@dataclass(frozen=True, slots=True)
class Sound:
    """One thing to listen to: its words, what is to say of it, and where it is; or its codes where it has no sound."""

    title: str
    text: str
    language: str = ""
    about: str = ""
    address: str = ""
    saved_as: str = ""
    """Name under which it can be saved; empty: no link for that."""
    codes: Sequence[int] = ()


def address_of(context: Context, path: Path, version: str = "") -> str:
    """Where the browser fetches a file; `version` makes it look again when the file has changed."""
    return page_address(context.pages, context.roots, path.resolve()) + (f"?v={version}" if version else "")


def sound_of(context: Context, path: Path, title: str, text: str, *, language: str = "", about: str = "") -> Sound:
    """A sound file of the project."""
    version = str(path.stat().st_mtime_ns)
    return Sound(title, text, language, about, address_of(context, path, version), path.name)


def players(sounds: Iterable[Sound], empty: str = "") -> str:
    """Cards side by side, which fold in a narrow window."""
    cards = "".join(map(_card, sounds))
    return f'<div class="vg-players">{cards}</div>' if cards else empty


def picture(context: Context, path: Path, words: str) -> str:
    """A picture of the project; nothing where it is not there."""
    if not path.is_file():
        return ""
    source = html.escape(address_of(context, path, str(path.stat().st_mtime_ns)), quote=True)
    return f'<img class="vg-picture" src="{source}" alt="{html.escape(words, quote=True)}">'


def download(context: Context, path: Path, words: str) -> str:
    """A link that saves a file of the project; nothing where it is not there."""
    if not path.is_file():
        return ""
    return _link(address_of(context, path, str(path.stat().st_mtime_ns)), path.name, words)


def _card(sound: Sound) -> str:
    title, text = html.escape(sound.title), html.escape(sound.text)
    language = f' lang="{html.escape(sound.language, quote=True)}"' if sound.language else ""
    parts = [f"<strong>{title}</strong>", f'<div{language} dir="auto">{text}</div>']
    if sound.about:
        parts.append(f"<small>{html.escape(sound.about)}</small>")
    if sound.address:
        source = html.escape(sound.address, quote=True)
        label = html.escape(f"{sound.title}: {sound.text}", quote=True)
        parts.append(f'<audio controls preload="metadata" src="{source}" aria-label="{label}"></audio>')
        parts += [_link(sound.address, sound.saved_as, "save this sound")] if sound.saved_as else []
    elif sound.codes:
        shown = " ".join(map(str, sound.codes[:MOST_CODES])) + (" ..." if len(sound.codes) > MOST_CODES else "")
        parts.append(f"<details><summary>{len(sound.codes):,} codes, no sound</summary><code>{shown}</code></details>")
    else:
        parts.append("<small>no sound</small>")
    return f'<div class="vg-player">{"".join(parts)}</div>'


def _link(address: str, name: str, words: str) -> str:
    escaped, saved = html.escape(address, quote=True), html.escape(name, quote=True)
    return f'<a class="vg-link" href="{escaped}" download="{saved}">{html.escape(words)}</a>'
