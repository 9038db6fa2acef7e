"""`repair`: what was the base's is the base's again, bit for bit; what was learned stays; the input is never touched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.contract.cases import Case, batch
from tests.support.check_files import State, state_of
from tests.support.damaged_checkpoints import INDEX, NEW_PIECES, T3, Evil, Ground, make_ground, moved_body
from tests.support.diagnose_cases import DAMAGED, Damage
from voxgraft.cli import run_cli as run_command
from voxgraft.config.commands import RepairSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import compute_sha256
from voxgraft.core.results import plain_text
from voxgraft.inspect.repair import RepairResult, repair
from voxgraft.models import get_family
from voxgraft.models.speech_model import compute_hidden_states, compute_losses, load_model

ROWS = [case for case in DAMAGED if {"base-rows-changed", "base-rows-shrunk"} & set(case.codes)]
BOTH = pytest.mark.parametrize("name", [T3, INDEX])


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ground]:
    return {name: make_ground(name, tmp_path_factory.mktemp(name)) for name in (T3, INDEX)}


def repaired(ground: Ground, checkpoint: Path, output: Path, **settings: Any) -> RepairResult:
    before = compute_sha256(checkpoint)
    name: Any = ground.name
    files = {"checkpoint": checkpoint, "base": ground.base.folder, "output": output}
    result = repair(RepairSettings(family=name, **files, **settings))
    assert compute_sha256(checkpoint) == before == result.sha256["input"]
    return result


def damaged(case: Damage, ground: Ground, folder: Path) -> tuple[Path, State]:
    made = case.make(ground, folder)
    path = made["checkpoint"]
    if path.suffix == ".safetensors":
        return path, load_file(path)
    loaded = torch.load(path, weights_only=True)
    return path, loaded.get("model", loaded)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


@pytest.mark.long(fast="chatterbox: rows overwritten")
@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case.family}: {case.name}")
def test_base_rows_come_back_bit_for_bit_and_nothing_else_moves(
    case: Damage, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[case.family]
    path, tuned = damaged(case, ground, tmp_path)
    result = repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    assert result.after.verdict.word == "RESUME", result.after.verdict
    base, now = state_of(ground.base), load_file(tmp_path / "new.safetensors")
    assert now.keys() == tuned.keys()
    for name in tuned:
        if name not in ground.tables:
            assert bits(now[name]) == bits(tuned[name]) == bits(base[name])
            continue
        assert bits(now[name][: ground.pieces]) == bits(base[name][: ground.pieces])
        new = slice(ground.pieces, ground.pieces + NEW_PIECES)
        assert bits(now[name][new]) == bits(tuned[name][new])
        assert bits(now[name][new.stop :]) == bits(base[name][ground.pieces :])  # the spare row, where there is one


def grown_config(ground: Ground, folder: Path) -> Path | None:
    """The base's config with the grown number of pieces in it, as stock software wants it."""
    if ground.base.config is None:
        return None
    document = yaml.safe_load(ground.base.config.read_text(encoding="utf-8"))
    document["gpt"]["number_text_tokens"] = ground.pieces + NEW_PIECES
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@torch.no_grad()
@BOTH
def test_the_base_loss_is_the_base_s_own_again_bit_for_bit(
    name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[name]
    case = next(one for one in ROWS if one.family == name and one.name == "unfrozen")
    path, _ = damaged(case, ground, tmp_path)
    repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    known = Case(get_family(name), ground.base)
    grown = replace(ground.base, tokenizer=ground.tokenizer, config=grown_config(ground, tmp_path))

    def loss(checkpoint: Path | None) -> tuple[torch.Tensor, torch.Tensor]:
        files = replace(grown, checkpoint=checkpoint) if checkpoint else ground.base
        model = load_model(known.family, files)
        packed = batch(known, model, below=ground.pieces)
        return compute_losses(model, packed).speech_sum, model.speech_logits(compute_hidden_states(model, packed))

    want, logits = loss(None)
    wrong, _ = loss(path)
    now, same = loss(tmp_path / "new.safetensors")
    assert not torch.equal(wrong, want)
    assert torch.equal(now, want)
    assert torch.equal(same, logits)


@pytest.mark.parametrize("case_name", ["spare row on the first new token", "spare row counted twice"])
def test_the_spare_row_gets_its_own_seat_back(case_name: str, grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[INDEX]
    case = next(one for one in DAMAGED if one.name == case_name)
    path, tuned = damaged(case, ground, tmp_path)
    result = repaired(ground, path, tmp_path / "new.pth", tokenizer=ground.tokenizer)
    assert result.after.verdict.word == "RESUME", result.after.verdict
    base, now = state_of(ground.base), torch.load(tmp_path / "new.pth", weights_only=True)
    for name in ground.tables:
        assert len(now[name]) == ground.pieces + NEW_PIECES + 1
        assert bits(now[name][-1]) == bits(base[name][-1])
        assert bits(now[name][: ground.pieces]) == bits(base[name][: ground.pieces])
        if case_name.endswith("piece"):
            assert bits(now[name][ground.pieces]) != bits(base[name][-1])
            new = slice(ground.pieces + 1, ground.pieces + NEW_PIECES)
            assert bits(now[name][new]) == bits(tuned[name][new])


def with_its_heads_made(case_name: str, ground: Ground, folder: Path, *, with_tokenizer: bool) -> tuple[State, State]:
    """What a checkpoint without whole heads was, and what it is repaired; its heads are the base's and continue behind."""
    case = next(one for one in DAMAGED if (one.name, one.family) == (case_name, ground.name))
    path, tuned = damaged(case, ground, folder)
    tokenizer = ground.tokenizer if with_tokenizer else None
    result = repaired(ground, path, folder / "new.safetensors", tokenizer=tokenizer)
    assert result.after.verdict.word == "RESUME", result.after.verdict
    base, now = state_of(ground.base), load_file(folder / "new.safetensors")
    embedding, *heads = ground.tables
    for head in heads:
        assert len(now[head]) == len(now[embedding])
        assert torch.equal(now[head][: ground.pieces], base[head][: ground.pieces])
        assert now[head].isfinite().all()
    return tuned, now


@BOTH
@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_head_that_was_left_behind_is_rebuilt(
    with_tokenizer: bool, name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[name]
    tuned, now = with_its_heads_made("head not extended", ground, tmp_path, with_tokenizer=with_tokenizer)
    embedding, known = ground.tables[0], ground.pieces + NEW_PIECES
    assert torch.equal(now[embedding][:known], tuned[embedding][:known])


def test_tensors_that_are_missing_come_from_the_base(grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[INDEX]
    case = next(one for one in DAMAGED if one.name == "tensors missing")
    path, _ = damaged(case, ground, tmp_path)
    repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    base, now = state_of(ground.base), load_file(tmp_path / "new.safetensors")
    assert now.keys() == base.keys()
    assert all(torch.equal(now[name], base[name]) for name in base if name not in ground.tables)


@BOTH
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_body_goes_to_any_point_between_base_and_tuned(
    share: float, name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[name]
    base, tuned = state_of(ground.base), moved_body(ground.grown(), ground.tables, 0.1)
    path = ground.write(tmp_path, tuned)
    result = repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer, body=share)
    now = load_file(tmp_path / "new.safetensors")
    for tensor in base.keys() - set(ground.tables):
        before, after = base[tensor].double(), tuned[tensor].double()
        want = (before + share * (after - before)).float() if base[tensor].is_floating_point() else tuned[tensor]
        assert bits(now[tensor]) == bits(want)
    assert result.after.distance == pytest.approx(0.1 * share, abs=1e-4)


def test_in_a_shorter_format_base_rows_are_the_base_s_rounded(grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[T3]
    state = {name: tensor.bfloat16() for name, tensor in ground.grown().items()}
    for name in ground.tables:
        state[name][: ground.pieces] *= 0.9
    path = ground.write(tmp_path, state)
    repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    base, now = state_of(ground.base), load_file(tmp_path / "new.safetensors")
    for name in ground.tables:
        assert torch.equal(now[name][: ground.pieces], base[name][: ground.pieces].bfloat16())


def test_a_pickle_with_code_in_it_is_saved_again_without_running_it(
    grounds: dict[str, Ground], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ground = grounds[INDEX]
    path = ground.write(tmp_path, ground.grown(), epoch=3, extra=Evil())
    result = repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    assert not (tmp_path / "canary").exists()
    assert [extra.name for extra in result.left] == ["epoch", "extra"]
    now, wanted = load_file(tmp_path / "new.safetensors"), ground.grown()
    assert all(torch.equal(now[name], wanted[name]) for name in wanted)


def test_a_torch_archive_keeps_its_wrapper_and_plain_values(grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[INDEX]
    case = next(one for one in ROWS if one.family == INDEX and one.name == "unfrozen")
    path, _ = damaged(case, ground, tmp_path)
    repaired(ground, path, tmp_path / "new.pth", tokenizer=ground.tokenizer)
    loaded = torch.load(tmp_path / "new.pth", weights_only=True)
    assert loaded.keys() == {"model", "step"}
    assert loaded["step"] == 20


def test_what_cannot_be_saved_is_refused_and_nothing_is_written(grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[T3]
    case = next(one for one in DAMAGED if one.name == "stand-in")
    path = case.make(ground, tmp_path)["checkpoint"]
    with pytest.raises(VoxgraftError, match="this was never Chatterbox"):
        repaired(ground, path, tmp_path / "new.safetensors")
    sound = ground.write(tmp_path, ground.grown())
    with pytest.raises(VoxgraftError, match="repair-needless"):
        repaired(ground, sound, tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    assert not (tmp_path / "new.safetensors").exists()


@pytest.mark.parametrize("output", ["case.safetensors", "base"])
def test_neither_input_is_ever_written_to(output: str, grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[T3]
    path = ground.write(tmp_path, moved_body(ground.grown(), ground.tables, 0.1))
    place = ground.base.checkpoint if output == "base" else path
    with pytest.raises(VoxgraftError, match="growth-onto-input"):
        repaired(ground, path, place, body=0.5, overwrite=True)


def test_a_body_that_is_to_be_moved_needs_a_point(grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[T3]
    path = ground.write(tmp_path, moved_body(ground.grown(), ground.tables, 0.1))
    with pytest.raises(VoxgraftError, match="--body SHARE, or --choose"):
        repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    with pytest.raises(VoxgraftError, match="nothing-to-hear"):
        repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer, choose=True)


def test_the_command_line_writes_a_report_beside_the_file(
    grounds: dict[str, Ground], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ground = grounds[INDEX]
    case = next(one for one in ROWS if one.family == INDEX and one.name == "unfrozen")
    path, _ = damaged(case, ground, tmp_path)
    new = tmp_path / "new.safetensors"
    words = ["repair", str(path), "--base", str(ground.base.folder), "--output", str(new)]
    assert run_command([*words, "--tokenizer", str(ground.tokenizer)]) == 0
    said = capsys.readouterr().out
    assert "rows 0 to 999 are the base's" in said
    assert "after: RESUME" in said
    document = json.loads((tmp_path / "new.safetensors.repair.json").read_text(encoding="utf-8"))
    assert document["before"]["word"] == "REPAIR"
    assert document["after"]["verdict"]["word"] == "RESUME"
    assert document["sha256"]["output"] == compute_sha256(new)
    assert np.isfinite(document["after"]["body_distance"])


@BOTH
def test_rows_are_never_cut_off_to_fit_a_smaller_tokenizer(
    name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[name]
    state = ground.grown()
    state[ground.tables[0]][: ground.pieces] *= 0.9
    path = ground.write(tmp_path, state)
    for only in (("rows",), ("rows", "spare")):
        with pytest.raises(VoxgraftError, match="repair-misfit"):
            repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.base.tokenizer, only=only)
    assert not (tmp_path / "new.safetensors").exists()


@BOTH
def test_new_rows_that_are_not_finite_are_made_anew_and_their_neighbours_stay(
    name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[name]
    state = ground.grown()
    bad = [ground.pieces, ground.pieces + 3, ground.pieces + NEW_PIECES - 1]
    for table in ground.tables:
        state[table][bad] = float("nan")
    result = repaired(ground, ground.write(tmp_path, state), tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    assert result.after.verdict.word == "RESUME", result.after.verdict
    now = load_file(tmp_path / "new.safetensors")
    others = [row for row in range(ground.pieces, ground.pieces + NEW_PIECES) if row not in bad]
    for table in ground.tables:
        assert now[table].isfinite().all()
        assert now[table][bad[:2]].any()
        assert len(now[table]) == len(state[table])
        assert bits(now[table][others]) == bits(state[table][others])


@BOTH
def test_tensors_of_another_form_or_with_nothing_left_in_them_come_from_the_base(
    name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[name]
    base, state = state_of(ground.base), ground.grown()
    matrices = [one for one in base if one not in ground.tables and base[one].dim() == 2]
    state[matrices[0]] = torch.randn(3, 5)
    state[matrices[1]] = torch.zeros_like(base[matrices[1]])
    path = ground.write(tmp_path, state)
    result = repaired(ground, path, tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    assert result.after.verdict.word == "RESUME", result.after.verdict
    moved = repaired(ground, path, tmp_path / "moved.safetensors", tokenizer=ground.tokenizer, only=("body",), body=0.0)
    assert moved.after.verdict.word == "RESUME", moved.after.verdict
    for file in ("new", "moved"):
        now = load_file(tmp_path / f"{file}.safetensors")
        assert all(bits(now[one]) == bits(base[one]) for one in base if one not in ground.tables)


@BOTH
@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_head_that_is_not_there_is_made_from_the_base_s(
    with_tokenizer: bool, name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[name]
    tuned, now = with_its_heads_made("head missing", ground, tmp_path, with_tokenizer=with_tokenizer)
    assert bits(now[ground.tables[0]]) == bits(tuned[ground.tables[0]])


@BOTH
def test_names_behind_a_wrapper_s_are_written_without_it(name: str, grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[name]
    case = next(one for one in DAMAGED if one.name == "names prefixed by a wrapper" and one.family == name)
    path, _ = damaged(case, ground, tmp_path)
    result = repaired(ground, path, tmp_path / f"new{path.suffix}", tokenizer=ground.tokenizer)
    assert result.after.verdict.sentence == "nothing is wrong with it"
    repaired(ground, path, tmp_path / "again.safetensors", tokenizer=ground.tokenizer)
    now, wanted = load_file(tmp_path / "again.safetensors"), ground.grown()
    assert now.keys() == wanted.keys()
    assert all(torch.equal(now[one], wanted[one]) for one in wanted)


def test_what_comes_from_the_base_is_written_in_the_base_s_order(grounds: dict[str, Ground], tmp_path: Path) -> None:
    ground = grounds[INDEX]
    base = state_of(ground.base)
    body = [name for name in base if name not in ground.tables]
    lacking = body[::2]
    path = ground.write(tmp_path, {name: tensor for name, tensor in ground.grown().items() if name not in lacking})
    result = repaired(ground, path, tmp_path / "new.pth", tokenizer=ground.tokenizer)
    assert [tensor for tensor, _ in result.done] == lacking
    assert [name for name in torch.load(tmp_path / "new.pth", weights_only=True) if name in lacking] == lacking


@pytest.mark.parametrize("case_name", ["adapter not merged", "adapter alone", "no new rows"])
def test_what_is_put_right_by_hand_is_refused_with_what_to_do(
    case_name: str, grounds: dict[str, Ground], tmp_path: Path
) -> None:
    ground = grounds[T3]
    case = next(one for one in DAMAGED if one.name == case_name and one.family == T3)
    made = case.make(ground, tmp_path)
    reported = "voxgraft extend" if case_name == "no new rows" else "merge_and_unload"
    with pytest.raises(VoxgraftError, match=reported):
        repaired(ground, made["checkpoint"], tmp_path / "new.safetensors", tokenizer=ground.tokenizer)
    if case_name != "no new rows":
        with pytest.raises(VoxgraftError, match="checkpoint-low-rank"):
            repaired(ground, made["checkpoint"], tmp_path / "new.safetensors", body=0.5)
    assert not (tmp_path / "new.safetensors").exists()


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".ckpt"])
def test_every_torch_suffix_that_is_accepted_is_in_the_help(suffix: str, tmp_path: Path) -> None:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    state = load_file(base / "t3.safetensors")
    state["text_emb.weight"][5, 3] = float("nan")
    save_file(state, tmp_path / "nan.safetensors")
    output = tmp_path / f"new{suffix}"
    done = repair(RepairSettings(checkpoint=tmp_path / "nan.safetensors", base=Path("tiny"), output=output))
    assert torch.load(output, weights_only=True)
    assert suffix in str(RepairSettings.model_fields["output"].description)
    lines = [line if isinstance(line, str) else plain_text(line) for line in done.lines() if not hasattr(line, "rows")]
    assert lines[1] == "repaired:"
    assert "no further repair" in next(line for line in lines if line.startswith("after: "))
