"""The review table without a browser: what a decision writes, what commands make of it, and what is refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Fixtures
from tests.support.preprocess_runs import preparing
from tests.support.review import make_review_home
from tests.support.ui import PROJECT
from tests.test_import_repeat import _film
from voxgraft.asr.transcripts import data_verify
from voxgraft.config.data import DataImportSettings, DataReportSettings, DataVerifySettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import compute_sha256
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.import_command import data_import
from voxgraft.data.manifest import MANUAL_REJECTION, TEXT_MISMATCH, DatasetSummary, ManifestClip, write_manifest
from voxgraft.data.report import data_report
from voxgraft.data.review import MAX_HISTORY, ReviewTable, decide, original_text, undo
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.tokenizers import compute_texts_sha256

HERE = {"host": "127.0.0.1", "origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
CLIP = ManifestClip(
    "a", "clips/a.flac", 1.0, "ሰላም ነው", "am", "s", "r", 8_000, rejected=("noise", TEXT_MISMATCH),
    other={"mine": 1, "heard": "x", "disagreement": 0.9, "machine_made": "whisper"},
)  # fmt: skip


def seen(clip: ManifestClip) -> dict[str, str]:
    return {"text": clip.text, "at": str(clip.other.get("reviewed_at") or "")}


def test_decisions_keep_the_old_text_and_undo_brings_back_every_state() -> None:
    edited = decide(CLIP, "edit", "ሰላም  ለ 3 ሰው", "2026-01-01T00:00:00.000001+00:00")
    assert (edited.text, edited.review_state, edited.rejected) == ("ሰላም ለ ሶስት ሰው", "edited", ("noise",))
    assert "disagreement" not in edited.other, "it was that of the old text"
    rejected = decide(edited, "reject", "", "2026-01-01T00:00:00.000002+00:00")
    assert rejected.rejected == ("noise", MANUAL_REJECTION)
    accepted = decide(rejected, "accept", "", "2026-01-01T00:00:00.000003+00:00")
    assert accepted.review_state == "edited", "the text is still another one"
    back = decide(accepted, "edit", CLIP.text, "2026-01-01T00:00:00.000004+00:00")
    assert (back.review_state, original_text(back)) == ("accepted", CLIP.text)
    assert [entry["text"] for entry in back.other["review_history"]] == [CLIP.text, *[edited.text] * 3]
    assert undo(back) == accepted
    found = replace(accepted, rejected=(*accepted.rejected, "clipping"))  # by a report in between
    assert undo(found).rejected == ("noise", "clipping", MANUAL_REJECTION)
    assert undo(undo(undo(accepted))) == CLIP
    assert decide(edited, "edit", " ሰላም ለ 3 ሰው", "later") is edited, "a request whose answer was lost changes nothing"
    mixed = decide(CLIP, "edit", "ሰላም [en]I have 25 friends[/en] 3 ነው", "later")
    assert mixed.text == "ሰላም [en]I have 25 friends[/en] ሶስት ነው", "rules of the language are not for spans of others"
    for text in ("", " . ", "\ud800", "ሀ" * 5_000, "9" * 3_900, "ሰላም [en]my [fr]ami[/fr]"):
        with pytest.raises(VoxgraftError) as caught:
            decide(CLIP, "edit", text, "now")
        assert caught.value.code == "review-text"
    clip = CLIP
    for number in range(2 * MAX_HISTORY):
        clip = decide(clip, "edit", f"ቃል {number}", "now")
    assert len(clip.other["review_history"]) == MAX_HISTORY
    assert original_text(clip) == CLIP.text


def test_a_machine_made_text_is_counted_until_a_person_has_accepted_it() -> None:
    before, after = (DatasetSummary.of([clip]) for clip in (CLIP, decide(CLIP, "accept", "", "now")))
    assert (before.machine_made, before.to_json()["reviewed"]["accepted"]) == (1, 0)
    assert (after.machine_made, after.to_json()["reviewed"]["accepted"]) == (0, 1)


@pytest.fixture
def table(tmp_path: Path) -> ReviewTable:
    made = ReviewTable(DatasetFolder(make_review_home(tmp_path, 60)))
    made.refresh()
    return made


def fresh(table: ReviewTable) -> ReviewTable:
    """The table as a restarted server reads it."""
    made = ReviewTable(table.dataset)
    made.refresh()
    return made


def test_undo_takes_the_newest_decision_first_whoever_asks_and_the_order_stays(table: ReviewTable) -> None:
    order, before = [clip.id for clip in table.rows()], dict(table.clips)
    scores = [table.clips[name].other.get("disagreement", -1) for name in order]
    assert scores == sorted(scores, reverse=True)
    assert [name for name in order if "disagreement" not in table.clips[name].other] == [
        name for name, clip in before.items() if "disagreement" not in clip.other
    ]
    bytes_before = table.dataset.manifest.read_bytes()
    for name, decision, text in ((order[0], "accept", ""), (order[1], "edit", "በቃ"), (order[0], "reject", "")):
        table.decide(name, decision, text, seen(table.clips[name]))  # type: ignore[arg-type]
    other = fresh(table)
    assert other.clips == table.clips
    assert [clip.id for clip in other.rows()] == order
    for name in (order[0], order[1], order[0]):
        last = other.newest()
        assert last is not None
        assert last.id == name
        undone = other.undo(name, last.other["reviewed_at"])
        left = other.newest()
        assert other.undo(name, last.other["reviewed_at"]) == undone, "a request whose answer was lost is sent again"
        assert other.newest() == left
    assert other.newest() is None
    assert other.clips == fresh(table).clips == before
    assert other.dataset.manifest.read_bytes() == bytes_before
    with pytest.raises(VoxgraftError) as caught:
        other.undo(order[0], "")
    assert caught.value.code == "review-changed"


def test_what_other_commands_wrote_meanwhile_is_kept_and_the_same_clip_is_refused(table: ReviewTable) -> None:
    first, second, third = list(table.clips)[:3]
    stale = seen(table.clips[first])
    clips = [replace(clip, split="train") for clip in table.clips.values()]
    write_manifest(table.dataset.manifest, [clip for clip in clips if clip.id != third])
    assert table.decide(first, "accept", "", stale).split == "train"
    assert fresh(table).clips[second].split == "train"
    with pytest.raises(VoxgraftError) as caught:
        fresh(table).decide(first, "edit", "ቡና", stale)
    assert caught.value.code == "review-changed"
    with pytest.raises(VoxgraftError) as caught:
        table.decide(third, "accept", "", stale)
    assert caught.value.code == "clips-unknown"
    with table.dataset.locked(), pytest.raises(VoxgraftError) as caught:
        table.decide(second, "accept", "", seen(table.clips[second]))
    assert caught.value.code == "dataset-busy"
    assert fresh(table).clips[second].review_state == ""


def test_decisions_of_several_windows_at_once_are_all_kept(table: ReviewTable) -> None:
    names = list(table.clips)[:24]

    def work(own: list[str]) -> None:
        mine = fresh(table)
        for name in own:
            mine.decide(name, "accept", "", seen(mine.clips[name]))

    threads = [threading.Thread(target=work, args=(names[start::3],)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = fresh(table)
    assert [name for name, clip in now.clips.items() if clip.review_state] == names
    assert len({clip.other["reviewed_at"] for clip in now.clips.values() if clip.review_state}) == len(names)


def test_report_and_verify_respect_what_a_person_decided(table: ReviewTable) -> None:
    marked, plain = "talk-00025", "talk-00001"
    table.decide(marked, "accept", "", seen(table.clips[marked]))
    table.decide(plain, "reject", "", seen(table.clips[plain]))
    folder = table.dataset.folder
    heard = "ሙሉ በሙሉ ሌላ ነገር"  # far from every text, so only what a person decided keeps a clip from being marked
    program = f"command:sh -c 'case {{wav}} in *) echo {heard};; esac'"
    values = data_verify(DataVerifySettings(dataset=folder, recognizer=program, outlier=0.01)).to_json()
    assert marked not in values["marked"]
    assert values["marked"]
    told = data_report(DataReportSettings(dataset=folder, workers=1)).to_json()
    assert told["reviewed"] == {"accepted": 1, "edited": 0, "rejected": 1}
    assert MANUAL_REJECTION in told["rejected_clips"][plain]
    assert TEXT_MISMATCH not in told["rejected_clips"].get(marked, ())
    clips = fresh(table).clips
    assert not clips[plain].is_used
    assert clips[plain].resolve_audio(folder).is_file()


def test_a_graft_is_out_of_date_only_if_a_text_that_it_learned_from_changed(table: ReviewTable) -> None:
    path, (first, second) = table.dataset.manifest, ["talk-00001", "talk-00002"]
    before, whole = compute_texts_sha256(path), compute_sha256(path)
    table.decide(first, "accept", "", seen(table.clips[first]))
    assert (compute_texts_sha256(path), compute_sha256(path) != whole) == (before, True)
    table.decide(first, "edit", "ቡና", seen(table.clips[first]))
    assert (edited := compute_texts_sha256(path)) != before
    table.decide(second, "reject", "", seen(table.clips[second]))
    assert compute_texts_sha256(path) != edited


def test_an_import_that_is_repeated_keeps_what_was_edited(tmp_path: Path) -> None:
    source, options = _film(tmp_path / "in", "film", "አንድ", "ሁለት", "ሦስት"), {"rate": 16_000, "cut": "times"}

    def imported(**more: Any) -> ReviewTable:
        settings = {"dataset": tmp_path / "set", "sources": (source,), "language": "am", "workers": 1, **options}
        data_import(DataImportSettings(**{**settings, **more}))
        return fresh(ReviewTable(DatasetFolder(tmp_path / "set")))

    table = imported()
    edited, accepted, rejected = table.clips
    table.decide(edited, "edit", "አንድ ብቻ", seen(table.clips[edited]))
    table.decide(accepted, "accept", "", seen(table.clips[accepted]))
    table.decide(rejected, "reject", "", seen(table.clips[rejected]))
    assert imported().clips == table.clips
    again = imported(reimport=True, speaker="Abebe")
    assert {clip.speaker for clip in again.clips.values()} == {"Abebe"}
    assert [clip.review_state for clip in again.clips.values()] == ["edited", "accepted", "rejected"]
    assert again.clips[edited].text == "አንድ ብቻ"
    assert again.newest() is not None
    # Another line in the source is another clip.
    source.write_text(source.read_text(encoding="utf-8").replace("አንድ", "አንዱ"), encoding="utf-8")
    changed = imported(reimport=True, speaker="Abebe")
    assert "አንዱ" in [clip.text for clip in changed.clips.values()]
    assert changed.clips[accepted].review_state == "accepted"


def test_prepare_uses_the_edited_text_and_leaves_the_rejected_clip_out(fixtures: Fixtures, tmp_path: Path) -> None:
    place = preparing(fixtures, tmp_path)
    table = fresh(ReviewTable(DatasetFolder(place.manifest.parent)))
    table.decide("clip000", "edit", "ሰላም ለዓለም", seen(table.clips["clip000"]))
    table.decide("clip001", "reject", "", seen(table.clips["clip001"]))
    result = place.prepare()
    texts = {info.id: info.text for info in open_clip_dataset(place.run.data_set("train")).infos}
    assert texts["clip000"] == "ሰላም ለዓለም"
    assert "clip001" not in texts
    assert result.aside == {"rejected": 1}


@pytest.fixture
def client(table: ReviewTable) -> Iterator[Any]:
    """The routes behind the server's guard, in the folder of the project."""
    pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from voxgraft.ui.files import Roots
    from voxgraft.ui.page import PageContext
    from voxgraft.ui.server import AccessGuard
    from voxgraft.ui.tabs.review import review_routes

    home = table.dataset.folder.parent.parent
    routes = review_routes(PageContext(Roots.of((home,)), None))
    guard = AccessGuard(Starlette(routes=routes), frozenset({"127.0.0.1"}))
    with TestClient(guard, base_url="http://127.0.0.1", headers=HERE) as made:
        yield made


ADDRESS = "/voxgraft/review"


def test_the_page_and_its_answers(client: Any, table: ReviewTable) -> None:
    page = client.get(ADDRESS)
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert client.get(f"{ADDRESS}/review.js").headers["content-type"].startswith("text/javascript")
    found = client.get(f"{ADDRESS}/clips", params={"project": PROJECT}).json()
    assert [row["id"] for row in found["clips"]] == [clip.id for clip in table.rows()]
    asked = {"project": PROJECT, "stamp": found["stamp"]}
    assert client.get(f"{ADDRESS}/clips", params=asked).status_code == 204
    row = found["clips"][0]
    part = client.get(
        f"{ADDRESS}/audio", params={"project": PROJECT, "clip": row["id"]}, headers={"range": "bytes=0-3"}
    )
    assert (part.status_code, part.content, part.headers["content-type"]) == (206, b"fLaC", "audio/flac")
    asked = {"project": PROJECT, "clip": row["id"], "decision": "edit", "text": "<b>ቡና</b> 5"}
    done = client.post(f"{ADDRESS}/decide", json={**asked, "seen": {"text": row["text"], "at": row["at"]}}).json()
    assert done["before"] == found["stamp"] != done["stamp"]
    assert done["clip"]["text"] == fresh(table).clips[row["id"]].text
    assert done["undo"]["id"] == row["id"]


@pytest.mark.parametrize(
    ("clip", "dataset", "status"),
    [
        *[
            (name, "", 404)
            for name in ("../../run.yaml", "/etc/passwd", "clips/talk/talk-00001.flac", "", "a\0b", "%2e")
        ],
        *[("talk-00001", name, 404) for name in ("..", "/etc", "am/../..", "elsewhere", "a\0b", "x" * 5000)],
        *[("escaping", "", 404), ("absolute", "", 404), ("link", "", 404), ("settings", "", 404), ("null", "", 404)],
        *[("talk-00001", "am/data", 200), ("outside-clip", "", 404), ("missing", "", 404)],
    ],
)
def test_only_audio_that_the_manifest_of_a_dataset_inside_names_is_sent(
    client: Any, table: ReviewTable, tmp_path_factory: pytest.TempPathFactory, clip: str, dataset: str, status: int
) -> None:
    sound = table.clips["talk-00001"].resolve_audio(table.dataset.folder)
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.flac").write_bytes(sound.read_bytes())
    (table.dataset.folder / "clips/link.flac").symlink_to(outside / "secret.flac")
    places = {
        "escaping": os.path.relpath(outside / "secret.flac", table.dataset.folder),
        "absolute": str(outside / "secret.flac"),
        "link": "clips/link.flac",
        "settings": "../run.yaml",
        "null": "clips/a\0.flac",
        "missing": "clips/none.flac",
    }
    hostile = [replace(table.clips["talk-00001"], id=name, audio=audio) for name, audio in places.items()]
    write_manifest(table.dataset.manifest, [*table.clips.values(), *hostile])
    other = DatasetFolder(outside / "set")
    other.folder.mkdir()
    write_manifest(other.manifest, [replace(hostile[0], id="outside-clip", audio="../secret.flac")])
    asked = {"project": PROJECT, "dataset": dataset, "clip": clip}
    answer = client.get(f"{ADDRESS}/audio", params=asked)
    assert answer.status_code == status
    assert (b"fLaC" in answer.content) == (status == 200)
    if dataset and status != 200:
        posted = client.post(f"{ADDRESS}/decide", json={**asked, "decision": "reject", "seen": {"text": "", "at": ""}})
        assert posted.status_code == 404
    assert client.get(f"{ADDRESS}/audio", params={**asked, "project": ".."}).status_code == 404


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"origin": "http://evil.example"}, {}, 403),
        ({"origin": "null"}, {}, 403),
        ({"host": "evil.example"}, {}, 403),
        ({"sec-fetch-site": "cross-site"}, {}, 403),
        ({"content-type": "text/plain"}, {}, 400),
        ({"content-type": "application/x-www-form-urlencoded"}, {}, 400),
        ({}, [], 400),
        ({}, {"decision": "delete"}, 400),
        ({}, {"decision": "accept", "seen": 3}, 400),
        ({}, {"decision": "accept", "seen": {"text": ["x"], "at": None}}, 409),
        ({}, {"decision": "undo", "at": {"x": 1}}, 409),
        ({}, {"decision": "edit", "text": "", "seen": {"text": "", "at": ""}}, 400),
        ({}, {"decision": "edit", "text": "x" * 200_000}, 413),
    ],
)
def test_requests_of_other_origins_and_malformed_ones_change_nothing(
    client: Any, table: ReviewTable, headers: dict[str, str], body: Any, status: int
) -> None:
    before = table.dataset.manifest.read_bytes()
    values = {"project": PROJECT, "clip": "talk-00001", **body} if isinstance(body, dict) else body
    sent = {"content-type": "application/json", **headers}
    answer = client.post(f"{ADDRESS}/decide", content=json.dumps(values), headers=sent)
    assert answer.status_code == status
    assert client.post(f"{ADDRESS}/decide", content=b"{", headers=sent).status_code in (400, 403)
    assert client.get(f"{ADDRESS}/decide").status_code == 405
    assert table.dataset.manifest.read_bytes() == before
