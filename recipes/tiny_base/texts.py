"""Texts of the corpus: words and clauses of each language, held-out words, and the speaker of each line.

A pure function of the text files and a seed. The synthesizer is used only for pronunciations.
"""

from __future__ import annotations

import itertools
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["LANGUAGES", "Amounts", "Line", "Split", "normalize_letters", "plan_lines"]

Split = Literal["train", "valid", "test", "test-unheard"]
Pronounce = Callable[[str, str], tuple[str, ...]]

LANGUAGES = ("en", "fr", "am")
EVALUATED = Path(__file__).resolve().parents[2] / "voxgraft" / "assets" / "sentences"
LETTERS = {"en": "a-z", "fr": "a-zàâæçéèêëîïôœùûüÿ", "am": "ሀ-ፗ"}
MAX_CLAUSE_WORDS = 9
MAX_WORD_LETTERS = 14
FREQUENT_WORDS = 500
"""The most frequent words are never held out; otherwise hardly any clause could be used."""
PHRASE_WORDS = (1, 2, 2, 3, 3, 3, 4, 4, 5, 6)
CLAUSE_SHARE = 0.35
TIMES_A_CLAUSE = 4

# Amharic letters with the same sound, each with the seven orders of its series: written as the first.
HOMOPHONES = {"ሐ": "ሀ", "ኀ": "ሀ", "ኸ": "ሀ", "ሠ": "ሰ", "ዐ": "አ", "ፀ": "ጸ"}
FOLDED = {ord(old) + order: ord(new) + order for old, new in HOMOPHONES.items() for order in range(7)}
STRAIGHT_MARKS = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "…": ".", "“": "", "”": "", '"': "", "«": "", "»": ""})
BREAKS = re.compile(r"[,;:()፣፤፥—–]| - |--")
ENDS = ".?!።፧"


@dataclass(frozen=True, slots=True)
class Line:
    """Text, speaker and split of one utterance."""

    language: str
    speaker: str
    text: str
    split: Split


@dataclass(frozen=True, slots=True)
class Amounts:
    """Numbers of words and lines for one language."""

    num_train: int
    num_valid: int
    num_test: int
    """Lines per test split."""
    num_words: int
    num_unheard: int


@dataclass(frozen=True, slots=True)
class _Stock:
    """Words (one spelling per pronunciation) and clauses of a language, divided into training and held-out ones."""

    heard: tuple[str, ...]
    unheard: tuple[str, ...]
    clauses: tuple[str, ...]
    """Without words that sound like a held-out word."""


def plan_lines(
    texts: Path, language: str, amounts: Amounts, speakers: Sequence[tuple[str, float]], pronounce: Pronounce, seed: int
) -> list[Line]:
    """Every line of one language, test splits first. `speakers`: names with their shares."""
    rng = random.Random(f"{language} {seed}")
    stock = _stock(texts, language, amounts, pronounce, rng)
    known = set(stock.heard)
    familiar = (
        clause for clause in stock.clauses if known.issuperset(w for w in _words(clause, language) if len(w) > 1)
    )
    held_back = list(itertools.islice(familiar, amounts.num_test // 2))
    drawn = _test_phrases(stock.heard, amounts.num_test - len(held_back), rng)
    test = [*held_back, *drawn]
    unheard = _test_phrases(stock.unheard, amounts.num_test, rng)
    taken = {*test, *(normalize_letters(text, language) for text, _ in kept_out(language))}
    count = amounts.num_train + amounts.num_valid
    clauses = [one for one in stock.clauses if one not in taken and normalize_letters(one, language) not in taken]
    num_clauses = min(int(CLAUSE_SHARE * count), TIMES_A_CLAUSE * len(clauses))
    chosen = [clauses[place % len(clauses)] for place in range(num_clauses)]
    phrases = _phrases(stock.heard, count - num_clauses, taken, rng)
    learnt = [*chosen, *phrases]
    rng.shuffle(learnt)
    parts: list[tuple[Split, list[str]]] = [
        ("test", test),
        ("test-unheard", unheard),
        ("valid", learnt[: amounts.num_valid]),
        ("train", learnt[amounts.num_valid :]),
    ]
    names, shares = [name for name, _ in speakers], [share for _, share in speakers]
    return [Line(language, rng.choices(names, shares)[0], text, split) for split, lines in parts for text in lines]


def kept_out(language: str) -> list[tuple[str, str]]:
    """Evaluation sentences of voxgraft, each with its rare words; neither may occur in training."""
    path = EVALUATED / f"{language}.tsv"
    if not path.exists():
        return []
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return [(row[0], row[1]) for row in rows]


def normalize_letters(text: str, language: str) -> str:
    """Normalize a text for letter error rates: lower case, only the language's letters, single spaces."""
    return " ".join(_words(text, language))


def _words(text: str, language: str) -> list[str]:
    folded = unicodedata.normalize("NFC", text.translate(STRAIGHT_MARKS)).lower().translate(FOLDED)
    if language not in LETTERS:  # a language without synthetic speech here: any letter
        return re.findall(r"[^\W\d_]+", folded)
    letters = LETTERS[language]
    inner = f"(?:'[{letters}]+)?" if language == "en" else ""
    return re.findall(f"[{letters}]+{inner}", folded)


def _stock(texts: Path, language: str, amounts: Amounts, pronounce: Pronounce, rng: random.Random) -> _Stock:
    lines = (texts / f"{language}.txt").read_text(encoding="utf-8").splitlines()
    clauses = list(dict.fromkeys(clause for line in lines for clause in clauses_of(line, language)))
    counts = Counter(word for line in lines for word in _words(line, language))
    listed = texts / f"{language}-words.txt"
    if listed.exists():
        counts.update(word for line in listed.read_text(encoding="utf-8").split() for word in _words(line, language))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    sounds = {word: "".join(pronounce(word, language)) for word in ordered}
    words = _one_spelling_each(ordered, sounds, amounts.num_words)
    candidates = words[min(FREQUENT_WORDS, len(words) // 2) :]
    unheard = tuple(sorted(rng.sample(candidates, min(amounts.num_unheard, len(candidates) // 2))))
    rare = (word for _, words in kept_out(language) for word in _words(words, language))
    silent = {sounds[word] for word in unheard} | {"".join(pronounce(word, language)) for word in rare}
    heard = tuple(word for word in words if sounds[word] not in silent)
    usable = [c for c in clauses if not any(sounds.get(word, "") in silent for word in _words(c, language))]
    rng.shuffle(usable)
    return _Stock(heard, unheard, tuple(usable))


def _one_spelling_each(ordered: Iterable[str], sounds: dict[str, str], count: int) -> list[str]:
    """The most frequent spelling of every pronunciation, without words of one letter and of other languages."""
    found: dict[str, str] = {}
    for word in ordered:
        sound = sounds[word]
        if 1 < len(word) <= MAX_WORD_LETTERS and sound and "(" not in sound:
            found.setdefault(sound, word)
        if len(found) == count:
            break
    return list(found.values())


def clauses_of(sentence: str, language: str) -> list[str]:
    """A short sentence unchanged; of a longer one, the clauses of two to nine words."""
    text = sentence.translate(STRAIGHT_MARKS)
    if language == "am":
        text = text.translate(FOLDED)
    if _is_short(text, language) and not re.search(r"[()—–]|--", text):
        return [text.strip()]
    pieces = (piece.strip(" .'") for piece in BREAKS.split(text))
    return [piece for piece in pieces if _is_short(piece, language)]


def _is_short(text: str, language: str) -> bool:
    allowed = re.fullmatch(f"[{LETTERS[language]}',;:()፣፤፥—– -]+[{ENDS}]?", text.lower().strip())
    return allowed is not None and 2 <= len(_words(text, language)) <= MAX_CLAUSE_WORDS


def _test_phrases(words: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Phrases of two to four random words."""
    return [" ".join(rng.sample(words, rng.randint(2, 4))) for _ in range(count)]


def _phrases(words: Sequence[str], count: int, taken: set[str], rng: random.Random) -> list[str]:
    """Phrases of one to six words in which all words are about equally frequent."""
    phrases: list[str] = []
    pool: list[str] = []
    while len(phrases) < count:
        length = rng.choice(PHRASE_WORDS)
        if len(pool) < length:
            pool = rng.sample(words, len(words))
        phrase = " ".join(pool.pop() for _ in range(length))
        if phrase not in taken:
            phrases.append(phrase)
    return phrases
