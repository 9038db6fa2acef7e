"""What cannot be said or heard in an evaluation: counted, told, and refused before anything is spoken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.evaluation import evaluated, parrot, settings_of
from tests.support.fixtures import Fixtures
from tests.support.run_folders import error_of
from voxgraft.audio.files import encode_audio
from voxgraft.core import progress
from voxgraft.core.results import Table
from voxgraft.evaluation.command import EvaluateResult, score_model


def scores(result: EvaluateResult, language: str, who: str) -> dict[str, Any]:
    (row,) = [row for row in result.document["rows"] if (row["language"], row["who"]) == (language, who)]
    found: dict[str, Any] = row["scores"]
    return found


@pytest.mark.long
def test_a_sentence_that_cannot_be_said_counts_as_heard_empty_and_is_counted(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    tiny = fixtures.trained_run("tiny")
    long = "ha " * 2000
    (tmp_path / "en.txt").write_text(f"ha\n{long}\n", encoding="utf-8")
    (tmp_path / "am.txt").write_text("ሰላ\n", encoding="utf-8")
    words = [f"--sentences={tmp_path / name}" for name in ("en.txt", "am.txt")]
    listener = f"--recognizer={parrot(tmp_path, 'ha')}"
    result = score_model(
        settings_of(
            str(tiny.folder.graft),
            f"--base={tiny.base}",
            f"--output={tmp_path / 'out'}",
            *words,
            "--languages=en",
            listener,
        )
    )
    english = scores(result, "en", "after")
    assert english["cer"]["value"] == pytest.approx(len(long.strip()) / (2 + len(long.strip())))
    assert english["cer"]["count"] == 2
    assert english["unsaid"]["value"] == 0.5
    (unsaid,) = [
        one for one in result.document["utterances"] if one["text"].startswith("ha ha") and one["who"] == "after"
    ]
    assert (unsaid["heard"], unsaid["cer"], unsaid["codes"]) == ("", 1.0, None)
    assert "text tokens" in unsaid["why"]
    table = next(line for line in result.lines() if isinstance(line, Table))
    assert "not said" in table.columns
    # Of one sentence there is no other to hold it against.
    control = scores(result, "am", "shuffled")["cer"]
    assert control["value"] is None
    assert "no other sentence" in control["why"]


def test_a_span_without_an_end_is_refused_before_anything_is_spoken(fixtures: Fixtures, tmp_path: Path) -> None:
    tiny = fixtures.trained_run("tiny")
    (tmp_path / "am.txt").write_text("ሰላ [en]my\n", encoding="utf-8")
    words = (str(tiny.folder.graft), f"--base={tiny.base}", f"--output={tmp_path / 'out'}")
    settings = settings_of(*words, f"--sentences={tmp_path / 'am.txt'}", f"--recognizer={parrot(tmp_path, 'ha')}")
    found = error_of(lambda: score_model(settings))
    assert found.code == "text-span"
    assert "am.txt" in str(found.finding.where)
    assert not (tmp_path / "out").exists()


class Jobs:
    """Writes down what is worked at."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        self.names.append(name)
        yield lambda _amount: None

    def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None: ...


def test_a_recording_that_cannot_be_heard_is_refused_before_anything_is_spoken(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    tiny = fixtures.trained_run("tiny")
    folder, jobs = tmp_path / "recordings", Jobs()
    folder.mkdir()
    (folder / "a.txt").write_text("ሰላ", encoding="utf-8")
    (folder / "a.wav").write_bytes(encode_audio(np.zeros(500, np.float32), 500))
    with progress.use_progress_listener(jobs):
        error = error_of(lambda: evaluated(tiny.path, tmp_path, recognizer="built-in", recordings=folder))
    assert error.code == "audio-shape"
    assert "500" in error.finding.found
    assert any(name.startswith("transcribing") for name in jobs.names)
    assert not any("generating" in name for name in jobs.names)
