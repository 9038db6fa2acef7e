"""Facts about IndexTTS-2's GPT (UnifiedVoice): its files and what its config says of them, its text rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxgraft.errors import CheckpointError, ConfigError, FileError, Finding
from voxgraft.families.base import BaseFiles, EmotionFrom, Family, Front, GraftPoint, Manner, RateRange
from voxgraft.families.description import Description, Shape
from voxgraft.families.indextts2.config_file import CONFIG_NAME, file_name, section_of, settings_of
from voxgraft.families.indextts2.near_misses import gpt_near_miss, refuse_other_versions
from voxgraft.families.indextts2.shapes import UnifiedVoiceSize, is_alias, is_unified_voice, unified_voice_part
from voxgraft.families.indextts2.text import IndexFront
from voxgraft.families.layout import Frame
from voxgraft.files import existing_folder, is_file

if TYPE_CHECKING:
    from voxgraft.families.encoding import Clip, ClipEncoder
    from voxgraft.families.model import SpeechModel
    from voxgraft.families.stock import StockProgram
    from voxgraft.nn.sampling import Sampling


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
    rates: ClassVar[dict[str, RateRange]] = {
        "rows": RateRange(1e-4, 1e-2),
        "adapter": RateRange(2e-4, 3e-3),
        "body": RateRange(1e-5, 1e-4),
    }
    code_hz: ClassVar[float] = 50.0
    loss_weights: ClassVar[tuple[float, float]] = (0.2, 0.8)
    licence: ClassVar[str] = (
        "IndexTTS-2 is under the bilibili Model Use License Agreement: whoever shares a graft made from it must carry "
        "that agreement and its disclaimer, and pass both on."
    )

    def files(self, folder: Path) -> BaseFiles:
        from voxgraft.families.looking import own_named, refuse_mistaken

        config = existing_folder(folder) / CONFIG_NAME
        if not is_file(config):
            raise self._without_config(folder)
        settings = settings_of(config)
        refuse_other_versions(settings, config)
        checkpoint = file_name(settings, "gpt_checkpoint", config)
        tokenizer = file_name(section_of(settings, "dataset", config), "dataset.bpe_model", config)
        try:
            found = (
                _first_there(folder, (checkpoint,) if checkpoint else self.checkpoint_names),
                _first_there(folder, (tokenizer,) if tokenizer else self.tokenizer_names),
            )
        except FileError as missing:
            # A name of its own in the config means that very file, and no other will do.
            if {checkpoint, tokenizer} - {None, *self.checkpoint_names, *self.tokenizer_names}:
                raise
            return BaseFiles(folder, *own_named(self, folder, missing), config)
        refuse_mistaken(self, *found)
        return BaseFiles(folder, *found, config)

    def tokenizer_of(self, checkpoint: Path) -> Path:
        """The one that the config names; for a checkpoint beside several others, the one that fits its rows."""
        from voxgraft.families.looking import fitting_tokenizer, look_at

        try:
            return super().tokenizer_of(checkpoint)
        except FileError:
            seen = look_at(checkpoint)
            if not self.recognises(seen.shapes):
                raise
            return fitting_tokenizer(self, seen)

    def _without_config(self, folder: Path) -> FileError:
        """What is missing in a folder without a config; raises if its checkpoint is of another generation."""
        from voxgraft.families.looking import look_around

        missing = f"{CONFIG_NAME} is not in the folder"
        for seen in look_around(folder):
            if item := self.near_miss(seen.path, seen.shapes):
                raise CheckpointError.of(item)
            if self.recognises(seen.shapes):
                missing = f"{seen.path.name} holds IndexTTS-2's tensors, and {missing}"
        cure = f"put the {CONFIG_NAME} that came with the base beside the checkpoint; no tensor shows the heads."
        return FileError("base-file-missing", missing, where=folder, cure=cure if "tensors" in missing else "")

    def front(self, tokenizer: Path | None = None) -> Front:  # noqa: ARG002 (no tables beside the tokenizer)
        return IndexFront()

    def frame(self, num_text_ids: int, size: UnifiedVoiceSize | None = None) -> Frame:
        from voxgraft.families.indextts2.frame import unified_voice_frame

        return unified_voice_frame(num_text_ids, size)

    def empty_model(self, files: BaseFiles) -> SpeechModel:
        from voxgraft.families.indextts2.model import UnifiedVoice
        from voxgraft.families.tensors import stored_shapes

        return UnifiedVoice(self.size_of(files, stored_shapes(files.checkpoint)))

    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        from voxgraft.families.indextts2.encoder import UnifiedVoiceEncoder
        from voxgraft.families.indextts2.model import UnifiedVoice

        assert isinstance(model, UnifiedVoice)
        return UnifiedVoiceEncoder.load(files, model)

    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionFrom = "target") -> Any:
        from voxgraft.families.indextts2.encoder import unified_voice_condition

        return unified_voice_condition(prompt, target, emotion_from)

    def in_manner(self, condition: Any, manner: Manner) -> Any:
        from voxgraft.families.indextts2.encoder import with_emotion

        condition = super().in_manner(condition, Manner(exaggeration=manner.exaggeration))
        if manner.emotion is None:
            if manner.emotion_weight is not None:
                raise ConfigError("manner-unknown", "emotion_weight is given without an emotion", expected="--emotion")
            return condition
        return with_emotion(condition, manner.emotion, 1.0 if manner.emotion_weight is None else manner.emotion_weight)

    def mixed_emotion(self, files: BaseFiles, shares: Sequence[float]) -> tuple[Clip, float]:
        from voxgraft.families.indextts2.emotions import mixed_emotion

        return mixed_emotion(files, shares)

    def stock_sampling(self) -> Sampling:
        from voxgraft.nn.sampling import Sampling

        return Sampling(temperature=0.8, top_k=30, top_p=0.8, repetition_penalty=10.0, max_codes=1500)

    def recognises(self, shapes: Mapping[str, Shape]) -> bool:
        return is_unified_voice(shapes)

    def near_miss(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
        return gpt_near_miss(path, shapes)

    def size_of(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> UnifiedVoiceSize:
        if files.config is None:
            found = f"{CONFIG_NAME} is not beside {files.checkpoint.name}, and no tensor shows the number of heads"
            raise FileError("base-file-missing", found, where=files.folder)
        return UnifiedVoiceSize.of(settings_of(files.config), shapes, files.checkpoint, files.config)

    def part_of(self, tensor: str) -> str | None:
        return None if is_alias(tensor) else unified_voice_part(tensor)

    def is_computed(self, tensor: str) -> bool:
        return tensor.endswith(".pos_enc.pe")

    def describe(self, files: BaseFiles, rows: int) -> Description:  # noqa: ARG002 (there is one release)
        from voxgraft.families.indextts2.describing import describe

        return describe(files)

    def stock(self) -> StockProgram:
        from voxgraft.families.indextts2.stock import IndexProgram

        return IndexProgram()

    def configured_pieces(self, config: Path) -> int | None:
        pieces = section_of(settings_of(config), "gpt", config).get("number_text_tokens")
        if pieces is None:
            return None
        if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
            found = f"gpt.number_text_tokens is {pieces!r}"
            raise ConfigError("base-config", found, expected="a whole number, 1 or more", where=config)
        return pieces


def _first_there(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if is_file(folder / name):
            return folder / name
    missing = " and ".join(names)
    raise FileError(
        "base-file-missing", f"{missing} {'is' if len(names) == 1 else 'are'} not in the folder", where=folder
    )
