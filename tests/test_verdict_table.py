"""The verdict table: every case gets its verdict, and every printed repair does what it says.

What a repair wrote is looked at with torch and safetensors alone, not with the code that wrote it.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.check_files import State, extended_sentencepiece, state_of
from tests.support.damaged_checkpoints import INDEX, NEW_PIECES, T3, Evil, Ground, make_ground
from tests.support.shared import shared
from tests.support.verdict_cases import CASES, COMPUTED, MARKS, REPAIR, RESUME, SPEECH, Case, Made
from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.cli import run_cli as run_command
from voxgraft.config.commands import DiagnoseSettings
from voxgraft.inspect.diagnose import Diagnosis, diagnose_checkpoint
from voxgraft.inspect.rows import are_rows_noise
from voxgraft.tokenizers import NewPiece, TokenizerAdditions, open_tokenizer


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ground]:
    return {name: make_ground(name, tmp_path_factory.mktemp(name)) for name in (T3, INDEX)}


@dataclass(frozen=True)
class RealGround(Ground):
    """The same with the tokenizer that was published."""

    size: int = 0

    @property
    def pieces(self) -> int:
        return self.size


@pytest.fixture(scope="module")
def real_grounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ground]:
    files = {T3: "real/chatterbox/grapheme_mtl_merged_expanded_v1.json", INDEX: "real/indextts2/bpe.model"}
    return {name: _real_ground(name, shared(file), tmp_path_factory.mktemp(name)) for name, file in files.items()}


def _real_ground(name: str, tokenizer: Path, folder: Path) -> Ground:
    size = open_tokenizer(tokenizer).size
    base = make_random_base(name, folder / "base", size=RandomBaseSize(16, 1, size))
    shutil.copyfile(tokenizer, base.tokenizer)
    if name == INDEX:
        grown = extended_sentencepiece(base.tokenizer, folder / "grown.model", size + NEW_PIECES)
        return RealGround(name, base, grown, folder, size)
    own = open_tokenizer(base.tokenizer)
    known = set(own.ids)
    letters = [chr(code) for code in range(0x1200, 0x1400) if chr(code).isalpha() and chr(code) not in known]
    pieces = tuple(NewPiece(letter) for letter in letters[: NEW_PIECES - 1])
    (folder / "grown.json").write_bytes(own.grown(TokenizerAdditions(name, "am", own.kind, own.sha256, "[am]", pieces)))
    return RealGround(name, base, folder / "grown.json", folder, size)


def looked(ground: Ground, made: Made) -> Diagnosis:
    name: Any = ground.name
    settings = {key: value for key, value in made.items() if key != "lost"}
    return diagnose_checkpoint(DiagnoseSettings(base=ground.base.folder, family=name, report=False, **settings))


def judge(case: Case, ground: Ground, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict on a case; where a command is printed, its result as well."""
    monkeypatch.chdir(folder)
    made = case.make(ground, folder)
    found = looked(ground, made)
    codes = {item.code for item in found.findings}
    assert found.verdict.word == case.word, (found.verdict, sorted(codes))
    assert not case.code or case.code in codes, sorted(codes)
    assert case.says in found.verdict.sentence
    assert not codes & set(case.not_codes)
    if case.word == RESUME and case.code not in ("new-rows-scale",):
        assert not [item for item in found.findings if item.level == "error"]
    assert found.verdict.reason.startswith("by hand") == case.by_hand
    if case.word == REPAIR and not case.by_hand:
        assert [command.split()[0] for command in found.verdict.commands] == ["voxgraft"]
        for command in found.verdict.commands:
            words = shlex.split(command)[1:]
            assert run_command(words) == 0, command
            examine(case, ground, made, Path(words[words.index("--output") + 1]))


def tensors_in(path: Path) -> State:
    if path.suffix == ".safetensors":
        return load_file(path)
    loaded = torch.load(path, weights_only=True)
    return dict(loaded.get("model", loaded.get("state_dict", loaded)))


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def examine(case: Case, ground: Ground, made: Made, path: Path) -> None:
    """A repaired file by plain means: base rows, trained rows, start and stop, the body, and a second diagnosis."""
    base, wanted, now = state_of(ground.base), ground.grown(), tensors_in(path)
    assert now.keys() == base.keys()
    last = ground.pieces + NEW_PIECES
    for name in ground.tables:
        table, kind = now[name], now[name].dtype
        assert len(table) == len(base[name]) + NEW_PIECES
        assert table.isfinite().all()
        assert bits(table[: ground.pieces]) == bits(base[name][: ground.pieces].to(kind))
        assert bits(table[last:]) == bits(base[name][ground.pieces :].to(kind))  # the spare row, where there is one
        lost = set(made.get("lost", {}).get(name, ()))
        learnt = [row for row in range(ground.pieces, last) if row not in lost]
        trained = trained_rows(case, made, name, wanted[name])
        assert bits(table[learnt]) == bits(trained[learnt].to(kind)), name
        if table.dim() == 2 and lost:
            assert table[sorted(lost)].any(dim=1).all()
    for name in SPEECH[ground.name]:
        rows, own = now[name][list(MARKS[ground.name])].float(), base[name][list(MARKS[ground.name])]
        assert rows.isfinite().all()
        assert ((rows * own).sum(1) / (rows.norm(dim=1) * own.norm(dim=1)) > 0.9).all()
    for name in base.keys() - set(ground.tables):
        assert now[name].isfinite().all(), name
        if case.keeps_body:
            assert torch.allclose(now[name].float(), base[name], rtol=0.01, atol=1e-3), name
        if name.endswith(COMPUTED) and case.keeps_body:
            assert torch.equal(now[name], base[name].to(now[name].dtype))
    again = looked(ground, {"checkpoint": path, "tokenizer": made.get("tokenizer")})
    assert again.verdict.word == RESUME, again.verdict


def trained_rows(case: Case, made: Made, name: str, wanted: torch.Tensor) -> torch.Tensor:
    """What new rows were before the damage; those that an optimizer has moved since are in the file itself."""
    if "decayed" in case.name and "shifted" in case.name:
        return tensors_in(made["checkpoint"])[name].roll(-1 if name != "text_head.bias" else 0, 0)
    return wanted.bfloat16() if case.name.startswith("bf16") else wanted


@pytest.mark.long(fast="chatterbox: *")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}: {case.name}")
def test_every_case_gets_its_verdict_and_every_repair_holds(
    case: Case, grounds: dict[str, Ground], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(case, grounds[case.family], tmp_path, monkeypatch)


REAL = (
    "a piece too few",
    "second spare, a copy",
    "start and stop zeroed, both tables",
    "tokenizer grown since",
    "all rows shifted by one",
    "embedding and head swapped",
    "trained, and sound",
    "base renamed",
)


@pytest.mark.long
@pytest.mark.parametrize(
    "case", [one for one in CASES if one.name in REAL], ids=lambda one: f"{one.family}: {one.name}"
)
def test_the_same_holds_with_the_published_tokenizers(
    case: Case, real_grounds: dict[str, Ground], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(case, real_grounds[case.family], tmp_path, monkeypatch)


def test_the_table_covers_both_families_and_all_verdicts() -> None:
    assert len(CASES) >= 60
    assert {(case.family, case.word) for case in CASES} == {
        (family, word) for family in (T3, INDEX) for word in ("RESUME", "REPAIR", "START FRESH")
    }


@pytest.mark.long(fast="0.5-*")
@pytest.mark.parametrize(("drift", "word"), [(0.0, "START FRESH"), (0.01, "START FRESH"), (0.5, "RESUME")])
def test_a_small_common_step_of_12_000_random_rows_is_nothing_learnt(drift: float, word: str, tmp_path: Path) -> None:
    base = make_random_base(INDEX, tmp_path / "base", size=RandomBaseSize(16, 1, 12_000))
    tokenizer = extended_sentencepiece(base.tokenizer, tmp_path / "grown.model", 24_000)
    state, chance = state_of(base), torch.Generator().manual_seed(6)
    for name in ("text_embedding.weight", "text_head.weight", "text_head.bias"):
        new = 0.02 * (torch.randn(12_000, *state[name].shape[1:], generator=chance) + drift)
        state[name] = torch.cat([state[name][:-1], new, state[name][-1:]])
    path = tmp_path / "latest.pth"
    torch.save({"model": state}, path)
    found = diagnose_checkpoint(DiagnoseSettings(checkpoint=path, base=base.folder, tokenizer=tokenizer, report=False))
    assert found.verdict.word == word, found.verdict
    assert ("new-rows-random" in {item.code for item in found.findings}) == (word != "RESUME")


def test_rows_that_were_learnt_around_zero_are_no_noise() -> None:
    chance = np.random.default_rng(5)
    noise = chance.standard_normal((4000, 64)).astype(np.float32)
    learnt = noise + 2 * chance.standard_normal((4000, 4)).astype(np.float32) @ noise[:4]
    assert are_rows_noise(noise)
    assert are_rows_noise(noise + np.float32(0.01))
    assert not are_rows_noise(learnt - learnt.mean(axis=0))


def test_a_legacy_file_is_read_and_saved_again_without_running_what_it_carries(
    grounds: dict[str, Ground], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ground = grounds[INDEX]
    path = tmp_path / "old.pth"
    torch.save({"model": ground.grown(), "extra": Evil()}, path, _use_new_zipfile_serialization=False)
    found = looked(ground, {"checkpoint": path, "tokenizer": ground.tokenizer})
    assert found.verdict.word == REPAIR
    assert {"pickle-code", "checkpoint-legacy"} <= {item.code for item in found.findings}
    assert run_command(shlex.split(found.verdict.commands[0])[1:]) == 0
    assert not (tmp_path / "canary").exists()
    now, wanted = load_file(tmp_path / "old.repaired.safetensors"), ground.grown()
    assert all(torch.equal(now[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("name", [T3, INDEX])
def test_names_behind_a_wrapper_do_not_hide_the_optimizer(
    name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[name]
    made = next(one for one in CASES if (one.name, one.family) == ("rows without a gradient", name)).make(
        ground, tmp_path
    )
    loaded = torch.load(made["checkpoint"], weights_only=True)
    loaded["model"] = {f"module.{key}": tensor for key, tensor in loaded["model"].items()}
    torch.save(loaded, tmp_path / "parallel.pt")
    found = looked(ground, {**made, "checkpoint": tmp_path / "parallel.pt"})
    assert "new-rows-untrained" in {item.code for item in found.findings}
