"""How a verb asks before it does what cannot be undone, without knowing who answers.

The library calls `confirmed`; a face installs who answers with `answering`. With nobody there, nothing is confirmed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

from voxgraft.results import Line

__all__ = ["Answerer", "answering", "confirmed"]

Answerer = Callable[[Sequence[Line], str], bool]
"""Shows the lines, then asks the question; whether the answer is yes."""
_answerer: ContextVar[Answerer | None] = ContextVar("answerer", default=None)


@contextlib.contextmanager
def answering(answerer: Answerer) -> Iterator[None]:
    """Send every question asked inside the block to `answerer`."""
    token = _answerer.set(answerer)
    try:
        yield
    finally:
        _answerer.reset(token)


def confirmed(lines: Sequence[Line], question: str) -> bool | None:
    """Whether somebody says yes, after having seen `lines`; None if there is nobody to ask."""
    answerer = _answerer.get()
    return None if answerer is None else answerer(lines, question)
