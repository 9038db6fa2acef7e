"""Stages of the data: recordings to clips, clips to sides, clips to sets. Decides by journals, manifest and ledger."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from voxgraft.amounts import format_names, pluralize
from voxgraft.bases import resolve_base_family, resolve_base_folder
from voxgraft.corpus.clips import ClipDataset
from voxgraft.corpus.sets import open_clip_dataset
from voxgraft.data_import import DataImportResult, build_import_options, build_reimport_policy, data_import
from voxgraft.data_settings import DataImportSettings, DataSplitSettings
from voxgraft.data_split import DataSplitResult, data_split, split_remaining_clips
from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.files import is_file, is_folder, path_exists
from voxgraft.going.stage import PipelineContext, PipelineStage, StageDecision
from voxgraft.importing.dataset import DatasetFolder
from voxgraft.importing.running import ImportPreview, ReimportPolicy, compute_import_loss, preview_import
from voxgraft.importing.sources import find_sources
from voxgraft.importing.told import PROBLEMS_FILE
from voxgraft.prepare import PrepareResult, prepare
from voxgraft.preparing.choosing import ROLE_BY_SPLIT, SelectedClip, resolve_manifest_path, select_clips
from voxgraft.preparing.keys import compute_file_stamp
from voxgraft.preparing.ledger import CACHE_INDEX_NAME, CacheIndex, ClipRecord, read_cache_index
from voxgraft.preparing.settings import PrepareSettings
from voxgraft.run_yaml import load_command_settings
from voxgraft.spelling import text_rules_identity

__all__ = ["IMPORT_STAGE", "PREPARE_STAGE", "SPLIT_STAGE"]


def resolve_dataset(work: PipelineContext) -> DatasetFolder:
    """The dataset of a run: the one that its run.yaml names, or its own data folder."""
    named = work.settings.data.dataset
    return DatasetFolder(work.run.data if named is None else resolve_manifest_path(named, work.run.data).parent)


def _decide_import(work: PipelineContext) -> StageDecision:
    """Sources are needed for what is still to be imported: those that are gone are no obstacle to using their clips."""
    places, dataset = work.settings.data.sources, resolve_dataset(work)
    if not places:
        return StageDecision(False, "run.yaml names no data.sources")
    gone = [place for place in places if not path_exists(place)]
    used = sum(clip.is_used for clip in dataset.clips())
    settings = _build_import_settings(work)
    try:
        there = places if not used else [place for place in places if place not in gone]
        found = find_sources(there, work.language, encoding=settings.encoding)
    except VoxgraftError:
        if not used:
            raise
        return StageDecision(False, f"{_format_missing_sources(gone or places)}; {_format_used_clips(used, dataset)}")
    if not dataset.has_manifest:
        told = f"{pluralize(len(found.sources), 'source')} with texts, and"
        return StageDecision(True, f"{told} no clips yet", f"{told} there were no clips yet")
    waiting = preview_import(
        dataset, found.sources, build_import_options(settings), _build_reimport_policy(settings, work)
    )
    if decision := _decide_waiting_sources(waiting):
        return decision
    if not used:
        return StageDecision(True, "there is no clip that can be used yet", "there was no clip that could be used")
    left_out = compute_import_loss(dataset.journals(), found.problems)
    if left_out.share > settings.max_left_out:
        return StageDecision(True, str(left_out))
    notes = [_format_used_clips(used, dataset)]
    if gone:
        notes.insert(0, _format_missing_sources(gone))
    if waiting.kept:
        notes.append(f"kept as it is (--when-changed keep): {waiting.kept[0].found}")
    if waiting.failed:
        notes.append(f"could not be imported (see {dataset.folder / PROBLEMS_FILE}): {format_names(waiting.failed)}")
    return StageDecision(False, "; ".join(notes))


def _decide_waiting_sources(waiting: ImportPreview) -> StageDecision | None:
    """Why there is something to import, or to complain of; None where there is neither."""
    if waiting.new:
        names = format_names(waiting.new)
        return StageDecision(True, f"not imported yet: {names}", f"was not imported yet: {names}")
    if waiting.again:
        return StageDecision(True, f"imported again (--reimport): {format_names(waiting.again)}")
    if waiting.problems:
        return StageDecision(True, waiting.problems[0].found)
    return None


def _format_missing_sources(places: Sequence[Path]) -> str:
    return f"note: sources are missing ({format_names([str(place) for place in places])})"


def _format_used_clips(used: int, dataset: DatasetFolder) -> str:
    return f"{pluralize(used, 'clip')} in {dataset.folder}"


def _build_reimport_policy(settings: DataImportSettings, work: PipelineContext) -> ReimportPolicy:
    again = f"`voxgraft go {shlex.quote(str(work.run.path))}"
    cure = (
        f"{again} --reimport` imports it again; clips that stay the same keep their ids and sides. "
        f"{again} --when-changed keep` uses the clips as they are."
    )
    return replace(build_reimport_policy(settings), keep=work.told.when_changed == "keep", cure=cure)


def _build_import_settings(work: PipelineContext) -> DataImportSettings:
    data, base = work.settings.data, work.settings.base
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", where=work.run.settings)
    values = {
        "dataset": resolve_dataset(work).folder,
        "sources": tuple(place for place in data.sources if path_exists(place)) or data.sources,
        "language": work.language,
        "family": resolve_base_family(resolve_base_folder(base), work.settings.family).name,
        "reimport": work.told.reimport,
        "max_left_out": data.max_left_out,
    }
    # Only what run.yaml says differently from the defaults: clips that were imported by hand have options of their own.
    said = {"speaker": data.speaker, "speaker_from": data.speaker_from, "encoding": data.encoding}
    values |= {name: value for name, value in said.items() if value not in (None, "auto")}
    if work.settings.tokenizer.fold_homophones:
        values["fold_homophones"] = True
    return DataImportSettings.model_validate(values)


def _run_import(work: PipelineContext) -> DataImportResult:
    settings = _build_import_settings(work)
    return data_import(settings, _build_reimport_policy(settings, work))


def _decide_split(work: PipelineContext) -> StageDecision:
    dataset = resolve_dataset(work)
    if not dataset.has_manifest:
        return StageDecision(False, "there are no clips to be split")
    own = [clip for clip in dataset.clips() if clip.is_used and clip.language == work.language]
    without = sum(clip.split is None for clip in own)
    if without:
        told = f"{without:,} of {pluralize(len(own), 'clip')}"
        return StageDecision(True, f"{told} are on no side yet", f"{told} were on no side yet")
    if not own:
        return StageDecision(False, "there are no clips to be split")
    return StageDecision(False, f"all {pluralize(len(own), 'clip')} have their side")


def _run_split(work: PipelineContext) -> DataSplitResult:
    """What has a side keeps it: a clip that was learnt from must never become one that judges."""
    dataset = resolve_dataset(work)
    own = [clip for clip in dataset.clips() if clip.is_used and clip.language == work.language]
    if any(clip.split is not None for clip in own):
        return split_remaining_clips(dataset.folder)
    return data_split(DataSplitSettings(dataset=dataset.folder))


def _decide_prepare(work: PipelineContext) -> StageDecision:
    data, dataset = work.settings.data, resolve_dataset(work)
    if data.train and data.valid:
        return StageDecision(False, "run.yaml names its sets (data.train, data.valid)")
    missing = [name for name in ROLE_BY_SPLIT.values() if not is_folder(work.run.data_set(name))]
    if missing:
        names = " and ".join(missing)
        return StageDecision(True, f"no set for {names} yet", f"there was no set for {names} yet")
    if not dataset.has_manifest:
        return StageDecision(False, "the sets are there, and no clips that they could be made of")
    why = _why_sets_stale(work, dataset.manifest)
    return StageDecision(bool(why), why or "the sets have every clip, as the manifest and the tokenizer are now")


def _why_sets_stale(work: PipelineContext, manifest: Path) -> str:
    """Why the sets are not those that the manifest, the sounds and the tokenizer would make; empty if they are."""
    card, ledger = work.card, read_cache_index(work.run.data / CACHE_INDEX_NAME)
    chosen = select_clips(manifest, work.language).clips
    for role in ROLE_BY_SPLIT.values():
        place = work.run.data_set(role)
        try:
            made = open_clip_dataset(place)
        except VoxgraftError as error:
            return error.finding.found
        if card is not None and made.header.made_from.tokenizer_sha256 != card.tokenizer_sha256:
            return f"{role} was spelled by another tokenizer"
        if card is not None and made.header.made_from.text != text_rules_identity(card.rules):
            return f"{role} was normalised by other text rules"
        if card is not None and made.header.made_from.base_sha256 != card.base["checkpoint_sha256"]:
            return f"{role} was made for another base"
        if ledger.sets.get(role) != made.fingerprint:
            return f"{role} was changed after `prepare` wrote it"
        if why := _why_clips_differ(made, [one for one in chosen if one.role == role], ledger):
            return f"{role}: {why}"
    return ""


def _why_clips_differ(made: ClipDataset, wanted: Sequence[SelectedClip], ledger: CacheIndex) -> str:
    infos = {info.id: (info.text, info.speaker, info.recording) for info in made.infos}
    for one in wanted:
        clip, record = one.clip, ledger.clips.get(one.clip.id)
        if record is None or record.audio != clip.audio:
            return f"{clip.id} came later"
        if not _has_same_audio(one.path, record):
            return f"the sound of {clip.id} was changed"
        if record.left_out is None and infos.get(clip.id) != (clip.text, clip.speaker, clip.recording):
            return f"{clip.id} got another text, speaker or recording"
    gone = infos.keys() - {one.clip.id for one in wanted}
    return f"{format_names(sorted(gone))} was taken out" if gone else ""


def _has_same_audio(path: Path, record: ClipRecord) -> bool:
    """By content: a copy has another time. A sound that is gone is known by its codes."""
    if not is_file(path):
        return True
    if record.file is None:
        return False
    mark = compute_file_stamp(path, record.file) if path.stat().st_size == record.file[0] else None
    return mark is not None and mark[2] == record.file[2]


def _run_prepare(work: PipelineContext) -> PrepareResult:
    return prepare(load_command_settings(PrepareSettings, work.run))


IMPORT_STAGE = PipelineStage("import", _decide_import, _run_import)
SPLIT_STAGE = PipelineStage("split", _decide_split, _run_split)
PREPARE_STAGE = PipelineStage("prepare", _decide_prepare, _run_prepare)
