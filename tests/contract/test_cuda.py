"""The contract of every family on a CUDA device: kernels without padding, half precision, the same promises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.contract.cases import Case, batch, prompts
from voxgraft.models.generate import generate_codes
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states, compute_losses, load_model
from voxgraft.nn.adapter import add_adapter, get_gate
from voxgraft.nn.attention import AttentionBackend
from voxgraft.nn.decode import SamplingParams
from voxgraft.nn.rows import freeze_base, hash_base_tensors, require_same_base

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED: no CUDA device")
NO_FURTHER = 1.05
"""Two kernels that round differently are equally far from the truth only up to chance."""


@pytest.fixture(autouse=True)
def exact_reference() -> Iterator[None]:
    """float32 matmuls in float32: the reference must be one."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def on_cuda(case: Case, dtype: torch.dtype) -> SpeechModel:
    return load_model(case.family, case.files, device="cuda", dtype=dtype)


def speech_logits(case: Case, dtype: torch.dtype, backend: AttentionBackend) -> Tensor:
    model = on_cuda(case, dtype)
    with torch.no_grad():
        return model.speech_logits(compute_hidden_states(model, batch(case, model, backend=backend))).float()


def distance(found: Tensor, want: Tensor) -> float:
    return float((found - want).double().square().mean().sqrt())


@pytest.mark.parametrize("backend", ["varlen", "flex"])
def test_kernels_without_padding_are_no_further_from_float32_than_padded_rows(
    case: Case, backend: AttentionBackend
) -> None:
    reference = speech_logits(case, torch.float32, "sdpa")
    padded = distance(speech_logits(case, torch.bfloat16, "sdpa"), reference)
    packed = distance(speech_logits(case, torch.bfloat16, backend), reference)
    print(f"\n{case.family.name} {backend}: {packed:.3e} from float32; padded rows: {padded:.3e}")
    assert packed <= NO_FURTHER * padded


def gradients(case: Case, dtype: torch.dtype, backend: AttentionBackend) -> Tensor:
    model = on_cuda(case, dtype)
    add_adapter(model, model.adapter_layers(), rank=4, alpha=4, seed=0)
    trained = freeze_base(model)
    with get_gate(model).opened():
        found = compute_losses(model, batch(case, model, backend=backend))
    torch.autograd.backward(found.text + found.speech)
    return torch.cat([value.grad.float().flatten() for value in trained.values() if value.grad is not None])


@pytest.mark.parametrize("backend", ["varlen", "flex"])
def test_gradients_without_padding_are_no_further_from_float32_than_padded_rows(
    case: Case, backend: AttentionBackend
) -> None:
    reference = gradients(case, torch.float32, "sdpa")
    padded = distance(gradients(case, torch.bfloat16, "sdpa"), reference)
    packed = distance(gradients(case, torch.bfloat16, backend), reference)
    print(f"\n{case.family.name} {backend} gradients: {packed:.3e} from float32; padded rows: {padded:.3e}")
    assert packed <= NO_FURTHER * padded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_off_is_no_graft_bit_for_bit_and_training_leaves_the_base(case: Case, dtype: torch.dtype) -> None:
    base, grafted = on_cuda(case, dtype), on_cuda(case, dtype)
    with torch.no_grad():  # where gradients are wanted, attention may run in another kernel
        want = base.speech_logits(compute_hidden_states(base, batch(case, base)))
    gate = add_adapter(grafted, grafted.adapter_layers(), rank=4, alpha=4, seed=0)
    optimizer = torch.optim.AdamW(freeze_base(grafted).values(), lr=1e-2, weight_decay=0.3, fused=True)
    digests = hash_base_tensors(grafted)
    with gate.opened():
        for _ in range(3):
            optimizer.zero_grad()
            found = compute_losses(grafted, batch(case, grafted))
            torch.autograd.backward(found.text + found.speech)
            optimizer.step()
    require_same_base(grafted, digests)
    with gate.closed(), torch.no_grad():
        assert torch.equal(grafted.speech_logits(compute_hidden_states(grafted, batch(case, grafted))), want)
    with gate.opened(), torch.no_grad():
        assert not torch.equal(grafted.speech_logits(compute_hidden_states(grafted, batch(case, grafted))), want)


def test_float32_speaks_the_same_codes_as_the_processor(case: Case) -> None:
    sampling = SamplingParams(temperature=0, guidance=case.family.upstream_sampling().guidance, max_codes=16)
    model, other = case.open(), on_cuda(case, torch.float32)
    assert generate_codes(model, prompts(case, model), sampling) == generate_codes(
        other, prompts(case, other), sampling
    )
