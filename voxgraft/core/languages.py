"""What is known about languages and scripts without a model: codes, English names, scripts, kinds of characters.

Names and letters come from CLDR (`assets/exemplars.json`). No torch here.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import regex

from voxgraft.core.errors import CATALOGUE, Finding, finding
from voxgraft.core.files import parse_json

# Share of letters that a mistyped name must have in common: Amharik is Amharic, but an unknown language is none.
_MIN_SIMILARITY = 0.8


def find_language_code(word: str) -> str | None:
    """The code of a language by its English name, also a slightly mistyped one; None if the word names no language."""
    # Of several codes with one name the shortest wins: it comes last.
    codes = sorted(_exemplar_table(), key=lambda code: (-len(code), code))
    known = {str(_exemplar_table()[code]["name"]).lower(): code for code in codes}
    wanted = word.strip().lower()
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=_MIN_SIMILARITY)
    return known.get(wanted) or (known[near[0]] if near else None)


def suggest_language_code(word: str, flag: str) -> str:
    """A question for users who typed a language's name in place of its code; empty if the word names no language."""
    code = find_language_code(word)
    if code is None:
        return ""
    return f"{code} is the code for {_exemplar_table()[code]['name']}: did you mean {flag} {code}?"


# Two letters, then the three letters of the same language (ISO 639-1 and 639-2, both forms).
_ISO_639_1_CODES = """aa aar|ab abk|ae ave|af afr|ak aka|am amh|an arg|ar ara|as asm|av ava|ay aym|az aze|ba bak
be bel|bg bul
bi bis|bm bam|bn ben|bo bod tib|br bre|bs bos|ca cat|ce che|ch cha|co cos|cr cre|cs ces cze|cu chu|cv chv|cy cym wel
da dan|de deu ger|dv div|dz dzo|ee ewe|el ell gre|en eng|eo epo|es spa|et est|eu eus baq|fa fas per|ff ful|fi fin|fj fij
fo fao|fr fra fre|fy fry|ga gle|gd gla|gl glg|gn grn|gu guj|gv glv|ha hau|he heb iw|hi hin|ho hmo|hr hrv|ht hat
hu hun|hy hye arm|hz her|ia ina|id ind in|ie ile|ig ibo|ii iii|ik ipk|io ido|is isl ice|it ita|iu iku|ja jpn|jv jav
ka kat geo|kg kon|ki kik|kj kua|kk kaz|kl kal|km khm|kn kan|ko kor|kr kau|ks kas|ku kur|kv kom|kw cor|ky kir|la lat
lb ltz|lg lug|li lim|ln lin|lo lao|lt lit|lu lub|lv lav|mg mlg|mh mah|mi mri mao|mk mkd mac|ml mal|mn mon|mr mar
ms msa may|mt mlt|my mya bur|na nau|nb nob|nd nde|ne nep|ng ndo|nl nld dut|nn nno|no nor|nr nbl|nv nav|ny nya|oc oci
oj oji|om orm|or ori|os oss|pa pan|pi pli|pl pol|ps pus|pt por|qu que|rm roh|rn run|ro ron rum|ru rus|rw kin|sa san
sc srd|sd snd|se sme|sg sag|si sin|sk slk slo|sl slv|sm smo|sn sna|so som|sq sqi alb|sr srp|ss ssw|st sot|su sun
sv swe|sw swa|ta tam|te tel|tg tgk|th tha|ti tir|tk tuk|tl tgl|tn tsn|to ton|tr tur|ts tso|tt tat|tw twi|ty tah
ug uig|uk ukr|ur urd|uz uzb|ve ven|vi vie|vo vol|wa wln|wo wol|xh xho|yi yid|yo yor|za zha|zh zho chi cmn|zu zul"""
_ISO_639_3_CODES = "ast byn ceb fil gez gsw haw hmn ilo kab kam kmr ckb luo mai mni nds nso pap sat sid tig umb wal yue"
_CANONICAL_CODES = {
    code: codes.split()[0] for codes in _ISO_639_1_CODES.replace("\n", "|").split("|") for code in codes.split()
}
_CANONICAL_CODES |= {code: code for code in _ISO_639_3_CODES.split()}


# Country codes (ISO 3166-1) that people give in place of a language's code, with the language that is likely meant.
_COUNTRY_LANGUAGES = dict(
    pair.split("-")
    for pair in (
        "ad-ca ae-ar al-sq at-de au-en bd-bn bt-dz by-be cd-fr cl-es cn-zh cz-cs dj-so dk-da dz-ar eg-ar er-ti ge-ka "
        "gb-en gh-ak gr-el hk-yue iq-ar ir-fa jo-ar jp-ja ke-sw kp-ko kr-ko kw-ar kz-kk lk-si ly-ar ma-ar me-sr mx-es "
        "np-ne nz-en pe-es ph-fil pk-ur rs-sr sy-ar td-ar tj-tg tm-tk tz-sw ua-uk us-en vn-vi ye-ar zw-sn"
    ).split()
)


def suggest_for_country(code: str) -> str:
    """A fix for users who gave the code of a country; empty where no language is known for it."""
    language = _COUNTRY_LANGUAGES.get(base_language(code))
    entry = find_exemplar(language) if language else None
    if entry is None:
        return ""
    use = f"use it (--language {language}, or `language` in run.yaml)"
    if is_language_code(code):
        return f"{CATALOGUE['language-unlisted'].cure} If you mean {entry.name}, its code is `{language}`: {use}."
    return f"`{code}` is the code of a country. The code of {entry.name} is `{language}`: {use}."


def base_language(code: str) -> str:
    """The code without script and region, in lower case: `am` for `am`, `am-ET` and `am_ET`."""
    return code.lower().replace("_", "-").partition("-")[0]


def canonical_language_code(word: str) -> str | None:
    """The shortest code of the language that a word is a code of, without its region; None if it is none."""
    return _CANONICAL_CODES.get(base_language(word))


def is_language_code(code: str) -> bool:
    """Whether some language has this code."""
    return canonical_language_code(code) is not None or find_exemplar(code) is not None


# Characters of these belong to no script: digits, general punctuation, symbols, combining accents.
SHARED_SCRIPTS = frozenset({"Common", "Inherited"})
# Zero-width joiners and non-joiners are inside words in several scripts.
JOINERS = frozenset("\u200c\u200d")
# Joiners, and the zero-width space with which some scripts part their words.
ZERO_WIDTH = JOINERS | {"\u200b"}
_SCRIPT_NAMES = (
    "Adlam Arabic Armenian Balinese Bamum Bassa_Vah Batak Bengali Bopomofo Buginese Buhid Canadian_Aboriginal "
    "Chakma Cham Cherokee Coptic Cyrillic Deseret Devanagari Dogra Ethiopic Georgian Glagolitic Gothic Grantha "
    "Greek Gujarati Gunjala_Gondi Gurmukhi Han Hangul Hanifi_Rohingya Hanunoo Hebrew Hiragana Javanese Kaithi "
    "Kannada Katakana Kayah_Li Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Lisu Mahajani Makasar Malayalam "
    "Mandaic Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Miao Modi Mongolian Mro Multani Myanmar "
    "Nag_Mundari New_Tai_Lue Newa Nko Nyiakeng_Puachue_Hmong Ol_Chiki Old_Hungarian Oriya Osage Osmanya "
    "Pahawh_Hmong Pau_Cin_Hau Phags_Pa Rejang Runic Samaritan Saurashtra Sharada Shavian Sinhala Sora_Sompeng "
    "Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Telugu Thaana Thai "
    "Tibetan Tifinagh Tirhuta Toto Vai Vithkuqi Wancho Warang_Citi Yezidi Yi"
).split()


# Scripts in which a character is a syllable or more.
SYLLABIC_SCRIPTS = frozenset("Canadian_Aboriginal Cherokee Ethiopic Han Hangul Hiragana Katakana Vai Yi".split())
# Scripts in which a letter is a consonant with its vowel, and other vowels are marks: letters count like syllables.
ABUGIDA_SCRIPTS = frozenset(
    "Bengali Devanagari Gujarati Gurmukhi Kannada Khmer Malayalam Myanmar Oriya Sinhala Tamil Telugu".split()
)
# End of CJK extension H; behind it Unicode 15 has only tags and private use.
_LAST_CODE_POINT = 0x323AF
_SCRIPT_CODE_LENGTH = 4
# Of a script with more characters than this (Han has a hundred thousand) nobody needs all.
_MAX_WHOLE_SCRIPT = 20_000
# A script with this share of a text's letters gets pieces, whatever CLDR says of the language.
MIN_SCRIPT_SHARE = 0.1
# Letters that CLDR does not give a language, and that are rarer than this in its texts, are strays.
MAX_STRAY_SHARE = 0.001
# A script with this share is the language's own beyond doubt: that its letters have no piece is an error.
MIN_CERTAIN_SCRIPT_SHARE = 0.3
_GENERAL_PUNCTUATION = regex.compile(r"[\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Pd}\p{Terminal_Punctuation}\p{Quotation_Mark}…¡¿・]")
# Marks on symbols (a keycap, the emoji form of a heart), not on letters.
_NON_LETTER_MARK = regex.compile(r"[\p{Me}\uFE00-\uFE0F\U000E0100-\U000E01EF]")


@dataclass(frozen=True, slots=True)
class Exemplar:
    """What CLDR says of a language's writing."""

    name: str
    script: str
    letters: str
    punctuation: str
    auxiliary: str = ""
    """Letters of loanwords and older spelling; joiners among them."""
    numbers: str = ""


def find_exemplar(language: str) -> Exemplar | None:
    """CLDR's entry for a language code; None where CLDR has none. `am-ET` falls back to `am`, `sw-Arab` does not."""
    table = _exemplar_table()
    while language:
        if language in table:
            entry = table[language]
            return Exemplar(**{field: entry.get(field, "") for field in Exemplar.__slots__})
        language, _, last = language.rpartition("-")
        if len(last) == _SCRIPT_CODE_LENGTH:  # the same language in another script has other letters
            return None
    return None


# Encodings that programs on Windows wrote before UTF-8, by the script that they are for.
_ENCODING_BY_SCRIPT = {
    **{"Cyrillic": "windows-1251", "Greek": "windows-1253", "Hebrew": "windows-1255", "Arabic": "windows-1256"},
    **{"Thai": "cp874", "Han": "gb18030", "Hangul": "cp949"},
}
# Of Latin letters, the first that has all of them; then languages whose letters none of these has as CLDR lists them.
_LATIN_ENCODINGS = ("windows-1252", "windows-1250", "windows-1254", "windows-1257")
_ENCODING_BY_LANGUAGE = {
    **{"ja": "shift_jis", "zh-Hant": "big5", "yue": "big5", "vi": "windows-1258"},
    **{"et": "windows-1257", "ro": "windows-1250", "az": "windows-1254"},
}


def suggest_encoding(language: str) -> str:
    """The most likely encoding of text that is not UTF-8; empty where the script never had one of its own."""
    exemplar = find_exemplar(language)
    if exemplar is None:
        return "windows-1252"
    script = next(iter(count_scripts(exemplar.letters)), "Latin")
    own = _ENCODING_BY_LANGUAGE.get(language) or _ENCODING_BY_LANGUAGE.get(base_language(language))
    if own and script in ("Han", "Latin"):  # not for `az-Cyrl`
        return own
    if script != "Latin":
        return _ENCODING_BY_SCRIPT.get(script, "")
    return next((name for name in _LATIN_ENCODINGS if _can_encode(exemplar.letters, name)), "windows-1252")


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def usual_language_code(language: str) -> str | None:
    """The code under which CLDR has a language, if it is another one: `am` for `amh`, `am-ET` for `amh-ET`."""
    code = None if find_exemplar(language) is not None else canonical_language_code(language)
    usual = f"{code}{language[len(base_language(language)) :]}"
    return usual if code is not None and find_exemplar(usual) is not None else None


def is_same_language(one: str, other: str) -> bool:
    """Whether two codes name one language: regions are left out, and `amh` is `am`."""
    codes = [base_language(usual_language_code(language) or language) for language in (one, other)]
    return codes[0] == codes[1]


def language_findings(language: str, where: Path | None = None) -> list[Finding]:
    """A warning about a code that CLDR does not have. What was made with such a code can still be used."""
    if find_exemplar(language) is not None:
        return []
    found, expected = f"`{language}` is not in CLDR (Unicode's language data), so its alphabet is unknown", ""
    if usual := usual_language_code(language):
        found, expected = f"`{language}` is another code for `{usual}`; only `{usual}` has an alphabet here", usual
    cure = suggest_for_country(language)
    return [finding("language-unlisted", found, expected=expected, where=where or "", cure=cure)]


@cache
def _exemplar_table() -> dict[str, dict[str, Any]]:
    text = resources.files("voxgraft").joinpath("assets/exemplars.json").read_text(encoding="utf-8")
    table = parse_json(text, "exemplars.json")
    return {code: entry for code, entry in table.items() if not code.startswith("_")}


@cache
def _script_patterns() -> dict[str, regex.Pattern[str]]:
    return {name: regex.compile(rf"\p{{Script={name}}}") for name in ("Inherited", "Common", *_SCRIPT_NAMES)}


@cache
def script_of(character: str) -> str:
    """Unicode's script of a character: `Ethiopic`, `Latin`, `Common` ... (`Other` for dead scripts)."""
    return next((name for name, pattern in _script_patterns().items() if pattern.match(character)), "Other")


@cache
def script_characters(script: str) -> tuple[str, ...]:
    """Every assigned character of a script, in code-point order (Ethiopic: 523). None of a script that is too large."""
    if script not in _SCRIPT_NAMES:
        return ()
    everything = "".join(chr(code) for code in range(0x80, _LAST_CODE_POINT) if not 0xD800 <= code <= 0xDFFF)
    found = tuple(_script_patterns()[script].findall(everything))
    return found if len(found) <= _MAX_WHOLE_SCRIPT else ()


def find_language_scripts(letters: str, seen: Mapping[str, int], share: float) -> tuple[str, ...]:
    """The scripts that a language is written in: those of CLDR's letters, and those with this share of its texts."""
    found = count_letters_by_script(seen)
    frequent = [script for script, count in found.most_common() if count >= share * found.total()]
    return tuple(dict.fromkeys([*count_scripts(letters), *frequent]))


def count_letters_by_script(seen: Mapping[str, int]) -> Counter[str]:
    """How many letters of each real script were seen."""
    found: Counter[str] = Counter()
    for character, count in seen.items():
        if is_letter(character) and script_of(character) not in SHARED_SCRIPTS:
            found[script_of(character)] += count
    return found


def is_script_letter(character: str, scripts: Iterable[str]) -> bool:
    """A letter or mark of one of the scripts, or one that all scripts share."""
    return is_letter(character) and script_of(character) in {*scripts, *SHARED_SCRIPTS}


def is_letter(character: str) -> bool:
    """Letters and the marks that belong to them."""
    return unicodedata.category(character)[0] in "LM" and not _NON_LETTER_MARK.match(character)


def is_punctuation(character: str) -> bool:
    """Marks of punctuation; not general symbols such as & or @, which Unicode counts among them."""
    if unicodedata.category(character)[0] != "P":
        return False
    return script_of(character) not in SHARED_SCRIPTS or bool(_GENERAL_PUNCTUATION.match(character))


def can_be_new_token(character: str) -> bool:
    """Whether a graft can give a character a token: a letter, punctuation or a script's own sign, no general symbol."""
    if is_letter(character) or is_punctuation(character) or character in ZERO_WIDTH:
        return True
    return script_of(character) not in (*SHARED_SCRIPTS, "Other") and not character.isspace()


def count_scripts(characters: Iterable[str]) -> dict[str, int]:
    """How many letters of each real script there are, most frequent first."""
    return dict(count_letters_by_script(Counter(characters)).most_common())


def printable_text(text: str) -> str:
    """Text for people: a mark at its start is given something to sit on."""
    return f"◌{text}" if text and unicodedata.category(text[0])[0] == "M" else text


def describe_character(character: str) -> str:
    """A character for people: itself, its code point, its Unicode name."""
    return f"{printable_text(character)} U+{ord(character):04X} {unicodedata.name(character, 'without a name')}"
