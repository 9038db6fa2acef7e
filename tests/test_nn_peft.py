"""An adapter in PEFT's form: the real `peft` computes with it what we do, and what it saves is read or refused by name."""

from __future__ import annotations

import copy
import json
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.support.adapter_model import ALPHA, LAYERS, RANK, Speaker, a_base, codes, taught, with_adapter
from voxgraft.core.errors import GraftError, VoxgraftError
from voxgraft.nn.adapter import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_TENSORS_NAME,
    adapter_state,
    add_adapter,
    compute_merged_weight,
    find_lora_layers,
    from_peft,
    get_gate,
    load_adapter_state,
    load_peft_adapter,
    merge_adapter,
    read_peft_folder,
    to_peft,
    write_peft_folder,
)
from voxgraft.nn.layers import TransposedLinear

BODIES = ["tfmr", "gpt"]
SUFFIXES = {
    "tfmr": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt": ["c_attn", "c_proj", "c_fc"],
}


# ---- with the real peft --------------------------------------------------------------------------------------------


class Reference(nn.Module):
    """The reference body under the name that it has upstream: T3's `tfmr` or UnifiedVoice's `gpt`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        transformers = import_module("transformers")
        torch.manual_seed(6)
        if name == "tfmr":
            config = transformers.LlamaConfig(
                vocab_size=8, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
            )
            self.tfmr = transformers.LlamaModel(config)
        else:
            config = transformers.GPT2Config(vocab_size=8, n_positions=16, n_embd=32, n_layer=2, n_head=4)
            config.bos_token_id = config.eos_token_id = None
            self.gpt = transformers.GPT2Model(config)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2)
        self.name = name
        self.requires_grad_(False).eval()

    def forward(self, embedded: Tensor) -> Tensor:
        result: Tensor = getattr(self, self.name)(inputs_embeds=embedded).last_hidden_state
        return result


@pytest.fixture(scope="module")
def peft() -> Any:
    """The package, as other people have it."""
    reason = "NOT TESTED: adapters against the real peft (pip install peft transformers)"
    pytest.importorskip("transformers", reason=reason)
    return pytest.importorskip("peft", reason=reason)


def ours(reference: Reference) -> Reference:
    """The same weights with our layer in place of the reference's transposed one."""
    model = copy.deepcopy(reference)
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Conv1D":
            layer = TransposedLinear(*module.weight.shape)
            layer.load_state_dict(module.state_dict())
            model.set_submodule(name, layer.requires_grad_(False).eval())
    return model


def body_layers(model: Reference) -> list[str]:
    return [name for name, _ in model.named_modules() if name.rpartition(".")[2] in SUFFIXES[model.name]]


def embedded() -> Tensor:
    return torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(7))


def peft_model(peft: Any, reference: Reference, **settings_: Any) -> Any:
    """An adapter that peft made, with values in both halves."""
    targets = {"target_modules": SUFFIXES[reference.name], "fan_in_fan_out": reference.name == "gpt"}
    config = peft.LoraConfig(**({"r": RANK, "lora_alpha": 6} | targets | settings_))
    model = peft.get_peft_model(copy.deepcopy(reference), config).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("body", BODIES)
def test_peft_computes_with_our_adapter_what_we_compute(body: str, peft: Any, tmp_path: Path) -> None:
    reference = Reference(body)
    model = ours(reference)
    gate = add_adapter(model, body_layers(model), RANK, ALPHA, seed=1)
    load_adapter_state(model, taught(model))
    write_peft_folder(tmp_path / "adapter", model, base_name="a-base")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # unknown keys, missing tensors and a wrong orientation are only warnings there
        theirs = peft.PeftModel.from_pretrained(copy.deepcopy(reference), tmp_path / "adapter").eval()
    assert theirs.peft_config["default"].base_model_name_or_path == "a-base"
    with gate.opened():
        torch.testing.assert_close(model(embedded()), theirs(embedded()), rtol=0, atol=1e-5)
        assert (model(embedded()) - reference(embedded())).abs().max() > 0.1, "this adapter does something"
    with theirs.disable_adapter():
        torch.testing.assert_close(model(embedded()), theirs(embedded()), rtol=0, atol=1e-5)
    merged = theirs.merge_and_unload().state_dict()
    for name, layer in find_lora_layers(model).items():
        torch.testing.assert_close(compute_merged_weight(layer), merged[f"{name}.weight"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("present", [False, True])
def test_an_adapter_that_peft_saved_is_read_by_us(present: bool, body: str, peft: Any, tmp_path: Path) -> None:
    reference = Reference(body)
    theirs = peft_model(peft, reference)
    theirs.save_pretrained(tmp_path)
    adapter = read_peft_folder(tmp_path)
    model = ours(reference)
    assert (adapter.rank, adapter.alpha, adapter.layers) == (RANK, 6.0, sorted(body_layers(model)))
    if present:
        add_adapter(model, body_layers(model), RANK, 6.0, seed=1)
    gate = load_peft_adapter(model, adapter)
    assert torch.equal(model(embedded()), ours(reference)(embedded()))
    with gate.opened():
        torch.testing.assert_close(model(embedded()), theirs(embedded()), rtol=0, atol=1e-5)
        expected = model(embedded())
    merge_adapter(model)
    torch.testing.assert_close(model(embedded()), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_adapter_that_peft_saved_in_low_precision_is_read_exactly(
    dtype: torch.dtype, peft: Any, tmp_path: Path
) -> None:
    reference = Reference("tfmr")
    peft_model(peft, reference).to(dtype).save_pretrained(tmp_path)
    saved = load_file(tmp_path / ADAPTER_TENSORS_NAME)
    model = ours(reference)
    load_peft_adapter(model, read_peft_folder(tmp_path))
    _, tensors = to_peft(model)
    assert saved.keys() == tensors.keys()
    assert {tensor.dtype for tensor in saved.values()} == {dtype}
    assert all(torch.equal(tensors[name], tensor.float()) for name, tensor in saved.items())


@pytest.mark.parametrize(
    ("settings_", "found"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"use_rslora": True}, "use_rslora is True"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is {'q_proj': 2}"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern is {'q_proj': 2}"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"modules_to_save": ["norm"]}, "modules_to_save is ['norm']"),
        ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication is [[0, 2], [1, 2]]"),
        ({"target_modules": ["embed_tokens"]}, "tensor base_model.model.tfmr.embed_tokens.lora_embedding_A"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.filterwarnings("ignore")
def test_a_variant_that_we_do_not_compute_is_refused_by_name(
    settings_: dict[str, Any], found: str, peft: Any, tmp_path: Path
) -> None:
    reference = Reference("tfmr")
    if "layer_replication" in settings_:
        reference = reference.tfmr
        reference.name = "tfmr"
    peft_model(peft, reference, **settings_).save_pretrained(tmp_path)
    with pytest.raises(GraftError) as caught:
        read_peft_folder(tmp_path)
    assert caught.value.code == "adapter-variant"
    assert found in caught.value.finding.found
    assert caught.value.finding.where == str(tmp_path)


# ---- without it ----------------------------------------------------------------------------------------------------


@pytest.fixture
def adapted() -> Speaker:
    return with_adapter(a_base())


def test_an_adapter_comes_back_from_its_folder_with_every_bit(adapted: Speaker, tmp_path: Path) -> None:
    write_peft_folder(tmp_path / "adapter", adapted)
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME]
    model = a_base()
    gate = load_peft_adapter(model, read_peft_folder(tmp_path / "adapter"))
    assert not gate.on
    assert list(find_lora_layers(model)) == list(find_lora_layers(adapted))
    assert all(torch.equal(adapter_state(model)[name], tensor) for name, tensor in adapter_state(adapted).items())
    with gate.opened(), get_gate(adapted).opened():
        assert torch.equal(model(codes()), adapted(codes()))


def test_a_folder_that_is_there_is_not_replaced_unasked(adapted: Speaker, tmp_path: Path) -> None:
    write_peft_folder(tmp_path / "adapter", adapted)
    before = (tmp_path / "adapter" / ADAPTER_TENSORS_NAME).read_bytes()
    load_adapter_state(adapted, {name: tensor * 2 for name, tensor in adapter_state(adapted).items()})
    with pytest.raises(VoxgraftError, match="file-exists"):
        write_peft_folder(tmp_path / "adapter", adapted)
    assert (tmp_path / "adapter" / ADAPTER_TENSORS_NAME).read_bytes() == before
    write_peft_folder(tmp_path / "adapter", adapted, overwrite=True)
    assert (tmp_path / "adapter" / ADAPTER_TENSORS_NAME).read_bytes() != before
    assert (tmp_path / "adapter.previous" / ADAPTER_TENSORS_NAME).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2, "no unfinished folder is left"


def test_a_model_without_an_adapter_has_none_to_write(tmp_path: Path) -> None:
    with pytest.raises(GraftError, match="adapter-missing"):
        write_peft_folder(tmp_path / "adapter", a_base())
    assert not list(tmp_path.iterdir())


Tensors = dict[str, Tensor]
DOWN = f"base_model.model.{LAYERS[0]}.lora_A.weight"
UP = f"base_model.model.{LAYERS[0]}.lora_B.weight"


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({DOWN: None}, "adapter-broken", f"1 tensors are missing, for example {LAYERS[0]}.down"),
        ({DOWN: torch.zeros(RANK + 1, 16)}, "adapter-mismatch", f"{LAYERS[0]}.down has rank 5"),
        ({UP: torch.zeros(16, RANK - 1)}, "adapter-mismatch", f"{LAYERS[0]}.up has rank 3"),
        ({UP: torch.full((16, RANK), float("nan"))}, "adapter-broken", "contains NaN or infinity"),
        ({UP: torch.zeros(16, RANK, dtype=torch.int32)}, "adapter-broken", f"{UP} is I32"),
        ({UP: torch.zeros(16 * RANK)}, "adapter-broken", r"torch.float32 [64]"),
        ({"head.weight": torch.zeros(2, 2)}, "adapter-variant", "there is a tensor head.weight"),
    ],
)
def test_tensors_that_are_no_whole_adapter_are_refused(
    change: dict[str, Tensor | None], code: str, message: str, adapted: Speaker, tmp_path: Path
) -> None:
    write_peft_folder(tmp_path / "adapter", adapted)
    tensors = load_file(tmp_path / "adapter" / ADAPTER_TENSORS_NAME)
    changed = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
    save_file(changed, tmp_path / "adapter" / ADAPTER_TENSORS_NAME)
    with pytest.raises(GraftError) as caught:
        read_peft_folder(tmp_path / "adapter")
    assert caught.value.code == code
    assert message in caught.value.finding.found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[1]", "adapter-broken"),
        ("{}", "adapter-variant"),
        ('{"peft_type": "LOHA", "r": 4, "lora_alpha": 8}', "adapter-variant"),
        ('{"peft_type": "LORA", "r": true, "lora_alpha": 8}', "adapter-broken"),
        ('{"peft_type": "LORA", "r": 0, "lora_alpha": 8}', "adapter-broken"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": "8"}', "adapter-broken"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": -8}', "adapter-broken"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 0}', "adapter-broken"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": true}', "adapter-broken"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "a_later_feature": {"on": 1}}', "adapter-variant"),
        ('{"peft_type": "LORA", ', "json-broken"),
    ],
)
def test_a_config_that_is_no_plain_adapters_is_refused(text: str, code: str, adapted: Speaker, tmp_path: Path) -> None:
    write_peft_folder(tmp_path / "adapter", adapted)
    (tmp_path / "adapter" / ADAPTER_CONFIG_NAME).write_text(text)
    with pytest.raises(VoxgraftError) as caught:
        read_peft_folder(tmp_path / "adapter")
    assert caught.value.code == code


@pytest.mark.parametrize("name", [ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME])
def test_a_folder_that_lacks_a_file_is_refused(name: str, adapted: Speaker, tmp_path: Path) -> None:
    write_peft_folder(tmp_path / "adapter", adapted)
    (tmp_path / "adapter" / name).unlink()
    with pytest.raises(VoxgraftError, match=f"file-missing: {name}"):
        read_peft_folder(tmp_path / "adapter")


def test_a_pickle_under_the_name_of_the_tensors_is_not_read(adapted: Speaker, tmp_path: Path) -> None:
    write_peft_folder(tmp_path / "adapter", adapted)
    torch.save({DOWN: torch.zeros(RANK, 16), UP: torch.zeros(16, RANK)}, tmp_path / "adapter" / ADAPTER_TENSORS_NAME)
    with pytest.raises(GraftError, match="a torch-zip file"):
        read_peft_folder(tmp_path / "adapter")


def test_an_adapter_of_other_layers_rank_or_alpha_leaves_the_model_as_it_was(adapted: Speaker) -> None:
    config, tensors = to_peft(adapted)
    whole = from_peft(config, tensors)
    few = {name: tensor for name, tensor in tensors.items() if "blocks.1" not in name}
    for layers, rank, alpha, given_ in [
        (LAYERS, RANK, ALPHA, few),
        (LAYERS[:-1], RANK, ALPHA, tensors),
        (LAYERS, RANK + 1, ALPHA, tensors),
        (LAYERS, RANK, ALPHA + 1, tensors),
    ]:
        model = a_base()
        add_adapter(model, layers, rank, alpha, seed=1)
        before = adapter_state(model)
        with pytest.raises(GraftError, match="adapter-mismatch"):
            load_peft_adapter(model, from_peft(config, given_))
        assert all(torch.equal(before[name], tensor) for name, tensor in adapter_state(model).items())
    wide = Speaker()
    wide.blocks[1].get_submodule("mlp")[0] = nn.Linear(16, 33)  # type: ignore[operator]
    lacking = Speaker()
    lacking.blocks = nn.ModuleList([lacking.blocks[0]])
    for other, code in ((wide, "adapter-mismatch"), (lacking, "adapter-layer")):
        with pytest.raises(GraftError, match=code):
            load_peft_adapter(other, whole)
        assert find_lora_layers(other) == {}
        assert all(parameter.requires_grad for parameter in other.parameters())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["peft_type", "r", "lora_alpha", "bias", "init_lora_weights", "use_dora", "rank_pattern", "x"])


@given(st.dictionaries(KEYS, JSON, max_size=4))
@settings(max_examples=300)
def test_whatever_a_config_says_it_is_read_as_written_or_refused_with_our_error(change: dict[str, Any]) -> None:
    config: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_dora": False} | change
    tensors = {
        "base_model.model.a.lora_A.weight": torch.zeros(2, 3),
        "base_model.model.a.lora_B.weight": torch.ones(4, 2),
    }
    try:
        adapter = from_peft(config, tensors)
    except GraftError:
        return
    assert (adapter.rank, adapter.alpha) == (config["r"], config["lora_alpha"])
    assert (config["peft_type"], config["bias"]) == ("LORA", "none")
    assert not config["use_dora"]
    assert not config.get("rank_pattern")
    assert not config.get("x")


def test_the_written_config_is_the_one_of_a_plain_adapter(adapted: Speaker, tmp_path: Path) -> None:
    write_peft_folder(tmp_path / "adapter", adapted)
    config = json.loads((tmp_path / "adapter" / ADAPTER_CONFIG_NAME).read_text())
    assert config == {
        **{"peft_type": "LORA", "task_type": None, "base_model_name_or_path": None, "inference_mode": True},
        **{"r": RANK, "lora_alpha": int(ALPHA), "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": True},
        **{"init_lora_weights": True, "use_rslora": False, "use_dora": False, "modules_to_save": None},
        **{"rank_pattern": {}, "alpha_pattern": {}, "target_modules": sorted(LAYERS)},
    }
    assert isinstance(config["lora_alpha"], int)
    model = nn.ModuleDict({"one": nn.Linear(3, 4)})
    add_adapter(model, ["one"], 1, 2.5, seed=0)
    config, tensors = to_peft(model, "a base")
    assert (config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == (1, 2.5, False)
    assert config["base_model_name_or_path"] == "a base"
    assert from_peft(config, tensors).rank == 1


@pytest.mark.parametrize("way", [True, False, "gaussian"])
@pytest.mark.parametrize("unused", [None, False, {}, []], ids=str)
def test_a_plain_adapter_is_read_however_it_was_initialized_and_whatever_later_keys_it_leaves_unused(
    way: object, unused: object
) -> None:
    model = nn.ModuleDict({"one": nn.Linear(3, 4)})
    add_adapter(model, ["one"], 2, 2.0, seed=0)
    config, tensors = to_peft(model, "a base")
    assert from_peft({**config, "init_lora_weights": way, "use_a_later_feature": unused}, tensors).rank == 2
    with pytest.raises(GraftError) as caught:
        from_peft({**config, "use_a_later_feature": "on"}, tensors)
    assert caught.value.code == "adapter-variant"


def test_files_larger_than_any_adapter_are_refused_before_they_are_read(adapted: Speaker, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    write_peft_folder(folder, adapted)
    config = (folder / ADAPTER_CONFIG_NAME).read_bytes()
    (folder / ADAPTER_CONFIG_NAME).write_bytes(config.ljust(1024**2))
    assert read_peft_folder(folder).rank == RANK
    (folder / ADAPTER_CONFIG_NAME).write_bytes(config.ljust(1024**2 + 1))
    with pytest.raises(VoxgraftError) as caught:
        read_peft_folder(folder)
    assert caught.value.code == "file-too-large"
    (folder / ADAPTER_CONFIG_NAME).write_bytes(config)
    # Two gibibytes of nothing, which take no room on the disk.
    size = 2 * 1024**3
    header = json.dumps({DOWN: {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with (folder / ADAPTER_TENSORS_NAME).open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + size)
    with pytest.raises(GraftError) as refused:
        read_peft_folder(folder)
    assert refused.value.code == "adapter-broken"
    assert "2,147,483,648" in refused.value.finding.expected
