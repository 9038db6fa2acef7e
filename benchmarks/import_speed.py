"""Ten hours through `voxgraft data import`: how fast, how much memory, and what ten kills on the way do to it.

    python -m benchmarks.import_speed FOLDER --hours 10 --kills 10

Makes films of known captions (see `film`), tiled to long recordings of several formats in FOLDER; imports them once
undisturbed and once killed again and again (SIGKILL of the whole command at random places), and compares both byte by
byte. Needs espeak-ng (`pip install espeakng-loader`) and psutil; about 2 GB of room for ten hours.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import soundfile

from benchmarks.film import RATE_HZ, Film, make_film, stamp
from voxgraft.audio.files import MediaReader
from voxgraft.data.manifest import read_manifest

SENTENCES = 280
SHARES = (("a", ".wav", 0.4), ("b", ".mp3", 0.3), ("c", ".flac", 0.3))


@dataclass(frozen=True, slots=True)
class Run:
    """One import, or several that were killed and the one that was not."""

    seconds: float
    peak_bytes: int
    kills: int


def make_sources(folder: Path, hours: float) -> float:
    """Recordings and subtitles; gives the seconds of sound."""
    folder.mkdir(parents=True)
    total = 0.0
    for seed, (name, ending, share) in enumerate(SHARES):
        film = make_film(SENTENCES, 100 + seed)
        total += _tile(film, folder / f"{name}{ending}", share * hours * 3600)
    return total


def _tile(film: Film, path: Path, wanted: float) -> float:
    """The film again and again in one file, with captions that go on."""
    seconds = len(film.wave) / RATE_HZ
    if path.suffix == ".mp3":  # frames of one file follow those of another as if they had been one
        film.write(path.parent, path.stem, ".mp3")
        data = path.read_bytes()
        seconds = sum(len(block) for block in MediaReader(path, RATE_HZ).blocks()) / RATE_HZ
        times = max(1, round(wanted / seconds))
        path.write_bytes(data * times)
    else:
        times = max(1, round(wanted / seconds))
        with soundfile.SoundFile(path, "w", RATE_HZ, 1, subtype="PCM_16") as stream:
            for _ in range(times):
                stream.write(film.wave)
    captions = [
        replace(caption, start=caption.start + at * seconds, end=caption.end + at * seconds)
        for at in range(times)
        for caption in film.captions
    ]
    blocks = [f"{n}\n{stamp(c.start)} --> {stamp(c.end)}\n{c.text}\n" for n, c in enumerate(captions, 1)]
    path.with_suffix(".srt").write_text("\n".join(blocks), encoding="utf-8")
    return times * seconds


def run_import(sources: Path, dataset: Path, kills: int, expected: int) -> Run:
    """Import to the end; with `kills` the command is killed at so many random places before."""
    words = [
        sys.executable,
        "-m",
        "voxgraft",
        "data",
        "import",
        str(dataset),
        str(sources),
        "--language",
        "am",
        "--quiet",
    ]
    places = sorted(random.Random(1).sample(range(expected // 20, expected), kills))
    begun, peak, done_kills = time.monotonic(), 0, 0
    while True:
        process = psutil.Popen(words)
        while process.poll() is None:
            peak = max(peak, _memory(process))
            if done_kills < kills and _num_clips(dataset) >= places[done_kills]:
                process.send_signal(signal.SIGKILL)
                done_kills += 1
                break
            time.sleep(0.2)
        code = process.wait()
        if code == 0:
            return Run(time.monotonic() - begun, peak, done_kills)
        if code != -signal.SIGKILL:
            raise SystemExit(f"the import ended with {code}")


def _memory(process: psutil.Process) -> int:
    """Resident bytes of the command and its processes; what they share counts once for each."""
    try:
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    except psutil.Error:
        return 0


def _num_clips(dataset: Path) -> int:
    return sum(path.read_bytes().count(b'\n{"clip"') for path in dataset.glob("imports/*.jsonl"))


def contents(dataset: Path) -> dict[str, str]:
    """A hash of every clip and of the manifest."""
    paths = [*dataset.rglob("*.flac"), dataset / "manifest.jsonl"]
    return {str(path.relative_to(dataset)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seconds", type=float, help="length of the sources that are in FOLDER already; none are made")
    asked = parser.parse_args()
    for old in ("whole", "killed", *(() if asked.seconds else ("sources",))):
        shutil.rmtree(asked.folder / old, ignore_errors=True)
    seconds = asked.seconds or make_sources(asked.folder / "sources", asked.hours)
    captions = sum(path.read_text("utf-8").count(" --> ") for path in asked.folder.glob("sources/*.srt"))
    print(f"{seconds:.1f} s, {seconds / 3600:.2f} hours in {len(SHARES)} files, {captions:,} captions", flush=True)
    whole = run_import(asked.folder / "sources", asked.folder / "whole", 0, captions)
    clips = list(read_manifest(asked.folder / "whole" / "manifest.jsonl"))
    reported = [
        json.loads(line) for line in (asked.folder / "whole" / "problems.jsonl").read_text("utf-8").splitlines()
    ]
    used = sum(len(clip.text_as_found.split("\n")) for clip in clips)
    print(f"{len(clips):,} clips, {sum(clip.seconds for clip in clips) / 3600:.2f} hours of speech", flush=True)
    print(
        f"captions: {used:,} in clips + {len(reported):,} told = {used + len(reported):,} of {captions:,}", flush=True
    )
    print(
        f"undisturbed: {whole.seconds:.0f} s, {seconds / whole.seconds:.0f} times real time, peak {whole.peak_bytes / 1e6:.0f} MB",
        flush=True,
    )
    killed = run_import(asked.folder / "sources", asked.folder / "killed", asked.kills, len(clips))
    same = contents(asked.folder / "whole") == contents(asked.folder / "killed")
    speed = seconds / killed.seconds
    print(
        f"killed {killed.kills} times: {killed.seconds:.0f} s in all, {speed:.0f} times real time, peak {killed.peak_bytes / 1e6:.0f} MB"
    )
    print(
        f"the same bytes in every clip and in the manifest: {same}; sum of seconds {np.round(sum(c.seconds for c in clips), 3)}"
    )
    if not same or killed.kills != asked.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
