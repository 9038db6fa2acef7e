"""One optimizer step: microbatches in, gradients summed over the whole step, one update of the trained parameters.

Loss = text weight * text cross-entropy + speech weight * speech cross-entropy + KL weight * KL to the base on replay,
each averaged over all its positions of the whole step, however it is cut into microbatches and dealt to processes.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.dataset.sampler import DeterministicSampler, Sample
from voxgraft.models.speech_model import HALF_PRECISION_DTYPES, PackedBatch, SpeechModel, compute_hidden_states
from voxgraft.nn.attention import choose_attention_backend
from voxgraft.nn.layers import cross_entropy_sum
from voxgraft.training.cuda_graphs import CudaGraphRunner
from voxgraft.training.distributed import DistributedContext
from voxgraft.training.prefetch import BatchBuilder, BatchPrefetcher, FrozenBase, KLBatch, RankBatches, kl_sum
from voxgraft.training.trainable import FlatAdamW, TrainableModel, learning_rate_factor

MIN_LOSS_SCALE = 1.0
# Text, speech, and KL to the base.
NUM_LOSSES = 3


class NonFiniteError(VoxgraftError):
    """A loss or a gradient is NaN or infinite; the optimizer has not changed any parameter."""


class LossModule(nn.Module):
    """A batch in, the summed losses out: one module, because DDP wraps a module."""

    def __init__(self, model: SpeechModel, chunk: int | None, base: FrozenBase | None = None) -> None:
        super().__init__()
        self.model, self.chunk, self.base = model, chunk, base

    def forward(self, batch: PackedBatch, kl_batch: KLBatch | None = None, base_hidden: Tensor | None = None) -> Tensor:
        """-> [3]: text, speech, KL. `base_hidden` is what the base has at `kl_batch`. [M, W]"""
        hidden = compute_hidden_states(self.model, batch)
        heads = ((self.model.text_logits, batch.text), (self.model.speech_logits, batch.speech))
        sums = [cross_entropy_sum(head, hidden[part.scored], part.targets, chunk=self.chunk) for head, part in heads]
        if self.base is None or kl_batch is None or base_hidden is None:
            return torch.stack([*sums, torch.zeros_like(sums[0])])
        tuned = hidden[kl_batch[1]]
        kl = kl_sum(self.model.speech_logits, tuned, self.base.head, base_hidden, chunk=self.chunk)
        return torch.stack([*sums, kl])


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step was: means over the whole step, before the parameters were updated."""

    text_loss: float
    speech_loss: float
    rates: dict[str, float]
    norms: dict[str, float]
    """Gradient norm of each part before clipping."""
    num_positions: int
    num_clips: int
    kl: float | None = None
    """KL of replay to the base, in nats per speech code; None without a KL term."""


class TrainStep:
    """Takes steps. All its state is in the model and the optimizer."""

    def __init__(
        self,
        trained: TrainableModel,
        optimizer: torch.optim.Optimizer,
        examples: BatchBuilder,
        options: TrainOptions,
        group: DistributedContext | None = None,
        frozen: SpeechModel | None = None,
    ) -> None:
        """`frozen` is a copy of the base, for replay while the backbone itself is trained."""
        self.trained, self.optimizer, self.batch_builder, self.options = trained, optimizer, examples, options
        self.group = group or DistributedContext()
        if options.deterministic:
            # For this whole process: only kernels whose sums have a fixed order. A CPU needs nothing for that.
            # cuBLAS is deterministic with a fixed workspace only.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            # Filling memory that is never read costs time and shows nothing.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        trained.model.body.gradient_checkpointing = options.gradient_checkpointing
        for model in (trained.model, frozen):
            if options.compile and model is not None:
                model.body.compile_blocks(deterministic=options.deterministic)
        self.base: FrozenBase | None = None
        if examples.kl_sets:
            if trained.gate is not None:  # with an adapter the base is the model itself with its gate closed
                self.base = FrozenBase(trained.model, trained.gate)
            elif frozen is not None:
                self.base = FrozenBase(frozen)
            else:
                raise ValueError("full-backbone training with a KL to the base needs a copy of the base")
        loss_module = LossModule(trained.model, options.chunk, self.base)
        self.loss_module: nn.Module = loss_module
        # DDP sums what is left in the parameters that autograd knows. Gradients of half-precision copies leave those
        # for float32 masters after every microbatch: with masters the step sums them itself, in float32.
        if self.group.world_size > 1 and not len(trained.masters):
            self.loss_module = nn.parallel.DistributedDataParallel(loss_module, broadcast_buffers=False)
        self._flat_optimizer = optimizer if isinstance(optimizer, FlatAdamW) and options.precision != "fp16" else None
        self.cuda_graphs: CudaGraphRunner | None = None
        # One process on a device with varlen attention, compiled, and no KL term (whose shapes vary).
        device, dtype = trained.model.device, next(trained.model.body.parameters()).dtype
        alone = options.compile and device.type == "cuda" and self.group.world_size == 1
        if alone and self.base is None and choose_attention_backend(device, dtype) == "varlen":
            buffers = optimizer.gradients() if isinstance(optimizer, FlatAdamW) else {}
            self.cuda_graphs = CudaGraphRunner(self._loss_sums, trained, self._gate_open, buffers)
        self.set_microbatch_tokens(options.microbatch_tokens)
        self.scaler = torch.amp.GradScaler(trained.model.device.type, enabled=options.precision == "fp16")

    def set_microbatch_tokens(self, microbatch_tokens: int) -> None:
        """From now on at most this many positions go through the model at once."""
        self.options = replace(self.options, microbatch_tokens=microbatch_tokens)
        cuda_graphs = self.cuda_graphs is not None
        self.prefetcher = BatchPrefetcher(self.batch_builder, microbatch_tokens, self.group, cuda_graphs=cuda_graphs)

    def step(self, number: int, items: Sequence[Sample]) -> StepReport:
        """Learn from the samples of a step, which are the same on every process."""
        try:
            share = self.prefetcher.batches(items)
            own_sums = self._compute_gradients(share) if self.cuda_graphs is None else self._replay_graphs(share)
        except torch.OutOfMemoryError:
            found = f"there is not enough memory for microbatches of {self.options.microbatch_tokens:,} tokens"
            expected = "a smaller train.microbatch_tokens (it does not change the result)"
            raise ConfigError("memory-too-small", found, expected=expected) from None
        sums = self.group.all_reduce_sum(own_sums)
        self.prefetcher.prefetch()
        factor = learning_rate_factor(number, self.options)
        groups = self.optimizer.param_groups
        for group in groups:
            group["lr"] = self.options.rates[group["part"]] * factor
        if self._flat_optimizer:
            # Clips and updates on the device, which itself leaves a non-finite step out: nothing to wait for here.
            norms = self._flat_optimizer.clip_and_step(self.options.max_grad_norm, sums)
        else:
            self.scaler.unscale_(self.optimizer)
            limit = self.options.max_grad_norm or float("inf")
            norms = [nn.utils.clip_grad_norm_(group["params"], limit).float() for group in groups]
        # The one place in a step that waits for the device.
        values = torch.cat([sums, torch.stack(norms)]).tolist()
        text, speech, kl = (total / count for total, count in zip(values[:NUM_LOSSES], share.counts, strict=True))
        parts = [str(group["part"]) for group in groups]
        gradients = dict(zip(parts, values[NUM_LOSSES:], strict=True))
        rates = {part: float(group["lr"]) for part, group in zip(parts, groups, strict=True)}
        self._require_finite([text, speech, kl, *gradients.values()], number, items)
        if not self._flat_optimizer:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.trained.masters.copy_to_model()
        return StepReport(text, speech, rates, gradients, share.num_positions, len(items), kl if self.base else None)

    def _compute_gradients(self, share: RankBatches) -> Tensor:
        """Backward through this process's microbatches. Returns its summed losses. [3]"""
        self.optimizer.zero_grad(set_to_none=True)
        weights = self._loss_weights(share.counts)
        total = torch.zeros(NUM_LOSSES, device=self.trained.model.device)
        ddp = self.loss_module if isinstance(self.loss_module, nn.parallel.DistributedDataParallel) else None
        for index, (batch, kl_batch, counts) in enumerate(share.batches):
            base_hidden = None
            if self.base is not None and kl_batch is not None:
                with self._autocast():
                    base_hidden = self.base.hidden(kl_batch[0])
            # DDP exchanges gradients once a step, with the last microbatch.
            sync = nullcontext() if ddp is None or index + 1 == len(share.batches) else ddp.no_sync()
            with sync, self._gate_open():  # both passes: gradient checkpointing runs the layers a second time
                with self._autocast():
                    sums = self.loss_module(batch, kl_batch, base_hidden)
                loss = (sums * weights).sum() * (1.0 if counts else 0.0)
                torch.autograd.backward(self.scaler.scale(loss))
            self.trained.masters.accumulate_gradients()
            if counts:
                total += sums.detach().float()
        if ddp is None:
            self.group.all_reduce_gradients(
                [value for group in self.optimizer.param_groups for value in group["params"]]
            )
        return total

    def _replay_graphs(self, share: RankBatches) -> Tensor:
        """The same by replaying CUDA graphs. [3]"""
        assert self.cuda_graphs is not None
        weights = self.scaler.scale(self._loss_weights(share.counts))
        total = torch.zeros(NUM_LOSSES, device=self.trained.model.device)
        for at, (batch, _, _) in enumerate(share.batches):
            total += self.cuda_graphs.run(batch, weights, first=at == 0)
        self.cuda_graphs.assign_gradients()
        return total

    def try_largest_batch(self, items: Sequence[Sample]) -> None:
        """Both passes over a microbatch of the largest size, to see whether there is memory for it."""
        batch = self.prefetcher.pack(items, at_least=self.options.microbatch_tokens)
        if self.cuda_graphs is not None and not batch.order.is_cuda:
            self.cuda_graphs.capture_largest(batch)
            with torch.no_grad(), self._gate_open():  # as a validation runs beside the recorded graphs
                self._loss_sums(batch.to(self.trained.model.device))
        elif self.base is not None and self.group.world_size == 1:
            self._compute_gradients(self.prefetcher.batches(items))
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.try_forward_backward(batch)

    def try_forward_backward(self, batch: PackedBatch) -> None:
        """Both passes over a microbatch without keeping gradients, to measure what they take."""
        parameters = list(self.trained.named().values())
        with self._gate_open():
            with self._autocast():
                sums = LossModule(self.trained.model, self.options.chunk)(batch)
            torch.autograd.grad(sums.sum(), parameters, allow_unused=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything that the next step depends on and that must be the same on every process: no copies."""
        found: dict[str, Tensor] = {}
        for group in self.optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                found[str(name)] = parameter.detach()
                state = self.optimizer.state.get(parameter, {})
                found |= {f"{name}/{moment}": value for moment, value in state.items() if isinstance(value, Tensor)}
        return found | {f"{name} (rounded)": copy.detach() for name, copy in self.trained.masters.copies.items()}

    def _loss_sums(self, batch: PackedBatch) -> Tensor:
        with self._autocast():
            sums: Tensor = self.loss_module(batch)
        return sums

    def _loss_weights(self, counts: Sequence[int]) -> Tensor:
        """From sums to the step's loss; under DDP, which averages, times the number of processes. [3]"""
        chosen = (self.options.text_weight, self.options.speech_weight, self.options.kl_weight)
        averaged = isinstance(self.loss_module, nn.parallel.DistributedDataParallel)
        times = self.group.world_size if averaged else 1
        weights = [weight * times / n for weight, n in zip(chosen, counts, strict=True)]
        return torch.tensor(weights, device=self.trained.model.device)

    def _require_finite(self, values: Sequence[float], number: int, items: Sequence[Sample]) -> None:
        wrong = not all(map(math.isfinite, values))
        if wrong and self.options.precision == "fp16" and all(map(math.isfinite, values[:NUM_LOSSES])):
            # With a loss scaler a gradient may overflow now and then; the scaler skips that step on its own and lowers
            # the scale. At the lowest scale, the scale was not the cause.
            wrong = self.scaler.get_scale() <= MIN_LOSS_SCALE
        if not self.group.any(wrong, self.trained.model.device):
            return
        self.optimizer.zero_grad(set_to_none=True)
        guilty = []
        loss_module, trained = LossModule(self.trained.model, self.options.chunk), self.trained.named().values()
        for item in items:  # loss and gradient of each clip on its own
            with self._gate_open():
                with self._autocast():
                    sums = loss_module(self.batch_builder.batch([item]))
                torch.autograd.backward(sums.sum())
            tensors = [sums.detach(), *(value.grad for value in trained if value.grad is not None)]
            for value in trained:
                value.grad = None
            if not all(bool(tensor.isfinite().all()) for tensor in tensors):
                guilty.append(self.batch_builder.describe_item(item))
        named = "; ".join(guilty[:8]) if guilty else "no single clip"
        found = f"the loss or the gradient of step {number:,} is not finite; clips that cause this: {named}"
        raise NonFiniteError("loss-not-finite", found, expected="finite numbers")

    def _gate_open(self) -> AbstractContextManager[None]:
        return self.trained.gate.opened() if self.trained.gate else nullcontext()

    def _autocast(self) -> AbstractContextManager[Any]:
        """Half precision for a body that is kept in float32; one that is kept in half precision needs none."""
        half = HALF_PRECISION_DTYPES.get(self.options.precision)
        kept_full = next(self.trained.model.body.parameters()).dtype == torch.float32
        return torch.autocast(self.trained.model.device.type, half) if half and kept_full else nullcontext()


PROC_STATM_PATH = Path("/proc/self/statm")
NUM_MOMENTS = 2
# Activations kept for the backward pass, relative to the inputs and outputs of the backbone's linear layers. Measured
# on
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
    try:
        resident = int(PROC_STATM_PATH.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        # Without /proc only the peak is known: in bytes on macOS, in kilobytes on other systems.
        unit = 1 if sys.platform == "darwin" else 1024
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    found = {"memory_process_bytes": resident}
    if device.type == "cuda":
        found["memory_cuda_bytes"] = torch.cuda.memory_allocated(device)
        found["memory_cuda_reserved_bytes"] = torch.cuda.memory_reserved(device)
        found["memory_cuda_peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return found


def estimate_memory(stepper: TrainStep) -> dict[str, int]:
    """Bytes that training will take for weights, optimizer and activations.

    The first two are counted (the optimizer with gradients, moments and float32 masters); the activations of one
    microbatch and the logits of its losses are an estimate.
    """
    model = stepper.trained.model
    own = {id(value) for value in model.parameters()}
    moved = [value for group in stepper.optimizer.param_groups for value in group["params"]]
    masters = [value for value in moved if id(value) not in own]
    copies = [stepper.base.model] if stepper.base is not None and stepper.base.gate is None else []

    # What is kept for the backward pass of a microbatch, from the widths of the backbone's layers.
    options = stepper.options
    layers = [model.get_submodule(name) for name in model.adapter_layers()]
    widths = sum(int(getattr(layer, side)) for layer in layers for side in ("in_features", "out_features"))
    activation_factor = ACTIVATION_FACTOR_ROWS_ONLY if options.mode == "rows-only" else ACTIVATION_FACTOR
    per_position = activation_factor * widths
    if options.gradient_checkpointing:  # the input of every block, and all of the one that is computed again
        width = model.body.num_heads * model.body.head_width
        per_position = per_position / model.body.num_layers + width * model.body.num_layers
    half = options.precision != "float32"
    scored = min(options.chunk or options.microbatch_tokens, options.microbatch_tokens)
    logits = LOGIT_COPIES * 4 * scored * max(count_output_classes(model))
    kept_tensors = (value for each in (model, *copies) for value in (*each.parameters(), *each.buffers()))
    return {
        "weights": _sum_tensor_bytes(kept_tensors),
        "optimizer": (1 + NUM_MOMENTS) * _sum_tensor_bytes(moved) + _sum_tensor_bytes(masters),
        "activations": int(per_position * options.microbatch_tokens * (2 if half else 4)) + logits,
    }


def _sum_tensor_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def fit_microbatch_tokens(stepper: TrainStep, stream: DeterministicSampler, known_tokens: int | None = None) -> int:
    """Set the largest microbatch that fits into memory, up to one per step and process; returns its positions.

    `known_tokens` is what was found before a resume: with the same microbatches every rounding is the same again.
    """
    longest, processes = stream.longest[0], stepper.group.world_size
    batch_tokens = stepper.options.batch_tokens
    max_tokens = batch_tokens + longest if processes == 1 else max(longest, batch_tokens // processes)
    _require_longest_fits(stepper, stream, longest)
    size = known_tokens or _predict_microbatch_tokens(stepper, stream)
    if size is None:  # the probes did not fit
        size = PROBE_LENGTHS[-1]
    size = max(longest, size if known_tokens else min(max_tokens, size))
    # The prediction is linear, memory is not quite: try it, and shrink until it fits.
    while size > longest and not _fits_in_memory(stepper, stream, size):
        size = max(longest, int(size * SHRINK_FACTOR) // ROUND_TO_TOKENS * ROUND_TO_TOKENS)
    if size == longest:
        _require_longest_fits(stepper, stream, longest)
    return size


def _require_longest_fits(stepper: TrainStep, stream: DeterministicSampler, longest: int) -> None:
    if not _fits_in_memory(stepper, stream, longest):
        found = f"there is not enough memory for one pass over the longest clip, of {longest:,} tokens"
        raise ConfigError("memory-too-small", found, expected="enough memory")


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
    held_bytes = torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    allowed = total
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):  # a limit that the user may have set in torch
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    own_bytes = min(free + torch.cuda.memory_reserved(device), allowed)
    available = int(own_bytes - MEMORY_RESERVE * min(total, allowed) - held_bytes)
    # Negative, so that one MIN finds the largest need and the smallest room.
    limits = torch.tensor([-(shorter[1] - per_position * shorter[0]), -per_position, available], device=device)
    if stepper.group.world_size > 1:
        distributed.all_reduce(limits, distributed.ReduceOp.MIN)
    fixed, slope, room = limits.tolist()
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
    """Positions of a pass, and the most that it takes beside what exists already. The first pass compiles."""
    device = stepper.trained.model.device
    batch = stepper.batch_builder.batch(items)
    for _ in range(2):
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        stepper.try_forward_backward(batch)
        torch.cuda.synchronize(device)
    return len(batch.order), torch.cuda.max_memory_allocated(device) - before
