"""The talks of the tutorial: a line for each while they are made, and nothing over what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxgraft.demo.data import main, write_talks


def test_every_talk_is_reported_when_it_is_there(tmp_path: Path) -> None:
    reported: list[tuple[str, bool]] = []
    write_talks(tmp_path / "talks", 2, 2, lambda line: reported.append((line, _is_there(tmp_path / "talks", line))))
    assert [line.partition(",")[0] for line, _ in reported] == ["1 of 2: talk0.ogg", "2 of 2: talk1.flac"]
    assert all(there for _, there in reported)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_folder_that_is_there_or_no_single_folder_is_refused(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)] * count) == 2
    assert "give one folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_flag_is_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--help"]) == 2
    assert "give one folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def _is_there(folder: Path, line: str) -> bool:
    return (folder / line.partition(": ")[2].partition(",")[0]).is_file()
