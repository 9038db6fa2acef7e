"""What merged training leaves: one ordinary checkpoint for stock software, and a card that says what it cost.

The same for the masked-finetune baseline, in a folder of its own, under its own label. Whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voxgraft.checkpoints.steps import TrainState, load_step
from voxgraft.checkpoints.tensors import read_tensors
from voxgraft.checkpoints.write import write_rows_file
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import finding
from voxgraft.core.files import atomic_write, atomic_write_folder, compute_sha256, write_json, write_text
from voxgraft.core.languages import find_exemplar
from voxgraft.graft.folder import (
    ADAPTER_NAME,
    BASELINE_FOLDER_NAME,
    GRAFT_CARD_NAME,
    MASKED_BASELINE_LABEL,
    MERGED_CARD_NAME,
    MERGED_FOLDER_NAME,
    MERGED_FORMAT,
    README_NAME,
    ROWS_NAME,
    collect_versions,
    format_graft_card,
    format_graft_readme,
    hash_adapter_files,
)
from voxgraft.models.load import grow_model, load_model, save_model
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.adapter import add_adapter, load_adapter_state, merge_adapter, write_peft_folder
from voxgraft.nn.rows import load_new_rows
from voxgraft.training.setup import TrainingSetup
from voxgraft.training.trainer import Trainer, TrainOutcome
from voxgraft.training.validation import (
    AsrErrorFunction,
    InterpolationPoint,
    WeightInterpolator,
    choose_interpolation_point,
    interpolate_tensor,
    measure_interpolation_points,
)


@dataclass(frozen=True, slots=True)
class MergedCheckpoint:
    """A merged checkpoint: where it is, the step and the point that it was made of, and all points that were tried."""

    folder: Path
    step: int
    point: InterpolationPoint
    points: tuple[InterpolationPoint, ...]
    first: dict[str, float]
    """Held-out speech losses of the base, before training."""


def write_merged_folder(
    course: TrainingSetup, loop: Trainer, outcome: TrainOutcome, hear: AsrErrorFunction | None = None
) -> MergedCheckpoint:
    """Measure points between base and the best step, and write the chosen one. All processes come here; one writes.

    What is heard decides where something listens.
    """
    step = outcome.best_state.best_step or outcome.step
    state = load_step(course.run, step).state
    loop.stepper.trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
    points = _measure_points(course, loop, outcome.best_state.first, hear)
    chosen = choose_interpolation_point(points)
    _log_points(loop, outcome.step, points, chosen)
    folder = course.run.path / (
        BASELINE_FOLDER_NAME if course.options.mode == "masked-finetune" else MERGED_FOLDER_NAME
    )
    merged = MergedCheckpoint(folder, step, chosen, tuple(points), outcome.best_state.first)
    if loop.first:
        _write_merged_files(course, state, merged)
    return merged


def _measure_points(
    course: TrainingSetup, loop: Trainer, first: Mapping[str, float], hear: AsrErrorFunction | None
) -> list[InterpolationPoint]:
    """The masked-finetune baseline is written as it is; merged training is also tried in part."""
    if course.options.mode == "masked-finetune":
        return [
            InterpolationPoint(
                1.0, {name: validation.run().speech_loss for name, validation in loop.validations.items()}, {}
            )
        ]
    between = WeightInterpolator(loop.stepper.trained, _load_base_body(course, loop))

    def passed(losses: Mapping[str, float]) -> dict[str, float]:
        return course.bound.exceeded(first, losses) if course.bound else {}

    return measure_interpolation_points(between, loop.validations, course.interpolate, passed, hear)


def _load_base_body(course: TrainingSetup, loop: Trainer) -> dict[str, Tensor]:
    """The base's own values of a body that was trained itself."""
    body = loop.stepper.trained.parameters.get("body", {})
    shapes = {name: tuple(value.shape) for name, value in body.items()}
    return read_tensors(course.files.checkpoint, shapes) if shapes else {}


def _log_points(loop: Trainer, step: int, points: Sequence[InterpolationPoint], chosen: InterpolationPoint) -> None:
    for point in points:
        loop.write("interpolation", step, **point.to_json(), chosen=point is chosen)
    if chosen.exceeded:
        rises = ", ".join(f"{name} by {100 * rise:.1f} %" for name, rise in chosen.exceeded.items())
        item = finding("point-past-bound", f"a share of {chosen.share:g} has raised the loss of {rises}")
        loop.write("finding", step, **item.to_json())


def _write_merged_files(course: TrainingSetup, state: TrainState, merged: MergedCheckpoint) -> None:
    tokenizer = course.graft.card.tokenizer
    model = _build_merged_model(course, state, merged.point.share)
    with atomic_write_folder(merged.folder) as new:
        checkpoint = course.files.checkpoint.name
        save_model(model, new / checkpoint)
        with atomic_write(new / tokenizer) as stream:
            stream.write(course.graft.tokenizer.data)
        card = _build_merged_card(
            course,
            merged,
            {"checkpoint": compute_sha256(new / checkpoint), "tokenizer": compute_sha256(new / tokenizer)},
        )
        write_json(new / MERGED_CARD_NAME, card)
        write_text(new / README_NAME, "\n".join(_format_merged_readme(course, merged)) + "\n")


@torch.no_grad()
def _build_merged_model(course: TrainingSetup, state: TrainState, share: float) -> SpeechModel:
    """The base as it is stored, with its rows grown and a share of the training in its body."""
    model = load_model(course.family, course.files, dtype=None)
    grow_model(model, course.graft.card.num_rows)
    rows, body, options = state.tensors.get("rows"), state.tensors.get("body"), course.options
    if rows:
        load_new_rows(model, rows)
    if "adapter" in state.tensors:
        add_adapter(model, model.adapter_layers(), options.rank, options.alpha * share, options.seed)
        load_adapter_state(model, state.tensors["adapter"])
        merge_adapter(model)
    if body:
        model.load_state_dict(_interpolate_body(model.state_dict(), body, share, options))
    return model


def _interpolate_body(
    stored: Mapping[str, Tensor], body: Mapping[str, Tensor], share: float, options: TrainOptions
) -> dict[str, Tensor]:
    """Training in half precision started from rounded values, and only what it added to those is taken."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.precision, torch.float32)
    return {
        name: interpolate_tensor(value, value.to(half), body[name], share) if name in body else value
        for name, value in stored.items()
    }


def _build_merged_card(course: TrainingSetup, merged: MergedCheckpoint, hashes: Mapping[str, str]) -> dict[str, Any]:
    card, options = course.graft.card, course.options
    compared = options.mode == "masked-finetune"
    return {
        "format": MERGED_FORMAT,
        "label": MASKED_BASELINE_LABEL if compared else "",
        "keeps_base_rows": not compared,
        "family": card.family,
        "language": card.language,
        "tag": card.tag,
        "text": card.text,
        "num_rows": card.num_rows,
        "base": card.base,
        "checkpoint": course.files.checkpoint.name,
        "checkpoint_sha256": hashes["checkpoint"],
        "tokenizer": card.tokenizer,
        "tokenizer_sha256": hashes["tokenizer"],
        "step": merged.step,
        "share": merged.point.share,
        "speech_losses_before": merged.first,
        "points": [point.to_json() for point in merged.points],
        "trained": course.identity["options"],
        "licence": card.licence,
        "versions": {**collect_versions(), "torch": torch.__version__},
    }


def _format_merged_readme(course: TrainingSetup, merged: MergedCheckpoint) -> list[str]:
    card = course.graft.card
    compared = course.options.mode == "masked-finetune"
    lines = [f"# {card.language} in {card.family}, {'for comparison' if compared else 'merged'}", ""]
    if compared:
        lines += [
            f"**Trained {MASKED_BASELINE_LABEL}.** Its rows and its body are not the base's; use it for nothing else.",
            "",
        ]
    lines += [
        f"One ordinary checkpoint, from step {merged.step:,}, with a share of {merged.point.share:g} of what training "
        f"added to the body of {card.base['checkpoint']} (sha256 {card.base['checkpoint_sha256'][:12]}).",
        "",
    ]
    if merged.point.losses:
        lines += ["| language | speech loss before | now |", "| --- | --- | --- |"]
        lines += [
            f"| {name} | {merged.first[name]:.4f} | {loss:.4f} |"
            if name in merged.first
            else f"| {name} | | {loss:.4f} |"
            for name, loss in merged.point.losses.items()
        ]
        lines.append("")
    return [*lines, "## Licence of the base", "", card.licence]


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
