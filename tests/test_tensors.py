"""Tensors out of checkpoint files: exactly those that a model needs, in its dtype, with little memory beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.checkpoint_files import saved, values
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.load import iter_tensors, read_tensor_shapes, read_tensors
from voxgraft.core.errors import CheckpointError, FileError
from voxgraft.models.speech_model import find_part_file

STATE = {"net.a.weight": values(6, 4, seed=1), "net.b.bias": values(5, seed=2), "other.c": values(3, 2, seed=3)}
SHAPES: dict[str, tuple[int, ...]] = {"b.bias": (5,), "a.weight": (6, 4)}


def _write(state: dict[str, Tensor], path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
        return path
    return saved(state, path)


@pytest.mark.parametrize("file", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_float_format_is_read_as_float32_under_the_models_own_names(
    tmp_path: Path, file: str, stored: torch.dtype
) -> None:
    state = {name: tensor.to(stored) for name, tensor in STATE.items()}
    found = read_tensors(_write(state, tmp_path / file), SHAPES, "net.")
    assert list(found) == list(SHAPES)
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, state["net." + name].float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_dtype_can_be_asked_for(tmp_path: Path, dtype: torch.dtype) -> None:
    found = read_tensors(_write(STATE, tmp_path / "model.pt"), SHAPES, "net.", dtype)
    assert torch.equal(found["a.weight"], STATE["net.a.weight"].to(dtype))


def test_without_a_dtype_each_tensor_keeps_its_own(tmp_path: Path) -> None:
    state = {"a": values(2, 3).bfloat16(), "b": torch.arange(4), "c": torch.tensor(2.5), "d": torch.zeros(0, 3)}
    found = read_tensors(saved(state, tmp_path / "m.pt"), {k: tuple(v.shape) for k, v in state.items()}, dtype=None)
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_strided_and_shared_tensors_are_read_as_torch_would(tmp_path: Path) -> None:
    table = values(8, 6, seed=4)
    state = {"turned": table.T, "every_other": table[::2, 1::2], "whole": table, "repeated": table[0].expand(3, 6)}
    path = saved(state, tmp_path / "views.pt")
    found = read_tensors(path, {name: tuple(tensor.shape) for name, tensor in state.items()})
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor)
    found["whole"].zero_()
    assert torch.equal(found["turned"], table.T)  # each is a copy of its own


def test_tensors_come_one_at_a_time_in_the_order_of_the_file(tmp_path: Path) -> None:
    state = {f"layer.{index}": values(4, seed=index) for index in (3, 1, 2)}
    path = saved(state, tmp_path / "m.pt")
    given = list(iter_tensors(path, {f"layer.{index}": (4,) for index in (1, 2, 3)}))
    with open_checkpoint(path) as checkpoint:
        assert [name for name, _ in given] == sorted(state, key=lambda name: checkpoint.tensors[name].start)
    assert all(torch.equal(tensor, state[name]) for name, tensor in given)


def test_everything_missing_or_of_another_shape_is_in_one_error_with_the_file(tmp_path: Path) -> None:
    path = _write(STATE, tmp_path / "model.pt")
    shapes = {"a.weight": (6, 5), "b.bias": (5,), "gone.weight": (2, 2), "gone.bias": (2,)}
    with pytest.raises(CheckpointError) as caught:
        read_tensors(path, shapes, "net.")
    assert caught.value.code == "tensors-mismatch"
    text = str(caught.value)
    assert "3 of 4 tensors" in text
    assert "net.a.weight is [6, 4], not [6, 5]" in text
    assert "net.gone.weight [2, 2] is missing" in text
    assert "net.gone.bias [2] is missing" in text
    assert "b.bias is" not in text
    assert str(path) in text


def test_nothing_is_given_before_everything_is_known_to_fit(tmp_path: Path) -> None:
    path = _write(STATE, tmp_path / "model.pt")
    with pytest.raises(CheckpointError):
        next(iter_tensors(path, {**SHAPES, "z.last": (1,)}, "net."))


def test_a_long_list_of_misfits_is_counted_and_cut(tmp_path: Path) -> None:
    path = _write(STATE, tmp_path / "model.pt")
    shapes = {f"layer.{index}.weight": (4, 4) for index in range(40)}
    with pytest.raises(CheckpointError, match=r"40 of 40 tensors .* and 30 more"):
        read_tensors(path, shapes)


def test_a_part_of_a_base_is_found_by_its_names_in_their_order(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        find_part_file(tmp_path, ("a.pt", "b.safetensors"))
    assert caught.value.code == "base-file-missing"
    assert "none of a.pt, b.safetensors is in the folder" in str(caught.value)
    second = _write(STATE, tmp_path / "b.safetensors")
    assert find_part_file(tmp_path, ("a.pt", "b.safetensors")) == second
    first = _write(STATE, tmp_path / "a.pt")
    assert find_part_file(tmp_path, ("a.pt", "b.safetensors")) == first
    assert find_part_file(second, ("a.pt",)) == second
    with pytest.raises(FileError, match="file-missing"):
        find_part_file(tmp_path / "c.pt", ("a.pt",))


def test_whole_numbers_are_not_taken_for_weights(tmp_path: Path) -> None:
    path = saved({"a": torch.arange(4)}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="a is I64, not floating point"):
        read_tensors(path, {"a": (4,)})


def test_shapes_are_read_without_values(tmp_path: Path) -> None:
    assert read_tensor_shapes(_write(STATE, tmp_path / "m.pt"), "net.") == {"a.weight": (6, 4), "b.bias": (5,)}


MEASURE = """
import resource, sys
from pathlib import Path
import torch
from voxgraft.checkpoints.load import iter_tensors, read_tensors

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

shapes = {f"layer.{i}": (1 << 10, 1 << 12) for i in range(8)}
torch.ones(8).bfloat16().float()
before = peak()
for name, tensor in iter_tensors(Path(sys.argv[1]), shapes):
    del tensor
streamed = peak() - before
kept = read_tensors(Path(sys.argv[1]), shapes)
print(streamed, peak() - before, sum(t.nbytes for t in kept.values()))
"""


@pytest.mark.long(fast="stored1")
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_memory_is_the_model_and_one_tensor_or_one_tensor_when_streamed(tmp_path: Path, stored: torch.dtype) -> None:
    one = 4 << 22  # bytes of one tensor as float32; eight are asked for, and as many are in the file unasked
    state = {f"layer.{index}": torch.full((1 << 10, 1 << 12), index, dtype=stored) for index in range(16)}
    path = saved(state, tmp_path / "m.pt")
    run = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    streamed, whole, size = map(int, run.stdout.split())
    assert size == 8 * one
    assert streamed < 3 * one
    assert whole < size + 3 * one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, None])
def test_whole_numbers_that_a_model_counts_with_stay_whole(dtype: torch.dtype | None, tmp_path: Path) -> None:
    count, weight = torch.tensor(1 << 40), torch.ones(2, dtype=torch.bfloat16)
    save_file({"count": count, "weight": weight}, tmp_path / "m.safetensors")
    shapes = {"count": (), "weight": (2,)}
    found = dict(iter_tensors(tmp_path / "m.safetensors", shapes, dtype=dtype, integers={"count"}))
    assert (found["count"].dtype, int(found["count"])) == (torch.int64, 1 << 40)
    assert found["weight"].dtype == (dtype or torch.bfloat16)
    with pytest.raises(CheckpointError) as caught:
        next(iter_tensors(tmp_path / "m.safetensors", shapes, integers={"weight"}))
    assert caught.value.code == "tensors-mismatch"
