"""What is said, out of what captions show: no tags, sound descriptions or music notes; names before a colon apart.

Works on a whole file, since a name that stands before a colon again and again is a speaker. Normalises nothing.
"""

from __future__ import annotations

import html
import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import regex

from voxgraft.data.manifest import SourceProblem
from voxgraft.data.subtitles import Cue

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
