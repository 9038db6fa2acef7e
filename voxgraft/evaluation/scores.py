"""Sentences spoken by a model, and their scores with confidence intervals.

What an evaluation listens to: speech, its sound, and recordings to compare it with. What it measures: error rates of
what a recognizer heard, stop failures, length, repetition. The same input gives the same numbers. A score that was not
measured has no value and a reason; no default ever replaces a number.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft import asr
from voxgraft.asr import Recognizer, Transcript, open_recognizer
from voxgraft.asr.transcripts import edit_distance
from voxgraft.audio.files import MAX_CLIP_SECONDS, MEDIA_SUFFIXES, read_audio, resample
from voxgraft.core import progress, rng
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import is_file, read_text, require_folder
from voxgraft.core.run import as_finite_float
from voxgraft.dataset.shards import AnyArray, ClipDataset
from voxgraft.evaluation.sentences import LANGUAGES_WITHOUT_SPACES, EvalSentence, normalize_letters, normalize_phones
from voxgraft.models.base import BaseFiles, Clip, Latents, Vocoder, unknown_voice_error
from voxgraft.models.generate import MAX_LOOP_PERIOD_SECONDS, MIN_LOOP_ROUNDS, MIN_LOOP_SECONDS
from voxgraft.synthesis.engine import (
    ModelContext,
    SpeakingModel,
    SynthesisEngine,
    SynthesisRequest,
    draw_seed,
    limit_codes,
    max_sentence_seconds,
)
from voxgraft.synthesis.inputs import ReferenceVoice, choose_voices
from voxgraft.text.normalize import build_normalizer
from voxgraft.text.spans import remove_markers

Wave = NDArray[np.float32]
MAX_EVAL_VOICES = 4
# Utterances in one call of a vocoder.
VOCODER_BATCH_SIZE = 16
# Rate at which recordings of a data set are read: more than any recognizer takes, and enough for listening.
RECORDING_RATE_HZ = 24_000
# Of more recordings than these, some are chosen that are spread evenly over all.
MAX_RECORDINGS = 100
# What is spoken in a recording, its samples and their rate.
ReferenceRecording = tuple[EvalSentence, Wave, int]


@dataclass(frozen=True, slots=True)
class SpokenSentence:
    """One sentence as one system said it. Without codes it could not be spoken at all, and `why` is the reason."""

    sentence: EvalSentence
    voice: ReferenceVoice
    codes: tuple[int, ...] | None
    stopped: bool
    """The model ended the speech itself, before the limit."""
    seconds: float
    why: str = ""
    code_hz: float = 25.0
    ids: tuple[int, ...] = ()
    """Text tokens that the model was given."""
    latents: Latents | None = None
    """For a vocoder that needs them. [codes, width]"""

    @property
    def is_runaway(self) -> bool:
        return self.codes is not None and not self.stopped


def choose_eval_voices(
    base: SpeakingModel,
    files: BaseFiles,
    names: Sequence[str],
    held_out: Sequence[ClipDataset],
    min_seconds: float,
    seed: int,
) -> list[ReferenceVoice]:
    """Voices to rotate through: those named, else of held-out clips, else the base's own; an error without any."""
    if not names and held_out:
        # One clip of every speaker comes first, so the first voices are of as many speakers as there are.
        return choose_voices(held_out, min_seconds, MAX_EVAL_VOICES * 4, seed)[:MAX_EVAL_VOICES]
    own = base.family.voices(files)
    if not names and own:
        return [ReferenceVoice(name, clip) for name, clip in list(own.items())[:MAX_EVAL_VOICES]]
    if not names:
        found = f"there are no held-out clips, and {base.family.name} has no named voices"
        raise FileError("evaluate-voice", found, expected="--voices FILE.wav", where=files.folder)
    voices = []
    for name in names:
        if name in own:
            voices.append(ReferenceVoice(name, own[name]))
            continue
        path = Path(name)
        if not is_file(path):
            missing = FileError("file-missing", f"{name} does not exist")
            raise unknown_voice_error(name, own, files.folder) if own else missing
        wave, rate = read_audio(path, code="wav-form")
        clip = base.family.encoder(files, base.model).encode_voice(wave, rate)
        voices.append(ReferenceVoice(path.name, clip))
    return voices


def synthesize_sentences(
    system: SpeakingModel,
    sentences: Sequence[EvalSentence],
    voices: Sequence[ReferenceVoice],
    seed: int,
    label: str,
    *,
    latents: bool = False,
) -> list[SpokenSentence]:
    """Every sentence, in its order, with rotating voices. Loops are not cut: they are among what is measured."""
    family, sampling = system.family, system.family.upstream_sampling()
    utterances: list[SpokenSentence] = []
    requests: dict[int, SynthesisRequest] = {}
    for index, sentence in enumerate(sentences):
        voice = voices[index % len(voices)]
        request = _build_request(system, index, sentence, voice, seed)
        why = system.why_unspeakable(request.text_ids)
        utterances.append(SpokenSentence(sentence, voice, None, False, 0.0, why, ids=tuple(request.text_ids)))
        if not why:
            requests[index] = request
    # A new engine for every call: inside training its memory must be given back.
    engine = SynthesisEngine(system.model, sampling, set_gate=system.set_gate_for, latents=latents)
    results = engine.run(list(requests.values()), f"speaking with {label}")
    for index, result in zip(requests, results, strict=True):
        seconds = len(result.codes) / family.code_hz
        utterances[index] = replace(utterances[index], codes=result.codes, stopped=result.ended, latents=result.latents)
        utterances[index] = replace(utterances[index], seconds=seconds, code_hz=family.code_hz)
    return utterances


def _build_request(
    system: SpeakingModel, at: int, sentence: EvalSentence, voice: ReferenceVoice, seed: int
) -> SynthesisRequest:
    most = min(system.family.upstream_sampling().max_codes, system.model.spec.max_codes)
    encoded, words = system.encode(sentence.text, sentence.language), remove_markers(sentence.text)
    return SynthesisRequest(
        tuple(encoded.ids),
        system.family.condition(voice.clip),
        # The seed belongs to the sentence, so that a sentence sounds the same in a larger or smaller set.
        draw_seed("evaluate", seed, sentence.language, sentence.text),
        encoded.closed,
        max_codes=limit_codes(max_sentence_seconds(words), system.family.code_hz, most),
        language=encoded.language or sentence.language,
        sort_key=(len(words), at),
    )


@dataclass(frozen=True)
class SpeechRenderer:
    """A vocoder; or none, and why."""

    vocoder: Vocoder | None
    why: str = ""

    @property
    def rate(self) -> int:
        assert self.vocoder is not None
        return self.vocoder.sample_rate

    def restrict_to_voices(self, voices: Sequence[Clip]) -> SpeechRenderer:
        """The same, or none if the vocoder cannot render one of the voices."""
        reasons = (self.vocoder.why_not(voice) for voice in voices) if self.vocoder else ()
        why = next(filter(None, reasons), "")
        return SpeechRenderer(None, why) if why else self

    @property
    def needs_latents(self) -> bool:
        return self.vocoder is not None and self.vocoder.needs_latents

    def waves(self, utterances: Sequence[SpokenSentence], label: str) -> list[Wave]:
        """Every utterance as sound; an empty wave for what could not be spoken."""
        assert self.vocoder is not None
        rendered: list[Wave] = []
        with progress.progress_task(f"vocoding {label}", len(utterances)) as advance:
            for first in range(0, len(utterances), VOCODER_BATCH_SIZE):
                batch = utterances[first : first + VOCODER_BATCH_SIZE]
                codes, voices = (
                    [utterance.codes or () for utterance in batch],
                    [utterance.voice.clip for utterance in batch],
                )
                latents = [np.zeros((0, 0)) if utterance.latents is None else utterance.latents for utterance in batch]
                rendered += self.vocoder.sound(codes, voices, latents if self.needs_latents else None)
                advance(len(batch))
        return rendered


def open_speech_renderer(context: ModelContext) -> SpeechRenderer:
    """The vocoder of a base. A family without one is no error: codes can be evaluated too."""
    vocoder = context.vocoder()
    missing = f"the vocoder of {context.family.name} is missing, so there is no sound"
    return SpeechRenderer(vocoder, "" if vocoder else missing)


def read_reference_recordings(folder: Path, language: str) -> list[ReferenceRecording]:
    """Audio or video files NAME.* with NAME.txt beside them, and NAME.phones where the phones are known."""
    files = sorted(require_folder(folder).iterdir())
    paths = [path for path in files if path.suffix.lower() in MEDIA_SUFFIXES and is_file(path)]
    if not paths:
        found = f"no audio file (*.wav, *.flac, *.mp3 ...) in {folder.name}"
        raise FileError("recordings-missing", found, where=folder)
    if alone := [path.name for path in paths if not is_file(path.with_suffix(".txt"))]:
        found = f"{len(alone)} of {len(paths)} recordings have no text file next to them, such as {alone[0]}"
        raise FileError("recordings-missing", found, expected=f"NAME.txt next to {alone[0]}", where=folder)
    if len(paths) > MAX_RECORDINGS:
        paths = [paths[at * len(paths) // MAX_RECORDINGS] for at in range(MAX_RECORDINGS)]
    recordings = []
    for path in paths:
        phones = path.with_suffix(".phones")
        known = tuple(read_text(phones).split()) if is_file(phones) else None
        sentence = EvalSentence(language, read_text(path.with_suffix(".txt")).strip(), phones=known)
        recordings.append((sentence, *read_audio(path, code="wav-form")))
    return recordings


def read_sentence_recordings(sentences: Sequence[EvalSentence]) -> list[ReferenceRecording]:
    """The recordings that sentences name. Unreadable ones are left out: speech is evaluated without them too."""
    found = []
    for sentence in sentences:
        if sentence.recording is not None:
            with contextlib.suppress(VoxgraftError):
                audio = read_audio(sentence.recording, RECORDING_RATE_HZ, max_seconds=MAX_CLIP_SECONDS)
                found.append((sentence, *audio))
    return found


# ---- scores ----------------------------------------------------------------------------------------------------------

BOOTSTRAP_DRAWS = 1000
FloatArray = NDArray[np.float64]
# Waves in one call of a recognizer.
ASR_BATCH_SIZE = 16
# In the order in which they are preferred.
ERROR_MEASURES = ("phone_error", "cer", "wer")
EMPTY_TRANSCRIPT = Transcript("", ())
# Shorter waves are padded with silence: some recognizers fail on them.
MIN_ASR_SECONDS = 0.25
BUILT_IN_RECOGNIZER, NO_RECOGNIZER = "built-in", "none"
MAX_LANGUAGES_NAMED = 12
RECOGNIZER_CURE = "choose another recognizer: whisper:small, whisper:FOLDER or 'command:PROGRAM {wav}'; or none."
# A correlation over fewer sentences says nothing.
MIN_FIT_SENTENCES = 5
# Speech of less than this share of its usual length has lost words.
CUT_OFF_RATIO = 0.4


@dataclass(frozen=True, slots=True)
class Score:
    """One measured number with its interval and how many things it is over, or no number and the reason."""

    value: float | None
    low: float | None = None
    high: float | None = None
    count: int = 0
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        if self.value is None:
            return {"value": None, "why": self.why}
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count}

    @classmethod
    def from_json(cls, value: Any) -> Score:
        """What `to_json` gave; anything else is a score that was not measured."""
        given = value if isinstance(value, dict) else {}
        number, low, high, count = (as_finite_float(given.get(name)) for name in ("value", "low", "high", "count"))
        return cls(None, why=str(given.get("why", ""))) if number is None else cls(number, low, high, int(count or 0))


def unmeasured_score(why: str) -> Score:
    """No number, and the reason."""
    return Score(None, why=why)


def score_without_interval(value: float, count: int) -> Score:
    """A number without interval; one that is not finite counts as not measured."""
    return Score(value, count=count) if math.isfinite(value) else unmeasured_score("the number is not finite")


def compute_error_rate(counts: Sequence[tuple[int, int]], seed: int) -> Score:
    """All edits over the total length, with a bootstrap interval. `counts` are edits and length of each sentence."""
    if not sum(length for _, length in counts):
        return unmeasured_score("there is nothing to compare")
    wrong, lengths = np.array(counts, dtype=np.float64).T
    return _add_bootstrap_interval(
        float(wrong.sum() / lengths.sum()),
        lambda picked: np.asarray(wrong[picked].sum(1) / np.maximum(lengths[picked].sum(1), 1)),
        len(counts),
        seed,
    )


def compute_average(values: Sequence[float], seed: int, average: Callable[..., Any] = np.mean) -> Score:
    """The mean (of yes and no the share of yes) or `np.median`, with its interval."""
    if not values:
        return unmeasured_score("there is nothing to measure")
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all():
        return unmeasured_score("a number is not finite")
    return _add_bootstrap_interval(
        float(average(array)), lambda picked: np.asarray(average(array[picked], axis=-1)), len(array), seed
    )


def _add_bootstrap_interval(
    value: float, of_draws: Callable[[NDArray[np.int64]], FloatArray], count: int, seed: int
) -> Score:
    """Bootstrap: sets of the same size, drawn with repetition. Philox gives the same draws on every platform."""
    key = rng.hash_int("bootstrap", seed, count)
    raw = np.random.Philox(key=key).random_raw(BOOTSTRAP_DRAWS * count).reshape(BOOTSTRAP_DRAWS, count)
    drawn = of_draws((raw % np.uint64(count)).astype(np.int64))
    low, high = np.percentile(drawn, [2.5, 97.5])  # holds 95 of 100 draws
    return Score(value, float(low), float(high), count)


@dataclass(frozen=True)
class Transcriber:
    """The recognizer; or none, and why. With a recognizer, why there is none for a language that it does not know."""

    recognizer: Recognizer | None
    why: str = ""

    def why_unsupported(self, language: str) -> str:
        """Why a language is not listened to; empty if it is."""
        if self.recognizer is None:
            return self.why
        if self.recognizer.languages is not None and asr.resolve_recognizer_language(self.recognizer, language)[1]:
            known = sorted(self.recognizer.languages)
            more = f" and {len(known) - MAX_LANGUAGES_NAMED} more" if len(known) > MAX_LANGUAGES_NAMED else ""
            names = ", ".join(known[:MAX_LANGUAGES_NAMED]) + more
            return self.why or f"the recognizer {self.recognizer.name} does not know {language}, only {names}"
        return ""

    def transcribe(self, waves: Sequence[Wave], rate: int, language: str, label: str) -> list[Transcript]:
        """Every wave, in its order, at a sample rate that the recognizer takes."""
        assert self.recognizer is not None
        target_rate, code = (
            self.recognizer.sample_rate or rate,
            asr.resolve_recognizer_language(self.recognizer, language)[0],
        )
        transcripts = [EMPTY_TRANSCRIPT] * len(waves)
        nonempty = [index for index, wave in enumerate(waves) if len(wave)]
        with progress.progress_task(f"transcribing {label}", len(nonempty)) as advance:
            for first in range(0, len(nonempty), ASR_BATCH_SIZE):
                batch = nonempty[first : first + ASR_BATCH_SIZE]
                filled = [resample(waves[index], rate, target_rate) for index in batch]
                min_samples = round(MIN_ASR_SECONDS * target_rate)
                filled = [
                    np.pad(wave, (0, min_samples - len(wave))) if len(wave) < min_samples else wave for wave in filled
                ]
                for index, transcript in zip(batch, self.recognizer.transcribe(filled, target_rate, code), strict=True):
                    transcripts[index] = transcript
                advance(len(batch))
        return transcripts


def open_transcriber(setting: str | None, language: str | None = None) -> Transcriber:
    """The recognizer that is named; else the built-in one, or Whisper for a `language` that only Whisper knows.

    That there is none is a reason and no error, unless one was named.
    """
    if setting == NO_RECOGNIZER:
        return Transcriber(None, "the recognizer is set to none")
    if setting is not None:
        return Transcriber(open_recognizer(setting))
    try:
        transcriber = Transcriber(open_recognizer(BUILT_IN_RECOGNIZER))
    except VoxgraftError as error:
        transcriber = Transcriber(None, f"the built-in recognizer cannot be opened: {error.finding.found}")
    if language is None or not (reason := transcriber.why_unsupported(language)):
        return transcriber
    if not asr.is_whisper_installed():
        return replace(transcriber, why=f"{reason}; faster-whisper is not installed")
    if (model := asr.find_downloaded_whisper()) is None:
        return replace(transcriber, why=f"{reason}; faster-whisper is installed, but has no model on this machine")
    try:
        whisper = Transcriber(asr.WhisperRecognizer(model))
    except VoxgraftError as error:
        return replace(transcriber, why=f"{reason}; {error.finding.found}")
    return (
        replace(transcriber, why=f"{reason}; {unknown}") if (unknown := whisper.why_unsupported(language)) else whisper
    )


def require_recognizer(setting: str | None, language: str) -> None:
    """Raise unless a recognizer that is named can be opened and knows the language."""
    if setting in (None, NO_RECOGNIZER):
        return
    transcriber = open_transcriber(setting)
    if why := transcriber.why_unsupported(language):
        raise ConfigError("recognizer-language", why, cure=RECOGNIZER_CURE)


def compute_error_rates(
    sentences: Sequence[EvalSentence], transcripts: Sequence[Transcript], seed: int
) -> dict[str, Score]:
    """Phone, letter and word error over sentences of one language, and the first two of common and rare ones apart."""
    pairs = list(zip(sentences, transcripts, strict=True))
    language = sentences[0].language if sentences else ""
    found = {
        "phone_error": _compute_phone_error_rate(pairs, seed),
        "cer": compute_error_rate([_count_text_edits(*pair) for pair in pairs], seed),
        "wer": unmeasured_score(f"{language} is written without spaces between words")
        if language in LANGUAGES_WITHOUT_SPACES
        else compute_error_rate([_count_text_edits(*pair, words=True) for pair in pairs], seed),
    }
    rare = [pair for pair in pairs if pair[0].rare]
    common = [pair for pair in pairs if not pair[0].rare]
    if rare and common:
        for name, part in (("common", common), ("rare", rare)):
            found[f"phone_error_{name}"] = _compute_phone_error_rate(part, seed)
            found[f"cer_{name}"] = compute_error_rate([_count_text_edits(*pair) for pair in part], seed)
    return found


def compute_sentence_errors(sentence: EvalSentence, transcript: Transcript) -> dict[str, float | None]:
    """Letter and phone error of one sentence; None where there is nothing to compare."""
    counts = {"cer": _count_text_edits(sentence, transcript), "phone_error": _count_phone_edits(sentence, transcript)}
    return {name: edits[0] / edits[1] if edits is not None and edits[1] else None for name, edits in counts.items()}


def _compute_phone_error_rate(pairs: Sequence[tuple[EvalSentence, Transcript]], seed: int) -> Score:
    if not any(sentence.phones for sentence, _ in pairs):
        return unmeasured_score("the sentences have no phones to compare with")
    if any(result.phones is None for _, result in pairs):  # what was not heard at all has no phones with any recognizer
        return unmeasured_score("the recognizer writes letters, not phones")
    return compute_error_rate([edits for pair in pairs if (edits := _count_phone_edits(*pair)) is not None], seed)


def _count_text_edits(sentence: EvalSentence, transcript: Transcript, *, words: bool = False) -> tuple[int, int]:
    # The text normalizer first (numbers in words, one form of each apostrophe): recognizers write 2026 where people
    # say words.
    normalizer = build_normalizer(sentence.language)
    reference, hypothesis = (
        normalize_letters(normalizer.normalise(text).text, sentence.language)
        for text in (remove_markers(sentence.text), transcript.text)
    )
    reference_units, hypothesis_units = (
        (reference.split(), hypothesis.split()) if words else (list(reference), list(hypothesis))
    )
    return edit_distance(reference_units, hypothesis_units), len(reference_units)


def _count_phone_edits(sentence: EvalSentence, transcript: Transcript) -> tuple[int, int] | None:
    if sentence.phones is None or transcript.phones is None:
        return None
    phones = normalize_phones(sentence.phones)
    return edit_distance(phones, normalize_phones(transcript.phones)), len(phones)


# By name, in the order in which they are shown: title, form (percent, ratio, nats or number) and meaning.
SCORE_MEASURES = {
    "phone_error": ("phone error", "percent", "Phones that were wrong, missing or inserted (phone error rate)."),
    "cer": ("letter error", "percent", "The same in letters (character error rate)."),
    "wer": ("word error", "percent", "The same in words (word error rate)."),
    "unsaid": ("not said", "percent", "Sentences that could not be spoken; they count as an empty transcript."),
    "runaway": ("runaway", "percent", "Sentences that did not end before the length limit."),
    "cut": ("cut off", "percent", "Sentences that ended after less than 0.4 of their usual length."),
    "duration": (
        "length",
        "ratio",
        "Length of the speech, relative to the usual pace (new language) or to the base (old languages); 1 is equal.",
    ),
    "repeats": ("repeats", "percent", "Sentences that repeat the same sounds for two seconds or more."),
    "length_fit": (
        "length fit",
        "number",
        "Correlation of speech length and number of letters: 1 is exact, 0 means that the text is not used.",
    ),
    "distinct": ("distinct", "percent", "Sentences whose speech is not identical to that of another sentence."),
    "likeness": ("voice", "number", "Similarity to the requested voice; 1 is the same."),
    "speech_loss": ("speech loss", "nats", "Cross-entropy of held-out recordings, per speech code."),
    "text_use": ("text use", "nats", "Increase of the speech loss with another sentence's text."),
    "kl": ("KL to base", "nats", "Distance of the next-code distribution from the base's."),
}


class ScoreRow(NamedTuple):
    """All scores of one system in one language, or of a control. `who` is before, after, shuffled, or a mark."""

    language: str
    who: str
    title: str
    scores: Mapping[str, Score]

    def score(self, name: str) -> Score:
        return self.scores.get(name) or unmeasured_score("not checked")


def measure_title(name: str) -> str:
    """A measure as people call it."""
    return SCORE_MEASURES[name][0] if name in SCORE_MEASURES else name


def tabulate_scores(rows: Sequence[ScoreRow]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Titles and cells of the table of scores, for a terminal and for the web page."""
    measures = select_shown_measures(rows)
    cells = [(row.language, row.title, *(format_score(name, row.score(name)) for name in measures)) for row in rows]
    return ["language", "who", *map(measure_title, measures)], cells


def format_score(name: str, score: Score) -> str:
    """A score as people read it; a dash where there is none."""
    if score.value is None:
        return "–"
    form = SCORE_MEASURES[name][1] if name in SCORE_MEASURES else "percent"
    text = f"{100 * score.value:.1f} %" if form == "percent" else f"{score.value:.{2 if form != 'nats' else 3}f}"
    # No sign before what is rounded to zero.
    return text.removeprefix("-") if not any(digit in text for digit in "123456789") else text


def select_shown_measures(rows: Sequence[ScoreRow]) -> list[str]:
    """Measures that any row has, without those that say nothing: all sentences said, and all distinct."""
    dull = {"unsaid": 0.0, "distinct": 1.0}
    values = {name: {row.score(name).value for row in rows} for name in SCORE_MEASURES}
    return [name for name, found in values.items() if found - {None, dull.get(name)}]


def expected_seconds(pace: float, sentence: EvalSentence) -> float:
    """The usual length of a sentence at a pace in seconds per letter."""
    return pace * max(1, len(normalize_letters(sentence.text, sentence.language)))


def measure_spoken_pace(utterances: Sequence[SpokenSentence]) -> float | None:
    """The median pace of speech that the base ended itself, in seconds per letter."""
    paces = [
        utterance.seconds / len(letters)
        for utterance in utterances
        if utterance.codes
        and utterance.stopped
        and (letters := normalize_letters(utterance.sentence.text, utterance.sentence.language))
    ]
    return median(paces) if paces else None


def compute_stop_scores(
    utterances: Sequence[SpokenSentence],
    pace: float | None,
    before: Sequence[SpokenSentence] | None,
    seed: int,
    *,
    is_own_pace: bool = False,
) -> dict[str, Score]:
    """Stop failures, length and repetition. Lengths are compared with `before`, the base's speech, if given.

    `pace` is in seconds per letter; `is_own_pace` says that it was measured on this speech.
    """
    spoken = [utterance for utterance in utterances if utterance.codes is not None]
    unsaid = {"unsaid": compute_average([float(utterance.codes is None) for utterance in utterances], seed)}
    if not spoken:
        why = utterances[0].why if utterances else "there is no sentence"
        names = ("runaway", "cut", "duration", "repeats", "length_fit", "distinct")
        return unsaid | dict.fromkeys(names, unmeasured_score(f"nothing could be spoken: {why}"))
    counts = Counter(utterance.codes for utterance in spoken)
    usual = [expected_seconds(pace, utterance.sentence) for utterance in spoken] if pace is not None else []
    durations = [utterance.seconds for utterance in spoken]
    cut = (
        compute_average(
            [float(actual < CUT_OFF_RATIO * expected) for actual, expected in zip(durations, usual, strict=True)], seed
        )
        if pace is not None
        else unmeasured_score("the usual length is not known")
    )

    ratios: list[float] = []
    duration = unmeasured_score("there is no utterance to compare the length with")
    if before is not None:
        # Only where the base came to an end: a runaway has no length to compare with.
        pairs = zip(utterances, before, strict=True)
        ratios = [
            utterance.seconds / old.seconds for utterance, old in pairs if utterance.codes and old.codes and old.stopped
        ]
    elif pace is None:
        duration = unmeasured_score("there is nothing to compare the length with")
    elif is_own_pace:
        duration = unmeasured_score("it is the reference for lengths")
    else:
        ratios = [
            utterance.seconds / expected for utterance, expected in zip(spoken, usual, strict=True) if utterance.codes
        ]

    # Speech that ignores its text has a length of its own, whatever the text is.
    letters = [
        float(len(normalize_letters(utterance.sentence.text, utterance.sentence.language))) for utterance in spoken
    ]
    if len(spoken) < MIN_FIT_SENTENCES or np.std(letters) == 0:
        fit = unmeasured_score(f"this needs {MIN_FIT_SENTENCES} sentences of different lengths")
    else:
        correlation = float(np.corrcoef(letters, durations)[0, 1]) if np.std(durations) else 0.0
        fit = score_without_interval(correlation, len(spoken))
    return {
        **unsaid,
        "runaway": compute_average([float(utterance.is_runaway) for utterance in spoken], seed),
        "cut": cut,
        "duration": compute_average(ratios, seed, np.median) if ratios else duration,
        "repeats": compute_average(
            [float(has_code_loop(utterance.codes or (), utterance.code_hz)) for utterance in spoken], seed
        ),
        "length_fit": fit,
        "distinct": compute_average([float(counts[utterance.codes] == 1) for utterance in spoken], seed),
    }


def has_code_loop(codes: Sequence[int], code_hz: float) -> bool:
    """Whether the codes repeat a period somewhere, not only at their end."""
    # A run of n positions equal to those one period earlier is n + period codes of repetition.
    least, array = round(MIN_LOOP_SECONDS * code_hz), np.asarray(codes)
    for period in range(1, round(MAX_LOOP_PERIOD_SECONDS * code_hz) + 1):
        needed = max(least, MIN_LOOP_ROUNDS * period) - period
        if len(array) - period < needed:
            return False
        breaks = np.flatnonzero(array[period:] != array[:-period])
        edges = np.concatenate([[-1], breaks, [len(array) - period]])
        if np.diff(edges).max() - 1 >= needed:
            return True
    return False


def compute_voice_similarity(found: Sequence[AnyArray], requested: Sequence[AnyArray], seed: int) -> Score:
    """The mean cosine between spoken voices and requested voices."""
    cosines = [
        float(
            np.dot(spoken_voice, requested_voice)
            / max(1e-9, float(np.linalg.norm(spoken_voice) * np.linalg.norm(requested_voice)))
        )
        for spoken_voice, requested_voice in zip(found, requested, strict=True)
    ]
    return compute_average(cosines, seed)
