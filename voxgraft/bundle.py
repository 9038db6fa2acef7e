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
from voxgraft.diagnosing.runs import diagnose_run
from voxgraft.diagnosing.scrub import redact
from voxgraft.errors import VoxgraftError
from voxgraft.files import atomic_write, is_file, read_json, read_text, require_file, require_output_path
from voxgraft.graft_folder import GRAFT_CARD_NAME
from voxgraft.history import History
from voxgraft.journal import RunJournal
from voxgraft.results import Line, Table
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.training.step_folders import list_step_folders
from voxgraft.yaml_files import parse_yaml

__all__ = ["BundleResult", "bundle"]

REPORTED_PACKAGES = (
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
BUNDLE_README = """A bundle of a voxgraft run, for asking others for help.

It holds settings, cards, the journal, findings, versions, scores and curves. It holds no audio, no speech codes, no
texts and no weights. Of a message only its code and its numbers are kept, names that are not voxgraft's own are left
out, and home folders are masked as ~. Look through it before you send it: everything in it is JSON, text or a picture.
"""
ZIP_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
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
    require_file(run.settings)
    output = settings.output or Path(f"{run.path.resolve().name}-bundle.zip")
    require_output_path(output, overwrite=settings.overwrite)
    entries: dict[str, bytes] = {"README.txt": BUNDLE_README.encode()}
    missing: dict[str, str] = {}
    for name, make in _entry_builders(run):
        try:
            made = make()
        except VoxgraftError as error:
            missing[name] = error.code
            continue
        if made is None:
            missing[name] = "there is none"
        else:
            entries |= made
    with atomic_write(output, overwrite=settings.overwrite) as stream, zipfile.ZipFile(stream, "w") as packed:
        for name, data in entries.items():
            packed.writestr(zipfile.ZipInfo(name, ZIP_TIMESTAMP), data, zipfile.ZIP_DEFLATED)
    return BundleResult(output, {name: len(data) for name, data in entries.items()}, missing)


BundleEntries = dict[str, bytes] | None


def _entry_builders(run: RunFolder) -> Iterator[tuple[str, Callable[[], BundleEntries]]]:
    """What is gathered, one thing after another: one that fails does not hold up the others."""
    yield "run.json", lambda: _build_json_file("run.json", _load_known_settings(run))
    yield "card.json", lambda: _copy_json_file(run.card, "card.json")
    yield "graft.json", lambda: _copy_json_file(run.graft / GRAFT_CARD_NAME, "graft.json")
    yield "journal.jsonl", lambda: _build_journal_file(run)
    yield "steps.json", lambda: _build_steps_file(run)
    yield "findings.json", lambda: _build_findings_file(run)
    yield "scores", lambda: _build_scores_files(run)
    yield "curves", lambda: _build_curves_file(run)
    yield "versions.json", lambda: _build_json_file("versions.json", {"versions": _collect_package_versions()})


def _build_json_file(name: str, value: Any) -> BundleEntries:
    text = json.dumps(redact(value), ensure_ascii=False, indent=2, default=str) + "\n"
    return {name: text.encode("utf-8", "replace")}


def _load_known_settings(run: RunFolder) -> Any:
    """What run.yaml sets, as far as it is a setting of a run: whatever else stands in it is its user's own."""
    return _keep_known_keys(parse_yaml(read_text(run.settings), run.settings), RunSettings)


def _keep_known_keys(values: Any, kind: type[BaseModel]) -> Any:
    if not isinstance(values, Mapping):
        return None
    found: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if name in values:
            inner = field.annotation if isinstance(field.annotation, type) else None
            nested = inner is not None and issubclass(inner, BaseModel)
            found[name] = _keep_known_keys(values[name], inner) if nested and inner else values[name]
    return found


def _copy_json_file(path: Path, name: str) -> BundleEntries:
    return _build_json_file(name, read_json(path)) if is_file(path) else None


def _build_journal_file(run: RunFolder) -> BundleEntries:
    entries = RunJournal(run.journal).read()
    lines = (json.dumps(redact(entry), ensure_ascii=False) + "\n" for entry in entries)
    return {"journal.jsonl": "".join(lines).encode("utf-8", "replace")} if entries else None


def _build_steps_file(run: RunFolder) -> BundleEntries:
    steps = [
        {"step": folder.step, "files": {path.name: path.stat().st_size for path in sorted(folder.path.iterdir())}}
        for folder in list_step_folders(run)
    ]
    return _build_json_file("steps.json", steps) if steps else None


def _build_findings_file(run: RunFolder) -> BundleEntries:
    found = diagnose_run(DiagnoseSettings(checkpoint=run.path, report=False)).to_json()
    return _build_json_file("findings.json", found)


def _build_scores_files(run: RunFolder) -> BundleEntries:
    paths = sorted(run.eval.glob(f"*/{SCORES_NAME}")) if run.eval.is_dir() else []
    found: dict[str, bytes] = {}
    for number, path in enumerate(paths):
        found |= _build_json_file(f"scores-{number}.json", read_json(path)) or {}
    return found or None


def _build_curves_file(run: RunFolder) -> BundleEntries:
    history = History.of(RunJournal(run.journal).read())
    if not history.steps:
        return None
    from voxgraft.pictures import render_run_curves

    return {"curves.png": render_run_curves(history, "a run of voxgraft")["png"]}


def _collect_package_versions() -> dict[str, str]:
    found = {"voxgraft": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in REPORTED_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
