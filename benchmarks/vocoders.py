"""Codes to sound: our vocoders against the original programs' own code, on the same weights and codes, in one run.

    python -m benchmarks.vocoders --originals FOLDER [--device cuda] [--dtypes float32 bfloat16] [--batch 16] [--out vocoders.json]
    python -m benchmarks.vocoders --small --device cpu         a smoke test, without the originals

FOLDER is put on the import path. It holds the packages `chatterbox` (chatterbox-tts 0.1.7) and `indextts` (a checkout of
index-tts) and what they import for their vocoders: einops, diffusers, conformer, omegaconf, scipy, munch. What they
import for other things only (librosa, torchaudio and so on) is replaced by empty modules. Nothing of it is copied here.

Random weights at published size. Times are of whole utterances, from codes to samples in the
device's memory; ours and the original's in turn, medians of the rounds. The original programs take one utterance at a
time, so that for a batch its time is that of one utterance, and ours is divided by the batch. A first call that
compiles or captures is not counted and reported by itself.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.abc
import importlib.machinery
import json
import platform
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tools.random_bases.indextts2 import random_tensors
from voxgraft.models.chatterbox.family import Chatterbox, T3Size
from voxgraft.models.chatterbox.flow import FlowSize
from voxgraft.models.chatterbox.hift import DIRECTION, GAIN, HiftSize, published_shapes
from voxgraft.models.chatterbox.model import T3, T3Condition
from voxgraft.models.chatterbox.s3gen import S3Gen, S3GenNoise, S3GenReference, S3GenSize, S3GenSoundStream
from voxgraft.models.indextts2.dit import DiTSize
from voxgraft.models.indextts2.s2mel import FlowPrompt, S2Mel, S2MelSize, count_target_frames, s2mel_shapes
from voxgraft.models.indextts2.vocoder import BigVGAN, BigVGANSize, IndexTTS2Vocoder, bigvgan_shapes
from voxgraft.nn import flow_ops
from voxgraft.nn.layers import SolverGraphs
from voxgraft.synthesis.command import stream_sentence
from voxgraft.synthesis.engine import SynthesisEngine, SynthesisRequest

NUM_CODES_TABLE = 8192
# Imported by the originals for anything but their vocoders.
UNUSED_PACKAGES = (
    "librosa torchaudio s3tokenizer perth pyloudnorm onnx descript dac audiotools matplotlib tensorboard trainer "
    "indextts.s2mel.dac PIL transformers diffusers.utils.export_utils diffusers.utils.loading_utils diffusers.utils.pil_utils "
    "diffusers.utils.hub_utils diffusers.utils.dynamic_modules_utils diffusers.utils.peft_utils"
).split()
# About 15 words of English: text tokens, and codes at 25 a second.
SENTENCE_TOKENS, SENTENCE_SECONDS = 70, 6


@dataclass(frozen=True)
class Measured:
    """One way of making sound."""

    family: str
    what: str
    seconds: float
    """Of one utterance."""
    first_seconds: float
    sound_seconds: float
    peak_bytes: int | None
    processor_seconds: float
    """Of one utterance, over all threads: comparable also where other programs share the processor."""

    @property
    def real_time_factor(self) -> float:
        return self.seconds / self.sound_seconds


class _EmptyModule(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None})


class _EmptyPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in UNUSED_PACKAGES):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def find_originals(folder: Path) -> None:
    """Make the original programs importable."""
    sys.path[:0] = [str(folder), str(folder / "site"), str(folder / "index")]
    sys.meta_path.insert(0, _EmptyPackages())
    # The packages themselves would import language models, pipelines and transformers, and check versions.
    for name in ("chatterbox", "diffusers", "diffusers.models"):
        package = types.ModuleType(name)
        package.__path__, package.__version__ = [str(folder / name.replace(".", "/"))], "0"  # type: ignore[attr-defined]
        sys.modules[name] = package
    checks = types.ModuleType("diffusers.dependency_versions_check")
    checks.dep_version_check = lambda *_: None  # type: ignore[attr-defined]
    sys.modules[checks.__name__] = checks


@contextmanager
def given_noise(noise: Tensor) -> Iterator[None]:
    """The original flows draw their noise themselves: here they get ours, for a comparison of the results."""
    like, plain = torch.randn_like, torch.randn
    torch.randn_like = lambda given, **_: noise.to(given)  # type: ignore[assignment]
    torch.randn = lambda *_, **__: noise  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.randn_like, torch.randn = like, plain


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    acts: dict[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, tuple[float, float, int | None, float]]:
    """Median and first time of each act, in turn, the most memory of the device that it held, and processor time."""
    firsts: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in acts}
    processor: dict[str, list[float]] = {name: [] for name in acts}
    peaks: dict[str, int | None] = dict.fromkeys(acts)
    # On CUDA the second call captures graphs.
    warm = 2 if device.type == "cuda" else 1
    held: dict[str, int] = {}
    for number in range(rounds + warm):
        for name, act in acts.items():
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
                reserved = torch.cuda.memory_reserved(device)
            wait(device)
            started, worked = time.perf_counter(), time.process_time()
            act()
            wait(device)
            seconds = time.perf_counter() - started
            if device.type == "cuda" and number:
                torch.cuda.empty_cache()
                held[name] = held.get(name, 0) + max(0, torch.cuda.memory_reserved(device) - reserved)
            if number >= warm:
                times[name].append(seconds)
                processor[name].append(time.process_time() - worked)
                if device.type == "cuda":
                    # A replay allocates nothing: what the captured graphs hold counts as well.
                    peaks[name] = torch.cuda.max_memory_allocated(device) - before + held[name]
            elif not number:
                firsts[name] = seconds
    median = statistics.median
    return {name: (median(times[name]), firsts[name], peaks[name], median(processor[name])) for name in acts}


def random_s3gen(size: S3GenSize, device: torch.device) -> S3Gen:
    """Layers of gain one, and a pitch in most frames."""
    torch.manual_seed(0)
    model = S3Gen(size)
    for weight in model.parameters():
        weight.mul_(3**0.5 if weight.dim() > 1 else 1.0)
    model.mel2wav.f0_predictor.classifier.bias.fill_(150.0)
    return model.to(device)


def random_reference(seconds: int, device: torch.device) -> S3GenReference:
    draw = torch.Generator().manual_seed(2)
    return S3GenReference(
        torch.randint(0, 6561, (25 * seconds,), generator=draw),
        torch.randn(50 * seconds, 80, generator=draw).to(device),
        torch.randn(192, generator=draw).to(device),
    )


def original_s3gen(model: S3Gen, device: torch.device) -> Any:
    """The package's own S3Gen with our weights. Its speech tokenizer is left out: nothing here is a recording."""
    package = importlib.import_module("chatterbox.models.s3gen.s3gen")
    package.S3Tokenizer = lambda *_: torch.nn.Linear(1, 1)
    original = package.S3Token2Wav(meanflow=model.size.flow.meanflow)
    held, state = model.state_dict(), {}
    for name, shape in published_shapes(model).items():
        weight = held.get(name)
        if weight is None:
            weight = held[name.removesuffix(GAIN).removesuffix(DIRECTION) + "weight"]
            weight = weight if name.endswith(DIRECTION) else weight.flatten(1).norm(dim=1).view(shape)
        state[name] = weight.cpu()
    different = original.load_state_dict(state, strict=False)
    assert not different.unexpected_keys, different.unexpected_keys[:5]
    assert all(name.startswith("tokenizer.") for name in different.missing_keys), different.missing_keys[:5]
    return original.to(device).eval()


def measure_chatterbox(arguments: argparse.Namespace, device: torch.device, *, meanflow: bool) -> list[Measured]:
    size = S3GenSize(flow=FlowSize(meanflow=meanflow))
    if arguments.small:
        small = FlowSize(1, 64, width=64, inner=64, transformers=1, mid_blocks=1, meanflow=meanflow)
        size = replace(size, flow=small, hift=HiftSize(32, 32))
    model = random_s3gen(size, device)
    draw = torch.Generator().manual_seed(1)
    num_codes = round(25 * arguments.seconds)
    codes = torch.randint(0, 6561, (num_codes,), generator=draw).tolist()
    reference = random_reference(arguments.reference_seconds, device)
    noise = S3GenNoise.draw(torch.Generator(device).manual_seed(0), num_codes, reference, meanflow=meanflow)
    batch = arguments.batch
    acts: dict[str, Callable[[], object]] = {}

    def ours(dtype: torch.dtype | None, count: int) -> object:
        model.flow_dtype = dtype
        return model.generate([codes] * count, [reference] * count, [noise] * count)

    for dtype in arguments.dtypes:
        acts[f"voxgraft, {name_dtype(dtype)}"] = partial(ours, dtype, 1)
        if batch > 1 and dtype == arguments.dtypes[-1]:
            acts[f"voxgraft, {name_dtype(dtype)}, {batch} at once"] = partial(ours, dtype, batch)
    if arguments.originals is not None:
        original = original_s3gen(model, device)
        ref = {
            "prompt_token": reference.codes[None].to(device),
            "prompt_token_len": torch.tensor([len(reference.codes)]),
            "prompt_feat": reference.mel[None],
            "prompt_feat_len": None,
            "embedding": reference.speaker[None],
        }
        tokens = torch.tensor([codes], device=device)
        if not meanflow:
            with given_noise(noise.flow[None]), torch.inference_mode():
                theirs = original.flow_inference(tokens, ref_dict=dict(ref), finalize=True)[0]
            for dtype in arguments.dtypes:
                model.flow_dtype = dtype
                (mel,) = model.generate_mels([codes], [reference], [noise])
                report_difference(f"S3Gen, {name_dtype(dtype)}", mel, theirs.T)
        acts["original"] = lambda: original.inference(tokens, ref_dict=dict(ref))
    kind = "S3Gen, meanflow" if meanflow else "S3Gen"
    found = collect(f"chatterbox, {kind}", acts, arguments, device, len(codes) / 25)
    report_graphs({"encoder": model.flow.graphs, "flow": model.flow.decoder.graphs, "HiFT": model.graphs})
    return found


def name_dtype(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")


def report_difference(what: str, found: Tensor, expected: Tensor) -> None:
    difference, size = (found - expected).float(), expected.float().std()
    print(
        f"{what}: differs from the original by up to {float(difference.abs().max()):.1e}, by the root mean square "
        f"{float(difference.square().mean().sqrt()):.1e} (standard deviation {float(size):.1e})",
        flush=True,
    )


def report_graphs(solvers: dict[str, SolverGraphs]) -> None:
    for name, graphs in solvers.items():
        used = f"{graphs.num_graphs} graphs, {graphs.num_replays} replays, {graphs.num_bytes / 1e6:,.0f} MB"
        print(f"CUDA graphs of {name}: {graphs.refusal or used}", flush=True)


def collect(
    family: str,
    acts: dict[str, Callable[[], object]],
    arguments: argparse.Namespace,
    device: torch.device,
    seconds: float,
) -> list[Measured]:
    found = []
    with torch.inference_mode():
        for name, (median, first, peak, worked) in measure(acts, arguments.rounds, device).items():
            parts = arguments.batch if "at once" in name else 1
            found.append(Measured(family, name, median / parts, first, seconds, peak, worked / parts))
        if arguments.profile:
            for name, act in acts.items():
                if name != "original":
                    print_profile(f"{family}, {name}", act, device)
    return found


# What a kernel's name contains, and the group it is counted in; the first that fits.
KERNEL_GROUPS = {
    "layout of convolutions": ("nchwtonhwc", "nhwctonchw", "tensortransform"),
    "attention": ("flash", "fmha", "attention"),
    "convolutions": ("conv", "implicit", "dgrad", "wgrad", "cudnn", "fprop"),
    "matrix products": ("gemm", "cutlass", "nvjet", "splitk", "cublas"),
    "our kernels": ("snake", "add_norm", "norm_mish", "swiglu", "rotate_kernel", "gate_kernel"),
    "norms": ("norm", "welford"),
    "copies, casts, padding": ("memcpy", "memset", "copy", "cat", "pad", "index", "gather", "scatter", "fill"),
    "elementwise": ("elementwise",),
}
PROFILE_ROWS = 25


def print_profile(what: str, act: Callable[[], object], device: torch.device) -> None:
    """The kernels of one call that take most of its time, and all of them in groups."""
    from torch.profiler import ProfilerActivity, profile

    on_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU]) as profiler:
        act()
        wait(device)
    kernels = [
        (event.self_device_time_total if on_cuda else event.self_cpu_time_total, event.count, event.key)
        for event in profiler.key_averages()
    ]
    kernels = sorted((one for one in kernels if one[0] > 0), reverse=True)
    total, number = sum(time for time, _, _ in kernels), sum(count for _, count, _ in kernels)
    print(f"{what}: {number:,} kernels, {total / 1e3:.1f} ms", flush=True)
    groups: dict[str, list[float]] = {}
    for microseconds, count, name in kernels:
        fitting = (group for group, words in KERNEL_GROUPS.items() if any(word in name.lower() for word in words))
        own = groups.setdefault(next(fitting, "other"), [0.0, 0.0])
        own[0], own[1] = own[0] + microseconds, own[1] + count
    for group, (microseconds, count) in sorted(groups.items(), key=lambda one: -one[1][0]):
        print(f"  {group}: {microseconds / 1e3:.2f} ms, {count:,.0f}")
    for microseconds, count, name in kernels[:PROFILE_ROWS]:
        print(f"    {microseconds / 1e3:8.2f} ms {count:6,} x {microseconds / count:7.1f} us  {name[:110]}", flush=True)


def original_s2mel(tensors: dict[str, Tensor], device: torch.device) -> Any:
    commons = importlib.import_module("indextts.s2mel.modules.commons")
    config = importlib.import_module("omegaconf").OmegaConf.create(S2MEL_CONFIG)
    original = commons.MyModel(config, use_gpt_latent=True)
    state = {f"models.{name}": tensor for name, tensor in tensors.items()}
    missing = original.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys[:5]
    original = original.to(device).eval()
    original.models["cfm"].estimator.setup_caches(max_batch_size=1, max_seq_length=8192)
    return original


# The published config.yaml, as far as the model is built from it.
S2MEL_CONFIG = {
    "dit_type": "DiT",
    "reg_loss_type": "l1",
    "style_encoder": {"dim": 192},
    "length_regulator": {
        "channels": 512, "is_discrete": False, "in_channels": 1024, "content_codebook_size": 2048,
        "sampling_ratios": [1, 1, 1, 1], "vector_quantize": False, "n_codebooks": 1, "quantizer_dropout": 0.0,
        "f0_condition": False, "n_f0_bins": 512,
    },
    "DiT": {
        "hidden_dim": 512, "num_heads": 8, "depth": 13, "class_dropout_prob": 0.1, "block_size": 8192,
        "in_channels": 80, "style_condition": True, "final_layer_type": "wavenet", "target": "mel", "content_dim": 512,
        "content_codebook_size": 1024, "content_type": "discrete", "f0_condition": False, "n_f0_bins": 512,
        "content_codebooks": 1, "is_causal": False, "long_skip_connection": True, "zero_prompt_speech_token": False,
        "time_as_token": False, "style_as_token": False, "uvit_skip_connection": True,
        "add_resblock_in_transformer": False,
    },
    "wavenet": {
        "hidden_dim": 512, "num_layers": 8, "kernel_size": 5, "dilation_rate": 1, "p_dropout": 0.2,
        "style_condition": True,
    },
}  # fmt: skip
BIGVGAN_CONFIG = {
    "num_mels": 80, "upsample_rates": [4, 4, 2, 2, 2, 2], "upsample_kernel_sizes": [8, 8, 4, 4, 4, 4],
    "upsample_initial_channel": 1536, "resblock": "1", "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5]] * 3, "activation": "snakebeta", "snake_logscale": True,
    "use_tanh_at_final": False, "use_bias_at_final": False,
}  # fmt: skip


def original_bigvgan(tensors: dict[str, Tensor], device: torch.device) -> Any:
    package = importlib.import_module("indextts.s2mel.modules.bigvgan.bigvgan")
    environment = importlib.import_module("indextts.s2mel.modules.bigvgan.env")
    original = package.BigVGAN(environment.AttrDict(BIGVGAN_CONFIG), use_cuda_kernel=False)
    missing = original.load_state_dict(tensors, strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys[:5]
    original.remove_weight_norm()
    return original.to(device).eval()


def measure_indextts2(arguments: argparse.Namespace, device: torch.device) -> list[Measured]:
    size, vocoder_size = S2MelSize(), BigVGANSize()
    if arguments.small:
        dit = DiTSize(width=32, heads=2, layers=3, mlp=48, content=16, wavenet_layers=2)
        size, vocoder_size = S2MelSize(dit, (24, 16, 8, 1024)), BigVGANSize(channels=64)
    tensors = random_tensors(s2mel_shapes(size), 1)
    waves = random_tensors(bigvgan_shapes(vocoder_size, weight_norm=True), 2)
    draw = torch.Generator().manual_seed(5)
    s2mel = S2Mel.from_tensors(size, tensors).to(device)
    bigvgan = BigVGAN.from_tensors(vocoder_size, waves).to(device)
    code_table = torch.randn(NUM_CODES_TABLE, 1024, generator=draw).to(device)
    vocoder = IndexTTS2Vocoder(lambda: (s2mel, bigvgan, code_table))
    num_codes = round(50 * arguments.seconds)
    frames = count_target_frames(num_codes)
    num_prompt = arguments.reference_seconds * 22_050 // 256
    codes = torch.randint(0, NUM_CODES_TABLE, (num_codes,), generator=draw)
    latents = torch.randn(num_codes, size.latents[0], generator=draw)
    mel = (torch.randn(80, num_prompt, generator=draw) * 2 - 5).to(device)
    style = torch.randn(size.dit.style, generator=draw).to(device)
    noise = torch.randn(80, num_prompt + frames, generator=draw).to(device)
    with torch.inference_mode():
        given = code_table[torch.randint(0, NUM_CODES_TABLE, (50 * arguments.reference_seconds,), generator=draw)]
        (condition,) = s2mel.length_regulator([given], [num_prompt])
    prompt = FlowPrompt(mel, condition, style)

    def ours(dtype: torch.dtype | None, count: int) -> list[Tensor]:
        vocoder.dtype = dtype
        content = vocoder.embed_codes(codes.tolist(), latents.numpy())
        return vocoder.render([prompt] * count, [content] * count, [noise] * count)

    batch = arguments.batch
    acts: dict[str, Callable[[], object]] = {}
    for dtype in arguments.dtypes:
        acts[f"voxgraft, {name_dtype(dtype)}"] = partial(ours, dtype, 1)
        if batch > 1 and dtype == arguments.dtypes[-1]:
            acts[f"voxgraft, {name_dtype(dtype)}, {batch} at once"] = partial(ours, dtype, batch)
    acts["voxgraft, BigVGAN alone"] = lambda: bigvgan(torch.zeros(1, 80, frames, device=device) - 5)
    if arguments.originals is not None:
        original, generator = original_s2mel(tensors, device), original_bigvgan(waves, device)
        ids, states = codes.to(device), latents.to(device)[None]

        def theirs() -> tuple[Tensor, Tensor]:
            content = code_table[ids][None] + original.models["gpt_layer"](states)
            lengths = torch.tensor([frames], device=device)
            target = original.models["length_regulator"](content, ylens=lengths, n_quantizers=3, f0=None)[0]
            whole = torch.cat([condition[None], target], dim=1)
            total = torch.tensor([whole.shape[1]], device=device)
            mels = original.models["cfm"].inference(
                whole, total, mel[None], style[None], None, 25, inference_cfg_rate=0.7
            )[:, :, num_prompt:]
            return mels, generator(mels.float())

        with given_noise(noise[None]), torch.inference_mode():
            expected, wave = theirs()
            content = vocoder.embed_codes(codes.tolist(), latents.numpy())
            for dtype in arguments.dtypes:
                vocoder.dtype = dtype
                (mel_found,) = s2mel.solve(
                    [prompt], s2mel.length_regulator([content], [frames]), [noise], dtype=vocoder.dtype
                )
                report_difference(f"s2mel, {name_dtype(dtype)}", mel_found, expected[0])
                report_difference(
                    f"BigVGAN, {name_dtype(dtype)}", vocoder.render([prompt], [content], [noise])[0], wave.flatten()
                )
        acts["original"] = theirs
    found = collect("indextts2, s2mel and BigVGAN", acts, arguments, device, num_codes / 50)
    report_graphs({"s2mel": s2mel.graphs})
    return found


def measure_first_sound(arguments: argparse.Namespace, device: torch.device) -> list[Measured]:
    """From text tokens to the first samples of a sentence, with a random T3 that never stops by itself."""
    size = T3Size(640, 64, 2, 256) if arguments.small else T3Size()
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        language_model = T3(size).to(dtype).eval().requires_grad_(False)
    s3gen = S3GenSize()
    if arguments.small:
        s3gen = S3GenSize(FlowSize(1, 64, width=64, inner=64, transformers=1, mid_blocks=1), HiftSize(32, 32))
    model = random_s3gen(s3gen, device)
    model.flow_dtype = arguments.dtypes[-1]
    reference = random_reference(arguments.reference_seconds, device)
    rng = np.random.default_rng(0)
    condition = T3Condition(rng.standard_normal(256).astype(np.float32), rng.integers(0, 6561, 150))
    most = 25 * SENTENCE_SECONDS
    engine = SynthesisEngine(language_model, replace(Chatterbox().upstream_sampling(), readable=True))
    text = rng.integers(3, 200, SENTENCE_TOKENS).tolist()
    request = SynthesisRequest(text, condition, max_codes=most, language="en")
    noise = S3GenNoise.draw(torch.Generator(device).manual_seed(0), most, reference)

    def first() -> object:
        stream = S3GenSoundStream(model, reference, noise)
        return next(stream_sentence(engine, request, stream, 24_000))

    def whole() -> object:
        stream = S3GenSoundStream(model, reference, noise)
        return list(stream_sentence(engine, request, stream, 24_000))

    acts: dict[str, Callable[[], object]] = {"first sound": first, "whole sentence, streamed": whole}
    return collect("chatterbox, text to sound", acts, arguments, device, SENTENCE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vocoders", description=__doc__.splitlines()[0])
    parser.add_argument("--originals", type=Path, help="folder with the original programs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="speech of one utterance")
    parser.add_argument("--reference-seconds", type=int, default=10, help="recording of the voice")
    parser.add_argument("--batch", type=int, default=16, help="utterances at once; 1 leaves batches out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of the processor, where that computes")
    parser.add_argument("--parts", nargs="*", default=["chatterbox", "meanflow", "indextts2", "first"])
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=("float32", "bfloat16", "float16"),
        default=["float32"],
        help="of the flows; the last is the one of batches and of the first sound",
    )
    parser.add_argument("--small", action="store_true", help="small models, to try the script")
    parser.add_argument("--profile", action="store_true", help="print the kernels of one more call of each")
    parser.add_argument("--unfused", action="store_true", help="without the kernels of flow_ops")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.originals is not None:
        find_originals(arguments.originals.resolve())
    device = torch.device(arguments.device)
    flow_ops.FUSE_FLOWS = not arguments.unfused
    torch.set_num_threads(arguments.threads)
    arguments.dtypes = [None if name == "float32" else getattr(torch, name) for name in arguments.dtypes]
    found: list[Measured] = []
    measures: dict[str, Callable[[], list[Measured]]] = {
        "chatterbox": lambda: measure_chatterbox(arguments, device, meanflow=False),
        "meanflow": lambda: measure_chatterbox(arguments, device, meanflow=True),
        "indextts2": lambda: measure_indextts2(arguments, device),
        "first": lambda: measure_first_sound(arguments, device),
    }
    for part in arguments.parts:
        own: list[Measured] = []
        for originals in dict.fromkeys((arguments.originals, None)):  # where a peer fails, ours is still measured
            try:
                arguments.originals, kept = originals, arguments.originals
                own = measures[part]()
                break
            except Exception:
                print(f"{part} failed with originals {originals}:\n{traceback.format_exc()[-2000:]}", flush=True)
            finally:
                arguments.originals = kept
        found += own
        for one in own:
            print(f"{one.family}: {one.what}: {one.seconds:.4f} s, first {one.first_seconds:.2f} s", flush=True)
    if device.type == "cuda":
        from voxgraft.nn import attention, decode

        rows = attention.supports_row_lengths.cache_info()
        print(f"flash attention by row lengths: tried {rows.misses} times; snake kernels: {decode._snakes_work}")
        print(f"kernels of flows: {flow_ops.FUSE_FLOWS and not flow_ops._failed}")
        half = arguments.dtypes[-1] or torch.float32
        print(f"row lengths are {attention.supports_row_lengths(torch.device('cuda', 0), half, 64)}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    print(
        f"{name}, torch {torch.__version__}, {arguments.seconds:g} s of speech, ",
        end="",
    )
    print(f"{arguments.reference_seconds} s of reference")
    print("| family | what | seconds an utterance | first | real-time factor | times the original | ", end="")
    print("processor seconds | times the original | peak MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    originals = {one.family: one for one in found if one.what == "original"}
    for one in found:
        ratio = worked = ""
        if peer := originals.get(one.family):
            ratio, worked = f"{peer.seconds / one.seconds:.2f}", f"{peer.processor_seconds / one.processor_seconds:.2f}"
        peak = "" if one.peak_bytes is None else f"{one.peak_bytes / 1e6:,.0f}"
        times = f"{one.seconds:.3f} | {one.first_seconds:.2f} | {one.real_time_factor:.3f}"
        print(f"| {one.family} | {one.what} | {times} | {ratio} | {one.processor_seconds:.2f} | {worked} | {peak} |")
    if arguments.out is not None:
        document = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "device": name,
            "torch": torch.__version__,
            "seconds": arguments.seconds,
            "batch": arguments.batch,
            "measured": [{**vars(one), "real_time_factor": one.real_time_factor} for one in found],
        }
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
