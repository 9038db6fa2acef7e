"""Training of the tiny base: losses, optimizer steps and the schedule.

Dropout and random replacement of speech codes are added here; the model itself has neither. On CUDA a step is one
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

from recipes.tiny_base.base_batches import Bucket, Example, Rows, buckets, order
from recipes.tiny_base.tokenizer import Speller
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.chatterbox.model import T3ConditionBatch
from voxgraft.models.tiny.family import SHIPPED_SIZE
from voxgraft.models.tiny.model import FIXED_EMOTION, TinyT3
from voxgraft.nn import IGNORE_INDEX

__all__ = ["BaseSettings", "RowContext", "Trainer", "Validation", "row_losses"]

LOG_EVERY = 50
"""Steps between two checks of time and losses; a check synchronizes with the device."""
VALID_SHARES = (0.25, 0.5, 0.75)
WARMUP_STEPS = 3
"""Eager steps per row length before a step is captured."""


def print_flushed(line: str) -> None:
    """Print a line and flush, also to a pipe."""
    print(line, flush=True)


@dataclass(frozen=True, slots=True)
class BaseSettings:
    """Settings of the training, which ends after `steps` or `seconds`, whichever comes first."""

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
    """Attention context of the backbone: each position attends to earlier positions of its row."""

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
    """Replace a share of the speech codes by random ones, so that the model has to use the text. [B, L]"""
    first, end = size.text_rows, size.text_rows + size.speech_rows - 2
    random_codes = torch.randint_like(ids, first, end)
    chosen = (torch.rand(ids.shape, device=ids.device) < share) & (ids >= first) & (ids < end)
    return torch.where(chosen, random_codes, ids)


class Trainer:
    """The model, its optimizer and one step per bucket."""

    def __init__(self, model: TinyT3, kept: list[Bucket], settings: BaseSettings) -> None:
        self.model, self.settings = model, settings
        self.device = torch.device(settings.device)
        self.buckets = [replace(bucket, rows=bucket.rows.to(self.device)) for bucket in kept]
        self.parameters = [
            p for name, p in model.named_parameters() if not name.startswith(model.unused_param_prefixes)
        ]
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient  # allocated once: a captured graph writes to fixed addresses
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
        self.steps = [Step(self, bucket) for bucket in self.buckets]

    def about(self) -> str:
        sizes = ", ".join(f"{len(bucket):,} x {bucket.rows.ids.shape[1]} by {bucket.batch}" for bucket in self.buckets)
        values = sum(parameter.numel() for parameter in self.parameters)
        return f"{values / 1e6:.2f} M values, rows {sizes}"

    def run(
        self, measure: Callable[[], dict[str, float]], seconds: float, log: Callable[[str], None] = print_flushed
    ) -> int:
        """Run all steps; returns their number."""
        settings, started = self.settings, time.monotonic()
        looks = list(VALID_SHARES)
        progress, step = 0.0, 0
        dropout = Dropout(self.model, settings.dropout)
        for bucket, places in order(self.buckets, settings.seed):
            self.rate.fill_(_rate(settings, progress))
            self.steps[bucket](places)
            step += 1
            progress = max(progress, step / settings.steps)
            if step % LOG_EVERY == 0:
                reported = self.steps[bucket].format_losses()
                elapsed = time.monotonic() - started
                progress = max(progress, elapsed / seconds)
                if step % (10 * LOG_EVERY) == 0:
                    log(f"base: step {step}, {reported}, {elapsed:.0f} s, {1000 * elapsed / step:.1f} ms a step")
                if looks and progress >= looks[0]:
                    looks.pop(0)
                    with dropout.off():
                        log(f"base: step {step}, held out: {measure()}")
            if progress >= 1:
                break
        dropout.remove()
        return step


class Step:
    """One optimizer step on rows of one length: a captured graph on CUDA, eager elsewhere."""

    def __init__(self, trainer: Trainer, bucket: Bucket) -> None:
        self.trainer, self.bucket = trainer, bucket
        self.rows = bucket.rows.at(torch.arange(bucket.batch, device=trainer.device))
        self.context = RowContext(bucket.batch, bucket.rows.ids.shape[1], trainer.device)
        self.losses = torch.zeros(3, device=trainer.device)  # text and speech loss per position, gradient norm
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def __call__(self, places: Tensor) -> None:
        self.rows.copy_(self.bucket.rows.at(places.to(self.trainer.device)))
        if self._graph is not None:
            self._graph.replay()
            return
        self._calls += 1
        if self.trainer.device.type == "cuda" and self._calls > WARMUP_STEPS:
            self._capture()
        else:
            self._once_aside()

    def format_losses(self) -> str:
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
        """Run an eager step on a side stream, as CUDA graph capture requires."""
        aside = self.trainer.aside
        if aside is None:
            self._once()
            return
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._once()
        torch.cuda.current_stream().wait_stream(aside)

    def _capture(self) -> None:
        """Capture a step and replay it. If capturing fails, all steps stay eager."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            # Only one graph runs at a time, and its results are outside the pool, so all graphs can share the pool.
            with torch.cuda.graph(graph, pool=self.trainer.pool, capture_error_mode="thread_local"):
                self._once()
        except RuntimeError as error:
            print_flushed(f"base: not captured, {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            self._calls = -(10**9)
            self._once_aside()
            return
        self._graph = graph
        graph.replay()


class Validation:
    """Held-out loss of speech by language, without dropout and without replaced codes."""

    def __init__(self, valid: Sequence[Example], speller: Speller, size: T3Size, settings: BaseSettings) -> None:
        self.device = torch.device(settings.device)
        languages = sorted({example.language for example in valid})
        self.buckets = {
            language: [
                replace(bucket, rows=bucket.rows.to(self.device))
                for bucket in buckets(
                    [one for one in valid if one.language == language], speller, size, settings.batch_positions
                )
            ]
            for language in languages
        }

    @torch.no_grad()
    def __call__(self, model: TinyT3) -> dict[str, float]:
        return {language: self._loss(model, kept) for language, kept in self.buckets.items()}

    def _loss(self, model: TinyT3, kept: Sequence[Bucket]) -> float:
        total, count = 0.0, 0
        for bucket in kept:
            for places in torch.split(torch.arange(len(bucket), device=self.device), bucket.batch):
                rows = bucket.rows.at(places)
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
    """Dropout on the output of each attention and MLP, by hooks; the model itself has none."""

    def __init__(self, model: TinyT3, share: float) -> None:
        self._share, self._on = share, True
        names = [name for name, _ in model.body.named_modules() if name.endswith((".self_attn", ".mlp"))]
        parts = [model.body.get_submodule(name) for name in names]
        self._handles = [part.register_forward_hook(self._drop) for part in parts]

    def _drop(self, _module: nn.Module, _inputs: Any, out: Tensor) -> Tensor:
        return F.dropout(out, self._share) if self._on else out

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Disable dropout inside the block."""
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
