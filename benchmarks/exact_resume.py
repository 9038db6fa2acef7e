"""Stop and resume on a GPU against going straight on, at full size, with `deterministic` on.

    python3 -m benchmarks.exact_resume --out result.json            about two minutes

The resumed half runs in a process of its own, from a saved step on disk. Everything trained, the optimizer and the
losses are compared bit by bit. What `deterministic` costs in speed is told by `benchmarks.train_step`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.train_step import Bench
from voxgraft.checkpoints.steps import TrainState, load_step
from voxgraft.core.run import RunFolder
from voxgraft.training.checkpoint import save_step
from voxgraft.training.trainable import copy_optimizer_state, restore_optimizer_state

MODES: dict[str, dict[str, Any]] = {"gated": {"mode": "gated"}, "full": {"mode": "merged", "full_backbone": True}}
HALF, WHOLE = 6, 12


def train(family: str, mode: str, first: int, last: int, run: Path) -> dict[str, Any]:
    """Steps `first` to `last`, after the step saved before them if there is one; saves the last."""
    bench = Bench(family, "full", "cuda", 1)
    stepper, stream = bench.stepper(16_384, deterministic=True, **MODES[mode])
    if first > 1:
        state = load_step(RunFolder(run)).state
        stepper.trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
        restore_optimizer_state(stepper.optimizer, state.tensors["optimizer"])
    losses = []
    for number in range(first, last + 1):
        report = stepper.step(number, stream.step(number))
        losses.append([report.text_loss, report.speech_loss, *report.norms.values()])
    run.mkdir(exist_ok=True)
    tensors = {**stepper.trained.tensors(), "optimizer": copy_optimizer_state(stepper.optimizer)}
    save_step(RunFolder(run), TrainState(last, tensors, {}), keep_last=9, keep=())
    return {"losses": losses}


def apart(family: str, mode: str, first: int, last: int, run: Path) -> dict[str, Any]:
    """The same in a process of its own."""
    asked = json.dumps([family, mode, first, last, str(run)])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.exact_resume", "--part", asked], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(family: str, mode: str, folder: Path) -> dict[str, Any]:
    straight = apart(family, mode, 1, WHOLE, folder / "straight")
    first = apart(family, mode, 1, HALF, folder / "halves")
    second = apart(family, mode, HALF + 1, WHOLE, folder / "halves")
    ends = [load_step(RunFolder(folder / name)).state.tensors for name in ("straight", "halves")]
    pairs = [(ends[0][group][name], ends[1][group][name]) for group in ends[0] for name in ends[0][group]]
    return {
        "family": family,
        "mode": mode,
        "tensors": len(pairs),
        "equal_tensors": sum(torch.equal(*pair) for pair in pairs),
        "equal_losses": straight["losses"] == first["losses"] + second["losses"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["chatterbox"])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        family, mode, first, last, run = json.loads(options.part)
        print(json.dumps(train(family, mode, first, last, Path(run))))
        return
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    found = []
    for family in options.families:
        for mode in options.modes:
            with tempfile.TemporaryDirectory() as folder:
                found.append(compare(family, mode, Path(folder)))
            print(found[-1], flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=2))
    if any(one["equal_tensors"] < one["tensors"] or not one["equal_losses"] for one in found):
        raise SystemExit("not all is equal")


if __name__ == "__main__":
    main()
