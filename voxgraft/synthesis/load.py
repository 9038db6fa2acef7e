"""Who speaks: a base, what a run has left, or several grafts beside each other on one base, whose weights they share.

Opens models and says which of them speaks a language; says nothing itself.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.audio.files import read_audio
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import SpeakSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError, GraftError
from voxgraft.core.files import is_file, require_file, require_folder
from voxgraft.core.journal import RunJournal
from voxgraft.core.run import RunFolder
from voxgraft.dataset.indextts2_manifest import read_npy
from voxgraft.evaluation.held_out import HeldOutData, open_held_out_data
from voxgraft.evaluation.subjects import choose_dtype, detect_trained_output
from voxgraft.evaluation.systems import (
    ModelContext,
    SpeakingModel,
    open_base_model,
    open_grafted_model,
    open_merged_model,
    open_step_model,
)
from voxgraft.graft.folder import Graft, load_graft, resolve_base_family, resolve_base_folder
from voxgraft.models import get_family as family_named
from voxgraft.models.base import BaseFiles, Clip, ClipEncoder, SpeakingStyle, encode_recording, unknown_voice_error
from voxgraft.models.speech_model import SpeechModel
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.outputs import BASELINE_FOLDER_NAME, MERGED_FOLDER_NAME
from voxgraft.training.replay import ReferenceVoice, choose_voices
from voxgraft.training.setup import choose_device

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


_EMOTION_SHARES = re.compile(r"\d*\.?\d+(?:,\d*\.?\d+)+")
"""Numbers with commas between them: shares of named emotions, where else a file is named."""


RECORDING_SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a")
NO_IMITATION_CURE = "choose one of these names, or speak with a base that imitates a recording (chatterbox, indextts2)."


def _is_recording_name(name: str) -> bool:
    """Whether somebody means a sound file and no name of a voice."""
    return is_file(Path(name)) or Path(name).suffix.lower() in RECORDING_SUFFIXES


@dataclass
class VoiceLoader:
    """Voices by what they are called, as far as they were asked for."""

    speakers: SynthesisModels
    settings: SpeakSettings
    _found: dict[str | None, ReferenceVoice] = field(default_factory=dict)
    _encoder: ClipEncoder | None = None
    _style: SpeakingStyle | None = None

    def voice(self, asked: str | None) -> ReferenceVoice:
        """The voice of an utterance: its own, that of all, or whatever is there."""
        name = asked or self.settings.voice
        if name not in self._found:
            self._found[name] = self._choose_default_voice() if name is None else self._load_voice(name)
        return self._found[name]

    def condition(self, voice: ReferenceVoice) -> Any:
        """What the model is given."""
        family = self.speakers.place.family
        return family.apply_style(family.condition(voice.clip), self._resolve_style())

    def _load_voice(self, name: str) -> ReferenceVoice:
        place = self.speakers.place
        own = place.family.voices(place.files)
        if name not in own and not place.family.clones_voices and _is_recording_name(name):
            found = f"{place.family.name} speaks with voices of its own and cannot imitate the recording {name}"
            expected = f"one of {', '.join(own)}"
            raise ConfigError(
                "voice-unknown", found, expected=expected, where=place.files.folder, cure=NO_IMITATION_CURE
            )
        if name in own or not place.family.clones_voices:
            return ReferenceVoice(name, place.family.voice(place.files, name))
        if not is_file(Path(name)):
            raise unknown_voice_error(name, own, place.files.folder)
        return ReferenceVoice(Path(name).name, self._encode_recording(Path(name)))

    def _choose_default_voice(self) -> ReferenceVoice:
        speakers = self.speakers
        for name, clip in speakers.place.family.voices(speakers.place.files).items():
            return ReferenceVoice(name, clip)
        if speakers.held_out is not None:
            held_out = speakers.held_out()
            sets = held_out.sets.get(speakers.new_languages[0]) or held_out.all_sets
            if sets:
                return choose_voices(sets, held_out.min_prompt_seconds, 1, held_out.seed)[0]
        found = f"{speakers.place.family.name} has no voices of its own, and none is given"
        raise FileError("speak-voice", found, expected="--voice FILE.wav", where=speakers.place.files.folder)

    def _resolve_style(self) -> SpeakingStyle:
        if self._style is None:
            settings = self.settings
            emotion, weight = None, settings.emotion_weight
            if settings.emotion is not None and _EMOTION_SHARES.fullmatch(str(settings.emotion)):
                emotion, weight = self._mixed(str(settings.emotion), 1.0 if weight is None else weight)
            elif settings.emotion is not None:
                emotion = self._load_emotion(settings.emotion)
            self._style = SpeakingStyle(settings.exaggeration, emotion, weight)
        return self._style

    def _mixed(self, shares: str, weight: float) -> tuple[Clip, float]:
        """Of the family's named emotions; what they leave of the whole is the voice's own."""
        place = self.speakers.place
        emotion, whole = place.family.mix_emotions(place.files, [float(share) for share in shares.split(",")])
        return emotion, whole * weight

    def _load_emotion(self, path: Path) -> Clip:
        """Of a recording, or as a vector of the model's own width, as it is kept of prepared clips."""
        if path.suffix.lower() == ".npy":
            return Clip(np.zeros(0, dtype=np.int64), {"emotion": read_npy(path, "floats").astype(np.float32)})
        family, voice = self.speakers.place.family, self.voice(None).clip
        family.apply_style(
            family.condition(voice), SpeakingStyle(emotion=voice)
        )  # who knows no emotions says so before all else
        return self._encode_recording(path)

    def _encode_recording(self, path: Path) -> Clip:
        samples, rate = read_audio(path, code="wav-form")
        if self._encoder is None:
            place = self.speakers.place
            # The encoder of IndexTTS-2 is part of the base; a graft has it unchanged.
            self._encoder = place.family.encoder(place.files, self.speakers.all[-1].model)
        return encode_recording(self._encoder, samples, rate)
