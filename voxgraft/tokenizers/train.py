"""Learns what a language adds to a base tokenizer: its characters, then merges (BPE over the texts).

Works on text that the family's own front end has prepared, so every learned piece can occur. Every merge contains a
new character: this is what keeps the encoding of base text unchanged (promise 1).
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from voxgraft.config.run import VocabularySettings
from voxgraft.core import progress
from voxgraft.core.languages import (
    JOINERS,
    MAX_STRAY_SHARE,
    MIN_SCRIPT_SHARE,
    SHARED_SCRIPTS,
    ZERO_WIDTH,
    Exemplar,
    can_be_new_token,
    count_letters_by_script,
    count_scripts,
    find_exemplar,
    find_language_scripts,
    is_letter,
    is_punctuation,
    is_script_letter,
    script_characters,
    script_of,
)
from voxgraft.tokenizers import WORD_START, NewPiece, Tokenizer, TokenizerAdditions, parse_tokenizer
from voxgraft.tokenizers.formats import SentencePieceTokenizer, SentencePieceUnigramTokenizer

# Between two units, so that no pair reaches across.
_UNIT_BOUNDARY = -1
# In place of the right half of a merged pair.
_MERGED_AWAY = -2
# A pair of piece numbers is stored as one integer: left * _PAIR_BASE + right.
_PAIR_BASE = 1 << 32


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Which merges may be learned, and how many."""

    new_characters: frozenset[str]
    num_pieces: int
    min_count: int
    max_characters: int

    def allow(self, text: str) -> bool:
        """A piece must contain a new character and be part of one word in one script."""
        if len(text) > self.max_characters or self.new_characters.isdisjoint(text):
            return False
        word = text.removeprefix(WORD_START)
        if not all(is_letter(character) or character in JOINERS for character in word):
            return False
        return len({script_of(character) for character in word} - SHARED_SCRIPTS) <= 1


def learn_merges(units: Mapping[tuple[str, ...], int], rules: MergeRules) -> list[NewPiece]:
    """The most frequent allowed merges, in order of application. Ties are decided by code point."""
    learned: dict[str, NewPiece] = {}
    if not rules.num_pieces or not rules.new_characters:
        return []
    learner = _MergeLearner(units, rules)
    with progress.progress_task("training tokens", rules.num_pieces) as advance:
        while len(learned) < rules.num_pieces and (best := learner.best()) is not None:
            pair, piece = best
            learner.apply(pair, piece.text)
            # In unigram models one text may have been encoded in two ways: both lead to one piece.
            if piece.text not in learned:
                learned[piece.text] = piece
                advance(1)
    return list(learned.values())


class _MergeLearner:
    """All units as one linked list of piece numbers, and for every allowed pair its count and its positions.

    A merge touches only the positions of its pair and their neighbours, so that long units (scripts without spaces)
    cost no more than short ones. Positions are never removed, only checked again: a stale one no longer holds the pair.
    The heap likewise keeps stale counts; `best` skips entries whose count has changed.
    """

    def __init__(self, units: Mapping[tuple[str, ...], int], rules: MergeRules) -> None:
        self._rules = rules
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._allowed: dict[int, bool] = {}
        self._counts: Counter[int] = Counter()
        self._places: dict[int, array[int]] = {}
        self._tokens = array("i", [_UNIT_BOUNDARY])
        self._weights = array("i", [0])
        for unit, count in units.items():
            self._tokens.extend([self._number(piece) for piece in unit])
            self._tokens.append(_UNIT_BOUNDARY)
            self._weights.extend([count] * (len(unit) + 1))
        self._before = array("i", [at - 1 for at in range(len(self._tokens))])
        self._after = array("i", [at + 1 for at in range(len(self._tokens))])
        for at in range(1, len(self._tokens) - 1):
            self._add(at, at + 1)
        self._heap = [(-count, self._text(pair), pair) for pair, count in self._counts.items()]
        heapq.heapify(self._heap)

    def best(self) -> tuple[int, NewPiece] | None:
        """The most frequent pair, or None when no pair is frequent enough."""
        while self._heap:
            negative, text, pair = heapq.heappop(self._heap)
            count = self._counts.get(pair, 0)
            if count == -negative and count >= self._rules.min_count:
                left, right = divmod(pair, _PAIR_BASE)
                return pair, NewPiece(text, (self._texts[left], self._texts[right]), count)
        return None

    def apply(self, pair: int, text: str) -> None:
        """Merge every such pair, leftmost first, as the tokenizers do."""
        joined = self._number(text)
        left, right = divmod(pair, _PAIR_BASE)
        tokens, changed = self._tokens, {pair}
        for at in sorted(set(self._places.pop(pair))):
            other = self._after[at]
            if tokens[at] != left or tokens[other] != right:
                continue
            before, behind = self._before[at], self._after[other]
            changed |= {self._remove(before, at), self._remove(other, behind)}
            tokens[at], tokens[other] = joined, _MERGED_AWAY
            self._after[at] = behind
            self._before[behind] = at
            changed |= {self._add(before, at), self._add(at, behind)}
        self._counts.pop(pair, None)
        for touched in changed - {pair, _UNIT_BOUNDARY}:
            if (count := self._counts[touched]) > 0:
                heapq.heappush(self._heap, (-count, self._text(touched), touched))

    def _add(self, at: int, other: int) -> int:
        """Count the pair at two neighbouring positions; returns it, or _UNIT_BOUNDARY if it must not merge."""
        pair = self._pair(at, other)
        if pair != _UNIT_BOUNDARY:
            self._counts[pair] += self._weights[at]
            if pair not in self._places:
                self._places[pair] = array("i")
            self._places[pair].append(at)
        return pair

    def _remove(self, at: int, other: int) -> int:
        pair = self._pair(at, other)
        if pair != _UNIT_BOUNDARY:
            self._counts[pair] -= self._weights[at]
        return pair

    def _pair(self, at: int, other: int) -> int:
        left, right = self._tokens[at], self._tokens[other]
        if left < 0 or right < 0:
            return _UNIT_BOUNDARY
        pair = left * _PAIR_BASE + right
        allowed = self._allowed.get(pair)
        if allowed is None:
            allowed = self._allowed[pair] = self._rules.allow(self._text(pair))
        return pair if allowed else _UNIT_BOUNDARY

    def _text(self, pair: int) -> str:
        left, right = divmod(pair, _PAIR_BASE)
        return self._texts[left] + self._texts[right]

    def _number(self, piece: str) -> int:
        number = self._numbers.get(piece)
        if number is None:
            number = self._numbers[piece] = len(self._texts)
            self._texts.append(piece)
        return number


# A family's front for one language, without its tag: clean, then prepare.
TextPreprocessor = Callable[[str], str]
# A base with fewer letters of a script does not have the script, only strays.
_MIN_SCRIPT_LETTERS = 10
# Unigram: some pieces lose against others once all have scores, so learn a few more than requested.
_CANDIDATE_FACTOR = 1.25
_MIN_SCORING_ROUNDS, _MAX_SCORING_ROUNDS = 2, 12


@dataclass(frozen=True, slots=True)
class CharacterPlan:
    """Which characters become pieces, and which stay unknown."""

    new: tuple[str, ...]
    whole_scripts: tuple[str, ...]
    """Scripts that the base lacks; all their characters become pieces."""
    left_unknown: dict[str, int]
    """Characters of the texts that become unknown tokens (general symbols, other scripts), with their counts."""


@dataclass(frozen=True, slots=True)
class LearnedAdditions:
    """The additions and how they came about."""

    additions: TokenizerAdditions
    plan: CharacterPlan
    grown: Tokenizer


def plan_characters(
    base: Tokenizer, prepare: TextPreprocessor, language: str, prepared: Iterable[str]
) -> CharacterPlan:
    """The characters that the language needs and no base piece has. What stays unknown is filled in later."""
    seen: Counter[str] = Counter()
    for text in prepared:
        seen.update(base.normalise(text))
    entry = find_exemplar(language) or Exemplar(language, "", "", "")
    scripts = find_language_scripts(entry.letters, seen, MIN_SCRIPT_SHARE)
    base_scripts = count_scripts(base.characters)
    missing_scripts = tuple(script for script in scripts if base_scripts.get(script, 0) < _MIN_SCRIPT_LETTERS)
    needed = {character for script in missing_scripts for character in script_characters(script)}
    needed |= {character for character in entry.letters if not character.isspace()}
    needed |= {character for character in seen if is_script_letter(character, scripts)}
    # The language's own digits, and invisible characters that its spelling needs.
    for character in seen:
        if character in ZERO_WIDTH:
            own = character in entry.letters + entry.auxiliary or not entry.letters
        else:
            own = script_of(character) in scripts or character in entry.numbers
            own = own and not character.isascii() and character.isdecimal()
        if own:
            needed.add(character)
    new = _missing_characters(base, prepare, needed)
    # If the base has every letter of the language, a few strays in the texts are no reason to add rows.
    is_covered = entry.letters and not missing_scripts and not _missing_characters(base, prepare, entry.letters)
    num_new = sum(seen[character] for character in new)
    if is_covered and num_new < MAX_STRAY_SHARE * count_letters_by_script(seen).total():
        new = set()
    if new:  # punctuation alone is no reason to add rows
        marks = {mark for mark in entry.punctuation if is_punctuation(mark) and mark in seen}
        new |= _missing_characters(base, prepare, marks)
    return CharacterPlan(
        tuple(sorted(new)), tuple(script for script in missing_scripts if script_characters(script)), {}
    )


def _missing_characters(base: Tokenizer, prepare: TextPreprocessor, characters: Iterable[str]) -> set[str]:
    """What the front end makes of the wanted characters, without what base pieces have."""
    surviving = {character for text in characters for character in find_surviving_text(base, prepare, text)}
    # Twice: some signs become letters in the wrong case (№ becomes No) after the front end has set the case.
    surviving |= {character for text in surviving for character in find_surviving_text(base, prepare, text)}
    new = set()
    for character in surviving - base.characters:
        # Never a general symbol, space or control character.
        if can_be_new_token(character) and survives_preprocessing(base, prepare, character):
            new.add(character)
    return new


def find_surviving_text(base: Tokenizer, prepare: TextPreprocessor, text: str) -> str:
    """What the front end and the tokenizer's normalizer leave of a text between two letters."""
    # Some upstream programs treat a text of one character differently. The letter q composes with no mark, has one
    # capital, and makes numbers in `text` part of a word, which no normalizer expands.
    prepared = base.normalise(prepare(f"q{text}q"))
    lower = prepared.replace("Q", "q")
    first, last = lower.find("q"), lower.rfind("q")
    return prepared[first + 1 : last] if first < last else ""


def survives_preprocessing(base: Tokenizer, prepare: TextPreprocessor, text: str) -> bool:
    """Whether front end and normalizer leave a text unchanged, apart from spaces around it."""
    return find_surviving_text(base, prepare, text).strip() == text


def occurs_only_at_word_start(base: Tokenizer, prepare: TextPreprocessor, text: str) -> bool:
    """Whether the front end separates a text from the letters before it, as with Chinese characters."""
    left = find_surviving_text(base, prepare, text)
    return left.strip() == text and left[:1] in (" ", WORD_START)


def learn_additions(
    base: Tokenizer,
    prepare: TextPreprocessor,
    sentences: Sequence[str],
    header: TokenizerAdditions,
    settings: VocabularySettings,
) -> LearnedAdditions:
    """Characters, then merges. `header` gives family, language and tag; its pieces are ignored."""
    prepared = [prepare(sentence) for sentence in sentences]
    plan = plan_characters(base, prepare, header.language, prepared)
    spelled = replace(header, pieces=tuple(NewPiece(character) for character in plan.new))
    stage = _build_extended_tokenizer(base, spelled)
    units: Counter[tuple[str, ...]] = Counter()
    unknown: Counter[str] = Counter()
    with progress.progress_task("encoding the texts", len(prepared)) as advance:
        for text in prepared:
            units.update(stage.units(text))
            unknown.update(stage.unknown_text(text))
            advance(1)
    plan = replace(plan, left_unknown=dict(unknown.most_common()))
    unigram = isinstance(base, SentencePieceUnigramTokenizer)
    rules = MergeRules(
        new_characters=frozenset(plan.new),
        num_pieces=math.ceil(settings.pieces * _CANDIDATE_FACTOR) if unigram else settings.pieces,
        min_count=settings.min_count,
        max_characters=settings.max_piece_characters,
    )
    pieces = [*spelled.pieces, *learn_merges(units, rules)]
    if unigram:
        pieces = _score_unigram_pieces(base, replace(header, pieces=tuple(pieces)), prepared, settings.pieces)
    if isinstance(base, SentencePieceTokenizer):
        # Characters that occur only at the start of a word: the piece with the space before them is the one used.
        starts = {piece.text[1:] for piece in pieces if len(piece.text) == 2 and piece.text[0] == WORD_START}
        dead = {start for start in starts if occurs_only_at_word_start(base, prepare, start)}
        pieces = [piece for piece in pieces if piece.text not in dead]
    additions = replace(header, pieces=tuple(pieces))
    return LearnedAdditions(additions, plan, _build_extended_tokenizer(base, additions))


def _score_unigram_pieces(
    base: Tokenizer, additions: TokenizerAdditions, prepared: Sequence[str], num_pieces: int
) -> list[NewPiece]:
    """Unigram scores from the real use of each piece, in rounds (hard EM); unused pieces are dropped."""
    assert isinstance(base, SentencePieceUnigramTokenizer)
    pieces = list(additions.pieces)
    # Words are encoded alike wherever they occur, unless a base piece reaches across a space.
    words = Counter(prepared)
    if not base.crosses_spaces:
        words = Counter(word for text in prepared for word in base.normalise(text).split())
    lowest = base.lowest_score
    for at_round in range(_MAX_SCORING_ROUNDS):
        tokenizer = _build_extended_tokenizer(base, replace(additions, pieces=tuple(pieces)))
        uses: Counter[int] = Counter()
        with progress.progress_task("scoring tokens", len(words)) as advance:
            for word, number in words.items():
                for token in tokenizer.encode(word):
                    uses[token] += number
                advance(1)
        counts = Counter({tokenizer.shown(token): count for token, count in uses.items()})
        total = max(1, counts.total())
        used = [piece for piece in pieces if piece.parts is not None and counts[piece.text] > 0]
        if at_round:
            used = sorted(used, key=lambda piece: (-counts[piece.text], piece.text))[:num_pieces]
        kept = {piece.text for piece in used}
        kept_all = all(piece.parts is None or piece.text in kept for piece in pieces)
        pieces = [
            replace(piece, count=counts[piece.text]) for piece in pieces if piece.parts is None or piece.text in kept
        ]
        # Stop here, not after new scores: with these scores the encoding is known, and it uses every piece. This also
        # holds in the last round: dropping a piece that no best encoding uses changes none of them.
        if (at_round > _MIN_SCORING_ROUNDS and kept_all) or at_round == _MAX_SCORING_ROUNDS - 1:
            break
        pieces = [
            replace(piece, score=max(math.log(piece.count / total), lowest) if piece.count else lowest)
            for piece in pieces
        ]
    return pieces


def _build_extended_tokenizer(base: Tokenizer, additions: TokenizerAdditions) -> Tokenizer:
    return parse_tokenizer(base.grown(additions), Path(f"{base.path.name} + {additions.language}"))
