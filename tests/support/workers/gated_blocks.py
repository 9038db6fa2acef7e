"""The kernels of gated blocks under Triton's interpreter, in a process of its own: whether a kernel is interpreted is
decided when Triton is imported. Writes outputs and gradients to a file of tensors; judges nothing.

New tensors are full of NaN, as torch fills them in its deterministic mode: what is read before it is written shows."""

from __future__ import annotations

import sys
from dataclasses import astuple, replace

import torch

from benchmarks.block_kernels import CANDIDATES, Block
from tests.support.gated_bodies import BODIES, make_body, make_logits, run_body, small_effects
from tests.support.workers.tiles import let_numpy_count
from voxgraft.nn import gated_blocks, layers

NUM_POSITIONS = 150


def errors_of_configurations() -> dict[str, float]:
    """Of each configuration that the benchmark tries; what only the compiler sees is left as it is."""
    found = {}
    for body, others in (("small llama", CANDIDATES), ("small gpt2", {name: [] for name in CANDIDATES})):
        block = Block(body, NUM_POSITIONS, 16, "cpu")
        for name, candidates in others.items():
            default = getattr(gated_blocks, name)
            expected = block.expected(name)
            tried = [astuple(default), *candidates]
            for rows, columns, chunks in sorted({(one[0], one[2], one[5]) for one in tried}):
                setattr(gated_blocks, name, replace(default, rows=rows, block=columns, chunks=chunks))
                found[f"{body}, {name}: {rows} rows, {columns} columns, {chunks} chunks"] = block.error(name, expected)
            setattr(gated_blocks, name, default)
    return found


def main() -> None:
    let_numpy_count()
    torch.use_deterministic_algorithms(True, warn_only=True)
    gated_blocks.uses_kernels = lambda x: True
    found: dict[object, dict[str, torch.Tensor]] = {}
    errors = errors_of_configurations()
    found["errors"] = {name: torch.tensor(error) for name, error in errors.items()}
    for name in ("HEADS_GRADIENT", "ACTIVATION_GRADIENT"):
        # A chunk has several parts, and the last one is not whole.
        setattr(gated_blocks, name, replace(getattr(gated_blocks, name), rows=16, chunks=2))
    for name in BODIES:
        for dtype in (torch.float32, torch.float16):
            found[name, dtype] = run_body(make_body(name, dtype), fused=True)
    for name in BODIES:
        found["small effects", name] = small_effects(name, fused=True)
    for dtype in (torch.float32, torch.float16):
        logits, targets = make_logits(dtype)
        total = layers._CrossEntropySum.apply(logits, targets)  # type: ignore[no-untyped-call]
        [gradient] = torch.autograd.grad(0.5 * total, logits)
        found["loss", dtype] = {"out": total.detach(), "logits": gradient}
    torch.save(found, sys.argv[1])


if __name__ == "__main__":
    main()
