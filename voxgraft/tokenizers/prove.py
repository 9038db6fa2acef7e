"""Checks promise 1: base text is encoded as before by the extended tokenizer, and the new language is encoded in full.

Also judges tokenizers that others extended. Takes front ends as functions; knows nothing about families or files.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

from voxgraft.core import progress
from voxgraft.core.errors import Finding, Level, VoxgraftError, finding
from voxgraft.core.languages import (
    MAX_STRAY_SHARE,
    MIN_CERTAIN_SCRIPT_SHARE,
    count_letters_by_script,
    describe_character,
    find_language_scripts,
    is_letter,
    is_script_letter,
    script_of,
)
from voxgraft.core.results import Line, Table, style_line
from voxgraft.tokenizers import WORD_START, Tokenizer
from voxgraft.tokenizers.formats import (
    BpeJsonTokenizer,
    FlatMapTokenizer,
    SentencePieceTokenizer,
    describe_moved_tokens,
)
from voxgraft.tokenizers.train import TextPreprocessor, occurs_only_at_word_start, survives_preprocessing

# A family's front end: text and language code to tokenizer input, with the tag where the base has it.
TaggedTextPreprocessor = Callable[[str, str | None], str]

# A sentence that the original program cannot read has no ids that could change.
UNREAD_CODES = ("text-unread", "package-missing")


@dataclass(slots=True)
class ProofCounts:
    """How the sentences of the base languages fared. `changed` must be 0."""

    same: int = 0
    base_unknown: int = 0
    """The base itself could not spell them in full."""
    holds_tag: int = 0
    """They hold the new language's tag literally."""
    changed: int = 0
    base_unknown_moved: int = 0
    """Of `base_unknown`: those that the extended tokenizer encodes differently."""
    base_unknown_better: int = 0
    """Of `base_unknown_moved`: those with fewer unknown tokens than before."""
    unread: int = 0
    """Not compared and not in the total: the original program refuses them, or a package to read them is missing."""

    @property
    def total(self) -> int:
        return self.same + self.base_unknown + self.holds_tag + self.changed


@dataclass(frozen=True, slots=True)
class TokenizerCoverage:
    """How one tokenizer encodes the new language's text."""

    sentences: int
    characters: int
    tokens: int
    unknown: int
    unknown_characters: int
    """One unknown token can replace many characters in a row, so these are counted on their own."""

    @property
    def unknown_share(self) -> float:
        return self.unknown / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_character(self) -> float:
        return self.tokens / self.characters if self.characters else 0.0


@dataclass(frozen=True, slots=True)
class TokenizerProof:
    """Everything that `prove` found. It holds when there is no finding of level error."""

    base_size: int
    grown_size: int
    counts: ProofCounts
    by_language: dict[str, ProofCounts]
    first_change: dict[str, Any] | None
    """The first sentence that the two spell differently: `language`, `text`, and the pieces of `base` and `grown`."""
    before: TokenizerCoverage | None
    after: TokenizerCoverage | None
    unreachable: tuple[str, ...]
    unknown_characters: dict[str, int]
    findings: tuple[Finding, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Old text reads the same, and the new language is spelled in full."""
        return not any(item.level == "error" for item in self.findings)

    @property
    def exit_code(self) -> int:
        return 0 if self.holds else 1

    @property
    def old_text_same(self) -> bool:
        """Promise 1 alone."""
        moving = ("proof-changed", "tokenizer-not-grown", "tokenizer-kind", "tokenizer-flat-map")
        return not any(item.code in moving for item in self.findings)

    def to_json(self) -> dict[str, Any]:
        def plain(value: Any) -> Any:
            return {name: getattr(value, name) for name in value.__slots__} if value is not None else None

        return {
            "holds": self.holds,
            "old_text_same": self.old_text_same,
            "base_pieces": self.base_size,
            "grown_pieces": self.grown_size,
            "sentences": {**plain(self.counts), "total": self.counts.total},
            "by_language": {code: plain(counts) for code, counts in self.by_language.items()},
            "first_change": self.first_change,
            "new_text_before": plain(self.before),
            "new_text_after": plain(self.after),
            "unreachable_pieces": list(self.unreachable),
            "unknown_characters": self.unknown_characters,
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        counts = self.counts
        status = ("yes", "bold green") if self.old_text_same else ("NO", "bold red")
        lines: list[Line] = [
            style_line("old text is encoded as before: ", status),
            Table(
                ("base sentences", "same", "unknown to the base", "contain the tag", "changed"),
                (
                    tuple(
                        f"{n:,}"
                        for n in (counts.total, counts.same, counts.base_unknown, counts.holds_tag, counts.changed)
                    ),
                ),
            ),
        ]
        if counts.base_unknown:
            still = counts.base_unknown - counts.base_unknown_moved
            worse = counts.base_unknown_moved - counts.base_unknown_better
            lines.append(
                f"{counts.base_unknown:,} contain characters that the base cannot encode: {still:,} keep their ids, "
                f"{counts.base_unknown_better:,} have fewer unknown tokens now, {worse:,} are encoded differently"
            )
        if self.before is not None and self.after is not None:
            lines.append(
                Table(
                    ("new language", "tokens", "unknown", "share", "unknown characters", "tokens per character"),
                    tuple(
                        (
                            name,
                            *(f"{count:,}" for count in (stats.tokens, stats.unknown)),
                            f"{stats.unknown_share:.1%}",
                            f"{stats.unknown_characters:,}",
                            f"{stats.tokens_per_character:.2f}",
                        )
                        for name, stats in (("before", self.before), ("after", self.after))
                    ),
                )
            )
        lines.append(f"tokens that can never occur: {len(self.unreachable):,}")
        for item in self.findings:
            lines += item.lines()
        return lines


@dataclass(frozen=True, slots=True)
class NewLanguageText:
    """The new language: its sentences, its front without the tag, and its tag if it has one."""

    sentences: Sequence[str]
    prepare: TextPreprocessor
    tag: str | None
    letters: str = ""
    """The letters that CLDR gives the language; a letter of another script is a sign to it, like any symbol."""
    front: TextPreprocessor = str
    """The same without the language's own text rules: the original program alone."""


def prove_tokenizer(
    base: Tokenizer,
    grown: Tokenizer,
    corpus: Iterable[tuple[str | None, str]],
    front: TaggedTextPreprocessor,
    new: NewLanguageText,
) -> TokenizerProof:
    """Encode the corpus with both tokenizers, id by id, and the new language's text before and after."""
    overall, by_language, first, unread = _compare_tokenizers(base, grown, corpus, front, new.tag)
    before = after = None
    unknown: Counter[str] = Counter()
    if new.sentences:
        before, _ = measure_coverage(base, new)
        after, unknown = measure_coverage(grown, new)
    unreachable = find_unreachable_pieces(base, grown, new)
    dead: tuple[str, ...] = ()
    if unreachable:
        # An error only for pieces that the upstream program itself destroys. Others exist for text that our rules
        # write differently, such as digits in a tokenizer that somebody else extended.
        lost = find_unreachable_pieces(base, grown, replace(new, prepare=new.front))
        dead = tuple(piece for piece in lost if not occurs_only_at_word_start(grown, new.front, piece))
    changes = []
    if first is not None:
        found = f"{overall.changed:,} of {overall.total:,} base sentences are encoded differently"
        pairs = enumerate(zip(first["base"], first["grown"], strict=False))
        start = next((at for at, (old, now) in pairs if old != now), 0)
        was, became = (" ".join(one[max(0, start - 2) : start + 6]) for one in (first["base"], first["grown"]))
        found += f"; in the first, {first['text']!r}, ... {was} ... became ... {became} ..."
        changes.append(finding("proof-changed", found, expected="0 changed"))
    findings = [
        *check_tokenizer_structure(base, grown, new.tag),
        *changes,
        *(finding("proof-unread", f"{language}: {found}") for language, found in unread.items()),
    ]
    if after is not None and after.unknown:
        # Letters of the language without a piece are an error; symbols and letters of other scripts are not.
        letters = find_unknown_letters(grown, unknown, new)
        others = [character for character in unknown if character not in letters]
        for code, signs in (("proof-unknown-letters", letters), ("proof-unknown-symbols", others)):
            if signs:
                listed = "; ".join(f"{describe_character(sign)} ({unknown[sign]:,}×)" for sign in signs[:3])
                more = f" and {len(signs) - 3:,} more" if len(signs) > 3 else ""
                found = f"{after.unknown:,} of {after.tokens:,} tokens of the new language are unknown: {listed}{more}"
                findings.append(finding(code, found, expected="0"))
    unused = tuple(piece for piece in unreachable if piece not in dead)
    levels: tuple[tuple[Level, tuple[str, ...]], ...] = (("error", dead), ("warning", unused))
    for level, pieces in levels:
        if pieces:
            found = f"{len(pieces):,} added tokens can never occur in text: {' '.join(pieces[:5])}"
            findings.append(finding("proof-unreachable", found, expected="0", level=level))
    findings += check_word_boundaries(new)
    return TokenizerProof(
        base.size,
        grown.size,
        overall,
        by_language,
        first,
        before,
        after,
        unreachable,
        dict(unknown.most_common()),
        tuple(findings),
    )


def _compare_tokenizers(
    base: Tokenizer,
    grown: Tokenizer,
    corpus: Iterable[tuple[str | None, str]],
    front: TaggedTextPreprocessor,
    tag: str | None,
) -> tuple[ProofCounts, dict[str, ProofCounts], dict[str, Any] | None, dict[str, str]]:
    """Counts over all and by language, the first change, and by language why its first unread sentence is not read."""
    overall = ProofCounts()
    unread: dict[str, str] = {}
    by_language: dict[str, ProofCounts] = {}
    first: dict[str, Any] | None = None
    sentences = list(corpus)
    with progress.progress_task("testing that old text is encoded as before", len(sentences)) as advance:
        for language, text in sentences:
            counts = by_language.setdefault(language or "other", ProofCounts())
            try:
                prepared = front(text, language)
            except VoxgraftError as error:
                if error.finding.code not in UNREAD_CODES:
                    raise
                counts.unread += 1
                overall.unread += 1
                unread.setdefault(language or "other", error.finding.found)
                advance(1)
                continue
            old, new = base.encode(prepared), grown.encode(prepared)
            if base.unknown_id in old:
                name = "base_unknown"
            elif old == new:
                name = "same"
            else:
                name = "holds_tag" if tag is not None and tag in prepared else "changed"
            for each in (overall, counts):
                setattr(each, name, getattr(each, name) + 1)
                if name == "base_unknown" and old != new:
                    each.base_unknown_moved += 1
                    each.base_unknown_better += new.count(grown.unknown_id) < old.count(base.unknown_id)
            if name == "changed" and first is None:
                pieces = {"base": tuple(map(base.shown, old)), "grown": tuple(map(grown.shown, new))}
                first = {"language": language, "text": text, **pieces}
            advance(1)
    return overall, by_language, first, unread


def measure_coverage(tokenizer: Tokenizer, new: NewLanguageText) -> tuple[TokenizerCoverage, Counter[str]]:
    """How a tokenizer encodes the new language, and the characters that it cannot encode."""
    tokens = unknown = characters = 0
    missing: Counter[str] = Counter()
    with progress.progress_task(f"encoding the new language with {tokenizer.path.name}", len(new.sentences)) as advance:
        for sentence in new.sentences:
            prepared = new.prepare(sentence)
            ids = tokenizer.encode(prepared)
            characters += len(sentence)
            tokens += len(ids)
            if tokenizer.unknown_id in ids:
                unknown += ids.count(tokenizer.unknown_id)
                missing.update(tokenizer.unknown_text(prepared))
            advance(1)
    return TokenizerCoverage(len(new.sentences), characters, tokens, unknown, missing.total()), missing


def find_unreachable_pieces(base: Tokenizer, grown: Tokenizer, new: NewLanguageText) -> tuple[str, ...]:
    """Added pieces that cannot occur: the front end destroys them, or the tokenizer encodes their text otherwise."""
    dead: list[str] = []
    for token in range(base.size, grown.size):
        piece = grown.pieces[token]
        if piece is None or token in grown.control_ids:
            continue
        text = piece.replace(WORD_START, " ").strip()
        reached = survives_preprocessing(grown, new.prepare, text) and grown.encode_exact(piece) == [token]
        if reached and WORD_START not in piece and occurs_only_at_word_start(grown, new.prepare, piece):
            # The front end always writes a space before it, so only its encoding with a space occurs.
            reached = token in grown.encode(new.prepare(f"{text} q {text}."))
        if not reached:
            dead.append(piece)
    return tuple(dead)


def check_word_boundaries(new: NewLanguageText) -> list[Finding]:
    """Spaces between words that the front end loses because it separates every character of some scripts."""

    @cache
    def runs_together(letter: str) -> bool:
        return is_letter(letter) and new.prepare(f"{letter}{letter}.") == new.prepare(f"{letter} {letter}.")

    total = lost = 0
    letters: Counter[str] = Counter()
    for sentence in new.sentences:
        for before, after in pairwise(sentence.split()):
            total += 1
            if runs_together(before[-1]) and runs_together(after[0]):
                lost += 1
                letters[script_of(after[0])] += 1
    if not lost:
        return []
    names = ", ".join(script.replace("_", " ") for script, _ in letters.most_common(3))
    found = f"{lost:,} of {total:,} spaces between words are lost, because {names} text is split into single characters"
    return [finding("text-word-boundaries", found)]


def check_tokenizer_structure(base: Tokenizer, grown: Tokenizer, tag: str | None) -> list[Finding]:
    """Whether the extended tokenizer is the base's with pieces appended, and the tag is one token."""
    findings: list[Finding] = []
    where = grown.path
    if isinstance(grown, FlatMapTokenizer):
        found = f"{grown.path.name} is a flat map of {len(grown.ids):,} tokens to ids, without merges"
        findings.append(finding("tokenizer-flat-map", found, where=where))
    elif grown.kind != base.kind:
        found = f"{grown.path.name} is {grown.kind}, the base is {base.kind}"
        findings.append(finding("tokenizer-kind", found, where=where))
    if isinstance(grown, BpeJsonTokenizer) and grown.lost_unknown is not None:
        at = grown.ids[grown.lost_unknown]
        found = f"{where.name} has no unk_token, although it has the token {grown.lost_unknown} (id {at})"
        cure = f'write "unk_token": "{grown.lost_unknown}" into the section `model` of {where.name}.'
        findings.append(finding("unknown-token-lost", found, where=where, cure=cure))
    if isinstance(grown, BpeJsonTokenizer) and grown.moved_tokens:
        findings.append(finding("tokenizer-duplicate-id", describe_moved_tokens(grown.moved_tokens), where=where))
    moved = [at for at in range(base.size) if at >= grown.size or base.pieces[at] != grown.pieces[at]]
    if moved:
        at = moved[0]
        found = f"{len(moved):,} of {base.size:,} base ids changed; "
        found += f"id {at} was {base.shown(at)!r} and is now {grown.shown(at)!r}"
        kept = [piece for piece in base.pieces if piece is not None]
        if base.gaps and list(grown.pieces[: len(kept)]) == kept:
            found += (
                f"; the new numbering skipped ids without a token, and the base has {len(base.gaps)} such ids "
                f"(the first is {base.gaps[0]})"
            )
        findings.append(finding("tokenizer-not-grown", found, where=where))
    elif (
        isinstance(base, SentencePieceTokenizer)
        and isinstance(grown, SentencePieceTokenizer)
        and base.scores != grown.scores[: base.size]
    ):
        findings.append(finding("tokenizer-not-grown", "scores of base tokens were changed", where=where))
    # Holes of the base stay: filling one would move nothing, but its row means nothing that is known.
    if gaps := sorted({*grown.gaps} - {*base.gaps}):
        found = f"{len(gaps):,} ids have no token, the first is {gaps[0]}"
        findings.append(finding("tokenizer-gaps", found, where=where))
    if tag is not None and not grown.has_control_token(tag):
        found = f"{tag} is encoded as {' '.join(map(grown.shown, grown.encode(tag)))}"
        findings.append(finding("tag-splits", found, expected="one token", where=where))
    return findings


def find_unknown_letters(grown: Tokenizer, unknown: Mapping[str, int], new: NewLanguageText) -> list[str]:
    """Of the characters that became unknown, the letters that the language is written in."""
    seen = Counter(character for text in new.sentences for character in text)
    scripts = find_language_scripts(new.letters, seen, MIN_CERTAIN_SCRIPT_SHARE)
    cases = new.letters + new.letters.upper()
    known = frozenset(unicodedata.normalize("NFC", cases) + unicodedata.normalize("NFKD", cases))
    stray = MAX_STRAY_SHARE * count_letters_by_script(seen).total() if known else 0
    own = (
        character
        for character, count in unknown.items()
        if is_script_letter(character, scripts) and (character in known or count >= stray)
    )
    # A letter that the front end would have written otherwise comes from a sign, such as the o of №.
    return [character for character in own if survives_preprocessing(grown, new.prepare, character)]
