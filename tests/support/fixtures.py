"""Folders that many tests only read: made by the first worker that asks, shared by all workers, compared at the end."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.run_folders import WholeRun, make_merged_run, make_stopping_base
from tests.support.run_folders import make_run as make_whole_run
from tests.support.toy_language import World, open_world
from tests.support.trainers import Place
from tools.random_bases import make_random_base
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of a run of the suite have in common."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "fixtures"
    folder.mkdir(exist_ok=True)
    return folder


class Fixtures:
    """What is common to all tests of a run of the suite. Nobody writes to it: tests that change something copy it first."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._root = shared_folder(factory)
        self._used: set[Path] = set()

    def folder(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder of that name. It is there for good once its listing is, which is written last."""
        folder = self._root / name
        listing = folder.with_name(f"{folder.name}.listing.json")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not listing.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                listing.write_text(json.dumps(_listing(folder)))
        self._used.add(folder)
        return folder

    def changed(self) -> list[str]:
        """Files of these folders that a test has made, changed or removed."""
        found = []
        for folder in self._used:
            before, now = json.loads(folder.with_name(f"{folder.name}.listing.json").read_text()), _listing(folder)
            names = sorted(before.keys() | now.keys())
            found += [f"{folder.name}/{name}" for name in names if before.get(name) != now.get(name)]
        return found

    def base(self, family_name: str, seed: int = 0) -> BaseFiles:
        """A tiny random base."""
        folder = self.folder(f"bases-{seed}/{family_name}", lambda at: make_random_base(family_name, at, seed=seed))
        return get_family(family_name).files(folder)

    def place(self, family_name: str) -> Place:
        """A base and sets, for loops without a command around them."""
        return Place(family_name, self.folder(f"places/{family_name}", lambda at: Place.make(family_name, at)))

    def whole_run(self, family_name: str) -> WholeRun:
        """A run that was never trained."""
        folder = self.folder(f"runs/{family_name}", lambda at: make_whole_run(family_name, at))
        return WholeRun(family_name, folder / "run", folder / "base")

    def trained_run(self, family_name: str) -> WholeRun:
        """The same after a training of four steps."""
        made = self.whole_run(family_name)
        folder = self.folder(f"trained/{family_name}", lambda at: made.copied(at / "run").train())
        return WholeRun(family_name, folder / "run", made.base)

    def stopping_world(self) -> World:
        """A run for merged mode onto an IndexTTS-2 whose speech comes to an end."""
        make = lambda at: make_merged_run("indextts2", at / "world", make_stopping_base(at).folder)  # noqa: E731
        folder = self.folder("stopping-world", make)
        return open_world("indextts2", folder / "world" / "run", folder / "base")


def _listing(folder: Path) -> dict[str, list[int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}
