"""`voxgraft serve`: OpenAI's client and curl speak through it; limits, keys, cancellation, shutdown; nothing leaks."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import soundfile

import voxgraft
from tests.fuzz.requests import fuzz_requests
from tests.fuzz.speech_requests import CLIENTS, LEFT, fuzz_speech, load_with_grafts
from tests.support.docs import blocks
from tests.support.run_folders import error_of
from tests.support.server import KEY, Answer, ServerProcess, ask, open_app, speech
from tests.support.synthesis import made_graft, settings_of
from voxgraft.audio.files import AUDIO_TYPES, AudioEncoder
from voxgraft.config.commands import ServeSettings
from voxgraft.core.web import App
from voxgraft.models import get_family
from voxgraft.nn.layers import CAPTURE_LOCK
from voxgraft.server.command import collect_voices, resolve_key, serve
from voxgraft.server.scheduler import Scheduler, SpeechJob
from voxgraft.synthesis import batching
from voxgraft.synthesis.api import TTS
from voxgraft.synthesis.engine import open_base_model
from voxgraft.synthesis.inputs import UtteranceRequest

SPEECH = "/v1/audio/speech"
SECRET = "zanzibar"
"""A word of texts that must be in no log and no metric."""


@pytest.fixture(scope="module")
def tts(tmp_path_factory: pytest.TempPathFactory) -> TTS:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    return voxgraft.load(made_graft(tmp_path_factory.mktemp("graft"), base, "am", 3), device="cpu")


@pytest.fixture(scope="module")
def served(tts: TTS) -> Iterator[tuple[App, Scheduler]]:
    with open_app(tts, language="en") as opened:
        yield opened


def asked(app: App, *arguments: Any, **more: Any) -> Answer:
    return asyncio.run(ask(app, *arguments, **more))


def read_wav(data: bytes) -> tuple[np.ndarray[Any, Any], int]:
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    return samples, rate


def count_seconds(data: bytes) -> float:
    """What ffmpeg, and so most players, make of it."""
    with av.open(io.BytesIO(data), "r") as container:
        samples = [frame.samples for frame in container.decode(container.streams.audio[0])]
        return sum(samples) / container.streams.audio[0].rate


def test_an_answer_has_the_samples_that_the_api_speaks_whoever_else_is_served(
    tts: TTS, served: tuple[App, Scheduler]
) -> None:
    texts = {"en": "Take it! A cup", "am": "ሰላም", "fr": "le pain"}

    async def together() -> list[Answer]:
        bodies = (speech(text, language=language, seed=4) for language, text in texts.items())
        return await asyncio.gather(*(ask(served[0], SPEECH, body) for body in bodies))

    for (language, text), answer in zip(texts.items(), asyncio.run(together()), strict=True):
        assert (answer.status, answer.headers["content-type"]) == (200, "audio/wav")
        assert answer.headers["voxgraft-language"] == language
        samples, rate = read_wav(answer.body)
        alone = tts.speak(text, language=language, voice="f2", seed=4, batch=1)
        assert rate == tts.sample_rate
        np.testing.assert_allclose(samples, np.clip(alone, -1, 1), atol=1e-3)


def test_sound_comes_sentence_by_sentence_chunked_and_as_events(served: tuple[App, Scheduler]) -> None:
    body = {"language": "en", "response_format": "pcm", "seed": 1}
    text = "Take it! A cup! No!"
    whole = asked(served[0], SPEECH, speech(text, **body))
    chunked = asked(served[0], SPEECH, speech(text, stream_format="audio", **body))
    assert len([one for one in chunked.chunks if one]) >= 3
    assert chunked.body == whole.body
    assert "content-length" not in chunked.headers
    events = asked(served[0], SPEECH, speech(text, stream_format="sse", **body))
    assert events.headers["content-type"] == "text/event-stream"
    values = [json.loads(line.removeprefix("data: ")) for line in events.body.decode().split("\n\n") if line]
    assert [one["type"] for one in values] == ["speech.audio.delta"] * (len(values) - 1) + ["speech.audio.done"]
    assert b"".join(base64.b64decode(one["audio"]) for one in values[:-1]) == whole.body
    usage = values[-1]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0


@pytest.mark.parametrize("name", AUDIO_TYPES)
@pytest.mark.parametrize("rate", [16_000, 22_050])
def test_every_format_holds_the_sound_at_the_wanted_tempo(name: str, rate: int) -> None:
    time = np.arange(2 * rate) / rate
    tone = (0.3 * np.sin(2 * np.pi * 220 * time)).astype(np.float32)
    for speed in (1.0, 0.4, 2.0):
        encoder = AudioEncoder(name, rate, speed)
        streamed = b"".join([*(encoder.write(part) for part in np.array_split(tone, 3)), encoder.finish()])
        whole = encoder.whole()
        if name == "pcm":
            assert streamed == whole
            assert len(whole) / 2 / encoder.rate == pytest.approx(2 / speed, abs=0.06)
            samples = np.frombuffer(whole, "<i2").astype(float)
        else:
            assert [count_seconds(one) for one in (streamed, whole)] == pytest.approx([2 / speed] * 2, abs=0.15)
            samples, encoder.rate = soundfile.read(io.BytesIO(whole))
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
        assert np.argmax(spectrum) * encoder.rate / len(samples) == pytest.approx(220, rel=0.02), "the pitch stays"


REFUSED = {
    "not json": (b"{", 400, "invalid_json", None),
    "a list": (b"[]", 400, "invalid_json", None),
    "deep": (b"[" * 100_000, 400, "invalid_json", None),
    "no text": (b"{}", 400, "invalid_value", "input"),
    "a number": (b'{"input": 3}', 400, "invalid_value", "input"),
    "silence": (speech(" "), 400, "speak_nothing", "input"),
    "half a character": (b'{"input": "a\\ud800"}', 400, "invalid_value", "input"),
    "too long": (speech("a" * 4097), 400, "string_above_max_length", "input"),
    "unknown": (speech("a", colour="red"), 400, "unknown_parameter", "colour"),
    "model": (speech("a", model="whisper-1"), 404, "model_not_found", "model"),
    "voice": (speech("a", voice="alloy"), 400, "voice_not_found", "voice"),
    "a path": (speech("a", voice="../../etc/passwd"), 400, "voice_not_found", "voice"),
    "a file": (speech("a", voice="voxgraft/assets/demo/am.wav"), 400, "voice_not_found", "voice"),
    "emotion": (speech("a", emotion="/etc/passwd"), 400, "invalid_value", "emotion"),
    "no emotions": (speech("a", emotion=[0.1] * 8), 400, "manner_unknown", "input"),
    "format": (speech("a", response_format="aac"), 400, "invalid_value", "response_format"),
    "speed": (speech("a", speed=9), 400, "invalid_value", "speed"),
    "nan": (b'{"input": "a", "speed": NaN}', 400, "invalid_value", "speed"),
    "true": (speech("a", speed=True), 400, "invalid_value", "speed"),
    "stream": (speech("a", stream_format="video"), 400, "invalid_value", "stream_format"),
    "seed": (speech("a", seed=-1), 400, "invalid_value", "seed"),
    "instructions": (speech("a", instructions="sadly"), 400, "unsupported_parameter", "instructions"),
    "language": (speech("a", language="tlh"), 400, "language_not_found", "language"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_request_is_refused_in_the_shape_of_openai(case: str, served: tuple[App, Scheduler]) -> None:
    body, status, code, param = REFUSED[case]
    answer = asked(served[0], SPEECH, body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param)
    assert answer.error["type"] == "invalid_request_error"
    assert not served[1].gauges["requests_in_progress"]


def test_other_paths_methods_types_and_sizes_are_refused_too(served: tuple[App, Scheduler]) -> None:
    app = served[0]
    assert asked(app, "/v1/nothing").error["code"] == "not_found"
    assert asked(app, SPEECH).error["code"] == "method_not_allowed"
    assert asked(app, SPEECH, speech("a"), {"content-type": "text/plain"}).status == 415
    assert asked(app, SPEECH, speech("a" * 300_000)).status == 413
    assert asked(app, SPEECH, b"", {"content-length": "99999999999"}).status == 413
    assert asked(app, SPEECH, b"", {"content-length": "many"}).status == 400


def test_the_language_comes_from_the_request_the_model_or_the_script(tts: TTS, served: tuple[App, Scheduler]) -> None:
    app = served[0]
    spoken = {
        "am": asked(app, SPEECH, speech("ሰላም")),
        "fr": asked(app, SPEECH, speech("le pain", model="voxgraft-fr")),
        "en": asked(app, SPEECH, speech("a cup", language="EN")),
    }
    assert {language: answer.headers["voxgraft-language"] for language, answer in spoken.items()} == {
        language: language for language in spoken
    }
    with open_app(tts) as (unsure, _):
        assert asked(unsure, SPEECH, speech("le pain")).error["code"] == "language_required"


def test_lists_health_metrics_and_the_page(served: tuple[App, Scheduler]) -> None:
    app = served[0]
    models = json.loads(asked(app, "/v1/models").body)
    assert [one["id"] for one in models["data"]] == ["voxgraft", "voxgraft-am", "voxgraft-en", "voxgraft-fr"]
    voices = [one["id"] for one in json.loads(asked(app, "/v1/audio/voices").body)["data"]]
    assert voices[0] == "default"
    assert "f2" in voices
    assert asked(app, "/health").status == 200
    assert asked(app, SPEECH, speech(SECRET, language="en")).status == 200
    text = asked(app, "/metrics").body.decode()
    assert "voxgraft_requests_total" in text
    assert "voxgraft_first_audio_seconds_bucket" in text
    assert SECRET not in text
    page = asked(app, "/")
    assert "unsafe" not in page.headers["content-security-policy"]
    assert b"<audio" in page.body


def test_other_origins_and_host_names_are_refused(served: tuple[App, Scheduler]) -> None:
    refused: list[dict[str, str]] = [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"host": "evil.example"},
        {"host": ""},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ]
    for headers in refused:
        assert asked(served[0], SPEECH, speech("a"), headers).error["code"] == "origin_refused"
    assert asked(served[0], "/v1/models", None, {"origin": "http://localhost"}).status == 200


def test_with_a_key_nothing_but_the_page_and_health_is_open(tts: TTS) -> None:
    with open_app(tts, KEY) as (app, _):
        for path in ("/v1/models", "/v1/audio/voices", "/metrics"):
            assert asked(app, path).error["code"] == "invalid_api_key"
        for given in ("", "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", KEY, f"Bearer {KEY[:-1]}"):
            assert asked(app, SPEECH, speech("a"), {"authorization": given}).status == 401
        assert asked(app, SPEECH, speech("a", language="en"), {"authorization": f"Bearer {KEY}"}).status == 200
        assert {asked(app, path).status for path in ("/", "/health")} == {200}


def test_an_address_that_others_reach_needs_a_key_of_some_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VOXGRAFT_API_KEY", raising=False)
    assert resolve_key(ServeSettings()) is None
    assert error_of(lambda: serve(ServeSettings(host="0.0.0.0"))).code == "serve-key"
    (tmp_path / "key").write_text("short\n")
    assert error_of(lambda: serve(ServeSettings(key_file=tmp_path / "key"))).code == "serve-key"
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert resolve_key(ServeSettings(host="0.0.0.0", key_file=tmp_path / "key")) == KEY
    for never in ("ключ достаточной длины", f"{KEY}é", f"{KEY}\x7f"):
        (tmp_path / "key").write_text(never)
        assert error_of(lambda: resolve_key(ServeSettings(key_file=tmp_path / "key"))).code == "serve-key"
    monkeypatch.setenv("VOXGRAFT_API_KEY", KEY)
    assert resolve_key(ServeSettings()) == KEY


def test_more_requests_than_the_queue_holds_are_told_to_come_back(tts: TTS) -> None:
    async def many() -> list[Answer]:
        return await asyncio.gather(*(ask(app, SPEECH, speech("a cup", seed=seed)) for seed in range(6)))

    with open_app(tts, queue=2, batch=1, language="en") as (app, scheduler):
        answers = asyncio.run(many())
        refused = [answer for answer in answers if answer.status == 429]
        assert len(refused) == 4
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert refused[0].error["type"] == "rate_limit_error"
        assert asked(app, SPEECH, speech("a cup")).status == 200
        assert scheduler.gauges == {"requests_in_progress": 0, "sentences_waiting": 0, "sentences_decoding": 0}


def test_a_client_that_leaves_frees_its_place_and_its_rows(tts: TTS) -> None:
    async def leave() -> None:
        await ask(app, SPEECH, speech("Take it! " * 40, language="en"), leave_after=0.3)
        assert not scheduler.gauges["requests_in_progress"]
        for _ in range(200):
            if not scheduler.gauges["sentences_decoding"] + scheduler.gauges["sentences_waiting"]:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(scheduler.gauges)

    with open_app(tts, queue=1, batch=2) as (app, scheduler):
        asyncio.run(leave())
        assert asked(app, SPEECH, speech("a cup", language="en")).status == 200


def test_a_client_that_takes_nothing_is_dropped_and_frees_its_place(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxgraft.server.app.STALL_SECONDS", 0.2)
    with open_app(tts, queue=1, language="en") as (app, scheduler):
        for stream in (None, "audio"):
            with pytest.raises(TimeoutError):
                asked(app, SPEECH, speech("a cup", stream_format=stream), stall=True)
            assert not scheduler.gauges["requests_in_progress"]


def test_a_body_that_never_ends_is_refused_in_time(
    served: tuple[App, Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voxgraft.server.app.STALL_SECONDS", 0.2)
    answer = asked(served[0], SPEECH, speech("a cup")[:9], unfinished=True)
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"


def test_findings_of_the_text_are_named_in_a_header(served: tuple[App, Scheduler]) -> None:
    for stream in (None, "sse"):
        answer = asked(served[0], SPEECH, speech("ሰላም a", language="en", stream_format=stream))
        assert answer.headers["voxgraft-findings"] == "speak-other-script, speak-unknown-letters"
    assert "voxgraft-findings" not in asked(served[0], SPEECH, speech("a cup")).headers


@pytest.mark.parametrize("names", [("anna.flac", "anna.wav"), ("default.wav",), ("f2.wav",)])
def test_recordings_with_the_name_of_another_voice_are_refused(tts: TTS, tmp_path: Path, names: tuple[str]) -> None:
    for name in names:
        soundfile.write(tmp_path / name, np.zeros(1600, np.float32), 16_000)
    error = error_of(lambda: collect_voices(tts, ServeSettings(voices=tmp_path, voice="f2")))
    assert (error.code, error.finding.where) == ("config-value", str(tmp_path / names[-1]))


async def ask_while_decoding(app: App, scheduler: Scheduler, body: bytes, fault: Any, *more: bytes) -> list[Answer]:
    """A request, and others that come after a fault, which is caused once it is being decoded."""
    async with asyncio.timeout(60):
        first = asyncio.create_task(ask(app, SPEECH, body))
        while not scheduler.gauges["sentences_decoding"]:
            await asyncio.sleep(0.001)
        fault()
        return await asyncio.gather(first, *(ask(app, SPEECH, other) for other in more))


def test_a_batch_that_fails_ends_its_own_requests_and_is_built_again(tts: TTS) -> None:
    # An export and its base have a backbone each, as here.
    base = open_base_model(replace(tts.models.context, opened=None))
    with open_app(TTS(replace(tts.models, base=base)), batch=8) as (app, scheduler):
        batches = {id(system): scheduler._batches[id(system)] for system in scheduler.tts.models.all}
        assert len(set(batches.values())) == 2
        broken = batches[id(scheduler.tts.models.grafts[0])]

        def fault() -> None:
            broken._choice = None  # type: ignore[assignment]

        en, am = speech("Take it! A cup! " * 8, language="en"), speech("ሰላም", language="am")
        answers = asyncio.run(ask_while_decoding(app, scheduler, en, fault, am))
        assert [answer.status for answer in answers] == [200, 500]
        assert [asked(app, SPEECH, body).status for body in (am, speech("a cup", language="en"))] == [200, 200]
        assert scheduler._batches[id(base)] is batches[id(base)]
        assert broken not in scheduler._batches.values()
        assert set(scheduler.gauges.values()) == {0}


def test_an_error_of_the_decoder_fails_all_requests_and_the_next_one_is_served(tts: TTS) -> None:
    with open_app(tts, language="en") as (app, scheduler):

        def fault() -> None:
            with scheduler._wake:
                scheduler._waiting.insert(0, (0.0, -1, None, 0))  # type: ignore[arg-type]
                scheduler._wake.notify()

        answers = asyncio.run(ask_while_decoding(app, scheduler, speech("Take it! A cup! " * 20), fault))
        assert (answers[0].status, answers[0].error["code"]) == (500, "internal_error")
        assert asked(app, SPEECH, speech("a cup")).status == asked(app, "/health").status == 200
        assert set(scheduler.gauges.values()) == {0}
        scheduler.stop()
        for answer in (asked(app, "/health"), asked(app, SPEECH, speech("a cup"))):
            assert (answer.status, answer.error["code"]) == (503, "not_running")


def test_decode_graphs_are_captured_while_no_sound_is_made_and_one_that_fails_ends_nothing(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for graphs, as there is no CUDA here; threads, requests and the lock are the server's own."""
    sounding, captures, beside = set[int](), list[int](), list[int]()

    class Steps:
        def __init__(self, function: Any) -> None:
            self.replay = function

    def capture(function: Any, pool: Any = None) -> tuple[Any, None]:
        with CAPTURE_LOCK.capture():
            beside.append(len(sounding))
            time.sleep(0.02)
            beside.append(len(sounding))
            captures.append(1)
            if len(captures) == 4:
                raise RuntimeError("operation not permitted when stream is capturing")
        return Steps(function), None

    render = Scheduler._render

    def watched(self: Scheduler, work: Any) -> None:
        sounding.add(threading.get_ident())
        render(self, work)
        sounding.discard(threading.get_ident())

    monkeypatch.setattr(batching, "capture_graph", capture)
    monkeypatch.setattr(Scheduler, "_render", watched)
    with open_app(tts, language="en") as (app, scheduler):
        for batch in scheduler._batches.values():
            batch._captures = True
        body = speech("Take it! A cup! No, thank you.")

        async def ask_all() -> list[Answer]:
            return await asyncio.gather(*(ask(app, SPEECH, body) for _ in range(6)))

        answers = [answer for _ in range(4) for answer in asyncio.run(ask_all())]
        assert {answer.status for answer in answers} == {200}
        assert "internal_errors_total" not in scheduler.metrics.format({})
    assert len(captures) == 4
    assert set(beside) == {0}


def test_an_error_of_planning_is_counted_and_answered_without_its_text(
    tts: TTS, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_app(tts, language="en") as (app, scheduler):
        assert asked(app, SPEECH, speech(" ")).status == 400
        assert "internal_errors_total" not in scheduler.metrics.format({})
        scheduler.voices["f2"] = None  # type: ignore[assignment]
        answer = asked(app, SPEECH, speech(SECRET))
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert "internal_errors_total 1" in scheduler.metrics.format({})
    printed = capsys.readouterr().err
    assert "AttributeError" in printed
    assert SECRET not in printed


def test_a_sentence_that_the_vocoder_refuses_fails_its_own_request_alone(tts: TTS) -> None:
    scheduler = Scheduler(tts, collect_voices(tts, ServeSettings()), batch=4, max_jobs=4)  # its threads do not run

    async def render_together() -> list[Any]:
        jobs = []
        for codes in ((1, 2, 3), (10**6,), (4, 5, 6)):
            job = SpeechJob(UtteranceRequest("x", "a cup", voice="f2"), settings_of("x"), asyncio.get_running_loop())
            scheduler._plan(job)
            assert job.plan is not None
            scheduler._spoken.put((job, 0, replace(job.plan.pieces[0], codes=codes)))
            jobs.append(job)
        scheduler._spoken.put(None)
        scheduler._vocode()
        return [await asyncio.wait_for(job.waves.get(), 10) for job in jobs]

    waves = asyncio.run(render_together())
    assert [isinstance(wave, np.ndarray) for wave in waves] == [True, False, True]
    assert isinstance(waves[1], Exception)


def test_fuzzed_requests_never_meet_a_bug(tts: TTS, pytestconfig: pytest.Config) -> None:
    """A share of the campaign of a million; `tests/fuzz/requests.py` runs all of it."""
    share, seed = pytestconfig.getoption("--fuzz"), pytestconfig.getoption("--fuzz-seed")
    with open_app(tts, language="en") as (app, scheduler):
        statuses = fuzz_requests(app, scheduler, max(300, round(20_000 * share)), seed)
    assert set(statuses) <= {200, 400, 401, 403, 404, 405, 413, 415, 429}
    assert statuses[400] > 0


@pytest.mark.long
def test_fuzzed_requests_that_are_spoken_can_be_read_and_sound_as_they_do_alone(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """A share of the campaign of `tests/fuzz/speech_requests.py`."""
    share, seed = pytestconfig.getoption("--fuzz"), pytestconfig.getoption("--fuzz-seed")
    with open_app(load_with_grafts(tmp_path), language="en", queue=2 * CLIENTS) as (app, scheduler):
        counts = fuzz_speech(app, scheduler, max(150, round(2_000 * share)), seed)
    expected = {"200", "400 speak_nothing", "400 text_span", "400 language_required", LEFT, "again, alone"}
    assert set(counts) <= expected
    assert counts["200"] > 60
    assert counts["again, alone"] > 0


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """The built-in base, as a process."""
    process = ServerProcess("--language=en")
    yield process
    if process.process.poll() is None:
        assert process.stop() == 0


@pytest.mark.long
def test_the_official_client_speaks_whole_and_streamed_in_each_format(server: ServerProcess) -> None:
    from openai import BadRequestError, NotFoundError, OpenAI

    client = OpenAI(base_url=f"{server.address}/v1", api_key="unused")
    assert "voxgraft-fr" in [model.id for model in client.models.list()]
    for name in AUDIO_TYPES:
        wanted: dict[str, Any] = {"model": "tts-1", "voice": "f2", "input": "Take it! A cup.", "response_format": name}
        whole = client.audio.speech.create(**wanted).content
        with client.audio.speech.with_streaming_response.create(**wanted, stream_format="audio") as response:
            parts = list(response.iter_bytes())
        for data in (whole, b"".join(parts)):
            seconds = len(data) / 2 / 24_000 if name == "pcm" else count_seconds(data)
            assert 0.4 < seconds < 8
    with client.audio.speech.with_streaming_response.create(**wanted, stream_format="sse") as response:
        lines = [line for line in response.iter_lines() if line]
    assert json.loads(lines[-1].removeprefix("data: "))["type"] == "speech.audio.done"
    french = client.audio.speech.create(**{**wanted, "input": "le pain"}, extra_body={"language": "fr", "seed": 5})
    assert french.response.headers["voxgraft-language"] == "fr"
    with pytest.raises(BadRequestError) as refused:
        client.audio.speech.create(**{**wanted, "voice": "alloy"})
    assert refused.value.code == "voice_not_found"
    with pytest.raises(NotFoundError):
        client.audio.speech.create(**{**wanted, "model": "none"})


@pytest.mark.long
def test_curl_and_the_examples_of_the_page_work(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    monkeypatch.chdir(tmp_path)
    shown = [block for block in blocks("synthesis.md") if "localhost:8000" in block.text]
    assert [block.language for block in shown] == ["sh", "python"]
    commands = shown[0].text.replace("http://localhost:8000", server.address)
    done = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert count_seconds((tmp_path / "cup.mp3").read_bytes()) > 0.2
    exec(compile(shown[1].text.replace("http://localhost:8000", server.address), "synthesis.md", "exec"), {})
    assert count_seconds((tmp_path / "cup.wav").read_bytes()) > 0.2


@pytest.mark.long
def test_a_signal_ends_it_cleanly_and_no_text_is_written_anywhere() -> None:
    process = ServerProcess("--language=en")
    body = {"input": f"The {SECRET} is red. " * 30, "voice": "f2", "response_format": "wav"}
    with httpx.stream("POST", f"{process.address}{SPEECH}", json={**body, "stream_format": "audio"}, timeout=60) as one:
        assert one.status_code == 200
        next(one.iter_bytes())
    assert httpx.post(f"{process.address}{SPEECH}", content=b"{" + SECRET.encode(), timeout=60).status_code == 400
    assert process.stop(signal.SIGINT) == 0
    assert "Traceback" not in process.output
    assert SECRET not in process.output


@pytest.mark.long
def test_after_sigkill_the_same_port_can_be_served_again() -> None:
    process = ServerProcess("--language=en")
    port = int(process.address.rpartition(":")[2])
    assert process.stop(signal.SIGKILL) == -signal.SIGKILL
    again = ServerProcess("--language=en", port=port)
    assert again.address == process.address
    assert httpx.post(f"{again.address}{SPEECH}", json={"input": "a cup"}, timeout=60).status_code == 200
    assert again.stop() == 0
