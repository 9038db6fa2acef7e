"""The one way to take part in training from outside: a callback with a hook for each occasion."""

# ruff: noqa: ARG002 (hooks of the base class do nothing)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what only writes files, such as TensorBoard's events, needs no torch
    from voxgraft.training.validation import ValidationMetrics

__all__ = ["Callback", "LogCallback"]


class Callback:
    """Base of all callbacks. Override the hooks that are needed; the others do nothing.

    A `Trainer` calls the callbacks in the order of its list. With several processes, each has callbacks of its own:
    hooks of validation run in all of them, the others only in the process that writes.
    """

    def on_log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """The journal has a new line."""

    def on_validation(self, step: int, metrics: dict[str, ValidationMetrics]) -> Mapping[str, Any]:
        """Before a validation is written: values to add to the line of the new language."""
        return {}

    def stop_reason(self, step: int, metrics: dict[str, ValidationMetrics]) -> str | None:
        """After a validation is written: why training has to stop, or None."""
        return None

    def on_sample(self, step: int) -> Mapping[str, Any] | None:
        """Samples are due: speak, and return the values of a line of samples."""
        return None

    def compare_steps(self, best: int, last: int) -> Mapping[str, Any] | None:
        """At the end, where the loss prefers the saved step `best`: `better` says whether `last` speaks better."""
        return None


class LogCallback(Callback):
    """Passes every line of the journal to a function."""

    def __init__(self, report: Callable[[str, int, dict[str, Any]], None]) -> None:
        self._report = report

    def on_log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        self._report(kind, step, values)
