"""Text embedding and text head whose base rows are a buffer and whose new rows are a parameter of their own.

No optimizer can hold a base row, so gradient, momentum, weight decay and EMA cannot reach one. State dicts have the
upstream layout. The second half freezes, counts and hashes what must not change. Needs torch only.

Shapes: P base pieces, N new rows, S spare rows, W width, V = P + N + S rows of the extended table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.core.errors import CheckpointError, GraftError
from voxgraft.nn.layers import iter_modules_by_prefix


class TokenIdError(GraftError, IndexError):
    """A token id that no row of the table answers to."""


@dataclass(frozen=True)
class RowLayout:
    """How many rows of each kind a table has. In a file they are in this order: pieces, new rows, spare rows.

    A spare row is one that the base has after its last piece and that no input ever indexes (IndexTTS-2 has one).
    """

    base_pieces: int
    num_new: int
    spare_rows: int = 0

    def __post_init__(self) -> None:
        if self.base_pieces < 1 or self.num_new < 0 or self.spare_rows < 0:
            raise GraftError("rows-layout", f"{self}", expected="at least 1 base token, no negative number")

    def __str__(self) -> str:
        return f"{self.base_pieces:,} base tokens + {self.num_new:,} new + {self.spare_rows:,} unused"

    @classmethod
    def of_base(cls, base_rows: int, num_new: int, spare_rows: int = 0) -> RowLayout:
        """The layout that a base table gets when `num_new` rows are added."""
        return cls(base_rows - spare_rows, num_new, spare_rows)

    @property
    def num_ids(self) -> int:
        """Token ids that an input may hold: 0 to this number less one."""
        return self.base_pieces + self.num_new

    @property
    def base_rows(self) -> int:
        return self.base_pieces + self.spare_rows

    def split(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the base's rows (pieces, then spare, as the base has them) and of the new rows. [V, ...]"""
        base = torch.cat([table[: self.base_pieces], table[self.num_ids :]])
        return base, table[self.base_pieces : self.num_ids].clone()

    def join(self, base: Tensor, new: Tensor) -> Tensor:
        """The table as a file holds it, in the base's dtype. [P + S, ...] and [N, ...] -> [V, ...]"""
        return torch.cat([base[: self.base_pieces], new.to(base.dtype), base[self.base_pieces :]])


class GraftModule(nn.Module):
    """A module that holds parameters of a graft. It says which these are, and which of its tensors are the base's."""

    part: ClassVar[str]
    """Whose learning rate applies: `rows` or `adapter`."""

    def graft_parameters(self) -> dict[str, nn.Parameter]:
        """The graft's own parameters in this module, by attribute name."""
        raise NotImplementedError

    def base_tensors(self) -> dict[str, Tensor]:
        """The base's tensors in this module, by the name and in the shape that they have in the base."""
        raise NotImplementedError


class GrownLayer(GraftModule):
    """What embedding and head share: the two halves of each tensor, and their way in and out of a state dict.

    - Base rows: buffers `base_weight` [P + S, W] and, in a head, perhaps `base_bias` [P + S]; contiguous and as the
      base has them. New rows: parameters `new_weight` [N, W] and `new_bias` [N].
    - New rows are float32 masters when the base is bf16 or fp16, else of the base's dtype. Results always have the
      dtype that the base alone would give. `.to(dtype)` casts both halves, as for every torch module, which changes
      the base's bits: load in the dtype that you want instead.
    - Without new rows the parameters exist, empty, and do not ask for a gradient: shapes need no special case,
      an optimizer that is given one skips it, and DDP does not wait for it.
    - `state_dict` gives `weight` (and `bias`) of V rows in the base's dtype and nothing else; `load_state_dict` splits
      them again. Masters are rounded in it: `collect_new_rows` keeps their every bit.
    - DDP sends all buffers at every forward by default (`broadcast_buffers=False`, from torch 2.13 on
      `forward_sync_buffers=False`). The base is the same everywhere: sending it is harmless, but slow.
    """

    part = "rows"
    base_weight: Tensor
    new_weight: nn.Parameter
    base_bias: Tensor | None
    new_bias: nn.Parameter | None

    def __init__(
        self,
        rows: RowLayout,
        width: int,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """All rows zero; `from_base` and `from_grown` are the usual ways to make one. Only a head can have a bias."""
        super().__init__()
        self.rows = rows
        self.width = width
        shapes: dict[str, tuple[int, ...]] = {"weight": (width,), "bias": ()} if bias else {"weight": (width,)}
        for name, shape in shapes.items():
            base = torch.zeros(rows.base_rows, *shape, device=device, dtype=dtype)
            if not base.is_floating_point():
                raise GraftError("rows-layout", f"the data type is {base.dtype}", expected="a floating-point type")
            # In half precision an update of a new row would round to nothing: new rows are float32 masters.
            new = torch.zeros(rows.num_new, *shape, device=device, dtype=torch.promote_types(base.dtype, torch.float))
            self.register_buffer(f"base_{name}", base)
            self.register_parameter(f"new_{name}", nn.Parameter(new, requires_grad=rows.num_new > 0))
        if not bias:
            self.register_buffer("base_bias", None)
            self.register_parameter("new_bias", None)

    @classmethod
    @torch.no_grad()
    def from_base(cls, weight: Tensor, num_new: int, spare_rows: int = 0, *, bias: Tensor | None = None) -> Self:
        """Grow a base's layer; its rows are copied, and each new row starts as the mean of the pieces' rows.

        No random numbers are drawn. `load_new_rows` puts a graft's own rows in.
        """
        rows = RowLayout.of_base(_count_rows(weight, bias), num_new, spare_rows)
        layer = cls(rows, weight.shape[1], bias=bias is not None, device=weight.device, dtype=weight.dtype)
        for name, tensor in {"weight": weight, **({} if bias is None else {"bias": bias})}.items():
            layer._half("base", name).copy_(tensor)
            new = layer._half("new", name)
            new.copy_(tensor[: rows.base_pieces].to(new.dtype).mean(dim=0).expand_as(new))
        return layer

    @classmethod
    @torch.no_grad()
    def from_grown(cls, weight: Tensor, base_pieces: int, spare_rows: int, *, bias: Tensor | None = None) -> Self:
        """Take apart a layer that is grown already: what is neither piece nor spare is new."""
        rows = RowLayout(base_pieces, _count_rows(weight, bias) - base_pieces - spare_rows, spare_rows)
        layer = cls(rows, weight.shape[1], bias=bias is not None, device=weight.device, dtype=weight.dtype)
        for name, tensor in {"weight": weight, **({} if bias is None else {"bias": bias})}.items():
            base, new = rows.split(tensor)
            layer._half("base", name).copy_(base)
            layer._half("new", name).copy_(new)
        return layer

    def extra_repr(self) -> str:
        return f"{self.rows}, width {self.width}"

    def graft_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.named_parameters(recurse=False))

    def base_tensors(self) -> dict[str, Tensor]:
        return {name.removeprefix("base_"): buffer for name, buffer in self.named_buffers(recurse=False)}

    def copy_new_rows(self) -> dict[str, Tensor]:
        """A copy of the graft's rows alone, by upstream's names, in the masters' dtype."""
        return {name: self._half("new", name).detach().clone() for name in self.base_tensors()}

    def load_new_rows(self, state: Mapping[str, Tensor]) -> None:
        """Put the graft's rows in; nothing is changed unless names and shapes all fit."""
        expected = {name: tuple(self._half("new", name).shape) for name in self.base_tensors()}
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if found != expected:
            found_text, expected_text = (
                ", ".join(f"{name} with {_format_rows(shape)}" for name, shape in shapes.items()) or "no tensors"
                for shapes in (found, expected)
            )
            raise GraftError("layer-rows-mismatch", f"the graft has {found_text}", expected=expected_text)
        with torch.no_grad():
            for name, tensor in state.items():
                self._half("new", name).copy_(tensor)

    def _half(self, half: str, name: str) -> Tensor:
        tensor = getattr(self, f"{half}_{name}")
        assert isinstance(tensor, Tensor)
        return tensor

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, base in self.base_tensors().items():
            table = self.rows.join(base, self._half("new", name))
            destination[prefix + name] = table if keep_vars else table.detach()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """torch's own loader does the work (assign, casts, hooks), on the halves under their attribute names."""
        halves: dict[str, Tensor] = {}
        names = list(self.base_tensors())
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key.removeprefix(prefix)
            if name in names:
                base, new = self.rows.split(self._fitting(state_dict[key], key))
                halves |= {f"{prefix}base_{name}": base, f"{prefix}new_{name}": new}
            elif strict:
                unexpected_keys.append(key)
        missing: list[str] = []
        super()._load_from_state_dict(halves, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        missing_keys += [prefix + name for name in names if f"{prefix}base_{name}" in missing]

    def _fitting(self, table: object, key: str) -> Tensor:
        """The table, if it has the rows of this layer's layout."""
        if not isinstance(table, Tensor):
            raise CheckpointError("layer-rows-mismatch", f"{key} is a {type(table).__name__}", expected="a tensor")
        name = key.rpartition(".")[2]
        shape = (self.rows.num_ids + self.rows.spare_rows, *self._half("base", name).shape[1:])
        if tuple(table.shape) == shape:
            return table.detach()
        base_alone = tuple(table.shape) == (self.rows.base_rows, *shape[1:])
        raise CheckpointError(
            "layer-rows-mismatch",
            f"{key} has {_format_rows(tuple(table.shape))}"
            + (", as in the base without a graft" if base_alone else ""),
            expected=f"{_format_rows(shape)} ({self.rows})",
        )


class GrownEmbedding(GrownLayer):
    """Token ids to rows: ids below P read the base's row, id P + i reads new row i. Ids are relative to the graft.

    Spare rows are in the state dict but outside what an id can reach. A base row comes out with the bits that
    `F.embedding` on the base's table gives. On the CPU an id outside 0 .. P + N - 1 raises `TokenIdError`; on CUDA it
    is torch's device assert, since looking first would stall every step.
    """

    def forward(self, ids: Tensor) -> Tensor:
        """[...] integers -> [..., W] in the base's dtype."""
        if torch.compiler.is_compiling():
            return self._look_up(ids)
        try:
            return self._look_up(ids)
        except IndexError:
            wrong = ((ids < 0) | (ids >= self.rows.num_ids)).nonzero()
            if len(wrong) == 0:
                raise
            at = tuple(wrong[0].tolist())
            raise TokenIdError(
                "token-id-outside",
                f"token id {int(ids[at])} at position {list(at)}; {len(wrong):,} of {ids.numel():,} ids have no row",
                expected=f"0 to {self.rows.num_ids - 1} ({self.rows})",
            ) from None

    def _look_up(self, ids: Tensor) -> Tensor:
        # Both tables are read at every id, with ids clamped into range, and the right row is chosen afterwards: no
        # indexing by a mask, whose size would have to be known on the CPU.
        pieces = self.base_weight[: self.rows.base_pieces]  # a view that ends before the spare rows
        if self.rows.num_new == 0:
            return F.embedding(ids, pieces)
        first_new = self.rows.base_pieces
        base = F.embedding(ids.clamp(max=first_new - 1), pieces)
        # The cast comes after the lookup, so that the gradient of a row is summed in the master's precision.
        new = F.embedding((ids - first_new).clamp(min=0), self.new_weight).to(base.dtype)
        return torch.where((ids >= first_new).unsqueeze(-1), new, base)


class GrownHead(GrownLayer):
    """Hidden states to text logits in the order pieces, new, spare: a column's index is its token id.

    Two matmuls, one over the base's rows and one over the new: for few positions at once, one over both rounds
    differently from the base alone. To compare bits with a base, give contiguous hidden states or freeze that base
    too: for a slice of a batch torch picks its kernel by whether the *weight* asks for a gradient, even in `no_grad`.
    """

    def base_logits(self, hidden: Tensor) -> Tensor:
        """What the base's own head gives, bit for bit. [..., W] -> [..., P + S]"""
        return padded_linear(hidden, self.base_weight, self.base_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., W] -> [..., V]"""
        base = self.base_logits(hidden)
        if self.rows.num_new == 0:
            return base
        dtype = self.base_weight.dtype
        bias = None if self.new_bias is None else self.new_bias.to(dtype)
        new = F.linear(hidden, self.new_weight.to(dtype), bias)
        pieces = self.rows.base_pieces
        return torch.cat([base[..., :pieces], new, base[..., pieces:]], dim=-1)


def grow_layers(model: nn.Module, points: Iterable[str], num_new: int, spare_rows: int) -> dict[str, GrownLayer]:
    """Replace the named nn.Embedding and nn.Linear modules of a base by grown ones, under every name they have.

    All or nothing: every point is looked at before the first is replaced. Grow before the optimizer is built.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    old: dict[str, nn.Embedding | nn.Linear] = {}
    for name in points:
        module = modules.get(name) if name else None
        if type(module) not in (nn.Embedding, nn.Linear):  # a subclass may compute something else
            found = f"`{name}` is {'not in the model' if module is None else f'a {type(module).__name__}'}"
            raise GraftError("graft-point", found, expected="a plain nn.Embedding or nn.Linear")
        assert isinstance(module, nn.Embedding | nn.Linear)
        if isinstance(module, nn.Embedding) and module.max_norm is not None:
            found = f"`{name}` has max_norm {module.max_norm}, which changes base rows when they are read"
            raise GraftError("graft-point", found, expected="no max_norm")
        # With tied weights a new row of the embedding would also be one of the head, and both would be trained as one.
        own = {id(parameter) for parameter in module.parameters()}
        for other_name, other in model.named_modules():
            if other is not module and own & {id(parameter) for parameter in other.parameters(recurse=False)}:
                found = f"the rows of `{name}` are tied to those of `{other_name}`"
                raise GraftError("graft-point", found, expected="separate weights for embedding and head")
        old[name] = module
    num_rows = {name: module.weight.shape[0] for name, module in old.items()}
    if len(set(num_rows.values())) > 1:
        found = ", ".join(f"{name} has {count:,} rows" for name, count in num_rows.items())
        raise GraftError("graft-point", found, expected="the same number of rows in text embedding and text head")
    grown: dict[str, GrownLayer] = {}
    for name, plain in old.items():
        if isinstance(plain, nn.Embedding):
            grown[name] = GrownEmbedding.from_base(plain.weight, num_new, spare_rows)
        else:
            grown[name] = GrownHead.from_base(plain.weight, num_new, spare_rows, bias=plain.bias)
        grown[name].train(plain.training)
    replace_modules(model, {id(module): grown[name] for name, module in old.items()})
    return grown


def replace_modules(model: nn.Module, replacement: Mapping[int, nn.Module]) -> None:
    """Replace modules, given by their id, under every name that they have."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if id(module) in replacement:
            model.set_submodule(path, replacement[id(module)])


def _count_rows(weight: Tensor, bias: Tensor | None = None) -> int:
    if weight.dim() != 2:
        raise GraftError("rows-layout", f"the weight has shape {list(weight.shape)}", expected="[rows, width]")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise GraftError("rows-layout", f"the bias has shape {list(bias.shape)}", expected=f"[{weight.shape[0]}]")
    return weight.shape[0]


def _format_rows(shape: tuple[int, ...]) -> str:
    if not shape:
        return "no rows"
    width = ", ".join(map(str, shape[1:]))
    return f"{shape[0]:,} rows" + (f" of width {width}" if width else "")


OUTPUT_ALIGNMENT = 64
# Up to this many positions the plain product is as fast.
MAX_UNPADDED_POSITIONS = 64


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` with its outputs padded to a multiple of 64, where that is faster. [N, W], [V, W] -> [N, V]

    A head's number of rows is odd more often than not, and half-precision matrix kernels are slow at such widths.
    """
    missing = -len(weight) % OUTPUT_ALIGNMENT
    half = x.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled(x.device.type)
    if not (x.is_cuda and half and missing and x.dim() == 2 and len(x) > MAX_UNPADDED_POSITIONS):
        return F.linear(x, weight, bias)
    filled = F.linear(x, F.pad(weight, (0, 0, 0, missing)), None if bias is None else F.pad(bias, (0, missing)))
    return filled.narrow(1, 0, len(weight))


def to_plain_layer(grown: GrownLayer) -> nn.Embedding | nn.Linear:
    """The same rows in the layer that the base has: pieces, new, spare."""
    tables = grown.state_dict()
    rows, width = tables["weight"].shape
    layer: nn.Embedding | nn.Linear
    with torch.device("meta"):
        if isinstance(grown, GrownEmbedding):
            layer = nn.Embedding(rows, width)
        else:
            assert isinstance(grown, GrownHead)
            layer = nn.Linear(width, rows, bias="bias" in tables)
    layer.load_state_dict(tables, assign=True)
    layer.train(grown.training)
    return layer


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
        found = f"{len(moved)} of {len(digests)} base tensors changed: {', '.join(moved[:5])}{more}"
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
    """A copy of every extended layer's new rows, by upstream's names (`text_emb.weight`), as a graft's file
    holds them."""
    return {
        prefix + name: rows
        for prefix, layer in _iter_grown_layers(model)
        for name, rows in layer.copy_new_rows().items()
    }


def load_new_rows(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put a graft's rows into every extended layer; nothing is changed unless names and shapes all fit."""
    expected = {name: list(tensor.shape) for name, tensor in collect_new_rows(model).items()}
    found = {name: list(tensor.shape) for name, tensor in state.items()}
    if found != expected:
        found_text, expected_text = (
            ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "no tensors"
            for shapes in (found, expected)
        )
        raise GraftError("layer-rows-mismatch", f"the graft has {found_text}", expected=expected_text)
    for prefix, layer in _iter_grown_layers(model):
        layer.load_new_rows({name: state[prefix + name] for name in layer.base_tensors()})


@dataclass(frozen=True, slots=True)
class TrainableReport:
    """What training can move and what it cannot, counted from the tensors themselves."""

    tables: dict[str, RowLayout]
    parts: dict[str, tuple[int, int]]
    """How many numbers of each of the `MODEL_PARTS` are trained, and how many are fixed."""
    fixed_base_bytes: int

    @property
    def trained(self) -> int:
        return sum(trained for trained, _ in self.parts.values())

    @property
    def fixed(self) -> int:
        return sum(fixed for _, fixed in self.parts.values())


def build_trainable_report(model: nn.Module) -> TrainableReport:
    """Count what is trained, by part, and what is fixed, the base rows in the extended layers' buffers included."""
    tensors = list(_iter_model_tensors(model))
    parts = {}
    for part in MODEL_PARTS:
        mine = [tensor for _, tensor, its_part, _ in tensors if its_part == part]
        if mine:
            trained = sum(tensor.numel() for tensor in mine if tensor.requires_grad)
            parts[part] = (trained, sum(tensor.numel() for tensor in mine) - trained)
    fixed_base = [tensor for _, tensor, _, of_graft in tensors if not of_graft and not tensor.requires_grad]
    return TrainableReport(
        tables={prefix.removesuffix("."): layer.rows for prefix, layer in _iter_grown_layers(model)},
        parts=parts,
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
