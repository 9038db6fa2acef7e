"""Readers that do everything that a reader must not do, to show that the harness sees it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import ClassVar

from tests.fuzz.target import CANARY, Mutant, Random, Target
from voxgraft.core.errors import FileError

FAULTS = (
    "nothing",
    "crash",
    "hang",
    "memory",
    "unclassified",
    "refuses a sound file",
    "runs a program",
    "reads otherwise",
)


class FaultyTarget(Target):
    """One fault after the other."""

    name: ClassVar[str] = "faulty"
    count: ClassVar[int] = len(FAULTS)
    fixed: ClassVar[bool] = True

    def make_seeds(self, folder: Path) -> None:
        (folder / "sound").write_bytes(b"sound")

    def numbered(self, seed: int, number: int) -> Mutant:
        fault = FAULTS[number]
        return Mutant("sound", fault, fault.encode(), same="sound" in fault or "otherwise" in fault)

    def mutant(self, rng: Random) -> Mutant:
        return self.numbered(0, rng.randrange(len(FAULTS)))

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        match data.decode():
            case "crash":
                os.abort()
            case "hang":
                signal.setitimer(signal.ITIMER_PROF, 0.2)  # the harness waits for longer
                while True:
                    pass
            case "memory":
                bytearray(8 << 30)
            case "unclassified":
                raise KeyError("key")
            case "refuses a sound file":
                raise FileError("file-empty", "it is not")
            case "runs a program":
                Path(CANARY).touch()
        return data
