"""From a manifest to sets: what goes in and what does not, what is done once only, what is listed and continues."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.support.fixtures import Fixtures
from tests.support.preprocess_runs import (
    RATE,
    Preparing,
    made_clips,
    prepared,
    preparing,
    resolved,
    sentences,
    voice_like,
)
from voxgraft.audio.files import read_audio
from voxgraft.cli import run_cli
from voxgraft.config.commands import GoSettings, NewSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import assign_voices, write_manifest
from voxgraft.data.report import estimate_training
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.speech_model import load_model
from voxgraft.pipeline.command import create_run
from voxgraft.pipeline.stages import PIPELINE_STAGES, PipelineContext
from voxgraft.preprocess.command import _PrepareJob
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer


@pytest.fixture
def new(fixtures: Fixtures, tmp_path: Path) -> Preparing:
    """A run that was never prepared."""
    return preparing(fixtures, tmp_path)


@pytest.fixture
def done(fixtures: Fixtures, tmp_path: Path) -> Preparing:
    return prepared(fixtures, tmp_path)


def ids_of(place: Preparing, name: str) -> list[str]:
    return [info.id for info in open_clip_dataset(place.run.data_set(name)).infos]


@pytest.mark.long
def test_the_sets_hold_ids_of_the_texts_codes_of_the_sound_and_voices_of_the_base(done: Preparing) -> None:
    clips = open_clip_dataset(done.run.data_set("train"), verify="hashes")
    tiny = get_family("tiny")
    files = tiny.files(tiny.shipped_folder() or Path())
    graft = load_graft(done.run.graft)
    text_encoder = TextEncoder.of(tiny, open_tokenizer(files.tokenizer), graft.tokenizer, "am")
    encoder = tiny.encoder(files, load_model(tiny, files))
    by_id = {clip.id: clip for clip in done.clips()}
    names = {"speaker0": "m1", "speaker1": "m3"}
    for place, info in enumerate(clips.infos):
        clip = by_id[info.id]
        assert (info.text, info.speaker, info.recording) == (clip.text, clip.speaker, clip.recording)
        assert clips.text_ids(place).tolist() == text_encoder.encode(clip.text, "am")
        assert abs(info.seconds - clip.seconds) < 1e-3
        wave, _ = read_audio(done.sound(clip), encoder.sample_rate)
        alone = encoder.encode([wave])[0].codes
        assert len(alone) == clips.num_codes[place]
        assert np.mean(alone != clips.codes(place)) <= 0.05  # a number on a rounding edge
        assert np.array_equal(clips.voice(place)["speaker"], tiny.voice(files, names[clip.speaker]).voice["speaker"])


@pytest.fixture(scope="module")
def cloning(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> Preparing:
    """A run on a base that clones voices and has some by name as well, not prepared yet."""
    folder = tmp_path_factory.mktemp("cloning")
    (folder / "am.txt").write_text("\n".join(sentences(60)) + "\n", encoding="utf-8")
    base = fixtures.base("xtts").folder
    create_run(NewSettings(run=folder / "run", base=base, language="am", texts=(folder / "am.txt",)))
    place = Preparing(folder)
    place.graft("--tokenizer.pieces=20")
    write_manifest(place.manifest, made_clips(place.manifest.parent, (0, 1, 4, 13)))
    return place


def own_voices(place: Preparing) -> list[np.ndarray[Any, Any]]:
    found = [open_clip_dataset(place.run.data_set(name)) for name in ("train", "valid")]
    return [clips.voice(at)["speaker"] for clips in found for at in range(len(clips))]


def test_every_clip_keeps_its_own_voice_where_the_base_also_has_voices_by_name(
    fixtures: Fixtures, cloning: Preparing, tmp_path: Path
) -> None:
    place, named = cloning.copied(tmp_path / "copy"), get_family("xtts").voices(fixtures.base("xtts"))
    assert "config-value" in refused(place, "config-value", "--voices", f"speaker0={next(iter(named))}")
    assert place.prepare().to_json()["voices"] == {}
    voices = own_voices(place)
    assert len({voice.tobytes() for voice in voices}) == len(place.clips())
    assert not any(np.array_equal(voice, own.voice["speaker"]) for voice in voices for own in named.values())


def test_clips_to_which_an_earlier_version_gave_a_voice_of_the_base_get_their_own_again(
    cloning: Preparing, tmp_path: Path
) -> None:
    place = cloning.copied(tmp_path / "copy")
    settings = resolved(place.words("--workers=1"))
    job = _PrepareJob(settings, place.run, place.clips(), place.manifest.parent)
    job.encode(settings)
    named = {name: clip.voice for name, clip in job.family.voices(job.files).items()}
    name = next(iter(named))
    job.voices = dict.fromkeys(("speaker0", "speaker1"), (name, named[name]))
    job.finish(job.make_sets())
    assert len({voice.tobytes() for voice in own_voices(place)}) == 1
    go = GoSettings.model_validate({"run": place.run.path, "data": {"dataset": place.manifest.parent}})
    assert "a voice of the base" in PIPELINE_STAGES["prepare"][0](PipelineContext(go)).why
    place.prepare()
    assert not PIPELINE_STAGES["prepare"][0](PipelineContext(go)).runs
    assert len({voice.tobytes() for voice in own_voices(place)}) == len(place.clips())


def test_the_room_that_sets_take_is_about_what_the_report_said_before(done: Preparing) -> None:
    used = [clip for clip in done.clips() if clip.split in ("train", "validation")]
    expected = next(one for one in estimate_training(used) if one["family"] == "tiny")
    folders = [done.run.data_set(name) for name in ("train", "valid")]
    files = [path for folder in folders for path in folder.iterdir() if path.name != "set.json"]
    assert sum(path.stat().st_size for path in files) == pytest.approx(expected["disk_bytes"], rel=0.3)


def test_prepared_sets_are_what_check_looks_for(done: Preparing, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["check", str(done.run.path), "--data.min-prompt-seconds", "0.1", "--train.warmup-steps", "1"]) == 0
    assert "0 errors" in capsys.readouterr().out


def test_rejected_clips_and_other_languages_and_tests_stay_out_and_splits_are_respected(new: Preparing) -> None:
    new.change(
        clip000={"rejected": ("noise",)},
        clip001={"rejected": ("noise",), "taken_back": True},
        clip002={"language": "en"},
        clip003={"split": "test"},
        clip004={"split": None},
    )
    result = new.prepare()
    assert ids_of(new, "train") == ["clip001", *(f"clip{number:03d}" for number in range(5, 12))]
    assert ids_of(new, "valid") == [f"clip{number:03d}" for number in range(12, 16)]
    assert result.aside == {"rejected": 1, "in en": 1, "kept for test": 1, "not split": 1}
    assert open_clip_dataset(new.run.data_set("valid")).header.role == "valid"


def test_a_second_prepare_encodes_nothing_and_touches_no_set(done: Preparing) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.run.data.rglob("shard-*")}
    bytes_before = done.sets()
    result = done.prepare()
    assert result.num_encoded == 0
    assert not any(one.is_new for one in result.sets)
    assert {path: path.stat().st_mtime_ns for path in done.run.data.rglob("shard-*")} == before
    assert done.sets() == bytes_before


def test_texts_are_spelled_anew_without_the_sound(done: Preparing, tmp_path: Path) -> None:
    done.change(clip005={"text": "ሰላም ለዓለም።"})
    done.graft("--tokenizer.pieces=5")
    other = done.copied(tmp_path.with_name(f"{tmp_path.name}-other"))
    shutil.rmtree(other.run.data)
    for clip in done.clips():
        done.sound(clip).unlink()
    result = done.prepare()
    assert result.num_encoded == 0
    assert not result.left_out
    assert other.prepare().num_encoded == 16
    assert done.sets() == other.sets()


def test_only_clips_that_are_new_are_encoded_and_one_may_move_from_set_to_set(done: Preparing) -> None:
    done.add(made_clips(done.manifest.parent, [16, 17]))
    done.change(clip012={"split": "train"}, clip000={"split": "validation"}, clip016={"split": "train"})
    codes = {name: open_clip_dataset(done.run.data_set(name)) for name in ("train", "valid")}
    was = {info.id: one.codes(place).copy() for one in codes.values() for place, info in enumerate(one.infos)}
    result = done.prepare()
    assert result.num_encoded == 2
    assert "clip012" in ids_of(done, "train")
    assert "clip000" in ids_of(done, "valid")
    for name in ("train", "valid"):
        clips = open_clip_dataset(done.run.data_set(name), verify="hashes")
        for place, info in enumerate(clips.infos):
            assert info.id not in was or np.array_equal(clips.codes(place), was[info.id])


def test_clips_that_cannot_be_used_are_listed_with_their_reasons_and_the_rest_goes_on(new: Preparing) -> None:
    clips = {clip.id: clip for clip in new.clips()}
    new.sound(clips["clip001"]).write_bytes(b"this is no sound")
    new.sound(clips["clip002"]).unlink()
    soundfile.write(new.sound(clips["clip003"]), np.zeros(20), RATE)
    broken = new.sound(clips["clip004"]).with_suffix(".wav")
    soundfile.write(broken, np.full(RATE, np.nan, np.float32), RATE, subtype="FLOAT")
    whole = new.sound(clips["clip005"]).read_bytes()
    new.sound(clips["clip005"]).write_bytes(whole[: len(whole) // 2])
    new.sound(clips["clip009"]).write_bytes(b"")
    new.change(clip004={"audio": "sound/004.wav"}, clip006={"text": "ሰላም " * 2000}, clip007={"text": " "})
    result = new.prepare()
    assert {name: item.code for name, item in result.left_out.items()} == {
        "clip001": "sound-broken",
        "clip002": "file-missing",
        "clip003": "audio-too-short",
        "clip004": "audio-not-finite",
        "clip005": "sound-broken",
        "clip006": "clips-too-long",
        "clip007": "clips-no-content",
        "clip009": "file-empty",
    }
    assert ids_of(new, "train") == ["clip000", "clip008", "clip010", "clip011"]
    assert result.num_encoded == 4 + 4 + 2, "the train and valid set, and two whose text alone is at fault"
    lines = [json.loads(line) for line in (new.run.data / "prepared.jsonl").read_text().splitlines()[1:]]
    assert {line["id"] for line in lines if line["left_out"]} == set(result.left_out)
    assert all(item.cure for item in result.findings())
    assert all(result.left_out[f"clip00{number}"].where.endswith(f"00{number}.flac") for number in (1, 2, 3, 5))


def test_where_no_clip_of_a_set_can_be_used_the_first_reason_is_reported(new: Preparing) -> None:
    for clip in new.clips():
        if clip.split == "validation":
            new.sound(clip).unlink()
    with pytest.raises(VoxgraftError, match=r"all 4 clips for valid .*clip012: file-missing") as error:
        new.prepare()
    assert error.value.code == "set-empty"


def test_a_clip_that_was_repaired_comes_in_and_no_other_is_encoded_again(new: Preparing) -> None:
    clip = new.clips()[1]
    whole = new.sound(clip).read_bytes()
    new.sound(clip).write_bytes(b"this is no sound")
    first = new.prepare()
    assert set(first.left_out) == {"clip001"}
    assert first.num_encoded == len(new.clips()) - 1, "what failed was not encoded"
    assert new.prepare().num_encoded == 0
    new.sound(clip).write_bytes(whole)
    again = new.prepare()
    assert (again.num_encoded, dict(again.left_out)) == (1, {})
    assert "clip001" in ids_of(new, "train")


def test_a_set_that_was_damaged_is_made_again(done: Preparing) -> None:
    before = done.sets()
    shard = done.run.data_set("train") / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert done.prepare().num_encoded == 12
    assert done.sets() == before


def test_speakers_have_the_voice_that_was_named_or_their_own_or_take_turns() -> None:
    voices = ["m1", "m3", "f2"]
    found = assign_voices(["anna", "m3", "ben", "anna", "cleo", "dina"], voices, ["cleo=m3"])
    assert found == {"cleo": "m3", "m3": "m3", "anna": "m1", "ben": "f2", "dina": "m1"}
    assert assign_voices(["a", "b"], ["x"], []) == {"a": "x", "b": "x"}
    for words in ("nobody=m1", "anna=m2", "anna"):
        with pytest.raises(VoxgraftError, match="config-value"):
            assign_voices(["anna"], voices, [words])


def test_files_of_other_rates_and_several_channels_are_read_as_one_channel_at_the_rate_that_is_asked_for(
    tmp_path: Path,
) -> None:
    mono = voice_like(1.0, 3)
    soundfile.write(tmp_path / "two.wav", np.stack([mono, mono * 0.5], axis=1), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "one.wav", mono * 0.75, RATE, subtype="FLOAT")
    two, one = (read_audio(tmp_path / name, 16_000)[0] for name in ("two.wav", "one.wav"))
    assert len(two) == 16_000
    assert np.abs(two - one).max() < 1e-6
    assert np.array_equal(read_audio(tmp_path / "one.wav", RATE)[0], (mono * 0.75).astype(np.float32))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"split": "train"}, "manifest-no-split"),
        ({"split": "validation"}, "manifest-no-split"),
        ({"rejected": ("noise",)}, "manifest-no-split"),
        ({"language": "en"}, "manifest-no-split"),
    ],
)
def test_a_manifest_with_nothing_to_learn_from_or_to_hold_out_is_refused(
    new: Preparing, change: dict[str, object], code: str
) -> None:
    new.change(**{clip.id: change for clip in new.clips()})
    refused(new, code)


def test_what_is_missing_is_refused_before_anything_is_encoded(new: Preparing) -> None:
    (new.run.path / "graft").rename(new.folder / "graft")
    refused(new, "graft-missing")
    (new.folder / "graft").rename(new.run.path / "graft")
    manifest = new.manifest.read_bytes()
    new.manifest.unlink()
    refused(new, "file-missing")
    new.manifest.write_bytes(b"{}\n" + manifest)
    refused(new, "manifest-unknown")
    new.manifest.write_bytes(manifest)
    refused(new, "config-value", "--voices", "speaker0=nobody")
    with new.run.lock("train"):
        refused(new, "run-locked")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta"])
def test_a_device_that_is_none_is_reported_by_its_name_and_not_as_a_setting_of_train(
    new: Preparing, device: str
) -> None:
    with pytest.raises(VoxgraftError, match=device) as caught:
        new.prepare("--device", device)
    assert caught.value.code == "device"
    assert "train.device" not in caught.value.finding.found


def test_a_front_end_that_lacks_a_file_is_refused_by_its_name(fixtures: Fixtures, tmp_path: Path) -> None:
    place = preparing(fixtures, tmp_path)
    base = tmp_path / "base"
    base.mkdir()
    for path in (get_family("tiny").shipped_folder() or Path()).iterdir():
        if path.name != "codec.safetensors":
            (base / path.name).write_bytes(path.read_bytes())
    assert "codec.safetensors" in refused(place, "base-file-missing", "--base", str(base))


def test_the_ray_engine_without_ray_says_what_to_install(new: Preparing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "voxgraft[ray]" in refused(new, "package-missing", "--engine", "ray")


def test_a_ledger_that_is_damaged_costs_time_and_nothing_else(done: Preparing) -> None:
    before = done.sets()
    ledger = done.run.data / "prepared.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:300])
    assert done.prepare().num_encoded == 16
    assert done.sets() == before


def test_two_clips_of_the_same_sound_are_encoded_once_and_are_both_there(new: Preparing) -> None:
    first = new.clips()[0]
    new.add([replace(first, id="twin", text=new.clips()[3].text)])
    assert new.prepare().num_encoded == 16
    assert {"clip000", "twin"} <= set(ids_of(new, "train"))


def refused(place: Preparing, code: str, *flags: str) -> str:
    with pytest.raises(VoxgraftError) as error:
        place.prepare("--workers=1", *flags)
    assert error.value.code == code
    assert not place.run.data_set("train").exists()
    return str(error.value)
