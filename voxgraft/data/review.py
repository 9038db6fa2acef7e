"""The review of transcripts: a person accepts, edits or rejects the text of a clip, and can undo it step by step.

Everything is in the manifest, so that no second file can disagree with it. A decision adds to its clip `review`,
`reviewed_at` and an entry in `review_history`: the state before, with the old text. Undo restores the newest entry of
the clip that was decided last. `ReviewTable` writes decisions one at a time and shows the clips worst first.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from voxgraft.core.errors import ConfigError, FileError
from voxgraft.core.files import atomic_write, build_write_error, fsync_folder, is_encodable_text, read_bytes
from voxgraft.core.languages import is_language_code
from voxgraft.data.manifest import MANUAL_REJECTION, TEXT_MISMATCH, ManifestClip, read_manifest, write_manifest
from voxgraft.text.normalize import build_normalizer, normalize_marked_text
from voxgraft.text.spans import SpanError, split_spans

if TYPE_CHECKING:
    from voxgraft.data.folder import DatasetFolder

Decision = Literal["accept", "edit", "reject"]
REVIEW_KEY, TIME_KEY, HISTORY_KEY = "review", "reviewed_at", "review_history"
# Reasons that a decision about the text sets or removes. What is wrong with the audio stays wrong.
_TEXT_REASONS = (TEXT_MISMATCH, MANUAL_REJECTION)
# A line of a manifest has at most a megabyte, and the history is part of it.
MAX_HISTORY, MAX_TEXT_LENGTH = 50, 4_000
MAX_MANIFEST_BYTES = 2 << 30


def read_history(clip: ManifestClip) -> list[dict[str, Any]]:
    """The states before each decision, oldest first. Entries that voxgraft did not write are left out."""
    entries = clip.other.get(HISTORY_KEY)
    return [
        entry
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
        and is_encodable_text(entry.get("text"))
        and isinstance(entry.get("rejected"), list)
        and all(map(is_encodable_text, entry["rejected"]))
    ]


def original_text(clip: ManifestClip) -> str:
    """The text before the first decision about it."""
    if not clip.review_state:
        return clip.text
    history = read_history(clip)
    first = next((entry for entry in reversed(history) if not entry.get(REVIEW_KEY)), history[0] if history else {})
    return str(first.get("text", clip.text))


def forget_review(clip: ManifestClip) -> dict[str, Any]:
    """Further keys of a clip that gets another text: the decision was about the old one, which the history keeps."""
    others = {key: value for key, value in clip.other.items() if key not in (REVIEW_KEY, TIME_KEY)}
    return {**others, HISTORY_KEY: _add_to_history(clip)} if clip.review_state else others


def _add_to_history(clip: ManifestClip) -> list[dict[str, Any]]:
    state = {"text": clip.text, REVIEW_KEY: clip.review_state, TIME_KEY: clip.other.get(TIME_KEY)}
    state |= {"rejected": list(clip.rejected), "taken_back": clip.taken_back}
    if (disagreement := clip.other.get("disagreement")) is not None:
        state["disagreement"] = disagreement
    history = [*read_history(clip), state]
    return history if len(history) <= MAX_HISTORY else [history[0], *history[2:]]


def decide(clip: ManifestClip, decision: Decision, text: str, at: str) -> ManifestClip:
    """The clip after a decision; the same clip if that changes nothing, so that a request can be repeated.

    An edited text is normalized as at import. Accepting a text removes the mark of `data verify`, and no reason that is
    about the audio.
    """
    said = clip.text
    if decision == "edit":
        found = ""
        if not is_encodable_text(text) or len(text) > MAX_TEXT_LENGTH:
            found = f"a text of {len(text):,} characters" if is_encodable_text(text) else "an incomplete character"
        else:
            try:
                split_spans(text, is_language_code)
            except SpanError as error:
                raise ConfigError("review-text", f"{clip.id}: {error.found}", expected=error.expected) from None
            said = normalize_marked_text(build_normalizer(clip.language), text).text
            if not any(map(str.isalnum, said)):
                found = "a text without letters"
            elif len(said) > MAX_TEXT_LENGTH:  # numbers become words
                found = f"a text of {len(said):,} characters"
        if found:
            expected = f"words, at most {MAX_TEXT_LENGTH:,} characters"
            raise ConfigError("review-text", f"{clip.id}: {found}", expected=expected)
    others = tuple(reason for reason in clip.rejected if reason not in _TEXT_REASONS)
    if decision == "reject":
        state = "rejected"
        marks = tuple(reason for reason in clip.rejected if reason == TEXT_MISMATCH)
        reasons, taken_back = (*others, *marks, MANUAL_REJECTION), False
    else:
        state = "accepted" if said == original_text(clip) else "edited"
        reasons, taken_back = others, clip.taken_back
    # A request whose answer was lost is sent again.
    if (state, said) == (clip.review_state, clip.text) and set(reasons) == set(clip.rejected):
        return clip
    other = {**clip.other, REVIEW_KEY: state, TIME_KEY: at, HISTORY_KEY: _add_to_history(clip)}
    if said != clip.text:
        other.pop("disagreement", None)  # it was that of the old text
    return replace(clip, text=said, rejected=reasons, taken_back=taken_back, other=other)


def undo(clip: ManifestClip) -> ManifestClip:
    """The clip before its newest decision. Reasons about its audio that were found since stay."""
    *earlier, last = read_history(clip)
    others = tuple(reason for reason in clip.rejected if reason not in _TEXT_REASONS)
    own = tuple(reason for reason in last["rejected"] if reason in _TEXT_REASONS)
    other = {key: value for key, value in clip.other.items() if key not in (REVIEW_KEY, TIME_KEY, HISTORY_KEY)}
    if last["text"] != clip.text:
        other.pop("disagreement", None)
        if "disagreement" in last:
            other["disagreement"] = last["disagreement"]
    if last.get(TIME_KEY):
        other |= {REVIEW_KEY: last.get(REVIEW_KEY), TIME_KEY: last[TIME_KEY]}
    if earlier:
        other[HISTORY_KEY] = earlier
    taken_back = last.get("taken_back") is True
    return replace(clip, text=last["text"], rejected=(*others, *own), taken_back=taken_back, other=other)


def _is_time(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _disagreement(values: Mapping[str, Any]) -> float | None:
    value = values.get("disagreement")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def describe_clip(clip: ManifestClip) -> dict[str, Any]:
    """What the review table shows of a clip."""
    heard, before = clip.other.get("heard"), original_text(clip)
    return {
        "id": clip.id,
        "text": clip.text,
        "original": "" if before == clip.text else before,
        "state": clip.review_state,
        "at": str(clip.other.get(TIME_KEY) or ""),
        "language": clip.language,
        "speaker": clip.speaker,
        "seconds": clip.seconds,
        "heard": heard if isinstance(heard, str) else "",
        "disagreement": _disagreement(clip.other),
        "marked": TEXT_MISMATCH in clip.rejected,
        "machine": "machine_made" in clip.other,
        # Why it is left out whatever its text is.
        "reasons": [] if clip.taken_back else [reason for reason in clip.rejected if reason not in _TEXT_REASONS],
    }


class ReviewTable:
    """The clips of one dataset as they are on disk, and decisions about them. Threads may share it."""

    def __init__(self, dataset: DatasetFolder) -> None:
        self.dataset = dataset
        self.stamp = ""
        self.clips: dict[str, ManifestClip] = {}
        self._lines: list[bytes] = []  # of the manifest, without empty ones
        self._places: dict[str, int] = {}
        self._mutex = threading.RLock()

    def _stamp_now(self) -> str:
        try:
            status = os.stat(self.dataset.manifest)
        except OSError:
            return ""
        # The inode too: a file replaced within the clock's resolution has the same time, and may have the same size.
        return f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"

    def refresh(self) -> str:
        """Read the manifest if it has changed; returns the stamp of what was read."""
        with self._mutex:
            # Commands replace the whole file, perhaps between the two reads below: then read again.
            while (stamp := self._stamp_now()) != self.stamp or not stamp:
                clips = {clip.id: clip for clip in read_manifest(self.dataset.manifest)}
                data = read_bytes(self.dataset.manifest, MAX_MANIFEST_BYTES)
                if self._stamp_now() == stamp:
                    self._lines = [line for line in data.split(b"\n") if line.strip()]
                    self._places = {name: place for place, name in enumerate(clips, 1)}
                    self.clips, self.stamp = clips, stamp
            return self.stamp

    def rows(self) -> list[ManifestClip]:
        """All clips, those that disagree most with their transcript first; clips that were not verified in their order.

        An edited clip keeps its place: that of the text before, until it is verified again.
        """
        ranked = []
        for clip in self.clips.values():
            score = _disagreement(clip.other)
            if score is None and clip.review_state and (history := read_history(clip)):
                score = next((old for entry in reversed(history) if (old := _disagreement(entry)) is not None), None)
            ranked.append((-math.inf if score is None else score, clip))
        return [clip for _, clip in sorted(ranked, key=lambda pair: -pair[0])]

    def newest(self) -> ManifestClip | None:
        """The clip that was decided last, which undo is about."""
        decided = (clip for clip in self.clips.values() if isinstance(clip.other.get(TIME_KEY), str))
        return max(
            (clip for clip in decided if read_history(clip)), key=lambda clip: clip.other[TIME_KEY], default=None
        )

    def decide(self, name: str, decision: Decision, text: str, seen: Mapping[str, Any]) -> ManifestClip:
        """Save a decision. `seen` has the text and the time of the last decision that the person saw."""

        def change(clip: ManifestClip) -> ManifestClip:
            at = datetime.now(UTC)
            with contextlib.suppress(ValueError, TypeError, OverflowError):  # the clock was set back
                if (last := self.newest()) is not None:
                    after = datetime.fromisoformat(last.other[TIME_KEY]) + timedelta(microseconds=1)
                    at = max(at, after)
            made = decide(clip, decision, text, at.isoformat(timespec="microseconds"))
            if made is not clip and (clip.text, str(clip.other.get(TIME_KEY) or "")) != (seen["text"], seen["at"]):
                found = f"the text of {clip.id}, or the decision about it, was changed"
                raise FileError("review-changed", found, where=self.dataset.manifest)
            return made

        return self._save(name, change)

    def undo(self, name: str, at: str) -> ManifestClip:
        """Undo the newest decision, if it is the one that the person saw."""

        def change(clip: ManifestClip) -> ManifestClip:
            if (last := self.newest()) is not None and (last.id, last.other[TIME_KEY]) == (name, at):
                return undo(clip)
            # A request whose answer was lost is sent again: the clip knows nothing of that decision any more.
            history = read_history(clip)
            times = [clip.other.get(TIME_KEY), *(entry.get(TIME_KEY) for entry in history)]
            if _is_time(at) and at not in times and len(history) < MAX_HISTORY:
                return clip
            found = f"there is a newer decision about {name}"
            raise FileError("review-changed", found, where=self.dataset.manifest)

        return self._save(name, change)

    def _save(self, name: str, change: Callable[[ManifestClip], ManifestClip]) -> ManifestClip:
        """Change one clip on disk. Whatever other commands have written since the last read is kept."""
        manifest = self.dataset.manifest
        with self._mutex, self.dataset.locked():
            self.refresh()
            if name not in self.clips:
                raise ConfigError("clips-unknown", f"there is no clip {name[:80]!r}", where=manifest)
            made = change(self.clips[name])
            if made is self.clips[name]:
                return made
            clips = {**self.clips, name: made}
            # Only one line changes: writing thousands of others again would take most of the time.
            if len(self._lines) == len(clips) + 1:
                lines = list(self._lines)
                lines[self._places[name]] = json.dumps(made.to_json(), ensure_ascii=False).encode()
                with atomic_write(manifest, overwrite=True) as stream:
                    stream.write(b"\n".join(lines) + b"\n")
                self._lines = lines
                self.clips, self.stamp = clips, self._stamp_now()
            else:  # lines that only some readers take for empty
                write_manifest(manifest, clips.values())
            try:
                fsync_folder(manifest.parent)
            except OSError as error:
                raise build_write_error(error, manifest) from None
            return made
