"""Settings classes as flags: builds the cyclopts app from the table of commands, and parses command lines with it.

cyclopts only splits the line and prints help. Values stay texts; `config` alone validates them.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import platform
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from cyclopts.help import ColumnSpec, DefaultFormatter, HelpEntry, NameRenderer
from cyclopts.help.specs import get_default_parameter_columns

from voxgraft import __version__
from voxgraft.cli.commands import COMMAND_GROUPS, COMMANDS, HELP_PANELS, RARE_SETTINGS, CliCommand
from voxgraft.cli.console import (
    SHOW_AFTER_SECONDS,
    BarDisplay,
    LineDisplay,
    ProgressReporter,
    ResultPrinter,
    enable_terminal_prompts,
)
from voxgraft.config.base import SettingOrigin, Settings, deep_merge, parse_settings, read_settings_values
from voxgraft.config.run import RunSettings
from voxgraft.core import progress
from voxgraft.core.errors import (
    ConfigError,
    Finding,
    VoxgraftError,
    fill_placeholders,
    find_nearest_name,
    finding,
    load_catalogue,
)
from voxgraft.core.files import convert_system_error, path_exists
from voxgraft.core.results import EXIT_BAD_INPUT, EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK
from voxgraft.core.run import RUN_FILE, missing_run_error

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

COMMAND_LINE_ORIGIN = "command line"
COMMON_FLAGS = ("--config", "--dry-run", "--json", "--quiet", "--help")


APP_SUMMARY = "Teach a pretrained text-to-speech model a new language, and prove that it still speaks the old ones."
EXIT_CODES_HELP = (
    "Exit codes: 0 success, 1 the command ran and found a problem, 2 bad input or usage, 70 a bug in voxgraft, "
    "130 interrupted."
)

COMMON_PARAMETERS: dict[str, tuple[Any, str]] = {
    "config": (str | None, "YAML file with the same keys as the settings above. Flags override it."),
    "dry_run": (bool | None, "Print the settings that would be used, and exit without running."),
    "json": (bool | None, "Print the result as JSON on standard output."),
    "quiet": (bool | None, "Print errors only."),
}
_COMMON_GROUP = Group("Common to all commands", sort_key=1_000)  # the last panel of a help page


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was typed: the command, its settings by dotted key as texts, and the common options."""

    verb: CliCommand
    values: dict[str, Any]
    config: Path | None
    json: bool
    dry_run: bool
    quiet: bool


def parse_command_line(arguments: Sequence[str], commands: Sequence[CliCommand]) -> CommandLine | Callable[[], None]:
    """What was typed, or the function that prints the help or version that was requested."""
    first_word = arguments[0] if arguments else ""
    if not any(cli_command.name == first_word for cli_command in commands):
        # What newcomers try: `help COMMAND`, `-V` and `version`.
        if first_word in ("-V", "version"):
            arguments = ["--version", *arguments[1:]]
        elif first_word == "help":
            arguments = [*arguments[1:], "--help"]
    show_all = "--all" in arguments and ("--help" in arguments or "-h" in arguments)
    if show_all:
        arguments = [word for word in arguments if word != "--all"]
    # Where the line names a command, the flags of all others need not be built.
    matching = [
        cli_command
        for cli_command in commands
        if list(arguments[: len(cli_command.name.split())]) == cli_command.name.split()
    ]
    app, by_command = build_cli_app(matching or commands, show_all=show_all, show_unread=show_all)
    joined: list[str] = []
    for word in arguments:
        # `--file -` as `--file=-`: a single dash is a value (standard input), but cyclopts takes it for a flag.
        if word == "-" and joined and joined[-1].startswith("--") and joined[-1].strip("-") and "=" not in joined[-1]:
            joined[-1] += "=-"
        else:
            joined.append(word)
    try:
        command, bound, _ = app.parse_args(joined, print_error=False, exit_on_error=False, verbose=False)
    except CycloptsError as error:
        raise translate_usage_error(error, commands) from None
    if command not in by_command:
        return lambda: command(*bound.args, **bound.kwargs)
    values, cli_command = dict(bound.arguments), by_command[command]
    return CommandLine(
        verb=cli_command,
        config=Path(values.pop("config")) if "config" in values else None,
        json=values.pop("json", False),
        # A command with a setting of that name prints itself what it would do.
        dry_run="dry_run" not in cli_command.settings.model_fields and values.pop("dry_run", False),
        quiet=values.pop("quiet", False),
        values={name.replace("__", "."): value for name, value in values.items()},
    )


def translate_usage_error(error: CycloptsError, commands: Sequence[CliCommand]) -> ConfigError:
    """A parser error as one of voxgraft's."""
    command_name = " ".join(error.command_chain or ())
    command = next((command for command in commands if command.name == command_name), None)
    help_hint = f"see `voxgraft {command.name} --help`." if command else "see `voxgraft --help`."
    found = str(error)
    # Each kind of usage error gets a code, what was expected and a cure, as all other errors have.
    match error:
        case UnknownCommandError():
            start, word = f"{command_name} " if command_name else "", (error.unused_tokens or [""])[0]
            names = [
                command.name.removeprefix(start).split(" ")[0] for command in commands if command.name.startswith(start)
            ]
            names = list(dict.fromkeys(names))
            # A subcommand without its group, such as `import` for `data import`, before a name that is only similar.
            nested = [command.name for command in commands if command.name.endswith(f" {word}")]
            hint = nested[0] if nested and not start else find_nearest_name(word, names)
            cure = f"did you mean `voxgraft {start}{hint}`?" if hint else f"use one of: {', '.join(names)}."
            found = f"there is no command `{start}{word}`"
            return ConfigError("usage-unknown-verb", found, where=COMMAND_LINE_ORIGIN, cure=cure)
        case UnknownOptionError():
            flag = (error.token.keyword or error.token.value).partition("=")[0]
            known = list(COMMON_FLAGS)
            if command is not None:
                known += [name for leaf in command.leaves() for name in command.flag_names(leaf)]
            hint = find_nearest_name(flag.replace("_", "-"), known)
            if hint is None and "." not in flag:  # `--steps` for `--train.steps`
                by_end = {name.rpartition(".")[2]: name for name in known if "." in name}
                hint = by_end.get(find_nearest_name(flag.lstrip("-"), [*by_end]) or "")
            cure = f"did you mean `{hint}`?" if hint else help_hint
            from voxgraft.config.train_options import RENAMED_SETTINGS

            new = RENAMED_SETTINGS.get(flag.lstrip("-").replace("-", "_"), "").replace("_", "-")
            if f"--{new}" in known:
                cure = f"it was renamed: use `--{new}`."
            found = f"there is no flag `{flag}`"
            return ConfigError("usage-unknown-flag", found, where=COMMAND_LINE_ORIGIN, cure=cure)
        case CoercionError() if error.token is not None:
            found = f"`{error.token.keyword}` is {error.token.value!r}"
            return ConfigError("config-value", found, expected="yes or no", where=COMMAND_LINE_ORIGIN)
        case MissingArgumentError():
            name = error.keyword or (error.argument.name if error.argument else "a flag")
            found = f"`{name}` has no value"
        case RepeatArgumentError():
            found = f"`{error.token.keyword}` is given twice"
        case UnusedCliTokensError():
            found = f"unexpected argument: {' '.join(map(repr, error.unused_tokens or ()))}"
    expected = command.usage.removeprefix("Usage: ") if command else ""
    return ConfigError("usage", found, expected=expected, where=COMMAND_LINE_ORIGIN, cure=help_hint)


def build_cli_app(
    commands: Sequence[CliCommand], *, show_all: bool = True, show_unread: bool = False
) -> tuple[App, dict[Callable[..., Any], CliCommand]]:
    """The cyclopts app, and the command of each of its functions.

    Without `show_all` help leaves rare settings out, without `show_unread` those that a command accepts for others.
    """
    panels: dict[str, Group] = {}
    for position, (title, names) in enumerate(HELP_PANELS.items()):
        panels |= dict.fromkeys(names, Group(title, sort_key=position))
    app = App("voxgraft", help=APP_SUMMARY, version=__version__, help_format="plaintext", help_epilogue=EXIT_CODES_HELP)
    app.group_commands = Group("Other", sort_key=len(HELP_PANELS))
    by_command: dict[Callable[..., Any], CliCommand] = {}
    groups: dict[str, App] = {}
    for order, cli_command in enumerate(commands):
        group, _, name = cli_command.name.rpartition(" ")
        if group and group not in groups:  # `data import` is the command `import` of the app `data`
            groups[group] = App(group, help=COMMAND_GROUPS.get(group, ""), sort_key=order, group=panels.get(group))
            groups[group].group_commands = Group("Commands")
            app.command(groups[group])
        about = f"{cli_command.help}\n\nExample: {cli_command.example}" if cli_command.example else cli_command.help
        rare = any(leaf.key in RARE_SETTINGS for leaf in cli_command.leaves()) and not show_all
        unread = not all(map(cli_command.shows, cli_command.leaves())) and not show_unread
        more = f"More settings: voxgraft {cli_command.name} --help --all" if rare or unread else ""
        panel = None if group else panels.get(name)
        command = App(name, help=about, usage=cli_command.usage, sort_key=order, help_epilogue=more, group=panel)
        by_command[
            command.default(_build_signature_function(cli_command, show_all=show_all, show_unread=show_unread))
        ] = cli_command
        groups.get(group, app).command(command)
    return app, by_command


def _help_columns(console: Console, options: ConsoleOptions, entries: list[HelpEntry]) -> tuple[ColumnSpec, ...]:
    """Columns of a table of flags: none is broken inside its name, as long as it fits into half of the width."""
    *first, name, description = get_default_parameter_columns(console, options, entries)
    longest = max((len(flag) for entry in entries for flag in entry.all_options), default=0) + 2  # and the indent
    width = max(name.max_width or 0, min(longest, console.width // 2))
    name = ColumnSpec(NameRenderer(width), header=name.header, justify="left", style=name.style, max_width=width)
    return (*first, name, description)


_HELP_FORMATTER = DefaultFormatter(column_specs=_help_columns)


def _build_signature_function(cli_command: CliCommand, *, show_all: bool, show_unread: bool) -> Callable[..., None]:
    """A function that only carries the signature: the command itself runs later, with its resolved settings."""

    def command(*_: Any, **__: Any) -> None:
        """Is never called."""

    groups: dict[str, Group] = {}
    parameters = []
    for leaf in cli_command.leaves():
        title = leaf.section.capitalize() or "Settings"
        about = inspect.getdoc(leaf.owner) or ""
        group = groups.setdefault(
            leaf.section, Group(title, help=about, sort_key=len(groups), help_formatter=_HELP_FORMATTER)
        )
        is_positional = leaf.key in cli_command.positional
        is_switch = leaf.field.annotation is bool
        # Longest name first: cyclopts tries them in order and takes --tokenizer as the start of --tokenizer.file.
        names = sorted(cli_command.flag_names(leaf), key=len, reverse=True)
        naming: dict[str, Any] = {} if is_positional else {"name": names, "group": group}
        if not is_positional and not is_switch:
            word = "NUMBER" if leaf.is_number else "PATH" if leaf.is_path else "CHOICE" if leaf.choices else "TEXT"
            naming["metavar"] = f"{word}..." if leaf.is_list else word
        naming["show_default"] = False
        # A help text that names its default says more than the value.
        if leaf.default is not None and leaf.default != () and "Default:" not in str(leaf.field.description):
            many = leaf.default if isinstance(leaf.default, tuple) else (leaf.default,)
            default_text = " ".join(str(value) for value in many)
            if isinstance(leaf.default, bool):
                default_text = "on" if leaf.default else "off"
            naming["show_default"] = lambda _, default_text=default_text: default_text
        stated = all(choice in str(leaf.field.description) for choice in leaf.choices)
        choices = "" if stated else f" [choices: {', '.join(leaf.choices)}]"
        parameter = Parameter(
            help=f"{leaf.field.description}{choices}{' [required]' if leaf.field.is_required() else ''}",
            consume_multiple=leaf.is_list,
            negative_iterable=(),
            show=(show_unread or cli_command.shows(leaf))
            and (show_all or leaf.key not in RARE_SETTINGS or leaf.field.is_required()),
            **naming,
        )
        # Texts, as typed: if cyclopts converted values it would also reject some, with messages of its own.
        typed: Any = bool | None if is_switch else list[str] | None if leaf.is_list else str | None
        kind = inspect.Parameter.POSITIONAL_ONLY if is_positional else inspect.Parameter.KEYWORD_ONLY
        key = leaf.key.replace(".", "__")  # a parameter's name cannot have a dot
        parameters.append(inspect.Parameter(key, kind, default=None, annotation=Annotated[typed, parameter]))
    own = {parameter.name for parameter in parameters}
    for name, (typed, text) in COMMON_PARAMETERS.items():
        if name not in own:  # a command may have a setting of its own by that name, such as --dry-run
            metavar = "PATH" if name == "config" else None
            common = Parameter(help=text, metavar=metavar, group=_COMMON_GROUP, negative=(), show_default=False)
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=None, annotation=Annotated[typed, common]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def resolve_settings(line: CommandLine) -> Settings:
    """The settings of a command: flags before --config before run.yaml. Errors name where a value came from."""
    command = line.verb
    flags = nest_dotted_keys(line.values)
    config = read_settings_values(command.settings, line.config) if line.config else {}
    values = deep_merge(config, flags)
    # Where each value came from, so that an error names the flag or the file, not just the key.
    origins = {key: SettingOrigin(str(line.config), key) for key in _dotted_keys(config)}
    for leaf in command.leaves():
        if leaf.key in line.values or leaf.key not in origins:
            origins[leaf.key] = SettingOrigin(COMMAND_LINE_ORIGIN, command.flag_names(leaf)[0])
    if issubclass(command.settings, RunSettings) and isinstance(run := values.get("run"), str) and run:
        path = Path(run) / RUN_FILE
        if values.get("speak") and not path_exists(path):  # `check BASE --speak`: the folder is a base
            return parse_settings(command.settings, values, line.config or COMMAND_LINE_ORIGIN, origins)
        if not path_exists(path):
            raise missing_run_error(Path(run))
        run_values = read_settings_values(RunSettings, path)
        parse_settings(RunSettings, run_values, path)  # on its own first, so that every command refuses the same files
        values = deep_merge(run_values, values)
    return parse_settings(command.settings, values, line.config or COMMAND_LINE_ORIGIN, origins)


def nest_dotted_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys to nested mappings."""
    # `--train.steps 900` has the place that `steps` below `train` has in run.yaml.
    result: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        section_values = result
        for section in sections:
            section_values = section_values.setdefault(section, {})
        section_values[name] = value
    return result


def _dotted_keys(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Nested mappings to dotted keys."""
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted_keys(value, f"{prefix}{key}.")


DUMB_TERMINALS = ("dumb", "unknown")


def main() -> int:
    """Run the program `voxgraft`; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are printed escaped instead of raising an error.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    return run_cli(sys.argv[1:])


def run_cli(arguments: Sequence[str], commands: Sequence[CliCommand] = COMMANDS) -> int:
    """Run one command line; every outcome is an exit code."""
    # Read before the line is parsed: errors of the parser are printed as these options say.
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    console = ResultPrinter(json="--json" in options, quiet="--quiet" in options)
    try:
        line = parse_command_line(arguments, commands)
        if isinstance(line, CommandLine):
            with fill_placeholders(_placeholder_values(line)):
                return _run_command(line, console)
        line()  # prints the help or the version
        return EXIT_OK
    except VoxgraftError as error:
        _show_error(console, error.finding)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        _show_error(console, finding("interrupted", "interrupted from the keyboard"))
        return EXIT_INTERRUPTED
    except Exception as error:  # the one place where everything is caught
        if (refused := convert_system_error(error)) is not None:
            _show_error(console, refused.finding)
            return EXIT_BAD_INPUT
        # What arrives here is our bug.
        traceback.print_exc(file=sys.stderr)
        version = f"voxgraft {__version__}, Python {platform.python_version()}, {platform.platform()}"
        _show_error(console, finding("bug", f"{type(error).__name__}: {error}", where=version))
        return EXIT_BUG


def _placeholder_values(line: CommandLine) -> dict[str, str]:
    """By word of the catalogue's fixes: what this command line names."""
    values = {"COMMAND": line.verb.name}
    for key in ("run", "model", "checkpoint", "base"):
        if isinstance(path := line.values.get(key), str) and path:
            # `check BASE --speak` takes the folder of a base in the place of a run.
            is_run = (key == "run" and "speak" not in line.values) or path_exists(Path(path) / RUN_FILE)
            word = "RUN" if is_run else {"checkpoint": "CHECKPOINT", "base": "BASE", "run": "BASE"}.get(key, "")
            values |= {word: shlex.quote(path)} if word and word not in values else {}
    if isinstance(path := line.values.get("dataset"), str) and path:
        values["DATASET"] = shlex.quote(path)
    if isinstance(runs := line.values.get("runs"), list) and len(runs) == 1:
        values["RUN"] = shlex.quote(runs[0])
    return values


def _show_error(console: ResultPrinter, item: Finding) -> None:
    """Print an error if possible: the exit code must be right even where nothing can be printed."""
    try:
        console.show_error(item)
    except OSError:  # standard output is a file on a full disk, for example
        with contextlib.suppress(OSError):
            ResultPrinter().show_error(item)


def _run_command(line: CommandLine, console: ResultPrinter) -> int:
    settings = resolve_settings(line)
    if line.dry_run:
        console.show_settings(settings.model_dump())
        return EXIT_OK
    # Read the catalogue now: an error that reports "too many open files" could not open it later.
    load_catalogue()
    command = line.verb.load()
    # Of the processes that `torchrun` has started only the first prints: all do the same.
    follower = "LOCAL_RANK" in os.environ and os.environ.get("RANK", "0") != "0"
    silent = line.quiet or line.json or follower
    with contextlib.ExitStack() as stack:
        redraw: Callable[[], None] = lambda: None  # noqa: E731 (removes what is drawn of finished tasks)
        if not silent:
            can_redraw = sys.stderr.isatty() and os.environ.get("TERM") not in DUMB_TERMINALS
            display = BarDisplay(sys.stderr) if can_redraw else LineDisplay(sys.stderr)
            board = stack.enter_context(ProgressReporter(display, SHOW_AFTER_SECONDS))
            stack.enter_context(progress.use_progress_listener(board))
            redraw = board.look
        stack.enter_context(enable_terminal_prompts(redraw, silent=silent))
        result = command(settings)
    if not follower:
        console.show(result)
    return result.exit_code
