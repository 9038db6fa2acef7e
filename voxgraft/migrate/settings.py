"""Translates the settings of an older trainer into those of run.yaml: what became of each key, and the new values.

Settings that the user gave by hand win over old ones; of two old values for one key the last counts.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from voxgraft.config.base import parse_settings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import CATALOGUE, CheckpointError, ConfigError, FileError, Finding, Level, finding
from voxgraft.core.families import FAMILIES
from voxgraft.migrate.configs import KeyFate, LegacyConfig, LegacyKey, LegacyKeyRule, format_legacy_value
from voxgraft.models import family_names, get_family, resolve_base_family
from voxgraft.models.base import Family
from voxgraft.tokenizers import open_tokenizer

# A language code inside another value: FILE::am of a manifest, am=FILE of a dataset.
_LANGUAGE_PATTERNS = {"manifest": re.compile(r"(?:::|@|=)([a-z]{2,3})$"), "dataset": re.compile(r"^([a-z]{2,3})=")}


@dataclass(frozen=True, slots=True)
class KeyTranslation:
    """What became of one old key."""

    old: str
    value: str
    fate: KeyFate
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


class ConfigTranslation(NamedTuple):
    """The rows in the order of the old file, the values for run.yaml by dotted key, and what there is to say."""

    rows: list[KeyTranslation]
    values: dict[str, Any]
    findings: list[Finding]


def translate_legacy_config(old: LegacyConfig, given: UserOverrides) -> ConfigTranslation:
    """What becomes of every key of an old config."""
    translator = _LegacyTranslator(old, given)
    rows = resolve_key_conflicts([row for key in old.keys for row in translator.translate(key)], given)
    if unknown := [row.old for row in rows if row.fate == "unknown"]:
        names = ", ".join(unknown[:6]) + (" ..." if len(unknown) > 6 else "")
        translator.report("old-keys-unknown", f"{len(unknown)} not known: {names}")
    return ConfigTranslation(rows, {row.key: row.new for row in rows if row.fate == "mapped"}, translator.findings)


def resolve_key_conflicts(rows: Sequence[KeyTranslation], given: UserOverrides) -> list[KeyTranslation]:
    """The same rows, of which at most one value is taken over for each new key."""
    by_hand = [name for name in ("base", "language", "texts") if getattr(given, name)]
    rows = [
        replace(row, fate="gone", why=f"--{row.key} was given by hand and is used", key="", new=None)
        if row.key in by_hand and row.fate in ("mapped", "suggested")
        else row
        for row in rows
    ]
    # A flag that one command repeats, each time with another file, names all of them.
    joined: dict[tuple[str, int | None], tuple[Any, ...]] = {}
    for row in rows:
        if row.fate == "mapped" and isinstance(row.new, tuple):
            joined[row.key, row.line] = tuple(dict.fromkeys((*joined.get((row.key, row.line), ()), *row.new)))
    rows = [
        replace(row, new=joined[row.key, row.line]) if row.fate == "mapped" and isinstance(row.new, tuple) else row
        for row in rows
    ]
    last = {row.key: row for row in rows if row.fate == "mapped"}
    result = []
    for row in rows:
        if row.fate == "mapped" and row.new != (later := last[row.key]).new:
            why = f"a later value is used: {later.value} ({later.old})"
            row = replace(row, fate="suggested", why=why)
        elif row.fate == "mapped" and row.key == "train.epochs" and "train.steps" in last:
            # The older trainers stopped at whichever came first; a run has steps or epochs.
            why = "train.steps is also given and is used; leave it empty to use epochs"
            row = replace(row, fate="suggested", why=why)
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
        fate: KeyFate
        if rule.fate == "mapped" and key.value in (None, "", []):
            fate, why = "gone", "empty, so the default is kept"
        elif rule.key and isinstance(key.value, str) and "$" in key.value:
            fate, why, new = "suggested", "this value depends on the shell", key.value
        elif rule.reads in ("base-file", "tokenizer", "texts", "manifest"):
            fate, why, new = self._translate_path(key, rule)
        else:
            fate, why, new = self._translate_value(key, rule)
        taken = rule.key if fate in ("mapped", "suggested") else ""
        rows = [KeyTranslation(key.name, value, fate, why, taken, new, key.line)]
        pattern = _LANGUAGE_PATTERNS.get(rule.reads)
        for one in key.value if isinstance(key.value, list) else [key.value]:
            if pattern and isinstance(one, str) and (match := pattern.search(one)):
                why, shown = "the language in it", format_legacy_value(one)
                rows.append(KeyTranslation(key.name, shown, "mapped", why, "language", match[1], key.line))
        return rows

    def _translate_value(self, key: LegacyKey, rule: LegacyKeyRule) -> tuple[KeyFate, str, Any]:
        """Fate, reason and new value of a number, a switch or a language."""
        shown, number = format_legacy_value(key.value), as_number(key.value)
        if rule.reads in ("total-pieces", "base-pieces") and self.base is not None and self.family is not None:
            self.num_base_pieces = open_tokenizer(self.family.files(self.base).tokenizer).size
        base = self.num_base_pieces
        match rule.reads:
            case "nothing" | "dataset":
                return rule.fate, rule.why, None
            case "steps" if number == 0:
                return "gone", f"0 had a special meaning there; the default is kept. See {rule.key}", None
            case "patience" if any(
                one.name.endswith(".early_stopping") and one.value is False for one in self.old.keys
            ):
                return "gone", "early stopping was off, so it had no effect", None
            case "total-pieces":
                if number is None or number != int(number) or base is None or number < base:
                    return "suggested", "not a size that an extended tokenizer can have", shown
                why = (
                    f"{int(number):,} included the base's {base:,} pieces. A small number is better: a piece that "
                    "occurs rarely is not learned, and single characters do not count here"
                )
                return "suggested", why, int(number) - base
            case "base-pieces":
                if base is None or number == base:
                    return rule.fate, rule.why, None
                code = "freeze-boundary" if "freeze" in key.name else "old-base-size"
                self.report(code, f"{key.name} is {shown}, the base has {base:,} pieces", f"{base:,}")
                return rule.fate, f"{rule.why}. It is not the base's number, {base:,}", None
            case "freeze":
                if key.value is not False:
                    return rule.fate, rule.why, None
                self.report("freeze-off", f"{key.name} is false")
                return "gone", f"{rule.why}. It was off: a checkpoint trained this way has changed base rows", None
            case "language":
                try:
                    settings = parse_settings(RunSettings, {"language": key.value}, self.old.path)
                except ConfigError as error:
                    return "suggested", f"not a language code: {error.finding.expected}", shown
                return "mapped", rule.why, settings.language
        # What is left is a number for the new key; whether it is one that the setting takes, the setting says itself.
        if number is None:
            return "suggested", "not a number", shown
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

    def _translate_path(self, key: LegacyKey, rule: LegacyKeyRule) -> tuple[KeyFate, str, Any]:
        """Fate, reason and new value of a file or of several."""
        no_path: tuple[KeyFate, str, Any] = "suggested", "not a path", format_legacy_value(key.value)
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
            command = f"voxgraft tokenizer prove --base {base} --grown {shlex.quote(str(path))}{language}"
            cure = f"leave it out and train a new one, or check it: {command}"
            self.report("old-tokenizer", f"{path.name} is given", cure=cure)
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
        if lacking := [path.name for path in paths if not os.path.isfile(path)]:
            return "suggested", f"missing: {', '.join(lacking)}", paths
        if rule.reads == "manifest":
            # The language of the run: the one given by hand, else the first that a manifest names.
            manifests = [one for one in self.old.keys if one.rule and one.rule.reads == "manifest"]
            named = [match[1] for one in manifests if (match := manifest.search(format_legacy_value(one.value)))]
            own = self.given.language or next(iter(named), None)
            if others := sorted({match[1] for value in values if (match := manifest.search(str(value)))} - {own}):
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
        own = self.old.path.parent / value
        places = [own, *(self.old.path.parent / above / value for above in ("..", "../.."))]
        found = next((place for place in places if os.path.exists(place)), None)
        if found is None:
            return own
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
