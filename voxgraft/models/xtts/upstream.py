"""XTTS's own program, the package coqui-tts: the folders that it loads, and how the new language reaches its tokenizer.

The package reads sizes and languages from config.json, so a checkpoint with more rows needs no change there. Its
tokenizer ends with an error for every language that it does not know: `load.py` gives it one that knows the new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from voxgraft.companions.environments import CompanionProcess
from voxgraft.core.errors import ConfigError
from voxgraft.models.base import (
    GROWN,
    MERGED,
    TEXT_PACKAGE_LOADER,
    BaseFiles,
    DecodedUtterance,
    ExportInfo,
    UpstreamFolder,
    UpstreamProgram,
    compare_likeliest_codes,
    find_side_files,
)
from voxgraft.models.speech_model import compute_speech_latents
from voxgraft.models.xtts.family import (
    CHECKPOINT_NAME,
    DVAE_NAME,
    MEL_STATS_FILE,
    SPEAKERS_NAME,
    TOKENIZER_NAME,
)
from voxgraft.models.xtts.model import SPEAKER_ARRAY, XTTSModel
from voxgraft.models.xtts.shapes import CONFIG_NAME, read_xtts_config

# What the program reads beside its three files, and what for; it speaks without them.
OPTIONAL_FILES = {
    SPEAKERS_NAME: "built-in voices",
    DVAE_NAME: "from a recording to codes; fine-tuning only",
    MEL_STATS_FILE: "scale of the mel spectrograms; fine-tuning only",
}

# Of samples between -1 and 1. Rounding alone stays below 1e-4, and a wrong step changes them by 0.07 or more.
MAX_SAMPLE_DIFFERENCE = 0.02

_LOADER = '''"""Load this export with coqui-tts (0.28.0 was tested), whose tokenizer does not know the new language.

    from load import LANGUAGE, load
    model = load(LANGUAGE)
    latents, speaker = model.get_conditioning_latents(audio_path=["voice.wav"])
    wav = model.inference("...", LANGUAGE, latents, speaker)["wav"]  # 24 kHz

The old languages are spoken by {grown}/, the base's own weights; the new one by {merged}/. Text of the new language
is normalized as in training, by the package voxgraft_text next to this file. Words of an old language may be marked in
it: [en]words[/en].
"""

import hashlib
import importlib.util
import re
import sys
from pathlib import Path

from TTS.tts.configs.xtts_config import XttsConfig
from TTS.tts.layers.xtts.tokenizer import VoiceBpeTokenizer
from TTS.tts.models.xtts import Xtts

FOLDER = Path(__file__).resolve().parent
LANGUAGE, TAG = {language!r}, {tag!r}
# The program cuts the region off a code before its tokenizer sees it.
CODES = {{LANGUAGE.lower(), LANGUAGE.lower().split("-")[0]}}
LANGUAGE_TAG_START = re.compile(r"(?<=\\[)(?=[a-z]{{2,3}}(?:-[a-z0-9]+)*\\])")


{text_package}
LANGUAGES = sys.modules[prepared.__module__].LANGUAGES
spans = sys.modules[prepared.__module__ + ".spans"]


class GraftedTokenizer(VoiceBpeTokenizer):
    """Encodes text of the new language as in training."""

    def preprocess_text(self, txt, lang):
        return re.sub(r"\\s+", " ", txt.lower()) if lang.lower() in CODES else super().preprocess_text(txt, lang)

    def encode(self, txt, lang):
        if lang.lower() not in CODES:
            return super().encode(txt, lang)
        self.char_limits.setdefault(lang, 250)
        self.check_input_length(txt, lang)
        ids, spaced, first = [self.tokenizer.token_to_id(TAG)], False, True
        for code, part in spans.find_spans(txt, lambda code: code in LANGUAGES or code in CODES) or [(None, txt)]:
            before, words, after = spans.split_seams(part)
            if words.strip():
                if not first and (spaced or before):
                    ids += self.tokenizer.encode("[SPACE]").ids
                ids += self._encode_words(self.preprocess_text(words, code or lang))
                spaced, first = False, False
            spaced = spaced or bool(before or after)
        return ids

    def _encode_words(self, words):
        """A tag that was typed in the text is read as its letters."""
        parts = LANGUAGE_TAG_START.split(words.replace(" ", "[SPACE]"))
        return [token for part in parts for token in self.tokenizer.encode(part).ids]


class GraftedXtts(Xtts):
    """Normalises text of the new language before the program lower-cases it."""

    def inference(self, text, language, *args, **options):
        text = prepared(text) if language.lower() in CODES else text
        return super().inference(text, language, *args, **options)

    def inference_stream(self, text, language, *args, **options):
        text = prepared(text) if language.lower() in CODES else text
        return super().inference_stream(text, language, *args, **options)


def load(language, device="cpu", **options):
    """The model for a language; options are those of Xtts.load_checkpoint."""
    is_new = language.lower() in CODES
    kind, folder = (GraftedXtts, FOLDER / "{merged}") if is_new else (Xtts, FOLDER / "{grown}")
    config = XttsConfig()
    config.load_json(str(folder / "config.json"))
    model = kind(config)
    model.load_checkpoint(config, checkpoint_dir=str(folder), **options)
    if is_new:
        model.tokenizer = GraftedTokenizer(str(folder / "vocab.json"))
    return model.to(device)
'''

# Markers stay: the tokenizer in load.py reads each part by the rules of its language.
_TEXT_STEP_SOURCE = """    from .spans import find_spans, rewrite_parts

    own = RULES.language.lower()
    if find_spans(text, lambda code: code in LANGUAGES or code == own) is None:
        return RULES.apply(text)
    normalize = RULES.normalizer.normalise
    return rewrite_parts(
        text,
        lambda code: code in LANGUAGES or code == own,
        lambda code, part: normalize(part).text if code in (None, own) else part,
    )"""


class XTTSProgram(UpstreamProgram):
    """The package `coqui-tts`."""

    title: ClassVar[str] = "coqui-tts 0.28.0"
    companion_takes_codes: ClassVar[bool] = True

    def folder(self, files: BaseFiles, pieces: int, language: str) -> UpstreamFolder:
        side_files, _ = find_side_files(files, OPTIONAL_FILES)
        read = {
            CONFIG_NAME: "sizes and languages: gpt_number_text_tokens is the number of text rows",
            CHECKPOINT_NAME: "all tensors under the key `model`, strict: every name and shape",
            TOKENIZER_NAME: "text tokenizer",
        }
        return UpstreamFolder(
            CHECKPOINT_NAME,
            TOKENIZER_NAME,
            side_files,
            {CONFIG_NAME: build_config_text(files, pieces, language)},
            read={**read, **OPTIONAL_FILES},
        )

    def loader(self, facts: ExportInfo, files: BaseFiles) -> str:  # noqa: ARG002 (one for all)
        return _LOADER.format(
            language=facts.language, tag=facts.tag, grown=GROWN, merged=MERGED, text_package=TEXT_PACKAGE_LOADER
        )

    def text_step(self, files: BaseFiles) -> tuple[str, Mapping[str, str]]:  # noqa: ARG002 (one for all)
        return _TEXT_STEP_SOURCE, {}

    def usage(self, facts: ExportInfo, files: BaseFiles, *, drop_in: bool) -> list[str]:  # noqa: ARG002 (one for all)
        return [
            "from load import load  # in this folder",
            "",
            f"model = load({facts.language!r})",
            'latents, speaker = model.get_conditioning_latents(audio_path=["voice.wav"])',
            f'wav = model.inference("...", {facts.language!r}, latents, speaker)["wav"]  # 24 kHz',
        ]

    @torch.no_grad()
    def compare_with(self, companion: CompanionProcess, utterance: DecodedUtterance) -> dict[str, tuple[str, bool]]:
        """The likeliest code at every code that was spoken, and the sound of the same states, in both programs."""
        files, model, text_ids, codes = utterance.files, utterance.model, utterance.text_ids, utterance.codes
        arrays: dict[str, NDArray[np.generic]] = {
            "text": np.asarray(text_ids, dtype=np.int64),
            "codes": np.asarray(codes, dtype=np.int64),
            "latents": np.asarray(utterance.condition, dtype=np.float32),
        }
        folder = str(files.folder.resolve())
        answer = companion.ask("logits", arrays, folder=folder, checkpoint=str(files.checkpoint.resolve()))
        (states,) = compute_speech_latents(model, [text_ids], [utterance.condition], [codes])
        states = states[: len(codes)]
        assert isinstance(model, XTTSModel)
        own_logits = model.gpt.mel_head(states).float().cpu().numpy()  # the states are normed already
        compared = {"codes": compare_likeliest_codes(own_logits, answer["logits"])}
        voice = utterance.voice
        if SPEAKER_ARRAY not in voice.voice:
            return compared
        own_states = states.float().cpu().numpy()
        (own_wave,) = utterance.vocoder.sound([codes], [voice], [own_states])
        arrays = {"states": own_states, "speaker": np.asarray(voice.voice[SPEAKER_ARRAY], dtype=np.float32).reshape(-1)}
        wave = companion.ask("sound", arrays, folder=folder, checkpoint=str(files.checkpoint.resolve()))["samples"]
        if wave.shape != own_wave.shape:
            return {**compared, "sound": (f"is {len(wave):,} samples, and {len(own_wave):,} here", False)}
        distance = float(np.abs(wave - own_wave).max())
        sound = f"differs by up to {distance:.1g} over {len(wave):,} samples, from the same states"
        return {**compared, "sound": (sound, distance <= MAX_SAMPLE_DIFFERENCE)}


def build_config_text(files: BaseFiles, pieces: int, language: str) -> str:
    """The base's config with another number of text rows and one language more."""
    assert files.config is not None
    settings = read_xtts_config(files.config)
    section, languages = settings.get("model_args", {}), settings.get("languages", [])
    if not isinstance(section, dict) or not isinstance(languages, list):
        wrong = "model_args" if not isinstance(section, dict) else "languages"
        expected = "keys with values" if wrong == "model_args" else "a list of codes"
        found = f"{wrong} is {str(settings[wrong])[:40]!r}"
        raise ConfigError("base-config", found, expected=expected, where=files.config)
    # The program compares the code without its region.
    codes = list(dict.fromkeys([*languages, language.lower().partition("-")[0]]))
    changed = {**settings, "model_args": {**section, "gpt_number_text_tokens": pieces}, "languages": codes}
    return json.dumps(changed, ensure_ascii=False, indent=4) + "\n"
