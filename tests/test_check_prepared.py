"""Prepared data of the forks: their files of ids are read without trust and judged against tokenizer and table."""

from __future__ import annotations

import io
import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.check_files import (
    SENTENCES,
    checked,
    codes,
    extended_sentencepiece,
    found,
    grown_state,
    saved,
    state_of,
)
from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.core.errors import FileError, VoxgraftError
from voxgraft.inspect.check import MAX_IDS_BYTES, read_npy_ids
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer

PIECES = 1600
TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")


@dataclass(frozen=True)
class Files:
    base: BaseFiles
    tokenizer: Path
    checkpoint: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("prepared")
    base = make_random_base("indextts2", folder / "base", size=RandomBaseSize(16, 1, 1000))
    tokenizer = extended_sentencepiece(base.tokenizer, folder / "extended.model", PIECES)
    state = grown_state(state_of(base), TABLES, PIECES + 1, copied=1000)
    return Files(base, tokenizer, saved(folder / "gpt.pth", {"model": state}))


def prepared(folder: Path, ids: dict[str, list[int]], pairs: bool = False) -> Path:
    """The folder that the fork's preprocessing writes, with the texts of SENTENCES."""
    (folder / "text_ids").mkdir(parents=True)
    lines = []
    for text, (name, values) in zip(SENTENCES, ids.items(), strict=False):
        np.save(folder / "text_ids" / f"{name}.npy", np.array(values, np.int32))
        path = f"text_ids/{name}.npy"
        single = {"id": name, "text": text, "text_ids_path": path, "text_len": len(values)}
        pair = {"target_id": name, "target_text": text, "target_text_ids_path": path, "prompt_id": "other"}
        lines.append(json.dumps(pair if pairs else single, ensure_ascii=False))
    name = "train_pairs.jsonl" if pairs else "train_manifest.jsonl"
    (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return folder


def spelled(files: Files, tokenizer: Path | None = None) -> dict[str, list[int]]:
    """What the tokenizer makes of SENTENCES, by file name."""
    grown = open_tokenizer(tokenizer or files.tokenizer)
    text_encoder = TextEncoder.of(get_family("indextts2"), open_tokenizer(files.base.tokenizer), grown, "am")
    return {f"spk000_{at:06d}": text_encoder.encode(text, "am") for at, text in enumerate(SENTENCES)}


@pytest.mark.parametrize("pairs", [False, True])
def test_data_that_this_tokenizer_spelled_passes(pairs: bool, files: Files, tmp_path: Path) -> None:
    folder = prepared(tmp_path / "data", spelled(files), pairs)
    result = checked(base=files.base.folder, tokenizer=files.tokenizer, prepared=folder)
    assert result.exit_code == 0
    assert codes(result) == {"spare-row"}
    assert {"prepared ids", "tokenization of the prepared data"} <= set(result.checked)


@pytest.mark.parametrize("bad", [PIECES, PIECES + 1, 2**31 - 1, -1])
def test_ids_without_a_row_are_found_the_spare_row_among_them(bad: int, files: Files, tmp_path: Path) -> None:
    ids = spelled(files)
    ids["spk000_000002"][1] = bad
    folder = prepared(tmp_path / "data", ids)
    result = checked(tokenizer=files.tokenizer, checkpoint=files.checkpoint, prepared=folder)
    outside = [item for item in result.findings if item.code == "prepared-ids-outside"]
    assert len(outside) == 2  # past the tokenizer, and past the table
    assert all(f"({bad:,})" in item.found and "spk000_000002.npy" in item.where for item in outside)
    assert f"text_embedding.weight, without the spare (unused) row, has {PIECES:,} (ids 0 to {PIECES - 1:,})" in found(
        result, "prepared-ids-outside"
    )


def test_negative_ids_are_found_without_any_tokenizer(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "data", {"a": [5, -3]})
    assert "prepared-ids-outside" in codes(checked(prepared=folder), "error")


def test_start_and_stop_inside_text_are_found(files: Files, tmp_path: Path) -> None:
    ids = spelled(files)
    ids["spk000_000000"][2:2] = [1, 0, 1]
    folder = prepared(tmp_path / "data", ids)
    result = checked(base=files.base.folder, tokenizer=files.tokenizer, prepared=folder)
    assert "the id 0 (1 times) and the id 1 (2 times)" in found(result, "prepared-ids-deleted")


@pytest.mark.parametrize(("known", "level"), [(50, "error"), (5000, "warning")])
def test_the_share_of_unknowns_decides_how_grave_it_is(known: int, level: str, files: Files, tmp_path: Path) -> None:
    folder = prepared(tmp_path / "data", {"a": [2] * 2 + [1200] * known})
    result = checked(tokenizer=files.tokenizer, prepared=folder, family="indextts2")
    assert "prepared-ids-unknown" in codes(result, level)
    assert f"2 of {known + 2:,} tokens are unknown" in found(result, "prepared-ids-unknown")


def test_data_spelled_by_another_tokenizer_of_equal_size_is_found(files: Files, tmp_path: Path) -> None:
    moved = {name: [at + 1 if at >= 1000 else at for at in ids] for name, ids in spelled(files).items()}
    folder = prepared(tmp_path / "data", moved)
    result = checked(base=files.base.folder, tokenizer=files.tokenizer, prepared=folder)
    assert codes(result, "error") == {"prepared-other-tokenizer"}
    assert "4 of 4 sentences are encoded differently; the first: 'ሰላም ለዓለም' is stored as" in found(
        result, "prepared-other-tokenizer"
    )


def test_data_spelled_by_the_base_is_reported_even_without_a_manifest(files: Files, tmp_path: Path) -> None:
    folder = prepared(tmp_path / "data", spelled(files, files.base.tokenizer))
    (folder / "train_manifest.jsonl").unlink()
    result = checked(base=files.base.folder, tokenizer=files.tokenizer, prepared=folder)
    assert "has the id of a new row (1,000 or more)" in found(result, "prepared-other-tokenizer")
    assert "file-missing" in codes(result, "warning")


def test_a_folder_without_ids_is_reported(tmp_path: Path) -> None:
    assert codes(checked(prepared=tmp_path), "error") == {"prepared-empty"}


@pytest.mark.parametrize("line", ["[1]", "{", '{"text": 5}', "{}", '{"text": "a", "text_ids_path": "\\u0000"}'])
def test_a_broken_manifest_does_not_hide_what_the_ids_say(line: str, files: Files, tmp_path: Path) -> None:
    folder = prepared(tmp_path / "data", {"a": [9999]})
    (folder / "train_manifest.jsonl").write_text(line)
    result = checked(base=files.base.folder, tokenizer=files.tokenizer, prepared=folder)
    assert "prepared-ids-outside" in codes(result, "error")
    assert codes(result, "error") & {"json-shape", "json-broken"}


def test_broken_files_of_ids_are_counted_and_the_first_is_named(files: Files, tmp_path: Path) -> None:
    folder = prepared(tmp_path / "data", spelled(files))
    for name in ("x", "y"):
        (folder / "text_ids" / f"{name}.npy").write_bytes(b"\x93NUMPY\x01\x00")
    result = checked(base=files.base.folder, tokenizer=files.tokenizer, prepared=folder)
    assert codes(result, "error") == {"npy-broken"}
    assert "2 of 6 files with token ids cannot be read; the first: x.npy" in found(result, "npy-broken")


# ---- the format -------------------------------------------------------------------------------------------------------


def npy(array: np.ndarray, version: tuple[int, int] | None = None, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version, allow_pickle=pickled)
    return stream.getvalue()


@given(values=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50), dtype=st.sampled_from(["<i4", ">i4", "<i8"]))
def test_what_numpy_writes_is_read_as_numpy_reads_it(
    values: list[int], dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("npy") / "ids.npy"
    for version in ((1, 0), (2, 0), (3, 0)):
        path.write_bytes(npy(np.array(values, dtype), version))
        assert read_npy_ids(path).tolist() == values == np.load(path).tolist()


@pytest.mark.parametrize(
    "data",
    [
        npy(np.array([1.5])),
        npy(np.array([[1, 2]])),
        npy(np.array(3)),
        npy(np.array([print], object), pickled=True),
        npy(np.array([2**64 - 1], np.uint64)),
        npy(np.array([1, 2, 3]))[:-1],
        npy(np.array([1, 2, 3])) + b"x",
        npy(np.array([1, 2, 3])).replace(b"(3,)", b"(3**9,)"),
        npy(np.array([1, 2, 3])).replace(b"'<i8'", b"__import__('os')"),
        npy(np.array([1, 2, 3])).replace(b"(3,)", b"(99999999999999999999,)"),
        b"\x93NUMPY\x09\x00" + bytes(20),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(20),
        b"PK\x03\x04" + bytes(40),
        b"",
        bytes(MAX_IDS_BYTES + 1),
    ],
)
def test_anything_but_a_list_of_whole_numbers_is_refused_with_a_code(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    path.write_bytes(data)
    with pytest.raises(FileError) as error:
        read_npy_ids(path)
    assert error.value.code in {"npy-broken", "file-empty", "file-too-large"}


def test_mutants_give_ids_or_one_of_our_errors(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    good = npy(np.arange(40, dtype=np.int32))
    path = tmp_path / "ids.npy"
    generator = random.Random(3)
    read = 0
    refused: set[str] = set()
    mutants = int(1000 * pytestconfig.getoption("--fuzz"))
    for _ in range(mutants):
        data = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        cut = generator.random() < 0.2
        path.write_bytes(data[: generator.randrange(len(data))] if cut else data)
        try:
            read += len(read_npy_ids(path)) == 40
        except VoxgraftError as error:
            refused.add(error.code)
    assert refused - {"file-empty"} == {"npy-broken"}
    assert read > mutants / 10  # a changed value is still a value
