"""Names of the files in an export, and the format that its card states."""

from __future__ import annotations

__all__ = ["EXPORT_CARD_NAME", "EXPORT_FORMAT", "EXPORT_README_NAME", "LOADER_NAME", "UNHASHED_FILES"]

EXPORT_FORMAT = "voxgraft-export-1"
EXPORT_CARD_NAME, EXPORT_README_NAME, LOADER_NAME = "export.json", "README.md", "load.py"
UNHASHED_FILES = (EXPORT_CARD_NAME, EXPORT_README_NAME, ".gitattributes")
"""Files without a hash in the card: itself, the page, which people and hubs edit, and what a hub adds of its own."""
