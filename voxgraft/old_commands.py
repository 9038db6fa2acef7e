"""Finds the commands of known scripts in a shell script, a README or any text, and splits them; finds YAML blocks too.

Runs nothing. Variables that the text itself assigns are put in; everything else that a shell would work out stays as
it is written, and is named.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from voxgraft.errors import ConfigError
from voxgraft.old_flags import LegacyScript, find_legacy_script

MAX_EXPANDED = 4096
"""Longest word after variables are put in; a text that doubles a variable line by line would fill memory."""

_LAUNCHER = (
    r"(?:[^\s;|&]*/)?(?:python[\d.]*|py|uv|torchrun|accelerate|nohup|time|sudo|env|exec|srun|poetry|conda|pipenv|pdm)"
    r"(?:\.exe)?"
)
_LAUNCHES = re.compile(_LAUNCHER)
_LAUNCHES_AFTER = re.compile(rf"(?:;|&&|\|\|?)\s*(?:(?:then|do|else)\s+)?{_LAUNCHER}\s")
_SHELL_WORDS = frozenset({"then", "do", "else", "{", "(", "!", "$", "%", "command", "eval", "&"})
_PROMPT = re.compile(r"^\s*(?:(?:[-*>$%!&]|\d+[.)]|\([\w.-]+\)|PS [^>]*>)\s*)+(?=[\w./])")
_ASSIGNS = re.compile(r"^\s*(?:(?:export|local|readonly|declare)\s+)?[A-Za-z_]\w*=")
_POWERSHELL_ASSIGNS = re.compile(r"^\s*\$(?:env:)?([A-Za-z_]\w*)\s*=\s*(.*)$", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{(?:env:)?([A-Za-z_]\w*)(?::?-([^}]*))?\}|(?:env:)?([A-Za-z_]\w*))", re.IGNORECASE)
_WORD_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REDIRECTED = re.compile(r"\d?>|<$|<[^>]*$")
_CONTINUED = re.compile(r"(?<!\\)\\++$|(?<=\s)[`^]$")
_NOT_SETTINGS = frozenset({"...", "…", "--help", "-h", ""})
_NEGATIVE = re.compile(r"-\.?\d")
_YAML_FENCE = re.compile(r"\s*(```|~~~)\s*ya?ml\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LegacyCommand:
    """One command of a known script: its flags in order, each with the words that follow it."""

    script: LegacyScript
    line: int
    flags: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(slots=True)
class LegacyCommands:
    """All that a text holds: commands of known scripts, and those of others, which were not read."""

    known: list[LegacyCommand] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)


def find_legacy_commands(text: str, where: Path) -> LegacyCommands:
    """The commands of known scripts in a text, in order; an error if one of them has an open quote."""
    found = LegacyCommands()
    variables: dict[str, str] = {}
    for number, line in _logical_lines(text):
        _assign(line, variables)
        for part in line.split("`"):
            part = _PROMPT.sub("", part)
            if ".py" in part or " -m " in part:
                _read_part(part, number, variables, found, where)
    return found


def iter_yaml_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The blocks of YAML in a Markdown text, with the number of their first line."""
    fence, start, lines = "", 0, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not fence:
            if opened := _YAML_FENCE.match(line):
                fence, start, lines = opened[1], number + 1, []
        elif line.strip().startswith(fence):
            yield start, textwrap.dedent("\n".join(lines))
            fence = ""
        else:
            lines.append(line)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with the number of their first, comments cut off, continuations (of sh, cmd, PowerShell) joined."""
    start, parts = 0, list[str]()
    for number, physical in enumerate(text.split("\n"), start=1):
        line = _without_comment(physical).rstrip()
        whole = _CONTINUED.sub("", line)
        goes_on = whole != line
        start = start if parts else number
        parts.append(whole)
        if not goes_on:
            yield start, " ".join(parts)
            parts = []
    if parts:
        yield start, " ".join(parts)


def _without_comment(line: str) -> str:
    """A line up to a # that stands outside quotes and starts a word."""
    if "#" not in line:
        return line
    quote = ""
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at]
    return line


def _assign(line: str, variables: dict[str, str]) -> None:
    """Note what a line sets variables to; what only a shell could work out keeps its $."""
    if powershell := _POWERSHELL_ASSIGNS.match(line):
        words = [f"{powershell[1]}={word}" for word in (_words(powershell[2]) or [])[:1]]
    else:
        words = (_words(line) or []) if _ASSIGNS.match(line) else []
    for word in words:
        if assigned := _WORD_ASSIGNED.fullmatch(word):
            variables[assigned[1]] = _expanded(assigned[2], variables)


def _words(text: str) -> list[str] | None:
    """A text split as a shell splits it, with ; | & as words of their own; None where a quote stays open."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:
        return None


def _expanded(word: str, variables: dict[str, str]) -> str:
    if "$" not in word:
        return word

    def value(match: re.Match[str]) -> str:
        default = match[2] if match[2] is not None else match[0]
        return variables.get(match[1] or match[3], default)[:MAX_EXPANDED]

    return _VARIABLE.sub(value, word[:MAX_EXPANDED])[:MAX_EXPANDED]


def _read_part(part: str, number: int, variables: dict[str, str], found: LegacyCommands, where: Path) -> None:
    """Read one line, or one piece of inline code, which may hold several commands."""
    if not _is_command(part):
        return
    words = _words(part)
    if words is None:
        message = f"line {number}: a quote is not closed: {part.strip()[:80]}"
        raise ConfigError("old-command", message, expected="a command that a shell can read", where=where)
    for simple in _simple_commands(words):
        _read_simple(simple, number, variables, found)


def _simple_commands(words: list[str]) -> Iterator[list[str]]:
    """Words between ; && || | and &, without the shell's own words in front."""
    simple: list[str] = []
    for word in [*words, ";"]:
        if not word.strip(";|&"):
            yield simple
            simple = []
        elif simple or not (word in _SHELL_WORDS or _WORD_ASSIGNED.match(word)):
            simple.append(word)


def _is_command(part: str) -> bool:
    """Whether a text is a command line, and not prose that names a script."""
    words = [word for word in part.split() if word not in _SHELL_WORDS and not _WORD_ASSIGNED.match(word)]
    if not words:
        return False
    by_itself = find_legacy_script(words[0]) is not None and len(words) > 1 and words[1].startswith("-")
    return by_itself or bool(_LAUNCHES.fullmatch(words[0]) or _LAUNCHES_AFTER.search(part))


def _read_simple(words: list[str], number: int, variables: dict[str, str], found: LegacyCommands) -> None:
    if not words:
        return
    launched = _LAUNCHES.fullmatch(words[0]) is not None
    for at, word in enumerate(words):
        path = word if word.endswith(".py") else ""
        if at and words[at - 1] == "-m":
            path = word.replace(".", "/") + ".py"
        if not path or not (launched or at == 0):
            continue
        if script := find_legacy_script(path):
            found.known.append(LegacyCommand(script, number, _flags(words[at + 1 :], variables)))
        else:
            found.not_read.append(f"line {number}: {path}")
        return


def _flags(words: list[str], variables: dict[str, str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Flags with the words that follow each; words before the first flag stand under an empty name."""
    flags: list[tuple[str, list[str]]] = []
    for word in words:
        if _REDIRECTED.match(word):
            break
        if word in _NOT_SETTINGS:
            continue
        if word.startswith("-") and len(word) > 1 and not _NEGATIVE.match(word):
            name, equals, value = word.partition("=")
            flags.append((name, [_expanded(value, variables)] if equals else []))
            continue
        if not flags:
            flags.append(("", []))
        flags[-1][1].append(_expanded(word, variables))
    return tuple((name, tuple(values)) for name, values in flags)
