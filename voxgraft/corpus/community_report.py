"""What adopting a manifest of pairs changed or left out: counted, with the clips named, as findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from voxgraft.corpus.clips import Int32Array, format_clip_names
from voxgraft.corpus.community_files import PairFiles
from voxgraft.corpus.community_lines import PromptTargetPair
from voxgraft.corpus.npy import read_npy
from voxgraft.corpus.padding import TrimmedLength
from voxgraft.errors import Finding, VoxgraftError, finding

__all__ = ["LeaveOutReason", "PairImportReport"]

LeaveOutReason = str
"""One of the codes of findings under which a pair can be left out."""
_LEAVE_OUT_TEXTS = {
    "pairs-prompt-is-target": "have their own target as the prompt",
    "pairs-no-text": "have no text",
    "pairs-too-long": "are longer than the model has positions for",
}
_EVIDENCE_TEXTS = {"stated": "by their stated length", "seconds": "by their duration", "run": "by the run at their end"}


class PairImportReport:
    """Fills while a manifest is taken over."""

    def __init__(self, manifest: Path, num_pairs: int) -> None:
        self._manifest, self._num_pairs = manifest, num_pairs
        self._left_out: dict[LeaveOutReason, list[PromptTargetPair]] = {}
        self._others: list[Finding] = []

    def leave_out(
        self, reason: LeaveOutReason, pairs: Sequence[PromptTargetPair], is_bad: Callable[[PromptTargetPair], bool]
    ) -> list[PromptTargetPair]:
        """The pairs that stay."""
        bad = [pair for pair in pairs if is_bad(pair)]
        self._left_out.setdefault(reason, []).extend(bad)
        out = {pair.line for pair in bad}
        return [pair for pair in pairs if pair.line not in out]

    def note_padding(self, files: PairFiles, kept: Mapping[Path, TrimmedLength]) -> None:
        """Clips whose codes were cut, and by what it was seen."""
        cut = {path: one for path, one in kept.items() if one.reason is not None}
        if not cut:
            return
        stored = sum(clip.length for clip in files.codes.values())
        padding = sum(files.codes[path].length - one.length for path, one in cut.items())
        counts = Counter(str(one.reason) for one in cut.values())
        ways = ", ".join(
            f"{counts[reason]:,} {_EVIDENCE_TEXTS[reason]}" for reason in _EVIDENCE_TEXTS if counts[reason]
        )
        names = [
            f"{files.codes[path].name} ({files.codes[path].length:,} to {one.length:,})" for path, one in cut.items()
        ]
        head = f"{len(cut):,} of {len(files.codes):,} targets are padded, and {padding:,} of {stored:,} codes were cut"
        self._note("pairs-padded", f"{head} ({padding / stored:.0%}; {ways}): {format_clip_names(names)}")

    def note_old_ids(self, pairs: Sequence[PromptTargetPair], spelled: Mapping[str, Int32Array]) -> None:
        """Targets whose stored ids are not what the run's tokenizer makes of their text."""
        targets = {pair.text_ids: pair for pair in pairs if pair.text_ids is not None}
        different: list[str] = []
        unreadable: list[str] = []
        for path, pair in targets.items():
            try:
                stored = read_npy(path, "integers")
            except VoxgraftError:
                unreadable.append(pair.target)  # not needed: the text is spelled anew
                continue
            if stored.tolist() != spelled[pair.text].tolist():
                different.append(pair.target)
        if different:
            text = f"the stored ids of {len(different):,} of {len(targets):,} targets are another tokenizer's"
            self._note("pairs-other-tokenizer", f"{text}; all were spelled anew: {format_clip_names(different)}")
        if unreadable:
            text = f"{len(unreadable):,} of {len(targets):,} files of old text ids are missing or broken"
            self._note("pairs-old-ids", f"{text}: {format_clip_names(unreadable)}")

    def note_emotions(self, pairs: Sequence[PromptTargetPair]) -> None:
        """Pairs for which the prompt's emotion must stand in."""
        names = [pair.id for pair in pairs if pair.target_emotion is None]
        if names:
            text = f"{len(names):,} of {len(pairs):,} pairs name no emotion of the target; the prompt's is used"
            self._note("pairs-no-emotion", f"{text}: {format_clip_names(names)}")

    def reasons(self) -> str:
        """Why pairs were left out, in a few words."""
        return "; ".join(
            f"{len(pairs):,} {_LEAVE_OUT_TEXTS[reason]}" for reason, pairs in self._left_out.items() if pairs
        )

    def findings(self) -> list[Finding]:
        """All that happened; nothing where the manifest was taken as it is."""
        left = [
            self._finding(
                reason,
                f"{len(pairs):,} of {self._num_pairs:,} pairs {_LEAVE_OUT_TEXTS[reason]} and are left out: "
                + format_clip_names([f"{pair.id} (line {pair.line})" for pair in pairs]),
            )
            for reason, pairs in self._left_out.items()
            if pairs
        ]
        return [*left, *self._others]

    def _note(self, code: str, text: str) -> None:
        self._others.append(self._finding(code, text))

    def _finding(self, code: str, text: str) -> Finding:
        return finding(code, text, where=self._manifest)
