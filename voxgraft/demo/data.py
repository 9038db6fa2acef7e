"""The speech that ships for the demonstration: codes of the built-in base's codec, with texts and speakers.

Reads it, and writes it into a run as sets that fit the run's own graft, as `prepare` does with recordings. Made by
recipes/tiny_base/demo_set.py; nothing is spoken or encoded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from voxgraft.corpus.clips import ClipInfo, DatasetHeader, DatasetProvenance, DatasetRole, PreparedClip
from voxgraft.corpus.sets import write_clip_dataset
from voxgraft.errors import FileError
from voxgraft.families.base import BaseFiles, Family
from voxgraft.files import compute_sha256, read_text
from voxgraft.graft_folder import Graft
from voxgraft.run import RunFolder
from voxgraft.spelling import TextEncoder, text_rules_identity
from voxgraft.tokenizers import open_tokenizer

__all__ = [
    "DEMO_LANGUAGE",
    "BundledClip",
    "DemoSetWriter",
    "find_bundled_recordings",
    "load_bundled_clips",
    "load_silence_code",
]

DEMO_LANGUAGE = "am"
DEMO_DATA_FOLDER = "data/demo"
TABLE_NAME, CODES_NAME, RECORDINGS_NAME = "speech.tsv", "speech.safetensors", "recordings"
SPEECH_COLUMNS = ("role", "language", "speaker", "codes", "text")
CODEC_METADATA_KEY, SILENCE_METADATA_KEY = "codec_sha256", "silence_code"
TINY_CODEC_NAME = "codec.safetensors"

Codes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BundledClip:
    """One clip as it ships."""

    id: str
    role: DatasetRole
    language: str
    speaker: str
    text: str
    codes: Codes


def load_bundled_clips(role: DatasetRole, language: str) -> list[BundledClip]:
    """The clips of a language that are there to be learnt from, or held out."""
    return [clip for clip in _load_all_clips() if (clip.role, clip.language) == (role, language)]


def find_bundled_recordings() -> Path:
    """Held-out clips as sound, each with its text and phones."""
    return _find_demo_data() / RECORDINGS_NAME


def load_silence_code() -> int:
    """What the codec makes of nothing at all."""
    return int(_read_metadata()[SILENCE_METADATA_KEY])


@dataclass(frozen=True, slots=True)
class DemoSetWriter:
    """Writes clips as sets of a run: texts as the run spells them, voices as the base numbers them."""

    run: RunFolder
    family: Family
    files: BaseFiles
    graft: Graft

    def write_all(self) -> tuple[Path, ...]:
        """data/train and data/valid of the new language; gives the held-out sets of base languages."""
        self.write("train", "train", load_bundled_clips("train", DEMO_LANGUAGE))
        self.write("valid", "valid", load_bundled_clips("valid", DEMO_LANGUAGE))
        old = [language for language in self.family.languages if load_bundled_clips("valid", language)]
        return tuple(self.write(f"valid-{name}", "valid", load_bundled_clips("valid", name)) for name in old)

    def write(
        self, name: str, role: DatasetRole, clips: Sequence[BundledClip], spelling: TextEncoder | None = None
    ) -> Path:
        """One set, spelled by the run's own tokenizers or by another's; all clips are of one language."""
        language, spelling = clips[0].language, spelling or self.spelling
        self.write_prepared(name, self.header(language, role, spelling), self.prepared(clips, spelling))
        return self.run.data_set(name)

    def write_prepared(self, name: str, header: DatasetHeader, clips: Iterable[PreparedClip]) -> None:
        write_clip_dataset(self.run.data_set(name), header, clips)

    @property
    def spelling(self) -> TextEncoder:
        base = open_tokenizer(self.files.tokenizer)
        return TextEncoder.of(self.family, base, self.graft.tokenizer, self.graft.card.language, self.graft.card.rules)

    def header(self, language: str, role: DatasetRole, spelling: TextEncoder) -> DatasetHeader:
        """Of a base language the base's own tokenizer spells the texts."""
        is_new = language == spelling.language and spelling.grown is not None
        own = spelling.grown if is_new and spelling.grown is not None else spelling.base
        front_end = {"codec_sha256": self._require_codec()}
        text = text_rules_identity(spelling.rules) if is_new else ""
        made_from = DatasetProvenance(own.sha256, self.graft.card.base["checkpoint_sha256"], front_end, text=text)
        return DatasetHeader(self.family.name, language, role, self.family.code_hz, made_from)

    def prepared(self, clips: Iterable[BundledClip], spelling: TextEncoder) -> Iterator[PreparedClip]:
        voices = {name: clip.voice for name, clip in self.family.voices(self.files).items()}
        for clip in clips:
            info = ClipInfo(clip.id, clip.speaker, clip.id, len(clip.codes) / self.family.code_hz, clip.text)
            yield PreparedClip(info, spelling.encode(clip.text, clip.language), clip.codes, voices[clip.speaker])

    def _require_codec(self) -> str:
        """Codes mean nothing to another codec than the one that made them."""
        path = self.files.folder / TINY_CODEC_NAME
        made_with, found = _read_metadata()[CODEC_METADATA_KEY], compute_sha256(path)
        if found != made_with:
            expected = f"{made_with[:12]}, with which {CODES_NAME} was made"
            raise FileError("demo-codec", f"{path.name} has sha256 {found[:12]}", expected=expected, where=path)
        return found


@cache
def _load_all_clips() -> tuple[BundledClip, ...]:
    with safe_open(str(_find_demo_data() / CODES_NAME), framework="numpy") as file:
        codes = file.get_tensor("codes").astype(np.int32)
    clips = []
    begin = 0
    for number, line in enumerate(read_text(_find_demo_data() / TABLE_NAME).splitlines()[1:]):
        role, language, speaker, count, text = line.split("\t")
        end = begin + int(count)
        clips.append(BundledClip(f"{language}-{number:04d}", role, language, speaker, text, codes[begin:end]))  # type: ignore[arg-type]
        begin = end
    return tuple(clips)


@cache
def _read_metadata() -> dict[str, str]:
    with safe_open(str(_find_demo_data() / CODES_NAME), framework="numpy") as file:
        return dict(file.metadata() or {})


def _find_demo_data() -> Path:
    return Path(str(resources.files("voxgraft").joinpath(DEMO_DATA_FOLDER)))
