"""Thousands of damaged checkpoints: each opens or is refused with a code, and none leaves a partial output.

More with `pytest --fuzz 20`; never fewer, since they are quick.
"""

from __future__ import annotations

import os
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tests.support.checkpoint_files import (
    BASE_ROWS,
    SPARE_ROWS,
    archive,
    saved,
    speech_model,
    trainer_extras,
    values,
    written,
)
from voxgraft.checkpoints import find_dangerous_globals, open_checkpoint
from voxgraft.checkpoints.write import GrowthPlan, TableGrowth, grow_checkpoint, verify_growth
from voxgraft.core.errors import VoxgraftError

MUTANTS = 1000
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")  # from pickletools, about damaged texts
PLAN = GrowthPlan(
    {"text_embedding.weight": TableGrowth(BASE_ROWS, SPARE_ROWS, np.ones((2, 8), np.float32))},
)


def mutant(data: bytes, chance: random.Random, tokens: list[bytes]) -> bytes:
    """One to three changes: bits, bytes, numbers, cuts, repeats, and pieces that mean something in the format."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        size = chance.choice([1, 1, 1, 2, 4, 8, 40])
        piece = chance.choice(
            [
                bytes([chance.randrange(256)]),
                b"\x00" * size,
                b"\xff" * size,
                chance.randbytes(size),
                chance.choice(tokens),
                data[at : at + size] * 2,
            ]
        )
        keep = chance.choice([0, len(piece), len(piece), size])
        data = data[:at] + piece + data[at + keep :]
        if chance.random() < 0.05:
            data = data[: chance.randrange(len(data) + 1)]
    return data


def outcome(data: bytes, folder: Path) -> str:
    """What happens to a file: the code with which it is refused, or `grown`, proven."""
    path, output = written(data, folder / "m"), folder / "g"
    try:
        return grown(path, output)
    except VoxgraftError as error:
        code = error.code
    assert code != "growth-differs"
    assert os.listdir(folder) == ["m"]
    return code


def grown(path: Path, output: Path) -> str:
    find_dangerous_globals(path)
    with open_checkpoint(path) as old:
        for name in old.tensors:
            old.read(name)
        grow_checkpoint(old, PLAN, output)
        with open_checkpoint(output) as new:
            verify_growth(old, new, PLAN)
    output.unlink()
    return "grown"


def outcomes(original: bytes, tokens: list[bytes], count: int, folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for seed in range(count):
        code = outcome(mutant(original, random.Random(seed), tokens), folder)
        found[code] = found.get(code, 0) + 1
    return found


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    return int(MUTANTS * max(1.0, request.config.getoption("--fuzz")))


def test_damaged_safetensors_open_or_are_refused(count: int, tmp_path: Path) -> None:
    save_file(dict(speech_model()), tmp_path / "m", {"maker": "someone"})
    original = (tmp_path / "m").read_bytes()
    tokens = [b'"', b"{", b"[", b"-", b"1e9", b"null", b'"F16"', b'"BF16"', b"99999999999999999999", b"\\ud800", b" "]
    header = original[: 8 + int.from_bytes(original[:8], "little")]
    found = outcomes(header, tokens, count // 2, tmp_path)
    assert "grown" not in found  # there were no values behind the header
    found = outcomes(original, tokens, count // 2, tmp_path)
    assert found["grown"] > 0
    assert len(found) > 4


def test_damaged_safetensors_are_taken_wherever_safetensors_takes_them(count: int, tmp_path: Path) -> None:
    save_file({"a": values(2, 2), "b": values(3)}, tmp_path / "m", {"maker": "someone"})
    original = (tmp_path / "m").read_bytes()
    taken = 0
    for seed in range(count // 2):
        path = written(mutant(original, random.Random(seed), [b" ", b"0", b"_"]), tmp_path / "m")
        try:
            with safe_open(path, "np") as reference:
                expected = {name: reference.get_tensor(name) for name in reference.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError, OSError):
            continue
        with open_checkpoint(path) as checkpoint:
            read = {name: checkpoint.read(name, raw=True) for name in checkpoint.tensors}
        assert {name: array.tobytes() for name, array in read.items()} == {n: v.tobytes() for n, v in expected.items()}
        taken += 1
    assert taken > 0


def test_damaged_torch_files_open_or_are_refused(count: int, tmp_path: Path) -> None:
    original = saved({"model": speech_model(), "step": 3}, tmp_path / "m").read_bytes()
    tokens = [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"\xff\xff\xff\xff", b"/"]
    found = outcomes(original, tokens, count, tmp_path)
    assert found["grown"] > 0
    assert {"torch-archive", "torch-checksum", "checkpoint-truncated"} <= set(found)


@pytest.mark.long
def test_damaged_pickles_open_or_are_refused(count: int, tmp_path: Path) -> None:
    # Without the random states, which are most of the bytes and would take most of the damage.
    extras = {name: value for name, value in trainer_extras().items() if name != "rng_state"}
    path = saved({"model": speech_model(), **extras}, tmp_path / "m")
    with zipfile.ZipFile(path) as packed:
        records = {name.partition("/")[2]: packed.read(name) for name in packed.namelist()}
    pickle = records.pop("data.pkl")
    tokens = [
        bytes([code])
        for code in b"(.012FIJKLMNPQRSTUVXabcdeghijlopqrstu)]}\x80\x81\x82\x85\x86\x87\x88\x8a\x93\x94\x95"
    ]
    tokens += [b"cos\nsystem\n", b"ctorch\nSize\n", b"r\xff\xff\xff\xff", b"\x8e" + b"\xff" * 8]
    found: dict[str, int] = {}
    for seed in range(3 * count):  # some kinds of damage are rare
        data = archive(mutant(pickle, random.Random(seed), tokens), records)
        code = outcome(data, tmp_path)
        found[code] = found.get(code, 0) + 1
    assert found["grown"] > 0
    assert {"torch-pickle", "torch-contents", "torch-tensor", "torch-storage"} <= set(found)
