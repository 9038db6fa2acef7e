"""Saved steps: exact to the last bit, whole or absent, and the last whole one is found whatever lies beside it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.support.runs import (
    assert_newest,
    assert_same,
    bits,
    edit_state,
    flip_bit,
    names_in,
    new_run,
    save,
    state,
    stopped_at,
)
from voxgraft.checkpoints.steps import TrainState, list_complete_steps, list_leftover_folders, load_step
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import FAILPOINT_VARIABLE
from voxgraft.core.run import RunFolder
from voxgraft.training.checkpoint import SAFETENSORS_DTYPES, _HashingSink, move_later_steps_aside, save_step

FILES = ["rows.safetensors", "adapter.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path)


def refused(action: Any, *arguments: Any, **named: Any) -> VoxgraftError:
    with pytest.raises(VoxgraftError) as caught:
        action(*arguments, **named)
    return caught.value


# ---- exact --------------------------------------------------------------------------------------------------


def test_a_state_is_loaded_with_the_bits_that_it_was_saved_with(run: RunFolder) -> None:
    assert save(run, 500) == ([], [])
    assert run.step(500).is_dir()
    loaded = load_step(run)
    assert (loaded.folder, loaded.findings) == (run.step(500), ())
    assert_same(loaded.state, state(500))


@pytest.mark.long
@given(
    st.sampled_from(sorted(SAFETENSORS_DTYPES, key=str)),
    st.lists(st.integers(0, 5), max_size=4),
    st.integers(0, 2**32),
    st.booleans(),
)
@settings(max_examples=60)
def test_tensors_of_every_kind_and_shape_keep_their_bits(
    dtype: torch.dtype, shape: list[int], seed: int, turned: bool
) -> None:
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    tensor = (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(shape)
    if turned and len(shape) > 1:
        tensor = tensor.transpose(0, 1)
    with tempfile.TemporaryDirectory() as folder:
        one = TrainState(0, {"group": {"first": torch.tensor(True), "name/of.it": tensor}}, {})
        run = RunFolder(Path(folder))
        save_step(run, one, keep_last=1)
        save_step(run, load_step(run).state, keep_last=1)  # what was loaded can be saved again
        found = load_step(run).state.tensors["group"]["name/of.it"]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert bits(found) == bits(tensor)


def test_groups_without_tensors_and_states_without_groups_are_kept(run: RunFolder) -> None:
    for step, tensors in enumerate(({"rows": {}, "adapter": {"a": torch.ones(2)}}, {})):
        save_step(run, TrainState(step, tensors, {"x": [1, 2.5, None, "ሰላም"]}), keep_last=9)
        assert_same(load_step(run).state, TrainState(step, tensors, {"x": [1, 2.5, None, "ሰላም"]}))
        assert "ሰላም" in (run.step(step) / "state.json").read_text(encoding="utf-8"), "people read this file"


def test_a_large_tensor_is_written_in_pieces_and_read_whole(run: RunFolder) -> None:
    large = TrainState(1, {"body": {"w": torch.randn(2500, 1024), "odd": torch.ones(3, dtype=torch.int8)}}, {})
    save_step(run, large, keep_last=1)
    assert_same(load_step(run).state, large)


def test_writing_waits_for_the_hash_when_eight_chunks_are_behind(tmp_path: Path) -> None:
    """Else a disk that is faster than the hash would fill the memory with chunks."""
    go_on, chunks = threading.Event(), [bytes([at]) * 10 for at in range(9)]
    with (tmp_path / "file").open("wb") as stream, ThreadPoolExecutor(1) as pool:
        pool.submit(go_on.wait)
        sink = _HashingSink(stream, pool, lambda _: None)
        writer = threading.Thread(target=sink.write, args=(chunks[8],))
        try:
            for chunk in chunks[:8]:
                sink.write(chunk)
            writer.start()
            writer.join(0.2)
            assert writer.is_alive(), "the ninth waits"
        finally:
            go_on.set()
        writer.join()
        assert sink.sha256 == hashlib.sha256(b"".join(chunks)).hexdigest()


def test_a_loaded_tensor_is_in_memory_of_its_own(run: RunFolder) -> None:
    save(run, 1)
    loaded = load_step(run).state
    before = {name: bits(tensor) for name, tensor in loaded.tensors["optimizer"].items()}
    loaded.tensors["rows"]["text_emb.weight"].zero_()
    assert {name: bits(tensor) for name, tensor in loaded.tensors["optimizer"].items()} == before
    assert_newest(run, 1)


def test_a_step_is_files_that_anybody_can_read(run: RunFolder) -> None:
    save(run, 7, keep=(3,))
    folder = run.step(7)
    assert names_in(folder) == sorted(FILES)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["step"] == 7
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert set(manifest["files"]) == {*FILES} - {"manifest.json"}
    content = json.loads((folder / "state.json").read_text())
    assert (content["format"], content["step"], content["keep"]) == (3, 7, [3]), "a new format needs a conversion"
    assert content["values"] == state(7).values
    rows = load_file(folder / "rows.safetensors")
    assert torch.equal(rows["text_emb.weight"], state(7).tensors["rows"]["text_emb.weight"])


def test_a_step_is_on_the_disk_before_it_takes_its_place_and_its_place_too(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may lose whatever was not synced, and keep a rename that came later."""
    events: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.rename

    sizes: dict[str, int] = {}

    def watched_sync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        events.append(("sync", path))
        sizes[Path(path).name] = os.fstat(descriptor).st_size
        sync(descriptor)

    def watched_rename(old: Path, new: Path) -> None:
        events.append((str(old), str(new)))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "rename", watched_rename)
    save(run, 1)
    (placed,) = (at for at, event in enumerate(events) if event[0] != "sync")
    hidden = Path(events[placed][0])
    assert events[placed][1] == str(run.step(1))
    synced = [path for _, path in events[:placed]]
    assert {str(hidden / name) for name in FILES} <= set(synced)
    assert {name: sizes[name] for name in FILES} == {name: (run.step(1) / name).stat().st_size for name in FILES}
    assert synced.index(str(hidden / "manifest.json")) < synced.index(str(hidden)), "the manifest, then the folder"
    assert all(synced.index(str(hidden / name)) < synced.index(str(hidden / "manifest.json")) for name in FILES[:-1])
    assert str(run.path) in synced, "the folder of the steps is new"
    assert [path for _, path in events[placed + 1 :]] == [str(run.steps)]
    events.clear()
    save(run, 2)
    move_later_steps_aside(run, 1)
    assert [path for kind, path in events if kind == "sync"][-2:] == [str(run.steps / "aside-1"), str(run.steps)]


@pytest.mark.parametrize(
    "values", [{"x": math.nan}, {"x": [math.inf]}, {"x": (1, 2)}, {"x": {1: 2}}, {"x": {1, 2}}, {"x": torch.ones(1)}]
)
def test_values_that_would_not_be_read_back_are_refused_before_anything_is_written(
    run: RunFolder, values: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="`x`"):
        save_step(run, TrainState(1, {}, values), keep_last=1)
    assert not run.steps.exists()


NESTED: list[Any] = []
for _ in range(300):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("value", "code"), [(NESTED, "json-too-deep"), (10**2000, "json-broken")], ids=["deep", "long"]
)
def test_values_beyond_the_limits_of_reading_are_refused_before_anything_is_written(
    run: RunFolder, value: Any, code: str
) -> None:
    with pytest.raises(VoxgraftError) as caught:
        save_step(run, TrainState(1, {}, {"x": value}), keep_last=1)
    assert caught.value.code == code
    assert not run.steps.exists()


def test_a_step_that_the_disk_has_no_room_for_is_refused_before_anything_is_written(run: RunFolder) -> None:
    free = shutil.disk_usage(run.path).free
    # Two bytes each: more than fits, although half as many bytes would fit. They have no memory, and no file.
    large = torch.empty(free // 4 * 3, dtype=torch.float16, device="meta")
    error = refused(save_step, run, TrainState(1, {"rows": {"new": large}}, {}), keep_last=1)
    assert error.code == "disk-too-small"
    assert f"{2 * large.numel():,} bytes" in error.finding.found
    assert list_complete_steps(run) == []


# ---- damage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["truncated", "bit-flipped", "missing", "empty", "a folder"])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_step_is_passed_by_and_told(run: RunFolder, file: str, damage: str) -> None:
    save(run, 1, 2)
    path = run.step(2) / file
    match damage:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-2])  # of the manifest, the brace and the line break
        case "bit-flipped":
            flip_bit(path, path.stat().st_size // 2)
        case "empty":
            path.write_bytes(b"")
        case _:
            path.unlink()
            if damage == "a folder":
                path.mkdir()
    loaded = load_step(run)
    assert_same(loaded.state, state(1))
    (reported,) = loaded.findings
    assert (reported.code, reported.level, reported.where) == ("step-damaged", "warning", str(run.step(2)))
    assert reported.found.startswith("step 2 is incomplete")
    assert file == "manifest.json" or file in reported.found
    assert list_complete_steps(run) == [1]
    assert refused(load_step, run, 2).code == "step-damaged"
    assert names_in(run.step(2)) == sorted({*FILES} - ({file} if damage == "missing" else set()))
    save(run, 3)
    assert_newest(run, 3)


def test_a_quick_look_sees_sizes_and_a_careful_one_every_bit(run: RunFolder) -> None:
    save(run, 1, 2, 3)
    flip_bit(run.step(2) / "rows.safetensors")
    (run.step(3) / "rows.safetensors").write_bytes(b"x")
    assert list_complete_steps(run, quick=True) == [1, 2]
    assert list_complete_steps(run) == [1]


def test_a_run_of_damaged_steps_is_refused_and_never_taken_for_a_new_one(run: RunFolder) -> None:
    save(run, 1, 2)
    for step in (1, 2):
        flip_bit(run.step(step) / "rows.safetensors")
    error = refused(load_step, run)
    assert error.code == "step-damaged"
    assert "step 2 is incomplete" in str(error)
    assert "step 1 is incomplete" in str(error)


def test_a_step_that_is_not_there_is_refused_with_those_that_are(run: RunFolder) -> None:
    assert refused(load_step, run).code == "step-missing"
    save(run, 1, 2)
    error = refused(load_step, run, 7)
    assert error.code == "step-missing"
    assert "1, 2" in error.finding.expected
    assert_same(load_step(run, 1).state, state(1))


@pytest.mark.parametrize(
    "manifest",
    ["[]", "{}", '{"step": 2, "files": {}}', '{"step": true, "files": {"state.json": {}}}', '{"step": 2, "files": 1}',
     '{"step": 2, "files": {"state.json": {"bytes": 1, "sha256": "x"}}}', '{"step": 2, "files": {"../state.json": 1}}', "{" * 500]
)  # fmt: skip
def test_a_manifest_of_another_form_makes_no_step(run: RunFolder, manifest: str) -> None:
    save(run, 1, 2)
    (run.step(2) / "manifest.json").write_text(manifest)
    assert_newest(run, 1)


def test_a_manifest_cannot_lead_out_of_its_folder(run: RunFolder) -> None:
    save(run, 1, 2)
    path = run.step(2) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../step-000001/rows.safetensors"] = manifest["files"].pop("rows.safetensors")
    path.write_text(json.dumps(manifest))
    assert list_complete_steps(run) == [1]


@pytest.mark.parametrize(
    "changes", [{"keep": None}, {"values": []}, {"step": 9}, {"groups": ["rows"]}, {"format": "1"}, {"format": -1}]
)
def test_a_state_of_another_form_makes_no_step(run: RunFolder, changes: dict[str, Any]) -> None:
    save(run, 1, 2)
    edit_state(run.step(2), **changes)
    loaded = load_step(run)
    assert loaded.state.step == 1
    assert [item.code for item in loaded.findings] == ["step-damaged"]


# ---- what else lies among the steps -------------------------------------------------------------------------


def test_copies_renamed_steps_and_foreign_folders_are_never_taken_for_steps(run: RunFolder) -> None:
    save(run, 1, 2)
    for name in (
        "step-000002 (copy)",
        "step-000009.bak",
        "step-9",
        "step-0000009",
        "backup",
        "aside-7",
        ".step-000009",
    ):
        shutil.copytree(run.step(2), run.steps / name)
    (run.steps / "step-000008").write_text("a file")
    (run.steps / "notes.txt").write_text("mine")
    before = names_in(run.steps)
    assert list_complete_steps(run) == [1, 2]
    assert load_step(run).findings == ()
    save(run, 3, 4, keep_last=1)
    assert set(names_in(run.steps)) == {*before, "step-000004"} - {"step-000001", "step-000002"}
    assert_newest(run, 4)


def test_a_step_renamed_to_another_number_is_reported_from_the_real_one(run: RunFolder) -> None:
    save(run, 1, 2)
    os.rename(run.step(2), run.step(700))
    loaded = load_step(run)
    assert loaded.state.step == 1
    assert "contains step 2" in loaded.findings[0].found


def test_files_that_somebody_added_to_a_step_change_nothing(run: RunFolder) -> None:
    save(run, 1)
    (run.step(1) / "notes.txt").write_text("the good one")
    (run.step(1) / "zzz.safetensors").write_bytes(b"no tensors")
    assert load_step(run).findings == ()
    assert_newest(run, 1)


def test_steps_behind_links_are_read_and_never_removed(run: RunFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other-disk"
    elsewhere.mkdir()
    save(run, 1, 2)
    shutil.move(run.step(1), elsewhere / "step-000001")
    run.step(1).symlink_to(elsewhere / "step-000001")
    run.step(5).symlink_to(tmp_path / "nowhere")
    assert list_complete_steps(run) == [1, 2]
    assert save(run, 3, keep_last=1) == ([2], [])
    assert names_in(elsewhere / "step-000001") == sorted(FILES)
    assert run.step(1).is_symlink()
    save(run, 5)  # a link that leads nowhere makes way
    assert_newest(run, 5)


def test_a_steps_folder_behind_a_link_works_like_any_other(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    run.steps.symlink_to("large")
    save(run, 1, 2, keep_last=1)
    assert names_in(tmp_path / "large") == ["step-000002"]
    assert_newest(run, 2)


@pytest.mark.parametrize("way", ["a file", "an empty folder", "a damaged step"])
def test_what_stands_in_the_place_of_a_step_is_moved_and_kept(run: RunFolder, way: str) -> None:
    save(run, 1)
    if way == "a damaged step":
        save(run, 2)
        flip_bit(run.step(2) / "rows.safetensors")
    elif way == "a file":
        run.step(2).write_text("text")
    else:
        run.step(2).mkdir()
    save(run, 2)
    assert_newest(run, 2)
    assert names_in(run.steps) == ["step-000001", "step-000002", "step-000002.damaged-1"]


def test_a_step_saved_again_replaces_the_first(run: RunFolder) -> None:
    save(run, 1, 2)
    save_step(run, state(2, seed=77), keep_last=5)
    assert_same(load_step(run).state, state(2, seed=77))
    assert names_in(run.steps) == ["step-000001", "step-000002"]


def test_while_a_step_is_replaced_its_old_save_can_be_loaded(run: RunFolder) -> None:
    save(run, 1, 2)
    os.rename(run.step(2), run.steps / "step-000002.old")
    loaded = load_step(run)
    assert_same(loaded.state, state(2))
    assert loaded.findings == ()
    save(run, 3, keep_last=2)
    assert list_complete_steps(run) == [2, 3]
    save_step(run, state(2, seed=77), keep_last=5)
    assert names_in(run.steps) == ["step-000002", "step-000003"]
    assert_same(load_step(run, 2).state, state(2, seed=77))


# ---- pruning ------------------------------------------------------------------------------------------------


def test_the_last_ones_and_the_kept_ones_stay(run: RunFolder) -> None:
    removed, _ = save(run, 100, 200, 300, 400, 500, 600, keep_last=2, keep=(200,))
    assert list_complete_steps(run) == [200, 500, 600]
    assert removed == [400]
    assert names_in(run.steps) == [run.step(step).name for step in (200, 500, 600)]


def test_damaged_steps_do_not_count_as_kept_and_are_not_removed(run: RunFolder) -> None:
    save(run, 1, 2, 3)
    (run.step(3) / "state.json").unlink()
    save(run, 4, keep_last=2)
    assert list_complete_steps(run) == [2, 4]
    assert run.step(3).is_dir()


def test_later_steps_are_never_removed(run: RunFolder) -> None:
    save(run, 10, 20, 30)
    save(run, 15, keep_last=1)
    assert list_complete_steps(run) == [15, 20, 30]


def test_a_step_that_cannot_be_removed_is_a_finding_and_the_save_stands(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 1, 2)
    monkeypatch.setenv(FAILPOINT_VARIABLE, "remove.begin:1:eacces")
    removed, (reported,) = save(run, 3, keep_last=1)
    assert removed == [2]
    assert (reported.code, reported.level) == ("step-left", "warning")
    assert "step-000001" in reported.found
    monkeypatch.delenv(FAILPOINT_VARIABLE)
    assert_newest(run, 3)
    assert save(run, 4, keep_last=1)[0] == [1, 3]


def test_nothing_is_removed_before_the_new_step_was_read_back(run: RunFolder) -> None:
    save(run, 1, 2)
    with stopped_at("save.verify", run, 3) as process:
        (unfinished,) = list_leftover_folders(run)
        flip_bit(unfinished / "optimizer.safetensors")
    assert process.answer == "step-unverified"
    assert names_in(run.steps) == ["step-000001", "step-000002"]
    assert_newest(run, 2)


def test_a_step_is_saved_again_where_its_replaced_save_was_left_behind(run: RunFolder) -> None:
    save(run, 1)
    shutil.copytree(run.step(1), run.step(1).with_name(run.step(1).name + ".old"))
    save(run, 1)
    assert names_in(run.steps) == [run.step(1).name]
    assert_newest(run, 1)
