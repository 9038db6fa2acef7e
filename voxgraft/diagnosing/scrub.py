"""Taking out of a document what is nobody's business: texts, names of clips and voices, home folders, passwords.

Works on values as JSON has them. A list of what stays, not of what goes: a text under a key that is not known here is
left out, and of a message only its numbers and tensors are kept (its code stands beside it). Numbers always stay.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxgraft.diagnosing.rows import KINDS
from voxgraft.findings.topics import TOPICS

__all__ = ["LEFT_OUT", "masked", "numbers_of", "scrubbed"]

LEFT_OUT = "(left out)"
KEPT = frozenset(
    "kind code level state word family language languages mode format schedule precision device init tag "
    "tensor layer role repairs lone_clips emotion_from method".split()
)
"""Keys under which a text is a word or two of ours, or the name of a tensor."""
PATHS = frozenset("base checkpoint tokenizer".split())
"""Keys under which a path stands: its last name is kept."""
MESSAGES = frozenset(
    "found expected where why error message sentence reason commands cure what size not_checked not_heard".split()
)
"""Keys under which people are told something, which may quote anything."""
PRIVATE = frozenset(
    "text text_ids utterances clips codes heard said phones sample_texts voice voices speaker speakers audio "
    "by_speaker recordings seen_in_training rare_words_in_training spoken holder host user listener".split()
)
"""Keys under which texts, sound, or names of people stand. A plain number under one of them is kept."""
OWN_WORDS = frozenset([*KINDS, *(topic.name for topic in TOPICS), "checksums of the text tables", "rows one by one"])
_HASH = re.compile(r"[0-9a-f]{40,64}")
_WORDS = re.compile(r"[\w.:+\[\]-]{1,60}(?: \w{1,12})?")
_VERSION = re.compile(r"[\w.+-]{1,120}")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]{1,8})?")
_SPELLED = "text-spelled"
"""The finding whose numbers are a text: its ids."""
_MOST_NUMBERS = 10
"""A message of ours has no more; more are somebody's ids."""
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_TENSOR = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.(?:weight|bias)")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,7})(?:\.\d+)?(?:e[-+]?\d+)?%?(?![\w])")
"""No more than seven digits in a row: longer ones are a telephone's."""
_TOLD = re.compile(rf"{_TENSOR.pattern}|{_NUMBER.pattern}")
_HOMES = re.compile(
    r"(?:/home|/Users|/teamspace/studios|/mnt/c/Users)/[^/\\'\":;,)]+|[A-Za-z]:\\+Users\\+[^/\\'\":;,)]+"
    r"|/root(?=[/\s'\":;,)]|$)"
)
"""A user's name may have spaces in it: up to the next separator all of it goes."""
_PASSWORDS = re.compile(r"(?<=://)[^/\s@]+@|\b(?:hf_|sk-|gh[pousr]_)\S+")
_SHORTEST_NAME = 3


def scrubbed(value: Any, key: str = "") -> Any:
    """A document without what is private. `key` is where the value stands."""
    if isinstance(value, Mapping):
        return _scrubbed_entries(value, key)
    if isinstance(value, list | tuple):
        return [scrubbed(entry, key) for entry in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _scrubbed_text(str(value), key)


def masked(text: str) -> str:
    """A text with `~` for every home folder, USER for the user's own name in a path, and no passwords."""
    text = _PASSWORDS.sub("(secret)", text)
    for home in _homes():
        text = text.replace(home, "~")
    text = _HOMES.sub("~", text)
    for name in _names():
        text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?=[/\\]|$)", "USER", text)
    return text


def numbers_of(text: str) -> str:
    """What is told in a message without its words: numbers and names of tensors, in their order."""
    told = _TOLD.findall(text)
    return " … ".join(["", *told, ""]).strip() if 0 < len(told) <= _MOST_NUMBERS else "…"


def _scrubbed_entries(value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for number, (own, entry) in enumerate(value.items(), start=1):
        name = str(own)
        if not (name in OWN_WORDS or _KEY.fullmatch(name) or _TENSOR.fullmatch(name) or _NUMBER.fullmatch(name)):
            name = f"(name {number})"
        is_text = name in PRIVATE or (name == "found" and value.get("code") == _SPELLED)
        if is_text and not (entry is None or isinstance(entry, bool | int | float)):
            entries[name] = LEFT_OUT
        elif key == "versions" and isinstance(entry, str) and _VERSION.fullmatch(entry):
            entries[name] = entry
        else:
            entries[name] = scrubbed(entry, key if key in MESSAGES else name)
    return entries


def _scrubbed_text(text: str, key: str) -> str:
    if text in OWN_WORDS or not text or _HASH.fullmatch(text) or _NUMBER.fullmatch(text):
        return text
    if key in MESSAGES:
        return numbers_of(text)
    if key == "set" and _LANGUAGE.fullmatch(text):
        return text
    if key in PATHS:
        return re.split(r"[/\\]", masked(text))[-1]
    return masked(text) if key in KEPT and _WORDS.fullmatch(text) else LEFT_OUT


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
