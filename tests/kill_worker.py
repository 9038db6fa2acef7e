"""A training that shall be killed inside a save: as `tests.train_worker`, and says each point that its saves cross."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from voxgraft.training import faults

_cross = faults.crossing


def _told(name: str) -> None:
    print(name, flush=True)
    _cross(name)


if __name__ == "__main__":
    faults.crossing = _told  # before anybody takes the name from there
    from tests.train_worker import main

    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
