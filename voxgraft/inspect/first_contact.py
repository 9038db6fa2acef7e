"""`check BASE --speak`: the first contact of voxgraft with real weights, on one page that fits into an issue.

Compares every file of a base folder with what its makers published, speaks one sentence in up to three languages of
the base, listens to it, and, where the original program is installed as a companion, compares with that. Changes
nothing. The page names no path and no user.
"""

from __future__ import annotations

import platform
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxgraft.checkpoints.base import ALL_FLOAT_DTYPES
from voxgraft.checkpoints.load import open_checkpoint, open_nested_checkpoint
from voxgraft.config.commands import CheckSettings, SpeakSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, Finding, VoxgraftError, finding
from voxgraft.core.files import compute_sha256, is_file
from voxgraft.core.results import LEVEL_STYLES, Line, Table, format_bytes, format_finding_counts, style_line
from voxgraft.core.run import RUN_FILE
from voxgraft.evaluation.scores import Transcriber, compute_error_rates, open_transcriber
from voxgraft.evaluation.sentences import EvalSentence
from voxgraft.inspect.show import installed_version
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, DecodedUtterance, Family, PublishedTensors
from voxgraft.synthesis.command import STOP_DESCRIPTIONS, SpokenUtterance, Wave, render_pieces, synthesize
from voxgraft.synthesis.engine import open_synthesis_models
from voxgraft.synthesis.inputs import UtteranceRequest, VoiceLoader
from voxgraft.tokenizers import load_proof_corpus, open_tokenizer

# The folders of an absolute path, and not those of a web address.
_FOLDERS = re.compile(r"(?<![\w.:/\\])(?:[A-Za-z]:)?[/\\](?:[^\s/\\\"'`]+[/\\])+")

# Of the languages that a base has, those that most recognizers and most readers know come first.
PREFERRED_LANGUAGES = ("en", "fr", "zh", "de", "es")
NUM_LANGUAGES = 3
MIN_SENTENCE_LETTERS, MAX_SENTENCE_LETTERS = 16, 40
# Characters of a line that represents a text on the page.
MAX_SHOWN = 48
MAX_SIZES_NAMED = 4
HASH_DIGITS = 12
# Weights are never in these formats; a cast would make zeros of most of them. Published counters and positions are.
WHOLE_FORMATS = ("I64", "I32", "I16")
COUNTERS = ("num_batches_tracked", "input_pos", "accumulator_index", "accumulator_filled")
# Sound whose loudest sample is below this is none (-60 dB).
SILENT_PEAK = 1e-3
# Synthetic, and shipped for the demo: a base without voices of its own can still be tried.
STAND_IN_VOICE = "assets/demo/recordings/am-m1.wav"


@dataclass(frozen=True, slots=True)
class FirstContact:
    """The page: files, speech, findings."""

    base: dict[str, Any]
    files: tuple[dict[str, Any], ...]
    speech: tuple[dict[str, Any], ...]
    original: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        return 1 if any(item.level == "error" for item in self.findings) else 0

    def to_json(self) -> dict[str, Any]:
        findings = [item.to_json() for item in self.findings]
        fine = self.exit_code == 0
        return {"fine": fine, **{name: getattr(self, name) for name in ("base", "files", "speech", "original")}} | {
            "findings": findings
        }

    def lines(self) -> list[Line]:
        heads = [f"{name}: {value}" for name, value in self.base.items()]
        lines: list[Line] = ["voxgraft check --speak: paste this page into an issue", *heads]
        for table in (self.files, self.speech):
            if table:
                rows = tuple(tuple(map(str, one.values())) for one in table)
                lines += ["", Table(tuple(table[0]), rows)]
        lines += ["", *(f"{name}: {value}" for name, value in self.original.items())]
        for item in sorted(self.findings, key=lambda item: list(LEVEL_STYLES).index(item.level)):
            first, *rest = item.lines()
            lines += [style_line((first, LEVEL_STYLES[item.level])), *rest]
        return [*lines, format_finding_counts(self.findings)]


def check_first_contact(settings: CheckSettings, max_seconds: float | None = None) -> FirstContact:
    """Look at all files, then speak. What is wrong with a file is a finding; speaking is tried as far as it goes.

    `max_seconds` is for a sentence, instead of the usual limit by its letters.
    """
    base_path = settings.run if settings.run is not None and not is_file(settings.run / RUN_FILE) else settings.base
    if base_path is None:
        raise ConfigError("config-missing", "no base is given", expected="voxgraft check BASE --speak")
    folder = resolve_base_folder(base_path)
    family = resolve_base_family(folder, settings.family)
    files = family.files(folder)
    rows = open_tokenizer(files.tokenizer).size + family.spare_rows
    description = family.describe(files, rows)
    base = {
        "base": f"{family.name}, {description.release}, folder {files.folder.name}",
        "machine": f"voxgraft {installed_version('voxgraft')}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, {platform.system()} {platform.machine()}",
    }
    findings: list[Finding] = []
    listed = [_compare_file(published_file, files, findings) for published_file in family.published_files(files)]
    speech: list[dict[str, Any]] = []
    original: dict[str, Any] = {}
    # A model of another size may well speak; one that is not whole cannot.
    if any(item.level == "error" and item.code != "base-other-size" for item in findings):
        original["speech"] = "not tried: a file is missing, or is not what was published"
    else:
        speaking = SpeakSettings(
            base=folder,
            family=settings.family,
            voice=None if settings.voice is None else str(settings.voice),
            device=settings.train.device,
            precision=settings.train.precision,
            max_seconds=max_seconds,
        )
        chosen = choose_sentences(description.languages)
        try:
            speech, original = _speak(speaking, settings.recognizer, family, chosen, base, findings)
        except VoxgraftError as error:
            findings.append(error.finding)
    public_findings = (_without_folders(item, files.folder, settings.voice) for item in findings)
    return FirstContact(base, tuple(listed), tuple(speech), original, tuple(dict.fromkeys(public_findings)))


def _without_folders(item: Finding, *paths: Path | str | None) -> Finding:
    """A finding whose paths are names only: the page is made to be shown to others."""
    parents = {str(form.parent) for one in paths if one for form in (Path(one), Path(one).resolve())}

    def shorten(text: str) -> str:
        for parent in sorted(parents - {".", "/"}, key=len, reverse=True):  # also those with spaces
            text = text.replace(f"{parent}/", "")
        return _FOLDERS.sub("", text)

    found, expected, where, cure = map(shorten, (item.found, item.expected, item.where, item.cure))
    return replace(item, found=found, expected=expected, where=where, cure=cure)


def _compare_file(published: PublishedTensors, files: BaseFiles, findings: list[Finding]) -> dict[str, Any]:
    """One row of the page; differences become findings."""
    path = next((files.folder / name for name in published.names if is_file(files.folder / name)), None)
    if path is None:
        absent = dict.fromkeys(("size", "sha256", "tensors", "format"), "")
        if published.needed:
            found = f"{published.names[0]} ({published.what}) is not in the folder"
            findings.append(finding("base-file-missing", found, where=files.folder.name))
        result = "missing" if published.needed else "absent (optional)"
        return {"file": published.names[0], **absent, "result": result}
    row: dict[str, Any] = {
        "file": path.relative_to(files.folder).as_posix(),
        "size": format_bytes(path.stat().st_size),
        "sha256": compute_sha256(path)[:HASH_DIGITS],
        "tensors": "",
        "format": "",
    }
    before, name = len(findings), row["file"]
    try:
        size = published.read_size(path)
        differences = min((list(_size_differences(size, one)) for one in published.published), key=len)
        if differences:
            named = "; ".join(differences[:MAX_SIZES_NAMED])
            more = f"; and {len(differences) - MAX_SIZES_NAMED} more" if len(differences) > MAX_SIZES_NAMED else ""
            found = f"{name} is complete, but its tensors have other shapes than the published ones: {named}{more}"
            findings.append(finding("base-other-size", found, where=name))
        formats, whole = _count_formats(path, published.key)
        row |= {
            "tensors": sum(formats.values()),
            "format": ", ".join(f"{count} {name}" for name, count in formats.items()),
        }
        other = {name: count for name, count in formats.items() if name in ALL_FLOAT_DTYPES and name != "F32"}
        if other:
            counts = " and ".join(f"{count:,} tensors are {name}" for name, count in other.items())
            findings.append(finding("base-other-format", f"{name}: {counts}", expected="F32", where=name))
        if whole:
            found = f"tensors with integers instead of floating-point numbers: {len(whole):,}, for example {whole[0]}"
            findings.append(finding("tensors-mismatch", found, expected="F32", where=name))
    except VoxgraftError as error:
        # A missing package is no fault of the file.
        level = "warning" if error.code == "package-missing" else error.finding.level
        findings.append(replace(error.finding, where=name, level=level))
    new = {item.level for item in findings[before:]}
    return {**row, "result": "differs" if "error" in new else "see below" if new else "as published"}


def _count_formats(path: Path, key: str) -> tuple[Counter[str], list[str]]:
    """Tensors of each number format in a file, and names of weights that are whole numbers.

    None for a file that holds a single tensor or dictionaries of others.
    """
    try:
        with open_nested_checkpoint(path, key) if key else open_checkpoint(path) as checkpoint:
            formats = {name: info.stored or info.dtype for name, info in checkpoint.tensors.items()}
    except VoxgraftError:
        return Counter(), []
    whole = [name for name, own in formats.items() if own in WHOLE_FORMATS and not name.endswith(COUNTERS)]
    return Counter(formats.values()), whole


def _size_differences(found: Any, published: Any, name: str = "") -> Iterator[str]:
    """Where two sizes of one kind differ, by their fields."""
    if is_dataclass(found) and is_dataclass(published):
        found, published = asdict(found), asdict(published)  # type: ignore[arg-type]
    if isinstance(found, Mapping) and isinstance(published, Mapping):
        for own in published:
            yield from _size_differences(found[own], published[own], f"{name}.{own}".lstrip("."))
    elif isinstance(found, tuple) and isinstance(published, tuple) and len(found) == len(published):
        for number, (own, other) in enumerate(zip(found, published, strict=True)):
            inner = name if is_dataclass(own) else f"{name}[{number}]"
            yield from _size_differences(own, other, inner)
    elif found != published:
        yield f"{name} is {found}, not {published}"


def choose_sentences(languages: Sequence[str]) -> list[tuple[str, str]]:
    """A short sentence in each of up to three languages."""
    order = [code for code in PREFERRED_LANGUAGES if code in languages]
    order += [code for code in languages if code not in order]
    short: dict[str, str] = {}
    for code, sentence in load_proof_corpus():
        # A sign of a language that is written without spaces counts as about two letters.
        letters = sum(map(str.isalpha, sentence)) * (1 if " " in sentence else 2)
        fits = MIN_SENTENCE_LETTERS <= letters <= MAX_SENTENCE_LETTERS and not any(map(str.isdecimal, sentence))
        if fits:
            short.setdefault(code, sentence)
    return [(code, short[code]) for code in order if code in short][:NUM_LANGUAGES]


def _speak(
    speaking: SpeakSettings,
    recognizer: str | None,
    family: Family,
    chosen: Sequence[tuple[str, str]],
    base: dict[str, Any],
    findings: list[Finding],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for every language, and the comparison with the original program."""
    speakers = open_synthesis_models(speaking)
    voices = VoiceLoader(speakers, speaking)
    vocoder = speakers.context.vocoder()
    if vocoder is None:
        found = f"{family.name} cannot produce sound here: the base has no vocoder"
        raise ConfigError("no-waveform-end", found)
    vocoder.validate()
    findings += vocoder.findings()
    if speaking.voice is None and not family.voices(speakers.context.files):
        with resources.as_file(resources.files("voxgraft").joinpath(STAND_IN_VOICE)) as recording:
            speaking = speaking.model_copy(update={"voice": str(recording)})
            voices = VoiceLoader(speakers, speaking)
            voices.voice(None)
        findings.append(finding("first-contact-voice", "no --voice was given, and the base has no voice of its own"))
    base["voice"] = voices.voice(None).name
    base["device"] = f"{speakers.context.device}, {str(speakers.context.dtype).removeprefix('torch.')}"
    rows: list[dict[str, Any]] = []
    first: SpokenUtterance | None = None
    with progress.progress_task("speaking", len(chosen)) as advance:
        for code, text in chosen:
            transcriber = open_transcriber(recognizer, code)
            started = time.perf_counter()
            (speech,) = synthesize(speakers, voices, [UtteranceRequest(code, text, code)], speaking, vocoder)
            synthesis_end = time.perf_counter()
            ((*waves,),) = render_pieces([speech], vocoder, 1)
            wave = np.concatenate(waves)
            seconds = (synthesis_end - started, time.perf_counter() - synthesis_end)
            rows.append(_describe_speech(speech, wave, vocoder.sample_rate, seconds, transcriber, findings))
            first = first or (speech if speech.pieces[0].codes else None)
            advance(1)
    if first is None:
        return rows, {}
    piece, model = first.pieces[0], speakers.system(first.language).model
    condition, voice = voices.condition(first.voice), first.voice.clip
    original: dict[str, Any] = {}
    try:
        utterance = DecodedUtterance(speakers.context.files, model, vocoder, voice, condition, piece.ids, piece.codes)
        compared = family.upstream().compare(family.name, utterance)
        for what, (message, agrees) in compared.items():
            original[what] = message
            if not agrees:
                findings.append(finding("first-contact-original", f"{what}: {message}"))
    except VoxgraftError as error:
        findings.append(error.finding)
        original["original program"] = f"not compared: stopped by {error.code}"
    return rows, original


def _describe_speech(
    speech: SpokenUtterance,
    wave: Wave,
    rate: int,
    seconds: tuple[float, float],
    transcriber: Transcriber,
    findings: list[Finding],
) -> dict[str, Any]:
    text, language = speech.utterance.text, speech.language
    length, where = len(wave) / rate, f"speech in {language}"
    peak = float(np.abs(wave).max()) if len(wave) else 0.0
    if not np.isfinite(wave).all():
        findings.append(finding("first-contact-sound", "some samples are NaN", where=where))
    elif peak < SILENT_PEAK:
        found = f"{length:.1f} s of silence (loudest sample: {peak:.1g})"
        findings.append(finding("first-contact-sound", found, where=where))
    if speech.stop != "ended":
        found = f"{STOP_DESCRIPTIONS[speech.stop]} after {length:.1f} s"
        findings.append(finding("first-contact-end", found, where=where))
    transcript_text, errors = f"not listened to: {transcriber.why_unsupported(language)}"[:MAX_SHOWN], ""
    if not transcriber.why_unsupported(language) and np.isfinite(wave).all():
        (transcript,) = transcriber.transcribe([wave], rate, language, language)
        transcript_text = (
            f"{transcript.text!r:.{MAX_SHOWN}} ({transcriber.recognizer.name})" if transcriber.recognizer else ""
        )
        score = compute_error_rates([EvalSentence(language, text)], [transcript], 0)["cer"]
        errors = "" if score.value is None else f"{score.value:.0%} of letters"
    codes = sum(len(piece.codes) for piece in speech.pieces)
    return {
        "language": language,
        "text": text[:MAX_SHOWN],
        "sound": f"{length:.1f} s, {codes} codes",
        "ended": STOP_DESCRIPTIONS[speech.stop],
        "speed": f"codes {seconds[0]:.1f} s, sound {seconds[1]:.1f} s" if length else "",
        "peak": f"{peak:.2f}",
        "heard": transcript_text,
        "errors": errors,
    }
