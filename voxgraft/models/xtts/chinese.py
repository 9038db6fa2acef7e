"""Numbers in Chinese text as words, as XTTS's own program writes them, and its pinyin.

The program replaces the first place where the digits of a match occur, which need not be the match itself; and it takes
what was replaced already for text. Both are kept, because its vocabulary was trained on the result.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from importlib import import_module
from typing import Any

from voxgraft.core.errors import ConfigError

_DIGITS = "零一二三四五六七八九"
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
_START = r"(?<!\d)"
_DATE = re.compile(r"\D+((?:(?:[089]\d|(?:19|20)\d{2})年)?(?:\d{1,2}月(?:\d{1,2}[日号])?)?)")
_MONEY = re.compile(rf"\D(\d+(?:\.\d+)?[多余几]?{_CURRENCY}(?:\d{_CURRENCY}?)?)")
_MOBILE_PHONE = re.compile(r"\D((?:\+?86 ?)?1(?:[38]\d|5[0-35-9]|7[678]|9[89])\d{8})\D")
_LANDLINE = re.compile(r"\D((?:0(?:10|2[1-3]|[3-9]\d{2})-?)?[1-9]\d{6,7})\D")
_FRACTION = re.compile(_START + r"\d+/\d+")
_PERCENTAGE = re.compile(_START + r"\d+(?:\.\d+)?%")
_QUANTITY = re.compile(rf"{_START}(\d+(?:\.\d+)?)[多余几]?(?:[{_COUNTERS}]|[千微][克米])")
_LONG_NUMBER = re.compile(r"\d{4,32}")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TWO_IN_LATIN = re.compile(r"([a-zA-Z]+)二([a-zA-Z]+)")  # B2B

# All marks become a comma: first and last of each range.
_MARKS = (
    "！－",
    "／／",
    "：＠",
    "［｀",
    "｛､",
    "、〃",
    "〈】",
    "〔〟",
    "〰〰",
    "〾〿",
    "–—",
    "‘’",
    "‛‟",
    "…‧",
    "﹏﹏",
    "··",
)
_MARKS_TO_COMMAS = dict.fromkeys(map(ord, string.punctuation), ",") | {
    code: "," for ends in _MARKS for code in range(ord(ends[0]), ord(ends[1]) + 1)
}


def spell_chinese_numbers(text: str) -> str:
    """Numbers as words and marks as commas."""
    # Some patterns need a character that is not a digit on both sides.
    text = f"^{text}$"
    text = _replace_each(_DATE, text, _read_date)
    text = _replace_each(_MONEY, text, _read_amount)
    for phone in (_MOBILE_PHONE, _LANDLINE):
        text = _replace_each(phone, text, lambda found: _read_digits(re.sub(r"[-+\s]", "", found)))
    text = _replace_each(_FRACTION, text, _read_fraction)
    text = text.replace("％", "%")
    text = _replace_each(_PERCENTAGE, text, lambda found: "百分之" + read_number(found.strip("%")))
    text = _replace_each(_QUANTITY, text, read_number)
    text = _replace_each(_LONG_NUMBER, text, _read_digits)
    text = _replace_each(_NUMBER, text, read_number)
    for latin in _TWO_IN_LATIN.finditer(text):
        text = text.replace(latin[0], f"{latin[1]}2{latin[2]}", 1)
    return text.lstrip("^").rstrip("$").translate(_MARKS_TO_COMMAS)


def convert_to_pinyin(text: str) -> str:
    """Han characters as syllables with their tone as a digit, without spaces; all else as it is."""
    pypinyin: Any = _import_pypinyin()
    style = pypinyin.Style.TONE3
    syllables = pypinyin.pinyin(text, style=style, heteronym=False, neutral_tone_with_five=True)
    return "".join(readings[0] for readings in syllables)


def read_number(number: str) -> str:
    """`12.5` as 十二点五."""
    whole, _, decimals = number.partition(".")
    symbols = _read_with_units(whole) if len(whole) > 1 else [_digit(one) for one in whole]
    if decimals:
        symbols += ["点", *map(_digit, decimals)]
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


def _digit(character: str) -> str:
    return _DIGITS[int(character)]  # also full-width digits and those of other scripts


def _read_digits(number: str) -> str:
    return "".join(map(_digit, number))


def _read_with_units(number: str) -> list[str]:
    rest = number.lstrip("0")
    if not rest:
        return []
    if len(rest) == 1:
        return ["零", _digit(rest)] if len(rest) != len(number) else [_digit(rest)]
    unit, power = max(((unit, power) for unit, power in _UNITS.items() if power < len(rest)), key=lambda pair: pair[1])
    return [*_read_with_units(number[:-power]), unit, *_read_with_units(rest[-power:])]


def _read_date(date: str) -> str:
    year, is_year, rest = date.partition("年")
    if not is_year:
        year, rest = "", date
    month, is_month, day = rest.partition("月")
    read = _read_digits(year) + is_year
    if is_month:
        read += read_number(month) + is_month
        if day:
            read += read_number(day[:-1]) + day[-1]
    return read


def _read_amount(amount: str) -> str:
    for number in _NUMBER.findall(amount):
        amount = amount.replace(number, read_number(number))
    return amount


def _read_fraction(fraction: str) -> str:
    numerator, _, denominator = fraction.partition("/")
    return f"{read_number(denominator)}分之{read_number(numerator)}"


def _import_pypinyin() -> Any:
    try:
        return import_module("pypinyin")
    except ModuleNotFoundError:
        found = "pypinyin is not installed: XTTS reads Chinese as pinyin"
        raise ConfigError("package-missing", found, cure="pip install 'voxgraft[languages]'.") from None
