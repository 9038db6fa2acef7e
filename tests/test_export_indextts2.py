"""An exported IndexTTS-2 folder, held against golden list, base and graft by a reader that is not ours."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.interop.indextts2_export import CHECKPOINT, faults_of, opened
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun
from tests.support.shared import shared
from voxgraft.config.commands import ExportSettings
from voxgraft.export.command import export
from voxgraft.models.indextts2.shapes import UnifiedVoiceSize, unified_voice_shapes


@pytest.fixture(scope="module")
def run(fixtures: Fixtures) -> WholeRun:
    return fixtures.trained_run("indextts2")


@pytest.fixture(scope="module")
def folder(run: WholeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("export") / "indextts2"
    export(ExportSettings(model=run.path, to="indextts2", output=output))
    return output


def golden(key: str) -> dict[str, list[int]]:
    document = json.loads(shared("golden/indextts2/names.json").read_text(encoding="utf-8"))
    return dict(document[key])


def test_every_name_and_bit_of_both_folders_is_the_golden_ones_the_bases_or_the_grafts(
    run: WholeRun, folder: Path
) -> None:
    names = golden("unified_voice_tiny")
    assert faults_of(folder, run.base, run.folder.graft, names) == []


def test_the_published_size_has_the_665_names_and_shapes_of_the_golden_list() -> None:
    ours = {name: list(shape) for name, shape in unified_voice_shapes(UnifiedVoiceSize()).items()}
    assert ours == golden("unified_voice_full")
    assert len(ours) == 665


FAULTS = ["a base row", "the spare row", "a name", "a shape"]


@pytest.mark.parametrize(("part", "fault"), [("extended", "a bit"), *product(("extended", "merged"), FAULTS)])
def test_the_check_sees_every_kind_of_fault(part: str, fault: str, run: WholeRun, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / part / CHECKPOINT
    state = {name: tensor.clone() for name, tensor in opened(path).items()}
    names = list(state)
    if fault == "a bit":
        state["mel_head.bias"].view(torch.int32)[3] ^= 1
    elif fault == "a base row":
        state["text_head.weight"][5, 0] *= 1.001
    elif fault == "the spare row":
        state["text_embedding.weight"][-1] = state["text_embedding.weight"][-2]
    elif fault == "a name":
        state["gpt.wte.weight"] = torch.zeros(2, 2)
    else:
        state["mel_head.bias"] = state["mel_head.bias"][:-1]
    path.unlink()
    torch.save(state, path)
    assert faults_of(tmp_path / "copy", run.base, run.folder.graft, names)
