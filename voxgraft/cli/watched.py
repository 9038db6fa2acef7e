"""What is known of a run while it trains: its history, what it does now, how long it will take. Draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from voxgraft.amounts import format_bytes, format_duration, format_learning_rate
from voxgraft.cli.curves import DownsampledCurve
from voxgraft.history import SPEECH_LOSS, SPEED_WINDOW_STEPS, TEXT_LOSS, History, as_finite_float
from voxgraft.progress import active_seconds

__all__ = ["LOSS_KEYS", "STOPPING_MESSAGE", "TrainProgress", "format_losses", "format_retention", "format_validation"]

LOSS_KEYS = {"text": TEXT_LOSS, "speech": SPEECH_LOSS}
STOPPING_MESSAGE = "finishing the step and saving ... (once more: stop at once)"
SKIPPED_TIMING_STEPS = 2
"""First steps that are slower than the rest: compilation, first touch of memory."""


@dataclass
class TrainProgress:
    """A run as it is told, line by line."""

    clock: Callable[[], float] = active_seconds
    history: History = field(default_factory=History)
    step: int = 0
    """The step that is being made, or the last one."""
    current_activity: str = "starting"
    saved_step: int | None = None
    stopping: bool = False
    curves: dict[str, DownsampledCurve] = field(
        default_factory=lambda: {key: DownsampledCurve() for key in LOSS_KEYS.values()}
    )
    """Training losses."""
    _timed: list[tuple[float, int]] = field(default_factory=list)
    """When steps began, and their numbers: the first that counts, and the last."""
    _begun: int = 0
    _positions: int | None = None
    """Of a step, now; those before may have had others."""

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One more thing that was told."""
        if kind == "opening":
            self._open(step, values)
        elif kind == "doing":
            self.step, self.current_activity = max(self.step, step), str(values.get("what", ""))
            if self.current_activity == "step":
                self._time(step)
        elif kind == "saved":
            self.saved_step = step
        elif kind == "stopping":
            self.stopping = True
        else:
            self._remember(kind, step, values)
            self.step = max(self.step, step)

    @property
    def num_steps(self) -> int:
        return self.history.num_steps

    @property
    def share(self) -> float | None:
        """How much of the run is done."""
        return min(1.0, self.step / self.num_steps) if self.num_steps else None

    def format_time_left(self) -> str:
        """How long it will take, in words."""
        seconds = self._seconds_per_step()
        if not self.num_steps or self.history.ended:
            return ""
        if seconds is None:
            return f"time known after {SPEED_WINDOW_STEPS} steps"
        return f"{format_duration((self.num_steps - self.step) * seconds)} left"

    def facts(self) -> dict[str, str]:
        """Speed, rates and memory of the last line, in words."""
        if not self.history.steps:
            return {}
        last = self.history.steps[self.history.last_logged]
        speed, epoch = as_finite_float(last.get("positions_per_second")), as_finite_float(last.get("epoch"))
        kl = as_finite_float(last.get("kl"))
        rates = [f"{part} {format_learning_rate(rate)}" for part, rate in (last.get("rates") or {}).items()]
        found = {
            "speed": f"{speed:,.0f} tokens/s" if speed is not None else "",
            "pass": f"pass {epoch:,.2f}" if epoch is not None else "",
            "rates": ", ".join(rates),
            "kl": f"{kl:.4f}" if kl is not None else "",
            "memory": f"memory {_format_memory(last)}" if _format_memory(last) else "",
        }
        return {name: text for name, text in found.items() if text}

    def _open(self, step: int, values: Mapping[str, Any]) -> None:
        for entry in values.get("entries") or ():
            self._remember(entry["kind"], entry["step"], entry)
        self.history.num_steps = values.get("steps") or self.history.num_steps
        self._positions = values.get("positions")
        self.step = step

    def _remember(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """A run may take weeks: of its steps only the curves and the last lines are kept."""
        self.history.add(kind, step, values)
        if kind == "step":
            for key, curve in self.curves.items():
                if (value := as_finite_float(values.get(key))) is not None:
                    curve.add(value)
            while len(self.history.steps) > SPEED_WINDOW_STEPS:
                del self.history.steps[next(iter(self.history.steps))]

    def _time(self, step: int) -> None:
        self._begun += 1
        if self._begun > SKIPPED_TIMING_STEPS:
            self._timed = [*self._timed[:1], (self.clock(), step)]

    def _seconds_per_step(self) -> float | None:
        """As measured here, with everything between the steps; before that as the journal has it from earlier."""
        if len(self._timed) == 2 and self._timed[1][1] - self._timed[0][1] >= SPEED_WINDOW_STEPS - SKIPPED_TIMING_STEPS:
            (first, step), (last, later) = self._timed
            return (last - first) / (later - step)
        return self.history.seconds_per_step(self._positions) if len(self.history.steps) >= SPEED_WINDOW_STEPS else None


def format_losses(values: Mapping[str, Any]) -> str:
    """The losses of a line."""
    kl = {"kl": "kl"} if "kl" in values else {}
    return "  ".join(f"{name} {_format_number(values.get(key), '.4f')}" for name, key in {**LOSS_KEYS, **kl}.items())


def format_validation(history: History, values: Mapping[str, Any]) -> str:
    """What a validation found, with the levels that it is to be held against."""
    name = str(values.get("set", ""))
    words = [f"held out {name}: {format_losses(values)}"]
    uses = {use: as_finite_float(values.get(f"{use}_use")) for use in ("text", "voice")}
    words += [f"{use} use {gap:+.4f}" for use, gap in uses.items() if gap is not None]
    if name == history.language:
        first = {key: history.initial_loss(key) for key in LOSS_KEYS.values()}
        for word, levels in (("step 0", first), ("chance", history.chance)):
            known = [_format_number(levels.get(key), ".2f") for key in LOSS_KEYS.values()]
            words.append(f"{word} {'/'.join(known)}")
        words += [f"state {history.state.values['state']}"] if history.state else []
    elif points := history.retention(name):
        words.append(f"{points[-1][1]:+.2%} since step 0")
    return "  ".join(words)


def format_retention(history: History) -> str:
    """How every base language stands against step 0."""
    known = {name: history.retention(name) for name in history.base_languages}
    words = [f"{name} {points[-1][1]:+.2%}" for name, points in known.items() if points]
    return f"{', '.join(words)} (speech loss since step 0)" if words else ""


def _format_number(value: Any, form: str) -> str:
    known = as_finite_float(value)
    return "-" if known is None else format(known, form)


def _format_memory(line: Mapping[str, Any]) -> str:
    """The process's memory, and on CUDA what is in use, kept, and was the most."""
    process = as_finite_float(line.get("memory_process_bytes"))
    words = [f"{format_bytes(process)}"] if process is not None else []
    cuda = [as_finite_float(line.get(f"memory_cuda{name}_bytes")) for name in ("", "_reserved", "_peak")]
    if (now := cuda[0]) is not None:
        others = [
            f"{format_bytes(value)} {word}" for value, word in zip(cuda[1:], ("kept", "at most"), strict=True) if value
        ]
        words.append(f"CUDA {format_bytes(now)} ({', '.join(others)})" if others else f"CUDA {format_bytes(now)}")
    return ", ".join(words)
