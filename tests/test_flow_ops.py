"""What lies between the matrix products of flows: the kernels, under Triton's interpreter, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.flow_parts import compute_parts
from tests.support.kernels import run_interpreted
from voxgraft.models.indextts2.dit import WaveNet, build_frame_mask

Parts = dict[torch.dtype, dict[str, Tensor]]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    found: Parts = run_interpreted("flow_parts", tmp_path_factory.mktemp("flow") / "values")
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_kernels_compute_what_torch_does(interpreted: Parts, dtype: torch.dtype) -> None:
    expected, found = compute_parts(dtype), interpreted[dtype]
    assert found.keys() == expected.keys()
    errors = {
        name: float((found[name].float() - value.float()).norm() / value.float().norm())
        for name, value in expected.items()
    }
    # Torch rounds between the steps that a kernel does at once.
    rounding = torch.finfo(dtype).eps
    assert {name: error for name, error in errors.items() if not error < 1.5 * rounding} == {}
    assert all(bool(value.isfinite().all()) for value in found.values())


@pytest.mark.parametrize("lengths", [[9], [40, 40], [40, 7, 3], [5, 2, 1], [2], [1], [2, 1]])
def test_a_fused_wavenet_computes_what_the_convolutions_do(lengths: list[int]) -> None:
    torch.manual_seed(0)
    width, layers = 16, 4
    network = WaveNet(width, layers, 5).requires_grad_(False)
    mask = build_frame_mask(lengths, network.reflect, "cpu")
    # Guidance has every row twice.
    y, times = torch.randn(2 * len(lengths), width, max(lengths)), torch.randn(layers, 2 * width)
    expected = network(y, times, mask)
    network.fuse()
    found = network(y, times, mask)
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < 2e-5
