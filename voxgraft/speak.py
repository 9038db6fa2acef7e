"""The verb `speak`: texts to sound, or to speech codes, with a base, a run or several grafts beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import Finding, finding
from voxgraft.families.base import Family
from voxgraft.results import Line, style_line
from voxgraft.settings import SpeakSettings
from voxgraft.speaking.opening import SynthesisModels, open_synthesis_models
from voxgraft.speaking.saying import SpokenUtterance, synthesize
from voxgraft.speaking.texts import read_utterances
from voxgraft.speaking.voices import VoiceLoader
from voxgraft.speaking.writing import plan_outputs, write_audio_files, write_codes_file

__all__ = ["SpeakResult", "speak"]

STOP_DESCRIPTIONS = {"ended": "ended by itself", "limit": "cut at its limit", "loop": "cut: it went round in a loop"}


@dataclass(frozen=True, slots=True)
class SpeakResult:
    """What was said, how it ended, and where it is."""

    family: Family
    base: Path
    said: tuple[SpokenUtterance, ...]
    sound: tuple[Path, ...]
    """The file of each utterance; none where only codes were asked for."""
    codes: Path | None
    notes: tuple[Finding, ...] = ()
    """What is to be said of the speakers, whatever they said."""

    @property
    def cut(self) -> list[SpokenUtterance]:
        """Utterances that did not come to their end by themselves."""
        return [one for one in self.said if one.stop != "ended"]

    @property
    def findings(self) -> list[Finding]:
        return [*self.notes, *(item for one in self.said for item in one.findings)]

    @property
    def exit_code(self) -> int:
        return 1 if self.cut else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "family": self.family.name,
            "base": str(self.base),
            "codes": str(self.codes) if self.codes else None,
            "utterances": [
                {
                    "name": one.utterance.name,
                    "language": one.language,
                    "text": one.utterance.text,
                    "voice": one.voice.name,
                    "seconds": self._seconds(one),
                    "stop": one.stop,
                    "pieces": len(one.pieces),
                    "file": str(self.sound[at]) if self.sound else None,
                }
                for at, one in enumerate(self.said)
            ],
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        for at, one in enumerate(self.said):
            pieces = f", {len(one.pieces)} pieces" if len(one.pieces) > 1 else ""
            where = f": {self.sound[at]}" if self.sound else ""
            stop = (STOP_DESCRIPTIONS[one.stop], "green" if one.stop == "ended" else "bold yellow")
            head = f"{one.utterance.name}  {one.language}  {self._seconds(one):.1f} s{pieces}, "
            lines.append(style_line(head, stop, where))
        lines += [text for item in self.findings for text in item.lines()]
        total = sum(map(self._seconds, self.said))
        lines.append(f"{len(self.said)} said, {total:.1f} s in all; {len(self.cut)} did not end by themselves")
        return [*lines, *([f"codes: {self.codes}"] if self.codes else [])]

    def _seconds(self, one: SpokenUtterance) -> float:
        return round(one.seconds(self.family.code_hz), 2)


def speak(settings: SpeakSettings) -> SpeakResult:
    """Say everything, then write it."""
    utterances = read_utterances(settings.text, settings.file)
    speakers = open_synthesis_models(settings, {one.language or settings.language for one in utterances})
    family, files = speakers.place.family, speakers.place.files
    vocoder = family.vocoder(files, speakers.place.device)
    outputs = plan_outputs(utterances, settings, family, vocoder)
    said = synthesize(speakers, VoiceLoader(speakers, settings), utterances, settings)
    sound: Sequence[Path] = ()
    if vocoder is not None and outputs.sound:
        sound = write_audio_files(said, vocoder, outputs, settings)
    if outputs.codes is not None:
        write_codes_file(said, outputs.codes, family, overwrite=settings.overwrite)
    notes = _untrained(speakers, {one.language for one in said})
    return SpeakResult(family, files.folder, tuple(said), tuple(sound), outputs.codes, tuple(notes))


def _untrained(speakers: SynthesisModels, languages: set[str]) -> list[Finding]:
    """New languages that are spoken by a graft as it was made, before any step of training."""
    spoken = {name: speakers.system(name) for name in sorted(languages)}
    own = {name: system for name, system in spoken.items() if system.spelling.is_new_language(name)}
    # A graft that others made may have an adapter and not say how it was trained.
    names = [name for name, one in own.items() if one.step == 0 or (one.step is None and one.gate is None)]
    return [finding("speak-untrained", f"the graft of {', '.join(names)} was not trained yet")] if names else []
