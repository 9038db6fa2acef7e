"""Facts about the tiny family: a small T3 of our own that speaks English and French, with its codec and its voices."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import FileError
from voxgraft.core.files import is_file, read_json, require_file, require_folder, write_json
from voxgraft.models import find_matching_tokenizer, refuse_lookalike_files, scan_checkpoint
from voxgraft.models.base import (
    BaseDescription,
    BaseFiles,
    EmotionSource,
    ExportInfo,
    Family,
    GraftPoint,
    SequenceSpec,
    SideFile,
    UpstreamFolder,
    UpstreamProgram,
    find_side_files,
    unknown_voice_error,
)
from voxgraft.models.chatterbox.family import T3Size, has_one_query, is_t3, t3_part_name
from voxgraft.text import TextFrontend

if TYPE_CHECKING:
    import torch

    from voxgraft.models.base import Clip, ClipEncoder, UpstreamProgram, Vocoder
    from voxgraft.models.speech_model import SpeechModel
    from voxgraft.nn.decode import SamplingParams


START_ID, STOP_ID = 3, 0
# Of the shipped codec.
NUM_SHIPPED_CODES = 2560
# As the shipped base has it. The voice is a speaker's number, so there is little to condition on: three slots.
SHIPPED_SIZE = T3Size(
    text_rows=160,
    width=256,
    layers=8,
    mlp=704,
    speech_rows=NUM_SHIPPED_CODES + 2,
    text_positions=256,
    speech_positions=512,
    speaker_width=4,
    perceiver_queries=1,
)


def tiny_sequence_spec(num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
    """Positions and start ids are counted while speaking as while learning."""
    size = size or SHIPPED_SIZE
    num_codes = size.speech_rows - 2
    return SequenceSpec(
        num_text_ids=num_text_ids,
        text_start=START_ID,
        text_stop=STOP_ID,
        num_codes=num_codes,
        speech_start=num_codes,
        speech_stop=num_codes + 1,
        max_text=size.text_positions - 2,
        max_codes=size.speech_positions - 2,
        num_conditioning=size.perceiver_queries + 2,
    )


SPACE_TOKEN = "[SPACE]"
SIMPLE_PUNCTUATION = ".,?!'-"
# What is written for punctuation that has a simple cousin.
PUNCTUATION_REWRITES = str.maketrans(
    {
        "’": "'",
        "‘": "'",
        "ʼ": "'",
        "`": "'",
        "–": "-",
        "—": "-",
        "‐": "-",
        "…": ".",
        ";": ",",
        ":": ",",
    }
)
# Below this, punctuation is ASCII's and Latin-1's; above, a script's own, which a new language may need.
_FIRST_NON_LATIN_SIGN = 0x0300
_GENERAL_PUNCTUATION = range(0x2000, 0x2070)
# As French writes it before some signs, and as quotes leave it.
_SPACE_BEFORE_PUNCTUATION = re.compile(r" (?=[.,?!])")


class TinyTextFrontend(TextFrontend):
    """Letters, marks and digits of any script stay; of punctuation the simple signs, and those of other scripts."""

    closed_up: ClassVar[tuple[str, ...]] = (".", ",", "?", "!")

    def clean(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text).translate(PUNCTUATION_REWRITES)
        cleaned = " ".join(text.translate(_CHARACTER_FILTER).split())
        return _SPACE_BEFORE_PUNCTUATION.sub("", cleaned)

    def prepare(self, text: str, language: str | None) -> str:
        tag = f"[{language.lower()}]" if language else ""
        # The tokenizer cuts at spaces and drops them; as a piece of their own they keep words apart.
        return tag + unicodedata.normalize("NFC", text.lower()).replace(" ", SPACE_TOKEN)

    def prepare_part(self, text: str, language: str | None, *, is_first: bool, is_last: bool) -> str:  # noqa: ARG002
        return self.prepare(self.clean(text), None)


class _CharacterFilter(dict[int, int]):
    """What becomes of a character, by its number: itself, or a space. Filled as characters are met."""

    def __missing__(self, code_point: int) -> int:
        kind = unicodedata.category(chr(code_point))[0]
        kept = kind in "LMN" or chr(code_point) in SIMPLE_PUNCTUATION
        kept = kept or (kind == "P" and code_point >= _FIRST_NON_LATIN_SIGN and code_point not in _GENERAL_PUNCTUATION)
        self[code_point] = code_point if kept else ord(" ")
        return self[code_point]


_CHARACTER_FILTER = _CharacterFilter()


VOICES_NAME = "voices.json"
VOICES_FORMAT = "voxgraft-voices-1"
# With vectors of a speaker encoder instead of numbers: such a base clones voices.
VOICE_VECTORS_FORMAT = "voxgraft-voices-2"


class TinyVoices(NamedTuple):
    """The voices that a base has by name, by their numbers or with their vectors."""

    names: tuple[str, ...]
    width: int = 0
    """Numbers of a vector; 0: voices are a table."""
    vectors: tuple[tuple[float, ...], ...] = ()

    @property
    def clones_voices(self) -> bool:
        """Whether any recording lends its voice."""
        return self.width > 0


def read_voices(folder: Path) -> TinyVoices:
    """The voices of a base folder."""
    path = require_file(folder / VOICES_NAME)
    document = read_json(path)
    found = document if isinstance(document, dict) else {}
    if found.get("format") == VOICE_VECTORS_FORMAT:
        return _read_voice_vectors(found, path)
    names = found.get("speakers") if found.get("format") == VOICES_FORMAT else None
    named = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    if not named or not names or len(set(names)) != len(names):
        what = f"{VOICES_NAME} contains no table of speakers"
        expected = f'{{"format": "{VOICES_FORMAT}", "speakers": [different names]}}'
        raise FileError("voices-broken", what, expected=expected, where=path)
    return TinyVoices(tuple(names))


def _read_voice_vectors(document: Mapping[str, Any], path: Path) -> TinyVoices:
    width, voices = document.get("width"), document.get("voices")
    is_whole = isinstance(width, int) and width > 0 and isinstance(voices, dict) and all(voices)
    is_whole = is_whole and all(
        isinstance(vector, list) and len(vector) == width and all(type(number) is float for number in vector)
        for vector in voices.values()  # type: ignore[union-attr]
    )
    if not is_whole:
        expected = f'{{"format": "{VOICE_VECTORS_FORMAT}", "width": V, "voices": {{name: [V numbers]}}}}'
        raise FileError("voices-broken", f"{VOICES_NAME} contains no voice vectors", expected=expected, where=path)
    assert isinstance(width, int)
    assert isinstance(voices, dict)
    return TinyVoices(tuple(voices), width, tuple(tuple(vector) for vector in voices.values()))


def write_voices(folder: Path, speakers: Sequence[str]) -> None:
    """Write the table, whole or not at all."""
    write_json(folder / VOICES_NAME, {"format": VOICES_FORMAT, "speakers": list(speakers)}, overwrite=True)


def write_voice_vectors(folder: Path, width: int, vectors: Mapping[str, Sequence[float]]) -> None:
    """Write named voices of a base that clones voices; there may be none."""
    voices = {name: [float(number) for number in vector] for name, vector in vectors.items()}
    document = {"format": VOICE_VECTORS_FORMAT, "width": width, "voices": voices}
    write_json(folder / VOICES_NAME, document, overwrite=True)


def find_speaker_index(speakers: Sequence[str], name: str, where: Path | str = "") -> int:
    """The number of a speaker; an error that names the existing ones."""
    if name not in speakers:
        raise unknown_voice_error(name, speakers, where)
    return list(speakers).index(name)


CHECKPOINT_NAME, TOKENIZER_NAME, CODEC_NAME, CARD_NAME = (
    "t3.safetensors",
    "tokenizer.json",
    "codec.safetensors",
    "card.json",
)
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
    rates: ClassVar[dict[str, tuple[float, float]]] = {
        "rows": (1e-4, 1e-2),
        "adapter": (2e-4, 6e-3),
        "body": (1e-5, 1e-3),
    }
    # It is small and learns on a processor: the usual 10,000 steps of 16,384 positions would take days there.
    run_defaults: ClassVar[dict[str, Any]] = {
        "steps": 300,
        "batch_tokens": 1440,
        "warmup_steps": 20,
        "valid_every": 100,
        "save_every": 100,
        "sample_every": 100,
    }
    code_hz: ClassVar[float] = 25.0
    clones_voices: ClassVar[bool] = False
    licence: ClassVar[str] = "The tiny base is part of voxgraft, under the Apache-2.0 licence."

    def can_clone_voices(self, files: BaseFiles) -> bool:
        """A base with voice vectors; the one that comes with voxgraft has a table of speakers."""
        return read_voices(files.folder).clones_voices

    def files(self, folder: Path) -> BaseFiles:
        # The codec is not among them: training on prepared data needs none.
        names = (CHECKPOINT_NAME, TOKENIZER_NAME, VOICES_NAME)
        missing = [name for name in names if not is_file(require_folder(folder) / name)]
        if missing:
            found = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in the folder"
            raise FileError("base-file-missing", found, expected=", ".join(names), where=folder)
        refuse_lookalike_files(self, folder / CHECKPOINT_NAME, folder / TOKENIZER_NAME)
        return BaseFiles(folder, folder / CHECKPOINT_NAME, folder / TOKENIZER_NAME)

    def find_tokenizer(self, checkpoint: Path) -> Path:
        """The one beside it; among several, the one that fits its rows."""
        tokenizer_path = checkpoint.with_name(TOKENIZER_NAME)
        if checkpoint.name == CHECKPOINT_NAME and is_file(tokenizer_path):
            return tokenizer_path
        return find_matching_tokenizer(self, scan_checkpoint(checkpoint))

    def front(self, tokenizer: Path | None = None) -> TextFrontend:  # noqa: ARG002 (no tables beside the tokenizer)
        return TinyTextFrontend()

    def sequence_spec(self, num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
        return tiny_sequence_spec(num_text_ids, size)

    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        from voxgraft.checkpoints.load import read_tensor_shapes
        from voxgraft.models.tiny.model import TinyT3

        size = self.infer_size(files, read_tensor_shapes(files.checkpoint))
        voices = read_voices(files.folder)
        if voices.clones_voices and voices.width != size.speaker_width:
            found = f"{VOICES_NAME} has vectors of {voices.width} numbers"
            expected = f"{size.speaker_width}, as in {files.checkpoint.name}"
            raise FileError("voices-broken", found, expected=expected, where=files.folder)
        return TinyT3(size, clones_voices=voices.clones_voices)

    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        from voxgraft.models.tiny.model import TinyClipEncoder, load_codec

        return TinyClipEncoder(*load_codec(files.folder, model.device))

    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:  # noqa: ARG002 (a speaker's number is all there is)
        from voxgraft.models.tiny.model import build_tiny_condition

        return build_tiny_condition(prompt)

    def upstream_sampling(self) -> SamplingParams:
        from voxgraft.nn.decode import SamplingParams

        return SamplingParams(temperature=0.6, top_p=0.9, max_codes=round(MAX_SECONDS * self.code_hz))

    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        return is_t3(shapes) and has_one_query(shapes)

    def infer_size(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> T3Size:
        return T3Size.of(shapes, files.checkpoint)

    def get_part_name(self, tensor: str) -> str | None:
        return t3_part_name(tensor)

    def describe(self, files: BaseFiles, rows: int) -> BaseDescription:  # noqa: ARG002 (there is one release)
        sides = (
            SideFile((CODEC_NAME,), ("preparing", "speaking"), "codec: from a recording to codes, and back to sound"),
            SideFile((VOICES_NAME,), ("preparing", "speaking"), "the base's own voices"),
            SideFile((CARD_NAME,), (), "sources of the base, and its scores"),
        )
        shipped = self.shipped_folder()
        is_shipped = shipped is not None and files.folder.resolve() == shipped.resolve()
        return BaseDescription("built-in" if is_shipped else "a copy", self.languages, sides)

    def upstream(self) -> UpstreamProgram:
        return TinyProgram()

    def voices(self, files: BaseFiles) -> Mapping[str, Clip]:
        import numpy as np

        from voxgraft.models.tiny.model import build_voice_clip

        voices = read_voices(files.folder)
        if voices.clones_voices:
            named = zip(voices.names, voices.vectors, strict=True)
            return {name: build_voice_clip(np.array(vector, dtype=np.float32)) for name, vector in named}
        return {name: build_voice_clip(number) for number, name in enumerate(voices.names)}

    def vocoder(
        self,
        files: BaseFiles,
        device: str = "cpu",
        dtype: torch.dtype | None = None,  # noqa: ARG002 (too small for it)
    ) -> Vocoder | None:
        from voxgraft.models.tiny.model import TinyVocoder, load_codec

        return TinyVocoder(*load_codec(files.folder, device))


REQUIRED_FILES = {CODEC_NAME: "codec: from codes to sound", VOICES_NAME: "the base's own voices"}


class TinyProgram(UpstreamProgram):
    """voxgraft."""

    title: ClassVar[str] = "voxgraft"

    def folder(self, files: BaseFiles, pieces: int, language: str) -> UpstreamFolder:  # noqa: ARG002 (the rows are in the checkpoint alone)
        side_files, missing = find_side_files(files, REQUIRED_FILES)
        card, _ = find_side_files(files, {CARD_NAME: ""})
        read = {CHECKPOINT_NAME: "language model", TOKENIZER_NAME: "text tokenizer", **REQUIRED_FILES}
        return UpstreamFolder(CHECKPOINT_NAME, TOKENIZER_NAME, {**side_files, **card}, missing=missing, read=read)

    def usage(self, facts: ExportInfo, files: BaseFiles, *, drop_in: bool) -> list[str]:  # noqa: ARG002 (there is one way)
        return [
            "from pathlib import Path",
            "",
            "from voxgraft.models import get_family",
            "from voxgraft.models.speech_model import load_model",
            "",
            'tiny = get_family("tiny")',
            'model = load_model(tiny, tiny.files(Path("merged")))',
        ]
