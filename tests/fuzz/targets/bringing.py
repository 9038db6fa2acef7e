"""One source after the other through the whole of an import: damaged texts, lists and journals with sound beside them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import soundfile

from tests.fuzz.target import Mutant, Random, Refused, Target
from tests.fuzz.targets.importing import text_mutant
from voxgraft.data.folder import DatasetFolder, read_import_journal
from voxgraft.data.importer import ImportOptions, ImportTask, import_source
from voxgraft.data.sources import ImportSource

RATE = 8_000
OPTIONS = ImportOptions("am", rate=RATE, ending="wav")
JOURNAL = "journal.jsonl"


class BringTarget(Target):
    """What is brought in has its sound, and everything else is told under a code that the catalogue has."""

    name: ClassVar[str] = "bring"
    count: ClassVar[int] = 3000

    def make_seeds(self, folder: Path) -> None:
        said = ("[ሙዚቃ]", "ሰላም ለዓለም።", "አበበ፡ ና ወደ እኔ።", "አንድ ሁለት። ሦስት አራት። አምስት።")
        blocks = [f"{at}\n00:00:0{at},000 --> 00:00:0{at},900\n{text}" for at, text in enumerate(said)]
        (folder / "a.srt").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
        (folder / "music.srt").write_text(blocks[0] + "\n", encoding="utf-8")
        rows: list[dict[str, object]] = [
            {"audio": "a.wav", "text": "ሰላም ነው"},
            {"audio": "a.wav", "text": "በቃ በል", "start": 1, "end": 2.5},
            {"audio": "empty.wav", "text": "ምንም", "start": 0, "end": 1},
            {"audio": {"bytes": "abc", "path": "x.wav"}, "text": "ቃል", "speaker": "s"},
        ]
        (folder / "list.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
        (folder / JOURNAL).write_text(self._journal(folder), encoding="utf-8")

    def _journal(self, folder: Path) -> str:
        """Of an import that is done, as the verb writes it."""
        place = folder.parent / "journal-of-a-seed"
        place.mkdir()
        (place / "a.srt").write_bytes((folder / "a.srt").read_bytes())
        brought = self._bring(place, "a.srt")
        assert isinstance(brought, list)
        return (place / "set" / "imports" / "r.jsonl").read_text(encoding="utf-8")

    def mutant(self, rng: Random) -> Mutant:
        mutant = text_mutant(self, rng)
        return Mutant(mutant.seed, mutant.how, mutant.data)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        if seed == JOURNAL:
            path = scratch / "set" / "imports" / "r.jsonl"
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
            seed, data = "a.srt", self.seeds["a.srt"]
        (scratch / seed).write_bytes(data)
        return self._bring(scratch, seed)

    def _bring(self, folder: Path, seed: str) -> object:
        (folder / "a.wav").write_bytes(_sound())
        (folder / "empty.wav").write_bytes(b"")
        dataset = DatasetFolder(folder / "set")
        dataset.folder.mkdir(exist_ok=True)
        is_list = seed.endswith(".jsonl")
        source = ImportSource("list" if is_list else "subtitles", folder / seed, None if is_list else folder / "a.wav")
        brought = import_source(dataset, ImportTask(source, "r", "mark"), OPTIONS)
        findings = [problem.finding() for problem in brought.problems]
        if brought.failed:
            raise Refused(findings[-1].code)
        clips = read_import_journal(dataset.journal_path("r")).clips
        assert all((dataset.folder / clip.audio).is_file() for clip in clips), "a clip has no sound"
        return [(clip.text, clip.start, clip.end) for clip in clips]


def _sound() -> bytes:
    """Six seconds with a pause in every one."""
    loud = np.repeat(np.tile([0.2, 0.001], 6), RATE // 2)
    stream = io.BytesIO()
    noise = np.random.default_rng(0).normal(0, 1, len(loud)) * loud
    soundfile.write(stream, noise.astype(np.float32), RATE, format="WAV")
    return stream.getvalue()
