"""Speech codes a second: our loop against transformers' on the same weights, side by side in one run.

    python -m benchmarks.decode [--rounds 3] [--streams 1 32] [--out decode.json]
    python -m benchmarks.decode --tiny --device cpu        a smoke test

Random weights at published size. A time is that of the whole loop behind the prompt: embedding, body, head, guidance,
penalty, sampling, bookkeeping and the look at whether everybody has stopped. Medians of the rounds, taken in turn.
Needs torch, numpy and, for the peer, transformers.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import TransformersLoop, prompt_vectors, stock_body
from voxgraft.models.base import build_sequence
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.chatterbox.model import T3, T3Condition
from voxgraft.models.generate import DecodeSession, GenerationPrompt, SpeechGenerator
from voxgraft.models.indextts2.model import UnifiedVoice, UnifiedVoiceCondition
from voxgraft.models.indextts2.shapes import ConditioningEncoderSize, UnifiedVoiceSize
from voxgraft.models.speech_model import SpeechModel, pack_batch
from voxgraft.nn.backbones import LlamaBackbone
from voxgraft.nn.decode import SamplingParams

NUM_TEXT = 70
PEERS = ("transformers, float32", "transformers, bfloat16", "transformers, bfloat16, no cuDNN attention")
OURS = "voxgraft"
PLAIN = "voxgraft, plain steps"


@dataclass(frozen=True)
class Line:
    """One measurement."""

    model: str
    streams: int
    variant: str
    milliseconds_per_step: float
    codes_per_second: float
    rounds: list[float]
    first_seconds: float
    """The first time, with prompt and all that happens only once: compiling, capturing."""
    ratio: float = 0.0
    """Of codes a second to those of the fastest peer."""


def t3(tiny: bool) -> tuple[SpeechModel, SamplingParams]:
    size = T3Size(layers=2, width=128, mlp=256) if tiny else T3Size()
    return T3(size), SamplingParams(temperature=0.8, min_p=0.05, repetition_penalty=2.0, guidance=0.5)


def unified_voice(tiny: bool) -> tuple[SpeechModel, SamplingParams]:
    encoder = ConditioningEncoderSize(width=32, mlp=64, heads=4, blocks=1, perceiver_mult=2)
    size = (
        UnifiedVoiceSize(width=128, layers=2, heads=4, speaker=encoder, emotion=encoder) if tiny else UnifiedVoiceSize()
    )
    return UnifiedVoice(size), SamplingParams(temperature=0.8, top_k=30, top_p=0.8, repetition_penalty=10.0)


MODELS = {"T3, guidance": t3, "UnifiedVoice": unified_voice}


def random_models(name: str, tiny: bool, device: str) -> tuple[SpeechModel, SpeechModel, SamplingParams]:
    """A model in bfloat16 with weights as they are before training, and the same numbers in float32."""
    torch.manual_seed(0)
    with torch.device(device):
        model, sampling = MODELS[name](tiny)
    full = model.to(device).requires_grad_(False).eval()
    half = copy.deepcopy(full)
    for mine, other in zip(half.parameters(), full.parameters(), strict=True):
        mine.data = mine.data.to(torch.bfloat16)
        other.data.copy_(mine.data)
    return half, full, sampling


def prompts(model: SpeechModel, num_streams: int) -> list[GenerationPrompt]:
    draw = np.random.default_rng(0)
    made = []
    for seed in range(num_streams):
        condition: Any
        if isinstance(model, T3):
            voice = np.abs(draw.standard_normal(256, dtype=np.float32))
            condition = T3Condition(voice / np.linalg.norm(voice), draw.integers(0, 6561, 150))
        else:
            assert isinstance(model, UnifiedVoice)
            latents = draw.standard_normal((33, model.size.width), dtype=np.float32)
            condition = UnifiedVoiceCondition(latents[:32], latents[32])
        made.append(GenerationPrompt(draw.integers(300, 2000, NUM_TEXT).tolist(), condition, seed))
    return made


def our_round(
    model: SpeechModel, given: list[GenerationPrompt], sampling: SamplingParams, speaker: SpeechGenerator | None
) -> tuple[int, float]:
    """Codes of each stream, and seconds."""
    streams = DecodeSession(model, given, sampling, speaker)
    start = now(model)
    streams.run()
    seconds = now(model) - start
    return min(int(streams.num_generated[0]), sampling.max_codes), seconds


def their_loop(
    model: SpeechModel, stock: Any, given: list[GenerationPrompt], sampling: SamplingParams
) -> TransformersLoop:
    twice = 2 if sampling.guidance > 0 else 1
    layouts = [build_sequence(model.spec, prompt.text_ids) for prompt in given] * twice
    silent = [row >= len(given) for row in range(len(layouts))]
    batch = pack_batch(model, layouts, [prompt.condition for prompt in given] * twice, silent=silent, backend="sdpa")
    with torch.no_grad():
        return TransformersLoop(model, stock, prompt_vectors(model, batch), sampling)


def their_round(
    model: SpeechModel, stock: Any, given: list[GenerationPrompt], sampling: SamplingParams, without_cudnn: bool
) -> tuple[int, float]:
    loop = their_loop(model, stock, given, sampling)
    start = now(model)
    count = loop.run(sampling.max_codes, without_cudnn=without_cudnn)
    return count, now(model) - start


def now(model: SpeechModel) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


Rounds = dict[str, Callable[[list[GenerationPrompt]], tuple[int, float]]]


def variants(half: SpeechModel, full: SpeechModel, sampling: SamplingParams, settings: argparse.Namespace) -> Rounds:
    """What is measured in turn, all on the same weights."""
    long = replace(sampling, max_codes=settings.codes)
    short = replace(sampling, max_codes=settings.peer_codes)
    speaker = SpeechGenerator(half)
    rounds: Rounds = {
        OURS: lambda given: our_round(half, given, long, speaker),
        PLAIN: lambda given: our_round(half, given, short, None),
    }
    if not settings.no_peer:
        stock_full, stock_half = (stock_of(model) for model in (full, half))
        require_same_model(full, stock_full, sampling, 1e-3)
        require_same_model(half, stock_half, sampling, 5e-2)
        rounds[PEERS[0]] = lambda given: their_round(full, stock_full, given, short, False)
        rounds[PEERS[1]] = lambda given: their_round(half, stock_half, given, short, False)
        rounds[PEERS[2]] = lambda given: their_round(half, stock_half, given, short, True)
    return rounds


def stock_of(model: SpeechModel) -> Any:
    stock = stock_body(model.body).to(model.device, next(model.body.parameters()).dtype).eval()
    if isinstance(model.body, LlamaBackbone):  # a module that is cast rounds what it computed for itself, too
        stock.rotary_emb.inv_freq = model.body.frequencies_on(model.device).clone()
    return stock


def require_same_model(model: SpeechModel, stock: Any, sampling: SamplingParams, tolerance: float) -> None:
    """The first logits of both loops, as a share of their size."""
    given = prompts(model, 1)
    ours, theirs = (
        DecodeSession(model, given, replace(sampling, max_codes=1)).logits,
        their_loop(model, stock, given, sampling).logits,
    )
    difference = float((ours - theirs.float()).norm() / ours.norm())
    if not difference < tolerance:
        raise SystemExit(f"the peer is another model: its logits are {difference:.1e} away, {tolerance:.0e} allowed")


def measured(name: str, num_streams: int, rounds: Rounds, given: list[GenerationPrompt], num_rounds: int) -> list[Line]:
    """Every variant once to warm up, then all of them in turn."""
    results: dict[str, list[tuple[int, float]]] = {variant: [] for variant in rounds}
    first: dict[str, float] = {}
    for index in range(num_rounds + 1):
        for variant, run in rounds.items():
            start = time.perf_counter()
            found = run(given)
            if index:
                results[variant].append(found)
            else:
                first[variant] = time.perf_counter() - start
    lines = []
    for variant, found_rounds in results.items():
        rates = [num_streams * count / seconds for count, seconds in found_rounds]
        rate = statistics.median(rates)
        lines.append(Line(name, num_streams, variant, 1e3 * num_streams / rate, rate, rates, first[variant]))
    peers = [line.codes_per_second for line in lines if line.variant in PEERS]
    return [replace(line, ratio=line.codes_per_second / max(peers)) for line in lines] if peers else lines


def machine(device: str) -> dict[str, str]:
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    for package in ("transformers", "triton"):
        if find_spec(package) is not None:
            versions[package] = version(package)
    where = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"machine": where, "date": datetime.date.today().isoformat()} | versions


def show(lines: list[Line], about: dict[str, str]) -> None:
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(
        "\n| model | streams | variant | ms a step | codes a second | of the fastest peer | first time, s |\n|---|---|---|---|---|---|---|"
    )
    for line in lines:
        ratio = f"{line.ratio:.1f}x" if line.ratio else ""
        cells = (line.model, line.streams, line.variant, f"{line.milliseconds_per_step:.3f}")
        print(f"| {' | '.join(map(str, cells))} | {line.codes_per_second:,.0f} | {ratio} | {line.first_seconds:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-peer", action="store_true", help="only our own loops")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--codes", type=int, default=256, help="spoken by our loop in a round")
    parser.add_argument("--peer-codes", type=int, default=40, help="spoken by the slower loops in a round")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    if settings.tiny:
        settings.codes = settings.peer_codes = 12
    lines: list[Line] = []
    about = machine(settings.device)
    for name in settings.models:
        half, full, sampling = random_models(name, settings.tiny, settings.device)
        rounds = variants(half, full, sampling, settings)
        for num_streams in settings.streams:
            lines += measured(name, num_streams, rounds, prompts(half, num_streams), settings.rounds)
            if settings.out is not None:  # what is measured is kept, whatever comes next
                settings.out.write_text(
                    json.dumps({"about": about, "lines": [asdict(line) for line in lines]}, indent=1)
                )
    show(lines, about)


if __name__ == "__main__":
    main()
