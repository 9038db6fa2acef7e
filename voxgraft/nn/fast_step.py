"""One more position for every row of a cache, through hand-written kernels: what `body(x, Step(cache))` gives, faster.

Few rows are matrix-vector work, bound by reading the weights: five kernels a layer. More rows go through the
libraries' matrix products with the small work between them fused. Half precision on CUDA only.

Shapes: R rows, W width, M width of the MLP, H heads of width D, S positions of the cache.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor

from voxgraft.nn.attention import Cache
from voxgraft.nn.body import Body
from voxgraft.nn.packed_body import PackedBody, PackedPart, kind_of

__all__ = ["FEW_ROWS", "FastStep", "can_step_fast"]

FEW_ROWS = 4
"""Up to here every weight is multiplied as it is read; beyond, the matrix units are worth their trouble."""
LANE = 8
"""Numbers of half precision that one thread reads at once."""
MAX_POSITION_BLOCK = 512


def can_step_fast(body: Body, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this body can be stepped by `FastStep` here; if not, `Step` does it anywhere."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    if dtype not in (torch.bfloat16, torch.float16) or kind_of(body) is None:
        return False
    width_fits = body.head_width >= 16 and body.head_width & (body.head_width - 1) == 0
    return width_fits and torch.cuda.get_device_capability(device) >= (8, 0)


class FastStep:
    """The step of one body over one cache. Everything it needs is allocated once, so that it can be captured."""

    def __init__(self, body: PackedBody, memory: Cache) -> None:
        self.body, self.cache = body, memory
        self.num_rows = memory.num_rows
        weight = body.blocks[0].qkv.weight
        rows, width = self.num_rows, body.width
        self._few = rows <= FEW_ROWS
        self._early = torch.cuda.get_device_capability(weight.device) >= (9, 0)
        self._x = weight.new_zeros(2, rows, width)  # the residual, and what its rounding lost
        self._mixed = weight.new_empty(rows, width)
        self._hidden = weight.new_empty(rows, body.mlp)
        self._normed = weight.new_empty(rows, width)
        self._rotation = self._turns(memory.length)  # [S, D]
        self._qkv = weight.new_empty(rows, 3 * width, dtype=torch.float32 if self._few else weight.dtype)
        self._position_block = MAX_POSITION_BLOCK if self._few else MAX_POSITION_BLOCK // 4

    def __call__(self, vectors: Tensor) -> Tensor:
        """The body's output for one more vector in every row, which `cache.filled` counts already. [R, W] -> [R, W]"""
        self._x[0].copy_(vectors)
        self._x[1].zero_()
        layers = self._few_rows if self._few else self._many_rows
        layers()
        return self._normed

    def _few_rows(self) -> None:
        for layer, block in enumerate(self.body.blocks):
            self._normed_linear(block.first_norm, block.qkv, self._qkv, "none")
            self._attend(layer)
            self._added_linear(self._mixed, block.out)
            self._normed_linear(block.second_norm, block.up, self._hidden, self.body.kind.activation)
            self._added_linear(self._hidden, block.down)
        self._add_norm(None, self.body.final_norm)

    def _many_rows(self) -> None:
        y = None
        for layer, block in enumerate(self.body.blocks):
            self._add_norm(y, block.first_norm)
            self._qkv = F.linear(self._normed, block.qkv.weight, block.qkv.bias)
            self._attend(layer)
            self._add_norm(F.linear(self._mixed, block.out.weight, block.out.bias), block.second_norm)
            self._activate(F.linear(self._normed, block.up.weight, block.up.bias))
            y = F.linear(self._hidden, block.down.weight, block.down.bias)
        self._add_norm(y, self.body.final_norm)

    def _turns(self, length: int) -> Tensor:
        """Cosines and sines of every position; nothing for a body without rotary positions."""
        frequencies = self.body.kind.frequencies
        if frequencies is None:
            return self._x.new_zeros(1, dtype=torch.float32)
        angles = torch.arange(length, device=self._x.device)[:, None] * frequencies.float()
        return torch.cat([angles.cos(), angles.sin()], 1).contiguous()

    def _normed_linear(self, norm: PackedPart, layer: PackedPart, out: Tensor, activation: str) -> None:
        num_outputs, num_inputs = out.shape[1], self.body.width
        lines, warps = tiling(num_inputs, 2 if activation == "gated" else 1)
        self._launch("normed_linear", -(-num_outputs // lines), warps)(
            self._x, norm.weight, _or(norm.bias, norm.weight), layer.weight, _or(layer.bias, norm.weight), out,
            self.body.kind.eps, num_inputs, num_outputs, self.num_rows, self.body.kind.norm, activation,
            layer.bias is not None, lines, piece(num_inputs, warps), self._early,
        )  # fmt: skip

    def _added_linear(self, y: Tensor, layer: PackedPart) -> None:
        num_outputs, num_inputs = layer.weight.shape
        lines, warps = tiling(num_inputs, 1)
        self._launch("added_linear", -(-num_outputs // lines), warps)(
            y, layer.weight, _or(layer.bias, layer.weight), self._x, num_inputs, num_outputs, self.num_rows,
            layer.bias is not None, lines, piece(num_inputs, warps), self._early,
        )  # fmt: skip

    def _attend(self, layer: int) -> None:
        body, memory = self.body, self.cache
        warps = 16 if self._few else 4
        self._launch("attend", self.num_rows * body.num_heads, warps)(
            self._qkv, self._rotation, memory.keys[layer], memory.values[layer], memory.filled, self._mixed,
            memory.length, body.head_width**-0.5, body.num_heads, body.head_width, body.kind.frequencies is not None,
            self._position_block, self._early,
        )  # fmt: skip

    def _add_norm(self, y: Tensor | None, norm: PackedPart) -> None:
        width = self.body.width
        self._launch("add_norm", self.num_rows, 4)(
            _or(y, self._normed), self._x, norm.weight, _or(norm.bias, norm.weight), self._normed, self.body.kind.eps,
            self.num_rows, width, self.body.kind.norm, y is not None, _power_of_two(width), self._early,
        )  # fmt: skip

    def _activate(self, x: Tensor) -> None:
        block, total = 1024, self._hidden.numel()
        self._launch("activate", -(-total // block), 4)(
            x, self._hidden, total, self.body.mlp, self.body.kind.activation, block, self._early
        )

    def _launch(self, name: str, programs: int, warps: int) -> Any:
        kernel = getattr(_kernels(), name)[(programs,)]
        options: dict[str, Any] = {"num_warps": warps}
        if self._early:
            options["launch_pdl"] = True

        def launch(*arguments: Any) -> None:
            kernel(*arguments, **options)

        return launch


def tiling(num_inputs: int, num_matrices: int) -> tuple[int, int]:
    """Outputs and warps of one program, so that each thread reads some 128 weights at once."""
    return 4 // num_matrices, 1


def piece(num_inputs: int, warps: int) -> int:
    """Inputs that the warps of a program read side by side: a power of two that divides them all."""
    return min(num_inputs & -num_inputs, 32 * LANE * warps)


def _or(tensor: Tensor | None, instead: Tensor) -> Tensor:
    """Kernels want a place for everything, also for what they never read."""
    return instead if tensor is None else tensor


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@cache
def _kernels() -> Any:
    from voxgraft.nn import kernels

    return kernels
