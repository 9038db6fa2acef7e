"""What the `data` verbs can be told, `data text` apart. The docstring under a field is its help."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from voxgraft.config.base import Settings
from voxgraft.config.run import LANGUAGE_PATTERN, MAX_SEED, FamilyName, SpeakerSource

VadBackend = Literal["energy", "silero"]
CutMethod = Literal["pauses", "times"]
AudioFormat = Literal["flac", "wav"]
SplitBy = Literal["auto", "speaker", "recording", "stretch"]


class DataImportSettings(Settings):
    """Recordings with texts, and how clips are made of them."""

    dataset: Path
    """Folder of the dataset; one that is there is added to."""
    sources: tuple[Path, ...] = Field(min_length=1)
    """Folders or files: subtitles with their media, metadata.csv, JSON lines, sounds with texts beside, parquet."""
    language: str = Field(pattern=LANGUAGE_PATTERN)
    """Language that is spoken: it chooses how texts are cleaned and normalised."""
    media: Path | None = None
    """The media file of a single subtitle file whose name is another."""
    family: FamilyName | None = None
    """Kind of base that shall learn from it: clips are then no longer than it can hear."""
    rate: int = Field(24_000, ge=8_000, le=96_000)
    """Sampling rate of the clips. 24,000 serves every family; training itself hears 16,000."""
    format: AudioFormat = "flac"
    """File format of the clips."""
    encoding: str | None = None
    """Encoding of text files that are neither UTF-8 nor marked as UTF-16, such as windows-1252."""
    speaker: str | None = None
    """Name of the one speaker of everything; empty means: what the sources say, else what speaker_from says."""
    speaker_from: SpeakerSource = "auto"
    """Who speaks where a source names nobody: auto (one person per list, folder or film), folder, recording, file."""
    reimport: bool = False
    """Import sources again that changed, or that had other settings. Clips that stay the same keep id and side."""
    max_left_out: float = Field(0.2, ge=0, le=1)
    """Share of lines, or of sources, that may be left out (unreadable, missing, no text); beyond it, exit code 1."""
    cut: CutMethod = "pauses"
    """pauses: the edges of a clip move from the subtitle's times to the pauses around; times: they stay."""
    activity: VadBackend = "energy"
    """What tells speech from pauses: energy; silero also asks a model whether it is a voice (for loud music)."""
    shortest: float = Field(1.0, gt=0, le=30)
    """Seconds; subtitles that are shorter are joined with their neighbours."""
    longest: float | None = Field(None, gt=1, le=120)
    """Seconds; longer ones are parted at pauses. Empty means 15, or less where the family hears less."""
    lead: float = Field(0.10, ge=0, le=1)
    """Seconds kept before the first word, if the pause is long enough."""
    tail: float = Field(0.15, ge=0, le=1)
    """Seconds kept after the last word."""
    join_gap: float = Field(0.6, ge=0, le=3)
    """Longest pause, in seconds, over which two subtitles become one clip."""
    rolling: bool = True
    """Take out what captions show again, as captions that roll do."""
    fold_homophones: bool = False
    """Amharic: write one letter for those that sound alike."""
    workers: int = Field(0, ge=0, le=256)
    """Processes; 0 means one for each core."""


class DataListSettings(Settings):
    """A dataset, or a folder with several."""

    folder: Path
    """Folder of a dataset, whose recordings are listed; or a folder in which datasets lie."""


class DataInfoSettings(Settings):
    """The dataset to look at."""

    dataset: Path
    """Folder of the dataset."""
    problems: bool = False
    """Show every line of the sources that was not used as it stands, and why."""
    clips: bool = False
    """Show every clip."""


class DataMergeSettings(Settings):
    """Datasets that become one."""

    dataset: Path
    """Folder of the dataset that they are merged into; one that is there is added to."""
    sets: tuple[Path, ...] = Field(min_length=1)
    """Folders of the datasets; they stay as they are."""
    used_only: bool = False
    """Leave rejected clips behind."""


class DataRemoveSettings(Settings):
    """What is removed from a dataset."""

    dataset: Path
    """Folder of the dataset."""
    recording: tuple[str, ...] = ()
    """Recordings that go; the name of a list that was imported means all of its recordings."""
    speaker: tuple[str, ...] = ()
    """Speakers whose clips go."""
    clip: tuple[str, ...] = ()
    """Ids of clips that go."""
    missing: bool = False
    """Clips go whose sound file is not there."""
    yes: bool = False
    """Remove without asking. Where nobody can be asked nothing is removed without it."""


class DataSpeakersSettings(Settings):
    """Who speaks in a dataset."""

    dataset: Path
    """Folder of the dataset."""
    voices: Path | None = None
    """Chatterbox's base folder or its ve.safetensors: recordings without labels are parted by voice."""
    rename: tuple[str, ...] = ()
    """OLD=NEW for each speaker that gets another name; the same NEW makes several one."""


class QualitySettings(Settings):
    """Thresholds by which clips are rejected. Each can be moved; nothing is ever deleted."""

    shortest: float = Field(0.8, ge=0)
    """Seconds."""
    longest: float = Field(20.0, gt=0)
    """Seconds."""
    slowest: float = Field(3.0, ge=0)
    """Letters a second; fewer mean that text is missing or silence is long."""
    fastest: float = Field(30.0, gt=0)
    """Letters a second; more mean that the text is not all said."""
    fastest_syllables: float = Field(16.0, gt=0)
    """The same for Ethiopic and other scripts in which a letter is a syllable."""
    silence: float = Field(0.6, gt=0, le=1)
    """Largest share of a clip without speech."""
    pause: float = Field(2.0, gt=0)
    """Longest pause inside a clip, in seconds."""
    snr: float = Field(12.0)
    """Least decibels of speech above noise."""
    clipped: float = Field(0.001, ge=0, le=1)
    """Largest share of samples that are cut off."""
    bandwidth: float = Field(5_000.0, ge=0)
    """Least hertz; a telephone has 3,400, and a file at 24,000 Hz made from one still has no more."""
    script: float = Field(0.6, ge=0, le=1)
    """Least share of letters in the script of the language."""
    outlier: float = Field(4.5, gt=0)
    """How many times the usual spread the pace of a clip may be off, against its own speaker's."""
    same_text: int = Field(8, ge=1)
    """How often the same sentence of one speaker is used."""


class DataReportSettings(Settings):
    """The dataset that is measured, and the thresholds."""

    dataset: Path
    """Folder of the dataset."""
    quality: QualitySettings = Field(default_factory=QualitySettings)
    take_back: tuple[str, ...] = ()
    """Ids of clips that shall be used in spite of the reasons against them."""
    reject: tuple[str, ...] = ()
    """Ids of clips that shall not be used."""
    workers: int = Field(0, ge=0, le=256)
    """Processes; 0 means one for each core."""


class DataSplitSettings(Settings):
    """What is learnt from and what is held out."""

    dataset: Path
    """Folder of the dataset."""
    validation: float = Field(0.05, ge=0, lt=1)
    """Share of the hours to watch training by."""
    test: float = Field(0.05, ge=0, lt=1)
    """Share of the hours to judge the result by."""
    by: SplitBy = "auto"
    """What is never on two sides: recording, speaker, or stretch of a recording. auto: recording, or stretch if few."""
    seed: int = Field(1, ge=0, le=MAX_SEED)
    """The same seed gives the same split."""
