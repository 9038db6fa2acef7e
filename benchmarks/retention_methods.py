"""The methods of the retention benchmark, the rates that each may choose from, and which process runs what. No torch.

A *job* is one process: one method at one size, so that its kernels are compiled once. Within it the rates of the grid
are tried with seed 0 on all data, the one with the lowest held-out loss of the new language is taken, and everything
else is run at that rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.retention_material import STARTS
from voxgraft.config.train_options import TrainModeOrBaseline, TrainPart

__all__ = ["JOBS", "METHODS", "SHARES", "Job", "Method", "Run"]

Replay = Literal["", "recorded", "self-made"]
ROW_RATE = 1e-3
"""Of new rows beside an adapter or a body that has a rate of its own."""
BODY_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
ADAPTER_RATES = (5e-4, 1e-3, 3e-3, 6e-3)
ROWS_RATES = (1e-3, 3e-3, 1e-2)
SHARES = (0.25, 0.5, 0.75)
"""Points between base and tuned that are measured after replay with KL."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to teach a language."""

    title: str
    mode: TrainModeOrBaseline
    part: TrainPart
    """Whose rate the grid is of. As the seeds trained, and naively, everything has that rate."""
    rates: tuple[float, ...]
    rank: int = 32
    full_body: bool = False
    masked: bool = True
    """Naive training is that of the seeds without their mask."""
    replay: Replay = ""

    @property
    def keeps_base(self) -> bool:
        return self.mode in ("gated", "rows-only")


METHODS = {
    "naive": Method("naive full training", "masked-finetune", "body", BODY_RATES, masked=False),
    "seeds": Method("masked-finetune", "masked-finetune", "body", (1e-4,)),
    "rows": Method("rows only", "rows-only", "rows", ROWS_RATES),
    **{
        f"gated-{rank}": Method(f"gated LoRA {rank}", "gated", "adapter", ADAPTER_RATES, rank)
        for rank in (8, 16, 32, 64)
    },
    "replay": Method("full + recorded replay", "merged", "body", BODY_RATES, full_body=True, replay="recorded"),
    "self": Method("full + self-made replay, KL", "merged", "body", BODY_RATES, full_body=True, replay="self-made"),
    "self-lora": Method("LoRA 32 + self-made replay, KL", "merged", "adapter", ADAPTER_RATES, replay="self-made"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One training, by all that it depends on beside the common settings."""

    method: str
    rate: float
    seed: int = 0
    minutes: float = 60.0
    start: str = "romanised"
    times_steps: int = 1

    @property
    def name(self) -> str:
        parts = [self.method, f"{self.rate:g}", f"seed {self.seed}"]
        parts += [f"{self.minutes:g} min"] if self.minutes != 60 else []
        parts += [self.start] if self.start != "romanised" else []
        parts += [f"{self.times_steps} times the steps"] if self.times_steps != 1 else []
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does for a method once its rate is chosen."""

    method: str
    seeds: int = 3
    minutes: tuple[float, ...] = ()
    starts: tuple[str, ...] = ()
    extra: tuple[Run, ...] = ()
    """Runs at rates of their own."""
    curve: bool = False
    """Listen on the way, to know by which step an error is reached."""
    waits: bool = False
    """For the grid of another process of the same method."""

    def after(self, rate: float, seeds: int) -> list[Run]:
        """The runs at the chosen rate, the most important first."""
        further = [Run(self.method, rate, seed) for seed in range(1, min(self.seeds, seeds))]
        shorter = [Run(self.method, rate, minutes=minutes) for minutes in self.minutes]
        return [*further, *shorter, *(Run(self.method, rate, start=start) for start in self.starts)]


SLOW_RATE = 1e-5
LONG = 10
JOBS = {
    "base": Job(""),
    "self": Job("self"),
    "gated-32": Job("gated-32", curve=True),
    "self-lora": Job("self-lora", seeds=1),
    "seeds-long": Job("seeds", seeds=0, extra=(Run("seeds", SLOW_RATE, times_steps=LONG),)),
    "naive": Job("naive", minutes=(10, 30)),
    "replay": Job("replay"),
    "resume": Job("seeds"),
    "seeds": Job("seeds", extra=(Run("seeds", SLOW_RATE),)),
    "gated-64": Job("gated-64", seeds=1),
    "starts": Job("gated-32", seeds=1, minutes=(10, 30), starts=STARTS[1:], curve=True, waits=True),
    "gated-16": Job("gated-16", seeds=1),
    "gated-8": Job("gated-8", seeds=1),
    "rows": Job("rows", seeds=1),
}
"""In the order in which they begin: the longest first."""
