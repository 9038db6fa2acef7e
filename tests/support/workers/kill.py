"""A training that must be killed: as `tests.support.workers.train`, and writes down each point that its saves cross."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.workers.train import main as train
from voxgraft.core import files

ENDED = "ended"


def life(folder: Path, run: Path, changed: Mapping[str, Any], points: Path) -> str:
    """In a process of its own, which nobody needs afterwards."""
    cross = files.failpoint
    with points.open("a") as stream:

        def reported(name: str) -> None:
            print(name, file=stream, flush=True)
            cross(name)

        for name, module in list(sys.modules.items()):
            if name.startswith("voxgraft.") and getattr(module, "failpoint", None) is cross:
                module.failpoint = reported  # type: ignore[attr-defined]
        train(folder, run, changed)
    return ENDED
