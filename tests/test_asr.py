"""Listeners write down what they hear, in order, and refuse what they were not made for. The network is a random one."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
import wave as wav_files
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from voxgraft.asr import (
    BuiltInRecognizer,
    CTCNetwork,
    CTCNetworkConfig,
    CTCSymbols,
    Transcript,
    decode_ctc_greedy,
    open_recognizer,
)
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError, FileError
from voxgraft.evaluation.scores import open_transcriber

SYMBOLS = CTCSymbols(
    (" ", "a", "b", "é", "ሀ", "ለ"),
    ("a", "b", "ʁ", "ɨ"),
    {
        "en": (frozenset(" ab"), frozenset("ab")),
        "fr": (frozenset(" abé"), frozenset("abʁ")),
        "am": (frozenset(" ሀለ"), frozenset("abɨ")),
    },
)
RATE_HZ = 16_000


@pytest.fixture(scope="module")
def listener() -> BuiltInRecognizer:
    torch.manual_seed(3)
    network = CTCNetwork(CTCNetworkConfig(6, 4, 3, num_mels=20, width=32, heads=2, layers=2, reach=5))
    with torch.no_grad():  # random scores hardly differ between steps: without their mean, many symbols are written
        network.language.weight.mul_(0.01)
        scores = network(torch.from_numpy(noises(32_000)[0])[None], torch.tensor([32_000]), torch.tensor([0]))
        for head, own in zip((network.letters, network.phones), scores, strict=True):
            head.bias.sub_(own.mean((0, 1)))
    return BuiltInRecognizer(network, SYMBOLS)


def noises(*lengths: int) -> list[NDArray[np.float32]]:
    draw = np.random.default_rng(5)
    return [
        (np.repeat(draw.random(-(-length // 800)), 800)[:length] * draw.normal(size=length) * 0.3).astype(np.float32)
        for length in lengths
    ]


def test_it_writes_only_letters_and_phones_of_the_language(listener: BuiltInRecognizer) -> None:
    for language, (letters, phones) in SYMBOLS.by_language.items():
        heard = listener.transcribe(noises(16_000, 30_000, 20_000), RATE_HZ, language)
        assert all(set(one.text) <= letters for one in heard)
        assert all(set(one.phones or ()) <= phones for one in heard)
        assert any(one.text for one in heard)
        assert any(one.phones for one in heard)


def test_a_wave_is_heard_the_same_alone_and_among_others(listener: BuiltInRecognizer) -> None:
    waves = noises(16_000, 4_001, 31_999, 320, 15_000, 17_777)
    together = listener.transcribe(waves, RATE_HZ, "fr")
    alone = [listener.transcribe([wave], RATE_HZ, "fr")[0] for wave in waves]
    assert together == alone


def test_scores_of_a_wave_do_not_depend_on_padding(listener: BuiltInRecognizer) -> None:
    short, long = (torch.from_numpy(wave) for wave in noises(6_400, 16_000))
    batch = torch.nn.utils.rnn.pad_sequence([short, long], batch_first=True)
    lengths, languages = torch.tensor([6_400, 16_000]), torch.tensor([1, 1])
    with torch.no_grad():
        together = listener.network(batch, lengths, languages)
        alone = listener.network(short[None], lengths[:1], languages[:1])
    for padded, own in zip(together, alone, strict=True):
        torch.testing.assert_close(padded[0, :20], own[0], atol=1e-4, rtol=1e-4)


def test_hearing_twice_is_hearing_the_same(listener: BuiltInRecognizer) -> None:
    waves = noises(16_000, 8_000)
    assert listener.transcribe(waves, RATE_HZ, "am") == listener.transcribe(waves, RATE_HZ, "am")
    assert listener.transcribe([], RATE_HZ, "am") == []


def test_repeats_count_once_and_blanks_part_them() -> None:
    best = torch.tensor([0, 2, 2, 0, 2, 1, 1, 3])
    scores = torch.nn.functional.one_hot(best, 4).float()[None]
    assert decode_ctc_greedy(scores, torch.tensor([True] * 4), [8]) == [[2, 2, 1, 3]]
    assert decode_ctc_greedy(scores, torch.tensor([True] * 4), [6]) == [[2, 2, 1]]
    without = decode_ctc_greedy(scores, torch.tensor([True, True, False, True]), [8])
    assert without == [[1, 3]]


def test_a_saved_listener_opens_as_the_same_one(listener: BuiltInRecognizer, tmp_path: Path) -> None:
    listener.save(tmp_path / "once")
    once = BuiltInRecognizer.open(tmp_path / "once")
    once.save(tmp_path / "twice")
    for name in ("listener.safetensors", "listener.json"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()
    again = open_recognizer(f"built-in:{tmp_path / 'twice'}")
    assert again.languages == frozenset({"en", "fr", "am"})
    waves = noises(16_000, 20_000)
    assert again.transcribe(waves, RATE_HZ, "en") == once.transcribe(waves, RATE_HZ, "en")
    assert all(parameter.dtype == torch.float32 for parameter in once.network.parameters())


def test_other_rates_languages_and_empty_waves_are_refused(listener: BuiltInRecognizer) -> None:
    with pytest.raises(AudioError, match="22,050 Hz") as rate:
        listener.transcribe(noises(16_000), 22_050, "en")
    assert rate.value.code == "recognizer-rate"
    with pytest.raises(ConfigError, match="am, en, fr") as language:
        listener.transcribe(noises(16_000), RATE_HZ, "ti")
    assert language.value.code == "recognizer-language"
    with pytest.raises(AudioError, match="clip 2 of 2") as empty:
        listener.transcribe([*noises(16_000), np.zeros(0, np.float32)], RATE_HZ, "en")
    assert empty.value.code == "audio-too-short"


def test_a_folder_without_a_listener_is_refused(listener: BuiltInRecognizer, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        open_recognizer(f"built-in:{tmp_path}")
    listener.save(tmp_path)
    notes = json.loads((tmp_path / "listener.json").read_text(encoding="utf-8"))
    for change in ({"letters": [" ", "a"]}, {"format": "other"}, {"network": {"width": 3}}, {"languages": 5}):
        (tmp_path / "listener.json").write_text(json.dumps(notes | change), encoding="utf-8")
        with pytest.raises(CheckpointError) as caught:
            open_recognizer(f"built-in:{tmp_path}")
        assert caught.value.code == "codec-notes"


@pytest.mark.parametrize(
    "setting", ["", "ears", "whisper:", "command:", "command: ", "command:cat", 'command:cat "{wav}']
)
def test_settings_that_name_no_listener_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_recognizer(setting)
    assert caught.value.code == "recognizer-unknown"


def command(program: str) -> str:
    return f"command:{shlex.quote(sys.executable)} -c {shlex.quote(program)} {{wav}} {{language}}"


def test_a_command_is_given_each_wave_and_prints_what_it_heard() -> None:
    program = (
        "import sys, wave; f = wave.open(sys.argv[1]); print(f.getnframes(), f.getframerate(), '\\n', sys.argv[2])"
    )
    heard = open_recognizer(command(program)).transcribe(noises(16_000, 500), 24_000, "am")
    assert heard == [Transcript("16000 24000 am", None), Transcript("500 24000 am", None)]


def test_the_wav_file_holds_the_samples(tmp_path: Path) -> None:
    kept = tmp_path / "kept.wav"
    program = f"import sys, shutil; shutil.copy(sys.argv[1], {str(kept)!r})"
    open_recognizer(command(program)).transcribe([np.array([0.0, 0.5, -2.0, 1.0], np.float32)], RATE_HZ, "en")
    with wav_files.open(str(kept)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [0, 16384, -32767, 32767]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (command("raise SystemExit('no model')"), "exit code 1: no model"),
        (command("import sys; sys.stdout.buffer.write(b'\\xff')"), "not UTF-8"),
        ("command:/nowhere/ears {wav}", "/nowhere/ears"),
    ],
)
def test_a_command_that_fails_is_an_error_that_says_why(setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        open_recognizer(setting).transcribe(noises(1_000), RATE_HZ, "en")
    assert caught.value.code == "recognizer-failed"


@pytest.mark.skipif(importlib.util.find_spec("faster_whisper") is not None, reason="faster-whisper is installed")
def test_whisper_without_its_package_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pip install faster-whisper") as caught:
        open_recognizer(f"whisper:{tmp_path}")
    assert caught.value.code == "package-missing"


STAND_IN = """
class WhisperModel:
    def __init__(self, folder, compute_type):
        if open(folder + "/model.bin").read() != "a model":
            raise RuntimeError("Unsupported model binary version")
    def transcribe(self, wave, language, condition_on_previous_text):
        if language not in ("en", "am"):
            raise ValueError(f"{language!r} is not a valid language code")
        return [type("Piece", (), {"text": f" {len(wave)} {language} "})], None
"""
LANGUAGES = "    supported_languages = ['en', 'am']\n"


@pytest.mark.parametrize("says_languages", [True, False])
def test_whisper_without_a_model_or_the_language_is_refused_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says_languages: bool
) -> None:
    """A stand-in for the package that fails as it does."""
    package, folder = tmp_path / "packages", tmp_path / "whisper"
    for made in (package, folder):
        made.mkdir()
    (package / "faster_whisper.py").write_text(STAND_IN + (LANGUAGES if says_languages else ""))
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.delitem(sys.modules, "faster_whisper", raising=False)
    for content in (None, "something else"):
        if content is not None:
            (folder / "model.bin").write_text(content)
        with pytest.raises(ConfigError) as caught:
            open_recognizer(f"whisper:{folder}")
        assert caught.value.code == "recognizer-model"
        assert caught.value.finding.cure
    (folder / "model.bin").write_text("a model")
    whisper = open_recognizer(f"whisper:{folder}")
    assert whisper.languages == (frozenset({"en", "am"}) if says_languages else None)
    assert whisper.sample_rate == RATE_HZ
    assert whisper.transcribe(noises(16_000), RATE_HZ, "am") == [Transcript("16000 am", None)]
    with pytest.raises(ConfigError, match="valid language code") as refused:
        whisper.transcribe(noises(16_000), RATE_HZ, "ti")
    assert refused.value.code == "recognizer-language"
    sys.modules.pop("faster_whisper")


@pytest.mark.parametrize("has_model", [True, False])
def test_whisper_is_chosen_by_itself_where_it_is_installed_and_alone_knows_the_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_model: bool
) -> None:
    """A stand-in for the package, which looks for models in its cache as it does."""
    package, folder = tmp_path / "packages" / "faster_whisper", tmp_path / "whisper"
    package.mkdir(parents=True)
    folder.mkdir()
    (folder / "model.bin").write_text("a model")
    languages = "    supported_languages = ['en', 'nl', 'jw']\n"
    (package / "__init__.py").write_text(STAND_IN.replace('"am"', '"nl", "jw"') + languages)
    found = f"return {str(folder)!r}" if has_model else "raise FileNotFoundError(size)"
    (package / "utils.py").write_text(f"def download_model(size, local_files_only):\n    {found}\n")
    monkeypatch.syspath_prepend(str(package.parent))
    for name in [name for name in sys.modules if name.startswith("faster_whisper")]:
        monkeypatch.delitem(sys.modules, name)
    chosen = open_transcriber(None, "nl")
    assert (chosen.why_unsupported("nl") == "") is has_model
    assert has_model or "has no model on this machine" in chosen.why_unsupported("nl")
    for language, code in (("nl-BE", "nl"), ("jv", "jw")) if has_model else ():
        transcriber = open_transcriber(None, language)
        assert transcriber.why_unsupported(language) == ""
        assert code in transcriber.transcribe(noises(16_000), RATE_HZ, language, "tests")[0].text.split()
    for known in ("am", None):
        built_in = open_transcriber(None, known).recognizer
        assert built_in is not None
        assert built_in.name == "built-in"
    assert "does not know ti" in open_transcriber(None, "ti").why_unsupported("ti")
    for name in [name for name in sys.modules if name.startswith("faster_whisper")]:
        sys.modules.pop(name)
