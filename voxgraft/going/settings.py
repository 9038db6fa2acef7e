"""What `run_pipeline` can be told. The docstring under a field is its help."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from voxgraft.exchange_settings import ExportKind
from voxgraft.run_settings import RunSettings

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
    most: int = Field(100, ge=2)
    """Of `evaluate`: sentences of each language, at most. Another number: done again."""
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
