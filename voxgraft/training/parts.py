"""What is trained: rows, adapter, body, by mode; the optimizer over exactly these; their way in and out of a step.

The base's rows are in no mode a parameter, but for the one that is there for comparison (`seeds_way`). Knows nothing of
data or runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from voxgraft.errors import CheckpointError
from voxgraft.families.model import SpeechModel
from voxgraft.families.opening import grow_model
from voxgraft.nn.adapter import Gate, adapter_state, add_adapter, load_adapter_state
from voxgraft.nn.frozen import collect_new_rows, freeze_base, load_new_rows, require_matching_moments
from voxgraft.training.flat_adamw import FlatAdamW
from voxgraft.training.masters import MasterWeights
from voxgraft.training.options import TRAIN_PARTS, TrainOptions, TrainPart
from voxgraft.training.schedule import learning_rate_factor
from voxgraft.training.seeds_way import mask_base_row_gradients

__all__ = [
    "TrainableModel",
    "build_optimizer",
    "copy_optimizer_state",
    "make_trainable",
    "restore_optimizer_state",
    "set_learning_rates",
]

MOMENT_NAMES = ("exp_avg", "exp_avg_sq", "step")
NamedTensors = dict[str, Tensor]


@dataclass(frozen=True)
class TrainableModel:
    """A model made ready for a mode: its trained parameters by part, and the gate if it has an adapter."""

    model: SpeechModel
    parameters: dict[TrainPart, dict[str, nn.Parameter]]
    gate: Gate | None
    masters: MasterWeights = field(default_factory=lambda: MasterWeights({}))

    def optimizer_parameters(self, part: TrainPart) -> dict[str, nn.Parameter]:
        """What the optimizer moves of a part: the parameters, or their float32 masters where they have some."""
        return {name: self.masters.named.get(name, value) for name, value in self.parameters[part].items()}

    def named(self) -> dict[str, nn.Parameter]:
        """All trained parameters by name."""
        return {name: value for part in self.parameters.values() for name, value in part.items()}

    def tensors(self) -> dict[str, NamedTensors]:
        """A copy of everything trained, every bit of it: rows and adapter by upstream's names, body by its own."""
        rows = collect_new_rows(self.model)
        groups: dict[str, NamedTensors] = {"rows": rows} if rows else {}
        if "adapter" in self.parameters:
            groups["adapter"] = adapter_state(self.model)
        if "body" in self.parameters:
            groups["body"] = {name: value.detach().clone() for name, value in self.optimizer_parameters("body").items()}
        return groups

    def restore(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put back what `tensors` gave; nothing is changed unless all of it fits."""
        has_rows = bool(collect_new_rows(self.model))
        expected = {*(["rows"] if has_rows else []), *(part for part in self.parameters if part != "rows")}
        if missing := sorted(expected - groups.keys()):
            raise CheckpointError("step-parts", f"the step has no {', '.join(missing)}", expected=", ".join(expected))
        body = self.optimizer_parameters("body") if "body" in self.parameters else {}
        found = {name: tuple(value.shape) for name, value in groups.get("body", {}).items()}
        wanted = {name: tuple(value.shape) for name, value in body.items()}
        if found != wanted:
            wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            raise CheckpointError("step-parts", f"the body differs in {', '.join(wrong[:5])}", expected="the same body")
        if has_rows:
            load_new_rows(self.model, groups["rows"])
        if "adapter" in self.parameters:
            load_adapter_state(self.model, groups["adapter"])
        with torch.no_grad():
            for name, value in body.items():
                value.copy_(groups["body"][name])
        self.masters.spread()


def make_trainable(model: SpeechModel, rows: Mapping[str, Tensor], options: TrainOptions) -> TrainableModel:
    """Make an opened base ready for a mode. `rows` are the graft's, by upstream's names; there may be none at all."""
    num_rows = len(next(iter(rows.values()))) if rows else 0
    grow_model(model, num_rows)
    load_new_rows(model, rows or collect_new_rows(model))
    if options.mode == "as-in-the-seeds":
        mask_base_row_gradients(model)
        everything = _base_parameters(model.requires_grad_(False), {})
        for value in everything.values():
            value.requires_grad_()
        return TrainableModel(model, {"body": everything}, None, MasterWeights(everything))
    gate = None
    adapted = options.mode == "gated" or (options.mode == "merged" and not options.full_body)
    if adapted:
        gate = add_adapter(model, model.adapter_layers(), options.rank, options.alpha, options.seed)
    grafted = freeze_base(model)
    body = _base_parameters(model, grafted) if options.mode == "merged" and options.full_body else {}
    for value in body.values():
        value.requires_grad_()
    adapter = set(adapter_state(model)) if adapted else set()
    parameters: dict[TrainPart, dict[str, nn.Parameter]] = {
        "rows": {name: value for name, value in grafted.items() if name not in adapter},
        "adapter": {name: value for name, value in grafted.items() if name in adapter},
        "body": body,
    }
    return TrainableModel(
        model, {part: named for part, named in parameters.items() if named}, gate, MasterWeights(body)
    )


def build_optimizer(trained: TrainableModel, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW over the trained parameters alone, a group per part in a fixed order; rows are not decayed."""
    groups: list[dict[str, Any]] = []
    for part in TRAIN_PARTS:
        if part not in trained.parameters:
            continue
        named = dict(sorted(trained.optimizer_parameters(part).items()))
        decay = 0.0 if part == "rows" else options.weight_decay
        groups.append({"params": list(named.values()), "names": list(named), "part": part, "weight_decay": decay})
    on_device = trained.model.device.type == "cuda"
    copies = trained.masters.half_precision_copies()
    if on_device and all(_can_flatten(group["params"], copies) for group in groups):
        return FlatAdamW(groups, options.betas, copies)
    fused, foreach = (True, None) if on_device else (None, False)
    return torch.optim.AdamW(groups, lr=0.0, betas=options.betas, fused=fused, foreach=foreach)


def _can_flatten(parameters: Sequence[nn.Parameter], copies: Mapping[nn.Parameter, nn.Parameter]) -> bool:
    """Whether a group is of one precision, with copies or without; as the seeds trained, it is not."""
    return len({parameter in copies for parameter in parameters}) == 1


def set_learning_rates(optimizer: torch.optim.Optimizer, step: int, options: TrainOptions) -> dict[str, float]:
    """Give every part the rate that it has at a step."""
    share = learning_rate_factor(step, options)
    rates = {}
    for group in optimizer.param_groups:
        group["lr"] = options.rates[group["part"]] * share
        rates[str(group["part"])] = group["lr"]
    return rates


def copy_optimizer_state(optimizer: torch.optim.Optimizer) -> NamedTensors:
    """A copy of the moments, by the name of their parameter."""
    found: NamedTensors = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            for moment, value in optimizer.state.get(parameter, {}).items():
                found[f"{name}/{moment}"] = torch.as_tensor(value).detach().clone()
    return found


def restore_optimizer_state(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put moments back by name. Those of a parameter are all there or none; none belongs to nobody."""
    known: set[str] = set()
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            mine = {moment: tensors.get(f"{name}/{moment}") for moment in MOMENT_NAMES}
            known |= {f"{name}/{moment}" for moment in mine}
            if all(value is None for value in mine.values()):
                continue
            if any(value is None for value in mine.values()):
                raise CheckpointError(
                    "step-parts", f"the moments of {name} are incomplete", expected=", ".join(MOMENT_NAMES)
                )
            _restore_moments(optimizer, parameter, _move_moments_to_device(mine, parameter))
    if strange := sorted(tensors.keys() - known):
        found = f"moments of {len(strange)} tensors that are not trained, such as {strange[0]}"
        raise CheckpointError("step-parts", found, expected="moments of what is trained")
    require_matching_moments(optimizer)


def _restore_moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, moments: dict[str, Tensor]) -> None:
    """Into their place, if they have one that was given to them."""
    places = optimizer.state.get(parameter) if isinstance(optimizer, FlatAdamW) else None
    if places is None or any(places[name].shape != value.shape for name, value in moments.items()):
        optimizer.state[parameter] = moments
        return
    for name, value in moments.items():
        places[name].copy_(value)


def _move_moments_to_device(values: Mapping[str, Tensor | None], parameter: nn.Parameter) -> dict[str, Tensor]:
    """On the parameter's device, but for the count of steps, which a plain AdamW keeps on the processor."""
    placed = {}
    for name, value in values.items():
        assert value is not None
        on_device = name != "step" or parameter.is_cuda
        placed[name] = value.to(parameter.device if on_device else "cpu", copy=True)
    return placed


def _base_parameters(model: SpeechModel, grafted: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Every parameter of the base that a loss can reach."""
    own = {id(value) for value in grafted.values()}
    return {
        name: value
        for name, value in model.named_parameters()
        if id(value) not in own and value.numel() and not name.startswith(model.unused_param_prefixes)
    }
