"""Settings of the `data` commands, except `data text`. The docstring under a field is its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from voxgraft.config.base import Settings
from voxgraft.config.run import LANGUAGE_PATTERN, MAX_SEED, FamilyName, SourceSpeaker, TextEncoding

VadBackend = Literal["energy", "silero"]
CutMethod = Literal["pauses", "times"]
AudioFormat = Literal["flac", "wav"]
SplitBy = Literal["auto", "speaker", "recording", "part"]

# Settings that several classes have, each defined once: its type, its limits and its help.
DatasetFolder = Annotated[Path, Field(description="Folder of the dataset.")]
WorkerCount = Annotated[int, Field(ge=0, le=256, description="Number of processes; 0: one per core.")]


class DataImportSettings(Settings):
    """Recordings with texts, and how they are cut into clips."""

    dataset: Path
    """Folder of the dataset. Clips are added to an existing one."""
    sources: tuple[Path, ...] = Field(min_length=1)
    """Folders or files: subtitles with media, metadata.csv, Kaldi, .list, TextGrid, audio with text files, parquet."""
    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language of the recordings. It selects the text rules."""
    media: Path | None = None
    """Recording for a single subtitle file, if their names differ."""
    family: FamilyName | None = None
    """Model family to train, which limits the length of clips."""
    rate: int = Field(24_000, ge=8_000, le=96_000)
    """Sample rate of the clips. 24,000 suits every family."""
    format: AudioFormat = "flac"
    """File format of the clips."""
    encoding: TextEncoding = None
    speaker: str | None = None
    """Speaker name, if there is only one. Default: names in the sources, else by --speaker-from."""
    speaker_from: SourceSpeaker = "auto"
    reimport: bool = False
    """Import changed sources again. Unchanged clips keep their ids and splits."""
    max_left_out: float = Field(0.2, ge=0, le=1)
    """Maximum share of lines, or of sources, without a usable clip (0.2 is a fifth). If more, the exit code is 1."""
    cut: CutMethod = "pauses"
    """Clip edges: pauses (move to the nearest pause) or times (as in the subtitles)."""
    activity: VadBackend = "energy"
    """Voice activity detection: energy, or silero (a neural model, better with loud music)."""
    shortest: float = Field(1.0, gt=0, le=30)
    """Minimum length in seconds. Shorter subtitles are joined with their neighbours."""
    longest: float | None = Field(None, gt=1, le=120)
    """Maximum length in seconds. Longer clips are split at pauses. Default: 15, or less if the family requires it."""
    lead: float = Field(0.10, ge=0, le=1)
    """Seconds to keep before the first word, if the pause is long enough."""
    tail: float = Field(0.15, ge=0, le=1)
    """Seconds to keep after the last word."""
    join_gap: float = Field(0.6, ge=0, le=3)
    """Maximum pause, in seconds, over which two subtitles are joined."""
    rolling: bool = True
    """Remove repeated text of rolling captions."""
    fold_homophones: bool = False
    """Amharic: replace letters that sound alike by one letter."""
    workers: WorkerCount = 0


class DataListSettings(Settings):
    """A dataset, or a folder with several."""

    folder: Path
    """Folder of a dataset (lists its recordings), or a folder with datasets."""


class DataInfoSettings(Settings):
    """The dataset to show."""

    dataset: DatasetFolder
    problems: bool = False
    """Show every line of the sources that was not used, and why."""
    clips: bool = False
    """Show every clip."""


class DataMergeSettings(Settings):
    """The datasets to merge."""

    dataset: Path
    """Folder of the merged dataset. Clips are added to an existing one."""
    sets: tuple[Path, ...] = Field(min_length=1)
    """Folders of the datasets to merge. They are not changed."""
    used_only: bool = False
    """Leave out rejected clips."""


class DataRemoveSettings(Settings):
    """The clips to remove."""

    dataset: DatasetFolder
    recording: tuple[str, ...] = ()
    """Recordings to remove; the name of an imported list means all of its recordings."""
    speaker: tuple[str, ...] = ()
    """Speakers to remove."""
    clip: tuple[str, ...] = ()
    """Ids of clips to remove."""
    missing: bool = False
    """Remove clips whose audio file is missing."""
    yes: bool = False
    """Remove without asking. Required without a terminal."""


class DataSpeakersSettings(Settings):
    """The speakers of a dataset."""

    dataset: DatasetFolder
    voices: Path | None = None
    """Chatterbox's base folder or ve.safetensors, to separate unlabelled recordings by voice."""
    rename: tuple[str, ...] = ()
    """OLD=NEW for each speaker to rename; the same NEW merges speakers."""


class QualitySettings(Settings):
    """Thresholds for rejecting clips. Nothing is ever deleted."""

    shortest: float = Field(0.8, ge=0)
    """Minimum length of a clip, in seconds."""
    longest: float = Field(20.0, gt=0)
    """Maximum length of a clip, in seconds."""
    slowest: float | None = Field(None, ge=0)
    """Minimum letters per second. Below: missing text or long silence. Default: from the clips of the language."""
    fastest: float | None = Field(None, gt=0)
    """Maximum letters per second. Above: text that is not spoken. Default: from the clips of the language."""
    silence: float = Field(0.6, gt=0, le=1)
    """Maximum share of a clip without speech."""
    pause: float = Field(2.0, gt=0)
    """Maximum pause inside a clip, in seconds."""
    snr: float = Field(12.0)
    """Minimum signal-to-noise ratio, in decibels."""
    clipped: float = Field(0.001, ge=0, le=1)
    """Maximum share of clipped samples."""
    bandwidth: float = Field(5_000.0, ge=0)
    """Minimum bandwidth in hertz. Telephone speech has 3,400, even if resampled to 24,000 Hz."""
    script: float = Field(0.6, ge=0, le=1)
    """Minimum share of letters in the script of the language."""
    outlier: float = Field(4.5, gt=0)
    """Maximum deviation of a clip's pace from its speaker's, in robust standard deviations."""
    same_text: int = Field(8, ge=1)
    """Maximum number of clips in which one speaker says the same sentence."""


class DataReportSettings(Settings):
    """The dataset to measure, and the thresholds."""

    dataset: DatasetFolder
    quality: QualitySettings = Field(default_factory=QualitySettings)
    take_back: tuple[str, ...] = ()
    """Ids of clips to use although they were rejected."""
    reject: tuple[str, ...] = ()
    """Ids of clips to reject."""
    voices: Path | None = None
    """Chatterbox's base folder or ve.safetensors: count voices with its voice encoder. Default: by pitch and timbre."""
    workers: WorkerCount = 0


class DataSplitSettings(Settings):
    """How to split into training, validation and test. Bad clips are rejected by `voxgraft data report`, not here."""

    dataset: DatasetFolder
    validation: float = Field(0.05, ge=0, lt=1)
    """Share of the hours for validation."""
    test: float = Field(0.05, ge=0, lt=1)
    """Share of the hours for testing."""
    by: SplitBy = "auto"
    """Unit of the split: recording, speaker, or part (of a recording). auto: recording, or part if there are few."""
    seed: int = Field(1, ge=0, le=MAX_SEED)
    """The same seed gives the same split."""


RecognizerName = Annotated[
    str, Field(description="Recognizer: built-in, whisper:SIZE, whisper:FOLDER, or 'command:PROGRAM ARGUMENTS {wav}'.")
]


class DataVerifySettings(Settings):
    """The dataset whose texts are compared with a recognizer's transcripts."""

    dataset: DatasetFolder
    recognizer: RecognizerName = "built-in"
    worst: float = Field(0.1, gt=0, le=1)
    """Share of the clips in the list of the worst. The list rejects nothing."""
    outlier: float = Field(4.5, gt=0)
    """Disagreement of text and transcript above which a clip is rejected as text-mismatch.

    In robust standard deviations above the median of the clips of its language.
    """


class _RecordingSettings(Settings):
    """Settings that `data align` and `data transcribe` share: how the clips are written."""

    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language of the recording."""
    recognizer: RecognizerName = "built-in"
    speaker: str | None = None
    """Speaker name. Default: the name of the recording."""
    family: FamilyName | None = None
    """Model family to train, which limits the length of clips."""
    rate: int = Field(24_000, ge=8_000, le=96_000)
    """Sample rate of the clips."""
    format: AudioFormat = "flac"
    """File format of the clips."""
    shortest: float = Field(1.0, gt=0, le=30)
    """Minimum length in seconds. Shorter clips are rejected."""
    longest: float | None = Field(None, gt=1, le=120)
    """Maximum length in seconds. Longer clips are rejected. Default: 15, or less if the family requires it."""
    workers: WorkerCount = 0


class DataAlignSettings(_RecordingSettings):
    """A recording, its text, and the dataset that gets the sentences."""

    recording: Path
    """Media file with one reading of the text."""
    text: Path
    """Text file. Sentences end at marks such as . ! ? ። and at empty lines."""
    dataset: DatasetFolder
    threshold: float = Field(0.55, gt=0, lt=1)
    """Minimum share of a sentence's sounds that must be recognized at its place. Other sentences are rejected."""
    encoding: TextEncoding = None
    lead: float = Field(0.10, ge=0, le=1)
    """Seconds to keep before the first word."""
    tail: float = Field(0.15, ge=0, le=1)
    """Seconds to keep after the last word."""


class DataTranscribeSettings(_RecordingSettings):
    """Recordings without texts, and the dataset that gets the transcripts."""

    dataset: DatasetFolder
    recordings: tuple[Path, ...] = Field(min_length=1)
    """Media files."""
