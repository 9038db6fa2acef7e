"""Who speaks: a base, what a run has left, or several grafts beside each other on one base, whose weights they share.

Opens models and says which of them speaks a language; says nothing itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from voxgraft.bases import resolve_base_family, resolve_base_folder
from voxgraft.config import parse_settings, read_settings_values
from voxgraft.course import choose_device
from voxgraft.errors import ConfigError, GraftError
from voxgraft.evaluating.held_out import HeldOutData, open_held_out_data
from voxgraft.evaluating.subjects import choose_dtype, detect_trained_output
from voxgraft.evaluating.systems import (
    ModelContext,
    SpeakingModel,
    open_base_model,
    open_grafted_model,
    open_merged_model,
    open_step_model,
)
from voxgraft.families import get_family as family_named
from voxgraft.families.base import BaseFiles
from voxgraft.families.model import SpeechModel
from voxgraft.files import require_file, require_folder
from voxgraft.graft_folder import Graft, load_graft
from voxgraft.journal import RunJournal
from voxgraft.merged_folder import BASELINE_FOLDER_NAME, MERGED_FOLDER_NAME
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.settings import SpeakSettings
from voxgraft.tokenizers import open_tokenizer

__all__ = ["SynthesisModels", "open_synthesis_models"]

BUILT_IN_FAMILY = "tiny"


@dataclass(frozen=True, slots=True)
class SharedModelContext(ModelContext):
    """A place whose base is opened once: every model of it has the same tensors, and layers of its own around them."""

    opened: SpeechModel | None = None

    def model(self, files: BaseFiles | None = None) -> SpeechModel:
        if files is not None or self.opened is None:
            return ModelContext.model(self, files)
        return _copy_sharing_tensors(self.opened)


@dataclass(frozen=True)
class SynthesisModels:
    """Systems by the languages that they speak."""

    place: ModelContext
    base_languages: tuple[str, ...]
    grafts: tuple[SpeakingModel, ...]
    """Of new languages; one of them may speak the old ones too, if there is no base beside it."""
    base: SpeakingModel | None
    held_out: Callable[[], HeldOutData] | None = None
    """Recordings of a run, whose voices can be borrowed."""

    @property
    def new_languages(self) -> list[str]:
        return [str(one.spelling.language) for one in self.grafts]

    @property
    def all(self) -> list[SpeakingModel]:
        return [*self.grafts, *([self.base] if self.base else [])]

    def language(self, asked: str | None) -> str:
        """The language that was asked for, or the only one that can be meant."""
        return _resolve_language(asked, self.new_languages, self.base_languages)

    def system(self, language: str) -> SpeakingModel:
        """Who speaks a language: its graft, else the base, whose gate is closed."""
        own = next((one for one in self.grafts if one.spelling.language == language), None)
        found = own or self.base or self.grafts[0]
        return found


def open_synthesis_models(settings: SpeakSettings, languages: Collection[str | None] = ()) -> SynthesisModels:
    """What the settings name; an error where that is more than one thing, or does not fit together.

    Of `asked`, a language that nobody here speaks is refused before any weights are read.
    """
    if settings.run is not None:
        if settings.graft:
            raise ConfigError("config-value", "--run and --graft are both given", expected="one of the two")
        return _open_run_models(RunFolder(require_folder(settings.run)), settings, languages)
    if settings.which is not None or settings.step is not None:
        found = "--which or --step is given without a run"
        raise ConfigError("config-value", found, expected="--run for these")
    grafts = [load_graft(folder) for folder in settings.graft]
    kind = _require_one_family(grafts)
    place = _build_model_context(settings.base or _find_built_in_base(kind), settings, kind)
    languages = _list_base_languages(place)
    for one in languages:
        _resolve_language(one, [graft.card.language for graft in grafts], languages)
    shared = SharedModelContext(place.family, place.files, place.device, place.dtype, place.model())
    systems = tuple(open_grafted_model(shared, graft) for graft in grafts)
    return SynthesisModels(shared, languages, systems, open_base_model(shared))


def _resolve_language(asked: str | None, new: Sequence[str], old: Sequence[str]) -> str:
    spoken = list(dict.fromkeys([*new, *old]))
    if asked is None:
        if len(new) == 1 or len(spoken) == 1:
            return spoken[0]
        raise ConfigError("speak-language", "no language is given", expected=f"one of {', '.join(spoken)}")
    # Codes such as ff-Adlm are often typed in lower case.
    found = next((one for one in spoken if one.lower() == asked.lower()), None)
    if found is None:
        raise ConfigError("speak-language", f"language {asked!r}", expected=f"one of {', '.join(spoken)}")
    return found


def _open_run_models(run: RunFolder, settings: SpeakSettings, asked: Collection[str | None]) -> SynthesisModels:
    own = parse_settings(RunSettings, read_settings_values(RunSettings, require_file(run.settings)), run.settings)
    base = settings.base or own.base
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", where=run.settings)
    place = _build_model_context(base, settings, own.family)
    graft, languages = load_graft(run.graft), _list_base_languages(place)
    for one in asked:
        _resolve_language(one, [graft.card.language], languages)
    system = _open_trained_output(run, graft, place, settings)
    return SynthesisModels(place, languages, (system,), None, lambda: open_held_out_data(run, own, place, graft))


def _open_trained_output(run: RunFolder, graft: Graft, place: ModelContext, settings: SpeakSettings) -> SpeakingModel:
    if settings.step is not None:
        if settings.which is not None:
            found = "--step and --which are both given"
            raise ConfigError("config-value", found, expected="one of the two", where=run.path)
        return open_step_model(place, run, settings.step)
    which = settings.which or detect_trained_output(run, RunJournal(run.journal).read())
    if which == "graft":
        return open_grafted_model(place, graft)
    return open_merged_model(place, run.path / (MERGED_FOLDER_NAME if which == "merged" else BASELINE_FOLDER_NAME))


def _build_model_context(base: Path, settings: SpeakSettings, kind: str | None) -> ModelContext:
    folder = require_folder(resolve_base_folder(base))
    found = resolve_base_family(folder, settings.family or kind)
    device = choose_device(settings.device)
    return ModelContext(found, found.files(folder), device, choose_dtype(settings.precision, device))


def _find_built_in_base(kind: str | None) -> Path:
    """The base that comes with voxgraft, for grafts of its family and for nobody in particular."""
    shipped = family_named(kind or BUILT_IN_FAMILY).shipped_folder()
    if shipped is None:
        cure = "name the base that the graft was made on: --base FOLDER."
        raise ConfigError("config-missing", f"`base` is not given, and {kind} does not come with voxgraft", cure=cure)
    return shipped


def _require_one_family(grafts: Sequence[Graft]) -> str | None:
    languages = [graft.card.language for graft in grafts]
    if twice := sorted({language for language in languages if languages.count(language) > 1}):
        raise GraftError("speak-grafts", f"{languages.count(twice[0])} grafts of {twice[0]}", expected="one a language")
    kinds = sorted({graft.card.family for graft in grafts})
    if len(kinds) > 1:
        raise GraftError("speak-grafts", f"grafts on {' and on '.join(kinds)}", expected="grafts on one base")
    return kinds[0] if kinds else None


def _list_base_languages(place: ModelContext) -> tuple[str, ...]:
    """Those that the base speaks, by its release."""
    rows = open_tokenizer(place.files.tokenizer).size + place.family.spare_rows
    return tuple(place.family.describe(place.files, rows).languages)


def _copy_sharing_tensors(model: SpeechModel) -> SpeechModel:
    """A model of its own layers around the very same tensors: growing or adapting it leaves the other as it is."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
