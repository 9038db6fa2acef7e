"""`check BASE --speak`: whole folders speak, and each way in which a folder can be wrong is on the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support import s3gen
from tests.support.checkpoint_files import saved
from tests.support.indextts2 import write_waveform_end
from tests.test_s3gen import write_conditions
from tools.random_bases import make_random_base
from voxgraft.cli.app import run_cli
from voxgraft.config.commands import CheckSettings
from voxgraft.inspect.first_contact import FirstContact, check_first_contact, choose_sentences
from voxgraft.models.chatterbox.encoder import SpeechTokenizer
from voxgraft.models.chatterbox.family import Chatterbox

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def chatterbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small base with all files that are published for Chatterbox."""
    base = tmp_path_factory.mktemp("published") / "chatterbox"
    make_random_base("chatterbox", base, size="tiny", seed=0)
    state = s3gen.published_state(s3gen.random_model(), SpeechTokenizer.load(base))
    saved(state, base / "s3gen.pt")
    write_conditions(base / "conds.pt")
    return base


@pytest.fixture(scope="module")
def indextts2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small base of IndexTTS-2 without w2v-bert, whose size does not shrink."""
    base = tmp_path_factory.mktemp("published") / "indextts2"
    make_random_base("indextts2", base, size="tiny", seed=0)
    write_waveform_end(base, 64)
    return base


def looked_at(base: Path, **settings: object) -> FirstContact:
    given = {"train": {"device": "cpu"}, "recognizer": "none", **settings}
    return check_first_contact(CheckSettings.model_validate({"run": base, "speak": True, **given}), max_seconds=0.4)


def codes_of(page: FirstContact, level: str = "error") -> list[str]:
    return sorted({item.code for item in page.findings if item.level == level})


def results_of(page: FirstContact) -> dict[str, str]:
    return {one["file"]: one["result"] for one in page.files}


def test_a_whole_folder_speaks_in_three_languages_and_fits_on_one_page(chatterbox: Path) -> None:
    page = looked_at(chatterbox)
    assert codes_of(page) == ["base-other-size"]  # small, and said to be so; everything else is as published
    assert results_of(page) == {
        "t3_mtl23ls_v2.safetensors": "differs",
        "ve.pt": "as published",
        "s3gen.pt": "differs",
        "conds.pt": "as published",
    }
    assert [one["language"] for one in page.speech] == ["en", "fr", "zh"]
    assert all("10 codes" in one["sound"] and float(one["peak"]) > 0.01 for one in page.speech)
    assert page.base["voice"] == "built-in"
    assert "voxgraft companion chatterbox" in page.original["original program"]
    text = json.dumps(page.to_json(), ensure_ascii=False)
    assert str(chatterbox.parent) not in text  # no path of the user's machine
    assert "width is 64, not 1024" in text


def test_the_command_takes_the_base_in_the_place_of_a_run(
    chatterbox: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = shutil.copytree(chatterbox, tmp_path / "base")
    (base / "ve.pt").unlink()
    assert run_cli(["check", str(base), "--speak"]) == 1
    shown = capsys.readouterr().out
    assert "ve.pt" in shown
    assert "not tried" in shown
    assert run_cli(["check", str(base)]) == 2  # without --speak it is a run that is meant
    assert run_cli(["check", "--speak"]) == 2


def test_sentences_are_short_and_of_the_bases_own_languages() -> None:
    assert [code for code, _ in choose_sentences(Chatterbox.languages)] == ["en", "fr", "zh"]
    assert [code for code, _ in choose_sentences(["zh", "en"])] == ["en", "zh"]
    assert [code for code, _ in choose_sentences(["sw", "he", "ko", "da"])] == ["sw", "he", "ko"]
    assert all(len(text) < 60 for _, text in choose_sentences(Chatterbox.languages))


def tensors(path: Path) -> dict[str, Tensor]:
    loaded: dict[str, Tensor] = torch.load(path, weights_only=True)
    return loaded


def changed_s3gen(change: Callable[[dict[str, Tensor]], object]) -> Change:
    def act(base: Path) -> None:
        state = tensors(base / "s3gen.pt")
        change(state)
        saved(state, base / "s3gen.pt")

    return act


def cut_in_half(name: str) -> Change:
    return lambda base: (base / name).write_bytes((base / name).read_bytes()[: (base / name).stat().st_size // 2])


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1000\n"
NORM = "flow.encoder.after_norm.weight"
WRONG_CHATTERBOX: dict[str, tuple[Change, str, str]] = {
    "a missing file": (lambda base: (base / "ve.pt").unlink(), "base-file-missing", "ve.pt (voice encoder"),
    "no vocoder": (lambda base: (base / "s3gen.pt").unlink(), "base-file-missing", "s3gen.pt (S3Gen"),
    "a missing tensor": (changed_s3gen(lambda state: state.pop(NORM)), "tensors-mismatch", f"{NORM} [512] is missing"),
    "an unknown tensor": (
        changed_s3gen(lambda state: state.update({"flow.extra": torch.zeros(3)})),
        "tensors-mismatch",
        "flow.extra [3] is not part of it",
    ),
    "another shape": (
        changed_s3gen(lambda state: state.update({NORM: torch.zeros(513)})),
        "tensors-mismatch",
        f"{NORM} is [513], not [512]",
    ),
    "whole numbers": (
        changed_s3gen(lambda state: state.update({NORM: state[NORM].long()})),
        "tensors-mismatch",
        f"tensors with integers instead of floating-point numbers: 1, for example {NORM}",
    ),
    "half a file": (cut_in_half("s3gen.pt"), "checkpoint-", "s3gen.pt"),
    "a pointer of git-lfs": (lambda base: (base / "ve.pt").write_text(POINTER), "checkpoint-lfs", "ve.pt"),
    "a web page": (lambda base: (base / "ve.pt").write_text("<!doctype html><html>"), "checkpoint-page", "ve.pt"),
    "another's file": (
        lambda base: shutil.copy(base / "s3gen.pt", base / "ve.pt"),
        "tensors-mismatch",
        "voice encoder",
    ),
    "a broken voice": (
        lambda base: torch.save({"t3": {}, "gen": {}}, base / "conds.pt"),
        "",
        "conds.pt",
    ),
    "a language model without a layer": (
        lambda base: save_file(
            {
                name: value
                for name, value in load_file(base / "t3_mtl23ls_v2.safetensors").items()
                if name != "tfmr.layers.0.mlp.up_proj.weight"
            },
            base / "t3_mtl23ls_v2.safetensors",
        ),
        "tensors-mismatch",
        "tfmr.layers.0.mlp.up_proj.weight [256, 64] is missing",
    ),
}


@pytest.mark.long
def test_another_number_format_is_reported_of_and_speaks(chatterbox: Path, tmp_path: Path) -> None:
    base = shutil.copytree(chatterbox, tmp_path / "base")
    path = base / "t3_mtl23ls_v2.safetensors"
    save_file({name: value.half() for name, value in load_file(path).items()}, path)
    page = looked_at(base)
    assert "base-other-format" in codes_of(page, "warning")
    assert len(page.speech) == 3
    whole_numbers = {name: value.long() for name, value in load_file(path).items()}
    save_file(whole_numbers, path)
    page = looked_at(base)
    assert not page.speech
    assert "tensors-mismatch" in codes_of(page)


WRONG_INDEXTTS2: dict[str, tuple[Change, str, str]] = {
    "no s2mel": (lambda base: (base / "s2mel.pth").unlink(), "base-file-missing", "s2mel.pth"),
    "no codec": (lambda base: shutil.rmtree(base / "semantic_codec"), "base-file-missing", "semantic_codec/"),
    "half of s2mel": (cut_in_half("s2mel.pth"), "checkpoint-", "s2mel.pth"),
    "statistics of another width": (
        lambda base: saved({"mean": torch.zeros(8), "var": torch.ones(8)}, base / "wav2vec2bert_stats.pt"),
        "tensors-mismatch",
        "mean is [8], not [1024]",
    ),
    "heads that do not divide": (
        lambda base: (base / "config.yaml").write_text(
            (base / "config.yaml").read_text().replace("num_heads: 2", "num_heads: 5")
        ),
        "base-config",
        "s2mel is 32 wide and has 5 heads",
    ),
    "emotion vectors of another number": (
        lambda base: saved(torch.zeros(70, 192), base / "feat1.pt"),
        "tensors-mismatch",
        "feat1.pt has shape [70, 192]",
    ),
}


WRONG = {"chatterbox": WRONG_CHATTERBOX, "indextts2": WRONG_INDEXTTS2}


@pytest.mark.long(fast=("*a broken voice", "*emotion vectors of another number"))
@pytest.mark.parametrize(("family", "way"), [(family, way) for family, ways in WRONG.items() for way in ways])
def test_each_way_in_which_a_folder_is_wrong_is_on_the_page(
    request: pytest.FixtureRequest, tmp_path: Path, family: str, way: str
) -> None:
    act, code, named = WRONG[family][way]
    base = shutil.copytree(request.getfixturevalue(family), tmp_path / "base")
    act(base)
    page = looked_at(base)
    wrong = [item for item in page.findings if item.level == "error" and item.code != "base-other-size"]
    # w2v-bert is missing in every small base of IndexTTS-2.
    others = [item for item in wrong if "w2v-bert" not in item.found]
    assert len(wrong) - len(others) == (family == "indextts2")
    assert len(others) == 1
    assert others[0].code.startswith(code)
    assert named in f"{others[0].found} {others[0].where}"
    assert "not tried" in page.original["speech"]
    assert page.exit_code == 1
    assert not page.speech


def test_the_files_of_indextts2_are_all_listed(indextts2: Path) -> None:
    found = results_of(looked_at(indextts2))
    assert found.pop("w2v-bert-2.0/model.safetensors") == "missing"
    assert found.pop("wav2vec2bert_stats.pt") == found.pop("feat1.pt") == "as published"
    assert set(found.values()) == {"differs"}  # whole, and small
    assert len(found) == 6


def test_the_page_names_no_folder_above_the_base_or_the_voice(tmp_path: Path) -> None:
    voice = tmp_path / "home of a user" / "voice.wav"
    voice.parent.mkdir()
    page = looked_at(Path("tiny"), voice=voice)
    text = "\n".join(line for item in page.findings for line in item.lines())
    assert codes_of(page)
    assert "voice.wav" in text
    assert "home of a user" not in text
    assert str(tmp_path) not in text
    assert "site-packages" not in text


def test_an_emotion_file_is_not_blamed_for_the_absence_of_the_other(indextts2: Path, tmp_path: Path) -> None:
    base = shutil.copytree(indextts2, tmp_path / "base")
    (base / "feat2.pt").unlink(missing_ok=True)
    page = looked_at(base)
    assert results_of(page).get("feat2.pt") == "absent (optional)"
    assert results_of(page).get("feat1.pt") == "as published"
    assert not any("feat1" in item.found or "feat2" in item.found for item in page.findings)
