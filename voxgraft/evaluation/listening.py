"""Blind listening tests: a page on which people choose between two systems, and the command `preference`.

The page has sounds and texts only. Which system is A of a pair is in key.json alone, which stays with whoever made
the test. Sides and order are drawn from a random seed; each system is A in half of the pairs of a language.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import encode_audio, resample
from voxgraft.config.commands import PreferenceSettings
from voxgraft.core import rng
from voxgraft.core.errors import ConfigError, FileError
from voxgraft.core.files import atomic_write_folder, is_folder, read_json, require_file, write_json, write_text
from voxgraft.core.results import Line, Table, render_page, style_line
from voxgraft.evaluation.scores import (
    BOOTSTRAP_DRAWS,
    ReferenceRecording,
    Score,
    SpeechRenderer,
    Wave,
    read_reference_recordings,
    synthesize_sentences,
    unmeasured_score,
)
from voxgraft.evaluation.sentences import EvalSentence, SentenceSet
from voxgraft.synthesis.engine import SpeakingModel
from voxgraft.synthesis.inputs import ReferenceVoice

PAGE_NAME, KEY_NAME = "listening-test.html", "key.json"
KEY_FORMAT, ANSWERS_FORMAT = "voxgraft-listening-key-1", "voxgraft-listening-1"
MAX_ANSWERS_BYTES = 4 << 20
RECORDINGS_SYSTEM = "recordings"
# All sounds are made equally loud, since louder speech sounds better. RMS of what is not silent.
TARGET_RMS, MAX_PEAK = 0.06, 0.98
# Frames quieter than the loudest by more than this are silence; it is cut at both ends, since it differs by system.
FRAME_SECONDS, SILENCE_DB, MARGIN_SECONDS = 0.02, 45.0, 0.1
# What a native speaker listens for: key in the answers, and the words on the page.
FAULTS = {
    "sounds": "a letter has a wrong sound",
    "stress": "stress, tone or length is wrong",
    "words": "a word is missing, added or repeated",
    "melody": "pauses or melody do not fit the sentence",
    "accent": "sounds like a speaker of another language",
    "noise": "noise, clicks or a robotic voice",
}
CONFIDENCE = 0.95
# With fewer raters, the spread between raters is hardly known.
FEW_RATERS = 5
# Rows are raters, columns are pairs: 1 prefers the first system, -1 the second, 0 neither, NaN: no answer.
Votes = NDArray[np.float64]


class ListeningPair(NamedTuple):
    """A sentence as two systems said it, and a person where there is a recording."""

    sentence: EvalSentence
    waves: tuple[Wave, Wave]
    rate: int
    original: Wave | None = None


@dataclass(frozen=True, slots=True)
class ListeningTestResult:
    """Where the page and its key are."""

    folder: Path
    systems: tuple[str, str]
    pairs: Mapping[str, int]
    """Number of pairs by language."""
    left_out: Mapping[str, int]
    """Number of sentences by reason."""
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        files = {"page": str(self.folder / PAGE_NAME), "key": str(self.folder / KEY_NAME)}
        return {**files, "systems": list(self.systems), "pairs": dict(self.pairs), "left_out": dict(self.left_out)}

    def lines(self) -> list[Line]:
        counts = ", ".join(f"{language}: {count}" for language, count in self.pairs.items())
        lines: list[Line] = [f"{self.systems[0]} against {self.systems[1]}, pairs by language: {counts}"]
        lines += [f"left out: {count} ({why})" for why, count in self.left_out.items()]
        return [
            *lines,
            f"page: {self.folder / PAGE_NAME} (send only this file)",
            f"key: {self.folder / KEY_NAME}",
            f"results: voxgraft preference {shlex.quote(str(self.folder))} ANSWERS.json ...",
        ]


# ---- the page --------------------------------------------------------------------------------------------------------


def write_listening_test(
    folder: Path,
    first: SpeakingModel,
    other: SpeakingModel | Path | None,
    sets: Mapping[str, SentenceSet],
    originals: Mapping[str, Sequence[ReferenceRecording]],
    voices: Sequence[ReferenceVoice],
    sound: SpeechRenderer,
    *,
    pairs: int,
    seed: int,
) -> ListeningTestResult:
    """A page with `pairs` pairs and its key; `other` is a model, a folder of recordings, or None: the originals."""
    if sound.vocoder is None:
        raise ConfigError("listening-pairs", sound.why)
    if isinstance(other, Path):
        language = first.text_encoder.language or next(iter(sets))
        recordings = {language: read_reference_recordings(other, language)}
    else:
        recordings = {language: list(found) for language, found in originals.items()}
    found: dict[str, list[ListeningPair]] = {}
    left_out: dict[str, int] = {}
    for language, sentence_set in sets.items():
        own = recordings.get(language, [])
        if isinstance(other, SpeakingModel):
            sentences = list(sentence_set.spread(pairs).sentences)
        else:
            sentences = [sentence for sentence, _, _ in own][:pairs]
        made, reasons = _make_pairs(first, other, sentences, own, voices, sound, seed) if sentences else ([], [])
        if made:
            found[language] = made
        for why in reasons:
            left_out[why] = left_out.get(why, 0) + 1
    if not found:
        why = "; ".join(f"{count} sentences: {why}" for why, count in left_out.items())
        raise ConfigError(
            "listening-pairs", f"no sentence can be compared ({why or 'there are no recordings of the sentences'})"
        )
    other_name = other.name if isinstance(other, SpeakingModel) else RECORDINGS_SYSTEM
    names = (first.name, f"other {other_name}" if other_name == first.name else other_name)
    chosen = _choose_pairs(found, pairs)
    write_pairs(folder, chosen, names)
    counts = {language: sum(pair.sentence.language == language for pair in chosen) for language in found}
    return ListeningTestResult(folder, names, counts, left_out)


def write_pairs(folder: Path, pairs: Sequence[ListeningPair], systems: tuple[str, str]) -> None:
    """The page and its key in a new folder. The seed of order and sides is random, and in the key only."""
    page, key = _build_test(pairs, systems, secrets.token_hex(16))
    with atomic_write_folder(folder) as new:
        write_text(new / PAGE_NAME, render_page("listening.html", faults=list(FAULTS.items()), test=page))
        write_json(new / KEY_NAME, key)


def _make_pairs(
    first: SpeakingModel,
    other: SpeakingModel | Path | None,
    sentences: Sequence[EvalSentence],
    recordings: Sequence[ReferenceRecording],
    voices: Sequence[ReferenceVoice],
    sound: SpeechRenderer,
    seed: int,
) -> tuple[list[ListeningPair], list[str]]:
    """Pairs of one language, and a reason for every sentence that gave none."""
    language = sentences[0].language
    known = {sentence.text: (wave, rate) for sentence, wave, rate in recordings}
    spoken: list[tuple[str, list[Wave]]] = []
    for system in (first, other):
        if isinstance(system, SpeakingModel):
            label = f"{system.name}, {language}"
            said = synthesize_sentences(system, sentences, voices, seed, label, latents=sound.needs_latents)
            spoken.append((system.name, sound.waves(said, label)))
    pairs, reasons = [], []
    for at, sentence in enumerate(sentences):
        original = known.get(sentence.text)
        rate = sound.rate if original is None else min(sound.rate, original[1])
        waves = [resample(own[at], sound.rate, rate) for _, own in spoken]
        person = None if original is None else resample(original[0], original[1], rate)
        if len(waves) == 1:
            assert person is not None  # without another model the sentences are those of the recordings
            waves.append(person)
        silent = [name for (name, own) in spoken if not len(own[at])]
        if silent:
            reasons.append(f"{silent[0]} cannot speak it")
        elif person is not None and not person.any():
            reasons.append("its recording is silent")
        elif np.array_equal(waves[0], waves[1]):
            reasons.append(f"both systems sound the same in {language}")
        else:
            # With recordings as a system, the original is one of the two and no reference.
            shown = level_speech(person, rate) if person is not None and len(spoken) == 2 else None
            pairs.append(
                ListeningPair(sentence, (level_speech(waves[0], rate), level_speech(waves[1], rate)), rate, shown)
            )
    return pairs, reasons


def level_speech(wave: Wave, rate: int) -> Wave:
    """The same speech at a common loudness, without silence at its ends. A click that gets too loud is clipped."""
    if not wave.any():  # empty, or nothing but zeros
        return wave
    size = max(1, round(FRAME_SECONDS * rate))
    frames = np.pad(wave, (0, -len(wave) % size)).reshape(-1, size).astype(np.float64)
    power = (frames**2).mean(1)
    loud = power > power.max() * 10 ** (-SILENCE_DB / 10)
    margin = round(MARGIN_SECONDS * rate)
    begin, end = int(loud.argmax()) * size, (len(loud) - int(loud[::-1].argmax())) * size
    cut = wave[max(0, begin - margin) : end + margin]
    gain = TARGET_RMS / math.sqrt(power[loud].mean())
    # A lower gain instead would make a system with clicks quieter than the other.
    return np.asarray((cut * gain).clip(-MAX_PEAK, MAX_PEAK), dtype=np.float32)


def _choose_pairs(found: Mapping[str, Sequence[ListeningPair]], count: int) -> list[ListeningPair]:
    """The same number of each language, as far as there are enough."""
    left = {language: list(pairs) for language, pairs in found.items()}
    chosen: list[ListeningPair] = []
    while len(chosen) < count and any(left.values()):
        for pairs in left.values():
            if pairs and len(chosen) < count:
                chosen.append(pairs.pop(0))
    return chosen


def _build_test(
    pairs: Sequence[ListeningPair], systems: tuple[str, str], secret: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page has, and what only the key has."""
    # Sides alternate along a random order within each language, so that each system is A in half of its pairs.
    sides: dict[int, int] = {}
    for language in dict.fromkeys(pair.sentence.language for pair in pairs):
        own = [at for at, pair in enumerate(pairs) if pair.sentence.language == language]
        offset = rng.hash_int("side", secret, language) % 2
        for place, index in enumerate(rng.hash_permutation(len(own), "sides", secret, language).tolist()):
            sides[own[index]] = (place + offset) % 2
    shown, keyed = [], []
    for number, index in enumerate(rng.hash_permutation(len(pairs), "order", secret).tolist(), 1):
        pair, name = pairs[index], f"{number:03d}"
        text = {"id": name, "language": pair.sentence.language, "text": pair.sentence.text}
        a, b = pair.waves[sides[index]], pair.waves[1 - sides[index]]
        sounds = {"a": a, "b": b, **({} if pair.original is None else {"original": pair.original})}
        files = {side: base64.b64encode(encode_audio(wave, pair.rate)).decode() for side, wave in sounds.items()}
        shown.append({**text, **{side: f"data:audio/wav;base64,{file}" for side, file in files.items()}})
        keyed.append({**text, "a": systems[sides[index]], "b": systems[1 - sides[index]]})
    test = hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]
    key = {"format": KEY_FORMAT, "test": test, "seed": secret, "systems": list(systems), "pairs": keyed}
    return {"test": test, "format": ANSWERS_FORMAT, "pairs": shown}, key


# ---- answers ---------------------------------------------------------------------------------------------------------


class PairChoice(NamedTuple):
    """One answer of one rater."""

    pair: str
    choice: str
    """a, b or same."""
    faults: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Preference:
    """How often the first system is preferred, over one set of pairs."""

    wins: int
    losses: int
    ties: int
    raters: int
    pairs: int
    share: Score
    """Of the answers that are no tie, those for the first system."""
    method: str
    p_value: float | None
    """Of the two-sided sign test; None if every answer is a tie."""

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("wins", "losses", "ties", "raters", "pairs")}
        answers = self.wins + self.losses + self.ties
        half = (self.wins + self.ties / 2) / answers if answers else None
        share = {"share": self.share.to_json(), "share_ties_half": half}
        return {**counts, **share, "method": self.method, "p_value": self.p_value}


def binomial_interval(wins: int, count: int) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval of a share."""
    tail = (1 - CONFIDENCE) / 2

    def at_least(share: float) -> float:
        return math.fsum(_binomial_terms(count, share)[wins:])

    def at_most(share: float) -> float:
        return math.fsum(_binomial_terms(count, share)[: wins + 1])

    low = 0.0 if wins == 0 else _bisect(lambda share: at_least(share) < tail)
    high = 1.0 if wins == count else _bisect(lambda share: at_most(share) > tail)
    return low, high


def sign_test(wins: int, losses: int) -> float:
    """Probability of a result at least as uneven if both systems were equally good; two-sided, exact."""
    count = wins + losses
    tail = math.fsum(_binomial_terms(count, 0.5)[max(wins, losses) :])
    return min(1.0, 2 * tail)


def measure_preference(votes: Votes, seed: int = 0) -> Preference:
    """Share, interval and sign test of answers; rows are raters, columns are pairs.

    One rater: the exact binomial interval. Several: raters and pairs are both drawn again (bootstrap), since answers of
    one rater, and answers to one sentence, are alike. The sign test then counts each pair once, by its majority.
    """
    answered = ~np.isnan(votes)
    votes = votes[answered.any(1)][:, answered.any(0)] if answered.any() else np.zeros((0, 0))
    filled = np.nan_to_num(votes, nan=0.0)
    won, lost = filled > 0, filled < 0
    wins, losses = int(won.sum()), int(lost.sum())
    counts = (wins, losses, int((votes == 0).sum()), votes.shape[0], votes.shape[1])
    decided = wins + losses
    if not decided:
        return Preference(*counts, unmeasured_score("every answer is a tie" if votes.size else "no answers"), "", None)
    majority = np.sign(filled.sum(0))
    # Without a majority in any pair nothing speaks for either system.
    p_value = sign_test(int((majority > 0).sum()), int((majority < 0).sum())) if majority.any() else 1.0
    if votes.shape[0] == 1:
        low, high = binomial_interval(wins, decided)
        return Preference(*counts, Score(wins / decided, low, high, decided), "exact binomial", p_value)
    if not wins or not losses:
        # A bootstrap of equal answers has no width. Answers to one sentence are alike, so each pair counts once.
        decided_pairs = int((won | lost).any(0).sum())
        low, high = binomial_interval(decided_pairs if wins else 0, decided_pairs)
        return Preference(*counts, Score(wins / decided, low, high, decided), "exact binomial over pairs", p_value)
    generator = np.random.Generator(np.random.Philox(key=rng.hash_int("preference", seed)))
    num_raters, num_pairs = votes.shape
    # How often each draw has each rater and each pair.
    of_raters = generator.multinomial(num_raters, np.full(num_raters, 1 / num_raters), BOOTSTRAP_DRAWS)  # [D, raters]
    of_pairs = generator.multinomial(num_pairs, np.full(num_pairs, 1 / num_pairs), BOOTSTRAP_DRAWS)  # [D, pairs]
    drawn_wins = ((of_raters @ won) * of_pairs).sum(1)
    drawn = ((of_raters @ (won | lost)) * of_pairs).sum(1)
    shares = drawn_wins[drawn > 0] / drawn[drawn > 0]
    tail = 50 * (1 - CONFIDENCE)
    low, high = (float(end) for end in np.percentile(shares, [tail, 100 - tail]))
    return Preference(
        *counts, Score(wins / decided, low, high, decided), "bootstrap over raters and sentences", p_value
    )


def _binomial_terms(count: int, share: float) -> list[float]:
    return [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]


def _bisect(is_below: Callable[[float], bool]) -> float:
    """The share at which a monotonous condition changes."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class PreferenceResult:
    """Which of two systems people prefer."""

    systems: tuple[str, str]
    overall: Preference
    languages: Mapping[str, Preference]
    raters: Sequence[Mapping[str, Any]]
    """Per rater: name, number of answers, how often each system and how often side A was chosen."""
    faults: Mapping[str, Mapping[str, int]]
    """By system: how often each fault was marked."""
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "systems": list(self.systems),
            "overall": self.overall.to_json(),
            "languages": {language: found.to_json() for language, found in self.languages.items()},
            "raters": [dict(rater) for rater in self.raters],
            "faults": {name: dict(counts) for name, counts in self.faults.items()},
        }

    def lines(self) -> list[Line]:
        first, second = self.systems
        columns = (
            "pairs of",
            "raters",
            f"{first} better",
            f"{second} better",
            "ties",
            f"prefer {first}",
            "95 of 100",
            "p",
        )
        rows = []
        for name, found in (("all languages", self.overall), *self.languages.items()):
            share = found.share
            interval = "–" if share.low is None or share.high is None else f"{share.low:.0%} to {share.high:.0%}"
            value = "–" if share.value is None else f"{share.value:.0%}"
            p_value = "–" if found.p_value is None else f"{found.p_value:.3g}"
            counts = (str(found.raters), str(found.wins), str(found.losses), str(found.ties))
            rows.append((name, *counts, value, interval, p_value))
        lines: list[Line] = [Table(columns, tuple(rows))]
        if self.overall.share.value is None:
            return [*lines, style_line(("no preference: ", "bold"), self.overall.share.why)]
        lines.append(f"interval: {self.overall.method}; ties are not counted in shares and in p (two-sided sign test)")
        if 1 < self.overall.raters < FEW_RATERS:
            lines.append(f"only {self.overall.raters} raters: the spread between raters is hardly known")
        worst = {
            name: ", ".join(f"{FAULTS[fault]} {count}" for fault, count in counts.items() if count)
            for name, counts in self.faults.items()
        }
        return [*lines, *(f"faults of {name}: {listed}" for name, listed in worst.items() if listed)]


def preference(settings: PreferenceSettings) -> PreferenceResult:
    """Read the key and all answers, and compute what they say."""
    path = settings.test / KEY_NAME if is_folder(settings.test) else settings.test
    key = _read_key(require_file(path))
    raters = [_read_answers(require_file(file), key) for file in settings.answers]
    # Not by name: a rater may give it, or change it, between two saves.
    stamps = [rater["started"] for rater, _ in raters]
    if twice := next(
        (file for file, stamp in zip(settings.answers, stamps, strict=True) if stamps.count(stamp) > 1), None
    ):
        found = f"{twice.name} and another file have the same rater and start time"
        raise FileError("listening-answers", found, expected="one file per rater, the last one saved", where=twice)
    systems: tuple[str, str] = (key["systems"][0], key["systems"][1])
    order = {pair["id"]: index for index, pair in enumerate(key["pairs"])}
    votes = np.full((len(raters), len(order)), np.nan)
    faults = {name: dict.fromkeys(FAULTS, 0) for name in systems}
    summaries = []
    for row, (rater, choices) in enumerate(raters):
        for choice in choices:
            pair = key["pairs"][order[choice.pair]]
            chosen = None if choice.choice == "same" else pair[choice.choice]
            votes[row, order[choice.pair]] = 0 if chosen is None else 1 if chosen == systems[0] else -1
            for side, marked in choice.faults.items():
                for fault in marked:
                    faults[pair[side]][fault] += 1
        counts = {name: int((votes[row] == sign).sum()) for name, sign in zip(systems, (1, -1), strict=True)}
        sides = {f"chose_{side}": sum(choice.choice == side for choice in choices) for side in ("a", "b", "same")}
        summaries.append({"rater": rater["rater"], "answers": len(choices), "preferred": counts, **sides})
    languages = {
        language: measure_preference(
            votes[:, [index for index, pair in enumerate(key["pairs"]) if pair["language"] == language]], settings.seed
        )
        for language in dict.fromkeys(pair["language"] for pair in key["pairs"])
    }
    return PreferenceResult(systems, measure_preference(votes, settings.seed), languages, summaries, faults)


def _read_key(path: Path) -> dict[str, Any]:
    key = read_json(path, MAX_ANSWERS_BYTES)
    try:
        systems, pairs = key["systems"], key["pairs"]
        sound = key["format"] == KEY_FORMAT and isinstance(key["test"], str) and len(systems) == len(set(systems)) == 2
        sound = sound and all(isinstance(pair["id"], str) and isinstance(pair["language"], str) for pair in pairs)
        sound = sound and all({pair["a"], pair["b"]} == set(systems) for pair in pairs)
        if not sound or not pairs or len({pair["id"] for pair in pairs}) != len(pairs):
            raise ValueError("wrong format, systems or pairs")
    except (KeyError, TypeError, ValueError) as fault:
        missing = f"no {fault}" if isinstance(fault, KeyError) else f"{fault}"
        found = f"{path.name} is not the key of a listening test ({missing})"
        raise FileError("listening-answers", found, expected=f"{KEY_NAME} ({KEY_FORMAT})", where=path) from fault
    return dict(key)


def _read_answers(path: Path, key: Mapping[str, Any]) -> tuple[dict[str, str], list[PairChoice]]:
    """One rater's name and start, and the answers; a file of another test is refused."""
    document = read_json(path, MAX_ANSWERS_BYTES)
    known = {pair["id"] for pair in key["pairs"]}
    try:
        if document["format"] != ANSWERS_FORMAT:
            raise ValueError(f"format {document['format']!r}")
        if document["test"] != key["test"]:
            raise ValueError(f"they are answers to test {document['test']!r}, but the key belongs to {key['test']!r}")
        rater = {name: str(document[name]) for name in ("rater", "started")}
        choices = [
            PairChoice(one["pair"], one["choice"], {side: one["faults"].get(side, []) for side in ("a", "b")})
            for one in document["answers"]
        ]
        for choice in choices:
            if choice.pair not in known or choice.choice not in ("a", "b", "same"):
                raise ValueError(f"the answer {choice.choice!r} to pair {choice.pair!r}")
            if wrong := [fault for marked in choice.faults.values() for fault in marked if fault not in FAULTS]:
                raise ValueError(f"the fault {wrong[0]!r}")
        if len({choice.pair for choice in choices}) != len(choices):
            raise ValueError("two answers to one pair")
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        missing = f"no {fault}" if isinstance(fault, KeyError) else f"{fault}"
        found = f"{path.name} does not contain answers to this test: {missing}"
        expected = f"a file that the page of test {key['test']} saved"
        raise FileError("listening-answers", found, expected=expected, where=path) from fault
    return rater, choices
