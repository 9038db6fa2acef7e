"""Finding the family and the tokenizer that a path means: a base folder, or one tokenizer file."""

from __future__ import annotations

from pathlib import Path

from voxgraft.errors import FileError, TokenizerError
from voxgraft.families import detect_family, family_names, get_family
from voxgraft.families.base import Family
from voxgraft.files import is_folder, path_exists
from voxgraft.graft_folder import find_text_rules
from voxgraft.spelling import TextEncoder
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer


def resolve_base_folder(path: Path) -> Path:
    """The folder that was named, or the built-in base of a family for the family's name, where no such folder is."""
    if str(path) in family_names() and not path_exists(path):
        return get_family(str(path)).shipped_folder() or path
    return path


def resolve_base_family(folder: Path, name: str | None) -> Family:
    """The family of a base folder: the one that was named, else the one whose files are there."""
    return get_family(name) if name else detect_family(folder)


def load_base_tokenizer(path: Path, name: str | None) -> tuple[Family, Tokenizer]:
    """Family and tokenizer of a base folder (the built-in one by its name), or of a tokenizer file by itself."""
    path = resolve_base_folder(path)
    if is_folder(path):
        found, file = _find_tokenizer_in(path, name)
        return found, open_tokenizer(file)
    tokenizer = open_tokenizer(path)
    return (get_family(name) if name else _detect_tokenizer_family(tokenizer)), tokenizer


def load_text_encoder(path: Path, name: str | None, grown: Path | None, language: str | None) -> TextEncoder:
    """The spelling of a base (folder or tokenizer file) with an optional grown tokenizer."""
    found, base = load_base_tokenizer(path, name)
    rules = find_text_rules(grown) if grown else None
    return TextEncoder.of(found, base, open_tokenizer(grown) if grown else None, language, rules)


def _find_tokenizer_in(folder: Path, name: str | None) -> tuple[Family, Path]:
    """The tokenizer of a whole base, or the one that lies in a folder by itself, without its gigabytes."""
    try:
        found = resolve_base_family(folder, name)
        return found, found.files(folder).tokenizer
    except FileError:
        families = [get_family(name)] if name else list(map(get_family, family_names()))
        alone = [
            (each, folder / file) for each in families for file in each.tokenizer_names if path_exists(folder / file)
        ]
        if len({path for _, path in alone}) != 1:
            raise
        # Families may call their tokenizers alike; what stands in the file tells them apart.
        return alone[0] if len(alone) == 1 else (_detect_tokenizer_family(open_tokenizer(alone[0][1])), alone[0][1])


def _detect_tokenizer_family(tokenizer: Tokenizer) -> Family:
    """The one family whose special pieces stand on their ids here; an error if that is none or several."""
    fitting = [
        candidate
        for candidate in map(get_family, family_names())
        if all(tokenizer.ids.get(piece) == at for piece, at in candidate.special_ids.items())
    ]
    if len(fitting) != 1:
        found = f"{tokenizer.path.name} ({tokenizer.kind}) has the special ids of {len(fitting)} families"
        raise TokenizerError("tokenizer-family", found, expected="exactly one", where=tokenizer.path)
    return fitting[0]
