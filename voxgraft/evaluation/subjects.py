"""From what a user names to what is judged: the base and where it computes, the system on it, its run if it has one.

Reads run.yaml, cards and journals; speaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import EvaluatedVariant, EvaluateSettings
from voxgraft.config.renames import rename_saved_mode
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError, GraftError
from voxgraft.core.files import is_file, is_folder, require_folder
from voxgraft.core.journal import History, RunJournal
from voxgraft.core.run import RunFolder
from voxgraft.data.selection import resolve_manifest_path
from voxgraft.evaluation.held_out import NO_RUN_REASON, HeldOutData, open_held_out_data
from voxgraft.evaluation.sentences import (
    SentenceSet,
    TrainingTexts,
    build_text_sentences,
    load_manifest_sentences,
    load_training_texts,
)
from voxgraft.evaluation.systems import (
    ModelContext,
    SpeakingModel,
    open_checkpoint_model,
    open_grafted_model,
    open_merged_model,
    open_step_model,
)
from voxgraft.graft.folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.graft.folder import load_graft, resolve_base_family, resolve_base_folder
from voxgraft.training.outputs import (
    BASELINE_FOLDER_NAME,
    MERGED_CARD,
    MERGED_FOLDER_NAME,
    find_merged_card,
    is_of_last_training,
)
from voxgraft.training.samples import collect_texts
from voxgraft.training.setup import HALF_PRECISION_DTYPES, choose_device

__all__ = ["EvaluationSubject", "choose_dtype", "detect_trained_output", "resolve_output_folder", "resolve_subject"]


@dataclass(frozen=True)
class EvaluationSubject:
    """What is judged, ready to be opened."""

    kind: str
    """run, graft, merged or checkpoint."""
    path: Path
    place: ModelContext
    open: Callable[[], SpeakingModel]
    held_out: HeldOutData
    history: History | None = None
    run: RunFolder | None = None
    trained_on: TrainingTexts | None = None
    settings: RunSettings | None = None
    """Of its run."""

    def own_sentences(self, language: str) -> SentenceSet | None:
        """Held-out texts of the run's own data, with their recordings where the manifest names them."""
        if self.run is None or self.settings is None:
            return None
        manifest = resolve_manifest_path(self.settings.data.dataset, self.run.data)
        found = load_manifest_sentences(manifest, language) if is_file(manifest) else None
        return found or build_text_sentences(collect_texts(self.held_out.sets.get(language, ())), language)


def resolve_subject(settings: EvaluateSettings) -> EvaluationSubject:
    """What the path names; an error that says what could stand there for anything else."""
    path = require_folder(settings.model)
    run = RunFolder(path)
    if is_file(run.settings):
        return _subject_from_run(run, settings)
    if settings.variant is not None or settings.step is not None:
        found = f"{path.name} is not a run, and --variant or --step is given"
        raise ConfigError("config-value", found, expected="a run for these", where=path)
    place = _build_model_context(settings.base, settings, path)
    held_out = HeldOutData(why={"": NO_RUN_REASON}, seed=settings.seed)
    if is_file(path / GRAFT_CARD):
        return EvaluationSubject("graft", path, place, lambda: open_grafted_model(place, load_graft(path)), held_out)
    if is_file(path / MERGED_CARD):
        return EvaluationSubject("merged", path, place, lambda: open_merged_model(place, path), held_out)
    return EvaluationSubject(
        "checkpoint", path, place, lambda: open_checkpoint_model(place, path, settings.language), held_out
    )


def _subject_from_run(run: RunFolder, settings: EvaluateSettings) -> EvaluationSubject:
    own = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    place = _build_model_context(settings.base or own.base, settings, run.settings, own.family)
    journal = RunJournal(run.journal).read()
    history = History.of(journal)
    graft = load_graft(run.graft)

    def opened() -> SpeakingModel:
        if settings.step is not None:
            if settings.variant is not None:
                found = "--step and --variant are both given"
                raise ConfigError("config-value", found, expected="one of the two", where=run.path)
            return open_step_model(place, run, settings.step)
        which = settings.variant or detect_trained_output(run, journal)
        if which == "graft":
            return open_grafted_model(place, graft)
        return open_merged_model(place, run.path / (MERGED_FOLDER_NAME if which == "merged" else BASELINE_FOLDER_NAME))

    held_out = open_held_out_data(run, own, place, graft)
    texts = load_training_texts(run, own, graft.card.language)
    return EvaluationSubject("run", run.path, place, opened, held_out, history if journal else None, run, texts, own)


def detect_trained_output(run: RunFolder, journal: list[dict[str, object]]) -> EvaluatedVariant:
    """What the last training of a run has left: its own mode says where. Nothing else stands in for it."""
    mode = rename_saved_mode(next((entry.get("mode") for entry in reversed(journal) if entry["kind"] == "start"), None))
    which: EvaluatedVariant = (
        "merged" if mode == "merged" else "masked-finetune" if mode == "masked-finetune" else "graft"
    )
    name = {"merged": MERGED_FOLDER_NAME, "masked-finetune": BASELINE_FOLDER_NAME}.get(which)
    if name is not None and not is_folder(run.path / name):
        found = f"the last training was {which}, and there is no {name}/ in the run"
        raise GraftError("merged-missing", found, expected=f"{name}/, or --variant graft", where=run.path)
    card = find_merged_card(run.path / name / "checkpoint") if name is not None else None
    if card is not None and not is_of_last_training(card, journal):
        found = f"{name}/ is of an earlier training (its step {card.get('step')}); the last one has left none yet"
        raise GraftError("merged-stale", found, where=run.path / str(name))
    return which


def _build_model_context(
    base: Path | None, settings: EvaluateSettings, where: Path, name: str | None = None
) -> ModelContext:
    if base is None:
        cure = "name the base that it is compared with: --base FOLDER."
        raise ConfigError("config-missing", "`base` is not given", where=where, cure=cure)
    folder = require_folder(resolve_base_folder(base))
    family = resolve_base_family(folder, settings.family or name)
    device = choose_device(settings.device)
    return ModelContext(family, family.files(folder), device, choose_dtype(settings.precision, device))


def choose_dtype(precision: str | None, device: str) -> torch.dtype:
    """What a model computes in: as asked for, else what suits the device."""
    if precision is not None:
        return HALF_PRECISION_DTYPES.get(precision, torch.float32)
    if not device.startswith("cuda"):
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16


def resolve_output_folder(subject: EvaluationSubject, settings: EvaluateSettings) -> Path:
    """Where the files go: a place of the run's own, or one that was named and is free."""
    if settings.output is not None:
        if is_folder(settings.output) or is_file(settings.output):
            raise FileError("file-exists", f"{settings.output.name} is there already", where=settings.output)
        return settings.output
    if subject.run is None:
        found = f"{subject.path.name} is a {subject.kind}, and the folder for its report is not named"
        raise ConfigError("config-missing", found, expected="--output FOLDER")
    return subject.run.eval / settings.name
