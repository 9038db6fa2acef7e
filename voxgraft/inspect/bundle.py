"""The verb `bundle`: one small zip of a run to show to others. No audio, no texts, no weights; home folders masked."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from voxgraft import __version__
from voxgraft.checkpoints.steps import list_step_folders
from voxgraft.config.commands import BundleSettings, DiagnoseSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import atomic_write, is_file, read_json, read_text, require_file, require_output_path
from voxgraft.core.journal import History, RunJournal
from voxgraft.core.results import Line, Table
from voxgraft.core.run import RunFolder
from voxgraft.core.yaml_files import parse_yaml
from voxgraft.graft.folder import GRAFT_CARD_NAME
from voxgraft.inspect.check import CHECK_TOPICS
from voxgraft.inspect.diagnose import diagnose_run
from voxgraft.inspect.new_rows import ROW_KINDS

REDACTED = "(left out)"
SAFE_KEYS = frozenset(
    "kind code level state word family language languages mode format schedule precision device init tag "
    "tensor layer role repairs single_clip_speakers emotion_from method".split()
)
"""Keys under which a text is a word or two of ours, or the name of a tensor."""
PATH_KEYS = frozenset("base checkpoint tokenizer".split())
"""Keys under which a path stands: its last name is kept."""
MESSAGE_KEYS = frozenset(
    "found expected where why error message sentence reason commands cure what size not_checked not_heard".split()
)
"""Keys under which people are told something, which may quote anything."""
PRIVATE_KEYS = frozenset(
    "text text_ids utterances clips codes heard said phones sample_texts voice voices speaker speakers audio "
    "by_speaker recordings seen_in_training rare_words_in_training spoken holder host user listener recognizer".split()
)
"""Keys under which texts, sound, or names of people stand. A plain number under one of them is kept."""
SAFE_WORDS = frozenset(
    [*ROW_KINDS, *(topic.name for topic in CHECK_TOPICS), "checksums of the text tables", "rows one by one"]
)
_HASH_PATTERN = re.compile(r"[0-9a-f]{40,64}")
_SHORT_WORDS_PATTERN = re.compile(r"[\w.:+\[\]-]{1,60}(?: \w{1,12})?")
_VERSION_PATTERN = re.compile(r"[\w.+-]{1,120}")
_LANGUAGE_CODE_PATTERN = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]{1,8})?")
_ENCODED_TEXT_CODE = "text-spelled"
"""The finding whose numbers are a text: its ids."""
_MAX_MESSAGE_NUMBERS = 10
"""A message of ours has no more; more are somebody's ids."""
_KEY_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_TENSOR_NAME_PATTERN = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.(?:weight|bias)")
_NUMBER_PATTERN = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,7})(?:\.\d+)?(?:e[-+]?\d+)?%?(?![\w])")
"""No more than seven digits in a row: longer ones are a telephone's."""
_TENSOR_OR_NUMBER_PATTERN = re.compile(rf"{_TENSOR_NAME_PATTERN.pattern}|{_NUMBER_PATTERN.pattern}")
_HOME_FOLDER_PATTERN = re.compile(
    r"(?:/home|/Users|/teamspace/studios|/mnt/c/Users)/[^/\\'\":;,)]+|[A-Za-z]:\\+Users\\+[^/\\'\":;,)]+"
    r"|/root(?=[/\s'\":;,)]|$)"
)
"""A user's name may have spaces in it: up to the next separator all of it goes."""
_SECRET_PATTERN = re.compile(r"(?<=://)[^/\s@]+@|\b(?:hf_|sk-|gh[pousr]_)\S+")
_MIN_USER_NAME_LENGTH = 3


def redact(value: Any, key: str = "") -> Any:
    """A document without what is private. `key` is where the value stands."""
    if isinstance(value, Mapping):
        return _redact_mapping(value, key)
    if isinstance(value, list | tuple):
        return [redact(entry, key) for entry in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _redact_text(str(value), key)


def mask_personal_paths(text: str) -> str:
    """A text with `~` for every home folder, USER for the user's own name in a path, and no passwords."""
    text = _SECRET_PATTERN.sub("(secret)", text)
    for home in _home_folders():
        text = text.replace(home, "~")
    text = _HOME_FOLDER_PATTERN.sub("~", text)
    for name in _user_names():
        text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?=[/\\]|$)", "USER", text)
    return text


def extract_numbers(text: str) -> str:
    """What is told in a message without its words: numbers and names of tensors, in their order."""
    told = _TENSOR_OR_NUMBER_PATTERN.findall(text)
    return " … ".join(["", *told, ""]).strip() if 0 < len(told) <= _MAX_MESSAGE_NUMBERS else "…"


def _redact_mapping(value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for number, (own, entry) in enumerate(value.items(), start=1):
        name = str(own)
        if not (
            name in SAFE_WORDS
            or _KEY_PATTERN.fullmatch(name)
            or _TENSOR_NAME_PATTERN.fullmatch(name)
            or _NUMBER_PATTERN.fullmatch(name)
        ):
            name = f"(name {number})"
        is_text = name in PRIVATE_KEYS or (name == "found" and value.get("code") == _ENCODED_TEXT_CODE)
        if is_text and not (entry is None or isinstance(entry, bool | int | float)):
            entries[name] = REDACTED
        elif key == "versions" and isinstance(entry, str) and _VERSION_PATTERN.fullmatch(entry):
            entries[name] = entry
        else:
            entries[name] = redact(entry, key if key in MESSAGE_KEYS else name)
    return entries


def _redact_text(text: str, key: str) -> str:
    if text in SAFE_WORDS or not text or _HASH_PATTERN.fullmatch(text) or _NUMBER_PATTERN.fullmatch(text):
        return text
    if key in MESSAGE_KEYS:
        return extract_numbers(text)
    if key == "set" and _LANGUAGE_CODE_PATTERN.fullmatch(text):
        return text
    if key in PATH_KEYS:
        return re.split(r"[/\\]", mask_personal_paths(text))[-1]
    return mask_personal_paths(text) if key in SAFE_KEYS and _SHORT_WORDS_PATTERN.fullmatch(text) else REDACTED


def _home_folders() -> list[str]:
    """The user's own home, as it is called and as it really is; the longest first."""
    found: set[str] = set()
    with contextlib.suppress(RuntimeError):
        home = str(Path.home())
        found = {home, os.path.realpath(home)}
    return sorted((home for home in found if home.count("/") > 1 or "\\" in home), key=len, reverse=True)


def _user_names() -> list[str]:
    with contextlib.suppress(OSError, KeyError, ImportError):
        name = getpass.getuser()
        return [name] if len(name) >= _MIN_USER_NAME_LENGTH and name != "root" else []
    return []


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
    from voxgraft.training.plots import render_run_curves

    return {"curves.png": render_run_curves(history, "a run of voxgraft")["png"]}


def _collect_package_versions() -> dict[str, str]:
    found = {"voxgraft": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in REPORTED_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
