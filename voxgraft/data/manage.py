"""The verbs `data list`, `data info`, `data merge` and `data remove`: datasets looked at and changed.

The manifest is written first and whole; files go after it, so that a clip that is listed is there.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soxr
from numpy.typing import NDArray

from voxgraft.audio.files import AudioSamples, read_clip_audio
from voxgraft.config.commands import DataTextSettings
from voxgraft.config.data import (
    DataInfoSettings,
    DataListSettings,
    DataMergeSettings,
    DataRemoveSettings,
    DataSpeakersSettings,
)
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, TextError, VoxgraftError
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
from voxgraft.data.manifest import DatasetSummary, ManifestClip, SourceProblem, format_duration, write_manifest
from voxgraft.data.selection import ClipSelection, require_known_names
from voxgraft.data.sources import sanitize_name
from voxgraft.text.normalize import NormalizedText, build_normalizer

if TYPE_CHECKING:
    from voxgraft.models.chatterbox.encoder import VoiceEncoder


MERGED_FROM_KEY = "merged_from"
"""Of a clip: the dataset that it was imported into, and its id there, through however many others it came."""


@dataclass(slots=True)
class DatasetMerger:
    """A dataset that others are put into: its clips so far, and the names that are taken."""

    target: DatasetFolder
    clips: list[ManifestClip]
    sources: set[str]
    """Names of sources that were imported, finished or not: they may still get clips."""
    ids: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Recordings and speakers."""
    files: set[str] = field(default_factory=set)
    added: int = 0
    renamed: int = 0
    known: int = 0

    @classmethod
    def into(cls, target: DatasetFolder) -> DatasetMerger:
        target.reconcile_published()
        journals = target.journals()
        made = cls(target, [], {journal.recording for journal in journals})
        for clip in (clip for journal in journals for clip in journal.clips):
            made._note(clip)
        for clip in target.clips():
            made.clips.append(clip)
            made._note(clip)
        return made

    def _note(self, clip: ManifestClip) -> None:
        self.ids.add(clip.id)
        self.names |= {clip.recording, clip.speaker, clip.speaker.partition(":")[0]}
        self.files.add(clip.audio.lower())

    def add(self, source: DatasetFolder, *, used_only: bool) -> None:
        """Put the clips of a dataset in that are not there yet."""
        origins = {origin: clip.id for clip in self.clips for origin in _clip_origins(self.target, clip)}
        recordings: dict[str, list[ManifestClip]] = defaultdict(list)
        coming = list(source.clips())
        for clip in coming:
            recordings[clip.recording].append(clip)
        prefixes: dict[str, str] = {}
        for name, clips in recordings.items():
            prefixes[name] = prefix = self._prefix(source, clips, origins)
            self.names.add(prefix + name)
            self.ids |= {prefix + clip.id for clip in clips}
        for clip in coming:
            if used_only and not clip.is_used:
                continue
            if not origins.keys().isdisjoint(_clip_origins(source, clip)):
                self.known += 1
                continue
            self._check_rate(clip, source)
            made = self._moved(clip, prefixes, _clip_origins(source, clip)[0])
            _link_or_copy(clip.resolve_audio(source.folder), made.resolve_audio(self.target.folder))
            self.clips.append(made)
            self._note(made)
            self.added += 1
            self.renamed += made.id != clip.id

    def _prefix(self, source: DatasetFolder, clips: Sequence[ManifestClip], origins: Mapping[str, str]) -> str:
        """What comes before all names of one recording; as the last time, if some of it is there already."""
        for clip in clips:
            before = next((origins[origin] for origin in _clip_origins(source, clip) if origin in origins), "")
            if before.endswith(clip.id):
                return before.removesuffix(clip.id)
        number, prefix = 1, ""
        while self._is_taken(prefix, clips):
            prefix = f"{source.name}." if number == 1 else f"{source.name}.{number}."
            number += 1
        return prefix

    def _is_taken(self, prefix: str, clips: Sequence[ManifestClip]) -> bool:
        recording = prefix + clips[0].recording
        if recording in self.names or recording in self.sources:
            return True
        ids = [prefix + clip.id for clip in clips]
        return any(name in self.ids or name.rpartition("-")[0] in self.sources for name in ids)

    def _moved(self, clip: ManifestClip, prefixes: Mapping[str, str], origin: str) -> ManifestClip:
        prefix = prefixes[clip.recording]
        # A speaker that is named after a recording goes with it; others are the same person in every dataset.
        named_after = clip.speaker if clip.speaker in prefixes else clip.speaker.partition(":")[0]
        if clip.speaker.startswith(f"{clip.recording}:"):
            named_after = clip.recording
        return replace(
            clip,
            id=prefix + clip.id,
            audio=self._free_file(prefix + clip.recording, prefix + clip.id, Path(clip.audio).suffix),
            recording=prefix + clip.recording,
            speaker=prefixes.get(named_after, "") + clip.speaker,
            other={**clip.other, MERGED_FROM_KEY: origin},
        )

    def _free_file(self, recording: str, clip_id: str, ending: str) -> str:
        """A file among our clips: names that a manifest has from elsewhere may lead out of the folder."""
        stem = f"{CLIPS_FOLDER}/{sanitize_name(recording)}/{sanitize_name(clip_id)}"
        number, free = 2, stem + ending
        while free.lower() in self.files:
            free, number = f"{stem}-{number}{ending}", number + 1
        return free

    def _check_rate(self, clip: ManifestClip, source: DatasetFolder) -> None:
        if self.clips and clip.sample_rate != self.clips[0].sample_rate:
            found = f"{self.clips[0].sample_rate:,} Hz and {clip.sample_rate:,} Hz"
            raise FileError("dataset-differs", found, where=source.folder)


def _clip_origins(dataset: DatasetFolder, clip: ManifestClip) -> tuple[str, ...]:
    """By what a clip is known again: where it was imported, and where it is now."""
    here = f"{dataset.folder.resolve()}#{clip.id}"
    first = clip.other.get(MERGED_FROM_KEY)
    return (first, here) if isinstance(first, str) else (here,)


def _link_or_copy(source: Path, target: Path) -> None:
    """Link a file, or copy it where that cannot be; beside its place first, so that it is whole or absent."""
    if not is_file(source):
        raise FileError("clip-audio-missing", f"{source.name} is not there", where=source)
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


MAX_CLIPS_SHOWN = 40


def data_list(settings: DataListSettings) -> SimpleResult:
    """The recordings of a dataset, or the datasets in a folder."""
    folder = require_folder(settings.folder)
    own = DatasetFolder(folder)
    if own.has_manifest:
        summary = DatasetSummary.of(own.clips())
        rows = tuple(
            (name, f"{summary.clips_of[name]:,}", format_duration(seconds))
            for name, seconds in sorted(summary.recordings.items())
        )
        table = Table(("recording", "clips", "used"), rows)
        return SimpleResult({"dataset": str(folder), **summary.to_json()}, (table,))
    sets = [DatasetFolder(path.parent) for path in sorted(folder.glob("*/manifest.jsonl"))]
    if not sets:
        raise FileError("dataset-missing", f"no dataset in {folder.name}", where=folder)
    summaries = [(one, DatasetSummary.of(one.clips())) for one in sets]
    shown = tuple(
        (one.name, f"{found.clips:,}", f"{found.used:,}", format_duration(found.seconds), f"{len(found.speakers):,}")
        for one, found in summaries
    )
    table = Table(("dataset", "clips", "used", "length", "speakers"), shown)
    return SimpleResult({"datasets": [{"dataset": one.name, **found.to_json()} for one, found in summaries]}, (table,))


def data_info(settings: DataInfoSettings) -> SimpleResult:
    """Everything that is known of a dataset without listening to it."""
    dataset = open_dataset_folder(settings.dataset)
    clips = list(dataset.clips())
    summary = DatasetSummary.of(clips)
    missing = [clip.id for clip in find_missing_audio(dataset)]
    unfinished = [journal.recording for journal in dataset.journals() if not journal.is_published]
    problems = collect_problems(dataset)
    values = {**summary.to_json(), "missing_audio": missing, "unfinished": unfinished, "problems": len(problems)}
    lines: list[Line] = [
        f"{pluralize(summary.clips, 'clip')}, {summary.used:,} used: {format_duration(summary.seconds)}; "
        f"rejected: {format_duration(summary.rejected_seconds)}",
        f"{pluralize(len(summary.recordings), 'recording')}, {pluralize(len(summary.speakers), 'speaker')}, "
        f"languages: {', '.join(summary.languages) or 'none'}",
        f"split: {_format_splits(summary.splits)}",
    ]
    if summary.reasons:
        lines.append(f"rejected for: {', '.join(f'{name} {count:,}' for name, count in summary.reasons.most_common())}")
    if missing:
        shown = ", ".join(missing[:MAX_CLIPS_SHOWN])
        lines.append(
            f"the sound of {len(missing):,} clips is not there: {shown}. `data remove --missing` takes them out."
        )
    if unfinished:
        lines.append(f"not finished: {', '.join(unfinished)}; the same import goes on with them")
    if settings.problems:
        lines += _list_problem_lines(problems)
        values["every_problem"] = [problem.to_json() for problem in problems]
    elif problems:
        lines += format_problems(problems, dataset.folder / PROBLEMS_FILE)[-1:]
    if settings.clips:
        lines.append(_clip_table(clips))
    return SimpleResult(values, tuple(lines), int(bool(missing)))


def _format_splits(splits: dict[str, float]) -> str:
    return ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in sorted(splits.items())) or "nothing"


def _list_problem_lines(problems: Sequence[SourceProblem]) -> Iterator[Line]:
    for problem in problems:
        yield from problem.finding().lines()[:2]


def _clip_table(clips: Sequence[ManifestClip]) -> Table:
    rows = tuple(
        (clip.id, f"{clip.seconds:.2f}", clip.speaker, clip.split or "", ", ".join(clip.rejected), clip.text)
        for clip in clips
    )
    return Table(("clip", "seconds", "speaker", "split", "rejected", "text"), rows)


def data_merge(settings: DataMergeSettings) -> SimpleResult:
    """Put datasets into one. A recording whose name is taken, with its ids, gets that of its dataset before it."""
    target = DatasetFolder(settings.dataset)
    sources = [open_dataset_folder(folder) for folder in settings.sets]
    if own := [source for source in sources if source.folder.resolve() == target.folder.resolve()]:
        found = f"{own[0].name} is to be put into itself"
        raise ConfigError(
            "config-value", found, expected="other datasets than the one they go into", where=own[0].folder
        )
    with target.locked():
        merging = DatasetMerger.into(target)
        for source in sources:
            merging.add(source, used_only=settings.used_only)
        write_manifest(target.manifest, merging.clips)
    done = {"added": merging.added, "renamed": merging.renamed, "known": merging.known}
    told = "{added:,} clips added, {renamed:,} of them under a new id, {known:,} were there already".format(**done)
    return SimpleResult({**done, "clips": len(merging.clips)}, (told,))


def data_remove(settings: DataRemoveSettings) -> SimpleResult:
    """Take clips out of a dataset, after having asked."""
    dataset = open_dataset_folder(settings.dataset)
    wanted = ClipSelection(set(settings.recording), set(settings.speaker), set(settings.clip))
    if not (wanted.recordings or wanted.speakers or wanted.ids or settings.missing):
        cure = "name --recording, --speaker, --clip or --missing."
        raise ConfigError("config-missing", "nothing is named that shall go", cure=cure)
    with dataset.locked():
        dataset.reconcile_published()
        clips = list(dataset.clips())
        _expand_source_names(wanted, clips, dataset)
        require_known_names(wanted, clips, dataset)
        wanted.missing = {clip.id for clip in find_missing_audio(dataset)} if settings.missing else set()
        going = [clip for clip in clips if wanted.includes_clip(clip)]
        seconds = sum(clip.seconds for clip in going)
        told = f"{len(going):,} clips, {format_duration(seconds)}"
        answer = (
            True
            if settings.yes or not going
            else confirm_with_user([_clip_table(going[:MAX_CLIPS_SHOWN])], f"remove {told}?")
        )
        if not answer:
            nobody = "" if answer is not None else "nobody is there to be asked, so "
            return SimpleResult(
                {"removed": 0, "would": len(going)}, (f"{nobody}nothing was removed: {told} would be.",), 1
            )
        left = dataset.remove(going, [clip for clip in clips if not wanted.includes_clip(clip)])
        write_problems_file(dataset)
    lines = [f"removed {told}"]
    if left:
        lines.append(f"{len(left):,} sounds lie outside of the dataset and stay where they are: {left[0]} ...")
    return SimpleResult({"removed": len(going), "seconds": round(seconds, 3), "left": left}, tuple(lines))


def _expand_source_names(wanted: ClipSelection, clips: Sequence[ManifestClip], dataset: DatasetFolder) -> None:
    """A list holds many recordings under names of their own; by its name all of them are meant."""
    names = wanted.recordings - {clip.recording for clip in clips}
    there = {clip.id for clip in clips}
    for journal in dataset.journals() if names else ():
        if journal.recording in names and journal.ids & there:
            wanted.recordings.discard(journal.recording)
            wanted.ids |= journal.ids & there


SpeakerEmbeddings = NDArray[np.float32]
MAX_SPEAKERS = 8
KMEANS_ITERATIONS = 30
MIN_SILHOUETTE = 0.4
"""Mean silhouette, from -1 to 1, from which several voices are clearer than one. One speaker's clips stay below."""
MAX_CENTROID_COSINE = 0.88
"""Cosine of two voices' means from which they are one voice in two moods."""
MIN_CLUSTER_CLIPS = 3
MAX_SILHOUETTE_CLIPS = 600


def cluster_speakers(vectors: SpeakerEmbeddings) -> list[int]:
    """The number of the voice of each clip, the most frequent first; all 0 where there is clearly one, or few clips."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    best, chosen = MIN_SILHOUETTE, np.zeros(len(unit), np.int64)
    for count in range(2, min(MAX_SPEAKERS, len(unit) // MIN_CLUSTER_CLIPS) + 1):
        labels = _spherical_kmeans(unit, count)
        if (
            np.bincount(labels, minlength=count).min() < MIN_CLUSTER_CLIPS
            or _max_centroid_cosine(unit, labels) > MAX_CENTROID_COSINE
        ):
            continue
        clarity = _mean_silhouette(unit, labels)
        if clarity > best:
            best, chosen = clarity, labels
    order = {int(old): new for new, old in enumerate(np.argsort(-np.bincount(chosen), kind="stable"))}
    return [order[int(label)] for label in chosen]


def _spherical_kmeans(unit: SpeakerEmbeddings, count: int) -> NDArray[np.int64]:
    """Means on the sphere; the first centres are the clips that are furthest from those before."""
    centres = [unit[int(np.argmax(unit @ unit.mean(axis=0)))]]
    while len(centres) < count:
        nearest = np.max(unit @ np.array(centres).T, axis=1)
        centres.append(unit[int(np.argmin(nearest))])
    middle = np.array(centres)
    labels = np.zeros(len(unit), np.int64)
    for _ in range(KMEANS_ITERATIONS):
        fresh = np.argmax(unit @ middle.T, axis=1)
        if np.array_equal(fresh, labels):
            break
        labels = fresh
        sums = np.array(
            [unit[labels == own].sum(axis=0) if (labels == own).any() else middle[own] for own in range(count)]
        )
        middle = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
    return labels


def _max_centroid_cosine(unit: SpeakerEmbeddings, labels: NDArray[np.int64]) -> float:
    """Cosine of the two voices that are most alike."""
    means = np.array([unit[labels == own].mean(axis=0) for own in np.unique(labels)])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
    return float(np.max(means @ means.T - 2 * np.eye(len(means))))


def _mean_silhouette(unit: SpeakerEmbeddings, labels: NDArray[np.int64]) -> float:
    """How much nearer clips are to their own voice than to the next, on the average."""
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


VOICE_ENCODER_HZ = 16_000
MIN_VOICE_SECONDS = 1.0
VOICE_BATCH_SIZE = 32


def data_speakers(settings: DataSpeakersSettings) -> SimpleResult:
    """Who speaks, and under which names from now on."""
    dataset = open_dataset_folder(settings.dataset)
    names = _parse_renames(settings.rename)
    parted: dict[str, int] = {}
    with dataset.locked():
        clips = list(dataset.clips())
        require_known_names(ClipSelection(set(), set(names), set()), clips, dataset)
        made = [replace(clip, speaker=names.get(clip.speaker, clip.speaker)) for clip in clips]
        if settings.voices is not None:
            made = _split_by_voice(dataset, made, settings.voices, parted)
        if made != clips:
            write_manifest(dataset.manifest, made)
    summary = DatasetSummary.of(made)
    by_length = sorted(summary.speakers.items(), key=lambda item: -item[1])
    lines: list[Line] = [
        Table(("speaker", "used"), tuple((name, format_duration(seconds)) for name, seconds in by_length))
    ]
    lines += [
        f"{recording}: {count} voices were told apart; listen, and name or join them"
        for recording, count in parted.items()
    ]
    return SimpleResult({"speakers": dict(summary.speakers), "renamed": names, "voices": parted}, tuple(lines))


def _parse_renames(words: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for word in words:
        old, equals, new = word.partition("=")
        if not (old and equals and new):
            raise ConfigError("config-value", f"--rename {word!r}", expected="OLD=NEW")
        names[old] = new
    return names


def _split_by_voice(
    dataset: DatasetFolder, clips: list[ManifestClip], place: Path, parted: dict[str, int]
) -> list[ManifestClip]:
    """Clips whose speaker is only their recording, with a voice's number behind it where there clearly are several."""
    # The one place that names a family's part: no other base has an encoder of voices that can be had alone.
    from voxgraft.models.chatterbox.encoder import VoiceEncoder

    encoder = VoiceEncoder.load(place)
    unnamed: dict[str, list[ManifestClip]] = defaultdict(list)
    for clip in clips:
        if clip.speaker == clip.recording and clip.is_used:
            unnamed[clip.recording].append(clip)
    speakers: dict[str, str] = {}
    with progress.progress_task("listening to voices", sum(map(len, unnamed.values()))) as advance:
        for recording, own in unnamed.items():
            heard = list(_embed_clips(dataset, own, encoder))
            advance(len(own))
            labels = cluster_speakers(np.array([vector for _, vector in heard])) if heard else []
            if len(set(labels)) > 1:
                parted[recording] = len(set(labels))
                speakers |= {
                    name: f"{recording}:voice-{label + 1}" for (name, _), label in zip(heard, labels, strict=True)
                }
    return [replace(clip, speaker=speakers.get(clip.id, clip.speaker)) for clip in clips]


def _embed_clips(
    dataset: DatasetFolder, clips: Sequence[ManifestClip], encoder: VoiceEncoder
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The voice of each clip that is long enough; those that are not keep the recording's name."""
    for first in range(0, len(clips), VOICE_BATCH_SIZE):
        some = clips[first : first + VOICE_BATCH_SIZE]
        batch = [(clip.id, samples) for clip in some for samples in _load_voice_samples(dataset, clip)]
        if batch:
            vectors = encoder.embed([samples for _, samples in batch]).cpu().numpy()
            yield from zip((name for name, _ in batch), vectors, strict=True)


def _load_voice_samples(dataset: DatasetFolder, clip: ManifestClip) -> Iterator[AudioSamples]:
    if clip.seconds < MIN_VOICE_SECONDS:
        return
    try:
        samples, rate = read_clip_audio(clip.resolve_audio(dataset.folder))
    except VoxgraftError:  # `data info` and `data report` tell of sound that is not there
        return
    if float(np.abs(samples).max(initial=0.0)) > 1e-3:
        made: AudioSamples = soxr.resample(samples, rate, VOICE_ENCODER_HZ).astype(np.float32)
        yield made


@dataclass(frozen=True, slots=True)
class DataTextResult:
    """Texts before and after, in order."""

    language: str
    version: str
    texts: tuple[tuple[str, NormalizedText], ...]
    explain: bool = False
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        texts = [
            {
                "text": text,
                "normalised": done.text,
                "changes": [change.to_json() for change in done.changes],
                "notes": [note.to_json() for note in done.notes],
            }
            for text, done in self.texts
        ]
        return {
            "language": self.language,
            "version": self.version,
            "texts": texts,
            "rules": dict(self._rules()),
            "left": dict(self._left()),
            "removed": dict(self._removed()),
        }

    def lines(self) -> list[Line]:
        if not self.explain:
            return [done.text for _, done in self.texts]
        lines: list[Line] = []
        for text, done in self.texts:
            lines += [text, *_format_changes(done), style_line("  = ", (done.text, "bold"))]
        return [*lines, *self._summary()]

    def _summary(self) -> Iterator[str]:
        yield f"rules {self.version}, {len(self.texts):,} texts; changes: {_format_counts(self._rules())}"
        if left := self._left():
            yield f"left as they are: {_format_counts(left)}"
        if removed := self._removed():
            names = ", ".join(
                f"{describe_character(character)} ({count:,})" for character, count in removed.most_common()
            )
            yield f"removed: {names}"

    def _rules(self) -> Counter[str]:
        return Counter(change.rule for _, done in self.texts for change in done.changes)

    def _left(self) -> Counter[str]:
        return Counter(note.rule for _, done in self.texts for note in done.notes)

    def _removed(self) -> Counter[str]:
        return sum((done.removed for _, done in self.texts), Counter[str]())


def data_text(settings: DataTextSettings) -> DataTextResult:
    """Normalise sentences of the command line and of files."""
    if not settings.text and not settings.texts:
        cure = "give sentences, or --texts with files that have a sentence on each line."
        raise ConfigError("config-missing", "there is no text to normalise", cure=cure)
    normaliser = build_normalizer(settings.language, fold_homophones=settings.fold_homophones)
    texts = tuple((text, normaliser.normalise(text)) for text in _read_input_sentences(settings))
    return DataTextResult(settings.language, normaliser.version, texts, settings.explain)


def _read_input_sentences(settings: DataTextSettings) -> Iterator[str]:
    for text in settings.text:
        if not is_encodable_text(text):  # bytes of the command line that are no character arrive as halves of one
            raise TextError("text-not-utf8", f"the sentence {text!a:.80} is not UTF-8", where="command line")
        yield text
    for path in settings.texts:
        for _, line in read_lines(path):
            yield line


def _format_changes(done: NormalizedText) -> Iterator[Line]:
    for change in done.changes:
        yield style_line(
            f"  {change.place + 1:>5} ", (f"{change.rule}: ", "cyan"), f"{change.before!r} -> {change.after!r}"
        )
    for note in done.notes:
        yield style_line(f"  {note.place + 1:>5} ", (f"{note.rule}: ", "yellow"), f"{note.text!r} stays")


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common()) or "none"
