"""What training says before its first step is true: every figure is compared with the parts or with the files."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures import Fixtures
from tests.support.toy_language import World, make_world
from voxgraft.checkpoints.steps import load_step
from voxgraft.config.commands import TrainCommandSettings
from voxgraft.config.run import DataSettings, TrainSettings
from voxgraft.core import progress
from voxgraft.core.files import compute_sha256
from voxgraft.core.results import format_bytes, format_count, format_duration, format_learning_rate
from voxgraft.core.run import RunFolder
from voxgraft.models import get_family
from voxgraft.models.speech_model import load_model
from voxgraft.pipeline.train import TrainResult, train

TRAIN = {
    "steps": 3,
    "warmup_steps": 2,
    "batch_tokens": 900,
    "rank": 4,
    "log_every": 1,
    "save_every": 2,
    "valid_every": 2,
    "sample_every": 1000,
    "sample_texts": ("am:ሰ",),
}


class Heard:
    """A face that only listens."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, int, Mapping[str, Any]]] = []

    @contextlib.contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        yield lambda _amount: None

    def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        self.reports.append((kind, step, values))

    def opening(self) -> dict[str, str]:
        (lines,) = [values["lines"] for kind, _, values in self.reports if kind == "opening"]
        named = {line.partition(":")[0]: line.partition(":")[2].strip() for line in lines}
        assert len(named) == len(lines)
        return named


@pytest.fixture(scope="module")
def world(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world("chatterbox", tmp_path_factory.mktemp("opening"), fixtures.base("chatterbox").folder)
    made.write_healthy(clips=40, held_out=8)
    return made


def trained(
    world: World, verb: Mapping[str, Any] | None = None, **changes: Any
) -> tuple[dict[str, str], TrainResult, Heard]:
    """Train the run as the settings say; what it opened with, and how it ended."""
    heard = Heard()
    data = DataSettings(min_prompt_seconds=0.1)
    settings = TrainCommandSettings(
        run=world.run,
        base=world.files.tokenizer.parent,
        language="am",
        data=data,
        train=TrainSettings(**{**TRAIN, **changes}),
        **(verb or {}),
    )
    with progress.use_progress_listener(heard):
        result = train(settings)
    return heard.opening(), result, heard


@pytest.fixture(scope="module")
def first(world: World) -> tuple[dict[str, str], TrainResult, Heard]:
    return trained(world)


@pytest.mark.long
def test_the_hashes_are_those_of_the_files(world: World, first: tuple[dict[str, str], TrainResult, Heard]) -> None:
    opening = first[0]
    assert f"sha256 {compute_sha256(world.files.checkpoint)[:12]}" in opening["base"]
    assert world.files.checkpoint.name in opening["base"]
    assert f"sha256 {compute_sha256(world.run / 'graft' / 'tokenizer.json')[:12]}" in opening["tokenizer"]


def test_rows_and_trained_numbers_are_those_of_the_saved_step(
    world: World, first: tuple[dict[str, str], TrainResult, Heard]
) -> None:
    opening = first[0]
    tensors = load_step(RunFolder(world.run), 0).state.tensors
    rows = next(iter(tensors["rows"].values()))
    base_pieces = world.text_encoder.base.size
    assert opening["text rows"] == f"text_emb, text_head: {base_pieces:,} base tokens + {len(rows):,} new + 0 unused"
    counts = {part: sum(tensor.numel() for tensor in tensors[part].values()) for part in ("rows", "adapter")}
    assert (
        f"rows {format_count(counts['rows'])}, adapter {format_count(counts['adapter'])} (rank 4)" in opening["trained"]
    )
    assert f"in total {format_count(sum(counts.values()))} of " in opening["trained"]


def test_the_fixed_bits_are_all_of_the_base(world: World, first: tuple[dict[str, str], TrainResult, Heard]) -> None:
    model = load_model(get_family("chatterbox"), world.files)
    tensors: list[torch.Tensor] = list(model.state_dict().values())
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert first[0]["fixed"] == f"all weights of the base, {format_bytes(size)}; verified at every save"


def test_device_data_and_a_step_are_said(first: tuple[dict[str, str], TrainResult, Heard]) -> None:
    opening, _, heard = first
    assert opening["device"] == "cpu, float32, 1 process"
    assert opening["data"].startswith("40 of 40 clips in train, ")
    assert opening["data"].endswith("held out: am 8 clips")
    clips = next(len(values["clips"]) for kind, step, values in heard.reports if (kind, step) == ("step", 1))
    assert opening["a step"].startswith(f"900 positions, about {clips} clips, in microbatches of at most ")
    assert opening["rates"] == "rows 1e-3, adapter 1e-3; warm-up 2 steps, then cosine"
    assert opening["steps"].startswith("3 in total (")
    assert [
        word for word in ("text", "speech", "held out", "text use", "step 0", "chance") if word not in opening["legend"]
    ] == []


def test_memory_is_marked_as_an_estimate_and_time_is_not_guessed(
    first: tuple[dict[str, str], TrainResult, Heard],
) -> None:
    opening = first[0]
    assert re.match(r"about [0-9.,]+ [MG]B \(estimate\): program and weights ", opening["memory"])
    assert opening["time"] == "known after 20 steps"
    assert opening["start"] == "step 0, from the initial rows of the graft"
    assert "changed" not in opening


def test_the_opening_comes_before_everything_that_happens(first: tuple[dict[str, str], TrainResult, Heard]) -> None:
    kinds = [kind for kind, _, _ in first[2].reports]
    assert kinds.index("opening") < min(kinds.index(kind) for kind in ("start", "valid", "step", "saved"))


def copied(world: World, folder: Path) -> World:
    """The same run in another place, to continue with."""
    shutil.copytree(world.run, folder / "run")
    return replace(world, run=folder / "run")


@pytest.mark.usefixtures("first")
def test_a_resumed_run_says_from_where_how_long_and_what_has_changed(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path)
    opening, result, _ = trained(run, steps=5, lr_rows=2e-3)
    assert result.start == 3
    assert opening["start"].startswith("resumes from step 3; best so far: step ")
    assert re.match(r"about [0-9]+ s for 2 steps, at the speed so far", opening["time"])
    assert "train.steps: was 3, is 5" in opening["changed"]
    assert "train.lr_rows: was 0.001, is 0.002" in opening["changed"]
    assert "adapter" not in opening["changed"]
    assert "warmup" not in opening["changed"]
    again, _, _ = trained(run, steps=5, lr_rows=2e-3)
    assert again["time"] == "no steps left"
    assert "changed" not in again


@pytest.mark.usefixtures("first")
def test_a_run_that_may_harm_the_base_says_so(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path)
    opening, _, _ = trained(run, verb={"baseline": "masked-finetune", "fresh": True}, steps=1, warmup_steps=0)
    assert "for comparison only" in opening["run"]
    assert "NOT fixed: " in opening["fixed"]
    assert re.search(r"\bbody [0-9]", opening["trained"])


@pytest.mark.usefixtures("first")
def test_the_time_is_that_of_steps_of_todays_size(world: World, tmp_path: Path) -> None:
    """The journal's steps are made to have taken a second each, for 900 positions."""
    run = copied(world, tmp_path)
    journal = RunFolder(run.run).journal
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    for entry in entries:
        if entry["kind"] == "step":
            entry |= {"positions": 900, "positions_per_second": 900.0}
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    opening, _, _ = trained(run, steps=4, batch_tokens=9_000)
    assert opening["time"].startswith("about 10 s for 1 step,")


@pytest.mark.long
@pytest.mark.usefixtures("first")
def test_a_warm_up_longer_than_the_run_and_steps_longer_than_the_data_are_said(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path)
    opening, _, heard = trained(run, verb={"fresh": True}, steps=1, warmup_steps=500, batch_tokens=10_000)
    share = "only 0.2% of these at the last of 1 step"
    assert opening["rates"] == f"rows 1e-3, adapter 1e-3; warm-up 500 steps (longer than the run): {share}"
    reported = [values["code"] for kind, _, values in heard.reports if kind == "finding"]
    assert "warmup-too-long" in reported
    passes = re.search(r"1 in total \(([0-9.]+) epochs, ([0-9.]+) per step", opening["steps"])
    assert passes is not None
    assert passes[1] == passes[2]
    assert float(passes[1]) > 1


def test_few_steps_of_a_pass_are_reported_with_a_decimal(first: tuple[dict[str, str], TrainResult, Heard]) -> None:
    found = re.search(r"3 in total \(([0-9.]+) epochs of ([0-9.]+) steps\);", first[0]["steps"])
    assert found is not None
    assert float(found[1]) * float(found[2]) == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (61, "1 min 1 s"),
        (1500, "25 min"),
        (3 * 3600 + 1201, "3 h 20 min"),
        (2e5, "2 d 7 h"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(1e-3, "1e-3"), (7.8e-4, "7.8e-4"), (0.0, "0"), (1e-10, "1e-10")])
def test_rates_are_short(rate: float, text: str) -> None:
    assert format_learning_rate(rate) == text
