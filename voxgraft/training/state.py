"""The state of training: one object, and nothing else is saved. How states of older formats become today's.

Knows nothing of files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from voxgraft.errors import CheckpointError
from voxgraft.training.step_folders import STATE_FORMAT

__all__ = ["STATE_MIGRATIONS", "TrainState", "migrate_state"]


@dataclass(frozen=True, slots=True)
class TrainState:
    """Everything that training needs to go on after `step` as if it had never stopped."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    """By group (rows, adapter, body, optimizer), then by name; each group is a file."""
    values: Mapping[str, Any]
    """Everything else, as JSON gives it back: texts, finite numbers, lists, and dictionaries with texts as keys."""


StateMigration = Callable[[TrainState], TrainState]
STATE_MIGRATIONS: dict[int, StateMigration] = {}
"""For every older format that can still be opened: how its state becomes one of the next format."""


def migrate_state(
    state: TrainState,
    from_format: int,
    migrations: Mapping[int, StateMigration] = STATE_MIGRATIONS,
    to_format: int = STATE_FORMAT,
    where: str | Path = "",
) -> TrainState:
    """A state of format `found` as one of today's; an error if a format on the way is no longer known."""
    for number in range(from_format, to_format):
        if number not in migrations:
            text = (
                f"step {state.step} has format {from_format}, and nothing is left that turns {number} into {number + 1}"
            )
            raise CheckpointError("step-older", text, expected=str(to_format), where=where)
        state = migrations[number](state)
    return state


def require_json_values(values: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the value, unless reading what was written gives exactly these values again."""
    for name, value in values.items():
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`{name}` cannot be written as JSON: {error}") from None
        if not same:
            raise ValueError(f"`{name}` would not be read back as it is: {value!r}")
