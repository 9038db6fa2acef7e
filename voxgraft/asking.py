"""How a verb asks a person: before it does what cannot be undone, and for what nobody else can know.

The library calls `confirm_with_user` and `told`; a face installs who answers with `answering`. With nobody there, nothing is
confirmed and nothing is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

from voxgraft.results import Line

__all__ = ["AskCallback", "ConfirmCallback", "ask_user", "confirm_with_user", "use_prompt_callbacks"]

ConfirmCallback = Callable[[Sequence[Line], str], bool]
"""Shows the lines, then asks the question; whether the answer is yes."""
AskCallback = Callable[[Sequence[Line], str], str]
"""Shows the lines, then asks the question; the answer in the person's own words, which may be empty."""
_confirm_callback: ContextVar[ConfirmCallback | None] = ContextVar("answerer", default=None)
_ask_callback: ContextVar[AskCallback | None] = ContextVar("teller", default=None)


@contextlib.contextmanager
def use_prompt_callbacks(answerer: ConfirmCallback, teller: AskCallback | None = None) -> Iterator[None]:
    """Send every question asked inside the block to `answerer`, and those that want words to `teller`."""
    tokens = _confirm_callback.set(answerer), _ask_callback.set(teller)
    try:
        yield
    finally:
        _confirm_callback.reset(tokens[0])
        _ask_callback.reset(tokens[1])


def confirm_with_user(lines: Sequence[Line], question: str) -> bool | None:
    """Whether somebody says yes, after having seen `lines`; None if there is nobody to ask."""
    answerer = _confirm_callback.get()
    return None if answerer is None else answerer(lines, question)


def ask_user(lines: Sequence[Line], question: str) -> str | None:
    """What somebody answers, after having seen `lines`; None if there is nobody to ask."""
    teller = _ask_callback.get()
    return None if teller is None else teller(lines, question)
