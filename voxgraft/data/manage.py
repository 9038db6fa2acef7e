"""Commands that look at datasets and change them: `data list`, `info`, `merge`, `remove`, `speakers`; and `data text`.

The manifest is written first and as a whole, files are deleted after it: every listed clip has its file. `data text`
shows what the normalizer of a language makes of a text; it has no dataset.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import AudioSamples
from voxgraft.audio.voices import kmeans, read_voice
from voxgraft.config.commands import DataTextSettings
from voxgraft.config.data import (
    DataInfoSettings,
    DataListSettings,
    DataMergeSettings,
    DataRemoveSettings,
    DataSpeakersSettings,
)
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, TextError, find_nearest_name
from voxgraft.core.files import build_write_error, is_encodable_text, is_file, read_lines, require_folder
from voxgraft.core.languages import describe_character
from voxgraft.core.progress import confirm_with_user
from voxgraft.core.results import Line, SimpleResult, Table, pluralize, style_line
from voxgraft.data.folder import (
    CLIPS_FOLDER,
    PROBLEMS_FILE,
    DatasetFolder,
    collect_problems,
    find_missing_audio,
    format_problems,
    open_dataset_folder,
    write_problems_file,
)
from voxgraft.data.manifest import DatasetSummary, ManifestClip, format_length, write_manifest
from voxgraft.data.sources import sanitize_name
from voxgraft.models import load_speaker_encoder
from voxgraft.text.normalize import build_normalizer, normalize_marked_text

MAX_CLIPS_SHOWN = 40
# Key of a clip: the dataset that it was first imported into, and its id there, however many merges ago.
MERGED_FROM_KEY = "merged_from"
SpeakerEmbeddings = NDArray[np.float32]
MAX_SPEAKERS = 8
# Mean silhouette (-1 to 1) from which several voices are more likely than one. Clips of one speaker stay below.
MIN_SILHOUETTE = 0.4
# Cosine of two clusters' means above which they are one voice in two moods.
MAX_CENTROID_COSINE = 0.88
MIN_CLUSTER_CLIPS = 3
MAX_SILHOUETTE_CLIPS = 600
MIN_VOICE_SECONDS = 1.0
VOICE_BATCH_SIZE = 32


def data_list(settings: DataListSettings) -> SimpleResult:
    """The recordings of a dataset, or the datasets in a folder."""
    folder = require_folder(settings.folder)
    own = DatasetFolder(folder)
    if own.has_manifest:
        summary = DatasetSummary.of(own.clips())
        rows = tuple(
            (name, f"{summary.clips_of[name]:,}", format_length(seconds))
            for name, seconds in sorted(summary.recordings.items())
        )
        table = Table(("recording", "clips", "used"), rows)
        return SimpleResult({"dataset": str(folder), **summary.to_json()}, (table,))
    sets = [DatasetFolder(path.parent) for path in sorted(folder.glob("*/manifest.jsonl"))]
    if not sets:
        raise FileError("dataset-missing", f"{folder.name} contains no dataset", where=folder)
    summaries = [(one, DatasetSummary.of(one.clips())) for one in sets]
    shown = tuple(
        (one.name, f"{found.clips:,}", f"{found.used:,}", format_length(found.seconds), f"{len(found.speakers):,}")
        for one, found in summaries
    )
    table = Table(("dataset", "clips", "used", "length", "speakers"), shown)
    return SimpleResult({"datasets": [{"dataset": one.name, **found.to_json()} for one, found in summaries]}, (table,))


def data_info(settings: DataInfoSettings) -> SimpleResult:
    """Everything that is known about a dataset without reading its audio."""
    dataset = open_dataset_folder(settings.dataset)
    clips = list(dataset.clips())
    summary = DatasetSummary.of(clips)
    missing = [clip.id for clip in find_missing_audio(dataset)]
    unfinished = [journal.recording for journal in dataset.journals() if not journal.is_published]
    problems = collect_problems(dataset)
    values = {**summary.to_json(), "missing_audio": missing, "unfinished": unfinished, "problems": len(problems)}
    splits = ", ".join(f"{name} {format_length(seconds)}" for name, seconds in sorted(summary.splits.items()))
    lines: list[Line] = [
        f"{pluralize(summary.clips, 'clip')}, {summary.used:,} used: {format_length(summary.seconds)}; "
        f"rejected: {format_length(summary.rejected_seconds)}",
        f"{pluralize(len(summary.recordings), 'recording')}, {pluralize(len(summary.speakers), 'speaker')}, "
        f"languages: {', '.join(summary.languages) or 'none'}",
        f"split: {splits or 'nothing'}",
    ]
    if summary.reasons:
        lines.append(f"rejected for: {', '.join(f'{name} {count:,}' for name, count in summary.reasons.most_common())}")
    if reviewed := summary.review_line():
        lines.append(reviewed)
    if missing:
        shown = ", ".join(missing[:MAX_CLIPS_SHOWN])
        lines.append(f"the audio of {len(missing):,} clips is missing: {shown}. `data remove --missing` removes them.")
    if unfinished:
        lines.append(f"unfinished: {', '.join(unfinished)}; run the same import again to continue")
    if settings.problems:
        lines += [line for problem in problems for line in problem.finding().lines()[:2]]
        values["every_problem"] = [problem.to_json() for problem in problems]
    elif problems:
        lines += format_problems(problems, dataset.folder / PROBLEMS_FILE)[-1:]
    if settings.clips:
        lines.append(_clip_table(clips))
    return SimpleResult(values, tuple(lines), int(bool(missing)))


def _clip_table(clips: Sequence[ManifestClip]) -> Table:
    rows = tuple(
        (clip.id, f"{clip.seconds:.2f}", clip.speaker, clip.split or "", ", ".join(clip.rejected), clip.text)
        for clip in clips
    )
    return Table(("clip", "seconds", "speaker", "split", "rejected", "text"), rows)


def data_remove(settings: DataRemoveSettings) -> SimpleResult:
    """Remove clips from a dataset, after asking."""
    dataset = open_dataset_folder(settings.dataset)
    recordings, speakers, ids = set(settings.recording), set(settings.speaker), set(settings.clip)
    if not (recordings or speakers or ids or settings.missing):
        cure = "use --recording, --speaker, --clip or --missing."
        raise ConfigError("config-missing", "nothing to remove was given", cure=cure)
    with dataset.locked():
        dataset.reconcile_published()
        clips = list(dataset.clips())
        # A list contains recordings under their own names; the name of the list means all of them.
        there = {clip.id for clip in clips}
        names = recordings - {clip.recording for clip in clips}
        for journal in dataset.journals() if names else ():
            if journal.recording in names and journal.ids & there:
                recordings.discard(journal.recording)
                ids |= journal.ids & there
        _require_known_names(clips, dataset, recordings, speakers, ids)
        if settings.missing:
            ids |= {clip.id for clip in find_missing_audio(dataset)}
        going = [c for c in clips if c.recording in recordings or c.speaker in speakers or c.id in ids]
        gone = {clip.id for clip in going}
        seconds = sum(clip.seconds for clip in going)
        message = f"{len(going):,} clips, {format_length(seconds)}"
        answer: bool | None = True
        if going and not settings.yes:
            answer = confirm_with_user([_clip_table(going[:MAX_CLIPS_SHOWN])], f"remove {message}?")
        if not answer:
            nobody = "" if answer is not None else "there is no terminal to ask on, so "
            lines = (f"{nobody}nothing was removed: {message} would be.",)
            return SimpleResult({"removed": 0, "would": len(going)}, lines, 1)
        left = dataset.remove(going, [clip for clip in clips if clip.id not in gone])
        write_problems_file(dataset)
    done = [f"removed {message}"]
    if left:
        done.append(f"{len(left):,} audio files are outside the dataset and were kept: {left[0]} ...")
    return SimpleResult({"removed": len(going), "seconds": round(seconds, 3), "left": left}, tuple(done))


def _require_known_names(
    clips: Sequence[ManifestClip], dataset: DatasetFolder, recordings: set[str], speakers: set[str], ids: set[str]
) -> None:
    """An error for a name that nothing in the dataset has."""
    for kind, known, named in (
        ("recording", {clip.recording for clip in clips}, recordings),
        ("speaker", {clip.speaker for clip in clips}, speakers),
        ("clip", {clip.id for clip in clips}, ids),
    ):
        for name in sorted(named - known):
            hint = find_nearest_name(name, sorted(known))
            cure = f"did you mean `{hint}`?" if hint else ""
            raise ConfigError("clips-unknown", f"there is no {kind} {name!r}", where=dataset.folder, cure=cure)


def data_merge(settings: DataMergeSettings) -> SimpleResult:
    """Merge datasets into one. If the name of a recording is taken, it gets its dataset's name as a prefix."""
    target = DatasetFolder(settings.dataset)
    sources = [open_dataset_folder(folder) for folder in settings.sets]
    if own := [source for source in sources if source.folder.resolve() == target.folder.resolve()]:
        found = f"{own[0].name} would be merged into itself"
        raise ConfigError("config-value", found, expected="sources that are not the target itself", where=own[0].folder)
    with target.locked():
        merging = _DatasetMerger(target)
        for source in sources:
            merging.add(source, used_only=settings.used_only)
        write_manifest(target.manifest, merging.clips)
    done = {"added": merging.added, "renamed": merging.renamed, "known": merging.known}
    message = "{added:,} clips added, {renamed:,} of them under a new id, {known:,} existed already".format(**done)
    return SimpleResult({**done, "clips": len(merging.clips)}, (message,))


class _DatasetMerger:
    """A dataset that others are merged into: its clips so far, and the names that are taken."""

    def __init__(self, target: DatasetFolder) -> None:
        target.reconcile_published()
        journals = target.journals()
        self.target = target
        self.clips = list(target.clips())
        self.sources = {journal.recording for journal in journals}  # unfinished sources may still get clips
        self.ids: set[str] = set()
        self.names: set[str] = set()  # recordings and speakers
        self.files: set[str] = set()
        self.added = self.renamed = self.known = 0
        for clip in (*(clip for journal in journals for clip in journal.clips), *self.clips):
            self._register(clip)

    def _register(self, clip: ManifestClip) -> None:
        self.ids.add(clip.id)
        self.names |= {clip.recording, clip.speaker, clip.speaker.partition(":")[0]}
        self.files.add(clip.audio.lower())

    def add(self, source: DatasetFolder, *, used_only: bool) -> None:
        """Add the clips of a dataset that are not in the target yet."""
        origins = {origin: clip.id for clip in self.clips for origin in _clip_origins(self.target, clip)}
        recordings: dict[str, list[ManifestClip]] = defaultdict(list)
        coming = list(source.clips())
        for clip in coming:
            recordings[clip.recording].append(clip)
        prefixes: dict[str, str] = {}
        for name, clips in recordings.items():
            prefixes[name] = prefix = self._choose_prefix(source, clips, origins)
            self.names.add(prefix + name)
            self.ids |= {prefix + clip.id for clip in clips}
        for clip in coming:
            if used_only and not clip.is_used:
                continue
            if not origins.keys().isdisjoint(_clip_origins(source, clip)):
                self.known += 1
                continue
            if self.clips and clip.sample_rate != self.clips[0].sample_rate:
                found = f"one dataset has {self.clips[0].sample_rate:,} Hz, another {clip.sample_rate:,} Hz"
                raise FileError("dataset-differs", found, where=source.folder)
            prefix = prefixes[clip.recording]
            # A speaker named after a recording is renamed with it; others are the same person in every dataset.
            named_after = clip.speaker if clip.speaker in prefixes else clip.speaker.partition(":")[0]
            if clip.speaker.startswith(f"{clip.recording}:"):
                named_after = clip.recording
            # Names in a manifest from elsewhere could lead out of the folder. File systems may ignore case.
            stem = f"{CLIPS_FOLDER}/{sanitize_name(prefix + clip.recording)}/{sanitize_name(prefix + clip.id)}"
            ending = Path(clip.audio).suffix
            number, audio = 2, stem + ending
            while audio.lower() in self.files:
                audio, number = f"{stem}-{number}{ending}", number + 1
            made = replace(
                clip,
                id=prefix + clip.id,
                audio=audio,
                recording=prefix + clip.recording,
                speaker=prefixes.get(named_after, "") + clip.speaker,
                other={**clip.other, MERGED_FROM_KEY: _clip_origins(source, clip)[0]},
            )
            _link_or_copy(clip.resolve_audio(source.folder), made.resolve_audio(self.target.folder))
            self.clips.append(made)
            self._register(made)
            self.added += 1
            self.renamed += made.id != clip.id

    def _choose_prefix(self, source: DatasetFolder, clips: Sequence[ManifestClip], origins: Mapping[str, str]) -> str:
        """Prefix for all names of one recording; the same as before if part of it was merged already."""
        for clip in clips:
            before = next((origins[origin] for origin in _clip_origins(source, clip) if origin in origins), "")
            if before.endswith(clip.id):
                return before.removesuffix(clip.id)
        number, prefix = 0, ""
        while True:
            recording, ids = prefix + clips[0].recording, [prefix + clip.id for clip in clips]
            is_taken = recording in self.names or recording in self.sources
            if not is_taken and not any(name in self.ids or name.rpartition("-")[0] in self.sources for name in ids):
                return prefix
            number += 1
            prefix = f"{source.name}." if number == 1 else f"{source.name}.{number}."


def _clip_origins(dataset: DatasetFolder, clip: ManifestClip) -> tuple[str, ...]:
    """What identifies a clip across merges: where it was imported, and where it is now."""
    here = f"{dataset.folder.resolve()}#{clip.id}"
    first = clip.other.get(MERGED_FROM_KEY)
    return (first, here) if isinstance(first, str) else (here,)


def _link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it across file systems; to a temporary name first, so that it is complete or absent."""
    if not is_file(source):
        raise FileError("clip-audio-missing", f"{source.name} does not exist", where=source)
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
        os.replace(part, target)
    except OSError as error:
        raise build_write_error(error, target) from None


def cluster_speakers(vectors: SpeakerEmbeddings) -> list[int]:
    """The voice number of each clip, the most frequent first; all 0 if there is clearly one voice, or few clips."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    best, chosen = MIN_SILHOUETTE, np.zeros(len(unit), np.int64)
    for count in range(2, min(MAX_SPEAKERS, len(unit) // MIN_CLUSTER_CLIPS) + 1):
        labels = kmeans(unit.astype(np.float64), count)
        if np.bincount(labels, minlength=count).min() < MIN_CLUSTER_CLIPS:
            continue
        means = np.array([unit[labels == own].mean(axis=0) for own in np.unique(labels)])
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
        if np.max(means @ means.T - 2 * np.eye(len(means))) > MAX_CENTROID_COSINE:  # the diagonal does not count
            continue
        clarity = _mean_silhouette(unit, labels)
        if clarity > best:
            best, chosen = clarity, labels
    order = {int(old): new for new, old in enumerate(np.argsort(-np.bincount(chosen), kind="stable"))}
    return [order[int(label)] for label in chosen]


def _mean_silhouette(unit: SpeakerEmbeddings, labels: NDArray[np.int64]) -> float:
    """How much nearer clips are to their own cluster than to the next, on average."""
    step = max(1, len(unit) // MAX_SILHOUETTE_CLIPS)
    some, own = unit[::step], labels[::step]
    away = 1.0 - some @ some.T
    scores = []
    for place in range(len(some)):
        same = own == own[place]
        if same.sum() < 2:
            continue
        inside = away[place][same].sum() / (same.sum() - 1)
        outside = min(away[place][own == other].mean() for other in np.unique(own) if other != own[place])
        scores.append((outside - inside) / max(inside, outside, 1e-9))
    return float(np.mean(scores)) if scores and len(np.unique(own)) > 1 else -1.0


def data_speakers(settings: DataSpeakersSettings) -> SimpleResult:
    """List the speakers, rename them, and tell unnamed voices apart."""
    dataset = open_dataset_folder(settings.dataset)
    names: dict[str, str] = {}
    for word in settings.rename:
        old, equals, new = word.partition("=")
        if not (old and equals and new):
            raise ConfigError("config-value", f"--rename {word!r} cannot be parsed", expected="OLD=NEW")
        names[old] = new
    parted: dict[str, int] = {}
    with dataset.locked():
        clips = list(dataset.clips())
        _require_known_names(clips, dataset, set(), set(names), set())
        made = [replace(clip, speaker=names.get(clip.speaker, clip.speaker)) for clip in clips]
        if settings.voices is not None:
            made = _split_by_voice(dataset, made, settings.voices, parted)
        if made != clips:
            write_manifest(dataset.manifest, made)
    summary = DatasetSummary.of(made)
    by_length = sorted(summary.speakers.items(), key=lambda item: -item[1])
    lines: list[Line] = [
        Table(("speaker", "used"), tuple((name, format_length(seconds)) for name, seconds in by_length))
    ]
    lines += [
        f"{recording}: {count} voices were found; listen to them, then rename or merge them"
        for recording, count in parted.items()
    ]
    return SimpleResult({"speakers": dict(summary.speakers), "renamed": names, "voices": parted}, tuple(lines))


def _split_by_voice(
    dataset: DatasetFolder, clips: list[ManifestClip], place: Path, parted: dict[str, int]
) -> list[ManifestClip]:
    """Clips whose speaker is only their recording, with a voice number if there are clearly several voices.

    Clips that are short, silent or missing keep the name of the recording.
    """
    encoder = load_speaker_encoder(place)
    unnamed: dict[str, list[ManifestClip]] = defaultdict(list)
    for clip in clips:
        if clip.speaker == clip.recording and clip.is_used:
            unnamed[clip.recording].append(clip)
    speakers: dict[str, str] = {}
    with progress.progress_task("comparing voices", sum(map(len, unnamed.values()))) as advance:
        for recording, own in unnamed.items():
            ids: list[str] = []
            vectors: list[SpeakerEmbeddings] = []
            for first in range(0, len(own), VOICE_BATCH_SIZE):
                batch: list[AudioSamples] = []
                for clip in own[first : first + VOICE_BATCH_SIZE]:
                    if clip.seconds < MIN_VOICE_SECONDS:
                        continue
                    if (samples := read_voice(clip.resolve_audio(dataset.folder))) is not None:
                        batch.append(samples)
                        ids.append(clip.id)
                if batch:
                    vectors.append(encoder.embed(batch).cpu().numpy())
            advance(len(own))
            labels = cluster_speakers(np.concatenate(vectors)) if vectors else []
            if len(set(labels)) > 1:
                parted[recording] = len(set(labels))
                speakers |= {name: f"{recording}:voice-{label + 1}" for name, label in zip(ids, labels, strict=True)}
    return [replace(clip, speaker=speakers.get(clip.id, clip.speaker)) for clip in clips]


def data_text(settings: DataTextSettings) -> SimpleResult:
    """Normalize sentences of the command line and of files."""
    if not settings.text and not settings.texts:
        cure = "give sentences, or files with one sentence per line with --texts."
        raise ConfigError("config-missing", "there is no text to normalize", cure=cure)
    for text in settings.text:
        if not is_encodable_text(text):  # invalid bytes of the command line arrive as lone surrogates
            cure = "use a terminal with UTF-8 (for example LC_ALL=C.UTF-8), or put the sentence into a UTF-8 file."
            raise TextError("text-not-utf8", f"the sentence {text!a:.80} is not UTF-8", where="command line", cure=cure)
    normalizer = build_normalizer(settings.language, fold_homophones=settings.fold_homophones)
    sentences = (*settings.text, *(line for path in settings.texts for _, line in read_lines(path)))
    texts = [(text, normalize_marked_text(normalizer, text)) for text in sentences]
    # Applied rules, rules that left something as it is, and removed characters.
    rules = Counter(change.rule for _, done in texts for change in done.changes)
    left = Counter(note.rule for _, done in texts for note in done.notes)
    removed = sum((done.removed for _, done in texts), Counter[str]())
    values = {
        "language": settings.language,
        "version": normalizer.version,
        "texts": [
            {
                "text": text,
                "normalised": done.text,
                "changes": [asdict(change) for change in done.changes],
                "notes": [asdict(note) for note in done.notes],
            }
            for text, done in texts
        ],
        "rules": dict(rules),
        "left": dict(left),
        "removed": dict(removed),
    }
    if not settings.explain:
        return SimpleResult(values, tuple(done.text for _, done in texts))
    lines: list[Line] = []
    for text, done in texts:
        lines.append(text)
        for change in done.changes:
            shown = f"{change.before!r} -> {change.after!r}"
            lines.append(style_line(f"  {change.place + 1:>5} ", (f"{change.rule}: ", "cyan"), shown))
        lines += [
            style_line(f"  {note.place + 1:>5} ", (f"{note.rule}: ", "yellow"), f"{note.text!r} stays")
            for note in done.notes
        ]
        lines.append(style_line("  = ", (done.text, "bold")))
    counted, kept = (
        ", ".join(f"{name} {count:,}" for name, count in counts.most_common()) or "none" for counts in (rules, left)
    )
    lines.append(f"rules {normalizer.version}, {len(texts):,} texts; changes: {counted}")
    if left:
        lines.append(f"left as they are: {kept}")
    if removed:
        names = (f"{describe_character(character)} ({count:,})" for character, count in removed.most_common())
        lines.append(f"removed: {', '.join(names)}")
    return SimpleResult(values, tuple(lines))
