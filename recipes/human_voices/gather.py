"""Human voices for the tiny base: download packages, select and split clips, and pack them into one file.

    python -m recipes.human_voices.gather --downloads downloads --out human.npz --training people.npz

Needs apt-get, dpkg-deb, voxgraft and 1 GB of disk. The pack must never be committed: most of it is under GPL-2 or
CC-BY-SA-3.0. A training machine needs only the pack, NumPy and torch.

What is held out: 60 sentences of festvox-ru and 30 of every other training speaker (`test`), and the whole voices of
Asterisk's Russian, English, French and Spanish prompts (`unseen`). A text that is held out is in no training clip.
"""

from __future__ import annotations

import argparse
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from recipes.human_voices.opus import Opus, write_opus_pack
from recipes.human_voices.pack import STEP, HumanClip, Split, write_pack
from recipes.human_voices.packages import NO_TEXT, SOURCES, Source, fetch
from recipes.tiny_base.speech import levelled, trimmed
from voxgraft.audio.files import MediaReader
from voxgraft.core import rng
from voxgraft.core.errors import VoxgraftError

__all__ = ["capped", "choose_splits", "compare_letters", "read_source"]

RATE_HZ = 16_000
MIN_SECONDS, MAX_SECONDS = 0.9, 12.0
MIN_EXTRA_SECONDS = 0.35
NUM_TEST = {"festvox-ru": 60}
NUM_OTHER_TEST, NUM_VALID, NUM_UNSEEN = 30, 10, 60
"""Per speaker."""
CAP_MINUTES = {"fillets-cs": 25.0, "fillets-nl": 25.0, "klettres": 1.7, "tuxpaint": 21.7, "ktuberling": 6.7}
"""Per speaker in the training pack, to limit its size."""
BITS_PER_SECOND = 13_000
LONGEST = {"festvox-ru": 18.0}
"""Maximum seconds of a clip in the training pack."""
MIN_UNSEEN_WORDS = 4
"""Recognizers for sentences fail on single words."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--downloads", type=Path, required=True, help="folder for the packages")
    parser.add_argument("--out", type=Path, required=True, help="the pack, a .npz file")
    parser.add_argument("--training", type=Path, help="also a pack of what is learned and validated on, as Opus")
    parser.add_argument("--max-seconds", type=float, default=MAX_SECONDS, help="longer clips are left out")
    parser.add_argument("--step", type=float, default=STEP, help="coarseness of the pack (default: %(default)s)")
    parser.add_argument("--sources", nargs="*", default=[source.name for source in SOURCES])
    given = parser.parse_args()
    root = fetch(given.downloads)
    clips: list[HumanClip] = []
    for source in SOURCES:
        if source.name in given.sources:
            longest = max(given.max_seconds, LONGEST.get(source.name, 0.0)) if given.training else given.max_seconds
            clips += choose_splits(source, list(read_source(source, root, longest)))
    if given.training is not None:
        chosen = capped(clips)
        write_opus_pack(given.training, chosen, BITS_PER_SECOND, Opus())
        print(f"{given.training}: {len(chosen)} clips, {given.training.stat().st_size / 2**20:.1f} MiB")
    extra = {source.name for source in SOURCES if source.is_extra}
    clips = [c for c in clips if c.package not in extra and len(c.wave) <= given.max_seconds * RATE_HZ]
    write_pack(given.out, clips, given.step)
    for line in describe(clips):
        print(line)
    print(f"{given.out}: {given.out.stat().st_size / 2**20:.1f} MiB")


def capped(clips: Sequence[HumanClip]) -> list[HumanClip]:
    """Training and validation clips, with a maximum duration per speaker, in a fixed order."""
    used: Counter[tuple[str, str]] = Counter()
    kept = []
    for clip in sorted(clips, key=lambda clip: rng.hash_int("pack", clip.package, clip.name)):
        voice = clip.package, clip.speaker
        most = CAP_MINUTES.get(clip.package, math.inf) * 60 * RATE_HZ
        if clip.split == "valid" or (clip.split == "train" and used[voice] + len(clip.wave) <= most):
            used[voice] += len(clip.wave) if clip.split == "train" else 0
            kept.append(clip)
    return sorted(kept, key=lambda clip: (clip.package, clip.speaker, clip.name))


def read_source(source: Source, root: Path, max_seconds: float = MAX_SECONDS) -> Iterator[HumanClip]:
    """Clips of a source with texts, at 16 kHz, normalized and trimmed; all in the split `train`."""
    for path, text, speaker in source.recordings(root):
        letters = compare_letters(text)
        # Numbers can be read in several ways, so the transcript would be uncertain.
        if (text == NO_TEXT or not letters or any(sign.isdigit() for sign in letters)) and not source.is_extra:
            continue
        try:
            wave = np.concatenate(list(MediaReader(path, RATE_HZ).blocks()))
        except VoxgraftError as error:
            print(f"left out: {error.finding.found}")
            continue
        # In units of 16 bits, as the functions of the synthetic corpus expect it.
        cut = trimmed(wave.astype(np.float64) * 32767)
        shortest = MIN_EXTRA_SECONDS if source.is_extra else MIN_SECONDS
        if shortest <= len(cut) / RATE_HZ <= max_seconds and np.abs(cut).max() > 300:
            name = f"{path.parent.name}/{path.stem}"
            language = source.language or speaker[:2]
            known = "" if any(sign.isdigit() for sign in letters) or text == NO_TEXT else text
            speaker = f"{source.name}-{speaker}" if source.is_extra else speaker
            yield HumanClip(source.name, name, language, speaker, known, source.licence, "train", levelled(cut))


def choose_splits(source: Source, clips: Sequence[HumanClip], seed: int = 0) -> list[HumanClip]:
    """Assign splits; the result does not depend on the order of the clips."""
    ordered = sorted(clips, key=lambda clip: rng.hash_int("human", seed, clip.package, clip.name))
    if source.is_unseen:
        sentences = [clip for clip in ordered if len(clip.text.split()) >= MIN_UNSEEN_WORDS]
        return [replace(clip, split="unseen") for clip in _first_of_each_text(sentences)[:NUM_UNSEEN]]
    if source.is_extra:
        return list(clips)
    chosen: list[HumanClip] = []
    held: set[str] = set()
    num_test = NUM_TEST.get(source.name, NUM_OTHER_TEST)
    for speaker in sorted({clip.speaker for clip in clips}):
        own = [clip for clip in ordered if clip.speaker == speaker]
        sentences = _first_of_each_text([clip for clip in own if len(clip.text.split()) >= MIN_UNSEEN_WORDS])
        parts: tuple[tuple[Split, int, int], ...] = (
            ("test", 0, num_test),
            ("valid", num_test, num_test + NUM_VALID),
        )
        for split, first, end in parts:
            chosen += [replace(clip, split=split) for clip in sentences[first:end]]
        held |= {compare_letters(clip.text) for clip in sentences[: num_test + NUM_VALID]}
    # Speakers of one source may have the same texts: a held-out text is not used in training by any speaker.
    kept = {id(clip) for clip in ordered if compare_letters(clip.text) not in held}
    return chosen + [clip for clip in ordered if id(clip) in kept]


def compare_letters(text: str) -> str:
    """Letters and digits in lower case with single spaces, to compare texts."""
    return " ".join(re.sub(r"[^\w]|_", " ", unicodedata.normalize("NFC", text).casefold()).split())


def describe(clips: Iterable[HumanClip]) -> list[str]:
    """Clips and minutes by source, speaker and split."""
    counts: Counter[tuple[str, str, str]] = Counter()
    samples: Counter[tuple[str, str, str]] = Counter()
    for clip in clips:
        key = (clip.package, clip.speaker, clip.split)
        counts[key] += 1
        samples[key] += len(clip.wave)
    return [f"{' '.join(key)}: {counts[key]} clips, {samples[key] / RATE_HZ / 60:.1f} minutes" for key in counts]


def _first_of_each_text(clips: Sequence[HumanClip]) -> list[HumanClip]:
    found: dict[str, HumanClip] = {}
    for clip in clips:
        found.setdefault(compare_letters(clip.text), clip)
    return list(found.values())


if __name__ == "__main__":
    main()
