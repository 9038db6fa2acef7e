"""A project with a dataset to review: clips whose texts `data verify` has compared, and some that it has not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tests.support.ui import PROJECT, make_project
from voxgraft.audio.files import write_clip_audio
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import MANIFEST_NAME, TEXT_MISMATCH, ManifestClip, write_manifest

RATE = 8_000
WORDS = "ሰላም በቃ እንዴት ደህና መልካም ቡና ውሃ ነገ ዛሬ ትላንት ልጅ ቤት".split()


def make_review_home(folder: Path, count: int) -> Path:
    """A folder with a project whose dataset has so many clips; returns the dataset.

    Every tenth clip was not verified, every fiftieth is marked, and every seventh was made by a machine. The worst are
    in the middle of the manifest. All clips have the same two seconds of sound.
    """
    dataset = RunFolder(make_project(folder, PROJECT)).data
    samples = 0.2 * np.sin(np.arange(2 * RATE) * 440 * 2 * np.pi / RATE).astype(np.float32)
    first, clips = dataset / "clips/talk/talk-00000.flac", []
    for at in range(count):
        name = f"talk-{at:05d}"
        text = " ".join(WORDS[(at * step) % len(WORDS)] for step in (1, 3, 5, 7, 11))
        marked = at % 50 == 25
        other: dict[str, object] = {"machine_made": "built-in"} if at % 7 == 3 else {}
        if at % 10:
            far = 1 - abs(at - count / 2) / count
            other |= {"heard": text[::-1] if marked else text[2:], "disagreement": round(far if marked else far / 3, 4)}
        # Recordings of several clips, so that the dataset can be split.
        clip = ManifestClip(
            name, f"clips/talk/{name}.flac", 2.0, text, "am", f"speaker {at % 3}", f"talk-{at % 20}", RATE,
            text_as_found=text, source="talk.csv:1", rejected=(TEXT_MISMATCH,) if marked else (), other=other,
        )  # fmt: skip
        path = clip.resolve_audio(dataset)
        if path == first:
            write_clip_audio(path, samples, RATE)
        else:
            os.link(first, path)
        clips.append(clip)
    write_manifest(dataset / MANIFEST_NAME, clips)
    return dataset
