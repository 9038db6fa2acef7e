"""Settings models as flags: builds the cyclopts app from the table of verbs and reads a command line with it.

cyclopts only splits the line and prints help. Values stay as they were typed; `config.py` alone judges them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from voxgraft import __version__
from voxgraft.cli.commands import COMMAND_GROUPS, CliCommand
from voxgraft.config.base import SettingField, SettingOrigin, Settings, deep_merge, parse_settings, read_settings_values
from voxgraft.config.renames import RENAMED_SETTINGS
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError, find_nearest_name
from voxgraft.core.files import path_exists
from voxgraft.core.run import RUN_FILE

COMMAND_LINE_ORIGIN = "command line"
COMMON_FLAGS = ("--config", "--dry-run", "--json", "--quiet", "--help")


def translate_usage_error(error: CycloptsError, verbs: Sequence[CliCommand]) -> ConfigError:
    """The same fault as one of our errors."""
    words = " ".join(error.command_chain or ())
    verb = next((verb for verb in verbs if verb.name == words), None)
    match error:
        case UnknownCommandError():
            return _unknown_command_error(words, (error.unused_tokens or [""])[0], verbs)
        case UnknownOptionError():
            return _unknown_flag_error(error.token.keyword or error.token.value, verb)
        case CoercionError() if error.token is not None:
            found = f"`{error.token.keyword}` is {error.token.value!r}"
            return ConfigError("config-value", found, expected="yes or no", where=COMMAND_LINE_ORIGIN)
        case MissingArgumentError():
            name = error.keyword or (error.argument.name if error.argument else "a flag")
            return _usage_error(f"`{name}` has no value", verb)
        case RepeatArgumentError():
            return _usage_error(f"`{error.token.keyword}` is given twice", verb)
        case UnusedCliTokensError():
            return _usage_error(f"{' '.join(map(repr, error.unused_tokens or ()))} is more than the verb takes", verb)
    return _usage_error(str(error), verb)


def _unknown_command_error(group: str, word: str, verbs: Sequence[CliCommand]) -> ConfigError:
    start = f"{group} " if group else ""
    names = [verb.name.removeprefix(start).split(" ")[0] for verb in verbs if verb.name.startswith(start)]
    names = list(dict.fromkeys(names))
    hint = find_nearest_name(word, names)
    cure = f"did you mean `voxgraft {start}{hint}`?" if hint else f"verbs: {', '.join(names)}."
    return ConfigError("usage-unknown-verb", f"there is no verb `{start}{word}`", where=COMMAND_LINE_ORIGIN, cure=cure)


def _unknown_flag_error(flag: str, verb: CliCommand | None) -> ConfigError:
    flag = flag.partition("=")[0]
    known = list(COMMON_FLAGS)
    if verb is not None:
        known += [name for leaf in verb.leaves() for name in verb.flag_names(leaf)]
    new = RENAMED_SETTINGS.get(flag.lstrip("-").replace("-", "_"), "").replace("_", "-")
    hint = find_nearest_name(flag.replace("_", "-"), known)
    cure = f"did you mean `{hint}`?" if hint else _help_hint(verb)
    if f"--{new}" in known:
        cure = f"it was renamed: use `--{new}`."
    return ConfigError("usage-unknown-flag", f"there is no flag `{flag}`", where=COMMAND_LINE_ORIGIN, cure=cure)


def _usage_error(found: str, verb: CliCommand | None) -> ConfigError:
    expected = verb.usage.removeprefix("Usage: ") if verb else ""
    return ConfigError("usage", found, expected=expected, where=COMMAND_LINE_ORIGIN, cure=_help_hint(verb))


def _help_hint(verb: CliCommand | None) -> str:
    return f"see `voxgraft {verb.name} --help`." if verb else "see `voxgraft --help`."


APP_SUMMARY = (
    "Teach a pretrained text-to-speech language model a new language, and prove that it still speaks the old ones."
)
EXIT_CODES_HELP = (
    "Exit codes: 0 fine, 1 the verdict is no, 2 bad input or usage, 70 a bug in voxgraft, 130 interrupted."
)

_COMMON_GROUP = Group("Common to all verbs", sort_key=1_000)  # the last panel of a help page


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was typed: the verb, its settings by dotted key as texts, and the common options."""

    verb: CliCommand
    values: dict[str, Any]
    config: Path | None
    json: bool
    dry_run: bool
    quiet: bool


def parse_command_line(words: Sequence[str], verbs: Sequence[CliCommand]) -> CommandLine | Callable[[], None]:
    """What was typed, or the function that prints the help or version that was asked for."""
    words = _rewrite_help_words(words, verbs)
    app, by_command = build_cli_app([verb for verb in verbs if _names_command(words, verb)] or verbs)
    try:
        command, bound, _ = app.parse_args(
            _join_lone_dash(words), print_error=False, exit_on_error=False, verbose=False
        )
    except CycloptsError as error:
        raise translate_usage_error(error, verbs) from None
    if command not in by_command:
        return lambda: command(*bound.args, **bound.kwargs)
    given, verb = dict(bound.arguments), by_command[command]
    return CommandLine(
        verb=verb,
        config=Path(given.pop("config")) if "config" in given else None,
        json=given.pop("json", False),
        dry_run=not verb.has_own_dry_run and given.pop("dry_run", False),
        quiet=given.pop("quiet", False),
        values={name.replace("__", "."): value for name, value in given.items()},
    )


def _rewrite_help_words(words: Sequence[str], verbs: Sequence[CliCommand]) -> Sequence[str]:
    """`help VERB` as `VERB --help`, and `-V` or `version` as `--version`: what people try who are new to a program."""
    first = words[0] if words else ""
    if any(verb.name == first for verb in verbs):
        return words
    if first in ("-V", "version"):
        return ["--version", *words[1:]]
    return [*words[1:], "--help"] if first == "help" else words


def _names_command(words: Sequence[str], verb: CliCommand) -> bool:
    """Whether the line names that verb, so that the flags of all others need not be made."""
    name = verb.name.split()
    return list(words[: len(name)]) == name


def _join_lone_dash(words: Sequence[str]) -> list[str]:
    """`--file -` as `--file=-`: a dash alone is a value (standard input) and no flag, which cyclopts takes it for."""
    joined: list[str] = []
    for word in words:
        if word == "-" and joined and joined[-1].startswith("--") and joined[-1].strip("-") and "=" not in joined[-1]:
            joined[-1] += "=-"
        else:
            joined.append(word)
    return joined


def build_cli_app(verbs: Sequence[CliCommand]) -> tuple[App, dict[Callable[..., Any], CliCommand]]:
    """The cyclopts app, and which verb each of its commands stands for."""
    app = App("voxgraft", help=APP_SUMMARY, version=__version__, help_format="plaintext", help_epilogue=EXIT_CODES_HELP)
    by_command: dict[Callable[..., Any], CliCommand] = {}
    groups: dict[str, App] = {}
    for order, verb in enumerate(verbs):
        group, _, name = verb.name.rpartition(" ")
        if group and group not in groups:
            groups[group] = App(group, help=COMMAND_GROUPS.get(group, ""), sort_key=order)
            app.command(groups[group])
        command = App(name, help=verb.help, usage=verb.usage, sort_key=order, help_epilogue="")
        by_command[command.default(_build_signature_function(verb))] = verb
        groups.get(group, app).command(command)
    return app, by_command


def _build_signature_function(verb: CliCommand) -> Callable[..., None]:
    """A function that only carries the signature: the verb itself runs later, once its settings are whole."""

    def command(*_: Any, **__: Any) -> None:
        """Is never called."""

    groups: dict[str, Group] = {}
    for leaf in verb.leaves():
        title = leaf.section.capitalize() or "Settings"
        about = inspect.getdoc(leaf.owner) or ""
        groups.setdefault(leaf.section, Group(title, help=about, sort_key=len(groups)))
    parameters = [_build_parameter(verb, leaf, groups[leaf.section]) for leaf in verb.leaves()]
    own = {parameter.name for parameter in parameters}
    parameters += [parameter for parameter in _common_parameters() if parameter.name not in own]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _build_parameter(verb: CliCommand, leaf: SettingField, group: Group) -> inspect.Parameter:
    by_place = leaf.key in verb.positional
    is_switch = leaf.field.annotation is bool
    # Longest name first: cyclopts tries them in order and takes --tokenizer as the start of --tokenizer.file.
    names = sorted(verb.flag_names(leaf), key=len, reverse=True)
    naming: dict[str, Any] = {} if by_place else {"name": names, "group": group}
    if not by_place and not is_switch:
        naming["metavar"] = _format_metavar(leaf)
    about = Parameter(
        help=_help_text(leaf),
        show_default=_format_default(verb, leaf),
        consume_multiple=leaf.is_list,
        negative_iterable=(),
        **naming,
    )
    # Texts, as typed: if cyclopts converted them it would judge them too, in words of its own.
    typed: Any = bool | None if is_switch else list[str] | None if leaf.is_list else str | None
    kind = inspect.Parameter.POSITIONAL_ONLY if by_place else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(leaf.key.replace(".", "__"), kind, default=None, annotation=Annotated[typed, about])


def _common_parameters() -> list[inspect.Parameter]:
    def common(name: str, typed: Any, text: str) -> inspect.Parameter:
        metavar = "PATH" if name == "config" else None
        about = Parameter(help=text, metavar=metavar, group=_COMMON_GROUP, negative=(), show_default=False)
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[typed, about])

    return [
        common("config", str | None, "A YAML file with the same keys as the settings above. Flags win over it."),
        common("dry_run", bool | None, "Print the settings that would be used, and stop."),
        common("json", bool | None, "Print the result as JSON, and nothing else, on standard output."),
        common("quiet", bool | None, "Print neither progress nor report: errors and the exit code only."),
    ]


def _help_text(leaf: SettingField) -> str:
    choices = f" [choices: {', '.join(leaf.choices)}]" if leaf.choices else ""
    return f"{leaf.field.description}{choices}{' [required]' if leaf.field.is_required() else ''}"


def _format_metavar(leaf: SettingField) -> str:
    word = "PATH" if leaf.is_path else "CHOICE" if leaf.choices else "TEXT"
    if leaf.is_number:
        word = "NUMBER"
    return f"{word}..." if leaf.is_list else word


def _format_default(verb: CliCommand, leaf: SettingField) -> Callable[[Any], str] | bool:
    if leaf.default is None or leaf.default == ():
        return False
    text = str(leaf.default)
    if isinstance(leaf.default, bool):
        flag = verb.flag_names(leaf)[0]
        section, dot, name = flag.removeprefix("--").rpartition(".")
        text = flag if leaf.default else f"--{section}{dot}no-{name}"
    return lambda _: text


def resolve_settings(line: CommandLine) -> Settings:
    """The settings of a verb; a fault is told with the file or flag that it came from."""
    verb = line.verb
    flags = nest_dotted_keys(line.values)
    config = read_settings_values(verb.settings, line.config) if line.config else {}
    values = deep_merge(config, flags)
    origins = {key: SettingOrigin(str(line.config), key) for key in _dotted_keys(config)}
    for leaf in verb.leaves():
        if leaf.key in line.values or leaf.key not in origins:
            origins[leaf.key] = SettingOrigin(COMMAND_LINE_ORIGIN, verb.flag_names(leaf)[0])
    if issubclass(verb.settings, RunSettings) and isinstance(run := values.get("run"), str) and run:
        values = deep_merge(_read_run_values(Path(run)), values)
    return parse_settings(verb.settings, values, line.config or COMMAND_LINE_ORIGIN, origins)


def _read_run_values(run: Path) -> dict[str, Any]:
    """What the run.yaml says, judged by itself, so that every verb refuses the same files."""
    path = run / RUN_FILE
    if not path_exists(path):
        cure = f"make a run with `voxgraft new {run}`, or check the path."
        raise FileError("file-missing", f"{run} has no {RUN_FILE}", where=path, cure=cure)
    values = read_settings_values(RunSettings, path)
    parse_settings(RunSettings, values, path)
    return values


def nest_dotted_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys to nested mappings."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return result


def _dotted_keys(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Nested mappings to dotted keys."""
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted_keys(value, f"{prefix}{key}.")
