"""Facts about IndexTTS-2's GPT (UnifiedVoice): its files and what its config says of them, its text rows, its program.

The program reads numbers in Chinese or English whatever the language is, and does not know the marks of other scripts;
so the loader of an export gives it text in which neither is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import CheckpointError, ConfigError, FileError, Finding, finding
from voxgraft.core.files import is_file, require_folder
from voxgraft.models import (
    find_files_by_content,
    refuse_lookalike_files,
    scan_folder,
)
from voxgraft.models.base import (
    GROWN,
    MERGED,
    TEXT_PACKAGE_LOADER,
    BaseDescription,
    BaseFiles,
    EmotionSource,
    ExportInfo,
    Family,
    GraftPoint,
    PublishedTensors,
    SequenceSpec,
    SideFile,
    SideFilePurpose,
    SpeakingStyle,
    UpstreamFolder,
    UpstreamProgram,
    find_side_files,
)
from voxgraft.models.indextts2.marks import STOCK_PUNCTUATION, compile_alternatives, plain_marks
from voxgraft.models.indextts2.shapes import (
    CONFIG_NAME,
    SPEAKER_LATENTS,
    UnifiedVoiceSize,
    get_config_file_name,
    get_config_section,
    is_alias,
    is_unified_voice,
    read_base_config,
    unified_voice_part_name,
)
from voxgraft.text import TextFrontend

if TYPE_CHECKING:
    import torch

    from voxgraft.models.base import Clip, ClipEncoder, UpstreamProgram, Vocoder
    from voxgraft.models.speech_model import SpeechModel
    from voxgraft.nn.decode import SamplingParams


MIN_VERSION, FIRST_UNSUPPORTED_VERSION = 2.0, 2.5
EXPECTED_MODEL = "IndexTTS-2: 1,280 wide, 24 layers, an emotion part, speed_emb, a conformer for the voice"
OTHER_VERSION_CURE = "use IndexTTS-2 (IndexTeam/IndexTTS-2: gpt.pth, bpe.model, config.yaml)."
# Of the speaker vector (CAM++) from which 2.5 makes its voice with one linear layer.
STYLE_WIDTH = 192
OLDER_VERSION_REASON = "it has no emotion part, and its codes do not fit IndexTTS-2's speech parts"
NEWER_VERSION_REASON = "it has another tokenizer, a language embedding, no speed_emb, and another voice encoder"

_GPT_LAYER = re.compile(r"gpt\.h\.(\d{1,4})\.")
_CJK = re.compile(
    "([\u1100-\u11ff\u2e80-\ua4cf\ua840-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff65-\uffdc\U00020000-\U0002ffff])"
)
_CONTRACTION = re.compile(r"(what|where|who|which|how|t?here|it|s?he|that|this)'s", re.IGNORECASE)
_PINYIN_WITH_U = re.compile(r"(?<![a-z])([jqx])[uü](e|n|an)?([1-5])", re.IGNORECASE)
_HAN = re.compile("[\u4e00-\u9fff]")
_LATIN = re.compile("[a-zA-Z]")
_STOCK_PUNCTUATION_PATTERN = compile_alternatives(STOCK_PUNCTUATION)


class IndexTTS2TextFrontend(TextFrontend):
    """The stock wrapper's text steps: plain punctuation, CJK characters apart, all in capitals.

    Before them our own table for punctuation of new scripts. The original program also reads numbers out, in Chinese or
    English, with a package that is not used here: numbers of a new language must be written out before.
    """

    def clean(self, text: str) -> str:
        return text if _is_single_character(text) else self._clean(text)

    def _clean(self, text: str) -> str:
        text = plain_marks(text)
        if _HAN.search(text) or not _LATIN.search(text):  # what the original program takes for Chinese
            text = text.rstrip().replace("$", ".")
        text = _CONTRACTION.sub(r"\1 is", text)
        text = _PINYIN_WITH_U.sub(lambda found: "{}v{}{}".format(*found.groups(default="")).upper(), text)
        return _STOCK_PUNCTUATION_PATTERN.sub(lambda found: STOCK_PUNCTUATION[found.group()], text)

    def prepare(self, text: str, language: str | None) -> str:  # noqa: ARG002 (this family has no tags)
        return text if _is_single_character(text) else self._prepare(text)

    def _prepare(self, text: str) -> str:
        parts = (part.strip() for part in _CJK.split(text.strip()))
        return " ".join(part.upper() for part in parts if part)

    def prepare_part(self, text: str, language: str | None, *, is_first: bool, is_last: bool) -> str:  # noqa: ARG002
        return self._prepare(self._clean(text))  # a part of one character is in no text of one character


def _is_single_character(text: str) -> bool:
    """The stock wrapper gives a text of one character (and an empty one) to the tokenizer untouched."""
    return len(text.strip()) == 1 or not text


class IndexTTS2(Family):
    """Bilibili's IndexTTS-2: a GPT-2 with one text row more than the tokenizer has pieces, and a biased text head."""

    name: ClassVar[str] = "indextts2"
    languages: ClassVar[tuple[str, ...]] = ("en", "zh")
    graft_points: ClassVar[tuple[GraftPoint, ...]] = (
        GraftPoint("text_embedding.weight", "embedding"),
        GraftPoint("text_head.weight", "head"),
        GraftPoint("text_head.bias", "head-bias"),
    )
    spare_rows: ClassVar[int] = 1
    has_tags: ClassVar[bool] = False
    start_id: ClassVar[int] = 0
    stop_id: ClassVar[int] = 1
    special_ids: ClassVar[dict[str, int]] = {"<s>": 0, "</s>": 1, "<unk>": 2}
    deleted_ids: ClassVar[frozenset[int]] = frozenset({0, 1})
    tokenizer_names: ClassVar[tuple[str, ...]] = ("bpe.model",)
    checkpoint_names: ClassVar[tuple[str, ...]] = ("gpt.pth", "gpt.safetensors")
    config_name: ClassVar[str | None] = CONFIG_NAME
    rates: ClassVar[dict[str, tuple[float, float]]] = {
        "rows": (1e-4, 1e-2),
        "adapter": (2e-4, 3e-3),
        "body": (1e-5, 1e-4),
    }
    code_hz: ClassVar[float] = 50.0
    licence: ClassVar[str] = (
        "IndexTTS-2 is under the bilibili Model Use License Agreement: anyone who shares a graft of it must include "
        "that agreement and its disclaimer, and pass both on."
    )

    def files(self, folder: Path) -> BaseFiles:
        config = require_folder(folder) / CONFIG_NAME
        if not is_file(config):
            missing = f"{CONFIG_NAME} is not in the folder"
            for seen in scan_folder(folder):
                if item := self.check_lookalike(seen.path, seen.shapes):  # a checkpoint of another generation
                    raise CheckpointError.of(item)
                if self.matches_tensors(seen.shapes):
                    missing = f"{seen.path.name} contains IndexTTS-2's tensors, but {missing}"
            cure = f"put the {CONFIG_NAME} of the base next to the checkpoint. Only this file has the number of heads."
            raise FileError("base-file-missing", missing, where=folder, cure=cure if "tensors" in missing else "")
        settings = read_base_config(config)
        version = settings.get("version")
        if isinstance(version, int | float) and not MIN_VERSION <= version < FIRST_UNSUPPORTED_VERSION:
            reason = OLDER_VERSION_REASON if version < MIN_VERSION else NEWER_VERSION_REASON
            message = f"version is {version}: this is IndexTTS {version}, and {reason}"
            raise ConfigError("base-version", message, expected=f"{MIN_VERSION}", where=config, cure=OTHER_VERSION_CURE)
        checkpoint = get_config_file_name(settings, "gpt_checkpoint", config)
        tokenizer = get_config_file_name(get_config_section(settings, "dataset", config), "dataset.bpe_model", config)
        try:
            found = (
                _find_first_file(folder, (checkpoint,) if checkpoint else self.checkpoint_names),
                _find_first_file(folder, (tokenizer,) if tokenizer else self.tokenizer_names),
            )
        except FileError as error:
            # A name of its own in the config means that very file, and no other will do.
            if {checkpoint, tokenizer} - {None, *self.checkpoint_names, *self.tokenizer_names}:
                raise
            return BaseFiles(folder, *find_files_by_content(self, folder, error), config)
        refuse_lookalike_files(self, *found)
        return BaseFiles(folder, *found, config)

    def front(self, tokenizer: Path | None = None) -> TextFrontend:  # noqa: ARG002 (no tables beside the tokenizer)
        return IndexTTS2TextFrontend()

    def sequence_spec(self, num_text_ids: int, size: UnifiedVoiceSize | None = None) -> SequenceSpec:
        return unified_voice_sequence_spec(num_text_ids, size)

    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        from voxgraft.checkpoints.load import read_tensor_shapes
        from voxgraft.models.indextts2.model import UnifiedVoice

        return UnifiedVoice(self.infer_size(files, read_tensor_shapes(files.checkpoint)))

    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        from voxgraft.models.indextts2.encoder import UnifiedVoiceClipEncoder
        from voxgraft.models.indextts2.model import UnifiedVoice

        assert isinstance(model, UnifiedVoice)
        return UnifiedVoiceClipEncoder.load(files, model)

    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:
        from voxgraft.models.indextts2.encoder import build_unified_voice_condition

        return build_unified_voice_condition(prompt, target, emotion_from)

    def apply_style(self, condition: Any, manner: SpeakingStyle) -> Any:
        from voxgraft.models.indextts2.encoder import blend_emotion

        condition = super().apply_style(condition, SpeakingStyle(exaggeration=manner.exaggeration))
        if manner.emotion is None:
            if manner.emotion_weight is not None:
                raise ConfigError("manner-unknown", "--emotion-weight is given without --emotion", expected="--emotion")
            return condition
        return blend_emotion(condition, manner.emotion, 1.0 if manner.emotion_weight is None else manner.emotion_weight)

    def mix_emotions(self, files: BaseFiles, shares: Sequence[float], weight: float, voice: Clip) -> Clip:
        from voxgraft.models.indextts2.encoder import mix_emotions

        return mix_emotions(files, shares, weight, voice)

    def vocoder(self, files: BaseFiles, device: str = "cpu", dtype: torch.dtype | None = None) -> Vocoder | None:
        from voxgraft.models.indextts2.vocoder import IndexTTS2Vocoder

        return IndexTTS2Vocoder.find(files, device, dtype)

    def upstream_sampling(self) -> SamplingParams:
        from voxgraft.nn.decode import SamplingParams

        return SamplingParams(temperature=0.8, top_k=30, top_p=0.8, repetition_penalty=10.0, max_codes=1500)

    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        return is_unified_voice(shapes)

    def check_lookalike(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
        """Recognises the GPT of IndexTTS 1.x and 2.5."""
        layers = {match[1] for match in map(_GPT_LAYER.match, shapes) if match}
        if "text_embedding.weight" not in shapes or "mel_embedding.weight" not in shapes or not layers:
            return None
        width = (*shapes["text_embedding.weight"], 0, 0)[1]
        size = f"{width:,} wide, {len(layers)} layers"
        has_emotion = any(name.startswith("emo_") for name in shapes)
        has_speed = any(name.startswith("speed_emb") for name in shapes)
        if not has_emotion and not has_speed:
            found = f"{path.name} is the GPT of IndexTTS 1.0 or 1.5 ({size}): {OLDER_VERSION_REASON}"
            return finding("base-version", found, expected=EXPECTED_MODEL, where=path, cure=OTHER_VERSION_CURE)
        marks = [name for name in shapes if name.startswith("lang_embedding")]
        if not has_speed:
            voice = (width, STYLE_WIDTH)
            marks += [name for name, shape in shapes.items() if shape == voice and not name.startswith("gpt.")]
        if not marks:
            return None
        seen = ", ".join(f"{name[:60]} {list(shapes[name])}" for name in marks[:3])
        found = f"{path.name} is the GPT of IndexTTS-2.5 ({size}; {seen}): {NEWER_VERSION_REASON}"
        return finding("base-version", found, expected=EXPECTED_MODEL, where=path, cure=OTHER_VERSION_CURE)

    def infer_size(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> UnifiedVoiceSize:
        if files.config is None:
            found = f"{CONFIG_NAME} is not next to {files.checkpoint.name}; no other file has the number of heads"
            raise FileError("base-file-missing", found, where=files.folder)
        return UnifiedVoiceSize.of(read_base_config(files.config), shapes, files.checkpoint, files.config)

    def get_part_name(self, tensor: str) -> str | None:
        return None if is_alias(tensor) else unified_voice_part_name(tensor)

    def is_computed(self, tensor: str) -> bool:
        return tensor.endswith(".pos_enc.pe")

    def describe(self, files: BaseFiles, rows: int) -> BaseDescription:  # noqa: ARG002 (there is one release)
        return describe_indextts2(files)

    def upstream(self) -> UpstreamProgram:
        return IndexTTS2Program()

    def published_files(self, files: BaseFiles) -> tuple[PublishedTensors, ...]:
        from voxgraft.models.indextts2.vocoder import list_indextts2_files

        return list_indextts2_files(files)

    def read_config_pieces(self, config: Path) -> int | None:
        pieces = get_config_section(read_base_config(config), "gpt", config).get("number_text_tokens")
        if pieces is None:
            return None
        if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
            found = f"gpt.number_text_tokens is {pieces!r}"
            raise ConfigError("base-config", found, expected="a whole number, 1 or more", where=config)
        return pieces


def _find_first_file(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if is_file(folder / name):
            return folder / name
    missing = " and ".join(names)
    raise FileError(
        "base-file-missing", f"{missing} {'is' if len(names) == 1 else 'are'} not in the folder", where=folder
    )


RELEASE_TITLE = "IndexTTS-2"
BOTH_PURPOSES: tuple[SideFilePurpose, ...] = ("preparing", "speaking")
CODEC_NAME = "semantic_codec/model.safetensors"
W2V_BERT_FOLDER = "w2v-bert-2.0"
W2V_BERT_FILES = ("model.safetensors", "pytorch_model.bin")
STATISTICS_NAME = "wav2vec2bert_stats.pt"
VOCODER_NAME = "bigvgan_v2_22khz_80band_256x"
CAMPPLUS_NAME = "campplus_cn_common.bin"
# What the program reads from the folder, by the key of its config: the published name, and what for.
CONFIG_NAMED_FILES = {
    "s2mel_checkpoint": ("s2mel.pth", "from codes to a spectrogram"),
    "w2v_stat": (STATISTICS_NAME, "mean and variance of the speech features"),
    "spk_matrix": ("feat1.pt", "voices behind the emotion vectors"),
    "emo_matrix": ("feat2.pt", "emotion vectors"),
    "qwen_emo_path": ("qwen0.6bemo4-merge", "emotion from a text"),
}


def describe_indextts2(files: BaseFiles) -> BaseDescription:
    """All file names but those that the original program fetches from elsewhere are in the config."""
    config = files.config or files.folder / CONFIG_NAME
    settings = read_base_config(config) if files.config else {}

    def named(key: str, *purposes: SideFilePurpose) -> SideFile:
        published, what = CONFIG_NAMED_FILES[key]
        return SideFile((get_config_file_name(settings, key, config) or published,), purposes, what)

    w2v_bert = tuple(f"{W2V_BERT_FOLDER}/{name}" for name in W2V_BERT_FILES)
    side_files = (
        named("w2v_stat", "preparing", "speaking"),
        SideFile(w2v_bert, BOTH_PURPOSES, "w2v-bert 2.0: from a recording to features (facebook/w2v-bert-2.0)"),
        SideFile((CODEC_NAME,), BOTH_PURPOSES, "semantic codec: from features to codes (amphion/MaskGCT)"),
        named("s2mel_checkpoint", "speaking"),
        SideFile((get_vocoder_folder(files),), ("speaking",), "BigVGAN: from the spectrogram to the waveform"),
        SideFile((CAMPPLUS_NAME,), ("speaking",), "CAM++: the speaker's style"),
        named("spk_matrix", "speaking"),
        named("emo_matrix", "speaking"),
        named("qwen_emo_path"),
    )
    return BaseDescription(RELEASE_TITLE, IndexTTS2.languages, side_files)


def get_vocoder_folder(files: BaseFiles) -> str:
    """Where BigVGAN lies in the base folder. The config names it with its owner; a download makes a folder without."""
    if files.config is None:
        return VOCODER_NAME
    named = get_config_section(read_base_config(files.config), "vocoder", files.config).get("name")
    return named.rpartition("/")[2] or VOCODER_NAME if isinstance(named, str) else VOCODER_NAME


def get_s2mel_name(files: BaseFiles) -> str:
    """Where s2mel lies in the base folder."""
    key = "s2mel_checkpoint"
    named = get_config_file_name(read_base_config(files.config), key, files.config) if files.config else None
    return named or CONFIG_NAMED_FILES[key][0]


def get_statistics_name(files: BaseFiles) -> str:
    """Where mean and variance of the features lie in the base folder."""
    named = get_config_file_name(read_base_config(files.config), "w2v_stat", files.config) if files.config else None
    return named or STATISTICS_NAME


# The original program uses this code for the whole prompt, so its repetition penalty counts it as used.
FILLER_CODE = 1


def unified_voice_sequence_spec(num_text_ids: int, size: UnifiedVoiceSize | None = None) -> SequenceSpec:
    """The original program gives the first code it has spoken position 2; learning gives it position 1."""
    size = size or UnifiedVoiceSize()
    num_codes = size.speech_rows - 2
    return SequenceSpec(
        num_text_ids=num_text_ids,
        text_start=IndexTTS2.start_id,
        text_stop=IndexTTS2.stop_id,
        num_codes=num_codes,
        speech_start=num_codes,
        speech_stop=num_codes + 1,
        max_text=size.max_text,
        max_codes=size.max_speech,
        num_conditioning=SPEAKER_LATENTS + 2,
        forbidden_text_ids=IndexTTS2.deleted_ids,
        upstream_start_positions=(0,),
        upstream_first_position=2,
        initial_penalized_codes=(FILLER_CODE, num_codes),
    )


_NUM_PIECES_LINE = re.compile(r"^(\s+number_text_tokens\s*:\s*)\d+", re.MULTILINE)
_GPT_SECTION_LINE = re.compile(r"^gpt\s*:[ \t]*$", re.MULTILINE)

_LOADER = '''"""Load this export with a checkout of IndexTTS-2 whose `indextts` can be imported.

    from load import LANGUAGE, load
    tts = load(LANGUAGE)
    tts.infer(spk_audio_prompt="voice.wav", text="...", output_path="out.wav")

The old languages are spoken by {grown}/, the base's own weights; the new one by {merged}/, whose text is normalized as
in training by the package voxgraft_text next to this file. Both have a config.yaml with gpt.number_text_tokens =
{pieces:d}: the number of tokens. The tables have one more row, which no text uses.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

from indextts.infer_v2 import IndexTTS2

FOLDER = Path(__file__).resolve().parent
LANGUAGE = {language!r}


{text_package}

class GraftedTTS(IndexTTS2):
    """Normalises text as in training."""

    def infer(self, spk_audio_prompt, text, *args, **options):
        return super().infer(spk_audio_prompt, prepared(text), *args, **options)


def load(language, **options):
    """The model for a language; options are those of IndexTTS2."""
    is_new = language.lower() == LANGUAGE.lower()
    kind, folder = (GraftedTTS, FOLDER / "{merged}") if is_new else (IndexTTS2, FOLDER / "{grown}")
    return kind(cfg_path=str(folder / "config.yaml"), model_dir=str(folder), **options)
'''

_TEXT_STEP_SOURCE = """    text = read_spans(text, LANGUAGES, RULES)
    digits = [word for word in text.split() if any(map(str.isdecimal, word))]
    if digits:
        raise ValueError(f"{digits[0]!r} stays in digits, which IndexTTS-2 would read in Chinese: write it in words")
    return text if len(text.strip()) < 2 else plain_marks(text)"""


class IndexTTS2Program(UpstreamProgram):
    """IndexTTS-2's `indextts.infer_v2`."""

    title: ClassVar[str] = "IndexTTS-2, from its own checkout"

    def folder(self, files: BaseFiles, pieces: int, language: str) -> UpstreamFolder:  # noqa: ARG002 (no file lists languages)
        assert files.config is not None
        settings = read_base_config(files.config)
        read = {
            get_config_file_name(settings, key, files.config) or published: what
            for key, (published, what) in CONFIG_NAMED_FILES.items()
        }
        side_files, missing = find_side_files(files, read)
        more, _ = find_side_files(
            files, {name: "" for side in describe_indextts2(files).side_files for name in side.names}
        )
        own = {
            CONFIG_NAME: "sizes and file names; number_text_tokens is the number of tokens",
            files.checkpoint.name: "the GPT; missing names are ignored, other shapes are an error",
            files.tokenizer.name: "text tokenizer",
        }
        return UpstreamFolder(
            files.checkpoint.name,
            files.tokenizer.name,
            {**more, **side_files},
            {CONFIG_NAME: build_config_text(files, pieces)},
            missing,
            {**own, **read},
        )

    def loader(self, facts: ExportInfo, files: BaseFiles) -> str:  # noqa: ARG002 (one for all)
        return _LOADER.format(
            language=facts.language,
            pieces=facts.pieces,
            grown=GROWN,
            merged=MERGED,
            text_package=TEXT_PACKAGE_LOADER,
        )

    def text_step(self, files: BaseFiles) -> tuple[str, Mapping[str, str]]:  # noqa: ARG002 (one for all)
        return _TEXT_STEP_SOURCE, {
            "marks": resources.files(__package__).joinpath("marks.py").read_text(encoding="utf-8")
        }

    def usage(self, facts: ExportInfo, files: BaseFiles, *, drop_in: bool) -> list[str]:  # noqa: ARG002 (one for all)
        return [
            "from load import load  # in this folder, with indextts importable",
            "",
            f"tts = load({facts.language!r})",
            'tts.infer(spk_audio_prompt="voice.wav", text="...", output_path="out.wav")',
        ]


def build_config_text(files: BaseFiles, pieces: int) -> str:
    """The base's config with another number of pieces, and nothing else changed: comments and order stay."""
    from voxgraft.core.files import parse_yaml, read_text

    assert files.config is not None
    text = read_text(files.config)
    new, count = _NUM_PIECES_LINE.subn(rf"\g<1>{pieces}", text)
    if not count:
        new = _GPT_SECTION_LINE.sub(f"gpt:\n    number_text_tokens: {pieces}", text)
    config = parse_yaml(new, files.config)
    written_pieces = config.get("gpt", {}).get("number_text_tokens") if isinstance(config, dict) else None
    before = IndexTTS2().read_config_pieces(files.config)
    if written_pieces != pieces:
        message = f"gpt.number_text_tokens is {before} in {files.config.name}, and could not be written as {pieces:,}"
        expected = "a separate line `number_text_tokens: N` in the section gpt"
        raise ConfigError("base-config", message, expected=expected, where=files.config)
    return new
