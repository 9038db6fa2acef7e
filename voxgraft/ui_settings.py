"""What `ui` can be told. The docstring under a field is its help, here and in the manual."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from voxgraft.config import Settings


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
