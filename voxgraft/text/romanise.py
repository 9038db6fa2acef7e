"""Text in Latin letters, approximately, as uroman writes it.

Ethiopic and Latin come from a table that uroman made; for other scripts uroman itself is loaded, which takes seconds.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from voxgraft import progress
from voxgraft.files import parse_json

TABLE_SCRIPTS = ("Ethiopic", "Latin")
"""Scripts that uroman reads character by character, so that a table of characters is enough."""


def romanize(text: str) -> str:
    """`ሰ` becomes `sa`. What uroman does not know comes back as it is."""
    table = _load_romanization_table()
    if all(character in table for character in text):
        return "".join(table[character] for character in text).strip()
    return str(_load_uroman().romanize_string(text)).strip()


@cache
def _load_romanization_table() -> dict[str, str]:
    text = resources.files("voxgraft").joinpath("data/romanised.json").read_text(encoding="utf-8")
    table = parse_json(text, "romanised.json")
    assert isinstance(table, dict)
    return table


@cache
def _load_uroman() -> Any:
    with progress.progress_task("loading the romaniser"):
        import uroman

        return uroman.Uroman()
