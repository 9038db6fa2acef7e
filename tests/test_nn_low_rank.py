"""A layer and its adapter as one product: the same result and the same gradients as two."""

from __future__ import annotations

import pytest
import torch

from voxgraft.nn.adapter import fused_lora_linear, fused_lora_linears


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
