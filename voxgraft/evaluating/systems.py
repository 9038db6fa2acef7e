"""What is judged: a base, and the same base with a graft, a merged checkpoint, a saved step, or another checkpoint.

Opens models and says how each of them reads a text; speaks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from voxgraft.errors import CheckpointError, GraftError
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.model import SpeechModel
from voxgraft.families.opening import grow_model, load_model
from voxgraft.families.tensors import iter_tensors
from voxgraft.files import compute_sha256, is_folder
from voxgraft.graft_folder import Graft, find_text_rules, load_graft, parse_text_rules
from voxgraft.merged_folder import read_merged_card
from voxgraft.nn.adapter import Gate
from voxgraft.nn.frozen import load_new_rows
from voxgraft.nn.peft_format import load_peft_adapter
from voxgraft.normalising import NO_RULES, TextRules
from voxgraft.peft_folder import read_peft_folder
from voxgraft.run import RunFolder
from voxgraft.spelling import TextEncoder
from voxgraft.tokenizers import open_tokenizer
from voxgraft.trained_graft import ADAPTER_NAME
from voxgraft.training.options import TrainOptions
from voxgraft.training.parts import TrainableModel, make_trainable
from voxgraft.training.saving import load_step
from voxgraft.training.seeds_way import MASKED_BASELINE_LABEL

__all__ = [
    "ModelContext",
    "SpeakingModel",
    "open_base_model",
    "open_checkpoint_model",
    "open_grafted_model",
    "open_merged_model",
    "open_step_model",
]


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The base that everything is measured against, and where its model computes."""

    family: Family
    files: BaseFiles
    device: str
    dtype: torch.dtype

    def model(self, files: BaseFiles | None = None) -> SpeechModel:
        return load_model(self.family, files or self.files, device=self.device, dtype=self.dtype)

    def spelling(self) -> TextEncoder:
        return TextEncoder.of(self.family, open_tokenizer(self.files.tokenizer), None, None)


@dataclass(frozen=True)
class SpeakingModel:
    """One way to speak: a model, how it reads, and whether its adapter acts only for the new language."""

    name: str
    family: Family
    model: SpeechModel
    spelling: TextEncoder
    gate: Gate | None = None
    mode: str = "base"
    """base, gated, rows-only, merged, as-in-the-seeds or checkpoint."""
    step: int | None = None
    label: str = ""
    """What has to be said of it wherever it is shown; empty where nothing has."""
    checkpoint: Path | None = None
    """The file that holds all its values; None where more than one file went into them."""

    @property
    def keeps_base(self) -> bool:
        """Whether the old languages are promised to be the base's, bit for bit."""
        return self.mode in ("base", "gated", "rows-only")

    @property
    def trained(self) -> TrainableModel:
        """The same for what measures a model that is trained."""
        return TrainableModel(self.model, {}, self.gate)

    def is_open(self, language: str) -> bool:
        """Whether the adapter acts when that language is spoken."""
        return self.mode != "gated" or self.spelling.is_new_language(language)

    def set_gate_for(self, language: str) -> AbstractContextManager[None]:
        """The gate as that language needs it, inside this block."""
        if self.gate is None:
            return nullcontext()
        return self.gate.opened() if self.is_open(language) else self.gate.closed()

    def ids(self, text: str, language: str) -> list[int]:
        """The text as this system reads it. What the stock program takes out of a text is taken out here too."""
        barred = self.model.frame.forbidden_text_ids
        return [one for one in self.spelling.encode(text, language) if one not in barred]


def open_base_model(place: ModelContext) -> SpeakingModel:
    """The base alone, as it was published."""
    return SpeakingModel("base", place.family, place.model(), place.spelling(), checkpoint=place.files.checkpoint)


def open_grafted_model(place: ModelContext, graft: Graft) -> SpeakingModel:
    """The base with a graft: its rows, and its adapter behind a gate if it has one."""
    _require_same_base(place, graft.card.base, graft.folder)
    model = place.model()
    grow_model(model, graft.card.num_rows)
    load_new_rows(model, {name: torch.from_numpy(values) for name, values in graft.rows.items()})
    folder = graft.folder / ADAPTER_NAME
    gate = load_peft_adapter(model, read_peft_folder(folder)) if is_folder(folder) else None
    trained = graft.card.method.get("trained")
    step = trained.get("step") if isinstance(trained, dict) else None
    label = "" if step is not None else "not trained yet"
    model.requires_grad_(False).eval()
    return SpeakingModel(
        "graft",
        place.family,
        model,
        _build_text_encoder(place, graft.tokenizer.path, graft.card.language, graft.card.rules),
        gate,
        "gated" if gate else "rows-only",
        step,
        label,
    )


def open_merged_model(place: ModelContext, folder: Path) -> SpeakingModel:
    """What merged training, or one as in the seeds, has left: one ordinary checkpoint."""
    card = read_merged_card(folder)
    _require_same_base(place, card["base"], folder)
    mode = "merged" if card.get("keeps_base_rows") else "as-in-the-seeds"
    rules = parse_text_rules(card.get("text"), folder)
    spelling = _build_text_encoder(place, folder / card["tokenizer"], str(card["language"]), rules)
    label = str(card.get("label") or "")
    path = folder / card["checkpoint"]
    model = _load_extended_checkpoint(place, path, int(card["num_rows"]))
    return SpeakingModel(mode, place.family, model, spelling, None, mode, int(card["step"]), label, path)


def open_step_model(place: ModelContext, run: RunFolder, step: int | None) -> SpeakingModel:
    """What a saved step of a run says: that one, or the newest."""
    graft = load_graft(run.graft)
    _require_same_base(place, graft.card.base, run.graft)
    state = load_step(run, step).state
    options = _read_train_options(state.values, run)
    rows = {name: values.float() for name, values in state.tensors.get("rows", {}).items()}
    if not rows:  # those of a graft that were trained as part of the body
        rows = {name: torch.from_numpy(values) for name, values in graft.rows.items()}
    trained = make_trainable(place.model(), rows, options)
    trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
    model = trained.model.requires_grad_(False).eval()
    spelling = _build_text_encoder(place, graft.tokenizer.path, graft.card.language, graft.card.rules)
    label = MASKED_BASELINE_LABEL if options.mode == "as-in-the-seeds" else ""
    return SpeakingModel(
        f"step {state.step:,}", place.family, model, spelling, trained.gate, options.mode, state.step, label
    )


def open_checkpoint_model(place: ModelContext, folder: Path, language: str | None) -> SpeakingModel:
    """Another checkpoint of the base's family, with the tokenizer beside it."""
    files = place.family.files(folder)
    grown = open_tokenizer(files.tokenizer).size > open_tokenizer(place.files.tokenizer).size
    if grown and language is None:
        found = f"{files.tokenizer.name} has more pieces than the base's, and which language has them is not said"
        raise GraftError("evaluate-language", found, expected="--language", where=folder)
    spelling = TextEncoder.of(place.family, open_tokenizer(files.tokenizer), None, None)
    if grown:
        # Nothing is known of how others normalised their texts, so they are read as they are.
        spelling = _build_text_encoder(
            place, files.tokenizer, str(language), find_text_rules(files.tokenizer) or TextRules(NO_RULES)
        )
    name, model = folder.resolve().name, place.model(files)
    return SpeakingModel(name, place.family, model, spelling, None, "checkpoint", checkpoint=files.checkpoint)


def _load_extended_checkpoint(place: ModelContext, path: Path, num_rows: int) -> SpeechModel:
    """A checkpoint with more rows than the base's own config, where there is one, knows of."""
    model = place.model()
    grow_model(model, num_rows)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state = {name: tensor.to(place.device) for name, tensor in iter_tensors(path, shapes, dtype=place.dtype)}
    model.load_state_dict(state)
    return model.requires_grad_(False).eval()


def _build_text_encoder(place: ModelContext, tokenizer: Path, language: str, rules: TextRules) -> TextEncoder:
    """Base languages by the base's own tokenizer, the new one by the grown."""
    base = open_tokenizer(place.files.tokenizer)
    return TextEncoder.of(place.family, base, open_tokenizer(tokenizer), language, rules)


def _require_same_base(place: ModelContext, stated: dict[str, Any], where: Path) -> None:
    """Raise unless the base is the one that something was made on: on another its rows mean nothing."""
    for name, path in (("checkpoint", place.files.checkpoint), ("tokenizer", place.files.tokenizer)):
        wanted, actual = str(stated.get(f"{name}_sha256")), compute_sha256(path)
        if actual != wanted:
            found = f"{path.name} has sha256 {actual[:12]}"
            raise GraftError("base-other", found, expected=f"{wanted[:12]}, on which {where.name} was made", where=path)


def _read_train_options(values: Mapping[str, Any], run: RunFolder) -> TrainOptions:
    """How a step was trained; the rest of what it holds is for going on with it."""
    stated = values.get("identity", {}).get("options")
    known = TrainOptions.__slots__
    if not isinstance(stated, dict) or not {"mode", "rank", "alpha"} <= stated.keys():
        raise CheckpointError("step-damaged", "the step does not say how it was trained", where=run.steps)
    return TrainOptions(**{name: value for name, value in stated.items() if name in known})
