"""Stages of the data: recordings to clips, clips to sides, clips to sets. Decides by journals, manifest and ledger."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from voxgraft.amounts import counted, first_of
from voxgraft.bases import base_family, base_folder
from voxgraft.corpus.clips import ClipSet
from voxgraft.corpus.sets import open_set
from voxgraft.data_import import DataImportResult, data_import, import_again, import_options
from voxgraft.data_settings import DataImportSettings, DataSplitSettings
from voxgraft.data_split import DataSplit, data_split, split_the_rest
from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.files import is_file, is_folder, is_there
from voxgraft.going.stage import Decision, Stage, Work
from voxgraft.importing.dataset import Dataset
from voxgraft.importing.running import Again, Waiting, left_out_of, waiting_sources
from voxgraft.importing.sources import find_sources
from voxgraft.importing.told import PROBLEMS
from voxgraft.prepare import PrepareResult, prepare
from voxgraft.preparing.choosing import ROLES, WantedClip, chosen_clips, manifest_path
from voxgraft.preparing.keys import file_mark
from voxgraft.preparing.ledger import LEDGER_NAME, ClipRecord, Ledger, read_ledger
from voxgraft.preparing.settings import PrepareSettings
from voxgraft.run_yaml import settings_of
from voxgraft.spelling import text_mark

__all__ = ["IMPORT", "PREPARE", "SPLIT"]


def dataset_of(work: Work) -> Dataset:
    """The dataset of a run: the one that its run.yaml names, or its own data folder."""
    named = work.settings.data.dataset
    return Dataset(work.run.data if named is None else manifest_path(named, work.run.data).parent)


def _decide_import(work: Work) -> Decision:
    """Sources are needed for what is still to be imported: those that are gone are no obstacle to using their clips."""
    places, dataset = work.settings.data.sources, dataset_of(work)
    if not places:
        return Decision(False, "run.yaml names no data.sources")
    gone = [place for place in places if not is_there(place)]
    used = sum(clip.is_used for clip in dataset.clips())
    settings = _import_settings(work)
    try:
        there = places if not used else [place for place in places if place not in gone]
        found = find_sources(there, work.language, encoding=settings.encoding)
    except VoxgraftError:
        if not used:
            raise
        return Decision(False, f"{_missing(gone or places)}; {_in_data(used, dataset)}")
    if not dataset.has_manifest:
        told = f"{counted(len(found.sources), 'source')} with texts, and"
        return Decision(True, f"{told} no clips yet", f"{told} there were no clips yet")
    waiting = waiting_sources(dataset, found.sources, import_options(settings), _again(settings, work))
    if decision := _waiting(waiting):
        return decision
    if not used:
        return Decision(True, "there is no clip that can be used yet", "there was no clip that could be used")
    left_out = left_out_of(dataset.journals(), found.problems)
    if left_out.share > settings.max_left_out:
        return Decision(True, str(left_out))
    notes = [_in_data(used, dataset)]
    if gone:
        notes.insert(0, _missing(gone))
    if waiting.kept:
        notes.append(f"kept as it is (--when-changed keep): {waiting.kept[0].found}")
    if waiting.failed:
        notes.append(f"could not be imported (see {dataset.folder / PROBLEMS}): {first_of(waiting.failed)}")
    return Decision(False, "; ".join(notes))


def _waiting(waiting: Waiting) -> Decision | None:
    """Why there is something to import, or to complain of; None where there is neither."""
    if waiting.new:
        names = first_of(waiting.new)
        return Decision(True, f"not imported yet: {names}", f"was not imported yet: {names}")
    if waiting.again:
        return Decision(True, f"imported again (--reimport): {first_of(waiting.again)}")
    if waiting.problems:
        return Decision(True, waiting.problems[0].found)
    return None


def _missing(places: Sequence[Path]) -> str:
    return f"note: sources are missing ({first_of([str(place) for place in places])})"


def _in_data(used: int, dataset: Dataset) -> str:
    return f"{counted(used, 'clip')} in {dataset.folder}"


def _again(settings: DataImportSettings, work: Work) -> Again:
    again = f"`voxgraft go {shlex.quote(str(work.run.path))}"
    cure = (
        f"{again} --reimport` imports it again; clips that stay the same keep their ids and sides. "
        f"{again} --when-changed keep` uses the clips as they are."
    )
    return replace(import_again(settings), keep=work.told.when_changed == "keep", cure=cure)


def _import_settings(work: Work) -> DataImportSettings:
    data, base = work.settings.data, work.settings.base
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", where=work.run.settings)
    values = {
        "dataset": dataset_of(work).folder,
        "sources": tuple(place for place in data.sources if is_there(place)) or data.sources,
        "language": work.language,
        "family": base_family(base_folder(base), work.settings.family).name,
        "reimport": work.told.reimport,
        "max_left_out": data.max_left_out,
    }
    # Only what run.yaml says differently from the defaults: clips that were imported by hand have options of their own.
    said = {"speaker": data.speaker, "speaker_from": data.speaker_from, "encoding": data.encoding}
    values |= {name: value for name, value in said.items() if value not in (None, "auto")}
    if work.settings.tokenizer.fold_homophones:
        values["fold_homophones"] = True
    return DataImportSettings.model_validate(values)


def _import(work: Work) -> DataImportResult:
    settings = _import_settings(work)
    return data_import(settings, _again(settings, work))


def _decide_split(work: Work) -> Decision:
    dataset = dataset_of(work)
    if not dataset.has_manifest:
        return Decision(False, "there are no clips to be split")
    own = [clip for clip in dataset.clips() if clip.is_used and clip.language == work.language]
    without = sum(clip.split is None for clip in own)
    if without:
        told = f"{without:,} of {counted(len(own), 'clip')}"
        return Decision(True, f"{told} are on no side yet", f"{told} were on no side yet")
    if not own:
        return Decision(False, "there are no clips to be split")
    return Decision(False, f"all {counted(len(own), 'clip')} have their side")


def _split(work: Work) -> DataSplit:
    """What has a side keeps it: a clip that was learnt from must never become one that judges."""
    dataset = dataset_of(work)
    own = [clip for clip in dataset.clips() if clip.is_used and clip.language == work.language]
    if any(clip.split is not None for clip in own):
        return split_the_rest(dataset.folder)
    return data_split(DataSplitSettings(dataset=dataset.folder))


def _decide_prepare(work: Work) -> Decision:
    data, dataset = work.settings.data, dataset_of(work)
    if data.train and data.valid:
        return Decision(False, "run.yaml names its sets (data.train, data.valid)")
    missing = [name for name in ROLES.values() if not is_folder(work.run.data_set(name))]
    if missing:
        names = " and ".join(missing)
        return Decision(True, f"no set for {names} yet", f"there was no set for {names} yet")
    if not dataset.has_manifest:
        return Decision(False, "the sets are there, and no clips that they could be made of")
    why = _other_than(work, dataset.manifest)
    return Decision(bool(why), why or "the sets have every clip, as the manifest and the tokenizer are now")


def _other_than(work: Work, manifest: Path) -> str:
    """Why the sets are not those that the manifest, the sounds and the tokenizer would make; empty if they are."""
    card, ledger = work.card, read_ledger(work.run.data / LEDGER_NAME)
    chosen = chosen_clips(manifest, work.language).clips
    for role in ROLES.values():
        place = work.run.data_set(role)
        try:
            made = open_set(place)
        except VoxgraftError as error:
            return error.finding.found
        if card is not None and made.header.made_from.tokenizer_sha256 != card.tokenizer_sha256:
            return f"{role} was spelled by another tokenizer"
        if card is not None and made.header.made_from.text != text_mark(card.rules):
            return f"{role} was normalised by other text rules"
        if card is not None and made.header.made_from.base_sha256 != card.base["checkpoint_sha256"]:
            return f"{role} was made for another base"
        if ledger.sets.get(role) != made.fingerprint:
            return f"{role} was changed after `prepare` wrote it"
        if why := _other_clips(made, [one for one in chosen if one.role == role], ledger):
            return f"{role}: {why}"
    return ""


def _other_clips(made: ClipSet, wanted: Sequence[WantedClip], ledger: Ledger) -> str:
    infos = {info.id: (info.text, info.speaker, info.recording) for info in made.infos}
    for one in wanted:
        clip, record = one.clip, ledger.clips.get(one.clip.id)
        if record is None or record.audio != clip.audio:
            return f"{clip.id} came later"
        if not _same_sound(one.path, record):
            return f"the sound of {clip.id} was changed"
        if record.left_out is None and infos.get(clip.id) != (clip.text, clip.speaker, clip.recording):
            return f"{clip.id} got another text, speaker or recording"
    gone = infos.keys() - {one.clip.id for one in wanted}
    return f"{first_of(sorted(gone))} was taken out" if gone else ""


def _same_sound(path: Path, record: ClipRecord) -> bool:
    """By content: a copy has another time. A sound that is gone is known by its codes."""
    if not is_file(path):
        return True
    if record.file is None:
        return False
    mark = file_mark(path, record.file) if path.stat().st_size == record.file[0] else None
    return mark is not None and mark[2] == record.file[2]


def _prepare(work: Work) -> PrepareResult:
    return prepare(settings_of(PrepareSettings, work.run))


IMPORT = Stage("import", _decide_import, _import)
SPLIT = Stage("split", _decide_split, _split)
PREPARE = Stage("prepare", _decide_prepare, _prepare)
