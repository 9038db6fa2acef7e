"""Everything that a training run is made of, opened and fitted together: base, graft, data, options.

Decides what the settings left open; trains nothing. `train.py` is the verb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from voxgraft.checkpoints.tensors import read_tensor_shapes
from voxgraft.config.run import RunSettings, TrainSettings
from voxgraft.config.train_options import (
    RESUME_RULES,
    BaselineMode,
    TrainIntervals,
    TrainModeOrBaseline,
    TrainOptions,
    TrainPrecision,
)
from voxgraft.core.errors import Finding, raise_first_error
from voxgraft.core.run import RunFolder
from voxgraft.dataset.run_data import (
    DataRequirements,
    RunData,
    build_sampler,
    compute_set_weights,
    is_self_replay,
    load_run_data,
    require_batches_fit,
    resolve_num_steps,
    retention_findings,
    sampling_findings,
    split_self_replay,
    warmup_findings,
)
from voxgraft.dataset.sampler import DeterministicSampler, require_clip_fits
from voxgraft.dataset.shards import ClipDataset
from voxgraft.graft.folder import Graft, load_graft
from voxgraft.models.base import BaseFiles, Family
from voxgraft.models.load import HALF_PRECISION_DTYPES, choose_device
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.options import RetentionBound
from voxgraft.training.replay import SelfReplayBuilder, resolve_self_replay_count

__all__ = ["TrainingSetup", "build_training_setup", "resolve_family_defaults"]

DEFAULTS = TrainOptions()


@dataclass(frozen=True)
class TrainingSetup:
    """A run that is ready to be trained."""

    run: RunFolder
    settings: RunSettings
    family: Family
    files: BaseFiles
    graft: Graft
    spelling: TextEncoder
    train: tuple[ClipDataset, ...]
    """Sets of the new language, then those of replay."""
    weights: tuple[float, ...]
    valid: dict[str, tuple[ClipDataset, ...]]
    """Held-out sets by language, the new one first."""
    stream: DeterministicSampler
    options: TrainOptions
    every: TrainIntervals
    device: str
    findings: tuple[Finding, ...]
    """What is wrong with the data, or worth knowing."""
    bound: RetentionBound | None
    """What merged training may cost the base languages that are measured."""
    interpolate: tuple[float, ...]
    """Shares of merged training that are tried at its end."""

    @property
    def replay(self) -> frozenset[int]:
        """Which of the training sets are of base languages."""
        own = self.graft.card.language
        return frozenset(at for at, clips in enumerate(self.train) if clips.header.language != own)

    @property
    def near(self) -> frozenset[int]:
        """Sets on which the model is held near the base."""
        return self.replay if self.options.kl_weight > 0 else frozenset()

    @property
    def unscored(self) -> frozenset[int]:
        """Sets that the base made itself: held near the base there, the model has nothing else to learn from them."""
        return frozenset(at for at in self.near if is_self_replay(self.train[at]))

    @property
    def identity(self) -> dict[str, Any]:
        """What a saved step belongs to, as JSON gives it back."""
        return {
            "family": self.family.name,
            "language": self.graft.card.language,
            "base_sha256": self.graft.card.base["checkpoint_sha256"],
            "tokenizer_sha256": self.graft.card.tokenizer_sha256,
            "num_rows": self.graft.card.num_rows,
            "sets": {clips.name: clips.fingerprint for clips in self.train},
            "held_out": {clips.name: clips.fingerprint for clips in self.valid[self.graft.card.language]},
            "options": _tuples_to_lists(asdict(self.options)),
        }


def build_training_setup(
    run: RunFolder, settings: RunSettings, family: Family, files: BaseFiles, *, baseline: BaselineMode | None = None
) -> TrainingSetup:
    """Open a run's parts and decide what its settings left open. What cannot be opened is refused.

    Replay that the base makes itself is made here if it is not there yet, so the run must be locked.
    """
    mode: TrainModeOrBaseline = baseline or settings.train.mode
    graft = load_graft(run.graft)
    base = (family, files, open_tokenizer(files.tokenizer))
    wanted = DataRequirements.of(run, settings, graft, base, read_tensor_shapes(files.checkpoint))
    data = load_run_data(wanted, merged=mode == "merged", verify=False)  # `ShardVerifier` reads them beside training
    if not data.all_sets_opened:
        raise_first_error(data.findings)
    device = choose_device(settings.train.device)
    learnt, held_out = _prepare_self_replay(wanted, data, mode, files, device)
    train = (*data.train, *data.replay, *learnt)
    weights = compute_set_weights(data.train, train[len(data.train) :], settings.data.replay_share)
    text_dropout = resolve_family_defaults(settings.train, family)["text_dropout"]
    stream = build_sampler(settings, wanted.frame, train, weights, text_dropout)
    if settings.train.microbatch_tokens is not None:
        require_clip_fits(stream.longest[0], settings.train.microbatch_tokens, f"clip {stream.longest[1]!r}")
    data.findings += sampling_findings(wanted, data, stream, learnt)
    options = replace(_build_train_options(settings.train, family, stream, device), mode=mode)
    data.findings += warmup_findings(settings.train, options.steps)
    by_language = {graft.card.language: data.valid, **_group_by_language((*data.measured, *held_out))}
    bound = _build_retention_bound(wanted, data, mode, frozenset(by_language), replayed=len(train) > len(data.train))
    return TrainingSetup(
        run,
        settings,
        family,
        files,
        graft,
        wanted.spelling,
        train,
        weights,
        by_language,
        stream,
        options,
        TrainIntervals(**{one.name: getattr(settings.train, one.name) for one in fields(TrainIntervals)}),
        device,
        tuple(data.findings),
        bound,
        settings.train.interpolate,
    )


def _group_by_language(sets: Sequence[ClipDataset]) -> dict[str, tuple[ClipDataset, ...]]:
    found: dict[str, tuple[ClipDataset, ...]] = {}
    for clips in sets:
        language = clips.header.language
        found[language] = (*found.get(language, ()), clips)
    return found


def _prepare_self_replay(
    wanted: DataRequirements, data: RunData, mode: TrainModeOrBaseline, files: BaseFiles, device: str
) -> tuple[tuple[ClipDataset, ...], tuple[ClipDataset, ...]]:
    """What the base said itself: sets to learn from, and held-out ones. Not made for a run that will be refused."""
    settings = wanted.settings
    count = resolve_self_replay_count(settings.data, mode)
    if not count or not data.can_train:
        return (), ()
    require_batches_fit(wanted, data, replay_pending=mode == "merged")
    dtype = HALF_PRECISION_DTYPES.get(settings.train.precision or _default_precision(device), torch.float32)
    graft, spelling, frame = wanted.graft, wanted.spelling, wanted.base_frame
    replay = SelfReplayBuilder(wanted.run, settings.data, files, graft, spelling, frame, settings.train.seed)
    made, item = replay.load_or_generate(count, data.train, device, dtype)
    data.findings.append(item)
    learnt, held_out = split_self_replay(made)
    return (learnt,) if learnt is not None and mode == "merged" else (), tuple(held_out.values())


def _build_retention_bound(
    wanted: DataRequirements, data: RunData, mode: TrainModeOrBaseline, measured: frozenset[str], *, replayed: bool
) -> RetentionBound | None:
    """What base languages may lose in merged mode; says so where nothing protects or measures them."""
    share, languages = wanted.settings.train.retention_bound, measured - {wanted.language}
    if mode != "merged":
        return None
    data.findings += retention_findings(replayed=replayed, measured=bool(languages))
    return RetentionBound(share, languages) if share is not None and languages else None


def resolve_family_defaults(train: TrainSettings, family: Family) -> dict[str, Any]:
    """Options that the settings leave open and that only the family, or another setting, decides."""
    text_weight, speech_weight = family.loss_weights
    text_dropout = DEFAULTS.text_dropout if family.stock_sampling().guidance > 0 else 0.0
    usual = {
        "alpha": float(train.rank),
        "text_weight": text_weight,
        "speech_weight": speech_weight,
        "text_dropout": text_dropout,
    }
    return {name: value if (given := getattr(train, name)) is None else given for name, value in usual.items()}


def _build_train_options(
    train: TrainSettings, family: Family, stream: DeterministicSampler, device: str
) -> TrainOptions:
    """Every option: as the settings have it, or decided by family, data and device where they leave it open."""
    on_cuda = device.startswith("cuda")
    decided: dict[str, Any] = {
        **resolve_family_defaults(train, family),
        "steps": resolve_num_steps(train, stream),
        "microbatch_tokens": train.microbatch_tokens or max(stream.longest[0], min(train.batch_tokens, 8_192)),
        "precision": train.precision or _default_precision(device),
        "compile": on_cuda if train.compile is None else train.compile,
        "betas": DEFAULTS.betas,
        "chunk": 2_048 if on_cuda else None,
    }
    given = {name: getattr(train, name) for name in RESUME_RULES if name not in decided}
    return TrainOptions(**given, **decided)


def _default_precision(device: str) -> TrainPrecision:
    if not device.startswith("cuda"):
        return "float32"
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"


def _tuples_to_lists(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
