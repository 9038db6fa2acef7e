"""Finding the family and the tokenizer that a path means: a base folder, or one tokenizer file."""

from __future__ import annotations

from pathlib import Path

from voxgraft.errors import FileError, TokenizerError
from voxgraft.families import family, family_names, family_of
from voxgraft.families.base import Family
from voxgraft.files import is_folder, is_there
from voxgraft.graft_folder import rules_beside
from voxgraft.spelling import Spelling
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer


def base_folder(given: Path) -> Path:
    """The folder that was named, or the built-in base of a family for the family's name, where no such folder is."""
    if str(given) in family_names() and not is_there(given):
        return family(str(given)).shipped() or given
    return given


def base_family(folder: Path, name: str | None) -> Family:
    """The family of a base folder: the one that was named, else the one whose files are there."""
    return family(name) if name else family_of(folder)


def base_tokenizer(path: Path, name: str | None) -> tuple[Family, Tokenizer]:
    """Family and tokenizer of a base folder (the built-in one by its name), or of a tokenizer file by itself."""
    path = base_folder(path)
    if is_folder(path):
        found, file = _tokenizer_in(path, name)
        return found, open_tokenizer(file)
    tokenizer = open_tokenizer(path)
    return (family(name) if name else _family_of_tokenizer(tokenizer)), tokenizer


def spelling_of(path: Path, name: str | None, grown: Path | None, language: str | None) -> Spelling:
    """The spelling of a base (folder or tokenizer file) with an optional grown tokenizer."""
    found, base = base_tokenizer(path, name)
    rules = rules_beside(grown) if grown else None
    return Spelling.of(found, base, open_tokenizer(grown) if grown else None, language, rules)


def _tokenizer_in(folder: Path, name: str | None) -> tuple[Family, Path]:
    """The tokenizer of a whole base, or the one that lies in a folder by itself, without its gigabytes."""
    try:
        found = base_family(folder, name)
        return found, found.files(folder).tokenizer
    except FileError:
        families = [family(name)] if name else list(map(family, family_names()))
        alone = [(each, folder / file) for each in families for file in each.tokenizer_names if is_there(folder / file)]
        if len({path for _, path in alone}) != 1:
            raise
        # Families may call their tokenizers alike; what stands in the file tells them apart.
        return alone[0] if len(alone) == 1 else (_family_of_tokenizer(open_tokenizer(alone[0][1])), alone[0][1])


def _family_of_tokenizer(tokenizer: Tokenizer) -> Family:
    """The one family whose special pieces stand on their ids here; an error if that is none or several."""
    fitting = [
        candidate
        for candidate in map(family, family_names())
        if all(tokenizer.ids.get(piece) == at for piece, at in candidate.special_ids.items())
    ]
    if len(fitting) != 1:
        found = f"{tokenizer.path.name} ({tokenizer.kind}) has the special ids of {len(fitting)} families"
        raise TokenizerError("tokenizer-family", found, expected="exactly one", where=tokenizer.path)
    return fitting[0]
