"""float32 masters of a body that is trained in half precision: what the optimizer moves and a step saves.

The model computes with rounded copies, which halves the traffic of every pass; nothing is ever lost to rounding between
steps. Rows and adapter are float32 parameters of the model itself and need no masters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["MasterWeights"]


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
