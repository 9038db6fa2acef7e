"""Hostile and damaged checkpoints: each is diagnosed or refused with a code, none is run, and no repair is half written.

Sixty by themselves, twenty more with `--long`; ten thousand with `pytest tests/test_diagnose_fuzz.py --fuzz 63`, others with `--fuzz-seed`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fuzz import byte_mutations, pickle_mutations, safetensors_mutations, zip_mutations
from tests.support.damaged_checkpoints import INDEX, T3, Evil, Ground, adam, make_ground
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.base import FLOAT_DTYPES
from voxgraft.checkpoints.load import strip_model_prefix
from voxgraft.config.commands import DiagnoseSettings, RepairSettings
from voxgraft.core.errors import CATALOGUE, VoxgraftError
from voxgraft.inspect.diagnose import diagnose_checkpoint
from voxgraft.inspect.diagnosis_report import diagnosis_report_html
from voxgraft.inspect.repair import repair

SAFETENSORS_MUTANTS, TORCH_MUTANTS = 120, 40
REPAIRED = 8
"""One of so many mutants that can be repaired is: it takes as long as several others."""
WORDS = {"RESUME", "REPAIR", "START FRESH"}
Mutate = Callable[[bytes, random.Random], tuple[bytes, str]]
Seeds = Callable[[int], range]
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence", "ignore::RuntimeWarning")


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> Seeds:
    """So many times `count` seeds as are asked for, no two campaigns with the same."""
    times, campaign = (request.config.getoption(name) for name in ("--fuzz", "--fuzz-seed"))
    first = campaign * 1_000_000
    return lambda count: range(first, first + int(max(0.5, times) * count))


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ground]:
    return {name: make_ground(name, tmp_path_factory.mktemp(name)) for name in (T3, INDEX)}


def in_pickle(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    made, how = pickle_mutations.edited(zip_mutations.record(data, "data.pkl"), rng)
    return zip_mutations.with_record(data, "data.pkl", made), how


TORCH: tuple[Mutate, ...] = (
    in_pickle,
    in_pickle,
    zip_mutations.lying,
    zip_mutations.damaged_tail,
    byte_mutations.damaged,
)
SAFETENSORS: tuple[Mutate, ...] = (
    safetensors_mutations.lying,
    safetensors_mutations.edited_header,
    safetensors_mutations.lying_length,
    byte_mutations.damaged,
)


def outcome(ground: Ground, path: Path, output: Path | None) -> str:
    """The verdict, which is RESUME for whole models alone; what is to be repaired is, where there is an output."""
    name: Any = ground.name
    found = diagnose_checkpoint(DiagnoseSettings(checkpoint=path, base=ground.base.folder, family=name, report=False))
    assert found.verdict.word in WORDS
    assert {item.code for item in found.findings} <= CATALOGUE.keys()
    diagnosis_report_html(found, None)
    if found.verdict.word == "RESUME":
        require_model(ground, path)
    if found.verdict.word == "REPAIR" and output is not None:
        settings = RepairSettings(checkpoint=path, base=ground.base.folder, output=output, body=0.5)
        try:
            repair(settings)
        except VoxgraftError:
            assert not output.exists()
        for left in output.parent.glob("new*"):
            left.unlink()
    return found.verdict.word


def require_model(ground: Ground, path: Path) -> None:
    """What is to be continued with has every tensor of the base, in its form, and nothing in it that is no number."""
    with open_checkpoint(ground.base.checkpoint) as base, open_checkpoint(path) as opened_file:
        mutant = strip_model_prefix(opened_file)
        for name, old in base.tensors.items():
            new = mutant.tensors[name]
            assert new.dtype == old.dtype or {new.dtype, old.dtype} <= set(FLOAT_DTYPES), name
            assert new.shape[1:] == old.shape[1:] if name in ground.tables else new.shape == old.shape, name
            if new.dtype in FLOAT_DTYPES:
                assert np.isfinite(mutant.read(name).astype(np.float32)).all(), name


def outcomes(ground: Ground, original: Path, mutations: tuple[Mutate, ...], seeds: range) -> Counter[str]:
    data, found, folder = original.read_bytes(), Counter[str](), original.parent
    path, output = folder / f"mutant{original.suffix}", folder / "new.safetensors"
    for seed in seeds:
        rng = random.Random(seed)
        made, how = rng.choice(mutations)(data, rng)
        path.write_bytes(made)
        try:
            found[outcome(ground, path, None if seed % REPAIRED else output)] += 1
        except VoxgraftError as error:
            found[CATALOGUE[error.code].area] += 1
        assert sorted(os.listdir(folder)) == sorted({path.name, original.name}), how
    print(f"{found.total():,} damaged {original.suffix} files, none unclassified: {dict(found)}")  # seen with -rP
    return found


def test_damaged_safetensors_are_diagnosed_or_refused(grounds: dict[str, Ground], seeds: Seeds, tmp_path: Path) -> None:
    ground = grounds[T3]
    found = outcomes(ground, ground.write(tmp_path, ground.grown()), SAFETENSORS, seeds(SAFETENSORS_MUTANTS))
    assert found["START FRESH"] > 0
    assert found["RESUME"] + found["REPAIR"] > 0


@pytest.mark.long
def test_damaged_torch_files_with_an_optimizer_are_diagnosed_or_refused(
    grounds: dict[str, Ground], seeds: Seeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ground = grounds[INDEX]
    state = ground.grown()
    kept = adam(state, ground.tables, masked=0, free=2, pieces=ground.pieces)
    beside = {"optimizer": kept, "scheduler": {"last_epoch": 2}, "step": 2, "rng": torch.get_rng_state()}
    found = outcomes(ground, ground.write(tmp_path, state, **beside), TORCH, seeds(TORCH_MUTANTS))
    assert found["START FRESH"] > 0
    assert found["REPAIR"] > 0


def test_code_in_a_pickle_is_reported_and_never_run(
    grounds: dict[str, Ground], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ground = grounds[INDEX]
    optimizer = {"state": {0: {"step": Evil(), "exp_avg": Evil()}}, "param_groups": [{"lr": Evil()}]}
    path = ground.write(tmp_path, ground.grown(), optimizer=optimizer, scheduler=Evil(), step=Evil())
    assert outcome(ground, path, tmp_path / "new.safetensors") == "REPAIR"
    assert not (tmp_path / "canary").exists()


def test_a_table_of_a_trillion_rows_in_a_few_bytes_takes_neither_time_nor_memory(
    grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[INDEX]
    state = ground.grown()
    for name in ground.tables:
        width = state[name].shape[1:]
        state[name] = torch.zeros(1).expand(1 << 40, *width)
    state["final_norm.weight"] = torch.zeros(1).expand(1 << 44)
    path = tmp_path / "vast.pth"
    torch.save(state, path)
    found = diagnose_checkpoint(DiagnoseSettings(checkpoint=path, base=ground.base.folder, report=False))
    assert found.verdict.word == "START FRESH"
