"""What the kernels of flows are given in tests, and how each is called."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from voxgraft.nn import flow_ops

WIDTH, HEADS, ROWS, FRAMES = 48, 3, 2, 37


def compute_parts(dtype: torch.dtype) -> dict[str, Tensor]:
    """Every part of a flow that has a kernel, on values that are the same in every process."""
    draw = torch.Generator().manual_seed(0)

    def values(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return (2 * torch.randn(*shape, generator=draw)).to(of)

    exact = torch.float32
    x, delta, wide = values(ROWS, FRAMES, WIDTH, of=exact), values(ROWS, FRAMES, WIDTH), values(ROWS, FRAMES, WIDTH)
    scale, shift = values(WIDTH, of=exact), values(WIDTH, of=exact)
    qkv, angles = values(ROWS, FRAMES, 3, HEADS, WIDTH // HEADS), values(FRAMES, WIDTH // HEADS // 2, of=exact)
    doubled, channels = values(ROWS, FRAMES, 2 * WIDTH), values(ROWS, 2 * WIDTH, FRAMES)
    single, every, each = values(1, 1, WIDTH), values(ROWS, FRAMES, WIDTH), values(2 * WIDTH, of=exact)
    found: dict[str, Tensor] = {}
    for name, centred in (("layer", True), ("rms", False)):
        for kind, added in (("alone", None), ("added", delta)):
            total, normed = flow_ops.add_norm(x, added, scale, shift, 1e-5, dtype, centred=centred)
            found |= {f"{name} norm, {kind}: sum": total, f"{name} norm, {kind}": normed}
    # Rows that are no multiple of a block, and values at which e^x leaves the range of numbers.
    extreme = torch.cat([wide[:, :-1], wide[:, -1:] * 50], 1)
    found["mish, one vector"] = flow_ops.norm_mish(extreme, scale * 20, shift, 1e-5, single, dtype, fuse=dtype)
    found["mish, every frame"] = flow_ops.norm_mish(wide, scale, shift, 1e-5, every, exact, fuse=dtype)
    found["swiglu"] = flow_ops.swiglu(doubled)
    names = ("query", "key", "value")
    found |= dict(zip(names, flow_ops.rotate_pairs(qkv.clone(), angles.cos(), angles.sin()), strict=True))
    found["gate"] = flow_ops.gate(channels, each)
    return {name: value.clone() for name, value in found.items()}


def count_launches(run: Callable[[], object]) -> int:
    """Kernels that were launched, with every part given to a kernel wherever it is."""
    launches, usual = 0, flow_ops._launch

    def counted(*arguments: object, **constants: object) -> bool:
        nonlocal launches
        launches += 1
        return usual(*arguments, **constants)  # type: ignore[arg-type]

    flow_ops._launch, flow_ops._fuses = counted, lambda _, dtype: dtype.itemsize == 2  # type: ignore[assignment]
    run()
    return launches
