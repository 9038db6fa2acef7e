"""What training leaves: the trained graft, or one ordinary checkpoint of merged training with a card of its costs.

The masked-finetune baseline leaves a checkpoint too, in a folder of its own, under its own label. Every folder is
written completely or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxgraft.checkpoints.steps import TrainState, load_step
from voxgraft.checkpoints.tensors import read_tensors
from voxgraft.checkpoints.write import write_rows_file
from voxgraft.core.errors import finding
from voxgraft.core.files import atomic_write, atomic_write_folder, compute_sha256, write_json, write_text
from voxgraft.core.languages import find_exemplar
from voxgraft.graft.folder import (
    ADAPTER_NAME,
    BASELINE_FOLDER_NAME,
    MASKED_BASELINE_LABEL,
    MERGED_CARD_NAME,
    MERGED_FOLDER_NAME,
    MERGED_FORMAT,
    README_NAME,
    ROWS_NAME,
    collect_versions,
    format_graft_readme,
    hash_adapter_files,
    write_graft_card,
)
from voxgraft.models.load import HALF_PRECISION_DTYPES, grow_model, load_model, save_model
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
    setup: TrainingSetup, loop: Trainer, outcome: TrainOutcome, hear: AsrErrorFunction | None = None
) -> MergedCheckpoint:
    """Measure points between the base and the best step, and write the chosen one. All processes call it; one writes.

    With `hear`, the error of a recognizer decides between the points.
    """
    step = outcome.best_state.best_step or outcome.step
    first = outcome.best_state.first
    state = load_step(setup.run, step).state
    trained = loop.stepper.trained
    trained.restore(state.tensors)
    is_baseline = setup.options.mode == "masked-finetune"
    if is_baseline:  # written as it is; merged training is also tried in part
        losses = {name: validation.run().speech_loss for name, validation in loop.validations.items()}
        points = [InterpolationPoint(1.0, losses, {})]
    else:
        # A body that was trained itself is interpolated between the base's own values and the trained ones.
        shapes = {name: tuple(value.shape) for name, value in trained.parameters.get("body", {}).items()}
        base_body = read_tensors(setup.files.checkpoint, shapes) if shapes else {}

        def exceeded(losses: Mapping[str, float]) -> dict[str, float]:
            return setup.bound.exceeded(first, losses) if setup.bound else {}

        points = measure_interpolation_points(
            WeightInterpolator(trained, base_body), loop.validations, setup.interpolate, exceeded, hear
        )
    chosen = choose_interpolation_point(points)
    for point in points:
        loop.write("interpolation", outcome.step, **point.to_json(), chosen=point is chosen)
    if chosen.exceeded:
        rises = ", ".join(f"{name} by {100 * rise:.1f} %" for name, rise in chosen.exceeded.items())
        item = finding("point-past-bound", f"interpolation weight {chosen.share:g} raises the loss of {rises}")
        loop.write("finding", outcome.step, **item.to_json())
    folder = setup.run.path / (BASELINE_FOLDER_NAME if is_baseline else MERGED_FOLDER_NAME)
    merged = MergedCheckpoint(folder, step, chosen, tuple(points), first)
    if loop.first:
        model = _build_merged_model(setup, state, chosen.share)
        own, checkpoint = setup.graft.card, setup.files.checkpoint.name
        with atomic_write_folder(folder) as new:
            save_model(model, new / checkpoint)
            with atomic_write(new / own.tokenizer) as stream:
                stream.write(setup.graft.tokenizer.data)
            card = {
                "format": MERGED_FORMAT,
                "label": MASKED_BASELINE_LABEL if is_baseline else "",
                "keeps_base_rows": not is_baseline,
                "family": own.family,
                "language": own.language,
                "tag": own.tag,
                "text": own.text,
                "num_rows": own.num_rows,
                "base": own.base,
                "checkpoint": checkpoint,
                "checkpoint_sha256": compute_sha256(new / checkpoint),
                "tokenizer": own.tokenizer,
                "tokenizer_sha256": compute_sha256(new / own.tokenizer),
                "step": step,
                "share": chosen.share,
                "speech_losses_before": first,
                "points": [point.to_json() for point in points],
                "trained": setup.identity["options"],
                "licence": own.licence,
                "versions": {**collect_versions(), "torch": torch.__version__},
            }
            write_json(new / MERGED_CARD_NAME, card)
            write_text(new / README_NAME, _format_merged_readme(setup, merged))
    return merged


@torch.no_grad()
def _build_merged_model(setup: TrainingSetup, state: TrainState, share: float) -> SpeechModel:
    """The base as it is stored, with its tables extended and a share of the training in its body."""
    model = load_model(setup.family, setup.files, dtype=None)
    grow_model(model, setup.graft.card.num_rows)
    rows, body, options = state.tensors.get("rows"), state.tensors.get("body"), setup.options
    if rows:
        load_new_rows(model, rows)
    if "adapter" in state.tensors:
        # LoRA's output is proportional to alpha, so a share of the training is a share of alpha.
        add_adapter(model, model.adapter_layers(), options.rank, options.alpha * share, options.seed)
        load_adapter_state(model, state.tensors["adapter"])
        merge_adapter(model)
    if body:
        # Training in half precision started from rounded values; only what it added to those is taken.
        half = HALF_PRECISION_DTYPES.get(options.precision, torch.float32)
        model.load_state_dict(
            {
                name: interpolate_tensor(value, value.to(half), body[name], share) if name in body else value
                for name, value in model.state_dict().items()
            }
        )
    return model


def _format_merged_readme(setup: TrainingSetup, merged: MergedCheckpoint) -> str:
    card = setup.graft.card
    is_baseline = setup.options.mode == "masked-finetune"
    lines = [f"# {card.language} in {card.family}, {'for comparison' if is_baseline else 'merged'}", ""]
    if is_baseline:
        lines += [
            f"**Trained {MASKED_BASELINE_LABEL}.** Its rows and backbone differ from the base.",
            "",
        ]
    lines += [
        f"One ordinary checkpoint, from step {merged.step:,}, interpolated with weight {merged.point.share:g} "
        f"from the backbone of {card.base['checkpoint']} (sha256 {card.base['checkpoint_sha256'][:12]}).",
        "",
    ]
    if merged.point.losses:
        lines += ["| language | speech loss before | now |", "| --- | --- | --- |"]
        for name, loss in merged.point.losses.items():
            before = f"{merged.first[name]:.4f} " if name in merged.first else ""
            lines.append(f"| {name} | {before}| {loss:.4f} |")
        lines.append("")
    return "\n".join([*lines, "## Licence of the base", "", card.licence]) + "\n"


def is_graft_current(setup: TrainingSetup, outcome: TrainOutcome) -> bool:
    """Whether the graft that was opened is already what this training leaves."""
    state = load_step(setup.run, outcome.best_state.best_step or outcome.step).state
    rows = {name: values.float().cpu().numpy() for name, values in state.tensors["rows"].items()}
    same_rows = all(np.array_equal(values, setup.graft.rows[name]) for name, values in rows.items())
    same_parts = (setup.graft.card.adapter is not None) == ("adapter" in state.tensors)
    trained = {"step": state.step, **state.values["identity"]["options"]}
    return same_rows and same_parts and setup.graft.card.method.get("trained") == trained


def write_trained_graft(setup: TrainingSetup, loop: Trainer, outcome: TrainOutcome) -> Path:
    """Replace the graft by that of the best step, or of the last where none is better. The old one is kept beside."""
    state = load_step(setup.run, outcome.best_state.best_step or outcome.step).state
    trained = loop.stepper.trained
    trained.restore(state.tensors)
    card, folder = setup.graft.card, setup.run.graft
    options = state.values["identity"]["options"]  # those that the step was made with, which may not be today's
    method: dict[str, Any] = {**card.method, "trained": {"step": state.step, **options}}
    with atomic_write_folder(folder) as new:
        with atomic_write(new / card.tokenizer) as stream:
            stream.write(setup.graft.tokenizer.data)
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
        write_graft_card(new, card)
        entry = find_exemplar(card.language)
        write_text(new / README_NAME, format_graft_readme(card, entry.name if entry else card.language, []))
    return folder
