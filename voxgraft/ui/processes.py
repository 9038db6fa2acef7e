"""Telling one process from another: a number alone is given again, after a reboot or in another container."""

from __future__ import annotations

import socket
from pathlib import Path


def machine_id() -> str:
    """The host, its boot and the space of process numbers: a process is known by its number only inside all three."""
    return " ".join(
        [socket.gethostname(), _read_proc_text("/proc/sys/kernel/random/boot_id"), _read_proc_link("/proc/self/ns/pid")]
    )


def process_start_time(pid: int) -> str:
    """When the process of that number was started, in the system's own clock; nothing where there is none."""
    # After the name, which stands in brackets and may hold anything, the twentieth word is the start.
    words = _read_proc_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return words[19] if len(words) > 19 else ""


def _read_proc_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # also where there is no /proc
        return ""


def _read_proc_link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
