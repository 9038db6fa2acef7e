"""What the verbs can be told that take a base in and give a graft out: download, companion, export, push, pull.

The docstring under a field is its help, here and in the manual; `settings.py` has the other verbs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from voxgraft.config import Settings
from voxgraft.run_settings import FamilyName

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
    anew: bool = False
    """Make it again although it is there."""


class ExportSettings(Settings):
    """What is given back to which program, and under which terms."""

    subject: Path
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
