"""Chatterbox's own program: the files that its `from_local` reads, and how it is reported for another number of rows.

The published package (0.1.7) has its file names and its 2454 text rows in code, and switches its alignment analyzer on
at exactly that number. The analyzer watches heads that were found for the old languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from voxgraft.audio.features import exact_float32
from voxgraft.checkpoints.load import read_tensor_shapes
from voxgraft.companions.environments import CompanionProcess
from voxgraft.models.base import (
    GROWN,
    MERGED,
    REFERENCE_AUDIO,
    TEXT_PACKAGE_LOADER,
    BaseFiles,
    DecodedUtterance,
    ExportInfo,
    PublishedTensors,
    UpstreamFolder,
    UpstreamProgram,
    compare_likeliest_codes,
    find_side_files,
    require_exact_tensors,
)
from voxgraft.models.chatterbox.encoder import SpeechTokenizerSize, VoiceEncoder
from voxgraft.models.chatterbox.family import (
    CANGJIE_NAME,
    CANGJIE_PURPOSE,
    CONDITIONS_NAME,
    CONDITIONS_PURPOSE,
    ENGLISH_RELEASE,
    ENGLISH_ROWS,
    RELEASE_TITLES_BY_ROWS,
    RELEASES,
    S3GEN_FILES,
    S3GEN_PURPOSE,
    SPEECH_TOKENIZER_PREFIX,
    VOICE_ENCODER_FILES,
    VOICE_ENCODER_PURPOSE,
    T3Size,
)
from voxgraft.models.chatterbox.flow import FlowSize
from voxgraft.models.chatterbox.model import read_built_in_voice
from voxgraft.models.chatterbox.s3gen import S3GenSize, S3GenVocoder, read_built_in_reference, validate_s3gen_file
from voxgraft.models.speech_model import compute_speech_latents
from voxgraft.nn.layers import init_empty_weights

# Whose names the multilingual program loads by default, whatever the release.
MULTILINGUAL_RELEASE = RELEASES[0]
REQUIRED_FILES = {"ve.pt": VOICE_ENCODER_PURPOSE, "s3gen.pt": S3GEN_PURPOSE}
REQUIRED_ENGLISH_FILES = {"ve.safetensors": VOICE_ENCODER_PURPOSE, "s3gen.safetensors": S3GEN_PURPOSE}
OPTIONAL_FILES = {CONDITIONS_NAME: CONDITIONS_PURPOSE, CANGJIE_NAME: CANGJIE_PURPOSE}

_MULTILINGUAL_LOADER = '''"""Load this export with chatterbox-tts, which supports only {base_pieces:,} text rows.

    from load import LANGUAGE, load
    model = load(LANGUAGE)
    wav = model.generate("...", language_id=LANGUAGE, audio_prompt_path="voice.wav")

The old languages are spoken by {grown}/, the base's own weights, with the alignment analyzer on. The new
language is spoken by {merged}/, with the analyzer off: it watches three heads that were chosen for the old languages.
Its text is normalized as in training, by the package voxgraft_text next to this file.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

from chatterbox import mtl_tts
from chatterbox.models.t3.modules.t3_config import T3Config
from chatterbox.mtl_tts import ChatterboxMultilingualTTS

FOLDER = Path(__file__).resolve().parent
LANGUAGE, NAME, TEXT_ROWS = {language!r}, {name!r}, {pieces:d}


{text_package}

def is_own(language):
    """Whether this is the code of the new language. The program only knows lower-case codes."""
    return language is not None and language.lower() == LANGUAGE.lower()


class GrownConfig(T3Config):
    analyzer = True
    is_multilingual = property(lambda self: self.analyzer)

    @classmethod
    def multilingual(cls):
        return cls(text_tokens_dict_size=TEXT_ROWS)


class GraftedTTS(ChatterboxMultilingualTTS):
    """Normalises text of the new language as in training."""

    def generate(self, text, language_id, *args, **options):
        text = prepared(text) if is_own(language_id) else text
        return super().generate(text, language_id, *args, **options)


def load(language, device="cpu"):
    """The model for a language; models of both folders can be loaded at the same time."""
    mtl_tts.SUPPORTED_LANGUAGES.setdefault(LANGUAGE.lower(), NAME)
    is_new = is_own(language)
    mtl_tts.T3Config = GrownConfig
    try:
        model = GraftedTTS.from_local(FOLDER / ("{merged}" if is_new else "{grown}"), device)
    finally:
        mtl_tts.T3Config = T3Config  # other models of this process have their own size
    model.t3.hp.analyzer = not is_new
    return model
'''

_ENGLISH_LOADER = '''"""Load this export with chatterbox-tts, which supports only {base_pieces:,} text rows.

    from load import LANGUAGE, load
    model = load(LANGUAGE)
    wav = model.generate("...", audio_prompt_path="voice.wav")

English is spoken by {grown}/, the base's own weights; the new language by {merged}/. Its text is normalized as in
training, by the package voxgraft_text next to this file, and gets its tag.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

from chatterbox.models.t3 import t3
from chatterbox.models.t3.modules.t3_config import T3Config
from chatterbox.tts import ChatterboxTTS

FOLDER = Path(__file__).resolve().parent
LANGUAGE, TAG, TEXT_ROWS = {language!r}, {tag!r}, {pieces:d}


{text_package}

class GrownConfig(T3Config):
    @classmethod
    def english_only(cls):
        return cls(text_tokens_dict_size=TEXT_ROWS)


class GraftedTTS(ChatterboxTTS):
    """Normalises text of the new language as in training."""

    def generate(self, text, *args, **options):
        return super().generate(TAG + prepared(text.removeprefix(TAG)), *args, **options)


def load(language, device="cpu"):
    """The model for a language."""
    is_new = language.lower() == LANGUAGE.lower()
    t3.T3Config = GrownConfig
    try:
        kind, folder = (GraftedTTS, "{merged}") if is_new else (ChatterboxTTS, "{grown}")
        return kind.from_local(FOLDER / folder, device)
    finally:
        t3.T3Config = T3Config  # other models of this process have their own size
'''


_TEXT_STEP_SOURCE = """    text = read_spans(text, LANGUAGES, RULES)
    if text[:1].islower():  # the program does so itself, but not where a tag is typed before the text
        text = text[0].upper() + text[1:]
    return text.strip()"""


class ChatterboxProgram(UpstreamProgram):
    """The package `chatterbox-tts`."""

    title: ClassVar[str] = "chatterbox-tts 0.1.7"
    can_drop_in: ClassVar[bool] = True
    companion_takes_codes: ClassVar[bool] = True
    unmixed_languages: ClassVar[frozenset[str]] = frozenset({"zh", "ja"})

    def folder(self, files: BaseFiles, pieces: int, language: str) -> UpstreamFolder:  # noqa: ARG002 (the rows are in the checkpoint alone)
        english = is_english_release(files)
        needed = REQUIRED_ENGLISH_FILES if english else REQUIRED_FILES
        side_files, missing = find_side_files(files, needed)
        more, _ = find_side_files(files, OPTIONAL_FILES)
        release = ENGLISH_RELEASE if english else MULTILINGUAL_RELEASE
        read = {release.checkpoint: "T3, strict: every name and shape", release.tokenizer: "text tokenizer", **needed}
        return UpstreamFolder(
            release.checkpoint,
            release.tokenizer,
            {**side_files, **more},
            missing=missing,
            read={**read, **OPTIONAL_FILES},
        )

    def loader(self, facts: ExportInfo, files: BaseFiles) -> str:
        return (_ENGLISH_LOADER if is_english_release(files) else _MULTILINGUAL_LOADER).format(
            language=facts.language,
            name=facts.language_name,
            tag=facts.tag,
            pieces=facts.pieces,
            base_pieces=facts.base_pieces,
            grown=GROWN,
            merged=MERGED,
            text_package=TEXT_PACKAGE_LOADER,
        )

    def text_step(self, files: BaseFiles) -> tuple[str, Mapping[str, str]]:  # noqa: ARG002 (one for both programs)
        return _TEXT_STEP_SOURCE, {}

    def compare_with(self, companion: CompanionProcess, utterance: DecodedUtterance) -> dict[str, tuple[str, bool]]:
        return {"codes": compare_codes(companion, utterance), "mel": compare_mels(companion, utterance)}

    def usage(self, facts: ExportInfo, files: BaseFiles, *, drop_in: bool) -> list[str]:
        english = is_english_release(files)
        if not drop_in:
            language = "" if english else f", language_id={facts.language!r}"
            return [
                "from load import load  # in this folder",
                "",
                f"model = load({facts.language!r})",
                f'wav = model.generate("..."{language}, audio_prompt_path="voice.wav")',
            ]
        module, kind = ("tts", "ChatterboxTTS") if english else ("mtl_tts", "ChatterboxMultilingualTTS")
        language = "" if english else ", language_id=None"
        return [
            f"from chatterbox.{module} import {kind}",
            "from voxgraft_text import prepared  # in this folder",
            "",
            f'model = {kind}.from_local("THIS FOLDER", "cpu")',
            f'wav = model.generate({facts.tag!r} + prepared("..."){language}, audio_prompt_path="voice.wav")',
        ]


def is_english_release(files: BaseFiles) -> bool:
    """Whether a base is the English release, whose program is another."""
    if files.checkpoint.name in (release.checkpoint for release in RELEASES):
        return files.checkpoint.name == ENGLISH_RELEASE.checkpoint
    from voxgraft.tokenizers import open_tokenizer

    return open_tokenizer(files.tokenizer).size == ENGLISH_ROWS


def list_chatterbox_files(files: BaseFiles) -> tuple[PublishedTensors, ...]:
    """The language model of the release that is in the folder, and the encoder and vocoder beside it."""
    releases = tuple(T3Size(text_rows=rows) for rows in RELEASE_TITLES_BY_ROWS)
    whole = S3GenSize()
    vocoders = (whole, replace(whole, flow=FlowSize(meanflow=True)))
    return (
        PublishedTensors(
            (files.checkpoint.name,),
            "T3: the language model",
            lambda path: T3Size.of(read_tensor_shapes(path), path),
            releases,
        ),
        PublishedTensors(VOICE_ENCODER_FILES, VOICE_ENCODER_PURPOSE, _read_voice_encoder, (None,)),
        PublishedTensors(
            S3GEN_FILES,
            S3GEN_PURPOSE,
            lambda path: (
                validate_s3gen_file(path),
                SpeechTokenizerSize.of(read_tensor_shapes(path, SPEECH_TOKENIZER_PREFIX)),
            ),
            tuple((size, SpeechTokenizerSize()) for size in vocoders),
        ),
        PublishedTensors((CONDITIONS_NAME,), CONDITIONS_PURPOSE, _read_conditions, (None,), needed=False),
    )


def _read_voice_encoder(path: Path) -> None:
    with init_empty_weights():
        shapes = {name: tuple(tensor.shape) for name, tensor in VoiceEncoder().state_dict().items()}
    require_exact_tensors(read_tensor_shapes(path), shapes, "voice encoder", path)


def _read_conditions(path: Path) -> None:
    read_built_in_voice(path)
    read_built_in_reference(path)


# Of the mel, in nepers. Rounding alone stays below a hundredth of it in float32, and mistakes are above a tenth.
MAX_MEL_DIFFERENCE = 0.02


def compare_codes(companion: CompanionProcess, utterance: DecodedUtterance) -> tuple[str, bool]:
    """The likeliest code after each code that was spoken, in both programs: in words, and whether they agree."""
    model, condition, text_ids, codes = utterance.model, utterance.condition, utterance.text_ids, utterance.codes
    spec = model.spec
    arrays: dict[str, NDArray[np.generic]] = {
        "text": np.array([spec.text_start, *text_ids, spec.text_stop], dtype=np.int64),
        "codes": np.array([spec.speech_start, *codes[:-1]], dtype=np.int64),
        "speaker": np.asarray(condition.speaker, dtype=np.float32),
        "prompt": np.asarray(condition.prompt, dtype=np.int64),
    }
    path = str(utterance.files.checkpoint.resolve())
    upstream_logits = companion.ask("logits", arrays, t3=path, emotion=float(condition.emotion))["logits"]
    (latents,) = compute_speech_latents(model, [text_ids], [condition], [codes])
    own_logits = model.speech_logits(latents).float().cpu().numpy()
    return compare_likeliest_codes(own_logits, upstream_logits)


def compare_mels(companion: CompanionProcess, utterance: DecodedUtterance) -> tuple[str, bool]:
    """The mel of an utterance in both programs on the same noise: in words, and whether they agree."""
    vocoder, voice, codes = utterance.vocoder, utterance.voice, utterance.codes
    assert isinstance(vocoder, S3GenVocoder)
    reference = vocoder.reference(voice)
    noise = vocoder.draw_noise(len(codes), reference)
    # In float32 even where half precision was requested: the tolerance is that of the same arithmetic.
    saved_dtype, vocoder.model.flow_dtype = vocoder.model.flow_dtype, None
    try:
        with exact_float32():
            (own_mel,) = vocoder.model.generate_mels([codes], [reference], [noise])
    finally:
        vocoder.model.flow_dtype = saved_dtype
    arrays: dict[str, NDArray[np.generic]] = {
        "codes": np.array(codes, dtype=np.int64),
        "noise": noise.flow.cpu().numpy(),
    }
    request = {"s3gen": str(vocoder.path.resolve())}
    if (recording := voice.voice.get(REFERENCE_AUDIO)) is not None:
        arrays["reference"] = np.asarray(recording, dtype=np.float32)
    elif vocoder.conditions is not None:
        request["conditions"] = str(vocoder.conditions.resolve())
    upstream_mel = companion.ask("mel", arrays, **request)["mel"]
    if upstream_mel.shape != tuple(own_mel.T.shape):
        return f"is {list(upstream_mel.shape)}, and {list(own_mel.T.shape)} here", False
    difference = float((own_mel.T.cpu() - torch.from_numpy(upstream_mel)).abs().max())
    message = f"differs by up to {difference:.1g} over {upstream_mel.shape[1]} frames, on the same noise"
    return message, difference <= MAX_MEL_DIFFERENCE
