"""Growing a checkpoint adds exactly the planned rows and changes no other bit, whatever the file looks like."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.support.checkpoint_files import (
    BASE_ROWS,
    NEW_ROWS,
    SPARE_ROWS,
    WIDTH,
    bits,
    saved,
    speech_model,
    trainer_extras,
    values,
    written,
)
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.pickles import PickleDict, is_plain_tree
from voxgraft.checkpoints.write import GrowthPlan, GrowthProof, TableGrowth, grow_checkpoint, verify_growth
from voxgraft.core.errors import CheckpointError, FileError, VoxgraftError
from voxgraft.core.files import compute_sha256

TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def new_rows(name: str, count: int = NEW_ROWS) -> Tensor:
    seed = 100 + len(name)
    return values(count, seed=seed) if name.endswith("bias") else values(count, WIDTH, seed=seed)


def a_plan(count: int = NEW_ROWS, spare: int = SPARE_ROWS, names: tuple[str, ...] = TABLES) -> GrowthPlan:
    return GrowthPlan({name: TableGrowth(BASE_ROWS, spare, new_rows(name, count).numpy()) for name in names})


def grown_with(path: Path, plan: GrowthPlan, output: Path, **options: bool) -> GrowthProof:
    """Grow, and prove it."""
    with open_checkpoint(path) as old:
        grow_checkpoint(old, plan, output, **options)
        with open_checkpoint(output) as new:
            return verify_growth(old, new, plan)


def assert_grown(
    old: dict[str, Tensor], new: dict[str, Tensor], count: int = NEW_ROWS, spare: int = SPARE_ROWS
) -> None:
    """With torch's own eyes: old rows, then new ones in the file's type, then the spare; all else the same bits."""
    assert list(new) == list(old)
    for name, tensor in old.items():
        assert new[name].dtype == tensor.dtype
        if name not in TABLES:
            assert new[name].shape == tensor.shape
            assert bits(new[name]) == bits(tensor), name
            continue
        assert new[name].shape == (BASE_ROWS + count + spare, *tensor.shape[1:])
        assert bits(new[name][:BASE_ROWS]) == bits(tensor[:BASE_ROWS]), name
        assert bits(new[name][BASE_ROWS : BASE_ROWS + count]) == bits(new_rows(name, count).to(tensor.dtype)), name
        assert bits(new[name][BASE_ROWS + count :]) == bits(tensor[BASE_ROWS:]), name


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_safetensors_file_grows_and_keeps_every_old_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    model = dict(speech_model(dtype))
    save_file(model, tmp_path / "m.safetensors", {"maker": "someone"})
    before = compute_sha256(tmp_path / "m.safetensors")
    grown_with(tmp_path / "m.safetensors", a_plan(), tmp_path / "g.safetensors")
    grown = load_file(tmp_path / "g.safetensors")
    assert_grown(model, {name: grown[name] for name in model})
    with safe_open(tmp_path / "m.safetensors", "pt") as old, safe_open(tmp_path / "g.safetensors", "pt") as new:
        assert new.metadata() == old.metadata()
        assert list(new.keys()) == list(old.keys())
    with open_checkpoint(tmp_path / "m.safetensors") as old, open_checkpoint(tmp_path / "g.safetensors") as new:
        in_file = [sorted(c.tensors, key=lambda name, c=c: c.tensors[name].start) for c in (old, new)]  # type: ignore[misc]
        assert in_file[0] == in_file[1]
    assert compute_sha256(tmp_path / "m.safetensors") == before


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_torch_file_grows_and_keeps_every_old_bit(dtype: torch.dtype, mapped: bool, tmp_path: Path) -> None:
    model = speech_model(dtype)
    before = compute_sha256(saved(model, tmp_path / "m.pth"))
    grown_with(tmp_path / "m.pth", a_plan(), tmp_path / "g.pth")
    grown = torch.load(tmp_path / "g.pth", weights_only=True, mmap=mapped)
    assert isinstance(grown, OrderedDict)
    assert_grown(model, grown)
    assert compute_sha256(tmp_path / "m.pth") == before


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_without_a_spare_the_new_rows_come_last_and_no_rows_at_all_is_legal(kind: str, tmp_path: Path) -> None:
    model = {name: tensor[:BASE_ROWS] if name in TABLES else tensor for name, tensor in speech_model().items()}
    model = {name: tensor.clone() for name, tensor in model.items()}
    save_file(model, tmp_path / "m") if kind == "safetensors" else saved(model, tmp_path / "m")
    load: Any = load_file if kind == "safetensors" else torch.load
    for count in (0, 1, 2000):
        grown_with(tmp_path / "m", a_plan(count, spare=0), tmp_path / f"g{count}")
        grown = load(tmp_path / f"g{count}")
        assert_grown(model, {name: grown[name] for name in model}, count, spare=0)


@pytest.mark.parametrize("wrapper", ["model", "model_state_dict", "weights_of_mine"])
def test_wrapper_and_plain_values_stay_and_the_optimizer_is_left_out_and_listed(wrapper: str, tmp_path: Path) -> None:
    path = saved({"epoch": 1, wrapper: speech_model(), **trainer_extras()}, tmp_path / "m.pth")
    with open_checkpoint(path) as checkpoint:
        report = grow_checkpoint(checkpoint, a_plan(), tmp_path / "g.pth")
    grown = torch.load(tmp_path / "g.pth", weights_only=True)
    assert list(grown) == ["epoch", wrapper, "step", "best_val_loss", "amp", "note", "scaler"]
    assert (grown["step"], grown["best_val_loss"], grown["amp"], grown["note"]) == (4096, 1.25, True, "ሰላም")
    assert_grown(speech_model(), grown[wrapper])
    left_out = {extra.name for extra in report.left_out}
    assert left_out == {"optimizer", "scheduler", "mean_loss", "args", "rng_state", "recent_checkpoints"}


def test_module_versions_parameters_and_values_inside_the_state_dict_are_kept(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text_embedding = nn.Embedding(BASE_ROWS + SPARE_ROWS, WIDTH)
            self.norm = nn.BatchNorm1d(WIDTH)

    state = Model().state_dict()
    state["frozen"] = nn.Parameter(values(3), requires_grad=False)
    state["trained"] = nn.Parameter(values(3))
    state["rows"] = 13
    state["odd"] = {1, 2}
    path = saved(state, tmp_path / "m.pth")
    with open_checkpoint(path) as checkpoint:
        report = grow_checkpoint(checkpoint, a_plan(names=TABLES[:1]), tmp_path / "g.pth")
    grown = torch.load(tmp_path / "g.pth", weights_only=True)
    assert grown._metadata == state._metadata  # type: ignore[attr-defined]
    assert isinstance(grown["trained"], nn.Parameter)
    assert grown["trained"].requires_grad
    assert isinstance(grown["frozen"], nn.Parameter)
    assert not grown["frozen"].requires_grad
    assert grown["rows"] == 13
    assert list(grown) == [name for name in state if name != "odd"]
    assert [extra.name for extra in report.left_out] == ["odd"]


def test_second_names_for_a_tensor_stay_second_names_and_grow_along(tmp_path: Path) -> None:
    model = speech_model()
    model["inference_model.embeddings.weight"] = model["text_embedding.weight"]
    model["inference_model.h.0.weight"] = model["gpt.h.0.weight"]
    model["transposed"] = model["gpt.h.0.weight"].T
    path = saved({"model": model}, tmp_path / "m.pth")
    proof = grown_with(path, a_plan(), tmp_path / "g.pth")
    assert (proof.tensors_grown, proof.tensors_identical) == (4, len(model) - 4)
    grown = torch.load(tmp_path / "g.pth", weights_only=True)["model"]
    assert grown["inference_model.embeddings.weight"].data_ptr() == grown["text_embedding.weight"].data_ptr()
    assert grown["inference_model.h.0.weight"].data_ptr() == grown["gpt.h.0.weight"].data_ptr()
    assert torch.equal(grown["transposed"], model["transposed"])
    assert grown["transposed"].stride() == model["transposed"].stride()
    second = grown.pop("inference_model.embeddings.weight")
    assert torch.equal(second, grown["text_embedding.weight"])
    model.pop("inference_model.embeddings.weight")
    assert_grown(model, grown)
    assert (tmp_path / "g.pth").stat().st_size < path.stat().st_size + 4096


def test_a_tied_table_stays_tied_and_cannot_get_two_kinds_of_rows(tmp_path: Path) -> None:
    model = speech_model()
    model["text_head.weight"] = model["text_embedding.weight"]
    path = saved(model, tmp_path / "m.pth")
    tables = dict(a_plan())
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(CheckpointError) as caught:
            grow_checkpoint(checkpoint, GrowthPlan(tables), tmp_path / "g.pth")
        assert caught.value.code == "growth-tied"
    tables["text_head.weight"] = replace(tables["text_embedding.weight"])
    grown_with(path, GrowthPlan(tables), tmp_path / "g.pth")
    grown = torch.load(tmp_path / "g.pth", weights_only=True)
    assert grown["text_head.weight"].data_ptr() == grown["text_embedding.weight"].data_ptr()


def test_a_window_on_a_part_of_a_table_is_refused(tmp_path: Path) -> None:
    model = speech_model()
    model["first_rows"] = model["text_embedding.weight"][:3]
    with open_checkpoint(saved(model, tmp_path / "m.pth")) as checkpoint, pytest.raises(CheckpointError) as caught:
        grow_checkpoint(checkpoint, a_plan(), tmp_path / "g.pth")
    assert caught.value.code == "growth-view"
    assert not (tmp_path / "g.pth").exists()


def test_tables_that_are_transposed_or_share_one_large_storage_grow_too(tmp_path: Path) -> None:
    rows = BASE_ROWS + SPARE_ROWS
    flat = values(2 * rows * WIDTH + 10)
    model = OrderedDict(speech_model())
    model["text_embedding.weight"] = flat[5 : 5 + rows * WIDTH].view(rows, WIDTH)
    model["neighbour"] = flat[5 + rows * WIDTH : 7 + rows * WIDTH]
    model["text_head.weight"] = values(WIDTH, rows, seed=9).T
    grown_with(saved(model, tmp_path / "m.pth"), a_plan(), tmp_path / "g.pth")
    grown = torch.load(tmp_path / "g.pth", weights_only=True)
    assert_grown(model, grown)
    assert grown["text_head.weight"].is_contiguous()


def test_a_file_without_checksums_grows_into_one_that_has_them(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(speech_model(), tmp_path / "m.pth")
    finally:
        torch.serialization.set_crc32_options(before)
    grown_with(path, a_plan(), tmp_path / "g.pth")
    grown_with(path, a_plan(), tmp_path / "again.pth")
    assert (tmp_path / "g.pth").read_bytes() == (tmp_path / "again.pth").read_bytes()
    assert_grown(speech_model(), torch.load(tmp_path / "g.pth", weights_only=True))


def test_the_report_says_what_was_done_and_its_hashes_are_the_files(tmp_path: Path) -> None:
    path = saved(speech_model(torch.float16), tmp_path / "m.pth")
    with open_checkpoint(path) as checkpoint:
        report = grow_checkpoint(checkpoint, a_plan(), tmp_path / "g.pth", hashed=True)
        unhashed = grow_checkpoint(checkpoint, a_plan(), tmp_path / "g2.pth")
    assert report.input_sha256 == compute_sha256(path)
    assert report.output_sha256 == compute_sha256(tmp_path / "g.pth") == compute_sha256(tmp_path / "g2.pth")
    assert (unhashed.input_sha256, unhashed.output_sha256) == (None, None)
    assert report.bytes_written == (tmp_path / "g.pth").stat().st_size
    assert report.tensors_copied == len(speech_model()) - 3
    shapes = {one["name"]: (one["dtype"], one["old_shape"], one["new_shape"]) for one in report.grown}
    assert shapes["text_embedding.weight"] == ("F16", (13, WIDTH), (18, WIDTH))
    assert shapes["text_head.bias"] == ("F16", (13,), (18,))
    assert report.to_json()["grown"][0]["new_shape"] == (18, WIDTH)


BAD_PLANS = {
    "wrong row count": ("growth-rows", a_plan(spare=0)),
    "negative spare": (
        "growth-rows",
        GrowthPlan({TABLES[0]: TableGrowth(BASE_ROWS + 2, -1, new_rows(TABLES[0]).numpy())}),
    ),
    "uneven": (
        "growth-uneven",
        GrowthPlan({**a_plan(3, names=TABLES[:1]), **a_plan(4, names=TABLES[1:])}),
    ),
    "no such tensor": ("tensor-missing", GrowthPlan({"text_emb": TableGrowth(BASE_ROWS, 1, values(2, 8).numpy())})),
    "wrong width": ("growth-table", GrowthPlan({TABLES[0]: TableGrowth(BASE_ROWS, 1, values(2, 9).numpy())})),
    "rows for a bias": ("growth-table", GrowthPlan({TABLES[2]: TableGrowth(BASE_ROWS, 1, values(2, 8).numpy())})),
    "float64 rows": ("growth-table", GrowthPlan({TABLES[0]: TableGrowth(BASE_ROWS, 1, np.zeros((2, 8)))})),  # type: ignore[arg-type]
    "not a table": ("growth-table", GrowthPlan({"counter": TableGrowth(BASE_ROWS, 1, values(2).numpy())})),
    "NaN": ("growth-not-finite", GrowthPlan({TABLES[0]: TableGrowth(BASE_ROWS, 1, np.full((2, 8), np.nan, "f4"))})),
    "too large for float16": (
        "growth-not-finite",
        GrowthPlan({TABLES[0]: TableGrowth(BASE_ROWS, 1, np.full((2, 8), 1e6, "f4"))}),
    ),
}


@pytest.mark.parametrize("kind", BAD_PLANS)
def test_a_plan_that_does_not_fit_is_refused_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    code, plan = BAD_PLANS[kind]
    path = saved(speech_model(torch.float16), tmp_path / "m.pth")
    with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointError) as caught:
        grow_checkpoint(checkpoint, plan, tmp_path / "out" / "g.pth")
    assert caught.value.code == code
    assert os.listdir(tmp_path) == ["m.pth"]


def test_the_input_is_never_its_own_output(tmp_path: Path) -> None:
    path = saved(speech_model(), tmp_path / "m.pth")
    (tmp_path / "link.pth").symlink_to(path)
    os.link(path, tmp_path / "hard.pth")
    for output in ("m.pth", "link.pth", "hard.pth"):
        with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointError) as caught:
            grow_checkpoint(checkpoint, a_plan(), tmp_path / output, overwrite=True)
        assert caught.value.code == "growth-onto-input"
    assert torch.load(path)["text_head.bias"].shape == (13,)


def test_an_output_that_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = saved(speech_model(), tmp_path / "m.pth")
    written(b"mine", tmp_path / "g.pth")
    with open_checkpoint(path) as checkpoint, pytest.raises(FileError) as caught:
        grow_checkpoint(checkpoint, a_plan(), tmp_path / "g.pth")
    assert caught.value.code == "file-exists"
    assert (tmp_path / "g.pth").read_bytes() == b"mine"
    grown_with(path, a_plan(), tmp_path / "g.pth", overwrite=True)


@pytest.mark.parametrize("name", ["gpt.h.0.weight", "text_embedding.weight"])
@pytest.mark.parametrize("hashed", [False, True])
def test_a_flipped_bit_in_the_input_stops_the_growth_and_leaves_nothing(
    name: str, hashed: bool, tmp_path: Path
) -> None:
    data = saved(speech_model(), tmp_path / "good.pth").read_bytes()
    at = data.index(bits(speech_model()[name])) + 11
    path = written(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], tmp_path / "m.pth")
    with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointError) as caught:
        grow_checkpoint(checkpoint, a_plan(), tmp_path / "g.pth", hashed=hashed)
    assert caught.value.code == "torch-checksum"
    assert sorted(os.listdir(tmp_path)) == ["good.pth", "m.pth"]


def test_an_input_that_changes_underneath_is_noticed(tmp_path: Path) -> None:
    save_file(dict(speech_model()), tmp_path / "m.safetensors")
    for change in ("appended", "cut"):
        with open_checkpoint(tmp_path / "m.safetensors") as checkpoint:
            with (tmp_path / "m.safetensors").open("r+b") as stream:
                stream.truncate(checkpoint.source.size + (8 if change == "appended" else -8))
            with pytest.raises(VoxgraftError) as caught:
                grow_checkpoint(checkpoint, a_plan(), tmp_path / "g.safetensors")
            assert caught.value.code in ("checkpoint-changed", "checkpoint-truncated")
        save_file(dict(speech_model()), tmp_path / "m.safetensors")
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_the_proof_finds_any_byte_that_moved(tmp_path: Path) -> None:
    save_file(dict(speech_model()), tmp_path / "m", {"a": "b"})
    with open_checkpoint(tmp_path / "m") as old:
        grow_checkpoint(old, a_plan(), tmp_path / "g")
        with open_checkpoint(tmp_path / "g") as new:
            proof = verify_growth(old, new, a_plan())
            start = min(info.start for info in new.tensors.values())
        size = (tmp_path / "g").stat().st_size
        assert proof.bytes_compared == size - start
        assert (proof.rows_identical, proof.rows_new) == (3 * 13, 3 * NEW_ROWS)
        data = (tmp_path / "g").read_bytes()
        for at in range(start, size, 7):
            changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            path = written(changed, tmp_path / "changed")
            with open_checkpoint(path) as new, pytest.raises(CheckpointError) as caught:
                verify_growth(old, new, a_plan())
            assert caught.value.code == "growth-differs"


def test_the_proof_finds_other_rows_names_types_notes_and_torn_aliases(tmp_path: Path) -> None:
    model = speech_model()
    model["alias"] = model["gpt.h.0.weight"]
    path = saved({"model": model, "step": 3}, tmp_path / "m.pth")
    grown_with(path, a_plan(), tmp_path / "g.pth")
    good = torch.load(tmp_path / "g.pth", weights_only=True)
    faults: dict[str, Any] = {
        "value beside": {**good, "step": 4},
        "wrapper": {"state_dict": good["model"], "step": 3},
        "name": {**good, "model": {**good["model"], "more": values(1)}},
        "order": {**good, "model": dict(reversed(good["model"].items()))},
        "type": {**good, "model": {**good["model"], "empty": torch.zeros(0, 3, dtype=torch.float16)}},
        "torn alias": {**good, "model": {**good["model"], "alias": good["model"]["alias"].clone()}},
    }
    with open_checkpoint(path) as old:
        for fault, value in faults.items():
            with open_checkpoint(saved(value, tmp_path / "bad.pth")) as new, pytest.raises(CheckpointError) as caught:
                verify_growth(old, new, a_plan())
            assert caught.value.code == "growth-differs", fault
        with open_checkpoint(saved(good, tmp_path / "same.pth")) as new:
            assert verify_growth(old, new, a_plan()).tensors_grown == 3


@pytest.mark.parametrize("key", [b"bytes", (1,), 1 << 64, "a" * ((1 << 16) + 1)], ids=["bytes", "tuple", "int", "text"])
def test_a_tree_is_plain_only_if_every_key_and_value_is_small_and_has_no_attributes(key: Any) -> None:
    def tree(*pairs: tuple[Any, Any]) -> PickleDict:
        return PickleDict(entries=dict(pairs))

    usual = ("version", [1, (None, True, 0.5)]), ("", tree())
    assert is_plain_tree(tree(*usual))
    assert not is_plain_tree(tree(*usual, (key, 1)))
    assert not is_plain_tree(tree((key, 1), *usual))
    if not isinstance(key, tuple):
        assert not is_plain_tree(tree(*usual, ("other", [key])))
    assert not is_plain_tree(tree(*usual, ("other", PickleDict(state=1))))
