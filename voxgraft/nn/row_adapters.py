"""Several adapters on one backbone at once, chosen per row: a decode batch can speak different languages.

`Gate` opens one adapter for a whole model. Here each row of a batch has the number of its adapter, and the products of
all adapters are two matrix products of fixed shape, so that a captured graph can run them. Inference only.

Shapes: B rows, I inputs and O outputs of a layer, R ranks of all adapters together.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.core.errors import GraftError
from voxgraft.nn.adapter import LoraLayer, find_lora_layers

NO_ADAPTER = 0
"""The number of rows that the base speaks alone."""


class RowChoice:
    """The adapter of each row: 0 for none, else its number from 1 on. One for a whole model."""

    def __init__(self) -> None:
        self.rows: Tensor | None = None  # [B]


class RowLoraLayer(nn.Module):
    """A linear layer of the base with the adapters of several models beside it.

    Rows without an adapter keep the bits of the base's own layer: the sum is not even made for them.
    """

    def __init__(self, layers: Sequence[LoraLayer | None], choice: RowChoice) -> None:
        """`layers` are the same layer in each model, None where a model has no adapter here. They share one weight."""
        super().__init__()
        present = [layer for layer in layers if layer is not None]
        first = present[0]
        if any(layer.base_weight is not first.base_weight for layer in present):
            raise GraftError("adapter-mismatch", "the adapters are on different bases", expected="one base in memory")
        self.plain = first.plain_layer(first.base_weight)
        self._choice, dtype = choice, first.base_weight.dtype
        self.register_buffer("down", torch.cat([layer.down.to(dtype) for layer in present]), persistent=False)  # [R, I]
        self.register_buffer("up", torch.cat([layer.up.to(dtype) for layer in present], 1), persistent=False)  # [O, R]
        # By adapter: its scale at the places of its own ranks, 0 at those of the others.
        scales = torch.zeros(len(layers) + 1, len(self.down), dtype=dtype, device=self.down.device)
        start = 0
        for number, layer in enumerate(layers, 1):
            if layer is not None:
                scales[number, start : start + layer.rank] = layer.scale
                start += layer.rank
        self.register_buffer("scales", scales, persistent=False)  # [adapters + 1, R]

    down: Tensor
    up: Tensor
    scales: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[B, I] -> [B, O]"""
        result: Tensor = self.plain(x)
        rows = self._choice.rows
        if rows is None:
            return result
        narrow = F.linear(x, self.down) * self.scales[rows]  # [B, R]
        return torch.where((rows > NO_ADAPTER)[:, None], result + F.linear(narrow, self.up), result)


@torch.no_grad()
def join_adapters(models: Sequence[nn.Module]) -> tuple[nn.Module, RowChoice]:
    """A copy of the first model that shares its tensors and has the adapters of all, number n that of `models[n - 1]`.

    All models must hold the same base tensors. Adapter weights are copied, in the base's dtype.
    """
    first, choice = models[0], RowChoice()
    tensors = chain(first.parameters(), first.buffers())
    joined = copy.deepcopy(first, {id(tensor): tensor for tensor in tensors})
    layers = [find_lora_layers(model) for model in models]
    for name in dict.fromkeys(chain(*layers)):
        joined.set_submodule(name, RowLoraLayer([own.get(name) for own in layers], choice))
    return joined, choice
