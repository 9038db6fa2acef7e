"""The verb `companion`: an environment of its own for a stock program's waveform end, by one command."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voxgraft.companions.making import RECIPES, make_environment, write_card
from voxgraft.companions.places import CARD_NAME, Environment, companion_folder, found_environment, worker_path
from voxgraft.errors import ConfigError
from voxgraft.exchange_settings import CompanionSettings
from voxgraft.files import existing_file, existing_folder, is_file, write_error
from voxgraft.results import Line, Table

__all__ = ["CompanionResult", "companion"]


@dataclass(frozen=True, slots=True)
class CompanionResult:
    """Where the environment is, what it holds, and whether it was made now."""

    environment: Environment
    versions: dict[str, str]
    made: bool
    seconds: float
    exit_code: int = field(default=0)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.environment.name,
            "folder": str(self.environment.folder),
            "python": str(self.environment.python),
            "versions": self.versions,
            "made": self.made,
            "seconds": round(self.seconds, 1),
        }

    def lines(self) -> list[Line]:
        how = f"made in {self.seconds:.0f} s" if self.made else "was there"
        rows = tuple((name, version) for name, version in self.versions.items())
        return [
            Table(("package", "version"), rows),
            f"{self.environment.name} answers: {self.environment.folder} ({how})",
        ]


def companion(settings: CompanionSettings) -> CompanionResult:
    """Make the environment, or see that the one that is there answers."""
    name = settings.name
    _require_sense(settings)
    began = time.monotonic()
    # One that is broken must not stand in the way of the next.
    there = None if settings.anew or settings.environment is not None else found_environment(name)
    if there is not None:
        return CompanionResult(there, _asked(there).get("versions", {}), False, time.monotonic() - began)
    folder = companion_folder(name)
    if settings.environment is not None:
        environment = _existing(settings, folder)
    else:
        environment = make_environment(name, folder, settings.python, settings.pip_flags, settings.checkout)
    about = _asked(environment)
    write_card(environment, about)
    return CompanionResult(environment, about.get("versions", {}), True, time.monotonic() - began)


def _require_sense(settings: CompanionSettings) -> None:
    needs = RECIPES[settings.name].needs_checkout
    anew = settings.anew or settings.environment is not None
    if needs and settings.checkout is None and (anew or found_environment(settings.name) is None):
        found = f"{settings.name} comes as source, and its checkout is not named"
        raise ConfigError("config-missing", found, expected="--checkout FOLDER")
    if not needs and settings.checkout is not None:
        raise ConfigError("config-value", f"--checkout for {settings.name}", expected="none: it is a package")
    if settings.checkout is not None:
        existing_folder(settings.checkout / "indextts")
    if settings.python is not None:
        existing_file(settings.python)


def _existing(settings: CompanionSettings, folder: Path) -> Environment:
    """An environment that somebody else has made: only a card of it is kept in our place."""
    assert settings.environment is not None
    python = existing_folder(settings.environment).resolve() / "bin" / "python"
    if not is_file(python):
        found = f"{settings.environment} has no bin/python"
        raise ConfigError("config-value", found, expected="the folder of a virtual environment")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CARD_NAME).unlink(missing_ok=True)
    except OSError as error:
        raise write_error(error, folder) from None
    arguments = (str(settings.checkout.resolve()),) if settings.checkout else ()
    return Environment(settings.name, folder, python, worker_path(settings.name), arguments)


def _asked(environment: Environment) -> dict[str, Any]:
    """What its worker says of itself; an error if it does not come to that."""
    worker = environment.companion()
    try:
        return worker.hello()
    finally:
        worker.close()
