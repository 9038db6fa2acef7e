"""Facts about Chatterbox: sizes and tensors, its releases and their files, and what its program does to text.

Sizes are read from the shapes of tensors, without torch: `show` and `check` read headers only.

Two wrappers were published. The multilingual one lower-cases, decomposes and tags; the English one does none of that.
Steps that the original takes only with optional packages of its own (Chinese word boundaries, Hebrew vowel signs,
Russian stress) are left out, as it does without them; Japanese is read with pykakasi where that is installed.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import CheckpointError, FileError, Finding, VoxgraftError, finding
from voxgraft.core.files import is_file, read_json, require_folder
from voxgraft.models import (
    find_files_by_content,
    find_matching_tokenizer,
    has_stand_in_tensors,
    refuse_lookalike_files,
    scan_checkpoint,
    stand_in_parts,
)
from voxgraft.models.base import (
    BaseDescription,
    BaseFiles,
    EmotionSource,
    Family,
    GraftPoint,
    PublishedTensors,
    SequenceSpec,
    SideFile,
    SpeakingStyle,
    count_layers,
    linear_shapes,
    norm_shapes,
    prefix_shapes,
    read_common_side,
    read_dimension,
    require_exact_tensors,
)
from voxgraft.text import TextFrontend

if TYPE_CHECKING:
    import torch

    from voxgraft.models.base import Clip, ClipEncoder, SpeakerEncoder, UpstreamProgram, Vocoder
    from voxgraft.models.speech_model import SpeechModel
    from voxgraft.nn.decode import SamplingParams


# Of T3's backbone, and of the speech tokenizer.
T3_HEAD_WIDTH = 64
# The backbone's own token table is never read, but the stock loader insists on it.
UNUSED_TOKEN_ROWS = 8
# Before the speech tokenizer's names in s3gen.pt.
SPEECH_TOKENIZER_PREFIX = "tokenizer."
VOICE_ENCODER_WIDTH, VOICE_ENCODER_LAYERS, VOICE_ENCODER_MELS = 256, 3, 40
SPEECH_TOKENIZER_MELS, SPEECH_TOKENIZER_KERNEL = 128, 31
SPEECH_CODE_DIGITS, SPEECH_CODE_LEVELS = 8, 3
# 6561: a code is a number of eight digits, each of three levels.
NUM_SPEECH_CODES = SPEECH_CODE_LEVELS**SPEECH_CODE_DIGITS

PERCEIVER_QUERY_NAME = "cond_enc.perceiver.pre_attention_query"

_T3_LAYER = re.compile(r"tfmr\.layers\.(\d{1,4})\.")
_T3_PARTS = {
    "tfmr.": "backbone",
    "cond_enc.": "conditioning",
    "text_emb.": "text tables",
    "text_head.": "text tables",
    "speech_emb.": "speech tables",
    "speech_head.": "speech tables",
    "text_pos_emb.": "positions",
    "speech_pos_emb.": "positions",
}


@dataclass(frozen=True, slots=True)
class T3Size:
    """The sizes that may differ; as published by default. Stock code fixes the width at 1024."""

    text_rows: int = 2454
    width: int = 1024
    layers: int = 30
    mlp: int = 4096
    heads: int = 0
    """No tensor shows it; 0 means heads of the published width of 64."""
    speech_rows: int = 8194
    text_positions: int = 2050
    speech_positions: int = 4100
    speaker_width: int = 256
    perceiver_queries: int = 32
    perceiver_heads: int = 4

    def __post_init__(self) -> None:
        if not self.heads:
            object.__setattr__(self, "heads", max(1, self.width // T3_HEAD_WIDTH))

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], where: str | Path = "") -> T3Size:
        """The size of the T3 that these tensors are; an error with the differences where they make no whole one."""
        published = cls()
        width = read_common_side(shapes, ("layernorm.weight",), published.width)
        size = cls(
            text_rows=read_dimension(shapes, "text_emb.weight", 0, published.text_rows),
            width=width,
            layers=count_layers(shapes, _T3_LAYER),
            mlp=read_common_side(shapes, ("mlp.gate_proj.weight",), 4 * width),
            speech_rows=read_dimension(shapes, "speech_emb.weight", 0, published.speech_rows),
            text_positions=read_dimension(shapes, "text_pos_emb.emb.weight", 0, published.text_positions),
            speech_positions=read_dimension(shapes, "speech_pos_emb.emb.weight", 0, published.speech_positions),
            speaker_width=read_dimension(shapes, "cond_enc.spkr_enc.weight", 1, published.speaker_width),
            perceiver_queries=read_dimension(shapes, PERCEIVER_QUERY_NAME, 1, published.perceiver_queries),
        )
        # The size was read from a few tensors; now every name and shape must follow from it.
        require_exact_tensors(shapes, t3_shapes(size), "T3", where)
        if not (size.layers and size.width) or size.width % (2 * size.heads) or size.width % size.perceiver_heads:
            found = f"a T3 of {size.layers:,} layers that is {size.width:,} wide"
            expected = f"at least one layer, and a width that is a multiple of {T3_HEAD_WIDTH}"
            raise CheckpointError("tensors-mismatch", found, expected=expected, where=where)
        return size


def t3_shapes(size: T3Size) -> dict[str, Shape]:
    """Names and shapes in the order of the published file: 292 at full depth."""
    width = size.width
    layer: dict[str, Shape] = {f"self_attn.{part}_proj.weight": (width, width) for part in ("q", "k", "v", "o")}
    layer |= {f"mlp.{part}_proj.weight": (size.mlp, width) for part in ("gate", "up")}
    layer["mlp.down_proj.weight"] = (width, size.mlp)
    layer |= {f"{norm}_layernorm.weight": (width,) for norm in ("input", "post_attention")}
    shapes: dict[str, Shape] = {"tfmr.embed_tokens.weight": (UNUSED_TOKEN_ROWS, width)}
    for number in range(size.layers):
        shapes |= prefix_shapes(f"tfmr.layers.{number}", layer)
    shapes["tfmr.norm.weight"] = (width,)
    shapes |= linear_shapes("cond_enc.spkr_enc", width, size.speaker_width)
    shapes["cond_enc.emotion_adv_fc.weight"] = (width, 1)
    shapes[PERCEIVER_QUERY_NAME] = (1, size.perceiver_queries, width)
    shapes |= norm_shapes("cond_enc.perceiver.attn.norm", width)
    for part in ("to_q", "to_k", "to_v", "proj_out"):
        shapes |= linear_shapes(f"cond_enc.perceiver.attn.{part}", width, width)
    return shapes | {
        "text_emb.weight": (size.text_rows, width),
        "speech_emb.weight": (size.speech_rows, width),
        "text_pos_emb.emb.weight": (size.text_positions, width),
        "speech_pos_emb.emb.weight": (size.speech_positions, width),
        "text_head.weight": (size.text_rows, width),
        "speech_head.weight": (size.speech_rows, width),
    }


def t3_part_name(tensor: str) -> str:
    """The part of the model that a tensor belongs to, in a word for people."""
    return next((part for start, part in _T3_PARTS.items() if tensor.startswith(start)), "other")


def is_t3(names: Iterable[str]) -> bool:
    """Whether these are the names of a T3 with the Llama backbone, whole or not."""
    return {"text_emb.weight", "speech_emb.weight", "tfmr.layers.0.self_attn.q_proj.weight"} <= set(names)


def has_one_query(shapes: Mapping[str, Shape]) -> bool:
    """Whether prompts are read by a single query: published T3s have 32, a small one with voices by number has one."""
    return shapes.get(PERCEIVER_QUERY_NAME, ())[:2] == (1, 1)


def speech_tokenizer_shapes(width: int = 1280, layers: int = 6) -> dict[str, Shape]:
    """The learned tensors of the speech tokenizer, without SPEECH_TOKENIZER_PREFIX: 102 at the published size.

    Its mel filters and its window, which the published file holds as well, are computed.
    """
    block: dict[str, Shape] = {}
    for part in ("query", "key", "value", "out"):
        block |= linear_shapes(f"attn.{part}", width, width)
    del block["attn.key.bias"]
    block["attn.fsmn_block.weight"] = (width, 1, SPEECH_TOKENIZER_KERNEL)
    block |= norm_shapes("attn_ln", width)
    block |= linear_shapes("mlp.0", 4 * width, width) | linear_shapes("mlp.2", width, 4 * width)
    block |= norm_shapes("mlp_ln", width)
    shapes = linear_shapes("encoder.conv1", width, SPEECH_TOKENIZER_MELS, 3)
    shapes |= linear_shapes("encoder.conv2", width, width, 3)
    for layer in range(layers):
        shapes |= prefix_shapes(f"encoder.blocks.{layer}", block)
    return shapes | linear_shapes("quantizer._codebook.project_down", SPEECH_CODE_DIGITS, width)


TEXT_START_ID, TEXT_STOP_ID = 255, 0
# Rows 6563 to 8193 of the speech tables mean nothing: no target is ever one of them.
SPEECH_START_ID, SPEECH_STOP_ID = NUM_SPEECH_CODES, NUM_SPEECH_CODES + 1
# Six seconds of codes: the most that the published model was given.
MAX_PROMPT_CODES = 150


def t3_sequence_spec(num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
    """The original program begins to speak with two start ids, both at position 0."""
    size = size or T3Size()
    return SequenceSpec(
        num_text_ids=num_text_ids,
        text_start=TEXT_START_ID,
        text_stop=TEXT_STOP_ID,
        num_codes=NUM_SPEECH_CODES,
        speech_start=SPEECH_START_ID,
        speech_stop=SPEECH_STOP_ID,
        max_text=size.text_positions - 2,
        max_codes=size.speech_positions - 4,
        num_conditioning=size.perceiver_queries + 2,
        guided=True,
        upstream_start_positions=(0, 0),
        upstream_first_position=1,
        initial_penalized_codes=(SPEECH_START_ID,),
    )


CANGJIE_NAME = "Cangjie5_TC.json"
SPACE_TOKEN = "[SPACE]"
# The original program says this when it is given no text at all.
EMPTY_TEXT_REPLACEMENT = "You need to add some text for me to talk."

# What the clean-up writes for rare punctuation. Applied one after the other over the whole text, in this order.
PUNCTUATION_REWRITES = (
    ("...", ", "),
    ("…", ", "),
    (":", ","),
    (" - ", ", "),
    (";", ", "),
    ("—", "-"),
    ("–", "-"),
    (" ,", ","),
    ("“", '"'),
    ("”", '"'),
    ("‘", "'"),
    ("’", "'"),
)

KANJI = range(0x4E00, 0xA000)
PARTICLE_LIKE_KANA = ("は", "へ")


class ChatterboxTextFrontend(TextFrontend):
    """The multilingual wrapper. `cangjie` maps a Han character to its tokens; without it Han stays as it is."""

    sentence_enders: ClassVar[tuple[str, ...]] = (".", "!", "?", "-", ",", "、", "，", "。", "？", "！")
    closed_up: ClassVar[tuple[str, ...]] = (",", ":", ";", "…", "...")  # all of them are written as commas

    def __init__(self, cangjie: Mapping[str, str] | None = None) -> None:
        self._cangjie = cangjie or {}

    def clean(self, text: str) -> str:
        if not text:
            return EMPTY_TEXT_REPLACEMENT
        return self._clean(text, is_first=True, is_last=True)

    def _clean(self, text: str, *, is_first: bool, is_last: bool) -> str:
        if is_first and text[0].islower():
            text = text[0].upper() + text[1:]
        text = " ".join(text.split())
        for found, written in PUNCTUATION_REWRITES:
            text = text.replace(found, written)
        text = text.rstrip(" ")
        return text if not is_last or text.endswith(self.sentence_enders) else text + "."

    def prepare_part(self, text: str, language: str | None, *, is_first: bool, is_last: bool) -> str:
        # The language's own letters (Cangjie, kana) without its tag.
        cleaned = self._clean(text, is_first=is_first, is_last=is_last)
        return self.prepare(cleaned, language).removeprefix(f"[{(language or '').lower()}]")

    def prepare(self, text: str, language: str | None) -> str:
        code = (language or "").lower()
        # Lower-casing first is the stock order: the capitals that NFKD makes out of signs (™) stay capitals.
        text = unicodedata.normalize("NFKD", text.lower())
        if code == "zh":
            text = "".join(self._cangjie.get(character, character) for character in text)
        elif code == "ja":
            text = _kanji_to_kana(text)
        elif code == "ko":  # NFKD has already taken syllables apart into jamo; all that is left is the stock strip
            text = text.strip()
        return _add_language_tag(text, code)


class ChatterboxEnglishFrontend(ChatterboxTextFrontend):
    """The English wrapper: no case folding, no decomposition, and no tag for English itself."""

    sentence_enders: ClassVar[tuple[str, ...]] = (".", "!", "?", "-", ",")
    languages: ClassVar[tuple[str, ...]] = ("en",)

    def prepare(self, text: str, language: str | None) -> str:
        code = (language or "").lower()
        return _add_language_tag(text, "" if code == "en" else code)


def read_cangjie(path: Path) -> dict[str, str]:
    """The Cangjie table as character to tokens. A code that several share gets a digit from the second one on."""
    entries = read_json(path)
    if not isinstance(entries, list):
        raise FileError(
            "json-shape", f"{path.name} is not a list", expected="a list of 'character<TAB>code'", where=path
        )
    for number, entry in enumerate(entries):
        if not isinstance(entry, str) or "\t" not in entry:
            found = f"entry {number} is {str(entry)[:40]!r}"
            raise FileError("json-shape", found, expected="'character<TAB>code'", where=path)
    return _assign_cangjie_tokens(tuple(entries))


@lru_cache(maxsize=1)  # one command opens the same base several times
def _assign_cangjie_tokens(entries: tuple[str, ...]) -> dict[str, str]:
    codes: dict[str, str] = {}
    sharers: Counter[str] = Counter()
    sharer_indices: dict[tuple[str, str], int] = {}
    for entry in entries:
        glyph, code = entry.split("\t")[:2]
        codes[glyph] = code
        sharer_indices.setdefault((code, glyph), sharers[code])
        sharers[code] += 1
    tokens: dict[str, str] = {}
    for glyph, code in codes.items():
        if len(glyph) == 1 and unicodedata.category(glyph) == "Lo":  # the wrapper looks up no other characters
            sharer_index = sharer_indices[code, glyph]
            keys = code + (str(sharer_index) if sharer_index else "")
            tokens[glyph] = "".join(f"[cj_{key}]" for key in (*keys, "."))
    return tokens


def _add_language_tag(text: str, code: str) -> str:
    tag = f"[{code}]" if code else ""
    return (tag + text).replace(" ", SPACE_TOKEN)


@lru_cache(maxsize=1 << 12)  # a tokenizer's proof reads the same sentences again, and reading them is slow
def _kanji_to_kana(text: str) -> str:
    """Words with kanji as hiragana, everything else as written; without pykakasi all of it as written."""
    try:
        converter = _load_kana_converter()
    except ModuleNotFoundError:  # the package is optional, as it is for the original program
        return text
    words = []
    for word in converter.convert(text):
        kana = word["orig"]
        if any(ord(character) in KANJI for character in kana):
            # A space keeps these from being taken for the particles that are pronounced otherwise.
            kana = f" {word['hira']}" if word["hira"].startswith(PARTICLE_LIKE_KANA) else word["hira"]
        words.append(kana)
    return unicodedata.normalize("NFKD", "".join(words))


@cache
def _load_kana_converter() -> Any:
    return import_module("pykakasi").kakasi()  # once: it loads a dictionary


TEXT_EMBEDDING_NAME, SPEECH_EMBEDDING_NAME = "text_emb.weight", "speech_emb.weight"
# Layers and width of the two published models with a GPT-2 backbone.
GPT2_RELEASES = {(24, 1024): "Chatterbox Turbo", (12, 768): "Chatterbox Nano"}

_GPT2_LAYER = re.compile(r"tfmr\.h\.(\d{1,4})\.")


@dataclass(frozen=True, slots=True)
class ChatterboxRelease:
    """A checkpoint and the tokenizer that belongs to it. The published folder holds several of them side by side."""

    title: str
    checkpoint: str
    tokenizer: str


ENGLISH_ROWS = 704
ENGLISH_RELEASE = ChatterboxRelease("English", "t3_cfg.safetensors", "tokenizer.json")
# In the order in which they are looked for; version 2 is what the original program loads by default.
RELEASES = (
    ChatterboxRelease("multilingual v2", "t3_mtl23ls_v2.safetensors", "grapheme_mtl_merged_expanded_v1.json"),
    ChatterboxRelease("multilingual v3", "t3_mtl23ls_v3.safetensors", "grapheme_mtl_merged_expanded_v1.json"),
    ChatterboxRelease("first multilingual", "t3_23lang.safetensors", "mtl_tokenizer.json"),
    ENGLISH_RELEASE,
)
MULTILINGUAL_TOKENIZERS = {release.tokenizer for release in RELEASES if release != ENGLISH_RELEASE}
RELEASE_TITLES_BY_ROWS = {
    2454: "multilingual, by its rows (v2 and v3 have as many)",
    2352: "first multilingual, by its rows",
    ENGLISH_ROWS: "English, by its rows",
}
VOICE_ENCODER_FILES = ("ve.pt", "ve.safetensors")
# Names that a file may have: as the multilingual program wants it first, as the English one does last.
S3GEN_FILES = ("s3gen.pt", "s3gen_v3.pt", "s3gen_v3.safetensors", "s3gen.safetensors")
VOICE_ENCODER_PURPOSE = "voice encoder: from a recording to the speaker's vector"
S3GEN_PURPOSE = "S3Gen: from a recording to codes, and from codes to the waveform"
CONDITIONS_PURPOSE = "built-in voice, for speaking without a recording"
CANGJIE_PURPOSE = "Cangjie codes, for Chinese text"
CONDITIONS_NAME = "conds.pt"


class Chatterbox(Family):
    """Resemble AI's Chatterbox: a Llama that reads text rows and speaks through a head of its own."""

    name: ClassVar[str] = "chatterbox"
    languages: ClassVar[tuple[str, ...]] = tuple(
        "ar da de el en es fi fr he hi it ja ko ms nl no pl pt ru sv sw tr zh".split()
    )
    graft_points: ClassVar[tuple[GraftPoint, ...]] = (
        GraftPoint("text_emb.weight", "embedding"),
        GraftPoint("text_head.weight", "head"),
    )
    spare_rows: ClassVar[int] = 0
    has_tags: ClassVar[bool] = True
    start_id: ClassVar[int] = TEXT_START_ID
    stop_id: ClassVar[int] = TEXT_STOP_ID
    special_ids: ClassVar[dict[str, int]] = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2, "[START]": 255}
    deleted_ids: ClassVar[frozenset[int]] = frozenset()
    tokenizer_names: ClassVar[tuple[str, ...]] = tuple(dict.fromkeys(release.tokenizer for release in RELEASES))
    checkpoint_names: ClassVar[tuple[str, ...]] = tuple(release.checkpoint for release in RELEASES)
    rates: ClassVar[dict[str, tuple[float, float]]] = {
        "rows": (1e-4, 1e-2),
        "adapter": (2e-4, 3e-3),
        "body": (1e-5, 1e-4),
    }
    code_hz: ClassVar[float] = 25.0
    licence: ClassVar[str] = (
        "Chatterbox is under the MIT licence, (c) 2025 Resemble AI: keep its notice with the graft, and note that the "
        "original program marks its speech with the Perth watermark."
    )

    def files(self, folder: Path) -> BaseFiles:
        try:
            release = self.find_release(folder)
        except FileError as missing:
            return BaseFiles(folder, *find_files_by_content(self, folder, missing))
        checkpoint, tokenizer = folder / release.checkpoint, folder / release.tokenizer
        refuse_lookalike_files(self, checkpoint, tokenizer)
        return BaseFiles(folder, checkpoint, tokenizer)

    def find_tokenizer(self, checkpoint: Path) -> Path:
        """Of the release whose checkpoint has that name; for a name of one's own, the one that fits its rows."""
        if named := tuple(release for release in RELEASES if release.checkpoint == checkpoint.name):
            return checkpoint.parent / self.find_release(checkpoint.parent, named).tokenizer
        seen = scan_checkpoint(checkpoint)
        if self.matches_tensors(seen.shapes):
            return find_matching_tokenizer(self, seen)
        return checkpoint.parent / self.find_release(checkpoint.parent).tokenizer

    def find_release(self, folder: Path, among: tuple[ChatterboxRelease, ...] = RELEASES) -> ChatterboxRelease:
        """The first release whose checkpoint and tokenizer are both in the folder; never a pair of two releases."""
        require_folder(folder)
        half: list[str] = []
        for release in among:
            checkpoint, tokenizer = is_file(folder / release.checkpoint), is_file(folder / release.tokenizer)
            if checkpoint and tokenizer:
                return release
            if checkpoint:
                half.append(f"{release.checkpoint} exists without its tokenizer {release.tokenizer}")
        looked = "; ".join(half) or f"none of {', '.join(self.checkpoint_names)} is in the folder"
        expected = "; or ".join(f"{release.checkpoint} with {release.tokenizer}" for release in among)
        raise FileError("base-file-missing", looked, expected=expected, where=folder)

    def front(self, tokenizer: Path | None = None) -> TextFrontend:
        if tokenizer is None:
            return ChatterboxTextFrontend()
        # Alone, the name says nothing: an export and a graft have a tokenizer.json too.
        if tokenizer.name == ENGLISH_RELEASE.tokenizer and is_file(tokenizer.with_name(ENGLISH_RELEASE.checkpoint)):
            return ChatterboxEnglishFrontend()
        if tokenizer.name not in MULTILINGUAL_TOKENIZERS:
            from voxgraft.tokenizers import open_tokenizer

            with suppress(VoxgraftError):  # a file that cannot be opened is reported by whoever uses it
                if open_tokenizer(tokenizer).size == ENGLISH_ROWS:
                    return ChatterboxEnglishFrontend()
        table = tokenizer.with_name(CANGJIE_NAME)
        return ChatterboxTextFrontend(read_cangjie(table) if is_file(table) else None)

    def sequence_spec(self, num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
        return t3_sequence_spec(num_text_ids, size)

    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        from voxgraft.checkpoints.load import read_tensor_shapes
        from voxgraft.models.chatterbox.model import T3

        return T3(self.infer_size(files, read_tensor_shapes(files.checkpoint)))

    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        from voxgraft.models.chatterbox.encoder import T3ClipEncoder

        return T3ClipEncoder.load(files.folder, model.device)

    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:  # noqa: ARG002 (one strength of emotion for all)
        from voxgraft.models.chatterbox.model import T3Condition

        # With the published strength of emotion.
        return T3Condition(np.asarray(prompt.voice["speaker"]), np.asarray(prompt.voice["prompt"]))

    def apply_style(self, condition: Any, manner: SpeakingStyle) -> Any:
        condition = super().apply_style(condition, replace(manner, exaggeration=None))
        return condition if manner.exaggeration is None else replace(condition, emotion=manner.exaggeration)

    def upstream_sampling(self) -> SamplingParams:
        from voxgraft.nn.decode import SamplingParams

        return SamplingParams(temperature=0.8, min_p=0.05, repetition_penalty=2.0, guidance=0.5, max_codes=1000)

    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        return is_t3(shapes) and not has_one_query(shapes)

    def check_lookalike(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
        """Recognises a T3 with another backbone, and a stand-in for one."""
        if has_stand_in_tensors(shapes):
            found = f"{path.name} contains {stand_in_parts(shapes)}"
            expected = f"{TEXT_EMBEDDING_NAME}, text_head.weight and the backbone"
            return finding("checkpoint-stand-in", found, expected=expected, where=path)
        layers = {int(match[1]) for match in map(_GPT2_LAYER.match, shapes) if match}
        if TEXT_EMBEDDING_NAME not in shapes or not layers:
            return None
        rows, width = (*shapes[TEXT_EMBEDDING_NAME], 0, 0)[:2]
        name = GPT2_RELEASES.get((len(layers), width), "similar to Chatterbox Turbo and Nano")
        seen = [f"a GPT-2 backbone ({len(layers)} layers, {width:,} wide)", f"{rows:,} text rows"]
        if SPEECH_EMBEDDING_NAME in shapes:
            seen.append(f"{(*shapes[SPEECH_EMBEDDING_NAME], 0)[0]:,} speech rows")
        if not any(tensor.startswith("cond_enc.perceiver.") for tensor in shapes):
            seen.append("no perceiver")
        found = f"{path.name} is {name}: {', '.join(seen)}"
        expected = "the Llama backbone (tfmr.layers.*) of Chatterbox multilingual or English"
        return finding("base-turbo", found, expected=expected, where=path)

    def infer_size(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> T3Size:
        return T3Size.of(shapes, files.checkpoint)

    def get_part_name(self, tensor: str) -> str | None:
        return t3_part_name(tensor)

    def describe(self, files: BaseFiles, rows: int) -> BaseDescription:
        """By the checkpoint's published name; by its number of text rows where it has another."""
        release = {release.checkpoint: release for release in RELEASES}.get(files.checkpoint.name)
        english = release == ENGLISH_RELEASE or (release is None and rows == ENGLISH_ROWS)
        by_rows = RELEASE_TITLES_BY_ROWS.get(rows, f"no published release ({rows:,} text rows)")
        others = tuple(
            other.checkpoint
            for other in RELEASES
            if other != release and is_file(files.folder / other.checkpoint) and is_file(files.folder / other.tokenizer)
        )
        turn = (
            -1 if english else 1
        )  # the English program wants safetensors where the multilingual one wants torch files
        side_files = [
            SideFile(VOICE_ENCODER_FILES[::turn], ("preparing", "speaking"), VOICE_ENCODER_PURPOSE),
            SideFile(S3GEN_FILES[::turn], ("preparing", "speaking"), S3GEN_PURPOSE),
            SideFile((CONDITIONS_NAME,), (), CONDITIONS_PURPOSE),
        ]
        if not english:
            side_files.append(SideFile((CANGJIE_NAME,), (), CANGJIE_PURPOSE))
        languages = ("en",) if english else self.languages
        return BaseDescription(release.title if release else by_rows, languages, tuple(side_files), others)

    def upstream(self) -> UpstreamProgram:
        from voxgraft.models.chatterbox.upstream import ChatterboxProgram

        return ChatterboxProgram()

    def voices(self, files: BaseFiles) -> Mapping[str, Clip]:
        from voxgraft.models.chatterbox.model import BUILT_IN_VOICE, read_built_in_voice

        path = files.folder / CONDITIONS_NAME
        return {BUILT_IN_VOICE: read_built_in_voice(path)} if is_file(path) else {}

    def speaker_encoder(self, path: Path) -> SpeakerEncoder:
        from voxgraft.models.chatterbox.encoder import VoiceEncoder

        return VoiceEncoder.load(path)

    def published_files(self, files: BaseFiles) -> tuple[PublishedTensors, ...]:
        from voxgraft.models.chatterbox.upstream import list_chatterbox_files

        return list_chatterbox_files(files)

    def vocoder(self, files: BaseFiles, device: str = "cpu", dtype: torch.dtype | None = None) -> Vocoder | None:
        from voxgraft.models.chatterbox.s3gen import S3GenVocoder

        return S3GenVocoder.find(files.folder, device, dtype)
