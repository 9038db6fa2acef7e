"""The numbers in another trainer's config or command line that matter here: sizes, freeze boundary, rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import ConfigError
from voxgraft.old_configs import LegacyConfig, LegacyKey, read_legacy_config

_CONFIG_SIZE_KEYS = ("model.n_vocab", "gpt.number_text_tokens")
_CONFIG_RATE_KEYS = ("training.learning_rate", "--learning-rate")
_CONFIG_DECAY_KEYS = ("training.weight_decay", "--weight-decay")
_CONFIG_STEP_KEYS = ("training.max_steps", "--max-steps")
_CONFIG_FREEZE_KEYS = ("model.freeze_original_embeddings", "finetuning.freeze_original_embeddings")


@dataclass(frozen=True, slots=True)
class StatedNumber:
    """A number and the key under which it stands. `as_text`: YAML took it for a text."""

    key: str
    value: float
    as_text: bool = False

    @property
    def count(self) -> int:
        return int(self.value)


@dataclass(frozen=True, slots=True)
class OldConfigNumbers:
    """What an old config or command line says; None where it says nothing."""

    path: Path
    family: str | None
    pieces: StatedNumber | None
    """The number of text tokens that the model is built with."""
    original_pieces: StatedNumber | None
    freeze_until: StatedNumber | None
    freeze_original: bool | None
    learning_rate: StatedNumber | None
    weight_decay: StatedNumber | None
    steps: StatedNumber | None
    start_text: StatedNumber | None = None
    stop_text: StatedNumber | None = None


def read_old_config_numbers(path: Path) -> OldConfigNumbers:
    """The file's numbers; other keys are passed over, since nothing here is taken over into a run."""
    reader = _OldConfigReader(read_legacy_config(path))
    return OldConfigNumbers(
        path,
        family=reader.old.family,
        pieces=reader.count(_CONFIG_SIZE_KEYS),
        original_pieces=reader.count(("model.original_vocab_size",)),
        freeze_until=reader.count(("model.freeze_until_index", "finetuning.freeze_until_index")),
        freeze_original=reader.switch(_CONFIG_FREEZE_KEYS),
        learning_rate=reader.number(_CONFIG_RATE_KEYS),
        weight_decay=reader.number(_CONFIG_DECAY_KEYS),
        steps=reader.count(_CONFIG_STEP_KEYS),
        start_text=reader.count(("gpt.start_text_token",)),
        stop_text=reader.count(("gpt.stop_text_token",)),
    )


@dataclass(frozen=True, slots=True)
class _OldConfigReader:
    old: LegacyConfig

    def number(self, keys: tuple[str, ...]) -> StatedNumber | None:
        """The first of the keys that is there, as a number of 0 or more."""
        if (found := self._first(keys)) is None:
            return None
        number = _parse_finite_float(found.value)
        if number is None or number < 0:
            raise self._wrong(found, "a number, 0 or more")
        # On a command line every value is a text, and that is no mistake there.
        return StatedNumber(found.name, number, isinstance(found.value, str) and found.line is None)

    def count(self, keys: tuple[str, ...]) -> StatedNumber | None:
        """As `number`, for whole numbers."""
        stated = self.number(keys)
        if stated is not None and stated.value != stated.count:
            found = f"`{stated.key}` is {stated.value:g}"
            raise ConfigError("config-value", found, expected="a whole number", where=self.old.path)
        return stated

    def switch(self, keys: tuple[str, ...]) -> bool | None:
        """The first of the keys that is there, as true or false."""
        found = self._first(keys)
        if found is not None and not isinstance(found.value, bool):
            raise self._wrong(found, "true or false")
        return found.value if found is not None else None

    def _first(self, keys: tuple[str, ...]) -> LegacyKey | None:
        """A flag stands behind the name of its script. Of two values the last counts."""
        by_name = {key.name.rpartition(" ")[2]: key for key in self.old.keys if key.value is not None}
        return next((by_name[key] for key in keys if key in by_name), None)

    def _wrong(self, key: LegacyKey, expected: str) -> ConfigError:
        return ConfigError("config-value", f"`{key.name}` is {key.value!r:.60}", expected=expected, where=self.old.path)


def _parse_finite_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
