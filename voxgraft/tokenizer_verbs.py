"""The verbs `tokenizer train | merge | prove | show`: files in, files and reports out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.bases import base_tokenizer, spelling_of
from voxgraft.errors import TextError, TokenizerError
from voxgraft.families.base import Family
from voxgraft.files import is_text, replacing, require_free
from voxgraft.graft_folder import rules_beside
from voxgraft.normalising import rules_of
from voxgraft.reports import additions_json, additions_lines, proof_lines
from voxgraft.results import Line, styled
from voxgraft.settings import (
    TokenizerMergeSettings,
    TokenizerProveSettings,
    TokenizerShowSettings,
    TokenizerTrainSettings,
)
from voxgraft.spelling import Spelling, learn_language, prove_spelling
from voxgraft.text.texts import Texts, read_texts
from voxgraft.tokenizers import tokenizer_from
from voxgraft.tokenizers.base import Additions, Tokenizer
from voxgraft.tokenizers.prove import Proof
from voxgraft.tokenizers.train import CharacterPlan


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What was learnt and where it was written."""

    additions: Additions
    plan: CharacterPlan
    texts: Texts
    output: Path
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**additions_json(self.additions, self.plan), "output": str(self.output)}

    def lines(self) -> list[Line]:
        return [*additions_lines(self.additions, self.plan, self.texts), f"written to {self.output}"]


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The grown tokenizer's size and place."""

    base: Tokenizer
    grown: Tokenizer
    output: Path
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "base_pieces": self.base.size,
            "new_pieces": self.grown.size - self.base.size,
            "pieces": self.grown.size,
            "sha256": self.grown.sha256,
            "output": str(self.output),
        }

    def lines(self) -> list[Line]:
        new = self.grown.size - self.base.size
        return [
            f"{self.base.size:,} base pieces + {new:,} new = {self.grown.size:,}; every old id stays",
            f"written to {self.output} (sha256 {self.grown.sha256})",
        ]


@dataclass(frozen=True, slots=True)
class ProveResult:
    """A proof, as a verb's result: exit 1 when it does not hold."""

    proof: Proof

    @property
    def exit_code(self) -> int:
        return 0 if self.proof.holds else 1

    def to_json(self) -> dict[str, Any]:
        return self.proof.to_json()

    def lines(self) -> list[Line]:
        return proof_lines(self.proof)


@dataclass(frozen=True, slots=True)
class Shown:
    """One sentence, piece by piece: (piece, id, is unknown), by the base and by the grown tokenizer."""

    text: str
    prepared: str
    base: tuple[tuple[str, int, bool], ...]
    grown: tuple[tuple[str, int, bool], ...] | None


@dataclass(frozen=True, slots=True)
class ShowResult:
    """Sentences spelled old against new."""

    sentences: tuple[Shown, ...]
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"sentences": [{name: getattr(item, name) for name in item.__slots__} for item in self.sentences]}

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        for item in self.sentences:
            lines += [item.text, f"  read as: {item.prepared}", _spelled_line("base ", item.base)]
            if item.grown is not None:
                lines.append(_spelled_line("grown", item.grown))
        return lines


def train(settings: TokenizerTrainSettings) -> TrainResult:
    """Learn the characters and pieces that a base lacks for a language, and write them down."""
    require_free(settings.output, overwrite=settings.overwrite)
    family, base = base_tokenizer(settings.base, settings.family)
    texts = read_texts(settings.texts)
    own = settings.tokenizer
    rules = rules_of(settings.language, normalise=own.normalise, fold_homophones=own.fold_homophones)
    spelling = Spelling.of(family, base, None, settings.language, rules)
    learnt = learn_language(spelling, texts, settings.tokenizer)
    learnt.additions.save(settings.output, overwrite=settings.overwrite)
    return TrainResult(learnt.additions, learnt.plan, texts, settings.output)


def merge(settings: TokenizerMergeSettings) -> MergeResult:
    """Append additions to the base's tokenizer; every old id stays."""
    family, base = base_tokenizer(settings.base, settings.family)
    additions = Additions.load(settings.additions)
    grown = merged(family, base, additions, settings.additions)
    with replacing(settings.output, overwrite=settings.overwrite) as stream:
        stream.write(grown.data)
    return MergeResult(base, grown, settings.output)


def merged(family: Family, base: Tokenizer, additions: Additions, where: Path) -> Tokenizer:
    """The grown tokenizer in memory, after checking that the additions belong to this base."""
    if additions.base_sha256 != base.sha256 or additions.kind != base.kind:
        found = f"learnt on a base with sha256 {additions.base_sha256[:12]}, this one has {base.sha256[:12]}"
        raise TokenizerError("additions-other-base", found, where=where)
    if additions.family != family.name:
        found = f"learnt for family {additions.family}, this base is {family.name}"
        raise TokenizerError("additions-other-base", found, where=where)
    if additions.tag not in (None, family.tag(additions.language)):
        found = f"the tag of {additions.language} is {additions.tag!r:.40}"
        expected = family.tag(additions.language) or f"none: {family.name} has no tags"
        raise TokenizerError("additions-broken", found, expected=expected, where=where)
    names = [*([additions.tag] if additions.tag else []), *(piece.text for piece in additions.pieces)]
    if len(set(names)) != len(names) or any(name in base.ids for name in names):
        raise TokenizerError("additions-broken", "a piece stands twice, or the base has it already", where=where)
    for piece in additions.pieces:
        if not set(piece.text) - base.characters:
            found = f"piece {piece.text!r} holds no character that is new to the base"
            raise TokenizerError("additions-broken", found, where=where)
    return tokenizer_from(base.grown(additions), Path(f"{base.path.name} + {additions.language}"))


def prove(settings: TokenizerProveSettings) -> ProveResult:
    """Spell thousands of sentences of base languages with both tokenizers, id for id."""
    spelling = spelling_of(settings.base, settings.family, settings.grown, settings.language)
    texts = read_texts(settings.texts) if settings.texts else Texts(())
    return ProveResult(prove_spelling(spelling, texts, settings.proof_texts))


def show(settings: TokenizerShowSettings) -> ShowResult:
    """Spell sentences piece by piece, old against new."""
    spelling = spelling_of(settings.base, settings.family, settings.grown, settings.language)
    is_new = spelling.grown is not None and _is_new(settings, spelling.family)

    def pieces(tokenizer: Tokenizer, ids: list[int]) -> tuple[tuple[str, int, bool], ...]:
        return tuple((tokenizer.shown(token), token, token == tokenizer.unknown_id) for token in ids)

    shown = []
    for text in settings.text:
        if not is_text(text):  # bytes of the command line that are no character arrive as halves of one
            raise TextError("text-not-utf8", f"the sentence {text!a:.80} is not UTF-8", where="command line")
        prepared = spelling.prepare(text) if is_new else spelling.prepare_base(text, settings.language)
        old = pieces(spelling.base, spelling.base.encode(prepared))
        new = None
        if spelling.grown is not None:
            ids = spelling.encode(text, settings.language) if is_new else spelling.grown.encode(prepared)
            new = pieces(spelling.grown, ids)
        shown.append(Shown(text, prepared, old, new))
    return ShowResult(tuple(shown))


def _is_new(settings: TokenizerShowSettings, family: Family) -> bool:
    """Whether the language is the graft's own, which may be one that the base speaks too.

    Other languages keep the base's reading: the text rules are those of the new language.
    """
    if settings.language is None or settings.grown is None:
        return False
    stated = rules_beside(settings.grown)
    if stated is not None and stated.language:
        return stated.language.lower() == settings.language.lower()
    return settings.language not in family.languages


def _spelled_line(title: str, pieces: tuple[tuple[str, int, bool], ...]) -> Line:
    parts: list[str | tuple[str, str]] = [f"  {title} ({len(pieces)}): "]
    for piece, token, unknown in pieces:
        parts += [(f"{piece}·{token}" if not unknown else f"??·{token}", "bold red" if unknown else ""), " "]
    return styled(*parts)
