"""Two processes on one CUDA device train what one trains, with and without CUDA graphs. Skipped without a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.campaigns.process_sums import CASES, measured
from tests.support.trainers import Place
from voxgraft.training.distributed import bit_checksum

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "graphs"])
def test_two_processes_on_one_card_are_one_process(tmp_path: Path, compiled: bool) -> None:
    """The two talk through gloo: nccl does not let processes share a card. One process alone replays CUDA graphs."""
    place = Place.make("chatterbox", tmp_path / "chatterbox")
    cases = [case for case in CASES if not compiled or case.startswith(("gated/bf16", "merged-full/bf16"))]
    pairs = measured(place, tmp_path, cases, "cuda", compiled=compiled)
    assert [pair.row() for pair in pairs if not pair.is_same] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_device_sums_bits_as_a_processor_does(dtype: torch.dtype) -> None:
    value = torch.randn(300, 257).to(dtype)
    assert int(bit_checksum(value.cuda())) == int(bit_checksum(value))
