"""What fits: for a memory cap, the largest pack that the probe finds, and whether training at it really runs.

    python3 -m benchmarks.memory --out result.json            full size, on a GPU (about three minutes)

Every cap is set in torch (`set_per_process_memory_fraction`), so that taking more is an error; then two steps of 16,384
positions are trained at the pack that was found. Where nothing fits, the same with activation checkpointing.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.train_step import Bench
from tests.support.families import PUBLISHED
from voxgraft.core.errors import ConfigError
from voxgraft.training.step import fit_microbatch_tokens

CAPS = (8, 12, 16, 24, 48)
MODES: dict[str, dict[str, Any]] = {"gated": {"mode": "gated"}, "full": {"mode": "merged", "full_backbone": True}}


@dataclass(frozen=True)
class Fit:
    """What came out for one cap."""

    family: str
    mode: str
    precision: str
    cap_gb: int
    microbatch_tokens: int | None
    """None where not even the longest clip fits."""
    checkpointing: bool
    peak_gb: float | None
    """Of the steps that were trained at that pack."""


def fits(bench: Bench, mode: str, precision: str, caps: Sequence[int]) -> list[Fit]:
    """All caps, the largest first, so that what compiles is compiled once."""
    found = []
    for cap in sorted(caps, reverse=True):
        for checkpointing in (False, True):
            one = _fit(bench, mode, precision, cap, checkpointing)
            if one.microbatch_tokens is not None or checkpointing:
                found.append(one)
                print(asdict(one), flush=True)
                break
    return found


def _fit(bench: Bench, mode: str, precision: str, cap: int, checkpointing: bool) -> Fit:
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(cap * 1e9 / total)
    torch.cuda.reset_peak_memory_stats()
    microbatch_tokens, peak, left = None, None, torch.cuda.memory_allocated()
    try:
        stepper, stream = bench.stepper(
            16_384, precision=precision, gradient_checkpointing=checkpointing, **MODES[mode]
        )
        microbatch_tokens = fit_microbatch_tokens(stepper, stream)
        torch.cuda.reset_peak_memory_stats()
        for number in (1, 2):
            stepper.step(number, stream.step(number))
        torch.cuda.synchronize()
        peak = round(torch.cuda.max_memory_reserved() / 1e9, 2)
    except (torch.cuda.OutOfMemoryError, ConfigError) as error:
        fate = (
            "did not fit" if microbatch_tokens is None else f"a pack of {microbatch_tokens:,} was found and did not run"
        )
        print(f"{cap} GB, {left / 1e9:.2f} of them taken before: {fate}: {str(error)[:200]}", flush=True)
        microbatch_tokens = None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return Fit(bench.kind.name, mode, precision, cap, microbatch_tokens, checkpointing, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(PUBLISHED))
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp16"])
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--caps", nargs="+", type=int, default=list(CAPS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    found: list[Fit] = []
    for precision in options.precisions:
        for family_name in options.families:
            bench = Bench(family_name, "full", "cuda", 1)
            for mode in options.modes:
                torch._dynamo.reset()
                found += fits(bench, mode, precision, options.caps)
                if options.out:
                    options.out.write_text(json.dumps([asdict(one) for one in found], indent=2))
    print("\n".join(table(found)))


def table(found: list[Fit]) -> list[str]:
    """Rows are family, mode and precision; columns are caps."""
    lines = [
        "| family, mode | precision | " + " | ".join(f"{cap} GB" for cap in CAPS) + " |",
        "|---|---|" + "---|" * len(CAPS),
    ]
    for key in dict.fromkeys((one.family, one.mode, one.precision) for one in found):
        mine = {one.cap_gb: one for one in found if (one.family, one.mode, one.precision) == key}
        lines.append(f"| {key[0]}, {key[1]} | {key[2]} | " + " | ".join(_cell(mine.get(cap)) for cap in CAPS) + " |")
    return lines


def _cell(one: Fit | None) -> str:
    if one is None:
        return "not asked"
    if one.microbatch_tokens is None:
        return "no"
    return f"{one.microbatch_tokens:,}{', checkpointing' if one.checkpointing else ''}"


if __name__ == "__main__":
    main()
