"""Flow solvers at padded lengths and as CUDA graphs: the same mel, and no graph where one cannot be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support import s3gen
from tests.test_s2mel import SMALL, random_prompt
from tests.test_s2mel import random_model as random_s2mel
from voxgraft.models.chatterbox import flow
from voxgraft.models.chatterbox.s3gen import S3GenNoise
from voxgraft.models.indextts2 import s2mel
from voxgraft.nn.layers import FRAME_STEP, SolverGraphs, pad_frames, round_up

CODES = [[5, 6, 7, 8, 9, 10, 11], [1, 2, 3]]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED: there is no GPU")


def padded(num_frames: int, _device: torch.device) -> int:
    return round_up(num_frames, FRAME_STEP)


def test_frames_are_padded_on_cuda_alone() -> None:
    assert pad_frames(65, torch.device("cpu")) == 65
    assert pad_frames(65, torch.device("cuda")) == 128
    assert pad_frames(128, torch.device("cuda")) == 128


def s3gen_mels(device: str = "cpu", dtype: torch.dtype | None = None, times: int = 1) -> list[Tensor]:
    model = s3gen.random_model().to(device)
    model.flow_dtype = dtype
    references = [s3gen.random_reference(6, 13, 5), s3gen.random_reference(9, 18, 6)]
    noise = [
        S3GenNoise.draw(torch.Generator().manual_seed(0), len(own), one)
        for own, one in zip(CODES, references, strict=True)
    ]
    for _ in range(times):
        mels = model.generate_mels(CODES, references, noise)
    if device != "cpu" and times > 1:
        assert model.flow.decoder.graphs.refusal == ""
    return [mel.cpu() for mel in mels]


def s2mel_mels(device: str = "cpu", dtype: torch.dtype | None = None, times: int = 1) -> list[Tensor]:
    model = random_s2mel().to(device)
    prompts = [random_prompt(frames, frames).to(device) for frames in (5, 9)]
    draw = torch.Generator().manual_seed(9)
    contents = [torch.randn(frames, SMALL.dit.content, generator=draw).to(device) for frames in (20, 12)]
    noises = [torch.randn(80, frames, generator=draw) for frames in (25, 21)]
    for _ in range(times):
        mels = model.solve(prompts, contents, noises, 3, dtype=dtype)
    if device != "cpu" and times > 1:
        assert model.graphs.refusal == ""
    return [mel.cpu() for mel in mels]


def test_a_padded_solver_gives_the_same_mels(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [*s3gen_mels(), *s2mel_mels()]
    monkeypatch.setattr(flow, "pad_frames", padded)
    monkeypatch.setattr(s2mel, "pad_frames", padded)
    for own, wanted in zip([*s3gen_mels(), *s2mel_mels()], plain, strict=True):
        assert own.shape == wanted.shape
        assert float((own - wanted).abs().max()) < 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_and_not_the_same(dtype: torch.dtype) -> None:
    for own, wanted in zip(s3gen_mels(dtype=dtype), s3gen_mels(), strict=True):
        assert own.dtype == torch.float32
        assert 0 < float((own - wanted).square().mean() / wanted.square().mean()) < 1e-3


def test_elsewhere_than_on_cuda_a_solver_runs_as_it_is() -> None:
    graphs, calls = SolverGraphs(), []

    def solve(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x + 1

    for _ in range(3):
        assert torch.equal(graphs.run(solve, "", torch.zeros(2)), torch.ones(2))
    assert calls == [2, 2, 2]
    assert graphs.refusal == ""


@cuda
@pytest.mark.parametrize("mels", [s3gen_mels, s2mel_mels])
def test_a_replayed_solver_gives_the_mels_of_the_processor(mels) -> None:  # type: ignore[no-untyped-def]
    for own, wanted in zip(mels("cuda", torch.bfloat16, times=4), mels(), strict=True):
        assert float((own - wanted).abs().max()) < 0.1  # half precision; see docs/log.md


@cuda
def test_a_solver_that_cannot_be_captured_still_runs() -> None:
    graphs = SolverGraphs()

    def solve(x: Tensor) -> Tensor:
        return x + float(x.sum())  # waits for the device

    given = torch.ones(3, device="cuda")
    for _ in range(4):
        assert torch.equal(graphs.run(solve, "", given).cpu(), torch.full((3,), 4.0))
    assert graphs.refusal
