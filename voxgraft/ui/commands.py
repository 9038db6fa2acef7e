"""From the values of a form to a command line: the same settings, names and defaults as in a terminal.

Needs no gradio. A value that the run or a default has already is left out; paths are accepted only inside the roots.
Also here: what a project's run.yaml says, read leniently, because forms are filled from it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS, CliCommand
from voxgraft.config.base import SettingField, iter_setting_fields, parse_settings, read_settings_values
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import make_path_relative, text_lines
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.data.manifest import MANIFEST_NAME, resolve_manifest_path
from voxgraft.models import resolve_base_folder
from voxgraft.ui.files import Roots, file_stamp
from voxgraft.ui.jobs import UPLOADS_FOLDER

# Settings that name a program: never typed freely in a browser.
EXECUTABLE_SETTINGS = frozenset(
    {"recognizer", "train.recognizer", "evaluate.recognizer", "pip_flags", "python", "environment", "checkout"}
)
# Paths that may also be the word `tiny`.
TINY_BASE_SETTINGS = {("new", "base"), ("diagnose", "base"), ("repair", "base")}
# Folder of the clips in projects of earlier versions.
LEGACY_CLIPS_FOLDER = "clips"


def find_command(name: str) -> CliCommand:
    """The command of that name, which must exist."""
    return next(verb for verb in COMMANDS if verb.name == name)


def effective_values(verb: CliCommand, project: Path | None) -> dict[str, Any]:
    """Every setting of a command if nothing is given: the run's own value, else the default."""
    values = {leaf.key: leaf.default for leaf in verb.leaves()}
    if project is not None and issubclass(verb.settings, RunSettings):
        settings = load_run_settings(project)
        values.update({key: attrgetter(key)(settings) for key in _run_keys() if key in values})
    return values


@dataclass(frozen=True, slots=True)
class CommandBuilder:
    """Builds the argv of a command from the values of a form, validated as the command line validates them."""

    verb: CliCommand
    roots: Roots
    json: bool = False
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Words to choose from, by key, where the setting itself leaves them free."""
    path_keys: Collection[str] = ()
    """Texts that may be the path of a file, beside those that always are."""

    def words(self, values: Mapping[str, Any], project: Path | None, fixed: Mapping[str, Any]) -> list[str]:
        """The argv after `voxgraft`. `fixed` values are ours; `values` were typed by somebody."""
        own = effective_values(self.verb, project)
        words_of: dict[str, list[str]] = {}
        for leaf in self.verb.leaves():
            if leaf.key in fixed:
                words_of[leaf.key] = self.plain(leaf, fixed[leaf.key])
            elif leaf.key in values:
                given, known, _ = self._judged(leaf, values[leaf.key], own[leaf.key], project)
                words_of[leaf.key] = given if leaf.field.is_required() or given != known else []
        typed: dict[str, Any] = {}
        for leaf in self.verb.leaves():
            if words := words_of.get(leaf.key):
                single = words[0] == "yes" if leaf.field.annotation is bool else words[-1]
                typed[leaf.key] = list(words) if leaf.is_list else single
        if project is not None and issubclass(self.verb.settings, RunSettings) and typed.get("run"):
            typed["run"] = str(project)  # the working folder of the command may be another one
        # Raises the errors that the command itself would raise for its settings.
        resolve_settings(CommandLine(self.verb, typed, None, json=self.json, dry_run=False, quiet=False))
        places: list[str] = []
        flags: list[str] = []
        for leaf in self.verb.leaves():
            words = words_of.get(leaf.key, [])
            name = self.verb.flag_names(leaf)[0]
            if leaf.key in self.verb.positional:
                places += words
            elif leaf.field.annotation is bool and words:
                off = f"{name}=no" if "." in name else name.replace("--", "--no-", 1)
                flags.append(name if words[0] == "yes" else off)
            elif words and any(word.startswith("-") for word in words):
                flags += [f"{name}={word}" for word in words]
            elif words:
                flags += [name, *words]
        flags += ["--json"] if self.json else []
        if any(word.startswith("-") for word in places):
            # After `--` nothing is a flag any more.
            return [*self.verb.name.split(), *flags, "--", *places]
        return [*self.verb.name.split(), *places, *flags]

    def changed(self, values: Mapping[str, Any], project: Path, fixed: Mapping[str, Any]) -> dict[str, str]:
        """The settings of a run that are not as its run.yaml has them, each as a YAML text; paths seen from the run.

        An empty value means what the run has, so it is none of them.
        """
        self.words(values, project, fixed)
        own = effective_values(self.verb, project)
        run_keys = _run_keys()
        found = {}
        for leaf in self.verb.leaves():
            if leaf.key not in values or leaf.key not in run_keys:
                continue
            words, known, ours = self._judged(leaf, values[leaf.key], own[leaf.key], project)
            if not words or words == known:
                continue
            is_bare = leaf.is_number or bool in (leaf.field.annotation, *get_args(leaf.field.annotation))
            texts = []
            for word in words:
                if leaf.is_path and not (word in ours and Path(word).is_absolute()):
                    inside = Path(os.path.relpath(self.roots.resolve_inside(word)))
                    word = str(make_path_relative(project, inside))
                mantissa, mark, exponent = word.partition("e")
                # YAML 1.1 reads 1e-05 as a text; 1.0e-05 is a number.
                number = f"{mantissa}.0e{exponent}" if mark and "." not in mantissa else word
                bare = {"yes": "true", "no": "false"}.get(word, number)
                texts.append(bare if is_bare else json.dumps(word, ensure_ascii=False))
            found[leaf.key] = f"[{', '.join(texts)}]" if leaf.is_list else "".join(texts[:1])
        return found

    def plain(self, leaf: SettingField, value: Any) -> list[str]:
        """A value as command line words; none if it is empty."""
        if value is None or value == "" or value == [] or value == ():
            return []
        if isinstance(value, bool):
            return ["yes" if value else "no"]
        if isinstance(value, Path):
            return [self.roots.short((self.roots.home / value).resolve())]
        if isinstance(value, int | float):
            return [str(int(value)) if float(value).is_integer() else repr(float(value))]
        if isinstance(value, str) and leaf.is_list:
            return [line.strip() for line in text_lines(value) if line.strip()]
        if isinstance(value, list | tuple):
            return [word for item in value for word in self.plain(leaf, item)]
        return [str(value)]

    def _judged(
        self, leaf: SettingField, value: Any, own: Any, project: Path | None
    ) -> tuple[list[str], list[str], list[str]]:
        """Validated words of a value, those of the run's `own` value, and all that pass because they are the run's.

        Paths must be inside the roots, choices among the known.
        """
        words, own_words = self.plain(leaf, value), self.plain(leaf, own)
        ours = [*own_words]
        if leaf.is_path and project is not None and (settings := _load_if_valid(project)) is not None:
            # Paths that the form of this setting is filled with because the run names them, wherever they are.
            base, dataset = run_base_folder(project), run_dataset_folder(project)
            named = {
                "base": [base] if base is not None else [],
                "dataset": [dataset],
                "manifest": [dataset],
                "sources": [*settings.data.sources],
                "texts": [*settings.texts, dataset / MANIFEST_NAME],
            }.get(leaf.key, [])
            ours += [*(self.roots.short((self.roots.home / path).resolve()) for path in named), *map(str, named)]
        typed = [word for word in words if word not in ours]
        if typed and leaf.key in EXECUTABLE_SETTINGS and leaf.key not in self.choices:
            raise ConfigError("ui-executed", f"`{leaf.key}` names a program, which cannot be set in the browser")
        known = self.choices.get(leaf.key)
        if known is not None and (other := [word for word in typed if word not in known]):
            raise ConfigError("config-value", f"`{leaf.key}` is {other[0]!r}", expected=", ".join(map(str, known)))
        is_path = leaf.is_path or (leaf.key in self.path_keys and any("/" in word or "." in word for word in typed))
        if is_path:
            passed = {*ours, "tiny"} if (self.verb.name, leaf.key) in TINY_BASE_SETTINGS else {*ours}
            words = [word if word in passed else self.roots.short(self.roots.resolve_inside(word)) for word in words]
        return words, own_words, ours


def format_command(argv: Sequence[str]) -> str:
    """A command as somebody would type it."""
    return shlex.join(["voxgraft", *argv])


def run_command_in_process(argv: Sequence[str]) -> dict[str, Any]:
    """The result of a quick command as JSON values. It runs in this process, whose working folder is the first root."""
    line = parse_command_line(list(argv), COMMANDS)
    assert isinstance(line, CommandLine), f"no command: {argv}"
    return line.verb.load()(resolve_settings(line)).to_json()


@cache
def _run_keys() -> frozenset[str]:
    """Dotted keys of the settings that run.yaml may hold."""
    return frozenset(leaf.key for leaf in iter_setting_fields(RunSettings))


def load_run_settings(project: Path) -> RunSettings:
    """The settings in the project's run.yaml."""
    path = project / RUN_FILE
    if not (stamp := file_stamp(path)):
        raise FileError("file-missing", f"{project} has no {RUN_FILE}", where=path)
    return _load_run_settings_cached(path, stamp)


@lru_cache(maxsize=256)  # Home shows so many runs
def _load_run_settings_cached(path: Path, _stamp: str) -> RunSettings:
    """Parsed once per change of the file: a page asks two dozen times when a project is opened."""
    return parse_settings(RunSettings, read_settings_values(RunSettings, path), path)


def _load_if_valid(project: Path) -> RunSettings | None:
    try:
        return load_run_settings(project)
    except VoxgraftError:
        return None


def run_language(project: Path) -> str | None:
    """The new language, if run.yaml names it."""
    settings = _load_if_valid(project)
    return settings.language if settings else None


def run_base_folder(project: Path) -> Path | None:
    """The base's folder, if run.yaml names it."""
    settings = _load_if_valid(project)
    return resolve_base_folder(settings.base) if settings and settings.base is not None else None


def run_base_word(project: Path) -> str | Path | None:
    """The base as run.yaml names it if that is a word, such as `tiny` for the built-in one; else its folder."""
    settings = _load_if_valid(project)
    base = settings.base if settings else None
    return str(base) if base is not None and resolve_base_folder(base) != base else base


def run_dataset_folder(project: Path) -> Path:
    """The project's own dataset, whether it exists or not: the same place that `go` and `prepare` use."""
    settings = _load_if_valid(project)
    named = settings.data.dataset if settings else None
    folder = resolve_manifest_path(named, RunFolder(project).data).parent
    old = project / LEGACY_CLIPS_FOLDER
    is_old = named is None and not (folder / MANIFEST_NAME).is_file() and (old / MANIFEST_NAME).is_file()
    return old if is_old else folder


def recording_sources(project: Path) -> list[Path] | None:
    """Where recordings come from: what run.yaml names, or the folder of uploads if it exists."""
    settings = _load_if_valid(project)
    folder = project / UPLOADS_FOLDER
    return list(settings.data.sources if settings else ()) or ([folder] if folder.is_dir() else None)


def default_texts(project: Path) -> list[Path] | None:
    """Texts to learn the language from if run.yaml names none: those of the dataset."""
    settings = _load_if_valid(project)
    if settings is None or settings.texts:
        return None
    manifest = run_dataset_folder(project) / MANIFEST_NAME
    return [manifest] if manifest.is_file() else None


def find_grown_tokenizer(project: Path) -> Path | None:
    """The tokenizer of the project's graft."""
    graft = RunFolder(project).graft
    return next((path for path in (graft / "tokenizer.json", graft / "tokenizer.model") if path.is_file()), None)
