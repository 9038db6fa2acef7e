"""An adapter's way in and out of a model: first values, state dicts, adding, folding, taking out, copying."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.support.adapter_model import (
    ALPHA,
    CODES,
    LAYERS,
    LOW_PRECISION,
    RANK,
    WIDTH,
    Speaker,
    a_base,
    a_layer,
    adapted_copy,
    codes,
    with_adapter,
)
from voxgraft.core.errors import GraftError
from voxgraft.nn.adapter import (
    LoraLayer,
    adapter_state,
    add_adapter,
    compute_merged_weight,
    find_lora_layers,
    get_gate,
    load_adapter_state,
    merge_adapter,
    remove_adapter,
)
from voxgraft.nn.layers import TransposedLinear


@pytest.fixture
def base() -> Speaker:
    return a_base()


@pytest.fixture
def adapted(base: Speaker) -> Speaker:
    return with_adapter(base)


# ---- first values --------------------------------------------------------------------------------------------------


def test_first_values_depend_on_seed_and_name_alone(base: Speaker) -> None:
    def made(layers: list[str], seed: int) -> dict[str, Tensor]:
        model = copy.deepcopy(base)
        add_adapter(model, layers, RANK, ALPHA, seed)
        return adapter_state(model)

    torch.manual_seed(5)
    expected = made(LAYERS, 1)
    state = torch.random.get_rng_state()
    again = made([*reversed(LAYERS), LAYERS[0]], 1)
    assert torch.equal(torch.random.get_rng_state(), state), "no number was drawn from the common generator"
    assert expected.keys() == again.keys()
    assert all(torch.equal(expected[name], again[name]) for name in expected)
    alone = made(LAYERS[3:4], 1)
    assert torch.equal(alone[f"{LAYERS[3]}.down"], expected[f"{LAYERS[3]}.down"])
    downs = [tensor for name, tensor in expected.items() if name.endswith("q_proj.down")]
    assert not torch.equal(downs[0], downs[1])
    assert not torch.equal(made(LAYERS, 2)[f"{LAYERS[0]}.down"], expected[f"{LAYERS[0]}.down"])
    for name, tensor in expected.items():
        if name.endswith(".up"):
            assert not tensor.any()
        else:
            bound = tensor.shape[1] ** -0.5
            assert 0.8 * bound < tensor.abs().max() <= bound


# ---- state dicts ---------------------------------------------------------------------------------------------------


def test_the_state_dict_of_an_adapted_model_is_that_of_its_base(
    base: Speaker, adapted: Speaker, tmp_path: Path
) -> None:
    assert list(adapted.state_dict()) == list(base.state_dict())
    save_file(adapted.state_dict(), tmp_path / "model.safetensors")
    state = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in base.state_dict().items())
    before = adapter_state(adapted)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert str(adapted.load_state_dict(zeros)) == "<All keys matched successfully>"
    assert not any(tensor.any() for tensor in adapted.state_dict().values())
    adapted.load_state_dict(state, assign=True)
    assert torch.equal(adapted(codes()), base(codes()))
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter_state(adapted).items())
    kept = adapted.state_dict(keep_vars=True)[f"{LAYERS[0]}.weight"]
    assert kept is find_lora_layers(adapted)[LAYERS[0]].base_weight


def test_strict_loading_names_missing_and_unexpected_tensors_as_the_base_does(adapted: Speaker) -> None:
    state = adapted.state_dict()
    del state["blocks.0.c_attn.bias"]
    before = adapter_state(adapted)
    state["blocks.0.c_attn.down"] = torch.zeros(RANK, WIDTH)
    with pytest.raises(RuntimeError, match=r'Missing.*"blocks.0.c_attn.bias"[\s\S]*Unexpected.*"blocks.0.c_attn.down"'):
        adapted.load_state_dict(state)
    assert adapted.load_state_dict(state, strict=False).missing_keys == ["blocks.0.c_attn.bias"]
    assert torch.equal(adapter_state(adapted)["blocks.0.c_attn.down"], before["blocks.0.c_attn.down"])


def test_an_adapters_values_are_loaded_whole_or_not_at_all(adapted: Speaker) -> None:
    before = adapter_state(adapted)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    last = list(zeros)[-1]
    for wrong, message in [
        ({}, r"the adapter lacks blocks.0.q_proj.down, .* and 12 more"),
        (zeros | {"head.up": torch.zeros(1)}, "the model has no layer for head.up"),
        (zeros | {last: torch.zeros(WIDTH, RANK + 1)}, rf"{last} is torch.float32 \[16, 5\].*\[16, 4\]"),
        (zeros | {last: torch.zeros(WIDTH, RANK, dtype=torch.int32)}, f"{last} is torch.int32"),
    ]:
        with pytest.raises(GraftError, match=message) as caught:
            load_adapter_state(adapted, wrong)
        assert caught.value.code == "adapter-mismatch"
        assert all(torch.equal(before[name], tensor) for name, tensor in adapter_state(adapted).items())
    load_adapter_state(adapted, zeros)
    assert not any(tensor.any() for tensor in adapter_state(adapted).values())
    assert any(tensor.any() for tensor in before.values()), "a snapshot does not follow the model"


# ---- adding, folding, taking out -----------------------------------------------------------------------------------


class Tied(Speaker):
    """A base with layers that can have no adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, CODES)
        self.other.weight = self.head.weight
        self.odd = nn.Bilinear(2, 2, 2)
        self.alias = self.blocks[0]
        with torch.device("meta"):
            self.empty = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("layer", "code", "found"),
    [
        ("blocks.7.q_proj", "adapter-layer", "`blocks.7.q_proj` is not in the model"),
        ("", "adapter-layer", "`` is not in the model"),
        ("blocks.0", "adapter-layer", "`blocks.0` is a Block"),
        ("odd", "adapter-layer", "`odd` is a Bilinear"),
        ("head", "adapter-layer", "the weights of `head` are tied"),
        ("alias.q_proj", "adapter-layer", "`alias.q_proj` is another name of `blocks.0.q_proj`"),
        ("empty", "base-not-loaded", "`empty` is on the meta device"),
    ],
)
def test_a_layer_that_can_have_no_adapter_is_named_and_nothing_is_changed(layer: str, code: str, found: str) -> None:
    model = Tied()
    with pytest.raises(GraftError) as caught:
        add_adapter(model, ["blocks.0.c_attn", layer], RANK, ALPHA, seed=1)
    assert caught.value.code == code
    assert found in caught.value.finding.found
    assert find_lora_layers(model) == {}
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("layers", "rank", "alpha", "seed"),
    [
        ([], 4, 8.0, 0),
        (LAYERS, 0, 8.0, 0),
        (LAYERS, 4, 0.0, 0),
        (LAYERS, 4, float("nan"), 0),
        (LAYERS, 4, float("inf"), 0),
        (LAYERS, 4, 8.0, -1),
    ],
)
def test_settings_that_make_no_adapter_are_refused(
    layers: list[str], rank: int, alpha: float, seed: int, base: Speaker
) -> None:
    with pytest.raises(GraftError, match="adapter-settings"):
        add_adapter(base, layers, rank, alpha, seed)
    assert find_lora_layers(base) == {}


def test_a_model_holds_one_adapter_at_a_time_and_says_when_it_has_none(base: Speaker, adapted: Speaker) -> None:
    with pytest.raises(GraftError, match="adapter-present"):
        add_adapter(adapted, ["head"], RANK, ALPHA, seed=1)
    assert adapter_state(base) == {}
    for needs_one in (get_gate, merge_adapter, remove_adapter):
        with pytest.raises(GraftError, match="adapter-missing"):
            needs_one(base)


def test_a_layer_is_adapted_under_every_name_that_it_has() -> None:
    model = Tied()
    add_adapter(model, LAYERS, RANK, ALPHA, seed=1)
    assert model.get_submodule("alias.q_proj") is model.get_submodule("blocks.0.q_proj")
    assert isinstance(model.get_submodule("alias.mlp.2"), LoraLayer)
    assert sorted(find_lora_layers(model)) == sorted(LAYERS)
    merge_adapter(model)
    assert model.get_submodule("alias.q_proj") is model.get_submodule("blocks.0.q_proj")


def plain_types(model: nn.Module) -> list[type]:
    return [type(model.get_submodule(name)) for name in LAYERS]


def test_folding_gives_plain_layers_that_speak_as_the_open_gate_does(base: Speaker, adapted: Speaker) -> None:
    with get_gate(adapted).opened():
        expected = adapted(codes())
    held = adapted.state_dict(keep_vars=True)
    weights = {name: compute_merged_weight(layer) for name, layer in find_lora_layers(adapted).items()}
    merge_adapter(adapted)
    assert plain_types(adapted) == plain_types(base)
    assert list(adapted.state_dict()) == list(base.state_dict())
    assert all(torch.equal(adapted.state_dict()[f"{name}.weight"], weights[name]) for name in LAYERS)
    torch.testing.assert_close(adapted(codes()), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(tensor, base.state_dict()[name]) for name, tensor in held.items()), "the base was written to"
    assert not any(parameter.requires_grad for parameter in adapted.parameters())


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_folding_rounds_once(dtype: torch.dtype) -> None:
    adapted, _ = adapted_copy(a_layer(TransposedLinear, dtype))
    exact = adapted.base_weight.double() + adapted.scale * (adapted.up.double() @ adapted.down.double()).T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        merged = compute_merged_weight(adapted)
    assert merged.is_contiguous()
    assert merged.shape == (WIDTH, 3 * WIDTH)
    assert torch.equal(merged, exact.to(dtype))


def test_taking_the_adapter_out_gives_the_base_back(base: Speaker, adapted: Speaker) -> None:
    parameters = {name: layer.base_weight for name, layer in find_lora_layers(adapted).items()}
    state = torch.random.get_rng_state()
    with get_gate(adapted).opened():
        remove_adapter(adapted)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert plain_types(adapted) == plain_types(base)
    assert all(adapted.get_submodule(name).weight is weight for name, weight in parameters.items())
    assert dict(adapted.named_parameters()).keys() == dict(base.named_parameters()).keys()
    assert torch.equal(adapted(codes()), base(codes()))
    add_adapter(adapted, LAYERS, 2 * RANK, ALPHA, seed=1)


def copies(model: Speaker) -> Iterator[Speaker]:
    yield copy.deepcopy(model)
    yield pickle.loads(pickle.dumps(model))


def test_a_copy_of_a_model_has_a_gate_of_its_own(base: Speaker, adapted: Speaker) -> None:
    given_, gate = codes(), get_gate(adapted)
    with gate.opened():
        expected = adapted(given_)
    for twin in copies(adapted):
        assert len({id(layer.gate) for layer in find_lora_layers(twin).values()}) == 1
        with gate.opened():
            assert torch.equal(twin(given_), base(given_))
        with get_gate(twin).opened():
            assert torch.equal(twin(given_), expected)
            assert torch.equal(adapted(given_), base(given_))


@pytest.mark.parametrize("ends", [merge_adapter, remove_adapter])
@pytest.mark.parametrize("training", [False, True])
def test_layers_with_and_without_an_adapter_train_or_not_as_the_model_does(
    training: bool, ends: Callable[[nn.Module], None], base: Speaker
) -> None:
    model = base.train(training)
    add_adapter(model, LAYERS, RANK, ALPHA, seed=0)
    assert {module.training for module in model.modules()} == {training}
    ends(model)
    assert {module.training for module in model.modules()} == {training}
