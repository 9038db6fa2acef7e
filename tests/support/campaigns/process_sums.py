"""Two processes against one, in every mode and precision, with accumulation: losses, gradients and weights side by side.

    python -m tests.support.campaigns.process_sums                                on a processor, about a minute
    python -m tests.support.campaigns.process_sums --device cuda                  two processes on one card, which talk through gloo
    python -m tests.support.campaigns.process_sums --device cuda --compile        one process replays CUDA graphs, two do not
    python -m tests.support.campaigns.process_sums --only merged-full/bf16

On a processor half precision needs ONEDNN_MAX_CPU_ISA=AVX512_CORE where oneDNN would take instructions that the machine
does not have; the script sets it for its children. Ends with 1 unless every pair is the same within rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from tests.support.trainers import OPTIONS, Place, loop_of
from voxgraft.config.train_options import TrainOptions, TrainPrecision
from voxgraft.core.errors import VoxgraftError
from voxgraft.training.distributed import DistributedContext

# Four or five packs a step: two or three backward passes in each of two processes.
LONG = replace(OPTIONS, steps=4, warmup_steps=1, batch_tokens=900, microbatch_tokens=240)
MODES: dict[str, TrainOptions] = {
    "gated": LONG,
    "merged-adapter": replace(LONG, mode="merged", kl_weight=1.0),
    "merged-full": replace(LONG, mode="merged", full_backbone=True, kl_weight=1.0),
    "masked-finetune": replace(LONG, mode="masked-finetune"),
}
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CASES = tuple(f"{mode}/{precision}" for mode in MODES for precision in PRECISIONS)
# A loss is a mean over some hundred positions. What rounds differently in half precision is the order in which float32
# gradients are added, and from step 2 on the weights that were moved by it.
FIRST_STEP, LATER = 1e-5, {"float32": 1e-4, "bf16": 1e-2, "fp16": 1e-2}
OTHER_KERNELS = 5e-3
"""At step 1 where one process replays packs that are filled up, and two compute them as they are."""
SMALLEST = 1e-2
"""Differences are shares of a figure, or of this where it is smaller: the KL to the base begins at zero."""


@dataclass(frozen=True)
class Pair:
    """One mode and precision, trained by one process and by two."""

    case: str
    one: dict[str, Any]
    two: list[dict[str, Any]]
    compiled: bool = False

    def largest(self, what: str, *, steps: slice = slice(None)) -> float:
        """The largest relative difference of a kind of figures between one process and the first of two."""
        ours, theirs = self.one[what][steps], self.two[0][what][steps]
        pairs = [(a[key], b[key]) for a, b in zip(ours, theirs, strict=True) for key in a]
        return float(max(abs(a - b) / max(abs(a), SMALLEST) for a, b in pairs))

    @property
    def weights(self) -> float:
        """The largest difference of a weight, as a share of the largest move of one since the first step."""
        moved = max(float((end - begin).abs().max()) for begin, end in _zipped(self.one["first"], self.one["last"]))
        apart = max(float((a - b).abs().max()) for a, b in _zipped(self.one["last"], self.two[0]["last"]))
        return apart / moved

    @property
    def ranks_equal(self) -> bool:
        return all(torch.equal(a, b) for a, b in _zipped(self.two[0]["last"], self.two[1]["last"]))

    @property
    def is_same(self) -> bool:
        first = slice(0, 1)
        limit = max(LATER[self.case.rpartition("/")[2]], 4 * OTHER_KERNELS if self.compiled else 0.0)
        at_first = OTHER_KERNELS if self.compiled else FIRST_STEP
        early = max(self.largest("losses", steps=first), self.largest("norms", steps=first)) <= at_first
        return early and self.largest("norms") <= limit and self.largest("losses") <= limit and self.ranks_equal

    def row(self) -> str:
        names = self.one["norms"][0]
        norms = "; ".join(f"{n} {self.one['norms'][0][n]:.4f}, {self.two[0]['norms'][0][n]:.4f}" for n in names)
        cells = (
            self.case,
            f"{self.one['packs']} | {norms}",
            f"{self.largest('norms', steps=slice(0, 1)):.1e}, {self.largest('norms'):.1e}",
            f"{self.largest('losses', steps=slice(0, 1)):.1e}, {self.largest('losses'):.1e}",
            f"{self.weights:.1e}",
            "yes" if self.ranks_equal else "**no**",
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| case | packs | gradient norms at step 1: one, two processes | relative difference of norms: step 1, all "
    "| of losses: step 1, all | weights, share of the largest move | ranks hold the same bits |\n"
    "| --- | ---: | --- | --- | --- | ---: | --- |"
)


def measured(place: Place, folder: Path, cases: Sequence[str], device: str, *, compiled: bool = False) -> list[Pair]:
    """Every case by one process, then by two; each number of processes is started once."""
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for world_size in (1, 2):
        arguments = (world_size, place, folder, tuple(cases), device, compiled)
        spawn(_work, arguments, nprocs=world_size, join=True)  # type: ignore[no-untyped-call]
    found = []
    for case in cases:
        one, *two = (
            torch.load(_answer(folder, case, size, rank), weights_only=True) for size, rank in ((1, 0), (2, 0), (2, 1))
        )
        found.append(Pair(case, one, two, compiled))
    return found


def _work(
    rank: int, world_size: int, place: Place, folder: Path, cases: Sequence[str], device: str, compiled: bool
) -> None:
    torch.set_num_threads(1)
    if world_size > 1:
        meeting = f"file://{folder / 'meeting'}"
        # nccl does not let two processes share a card.
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    group = DistributedContext(rank, world_size)
    for case in cases:
        found = _trained(place, folder, case, device, group, compiled=compiled)
        torch.save(found, _answer(folder, case, world_size, rank))
    if world_size > 1:
        dist.destroy_process_group()


def _trained(
    place: Place, folder: Path, case: str, device: str, group: DistributedContext, *, compiled: bool
) -> dict[str, Any]:
    mode, precision = case.split("/")
    options = replace(
        MODES[mode], precision=cast(TrainPrecision, precision), deterministic=device == "cuda", compile=compiled
    )
    run = folder / f"{mode}-{precision}-{group.world_size}-{group.rank}"
    loop = loop_of(place, run, options, group=group, device=device, dtype=PRECISIONS[precision])
    stepper = loop.stepper
    first, losses, norms, packs = _weights(loop), [], [], []
    for number in range(1, options.steps + 1):
        items = loop.stream.step(number)
        packs.append(len(stepper.prefetcher.batches(items).batches))
        report = stepper.step(number, items)
        losses.append({"text": report.text_loss, "speech": report.speech_loss, "kl": report.kl or 0.0})
        norms.append(dict(report.norms))
        group.require_same_bits(stepper.state_tensors(), number)
    return {"losses": losses, "norms": norms, "packs": max(packs), "first": first, "last": _weights(loop)}


def _weights(loop: Any) -> dict[str, torch.Tensor]:
    groups = loop.stepper.trained.tensors()
    return {f"{part}/{name}": value.float().cpu() for part, named in groups.items() for name, value in named.items()}


def _answer(folder: Path, case: str, world_size: int, rank: int) -> Path:
    return folder / f"{case.replace('/', '-')}.{world_size}.{rank}.pt"


def _zipped(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    assert ours.keys() == theirs.keys()
    return [(ours[name], theirs[name]) for name in ours]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="chatterbox")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--json", type=Path, help="file for the verdicts")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = Place.make(asked.family, folder / asked.family)
        pairs = measured(place, folder, asked.only, asked.device, compiled=asked.compile)
    print(HEAD)
    for pair in pairs:
        print(pair.row())
    if asked.json:
        asked.json.write_text(json.dumps({pair.case: pair.is_same for pair in pairs}, indent=1) + "\n")
    wrong = [pair.case for pair in pairs if not pair.is_same]
    print(
        f"{len(pairs) - len(wrong)} of {len(pairs)} are the same within rounding" + (f"; not: {wrong}" if wrong else "")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except VoxgraftError as error:
        sys.exit("\n".join(error.finding.lines()))
