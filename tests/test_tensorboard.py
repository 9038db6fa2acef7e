"""Event files say what the journal says: read back by TensorBoard itself, after cuts and failures too."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Fixtures
from tests.support.trainers import Place, loop_of, resumed
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.training.callbacks import (
    TENSORBOARD_FOLDER,
    EventEncoder,
    TensorBoardWriter,
    encode_event,
    encode_first_event,
)

Curves = dict[str, list[tuple[int, float]]]


def encoded(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The event file that a journal should have."""
    return b"".join(map(EventEncoder().add, entries))


@pytest.fixture
def accumulator() -> Any:
    """TensorBoard's own reader."""
    return pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed (pip install -e '.[dev]')",
    ).EventAccumulator


@pytest.fixture(scope="module")
def place(fixtures: Fixtures) -> Place:
    return fixtures.place("chatterbox")


@pytest.fixture(scope="module")
def trained(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that was followed from the start."""
    run = tmp_path_factory.mktemp("trained") / "run"
    loop = loop_of(place, run)
    loop.callbacks.append(TensorBoardWriter(RunFolder(run), loop.write))
    loop.train(0)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def files(run: Path) -> list[Path]:
    """Those that hold something; one that was emptied stays for who is reading it."""
    return sorted(path for path in (run / TENSORBOARD_FOLDER).iterdir() if path.stat().st_size)


def read(accumulator: Any, run: Path) -> Any:
    found = accumulator(str(run / TENSORBOARD_FOLDER), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def curves(found: Any) -> Curves:
    return {tag: [(item.step, item.value) for item in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def wanted(entries: list[dict[str, Any]], kind: str, *keys: str) -> list[tuple[int, float]]:
    found = []
    for entry in entries:
        if entry["kind"] == kind:
            value: Any = entry
            for key in keys:
                value = value[key]
            found.append((entry["step"], float32(value)))
    return found


def follow(run: Path) -> list[Any]:
    """Bring the event files up to date; gives what was reported."""
    said: list[Any] = []
    TensorBoardWriter(RunFolder(run), lambda *words, **values: said.append((words, values))).on_log("step", 0, {})
    return said


def test_tensorboard_reads_every_number_of_the_journal(accumulator: Any, trained: Path) -> None:
    entries = RunJournal(trained / "journal.jsonl").read()
    found = curves(read(accumulator, trained))
    assert found["loss/text"] == wanted(entries, "step", "text_loss")
    assert found["loss/speech"] == wanted(entries, "step", "speech_loss")
    assert found["rates/adapter"] == wanted(entries, "step", "rates", "adapter")
    assert found["gradients/rows"] == wanted(entries, "step", "gradients", "rows")
    assert found["train/positions_per_second"] == wanted(entries, "step", "positions_per_second")
    assert found["memory/process_bytes"] == wanted(entries, "step", "memory_process_bytes")
    for key in ("text_loss", "speech_loss", "text_use", "voice_use"):
        assert found[f"held_out_am/{key}"] == wanted(entries, "valid", key)


def test_words_are_texts_and_times_are_the_journals(accumulator: Any, tmp_path: Path) -> None:
    finding = {
        "kind": "finding",
        "step": 3,
        "level": "warning",
        "code": "plateau",
        "found": "ሰላም",
        "cure": "",
        "wall_time": 5.5,
    }
    state = {
        "kind": "valid",
        "step": 4,
        "set": "am",
        "speech_loss": 2.0,
        "state": "stuck",
        "why": "no [am]",
        "wall_time": 7.0,
    }
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (finding, state)))
    follow(tmp_path)
    found = read(accumulator, tmp_path)
    (said,) = found.Tensors("findings")
    assert (said.step, said.wall_time) == (3, 5.5)
    assert said.tensor_proto.string_val[0].decode() == "warning plateau: ሰላም "
    assert found.Tensors("state")[0].tensor_proto.string_val[0].decode() == "stuck: no [am]"
    assert found.Scalars("held_out_am/speech_loss")[0].wall_time == 7.0


def test_followed_line_by_line_or_made_at_once_the_bytes_are_the_same(trained: Path) -> None:
    (file,) = files(trained)
    assert file.read_bytes() == encoded(RunJournal(trained / "journal.jsonl").read())


def test_a_run_that_goes_on_where_it_ended_adds_to_its_file(run: Path) -> None:
    (before,) = files(run)
    size = before.stat().st_size
    RunJournal(run / "journal.jsonl").write("step", 9, text_loss=1.0, speech_loss=2.0)
    assert follow(run) == []
    assert files(run) == [before]
    assert before.stat().st_size > size
    assert before.read_bytes() == encoded(RunJournal(run / "journal.jsonl").read())


def test_after_a_cut_nothing_of_what_was_cut_is_left_also_for_a_reader_that_was_there(
    accumulator: Any, place: Place, run: Path
) -> None:
    watching = read(accumulator, run)
    assert [step for step, _ in curves(watching)["loss/text"]][-1] == 8
    for step in (run / "steps").iterdir():
        if step.name > "step-000004":
            shutil.rmtree(step)
    loop = loop_of(place, run)
    loop.callbacks.append(TensorBoardWriter(RunFolder(run), loop.write))
    start = resumed(loop)
    assert start == 4
    loop.write("finding", start, code="plateau", found="made up", level="note", cure="")
    (file,) = files(run)
    assert file.read_bytes() == encoded(loop.journal.read())
    watching.Reload()
    assert [step for step, _ in curves(watching)["loss/text"]] == list(range(1, 5))
    loop.train(start)
    watching.Reload()
    assert [step for step, _ in curves(watching)["loss/text"]] == list(range(1, 9))
    assert curves(watching) == curves(read(accumulator, run))
    file.write_bytes(b"torn")
    follow(run)
    assert len(list((run / TENSORBOARD_FOLDER).iterdir())) == 2


def test_a_torn_file_is_mended_a_damaged_one_made_anew_and_a_foreign_one_left_alone(run: Path) -> None:
    (ours,) = files(run)
    other = run / TENSORBOARD_FOLDER / "events.out.tfevents.1700000000.host.1.0"
    other.write_bytes(encode_first_event(1.0))
    whole = ours.read_bytes()
    ours.write_bytes(whole[:-7])
    follow(run)
    assert files(run) == [ours, other]
    assert ours.read_bytes() == whole
    ours.write_bytes(whole[:100] + b"?" + whole[101:])
    follow(run)
    assert ours.stat().st_size == 0
    (new,) = [file for file in files(run) if file != other]
    assert new.read_bytes() == whole
    assert other.read_bytes() == encode_first_event(1.0)


def test_training_goes_on_where_tensorboard_cannot_be_written(place: Place, tmp_path: Path) -> None:
    run = tmp_path / "run"
    loop = loop_of(place, run)
    (run / TENSORBOARD_FOLDER).write_text("a file is here")
    loop.callbacks.append(TensorBoardWriter(RunFolder(run), loop.write))
    assert loop.train(0).reason == "done"
    (finding,) = [entry for entry in loop.journal.read() if entry["kind"] == "finding"]
    assert finding["code"] == "tensorboard"
    assert finding["level"] == "warning"
    assert sum(entry["kind"] == "step" for entry in loop.journal.read()) == 8
    assert (run / TENSORBOARD_FOLDER).read_text() == "a file is here"


def test_a_broken_line_is_passed_over(run: Path) -> None:
    whole = (run / "journal.jsonl").read_bytes()
    (run / "journal.jsonl").write_bytes(b'{"kind": 3}\nnonsense\n[1]\n' + whole + b'{"kind": "step", "st')
    assert follow(run) == []
    assert files(run)[-1].read_bytes() == encoded(json.loads(line) for line in whole.splitlines())


def records(data: bytes) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[:8], data[8:12], data[12 : 12 + length], data[12 + length : 16 + length]
        data = data[16 + length :]


def test_checksums_are_those_of_the_format() -> None:
    # A record of TensorFlow's own: an event at time 0 with the version, as its writer leaves it.
    for length, check, data, data_check in records(
        encode_first_event(0.0) + encode_event(1.0, 7, {"a": 1.5}, {"b": "c"})
    ):
        for part, found in ((length, check), (data, data_check)):
            assert struct.unpack("<I", found)[0] == masked(crc32c(part))
    assert crc32c(b"123456789") == 0xE3069283  # the check value that the catalogue of CRCs gives for CRC-32C


def crc32c(data: bytes) -> int:
    """Bit by bit, as the polynomial says."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_numbers_beyond_32_bits_do_not_break_a_record(accumulator: Any, tmp_path: Path) -> None:
    (tmp_path / TENSORBOARD_FOLDER).mkdir()
    data = encode_first_event(0.0) + encode_event(1.0, 2**40, {"large": 1e300, "small": -1e300, "fine": 0.1}, {})
    (tmp_path / TENSORBOARD_FOLDER / "events.out.tfevents.1.x").write_bytes(data)
    found = curves(read(accumulator, tmp_path))
    assert found == {"large": [(2**40, math.inf)], "small": [(2**40, -math.inf)], "fine": [(2**40, float32(0.1))]}
