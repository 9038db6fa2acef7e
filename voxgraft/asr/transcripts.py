"""The command `data verify`: compare the texts of a dataset with transcripts of a recognizer.

Nothing is deleted: the manifest gets the transcript and a disagreement from 0 to 1 for every clip, and a reason to
reject the outliers. Transcripts are kept in `heard.jsonl`, so that a second run transcribes only clips that changed.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.asr import BUILT_IN_RATE_HZ, BuiltInRecognizer, Recognizer, open_recognizer, resolve_recognizer_language
from voxgraft.asr.matching import TextMatcher, comparable_letters, sound_classes
from voxgraft.audio.files import read_clip_audio, resample
from voxgraft.config.data import DataVerifySettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.files import MAX_TEXT_BYTES, is_file, parse_json, read_bytes
from voxgraft.core.results import Line, SimpleResult, Table, pluralize
from voxgraft.data.folder import DatasetFolder, open_dataset_folder
from voxgraft.data.manifest import TEXT_MISMATCH, ManifestClip, write_manifest
from voxgraft.data.report import robust_spread

HEARD_FILE = "heard.jsonl"
# Clips in one call of a recognizer; after each, the transcripts are on disk.
BATCH_CLIPS = 16
# Shorter waves are padded with silence: some recognizers fail on them.
MIN_SECONDS = 0.25
# A recognizer that errs evenly has a small spread: a clip must disagree by as much more to be an outlier.
MIN_SPREAD = 0.08
MIN_CLIPS_FOR_OUTLIERS = 20
# By scores, a text that fits no better than its sounds in another order is wrong, if most texts do fit better.
WRONG_TEXT_MISFIT, MAX_USUAL_MISFIT = 0.9, 0.72
MAX_SHOWN = 12


def edit_distance(meant: Sequence[Hashable], heard: Sequence[Hashable]) -> int:
    """Fewest insertions, deletions and replacements that turn one into the other (Levenshtein)."""
    # One row of the table at a time; `before` is the diagonal cell, which the row has already overwritten.
    row = list(range(len(heard) + 1))
    for at, one in enumerate(meant, 1):
        before, row[0] = row[0], at
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (one != other))
    return row[-1]


def compute_disagreement(text: str, heard: str, language: str, *, by_sound: bool = False) -> float:
    """Edits between a text and its transcript, over the length of the longer: 0 is the same, 1 nothing in common."""
    if by_sound:
        meant_letters, heard_letters = sound_classes(text), sound_classes(heard, is_ipa=True)
    else:
        meant_letters, heard_letters = (comparable_letters(one, language) for one in (text, heard))
    longest = max(len(meant_letters), len(heard_letters))
    return edit_distance(meant_letters, heard_letters) / longest if longest else 0.0


def transcribe_clips(
    recognizer: Recognizer, waves: Sequence[NDArray[np.float32]], rates: Sequence[int], language: str
) -> list[tuple[str, bool]]:
    """The transcript of each wave, and whether as sounds (IPA) because the recognizer does not know the language."""
    code, by_sound = resolve_recognizer_language(recognizer, language)
    if by_sound and not isinstance(recognizer, BuiltInRecognizer):
        expected = ", ".join(sorted(recognizer.languages or ()))
        raise ConfigError(
            "recognizer-language",
            f"the recognizer does not support the language {language!r}",
            expected=expected,
            where=recognizer.name,
        )
    rate = recognizer.sample_rate or max(rates)
    ready = []
    for wave, own in zip(waves, rates, strict=True):
        sound = resample(wave, own, rate)
        ready.append(np.pad(sound, (0, max(0, round(MIN_SECONDS * rate) - len(sound)))).astype(np.float32))
    if by_sound:
        assert isinstance(recognizer, BuiltInRecognizer)
        return [("".join(one.phones or ()), True) for one in recognizer.transcribe_any_language(ready)]
    return [(one.text, False) for one in recognizer.transcribe(ready, rate, code)]


def _hear_dataset(
    dataset: DatasetFolder, clips: Sequence[ManifestClip], recognizer: Recognizer
) -> dict[str, tuple[str, bool, float]]:
    """For every clip whose file can be read, by id: transcript, whether as sounds, disagreement with the text.

    The built-in recognizer gives scores, which say more than the transcript. Clips that were compared before are left
    out; a new text is compared with the old transcript only if there are no scores.
    """
    path, known = dataset.folder / HEARD_FILE, dict[str, tuple[str, str, bool, float | None]]()
    written = read_bytes(path, MAX_TEXT_BYTES) if is_file(path) and path.stat().st_size else b""
    for line in written.split(b"\n"):
        try:
            entry = parse_json(line.decode(), path)
            misfit = entry.get("misfit")
            known[str(entry["id"])] = (
                str(entry["key"]),
                str(entry["heard"]),
                bool(entry["by_sound"]),
                None if misfit is None else float(misfit),
            )
        except (VoxgraftError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError):
            continue  # cut off where a run was killed, perhaps inside a character
    keys = {}
    for clip in clips:
        file = clip.resolve_audio(dataset.folder)
        if is_file(file):
            status = file.stat()
            keys[clip.id] = f"{recognizer.name} {clip.language} {status.st_size} {status.st_mtime_ns}"
            if isinstance(recognizer, BuiltInRecognizer):
                keys[clip.id] += f" {hashlib.sha256(clip.text.encode()).hexdigest()[:16]}"
    left: dict[str, list[ManifestClip]] = defaultdict(list)
    for clip in clips:
        if clip.id in keys and known.get(clip.id, ("",))[0] != keys[clip.id]:
            left[clip.language].append(clip)
    with (
        progress.progress_task("listening to clips", sum(map(len, left.values()))) as advance,
        path.open("a", encoding="utf-8") as stream,
    ):
        if written and not written.endswith(b"\n"):
            stream.write("\n")  # else the next entry would be a part of the broken line
        for language, own in left.items():
            matcher = TextMatcher.build(recognizer, language)
            own.sort(key=lambda clip: clip.seconds)  # clips of one length go through together
            for first in range(0, len(own), BATCH_CLIPS):
                batch, waves, rates = [], [], []
                for clip in own[first : first + BATCH_CLIPS]:
                    try:
                        samples, rate = read_clip_audio(clip.resolve_audio(dataset.folder))
                    except VoxgraftError:  # the report names clips without audio
                        continue
                    batch.append(clip)
                    waves.append(samples)
                    rates.append(rate)
                found: list[tuple[str, bool, float | None]] = []
                if matcher is not None:
                    for clip, wave, rate in zip(batch, waves, rates, strict=True):
                        sound = resample(wave, rate, BUILT_IN_RATE_HZ).astype(np.float32)
                        least = round(MIN_SECONDS * BUILT_IN_RATE_HZ)
                        scores, heard = matcher.listen(np.pad(sound, (0, max(0, least - len(sound)))))
                        found.append((heard, matcher.by_sound, matcher.misfit(scores, matcher.encode(clip.text))))
                elif batch:
                    found = [(*one, None) for one in transcribe_clips(recognizer, waves, rates, language)]
                for clip, (heard, by_sound, misfit) in zip(batch, found, strict=True):
                    known[clip.id] = keys[clip.id], heard, by_sound, misfit
                    entry = {"id": clip.id, "key": keys[clip.id], "heard": heard, "by_sound": by_sound}
                    entry |= {} if misfit is None else {"misfit": round(misfit, 4)}
                    stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
                stream.flush()
                advance(len(own[first : first + BATCH_CLIPS]))
    compared = {}
    for clip in clips:
        if clip.id in keys and known.get(clip.id, ("",))[0] == keys[clip.id]:
            _, heard, by_sound, misfit = known[clip.id]
            if misfit is None:
                misfit = compute_disagreement(clip.text, heard, clip.language, by_sound=by_sound)
            compared[clip.id] = heard, by_sound, round(misfit, 4)
    return compared


def data_verify(settings: DataVerifySettings) -> SimpleResult:
    """Compare every clip's text with a recognizer's transcript, rank the clips, and mark the outliers."""
    dataset = open_dataset_folder(settings.dataset)
    recognizer = open_recognizer(settings.recognizer)
    with dataset.locked():
        clips = list(dataset.clips())
        heard = _hear_dataset(dataset, clips, recognizer)
        scores = {clip.id: heard[clip.id][2] for clip in clips if clip.id in heard}
        by_scores = isinstance(recognizer, BuiltInRecognizer)
        limits = _outlier_limits(clips, scores, settings.outlier, by_scores=by_scores)
        judged = []
        for clip in clips:
            if clip.id not in scores:  # its audio cannot be read: an earlier judgement stays
                judged.append(clip)
                continue
            others = tuple(reason for reason in clip.rejected if reason != TEXT_MISMATCH)
            # Who has reviewed a text has listened to the clip: no recognizer knows better.
            is_accepted = clip.review_state in ("accepted", "edited")
            is_outlier = scores[clip.id] > limits[clip.language] and not is_accepted
            reasons = (*others, TEXT_MISMATCH) if is_outlier else others
            own = {"heard": heard[clip.id][0], "disagreement": scores[clip.id]}
            judged.append(replace(clip, rejected=reasons, other={**clip.other, **own}))
        if judged != clips:
            write_manifest(dataset.manifest, judged)
    ranked = sorted((clip for clip in judged if clip.id in scores), key=lambda clip: (-scores[clip.id], clip.id))
    worst = ranked[: max(1, round(settings.worst * len(ranked)))] if ranked else []
    marked = [clip.id for clip in ranked if TEXT_MISMATCH in clip.rejected]
    missing = [clip.id for clip in judged if clip.id not in scores]
    values: dict[str, Any] = {
        "recognizer": recognizer.name,
        "clips": len(ranked),
        "median": round(float(np.median(list(scores.values()))), 4) if scores else None,
        "marked": marked,
        "worst": [{"id": clip.id, "disagreement": scores[clip.id]} for clip in worst],
        "by_sound": sorted({clip.language for clip in ranked if heard[clip.id][1]}),
        "missing_audio": missing,
    }
    median = f"; median disagreement {values['median']} (0: equal, 1: nothing in common)" if scores else ""
    lines: list[Line] = [
        f"{pluralize(len(ranked), 'clip')} compared with the transcripts of the recognizer {recognizer.name}{median}"
    ]
    if values["by_sound"]:
        lines.append(
            f"compared by classes of sounds, because {recognizer.name} does not know {', '.join(values['by_sound'])}"
        )
    if worst:
        rows = tuple(
            (clip.id, f"{scores[clip.id]:.2f}", f"{clip.text:.40}", f"{clip.other['heard']:.40}")
            for clip in worst[:MAX_SHOWN]
        )
        lines.append(Table(("worst clips", "disagreement", "text", "transcript"), rows))
    lines.append(f"{pluralize(len(marked), 'clip')} marked as {TEXT_MISMATCH}; none was deleted")
    if marked:
        lines.append("listen, correct or accept them in `voxgraft ui` (Data, Review transcripts)")
    if missing:
        lines.append(f"the audio of {len(missing):,} clips is missing or damaged: {', '.join(missing[:8])}")
    return SimpleResult(values, tuple(lines), int(bool(missing)))


def _outlier_limits(
    clips: Sequence[ManifestClip], scores: Mapping[str, float], deviations: float, *, by_scores: bool
) -> dict[str, float]:
    """The disagreement above which a clip is marked, by language: robust, so that wrong texts do not move it."""
    limits = {}
    for language in dict.fromkeys(clip.language for clip in clips):
        own = np.array([scores[clip.id] for clip in clips if clip.language == language and clip.id in scores])
        limits[language] = 1.0
        if len(own) >= MIN_CLIPS_FOR_OUTLIERS:
            middle = float(np.median(own))
            limits[language] = middle + deviations * max(robust_spread(own), MIN_SPREAD)
            if by_scores and middle <= MAX_USUAL_MISFIT:
                limits[language] = min(limits[language], WRONG_TEXT_MISFIT)
    return limits
