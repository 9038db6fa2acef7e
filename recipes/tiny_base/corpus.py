"""The corpus: every planned line, synthesized by many processes and stored in shards that later calls reuse.

The result depends only on the seed, not on the number of processes. Needs NumPy only.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recipes.tiny_base.speech import ESPEAK_SPEAKERS, FLITE_SPEAKERS, RATE_HZ, Voices
from recipes.tiny_base.texts import LANGUAGES, Amounts, Line, Split, plan_lines

__all__ = ["MAKE_COMMAND", "SIZES", "SPEAKERS", "CorpusSpec", "Utterance", "make_corpus"]

MAKE_COMMAND = (
    "python -m recipes.tiny_base.gather --out packages && "
    "python -m recipes.tiny_base.make --out made --packages packages"
)
"""Command that builds the shipped files, as the cards state it."""
SPEAKERS = (*ESPEAK_SPEAKERS, *FLITE_SPEAKERS)
ESPEAK_SHARES = [(speaker, 1.0) for speaker in ESPEAK_SPEAKERS]
SHARES = {"en": [*ESPEAK_SHARES, ("slt", 0.7), ("rms", 0.5)], "fr": ESPEAK_SHARES, "am": ESPEAK_SHARES}
MIN_SECONDS, MAX_SECONDS = 0.3, 6.4
LINES_A_SHARD = 400
ETHIOPIC_PAUSES = str.maketrans({"።": ".", "፣": ",", "፤": ",", "፥": ",", "፧": "?"})

SIZES: dict[str, dict[str, Amounts]] = {
    "toy": {language: Amounts(90, 8, 8, 200, 40) for language in LANGUAGES},
    "full": {
        "en": Amounts(85_000, 500, 200, 14_000, 400),
        "fr": Amounts(35_000, 500, 200, 10_000, 400),
        "am": Amounts(20_000, 500, 200, 10_000, 400),
    },
    # In addition to human recordings, for the codec.
    "some": {
        "en": Amounts(9_000, 100, 20, 14_000, 400),
        "fr": Amounts(6_000, 100, 20, 10_000, 400),
        "am": Amounts(6_000, 100, 20, 10_000, 400),
    },
}


@dataclass(frozen=True, slots=True)
class Utterance:
    """One synthesized line."""

    language: str
    speaker: str
    text: str
    phones: tuple[str, ...]
    """IPA of espeak-ng without stress and length, also for voices of flite."""
    wave: NDArray[np.int16]
    """At 16 kHz."""
    split: Split


@dataclass(frozen=True, slots=True)
class CorpusSpec:
    """Size, sources and folder of a corpus."""

    packages: Path
    folder: Path
    size: str = "full"
    seed: int = 0
    processes: int = 14
    splits: tuple[Split, ...] = ("train", "valid", "test", "test-unheard")


def make_corpus(spec: CorpusSpec, log: Callable[[str], None] = print) -> list[Utterance]:
    """Every utterance of the wanted splits, in the plan's order; existing shards are reused."""
    started = time.monotonic()
    with ProcessPoolExecutor(spec.processes, get_context("spawn"), _start, (spec.packages,)) as pool:
        planned = pool.map(_plan, LANGUAGES, [spec.size] * len(LANGUAGES), [spec.seed] * len(LANGUAGES))
        lines = [line for some in planned for line in some if line.split in spec.splits]
        log(f"corpus: {len(lines):,} lines planned, {time.monotonic() - started:.0f} s")
        shards = [lines[first : first + LINES_A_SHARD] for first in range(0, len(lines), LINES_A_SHARD)]
        paths = [spec.folder / f"{_fingerprint(shard)}.npz" for shard in shards]
        missing = [(path, shard) for path, shard in zip(paths, shards, strict=True) if not path.exists()]
        spec.folder.mkdir(parents=True, exist_ok=True)
        for number, _ in enumerate(pool.map(_speak_shard, missing), 1):
            if number % 50 == 0:
                log(f"corpus: {number} of {len(missing)} shards, {time.monotonic() - started:.0f} s")
    corpus = [utterance for path, shard in zip(paths, shards, strict=True) for utterance in _read(path, shard)]
    hours = sum(len(utterance.wave) for utterance in corpus) / RATE_HZ / 3600
    log(f"corpus: {len(corpus):,} utterances, {hours:.1f} h, {time.monotonic() - started:.0f} s")
    return corpus


_voices: Voices | None = None
_texts = Path()


def _start(packages: Path) -> None:
    global _voices, _texts
    _voices, _texts = Voices(packages), packages / "texts"


def _started() -> Voices:
    if _voices is None:
        raise RuntimeError("the process has no voices: _start was not called")
    return _voices


def _plan(language: str, size: str, seed: int) -> list[Line]:
    voices = _started()
    shares = SHARES[language] if voices.has_flite else ESPEAK_SHARES
    return plan_lines(_texts, language, SIZES[size][language], shares, voices.phones, seed)


def _speak_shard(task: tuple[Path, Sequence[Line]]) -> None:
    path, lines = task
    voices = _started()
    waves: list[NDArray[np.int16]] = []
    phones: list[str] = []
    for line in lines:
        spoken = line.text.translate(ETHIOPIC_PAUSES)
        waves.append(voices.speak(spoken, line.language, line.speaker))
        phones.append(" ".join(phone for phone in voices.phones(spoken, line.language) if "(" not in phone))
    made = path.with_suffix(".part")
    with made.open("wb") as file:
        lengths = np.array([len(wave) for wave in waves], np.int64)
        np.savez(file, wave=np.concatenate(waves), lengths=lengths, phones=np.array(phones))
    made.rename(path)


def _read(path: Path, lines: Sequence[Line]) -> list[Utterance]:
    """A shard's utterances, without those that are too long or nearly silent."""
    with np.load(path) as shard:
        wave, lengths, phones = shard["wave"], shard["lengths"], shard["phones"]
    ends = np.cumsum(lengths)
    return [
        Utterance(
            line.language, line.speaker, line.text, tuple(str(said).split()), wave[end - length : end], line.split
        )
        for line, said, length, end in zip(lines, phones, lengths, ends, strict=True)
        if MIN_SECONDS <= length / RATE_HZ <= MAX_SECONDS
    ]


def _fingerprint(lines: Sequence[Line]) -> str:
    return hashlib.sha256(json.dumps([asdict(line) for line in lines]).encode()).hexdigest()[:24]
