"""One process of a training that several share, or that shall be killed: `python -m tests.train_worker`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.trainers import EVERY, OPTIONS, Place, loop_of
from voxgraft.training.processes import processes
from voxgraft.training.resuming import go_on


def main(folder: Path, run: Path, changed: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    own = {name: value for name, value in changed.items() if name not in ("stop_at", "every")}
    stop_at, every = changed.get("stop_at"), replace(EVERY, **changed.get("every", {}))
    options = replace(OPTIONS, **own)
    with processes("cpu") as group:
        loop = loop_of(Place(folder.name, folder), run, options, every, group)
        loop.guards.append(lambda step, _found: "enough for now" if step == stop_at else None)
        loop.go(go_on(loop))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
