"""The tokenizer by itself (ids, specials, tag), and against the base's: does old text still read the same?"""

from __future__ import annotations

from dataclasses import replace

from voxgraft.errors import Finding, finding
from voxgraft.families.base import Family
from voxgraft.findings.subject import CheckSubject
from voxgraft.spelling import TextEncoder, prove_text_encoder
from voxgraft.text.texts import TextCorpus
from voxgraft.tokenizers.base import Tokenizer
from voxgraft.tokenizers.flat_map import FlatMapTokenizer

_REPORTED_ELSEWHERE = frozenset({"tokenizer-flat-map", "tokenizer-gaps", "tag-splits"})
"""What a proof would say a second time."""


def tokenizer_findings(subject: CheckSubject) -> list[Finding]:
    """Everything that shows without the base: a flat map, gaps, moved specials, deleted ids, a tag that splits."""
    tokenizer, family, language = subject.tokenizer, subject.family, subject.settings.language
    if tokenizer is None:
        return []
    where = tokenizer.path
    findings: list[Finding] = []
    if isinstance(tokenizer, FlatMapTokenizer):
        found = f"{where.name} is a flat map of {len(tokenizer.ids):,} tokens to ids, without merges"
        findings.append(finding("tokenizer-flat-map", found, where=where))
    if tokenizer.gaps:
        found = (
            f"{len(tokenizer.ids):,} pieces, but ids up to {tokenizer.size - 1:,}: {len(tokenizer.gaps):,} ids "
            f"have no piece, the first is {tokenizer.gaps[0]:,}"
        )
        findings.append(finding("tokenizer-gaps", found, expected="ids without gaps", where=where))
    if family is not None:
        findings += _special_id_findings(tokenizer, family)
        tag = family.tag(language) if language and subject.grown is not None else None
        findings += _tag_findings(tokenizer, tag) if tag else []
    return findings


def tokenizer_proof_findings(subject: CheckSubject) -> list[Finding]:
    """Promise 1 on the built-in corpus and the user's own. What the new text itself becomes is another topic."""
    base, grown, family, settings = subject.base_tokenizer, subject.grown, subject.family, subject.settings
    if base is None or grown is None or family is None or grown.sha256 == base.sha256:
        return []
    spelling = TextEncoder.of(family, base, grown, settings.language, subject.rules)
    proof = prove_text_encoder(spelling, TextCorpus(()), settings.proof_texts)
    items = [item for item in proof.findings if item.code not in _REPORTED_ELSEWHERE]
    return [replace(item, where=item.where or str(grown.path)) for item in items]


def _special_id_findings(tokenizer: Tokenizer, family: Family) -> list[Finding]:
    where = tokenizer.path
    findings: list[Finding] = []
    moved = {piece: at for piece, at in family.special_ids.items() if tokenizer.ids.get(piece) != at}
    if moved:
        now = ", ".join(f"{piece} is {_format_piece_id(tokenizer, piece)}" for piece in moved)
        expected = ", ".join(f"{piece} on {at}" for piece, at in moved.items())
        findings.append(finding("special-ids-moved", now, expected=expected, where=where))
    own = {at: piece for piece, at in family.special_ids.items()}
    for at in sorted(family.deleted_ids):
        piece = tokenizer.pieces[at] if at < tokenizer.size else None
        if piece is not None and piece != own.get(at):
            found = f"{piece!r} has id {at}, which the stock program deletes from every text"
            findings.append(finding("piece-on-deleted-id", found, where=where))
    return findings


def _format_piece_id(tokenizer: Tokenizer, piece: str) -> str:
    return f"on {tokenizer.ids[piece]}" if piece in tokenizer.ids else "not there"


def _tag_findings(tokenizer: Tokenizer, tag: str) -> list[Finding]:
    if tokenizer.has_control_token(tag):
        return []
    spelled = " ".join(map(tokenizer.shown, tokenizer.encode(tag)))
    there = "is a piece but no added token, and is" if tag in tokenizer.ids else "is not in the tokenizer, and is"
    found = f"the tag {tag} {there} spelled as {spelled}"
    return [finding("tag-splits", found, expected="one token", where=tokenizer.path)]
