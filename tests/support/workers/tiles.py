"""Tiled attention under Triton's interpreter, in a process of its own: whether a kernel is interpreted is decided when
Triton is imported. Writes what it found to a file of tensors; judges nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from triton.runtime import interpreter  # type: ignore[import-not-found,unused-ignore]

from voxgraft.nn import attention
from voxgraft.nn.attention import Packing


def let_numpy_count() -> None:
    """The interpreter turns arrays of one number into an integer in a way that numpy no longer allows (2.4)."""
    usual = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        usual(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def found(qkv: Tensor, d_out: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Output and the gradient of a fused projection, with some entries of the work lists unused."""
    packing = Packing.of(lengths, backend="tiles")
    assert packing.tiles is not None
    longer = torch.nn.functional.pad(packing.tiles, (0, 0, 0, 5))
    fused = qkv.requires_grad_()
    q, k, v = fused.unbind(1)
    out = replace(packing, tiles=longer).attend(0, q, k, v)
    [gradient] = torch.autograd.grad(out, fused, d_out)
    return out.detach(), gradient


def main() -> None:
    let_numpy_count()
    given = torch.load(sys.argv[1])
    made = []
    for tile, block, peel, heads_first, dtype in given["ways"]:
        cut = replace(attention.KEY_GRADIENT_TILES, tile=tile, block=block, peel=peel, heads_first=heads_first)
        attention.FORWARD_TILES = attention.QUERY_GRADIENT_TILES = attention.KEY_GRADIENT_TILES = cut
        made.append(found(given["qkv"].detach().to(dtype), given["d_out"].to(dtype), given["lengths"]))
    torch.save(made, sys.argv[1])


if __name__ == "__main__":
    main()
