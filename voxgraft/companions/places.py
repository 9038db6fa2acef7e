"""Where companion environments are, and what each says of itself. Makes nothing and starts nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from voxgraft.companions.process import CompanionProcess
from voxgraft.errors import CompanionError, VoxgraftError
from voxgraft.files import is_file, read_json

__all__ = [
    "COMPANIONS_VARIABLE",
    "COMPANION_CARD_NAME",
    "COMPANION_FORMAT",
    "CompanionEnvironment",
    "companion_folder",
    "find_environment",
    "worker_path",
]

COMPANIONS_VARIABLE = "VOXGRAFT_COMPANIONS"
COMPANION_CARD_NAME = "companion.json"
COMPANION_FORMAT = "voxgraft-companion-1"


@dataclass(frozen=True, slots=True)
class CompanionEnvironment:
    """An environment that was made and has answered."""

    name: str
    folder: Path
    python: Path
    worker: Path
    arguments: tuple[str, ...] = ()

    def companion(self) -> CompanionProcess:
        """Its worker, not yet started."""
        return CompanionProcess(self.name, [str(self.python), str(self.worker), *self.arguments])


def companion_folder(name: str) -> Path:
    """The place of a companion: in VOXGRAFT_COMPANIONS, else with the user's data."""
    if places := os.environ.get(COMPANIONS_VARIABLE):
        return Path(places) / name
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "voxgraft" / "companions" / name


def worker_path(name: str) -> Path:
    """The program that runs inside of an environment."""
    return Path(__file__).resolve().parent / "workers" / f"{name}_worker.py"


def find_environment(name: str) -> CompanionEnvironment | None:
    """The environment of a companion; None where none was made. Its card is written last, when it has answered."""
    folder = companion_folder(name)
    path = folder / COMPANION_CARD_NAME
    if not is_file(path):
        return None
    try:
        card = read_json(path)
    except VoxgraftError as error:
        raise CompanionError("companion-broken", f"{COMPANION_CARD_NAME}: {error.finding.found}", where=path) from None
    if not isinstance(card, dict) or card.get("format") != COMPANION_FORMAT or not isinstance(card.get("python"), str):
        raise CompanionError(
            "companion-broken", f"{COMPANION_CARD_NAME} has no format {COMPANION_FORMAT!r}", where=path
        )
    arguments = card.get("arguments")
    given = tuple(map(str, arguments)) if isinstance(arguments, list) else ()
    worker = card.get("worker")
    program = Path(worker) if isinstance(worker, str) else worker_path(name)
    return CompanionEnvironment(name, folder, Path(card["python"]), program, given)
