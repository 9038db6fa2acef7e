"""Names of the files in an export, and the format that its card states."""

from __future__ import annotations

__all__ = ["CARD_NAME", "FORMAT", "LOADER_NAME", "README_NAME", "UNHASHED"]

FORMAT = "voxgraft-export-1"
CARD_NAME, README_NAME, LOADER_NAME = "export.json", "README.md", "load.py"
UNHASHED = (CARD_NAME, README_NAME, ".gitattributes")
"""Files without a hash in the card: itself, the page, which people and hubs edit, and what a hub adds of its own."""
