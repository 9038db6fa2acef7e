"""Text in Latin letters, approximately, through uroman. Loads its tables (about two seconds) on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

from voxgraft import progress


def romanise(text: str) -> str:
    """`ሰ` becomes `sa`. What uroman does not know comes back as it is."""
    return str(_uroman().romanize_string(text)).strip()


@cache
def _uroman() -> Any:
    with progress.task("loading the romaniser"):
        import uroman

        return uroman.Uroman()
