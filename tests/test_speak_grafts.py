"""Speaking with grafts and runs: several languages side by side on one base, each as when alone; families without sound."""

from __future__ import annotations

import json
import shutil
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families import PUBLISHED
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun, error_of, make_run
from tests.support.synthesis import codes_of, made_graft, settings_of, spoken
from voxgraft.audio.files import encode_audio
from voxgraft.models import get_family
from voxgraft.models.base import Clip
from voxgraft.models.indextts2.encoder import EmotionTable
from voxgraft.synthesis.command import synthesize
from voxgraft.synthesis.engine import SynthesisModels, open_synthesis_models
from voxgraft.synthesis.inputs import ReferenceVoice, UtteranceRequest, VoiceLoader
from voxgraft.tokenizers import open_tokenizer

TEXTS = {"am": "ሰላም ለዓለም። ቤቱ ትልቅ ነው", "ti": "ሰላም ከመይ ኣለኻ", "en": "bring me the blue cup", "fr": "le pain est chaud"}
SHORT = ("--max-seconds=1.2", "--pause=0")
"""Models of random weights never come to an end by themselves."""


@pytest.fixture(scope="module")
def base() -> Path:
    found = get_family("tiny").shipped_folder()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def grafts(tmp_path_factory: pytest.TempPathFactory, base: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("grafts")
    return {language: made_graft(folder, base, language, seed) for seed, language in enumerate(("am", "ti"), 3)}


@pytest.fixture(scope="module", params=PUBLISHED)
def silent(request: pytest.FixtureRequest, fixtures: Fixtures) -> WholeRun:
    """A trained run of a family without a vocoder."""
    return fixtures.trained_run(request.param)


def table(folder: Path, *languages: str) -> Path:
    path = folder / f"{'-'.join(languages)}.tsv"
    rows = ["text\tlanguage\tname", *(f"{TEXTS[language]}\t{language}\t{language}" for language in languages)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.long
def test_grafts_beside_each_other_speak_as_alone_code_for_code_and_so_does_the_base(
    grafts: dict[str, Path], tmp_path: Path
) -> None:
    both = (f"--graft={grafts['am']}", f"--graft={grafts['ti']}", *SHORT)
    together = codes_of(spoken("--file", table(tmp_path, *TEXTS), *both, "--codes", tmp_path / "all.json"))
    for language in ("am", "ti"):
        words = ("--file", table(tmp_path, language, "en", "fr"), f"--graft={grafts[language]}", *SHORT)
        alone = codes_of(spoken(*words, "--codes", tmp_path / f"{language}.json"))
        assert alone == {name: together[name] for name in (language, "en", "fr")}
    bare = codes_of(spoken("--file", table(tmp_path, "en", "fr"), *SHORT, "--codes", tmp_path / "base.json"))
    assert bare == {name: together[name] for name in ("en", "fr")}


@pytest.mark.long
def test_grafts_share_the_tensors_of_one_base(grafts: dict[str, Path]) -> None:
    speakers = open_synthesis_models(
        settings_of("x", f"--graft={grafts['am']}", f"--graft={grafts['ti']}", "--device=cpu")
    )
    first, second, base = (dict(one.model.named_parameters()) for one in speakers.all)
    body = [name for name in base if name.startswith("tfmr.")]
    assert body
    assert all(first[name] is second[name] is base[name] for name in body)
    assert not any(name.endswith((".down", ".up")) for name in base)


def test_the_language_opens_the_gate_and_an_adapter_is_heard_only_in_its_own(
    grafts: dict[str, Path], tmp_path: Path
) -> None:
    rows_only = tmp_path / "rows-only"
    shutil.copytree(grafts["am"], rows_only)
    shutil.rmtree(rows_only / "adapter")
    card = json.loads((rows_only / "graft.json").read_text(encoding="utf-8"))
    del card["card_sha256"]
    (rows_only / "graft.json").write_text(json.dumps({**card, "adapter": None}), encoding="utf-8")
    with_adapter, without = (
        codes_of(spoken("--file", table(tmp_path, "am", "en"), f"--graft={one}", *SHORT, f"--codes={tmp_path / name}"))
        for one, name in ((grafts["am"], "with.json"), (rows_only, "without.json"))
    )
    assert with_adapter["en"] == without["en"]
    assert with_adapter["am"] != without["am"]


def test_latin_words_inside_amharic_use_base_rows_with_the_adapter_on(grafts: dict[str, Path], tmp_path: Path) -> None:
    speakers = open_synthesis_models(settings_of("x", f"--graft={grafts['am']}", "--device=cpu"))
    system = speakers.system("am")
    num_base = open_tokenizer(speakers.context.files.tokenizer).size
    ids = system.ids("ሰላም hello ለዓለም", "am")
    assert set(system.text_encoder.base.encode("hello")) <= set(ids)
    assert [one for one in ids if one >= num_base]
    with system.set_gate_for("am"):
        assert system.gate is not None
        assert system.gate.on
    result = spoken("ሰላም hello ለዓለም", f"--graft={grafts['am']}", *SHORT, "--codes", tmp_path / "codes.json")
    assert result.said[0].language == "am"  # the graft's own, since no other was asked for
    assert not [item for item in result.findings if item.code != "speak-cut"]
    warned = spoken("hello there", f"--graft={grafts['am']}", *SHORT, "--codes", tmp_path / "warned.json")
    assert "speak-other-script" in [item.code for item in warned.findings]


def test_a_graft_copied_elsewhere_speaks_the_same_codes_on_a_copy_of_the_base(
    grafts: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    archive = shutil.make_archive(str(tmp_path / "graft"), "zip", grafts["am"])
    shutil.unpack_archive(archive, tmp_path / "friend" / "graft")
    shutil.copytree(base, tmp_path / "friend" / "base")
    here = spoken(TEXTS["am"], f"--graft={grafts['am']}", *SHORT, "--codes", tmp_path / "here.json")
    friend = tmp_path / "friend"
    words = (f"--graft={friend / 'graft'}", f"--base={friend / 'base'}", *SHORT)
    there = spoken(TEXTS["am"], *words, "--codes", tmp_path / "there.json")
    assert codes_of(here) == codes_of(there)


def test_amharic_of_a_graft_makes_sound_of_the_right_length(grafts: dict[str, Path], tmp_path: Path) -> None:
    result = spoken(TEXTS["am"], f"--graft={grafts['am']}", "--output", tmp_path / "am.wav")
    with wave.open(str(tmp_path / "am.wav")) as file:
        seconds = file.getnframes() / file.getframerate()
    assert seconds == pytest.approx(result.said[0].seconds(25), abs=0.1)
    assert len(result.said[0].pieces) == 2


@pytest.mark.long
def test_grafts_that_cannot_stand_beside_each_other_are_refused(grafts: dict[str, Path], silent: WholeRun) -> None:
    twice = [f"--graft={grafts['am']}", f"--graft={grafts['am']}"]
    assert error_of(lambda: spoken("x", *twice)).code == "speak-grafts"
    others = [f"--graft={grafts['am']}", f"--graft={silent.folder.graft}"]
    assert error_of(lambda: spoken("x", *others)).code == "speak-grafts"
    assert error_of(lambda: spoken("x", f"--graft={silent.folder.graft}")).code == "config-missing"
    both = [f"--graft={grafts['am']}", f"--run={silent.path}"]
    assert error_of(lambda: spoken("x", *both)).code == "config-value"


@pytest.mark.long(fast="chatterbox")
def test_a_family_without_sound_says_so_and_gives_codes_instead(silent: WholeRun, tmp_path: Path) -> None:
    if silent.family_name == "xtts":
        pytest.skip("its vocoder is in the checkpoint")
    words = ("ሰላም", f"--run={silent.path}", *SHORT)
    error = error_of(lambda: spoken(*words))
    assert error.code == "no-waveform-end"
    assert "--codes" in error.finding.cure
    result = spoken(*words, "--codes", tmp_path / "codes.json")
    kept = json.loads((tmp_path / "codes.json").read_text(encoding="utf-8"))
    assert kept["family"] == silent.family_name
    assert kept["utterances"][0]["pieces"][0]["codes"] == list(result.said[0].pieces[0].codes)
    most = open_synthesis_models(settings_of("x", f"--run={silent.path}", "--device=cpu")).all[0].model.spec.num_codes
    assert all(code < most for piece in result.said[0].pieces for code in piece.codes)
    assert result.exit_code == (1 if result.cut else 0)


@pytest.mark.long(fast="chatterbox")
def test_a_run_speaks_old_languages_as_its_base_does(silent: WholeRun, tmp_path: Path) -> None:
    run = spoken("ha no", f"--run={silent.path}", "--language=en", *SHORT, "--codes", tmp_path / "run.json")
    rows = silent.path / "graft.previous"  # the graft before training has no adapter
    words = (f"--graft={rows}", f"--base={silent.base}", "--language=en", *SHORT)
    if silent.family_name != "xtts":  # its base has voices by name
        assert error_of(lambda: spoken("ha no", *words, "--codes", tmp_path / "x.json")).code == "speak-voice"
    own, other = (
        open_synthesis_models(settings_of("x", *flags, "--device=cpu")) for flags in ([f"--run={silent.path}"], words)
    )
    assert own.system("en").gate is not None
    with own.system("en").set_gate_for("en"):
        assert not own.system("en").gate.on  # type: ignore[union-attr]
    borrowed = replace(other, held_out=own.held_out)
    assert codes_of(run) == {"001": _codes(borrowed, "ha no")}


def _codes(speakers: SynthesisModels, text: str) -> list[tuple[int, ...]]:
    settings = settings_of(text, "--language=en", *SHORT)
    (said,) = synthesize(speakers, VoiceLoader(speakers, settings), [UtteranceRequest("001", text)], settings)
    return [piece.codes for piece in said.pieces]


def test_a_recording_of_any_usual_rate_and_format_lends_its_voice(silent: WholeRun, tmp_path: Path) -> None:
    if silent.family_name != "chatterbox":
        pytest.skip("w2v-bert is too large for a test; its encoder is tested with the family")
    names = {"low.wav": (110.0, 24_000), "high.mp3": (320.0, 44_100), "middle.ogg": (200.0, 16_000)}
    for name, (hz, rate) in names.items():
        time = np.arange(2 * rate) / rate
        tone = sum(np.sin(2 * np.pi * hz * k * time) / k for k in range(1, 9)) * (0.1 + 0.05 * np.sin(18 * time))
        (tmp_path / name).write_bytes(encode_audio(tone.astype(np.float32), rate, Path(name).suffix[1:].upper()))
    words = ("ሰላም", f"--run={silent.path}", *SHORT, "--temperature=0", "--guidance=0")
    results = [spoken(*words, f"--voice={tmp_path / name}", f"--codes={tmp_path / name}.json") for name in names]
    assert [result.said[0].voice.name for result in results] == list(names)
    clips = [result.said[0].voice.clip for result in results]
    assert all(40 <= len(clip.codes) <= 52 for clip in clips)  # two seconds, whatever the rate was
    assert codes_of(results[0]) != codes_of(results[1])
    missing = error_of(lambda: spoken(*words, "--voice=nowhere.wav", f"--codes={tmp_path / 'x.json'}"))
    assert missing.code == "voice-unknown"


@pytest.mark.long(fast="chatterbox")
def test_manners_of_the_families_are_heard_and_those_of_others_refused(silent: WholeRun, tmp_path: Path) -> None:
    def codes(*flags: str) -> dict[str, list[tuple[int, ...]]]:
        words = ("ቤቱ ትልቅ ነው", f"--run={silent.path}", *SHORT, f"--codes={tmp_path / 'codes.json'}", "--overwrite")
        # Chance would drown what random weights make of it.
        return codes_of(spoken(*words, "--temperature=0", *flags))

    usual = codes()
    if silent.family_name == "chatterbox":
        assert codes("--exaggeration=0.5", "--guidance=0.5") == usual
        assert codes("--exaggeration=5") != usual
        assert codes("--guidance=3") != usual
        assert error_of(lambda: codes("--emotion-weight=0.5")).code == "manner-unknown"
        return
    if silent.family_name == "xtts":
        for flag in ("--exaggeration=1", "--emotion-weight=0.5", "--emotion=0,1,0"):
            assert error_of(lambda flag=flag: codes(flag)).code == "manner-unknown"
        return
    width = open_synthesis_models(settings_of("x", f"--run={silent.path}", "--device=cpu")).all[0].model.body
    vector = 3 * np.random.default_rng(0).standard_normal(width.num_heads * width.head_width).astype(np.float32)
    np.save(tmp_path / "emotion.npy", vector)
    np.save(tmp_path / "other.npy", vector[:7])
    flag = f"--emotion={tmp_path / 'emotion.npy'}"
    assert codes(flag, "--emotion-weight=0") == usual
    assert codes(flag) != usual
    assert codes(flag) == codes(flag, "--emotion-weight=1") != codes(flag, "--emotion-weight=0.3")
    assert error_of(lambda: codes(f"--emotion={tmp_path / 'other.npy'}")).code == "condition-form"
    assert error_of(lambda: codes("--emotion-weight=0.5")).code == "manner-unknown"
    assert error_of(lambda: codes("--exaggeration=1")).code == "manner-unknown"
    assert error_of(lambda: codes("--emotion=0,1,0")).code == "manner-unknown"


@pytest.mark.long
def test_eight_sliders_are_heard_in_the_codes_and_depend_on_the_voice(tmp_path: Path) -> None:
    run = make_run("indextts2", tmp_path)
    speakers = open_synthesis_models(settings_of("x", f"--run={run.path}", "--device=cpu"))
    width = speakers.all[0].model.body.num_heads * speakers.all[0].model.body.head_width
    draw = np.random.default_rng(1)
    own, latents = draw.standard_normal(width, np.float32), np.zeros((32, width), np.float32)
    styles = draw.standard_normal((2, 192), np.float32)
    voices = [
        ReferenceVoice(str(at), Clip(np.zeros(1, np.int64), {"latents": latents, "emotion": own, "style": style}))
        for at, style in enumerate(styles)
    ]

    def emotion(sliders: str, voice: int = 0, *flags: str) -> np.ndarray[Any, Any]:
        settings = settings_of("x", f"--run={run.path}", f"--emotion={sliders}", *flags)
        return np.asarray(VoiceLoader(speakers, settings).condition(voices[voice]).emotion)

    assert error_of(lambda: emotion("0,1,0,0,0,0,0,0")).code == "base-file-missing"
    feats = [torch.randn(73, size, generator=torch.Generator().manual_seed(size)) for size in (192, width)]
    for name, matrix in zip(("feat1.pt", "feat2.pt"), feats, strict=True):
        torch.save(matrix, run.base / name)
    rows = EmotionTable(feats[0].numpy(), feats[1].numpy()).choose_rows(styles[0])
    angry, calm = feats[1][rows[1]].numpy(), feats[1][rows[7]].numpy()
    np.testing.assert_allclose(emotion("0,1,0,0,0,0,0,0"), 0.8 * angry + 0.2 * own, atol=1e-5)
    both = 0.25 * 0.875 * angry + 0.5 * 0.5625 * calm
    np.testing.assert_allclose(emotion("0,.25,0,0,0,0,0,.5"), both + (1 - 0.5) * own, atol=1e-5)
    np.testing.assert_allclose(
        emotion("0,1,0,0,0,0,0,0", 0, "--emotion-weight=0.5"), 0.4 * angry + 0.6 * own, atol=1e-5
    )
    assert not np.allclose(emotion("0,1,0,0,0,0,0,0", 1), emotion("0,1,0,0,0,0,0,0", 0))
    for wrong in ("0,1,0", "0,0,0,0,0,0,0,0", "2,0,0,0,0,0,0,0"):
        assert error_of(lambda wrong=wrong: emotion(wrong)).code == "manner-unknown"
    torch.save(feats[1][:-1], run.base / "feat2.pt")
    assert error_of(lambda: emotion("0,1,0,0,0,0,0,0")).code == "tensors-mismatch"


@pytest.mark.long
def test_a_graft_that_was_not_trained_yet_speaks_with_a_warning(tmp_path: Path) -> None:
    run = make_run("tiny", tmp_path)
    words = ("--run", run.path, *SHORT, "--codes", tmp_path / "codes.json", "--overwrite")
    reported = {name: spoken(TEXTS[name], "--language", name, *words) for name in ("am", "en")}
    codes = {name: [item.code for item in result.findings] for name, result in reported.items()}
    assert "speak-untrained" in codes["am"]
    assert "speak-untrained" not in codes["en"], "the base speaks its own languages"
