"""Everything that a training run is made of, opened and fitted together: base, graft, data, options.

Decides what the settings leave open; trains nothing. The command is in `pipeline/train.py`.
"""

from __future__ import annotations

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
from voxgraft.core.families import FAMILIES
from voxgraft.core.run import RunFolder
from voxgraft.dataset.run_data import (
    DataRequirements,
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
from voxgraft.models.speech_model import HALF_PRECISION_DTYPES, choose_device
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.replay import SelfReplayBuilder, resolve_self_replay_count
from voxgraft.training.validation import RetentionBound

DEFAULTS = TrainOptions()
# Positions of a microbatch on a device whose memory is not measured.
MAX_DEFAULT_MICROBATCH_TOKENS = 8_192


@dataclass(frozen=True)
class TrainingSetup:
    """A run that is ready to be trained."""

    run: RunFolder
    settings: RunSettings
    family: Family
    files: BaseFiles
    graft: Graft
    text_encoder: TextEncoder
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
            # JSON has no tuples; a saved identity is compared with this one.
            "options": {
                name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.options).items()
            },
        }


def build_training_setup(
    run: RunFolder, settings: RunSettings, family: Family, files: BaseFiles, *, baseline: BaselineMode | None = None
) -> TrainingSetup:
    """Open a run's parts and decide what its settings leave open. Raises where a part cannot be opened.

    Self-made replay is generated here if it does not exist yet, so the run must be locked.
    """
    train_settings = settings.train
    mode: TrainModeOrBaseline = baseline or train_settings.mode
    graft = load_graft(run.graft)
    base = (family, files, open_tokenizer(files.tokenizer))
    wanted = DataRequirements.of(run, settings, graft, base, read_tensor_shapes(files.checkpoint))
    data = load_run_data(wanted, merged=mode == "merged", verify=False)  # `ShardVerifier` hashes it beside training
    if not data.all_sets_opened:
        raise_first_error(data.findings)

    device = choose_device(train_settings.device)
    on_cuda = device.startswith("cuda")
    precision: TrainPrecision = train_settings.precision or "float32"
    if on_cuda and train_settings.precision is None:
        # bfloat16 needs compute capability 8 (Ampere).
        precision = "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"

    # Replay that the base spoke itself: sets to learn from, and held-out ones. Not made for a run that is refused.
    learnt: tuple[ClipDataset, ...] = ()
    held_out: tuple[ClipDataset, ...] = ()
    count = resolve_self_replay_count(settings.data, mode)
    if count and data.can_train:
        require_batches_fit(wanted, data, replay_pending=mode == "merged")
        dtype = HALF_PRECISION_DTYPES.get(precision, torch.float32)
        replay = SelfReplayBuilder(
            run, settings.data, files, graft, wanted.text_encoder, wanted.base_frame, train_settings.seed
        )
        made, item = replay.load_or_generate(count, data.train, device, dtype)
        data.findings.append(item)
        to_learn, by_recording = split_self_replay(made)
        learnt = (to_learn,) if to_learn is not None and mode == "merged" else ()
        held_out = tuple(by_recording.values())

    train = (*data.train, *data.replay, *learnt)
    weights = compute_set_weights(data.train, train[len(data.train) :], settings.data.replay_share)
    family_defaults = resolve_family_defaults(train_settings, family)
    stream = build_sampler(settings, wanted.frame, train, weights, family_defaults["text_dropout"])
    if train_settings.microbatch_tokens is not None:
        require_clip_fits(stream.longest[0], train_settings.microbatch_tokens, f"clip {stream.longest[1]!r}")
    data.findings += sampling_findings(wanted, data, stream, learnt)

    decided: dict[str, Any] = {
        **family_defaults,
        "steps": resolve_num_steps(train_settings, stream),
        "microbatch_tokens": train_settings.microbatch_tokens
        or max(stream.longest[0], min(train_settings.batch_tokens, MAX_DEFAULT_MICROBATCH_TOKENS)),
        "precision": precision,
        "compile": on_cuda if train_settings.compile is None else train_settings.compile,
        "betas": DEFAULTS.betas,
        # Logits of at most so many positions exist at once; on a CPU one piece is faster.
        "chunk": 2_048 if on_cuda else None,
    }
    given = {name: getattr(train_settings, name) for name in RESUME_RULES if name not in decided}
    options = replace(TrainOptions(**given, **decided), mode=mode)
    data.findings += warmup_findings(train_settings, options.steps)

    valid: dict[str, tuple[ClipDataset, ...]] = {}
    for clips in (*data.measured, *held_out):
        valid[clips.header.language] = (*valid.get(clips.header.language, ()), clips)
    valid = {graft.card.language: data.valid, **valid}
    bound = None
    if mode == "merged":
        base_languages = frozenset(valid) - {wanted.language}
        replayed = len(train) > len(data.train)
        data.findings += retention_findings(replayed=replayed, measured=bool(base_languages))
        share = train_settings.retention_bound
        bound = RetentionBound(share, base_languages) if share is not None and base_languages else None
    return TrainingSetup(
        run,
        settings,
        family,
        files,
        graft,
        wanted.text_encoder,
        train,
        weights,
        valid,
        stream,
        options,
        TrainIntervals(**{one.name: getattr(train_settings, one.name) for one in fields(TrainIntervals)}),
        device,
        tuple(data.findings),
        bound,
        train_settings.interpolate,
    )


def resolve_family_defaults(train: TrainSettings, family: Family) -> dict[str, Any]:
    """Options that the settings leave open and that only the family, or another setting, decides."""
    text_weight, speech_weight = FAMILIES[family.name].loss_weights
    usual = {
        "alpha": float(train.rank),
        "text_weight": text_weight,
        "speech_weight": speech_weight,
        # Classifier-free guidance compares with and without text, so only families that use it train without text.
        "text_dropout": DEFAULTS.text_dropout if family.stock_sampling().guidance > 0 else 0.0,
    }
    return {name: value if (given := getattr(train, name)) is None else given for name, value in usual.items()}
