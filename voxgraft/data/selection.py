"""Which clips of a manifest go into which set, and which do not. Reads the manifest; opens no sound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, GraftError, find_nearest_name
from voxgraft.core.files import is_file, is_folder
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import MANIFEST_NAME, ManifestClip, SplitName, read_manifest

SelectedRole = Literal["train", "valid"]
"""The two prepared sets that a manifest fills; replay is made elsewhere."""
ROLE_BY_SPLIT: dict[SplitName, SelectedRole] = {"train": "train", "validation": "valid"}
"""The set that a split becomes, under the name that `train` looks for. Nothing is learnt from tests."""


@dataclass(frozen=True, slots=True)
class SelectedClip:
    """A clip that goes into a set."""

    clip: ManifestClip
    role: SelectedRole
    path: Path
    """Its sound file."""


@dataclass(frozen=True, slots=True)
class SelectedClips:
    """The clips that are wanted, in the manifest's order, and how many are not, by reason."""

    clips: tuple[SelectedClip, ...]
    aside: Mapping[str, int]


def resolve_manifest_path(given: Path | None, run_data: Path) -> Path:
    """The manifest that was named, or that lies in the folder that was named, or in the run.

    A folder need not be there yet: what does not end like a manifest is taken for one.
    """
    place = given or run_data
    is_manifest = not is_folder(place) and (is_file(place) or place.suffix == Path(MANIFEST_NAME).suffix)
    return place if is_manifest else place / MANIFEST_NAME


def resolve_text_files(settings: RunSettings, run: Path | None) -> tuple[Path, ...]:
    """Texts of the new language: those that are named; else the manifest of the run's data, where there is one."""
    if settings.texts or run is None:
        return settings.texts
    manifest = resolve_manifest_path(settings.data.dataset, RunFolder(run).data)
    return (manifest,) if is_file(manifest) else ()


def select_clips(path: Path, language: str) -> SelectedClips:
    """The clips of the new language that are not rejected and have been split into training and validation."""
    clips: list[SelectedClip] = []
    aside: Counter[str] = Counter()
    for clip in read_manifest(path):
        reason = _skip_reason(clip, language)
        if reason:
            aside[reason] += 1
        else:
            assert clip.split is not None
            clips.append(SelectedClip(clip, ROLE_BY_SPLIT[clip.split], clip.resolve_audio(path.parent)))
    told = ", ".join(f"{count:,} {reason}" for reason, count in aside.items())
    for split, role in ROLE_BY_SPLIT.items():
        if not any(wanted.role == role for wanted in clips):
            found = f"no clip of {path.name} is for {split}" + (f" ({told})" if told else "")
            raise GraftError("manifest-no-split", found, expected=f"clips in {language} with split {split}", where=path)
    return SelectedClips(tuple(clips), dict(aside))


def _skip_reason(clip: ManifestClip, language: str) -> str:
    if clip.language != language:
        return f"in {clip.language}"
    if not clip.is_used:
        return "rejected"
    if clip.split is None:
        return "not split"
    return "" if clip.split in ROLE_BY_SPLIT else f"kept for {clip.split}"


def assign_voices(speakers: Iterable[str], voices: Iterable[str], given: Iterable[str]) -> dict[str, str]:
    """For bases that speak with voices of their own: which of them stands for which speaker of the manifest.

    Who was named has what was named, who is called like a voice has that one, and the others take turns.
    """
    names, known = list(voices), list(dict.fromkeys(speakers))
    chosen = dict(_parse_voice_assignment(words, known, names) for words in given)
    chosen |= {speaker: speaker for speaker in known if speaker in names and speaker not in chosen}
    others = [speaker for speaker in known if speaker not in chosen]
    free = [name for name in names if name not in chosen.values()] or names
    return chosen | {speaker: free[turn % len(free)] for turn, speaker in enumerate(others)}


def _parse_voice_assignment(words: str, speakers: list[str], voices: list[str]) -> tuple[str, str]:
    speaker, _, voice = words.rpartition("=")
    for value, known, what in ((speaker, speakers, "speaker of the manifest"), (voice, voices, "voice of the base")):
        if value not in known:
            hint = find_nearest_name(value, known)
            found = f"--voices {words}: {value!r} is no {what}"
            cure = f"did you mean `{hint}`?" if hint else "name them as SPEAKER=VOICE."
            raise ConfigError("config-value", found, expected=f"one of {', '.join(known[:20])}", cure=cure)
    return speaker, voice
