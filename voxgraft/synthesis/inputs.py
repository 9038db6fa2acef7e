"""What to say and in whose voice: utterances from texts and files, chunks that a model can speak, voices and styles.

Long text is split at sentence ends, then clause marks, then spaces. How long speech takes is estimated by its letters.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import regex

from voxgraft.audio.files import read_audio
from voxgraft.config.commands import SpeakSettings
from voxgraft.config.run import LANGUAGE_PATTERN
from voxgraft.core.errors import ConfigError, FileError, TextError, VoxgraftError
from voxgraft.core.files import decode_utf8, is_file, read_lines, read_text, text_lines
from voxgraft.core.languages import SYLLABIC_SCRIPTS, base_language, script_of, suggest_language_code
from voxgraft.core.rng import hash_int
from voxgraft.models import family_names, get_family
from voxgraft.models.base import REFERENCE_AUDIO, Clip, ClipEncoder, SpeakingStyle, Vocoder, unknown_voice_error
from voxgraft.synthesis.engine import SynthesisModels

if TYPE_CHECKING:
    from voxgraft.dataset.shards import ClipDataset


# Speech is cut off when it takes longer than a pause and so many times what it usually takes.
LIMIT_PAUSE_SECONDS, LIMIT_FACTOR = 2.0, 2.5
# Usual time of a character: of a syllabic script, a letter, a combining mark, a digit, any other sign.
SYLLABLE_SECONDS, LETTER_SECONDS, MARK_SECONDS, DIGIT_SECONDS, SIGN_SECONDS = 0.2, 0.08, 0.06, 0.35, 0.04

_CLOSING_MARKS = r"[\p{Pe}\p{Pf}\p{Pi}\"']*"
# Marks that end a sentence wherever they occur; two word spaces are a full stop on old Ethiopic typewriters.
_UNAMBIGUOUS_ENDS = r"፡፡|[\p{Sentence_Terminal}--[.!?]]"
# Marks that also occur inside numbers, names and addresses: they end a sentence only with a space after them.
_SPACED_ENDS = r"[.!?…]"
_SENTENCE_END = regex.compile(
    rf"(?V1)(?:{_UNAMBIGUOUS_ENDS})+{_CLOSING_MARKS}\s*|{_SPACED_ENDS}+{_CLOSING_MARKS}(?:\s+|$)"
)
# In Greek a semicolon is the question mark.
_GREEK_SENTENCE_END = regex.compile(
    rf"(?V1)(?:{_UNAMBIGUOUS_ENDS})+{_CLOSING_MARKS}\s*|[.!?…;;]+{_CLOSING_MARKS}(?:\s+|$)"
)
_CLAUSE_END = regex.compile(
    r"(?V1)[[\p{Terminal_Punctuation}--\p{Sentence_Terminal}]--[,;:፡]]+\s*|[,;:]+\s+|\s*[–—]\s*|\s+-\s+"
)
_WORD_SPACE = regex.compile(r"\s+|፡+\s*")
_ABBREVIATION = regex.compile(
    r"(?:^|[\s(\"'«“])(?:\p{L}|(?:mr|mrs|ms|dr|st|prof|jr|sr|vs|etc|no|mme|mlle|mm|art|fig|bzw|ca|evtl|usw)|(?:\p{L}\.)+\p{L})\.$",
    regex.IGNORECASE,
)


def split_into_chunks(text: str, language: str, max_seconds: float, pause_seconds: float) -> list[tuple[str, float]]:
    """Texts that are spoken at once, in `max_seconds` at most, each with the seconds of silence after it.

    `pause_seconds` is the pause after a sentence. A line break is the end of a paragraph. Only spaces are lost.
    """
    found: list[tuple[str, float]] = []
    for paragraph in filter(str.strip, text.splitlines()):
        for sentence in _merge_wordless_parts(_split_sentences(paragraph, language)):
            found += _split_long_sentence(sentence, max_seconds, pause_seconds)
        found[-1:] = [(last, 2 * pause_seconds) for last, _ in found[-1:]]
    found[-1:] = [(last, 0.0) for last, _ in found[-1:]]
    return found


def estimate_speech_seconds(text: str) -> float:
    """How long a text usually takes to say, by its characters."""
    return sum(map(_estimate_character_seconds, text))


def max_speech_seconds(text: str) -> float:
    """Speech that takes longer than this is a runaway."""
    return LIMIT_PAUSE_SECONDS + LIMIT_FACTOR * estimate_speech_seconds(text)


def max_chunk_seconds(most: float) -> float:
    """What a piece may take so that its limit is within `most` seconds, which a model can speak."""
    return max((most - LIMIT_PAUSE_SECONDS) / LIMIT_FACTOR, LETTER_SECONDS)


def has_speakable_text(text: str) -> bool:
    """Whether there is a letter or a digit in it."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


@cache
def _estimate_character_seconds(character: str) -> float:
    kind = unicodedata.category(character)[0]
    if kind == "L":
        return SYLLABLE_SECONDS if script_of(character) in SYLLABIC_SCRIPTS else LETTER_SECONDS
    return {"M": MARK_SECONDS, "N": DIGIT_SECONDS}.get(kind, SIGN_SECONDS)


def _split_sentences(text: str, language: str) -> list[str]:
    pattern = _GREEK_SENTENCE_END if base_language(language) == "el" else _SENTENCE_END
    cased = any(map(str.isupper, text))
    parts: list[str] = []
    start = 0
    for match in pattern.finditer(text):
        if text[match.start()] == "." and match.end() < len(text):
            # A full stop ends no sentence after an initial or a title, nor in cased text before a small letter.
            goes_on = cased and text[match.end()].islower()
            if goes_on or _ABBREVIATION.search(text[: match.start() + 1]):
                continue
        parts.append(text[start : match.end()])
        start = match.end()
    return [part for part in (*parts, text[start:]) if part.strip()]


def _merge_wordless_parts(parts: Sequence[str]) -> list[str]:
    """Parts without a letter or a digit go to the one before, or to the first after."""
    found: list[str] = []
    for part in parts:
        if found and (not has_speakable_text(part) or not has_speakable_text(found[-1])):
            found[-1] += part
        else:
            found.append(part)
    return found


def _split_long_sentence(sentence: str, longest: float, pause: float) -> Iterator[tuple[str, float]]:
    """One sentence in as many chunks as it needs, the last with the sentence's pause."""
    clauses = list(_pack_parts(_merge_wordless_parts(_split_at(sentence, _CLAUSE_END)), longest))
    for number, clause in enumerate(clauses, 1):
        parts = [clause]
        if estimate_speech_seconds(clause) > longest:
            parts = []
            for word in _merge_wordless_parts(_split_at(clause, _WORD_SPACE)):
                # A word that is too long on its own is split into its graphemes.
                parts += [word] if estimate_speech_seconds(word) <= longest else regex.findall(r"\X", word)
        chunks = list(_pack_parts(parts, longest))
        for chunk_number, part in enumerate(chunks, 1):
            inside = 0.0 if chunk_number < len(chunks) else pause / 2
            yield part.strip(), pause if chunk_number == len(chunks) and number == len(clauses) else inside


def _split_at(text: str, pattern: regex.Pattern[str]) -> list[str]:
    ends = [match.end() for match in pattern.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if start < end]


def _pack_parts(parts: Sequence[str], longest: float) -> Iterator[str]:
    """Neighbours together as far as they fit, in chunks of about one length."""
    seconds = estimate_speech_seconds
    total = sum(map(seconds, parts))
    even = total / max(1, math.ceil(total / longest))
    current = ""
    for part in parts:
        if current and (seconds(current) + seconds(part) > longest or seconds(current) >= even):
            yield current
            current = ""
        current += part
    if current:
        yield current


TEXT_COLUMNS = ("text", "language", "voice", "name")
STANDARD_INPUT = Path("-")
MAX_INPUT_BYTES = 64 << 20
_UTTERANCE_NAME = re.compile(r"[^\W_][\w.-]{0,80}")


@dataclass(frozen=True, slots=True)
class UtteranceRequest:
    """One text, and what it says itself of how it is spoken."""

    name: str
    text: str
    language: str | None = None
    voice: str | None = None


def read_utterances(texts: Sequence[str], file: Path | None) -> list[UtteranceRequest]:
    """Texts first, then those of the file, named by their numbers unless a table names them."""
    rows: list[dict[str, str]] = [{"text": text} for text in texts]
    where = "command line"
    if file is not None:
        where = "standard input" if file == STANDARD_INPUT else str(file)
        rows += _read_rows(file)
    if not rows:
        raise TextError("speak-nothing", "there is no text", where=where)
    width = max(3, len(str(len(rows))))
    found: list[UtteranceRequest] = []
    for at, row in enumerate(rows, 1):
        number = f"{at:0{width}d}"
        text = unicodedata.normalize("NFC", row["text"]).strip()
        if not has_speakable_text(text):
            raise TextError("speak-nothing", f"utterance {number} has no words: {text!r:.60}", where=where)
        language, name = row.get("language") or None, row.get("name") or number
        if language is not None and not re.fullmatch(LANGUAGE_PATTERN, language):
            cure = suggest_language_code(language, "language")
            wrong = f"the language of utterance {number} is {language!r:.40}"
            raise TextError("speak-table", wrong, expected="a code, such as en", where=where, cure=cure)
        if not _UTTERANCE_NAME.fullmatch(name):  # it becomes a file name
            raise TextError(
                "speak-table",
                f"utterance {number} has the name {name!r:.60}",
                expected="letters, digits, . _ and -",
                where=where,
            )
        found.append(UtteranceRequest(name, text, language, row.get("voice") or None))
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        wrong = f"two utterances are named {twice[0]}"
        raise TextError("speak-table", wrong, expected="unique names", where=where)
    return found


def _read_rows(file: Path) -> Iterator[dict[str, str]]:
    """Rows of a table (.tsv), or of a text one per line, or of standard input."""
    if file == STANDARD_INPUT:
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        if len(data) > MAX_INPUT_BYTES:
            found = f"the text has over {MAX_INPUT_BYTES:,} bytes"
            raise TextError("speak-table", found, expected=f"at most {MAX_INPUT_BYTES:,}", where="standard input")
        lines = text_lines(decode_utf8(data, "standard input"))
        yield from ({"text": line} for line in lines if line.strip())
        return
    if file.suffix.lower() != ".tsv":
        yield from ({"text": text} for _, text in read_lines(file))
        return
    rows = [line.split("\t") for line in text_lines(read_text(file, MAX_INPUT_BYTES)) if line.strip()]
    header, cells_by_row = (rows[0], rows[1:]) if rows else ([""], [])
    if "text" not in header or set(header) - set(TEXT_COLUMNS) or len(set(header)) != len(header):
        found = f"the first line is {' | '.join(header)!r:.80}"
        raise TextError("speak-table", found, expected=" and ".join(TEXT_COLUMNS), where=file)
    for number, cells in enumerate(cells_by_row, 1):
        if len(cells) > len(header):
            found = f"row {number} has {len(cells)} columns"
            raise TextError("speak-table", found, expected=f"{len(header)}", where=file)
        # A row may end early; without a text it is refused as one without words.
        yield {"text": "", **{name: cell.strip() for name, cell in zip(header, cells, strict=False)}}


MIN_UTTERANCES_PER_VOICE = 4
MAX_REPLAY_VOICES = 16
# Numbers with commas between them: shares of named emotions; anything else names a file.
_EMOTION_SHARES = re.compile(r"\d*\.?\d+(?:,\d*\.?\d+)+")
RECORDING_SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a")


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """A voice to speak with: a clip, of a run or of the base, and its name."""

    name: str
    clip: Clip


def choose_voices(sets: Sequence[ClipDataset], min_seconds: float, count: int, seed: int) -> list[ReferenceVoice]:
    """Voices of the run's own clips for `count` utterances: of as many speakers as possible, from clips long enough."""
    candidates = []
    for clips in sets:
        # Every clip, or, in a set that brings its own prompts, these.
        given = [clips.prompt_of(clip) for clip in range(len(clips))]
        prompts = sorted({clip if prompt is None else prompt for clip, prompt in enumerate(given)})
        candidates += [(clips, clip_index) for clip_index in prompts]
    long_enough = [
        (clips, clip_index) for clips, clip_index in candidates if clips.infos[clip_index].seconds >= min_seconds
    ]
    longest = max(candidates, key=lambda found: found[0].infos[found[1]].seconds)
    order = sorted(
        long_enough or [longest], key=lambda found: hash_int("voice", seed, found[0].name, found[0].infos[found[1]].id)
    )
    num_before: dict[str, int] = {}
    ranked = []
    for rank, (clips, clip_index) in enumerate(order):
        speaker = clips.infos[clip_index].speaker
        num_before[speaker] = num_before.get(speaker, 0) + 1
        ranked.append((num_before[speaker], rank, clips, clip_index))
    chosen = sorted(ranked, key=lambda entry: entry[:2])[
        : max(1, min(MAX_REPLAY_VOICES, count // MIN_UTTERANCES_PER_VOICE))
    ]
    return [
        ReferenceVoice(f"{clips.name}/{clips.infos[clip_index].id}", clips.voice_clip(clip_index))
        for _, _, clips, clip_index in chosen
    ]


# Lengths in a manifest are rounded, and resampling may add a few samples.
MAX_LENGTH_DIFFERENCE_SECONDS = 0.1


def add_recordings(
    voices: Sequence[ReferenceVoice], recordings: Mapping[str, Path], vocoder: Vocoder | None
) -> list[ReferenceVoice]:
    """Voices of prepared clips with the sound of their recordings, where a vocoder wants that and the file is usable.

    A voice whose recording is gone or refused stays as it is; `vocoder.why_not` then says what it lacks. So does one
    whose recording has another length: another set, or a new import, may use the same names for other clips.
    """
    found = []
    for voice in voices:
        if vocoder is not None and voice.name in recordings and REFERENCE_AUDIO not in voice.clip.voice:
            with suppress(VoxgraftError):
                samples, rate = read_audio(recordings[voice.name])
                if abs(len(samples) / rate - voice.clip.seconds) <= MAX_LENGTH_DIFFERENCE_SECONDS:
                    voice = replace(voice, clip=vocoder.add_recording(voice.clip, samples, rate))
        found.append(voice)
    return found


class VoiceLoader:
    """Loads voices by name or file, each once; and the speaking style."""

    def __init__(
        self,
        speakers: SynthesisModels,
        settings: SpeakSettings,
        known: Mapping[str | None, ReferenceVoice] | None = None,
        vocoder: Vocoder | None = None,
    ) -> None:
        """`known` are voices that need not be loaded, by name; None is the name of the default voice.

        `vocoder` will render the speech, if anything will: a voice of a prepared clip gets its recording then.
        """
        self.speakers, self.settings, self.vocoder = speakers, settings, vocoder
        self._found: dict[str | None, ReferenceVoice] = dict(known or {})
        self._encoder: ClipEncoder | None = None
        self._emotion: Clip | None = None

    def voice(self, requested: str | None) -> ReferenceVoice:
        """The voice of an utterance: its own, that of all, or whatever exists."""
        name = requested or self.settings.voice
        if name not in self._found:
            self._found[name] = self._choose_default_voice() if name is None else self._load_voice(name)
        return self._found[name]

    def condition(self, voice: ReferenceVoice) -> Any:
        """What the model is given: the voice, with the speaking style of the settings."""
        family = self.speakers.context.family
        return family.apply_style(family.condition(voice.clip), self.style(voice))

    def style(self, voice: ReferenceVoice) -> SpeakingStyle:
        """The speaking style of a voice: the eight named emotions depend on it, the emotion of a recording does not."""
        settings, context = self.settings, self.speakers.context
        if settings.emotion is not None and _EMOTION_SHARES.fullmatch(str(settings.emotion)):
            shares = [float(share) for share in str(settings.emotion).split(",")]
            weight = 1.0 if settings.emotion_weight is None else settings.emotion_weight
            mixed = context.family.mix_emotions(context.files, shares, weight, voice.clip)
            return SpeakingStyle(settings.exaggeration, mixed)
        if settings.emotion is not None and self._emotion is None:
            self._emotion = self._load_emotion(settings.emotion)
        return SpeakingStyle(settings.exaggeration, self._emotion, settings.emotion_weight)

    def _load_voice(self, name: str) -> ReferenceVoice:
        context = self.speakers.context
        own, clones_voices = context.family.voices(context.files), context.family.can_clone_voices(context.files)
        is_recording = is_file(Path(name)) or Path(name).suffix.lower() in RECORDING_SUFFIXES
        if name not in own and not clones_voices and is_recording:
            found = f"{context.family.name} has fixed voices and cannot clone the recording {name}"
            expected = f"one of {', '.join(own)}"
            cloning = ", ".join(name for name in family_names() if get_family(name).clones_voices)
            cure = f"choose one of these names, or speak with a base that clones voices ({cloning})."
            raise ConfigError("voice-unknown", found, expected=expected, where=context.files.folder, cure=cure)
        if name in own or not clones_voices:
            return ReferenceVoice(name, context.family.voice(context.files, name))
        if not is_file(Path(name)):
            raise unknown_voice_error(name, own, context.files.folder)
        return ReferenceVoice(Path(name).name, self._encode_recording(Path(name)))

    def _choose_default_voice(self) -> ReferenceVoice:
        speakers = self.speakers
        for name, clip in speakers.context.family.voices(speakers.context.files).items():
            return ReferenceVoice(name, clip)
        if speakers.held_out is not None:
            held_out = speakers.held_out()
            sets = held_out.sets.get(speakers.new_languages[0]) or held_out.all_sets
            if sets:
                chosen = choose_voices(sets, held_out.min_prompt_seconds, 1, held_out.seed)
                return add_recordings(chosen, held_out.recordings, self.vocoder)[0]
        found = f"{speakers.context.family.name} has no named voices, and no voice is given"
        raise FileError("speak-voice", found, expected="--voice FILE.wav", where=speakers.context.files.folder)

    def _load_emotion(self, path: Path) -> Clip:
        """Of a recording, or as a vector of the model's own width, as it is kept of prepared clips."""
        if path.suffix.lower() == ".npy":
            from voxgraft.dataset.indextts2_manifest import read_npy

            return Clip(voice={"emotion": read_npy(path, "floats").astype(np.float32)})
        family, voice = self.speakers.context.family, self.voice(None).clip
        # A family without emotions refuses here, before the recording is read.
        family.apply_style(family.condition(voice), SpeakingStyle(emotion=voice))
        return self._encode_recording(path)

    def _encode_recording(self, path: Path) -> Clip:
        samples, rate = read_audio(path, code="wav-form")
        if self._encoder is None:
            context = self.speakers.context
            # The encoder of IndexTTS-2 is part of the base; a graft has it unchanged.
            self._encoder = context.family.encoder(context.files, self.speakers.all[-1].model)
        return self._encoder.encode_voice(samples, rate)
