"""The verb `data speakers`: who speaks in a dataset, other names for them, and voices told apart that have none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soxr
from numpy.typing import NDArray

from voxgraft import progress
from voxgraft.data_settings import DataSpeakersSettings
from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.importing.choosing import ClipSelection, require_known_names
from voxgraft.importing.dataset import DatasetFolder, open_dataset_folder
from voxgraft.importing.manifest import ManifestClip, write_manifest
from voxgraft.importing.media import AudioSamples
from voxgraft.importing.sound_files import read_clip_audio
from voxgraft.importing.summary import DatasetSummary, format_duration
from voxgraft.importing.voice_clusters import cluster_speakers
from voxgraft.results import Line, SimpleResult, Table

if TYPE_CHECKING:
    from voxgraft.families.chatterbox.voice_encoder import VoiceEncoder

__all__ = ["data_speakers"]

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
    from voxgraft.families.chatterbox.voice_encoder import VoiceEncoder

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
