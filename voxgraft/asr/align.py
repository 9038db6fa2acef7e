"""Recordings without times: `data align` cuts one by its text, `data transcribe` transcribes it.

Both cut the recording into phrases at its pauses and let a recognizer transcribe each. `align` compares the transcripts
with the whole text by dynamic programming, moves the ends of every sentence to pauses, and accepts a sentence only
where letters, edges and pace agree. Both write a list with times, which the ordinary import reads.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.asr import (
    BUILT_IN_RATE_HZ,
    CTC_BLANK,
    SAMPLES_PER_STEP,
    BuiltInRecognizer,
    Recognizer,
    open_recognizer,
    resolve_recognizer_language,
)
from voxgraft.asr.matching import StepScores, TextMatcher, align_steps, comparable_letters, sound_classes
from voxgraft.asr.transcripts import edit_distance, transcribe_clips
from voxgraft.audio.files import AudioSamples, MediaReader
from voxgraft.audio.metrics import (
    LEVEL_FRAMES_PER_SECOND,
    Pause,
    RollingAudioBuffer,
    find_pauses,
    find_runs,
    get_speech_frames,
)
from voxgraft.config.data import DataAlignSettings, DataImportSettings, DataTranscribeSettings
from voxgraft.core import progress
from voxgraft.core.errors import AudioError, ConfigError, TextError, finding
from voxgraft.core.files import atomic_write, is_file, parse_json, read_lines, require_file, write_json
from voxgraft.core.results import Line, SimpleResult, Table, pluralize
from voxgraft.data.import_command import DataImportResult, data_import
from voxgraft.data.segment import split_sentences
from voxgraft.data.sources import sanitize_name
from voxgraft.data.subtitles import read_encoded_text

LISTS_FOLDER = "transcripts"
# Speech is judged in windows of so many seconds, with as much again around each.
WINDOW_SECONDS, CONTEXT_SECONDS = 30.0, 8.0
# Phrases end at a pause of this length, and are at most so long.
PHRASE_PAUSE_SECONDS, MAX_PHRASE_SECONDS = 0.3, 14.0
# Around a phrase, so that the recognizer gets its first and last sounds.
PHRASE_LEAD_SECONDS, PHRASE_TAIL_SECONDS = 0.10, 0.15
# A pause that can end a sentence, and how far it may be from the sentence's first or last sound.
MIN_EDGE_PAUSE_SECONDS, MAX_EDGE_OFFSET_SECONDS = 0.12, 0.7
# Costs of the comparison, in halves: another sound, a sound that is missing or too much.
SUBSTITUTION_COST, GAP_COST = 2, 2
# Cells of the comparison: beyond this a recording is compared in chapters by the user.
MAX_CELLS = 600_000_000
MIN_BAND = 1_500
# Sounds of a sentence that fall outside of its cut, or of others inside: beyond this share an edge is wrong.
MAX_STRAY_SHARE, MIN_STRAYS = 0.08, 2
# At each edge so many sounds must agree about as well as the sentence itself.
EDGE_SYMBOLS, MIN_EDGE_AGREEMENT = 8, 0.34
# By scores: a sentence with this misfit has half of the confidence; wrong ones are rarely below (docs/log.md). Between
# a pause and the first or last sound of a sentence there is at most so much speech.
MAX_MISFIT, MAX_SILENT_EDGE_SECONDS = 0.72, 0.45
# Letters per second of a sentence may differ from the recording's median by this factor.
MAX_PACE_FACTOR = 1.6
# An edge is certain if no other pause this near fits the sentence better than this much worse.
MAX_OTHER_EDGE_SECONDS, MIN_EDGE_MARGIN = 1.5, 0.05
MAX_WRITTEN_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class TimedTranscript:
    """The transcript of a recording, sound by sound, and its pauses."""

    symbols: str
    times: NDArray[np.float64]
    """Of each symbol, in seconds."""
    pauses: list[Pause]
    seconds: float
    by_sound: bool
    phrases: list[tuple[float, float, str]]
    """Start, end and text of each phrase."""
    scores: StepScores | None = None
    step_times: NDArray[np.float64] | None = None
    """Scores of a matcher's symbols at the steps of all phrases, and the seconds of these steps."""


def transcribe_recording(
    path: Path, recognizer: Recognizer, language: str, longest: float, matcher: TextMatcher | None = None
) -> TimedTranscript:
    """Transcribe a recording phrase by phrase; of a recording of hours only the newest part is in memory.

    With a matcher, the symbols are the likeliest ones of its scores, which are kept.
    """
    scores: list[StepScores] = []
    step_times: list[NDArray[np.float64]] = []
    symbols: list[str] = []
    times: list[float] = []
    phrases: list[tuple[float, float, str]] = []
    pauses: list[Pause] = []
    code, by_sound = resolve_recognizer_language(recognizer, language)
    with progress.progress_task(f"listening to {path.name}") as advance:
        for start, end, samples, after in _iter_phrases(path, longest):
            pauses += after
            if not len(samples):
                continue
            at = max(0.0, start - PHRASE_LEAD_SECONDS)
            if matcher is not None:
                own, text = matcher.listen(samples)
                scores.append(own)
                step_times.append(at + (np.arange(len(scores[-1])) + 0.5) * SAMPLES_PER_STEP / BUILT_IN_RATE_HZ)
                best = scores[-1].argmax(axis=1)
                # A run of one symbol is one symbol.
                places = np.flatnonzero((best != CTC_BLANK) & (best != np.concatenate([[CTC_BLANK], best[:-1]])))
                symbols += [matcher.symbols[number - 1] for number in best[places]]
                times += step_times[-1][places].tolist()
                phrases.append((start, end, text))
                advance(1)
                continue
            if isinstance(recognizer, BuiltInRecognizer):
                text, heard, steps = recognizer.transcribe_timed(samples, None if by_sound else code)
                marks = [at + (step + 0.5) * SAMPLES_PER_STEP / BUILT_IN_RATE_HZ for step in steps]
            else:
                text = transcribe_clips(recognizer, [samples], [BUILT_IN_RATE_HZ], language)[0][0]
                heard = list(text)
                marks = np.linspace(start, end, len(heard) + 2)[1:-1].tolist()
            phrases.append((start, end, text))
            for mark, symbol in zip(marks, heard, strict=True):
                one = sound_classes(symbol, is_ipa=True) if by_sound else comparable_letters(symbol, language)
                for letter in one:
                    if not (by_sound and symbols and symbols[-1] == letter):
                        symbols.append(letter)
                        times.append(mark)
            advance(1)
    seconds = max((pause.end for pause in pauses), default=0.0)
    kept = (np.concatenate(scores), np.concatenate(step_times)) if scores else (None, None)
    return TimedTranscript("".join(symbols), np.array(times), pauses, seconds, by_sound, phrases, *kept)


def _iter_phrases(path: Path, longest: float) -> Iterator[tuple[float, float, AudioSamples, list[Pause]]]:
    """Phrases with their audio at 16 kHz, each with the pauses up to its end; last an empty one with the rest."""
    buffer = RollingAudioBuffer(MediaReader(path, BUILT_IN_RATE_HZ).blocks(), BUILT_IN_RATE_HZ)
    active = np.zeros(0, np.bool_)  # frames from the start of the recording
    done, at = 0, 0.0
    while not buffer.is_exhausted or at < buffer.seconds:
        buffer.pinned_from = done / LEVEL_FRAMES_PER_SECOND - 1.0
        buffer.read_until(at + WINDOW_SECONDS + CONTEXT_SECONDS, keep_from=buffer.pinned_from)
        frames, begins = get_speech_frames(buffer, at - CONTEXT_SECONDS, at + WINDOW_SECONDS + CONTEXT_SECONDS)
        offset = round((at - begins) * LEVEL_FRAMES_PER_SECOND)
        window = frames[offset : offset + round(WINDOW_SECONDS * LEVEL_FRAMES_PER_SECOND)]
        active = np.concatenate([active, window])
        at += WINDOW_SECONDS
        is_end = buffer.is_exhausted and at >= buffer.seconds
        for start, end in _split_phrases(active, done, longest, is_end=is_end):
            done = end
            seconds = start / LEVEL_FRAMES_PER_SECOND, end / LEVEL_FRAMES_PER_SECOND
            samples = buffer.samples(max(0.0, seconds[0] - PHRASE_LEAD_SECONDS), seconds[1] + PHRASE_TAIL_SECONDS)
            yield *seconds, samples, []
    pauses = find_pauses(active, 0.0)
    # The edges of the recording are pauses too, however short.
    if not pauses or pauses[0].start > 0:
        pauses.insert(0, Pause(0.0, 0.0))
    if pauses[-1].end < len(active) / LEVEL_FRAMES_PER_SECOND:
        pauses.append(Pause(len(active) / LEVEL_FRAMES_PER_SECOND, len(active) / LEVEL_FRAMES_PER_SECOND))
    yield 0.0, 0.0, np.zeros(0, np.float32), pauses


def _split_phrases(active: NDArray[np.bool_], done: int, longest: float, *, is_end: bool) -> Iterator[tuple[int, int]]:
    """Frames of the phrases behind `done` that are complete: stretches of speech, joined over short pauses."""
    gap, most = (round(seconds * LEVEL_FRAMES_PER_SECOND) for seconds in (PHRASE_PAUSE_SECONDS, longest))
    runs = [(first + done, last + done) for first, last in find_runs(active[done:])]
    at = 0
    while at < len(runs):
        start, end = runs[at]
        last = at
        # As much as fits; the longest pause inside ends it if it is too long.
        while last + 1 < len(runs) and runs[last + 1][1] - start <= most and runs[last + 1][0] - runs[last][1] < gap:
            last += 1
        end = runs[last][1]
        follows = runs[last + 1][0] if last + 1 < len(runs) else len(active)
        if not is_end and last + 1 == len(runs) and follows - end < gap:
            return  # more of it comes with the next window
        for first in range(start, end, most):  # speech without any pause
            yield first, min(end, first + most)
        at = last + 1


def align_symbols(meant: str, heard: str) -> NDArray[np.int64]:
    """For each symbol of a text the place of the symbol that was recognized for it, or -1: the cheapest alignment."""
    rows, columns = len(meant), len(heard)
    found = np.full(rows, -1, np.int64)
    if not rows or not columns:
        return found
    # Readers keep to the text, so only cells near the diagonal are compared.
    # Neighbouring rows must share columns, also if a short text is compared with thousands of sounds.
    band = min(columns, max(MIN_BAND, columns // 5, 2 * (columns // rows + 1)))
    if rows * band > MAX_CELLS:
        message = f"the text has {rows:,} sounds and the recording {columns:,}"
        raise TextError("align-too-long", message, expected=f"at most {MAX_CELLS // band:,} sounds at once")
    codes = {symbol: at for at, symbol in enumerate(dict.fromkeys(meant + heard))}
    text, said = (np.array([codes[symbol] for symbol in one], np.int32) for one in (meant, heard))
    starts = np.clip((np.arange(rows + 1) * columns // max(1, rows)) - band // 2, 0, columns - band)
    steps = np.zeros((rows + 1, band + 1), np.uint8)  # 0: both advance, 1: a symbol was not heard, 2: one too much
    width = np.arange(band + 1)
    before = (width * GAP_COST).astype(np.float64)
    steps[0] = 2
    for row in range(1, rows + 1):
        first, earlier = int(starts[row]), int(starts[row - 1])
        shift = first - earlier
        # Cost of the cells above and above-left, moved to this row's columns; outside of the band there is no way.
        above = np.full(band + 1, np.inf)
        above[: band + 1 - shift] = before[shift:]
        left_above = np.full(band + 1, np.inf)
        if shift:
            left_above[: band + 2 - shift] = before[shift - 1 :]
        else:
            left_above[1:] = before[:-1]
        place = first + width  # symbols heard before the cell
        same = np.zeros(band + 1, np.bool_)
        inside = (place >= 1) & (place <= columns)
        same[inside] = said[place[inside] - 1] == text[row - 1]
        diagonal = np.where(inside, left_above + np.where(same, 0, SUBSTITUTION_COST + 0.5), np.inf)
        missing = above + GAP_COST
        best = np.minimum(diagonal, missing)
        # A symbol too much costs the same everywhere, so the best way from the left is a running minimum.
        running = np.minimum.accumulate(best - width * GAP_COST) + width * GAP_COST
        steps[row] = np.where(diagonal <= np.minimum(missing, running), 0, np.where(missing <= running, 1, 2))
        before = np.where(place <= columns, running, np.inf)
    row, column = rows, columns
    while row > 0 and column >= 0:
        step = steps[row, column - int(starts[row])]
        if step == 0 and column > 0:
            row, column = row - 1, column - 1
            found[row] = column if text[row] == said[column] else -1
        elif step == 1 or column == 0:
            row -= 1
        else:
            column -= 1
    return found


@dataclass(frozen=True, slots=True)
class AlignedSentence:
    """One sentence of the text and where it is spoken."""

    text: str
    start: float
    end: float
    confidence: float
    """Share of its sounds that were recognized there, from 0 to 1."""
    reason: str = ""
    """Why it is rejected; empty: accepted."""


def align_sentences(
    sentences: Sequence[str],
    heard: TimedTranscript,
    language: str,
    threshold: float,
    matcher: TextMatcher | None = None,
) -> list[AlignedSentence]:
    """Where each sentence is spoken, and whether that is certain. With a matcher, by the scores that it gave."""
    own = [sound_classes(text) if heard.by_sound else comparable_letters(text, language) for text in sentences]
    if matcher is not None:
        own = ["".join(symbol for symbol in symbols if symbol in matcher.symbols) for symbols in own]
    places = align_symbols("".join(own), heard.symbols)
    ends = np.cumsum([len(symbols) for symbols in own])
    if matcher is None:
        found = [
            _place_sentence(text, symbols, places[end - len(symbols) : end], heard, threshold)
            for text, symbols, end in zip(sentences, own, ends, strict=True)
        ]
    else:
        found = _place_by_scores(sentences, own, places, heard, matcher, threshold)
    sure = [len(symbols) / (one.end - one.start) for one, symbols in zip(found, own, strict=True) if not one.reason]
    usual = float(np.median(sure)) if sure else 0.0
    judged: list[AlignedSentence] = []
    behind = 0.0
    for one, symbols in zip(found, own, strict=True):
        reason = one.reason
        if (
            not reason
            and not usual / MAX_PACE_FACTOR <= len(symbols) / (one.end - one.start) <= usual * MAX_PACE_FACTOR
        ):
            reason = "pace"
        if not reason and one.start < behind - 0.05:
            reason = "overlaps"
        if not reason:
            behind = one.end
        judged.append(AlignedSentence(one.text, one.start, one.end, one.confidence, reason))
    return judged


def _place_by_scores(
    sentences: Sequence[str],
    own: Sequence[str],
    places: NDArray[np.int64],
    heard: TimedTranscript,
    matcher: TextMatcher,
    threshold: float,
) -> list[AlignedSentence]:
    """Sentences on the best path through the scores. The transcript says which part of the text to expect where."""
    assert heard.scores is not None
    assert heard.step_times is not None
    scores, times = heard.scores, heard.step_times
    matched = np.flatnonzero(places >= 0)
    ends = [(times[0], 0), *zip(heard.times[places[matched]], matched, strict=True), (times[-1], len(places))]
    expected = np.interp(times, *np.array(ends, np.float64).T)
    spelled = [[matcher.numbers[symbol] for symbol in symbols] for symbols in own]
    long = [pause for pause in heard.pauses if pause.seconds >= MIN_EDGE_PAUSE_SECONDS]
    long += [heard.pauses[0], heard.pauses[-1]]
    can_begin, can_end = np.zeros(len(times), np.bool_), np.zeros(len(times), np.bool_)
    for pause in long:
        can_begin |= (times >= pause.end - 0.1) & (times <= pause.end + MAX_SILENT_EDGE_SECONDS)
        can_end |= (times >= pause.start - MAX_SILENT_EDGE_SECONDS) & (times <= pause.start + 0.15)
    found = []
    path = align_steps(scores, spelled, expected, can_begin, can_end)
    # Sounds that the recognizer writes for each sound of the text, sentence by sentence. Far more than usual: speech
    # that is not in the text was taken in.
    best = scores.argmax(axis=1)
    written = np.cumsum((best != 0) & (best != np.roll(best, 1)))
    usual = np.median(
        [
            (written[steps[1]] - written[steps[0]]) / len(symbols)
            for symbols, steps in zip(spelled, path, strict=True)
            if steps and symbols
        ]
        or [1.0]
    )
    for text, symbols, steps in zip(sentences, spelled, path, strict=True):
        if steps is None:
            found.append(AlignedSentence(text, 0.0, 0.0, 0.0, "not-heard"))
            continue
        first, last = (float(times[step]) for step in steps)
        # The nearest pause, but rather a longer one that is a little further: readers breathe inside sentences.
        start = min(long, key=lambda pause: abs(pause.end - first) - 0.4 * min(pause.seconds, 0.8)).end
        end = min(long, key=lambda pause: abs(pause.start - last) - 0.4 * min(pause.seconds, 0.8)).start
        inside = slice(*np.searchsorted(times, (start, end)).tolist())
        misfit = matcher.misfit(scores[inside], symbols)
        confidence = round(min(1.0, (1 - misfit) / (2 - 2 * MAX_MISFIT)), 4)
        strays = first - start, end - last
        share = float(written[inside][-1] - written[inside][0]) / len(symbols) if end > start else 0.0
        checks = {
            "strays": share > MAX_WRITTEN_FACTOR * usual,
            "no-pause": max(map(abs, strays)) > MAX_EDGE_OFFSET_SECONDS or end - start < 0.2,
            "unlike": confidence < threshold,
            "edges": min(strays) < -0.25 or max(strays) > MAX_SILENT_EDGE_SECONDS,
        }
        reason = next((name for name, is_bad in checks.items() if is_bad), "")
        if not reason:
            # Another pause near an edge that fits about as well: a word of the neighbour may be inside, or one outside.
            others = [(pause.end, end) for pause in long if 0 < abs(pause.end - start) <= MAX_OTHER_EDGE_SECONDS]
            others += [(start, pause.start) for pause in long if 0 < abs(pause.start - end) <= MAX_OTHER_EDGE_SECONDS]
            rivals = [slice(*np.searchsorted(times, other).tolist()) for other in others]
            if any(
                matcher.misfit(scores[rival], symbols) < misfit + MIN_EDGE_MARGIN
                for rival in rivals
                if rival.stop - rival.start >= len(symbols)
            ):
                reason = "edges"
        found.append(AlignedSentence(text, round(start, 3), round(max(start, end), 3), confidence, reason))
    return found


def _place_sentence(
    text: str, symbols: str, places: NDArray[np.int64], heard: TimedTranscript, threshold: float
) -> AlignedSentence:
    matched = places[places >= 0]
    if len(matched) < max(2, threshold * len(symbols) / 2):
        return AlignedSentence(text, 0.0, 0.0, len(matched) / max(1, len(symbols)), "not-heard")
    # Single sounds far from the others were matched by chance: the sentence is where most of them are close together.
    times = heard.times[matched]
    groups = np.split(times, np.flatnonzero(np.diff(times) > 1.5) + 1)
    core = max(groups, key=len)
    start, has_start = _nearest_edge(heard.pauses, core[0], ends=False)
    end, has_end = _nearest_edge(heard.pauses, core[-1], ends=True)
    inside = "".join(heard.symbols[at] for at in range(*np.searchsorted(heard.times, (start, end)).tolist()))
    longest = max(len(symbols), len(inside), 1)
    confidence = round(1 - edit_distance(symbols, inside) / longest, 4)
    strays = sum(not start <= time <= end for time in times)
    edges = (
        (symbols[:EDGE_SYMBOLS], inside[: EDGE_SYMBOLS + 2]),
        (symbols[::-1][:EDGE_SYMBOLS], inside[::-1][: EDGE_SYMBOLS + 2]),  # from the end inwards
    )
    agreement = min(1 - _edge_distance(meant, said) / max(1, len(meant)) for meant, said in edges)
    checks = {
        "no-pause": not (has_start and has_end) or end - start < 0.2,
        "unlike": confidence < threshold,
        "strays": strays > max(MIN_STRAYS, MAX_STRAY_SHARE * len(symbols)),
        "edges": agreement < MIN_EDGE_AGREEMENT,
    }
    reason = next((name for name, is_bad in checks.items() if is_bad), "")
    return AlignedSentence(text, round(start, 3), round(max(start, end), 3), confidence, reason)


def _edge_distance(meant: str, said: str) -> int:
    """Edits at an edge, whatever is recognized behind the edge's own sounds. The edge is at the start of both."""
    return min(edit_distance(meant, said[:cut]) for cut in range(max(0, len(meant) - 2), len(said) + 1)) if said else 8


def _nearest_edge(pauses: Sequence[Pause], at: float, *, ends: bool) -> tuple[float, bool]:
    """Where speech begins or ends next to a sound: the edge of the nearest pause that is long enough."""
    edges = [
        (pause.start if ends else pause.end, pause)
        for pause in pauses
        if pause.seconds >= MIN_EDGE_PAUSE_SECONDS or pause in (pauses[0], pauses[-1])
    ]
    # A sentence begins before its first certain sound and ends behind its last one.
    near = [(abs(edge - at), edge) for edge, _ in edges if (edge >= at - 0.25 if ends else edge <= at + 0.25)]
    if not near or min(near)[0] > MAX_EDGE_OFFSET_SECONDS:
        return at, False
    return min(near)[1], True


def data_align(settings: DataAlignSettings) -> SimpleResult:
    """Cut a recording by its text and import the sentences whose place is certain."""
    sentences = split_sentences(read_encoded_text(settings.text, settings.encoding, language=settings.language))
    if not sentences:
        raise TextError("text-few", "the text has no sentence", expected="sentences", where=settings.text)
    recognizer = open_recognizer(settings.recognizer)
    matcher = TextMatcher.build(recognizer, settings.language)
    if matcher is not None and not any(map(matcher.encode, sentences)):
        found = f"{settings.text.name} contains no letter of the language {settings.language!r}"
        raise TextError("text-other-script", found, where=settings.text)
    heard = transcribe_recording(settings.recording, recognizer, settings.language, MAX_PHRASE_SECONDS, matcher)
    if not heard.symbols:
        raise AudioError(
            "audio-silent", f"no speech was recognized in {settings.recording.name}", where=settings.recording
        )
    aligned = align_sentences(sentences, heard, settings.language, settings.threshold, matcher)
    accepted = [one for one in aligned if not one.reason]
    rejected = [one for one in aligned if one.reason]
    rows = [
        {"text": one.text, "start": max(0.0, one.start - settings.lead), "end": one.end + settings.tail}
        | {"confidence": one.confidence}
        for one in accepted
    ]
    listed = _list_path(settings.dataset, settings.recording)
    done = _import_rows(settings, settings.recording, listed, rows) if rows else None
    report = {
        "recording": str(settings.recording),
        "sentences": [
            {"text": one.text, "start": one.start, "end": one.end, "confidence": one.confidence, "reason": one.reason}
            for one in aligned
        ],
    }
    place = listed.with_name(f"{listed.stem}.json")
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, report, overwrite=True)
    values: dict[str, Any] = {
        "accepted": len(accepted),
        "rejected": [{"text": one.text, "reason": one.reason, "confidence": one.confidence} for one in rejected],
        "seconds": round(sum(one.end - one.start for one in accepted), 2),
        "of_seconds": round(heard.seconds, 2),
        "by_sound": heard.by_sound,
        "report": str(place),
        "import": done.to_json() if done else None,
    }
    lines: list[Line] = [
        f"{len(accepted):,} of {pluralize(len(aligned), 'sentence')} accepted: {values['seconds'] / 60:.1f} of "
        f"{heard.seconds / 60:.1f} minutes"
    ]
    if rejected:
        shown = tuple((one.reason, f"{one.confidence:.2f}", f"{one.text:.60}") for one in rejected[:12])
        lines.append(Table(("rejected", "confidence", "sentence"), shown))
    lines += done.lines() if done else ["nothing was imported"]
    lines.append(f"every sentence with its times: {place}")
    return SimpleResult(values, tuple(lines), done.exit_code if done else 1)


def data_transcribe(settings: DataTranscribeSettings) -> SimpleResult:
    """Transcribe recordings without texts, and import it, marked as made by a machine."""
    recognizer = open_recognizer(settings.recognizer)
    if resolve_recognizer_language(recognizer, settings.language)[1]:
        found = f"{recognizer.name} does not know {settings.language!r}"
        expected = ", ".join(sorted(recognizer.languages or ()))
        raise ConfigError("recognizer-language", found, expected=expected, where=recognizer.name)
    listed = {_list_path(settings.dataset, recording): recording for recording in settings.recordings}
    before = {place: _read_first_row(place) for place in listed}
    for place, recording in listed.items():
        if before[place] and "machine_made" not in before[place]:
            message = f"{recording.name} was imported with its text (data align), and a transcript would replace it"
            cure = "leave this recording out; or delete the list, to replace its clips by a transcript."
            raise ConfigError("import-settings", message, where=place, cure=cure)
    longest = min(settings.longest or MAX_PHRASE_SECONDS, MAX_PHRASE_SECONDS)
    results, made, silent, empty = [], 0, 0, []
    for place, recording in listed.items():
        status = require_file(recording).stat()
        made_from = {"recognizer": recognizer.name, "language": settings.language, "longest": longest}
        made_from |= {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
        rows: list[dict[str, Any]] | None = None
        if before[place].get("made_from") != made_from:  # else only the import is repeated
            heard = transcribe_recording(recording, recognizer, settings.language, longest)
            rows = [
                {"text": text, "start": max(0.0, start - PHRASE_LEAD_SECONDS), "end": end + PHRASE_TAIL_SECONDS}
                | {"machine_made": recognizer.name, "made_from": made_from}
                for start, end, text in heard.phrases
                if text.strip()
            ]
            made += len(rows)
            silent += len(heard.phrases) - len(rows)
            if not rows:
                empty.append(str(recording))
                continue
        results.append(_import_rows(settings, recording, place, rows))
    values = {
        "transcribed": made,
        "without_words": silent,
        "recognizer": recognizer.name,
        "empty": empty,
        "imports": [done.to_json() for done in results],
    }
    lines: list[Line] = [f"{pluralize(made, 'phrase')} transcribed by the recognizer {recognizer.name}"]
    if silent:
        lines.append(f"no words were recognized in {pluralize(silent, 'other phrase')}")
    lines += [f"no speech was recognized in {name}" for name in empty]
    lines += [line for done in results for line in done.lines()]
    lines.append("these texts were made by a machine: review them in `voxgraft ui`, or check them with `data verify`")
    exit_code = max((done.exit_code for done in results), default=0)
    # The same limit as for sources of an import that give no clip.
    allowed = DataImportSettings.model_fields["max_left_out"].default
    if len(empty) > allowed * len(listed):
        message = f"{len(empty):,} of {pluralize(len(listed), 'recording')} gave no text"
        cure = "listen to these recordings; leave them out, or use another --recognizer."
        lost = finding("import-left-out", message, expected=f"at most {allowed:.0%}", where=settings.dataset, cure=cure)
        lines += lost.lines()
        exit_code = 1
    return SimpleResult(values, tuple(lines), exit_code)


def _list_path(dataset: Path, recording: Path) -> Path:
    """The list of a recording. Its name has a hash of the path: chapters may be ch1/audio.mp3 and ch2/audio.mp3."""
    mark = hashlib.sha256(os.fsencode(os.path.realpath(recording))).hexdigest()[:8]
    folder = dataset / LISTS_FOLDER
    # Rules of names may change; a list that was written keeps its name.
    written = next(folder.glob(f"*-{mark}.jsonl"), None)
    return written or folder / f"{sanitize_name(recording.stem)[:70]}-{mark}.jsonl"


def _read_first_row(place: Path) -> dict[str, Any]:
    """The first row of a list, which says how the list was made; empty if there is none."""
    if not is_file(place) or not place.stat().st_size:
        return {}
    row = next((parse_json(line, place) for _, line in read_lines(place)), None)
    return row if isinstance(row, dict) else {}


def _import_rows(
    settings: DataAlignSettings | DataTranscribeSettings,
    recording: Path,
    place: Path,
    rows: Sequence[dict[str, Any]] | None,
) -> DataImportResult:
    """Write the list of a recording into the dataset, and import it. None for rows: the list exists."""
    if rows is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place, overwrite=True) as stream:
            for row in rows:
                line = {"audio": os.path.abspath(recording), "recording": place.stem, **row}
                stream.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    options = settings.model_dump(
        include={"dataset", "language", "speaker", "rate", "format", "family", "shortest", "longest", "workers"}
    )
    # The recording is named too, so that the list may name it wherever it is.
    return data_import(DataImportSettings(sources=(place, recording), reimport=True, **options))
