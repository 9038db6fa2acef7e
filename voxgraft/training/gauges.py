"""What can be read off a training from outside: how many classes a loss chooses from, and the memory it takes.

Changes nothing, and decides nothing.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from voxgraft.families.model import SpeechModel
from voxgraft.training.options import TrainOptions
from voxgraft.training.step import TrainStep

__all__ = ["MemoryEstimate", "count_output_classes", "estimate_memory", "read_memory_usage"]

PROC_STATM_PATH = Path("/proc/self/statm")
NUM_MOMENTS = 2
ACTIVATION_FACTOR, ACTIVATION_FACTOR_ROWS_ONLY = 1.2, 0.8
"""What a body keeps for the backward pass, as a share of the inputs and outputs of its linear layers. Counted on both
families: 1.12 to 1.38 with an adapter or a trained body, 0.67 to 0.84 with neither."""
LOGIT_COPIES = 3
"""Logits, their logarithms and the gradient, in float32."""


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
        # Elsewhere only the most that there ever was is told: in bytes on macOS, in kilobytes on other systems.
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
    if options.checkpointing:  # the input of every block, and all of the one that is computed again
        width = model.body.num_heads * model.body.head_width
        per_position = per_position / model.body.num_layers + width * model.body.num_layers
    half = options.precision != "float32"
    scored = min(options.chunk or options.pack_tokens, options.pack_tokens)
    logits = LOGIT_COPIES * 4 * scored * max(count_output_classes(model))
    return int(per_position * options.pack_tokens * (2 if half else 4)) + logits


def _sum_tensor_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
