"""What `diagnose`, `repair` and `bundle` can be told. The docstring under a field is its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from voxgraft.config import Settings
from voxgraft.run_settings import LANGUAGE_PATTERN, MAX_SEED, FamilyName, RowSettings

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


class BundleSettings(Settings):
    """The run that others are asked about."""

    run: Path
    """Folder of the run."""
    output: Path | None = None
    """The zip file. Empty: NAME-bundle.zip in the current folder."""
    overwrite: bool = False
    """Replace the zip file if it is there."""
