"""A folder of talks to try things with: the speech that ships, as recordings with subtitles, as people have them.

`python -m voxgraft.demo.talks FOLDER` writes one. Nobody speaks in it: the voices are synthetic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from voxgraft.demo.data import BundledClip, load_bundled_clips
from voxgraft.families import get_family

__all__ = ["render_talk", "write_talks"]

NUM_TALKS, UTTERANCES_PER_TALK = 12, 20
"""Thirteen minutes in all, pauses and all."""
TALK_RATE_HZ = 44_100
TALK_PAUSE_SECONDS = 0.7
SUBTITLE_LEAD_SECONDS, SUBTITLE_TAIL_SECONDS = 0.15, 0.25
"""Subtitles come before the first word and stay after the last."""


def write_talks(folder: Path, talks: int, utterances: int, report: Callable[[str], object] = str) -> list[str]:
    """So many talks of one speaker each, with their subtitles; all that is said. `tell` gets a line for each."""
    folder.mkdir(parents=True)
    said = []
    of: dict[str, list[BundledClip]] = {}
    for clip in load_bundled_clips("train", "am"):
        of.setdefault(clip.speaker, []).append(clip)
    for number in range(talks):
        own = of[sorted(of)[number % len(of)]]
        clips, own[:utterances] = own[:utterances], []
        samples, times = render_talk(clips)
        # Every other talk as another kind of file.
        path = folder / f"talk{number}.{'flac' if number % 2 else 'ogg'}"
        with soundfile.SoundFile(path, "w", TALK_RATE_HZ, 1) as file:
            for start in range(0, len(samples), TALK_RATE_HZ):  # libsndfile dies of long stretches of Vorbis
                file.write(samples[start : start + TALK_RATE_HZ])
        write = _format_vtt if number % 3 == 2 else _format_srt
        ending = "vtt" if number % 3 == 2 else "srt"
        (folder / f"talk{number}.{ending}").write_text(write(clips, times), encoding="utf-8")
        said += [clip.text for clip in clips]
        report(f"{number + 1} of {talks}: {path.name}, {len(samples) / TALK_RATE_HZ:.0f} s")
    return said


def render_talk(clips: list[BundledClip]) -> tuple[NDArray[np.float32], list[tuple[float, float]]]:
    """The clips one after another with pauses, and where each is."""
    import soxr

    tiny = get_family("tiny")
    files = tiny.files(tiny.shipped_folder() or Path())
    vocoder, voices = tiny.vocoder(files), tiny.voices(files)
    assert vocoder is not None
    pause = np.zeros(round(TALK_PAUSE_SECONDS * TALK_RATE_HZ), np.float32)
    parts, times = [pause], []
    for clip in clips:
        wave = vocoder.sound([clip.codes.tolist()], [voices[clip.speaker]])[0]
        wave = soxr.resample(wave, vocoder.sample_rate, TALK_RATE_HZ)
        start = sum(map(len, parts)) / TALK_RATE_HZ
        times.append((start, start + len(wave) / TALK_RATE_HZ))
        parts += [wave.astype(np.float32), pause]
    samples = np.concatenate(parts)
    return (samples + 1e-4 * np.random.default_rng(0).standard_normal(len(samples))).astype(np.float32), times


def _format_srt(clips: list[BundledClip], times: list[tuple[float, float]]) -> str:
    blocks = [
        f"{number}\n{_format_time(start - SUBTITLE_LEAD_SECONDS, ',')} --> {_format_time(end + SUBTITLE_TAIL_SECONDS, ',')}\n{clip.text}\n"
        for number, (clip, (start, end)) in enumerate(zip(clips, times, strict=True), 1)
    ]
    return "\n".join(blocks)


def _format_vtt(clips: list[BundledClip], times: list[tuple[float, float]]) -> str:
    blocks = [
        f"{_format_time(start - SUBTITLE_LEAD_SECONDS, '.')} --> {_format_time(end + SUBTITLE_TAIL_SECONDS, '.')}\n{clip.text}\n"
        for clip, (start, end) in zip(clips, times, strict=True)
    ]
    return "WEBVTT\n\n" + "\n".join(blocks)


def _format_time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


def main(words: list[str]) -> int:
    """The talks of the tutorial, a line for each; 2 where that cannot be."""
    tell = partial(print, file=sys.stderr)
    if len(words) != 1 or Path(words[0]).exists():
        tell("python -m voxgraft.demo.talks FOLDER: name one folder, which must not be there yet")
        return 2
    tell(f"making {NUM_TALKS} talks of about a minute in {words[0]}")
    write_talks(Path(words[0]), NUM_TALKS, UTTERANCES_PER_TALK, tell)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
