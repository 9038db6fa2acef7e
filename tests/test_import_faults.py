"""One fault stops nothing but what it is in: a source without words, a damaged journal, a process that is ended."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxgraft.audio.files import write_clip_audio
from voxgraft.config.data import DataImportSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.folder import DatasetFolder, read_import_journal
from voxgraft.data.import_command import data_import
from voxgraft.data.manifest import ManifestClip, SourceProblem, read_manifest
from voxgraft.data.report import compute_dataset_metrics

RATE = 16_000


def _talk(folder: Path, name: str, *texts: str) -> None:
    """A recording with a second of noise for each text, and a pause after it."""
    folder.mkdir(exist_ok=True)
    loud = np.repeat([0.001, *([0.2, 0.001] * len(texts))], RATE)
    noise = np.random.default_rng(1).normal(0, 1, len(loud)) * loud
    soundfile.write(folder / f"{name}.wav", noise.astype(np.float32), RATE)
    blocks = [f"{at}\n00:00:{2 * at + 1:02d},000 --> 00:00:{2 * at + 2:02d},000\n{t}\n" for at, t in enumerate(texts)]
    (folder / f"{name}.srt").write_text("\n".join(blocks), encoding="utf-8")


def test_subtitles_in_which_nothing_is_said_end_their_own_source_alone(tmp_path: Path) -> None:
    _talk(tmp_path / "in", "music", "[ሙዚቃ]", "♪")
    _talk(tmp_path / "in", "talk", "ሰላም ለዓለም።", "ቡና እፈልጋለሁ።")
    settings = DataImportSettings(dataset=tmp_path / "set", sources=(tmp_path / "in",), language="am", workers=1)
    done = data_import(settings)
    assert done.exit_code == 1
    codes = [problem.code for problem in done.problems]
    assert sorted(codes) == ["subtitle-none", "subtitle-nothing-said", "subtitle-nothing-said"]
    assert {clip.recording for clip in read_manifest(tmp_path / "set" / "manifest.jsonl")} == {"talk"}


@pytest.mark.parametrize("value", [5, "x", {"code": "subtitle-none"}, {"code": 1, "found": 2, "file": 3, "line": "x"}])
def test_a_damaged_problem_in_a_journal_is_refused_with_a_code(tmp_path: Path, value: object) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"problem": value}) + "\n", encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        read_import_journal(path)
    assert caught.value.code == "manifest-line"


def test_a_problem_of_another_version_is_reported_under_its_own_name() -> None:
    reported = SourceProblem.from_json(
        {"code": "of-tomorrow", "found": "x", "file": "f", "line": 0, "last": 0}
    ).finding()
    assert "of-tomorrow" in reported.found


def test_a_process_that_is_ended_while_it_measures_is_reported_with_a_cure(tmp_path: Path) -> None:
    clips = [ManifestClip(f"c{at}", f"c{at}.wav", 0.1, "ሰላም", "am", "s", "r", RATE) for at in range(80)]
    for clip in clips:
        write_clip_audio(tmp_path / clip.audio, np.zeros(RATE // 10, np.float32), RATE)

    def end_one() -> None:
        while not multiprocessing.active_children():
            time.sleep(0.001)
        multiprocessing.active_children()[0].kill()

    other = threading.Thread(target=end_one)
    other.start()
    with pytest.raises(VoxgraftError) as caught:
        compute_dataset_metrics(DatasetFolder(tmp_path), clips, workers=2)
    other.join()
    assert "--workers" in caught.value.finding.cure
