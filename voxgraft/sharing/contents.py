"""What a folder is that is sent or received: a graft or an export, whole, with the hashes that its card states."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import GraftError
from voxgraft.exporting.folder import EMPTY_SHA256
from voxgraft.exporting.names import EXPORT_CARD_NAME as EXPORT_CARD
from voxgraft.exporting.names import EXPORT_FORMAT as EXPORT_FORMAT
from voxgraft.exporting.names import UNHASHED_FILES
from voxgraft.exporting.terms import TERMS_NAME, ShareTerms, read_terms
from voxgraft.families import family_names
from voxgraft.files import compute_sha256, is_file, read_json, require_folder
from voxgraft.graft_folder import ADAPTER_NAME, README_NAME, ROWS_NAME, load_graft
from voxgraft.graft_folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.run_settings import LANGUAGE_PATTERN

__all__ = ["SharedFolder", "inspect_shared_folder"]

ADAPTER_CARD = "adapter_config.json"
ADAPTER_FILES = (ADAPTER_CARD, "adapter_model.safetensors", ROWS_NAME, "tokenizer.json", "bpe.model")
"""What `voxgraft export --to peft` writes."""
TOKENIZER_ENDINGS = (".json", ".model")
DOCUMENT_NAMES = (README_NAME, TERMS_NAME, "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", ".gitattributes")
"""Text for people, and what a hub adds by itself."""


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """What was found in a folder."""

    kind: str
    """graft, export or adapter."""
    language: str
    family: str
    terms: ShareTerms | None
    num_bytes: int
    base: str = ""
    """What it has to be used with, in words."""
    programs: tuple[str, ...] = ()
    """Files that run when somebody uses it."""
    others: tuple[str, ...] = ()
    """Files that lie in the folder and are no part of it. Nothing says what they are, so they are not shared."""


def inspect_shared_folder(folder: Path) -> SharedFolder:
    """The folder's contents, checked; an error if it is nothing that is shared, or not whole."""
    require_folder(folder)
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    size = sum(path.stat().st_size for path in files.values())
    terms = read_terms(folder)
    if is_file(folder / GRAFT_CARD):
        card = load_graft(folder).card
        base = f"{card.base.get('checkpoint')} with sha256 {str(card.base.get('checkpoint_sha256'))[:12]}"
        odd = [name for name in card.adapter or () if name not in ADAPTER_FILES]
        odd += [card.tokenizer] if Path(card.tokenizer).suffix not in TOKENIZER_ENDINGS else []
        if odd:
            found = f"{GRAFT_CARD} names {odd[0]!r:.80}, which no graft has"
            raise GraftError("share-broken", found, expected=", ".join(ADAPTER_FILES), where=folder)
        named = {GRAFT_CARD, ROWS_NAME, card.tokenizer, *(f"{ADAPTER_NAME}/{name}" for name in card.adapter or ())}
        others = _unlisted_files(files, named)
        size -= sum(files[name].stat().st_size for name in others)
        return SharedFolder("graft", card.language, card.family, terms, size, base, others=others)
    if is_file(folder / EXPORT_CARD):
        language, family = _verify_export(folder)
        programs = tuple(path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.py")))
        return SharedFolder("export", language, family, terms, size, programs=programs)
    if is_file(folder / ADAPTER_CARD):
        from voxgraft.peft_folder import read_peft_folder  # needs torch, which takes seconds

        read_peft_folder(folder)
        others = _unlisted_files(files, ADAPTER_FILES)
        size -= sum(files[name].stat().st_size for name in others)
        return SharedFolder("adapter", "", "", terms, size, others=others)
    found = f"{folder.name} holds neither {GRAFT_CARD} nor {EXPORT_CARD}"
    raise GraftError("share-nothing", found, expected="a graft, or what `voxgraft export` wrote", where=folder)


def _unlisted_files(files: Iterable[str], named: Collection[str]) -> tuple[str, ...]:
    """Files beside those that are named and pages for people."""
    return tuple(sorted(name for name in files if name not in named and name not in DOCUMENT_NAMES))


def _verify_export(folder: Path) -> tuple[str, str]:
    """Language and family of an export whose files are exactly those that its card names, byte for byte."""
    card = read_json(folder / EXPORT_CARD)
    if not isinstance(card, dict) or card.get("format") != EXPORT_FORMAT:
        raise GraftError("share-broken", f"{EXPORT_CARD} has no format {EXPORT_FORMAT!r}", where=folder)
    files, language, family = card.get("files"), card.get("language"), card.get("family")
    if not isinstance(language, str) or not re.fullmatch(LANGUAGE_PATTERN, language) or family not in family_names():
        found = f"{EXPORT_CARD} names the language {language!r:.40} and the family {family!r:.40}"
        raise GraftError("share-broken", found, where=folder)
    if not isinstance(files, dict) or not files or not all(isinstance(digest, str) for digest in files.values()):
        raise GraftError("share-broken", f"{EXPORT_CARD} has no hashes of the files", where=folder)
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted({*files, *there}.difference(UNHASHED_FILES)):
        _require_same_hash(name, files.get(name), there.get(name), folder)
    if not _checkpoint_paths(card) <= files.keys():
        raise GraftError("share-broken", f"{EXPORT_CARD} names no checkpoint with a hash", where=folder)
    return language, str(family)


def _require_same_hash(name: str, digest: str | None, path: Path | None, folder: Path) -> None:
    if path is None:
        raise GraftError("share-broken", f"{name!r:.80} is not there", where=folder)
    if digest is None:
        raise GraftError("share-broken", f"{name!r:.80} is there, and {EXPORT_CARD} does not name it", where=folder)
    actual = compute_sha256(path) if path.stat().st_size else EMPTY_SHA256
    if actual != digest:
        expected = f"{digest[:12]}, as {EXPORT_CARD} says"
        raise GraftError("share-broken", f"{name!r:.80} has sha256 {actual[:12]}", expected=expected, where=folder)


def _checkpoint_paths(card: dict[str, Any]) -> set[str]:
    """Places of the checkpoints that a card names; a place that no file has where it names none."""
    parts = card.get("checkpoints")
    if not isinstance(parts, dict) or not parts:
        return {""}
    names = {part: one.get("file") if isinstance(one, dict) else None for part, one in parts.items()}
    return {str(name) if card.get("drop_in") else f"{part}/{name}" for part, name in names.items()}
