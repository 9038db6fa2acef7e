"""How fast a training step is: the public trainers' recipe and ours, same weights, same utterances, one run.

    python3 -m benchmarks.train_step --out result.json            full size, on a GPU (about five minutes)
    python3 -m benchmarks.train_step --size tiny --device cpu     for trying the script
    python3 -m benchmarks.train_step --families chatterbox --variants "full 16k" "gated 16k" "gated 16k fused" \\
        --repeats 3 --no-loss-check --out result.json             one comparison, each variant three times

Useful positions are conditioning, text and speech, no padding. MFU counts 6 x the body's matrix weights per useful
position (4 x where the body is fixed) against the rate of an 8192-cubed bf16 matmul measured in the same run. Every
variant is a median over its steps after a warm-up; the host's work is inside. A variant that fails is told and left out.
With `--variants`, they run in the order given. `fused` is `nn/gated_blocks.py`, and with `loss` the kernel for cross-entropy
too; the losses of the first and last step show whether two variants learn the same.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import re
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers import Peer, padded_batches
from tests.support.families import PUBLISHED
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.families import FAMILIES
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler
from voxgraft.dataset.shards import AnyArray, ClipDataset, DatasetHeader, DatasetProvenance, Int32Array
from voxgraft.models import get_family
from voxgraft.models.base import Clip, SequenceSpec
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.chatterbox.model import T3
from voxgraft.models.indextts2.model import UnifiedVoice
from voxgraft.models.indextts2.shapes import ConditioningEncoderSize, UnifiedVoiceSize
from voxgraft.models.speech_model import SpeechModel
from voxgraft.models.xtts.model import XTTSModel
from voxgraft.models.xtts.shapes import XTTSSize
from voxgraft.nn import layers
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.step import TrainStep
from voxgraft.training.trainable import build_optimizer, make_trainable

NUM_NEW = 300
# Utterances of realistic length: 2 to 15 seconds, most of them around six.
MEDIAN_SECONDS, SPREAD, SHORTEST, LONGEST = 6.0, 0.5, 2.0, 15.0
TEXT_IDS_PER_SECOND = 11.0
CLIPS_PER_SPEAKER = 50
SMALL_ENCODER = ConditioningEncoderSize(width=32, mlp=64, heads=2, blocks=1, perceiver_mult=1)


class MadeUpSet(ClipDataset):
    """Made-up clips in memory, drawn when they are asked for; the same for the same seed."""

    def __init__(
        self, family_name: str, spec: SequenceSpec, code_hz: float, width: int, *, clips: int, seed: int = 0
    ) -> None:
        draw = np.random.default_rng(seed)
        seconds = np.clip(np.exp(np.log(MEDIAN_SECONDS) + SPREAD * draw.standard_normal(clips)), SHORTEST, LONGEST)
        self.name, self.fingerprint = "made-up", f"made-up-{seed}-{clips}"
        self.header = DatasetHeader(family_name, "am", "train", code_hz, DatasetProvenance("", ""))
        self.num_codes = np.minimum((seconds * code_hz).astype(np.int64), spec.max_codes)
        self.num_text = np.minimum((seconds * TEXT_IDS_PER_SECOND).astype(np.int64), spec.max_text)
        self.infos = [
            Clip(id=f"c{at}", speaker=f"s{at // CLIPS_PER_SPEAKER}", recording=f"r{at}", seconds=float(length))
            for at, length in enumerate(seconds)
        ]
        self._spec, self._seed = spec, seed
        low = 3  # past the ids that a text may not hold
        self._text = draw.integers(low, spec.num_text_ids, int(self.num_text.max()) + clips, dtype=np.int32)
        self._text[self._text == spec.text_start] = low
        self._codes = draw.integers(0, spec.num_codes, int(self.num_codes.max()) + clips, dtype=np.int32)
        self._voices = _voices(family_name, width, spec, draw)

    def text_ids(self, clip: int) -> Int32Array:
        return self._text[clip : clip + int(self.num_text[clip])]

    def codes(self, clip: int) -> Int32Array:
        return self._codes[clip : clip + int(self.num_codes[clip])]

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._voices[clip % len(self._voices)]


def _voices(family_name: str, width: int, spec: SequenceSpec, draw: np.random.Generator) -> list[dict[str, AnyArray]]:
    made: list[dict[str, AnyArray]] = []
    for _ in range(32):
        if family_name == "chatterbox":
            speaker = np.abs(draw.standard_normal(256, dtype=np.float32))
            prompt = draw.integers(0, spec.num_codes, 150).astype(np.int32)
            made.append({"speaker": speaker / np.linalg.norm(speaker), "prompt": prompt})
        elif family_name == "xtts":
            latents = 0.1 * draw.standard_normal((32, width), dtype=np.float32)
            made.append({"latents": latents, "speaker": draw.standard_normal(512, dtype=np.float32)})
        else:
            assert family_name == "indextts2", f"{family_name} has no voices here"
            latents = 0.1 * draw.standard_normal((32, width), dtype=np.float32)
            made.append({"latents": latents, "emotion": 0.1 * draw.standard_normal(width, dtype=np.float32)})
    return made


PROFILED_STEPS = 10
NUM_LISTED_KERNELS = 25
# The first group whose pattern is in a kernel's name. Base and adapter use the same library: `kernel_group` tells their
# matrix products apart by the tile.
KERNEL_GROUPS = {
    "attention": "attend_tile|query_tile|key_tile|flash|fmha",
    "optimizer": "adamw|multi_tensor|norm_two_pass|reduce_norm|LpNorm|NormTwoOps",
    "loss": "softmax|nll_loss|cross_entropy",
    "copies": "Memcpy|Memset|CatArray|direct_copy|copy_kernel",
    "matmul": "nvjet|gemm|cutlass|cublas|splitK|xmma",
    "fused blocks": "add_norm_kernel|norm_gradient|rotate_heads|heads_gradient|activate_kernel|activation_gradient",
}
NARROW_TILE = 96


@dataclass(frozen=True)
class KernelProfile:
    """What the device did in one step, by kernel."""

    step_ms: float
    busy_share: float
    """Time in kernels over wall time."""
    num_kernels: float
    groups: dict[str, float]
    """Milliseconds."""
    kernels: list[tuple[str, str, float, float]]
    """The longest: name, group, launches, milliseconds."""

    def lines(self) -> list[str]:
        heading = (
            f"{self.num_kernels:,.0f} kernels and {self.step_ms:.1f} ms a step, {self.busy_share:.1%} of it in kernels"
        )
        groups = (f"  {name:<16}{spent:8.2f} ms" for name, spent in self.groups.items())
        longest = (f"  {spent:8.2f} ms {calls:7.1f} x  {group:<14}{name}" for name, group, calls, spent in self.kernels)
        return [heading, *groups, *longest]


@dataclass(frozen=True)
class Figures:
    """What one variant came to."""

    variant: str
    positions_per_second: float
    audio_seconds_per_second: float
    mfu: float
    peak_gb: float
    state_gb: float
    """Weights, gradients and optimizer state of what is trained, and the fixed weights."""
    first_loss: float
    last_loss: float
    seconds_to_first_step: float
    graphs_after_warmup: int = 0
    kernel_share: float | None = None
    repeats: tuple[float, ...] = ()
    """Positions per second of each repeat; `positions_per_second` is their median."""
    profile: KernelProfile | None = None

    def summary(self) -> dict[str, Any]:
        """Everything but the profile."""
        return {name: value for name, value in asdict(self).items() if name != "profile"}


def new_model(family_name: str, size: str, device: str, dtype: torch.dtype) -> SpeechModel:
    """Random weights of the published spread; conditioning encoders that no step uses are kept small."""
    torch.manual_seed(0)
    with torch.device(device):
        if family_name == "chatterbox":
            model: SpeechModel = T3(T3Size() if size == "full" else T3Size(text_rows=600, width=64, layers=2, mlp=128))
        elif family_name == "xtts":
            small = XTTSSize(text_rows=600, width=64, layers=2, vocoder_width=32, speaker_width=8)
            model = XTTSModel(XTTSSize() if size == "full" else small)
        else:
            assert family_name == "indextts2", f"{family_name} has no model here"
            sizes = {"speaker": SMALL_ENCODER, "emotion": SMALL_ENCODER}
            tiny = UnifiedVoiceSize(text_pieces=600, width=64, layers=2, heads=4, **sizes)
            model = UnifiedVoice(UnifiedVoiceSize(**sizes) if size == "full" else tiny)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() > 1:
                value.normal_(std=0.02)
            elif name.endswith("bias"):
                value.zero_()
    return model.to(dtype).requires_grad_(False)


class Bench:
    """One family on one device."""

    def __init__(self, family_name: str, size: str, device: str, steps: int, repeats: int = 1) -> None:
        self.kind, self.size, self.device, self.steps = get_family(family_name), size, device, steps
        self.repeats = repeats
        self.ceiling = matmul_ceiling(device)
        self._matrix_weights = matrix_weights(new_model(family_name, size, "meta", torch.bfloat16))

    def stream(self, model: SpeechModel, positions: int) -> tuple[DeterministicSampler, MadeUpSet]:
        body = model.body
        width = body.num_heads * body.head_width
        clips = MadeUpSet(self.kind.name, model.spec, self.kind.code_hz, width, clips=4000)
        order = DataSamplerOptions(text_dropout=0.0, num_conditioning=model.spec.num_conditioning)
        return DeterministicSampler([clips], [1.0], positions, 0, order), clips

    def stepper(
        self, positions: int, *, dtype: torch.dtype | None = None, **options: Any
    ) -> tuple[TrainStep, DeterministicSampler]:
        """Our trainer on random weights and made-up utterances. `dtype` is that of the weights, if not the usual one."""
        if dtype == torch.float32:
            options["precision"] = "float32"
        chosen = self._options(positions, **options)
        halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if dtype is None:
            dtype = halves[chosen.precision] if self.device == "cuda" else torch.float32
        model = new_model(self.kind.name, self.size, self.device, dtype)
        rows = {
            point.tensor: 0.02 * torch.randn(NUM_NEW, *model.state_dict()[point.tensor].shape[1:])
            for point in self.kind.graft_points
        }
        trained = make_trainable(model, rows, chosen)
        stream, clips = self.stream(model, positions)
        return TrainStep(
            trained, build_optimizer(trained, chosen), BatchBuilder(self.kind, model, [clips]), chosen
        ), stream

    def ours(
        self, variant: str, positions: int, *, fused: bool = False, fused_loss: bool = False, **options: Any
    ) -> Figures:
        stepper, stream = self.stepper(positions, **options)
        trained = stepper.trained
        trained.model.body.fused_gated = fused
        layers.FUSED_CROSS_ENTROPY = fused_loss
        per_position = 6 if "body" in trained.parameters else 4

        def step(number: int) -> tuple[int, float]:
            items = stream.step(number)
            stepper.prefetcher.set_next_items(lambda: stream.step(number + 1))
            report = stepper.step(number, items)
            return report.num_positions, report.text_loss + report.speech_loss

        return self._measured(variant, trained.model, step, per_position, trained.named().values())

    def _options(self, positions: int, **changes: Any) -> TrainOptions:
        text_weight, speech_weight = FAMILIES[self.kind.name].loss_weights
        chosen = TrainOptions(
            steps=10_000,
            batch_tokens=positions,
            microbatch_tokens=positions + 1024,
            text_dropout=0.0,
            precision="bf16" if self.device == "cuda" else "float32",
            chunk=4096,
            compile=self.device == "cuda",
            text_weight=text_weight,
            speech_weight=speech_weight,
        )
        return replace(chosen, **changes)

    def peer(self, variant: str, batch_size: int, attention: str = "sdpa", *, bucketed: bool = False) -> Figures:
        """`bucketed`: batches of similar length and fused AdamW, which public trainers could have and do not."""
        model = new_model(self.kind.name, self.size, self.device, torch.float32).requires_grad_(True)
        stream, clips = self.stream(model, 40_000)
        examples = BatchBuilder(self.kind, model, [clips])
        learn, trained = self._peer_step(model, attention, examples, fused=bucketed)

        def step(number: int) -> tuple[int, float]:
            items = list(stream.step(number))
            if bucketed:
                items.sort(key=examples.num_positions)
                first = number * batch_size % max(1, len(items) - batch_size)
                items = items[first:]
            items = items[:batch_size]
            return sum(map(examples.num_positions, items)), learn(number, items)

        return self._measured(variant, model, step, 6, trained)

    def _peer_step(
        self, model: SpeechModel, attention: str, examples: BatchBuilder, *, fused: bool = False
    ) -> tuple[Callable[[int, Any], float], list[nn.Parameter]]:
        peer = Peer(model, attention)
        trained = [value for name, value in peer.named_parameters() if value.requires_grad and self._used(name)]
        kind: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
        optimizer = torch.optim.AdamW(trained, lr=2e-5, weight_decay=0.01, **kind)
        half = torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")

        def step(_number: int, items: Sequence[Any]) -> float:
            [chosen] = padded_batches([0] * len(items), len(items))
            batch = examples.batch([items[at] for at in chosen])
            optimizer.zero_grad(set_to_none=True)
            with half:
                text, speech = peer(batch)
                loss = text + speech
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            return float(loss)

        return step, trained

    def same_loss(self, steps: int = 8, batch_size: int = 32) -> tuple[list[float], list[float]]:
        """The summed losses of both on the same utterances, step after step, at one rate: peer, ours."""
        curves: tuple[list[float], list[float]] = ([], [])
        fair = {
            "mode": "merged",
            "full_backbone": True,
            "schedule": "constant",
            "warmup_steps": 0,
            "betas": (0.9, 0.999),
        }
        fair |= {"lr_rows": 2e-5, "lr_adapter": 2e-5, "lr_backbone": 2e-5, "text_weight": 1.0, "speech_weight": 1.0}
        for at, dtype in enumerate((torch.float32, torch.bfloat16)):
            model = new_model(self.kind.name, self.size, self.device, dtype if self.device == "cuda" else torch.float32)
            stream, clips = self.stream(model, 20_000)
            examples = BatchBuilder(self.kind, model, [clips])
            if at == 0:
                step, _ = self._peer_step(model.requires_grad_(True), "sdpa", examples)
            else:
                chosen = self._options(20_000, **fair)
                trained = make_trainable(model, {}, chosen)
                stepper = TrainStep(trained, build_optimizer(trained, chosen), examples, chosen)

                def step(number: int, items: Sequence[Any], stepper: TrainStep = stepper) -> float:
                    report = stepper.step(number, items)
                    return report.text_loss + report.speech_loss

            for number in range(1, steps + 1):
                curves[at].append(step(number, list(stream.step(number))[:batch_size]))
            del model
            gc.collect()
        return curves

    def _used(self, name: str) -> bool:
        own = name.removeprefix("model.")
        return not (
            name.startswith("model.")
            and (own.startswith(("tfmr.", "gpt.")) or own.startswith(UnifiedVoice.unused_param_prefixes))
        )

    def _measured(
        self,
        variant: str,
        model: SpeechModel,
        step: Callable[[int], tuple[int, float]],
        per_position: int,
        trained: Any,
    ) -> Figures:
        reset_peak(self.device)
        began = time.perf_counter()
        first_loss = step(1)[1]
        to_first = time.perf_counter() - began
        weights = self._matrix_weights
        warm = 5 if self.device == "cuda" else 1
        for number in range(2, 2 + warm):
            step(number)
        graphs = compiled_graphs()
        repeats: list[float] = []
        loss, number = first_loss, 1 + warm
        for _ in range(self.repeats):
            rates = []
            for _ in range(self.steps):
                number += 1
                synchronise(self.device)
                start = time.perf_counter()
                positions, loss = step(number)
                synchronise(self.device)
                rates.append(positions / (time.perf_counter() - start))
            repeats.append(round(statistics.median(rates), 1))
        rate = statistics.median(repeats)
        share = 155 / 257  # positions of a mean utterance that are speech
        peak = peak_gb(self.device)
        profile = kernel_profile(step, number + 1, self.device)
        return Figures(
            variant,
            round(rate, 1),
            round(rate * share / self.kind.code_hz, 1),
            round(per_position * weights * rate / self.ceiling, 4),
            round(peak, 2),
            round(state_bytes(model, trained) / 1e9, 3),
            round(first_loss, 5),
            round(loss, 5),
            round(to_first, 1),
            compiled_graphs() - graphs,
            None if profile is None else profile.busy_share,
            tuple(repeats),
            profile,
        )


def matrix_weights(model: SpeechModel) -> int:
    """The matrices of the body as the base has them, adapters not counted."""
    names = model.adapter_layers()
    return sum(model.get_submodule(name).weight.numel() for name in names)  # type: ignore[union-attr,operator]


def state_bytes(model: SpeechModel, trained: Any) -> int:
    moving = list(trained)
    ids = {id(value) for value in moving}
    fixed = sum(value.numel() * value.element_size() for value in model.parameters() if id(value) not in ids)
    fixed += sum(value.numel() * value.element_size() for value in model.buffers())
    total = fixed
    for value in moving:
        masters = 4 if value.element_size() == 2 else 0
        total += value.numel() * (value.element_size() + masters + 4 + 8)
    return total


def matmul_ceiling(device: str) -> float:
    """FLOP/s of a large bf16 matmul on this device, now."""
    n = 8192 if device == "cuda" else 512
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(12):
        synchronise(device)
        start = time.perf_counter()
        a @ b
        synchronise(device)
        times.append(time.perf_counter() - start)
    return 2 * n**3 / statistics.median(times[2:])


def kernel_profile(step: Callable[[int], Any], first: int, device: str) -> KernelProfile | None:
    """Some steps under torch's profiler."""
    if device != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    synchronise(device)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        start = time.perf_counter()
        for number in range(first, first + PROFILED_STEPS):
            step(number)
        synchronise(device)
        wall = time.perf_counter() - start
    events = [event for event in recorded.events() if event.device_type.name == "CUDA"]
    busy, reached = 0.0, 0.0
    calls: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in sorted(events, key=lambda event: event.time_range.start):
        begin, end = event.time_range.start, event.time_range.end
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
        calls[event.name] += 1
        spent[event.name] += (end - begin) / 1e3 / PROFILED_STEPS
    groups: Counter[str] = Counter()
    for name, ms in spent.items():
        groups[kernel_group(name)] += ms
    return KernelProfile(
        step_ms=round(wall / PROFILED_STEPS * 1e3, 2),
        busy_share=round(busy / 1e6 / wall, 4),
        num_kernels=round(len(events) / PROFILED_STEPS, 1),
        groups={name: round(ms, 2) for name, ms in groups.most_common()},
        kernels=[
            (name[:120], kernel_group(name), round(calls[name] / PROFILED_STEPS, 1), round(ms, 3))
            for name, ms in spent.most_common(NUM_LISTED_KERNELS)
        ],
    )


def kernel_group(name: str) -> str:
    """What a kernel is for, by its name."""
    group = next((group for group, pattern in KERNEL_GROUPS.items() if re.search(pattern, name)), "elementwise")
    if group != "matmul":
        return group
    tile = re.search(r"(\d+)x(\d+)", name)
    narrow = tile is not None and min(map(int, tile.groups())) <= NARROW_TILE
    return "LoRA matmuls" if narrow or "splitK" in name else "base matmuls"


def compiled_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def reset_peak(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gb(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0


def variants(bench: Bench, tiny: bool) -> dict[str, Callable[[], Figures]]:
    full = {"mode": "merged", "full_backbone": True}
    unit = 128 if tiny else 1024
    made: dict[str, Callable[[], Figures]] = {
        "peer sdpa 32": lambda: bench.peer("peer sdpa 32", 4 if tiny else 32),
        "peer eager 32": lambda: bench.peer("peer eager 32", 4 if tiny else 32, "eager"),
        "peer sdpa 4": lambda: bench.peer("peer sdpa 4", 4),
        "peer bucketed 32": lambda: bench.peer("peer bucketed 32", 4 if tiny else 32, bucketed=True),
    }
    for thousands in (8, 16, 32, 64):
        positions = thousands * unit
        made[f"full {thousands}k"] = lambda positions=positions, name=f"full {thousands}k": bench.ours(
            name, positions, **full
        )
        if thousands <= 32:
            made[f"gated {thousands}k"] = lambda positions=positions, name=f"gated {thousands}k": bench.ours(
                name, positions, mode="gated"
            )
            made[f"gated {thousands}k fused, loss"] = (
                lambda positions=positions, name=f"gated {thousands}k fused, loss": bench.ours(
                    name, positions, fused=True, fused_loss=True, mode="gated"
                )
            )
            made[f"gated {thousands}k fused"] = lambda positions=positions, name=f"gated {thousands}k fused": (
                bench.ours(name, positions, fused=True, mode="gated")
            )
    for mode, options in (("full", full), ("gated", {"mode": "gated"})):
        made[f"{mode} 16k deterministic"] = lambda name=f"{mode} 16k deterministic", options=options: bench.ours(
            name, 16 * unit, deterministic=True, **options
        )
    return made


def table(found: Sequence[Figures], peer: float) -> list[str]:
    lines = [
        "| variant | useful pos/s | x peer | audio s/s | MFU | peak GB | state GB | repeats | loss at step 1 | last | first step s | new graphs | kernels/wall |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.variant} | {one.positions_per_second:,.0f} | {one.positions_per_second / peer:.2f} | {one.audio_seconds_per_second:,.0f} | {one.mfu:.1%} | {one.peak_gb} | {one.state_gb} | {', '.join(f'{rate:,.0f}' for rate in one.repeats)} | {one.first_loss} | {one.last_loss} | {one.seconds_to_first_step} | {one.graphs_after_warmup} | {one.kernel_share} |"
        for one in found
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(PUBLISHED))
    parser.add_argument("--size", default="full", choices=("tiny", "full"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=1, help="how often each variant takes its steps")
    parser.add_argument("--no-loss-check", action="store_true", help="do not compare losses with the peer first")
    parser.add_argument("--variants", nargs="*", help="names; all of them if none is given")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {name}, torch {torch.__version__}", flush=True)
    results: dict[str, Any] = {}
    for family_name in options.families:
        bench = Bench(family_name, options.size, options.device, options.steps, options.repeats)
        print(f"\n{family_name}: matmul ceiling {bench.ceiling / 1e12:.0f} TFLOP/s", flush=True)
        if not options.no_loss_check:
            peers, ours = bench.same_loss()
            apart = max(abs(a - b) / a for a, b in zip(peers, ours, strict=True))
            print(f"losses of the same 32 utterances, 8 steps: peer {peers[0]:.4f} to {peers[-1]:.4f}, ", end="")
            print(f"ours {ours[0]:.4f} to {ours[-1]:.4f}; furthest apart {apart:.2%}", flush=True)
        found: list[Figures] = []
        made = variants(bench, options.size == "tiny")
        for label in options.variants or made:
            try:
                torch._dynamo.reset()
                found.append(made[label]())
                print(found[-1].summary(), flush=True)
                if (profile := found[-1].profile) is not None:
                    print("\n".join(profile.lines()), flush=True)
            except Exception:
                print(f"{label} failed:\n{traceback.format_exc()[-1500:]}", flush=True)
            torch.use_deterministic_algorithms(False)
            gc.collect()
        speeds = [one.positions_per_second for one in found if one.variant.startswith("peer")]
        print("\n".join(table(found, max(speeds, default=float("nan")))), flush=True)
        results[family_name] = [asdict(one) for one in found]
        if options.out:
            options.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
