"""Making a companion environment: a virtual environment with packages that were seen to run together, then a question.

It is there once its card is, which is written after its worker has answered. What broke off is made again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft import progress
from voxgraft.companions.places import COMPANION_CARD_NAME, COMPANION_FORMAT, CompanionEnvironment, worker_path
from voxgraft.errors import CompanionError, FileError
from voxgraft.files import build_write_error, format_error_reason, is_file, path_exists, write_json

__all__ = ["INSTALL_RECIPES", "InstallRecipe", "create_environment", "write_environment_card"]

INSTALL_LOG_NAME = "install.log"
INSTALL_TAIL_LINES = 4


@dataclass(frozen=True, slots=True)
class InstallRecipe:
    """Calls of `pip install` in their order, and files that must go afterwards."""

    title: str
    steps: tuple[tuple[str, ...], ...]
    removed: tuple[str, ...] = ()
    """In site-packages, as patterns."""
    needs_checkout: bool = False


INSTALL_RECIPES = {
    "chatterbox": InstallRecipe(
        "chatterbox-tts 0.1.7",
        (
            ("torch==2.13.0",),
            # These ask for old packages, or for packages that they do not use.
            ("--no-deps", "torchaudio==2.11.0", "chatterbox-tts==0.1.7", "s3tokenizer==0.3.0"),
            tuple(
                "onnx==1.23.2 transformers==5.2.0 tokenizers==0.22.2 huggingface_hub==1.33.0 safetensors==0.5.3 "
                "librosa==0.11.0 soundfile==0.14.0 diffusers==0.29.0 conformer==0.3.2 einops==0.8.2 omegaconf==2.4.0 "
                "resemble-perth==1.0.1 pyloudnorm==0.2.0 numpy==2.4.6 numba==0.68.1 scipy==1.17.1 "
                "setuptools==80.9.0".split()
            ),
        ),
        # Its compiled part wants the CUDA libraries of another torch, and steps aside where it is not there.
        removed=("torchaudio/lib/*.so",),
    ),
    # Its source states what it needs; which Python it takes stands there too (3.10 or 3.11 when this was written).
    "indextts2": InstallRecipe("IndexTTS-2, from a checkout", (("{checkout}",),), needs_checkout=True),
}
"""Versions of Chatterbox that ran together on a processor; IndexTTS-2 gets those that its source asks for."""


def create_environment(
    name: str, folder: Path, python: Path | None, pip_flags: Sequence[str], checkout: Path | None
) -> CompanionEnvironment:
    """A new environment in a folder; an error with the installer's last words if a step fails."""
    try:
        return _create_environment(name, folder, python, pip_flags, checkout)
    except OSError as error:
        raise build_write_error(error, folder) from None


def _create_environment(
    name: str, folder: Path, python: Path | None, pip_flags: Sequence[str], checkout: Path | None
) -> CompanionEnvironment:
    recipe = INSTALL_RECIPES[name]
    if path_exists(folder):
        _remove_environment(folder)
    folder.mkdir(parents=True)
    interpreter = python or Path(getattr(sys, "_base_executable", sys.executable))
    log = folder / INSTALL_LOG_NAME
    own = folder / "venv" / "bin" / "python"
    with progress.progress_task(f"making an environment for {recipe.title}", len(recipe.steps) + 1) as advance:
        _run_logged([interpreter, "-m", "venv", folder / "venv"], log)
        advance(1)
        for step in recipe.steps:
            packages = [word.format(checkout=checkout) for word in step]
            _run_logged([own, "-m", "pip", "install", "--disable-pip-version-check", *pip_flags, *packages], log)
            advance(1)
    for pattern in recipe.removed:
        for path in (folder / "venv").glob(f"lib/python*/site-packages/{pattern}"):
            path.unlink()
    return CompanionEnvironment(name, folder, own, worker_path(name), (str(checkout),) if checkout else ())


def write_environment_card(environment: CompanionEnvironment, about: dict[str, Any]) -> None:
    """Say that the environment is there, and what is in it."""
    card = {
        "format": COMPANION_FORMAT,
        "name": environment.name,
        "python": str(environment.python),
        "arguments": list(environment.arguments),
        "versions": about.get("versions", {}),
    }
    write_json(environment.folder / COMPANION_CARD_NAME, card, overwrite=True)


def _remove_environment(folder: Path) -> None:
    """Remove an environment of ours; anything else is left alone."""
    ours = is_file(folder / COMPANION_CARD_NAME) or is_file(folder / INSTALL_LOG_NAME)
    if not ours and any(folder.iterdir()):
        raise FileError("file-exists", f"{folder.name} is there already, and is no companion of ours", where=folder)
    shutil.rmtree(folder)


def _run_logged(command: Sequence[str | Path], log: Path) -> None:
    with log.open("ab") as stream:
        try:
            done = subprocess.run(  # noqa: S603 (our own steps)
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, check=False
            )
        except OSError as error:
            raise CompanionError(
                "companion-install", f"{command[0]}: {format_error_reason(error)}", where=log
            ) from None
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = " / ".join(line.strip() for line in lines[-INSTALL_TAIL_LINES:] if line.strip())
        raise CompanionError("companion-install", told or f"exit code {done.returncode}", where=log)
