"""XTTS's language model against the original program's own code: training steps and decoding, in one run.

    python -m benchmarks.xtts --originals FOLDER [--device cuda] [--out xtts.json]
    python -m benchmarks.xtts --originals FOLDER --small --device cpu        a smoke test

FOLDER is that of `benchmarks.vocoders`, with the parts of coqui-tts 0.28.0 that its `GPT` imports. Random weights at
published size, the same in both; nothing of the original is copied here.

Training: the original's `forward` in the loop of its trainer (rows padded to the longest, AdamW, losses weighted 0.01
and 1), in float32 as its recipe runs it and under autocast, with the recipe's 3 utterances and with 32. Kindly, speech
codes and mel spectrograms lie ready on the device; the conditioning encoder is part of its step, as its trainer has it.
Decoding: `generate` of the original with its settings (top-k 50, top-p 0.85, temperature 0.75, one beam), in float32 as
the package runs it and under autocast, and the loop of `speak`. Positions count no padding; all times end when the device
has finished.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.train_step import Bench, new_model, peak_gb, reset_peak, synchronise
from benchmarks.vocoders import find_originals
from voxgraft.core.families import FAMILIES
from voxgraft.dataset.shards import ClipDataset
from voxgraft.models import get_family
from voxgraft.models.generate import DecodeSession, GenerationPrompt, SpeechGenerator
from voxgraft.models.speech_model import SpeechModel
from voxgraft.models.xtts.model import XTTSModel
from voxgraft.training.prefetch import BatchBuilder

# Frames of the conditioning spectrogram: the trainer draws 3 to 6 s and pads them to 6.
CONDITIONING_FRAMES = 517
SAMPLES_PER_CODE = 1024
NUM_TEXT = 70


def original_gpt(model: XTTSModel, device: str) -> Any:
    """The package's own `GPT` with our weights."""
    size = model.size
    original = importlib.import_module("TTS.tts.layers.xtts.gpt").GPT(
        layers=size.layers, model_dim=size.width, heads=size.heads, max_text_tokens=size.text_positions - 2,
        max_mel_tokens=size.speech_positions - 3, max_prompt_tokens=70, number_text_tokens=size.text_rows,
        num_audio_tokens=size.speech_rows, start_audio_token=size.speech_rows - 2,
        stop_audio_token=size.speech_rows - 1, use_perceiver_resampler=True, code_stride_len=SAMPLES_PER_CODE,
    )  # fmt: skip
    own = {name.removeprefix("gpt."): value for name, value in model.state_dict().items() if name.startswith("gpt.")}
    different = original.load_state_dict(own, strict=False)
    assert not different.unexpected_keys, different.unexpected_keys[:5]
    assert all(name.endswith(("attn.bias", "masked_bias")) for name in different.missing_keys), different.missing_keys
    return original.to(device)


def padded_batch(clips: ClipDataset, items: Sequence[Any], device: str) -> dict[str, Tensor]:
    """What the trainer's collate function gives the model."""
    texts = [torch.from_numpy(np.asarray(clips.text_ids(item.clip))).long() for item in items]
    codes = [torch.from_numpy(np.asarray(clips.codes(item.clip))).long() for item in items]
    counts = torch.tensor([len(own) for own in codes])
    batch = {
        "text_inputs": torch.nn.utils.rnn.pad_sequence(texts, batch_first=True),
        "text_lengths": torch.tensor([len(own) for own in texts]),
        "audio_codes": torch.nn.utils.rnn.pad_sequence(codes, batch_first=True),
        "wav_lengths": counts * SAMPLES_PER_CODE,
        "cond_mels": torch.randn(len(items), 1, 80, CONDITIONING_FRAMES),
        "cond_idxs": torch.tensor([[0, 66_150]] * len(items)),
    }
    return {name: value.to(device) for name, value in batch.items()}


def measure_original_training(
    bench: Bench, batch_size: int, dtype: torch.dtype | None, steps: int
) -> dict[str, float | str]:
    model = new_model("xtts", bench.size, bench.device, torch.float32)
    assert isinstance(model, XTTSModel)
    original = original_gpt(model, bench.device).train()
    optimizer = torch.optim.AdamW(original.parameters(), lr=5e-6, betas=(0.9, 0.96), weight_decay=1e-2)
    stream, clips = bench.stream(model, 40_000)
    examples = BatchBuilder(bench.kind, model, [clips])
    text_weight, speech_weight = FAMILIES["xtts"].loss_weights
    losses, rates = [], []
    reset_peak(bench.device)
    for number in range(1, 4 + steps):
        items = list(stream.step(number))[:batch_size]
        batch = padded_batch(clips, items, bench.device)
        synchronise(bench.device)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with nullcontext() if dtype is None else torch.autocast(bench.device, dtype):
            text, speech, _ = original(**batch)
        loss = text_weight * text + speech_weight * speech
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
        synchronise(bench.device)
        if number > 3:
            rates.append(sum(map(examples.num_positions, items)) / (time.perf_counter() - start))
    name = f"original, {batch_size} utterances, {'float32' if dtype is None else 'bf16 autocast'}"
    rate = round(statistics.median(rates), 1)
    return {"variant": name, "positions_per_second": rate, "peak_gb": round(peak_gb(bench.device), 2),
            "first_loss": round(losses[0], 4)}  # fmt: skip


def measure_training(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    bench = Bench("xtts", "tiny" if arguments.small else "full", arguments.device, arguments.steps)
    bf16 = torch.bfloat16
    runs: list[Callable[[], dict[str, Any]]] = [
        lambda: measure_original_training(bench, 3, None, arguments.steps),
        lambda: measure_original_training(bench, 3, bf16, arguments.steps),
        lambda: measure_original_training(bench, 32, None, arguments.steps),
        lambda: measure_original_training(bench, 32, bf16, arguments.steps),
    ]
    unit = 128 if arguments.small else 1024
    full = {"mode": "merged", "full_backbone": True}
    runs += [
        lambda: bench.ours("full 16k", 16 * unit, **full).summary(),
        lambda: bench.ours("gated 16k", 16 * unit, mode="gated").summary(),
    ]
    found = []
    for run in runs:
        torch._dynamo.reset()
        found.append(run())
        print(found[-1], flush=True)
        gc.collect()
    return found


def median_seconds(acts: dict[str, Callable[[], int]], rounds: int, device: str) -> dict[str, tuple[float, int, float]]:
    """Seconds, codes and first seconds of each, in turn."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    counts, firsts = {}, {}
    for number in range(rounds + 1):
        for name, act in acts.items():
            synchronise(device)
            start = time.perf_counter()
            counts[name] = act()
            synchronise(device)
            seconds = time.perf_counter() - start
            if number:
                times[name].append(seconds)
            else:
                firsts[name] = seconds
    return {name: (statistics.median(times[name]), counts[name], firsts[name]) for name in acts}


@torch.no_grad()
def measure_decoding(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    device = arguments.device
    full = new_model("xtts", "tiny" if arguments.small else "full", device, torch.float32).eval()
    assert isinstance(full, XTTSModel)
    half = new_model("xtts", "tiny" if arguments.small else "full", device, torch.float32).eval()
    half = half.to(torch.bfloat16 if device == "cuda" else torch.float32)
    sampling = replace(get_family("xtts").upstream_sampling(), max_codes=arguments.codes)
    rng = np.random.default_rng(0)
    ids = rng.integers(300, full.size.text_rows, NUM_TEXT).tolist()
    condition = 0.1 * rng.standard_normal((32, full.size.width), dtype=np.float32)

    def ours(model: SpeechModel, generator: SpeechGenerator | None) -> int:
        session = DecodeSession(model, [GenerationPrompt(ids, condition, 0)], sampling, generator)
        session.run()
        return min(int(session.num_generated[0]), arguments.codes)

    original = original_gpt(full, device).eval()
    original.init_gpt_for_inference()
    original.eval()

    def theirs(dtype: torch.dtype | None) -> int:
        # Cast as a whole it fails: the position vectors that it replaces by zeros stay float32.
        with nullcontext() if dtype is None else torch.autocast(device, dtype):
            codes = original.generate(
                torch.from_numpy(condition)[None].to(device), torch.tensor([ids], device=device),
                do_sample=True, top_k=50, top_p=0.85, temperature=0.75, num_return_sequences=1, num_beams=1,
                length_penalty=1.0, repetition_penalty=5.0, max_new_tokens=arguments.peer_codes,
                min_new_tokens=arguments.peer_codes,
            )  # fmt: skip
        return int(codes.shape[1])

    generator = SpeechGenerator(half)
    acts: dict[str, Callable[[], int]] = {
        "voxgraft": lambda: ours(half, generator),
        "original, float32": lambda: theirs(None),
        "original, bf16 autocast": lambda: theirs(torch.bfloat16),
    }
    found = []
    for name, (seconds, count, first) in median_seconds(acts, arguments.rounds, device).items():
        rate = count / seconds
        found.append({"variant": name, "codes_per_second": round(rate, 1), "codes": count,
                      "ms_per_code": round(1e3 / rate, 3), "first_seconds": round(first, 2)})  # fmt: skip
        print(found[-1], flush=True)
    return found


def print_table(title: str, found: Sequence[dict[str, Any]], key: str, originals: str = "original") -> None:
    usual = next(one[key] for one in found if one["variant"].startswith(originals))
    fastest = max(one[key] for one in found if one["variant"].startswith("original"))
    print(f"\n| {title} | {key.replace('_', ' ')} | times the original as it is | times its fastest form |")
    print("| --- | ---: | ---: | ---: |")
    for one in found:
        print(f"| {one['variant']} | {one[key]:,.1f} | {one[key] / usual:.2f} | {one[key] / fastest:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.xtts", description=__doc__.splitlines()[0])
    parser.add_argument("--originals", type=Path, required=True, help="folder with the original programs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="small models, to try the script")
    parser.add_argument("--parts", nargs="*", default=["training", "decoding"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codes", type=int, default=256, help="spoken by our loop in a round")
    parser.add_argument("--peer-codes", type=int, default=64, help="spoken by the original in a round")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    find_originals(arguments.originals.resolve())
    results: dict[str, Any] = {"torch": torch.__version__, "device": arguments.device}
    if "decoding" in arguments.parts:
        results["decoding"] = measure_decoding(arguments)
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    if "training" in arguments.parts:
        results["training"] = measure_training(arguments)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1))
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}")
    if "decoding" in results:
        print_table("decoding one stream", results["decoding"], "codes_per_second")
    if "training" in results:
        print_table("training", results["training"], "positions_per_second")


if __name__ == "__main__":
    main()
