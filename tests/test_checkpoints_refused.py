"""Checkpoints that are cut off, damaged or made to mislead are refused by name, and nothing in them ever runs."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.checkpoint_files import (
    TWO_FLOATS,
    archive,
    entry,
    one_tensor,
    safetensors_bytes,
    saved,
    speech_model,
    trainer_extras,
    values,
    written,
)
from voxgraft.checkpoints import find_dangerous_globals, open_checkpoint
from voxgraft.checkpoints.pickles import PERSISTENT_ID, PickleGlobal, PickleObject, TensorParseError, parse_tensor
from voxgraft.core.errors import VoxgraftError

DATA = bytes(8)
SAFETENSORS_FAULTS: dict[str, tuple[str, bytes]] = {
    "header longer than the file": ("checkpoint-truncated", safetensors_bytes({"a": entry()}, DATA, length=1000)),
    "header longer than any": ("safetensors-header", safetensors_bytes({"a": entry()}, DATA, length=1 << 60)),
    "header shorter than its JSON": ("safetensors-header", safetensors_bytes({"a": entry()}, DATA, length=9)),
    "header of nothing": ("safetensors-header", safetensors_bytes("{", DATA, length=0)),
    "header not UTF-8": ("safetensors-header", safetensors_bytes(b'{"\xff": {}}')),
    "header with half a character": ("safetensors-header", safetensors_bytes(r'{"\ud800": {}}')),
    "header nested too deep": ("safetensors-header", safetensors_bytes('{"a":' + "[" * 100_000)),
    "header with NaN": ("safetensors-header", safetensors_bytes('{"a": NaN}')),
    "name twice": ("safetensors-duplicate", safetensors_bytes('{"a": {}, "a": {}}')),
    "entry that is a list": ("safetensors-entry", safetensors_bytes({"a": [1]})),
    "entry without shape": ("safetensors-entry", safetensors_bytes({"a": {"dtype": "F32", "data_offsets": [0, 8]}})),
    "entry with more": ("safetensors-entry", safetensors_bytes({"a": {**entry(), "more": 1}}, DATA)),
    "unknown type": ("tensor-dtype", safetensors_bytes({"a": entry("F31")}, DATA)),
    "type that is a number": ("tensor-dtype", safetensors_bytes({"a": {**entry(), "dtype": 32}}, DATA)),
    "negative size": ("tensor-shape", safetensors_bytes({"a": entry(shape=[-2])}, DATA)),
    "size with a point": ("tensor-shape", safetensors_bytes({"a": entry(shape=[2.0])}, DATA)),
    "size that is true": ("tensor-shape", safetensors_bytes({"a": entry(shape=[True, 2])}, DATA)),
    "sizes past any memory": ("tensor-shape", safetensors_bytes({"a": entry(shape=[1 << 62, 4])}, DATA)),
    "empty with absurd sizes": ("tensor-shape", safetensors_bytes({"a": entry(shape=[0, 1 << 62], offsets=[0, 0])})),
    "a hundred dimensions": ("tensor-shape", safetensors_bytes({"a": entry(shape=[1] * 100)}, DATA)),
    "span unlike the shape": ("safetensors-offsets", safetensors_bytes({"a": entry(shape=[3])}, DATA)),
    "offsets backwards": ("safetensors-offsets", safetensors_bytes({"a": entry(offsets=[8, 0])}, DATA)),
    "offsets negative": ("safetensors-offsets", safetensors_bytes({"a": entry(offsets=[-8, 0])}, DATA)),
    "three offsets": ("safetensors-offsets", safetensors_bytes({"a": entry(offsets=[0, 8, 9])}, DATA)),
    "overlap": ("safetensors-offsets", safetensors_bytes({"a": entry(), "b": entry()}, DATA)),
    "hole": ("safetensors-offsets", safetensors_bytes({"a": entry(offsets=[8, 16])}, bytes(16))),
    "bytes after the last tensor": ("safetensors-offsets", safetensors_bytes({"a": entry()}, bytes(9))),
    "data cut off": ("checkpoint-truncated", safetensors_bytes({"a": entry()}, bytes(7))),
    "metadata with a number": ("safetensors-metadata", safetensors_bytes({"__metadata__": {"a": 1}})),
    "metadata that is a list": ("safetensors-metadata", safetensors_bytes({"__metadata__": ["a"]})),
}


def code_of(data: bytes, path: Path) -> str:
    with pytest.raises(VoxgraftError) as caught:
        open_checkpoint(written(data, path))
    assert caught.value.finding.cure
    return caught.value.code


@pytest.mark.parametrize("fault", SAFETENSORS_FAULTS)
def test_a_safetensors_header_that_lies_is_refused_by_name(fault: str, tmp_path: Path) -> None:
    code, data = SAFETENSORS_FAULTS[fault]
    assert code_of(data, tmp_path / "file") == code


def test_a_header_whose_length_looks_like_other_bytes_is_still_read(tmp_path: Path) -> None:
    for length in (0x80 + 0x100, ord("{"), ord("<"), 0x280):
        text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(length)
        with open_checkpoint(written(safetensors_bytes(text, DATA), tmp_path / "file")) as checkpoint:
            assert checkpoint.read("a").tolist() == [0, 0]


def legacy_file() -> bytes:
    stream = io.BytesIO()
    torch.save(speech_model(), stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def tar_file() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as packed:
        packed.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    return stream.getvalue()


WRONG_KINDS: dict[str, tuple[str, bytes]] = {
    "web page": ("checkpoint-page", b"\n <!DOCTYPE html><html><title>Sign in</title>"),
    "error of a bucket": ("checkpoint-page", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>'),
    "git-lfs pointer": ("checkpoint-lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"),
    "tar": ("checkpoint-tar", tar_file()),
    "torch before 1.6": ("checkpoint-legacy", legacy_file()),
    "pickle": ("checkpoint-pickle", pickle.dumps({"a": [1]}, protocol=4)),
    "JSON": ("checkpoint-unknown", b'{"error": "Repository not found"}'),
    "index of shards": ("checkpoint-unknown", b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'),
    "GGUF": ("checkpoint-unknown", b"GGUF" + bytes(60)),
    "text": ("checkpoint-unknown", b"hello"),
    "empty": ("file-empty", b""),
    "another zip": ("torch-archive", b""),
    "compressed": ("torch-compressed", archive(one_tensor(), TWO_FLOATS, zipfile.ZIP_DEFLATED)),
}


def other_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr("word/document.xml", "<a/>")
    return stream.getvalue()


@pytest.mark.parametrize("kind", WRONG_KINDS)
def test_what_is_saved_under_a_checkpoints_name_is_recognised(kind: str, tmp_path: Path) -> None:
    code, data = WRONG_KINDS[kind]
    assert code_of(other_zip() if kind == "another zip" else data, tmp_path / "model.pth") == code


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none.pth", "file-missing"), (tmp_path, "not-a-file")):
        with pytest.raises(VoxgraftError) as caught:
            open_checkpoint(path)
        assert caught.value.code == code


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_file_cut_off_anywhere_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "whole"
    small = {"a": values(3), "b": values(2, dtype=torch.bfloat16)}
    save_file(small, path) if kind == "safetensors" else saved({"model": small}, path)
    whole = path.read_bytes()
    allowed = {"checkpoint-truncated", "checkpoint-unknown", "file-empty"}
    parts = [at for at in range(len(whole)) if whole.startswith((b"PK", b"FB", b"ZZ\x80"), at)]
    near = {at + shift for at in parts for shift in (-1, 0, 1, 4, 30, 46)}
    for size in sorted({*near, *range(0, len(whole), 1 if kind == "safetensors" else 5)} & set(range(len(whole)))):
        assert code_of(whole[:size], tmp_path / "cut") in allowed, size
    with open_checkpoint(written(whole, tmp_path / "cut")) as checkpoint:
        assert len(checkpoint.tensors) == 2


def patched(data: bytes, what: bytes, offset: int, new: bytes, *, last: bool = False) -> bytes:
    """`data` with some bytes at `offset` after the first (or last) `what` replaced."""
    at = (data.rindex(what) if last else data.index(what)) + offset
    return data[:at] + new + data[at + len(new) :]


GOOD = archive(one_tensor(), TWO_FLOATS)
ZIP_FAULTS = {
    "record past the directory": patched(patched(GOOD, b"PK\x01\x02", 20, b"\xff\xff\xff\x00", last=True), b"PK\x01\x02", 24, b"\xff\xff\xff\x00", last=True),
    "two sizes": patched(GOOD, b"PK\x01\x02", 24, b"\x05\x00\x00\x00", last=True),
    "record at another's place": patched(GOOD, b"PK\x01\x02", 42, struct.pack("<I", 0), last=True),
    "record past the end": patched(GOOD, b"PK\x01\x02", 42, struct.pack("<I", len(GOOD))),
    "encrypted": patched(GOOD, b"PK\x01\x02", 8, b"\x01\x00"),
    "directory too large": patched(GOOD, b"PK\x05\x06", 12, b"\xff\xff\xff\x7f"),
    "too many entries": patched(GOOD, b"PK\x05\x06", 8, b"\xff\x7f\xff\x7f"),
    "too few entries": patched(GOOD, b"PK\x05\x06", 8, b"\x01\x00\x01\x00"),
    "bytes behind the directory": GOOD.replace(b"PK\x05\x06", b"1234567PK\x05\x06"),
    "several disks": patched(GOOD, b"PK\x05\x06", 4, b"\x01\x00"),
    "over 4 GiB without saying": patched(GOOD, b"PK\x01\x02", 24, b"\xff\xff\xff\xff", last=True),
}  # fmt: skip


@pytest.mark.parametrize("fault", ZIP_FAULTS)
def test_an_archive_that_lies_about_its_records_is_refused(fault: str, tmp_path: Path) -> None:
    with open_checkpoint(written(GOOD, tmp_path / "good.pth")) as checkpoint:
        assert checkpoint.read("a").tolist() == [1, 2]
    assert code_of(ZIP_FAULTS[fault], tmp_path / "m.pth") == "torch-archive"


def test_a_record_that_stands_twice_is_refused(tmp_path: Path) -> None:
    data = archive(one_tensor(), {"data/0": DATA, "data/1": DATA}).replace(b"x/data/1", b"x/data/0")
    assert code_of(data, tmp_path / "m.pth") == "torch-archive"


TENSOR_FAULTS: dict[str, tuple[str, bytes]] = {
    "past its storage": ("torch-tensor", archive(one_tensor(offset=b"K\x01"), TWO_FLOATS)),
    "negative offset": ("torch-tensor", archive(one_tensor(offset=b"J\xff\xff\xff\xff"), TWO_FLOATS)),
    "negative stride": ("torch-tensor", archive(one_tensor(strides=b"J\xff\xff\xff\xff\x85"), TWO_FLOATS)),
    "two strides": ("torch-tensor", archive(one_tensor(strides=b"K\x01K\x01\x86"), TWO_FLOATS)),
    "shape of text": ("torch-tensor", archive(one_tensor(shape=b"X\x01\x00\x00\x00a\x85"), TWO_FLOATS)),
    "storage missing": ("torch-storage", archive(one_tensor(), {})),
    "storage too short": ("torch-storage", archive(one_tensor(), {"data/0": bytes(4)})),
    "storage too long": ("torch-storage", archive(one_tensor(), {"data/0": bytes(12)})),
    "big-endian": ("torch-contents", archive(one_tensor(), {**TWO_FLOATS, "byteorder": b"big"})),
    "TorchScript": ("torch-contents", archive(one_tensor(), {**TWO_FLOATS, "constants.pkl": b"."})),
    "no dictionary": ("torch-contents", archive(pickle.dumps([1, 2], protocol=2))),
    "no tensors": ("torch-contents", archive(pickle.dumps({"a": 1}, protocol=2))),
    "no pickle": ("torch-pickle", archive(b"\x00\x01\x02")),
    "pickle without end": ("torch-pickle", archive(b"\x80\x02}")),
    "pickle of nothing": ("torch-pickle", archive(b"\x80\x02.")),
    "pickle of the future": ("torch-pickle", archive(b"\x80\x77}.")),
    "recalls what it never kept": ("torch-pickle", archive(b"\x80\x02h\x07.")),
    "buffers outside": ("torch-pickle", archive(b"\x80\x05\x97.")),
    "module that is a number": ("torch-pickle", archive(b"\x80\x04K\x05\x8c\x01a\x93.")),
    "name that is a number": ("torch-pickle", archive(b"\x80\x04\x8c\x01aK\x05\x93.")),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_a_pickle_that_describes_no_readable_tensors_is_refused(fault: str, tmp_path: Path) -> None:
    code, data = TENSOR_FAULTS[fault]
    assert code_of(data, tmp_path / "m.pth") == code


def test_the_type_of_an_untyped_storage_is_a_name_and_no_text() -> None:
    storage = PickleObject(PERSISTENT_ID, ("storage", PickleGlobal("torch.storage", "UntypedStorage"), "0", "cpu", 4))
    view = (storage, 0, (2,), (1,), False, None)
    assert parse_tensor("torch._utils._rebuild_tensor_v3", (*view, PickleGlobal("torch", "uint16"))).dtype == "U16"
    for dtype in ("torch.uint16", None, PickleGlobal("torch", "float32")):
        with pytest.raises(TensorParseError):
            parse_tensor("torch._utils._rebuild_tensor_v3", (*view, dtype))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"a": values(3, 3).to_sparse()}, "torch-contents"),
        ({"a": values(2), "b": torch.ones(2, dtype=torch.complex64).conj()}, "torch-tensor"),
        ({0: values(2)}, "torch-contents"),
        ({"t3": {"a": values(2)}, "gen": {"b": values(2)}}, "torch-contents"),
        (values(3), "torch-contents"),
    ],
)
def test_saved_things_that_are_no_state_dict_are_refused(value: Any, code: str, tmp_path: Path) -> None:
    path = saved(value, tmp_path / "m.pth")
    assert code_of(path.read_bytes(), tmp_path / "m.pth") == code


def test_a_whole_pickled_model_is_refused_with_the_way_to_save_it(tmp_path: Path) -> None:
    path = saved({"model": torch.nn.Linear(2, 2)}, tmp_path / "m.pth")
    with pytest.raises(VoxgraftError, match="state_dict"):
        open_checkpoint(path)


def test_a_flipped_bit_in_the_pickle_or_in_a_whole_tensor_is_noticed(tmp_path: Path) -> None:
    data = saved({"a": values(4)}, tmp_path / "m.pth").read_bytes()
    in_pickle = patched(data, b"_rebuild_tensor_v2", 0, b"\x5e")
    assert code_of(in_pickle, tmp_path / "p.pth") == "torch-checksum"
    in_values = data.replace(values(4).numpy().tobytes(), values(4).neg().numpy().tobytes())
    with open_checkpoint(written(in_values, tmp_path / "v.pth")) as checkpoint:
        with pytest.raises(VoxgraftError) as caught:
            checkpoint.read("a")
        assert caught.value.code == "torch-checksum"


class Trap:
    """Whoever loads this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def test_nothing_in_a_pickle_runs_and_what_would_is_named(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    path = saved({"model": speech_model(), "extra": Trap(trap)}, tmp_path / "m.pth")
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.tensors) == list(speech_model())
        assert [extra.name for extra in checkpoint.extras] == ["extra"]
    assert find_dangerous_globals(path) == ["posix.mkdir"]
    assert not trap.exists()
    torch.load(path, weights_only=False)
    assert trap.exists()  # the trap was a real one


HOSTILE = {
    "text opcodes": b"cos\nsystem\n(S'touch sprung'\ntR.",
    "instance": b"(S'touch sprung'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'touch sprung'\no.",
    "from the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch sprung\x85R.",
    "from the memo": b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93)R.",
    "before it breaks": b"cos\nsystem\n(S'touch sprung'\ntR\xff\xff",
    "an extension": b"\x80\x02\x82\x01)R.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_calls_are_named_however_the_pickle_spells_them(kind: str, tmp_path: Path) -> None:
    expected = ["copyreg.extension 1"] if kind == "an extension" else ["os.system"]
    assert find_dangerous_globals(written(archive(HOSTILE[kind]), tmp_path / "m.pth")) == expected
    assert find_dangerous_globals(written(HOSTILE[kind], tmp_path / "bare.pth")) == expected
    assert not Path("sprung").exists()


def test_ordinary_files_ask_for_nothing_dangerous(tmp_path: Path) -> None:
    assert find_dangerous_globals(saved({"model": speech_model(), **trainer_extras()}, tmp_path / "m.pth")) == []
    assert find_dangerous_globals(written(legacy_file(), tmp_path / "legacy.pth")) == []
    save_file(dict(speech_model()), tmp_path / "m.safetensors")
    assert find_dangerous_globals(tmp_path / "m.safetensors") == []


def with_tensor(extra: bytes) -> bytes:
    """A pickle of {"model": {"a": tensor}, "extra": what the given operations leave}."""
    inner = one_tensor()[2:-1]
    return archive(b"\x80\x02}X\x05\x00\x00\x00model" + inner + b"sX\x05\x00\x00\x00extra" + extra + b"s.", TWO_FLOATS)


BOMBS = {
    "a key that takes for ever to hash": b"})" + b"2\x86" * 80 + b"Ns",
    "lists that hold each other": b"]" + b"q\x000]h\x00ah\x00ah\x00a" * 200,
    "a list in itself": b"]q\x00h\x00a",
    "tuples two hundred thousand deep": b")" + b"\x85" * 200_000,
    "a memo at the end of the numbers": b"]r\xff\xff\xff\xff",
    "a number of a million bits": b"\x8b" + struct.pack("<i", 125_000) + b"\x7f" * 125_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_made_to_fill_memory_or_time_is_passed_over(bomb: str, tmp_path: Path) -> None:
    with open_checkpoint(written(with_tensor(BOMBS[bomb]), tmp_path / "m.pth")) as checkpoint:
        assert checkpoint.read("a").tolist() == [1, 2]
        assert [extra.name for extra in checkpoint.extras] == ["extra"]


def test_a_pickle_of_too_many_steps_is_refused(tmp_path: Path) -> None:
    assert code_of(with_tensor(b"N0" * 1_600_000 + b"N"), tmp_path / "m.pth") == "torch-pickle"


def test_two_floats_that_unfold_to_terabytes_are_not_unfolded(tmp_path: Path) -> None:
    size = b"\x8a\x06" + (1 << 40).to_bytes(6, "little")
    data = archive(one_tensor(shape=size + b"\x85", strides=b"K\x00\x85"), TWO_FLOATS)
    with open_checkpoint(written(data, tmp_path / "m.pth")) as checkpoint:
        with pytest.raises(VoxgraftError) as caught:
            checkpoint.read("a")
        assert caught.value.code == "tensor-shape"
