"""The stages of `go`: whether each has to run, why, and how it is run.

A stage decides only by files in the run: hashes, fingerprints and the journal. Nothing remembers what `go` did before.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from voxgraft.checkpoints.load import read_tensor_shapes
from voxgraft.checkpoints.steps import StepFolder, find_step_damage, list_step_folders, read_step_values
from voxgraft.config.base import AnySettings, deep_merge, parse_settings, read_settings_values
from voxgraft.config.commands import (
    CheckSettings,
    EvaluateSettings,
    ExportKind,
    ExportSettings,
    GoSettings,
    GraftSettings,
    PrepareSettings,
    StageName,
    TrainCommandSettings,
)
from voxgraft.config.data import DataImportSettings, DataSplitSettings
from voxgraft.config.run import RunSettings, TrainSettings, load_command_settings
from voxgraft.config.train_options import RESUME_RULES, options_with_rule
from voxgraft.core.errors import ConfigError, GraftError, VoxgraftError, raise_first_error
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import compute_sha256, is_file, is_folder, path_exists, read_json
from voxgraft.core.results import CommandResult, format_names, pluralize
from voxgraft.core.run import History, RunFolder, RunJournal, missing_run_error
from voxgraft.data.folder import PROBLEMS_FILE, DatasetFolder
from voxgraft.data.import_command import (
    ReimportPolicy,
    build_import_options,
    build_reimport_policy,
    compute_import_loss,
    data_import,
    preview_import,
)
from voxgraft.data.manifest import ROLE_BY_SPLIT, resolve_manifest_path, select_clips
from voxgraft.data.sources import find_sources
from voxgraft.data.split import DataSplitResult, data_split, split_remaining_clips
from voxgraft.dataset.run_data import (
    DEFAULT_STEPS,
    DataRequirements,
    build_sampler,
    check_clip_texts,
    compute_set_weights,
    load_run_data,
    open_run_context,
    provenance_findings,
    resolve_num_steps,
)
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.dataset.shards import ClipDataset, read_dataset_index
from voxgraft.evaluation.command import evaluate
from voxgraft.evaluation.report import SCORES_NAME
from voxgraft.evaluation.sentences import load_sentence_sets
from voxgraft.export.command import ExportResult, choose_export_kind, export
from voxgraft.export.share import EXPORT_CARD_NAME, read_terms
from voxgraft.graft.command import GraftResult, graft, other_graft_error
from voxgraft.graft.folder import (
    GRAFT_CARD_NAME,
    MERGED_CARD_NAME,
    MERGED_FOLDER_NAME,
    ROWS_NAME,
    TEXT_FOLDER,
    TEXT_RULES_NAME,
    GraftCard,
    add_pronunciations,
    load_graft,
    parse_text_rules,
    read_graft_card,
    read_merged_card,
)
from voxgraft.inspect.check import check
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.pipeline.train import train
from voxgraft.preprocess.command import (
    CACHE_INDEX_NAME,
    compute_file_stamp,
    is_one_of,
    list_foreign_voices,
    prepare,
    read_cache_index,
)
from voxgraft.synthesis.engine import detect_trained_output
from voxgraft.text.encoder import text_rules_identity
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.setup import resolve_family_defaults
from voxgraft.training.trainer import FIXED_IDENTITY_LABELS

# `go` prints one of these for each stage, and the web UI reads them in its log.
STAGE_STARTING, STAGE_SKIPPED = "starting", "skipped"


@dataclass(frozen=True, slots=True)
class StageDecision:
    """Whether a stage runs, and the reason that is shown to the user."""

    runs: bool
    why: str
    was: str = ""
    """The same reason once the stage is done; empty where `why` is true then as well."""
    is_stale: bool = False
    """Whether it ran before, and its result is out of date; only with `runs`."""
    has_input: bool = True
    """False where there is nothing that the stage could work on."""


class PipelineContext:
    """A run as it is at this moment, and the settings of `go`."""

    def __init__(self, settings: GoSettings) -> None:
        self.go_settings, self.run = settings, RunFolder(settings.run)
        if not is_file(self.run.settings):
            raise missing_run_error(self.run.path)
        # Read at once, so that an unreadable run.yaml is reported before anything runs. Flags win over the file.
        values = deep_merge(read_settings_values(RunSettings, self.run.settings), settings.given)
        self.settings = parse_settings(RunSettings, values, self.run.settings)

    def command_settings(self, kind: type[AnySettings], **flags: Any) -> AnySettings:
        """A command's settings as its command line would have them, with what `go` was given."""
        return load_command_settings(kind, self.run, **self.go_settings.given, **flags)

    @property
    def language(self) -> str:
        if self.settings.language is None:
            raise ConfigError("config-missing", "`language` is not given", where=self.run.settings)
        return self.settings.language

    @property
    def card(self) -> GraftCard | None:
        """What the run's graft says of itself; None where there is none yet."""
        return read_graft_card(self.run.graft) if is_file(self.run.graft / GRAFT_CARD_NAME) else None

    @property
    def last_step(self) -> StepFolder | None:
        """The newest saved step that is whole, by its sizes."""
        # By sizes alone: hashing gigabytes of steps would make every call of `go` slow.
        whole = (
            folder for folder in reversed(list_step_folders(self.run)) if find_step_damage(folder, quick=True) is None
        )
        return next(whole, None)

    def changed(self, what: str) -> StageDecision:
        """A trained run asks for something else now: --when-changed says what is done about it."""
        if self.go_settings.when_changed == "stop":
            found = f"the run is trained already, and {what}"
            raise GraftError("trained-otherwise", found, where=self.run.path)
        flag = f"(--when-changed {self.go_settings.when_changed})"
        if self.go_settings.when_changed == "keep":
            return StageDecision(False, f"{what}; kept as it is {flag}")
        return StageDecision(True, f"{what}; starts over {flag}", f"{what}; started over {flag}", is_stale=True)


def resolve_dataset(work: PipelineContext) -> DatasetFolder:
    """The dataset of a run: the one that its run.yaml names, or its own data folder."""
    named = work.settings.data.dataset
    return DatasetFolder(work.run.data if named is None else resolve_manifest_path(named, work.run.data).parent)


def _decide_import(work: PipelineContext) -> StageDecision:
    """Sources are needed for what is still to be imported: clips of sources that are gone can still be used."""
    source_paths, dataset = work.settings.data.sources, resolve_dataset(work)
    if not source_paths:
        return StageDecision(False, "run.yaml has no data.sources", has_input=dataset.has_manifest)
    missing_paths = [path for path in source_paths if not path_exists(path)]
    used = sum(clip.is_used for clip in dataset.clips())
    missing = f"note: sources are missing ({format_names([str(path) for path in missing_paths])})"
    there = f"{pluralize(used, 'clip')} in {dataset.folder}"
    settings, policy = _import_settings(work)
    try:
        existing_paths = source_paths if not used else [path for path in source_paths if path not in missing_paths]
        sources, unused = find_sources(existing_paths, work.language, encoding=settings.encoding)
    except VoxgraftError as error:
        if not used:
            raise
        return StageDecision(False, f"{f'note: {error.finding.found}' if existing_paths else missing}; {there}")
    if not dataset.has_manifest:
        summary = f"{pluralize(len(sources), 'source')} with texts, and"
        return StageDecision(True, f"{summary} no clips yet", f"{summary} there were no clips yet")
    waiting = preview_import(dataset, sources, build_import_options(settings), policy)
    if waiting.new:
        names = format_names(waiting.new)
        return StageDecision(True, f"not imported yet: {names}", f"was not imported yet: {names}", is_stale=True)
    if waiting.again:
        return StageDecision(True, f"imported again (--reimport): {format_names(waiting.again)}", is_stale=True)
    if waiting.damaged:
        files = f"{pluralize(len(waiting.damaged), 'clip file')} missing or damaged: {format_names(waiting.damaged)}"
        return StageDecision(True, files, is_stale=True)
    if waiting.problems:
        return StageDecision(True, waiting.problems[0].found, is_stale=True)
    if not used:
        return StageDecision(True, "no clip can be used yet", "no clip could be used")
    lost_share, lost = compute_import_loss(dataset.journals(), unused)
    if lost_share > settings.max_left_out:
        return StageDecision(True, lost)
    notes = [missing, there] if missing_paths else [there]
    if waiting.kept:
        notes.append(f"kept as it is (--when-changed keep): {waiting.kept[0].found}")
    notes += [note.found for note in waiting.notes]
    if waiting.failed:
        notes.append(f"could not be imported (see {dataset.folder / PROBLEMS_FILE}): {format_names(waiting.failed)}")
    return StageDecision(False, "; ".join(notes))


def _import_settings(work: PipelineContext) -> tuple[DataImportSettings, ReimportPolicy]:
    """Settings of `data import` for this run, and what it does about sources that have changed since."""
    data, base = work.settings.data, work.settings.base
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", where=work.run.settings)
    values = {
        "dataset": resolve_dataset(work).folder,
        "sources": tuple(path for path in data.sources if path_exists(path)) or data.sources,
        "language": work.language,
        "family": resolve_base_family(resolve_base_folder(base), work.settings.family).name,
        "reimport": work.go_settings.reimport,
        "max_left_out": data.max_left_out,
    }
    # Only what run.yaml says differently from the defaults: clips that were imported by hand have options of their own.
    overrides = {"speaker": data.speaker, "speaker_from": data.speaker_from, "encoding": data.encoding}
    values |= {name: value for name, value in overrides.items() if value not in (None, "auto")}
    if work.settings.tokenizer.fold_homophones:
        values["fold_homophones"] = True
    settings = DataImportSettings.model_validate(values)
    again = f"`voxgraft go {shlex.quote(str(work.run.path))}"
    cure = (
        f"{again} --reimport` imports it again; clips that stay the same keep their ids and splits. "
        f"{again} --when-changed keep` uses the clips as they are."
    )
    keep, policy = work.go_settings.when_changed == "keep", build_reimport_policy(settings)
    # A clip that a user edited stays as it is, unless everything is to be imported again.
    return settings, replace(policy, keep=keep, cure=cure, verify=policy.changed)


def _decide_split(work: PipelineContext) -> StageDecision:
    dataset = resolve_dataset(work)
    if not dataset.has_manifest:
        return StageDecision(False, "there are no clips to split", has_input=False)
    own = [clip for clip in dataset.clips() if clip.is_used and clip.language == work.language]
    # Clips of other languages in the same dataset are no part of this run.
    without = sum(clip.split is None for clip in own)
    if without:
        summary = f"{without:,} of {pluralize(len(own), 'clip')}"
        is_stale = without < len(own)
        return StageDecision(True, f"{summary} have no split yet", f"{summary} had no split yet", is_stale=is_stale)
    if not own:
        return StageDecision(False, "there are no clips to split", has_input=False)
    return StageDecision(False, f"all {pluralize(len(own), 'usable clip')} have a split")


def _run_split(work: PipelineContext) -> DataSplitResult:
    # A clip keeps its side: one that was trained on must never become one that judges.
    dataset = resolve_dataset(work)
    own = [clip for clip in dataset.clips() if clip.is_used and clip.language == work.language]
    if any(clip.split is not None for clip in own):
        return split_remaining_clips(dataset.folder)
    return data_split(DataSplitSettings(dataset=dataset.folder))


def _decide_prepare(work: PipelineContext) -> StageDecision:
    data, dataset = work.settings.data, resolve_dataset(work)
    if data.train and data.valid:
        return StageDecision(False, "run.yaml gives its sets (data.train, data.valid)")
    # Sets that run.yaml does not name lie in the run and are made by `prepare`.
    missing = [name for name in ROLE_BY_SPLIT.values() if not is_folder(work.run.data_set(name))]
    if missing:
        names = " and ".join(missing)
        return StageDecision(True, f"no encoded clips for {names} yet", f"there were no encoded clips for {names} yet")
    if not dataset.has_manifest:
        return StageDecision(False, "the sets exist, and there are no clips to prepare them from")
    why = _why_sets_stale(work, dataset.manifest)
    fresh = "the encoded clips are up to date with the dataset and the tokenizer"
    return StageDecision(bool(why), why or fresh, is_stale=bool(why))


def _why_sets_stale(work: PipelineContext, manifest: Path) -> str:
    """Why the sets are not those that the manifest, the sounds and the tokenizer would make; empty if they are."""
    card, ledger = work.card, read_cache_index(work.run.data / CACHE_INDEX_NAME)
    chosen, _ = select_clips(manifest, work.language)
    for split, role in ROLE_BY_SPLIT.items():
        try:
            prepared = open_clip_dataset(work.run.data_set(role))
        except VoxgraftError as error:
            return error.finding.found
        source = prepared.header.made_from
        if card is not None and source.tokenizer_sha256 != card.tokenizer_sha256:
            return f"{role} was encoded with another tokenizer"
        if card is not None and source.text != text_rules_identity(card.rules):
            return f"{role} was normalized with other text rules"
        if card is not None and source.base_sha256 != card.base["checkpoint_sha256"]:
            return f"{role} was prepared for another base"
        if ledger.sets.get(role) != prepared.fingerprint:
            return f"{role} was changed after `prepare` wrote it"
        if _has_foreign_voices(work, prepared):
            return f"{role} has a voice of the base in place of the voices of its clips"
        infos = {info.id: (info.text, info.speaker, info.recording) for info in prepared.infos}
        expected = [clip for clip in chosen if clip.split == split]
        for clip in expected:
            record, path = ledger.clips.get(clip.id), clip.resolve_audio(manifest.parent)
            if record is None or record.audio != clip.audio:
                return f"{role}: {clip.id} was added later"
            # By content, since a copied file has another time. A sound that is gone is known by its codes.
            if is_file(path):
                stamp = record.file
                same_size = stamp is not None and path.stat().st_size == stamp[0]
                now = compute_file_stamp(path, stamp) if same_size else None
                if stamp is None or now is None or now[2] != stamp[2]:
                    return f"{role}: the audio of {clip.id} changed"
            if record.left_out is None and infos.get(clip.id) != (clip.text, clip.speaker, clip.recording):
                return f"{role}: {clip.id} got another text, speaker or recording"
        if removed := infos.keys() - {clip.id for clip in expected}:
            return f"{role}: {format_names(sorted(removed))} was removed"
    return ""


def _has_foreign_voices(work: PipelineContext, prepared: ClipDataset) -> bool:
    """Whether an earlier version gave the clips voices of the base, although it learns from each in its own voice."""
    base = work.settings.base
    if base is None or not len(prepared):
        return False
    # Two recordings never have the same arrays, so most sets need not be compared with the base, which takes longer.
    first, speaker = prepared.voice(0), prepared.infos[0].speaker
    twin = next((at for at in range(1, len(prepared)) if prepared.infos[at].speaker == speaker), None)
    if twin is not None and not is_one_of(prepared.voice(twin), [first]):
        return False
    folder = resolve_base_folder(base)
    family = resolve_base_family(folder, work.settings.family)
    return is_one_of(first, list_foreign_voices(family, family.files(folder)))


COMPARED_OPTIONS = tuple(
    name
    for name in options_with_rule("fixed", "schedule", "learning")
    if name in TrainSettings.model_fields and name != "steps"
)
"""Settings that a finished training depends on. Whether steps are left is determined separately."""


def _decide_graft(work: PipelineContext) -> StageDecision:
    card, step = work.card, work.last_step
    has_steps = step is not None and step.step > 0
    if card is None and not is_file(work.run.graft / ROWS_NAME):
        return StageDecision(True, "no graft yet", "there was no graft yet")
    changed: list[str] = []
    is_whole, settings = False, work.command_settings(GraftSettings)
    if card is not None:
        # The same findings that `check` reports: texts, settings or base differ from what the card was written with.
        with open_run_context(settings, settings.run) as context:
            changed = [item.found for item in provenance_findings(context)]
            is_whole = context.graft is not None
    # Some training would be lost with another graft.
    is_trained = has_steps or (card is not None and "trained" in card.method)
    if card is None:
        is_trained = is_trained or any(entry["step"] for entry in RunJournal(work.run.journal).read())
    try:
        if not is_whole:
            load_graft(work.run.graft)
    except VoxgraftError as error:
        found, starts_over = error.finding.found, bool(changed) and work.go_settings.when_changed == "fresh"
        if is_trained and not starts_over:
            if changed or not has_steps:
                raise  # its rows cannot be had again: a person decides
            if card is None and work.go_settings.when_changed != "fresh":
                _require_trained_tokenizer(work, _read_trained_identity(work) or {})
            # The same graft is made again, and `train` then writes what the saved steps hold into it.
            return StageDecision(True, f"{found}; `train` restores the trained rows from steps/", is_stale=True)
        return StageDecision(True, found, is_stale=True)
    assert card is not None  # a whole graft has one
    if not changed:
        return StageDecision(False, f"{card.num_rows:,} rows, created from these texts, settings and base")
    return work.changed(changed[0]) if is_trained else StageDecision(True, changed[0], is_stale=True)


def _read_trained_identity(work: PipelineContext) -> dict[str, Any] | None:
    """What the newest saved step belongs to; None where nothing was trained."""
    step = work.last_step
    return dict(read_step_values(step)["identity"]) if step is not None and step.step > 0 else None


def _require_trained_tokenizer(work: PipelineContext, identity: Mapping[str, Any]) -> None:
    """Raise if the tokenizer of a graft without a card is not that of the saved steps: its rows are not in them."""
    for path in sorted(work.run.graft.glob("tokenizer.*")):
        if compute_sha256(path) != identity.get("tokenizer_sha256"):
            raise other_graft_error(work.run.graft)


def _run_graft(work: PipelineContext) -> GraftResult:
    # A trained graft that is damaged is replaced by one that the trained rows fit, or not at all.
    replaces = work.go_settings.when_changed != "fresh" and (
        work.card is not None or is_file(work.run.graft / ROWS_NAME)
    )
    return graft(work.command_settings(GraftSettings), _read_trained_identity(work) if replaces else None)


def _decide_check(work: PipelineContext) -> StageDecision:
    if decide_train(work).runs:
        return StageDecision(True, "needed before training")
    return StageDecision(False, "nothing to train")


def decide_train(work: PipelineContext) -> StageDecision:
    """Whether steps are left to train, and whether what is saved still belongs to the run."""
    saved, card = work.last_step, work.card
    if saved is None or card is None:
        return StageDecision(True, "no step is saved yet", "no step was saved yet")
    values = read_step_values(saved)
    if other := _why_identity_differs(values["identity"], card):
        return StageDecision(True, f"step {saved.step:,} was trained with {other}", is_stale=True)
    # A finished training is compared in full, data included; an unfinished one by what resuming cannot change.
    over = _why_training_finished(work, values["standing"])
    if changed := _list_changes(work, values["identity"], is_over=bool(over)):
        return work.changed("; ".join(changed))
    if not over:
        return StageDecision(True, f"resumes from step {saved.step:,}", f"resumed from step {saved.step:,}")
    has_output = "trained" in card.method
    if work.settings.train.mode == "merged":
        has_output = is_file(work.run.path / MERGED_FOLDER_NAME / MERGED_CARD_NAME)
    if has_output:
        return StageDecision(False, over)
    return StageDecision(True, f"{over}, but there is no result yet", f"{over}, but there was no result yet")


def require_steps_left(work: PipelineContext, changes: Collection[str]) -> None:
    """Raise where a flag asks for fewer steps than are trained: it would change run.yaml, and nothing else."""
    saved = work.last_step
    given = [key for key in ("train.steps", "train.epochs") if key in changes]
    if not given or saved is None or work.card is None or _should_restart(work):
        return
    num_steps = _resolve_num_steps(work)
    if num_steps < saved.step:
        flags = ", ".join(f"--{key} {getattr(work.settings.train, key.partition('.')[2])}" for key in given)
        cure = (
            f"set more than {saved.step:,} steps to train further. Set no number to use the trained model. To start "
            f"over, write the number into run.yaml and run `voxgraft train {shlex.quote(str(work.run.path))} --fresh`."
        )
        found = f"{flags} sets {num_steps:,} steps, but {saved.step:,} are trained already"
        expected = f"more than {saved.step:,} steps; run.yaml was not changed"
        raise ConfigError("config-value", found, expected=expected, where=work.run.settings, cure=cure)


def _should_restart(work: PipelineContext) -> bool:
    """Only if that was requested, and what is saved is not what the run asks for now."""
    saved, card = work.last_step, work.card
    if work.go_settings.when_changed != "fresh" or saved is None or card is None:
        return False
    values = read_step_values(saved)
    identity, is_over = values["identity"], bool(_why_training_finished(work, values["standing"]))
    return bool(_why_identity_differs(identity, card) or _list_changes(work, identity, is_over=is_over))


def _list_changes(work: PipelineContext, identity: dict[str, Any], *, is_over: bool) -> list[str]:
    """What a finished training was not done with, or what an unfinished one cannot resume with."""
    train, base, data = work.settings.train, work.settings.base, work.settings.data
    now = {name: getattr(train, name) for name in COMPARED_OPTIONS}
    if base is not None:
        now |= resolve_family_defaults(train, resolve_base_family(resolve_base_folder(base), work.settings.family))
    before = identity.get("options", {})
    options = {
        name: f"train.{name} is {value} (was {before.get(name)})"
        for name, value in now.items()
        if value is not None and value != before.get(name)
    }
    if not is_over:
        return [change for name, change in options.items() if RESUME_RULES[name] == "fixed"]
    sets: list[str] = []
    for role, key, named in (("train", "sets", data.train), ("valid", "held_out", data.valid)):
        known = set(identity.get(key, {}).values())
        for path in named or (work.run.data_set(role),):
            try:
                # Manifests of the forks are files, and have no fingerprint to compare.
                same = not is_folder(path) or read_dataset_index(path).fingerprint in known
            except VoxgraftError as error:
                return [error.finding.found, *options.values()]
            sets += [] if same else [f"{path.name} has different clips now"]
    return [*sets, *options.values()]


def _why_identity_differs(identity: dict[str, Any], card: GraftCard) -> str:
    """What no training can be resumed over: another base, tokenizer or language."""
    base_sha256 = card.base["checkpoint_sha256"]
    now = {name: base_sha256 if name == "base_sha256" else getattr(card, name) for name in FIXED_IDENTITY_LABELS}
    return " and ".join(
        f"another {word}" for name, word in FIXED_IDENTITY_LABELS.items() if identity.get(name) != now[name]
    )


def _why_training_finished(work: PipelineContext, standing: dict[str, Any]) -> str:
    """Why no step is to follow, as far as the journal tells; empty where some are."""
    settings, journal = work.settings.train, RunJournal(work.run.journal).read()
    # A killed training leaves no end in the journal, and so is resumed.
    ended = History.of(journal).ended
    if ended is None:
        return ""
    reason = ended.values.get("reason")
    if reason == "done" and ended.step >= (num_steps := _resolve_num_steps(work)):
        more = f"{ended.step:,} steps are done, and run.yaml sets {num_steps:,}"
        return more if ended.step > num_steps else f"all {ended.step:,} steps are done"
    rounds = standing.get("rounds_without_better", 0)
    if reason == "no-better" and 0 < settings.patience <= rounds and ended.step >= settings.min_steps:
        return f"early stopping at step {ended.step:,}"
    # A guard asked for the end: only a person decides to train on against it. Older journals say `told`.
    if reason in ("stopped", "told"):
        stop_requests = (line for line in journal if line["kind"] == "stop-asked" and line["step"] == ended.step)
        if why := next((str(line.get("why")) for line in stop_requests), ""):
            return f"it was stopped at step {ended.step:,}: {why}; `voxgraft train` continues anyway"
    return ""


def _resolve_num_steps(work: PipelineContext) -> float:
    """Steps that the run asks for. What epochs make of replay that the base speaks itself only `train` can say."""
    settings = work.settings
    train, merged = settings.train, settings.train.mode == "merged"
    if train.epochs is None:
        return train.steps or DEFAULT_STEPS
    if merged or settings.base is None:
        return math.inf
    # Epochs become steps by the data: the sampler is built as `train` builds it.
    requirements = _read_requirements(work, settings.base)
    data = load_run_data(requirements, merged=merged)
    raise_first_error(data.findings)
    stream = build_sampler(
        settings, requirements.spec, data.train, compute_set_weights(data.train, (), settings.data.replay_share)
    )
    return resolve_num_steps(train, stream)


def _read_requirements(work: PipelineContext, base: Path) -> DataRequirements:
    family = resolve_base_family(resolve_base_folder(base), work.settings.family)
    files = family.files(resolve_base_folder(base))
    parts = (family, files, open_tokenizer(files.tokenizer))
    shapes = read_tensor_shapes(files.checkpoint)
    return DataRequirements.of(work.run, work.settings, load_graft(work.run.graft), parts, shapes)


def require_known_texts(work: PipelineContext) -> None:
    """Raise what `check` would refuse the clips with, before hours of encoding them."""
    data, dataset = work.settings.data, resolve_dataset(work)
    try:
        if work.settings.base is None or work.card is None or not decide_train(work).runs:
            return
        clips, _ = select_clips(dataset.manifest, work.language)
        requirements = _read_requirements(work, work.settings.base)
    except VoxgraftError:  # the stages that need these report it
        return
    named = {"train": data.train, "valid": data.valid}  # sets that run.yaml names are not made of these clips
    texts: dict[str, list[str]] = {
        role: [clip.text for clip in clips if clip.split == split]
        for split, role in ROLE_BY_SPLIT.items()
        if not named[role]
    }
    if (item := check_clip_texts(requirements, texts)) is not None:
        raise GraftError.of(replace(item, where=str(dataset.manifest)))


EVALUATION_NAME = "default"
MAX_CARD_BYTES = 64 << 20


def _hash_trained_output(run: RunFolder) -> dict[str, str]:
    """What the last training has left, by the names under which scores and exports keep its hash."""
    if detect_trained_output(run, RunJournal(run.journal).read()) == "merged":
        return {"checkpoint_sha256": str(read_merged_card(run.path / MERGED_FOLDER_NAME)["checkpoint_sha256"])}
    return {"graft_sha256": compute_sha256(run.graft / GRAFT_CARD_NAME)}


def are_scores_current(run: RunFolder, scores: Mapping[str, Any]) -> bool:
    """Whether the content of a scores.json is about what the run's last training has left."""
    subject = scores.get("subject")
    if not isinstance(subject, dict) or not subject.items() >= _hash_trained_output(run).items():
        return False
    # Hashes leave out the pronunciations, which may change after training.
    if detect_trained_output(run, RunJournal(run.journal).read()) == "merged":
        folder = run.path / MERGED_FOLDER_NAME
        rules = parse_text_rules(add_pronunciations(read_merged_card(folder).get("text"), folder), folder)
    else:
        rules = read_graft_card(run.graft).rules
    if "text_rules" in subject:
        return bool(subject["text_rules"] == rules.identity)
    return (subject.get("pronunciations") or {}) == rules.pronunciations  # scores from before have no name of the rules


def _decide_evaluate(work: PipelineContext) -> StageDecision:
    # Only the evaluation that `go` itself makes counts, not those that were made by hand under other names.
    path = work.run.eval / EVALUATION_NAME / SCORES_NAME
    if not is_file(path):
        return StageDecision(True, "not evaluated yet", "it was not evaluated yet")
    scores = _read_json_object(path, MAX_CARD_BYTES)
    sentences = scores.get("sentences")
    if not are_scores_current(work.run, scores):
        message = "the scores are those of another model", "the scores were those of another model"
        return StageDecision(True, *message, is_stale=True)
    if other := _why_sentences_differ(work.go_settings, sentences if isinstance(sentences, dict) else {}):
        return StageDecision(True, f"the scores are {other}", f"the scores were {other}", is_stale=True)
    recognizer, used_recognizer = work.settings.evaluate.recognizer, scores.get("listener")
    known = used_recognizer.get("named") if isinstance(used_recognizer, dict) else None
    if recognizer not in (None, known):
        return StageDecision(True, f"the recognizer was {known or 'not set'}, and is {recognizer} now", is_stale=True)
    return StageDecision(False, "the scores are those of this model")


def _why_sentences_differ(go_settings: GoSettings, evaluated: dict[str, Any]) -> str:
    """What the scores were made with, where flags ask for something else now; without flags nothing else is asked."""
    if go_settings.model_fields_set.isdisjoint(("sentences", "max_sentences")):
        return ""
    languages = list(dict.fromkeys([*evaluated, *(path.stem for path in go_settings.sentences)]))
    for language, expected in load_sentence_sets(languages, go_settings.sentences, go_settings.max_sentences).items():
        entry = evaluated.get(language)
        known = entry if isinstance(entry, dict) else {}
        if known.get("sha256") != expected.sha256:
            return f"not for the current sentences of {language} ({expected.source})"
        if known.get("count") != len(expected.sentences):
            return f"of {known.get('count')} sentences of {language}, not of {len(expected.sentences)}"
    return ""


def _choose_export_kind(work: PipelineContext) -> ExportKind:
    if work.go_settings.to is not None:
        return work.go_settings.to
    card = work.card
    merged = detect_trained_output(work.run, RunJournal(work.run.journal).read()) == "merged"
    return choose_export_kind(card.family if card is not None else "", merged=merged and card is not None)


def _decide_export(work: PipelineContext) -> StageDecision:
    kind = _choose_export_kind(work)
    folder = work.run.export / kind
    if work.card is not None and FAMILIES[work.card.family].non_commercial and not _accepts_terms(work, folder):
        # A run of hours must not end with an error for want of a flag.
        title = FAMILIES[work.card.family].title
        why = f"not exported: the licence of {title} (non-commercial) needs --accept-terms, or its box on the page"
        return StageDecision(False, why, has_input=False)
    # An export is current while it has the hashes of what training has left.
    if not path_exists(folder):
        return StageDecision(True, f"no export for {kind} yet", f"there was no export for {kind} yet")
    if kind == "graft":
        expected_hashes = {GRAFT_CARD_NAME: compute_sha256(work.run.graft / GRAFT_CARD_NAME)}
        current = _has_files(folder, expected_hashes) and _has_rules(folder, work.card)
    elif kind == "peft":
        card = work.card
        current = _has_files(folder, {} if card is None else {ROWS_NAME: card.rows_sha256, **(card.adapter or {})})
    else:
        card_path = folder / EXPORT_CARD_NAME
        made_of = _read_json_object(card_path, MAX_CARD_BYTES).get("made_of") if is_file(card_path) else None
        current = isinstance(made_of, dict) and made_of.items() >= _hash_trained_output(work.run).items()
        current = current and _has_rules(folder, work.card)
    if not current:
        return StageDecision(
            True, f"{folder.name} was exported from another model or list of pronunciations", is_stale=True
        )
    # What flags say now, and the export does not.
    terms, go_settings = read_terms(folder), work.go_settings
    if go_settings.data_licence is not None and (terms is None or terms.data_licence != go_settings.data_licence):
        return StageDecision(True, "the export does not state this data licence", is_stale=True)
    if go_settings.consent is not None and (terms is None or terms.consent != go_settings.consent):
        return StageDecision(True, "the export does not state this consent of the speakers", is_stale=True)
    if go_settings.accept_terms and (terms is None or not terms.accepted):
        return StageDecision(True, "the terms of the base were not accepted for the export", is_stale=True)
    return StageDecision(False, f"{folder} is an export of this model")


def _accepts_terms(work: PipelineContext, folder: Path) -> bool:
    """Whether the licence of the base was accepted, by the flag or for the export before this one."""
    if work.go_settings.accept_terms or not path_exists(folder):
        return work.go_settings.accept_terms
    terms = read_terms(folder)
    return terms is not None and terms.accepted


def _has_files(folder: Path, hashes: Mapping[str, str]) -> bool:
    return all(is_file(folder / name) and compute_sha256(folder / name) == hashes[name] for name in hashes)


def _has_rules(folder: Path, card: GraftCard | None) -> bool:
    """Whether an export has the text rules of the run, pronunciations included; true for one that has no rules."""
    try:
        if is_file(path := folder / TEXT_FOLDER / TEXT_RULES_NAME):
            exported = parse_text_rules(read_json(path), path)
        elif is_file(folder / GRAFT_CARD_NAME):
            exported = read_graft_card(folder).rules
        else:
            return True
    except VoxgraftError:
        return False
    return card is not None and exported.identity == card.rules.identity


def _run_export(work: PipelineContext) -> ExportResult:
    go_settings, kind = work.go_settings, _choose_export_kind(work)
    terms = {
        "data_licence": go_settings.data_licence,
        "consent": go_settings.consent,
        "accept_terms": _accepts_terms(work, work.run.export / kind),
    }
    values = {"model": work.run.path, "to": kind, "overwrite": path_exists(work.run.export / kind), **terms}
    return export(ExportSettings.model_validate(values))


def _read_json_object(path: Path, most: int) -> dict[str, Any]:
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise GraftError("json-shape", f"{path.name} has no keys", where=path)
    return value


PipelineStage = tuple[Callable[[PipelineContext], StageDecision], Callable[[PipelineContext], CommandResult]]
"""Decides by what lies in the run, and runs one command."""
PIPELINE_STAGES: dict[StageName, PipelineStage] = {
    "import": (_decide_import, lambda work: data_import(*_import_settings(work))),
    "split": (_decide_split, _run_split),
    "graft": (_decide_graft, _run_graft),
    "prepare": (_decide_prepare, lambda work: prepare(load_command_settings(PrepareSettings, work.run))),
    "check": (_decide_check, lambda work: check(work.command_settings(CheckSettings))),
    "train": (
        decide_train,
        lambda work: train(work.command_settings(TrainCommandSettings, fresh=_should_restart(work))),
    ),
    "evaluate": (
        _decide_evaluate,
        lambda work: evaluate(
            EvaluateSettings(
                model=work.run.path,
                sentences=work.go_settings.sentences,
                max_sentences=work.go_settings.max_sentences,
                name=EVALUATION_NAME,
            )
        ),
    ),
    "export": (_decide_export, _run_export),
}
STAGES_WITHOUT_OUTPUT = ("check", "evaluate")
"""Stages by which no later one decides."""
StageState = Literal["done", "skipped", "stale", "next", "later", "blocked"]
"""skipped: has nothing to work on. stale: ran before, and has to run again. later: an earlier stage comes first.
blocked: an error, see `error`.
"""


@dataclass(frozen=True, slots=True)
class SurveyedStage:
    """One stage as the run is now: whether it has to run, and why. Nothing is run."""

    name: StageName
    state: StageState
    why: str
    runs: bool = False
    """Whether `go` would run it, as far as is known before an earlier stage has run."""
    error: VoxgraftError | None = None


def survey_stages(settings: GoSettings, stages: Sequence[StageName] | None = None) -> list[SurveyedStage]:
    """The state of every stage, for `go --dry-run` and for the web page.

    What a stage that has yet to run will leave is not guessed at. The first error blocks its stage; later ones are
    judged by their files anyway.
    """
    found: list[SurveyedStage] = []
    first = ""  # the first stage that would run and leave something that later ones decide by
    for name in stages if stages is not None else list(PIPELINE_STAGES):
        is_blocked = any(one.state == "blocked" for one in found)
        waits = is_blocked or any(one.runs for one in found)
        try:
            decision = PIPELINE_STAGES[name][0](PipelineContext(settings))
        except VoxgraftError as error:
            if not first and not is_blocked:
                found.append(SurveyedStage(name, "blocked", error.finding.found, error=error))
                continue
            decision = None
        if decision is not None and decision.runs:
            first = first or ("" if name in STAGES_WITHOUT_OUTPUT else name)
            state: StageState = "stale" if decision.is_stale else "later" if waits else "next"
            found.append(SurveyedStage(name, state, decision.why, runs=True))
        elif first or decision is None:
            cause = first or next(one.name for one in found if one.state == "blocked")
            found.append(SurveyedStage(name, "later", f"depends on the result of `{cause}`"))
        else:
            found.append(SurveyedStage(name, "done" if decision.has_input else "skipped", decision.why))
    return found
