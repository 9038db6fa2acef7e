"""One process of a training that several share, or that must be killed: `python -m tests.support.workers.train`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.support.trainers import EVERY, OPTIONS, Place, StopAt, loop_of
from voxgraft.models.speech_model import HALF_PRECISION_DTYPES
from voxgraft.training.callbacks import Callback
from voxgraft.training.distributed import join_distributed
from voxgraft.training.trainer import BestStepState, Trainer, resume_training

OWN = ("stop_at", "every", "differ_at", "prefer_at", "lone_guard_at")


def main(folder: Path, run: Path, changed: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    # oneDNN may take instructions for half precision that the processor does not have.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    options = replace(OPTIONS, **{name: value for name, value in changed.items() if name not in OWN})
    every = replace(EVERY, **changed.get("every", {}))
    dtype = HALF_PRECISION_DTYPES.get(options.precision, torch.float32)
    with join_distributed("cpu") as group:
        loop = loop_of(Place(folder.name, folder), run, options, every, group, dtype=dtype)
        stop_at = changed.get("stop_at")
        loop.callbacks.append(StopAt(stop_at))
        if group.rank == 1:
            _go_astray(loop, changed)
        loop.train(resume_training(loop))


def _go_astray(loop: Trainer, changed: Mapping[str, Any]) -> None:
    """What the second process does otherwise than the first, at a validation."""

    class Astray(Callback):
        def on_validation(self, step: int, _metrics: Any) -> dict[str, Any]:
            """Take a step for the best that is not, and no further step for any use."""
            if step == changed.get("prefer_at"):
                loop.best_state = BestStepState(step + 1, 0.0, rounds_without_better=100)
            return {}

        def stop_reason(self, step: int, _metrics: Any) -> None:
            if step == changed.get("differ_at"):
                with torch.no_grad():
                    value = next(iter(loop.stepper.trained.named().values()))
                    value.view(-1)[0] = torch.nextafter(value.view(-1)[0], torch.tensor(9.0))

    loop.callbacks += [Astray(), StopAt(changed.get("lone_guard_at"), "the second process has had enough")]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
