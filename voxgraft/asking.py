"""How a verb asks a person: before it does what cannot be undone, and for what nobody else can know.

The library calls `confirmed` and `told`; a face installs who answers with `answering`. With nobody there, nothing is
confirmed and nothing is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

from voxgraft.results import Line

__all__ = ["Answerer", "Teller", "answering", "confirmed", "told"]

Answerer = Callable[[Sequence[Line], str], bool]
"""Shows the lines, then asks the question; whether the answer is yes."""
Teller = Callable[[Sequence[Line], str], str]
"""Shows the lines, then asks the question; the answer in the person's own words, which may be empty."""
_answerer: ContextVar[Answerer | None] = ContextVar("answerer", default=None)
_teller: ContextVar[Teller | None] = ContextVar("teller", default=None)


@contextlib.contextmanager
def answering(answerer: Answerer, teller: Teller | None = None) -> Iterator[None]:
    """Send every question asked inside the block to `answerer`, and those that want words to `teller`."""
    tokens = _answerer.set(answerer), _teller.set(teller)
    try:
        yield
    finally:
        _answerer.reset(tokens[0])
        _teller.reset(tokens[1])


def confirmed(lines: Sequence[Line], question: str) -> bool | None:
    """Whether somebody says yes, after having seen `lines`; None if there is nobody to ask."""
    answerer = _answerer.get()
    return None if answerer is None else answerer(lines, question)


def told(lines: Sequence[Line], question: str) -> str | None:
    """What somebody answers, after having seen `lines`; None if there is nobody to ask."""
    teller = _teller.get()
    return None if teller is None else teller(lines, question)
