"""A small model with every kind of linear layer that the two families' bodies have, and an adapter on it that acts."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.nn.adapter import Gate, LoraLayer, adapter_state, add_adapter, load_adapter_state
from voxgraft.nn.layers import AnyLinear, TransposedLinear
from voxgraft.nn.rows import freeze_base

WIDTH, CODES, RANK, ALPHA = 16, 11, 4, 8.0
LAYERS = [f"blocks.{at}.{name}" for at in (0, 1) for name in ("q_proj", "c_attn", "mlp.0", "mlp.2")]
LOW_PRECISION = [torch.bfloat16, torch.float16]


class Block(nn.Module):
    """All kinds of linear layer that the two families' bodies have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q_proj: nn.Module = nn.Linear(WIDTH, WIDTH, bias=False)
        self.c_attn = TransposedLinear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), TransposedLinear(2 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.c_attn(self.q_proj(self.norm(hidden))).chunk(3, dim=-1)
        hidden = hidden + F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = hidden + self.mlp(self.norm(hidden))
        return result


class Speaker(nn.Module):
    """A table, a body and a speech head."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(CODES, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, CODES)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = self.emb(codes)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def a_base() -> Speaker:
    """Frozen, as a base is: torch picks kernels by whether a weight asks for a gradient."""
    torch.manual_seed(0)
    model = Speaker()
    freeze_base(model)
    return model


def with_adapter(base: Speaker) -> Speaker:
    """A copy of the base with an adapter that does something."""
    model = copy.deepcopy(base)
    add_adapter(model, LAYERS, RANK, ALPHA, seed=1)
    load_adapter_state(model, taught(model))
    return model


def taught(model: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    state = adapter_state(model)
    return {name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}


def codes(rows: int = 3, length: int = 7, seed: int = 3) -> Tensor:
    return torch.randint(CODES, (rows, length), generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, given_: Tensor) -> Tensor:
    return F.cross_entropy(model(given_)[:, :-1].flatten(0, 1), given_[:, 1:].flatten())


def a_layer(kind: type[AnyLinear], dtype: torch.dtype = torch.float32, bias: bool = True) -> AnyLinear:
    torch.manual_seed(4)
    layer = kind(WIDTH, 3 * WIDTH)
    if not bias:
        layer.register_parameter("bias", None)
    return layer.to(dtype).requires_grad_(False)


def adapted_copy(layer: AnyLinear) -> tuple[LoraLayer, Gate]:
    """The layer with an adapter that does something."""
    model = nn.ModuleDict({"it": copy.deepcopy(layer)})
    gate = add_adapter(model, ["it"], RANK, ALPHA, seed=1)
    load_adapter_state(model, taught(model))
    found = model["it"]
    assert isinstance(found, LoraLayer)
    return found, gate
