"""Settings: how they are defined, read from files, laid over each other and refused.

Every setting is defined once and serves as flag, YAML key, help text and documentation. `config/run.py` has what a
run can say, `config/commands.py` and `config/data.py` the commands' own models. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from voxgraft.core.errors import CATALOGUE, ConfigError, find_nearest_name
from voxgraft.core.languages import suggest_language_code
from voxgraft.core.run import RUN_FILE

LANGUAGE_CODE_HINT = "the code of a language, such as am or pt-BR"


class Settings(BaseModel):
    """Base of all settings: frozen, no unknown keys, the docstring under a field is its help."""

    model_config = ConfigDict(
        # A mistyped key must not fall back to its default for the hours of a training.
        extra="forbid",
        # No command changes what it was given: what is logged and hashed is what was used.
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        # JSON results and saved steps have no NaN.
        allow_inf_nan=False,
        defer_build=True,  # every start of the program would otherwise build the settings of all commands
    )

    words: ClassVar[Mapping[str, Mapping[str, Path]]] = {}
    """By key: words in a YAML file that mean a bundled path, unless such a file exists next to the YAML file."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_empty_text(cls, value: Any) -> Any:
        """An empty text is a shell variable that was not set; as a path it would mean the current folder."""
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            raise ValueError("a value")
        return value


def rebuild_settings_models(kind: type[Settings] = Settings) -> None:
    """Build what was deferred of all settings that are known so far: older pydantic may do that in one thread only."""
    for own in kind.__subclasses__():
        own.model_rebuild()
        rebuild_settings_models(own)


AnySettings = TypeVar("AnySettings", bound=Settings)


@dataclass(frozen=True, slots=True)
class SettingField:
    """One setting that holds a value: its dotted key, its definition, and the settings that it is in."""

    key: str
    field: FieldInfo
    owner: type[Settings]
    default: Any
    """None also where there is no default: `field.is_required()` tells."""

    @property
    def section(self) -> str:
        """The key of the settings that it is nested in, or nothing."""
        return self.key.rpartition(".")[0]

    @property
    def is_path(self) -> bool:
        """Whether the value is a path or a list of paths."""
        return Path in _annotation_parts(self.field.annotation)

    @property
    def is_list(self) -> bool:
        return tuple in _annotation_parts(self.field.annotation)

    @property
    def is_number(self) -> bool:
        return not {int, float}.isdisjoint(_annotation_parts(self.field.annotation))

    @property
    def choices(self) -> list[str]:
        """The words that can be chosen from, or none where the value is free."""
        return [part for part in _annotation_parts(self.field.annotation) if isinstance(part, str)]


def iter_setting_fields(
    kind: type[Settings], prefix: str = "", defaults: Settings | None = None
) -> Iterator[SettingField]:
    """Every setting of a model, nested ones with dotted keys, in the order of their definition."""
    for name, field in kind.model_fields.items():
        required = field.is_required() and defaults is None
        default = None if required else getattr(defaults, name, field.default)
        nested = _nested_settings(field)
        if nested is None:
            yield SettingField(prefix + name, field, kind, default)
        else:
            yield from iter_setting_fields(nested, f"{prefix}{name}.", default)


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """Where the value of a key came from, and what the key is called there."""

    where: str
    name: str


def parse_settings(
    kind: type[AnySettings],
    values: Mapping[str, Any],
    where: Path | str,
    origins: Mapping[str, SettingOrigin] | None = None,
) -> AnySettings:
    """Settings from plain values; every fault is named with its key, and unknown keys with the nearest valid one.

    `origins` names, by dotted key, the values that come from elsewhere than `where`.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise _build_config_error(kind, error, where, origins or {}) from None


def read_settings_values(kind: type[Settings], path: Path) -> dict[str, Any]:
    """The values in a YAML file for `parse_settings`. Empty values are left out; paths start at the file's folder."""
    from voxgraft.core.files import read_yaml  # a command without a run reads no YAML

    values = read_yaml(path)
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        found = f"{path.name} contains a {'list' if isinstance(values, list) else 'single value'}"
        raise ConfigError("config-shape", found, expected="keys with values", where=path)
    return _resolve_paths(kind, values, path.parent)


def deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, key by key, also inside nested mappings."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = deep_merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def format_commented_yaml(
    settings: Settings, title: str, notes: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str:
    """The settings as YAML in which every key has its help as a comment, and its `notes`, by dotted key, below that."""
    lines = [f"# {line}" for line in title.splitlines()]

    def add(section: Settings, prefix: str) -> None:
        pad = "  " * prefix.count(".")
        for name, field in type(section).model_fields.items():
            value = getattr(section, name)
            lines.append("")
            comments = [*([field.description] if field.description else ()), *notes.get(prefix + name, ())]
            lines.extend(f"{pad}# {comment}" for comment in comments)
            if isinstance(value, Settings):
                lines.append(f"{pad}{name}:")
                add(value, f"{prefix}{name}.")
            else:
                lines.append(f"{pad}{name}:{format_yaml_value(value)}")

    add(settings, "")
    return "\n".join(lines) + "\n"


def format_yaml_value(value: Any) -> str:
    """JSON is YAML, and quotes every string that needs it; None is an empty value."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " [" + ", ".join(format_yaml_value(item).strip() for item in value) + "]"
    if isinstance(value, float):
        # The shortest text that reads back as this number. YAML 1.1 takes 1e-05 for a word; 1.0e-05 is a number.
        mantissa, mark, exponent = repr(value).partition("e")
        return f" {mantissa}.0e{exponent}" if mark and "." not in mantissa else f" {value!r}"
    return " " + json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _build_config_error(
    kind: type[Settings], error: ValidationError, where: Path | str, origins: Mapping[str, SettingOrigin]
) -> ConfigError:
    """All faults as one error: the first in full, three more in its cure; wrong values before missing ones."""
    # A missing value is often the other half of a mistyped key, so it is named after that.
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] == "missing")
    first = faults[0]
    origin = _find_origin(first, where, origins)
    code = {"extra_forbidden": "config-unknown-key", "missing": "config-missing"}.get(first["type"], "config-value")
    cure = _suggest_fix(kind, first, origin) or CATALOGUE[code].cure
    if others := [_describe_fault(fault, _find_origin(fault, where, origins)) for fault in faults[1:4]]:
        cure += f" Also: {'; '.join(others)}."
    # Pydantic's words in ours: what the value should have been.
    expected_texts = {
        "extra_forbidden": "",
        "missing": "",
        "model_type": "keys with values below it",
        "path_type": "a path",
        "string_pattern_mismatch": LANGUAGE_CODE_HINT
        if _is_language_field(first)
        else f"a text of the form {first.get('ctx', {}).get('pattern')}",
        "string_type": "a text",
        "tuple_type": "a list, such as [a.txt, b.txt]",
    }
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ").split(", unable")[0]
    return ConfigError(
        code,
        _describe_fault(first, origin),
        expected=expected_texts.get(first["type"], message[0].lower() + message[1:]),
        where=origin.where,
        cure=cure,
    )


def _find_origin(fault: ErrorDetails, where: Path | str, origins: Mapping[str, SettingOrigin]) -> SettingOrigin:
    """Where the faulty value, or the list that it is an item of, came from."""
    key = _dotted_key(fault)
    return origins.get(key) or origins.get(key.rpartition(".")[0]) or SettingOrigin(str(where), key)


def _dotted_key(fault: ErrorDetails) -> str:
    return ".".join(str(part) for part in fault["loc"])


def _describe_fault(fault: ErrorDetails, origin: SettingOrigin) -> str:
    match fault["type"]:
        case "extra_forbidden":
            return f"unknown key `{origin.name}`"
        case "missing":
            return f"`{origin.name}` is not given"
    if fault["input"] == "" or (isinstance(fault["input"], list | tuple) and "" in fault["input"]):
        return f"`{origin.name}` is empty"
    text = repr(fault["input"])
    return f"`{origin.name}` is {text if len(text) <= 60 else text[:57] + '...'}"


def _suggest_fix(kind: type[Settings], fault: ErrorDetails, origin: SettingOrigin) -> str:
    """What to do about a fault; nothing where the catalogue says it."""
    key, value, sort = _dotted_key(fault), fault["input"], fault["type"]
    if sort == "extra_forbidden":
        valid = _list_valid_keys(kind, fault["loc"][:-1])
        from voxgraft.config.train_options import RENAMED_SETTINGS

        if new := RENAMED_SETTINGS.get(key):
            where = Path(origin.where)
            command = f", or run `voxgraft update {shlex.quote(str(where.parent))}`" if where.name == RUN_FILE else ""
            return f"it was renamed: write `{new}`{command}."
        hint = find_nearest_name(str(fault["loc"][-1]), valid)
        return f"did you mean `{hint}`?" if hint else f"valid keys here: {', '.join(valid)}."
    if sort == "string_type" and isinstance(value, bool):  # Norwegian is `no`, and YAML reads that as false
        return 'YAML reads this word as true or false: put it in quotes, such as "no".'
    if (
        sort == "string_pattern_mismatch"
        and _is_language_field(fault)
        and (hint := suggest_language_code(str(value), origin.name))
    ):
        return hint
    by_key = {leaf.key: leaf for leaf in iter_setting_fields(kind)}
    leaf = by_key.get(key) or by_key.get(key.rpartition(".")[0])
    if leaf is None or sort == "missing":
        return ""
    hint = find_nearest_name(str(value), leaf.choices)
    # Of names that begin alike (`chatterbox-english`, `chatterbox-multilingual`), the beginning does not choose one.
    alike = [name for name in leaf.choices if "-" in name and find_nearest_name(str(value), [name.partition("-")[0]])]
    if len(alike) > 1 and str(value) not in leaf.choices and "-" not in str(value):
        return f"did you mean {' or '.join(f'`{name}`' for name in alike)}?"
    if leaf.choices and not hint:
        return "use one of the expected values."
    return (
        f"did you mean `{hint}`?" if hint else f"change `{origin.name}`. About this setting: {leaf.field.description}"
    )


def _is_language_field(fault: ErrorDetails) -> bool:
    return str(fault["loc"][-1]) == "language"


def _resolve_paths(kind: type[Settings], values: Mapping[Any, Any], folder: Path) -> dict[Any, Any]:
    paths = {leaf.key for leaf in iter_setting_fields(kind) if leaf.is_path}
    result: dict[Any, Any] = {}
    for key, value in values.items():
        nested = _nested_settings(kind.model_fields[key]) if key in kind.model_fields else None
        if nested is not None and isinstance(value, Mapping):
            result[key] = _resolve_paths(nested, value, folder)
        elif key in paths and isinstance(value, list):
            result[key] = [_resolve_path(folder, item) for item in value]
        elif value is not None:
            replacement = kind.words.get(key, {}).get(value) if isinstance(value, str) else None
            if replacement is not None and not os.path.lexists(folder / value):
                value = str(replacement)
            result[key] = _resolve_path(folder, value) if key in paths else value
    return result


def _resolve_path(folder: Path, value: Any) -> Any:
    """`folder / value` for a relative path; anything that is not a text is left for the validation to refuse."""
    if not isinstance(value, str) or not value:
        return value
    path = str(Path.home() / value[2:] if value.startswith("~/") else folder / value)
    # `runs/a/../../talks` is hard to read. Where a folder in between is a link, `..` leads elsewhere and has to stay.
    # A path that ends in `..` is left for whoever opens it: its folder may not exist.
    short = path if path.endswith("..") else os.path.normpath(path)
    try:
        return short if os.path.realpath(short) == os.path.realpath(path) else path
    except ValueError:  # a path that no file system has (a NUL in it): refused where it is opened
        return path


def _list_valid_keys(kind: type[Settings], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        field = kind.model_fields.get(str(part))
        nested = _nested_settings(field) if field else None
        if nested is None:
            return []
        kind = nested
    return list(kind.model_fields)


def _nested_settings(field: FieldInfo) -> type[Settings] | None:
    """The settings model that a field holds, if it holds one."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _annotation_parts(annotation: Any) -> list[Any]:
    """All types that an annotation is made of; the words of a Literal are among them."""
    origin = get_origin(annotation) or annotation
    return [origin, *(part for argument in get_args(annotation) for part in _annotation_parts(argument))]
