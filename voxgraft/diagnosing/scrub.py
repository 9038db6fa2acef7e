"""Taking out of a document what is nobody's business: texts, names of clips and voices, home folders, user names.

Works on values as JSON has them. Rather takes out a word too much than one too few; numbers always stay.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["LEFT_OUT", "masked", "scrubbed", "without_quotes"]

LEFT_OUT = "(left out)"
PRIVATE = frozenset(
    "text sentence utterances clips codes heard said phones sample_texts voice voices speaker speakers audio "
    "recordings seen_in_training rare_words_in_training spoken holder host user".split()
)
"""Keys under which texts, sound, or names of people stand. A plain number under one of them is kept."""
_HOMES = re.compile(
    r"(?:/home|/Users|/teamspace/studios|/mnt/c/Users)/[^/\\\s'\":;,)]+|[A-Za-z]:\\+Users\\+[^/\\\s'\":;,)]+|/root(?=[/\s'\":;,)]|$)"
)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.){4,}?'|\"(?:[^\"\\]|\\.){4,}?\"|“[^”]{4,}”|«[^»]{4,}»")
_WORDS = re.compile(r"[^\W\d_a-zA-Z]{3,}(?:[ \u1361]+[^\W\d_a-zA-Z]+)*")
"""Runs of letters beyond ASCII: in what we say ourselves there are none."""
_SHORTEST_NAME = 3


def scrubbed(value: Any, *, free_text: bool = False) -> Any:
    """A document without what is private. `free_text` also takes out of every text what it quotes."""
    if isinstance(value, Mapping):
        return {str(key): _entry(str(key), entry, free_text=free_text) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(entry, free_text=free_text) for entry in value]
    if isinstance(value, str):
        return masked(without_quotes(value) if free_text else value)
    return value if value is None or isinstance(value, bool | int | float) else masked(str(value))


def masked(text: str) -> str:
    """A text with `~` for every home folder, and USER for the user's own name in a path."""
    for home in _homes():
        text = text.replace(home, "~")
    text = _HOMES.sub("~", text)
    for name in _names():
        text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?=[/\\]|$)", "USER", text)
    return text


def without_quotes(text: str) -> str:
    """A message of ours without the texts that it quotes."""
    return _WORDS.sub("…", _QUOTED.sub("'…'", text))


def _entry(key: str, value: Any, *, free_text: bool) -> Any:
    if key in PRIVATE and not (value is None or isinstance(value, bool | int | float)):
        return LEFT_OUT
    return scrubbed(value, free_text=free_text or key in ("found", "expected", "where", "why", "error"))


def _homes() -> list[str]:
    """The user's own home, as it is called and as it really is; the longest first."""
    found: set[str] = set()
    with contextlib.suppress(RuntimeError):
        home = str(Path.home())
        found = {home, os.path.realpath(home)}
    return sorted((home for home in found if home.count("/") > 1 or "\\" in home), key=len, reverse=True)


def _names() -> list[str]:
    with contextlib.suppress(OSError, KeyError, ImportError):
        name = getpass.getuser()
        return [name] if len(name) >= _SHORTEST_NAME and name != "root" else []
    return []
