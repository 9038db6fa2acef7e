"""What voxgraft writes, torch and safetensors read: the same values, the same structure, mapped or not."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.checkpoint_files import bits, values
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.base import Scalar, from_float32, to_float32
from voxgraft.checkpoints.write import TensorBytes, read_rows_file, write_rows_file, write_safetensors, write_torch
from voxgraft.core.errors import CheckpointError, FileError

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def some_tensors() -> dict[str, NDArray[np.float32]]:
    return {"b": values(3, 4).numpy(), "a.weight": values(7, seed=1).numpy(), "empty": values(0, 3).numpy()}


@pytest.mark.parametrize("dtype", FLOATS)
def test_safetensors_reads_what_is_written(dtype: str, tmp_path: Path) -> None:
    tensors = some_tensors()
    with (tmp_path / "m").open("wb") as stream:
        write_safetensors(stream, {n: TensorBytes.of(v, dtype) for n, v in tensors.items()}, {"made": "ሰላም"})
    loaded = load_file(tmp_path / "m")
    assert set(loaded) == set(tensors)
    for name, array in tensors.items():
        assert bits(loaded[name]) == bits(torch.from_numpy(array).to(FLOATS[dtype]))
    with safe_open(tmp_path / "m", "pt") as opened:
        assert opened.metadata() == {"made": "ሰላም"}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_torch_reads_what_is_written_also_mapped_and_weights_only(dtype: str, mapped: bool, tmp_path: Path) -> None:
    tensors = some_tensors()
    beside: dict[str, Scalar] = {
        "step": 70_000,
        "big": 1 << 40,
        "minus": -3,
        "loss": 0.25,
        "note": "ሰላም",
        "done": True,
        "none": None,
    }
    with (tmp_path / "m.pth").open("wb") as stream:
        sources = {name: TensorBytes.of(array, dtype) for name, array in tensors.items()}
        write_torch(stream, sources, wrapper="model", extras=beside)
    loaded = torch.load(tmp_path / "m.pth", weights_only=True, mmap=mapped)
    assert list(loaded) == ["model", *beside]
    assert {name: loaded[name] for name in beside} == beside
    assert list(loaded["model"]) == list(tensors)
    for name, array in tensors.items():
        assert bits(loaded["model"][name]) == bits(torch.from_numpy(array).to(FLOATS[dtype]))


def test_a_written_archive_is_a_sound_zip_with_aligned_records() -> None:
    stream = io.BytesIO()
    write_torch(stream, {f"tensor {n}": TensorBytes.of(values(n, seed=n).numpy()) for n in range(300)})
    with zipfile.ZipFile(stream) as packed:
        assert packed.testzip() is None
        for info in packed.infolist():
            stream.seek(info.header_offset + 26)
            name, extra = (int.from_bytes(stream.read(2), "little") for _ in range(2))
            assert (info.header_offset + 30 + name + extra) % 64 == 0
            assert info.date_time == (1980, 1, 1, 0, 0, 0)  # no archive depends on the day on which it is written
            assert (info.create_version, info.extract_version) == (45, 20)
    end = stream.getvalue()[-98:]
    assert struct.unpack("<4sQ2H2I", end[:24]) == (b"PK\x06\x06", 44, 45, 45, 0, 0)
    signature, disk, at, disks = struct.unpack("<4sIQI", end[56:76])
    assert (signature, disk, at, disks) == (b"PK\x06\x07", 0, len(stream.getvalue()) - 98, 1)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=True)
    assert list(loaded) == [f"tensor {n}" for n in range(300)]
    assert all(torch.equal(tensor, values(n, seed=n)) for n, tensor in enumerate(loaded.values()))


@pytest.mark.parametrize(
    "number", [0, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 39) - 1, 1 << 39, -1, -(1 << 31), -(1 << 40)]
)
def test_whole_numbers_are_written_as_pickle_writes_them(number: int) -> None:
    stream = io.BytesIO()
    write_torch(stream, {"a": TensorBytes.of(values(1).numpy())}, wrapper="model", extras={"number": number})
    with zipfile.ZipFile(stream) as packed:
        written = packed.read("archive/data.pkl")
    assert written.count(pickle.dumps(number, 2)[2:-1] + b"u.") == 1  # the last value, and the end of the dictionary


def test_arrays_are_written_in_their_own_number_format(tmp_path: Path) -> None:
    arrays_by_name = {
        kind: np.arange(5).astype(kind) for kind in ("uint8", "int8", "uint16", "int64", "float64", "bool")
    }
    with (tmp_path / "m").open("wb") as stream:
        write_safetensors(stream, {name: TensorBytes.of(array) for name, array in arrays_by_name.items()})
    for name, tensor in load_file(tmp_path / "m").items():
        assert tensor.numpy().dtype == name
        assert np.array_equal(tensor.numpy(), arrays_by_name[name])


def test_the_same_tensors_give_the_same_bytes() -> None:
    made = []
    for _ in range(2):
        stream = io.BytesIO()
        write_torch(stream, {"a": TensorBytes.of(values(5).numpy())})
        made.append(stream.getvalue())
    assert made[0] == made[1]


def test_no_value_starts_off_its_own_size(tmp_path: Path) -> None:
    tensors = {"odd": TensorBytes.of(values(3).numpy(), "F16"), "wide": TensorBytes.of(values(2).numpy())}
    with (tmp_path / "m").open("wb") as stream:
        write_safetensors(stream, tensors)
    with open_checkpoint(tmp_path / "m") as checkpoint:
        assert list(checkpoint.tensors) == ["odd", "wide"]
        assert all(info.start % 4 == 0 for info in checkpoint.tensors.values() if info.dtype == "F32")
    assert torch.equal(load_file(tmp_path / "m")["odd"], values(3).half())


@given(arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=False)))
def test_rounding_to_half_precision_is_torchs_rounding(array: NDArray[np.float32]) -> None:
    for dtype, kind in FLOATS.items():
        expected = torch.from_numpy(array).to(kind)
        raw = from_float32(array, dtype)
        assert raw.tobytes() == bits(expected)
        assert to_float32(raw, dtype).tobytes() == bits(expected.float())


def test_ties_round_to_even() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38], np.float32)
    assert to_float32(from_float32(ties, "BF16"), "BF16").tolist()[:3] == [1.0, 1 + 2**-6, -1.0]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = {"text_emb.weight": values(4, 3).numpy(), "text_head.bias": values(4).numpy()}
    write_rows_file(tmp_path / "rows.safetensors", rows, {"language": "am"})
    read = read_rows_file(tmp_path / "rows.safetensors")
    assert set(read) == set(rows)
    assert all(read[name].tobytes() == rows[name].tobytes() for name in rows)
    assert torch.equal(load_file(tmp_path / "rows.safetensors")["text_emb.weight"], values(4, 3))
    with open_checkpoint(tmp_path / "rows.safetensors") as checkpoint:
        assert checkpoint.metadata == {"language": "am"}


def test_a_graft_without_rows_is_legal(tmp_path: Path) -> None:
    write_rows_file(tmp_path / "none.safetensors", {"text_emb.weight": np.zeros((0, 3), np.float32)}, {})
    assert read_rows_file(tmp_path / "none.safetensors")["text_emb.weight"].shape == (0, 3)
    write_rows_file(tmp_path / "nothing.safetensors", {}, {})
    assert read_rows_file(tmp_path / "nothing.safetensors") == {}


def test_rows_that_are_not_finite_float32_are_neither_written_nor_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    bad = [values(2, 3).double().numpy(), np.full((2, 3), np.nan, np.float32), np.zeros((1, 1, 1), np.float32)]
    for array in bad:
        with pytest.raises(CheckpointError) as caught:
            write_rows_file(path, {"a": array}, {})
        assert caught.value.code == "rows-file"
        assert not path.exists()
        with path.open("wb") as stream:
            write_safetensors(stream, {"a": TensorBytes.of(array)})
        with pytest.raises(CheckpointError) as caught:
            read_rows_file(path)
        assert caught.value.code == "rows-file"
        path.unlink()


def test_rows_are_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    write_rows_file(path, {"a": values(1, 1).numpy()}, {})
    with pytest.raises(FileError) as caught:
        write_rows_file(path, {}, {})
    assert caught.value.code == "file-exists"
    write_rows_file(path, {}, {}, overwrite=True)
    assert read_rows_file(path) == {}
