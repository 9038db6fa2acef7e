"""How many workers a machine can have at once: by its cores, and by the memory that a front end takes."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["default_worker_count"]

MEMORY_FACTOR = 2
"""A worker takes the bytes of its files once as weights, and once more while it opens them."""


def default_worker_count(device: str, file_bytes: int) -> int:
    """One for each core as far as memory goes; on CUDA one, which fills the device by itself."""
    if device.startswith("cuda"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _available_memory_bytes() // max(1, MEMORY_FACTOR * file_bytes)))


def _available_memory_bytes() -> int:
    """Memory that programs can have; on systems that do not say, all that there is."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
