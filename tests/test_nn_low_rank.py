"""A layer and its adapter as one product: the same result and the same gradients as two."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from voxgraft.nn.adapter import (
    Gate,
    LoraLinear,
    add_adapter,
    apply_parallel_linears,
    fused_lora_linear,
    fused_lora_linears,
)
from voxgraft.nn.layers import TransposedLinear


@pytest.mark.parametrize("has_bias", [False, True])
def test_one_product_is_the_layer_and_its_adapter(has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, down, up = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((11, 6), (9, 6), (3, 6), (9, 3))
    )
    bias = torch.randn(9, generator=generator, dtype=torch.float64) if has_bias else None
    asked = [value.requires_grad_() for value in (x, down, up)]
    plain = torch.nn.functional.linear(x, weight, bias) + (x @ down.T) @ up.T
    as_one = fused_lora_linear(x, [weight], bias, down, up)
    torch.testing.assert_close(as_one, plain)
    weights = torch.randn(*plain.shape, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad((plain * weights).sum(), asked)
    for found, wanted in zip(torch.autograd.grad((as_one * weights).sum(), asked), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_layers_side_by_side_have_the_results_and_gradients_of_each_by_itself() -> None:
    generator = torch.Generator().manual_seed(0)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, outputs, ranks = made(11, 6).requires_grad_(), (4, 9, 5), (3, 2, 3)
    weights = [made(num, 6) for num in outputs]
    downs = [made(rank, 6).requires_grad_() for rank in ranks]
    ups = [made(num, rank).requires_grad_() for num, rank in zip(outputs, ranks, strict=True)]
    alone = [fused_lora_linear(x, [layer[0]], None, *layer[1:]) for layer in zip(weights, downs, ups, strict=True)]
    together = fused_lora_linears(x, weights, downs, ups)
    asked = [x, *downs, *ups]
    chosen = [made(11, num) for num in outputs]
    for found, wanted in zip(together, alone, strict=True):
        torch.testing.assert_close(found, wanted)
    expected = torch.autograd.grad(alone, asked, chosen)
    gradients = torch.autograd.grad(together, asked, chosen)
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def num_fused(results: Sequence[Tensor]) -> int:
    """Fused products among all that the results were computed with."""
    seen, waiting = set(), [tensor.grad_fn for tensor in results]
    while waiting:
        if (node := waiting.pop()) is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return sum("FusedLora" in node.name() for node in seen)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch takes itself to be compiling, so that the products are chosen as in compiled training."""
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)


def layers(
    *sizes: tuple[int, int],
    dtype: torch.dtype = torch.bfloat16,
    bias: bool = False,
    transposed: bool = False,
    alpha: float = 3.0,
) -> tuple[list[nn.Module], Gate]:
    """Layers with adapters that change their results, the gate open."""
    made: list[nn.Module] = [
        TransposedLinear(i, o).to(dtype) if transposed else nn.Linear(i, o, bias=bias, dtype=dtype) for i, o in sizes
    ]
    model = nn.ModuleList(made)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(parameter)))
    gate = add_adapter(model, [str(at) for at in range(len(made))], rank=2, alpha=alpha, seed=0)
    for layer in model:
        up = layer.up
        assert isinstance(up, nn.Parameter)
        nn.init.normal_(up, generator=torch.Generator().manual_seed(1))
    gate.on = True
    return list(model), gate


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_compiled_training_in_half_precision_fuses_layers_that_grow(dtype: torch.dtype) -> None:
    """Where the result is wider than the input; else a copy of the input would cost more than the sum."""
    for size, fused in (((6, 7), 1), ((6, 6), 0), ((6, 5), 0)):
        for options in ({}, {"bias": True}, {"transposed": True}, {"alpha": 2.0}, {"alpha": 4.0}):
            (layer,), _ = layers(size, dtype=dtype, **options)
            x = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
            result = layer(x)
            assert num_fused([result]) == fused
            assert result.dtype == dtype
            exact = layer.double()(x.double())
            torch.testing.assert_close(result.double(), exact, rtol=0.02, atol=0.1)


@pytest.mark.usefixtures("compiling")
def test_layers_side_by_side_are_one_product_only_where_all_of_them_can_be() -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(2)).bfloat16()
    sizes = ((6, 4), (6, 6), (6, 5))

    def fused(made: Sequence[nn.Module], x: Tensor = x) -> int:
        results = apply_parallel_linears(x, made)
        for layer, result in zip(made, results, strict=True):
            torch.testing.assert_close(result, layer(x), rtol=0.02, atol=0.1)
        return num_fused(results)

    assert fused(layers(*sizes)[0]) == 1
    assert fused(layers(*sizes, bias=True)[0]) == 0
    assert fused([layers(*sizes, bias=True)[0][0], *layers(*sizes)[0][1:]]) == 0
    assert fused(layers(*sizes, transposed=True)[0]) == 0
    assert fused(layers(*sizes, dtype=torch.float32)[0], x.float()) == 0
    assert fused([*layers(*sizes)[0], nn.Linear(6, 3, bias=False, dtype=torch.bfloat16)]) == 0
    made, gate = layers(*sizes)
    with gate.closed():
        assert fused(made) == 0
    with gate.closed_at(torch.tensor([True, False, False, True, False])):
        assert fused(made) == 0
    with torch.no_grad():
        assert fused(made) == 0
    assert isinstance(made[1], LoraLinear)
    made[1].base_weight.requires_grad_()
    assert fused(made) == 0


@pytest.mark.usefixtures("compiling")
def test_float32_under_autocast_is_not_fused_and_computed_as_the_layer_does() -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    (layer,), gate = layers((6, 7))
    assert num_fused([layer(x.bfloat16())]) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x)
        with gate.closed():
            base = layer(x)
    assert num_fused([found]) == 0
    assert found.dtype == base.dtype == torch.bfloat16
    torch.testing.assert_close(found, layer(x.bfloat16()), rtol=0.02, atol=0.1)


def test_outside_of_compilation_nothing_is_fused() -> None:
    x = torch.randn(5, 6).bfloat16()
    made, _ = layers((6, 7), (6, 7))
    assert num_fused([made[0](x)]) == num_fused(apply_parallel_linears(x, made)) == 0
