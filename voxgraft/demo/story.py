"""The verb `demo`: Amharic grafted onto a base that speaks English and French, with the verbs that everybody uses.

It calls other verbs, as `run_pipeline` does: it stands in for the person at the keyboard.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.demo.keyboard import DemoRunner
from voxgraft.demo.mistakes import MISTAKES, MistakeReport
from voxgraft.demo.plan import build_demo_settings
from voxgraft.demo.telling import build_caught_table, format_durations, format_evaluation, summarize_evaluation
from voxgraft.errors import FileError
from voxgraft.evaluate import EvaluateResult
from voxgraft.evaluating.verdicts import summarize_retention
from voxgraft.files import build_write_error, is_file, is_folder, path_exists, write_text
from voxgraft.results import Line, style_line
from voxgraft.settings import DemoSettings

__all__ = ["DemoResult", "demo"]

_MARKER_NAME = "made-by-voxgraft-demo"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """How the story ended. It fails if a promise is not kept or was not measured, or if a mistake was not told of."""

    folder: Path
    seconds: Mapping[str, float]
    added: Mapping[str, str]
    """What the base was given, in words."""
    evaluated: EvaluateResult | None
    told: MistakeReport | None = None
    """Of a mistake."""

    @property
    def exit_code(self) -> int:
        if self.told is not None:
            return 0 if self.told.is_caught else 1
        kept = self.evaluated is not None and summarize_retention(self.evaluated.evaluation) == "equal"
        return 0 if kept else 1

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "seconds": dict(self.seconds),
            "added": dict(self.added),
            "mistake": self.told.to_json() if self.told else None,
            **(summarize_evaluation(self.evaluated) if self.evaluated else {}),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.told is not None:
            lines += [
                style_line((f"{self.told.name}: ", "bold"), self.told.about),
                build_caught_table(self.told.caught),
            ]
        if self.evaluated is not None:
            lines += format_evaluation(self.evaluated, self.added)
        if self.told is not None:
            lines += self.told.verdict()
        return [*lines, format_durations(self.seconds)]


def demo(settings: DemoSettings) -> DemoResult:
    """Tell the whole story, or that of a mistake."""
    folder = settings.folder or Path(f"demo-{settings.mistake}" if settings.mistake else "demo")
    _recreate_demo_folder(folder)
    keyboard = DemoRunner(folder)
    if settings.mistake is not None:
        told = MISTAKES[settings.mistake].reproduce(keyboard, settings)
        return DemoResult(folder, keyboard.seconds, {}, told.evaluated, told)
    keyboard.new(build_demo_settings(settings))
    grafted = keyboard.graft()
    keyboard.prepare()
    if settings.minutes is not None and settings.steps is None:
        keyboard.choose_steps(settings.minutes)
    keyboard.check()
    keyboard.train()
    found = keyboard.evaluate(settings.sentences, settings.seed)
    keyboard.export()
    added = {"new rows": f"{grafted.counts.new_pieces:,}", "adapter": _describe_adapter(keyboard)}
    return DemoResult(folder, keyboard.seconds, added, found)


def _describe_adapter(keyboard: DemoRunner) -> str:
    from voxgraft.graft_folder import ADAPTER_NAME
    from voxgraft.peft_folder import read_peft_folder

    adapter = read_peft_folder(keyboard.run.graft / ADAPTER_NAME)
    return f"{sum(tensor.numel() for tensor in adapter.state.values()):,} values"


def _recreate_demo_folder(folder: Path) -> None:
    """An earlier demonstration is replaced; whatever else is there is not touched.

    It is moved aside under a name of our own before it is removed: whoever is killed meanwhile leaves no half of one
    under the old name, and the next call removes the rest.
    """
    if folder.is_symlink():
        found, cure = f"{folder} is a link to {os.readlink(folder)}", "name the folder itself, or another one."
        raise FileError("file-exists", found, where=folder, cure=cure)
    aside = folder.absolute().with_name(f".{folder.absolute().name}.replaced-{_MARKER_NAME}")
    try:
        if path_exists(folder):
            if not is_file(folder / _MARKER_NAME):
                found, cure = f"{folder} is there already and is no demo of ours", "choose another folder."
                raise FileError("file-exists", found, where=folder, cure=cure)
            run = DemoRunner(folder).run
            with run.lock("demo") if is_folder(run.path) else nullcontext():  # else it trains at this moment
                _remove_folder(aside)
                folder.rename(aside)
        _remove_folder(aside)
    except OSError as error:
        raise build_write_error(error, folder) from None
    write_text(folder / _MARKER_NAME, "Made by `voxgraft demo`, which replaces this folder.\n")


def _remove_folder(folder: Path) -> None:
    if is_folder(folder):
        shutil.rmtree(folder)
