"""From what a user names to what is judged: the base and where it computes, the system on it, its run if it has one.

Reads run.yaml, cards and journals; speaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from voxgraft.bases import base_family, base_folder
from voxgraft.config import read_settings, settings_from
from voxgraft.course import HALF, chosen_device
from voxgraft.diagnosing.merged_card import card_beside, is_of_last_training
from voxgraft.errors import ConfigError, FileError, GraftError
from voxgraft.evaluating.held_out import NO_RUN, HeldOut, open_held_out
from voxgraft.evaluating.overlap import TrainingTexts, training_texts
from voxgraft.evaluating.sentences import SentenceSet, manifest_sentences, text_sentences
from voxgraft.evaluating.systems import Place, System, grafted, merged, of_step, other_checkpoint
from voxgraft.files import existing_folder, is_file, is_folder
from voxgraft.graft_folder import CARD_NAME as GRAFT_CARD
from voxgraft.graft_folder import open_graft
from voxgraft.history import History
from voxgraft.journal import Journal
from voxgraft.merged_folder import CARD_NAME as MERGED_CARD
from voxgraft.merged_folder import MERGED_NAME, SEEDS_NAME
from voxgraft.preparing.choosing import manifest_path
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.sample_texts import held_out_texts
from voxgraft.settings import EvaluateSettings, JudgedPart

__all__ = ["Subject", "dtype_of", "left_by", "require_output", "subject_of"]


@dataclass(frozen=True)
class Subject:
    """What is judged, ready to be opened."""

    kind: str
    """run, graft, merged or checkpoint."""
    path: Path
    place: Place
    open: Callable[[], System]
    held_out: HeldOut
    history: History | None = None
    run: RunFolder | None = None
    trained_on: TrainingTexts | None = None
    settings: RunSettings | None = None
    """Of its run."""

    def own_sentences(self, language: str) -> SentenceSet | None:
        """Held-out texts of the run's own data, with their recordings where the manifest names them."""
        if self.run is None or self.settings is None:
            return None
        manifest = manifest_path(self.settings.data.dataset, self.run.data)
        found = manifest_sentences(manifest, language) if is_file(manifest) else None
        return found or text_sentences(held_out_texts(self.held_out.sets.get(language, ())), language)


def subject_of(settings: EvaluateSettings) -> Subject:
    """What the path names; an error that says what could stand there for anything else."""
    path = existing_folder(settings.subject)
    run = RunFolder(path)
    if is_file(run.settings):
        return _of_run(run, settings)
    if settings.which is not None or settings.step is not None:
        found = f"{path.name} is not a run, and --which or --step is given"
        raise ConfigError("config-value", found, expected="a run for these", where=path)
    place = _place(settings.base, settings, path)
    held_out = HeldOut(why={"": NO_RUN}, seed=settings.seed)
    if is_file(path / GRAFT_CARD):
        return Subject("graft", path, place, lambda: grafted(place, open_graft(path)), held_out)
    if is_file(path / MERGED_CARD):
        return Subject("merged", path, place, lambda: merged(place, path), held_out)
    return Subject("checkpoint", path, place, lambda: other_checkpoint(place, path, settings.language), held_out)


def _of_run(run: RunFolder, settings: EvaluateSettings) -> Subject:
    own = settings_from(RunSettings, read_settings(RunSettings, run.settings), run.settings)
    place = _place(settings.base or own.base, settings, run.settings, own.family)
    journal = Journal(run.journal).read()
    history = History.of(journal)
    graft = open_graft(run.graft)

    def opened() -> System:
        if settings.step is not None:
            if settings.which is not None:
                found = "--step and --which are both given"
                raise ConfigError("config-value", found, expected="one of the two", where=run.path)
            return of_step(place, run, settings.step)
        which = settings.which or left_by(run, journal)
        if which == "graft":
            return grafted(place, graft)
        return merged(place, run.path / (MERGED_NAME if which == "merged" else SEEDS_NAME))

    held_out = open_held_out(run, own, place, graft)
    texts = training_texts(run, own, graft.card.language)
    return Subject("run", run.path, place, opened, held_out, history if journal else None, run, texts, own)


def left_by(run: RunFolder, journal: list[dict[str, object]]) -> JudgedPart:
    """What the last training of a run has left: its own mode says where. Nothing else stands in for it."""
    mode = next((entry.get("mode") for entry in reversed(journal) if entry["kind"] == "start"), None)
    which: JudgedPart = "merged" if mode == "merged" else "as-in-the-seeds" if mode == "as-in-the-seeds" else "graft"
    name = {"merged": MERGED_NAME, "as-in-the-seeds": SEEDS_NAME}.get(which)
    if name is not None and not is_folder(run.path / name):
        found = f"the last training was {which}, and there is no {name}/ in the run"
        raise GraftError("merged-missing", found, expected=f"{name}/, or --which graft", where=run.path)
    card = card_beside(run.path / name / "checkpoint") if name is not None else None
    if card is not None and not is_of_last_training(card, journal):
        found = f"{name}/ is of an earlier training (its step {card.get('step')}); the last one has left none yet"
        raise GraftError("merged-stale", found, where=run.path / str(name))
    return which


def _place(base: Path | None, settings: EvaluateSettings, where: Path, name: str | None = None) -> Place:
    if base is None:
        cure = "name the base that it is compared with: --base FOLDER."
        raise ConfigError("config-missing", "`base` is not given", where=where, cure=cure)
    folder = existing_folder(base_folder(base))
    family = base_family(folder, settings.family or name)
    device = chosen_device(settings.device)
    return Place(family, family.files(folder), device, dtype_of(settings.precision, device))


def dtype_of(precision: str | None, device: str) -> torch.dtype:
    """What a model computes in: as asked for, else what suits the device."""
    if precision is not None:
        return HALF.get(precision, torch.float32)
    if not device.startswith("cuda"):
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16


def require_output(subject: Subject, settings: EvaluateSettings) -> Path:
    """Where the files go: a place of the run's own, or one that was named and is free."""
    if settings.output is not None:
        if is_folder(settings.output) or is_file(settings.output):
            raise FileError("file-exists", f"{settings.output.name} is there already", where=settings.output)
        return settings.output
    if subject.run is None:
        found = f"{subject.path.name} is a {subject.kind}, and the folder for its report is not named"
        raise ConfigError("config-missing", found, expected="--output FOLDER")
    return subject.run.eval / settings.name
