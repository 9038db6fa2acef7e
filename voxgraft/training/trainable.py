"""What is trained: rows, adapter, body, by mode; the optimizer over exactly these; their way in and out of a step.

The base's rows are in no mode a parameter, but for the one that is there for comparison (`seeds_way`). Knows nothing of
data or runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from voxgraft.core.errors import CheckpointError
from voxgraft.models.load import grow_model, list_base_parameters
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.adapter import Gate, adapter_state, add_adapter, load_adapter_state
from voxgraft.nn.freeze import collect_new_rows, freeze_base, load_new_rows, require_matching_moments
from voxgraft.nn.rows import GrownLayer, to_plain_layer
from voxgraft.training.options import TRAIN_PARTS, TrainOptions, TrainPart, learning_rate_factor

ADAMW_EPS = 1e-8
CLIP_NORM_EPS = 1e-6
"""What torch adds to a length before it divides by it."""


@dataclass(frozen=True)
class _FlatGroup:
    """The parameters of a group one after another, each from the beginning of a block."""

    values: Tensor  # [N] float32
    gradients: Tensor  # [N] float32
    means: Tensor  # [N] float32
    squares: Tensor  # [N] float32
    half_precision_copies: Tensor | None  # [N] in half precision
    owners: Tensor  # [blocks] int32: the parameter that a block belongs to
    steps: Tensor  # [parameters] float32
    spans: list[tuple[int, torch.Size]]

    def parts(self, row: Tensor) -> list[Tensor]:
        """One of the rows as the parameters see it."""
        return [row[start : start + shape.numel()].view(shape) for start, shape in self.spans]


class FlatAdamW(torch.optim.Optimizer):
    """AdamW whose parameters, and the half-precision copies of them, are moved into rows when it is made."""

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        betas: tuple[float, float],
        copies: Mapping[nn.Parameter, nn.Parameter],
    ) -> None:
        """`copies` are the model's rounded copies of those parameters that have some."""
        super().__init__([dict(group) for group in groups], {"lr": 0.0, "betas": betas, "weight_decay": 0.0})
        self._rows = [_flatten_group(group["params"], copies) for group in self.param_groups]
        moved = [parameter for group in self.param_groups for parameter in group["params"]]
        self._updated_tensors = [*moved, *(copies[parameter] for parameter in moved if parameter in copies)]
        for group, row in zip(self.param_groups, self._rows, strict=True):
            moments = zip(row.parts(row.means), row.parts(row.squares), row.steps, strict=True)
            for parameter, (mean, square, step) in zip(group["params"], moments, strict=True):
                self.state[parameter] = {"exp_avg": mean, "exp_avg_sq": square, "step": step}

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Where the gradient of every parameter is kept: who computes it there saves a copy."""
        return {
            parameter: part
            for group, row in zip(self.param_groups, self._rows, strict=True)
            for parameter, part in zip(group["params"], row.parts(row.gradients), strict=True)
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's interface)
        """Move by the gradients as they are."""
        self.clip_and_step(0.0, torch.zeros((), device=self._rows[0].values.device))

    @torch.no_grad()
    def clip_and_step(self, limit: float, witness: Tensor) -> list[Tensor]:
        """Move each group by its gradient, at most `limit` long (0: as it is); gives the lengths before that.

        Nothing at all moves unless every length and the `witness` are finite.
        """
        reached = [self._gather_gradients(group, row) for group, row in zip(self.param_groups, self._rows, strict=True)]
        norms = [torch.linalg.vector_norm(row.gradients) for row in self._rows]
        fine = torch.isfinite(torch.stack([*norms, witness.sum()])).all()
        for group, row, norm, moving in zip(self.param_groups, self._rows, norms, reached, strict=True):
            factor = (limit / (norm + CLIP_NORM_EPS)).clamp(max=1.0) if limit else torch.ones_like(norm)
            factor = torch.where(fine, factor, torch.full_like(factor, float("nan")))
            self._apply_update(group, row, factor, torch.where(fine, row.steps + moving, row.steps), moving)
        # The kernel writes past torch's back, and who keeps a copy of a parameter looks at its version.
        torch.autograd.graph.increment_version(self._updated_tensors)
        return norms

    def _gather_gradients(self, group: Mapping[str, Any], row: _FlatGroup) -> Tensor:
        """Bring gradients that autograd made elsewhere into their row; 1 for the parameters that have one."""
        places, found, reached = [], [], []
        for parameter, place in zip(group["params"], row.parts(row.gradients), strict=True):
            gradient = parameter.grad
            reached.append(float(gradient is not None))
            if gradient is None:
                place.zero_()
            elif gradient.data_ptr() != place.data_ptr():
                places.append(place)
                found.append(gradient)
        if places:
            torch._foreach_copy_(places, found)
        return torch.tensor(reached).pin_memory().to(row.steps.device, non_blocking=True)

    def _apply_update(
        self, group: Mapping[str, Any], row: _FlatGroup, factor: Tensor, steps: Tensor, moving: Tensor
    ) -> None:
        from voxgraft.nn.training_kernels import ADAMW_BLOCK_SIZE, adamw_step_kernel

        row.steps.copy_(steps)
        adamw_step_kernel[(len(row.owners),)](
            row.values,
            row.gradients,
            row.means,
            row.squares,
            row.values if row.half_precision_copies is None else row.half_precision_copies,
            row.owners,
            steps * moving,
            factor,
            group["lr"],
            *group["betas"],
            ADAMW_EPS,
            group["weight_decay"],
            COPIED=row.half_precision_copies is not None,
            BLOCK=ADAMW_BLOCK_SIZE,
        )


def _flatten_group(parameters: Sequence[nn.Parameter], copies: Mapping[nn.Parameter, nn.Parameter]) -> _FlatGroup:
    from voxgraft.nn.training_kernels import ADAMW_BLOCK_SIZE

    blocks = [-(-parameter.numel() // ADAMW_BLOCK_SIZE) for parameter in parameters]
    starts = [ADAMW_BLOCK_SIZE * sum(blocks[:at]) for at in range(len(blocks))]
    device = parameters[0].device
    values, gradients, means, squares = (torch.zeros(ADAMW_BLOCK_SIZE * sum(blocks), device=device) for _ in range(4))
    rounded = [copies[parameter] for parameter in parameters if parameter in copies]
    if rounded and len(rounded) < len(parameters):
        raise ValueError("either all parameters of a group have copies, or none has")
    row = _FlatGroup(
        values,
        gradients,
        means,
        squares,
        torch.zeros(len(values), device=device, dtype=rounded[0].dtype) if rounded else None,
        torch.repeat_interleave(torch.tensor(blocks)).to(device, torch.int32),
        torch.zeros(len(parameters), device=device),
        [(start, parameter.shape) for start, parameter in zip(starts, parameters, strict=True)],
    )
    _move_into_buffer(parameters, row.parts(row.values))
    if row.half_precision_copies is not None:
        _move_into_buffer(rounded, row.parts(row.half_precision_copies))
    return row


def _move_into_buffer(parameters: Sequence[nn.Parameter], places: Sequence[Tensor]) -> None:
    """From now on the parameters live there."""
    for parameter, place in zip(parameters, places, strict=True):
        place.copy_(parameter.detach())
        parameter.data = place


class MasterWeights:
    """One master for each half-precision parameter, by the same name."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._copies = {name: value for name, value in parameters.items() if value.dtype != torch.float32}
        self.named = {name: nn.Parameter(value.detach().float()) for name, value in self._copies.items()}

    def __len__(self) -> int:
        return len(self.named)

    def half_precision_copies(self) -> dict[nn.Parameter, nn.Parameter]:
        """The rounded copy of every master."""
        return {master: self._copies[name] for name, master in self.named.items()}

    def rounded(self) -> dict[str, nn.Parameter]:
        """What the model computes with, by name."""
        return dict(self._copies)

    def collect(self) -> None:
        """Add the gradients of the copies to those of the masters, and clear them; after every backward pass."""
        copies, firsts = [], []
        for name, copy in self._copies.items():
            if copy.grad is None:
                continue
            master = self.named[name]
            if master.grad is None:
                master.grad = torch.empty_like(master)
                copies.append(copy.grad)
                firsts.append(master.grad)
            else:
                master.grad.add_(copy.grad)
            copy.grad = None
        if copies:
            torch._foreach_copy_(firsts, copies)

    @torch.no_grad()
    def spread(self) -> None:
        """Round the masters into the copies; after every move of the optimizer, and after a restore."""
        if self.named:
            copies: list[Tensor] = list(self._copies.values())
            torch._foreach_copy_(copies, list(self.named.values()))


def mask_base_row_gradients(model: SpeechModel) -> None:
    """Make the grown text tables of a model ordinary parameters, and take the gradients of base rows to zero."""
    for name in (model.text_embedding_name, model.text_head_name):
        grown = model.get_submodule(name)
        assert isinstance(grown, GrownLayer)
        plain = to_plain_layer(grown)
        for table in plain.parameters():
            mask = partial(_zero_base_rows, num_rows=grown.rows.base_pieces)
            table.register_hook(mask)  # type: ignore[no-untyped-call]
        model.set_submodule(name, plain)


def _zero_base_rows(gradient: Tensor, *, num_rows: int) -> Tensor:
    masked = gradient.clone()
    masked[:num_rows] = 0
    return masked


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
    if options.mode == "masked-finetune":
        mask_base_row_gradients(model)
        everything = list_base_parameters(model.requires_grad_(False), {})
        for value in everything.values():
            value.requires_grad_()
        return TrainableModel(model, {"body": everything}, None, MasterWeights(everything))
    gate = None
    adapted = options.mode == "gated" or (options.mode == "merged" and not options.full_body)
    if adapted:
        gate = add_adapter(model, model.adapter_layers(), options.rank, options.alpha, options.seed)
    grafted = freeze_base(model)
    body = list_base_parameters(model, grafted) if options.mode == "merged" and options.full_body else {}
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
    """Whether a group is of one precision, with copies or without; in the masked-finetune baseline it is not."""
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
