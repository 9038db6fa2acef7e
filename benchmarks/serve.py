"""Load of the speech server: continuous batching against one request at a time, side by side in one run.

    python -m benchmarks.serve --clients 1 4 8                                   the tiny base, on the CPU
    python -m benchmarks.serve --family chatterbox --size full --sound --device cuda --clients 1 8 32 64

One base with three grafts (random adapters of the default rank), requests of all five languages mixed. Each client
sends its requests one after another. Throughput is seconds of audio per second; first audio is the time from a request
to its first sentence. The peer is a server that takes one request after another, with the same models and the same
decode loop as `speak`. Its throughput does not depend on the clients, so it answers only the first of many requests:
its time to first audio is then too short. Random weights never end by themselves, so every sentence has the same number
of codes. A base without a vocoder is measured without one; `--sound` gives Chatterbox a full-size one. Codes of each
request are compared with those that it has alone; where they differ, from which code on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from tests.support.full_size import make_chatterbox
from tests.support.synthesis import made_graft
from tools.random_bases import make_random_base
from voxgraft.config.commands import SpeakSettings
from voxgraft.config.train_options import TrainPrecision
from voxgraft.models import get_family
from voxgraft.models.base import Clip, Vocoder
from voxgraft.server.scheduler import Scheduler, SpeechJob
from voxgraft.synthesis.api import TTS, read_style
from voxgraft.synthesis.command import _build_engine, build_request, plan_utterance, stream_pieces
from voxgraft.synthesis.engine import SynthesisModels, open_synthesis_models
from voxgraft.synthesis.inputs import ReferenceVoice, UtteranceRequest, VoiceLoader

TEXTS = {
    "am": ("ሰላም ለዓለም። ቤቱ ትልቅ ነው።", "ቤቱ ትልቅ ነው።"),
    "ti": ("ሰላም ከመይ ኣለኻ።",),
    "km": ("សិទ្ធិស្មើភាពគ្នា។",),
    "en": ("Bring me the blue cup. Take the red box.", "No, thank you."),
    "fr": ("Le pain est chaud. Bonjour.",),
}


GRAFTS, RANK = ("am", "ti", "km"), 32


class SilentVocoder(Vocoder):
    """Stands for a vocoder that the base does not have: silence of the right length, at once."""

    sample_rate = 24_000

    def __init__(self, code_hz: float) -> None:
        self._samples = round(self.sample_rate / code_hz)

    def sound(self, codes: Any, voices: Any, latents: Any = None) -> list[Any]:  # noqa: ARG002
        return [np.zeros(len(own) * self._samples, np.float32) for own in codes]


def open_tts(
    family_name: str, size: str, device: str, precision: TrainPrecision | None, sound: bool, folder: Path
) -> TTS:
    base = get_family(family_name).shipped_folder()
    if sound:
        base = folder / "base"
        make_chatterbox(base)
    elif base is None or size != "tiny":
        base = folder / "base"
        make_random_base(family_name, base, size=size)  # type: ignore[arg-type]
    grafts = tuple(made_graft(folder, base, language, seed, rank=RANK) for seed, language in enumerate(GRAFTS, 3))
    models = open_synthesis_models(
        SpeakSettings(graft=grafts, base=base, family=family_name, device=device, precision=precision)
    )
    if models.context.vocoder() is not None:
        return TTS(models)
    tts = TTS.__new__(TTS)
    tts.models, tts.vocoder, tts._known = models, SilentVocoder(models.context.family.code_hz), {}
    return tts


def choose_voice(models: SynthesisModels) -> ReferenceVoice:
    family, files = models.context.family, models.context.files
    for name, clip in family.voices(files).items():
        return ReferenceVoice(name, clip)
    # Chatterbox without a built-in voice: a made-up one. The codes mean nothing with random weights anyway.
    draw = np.random.default_rng(0)
    speaker, prompt = np.abs(draw.standard_normal(256, dtype=np.float32)), draw.integers(0, 6561, 75)
    return ReferenceVoice("made up", Clip(prompt, {"speaker": speaker / np.linalg.norm(speaker), "prompt": prompt}))


def build_requests(tts: TTS, seconds: float, number: int) -> list[tuple[UtteranceRequest, SpeakSettings]]:
    texts = [(language, text) for language, own in TEXTS.items() if language in tts.languages for text in own]
    found = []
    for at in range(number):
        language, text = texts[at % len(texts)]
        settings = read_style(seed=at, language=language, max_seconds=seconds)
        found.append((UtteranceRequest("x", text, voice="x"), settings))
    return found


async def drive(
    requests: Sequence[tuple[UtteranceRequest, SpeakSettings]], clients: int, scheduler: Scheduler
) -> dict[str, float]:
    """So many clients, each with its share of the requests."""
    firsts: list[float] = []
    samples = 0

    async def client(own: Sequence[tuple[UtteranceRequest, SpeakSettings]]) -> None:
        nonlocal samples
        for request in own:
            begin, first = time.perf_counter(), None
            job: SpeechJob = await scheduler.submit(*request)
            while (wave := await job.waves.get()) is not None:
                assert not isinstance(wave, Exception), wave
                first = first or time.perf_counter() - begin
                samples += len(wave)
            scheduler.release(job)
            firsts.append(first or 0.0)

    begin = time.perf_counter()
    await asyncio.gather(*(client(requests[number::clients]) for number in range(clients)))
    return summarize(firsts, samples / scheduler.tts.sample_rate, time.perf_counter() - begin)


def summarize(firsts: list[float], audio: float, wall: float) -> dict[str, float]:
    p95 = sorted(firsts)[min(len(firsts) - 1, round(0.95 * len(firsts)))]
    return {
        "audio_per_second": round(audio / wall, 3),
        "first_audio_median": round(statistics.median(firsts), 3),
        "first_audio_p95": round(p95, 3),
        "requests_per_second": round(len(firsts) / wall, 3),
    }


async def drive_one_by_one(
    requests: Sequence[tuple[UtteranceRequest, SpeakSettings]], clients: int, tts: TTS, voice: ReferenceVoice
) -> dict[str, float]:
    """The same clients in front of a server that answers one request after another."""
    engines = {id(one): _build_engine(one, read_style(batch=1), tts.vocoder) for one in tts.models.all}
    worker, loop = ThreadPoolExecutor(1), asyncio.get_running_loop()
    firsts: list[float] = []
    samples = 0

    def answer(utterance: UtteranceRequest, settings: SpeakSettings, begin: float) -> tuple[float, int]:
        voices = VoiceLoader(tts.models, settings, {None: voice}, tts.vocoder)
        plan = plan_utterance(tts.models, voices, replace(utterance, voice=None), settings, tts.vocoder)
        first, count = 0.0, 0
        for wave in stream_pieces(plan, engines[id(plan.system)], voices.condition(voice), tts.vocoder):
            first, count = first or time.perf_counter() - begin, count + len(wave)
        return first, count

    async def client(own: Sequence[tuple[UtteranceRequest, SpeakSettings]]) -> None:
        nonlocal samples
        for request in own:
            first, count = await loop.run_in_executor(worker, answer, *request, time.perf_counter())
            firsts.append(first)
            samples += count

    begin = time.perf_counter()
    await asyncio.gather(*(client(requests[number::clients]) for number in range(clients)))
    return summarize(firsts, samples / tts.sample_rate, time.perf_counter() - begin)


def count_differences(
    tts: TTS, voice: ReferenceVoice, requests: Sequence[tuple[UtteranceRequest, SpeakSettings]]
) -> dict[str, Any]:
    """Sentences whose codes together are not those alone: in the batch itself, and by `speak --batch 1`."""
    scheduler = Scheduler(tts, {"x": voice}, batch=1, max_jobs=1)
    batch_of = scheduler._batches
    work = []
    for utterance, settings in requests:
        voices = VoiceLoader(tts.models, settings, {None: voice}, tts.vocoder)
        plan = plan_utterance(tts.models, voices, replace(utterance, voice=None), settings, tts.vocoder)
        condition = voices.condition(voice)
        work += [(build_request(one, condition), plan.system) for one in plan.pieces]

    def run(groups: Sequence[Sequence[Any]]) -> list[tuple[int, ...]]:
        found = []
        for group in groups:
            rows = [batch_of[id(system)].join(request, system) for request, system in group]
            while any(row.result is None for row in rows):
                for batch in dict.fromkeys(batch_of.values()):
                    batch.advance()
            found += [row.result.codes for row in rows if row.result is not None]
        return found

    together, alone = run([work]), run([[one] for one in work])
    engines = {id(one): _build_engine(one, read_style(batch=1), tts.vocoder) for one in tts.models.all}
    spoken = [engines[id(system)].run([request], "alone")[0].codes for request, system in work]
    report: dict[str, Any] = {"sentences": len(work), "codes": sum(map(len, together))}
    for name, other in (("alone_in_the_batch", alone), ("speak", spoken)):
        pairs = [(a, b) for a, b in zip(together, other, strict=True) if a != b]
        # Sampling draws the same numbers, so one code that rounding changes is followed by other ones.
        first = [next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(b)) for a, b in pairs]
        report[f"differ_from_{name}"] = len(pairs)
        if first:
            report[f"first_code_that_differs_from_{name}"] = {"least": min(first), "median": statistics.median(first)}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="tiny")
    parser.add_argument("--size", default="tiny", help="of random weights: tiny, small or full")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--peer-requests", type=int, default=32, help="at most, for one request at a time")
    parser.add_argument("--precision", choices=get_args(TrainPrecision), help="default: as the server chooses")
    parser.add_argument("--sound", action="store_true", help="Chatterbox at full size: with S3Gen, of random weights")
    parser.add_argument("--seconds", type=float, default=4.0, help="maximum length of a sentence")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.sound and (options.family, options.size) != ("chatterbox", "full"):
        parser.error("--sound is for --family chatterbox --size full")
    with tempfile.TemporaryDirectory() as place:
        tts = open_tts(options.family, options.size, options.device, options.precision, options.sound, Path(place))
        voice, on_cuda = choose_voice(tts.models), options.device.startswith("cuda")
        name = torch.cuda.get_device_name() if on_cuda else platform.processor() or "cpu"
        found: dict[str, Any] = {
            "family": options.family,
            "size": options.size,
            "device": name,
            "torch": torch.__version__,
            "precision": str(tts.models.context.dtype),
            "grafts": len(tts.models.new_languages),
            "languages": [language for language in TEXTS if language in tts.languages],
            "vocoder": type(tts.vocoder).__name__,
        }
        for clients in options.clients:
            requests = build_requests(tts, options.seconds, clients * options.requests)
            scheduler = Scheduler(tts, {"x": voice}, batch=max(options.clients), max_jobs=10_000)
            scheduler.start()
            asyncio.run(drive(requests[:clients], clients, scheduler))  # compiles, captures, reserves
            together = asyncio.run(drive(requests, clients, scheduler))
            scheduler.stop()
            one_by_one = asyncio.run(drive_one_by_one(requests[: options.peer_requests], clients, tts, voice))
            ratio = round(together["audio_per_second"] / one_by_one["audio_per_second"], 2)
            found[f"{clients} clients"] = {"together": together, "one by one": one_by_one, "ratio": ratio}
            print(json.dumps({clients: found[f"{clients} clients"]}), flush=True)
        found["codes"] = count_differences(tts, voice, build_requests(tts, options.seconds, 24))
        if on_cuda:
            found["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
