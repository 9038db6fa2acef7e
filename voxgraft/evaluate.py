"""The verb `evaluate`: speak fixed sentences with the base and with what was made of it, listen, score, and report."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from voxgraft import __version__
from voxgraft.errors import ConfigError, GraftError
from voxgraft.evaluating.hearing import Ear, how_to_add, open_ear
from voxgraft.evaluating.judging import AFTER, Evaluation, Judge
from voxgraft.evaluating.marks import (
    OF_SENTENCES,
    codec_mark,
    read_recordings,
    recordings_mark,
    sentence_recordings,
)
from voxgraft.evaluating.overlap import overlap_of
from voxgraft.evaluating.report import report_html
from voxgraft.evaluating.scores_file import SCORES_NAME, scores_json
from voxgraft.evaluating.scoring import shown_measures
from voxgraft.evaluating.sentences import SentenceSet, sets_of
from voxgraft.evaluating.sound import Sound, open_sound, open_voice_ear
from voxgraft.evaluating.subjects import Subject, require_output, subject_of
from voxgraft.evaluating.systems import System, base_system
from voxgraft.evaluating.verdicts import Point, checklist, is_goal, kept_word, written
from voxgraft.evaluating.voices import voices_of
from voxgraft.files import is_file, replacing_folder, sha256_of, write_json, write_text
from voxgraft.graft_folder import CARD_NAME as GRAFT_CARD
from voxgraft.results import Line, Styled, Table, styled
from voxgraft.settings import EvaluateSettings
from voxgraft.tokenizers import open_tokenizer

__all__ = ["REPORT_NAME", "EvaluateResult", "evaluate"]

REPORT_NAME = "report.html"
SIGNS = {"yes": ("✓", "green"), "no": ("✗", "bold red"), "unknown": ("–", "dim")}
NOT_YET = ("○", "yellow")


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """What was found, and where its files are."""

    folder: Path
    document: Mapping[str, Any]
    evaluation: Evaluation
    points: tuple[Point, ...]
    broken: bool
    """Whether old languages are not what the base's own promise says."""

    @property
    def exit_code(self) -> int:
        return 1 if self.broken else 0

    def to_json(self) -> dict[str, Any]:
        brief = {key: value for key, value in self.document.items() if key != "utterances"}
        return {"folder": str(self.folder), **brief}

    def lines(self) -> list[Line]:
        found = self.evaluation
        shown = shown_measures(found.rows)
        rows = tuple(
            (row.language, row.title, *(written(measure.name, row.score(measure.name)) for measure in shown))
            for row in found.rows
        )
        columns = ("language", "who", *(measure.title for measure in shown))
        lines: list[Line] = [Table(columns, rows), *_listened(self.document)]
        lines.append(_kept_line(found))
        signs = {point.name: NOT_YET if is_goal(point) else SIGNS[point.answer] for point in self.points}
        lines += [styled(signs[point.name], f" {point.question} {point.found}") for point in self.points]
        return [*lines, f"scores: {self.folder / SCORES_NAME}", f"report: {self.folder / REPORT_NAME}"]


def evaluate(settings: EvaluateSettings) -> EvaluateResult:
    """Judge a run, a graft or a checkpoint against its base."""
    subject = subject_of(settings)
    folder = require_output(subject, settings)
    named = _named_recogniser(settings, subject)
    base, after = base_system(subject.place), subject.open()
    new_language = after.spelling.language
    ear = open_ear(named, new_language)
    sets = _sentence_sets(settings, subject, after)
    originals = {language: sentence_recordings(one.sentences) for language, one in sets.items()}
    if settings.recordings:
        mark = recordings_mark(read_recordings(settings.recordings, _new_language(after)), ear, settings.seed)
    else:
        mark = recordings_mark(originals.get(new_language or "", ()), ear, settings.seed, OF_SENTENCES)
    sound = open_sound(subject.place)
    held_out = subject.held_out
    clips = held_out.sets.get(new_language or "") or held_out.all_sets
    voices = voices_of(base, subject.place.files, settings.voices, clips, held_out.min_prompt_seconds, settings.seed)
    sound = sound.in_voices([voice.clip for voice in voices])
    voice_ear = open_voice_ear(base, subject.place, voices)
    judge = Judge(
        base, after, sets, voices, sound, ear, voice_ear, held_out, settings.seed, settings.players, originals
    )
    found = judge.run()
    for language in found.languages:
        own = held_out.sets.get(language, ())
        found.add(codec_mark(own, language, sound, ear, sets, settings.seed))
    found.add(mark)
    points = checklist(found, after)
    about = _about(settings, subject, after, sets, (sound, ear), [voice.name for voice in voices])
    document = scores_json(about, found, points)
    with replacing_folder(folder) as new:
        write_json(new / SCORES_NAME, document)
        write_text(new / REPORT_NAME, report_html(document, found, points, subject.history))
    broken = after.keeps_base and kept_word(found) == "not equal"
    return EvaluateResult(folder, document, found, tuple(points), broken)


def _named_recogniser(settings: EvaluateSettings, subject: Subject) -> str | None:
    """The flag's, else that of run.yaml."""
    own = None if subject.settings is None else subject.settings.evaluate.recogniser
    return settings.listener or own


def _new_language(after: System) -> str:
    if after.spelling.language is None:
        found = f"recordings are given, and {after.name} has no new language"
        raise ConfigError("evaluate-language", found, expected="--language")
    return after.spelling.language


def _sentence_sets(settings: EvaluateSettings, subject: Subject, after: System) -> dict[str, SentenceSet]:
    """Of the new language, and of the base languages that are asked for or that have sentences."""
    spoken = _languages(subject)
    new = after.spelling.language
    if strange := [name for name in settings.languages if name not in spoken or name == new]:
        known = ", ".join(spoken)
        raise ConfigError("evaluate-language", f"languages: {', '.join(strange)}", expected=f"of the base: {known}")
    named = {path.stem for path in settings.sentences}
    old = [
        name
        for name in spoken
        if name != new and (not settings.languages or name in settings.languages or name in named)
    ]
    sets = sets_of([*([new] if new else []), *old], settings.sentences, settings.most)
    if new is not None and new not in sets and (own := subject.own_sentences(new)) is not None:
        sets = {new: own.spread(settings.most), **sets}
    if new is not None and new not in sets:
        found = f"there are no sentences in {new}: no built-in ones, and no held-out texts of a data set"
        raise ConfigError("sentences-missing", found, expected=f"--sentences {new}.txt", where=subject.path)
    if not sets:
        raise GraftError("sentences-missing", "there are no sentences in any language of the base", where=subject.path)
    return sets


def _languages(subject: Subject) -> tuple[str, ...]:
    """Languages that the base speaks, by its release."""
    family, files = subject.place.family, subject.place.files
    return tuple(family.describe(files, open_tokenizer(files.tokenizer).size + family.spare_rows).languages)


def _about(
    settings: EvaluateSettings,
    subject: Subject,
    after: System,
    sets: Mapping[str, SentenceSet],
    heard_by: tuple[Sound, Ear],
    voices: Sequence[str],
) -> dict[str, Any]:
    sound, ear = heard_by
    place, listener = subject.place, ear.listener
    return {
        "name": settings.name,
        "subject": {
            "kind": subject.kind,
            "path": str(subject.path.resolve()),
            "title": subject.path.resolve().name,
            "family": place.family.name,
            "system": after.name,
            "mode": after.mode,
            "step": after.step,
            "label": after.label,
            "keeps_base": after.keeps_base,
            "checkpoint_sha256": None if after.checkpoint is None else sha256_of(after.checkpoint),
            "graft_sha256": _graft_sha256(settings, subject, after),
        },
        "base": str(place.files.folder.resolve()),
        "base_sha256": sha256_of(place.files.checkpoint),
        "listener": {
            "name": None if listener is None or sound.vocoder is None else listener.name,
            "languages": None if listener is None or listener.languages is None else sorted(listener.languages),
            "why": sound.why or (ear.deaf_to(new) if (new := after.spelling.language) else ear.why),
            "how": how_to_add(shlex.quote(str(settings.subject))),
            "named": _named_recogniser(settings, subject),
        },
        "sentences": {language: _about_sentences(found, subject) for language, found in sets.items()},
        "voices": list(voices),
        "sampling": asdict(place.family.stock_sampling()),
        "seed": settings.seed,
        "device": place.device,
        "dtype": str(place.dtype).removeprefix("torch."),
        "versions": {"voxgraft": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _graft_sha256(settings: EvaluateSettings, subject: Subject, after: System) -> str | None:
    """Of the graft's card, which has the hashes of all its parts; None where something else was judged."""
    card = (subject.path if subject.run is None else subject.run.graft) / GRAFT_CARD
    is_graft = after.checkpoint is None and settings.step is None and is_file(card)
    return sha256_of(card) if is_graft else None


def _about_sentences(found: SentenceSet, subject: Subject) -> dict[str, Any]:
    """Where sentences come from, and whether training has had them, as far as that is known."""
    about: dict[str, Any] = {
        "source": found.source,
        "sha256": found.sha256,
        "count": len(found.sentences),
        "rare": sum(bool(one.rare) for one in found.sentences),
    }
    texts = subject.trained_on
    if texts is None or texts.language != found.language:
        return {**about, "training": "what the base was trained on is not known here"}
    if texts.texts is None:
        return {**about, "training": texts.why}
    return {**about, **overlap_of(found, texts.texts).to_json()}


def _listened(document: Mapping[str, Any]) -> list[Line]:
    listener = document["listener"]
    told: list[Line] = []
    if listener["name"] is not None:
        told = [f"recogniser: {listener['name']}; {SCORES_NAME} has 95 % intervals over the sentences"]
    if listener["why"]:
        why = (f"no recogniser for {document['language'] or 'these languages'}: ", "bold")
        told += [styled(why, str(listener["why"])), str(listener["how"])]
    return told


def _kept_line(found: Evaluation) -> Styled:
    word = kept_word(found)
    style = {"equal": "bold green", "not equal": "bold red"}.get(word, "bold")
    names = ", ".join(kept.language for kept in found.kept) or "no language"
    row = found.row(found.kept[0].language, AFTER) if found.kept else None
    with_what = f" with and without {row.title}" if row else ""
    return styled(f"base speech logits{with_what} ({names}): ", (word, style))
