"""Who speaks: a base, what a run has left, or several grafts beside each other on one base, whose weights they share.

Opens models and says which of them speaks a language; says nothing itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from voxgraft.bases import base_family, base_folder
from voxgraft.config import read_settings, settings_from
from voxgraft.course import chosen_device
from voxgraft.errors import ConfigError, GraftError
from voxgraft.evaluating.held_out import HeldOut, open_held_out
from voxgraft.evaluating.subjects import dtype_of, left_by
from voxgraft.evaluating.systems import Place, System, base_system, grafted, merged, of_step
from voxgraft.families import family as family_named
from voxgraft.families.base import BaseFiles
from voxgraft.families.model import SpeechModel
from voxgraft.files import existing_file, existing_folder
from voxgraft.graft_folder import Graft, open_graft
from voxgraft.journal import Journal
from voxgraft.merged_folder import MERGED_NAME, SEEDS_NAME
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.settings import SpeakSettings
from voxgraft.tokenizers import open_tokenizer

__all__ = ["Speakers", "open_speakers"]

BUILT_IN = "tiny"


@dataclass(frozen=True, slots=True)
class SharedPlace(Place):
    """A place whose base is opened once: every model of it has the same tensors, and layers of its own around them."""

    opened: SpeechModel | None = None

    def model(self, files: BaseFiles | None = None) -> SpeechModel:
        if files is not None or self.opened is None:
            return Place.model(self, files)
        return _sharing(self.opened)


@dataclass(frozen=True)
class Speakers:
    """Systems by the languages that they speak."""

    place: Place
    base_languages: tuple[str, ...]
    grafts: tuple[System, ...]
    """Of new languages; one of them may speak the old ones too, if there is no base beside it."""
    base: System | None
    held_out: Callable[[], HeldOut] | None = None
    """Recordings of a run, whose voices can be borrowed."""

    @property
    def new_languages(self) -> list[str]:
        return [str(one.spelling.language) for one in self.grafts]

    @property
    def all(self) -> list[System]:
        return [*self.grafts, *([self.base] if self.base else [])]

    def language(self, asked: str | None) -> str:
        """The language that was asked for, or the only one that can be meant."""
        return _language(asked, self.new_languages, self.base_languages)

    def system(self, language: str) -> System:
        """Who speaks a language: its graft, else the base, whose gate is closed."""
        own = next((one for one in self.grafts if one.spelling.language == language), None)
        found = own or self.base or self.grafts[0]
        return found


def open_speakers(settings: SpeakSettings, asked: Collection[str | None] = ()) -> Speakers:
    """What the settings name; an error where that is more than one thing, or does not fit together.

    Of `asked`, a language that nobody here speaks is refused before any weights are read.
    """
    if settings.run is not None:
        if settings.graft:
            raise ConfigError("config-value", "--run and --graft are both given", expected="one of the two")
        return _of_run(RunFolder(existing_folder(settings.run)), settings, asked)
    if settings.which is not None or settings.step is not None:
        found = "--which or --step is given without a run"
        raise ConfigError("config-value", found, expected="--run for these")
    grafts = [open_graft(folder) for folder in settings.graft]
    kind = _one_family(grafts)
    place = _place(settings.base or _built_in(kind), settings, kind)
    languages = _languages(place)
    for one in asked:
        _language(one, [graft.card.language for graft in grafts], languages)
    shared = SharedPlace(place.family, place.files, place.device, place.dtype, place.model())
    systems = tuple(grafted(shared, graft) for graft in grafts)
    return Speakers(shared, languages, systems, base_system(shared))


def _language(asked: str | None, new: Sequence[str], old: Sequence[str]) -> str:
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


def _of_run(run: RunFolder, settings: SpeakSettings, asked: Collection[str | None]) -> Speakers:
    own = settings_from(RunSettings, read_settings(RunSettings, existing_file(run.settings)), run.settings)
    base = settings.base or own.base
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", where=run.settings)
    place = _place(base, settings, own.family)
    graft, languages = open_graft(run.graft), _languages(place)
    for one in asked:
        _language(one, [graft.card.language], languages)
    system = _left(run, graft, place, settings)
    return Speakers(place, languages, (system,), None, lambda: open_held_out(run, own, place, graft))


def _left(run: RunFolder, graft: Graft, place: Place, settings: SpeakSettings) -> System:
    if settings.step is not None:
        if settings.which is not None:
            found = "--step and --which are both given"
            raise ConfigError("config-value", found, expected="one of the two", where=run.path)
        return of_step(place, run, settings.step)
    which = settings.which or left_by(run, Journal(run.journal).read())
    if which == "graft":
        return grafted(place, graft)
    return merged(place, run.path / (MERGED_NAME if which == "merged" else SEEDS_NAME))


def _place(base: Path, settings: SpeakSettings, kind: str | None) -> Place:
    folder = existing_folder(base_folder(base))
    found = base_family(folder, settings.family or kind)
    device = chosen_device(settings.device)
    return Place(found, found.files(folder), device, dtype_of(settings.precision, device))


def _built_in(kind: str | None) -> Path:
    """The base that comes with voxgraft, for grafts of its family and for nobody in particular."""
    shipped = family_named(kind or BUILT_IN).shipped()
    if shipped is None:
        cure = "name the base that the graft was made on: --base FOLDER."
        raise ConfigError("config-missing", f"`base` is not given, and {kind} does not come with voxgraft", cure=cure)
    return shipped


def _one_family(grafts: Sequence[Graft]) -> str | None:
    languages = [graft.card.language for graft in grafts]
    if twice := sorted({language for language in languages if languages.count(language) > 1}):
        raise GraftError("speak-grafts", f"{languages.count(twice[0])} grafts of {twice[0]}", expected="one a language")
    kinds = sorted({graft.card.family for graft in grafts})
    if len(kinds) > 1:
        raise GraftError("speak-grafts", f"grafts on {' and on '.join(kinds)}", expected="grafts on one base")
    return kinds[0] if kinds else None


def _languages(place: Place) -> tuple[str, ...]:
    """Those that the base speaks, by its release."""
    rows = open_tokenizer(place.files.tokenizer).size + place.family.spare_rows
    return tuple(place.family.describe(place.files, rows).languages)


def _sharing(model: SpeechModel) -> SpeechModel:
    """A model of its own layers around the very same tensors: growing or adapting it leaves the other as it is."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
