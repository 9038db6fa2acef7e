"""What training leaves in the run's graft folder: the trained rows and the adapter of the best step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxgraft.checkpoints import write_rows_file
from voxgraft.course import TrainingSetup
from voxgraft.files import atomic_write, atomic_write_folder, compute_sha256, write_text
from voxgraft.graft_folder import (
    ADAPTER_NAME,
    GRAFT_CARD_NAME,
    README_NAME,
    ROWS_NAME,
    collect_versions,
    format_graft_card,
    format_graft_readme,
    hash_adapter_files,
)
from voxgraft.peft_folder import write_peft_folder
from voxgraft.text.characters import find_exemplar
from voxgraft.training.loop import Trainer, TrainOutcome
from voxgraft.training.saving import load_step

__all__ = ["ADAPTER_NAME", "is_graft_current", "write_trained_graft"]


def is_graft_current(course: TrainingSetup, outcome: TrainOutcome) -> bool:
    """Whether the graft that was opened is already what this training leaves."""
    state = load_step(course.run, _best_or_last_step(outcome)).state
    made = {"step": state.step, **state.values["identity"]["options"]}
    rows = {name: values.float().cpu().numpy() for name, values in state.tensors["rows"].items()}
    same = all(np.array_equal(values, course.graft.rows[name]) for name, values in rows.items())
    whole = (course.graft.card.adapter is not None) == ("adapter" in state.tensors)
    return same and whole and course.graft.card.method.get("trained") == made


def write_trained_graft(course: TrainingSetup, loop: Trainer, outcome: TrainOutcome) -> Path:
    """Make the graft anew from the best step, or from the last where none is better. The one before it is kept."""
    state = load_step(course.run, _best_or_last_step(outcome)).state
    trained = loop.stepper.trained
    trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
    card, folder = course.graft.card, course.run.graft
    options = state.values["identity"]["options"]  # those that the step was made with, which may not be today's
    method: dict[str, Any] = {**card.method, "trained": {"step": state.step, **options}}
    with atomic_write_folder(folder) as new:
        with atomic_write(new / card.tokenizer) as stream:
            stream.write(course.graft.tokenizer.data)
        note = {"family": card.family, "language": card.language, "base_sha256": card.base["checkpoint_sha256"]}
        rows = {name: values.float().cpu().numpy() for name, values in state.tensors["rows"].items()}
        write_rows_file(new / ROWS_NAME, rows, note)
        if "adapter" in state.tensors:
            write_peft_folder(new / ADAPTER_NAME, trained.model, base_name=card.family)
        card = replace(
            card,
            rows_sha256=compute_sha256(new / ROWS_NAME),
            adapter=hash_adapter_files(new),
            method=method,
            versions={**collect_versions(), "torch": torch.__version__},
        )
        write_text(new / GRAFT_CARD_NAME, format_graft_card(card))
        entry = find_exemplar(card.language)
        write_text(new / README_NAME, format_graft_readme(card, entry.name if entry else card.language, []))
    return folder


def _best_or_last_step(outcome: TrainOutcome) -> int:
    return outcome.best_state.best_step or outcome.step
