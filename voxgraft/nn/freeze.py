"""What a graft must not move: freezing it, counting it, and hashing it, so that save, resume and export can compare.

Knows the grown layers (and, through `Grafted`, adapters) but no optimizer and no run. Needs torch only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from voxgraft.core.errors import CheckpointError, GraftError
from voxgraft.nn.layers import iter_modules_by_prefix
from voxgraft.nn.rows import GraftModule, GrownLayer, RowLayout

__all__ = [
    "MODEL_PARTS",
    "ParameterCount",
    "TrainableReport",
    "build_trainable_report",
    "collect_new_rows",
    "compute_base_fingerprint",
    "freeze_base",
    "hash_base_tensors",
    "load_new_rows",
    "require_matching_moments",
    "require_same_base",
]


def freeze_base(model: nn.Module) -> dict[str, nn.Parameter]:
    """Only the graft's parameters ask for a gradient. Returns these by name: what an optimizer is given.

    A graft without rows has none here (its empty parameters are left out); torch's optimizers refuse an empty list.
    """
    model.requires_grad_(False)
    trained: dict[str, nn.Parameter] = {}
    for prefix, module in iter_modules_by_prefix(model):
        if isinstance(module, GraftModule):
            trained |= {prefix + name: value for name, value in module.graft_parameters().items() if value.numel()}
    for parameter in trained.values():
        parameter.requires_grad_()
    return trained


def hash_base_tensors(model: nn.Module) -> dict[str, str]:
    """SHA-256 of every base tensor that is not trained, by its upstream name: dtype, shape and bits.

    Base rows, parameters that ask for no gradient, and saved buffers. The graft's own parameters never count, also
    when they are frozen, so the digests of a frozen base and of the same base with any graft are equal.
    """
    tensors = {
        held.name: held.tensor
        for held in _iter_model_tensors(model)
        if not held.of_graft and not held.tensor.requires_grad
    }
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter lock
        return dict(zip(tensors, pool.map(_hash_tensor, tensors.keys(), tensors.values()), strict=True))


def compute_base_fingerprint(model: nn.Module) -> str:
    """One SHA-256 over all of `hash_base_tensors`, in the order of the names."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(hash_base_tensors(model).items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def require_same_base(model: nn.Module, digests: Mapping[str, str], where: str | Path = "") -> None:
    """Raise, naming the tensors, unless the model's base has the bits that `hash_base_tensors` once found."""
    now = hash_base_tensors(model)
    moved = sorted(name for name in now.keys() | digests.keys() if now.get(name) != digests.get(name))
    if moved:
        more = f" and {len(moved) - 5} more" if len(moved) > 5 else ""
        found = f"{len(moved)} of {len(digests)} base tensors are not what they were: {', '.join(moved[:5])}{more}"
        raise GraftError("base-moved", found, expected="the same bits", where=where)


def require_matching_moments(optimizer: torch.optim.Optimizer) -> None:
    """Raise if a state just loaded into AdamW or SGD was made for tensors of another shape.

    torch does not look, and a fused AdamW then steps the new rows with the moments of the base's first rows.
    """
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                    found = f"{name} of parameter {index} in group {group_index} has shape {list(value.shape)}"
                    raise CheckpointError("moments-mismatch", found, expected=str(list(parameter.shape)))


def collect_new_rows(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every grown layer's new rows, by upstream's names (`text_emb.weight`), as a graft's file holds them."""
    return {
        prefix + name: rows
        for prefix, layer in _iter_grown_layers(model)
        for name, rows in layer.copy_new_rows().items()
    }


def load_new_rows(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put a graft's rows into every grown layer; nothing is changed unless names and shapes all fit."""
    expected = {name: list(tensor.shape) for name, tensor in collect_new_rows(model).items()}
    found = {name: list(tensor.shape) for name, tensor in state.items()}
    if found != expected:
        raise GraftError("layer-rows-mismatch", f"the graft has {found}", expected=str(expected))
    for prefix, layer in _iter_grown_layers(model):
        layer.load_new_rows({name: state[prefix + name] for name in layer.base_tensors()})


MODEL_PARTS = ("rows", "adapter", "base rows", "body")


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """How many numbers of one of the `PARTS` are trained, in which tensors, and how many are fixed."""

    part: str
    trained: int
    fixed: int
    trained_tensors: dict[str, tuple[int, ...]]

    def line(self) -> str:
        names = [f"{name} {list(shape)}" for name, shape in self.trained_tensors.items()]
        shown = ", ".join(names) if len(names) <= 4 else f"{len(names)} tensors"
        return f"{self.part}: {self.trained:,} trained{f' ({shown})' if names else ''}, {self.fixed:,} fixed"


@dataclass(frozen=True, slots=True)
class TrainableReport:
    """What training can move and what it cannot, counted from the tensors themselves."""

    tables: dict[str, RowLayout]
    parts: tuple[ParameterCount, ...]
    fixed_base_bytes: int

    @property
    def trained(self) -> int:
        return sum(part.trained for part in self.parts)

    @property
    def fixed(self) -> int:
        return sum(part.fixed for part in self.parts)

    def lines(self) -> list[str]:
        """The report as people read it."""
        total = self.trained + self.fixed
        share = 100 * self.trained / total if total else 0.0
        return [
            *(f"{name}: {_format_table(rows)}" for name, rows in self.tables.items()),
            *(part.line() for part in self.parts),
            f"in all: {self.trained:,} trained of {total:,} ({share:.1f} %), {self.fixed:,} fixed",
            f"base bits fixed: {self.fixed_base_bytes:,} bytes",
        ]


def build_trainable_report(model: nn.Module) -> TrainableReport:
    """Count what is trained, by part, and what is fixed, the base rows in the grown layers' buffers included."""
    everything = list(_iter_model_tensors(model))
    parts = sorted({held.part for held in everything}, key=MODEL_PARTS.index)
    fixed_base = [held.tensor for held in everything if not held.of_graft and not held.tensor.requires_grad]
    return TrainableReport(
        tables={prefix.removesuffix("."): layer.rows for prefix, layer in _iter_grown_layers(model)},
        parts=tuple(_count_part(part, everything) for part in parts),
        fixed_base_bytes=sum(tensor.numel() * tensor.element_size() for tensor in fixed_base),
    )


@dataclass(frozen=True, slots=True)
class _ModelTensor:
    """One tensor of a model, by the name that it has upstream (a graft's: by its attribute)."""

    name: str
    tensor: Tensor
    part: str
    of_graft: bool = False


def _count_part(part: str, everything: list[_ModelTensor]) -> ParameterCount:
    mine = [held for held in everything if held.part == part]
    trained = {held.name: held.tensor for held in mine if held.tensor.requires_grad}
    num_trained = sum(tensor.numel() for tensor in trained.values())
    num_fixed = sum(held.tensor.numel() for held in mine) - num_trained
    return ParameterCount(part, num_trained, num_fixed, {name: tuple(tensor.shape) for name, tensor in trained.items()})


def _iter_model_tensors(model: nn.Module) -> Iterator[_ModelTensor]:
    """Every parameter and saved buffer, once, however many names it has."""
    seen: set[int] = set()
    for prefix, module in iter_modules_by_prefix(model):
        for held in _iter_module_tensors(module, prefix):
            if id(held.tensor) not in seen:
                seen.add(id(held.tensor))
                yield held


def _iter_module_tensors(module: nn.Module, prefix: str) -> Iterator[_ModelTensor]:
    if isinstance(module, GraftModule):
        for name, parameter in module.graft_parameters().items():
            yield _ModelTensor(prefix + name, parameter, module.part, of_graft=True)
        part = "base rows" if isinstance(module, GrownLayer) else "body"
        for name, tensor in module.base_tensors().items():
            yield _ModelTensor(prefix + name, tensor, part)
        return
    for name, parameter in module.named_parameters(recurse=False):
        yield _ModelTensor(prefix + name, parameter, "body")
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:  # what is not saved is made anew from what is
            yield _ModelTensor(prefix + name, buffer, "body")


def _iter_grown_layers(model: nn.Module) -> Iterator[tuple[str, GrownLayer]]:
    return ((prefix, module) for prefix, module in iter_modules_by_prefix(model) if isinstance(module, GrownLayer))


def _hash_tensor(name: str, tensor: Tensor) -> str:
    if tensor.is_meta:
        raise GraftError("base-not-loaded", f"{name} is on the meta device and has no bits")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest = hashlib.sha256(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _format_table(rows: RowLayout) -> str:
    line = f"ids 0 to {rows.base_pieces - 1:,} are the base's and fixed, "
    line += f"{rows.base_pieces:,} to {rows.num_ids - 1:,} are new" if rows.num_new else "no new ones"
    return line + (f", {rows.spare_rows} spare after them, fixed, read by no id" if rows.spare_rows else "")
