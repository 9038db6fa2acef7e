"""Which characters become pieces: whole scripts, the language's own letters, digits and joiners; never a symbol."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.support.tokenizers import KINDS, Grown, base, learn
from voxgraft.config.run import VocabularySettings
from voxgraft.core.languages import find_exemplar, is_letter, script_characters
from voxgraft.text.normalize import NO_RULES, TextRules
from voxgraft.tokenizers import parse_tokenizer
from voxgraft.tokenizers.prove import find_unknown_letters, find_unreachable_pieces, measure_coverage
from voxgraft.tokenizers.train import find_surviving_text, plan_characters, survives_preprocessing

INDEX = KINDS[1]
TEXTS = {
    "ar": "السلام عليكم، كيف حالك؟",
    "bo": "བཀྲ་ཤིས་བདེ་ལེགས།",
    "ccp": "𑄌𑄋𑄴𑄟𑄳𑄦",
    "chr": "ᎣᏏᏲ ᎡᎶᎯ",
    "el": "Γειά σου Κόσμε",
    "fa": "می\u200cروم به خانه ۱۲۳، سلام؟",
    "ff-Adlm": "𞤀𞤣𞤤𞤢𞤥",
    "he": "שָׁלוֹם עולם, מה שלומך?",
    "hy": "Բարեւ աշխարհ։",
    "ja": "こんにちは、世界。カタカナ",
    "ka": "გამარჯობა მსოფლიო",
    "ko": "안녕하세요 세계.",
    "mn": "Сайн байна уу, өөө үүү",
    "my": "မင်္ဂလာပါ ကမ္ဘာ။",
    "nqo": "ߌ ߣߌ ߗߋ߫",
    "si": "ශ්\u200dරී ලංකාව",
    "sr": "Здраво свете, љубав и ђак. Đak, čaša.",
    "th": "สวัสดีชาวโลก",
    "ur": "میں گھر جا رہا ہوں۔ ۴۵",
    "yue": "你好世界，食咗飯未？",
    "qqq": "ሰላም ለዓለም Ŋaŋa",
}
"""Right to left, two scripts at once, syllables, no spaces, no case, capitals of their own, no entry in CLDR."""
every_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def learnt(kind: str, language: str, *sentences: str) -> Grown:
    return learn(kind, language, sentences, VocabularySettings(pieces=20, min_count=2))


def unknown_letters(made: Grown) -> list[str]:
    new = made.text_encoder.new_text(made.texts.sentences)
    return find_unknown_letters(made.tokenizer, measure_coverage(made.tokenizer, new)[1], new)


@pytest.mark.long(fast=("ar-*", "el-*", "ff-Adlm-*", "qqq-*", "si-*", "sr-*", "th-*", "yue-sentencepiece-bpe"))
@every_kind
@pytest.mark.parametrize("language", TEXTS)
def test_every_letter_gets_a_piece_and_every_piece_can_occur(kind: str, language: str) -> None:
    made = learnt(kind, language, *[TEXTS[language]] * 3)
    assert unknown_letters(made) == []
    assert find_unreachable_pieces(made.base, made.tokenizer, made.text_encoder.new_text(())) == ()
    assert not [piece for piece in made.learned.additions.pieces if not set(piece.text) - made.base.characters]


@every_kind
def test_a_language_that_cldr_does_not_know_gets_the_scripts_of_its_text(kind: str) -> None:
    made = learnt(kind, "qqq", "ሰላም ለዓለም")
    assert made.learned.plan.whole_scripts == ("Ethiopic",)
    letters = {character for character in script_characters("Ethiopic") if is_letter(character)}
    assert letters <= made.new_characters


def test_a_base_with_a_few_strays_of_a_script_does_not_have_the_script() -> None:
    document = json.loads(base("bpe-json").base.data)
    for stray in "ሰላም":
        document["model"]["vocab"][stray] = len(document["model"]["vocab"])
    with_strays = parse_tokenizer(json.dumps(document).encode(), Path("strays.json"))
    plan = plan_characters(with_strays, str, "am", ["ሰላም ለዓለም"])
    assert plan.whole_scripts == ("Ethiopic",)
    assert len(plan.new) == 523 - 3


@pytest.mark.parametrize(("letters", "scripts"), [("ሀለሐመሠረሰሸቀ", ("Ethiopic",)), ("ሀለሐመሠረሰሸቀበ", ())])
def test_a_base_has_a_script_from_ten_letters_on(letters: str, scripts: tuple[str, ...]) -> None:
    document = json.loads(base("bpe-json").base.data)
    for letter in letters:
        document["model"]["vocab"][letter] = len(document["model"]["vocab"])
    tokenizer = parse_tokenizer(json.dumps(document).encode(), Path("letters.json"))
    plan = plan_characters(tokenizer, str, "am", ["ሰላም ለዓለም"])
    assert plan.whole_scripts == scripts
    assert {"ላ", "ም", "ዓ"} <= set(plan.new), "what the texts need is added all the same"


def test_digits_of_the_language_that_stand_in_the_texts_get_a_piece_where_the_base_has_only_its_letters() -> None:
    document = json.loads(base("bpe-json").base.data)
    entry = find_exemplar("bn")
    assert entry is not None
    for letter in sorted({*script_characters("Bengali")} - set("০১২৩৪৫৬৭৮৯")):
        document["model"]["vocab"].setdefault(letter, len(document["model"]["vocab"]))
    with_letters = parse_tokenizer(json.dumps(document).encode(), Path("letters.json"))
    plan = plan_characters(with_letters, str, "bn", ["কলা ১২ 45 ৩ টি ١"])
    assert (plan.new, plan.whole_scripts) == (("১", "২", "৩"), ())
    few = plan_characters(with_letters, str, "bn", ["কলা " * 400 + "১"])
    assert few.new == (), "one digit in a long text is no reason to add rows"


def test_a_script_of_a_hundred_thousand_characters_is_not_taken_whole() -> None:
    made = learnt("bpe-json", "yue", "你好")
    entry = find_exemplar("yue")
    assert entry is not None
    assert made.learned.plan.whole_scripts == ()
    assert set("你好") <= made.new_characters
    assert len(made.new_characters) < len(entry.letters) + 20


def test_a_language_with_two_scripts_gets_the_letters_of_both() -> None:
    made = learnt(INDEX, "sr", TEXTS["sr"])
    assert set("ЉЊЋЂ") <= made.new_characters
    assert set("ĐČŠ") <= made.new_characters


def test_a_stray_word_in_another_script_gets_nothing_and_is_reported() -> None:
    made = learnt(INDEX, "am", *["ሰላም ለዓለም ሁሉ ነው"] * 9, "ሰላም Ж")
    assert "Ж" not in made.new_characters
    assert made.learned.plan.left_unknown == {"Ж": 1}


@every_kind
def test_persian_keeps_its_joiner_where_the_front_keeps_it_and_needs_no_digits_of_its_own(kind: str) -> None:
    made = learnt(kind, "fa", TEXTS["fa"])
    assert not set("۱۲۳") & made.new_characters  # read in words, or written with the base's own digits
    assert made.text_encoder.prepare("ب۱ب") == made.text_encoder.prepare("ب1ب")
    # SentencePiece's normaliser writes a space for the non-joiner.
    assert ("\u200c" in made.new_characters) == (kind == "bpe-json")


@every_kind
def test_a_sinhala_joiner_is_part_of_the_word(kind: str) -> None:
    made = learnt(kind, "si", *[TEXTS["si"]] * 3)
    assert made.learned.plan.left_unknown == {}
    assert any("\u200d" in piece.text for piece in made.learned.additions.merges)


@every_kind
def test_joiners_and_direction_marks_in_a_language_that_has_none_get_no_piece(kind: str) -> None:
    made = learnt(kind, "vi", "ti\u200dếng\u200f Việt \u2067ơ\u2069")
    assert made.new_characters.isdisjoint("\u200b\u200c\u200d\u200e\u200f\u2067\u2069")


@every_kind
def test_a_heart_in_its_emoji_form_brings_no_piece(kind: str) -> None:
    made = learnt(kind, "gez", "ሰላም ❤\ufe0f 5\u20e3 ለዓለም")
    assert made.new_characters.isdisjoint("❤\ufe0f\u20e3")
    assert "❤" in made.learned.plan.left_unknown


@every_kind
@pytest.mark.parametrize("sign", ["№", "º", "ª", "™", "℃"])
def test_letters_that_come_out_of_a_sign_are_no_letters_of_the_language(kind: str, sign: str) -> None:
    made = learnt(kind, "vi", f"{sign} tiếng Việt {sign}")
    assert unknown_letters(made) == []
    assert find_unreachable_pieces(made.base, made.tokenizer, made.text_encoder.new_text(())) == ()


@every_kind
def test_composed_decomposed_and_disordered_marks_are_spelled_alike(kind: str) -> None:
    made = learnt(kind, "vi", "tiếng Việt được viết", "ệ ộ ặ")
    forms = ["Việt", "Vie\u0323\u0302t", "Vie\u0302\u0323t"]
    ids = {tuple(made.text_encoder.encode(form, "vi")) for form in forms}
    assert len(ids) == 1
    assert made.tokenizer.unknown_id not in next(iter(ids))


def test_digits_that_stand_only_inside_base_pieces_are_reported_as_unknown() -> None:
    """IndexTTS-2 has 1 to 5 only inside its pinyin, so a number in the text is unknown all the same."""
    made = learnt(INDEX, "gez", "ሰላም 42 & 7")
    assert set(made.learned.plan.left_unknown) >= {"&"}
    _, unknown = measure_coverage(made.tokenizer, made.text_encoder.new_text(made.texts.sentences))
    assert made.learned.plan.left_unknown == dict(unknown)


@every_kind
@pytest.mark.parametrize("text", ["ሰ", "é", "\u0301", "ß", "İ", "ﬁ", "0", "00", "½", "①", " ", "\u200b", "ሰላም", "''"])
def test_survivors_are_what_text_leaves_between_its_neighbours(kind: str, text: str) -> None:
    """The same characters come out when the text is inside a word of digits."""
    made = learnt(kind, "am", "ሰላም")
    raw = replace(made.text_encoder, stated_rules=TextRules(NO_RULES))  # others would read the digits out
    left = find_surviving_text(made.base, raw.prepare, text)
    whole = made.base.normalise(raw.prepare(f"9{text}8"))
    start, stop = whole.index("9"), whole.rindex("8")
    assert whole[start + 1 : stop] == left


@pytest.mark.parametrize(("text", "stays"), [("ሰ", True), ("А", True), ("а", False), ("é", False), ("(", False)])
def test_what_a_front_changes_does_not_survive(text: str, stays: bool) -> None:
    made = learnt(INDEX, "am", "ሰላም")
    assert survives_preprocessing(made.base, made.text_encoder.prepare, text) is stays


def test_punctuation_of_the_language_gets_a_piece_where_it_stands_in_the_texts_and_letters_are_missing_too() -> None:
    tokenizer = base(INDEX).base
    assert "।" not in tokenizer.characters
    assert "।" in plan_characters(tokenizer, str, "hi", ["नमस्ते दुनिया।"]).new
    assert "।" not in plan_characters(tokenizer, str, "hi", ["नमस्ते दुनिया"]).new
    assert plan_characters(tokenizer, str.upper, "en", ["HELLO “WORLD” §"]).new == ()
