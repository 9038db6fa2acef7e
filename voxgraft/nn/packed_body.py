"""A body's weights as the fast step reads them: contiguous, of half precision, `[outputs, inputs]`, adapter folded in.

A copy that is made once and brought up to date in place when the body has changed, so that captured graphs stay valid.
Knows the two kinds of body and nothing of kernels. Needs torch only.

Shapes: W width, O outputs and I inputs of a layer, D width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor, nn

from voxgraft.nn.adapter import LoraLayer, compute_merged_weight
from voxgraft.nn.body import Backbone
from voxgraft.nn.gpt2 import Gpt2Backbone
from voxgraft.nn.linear import TransposedLinear
from voxgraft.nn.llama import LlamaBackbone

__all__ = ["BackboneKind", "PackedBackbone", "PackedBlock", "PackedLayer", "get_backbone_kind"]

LLAMA_BLOCK_MODULES = (
    ("input_layernorm",),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("post_attention_layernorm",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
GPT2_BLOCK_MODULES = (("ln_1",), ("attn.c_attn",), ("attn.c_proj",), ("ln_2",), ("mlp.c_fc",), ("mlp.c_proj",))


@dataclass(frozen=True, slots=True)
class BackboneKind:
    """What a body computes, apart from its weights."""

    norm: Literal["rms", "layer"]
    activation: Literal["gated", "gelu"]
    mlp: int
    eps: float
    frequencies: Tensor | None  # [D / 2] of rotary positions; None where the body has none


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A linear layer [O, I] or a norm [W]; layers that read the same vector are one.

    `moments` of a layer after a layer norm: its weights times the norm's scale, and its weights times the norm's shift
    plus its own bias, so that a norm can be applied after the product. [2, O] float32
    """

    weight: Tensor
    bias: Tensor | None = None
    moments: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """One block: norm, one projection to query, key and value, the way back; norm, up (gates, then values), down."""

    first_norm: PackedLayer
    qkv: PackedLayer
    out: PackedLayer
    second_norm: PackedLayer
    up: PackedLayer
    down: PackedLayer


def get_backbone_kind(body: Backbone) -> BackboneKind | None:
    """What kind of body this is; None for one that the fast step does not know."""
    if isinstance(body, LlamaBackbone):
        frequencies = body.frequencies_on(body.norm.weight.device)
        return BackboneKind("rms", "gated", body.size.mlp, body.size.eps, frequencies)
    if isinstance(body, Gpt2Backbone):
        return BackboneKind("layer", "gelu", 4 * body.size.width, body.size.eps, None)
    return None


class PackedBackbone:
    """The copy. `refresh` brings it up to date; its tensors stay where they are."""

    def __init__(self, body: Backbone, dtype: torch.dtype) -> None:
        kind = get_backbone_kind(body)
        assert kind is not None
        self.kind, self.dtype = kind, dtype
        self.num_heads, self.head_width = body.num_heads, body.head_width
        self.width = body.num_heads * body.head_width
        self._version = _weights_version(body)
        self.blocks = [_pack_block(modules, dtype) for modules in _iter_block_modules(body)]
        self.final_norm = _pack_layer([_get_final_norm(body)], dtype)

    def refresh(self, body: Backbone) -> None:
        """Copy the body's weights again if one of them, or whether the adapter acts, has changed."""
        state = _weights_version(body)
        if state == self._version:
            return
        for block, modules in zip(self.blocks, _iter_block_modules(body), strict=True):
            fresh = _pack_block(modules, self.dtype)
            for field in fields(PackedBlock):
                _copy_layer(getattr(block, field.name), getattr(fresh, field.name))
        _copy_layer(self.final_norm, _pack_layer([_get_final_norm(body)], self.dtype))
        self._version = state


def _iter_block_modules(body: Backbone) -> Iterator[list[list[nn.Module]]]:
    """The modules of each block, in the order of `PackedBlock`."""
    assert isinstance(body, LlamaBackbone | Gpt2Backbone)
    blocks, names = (
        (body.layers, LLAMA_BLOCK_MODULES) if isinstance(body, LlamaBackbone) else (body.h, GPT2_BLOCK_MODULES)
    )
    for block in blocks:
        yield [[block.get_submodule(name) for name in group] for group in names]


def _get_final_norm(body: Backbone) -> nn.Module:
    assert isinstance(body, LlamaBackbone | Gpt2Backbone)
    return body.norm if isinstance(body, LlamaBackbone) else body.ln_f


def _pack_block(modules: list[list[nn.Module]], dtype: torch.dtype) -> PackedBlock:
    first_norm, qkv, out, second_norm, up, down = (_pack_layer(group, dtype) for group in modules)
    return PackedBlock(first_norm, _fold_norm(first_norm, qkv), out, second_norm, _fold_norm(second_norm, up), down)


@torch.no_grad()
def _pack_layer(modules: Sequence[nn.Module], dtype: torch.dtype) -> PackedLayer:
    biases = [bias for module in modules if isinstance(bias := getattr(module, "bias", None), Tensor)]
    return PackedLayer(
        weight=torch.cat([_effective_weight(module) for module in modules]).to(dtype).contiguous(),
        bias=torch.cat(biases).to(dtype) if biases else None,
    )


def _fold_norm(norm: PackedLayer, layer: PackedLayer) -> PackedLayer:
    if norm.bias is None:
        return layer
    weight = layer.weight.float()
    shifted = weight @ norm.bias.float()
    if layer.bias is not None:
        shifted += layer.bias.float()
    return PackedLayer(layer.weight, layer.bias, torch.stack([weight @ norm.weight.float(), shifted]))


def _effective_weight(module: nn.Module) -> Tensor:
    """[O, I], whichever way the layer keeps it, with its adapter where that acts; a norm's [W]."""
    weight = compute_merged_weight(module) if isinstance(module, LoraLayer) and module.gate.on else module.weight
    assert isinstance(weight, Tensor)
    return weight.T if isinstance(module, TransposedLinear) else weight


def _copy_layer(part: PackedLayer, fresh: PackedLayer) -> None:
    for field in fields(PackedLayer):
        held, new = getattr(part, field.name), getattr(fresh, field.name)
        if held is not None:
            held.copy_(new)


def _weights_version(body: Backbone) -> tuple[object, ...]:
    """Changes whenever a weight is written to or replaced, or a gate is opened or closed."""
    gates = {module.gate.on for module in body.modules() if isinstance(module, LoraLayer)}
    return (frozenset(gates), *((parameter.data_ptr(), parameter._version) for parameter in body.parameters()))
