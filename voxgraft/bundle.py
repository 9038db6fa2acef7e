"""The verb `bundle`: one small zip of a run to show to others. No audio, no texts, no weights; home folders masked."""

from __future__ import annotations

import json
import platform
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from voxgraft import __version__
from voxgraft.checkup_settings import BundleSettings, DiagnoseSettings
from voxgraft.diagnosing.runs import look_at_run
from voxgraft.diagnosing.scrub import scrubbed
from voxgraft.errors import VoxgraftError
from voxgraft.files import existing_file, is_file, read_json, read_text, replacing, require_free
from voxgraft.graft_folder import CARD_NAME
from voxgraft.history import History
from voxgraft.journal import Journal
from voxgraft.results import Line, Table
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.training.step_folders import step_folders
from voxgraft.yaml_files import parse_yaml

__all__ = ["BundleResult", "bundle"]

PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "sentencepiece",
    "pydantic",
    "matplotlib",
    "soundfile",
    "peft",
)
SCORES_NAME = "scores.json"
README = """A bundle of a voxgraft run, for asking others for help.

It holds settings, cards, the journal, findings, versions, scores and curves. It holds no audio, no speech codes, no
texts and no weights. Of a message only its code and its numbers are kept, names that are not voxgraft's own are left
out, and home folders are masked as ~. Look through it before you send it: everything in it is JSON, text or a picture.
"""
DATE = (1980, 1, 1, 0, 0, 0)
"""The same run always gives the same zip."""


@dataclass(frozen=True, slots=True)
class BundleResult:
    """What is in the zip, and what could not be taken."""

    output: Path
    entries: dict[str, int]
    """Bytes by name."""
    missing: dict[str, str]
    """What is not in it, and why."""
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"output": str(self.output), "entries": self.entries, "missing": self.missing}

    def lines(self) -> list[Line]:
        rows = tuple((name, f"{size:,}") for name, size in self.entries.items())
        lines: list[Line] = [Table(("in the bundle", "bytes"), rows)]
        lines += [f"not in it: {name} ({why})" for name, why in self.missing.items()]
        return [*lines, "no audio, no texts, no weights; home folders are masked", f"written to {self.output}"]


def bundle(settings: BundleSettings) -> BundleResult:
    """Gather what others need to help with a run. The run is only read, whatever state it is in."""
    run = RunFolder(settings.run)
    existing_file(run.settings)
    output = settings.output or Path(f"{run.path.resolve().name}-bundle.zip")
    require_free(output, overwrite=settings.overwrite)
    entries: dict[str, bytes] = {"README.txt": README.encode()}
    missing: dict[str, str] = {}
    for name, make in _makers(run):
        try:
            made = make()
        except VoxgraftError as error:
            missing[name] = error.code
            continue
        if made is None:
            missing[name] = "there is none"
        else:
            entries |= made
    with replacing(output, overwrite=settings.overwrite) as stream, zipfile.ZipFile(stream, "w") as packed:
        for name, data in entries.items():
            packed.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_DEFLATED)
    return BundleResult(output, {name: len(data) for name, data in entries.items()}, missing)


Made = dict[str, bytes] | None


def _makers(run: RunFolder) -> Iterator[tuple[str, Callable[[], Made]]]:
    """What is gathered, one thing after another: one that fails does not hold up the others."""
    yield "run.json", lambda: _document("run.json", _settings(run))
    yield "card.json", lambda: _file(run.card, "card.json")
    yield "graft.json", lambda: _file(run.graft / CARD_NAME, "graft.json")
    yield "journal.jsonl", lambda: _journal(run)
    yield "steps.json", lambda: _steps(run)
    yield "findings.json", lambda: _findings(run)
    yield "scores", lambda: _scores(run)
    yield "curves", lambda: _curves(run)
    yield "versions.json", lambda: _document("versions.json", {"versions": _versions()})


def _document(name: str, value: Any) -> Made:
    text = json.dumps(scrubbed(value), ensure_ascii=False, indent=2, default=str) + "\n"
    return {name: text.encode("utf-8", "replace")}


def _settings(run: RunFolder) -> Any:
    """What run.yaml sets, as far as it is a setting of a run: whatever else stands in it is its user's own."""
    return _known(parse_yaml(read_text(run.settings), run.settings), RunSettings)


def _known(values: Any, kind: type[BaseModel]) -> Any:
    if not isinstance(values, Mapping):
        return None
    found: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if name in values:
            inner = field.annotation if isinstance(field.annotation, type) else None
            nested = inner is not None and issubclass(inner, BaseModel)
            found[name] = _known(values[name], inner) if nested and inner else values[name]
    return found


def _file(path: Path, name: str) -> Made:
    return _document(name, read_json(path)) if is_file(path) else None


def _journal(run: RunFolder) -> Made:
    entries = Journal(run.journal).read()
    lines = (json.dumps(scrubbed(entry), ensure_ascii=False) + "\n" for entry in entries)
    return {"journal.jsonl": "".join(lines).encode("utf-8", "replace")} if entries else None


def _steps(run: RunFolder) -> Made:
    steps = [
        {"step": folder.step, "files": {path.name: path.stat().st_size for path in sorted(folder.path.iterdir())}}
        for folder in step_folders(run)
    ]
    return _document("steps.json", steps) if steps else None


def _findings(run: RunFolder) -> Made:
    found = look_at_run(DiagnoseSettings(checkpoint=run.path, report=False)).to_json()
    return _document("findings.json", found)


def _scores(run: RunFolder) -> Made:
    paths = sorted(run.eval.glob(f"*/{SCORES_NAME}")) if run.eval.is_dir() else []
    found: dict[str, bytes] = {}
    for number, path in enumerate(paths):
        found |= _document(f"scores-{number}.json", read_json(path)) or {}
    return found or None


def _curves(run: RunFolder) -> Made:
    history = History.of(Journal(run.journal).read())
    if not history.steps:
        return None
    from voxgraft.pictures import curves_of

    return {"curves.png": curves_of(history, "a run of voxgraft")["png"]}


def _versions() -> dict[str, str]:
    found = {"voxgraft": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
