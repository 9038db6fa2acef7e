"""The page for users of the forks: it names every script and every key; the whole way in one process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.migration import CONFIG, every_rule, write
from tools.random_bases import make_random_base
from voxgraft.dataset import indextts2_manifest
from voxgraft.dataset.indextts2_manifest import read_pair_manifest
from voxgraft.inspect.legacy import SCRIPTS

PAGE = Path(__file__).parent.parent / "docs" / "migration.md"


@pytest.mark.long
def test_the_whole_way_from_an_old_config_to_a_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    make_random_base("chatterbox", tmp_path / "models" / "chatterbox")
    write(tmp_path, "config/training.yaml", CONFIG)
    command = [sys.executable, "-m", "voxgraft", "new", "runs/am", "--from", "config/training.yaml", "--language", "am"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in (
        "Taken over",
        "as comments",
        "Dropped, and why",
        "Done by another command",
        "voxgraft prepare",
        "Unknown",
        "voxgraft graft runs/am",
    ):
        assert word in done.stdout
    values = yaml.safe_load((tmp_path / "runs" / "am" / "run.yaml").read_text())
    assert values["base"] == "../../models/chatterbox"


def test_the_pair_that_the_page_shows_is_read_as_it_says(tmp_path: Path) -> None:
    line = next(line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith('{"id"'))
    write(tmp_path, "train_pairs.jsonl", line + "\n")
    (pair,) = read_pair_manifest(tmp_path / "train_pairs.jsonl")
    assert (pair.id, pair.speaker, pair.language, pair.target, pair.prompt) == ("a7__a3", "a", "am", "a7", "a3")
    assert (pair.num_codes, pair.target_seconds) == (152, 3.04)
    assert pair.codes == tmp_path / "codes" / "a7.npy"
    assert (pair.condition.name, pair.prompt_emotion, pair.target_emotion) == (
        "a3.npy",
        tmp_path / "emo_vec" / "a3.npy",
        tmp_path / "emo_vec" / "a7.npy",
    )


def test_the_page_names_every_key_that_is_read_from_a_pair() -> None:
    page, source = PAGE.read_text(encoding="utf-8"), Path(indextts2_manifest.__file__).read_text(encoding="utf-8")
    keys = set(re.findall(r'"((?:target|prompt)_[a-z_]+|id|speaker|language)"', source))
    assert len(keys) > 12
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_the_page_for_fork_users_names_every_script_and_every_setting_that_old_ones_became() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [script.path for script in SCRIPTS if script.path not in page] == []
    assert sorted({rule.key for _, rule in every_rule() if rule.key and f"`{rule.key}`" not in page} - {"texts"}) == []
    grown_with = [
        script for script in SCRIPTS if script.name in ("extend_bpe", "merge_tokenizers", "extend_model_embeddings")
    ]
    assert [flag for script in grown_with for flag in script.flags if f"{flag}`" not in page] == []
