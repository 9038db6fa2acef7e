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
BaseTokenizer = Annotated[
    Path, Field(description="Folder of the base, its tokenizer file, or tiny for the built-in base.")
]
RunWithFlags = Annotated[
    Path, Field(description="Folder of the run. Flags override its run.yaml for this command only.")
]
RunWithSettings = Annotated[Path, Field(description="Folder of the run, with its run.yaml.")]
OverwriteOutput = Annotated[bool, Field(description="Replace the output if it exists.")]
TrainingConfig = Annotated[
    Path | None,
    Field(
        description="Training config of the checkpoint: the config file of its trainer, or a script with the training "
        "command. Its sizes and token ids are checked."
    ),
]
ResultVariant = Annotated[
    EvaluatedVariant | None,
    Field(
        description="Which result of the run to use: graft, merged (written if train.mode is merged), or "
        "masked-finetune (written by `train --baseline`). Default: the latest."
    ),
]
SavedStep = Annotated[
    int | None,
    Field(
        ge=0,
        description="Use this saved step. Default: the training result (see --variant), which has the weights of the "
        "best step.",
    ),
]


class NewSettings(Settings):
    """First settings of the run. They are written into run.yaml, where you can change them later."""

    run: Path
    """Folder of the new run. It must not exist."""
    base: BaseFolder = None
    language: NewLanguage = None
    family: FamilyOfBase = None
    texts: LanguageTexts = ()
    sources: tuple[Path, ...] = ()
    """Files or folders with recordings and their subtitles or transcripts. `go` imports them."""
    speaker: str | None = None
    """Name of the speaker, if there is only one. Default: the names in the sources, else as set by --speaker-from."""
    speaker_from: SourceSpeaker = "auto"
    old: Path | None = None
    """Config file of another trainer, or a script with its training command. Known settings go into run.yaml."""


class UpdateSettings(Settings):
    """The run to update."""

    run: RunWithSettings


class GraftSettings(RunSettings):
    """The run, and its settings that this command reads."""

    run: RunWithFlags


class CheckSettings(RunSettings):
    """The run, or single files to check against each other."""

    run: Path | None = None
    """Folder of the run. Without it, only the given files are checked."""
    checkpoint: Path | None = None
    """Extended or trained checkpoint of any program. It is compared with the base and the tokenizer."""
    training_config: TrainingConfig = None
    prepared: Path | None = None
    """Folder with training data of another trainer (text_ids/*.npy). Its text ids are checked."""
    speak: bool = False
    """Also test the base: compare its files with the published files, and speak up to three of its languages."""
    voice: Path | None = None
    """With --speak: recording of the voice to clone. Default: the base's own voice, else a bundled recording."""
    recognizer: str | None = None
    """With --speak: speech recognizer; values and default as for `evaluate`."""


class TrainCommandSettings(RunSettings):
    """The run, and where training starts."""

    run: RunWithFlags
    fresh: bool = False
    """Start over at step 0. Saved steps are moved to another folder, not deleted."""
    from_step: int | None = Field(None, ge=0)
    """Saved step to resume from. Default: the newest. Later steps are moved to another folder, not deleted."""
    baseline: BaselineMode | None = None
    """For comparison only: train all weights, with the gradients of the base rows set to zero."""


class ExtendSettings(Settings):
    """A checkpoint file, and the extended tokenizer."""

    checkpoint: Path
    """Checkpoint file to extend (.safetensors, .pt, .pth). It is never changed."""
    tokenizer: Path
    """Tokenizer file that has the new tokens (the extended tokenizer)."""
    base_tokenizer: Path | None = None
    """Tokenizer file of the base, to initialize new rows. Default: the one in the folder of the checkpoint."""
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
    """Tokenizer file to test, extended by any program."""
    family: FamilyOfFiles = None
    language: NewLanguage = None
    texts: tuple[Path, ...] = ()
    """Text files of the new language, one sentence per line, to count unknown tokens and tokens per character."""
    proof_texts: ProofTexts = ()


class TokenizerShowSettings(Settings):
    """Sentences to tokenize, and the tokenizers."""

    text: tuple[str, ...] = Field(min_length=1)
    """Sentences to tokenize. Mark words of another language: [en]words[/en]."""
    base: BaseTokenizer
    extended: Path | None = None
    """Second tokenizer file, to compare with the base's."""
    family: FamilyOfFiles = None
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Language of the sentences. If the family uses language tags, the tag is added to the tokens."""


class DataTextSettings(Settings):
    """Texts to normalize, and their language."""

    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language of the texts. It selects the rules."""
    text: tuple[str, ...] = ()
    """Sentences to normalize."""
    texts: tuple[Path, ...] = ()
    """Text files, one sentence per line."""
    explain: bool = False
    """Show every change with its rule, and everything that no rule could read."""
    fold_homophones: bool = False
    """Amharic: replace letters that sound alike by one letter."""


class ShowSettings(Settings):
    """The base to show."""

    base: Path
    """Folder of a base, a checkpoint file, tiny for the built-in base, or folder of a run (to show its base)."""
    family: FamilyOfFiles = None
    fingerprint: bool = True
    """Compute the fingerprint, a hash of all weights. This takes a few seconds for large bases."""


class DoctorSettings(Settings):
    """The folder to check."""

    folder: Path = Path(".")
    """Folder whose free disk space is reported."""


class CleanSettings(Settings):
    """The run, and what to keep."""

    run: Path
    """Folder of the run."""
    keep: int = Field(1, ge=1)
    """Number of latest saved steps to keep. The first and the best step are always kept."""
    yes: bool = False
    """Remove without asking. Required if there is no terminal, or if --json or --quiet is set."""


class PlotSettings(Settings):
    """The runs to plot."""

    runs: tuple[Path, ...] = Field(min_length=1)
    """Folders of runs. With several runs, the chart compares their held-out losses."""
    output: Path | None = None
    """Path of the PNG and SVG files, without suffix. Default: RUN/curves; for several runs, ./curves."""
    overwrite: bool = False
    """Replace existing files. Those in a run folder are always replaced."""


# What `--listening-against` may be besides a folder.
LISTENING_BASE, LISTENING_RECORDINGS = "base", "recordings"


class EvaluateSettings(Settings):
    """The model, the recognizer and the sentences."""

    model: Path
    """Folder of a run, of a graft, or of a complete model of the same family: merged, exported, or another base."""
    base: Path | None = None
    """Folder of the base to compare with. Default: the run's base."""
    family: FamilyOfBase = None
    variant: ResultVariant = None
    step: SavedStep = None
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language. Needed only if the files of the model do not name the language."""
    languages: tuple[str, ...] = ()
    """Base languages to evaluate. Default: all base languages with test sentences."""
    sentences: tuple[Path, ...] = ()
    """Files of test sentences, named by language: am.txt, am.tsv. Default: built-in sentences, else held-out texts."""
    max_sentences: int = Field(100, ge=2)
    """Maximum number of sentences per language."""
    recognizer: SpeechRecognizer = None
    recordings: Path | None = None
    """Folder of human recordings (NAME.wav with NAME.txt), to measure the recognizer's own error rate."""
    voices: tuple[str, ...] = ()
    """Voices: names, or audio files to clone. Default: held-out clips of the run, else the base's voices."""
    name: str = Field("default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")
    """Name of the evaluation. Its results are written to RUN/eval/NAME."""
    output: Path | None = Field(
        None,
        description="New folder for the results. Required if MODEL is not a run. Default: RUN/eval/default, or "
        "RUN/eval/NAME with --name NAME. These two are replaced if they exist.",
    )
    players: int = Field(8, ge=0, le=100)
    """Number of sentences per language with audio players in the report."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of sampling and of the confidence intervals."""
    listening_test: bool = False
    """Write a blind listening test (A/B) for several people instead of a report, to RUN/eval/default-listening."""
    listening_against: str = Field(
        LISTENING_BASE,
        description="With --listening-test: system to compare with: base, recordings (held-out clips), or a folder "
        "with a model or WAV files.",
    )
    listening_pairs: int = Field(20, ge=2, le=200)
    """With --listening-test: number of A/B pairs. Each language gets an equal share."""
    device: ComputeDevice = None
    precision: ComputePrecision = None


class PreferenceSettings(Settings):
    """A listening test and its answers."""

    test: Path
    """Folder that `evaluate --listening-test` wrote."""
    answers: tuple[Path, ...] = Field(min_length=1)
    """JSON files that raters saved on the page, one per person."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the confidence intervals."""


class CompareSettings(Settings):
    """The evaluations to compare."""

    runs: tuple[Path, ...] = Field(min_length=1)
    """Folders of evaluated runs, folders of single evaluations, or scores.json files."""
    name: str = "default"
    """Name of the evaluation to use in each run (RUN/eval/NAME)."""
    measure: ComparisonMetric | None = None
    """Score to compare. Default: the first of phone_error, cer and speech_loss that all runs have."""
    output: Path = Path("compared")
    """Path of the PNG and SVG files, without suffix."""
    overwrite: bool = False
    """Replace existing files."""


class SpeakSettings(Settings):
    """Texts, model, voice, sampling and output."""

    text: tuple[str, ...] = ()
    """Texts to speak. Each gives one utterance. Mark words of another language: [en]words[/en]."""
    file: Path | None = None
    """File with one text per line; - is standard input. A .tsv file has the columns text, language, voice and name."""
    run: Path | None = None
    """Folder of the run to speak with."""
    graft: tuple[Path, ...] = ()
    """Folders of one or more grafts to speak with, all for the same base."""
    base: Path | None = None
    """Folder of the base. Default: the base of the run. Required for grafts, except those of the built-in base."""
    family: FamilyOfBase = None
    variant: ResultVariant = None
    step: SavedStep = None
    language: str | None = Field(
        None,
        pattern=LANGUAGE_PATTERN,
        description="Language of the texts. It selects tokenizer and adapter. Default: that of the run, or of the "
        "graft if there is only one.",
    )
    voice: str | None = None
    """Voice: a name, or an audio file to clone. Default: the base's first voice, else a clip of the run."""
    exaggeration: float | None = Field(None, ge=0, le=5)
    """Chatterbox: strength of the emotion."""
    guidance: float | None = None
    """Chatterbox: weight of classifier-free guidance (cfg_weight); 0 disables it."""
    emotion: Path | None = None
    """IndexTTS-2: emotion, as an audio file, a vector (.npy) or eight weights such as 0,0.6,0,0,0,0,0,0."""
    emotion_weight: float | None = Field(None, ge=0, le=1)
    """IndexTTS-2: weight of --emotion, from 0 (use the emotion of the voice) to 1 (use --emotion)."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy. Default: the family's."""
    top_k: int | None = None
    """Number of most likely codes to sample from; 0: all. Default: the family's."""
    top_p: float | None = None
    """Total probability of the most likely codes to sample from. Default: the family's."""
    min_p: float | None = None
    """Minimum probability of a code relative to the most likely one. Default: the family's."""
    repetition_penalty: float | None = None
    """Repetition penalty; 1 disables it. Default: the family's."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of sampling. The same seed gives the same bytes."""
    max_seconds: float | None = Field(None, gt=0)
    """Maximum length of one sentence, in seconds. Default: estimated from its text."""
    split: bool = True
    """Split long texts into sentences, and long sentences into parts."""
    pause: float = Field(0.3, ge=0, le=10)
    """Pause between sentences, in seconds. Half as long inside a sentence, twice as long between paragraphs."""
    batch: int = Field(16, ge=1, le=1024)
    """Maximum number of sentences that are decoded together."""
    output: Path | None = Field(
        None,
        description="Audio file (.wav, .flac, .ogg or .mp3), folder, or - for standard output. Default: speech.wav; "
        "for several texts, the folder speech.",
    )
    codes: Path | None = None
    """File for the speech codes: NAME.json with all details, or NAME.npy for one utterance."""
    latents: bool = False
    """With --codes NAME.json: also write the latents that IndexTTS-2's vocoder needs, as float16."""
    overwrite: bool = False
    """Replace existing files."""
    device: ComputeDevice = None
    precision: ComputePrecision = None


class DemoSettings(Settings):
    """Length of the demo, its folder, and an optional mistake."""

    folder: Path | None = None
    """Folder of the demo. Existing results in it are replaced. Default: demo; with --mistake, demo-MISTAKE."""
    minutes: float | None = Field(None, gt=0, le=600)
    """Minutes of training. Default: 560 steps, about 4 minutes on two cores."""
    steps: int | None = Field(None, ge=1)
    """Number of training steps. Set either this or --minutes."""
    max_sentences: int = Field(100, ge=2)
    """Maximum number of evaluation sentences per language."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of all random choices."""
    mistake: DemoMistake | None = None
    """Common fine-tuning mistake to make on purpose. The demo shows how it is detected."""


class UiSettings(Settings):
    """Address, folders and password of the web UI."""

    roots: tuple[Path, ...] = (Path("."),)
    """Folders that the web UI may read and write. Commands run in the first one."""
    host: str = "127.0.0.1"
    """Address to listen on. An address that other machines can reach requires a password."""
    port: int = Field(7860, ge=1, le=65_535)
    """Port to listen on."""
    names: tuple[str, ...] = ()
    """Further host names by which browsers reach the page, for example gpu-box.local. All other names are refused."""
    password_file: Path | None = None
    """File whose first line is the password. Default: the environment variable VOXGRAFT_UI_PASSWORD, else a prompt."""
    max_upload: int = Field(4096, ge=1, le=1_000_000)
    """Maximum size of an upload, in megabytes."""
    open_browser: bool = False
    """Open the page in a browser on this machine."""


class ServeSettings(Settings):
    """Models, voices, address and limits of the server."""

    model: tuple[Path, ...] = ()
    """Runs or grafts of the same base for different languages, one export, or a base. Default: the built-in base."""
    base: Path | None = None
    """Folder of the base. Default: the base of the runs. Required for grafts, except those of the built-in base."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Language to assume if a request names none and its text fits several. Default: such requests are refused."""
    voices: Path | None = None
    """Folder with recordings to clone: NAME.wav becomes the voice NAME."""
    voice: str | None = None
    """Voice of requests that name none. Default: the first voice."""
    host: str = "127.0.0.1"
    """Address to listen on. An API key is required if other machines can reach it."""
    port: int = Field(8000, ge=0, le=65_535)
    """Port to listen on; 0: any free port."""
    names: tuple[str, ...] = ()
    """Further host names by which clients reach the server, for example gpu-box.local. All other names are refused."""
    key_file: Path | None = None
    """File whose first line is the API key. Default: the environment variable VOXGRAFT_API_KEY."""
    batch: int = Field(32, ge=1, le=1024)
    """Maximum number of sentences that are decoded together."""
    queue: int = Field(64, ge=1, le=100_000)
    """Maximum number of requests in progress. Further requests get status 429."""
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
        description=f"Name of the base: {', '.join(PUBLISHED_BASE_NAMES[:-1])} or {PUBLISHED_BASE_NAMES[-1]}."
    )
    folder: Path | None = None
    """Folder of the base. Default: models/NAME. Existing files are not downloaded again."""
    optional: bool = False
    """Download the optional files, too."""
    list_only: bool = False
    """List files, sizes and the licence, and download nothing."""
    accept_terms: bool = False
    """Accept a licence that allows non-commercial use only. Default: you are asked in a terminal."""


class CompanionSettings(Settings):
    """The original program, and its environment."""

    name: CompanionName
    """Family of the original program."""
    checkout: Path | None = None
    """IndexTTS-2: folder of its source code, which contains indextts/. Other programs are installed as packages."""
    python: Path | None = None
    """Python interpreter of the environment. Default: the one that runs voxgraft. Tested with 3.11."""
    pip_flags: tuple[str, ...] = ()
    """Additional flags for pip, each as --pip-flags=FLAG."""
    environment: Path | None = None
    """Existing virtual environment to use instead of a new one."""
    force: bool = False
    """Delete the environment and create it again."""


class ExportSettings(Settings):
    """The model, the target program and the terms."""

    model: Path
    """Folder of a run or of a graft. A graft requires --base."""
    to: ExportKind | None = Field(
        None,
        description="Target: graft (to share), peft, or a family (for its original package). Default: graft, or the "
        "base's family if the run was trained with train.mode merged.",
    )
    drop_in: bool = False
    """Chatterbox: write one model that the original package loads without changes. It speaks only the new language."""
    parts: ExportParts = Field(
        "both",
        description="Checkpoints to write. extended: without the adapter, for old languages. merged: with the adapter, "
        "for the new language.",
    )
    base: Path | None = None
    """Folder of the base. Default: the run's base."""
    family: FamilyOfBase = None
    dtype: ExportDtype = "base"
    """Number format: base (as in the base) or bf16 (rounded, half the size)."""
    copy_files: bool = False
    """Copy unchanged files of the base. Otherwise they are hard links, which need no disk space."""
    output: Path | None = None
    """Folder of the export. Default: RUN/export/TARGET."""
    overwrite: bool = False
    """Replace the output if it exists. The old output is kept as NAME.previous."""
    data_licence: str | None = Field(None, max_length=2000)
    """Licence of the recordings and texts. Default: you are asked in a terminal."""
    consent: str | None = Field(None, max_length=2000)
    """How the speakers consented. Default: you are asked in a terminal."""
    accept_terms: bool = Field(
        False,
        description="Accept that the base's licence also applies to the export. Required if the licence is "
        "non-commercial. Default: you are asked in a terminal.",
    )


class PushSettings(Settings):
    """What to publish, and where."""

    folder: Path
    """Folder of a graft or of an export to publish."""
    to: str
    """Target: NAME.zip, or OWNER/NAME of a Hugging Face Hub repository."""
    private: bool = True
    """Make a new repository private."""
    overwrite: bool = False
    """Replace the zip file if it exists."""


class PullSettings(Settings):
    """The source, and the output folder."""

    source: str
    """Source: NAME.zip, or OWNER/NAME of a Hugging Face Hub repository."""
    folder: Path | None = None
    """Output folder. It must not exist. Default: the name of the file or repository."""
    revision: str | None = None
    """Branch, tag or commit of the repository. Default: the newest."""


StageName = Literal["import", "split", "graft", "prepare", "check", "train", "evaluate", "export"]
WhenChanged = Literal["stop", "fresh", "keep"]


class GoSettings(RunSettings):
    """The run, its stages, and all settings of run.yaml. Settings given as flags are saved in run.yaml."""

    run: RunWithSettings
    until: StageName | None = None
    """Last stage to run: import, split, graft, prepare, check, train, evaluate or export. Default: all."""
    dry_run: bool = False
    """Show which stages would run and why, and exit without running."""
    when_changed: WhenChanged = Field(
        "stop",
        description="What to do if a changed setting or file requires new training. stop: end with an error. fresh: "
        "start training over. keep: do not train.",
    )
    reimport: bool = False
    """Stage import: import changed sources again. Unchanged clips keep their ids and splits."""
    sentences: tuple[Path, ...] = ()
    """Stage evaluate: files with test sentences, named by language: am.txt, am.tsv."""
    max_sentences: int = Field(100, ge=2)
    """Stage evaluate: maximum number of sentences per language."""
    to: ExportKind | None = None
    """Stage export: target, as --to of `voxgraft export`. Default: graft, or the family if train.mode is merged."""
    data_licence: str | None = Field(None, max_length=2000)
    """Stage export: licence of the recordings and texts. Default: you are asked in a terminal."""
    consent: str | None = Field(None, max_length=2000)
    """Stage export: how the speakers consented. Default: you are asked in a terminal."""
    accept_terms: bool = False
    """Stage export: accept that the base's licence also applies to the export. Default: you are asked in a terminal."""

    @property
    def given(self) -> dict[str, Any]:
        """Keys of run.yaml that were given, with their values."""
        return self.model_dump(include=set(RunSettings.model_fields), exclude_unset=True)


EngineName = Literal["local", "ray"]


class PrepareSettings(RunSettings):
    """The run, its clips, and how to encode them."""

    run: RunWithFlags
    manifest: Path | None = None
    """Dataset to encode: its folder, or its manifest.jsonl. Default: the run's dataset (data.dataset)."""
    engine: EngineName = "local"
    """Engine: local (processes on this machine) or ray (Ray Data; on the cluster at RAY_ADDRESS, if set)."""
    workers: int | None = Field(None, ge=1, le=4096)
    """Number of worker processes. Default: on the CPU one per core, or fewer if memory is short; on CUDA one."""
    batch_seconds: float = Field(60.0, gt=0, le=3600)
    """Seconds of audio per encoder batch. Clips of a batch have similar lengths."""
    voices: tuple[str, ...] = Field(
        (),
        description="For bases that cannot clone voices: SPEAKER=VOICE gives a speaker one of the base's voices. "
        "Speakers that you do not name get the base's voices in turn.",
    )
    device: str | None = None
    """Device of the encoder: cpu, cuda or cuda:N. Default: cuda if available, else cpu."""


RepairName = Literal["rows", "spare", "head", "missing", "grow", "body"]


class DiagnoseSettings(Settings):
    """The checkpoint, its base and tokenizer, and the report."""

    checkpoint: Path
    """Checkpoint of any trainer (.safetensors, .pt, .pth), a folder that has one, or a run. It is never changed."""
    base: Path | None = None
    """Folder of the base that the checkpoint was trained from, or tiny. Default: the base of the run."""
    tokenizer: Path | None = None
    """Extended tokenizer that the checkpoint was trained with."""
    family: FamilyOfBase = None
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language. With --tokenizer, sentences of the language are checked for unknown tokens."""
    texts: tuple[Path, ...] = ()
    """Text files of the new language to check for unknown tokens. Default: built-in sentences."""
    training_config: TrainingConfig = None
    prepared: Path | None = None
    """Folder with the data that the checkpoint was trained on (text_ids/*.npy, codes/*.npy)."""
    report: bool = True
    """Write the report: report.html, diagnosis.png and diagnosis.json."""
    output: Path | None = None
    """New folder for the report. Default: diagnosis-NAME in the current folder; NAME is the name of the checkpoint."""
    overwrite: bool = False
    """Replace the report folder if it exists."""
    listen: bool = False
    """Speak sentences with base and checkpoint, transcribe them, and compare error rates. The base needs a vocoder."""
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
    tokenizer: Path | None = Field(
        None,
        description="Extended tokenizer. With it, rebuilt new rows are initialized as --rows.init says. Without it, "
        "they become the mean of all base rows.",
    )
    family: FamilyOfBase = None
    only: tuple[RepairName, ...] = Field(
        (),
        description="Repairs to make. rows: restore base rows. spare: IndexTTS-2 has one unused row at the end of its "
        "text embedding; if new rows were added after it, move it back to the end. head: add rows to a head that was "
        "not extended. missing: restore lost or broken tensors. grow: add rows for tokens that have none. body: "
        "interpolate the backbone (needs --body or --choose). Default: those that `diagnose` names.",
    )
    body: Annotated[float, Field(ge=0, le=1)] | None = None
    """Interpolation of the backbone between the base (0) and the checkpoint (1)."""
    choose: bool = False
    """Choose --body by speech recognition: speak with several values and keep the best. The base needs a vocoder."""
    points: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field((0.0, 0.25, 0.5, 0.75, 1.0), min_length=1)
    """With --choose: values of --body to compare."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """With --choose: code of the new language to speak."""
    max_sentences: int = Field(8, ge=1, le=1000)
    """With --choose: maximum number of sentences per language and value."""
    worse: float = Field(0.05, ge=0, le=1)
    """With --choose: maximum increase of an old language's phone error over the base. 0.05: 5 percentage points."""
    rows: RowSettings = RowSettings()
    """Initial values of rows that are rebuilt."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of sampling."""
