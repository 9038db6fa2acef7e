"""The community's manifests of pairs: taken as they are, with what is wrong in them found, counted and named."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.datasets import PADDING_CODE, WIDTH, MadePairs, make_pairs, spell, spell_otherwise
from tests.support.shared import shared
from voxgraft.core.errors import FileError, GraftError, TextError, VoxgraftError
from voxgraft.dataset.indextts2_manifest import (
    PairDataset,
    open_npy,
    open_pair_dataset,
    read_npy,
    split_manifest_language,
)
from voxgraft.dataset.sampler import DeterministicSampler
from voxgraft.dataset.sets import check_clip_dataset
from voxgraft.models.indextts2.family import unified_voice_sequence_spec
from voxgraft.tokenizers import open_tokenizer

FRAME = unified_voice_sequence_spec(300)


def adopted(made: MadePairs, **options: Any) -> PairDataset:
    return open_pair_dataset(made.manifest, options.pop("spell", spell), FRAME, **{"language": "am", **options})


def found(clips: PairDataset, code: str) -> str:
    (item,) = [item for item in clips.findings if item.code == code]
    return item.found


def test_a_healthy_manifest_is_taken_as_it_is(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    clips = adopted(made)
    assert clips.findings == []
    assert (clips.name, len(clips), clips.header.language) == ("train_pairs", len(made.records), "am")
    for at, record in enumerate(made.records):
        target, prompt = record["target_id"], record["prompt_id"]
        assert clips.infos[at].id == record["id"]
        assert clips.infos[at].text == record["target_text"]
        assert clips.infos[at].seconds == pytest.approx(len(made.codes[target]) / 50)
        assert clips.text_ids(at).tolist() == spell(record["target_text"])
        assert clips.codes(at).tolist() == made.codes[target].tolist()
        assert (clips.num_text[at], clips.num_codes[at]) == (len(clips.text_ids(at)), len(clips.codes(at)))
        lent = clips.voice(clips.prompt_of(at))
        assert clips.infos[clips.prompt_of(at)].id == prompt
        assert np.array_equal(lent["latents"], made.conditions[prompt])
        assert np.array_equal(lent["emotion"], made.emotions[prompt])
        own = clips.voice(at)
        assert np.array_equal(own["latents"], made.conditions[prompt])
        assert np.array_equal(own["emotion"], made.emotions[target])
    assert check_clip_dataset(clips, FRAME, 50.0) == []


def test_the_data_order_uses_the_prompts_of_the_manifest(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    clips = adopted(made)
    stream = DeterministicSampler([clips], [1.0], 2000, 0)
    met = [item for number in range(1, stream.steps_for_epochs(1) + 1) for item in stream.step(number)]
    assert {item.clip for item in met} == set(range(len(clips)))
    for item in met:
        assert clips.infos[item.prompt[1]].id == made.records[item.clip]["prompt_id"]
        assert len(clips.codes(item.prompt[1])) == 0
    (report,) = stream.streams
    assert report.findings() == []


@pytest.mark.parametrize("way", ["seconds", "single manifest", "run", "stated"])
def test_padded_codes_are_cut_counted_and_named_whatever_shows_it(way: str, tmp_path: Path) -> None:
    made = make_pairs(
        tmp_path / "data", clips=24, batch=6, durations=way == "seconds", codes_stated=way == "stated", seed=3
    )
    if way == "single manifest":
        singles = [json.dumps({"id": name, "duration": len(codes) / 50}) for name, codes in made.codes.items()]
        (tmp_path / "data" / "train_manifest.jsonl").write_text("\n".join(singles))
    clips = adopted(made)
    slack = 5
    padded = cut = 0
    for at, record in enumerate(made.records):
        own = made.codes[record["target_id"]]
        stored = np.load(tmp_path / "data" / record["target_codes_path"])
        kept = clips.codes(at)
        assert len(own) <= len(kept) <= len(own) + slack
        assert kept[: len(own)].tolist() == own.tolist()
        padded += len(stored) > len(own) + slack
        cut += len(stored) > len(kept)
    assert 0 < padded <= cut
    text = found(clips, "pairs-padded")
    expected = {
        "seconds": "by their duration",
        "single manifest": "by their duration",
        "run": "by the repeated code at their end",
    }
    assert expected.get(way, "by their stated length") in text
    assert "of 24 targets are padded" in text
    named = next(name for name in made.codes if name in text)
    assert len(np.load(tmp_path / "data" / "codes" / f"{named}.npy")) > len(made.codes[named])
    assert [item.code for item in check_clip_dataset(clips, FRAME, 50.0)] == []


def test_nearly_half_of_all_codes_are_padding_in_big_batches_and_all_of_it_goes(tmp_path: Path) -> None:
    made = make_pairs(
        tmp_path / "data", clips=48, speakers=1, batch=16, lengths=[50 + 29 * (n * 7 % 48) for n in range(48)]
    )
    clips = adopted(made)
    own = sum(map(len, made.codes.values()))
    stored = sum(len(np.load(path)) for path in (tmp_path / "data" / "codes").iterdir())
    assert 1 - own / stored > 0.3
    assert f"{stored - own:,} of {stored:,} codes were cut" in found(clips, "pairs-padded")


def test_silence_at_the_end_of_recordings_is_not_taken_for_padding(tmp_path: Path) -> None:
    ends = {number: 12 + number for number in range(40)}
    made = make_pairs(tmp_path / "data", clips=40, speakers=2, durations=False, ends=ends)
    clips = adopted(made)
    assert clips.findings == []
    assert int(clips.num_codes.sum()) == sum(len(made.codes[record["target_id"]]) for record in made.records)


def test_padding_of_one_batch_of_two_is_seen(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data", clips=8, speakers=1, batch=2, durations=False, lengths=[100, 200] * 4)
    clips = adopted(made)
    assert set(clips.num_codes.tolist()) == {105, 200}
    assert "4 of 8 targets" in found(clips, "pairs-padded")


def test_utterances_over_the_models_positions_are_left_out_counted_and_named(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data", clips=9, lengths=[100] * 7 + [1815, 1816])
    for record in made.records:
        if record["target_id"] == "spk000_000000":
            record["target_text"] = "ሀ" * 601
    made.rewrite()
    clips = adopted(made)
    text = found(clips, "pairs-too-long")
    assert text.startswith(f"4 of {len(made.records)} pairs")
    assert "spk002_000008__spk002_000002 (line" in text
    assert "spk000_000000__spk000_000003 (line 1)" in text
    targets = {info.recording for info in clips.infos[: len(clips)]}
    assert "spk001_000007" in targets
    assert not targets & {"spk000_000000", "spk002_000008"}
    assert check_clip_dataset(clips, FRAME, 50.0) == []


def test_a_long_utterance_that_is_only_padding_stays(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data", clips=6, speakers=2, batch=3, lengths=[100, 200, 2000, 100, 200, 300])
    clips = adopted(made)
    assert {info.recording for info in clips.infos[: len(clips)]} == set(made.codes) - {"spk000_000002"}
    assert "pairs-too-long" in {item.code for item in clips.findings}


def test_ids_of_another_tokenizer_of_the_same_size_are_found_counted_and_never_used(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    clips = adopted(made, spell=spell_otherwise)
    text = found(clips, "pairs-other-tokenizer")
    assert "stored ids of 12 of 12 targets" in text
    assert "spk000_000000" in text
    for at, record in enumerate(made.records):
        assert clips.text_ids(at).tolist() == spell_otherwise(record["target_text"])
    np.save(tmp_path / "data" / "text_ids" / "spk001_000004.npy", np.array([1, 2, 3]))
    text = found(adopted(made), "pairs-other-tokenizer")
    assert "stored ids of 1 of 12 targets" in text
    assert "spk001_000004" in text


def test_old_ids_that_are_missing_or_broken_are_noted_and_not_needed(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    (tmp_path / "data" / "text_ids" / "spk001_000004.npy").unlink()
    (tmp_path / "data" / "text_ids" / "spk002_000005.npy").write_bytes(b"junk")
    clips = adopted(made)
    assert [item.code for item in clips.findings] == ["pairs-old-ids"]
    assert "2 of 12" in clips.findings[0].found
    assert len(clips) == len(made.records)


def test_a_folder_that_was_moved_and_paths_of_windows_are_found(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    before = adopted(made)
    for number, record in enumerate(made.records):
        for key in [key for key in record if key.endswith("_path")]:
            record[key] = f"/old/place/{record[key]}" if number % 2 else f"D:\\data\\{record[key]}".replace("/", "\\")
    made.rewrite()
    shutil.move(tmp_path / "data", tmp_path / "moved")
    made.manifest = tmp_path / "moved" / "train_pairs.jsonl"
    clips = adopted(made)
    assert clips.findings == []
    assert [clips.codes(at).tolist() for at in range(3)] != []
    assert clips.num_codes.tolist() == before.num_codes.tolist()
    assert np.array_equal(clips.voice(0)["latents"], made.conditions[made.records[0]["prompt_id"]])


def test_the_fingerprint_changes_with_a_code_and_not_with_the_place(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    first = adopted(made).fingerprint
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = MadePairs(tmp_path / "copy" / "train_pairs.jsonl", made.records, made.codes)
    assert adopted(copy).fingerprint == first
    path = tmp_path / "copy" / "codes" / "spk000_000000.npy"
    np.save(path, np.load(path)[::-1])
    assert adopted(copy).fingerprint != first


def test_prompts_that_are_their_own_target_and_lines_without_text_are_left_out(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    made.records[1]["prompt_id"] = made.records[1]["target_id"]
    made.records[3]["target_text"] = " "
    made.rewrite()
    clips = adopted(made)
    assert len(clips) == len(made.records) - 2
    assert f"{made.records[1]['id']} (line 2)" in found(clips, "pairs-prompt-is-target")
    assert f"{made.records[3]['id']} (line 4)" in found(clips, "pairs-no-text")


def test_a_manifest_of_which_nothing_can_be_used_is_refused_with_the_reasons(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    for record in made.records:
        record["prompt_id"] = record["target_id"]
    made.rewrite()
    with pytest.raises(GraftError) as caught:
        adopted(made)
    assert caught.value.code == "set-empty"
    assert "24 have the target clip as the prompt" in caught.value.finding.found


def test_the_targets_emotion_may_be_missing_and_the_prompts_stands_in(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    del made.records[0]["target_emo_vec_path"]
    made.rewrite()
    clips = adopted(made)
    assert np.array_equal(clips.voice(0)["emotion"], made.emotions[made.records[0]["prompt_id"]])
    assert f"1 of {len(made.records)} pairs" in found(clips, "pairs-no-emotion")


def test_a_text_that_cannot_be_spelled_is_named_by_its_line(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")

    def refusing(text: str) -> list[int]:
        if text.endswith("4"):
            raise TextError("text-marks", "a letter with 90 marks")
        return spell(text)

    with pytest.raises(TextError) as caught:
        adopted(made, spell=refusing)
    line = next(at for at, record in enumerate(made.records, 1) if record["target_text"].endswith("4"))
    assert caught.value.finding.where == f"{made.manifest}, line {line}"


def broken_files() -> dict[str, Callable[[Path], object]]:
    pickled = b"\x93NUMPY\x01\x00" + (80).to_bytes(2, "little")
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(79) + b"\n"
    return {
        "codes missing": lambda root: (root / "codes" / "spk001_000004.npy").unlink(),
        "a condition missing": lambda root: (root / "condition" / "spk001_000004.npy").unlink(),
        "an emotion missing": lambda root: (root / "emo_vec" / "spk001_000004.npy").unlink(),
        "codes cut off": lambda root: cut_off(root / "codes" / "spk001_000004.npy"),
        "a condition cut off": lambda root: cut_off(root / "condition" / "spk001_000004.npy"),
        "an empty file": lambda root: (root / "codes" / "spk001_000004.npy").write_bytes(b""),
        "a pickle": lambda root: (root / "codes" / "spk001_000004.npy").write_bytes(
            pickled + header + pickle.dumps(["code"])
        ),
        "codes of fractions": lambda root: np.save(root / "codes" / "spk001_000004.npy", np.ones(50)),
        "codes in a table": lambda root: np.save(root / "codes" / "spk001_000004.npy", np.ones((2, 50), np.int32)),
        "no codes": lambda root: np.save(root / "codes" / "spk001_000004.npy", np.ones(0, np.int32)),
        "codes of 64 bits": lambda root: np.save(root / "codes" / "spk001_000004.npy", np.array([1 << 40])),
        "another width": lambda root: np.save(root / "emo_vec" / "spk001_000004.npy", np.ones(WIDTH + 1, np.float32)),
        "31 latents": lambda root: np.save(root / "condition" / "spk001_000004.npy", np.ones((31, WIDTH), np.float32)),
        "a condition of ids": lambda root: np.save(
            root / "condition" / "spk001_000004.npy", np.ones((32, WIDTH), np.int32)
        ),
    }


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("fault", broken_files())
def test_files_that_are_missing_or_broken_are_named_with_their_line(fault: str, tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    broken_files()[fault](tmp_path / "data")
    with pytest.raises(FileError) as caught:
        adopted(made)
    assert caught.value.code == "pairs-files"
    assert "spk001_000004.npy" in caught.value.finding.found
    line = int(caught.value.finding.where.rsplit(" ", 1)[1])
    assert "spk001_000004" in json.dumps(made.records[line - 1])
    assert caught.value.finding.cure


def test_all_missing_files_are_counted_at_once(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "codes")
    with pytest.raises(FileError, match=r"12 files cannot be used \(lines 1, 3, 5, 7, 9, \.\.\.\)"):
        adopted(made)


def test_a_file_that_changes_under_a_run_is_an_error(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    clips = adopted(made)
    np.save(tmp_path / "data" / made.records[0]["target_codes_path"], np.ones(3, np.int32))
    with pytest.raises(FileError, match="changed to shape"):
        clips.codes(0)


def bad_lines() -> dict[str, tuple[str, Callable[[dict[str, Any]], Any]]]:
    single = {"id": "x", "text": "ሰላም", "codes_path": "codes/x.npy", "condition_path": "condition/x.npy"}
    return {
        "a list": ("pairs-line", lambda _record: ["x"]),
        "one utterance": ("pairs-single", lambda _record: single),
        "a number for a path": ("pairs-line", lambda record: {**record, "target_codes_path": 5}),
        "an empty path": ("pairs-line", lambda record: {**record, "prompt_condition_path": ""}),
        "half a pair": ("pairs-line", lambda record: {"prompt_condition_path": record["prompt_condition_path"]}),
        "a number for the text": ("pairs-line", lambda record: {**record, "target_text": 7}),
        "an id that was there": ("pairs-duplicate", lambda record: {**record, "id": "spk000_000000__spk000_000003"}),
        "another language": ("pairs-language", lambda record: {**record, "target_language": "ti"}),
        "no emotion": (
            "pairs-files",
            lambda record: {key: value for key, value in record.items() if "emo_vec" not in key},
        ),
    }


@pytest.mark.parametrize("fault", bad_lines())
def test_lines_that_are_no_pairs_are_refused_by_their_number(fault: str, tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    code, spoil = bad_lines()[fault]
    made.records[4] = spoil(made.records[4])
    made.rewrite()
    with pytest.raises(FileError) as caught:
        adopted(made)
    assert caught.value.code == code
    assert "line 5" in caught.value.finding.where + caught.value.finding.found


def test_a_manifest_of_single_utterances_points_to_the_pairs_beside_it(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    manifest = tmp_path / "data" / "train_manifest.jsonl"
    manifest.write_text(json.dumps({"id": "x", "text": "ሰላም", "codes_path": "codes/x.npy"}))
    with pytest.raises(FileError) as caught:
        open_pair_dataset(manifest, spell, FRAME, language="am")
    assert caught.value.code == "pairs-single"
    assert made.manifest.name in caught.value.finding.cure


@pytest.mark.parametrize("content", ["", "\n\n", "{", '{"id": 1', '{"a": 1, "a": 2}'])
def test_empty_and_broken_manifests_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "train_pairs.jsonl"
    path.write_text(content)
    with pytest.raises(FileError):
        open_pair_dataset(path, spell, FRAME, language="am")


def test_the_language_comes_from_the_caller_or_from_the_lines_and_is_never_guessed(tmp_path: Path) -> None:
    made = make_pairs(tmp_path / "data")
    with pytest.raises(FileError, match="no line states its language"):
        adopted(made, language=None)
    for record in made.records:
        record["language"] = "AM"
    made.rewrite()
    assert adopted(made, language=None).header.language == "am"
    with pytest.raises(FileError, match="lines are in am"):
        adopted(made, language="ti")


@pytest.mark.parametrize(
    ("spec", "path", "language"),
    [
        ("a/train_pairs.jsonl::am", "a/train_pairs.jsonl", "am"),
        ("a/train_pairs.jsonl@AM", "a/train_pairs.jsonl", "am"),
        ("a/train_pairs.jsonl=zh-cn", "a/train_pairs.jsonl", "zh-cn"),
        ("a/train_pairs.jsonl", "a/train_pairs.jsonl", None),
        ("user@host/train_pairs.jsonl", "user@host/train_pairs.jsonl", None),
        ("run=3/train_pairs.jsonl::ti", "run=3/train_pairs.jsonl", "ti"),
    ],
)
def test_a_language_behind_the_manifests_name_is_split_off(spec: str, path: str, language: str | None) -> None:
    assert split_manifest_language(spec) == (Path(path), language)


def test_a_manifest_whose_own_name_ends_like_a_language_is_left_whole(tmp_path: Path) -> None:
    (tmp_path / "pairs@am").write_text("x")
    assert split_manifest_language(str(tmp_path / "pairs@am")) == (tmp_path / "pairs@am", None)


NUMBERS = ["i1", "u1", "<i2", ">i4", "<u4", "<i8", "<f2", "<f4", ">f8"]


@given(
    st.sampled_from(NUMBERS),
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arrays_are_read_as_numpy_wrote_them(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, shape: list[int], version: tuple[int, int]
) -> None:
    array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    path = tmp_path_factory.getbasetemp() / "array.npy"
    with path.open("wb") as stream:
        np.lib.format.write_array(stream, array, version=version)
    kind = "floats" if "f" in dtype else "integers"
    read = read_npy(path, kind)  # type: ignore[arg-type]
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert np.array_equal(read, array)
    with pytest.raises(FileError):
        open_npy(path, "integers" if kind == "floats" else "floats")


@given(st.data())
@settings(max_examples=200)
def test_a_damaged_array_is_an_error_of_ours_or_numbers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npy"
    np.save(path, np.arange(12, dtype=np.int32).reshape(3, 4))
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged[: data.draw(st.just(len(damaged)) | st.integers(0, len(damaged)))])
    try:
        assert read_npy(path, "integers").dtype.kind in "iu"
    except VoxgraftError as error:
        assert error.finding.where == str(path)  # noqa: PT017 (damage may also be harmless)


def test_arrays_column_by_column_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(np.ones((3, 4), np.float32)))
    with pytest.raises(FileError, match="column by column"):
        read_npy(tmp_path / "x.npy", "floats")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base with features and manifests, made by somebody else's maker."""
    tool = shared("tools/make_fake_indextts2.py")
    folder = tmp_path_factory.mktemp("others")
    command = [sys.executable, str(tool), str(folder), "--tiny", "--vocab", "600", "--samples", "20"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.long
def test_manifests_of_an_independent_maker_are_taken(others: Path) -> None:
    tokenizer = open_tokenizer(others / "bpe.model")
    spec = unified_voice_sequence_spec(tokenizer.size)
    for name in ("train", "val"):
        manifest = others / "features" / f"{name}_pairs.jsonl"
        lines = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
        clips = open_pair_dataset(manifest, tokenizer.encode, spec, language="am", role="train")
        assert len(clips) == len(lines)
        assert {item.code for item in clips.findings} <= {"pairs-other-tokenizer"}
        for at, line in enumerate(lines):
            codes = np.load(others / "features" / line["target_codes_path"])
            assert clips.codes(at).tolist() == codes.tolist()
            assert clips.text_ids(at).tolist() == tokenizer.encode(line["target_text"])
            assert clips.voice(at)["latents"].shape == (32, 64)
        assert not [item for item in check_clip_dataset(clips, spec, 50.0) if item.level == "error"]


@pytest.mark.long
def test_padding_the_independent_makers_codes_is_undone(others: Path, tmp_path: Path) -> None:
    folder = tmp_path / "features"
    shutil.copytree(others / "features", folder)
    paths = sorted((folder / "codes").iterdir())
    own = {path.stem: len(np.load(path)) for path in paths}
    longest = max(own.values())
    for path in paths:
        codes = np.load(path)
        np.save(path, np.concatenate([codes, np.full(longest - len(codes), PADDING_CODE, np.int32)]))
    tokenizer = open_tokenizer(others / "bpe.model")
    clips = open_pair_dataset(
        folder / "train_pairs.jsonl", tokenizer.encode, unified_voice_sequence_spec(tokenizer.size), language="am"
    )
    for at in range(len(clips)):
        assert 0 <= clips.num_codes[at] - own[clips.infos[at].recording] <= 5
    assert "targets are padded" in found(clips, "pairs-padded")
