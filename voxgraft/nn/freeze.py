"""The base must not change: freeze it, count what is trained, and hash it, so that save, resume and export can compare.

Knows the extended layers (and, through `GraftModule`, adapters) but no optimizer and no run. Needs torch only.
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

MODEL_PARTS = ("rows", "adapter", "base rows", "body")


def freeze_base(model: nn.Module) -> dict[str, nn.Parameter]:
    """Only the graft's parameters ask for a gradient. Returns these by name: what an optimizer is given.

    A graft without rows has none here (its empty parameters are left out); torch's optimizers refuse an empty list.
    """
    # Everything is frozen first, so that a parameter that nobody thought of is frozen too.
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
        name: tensor
        for name, tensor, _, of_graft in _iter_model_tensors(model)
        if not of_graft and not tensor.requires_grad
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


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """How many numbers of one of the `MODEL_PARTS` are trained, in which tensors, and how many are fixed."""

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
            *(self._table_line(name, rows) for name, rows in self.tables.items()),
            *(part.line() for part in self.parts),
            f"in all: {self.trained:,} trained of {total:,} ({share:.1f} %), {self.fixed:,} fixed",
            f"base bits fixed: {self.fixed_base_bytes:,} bytes",
        ]

    @staticmethod
    def _table_line(name: str, rows: RowLayout) -> str:
        line = f"{name}: ids 0 to {rows.base_pieces - 1:,} are the base's and fixed, "
        line += f"{rows.base_pieces:,} to {rows.num_ids - 1:,} are new" if rows.num_new else "no new ones"
        return line + (f", {rows.spare_rows} spare after them, fixed, read by no id" if rows.spare_rows else "")


def build_trainable_report(model: nn.Module) -> TrainableReport:
    """Count what is trained, by part, and what is fixed, the base rows in the grown layers' buffers included."""
    tensors = list(_iter_model_tensors(model))
    counts = []
    for part in MODEL_PARTS:
        mine = {name: tensor for name, tensor, its_part, _ in tensors if its_part == part}
        trained = {name: tuple(tensor.shape) for name, tensor in mine.items() if tensor.requires_grad}
        num_trained = sum(mine[name].numel() for name in trained)
        if mine:
            num_fixed = sum(tensor.numel() for tensor in mine.values()) - num_trained
            counts.append(ParameterCount(part, num_trained, num_fixed, trained))
    fixed_base = [tensor for _, tensor, _, of_graft in tensors if not of_graft and not tensor.requires_grad]
    return TrainableReport(
        tables={prefix.removesuffix("."): layer.rows for prefix, layer in _iter_grown_layers(model)},
        parts=tuple(counts),
        fixed_base_bytes=sum(tensor.numel() * tensor.element_size() for tensor in fixed_base),
    )


def _iter_model_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, str, bool]]:
    """Every parameter and saved buffer once: upstream's name (a graft's: its attribute), part, whether the graft's."""
    seen: set[int] = set()
    for prefix, module in iter_modules_by_prefix(model):
        own: list[tuple[str, Tensor, str, bool]] = []
        if isinstance(module, GraftModule):
            own += [(name, value, module.part, True) for name, value in module.graft_parameters().items()]
            part = "base rows" if isinstance(module, GrownLayer) else "body"
            own += [(name, tensor, part, False) for name, tensor in module.base_tensors().items()]
        else:
            own += [(name, value, "body", False) for name, value in module.named_parameters(recurse=False)]
            saved = module.named_buffers(recurse=False)  # a buffer that is not saved is computed from what is
            unsaved = module._non_persistent_buffers_set
            own += [(name, buffer, "body", False) for name, buffer in saved if name not in unsaved]
        for name, tensor, part, of_graft in own:
            if id(tensor) not in seen:  # tied tensors have several names
                seen.add(id(tensor))
                yield prefix + name, tensor, part, of_graft


def _iter_grown_layers(model: nn.Module) -> Iterator[tuple[str, GrownLayer]]:
    return ((prefix, module) for prefix, module in iter_modules_by_prefix(model) if isinstance(module, GrownLayer))


def _hash_tensor(name: str, tensor: Tensor) -> str:
    if tensor.is_meta:
        raise GraftError("base-not-loaded", f"{name} is on the meta device and has no bits")
    # Type and shape are hashed too: the same bytes in another shape are another tensor.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest = hashlib.sha256(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
