"""Load of the speech server: continuous batching against one request at a time, side by side in one run.

    python -m benchmarks.serve --clients 1 4 8                                   the tiny base, on the CPU
    python -m benchmarks.serve --prepare FOLDER                                  a small Chatterbox base with grafts
    python -m benchmarks.serve --full FOLDER --device cuda --clients 1 8 32 64   the same, with weights of full size

One base with three grafts (random adapters of the default rank), requests of all five languages mixed. Each client
sends its requests one after another. Throughput is seconds of audio per second; first audio is the time from a request
to its first sentence. The peer is a server that takes one request after another, with the same models and the same
decode loop as `speak`: once sentence by sentence, as the server does, and once streamed inside sentences, which sounds
earlier and computes more. Its throughput does not depend on the clients, so it answers only some requests, from one
client. Random weights never end by themselves, so every sentence has the same number
of codes. A base without a vocoder is measured without one. `--full` opens a small base with grafts, whose tokenizers are
real, and puts random weights of the published size in their place, on the device itself. Codes of each request are compared with those that it has alone; where they differ, from which code on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.vocoders import random_reference, random_s3gen
from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.config.commands import SpeakSettings
from voxgraft.config.train_options import TrainPrecision
from voxgraft.models import get_family
from voxgraft.models.base import Clip, Vocoder
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.chatterbox.flow import FlowSize
from voxgraft.models.chatterbox.hift import HiftSize
from voxgraft.models.chatterbox.model import T3
from voxgraft.models.chatterbox.s3gen import S3GenSize, S3GenVocoder
from voxgraft.models.speech_model import grow_model
from voxgraft.nn.adapter import add_adapter, find_lora_layers
from voxgraft.nn.rows import collect_new_rows
from voxgraft.server.scheduler import Scheduler, SpeechJob
from voxgraft.synthesis.api import TTS, read_style
from voxgraft.synthesis.batching import DecodeBatch
from voxgraft.synthesis.command import (
    SpokenUtterance,
    _build_engine,
    build_request,
    plan_utterance,
    render_pieces,
    stream_pieces,
)
from voxgraft.synthesis.engine import SynthesisEngine, SynthesisModels, open_synthesis_models
from voxgraft.synthesis.inputs import ReferenceVoice, UtteranceRequest, VoiceLoader

TEXTS = {
    "am": ("ሰላም ለዓለም። ቤቱ ትልቅ ነው።", "ቤቱ ትልቅ ነው።"),
    "ti": ("ሰላም ከመይ ኣለኻ።",),
    "km": ("សិទ្ធិស្មើភាពគ្នា។",),
    "en": ("Bring me the blue cup. Take the red box.", "No, thank you."),
    "fr": ("Le pain est chaud. Bonjour.",),
}


GRAFTS, RANK = ("am", "ti", "km"), 32
# Of the voice that full-size sound is made with.
REFERENCE_SECONDS = 6


class SilentVocoder(Vocoder):
    """Stands for a vocoder that the base does not have: silence of the right length, at once."""

    sample_rate = 24_000

    def __init__(self, code_hz: float) -> None:
        self._samples = round(self.sample_rate / code_hz)

    def sound(self, codes: Any, voices: Any, latents: Any = None) -> list[Any]:  # noqa: ARG002
        return [np.zeros(len(own) * self._samples, np.float32) for own in codes]


def open_tts(family_name: str, size: str, device: str, precision: TrainPrecision | None, folder: Path) -> TTS:
    from tests.support.synthesis import made_graft

    base = get_family(family_name).shipped_folder()
    if base is None or size != "tiny":
        base = folder / "base"
        make_random_base(family_name, base, size=size)  # type: ignore[arg-type]
    grafts = tuple(made_graft(folder, base, language, seed, rank=RANK) for seed, language in enumerate(GRAFTS, 3))
    models = open_synthesis_models(
        SpeakSettings(graft=grafts, base=base, family=family_name, device=device, precision=precision)
    )
    if models.context.vocoder() is not None:
        return TTS(models)
    return join_tts(models, SilentVocoder(models.context.family.code_hz))


def join_tts(models: SynthesisModels, vocoder: Vocoder) -> TTS:
    tts = TTS.__new__(TTS)
    tts.models, tts.vocoder, tts._known = models, vocoder, {}
    return tts


def prepare(folder: Path) -> None:
    """A Chatterbox base of two narrow layers with the published number of rows, and its grafts."""
    from tests.support.synthesis import made_graft

    folder.mkdir(parents=True)
    base = folder / "base"
    make_random_base("chatterbox", base, size=RandomBaseSize(width=64, layers=2, pieces=T3Size().text_rows))
    for seed, language in enumerate(GRAFTS, 3):
        made_graft(folder, base, language, seed)


@torch.no_grad()
def open_full(folder: Path, device: str, precision: TrainPrecision | None, small: bool) -> TTS:
    """What `prepare` has left, with random weights of the published size, made on the device. `small` keeps them."""
    grafts = tuple(folder / f"run-{language}" / "graft" for language in GRAFTS)
    settings = SpeakSettings(
        graft=grafts, base=folder / "base", family="chatterbox", device=device, precision=precision
    )
    models = open_synthesis_models(settings)
    where, s3gen = torch.device(device), S3GenSize()
    if small:
        s3gen = S3GenSize(FlowSize(1, 64, width=64, inner=64, transformers=1, mid_blocks=1), HiftSize(32, 32))
    else:
        models = enlarge(models, where)
    model = random_s3gen(s3gen, where)
    model.flow_dtype = models.context.vocoder_dtype
    # Any path: nothing is read.
    vocoder = S3GenVocoder(folder, folder, device, model.flow_dtype, _model=model)
    vocoder._references[b""] = random_reference(REFERENCE_SECONDS, where)
    return join_tts(models, vocoder)


def enlarge(models: SynthesisModels, device: torch.device) -> SynthesisModels:
    torch.manual_seed(0)
    with torch.device(device):
        opened = T3(T3Size())
    fill(opened.parameters())
    opened = opened.to(models.context.dtype).requires_grad_(False).eval()
    context = replace(models.context, opened=opened)
    systems = []
    for seed, system in enumerate(models.grafts):
        model = context.model()
        for name, grown in grow_model(model, system.model.num_text_ids - T3Size().text_rows).items():
            for tensor, value in opened.get_submodule(name).named_parameters():
                grown.register_buffer(f"base_{tensor}", value.detach())
        fill(collect_new_rows(model).values())
        gate = add_adapter(model, model.adapter_layers(), rank=RANK, alpha=RANK, seed=seed)
        fill(layer.up for layer in find_lora_layers(model).values())
        systems.append(replace(system, model=model.requires_grad_(False).eval(), gate=gate))
    assert models.base is not None
    return replace(models, context=context, grafts=tuple(systems), base=replace(models.base, model=context.model()))


def fill(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.dim() > 1:
            tensor.normal_(std=0.02)


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
    samples = failures = 0

    async def client(own: Sequence[tuple[UtteranceRequest, SpeakSettings]]) -> None:
        nonlocal samples, failures
        for request in own:
            begin, first = time.perf_counter(), None
            job: SpeechJob = await scheduler.submit(*request)
            while (wave := await job.waves.get()) is not None:
                if isinstance(wave, Exception):
                    failures += 1
                    break
                first = first or time.perf_counter() - begin
                samples += len(wave)
            scheduler.release(job)
            if first is not None:
                firsts.append(first)

    begin = time.perf_counter()
    await asyncio.gather(*(client(requests[number::clients]) for number in range(clients)))
    summary = summarize(firsts, samples / scheduler.tts.sample_rate, time.perf_counter() - begin)
    return summary | ({"failures": failures} if failures else {})


def summarize(firsts: list[float], audio: float, wall: float) -> dict[str, float]:
    if not firsts:
        return {"audio_per_second": 0.0}
    p95 = sorted(firsts)[min(len(firsts) - 1, round(0.95 * len(firsts)))]
    return {
        "audio_per_second": round(audio / wall, 3),
        "first_audio_median": round(statistics.median(firsts), 3),
        "first_audio_p95": round(p95, 3),
        "requests_per_second": round(len(firsts) / wall, 3),
    }


def answer_one_by_one(
    requests: Sequence[tuple[UtteranceRequest, SpeakSettings]],
    engines: Mapping[int, SynthesisEngine],
    tts: TTS,
    voice: ReferenceVoice,
    *,
    streamed: bool,
) -> dict[str, float]:
    """A server that answers one request after another, to one client."""
    firsts: list[float] = []
    samples, started = 0, time.perf_counter()
    for utterance, settings in requests:
        begin, first = time.perf_counter(), 0.0
        voices = VoiceLoader(tts.models, settings, {None: voice}, tts.vocoder)
        plan = plan_utterance(tts.models, voices, replace(utterance, voice=None), settings, tts.vocoder)
        condition, engine = voices.condition(voice), engines[id(plan.system)]
        waves = (
            stream_pieces(plan, engine, condition, tts.vocoder)
            if streamed
            else speak_pieces(plan, engine, condition, tts.vocoder)
        )
        for wave in waves:
            first, samples = first or time.perf_counter() - begin, samples + len(wave)
        firsts.append(first)
    return summarize(firsts, samples / tts.sample_rate, time.perf_counter() - started)


def speak_pieces(
    plan: SpokenUtterance, engine: SynthesisEngine, condition: Any, vocoder: Vocoder
) -> Iterator[NDArray[np.float32]]:
    """Sentence by sentence."""
    for piece in plan.pieces:
        [[(_, result)]] = engine.iterate([build_request(piece, condition)])
        spoken = replace(piece, codes=result.codes, stop=result.stop, latents=result.latents)
        ((wave,),) = render_pieces([replace(plan, pieces=(spoken,))], vocoder, 1)
        yield wave
        yield np.zeros(round(piece.pause_seconds * vocoder.sample_rate), np.float32)


def count_differences(
    tts: TTS,
    voice: ReferenceVoice,
    requests: Sequence[tuple[UtteranceRequest, SpeakSettings]],
    batch_of: Mapping[int, DecodeBatch],
    engines: Mapping[int, SynthesisEngine],
) -> dict[str, Any]:
    """Sentences whose codes together are not those alone: in the batch itself, and by `speak --batch 1`."""
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
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="write a small base with grafts, and end")
    parser.add_argument(
        "--full", type=Path, metavar="FOLDER", help="what --prepare wrote, as a Chatterbox of full size"
    )
    parser.add_argument("--small", action="store_true", help="with --full: leave the weights small, to try the script")
    parser.add_argument("--compare", type=int, default=24, help="requests whose codes are compared")
    parser.add_argument("--seconds", type=float, default=4.0, help="maximum length of a sentence")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare)
        return
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        if options.full:
            tts = open_full(options.full, options.device, options.precision, options.small)
        else:
            tts = open_tts(options.family, options.size, options.device, options.precision, Path(place))
        voice, on_cuda = choose_voice(tts.models), options.device.startswith("cuda")
        name = torch.cuda.get_device_name() if on_cuda else platform.processor() or "cpu"
        vocoder_dtype = tts.models.context.vocoder_dtype or torch.float32
        found: dict[str, Any] = {
            "family": tts.models.context.family.name,
            "size": "full" if options.full and not options.small else options.size,
            "device": name,
            "torch": torch.__version__,
            "precision": f"{tts.models.context.dtype}, vocoder {vocoder_dtype}",
            "grafts": len(tts.models.new_languages),
            "languages": [language for language in TEXTS if language in tts.languages],
            "vocoder": type(tts.vocoder).__name__,
        }

        def report(what: str, value: dict[str, Any]) -> None:
            found[what] = value
            seconds = time.perf_counter() - started
            print(json.dumps({what: value, "seconds since the start": round(seconds, 1)}), flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1))

        report("opened", {})
        engines = {id(one): _build_engine(one, read_style(batch=1), tts.vocoder) for one in tts.models.all}
        requests = build_requests(tts, options.seconds, options.peer_requests)
        peers: dict[str, dict[str, float]] = {}
        for kind in ("one by one", "one by one, streamed"):
            own = {"streamed": kind != "one by one"}
            for _ in range(2):  # compiles, then captures
                answer_one_by_one(requests[: len(TEXTS) + 2], engines, tts, voice, **own)
            peers[kind] = answer_one_by_one(requests, engines, tts, voice, **own)
            report(kind, peers[kind])
        scheduler = Scheduler(tts, {"x": voice}, batch=max(options.clients), max_jobs=10_000)
        scheduler.start()
        try:
            for clients in options.clients:
                requests = build_requests(tts, options.seconds, clients * options.requests)
                for _ in range(2):
                    asyncio.run(drive(requests[:clients], clients, scheduler))  # compiles, captures, reserves
                together = asyncio.run(drive(requests, clients, scheduler))
                ratios = {
                    kind: round(together["audio_per_second"] / one["audio_per_second"], 2)
                    for kind, one in peers.items()
                }
                report(f"{clients} clients", {"together": together, "times": ratios})
            found["errors"] = scheduler.metrics.format({}).count("internal_errors")
        finally:  # a thread that still computes while Python ends would abort the process
            scheduler.stop()
        compared = build_requests(tts, options.seconds, options.compare)
        report("codes", count_differences(tts, voice, compared, scheduler._batches, engines))
        if options.full:
            model = tts.vocoder._model  # type: ignore[attr-defined]
            solvers = {"encoder": model.flow.graphs, "flow": model.flow.decoder.graphs, "HiFT": model.graphs}
            batch = next(iter(scheduler._batches.values()), None)
            kept = {} if batch is None else {str(key): value is not None for key, value in batch._graphs.items()}
            used = {name: graphs.refusal or graphs.num_replays for name, graphs in solvers.items()}
            report("CUDA graphs", {"decoding": kept, "fused": batch is not None and batch._packed is not None, **used})
        if on_cuda:
            found["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
