"""`data verify` and `data align` on speech whose texts and places are known.

`python -m benchmarks.transcripts verify` speaks sentences of a language with espeak-ng in several voices, gives 5 % of
the clips the text of another clip, and counts how many of these are among the worst tenth. Languages other than English,
French and Amharic are not known to the built-in recognizer, which then compares classes of sounds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from importlib import resources
from pathlib import Path

import numpy as np
import soxr

from benchmarks.film import RATE_HZ, VOICES, Wave, _espeak
from voxgraft.asr.transcripts import data_verify
from voxgraft.audio.files import write_clip_audio
from voxgraft.config.data import DataVerifySettings
from voxgraft.data.manifest import ManifestClip, write_manifest

SWAPPED_SHARE, WORST_SHARE = 0.05, 0.1


def sentences(language: str) -> list[str]:
    """Sentences of 5 to 16 words that ship with voxgraft, without digits."""
    files = resources.files("voxgraft").joinpath("assets")
    place = next(path for folder in ("demo", "proof") if (path := files.joinpath(folder, f"{language}.txt")).is_file())
    lines = dict.fromkeys(place.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if 5 <= len(line.split()) <= 16 and not any(map(str.isdigit, line))]


def say(text: str, voice: str, language: str, noise: float, seed: int) -> Wave:
    """A sentence at RATE_HZ with a little noise."""
    wave = soxr.resample(_espeak().speak(text, voice, language), _espeak().rate_hz, RATE_HZ).astype(np.float32)
    wave *= 0.6 / max(1e-6, float(np.abs(wave).max()))
    made: Wave = wave + np.random.default_rng(seed).normal(0, noise, len(wave)).astype(np.float32)
    return made


def make_swapped_dataset(folder: Path, language: str, count: int, seed: int, noise: float = 0.002) -> set[str]:
    """A dataset in which some clips have each other's texts; returns the ids of these."""
    chance = random.Random(seed)
    texts = chance.sample(sentences(language), min(count, len(sentences(language))))
    wrong = chance.sample(range(len(texts)), max(2, round(SWAPPED_SHARE * len(texts))))
    written = dict(enumerate(texts))
    for at, other in zip(wrong, [*wrong[1:], wrong[0]], strict=True):
        written[at] = texts[other]
    clips = []
    for at, text in enumerate(texts):
        voice = VOICES[at % len(VOICES)]
        wave = say(text, voice, language, noise, at)
        seconds = len(wave) / RATE_HZ
        clip = ManifestClip(
            f"c{at:04d}", f"clips/c{at:04d}.flac", seconds, written[at], language, voice, f"r{at}", RATE_HZ
        )
        write_clip_audio(folder / clip.audio, wave, RATE_HZ)
        clips.append(clip)
    write_manifest(folder / "manifest.jsonl", clips)
    return {f"c{at:04d}" for at in wrong}


def measure_verify(language: str, count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        swapped = make_swapped_dataset(Path(place), language, count, seed)
        start = time.process_time()
        found = data_verify(DataVerifySettings(dataset=Path(place), worst=WORST_SHARE)).to_json()
        seconds = time.process_time() - start
    worst, marked = {one["id"] for one in found["worst"]}, set(found["marked"])
    print(
        f"{language}: {found['clips']} clips, {len(swapped)} swapped, {len(swapped & worst)} of them in the worst "
        f"{WORST_SHARE:.0%} ({len(worst)} clips); marked {len(marked)}, of them swapped {len(marked & swapped)}; "
        f"median disagreement {found['median']:.3f}; {seconds:.0f} s of processor time"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("verify",))
    parser.add_argument("--languages", nargs="+", default=["en", "fr", "am"])
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for language in given.languages:
        measure_verify(language, given.clips, given.seed)


if __name__ == "__main__":
    main()
