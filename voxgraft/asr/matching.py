"""How well a text fits speech, and where it is spoken, by the scores of the built-in recognizer at every step.

A transcript keeps only the likeliest symbol of a step. For human voices, and for languages that the network was never
trained on, that is often the wrong one, while the right one is still likelier than chance. So texts are compared with
the scores themselves: the best CTC path of the text against that of the same symbols in another order.

Symbols are letters of a language that the recognizer knows, else classes of sounds (`sound_classes`). S symbols and the
blank, T steps of 20 ms.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from voxgraft.asr import CTC_BLANK, BuiltInRecognizer, Recognizer, resolve_recognizer_language
from voxgraft.text.encoder import romanize
from voxgraft.text.normalize import build_normalizer
from voxgraft.text.spans import remove_markers

StepScores = NDArray[np.float32]
"""Logarithms of probabilities, the blank first. [T, S + 1]"""
# Below this probability scores say nothing: no single step may decide against a text.
MIN_PROBABILITY = 1e-4
# Other orders of a text's symbols that it is compared with, and how many symbols stay together.
NUM_SHUFFLES, SHUFFLE_BLOCK = 10, 3
# Costs of a step of speech that is not in the text, and of a symbol that is not read, relative to those of speech that
# is compared with another part of the text. Blanks can take up speech too, so both must be far below 1.
FILLER_SHARE, SKIP_SHARE = 0.85, 1.0
# Cost of a sentence that begins or ends inside speech, in symbols.
EDGE_SYMBOLS = 4.0
# Parts of a recording, in steps, by which that cost is measured.
CHUNK_STEPS, NUM_CHUNKS = 250, 24
# States of the alignment on each side of the expected place; a symbol has two.
BAND_STATES = 1_500

# Sounds that recognizers and romanizations of another language confuse are one class. Vowels are three: a, front, back.
_SOUND_OF_LETTER = {
    letter: sound
    for sound, letters in {
        **{"P": "pb", "T": "tdθð", "K": "kgqcɡ", "F": "fvβ", "S": "szʃʒɕʑ", "H": "hxħɣ", "M": "m", "N": "nŋɲ"},
        **{"L": "l", "R": "rɹɾʁɚ", "W": "w", "J": "jyç", "a": "aæɐɑʌəɜ", "i": "eiɛɪɨᵻ", "u": "ouɔʊøœɒ"},
    }.items()
    for letter in letters
}
SOUND_CLASSES = "".join(dict.fromkeys(_SOUND_OF_LETTER.values()))


def sound_classes(text: str, *, is_ipa: bool = False) -> str:
    """A text or IPA as classes of sounds, for a language that the recognizer does not know: `Salaam` is `salam`."""
    # Only letters: for other characters the romanizer would have to be loaded, which takes seconds.
    words = text if is_ipa else remove_markers(text)
    spoken = "".join(letter for letter in words if unicodedata.category(letter)[0] in "LM")
    plain = spoken if is_ipa else romanize(spoken).lower().replace("sh", "s").replace("ch", "s")
    letters = unicodedata.normalize("NFD", plain)
    classes = [_SOUND_OF_LETTER.get(letter, "") for letter in letters]
    # Long and double sounds are written differently everywhere.
    return "".join(one for at, one in enumerate(classes) if one and (not at or classes[at - 1] != one))


def comparable_letters(text: str, language: str) -> str:
    """Letters as they are heard: normalized, lower case, without spaces and marks; letters of one sound are one."""
    said = build_normalizer(language, fold_homophones=True).normalise(remove_markers(text)).text
    lower = unicodedata.normalize("NFC", said.casefold())
    return "".join(letter for letter in lower if unicodedata.category(letter)[0] in "LMN")


class TextMatcher:
    """Compares texts of one language with speech."""

    def __init__(self, recognizer: BuiltInRecognizer, language: str, code: str, *, by_sound: bool) -> None:
        """`code` is the language as the recognizer knows it; unused with `by_sound`."""
        self.recognizer, self.language, self.by_sound = recognizer, language, by_sound
        self.codes = list(recognizer.symbols.by_language) if by_sound else [code]
        written = recognizer.symbols.phones if by_sound else recognizer.symbols.letters
        spellings = [self._spell(symbol, is_ipa=True) for symbol in written]
        own = sorted(set(SOUND_CLASSES) if by_sound else set("".join(spellings)))
        self.symbols = "".join(own)
        self.numbers = {symbol: number for number, symbol in enumerate(own, 1)}
        # Which symbols belong to an output of the network; spaces and marks count as blanks.
        self.table = np.zeros((len(written) + 1, len(own) + 1))
        self.table[CTC_BLANK, 0] = 1.0
        for row, spelling in enumerate(spellings, 1):
            self.table[row, [self.numbers[symbol] for symbol in spelling] or [0]] = 1.0

    @classmethod
    def build(cls, recognizer: Recognizer, language: str) -> Self | None:
        """None for a recognizer that gives no scores."""
        code, by_sound = resolve_recognizer_language(recognizer, language)
        return cls(recognizer, language, code, by_sound=by_sound) if isinstance(recognizer, BuiltInRecognizer) else None

    def _spell(self, text: str, *, is_ipa: bool = False) -> str:
        return sound_classes(text, is_ipa=is_ipa) if self.by_sound else comparable_letters(text, self.language)

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's symbols; what the recognizer cannot write is left out."""
        return [self.numbers[symbol] for symbol in self._spell(text) if symbol in self.numbers]

    def listen(self, wave: NDArray[np.float32]) -> tuple[StepScores, str]:
        """Scores of the symbols at every step of a wave at 16 kHz, and the transcript: letters, or phones (IPA).

        Of an unknown language: the mean over all known languages, and the transcript in the one with the most phones.
        """
        found, transcript = [], list[str]()
        names = self.recognizer.symbols.phones if self.by_sound else self.recognizer.symbols.letters
        for code in self.codes:
            letters, phones, steps = self.recognizer.step_scores([torch.from_numpy(wave)], code)
            scores = (phones if self.by_sound else letters)[0, : steps[0]].double().cpu()
            allowed = self.recognizer.symbols.allowed(code)[self.by_sound]
            likely = scores.masked_fill(~allowed, -torch.inf).softmax(-1).numpy()
            path = likely.argmax(axis=1)
            starts = (path != CTC_BLANK) & (path != np.concatenate([[CTC_BLANK], path[:-1]]))
            spelled = [names[number - 1] for number in path[starts]]
            transcript = spelled if len(spelled) >= len(transcript) else transcript
            found.append(np.minimum(1.0, likely @ self.table))
        kept = np.log(np.maximum(np.mean(found, axis=0), MIN_PROBABILITY)).astype(np.float32)
        return kept, " ".join("".join(transcript).split())

    def misfit(self, scores: StepScores, symbols: Sequence[int]) -> float:
        """From 0 (spoken exactly so) to about 1: it fits no better than its symbols in another order."""
        if not symbols or len(scores) < len(symbols):
            return 1.0
        blocks = [symbols[at : at + SHUFFLE_BLOCK] for at in range(0, len(symbols), SHUFFLE_BLOCK)]
        chance, orders = random.Random(len(symbols)), [list(symbols)]
        for _ in range(NUM_SHUFFLES):
            chance.shuffle(blocks)
            orders.append([symbol for block in blocks for symbol in block])
        lost = scores.max(axis=1).sum() - best_path_scores(scores, orders)
        if not np.isfinite(lost[0]):  # too few steps for double sounds
            return 1.0
        return float(np.clip(lost[0] / max(1e-6, float(np.median(lost[1:]))), 0.0, 1.0))


def best_path_scores(scores: StepScores, sequences: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """The score of the best CTC path of each sequence; all have the same length."""
    labels = np.zeros((len(sequences), 2 * len(sequences[0]) + 1), np.int64)
    labels[:, 1::2] = sequences
    # From a symbol to the next without a blank, if they differ.
    jump = np.full(labels.shape, -np.inf)
    jump[:, 3::2] = np.where(labels[:, 3::2] != labels[:, 1:-2:2], 0.0, -np.inf)
    best: NDArray[np.float64] = np.full(labels.shape, -np.inf)
    best[:, :2] = scores[0][labels[:, :2]]
    for row in scores[1:]:
        following = best.copy()
        np.maximum(following[:, 1:], best[:, :-1], out=following[:, 1:])
        np.maximum(following[:, 2:], best[:, :-2] + jump[:, 2:], out=following[:, 2:])
        best = following + row[labels]
    ends: NDArray[np.float64] = best[:, -2:].max(axis=1)
    return ends


def mismatch_costs(scores: StepScores, symbols: Sequence[int]) -> tuple[float, float]:
    """What a step with a sound, and a symbol of the text, cost on average where a wrong part is compared."""
    chunks = min(NUM_CHUNKS, max(1, len(scores) // CHUNK_STEPS))
    length = max(1, len(symbols) * CHUNK_STEPS // len(scores))
    costs = []
    for at in range(chunks):
        part = scores[at * len(scores) // chunks :][:CHUNK_STEPS]
        # Half of the text away: surely not what is spoken here.
        start = (at * len(symbols) // chunks + len(symbols) // 2) % max(1, len(symbols) - length + 1)
        text = symbols[start : start + min(length, len(part))]
        lost = part.max(axis=1).sum() - best_path_scores(part, [text])[0]
        costs.append((float(lost) / max(1, int((part.argmax(axis=1) != 0).sum())), float(lost) / len(text)))
    step, symbol = np.median(costs, axis=0)
    return float(step), float(symbol)


def align_steps(
    scores: StepScores,
    sentences: Sequence[Sequence[int]],
    expected: NDArray[np.float64],
    can_begin: NDArray[np.bool_],
    can_end: NDArray[np.bool_],
) -> list[tuple[int, int] | None]:
    """First and last step of each sentence on the best path through all of them; None for one that is not read.

    Between two sentences is a state for speech that is not in the text. `expected` is the place in the text, in
    symbols, at each step; only states near it are compared. Sentences begin and end at other steps than those with a
    pause next to them (`can_begin`, `can_end`) only if much speaks for it.
    """
    lengths = np.array([2 * len(symbols) for symbols in sentences])
    fillers = np.concatenate([[0], np.cumsum(lengths)])  # states between the sentences
    states = int(fillers[-1]) + 1
    labels = np.zeros(states, np.int64)  # blanks and fillers are 0
    labels[1::2] = [symbol for symbols in sentences for symbol in symbols]
    is_filler = np.zeros(states, np.bool_)
    is_filler[fillers] = True
    jump = np.full(states, -np.inf)
    jump[3::2] = np.where(labels[3::2] != labels[1:-2:2], 0.0, -np.inf)
    step_cost, symbol_cost = mismatch_costs(scores, [symbol for symbols in sentences for symbol in symbols])
    foreign = np.maximum(scores[:, 0], scores[:, 1:].max(axis=1) - FILLER_SHARE * step_cost)
    prices = SKIP_SHARE * symbol_cost * fillers / 2
    begin_costs, end_costs = (np.where(flags, 0.0, EDGE_SYMBOLS * symbol_cost) for flags in (can_begin, can_end))
    is_first = np.roll(is_filler, 1)  # the states of first symbols
    middle = np.round(2 * np.maximum.accumulate(expected)).astype(np.int64)
    is_whole = states <= 2 * BAND_STATES
    lows = np.zeros(len(scores), np.int64) if is_whole else np.clip(middle - BAND_STATES, 0, states - 2 * BAND_STATES)
    width = min(states, 2 * BAND_STATES)
    steps = np.zeros((len(scores), width), np.uint8)  # 0, 1, 2: from as many states before; 3: a sentence is skipped
    best = np.full(states, -np.inf)
    best[0] = 0.0
    for step, row in enumerate(scores.astype(np.float64)):
        low, high = int(lows[step]), int(lows[step]) + width
        before = best[low:high]
        one, two = np.full(width, -np.inf), np.full(width, -np.inf)
        one[1:], two[2:] = before[:-1], before[:-2] + jump[low + 2 : high]
        begins, stops = is_first[low:high], is_filler[low:high]
        one[begins] -= begin_costs[step]
        one[stops] -= end_costs[step]
        two[begins] -= begin_costs[step] + end_costs[step]
        chosen = np.where(one > before, np.uint8(1), np.uint8(0))
        following = np.maximum(before, one)
        chosen[two > following] = 2
        following = np.maximum(following, two) + np.where(stops, foreign[step], row[labels[low:high]])
        # From one filler to the next costs what the sentence between them does: the best way is a running maximum.
        first, last = np.searchsorted(fillers, (low, high))
        places = fillers[first:last] - low
        price = prices[first:last]
        skipped = np.maximum.accumulate(following[places] + price) - price
        chosen[places[skipped > following[places] + 1e-9]] = 3
        following[places] = skipped
        # States that the band has left behind cannot be reached again.
        best = np.full(states, -np.inf)
        best[low:high] = following
        steps[step] = chosen
    found: list[tuple[int, int] | None] = [None] * len(sentences)
    owner = np.searchsorted(fillers, np.arange(states))  # of a state between fillers k - 1 and k: k
    state = states - 1 if best[-1] >= best[-2] else states - 2
    step = len(scores) - 1
    while step >= 0:
        if not is_filler[state] and labels[state]:
            number = int(owner[state]) - 1
            known = found[number]
            found[number] = (step, step) if known is None else (step, known[1])
        taken = steps[step, state - int(lows[step])]
        if taken == 3:
            state = int(fillers[np.searchsorted(fillers, state) - 1])
            continue
        state -= int(taken)
        step -= 1
    return found
