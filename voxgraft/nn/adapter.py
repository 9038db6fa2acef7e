"""The gated adapter: LoRA weights beside a backbone's linear layers, active only while the new language is spoken.

With the gate closed no operation of the adapter runs, so the model is the base, bit for bit. The second half reads and
writes adapters in PEFT's format. Knows no optimizer and no family.

Shapes: I inputs and O outputs of a layer, R rank of the adapter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.core.errors import GraftError
from voxgraft.core.files import (
    atomic_write,
    atomic_write_folder,
    read_json,
    require_folder,
    require_output_path,
    write_json,
)
from voxgraft.nn.layers import AnyLinear, TransposedLinear, init_empty_weights, iter_modules_by_prefix
from voxgraft.nn.rows import GraftModule, replace_modules


class Gate:
    """Whether the adapter acts. One for a whole model; closed when it is made, so that the model is the base.

    An open gate may be closed at some positions of a pack (`closed_at`): words of a base language in a sentence.
    `on` is read when a layer runs. What runs a layer a second time for the backward pass (activation checkpointing)
    must therefore find the gate as it was: keep the backward pass inside the same `with`.
    """

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self.mask: Tensor | None = None  # [T] bool, true where the gate is closed; None: nowhere

    def __repr__(self) -> str:
        return f"Gate(on={self.on})"

    def opened(self) -> AbstractContextManager[None]:
        """The adapter acts inside this block."""
        return self._set(True)

    def closed(self) -> AbstractContextManager[None]:
        """The model is the base inside this block."""
        return self._set(False)

    @contextmanager
    def _set(self, on: bool) -> Iterator[None]:
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before

    @contextmanager
    def closed_at(self, mask: Tensor) -> Iterator[None]:
        """An open gate is closed at these positions of the pack inside this block. [T] bool"""
        before, self.mask = self.mask, mask
        try:
            yield
        finally:
            self.mask = before


class LoraLayer(GraftModule):
    """A linear layer of the base with an adapter beside it: x W + b, and with the gate open + scale (x downᵀ) upᵀ.

    - `weight` and `bias` are the base's own parameters, under their own names and in the base's orientation. They ask
      for no gradient once the adapter is added; who trains the backbone as well says `requires_grad_()` afterwards.
    - `down` [R, I] and `up` [O, R] are the adapter: float32 masters when the base is bf16 or fp16, else of the base's
      dtype. PEFT calls them lora_A and lora_B. The result has the dtype that the base alone would give.
    - `state_dict` and `load_state_dict` know the base's tensors and nothing else: see `adapter_state`.
    - To compare bits with a base, freeze that base too: torch picks kernels by whether a weight asks for a gradient.
    """

    part = "adapter"
    plain: ClassVar[type[AnyLinear]]
    """The base's own kind of layer."""
    transposed: ClassVar[bool]
    """Whether the base keeps this kind of weight as [I, O]."""
    in_features: int
    out_features: int
    down: nn.Parameter
    up: nn.Parameter

    def __init__(self, base: AnyLinear, gate: Gate, down: Tensor, alpha: float) -> None:
        """Shares the parameters of `base`; `up` starts at zero, so that an open gate changes nothing yet."""
        nn.Module.__init__(self)  # the plain layer's own would make, and fill, a second weight
        self.in_features = base.in_features
        self.out_features = base.out_features
        self._parameters.update(base._parameters)  # the same objects; a bias that does not exist is None
        dtype = torch.promote_types(base.weight.dtype, torch.float32)
        self.down = nn.Parameter(down.to(device=base.weight.device, dtype=dtype))  # [R, I]
        self.up = nn.Parameter(self.down.new_zeros(self.out_features, len(down)))  # [O, R]
        self.alpha = alpha
        self.gate = gate
        self.train(base.training)

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, alpha={self.alpha:g}"

    def graft_parameters(self) -> dict[str, nn.Parameter]:
        return {"down": self.down, "up": self.up}

    def base_tensors(self) -> dict[str, Tensor]:
        own = self.graft_parameters()
        return {name: tensor for name, tensor in self.named_parameters(recurse=False) if name not in own}

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]"""
        # Fused where the sum of two results [.., O] would cost more memory traffic than a copy of x [.., I].
        if self.out_features > self.in_features and self.can_fuse(x):
            weight = self.base_weight.T if self.transposed else self.base_weight  # [O, I]
            return fused_lora_linear(x, [weight], self._parameters["bias"], self.scaled_down_weight, self.up)
        result: Tensor = super().forward(x)
        if not self.gate.on:
            return result
        if torch.compiler.is_compiling() and result.dtype != torch.float32:
            # The same sum with the same rounding. Written like this the compiler does not fold it into the matrix
            # product, which would copy the result first.
            adapted = (result.float() + self._low_rank(x).float()).to(result.dtype)
        else:
            adapted = result + self._low_rank(x)
        # Chosen, not multiplied by 0: the base's bits stay as they are, also a -0 and beside an infinite product.
        return adapted if self.gate.mask is None else torch.where(self.gate.mask[:, None], result, adapted)

    def can_fuse(self, x: Tensor) -> bool:
        """Whether layer and adapter can be one product: in compiled training in half precision, the layer fixed."""
        weight = self.base_weight
        learning = torch.compiler.is_compiling() and torch.is_grad_enabled() and not weight.requires_grad
        fits = x.dtype == weight.dtype and weight.element_size() == 2
        return self.gate.on and self.gate.mask is None and learning and fits

    @property
    def scaled_down_weight(self) -> Tensor:
        """[R, I]"""
        return self.down if self.scale == 1 else self.down * self.scale

    def _low_rank(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]"""
        dtype = self.base_weight.dtype
        narrow = F.linear(x, self.down.to(dtype))  # [..., R]
        return F.linear(narrow if self.scale == 1 else narrow * self.scale, self.up.to(dtype))

    @property
    def base_weight(self) -> nn.Parameter:
        """The base's weight as it is kept: [O, I], or [I, O] if `transposed`."""
        weight = self._parameters["weight"]
        assert weight is not None
        return weight

    def plain_layer(self, weight: nn.Parameter) -> AnyLinear:
        """A layer of the base's own kind with this weight and the base's bias."""
        with init_empty_weights():
            layer = self.plain(self.in_features, self.out_features)
        layer.register_parameter("weight", weight)
        layer.register_parameter("bias", self._parameters["bias"])
        layer.train(self.training)
        return layer

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, tensor in self.base_tensors().items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()

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
        """torch's own loader does the work; the adapter's names are neither missing in a base's file nor a way in."""
        own = {prefix + name for name in self.graft_parameters()}
        base = {key: value for key, value in state_dict.items() if key not in own}
        if strict:
            unexpected_keys += sorted(own & state_dict.keys())
        missing: list[str] = []
        super()._load_from_state_dict(base, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        missing_keys += [key for key in missing if key not in own]


class LoraLinear(LoraLayer, nn.Linear):
    """An adapter beside `nn.Linear`."""

    plain = nn.Linear
    transposed = False


class LoraTransposedLinear(LoraLayer, TransposedLinear):
    """An adapter beside GPT-2's layer; a fused projection (`c_attn`) has one adapter, as in PEFT."""

    plain = TransposedLinear
    transposed = True


_LORA_CLASSES: dict[type, type[LoraLinear | LoraTransposedLinear]] = {
    nn.Linear: LoraLinear,
    TransposedLinear: LoraTransposedLinear,
}


def apply_parallel_linears(x: Tensor, layers: Sequence[nn.Module]) -> Sequence[Tensor]:
    """What each of several layers makes of the same x: one product, where their adapters learn and none has a bias."""
    adapted = [layer for layer in layers if isinstance(layer, LoraLinear) and layer.can_fuse(x)]
    if len(adapted) < len(layers) or any(layer.bias is not None for layer in adapted):
        return [layer(x) for layer in layers]
    weights, ups = [layer.base_weight for layer in adapted], [layer.up for layer in adapted]
    return fused_lora_linears(x, weights, [layer.scaled_down_weight for layer in adapted], ups)


def fused_lora_linear(x: Tensor, weights: Sequence[Tensor], bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
    """One or more layers side by side and their adapter as one matrix product; gradients flow to x, down and up alone.

    [..., I], [O, I] each, [O], [R, I], [sum of O, R] -> [..., sum of O]
    """
    rows, dtype = x.reshape(-1, x.shape[-1]), weights[0].dtype
    halves = down.to(dtype), up.to(dtype)
    out: Tensor = _FusedLoraFunction.apply(rows, bias, *halves, *weights)  # type: ignore[no-untyped-call]
    return out.reshape(*x.shape[:-1], len(up))


def fused_lora_linears(
    x: Tensor, weights: Sequence[Tensor], downs: Sequence[Tensor], ups: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Several layers without a bias, each with an adapter of its own, as one product."""
    ranks = [len(down) for down in downs]
    # Padded with zeros, so that each layer reads only its own part of the joined low-rank vector.
    padded = [F.pad(up, (sum(ranks[:at]), sum(ranks[at + 1 :]))) for at, up in enumerate(ups)]
    out = fused_lora_linear(x, weights, None, torch.cat(list(downs)), torch.cat(padded))
    return torch.split(out, [len(weight) for weight in weights], -1)


class _FusedLoraFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, *weights: Tensor) -> Tensor:
        # [x, x downᵀ] [W, up]ᵀ = x Wᵀ + (x downᵀ) upᵀ: the sum of the two products is done inside one matrix product.
        narrow = x @ down.T  # [T, R]
        ctx.save_for_backward(x, down, up, narrow, *weights)
        both = torch.cat([x, narrow], -1) @ torch.cat([torch.cat(weights), up], -1).T
        return both if bias is None else both + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, down, up, narrow, *weights = ctx.saved_tensors
        [gradient] = gradients
        # The weights ask for no gradient (`can_fuse`), so theirs is never computed.
        to_narrow = gradient @ up  # [T, R]
        to_x = to_narrow @ down
        # One by one: concatenated they would be a copy of the layers, kept from the forward to the backward pass.
        for part, weight in zip(torch.split(gradient, [len(weight) for weight in weights], -1), weights, strict=True):
            to_x = to_x.addmm(part, weight)
        return to_x, None, to_narrow.T @ x, gradient.T @ narrow, *(None for _ in weights)


def add_adapter(model: nn.Module, layers: Iterable[str], rank: int, alpha: float, seed: int) -> Gate:
    """Put an adapter beside the named layers, under every name that they have. Returns its gate, closed.

    All or nothing: every layer is looked at before the first is replaced. `down` depends on seed and name of the layer
    alone, `up` is zero. Add after the base is loaded and before the optimizer is built or the model compiled.
    """
    names = list(dict.fromkeys(layers))
    if not names:
        raise GraftError("adapter-settings", "no layer is named", expected="at least one")
    if rank < 1 or seed < 0 or not 0 < alpha < math.inf:
        found = f"rank {rank}, alpha {alpha:g}, seed {seed}"
        raise GraftError("adapter-settings", found, expected="rank 1 or more, alpha above 0, seed 0 or more")
    if present := find_lora_layers(model):
        raise GraftError(
            "adapter-present", f"{len(present)} layers have an adapter, for example `{next(iter(present))}`"
        )
    plain = find_adaptable_layers(model, names)
    gate = Gate()
    adapted: dict[int, nn.Module] = {}
    for name, layer in plain.items():
        # Uniform over ± 1 / sqrt(I), as PEFT initializes it. Named generators: other layers do not change the numbers.
        generator = np.random.default_rng([seed, *name.encode()])
        drawn = generator.random((rank, layer.in_features), dtype=np.float32)  # [R, I]
        down = torch.from_numpy((2 * drawn - 1) / np.float32(math.sqrt(layer.in_features)))
        adapted[id(layer)] = _LORA_CLASSES[type(layer)](layer, gate, down, alpha)
    for layer in plain.values():
        layer.requires_grad_(False)
    replace_modules(model, adapted)
    return gate


def find_adaptable_layers(model: nn.Module, names: list[str]) -> dict[str, AnyLinear]:
    """The plain layers of these names. A subclass may compute something else, so it is refused."""
    modules = dict(model.named_modules())
    # A weight that two modules hold is tied: an adapter beside one of them would leave the other as it was.
    num_holders: dict[int, int] = {}
    for module in modules.values():
        for parameter in module.parameters(recurse=False):
            num_holders[id(parameter)] = num_holders.get(id(parameter), 0) + 1
    layers: dict[str, AnyLinear] = {}
    for name in names:
        module = modules.get(name) if name else None
        if not (isinstance(module, AnyLinear) and type(module) in _LORA_CLASSES):
            named = dict(model.named_modules(remove_duplicate=False)).get(name) if name else None
            first = next((path for path, other in modules.items() if other is named), None)
            what = f"a {type(named).__name__}" if first == name else f"another name of `{first}`"
            found = f"`{name}` is {'not in the model' if named is None else what}"
            raise _layer_error(found, "a plain nn.Linear or TransposedLinear, by its first name")
        if any(num_holders[id(parameter)] > 1 for parameter in module.parameters()):
            raise _layer_error(f"the weights of `{name}` are tied to those of another layer", "its own weights")
        if not module.weight.is_floating_point():
            raise _layer_error(f"`{name}` has weights of {module.weight.dtype}", "floating-point weights")
        if module.weight.is_meta:
            raise GraftError("base-not-loaded", f"`{name}` is on the meta device and has no values")
        layers[name] = module
    return layers


def find_lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Every layer with an adapter, by its upstream name; also inside DDP and torch.compile."""
    found = iter_modules_by_prefix(model)
    return {prefix.removesuffix("."): module for prefix, module in found if isinstance(module, LoraLayer)}


def get_gate(model: nn.Module) -> Gate:
    """The gate of a model's adapter; a copy of a model has a gate of its own."""
    return next(iter(_require_adapter(model).values())).gate


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the adapter alone: `LAYER.down` [R, I] and `LAYER.up` [O, R], every bit of the masters."""
    return {
        f"{layer}.{name}": parameter.detach().clone()
        for layer, module in find_lora_layers(model).items()
        for name, parameter in module.graft_parameters().items()
    }


def load_adapter_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put an adapter's values in; nothing is changed unless names and shapes all fit."""
    parameters = {
        f"{layer}.{name}": value
        for layer, module in find_lora_layers(model).items()
        for name, value in module.graft_parameters().items()
    }
    require_adapter_shapes(state, {name: tuple(parameter.shape) for name, parameter in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state[name])


def require_adapter_shapes(state: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise, naming the tensors, unless an adapter has exactly these."""
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    if missing or unexpected:
        parts = []
        for what, names in (("the adapter lacks", missing), ("the model has no layer for", unexpected)):
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            parts += [f"{what} {', '.join(names[:4])}{more}"] if names else []
        raise GraftError("adapter-mismatch", "; ".join(parts), expected=f"{len(expected)} tensors, as in the model")
    for name, shape in expected.items():
        if tuple(state[name].shape) != shape or not state[name].is_floating_point():
            found = f"{name} is {state[name].dtype} {list(state[name].shape)}"
            raise GraftError("adapter-mismatch", found, expected=f"floating-point {list(shape)}")


@torch.no_grad()
def compute_merged_weight(layer: LoraLayer) -> Tensor:
    """The base's weight plus scale * up down, in the base's dtype and orientation; the layer stays as it is.

    Summed in float64, so that the result does not depend on autocast or on how float32 products are rounded.
    """
    weight = layer.base_weight
    upright = weight.T if layer.transposed else weight  # [O, I]
    merged = torch.addmm(upright.double(), layer.up.double(), layer.down.double(), alpha=layer.scale)
    return (merged.T if layer.transposed else merged).to(weight.dtype).contiguous()


def merge_adapter(model: nn.Module) -> None:
    """Fold the adapter into plain layers, as if the gate were open for good. The base's own tensors keep their bits.

    The new weights are parameters of their own that ask for a gradient where the base's did.
    """
    for layer in _require_adapter(model).values():
        asks = layer.base_weight.requires_grad
        replace_modules(
            model, {id(layer): layer.plain_layer(nn.Parameter(compute_merged_weight(layer), requires_grad=asks))}
        )


def remove_adapter(model: nn.Module) -> None:
    """Take the adapter out: plain layers with the base's own parameters, which ask for a gradient as they do now."""
    layers = _require_adapter(model).values()
    replace_modules(model, {id(layer): layer.plain_layer(layer.base_weight) for layer in layers})


def _require_adapter(model: nn.Module) -> dict[str, LoraLayer]:
    layers = find_lora_layers(model)
    if not layers:
        raise GraftError("adapter-missing", f"no layer of this {type(model).__name__} has an adapter")
    return layers


def _layer_error(found: str, expected: str) -> GraftError:
    return GraftError("adapter-layer", found, expected=expected)


_PEFT_PREFIX = "base_model.model."
_PEFT_TENSOR = re.compile(rf"{re.escape(_PEFT_PREFIX)}(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_PEFT_SIDES = {"A": "down", "B": "up"}
# Keys that say where an adapter came from, how it was trained, or which layers have it (as the tensors' names do).
_IGNORED_PEFT_KEYS = frozenset(
    "auto_mapping base_model_name_or_path revision task_type peft_version inference_mode lora_dropout fan_in_fan_out "
    "target_modules exclude_modules layers_to_transform layers_pattern megatron_core qalora_group_size "
    "r lora_alpha".split()
)
_ALLOWED_PEFT_VALUES: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    # Other ways to start (pissa, olora, corda, loftq) also change the base's weights.
    "init_lora_weights": (True, False, "gaussian"),
}
# What every key has whose feature is not used, those of later versions of PEFT included.
_DISABLED_VALUES: tuple[object, ...] = (None, False, {}, [])


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """An adapter that was read from PEFT's form: whole, plain and finite."""

    rank: int
    alpha: float
    state: dict[str, Tensor]
    """`LAYER.down` [R, I] and `LAYER.up` [O, R], as `adapter_state` gives them."""

    @property
    def layers(self) -> list[str]:
        return sorted({name.rpartition(".")[0] for name in self.state})


def to_peft(model: nn.Module, base_name: str = "") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The model's adapter as PEFT's config and tensors: lora_A [R, I] and lora_B [O, R], transposed layers included."""
    layers = _require_adapter(model)
    one = next(iter(layers.values()))
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "base_model_name_or_path": base_name or None,
        "task_type": None,
        "inference_mode": True,
        "r": one.rank,
        "lora_alpha": int(one.alpha) if float(one.alpha).is_integer() else one.alpha,
        "target_modules": sorted(layers),
        # PEFT keeps A and B the same way round for both kinds of layer; this tells it how the base's weight lies.
        "fan_in_fan_out": any(layer.transposed for layer in layers.values()),
        "lora_dropout": 0.0,
        "bias": "none",
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    names = {own: f"lora_{side}.weight" for side, own in _PEFT_SIDES.items()}
    tensors: dict[str, Tensor] = {}
    for name, tensor in sorted(adapter_state(model).items()):
        layer, _, own = name.rpartition(".")
        # float32 at least: masters keep every bit, and PEFT casts when it loads.
        exact = tensor.to(device="cpu", dtype=torch.promote_types(tensor.dtype, torch.float32))
        tensors[f"{_PEFT_PREFIX}{layer}.{names[own]}"] = exact.contiguous()
    return config, tensors


def from_peft(config: object, tensors: Mapping[str, Tensor], where: str | Path = "") -> PeftAdapter:
    """The adapter in PEFT's form; refused unless it is a plain one with the same rank and alpha in every layer."""
    if not isinstance(config, dict):
        raise GraftError(
            "adapter-broken", f"the config is a {type(config).__name__}", expected="keys with values", where=where
        )
    # Every key that we do not know must be switched off: a variant that came after us is refused, not misread.
    faults = [key for key, plain in _ALLOWED_PEFT_VALUES.items() if key in config and config[key] not in plain]
    faults += [
        key
        for key, value in config.items()
        if key not in _IGNORED_PEFT_KEYS and key not in _ALLOWED_PEFT_VALUES and value not in _DISABLED_VALUES
    ]
    if "peft_type" not in config or faults:
        found = ", ".join(f"{key} is {config[key]!r}" for key in faults) or "peft_type is not given"
        raise GraftError("adapter-variant", found, expected="plain LoRA without other options", where=where)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise GraftError("adapter-broken", f"r is {rank!r}", expected="a rank of 1 or more", where=where)
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < math.inf:
        raise GraftError("adapter-broken", f"lora_alpha is {alpha!r}", expected="a number above 0", where=where)
    state: dict[str, Tensor] = {}  # by our own names
    for name, tensor in tensors.items():
        match = _PEFT_TENSOR.fullmatch(name)
        if match is None:
            expected = f"only {_PEFT_PREFIX}LAYER.lora_A.weight and lora_B.weight"
            raise GraftError("adapter-variant", f"there is a tensor {name}", expected=expected, where=where)
        state[f"{match['layer']}.{_PEFT_SIDES[match['side']]}"] = tensor
    layers = sorted({name.rpartition(".")[0] for name in state})
    halves = [name for layer in layers for name in (f"{layer}.down", f"{layer}.up") if name not in state]
    if halves or not layers:
        found = f"{len(halves)} tensors are missing, for example {halves[0]}" if halves else "no tensors"
        raise GraftError("adapter-broken", found, expected="lora_A and lora_B for each layer", where=where)
    for name, tensor in state.items():
        if tensor.dim() != 2 or not tensor.is_floating_point():
            found = f"{name} is {tensor.dtype} {list(tensor.shape)}"
            raise GraftError("adapter-broken", found, expected="a floating-point matrix", where=where)
        found_rank = tensor.shape[0] if name.endswith(".down") else tensor.shape[1]
        if found_rank != rank:
            found = f"{name} has rank {found_rank}"
            raise GraftError("adapter-mismatch", found, expected=f"{rank}, the value of r in the config", where=where)
        if not bool(tensor.isfinite().all()):
            raise GraftError(
                "adapter-broken", f"{name} contains NaN or infinity", expected="finite numbers", where=where
            )
    return PeftAdapter(rank, float(alpha), state)


def load_peft_adapter(model: nn.Module, adapter: PeftAdapter) -> Gate:
    """Put it into the adapter that the model has, which must be of the same rank, alpha and layers, or add it as one.

    Nothing is changed unless all of it fits. Returns the gate: as it was, or closed if it is new.
    """
    present = find_lora_layers(model)
    if not present:
        plain = find_adaptable_layers(model, adapter.layers)
        shapes = {f"{name}.down": (adapter.rank, layer.in_features) for name, layer in plain.items()}
        shapes |= {f"{name}.up": (layer.out_features, adapter.rank) for name, layer in plain.items()}
        require_adapter_shapes(adapter.state, shapes)
        gate = add_adapter(model, adapter.layers, adapter.rank, adapter.alpha, seed=0)
    else:
        one = next(iter(present.values()))
        gate = one.gate
        if (one.rank, one.alpha) != (adapter.rank, adapter.alpha):
            found = f"rank {adapter.rank} and alpha {adapter.alpha:g}"
            raise GraftError("adapter-mismatch", found, expected=f"rank {one.rank} and alpha {one.alpha:g}")
    load_adapter_state(model, adapter.state)
    return gate


ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20
# Rank 64 on every layer of a body of half a billion weights has under 200 MB.
MAX_TENSORS_BYTES = 2 << 30


def write_peft_folder(folder: Path, model: nn.Module, *, base_name: str = "", overwrite: bool = False) -> None:
    """The model's adapter as a new folder; with `overwrite`, what existed is kept as `NAME.previous`."""
    config, tensors = to_peft(model, base_name)
    if not overwrite:
        require_output_path(folder)
    with atomic_write_folder(folder) as new:
        with atomic_write(new / ADAPTER_TENSORS_NAME) as stream:
            values = {name: TensorBytes.of(tensor.numpy()) for name, tensor in tensors.items()}
            write_safetensors(stream, values, {"format": "pt"})
        write_json(new / ADAPTER_CONFIG_NAME, config)


def read_peft_folder(folder: Path) -> PeftAdapter:
    """The adapter in a folder that voxgraft or PEFT wrote; refused unless it is one that we compute alike."""
    config = read_json(require_folder(folder) / ADAPTER_CONFIG_NAME, MAX_CONFIG_BYTES)
    path = folder / ADAPTER_TENSORS_NAME
    with open_checkpoint(path) as checkpoint:
        if checkpoint.format != "safetensors" or checkpoint.source.size > MAX_TENSORS_BYTES:
            found = f"a {checkpoint.format} file of {checkpoint.source.size:,} bytes"
            expected = f"safetensors of at most {MAX_TENSORS_BYTES:,}"
            raise GraftError("adapter-broken", found, expected=expected, where=path)
        bits = [info.name for info in checkpoint.tensors.values() if info.dtype not in ("F64", "F32", "F16", "BF16")]
        if bits:
            found = f"{bits[0]} is {checkpoint.info(bits[0]).dtype}"
            raise GraftError("adapter-broken", found, expected="F32, F16 or BF16", where=path)
        tensors = {name: torch.from_numpy(checkpoint.read(name)) for name in checkpoint.tensors}
    return from_peft(config, tensors, folder)
