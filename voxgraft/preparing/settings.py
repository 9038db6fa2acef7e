"""What `prepare` can be told. The docstring under a field is its help."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from voxgraft.run_settings import RunSettings

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
