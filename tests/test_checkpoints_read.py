"""Checkpoints are read without torch, and give exactly what torch and safetensors give."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.support.checkpoint_files import bits, saved, speech_model, trainer_extras, values
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.load import open_any_checkpoint
from voxgraft.core.errors import CheckpointError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}


def every_dtype() -> dict[str, torch.Tensor]:
    return {name: (values(3, 4) * 20).abs().to(dtype) for name, dtype in DTYPES.items()}


def save_as(kind: str, tensors: dict[str, torch.Tensor], path: Path) -> Path:
    if kind == "safetensors":
        save_file(tensors, path)
        return path
    return saved(tensors, path)


@pytest.mark.parametrize("kind", ["safetensors", "torch-zip"])
def test_every_number_format_is_read_bit_for_bit(kind: str, tmp_path: Path) -> None:
    tensors = every_dtype()
    with open_checkpoint(save_as(kind, tensors, tmp_path / "file")) as checkpoint:
        assert checkpoint.format == kind
        assert set(checkpoint.tensors) == set(tensors)
        for name, tensor in tensors.items():
            assert checkpoint.tensors[name].dtype == name
            assert checkpoint.tensors[name].shape == (3, 4)
            assert b"".join(checkpoint.raw(name)) == bits(tensor)
            assert checkpoint.read(name, raw=True).tobytes() == bits(tensor)


@pytest.mark.parametrize("kind", ["safetensors", "torch-zip"])
def test_float_formats_are_read_as_float32_with_the_same_values(kind: str, tmp_path: Path) -> None:
    special = torch.tensor([[0.0, -0.0, float("inf"), -float("inf")], [1e-40, 3e38, 6e-8, 65504.0]])
    tensors = {name: special.to(DTYPES[name]) for name in ("F32", "F16", "BF16")}
    with open_checkpoint(save_as(kind, tensors, tmp_path / "file")) as checkpoint:
        for name, tensor in tensors.items():
            read = checkpoint.read(name)
            assert read.dtype == np.float32
            assert read.tobytes() == tensor.float().numpy().tobytes()
            assert checkpoint.read_rows(name, 1, 2).tobytes() == tensor[1:].float().numpy().tobytes()


def test_views_transposed_expanded_and_shared_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    whole = values(6, 5)
    tensors = {
        "whole": whole,
        "rows": whole[2:4],
        "columns": whole[:, 1:3],
        "transposed": whole.T,
        "expanded": values(1, 4).expand(3, 4),
        "scalar": torch.tensor(2.5),
        "flipped": values(2, 3, 4).permute(2, 0, 1),
        "one": whole.T[:, 3:4],
    }
    with open_checkpoint(saved(tensors, tmp_path / "views.pth")) as checkpoint:
        for name, tensor in tensors.items():
            assert np.array_equal(checkpoint.read(name), tensor.numpy()), name
            assert b"".join(checkpoint.raw(name)) == bits(tensor), name
        assert np.array_equal(checkpoint.read_rows("transposed", 1, 3), whole.T[1:3].numpy())
        assert checkpoint.tensors["rows"].storage == checkpoint.tensors["whole"].storage
        assert not checkpoint.tensors["transposed"].contiguous


def test_parameters_buffers_and_tagged_tensors_are_read_as_tensors(tmp_path: Path) -> None:
    tagged = values(2)
    tagged.origin = "here"  # type: ignore[attr-defined]
    with_state = nn.Parameter(values(2, seed=3))
    with_state.origin = "here"  # type: ignore[attr-defined]
    tensors = {"plain": nn.Parameter(values(3)), "tagged": tagged, "state": with_state, "buffer": nn.Buffer(values(4))}
    with open_checkpoint(saved(tensors, tmp_path / "kinds.pth")) as checkpoint:
        for name, tensor in tensors.items():
            assert np.array_equal(checkpoint.read(name), tensor.detach().numpy()), name


@pytest.mark.parametrize("wrapper", [None, "model", "model_state_dict", "state_dict", "my_odd_key"])
def test_the_state_dict_is_found_under_any_wrapper(wrapper: str | None, tmp_path: Path) -> None:
    tensors = speech_model()
    path = saved(tensors if wrapper is None else {"epoch": 1, wrapper: tensors}, tmp_path / "w.pth")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.wrapper == wrapper
        assert list(checkpoint.tensors) == list(tensors)


def test_what_trainers_put_beside_the_model_is_listed_and_passed_over(tmp_path: Path) -> None:
    extras = trainer_extras()
    path = saved({"model": speech_model(), **extras}, tmp_path / "latest.pth")
    with open_checkpoint(path) as checkpoint:
        found = {extra.name: extra for extra in checkpoint.extras}
        assert set(found) == set(extras)
        kept = {name: extra.value for name, extra in found.items() if extra.kept}
        assert kept == {"epoch": 3, "step": 4096, "best_val_loss": 1.25, "amp": True, "note": "ሰላም", "scaler": None}
        assert "2 tensors" in found["optimizer"].description
        assert "argparse.Namespace" in found["args"].description
        assert len(checkpoint.tensors) == len(speech_model())


def test_a_model_dictionary_wins_over_tensors_beside_it(tmp_path: Path) -> None:
    path = saved({"loss": torch.tensor(1.0), "ema": speech_model(), "model": speech_model()}, tmp_path / "m.pth")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.wrapper == "model"


def test_a_model_wins_over_one_that_lies_deeper(tmp_path: Path) -> None:
    model = speech_model()
    path = saved({"student": model, "teacher": {"copy": speech_model()}}, tmp_path / "m.pth")
    with open_checkpoint(path) as checkpoint:
        assert (checkpoint.wrapper, list(checkpoint.tensors)) == ("student", list(model))
        assert [extra.name for extra in checkpoint.extras] == ["teacher"]


def test_a_model_that_is_the_whole_file_wins_over_an_average_beside_its_tensors(tmp_path: Path) -> None:
    model = speech_model()
    with open_checkpoint(saved({**model, "ema": speech_model()}, tmp_path / "m.pth")) as checkpoint:
        assert (checkpoint.wrapper, list(checkpoint.tensors)) == (None, list(model))
        assert [extra.name for extra in checkpoint.extras] == ["ema"]


def test_a_missing_name_gets_the_nearest_ones(tmp_path: Path) -> None:
    with open_checkpoint(saved(speech_model(), tmp_path / "m.pth")) as checkpoint:
        with pytest.raises(CheckpointError) as caught:
            checkpoint.read("text_embeding.weight")
        assert caught.value.code == "tensor-missing"
        assert "text_embedding.weight" in str(caught.value)


def test_the_file_is_known_by_its_bytes_and_not_by_its_name(tmp_path: Path) -> None:
    save_file(every_dtype(), tmp_path / "really_safetensors.pth")
    saved(every_dtype(), tmp_path / "really_torch.safetensors")
    with open_checkpoint(tmp_path / "really_safetensors.pth") as checkpoint:
        assert checkpoint.format == "safetensors"
    with open_checkpoint(tmp_path / "really_torch.safetensors") as checkpoint:
        assert checkpoint.format == "torch-zip"


def test_a_torch_file_from_before_the_archives_is_read_bit_for_bit(tmp_path: Path) -> None:
    whole = values(6, 4)
    tensors = {**every_dtype(), "view": whole[2:5], "transposed": whole.T, "parameter": nn.Parameter(values(3))}
    kept = {name: tensor for name, tensor in tensors.items() if name not in ("U16", "U32", "U64", "F8_E4M3", "F8_E5M2")}
    torch.save({"model": kept, "step": 3}, tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path / "m.pt")
    assert caught.value.code == "checkpoint-legacy"
    with open_any_checkpoint(tmp_path / "m.pt") as checkpoint:
        assert checkpoint.format == "torch-legacy"
        assert list(checkpoint.tensors) == list(kept)
        for name, tensor in kept.items():
            assert b"".join(checkpoint.raw(name)) == bits(tensor), name
        assert [(extra.name, extra.value) for extra in checkpoint.extras] == [("step", 3)]


def test_a_file_that_was_written_over_is_read_anew_though_size_and_time_are_the_same(tmp_path: Path) -> None:
    first, second = (saved({name: values(3)}, tmp_path / name) for name in ("one", "two"))
    data, times = second.read_bytes(), (first.stat().st_atime_ns, first.stat().st_mtime_ns)
    assert len(data) == first.stat().st_size
    for _ in range(2):  # the pickle of a file that is opened again is not followed again
        with open_checkpoint(first) as checkpoint:
            assert list(checkpoint.tensors) == ["one"]
    first.write_bytes(data)
    os.utime(first, ns=times)
    with open_checkpoint(first) as checkpoint:
        assert list(checkpoint.tensors) == ["two"]


def test_a_torch_file_saved_without_checksums_is_read(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(speech_model(), tmp_path / "m.pth")
    finally:
        torch.serialization.set_crc32_options(before)
    with open_checkpoint(path) as checkpoint:
        for name, tensor in speech_model().items():
            assert checkpoint.read(name, raw=True).tobytes() == bits(tensor)


def test_checkpoints_are_read_without_importing_torch() -> None:
    code = "import sys, voxgraft.checkpoints; sys.exit('torch' in sys.modules or 'safetensors' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
