"""XTTS's text steps: cleaning per language, the language tag, and `[SPACE]` for spaces.

The vocabulary was trained on their result, so everything that they do is kept, also what reads oddly: capitals of
German number words, `1.000.000` as "one.zero" in English, ordinals after `%` in Turkish. Numbers are read by num2words,
as in the original. Where it cannot read one (digits in Hindi, ordinals in Czech), the original program ends with an
exception, and here the text is refused. Text of other languages is put in lower case, and nothing else.

In Chinese the program replaces the first place where the digits of a match occur, which need not be the match itself,
and takes what was replaced already for text. Both are kept, too.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from voxgraft.core.errors import ConfigError, TextError, VoxgraftError
from voxgraft.text import TextFrontend

LANGUAGES = tuple("en es fr de it pt pl tr ru nl cs ar zh hu ko ja hi".split())
SPACE_TOKEN = "[SPACE]"
# All others have the code as their tag.
_TAG_NAMES = {"zh": "zh-cn"}

# Written with a full stop, except in Russian. Applied one after the other, in this order.
_ABBREVIATIONS = {
    "en": "mrs misess,mr mister,dr doctor,st saint,co company,jr junior,maj major,gen general,drs doctors,rev reverend,"
    "lt lieutenant,hon honorable,sgt sergeant,capt captain,esq esquire,ltd limited,col colonel,ft fort",
    "es": "sra señora,sr señor,dr doctor,dra doctora,st santo,co compañía,jr junior,ltd limitada",
    "fr": "mme madame,mr monsieur,dr docteur,st saint,co compagnie,jr junior,ltd limitée",
    "de": "fr frau,dr doktor,st sankt,co firma,jr junior",
    "pt": "sra senhora,sr senhor,dr doutor,dra doutora,st santo,co companhia,jr júnior,ltd limitada",
    "it": "sig signore,dr dottore,st santo,co compagnia,jr junior,ltd limitata",
    "pl": "p pani,m pan,dr doktor,sw święty,jr junior",
    "cs": "dr doktor,ing inženýr,p pan",
    "ru": "г-жа госпожа,г-н господин,д-р доктор",
    "nl": "dhr de heer,mevr mevrouw,dr dokter,jhr jonkheer",
    "tr": "b bay,byk büyük,dr doktor",
    "hu": "dr doktor,b bácsi,nőv nővér",
}

_SYMBOLS = "&@%#$£°"
_SYMBOL_WORDS = {
    "en": "and|at|percent|hash|dollar|pound|degree",
    "es": "y|arroba|por ciento|numeral|dolar|libra|grados",
    "fr": "et|arobase|pour cent|dièse|dollar|livre|degrés",
    "de": "und|at|prozent|raute|dollar|pfund|grad",
    "pt": "e|arroba|por cento|cardinal|dólar|libra|graus",
    "it": "e|chiocciola|per cento|cancelletto|dollaro|sterlina|gradi",
    "pl": "i|małpa|procent|krzyżyk|dolar|funt|stopnie",
    "ar": "و|على|في المئة|رقم|دولار|جنيه|درجة",
    "zh": "和|在|百分之|号|美元|英镑|度",
    "cs": "a|na|procento|křížek|dolar|libra|stupně",
    "ru": "и|собака|процентов|номер|доллар|фунт|градус",
    "nl": "en|bij|procent|hekje|dollar|pond|graden",
    "tr": "ve|at|yüzde|diyez|dolar|sterlin|derece",
    "hu": "és|kukac|százalék|kettőskereszt|dollár|font|fok",
    "ko": "그리고|에|퍼센트|번호|달러|파운드|도",
    "hi": "और|ऐट दी रेट|प्रतिशत|हैश|डॉलर|पाउंड|डिग्री",
}

# What makes an ordinal of the digits before it; Turkish and Hungarian take a full stop anywhere, decimals too.
_ORDINAL_ENDINGS = {
    "en": "st|nd|rd|th",
    "es": "º|ª|er|o|a|os|as",
    "fr": "º|ª|er|re|e|ème",
    "de": r"st|nd|rd|th|º|ª|\.(?=\s|$)",
    "pt": "º|ª|o|a|os|as",
    "it": "º|°|ª|o|a|i|e",
    "pl": "º|ª|st|nd|rd|th",
    "ar": "ون|ين|ث|ر|ى",
    "cs": r"\.(?=\s|$)",
    "ru": "-й|-я|-е|-ое|-ье|-го",
    "nl": "de|ste|e",
    "tr": r"\.|inci|nci|uncu|üncü",
    "hu": r"\.|adik|edik|odik|ödik|ödike|ik",
    "ko": "번째|번|차|째",
    "hi": "st|nd|rd|th",
}
_CURRENCIES = (("GBP", "£"), ("USD", r"\$"), ("EUR", "€"))
# Between the whole amount and the cents in num2words' reading; cut off with the cents where there are none.
_BEFORE_CENTS = {"es": " con ", "fr": " et ", "de": " und ", "pt": " e ", "it": " e "}
_GROUPED_BY_COMMA = re.compile(r"\b\d{1,3}(,\d{3})*(\.\d+)?\b")
_GROUPED_BY_DOT = re.compile(r"\b\d{1,3}(.\d{3})*(,\d+)?\b")  # any character groups, and only dots are removed
# Numbers are looked for from their first character on only: tried from every digit, a long one would take hours.
_NUMBER_START, _DIGITS_START = "(?<![0-9.,])", "(?<![0-9])"
_DECIMAL = re.compile(_DIGITS_START + r"[0-9]+[.,][0-9]+")
_INTEGER = re.compile(r"[0-9]+")
_TAG = re.compile(r"\[([a-z]{2,3}(?:-[a-z0-9]+)*)\]")
_SPACES = re.compile(r"\s+")

# What num2words raises for numbers and languages that it cannot read.
_NUM2WORDS_ERRORS = (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)

_FIRST_SYLLABLE, _LAST_SYLLABLE = "가", "힣"
_INITIALS = [*"g kk n d tt l m b pp s ss".split(), "", *"j jj ch k t p h".split()]
_VOWELS = "a ae ya yae eo e yeo ye o wa wae oe yo u wo we wi yu eu ui i".split()
_FINALS = ["", *"g kk gs n nj nh d l lg lm lb ls lt lp lh m b bs s ss ng j ch k t p h".split()]


def find_language(language: str | None) -> str | None:
    """The one of the original's languages that a code means, `en-US` like `en`; None for all others."""
    code = (language or "").lower().partition("-")[0]
    return code if code in LANGUAGES else None


def language_tag(language: str) -> str:
    """`[zh-cn]` for Chinese, `[en]` for `en-US`, and `[am]` for a new language."""
    code = find_language(language)
    return f"[{_TAG_NAMES.get(code, code) if code else language.lower()}]"


def list_tagged_languages(tokenizer: Path) -> tuple[str, ...]:
    """Codes whose tags a vocabulary has, such as those of languages that others added."""
    from voxgraft.tokenizers import open_tokenizer

    with suppress(VoxgraftError):  # a file that cannot be opened is reported by whoever uses it
        return tuple(found[1] for found in map(_TAG.fullmatch, open_tokenizer(tokenizer).ids) if found)
    return ()


class XTTSTextFrontend(TextFrontend):
    """The original's tokenizer up to its vocabulary. `others`: codes of more languages that the vocabulary has."""

    def __init__(self, others: Collection[str] = ()) -> None:
        self._others = frozenset(map(str.lower, others))

    def clean(self, text: str) -> str:
        """What the program does to text that is to be spoken, before anything depends on the language."""
        return text.strip().lower()

    def prepare(self, text: str, language: str | None) -> str:
        code = find_language(language)
        if language and code is None and language.lower() not in self._others:
            found = f"XTTS has no text rules for the language {language!r}"
            raise TextError("text-unread", found, expected=f"one of {', '.join(LANGUAGES)}, or that of a graft")
        tag = language_tag(language) if language else ""
        return (tag + (clean_text(text, code) if code else _clean_other(text))).replace(" ", SPACE_TOKEN)

    def prepare_part(self, text: str, language: str | None, *, is_first: bool, is_last: bool) -> str:  # noqa: ARG002 (ends are like middles)
        code = find_language(language)
        cleaned = self.clean(text)
        return (clean_text(cleaned, code) if code else _clean_other(cleaned)).replace(" ", SPACE_TOKEN)


def _clean_other(text: str) -> str:
    """Text of a language that the original does not have: its own rules have read the numbers already."""
    return _SPACES.sub(" ", text.lower())


def clean_text(text: str, language: str) -> str:
    """Text of one of the original's languages as its vocabulary spells it, before the tag."""
    if language == "ja":
        return _romanize_japanese(text)
    text = text.replace('"', "")
    if language == "tr":
        text = text.replace("İ", "i")  # in lower case it would get a dot of its own
    text = text.lower()
    try:
        text = spell_chinese_numbers(text) if language == "zh" else spell_numbers(text, language)
    except RecursionError:  # a quantity of tens of thousands of digits
        found = f"a number in a text of {len(text):,} characters has too many digits"
        raise TextError("text-unread", found, expected="numbers in words") from None
    for pattern, word in _compile_abbreviations(language):
        text = pattern.sub(word, text)
    for symbol, word in zip(_SYMBOLS, _SYMBOL_WORDS[language].split("|"), strict=True):
        text = text.replace(symbol, f" {word} ")
    text = _SPACES.sub(" ", text).strip()
    if language == "zh":
        return convert_to_pinyin(text)
    return romanize_korean(text) if language == "ko" else text


@cache
def _compile_abbreviations(language: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    end = r"\b" if language == "ru" else r"\."
    pairs = (entry.split(" ", 1) for entry in _ABBREVIATIONS.get(language, "").split(",") if entry)
    return tuple((re.compile(rf"\b{short}{end}", re.IGNORECASE), word) for short, word in pairs)


def spell_numbers(text: str, language: str) -> str:
    """Amounts, decimals, ordinals and whole numbers as words, in this order."""
    grouped, sign = (_GROUPED_BY_COMMA, ",") if language in ("en", "ru") else (_GROUPED_BY_DOT, ".")
    text = grouped.sub(lambda found: found[0].replace(sign, ""), text)
    try:
        for currency, symbol in _CURRENCIES:
            amounts = [rf"{symbol}[0-9.,]*[0-9]", rf"{_NUMBER_START}[0-9.,]*[0-9]{symbol}"]
            amount = "|".join(reversed(amounts) if currency == "EUR" else amounts)
            text = re.sub(amount, lambda found, currency=currency: _read_amount(found[0], language, currency), text)  # type: ignore[misc]
    except _NUM2WORDS_ERRORS:  # the original continues without this currency and those after it
        pass
    if language != "tr":
        text = _DECIMAL.sub(lambda found: _read_number(found[0], language, found[0].replace(",", ".")), text)
    ordinal = rf"{_DIGITS_START}([0-9]+)({_ORDINAL_ENDINGS[language]})"
    text = re.sub(ordinal, lambda found: _read_number(found[0], language, found[1], ordinal=True), text)
    return _INTEGER.sub(lambda found: _read_number(found[0], language, found[0]), text)


def _read_amount(amount: str, language: str, currency: str) -> str:
    value = float(re.sub(r"[^\d.]", "", amount.replace(",", ".")))
    words: str = _num2words(value, language, to="currency", currency=currency)
    if value.is_integer() and (cents := words.rfind(_BEFORE_CENTS.get(language, ", "))) != -1:
        words = words[:cents]
    return words


def _read_number(written: str, language: str, number: str, *, ordinal: bool = False) -> str:
    try:  # Python itself refuses whole numbers of thousands of digits
        return _num2words(float(number) if "." in number else int(number), language, ordinal=ordinal)
    except _NUM2WORDS_ERRORS as error:
        kind = "the ordinal" if ordinal else "the number"
        found = f"num2words cannot read {kind} {written[:40]!r} in {language!r} ({type(error).__name__})"
        raise TextError("text-unread", found, expected="numbers in words") from None


def _num2words(value: float, language: str, **options: Any) -> str:
    # Imported on use: a base that only trains needs no number words.
    return str(import_module("num2words").num2words(value, lang=language, **options))


def romanize_korean(text: str) -> str:
    """Letter by letter, with a hyphen between syllables that could be divided otherwise: `geos-eul`."""
    written, final = [], None
    for character in text:
        if not _FIRST_SYLLABLE <= character <= _LAST_SYLLABLE:
            written.append(character)
            final = None
            continue
        number = ord(character) - ord(_FIRST_SYLLABLE)
        initial, vowel = _INITIALS[number // 588], _VOWELS[number % 588 // 28]
        hyphen = "-" if final is not None and _needs_hyphen(final, initial) else ""
        final = _FINALS[number % 28]
        written.append(hyphen + initial + vowel + final)
    return "".join(written)


@cache
def _needs_hyphen(final: str, initial: str) -> bool:
    """Whether the letters between two vowels could also be another final consonant and another initial one."""
    letters = final + initial
    splits = [(letters[:place], letters[place:]) for place in range(len(letters))]
    others = [pair for pair in splits if pair[0] in _FINALS and pair[1] in _INITIALS and pair != (final, initial)]
    return not initial or bool(others)


@lru_cache(maxsize=1 << 12)  # a tokenizer's proof reads the same sentences again, and reading them is slow
def _romanize_japanese(text: str) -> str:
    return str(_load_cutlet().romaji(text)).lower()


@cache
def _load_cutlet() -> Any:
    # Once: it loads a dictionary.
    return _import_package("cutlet", "{name} is not installed: XTTS reads Japanese in Latin letters").Cutlet()


def _import_package(package: str, why: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:  # of the package, or of one that it needs
        found = why.format(name=error.name)
        raise ConfigError("package-missing", found, cure="pip install 'voxgraft[languages]'.") from None


_CHINESE_DIGITS = "零一二三四五六七八九"
_SMALL_UNITS = "十百千万"  # powers 1 to 4
_LARGE_UNITS = "亿兆京垓秭穰沟涧正载"  # powers 8, 12, 16 ...
_UNITS = {unit: power for power, unit in enumerate(_SMALL_UNITS, 1)} | {
    unit: 4 * number for number, unit in enumerate(_LARGE_UNITS, 2)
}

# Counters after which a number is a quantity and never read digit by digit.
_COUNTERS = (
    "匹张座回场尾条个首阙阵网炮顶丘棵只支袭辆挑担颗壳窠曲墙群腔砣客贯扎捆刀令打手罗坡山岭江溪钟队单双对出口头脚板跳枝件贴针线管"
    "名位身堂课本页家户层丝毫厘分钱两斤铢石钧锱忽寸尺丈里寻常铺程撮勺合升斗盘碗碟叠桶笼盆盒杯斛锅簋篮罐瓶壶卮盏箩箱煲啖袋钵"
    "年月日季刻时周天秒旬纪岁世更夜春夏秋冬代伏辈丸泡粒幢堆根道面片块"
)
_CURRENCY = "(?:亿|千万|百万|[万千百元块角毛分])"

# Each number is looked for from its first digit on only: tried from every digit, a long one would take minutes.
_CHINESE_NUMBER_START = r"(?<!\d)"
_DATE = re.compile(r"\D+((?:(?:[089]\d|(?:19|20)\d{2})年)?(?:\d{1,2}月(?:\d{1,2}[日号])?)?)")
_MONEY = re.compile(rf"\D(\d+(?:\.\d+)?[多余几]?{_CURRENCY}(?:\d{_CURRENCY}?)?)")
_MOBILE_PHONE = re.compile(r"\D((?:\+?86 ?)?1(?:[38]\d|5[0-35-9]|7[678]|9[89])\d{8})\D")
_LANDLINE = re.compile(r"\D((?:0(?:10|2[1-3]|[3-9]\d{2})-?)?[1-9]\d{6,7})\D")
_FRACTION = re.compile(_CHINESE_NUMBER_START + r"\d+/\d+")
_PERCENTAGE = re.compile(_CHINESE_NUMBER_START + r"\d+(?:\.\d+)?%")
_QUANTITY = re.compile(rf"{_CHINESE_NUMBER_START}(\d+(?:\.\d+)?)[多余几]?(?:[{_COUNTERS}]|[千微][克米])")
_LONG_NUMBER = re.compile(r"\d{4,32}")
_CHINESE_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TWO_IN_LATIN = re.compile(r"([a-zA-Z]+)二([a-zA-Z]+)")  # B2B

# All marks become a comma: first and last of each range.
_MARKS = "！－ ／／ ：＠ ［｀ ｛､ 、〃 〈】 〔〟 〰〰 〾〿 –— ‘’ ‛‟ …‧ ﹏﹏ ··".split()
_CHINESE_MARKS = dict.fromkeys(map(ord, string.punctuation), ",") | {
    code: "," for ends in _MARKS for code in range(ord(ends[0]), ord(ends[1]) + 1)
}


def spell_chinese_numbers(text: str) -> str:
    """Numbers as words and marks as commas."""
    # Some patterns need a character that is not a digit on both sides.
    text = f"^{text}$"
    text = _replace_each(_DATE, text, _read_chinese_date)
    text = _replace_each(_MONEY, text, _read_chinese_amount)
    for phone in (_MOBILE_PHONE, _LANDLINE):
        text = _replace_each(phone, text, lambda found: _read_chinese_digits(re.sub(r"[-+\s]", "", found)))
    text = _replace_each(_FRACTION, text, _read_chinese_fraction)
    text = text.replace("％", "%")
    text = _replace_each(_PERCENTAGE, text, lambda found: "百分之" + read_chinese_number(found.strip("%")))
    text = _replace_each(_QUANTITY, text, read_chinese_number)
    text = _replace_each(_LONG_NUMBER, text, _read_chinese_digits)
    text = _replace_each(_CHINESE_NUMBER, text, read_chinese_number)
    for latin in _TWO_IN_LATIN.finditer(text):
        text = text.replace(latin[0], f"{latin[1]}2{latin[2]}", 1)
    return text.lstrip("^").rstrip("$").translate(_CHINESE_MARKS)


def convert_to_pinyin(text: str) -> str:
    """Han characters as syllables with their tone as a digit, without spaces; all else as it is."""
    pypinyin = _import_package("pypinyin", "{name} is not installed: XTTS reads Chinese as pinyin")
    style = pypinyin.Style.TONE3
    syllables = pypinyin.pinyin(text, style=style, heteronym=False, neutral_tone_with_five=True)
    return "".join(readings[0] for readings in syllables)


def read_chinese_number(number: str) -> str:
    """`12.5` as 十二点五."""
    whole, _, decimals = number.partition(".")
    symbols = _read_chinese_units(whole) if len(whole) > 1 else [_chinese_digit(one) for one in whole]
    if decimals:
        symbols += ["点", *map(_chinese_digit, decimals)]
    # 两 before a unit other than ten, unless a ten is before it.
    for place, symbol in enumerate(symbols[:-1]):
        before = symbols[place - 1] if place else None
        follows = symbols[place + 1]
        if symbol == "二" and follows in _UNITS and follows != "十" and (before is None or before in _UNITS):
            symbols[place] = "二" if before == "十" else "两"
    read = "".join(symbols)
    if read.startswith("点"):  # the whole part was all zeros
        return "零" + read
    return read[1:] if read.startswith("一十") else read


def _replace_each(pattern: re.Pattern[str], text: str, read: Callable[[str], str]) -> str:
    """The first place of each match's text, one after the other."""
    for found in pattern.findall(text):
        text = text.replace(found, read(found), 1)
    return text


def _chinese_digit(character: str) -> str:
    return _CHINESE_DIGITS[int(character)]  # also full-width digits and those of other scripts


def _read_chinese_digits(number: str) -> str:
    return "".join(map(_chinese_digit, number))


def _read_chinese_units(number: str) -> list[str]:
    rest = number.lstrip("0")
    if not rest:
        return []
    if len(rest) == 1:
        return ["零", _chinese_digit(rest)] if len(rest) != len(number) else [_chinese_digit(rest)]
    unit, power = max(((unit, power) for unit, power in _UNITS.items() if power < len(rest)), key=lambda pair: pair[1])
    return [*_read_chinese_units(number[:-power]), unit, *_read_chinese_units(rest[-power:])]


def _read_chinese_date(date: str) -> str:
    year, is_year, rest = date.partition("年")
    if not is_year:
        year, rest = "", date
    month, is_month, day = rest.partition("月")
    read = _read_chinese_digits(year) + is_year
    if is_month:
        read += read_chinese_number(month) + is_month
        if day:
            read += read_chinese_number(day[:-1]) + day[-1]
    return read


def _read_chinese_amount(amount: str) -> str:
    for number in _CHINESE_NUMBER.findall(amount):
        amount = amount.replace(number, read_chinese_number(number))
    return amount


def _read_chinese_fraction(fraction: str) -> str:
    numerator, _, denominator = fraction.partition("/")
    return f"{read_chinese_number(denominator)}分之{read_chinese_number(numerator)}"
