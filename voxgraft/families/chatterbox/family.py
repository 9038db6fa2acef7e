"""Facts about Chatterbox's T3: its releases and their files, its text rows, its tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxgraft.errors import FileError, Finding, VoxgraftError
from voxgraft.families.base import (
    BaseFiles,
    EmotionSource,
    Family,
    GraftPoint,
    LearningRateRange,
    SpeakingStyle,
    TextFrontend,
)
from voxgraft.families.chatterbox.near_misses import check_t3_lookalike
from voxgraft.families.chatterbox.shapes import T3Size, has_one_query, is_t3, t3_part_name
from voxgraft.families.chatterbox.text import (
    CANGJIE_NAME,
    ChatterboxEnglishFrontend,
    ChatterboxTextFrontend,
    read_cangjie,
)
from voxgraft.families.description import BaseDescription, Shape
from voxgraft.families.layout import SequenceSpec
from voxgraft.files import is_file, require_folder

if TYPE_CHECKING:
    from voxgraft.families.encoding import Clip, ClipEncoder
    from voxgraft.families.model import SpeechModel
    from voxgraft.families.sounding import Vocoder
    from voxgraft.families.stock import StockProgram
    from voxgraft.nn.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatterboxRelease:
    """A checkpoint and the tokenizer that belongs to it. The published folder holds several of them side by side."""

    title: str
    checkpoint: str
    tokenizer: str


ENGLISH_ROWS = 704
ENGLISH_RELEASE = ChatterboxRelease("English", "t3_cfg.safetensors", "tokenizer.json")
RELEASES = (
    ChatterboxRelease("multilingual v2", "t3_mtl23ls_v2.safetensors", "grapheme_mtl_merged_expanded_v1.json"),
    ChatterboxRelease("multilingual v3", "t3_mtl23ls_v3.safetensors", "grapheme_mtl_merged_expanded_v1.json"),
    ChatterboxRelease("first multilingual", "t3_23lang.safetensors", "mtl_tokenizer.json"),
    ENGLISH_RELEASE,
)
"""In the order in which they are looked for; version 2 is what the stock program loads unless told otherwise."""
MULTILINGUAL_TOKENIZERS = {release.tokenizer for release in RELEASES if release != ENGLISH_RELEASE}


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
    start_id: ClassVar[int] = 255
    stop_id: ClassVar[int] = 0
    special_ids: ClassVar[dict[str, int]] = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2, "[START]": 255}
    deleted_ids: ClassVar[frozenset[int]] = frozenset()
    tokenizer_names: ClassVar[tuple[str, ...]] = tuple(dict.fromkeys(release.tokenizer for release in RELEASES))
    checkpoint_names: ClassVar[tuple[str, ...]] = tuple(release.checkpoint for release in RELEASES)
    rates: ClassVar[dict[str, LearningRateRange]] = {
        "rows": LearningRateRange(1e-4, 1e-2),
        "adapter": LearningRateRange(2e-4, 3e-3),
        "body": LearningRateRange(1e-5, 1e-4),
    }
    code_hz: ClassVar[float] = 25.0
    loss_weights: ClassVar[tuple[float, float]] = (1.0, 1.0)
    licence: ClassVar[str] = (
        "Chatterbox is under the MIT licence, (c) 2025 Resemble AI: keep its notice with the graft, and note that the "
        "stock program marks its speech with the Perth watermark."
    )

    def files(self, folder: Path) -> BaseFiles:
        from voxgraft.families.looking import find_files_by_content, refuse_lookalike_files

        try:
            release = self.release(folder)
        except FileError as missing:
            return BaseFiles(folder, *find_files_by_content(self, folder, missing))
        checkpoint, tokenizer = folder / release.checkpoint, folder / release.tokenizer
        refuse_lookalike_files(self, checkpoint, tokenizer)
        return BaseFiles(folder, checkpoint, tokenizer)

    def find_tokenizer(self, checkpoint: Path) -> Path:
        """Of the release whose checkpoint has that name; for a name of one's own, the one that fits its rows."""
        from voxgraft.families.looking import find_matching_tokenizer, scan_checkpoint

        if named := tuple(release for release in RELEASES if release.checkpoint == checkpoint.name):
            return checkpoint.parent / self.release(checkpoint.parent, named).tokenizer
        seen = scan_checkpoint(checkpoint)
        if self.matches_tensors(seen.shapes):
            return find_matching_tokenizer(self, seen)
        return checkpoint.parent / self.release(checkpoint.parent).tokenizer

    def release(self, folder: Path, among: tuple[ChatterboxRelease, ...] = RELEASES) -> ChatterboxRelease:
        """The first release whose checkpoint and tokenizer are both in the folder; never a pair of two releases."""
        require_folder(folder)
        half: list[str] = []
        for release in among:
            checkpoint, tokenizer = is_file(folder / release.checkpoint), is_file(folder / release.tokenizer)
            if checkpoint and tokenizer:
                return release
            if checkpoint:
                half.append(f"{release.checkpoint} is there without its tokenizer {release.tokenizer}")
        looked = "; ".join(half) or f"none of {', '.join(self.checkpoint_names)} is in the folder"
        expected = "; or ".join(f"{release.checkpoint} with {release.tokenizer}" for release in among)
        raise FileError("base-file-missing", looked, expected=expected, where=folder)

    def front(self, tokenizer: Path | None = None) -> TextFrontend:
        if tokenizer is None:
            return ChatterboxTextFrontend()
        # By itself the name says nothing: an export and a graft have a tokenizer.json too.
        if tokenizer.name == ENGLISH_RELEASE.tokenizer and is_file(tokenizer.with_name(ENGLISH_RELEASE.checkpoint)):
            return ChatterboxEnglishFrontend()
        if tokenizer.name not in MULTILINGUAL_TOKENIZERS and _count_pieces(tokenizer) == ENGLISH_ROWS:
            return ChatterboxEnglishFrontend()
        table = tokenizer.with_name(CANGJIE_NAME)
        return ChatterboxTextFrontend(read_cangjie(table) if is_file(table) else None)

    def frame(self, num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
        from voxgraft.families.chatterbox.frame import t3_sequence_spec

        return t3_sequence_spec(num_text_ids, size)

    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        from voxgraft.families.chatterbox.model import T3
        from voxgraft.families.tensors import read_tensor_shapes

        return T3(self.infer_size(files, read_tensor_shapes(files.checkpoint)))

    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        from voxgraft.families.chatterbox.encoder import T3ClipEncoder

        return T3ClipEncoder.load(files.folder, model.device)

    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:  # noqa: ARG002 (one strength of emotion for all)
        from voxgraft.families.chatterbox.encoder import build_t3_condition

        return build_t3_condition(prompt)

    def apply_style(self, condition: Any, manner: SpeakingStyle) -> Any:
        condition = super().apply_style(condition, replace(manner, exaggeration=None))
        return condition if manner.exaggeration is None else replace(condition, emotion=manner.exaggeration)

    def stock_sampling(self) -> SamplingParams:
        from voxgraft.nn.sampling import SamplingParams

        return SamplingParams(temperature=0.8, min_p=0.05, repetition_penalty=2.0, guidance=0.5, max_codes=1000)

    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        return is_t3(shapes) and not has_one_query(shapes)

    def check_lookalike(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
        return check_t3_lookalike(path, shapes)

    def infer_size(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> T3Size:
        return T3Size.of(shapes, files.checkpoint)

    def get_part_name(self, tensor: str) -> str | None:
        return t3_part_name(tensor)

    def describe(self, files: BaseFiles, rows: int) -> BaseDescription:
        from voxgraft.families.chatterbox.describing import describe_chatterbox

        return describe_chatterbox(files, rows)

    def stock(self) -> StockProgram:
        from voxgraft.families.chatterbox.stock import ChatterboxProgram

        return ChatterboxProgram()

    def voices(self, files: BaseFiles) -> Mapping[str, Clip]:
        from voxgraft.families.chatterbox.conditions import BUILT_IN_VOICE, CONDITIONS_NAME, read_built_in_voice

        path = files.folder / CONDITIONS_NAME
        return {BUILT_IN_VOICE: read_built_in_voice(path)} if is_file(path) else {}

    def vocoder(self, files: BaseFiles, device: str = "cpu") -> Vocoder | None:
        from voxgraft.families.chatterbox.vocoder import S3GenVocoder

        return S3GenVocoder.find(files.folder, device)

    def read_config_pieces(self, config: Path) -> int | None:  # noqa: ARG002 (this family has no config file)
        return None


def _count_pieces(tokenizer: Path) -> int | None:
    """How many pieces a tokenizer file has; None where it cannot be opened, which is told by who opens it."""
    from voxgraft.tokenizers import open_tokenizer

    try:
        return open_tokenizer(tokenizer).size
    except VoxgraftError:
        return None
