"""A tokenizer of the base's own size for the new language alone: ids that the language never uses carry its pieces.

Stock software that has its number of rows in code loads it as it is. The languages whose ids were taken are gone there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from voxgraft.core import progress
from voxgraft.core.errors import GraftError
from voxgraft.core.languages import find_exemplar, find_language_scripts, is_letter, script_of
from voxgraft.export.sources import ExportSource
from voxgraft.graft.folder import TEXT_FOLDER, TEXT_RULES_NAME
from voxgraft.text import TextFrontend
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import TextRules
from voxgraft.tokenizers import parse_tokenizer
from voxgraft.tokenizers.base import Tokenizer, read_texts
from voxgraft.tokenizers.formats import BpeJsonTokenizer

# Added tokens by rank: placeholders first, then keys of Chinese characters, tags of other languages last. Tokens for
# sounds are kept.
_REUSABLE_TOKENS = {
    0: re.compile(r"\[PLACEHOLDER\d*\]"),
    2: re.compile(r"\[cj_.\]"),
    4: re.compile(r"\[[a-z]{2,3}\]"),
}
_TYPED_TAG = re.compile(r"\[[a-z]{2,3}(?:-[a-z0-9]+)*\]")
# Latin words stand in every language's texts.
KEPT_SCRIPTS = ("Latin", "Common", "Inherited")
# A script with this share of a language's letters is one of its own.
OWN_SCRIPT_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class DropInTokenizer:
    """The tokenizer file, and at which old id each new one stands."""

    data: bytes
    places: dict[int, int]
    replaced_pieces: tuple[str, ...]
    """Pieces of the base that are no more."""
    num_reusable_ids: int
    """Ids that the language does not use, taken or not."""
    num_proven_sentences: int
    """Sentences of the new language that are spelled alike, id for id."""


def build_drop_in_tokenizer(source: ExportSource) -> DropInTokenizer:
    """Reuse ids, and prove on the language's own texts that it reads as before."""
    base, grown = source.base_tokenizer, source.graft.tokenizer
    if not isinstance(base, BpeJsonTokenizer):
        raise GraftError("drop-in-family", f"a tokenizer of the kind {base.kind}", expected="one of Chatterbox's")
    spelling = TextEncoder.of(source.family, base, grown, source.language, source.graft.card.rules)
    sentences = _collect_sentences(source)
    used = _find_used_ids(spelling, sentences)
    free = [one for one in _find_reusable_ids(base, source, sentences) if one not in used]
    new = range(base.size, grown.size)
    if len(free) < len(new):
        found = f"{len(new):,} new pieces, and the base has {len(free):,} ids that the language does not use"
        raise GraftError("drop-in-no-room", found, where=source.graft.folder)
    places = dict(zip(new, free, strict=False))
    data = _build_tokenizer_json(base, grown, places)
    tokenizer = parse_tokenizer(data, Path(base.path.name))
    if tokenizer.size != base.size:
        raise GraftError("drop-in-moved", f"{tokenizer.size:,} ids", expected=f"{base.size:,}")
    proven = _prove_encoding(spelling, tokenizer, places, sentences)
    return DropInTokenizer(data, places, tuple(base.shown(one) for one in places.values()), len(free), proven)


def _collect_sentences(source: ExportSource) -> list[str]:
    """The run's own texts; without a run, every piece and letter by itself."""
    entry = find_exemplar(source.language)
    letters = list(entry.letters) if entry else []
    if source.texts:
        return [*letters, *read_texts(source.texts).sentences]
    tokenizer = source.graft.tokenizer
    whole = tokenizer.control_ids
    pieces = [tokenizer.pieces[one] for one in range(source.graft.card.base_pieces, tokenizer.size) if one not in whole]
    return [*letters, *(piece for piece in pieces if piece)]


def _find_used_ids(spelling: TextEncoder, sentences: Sequence[str]) -> set[int]:
    """Ids in any text of the run: one that is taken although a single sentence needs it would be lost."""
    used: set[int] = set()
    with progress.progress_task("ids that the language uses", len(sentences)) as advance:
        for text in sentences:
            used.update(spelling.encode(text, spelling.language))
            advance(1)
    return used


def _find_reusable_ids(base: BpeJsonTokenizer, source: ExportSource, sentences: Iterable[str]) -> Iterator[int]:
    """Ids that carry nothing the language needs, those first that nobody misses."""
    seen = Counter(character for text in sentences for character in text)
    entry = find_exemplar(source.language)
    own = {*find_language_scripts(entry.letters if entry else "", seen, OWN_SCRIPT_SHARE), *KEPT_SCRIPTS}
    fixed = {*source.family.special_ids.values(), source.family.start_id, source.family.stop_id, base.unknown_id}
    front = source.family.front(base.path)
    by_kind: dict[int, list[int]] = {}
    for at, piece in enumerate(base.pieces):
        if piece is None or at in fixed:
            continue
        if at in base.control_ids:
            kind = next((rank for rank, pattern in _REUSABLE_TOKENS.items() if pattern.fullmatch(piece)), None)
        else:
            kind = _piece_rank(piece, own, front)
        if kind is not None:
            by_kind.setdefault(kind, []).append(at)
    for kind in sorted(by_kind):
        yield from by_kind[kind]


def _piece_rank(piece: str, own: set[str], front: TextFrontend) -> int | None:
    """Pieces that no text can become, since the front writes them otherwise; then letters of other scripts."""
    if front.prepare(piece, None) != piece:
        return 1
    letters = [character for character in piece if is_letter(character)]
    foreign = bool(letters) and all(script_of(character) not in own for character in letters)
    return 3 if foreign and len(letters) == len(piece) else None


def _build_tokenizer_json(base: BpeJsonTokenizer, grown: Tokenizer, places: dict[int, int]) -> bytes:
    """The grown file with its new pieces at reused ids, and without the pieces that stood there."""
    document = json.loads(grown.data)
    gone = {base.pieces[one] for one in places.values()}
    model = document["model"]
    # No merge of a piece that is gone could ever act in a text of the language.
    pairs = [(merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    model["merges"] = [merge for merge, (left, right) in pairs if gone.isdisjoint((left, right, left + right))]
    vocab = {piece: places.get(at, at) for piece, at in model["vocab"].items() if piece not in gone}
    model["vocab"] = dict(sorted(vocab.items(), key=lambda item: item[1]))
    added = [
        {**token, "id": places.get(token["id"], token["id"])}
        for token in document["added_tokens"]
        if token["content"] not in gone
    ]
    document["added_tokens"] = sorted(added, key=lambda token: int(token["id"]))
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def _prove_encoding(
    spelling: TextEncoder, tokenizer: Tokenizer, places: dict[int, int], sentences: Sequence[str]
) -> int:
    """Every sentence as the stock program is given it, with the tag typed in front, against voxgraft's own spelling."""
    language, tag = spelling.language, spelling.tag or ""
    proven = 0
    for text in sentences:
        if _TYPED_TAG.search(text.lower()):
            continue  # voxgraft breaks up a tag that stands inside a text; the stock program does not
        expected = [places.get(one, one) for one in spelling.encode(text, language)]
        text = spelling.rules.apply(text)
        text = text[0].upper() + text[1:] if text[:1].islower() else text  # as `prepared` of the export does
        text = text.strip()
        found = tokenizer.encode(spelling.front.prepare(spelling.front.clean(tag + text), None))
        if found != expected:
            told = f"{text[:60]!r} is spelled {found[:12]}"
            raise GraftError("drop-in-moved", told, expected=f"{expected[:12]}")
        proven += 1
    return proven


TEXT_PACKAGE = "voxgraft.text.normalize"
# What `rules` needs, and it itself.
TEXT_PACKAGE_MODULES = ("amharic", "base", "ethiopic", "generic", "reader", "rules", "tigrinya")
_INIT_TEMPLATE = '''"""How text was normalised in training, for use without voxgraft. Part of voxgraft, Apache-2.0.

    from voxgraft_text import prepared
    prepared("...")  # text of the new language, as the original program has to be given it

Needs `regex`{needs}.
"""

import json
from pathlib import Path

{imports}

RULES = TextRules.from_json(json.loads((Path(__file__).parent / "{rules_name}").read_text(encoding="utf-8")))
RULES.require_edition()


def prepared(text):
    """Text of the new language as the original program has to be given it. Preparing it twice changes nothing."""
{body}
'''


def build_text_package(rules: TextRules, body: str, modules: Mapping[str, str]) -> dict[str, str]:
    """The files of the package, by their place in the export.

    `body` is what `prepared` does, by the family; `modules` are sources of the family's own that it imports.
    """
    imports = [f"from .{name} import *" for name in modules] + ["from .rules import TextRules"]
    needs = " and `num2words`" if rules.numbers else ""
    folder = resources.files(TEXT_PACKAGE)
    files: dict[str, str] = {}
    for name in TEXT_PACKAGE_MODULES:  # the export must not need voxgraft: all imports become relative
        source = folder.joinpath(f"{name}.py").read_text(encoding="utf-8")
        source = source.replace(f"from {TEXT_PACKAGE}.", "from .").replace(
            f"from {TEXT_PACKAGE} import", "from . import"
        )
        assert f"import {TEXT_PACKAGE}" not in source
        assert "from voxgraft" not in source
        files[f"{name}.py"] = source
    files |= {f"{name}.py": source for name, source in modules.items()}
    start = _INIT_TEMPLATE.format(
        imports="\n".join(sorted(imports)), rules_name=TEXT_RULES_NAME, body=body, needs=needs
    )
    files["__init__.py"] = start
    files[TEXT_RULES_NAME] = json.dumps(rules.to_json(), ensure_ascii=False, indent=2) + "\n"
    return {f"{TEXT_FOLDER}/{name}": text for name, text in files.items()}
