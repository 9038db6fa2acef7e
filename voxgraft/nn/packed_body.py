"""A body's weights as the fast step reads them: contiguous, of half precision, `[outputs, inputs]`, adapter folded in.

A copy that is made once and brought up to date in place when the body has changed, so that captured graphs stay valid.
Knows the two kinds of body and nothing of kernels. Needs torch only.

Shapes: W width, M width of the MLP, O outputs and I inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from voxgraft.nn.adapter import AdaptedLayer, merged_weight
from voxgraft.nn.body import Body
from voxgraft.nn.gpt2 import Gpt2Body
from voxgraft.nn.linear import TransposedLinear
from voxgraft.nn.llama import LlamaBody

__all__ = ["BodyKind", "PackedBlock", "PackedBody", "PackedPart", "kind_of"]

Norm = Literal["rms", "layer"]
Activation = Literal["gated", "gelu"]


@dataclass(frozen=True, slots=True)
class BodyKind:
    """What a body computes, apart from its weights."""

    norm: Norm
    activation: Activation
    eps: float
    frequencies: Tensor | None  # [D / 2] of rotary positions; None where the body has none


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A linear layer [O, I] or a norm [W]; several layers that read the same vector are one."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """One block: norm, one projection for query, key and value, the way back; norm, up (gates, then values), down."""

    first_norm: PackedPart
    qkv: PackedPart
    out: PackedPart
    second_norm: PackedPart
    up: PackedPart
    down: PackedPart


def kind_of(body: Body) -> BodyKind | None:
    """What kind of body this is; None for one that the fast step does not know."""
    if isinstance(body, LlamaBody):
        assert isinstance(body.frequencies, Tensor)
        return BodyKind("rms", "gated", body.size.eps, body.frequencies)
    if isinstance(body, Gpt2Body):
        return BodyKind("layer", "gelu", body.size.eps, None)
    return None


class PackedBody:
    """The copy. `refresh` brings it up to date; its tensors stay where they are."""

    def __init__(self, body: Body, dtype: torch.dtype) -> None:
        kind = kind_of(body)
        assert kind is not None
        self.kind = kind
        self.num_heads, self.head_width = body.num_heads, body.head_width
        self.width = body.num_heads * body.head_width
        self._made_from = _state(body)
        with torch.no_grad():
            parts = [[_packed(modules, dtype) for modules in block] for block in _blocks(body)]
            self.blocks = [PackedBlock(*block) for block in parts]
            self.final_norm = _packed([_final_norm(body)], dtype)
        self.mlp = self.blocks[0].down.weight.shape[1]

    def refresh(self, body: Body) -> None:
        """Copy the body's weights again if they, or whether its adapter acts, have changed."""
        state = _state(body)
        if state == self._made_from:
            return
        sources = [*(modules for block in _blocks(body) for modules in block), [_final_norm(body)]]
        with torch.no_grad():
            for part, modules in zip(self._parts(), sources, strict=True):
                fresh = _packed(modules, part.weight.dtype)
                part.weight.copy_(fresh.weight)
                if part.bias is not None and fresh.bias is not None:
                    part.bias.copy_(fresh.bias)
        self._made_from = state

    def _parts(self) -> Iterator[PackedPart]:
        for block in self.blocks:
            yield from (block.first_norm, block.qkv, block.out, block.second_norm, block.up, block.down)
        yield self.final_norm


def _blocks(body: Body) -> Iterator[tuple[Sequence[nn.Module], ...]]:
    """The modules of each block, in the order of `PackedBlock`."""
    if isinstance(body, LlamaBody):
        for block in body.layers:
            attention, mlp = block.self_attn, block.mlp
            assert isinstance(attention, nn.Module)
            assert isinstance(mlp, nn.Module)
            named = [(block, "input_layernorm")], [(attention, f"{part}_proj") for part in "qkv"], [(attention, "o_proj")]
            more = [(block, "post_attention_layernorm")], [(mlp, "gate_proj"), (mlp, "up_proj")], [(mlp, "down_proj")]
            yield tuple([holder.get_submodule(name) for holder, name in group] for group in (*named, *more))
    else:
        assert isinstance(body, Gpt2Body)
        names = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        for block in body.h:
            yield tuple([block.get_submodule(name)] for name in names)


def _final_norm(body: Body) -> nn.Module:
    assert isinstance(body, LlamaBody | Gpt2Body)
    return body.norm if isinstance(body, LlamaBody) else body.ln_f


def _packed(modules: Sequence[nn.Module], dtype: torch.dtype) -> PackedPart:
    weight = torch.cat([_weight(module) for module in modules]).to(dtype).contiguous()
    biases = [module.bias for module in modules if isinstance(getattr(module, "bias", None), Tensor)]
    bias = torch.cat([part for part in biases if isinstance(part, Tensor)]).detach().to(dtype) if biases else None
    return PackedPart(weight.detach(), bias)


def _weight(module: nn.Module) -> Tensor:
    """[O, I], whichever way the layer keeps it, with its adapter where that acts; a norm's [W]."""
    weight = module.weight
    if isinstance(module, AdaptedLayer) and module.gate.on:
        weight = merged_weight(module)
    assert isinstance(weight, Tensor)
    return weight.T if isinstance(module, TransposedLinear) else weight


def _state(body: Body) -> tuple[object, ...]:
    """Changes whenever a weight is written to or replaced, or a gate is opened or closed."""
    gates = {module.gate.on for module in body.modules() if isinstance(module, AdaptedLayer)}
    return (frozenset(gates), *((parameter.data_ptr(), parameter._version) for parameter in body.parameters()))
