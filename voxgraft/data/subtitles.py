"""Subtitle files as cues, and the text that is actually spoken in them.

SRT, VTT and Audacity labels are parsed line by line, TextGrid by its tiers, ASS and SSA through pysubs2. `clean_cues`
then removes markup, sound descriptions, music notes and speaker names; `dedupe_rolling_captions` removes lines that
captions show a second time. Every line with text ends up in a cue or in a problem. Numbers and abbreviations are left
to `text/normalize`.
"""

from __future__ import annotations

import codecs
import html
import re
import tomllib
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pysubs2
import regex
from pysubs2.exceptions import Pysubs2Error

from voxgraft.core.errors import ConfigError, FileError, TextError, VoxgraftError
from voxgraft.core.files import read_bytes, text_lines
from voxgraft.core.languages import base_language, suggest_encoding
from voxgraft.data.manifest import SourceProblem
from voxgraft.text.spans import closing_codes


@dataclass(frozen=True, slots=True)
class Cue:
    """The text of one subtitle and its times in seconds; behind `cut_segments`, that of a clip."""

    start: float
    end: float
    text: str
    """Lines as shown, with line breaks; only what is spoken after `clean_cues`."""
    line: int = 0
    """Line of the source that holds its time."""
    last_line: int = 0
    speaker: str = ""
    original_text: str = ""
    marks: tuple[str, ...] = ()
    """Reasons to reject it that its text shows: sung, two voices."""

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


CuesAndProblems = tuple[list[Cue], list[SourceProblem]]
"""Every cue of a subtitle file, and a problem for every line that is in none."""
MAX_TEXT_BYTES = 64 << 20
# More lines than this share in another encoding: then the whole file is in another encoding.
MAX_UNDECODABLE_SHARE = 0.2
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def build_encoding_fix(language: str) -> str:
    """The fix of `text-encoding` with an encoding that is likely for the language."""
    name = suggest_encoding(language)
    example = f", for example --encoding {name}" if name else " with --encoding"
    return (
        f"save the text as UTF-8. Or set the encoding of such files{example} (in run.yaml: data.encoding). "
        "Read the imported texts afterwards: another encoding than the file's own gives wrong letters."
    )


def read_encoded_text(path: Path, encoding: str | None = None, *, language: str = "") -> str:
    """A whole text file; `encoding` is the user's word on files without a byte-order mark."""
    try:
        return decode_text(read_bytes(path, MAX_TEXT_BYTES), path, encoding)
    except TextError as error:
        if error.code != "text-encoding" or not language:
            raise
        raise TextError(error.code, error.finding.found, where=path, cure=build_encoding_fix(language)) from None


def decode_text(data: bytes, where: Path | str, encoding: str | None = None) -> str:
    """Bytes as text, strictly; an error names the line of the first byte that does not fit."""
    mark, name = next(((mark, name) for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), (b"", None))
    data = data.removeprefix(mark)
    try:
        text = data.decode(name or _choose_encoding(data, encoding))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TextError(
            "text-encoding", f"line {line} contains {_describe_bad_byte(data, error)}", where=where
        ) from None
    if "\x00" in text:
        raise TextError("text-binary", "the file contains NUL characters", where=where)
    return text


def read_text_skipping_bad_lines(path: Path, encoding: str | None = None) -> tuple[str, dict[int, str]]:
    """A text file in which single lines may be in another encoding: these become empty and are returned by number.

    If many lines cannot be decoded, the whole file is in another encoding, which is an error.
    """
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        return decode_text(data, path, encoding), {}
    except TextError as error:
        # Only in UTF-8 can every line be decoded on its own.
        mark = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
        if error.code != "text-encoding" or not (mark == "utf-8" or (mark is None and encoding is None)):
            raise
        lines, broken = data.removeprefix(codecs.BOM_UTF8).split(b"\n"), dict[int, str]()
        for at, line in enumerate(lines):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as fault:
                broken[at + 1] = (
                    f"{line.decode('utf-8', 'replace').strip()!r:.60} contains {_describe_bad_byte(line, fault)}"
                )
                lines[at] = b""
        if len(broken) > max(1, MAX_UNDECODABLE_SHARE * sum(map(bool, lines))):
            raise
        return decode_text(b"\n".join(lines), path), broken


def parse_error_line(error: VoxgraftError) -> int:
    """The line number in an error of this module; 0 if there is none."""
    found = re.match(r"line (\d+) ", error.finding.found)
    return int(found[1]) if found else 0


def _describe_bad_byte(data: bytes, error: UnicodeDecodeError) -> str:
    return f"byte 0x{data[error.start]:02x}, which is not {error.encoding.upper()}"


def _choose_encoding(data: bytes, encoding: str | None) -> str:
    """UTF-8 if the bytes are valid UTF-8, else what the user says: a folder may hold files of both kinds."""
    if encoding is None:
        return "utf-8"
    try:
        info = codecs.lookup(encoding)
        if not info._is_text_encoding:
            raise LookupError
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        raise ConfigError("text-encoding-unknown", f"there is no encoding {encoding!a:.40}") from None
    # Only single-byte encodings give way: text in the others (UTF-16, GBK, ISO-2022) can look like UTF-8.
    if len(bytes(range(256)).decode(info.name, "replace")) != 256:
        return info.name
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return info.name
    return "utf-8"


_ASS_EVENT = re.compile(r"^\s*(Dialogue|Comment)\s*:", re.IGNORECASE)
_ASS_SECTION = re.compile(r"^\s*\[(.+)\]\s*$")
_ASS_LINE_BREAK = re.compile(r"\\[Nn]")
_ASS_DRAWING = re.compile(r"\{[^}]*\\p[1-9]")
# What pysubs2 raises for events that it cannot parse.
_PYSUBS2_ERRORS = (Pysubs2Error, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError)


def parse_substation(text: str, name: str) -> CuesAndProblems:
    """Cues of the events of an ASS or SSA file that are shown; comments and drawings are no speech."""
    lines = text_lines(text)
    events = [(number, line) for number, line in enumerate(lines, 1) if _ASS_EVENT.match(line)]
    if not events:
        raise FileError("subtitle-none", f"{name} has no line `Dialogue: ...`", where=name)
    first = events[0][0] - 1
    sections = [place for place, line in enumerate(lines[:first]) if _ASS_SECTION.match(line)]
    # Only the section with the events' format: a damaged style or font would spoil every event.
    head = ["[Script Info]", "ScriptType: v4.00+", *(lines[sections[-1] : first] if sections else [])]
    cues: list[Cue] = []
    problems: list[SourceProblem] = []
    for number, line in events:
        try:
            with warnings.catch_warnings():  # about margins and layers, which are not used
                warnings.simplefilter("ignore", RuntimeWarning)
                read = pysubs2.SSAFile.from_string("\n".join([*head, line]), format_="ass").events
        except _PYSUBS2_ERRORS:
            read = []
        text = _ASS_LINE_BREAK.sub("\n", read[0].text).strip() if len(read) == 1 else ""
        problem = None
        if len(read) != 1:
            problem = SourceProblem("subtitle-time", f"unreadable event: {line!r:.120}", name, number)
        elif read[0].is_comment or _ASS_DRAWING.search(read[0].text):
            problem = SourceProblem("subtitle-nothing-said", f"not speech: {line!r:.120}", name, number)
        elif not text:
            problem = SourceProblem("subtitle-empty", f"no text: {line!r:.120}", name, number)
        if problem is not None:
            problems.append(problem)
            continue
        event = read[0]
        times = event.start / 1000, event.end / 1000  # pysubs2 counts milliseconds
        cues.append(Cue(*times, text, number, number, event.name.strip(), original_text=event.text))
    in_events = False
    for number, line in enumerate(lines, 1):
        if section := _ASS_SECTION.match(line):
            in_events = section[1].strip().lower() == "events"
        elif in_events and line.strip() and ":" not in line and not line.lstrip().startswith((";", "!")):
            problems.append(SourceProblem("subtitle-stray", f"no event: {line.strip()!r:.120}", name, number))
    return cues, problems


SUBTITLE_SUFFIXES = (".srt", ".vtt", ".webvtt", ".ass", ".ssa", ".textgrid")
# Nobody speaks this long without a pause: such cues are notes about the film, or their end is wrong.
MAX_CUE_SECONDS = 120.0
MAX_QUOTED_CHARACTERS = 120

# Spaces are bounded: an unbounded pattern would take quadratic time on a line of spaces.
_OPTIONAL_SPACES = r"\s{0,4}"
_TIMESTAMP = (
    rf"(?:(\d{{1,3}}){_OPTIONAL_SPACES}:{_OPTIONAL_SPACES})?(\d{{1,2}}){_OPTIONAL_SPACES}:{_OPTIONAL_SPACES}(\d{{1,2}})"
    rf"(?:{_OPTIONAL_SPACES}[,.]{_OPTIONAL_SPACES}(\d{{1,3}}))?"
)
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


def read_subtitles(path: Path, encoding: str | None = None) -> CuesAndProblems:
    """The cues of a subtitle file in order; an error if there is none."""
    text, broken = read_text_skipping_bad_lines(path, encoding)
    cues, problems = parse_subtitles(text, path.suffix.lower(), path.name)
    problems += [SourceProblem("text-encoding", message, path.name, line) for line, message in broken.items()]
    if not cues:
        read_encoded_text(path, encoding)  # raises if the encoding is the reason
        seen = "; ".join(problem.found for problem in problems[:3])
        raise FileError(
            "subtitle-none", f"no usable subtitle in {path.name}" + (f" ({seen})" if seen else ""), where=path
        )
    return cues, problems


def parse_subtitles(text: str, ending: str, name: str) -> CuesAndProblems:
    """The cues of a text; `ending` is the file suffix of its format."""
    parsers = {".ass": parse_substation, ".ssa": parse_substation, ".textgrid": parse_textgrid, ".txt": parse_labels}
    if ending in parsers:
        cues, problems = parsers[ending](text, name)
    else:
        cues, problems = [], []
        block: NumberedLines = []
        # Only real line ends: `splitlines` also breaks at characters that may occur inside a text.
        for number, line in enumerate([*text_lines(text), ""], 1):
            if line.strip():
                block.append((number, line))
            elif block:
                _parse_block(block, cues, problems, name, is_vtt=ending in (".vtt", ".webvtt"))
                block = []
    kept: list[Cue] = []
    for cue in cues:
        seconds = cue.end - cue.start
        if 0 < seconds <= MAX_CUE_SECONDS:
            kept.append(cue)
            continue
        code = "subtitle-time" if seconds <= 0 else "subtitle-too-long"
        fault = "ends before it begins" if seconds <= 0 else "is too long"
        message = f"{cue.text!r:.{MAX_QUOTED_CHARACTERS}} {fault}: from {cue.start:.3f} s to {cue.end:.3f} s"
        problems.append(SourceProblem(code, message, name, cue.line, cue.last_line))
    return sorted(kept, key=lambda cue: (cue.start, cue.end)), problems


def _parse_block(
    block: NumberedLines, cues: list[Cue], problems: list[SourceProblem], name: str, *, is_vtt: bool
) -> None:
    """Parse a run of lines without an empty one: usually one cue, several where an empty line was forgotten."""
    heads = [
        place
        for place, (_, line) in enumerate(block)
        if _TIMING_LINE.match(line) or (_ARROW.search(line) and _TIME_LIKE.search(line))
    ]
    if is_vtt and (_VTT_BLOCKS.match(block[0][1]) or (block[0][0] == 1 and _VTT_HEADER.match(block[0][1]))):
        # Notes hold no times: if one follows, the empty line before the cue was forgotten.
        if not heads:
            return
        block, heads = block[heads[0] :], [place - heads[0] for place in heads]
    first = heads[0] if heads else len(block)
    if not heads or first > 1 or (first == 1 and not is_vtt and not _CUE_NUMBER.match(block[0][1])):
        text = " / ".join(line.strip() for _, line in block[:first])
        message = f"text without a time: {text!r:.{MAX_QUOTED_CHARACTERS}}"
        problems.append(SourceProblem("subtitle-stray", message, name, block[0][0], block[first - 1][0]))
    for head, after in pairwise([*heads, len(block)]):
        (number, line), body = block[head], block[head + 1 : after]
        if after < len(block) and body and _CUE_NUMBER.match(body[-1][1]):
            body = body[:-1]  # the number of the next cue
        last = body[-1][0] if body else number
        text = "\n".join(text.strip() for _, text in body)
        times = _TIMING_LINE.match(line)
        if not times:
            shown = f"{line.strip()!r:.80} does not have a start and an end time"
            shown += f"; its text: {text!r:.{MAX_QUOTED_CHARACTERS}}" if text else ""
            problems.append(SourceProblem("subtitle-time", shown, name, number, last))
        elif not text:
            problems.append(SourceProblem("subtitle-empty", f"no text: {line.strip():.80}", name, number, last))
        else:
            # Hours may be missing; a fraction of two digits is hundredths.
            start, end = (
                int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + int((fraction or "0").ljust(3, "0")) / 1000
                for hours, minutes, seconds, fraction in (times.groups()[:4], times.groups()[4:])
            )
            cues.append(Cue(start, end, text, number, last, original_text=text))


# Praat reads its text files as strings, flags and free-standing numbers; all other words are comments.
_LINE_END = re.compile(r"\r\n|\n|\r")
_PRAAT_TOKEN = re.compile(r'"(?:[^"]|"")*"|<\w+>|(?<!\S)-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\S)')
_WORD_TIERS = re.compile(r"(?:(?P<speaker>.+?)\s*[-–_:]\s*)?(?:words?|ort-mau)", re.IGNORECASE)
_UTTERANCE_TIERS = re.compile(
    r"(?:(?P<speaker>.+?)\s*[-–_:]\s*)?(?:utterances?|utts?|sentences?|phrases?|text|transcripts?|transcription|ort)",
    re.IGNORECASE,
)
_OTHER_TIERS = re.compile(
    r".*(phone|phon|syll|segment|mau|tone|note|comment|gloss|pos|pitch|stress).*", re.IGNORECASE | re.DOTALL
)
# Marks of aligners for silence, noise and unknown words.
_SILENCE_MARKS = frozenset(("", "sil", "sp", "spn", "<sil>", "<p:>", "<eps>", "pau", "#"))
# Words with a longer pause between them are two cues.
WORD_GAP_SECONDS = 0.3
_LABEL_LINE = re.compile(r"\s*(\d+(?:[.,]\d+)?)\t\s*(\d+(?:[.,]\d+)?)(?:\t(.*))?")


def parse_textgrid(text: str, name: str) -> CuesAndProblems:
    """Cues of a Praat TextGrid, long or short form.

    Tiers of utterances come first, then those of words, whose words are joined; else every interval tier that does not
    hold phones or notes is taken, and if there are several, their names are the speakers.
    """
    tokens, line, behind = list[tuple[int, str]](), 1, 0
    for found in _PRAAT_TOKEN.finditer(text):
        line += len(_LINE_END.findall(text, behind, found.start()))
        behind = found.start()
        tokens.append((line, found[0]))
    words = [token for _, token in tokens]
    if words[:2] != ['"ooTextFile"', '"TextGrid"']:
        raise FileError("subtitle-broken", f"line 1 of {name} is not the first line of a TextGrid file", where=name)
    tiers: list[tuple[str, list[Cue]]] = []
    problems: list[SourceProblem] = []
    at = next((place for place, word in enumerate(words) if word in ('"IntervalTier"', '"TextTier"')), len(words))
    while at < len(words):
        kind, line = words[at], tokens[at][0]
        size = 3 if kind == '"IntervalTier"' else 2
        try:
            if kind not in ('"IntervalTier"', '"TextTier"'):
                raise ValueError
            # Runs of spaces in a name would cost the patterns for tiers the square of their length.
            title, count = " ".join(_praat_text(words[at + 1]).split()), int(words[at + 4])
            last = at + 5 + size * count
            if count < 0 or last > len(words):
                raise ValueError
            cues = []
            for place in range(at + 5, last, size):
                said = " ".join(_praat_text(words[place + size - 1]).split())
                number = tokens[place + size - 1][0]
                start, end = float(words[place]), float(words[place + size - 2])
                if said.lower() not in _SILENCE_MARKS:
                    cues.append(Cue(start, end, said, number, number, original_text=said))
        except (ValueError, IndexError):
            message = f"the tier that begins on line {line} is broken"
            raise FileError("subtitle-broken", message, where=f"{name}, line {line}") from None
        if size == 3:
            tiers.append((title, cues))
        elif cues:
            problems.append(
                SourceProblem("subtitle-tier", f"tier {title!r:.60} holds points, not intervals", name, line)
            )
        at = last
    for form in (_UTTERANCE_TIERS, _WORD_TIERS, None):
        if form is None:
            chosen = {title: title for title, cues in tiers if cues and not _OTHER_TIERS.fullmatch(title)}
        else:
            matches = {title: form.fullmatch(title) for title, cues in tiers if cues}
            chosen = {title: match["speaker"] or "" for title, match in matches.items() if match}
        if chosen:
            break
    made: list[Cue] = []
    for title, cues in tiers:
        if title not in chosen:
            if cues:
                message = f"tier {title!r:.60} with {len(cues):,} intervals was not used"
                problems.append(SourceProblem("subtitle-tier", message, name, cues[0].line, cues[-1].line))
            continue
        speaker = chosen[title] if len(chosen) > 1 else ""
        for cue in cues:
            before = made[-1] if made and form is _WORD_TIERS and made[-1].speaker == speaker else None
            if before is not None and 0 <= cue.start - before.end < WORD_GAP_SECONDS:
                joined = f"{before.text} {cue.text}"
                made[-1] = replace(before, end=cue.end, text=joined, original_text=joined, last_line=cue.line)
            else:
                made.append(replace(cue, speaker=speaker))
    return made, problems


def _praat_text(token: str) -> str:
    if not token.startswith('"'):
        raise ValueError
    return token[1:-1].replace('""', '"')


def parse_labels(text: str, name: str) -> CuesAndProblems:
    """Cues of an Audacity label track: start, end and text, with tabs. A line with a backslash holds frequencies."""
    cues: list[Cue] = []
    problems: list[SourceProblem] = []
    for number, line in enumerate(text_lines(text), 1):
        if not line.strip() or line.startswith("\\"):
            continue
        found = _LABEL_LINE.fullmatch(line)
        if found is None:
            message = f"{line!r:.80} (expected: start, end and text, separated by tabs)"
            problems.append(SourceProblem("subtitle-time", message, name, number))
        elif not (found[3] or "").strip():
            problems.append(SourceProblem("subtitle-empty", f"no text: {line.strip()!r:.80}", name, number))
        else:
            start, end = (float(found[at].replace(",", ".")) for at in (1, 2))
            said = found[3].strip()
            cues.append(Cue(start, end, said, number, number, original_text=said))
    return cues, problems


def is_label_track(path: Path) -> bool:
    """Whether a text file is a label track of Audacity, by its first line."""
    if path.suffix.lower() != ".txt":
        return False
    try:
        with path.open("rb") as stream:
            first = stream.readline(200)
    except OSError:
        return False
    return bool(_LABEL_LINE.match(first.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").rstrip("\r\n")))


SUNG = "sung"
TWO_VOICES = "two-voices"
# A name before a colon that begins this many cues of a file, and this share of them, is a speaker.
MIN_SPEAKER_LABEL_COUNT = 3
MIN_SPEAKER_LABEL_SHARE = 0.04

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


@cache
def _caption_words_by_language() -> dict[str, Any]:
    """Sound words and roles by language, and words that are no speakers."""
    return tomllib.loads(Path(__file__).with_name("caption_words.toml").read_text(encoding="utf-8"))


def clean_cues(cues: Sequence[Cue], language: str, name: str) -> tuple[list[Cue], list[SourceProblem]]:
    """The cues with only what is spoken, and a problem for each in which nothing is."""
    known = _caption_words_by_language()
    # Captions of every language use English sound words and roles too.
    own_words = [known.get(own, {}) for own in ("en", base_language(language))]
    sounds = {word for own in own_words for word in own.get("sounds", ())}
    names = {label.lower() for own in own_words for label in own.get("roles", ())}
    seen: Counter[str] = Counter()
    for cue in cues:
        lines = _strip_markup(cue.text).split("\n")
        seen.update({label for line in lines if (label := _find_speaker_label(_LEADING_DASH.sub("", line)))})
    least = max(MIN_SPEAKER_LABEL_COUNT, MIN_SPEAKER_LABEL_SHARE * len(cues))
    names |= {label.lower() for label, times in seen.items() if times >= least} - {*known["no_speakers"]}

    def replace_square_bracket(found: re.Match[str]) -> str:
        """Text in square brackets is never spoken, but before a colon it may name the speaker."""
        inside = found.group()[1:-1].strip()
        if inside.removeprefix("/").lower() in closing_codes(found.string):
            return found.group()  # a span of another language
        named = _COLON_AFTER_BRACKET.match(found.string[found.end() :])
        return inside if named and len(inside.split()) <= MAX_LABEL_WORDS else " "

    def remove_sound_description(found: re.Match[str]) -> str:
        inside = found.group()[1:-1]
        words = {word.lower() for word in regex.findall(r"[\p{L}\p{M}']+", inside)}
        line = found.string[found.string.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
        alone = not _LETTER_OR_DIGIT.search(line.replace(found.group(), ""))
        return " " if alone or words & sounds or not words or inside.isupper() else found.group()

    kept: list[Cue] = []
    problems: list[SourceProblem] = []
    for cue in cues:
        speakers = [label.strip() for label in _VOICE_TAG.findall(cue.text)]
        text = _strip_markup(cue.text)
        marks = {SUNG} if _MUSIC_NOTES.search(text) else set()
        text = _MUSIC_NOTES.sub(" ", text)
        text = _ASTERISK_TEXT.sub(" ", _SQUARE_BRACKETS.sub(replace_square_bracket, text))
        text = _ROUND_BRACKETS.sub(remove_sound_description, text)
        parts, turns = [], 0
        for line in text.split("\n"):
            bare = _LEADING_DASH.sub("", line, count=1)
            turns += bare != line  # a dash begins a turn
            label = _find_speaker_label(bare)
            if label and (_ALL_CAPS.match(label) or label.lower() in names):
                speakers.append(label)
                bare = _SPEAKER_LABEL.sub("", bare, count=1)
            if _LETTER_OR_DIGIT.search(bare):
                parts.append(bare.strip())
        if len(set(speakers)) > 1 or turns > 1:
            marks.add(TWO_VOICES)
        said = _WHITESPACE.sub(" ", " ".join(parts)).strip()
        if said:
            speaker = speakers[0] if speakers else cue.speaker
            kept.append(replace(cue, text=said, speaker=speaker, marks=(*cue.marks, *sorted(marks))))
        else:
            problems.append(
                SourceProblem("subtitle-nothing-said", f"not speech: {cue.text!r:.120}", name, cue.line, cue.last_line)
            )
    return kept, problems


def _strip_markup(text: str) -> str:
    """Text without markup, entities and bidirectional controls; line breaks stay."""
    text = _ASS_OVERRIDE.sub("", _MARKUP_TAG.sub("", text))
    return _BIDI_MARKS.sub("", html.unescape(text)).replace("\xa0", " ")


def _find_speaker_label(line: str) -> str:
    """The name before a colon. With a second ፡ in the line it is the old Ethiopic word separator, not a colon."""
    found = _SPEAKER_LABEL.match(line) if len(_ETHIOPIC_WORDSPACE.findall(line)) < 2 else None
    name = found["name"].strip() if found else ""
    return name if len(name.split()) <= MAX_LABEL_WORDS else ""


# Rolling captions follow each other at once.
MAX_CAPTION_GAP_SECONDS = 0.35
# Shorter than any speech: an intermediate state between two captions.
MIN_CAPTION_SECONDS = 0.1
# Share and number of captions that must repeat the one before: people repeat themselves too.
MIN_ROLLING_SHARE, MIN_ROLLING_COUNT = 0.25, 3
MIN_REPEATED_SHARE = 0.4
# A caption may repeat the one before the last: sloppy times can change their order.
CAPTION_LOOKBACK = 2
MIN_TIME_OVERLAP_SHARE = 0.5
# This many equal words in captions that overlap in time are no coincidence.
MIN_REPEATED_WORDS = 3
_NON_WORD_CHARACTERS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
_CAPTION_MARKUP = re.compile(r"<[^<>\n]{0,200}>|\{[^{}\n]{0,200}\}")


def dedupe_rolling_captions(cues: Sequence[Cue], name: str) -> tuple[list[Cue], list[SourceProblem]]:
    """The cues with only what is new in each, and a problem for each with nothing new."""
    # Captions are rolling if a good share begins with all of the one before, or with a good part of its end.
    close = again = 0
    for one, two in pairwise(cues):
        if two.start - one.end > MAX_CAPTION_GAP_SECONDS:
            continue
        close += 1
        before, now = _caption_words(one.text), _caption_words(two.text)
        overlap = _word_overlap(before, now)
        is_most = overlap == len(before) or (overlap > 1 and overlap >= MIN_REPEATED_SHARE * len(before))
        again += bool(overlap) and before != now and is_most
    rolling = again >= max(MIN_ROLLING_COUNT, MIN_ROLLING_SHARE * close)
    kept: list[Cue] = []
    problems: list[SourceProblem] = []
    shown: deque[Cue] = deque(maxlen=CAPTION_LOOKBACK)
    for place, cue in enumerate(cues):
        beside = [*shown, *cues[place + 1 : place + 2]]
        # An intermediate state between two captions: shorter than any speech, with words that a neighbour has too.
        flash = cue.end - cue.start < MIN_CAPTION_SECONDS and any(
            cue.start - other.end <= MAX_CAPTION_GAP_SECONDS
            and other.start - cue.end <= MAX_CAPTION_GAP_SECONDS
            and f" {' '.join(_caption_words(cue.text))} " in f" {' '.join(_caption_words(other.text))} "
            for other in beside
        )
        words = cue.text.split()
        shared = max((_count_repeated_words(other, cue, rolling=rolling) for other in shown), default=0)
        new = words[shared:]
        if flash or not any(_plain_word(word) for word in new):
            problems.append(
                SourceProblem(
                    "subtitle-repeats",
                    f"the same text as the previous subtitle: {cue.text!r:.120}",
                    name,
                    cue.line,
                    cue.last_line,
                )
            )
            if kept and rolling and not flash:
                kept[-1] = replace(kept[-1], end=max(kept[-1].end, cue.end))
            continue
        if shared and kept:
            kept[-1] = replace(kept[-1], end=min(kept[-1].end, max(cue.start, kept[-1].start + MIN_CAPTION_SECONDS)))
        kept.append(replace(cue, text=" ".join(new)))
        shown.append(cue)
    return kept, problems


def _count_repeated_words(shown: Cue, cue: Cue, *, rolling: bool) -> int:
    """How many words at the beginning were shown before."""
    if cue.start - shown.end > MAX_CAPTION_GAP_SECONDS:
        return 0
    before, now = _caption_words(shown.text), _caption_words(cue.text)
    shared = _word_overlap(before, now)
    if rolling:
        return shared
    # A person who repeats something says it afterwards; a caption that is shown twice overlaps in time.
    shorter = min(shown.end - shown.start, cue.end - cue.start)
    together = min(shown.end, cue.end) - cue.start > MIN_TIME_OVERLAP_SHARE * shorter
    return shared if together and (shared >= MIN_REPEATED_WORDS or before == now) else 0


def _caption_words(text: str) -> list[str]:
    return [_plain_word(word) for word in _CAPTION_MARKUP.sub("", text).split()]


def _plain_word(word: str) -> str:
    """A word without punctuation and case: rolling captions may change both. Can be empty, so that positions agree."""
    return _NON_WORD_CHARACTERS.sub("", word).lower()


def _word_overlap(before: Sequence[str], now: Sequence[str]) -> int:
    """The largest number of words that end the one and begin the other."""
    for size in range(min(len(before), len(now)), 0, -1):
        if before[-size:] == now[:size]:
            return size if any(now[:size]) else 0
    return 0
