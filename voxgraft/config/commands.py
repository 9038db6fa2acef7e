"""The settings of each command, one model per command. The docstring under a field is its help, also in the manual.

`config.run` has the settings that several commands share, `config.base` what reads and validates settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from voxgraft.config.base import Settings
from voxgraft.config.run import LANGUAGE_PATTERN, MAX_SEED, FamilyName, RowSettings, RunSettings, VocabularySettings
from voxgraft.config.train_options import BaselineMode, TrainPrecision

EvaluatedVariant = Literal["graft", "merged", "masked-finetune"]
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
    """Recordings with subtitles or transcripts, which `go` imports. Where no texts are given, these have them."""
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
    baseline: BaselineMode | None = None
    """For comparison only: train everything at lr_backbone with masked base rows. This loses the old languages."""


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

    model: Path
    """Folder of a run, of a graft, or of another checkpoint of the base's family (merged, exported, another base)."""
    base: Path | None = None
    """Folder of the base that it is compared with. A run knows its own."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    variant: EvaluatedVariant | None = None
    """Of a run: graft, merged or masked-finetune; empty means what its last training has left."""
    step: int | None = Field(None, ge=0)
    """Of a run: a saved step instead of what training has left."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language, where the model does not say it itself."""
    languages: tuple[str, ...] = ()
    """Base languages that are spoken too; empty means those of the base that have sentences."""
    sentences: tuple[Path, ...] = ()
    """Your own sentences, in files named after their language: am.txt, am.tsv. Empty: built-in, else held-out texts."""
    max_sentences: int = Field(100, ge=2)
    """Maximum number of sentences of each language."""
    recognizer: str | None = None
    """Recognizer: built-in, whisper:FOLDER, whisper:small, command:PROGRAM {wav} or none. Empty: one that knows it."""
    recordings: Path | None = None
    """People's recordings of the new language, NAME.wav with NAME.txt: the recognizer's error on them is the mark."""
    voices: tuple[str, ...] = ()
    """Names of the base's voices, or WAV files. Empty: of held-out clips of the run, else the base's own."""
    name: str = Field("default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")
    """Name of the evaluation: its files are in eval/NAME of the run."""
    output: Path | None = None
    """Folder for the files instead; needed where the model is not in a run. It must not be there yet."""
    players: int = Field(8, ge=0, le=100)
    """Sentences of each language that the report plays."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the drawn speech and of the intervals."""
    device: str | None = None
    """cpu, cuda or cuda:N; empty means cuda where there is one."""
    precision: TrainPrecision | None = None
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
    variant: EvaluatedVariant | None = None
    """Of a run: graft, merged or masked-finetune; empty means what its last training has left."""
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
    precision: TrainPrecision | None = None
    """float32, bf16 or fp16; empty means bf16 where the device has it, fp16 on older cards, float32 on a CPU."""


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


class UiSettings(Settings):
    """Where the web interface listens, which folders it shows, and who may use it."""

    roots: tuple[Path, ...] = (Path("."),)
    """Folders that the browser may see and write to; nothing outside of them. The first is where commands run."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other than this machine's own asks for a password."""
    port: int = Field(7860, ge=1, le=65_535)
    """Port to listen on."""
    names: tuple[str, ...] = ()
    """Further names by which browsers reach it, such as gpu-box.local or the address of a proxy."""
    password_file: Path | None = None
    """A file whose first line is the password. Without it: VOXGRAFT_UI_PASSWORD, else it is asked for."""
    max_upload: int = Field(4096, ge=1, le=1_000_000)
    """Largest file that can be uploaded, in megabytes."""
    open_browser: bool = False
    """Also open the page in the browser of this machine."""


PublishedBaseName = Literal["chatterbox-multilingual", "chatterbox-english", "indextts2"]
CompanionName = Literal["chatterbox", "indextts2"]
ExportKind = Literal["chatterbox", "indextts2", "tiny", "peft", "graft"]
ExportParts = Literal["both", "grown", "merged"]
ExportDtype = Literal["base", "bf16"]


class DownloadSettings(Settings):
    """Which base, and where to."""

    name: PublishedBaseName
    """chatterbox-multilingual, chatterbox-english or indextts2."""
    folder: Path | None = None
    """Folder of the base; empty means models/NAME. What is in it already is not fetched again."""
    optional: bool = False
    """Also what the stock program can do without."""
    list_only: bool = False
    """Only list the files, their sizes and the licence."""


class CompanionSettings(Settings):
    """Which stock program, and what its environment is made of."""

    name: CompanionName
    """chatterbox (a package) or indextts2 (your own checkout)."""
    checkout: Path | None = None
    """IndexTTS-2: folder of its source, in which indextts/ lies."""
    python: Path | None = None
    """Interpreter of the environment; empty means the one that voxgraft runs with. 3.11 is known to work."""
    pip_flags: tuple[str, ...] = ()
    """Flags for pip, each as --pip-flags=FLAG, for example another index for a CPU-only torch."""
    environment: Path | None = None
    """A virtual environment that is there already, to be used instead of making one."""
    force: bool = False
    """Make the environment again although it exists."""


class ExportSettings(Settings):
    """What is given back to which program, and under which terms."""

    model: Path
    """Folder of a run, or of a graft with --base."""
    to: ExportKind | None = None
    """peft: the adapter; graft: to share; else folders for that program. Empty: graft, after merged the base's own."""
    drop_in: bool = False
    """Chatterbox: a folder of the base's own size for the new language alone, which the package loads as it is."""
    parts: ExportParts = "both"
    """Of the two checkpoints for stock software: grown (old languages as they were), merged (the new one), or both."""
    base: Path | None = None
    """Folder of the base. A run knows its own."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    dtype: ExportDtype = "base"
    """Number format: base keeps every bit of the base; bf16 takes half the room, rounded."""
    copy_files: bool = False
    """Copy files of the base that did not change, instead of linking them (hard links, which need no room)."""
    output: Path | None = None
    """Folder of the export; empty means export/NAME in the run."""
    overwrite: bool = False
    """Replace the output if it is there; what was there is kept as NAME.previous."""
    data_licence: str | None = Field(None, max_length=2000)
    """Licence of the recordings and texts that it was trained on. Asked for on a terminal where it is not given."""
    consent: str | None = Field(None, max_length=2000)
    """How the speakers have consented. Asked for on a terminal where it is not given."""
    accept_terms: bool = False
    """You pass on what the base's licence asks for. Asked for on a terminal where it is not given."""


class PushSettings(Settings):
    """What is sent, and where to."""

    folder: Path
    """Folder of a graft, or of what `voxgraft export` wrote."""
    to: str
    """NAME.zip, or OWNER/NAME for a repository on the hub that huggingface_hub is signed in to."""
    private: bool = True
    """A new repository can be seen by its owner alone."""
    overwrite: bool = False
    """Replace the zip file if it is there."""


class PullSettings(Settings):
    """What is fetched, and where to."""

    source: str
    """NAME.zip, or OWNER/NAME of a repository on the hub."""
    folder: Path | None = None
    """Folder for it; empty means the name of the file or repository. It must not be there yet."""
    revision: str | None = None
    """Branch, tag or commit of the repository; empty means the newest."""


StageName = Literal["import", "split", "graft", "prepare", "check", "train", "evaluate", "export"]
WhenChanged = Literal["stop", "fresh", "keep"]


class GoSettings(RunSettings):
    """A run, how far to go, what the last two stages need, and all keys of run.yaml, into which flags are written."""

    run: Path
    """Folder of the run, with its run.yaml."""
    until: StageName | None = None
    """The last stage: import, split, graft, prepare, check, train, evaluate or export. Empty: all of them."""
    dry_run: bool = False
    """Say which stages would run and why, and stop. Changes nothing."""
    when_changed: WhenChanged = "stop"
    """A run that was trained, and asks for something else now: stop and say what; fresh begins again; keep goes on."""
    reimport: bool = False
    """Of `import`: import sources again that have changed. Clips that stay the same keep their ids and sides."""
    sentences: tuple[Path, ...] = ()
    """Of `evaluate`: your own sentences, in files named after their language: am.txt, or am.tsv. Others: done again."""
    max_sentences: int = Field(100, ge=2)
    """Of `evaluate`: maximum number of sentences of each language. Another number: done again."""
    to: ExportKind | None = None
    """Of `export`: what is made. Empty: the graft to share, or after merged training the stock program's folders."""
    data_licence: str | None = Field(None, max_length=2000)
    """Of `export`: licence of the recordings and texts. Asked for on a terminal where it is not given."""
    consent: str | None = Field(None, max_length=2000)
    """Of `export`: how the speakers have consented. Asked for on a terminal where it is not given."""
    accept_terms: bool = False
    """Of `export`: you pass on what the base's licence asks for."""

    @property
    def given(self) -> dict[str, Any]:
        """Keys of run.yaml that were given, with their values."""
        return self.model_dump(include=set(RunSettings.model_fields), exclude_unset=True)


EngineName = Literal["local", "ray"]


class PrepareSettings(RunSettings):
    """A run, the clips that its sets are made of, and who does the work."""

    run: Path
    """Folder of the run, with its run.yaml. Flags win over that file."""
    manifest: Path | None = None
    """Manifest of the clips, or the folder that holds one; empty means that of data.dataset."""
    engine: EngineName = "local"
    """local (processes on this machine) or ray (Ray Data, on the cluster of RAY_ADDRESS or on this machine)."""
    workers: int | None = Field(None, ge=1, le=4096)
    """Processes that encode; empty means one for each core, as far as memory goes, and one on CUDA."""
    batch_seconds: float = Field(60.0, gt=0, le=3600)
    """Sound that goes through the encoder at once. Clips of a batch are of similar length."""
    voices: tuple[str, ...] = ()
    """Bases with named voices only: SPEAKER=VOICE; speakers that are not named here take turns among the voices."""
    device: str | None = None
    """cpu, cuda or cuda:N for the encoder; empty means cuda where there is one."""


RepairName = Literal["rows", "spare", "head", "missing", "grow", "body"]


class DiagnoseSettings(Settings):
    """What is looked at, what it was made from, and where the report goes."""

    checkpoint: Path
    """A checkpoint file of anyone's (.safetensors, .pt, .pth), a folder with one, or a run. It is only read."""
    base: Path | None = None
    """Folder of the base that it was made from, or the word tiny for the built-in one. A run knows its own."""
    tokenizer: Path | None = None
    """The grown tokenizer that it was trained with."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language. With it and a tokenizer, sentences of the language are looked through for unknowns."""
    texts: tuple[Path, ...] = ()
    """Text files of the new language to look through instead of the built-in sentences."""
    base_config: Path | None = None
    """The config or command line of the trainer that made it."""
    prepared: Path | None = None
    """The prepared data that it was trained on (text_ids/*.npy, codes/*.npy)."""
    report: bool = True
    """Write the report: report.html, diagnosis.png and diagnosis.json."""
    output: Path | None = None
    """Folder for the report; it must not be there yet. Empty: diagnosis-NAME in the current folder."""
    overwrite: bool = False
    """Replace the report folder if it is there."""
    listen: bool = False
    """Also speak and listen, where the base has a waveform end here (tiny): phone errors beside the base's own."""
    sentences: int = Field(8, ge=1, le=1000)
    """Sentences of each language that are spoken then."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the drawn speech."""


class RepairSettings(Settings):
    """What is repaired, from which base, and where it goes."""

    checkpoint: Path
    """The checkpoint to repair (.safetensors, .pt, .pth, a folder of shards). It is only read."""
    base: Path
    """Folder of the base that it was made from, or the word tiny for the built-in one."""
    output: Path
    """The new file: NAME.safetensors, or NAME.pt or NAME.pth for a torch archive."""
    overwrite: bool = False
    """Replace the output and its report if they are there."""
    tokenizer: Path | None = None
    """The grown tokenizer: rows that have to be made anew are spelled with it. Without it they start from a mean."""
    family: FamilyName | None = None
    """Kind of base; empty means: told by the files in the base folder."""
    only: tuple[RepairName, ...] = ()
    """What is repaired: rows, spare, head, missing, grow, body. Empty: what `diagnose` would name."""
    body: Annotated[float, Field(ge=0, le=1)] | None = None
    """Move the body to this point between the base (0) and the tuned one (1)."""
    choose: bool = False
    """Choose that point by ear, where the base has a waveform end here (tiny)."""
    points: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field((0.0, 0.25, 0.5, 0.75, 1.0), min_length=1)
    """Points that are tried then."""
    language: str | None = Field(None, pattern=LANGUAGE_PATTERN)
    """Code of the new language, which is spoken then."""
    sentences: int = Field(8, ge=1, le=1000)
    """Sentences of each language that are spoken at each point."""
    worse: float = Field(0.05, ge=0, le=1)
    """How much higher the phone error of an old language may be than the base's own, for a point to be taken."""
    rows: RowSettings = RowSettings()
    """Rows that are made anew."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the drawn speech."""
