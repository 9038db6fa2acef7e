"""Names of the files in an export, and the format that its card states."""

from __future__ import annotations

__all__ = ["CARD_NAME", "FORMAT", "LOADER_NAME", "README_NAME"]

FORMAT = "voxgraft-export-1"
CARD_NAME, README_NAME, LOADER_NAME = "export.json", "README.md", "load.py"
