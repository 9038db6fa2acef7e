"""Every training setting as a plain value: its default, and what changing it means for a run with saved steps.

`config.run.TrainSettings` takes defaults from here and adds help, limits and values that are left open. Training, `go`
and the saved steps derive their lists from the marks on the fields. No pydantic, so that training runs without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

# Training that is kept for comparison only; not a mode of run.yaml.
BaselineMode = Literal["masked-finetune"]
TrainModeOrBaseline = Literal["gated", "merged", "rows-only", "masked-finetune"]
TrainPart = Literal["rows", "adapter", "body"]
TRAIN_PARTS: tuple[TrainPart, ...] = ("rows", "adapter", "body")
LRSchedule = Literal["cosine", "linear", "constant"]
TrainPrecision = Literal["float32", "bf16", "fp16"]
EmotionSource = Literal["target", "prompt"]
ResumeRule = Literal["fixed", "schedule", "learning", "runtime"]
"""What another value means for a run with saved steps.

fixed: the saved tensors, or the meaning of the optimizer's moments, depend on it; resuming is refused.
schedule: the learning rates of all steps depend on it; training resumes with other rates.
learning: what later steps learn depends on it; training resumes. A finished run was trained with another value.
runtime: speed and memory only; training resumes, and a finished run stays finished.
"""


# Marks for the fields below. `go`, `train` and the saved steps all read them, so that they cannot disagree.
FIXED: dict[str, ResumeRule] = {"resume": "fixed"}
SCHEDULE: dict[str, ResumeRule] = {"resume": "schedule"}
LEARNING: dict[str, ResumeRule] = {"resume": "learning"}
RUNTIME: dict[str, ResumeRule] = {"resume": "runtime"}


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Everything a step depends on besides the data and the model."""

    mode: TrainModeOrBaseline = field(default="gated", metadata=FIXED)
    full_backbone: bool = field(default=False, metadata=FIXED)
    """Merged mode: train the whole backbone instead of an adapter."""
    rank: int = field(default=32, metadata=FIXED)
    alpha: float = field(default=32.0, metadata=FIXED)
    lr_rows: float = field(default=1e-3, metadata=LEARNING)
    lr_adapter: float = field(default=1e-3, metadata=LEARNING)
    lr_backbone: float = field(default=2e-5, metadata=LEARNING)
    weight_decay: float = field(default=0.01, metadata=LEARNING)
    """Of adapter and backbone; rows are never decayed."""
    betas: tuple[float, float] = field(default=(0.9, 0.99), metadata=LEARNING)
    max_grad_norm: float = field(default=1.0, metadata=LEARNING)
    """Per parameter group; 0 disables clipping."""
    schedule: LRSchedule = field(default="cosine", metadata=SCHEDULE)
    steps: int = field(default=10_000, metadata=SCHEDULE)
    warmup_steps: int = field(default=500, metadata=SCHEDULE)
    min_lr_ratio: float = field(default=0.1, metadata=SCHEDULE)
    """Final learning rate as a fraction of the peak."""
    text_weight: float = field(default=1.0, metadata=LEARNING)
    speech_weight: float = field(default=1.0, metadata=LEARNING)
    kl_weight: float = field(default=1.0, metadata=LEARNING)
    """Weight of the KL divergence from the base on replay."""
    batch_tokens: int = field(default=16_384, metadata=LEARNING)
    microbatch_tokens: int = field(default=8_192, metadata=RUNTIME)
    """Maximum number of positions per forward pass."""
    text_dropout: float = field(default=0.1, metadata=LEARNING)
    """Share of samples without text, for classifier-free guidance; 0 if the family does not use it."""
    emotion_from: EmotionSource = field(default="target", metadata=LEARNING)
    seed: int = field(default=0, metadata=FIXED)
    precision: TrainPrecision = field(default="float32", metadata=RUNTIME)
    chunk: int | None = field(default=None, metadata=RUNTIME)
    """Positions per chunk of the loss, to limit the memory of logits; None: the whole microbatch."""
    gradient_checkpointing: bool = field(default=False, metadata=RUNTIME)
    """Recompute activations in the backward pass: less memory, about a third slower."""
    compile: bool = field(default=False, metadata=RUNTIME)
    deterministic: bool = field(default=False, metadata=RUNTIME)

    @property
    def rates(self) -> dict[TrainPart, float]:
        """Full learning rate of each part."""
        return {"rows": self.lr_rows, "adapter": self.lr_adapter, "body": self.lr_backbone}


@dataclass(frozen=True, slots=True)
class TrainIntervals:
    """How often things are done, in steps, and when to stop early. No step depends on these."""

    log_every: int = 10
    valid_every: int = 250
    save_every: int = 500
    sample_every: int = 500
    listen_every: int = 0
    """Transcribe held-out texts every N steps; 0 disables it."""
    keep_last: int = 3
    patience: int = 0
    """Validations without improvement before training stops; 0 disables early stopping."""
    min_delta: float = 0.0
    """Minimum decrease of the loss that counts as an improvement."""
    min_steps: int = 0
    """First step at which early stopping may happen."""


# A field without a mark fails here, at import.
RESUME_RULES: dict[str, ResumeRule] = {one.name: one.metadata["resume"] for one in fields(TrainOptions)}


def options_with_rule(*rules: ResumeRule) -> tuple[str, ...]:
    """Names of the options that have one of these rules."""
    return tuple(name for name, rule in RESUME_RULES.items() if rule in rules)


# Old key -> new key, as in run.yaml or, with hyphens, as a flag. Old keys are refused; the error names the new one.
RENAMED_SETTINGS = {
    "train.row_rate": "train.lr_rows",
    "train.adapter_rate": "train.lr_adapter",
    "train.body_rate": "train.lr_backbone",
    "train.clip": "train.max_grad_norm",
    "train.final_share": "train.min_lr_ratio",
    "train.checkpointing": "train.gradient_checkpointing",
    "train.silent_share": "train.text_dropout",
    "train.tokens_per_step": "train.batch_tokens",
    "train.pack_tokens": "train.microbatch_tokens",
    "train.listener": "train.recognizer",
    "train.full_body": "train.full_backbone",
    "data.lone_clips": "data.single_clip_speakers",
    "evaluate.recogniser": "evaluate.recognizer",
    "recogniser": "recognizer",
    "listener": "recognizer",
    "grown": "extended",
    "most": "max_sentences",
    "anew": "force",
    "which": "variant",
    "as_in_the_seeds": "baseline",
}
# Format 1 had one option with the rates of all parts.
_RATES_BY_PART = {"rows": "lr_rows", "adapter": "lr_adapter", "body": "lr_backbone"}
_OLD_BASELINE, _BASELINE = "as-in-the-seeds", "masked-finetune"


def rename_saved_mode(mode: Any) -> Any:
    """The mode in a journal or a saved step, by today's name."""
    return _BASELINE if mode == _OLD_BASELINE else mode


def rename_saved_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Training options of a saved step or of a trained graft's card, by today's names."""
    renamed = {_new_option_name(name): value for name, value in options.items() if name != "rates"}
    if isinstance(rates := options.get("rates"), Mapping):
        renamed |= {new: rates[part] for part, new in _RATES_BY_PART.items() if part in rates}
    return {**renamed, "mode": rename_saved_mode(renamed["mode"])} if "mode" in renamed else renamed


def rename_saved_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a step of an older state format, with today's option names."""
    renamed = {_new_option_name(name): value for name, value in values.items()}
    identity = values.get("identity")
    if isinstance(identity, Mapping) and isinstance(options := identity.get("options"), Mapping):
        renamed["identity"] = {**identity, "options": rename_saved_options(options)}
    return renamed


def _new_option_name(name: str) -> str:
    """Options in a step have the names of the settings in `train`, without the section."""
    return RENAMED_SETTINGS.get(f"train.{name}", f"train.{name}").removeprefix("train.")
