"""Runs that are to be prepared, for tests: a graft of Amharic on the base that ships, and a folder of made-up clips."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import soundfile

from tests.support.fixtures import Fixtures
from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import NewSettings
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import ManifestClip, read_manifest, write_manifest
from voxgraft.demo.data import load_bundled_clips
from voxgraft.graft.command import graft
from voxgraft.models import get_family
from voxgraft.pipeline.command import create_run
from voxgraft.preprocess.command import PrepareResult, prepare

RATE = 24_000
CLIPS = 16
RECORDINGS = 4
"""Four clips each; the last is held out."""
PIECES = 20


@dataclass(frozen=True)
class Preparing:
    """A run, and beside it the manifest that its sets are made of."""

    folder: Path

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "run")

    @property
    def manifest(self) -> Path:
        return self.folder / "clips" / "manifest.jsonl"

    def words(self, *flags: str) -> list[str]:
        return ["prepare", str(self.run.path), "--manifest", str(self.manifest), *flags]

    def prepare(self, *flags: str) -> PrepareResult:
        return prepare(resolved(self.words(*(flags or ("--workers=1",)))))

    def graft(self, *flags: str) -> None:
        assert graft(resolved(["graft", str(self.run.path), *flags])).exit_code == 0

    def clips(self) -> list[ManifestClip]:
        return list(read_manifest(self.manifest))

    def sound(self, clip: ManifestClip) -> Path:
        return clip.resolve_audio(self.manifest.parent)

    def change(self, **changes: Any) -> None:
        """Give some clips other values, by id."""
        write_manifest(
            self.manifest, (replace(clip, **changes[clip.id]) if clip.id in changes else clip for clip in self.clips())
        )

    def add(self, clips: Iterable[ManifestClip]) -> None:
        write_manifest(self.manifest, [*self.clips(), *clips])

    def sets(self) -> dict[str, bytes]:
        """Every byte of the two sets."""
        files = [path for name in ("train", "valid") for path in sorted(self.run.data_set(name).iterdir())]
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files}

    def copied(self, folder: Path) -> Preparing:
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Preparing(folder)


def preparing(fixtures: Fixtures, folder: Path) -> Preparing:
    """A copy of what is made once for all."""
    return Preparing(fixtures.folder("preparing/tiny", lambda at: make(at))).copied(folder)


def prepared(fixtures: Fixtures, folder: Path) -> Preparing:
    """The same after `prepare`. File times are kept, as a copy of a whole disk keeps them."""

    def make_prepared(at: Path) -> None:
        preparing(fixtures, at).prepare()

    return Preparing(fixtures.folder("prepared/tiny", make_prepared)).copied(folder)


def make(folder: Path) -> None:
    """A run with a graft, and clips that are split by recording."""
    base = get_family("tiny").shipped_folder()
    texts = folder / "am.txt"
    folder.mkdir(parents=True)
    texts.write_text("\n".join(sentences(200)) + "\n", encoding="utf-8")
    create_run(NewSettings(run=folder / "run", base=base, language="am", texts=(texts,)))
    made = Preparing(folder)
    made.graft(f"--tokenizer.pieces={PIECES}")
    write_manifest(made.manifest, made_clips(made.manifest.parent, range(CLIPS)))


def made_clips(folder: Path, numbers: Sequence[int]) -> list[ManifestClip]:
    """Clips of something like a voice, with their sound in `folder`."""
    texts = sentences(max(numbers) + 1)
    clips = []
    (folder / "sound").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        name = f"sound/{number:03d}.flac"
        samples = voice_like(0.6 + 0.15 * (number % 7), number)
        soundfile.write(folder / name, samples, RATE)
        recording = number // (CLIPS // RECORDINGS)
        split: Any = "validation" if recording == RECORDINGS - 1 else "train"
        clips.append(
            ManifestClip(
                id=f"clip{number:03d}",
                audio=name,
                seconds=len(samples) / RATE,
                text=texts[number],
                language="am",
                speaker=f"speaker{recording % 2}",
                recording=f"recording{recording}",
                sample_rate=RATE,
                split=split,
            )
        )
    return clips


def voice_like(seconds: float, seed: int) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * (90 + 60 * draw.random()) * time + 3 * np.sin(2 * np.pi * 2.2 * time)
    tone = np.sum([np.sin(k * phase) / k for k in range(1, 9)], axis=0) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))
    made: np.ndarray[Any, Any] = (0.1 * tone + 0.01 * draw.standard_normal(len(time))).astype(np.float32)
    return made


def sentences(count: int) -> list[str]:
    return [clip.text for clip in load_bundled_clips("train", "am")[:count]]


def resolved(words: Sequence[str]) -> Any:
    return resolve_settings(cast(CommandLine, parse_command_line(words, COMMANDS)))
