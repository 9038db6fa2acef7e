"""Checks of tokenizers and of the user's own text.

Tokenizer: gaps, special ids, the language tag, promise 1. Text: on which rows its tokens fall, which characters have no
piece, digits that no rule spells out, and three sentences in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from voxgraft.core import progress
from voxgraft.core.errors import Finding, finding
from voxgraft.core.languages import describe_character
from voxgraft.core.run import RunFolder
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.selection import resolve_manifest_path
from voxgraft.graft.folder import GRAFT_CARD_NAME
from voxgraft.inspect.subject import CheckSubject
from voxgraft.models.base import Family
from voxgraft.text.encoder import TextEncoder, check_text_language, prove_text_encoder
from voxgraft.text.normalize import TextRules
from voxgraft.tokenizers.base import WORD_START, TextCorpus, Tokenizer
from voxgraft.tokenizers.formats import FlatMapTokenizer
from voxgraft.tokenizers.prove import check_word_boundaries, find_unknown_letters

_NUM_EXAMPLES = 3
_MAX_NAMED_CHARACTERS = 10
# Tokens; a longer sentence is cut, so that a report stays readable.
_MAX_SHOWN_TOKENS = 60


def text_findings(subject: CheckSubject) -> list[Finding]:
    """Shares, unknown characters with their counts, and three sentences piece by piece."""
    texts, spelling, tokenizer = subject.texts, subject.spelling, subject.tokenizer
    if texts is None or spelling is None or tokenizer is None:
        return []
    counts: Counter[int] = Counter()
    unknown: Counter[str] = Counter()
    with progress.progress_task("spelling the texts", len(texts.sentences)) as advance:
        for sentence in texts.sentences:
            ids = encode_sentence(spelling, sentence)
            counts.update(ids)
            if tokenizer.unknown_id in ids:
                unknown.update(tokenizer.unknown_text(text_for_tokenizer(spelling, sentence)))
            advance(1)
    where = ", ".join(map(str, subject.text_paths))
    # The first, the middle and the last sentence in full.
    last = len(texts.sentences) - 1
    chosen = dict.fromkeys(round(at * last / (_NUM_EXAMPLES - 1)) for at in range(_NUM_EXAMPLES)) if last >= 0 else {}
    examples = []
    for sentence in (texts.sentences[at] for at in chosen):
        pieces = format_pieces(tokenizer, encode_sentence(spelling, sentence))
        examples.append(finding("text-spelled", f"{sentence!r:.200} is {pieces}"))
    return [
        *check_word_boundaries(spelling.new_text(texts.sentences)),
        *digit_findings(spelling.rules, texts.sentences, where),
        *(check_text_language(spelling.language, texts.sentences) if spelling.language else []),
        *_text_share_findings(subject, counts, where),
        *_unknown_character_findings(subject, unknown, counts[tokenizer.unknown_id], where),
        *examples,
    ]


def text_rule_findings(subject: CheckSubject) -> list[Finding]:
    """Whether the graft states its text rules, and whether the clips were imported by the same ones."""
    graft, run = subject.graft, subject.run
    if graft is None:
        return []
    if graft.card.text is None:
        return [finding("text-rules-missing", f"{GRAFT_CARD_NAME} states no text rules", where=graft.folder)]
    if run is None:
        return []
    manifest = resolve_manifest_path(subject.settings.data.dataset, RunFolder(run).data)
    used = {
        str(rules.get("text"))
        for journal in DatasetFolder(manifest.parent).journals()
        if isinstance(rules := (journal.source or {}).get("rules"), dict)
        and (journal.source or {}).get("options", {}).get("language") == graft.card.language
    }
    other = sorted(used - {graft.card.rules.identity})
    if not other:
        return []
    found = f"clips were imported with the rules {', '.join(other)}"
    return [finding("text-rules-import", found, expected=graft.card.rules.identity, where=manifest.parent)]


def digit_findings(rules: TextRules, sentences: Sequence[str], where: str = "") -> list[Finding]:
    """Digits that the text rules leave in sentences."""
    left = [sentence for sentence in sentences if any(map(str.isdecimal, rules.normalizer.normalise(sentence).text))]
    if not left:
        return []
    shown = next(part for part in rules.normalizer.normalise(left[0]).text.split() if any(map(str.isdecimal, part)))
    found = f"{len(left):,} of {len(sentences):,} texts keep digits, the first {shown!r:.40}"
    return [finding("text-digits", found, where=where)]


def encode_sentence(spelling: TextEncoder, sentence: str) -> list[int]:
    """Ids of a sentence of the new language, with its tag where the language is known and has one."""
    tokenizer = spelling.grown or spelling.base
    if spelling.language is not None and not isinstance(tokenizer, FlatMapTokenizer):
        return spelling.encode(sentence, spelling.language)
    return tokenizer.encode(text_for_tokenizer(spelling, sentence))


def text_for_tokenizer(spelling: TextEncoder, sentence: str) -> str:
    """What the tokenizer is given. The forks look the characters of a flat map up in the text as it stands."""
    return sentence if isinstance(spelling.grown, FlatMapTokenizer) else spelling.prepare(sentence)


def format_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """A spelling for people: pieces with their ids, unknowns marked."""
    parts = [f"{'??' if token == tokenizer.unknown_id else tokenizer.shown(token)}·{token}" for token in ids]
    more = f" ... ({len(parts):,} tokens)" if len(parts) > _MAX_SHOWN_TOKENS else ""
    return " ".join(parts[:_MAX_SHOWN_TOKENS]) + more


def _text_share_findings(subject: CheckSubject, counts: Counter[int], where: str) -> list[Finding]:
    tokenizer, pieces = subject.tokenizer, subject.base_pieces
    total = counts.total()
    if tokenizer is None or not total:
        return []
    unknown = counts[tokenizer.unknown_id]
    tail = f"{unknown / total:.1%} unknown ({unknown:,})"
    if pieces is None:
        return [finding("text-share", f"of {total:,} tokens {tail}; new rows: unknown without the base", where=where)]
    new = sum(count for token, count in counts.items() if token >= pieces)
    found = f"of {total:,} tokens {new / total:.1%} on new rows, {(total - new - unknown) / total:.1%} on base rows"
    findings = [finding("text-share", f"{found}, {tail}", where=where)]
    if not new and tokenizer.size > pieces:
        found = f"none of {total:,} tokens is on one of the {tokenizer.size - pieces:,} new rows"
        findings.append(finding("text-off-new-rows", found, where=where))
    return findings


def _unknown_character_findings(subject: CheckSubject, unknown: Counter[str], tokens: int, where: str) -> list[Finding]:
    """Letters and signs apart, as `prove` tells them: a letter of the language without a piece is an error."""
    texts, spelling, tokenizer = subject.texts, subject.spelling, subject.tokenizer
    if texts is None or spelling is None or tokenizer is None:
        return []
    own = frozenset(find_unknown_letters(tokenizer, unknown, spelling.new_text(texts.sentences)))
    findings: list[Finding] = []
    for code, letters in (("proof-unknown-letters", True), ("proof-unknown-symbols", False)):
        missing = [(sign, count) for sign, count in unknown.most_common() if (sign in own) == letters]
        missing = [(sign, count) for sign, count in missing if not sign.isspace() and sign != WORD_START]
        if not missing:
            continue
        listed = "; ".join(
            f"{describe_character(sign)} ({count:,}×)" for sign, count in missing[:_MAX_NAMED_CHARACTERS]
        )
        more = f"; and {len(missing) - _MAX_NAMED_CHARACTERS:,} more" if len(missing) > _MAX_NAMED_CHARACTERS else ""
        kind = "letters" if letters else "signs"
        found = f"{len(missing):,} {kind} of the text have no piece: {listed}{more} ({tokens:,} unknown tokens in all)"
        item = finding(code, found, expected="a piece for each", where=where)
        if subject.grown is None:  # the base is not meant to spell the new language yet
            item = replace(item, level="warning", cure="grow the tokenizer: `voxgraft graft RUN` gives them pieces.")
        findings.append(item)
    return findings


# What a proof would say a second time.
_REPORTED_ELSEWHERE = frozenset({"tokenizer-flat-map", "tokenizer-gaps", "tag-splits"})


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
        if tag and not tokenizer.has_control_token(tag):
            spelled = " ".join(map(tokenizer.shown, tokenizer.encode(tag)))
            there = "is a piece but no added token" if tag in tokenizer.ids else "is not in the tokenizer"
            found = f"the tag {tag} {there}, and is spelled as {spelled}"
            findings.append(finding("tag-splits", found, expected="one token", where=where))
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
        there = {piece: f"on {tokenizer.ids[piece]}" if piece in tokenizer.ids else "not there" for piece in moved}
        now = ", ".join(f"{piece} is {place}" for piece, place in there.items())
        expected = ", ".join(f"{piece} on {at}" for piece, at in moved.items())
        findings.append(finding("special-ids-moved", now, expected=expected, where=where))
    own = {at: piece for piece, at in family.special_ids.items()}
    for at in sorted(family.deleted_ids):
        piece = tokenizer.pieces[at] if at < tokenizer.size else None
        if piece is not None and piece != own.get(at):
            found = f"{piece!r} has id {at}, which the stock program deletes from every text"
            findings.append(finding("piece-on-deleted-id", found, where=where))
    return findings
