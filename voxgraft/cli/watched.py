"""What is known of a run while it trains: its history, what it does now, how long it will take. Draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from voxgraft.amounts import brief_bytes, brief_rate, brief_seconds
from voxgraft.cli.curves import Thinned
from voxgraft.history import LAST_STEPS, SPEECH, TEXT, History, number
from voxgraft.progress import active_seconds

__all__ = ["FINISHING", "LOSSES", "Watched", "held_out_words", "loss_words", "retention_words"]

LOSSES = {"text": TEXT, "speech": SPEECH}
FINISHING = "finishing the step and saving ... (once more: stop at once)"
SKIPPED_STEPS = 2
"""First steps that are slower than the rest: compilation, first touch of memory."""


@dataclass
class Watched:
    """A run as it is told, line by line."""

    clock: Callable[[], float] = active_seconds
    history: History = field(default_factory=History)
    step: int = 0
    """The step that is being made, or the last one."""
    doing: str = "starting"
    saved_step: int | None = None
    stopping: bool = False
    curves: dict[str, Thinned] = field(default_factory=lambda: {key: Thinned() for key in LOSSES.values()})
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
            self.step, self.doing = max(self.step, step), str(values.get("what", ""))
            if self.doing == "step":
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

    def left_words(self) -> str:
        """How long it will take, in words."""
        seconds = self._seconds_per_step()
        if not self.num_steps or self.history.ended:
            return ""
        if seconds is None:
            return f"time known after {LAST_STEPS} steps"
        return f"{brief_seconds((self.num_steps - self.step) * seconds)} left"

    def facts(self) -> dict[str, str]:
        """Speed, rates and memory of the last line, in words."""
        if not self.history.steps:
            return {}
        last = self.history.steps[self.history.last_logged]
        speed, epoch = number(last.get("positions_per_second")), number(last.get("epoch"))
        kl = number(last.get("kl"))
        rates = [f"{part} {brief_rate(rate)}" for part, rate in (last.get("rates") or {}).items()]
        found = {
            "speed": f"{speed:,.0f} tokens/s" if speed is not None else "",
            "pass": f"pass {epoch:,.2f}" if epoch is not None else "",
            "rates": ", ".join(rates),
            "kl": f"{kl:.4f}" if kl is not None else "",
            "memory": f"memory {_memory_words(last)}" if _memory_words(last) else "",
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
                if (value := number(values.get(key))) is not None:
                    curve.add(value)
            while len(self.history.steps) > LAST_STEPS:
                del self.history.steps[next(iter(self.history.steps))]

    def _time(self, step: int) -> None:
        self._begun += 1
        if self._begun > SKIPPED_STEPS:
            self._timed = [*self._timed[:1], (self.clock(), step)]

    def _seconds_per_step(self) -> float | None:
        """As measured here, with everything between the steps; before that as the journal has it from earlier."""
        if len(self._timed) == 2 and self._timed[1][1] - self._timed[0][1] >= LAST_STEPS - SKIPPED_STEPS:
            (first, step), (last, later) = self._timed
            return (last - first) / (later - step)
        return self.history.seconds_per_step(self._positions) if len(self.history.steps) >= LAST_STEPS else None


def loss_words(values: Mapping[str, Any]) -> str:
    """The losses of a line."""
    kl = {"kl": "kl"} if "kl" in values else {}
    return "  ".join(f"{name} {_figure(values.get(key), '.4f')}" for name, key in {**LOSSES, **kl}.items())


def held_out_words(history: History, values: Mapping[str, Any]) -> str:
    """What a validation found, with the levels that it is to be held against."""
    name = str(values.get("set", ""))
    words = [f"held out {name}: {loss_words(values)}"]
    uses = {use: number(values.get(f"{use}_use")) for use in ("text", "voice")}
    words += [f"{use} use {gap:+.4f}" for use, gap in uses.items() if gap is not None]
    if name == history.language:
        first = {key: history.first_level(key) for key in LOSSES.values()}
        for word, levels in (("step 0", first), ("chance", history.chance)):
            known = [_figure(levels.get(key), ".2f") for key in LOSSES.values()]
            words.append(f"{word} {'/'.join(known)}")
        words += [f"state {history.state.values['state']}"] if history.state else []
    elif points := history.retention(name):
        words.append(f"{points[-1][1]:+.2%} since step 0")
    return "  ".join(words)


def retention_words(history: History) -> str:
    """How every base language stands against step 0."""
    known = {name: history.retention(name) for name in history.base_languages}
    words = [f"{name} {points[-1][1]:+.2%}" for name, points in known.items() if points]
    return f"{', '.join(words)} (speech loss since step 0)" if words else ""


def _figure(value: Any, form: str) -> str:
    known = number(value)
    return "-" if known is None else format(known, form)


def _memory_words(line: Mapping[str, Any]) -> str:
    """The process's memory, and on CUDA what is in use, kept, and was the most."""
    process = number(line.get("memory_process_bytes"))
    words = [f"{brief_bytes(process)}"] if process is not None else []
    cuda = [number(line.get(f"memory_cuda{name}_bytes")) for name in ("", "_reserved", "_peak")]
    if (now := cuda[0]) is not None:
        others = [
            f"{brief_bytes(value)} {word}" for value, word in zip(cuda[1:], ("kept", "at most"), strict=True) if value
        ]
        words.append(f"CUDA {brief_bytes(now)} ({', '.join(others)})" if others else f"CUDA {brief_bytes(now)}")
    return ", ".join(words)
