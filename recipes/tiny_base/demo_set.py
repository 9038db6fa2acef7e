"""Make the training speech of `voxgraft demo`: Amharic as codes of the shipped codec, with texts and speakers.

The lines come from the recipe's plan, so they contain neither voxgraft's evaluation sentences nor their rare words.
Also some held-out speech in all three languages, and a few held-out clips as audio.

    python -m recipes.tiny_base.demo_set --packages packages
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from recipes.tiny_base.corpus import ESPEAK_SHARES, ETHIOPIC_PAUSES, MAX_SECONDS, MIN_SECONDS, SIZES
from recipes.tiny_base.speech import ESPEAK_SPEAKERS, RATE_HZ, Voices
from recipes.tiny_base.texts import FOLDED, LANGUAGES, Line, Split, plan_lines
from voxgraft.audio.files import encode_audio
from voxgraft.core.files import compute_sha256
from voxgraft.demo.data import (
    CODEC_METADATA_KEY,
    CODES_NAME,
    RECORDINGS_FOLDER,
    SILENCE_METADATA_KEY,
    SPEECH_COLUMNS,
    TABLE_NAME,
)
from voxgraft.models.tiny.model import TinyClipEncoder, load_codec

DATA = Path(__file__).resolve().parents[2] / "voxgraft" / "assets"
NEW_LANGUAGE = "am"
HELD_OUT = {"am": 24, "en": 8, "fr": 8}
RECORDING_SECONDS = (1.1, 1.5)
"""Length of the clips that are stored as audio, one per speaker."""
TIMES_A_LETTER = 6

Wave = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A line and its audio."""

    line: Line
    wave: Wave

    @property
    def seconds(self) -> float:
        return len(self.wave) / RATE_HZ


def main() -> None:
    """Write all files of the demo speech."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder that gather.py made")
    parser.add_argument("--out", type=Path, default=DATA / "demo", help="folder for the files (default: %(default)s)")
    parser.add_argument("--base", type=Path, default=DATA / "tiny", help="the base whose codec it is for")
    parser.add_argument("--minutes", type=float, default=60.0, help="of Amharic to learn from (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the recipe's seed (default: %(default)s)")
    given = parser.parse_args()
    voices = Voices(given.packages)
    plans = {
        language: plan_lines(
            given.packages / "texts", language, SIZES["full"][language], ESPEAK_SHARES, voices.phones, given.seed
        )
        for language in LANGUAGES
    }
    for language in plans:
        plans[language] = list(respelled(plans[language], spellings(given.packages / "texts", language)))
    amharic = rare_letters_first([line for line in plans[NEW_LANGUAGE] if line.split == "train"])
    learnt = list(until(spoken(voices, amharic, "train"), given.minutes * 60))
    known = {one.line.text for one in learnt}
    held_out = {
        language: [one for one in spoken(voices, plans[language], "valid") if one.line.text not in known]
        for language in LANGUAGES
    }
    kept = recordings(held_out[NEW_LANGUAGE])
    parts = [("train", learnt), *(("valid", some[: HELD_OUT[name]]) for name, some in held_out.items())]
    write_codes(given.out, given.base, parts)
    write_recordings(given.out / RECORDINGS_FOLDER.name, kept, voices)
    minutes = sum(one.seconds for one in learnt) / 60
    print(f"{len(learnt):,} clips, {minutes:.1f} min of {NEW_LANGUAGE}; held out: {HELD_OUT}; {len(kept)} as audio")


def spellings(texts: Path, language: str) -> dict[str, str]:
    """The usual spelling of each word, by its folded form: the plan folds letters that sound alike."""
    paths = [path for path in (texts / f"{language}.txt", texts / f"{language}-words.txt") if path.exists()]
    words = Counter(word for path in paths for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))
    usual: dict[str, str] = {}
    for word, _ in words.most_common():
        usual.setdefault(word.translate(FOLDED), word)
    return usual


def respelled(lines: Sequence[Line], usual: Mapping[str, str]) -> Iterator[Line]:
    """The lines with the usual spelling of every word."""
    for line in lines:
        yield replace(line, text=re.sub(r"\w+", lambda found: usual.get(found[0], found[0]), line.text))


def rare_letters_first(lines: Sequence[Line]) -> list[Line]:
    """The lines, reordered so that every letter occurs a few times early, as far as possible."""
    seen: Counter[str] = Counter()
    needed: list[Line] = []
    for line in lines:
        if any(seen[letter] < TIMES_A_LETTER for letter in line.text):
            seen.update(line.text)
            needed.append(line)
    chosen = set(needed)
    return [*needed, *(line for line in lines if line not in chosen)]


def spoken(voices: Voices, lines: Sequence[Line], split: Split) -> Iterator[Spoken]:
    """The lines of a split, synthesized in order, each text once."""
    seen: set[str] = set()
    for line in lines:
        if line.split != split or line.text in seen:
            continue
        seen.add(line.text)
        one = Spoken(line, voices.speak(line.text.translate(ETHIOPIC_PAUSES), line.language, line.speaker))
        if MIN_SECONDS <= one.seconds <= MAX_SECONDS:
            yield one


def until(clips: Iterator[Spoken], seconds: float) -> Iterator[Spoken]:
    """The first clips, up to the given number of seconds."""
    for one in clips:
        if seconds <= 0:
            return
        seconds -= one.seconds
        yield one


def recordings(held_out: Sequence[Spoken]) -> list[Spoken]:
    """The first short clip of each speaker after those stored as codes."""
    shortest, longest = RECORDING_SECONDS
    rest = [one for one in held_out[HELD_OUT[NEW_LANGUAGE] :] if shortest <= one.seconds <= longest]
    return [next(one for one in rest if one.line.speaker == speaker) for speaker in ESPEAK_SPEAKERS]


def write_codes(folder: Path, base: Path, parts: Sequence[tuple[str, Sequence[Spoken]]]) -> None:
    """The table of clips, and their concatenated codes in the same order."""
    encoder = TinyClipEncoder(*load_codec(base))
    rows, codes = ["\t".join(SPEECH_COLUMNS)], []
    for role, clips in parts:
        waves = [one.wave.astype(np.float32) / 32768 for one in clips]
        for one, clip in zip(clips, encoder.encode(waves), strict=True):
            codes.append(clip.codes.astype(np.uint16))
            line = one.line
            rows.append("\t".join([role, line.language, line.speaker, str(len(clip.codes)), line.text]))
    folder.mkdir(parents=True, exist_ok=True)
    silence = encoder.encode([np.zeros(RATE_HZ, dtype=np.float32)])[0].codes
    codec = compute_sha256(base / "codec.safetensors")
    notes = {CODEC_METADATA_KEY: codec, SILENCE_METADATA_KEY: str(np.bincount(silence).argmax())}
    (folder / CODES_NAME).write_bytes(save({"codes": np.concatenate(codes)}, metadata=notes))
    (folder / TABLE_NAME).write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_recordings(folder: Path, clips: Sequence[Spoken], voices: Voices) -> None:
    """Write the clips in the format of `voxgraft evaluate --recordings`."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in clips:
        text = one.line.text
        path = folder / f"{one.line.language}-{one.line.speaker}.wav"
        path.write_bytes(encode_audio(one.wave.astype(np.float32) / 32768, RATE_HZ))
        path.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
        phones = voices.phones(text.translate(ETHIOPIC_PAUSES), one.line.language)
        path.with_suffix(".phones").write_text(" ".join(phones) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
