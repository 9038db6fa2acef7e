"""How the tiny base learns: the losses of rows, a step on them, and all steps with a falling rate.

Dropout and spoiled speech history are put around the model here; the model itself has neither. On CUDA a step is one
captured graph per row length.

Shapes: B utterances, L positions of a row, W width, C conditioning slots, S speakers.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.tiny_base.base_batches import Example, Rows, Shelf, order, shelves
from recipes.tiny_base.tokenizer import Speller
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.chatterbox.model import T3ConditionBatch
from voxgraft.models.tiny.family import SHIPPED_SIZE
from voxgraft.models.tiny.model import FIXED_EMOTION, TinyT3
from voxgraft.nn import IGNORE_INDEX

__all__ = ["BaseSettings", "RowContext", "Trainer", "Validation", "row_losses"]

LOOK_EVERY = 50
"""Steps between two looks at the clock and the losses; a look waits for the device."""
VALID_SHARES = (0.25, 0.5, 0.75)
WARM_STEPS = 3
"""Plain steps on each row length before one is captured."""


def told_at_once(line: str) -> None:
    """Print a line, also where the output is a pipe."""
    print(line, flush=True)


@dataclass(frozen=True, slots=True)
class BaseSettings:
    """How the base is trained. Training ends with its steps or its seconds, whichever come first."""

    size: T3Size = SHIPPED_SIZE
    steps: int = 20_000
    seconds: float = 340.0
    batch_positions: int = 18_000
    rate: float = 1.5e-3
    warmup: float = 0.03
    min_lr_ratio: float = 0.02
    weight_decay: float = 0.05
    max_grad_norm: float = 1.0
    dropout: float = 0.1
    spoiled: float = 0.1
    """Share of the speech history that is replaced by random codes."""
    text_weight: float = 0.1
    joined_share: float = 0.1
    min_count: int = 50
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class RowContext:
    """Which positions see which: those of the same row before them. A context for the body."""

    rows: int
    length: int
    device: torch.device
    positions: Tensor = field(init=False)  # [B * L]
    closed: Tensor | None = None  # no text has two languages

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", torch.arange(self.length, device=self.device).repeat(self.rows))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002 (rows have no memory)
        """[B * L, H, D] each -> [B * L, H, D]"""
        rows = (self.rows, self.length)
        q, k, v = (part.view(*rows, *part.shape[1:]).transpose(1, 2) for part in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(0, 1)


def row_losses(model: TinyT3, rows: Rows, context: RowContext, *, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """Sums of cross-entropy of text and of speech over a batch of rows."""
    size = model.size
    ids, positions = rows.ids, rows.positions  # [B, L]
    assert isinstance(model.text_emb, nn.Embedding)
    table = torch.cat([model.text_emb.weight, model.speech_emb.weight])
    position_table = torch.cat([model.text_pos_emb.emb.weight, model.speech_pos_emb.emb.weight])
    vectors = F.embedding(ids, table) + F.embedding(positions, position_table)  # [B, L, W]
    slots = model.embed_conditions(_conditions(rows.speakers))  # [B, C, W]
    vectors = torch.cat([slots.to(vectors.dtype), vectors[:, size.perceiver_queries + 2 :]], 1)
    hidden = model.body(F.dropout(vectors, dropout).flatten(0, 1), context)  # [B * L, W]
    text = F.cross_entropy(
        model.text_logits(hidden).float(), rows.text_targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    speech = F.cross_entropy(
        model.speech_logits(hidden).float(), rows.speech_targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    return text, speech


def spoiled(ids: Tensor, size: T3Size, share: float) -> Tensor:
    """So many of the codes that were heard become others, so that the text is what is left to go by. [B, L]"""
    first, end = size.text_rows, size.text_rows + size.speech_rows - 2
    random_codes = torch.randint_like(ids, first, end)
    chosen = (torch.rand(ids.shape, device=ids.device) < share) & (ids >= first) & (ids < end)
    return torch.where(chosen, random_codes, ids)


class Trainer:
    """The model, its optimizer and one step for every shelf."""

    def __init__(self, model: TinyT3, kept: list[Shelf], settings: BaseSettings) -> None:
        self.model, self.settings = model, settings
        self.device = torch.device(settings.device)
        self.shelves = [replace(shelf, rows=shelf.rows.to(self.device)) for shelf in kept]
        self.parameters = [
            p for name, p in model.named_parameters() if not name.startswith(model.unused_param_prefixes)
        ]
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient  # for good: a captured step writes to places
        on_cuda = self.device.type == "cuda"
        self.rate = torch.zeros((), device=self.device)
        matrices = [p for p in self.parameters if p.dim() > 1]
        others = [p for p in self.parameters if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=self.rate,
            betas=(0.9, 0.98),
            fused=True,
            capturable=on_cuda,
        )
        self.aside = torch.cuda.Stream() if on_cuda else None  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle() if on_cuda else None
        self.steps = [Step(self, shelf) for shelf in self.shelves]

    def about(self) -> str:
        sizes = ", ".join(f"{len(shelf):,} x {shelf.rows.ids.shape[1]} by {shelf.batch}" for shelf in self.shelves)
        values = sum(parameter.numel() for parameter in self.parameters)
        return f"{values / 1e6:.2f} M values, rows {sizes}"

    def run(
        self, measure: Callable[[], dict[str, float]], seconds: float, tell: Callable[[str], None] = told_at_once
    ) -> int:
        """All steps; gives how many they were."""
        settings, started = self.settings, time.monotonic()
        looks = list(VALID_SHARES)
        progress, step = 0.0, 0
        dropout = Dropout(self.model, settings.dropout)
        for shelf, places in order(self.shelves, settings.seed):
            self.rate.fill_(_rate(settings, progress))
            self.steps[shelf](places)
            step += 1
            progress = max(progress, step / settings.steps)
            if step % LOOK_EVERY == 0:
                reported = self.steps[shelf].told()
                elapsed = time.monotonic() - started
                progress = max(progress, elapsed / seconds)
                if step % (10 * LOOK_EVERY) == 0:
                    tell(f"base: step {step}, {reported}, {elapsed:.0f} s, {1000 * elapsed / step:.1f} ms a step")
                if looks and progress >= looks[0]:
                    looks.pop(0)
                    with dropout.off():
                        tell(f"base: step {step}, held out: {measure()}")
            if progress >= 1:
                break
        dropout.remove()
        return step


class Step:
    """One optimizer step on rows of one length: captured as a graph on CUDA, plain elsewhere."""

    def __init__(self, trainer: Trainer, shelf: Shelf) -> None:
        self.trainer, self.shelf = trainer, shelf
        self.rows = shelf.rows.at(torch.arange(shelf.batch, device=trainer.device))
        self.context = RowContext(shelf.batch, shelf.rows.ids.shape[1], trainer.device)
        self.losses = torch.zeros(3, device=trainer.device)  # text and speech a position, length of the gradient
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def __call__(self, places: Tensor) -> None:
        self.rows.copy_(self.shelf.rows.at(places.to(self.trainer.device)))
        if self._graph is not None:
            self._graph.replay()
            return
        self._calls += 1
        if self.trainer.device.type == "cuda" and self._calls > WARM_STEPS:
            self._capture()
        else:
            self._once_aside()

    def told(self) -> str:
        text, speech, length = self.losses.tolist()
        return f"text {text:.3f}, speech {speech:.3f}, gradient {length:.2f}"

    def _once(self) -> None:
        trainer, settings = self.trainer, self.trainer.settings
        torch._foreach_zero_(trainer.gradients)
        rows = replace(self.rows, ids=spoiled(self.rows.ids, trainer.model.size, settings.spoiled))
        kind = trainer.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False):
            text, speech = row_losses(trainer.model, rows, self.context, dropout=settings.dropout)
        text = text / (self.rows.text_targets != IGNORE_INDEX).sum()
        speech = speech / (self.rows.speech_targets != IGNORE_INDEX).sum()
        torch.autograd.backward(settings.text_weight * text + speech)
        length = nn.utils.clip_grad_norm_(trainer.parameters, settings.max_grad_norm, foreach=True)
        trainer.optimizer.step()
        self.losses.copy_(torch.stack([text.detach(), speech.detach(), length]))

    def _once_aside(self) -> None:
        """Plain steps before a capture run on a stream of their own, as capturing wants it."""
        aside = self.trainer.aside
        if aside is None:
            self._once()
            return
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._once()
        torch.cuda.current_stream().wait_stream(aside)

    def _capture(self) -> None:
        """Record a step, then take it. Where that cannot be, plain steps go on."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            # One step at a time is replayed, and what it leaves lies outside, so all may share their memory.
            with torch.cuda.graph(graph, pool=self.trainer.pool, capture_error_mode="thread_local"):
                self._once()
        except RuntimeError as error:
            told_at_once(f"base: not captured, {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            self._calls = -(10**9)
            self._once_aside()
            return
        self._graph = graph
        graph.replay()


class Validation:
    """Held-out loss of speech by language, without dropout and with nothing spoiled."""

    def __init__(self, valid: Sequence[Example], speller: Speller, size: T3Size, settings: BaseSettings) -> None:
        self.device = torch.device(settings.device)
        languages = sorted({example.language for example in valid})
        self.shelves = {
            language: [
                replace(shelf, rows=shelf.rows.to(self.device))
                for shelf in shelves(
                    [one for one in valid if one.language == language], speller, size, settings.batch_positions
                )
            ]
            for language in languages
        }

    @torch.no_grad()
    def __call__(self, model: TinyT3) -> dict[str, float]:
        return {language: self._loss(model, kept) for language, kept in self.shelves.items()}

    def _loss(self, model: TinyT3, kept: Sequence[Shelf]) -> float:
        total, count = 0.0, 0
        for shelf in kept:
            for places in torch.split(torch.arange(len(shelf), device=self.device), shelf.batch):
                rows = shelf.rows.at(places)
                context = RowContext(len(places), rows.ids.shape[1], self.device)
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                    total += float(row_losses(model, rows, context)[1])
                count += int((rows.speech_targets != IGNORE_INDEX).sum())
        return round(total / max(count, 1), 4)


def _conditions(speakers: Tensor) -> T3ConditionBatch:
    """[B, S] -> conditions of B utterances"""
    zeros = torch.zeros(len(speakers), 1, dtype=torch.long, device=speakers.device)
    emotion = torch.full((len(speakers),), FIXED_EMOTION, device=speakers.device)
    return T3ConditionBatch(speakers, zeros, torch.ones_like(zeros[:, 0]), emotion)


class Dropout:
    """Dropout on what each attention and each MLP adds, by hooks: the model itself knows of none."""

    def __init__(self, model: TinyT3, share: float) -> None:
        self._share, self._on = share, True
        names = [name for name, _ in model.body.named_modules() if name.endswith((".self_attn", ".mlp"))]
        parts = [model.body.get_submodule(name) for name in names]
        self._handles = [part.register_forward_hook(self._drop) for part in parts]

    def _drop(self, _module: nn.Module, _inputs: Any, out: Tensor) -> Tensor:
        return F.dropout(out, self._share) if self._on else out

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """For measuring."""
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _rate(settings: BaseSettings, progress: float) -> float:
    if progress < settings.warmup:
        return settings.rate * (progress + 1e-4) / settings.warmup
    fallen = (progress - settings.warmup) / (1 - settings.warmup)
    low = settings.min_lr_ratio
    return settings.rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(fallen, 1.0))))
