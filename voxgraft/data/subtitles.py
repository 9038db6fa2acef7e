"""Subtitle files to cues: SRT and VTT line by line, ASS and other formats through pysubs2.

Every line with text is in a cue or in a problem: nothing is left out in silence. Does not clean texts.
"""

from __future__ import annotations

import codecs
import html
import re
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pysubs2
import regex
from pysubs2.exceptions import Pysubs2Error

from voxgraft.core.errors import ConfigError, FileError, TextError, VoxgraftError
from voxgraft.core.files import read_bytes
from voxgraft.data.manifest import SourceProblem


@dataclass(frozen=True, slots=True)
class Cue:
    """What one subtitle says, and when, in seconds."""

    start: float
    end: float
    text: str
    """Lines as they were shown, with line breaks; cleaned once `cleaning` has seen it."""
    line: int = 0
    """Line of the source that its time stands on."""
    last_line: int = 0
    speaker: str = ""
    original_text: str = ""
    marks: tuple[str, ...] = ()
    """Reasons against it that its text shows: sung, two voices."""

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


@dataclass(slots=True)
class CueFile:
    """Every cue of a subtitle file, and every line that gave none."""

    cues: list[Cue] = field(default_factory=list)
    problems: list[SourceProblem] = field(default_factory=list)


MAX_TEXT_BYTES = 64 << 20
MAX_UNDECODABLE_SHARE = 0.2
"""Share of lines that may be in another encoding than their file."""
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""The longer marks first: one of UTF-16 begins one of UTF-32."""


def read_encoded_text(path: Path, encoding: str | None = None) -> str:
    """A whole text file; `encoding` is what the user says of files that do not say it themselves."""
    return decode_text(read_bytes(path, MAX_TEXT_BYTES), path, encoding)


def decode_text(data: bytes, where: Path | str, encoding: str | None = None) -> str:
    """Bytes as text, strictly; an error names the line of the first byte that does not fit."""
    name = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if name is not None:
        data = data.removeprefix(next(mark for mark, own in BYTE_ORDER_MARKS if own == name))
    chosen = name or _choose_encoding(data, encoding)
    try:
        text = data.decode(chosen)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TextError("text-encoding", f"line {line} holds {_describe_bad_byte(data, error)}", where=where) from None
    if "\x00" in text:
        raise TextError("text-binary", "the file holds NUL characters", where=where)
    return text


def read_text_skipping_bad_lines(path: Path, encoding: str | None = None) -> tuple[str, dict[int, str]]:
    """A text file in which single lines may have another encoding: these become empty and are given by number.

    Where many lines are undecodable the file as a whole has another encoding, which is an error.
    """
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        return decode_text(data, path, encoding), {}
    except TextError as error:
        if error.code != "text-encoding" or not _is_line_decodable(data, encoding):
            raise
        lines, broken = data.removeprefix(codecs.BOM_UTF8).split(b"\n"), dict[int, str]()
        for at, line in enumerate(lines):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as fault:
                broken[at + 1] = (
                    f"{line.decode('utf-8', 'replace').strip()!r:.60} holds {_describe_bad_byte(line, fault)}"
                )
                lines[at] = b""
        if len(broken) > max(1, MAX_UNDECODABLE_SHARE * sum(map(bool, lines))):
            raise
        return decode_text(b"\n".join(lines), path), broken


def parse_error_line(error: VoxgraftError) -> int:
    """The line that an error of this module names; 0 where it names none."""
    found = re.match(r"line (\d+) ", error.finding.found)
    return int(found[1]) if found else 0


def _describe_bad_byte(data: bytes, error: UnicodeDecodeError) -> str:
    return f"byte 0x{data[error.start]:02x}, which is not {error.encoding.upper()}"


def _choose_encoding(data: bytes, encoding: str | None) -> str:
    """UTF-8 where the bytes are that, else what the user says: a folder may hold files of both kinds.

    Only encodings of one byte a letter give way. Text in the others (UTF-16, GBK, ISO-2022) can look like UTF-8.
    """
    name = _resolve_encoding(encoding)
    if name is None:
        return "utf-8"
    if len(bytes(range(256)).decode(name, "replace")) != 256:
        return name
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return name
    return "utf-8"


def _is_line_decodable(data: bytes, encoding: str | None) -> bool:
    """Whether the file is to be read as UTF-8, in which every line can be decoded by itself."""
    mark = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    return mark == "utf-8" or (mark is None and encoding is None)


def _resolve_encoding(encoding: str | None) -> str | None:
    if encoding is None:
        return None
    try:
        info = codecs.lookup(encoding)
        if not info._is_text_encoding:
            raise LookupError
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        raise ConfigError("text-encoding-unknown", f"there is no encoding {encoding!a:.40}") from None
    return info.name


_ASS_EVENT = re.compile(r"^\s*(Dialogue|Comment)\s*:", re.IGNORECASE)
_ASS_SECTION = re.compile(r"^\s*\[(.+)\]\s*$")
_ASS_LINE_BREAK = re.compile(r"\\[Nn]")
_ASS_DRAWING = re.compile(r"\{[^}]*\\p[1-9]")
_PYSUBS2_ERRORS = (Pysubs2Error, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError)
"""What pysubs2 raises for events that it cannot read."""


def parse_substation(text: str, name: str) -> CueFile:
    """Cues of the events that are shown; comments and drawings are no speech."""
    lines = re.split(r"\r\n|\n|\r", text)
    head, events = _split_ass_header(lines)
    found = CueFile()
    for number, line in events:
        _parse_ass_event(head, number, line, found, name)
    strays = [
        (number, line)
        for number, line in _lines_outside_events(lines)
        if line.strip() and not line.lstrip().startswith((";", "!")) and ":" not in line
    ]
    for number, line in strays:
        found.problems.append(SourceProblem("subtitle-stray", f"no event: {line.strip()!r:.120}", name, number))
    if not events:
        raise FileError("subtitle-none", f"{name} has no line `Dialogue: ...`", where=name)
    return found


def _split_ass_header(lines: list[str]) -> tuple[list[str], list[tuple[int, str]]]:
    """The head of the file up to the form of its events, and the events."""
    events = [(number, line) for number, line in enumerate(lines, 1) if _ASS_EVENT.match(line)]
    first = events[0][0] - 1 if events else len(lines)
    sections = [place for place, line in enumerate(lines[:first]) if _ASS_SECTION.match(line)]
    # Styles and fonts are of no use here, and a damaged one would spoil every event.
    head = lines[sections[-1] : first] if sections else []
    return ["[Script Info]", "ScriptType: v4.00+", *head], events


def _lines_outside_events(lines: list[str]) -> list[tuple[int, str]]:
    """Lines of the events' part that are neither an event nor the form of one."""
    inside, found = False, []
    for number, line in enumerate(lines, 1):
        section = _ASS_SECTION.match(line)
        if section:
            inside = section[1].strip().lower() == "events"
        elif inside and not _ASS_EVENT.match(line):
            found.append((number, line))
    return found


def _parse_ass_event(head: list[str], number: int, line: str, found: CueFile, name: str) -> None:
    try:
        with warnings.catch_warnings():  # of margins and layers, which are of no use here
            warnings.simplefilter("ignore", RuntimeWarning)
            read = pysubs2.SSAFile.from_string("\n".join([*head, line]), format_="ass").events
    except _PYSUBS2_ERRORS:
        read = []
    if len(read) != 1:
        found.problems.append(SourceProblem("subtitle-time", f"no event that can be read: {line!r:.120}", name, number))
        return
    event = read[0]
    if event.is_comment or _ASS_DRAWING.search(event.text):
        found.problems.append(SourceProblem("subtitle-nothing-said", f"not speech: {line!r:.120}", name, number))
        return
    text = _ASS_LINE_BREAK.sub("\n", event.text).strip()
    if not text:
        found.problems.append(SourceProblem("subtitle-empty", f"{line!r:.120}", name, number))
        return
    speaker = event.name.strip()
    found.cues.append(
        Cue(event.start / 1000, event.end / 1000, text, number, number, speaker, original_text=event.text)
    )


SUBTITLE_SUFFIXES = (".srt", ".vtt", ".webvtt", ".ass", ".ssa")
MAX_CUE_SECONDS = 120.0
"""Nobody speaks so long without a pause; such cues are notes about the film, or their end is wrong."""
MAX_QUOTED_CHARACTERS = 120

# Spaces are bounded: without an end to them a line of nothing else would be looked through again and again.
_OPTIONAL_SPACES = r"\s{0,4}"
_TIMESTAMP = rf"(?:(\d{{1,3}}){_OPTIONAL_SPACES}:{_OPTIONAL_SPACES})?(\d{{1,2}}){_OPTIONAL_SPACES}:{_OPTIONAL_SPACES}(\d{{1,2}})(?:{_OPTIONAL_SPACES}[,.]{_OPTIONAL_SPACES}(\d{{1,3}}))?"
_TIMING_LINE = re.compile(
    rf"^{_OPTIONAL_SPACES}{_TIMESTAMP}{_OPTIONAL_SPACES}-{{1,4}}{_OPTIONAL_SPACES}>{_OPTIONAL_SPACES}{_TIMESTAMP}(?=\s|$)",
    re.ASCII,
)
_ARROW = re.compile(rf"-{_OPTIONAL_SPACES}>")
_CUE_NUMBER = re.compile(r"^\s*\d+\s*$")
_VTT_HEADER = re.compile(r"^WEBVTT(?:[ \t]|$)")
_VTT_BLOCKS = re.compile(r"^(NOTE|STYLE|REGION)(?:[ \t]|$)")
_TIME_LIKE = re.compile(rf"\d{_OPTIONAL_SPACES}:{_OPTIONAL_SPACES}\d")

NumberedLines = list[tuple[int, str]]
"""Lines of a file with their numbers."""


def read_subtitles(path: Path, encoding: str | None = None) -> CueFile:
    """The cues of a subtitle file in their order; an error if there is none."""
    text, broken = read_text_skipping_bad_lines(path, encoding)
    found = parse_subtitles(text, path.suffix.lower(), path.name)
    found.problems += [SourceProblem("text-encoding", told, path.name, line) for line, told in broken.items()]
    if not found.cues:
        read_encoded_text(path, encoding)  # raises where the encoding is why
        seen = "; ".join(problem.found for problem in found.problems[:3])
        raise FileError("subtitle-none", f"no subtitle in {path.name}" + (f": {seen}" if seen else ""), where=path)
    return found


def parse_subtitles(text: str, ending: str, name: str) -> CueFile:
    """The cues of a text; `ending` says which format it is."""
    if ending in (".ass", ".ssa"):
        found = parse_substation(text, name)
    else:
        found = CueFile()
        for block in _split_blocks(text):
            _parse_block(block, found, name, is_vtt=ending in (".vtt", ".webvtt"))
    _drop_bad_times(found, name)
    found.cues.sort(key=lambda cue: (cue.start, cue.end))
    return found


def _split_blocks(text: str) -> Iterator[NumberedLines]:
    """Runs of lines that are not empty."""
    block: NumberedLines = []
    # Only real line ends: `splitlines` also breaks at characters that may stand inside a text.
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _parse_block(block: NumberedLines, found: CueFile, name: str, *, is_vtt: bool) -> None:
    """One run of lines: usually one cue, several where an empty line was forgotten."""
    if is_vtt and (_VTT_BLOCKS.match(block[0][1]) or (block[0][0] == 1 and _VTT_HEADER.match(block[0][1]))):
        # Notes hold no times: where one follows, the empty line between was forgotten.
        times = [place for place, (_, line) in enumerate(block) if _is_timing_line(line)]
        if not times:
            return
        block = block[times[0] :]
    heads = [place for place, (_, line) in enumerate(block) if _is_timing_line(line)]
    if not heads:
        found.problems.append(_stray_problem(block, name))
        return
    first = heads[0]
    if first > 1 or (first == 1 and not is_vtt and not _CUE_NUMBER.match(block[0][1])):
        found.problems.append(_stray_problem(block[:first], name))
    for place, head in enumerate(heads):
        after = heads[place + 1] if place + 1 < len(heads) else len(block)
        body = block[head + 1 : after]
        if place + 1 < len(heads) and body and _CUE_NUMBER.match(body[-1][1]):
            body = body[:-1]  # the number of the next one
        _parse_cue(block[head], body, found, name)


def _is_timing_line(line: str) -> bool:
    return bool(_TIMING_LINE.match(line)) or (bool(_ARROW.search(line)) and bool(_TIME_LIKE.search(line)))


def _parse_cue(head: tuple[int, str], body: NumberedLines, found: CueFile, name: str) -> None:
    number, line = head
    last = body[-1][0] if body else number
    text = "\n".join(text.strip() for _, text in body)
    times = _TIMING_LINE.match(line)
    if not times:
        shown = f"{line.strip()!r:.80} is no pair of times" + (
            f"; its text: {text!r:.{MAX_QUOTED_CHARACTERS}}" if text else ""
        )
        found.problems.append(SourceProblem("subtitle-time", shown, name, number, last))
    elif not text:
        found.problems.append(SourceProblem("subtitle-empty", f"{line.strip():.80}", name, number, last))
    else:
        parts = times.groups()
        found.cues.append(
            Cue(_parse_timestamp(parts[:4]), _parse_timestamp(parts[4:]), text, number, last, original_text=text)
        )


def _parse_timestamp(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = parts
    thousandths = int((fraction or "0").ljust(3, "0"))
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0) + thousandths / 1000


def _stray_problem(lines: NumberedLines, name: str) -> SourceProblem:
    text = " / ".join(line.strip() for _, line in lines)
    return SourceProblem(
        "subtitle-stray", f"no time for {text!r:.{MAX_QUOTED_CHARACTERS}}", name, lines[0][0], lines[-1][0]
    )


def _drop_bad_times(found: CueFile, name: str) -> None:
    kept: list[Cue] = []
    for cue in found.cues:
        seconds = cue.end - cue.start
        if 0 < seconds <= MAX_CUE_SECONDS:
            kept.append(cue)
            continue
        code = "subtitle-time" if seconds <= 0 else "subtitle-too-long"
        told = f"from {cue.start:.3f} s to {cue.end:.3f} s: {cue.text!r:.{MAX_QUOTED_CHARACTERS}}"
        found.problems.append(SourceProblem(code, told, name, cue.line, cue.last_line))
    found.cues = kept


_SOUND_WORDS_BY_LANGUAGE: dict[str, tuple[str, ...]] = {
    "en": tuple(
        "music musical song singing sings applause applauds laughter laughs laughing chuckles giggles sighs gasps "
        "coughs coughing cough crying cries sobbing screams screaming shouting cheering cheers crowd whistles "
        "barking bell bells ringing rings beep beeping buzzing siren sirens thunder gunshot gunshots explosion "
        "knocks door footsteps silence inaudible unintelligible indistinct chatter background foreign groans grunts "
        "whispers whispering static noise horn honks engine phone clears".split()
    ),
    "am": tuple(
        "ሙዚቃ ዘፈን መዝሙር ጭብጨባ ሳቅ ሳቅታ ይስቃል ትስቃለች እየሳቀ እየሳቀች ለቅሶ ልቅሶ ያለቅሳል ታለቅሳለች ሳል ይስላል ጩኸት እልልታ ፉጨት ድምፅ ድምጽ "
        "ደወል ስልክ ተኩስ ፍንዳታ ነጎድጓድ ጸጥታ ዝምታ የማይሰማ ማስታወቂያ".split()
    ),
    "ti": tuple("ሙዚቃ ደርፊ መዝሙር ጨብጨባ ጣቕዒት ሰሓቕ ብኽያት ሳዓል ጫውጫውታ ድምጺ ደወል ስቕታ".split()),
    "fr": tuple(
        "musique chanson chant applaudissements rires rire rit soupir soupire toux tousse pleurs pleure cris crie "
        "sonnerie sonne sirène tonnerre silence inaudible brouhaha porte bruit".split()
    ),
    "es": tuple("música canción aplausos risas risa ríe suspira tos tose llanto llora gritos grita silencio".split()),
    "de": tuple("musik lied applaus gelächter lachen lacht seufzt husten hustet weint schreit stille klingelt".split()),
    "sw": tuple("muziki wimbo makofi kicheko vicheko anacheka kilio analia kelele kimya".split()),
    "om": tuple("muuziqaa sirba harka kolfa boo'icha sagalee".split()),
    "ar": tuple("موسيقى أغنية تصفيق ضحك يضحك تضحك بكاء يبكي صراخ صمت".split()),
}
NARRATOR_LABELS: dict[str, tuple[str, ...]] = {
    "en": ("narrator", "interviewer", "announcer", "reporter", "host", "man", "woman", "voice-over"),
    "am": ("ተራኪ", "አቅራቢ", "ጋዜጠኛ", "ጠያቂ", "መላሽ", "ሴት", "ወንድ", "ድምፅ"),
    "ti": ("ተራኺ", "ጋዜጠኛ", "ሓታቲ"),
    "fr": ("narrateur", "journaliste", "homme", "femme", "voix off"),
}
"""Names of parts that stand before a colon, besides capitals and names that come again and again."""


NON_SPEAKER_LABELS = frozenset(
    ("note", "warning", "example", "question", "answer", "ማስጠንቀቂያ", "ማሳሰቢያ", "ማስታወሻ", "ለምሳሌ", "ጥያቄ", "መልስ")
)
"""Words that often stand before a colon and name nobody."""


def sound_words_for(language: str) -> frozenset[str]:
    """Words of the language and of English, which captions of every language use."""
    return frozenset(
        (*_SOUND_WORDS_BY_LANGUAGE["en"], *_SOUND_WORDS_BY_LANGUAGE.get(language.lower().partition("-")[0], ()))
    )


SUNG = "sung"
TWO_VOICES = "two-voices"
MIN_SPEAKER_LABEL_COUNT = 3
MIN_SPEAKER_LABEL_SHARE = 0.04
"""A name before a colon that begins so many subtitles of a file is a speaker's."""

_VOICE_TAG = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_MARKUP_TAG = re.compile(r"</?[^<>\n]{0,200}>")
_ASS_OVERRIDE = re.compile(r"\{[^{}\n]{0,200}\}")
_MUSIC_NOTES = re.compile(r"[♩♪♫♬♭♮♯🎵🎶🎼]")
_SQUARE_BRACKETS = re.compile(r"[\[【［][^\[\]【】［］]*[\]】］]")
_ROUND_BRACKETS = re.compile(r"[(（][^()（）]*[)）]")
_ASTERISK_TEXT = re.compile(r"\*[^*\n]{1,80}\*")
_LEADING_DASH = re.compile(r"^\s*(?:[-‐-―−]|>>+|»)\s*")
_BIDI_MARKS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_COLON = r"(?:[:፦：]|፡(?=\s|$))"
_SPEAKER_LABEL = regex.compile(
    r"^\s*(?P<name>[\p{L}\p{M}][\p{L}\p{M}\p{N} .'’\-]{0,40}?)\s*" + _COLON + r"\s*(?![:፡\d/])(?=\S|$)"
)
_COLON_AFTER_BRACKET = regex.compile(r"^ *" + _COLON)
_ETHIOPIC_WORDSPACE = re.compile("(?<!፡)፡(?!፡)")
_ALL_CAPS = regex.compile(r"^[\p{Lu}][\p{Lu}\p{M}\p{N} .'’\-]+$")
_WHITESPACE = re.compile(r"\s+")
_LETTER_OR_DIGIT = regex.compile(r"[\p{L}\p{N}]")
MAX_LABEL_WORDS = 3


@dataclass(frozen=True, slots=True)
class CaptionCleaner:
    """The rules for one file: its language, and the names that were seen to be speakers'."""

    sounds: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, texts: Sequence[str], language: str) -> CaptionCleaner:
        """The rules for a file with these texts."""
        own = NARRATOR_LABELS.get(language.lower().partition("-")[0], ())
        known = {name.lower() for words in (NARRATOR_LABELS["en"], own) for name in words}
        seen: Counter[str] = Counter()
        for text in texts:
            seen.update(
                {
                    label
                    for line in _strip_markup(text).split("\n")
                    if (label := _find_speaker_label(_LEADING_DASH.sub("", line)))
                }
            )
        least = max(MIN_SPEAKER_LABEL_COUNT, MIN_SPEAKER_LABEL_SHARE * len(texts))
        often = {name.lower() for name, times in seen.items() if times >= least} - NON_SPEAKER_LABELS
        return cls(sound_words_for(language), frozenset(known | often))

    def clean(self, cue: Cue) -> Cue:
        """The cue with only what is said; its text is empty if nothing is."""
        voices = [name.strip() for name in _VOICE_TAG.findall(cue.text)]
        text = _strip_markup(cue.text)
        marks = {SUNG} if _MUSIC_NOTES.search(text) else set()
        text = _MUSIC_NOTES.sub(" ", text)
        text = _ASTERISK_TEXT.sub(" ", _SQUARE_BRACKETS.sub(self._replace_square_bracket, text))
        text = _ROUND_BRACKETS.sub(self._remove_sound_description, text)
        speakers = list(voices)
        parts, turns = [], 0
        for line in text.split("\n"):
            own, turn, label = self._line(line)
            turns += turn
            if label:
                speakers.append(label)
            if _LETTER_OR_DIGIT.search(own):
                parts.append(own)
        if len(set(speakers)) > 1 or turns > 1:
            marks.add(TWO_VOICES)
        said = _WHITESPACE.sub(" ", " ".join(parts)).strip()
        speaker = speakers[0] if speakers else cue.speaker
        return replace(cue, text=said, speaker=speaker, marks=(*cue.marks, *sorted(marks)))

    def _line(self, line: str) -> tuple[str, bool, str]:
        """What is said on a line, whether it begins a turn, and who is named."""
        bare = _LEADING_DASH.sub("", line, count=1)
        label = _find_speaker_label(bare)
        if label and not (_ALL_CAPS.match(label) or label.lower() in self.names):
            label = ""
        if label:
            bare = _SPEAKER_LABEL.sub("", bare, count=1)
        return bare.strip(), bare != line and bool(_LEADING_DASH.match(line)), label

    def _replace_square_bracket(self, found: re.Match[str]) -> str:
        """Square brackets are never said; one that stands before a colon or alone may name who speaks."""
        inside = found.group()[1:-1].strip()
        named = _COLON_AFTER_BRACKET.match(found.string[found.end() :])
        return inside if named and len(inside.split()) <= MAX_LABEL_WORDS else " "

    def _remove_sound_description(self, found: re.Match[str]) -> str:
        inside = found.group()[1:-1]
        words = {word.lower() for word in regex.findall(r"[\p{L}\p{M}']+", inside)}
        line = found.string[found.string.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
        alone = not _LETTER_OR_DIGIT.search(line.replace(found.group(), ""))
        return " " if alone or words & self.sounds or not words or inside.isupper() else found.group()


def clean_cues(cues: Sequence[Cue], language: str, name: str) -> tuple[list[Cue], list[SourceProblem]]:
    """Every cue with only what is said; those in which nothing is are told."""
    cleaner = CaptionCleaner.of([cue.text for cue in cues], language)
    kept: list[Cue] = []
    problems: list[SourceProblem] = []
    for cue in cues:
        cleaned = cleaner.clean(cue)
        if cleaned.text:
            kept.append(cleaned)
        else:
            problems.append(SourceProblem("subtitle-nothing-said", f"{cue.text!r:.120}", name, cue.line, cue.last_line))
    return kept, problems


def _strip_markup(text: str) -> str:
    """Without markup, entities and marks of direction; line breaks stay."""
    text = _ASS_OVERRIDE.sub("", _MARKUP_TAG.sub("", text))
    return _BIDI_MARKS.sub("", html.unescape(text)).replace("\xa0", " ")


def _find_speaker_label(line: str) -> str:
    """The name before a colon. A second ፡ in the line shows that it stands between words, as it did of old."""
    found = _SPEAKER_LABEL.match(line) if len(_ETHIOPIC_WORDSPACE.findall(line)) < 2 else None
    name = found["name"].strip() if found else ""
    return name if len(name.split()) <= MAX_LABEL_WORDS else ""


MAX_CAPTION_GAP_SECONDS = 0.35
"""Captions that roll follow each other at once."""
MIN_CAPTION_SECONDS = 0.1
"""Shorter than anything is said in: a state between two captions."""
MIN_ROLLING_SHARE, MIN_ROLLING_COUNT = 0.25, 3
"""Of the captions that follow at once, and so many at least: people repeat themselves too."""
MIN_REPEATED_SHARE = 0.4
CAPTION_LOOKBACK = 2
"""Captions before one that it may show again: sloppy times can put them out of order."""
MIN_TIME_OVERLAP_SHARE = 0.5
MIN_REPEATED_WORDS = 3
"""So many words in the same order are no chance, where captions overlap in time."""
_NON_WORD_CHARACTERS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
_CAPTION_MARKUP = re.compile(r"<[^<>\n]{0,200}>|\{[^{}\n]{0,200}\}")


def dedupe_rolling_captions(cues: Sequence[Cue], name: str) -> tuple[list[Cue], list[SourceProblem]]:
    """Cues with only what is new in each; those with nothing new are told."""
    rolling = has_rolling_captions(cues)
    kept: list[Cue] = []
    problems: list[SourceProblem] = []
    shown: deque[Cue] = deque(maxlen=CAPTION_LOOKBACK)
    for place, cue in enumerate(cues):
        beside = [*shown, *cues[place + 1 : place + 2]]
        flash = cue.end - cue.start < MIN_CAPTION_SECONDS and any(_contains_caption(other, cue) for other in beside)
        words = cue.text.split()
        shared = max((_count_repeated_words(other, cue, rolling=rolling) for other in shown), default=0)
        new = words[shared:]
        if flash or not any(_plain_word(word) for word in new):
            problems.append(SourceProblem("subtitle-repeats", f"{cue.text!r:.120}", name, cue.line, cue.last_line))
            if kept and rolling and not flash:
                kept[-1] = replace(kept[-1], end=max(kept[-1].end, cue.end))
            continue
        if shared and kept:
            kept[-1] = replace(kept[-1], end=min(kept[-1].end, max(cue.start, kept[-1].start + MIN_CAPTION_SECONDS)))
        kept.append(replace(cue, text=" ".join(new)))
        shown.append(cue)
    return kept, problems


def has_rolling_captions(cues: Sequence[Cue]) -> bool:
    """Whether a good share of the captions begin with much of the end of the one before."""
    pairs = [(one, two) for one, two in pairwise(cues) if _follows_closely(one, two)]
    again = sum(_repeats_caption(_caption_words(one.text), _caption_words(two.text)) for one, two in pairs)
    return again >= max(MIN_ROLLING_COUNT, MIN_ROLLING_SHARE * len(pairs))


def _repeats_caption(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether one caption begins with all of another, or with a good part of its end, and goes on."""
    shared = _word_overlap(before, now)
    if not shared or list(before) == list(now):
        return False
    return shared == len(before) or (shared > 1 and shared >= MIN_REPEATED_SHARE * len(before))


def _count_repeated_words(shown: Cue, cue: Cue, *, rolling: bool) -> int:
    """How many words at the beginning were shown before."""
    if not _follows_closely(shown, cue):
        return 0
    before, now = _caption_words(shown.text), _caption_words(cue.text)
    shared = _word_overlap(before, now)
    if rolling:
        return shared
    # Who says a thing twice says it afterwards; a caption that stands twice stands there at the same time.
    together = min(shown.end, cue.end) - cue.start > MIN_TIME_OVERLAP_SHARE * min(
        shown.end - shown.start, cue.end - cue.start
    )
    return shared if together and (shared >= MIN_REPEATED_WORDS or before == now) else 0


def _contains_caption(shown: Cue, cue: Cue) -> bool:
    """Whether a caption near in time shows everything that another does."""
    if cue.start - shown.end > MAX_CAPTION_GAP_SECONDS or shown.start - cue.end > MAX_CAPTION_GAP_SECONDS:
        return False
    return f" {' '.join(_caption_words(cue.text))} " in f" {' '.join(_caption_words(shown.text))} "


def _follows_closely(one: Cue, two: Cue) -> bool:
    return two.start - one.end <= MAX_CAPTION_GAP_SECONDS


def _caption_words(text: str) -> list[str]:
    return [_plain_word(word) for word in _CAPTION_MARKUP.sub("", text).split()]


def _plain_word(word: str) -> str:
    """Without punctuation and case: captions that roll may change both. A dash alone stays, so that places agree."""
    return _NON_WORD_CHARACTERS.sub("", word).lower()


def _word_overlap(before: Sequence[str], now: Sequence[str]) -> int:
    """The most words that end the one and begin the other."""
    for size in range(min(len(before), len(now)), 0, -1):
        if list(before[-size:]) == list(now[:size]):
            return size if any(now[:size]) else 0
    return 0
