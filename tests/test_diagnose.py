"""`diagnose`: the right verdict for every damage that we know, and none for checkpoints that only look odd."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.check_files import extended_sentencepiece, saved, state_of
from tests.support.damaged_checkpoints import INDEX, T3, Ground, make_ground
from tests.support.diagnose_cases import DAMAGED, HEALTHY, Damage, Maker
from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.config.commands import DiagnoseSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.inspect.diagnose import Diagnosis, diagnose_checkpoint
from voxgraft.models import get_family


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ground]:
    return {name: make_ground(name, tmp_path_factory.mktemp(name)) for name in (T3, INDEX)}


def diagnosed(ground: Ground, **settings: Any) -> Diagnosis:
    name: Any = ground.name
    return diagnose_checkpoint(DiagnoseSettings(base=ground.base.folder, family=name, report=False, **settings))


def codes(found: Diagnosis) -> set[str]:
    return {item.code for item in found.findings}


@pytest.mark.long(fast="chatterbox: adapter alone")
@pytest.mark.parametrize("case", DAMAGED, ids=lambda case: f"{case.family}: {case.name}")
def test_every_damage_gets_its_verdict(case: Damage, grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[case.family]
    found = diagnosed(ground, **case.make(ground, tmp_path))
    assert found.verdict.word == case.word, found.verdict
    assert case.says in found.verdict.sentence
    assert set(case.codes) <= codes(found)
    assert found.verdict.commands
    assert not list(tmp_path.glob("**/canary"))


@pytest.mark.parametrize(("name", "family", "make"), HEALTHY, ids=[name for name, *_ in HEALTHY])
def test_a_sound_checkpoint_raises_no_alarm(
    name: str, family: str, make: Maker, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[family]
    found = diagnosed(ground, **make(ground, tmp_path))
    assert found.verdict.word == "RESUME", found.verdict
    assert not [item for item in found.findings if item.level == "error"]
    warnings = {item.code for item in found.findings if item.level == "warning"}
    assert warnings <= ({"body-changed"} if "merged" in name else set())


def test_every_case_stands_in_the_manual_with_its_verdict() -> None:
    page = (Path(__file__).parent.parent / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}
    for case in DAMAGED:
        assert f"| {case.word} |" in rows[case.name]
        assert all(f"`{code}`" in rows[case.name] for code in case.codes)


@pytest.mark.long
def test_24_001_rows_for_24_000_pieces_are_right(tmp_path: Path) -> None:
    base = make_random_base(INDEX, tmp_path / "base", size=RandomBaseSize(8, 1, 12_000))
    tokenizer = extended_sentencepiece(base.tokenizer, tmp_path / "grown.model", 24_000)
    state = state_of(base)
    for name in ("text_embedding.weight", "text_head.weight", "text_head.bias"):
        new = 0.03 + 0.02 * torch.randn(12_000, *state[name].shape[1:])
        state[name] = torch.cat([state[name][:-1], new, state[name][-1:]])
    path = saved(tmp_path / "latest.pth", state)
    found = diagnose_checkpoint(DiagnoseSettings(checkpoint=path, base=base.folder, tokenizer=tokenizer, report=False))
    assert found.verdict.word == "RESUME", found.verdict
    assert "24,001 rows for 24,000 tokens is correct" in "".join(item.found for item in found.findings)


def test_without_a_whole_base_or_a_readable_tokenizer_there_is_no_verdict(
    grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[T3]
    path = ground.write(tmp_path, ground.grown())
    (tmp_path / "odd.json").write_text("{", encoding="utf-8")
    with pytest.raises(VoxgraftError, match="json-broken"):
        diagnosed(ground, checkpoint=path, tokenizer=tmp_path / "odd.json")
    shutil.copytree(ground.base.folder, tmp_path / "base")
    torn = tmp_path / "base" / ground.base.checkpoint.name
    torn.write_bytes(torn.read_bytes()[:-50])
    with pytest.raises(VoxgraftError, match="checkpoint-truncated"):
        diagnose_checkpoint(DiagnoseSettings(checkpoint=path, base=tmp_path / "base", report=False))
    state = state_of(ground.base)
    state["speech_head.weight"][0, 0] = float("nan")
    saved(torn, state)
    with pytest.raises(VoxgraftError, match="base-not-finite"):
        diagnose_checkpoint(DiagnoseSettings(checkpoint=path, base=tmp_path / "base", report=False))


def test_without_a_tokenizer_new_rows_are_not_called_padding(tmp_path: Path) -> None:
    """How many rows are padding shows only beside the tokenizer that the checkpoint was trained with."""
    base = get_family("tiny").shipped_folder()
    assert base is not None
    state = load_file(base / "t3.safetensors")
    for name in ("text_emb.weight", "text_head.weight"):
        state[name] = torch.cat([state[name], state[name].mean(0).expand(64, -1)])
    save_file(state, tmp_path / "trained.safetensors")
    settings = DiagnoseSettings(checkpoint=tmp_path / "trained.safetensors", base=Path("tiny"), report=False)
    found = diagnose_checkpoint(settings)
    assert "rows-padded" not in {item.code for item in found.findings}
    assert not any("repair" in command for command in found.verdict.commands)
    (sizes,) = [item for item in found.findings if item.code == "rows-vs-tokenizer"]
    assert "base's own tokenizer" in sizes.found, "no other one was given"
    assert not sizes.expected


def test_one_nan_is_named_by_the_verdict_and_nothing_is_called_extended(tmp_path: Path) -> None:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    state = load_file(base / "t3.safetensors")
    state["text_emb.weight"][5, 3] = float("nan")
    save_file(state, tmp_path / "trained.safetensors")
    settings = DiagnoseSettings(checkpoint=tmp_path / "trained.safetensors", base=Path("tiny"), report=False)
    found = diagnose_checkpoint(settings)
    assert found.verdict.sentence.startswith("text rows contain NaN")
    (same,) = [item for item in found.findings if item.code == "body-same"]
    assert "extended" not in same.found


def test_a_file_cut_off_starts_fresh_only_without_a_good_copy(tmp_path: Path) -> None:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    (tmp_path / "cut.safetensors").write_bytes((base / "t3.safetensors").read_bytes()[:90_000])
    settings = DiagnoseSettings(checkpoint=tmp_path / "cut.safetensors", base=Path("tiny"), report=False)
    verdict = diagnose_checkpoint(settings).verdict
    assert verdict.word == "START FRESH"
    assert "diagnose that copy first" in verdict.reason
