"""One optimizer step: packs in, gradients summed over the step's own tokens, one move of the trained parameters.

Loss = text weight * text cross-entropy + speech weight * speech cross-entropy, each over all scored positions of the
whole step, however it is cut into packs and dealt to processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voxgraft.corpus.packs import deal, packs_of
from voxgraft.corpus.stream import Item
from voxgraft.errors import VoxgraftError
from voxgraft.families.model import PackedBatch, SpeechModel, losses
from voxgraft.training.examples import Examples
from voxgraft.training.options import TrainOptions
from voxgraft.training.parts import Trained, set_rates
from voxgraft.training.processes import Processes

__all__ = ["Learner", "NonFiniteError", "StepReport", "Stepper"]


class NonFiniteError(VoxgraftError):
    """A loss or a gradient that is not a number; the optimizer has not moved."""


class Learner(nn.Module):
    """The model as what gradients flow through: a batch in, the two summed losses out."""

    def __init__(self, model: SpeechModel, chunk: int | None) -> None:
        super().__init__()
        self.model, self.chunk = model, chunk

    def forward(self, batch: PackedBatch) -> Tensor:
        """-> [2]: text, speech"""
        found = losses(self.model, batch, chunk=self.chunk)
        return torch.stack([found.text_sum, found.speech_sum])


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


class Stepper:
    """Takes steps. All its state is in the model and the optimizer."""

    def __init__(
        self,
        trained: Trained,
        optimizer: torch.optim.Optimizer,
        examples: Examples,
        options: TrainOptions,
        group: Processes | None = None,
    ) -> None:
        self.trained, self.optimizer, self.examples, self.options = trained, optimizer, examples, options
        self.group = group or Processes()
        learner = Learner(trained.model, options.chunk)
        self.learner: nn.Module = learner
        if self.group.world_size > 1:
            self.learner = nn.parallel.DistributedDataParallel(learner, broadcast_buffers=False)
        self.scaler = torch.amp.GradScaler(trained.model.device.type, enabled=options.precision == "fp16")

    def step(self, number: int, items: Sequence[Item]) -> StepReport:
        """Learn from the items of a step, which is the same on every process."""
        self.optimizer.zero_grad(set_to_none=True)
        sums = self._gradients(items)
        self.scaler.unscale_(self.optimizer)
        norms = self._clipped()
        counts = self.examples.num_scored(items)
        text, speech = (self.group.summed(sums) / torch.tensor([max(1, count) for count in counts])).tolist()
        self._require_finite([text, speech, *norms.values()], number, items)
        rates = set_rates(self.optimizer, number, self.options)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        positions = sum(map(self.examples.num_positions, items))
        return StepReport(text, speech, rates, norms, positions, len(items))

    def _gradients(self, items: Sequence[Item]) -> Tensor:
        """Backward through this process's packs. Returns its summed losses, [2] on the processor."""
        packs = packs_of([self.examples.num_positions(item) for item in items], self.options.pack_tokens)
        mine = deal(packs, self.group.world_size)[self.group.rank]
        weights = self._weights(items)
        total = torch.zeros(2)
        for last, chosen in _with_last(mine):
            # A process that runs short computes some pack all the same, for nothing: all must come to the exchange.
            batch = self.examples.batch([items[index] for index in chosen or packs[0]])
            with self._alone(not last), self._gate():  # both passes: checkpointing runs the layers a second time
                with self._autocast():
                    sums = self.learner(batch)
                loss = (sums * weights).sum() * (1.0 if chosen else 0.0)
                torch.autograd.backward(self.scaler.scale(loss))
            if chosen:
                total += sums.detach().float().cpu()
        return total

    def _weights(self, items: Sequence[Item]) -> Tensor:
        """From sums to the step's loss; times the number of processes, whose gradients are averaged. [2]"""
        chosen = (self.options.text_weight, self.options.speech_weight)
        counts = self.examples.num_scored(items)
        weights = [weight * self.group.world_size / max(1, n) for weight, n in zip(chosen, counts, strict=True)]
        return torch.tensor(weights, device=self.trained.model.device)

    def _clipped(self) -> dict[str, float]:
        norms = {}
        for group in self.optimizer.param_groups:
            limit = self.options.clip or float("inf")
            norms[str(group["part"])] = float(nn.utils.clip_grad_norm_(group["params"], limit))
        return norms

    def _require_finite(self, values: Sequence[float], number: int, items: Sequence[Item]) -> None:
        """Under a loss scaler a gradient may overflow now and then; the scaler then leaves the step out by itself."""
        wrong = not all(value == value and abs(value) != float("inf") for value in values)
        if self.options.precision == "fp16" and all(value == value for value in values[:2]):
            wrong = False
        if not self.group.any(wrong, self.trained.model.device):
            return
        guilty = self._guilty(items)
        named = ", ".join(guilty[:8]) if guilty else "no clip by itself"
        found = f"the loss of step {number:,} is not finite; clips whose own loss is not: {named}"
        raise NonFiniteError("loss-not-finite", found, expected="finite numbers")

    @torch.no_grad()
    def _guilty(self, items: Sequence[Item]) -> list[str]:
        """The clips whose loss is not finite by itself."""
        found = []
        for item in items:
            with self._gate(), self._autocast():
                sums = Learner(self.trained.model, self.options.chunk)(self.examples.batch([item]))
            if not bool(sums.isfinite().all()):
                found.append(self.examples.name(item))
        return found

    @contextmanager
    def _alone(self, alone: bool) -> Iterator[None]:
        """Gradients are exchanged once a step, with the last pack."""
        if alone and isinstance(self.learner, nn.parallel.DistributedDataParallel):
            with self.learner.no_sync():
                yield
        else:
            yield

    @contextmanager
    def _gate(self) -> Iterator[None]:
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


def _with_last(packs: Sequence[list[int] | None]) -> Iterator[tuple[bool, list[int] | None]]:
    for at, chosen in enumerate(packs):
        yield at == len(packs) - 1, chosen
