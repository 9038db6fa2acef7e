"""Facts about the tiny family: a small T3 of our own that speaks English and French, with its codec and its voices."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxgraft.errors import FileError, Finding
from voxgraft.families.base import BaseFiles, EmotionSource, Family, GraftPoint, LearningRateRange, TextFrontend
from voxgraft.families.chatterbox.shapes import T3Size, has_one_query, is_t3, t3_part_name
from voxgraft.families.description import BaseDescription, Shape, SideFile
from voxgraft.families.layout import SequenceSpec
from voxgraft.families.tiny.frame import START_ID, STOP_ID, tiny_sequence_spec
from voxgraft.families.tiny.text import SPACE_TOKEN, TinyTextFrontend
from voxgraft.families.tiny.voices import VOICES_NAME, read_voices
from voxgraft.files import is_file, is_folder, require_folder

if TYPE_CHECKING:
    from voxgraft.families.encoding import Clip, ClipEncoder
    from voxgraft.families.model import SpeechModel
    from voxgraft.families.sounding import Vocoder
    from voxgraft.families.stock import StockProgram
    from voxgraft.nn.sampling import SamplingParams

CHECKPOINT_NAME, TOKENIZER_NAME, CODEC_NAME, CARD_NAME = (
    "t3.safetensors",
    "tokenizer.json",
    "codec.safetensors",
    "card.json",
)
SHIPPED_FOLDER = "data/tiny"
MAX_SECONDS = 12


class Tiny(Family):
    """voxgraft's own small base."""

    name: ClassVar[str] = "tiny"
    languages: ClassVar[tuple[str, ...]] = ("en", "fr")
    graft_points: ClassVar[tuple[GraftPoint, ...]] = (
        GraftPoint("text_emb.weight", "embedding"),
        GraftPoint("text_head.weight", "head"),
    )
    spare_rows: ClassVar[int] = 0
    has_tags: ClassVar[bool] = True
    start_id: ClassVar[int] = START_ID
    stop_id: ClassVar[int] = STOP_ID
    special_ids: ClassVar[dict[str, int]] = {"[STOP]": STOP_ID, "[UNK]": 1, SPACE_TOKEN: 2, "[START]": START_ID}
    deleted_ids: ClassVar[frozenset[int]] = frozenset()
    tokenizer_names: ClassVar[tuple[str, ...]] = (TOKENIZER_NAME,)
    checkpoint_names: ClassVar[tuple[str, ...]] = (CHECKPOINT_NAME,)
    rates: ClassVar[dict[str, LearningRateRange]] = {
        "rows": LearningRateRange(1e-4, 1e-2),
        "adapter": LearningRateRange(2e-4, 6e-3),
        "body": LearningRateRange(1e-5, 1e-3),
    }
    # It is small and learns on a processor: the usual 10,000 steps of 16,384 positions would take days there.
    run_defaults: ClassVar[dict[str, Any]] = {
        "steps": 300,
        "tokens_per_step": 1440,
        "warmup_steps": 20,
        "valid_every": 100,
        "save_every": 100,
        "sample_every": 100,
    }
    code_hz: ClassVar[float] = 25.0
    loss_weights: ClassVar[tuple[float, float]] = (0.1, 1.0)
    clones_voices: ClassVar[bool] = False
    licence: ClassVar[str] = "The tiny base is voxgraft's own, under the Apache-2.0 licence, as its card says."

    def files(self, folder: Path) -> BaseFiles:
        from voxgraft.families.looking import refuse_lookalike_files

        names = (CHECKPOINT_NAME, TOKENIZER_NAME, VOICES_NAME)
        missing = [name for name in names if not is_file(require_folder(folder) / name)]
        if missing:
            found = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in the folder"
            raise FileError("base-file-missing", found, expected=", ".join(names), where=folder)
        refuse_lookalike_files(self, folder / CHECKPOINT_NAME, folder / TOKENIZER_NAME)
        return BaseFiles(folder, folder / CHECKPOINT_NAME, folder / TOKENIZER_NAME)

    def find_tokenizer(self, checkpoint: Path) -> Path:
        """The one beside it; among several, the one that fits its rows."""
        from voxgraft.families.looking import find_matching_tokenizer, scan_checkpoint

        beside = checkpoint.with_name(TOKENIZER_NAME)
        if checkpoint.name == CHECKPOINT_NAME and is_file(beside):
            return beside
        return find_matching_tokenizer(self, scan_checkpoint(checkpoint))

    def front(self, tokenizer: Path | None = None) -> TextFrontend:  # noqa: ARG002 (no tables beside the tokenizer)
        return TinyTextFrontend()

    def frame(self, num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
        return tiny_sequence_spec(num_text_ids, size)

    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        from voxgraft.families.tensors import read_tensor_shapes
        from voxgraft.families.tiny.model import TinyT3

        return TinyT3(self.infer_size(files, read_tensor_shapes(files.checkpoint)))

    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        from voxgraft.families.tiny.encoder import TinyClipEncoder

        return TinyClipEncoder.load(files.folder, model.device)

    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:  # noqa: ARG002 (a speaker's number is all there is)
        from voxgraft.families.tiny.encoder import build_tiny_condition

        return build_tiny_condition(prompt)

    def stock_sampling(self) -> SamplingParams:
        from voxgraft.nn.sampling import SamplingParams

        return SamplingParams(temperature=0.6, top_p=0.9, max_codes=round(MAX_SECONDS * self.code_hz))

    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        return is_t3(shapes) and has_one_query(shapes)

    def check_lookalike(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:  # noqa: ARG002 (nothing is mistaken for it)
        return None

    def infer_size(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> T3Size:
        return T3Size.of(shapes, files.checkpoint)

    def get_part_name(self, tensor: str) -> str | None:
        return t3_part_name(tensor)

    def describe(self, files: BaseFiles, rows: int) -> BaseDescription:  # noqa: ARG002 (there is one release)
        sides = (
            SideFile((CODEC_NAME,), ("preparing", "speaking"), "codec: from a recording to codes, and back to sound"),
            SideFile((VOICES_NAME,), ("preparing", "speaking"), "names of the speakers"),
            SideFile((CARD_NAME,), (), "what the base was made from, and its scores"),
        )
        return BaseDescription("built-in", self.languages, sides)

    def stock(self) -> StockProgram:
        from voxgraft.families.tiny.stock import TinyProgram

        return TinyProgram()

    def read_config_pieces(self, config: Path) -> int | None:  # noqa: ARG002 (this family has no config file)
        return None

    def shipped_folder(self) -> Path | None:
        folder = Path(str(resources.files("voxgraft").joinpath(SHIPPED_FOLDER)))
        if not is_folder(folder):
            raise FileError("base-not-shipped", f"{SHIPPED_FOLDER} is not in the package", where=folder)
        return folder

    def voices(self, files: BaseFiles) -> Mapping[str, Clip]:
        from voxgraft.families.tiny.encoder import build_voice_clip

        return {name: build_voice_clip(number) for number, name in enumerate(read_voices(files.folder))}

    def vocoder(self, files: BaseFiles, device: str = "cpu") -> Vocoder | None:
        from voxgraft.families.tiny.vocoder import TinyVocoder

        return TinyVocoder.load(files.folder, device)
