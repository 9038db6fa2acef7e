"""What a folder is that is sent or received: a graft or an export, whole, with the hashes that its card states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from voxgraft.errors import GraftError
from voxgraft.exporting.names import CARD_NAME as EXPORT_CARD
from voxgraft.exporting.names import FORMAT as EXPORT_FORMAT
from voxgraft.exporting.terms import Terms, read_terms
from voxgraft.files import existing_folder, is_file, read_json, sha256_of
from voxgraft.graft_folder import CARD_NAME as GRAFT_CARD
from voxgraft.graft_folder import open_graft

__all__ = ["Contents", "contents_of"]

ADAPTER_CARD = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found in a folder."""

    kind: str
    """graft, export or adapter."""
    language: str
    family: str
    terms: Terms | None
    num_bytes: int
    base: str = ""
    """What it has to be used with, in words."""


def contents_of(folder: Path) -> Contents:
    """The folder's contents, checked; an error if it is nothing that is shared, or not whole."""
    existing_folder(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    terms = read_terms(folder)
    if is_file(folder / GRAFT_CARD):
        card = open_graft(folder).card
        base = f"{card.base.get('checkpoint')} with sha256 {str(card.base.get('checkpoint_sha256'))[:12]}"
        return Contents("graft", card.language, card.family, terms, size, base)
    if is_file(folder / EXPORT_CARD):
        language, family = _whole_export(folder)
        return Contents("export", language, family, terms, size)
    if is_file(folder / ADAPTER_CARD):
        from voxgraft.peft_folder import read_peft_folder  # needs torch, which takes seconds

        read_peft_folder(folder)
        return Contents("adapter", "", "", terms, size)
    found = f"{folder.name} holds neither {GRAFT_CARD} nor {EXPORT_CARD}"
    raise GraftError("share-nothing", found, expected="a graft, or what `voxgraft export` wrote", where=folder)


def _whole_export(folder: Path) -> tuple[str, str]:
    """Language and family of an export whose checkpoints are the ones that its card names."""
    card = read_json(folder / EXPORT_CARD)
    if not isinstance(card, dict) or card.get("format") != EXPORT_FORMAT:
        raise GraftError("share-broken", f"{EXPORT_CARD} has no format {EXPORT_FORMAT!r}", where=folder)
    parts = card.get("checkpoints")
    for part, written in (parts if isinstance(parts, dict) else {}).items():
        place = folder if card.get("drop_in") else folder / str(part)
        path = place / str(written.get("file"))
        if not path.resolve().is_relative_to(folder.resolve()) or not is_file(path):
            raise GraftError("share-broken", f"{part}/{written.get('file')} is not there", where=folder)
        if (actual := sha256_of(path)) != written.get("sha256"):
            expected = f"{str(written.get('sha256'))[:12]}, as {EXPORT_CARD} says"
            raise GraftError("share-broken", f"{path.name} has sha256 {actual[:12]}", expected=expected, where=folder)
    return str(card.get("language")), str(card.get("family"))
