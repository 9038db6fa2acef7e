"""The verb `data speakers`: who speaks in a dataset, other names for them, and voices told apart that have none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from voxgraft.audio.files import AudioSamples, read_clip_audio
from voxgraft.config.data import DataSpeakersSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.results import Line, SimpleResult, Table
from voxgraft.data.folder import DatasetFolder, open_dataset_folder
from voxgraft.data.manifest import DatasetSummary, ManifestClip, format_duration, write_manifest
from voxgraft.data.selection import ClipSelection, require_known_names
from voxgraft.models import load_speaker_encoder
from voxgraft.models.base import SpeakerEncoder

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
    encoder = load_speaker_encoder(place)
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
    dataset: DatasetFolder, clips: Sequence[ManifestClip], encoder: SpeakerEncoder
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
