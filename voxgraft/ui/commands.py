"""From the values of a form to the words of a command: the same settings, names and defaults as on the command line.

Needs no gradio. A value that a run or a default has already is not said again; paths are only taken inside the roots.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from voxgraft.cli.flags import CommandLine, parse_command_line
from voxgraft.cli.layers import resolve_settings
from voxgraft.cli.verbs import COMMANDS, CliCommand
from voxgraft.config import SettingField, Settings
from voxgraft.errors import ConfigError
from voxgraft.files import make_path_relative, text_lines
from voxgraft.run_settings import RunSettings
from voxgraft.ui import reading
from voxgraft.ui.roots import Roots

EXECUTABLE_SETTINGS = frozenset(
    {"listener", "train.listener", "evaluate.recogniser", "pip_flags", "python", "environment", "checkout"}
)
"""Settings that name a program: never free to type here."""
TINY_BASE_SETTINGS = {("new", "base"), ("diagnose", "base"), ("repair", "base")}
"""Paths for which the word `tiny` stands too."""


def find_command(name: str) -> CliCommand:
    """The verb of that name; one that is not there is our bug."""
    return next(verb for verb in COMMANDS if verb.name == name)


def effective_values(verb: CliCommand, project: Path | None) -> dict[str, Any]:
    """Every setting of a verb as it counts if nothing is said: the run's own value, else the default."""
    values = {leaf.key: leaf.default for leaf in verb.leaves()}
    if project is not None and issubclass(verb.settings, RunSettings):
        values.update(
            (key, value) for key, value in _flatten_settings(reading.load_run_settings(project)) if key in values
        )
    return values


@dataclass(frozen=True, slots=True)
class CommandBuilder:
    """What a form makes of its values: the words of the command, checked as the command line would check them."""

    verb: CliCommand
    roots: Roots
    json: bool = False
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Words to choose from, by key, where the setting itself leaves them free."""
    path_keys: Collection[str] = ()
    """Texts that may be the path of a file, beside those that always are."""

    def words(self, values: Mapping[str, Any], project: Path | None, fixed: Mapping[str, Any]) -> list[str]:
        """The words after `voxgraft`. `fixed` values are ours; `values` were typed by somebody."""
        own = effective_values(self.verb, project)
        words_of = {}
        for leaf in self.verb.leaves():
            if leaf.key in fixed:
                words_of[leaf.key] = self.plain(leaf, fixed[leaf.key])
            elif leaf.key in values:
                known = self.plain(leaf, own[leaf.key])
                given = self._judged(
                    leaf, self.plain(leaf, values[leaf.key]), [*known, *self._paths_named_by_run(leaf, project)]
                )
                words_of[leaf.key] = given if leaf.field.is_required() or given != known else []
        self._check(words_of, project)
        return [*self.verb.name.split(), *self._line(words_of)]

    def changed(self, values: Mapping[str, Any], project: Path, fixed: Mapping[str, Any]) -> dict[str, str]:
        """The settings of a run that are not as its run.yaml has them, each as a YAML text; paths seen from the run.

        An empty value means what the run has, so it is none of them.
        """
        self.words(values, project, fixed)
        own = effective_values(self.verb, project)
        run_keys = dict(_flatten_settings(RunSettings()))
        found = {}
        for leaf in self.verb.leaves():
            if leaf.key not in values or leaf.key not in run_keys:
                continue
            known = self.plain(leaf, own[leaf.key])
            ours = [*known, *self._paths_named_by_run(leaf, project)]
            words = self._judged(leaf, self.plain(leaf, values[leaf.key]), ours)
            if not words or words == known:
                continue
            if leaf.is_path:
                words = [self._relative_to_run(word, ours, project) for word in words]
            found[leaf.key] = _to_yaml(leaf, words)
        return found

    def plain(self, leaf: SettingField, value: Any) -> list[str]:
        """A value as the words that stand for it; none where it is empty."""
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

    def _judged(self, leaf: SettingField, words: list[str], own: Collection[str]) -> list[str]:
        """Typed words: paths must be inside, chosen words among the choices. What is the run's `own` is not judged."""
        typed = [word for word in words if word not in own]
        if typed and leaf.key in EXECUTABLE_SETTINGS and leaf.key not in self.choices:
            raise ConfigError("ui-executed", f"`{leaf.key}` names a program, and nothing typed here is executed")
        known = self.choices.get(leaf.key)
        if known is not None and (other := [word for word in typed if word not in known]):
            raise ConfigError("config-value", f"`{leaf.key}` is {other[0]!r}", expected=", ".join(map(str, known)))
        is_path = leaf.is_path or (leaf.key in self.path_keys and any("/" in word or "." in word for word in typed))
        if not is_path:
            return words
        passed = {*own, "tiny"} if (self.verb.name, leaf.key) in TINY_BASE_SETTINGS else {*own}
        return [word if word in passed else self.roots.short(self.roots.resolve_inside(word)) for word in words]

    def _paths_named_by_run(self, leaf: SettingField, project: Path | None) -> list[str]:
        """Paths that forms of this setting are filled with because the run names them, wherever they are."""
        if project is None or not leaf.is_path:
            return []
        found = [self.roots.short((self.roots.home / path).resolve()) for path in _run_paths_for_key(leaf.key, project)]
        return [*found, *map(str, _run_paths_for_key(leaf.key, project))]

    def _relative_to_run(self, word: str, own: Collection[str], project: Path) -> str:
        """A path as run.yaml states it."""
        if word in own and Path(word).is_absolute():
            return word
        return str(make_path_relative(project, Path(os.path.relpath(self.roots.resolve_inside(word)))))

    def _check(self, words_of: Mapping[str, list[str]], project: Path | None) -> None:
        """Raise what the verb itself would say of its settings."""
        leaves = {leaf.key: leaf for leaf in self.verb.leaves()}
        values: dict[str, Any] = {}
        for key, words in words_of.items():
            if words:
                is_switch = leaves[key].field.annotation is bool
                single = words[0] == "yes" if is_switch else words[-1]
                values[key] = list(words) if leaves[key].is_list else single
        if project is not None and issubclass(self.verb.settings, RunSettings) and values.get("run"):
            values["run"] = str(project)  # the server may stand in another folder than the command will
        resolve_settings(CommandLine(self.verb, values, None, json=self.json, dry_run=False, quiet=False))

    def _line(self, words_of: Mapping[str, list[str]]) -> list[str]:
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
            return [*flags, "--", *places]  # after it nothing is a flag any more
        return [*places, *flags]


def format_command(argv: Sequence[str]) -> str:
    """A command as somebody would type it."""
    return shlex.join(["voxgraft", *argv])


def run_command_in_process(argv: Sequence[str]) -> dict[str, Any]:
    """What a quick verb has to say, for machines. It runs in this process, which stands in the first root."""
    line = parse_command_line(list(argv), COMMANDS)
    assert isinstance(line, CommandLine), f"no verb: {argv}"
    return line.verb.load()(resolve_settings(line)).to_json()


def _run_paths_for_key(key: str, project: Path) -> list[Path]:
    """What a run reads, also outside the roots, because whoever wrote its run.yaml said so."""
    if key == "base":
        found = reading.run_base_folder(project)
        return [found] if found is not None else []
    return reading.paths_named_by_run(project).get(key, [])


def _to_yaml(leaf: SettingField, words: Sequence[str]) -> str:
    """Words as YAML on one line: numbers and switches bare, texts in quotes, nothing where it is empty."""
    is_bare = leaf.is_number or bool in (leaf.field.annotation, *get_args(leaf.field.annotation))
    bare = {"yes": "true", "no": "false"}
    texts = [bare.get(word, _yaml_number(word)) if is_bare else json.dumps(word, ensure_ascii=False) for word in words]
    return f"[{', '.join(texts)}]" if leaf.is_list else "".join(texts[:1])


def _yaml_number(word: str) -> str:
    """YAML 1.1 takes 1e-05 for a word; 1.0e-05 is a number."""
    mantissa, mark, exponent = word.partition("e")
    return word if not mark or "." in mantissa else f"{mantissa}.0e{exponent}"


def _flatten_settings(settings: Settings, prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        pairs += (
            _flatten_settings(value, f"{prefix}{name}.") if isinstance(value, Settings) else [(prefix + name, value)]
        )
    return pairs
