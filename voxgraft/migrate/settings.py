"""Translates the settings of an older trainer into those of run.yaml: what became of each key, and the new values.

Settings that the user gave by hand win over old ones; of two old values for one key the last counts.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from voxgraft.config.base import parse_settings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import CATALOGUE, CheckpointError, ConfigError, FileError, Finding, Level, finding
from voxgraft.migrate.configs import KeyFate, LegacyConfig, LegacyKey, LegacyKeyRule, ValueKind, format_legacy_value
from voxgraft.models import family_names, get_family, resolve_base_family
from voxgraft.models.base import Family
from voxgraft.tokenizers import open_tokenizer


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
        return {
            "old": self.old,
            "value": self.value,
            "fate": self.fate,
            "why": self.why,
            "key": self.key,
            "new": str(new) if isinstance(new, Path) else new,
            "line": self.line,
        }


@dataclass(frozen=True, slots=True)
class UserOverrides:
    """What the user said by hand."""

    base: Path | None = None
    family: str | None = None
    language: str | None = None
    texts: tuple[Path, ...] = ()


def resolve_key_conflicts(rows: Sequence[KeyTranslation], given: UserOverrides) -> list[KeyTranslation]:
    """The same rows, of which at most one value is taken over for each new key."""
    by_hand = [name for name in ("base", "language", "texts") if getattr(given, name)]
    rows = [
        replace(row, fate="gone", why=f"--{row.key} was given by hand, and counts", key="", new=None)
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
            why = f"another value comes later, and counts: {later.value} ({later.old})"
            row = replace(row, fate="suggested", why=why)
        elif row.fate == "mapped" and row.key == "train.epochs" and "train.steps" in last:
            # The older trainers stopped at whichever came first; a run has steps or epochs.
            why = "train.steps is given too, and counts; empty that one to count epochs"
            row = replace(row, fate="suggested", why=why)
        result.append(row)
    return result


PUBLISHED_PIECES = {"chatterbox": 2454, "indextts2": 12_000}
"""Pieces of the published tokenizers, for old configs that come without a base."""
_MANIFEST_LANGUAGE = re.compile(r"(?:::|@|=)([a-z]{2,3})$")
_DATASET_LANGUAGE = re.compile(r"^([a-z]{2,3})=")


@dataclass(slots=True)
class ConfigTranslation:
    """The rows in the order of the old file, the values for run.yaml by dotted key, and what there is to say."""

    rows: list[KeyTranslation] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def translate_legacy_config(old: LegacyConfig, given: UserOverrides) -> ConfigTranslation:
    """What becomes of every key of an old config."""
    return _LegacyTranslator(old, given).result()


class _LegacyTranslator:
    """One pass over the old keys for the base, which other keys are judged against, and one for everything."""

    def __init__(self, old: LegacyConfig, given: UserOverrides) -> None:
        self._old = old
        self._given = given
        self._findings = list(old.findings)
        self._base = given.base or self._old_base()
        self._family = self._settled_family()
        self._readers: dict[ValueKind, Callable[[LegacyKey, LegacyKeyRule], KeyTranslation]] = {
            "nothing": self._plain,
            "number": self._number,
            "count": self._number,
            "steps": self._steps,
            "patience": self._patience,
            "pieces": self._number,
            "total-pieces": self._total_pieces,
            "base-pieces": self._base_pieces,
            "freeze": self._freeze,
            "base-file": self._base_file,
            "tokenizer": self._tokenizer,
            "texts": self._texts,
            "language": self._language,
            "manifest": self._manifests,
            "dataset": self._plain,
        }

    def result(self) -> ConfigTranslation:
        rows = [row for key in self._old.keys for row in self._rows_of(key)]
        rows = resolve_key_conflicts(rows, self._given)
        values = {row.key: row.new for row in rows if row.fate == "mapped"}
        unknown = [row for row in rows if row.fate == "unknown"]
        if unknown:
            names = ", ".join(row.old for row in unknown[:6]) + (" ..." if len(unknown) > 6 else "")
            self._find("old-keys-unknown", f"{len(unknown)} not known: {names}")
        return ConfigTranslation(rows, values, self._findings)

    def _find(self, code: str, found: str, expected: str = "", cure: str = "") -> None:
        # What would be an error in a run is a warning here: it is the old one's fault, and this one goes without it.
        level: Level | None = "warning" if CATALOGUE[code].level == "error" else None
        where = self._old.path
        item = finding(code, found, expected=expected, where=where, cure=cure, level=level)
        if item not in self._findings:
            self._findings.append(item)

    # ---- what everything else is judged against -----------------------------------------------------------------

    def _old_base(self) -> Path | None:
        """The last folder named in the old file that is a base."""
        for key in reversed(self._old.keys):
            folder = self._folder_of(key) if key.rule and key.rule.reads == "base-file" else None
            published = PurePosixPath(str(key.value)).name in _published_names()
            if folder is not None and published and not self._why_no_base(folder):
                return folder
        return None

    def _settled_family(self) -> Family | None:
        name = self._given.family
        if self._base is not None:
            found = resolve_base_family(self._base, name)
            if self._old.family not in (None, found.name):
                message = f"the old settings are for {self._old.family}, the base is of the family {found.name}"
                self._find("old-other-family", message, expected=str(self._old.family))
            return found
        name = name or self._old.family
        return get_family(name) if name else None

    def _num_base_pieces(self) -> int | None:
        if self._base is not None and self._family is not None:
            return open_tokenizer(self._family.files(self._base).tokenizer).size
        return PUBLISHED_PIECES.get(self._family.name) if self._family else None

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _rows_of(self, key: LegacyKey) -> Iterator[KeyTranslation]:
        rule = key.rule
        if rule is None:
            why = f"did you mean {key.hint}?" if key.hint else "no key of that name is known"
            yield KeyTranslation(key.name, format_legacy_value(key.value), "unknown", why, line=key.line)
            return
        if rule.fate == "mapped" and key.value in (None, "", []):
            yield self._row(key, rule, "gone", "empty there, so the default is kept")
        elif rule.key and _needs_a_shell(key.value):
            yield self._row(key, rule, "suggested", "only a shell knows what this value becomes", key.value)
        else:
            yield self._readers[rule.reads](key, rule)
        yield from self._language_inside(key, rule)

    def _row(self, key: LegacyKey, rule: LegacyKeyRule, fate: KeyFate, why: str, new: Any = None) -> KeyTranslation:
        taken = rule.key if fate in ("mapped", "suggested") else ""
        return KeyTranslation(key.name, format_legacy_value(key.value), fate, why, taken, new, key.line)

    def _plain(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        return self._row(key, rule, rule.fate, rule.why)

    def _number(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        """A number for the new key, if it is one that the setting takes."""
        number = _as_number(key.value)
        if number is None:
            return self._row(key, rule, "suggested", "not a number", format_legacy_value(key.value))
        try:
            settings = parse_settings(RunSettings, _nested(rule.key, number), self._old.path)
        except ConfigError as error:
            return self._row(key, rule, "suggested", f"out of bounds: {error.finding.expected}", number)
        section, _, name = rule.key.partition(".")
        value = getattr(getattr(settings, section), name)
        if rule.key == "train.lr_backbone":
            self._judge_rate(key, value)
        return self._row(key, rule, "mapped", rule.why, value)

    def _judge_rate(self, key: LegacyKey, rate: float) -> None:
        sane = self._family.rates.get("body") if self._family else None
        if sane and not sane.low <= rate <= sane.high:
            side = "below" if rate < sane.low else "above"
            expected = f"{sane.low:g} to {sane.high:g}"
            self._find("rate-out-of-range", f"{key.name} is {rate:g}, {side} the range", expected)

    def _steps(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        if _as_number(key.value) == 0:
            return self._row(
                key, rule, "gone", f"0 had a meaning of its own there; the default is kept. See {rule.key}"
            )
        return self._number(key, rule)

    def _patience(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        if any(other.name.endswith(".early_stopping") and other.value is False for other in self._old.keys):
            return self._row(key, rule, "gone", "early stopping was off, so it never counted")
        return self._number(key, rule)

    def _total_pieces(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        total, base = _as_number(key.value), self._num_base_pieces()
        if total is None or total != int(total) or base is None or total < base:
            return self._row(
                key, rule, "suggested", "not a size that a grown tokenizer can have", format_legacy_value(key.value)
            )
        why = (
            f"{int(total):,} counted the base's {base:,} pieces too. A small number is better: a piece that occurs "
            "seldom learns nothing, and single characters do not count here"
        )
        return self._row(key, rule, "suggested", why, int(total) - base)

    def _base_pieces(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        base = self._num_base_pieces()
        if base is None or _as_number(key.value) == base:
            return self._plain(key, rule)
        code = "freeze-boundary" if "freeze" in key.name else "old-base-size"
        self._find(code, f"{key.name} is {format_legacy_value(key.value)}, the base has {base:,} pieces", f"{base:,}")
        return self._row(key, rule, rule.fate, f"{rule.why}. It is not the base's number, {base:,}")

    def _freeze(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        if key.value is not False:
            return self._plain(key, rule)
        self._find("freeze-off", f"{key.name} is false")
        return self._row(key, rule, "gone", f"{rule.why}. It was off: a checkpoint trained so has moved its base rows")

    def _base_file(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        folder = self._folder_of(key)
        if folder is None:
            return self._row(key, rule, "suggested", "not a path", format_legacy_value(key.value))
        name = PurePosixPath(str(key.value)).name
        if name not in _published_names():
            why = f"{name} is not a file that a base is published with; give the base's own folder with --base"
            return self._row(key, rule, "gone", why)
        if why := self._why_no_base(folder):
            return self._row(key, rule, "suggested", why, folder)
        return self._row(key, rule, "mapped", rule.why, folder)

    def _tokenizer(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        path = self._path(key.value)
        if path is None:
            return self._row(key, rule, "suggested", "not a path", format_legacy_value(key.value))
        base = shlex.quote(str(self._base)) if self._base else "BASE"
        language = f" --language {self._given.language}" if self._given.language else ""
        command = f"voxgraft tokenizer prove --base {base} --grown {shlex.quote(str(path))}{language}"
        missing = "" if os.path.exists(path) else ". The file is not there"
        self._find("old-tokenizer", f"{path.name} is named there", cure=f"leave it out and learn anew, or: {command}")
        return self._row(key, rule, "suggested", f"{rule.why}: {command}{missing}", path)

    def _texts(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        values = key.value if isinstance(key.value, list) else [key.value]
        paths = tuple(path for value in values if (path := self._path(value)))
        if len(paths) != len(values):
            return self._row(key, rule, "suggested", "not a path", format_legacy_value(key.value))
        if missing := [path.name for path in paths if not os.path.isfile(path)]:
            return self._row(key, rule, "suggested", f"not there: {', '.join(missing)}", paths)
        return self._row(key, rule, "mapped", rule.why, paths)

    def _manifests(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        """Manifests of pairs, without the language that stands behind their names: it is the run's."""
        values = key.value if isinstance(key.value, list) else [key.value]
        paths = tuple(path for value in values if (path := self._path(_without_language(value))))
        if len(paths) != len(values):
            return self._row(key, rule, "suggested", "not a path", format_legacy_value(key.value))
        if missing := [path.name for path in paths if not os.path.isfile(path)]:
            return self._row(key, rule, "suggested", f"not there: {', '.join(missing)}", paths)
        languages = {match[1] for value in values if (match := _MANIFEST_LANGUAGE.search(str(value)))}
        if others := sorted(languages - {self._language_of_run()}):
            why = f"in {', '.join(others)}: sets of base languages are learnt as data.replay, in merged mode"
            return self._row(key, rule, "suggested", why, paths)
        return self._row(key, rule, "mapped", rule.why, paths)

    def _language_of_run(self) -> str | None:
        """The language given by hand, or the first that a manifest names."""
        manifests = [key for key in self._old.keys if key.rule and key.rule.reads == "manifest"]
        named = [match[1] for key in manifests if (match := _MANIFEST_LANGUAGE.search(format_legacy_value(key.value)))]
        return self._given.language or next(iter(named), None)

    def _language(self, key: LegacyKey, rule: LegacyKeyRule) -> KeyTranslation:
        try:
            settings = parse_settings(RunSettings, {"language": key.value}, self._old.path)
        except ConfigError as error:
            return self._row(
                key, rule, "suggested", f"not a language code: {error.finding.expected}", format_legacy_value(key.value)
            )
        return self._row(key, rule, "mapped", rule.why, settings.language)

    def _language_inside(self, key: LegacyKey, rule: LegacyKeyRule) -> Iterator[KeyTranslation]:
        """A language code that is a part of another value: FILE::am, am=FILE."""
        patterns: dict[ValueKind, re.Pattern[str]] = {"manifest": _MANIFEST_LANGUAGE, "dataset": _DATASET_LANGUAGE}
        pattern = patterns.get(rule.reads)
        for value in key.value if isinstance(key.value, list) else [key.value]:
            if pattern and isinstance(value, str) and (match := pattern.search(value)):
                yield KeyTranslation(
                    key.name, format_legacy_value(value), "mapped", "the language in it", "language", match[1], key.line
                )

    # ---- values ---------------------------------------------------------------------------------------------------

    def _path(self, value: Any) -> Path | None:
        """A path in the old file: from that file's folder, or from one above where only there something is.

        The forks keep their files in config/ and scripts/, and run them from the folder above.
        """
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            return None
        if value.startswith("~/"):
            return Path.home() / value[2:]
        own = self._old.path.parent / value
        places = [own, *(self._old.path.parent / above / value for above in ("..", "../.."))]
        return next((_tidy(place) for place in places if os.path.exists(place)), own)

    def _folder_of(self, key: LegacyKey) -> Path | None:
        path = None if _needs_a_shell(key.value) else self._path(key.value)
        return path.parent if path else None

    def _why_no_base(self, folder: Path) -> str:
        """Why a folder is not a base; nothing where it is one."""
        if not os.path.isdir(folder):
            return "its folder is not there"
        try:
            resolve_base_family(folder, self._given.family).files(folder)
        except (FileError, ConfigError, CheckpointError) as error:
            return f"its folder is no base: {error.finding.found}"
        return ""


def _published_names() -> set[str]:
    """Names of the files by which a base folder is known."""
    families = [get_family(name) for name in family_names()]
    return {name for kind in families for name in (*kind.checkpoint_names, *kind.tokenizer_names)} | {"config.yaml"}


def _tidy(path: Path) -> Path:
    """The path without `..` where that is the same place; with symbolic links it need not be."""
    plain = Path(os.path.normpath(path))
    return plain if os.path.exists(plain) and os.path.samefile(plain, path) else path


def _without_language(value: Any) -> Any:
    return _MANIFEST_LANGUAGE.sub("", value) if isinstance(value, str) else value


def _needs_a_shell(value: Any) -> bool:
    return isinstance(value, str) and "$" in value


def _as_number(value: Any) -> int | float | None:
    """A finite number, also where YAML reads a text (1e-5 without a point); None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(format_legacy_value(value)) > 40:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) and abs(number) < 2**53 else number


def _nested(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.partition(".")
    return {section: {name: value}}
