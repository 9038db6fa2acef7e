"""Small bodies of both kinds with an adapter that has learned something, and one pass forward and back through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from voxgraft.nn import IGNORE_INDEX
from voxgraft.nn.adapter import Gate, LoraLayer, add_adapter, find_lora_layers
from voxgraft.nn.attention import AttentionBackend, Packing
from voxgraft.nn.backbones import Backbone, Gpt2Backbone, Gpt2Size, LlamaBackbone, LlamaSize

LENGTHS = [37, 1, 52]
WIDTH = 128
RANK = 16
# Layers whose results are rounded before anything else is done with them.
SMALL = {"llama": ("v_proj", "o_proj", "down_proj"), "gpt2": ("c_attn", "attn.c_proj", "mlp.c_proj")}
BODIES: dict[str, Callable[[int], Backbone]] = {
    "llama": lambda layers: LlamaBackbone(LlamaSize(WIDTH, layers, 2, mlp=192)),
    "gpt2": lambda layers: Gpt2Backbone(Gpt2Size(WIDTH, layers, 2)),
}


@dataclass
class GatedBody:
    body: Backbone
    gate: Gate

    @property
    def adapters(self) -> dict[str, torch.nn.Parameter]:
        layers = find_lora_layers(self.body).items()
        return {f"{layer}.{name}": value for layer, lora in layers for name, value in lora.graft_parameters().items()}


def make_body(name: str, dtype: torch.dtype = torch.float32, *, alpha: float = 24.0, num_layers: int = 2) -> GatedBody:
    generator = torch.Generator().manual_seed(0)
    body = BODIES[name](num_layers)
    with torch.no_grad():
        for key, value in body.named_parameters():
            is_norm = value.dim() == 1 and key.endswith("weight")
            value.copy_(0.05 * torch.randn(value.shape, generator=generator) + is_norm)
    body = body.to(dtype).requires_grad_(False)
    parts = [layer for block in body.blocks for layer in body.parts_of(block).layers]
    layers = [key for key, module in body.named_modules() if any(module is layer for layer in parts)]
    made = GatedBody(body, add_adapter(body, layers, RANK, alpha, seed=1))
    with torch.no_grad():
        for value in made.adapters.values():
            value.copy_(0.05 * torch.randn(value.shape, generator=generator))
    assert all(isinstance(layer, LoraLayer) for block in body.blocks for layer in body.parts_of(block).layers)
    return made


def run_body(made: GatedBody, *, fused: bool, backend: AttentionBackend = "sdpa") -> dict[str, Tensor]:
    """The output, and the gradients of the input and of every adapter."""
    generator = torch.Generator().manual_seed(2)
    like = next(made.body.parameters())
    x, d_out = (torch.randn(sum(LENGTHS), WIDTH, generator=generator).to(like) for _ in range(2))
    x.requires_grad_()
    made.body.fused_gated = fused
    with made.gate.opened():
        out = made.body(x, Packing.of(LENGTHS, like.device, backend))
        gradients = torch.autograd.grad(out, [x, *made.adapters.values()], d_out)
    return {"out": out.detach(), **dict(zip(["x", *made.adapters], gradients, strict=True))}


def small_effects(name: str, *, fused: bool, exact: bool = False) -> dict[str, Tensor]:
    """What an adapter changes in the output of a float16 block while it has learned little, by the layers that have it.

    It adds less than half a unit in the last place to what they make. `exact` computes with the same weights in float32.
    """
    made = make_body(name, torch.float16, alpha=RANK, num_layers=1)
    if exact:
        made.body.float()
    lengths = 8 * LENGTHS  # the effect is an average over roundings
    x = torch.randn(sum(lengths), WIDTH, generator=torch.Generator().manual_seed(2)).to(next(made.body.parameters()))
    ups = {key: value for key, value in made.adapters.items() if key.endswith(".up")}
    kinds = {"nowhere": (), **{kind: (kind,) for kind in SMALL[name]}}
    made.body.fused_gated = fused
    outputs = {}
    for kind, parts in kinds.items():
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for key, value in ups.items():
                learned = 1e-4 * (torch.rand(value.shape, generator=generator) - 0.5)
                value.copy_(learned if any(part in key for part in parts) else torch.zeros_like(learned))
        with made.gate.opened():
            outputs[kind] = made.body(x.clone().requires_grad_(), Packing.of(lengths, backend="sdpa")).detach().float()
    return {kind: out - outputs["nowhere"] for kind, out in outputs.items() if kind != "nowhere"}


def make_logits(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scores of more rows than a kernel reads at once, as a view of padded ones; some targets are ignored. [N, V], [N]"""
    generator = torch.Generator().manual_seed(3)
    padded = (4 * torch.randn(7, 2112, generator=generator)).to(dtype)
    targets = torch.randint(0, 2050, (7,), generator=generator)
    targets[2], targets[5] = IGNORE_INDEX, 2049
    return padded[:, :2050].requires_grad_(), targets
