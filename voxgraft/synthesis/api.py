"""The Python interface to speech: `load` opens models, `TTS` speaks. `voxgraft/__init__.py` exports both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import SpeakSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError, GraftError
from voxgraft.core.files import is_file, is_folder, path_exists, read_json
from voxgraft.core.languages import count_letters_by_script, count_scripts, find_exemplar
from voxgraft.core.run import RUN_FILE, RunFolder, RunJournal
from voxgraft.models import resolve_base_folder
from voxgraft.models.base import MERGED, Vocoder
from voxgraft.synthesis.command import render_pieces, stream_speech, synthesize
from voxgraft.synthesis.engine import (
    SynthesisModels,
    detect_trained_output,
    open_base_model,
    open_checkpoint_model,
    open_model_context,
    open_synthesis_models,
)
from voxgraft.synthesis.inputs import ReferenceVoice, VoiceLoader, read_utterances
from voxgraft.text.spans import find_spans

Wave = NDArray[np.float32]
GRAFT_FILE, EXPORT_FILE = "graft.json", "export.json"
"""Files by which a folder is known to be a graft or an export."""


class TTS:
    """Models of one base that speak. Made by `load`; may be used by one thread at a time."""

    def __init__(self, models: SynthesisModels) -> None:
        self.models = models
        vocoder = models.context.vocoder()
        if vocoder is None:
            found = f"{models.context.family.name} cannot produce sound here: the base has no vocoder"
            raise ConfigError("no-waveform-end", found, where=models.context.files.folder)
        vocoder.validate()
        self.vocoder: Vocoder = vocoder
        self._known: dict[str | None, ReferenceVoice] = {}

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of all languages, those of the grafts first."""
        return tuple(dict.fromkeys([*self.models.new_languages, *self.models.base_languages]))

    @property
    def sample_rate(self) -> int:
        """Samples per second of every waveform."""
        return self.vocoder.sample_rate

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the base's own voices. A base that clones voices also takes recordings."""
        return tuple(self.models.context.family.voices(self.models.context.files))

    def speak(
        self,
        text: str,
        *,
        language: str | None = None,
        voice: str | Path | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Wave:
        """The text as one waveform. `settings` are those of `voxgraft speak` (temperature, pause, exaggeration ...).

        A recording that is given as the voice is read once and kept.
        """
        own, voices = self._prepare(language, voice, seed, settings)
        spoken = synthesize(self.models, voices, read_utterances([text], None), own, self.vocoder)
        self._known |= {own.voice: voices.voice(None)}
        (waves,) = render_pieces(spoken, self.vocoder, own.batch)
        silences = [np.zeros(round(one.pause_seconds * self.sample_rate), np.float32) for one in spoken[0].pieces]
        return np.concatenate([part for pair in zip(waves, silences, strict=True) for part in pair])

    def stream(
        self,
        text: str,
        *,
        language: str | None = None,
        voice: str | Path | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Iterator[Wave]:
        """The text in waveforms that follow each other without a gap, the first as soon as there is one."""
        own, voices = self._prepare(language, voice, seed, settings)
        (utterance,) = read_utterances([text], None)
        chunks = stream_speech(self.models, voices, utterance, own, self.vocoder)
        self._known |= {own.voice: voices.voice(None)}
        return chunks

    def detect_language(self, text: str) -> str | None:
        """The only language here that is written in the script of most letters; None where that is not one."""
        languages = find_languages_by_script(text, self.languages)
        return languages[0] if len(languages) == 1 else None

    def _prepare(
        self, language: str | None, voice: str | Path | None, seed: int, settings: dict[str, Any]
    ) -> tuple[SpeakSettings, VoiceLoader]:
        own = read_style(seed=seed, language=language, voice=None if voice is None else str(voice), **settings)
        return own, VoiceLoader(self.models, own, self._known, self.vocoder)


def read_style(**settings: Any) -> SpeakSettings:
    """Settings of `speak` that are given by name; those that say what is spoken, or where to, are refused."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name in ("text", "file", "run", "graft", "base", "output", "codes", "device"):
        if name in given:
            raise ConfigError("config-unknown-key", f"`{name}` is not a setting of a voice", where="speak")
    return parse_settings(SpeakSettings, given, "speak")


def find_languages_by_script(text: str, languages: Sequence[str]) -> list[str]:
    """Of the languages those that are written in the script that most letters of the text have."""
    # Words in spans have a language already.
    own = "".join(part for code, part in find_spans(text) or () if code is None)
    letters = count_letters_by_script(Counter(own if any(map(str.isalpha, own)) else text)).most_common(1)
    if not letters:
        return []
    exemplars = {language: find_exemplar(language) for language in languages}
    return [
        language for language, entry in exemplars.items() if entry and letters[0][0] in count_scripts(entry.letters)
    ]


def load(
    source: str | Path | Sequence[str | Path] = "tiny",
    *,
    base: str | Path | None = None,
    device: str | None = None,
    precision: str | None = None,
    variant: str | None = None,
    step: int | None = None,
) -> TTS:
    """Open what speaks: a run, a graft, a base, an export, or a list of runs and grafts of different languages.

    `base` is needed for a graft or an export whose base does not come with voxgraft. In a list, all share one base in
    memory. `variant` and `step` choose among the results of a single run.
    """
    names = [source] if isinstance(source, str | Path) else list(source)
    values: dict[str, Any] = {"device": device, "precision": precision, "variant": variant, "step": step}
    values = {name: value for name, value in values.items() if value is not None}
    folders = [Path(name) for name in names]
    if len(folders) == 1 and is_file(folders[0] / RUN_FILE):
        values["run"] = folders[0]
    elif len(folders) == 1 and is_file(folders[0] / EXPORT_FILE):
        return TTS(_open_export(folders[0], base, device, precision))
    elif len(folders) == 1 and not is_file(folders[0] / GRAFT_FILE):
        if not is_folder(resolve_base_folder(folders[0])):
            wanted = f"a folder with {RUN_FILE}, {GRAFT_FILE} or {EXPORT_FILE}, a base, or tiny"
            found = f"{folders[0]} {'is a file' if path_exists(folders[0]) else 'does not exist'}"
            raise FileError("file-missing", found, expected=wanted, where=folders[0])
        values["base"] = folders[0]
    else:
        values["graft"] = tuple(map(_find_graft, folders))
        if base is None:
            # The runs know their base; grafts alone do not.
            runs = [folder / RUN_FILE for folder in folders if is_file(folder / RUN_FILE)]
            bases = {read_settings_values(RunSettings, path).get("base") for path in runs}
            base = cast(str, bases.pop()) if len(bases) == 1 else None
    if base is not None:
        values["base"] = base
    return TTS(open_synthesis_models(parse_settings(SpeakSettings, values, "load")))


def _find_graft(folder: Path) -> Path:
    """The graft in a run, or the folder itself. A run that was trained into one checkpoint has none to share a base."""
    if not is_file(folder / RUN_FILE):
        return folder
    run = RunFolder(folder)
    if (which := detect_trained_output(run, RunJournal(run.journal).read())) != "graft":
        found = f"the last training of {folder.name} was {which}, which does not create a graft"
        raise GraftError("speak-grafts", found, expected="runs that were trained gated", where=folder)
    return run.graft


def _open_export(folder: Path, base: str | Path | None, device: str | None, precision: str | None) -> SynthesisModels:
    """The new language by the export's merged checkpoint, the others by the base."""
    card = read_json(folder / EXPORT_FILE)
    family, language = (str(card.get(name)) for name in ("family", "language")) if isinstance(card, dict) else ("", "")
    place = folder / MERGED
    if not is_folder(place):
        found = f"{folder.name} has no {MERGED}/"
        cure = "export again with --parts both or --parts merged. Only the original program can load a drop-in export."
        raise GraftError("speak-grafts", found, expected=f"an export with {MERGED}/", where=folder, cure=cure)
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", expected="the export's base", where=folder)
    context = open_model_context(Path(base), family, device, precision)
    merged = open_checkpoint_model(context, place, language)
    return SynthesisModels(context, context.languages(), (merged,), open_base_model(context))
