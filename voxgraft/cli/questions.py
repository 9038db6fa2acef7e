"""Questions on a terminal: shown on standard error, so that standard output holds the result alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from voxgraft import asking
from voxgraft.cli.console import print_lines
from voxgraft.results import Line

YES = ("y", "yes")


@contextlib.contextmanager
def answered(settle: Callable[[], None], *, silent: bool) -> Iterator[None]:
    """Let the person at the terminal answer what a verb asks; nobody does where there is no terminal.

    `settle` is called before a question, so that no bar is drawn over it.
    """
    if silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        yield
        return

    def ask(lines: Sequence[Line], question: str) -> bool:
        settle()
        return _ask(lines, question)

    def tell(lines: Sequence[Line], question: str) -> str:
        settle()
        return _answer(lines, f"{question} ")

    with asking.answering(ask, tell):
        yield


def _ask(lines: Sequence[Line], question: str) -> bool:
    return _answer(lines, f"{question} [y/N] ").lower() in YES


def _answer(lines: Sequence[Line], prompt: str) -> str:
    print_lines(lines, sys.stderr)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().strip()
