"""What languages are called in English, by their codes, for people who type the name. From CLDR; no torch here."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources

from voxgraft.files import parse_json

__all__ = ["find_language_code", "suggest_language_code"]

_MIN_SIMILARITY = 0.8
"""Of their letters: Amharik is Amharic, but no unknown language is the one that sounds most like it."""


@cache
def _load_codes_by_name() -> dict[str, tuple[str, str]]:
    """Code and proper name, by the name in small letters. Of several codes with one name the shortest."""
    text = resources.files("voxgraft").joinpath("data/exemplars.json").read_text(encoding="utf-8")
    table = parse_json(text, "exemplars.json")
    named = [(code, str(entry["name"])) for code, entry in table.items() if not code.startswith("_")]
    named.sort(key=lambda pair: (-len(pair[0]), pair[0]))
    return {name.lower(): (code, name) for code, name in named}


def find_language_code(word: str) -> tuple[str, str] | None:
    """Code and name of the language that a word names, or nearly names."""
    known, wanted = _load_codes_by_name(), word.strip().lower()
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=_MIN_SIMILARITY)
    return known.get(wanted) or (known[near[0]] if near else None)


def suggest_language_code(word: str, flag: str) -> str:
    """A question for whoever typed a name in place of a code; nothing where the word names no language."""
    found = find_language_code(word)
    return f"{found[0]} is the code for {found[1]}: did you mean {flag} {found[0]}?" if found else ""
