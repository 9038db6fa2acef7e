"""The community's IndexTTS-2 manifests of pairs, adopted as they are: features are kept, texts are spelled anew.

Padded codes are cut, what the model has no positions for is left out; each with a count and the clips' names. Old text
ids are never used: where they are right they equal the new ones, and where they are not it is said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from voxgraft import progress
from voxgraft.corpus.clips import (
    AnyArray,
    ClipDataset,
    ClipInfo,
    DatasetHeader,
    DatasetProvenance,
    DatasetRole,
    Int32Array,
)
from voxgraft.corpus.community_files import PairFiles, scan_pair_files
from voxgraft.corpus.community_lines import PromptTargetPair, read_pair_manifest, split_manifest_language
from voxgraft.corpus.community_report import PairImportReport
from voxgraft.corpus.npy import read_npy
from voxgraft.corpus.padding import TrimmedLength, compute_trimmed_lengths
from voxgraft.errors import FileError, Finding, GraftError, VoxgraftError
from voxgraft.files import compute_sha256

if TYPE_CHECKING:  # families stand above the corpus; a frame is only looked at
    from voxgraft.families.layout import SequenceSpec

__all__ = ["INDEXTTS2_CODE_HZ", "PairDataset", "open_pair_dataset", "split_manifest_language"]

INDEXTTS2_FAMILY = "indextts2"
INDEXTTS2_CODE_HZ = 50.0
EncodeText = Callable[[str], Sequence[int]]


def open_pair_dataset(
    manifest: Path,
    spell: EncodeText,
    frame: SequenceSpec,
    *,
    language: str | None = None,
    role: DatasetRole = "train",
    name: str | None = None,
) -> PairDataset:
    """A manifest of pairs as a set. `spell` gives the ids of a text with the run's own tokenizer.

    `run_language` is needed where the lines state none. Every file is looked at; codes and old ids are read once.
    """
    pairs = read_pair_manifest(manifest)
    language = _require_one_language(pairs, language, manifest)
    report = PairImportReport(manifest, len(pairs))
    pairs = report.leave_out("pairs-prompt-is-target", pairs, lambda pair: pair.prompt == pair.target)
    pairs = report.leave_out("pairs-no-text", pairs, lambda pair: not pair.text.strip())
    files = scan_pair_files(manifest, pairs)
    kept = dict(zip(files.codes, compute_trimmed_lengths(list(files.codes.values()), INDEXTTS2_CODE_HZ), strict=True))
    report.note_padding(files, kept)
    spelled = _encode_texts(manifest, pairs, spell)
    report.note_old_ids(pairs, spelled)
    pairs = report.leave_out("pairs-no-text", pairs, lambda pair: not len(spelled[pair.text]))
    pairs = report.leave_out(
        "pairs-too-long",
        pairs,
        lambda pair: len(spelled[pair.text]) > frame.max_text or kept[pair.codes].length > frame.max_codes,
    )
    report.note_emotions(pairs)
    if not pairs:
        raise GraftError("set-empty", f"no pair of {manifest.name} can be used: {report.reasons()}", where=manifest)
    made_from = DatasetProvenance("", "", {"made_by": "community"}, {"manifest_sha256": compute_sha256(manifest)})
    header = DatasetHeader(INDEXTTS2_FAMILY, language, role, INDEXTTS2_CODE_HZ, made_from)
    return PairDataset(_PairDatasetParts(name or manifest.stem, header, pairs, spelled, kept, files), report.findings())


@dataclass(frozen=True, slots=True)
class _PairDatasetParts:
    """All that a set of pairs is made of."""

    name: str
    header: DatasetHeader
    pairs: Sequence[PromptTargetPair]
    encoded_texts: dict[str, Int32Array]
    kept: dict[Path, TrimmedLength]
    files: PairFiles


class PairDataset(ClipDataset):
    """Pairs as clips: a clip is a line, its prompt the one that the line names.

    Places from `len(set)` on are the prompts. A clip's own voice is its prompt's, with the emotion of the target.
    """

    def __init__(self, parts: _PairDatasetParts, findings: Sequence[Finding]) -> None:
        self.name, self.header, self.findings = parts.name, parts.header, list(findings)
        self._pairs, self._encoded_texts, self._kept, self._files = (
            parts.pairs,
            parts.encoded_texts,
            parts.kept,
            parts.files,
        )
        self.num_text = np.array([len(parts.encoded_texts[pair.text]) for pair in parts.pairs], dtype=np.int64)
        self.num_codes = np.array([parts.kept[pair.codes].length for pair in parts.pairs], dtype=np.int64)
        places: dict[tuple[Path, Path | None], int] = {}
        prompts: list[PromptTargetPair] = []
        for pair in parts.pairs:
            key = (pair.condition, pair.prompt_emotion)
            if key not in places:
                places[key] = len(parts.pairs) + len(prompts)
                prompts.append(pair)
        self._prompts = prompts
        self._prompt_indices = [places[pair.condition, pair.prompt_emotion] for pair in parts.pairs]
        self.infos = [*map(self._info, range(len(parts.pairs))), *map(_prompt_info, prompts)]
        self.fingerprint = self._fingerprint()

    def text_ids(self, clip: int) -> Int32Array:
        return self._encoded_texts[self._pairs[clip].text]

    def codes(self, clip: int) -> Int32Array:
        """The clip's own codes, without padding; none for a place that only lends its voice."""
        if clip >= len(self):
            return np.zeros(0, dtype=np.int32)
        pair = self._pairs[clip]
        stored = self._files.codes[pair.codes]
        codes = read_npy(pair.codes, "integers")
        if codes.shape != (stored.length,):
            found = f"{pair.codes.name} changed to shape {list(codes.shape)}"
            raise FileError("array-broken", found, expected=f"{stored.length:,} codes", where=pair.codes)
        return codes[: self._kept[pair.codes].length].astype(np.int32)

    def voice(self, clip: int) -> dict[str, AnyArray]:
        pair = self._pairs[clip] if clip < len(self) else self._prompts[clip - len(self)]
        emotions = [pair.prompt_emotion, pair.target_emotion]
        emotion = next(path for path in (reversed(emotions) if clip < len(self) else emotions) if path is not None)
        latents, vector = read_npy(pair.condition, "floats"), read_npy(emotion, "floats")
        return {"latents": latents.astype(np.float32), "emotion": vector.astype(np.float32)}

    def prompt_of(self, clip: int) -> int:
        return self._prompt_indices[clip]

    def _info(self, clip: int) -> ClipInfo:
        pair = self._pairs[clip]
        seconds = self._files.seconds.get(pair.target) or int(self.num_codes[clip]) / INDEXTTS2_CODE_HZ
        return ClipInfo(pair.id, pair.speaker, pair.target, seconds, pair.text)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(str(self.header.made_from.settings["manifest_sha256"]).encode())
        for pair in self._pairs:
            digest.update(f"{pair.id}\0{self._files.digests[pair.codes]}\0{self._kept[pair.codes].length}\n".encode())
        return digest.hexdigest()


def _prompt_info(pair: PromptTargetPair) -> ClipInfo:
    return ClipInfo(pair.prompt, pair.speaker, pair.prompt, pair.prompt_seconds or 0.0, "")


def _require_one_language(pairs: Iterable[PromptTargetPair], language: str | None, manifest: Path) -> str:
    """The one language of all lines."""
    stated: dict[str, int] = {}
    for pair in pairs:
        if pair.language is not None:
            stated.setdefault(pair.language, pair.line)
    wanted = language.lower() if language else next(iter(stated), None)
    if wanted is None:
        cure = f"say it, for example {manifest.name}::am."
        raise FileError("pairs-language", "no line states its language", where=manifest, cure=cure)
    others = {found: line for found, line in stated.items() if found != wanted}
    if others:
        listed = ", ".join(f"{found} (line {line})" for found, line in others.items())
        raise FileError("pairs-language", f"lines are in {listed}", expected=wanted, where=manifest)
    return language or wanted


def _encode_texts(manifest: Path, pairs: Sequence[PromptTargetPair], spell: EncodeText) -> dict[str, Int32Array]:
    """The ids of every text, spelled once."""
    spelled: dict[str, Int32Array] = {}
    with progress.progress_task(f"spelling {manifest.name}", len(pairs)) as advance:
        for pair in pairs:
            if pair.text not in spelled:
                try:
                    spelled[pair.text] = np.asarray(spell(pair.text), dtype=np.int32)
                except VoxgraftError as error:
                    where = f"{manifest}, line {pair.line}"
                    raise type(error).of(replace(error.finding, where=where)) from None
            advance(1)
    return spelled
