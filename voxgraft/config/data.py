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
    """Recordings, their texts, and how to cut them into clips."""

    dataset: Path
    """Folder of the dataset. If it exists, the clips are added to it."""
    sources: tuple[Path, ...] = Field(min_length=1)
    """Folders or files to import: subtitles with media, metadata.csv, Kaldi, TextGrid, parquet and others."""
    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language of the recordings. It selects the text rules."""
    media: Path | None = None
    """If only one subtitle file is imported and its recording has another name: the recording."""
    family: FamilyName | None = None
    """Model family that will be trained. It limits the length of clips."""
    rate: int = Field(24_000, ge=8_000, le=96_000)
    """Sample rate of the clips, in hertz. 24,000 suits every family."""
    format: AudioFormat = "flac"
    """File format of the clips."""
    encoding: TextEncoding = None
    speaker: str | None = None
    """Name of the speaker, if there is only one. Default: the names in the sources, else as set by --speaker-from."""
    speaker_from: SourceSpeaker = "auto"
    reimport: bool = False
    """Import changed sources again. Unchanged clips keep their ids and splits."""
    max_left_out: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Maximum share of unusable lines in the sources, and of unusable sources. If either share is above "
        "this maximum, the exit code is 1.",
    )
    cut: CutMethod = "pauses"
    """Places to cut: pauses (at the best pause near the subtitle times) or times (at exactly these times)."""
    activity: VadBackend = "energy"
    """Voice activity detection: energy, or silero (a neural model, for films with loud music)."""
    shortest: float = Field(1.0, gt=0, le=30)
    """Minimum length of a clip, in seconds. Shorter subtitles are joined with their neighbours."""
    longest: float | None = Field(None, gt=1, le=120)
    """Maximum length of a clip, in seconds. Longer ones are split at pauses. Default: 15, or less for some families."""
    lead: float = Field(0.10, ge=0, le=1)
    """Silence to keep before the first word, in seconds."""
    tail: float = Field(0.15, ge=0, le=1)
    """Silence to keep after the last word, in seconds."""
    join_gap: float = Field(0.6, ge=0, le=3)
    """Two subtitles are joined if the pause between them is at most this long, in seconds."""
    rolling: bool = True
    """Remove repeated lines of rolling captions (automatic captions that show each line twice)."""
    fold_homophones: bool = False
    """Amharic: write one letter for letters that sound alike."""
    workers: WorkerCount = 0


class DataListSettings(Settings):
    """A dataset, or a folder with several."""

    folder: Path
    """Folder of a dataset, to list its recordings; or a folder with datasets, to list them."""


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
    """Folder of the merged dataset. If it exists, the clips are added to it."""
    sets: tuple[Path, ...] = Field(min_length=1)
    """Folders of the datasets to merge. They are not changed."""
    used_only: bool = False
    """Leave out rejected clips."""


class DataRemoveSettings(Settings):
    """The clips to remove."""

    dataset: DatasetFolder
    recording: tuple[str, ...] = ()
    """Names of recordings to remove. The name of an imported transcript list removes all recordings in it."""
    speaker: tuple[str, ...] = ()
    """Names of speakers to remove."""
    clip: tuple[str, ...] = ()
    """Ids of clips to remove."""
    missing: bool = False
    """Remove all clips whose audio file is missing."""
    yes: bool = False
    """Remove without asking. Required without a terminal."""


class DataSpeakersSettings(Settings):
    """The speakers of a dataset."""

    dataset: DatasetFolder
    voices: Path | None = None
    """Folder of Chatterbox's base, or its ve.safetensors: a voice encoder that tells speakers without names apart."""
    rename: tuple[str, ...] = ()
    """Names to change, each as OLD=NEW. Speakers that get the same NEW are merged."""


class QualitySettings(Settings):
    """Thresholds for rejecting clips. Nothing is ever deleted."""

    shortest: float = Field(0.8, ge=0)
    """Minimum length of a clip, in seconds."""
    longest: float = Field(20.0, gt=0)
    """Maximum length of a clip, in seconds."""
    slowest: float | None = Field(None, ge=0)
    """Minimum letters per second. Slower clips lack text or have long silence. Default: computed from all clips."""
    fastest: float | None = Field(None, gt=0)
    """Maximum letters per second. Faster clips have text that is not spoken. Default: computed from all clips."""
    silence: float = Field(0.6, gt=0, le=1)
    """Maximum share of a clip that is not speech."""
    pause: float = Field(2.0, gt=0)
    """Maximum pause inside a clip, in seconds."""
    snr: float = Field(12.0)
    """Minimum signal-to-noise ratio, in decibels."""
    clipped: float = Field(0.001, ge=0, le=1)
    """Maximum share of clipped samples."""
    bandwidth: float = Field(5_000.0, ge=0)
    """Minimum bandwidth, in hertz. Telephone speech has about 3,400, at any sample rate."""
    script: float = Field(0.6, ge=0, le=1)
    """Minimum share of a text's letters that belong to the script of the language."""
    outlier: float = Field(4.5, gt=0)
    """Maximum difference between a clip's pace and its speaker's median pace, in robust standard deviations."""
    same_text: int = Field(8, ge=1)
    """Maximum number of clips of one speaker with the same sentence."""


class DataReportSettings(Settings):
    """The dataset to measure, and the thresholds."""

    dataset: DatasetFolder
    quality: QualitySettings = Field(default_factory=QualitySettings)
    take_back: tuple[str, ...] = ()
    """Ids of rejected clips to use anyway."""
    reject: tuple[str, ...] = ()
    """Ids of clips to reject."""
    voices: Path | None = None
    """Folder of Chatterbox's base, to count voices with its voice encoder. Default: count by pitch and timbre."""
    workers: WorkerCount = 0


class DataSplitSettings(Settings):
    """Sizes of the splits, and which clips stay together."""

    dataset: DatasetFolder
    validation: float = Field(0.05, ge=0, lt=1)
    """Share of the recorded time for validation."""
    test: float = Field(0.05, ge=0, lt=1)
    """Share of the recorded time for testing."""
    by: SplitBy = Field(
        "auto",
        description="Unit that stays whole in one split: recording, speaker, or part (a section of a recording). auto: "
        "recording, or part if there are too few recordings.",
    )
    seed: int = Field(1, ge=0, le=MAX_SEED)
    """Seed of the random choice. The same seed gives the same split."""


RecognizerName = Annotated[
    str, Field(description="Speech recognizer: built-in, whisper:SIZE, whisper:FOLDER, or 'command:PROGRAM {wav}'.")
]


class DataVerifySettings(Settings):
    """The dataset, the recognizer and the limits."""

    dataset: DatasetFolder
    recognizer: RecognizerName = "built-in"
    worst: float = Field(0.1, gt=0, le=1)
    """Share of the clips to list: those whose texts fit the audio worst. --outlier decides which clips are rejected."""
    outlier: float = Field(
        4.5,
        gt=0,
        description="Reject a clip if its text and transcript differ more than in other clips of the language: by more "
        "than this many robust standard deviations above the median difference.",
    )


class _RecordingSettings(Settings):
    """Settings that `data align` and `data transcribe` share: how the clips are written."""

    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language of the recordings."""
    recognizer: RecognizerName = "built-in"
    speaker: str | None = None
    """Name of the speaker. Default: the name of the recording."""
    family: FamilyName | None = None
    """Model family that will be trained. It limits the length of clips."""
    rate: int = Field(24_000, ge=8_000, le=96_000)
    """Sample rate of the clips, in hertz."""
    format: AudioFormat = "flac"
    """File format of the clips."""
    shortest: float = Field(1.0, gt=0, le=30)
    """Minimum length of a clip, in seconds. Shorter clips are rejected."""
    longest: float | None = Field(None, gt=1, le=120)
    """Maximum length of a clip, in seconds. Longer clips are rejected. Default: 15, or less for some families."""
    workers: WorkerCount = 0


class DataAlignSettings(_RecordingSettings):
    """The recording, its text, and the dataset for the clips."""

    recording: Path
    """Audio or video file in which the text is read once."""
    text: Path
    """Text file. Sentences end at punctuation such as . ! ? ። and at empty lines."""
    dataset: DatasetFolder
    threshold: float = Field(
        0.55,
        gt=0,
        lt=1,
        description="Minimum share of a sentence's sounds that the recognizer must find in the part of the recording "
        "that belongs to the sentence. Sentences below it are rejected.",
    )
    encoding: TextEncoding = None
    lead: float = Field(0.10, ge=0, le=1)
    """Silence to keep before the first word, in seconds."""
    tail: float = Field(0.15, ge=0, le=1)
    """Silence to keep after the last word, in seconds."""


class DataTranscribeSettings(_RecordingSettings):
    """The recordings, and the dataset for the clips."""

    dataset: DatasetFolder
    recordings: tuple[Path, ...] = Field(min_length=1)
    """Audio or video files."""
