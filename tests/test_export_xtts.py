"""An exported XTTS folder: plain files that coqui-tts takes, with the base's rows and one language more."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interop.xtts_export import list_faults
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun
from voxgraft.companions.environments import find_environment
from voxgraft.config.commands import ExportSettings
from voxgraft.core.errors import ConfigError
from voxgraft.export.command import export
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles
from voxgraft.models.xtts.upstream import build_config_text

PARTS = ("extended", "merged")


@pytest.fixture(scope="module")
def run(fixtures: Fixtures) -> WholeRun:
    return fixtures.whole_run("xtts")


@pytest.fixture(scope="module")
def folder(run: WholeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("export") / "xtts"
    export(ExportSettings(model=run.path, to="xtts", output=output, accept_terms=True))
    return output


def read(path: Path) -> Any:
    return torch.load(path, weights_only=True)  # plain dictionaries and tensors, no objects of settings


def test_checkpoints_hold_the_bases_rows_then_the_grafts_under_the_key_model(run: WholeRun, folder: Path) -> None:
    family, graft = get_family("xtts"), load_graft(run.folder.graft)
    base = read(family.files(run.base).checkpoint)["model"]
    for part in PARTS:
        saved = read(folder / part / "model.pth")
        assert set(saved) == {"model"}
        state = saved["model"]
        assert list(state) == list(base) if part == "extended" else state.keys() == base.keys()
        for name, rows in graft.rows.items():
            assert torch.equal(state[name][: len(base[name])], base[name])
            assert torch.equal(state[name][len(base[name]) :], torch.from_numpy(rows).to(base[name]))
        tables = set(graft.rows)
        if part == "extended":
            assert all(torch.equal(state[name], base[name]) for name in base.keys() - tables)


def test_config_states_the_rows_and_the_new_language_and_nothing_else_changes(run: WholeRun, folder: Path) -> None:
    files, pieces = get_family("xtts").files(run.base), load_graft(run.folder.graft).tokenizer.size
    assert files.config is not None
    before = json.loads(files.config.read_text(encoding="utf-8"))
    for part in PARTS:
        now = json.loads((folder / part / "config.json").read_text(encoding="utf-8"))
        assert now.pop("languages") == [*before["languages"], "am"]
        assert now["model_args"].pop("gpt_number_text_tokens") == pieces
        expected = {**before, "model_args": dict(before["model_args"])}
        del expected["languages"], expected["model_args"]["gpt_number_text_tokens"]
        assert now == expected
        assert math.isinf(now["max_audio_len"])


@pytest.mark.parametrize(("text", "word"), [('{"model_args": 3}', "model_args"), ('{"languages": "en"}', "languages")])
def test_a_config_that_cannot_be_extended_is_refused(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        build_config_text(BaseFiles(tmp_path, tmp_path / "model.pth", tmp_path / "vocab.json", path), 700, "am")
    assert error.value.code == "base-config"
    assert word in error.value.finding.found


def test_a_region_is_not_listed_and_a_listed_language_stays_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"languages": ["en"]}', encoding="utf-8")
    files = BaseFiles(tmp_path, tmp_path / "model.pth", tmp_path / "vocab.json", path)
    assert json.loads(build_config_text(files, 700, "am-ET"))["languages"] == ["en", "am"]
    assert json.loads(build_config_text(files, 700, "en"))["languages"] == ["en"]


def test_text_for_load_py_is_normalised_and_keeps_its_spans(folder: Path) -> None:
    program = "from voxgraft_text import prepared; import sys; print(*map(prepared, sys.argv[1:]), sep='\\n')"
    texts = ["በ12 ቀን [en]No. 5[/en] ነው።", "12 ቀን"]
    done = subprocess.run(
        [sys.executable, "-c", program, *texts], cwd=folder, capture_output=True, text=True, check=True
    )
    with_span, plain = done.stdout.splitlines()
    assert "[en]No. 5[/en]" in with_span
    assert "12" not in with_span + plain
    compile((folder / "load.py").read_text(encoding="utf-8"), "load.py", "exec")


@pytest.mark.long
def test_the_original_package_reads_and_computes_as_voxgraft_does(tmp_path: Path) -> None:
    environment = find_environment("xtts")
    if environment is None:
        pytest.skip("NOT TESTED: no companion (voxgraft companion xtts)")
    assert list_faults(environment, "small", tmp_path) == []
