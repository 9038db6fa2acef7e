"""Cost of a pack: size, and a recognizer's letter error on held-out clips, original and after each coding.

python -m recipes.human_voices.measure_pack --downloads downloads --recognizer whisper:FOLDER
"""

from __future__ import annotations

import argparse
import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recipes.human_voices.gather import choose_splits, read_source
from recipes.human_voices.pack import STEP, HumanClip, Samples, decode, encode, mu_law_decode, mu_law_encode, read_pack
from recipes.human_voices.packages import SOURCES, fetch
from voxgraft.asr import open_recognizer
from voxgraft.evaluation.scores import compute_error_rates
from voxgraft.evaluation.sentences import EvalSentence

RATE_HZ = 16_000


def main() -> None:
    """Print one line per coding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--downloads", type=Path)
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--recognizer", required=True)
    parser.add_argument("--source", default="festvox-ru")
    parser.add_argument("--clips", type=int, default=20)
    parser.add_argument("--steps", type=float, nargs="*", default=[STEP, 2 * STEP, 4 * STEP])
    given = parser.parse_args()
    if given.pack is not None:
        report_pack(given.pack, given.recognizer, given.clips)
        return
    if given.downloads is None:
        parser.error("give --downloads or --pack")
    source = next(source for source in SOURCES if source.name == given.source)
    clips = choose_splits(source, list(read_source(source, fetch(given.downloads))))
    held_out = [clip for clip in clips if clip.split in ("test", "unseen")][: given.clips]
    seconds = sum(len(clip.wave) for clip in held_out) / RATE_HZ
    recognizer = open_recognizer(given.recognizer)
    print(f"{source.name}: {len(held_out)} clips, {seconds:.0f} s", flush=True)

    def report(name: str, waves: Sequence[Samples], size: int) -> None:
        noise = [
            10 * np.log10((one.wave.astype(float) ** 2).sum() / max(1.0, ((one.wave.astype(float) - wave) ** 2).sum()))
            for one, wave in zip(held_out, waves, strict=True)
        ]
        scaled = [wave.astype(np.float32) / np.float32(32768) for wave in waves]
        transcripts = [recognizer.transcribe([wave], RATE_HZ, source.language)[0] for wave in scaled]
        sentences = [EvalSentence(source.language, clip.text) for clip in held_out]
        score = compute_error_rates(sentences, transcripts, 0)["cer"]
        ends = f"{score.low:.1%} to {score.high:.1%}" if score.low is not None and score.high is not None else ""
        print(f"{name}: {size / seconds / 1000:.2f} kB/s, signal to noise {np.mean(noise):.1f} dB, "
              f"letter error {score.value:.1%} ({ends})", flush=True)  # fmt: skip

    report("as recorded, 16 bits", [clip.wave for clip in held_out], 2 * sum(len(clip.wave) for clip in held_out))
    mu_law = [mu_law_encode(clip.wave) for clip in held_out]
    report("mu-law", [mu_law_decode(codes) for codes in mu_law], sum(len(codes) for codes in mu_law))
    for step in given.steps:
        report(f"MDCT, step {step:g}", [_through(clip, step) for clip in held_out], _size(held_out, step))


def report_pack(path: Path, recognizer_name: str, count: int) -> None:
    """Letter error of each speaker on up to `count` held-out clips."""
    recognizer = open_recognizer(recognizer_name)
    by_speaker: dict[str, list[HumanClip]] = {}
    for clip in read_pack(path):
        if clip.split in ("test", "unseen"):
            by_speaker.setdefault(clip.speaker, []).append(clip)
    for speaker, clips in by_speaker.items():
        own, language = clips[:count], clips[0].language
        waves = [clip.wave.astype(np.float32) / np.float32(32768) for clip in own]
        transcripts = [recognizer.transcribe([wave], RATE_HZ, language)[0] for wave in waves]
        score = compute_error_rates([EvalSentence(language, clip.text) for clip in own], transcripts, 0)["cer"]
        ends = f"{score.low:.1%} to {score.high:.1%}" if score.low is not None and score.high is not None else ""
        print(f"{speaker} ({language}, {own[0].split}): {len(own)} clips, letter error {score.value:.1%} ({ends})")


def _through(clip: HumanClip, step: float) -> Samples:
    return decode(*encode(clip.wave, step), len(clip.wave), step)


def _size(clips: Sequence[HumanClip], step: float) -> int:
    """Bytes of codes and levels as `write_pack` stores them."""
    coded = [encode(clip.wave, step) for clip in clips]
    codes = np.concatenate([one for one, _ in coded])
    levels = np.diff(np.concatenate([one for _, one in coded]), axis=0, prepend=np.int8(0)).T
    return len(lzma.compress(codes.tobytes())) + len(lzma.compress(levels.tobytes()))


if __name__ == "__main__":
    main()
