"""What is fuzzed: a kind of file, how it is damaged, and who reads it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

Random = random.Random
CANARY = "canary"
"""A hostile file would have a file of this name made in the working folder."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One damaged file: which seed it was, what was done to it, and whether only its form changed."""

    seed: str
    how: str
    data: bytes
    same: bool = False
    """Its meaning is the seed's, so it must be read, and as the same thing."""


class Target(ABC):
    """One kind of file. Seeds are sound files, made once; everything else happens in a process of its own."""

    name: ClassVar[str]
    count: ClassVar[int]
    """Mutants in a whole campaign (`--fuzz 1`); an ordinary run of the suite has a share of them."""
    least: ClassVar[int] = 1
    """Mutants in the smallest campaign."""
    fixed: ClassVar[bool] = False
    """Whether there are no more than these, however many are asked for."""

    def __init__(self) -> None:
        self.seeds: dict[str, bytes] = {}

    @abstractmethod
    def make_seeds(self, folder: Path) -> None:
        """Write the sound files, one per seed; their names are the seeds' names."""

    def load(self, folder: Path) -> None:
        """Read the sound files back."""
        self.seeds = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}

    def numbered(self, seed: int, number: int) -> Mutant:
        """The mutant of that number, whatever was made before it."""
        return self.mutant(random.Random(f"{self.name}:{seed}:{number}"))

    @abstractmethod
    def mutant(self, rng: Random) -> Mutant:
        """A damaged file; the same for the same state of `rng`."""

    @abstractmethod
    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        """Read the file and use what was read, in an empty folder. Gives its meaning, which can be compared."""

    def pick(self, rng: Random) -> tuple[str, bytes]:
        """A seed to damage."""
        name = rng.choice(sorted(self.seeds))
        return name, self.seeds[name]


class Refused(Exception):  # noqa: N818 (an outcome, not an error)
    """Raised by a target whose reader answers in another way than by raising: carries the code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


Mutation = Callable[[bytes, Random], bytes]
