"""Stages of the data: recordings to clips, clips to sides, clips to sets. Decides by journals, manifest and ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from voxgraft.bases import base_family, base_folder
from voxgraft.corpus.clips import ClipSet
from voxgraft.corpus.sets import open_set
from voxgraft.data_import import DataImportResult, data_import
from voxgraft.data_settings import DataImportSettings, DataSplitSettings
from voxgraft.data_split import DataSplit, data_split, split_the_rest
from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.files import is_file, is_folder
from voxgraft.going.stage import Decision, Stage, Work
from voxgraft.importing.dataset import Dataset
from voxgraft.importing.running import waiting_sources
from voxgraft.importing.sources import find_sources
from voxgraft.prepare import PrepareResult, prepare
from voxgraft.preparing.choosing import ROLES, WantedClip, chosen_clips, manifest_path
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
    sources, dataset = work.settings.data.sources, dataset_of(work)
    if not sources:
        return Decision(False, "run.yaml names no data.sources")
    found = find_sources(sources, work.language).sources
    if not dataset.has_manifest:
        told = f"{len(found):,} recordings with texts, and"
        return Decision(True, f"{told} no clips yet", f"{told} there were no clips yet")
    waiting = waiting_sources(dataset, found)
    if waiting:
        names = _named([source.name for source in waiting])
        return Decision(
            True, f"not imported yet, or changed since: {names}", f"was not imported yet, or had changed since: {names}"
        )
    return Decision(False, f"all {len(found):,} recordings are in {dataset.folder}")


def _import(work: Work) -> DataImportResult:
    base = work.settings.base
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", where=work.run.settings)
    kind = base_family(base_folder(base), work.settings.family).name
    values = {"dataset": dataset_of(work).folder, "sources": work.settings.data.sources, "language": work.language}
    values["fold_homophones"] = work.settings.tokenizer.fold_homophones
    return data_import(DataImportSettings.model_validate({**values, "family": kind}))


def _decide_split(work: Work) -> Decision:
    dataset = dataset_of(work)
    if not dataset.has_manifest:
        return Decision(False, "there are no clips to be split")
    own = [clip for clip in dataset.clips() if clip.is_used and clip.language == work.language]
    without = sum(clip.split is None for clip in own)
    if without:
        told = f"{without:,} of {len(own):,} clips"
        return Decision(True, f"{told} are on no side yet", f"{told} were on no side yet")
    return Decision(False, f"all {len(own):,} clips have their side")


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
    return f"{_named(sorted(gone))} was taken out" if gone else ""


def _same_sound(path: Path, record: ClipRecord) -> bool:
    """By size and time; a sound that is gone is known by its codes."""
    if not is_file(path):
        return True
    status = path.stat()
    return record.file is not None and record.file[:2] == (status.st_size, status.st_mtime_ns)


def _prepare(work: Work) -> PrepareResult:
    return prepare(settings_of(PrepareSettings, work.run))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


IMPORT = Stage("import", _decide_import, _import)
SPLIT = Stage("split", _decide_split, _split)
PREPARE = Stage("prepare", _decide_prepare, _prepare)
