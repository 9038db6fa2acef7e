"""Faults on purpose, for tests: a process that is killed, or meets a full disk, at a named point of a save.

Does nothing unless VOXGRAFT_FAULT is set, to "NAME:COUNT:ACTION": what happens when NAME (or * for any) is crossed for
the COUNT-th time. ACTION is `kill` (SIGKILL to itself), `stop` (SIGSTOP), or the name of a system error such as
`enospc`, which is then raised. Several faults are separated by commas.
"""

from __future__ import annotations

import errno
import os
import signal

__all__ = ["VARIABLE", "crossing"]

VARIABLE = "VOXGRAFT_FAULT"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_counts: dict[str, int] = {}
"""How often the point of each fault was crossed since the variable has had this value."""
_last = ""


def crossing(name: str) -> None:
    """A point at which a fault can be asked for."""
    global _last
    wanted = os.environ.get(VARIABLE, "")
    if wanted != _last:
        _counts.clear()
        _last = wanted
    for fault in filter(None, wanted.split(",")):
        point, count, action = fault.split(":")
        if point in (name, "*"):
            _counts[fault] = _counts.get(fault, 0) + 1
            if _counts[fault] == int(count):
                _act(action, name)


def _act(action: str, name: str) -> None:
    if action in SIGNALS:
        os.kill(os.getpid(), SIGNALS[action])
    else:
        number = int(getattr(errno, action.upper()))
        raise OSError(number, f"{os.strerror(number)} (asked for at {name})")
