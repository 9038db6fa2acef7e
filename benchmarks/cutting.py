"""How well clips are cut: films whose truth is known, through `data import`'s own functions and by cue times alone.

    python -m benchmarks.cutting --films 4 --sentences 120

For each edge of a clip: how far it is from the edge of the speech; how many sentences lost sound; how much of a
neighbour is in a clip; which sentences are in two clips. Where captions do not go by sentences: whether the texts of
clips are those of their sound.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.film import RATE_HZ, Film, Pairing, make_film, make_talk, pairing
from voxgraft.audio.metrics import RollingAudioBuffer
from voxgraft.data.segment import CutOptions, cut_segments
from voxgraft.data.subtitles import Cue, clean_cues, dedupe_rolling_captions, parse_subtitles
from voxgraft.text.normalize import build_normalizer

CLIPPED_SECONDS = 0.01
BLOCK = 48_000


@dataclass(slots=True)
class Outcome:
    """What was measured over some films."""

    clips: int = 0
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """Distances of the cuts from the edges of the speech, in seconds; above 0 is outside."""
    clipped: int = 0
    bled: int = 0
    said_twice: int = 0
    lost: int = 0
    sentences: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def row(self, name: str) -> str:
        edges = np.abs(np.array([*self.starts, *self.ends])) * 1000
        figures = f"{np.median(edges):>7.0f} {np.percentile(edges, 95):>7.0f} {edges.max():>7.0f}"
        counts = f"{self.clipped:>8} {self.bled:>8} {self.said_twice:>10} {self.lost:>6}"
        return f"{name:<28} {self.sentences:>9} {self.clips:>6} {figures} {counts}"


def cuts_of(film: Film, options: CutOptions, *, by_cues_alone: bool = False) -> Iterator[Cue]:
    """Clips of a film, as `data import` makes them or by nothing but the captions' times."""
    cues = parse_subtitles(film.srt(), ".srt", "film.srt")[0]
    cues, _ = clean_cues(cues, "am", "film.srt")
    if by_cues_alone:
        yield from (replace(cue, marks=()) for cue in cues)
        return
    buffer = RollingAudioBuffer((film.wave[at : at + BLOCK] for at in range(0, len(film.wave), BLOCK)), RATE_HZ)
    cues, _ = dedupe_rolling_captions(cues, "film.srt")
    yield from (cut for cut, _ in cut_segments(buffer, cues, options))


def measure(film: Film, cuts: list[Cue], into: Outcome) -> None:
    """Compare clips with what was really said."""
    numbers = {caption_line: caption.said for caption_line, caption in zip(_lines(film), film.captions, strict=True)}
    found: Counter[int] = Counter()
    normalise = build_normalizer("am").normalise
    for cut in cuts:
        into.clips += 1
        into.rejected.update(cut.marks)
        inside = sorted({at for line, said in numbers.items() if cut.line <= line <= cut.last_line for at in said})
        text = normalise(cut.text).text
        for number, sentence in enumerate(film.said):
            found[number] += text.count(normalise(sentence.text).text) if number in inside or not inside else 0
        if not inside:
            continue
        first, last = film.said[inside[0]], film.said[inside[-1]]
        into.starts.append(first.start - cut.start)
        into.ends.append(cut.end - last.end)
        into.clipped += (cut.start > first.start + CLIPPED_SECONDS) + (cut.end < last.end - CLIPPED_SECONDS)
        others = [sentence for number, sentence in enumerate(film.said) if number not in inside]
        into.bled += any(min(cut.end, other.end) - max(cut.start, other.start) > CLIPPED_SECONDS for other in others)
    into.sentences += len(film.said)
    into.lost += sum(found[number] == 0 for number in range(len(film.said)))
    texts = [normalise(sentence.text).text for sentence in film.said]
    said, shown = " | ".join(texts), " | ".join(normalise(cut.text).text for cut in cuts)
    into.said_twice += sum(max(0, shown.count(text) - said.count(text)) for text in set(texts))


def _lines(film: Film) -> Iterator[int]:
    """The line of each caption's times in the subtitle file."""
    line = 1
    for caption in film.captions:
        yield line + 1
        line += 3 + len(caption.text.split("\n"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    columns = "   median    95 %     max  clipped    bled  said twice   lost"
    print(f"{'edges in ms':<28} {'sentences':>9} {'clips':>6}{columns}")
    margins = CutOptions(language="am")
    for rolling in (False, True):
        ours, plain, bare = Outcome(), Outcome(), Outcome()
        for number in range(asked.films):
            film = make_film(asked.sentences, asked.seed + number, rolling=rolling)
            measure(film, list(cuts_of(film, margins)), ours)
            measure(film, list(cuts_of(film, replace(margins, lead=0.0, tail=0.0))), bare)
            measure(film, list(cuts_of(film, margins, by_cues_alone=True)), plain)
        kind = "rolling captions" if rolling else "timed captions"
        print(ours.row(f"{kind}, import"))
        print(bare.row(f"{kind}, no margins"))
        print(plain.row(f"{kind}, cue times"))
        print(f"  rejected by import: {dict(ours.rejected)}")
    for full_lines in (False, True):
        found = Pairing()
        for number in range(asked.films):
            talk = make_talk(asked.sentences, asked.seed + number, full_lines=full_lines)
            pairing(talk, cuts_of(talk, margins), found)
        kind = "captions that end inside sentences" if full_lines else "captions of several sentences"
        print(f"{kind}: {found.right} clips right, {found.wrong} with a wrong text, {found.num_rejected} rejected")
        print(f"  rejected by import: {dict(found.rejected)}")


if __name__ == "__main__":
    main()
