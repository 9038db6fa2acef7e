"""`data fetch` against a real server on this machine: files with their subtitles, once, and failures told."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxgraft.config.data import DataFetchSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.fetch import build_ytdlp_options, data_fetch


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A folder with a recording and its subtitles, as a site."""
    (tmp_path / "site").mkdir()
    soundfile.write(tmp_path / "site" / "talk one.wav", np.zeros(8_000), 8_000)
    (tmp_path / "site" / "captions.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nሰላም\n", encoding="utf-8")
    handler = functools.partial(_Handler, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_recording_and_its_subtitles_get_one_name_and_come_once(site: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"# talks\n{site}/talk%20one.wav {site}/captions.srt\n", encoding="utf-8")
    settings = DataFetchSettings(folder=tmp_path / "got", list=tmp_path / "list.txt", language="am")
    assert data_fetch(settings).to_json() == {
        "folder": str(tmp_path / "got"),
        "files": ["talk_one.srt", "talk_one.wav"],
        "failed": 0,
    }
    before = (tmp_path / "got" / "talk_one.wav").stat().st_mtime_ns
    assert data_fetch(settings).exit_code == 0
    assert (tmp_path / "got" / "talk_one.wav").stat().st_mtime_ns == before


def test_what_cannot_be_fetched_is_told_and_leaves_no_file(site: str, tmp_path: Path) -> None:
    addresses = (f"{site}/no.mp3", f"{site}/captions.srt")
    done = data_fetch(DataFetchSettings(folder=tmp_path / "got", addresses=addresses, language="am"))
    assert done.exit_code == 1
    assert done.to_json()["files"] == ["captions.srt"]
    assert any("no.mp3" in str(line) for line in done.lines())


def test_files_of_one_name_from_two_places_are_both_kept_and_come_once(site: str, tmp_path: Path) -> None:
    for name, seconds in (("a", 1), ("b", 2)):
        (tmp_path / "site" / name).mkdir()
        soundfile.write(tmp_path / "site" / name / "part.wav", np.zeros(8_000 * seconds), 8_000)
    lines = f"{site}/a/part.wav {site}/b/part.wav\n{site}/b/part.wav {site}/captions.srt\n"
    (tmp_path / "list.txt").write_text(lines, encoding="utf-8")
    for _ in range(2):
        done = data_fetch(DataFetchSettings(folder=tmp_path / "got", list=tmp_path / "list.txt", language="am"))
        assert done.to_json()["files"] == ["part-2.srt", "part-2.wav", "part.wav"]
    assert [soundfile.info(tmp_path / "got" / f"{name}.wav").duration for name in ("part", "part-2")] == [1.0, 2.0]


def test_a_connection_that_ends_early_leaves_no_file(tmp_path: Path) -> None:
    class Short(_Handler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Short) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/talk.mp3"
        done = data_fetch(DataFetchSettings(folder=tmp_path / "got", addresses=(address,), language="am"))
        server.shutdown()
    assert done.exit_code == 1
    assert done.to_json()["files"] == []


def test_captions_of_machines_are_only_taken_if_asked_for(tmp_path: Path) -> None:
    settings = DataFetchSettings(folder=tmp_path, addresses=("https://example.org/watch",), language="am")
    assert build_ytdlp_options(settings)["writeautomaticsub"] is False
    assert build_ytdlp_options(settings.model_copy(update={"automatic": True}))["writeautomaticsub"] is True
    assert "am" in build_ytdlp_options(settings)["subtitleslangs"]


def test_no_address_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VoxgraftError) as caught:
        data_fetch(DataFetchSettings(folder=tmp_path, language="am"))
    assert caught.value.code == "config-missing"
