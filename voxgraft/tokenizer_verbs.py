"""The verbs `tokenizer train | merge | prove | show`: files in, files and reports out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.bases import base_tokenizer, spelling_of
from voxgraft.errors import TokenizerError
from voxgraft.families.base import Family
from voxgraft.files import replacing
from voxgraft.results import Line, Table, styled
from voxgraft.settings import (
    TokenizerMergeSettings,
    TokenizerProveSettings,
    TokenizerShowSettings,
    TokenizerTrainSettings,
)
from voxgraft.spelling import Spelling
from voxgraft.text.characters import exemplar, named
from voxgraft.text.texts import Texts, proof_corpus, read_texts, user_corpus
from voxgraft.tokenizers import prove as proving
from voxgraft.tokenizers import tokenizer_from
from voxgraft.tokenizers.base import Additions, Tokenizer
from voxgraft.tokenizers.prove import Coverage, Proof
from voxgraft.tokenizers.train import CharacterPlan, Learnt, learn


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
    family, base = base_tokenizer(settings.base, settings.family)
    texts = read_texts(settings.texts)
    spelling = Spelling.of(family, base, None, settings.language)
    learnt = learn_language(spelling, texts, settings.tokenizer)
    learnt.additions.save(settings.output, overwrite=settings.overwrite)
    return TrainResult(learnt.additions, learnt.plan, texts, settings.output)


def learn_language(spelling: Spelling, texts: Texts, settings: Any) -> Learnt:
    """What a language adds to the base of a spelling."""
    base, language = spelling.base, spelling.language
    assert language is not None
    tag = spelling.tag if spelling.tag and not base.has_whole(spelling.tag) else None
    header = Additions(spelling.family.name, language, base.kind, base.sha256, tag, ())
    return learn(base, spelling.prepare, texts.sentences, header, settings)


def merge(settings: TokenizerMergeSettings) -> MergeResult:
    """Append additions to the base's tokenizer; every old id stays."""
    family, base = base_tokenizer(settings.base, settings.family)
    additions = Additions.load(settings.additions)
    grown = merged(family, base, additions, settings.additions)
    with replacing(settings.output, overwrite=settings.overwrite) as stream:
        stream.write(base.grown(additions))
    return MergeResult(base, grown, settings.output)


def merged(family: Family, base: Tokenizer, additions: Additions, where: Path) -> Tokenizer:
    """The grown tokenizer in memory, after checking that the additions belong to this base."""
    if additions.base_sha256 != base.sha256 or additions.kind != base.kind:
        found = f"learnt on a base with sha256 {additions.base_sha256[:12]}, this one has {base.sha256[:12]}"
        raise TokenizerError("additions-other-base", found, where=where)
    if additions.family != family.name:
        found = f"learnt for family {additions.family}, this base is {family.name}"
        raise TokenizerError("additions-other-base", found, where=where)
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


def prove_spelling(spelling: Spelling, texts: Texts, proof_texts: tuple[Path, ...]) -> Proof:
    """The proof for one base and one grown tokenizer over the built-in corpus and the user's own."""
    assert spelling.grown is not None

    def corpus() -> Iterator[tuple[str | None, str]]:
        yield from proof_corpus()
        yield from user_corpus(proof_texts, frozenset(spelling.family.languages))

    new = spelling.new_text(texts.sentences)
    return proving.prove(spelling.base, spelling.grown, corpus(), spelling.prepare_base, new)


def show(settings: TokenizerShowSettings) -> ShowResult:
    """Spell sentences piece by piece, old against new."""
    spelling = spelling_of(settings.base, settings.family, settings.grown, settings.language)

    def pieces(tokenizer: Tokenizer, ids: list[int]) -> tuple[tuple[str, int, bool], ...]:
        return tuple((tokenizer.shown(token), token, token == tokenizer.unknown_id) for token in ids)

    shown = []
    for text in settings.text:
        prepared = spelling.prepare_base(text, settings.language)
        old = pieces(spelling.base, spelling.base.encode(prepared))
        new = None
        if spelling.grown is not None:
            new = pieces(spelling.grown, spelling.encode(text, settings.language))
        shown.append(Shown(text, prepared, old, new))
    return ShowResult(tuple(shown))


def additions_json(additions: Additions, plan: CharacterPlan) -> dict[str, Any]:
    """Counts for machines."""
    return {
        "language": additions.language,
        "tag": additions.tag,
        "new_characters": len(additions.characters),
        "new_pieces": len(additions.merges),
        "new_rows": len(additions),
        "whole_scripts": list(plan.whole_scripts),
        "left_unknown": plan.left_unknown,
    }


def additions_lines(additions: Additions, plan: CharacterPlan, texts: Texts) -> list[Line]:
    """What a language adds, for people."""
    entry = exemplar(additions.language)
    name = entry.name if entry else additions.language
    lines: list[Line] = [f"{name}: {len(texts.sentences):,} sentences"]
    if texts.repeated or texts.renormalised:
        lines.append(f"  {texts.repeated:,} repeated lines left out, {texts.renormalised:,} brought into NFC")
    if not additions.pieces:
        tag = f"the tag {additions.tag}" if additions.tag else "nothing"
        lines.append(f"  the base has every letter of {name} already: {tag} is added, and no piece")
    else:
        scripts = f" (all of {', '.join(plan.whole_scripts)})" if plan.whole_scripts else ""
        tag = f", the tag {additions.tag}" if additions.tag else ""
        lines.append(f"  {len(additions.characters):,} characters{scripts}, {len(additions.merges):,} pieces{tag}")
    if plan.left_unknown:
        signs = "; ".join(f"{named(sign)} ({count:,}×)" for sign, count in list(plan.left_unknown.items())[:6])
        more = f" and {len(plan.left_unknown) - 6} more" if len(plan.left_unknown) > 6 else ""
        lines.append(f"  left unknown, since they are not the language's own: {signs}{more}")
    return lines


def proof_lines(proof: Proof) -> list[Line]:
    """A proof, for people."""
    counts = proof.counts
    kept = ("kept", "bold green") if proof.old_text_same else ("BROKEN", "bold red")
    lines: list[Line] = [
        styled("promise 1, old text reads the same: ", kept),
        Table(
            ("base sentences", "same", "base had unknowns", "hold the tag", "changed"),
            (
                tuple(
                    f"{n:,}" for n in (counts.total, counts.same, counts.base_unknown, counts.holds_tag, counts.changed)
                ),
            ),
        ),
    ]
    if proof.before is not None and proof.after is not None:
        lines.append(
            Table(
                ("new language", "tokens", "unknown", "share", "tokens per character"),
                (_coverage_row("before", proof.before), _coverage_row("after", proof.after)),
            )
        )
    lines.append(f"pieces that can never occur: {len(proof.unreachable):,}")
    for item in proof.findings:
        lines += item.lines()
    return lines


def _coverage_row(name: str, coverage: Coverage) -> tuple[str, ...]:
    share = f"{coverage.unknown_share:.1%}"
    return name, f"{coverage.tokens:,}", f"{coverage.unknown:,}", share, f"{coverage.tokens_per_character:.2f}"


def _spelled_line(title: str, pieces: tuple[tuple[str, int, bool], ...]) -> Line:
    parts: list[str | tuple[str, str]] = [f"  {title} ({len(pieces)}): "]
    for piece, token, unknown in pieces:
        parts += [(f"{piece}·{token}" if not unknown else f"??·{token}", "bold red" if unknown else ""), " "]
    return styled(*parts)
