"""Reads the settings of an older trainer (a YAML config, or a text with its command lines) and translates them.

`legacy.toml` has a rule for every key and flag that those trainers know. Nothing is executed, and no key is dropped
silently. Settings that the user gave by hand win over old ones; of two old values for one key the last counts.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, cast

from voxgraft.config.base import parse_settings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import (
    CATALOGUE,
    CheckpointError,
    ConfigError,
    FileError,
    Finding,
    Level,
    find_nearest_name,
    finding,
)
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import MAX_YAML_BYTES, parse_yaml, read_text
from voxgraft.core.results import pluralize
from voxgraft.models import family_names, get_family, resolve_base_family
from voxgraft.models.base import Family
from voxgraft.tokenizers import open_tokenizer

KeyOutcome = Literal["mapped", "suggested", "gone", "later", "unknown"]
"""suggested: written into run.yaml as a comment, since a person must decide; later: voxgraft cannot do it yet."""

ValueKind = Literal[
    "nothing",  # only the outcome counts
    "number",  # a number for the new key
    "count",  # a whole number for the new key
    "steps",  # a whole number for the new key; 0 had a meaning of its own
    "patience",  # a whole number for the new key, unless early stopping was off
    "pieces",  # a whole number of pieces to learn
    "total-pieces",  # a whole number of base and new pieces together
    "base-pieces",  # a whole number that should be the base's number of pieces
    "freeze",  # true or false
    "base-file",  # a file in the base's folder
    "tokenizer",  # an extended tokenizer
    "texts",  # text files, one sentence per line
    "language",  # a language code
    "manifest",  # FILE::LANGUAGE, pairs of clips
    "dataset",  # LANGUAGE=FILE
]


class LegacyKeyRule(NamedTuple):
    """What becomes of one old key: its outcome, the reason or a remark, and for those with a successor the new key."""

    outcome: KeyOutcome
    why: str
    key: str = ""
    reads: ValueKind = "nothing"


class LegacyScript(NamedTuple):
    """One script of a fork: its flags, and the rule for each; flags without a rule of their own share `rest`."""

    path: str
    """Enough of its path to distinguish it from scripts of the same name."""
    family: str
    now: str
    """What to type today, or why nothing."""
    flags: tuple[str, ...]
    rest: LegacyKeyRule
    rules: dict[str, LegacyKeyRule]
    words: bool = False
    """Whether words without a flag mean something to it, such as `import` and `list`."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".py")


# ---- the tables of legacy.toml -----------------------------------------------------------------------------------


def _load_tables() -> tuple[tuple[dict[str, LegacyKeyRule], ...], tuple[LegacyScript, ...]]:
    """The rules for keys by table, and all scripts, as `legacy.toml` lists them."""
    tables = tomllib.loads(Path(__file__).with_name("legacy.toml").read_text(encoding="utf-8"))
    texts = tables["texts"]

    def rule(entry: Mapping[str, str]) -> LegacyKeyRule:
        status: KeyOutcome = "mapped" if "key" in entry else "later" if entry["outcome"] == "later" else "gone"
        reads = cast("ValueKind", entry.get("reads", "nothing"))
        return LegacyKeyRule(status, entry.get("why", "").format_map(texts), entry.get("key", ""), reads)

    def flags(entry: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(f"--{word}" for word in entry["flags"].split())

    keys = tuple(
        {key: rule(entry) for entry in tables[name] for key in entry["keys"]}
        for name in ("chatterbox_key", "indextts2_key", "indextts2_section")
    )
    scripts = tuple(
        LegacyScript(
            path,
            entry["family"],
            entry["now"].format_map(texts),
            flags(entry),
            rule(entry),
            {flag: rule(rule_entry) for rule_entry in entry.get("rules", ()) for flag in flags(rule_entry)},
            entry.get("words", False),
        )
        for entry in tables["script"]
        for path in entry["paths"]
    )
    return keys, scripts


(CHATTERBOX_KEYS, INDEXTTS2_KEYS, INDEXTTS2_SECTIONS), SCRIPTS = _load_tables()


def find_legacy_script(path: str) -> LegacyScript | None:
    """The script that a path such as `trainers/train_gpt_v2.py` names."""
    path = path.replace("\\", "/")
    return next((script for script in SCRIPTS if f"/{path}".endswith(f"/{script.path}")), None)


# ---- command lines in a text -----------------------------------------------------------------------------------

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


# A command of a known script: the script, its line, and its flags in order, each with the words that follow it.
LegacyCommand = tuple[LegacyScript, int, list[tuple[str, list[str]]]]


def find_legacy_commands(text: str, where: Path) -> tuple[list[LegacyCommand], list[str]]:
    """The commands of known scripts in a text, in order, and those of others, which were not read.

    An error if one of them has an open quote.
    """
    known: list[LegacyCommand] = []
    not_read: list[str] = []
    variables: dict[str, str] = {}
    for number, line in _logical_lines(text):
        # What a line sets variables to; what only a shell could work out keeps its $.
        if powershell := _POWERSHELL_ASSIGNS.match(line):
            assignments = [f"{powershell[1]}={word}" for word in (_words(powershell[2]) or [])[:1]]
        else:
            assignments = (_words(line) or []) if _ASSIGNS.match(line) else []
        for word in assignments:
            if assigned := _WORD_ASSIGNED.fullmatch(word):
                variables[assigned[1]] = _expanded(assigned[2], variables)
        for part in line.split("`"):  # in Markdown, inline code is between backticks
            part = _PROMPT.sub("", part)
            plain = [word for word in part.split() if word not in _SHELL_WORDS and not _WORD_ASSIGNED.match(word)]
            if not plain or not (".py" in part or " -m " in part):
                continue
            # Prose may name a script too: a command starts with a launcher, or with the script and a flag.
            by_itself = len(plain) > 1 and plain[1].startswith("-") and find_legacy_script(plain[0]) is not None
            if not (by_itself or _LAUNCHES.fullmatch(plain[0]) or _LAUNCHES_AFTER.search(part)):
                continue
            words = _words(part)
            if words is None:
                message = f"line {number}: a quote is not closed: {part.strip()[:80]}"
                raise ConfigError("old-command", message, expected="a command that a shell can read", where=where)
            # Single commands are separated by ; && || | and &, without the shell's own words in front.
            simple: list[str] = []
            for word in [*words, ";"]:
                if word.strip(";|&"):
                    if simple or not (word in _SHELL_WORDS or _WORD_ASSIGNED.match(word)):
                        simple.append(word)
                    continue
                index, path = _find_script_word(simple)
                if script := find_legacy_script(path) if path else None:
                    known.append((script, number, _flags(simple[index + 1 :], variables)))
                elif path:
                    not_read.append(f"line {number}: {path}")
                simple = []
    return known, not_read


def _find_script_word(words: list[str]) -> tuple[int, str]:
    """Where a single command names its script, and the script's path; an empty path where it names none."""
    launched = bool(words) and _LAUNCHES.fullmatch(words[0]) is not None
    for index, word in enumerate(words):
        path = word if word.endswith(".py") else ""
        if index and words[index - 1] == "-m":
            path = word.replace(".", "/") + ".py"
        if path and (launched or index == 0):
            return index, path
    return 0, ""


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
    for number, line in enumerate(text.split("\n"), start=1):
        quote = ""
        for at, character in enumerate(line) if "#" in line else ():
            if quote:
                quote = "" if character == quote else quote
            elif character in "'\"":
                quote = character
            elif character == "#" and (at == 0 or line[at - 1].isspace()):  # a # outside quotes that starts a word
                line = line[:at]
                break
        line = line.rstrip()
        whole = _CONTINUED.sub("", line)
        start = start if parts else number
        parts.append(whole)
        if whole == line:
            yield start, " ".join(parts)
            parts = []
    if parts:
        yield start, " ".join(parts)


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


def _flags(words: list[str], variables: dict[str, str]) -> list[tuple[str, list[str]]]:
    """Flags with the words that follow each; words before the first flag get an empty name."""
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
    return flags


MAX_KEYS = 1000
MAX_NAMED = 80
"""Longer keys are shown cut, and no nearest key is looked for."""
CHATTERBOX_SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in CHATTERBOX_KEYS))
KNOWN = (
    f"a training config with sections such as {', '.join(CHATTERBOX_SECTIONS[:4])}; "
    "IndexTTS-2's config.yaml with a section gpt; or a text with a command such as "
    "`python trainers/train_gpt_v2.py --tokenizer FILE ...`"
)
EMPTY = LegacyKeyRule("gone", "empty, so there is nothing to take over")


@dataclass(frozen=True, slots=True)
class LegacyKey:
    """One key as it was found: `name` for people, its value, the rule for it (None: unknown), a line where known."""

    name: str
    value: Any
    rule: LegacyKeyRule | None
    line: int | None = None
    hint: str = ""
    """For an unknown key: the nearest known one."""


class LegacyConfig(NamedTuple):
    """Everything that was read from one old file."""

    path: Path
    kind: str
    family: str | None
    keys: tuple[LegacyKey, ...]
    findings: tuple[Finding, ...] = ()


def read_legacy_config(path: Path) -> LegacyConfig:
    """The keys of an old config or command line; an error if it is neither, and never a guess."""
    text = read_text(path, MAX_YAML_BYTES)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _read_config(parse_yaml(text, path), path)
    if old := _read_document(text, path):
        return old
    try:
        values = parse_yaml(text, path)
    except ConfigError:
        values = None
    if isinstance(values, Mapping) and _family_of_sections(values):
        return _read_config(values, path)
    raise ConfigError("old-unknown", f"{path.name} contains no settings of a trainer", expected=KNOWN, where=path)


def format_legacy_value(value: Any) -> str:
    """A value on one line, cut to what a table can hold."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a number of over 256 bits"
    if isinstance(value, list | tuple):
        text = ", ".join(format_legacy_value(item) for item in value[:MAX_NAMED])
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    text = " ".join(text[: 2 * MAX_NAMED].split())
    return text if len(text) <= MAX_NAMED else text[: MAX_NAMED - 3] + "..."


# ---- YAML ------------------------------------------------------------------------------------------------------


def _read_config(values: Any, path: Path) -> LegacyConfig:
    if not isinstance(values, Mapping):
        sort = "list" if isinstance(values, list) else "single value" if values is not None else "comment or nothing"
        raise ConfigError("config-shape", f"{path.name} contains a {sort}", expected="keys with values", where=path)
    sections = {str(key) for key in values}
    if sections and sections <= set(RunSettings.model_fields):
        cure = "do not give it with --from: it is a run.yaml already. Copy it into the folder of the new run."
        raise ConfigError("old-unknown", f"{path.name} contains voxgraft's own keys", where=path, cure=cure)
    family = _family_of_sections(values)
    if family is None:
        found = f"{path.name} has the keys {format_legacy_value(sorted(sections))}"
        raise ConfigError("old-unknown", found, expected=KNOWN, where=path)
    is_chatterbox = family == "chatterbox"
    # A known section must hold keys: a list there would otherwise pass for one unknown key.
    for name in CHATTERBOX_SECTIONS if is_chatterbox else ("dataset", "gpt"):
        if (section := values.get(name)) is not None and not isinstance(section, Mapping):
            sort = "list" if isinstance(section, list) else "single value"
            raise ConfigError("config-shape", f"`{name}` contains a {sort}", expected="keys with values", where=path)
    flat = list(_flattened(values))
    _refuse_too_many(len(flat), path)
    table, by_section = (CHATTERBOX_KEYS, {}) if is_chatterbox else (INDEXTTS2_KEYS, INDEXTTS2_SECTIONS)
    # Unknown keys are compared by their last part first: people put keys into wrong sections.
    by_last_part = {key.rpartition(".")[2]: key for key in table}
    keys = []
    for name, value in flat:
        rule = table.get(name) or by_section.get(name.partition(".")[0])
        if rule is None and value in (None, {}) and name in CHATTERBOX_SECTIONS:
            rule = EMPTY
        hint = ""
        if rule is None and len(name) <= MAX_NAMED:
            hint = by_last_part.get(name.rpartition(".")[2]) or find_nearest_name(name, list(table)) or ""
        keys.append(LegacyKey(name, value, rule, hint=hint))
    if not any(key.rule for key in keys):
        raise ConfigError("old-unknown", f"{path.name} has no known key", expected=KNOWN, where=path)
    title = "a training config of the Amharic Chatterbox project" if is_chatterbox else "IndexTTS-2's own config"
    return LegacyConfig(path, title, family, tuple(keys))


def _family_of_sections(values: Mapping[Any, Any]) -> str | None:
    """The family whose sections a config has most of, or None."""
    sections = {str(key) for key in values}
    counts = {
        "chatterbox": len(sections & set(CHATTERBOX_SECTIONS)),
        "indextts2": len(sections & {"gpt", "gpt_checkpoint"}),
    }
    family = max(counts, key=lambda name: counts[name])
    return family if counts[family] else None


def _flattened(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = prefix + format_legacy_value(key)
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{name}.")
        else:
            yield name, value


# ---- command lines -----------------------------------------------------------------------------------------------


def _read_document(text: str, path: Path) -> LegacyConfig | None:
    """The flags of all commands and the keys of all YAML blocks in a text; None where it has neither."""
    commands, not_read = find_legacy_commands(text, path)
    _refuse_too_many(sum(len(flags) for _, _, flags in commands), path)
    keys: list[LegacyKey] = []
    for script, line, flags in commands:
        for flag, values in flags:
            # argparse accepts an unambiguous prefix of a flag.
            fitting = [known for known in script.flags if flag.startswith("--") and known.startswith(flag)]
            name = fitting[0] if len(fitting) == 1 and flag not in script.flags else flag
            rule = script.rules.get(name) or (script.rest if name in script.flags else None)
            if not name:  # a word without a flag, which only chooses what the script does
                rule = script.rest if script.words else None
            hint = ""
            if rule is None and len(name) <= MAX_NAMED:  # the flag that was meant: of this script, or of another
                by_name = {known[2:].replace("-", "_"): known for known in script.flags}
                nearest = find_nearest_name(name.strip("-"), list(by_name))
                hint = f"{script.name} {by_name[nearest]}" if nearest else ""
                hint = hint or next((f"{other.name} {name}" for other in SCRIPTS if name in other.flags), "")
            key_name = f"{script.name} {format_legacy_value(name)}".rstrip()
            keys.append(LegacyKey(key_name, values[0] if len(values) == 1 else values or None, rule, line, hint))
    families = {script.family for script, _, flags in commands if flags}
    scripts = dict.fromkeys(script.name for script, _, flags in commands if flags)
    parts = [f"commands of {', '.join(scripts)}"] if scripts else []
    for line, block in iter_yaml_blocks(text):
        try:
            config = _read_config(parse_yaml(block, path), path)
        except ConfigError:
            not_read.append(f"line {line}: a block of YAML")
            continue
        keys += [replace(key, line=line) for key in config.keys]
        _refuse_too_many(len(keys), path)
        families.add(config.family or "")
        parts.append(f"a block of YAML at line {line}")
    if not keys:
        return None
    # What a document says twice counts once, where it occurs last.
    keys.sort(key=lambda key: key.line or 0)
    pairs = [(key.name, key.value) for key in keys]
    unique_keys = tuple(key for index, key in enumerate(keys) if pairs[index] not in pairs[index + 1 :])
    findings: tuple[Finding, ...] = ()
    if not_read:
        more = f" and {len(not_read) - 6} more" if len(not_read) > 6 else ""
        findings = (finding("old-not-read", "; ".join(not_read[:6]) + more, where=path),)
    family = families.pop() if len(families) == 1 else None
    return LegacyConfig(path, f"a text with {' and '.join(parts)}", family, unique_keys, findings)


def _refuse_too_many(number: int, path: Path) -> None:
    if number > MAX_KEYS:
        found = f"{path.name} has over {MAX_KEYS:,} keys"
        raise ConfigError("old-unknown", found, expected=f"at most {MAX_KEYS:,}", where=path)


# ---- translation to run.yaml -----------------------------------------------------------------------------------

# A language code inside another value: FILE::am of a manifest, am=FILE of a dataset.
_LANGUAGE_PATTERNS = {"manifest": re.compile(r"(?:::|@|=)([a-z]{2,3})$"), "dataset": re.compile(r"^([a-z]{2,3})=")}


@dataclass(frozen=True, slots=True)
class KeyTranslation:
    """What became of one old key."""

    old: str
    value: str
    outcome: KeyOutcome
    why: str
    key: str = ""
    new: Any = None
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        new = [str(item) for item in self.new] if isinstance(self.new, tuple) else self.new
        values = {name: getattr(self, name) for name in self.__slots__}
        return {**values, "new": str(new) if isinstance(new, Path) else new}


class UserOverrides(NamedTuple):
    """What the user said by hand."""

    base: Path | None = None
    family: str | None = None
    language: str | None = None
    texts: tuple[Path, ...] = ()


def translate_legacy_config(
    old: LegacyConfig, given: UserOverrides
) -> tuple[list[KeyTranslation], dict[str, Any], list[Finding]]:
    """What becomes of every key of an old config.

    Rows in the order of the old file, the values for run.yaml by dotted key, and what there is to say.
    """
    translator = _LegacyTranslator(old, given)
    rows = resolve_key_conflicts([row for key in old.keys for row in translator.translate(key)], given)
    if unknown := [row.old for row in rows if row.outcome == "unknown"]:
        names = ", ".join(unknown[:6]) + (" ..." if len(unknown) > 6 else "")
        translator.report("old-keys-unknown", f"{pluralize(len(unknown), 'unknown setting')}: {names}")
    return rows, {row.key: row.new for row in rows if row.outcome == "mapped"}, translator.findings


def resolve_key_conflicts(rows: Sequence[KeyTranslation], given: UserOverrides) -> list[KeyTranslation]:
    """The same rows, of which at most one value is taken over for each new key."""
    by_hand = [name for name in ("base", "language", "texts") if getattr(given, name)]
    rows = [
        replace(row, outcome="gone", why=f"--{row.key} was given by hand and is used", key="", new=None)
        if row.key in by_hand and row.outcome in ("mapped", "suggested")
        else row
        for row in rows
    ]
    # A flag that one command repeats, each time with another file, names all of them.
    joined: dict[tuple[str, int | None], tuple[Any, ...]] = {}
    for row in rows:
        if row.outcome == "mapped" and isinstance(row.new, tuple):
            joined[row.key, row.line] = tuple(dict.fromkeys((*joined.get((row.key, row.line), ()), *row.new)))
    rows = [
        replace(row, new=joined[row.key, row.line]) if row.outcome == "mapped" and isinstance(row.new, tuple) else row
        for row in rows
    ]
    last = {row.key: row for row in rows if row.outcome == "mapped"}
    result = []
    for row in rows:
        if row.outcome == "mapped" and row.new != (later := last[row.key]).new:
            why = f"a later value is used: {later.value} ({later.old})"
            row = replace(row, outcome="suggested", why=why)
        elif row.outcome == "mapped" and row.key == "train.epochs" and "train.steps" in last:
            # The older trainers stopped at whichever came first; a run has steps or epochs.
            why = "train.steps is also given and is used; leave it empty to use epochs"
            row = replace(row, outcome="suggested", why=why)
        result.append(row)
    return result


class _LegacyTranslator:
    """Finds the base first, since other keys are judged against it; `translate` then handles one key at a time."""

    def __init__(self, old: LegacyConfig, given: UserOverrides) -> None:
        self.old, self.given, self.findings = old, given, list(old.findings)
        families = [get_family(name) for name in family_names()]
        # Names of the files by which a base folder is known.
        self.published = {name for kind in families for name in (*kind.checkpoint_names, *kind.tokenizer_names)}
        self.published.add("config.yaml")
        self.base = given.base
        for key in reversed(old.keys) if given.base is None else ():  # the last named folder that is a base
            folder = self._folder_of(key.value) if key.rule and key.rule.reads == "base-file" else None
            published = PurePosixPath(str(key.value)).name in self.published
            if folder is not None and published and not self._why_no_base(folder):
                self.base = folder
                break
        name = given.family or old.family
        self.family: Family | None = get_family(name) if name and self.base is None else None
        self.num_base_pieces = FAMILIES[self.family.name].num_published_pieces if self.family else None
        if self.base is not None:
            self.family = resolve_base_family(self.base, given.family)
            if old.family not in (None, self.family.name):
                found = f"the old settings are for {old.family}, but the base belongs to the family {self.family.name}"
                self.report("old-other-family", found, expected=str(old.family))

    def report(self, code: str, found: str, expected: str = "", cure: str = "") -> None:
        # An error of a run is a warning here: it is a fault of the old config, and nothing of it is taken over.
        level: Level | None = "warning" if CATALOGUE[code].level == "error" else None
        item = finding(code, found, expected=expected, where=self.old.path, cure=cure, level=level)
        if item not in self.findings:
            self.findings.append(item)

    def translate(self, key: LegacyKey) -> list[KeyTranslation]:
        """The row of one key, and one more for each language code inside its value."""
        rule, value = key.rule, format_legacy_value(key.value)
        if rule is None:
            why = f"did you mean {key.hint}?" if key.hint else "unknown key"
            return [KeyTranslation(key.name, value, "unknown", why, line=key.line)]
        new: Any = None
        status: KeyOutcome
        if rule.outcome == "mapped" and key.value in (None, "", []):
            status, why = "gone", "empty, so the default is kept"
        elif rule.key and isinstance(key.value, str) and "$" in key.value:
            status, why, new = "suggested", "this value depends on the shell", key.value
        elif rule.reads in ("base-file", "tokenizer", "texts", "manifest"):
            status, why, new = self._translate_path(key, rule)
        else:
            status, why, new = self._translate_value(key, rule)
        taken = rule.key if status in ("mapped", "suggested") else ""
        rows = [KeyTranslation(key.name, value, status, why, taken, new, key.line)]
        pattern = _LANGUAGE_PATTERNS.get(rule.reads)
        for item in key.value if isinstance(key.value, list) else [key.value]:
            if pattern and isinstance(item, str) and (match := pattern.search(item)):
                why, value_text = "the language in it", format_legacy_value(item)
                rows.append(KeyTranslation(key.name, value_text, "mapped", why, "language", match[1], key.line))
        return rows

    def _translate_value(self, key: LegacyKey, rule: LegacyKeyRule) -> tuple[KeyOutcome, str, Any]:
        """Fate, reason and new value of a number, a switch or a language."""
        value_text, number = format_legacy_value(key.value), as_number(key.value)
        if rule.reads in ("total-pieces", "base-pieces") and self.base is not None and self.family is not None:
            self.num_base_pieces = open_tokenizer(self.family.files(self.base).tokenizer).size
        base = self.num_base_pieces
        match rule.reads:
            case "nothing" | "dataset":
                return rule.outcome, rule.why, None
            case "steps" if number == 0:
                return "gone", f"0 had a special meaning there; the default is kept. See {rule.key}", None
            case "patience" if any(
                old_key.name.endswith(".early_stopping") and old_key.value is False for old_key in self.old.keys
            ):
                return "gone", "early stopping was off, so it had no effect", None
            case "total-pieces":
                if number is None or number != int(number) or base is None or number < base:
                    return "suggested", "not a size that an extended tokenizer can have", value_text
                why = (
                    f"{int(number):,} included the base's {base:,} tokens. A small number is better: a token that "
                    "occurs rarely is not learned, and single characters do not count here"
                )
                return "suggested", why, int(number) - base
            case "base-pieces":
                if base is None or number == base:
                    return rule.outcome, rule.why, None
                code = "freeze-boundary" if "freeze" in key.name else "old-base-size"
                self.report(code, f"{key.name} is {value_text}, the base has {base:,} tokens", f"{base:,}")
                return rule.outcome, f"{rule.why}. It is not the base's number, {base:,}", None
            case "freeze":
                if key.value is not False:
                    return rule.outcome, rule.why, None
                self.report("freeze-off", f"{key.name} is false")
                return "gone", f"{rule.why}. It was off: a checkpoint trained this way has changed base rows", None
            case "language":
                try:
                    settings = parse_settings(RunSettings, {"language": key.value}, self.old.path)
                except ConfigError as error:
                    return "suggested", f"not a language code: {error.finding.expected}", value_text
                return "mapped", rule.why, settings.language
        # What is left is a number for the new key; whether it is one that the setting takes, the setting says itself.
        if number is None:
            return "suggested", "not a number", value_text
        section, _, name = rule.key.partition(".")
        try:
            settings = parse_settings(RunSettings, {section: {name: number}}, self.old.path)
        except ConfigError as error:
            return "suggested", f"out of bounds: {error.finding.expected}", number
        value = getattr(getattr(settings, section), name)
        sane = self.family.rates.get("body") if self.family and rule.key == "train.lr_backbone" else None
        if sane and not sane[0] <= value <= sane[1]:
            side = "below" if value < sane[0] else "above"
            expected = f"{sane[0]:g} to {sane[1]:g}"
            self.report("rate-out-of-range", f"{key.name} is {value:g}, {side} the range", expected)
        return "mapped", rule.why, value

    def _translate_path(self, key: LegacyKey, rule: LegacyKeyRule) -> tuple[KeyOutcome, str, Any]:
        """Fate, reason and new value of a file or of several."""
        no_path: tuple[KeyOutcome, str, Any] = "suggested", "not a path", format_legacy_value(key.value)
        if rule.reads == "base-file":
            folder, name = self._folder_of(key.value), PurePosixPath(str(key.value)).name
            if folder is None:
                return no_path
            if name not in self.published:
                why = f"{name} is not a published file of a base; give the base folder with --base"
                return "gone", why, None
            why_not = self._why_no_base(folder)
            return ("suggested", why_not, folder) if why_not else ("mapped", rule.why, folder)
        if rule.reads == "tokenizer":
            path = self._path(key.value)
            if path is None:
                return no_path
            base = shlex.quote(str(self.base)) if self.base else "BASE"
            language = f" --language {self.given.language}" if self.given.language else ""
            command = f"voxgraft tokenizer prove --base {base} --extended {shlex.quote(str(path))}{language}"
            cure = f"leave this tokenizer out, so that a new one is trained; or check it: {command}"
            self.report("old-tokenizer", f"the settings name the tokenizer {path.name}", cure=cure)
            missing = "" if os.path.exists(path) else ". The file does not exist"
            return "suggested", f"{rule.why}: {command}{missing}", path
        values = key.value if isinstance(key.value, list) else [key.value]
        manifest = _LANGUAGE_PATTERNS["manifest"]
        plain = values
        if rule.reads == "manifest":
            plain = [manifest.sub("", value) if isinstance(value, str) else value for value in values]
        paths = tuple(path for value in plain if (path := self._path(value)))
        if len(paths) != len(values):
            return no_path
        if missing_names := [path.name for path in paths if not os.path.isfile(path)]:
            return "suggested", f"missing: {', '.join(missing_names)}", paths
        if rule.reads == "manifest":
            # The language of the run: the one given by hand, else the first that a manifest names.
            manifests = [old_key for old_key in self.old.keys if old_key.rule and old_key.rule.reads == "manifest"]
            named = [
                match[1] for old_key in manifests if (match := manifest.search(format_legacy_value(old_key.value)))
            ]
            run_language = self.given.language or next(iter(named), None)
            if others := sorted(
                {match[1] for value in values if (match := manifest.search(str(value)))} - {run_language}
            ):
                why = f"in {', '.join(others)}: sets of base languages belong in data.replay, in merged mode"
                return "suggested", why, paths
        return "mapped", rule.why, paths

    def _path(self, value: Any) -> Path | None:
        """A path in the old file: from that file's folder, or from one above where only there something is.

        The forks keep their files in config/ and scripts/, and run them from the folder above.
        """
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            return None
        if value.startswith("~/"):
            return Path.home() / value[2:]
        direct_path = self.old.path.parent / value
        candidates = [direct_path, *(self.old.path.parent / above / value for above in ("..", "../.."))]
        found = next((candidate for candidate in candidates if os.path.exists(candidate)), None)
        if found is None:
            return direct_path
        # Without `..` where that is the same place; with symbolic links it need not be.
        plain = Path(os.path.normpath(found))
        return plain if os.path.exists(plain) and os.path.samefile(plain, found) else found

    def _folder_of(self, value: Any) -> Path | None:
        path = None if isinstance(value, str) and "$" in value else self._path(value)
        return path.parent if path else None

    def _why_no_base(self, folder: Path) -> str:
        """Why a folder is not a base; empty where it is one."""
        if not os.path.isdir(folder):
            return "its folder does not exist"
        try:
            resolve_base_family(folder, self.given.family).files(folder)
        except (FileError, ConfigError, CheckpointError) as error:
            return f"its folder is not a base: {error.finding.found}"
        return ""


def as_number(value: Any) -> int | float | None:
    """A finite number, also where YAML reads a text (1e-5 without a point); None for everything else."""
    # The length bounds the time that float() takes for a hostile number of millions of digits.
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(format_legacy_value(value)) > 40:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) and abs(number) < 2**53 else number
