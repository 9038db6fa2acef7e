"""`python -m tests.support.workers.flow_parts FILE`: what the kernels of flows compute, under Triton's interpreter."""

from __future__ import annotations

import sys
import warnings

import torch

from tests.support.flow_parts import compute_parts, count_launches

if __name__ == "__main__":
    warnings.simplefilter("error")  # a kernel that fails falls back to torch with a warning
    found = {}
    for dtype in (torch.float16, torch.bfloat16):
        launches = count_launches(lambda own=dtype: found.update({own: compute_parts(own)}))  # type: ignore[misc]
        assert launches == 9, launches
    torch.save(found, sys.argv[1])
