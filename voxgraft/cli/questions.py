"""Questions on a terminal: shown on standard error, so that standard output holds the result alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from voxgraft import asking
from voxgraft.cli.console import print_lines
from voxgraft.results import Line

YES_ANSWERS = ("y", "yes")


@contextlib.contextmanager
def enable_terminal_prompts(before_prompt: Callable[[], None], *, silent: bool) -> Iterator[None]:
    """Let the person at the terminal answer what a verb asks; nobody does where there is no terminal.

    `apply_until_stable` is called before a question, so that no bar is drawn over it.
    """
    if silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        yield
        return

    def ask(lines: Sequence[Line], question: str) -> bool:
        before_prompt()
        return _ask_yes_no(lines, question)

    def tell(lines: Sequence[Line], question: str) -> str:
        before_prompt()
        return _read_answer(lines, f"{question} ")

    with asking.use_prompt_callbacks(ask, tell):
        yield


def _ask_yes_no(lines: Sequence[Line], question: str) -> bool:
    return _read_answer(lines, f"{question} [y/N] ").lower() in YES_ANSWERS


def _read_answer(lines: Sequence[Line], prompt: str) -> str:
    print_lines(lines, sys.stderr)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().strip()
