"""What is wrong with a command line, in our words: cyclopts' errors become ours, with the nearest valid name."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from voxgraft.cli.verbs import CliCommand
from voxgraft.errors import ConfigError, find_nearest_name

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
    hint = find_nearest_name(flag.replace("_", "-"), known)
    cure = f"did you mean `{hint}`?" if hint else _help_hint(verb)
    return ConfigError("usage-unknown-flag", f"there is no flag `{flag}`", where=COMMAND_LINE_ORIGIN, cure=cure)


def _usage_error(found: str, verb: CliCommand | None) -> ConfigError:
    expected = verb.usage.removeprefix("Usage: ") if verb else ""
    return ConfigError("usage", found, expected=expected, where=COMMAND_LINE_ORIGIN, cure=_help_hint(verb))


def _help_hint(verb: CliCommand | None) -> str:
    return f"see `voxgraft {verb.name} --help`." if verb else "see `voxgraft --help`."
