"""Fuzzed requests that are really spoken, by the server in process. `python -m tests.fuzz.speech_requests NUMBER [SEED]`

Short texts of odd characters, spans and numbers in every language, format, form of answer, voice, speed and seed, on a
base with several grafts; some clients leave in the middle. Every answer is read as its client would: an unreadable one,
a bug inside, or a sound that is another one when nobody else is served fails. Counts statuses with their codes.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import av

from tests.support.server import Answer, ask, open_app
from voxgraft.audio.files import AUDIO_TYPES
from voxgraft.core.web import App
from voxgraft.server.scheduler import Scheduler
from voxgraft.synthesis.api import TTS

CLIENTS = 24
PATH = "/v1/audio/speech"
WORDS = (
    *("a cup", "no", "le pain", "ça va", "ሰላም", "ቤት", "ከመይ", "សិទ្ធិ", "12", "3.5", "12:30", "1/2", "№7", "$5", "10 %"),
    *("[en]no[/en]", "[am]ቤት[/am]", "[fr]oui[/fr]", "[it]si[/it]", "[be]cause", "[en]x", "y[/en]", "[en][/en]", "[am]"),
    *(
        "ж",
        "é",
        "e\u0301",
        "\u200d",
        "\u202e",
        "😀",
        "日本",
        "عربي",
        "ﷺ",
        "ß",
        "A",
        "АЛЛО",
        "'",
        "’",
        "-",
        "...",
        "—",
        "\t",
    ),
    *("<b>", "&amp;", "[laugh]", "[UNK]", "[STOP]", "\u1361", "።", "\x01", "x" * 12, "አ" * 6, "🇪🇹", "́"),
)
ENDS = ("", ".", "!", "?", "።", "\n", ". ", "…", ";", "\r\n")
SPEEDS = (0.25, 0.5, 0.99, 1, 1.0, 1.5, 4)
LEFT = "left"


def build_speech_request(draw: random.Random, languages: tuple[str, ...], voices: tuple[str, ...]) -> dict[str, Any]:
    """The values of one request. Most are valid, but their text may have nothing to speak."""
    text = ""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        text += " ".join(draw.choices(WORDS, k=draw.randint(1, 3))) + draw.choice(ENDS)
    values: dict[str, Any] = {"input": text, "response_format": draw.choice(tuple(AUDIO_TYPES))}
    form = draw.choice(("whole", "audio", "sse", "stream"))
    values |= {"stream": True} if form == "stream" else {} if form == "whole" else {"stream_format": form}
    for key, offered in (
        ("language", (*languages, *map(str.upper, languages))),
        ("model", ("voxgraft", "tts-1", *(f"voxgraft-{language}" for language in languages))),
        ("voice", (*voices, {"id": voices[0]})),
        ("speed", SPEEDS),
        ("seed", (0, 1, 7, 2**31, 2**32 - 1)),
        ("instructions", ("", None)),
    ):
        if draw.random() < 0.6:
            values[key] = draw.choice(offered)
    return values


def read_sound(values: dict[str, Any], answer: Answer) -> bytes:
    """The bytes of the sound in an answer; fails where a client could not read it."""
    assert answer.complete, "the answer has no end"
    data = answer.body
    if values.get("stream_format") == "sse":
        events = [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().split("\n\n") if line]
        kinds = [event["type"] for event in events]
        assert kinds == ["speech.audio.delta"] * (len(events) - 1) + ["speech.audio.done"], kinds
        assert events[-1]["usage"]["output_tokens"] >= 0
        data = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    if values["response_format"] == "pcm":
        assert len(data) % 2 == 0
    elif data:
        with av.open(io.BytesIO(data), "r") as container:
            for frame in container.decode(container.streams.audio[0]):
                assert frame.samples >= 0
    return data


def fuzz_speech(app: App, scheduler: Scheduler, number: int, seed: int) -> Counter[str]:
    """So many requests by a few clients at once, then some of them again alone; how often each status was answered."""
    draw, counts = random.Random(seed), Counter[str]()
    languages, voices = scheduler.tts.languages, tuple(scheduler.voices)
    again: list[tuple[dict[str, Any], bytes]] = []
    begin = time.monotonic()

    async def speak(values: dict[str, Any], leave_after: float | None = None) -> tuple[str, bytes]:
        answer = await ask(app, PATH, json.dumps(values).encode(), leave_after=leave_after)
        if leave_after is not None and not answer.complete:
            return LEFT, b""
        if answer.status == 200:
            return "200", read_sound(values, answer)
        return f"{answer.status} {answer.error['code']}", b""

    async def client() -> None:
        while sum(counts.values()) + CLIENTS <= number:
            values = build_speech_request(draw, languages, voices)
            leaves = draw.random() < 0.05
            try:
                status, sound = await speak(values, draw.random() if leaves else None)
            except Exception as error:
                error.add_note(json.dumps(values))
                raise
            counts[status] += 1
            # The first one always, so that a short campaign compares at least one.
            if status == "200" and values["response_format"] == "pcm" and (draw.random() < 0.1 or not again):
                again.append((values, sound))
            if sum(counts.values()) % 500 == 0:
                print(
                    f"{sum(counts.values()):,} requests, {time.monotonic() - begin:.0f} s, {dict(counts)}", flush=True
                )

    async def all_of_them() -> None:
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        for values, sound in again:
            assert await speak(values) == ("200", sound), values
            counts["again, alone"] += 1

    asyncio.run(all_of_them())
    assert "internal_errors_total" not in scheduler.metrics.format({})
    assert not scheduler.gauges["requests_in_progress"]
    return counts


def load_with_grafts(folder: Path) -> TTS:
    """The built-in base with three grafts of random adapters."""
    import voxgraft
    from tests.support.synthesis import made_graft
    from voxgraft.models import get_family

    base = get_family("tiny").shipped_folder()
    assert base is not None
    grafts = [made_graft(folder, base, language, seed) for seed, language in enumerate(("am", "ti", "km"), 3)]
    return voxgraft.load(grafts, device="cpu")


if __name__ == "__main__":
    total, start = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with (
        tempfile.TemporaryDirectory() as place,
        open_app(load_with_grafts(Path(place)), language="en", queue=2 * CLIENTS) as (application, own),
    ):
        print(json.dumps(fuzz_speech(application, own, total, start), indent=1))
