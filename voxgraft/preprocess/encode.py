"""What one worker does, on whichever engine: open the front end once, then turn batches of sound files into codes.

The same batch gives the same bytes wherever it is encoded: every worker computes with one thread. Knows no manifest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from voxgraft.core.errors import Finding, VoxgraftError, finding
from voxgraft.core.files import atomic_write, convert_system_error, is_folder
from voxgraft.dataset.shards import AnyArray

if TYPE_CHECKING:
    from voxgraft.audio.features import Waveform
    from voxgraft.models.base import Clip, ClipEncoder


BATCH_SUFFIX = ".safetensors"
CLIPS_METADATA_KEY, FAILED_METADATA_KEY = "clips", "failed"
CODES_TENSOR, VOICE_TENSOR_PREFIX = "codes", "voice."
MAX_OPEN_BATCHES = 64


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """What is kept of a clip's sound."""

    key: str
    seconds: float
    """As long as the sound really is."""
    codes: AnyArray
    voice: Mapping[str, AnyArray]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What stands at the head of one file."""

    path: Path
    clips: tuple[tuple[str, float, int], ...]
    """Key, seconds and number of codes of each."""
    failed: Mapping[str, Finding] = field(default_factory=dict)
    """What is wrong with clips of the batch that have no codes, by key."""


def batch_path(folder: Path, name: str) -> Path:
    """The place of a batch."""
    return folder / f"{name}{BATCH_SUFFIX}"


def write_batch_file(path: Path, clips: Sequence[EncodedClip], failed: Mapping[str, Finding]) -> None:
    """Write a batch, whole or not at all. Who writes the same batch a second time writes the same bytes."""
    arrays: dict[str, AnyArray] = {}
    for place, clip in enumerate(clips):
        arrays[f"{place}.{CODES_TENSOR}"] = np.ascontiguousarray(clip.codes, dtype=np.int32)
        arrays |= {
            f"{place}.{VOICE_TENSOR_PREFIX}{name}": np.ascontiguousarray(array) for name, array in clip.voice.items()
        }
    notes = {
        CLIPS_METADATA_KEY: json.dumps([(clip.key, clip.seconds, len(clip.codes)) for clip in clips]),
        FAILED_METADATA_KEY: json.dumps({key: asdict(item) for key, item in failed.items()}, ensure_ascii=False),
    }
    with atomic_write(path, overwrite=True) as stream:
        stream.write(save(arrays, notes))


class BatchStore:
    """All batches of a folder, found by the keys of their clips. A damaged file counts as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, tuple[Path, int, float, int]] = {}
        """File, place in it, seconds and number of codes, by key."""
        self.failed: dict[str, Finding] = {}
        for path in sorted(folder.glob(f"*{BATCH_SUFFIX}")) if is_folder(folder) else ():
            if (found := _read_batch_header(path)) is not None:
                self._index_batch(found)
        self._arrays = lru_cache(MAX_OPEN_BATCHES)(_read_batch_arrays)

    def add(self, name: str) -> None:
        """Take in a batch that was written since."""
        if (found := _read_batch_header(batch_path(self.folder, name))) is not None:
            self._index_batch(found)

    def _index_batch(self, file: BatchHeader) -> None:
        for place, (key, seconds, num_codes) in enumerate(file.clips):
            self.places[key] = (file.path, place, seconds, num_codes)
        self.failed |= file.failed

    def clip(self, key: str) -> EncodedClip:
        """A clip that is in `places`."""
        path, place, seconds, _ = self.places[key]
        arrays, start = self._arrays(path), f"{place}."
        own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        voice = {
            name.removeprefix(VOICE_TENSOR_PREFIX): array
            for name, array in own.items()
            if name.startswith(VOICE_TENSOR_PREFIX)
        }
        return EncodedClip(key, seconds, own[CODES_TENSOR], dict(sorted(voice.items())))


def _read_batch_header(path: Path) -> BatchHeader | None:
    try:
        with safe_open(str(path), framework="numpy") as file:
            notes = file.metadata() or {}
            clips = tuple(
                (str(key), float(seconds), int(codes)) for key, seconds, codes in json.loads(notes[CLIPS_METADATA_KEY])
            )
            failed = {key: Finding(**item) for key, item in json.loads(notes[FAILED_METADATA_KEY]).items()}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    return BatchHeader(path, clips, failed)


def _read_batch_arrays(path: Path) -> dict[str, Any]:
    with safe_open(str(path), framework="numpy") as file:
        return dict(_iter_tensors(file))


def _iter_tensors(file: Any) -> Iterator[tuple[str, AnyArray]]:
    for name in file.keys():  # noqa: SIM118 (it is no mapping)
        yield name, file.get_tensor(name)


@dataclass(frozen=True, slots=True)
class EncodeWorkerConfig:
    """What a worker must know before the first batch; goes to it as JSON."""

    family: str
    base: str
    device: str
    folder: str
    """Where batches are written; every worker must see it, and the sound files."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EncodeWorkerConfig:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """One batch: clips that go through the encoder together, by key, and where their sound is."""

    name: str
    clips: tuple[tuple[str, str], ...]
    seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EncodeJob:
        values = json.loads(text)
        return cls(values["name"], tuple((key, path) for key, path in values["clips"]), values["seconds"])


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """What became of a batch."""

    name: str
    gone: Mapping[str, Finding] = field(default_factory=dict)
    """Clips, by key, of a batch that nobody could bring to an end; nothing was written."""
    refused: Finding | None = None
    """Why no batch at all can be encoded, such as a file that the base lacks."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> EncodeResult:
        values = json.loads(text)
        gone = {key: Finding(**item) for key, item in values["gone"].items()}
        return cls(values["name"], gone, Finding(**values["refused"]) if values["refused"] else None)


class EncodeWorker:
    """A front end that encodes one batch after the other. Opened with the first."""

    def __init__(self, settings: EncodeWorkerConfig) -> None:
        self.settings = settings
        self._encoder: ClipEncoder | None = None

    def run(self, job: EncodeJob) -> EncodeResult:
        """Encode a batch into its file. Clips that cannot be encoded are noted there; the rest goes on without them."""
        import torch

        try:
            encoder = self._opened()
            waves, failed = _read_clips(job.clips, encoder.sample_rate)
            encoded, refused = _encode_clips(encoder, waves)
            clips = [
                EncodedClip(key, len(waves[key]) / encoder.sample_rate, clip.codes, dict(sorted(clip.voice.items())))
                for key, clip in encoded.items()
            ]
            paths = dict(job.clips)
            failed |= {key: replace(item, where=paths[key]) for key, item in refused.items()}
            write_batch_file(batch_path(Path(self.settings.folder), job.name), clips, failed)
        except torch.OutOfMemoryError:
            return EncodeResult(job.name, refused=_out_of_memory_finding(job, self.settings.device))
        except VoxgraftError as error:  # a file that the base lacks, a full disk: no other batch would fare better
            return EncodeResult(job.name, refused=error.finding)
        except (OSError, MemoryError) as error:
            if (system := convert_system_error(error)) is None:
                raise
            return EncodeResult(job.name, refused=system.finding)
        return EncodeResult(job.name)

    def _opened(self) -> ClipEncoder:
        if self._encoder is None:
            import torch

            from voxgraft.models import get_family
            from voxgraft.models.load import load_model

            torch.set_num_threads(1)
            kind = get_family(self.settings.family)
            files = kind.files(Path(self.settings.base))
            self._encoder = kind.encoder(files, load_model(kind, files, device=self.settings.device))
        return self._encoder


def _out_of_memory_finding(job: EncodeJob, device: str) -> Finding:
    found = f"{len(job.clips)} clips of {job.seconds:.0f} s do not go through the encoder at once on {device}"
    return finding("memory-too-small", found, cure="run the same command again with a smaller --batch-seconds.")


def _read_clips(clips: Sequence[tuple[str, str]], rate: int) -> tuple[dict[str, Any], dict[str, Finding]]:
    from voxgraft.audio.files import MAX_CLIP_SECONDS, read_audio

    waves: dict[str, Any] = {}
    failed: dict[str, Finding] = {}
    for key, path in clips:
        try:
            waves[key], _ = read_audio(Path(path), rate, max_seconds=MAX_CLIP_SECONDS)
        except VoxgraftError as error:
            failed[key] = error.finding
    return waves, failed


def _encode_clips(encoder: ClipEncoder, waves: Mapping[str, Waveform]) -> tuple[dict[str, Clip], dict[str, Finding]]:
    """All together; where one of them is refused, the others together without it."""
    failed: dict[str, Finding] = {}
    while waves:
        try:
            return dict(zip(waves, encoder.encode(list(waves.values())), strict=True)), failed
        except VoxgraftError:
            found = {
                key: item for key, wave in waves.items() if (item := _find_encode_fault(encoder, wave)) is not None
            }
            if not found:  # each by itself would do, so it is not the clips that are at fault
                raise
            failed |= found
            waves = {key: wave for key, wave in waves.items() if key not in found}
    return {}, failed


def _find_encode_fault(encoder: ClipEncoder, wave: Waveform) -> Finding | None:
    try:
        encoder.encode([wave])
    except VoxgraftError as error:
        return error.finding
    return None


def main() -> None:
    """Encode batches until there are no more."""
    # Whatever a library prints must not come between the outcomes.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as outcomes:
        os.dup2(2, 1)
        stage = EncodeWorker(EncodeWorkerConfig.from_json(sys.stdin.readline()))
        for line in sys.stdin:
            outcomes.write(stage.run(EncodeJob.from_json(line)).to_json() + "\n")
            outcomes.flush()


if __name__ == "__main__":
    main()
