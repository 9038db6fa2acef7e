"""How well voices are counted: draws of 1, 2, 3 and 6 voices whose number is known, by length of the clips.

    python -m benchmarks.human_speech packages sets
    python -m benchmarks.voices sets --flite packages/usr

takes the speakers of the datasets as voices (two named in `SAME` may be one person), and adds synthetic voices of
espeak-ng and flite. Thresholds were chosen with the voices in `CHOSEN_WITH`; the others are the test. *One voice, two
rooms* changes the spectrum, the bandwidth and the noise of half of the clips of one voice.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import soundfile

from benchmarks.transcripts import RATE_HZ, say, sentences
from voxgraft.audio.files import AudioSamples, read_clip_audio, resample
from voxgraft.audio.voices import VoiceVectors, compute_voice_vectors, count_voices
from voxgraft.data.manifest import read_manifest

CHOSEN_WITH = (
    *("asterisk-en", "asterisk-it", "asterisk-ru", "nsh", "cs-m", "cs-v"),
    *("flite-awb", "flite-slt", "espeak-m1", "espeak-f2"),
)
SAME = frozenset({"asterisk-en", "asterisk-es"})
CLIPS_PER_VOICE, CLIPS_PER_DRAW = 200, 120
LENGTHS = ((2.0, 4.0), (4.0, 12.0), (2.0, 99.0))
Clips = list[tuple[float, VoiceVectors, VoiceVectors]]
"""Seconds, vectors, and vectors of the clip in another room."""


def other_room(samples: AudioSamples, rate: int, seed: int) -> AudioSamples:
    """The same speech at 8 kHz, with another slope of the spectrum and with noise 30 dB below it."""
    wave = resample(resample(samples, rate, 8_000), 8_000, rate)
    wave = wave - 0.6 * np.concatenate([wave[:1], wave[:-1]])
    level = float(np.sqrt(np.square(wave).mean()))
    return (wave + np.random.default_rng(seed).normal(0, 0.03 * level, len(wave))).astype(np.float32)


def load_voices(sets: Path, flite: Path | None) -> dict[str, Clips]:
    found: dict[str, Clips] = {}

    def add(name: str, samples: AudioSamples, rate: int) -> None:
        own = found.setdefault(name, [])
        moved = compute_voice_vectors(other_room(samples, rate, len(own)), rate)
        own.append((len(samples) / rate, compute_voice_vectors(samples, rate), moved))

    for folder in sorted(path.parent for path in sets.glob("*/manifest.jsonl")):
        clips = [clip for clip in read_manifest(folder / "manifest.jsonl") if clip.seconds >= LENGTHS[0][0]]
        for speaker in sorted({clip.speaker for clip in clips}):
            own = [clip for clip in clips if clip.speaker == speaker]
            for clip in random.Random(0).sample(own, min(CLIPS_PER_VOICE, len(own))):
                add(speaker, *read_clip_audio(clip.resolve_audio(folder)))
    texts = random.Random(0).sample(sentences("en"), 60)
    for voice in ("m1", "m3", "f2", "f4"):
        for number, text in enumerate(texts):
            add(f"espeak-{voice}", say(text, voice, "en", 0.002, number), RATE_HZ)
    for voice in ("kal16", "awb", "rms", "slt") if flite else ():
        with tempfile.TemporaryDirectory() as place:
            wav = Path(place) / "said.wav"
            for text in texts:
                command = [str(flite / "bin/flite"), "-voice", voice, "-t", text, "-o", str(wav)]
                libraries = {"LD_LIBRARY_PATH": str(flite / "lib/x86_64-linux-gnu")}
                subprocess.run(command, check=True, env={**os.environ, **libraries})
                add(f"flite-{voice}", *soundfile.read(wav, dtype="float32"))
    return found


def measure(voices: dict[str, Clips], names: list[str], count: int, length: tuple[float, float], draws: int) -> str:
    """Estimates of some draws; `count` 0 is one voice in two rooms."""
    chance, estimates, certain = random.Random(count), Counter[int](), 0
    for _ in range(draws):
        chosen = chance.sample(names, max(1, count))
        sample: list[VoiceVectors] = []
        for name in chosen:
            own = [clip for clip in voices[name] if length[0] <= clip[0] < length[1] and len(clip[1]) and len(clip[2])]
            drawn = chance.sample(own, min(len(own), CLIPS_PER_DRAW // len(chosen)))
            sample += [clip[2] if not count and at % 2 else clip[1] for at, clip in enumerate(drawn)]
        if (found := count_voices(sample)) is not None:
            estimates[found.voices] += 1
            certain += found.is_one_certain
    shown = ", ".join(f"{voices} voices {number}x" for voices, number in sorted(estimates.items()))
    return f"{estimates.total()} draws: {shown}; certainly one {certain}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--flite", type=Path, help="folder with bin/flite and its libraries")
    parser.add_argument("--draws", type=int, default=40)
    given = parser.parse_args()
    voices = load_voices(given.sets, given.flite)
    for part in ("chosen with", "test"):
        own = [name for name in voices if (name in CHOSEN_WITH) == (part == "chosen with")]
        human = [name for name in own if not name.startswith(("espeak", "flite"))]
        print(f"{part}: {', '.join(own)}")
        for kind, names in (("human", human), ("all", own)):
            for length in LENGTHS:
                for count in (1, 0, 2, 3, 6):
                    told = measure(voices, names, count, length, given.draws)
                    title = f"{count} voices" if count else "1 voice, 2 rooms"
                    print(f"  {kind}, {length[0]:g} to {length[1]:g} s, {title}: {told}", flush=True)
    names = [name for name in voices if name != "asterisk-es"]
    print(f"all {len(names)} voices: {measure(voices, names, len(names), (2.0, 99.0), given.draws // 4)}")


if __name__ == "__main__":
    main()
