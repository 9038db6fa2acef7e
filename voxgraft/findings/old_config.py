"""The numbers in another trainer's YAML that matter here: sizes, freeze boundary, rates. Other keys are passed over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import ConfigError
from voxgraft.files import read_yaml

_SIZE_KEYS = ("model.n_vocab", "gpt.number_text_tokens", "model.vocab_size", "model.num_text_tokens")
_FREEZE_KEYS = ("model.freeze_until_index", "finetuning.freeze_until_index", "training.freeze_until_index")
_FREEZE_SWITCHES = (
    "model.freeze_original_embeddings",
    "finetuning.freeze_original_embeddings",
    "training.freeze_original_embeddings",
)
_RATE_KEYS = ("training.learning_rate", "train.learning_rate", "optimizer.learning_rate", "learning_rate")


@dataclass(frozen=True, slots=True)
class Stated:
    """A number and the key under which it stands. `as_text`: YAML took it for a text."""

    key: str
    value: float
    as_text: bool = False


@dataclass(frozen=True, slots=True)
class OldConfig:
    """What an old config says; None where it says nothing."""

    path: Path
    pieces: Stated | None
    """The number of text tokens that the model is built with."""
    original_pieces: Stated | None
    freeze_until: Stated | None
    freeze_original: bool | None
    learning_rate: Stated | None
    weight_decay: Stated | None
    steps: Stated | None


def read_old_config(path: Path) -> OldConfig:
    """The YAML file of another trainer."""
    values = read_yaml(path)
    if not isinstance(values, Mapping):
        raise ConfigError("config-shape", f"{path.name} holds no keys", expected="keys with values", where=path)
    reader = _Reader(values, path)
    return OldConfig(
        path,
        pieces=reader.count(_SIZE_KEYS),
        original_pieces=reader.count(("model.original_vocab_size",)),
        freeze_until=reader.count(_FREEZE_KEYS),
        freeze_original=reader.switch(_FREEZE_SWITCHES),
        learning_rate=reader.number(_RATE_KEYS),
        weight_decay=reader.number(("training.weight_decay", "train.weight_decay", "weight_decay")),
        steps=reader.count(("training.max_steps", "train.max_steps", "max_steps")),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    values: Mapping[Any, Any]
    path: Path

    def number(self, keys: tuple[str, ...]) -> Stated | None:
        """The first of the keys that is there, as a number of 0 or more."""
        for key in keys:
            value = self._at(key)
            if value is None:
                continue
            as_text = isinstance(value, str)
            number = _as_float(value)
            if number is None or number < 0:
                raise self._wrong(key, value, "a number, 0 or more")
            return Stated(key, number, as_text)
        return None

    def count(self, keys: tuple[str, ...]) -> Stated | None:
        """As `number`, for whole numbers."""
        stated = self.number(keys)
        if stated is not None and stated.value != int(stated.value):
            raise self._wrong(stated.key, stated.value, "a whole number")
        return stated

    def switch(self, keys: tuple[str, ...]) -> bool | None:
        for key in keys:
            value = self._at(key)
            if value is not None:
                if not isinstance(value, bool):
                    raise self._wrong(key, value, "true or false")
                return value
        return None

    def _at(self, key: str) -> Any:
        value: Any = self.values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> ConfigError:
        return ConfigError("config-value", f"`{key}` is {value!r:.60}", expected=expected, where=self.path)


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
