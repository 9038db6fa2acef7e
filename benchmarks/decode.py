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
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.transformers_loop import TransformersLoop, prompt_vectors, stock_body
from voxgraft.families.chatterbox.model import T3, T3Condition
from voxgraft.families.chatterbox.shapes import T3Size
from voxgraft.families.generate import Prompt, Speaker, Streams
from voxgraft.families.indextts2.model import IndexCondition, UnifiedVoice
from voxgraft.families.indextts2.shapes import EncoderSize, UnifiedVoiceSize
from voxgraft.families.layout import lay_out
from voxgraft.families.model import SpeechModel, pack
from voxgraft.nn.llama import LlamaBody
from voxgraft.nn.sampling import Sampling

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
    codes: int
    milliseconds_per_step: float
    codes_per_second: float
    rounds: list[float]
    ratio: float = 0.0
    """Of codes a second to those of the fastest peer."""


def t3(tiny: bool) -> tuple[SpeechModel, Sampling]:
    size = T3Size(layers=2, width=128, mlp=256) if tiny else T3Size()
    return T3(size), Sampling(temperature=0.8, min_p=0.05, repetition_penalty=2.0, guidance=0.5)


def unified_voice(tiny: bool) -> tuple[SpeechModel, Sampling]:
    encoder = EncoderSize(width=32, mlp=64, heads=4, blocks=1, perceiver_mult=2)
    size = UnifiedVoiceSize(width=128, layers=2, heads=4, speaker=encoder, emotion=encoder) if tiny else UnifiedVoiceSize()
    return UnifiedVoice(size), Sampling(temperature=0.8, top_k=30, top_p=0.8, repetition_penalty=10.0)


MODELS = {"T3, guidance": t3, "UnifiedVoice": unified_voice}


def random_model(name: str, tiny: bool, device: str) -> tuple[SpeechModel, Sampling]:
    """Weights as they are before training, made on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        model, sampling = MODELS[name](tiny)
    return model.to(device).requires_grad_(False).eval(), sampling


def in_half(model: SpeechModel, dtype: torch.dtype) -> SpeechModel:
    """A copy of the parameters in half precision; computed buffers stay as they are."""
    half = copy.deepcopy(model)
    for parameter in half.parameters():
        parameter.data = parameter.data.to(dtype)
    return half


def prompts(model: SpeechModel, num_streams: int) -> list[Prompt]:
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
            condition = IndexCondition(latents[:32], latents[32])
        made.append(Prompt(draw.integers(300, 2000, NUM_TEXT).tolist(), condition, seed))
    return made


def our_round(model: SpeechModel, given: list[Prompt], sampling: Sampling, speaker: Speaker | None) -> tuple[int, float]:
    """Codes of each stream, and seconds."""
    streams = Streams(model, given, sampling, speaker)
    start = now(model)
    streams.run()
    seconds = now(model) - start
    return min(int(streams.state.num_spoken[0]), sampling.max_codes), seconds


def their_round(
    model: SpeechModel, stock: Any, given: list[Prompt], sampling: Sampling, without_cudnn: bool
) -> tuple[int, float]:
    twice = 2 if sampling.guidance > 0 else 1
    layouts = [lay_out(model.frame, prompt.text_ids) for prompt in given] * twice
    silent = [row >= len(given) for row in range(len(layouts))]
    batch = pack(model, layouts, [prompt.condition for prompt in given] * twice, silent=silent, backend="sdpa")
    with torch.no_grad():
        loop = TransformersLoop(model, stock, prompt_vectors(model, batch), sampling)
    start = now(model)
    count = loop.run(sampling.max_codes, without_cudnn=without_cudnn)
    return count, now(model) - start


def now(model: SpeechModel) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


Rounds = dict[str, Callable[[list[Prompt]], tuple[int, float]]]


def variants(name: str, settings: argparse.Namespace) -> Iterator[Rounds]:
    """What is measured in turn; one after another where memory is freed between, all weights the same."""
    full, sampling = random_model(name, settings.tiny, settings.device)
    half = in_half(full, torch.bfloat16)
    full = copy.deepcopy(full)
    for ours, theirs in zip(half.parameters(), full.parameters(), strict=True):
        theirs.data.copy_(ours.data)  # float32 multiplies the same numbers
    long = replace(sampling, max_codes=settings.codes)
    short = replace(sampling, max_codes=settings.peer_codes)
    speaker = Speaker(half)
    rounds: Rounds = {
        OURS: lambda given: our_round(half, given, long, speaker),
        PLAIN: lambda given: our_round(half, given, short, None),
    }
    if find_spec("transformers") is not None:
        stocks = {model: stock_body(model.body).to(settings.device, dtype).eval() for model, dtype in
                  ((full, torch.float32), (half, torch.bfloat16))}  # fmt: skip
        rounds[PEERS[0]] = lambda given: their_round(full, stocks[full], given, short, False)
        rounds[PEERS[1]] = lambda given: their_round(half, stocks[half], given, short, False)
        rounds[PEERS[2]] = lambda given: their_round(half, stocks[half], given, short, True)
        require_the_same_rope(half, stocks[half])
    yield rounds


def require_the_same_rope(model: SpeechModel, stock: Any) -> None:
    """A module that is cast to half precision may round what it computed; then it would not be the same model."""
    if isinstance(model.body, LlamaBody):
        frequencies = model.body.frequencies
        assert isinstance(frequencies, torch.Tensor)
        stock.rotary_emb.inv_freq = frequencies.clone()


def measured(name: str, num_streams: int, rounds: Rounds, given: list[Prompt], num_rounds: int) -> list[Line]:
    """Every variant once to warm up, then all of them in turn."""
    results: dict[str, list[tuple[int, float]]] = {variant: [] for variant in rounds}
    for index in range(num_rounds + 1):
        for variant, run in rounds.items():
            found = run(given)
            if index:
                results[variant].append(found)
    lines = []
    for variant, found in results.items():
        rates = [num_streams * count / seconds for count, seconds in found]
        rate = statistics.median(rates)
        step = 1e3 * num_streams / rate
        lines.append(Line(name, num_streams, variant, found[0][0], step, rate, rates))
    peers = [line.codes_per_second for line in lines if line.variant in PEERS]
    return [replace(line, ratio=line.codes_per_second / max(peers)) for line in lines] if peers else lines


def machine(device: str) -> dict[str, str]:
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    for package in ("transformers", "triton"):
        if find_spec(package) is not None:
            versions[package] = str(__import__(package).__version__)
    where = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"machine": where, "date": datetime.date.today().isoformat()} | versions


def show(lines: list[Line], about: dict[str, str]) -> None:
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print("\n| model | streams | variant | ms a step | codes a second | of the fastest peer |\n|---|---|---|---|---|---|")
    for line in lines:
        ratio = f"{line.ratio:.1f}x" if line.ratio else ""
        cells = (line.model, line.streams, line.variant, f"{line.milliseconds_per_step:.3f}")
        print(f"| {' | '.join(map(str, cells))} | {line.codes_per_second:,.0f} | {ratio} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
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
        for rounds in variants(name, settings):
            for num_streams in settings.streams:
                model, _ = random_model(name, settings.tiny, "cpu" if settings.tiny else settings.device)
                lines += measured(name, num_streams, rounds, prompts(model, num_streams), settings.rounds)
                if settings.out is not None:  # what is measured is kept, whatever comes next
                    settings.out.write_text(json.dumps({"about": about, "lines": [asdict(line) for line in lines]}))
        gc.collect()
    show(lines, about)


if __name__ == "__main__":
    main()
