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
from voxgraft.nn.frozen import freeze_base, load_new_state, new_state, require_fitting_moments
from voxgraft.training.flat_adamw import FlatAdamW
from voxgraft.training.masters import Masters
from voxgraft.training.options import PARTS, Part, TrainOptions
from voxgraft.training.schedule import rate_share
from voxgraft.training.seeds_way import mask_base_rows

__all__ = ["Trained", "make_optimizer", "optimizer_tensors", "prepare", "restore_optimizer", "set_rates"]

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """A model made ready for a mode: its trained parameters by part, and the gate if it has an adapter."""

    model: SpeechModel
    parameters: dict[Part, dict[str, nn.Parameter]]
    gate: Gate | None
    masters: Masters = field(default_factory=lambda: Masters({}))

    def optimized(self, part: Part) -> dict[str, nn.Parameter]:
        """What the optimizer moves of a part: the parameters, or their float32 masters where they have some."""
        return {name: self.masters.named.get(name, value) for name, value in self.parameters[part].items()}

    def named(self) -> dict[str, nn.Parameter]:
        """All trained parameters by name."""
        return {name: value for part in self.parameters.values() for name, value in part.items()}

    def tensors(self) -> dict[str, Tensors]:
        """A copy of everything trained, every bit of it: rows and adapter by upstream's names, body by its own."""
        rows = new_state(self.model)
        groups: dict[str, Tensors] = {"rows": rows} if rows else {}
        if "adapter" in self.parameters:
            groups["adapter"] = adapter_state(self.model)
        if "body" in self.parameters:
            groups["body"] = {name: value.detach().clone() for name, value in self.optimized("body").items()}
        return groups

    def restore(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put back what `tensors` gave; nothing is changed unless all of it fits."""
        has_rows = bool(new_state(self.model))
        expected = {*(["rows"] if has_rows else []), *(part for part in self.parameters if part != "rows")}
        if missing := sorted(expected - groups.keys()):
            raise CheckpointError("step-parts", f"the step has no {', '.join(missing)}", expected=", ".join(expected))
        body = self.optimized("body") if "body" in self.parameters else {}
        found = {name: tuple(value.shape) for name, value in groups.get("body", {}).items()}
        wanted = {name: tuple(value.shape) for name, value in body.items()}
        if found != wanted:
            wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            raise CheckpointError("step-parts", f"the body differs in {', '.join(wrong[:5])}", expected="the same body")
        if has_rows:
            load_new_state(self.model, groups["rows"])
        if "adapter" in self.parameters:
            load_adapter_state(self.model, groups["adapter"])
        with torch.no_grad():
            for name, value in body.items():
                value.copy_(groups["body"][name])
        self.masters.spread()


def prepare(model: SpeechModel, rows: Mapping[str, Tensor], options: TrainOptions) -> Trained:
    """Make an opened base ready for a mode. `rows` are the graft's, by upstream's names; there may be none at all."""
    num_rows = len(next(iter(rows.values()))) if rows else 0
    grow_model(model, num_rows)
    load_new_state(model, rows or new_state(model))
    if options.mode == "as-in-the-seeds":
        mask_base_rows(model)
        everything = _body(model.requires_grad_(False), {})
        for value in everything.values():
            value.requires_grad_()
        return Trained(model, {"body": everything}, None, Masters(everything))
    gate = None
    adapted = options.mode == "gated" or (options.mode == "merged" and not options.full_body)
    if adapted:
        gate = add_adapter(model, model.adapter_layers(), options.rank, options.alpha, options.seed)
    grafted = freeze_base(model)
    body = _body(model, grafted) if options.mode == "merged" and options.full_body else {}
    for value in body.values():
        value.requires_grad_()
    adapter = set(adapter_state(model)) if adapted else set()
    parameters: dict[Part, dict[str, nn.Parameter]] = {
        "rows": {name: value for name, value in grafted.items() if name not in adapter},
        "adapter": {name: value for name, value in grafted.items() if name in adapter},
        "body": body,
    }
    return Trained(model, {part: named for part, named in parameters.items() if named}, gate, Masters(body))


def make_optimizer(trained: Trained, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW over the trained parameters alone, a group per part in a fixed order; rows are not decayed."""
    groups: list[dict[str, Any]] = []
    for part in PARTS:
        if part not in trained.parameters:
            continue
        named = dict(sorted(trained.optimized(part).items()))
        decay = 0.0 if part == "rows" else options.weight_decay
        groups.append({"params": list(named.values()), "names": list(named), "part": part, "weight_decay": decay})
    on_device = trained.model.device.type == "cuda"
    copies = trained.masters.copies()
    if on_device and all(_is_flat(group["params"], copies) for group in groups):
        return FlatAdamW(groups, options.betas, copies)
    fused, foreach = (True, None) if on_device else (None, False)
    return torch.optim.AdamW(groups, lr=0.0, betas=options.betas, fused=fused, foreach=foreach)


def _is_flat(parameters: Sequence[nn.Parameter], copies: Mapping[nn.Parameter, nn.Parameter]) -> bool:
    """Whether a group is of one precision, with copies or without; as the seeds trained, it is not."""
    return len({parameter in copies for parameter in parameters}) == 1


def set_rates(optimizer: torch.optim.Optimizer, step: int, options: TrainOptions) -> dict[str, float]:
    """Give every part the rate that it has at a step."""
    share = rate_share(step, options)
    rates = {}
    for group in optimizer.param_groups:
        group["lr"] = options.rates[group["part"]] * share
        rates[str(group["part"])] = group["lr"]
    return rates


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """A copy of the moments, by the name of their parameter."""
    found: Tensors = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            for moment, value in optimizer.state.get(parameter, {}).items():
                found[f"{name}/{moment}"] = torch.as_tensor(value).detach().clone()
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put moments back by name. Those of a parameter are all there or none; none belongs to nobody."""
    known: set[str] = set()
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            mine = {moment: tensors.get(f"{name}/{moment}") for moment in MOMENTS}
            known |= {f"{name}/{moment}" for moment in mine}
            if all(value is None for value in mine.values()):
                continue
            if any(value is None for value in mine.values()):
                raise CheckpointError(
                    "step-parts", f"the moments of {name} are incomplete", expected=", ".join(MOMENTS)
                )
            _put_back(optimizer, parameter, _moments(mine, parameter))
    if strange := sorted(tensors.keys() - known):
        found = f"moments of {len(strange)} tensors that are not trained, such as {strange[0]}"
        raise CheckpointError("step-parts", found, expected="moments of what is trained")
    require_fitting_moments(optimizer)


def _put_back(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, moments: dict[str, Tensor]) -> None:
    """Into their place, if they have one that was given to them."""
    places = optimizer.state.get(parameter) if isinstance(optimizer, FlatAdamW) else None
    if places is None or any(places[name].shape != value.shape for name, value in moments.items()):
        optimizer.state[parameter] = moments
        return
    for name, value in moments.items():
        places[name].copy_(value)


def _moments(values: Mapping[str, Tensor | None], parameter: nn.Parameter) -> dict[str, Tensor]:
    """On the parameter's device, but for the count of steps, which a plain AdamW keeps on the processor."""
    placed = {}
    for name, value in values.items():
        assert value is not None
        on_device = name != "step" or parameter.is_cuda
        placed[name] = value.to(parameter.device if on_device else "cpu", copy=True)
    return placed


def _body(model: SpeechModel, grafted: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Every parameter of the base that a loss can reach."""
    own = {id(value) for value in grafted.values()}
    return {
        name: value
        for name, value in model.named_parameters()
        if id(value) not in own and value.numel() and not name.startswith(model.unreached)
    }
