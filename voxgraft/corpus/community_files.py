"""The `.npy` files that a manifest of pairs names: every one is looked at, and all that is wrong is said at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from voxgraft import progress
from voxgraft.corpus.community_lines import PromptTargetPair, read_sibling_durations
from voxgraft.corpus.npy import read_npy, read_npy_header
from voxgraft.corpus.padding import StoredCodes
from voxgraft.corpus.set_checks import count_trailing_run
from voxgraft.errors import FileError, Finding, VoxgraftError

__all__ = ["PairFiles", "scan_pair_files"]

NUM_CONDITION_LATENTS = 32
MAX_LISTED_LINES = 5
_INT32_RANGE = np.iinfo(np.int32)


@dataclass(slots=True)
class PairFiles:
    """What the files of all pairs hold."""

    codes: dict[Path, StoredCodes] = field(default_factory=dict)
    """By file; several pairs share one."""
    digests: dict[Path, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long utterances are, by name, as far as the manifests know."""
    width: int | None = None
    """Of a latent and of an emotion."""
    _seen: set[Path] = field(default_factory=set)

    def add(self, pair: PromptTargetPair) -> Iterator[Finding]:
        """Look at those of a pair's files that are new; what is wrong with each of them."""
        if pair.prompt_emotion is None and pair.target_emotion is None:
            yield FileError("pairs-line", "no file of an emotion is named", expected="prompt_emo_vec_path").finding
        for path, look in self._file_checks(pair):
            if path in self._seen:
                continue
            self._seen.add(path)
            try:
                look(path)
            except VoxgraftError as error:
                yield error.finding

    def _file_checks(self, pair: PromptTargetPair) -> list[tuple[Path, Callable[[Path], None]]]:
        emotions = [path for path in (pair.prompt_emotion, pair.target_emotion) if path is not None]
        return [
            (pair.codes, partial(self._add_codes, pair)),
            (pair.condition, partial(self._add_floats, (NUM_CONDITION_LATENTS,))),
            *((path, partial(self._add_floats, ())) for path in emotions),
        ]

    def _add_codes(self, pair: PromptTargetPair, path: Path) -> None:
        codes = read_npy(path, "integers")
        if codes.ndim != 1 or not len(codes):
            raise FileError(
                "array-broken", f"{path.name}: shape {list(codes.shape)}", expected="codes in a row", where=path
            )
        low, high = int(codes.min()), int(codes.max())
        if low < _INT32_RANGE.min or high > _INT32_RANGE.max:
            raise FileError("array-broken", f"{path.name}: codes from {low} to {high}", expected="codes", where=path)
        self.codes[path] = StoredCodes(
            name=pair.target,
            length=len(codes),
            last=int(codes[-1]),
            run=count_trailing_run(codes),
            stated=pair.num_codes,
            seconds=self.seconds.get(pair.target),
        )
        self.digests[path] = hashlib.sha256(codes.astype("<i4").tobytes()).hexdigest()

    def _add_floats(self, before: tuple[int, ...], path: Path) -> None:
        form = read_npy_header(path, "floats")
        width = self.width or (form.shape[-1] if form.shape else 0)
        expected = (*before, width)
        if form.shape != expected or not width:
            found = f"{path.name}: shape {list(form.shape)}"
            raise FileError("array-broken", found, expected=str([*before, self.width or "width"]), where=path)
        self.width = width


def scan_pair_files(manifest: Path, pairs: Sequence[PromptTargetPair]) -> PairFiles:
    """An error that counts the files that are missing or broken, and names the first ones with their lines."""
    files = PairFiles(seconds=read_sibling_durations(manifest))
    for pair in pairs:
        if pair.prompt_seconds is not None:
            files.seconds.setdefault(pair.prompt, pair.prompt_seconds)
        if pair.target_seconds is not None:
            files.seconds.setdefault(pair.target, pair.target_seconds)
    faults: list[tuple[int, Finding]] = []
    with progress.progress_task(f"reading the files of {manifest.name}", len(pairs)) as advance:
        for pair in pairs:
            faults += ((pair.line, found) for found in files.add(pair))
            advance(1)
    if faults:
        line, first = faults[0]
        lines = ", ".join(str(line) for line, _ in faults[:MAX_LISTED_LINES]) + (
            ", ..." if len(faults) > MAX_LISTED_LINES else ""
        )
        found = f"{len(faults):,} files cannot be used (lines {lines}); the first: {first.found}"
        raise FileError(
            "pairs-files", found, expected=first.expected, where=f"{manifest}, line {line}", cure=first.cure
        )
    return files
