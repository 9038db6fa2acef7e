"""Faults on purpose, for tests: a process that is killed, or meets a full disk, at a named point of a save.

Does nothing unless VOXGRAFT_FAULT is set, to "NAME:COUNT:ACTION": what happens when NAME (or * for any) is crossed for
the COUNT-th time. ACTION is `kill` (SIGKILL to itself), `stop` (SIGSTOP), or the name of a system error such as
`enospc`, which is then raised. Several faults are separated by commas.
"""

from __future__ import annotations

import errno
import os
import signal

__all__ = ["FAILPOINT_VARIABLE", "failpoint"]

FAILPOINT_VARIABLE = "VOXGRAFT_FAULT"
FAILPOINT_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_hit_counts: dict[str, int] = {}
"""How often the point of each fault was crossed since the variable has had this value."""
_active_spec = ""


def failpoint(name: str) -> None:
    """A point at which a fault can be asked for."""
    global _active_spec
    wanted = os.environ.get(FAILPOINT_VARIABLE, "")
    if wanted != _active_spec:
        _hit_counts.clear()
        _active_spec = wanted
    for fault in filter(None, wanted.split(",")):
        point, count, action = fault.split(":")
        if point in (name, "*"):
            _hit_counts[fault] = _hit_counts.get(fault, 0) + 1
            if _hit_counts[fault] == int(count):
                _trigger_fault(action, name)


def _trigger_fault(action: str, name: str) -> None:
    if action in FAILPOINT_SIGNALS:
        os.kill(os.getpid(), FAILPOINT_SIGNALS[action])
    else:
        number = int(getattr(errno, action.upper()))
        raise OSError(number, f"{os.strerror(number)} (asked for at {name})")
