"""The verb `companion`: an environment of its own for a stock program's waveform end, by one command."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voxgraft.companions.making import INSTALL_RECIPES, create_environment, write_environment_card
from voxgraft.companions.places import (
    COMPANION_CARD_NAME,
    CompanionEnvironment,
    companion_folder,
    find_environment,
    worker_path,
)
from voxgraft.errors import ConfigError
from voxgraft.exchange_settings import CompanionSettings
from voxgraft.files import build_write_error, is_file, require_file, require_folder
from voxgraft.results import Line, Table

__all__ = ["CompanionResult", "create_companion"]


@dataclass(frozen=True, slots=True)
class CompanionResult:
    """Where the environment is, what it holds, and whether it was made now."""

    environment: CompanionEnvironment
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


def create_companion(settings: CompanionSettings) -> CompanionResult:
    """Make the environment, or see that the one that is there answers."""
    name = settings.name
    _validate_companion_settings(settings)
    began = time.monotonic()
    # One that is broken must not stand in the way of the next.
    there = None if settings.anew or settings.environment is not None else find_environment(name)
    if there is not None:
        return CompanionResult(there, _query_worker(there).get("versions", {}), False, time.monotonic() - began)
    folder = companion_folder(name)
    if settings.environment is not None:
        environment = _register_existing_environment(settings, folder)
    else:
        environment = create_environment(name, folder, settings.python, settings.pip_flags, settings.checkout)
    about = _query_worker(environment)
    write_environment_card(environment, about)
    return CompanionResult(environment, about.get("versions", {}), True, time.monotonic() - began)


def _validate_companion_settings(settings: CompanionSettings) -> None:
    needs = INSTALL_RECIPES[settings.name].needs_checkout
    anew = settings.anew or settings.environment is not None
    if needs and settings.checkout is None and (anew or find_environment(settings.name) is None):
        found = f"{settings.name} comes as source, and its checkout is not named"
        raise ConfigError("config-missing", found, expected="--checkout FOLDER")
    if not needs and settings.checkout is not None:
        raise ConfigError("config-value", f"--checkout for {settings.name}", expected="none: it is a package")
    if settings.checkout is not None:
        require_folder(settings.checkout / "indextts")
    if settings.python is not None:
        require_file(settings.python)


def _register_existing_environment(settings: CompanionSettings, folder: Path) -> CompanionEnvironment:
    """An environment that somebody else has made: only a card of it is kept in our place."""
    assert settings.environment is not None
    python = require_folder(settings.environment).resolve() / "bin" / "python"
    if not is_file(python):
        found = f"{settings.environment} has no bin/python"
        raise ConfigError("config-value", found, expected="the folder of a virtual environment")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COMPANION_CARD_NAME).unlink(missing_ok=True)
    except OSError as error:
        raise build_write_error(error, folder) from None
    arguments = (str(settings.checkout.resolve()),) if settings.checkout else ()
    return CompanionEnvironment(settings.name, folder, python, worker_path(settings.name), arguments)


def _query_worker(environment: CompanionEnvironment) -> dict[str, Any]:
    """What its worker says of itself; an error if it does not come to that."""
    worker = environment.companion()
    try:
        return worker.hello()
    finally:
        worker.close()
