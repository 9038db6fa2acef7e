"""What a family is: where its text rows are, how its text becomes what its tokenizer reads, which files it has.

A family knows nothing of optimizers, runs or the command line. Only `families/__init__.py` names a concrete one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from voxgraft.errors import ConfigError, Finding, find_nearest_name
from voxgraft.families.description import BaseDescription, ModelSize, Shape
from voxgraft.families.layout import SequenceSpec

if TYPE_CHECKING:  # what needs torch is imported by whoever calls
    from voxgraft.families.encoding import Clip, ClipEncoder
    from voxgraft.families.model import SpeechModel
    from voxgraft.families.sounding import Vocoder
    from voxgraft.families.stock import StockProgram
    from voxgraft.nn.sampling import SamplingParams

GraftPointRole = Literal["embedding", "head", "head-bias"]
EmotionSource = Literal["target", "prompt"]


@dataclass(frozen=True, slots=True)
class GraftPoint:
    """One tensor with a row per text token, by its name in the published state dict."""

    tensor: str
    role: GraftPointRole


@dataclass(frozen=True, slots=True)
class LearningRateRange:
    """The learning rates that make sense for a part, lowest and highest."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """The files of one base folder that voxgraft reads."""

    folder: Path
    checkpoint: Path
    tokenizer: Path
    config: Path | None = None


@dataclass(frozen=True, slots=True)
class SpeakingStyle:
    """How something shall be said, beside whose voice it is. None is as the base does it unless told otherwise."""

    exaggeration: float | None = None
    emotion: Clip | None = None
    """A clip whose emotion is meant."""
    emotion_weight: float | None = None
    """From the emotion of the voice's own clip (0) to the other one (1)."""

    def asked(self) -> list[str]:
        return [own.name for own in fields(self) if getattr(self, own.name) is not None]


class TextFrontend(ABC):
    """Text to the string that the tokenizer file is given, exactly as the stock program does it."""

    @abstractmethod
    def clean(self, text: str) -> str:
        """The stock program's punctuation clean-up, which comes before everything else."""

    @abstractmethod
    def prepare(self, text: str, language: str | None) -> str:
        """Cleaned text to tokenizer input. `run_language` is the code whose tag is put in front, where there are tags."""


class Family(ABC):
    """One kind of base. All attributes are facts about the published files."""

    name: ClassVar[str]
    languages: ClassVar[tuple[str, ...]]
    """Codes of the languages that the base speaks already."""
    graft_points: ClassVar[tuple[GraftPoint, ...]]
    spare_rows: ClassVar[int]
    """Rows after the last piece that no input ever indexes; they stay last when the table grows."""
    has_tags: ClassVar[bool]
    start_id: ClassVar[int]
    stop_id: ClassVar[int]
    special_ids: ClassVar[dict[str, int]]
    """Pieces that must stay on their ids, by name."""
    deleted_ids: ClassVar[frozenset[int]]
    """Ids that the stock program removes from text, so that no new piece may land there."""
    tokenizer_names: ClassVar[tuple[str, ...]]
    """File names of the tokenizer in a base folder, in the order in which they are looked for."""
    checkpoint_names: ClassVar[tuple[str, ...]]
    rates: ClassVar[dict[str, LearningRateRange]]
    """Sane learning rates by part: rows, adapter, body."""
    code_hz: ClassVar[float]
    """Speech codes per second."""
    loss_weights: ClassVar[tuple[float, float]]
    """Of text and speech, where the user does not say."""
    run_defaults: ClassVar[dict[str, Any]] = {}
    """Training settings that a new run of this family begins with, where they are not the usual ones."""
    clones_voices: ClassVar[bool] = True
    """Whether any recording lends its voice; else only voices that the base has by name."""
    licence: ClassVar[str]
    """What the base's licence passes on to a graft, in one sentence."""

    @abstractmethod
    def files(self, folder: Path) -> BaseFiles:
        """The files of a base folder; an error that lists what was looked for if one is missing."""

    @abstractmethod
    def front(self, tokenizer: Path | None = None) -> TextFrontend:
        """The text front of a tokenizer file; tables may lie beside it (Chatterbox: the Cangjie table for Chinese)."""

    @abstractmethod
    def frame(self, num_text_ids: int, size: Any = None) -> SequenceSpec:
        """What a model's sequences are made of, with that many text ids; `size` is `size_of` its base, or published."""

    @abstractmethod
    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        """A model of the size that the files show, not yet filled; an error where they make no whole one."""

    @abstractmethod
    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        """The front end of a base, on the model's device; an error that names the files it needs if one is missing."""

    @abstractmethod
    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:
        """What an utterance in the prompt's voice is conditioned on. `target` is the clip that is learnt from, if any;
        `emotion_from` says whose emotion goes with it, in families that know emotions apart from voices.
        """

    def apply_style(self, condition: Any, manner: SpeakingStyle) -> Any:
        """The condition in another manner; an error that names what this family cannot be told."""
        if asked := manner.asked():
            raise ConfigError("manner-unknown", f"{self.name} has no {' and no '.join(asked)}")
        return condition

    def mix_emotions(self, files: BaseFiles, shares: Sequence[float]) -> tuple[Clip, float]:  # noqa: ARG002
        """What shares of a family's named emotions make, and how much of the whole that is; most have none."""
        raise ConfigError("manner-unknown", f"{self.name} has no named emotions")

    @abstractmethod
    def stock_sampling(self) -> SamplingParams:
        """How the stock program draws speech unless told otherwise."""

    @abstractmethod
    def read_config_pieces(self, config: Path) -> int | None:
        """The number of text pieces that the base's own config file states, if it states one."""

    @abstractmethod
    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether a file's tensors are this family's, whole or not."""

    @abstractmethod
    def check_lookalike(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
        """What to say of a file that is easily taken for this family's and is another model; None for all others."""

    @abstractmethod
    def infer_size(self, files: BaseFiles, shapes: Mapping[str, Shape]) -> ModelSize:
        """The model's size by looking; an error with the differences if the tensors make no whole model."""

    @abstractmethod
    def get_part_name(self, tensor: str) -> str | None:
        """The part of the model that a tensor belongs to, in a word; None for a second name of another tensor."""

    def is_computed(self, tensor: str) -> bool:  # noqa: ARG002 (of families that store such tables)
        """Whether a tensor is a table that the program computes and stores with its weights; it is never trained."""
        return False

    @abstractmethod
    def describe(self, files: BaseFiles, rows: int) -> BaseDescription:
        """Release, languages and other files of a base with that many text rows."""

    def find_tokenizer(self, checkpoint: Path) -> Path:
        """The tokenizer that belongs to a checkpoint, in the same folder; an error if it is not there."""
        return self.files(checkpoint.parent).tokenizer

    def tag(self, language: str) -> str | None:
        """The language's tag as the tokenizer spells it, or None where the family has no tags."""
        return f"[{language.lower()}]" if self.has_tags else None

    def shipped_folder(self) -> Path | None:
        """The base folder that comes with voxgraft, for families that have one; an error where it was left out."""
        return None

    def voices(self, files: BaseFiles) -> Mapping[str, Clip]:  # noqa: ARG002 (of families with voices by name)
        """Voices that lie in the base folder, by name; none where every voice is a recording."""
        return {}

    def voice(self, files: BaseFiles, name: str) -> Clip:
        """One of `voices`; an error that names those that are there."""
        voices = self.voices(files)
        if name not in voices:
            raise unknown_voice_error(name, voices, files.folder)
        return voices[name]

    @abstractmethod
    def stock(self) -> StockProgram:
        """The program that the base was published with, and what it wants to find in a folder."""

    def vocoder(self, files: BaseFiles, device: str = "cpu") -> Vocoder | None:  # noqa: ARG002 (of families that sound)
        """What makes sound of codes; None for families whose waveform end voxgraft does not have."""
        return None


def unknown_voice_error(name: str, known: Collection[str], where: Path | str = "") -> ConfigError:
    """The error for a voice that a base does not have."""
    hint = find_nearest_name(name, list(known))
    expected = f"one of {', '.join(known)}" if known else "no name: this family speaks like a recording"
    cure = f"did you mean `{hint}`?" if hint else ""
    return ConfigError("voice-unknown", f"there is no voice `{name}`", expected=expected, where=where, cure=cure)
