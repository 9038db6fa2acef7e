"""The commands `graft` and `extend` on real files, through the real command line where that matters."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.families import PUBLISHED
from tests.support.fixtures import Fixtures
from tests.support.runs import program
from tools.random_bases import make_random_base
from voxgraft.checkpoints import open_checkpoint
from voxgraft.config.commands import ExtendSettings, GraftSettings
from voxgraft.config.run import RowSettings, TokenizerSettings
from voxgraft.core.errors import CheckpointError, ConfigError, GraftError, TokenizerError, VoxgraftError
from voxgraft.core.files import compute_sha256
from voxgraft.graft.command import extend, graft
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles
from voxgraft.tokenizers import open_tokenizer

AMHARIC = Path(str(resources.files("voxgraft").joinpath("assets/demo/am.txt")))


def run_cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "voxgraft", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def bases(fixtures: Fixtures) -> dict[str, BaseFiles]:
    return {name: fixtures.base(name) for name in PUBLISHED}


@pytest.fixture(scope="module")
def grafts(bases: dict[str, BaseFiles], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name in PUBLISHED:
        result = graft(settings(bases[name], folder / name))
        assert result.exit_code == 0
    return {name: folder / name / "graft" for name in PUBLISHED}


def settings(base: BaseFiles, run: Path, language: str = "am", texts: tuple[Path, ...] = (AMHARIC,)) -> GraftSettings:
    return GraftSettings(run=run, base=base.folder, language=language, texts=texts)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_graft_has_a_row_for_every_new_piece_in_every_text_table(name: str, grafts: dict[str, Path]) -> None:
    made = load_graft(grafts[name])
    assert made.tokenizer.size == made.card.base_pieces + made.card.num_rows
    assert set(made.rows) == {point.tensor for point in get_family(name).graft_points}
    assert all(len(rows) == made.card.num_rows and np.isfinite(rows).all() for rows in made.rows.values())
    assert made.card.licence == get_family(name).licence
    assert made.card.licence in (grafts[name] / "README.md").read_text(encoding="utf-8")
    assert made.card.proof["changed"] == 0


@pytest.mark.long(fast="chatterbox")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_base_is_never_written_to(name: str, bases: dict[str, BaseFiles], tmp_path: Path) -> None:
    def state() -> dict[Path, tuple[str, int]]:
        paths = (path for path in bases[name].folder.rglob("*") if path.is_file())
        return {path: (compute_sha256(path), path.stat().st_mtime_ns) for path in paths}

    before = state()
    graft(settings(bases[name], tmp_path / "run"))
    assert before == state()


@pytest.mark.long(fast="chatterbox")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_same_run_gives_the_same_bytes(
    name: str, bases: dict[str, BaseFiles], grafts: dict[str, Path], tmp_path: Path
) -> None:
    again = graft(settings(bases[name], tmp_path / "again"))
    assert again.folder is not None
    for path in grafts[name].iterdir():
        assert path.read_bytes() == (again.folder / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", PUBLISHED)
def test_extend_keeps_every_old_bit_and_puts_the_graft_rows_in_place(
    name: str, bases: dict[str, BaseFiles], grafts: dict[str, Path], tmp_path: Path
) -> None:
    base, made = bases[name], load_graft(grafts[name])
    output = tmp_path / f"grown{base.checkpoint.suffix}"
    hash_before = compute_sha256(base.checkpoint)
    extend(ExtendSettings(checkpoint=base.checkpoint, tokenizer=made.folder / made.card.tokenizer, output=output))
    assert compute_sha256(base.checkpoint) == hash_before
    old, new = load(base.checkpoint), load(output)
    assert list(old) == list(new)
    pieces, spare = made.card.base_pieces, get_family(name).spare_rows
    for tensor, values in old.items():
        if tensor in made.rows:
            assert torch.equal(new[tensor][:pieces], values[:pieces])
            assert torch.equal(new[tensor][len(new[tensor]) - spare :], values[len(values) - spare :])
            added = new[tensor][pieces : len(new[tensor]) - spare]
            assert np.array_equal(added.numpy(), made.rows[tensor])
            assert spare == 0 or not (added == values[pieces]).reshape(len(added), -1).all(dim=1).any()
        else:
            assert torch.equal(new[tensor], values)


def load(path: Path) -> dict[str, torch.Tensor]:
    """Through the stock readers, not ours."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    loaded: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    loaded = loaded.get("model", loaded)  # type: ignore[assignment]
    return loaded


def test_a_language_that_the_base_can_spell_gets_a_graft_without_rows(
    bases: dict[str, BaseFiles], tmp_path: Path
) -> None:
    text = tmp_path / "sw.txt"
    text.write_text("Habari ya dunia.\nWatu wote wamezaliwa huru.\n", encoding="utf-8")
    base = bases["indextts2"]
    result = graft(settings(base, tmp_path / "run", "sw", (text,)))
    assert result.exit_code == 0
    made = load_graft(tmp_path / "run" / "graft")
    assert made.card.num_rows == 0
    assert all(len(rows) == 0 for rows in made.rows.values())
    output = tmp_path / "same.pth"
    extend(ExtendSettings(checkpoint=base.checkpoint, tokenizer=made.folder / made.card.tokenizer, output=output))
    with open_checkpoint(base.checkpoint) as old, open_checkpoint(output) as new:
        assert [info.shape for info in old.tensors.values()] == [info.shape for info in new.tensors.values()]


def test_a_ready_made_tokenizer_is_proven_and_its_hash_printed(
    bases: dict[str, BaseFiles], grafts: dict[str, Path], tmp_path: Path
) -> None:
    ready = next(grafts["chatterbox"].glob("tokenizer.*"))
    chosen = settings(bases["chatterbox"], tmp_path / "run").model_copy(
        update={"tokenizer": TokenizerSettings(file=ready), "texts": ()}
    )
    result = graft(chosen)
    assert result.exit_code == 0
    assert compute_sha256(ready) == result.sha256
    assert any(result.sha256 in line for line in result.lines() if isinstance(line, str))
    assert (tmp_path / "run/graft/tokenizer.json").read_bytes() == ready.read_bytes()


def test_a_ready_made_tokenizer_that_breaks_the_promise_leaves_nothing_behind(
    bases: dict[str, BaseFiles], tmp_path: Path
) -> None:
    """One merge of plain letters, put in front, is enough to spell English otherwise."""
    document = json.loads(bases["chatterbox"].tokenizer.read_text(encoding="utf-8"))
    first = document["model"]["merges"][0]
    joined = "".join(first if isinstance(first, list) else first.split(" "))
    document["model"]["vocab"]["zq"] = len(document["model"]["vocab"])
    document["model"]["vocab"][joined + "e"] = len(document["model"]["vocab"])
    pair = [joined, "e"]
    document["model"]["merges"].append(pair if isinstance(first, list) else " ".join(pair))
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document), encoding="utf-8")
    chosen = settings(bases["chatterbox"], tmp_path / "run").model_copy(
        update={"tokenizer": TokenizerSettings(file=broken)}
    )
    result = graft(chosen)
    assert result.exit_code == 1
    assert "proof-changed" in {item.code for item in result.proof.findings}
    assert result.proof.first_change is not None
    assert not (tmp_path / "run" / "graft").exists()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda folder: (folder / "rows.safetensors").write_bytes(b""), "file-empty"),
        (lambda folder: (folder / "graft.json").write_text("{}"), "graft-broken"),
        (lambda folder: flip(folder / "rows.safetensors", -1), "graft-mismatch"),
        (lambda folder: shrink_tokenizer(folder / "tokenizer.json"), "graft-mismatch"),
    ],
)
def test_a_graft_whose_parts_do_not_belong_together_is_refused(
    damage: Callable[[Path], object], code: str, grafts: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "graft"
    copy.mkdir()
    for path in grafts["chatterbox"].iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    load_graft(copy)
    damage(copy)
    with pytest.raises(VoxgraftError) as error:
        load_graft(copy)
    assert error.value.code == code


@pytest.mark.parametrize("key", ["licence", "versions", "proof", "method", "text"])
def test_a_card_that_was_changed_after_it_was_written_is_refused(
    key: str, grafts: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "graft"
    shutil.copytree(grafts["chatterbox"], copy)
    path = copy / "graft.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    changed = "another" if isinstance(card[key], str) else {**(card[key] or {}), "more": 1}
    path.write_text(json.dumps({**card, key: changed}), encoding="utf-8")
    with pytest.raises(VoxgraftError) as error:
        load_graft(copy)
    assert error.value.code in ("graft-broken", "text-rules")
    assert key == "text" or "was changed after it was written" in error.value.finding.found
    del card["card_sha256"]
    path.write_text(json.dumps(card), encoding="utf-8")
    assert load_graft(copy).card.licence == card["licence"], "grafts from before have no sum, and open as they did"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def shrink_tokenizer(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    last = max(document["model"]["vocab"], key=document["model"]["vocab"].__getitem__)
    del document["model"]["vocab"][last]
    document["model"]["merges"].pop()
    path.write_text(json.dumps(document), encoding="utf-8")


def test_extend_refuses_a_tokenizer_that_is_not_the_base_grown(
    bases: dict[str, BaseFiles], grafts: dict[str, Path], tmp_path: Path
) -> None:
    wrong = next(grafts["indextts2"].glob("tokenizer.*"))
    output = tmp_path / "out.safetensors"
    with pytest.raises(TokenizerError) as error:
        extend(ExtendSettings(checkpoint=bases["chatterbox"].checkpoint, tokenizer=wrong, output=output))
    assert error.value.code == "tokenizer-kind"
    assert list(tmp_path.iterdir()) == []


def test_extend_refuses_a_checkpoint_that_was_grown_already(
    bases: dict[str, BaseFiles], grafts: dict[str, Path], tmp_path: Path
) -> None:
    base = bases["indextts2"]
    grown_tokenizer = next(grafts["indextts2"].glob("tokenizer.*"))
    once = tmp_path / "once.pth"
    extend(ExtendSettings(checkpoint=base.checkpoint, tokenizer=grown_tokenizer, output=once))
    with pytest.raises(CheckpointError) as error:
        extend(
            ExtendSettings(
                checkpoint=once, tokenizer=grown_tokenizer, base_tokenizer=base.tokenizer, output=tmp_path / "twice.pth"
            )
        )
    assert error.value.code == "rows-vs-tokenizer"
    assert not (tmp_path / "twice.pth").exists()


@pytest.mark.long
def test_extend_killed_half_way_leaves_no_output(tmp_path: Path) -> None:
    """A real process, really killed, while it writes."""
    base = make_random_base("indextts2", tmp_path / "base", size="small")
    text = tmp_path / "text.txt"
    text.write_text("ሰላም ለዓለም።\n" * 3, encoding="utf-8")
    result = graft(
        GraftSettings(
            run=tmp_path / "run", base=base.folder, language="am", texts=(text,), rows=RowSettings(init="mean")
        )
    )
    assert result.folder is not None
    folder = tmp_path / "out"
    folder.mkdir()
    output = folder / "grown.pth"
    words = ["extend", str(base.checkpoint), "--rows.init", "mean"]
    words += ["--tokenizer", str(result.folder / "tokenizer.model"), "--output", str(output)]
    killed = 0
    for wait_seconds in (0.0, 0.002, 0.005, 0.01, 0.02):
        process = program(words, tmp_path / "program")
        while process.is_running() and not list(folder.iterdir()):
            time.sleep(0.0005)
        time.sleep(wait_seconds)
        process.kill()
        killed += process.ended().returncode == -signal.SIGKILL
        if output.exists():  # it was quicker than we: then it must be whole
            with open_checkpoint(output) as checkpoint:
                assert checkpoint.tensors
            output.unlink()
        for part in folder.iterdir():
            part.unlink()
    assert killed


@pytest.mark.parametrize("missing", ["base", "language", "texts"])
def test_a_run_without_a_needed_setting_says_which(missing: str, bases: dict[str, BaseFiles], tmp_path: Path) -> None:
    chosen = settings(bases["chatterbox"], tmp_path / "run").model_copy(
        update={missing: () if missing == "texts" else None}
    )
    with pytest.raises(ConfigError) as error:
        graft(chosen)
    assert error.value.code == "config-missing"
    assert missing in error.value.finding.found


def test_bad_input_ends_with_exit_code_2_one_message_and_no_traceback(
    bases: dict[str, BaseFiles], tmp_path: Path
) -> None:
    text = tmp_path / "latin1.txt"
    text.write_bytes("déjà vu\n".encode("latin-1"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.yaml").write_text(f"base: {bases['chatterbox'].folder}\nlanguage: am\ntexts: [{text}]\n")
    done = run_cli("graft", run)
    assert done.returncode == 2
    assert "text-not-utf8" in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert [path.name for path in run.iterdir()] == ["run.yaml"]


def test_a_sentence_on_the_command_line_that_is_no_text_is_bad_input(bases: dict[str, BaseFiles]) -> None:
    done = run_cli("tokenizer", "show", os.fsdecode(b"a\xff"), "--base", bases["chatterbox"].folder)
    assert done.returncode == 2
    assert "text-not-utf8" in done.stderr


def test_an_output_that_is_there_is_refused_before_any_work(bases: dict[str, BaseFiles], tmp_path: Path) -> None:
    output = tmp_path / "additions.json"
    output.write_text("mine")
    missing = tmp_path / "missing.txt"
    done = run_cli(
        *("tokenizer", "train", "--base", bases["chatterbox"].folder, "--language", "am"),
        *("--texts", missing, "--output", output),
    )
    assert "file-exists" in done.stderr
    assert output.read_text() == "mine"


@pytest.mark.long
def test_additions_with_a_tag_that_is_not_the_languages_are_refused(
    bases: dict[str, BaseFiles], tmp_path: Path
) -> None:
    base, additions = bases["chatterbox"].folder, tmp_path / "additions.json"
    done = run_cli("tokenizer", "train", "--base", base, "--language", "am", "--texts", AMHARIC, "--output", additions)
    assert done.returncode == 0, done.stderr
    document = json.loads(additions.read_text(encoding="utf-8"))
    additions.write_text(json.dumps({**document, "tag": "the"}), encoding="utf-8")
    done = run_cli("tokenizer", "merge", "--base", base, "--additions", additions, "--output", tmp_path / "grown.json")
    assert (done.returncode, "additions-broken" in done.stderr) == (2, True)
    assert not (tmp_path / "grown.json").exists()


def test_a_graft_made_on_another_base_is_named(bases: dict[str, BaseFiles], grafts: dict[str, Path]) -> None:
    made = load_graft(grafts["chatterbox"])
    assert made.card.base["tokenizer_sha256"] == open_tokenizer(bases["chatterbox"].tokenizer).sha256
    assert made.card.base["checkpoint_sha256"] == compute_sha256(bases["chatterbox"].checkpoint)


def test_an_empty_folder_is_no_graft(tmp_path: Path) -> None:
    with pytest.raises(VoxgraftError) as error:
        load_graft(tmp_path)
    assert error.value.code == "graft-broken"
    (tmp_path / "graft.json").write_text('{"format": "something else"}')
    with pytest.raises(GraftError):
        load_graft(tmp_path)


def test_texts_of_another_language_are_refused_before_anything_is_learnt(
    bases: dict[str, BaseFiles], tmp_path: Path
) -> None:
    with pytest.raises(VoxgraftError) as error:
        graft(settings(bases["chatterbox"], tmp_path / "run", "km"))
    assert error.value.code == "text-other-script"
    assert "Ethiopic" in error.value.finding.found
    assert not (tmp_path / "run").exists()


def test_extend_refuses_a_name_that_promises_another_format(
    bases: dict[str, BaseFiles], grafts: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = next(grafts["chatterbox"].glob("tokenizer.*"))
    with pytest.raises(CheckpointError) as error:
        extend(
            ExtendSettings(checkpoint=bases["chatterbox"].checkpoint, tokenizer=tokenizer, output=tmp_path / "x.pth")
        )
    assert error.value.code == "output-suffix"
    assert list(tmp_path.iterdir()) == []


def test_a_few_stray_letters_are_no_reason_to_grow_a_table(bases: dict[str, BaseFiles], tmp_path: Path) -> None:
    text = tmp_path / "sw.txt"
    lines = [f"Watu wote wamezaliwa huru na sawa, mtu {word}." for word in ("wa kwanza", "wa pili", "wa tatu") * 60]
    lines = [f"{line} {'na' * (at % 7)} {'ku' * (at // 7)}" for at, line in enumerate(lines)]
    text.write_text("\n".join([*lines, "Erdoğan alisema."]) + "\n", encoding="utf-8")
    result = graft(settings(bases["indextts2"], tmp_path / "run", "sw", (text,)))
    assert result.exit_code == 0
    assert result.counts.new_pieces == 0
    assert "proof-unknown-symbols" in {item.code for item in result.proof.findings}
