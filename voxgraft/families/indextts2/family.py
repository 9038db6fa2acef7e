"""Facts about IndexTTS-2's GPT (UnifiedVoice): its files and what its config says of them, its text rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxgraft.errors import CheckpointError, ConfigError, FileError, Finding
from voxgraft.families.base import (
    BaseFiles,
    EmotionSource,
    Family,
    GraftPoint,
    LearningRateRange,
    SpeakingStyle,
    TextFrontend,
)
from voxgraft.families.description import BaseDescription, Shape
from voxgraft.families.indextts2.config_file import (
    CONFIG_NAME,
    get_config_file_name,
    get_config_section,
    read_base_config,
)
from voxgraft.families.indextts2.near_misses import check_gpt_lookalike, refuse_other_versions
from voxgraft.families.indextts2.shapes import UnifiedVoiceSize, is_alias, is_unified_voice, unified_voice_part_name
from voxgraft.families.indextts2.text import IndexTTS2TextFrontend
from voxgraft.families.layout import SequenceSpec
from voxgraft.files import is_file, require_folder

if TYPE_CHECKING:
    from voxgraft.families.encoding import Clip, ClipEncoder
    from voxgraft.families.model import SpeechModel
    from voxgraft.families.stock import StockProgram
    from voxgraft.nn.sampling import SamplingParams


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
    rates: ClassVar[dict[str, LearningRateRange]] = {
        "rows": LearningRateRange(1e-4, 1e-2),
        "adapter": LearningRateRange(2e-4, 3e-3),
        "body": LearningRateRange(1e-5, 1e-4),
    }
    code_hz: ClassVar[float] = 50.0
    loss_weights: ClassVar[tuple[float, float]] = (0.2, 0.8)
    licence: ClassVar[str] = (
        "IndexTTS-2 is under the bilibili Model Use License Agreement: whoever shares a graft made from it must carry "
        "that agreement and its disclaimer, and pass both on."
    )

    def files(self, folder: Path) -> BaseFiles:
        from voxgraft.families.looking import find_files_by_content, refuse_lookalike_files

        config = require_folder(folder) / CONFIG_NAME
        if not is_file(config):
            raise self._missing_config_error(folder)
        settings = read_base_config(config)
        refuse_other_versions(settings, config)
        checkpoint = get_config_file_name(settings, "gpt_checkpoint", config)
        tokenizer = get_config_file_name(get_config_section(settings, "dataset", config), "dataset.bpe_model", config)
        try:
            found = (
                _find_first_file(folder, (checkpoint,) if checkpoint else self.checkpoint_names),
                _find_first_file(folder, (tokenizer,) if tokenizer else self.tokenizer_names),
            )
        except FileError as missing:
            # A name of its own in the config means that very file, and no other will do.
            if {checkpoint, tokenizer} - {None, *self.checkpoint_names, *self.tokenizer_names}:
                raise
            return BaseFiles(folder, *find_files_by_content(self, folder, missing), config)
        refuse_lookalike_files(self, *found)
        return BaseFiles(folder, *found, config)

    def find_tokenizer(self, checkpoint: Path) -> Path:
        """The one that the config names; for a checkpoint beside several others, the one that fits its rows."""
        from voxgraft.families.looking import find_matching_tokenizer, scan_checkpoint

        try:
            return super().find_tokenizer(checkpoint)
        except FileError:
            seen = scan_checkpoint(checkpoint)
            if not self.matches_tensors(seen.shapes):
                raise
            return find_matching_tokenizer(self, seen)

    def _missing_config_error(self, folder: Path) -> FileError:
        """What is missing in a folder without a config; raises if its checkpoint is of another generation."""
        from voxgraft.families.looking import scan_folder

        missing = f"{CONFIG_NAME} is not in the folder"
        for seen in scan_folder(folder):
            if item := self.check_lookalike(seen.path, seen.shapes):
                raise CheckpointError.of(item)
            if self.matches_tensors(seen.shapes):
                missing = f"{seen.path.name} holds IndexTTS-2's tensors, and {missing}"
        cure = f"put the {CONFIG_NAME} that came with the base beside the checkpoint; no tensor shows the heads."
        return FileError("base-file-missing", missing, where=folder, cure=cure if "tensors" in missing else "")

    def front(self, tokenizer: Path | None = None) -> TextFrontend:  # noqa: ARG002 (no tables beside the tokenizer)
        return IndexTTS2TextFrontend()

    def frame(self, num_text_ids: int, size: UnifiedVoiceSize | None = None) -> SequenceSpec:
        from voxgraft.families.indextts2.frame import unified_voice_sequence_spec

        return unified_voice_sequence_spec(num_text_ids, size)

    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        from voxgraft.families.indextts2.model import UnifiedVoice
        from voxgraft.families.tensors import read_tensor_shapes

        return UnifiedVoice(self.infer_size(files, read_tensor_shapes(files.checkpoint)))

    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        from voxgraft.families.indextts2.encoder import UnifiedVoiceClipEncoder
        from voxgraft.families.indextts2.model import UnifiedVoice

        assert isinstance(model, UnifiedVoice)
        return UnifiedVoiceClipEncoder.load(files, model)

    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:
        from voxgraft.families.indextts2.encoder import build_unified_voice_condition

        return build_unified_voice_condition(prompt, target, emotion_from)

    def apply_style(self, condition: Any, manner: SpeakingStyle) -> Any:
        from voxgraft.families.indextts2.encoder import blend_emotion

        condition = super().apply_style(condition, SpeakingStyle(exaggeration=manner.exaggeration))
        if manner.emotion is None:
            if manner.emotion_weight is not None:
                raise ConfigError("manner-unknown", "emotion_weight is given without an emotion", expected="--emotion")
            return condition
        return blend_emotion(condition, manner.emotion, 1.0 if manner.emotion_weight is None else manner.emotion_weight)

    def mix_emotions(self, files: BaseFiles, shares: Sequence[float]) -> tuple[Clip, float]:
        from voxgraft.families.indextts2.emotions import mix_emotions

        return mix_emotions(files, shares)

    def stock_sampling(self) -> SamplingParams:
        from voxgraft.nn.sampling import SamplingParams

        return SamplingParams(temperature=0.8, top_k=30, top_p=0.8, repetition_penalty=10.0, max_codes=1500)

    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        return is_unified_voice(shapes)

    def check_lookalike(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
        return check_gpt_lookalike(path, shapes)

    def infer_size(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> UnifiedVoiceSize:
        if files.config is None:
            found = f"{CONFIG_NAME} is not beside {files.checkpoint.name}, and no tensor shows the number of heads"
            raise FileError("base-file-missing", found, where=files.folder)
        return UnifiedVoiceSize.of(read_base_config(files.config), shapes, files.checkpoint, files.config)

    def get_part_name(self, tensor: str) -> str | None:
        return None if is_alias(tensor) else unified_voice_part_name(tensor)

    def is_computed(self, tensor: str) -> bool:
        return tensor.endswith(".pos_enc.pe")

    def describe(self, files: BaseFiles, rows: int) -> BaseDescription:  # noqa: ARG002 (there is one release)
        from voxgraft.families.indextts2.describing import describe_indextts2

        return describe_indextts2(files)

    def stock(self) -> StockProgram:
        from voxgraft.families.indextts2.stock import IndexTTS2Program

        return IndexTTS2Program()

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
