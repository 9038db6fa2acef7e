"""What a training run is made of and what it leaves: base, graft, data and options in; a graft or a checkpoint out.

It decides what the settings leave open; the command is `pipeline/train.py`. Training leaves the trained graft,
or one ordinary checkpoint of merged training with a card of its costs. The masked-finetune baseline leaves a checkpoint
too, in a folder of its own, under its own label. Every folder is written completely or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxgraft.checkpoints.load import read_tensor_shapes, read_tensors
from voxgraft.checkpoints.steps import TrainState, load_step
from voxgraft.checkpoints.write import write_rows_file
from voxgraft.config.run import RunSettings, TrainSettings
from voxgraft.config.train_options import (
    RESUME_RULES,
    BaselineMode,
    TrainIntervals,
    TrainModeOrBaseline,
    TrainOptions,
    TrainPrecision,
)
from voxgraft.core.errors import Finding, finding, raise_first_error
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import atomic_write, atomic_write_folder, compute_sha256, write_json, write_text
from voxgraft.core.languages import find_exemplar
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
from voxgraft.graft.folder import (
    ADAPTER_NAME,
    BASELINE_FOLDER_NAME,
    MASKED_BASELINE_LABEL,
    MERGED_CARD_NAME,
    MERGED_FOLDER_NAME,
    MERGED_FORMAT,
    README_NAME,
    ROWS_NAME,
    Graft,
    collect_versions,
    format_graft_readme,
    hash_adapter_files,
    load_graft,
    write_graft_card,
)
from voxgraft.models.base import BaseFiles, Family
from voxgraft.models.speech_model import (
    HALF_PRECISION_DTYPES,
    SpeechModel,
    choose_device,
    grow_model,
    load_model,
    save_model,
)
from voxgraft.nn.adapter import add_adapter, load_adapter_state, merge_adapter, write_peft_folder
from voxgraft.nn.rows import load_new_rows
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.replay import SelfReplayBuilder, resolve_self_replay_count
from voxgraft.training.trainer import Trainer, TrainOutcome
from voxgraft.training.validation import (
    AsrErrorFunction,
    InterpolationPoint,
    RetentionBound,
    WeightInterpolator,
    choose_interpolation_point,
    interpolate_tensor,
    measure_interpolation_points,
)

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
    intervals: TrainIntervals
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
    def kl_sets(self) -> frozenset[int]:
        """Sets on which the model is held near the base."""
        return self.replay if self.options.kl_weight > 0 else frozenset()

    @property
    def unscored(self) -> frozenset[int]:
        """Sets that the base made itself: held near the base there, the model has nothing else to learn from them."""
        return frozenset(at for at in self.kl_sets if is_self_replay(self.train[at]))

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
    requirements = DataRequirements.of(run, settings, graft, base, read_tensor_shapes(files.checkpoint))
    data = load_run_data(
        requirements, merged=mode == "merged", verify=False
    )  # `ShardVerifier` hashes it beside training
    if not data.all_sets_opened:
        raise_first_error(data.findings)

    device = choose_device(train_settings.device, "train.device")
    on_cuda = device.startswith("cuda")
    precision: TrainPrecision = train_settings.precision or "float32"
    if on_cuda and train_settings.precision is None:
        # bfloat16 needs compute capability 8 (Ampere).
        precision = "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"

    # Replay that the base spoke itself: sets to learn from, and held-out ones. Not made for a run that is refused.
    train_replay: tuple[ClipDataset, ...] = ()
    held_out: tuple[ClipDataset, ...] = ()
    count = resolve_self_replay_count(settings.data, mode)
    if count and data.can_train:
        require_batches_fit(requirements, data, replay_pending=mode == "merged")
        dtype = HALF_PRECISION_DTYPES.get(precision, torch.float32)
        replay = SelfReplayBuilder(
            run, settings.data, files, graft, requirements.text_encoder, requirements.base_spec, train_settings.seed
        )
        self_replay, item = replay.load_or_generate(count, data.train, device, dtype)
        data.findings.append(item)
        train_part, by_recording = split_self_replay(self_replay)
        train_replay = (train_part,) if train_part is not None and mode == "merged" else ()
        held_out = tuple(by_recording.values())

    train = (*data.train, *data.replay, *train_replay)
    weights = compute_set_weights(data.train, train[len(data.train) :], settings.data.replay_share)
    family_defaults = resolve_family_defaults(train_settings, family)
    stream = build_sampler(settings, requirements.spec, train, weights, family_defaults["text_dropout"])
    if train_settings.microbatch_tokens is not None:
        require_clip_fits(stream.longest[0], train_settings.microbatch_tokens, f"clip {stream.longest[1]!r}")
    data.findings += sampling_findings(requirements, data, stream, train_replay)

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
        base_languages = frozenset(valid) - {requirements.language}
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
        requirements.text_encoder,
        train,
        weights,
        valid,
        stream,
        options,
        TrainIntervals(**{field.name: getattr(train_settings, field.name) for field in fields(TrainIntervals)}),
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
        "text_dropout": DEFAULTS.text_dropout if family.upstream_sampling().guidance > 0 else 0.0,
    }
    return {name: value if (given := getattr(train, name)) is None else given for name, value in usual.items()}


@dataclass(frozen=True, slots=True)
class MergedCheckpoint:
    """A merged checkpoint: where it is, the step and the point that it was made of, and all points that were tried."""

    folder: Path
    step: int
    point: InterpolationPoint
    points: tuple[InterpolationPoint, ...]
    first: dict[str, float]
    """Held-out speech losses of the base, before training."""


def write_merged_folder(
    setup: TrainingSetup, loop: Trainer, outcome: TrainOutcome, asr_error: AsrErrorFunction | None = None
) -> MergedCheckpoint:
    """Measure points between the base and the best step, and write the chosen one. All processes call it; one writes.

    With `asr_error`, the error of a recognizer decides between the points.
    """
    step = outcome.best_state.best_step or outcome.step
    first = outcome.best_state.first
    state = load_step(setup.run, step).state
    trained = loop.stepper.trained
    trained.restore(state.tensors)
    is_baseline = setup.options.mode == "masked-finetune"
    if is_baseline:  # written as it is; merged training is also tried in part
        losses = {name: validation.run().speech_loss for name, validation in loop.validations.items()}
        points = [InterpolationPoint(1.0, losses, {})]
    else:
        # A body that was trained itself is interpolated between the base's own values and the trained ones.
        shapes = {name: tuple(value.shape) for name, value in trained.parameters.get("body", {}).items()}
        base_body = read_tensors(setup.files.checkpoint, shapes) if shapes else {}

        def exceeded(losses: Mapping[str, float]) -> dict[str, float]:
            return setup.bound.exceeded(first, losses) if setup.bound else {}

        points = measure_interpolation_points(
            WeightInterpolator(trained, base_body), loop.validations, setup.interpolate, exceeded, asr_error
        )
    chosen = choose_interpolation_point(points)
    for point in points:
        loop.write("interpolation", outcome.step, **point.to_json(), chosen=point is chosen)
    if chosen.exceeded:
        rises = ", ".join(f"{name} by {100 * rise:.1f} %" for name, rise in chosen.exceeded.items())
        item = finding(
            "point-past-bound",
            f"interpolation weight {chosen.share:g} (0: base, 1: trained) raises the loss of {rises}",
        )
        loop.write("finding", outcome.step, **item.to_json())
    folder = setup.run.path / (BASELINE_FOLDER_NAME if is_baseline else MERGED_FOLDER_NAME)
    merged = MergedCheckpoint(folder, step, chosen, tuple(points), first)
    if loop.first:
        model = _build_merged_model(setup, state, chosen.share)
        own, checkpoint = setup.graft.card, setup.files.checkpoint.name
        with atomic_write_folder(folder) as new:
            save_model(model, new / checkpoint)
            with atomic_write(new / own.tokenizer) as stream:
                stream.write(setup.graft.tokenizer.data)
            card = {
                "format": MERGED_FORMAT,
                "label": MASKED_BASELINE_LABEL if is_baseline else "",
                "keeps_base_rows": not is_baseline,
                "family": own.family,
                "language": own.language,
                "tag": own.tag,
                "text": own.text,
                "num_rows": own.num_rows,
                "base": own.base,
                "checkpoint": checkpoint,
                "checkpoint_sha256": compute_sha256(new / checkpoint),
                "tokenizer": own.tokenizer,
                "tokenizer_sha256": compute_sha256(new / own.tokenizer),
                "step": step,
                "share": chosen.share,
                "speech_losses_before": first,
                "points": [point.to_json() for point in points],
                "trained": setup.identity["options"],
                "licence": own.licence,
                "versions": {**collect_versions(), "torch": torch.__version__},
            }
            write_json(new / MERGED_CARD_NAME, card)
            write_text(new / README_NAME, _format_merged_readme(setup, merged))
    return merged


@torch.no_grad()
def _build_merged_model(setup: TrainingSetup, state: TrainState, share: float) -> SpeechModel:
    """The base as it is stored, with its tables extended and a share of the training in its body."""
    model = load_model(setup.family, setup.files, dtype=None)
    grow_model(model, setup.graft.card.num_rows)
    rows, body, options = state.tensors.get("rows"), state.tensors.get("body"), setup.options
    if rows:
        load_new_rows(model, rows)
    if "adapter" in state.tensors:
        # LoRA's output is proportional to alpha, so a share of the training is a share of alpha.
        add_adapter(model, model.adapter_layers(), options.rank, options.alpha * share, options.seed)
        load_adapter_state(model, state.tensors["adapter"])
        merge_adapter(model)
    if body:
        # Training in half precision started from rounded values; only what it added to those is taken.
        half = HALF_PRECISION_DTYPES.get(options.precision, torch.float32)
        model.load_state_dict(
            {
                name: interpolate_tensor(value, value.to(half), body[name], share) if name in body else value
                for name, value in model.state_dict().items()
            }
        )
    return model


def _format_merged_readme(setup: TrainingSetup, merged: MergedCheckpoint) -> str:
    card = setup.graft.card
    is_baseline = setup.options.mode == "masked-finetune"
    lines = [f"# {card.language} in {card.family}, {'for comparison' if is_baseline else 'merged'}", ""]
    if is_baseline:
        lines += [
            f"**Trained {MASKED_BASELINE_LABEL}.** Its rows and backbone differ from the base.",
            "",
        ]
    lines += [
        f"One ordinary checkpoint, from step {merged.step:,}, interpolated with weight {merged.point.share:g} "
        f"from the backbone of {card.base['checkpoint']} (sha256 {card.base['checkpoint_sha256'][:12]}).",
        "",
    ]
    if merged.point.losses:
        lines += ["| language | speech loss before | now |", "| --- | --- | --- |"]
        for name, loss in merged.point.losses.items():
            before = f"{merged.first[name]:.4f} " if name in merged.first else ""
            lines.append(f"| {name} | {before}| {loss:.4f} |")
        lines.append("")
    return "\n".join([*lines, "## Licence of the base", "", card.licence]) + "\n"


def is_graft_current(setup: TrainingSetup, outcome: TrainOutcome) -> bool:
    """Whether the graft that was opened is already what this training leaves."""
    state = load_step(setup.run, outcome.best_state.best_step or outcome.step).state
    rows = {name: values.float().cpu().numpy() for name, values in state.tensors["rows"].items()}
    same_rows = all(np.array_equal(values, setup.graft.rows[name]) for name, values in rows.items())
    same_parts = (setup.graft.card.adapter is not None) == ("adapter" in state.tensors)
    trained = {"step": state.step, **state.values["identity"]["options"]}
    return same_rows and same_parts and setup.graft.card.method.get("trained") == trained


def write_trained_graft(setup: TrainingSetup, loop: Trainer, outcome: TrainOutcome) -> Path:
    """Replace the graft by that of the best step, or of the last where none is better. The old one is kept beside."""
    state = load_step(setup.run, outcome.best_state.best_step or outcome.step).state
    trained = loop.stepper.trained
    trained.restore(state.tensors)
    card, folder = setup.graft.card, setup.run.graft
    options = state.values["identity"]["options"]  # those that the step was made with, which may not be today's
    method: dict[str, Any] = {**card.method, "trained": {"step": state.step, **options}}
    with atomic_write_folder(folder) as new:
        with atomic_write(new / card.tokenizer) as stream:
            stream.write(setup.graft.tokenizer.data)
        note = {"family": card.family, "language": card.language, "base_sha256": card.base["checkpoint_sha256"]}
        rows = {name: values.float().cpu().numpy() for name, values in state.tensors["rows"].items()}
        write_rows_file(new / ROWS_NAME, rows, note)
        if "adapter" in state.tensors:
            write_peft_folder(new / ADAPTER_NAME, trained.model, base_name=card.family)
        card = replace(
            card,
            rows_sha256=compute_sha256(new / ROWS_NAME),
            adapter=hash_adapter_files(new),
            method=method,
            versions={**collect_versions(), "torch": torch.__version__},
        )
        write_graft_card(new, card)
        entry = find_exemplar(card.language)
        write_text(new / README_NAME, format_graft_readme(card, entry.name if entry else card.language, []))
    return folder
