"""One optimizer step: packs in, gradients summed over the step's own tokens, one move of the trained parameters.

Loss = text weight * text cross-entropy + speech weight * speech cross-entropy + KL weight * KL to the base on replay,
each over all its positions of the whole step, however it is cut into packs and dealt to processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.dataset.sampler import Sample
from voxgraft.models.speech_model import PackedBatch, SpeechModel, compute_hidden_states
from voxgraft.nn.attention import choose_attention_backend
from voxgraft.nn.layers import cross_entropy_sum
from voxgraft.training.cuda_graphs import CudaGraphRunner
from voxgraft.training.distributed import DistributedContext
from voxgraft.training.options import TrainOptions
from voxgraft.training.prefetch import BatchBuilder, BatchPrefetcher, FrozenBase, KLBatch, RankBatches, kl_sum
from voxgraft.training.trainable import FlatAdamW, TrainableModel, set_learning_rates


def enable_deterministic_mode() -> None:
    """For this whole process: only kernels whose sums have a fixed order. A processor needs nothing for that."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Writing over memory that nothing reads costs time and shows nothing.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


MIN_LOSS_SCALE = 1.0
NUM_LOSSES = 3
"""Text, speech, and nearness to the base."""


class NonFiniteError(VoxgraftError):
    """A loss or a gradient that is not a number; the optimizer has not moved."""


class LossModule(nn.Module):
    """The model as what gradients flow through: a batch in, the summed losses out."""

    def __init__(self, model: SpeechModel, chunk: int | None, base: FrozenBase | None = None) -> None:
        super().__init__()
        self.model, self.chunk, self.base = model, chunk, base

    def forward(self, batch: PackedBatch, near: KLBatch | None = None, base_hidden: Tensor | None = None) -> Tensor:
        """-> [3]: text, speech, and how far from the base. `base_hidden` is what the base has at `near`. [M, W]"""
        hidden = compute_hidden_states(self.model, batch)
        asked = ((self.model.text_logits, batch.text), (self.model.speech_logits, batch.speech))
        sums = [cross_entropy_sum(head, hidden[at.scored], at.targets, chunk=self.chunk) for head, at in asked]
        if self.base is None or near is None or base_hidden is None:
            return torch.stack([*sums, torch.zeros_like(sums[0])])
        tuned = hidden[near.places]
        far = kl_sum(self.model.speech_logits, tuned, self.base.head, base_hidden, chunk=self.chunk)
        return torch.stack([*sums, far])


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step was: means over the whole step, before the parameters moved."""

    text_loss: float
    speech_loss: float
    rates: dict[str, float]
    norms: dict[str, float]
    """Length of each part's gradient before clipping."""
    num_positions: int
    num_clips: int
    kl: float | None = None
    """How far replay is from the base, in nats a speech code; None where nothing is held near it."""


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
        """`frozen` is a copy of the base, for replay with a body that is trained itself."""
        self.trained, self.optimizer, self.batch_builder, self.options = trained, optimizer, examples, options
        self.group = group or DistributedContext()
        if options.deterministic:
            enable_deterministic_mode()
        trained.model.body.gradient_checkpointing = options.gradient_checkpointing
        for model in (trained.model, frozen):
            if options.compile and model is not None:
                model.body.compile_blocks(deterministic=options.deterministic)
        self.base = _build_frozen_base(trained, frozen) if examples.near else None
        learner = LossModule(trained.model, options.chunk, self.base)
        self.loss_module: nn.Module = learner
        # DDP sums what is left in the parameters that autograd knows. Gradients of half-precision copies leave those
        # for float32 masters after every pack: with masters the step sums them itself, in float32 as one process does.
        if self.group.world_size > 1 and not len(trained.masters):
            self.loss_module = nn.parallel.DistributedDataParallel(learner, broadcast_buffers=False)
        self._flat_optimizer = optimizer if isinstance(optimizer, FlatAdamW) and options.precision != "fp16" else None
        self.cuda_graphs: CudaGraphRunner | None = None
        if self._can_use_cuda_graphs():
            places = optimizer.gradients() if isinstance(optimizer, FlatAdamW) else {}
            self.cuda_graphs = CudaGraphRunner(self._loss_sums, trained, self._set_gate, places)
        self.prefetcher = BatchPrefetcher(
            examples, options.microbatch_tokens, self.group, fill=self.cuda_graphs is not None
        )
        self.scaler = torch.amp.GradScaler(trained.model.device.type, enabled=options.precision == "fp16")

    def step(self, number: int, items: Sequence[Sample]) -> StepReport:
        """Learn from the items of a step, which is the same on every process."""
        share, own_sums = self._compute_gradients_or_raise(items)
        sums = self.group.all_reduce_sum(own_sums)
        self.prefetcher.begin()
        rates = set_learning_rates(self.optimizer, number, self.options)
        norms = self._clip_and_step_on_device(sums) if self._flat_optimizer else self._clip_gradients()
        # The one place in a step that waits for the device.
        values = torch.cat([sums, torch.stack(list(norms.values()))]).tolist()
        means = [total / count for total, count in zip(values[:NUM_LOSSES], share.counts, strict=True)]
        lengths = values[NUM_LOSSES:]
        self._require_finite([*means, *lengths], number, items)
        if not self._flat_optimizer:
            self._apply_update()
        text, speech, kl = means
        gradients = dict(zip(norms, lengths, strict=True))
        return StepReport(text, speech, rates, gradients, share.num_positions, len(items), kl if self.base else None)

    def _compute_gradients_or_raise(self, items: Sequence[Sample]) -> tuple[RankBatches, Tensor]:
        try:
            share = self.prefetcher.share(items)  # where nothing is filled, batches are put on the device here
            return share, self._compute_gradients(share) if self.cuda_graphs is None else self._replay_graphs(share)
        except torch.OutOfMemoryError:
            found = f"no room for packs of {self.options.microbatch_tokens:,} positions"
            expected = "a smaller train.microbatch_tokens, which changes nothing of what is learnt"
            raise ConfigError("memory-too-small", found, expected=expected) from None

    def _compute_gradients(self, share: RankBatches) -> Tensor:
        """Backward through this process's packs. Returns its summed losses, [3]"""
        self.optimizer.zero_grad(set_to_none=True)
        weights = self._weights(share.counts)
        total = torch.zeros(NUM_LOSSES, device=self.trained.model.device)
        for at, (batch, near, counts) in enumerate(share.batches):
            base_hidden = self._base_hidden(near)
            with (
                self._skip_gradient_sync(at + 1 < len(share.batches)),
                self._set_gate(),
            ):  # both passes: checkpointing runs the layers a second time
                with self._autocast():
                    sums = self.loss_module(batch, near, base_hidden)
                loss = (sums * weights).sum() * (1.0 if counts else 0.0)
                torch.autograd.backward(self.scaler.scale(loss))
            self.trained.masters.collect()
            if counts:
                total += sums.detach().float()
        if not isinstance(self.loss_module, nn.parallel.DistributedDataParallel):
            self.group.all_reduce_gradients([value for one in self.optimizer.param_groups for value in one["params"]])
        return total

    def try_largest_batch(self, items: Sequence[Sample]) -> None:
        """Both passes over a pack of the largest size, for nothing: to see whether there is memory for it."""
        batch = self.prefetcher.largest(items)
        if self.cuda_graphs is not None and not batch.order.is_cuda:
            self.cuda_graphs.try_largest_batch(batch)
            with torch.no_grad(), self._set_gate():  # as a validation has it beside what was recorded
                self._loss_sums(batch.to(self.trained.model.device))
        elif self.base is not None and self.group.world_size == 1:
            self._compute_gradients(self.prefetcher.share(items))
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.try_forward_backward(batch)

    def try_forward_backward(self, batch: PackedBatch) -> None:
        """Both passes over a pack, for nothing: to see what they take."""
        parameters = list(self.trained.named().values())
        with self._set_gate():
            with self._autocast():
                sums = LossModule(self.trained.model, self.options.chunk)(batch)
            torch.autograd.grad(sums.sum(), parameters, allow_unused=True)

    def set_microbatch_tokens(self, microbatch_tokens: int) -> None:
        """From now on at most so many positions go through the model at once."""
        self.options = replace(self.options, microbatch_tokens=microbatch_tokens)
        self.prefetcher = BatchPrefetcher(
            self.batch_builder, microbatch_tokens, self.group, fill=self.cuda_graphs is not None
        )

    def _replay_graphs(self, share: RankBatches) -> Tensor:
        """The same by replay, on a device that is faster than the processor can tell it what to do. [3]"""
        assert self.cuda_graphs is not None
        weights = self.scaler.scale(self._weights(share.counts))
        total = torch.zeros(NUM_LOSSES, device=self.trained.model.device)
        for at, (batch, _, _) in enumerate(share.batches):
            total += self.cuda_graphs.run(batch, weights, first=at == 0)
        self.cuda_graphs.assign_gradients()
        return total

    def _can_use_cuda_graphs(self) -> bool:
        """One process on a device with the kernels for it, and nothing held near the base."""
        model = self.trained.model
        alone = self.options.compile and model.device.type == "cuda" and self.group.world_size == 1
        dtype = next(model.body.parameters()).dtype
        return alone and self.base is None and choose_attention_backend(model.device, dtype) == "varlen"

    def _loss_sums(self, batch: PackedBatch) -> Tensor:
        with self._autocast():
            sums: Tensor = self.loss_module(batch)
        return sums

    def _weights(self, counts: Sequence[int]) -> Tensor:
        """From sums to the step's loss; under DDP, which averages, times the number of processes. [3]"""
        chosen = (self.options.text_weight, self.options.speech_weight, self.options.kl_weight)
        averaged = isinstance(self.loss_module, nn.parallel.DistributedDataParallel)
        times = self.group.world_size if averaged else 1
        weights = [weight * times / n for weight, n in zip(chosen, counts, strict=True)]
        return torch.tensor(weights, device=self.trained.model.device)

    def _base_hidden(self, near: KLBatch | None) -> Tensor | None:
        if self.base is None or near is None:
            return None
        with self._autocast():
            return self.base.hidden(near)

    def _clip_and_step_on_device(self, sums: Tensor) -> dict[str, Tensor]:
        """Where the device itself can see to that, so that it need not wait for an answer. Gives the lengths."""
        assert self._flat_optimizer is not None
        norms = self._flat_optimizer.clip_and_step(self.options.max_grad_norm, sums)
        return {str(group["part"]): norm for group, norm in zip(self.optimizer.param_groups, norms, strict=True)}

    def _clip_gradients(self) -> dict[str, Tensor]:
        self.scaler.unscale_(self.optimizer)
        limit = self.options.max_grad_norm or float("inf")
        return {
            str(group["part"]): nn.utils.clip_grad_norm_(group["params"], limit).float()
            for group in self.optimizer.param_groups
        }

    def _apply_update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.trained.masters.spread()

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything that the next step depends on and that must be the same on every process: no copies."""
        found: dict[str, Tensor] = {}
        for group in self.optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                found[str(name)] = parameter.detach()
                state = self.optimizer.state.get(parameter, {})
                found |= {f"{name}/{moment}": value for moment, value in state.items() if isinstance(value, Tensor)}
        rounded = {f"{name} (rounded)": copy.detach() for name, copy in self.trained.masters.rounded().items()}
        return found | rounded

    def _require_finite(self, values: Sequence[float], number: int, items: Sequence[Sample]) -> None:
        """Under a loss scaler a gradient may overflow now and then; the scaler then leaves the step out by itself.

        A scale that fell to LEAST_SCALE says that it was not the scale.
        """
        wrong = not all(map(math.isfinite, values))
        if wrong and self.options.precision == "fp16" and all(map(math.isfinite, values[:NUM_LOSSES])):
            wrong = self.scaler.get_scale() <= MIN_LOSS_SCALE
        if not self.group.any(wrong, self.trained.model.device):
            return
        self.optimizer.zero_grad(set_to_none=True)
        guilty = self._find_non_finite_clips(items)
        named = "; ".join(guilty[:8]) if guilty else "no clip by itself"
        found = f"the loss of step {number:,} or its gradient is not finite; so are by themselves: {named}"
        raise NonFiniteError("loss-not-finite", found, expected="finite numbers")

    def _find_non_finite_clips(self, items: Sequence[Sample]) -> list[str]:
        """The clips whose loss or gradient is not finite by itself."""
        return [self.batch_builder.describe_item(item) for item in items if not self._is_finite(item)]

    def _is_finite(self, item: Sample) -> bool:
        learner, trained = LossModule(self.trained.model, self.options.chunk), self.trained.named().values()
        with self._set_gate():
            with self._autocast():
                sums = learner(self.batch_builder.batch([item]))
            torch.autograd.backward(sums.sum())
        found = [sums.detach(), *(value.grad for value in trained if value.grad is not None)]
        for value in trained:
            value.grad = None
        return all(bool(values.isfinite().all()) for values in found)

    @contextmanager
    def _skip_gradient_sync(self, alone: bool) -> Iterator[None]:
        """DDP exchanges gradients once a step, with the last pack."""
        if alone and isinstance(self.loss_module, nn.parallel.DistributedDataParallel):
            with self.loss_module.no_sync():
                yield
        else:
            yield

    @contextmanager
    def _set_gate(self) -> Iterator[None]:
        with self.trained.gate.opened() if self.trained.gate else nullcontext():
            yield

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        """Half precision for a body that is kept in float32; one that is kept in half precision needs none."""
        device = self.trained.model.device.type
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.options.precision)
        kept_full = next(self.trained.model.body.parameters()).dtype == torch.float32
        with torch.autocast(device, half) if half is not None and kept_full else nullcontext():
            yield


def _build_frozen_base(trained: TrainableModel, frozen: SpeechModel | None) -> FrozenBase:
    """With an adapter the base is the model itself with its gate closed."""
    if trained.gate is not None:
        return FrozenBase(trained.model, trained.gate)
    if frozen is None:
        raise ValueError("a body that is trained itself stays near a copy of the base, and none is given")
    return FrozenBase(frozen)
