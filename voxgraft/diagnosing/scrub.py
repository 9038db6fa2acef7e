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

from voxgraft.diagnosing.rows import ROW_KINDS
from voxgraft.findings.topics import CHECK_TOPICS

__all__ = ["REDACTED", "extract_numbers", "mask_personal_paths", "redact"]

REDACTED = "(left out)"
SAFE_KEYS = frozenset(
    "kind code level state word family language languages mode format schedule precision device init tag "
    "tensor layer role repairs lone_clips emotion_from method".split()
)
"""Keys under which a text is a word or two of ours, or the name of a tensor."""
PATH_KEYS = frozenset("base checkpoint tokenizer".split())
"""Keys under which a path stands: its last name is kept."""
MESSAGE_KEYS = frozenset(
    "found expected where why error message sentence reason commands cure what size not_checked not_heard".split()
)
"""Keys under which people are told something, which may quote anything."""
PRIVATE_KEYS = frozenset(
    "text text_ids utterances clips codes heard said phones sample_texts voice voices speaker speakers audio "
    "by_speaker recordings seen_in_training rare_words_in_training spoken holder host user listener".split()
)
"""Keys under which texts, sound, or names of people stand. A plain number under one of them is kept."""
SAFE_WORDS = frozenset(
    [*ROW_KINDS, *(topic.name for topic in CHECK_TOPICS), "checksums of the text tables", "rows one by one"]
)
_HASH_PATTERN = re.compile(r"[0-9a-f]{40,64}")
_SHORT_WORDS_PATTERN = re.compile(r"[\w.:+\[\]-]{1,60}(?: \w{1,12})?")
_VERSION_PATTERN = re.compile(r"[\w.+-]{1,120}")
_LANGUAGE_CODE_PATTERN = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]{1,8})?")
_ENCODED_TEXT_CODE = "text-spelled"
"""The finding whose numbers are a text: its ids."""
_MAX_MESSAGE_NUMBERS = 10
"""A message of ours has no more; more are somebody's ids."""
_KEY_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_TENSOR_NAME_PATTERN = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.(?:weight|bias)")
_NUMBER_PATTERN = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,7})(?:\.\d+)?(?:e[-+]?\d+)?%?(?![\w])")
"""No more than seven digits in a row: longer ones are a telephone's."""
_TENSOR_OR_NUMBER_PATTERN = re.compile(rf"{_TENSOR_NAME_PATTERN.pattern}|{_NUMBER_PATTERN.pattern}")
_HOME_FOLDER_PATTERN = re.compile(
    r"(?:/home|/Users|/teamspace/studios|/mnt/c/Users)/[^/\\'\":;,)]+|[A-Za-z]:\\+Users\\+[^/\\'\":;,)]+"
    r"|/root(?=[/\s'\":;,)]|$)"
)
"""A user's name may have spaces in it: up to the next separator all of it goes."""
_SECRET_PATTERN = re.compile(r"(?<=://)[^/\s@]+@|\b(?:hf_|sk-|gh[pousr]_)\S+")
_MIN_USER_NAME_LENGTH = 3


def redact(value: Any, key: str = "") -> Any:
    """A document without what is private. `key` is where the value stands."""
    if isinstance(value, Mapping):
        return _redact_mapping(value, key)
    if isinstance(value, list | tuple):
        return [redact(entry, key) for entry in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _redact_text(str(value), key)


def mask_personal_paths(text: str) -> str:
    """A text with `~` for every home folder, USER for the user's own name in a path, and no passwords."""
    text = _SECRET_PATTERN.sub("(secret)", text)
    for home in _home_folders():
        text = text.replace(home, "~")
    text = _HOME_FOLDER_PATTERN.sub("~", text)
    for name in _user_names():
        text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?=[/\\]|$)", "USER", text)
    return text


def extract_numbers(text: str) -> str:
    """What is told in a message without its words: numbers and names of tensors, in their order."""
    told = _TENSOR_OR_NUMBER_PATTERN.findall(text)
    return " … ".join(["", *told, ""]).strip() if 0 < len(told) <= _MAX_MESSAGE_NUMBERS else "…"


def _redact_mapping(value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for number, (own, entry) in enumerate(value.items(), start=1):
        name = str(own)
        if not (
            name in SAFE_WORDS
            or _KEY_PATTERN.fullmatch(name)
            or _TENSOR_NAME_PATTERN.fullmatch(name)
            or _NUMBER_PATTERN.fullmatch(name)
        ):
            name = f"(name {number})"
        is_text = name in PRIVATE_KEYS or (name == "found" and value.get("code") == _ENCODED_TEXT_CODE)
        if is_text and not (entry is None or isinstance(entry, bool | int | float)):
            entries[name] = REDACTED
        elif key == "versions" and isinstance(entry, str) and _VERSION_PATTERN.fullmatch(entry):
            entries[name] = entry
        else:
            entries[name] = redact(entry, key if key in MESSAGE_KEYS else name)
    return entries


def _redact_text(text: str, key: str) -> str:
    if text in SAFE_WORDS or not text or _HASH_PATTERN.fullmatch(text) or _NUMBER_PATTERN.fullmatch(text):
        return text
    if key in MESSAGE_KEYS:
        return extract_numbers(text)
    if key == "set" and _LANGUAGE_CODE_PATTERN.fullmatch(text):
        return text
    if key in PATH_KEYS:
        return re.split(r"[/\\]", mask_personal_paths(text))[-1]
    return mask_personal_paths(text) if key in SAFE_KEYS and _SHORT_WORDS_PATTERN.fullmatch(text) else REDACTED


def _home_folders() -> list[str]:
    """The user's own home, as it is called and as it really is; the longest first."""
    found: set[str] = set()
    with contextlib.suppress(RuntimeError):
        home = str(Path.home())
        found = {home, os.path.realpath(home)}
    return sorted((home for home in found if home.count("/") > 1 or "\\" in home), key=len, reverse=True)


def _user_names() -> list[str]:
    with contextlib.suppress(OSError, KeyError, ImportError):
        name = getpass.getuser()
        return [name] if len(name) >= _MIN_USER_NAME_LENGTH and name != "root" else []
    return []
