"""Amharic number words and the words of dates, times, money and measures. See `docs/text.md` for who says so.

Two spellings are in use for several numbers (ሶስት and ሦስት, ሃያ and ሀያ); one is written here, always the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from voxgraft.text.normalize.reader import Calendar, NumberVerbalizer, is_same_consonant

ONES = "ዜሮ አንድ ሁለት ሶስት አራት አምስት ስድስት ሰባት ስምንት ዘጠኝ".split()
TENS = "አስር ሃያ ሰላሳ አርባ ሃምሳ ስልሳ ሰባ ሰማንያ ዘጠና".split()
TEN_AND = "አስራ"
HUNDRED = "መቶ"
SCALES = ((10**12, "ትሪሊዮን"), (10**9, "ቢሊዮን"), (10**6, "ሚሊዮን"), (10**3, "ሺህ"))
ORDINAL_ENDING = "ኛ"
# Words that end in a consonant take a vowel before the ending; all others only the ending.
ORDINALS = {
    "አንድ": "አንደኛ",
    "ሁለት": "ሁለተኛ",
    "ሶስት": "ሶስተኛ",
    "አራት": "አራተኛ",
    "አምስት": "አምስተኛ",
    "ስድስት": "ስድስተኛ",
    "ሰባት": "ሰባተኛ",
    "ስምንት": "ስምንተኛ",
    "ዘጠኝ": "ዘጠነኛ",
    "አስር": "አስረኛ",
}
ETHIOPIAN_MONTHS = "መስከረም ጥቅምት ኅዳር ታኅሣሥ ጥር የካቲት መጋቢት ሚያዝያ ግንቦት ሰኔ ሐምሌ ነሐሴ ጳጉሜን".split()
# Both as CLDR 48 gives them.
GREGORIAN_MONTHS = "ጃንዋሪ ፌብሩዋሪ ማርች ኤፕሪል ሜይ ጁን ጁላይ ኦገስት ሴፕቴምበር ኦክቶበር ኖቬምበር ዲሴምበር".split()
GREGORIAN_ERA_PHRASES = ("ኤውሮፓውያን አቆጣጠር", "አውሮፓውያን አቆጣጠር", "ጎርጎርዮሳውያን አቆጣጠር", "ግሪጎሪያን አቆጣጠር")
ETHIOPIAN_ERA_PHRASES = ("ኢትዮጵያ አቆጣጠር", "ኢትዮጵያውያን አቆጣጠር")
YEAR_OF_MERCY = ("ዓመተ ምህረት", "ዓመተ ምሕረት", "አመተ ምህረት")


class AmharicVerbalizer(NumberVerbalizer):
    """Cardinals as news readers say them: አንድ is spoken before መቶ and ሺህ, and years are spoken as other numbers."""

    prefixes: ClassVar = frozenset("በ ከ ለ የ ስለ እንደ በየ ለየ ከየ የበ የከ የለ".split())
    suffix: ClassVar = "(?:ዎች|ዎቹ|ዎቹን|ቱ|ቷ|ቶቹ|ዱ|ዷ|ሩ|ሯ|ኙ|ው|ዋ|ያ)?(?:ንም|ንና|ምና|ን|ም|ና|ስ)?"
    ordinal_suffix: ClassVar = "-?[ተደነረ]?ኛ"
    scales: ClassVar[Mapping[str, str]] = {
        **{word: word for _, word in SCALES},
        "ሺ": "ሺህ",
        "ሚሊየን": "ሚሊዮን",
        "ሚልዮን": "ሚሊዮን",
        "ቢሊየን": "ቢሊዮን",
        "ቢልዮን": "ቢሊዮን",
        "ትሪሊየን": "ትሪሊዮን",
        "million": "ሚሊዮን",
        "billion": "ቢሊዮን",
        "trillion": "ትሪሊዮን",
    }
    currencies: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("ብር", "ETB", "Br", "Br.", "Birr", "birr"), "ብር"),
        **dict.fromkeys(("ዶላር", "$", "US$", "USD"), "ዶላር"),
        **dict.fromkeys(("ዩሮ", "€", "EUR"), "ዩሮ"),
        **dict.fromkeys(("ፓውንድ", "£", "GBP"), "ፓውንድ"),
        **dict.fromkeys(("የን", "¥", "JPY"), "የን"),
    }
    units: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("km", "Km", "KM", "ኪሜ"), "ኪሎሜትር"),
        **dict.fromkeys(("m", "ሜ"), "ሜትር"),
        **dict.fromkeys(("cm", "ሴሜ"), "ሴንቲሜትር"),
        **dict.fromkeys(("mm", "ሚሜ"), "ሚሊሜትር"),
        **dict.fromkeys(("kg", "Kg", "KG", "ኪግ"), "ኪሎግራም"),
        **dict.fromkeys(("g", "ግ"), "ግራም"),
        **dict.fromkeys(("l", "L"), "ሊትር"),
        **dict.fromkeys(("ml", "mL"), "ሚሊ ሊትር"),
        **dict.fromkeys(("km²", "km2"), "ካሬ ኪሎሜትር"),
        **dict.fromkeys(("m²", "m2"), "ካሬ ሜትር"),
        **dict.fromkeys(("km/h", "kmh"), "ኪሎሜትር በሰዓት"),
        **dict.fromkeys(("°C", "℃"), "ዲግሪ ሴልሺየስ"),
        "°": "ዲግሪ",
        "ha": "ሄክታር",
        "W": "ዋት",
        "kW": "ኪሎዋት",
        "MW": "ሜጋ ዋት",
        "MB": "ሜጋባይት",
        "MHz": "ሜጋኸርዝ",
    }
    hours: ClassVar = ("ሰዓት", "ሰአት", "ሰኣት")
    from_words: ClassVar = ("ከ", "በ", "የ", "ለ")
    point: ClassVar = "ነጥብ"
    operators: ClassVar[Mapping[str, str]] = {"+": "ሲደመር", "=": "እኩል ይሆናል", "×": "ሲባዛ", "÷": "ሲካፈል"}
    minus: ClassVar = "አሉታዊ"
    percents: ClassVar[Mapping[str, str]] = {"%": "በመቶ", "‰": "በሺህ"}
    interval: ClassVar = ("ከ", "እስከ")

    def cardinal(self, number: int) -> str:
        parts = []
        for size, word in SCALES:
            count, number = divmod(number, size)
            if count:
                parts.append(f"{self.cardinal(count)} {word}")
        hundreds, rest = divmod(number, 100)
        if hundreds:
            parts.append(f"{ONES[hundreds]} {HUNDRED}")
        tens, ones = divmod(rest, 10)
        if tens:
            parts.append(TEN_AND if tens == 1 and ones else TENS[tens - 1])
        if ones or not parts:
            parts.append(ONES[ones])
        return " ".join(parts)

    def ordinal(self, number: int, suffix: str) -> str:  # noqa: ARG002 (the ending is the same for both genders)
        before, _, last = self.cardinal(number).rpartition(" ")
        return f"{before} {ORDINALS.get(last, last + ORDINAL_ENDING)}".strip()

    def money(self, whole: int, cents: int, currency: str) -> str:
        small = f"{self.cardinal(cents)} {'ፔንስ' if currency == 'ፓውንድ' else 'ሳንቲም'}"
        if not whole and cents:
            return small
        words = f"{self.cardinal(whole)} {currency}"
        return f"{words} ከ{small}" if cents else words

    def fraction(self, whole: int | None, above: int, below: int) -> str:
        if whole is not None and (above, below) == (1, 2):
            return f"{self.cardinal(whole)} ተኩል"
        known = {(1, 2): "ግማሽ", (1, 4): "ሩብ"}
        words = known.get((above, below)) or f"{self.cardinal(above)} {self.ordinal(below, ORDINAL_ENDING)}"
        return f"{self.cardinal(whole)} ከ{words}" if whole is not None else words

    def clock(self, hour: int, minute: int, second: int) -> str:
        words = f"{self.cardinal(hour)} {self.hours[0]}"
        if (minute, second) == (30, 0):
            return f"{words} ተኩል"
        words += f" ከ{self.cardinal(minute)} ደቂቃ" if minute else ""
        return words + (f" ከ{self.cardinal(second)} ሰከንድ" if second else "")

    def date(self, day: int, month: int, year: int, calendar: Calendar | None) -> str | None:
        if calendar is None:
            return f"{self.cardinal(day)} {self.cardinal(month)} {self.cardinal(year)}"
        months = ETHIOPIAN_MONTHS if calendar == "ethiopian" else GREGORIAN_MONTHS
        if month > len(months):
            return None
        return f"{months[month - 1]} {self.cardinal(day)} ቀን {self.cardinal(year)}"

    def calendar(self, before: str, after: str) -> Calendar | None:
        """European reckoning is named before or behind; ዓመተ ምህረት without it is the Ethiopian one."""
        if any(word in before or word in after for word in GREGORIAN_ERA_PHRASES):
            return "gregorian"
        named = any(word in before or word in after for word in ETHIOPIAN_ERA_PHRASES)
        return "ethiopian" if named or after.lstrip().startswith(YEAR_OF_MERCY) else None

    def join(self, words: str, suffix: str) -> str:
        """The article is written with the number's last consonant (3ቱ is ሶስቱ, 10ሩ is አስሩ)."""
        if suffix and is_same_consonant(words[-1], suffix[0]):
            return words[:-1] + suffix
        return words + suffix
