"""Faults on purpose, for tests: a process that is killed, or meets a full disk, at a named point of a save.

Does nothing unless VOXGRAFT_FAULT is set, to "NAME:COUNT:ACTION": what happens when NAME (or * for any) is crossed for
the COUNT-th time. ACTION is `kill` (SIGKILL to itself), `stop` (SIGSTOP), or the name of a system error such as
`enospc`, which is then raised.
"""

from __future__ import annotations

import errno
import os
import signal

__all__ = ["VARIABLE", "crossing"]

VARIABLE = "VOXGRAFT_FAULT"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_counts: dict[str, int] = {}
"""How often the point was crossed since the variable has had this value."""


def crossing(name: str) -> None:
    """A point at which a fault can be asked for."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        _counts.clear()
        return
    point, count, action = wanted.split(":")
    if point not in (name, "*"):
        return
    crossed = _counts.get(wanted, 0) + 1
    _counts.clear()
    _counts[wanted] = crossed
    if crossed == int(count):
        _act(action, name)


def _act(action: str, name: str) -> None:
    if action in SIGNALS:
        os.kill(os.getpid(), SIGNALS[action])
    else:
        number = int(getattr(errno, action.upper()))
        raise OSError(number, f"{os.strerror(number)} (asked for at {name})")
