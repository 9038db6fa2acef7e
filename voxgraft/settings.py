"""What each verb can be told: one model per verb. The docstring under a field is its help, here and in the manual.

Settings that several verbs share, and everything that reads and checks settings, are in `config.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from voxgraft.config import Settings
from voxgraft.run_settings import (
    LANGUAGE_PATTERN,
    MAX_SEED,
    FamilyName,
    PrecisionName,
    RowSettings,
    RunSettings,
    VocabularySettings,
)

BaseSize = Literal["tiny", "small", "full"]
EvaluatedVariant = Literal["graft", "merged", "as-in-the-seeds"]
DemoMistake = Literal["unfrozen-high-rate", "seed-freeze", "no-single-characters", "wrong-tokenizer", "padded-codes"]
ComparisonMetric = Literal["phone_error", "cer", "wer", "speech_loss"]


class NewSettings(Settings):
    """What a new run starts from."""

    run: Path
    """Folder of the new run; it must not be there yet."""
    base: Path | None = None
    """Folder of the base, as its makers publish it, or the word tiny for the built-in one. It is only read."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language, such as am, ti, km."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    texts: tuple[Path, ...] = ()
    """Text files of the new language, one sentence per line, or the manifest.jsonl of a dataset."""
    sources: tuple[Path, ...] = ()
    """Recordings with subtitles or transcripts, which `run_pipeline` imports. Where no texts are given, these have them."""
    speaker: str | None = None
    """Name of the one speaker of all sources; empty means: what they say, else one for each list, folder or film."""
    old: Path | None = None
    """A config or command line of another trainer to take settings from; what becomes of each is printed."""


class GraftSettings(RunSettings):
    """A run, and everything that its run.yaml can say."""

    run: Path
    """Folder of the run, with its run.yaml. Flags win over that file."""


class CheckSettings(RunSettings):
    """A run, or loose files that belong together; `tokenizer.file` is the grown tokenizer that is checked."""

    run: Path | None = None
    """Folder of the run, with its run.yaml. Without one, the files that are named are checked against each other."""
    checkpoint: Path | None = None
    """A grown or trained checkpoint to check against the base and the tokenizer."""
    base_config: Path | None = None
    """An old config in YAML, or a text with an old command line, whose sizes, rates and freeze boundary are checked."""
    prepared: Path | None = None
    """A folder of prepared data of another trainer (text_ids/*.npy) whose ids are checked."""


class TrainCommandSettings(RunSettings):
    """A run, everything that its run.yaml can say, and where to begin."""

    run: Path
    """Folder of the run, with its run.yaml. Flags win over that file."""
    fresh: bool = False
    """Begin again at step 0. Steps that are saved are set aside, not removed."""
    from_step: int | None = Field(None, ge=0)
    """Go on from this saved step instead of the newest. Later ones are set aside, not removed."""
    as_in_the_seeds: bool = False
    """For comparison only: train everything at body_rate with masked base rows. This loses the old languages."""


class ExtendSettings(Settings):
    """One checkpoint file, and the tokenizer that it grows to."""

    checkpoint: Path
    """The checkpoint file to grow (.safetensors, .pt, .pth). It is only read."""
    tokenizer: Path
    """The grown tokenizer."""
    base_tokenizer: Path | None = None
    """Tokenizer of the base: new rows are spelled with it, and its ids must be the grown one's first."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the tensors in the checkpoint."""
    output: Path
    """The new checkpoint file."""
    overwrite: bool = False
    """Replace the output if it is there."""
    rows: RowSettings = RowSettings()
    """New rows."""
    verify: bool = True
    """Read the output again and compare everything that is not new with the input, bit for bit."""
    hash: bool = False
    """Also print the SHA-256 of input and output."""


class TokenizerTrainSettings(Settings):
    """What the new pieces are learnt from."""

    base: Path
    """The base's tokenizer file, or the folder of the base."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files."""
    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Code of the new language, such as am, ti, km."""
    texts: tuple[Path, ...] = Field(min_length=1)
    """Text files of the new language, one sentence per line."""
    output: Path = Path("additions.json")
    """File for the pieces and characters to add; `tokenizer merge` takes it."""
    overwrite: bool = False
    """Replace the output if it is there."""
    tokenizer: VocabularySettings = VocabularySettings()
    """Tokenizer of the new language."""


class TokenizerMergeSettings(Settings):
    """A base's tokenizer, and what is added to it."""

    base: Path
    """The base's tokenizer file, or the folder of the base."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files."""
    additions: Path
    """What `tokenizer train` wrote."""
    output: Path
    """The grown tokenizer file."""
    overwrite: bool = False
    """Replace the output if it is there."""


class TokenizerProveSettings(Settings):
    """Two tokenizers, and the texts on which they are compared."""

    base: Path
    """The base's tokenizer file, or the folder of the base."""
    grown: Path
    """The grown tokenizer file, ours or anyone's."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language, such as am, ti, km."""
    texts: tuple[Path, ...] = ()
    """Text files of the new language, one sentence per line: unknowns and tokens per character are counted on them."""
    proof_texts: tuple[Path, ...] = ()
    """Your own texts of base languages, proven beside the built-in corpus (NAME.txt or en.txt, fr.txt ...)."""


class TokenizerShowSettings(Settings):
    """What to spell, and with which tokenizers."""

    text: tuple[str, ...] = Field(min_length=1)
    """Sentences to spell."""
    base: Path
    """The base's tokenizer file, or the folder of the base."""
    grown: Path | None = None
    """The grown tokenizer file, shown beside the base's."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Language of the sentences: its tag is put in front where the family has tags."""


class DataTextSettings(Settings):
    """Texts to normalise."""

    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language of the texts: it chooses the rules."""
    text: tuple[str, ...] = ()
    """Sentences to normalise."""
    texts: tuple[Path, ...] = ()
    """Files with a sentence on each line."""
    explain: bool = False
    """Show every change with its rule, and what was left alone."""
    fold_homophones: bool = False
    """Amharic: write one letter for those that sound alike."""


class ShowSettings(Settings):
    """The base to look at."""

    base: Path
    """Folder of a base, folder of a run (its base is shown), or one checkpoint file. It is only read."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files."""
    fingerprint: bool = True
    """Read all values for the fingerprint, which takes a few seconds for gigabytes."""


class CleanSettings(Settings):
    """The run in which room is made."""

    run: Path
    """Folder of the run."""
    keep: int = Field(1, ge=1)
    """How many of the last whole steps stay. The first and the best always stay."""
    yes: bool = False
    """Remove without asking. Where nobody can be asked (no terminal, --json, --quiet) nothing is removed without it."""


class PlotSettings(Settings):
    """The runs whose curves are drawn."""

    runs: tuple[Path, ...] = Field(min_length=1)
    """Folders of runs, also of those that train. One is drawn whole; of several the held-out losses are compared."""
    output: Path | None = None
    """Name of the two pictures, without ending. Empty: curves in the run's folder, or of several runs in this one."""
    overwrite: bool = False
    """Replace pictures that are there. Those of a run, in its own folder, are always drawn anew."""


class EvaluateSettings(Settings):
    """What is judged, who listens, and which sentences are spoken."""

    subject: Path
    """Folder of a run, of a graft, or of another checkpoint of the base's family (merged, exported, another base)."""
    base: Path | None = None
    """Folder of the base that it is compared with. A run knows its own."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    which: EvaluatedVariant | None = None
    """Of a run: graft, merged or as-in-the-seeds; empty means what its last training has left."""
    step: int | None = Field(None, ge=0)
    """Of a run: a saved step instead of what training has left."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language, where the subject does not say it itself."""
    languages: tuple[str, ...] = ()
    """Base languages that are spoken too; empty means those of the base that have sentences."""
    sentences: tuple[Path, ...] = ()
    """Your own sentences, in files named after their language: am.txt, am.tsv. Empty: built-in, else held-out texts."""
    most: int = Field(100, ge=2)
    """Sentences of each language, at most."""
    listener: str | None = None
    """Recogniser: built-in, whisper:FOLDER, whisper:small, command:PROGRAM {wav} or none. Empty: one that knows it."""
    recordings: Path | None = None
    """People's recordings of the new language, NAME.wav with NAME.txt: the listener's own error on them is the mark."""
    voices: tuple[str, ...] = ()
    """Names of the base's voices, or WAV files. Empty: of held-out clips of the run, else the base's own."""
    name: str = Field("default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")
    """Name of the evaluation: its files are in eval/NAME of the run."""
    output: Path | None = None
    """Folder for the files instead; needed where the subject is not a run. It must not be there yet."""
    players: int = Field(8, ge=0, le=100)
    """Sentences of each language that the report plays."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the drawn speech and of the intervals."""
    device: str | None = None
    """cpu, cuda or cuda:N; empty means cuda where there is one."""
    precision: PrecisionName | None = None
    """float32, bf16 or fp16; empty means bf16 where the device has it, fp16 on older cards, float32 on a CPU."""


class CompareSettings(Settings):
    """The evaluations that are held against each other."""

    runs: tuple[Path, ...] = Field(min_length=1)
    """Folders of runs that were evaluated, or of single evaluations, or their scores.json."""
    name: str = "default"
    """Which evaluation of each run."""
    measure: ComparisonMetric | None = None
    """What is compared; empty means phone error, else letter error, else speech loss: the first that all runs have."""
    output: Path = Path("compared")
    """Name of the two pictures, without ending."""
    overwrite: bool = False
    """Replace pictures that are there."""


class SpeakSettings(Settings):
    """What is said, by whom and how, and where it goes."""

    text: tuple[str, ...] = ()
    """What is said; several texts are several utterances."""
    file: Path | None = None
    """A text on each line, or NAME.tsv with the columns text, language, voice, name; - is standard input."""
    run: Path | None = None
    """Folder of a run that speaks: what its last training has left."""
    graft: tuple[Path, ...] = ()
    """Folders of grafts that speak, several beside each other on one base."""
    base: Path | None = None
    """Folder of the base. A run knows its own; empty else means the built-in one, where that fits."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    which: EvaluatedVariant | None = None
    """Of a run: graft, merged or as-in-the-seeds; empty means what its last training has left."""
    step: int | None = Field(None, ge=0)
    """Of a run: a saved step instead of what training has left."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Language of the texts. It chooses tokenizer and adapter; empty means that of the run or of the one graft."""
    voice: str | None = None
    """One of the base's voices by name, or a WAV file that is imitated. Empty: the base's first, or one of the run."""
    exaggeration: float | None = Field(None, ge=0, le=5)
    """Chatterbox: how strong the emotion is; 0.5 is its usual strength."""
    guidance: float | None = None
    """Chatterbox: how far to go from the reading without text to the one with it; 0 is none."""
    emotion: Path | None = None
    """IndexTTS-2: a WAV file whose emotion is taken on, .npy with its vector, or eight shares: 0,0.6,0,0,0,0,0,0."""
    emotion_weight: float | None = Field(None, ge=0, le=1)
    """IndexTTS-2: from the voice's own emotion (0) to that of --emotion (1)."""
    temperature: float | None = None
    """How freely codes are drawn; 0 takes the best one. This and the next four: empty means as the stock program."""
    top_k: int | None = None
    """Only so many of the best codes; 0 is all."""
    top_p: float | None = None
    """Only the best codes that together have this share."""
    min_p: float | None = None
    """Only codes that are at least this share as likely as the best one."""
    repetition_penalty: float | None = None
    """How much less likely codes become that were spoken before; 1 is none."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the drawn speech: the same one gives the same bytes."""
    max_seconds: float | None = Field(None, gt=0)
    """Longest speech of one piece; empty means a limit from the length of its text."""
    split: bool = True
    """Say long texts in pieces: sentence by sentence, and too long sentences in parts."""
    pause: float = Field(0.3, ge=0, le=10)
    """Seconds of silence after a sentence; half of it after a part, twice after a paragraph."""
    batch: int = Field(16, ge=1, le=1024)
    """Pieces that are spoken at once."""
    output: Path | None = None
    """NAME.wav, .flac, .ogg or .mp3 for one file; else a folder with a file for each. Empty: speech.wav or speech."""
    codes: Path | None = None
    """Speech codes instead of, or beside, sound: NAME.json with everything, or NAME.npy for one utterance."""
    overwrite: bool = False
    """Replace files that are there."""
    device: str | None = None
    """cpu, cuda or cuda:N; empty means cuda where there is one."""
    precision: PrecisionName | None = None
    """float32, bf16 or fp16; empty means bf16 where the device has it, fp16 on older cards, float32 on a CPU."""


class RandomBaseSettings(Settings):
    """The base that is made."""

    family: FamilyName
    """Kind of base."""
    folder: Path
    """Folder for its files; it must not be there yet."""
    size: BaseSize = "tiny"
    """tiny for tests, small for a demonstration, full with the published shapes."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the random values."""


class DemoSettings(Settings):
    """How long the demonstration takes, whether it goes wrong, and where it leaves its files."""

    folder: Path | None = None
    """Folder for the run, the report and the graft, made anew each time; empty means demo, or demo-MISTAKE."""
    minutes: float | None = Field(None, gt=0, le=600)
    """Minutes of training: as many steps as fit, by what a few take here. Empty: 560 steps, 4 minutes on two cores."""
    steps: int | None = Field(None, ge=1)
    """Steps of training, instead of minutes."""
    sentences: int = Field(100, ge=2)
    """Sentences of each language that are spoken and judged, at most."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of everything random."""
    mistake: DemoMistake | None = None
    """Make a mistake of the trainers before us on purpose, and see what happens and what tells of it."""
