"""All blocks of a gated body as one function: the results, the gradients and the promises of the blocks one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.block_kernels import CANDIDATES
from tests.support.families import PUBLISHED
from tests.support.gated_bodies import (
    BODIES,
    LENGTHS,
    WIDTH,
    GatedBody,
    make_body,
    make_logits,
    run_body,
    small_effects,
)
from tests.support.kernels import run_interpreted
from tests.support.trainers import OPTIONS, Place, StopAt, loop_of, resumed
from voxgraft.nn import gated_blocks
from voxgraft.nn.attention import Packing, supports_tiled_attention
from voxgraft.training.trainer import Trainer


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each pass through the one function."""
    calls: list[int] = []
    usual = gated_blocks._GatedBlocks.forward

    def counted(*arguments: Any) -> Tensor:
        calls.append(1)
        return usual(*arguments)

    monkeypatch.setattr(gated_blocks._GatedBlocks, "forward", staticmethod(counted))
    return calls


@pytest.mark.parametrize("alpha", [16.0, 24.0])
@pytest.mark.parametrize("name", BODIES)
def test_one_function_has_the_output_and_gradients_of_the_blocks(
    name: str, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, calls = make_body(name, alpha=alpha), count_calls(monkeypatch)
    expected = run_body(made, fused=False)
    assert calls == []
    found = run_body(made, fused=True)
    assert calls == [1]
    assert found.keys() == expected.keys()
    assert {key: error for key in found if (error := relative_error(found[key], expected[key])) > 2e-6} == {}
    assert {value.dtype for key, value in found.items() if key.endswith((".up", ".down"))} == {torch.float32}


@pytest.mark.parametrize("name", BODIES)
def test_the_closed_gate_gives_the_bases_own_bits(name: str) -> None:
    made, base = make_body(name), make_body(name)
    made.body.fused_gated = True
    x = torch.randn(sum(LENGTHS), WIDTH, requires_grad=True)
    packing = Packing.of(LENGTHS, backend="sdpa")
    expected = base.body(x, packing)
    assert torch.equal(made.body(x, packing), expected)
    with torch.no_grad():
        assert torch.equal(made.body(x, packing), expected)


def close_some_positions(_: GatedBody, packing: Packing) -> None:
    closed = torch.zeros(sum(LENGTHS), dtype=torch.bool)
    closed[3:9] = True
    object.__setattr__(packing, "closed", closed)


def train_a_layer(made: GatedBody, _: Packing) -> None:
    next(made.body.blocks.parameters()).requires_grad_()


def checkpoint(made: GatedBody, _: Packing) -> None:
    made.body.gradient_checkpointing = True


@pytest.mark.parametrize("change", [close_some_positions, train_a_layer, checkpoint])
@pytest.mark.parametrize("name", BODIES)
def test_what_it_does_not_compute_runs_block_by_block(
    name: str, change: Callable[[GatedBody, Packing], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, packing = count_calls(monkeypatch), Packing.of(LENGTHS, backend="sdpa")
    outputs = []
    for fused in (False, True):
        made = make_body(name)
        change(made, packing)
        made.body.fused_gated = fused
        with made.gate.opened():
            outputs.append(made.body(torch.linspace(-1, 1, sum(LENGTHS) * WIDTH).view(-1, WIDTH), packing))
    assert torch.equal(*outputs)
    assert calls == []


@pytest.mark.parametrize("name", BODIES)
def test_a_second_backward_pass_is_refused(name: str) -> None:
    made = make_body(name)
    made.body.fused_gated = True
    with made.gate.opened():
        out = made.body(torch.randn(sum(LENGTHS), WIDTH), Packing.of(LENGTHS, backend="sdpa")).sum()
    first = next(iter(made.adapters.values()))
    torch.autograd.grad(out, first, retain_graph=True)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, first)


@pytest.mark.long(fast="chatterbox")
@pytest.mark.parametrize("name", PUBLISHED)
def test_training_with_it_learns_the_same_and_resumes_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, calls = Place.make(name, tmp_path / "place"), count_calls(monkeypatch)

    def loop(folder: str, *, fused: bool) -> Trainer:
        made = loop_of(place, tmp_path / folder, OPTIONS)
        made.stepper.trained.model.body.fused_gated = fused
        return made

    plain, straight, broken = loop("plain", fused=False), loop("straight", fused=True), loop("broken", fused=True)
    plain.train(0)
    assert calls == []
    straight.train(0)
    assert calls
    broken.callbacks.append(StopAt(4))
    broken.train(0)
    again = loop("broken", fused=True)
    again.train(resumed(again))
    expected, found, unfused = (flat_tensors(one) for one in (straight, again, plain))
    assert expected.keys() == found.keys() == unfused.keys()
    assert [key for key in expected if not torch.equal(found[key], expected[key])] == []
    # Adam divides small gradients by their own size, so rounding shows.
    assert [key for key in expected if relative_error(expected[key], unfused[key]) > 1e-3] == []


def flat_tensors(loop: Trainer) -> dict[str, Tensor]:
    groups = loop.stepper.trained.tensors().items()
    return {f"{group}/{name}": value for group, named in groups for name, value in named.items()}


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, torch.dtype], dict[str, Tensor]]:
    """Output and gradients of every body, from a process in which Triton interprets its kernels."""
    found: dict[tuple[str, torch.dtype], dict[str, Tensor]] = run_interpreted(
        "gated_blocks", tmp_path_factory.mktemp("gated") / "values"
    )
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", BODIES)
def test_the_kernels_compute_what_plain_torch_does(
    interpreted: dict[tuple[str, torch.dtype], dict[str, Tensor]], name: str, dtype: torch.dtype
) -> None:
    exact = run_body(make_body(name), fused=False)
    found = interpreted[name, dtype]
    # In float16 the weights themselves are rounded: compared with the blocks one by one in that precision.
    expected = exact if dtype == torch.float32 else run_body(make_body(name, dtype), fused=False)
    tolerance = 2e-6 if dtype == torch.float32 else 3e-3
    assert {key: error for key in found if (error := relative_error(found[key], expected[key])) > tolerance} == {}


def shares_kept(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """How much of each effect is left, where it is far from all of it; rounding without a direction leaves it whole."""
    assert found.keys() == exact.keys()
    shares = {kind: float((found[kind] * exact[kind]).sum() / exact[kind].square().sum()) for kind in exact}
    return {kind: share for kind, share in shares.items() if not 0.85 < share < 1.15}


@pytest.mark.parametrize("name", BODIES)
def test_an_adapter_that_has_learned_little_is_not_rounded_away(name: str) -> None:
    assert shares_kept(small_effects(name, fused=True), small_effects(name, fused=False, exact=True)) == {}


@pytest.mark.parametrize("name", BODIES)
def test_the_kernels_do_not_round_it_away_either(interpreted: dict[Any, Any], name: str) -> None:
    assert shares_kept(interpreted["small effects", name], small_effects(name, fused=False, exact=True)) == {}


def test_every_configuration_that_the_benchmark_tries_computes_the_same(
    interpreted: dict[Any, dict[str, Tensor]],
) -> None:
    errors = interpreted["errors"]
    assert {name.split()[2].rstrip(":") for name in errors} == set(CANDIDATES)
    assert {name: float(error) for name, error in errors.items() if not error < 1e-5} == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernels_of_the_loss_compute_what_torch_does(
    interpreted: dict[tuple[str, torch.dtype], dict[str, Tensor]], dtype: torch.dtype
) -> None:
    logits, targets = make_logits(dtype)
    total = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
    [gradient] = torch.autograd.grad(0.5 * total, logits)
    found = interpreted["loss", dtype]
    assert relative_error(found["out"], total.detach()) < 1e-6
    assert relative_error(found["logits"], gradient) < (1e-6 if dtype == torch.float32 else 1e-3)
    assert not found["logits"][2].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", BODIES)
def test_on_a_gpu_it_is_as_near_to_float32_as_the_blocks_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not supports_tiled_attention(torch.cuda.get_device_capability(), torch.bfloat16, 64):
        pytest.skip("needs attention in tiles")
    calls, exact = count_calls(monkeypatch), run_body(make_body(name), fused=False)
    made = make_body(name, torch.bfloat16)
    made.body.to("cuda")
    plain = run_body(made, fused=False, backend="tiles")
    assert calls == []
    found, again = (run_body(made, fused=True, backend="tiles") for _ in range(2))
    assert calls == [1, 1]
    assert [key for key in found if not torch.equal(found[key], again[key])] == []
    worse = {
        key: (error, usual)
        for key in found
        if (error := relative_error(found[key].cpu(), exact[key]))
        > 1.5 * (usual := relative_error(plain[key].cpu(), exact[key])) + 2e-3
    }
    assert worse == {}
