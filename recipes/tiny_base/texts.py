"""What is said: words and clauses of each language, which words training never hears, and who says which line.

A pure function of the text files and a seed. Speaks nothing; asks the synthesiser only how words are pronounced.
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

__all__ = ["LANGUAGES", "Amounts", "Line", "Split", "plain_letters", "plan_lines"]

Split = Literal["train", "valid", "test", "test-unheard"]
Pronounce = Callable[[str, str], tuple[str, ...]]

LANGUAGES = ("en", "fr", "am")
EVALUATED = Path(__file__).resolve().parents[2] / "voxgraft" / "assets" / "sentences"
LETTERS = {"en": "a-z", "fr": "a-zàâæçéèêëîïôœùûüÿ", "am": "ሀ-ፗ"}
MAX_CLAUSE_WORDS = 9
MAX_WORD_LETTERS = 14
FREQUENT_WORDS = 500
"""The most frequent words are never kept from training: hardly a clause would be left."""
PHRASE_WORDS = (1, 2, 2, 3, 3, 3, 4, 4, 5, 6)
CLAUSE_SHARE = 0.35
TIMES_A_CLAUSE = 4

# Letters that Amharic no longer tells apart by ear, each with the seven orders of its row: written as the first.
HOMOPHONES = {"ሐ": "ሀ", "ኀ": "ሀ", "ኸ": "ሀ", "ሠ": "ሰ", "ዐ": "አ", "ፀ": "ጸ"}
FOLDED = {ord(old) + order: ord(new) + order for old, new in HOMOPHONES.items() for order in range(7)}
STRAIGHT_MARKS = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "…": ".", "“": "", "”": "", '"': "", "«": "", "»": ""})
BREAKS = re.compile(r"[,;:()፣፤፥—–]| - |--")
ENDS = ".?!።፧"


@dataclass(frozen=True, slots=True)
class Line:
    """One utterance before it is spoken."""

    language: str
    speaker: str
    text: str
    split: Split


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of everything, for one language."""

    num_train: int
    num_valid: int
    num_test: int
    """Of each of the two test splits."""
    num_words: int
    num_unheard: int


@dataclass(frozen=True, slots=True)
class _Stock:
    """A language's words, one spelling for each pronunciation, and its clauses, parted into heard and unheard."""

    heard: tuple[str, ...]
    unheard: tuple[str, ...]
    clauses: tuple[str, ...]
    """Without any word that sounds like an unheard one."""


def plan_lines(
    texts: Path, language: str, amounts: Amounts, speakers: Sequence[tuple[str, float]], pronounce: Pronounce, seed: int
) -> list[Line]:
    """Every line of one language, test splits first. `speakers` come with their shares."""
    chance = random.Random(f"{language} {seed}")
    stock = _stock(texts, language, amounts, pronounce, chance)
    known = set(stock.heard)
    familiar = (
        clause for clause in stock.clauses if known.issuperset(w for w in _words(clause, language) if len(w) > 1)
    )
    held_back = list(itertools.islice(familiar, amounts.num_test // 2))
    drawn = _test_phrases(stock.heard, amounts.num_test - len(held_back), chance)
    test = [*held_back, *drawn]
    unheard = _test_phrases(stock.unheard, amounts.num_test, chance)
    taken = {*test, *(plain_letters(text, language) for text, _ in kept_out(language))}
    count = amounts.num_train + amounts.num_valid
    clauses = [one for one in stock.clauses if one not in taken and plain_letters(one, language) not in taken]
    num_clauses = min(int(CLAUSE_SHARE * count), TIMES_A_CLAUSE * len(clauses))
    chosen = [clauses[place % len(clauses)] for place in range(num_clauses)]
    phrases = _phrases(stock.heard, count - num_clauses, taken, chance)
    learnt = [*chosen, *phrases]
    chance.shuffle(learnt)
    parts: list[tuple[Split, list[str]]] = [
        ("test", test),
        ("test-unheard", unheard),
        ("valid", learnt[: amounts.num_valid]),
        ("train", learnt[amounts.num_valid :]),
    ]
    names, shares = [name for name, _ in speakers], [share for _, share in speakers]
    return [Line(language, chance.choices(names, shares)[0], text, split) for split, lines in parts for text in lines]


def kept_out(language: str) -> list[tuple[str, str]]:
    """The sentences by which voxgraft evaluates, each with its rare words: no training may hear either."""
    path = EVALUATED / f"{language}.tsv"
    if not path.exists():
        return []
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return [(row[0], row[1]) for row in rows]


def plain_letters(text: str, language: str) -> str:
    """What is compared when letters are counted: lower-case words of the language's letters, one space between."""
    return " ".join(_words(text, language))


def _words(text: str, language: str) -> list[str]:
    folded = unicodedata.normalize("NFC", text.translate(STRAIGHT_MARKS)).lower().translate(FOLDED)
    if language not in LETTERS:  # a language that has no synthetic speech here: whatever is a letter
        return re.findall(r"[^\W\d_]+", folded)
    letters = LETTERS[language]
    inner = f"(?:'[{letters}]+)?" if language == "en" else ""
    return re.findall(f"[{letters}]+{inner}", folded)


def _stock(texts: Path, language: str, amounts: Amounts, pronounce: Pronounce, chance: random.Random) -> _Stock:
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
    unheard = tuple(sorted(chance.sample(candidates, min(amounts.num_unheard, len(candidates) // 2))))
    rare = (word for _, words in kept_out(language) for word in _words(words, language))
    silent = {sounds[word] for word in unheard} | {"".join(pronounce(word, language)) for word in rare}
    heard = tuple(word for word in words if sounds[word] not in silent)
    usable = [c for c in clauses if not any(sounds.get(word, "") in silent for word in _words(c, language))]
    chance.shuffle(usable)
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
    """A short sentence as it stands; of a longer one the clauses of two to nine words."""
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


def _test_phrases(words: Sequence[str], count: int, chance: random.Random) -> list[str]:
    """Phrases of two to four words in combinations drawn by chance."""
    return [" ".join(chance.sample(words, chance.randint(2, 4))) for _ in range(count)]


def _phrases(words: Sequence[str], count: int, taken: set[str], chance: random.Random) -> list[str]:
    """Phrases of one to six words in which every word comes about equally often."""
    phrases: list[str] = []
    pool: list[str] = []
    while len(phrases) < count:
        length = chance.choice(PHRASE_WORDS)
        if len(pool) < length:
            pool = chance.sample(words, len(words))
        phrase = " ".join(pool.pop() for _ in range(length))
        if phrase not in taken:
            phrases.append(phrase)
    return phrases
