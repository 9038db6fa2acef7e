"""What it costs to compare the shards of 100 hours of data with their hashes, and held-out clips with training clips.

    python -m benchmarks.verify_shards --family chatterbox --hours 100
    python -m benchmarks.verify_shards --family indextts2 --hours 10      12 GB for 100 hours: measure a part

Clips of six seconds with voices of the published sizes, random numbers in them. The files lie in the page cache, so that
hashing is timed and no disk; a disk is read once more only where it is slower than that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from voxgraft.dataset.sets import ShardVerifier, check_held_out_overlap, open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import ClipDataset, DatasetHeader, DatasetProvenance
from voxgraft.models.base import Clip

CODE_HZ = {"chatterbox": 25.0, "indextts2": 50.0}
CODES = 6_000
SECONDS = 6.0
PER_CLIP: dict[str, dict[str, tuple[int, ...]]] = {
    "chatterbox": {"speaker": (256,)},
    "indextts2": {"latents": (32, 1280), "emotion": (1280,)},
}
PROMPT = 150
HELD_OUT = 500


def made(family: str, count: int, seed: int) -> Iterator[Clip]:
    """Clips of the real size."""
    draw = np.random.default_rng(seed)
    length = int(SECONDS * CODE_HZ[family])
    for number in range(count):
        voice = {name: draw.standard_normal(shape, np.float32) for name, shape in PER_CLIP[family].items()}
        codes = draw.integers(0, CODES, length + int(draw.integers(-20, 20)))
        if family == "chatterbox":
            voice["prompt"] = codes[:PROMPT].astype(np.int32)
        text = f"sentence {seed} {number} of about as many letters as are said in six seconds of speech"
        seconds = len(codes) / CODE_HZ[family]
        names = f"clip{seed}-{number:06d}", f"speaker{number % 40}", f"recording{seed}-{number // 100}"
        yield Clip(codes, voice, draw.integers(3, 2000, 60), *names, seconds, text)


def write(folder: Path, family: str, count: int, seed: int) -> None:
    write_clip_dataset(
        folder,
        DatasetHeader(family, "am", "train", CODE_HZ[family], DatasetProvenance("a" * 64, "b" * 64)),
        made(family, count, seed),
    )


def timed(what: str, call: object) -> object:
    assert callable(call)
    started = time.perf_counter()
    found = call()
    print(f"{what}: {time.perf_counter() - started:.2f} s")
    return found


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(CODE_HZ), default="chatterbox")
    parser.add_argument("--hours", type=float, default=100)
    asked = parser.parse_args(words)
    count = int(asked.hours * 3600 / SECONDS)
    with tempfile.TemporaryDirectory() as name:
        train, valid = Path(name) / "train", Path(name) / "valid"
        write(train, asked.family, count, 1)
        write(valid, asked.family, HELD_OUT, 2)
        total = sum(path.stat().st_size for path in train.iterdir())
        print(f"{asked.family}, {asked.hours:g} hours: {count:,} clips, {total / 1e6:,.0f} MB")
        timed("open, sizes only", lambda: open_clip_dataset(train, verify="sizes"))
        timed("open, hashes compared (check)", lambda: open_clip_dataset(train))
        learnt, held_out = open_clip_dataset(train, verify="sizes"), open_clip_dataset(valid)
        timed("hashes on a thread, nothing else at work (train)", lambda: _verified(learnt, held_out))
        timed(f"{HELD_OUT} held-out clips compared with all", lambda: check_held_out_overlap([learnt], held_out))


def _verified(learnt: ClipDataset, held_out: ClipDataset) -> None:
    verification = ShardVerifier([held_out], [learnt])
    verification.start()
    verification.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
