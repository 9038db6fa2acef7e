"""The interface of a family, and the one function that turns text ids and codes into a sequence.

Preparing, training, speaking and export all come through here. It knows no tensors of a model and needs no torch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import resample
from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import CheckpointError, ConfigError, FileError, Finding, GraftError, find_nearest_name
from voxgraft.core.families import BUILT_IN_BASES
from voxgraft.core.files import is_folder, path_exists
from voxgraft.nn import IGNORE_INDEX
from voxgraft.text import TextFrontend

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from voxgraft.audio.features import Waveform
    from voxgraft.companions.environments import CompanionProcess
    from voxgraft.models.speech_model import SpeechModel
    from voxgraft.nn.decode import SamplingParams


IdArray = NDArray[np.int64]
AnyIdArray = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What a family's sequences are made of, and how long their parts may be.

    A sequence is conditioning, then text (start, ids, stop), then speech (start, codes, one stop or several). Text and
    speech count their positions apart, each from 0.
    """

    num_text_ids: int
    """Ids that a text may hold are 0 to this less one: the base's pieces and the graft's, without spare rows."""
    text_start: int
    text_stop: int
    num_codes: int
    speech_start: int
    speech_stop: int
    max_text: int
    """Most text ids of one utterance, start and stop not counted."""
    max_codes: int
    num_conditioning: int = 34
    num_speech_stops: int = 1
    """Stops behind the codes of a sequence to learn from."""
    hides_text_stop: bool = False
    """Whether sequences to learn from lack the text's stop as an input, which is only predicted there.

    XTTS's own trainer masks that one position as a key and scores nothing at it, so that it acts on nothing; its last
    speech stop likewise. A sequence without them has the same logits, losses and gradients, and needs no mask. While
    speaking, the text's stop is an input like all others."""
    guided: bool = False
    """Whether the model was taught to read without text, which guidance goes by."""
    forbidden_text_ids: frozenset[int] = frozenset()
    """Ids that the original program takes out of a text; one in the text would not be spoken."""
    upstream_start_positions: tuple[int, ...] = (0,)
    """With how many start ids the original program begins to speak, and at which positions."""
    upstream_first_position: int = 1
    """The position that the original program gives to the first code it has spoken."""
    initial_penalized_codes: tuple[int, ...] = ()
    """Codes that the original program's repetition penalty takes for spoken before the first one is."""
    voices_stop: bool = False
    """Whether a vocoder also gets the state that predicted the stop, if an utterance came to its end."""

    @property
    def text_framing(self) -> int:
        """Positions that the text of a sequence to learn from has beside its ids."""
        return 1 if self.hides_text_stop else 2

    @property
    def speech_framing(self) -> int:
        """The same of its speech."""
        return 1 + self.num_speech_stops - self.hides_text_stop


@dataclass(frozen=True, slots=True)
class SequencePart:
    """Text or speech of one sequence; all three arrays have one entry per position."""

    ids: IdArray
    positions: IdArray
    targets: IdArray

    def cut(self, count: int) -> SequencePart:
        """The same part without its last positions."""
        return SequencePart(self.ids[:-count], self.positions[:-count], self.targets[:-count])


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One sequence. Without codes it is a prompt: its speech is what comes before the first code to be spoken."""

    num_conditioning: int
    text: SequencePart
    speech: SequencePart
    closed: NDArray[np.bool_] | None = None
    """By text position: where an open gate is closed, since the text there is of a base language; None: nowhere."""

    @property
    def length(self) -> int:
        return self.num_conditioning + len(self.text.ids) + len(self.speech.ids)


def build_sequence(
    spec: SequenceSpec,
    text_ids: Sequence[int] | AnyIdArray,
    codes: Sequence[int] | AnyIdArray | None = None,
    *,
    closed: Sequence[bool] | NDArray[Any] | None = None,
    stock: bool = True,
    spoken: bool = False,
) -> TokenSequence:
    """A sequence to learn from, or, without codes, one to speak from. `closed` says at which ids the gate is closed.

    Chatterbox's own program begins to speak with two start ids, IndexTTS-2's skips the position after the first, and
    XTTS's reads the text's stop; `stock=False` begins as sequences to learn from do. `spoken` says that the codes are
    the model's own, for its states at them: their text is the one of the prompt.
    """
    text = _validate_ids(text_ids, spec.num_text_ids, spec.max_text, "text id")
    # IndexTTS-2 strips start and stop ids from a text: what is on them would never be spoken.
    forbidden_ids = sorted(set(text.tolist()) & spec.forbidden_text_ids)
    if forbidden_ids:
        cure = "use a tokenizer that gives these ids to no token of the language."
        raise GraftError(
            "ids-barred",
            f"the text contains the ids {forbidden_ids}",
            expected="ids that the original program keeps",
            cure=cure,
        )
    text_part = _build_part(np.concatenate([[spec.text_start], text, [spec.text_stop]]))
    is_prompt = spoken or (codes is None and stock)
    if spec.hides_text_stop and not is_prompt:
        text_part = text_part.cut(1)
    if codes is not None:
        code_ids = _validate_ids(codes, spec.num_codes, spec.max_codes, "speech code")
        stops = [spec.speech_stop] * spec.num_speech_stops
        speech_part = _build_part(np.concatenate([[spec.speech_start], code_ids, stops]))
        if spec.hides_text_stop:
            speech_part = speech_part.cut(1)
    else:
        # A prompt has no codes: only start ids, at the positions where the original counts them, and no targets.
        positions = np.asarray(spec.upstream_start_positions if stock else (0,), dtype=np.int64)
        starts = np.full(len(positions), spec.speech_start, dtype=np.int64)
        speech_part = SequencePart(starts, positions, np.full(len(positions), IGNORE_INDEX, dtype=np.int64))
    mask = None
    if closed is not None and len(closed):
        if len(closed) != len(text):
            found = f"{len(closed)} marks of the gate for {len(text)} text ids"
            raise GraftError("packing", found, expected="one for each")
        # Start and stop are of the whole sentence, for which the gate is open.
        mask = np.concatenate([[False], np.asarray(closed, dtype=bool), [False]])[: len(text_part.ids)]
    return TokenSequence(spec.num_conditioning, text_part, speech_part, mask)


def code_position(spec: SequenceSpec, index: int, *, stock: bool = True) -> int:
    """The position of the code that was spoken as number `index`, counted from 0."""
    return index + (spec.upstream_first_position if stock else 1)


def _build_part(ids: IdArray) -> SequencePart:
    """Each position predicts the next id; the last one predicts nothing."""
    ids = ids.astype(np.int64)
    return SequencePart(ids, np.arange(len(ids)), np.concatenate([ids[1:], [IGNORE_INDEX]]))


def _validate_ids(ids: Sequence[int] | AnyIdArray, num_ids: int, limit: int, what: str) -> IdArray:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        found = f"{what}s as {array.dtype} of shape {list(array.shape)}"
        raise GraftError("ids-form", found, expected="one-dimensional whole numbers")
    if len(array) == 0 or len(array) > limit:
        found = f"the utterance has {len(array):,} {what}s"
        raise GraftError("ids-length", found, expected=f"1 to {limit:,}")
    array = array.astype(np.int64)
    # On a GPU an index outside of a table is a device assert, after which the process is of no use.
    outside = np.flatnonzero((array < 0) | (array >= num_ids))
    if len(outside):
        at = int(outside[0])
        found = f"{what} {int(array[at])} at position {at}; {len(outside):,} of {len(array):,} are out of range"
        raise GraftError("ids-outside", found, expected=f"0 to {num_ids - 1:,}")
    return array


SideFilePurpose = Literal["preparing", "speaking"]


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file beside the checkpoint: its names, the published one first, and what it is for (nothing: optional)."""

    names: tuple[str, ...]
    purposes: tuple[SideFilePurpose, ...]
    what: str


@dataclass(frozen=True, slots=True)
class BaseDescription:
    """What a family knows of one base beyond its tensors."""

    release: str
    languages: tuple[str, ...]
    side_files: tuple[SideFile, ...]
    others: tuple[str, ...] = ()
    """Checkpoints of other releases in the same folder."""


@dataclass(frozen=True, slots=True)
class PublishedTensors:
    """One file of a base, and what its makers published in it."""

    names: tuple[str, ...]
    """Names in the folder, the usual one first."""
    what: str
    read_size: Callable[[Path], Any]
    """Size of the file's model by names and shapes alone. Raises, by name, unless it has every tensor and no other."""
    published: tuple[Any, ...]
    """The sizes that were published."""
    needed: bool = True
    key: str = ""
    """In a torch file, the key of the dictionaries that hold the tensors."""


class ModelSize(Protocol):
    """What every model's size has, whatever else it has."""

    @property
    def width(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def heads(self) -> int: ...


GraftPointRole = Literal["embedding", "head", "head-bias"]
EmotionSource = Literal["target", "prompt"]


@dataclass(frozen=True, slots=True)
class GraftPoint:
    """One tensor with a row per text token, by its name in the published state dict."""

    tensor: str
    role: GraftPointRole


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """The files of one base folder that voxgraft reads."""

    folder: Path
    checkpoint: Path
    tokenizer: Path
    config: Path | None = None


@dataclass(frozen=True, slots=True)
class SpeakingStyle:
    """How something must be spoken, beside whose voice it is. None is as the base does it by default."""

    exaggeration: float | None = None
    emotion: Clip | None = None
    """A clip whose emotion is meant."""
    emotion_weight: float | None = None
    """From the emotion of the voice's own clip (0) to the other one (1)."""

    def asked(self) -> list[str]:
        return [own.name for own in fields(self) if getattr(self, own.name) is not None]


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
    """Ids that the original program removes from text, so that no new piece may land there."""
    tokenizer_names: ClassVar[tuple[str, ...]]
    """File names of the tokenizer in a base folder, in the order in which they are looked for."""
    checkpoint_names: ClassVar[tuple[str, ...]]
    config_name: ClassVar[str | None] = None
    """File name of the config in a base folder, for families that need one."""
    has_id_gaps: ClassVar[bool] = False
    """Whether published tokenizers have ids without a piece, which keep their rows."""
    rates: ClassVar[dict[str, tuple[float, float]]]
    """By part (rows, adapter, body): the lowest and the highest learning rate that make sense."""
    code_hz: ClassVar[float]
    """Speech codes per second."""
    run_defaults: ClassVar[dict[str, Any]] = {}
    """Training settings that a new run of this family begins with, where they are not the usual ones."""
    clones_voices: ClassVar[bool] = True
    """Whether bases of this family clone voices as a rule; `can_clone_voices` says it of one base."""
    licence: ClassVar[str]
    """What the base's licence passes on to a graft, in one sentence."""

    @abstractmethod
    def files(self, folder: Path) -> BaseFiles:
        """The files of a base folder; an error that lists what was looked for if one is missing."""

    @abstractmethod
    def front(self, tokenizer: Path | None = None) -> TextFrontend:
        """The text front of a tokenizer file; tables may lie beside it (Chatterbox: the Cangjie table for Chinese)."""

    @abstractmethod
    def sequence_spec(self, num_text_ids: int, size: Any = None) -> SequenceSpec:
        """What a model's sequences are made of, with that many text ids; `size` is `size_of` its base, or published."""

    @abstractmethod
    def build_empty_model(self, files: BaseFiles) -> SpeechModel:
        """A model of the size that the files show, not yet filled; an error where they make no whole one."""

    @abstractmethod
    def encoder(self, files: BaseFiles, model: SpeechModel) -> ClipEncoder:
        """The front end of a base, on the model's device; an error that names the files it needs if one is missing."""

    @abstractmethod
    def condition(self, prompt: Clip, target: Clip | None = None, *, emotion_from: EmotionSource = "target") -> Any:
        """What an utterance in the prompt's voice is conditioned on. `target` is the clip that is trained on, if any;
        `emotion_from` says whose emotion goes with it, in families that know emotions apart from voices.
        """

    def apply_style(self, condition: Any, manner: SpeakingStyle) -> Any:
        """The condition in another style; an error that names what this family is not known."""
        if requested := manner.asked():
            raise ConfigError("manner-unknown", f"{self.name} does not support {' and '.join(requested)}")
        return condition

    def mix_emotions(self, files: BaseFiles, shares: Sequence[float], weight: float, voice: Clip) -> Clip:  # noqa: ARG002
        """A voice's emotion with shares of the family's named ones, `weight` times as strong; most have none."""
        raise ConfigError("manner-unknown", f"{self.name} has no named emotions")

    @abstractmethod
    def upstream_sampling(self) -> SamplingParams:
        """How the original program draws speech by default."""

    def read_config_pieces(self, config: Path) -> int | None:  # noqa: ARG002 (of families with a config file)
        """The number of text pieces that the base's own config file states, if it states one."""
        return None

    @abstractmethod
    def matches_tensors(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether a file's tensors are this family's, whole or not."""

    def check_lookalike(self, path: Path, shapes: Mapping[str, Shape]) -> Finding | None:  # noqa: ARG002
        """What to say of a file that is easily taken for this family's and is another model; None for all others."""
        return None

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
        """The tokenizer that belongs to a checkpoint, in the same folder; an error if it does not exist.

        It is the base's; for a checkpoint beside several others, the one that fits its rows.
        """
        try:
            return self.files(checkpoint.parent).tokenizer
        except FileError:
            from voxgraft.models import find_matching_tokenizer, scan_checkpoint

            seen = scan_checkpoint(checkpoint)
            if not self.matches_tensors(seen.shapes):
                raise
            return find_matching_tokenizer(self, seen)

    def tag(self, language: str) -> str | None:
        """The language's tag as the tokenizer spells it, or None where the family has no tags."""
        return f"[{language.lower()}]" if self.has_tags else None

    def shipped_folder(self) -> Path | None:
        """The base folder that comes with voxgraft, for families that have one; an error where it was left out."""
        folder = BUILT_IN_BASES.get(self.name)
        if folder is not None and not is_folder(folder):
            raise FileError("base-not-shipped", f"assets/{folder.name} is not in the package", where=folder)
        return folder

    def voices(self, files: BaseFiles) -> Mapping[str, Clip]:  # noqa: ARG002 (of families with voices by name)
        """Voices that lie in the base folder, by name; none where every voice is a recording."""
        return {}

    def can_clone_voices(self, files: BaseFiles) -> bool:  # noqa: ARG002 (of families whose bases differ)
        """Whether any recording lends its voice; else only voices that the base has by name."""
        return self.clones_voices

    def voice(self, files: BaseFiles, name: str) -> Clip:
        """One of `voices`; an error that names those that exist."""
        voices = self.voices(files)
        if name not in voices:
            raise unknown_voice_error(name, voices, files.folder)
        return voices[name]

    def speaker_encoder(self, path: Path) -> SpeakerEncoder | None:  # noqa: ARG002 (of families that have one alone)
        """The voice encoder in a file or a base folder; None for families that cannot load theirs without the base."""
        return None

    @abstractmethod
    def upstream(self) -> UpstreamProgram:
        """The program that the base was published with, and what it wants to find in a folder."""

    def published_files(self, files: BaseFiles) -> tuple[PublishedTensors, ...]:  # noqa: ARG002 (of published families)
        """Every file with tensors that the folder of a published base has; none for a base that is made here."""
        return ()

    def vocoder(
        self,
        files: BaseFiles,  # noqa: ARG002 (of families that sound)
        device: str = "cpu",  # noqa: ARG002
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> Vocoder | None:
        """What makes sound of codes; None for families whose vocoder voxgraft does not have.

        A half-precision `dtype` is for the parts that take most of the time; None is float32 throughout.
        """
        return None


def unknown_voice_error(name: str, known: Collection[str], where: Path | str = "") -> ConfigError:
    """The error for a voice that a base does not have."""
    hint = find_nearest_name(name, list(known))
    expected = (
        f"one of {', '.join(known)}"
        if known
        else "a recording, because this family clones voices and has no named voices"
    )
    cure = f"did you mean `{hint}`?" if hint else ""
    return ConfigError("voice-unknown", f"there is no voice `{name}`", expected=expected, where=where, cure=cure)


REFERENCE_AUDIO = "reference"
"""Among a voice's arrays: samples of the recording itself, at the vocoder's sample rate."""


# Shared, since a set describes hundreds of thousands of clips without their arrays.
_NO_IDS: AnyIdArray = np.zeros(0, dtype=np.int64)
_NO_VOICE: Mapping[str, NDArray[Any]] = {}


@dataclass(frozen=True, slots=True)
class Clip:
    """One recording as training keeps it. An encoder gives codes and voice, a set also has text and origin.

    `ClipDataset.infos` are clips without their arrays: those stay on disk until they are used.
    """

    codes: NDArray[Any] = field(default_factory=lambda: _NO_IDS)
    """As many as the recording is long, whatever was beside it in the batch."""
    voice: Mapping[str, NDArray[Any]] = field(default_factory=lambda: _NO_VOICE)
    """The family's own arrays, by name: whose voice it is, and how it speaks.

    Ids in a row may have any length; all other arrays have one shape in a whole set."""
    text_ids: Sequence[int] | NDArray[Any] = ()
    """The language's own, without start and stop."""
    id: str = ""
    speaker: str = ""
    recording: str = ""
    """The recording that it was cut from; validation holds out whole recordings."""
    seconds: float = 0.0
    text: str = ""
    closed: Sequence[bool] | NDArray[Any] = ()
    """By text id: whether it is of a base language, so that the gate is closed there; empty if none is."""


class ClipEncoder(ABC):
    """The front end of one base."""

    sample_rate: int = 16_000

    @abstractmethod
    def encode(self, waves: Sequence[Waveform]) -> list[Clip]:
        """Every recording as if it were alone; those of similar length go through together."""

    def encode_voice(self, samples: NDArray[np.float32], rate: int) -> Clip:
        """A recording of any sample rate as a voice to speak with, and its sound where a vocoder wants that."""
        return self.encode([resample(samples, rate, self.sample_rate)])[0]


class SpeakerEncoder(Protocol):
    """A network that encodes whose voice a recording has, apart from any base."""

    def embed(self, waves: Sequence[Waveform]) -> Tensor:
        """One unit vector per recording at 16 kHz. [clips, width]"""


Latents = NDArray[np.floating[Any]]
"""The language model's final states at the codes of one utterance. [codes, width]"""


class SoundStream(Protocol):
    """One utterance whose codes are still being generated."""

    def feed(self, codes: Sequence[int]) -> NDArray[np.float32]:
        """More codes. Returns the samples that no later code can change, often none at first."""

    def finish(self, codes: Sequence[int] = ()) -> NDArray[np.float32]:
        """The last codes, and all samples that are left."""


class Vocoder(ABC):
    """The vocoder of one base."""

    sample_rate: int
    needs_latents: ClassVar[bool] = False
    """Whether codes alone are not enough for it."""

    @abstractmethod
    def sound(
        self, codes: Sequence[Sequence[int]], voices: Sequence[Clip], latents: Sequence[Latents] | None = None
    ) -> list[NDArray[np.float32]]:
        """A waveform for each utterance, in the voice that it was spoken with. No codes are no samples."""

    def stream(self, voice: Clip, max_codes: int) -> SoundStream | None:  # noqa: ARG002 (of those that can)
        """Sound of an utterance of at most `max_codes` codes before its end is known; None where all are needed."""
        return None

    def why_not(self, voice: Clip) -> str:  # noqa: ARG002 (of those that need more than codes)
        """Why it cannot sound like a voice; nothing where it can."""
        return ""

    def add_recording(self, voice: Clip, samples: NDArray[np.float32], rate: int) -> Clip:  # noqa: ARG002
        """The voice of a prepared clip, with what the vocoder needs of its recording: preparing keeps no samples."""
        return voice

    def validate(self) -> None:  # noqa: B027 (most have nothing to check)
        """Raise what would keep it from sounding at all, before anything is spoken."""

    def findings(self) -> list[Finding]:
        """Findings about its sound, whatever was spoken."""
        return []


def require_a_voice_each(codes: Sequence[Sequence[int]], voices: Sequence[Clip]) -> None:
    """Raise unless there are as many voices as utterances."""
    if len(codes) != len(voices):
        found = f"there are {len(codes)} utterances and {len(voices)} voices"
        raise GraftError("packing", found, expected="the same number of each")


GROWN, MERGED = "extended", "merged"
"""The two folders of an export: the base with more rows, and the one checkpoint that speaks the new language."""

TEXT_PACKAGE_LOADER = '''def _text_package():
    """The package next to this file, under its own name: exports of other languages may be loaded too."""
    place = FOLDER / "voxgraft_text" / "__init__.py"
    name = "voxgraft_text_" + hashlib.sha256(str(FOLDER).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, place, submodule_search_locations=[str(place.parent)])
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package


prepared = _text_package().prepared
'''
"""In every load.py: how it finds the text front end of its export."""


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """What a loader has to know of an export."""

    language: str
    language_name: str
    tag: str | None
    pieces: int
    """Of the extended tokenizer."""
    base_pieces: int


@dataclass(frozen=True, slots=True)
class UpstreamFolder:
    """The files of one folder, by the names that the original program looks for."""

    checkpoint: str
    tokenizer: str
    beside: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders of the base that are taken over as they are."""
    made: Mapping[str, str] = field(default_factory=dict)
    """Texts that are rewritten, such as a config with another number of pieces."""
    missing: tuple[str, ...] = ()
    """What the original program reads and the base folder does not have."""
    read: Mapping[str, str] = field(default_factory=dict)
    """What the original program reads, and what for."""


@dataclass(frozen=True, slots=True)
class DecodedUtterance:
    """One utterance with all that a companion needs to decode it again and to turn it into sound."""

    files: BaseFiles
    model: SpeechModel
    vocoder: Vocoder
    voice: Clip
    condition: Any
    text_ids: Sequence[int]
    codes: Sequence[int]


class UpstreamProgram(ABC):
    """The program that a base was published with."""

    title: ClassVar[str]
    can_drop_in: ClassVar[bool] = False
    """Whether a folder of the base's own size, for the new language alone, is of use: where sizes are fixed in code."""
    unmixed_languages: ClassVar[frozenset[str]] = frozenset()
    """Languages whose letters the program rewrites, so that a sentence of another one cannot have spans of them."""
    companion_takes_codes: ClassVar[bool] = False

    @abstractmethod
    def folder(self, files: BaseFiles, pieces: int, language: str) -> UpstreamFolder:
        """The folder for a checkpoint with rows for that many pieces, those of the new language among them."""

    def loader(self, facts: ExportInfo, files: BaseFiles) -> str | None:  # noqa: ARG002 (of programs that need one)
        """A short program that loads an export of another size; None where the program needs none."""
        return None

    def text_step(self, files: BaseFiles) -> tuple[str, Mapping[str, str]]:  # noqa: ARG002 (most have one program)
        """Lines of Python in `prepared` of an export: text by its rules to what the program takes. And sources of the
        family's own, by name, that they import."""
        return "    return read_spans(text, LANGUAGES, RULES)", {}

    def compare(self, family: str, utterance: DecodedUtterance) -> dict[str, tuple[str, bool]]:
        """The program beside voxgraft, if its companion is installed: codes and mel of one utterance on the same noise.

        By what is compared: the result in words, and whether both agree.
        """
        if not self.companion_takes_codes:
            return {"original program": (f"not compared: the companion of {self.title} takes no codes", True)}
        from voxgraft.companions.environments import find_environment

        if (environment := find_environment(family)) is None:
            why = f"not compared: there is no companion (`voxgraft companion {family}`)"
            return {"original program": (why, True)}
        companion = environment.companion()
        try:
            versions = companion.hello().get("versions", {})
            name = ", ".join(f"{package} {version}" for package, version in list(versions.items())[:2])
            return {"original program": (name, True), **self.compare_with(companion, utterance)}
        finally:
            companion.close()

    def compare_with(self, companion: CompanionProcess, utterance: DecodedUtterance) -> dict[str, tuple[str, bool]]:
        """What a companion that takes codes makes of an utterance, beside voxgraft's own model and vocoder."""
        raise NotImplementedError

    @abstractmethod
    def usage(self, facts: ExportInfo, files: BaseFiles, *, drop_in: bool) -> list[str]:
        """Lines of Python for the README: how the new language is spoken."""


# Positions at which both programs find the same code likeliest. With half precision, near ties may fall either way.
MIN_EQUAL_SHARE = 0.95


def compare_likeliest_codes(own: NDArray[Any], upstream: NDArray[Any]) -> tuple[str, bool]:
    """Two programs' scores of codes at the same positions [positions, codes]: in words, and whether they agree."""
    equal, total = int((own.argmax(-1) == upstream.argmax(-1)).sum()), len(own)
    difference = np.abs(own - upstream).max()
    message = f"{equal} of {total} likeliest codes are equal; scores differ by up to {difference:.1g}"
    return message, equal >= MIN_EQUAL_SHARE * total


def find_side_files(files: BaseFiles, names: Mapping[str, str]) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Of the named files and folders those that are in the base, and the names of those that are not."""
    there = {name: files.folder / name for name in names if path_exists(files.folder / name)}
    return there, tuple(name for name in names if name not in there)


def require_finite_array(values: NDArray[Any], shape: tuple[int, ...], what: str) -> None:
    """Raise unless an array of a condition holds finite floating-point numbers in that shape."""
    array = np.asarray(values)
    if array.shape != shape or not np.issubdtype(array.dtype, np.floating):
        found = f"{what} as {array.dtype} of shape {list(array.shape)}"
        raise GraftError("condition-form", found, expected=f"floating-point numbers of shape {list(shape)}")
    wrong = int(np.count_nonzero(~np.isfinite(array)))
    if wrong:
        found = f"{what} with {wrong:,} of {array.size:,} numbers not finite"
        raise GraftError("condition-form", found, expected="finite numbers")


def read_dimension(shapes: Mapping[str, Shape], name: str, axis: int, published: int) -> int:
    """One side of a tensor; the published one where there is no such tensor, which is then found missing."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else published


def read_common_side(shapes: Mapping[str, Shape], endings: tuple[str, ...], published: int) -> int:
    """The first side that most tensors with such names have: one damaged tensor does not make all others look wrong."""
    sides = Counter(shape[0] for name, shape in shapes.items() if name.endswith(endings) and shape)
    return sides.most_common(1)[0][0] if sides else published


def count_layers(shapes: Mapping[str, Shape], layer: re.Pattern[str]) -> int:
    """Layers up to the last one that exists, so that a missing one before it is noticed. `layer` finds the number."""
    numbers = {int(match[1]) for match in map(layer.match, shapes) if match}
    return max((number + 1 for number in numbers if number < len(shapes)), default=0)


MAX_LISTED_DIFFERENCES = 6


def require_exact_tensors(
    found: Mapping[str, Shape], expected: Mapping[str, Shape], model: str, where: str | Path = ""
) -> None:
    """Raise unless a file has exactly the tensors of the model: none missing, none of another shape, none besides."""
    differences = []
    for name, shape in expected.items():
        if name not in found:
            differences.append(f"{name} {list(shape)} is missing")
        elif found[name] != shape:
            differences.append(f"{name} is {list(found[name])}, not {list(shape)}")
    besides = sorted(found.keys() - expected.keys())
    differences += [f"{name[:80]} {list(found[name])} is not part of it" for name in besides]
    if differences:
        named = "; ".join(differences[:MAX_LISTED_DIFFERENCES])
        if len(differences) > MAX_LISTED_DIFFERENCES:
            named += f"; and {len(differences) - MAX_LISTED_DIFFERENCES:,} more"
        text = f"{len(found):,} tensors, not a complete {model}: {named}"
        raise CheckpointError("tensors-mismatch", text, expected=f"{len(expected):,} tensors", where=where)


def linear_shapes(name: str, outputs: int, inputs: int, *kernel: int) -> dict[str, Shape]:
    """Weight and bias of a linear layer or, with a kernel, of a convolution."""
    return {f"{name}.weight": (outputs, inputs, *kernel), f"{name}.bias": (outputs,)}


def norm_shapes(name: str, width: int) -> dict[str, Shape]:
    """Weight and bias of a layer norm."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def prefix_shapes(prefix: str, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The tensors of a part under its name in the whole."""
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}
