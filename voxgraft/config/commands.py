"""Settings of each command: one model per command. The docstring under a field is its help, here and in the manual.

What a run can say is in `config/run.py`; reading and checking settings is in `config/base.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from voxgraft.config.base import Settings
from voxgraft.config.run import (
    LANGUAGE_PATTERN,
    MAX_SEED,
    BaseFolder,
    ComputeDevice,
    ComputePrecision,
    FamilyName,
    FamilyOfBase,
    LanguageTexts,
    NewLanguage,
    ProofTexts,
    RowSettings,
    RunSettings,
    SourceSpeaker,
    SpeechRecognizer,
    VocabularySettings,
)
from voxgraft.config.train_options import BaselineMode
from voxgraft.core.families import FAMILIES, FAMILY_NAMES

EvaluatedVariant = Literal["graft", "merged", "masked-finetune"]
DemoMistake = Literal[
    "unfrozen-high-rate", "masked-finetune", "no-single-characters", "wrong-tokenizer", "padded-codes"
]
ComparisonMetric = Literal["phone_error", "cer", "wer", "speech_loss"]

# Settings that several classes have, each defined once: its type, its limits and its help.
FamilyOfFiles = Annotated[FamilyName | None, Field(description="Model family. Default: detected from the files.")]
BaseTokenizer = Annotated[Path, Field(description="Tokenizer file of the base, or the folder of the base.")]
RunWithFlags = Annotated[
    Path, Field(description="Folder of the run. Flags override its run.yaml for this command and are not saved.")
]
RunWithSettings = Annotated[Path, Field(description="Folder of the run, with its run.yaml.")]
OverwriteOutput = Annotated[bool, Field(description="Replace the output if it exists.")]
ResultVariant = Annotated[
    EvaluatedVariant | None,
    Field(description="Result of the run to use: graft, merged, or masked-finetune (a baseline). Default: the latest."),
]
SavedStep = Annotated[int | None, Field(ge=0, description="Saved step of the run, instead of the final result.")]


class NewSettings(Settings):
    """First settings of the run. All but RUN can also be set later, in run.yaml."""

    run: Path
    """Folder of the new run. It must not exist."""
    base: BaseFolder = None
    language: NewLanguage = None
    family: FamilyOfBase = None
    texts: LanguageTexts = ()
    sources: tuple[Path, ...] = ()
    """Recordings with subtitles or transcripts for `go` to import. Without --texts, the tokenizer uses their texts."""
    speaker: str | None = None
    """Speaker name, if all sources have the same speaker. Default: names in the sources, else see --speaker-from."""
    speaker_from: SourceSpeaker = "auto"
    old: Path | None = None
    """Config of another trainer, or a file with its training command. Known settings are copied into run.yaml."""


class UpdateSettings(Settings):
    """A run with settings of an older version."""

    run: RunWithSettings


class GraftSettings(RunSettings):
    """The run, and its settings that this command reads."""

    run: RunWithFlags


class CheckSettings(RunSettings):
    """The run, or single files to check against each other."""

    run: Path | None = None
    """Folder of the run. Without it, only the given files are checked."""
    checkpoint: Path | None = None
    """Extended or trained checkpoint to check against the base and the tokenizer."""
    base_config: Path | None = None
    """Config of the trainer that wrote the checkpoint, or a file with the training command. It is checked, too."""
    prepared: Path | None = None
    """Prepared data of another trainer (text_ids/*.npy). Its text ids are checked."""
    speak: bool = False
    """Check the base itself: compare its files with the published ones, and speak up to three of its languages."""
    voice: Path | None = None
    """With --speak: recording of the voice. Default: the base's own voice, or a recording bundled with voxgraft."""
    recognizer: str | None = None
    """With --speak: recognizer, as in `evaluate`, or none. Default: the first that supports the language."""


class TrainCommandSettings(RunSettings):
    """The run, all settings of its run.yaml, and where to start."""

    run: RunWithFlags
    fresh: bool = False
    """Start over at step 0. Saved steps are moved aside, not deleted."""
    from_step: int | None = Field(None, ge=0)
    """Resume from this saved step instead of the newest. Later steps are moved aside, not deleted."""
    baseline: BaselineMode | None = None
    """For comparison only: train all weights at lr_backbone, with the base rows' gradients set to zero."""


class ExtendSettings(Settings):
    """A checkpoint file, and the extended tokenizer."""

    checkpoint: Path
    """Checkpoint file to extend (.safetensors, .pt, .pth). It is never changed."""
    tokenizer: Path
    """Extended tokenizer."""
    base_tokenizer: Path | None = None
    """Tokenizer of the base, to initialize new rows. The extended one must start with the same tokens."""
    family: FamilyName | None = None
    """Model family. Default: detected from the tensors."""
    output: Path
    """New checkpoint file."""
    overwrite: OverwriteOutput = False
    rows: RowSettings = RowSettings()
    """New rows."""
    verify: bool = True
    """Read the output again and compare all old values with the input, bit for bit."""
    hash: bool = False
    """Also print the SHA-256 of input and output."""


class TokenizerTrainSettings(Settings):
    """Base, language and texts for the new tokens."""

    base: BaseTokenizer
    family: FamilyOfFiles = None
    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language code (ISO 639) of the new language, for example am for Amharic."""
    texts: tuple[Path, ...] = Field(min_length=1)
    """Text files of the new language, one sentence per line."""
    output: Path = Path("additions.json")
    """Output file with the new tokens and characters, for `tokenizer merge`."""
    overwrite: OverwriteOutput = False
    tokenizer: VocabularySettings = VocabularySettings()
    """Tokenizer of the new language."""


class TokenizerMergeSettings(Settings):
    """The base's tokenizer, and the new tokens."""

    base: BaseTokenizer
    family: FamilyOfFiles = None
    additions: Path
    """File written by `tokenizer train`."""
    output: Path
    """Extended tokenizer file."""
    overwrite: OverwriteOutput = False


class TokenizerProveSettings(Settings):
    """Two tokenizers, and the texts to compare them on."""

    base: BaseTokenizer
    extended: Path
    """Extended tokenizer file, made by any program."""
    family: FamilyOfFiles = None
    language: NewLanguage = None
    texts: tuple[Path, ...] = ()
    """Text files of the new language, one sentence per line, to count unknowns and tokens per character."""
    proof_texts: ProofTexts = ()


class TokenizerShowSettings(Settings):
    """Sentences to tokenize, and the tokenizers."""

    text: tuple[str, ...] = Field(min_length=1)
    """Sentences to tokenize. [en]words[/en] marks words of another language."""
    base: BaseTokenizer
    extended: Path | None = None
    """Extended tokenizer file to compare with the base's."""
    family: FamilyOfFiles = None
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Language of the sentences. Its tag is added if the family uses tags."""


class DataTextSettings(Settings):
    """Texts to normalize, and their language."""

    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language of the texts. It selects the rules."""
    text: tuple[str, ...] = ()
    """Sentences to normalize."""
    texts: tuple[Path, ...] = ()
    """Text files, one sentence per line."""
    explain: bool = False
    """Show every change with its rule, and what did not change."""
    fold_homophones: bool = False
    """Amharic: replace letters that sound alike by one letter."""


class ShowSettings(Settings):
    """The base to show."""

    base: Path
    """Folder of a base, folder of a run (its base is shown), or a checkpoint file."""
    family: FamilyOfFiles = None
    fingerprint: bool = True
    """Compute the fingerprint, which reads all values (a few seconds for gigabytes)."""


class DoctorSettings(Settings):
    """The folder to check."""

    folder: Path = Path(".")
    """Folder whose free disk space is reported."""


class CleanSettings(Settings):
    """The run, and what to keep."""

    run: Path
    """Folder of the run."""
    keep: int = Field(1, ge=1)
    """Number of latest steps to keep. The first and the best are always kept."""
    yes: bool = False
    """Remove without asking. Required without a terminal and with --json or --quiet."""


class PlotSettings(Settings):
    """The runs to plot."""

    runs: tuple[Path, ...] = Field(min_length=1)
    """Folders of runs, also while they train. With several runs, their held-out losses are compared."""
    output: Path | None = None
    """Name of the PNG and SVG files, without suffix. Default: curves, in the run folder or, for several runs, here."""
    overwrite: bool = False
    """Replace existing files. Those in a run folder are always replaced."""


# What `--listening-against` may be besides a folder.
LISTENING_BASE, LISTENING_RECORDINGS = "base", "recordings"


class EvaluateSettings(Settings):
    """The model, the recognizer and the sentences."""

    model: Path
    """Folder of a run, a graft or a checkpoint (merged, exported, or another base of the same family)."""
    base: Path | None = None
    """Folder of the base to compare with. Default: the run's base."""
    family: FamilyOfBase = None
    variant: ResultVariant = None
    step: SavedStep = None
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language, if the model does not state it."""
    languages: tuple[str, ...] = ()
    """Base languages to evaluate. Default: all that have sentences."""
    sentences: tuple[Path, ...] = ()
    """Sentence files named by language: am.txt, am.tsv. Default: built-in sentences, else held-out texts."""
    max_sentences: int = Field(100, ge=2)
    """Maximum number of sentences per language."""
    recognizer: SpeechRecognizer = None
    recordings: Path | None = None
    """Folder of human recordings (NAME.wav, .mp3 ... with NAME.txt), to report the recognizer's error rate on them."""
    voices: tuple[str, ...] = ()
    """Voices by name, or audio files. Default: held-out clips of the run, else the base's voices."""
    name: str = Field("default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")
    """Name of the evaluation. Its files are in eval/NAME of the run."""
    output: Path | None = None
    """New output folder. Required if MODEL is not a run. Default: eval/default in the run, which is replaced."""
    players: int = Field(8, ge=0, le=100)
    """Number of sentences per language that get audio players in the report."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of sampling and of the confidence intervals."""
    listening_test: bool = False
    """Write a page on which people compare two systems blindly (A/B test). No scores are computed.

    Default folder: eval/default-listening in the run.
    """
    listening_against: str = LISTENING_BASE
    """System to compare with: base, recordings (held-out clips), or the folder of a model or of WAV files."""
    listening_pairs: int = Field(20, ge=2, le=200)
    """Number of pairs on the page, shared evenly by the languages."""
    device: ComputeDevice = None
    precision: ComputePrecision = None


class PreferenceSettings(Settings):
    """A listening test and its answers."""

    test: Path
    """Folder that `evaluate --listening-test` wrote; it contains key.json."""
    answers: tuple[Path, ...] = Field(min_length=1)
    """JSON files that the page saved, one per rater."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the confidence intervals."""


class CompareSettings(Settings):
    """The evaluations to compare."""

    runs: tuple[Path, ...] = Field(min_length=1)
    """Folders of evaluated runs or of single evaluations, or scores.json files."""
    name: str = "default"
    """Name of the evaluation in each run."""
    measure: ComparisonMetric | None = None
    """Measure to compare. Default: the first of phone error, letter error and speech loss that all runs have."""
    output: Path = Path("compared")
    """Name of the PNG and SVG files, without suffix."""
    overwrite: bool = False
    """Replace existing files."""


class SpeakSettings(Settings):
    """Texts, model, voice, sampling and output."""

    text: tuple[str, ...] = ()
    """Texts to speak; each is one utterance. [en]words[/en] marks words of another language."""
    file: Path | None = None
    """File with one text per line, or NAME.tsv with the columns text, language, voice, name; - is standard input."""
    run: Path | None = None
    """Folder of the run to speak with."""
    graft: tuple[Path, ...] = ()
    """Folders of one or more grafts to speak with, all for the same base."""
    base: Path | None = None
    """Folder of the base. Default: the run's base, else the built-in one if the graft was made for it."""
    family: FamilyOfBase = None
    variant: ResultVariant = None
    step: SavedStep = None
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Language of the texts. It selects tokenizer and adapter. Default: that of the run, or of a single graft."""
    voice: str | None = None
    """Voice of the base by name, or an audio file to clone. Default: the base's first voice, else a clip of the run."""
    exaggeration: float | None = Field(None, ge=0, le=5)
    """Chatterbox: strength of the emotion."""
    guidance: float | None = None
    """Chatterbox: weight of classifier-free guidance; 0 disables it."""
    emotion: Path | None = None
    """IndexTTS-2: emotion from an audio file, a vector (.npy), or the weights of eight emotions: 0,0.6,0,0,0,0,0,0."""
    emotion_weight: float | None = Field(None, ge=0, le=1)
    """IndexTTS-2: weight of --emotion, from 0 (only the emotion of the voice) to 1 (only --emotion)."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy. Default: the family's."""
    top_k: int | None = None
    """Sample from the k most likely codes; 0: all. Default: the family's."""
    top_p: float | None = None
    """Sample from the most likely codes with this total probability. Default: the family's."""
    min_p: float | None = None
    """Minimum probability of a code relative to the most likely one. Default: the family's."""
    repetition_penalty: float | None = None
    """Repetition penalty; 1 disables it. Default: the family's."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of sampling. The same seed gives the same bytes."""
    max_seconds: float | None = Field(None, gt=0)
    """Maximum length of one segment, in seconds. Default: from the length of its text."""
    split: bool = True
    """Split long texts into sentences, and long sentences into parts."""
    pause: float = Field(0.3, ge=0, le=10)
    """Silence after a sentence, in seconds. Between parts of a sentence: half; between paragraphs: double."""
    batch: int = Field(16, ge=1, le=1024)
    """Number of segments per batch."""
    output: Path | None = None
    """Output file (.wav, .flac, .ogg, .mp3), folder, or - (standard output). Default: speech.wav or, for several
    texts, the folder speech."""
    codes: Path | None = None
    """Write speech codes: NAME.json with all details, or NAME.npy for one utterance."""
    latents: bool = False
    """Also write the language model's latents into NAME.json, as float16: IndexTTS-2's vocoder needs them."""
    overwrite: bool = False
    """Replace existing files."""
    device: ComputeDevice = None
    precision: ComputePrecision = None


class DemoSettings(Settings):
    """Length of the demo, its folder, and an optional mistake."""

    folder: Path | None = None
    """Folder of the demo. It is replaced every time. Default: demo, or demo-MISTAKE."""
    minutes: float | None = Field(None, gt=0, le=600)
    """Minutes of training. Default: 560 steps, about 4 minutes on two cores."""
    steps: int | None = Field(None, ge=1)
    """Training steps, instead of minutes."""
    max_sentences: int = Field(100, ge=2)
    """Maximum number of evaluation sentences per language."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of all random choices."""
    mistake: DemoMistake | None = None
    """Reproduce a common fine-tuning mistake and show how it is detected."""


class UiSettings(Settings):
    """Address, folders and password of the web UI."""

    roots: tuple[Path, ...] = (Path("."),)
    """Folders that the web UI may read and write. Commands run in the first."""
    host: str = "127.0.0.1"
    """Address to listen on. An address that other machines can reach requires a password."""
    port: int = Field(7860, ge=1, le=65_535)
    """Port to listen on."""
    names: tuple[str, ...] = ()
    """Other host names under which the page is opened, for example gpu-box.local or the name of a proxy."""
    password_file: Path | None = None
    """File whose first line is the password. Default: VOXGRAFT_UI_PASSWORD, else a prompt."""
    max_upload: int = Field(4096, ge=1, le=1_000_000)
    """Maximum size of an upload, in megabytes."""
    open_browser: bool = False
    """Open the page in a browser on this machine."""


class ServeSettings(Settings):
    """Models, voices, address and limits of the server."""

    model: tuple[Path, ...] = ()
    """Runs or grafts (one base, different languages), or an export, or a base. Default: the built-in base."""
    base: Path | None = None
    """Folder of the base. Default: the runs' base, else the built-in one if the grafts were made for it."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Language of a request that states none, if its script does not decide. Default: such requests are refused."""
    voices: Path | None = None
    """Folder with recordings that requests can name as voices: NAME.wav is the voice NAME."""
    voice: str | None = None
    """Voice of requests without one. Default: the first voice."""
    host: str = "127.0.0.1"
    """Address to listen on. An API key is required if other machines can reach it."""
    port: int = Field(8000, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    names: tuple[str, ...] = ()
    """Additional host names, for example gpu-box.local or the name of a proxy."""
    key_file: Path | None = None
    """File whose first line is the API key. Default: VOXGRAFT_API_KEY."""
    batch: int = Field(32, ge=1, le=1024)
    """Maximum number of sentences that are decoded together."""
    queue: int = Field(64, ge=1, le=100_000)
    """Maximum number of requests in progress. More are refused with status 429."""
    max_characters: int = Field(4096, ge=1, le=1_000_000)
    """Maximum length of a text, in characters."""
    max_body: int = Field(256, ge=1, le=1_000_000)
    """Maximum size of a request, in kilobytes."""
    device: ComputeDevice = None
    precision: ComputePrecision = None


PUBLISHED_BASE_NAMES = tuple(name for facts in FAMILIES.values() for name in facts.downloads)
# As `FamilyName` in config/run.py: choices that the registry has.
if TYPE_CHECKING:
    PublishedBaseName = str
    CompanionName = str
    ExportKind = str
else:
    PublishedBaseName = Literal[PUBLISHED_BASE_NAMES]
    CompanionName = Literal[tuple(name for name, facts in FAMILIES.items() if facts.companion)]
    ExportKind = Literal[(*FAMILY_NAMES, "peft", "graft")]
ExportParts = Literal["both", "extended", "merged"]
ExportDtype = Literal["base", "bf16"]


class DownloadSettings(Settings):
    """The base to download, and its folder."""

    name: PublishedBaseName = Field(
        description=f"{', '.join(PUBLISHED_BASE_NAMES[:-1])} or {PUBLISHED_BASE_NAMES[-1]}."
    )
    folder: Path | None = None
    """Folder of the base. Default: models/NAME. Existing files are not downloaded again."""
    optional: bool = False
    """Also download optional files."""
    list_only: bool = False
    """Only list files, sizes and the licence."""
    accept_terms: bool = False
    """Accept a licence for non-commercial use only. Default: asked in a terminal, else not accepted."""


class CompanionSettings(Settings):
    """The original program, and its environment."""

    name: CompanionName
    """Family whose original program is meant."""
    checkout: Path | None = None
    """Folder of the program's source code, if it is no package (IndexTTS-2: contains indextts/)."""
    python: Path | None = None
    """Python of the environment. Default: the one that runs voxgraft. 3.11 is known to work."""
    pip_flags: tuple[str, ...] = ()
    """Flags for pip, each as --pip-flags=FLAG."""
    environment: Path | None = None
    """Existing virtual environment to use."""
    force: bool = False
    """Create the environment again."""


class ExportSettings(Settings):
    """The model, the target program and the terms."""

    model: Path
    """Folder of a run, or folder of a graft (then --base is required)."""
    to: ExportKind | None = None
    """Target: graft (to share), peft, or the original package. Default: graft; after merged training, the package."""
    drop_in: bool = False
    """Chatterbox: write a model that the original package loads unchanged. It speaks only the new language."""
    parts: ExportParts = "both"
    """Checkpoints: extended (without adapter, for old languages), merged (with it, for the new language), or both."""
    base: Path | None = None
    """Folder of the base. Default: the run's base."""
    family: FamilyOfBase = None
    dtype: ExportDtype = "base"
    """Number format: base (all bits are kept) or bf16 (rounded, half the size)."""
    copy_files: bool = False
    """Copy unchanged files of the base instead of making hard links."""
    output: Path | None = None
    """Folder of the export. Default: export/NAME in the run."""
    overwrite: bool = False
    """Replace the output if it exists. The old one is kept as NAME.previous."""
    data_licence: str | None = Field(None, max_length=2000)
    """Licence of the recordings and texts. Default: asked in a terminal."""
    consent: str | None = Field(None, max_length=2000)
    """How the speakers consented. Default: asked in a terminal."""
    accept_terms: bool = False
    """Accept that the base's licence also applies to the export; a non-commercial licence requires this. Default: asked
    in a terminal."""


class PushSettings(Settings):
    """The folder to publish, and the target."""

    folder: Path
    """Folder of a graft or of an export."""
    to: str
    """NAME.zip, or OWNER/NAME of a Hugging Face Hub repository."""
    private: bool = True
    """Make a new repository private."""
    overwrite: bool = False
    """Replace the zip file if it exists."""


class PullSettings(Settings):
    """The source, and the output folder."""

    source: str
    """NAME.zip, or OWNER/NAME of a Hugging Face Hub repository."""
    folder: Path | None = None
    """Output folder. It must not exist. Default: the name of the file or repository."""
    revision: str | None = None
    """Branch, tag or commit of the repository. Default: the newest."""


StageName = Literal["import", "split", "graft", "prepare", "check", "train", "evaluate", "export"]
WhenChanged = Literal["stop", "fresh", "keep"]


class GoSettings(RunSettings):
    """The run, the stages, and all settings of run.yaml. Flags that are settings of run.yaml are saved there."""

    run: RunWithSettings
    until: StageName | None = None
    """Last stage to run: import, split, graft, prepare, check, train, evaluate or export. Default: all."""
    dry_run: bool = False
    """Show which stages would run and why, and exit without running."""
    when_changed: WhenChanged = "stop"
    """If a change requires training to start over: stop, fresh (start over), or keep (keep the trained result)."""
    reimport: bool = False
    """`import`: import changed sources again. Unchanged clips keep their ids and splits."""
    sentences: tuple[Path, ...] = ()
    """`evaluate`: sentence files named by language: am.txt, am.tsv."""
    max_sentences: int = Field(100, ge=2)
    """`evaluate`: maximum number of sentences per language."""
    to: ExportKind | None = None
    """`export`: target. Default: graft; with train.mode merged, the format of the base's own package."""
    data_licence: str | None = Field(None, max_length=2000)
    """`export`: licence of the recordings and texts. Default: asked in a terminal."""
    consent: str | None = Field(None, max_length=2000)
    """`export`: how the speakers consented. Default: asked in a terminal."""
    accept_terms: bool = False
    """`export`: accept that the base's licence also applies to the export. Default: asked in a terminal."""

    @property
    def given(self) -> dict[str, Any]:
        """Keys of run.yaml that were given, with their values."""
        return self.model_dump(include=set(RunSettings.model_fields), exclude_unset=True)


EngineName = Literal["local", "ray"]


class PrepareSettings(RunSettings):
    """The run, its clips, and how to encode them."""

    run: RunWithFlags
    manifest: Path | None = None
    """Manifest of the clips, or its folder. Default: that of data.dataset."""
    engine: EngineName = "local"
    """Engine: local (processes on this machine) or ray (Ray Data, on the cluster at RAY_ADDRESS or this machine)."""
    workers: int | None = Field(None, ge=1, le=4096)
    """Number of worker processes. Default: one per core if memory allows; one on CUDA."""
    batch_seconds: float = Field(60.0, gt=0, le=3600)
    """Seconds of audio per encoder batch. Clips of a batch have similar lengths."""
    voices: tuple[str, ...] = ()
    """For bases with fixed voices: SPEAKER=VOICE gives a speaker that voice. Other speakers get the voices in order."""
    device: str | None = None
    """Device of the encoder: cpu, cuda or cuda:N. Default: cuda if available."""


RepairName = Literal["rows", "spare", "head", "missing", "grow", "body"]


class DiagnoseSettings(Settings):
    """The checkpoint, its base and tokenizer, and the report."""

    checkpoint: Path
    """Checkpoint of any trainer (.safetensors, .pt, .pth), a folder with one, or a run. It is never changed."""
    base: Path | None = None
    """Folder of the base of the checkpoint, or tiny for the built-in one. Default: the run's base."""
    tokenizer: Path | None = None
    """Extended tokenizer that the checkpoint was trained with."""
    family: FamilyOfBase = None
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language. With a tokenizer, sentences of the language are checked for unknown tokens."""
    texts: tuple[Path, ...] = ()
    """Text files of the new language to check instead of the built-in sentences."""
    base_config: Path | None = None
    """Config of the trainer that wrote the checkpoint, or a file with the training command."""
    prepared: Path | None = None
    """Prepared data that the checkpoint was trained on (text_ids/*.npy, codes/*.npy)."""
    report: bool = True
    """Write the report: report.html, diagnosis.png and diagnosis.json."""
    output: Path | None = None
    """New folder for the report. Default: diagnosis-NAME in the current folder, for example diagnosis-model.pth."""
    overwrite: bool = False
    """Replace the report folder if it exists."""
    listen: bool = False
    """Also synthesize and transcribe sentences, if the base has a vocoder, and compare phone errors with the base."""
    max_sentences: int = Field(8, ge=1, le=1000)
    """With --listen: maximum number of sentences per language."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of sampling."""


class RepairSettings(Settings):
    """The checkpoint, its base, the parts to repair and the output."""

    checkpoint: Path
    """Checkpoint to repair (.safetensors, .pt, .pth, a folder of shards). It is never changed."""
    base: Path
    """Folder of the base that the checkpoint was trained from, or tiny for the built-in one."""
    output: Path
    """New file: NAME.safetensors, or a torch archive (.pt, .pth, .bin, .ckpt)."""
    overwrite: bool = False
    """Replace the output and its report if they exist."""
    tokenizer: Path | None = None
    """Extended tokenizer, to initialize rows that must be rebuilt. Without it they start from the mean row."""
    family: FamilyOfBase = None
    only: tuple[RepairName, ...] = ()
    """Parts to repair: rows, spare, head, missing, grow, body. Default: what `diagnose` names."""
    body: Annotated[float, Field(ge=0, le=1)] | None = None
    """Interpolation weight of the backbone: 0 is the base, 1 is the tuned model."""
    choose: bool = False
    """Choose the value of --body with a recognizer. The base needs a vocoder."""
    points: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field((0.0, 0.25, 0.5, 0.75, 1.0), min_length=1)
    """With --choose: values of --body to try."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """With --choose: code of the new language to speak."""
    max_sentences: int = Field(8, ge=1, le=1000)
    """With --choose: maximum number of sentences per language at each point."""
    worse: float = Field(0.05, ge=0, le=1)
    """With --choose: maximum increase of an old language's phone error over the base's."""
    rows: RowSettings = RowSettings()
    """Rows that are rebuilt."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of sampling."""
