"""Settings: every one is defined once here and serves as flag, YAML key, help text and documentation.

A verb takes one of these models. Nothing here imports torch or a tokenizer.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from voxgraft.errors import ConfigError

FamilyName = Literal["chatterbox", "indextts2"]
RowInit = Literal["romanised", "script-mean", "mean", "random"]
TrainMode = Literal["gated", "merged", "rows-only"]


class Settings(BaseModel):
    """Base of all settings: frozen, no unknown keys, the docstring under a field is its help."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class TokenizerSettings(Settings):
    """How the new pieces are learnt."""

    pieces: int = Field(1000, ge=0, le=20_000)
    """Multi-character pieces to learn, at most. Single characters do not count."""
    min_count: int = Field(5, ge=2)
    """A piece must occur this often in the texts to be taken."""
    max_piece_characters: int = Field(12, ge=2, le=32)
    """Longest piece, in characters."""
    file: Path | None = None
    """A ready-made grown tokenizer to use instead of training one. It is proven like our own."""


class RowSettings(Settings):
    """How the new rows start."""

    init: RowInit = "romanised"
    """First values of a new row. romanised: romanise the piece, spell that with the base, average those rows."""
    noise: float = Field(0.05, ge=0, le=1)
    """Noise on each new row, as a share of the base rows' spread, so that no two rows are equal."""
    seed: int = Field(0, ge=0)
    """Seed of that noise."""


class TrainSettings(Settings):
    """Rates and weights for training, checked against the family's sane ranges."""

    mode: TrainMode = "gated"
    """gated (the base never changes), merged (one ordinary checkpoint), rows-only."""
    row_rate: float = Field(1e-3, gt=0)
    """Learning rate of the new rows."""
    adapter_rate: float = Field(1e-3, gt=0)
    """Learning rate of the adapter."""
    body_rate: float = Field(2e-5, gt=0)
    """Learning rate of the body; used in merged mode only."""
    weight_decay: float = Field(0.01, ge=0, lt=1)
    """Weight decay of adapter and body. New rows are never decayed, base rows are never in the optimizer."""
    warmup_steps: int = Field(500, ge=0)
    """Steps over which the rates rise from zero."""
    steps: int = Field(10_000, ge=1)
    """Optimizer steps."""
    text_weight: float | None = Field(None, ge=0)
    """Weight of the text loss; empty means the family's own (1 for chatterbox, 0.2 for indextts2)."""
    speech_weight: float | None = Field(None, ge=0)
    """Weight of the speech loss; empty means the family's own (1 for chatterbox, 0.8 for indextts2)."""


class RunSettings(Settings):
    """Everything that a run folder's run.yaml can say."""

    base: Path | None = None
    """Folder of the base, as its makers publish it. It is only read."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    language: str | None = Field(None, pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")
    """Code of the new language, such as am, ti, km."""
    texts: tuple[Path, ...] = ()
    """Text files of the new language, one sentence per line."""
    proof_texts: tuple[Path, ...] = ()
    """Your own texts of base languages, proven beside the built-in corpus (NAME.txt or en.txt, fr.txt ...)."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """Tokenizer of the new language."""
    rows: RowSettings = RowSettings()
    """New rows."""
    train: TrainSettings = TrainSettings()
    """Training."""


AnySettings = TypeVar("AnySettings", bound=Settings)


def settings_from(kind: type[AnySettings], values: Mapping[str, Any], where: Path | str) -> AnySettings:
    """Settings from plain values; every fault is named with its key, and unknown keys with the nearest valid one."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise _config_error(kind, error, where) from None


def merged_values(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, key by key, also inside nested mappings."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged_values(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def commented_yaml(settings: Settings, title: str) -> str:
    """The settings as YAML in which every key carries its help as a comment."""
    lines = [f"# {line}" for line in title.splitlines()]
    return "\n".join([*lines, *_yaml_lines(settings, 0)]) + "\n"


def _yaml_lines(settings: Settings, indent: int) -> list[str]:
    pad = " " * indent
    lines: list[str] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        lines += ["", f"{pad}# {field.description}"] if field.description else [""]
        if isinstance(value, Settings):
            lines += [f"{pad}{name}:", *(line for line in _yaml_lines(value, indent + 2))]
        else:
            lines.append(f"{pad}{name}:{_yaml_value(value)}")
    return lines


def _yaml_value(value: Any) -> str:
    """JSON is YAML, and quotes every string that needs it; None is an empty value."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " [" + ", ".join(_yaml_value(item).strip() for item in value) + "]"
    if isinstance(value, float) and value and abs(value) < 1e-2:
        return f" {value:.10g}" if "e" not in f"{value:.10g}" else f" {_yaml_exponent(value)}"
    return " " + json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _yaml_exponent(value: float) -> str:
    """YAML 1.1 reads 1e-05 as a string; 1.0e-05 is a number."""
    mantissa, exponent = f"{value:.10g}".split("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"


def nearest(name: str, valid: list[str]) -> str | None:
    """The valid name closest to a mistyped one, if any is close."""
    close = difflib.get_close_matches(name.replace("-", "_"), valid, n=1, cutoff=0.5)
    return close[0] if close else None


def _config_error(kind: type[Settings], error: ValidationError, where: Path | str) -> ConfigError:
    faults = error.errors(include_url=False)
    first = faults[0]
    key = ".".join(str(part) for part in first["loc"])
    rest = "".join(f"; also {'.'.join(map(str, fault['loc']))}: {_plain(fault['msg'])}" for fault in faults[1:4])
    if first["type"] == "extra_forbidden":
        valid = _valid_names(kind, first["loc"][:-1])
        hint = nearest(str(first["loc"][-1]), valid)
        cure = f"did you mean `{hint}`?" if hint else f"valid keys here: {', '.join(valid)}."
        return ConfigError("config-unknown-key", f"unknown key `{key}`{rest}", where=where, cure=cure)
    if first["type"] == "missing":
        return ConfigError("config-missing", f"`{key}` is not given{rest}", where=where)
    return ConfigError(
        "config-value", f"`{key}` is {_shown(first['input'])}: {_plain(first['msg'])}{rest}", where=where
    )


def _valid_names(kind: type[Settings], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        field = kind.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, Settings)):
            return []
        kind = field.annotation
    return list(kind.model_fields)


def _plain(message: str) -> str:
    return message[0].lower() + message[1:]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
