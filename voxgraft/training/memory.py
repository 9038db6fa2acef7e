"""The memory of a training: what it uses, an estimate before it starts, and the largest microbatch that fits."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed

from voxgraft.core.errors import ConfigError
from voxgraft.dataset.sampler import DeterministicSampler, Sample
from voxgraft.models.speech_model import SpeechModel
from voxgraft.training.options import TrainOptions
from voxgraft.training.step import TrainStep

PROC_STATM_PATH = Path("/proc/self/statm")
NUM_MOMENTS = 2
# Activations kept for the backward pass, relative to the inputs and outputs of the body's linear layers. Measured on
# both families: 1.12 to 1.38 with an adapter or a trained body, 0.67 to 0.84 with neither.
ACTIVATION_FACTOR, ACTIVATION_FACTOR_ROWS_ONLY = 1.2, 0.8
# Logits, their logarithms and the gradient, in float32.
LOGIT_COPIES = 3
PROBE_LENGTHS = (2_048, 4_096)
ROUND_TO_TOKENS = 512
SHRINK_FACTOR = 0.85
# Share of the device that is left alone: kernels and libraries keep some of it, and memory is cut into pieces.
MEMORY_RESERVE = 0.06


def count_output_classes(model: SpeechModel) -> tuple[int, int]:
    """Rows of the text head and of the speech head: a model that knows nothing has their logarithms as losses."""
    width = model.body.num_heads * model.body.head_width
    hidden = torch.zeros(1, width, device=model.device, dtype=next(model.body.parameters()).dtype)
    with torch.no_grad():
        return model.text_logits(hidden).shape[-1], model.speech_logits(hidden).shape[-1]


def read_memory_usage(device: torch.device) -> dict[str, int]:
    """Bytes that this process has: resident memory, and on CUDA what torch has in use, keeps, and once had at most."""
    found = {"memory_process_bytes": _read_resident_bytes()}
    if device.type == "cuda":
        found["memory_cuda_bytes"] = torch.cuda.memory_allocated(device)
        found["memory_cuda_reserved_bytes"] = torch.cuda.memory_reserved(device)
        found["memory_cuda_peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return found


def _read_resident_bytes() -> int:
    try:
        return int(PROC_STATM_PATH.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        # Without /proc only the peak is known: in bytes on macOS, in kilobytes on other systems.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that training will take, by what for. The last one is an estimate; the others are counted."""

    weights: int
    optimizer: int
    """Gradients, moments and float32 masters."""
    activations: int
    """Of one pack, and the logits of its losses."""


def estimate_memory(stepper: TrainStep) -> MemoryEstimate:
    """What a training will take, before it has begun."""
    model = stepper.trained.model
    own = {id(value) for value in model.parameters()}
    moved = [value for group in stepper.optimizer.param_groups for value in group["params"]]
    masters = [value for value in moved if id(value) not in own]
    copies = [stepper.base.model] if stepper.base is not None and stepper.base.gate is None else []
    return MemoryEstimate(
        weights=_sum_tensor_bytes(
            value for each in (model, *copies) for value in (*each.parameters(), *each.buffers())
        ),
        optimizer=(1 + NUM_MOMENTS) * _sum_tensor_bytes(moved) + _sum_tensor_bytes(masters),
        activations=_estimate_activation_bytes(model, stepper.options),
    )


def _estimate_activation_bytes(model: SpeechModel, options: TrainOptions) -> int:
    """What is kept for the backward pass of a pack, from the widths of the body's layers."""
    layers = [model.get_submodule(name) for name in model.adapter_layers()]
    widths = sum(int(getattr(layer, side)) for layer in layers for side in ("in_features", "out_features"))
    kept = ACTIVATION_FACTOR_ROWS_ONLY if options.mode == "rows-only" else ACTIVATION_FACTOR
    per_position = kept * widths
    if options.gradient_checkpointing:  # the input of every block, and all of the one that is computed again
        width = model.body.num_heads * model.body.head_width
        per_position = per_position / model.body.num_layers + width * model.body.num_layers
    half = options.precision != "float32"
    scored = min(options.chunk or options.microbatch_tokens, options.microbatch_tokens)
    logits = LOGIT_COPIES * 4 * scored * max(count_output_classes(model))
    return int(per_position * options.microbatch_tokens * (2 if half else 4)) + logits


def _sum_tensor_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def fit_microbatch_tokens(stepper: TrainStep, stream: DeterministicSampler, known_tokens: int | None = None) -> int:
    """Set the largest microbatch that fits into memory, up to one per step and process; returns its positions.

    `known_tokens` is what was found before a resume: with the same microbatches every rounding is the same again.
    """
    longest, processes = stream.longest[0], stepper.group.world_size
    wanted = stepper.options.batch_tokens
    most = wanted + longest if processes == 1 else max(longest, wanted // processes)
    _require_longest_fits(stepper, stream, longest)
    size = known_tokens or _predict_microbatch_tokens(stepper, stream)
    if size is None:  # the probes did not fit
        size = PROBE_LENGTHS[-1]
    size = max(longest, size if known_tokens else min(most, size))
    # The prediction is linear, memory is not quite: try it, and shrink until it fits.
    while size > longest and not _fits_in_memory(stepper, stream, size):
        size = max(longest, int(size * SHRINK_FACTOR) // ROUND_TO_TOKENS * ROUND_TO_TOKENS)
    if size == longest:
        _require_longest_fits(stepper, stream, longest)
    return size


def _require_longest_fits(stepper: TrainStep, stream: DeterministicSampler, longest: int) -> None:
    if not _fits_in_memory(stepper, stream, longest):
        found = f"no room for one pass over the longest clip, of {longest:,} positions"
        raise ConfigError("memory-too-small", found, expected="room for it")


def _fits_in_memory(stepper: TrainStep, stream: DeterministicSampler, size: int) -> bool:
    stepper.set_microbatch_tokens(size)
    items = _collect_items(stepper, stream, size)
    while len(items) > 1 and sum(map(stepper.batch_builder.num_positions, items)) > size:
        items.pop()
    try:
        stepper.try_largest_batch(items)
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    torch.cuda.empty_cache()
    if stepper.group.world_size > 1:
        return not stepper.group.any(not fits, stepper.trained.model.device)
    return fits


def _predict_microbatch_tokens(stepper: TrainStep, stream: DeterministicSampler) -> int | None:
    """Measure passes of two lengths and extend the line; None where they do not fit.

    Of several devices the one with the least room counts, so that all processes choose the same size.
    """
    device = stepper.trained.model.device
    try:
        measured = [_measure_pass_bytes(stepper, _collect_items(stepper, stream, length)) for length in PROBE_LENGTHS]
    except torch.OutOfMemoryError:
        measured = []
    torch.cuda.empty_cache()
    if stepper.group.any(not measured, device) if stepper.group.world_size > 1 else not measured:
        return None
    shorter, longer = measured
    if shorter[0] == longer[0]:  # one clip fills both
        return None
    per_position = (longer[1] - shorter[1]) / (longer[0] - shorter[0])
    held = torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    allowed = total
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):  # a limit that the user may have set in torch
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    ours = min(free + torch.cuda.memory_reserved(device), allowed)
    available = int(ours - MEMORY_RESERVE * min(total, allowed) - held)
    # Negative, so that one MIN finds the largest need and the smallest room.
    found = torch.tensor([-(shorter[1] - per_position * shorter[0]), -per_position, available], device=device)
    if stepper.group.world_size > 1:
        distributed.all_reduce(found, distributed.ReduceOp.MIN)
    fixed, slope, room = found.tolist()
    return int((int(room) + int(fixed)) / -slope) // ROUND_TO_TOKENS * ROUND_TO_TOKENS


def _collect_items(stepper: TrainStep, stream: DeterministicSampler, length: int) -> list[Sample]:
    """Items of the first steps that come to about a length; with fewer clips, some of them again."""
    found: list[Sample] = []
    positions, step = 0, 0
    while positions < length:
        step += 1
        for item in stream.step(step):
            if positions < length:
                found.append(item)
                positions += stepper.batch_builder.num_positions(item)
    return found


def _measure_pass_bytes(stepper: TrainStep, items: Sequence[Sample]) -> tuple[int, int]:
    """Positions of a pass, and the most that it takes beside what is there already. The first pass compiles."""
    device = stepper.trained.model.device
    batch = stepper.batch_builder.batch(items)
    for _ in range(2):
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        stepper.try_forward_backward(batch)
        torch.cuda.synchronize(device)
    return len(batch.order), torch.cuda.max_memory_allocated(device) - before
