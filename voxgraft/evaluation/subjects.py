"""From what a user names to what is judged: the base and where it computes, the system on it, its run if it has one.

Reads run.yaml, cards and journals; speaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import EvaluateSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError
from voxgraft.core.files import is_file, is_folder, require_folder
from voxgraft.core.journal import History, RunJournal
from voxgraft.core.run import RunFolder
from voxgraft.data.selection import resolve_manifest_path
from voxgraft.dataset.held_out import NO_RUN_REASON, HeldOutData, open_held_out_data
from voxgraft.evaluation.sentences import (
    SentenceSet,
    TrainingTexts,
    build_text_sentences,
    load_manifest_sentences,
    load_training_texts,
)
from voxgraft.graft.folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.graft.folder import MERGED_CARD_NAME, load_graft
from voxgraft.synthesis.models import (
    ModelContext,
    SpeakingModel,
    open_checkpoint_model,
    open_grafted_model,
    open_merged_model,
    open_model_context,
    open_run_model,
)
from voxgraft.training.samples import collect_texts

__all__ = ["EvaluationSubject", "resolve_output_folder", "resolve_subject"]


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
    place = _open_context(settings.base, settings, path)
    held_out = HeldOutData(why={"": NO_RUN_REASON}, seed=settings.seed)
    if is_file(path / GRAFT_CARD):
        return EvaluationSubject("graft", path, place, lambda: open_grafted_model(place, load_graft(path)), held_out)
    if is_file(path / MERGED_CARD_NAME):
        return EvaluationSubject("merged", path, place, lambda: open_merged_model(place, path), held_out)
    return EvaluationSubject(
        "checkpoint", path, place, lambda: open_checkpoint_model(place, path, settings.language), held_out
    )


def _subject_from_run(run: RunFolder, settings: EvaluateSettings) -> EvaluationSubject:
    own = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    place = _open_context(settings.base or own.base, settings, run.settings, own.family)
    journal = RunJournal(run.journal).read()
    graft = load_graft(run.graft)

    return EvaluationSubject(
        "run",
        run.path,
        place,
        lambda: open_run_model(place, run, graft, settings.variant, settings.step),
        open_held_out_data(run, own, place.family, place.files, graft),
        History.of(journal) if journal else None,
        run,
        load_training_texts(run, own, graft.card.language),
        own,
    )


def _open_context(
    base: Path | None, settings: EvaluateSettings, where: Path, family: str | None = None
) -> ModelContext:
    if base is None:
        cure = "name the base that it is compared with: --base FOLDER."
        raise ConfigError("config-missing", "`base` is not given", where=where, cure=cure)
    return open_model_context(base, settings.family or family, settings.device, settings.precision)


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
