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

from voxgraft.cli.verbs import Verb
from voxgraft.errors import ConfigError, nearest

COMMAND_LINE = "command line"
COMMON_FLAGS = ("--config", "--dry-run", "--json", "--quiet", "--help")


def usage_error(error: CycloptsError, verbs: Sequence[Verb]) -> ConfigError:
    """The same fault as one of our errors."""
    words = " ".join(error.command_chain or ())
    verb = next((verb for verb in verbs if verb.name == words), None)
    match error:
        case UnknownCommandError():
            return _unknown_verb(words, (error.unused_tokens or [""])[0], verbs)
        case UnknownOptionError():
            return _unknown_flag(error.token.keyword or error.token.value, verb)
        case CoercionError() if error.token is not None:
            found = f"`{error.token.keyword}` is {error.token.value!r}"
            return ConfigError("config-value", found, expected="yes or no", where=COMMAND_LINE)
        case MissingArgumentError():
            name = error.keyword or (error.argument.name if error.argument else "a flag")
            return _usage(f"`{name}` has no value", verb)
        case RepeatArgumentError():
            return _usage(f"`{error.token.keyword}` is given twice", verb)
        case UnusedCliTokensError():
            return _usage(f"{' '.join(map(repr, error.unused_tokens or ()))} is more than the verb takes", verb)
    return _usage(str(error), verb)


def _unknown_verb(group: str, word: str, verbs: Sequence[Verb]) -> ConfigError:
    start = f"{group} " if group else ""
    names = [verb.name.removeprefix(start).split(" ")[0] for verb in verbs if verb.name.startswith(start)]
    names = list(dict.fromkeys(names))
    hint = nearest(word, names)
    cure = f"did you mean `voxgraft {start}{hint}`?" if hint else f"verbs: {', '.join(names)}."
    return ConfigError("usage-unknown-verb", f"there is no verb `{start}{word}`", where=COMMAND_LINE, cure=cure)


def _unknown_flag(flag: str, verb: Verb | None) -> ConfigError:
    flag = flag.partition("=")[0]
    known = list(COMMON_FLAGS)
    if verb is not None:
        known += [name for leaf in verb.leaves() for name in verb.names_of(leaf)]
    hint = nearest(flag.replace("_", "-"), known)
    cure = f"did you mean `{hint}`?" if hint else _see_help(verb)
    return ConfigError("usage-unknown-flag", f"there is no flag `{flag}`", where=COMMAND_LINE, cure=cure)


def _usage(found: str, verb: Verb | None) -> ConfigError:
    expected = verb.usage.removeprefix("Usage: ") if verb else ""
    return ConfigError("usage", found, expected=expected, where=COMMAND_LINE, cure=_see_help(verb))


def _see_help(verb: Verb | None) -> str:
    return f"see `voxgraft {verb.name} --help`." if verb else "see `voxgraft --help`."
