"""What merged training leaves: one ordinary checkpoint for stock software, and a card that says what it cost.

The same for a training as in the seeds, in a folder of its own, under its own label. Whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxgraft.course import Course
from voxgraft.errors import GraftError, finding
from voxgraft.families.model import SpeechModel
from voxgraft.families.opening import grow_model, open_model, save_model
from voxgraft.families.tensors import read_tensors
from voxgraft.files import (
    existing_file,
    existing_folder,
    read_json,
    replacing,
    replacing_folder,
    sha256_of,
    write_json,
    write_text,
)
from voxgraft.graft_folder import MERGED_CARD_NAME, README_NAME, versions
from voxgraft.nn.adapter import add_adapter, load_adapter_state, merge_adapter
from voxgraft.nn.frozen import load_new_state
from voxgraft.training.interpolation import Between, Hear, Point, chosen_point, measured_points, moved
from voxgraft.training.loop import Loop, Outcome
from voxgraft.training.options import TrainOptions
from voxgraft.training.saving import TrainState, load_step
from voxgraft.training.seeds_way import LABEL

__all__ = ["MERGED_NAME", "SEEDS_NAME", "Merged", "read_merged", "write_merged"]

MERGED_NAME, SEEDS_NAME = "merged", "as-in-the-seeds"
"""Folders in the run."""
CARD_NAME = MERGED_CARD_NAME
FORMAT = "voxgraft-merged-1"


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged checkpoint: where it is, the step and the point that it was made of, and all points that were tried."""

    folder: Path
    step: int
    point: Point
    points: tuple[Point, ...]
    first: dict[str, float]
    """Held-out speech losses of the base, before training."""


def write_merged(course: Course, loop: Loop, outcome: Outcome, hear: Hear | None = None) -> Merged:
    """Measure points between base and the best step, and write the chosen one. All processes come here; one writes.

    What is heard decides where something listens.
    """
    step = outcome.standing.best_step or outcome.step
    state = load_step(course.run, step).state
    loop.stepper.trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
    points = _points(course, loop, outcome.standing.first, hear)
    chosen = chosen_point(points)
    _journal(loop, outcome.step, points, chosen)
    folder = course.run.path / (SEEDS_NAME if course.options.mode == "as-in-the-seeds" else MERGED_NAME)
    merged = Merged(folder, step, chosen, tuple(points), outcome.standing.first)
    if loop.first:
        _write(course, state, merged)
    return merged


def read_merged(folder: Path) -> dict[str, Any]:
    """The card of a merged folder, whose files are there and are the ones that were written."""
    path = existing_folder(folder) / CARD_NAME
    card = read_json(existing_file(path))
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise GraftError("merged-broken", f"{CARD_NAME} has no format {FORMAT!r}", where=path)
    for name in ("checkpoint", "tokenizer"):
        file, stated = str(card.get(name)), card.get(f"{name}_sha256")
        if "/" in file or sha256_of(folder / file) != stated:
            raise GraftError("merged-broken", f"{file} is not the {name} that {CARD_NAME} names", where=folder)
    return card


def _points(course: Course, loop: Loop, first: Mapping[str, float], hear: Hear | None) -> list[Point]:
    """What was trained as in the seeds is shown as it is; merged training is also tried in part."""
    if course.options.mode == "as-in-the-seeds":
        return [Point(1.0, {name: validation.run().speech_loss for name, validation in loop.validations.items()}, {})]
    between = Between(loop.stepper.trained, _base_body(course, loop))

    def passed(losses: Mapping[str, float]) -> dict[str, float]:
        return course.bound.passed(first, losses) if course.bound else {}

    return measured_points(between, loop.validations, course.interpolate, passed, hear)


def _base_body(course: Course, loop: Loop) -> dict[str, Tensor]:
    """The base's own values of a body that was trained itself."""
    body = loop.stepper.trained.parameters.get("body", {})
    shapes = {name: tuple(value.shape) for name, value in body.items()}
    return read_tensors(course.files.checkpoint, shapes) if shapes else {}


def _journal(loop: Loop, step: int, points: Sequence[Point], chosen: Point) -> None:
    for point in points:
        loop.write("interpolation", step, **point.to_json(), chosen=point is chosen)
    if chosen.passed:
        rises = ", ".join(f"{name} by {100 * rise:.1f} %" for name, rise in chosen.passed.items())
        item = finding("point-past-bound", f"a share of {chosen.share:g} has raised the loss of {rises}")
        loop.write("finding", step, **item.to_json())


def _write(course: Course, state: TrainState, merged: Merged) -> None:
    tokenizer = course.graft.card.tokenizer
    model = _folded(course, state, merged.point.share)
    with replacing_folder(merged.folder) as new:
        checkpoint = course.files.checkpoint.name
        save_model(model, new / checkpoint)
        with replacing(new / tokenizer) as stream:
            stream.write(course.graft.tokenizer.data)
        card = _card(
            course, merged, {"checkpoint": sha256_of(new / checkpoint), "tokenizer": sha256_of(new / tokenizer)}
        )
        write_json(new / CARD_NAME, card)
        write_text(new / README_NAME, "\n".join(_readme(course, merged)) + "\n")


@torch.no_grad()
def _folded(course: Course, state: TrainState, share: float) -> SpeechModel:
    """The base as it is stored, with its rows grown and a share of the training in its body."""
    model = open_model(course.family, course.files, dtype=None)
    grow_model(model, course.graft.card.num_rows)
    rows, body, options = state.tensors.get("rows"), state.tensors.get("body"), course.options
    if rows:
        load_new_state(model, rows)
    if "adapter" in state.tensors:
        add_adapter(model, model.adapter_layers(), options.rank, options.alpha * share, options.seed)
        load_adapter_state(model, state.tensors["adapter"])
        merge_adapter(model)
    if body:
        model.load_state_dict(_moved_body(model.state_dict(), body, share, options))
    return model


def _moved_body(
    stored: Mapping[str, Tensor], body: Mapping[str, Tensor], share: float, options: TrainOptions
) -> dict[str, Tensor]:
    """Training in half precision started from rounded values, and only what it added to those is taken."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.precision, torch.float32)
    return {
        name: moved(value, value.to(half), body[name], share) if name in body else value
        for name, value in stored.items()
    }


def _card(course: Course, merged: Merged, hashes: Mapping[str, str]) -> dict[str, Any]:
    card, options = course.graft.card, course.options
    compared = options.mode == "as-in-the-seeds"
    return {
        "format": FORMAT,
        "label": LABEL if compared else "",
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
        "versions": {**versions(), "torch": torch.__version__},
    }


def _readme(course: Course, merged: Merged) -> list[str]:
    card = course.graft.card
    compared = course.options.mode == "as-in-the-seeds"
    lines = [f"# {card.language} in {card.family}, {'for comparison' if compared else 'merged'}", ""]
    if compared:
        lines += [f"**Trained {LABEL}.** Its rows and its body are not the base's; use it for nothing else.", ""]
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
