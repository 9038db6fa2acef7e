"""Sound before the end is known, sound in batches, and code files with latents."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support import s3gen
from tests.support.checkpoint_files import saved
from tests.support.run_folders import error_of
from tests.support.synthesis import settings_of, spoken
from tests.test_s3gen import write_conditions
from tools.random_bases import make_random_base
from voxgraft.models.base import Vocoder
from voxgraft.models.chatterbox.encoder import SpeechTokenizer
from voxgraft.models.chatterbox.s3gen import find_watermarker
from voxgraft.synthesis.command import Wave, render_pieces, speak, stream_speech, synthesize
from voxgraft.synthesis.engine import SynthesisModels, open_synthesis_models
from voxgraft.synthesis.inputs import UtteranceRequest, VoiceLoader

TEXT = "Bring me the blue cup. She walks home slowly."


@pytest.fixture(scope="module")
def tiny() -> SynthesisModels:
    return open_synthesis_models(settings_of(TEXT, "--language=en", "--device=cpu"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Chatterbox that sounds."""
    made = tmp_path_factory.mktemp("sounding") / "base"
    make_random_base("chatterbox", made, size="tiny", seed=0)
    saved(s3gen.published_state(s3gen.random_model(), SpeechTokenizer.load(made)), made / "s3gen.pt")
    write_conditions(made / "conds.pt")
    return made


def vocoder_of(speakers: SynthesisModels) -> Vocoder:
    vocoder = speakers.context.vocoder()
    assert vocoder is not None
    return vocoder


def test_streamed_sentence_by_sentence_it_is_the_whole_result(tiny: SynthesisModels) -> None:
    settings, vocoder = settings_of(TEXT, "--language=en", "--device=cpu"), vocoder_of(tiny)
    voices, request = VoiceLoader(tiny, settings), UtteranceRequest("001", TEXT)
    pieces = list(stream_speech(tiny, voices, request, settings, vocoder))
    (said,) = synthesize(tiny, voices, [request], settings, vocoder)
    ((first, second),) = render_pieces([said], vocoder, 1)
    pause = round(0.3 * vocoder.sample_rate)
    assert [len(piece) for piece in pieces] == [len(first), pause, len(second)]
    assert np.array_equal(pieces[0], first)
    assert np.array_equal(pieces[2], second)


@pytest.mark.long
def test_standard_output_carries_the_sound_of_the_file_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "voxgraft", "speak", TEXT, "Good morning.", "--language=en", "--batch=1"]
    streamed = subprocess.run([*command, "--output=-", "--json"], capture_output=True, check=True, cwd=tmp_path)
    subprocess.run([*command, "--output=whole.wav"], capture_output=True, check=True, cwd=tmp_path)
    whole, rate = soundfile.read(tmp_path / "whole.wav", dtype="int16")
    assert streamed.stdout[:4] + streamed.stdout[8:12] == b"RIFFWAVE"
    assert int.from_bytes(streamed.stdout[24:28], "little") == rate
    assert np.array_equal(np.frombuffer(streamed.stdout[44:], "<i2"), whole)
    assert [one["file"] for one in json.loads(streamed.stderr)["utterances"]] == ["-", "-"]
    with subprocess.Popen(
        [*command, "--output=-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"speak-pipe" in process.stderr.read()
    assert process.returncode == 2


def test_sound_for_a_closed_standard_output_is_refused(tmp_path: Path) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m voxgraft speak ha --language=en --output=- >&-"
    ended = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, cwd=tmp_path)
    assert b"error speak-output" in ended.stderr
    assert ended.returncode == 2


def test_codes_cannot_share_standard_output_with_the_sound(tmp_path: Path) -> None:
    settings = settings_of(TEXT, "--language=en", "--output=-", f"--codes={tmp_path / 'codes.json'}")
    assert error_of(lambda: speak(settings)).code == "speak-output"
    assert not list(tmp_path.iterdir())


def test_a_batch_of_sentences_sounds_as_each_alone(tiny: SynthesisModels) -> None:
    settings, vocoder = settings_of(TEXT, "--language=en", "--device=cpu"), vocoder_of(tiny)
    texts = [TEXT, "rain fell", TEXT]
    requests = [UtteranceRequest(str(at), text) for at, text in enumerate(texts)]
    said = synthesize(tiny, VoiceLoader(tiny, settings), requests, settings, vocoder)
    alone = [list(waves) for waves in render_pieces(said, vocoder, 1)]
    assert [len(waves) for waves in alone] == [2, 1, 2]
    for batch in (2, 3, 16):
        for waves, wanted in zip(render_pieces(said, vocoder, batch), alone, strict=True):
            assert [len(wave) for wave in waves] == [len(wave) for wave in wanted]
            assert all(np.abs(own - one).max() < 1e-4 for own, one in zip(waves, wanted, strict=True))


def streamed(base: Path, seconds: float = 4.0) -> list[Wave]:
    settings = settings_of(
        "bring me the cup", "--language=en", "--device=cpu", f"--base={base}", f"--max-seconds={seconds}"
    )
    speakers = open_synthesis_models(settings)
    voices, request = VoiceLoader(speakers, settings), UtteranceRequest("001", "bring me the cup")
    return list(stream_speech(speakers, voices, request, settings, vocoder_of(speakers)))


def test_inside_a_sentence_sound_begins_before_its_end_and_joins_without_a_click(base: Path) -> None:
    pieces = streamed(base)
    assert len(pieces) >= 3
    assert sum(map(len, pieces)) == 960 * 100  # four seconds: a hundred codes
    assert 0 < len(pieces[0]) < 960 * 24
    whole = np.concatenate(pieces)
    steps = np.abs(np.diff(whole))
    for place in np.cumsum([len(piece) for piece in pieces])[:-1].tolist():
        near = np.r_[steps[place - 480 : place - 1], steps[place : place + 480]]
        assert steps[place - 1] <= near.max()  # no step at a join is larger than those around it
    again = streamed(base)
    assert np.array_equal(whole, np.concatenate(again))
    # What is cut off fades out.
    assert whole[-1] == 0
    assert np.abs(whole[-960:-480]).max() > 1e-3


@pytest.fixture
def watermark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package in the place of the real one, which is not at hand: its mark is a shift that can be seen."""
    body = "def apply_watermark(self, wave, sample_rate):\n        return wave + 0.5"
    (tmp_path / "perth.py").write_text(f"class PerthImplicitWatermarker:\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    find_watermarker.cache_clear()
    yield
    sys.modules.pop("perth", None)
    find_watermarker.cache_clear()


def test_streamed_pieces_are_marked_each_sample_once(base: Path, watermark: None) -> None:
    marked = streamed(base, 3.0)
    sys.modules.pop("perth", None)
    find_watermarker.cache_clear()
    assert len(marked) >= 2
    assert np.allclose(marked[0][:480], 0.5)  # the first 20 ms are silent but for the mark
    assert all(wave.dtype == np.float32 for wave in marked)
    assert all(np.abs(wave[:-480]).max() < 0.99 + 0.51 for wave in marked)


def test_a_code_file_has_latents_in_half_precision_when_asked(tmp_path: Path) -> None:
    words = ("she walks home slowly", "--language=en")
    spoken(*words, f"--codes={tmp_path / 'plain.json'}")
    spoken(*words, f"--codes={tmp_path / 'full.json'}", "--latents")
    plain, full = (
        json.loads((tmp_path / name).read_text())["utterances"][0]["pieces"][0] for name in ("plain.json", "full.json")
    )
    kept = full.pop("latents")
    assert full == plain
    assert kept["dtype"] == "float16"
    values = np.frombuffer(base64.b64decode(kept["data"]), "<f2").reshape(kept["shape"])
    settings = settings_of(*words, "--device=cpu", f"--codes={tmp_path / 'x.json'}", "--latents")
    speakers = open_synthesis_models(settings)
    (said,) = synthesize(speakers, VoiceLoader(speakers, settings), [UtteranceRequest("001", words[0])], settings)
    states = said.pieces[0].latents
    assert states is not None
    assert values.shape == states.shape == (len(full["codes"]), kept["shape"][1])
    assert np.abs(values - states).max() <= 1e-3 * np.abs(states).max()
    for wrong in ((), (f"--codes={tmp_path / 'x.npy'}",)):
        assert error_of(lambda given=wrong: spoken(*words, *given, "--latents")).code == "speak-output"
