"""Promise 3, gated: with the gate closed a body is the base, bit for bit and operation for operation; open, it learns."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.adapter_model import (
    ALPHA,
    LAYERS,
    LOW_PRECISION,
    RANK,
    WIDTH,
    Speaker,
    a_base,
    a_layer,
    adapted_copy,
    codes,
    loss_of,
    taught,
    with_adapter,
)
from voxgraft.nn.adapter import (
    Gate,
    adapter_state,
    add_adapter,
    find_lora_layers,
    get_gate,
    load_adapter_state,
    merge_adapter,
)
from voxgraft.nn.layers import AnyLinear, TransposedLinear
from voxgraft.nn.rows import (
    build_trainable_report,
    compute_base_fingerprint,
    freeze_base,
    grow_layers,
    hash_base_tensors,
    require_same_base,
)


@pytest.fixture
def base() -> Speaker:
    return a_base()


@pytest.fixture
def adapted(base: Speaker) -> Speaker:
    return with_adapter(base)


# ---- gate closed: the base -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 7, 33])
def test_a_closed_gate_gives_the_bits_of_the_base(length: int, base: Speaker, adapted: Speaker) -> None:
    given_ = codes(length=length)
    expected = base(given_)
    assert torch.equal(adapted(given_), expected)
    gate = get_gate(adapted)
    with gate.opened():
        assert not torch.allclose(adapted(given_), expected, atol=1e-2), "this adapter does something"
        with gate.closed():
            assert torch.equal(adapted(given_), expected)
    assert torch.equal(adapted(given_), expected)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation that torch runs, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operations(model: nn.Module) -> list[str]:
    """Forward and backward; something before the body asks for a gradient, as new text rows do."""
    rows = torch.ones(3, 7, WIDTH, requires_grad=True)
    with Operations() as seen:
        hidden = rows * 2
        for block in model.get_submodule("blocks").children():
            hidden = block(hidden)
        hidden.sum().backward()  # type: ignore[no-untyped-call]
    names: list[str] = seen.names
    return names


def test_a_closed_gate_runs_the_operations_of_the_base_and_no_other(base: Speaker, adapted: Speaker) -> None:
    expected = operations(base)
    assert operations(adapted) == expected
    with get_gate(adapted).opened():
        assert len(operations(adapted)) > len(expected) + len(LAYERS)


def exported(model: nn.Module) -> list[str]:
    program = torch.export.export(model.eval(), (codes(),))
    return [f"{node.op} {node.target if node.op == 'call_function' else ''}" for node in program.graph.nodes]


def calls(nodes: list[str]) -> list[str]:
    return [node for node in nodes if node.startswith("call")]


def test_the_exported_graph_of_a_closed_gate_is_the_graph_of_the_base(base: Speaker, adapted: Speaker) -> None:
    expected = calls(exported(base))
    assert calls(exported(adapted)) == expected
    with get_gate(adapted).opened():
        opened = calls(exported(adapted))
    assert len([call for call in opened if "linear" in call]) == len([c for c in expected if "linear" in c]) + 2 * len(
        LAYERS
    )


def test_a_compiled_model_has_one_graph_for_each_state_of_the_gate(base: Speaker, adapted: Speaker) -> None:
    torch.compiler.reset()
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    given_, gate = codes(), get_gate(adapted)
    compiled = torch.compile(adapted, backend=backend, fullgraph=True)
    with gate.opened():
        expected_open = adapted(given_)
    for _ in range(2):
        assert torch.equal(compiled(given_), base(given_))
        with gate.opened():
            assert torch.equal(compiled(given_), expected_open)
    assert len(graphs) == 2, "later changes of the gate find the graph that is there"
    torch.compile(base, backend=backend, fullgraph=True)(given_)
    assert graphs[0] == graphs[2]
    assert len(graphs[1]) > len(graphs[0])


def test_a_gate_is_as_it_was_after_a_block_also_when_the_block_fails() -> None:
    gate = Gate()

    def fail() -> None:
        with gate.opened():
            with gate.closed(), gate.opened():
                assert gate.on
            assert gate.on
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not gate.on


@pytest.mark.parametrize("kind", [nn.Linear, TransposedLinear])
@pytest.mark.parametrize("dtype", [torch.float32, *LOW_PRECISION])
def test_an_open_gate_is_closed_at_the_marked_positions_alone(dtype: torch.dtype, kind: type[AnyLinear]) -> None:
    layer = a_layer(kind, dtype)
    adapted, gate = adapted_copy(layer)
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1, 0] = torch.inf  # there the product is not even a number
    closed = torch.tensor([False, True, True, False, True, False])
    with gate.opened():
        everywhere = adapted(x)
        with gate.closed_at(closed):
            found = adapted(x)
            with gate.closed():
                assert torch.equal(adapted(x)[2:], layer(x)[2:])
    assert torch.equal(found[closed].isnan(), layer(x)[closed].isnan())
    assert torch.equal(found[[2, 4]], layer(x)[[2, 4]])
    assert torch.equal(found[~closed], everywhere[~closed])
    assert not torch.equal(everywhere[2], layer(x)[2])


def test_marked_positions_are_forgotten_after_their_block_also_when_it_fails() -> None:
    gate, outer, inner = Gate(), torch.tensor([True]), torch.tensor([False])
    assert gate.mask is None

    def fail() -> None:
        with gate.closed_at(outer):
            with gate.closed_at(inner):
                assert gate.mask is inner
            assert gate.mask is outer
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gate.mask is None
    assert not gate.on, "marks open no gate"
    assert Gate(on=True).on


# ---- gate open -----------------------------------------------------------------------------------------------------


def test_a_new_adapter_changes_nothing_even_with_the_gate_open(base: Speaker) -> None:
    model = copy.deepcopy(base)
    gate = add_adapter(model, LAYERS, RANK, ALPHA, seed=1)
    with gate.opened():
        assert torch.equal(model(codes()), base(codes()))


@given(st.sampled_from([nn.Linear, TransposedLinear]), st.booleans(), st.integers(1, 9), st.integers(0, 5))
@settings(max_examples=40)
def test_an_open_gate_adds_the_low_rank_product(kind: type[AnyLinear], bias: bool, rank: int, positions: int) -> None:
    layer = a_layer(kind, torch.float64, bias or kind is TransposedLinear)
    model = nn.ModuleDict({"it": copy.deepcopy(layer)})
    gate = add_adapter(model, ["it"], rank, 3.0, seed=rank)
    load_adapter_state(model, taught(model))
    state = adapter_state(model)
    x = torch.randn(positions, WIDTH, dtype=torch.float64)
    expected = layer(x) + 3.0 / rank * x @ state["it.down"].T @ state["it.up"].T
    with gate.opened():
        torch.testing.assert_close(model["it"](x), expected)
        merged = copy.deepcopy(model)
        merge_adapter(merged)
        torch.testing.assert_close(merged["it"](x), expected)
    assert torch.equal(model["it"](x), layer(x))


@pytest.mark.parametrize("kind", [nn.Linear, TransposedLinear])
@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_an_adapter_of_a_low_precision_base_has_float32_masters(dtype: torch.dtype, kind: type[AnyLinear]) -> None:
    layer = a_layer(kind, dtype)
    adapted, gate = adapted_copy(layer)
    x = torch.randn(5, WIDTH).to(dtype)
    assert torch.equal(adapted(x), layer(x))
    with gate.opened():
        result = adapted(x)
    assert result.dtype == dtype
    result.float().square().sum().backward()
    for parameter in adapted.graft_parameters().values():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("kind", [nn.Linear, TransposedLinear])
def test_autocast_reaches_the_adapter_as_it_reaches_the_base(kind: type[AnyLinear]) -> None:
    layer = a_layer(kind)
    adapted, gate = adapted_copy(layer)
    x = torch.randn(5, WIDTH)
    with gate.opened():
        exact = adapted(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(adapted(x), layer(x))
        with gate.opened():
            result = adapted(x)
            narrow = F.linear(x, adapted.down) * adapted.scale
            expected = layer(x) + F.linear(narrow, adapted.up)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, expected)
    torch.testing.assert_close(result.float(), exact, rtol=0.05, atol=0.05)


# ---- training ------------------------------------------------------------------------------------------------------


def train(model: nn.Module, optimizer: AdamW, steps: int) -> list[float]:
    losses: list[float] = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, codes(seed=step % 5))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("fused", [False, True])
def test_the_base_is_the_same_bits_after_training_the_adapter_with_weight_decay(base: Speaker, fused: bool) -> None:
    model = copy.deepcopy(base)
    digests, fingerprint = hash_base_tensors(base), compute_base_fingerprint(base)
    gate = add_adapter(model, LAYERS, RANK, ALPHA, seed=1)
    trained = freeze_base(model)
    assert sorted(trained) == sorted(f"{layer}.{half}" for layer in LAYERS for half in ("down", "up"))
    require_same_base(model, digests)
    start = adapter_state(model)
    optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=fused)  # all: frozen ones must stay too
    with gate.opened():
        losses = train(model, optimizer, 200)
    assert losses[-1] < losses[0] - 0.3
    for name, tensor in adapter_state(model).items():
        assert (tensor != start[name]).all(), name
    require_same_base(model, digests)
    assert compute_base_fingerprint(model) == fingerprint
    for name, tensor in base.state_dict().items():
        assert torch.equal(model.state_dict()[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert torch.equal(model(codes()), base(codes()))


def test_an_adapter_and_new_rows_are_trained_together_and_counted_apart(base: Speaker) -> None:
    model = copy.deepcopy(base)
    digests = hash_base_tensors(model)
    grow_layers(model, ["emb"], num_new=2, spare_rows=0)
    gate = add_adapter(model, LAYERS, RANK, ALPHA, seed=1)
    trained = freeze_base(model)
    assert "emb.new_weight" in trained
    with gate.opened():
        train(model, AdamW(trained.values(), lr=1e-2, weight_decay=0.1), 5)
    require_same_base(model, digests)
    parts = build_trainable_report(model).parts
    assert parts["adapter"] == (sum(tensor.numel() for tensor in adapter_state(model).values()), 0)
    assert parts["rows"] == (2 * WIDTH, 0)
    num_base = sum(tensor.numel() for tensor in base.state_dict().values())
    assert parts["body"][0] == parts["base rows"][0] == 0
    assert parts["body"][1] + parts["base rows"][1] == num_base


def test_with_the_gate_closed_no_gradient_reaches_the_adapter(adapted: Speaker) -> None:
    adapted.emb.requires_grad_()
    loss_of(adapted, codes()).backward()  # type: ignore[no-untyped-call]
    assert adapted.emb.weight.grad is not None
    assert all(layer.down.grad is None and layer.up.grad is None for layer in find_lora_layers(adapted).values())


def test_a_caller_that_trains_the_whole_body_gets_gradients_for_both_and_may_fold_them(base: Speaker) -> None:
    model = copy.deepcopy(base)
    model.requires_grad_()
    gate = add_adapter(model, LAYERS, RANK, ALPHA, seed=1)
    body = [layer.base_weight for layer in find_lora_layers(model).values()]
    assert not any(weight.requires_grad for weight in body), "adding freezes the layers that it touches"
    model.requires_grad_()
    digests = hash_base_tensors(model)
    assert digests == {}, "what is trained is not promised to stay"
    gate.on = True
    losses = train(model, AdamW(model.parameters(), lr=1e-3), 20)
    assert losses[-1] < losses[0]
    assert all(weight.grad is not None and weight.grad.any() for weight in body)
    expected = model(codes())
    merge_adapter(model)
    torch.testing.assert_close(model(codes()), expected, rtol=1e-5, atol=1e-5)
    assert all(parameter.requires_grad for parameter in model.parameters())


# ---- living with torch ---------------------------------------------------------------------------------------------


def test_the_adapter_is_found_inside_a_compiled_model(base: Speaker, adapted: Speaker) -> None:
    compiled = torch.compile(adapted, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert adapter_state(compiled).keys() == adapter_state(adapted).keys()
    assert get_gate(compiled) is get_gate(adapted)
    assert compute_base_fingerprint(compiled) == compute_base_fingerprint(base)


@pytest.mark.long
def test_gradients_of_a_compiled_model_are_those_of_the_plain_one(adapted: Speaker) -> None:
    torch.compiler.reset()
    twin = copy.deepcopy(adapted)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    for model, gate in ((adapted, get_gate(adapted)), (compiled, get_gate(twin))):
        with gate.opened():
            model(codes()).square().sum().backward()
    for (name, ours), plain in zip(twin.named_parameters(), adapted.parameters(), strict=True):
        assert (ours.grad is None) == (plain.grad is None) == (".down" not in name and ".up" not in name)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, plain.grad)


@pytest.mark.long
def test_the_modules_import_nothing_but_torch_numpy_and_the_standard_library() -> None:
    script = (
        "import sys, torch, numpy, safetensors; before = set(sys.modules)\n"
        "import voxgraft.nn.adapter, voxgraft.nn.adapter, voxgraft.nn.layers\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(roots - sys.stdlib_module_names - {'voxgraft', 'torch', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
