"""Telling one process from another: a number alone is given again, after a reboot or in another container."""

from __future__ import annotations

import socket
from pathlib import Path


def this_machine() -> str:
    """The host, its boot and the space of process numbers: a process is known by its number only inside all three."""
    return " ".join([socket.gethostname(), _text("/proc/sys/kernel/random/boot_id"), _target("/proc/self/ns/pid")])


def started_at(pid: int) -> str:
    """When the process of that number was started, in the system's own clock; nothing where there is none."""
    # After the name, which stands in brackets and may hold anything, the twentieth word is the start.
    words = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return words[19] if len(words) > 19 else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # also where there is no /proc
        return ""


def _target(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
