"""The whole way by the commands of docs/tutorial.md alone: a folder of talks with subtitles becomes a voice."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.docs import blocks, commands
from tests.support.preprocess_runs import sentences
from voxgraft.cli import run_cli
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import read_manifest
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.demo.data import write_talks
from voxgraft.graft.folder import load_graft
from voxgraft.text.normalize import build_normalizer
from voxgraft.tokenizers import read_texts

TALKS, UTTERANCES = 6, 4
BRIEF = ["--train.steps=4", "--train.warmup-steps=1", "--train.batch-tokens=400", "--train.rank=4"]
BRIEF += ["--train.sample-every=1000", "--train.tensorboard=false", "--data.min-prompt-seconds=0.5"]
"""A training of a second instead of minutes."""


@pytest.mark.long
def test_the_page_leads_from_a_folder_of_talks_to_speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = write_talks(tmp_path / "talks", TALKS, UTTERANCES)
    monkeypatch.chdir(tmp_path)
    for command in next(commands(block) for block in blocks("tutorial.md") if "runs/talks" in block.text):
        words = shlex.split(command)[1:]
        brief = [*words[:2], *BRIEF] if words[0] == "train" else words
        assert run_cli(brief) == 0, shlex.join(words)
    clips = list(read_manifest(tmp_path / "clips" / "manifest.jsonl"))
    as_said = " ".join(build_normalizer("am").normalise(text).text for text in said)
    assert " ".join(clip.text for clip in clips).split() == as_said.split()
    sets = {name: open_clip_dataset(tmp_path / "runs/talks/data" / name) for name in ("train", "valid")}
    in_sets = {name: {info.id for info in one.infos} for name, one in sets.items()}
    assert in_sets["train"] == {clip.id for clip in clips if clip.split == "train"}
    assert in_sets["valid"] == {clip.id for clip in clips if clip.split == "validation"}
    recordings = {name: {info.recording for info in one.infos} for name, one in sets.items()}
    assert not recordings["train"] & recordings["valid"]
    assert load_graft(tmp_path / "runs/talks/graft").card.method["trained"]["step"] >= 1
    spoken, rate = soundfile.read(tmp_path / "selam-talks.wav")
    assert len(spoken) / rate > 0.3
    assert np.abs(spoken).max() > 0.01


def test_the_tokenizer_learns_from_what_is_said_in_clips_that_are_learnt_from(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    first, second, third, fourth = sentences(4)
    lines = [
        {"voxgraft_manifest": 1},
        {"text": first, "split": "train"},
        {"text": second, "split": "validation"},
        {"text": third, "split": None, "rejected": ["noise"], "taken_back": True},
        {"text": fourth, "split": "train", "rejected": ["noise"]},
        {"text": " ", "split": "train"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert read_texts([path]).sentences == (first, third)
    path.write_text(json.dumps(lines[0]) + "\n[1]\n", encoding="utf-8")
    with pytest.raises(VoxgraftError, match="text-manifest"):
        read_texts([path])
    plain = tmp_path / "plain.txt"
    plain.write_text(f"{first}\n{second}\n", encoding="utf-8")
    assert read_texts([plain]).sentences == (first, second)
