"""Sets of clips on disk: what is written is read, and nothing else is taken for a set."""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.datasets import CODE_HZ, MADE_FROM, made_clips, write_document
from tests.support.families import PUBLISHED
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.core.errors import FileError, GraftError, VoxgraftError
from voxgraft.dataset.sets import check_clip_dataset, open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import AnyArray, ClipDataset, DatasetHeader, DatasetProvenance
from voxgraft.models import get_family
from voxgraft.models.base import Clip, SequenceSpec

SHARD = "shard-00000.safetensors"
LINES = "shard-00000.jsonl"


def spec_of(name: str) -> SequenceSpec:
    return get_family(name).sequence_spec(300)


def header_of(name: str = "chatterbox") -> DatasetHeader:
    return DatasetHeader(name, "am", "train", CODE_HZ[name], MADE_FROM)


def clips_of(name: str = "chatterbox", count: int = 7) -> list[Clip]:
    return list(made_clips(name, spec_of(name), clips=count, speakers=2, seed=5, seconds=(1.0, 2.0)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small set of Chatterbox's clips."""
    write_clip_dataset(tmp_path / "new", header_of(), clips_of())
    return tmp_path / "new"


def rewritten(folder: Path, change: Callable[[dict[str, AnyArray]], None]) -> None:
    """Other arrays in a shard, with sizes and hashes in set.json as if they had been written so."""
    with open_checkpoint(folder / SHARD) as file:
        arrays: dict[str, AnyArray] = {name: file.read(name, raw=True) for name in file.tensors}
    change(arrays)
    with (folder / SHARD).open("wb") as stream:
        write_safetensors(stream, {name: TensorBytes.of(array) for name, array in arrays.items()})
    restated(folder)


def restated(folder: Path) -> None:
    """Sizes and hashes in set.json made true for the files that are there."""
    document = json.loads((folder / "set.json").read_text())
    for entry in document["shards"]:
        for file in (entry, entry["lines"]):
            data = (folder / file["file"]).read_bytes()
            file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_document(folder, document)


def restate(folder: Path, **changes: Any) -> None:
    document = json.loads((folder / "set.json").read_text())
    write_document(folder, {**document, **changes})


def read_all(clips: ClipDataset) -> list[tuple[Any, ...]]:
    return [
        (clips.infos[at], clips.text_ids(at).tolist(), clips.codes(at).tolist(), clips.voice(at))
        for at in range(len(clips))
    ]


@pytest.mark.parametrize("shard_clips", [1, 3, 100])
@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_written_is_read_back_bit_by_bit(name: str, shard_clips: int, tmp_path: Path) -> None:
    written = clips_of(name)
    write_clip_dataset(tmp_path / "new", header_of(name), written, shard_clips)
    clips = open_clip_dataset(tmp_path / "new", verify="hashes")
    assert (clips.name, len(clips), clips.header) == ("new", len(written), header_of(name))
    assert list(clips.infos) == [
        replace(clip, codes=info.codes, voice=info.voice, text_ids=info.text_ids)
        for clip, info in zip(written, clips.infos, strict=True)
    ]
    for at, clip in enumerate(written):
        assert clips.text_ids(at).tolist() == list(clip.text_ids)
        assert clips.codes(at).tolist() == list(clip.codes)
        assert (clips.num_text[at], clips.num_codes[at]) == (len(clip.text_ids), len(clip.codes))
        voice = clips.voice(at)
        assert voice.keys() == clip.voice.keys()
        for key, array in clip.voice.items():
            assert voice[key].dtype == array.dtype
            assert np.array_equal(voice[key], array)
    counts = json.loads((tmp_path / "new" / "set.json").read_text())["counts"]
    assert (counts["clips"], counts["speakers"], counts["codes"]) == (7, 2, int(clips.num_codes.sum()))


def test_the_fingerprint_changes_with_any_clip_and_with_nothing_else(tmp_path: Path) -> None:
    written = clips_of()
    other = [*written[:-1], replace(written[-1], codes=np.append(written[-1].codes[:-1], 5))]
    renamed = [replace(written[0], speaker="x"), *written[1:]]
    found = []
    for number, clips in enumerate([written, written, other, renamed]):
        write_clip_dataset(tmp_path / str(number), header_of(), clips)
        found.append(open_clip_dataset(tmp_path / str(number)).fingerprint)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_opening_a_set_of_gigabytes_reads_none_of_its_codes(tmp_path: Path) -> None:
    write_clip_dataset(tmp_path / "new", header_of(), clips_of(count=1))
    codes = 1 << 30
    entry = {"dtype": "I32", "shape": [codes], "data_offsets": [16, 16 + 4 * codes]}
    voice = 16 + 4 * codes
    header = {
        "text_ends": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
        "codes_ends": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]},
        "codes": entry,
        "text": {"dtype": "I32", "shape": [1], "data_offsets": [voice, voice + 4]},
        "voice.speaker": {"dtype": "F32", "shape": [1, 256], "data_offsets": [voice + 4, voice + 1028]},
        "voice.prompt": {"dtype": "I32", "shape": [0], "data_offsets": [voice + 1028, voice + 1028]},
        "voice.prompt_ends": {"dtype": "I64", "shape": [1], "data_offsets": [voice + 1028, voice + 1036]},
    }
    text = json.dumps(header).encode()
    with (tmp_path / "new" / SHARD).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.write(np.array([1, codes], "<i8").tobytes())
        stream.truncate(8 + len(text) + voice + 1036)
    document = json.loads((tmp_path / "new" / "set.json").read_text())
    document["shards"][0]["bytes"] = 8 + len(text) + voice + 1036
    document["counts"] |= {"text_ids": 1, "codes": codes}
    write_document(tmp_path / "new", document)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    clips = open_clip_dataset(tmp_path / "new", verify="sizes")
    assert clips.num_codes.tolist() == [codes]
    assert clips.codes(0)[codes - 3 :].tolist() == [0, 0, 0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


@pytest.mark.long
def test_a_set_of_more_shards_than_open_files_is_read(tmp_path: Path) -> None:
    clips = made_clips("chatterbox", spec_of("chatterbox"), clips=260, speakers=1, seed=0, seconds=(0.2, 0.3))
    write_clip_dataset(tmp_path / "new", header_of(), clips, shard_clips=1)
    program = (
        "import resource, sys; from pathlib import Path; from voxgraft.dataset.sets import open_clip_dataset\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "clips = open_clip_dataset(Path(sys.argv[1]))\n"
        "assert sum(len(clips.codes(at)) for at in range(len(clips))) == clips.num_codes.sum()"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "new")], check=True)


def test_the_data_path_needs_no_torch() -> None:
    modules = "indextts2_manifest run_data sampler sets shards"
    program = "import sys\n" + "\n".join(f"import voxgraft.dataset.{name}" for name in modules.split())
    subprocess.run([sys.executable, "-c", f"{program}\nassert 'torch' not in sys.modules"], check=True)


def test_arrays_of_a_clip_cannot_be_written_to(folder: Path) -> None:
    clips = open_clip_dataset(folder)
    with pytest.raises(ValueError, match="read-only"):
        clips.codes(0)[0] = 1
    with pytest.raises(IndexError):
        clips.codes(len(clips))


def test_a_set_whose_writing_fails_half_way_is_not_there(tmp_path: Path) -> None:
    def failing() -> Iterator[Clip]:
        yield from clips_of(count=5)
        raise RuntimeError("the encoder fell over")

    with pytest.raises(RuntimeError, match="fell over"):
        write_clip_dataset(tmp_path / "new", header_of(), failing(), shard_clips=2)
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_set_stays_whole_when_writing_fails_and_is_kept_when_it_does_not(folder: Path) -> None:
    earlier = open_clip_dataset(folder).fingerprint
    bad = replace(clips_of()[0], codes=np.array([2**40]))
    with pytest.raises(FileError):
        write_clip_dataset(folder, header_of(), [*clips_of(count=3)[1:], bad], shard_clips=1)
    assert open_clip_dataset(folder, verify="hashes").fingerprint == earlier
    write_clip_dataset(folder, header_of(), clips_of(count=2))
    assert open_clip_dataset(folder.with_name("new.previous"), verify="hashes").fingerprint == earlier
    assert len(open_clip_dataset(folder)) == 2


def wrong_clips() -> dict[str, Clip]:
    clip = clips_of(count=1)[0]
    speaker, prompt = clip.voice["speaker"], clip.voice["prompt"]
    other = replace(clip, id="other")
    return {
        "codes of fractions": replace(other, codes=np.ones(4)),
        "codes in a table": replace(other, codes=np.ones((2, 2), np.int64)),
        "ids of 64 bits": replace(other, text_ids=[1 << 40]),
        "a voice of another shape": replace(other, voice={"speaker": speaker[:-1], "prompt": prompt}),
        "a voice of another type": replace(other, voice={"speaker": speaker.astype(np.float16), "prompt": prompt}),
        "a voice array missing": replace(other, voice={"speaker": speaker}),
        "no seconds": replace(other, seconds=0.0),
        "seconds that are no number": replace(other, seconds=float("nan")),
        "half a character": replace(other, text="\ud800"),
        "no speaker": replace(other, speaker=""),
        "a line without end": replace(other, text="a" * (1 << 20)),
    }


@pytest.mark.parametrize("fault", wrong_clips())
def test_a_clip_that_a_set_cannot_keep_is_refused_by_its_id(fault: str, tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        write_clip_dataset(tmp_path / "new", header_of(), [clips_of(count=1)[0], wrong_clips()[fault]])
    assert caught.value.code == "clip-form"
    assert "'other'" in caught.value.finding.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "voice", [{"a b": np.ones(3, np.float32)}, {"x_ends": np.ones(3, np.float32)}, {"x": np.ones(3)}]
)
def test_voice_arrays_that_a_set_cannot_name_or_keep_are_refused(voice: dict[str, AnyArray], tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        write_clip_dataset(tmp_path / "new", header_of(), [replace(clips_of(count=1)[0], voice=voice)])
    assert caught.value.code == "clip-form"


def test_no_clips_and_two_clips_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraftError) as empty:
        write_clip_dataset(tmp_path / "new", header_of(), [])
    assert empty.value.code == "set-empty"
    with pytest.raises(GraftError, match="clip000000"):
        write_clip_dataset(tmp_path / "new", header_of(), [clips_of()[0], clips_of()[0]])
    assert list(tmp_path.iterdir()) == []


def test_a_set_that_is_what_the_run_expects_is_opened(folder: Path) -> None:
    expected = {
        "family": "chatterbox",
        "code_hz": 25,
        "made_from": {
            "tokenizer_sha256": "a" * 64,
            "base_sha256": "b" * 64,
            "front_end": {"codec": "made up"},
            "settings": {"min_seconds": 1},
        },
    }
    assert len(open_clip_dataset(folder, expected=expected)) == 7


@pytest.mark.parametrize(
    ("made_from", "shown"),
    [
        ({"tokenizer_sha256": "c" * 64}, "cccccccccccccccc..."),
        ({"settings": {"min_seconds": 2.0}}, "2.0"),
        ({"settings": {}}, "made_from.settings.min_seconds"),
        ({"settings": {"min_seconds": 1.0, "loudness": -23}}, "-23"),
        ({"front_end": {"codec": "another"}}, "another"),
    ],
)
def test_a_stale_set_is_refused_with_both_sides_and_the_cure(
    made_from: dict[str, Any], shown: str, folder: Path
) -> None:
    with pytest.raises(GraftError) as caught:
        open_clip_dataset(folder, expected={"family": "chatterbox", "made_from": made_from})
    assert caught.value.code == "set-stale"
    found = caught.value.finding.found
    assert shown in found
    assert "the clips" in found
    assert "this run" in found
    assert "prepare the clips again" in caught.value.finding.cure
    assert str(folder) in caught.value.finding.where


@pytest.mark.parametrize(
    "expected",
    [{"family": "indextts2"}, {"language": "ti"}, {"role": "valid"}, {"made_from": {"base_sha256": "d" * 64}}],
)
def test_a_set_of_another_base_family_language_or_role_is_refused(expected: dict[str, Any], folder: Path) -> None:
    with pytest.raises(GraftError) as caught:
        open_clip_dataset(folder, expected=expected)
    assert caught.value.code == "set-foreign"


def test_many_differences_are_shown_in_part_and_counted(tmp_path: Path) -> None:
    settings_of = {f"setting_{number}": number for number in range(40)}
    header = replace(header_of(), made_from=DatasetProvenance("a", "b", {}, settings_of))
    write_clip_dataset(tmp_path / "new", header, clips_of(count=1))
    with pytest.raises(GraftError, match="and 32 more"):
        open_clip_dataset(tmp_path / "new", expected={"made_from": {"settings": {}}})


@pytest.mark.parametrize("name", [SHARD, LINES, "set.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(name: str, share: float, folder: Path) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(VoxgraftError) as caught:
        open_clip_dataset(folder)
    assert name in caught.value.finding.where


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_flipped_bit_anywhere_is_found_by_its_hash(data: st.DataObject, folder: Path) -> None:
    name = data.draw(st.sampled_from([SHARD, LINES]))
    path = folder / name
    whole = path.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    try:
        with pytest.raises(FileError) as caught:
            open_clip_dataset(folder, verify="hashes")
        assert caught.value.code == "set-damaged"
        assert name in caught.value.finding.where
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", [SHARD, LINES])
def test_a_missing_file_is_refused_by_its_name(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(FileError, match=f"{name} does not exist"):
        open_clip_dataset(folder)


def test_a_folder_without_set_json_is_no_set(folder: Path) -> None:
    (folder / "set.json").unlink()
    with pytest.raises(FileError) as caught:
        open_clip_dataset(folder)
    assert caught.value.code == "set-incomplete"
    with pytest.raises(FileError, match="does not exist"):
        open_clip_dataset(folder / "nowhere")


def lies() -> dict[str, Callable[[dict[str, AnyArray]], None]]:
    def ends(change: Callable[[AnyArray], object], name: str = "codes_ends") -> Callable[[dict[str, AnyArray]], None]:
        def lie(arrays: dict[str, AnyArray]) -> None:
            arrays[name] = arrays[name].copy()
            change(arrays[name])

        return lie

    def as_type(name: str, dtype: str) -> Callable[[dict[str, AnyArray]], None]:
        return lambda arrays: arrays.update({name: arrays[name].astype(dtype)})

    return {
        "past the end": ends(lambda array: array.__setitem__(-1, array[-1] + 1)),
        "short of the end": ends(lambda array: array.__setitem__(-1, array[-1] - 1)),
        "negative": ends(lambda array: array.__setitem__(0, -1)),
        "descending": ends(lambda array: array.__setitem__(1, array[0] - 1)),
        "far too large": ends(lambda array: array.__setitem__(2, 2**63 - 1), "text_ends"),
        "far too small": ends(lambda array: array.__setitem__(2, -(2**63)), "voice.prompt_ends"),
        "of 32 bits": as_type("text_ends", "i4"),
        "codes of 64 bits": as_type("codes", "i8"),
        "codes of fractions": as_type("codes", "f4"),
        "voice of half precision": as_type("voice.speaker", "f2"),
        "a clip too many": lambda arrays: arrays.update(
            {"codes_ends": np.append(arrays["codes_ends"], arrays["codes_ends"][-1])}
        ),
        "a voice too few": lambda arrays: arrays.update({"voice.speaker": arrays["voice.speaker"][:-1]}),
        "a voice in one row": lambda arrays: arrays.update({"voice.speaker": arrays["voice.speaker"].reshape(-1)}),
        "no codes": lambda arrays: arrays.update({"codes": arrays["codes"][:0]}),
        "an array missing": lambda arrays: arrays.__delitem__("voice.prompt_ends"),
        "an array besides": lambda arrays: arrays.update({"more": np.ones(3, np.int32)}),
    }


@pytest.mark.parametrize("lie", lies())
def test_a_shard_whose_structure_lies_is_refused_by_its_name(lie: str, folder: Path) -> None:
    rewritten(folder, lies()[lie])
    with pytest.raises(FileError) as caught:
        open_clip_dataset(folder, verify="hashes")
    assert caught.value.code == "set-damaged"
    assert caught.value.finding.where == str(folder / SHARD)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_that_no_hash_shows_is_an_error_of_ours_or_stays_within_the_file(
    data: st.DataObject, folder: Path
) -> None:
    before = {name: (folder / name).read_bytes() for name in (SHARD, LINES, "set.json")}
    name = data.draw(st.sampled_from([SHARD, LINES]))
    damaged = bytearray(before[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1) | st.integers(0, min(700, len(damaged) - 1)))
        damaged[at] = data.draw(st.integers(0, 255))
    (folder / name).write_bytes(damaged[: data.draw(st.just(len(damaged)) | st.integers(1, len(damaged)))])
    restated(folder)
    try:
        clips = open_clip_dataset(folder, verify="hashes")
        assert len(read_all(clips)) == len(clips)
        check_clip_dataset(clips, spec_of("chatterbox"), 25.0)
    except VoxgraftError as error:
        assert error.finding.where  # noqa: PT017 (damage may also be harmless)
    finally:
        for file, content in before.items():
            (folder / file).write_bytes(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_set_json_is_an_error_of_ours_or_harmless(data: st.DataObject, folder: Path) -> None:
    whole = (folder / "set.json").read_text()
    document = json.loads(whole)
    node: Any = document
    while isinstance(node, dict | list) and node:
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
        if not isinstance(node[key], dict | list) or data.draw(st.booleans()):
            node[key] = data.draw(JSON)
            break
        node = node[key]
    write_document(folder, document)
    try:
        read_all(open_clip_dataset(folder))
    except VoxgraftError as error:
        assert error.finding.where  # noqa: PT017 (some values are harmless)
    finally:
        (folder / "set.json").write_text(whole)


def test_a_set_never_leads_out_of_its_folder(folder: Path) -> None:
    (folder / SHARD).rename(folder.parent / SHARD)
    document = json.loads((folder / "set.json").read_text())
    document["shards"][0]["file"] = f"../{SHARD}"
    write_document(folder, document)
    with pytest.raises(FileError) as caught:
        open_clip_dataset(folder)
    assert caught.value.code == "set-format"


def test_sets_of_another_format_and_sets_without_clips_are_refused(folder: Path) -> None:
    restate(folder, format="voxgraft-set-9")
    with pytest.raises(FileError, match="voxgraft-set-9") as caught:
        open_clip_dataset(folder)
    assert caught.value.finding.expected == "voxgraft-set-1"
    restate(folder, format="voxgraft-set-1", shards=[], counts={"clips": 0})
    with pytest.raises(GraftError) as empty:
        open_clip_dataset(folder)
    assert empty.value.code == "set-empty"


def test_ids_that_stand_twice_in_the_lines_are_refused(folder: Path) -> None:
    lines = (folder / LINES).read_text()
    (folder / LINES).write_text(lines.replace("clip000003", "clip000001"))
    restated(folder)
    with pytest.raises(GraftError) as caught:
        open_clip_dataset(folder)
    assert caught.value.code == "set-duplicate-ids"
    assert "clip000001" in caught.value.finding.found


def test_lines_that_are_no_clips_are_refused_by_their_number(folder: Path) -> None:
    lines = (folder / LINES).read_text().splitlines()
    for wrong in ('{"id": "x"}', "[]", lines[2].replace('"seconds":', '"seconds":true,"s":'), "{"):
        (folder / LINES).write_text("\n".join([*lines[:2], wrong, *lines[3:]]) + "\n")
        restated(folder)
        with pytest.raises(FileError) as caught:
            open_clip_dataset(folder)
        assert "line 3" in caught.value.finding.where


def test_infos_are_plain_values(folder: Path) -> None:
    info = open_clip_dataset(folder).infos[0]
    assert (info.id, info.speaker, info.recording) == ("clip000000", "speaker0", "recording0")
