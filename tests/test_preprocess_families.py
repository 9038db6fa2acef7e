"""Human speech through `prepare` with every family's front end: nine clips of Amharic, looked at one by one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import save_file

from tests.support.fixtures import Fixtures
from tests.support.preprocess_runs import preparing, resolved, sentences
from tests.support.shared import shared
from voxgraft.data.manifest import ManifestClip, write_manifest
from voxgraft.dataset.sets import check_clip_dataset, open_clip_dataset
from voxgraft.models import get_family
from voxgraft.preprocess.command import PrepareResult, prepare

FEW = 2
"""Of the shortest, where every clip costs a second."""


def manifest_of(paths: list[Path], folder: Path) -> Path:
    """As an import writes it; texts where nobody has written one down are another's, since only the sound is looked at."""
    said = {
        entry["audio"]: entry["text"]
        for entry in map(json.loads, shared("real/amharic/clips.jsonl").read_text("utf-8").splitlines())
    }
    others = sentences(len(paths))
    clips = []
    for number, path in enumerate(paths):
        sound = soundfile.info(path)
        text = said.get(path.name, others[number])
        split: Any = "validation" if number % 3 == 1 else "train"
        clips.append(
            ManifestClip(path.stem, str(path), sound.duration, text, "am", path.stem, path.stem, 16_000, split=split)
        )
    write_manifest(folder / "manifest.jsonl", clips)
    return folder / "manifest.jsonl"


def prepared(run: Path, base: Path, paths: list[Path], folder: Path) -> PrepareResult:
    manifest = manifest_of(paths, folder)
    shutil.rmtree(run / "data", ignore_errors=True)
    words = ["prepare", str(run), "--base", str(base), "--manifest", str(manifest), "--workers=1"]
    return prepare(resolved(words))


def human_clips() -> list[Path]:
    return sorted(shared("real/amharic").glob("*.wav"), key=lambda path: (path.stat().st_size, path.name))


@pytest.mark.long(fast="tiny")
@pytest.mark.parametrize("name", ["tiny", "chatterbox"])
def test_nine_human_clips_become_codes_that_can_be_learnt_from(name: str, fixtures: Fixtures, tmp_path: Path) -> None:
    if name == "tiny":
        run, base = preparing(fixtures, tmp_path / "place").run.path, get_family(name).shipped_folder() or Path()
    else:
        made = fixtures.whole_run(name)
        run, base = made.copied(tmp_path / "run").path, made.base
    paths = human_clips()
    result = prepared(run, base, paths, tmp_path)
    assert (result.num_encoded, dict(result.left_out)) == (9, {})
    assert_sound(result, name, paths)


@pytest.mark.long
def test_human_clips_become_codes_latents_and_emotions_of_indextts2(fixtures: Fixtures, tmp_path: Path) -> None:
    made = fixtures.whole_run("indextts2")
    base = fixtures.folder("bases-w2v/indextts2", lambda at: base_with_features(made.base, at))
    paths = human_clips()[:FEW]
    result = prepared(made.copied(tmp_path / "run").path, base, paths, tmp_path)
    assert (result.num_encoded, dict(result.left_out)) == (FEW, {})
    assert_sound(result, "indextts2", paths)
    for one in result.sets:
        voice = one.clips.voice(0)
        assert voice["latents"].shape == (32, 64)
        assert voice["emotion"].shape == (64,)


def assert_sound(result: PrepareResult, name: str, paths: list[Path]) -> None:
    """Every clip: as many codes as it is long, more than a hum, and nothing that `train` would refuse."""
    own = get_family(name)
    seen = {}
    for one in result.sets:
        clips = open_clip_dataset(result.run / "data" / one.name, verify="hashes")
        for place, info in enumerate(clips.infos):
            codes = clips.codes(place)
            seen[info.id] = info.seconds
            assert abs(len(codes) - info.seconds * own.code_hz) <= 3
            assert len(set(codes.tolist())) > 3
            for array_name, array in clips.voice(place).items():
                assert np.isfinite(array).all(), array_name
        spec = own.sequence_spec(10**6)
        # Random weights hum, and the end of a recording is silence: only true faults count here.
        assert {item.code for item in check_clip_dataset(clips, spec, own.code_hz)} <= {"clips-trailing-run"}
    assert seen == {path.stem: pytest.approx(soundfile.info(path).duration, abs=1e-3) for path in paths}


def base_with_features(base: Path, folder: Path) -> None:
    """A random base with a random w2v-bert beside it, as wide as the published one and as thin as it may be inside."""
    transformers = pytest.importorskip("transformers", reason="NOT TESTED: transformers is not installed")
    shutil.copytree(base, folder)
    config = transformers.Wav2Vec2BertConfig(hidden_size=1024, num_hidden_layers=17, intermediate_size=64)
    with torch.device("meta"):
        network = transformers.Wav2Vec2BertModel(config)
    draw = torch.Generator().manual_seed(0)
    some = torch.randn(1 << 16, generator=draw) / 32
    state = {}
    for name, tensor in network.state_dict().items():
        if tensor.dim() < 2:
            state[name] = torch.ones(tensor.shape) if name.endswith("weight") else torch.zeros(tensor.shape)
        else:
            state[name] = some.repeat(-(-tensor.numel() // len(some)))[: tensor.numel()].reshape(tensor.shape).half()
    place = folder / "w2v-bert-2.0"
    place.mkdir()
    save_file(state, place / "model.safetensors")
    (place / "config.json").write_text(config.to_json_string(), encoding="utf-8")
