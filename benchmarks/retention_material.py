"""What `benchmarks.retention_data` has written, read back: sets of clips, sentences, first rows. Needs NumPy only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from voxgraft.dataset.shards import AnyArray, ClipDataset, ClipInfo, DatasetHeader, DatasetProvenance, Int32Array

__all__ = ["FORMAT", "STARTS", "VOICES", "Clips", "Material", "Sentence"]

FORMAT = "voxgraft-retention-1"
STARTS = ("romanised", "script-mean", "mean", "random")
"""How new rows may start."""
VOICES = ("m1", "m3", "f2", "f4")
"""Who says the sentences, in turns: the speakers that all three languages have."""
CODE_HZ = 25.0


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence to be said and heard."""

    language: str
    text: str
    phones: tuple[str, ...]
    unheard: bool
    """Whether it has words that no training has heard."""
    ids: tuple[int, ...]
    speaker: int
    codes: tuple[int, ...]
    """As the codec has it of the synthesiser's voice."""


class Clips(ClipDataset):
    """A set in memory. A voice is a speaker's number, so that every clip can lend its own."""

    def __init__(
        self, name: str, texts: Sequence[Int32Array], codes: Sequence[Int32Array], speakers: Sequence[int]
    ) -> None:
        self.name = name
        self.header = DatasetHeader("tiny", name.partition(".")[0], "train", CODE_HZ, DatasetProvenance("", ""))
        self._texts, self._codes = list(texts), list(codes)
        self._voices = [{"speaker": np.array([number], np.int32)} for number in speakers]
        self.num_text = np.array([len(one) for one in texts], np.int64)
        self.num_codes = np.array([len(one) for one in codes], np.int64)
        self.infos = [
            ClipInfo(f"{name}-{at:05d}", str(number), "", len(own) / CODE_HZ, "")
            for at, (own, number) in enumerate(zip(codes, speakers, strict=True))
        ]
        self.fingerprint = ""

    def text_ids(self, clip: int) -> Int32Array:
        return self._texts[clip]

    def codes(self, clip: int) -> Int32Array:
        return self._codes[clip]

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._voices[clip]

    def prompt_of(self, clip: int) -> int:
        return clip

    @property
    def minutes(self) -> float:
        return float(self.num_codes.sum()) / CODE_HZ / 60

    def first(self, minutes: float) -> Clips:
        """Its first clips, as many as that."""
        count = int(np.searchsorted(np.cumsum(self.num_codes) / CODE_HZ, 60 * minutes)) + 1
        speakers = [int(voice["speaker"][0]) for voice in self._voices[:count]]
        return Clips(f"{self.name}-{minutes:g}", self._texts[:count], self._codes[:count], speakers)


class Material:
    """The whole file."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, framework="numpy") as file:
            self.notes: dict[str, Any] = json.loads(file.metadata()["retention"])
            self._arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        if self.notes["format"] != FORMAT:
            raise SystemExit(f"{path} is {self.notes['format']!r}, not {FORMAT!r}: make it anew")

    def require_base(self, checkpoint: Path, codec: Path) -> None:
        """Codes of another codec mean something else, and so do rows of another base."""
        for path, name in ((checkpoint, "base_sha256"), (codec, "codec_sha256")):
            if hashlib.sha256(path.read_bytes()).hexdigest() != self.notes[name]:
                raise SystemExit(f"the data were made for another {path.name}: run benchmarks.retention_data again")

    def clips(self, name: str) -> Clips:
        return Clips(name, self.rows_of(f"{name}.ids"), self.rows_of(f"{name}.codes"), self._speakers(name))

    def sentences(self, language: str, most: int | None = None) -> list[Sentence]:
        """The sentences of a language; fewer of them, if that is wanted, are spread over all."""
        told, name = self.notes["sentences"][language], f"{language}.sentences"
        parts = zip(told, self.rows_of(f"{name}.ids"), self.rows_of(f"{name}.codes"), self._speakers(name), strict=True)
        found = [
            Sentence(
                language,
                one["text"],
                tuple(one["phones"]),
                one["unheard"],
                tuple(ids.tolist()),
                speaker,
                tuple(codes.tolist()),
            )
            for one, ids, codes, speaker in parts
        ]
        count = min(most or len(found), len(found))
        return [found[at * len(found) // count] for at in range(count)]

    def start(self, name: str) -> dict[str, NDArray[np.float32]]:
        """First rows by tensor."""
        prefix = f"rows.{name}."
        return {
            key.removeprefix(prefix): value.astype(np.float32)
            for key, value in self._arrays.items()
            if key.startswith(prefix)
        }

    def rows_of(self, name: str) -> list[Int32Array]:
        """A list of rows of different lengths."""
        ends = np.cumsum(self._arrays[f"{name}.counts"], dtype=np.int64)
        return [part.astype(np.int32) for part in np.split(self._arrays[name], ends[:-1])]

    def _speakers(self, name: str) -> list[int]:
        return [int(number) for number in self._arrays[f"{name}.speakers"]]
