"""The kernels of gated blocks under Triton's interpreter, in a process of its own: whether a kernel is interpreted is
decided when Triton is imported. Writes outputs and gradients to a file of tensors; judges nothing."""

from __future__ import annotations

import sys

import torch

from tests.support.gated_bodies import BODIES, make_body, make_logits, run_body
from tests.support.workers.tiles import let_numpy_count
from voxgraft.nn import gated_blocks, layers


def main() -> None:
    let_numpy_count()
    gated_blocks.uses_kernels = lambda x: True
    gated_blocks.NUM_CHUNKS = 2  # so that a chunk has several parts, and the last one is not whole
    found = {}
    for name in BODIES:
        for dtype in (torch.float32, torch.float16):
            found[name, dtype] = run_body(make_body(name, dtype), fused=True)
    for dtype in (torch.float32, torch.float16):
        logits, targets = make_logits(dtype)
        total = layers._CrossEntropySum.apply(logits, targets)  # type: ignore[no-untyped-call]
        [gradient] = torch.autograd.grad(0.5 * total, logits)
        found["loss", dtype] = {"out": total.detach(), "logits": gradient}
    torch.save(found, sys.argv[1])


if __name__ == "__main__":
    main()
