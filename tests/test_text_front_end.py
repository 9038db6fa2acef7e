"""One text front end: a text has the same ids in data, synthesis, evaluation and exports, by rules kept with the graft."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fixtures import Fixtures
from tests.support.run_folders import error_of
from tests.support.shared import shared
from tests.support.synthesis import made_graft, spoken
from tests.support.tokenizers import Grown
from tests.support.tokenizers import base as small_base
from tests.test_export import exported
from voxgraft.config.commands import CheckSettings, TokenizerShowSettings
from voxgraft.config.run import VocabularySettings
from voxgraft.core.languages import _exemplar_table as cldr
from voxgraft.core.languages import find_exemplar
from voxgraft.dataset.shards import compute_index_checksum
from voxgraft.export.weights import build_text_package
from voxgraft.graft.command import tokenizer_show
from voxgraft.graft.folder import load_base_tokenizer, load_graft
from voxgraft.inspect.subject import open_check_subject
from voxgraft.inspect.text import digit_findings, text_findings, text_rule_findings
from voxgraft.models import get_family
from voxgraft.models.base import ExportInfo
from voxgraft.synthesis.engine import resolve_language
from voxgraft.synthesis.inputs import split_into_chunks
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.text.normalize import TextRules, TextRulesError, build_text_rules
from voxgraft.text.normalize.generic import NUM2WORDS_LANGUAGES, TYPOGRAPHIC_MARKS, num2words_cardinal
from voxgraft.tokenizers import TextCorpus, open_tokenizer
from voxgraft.tokenizers.prove import check_word_boundaries, find_unreachable_pieces

LANGUAGES = (
    *(
        "am",
        "be",
        "bn",
        "bo",
        "br",
        "ca",
        "chr",
        "cs",
        "ff-Adlm",
        "fo",
        "gez",
        "gn",
        "gu",
        "ha",
        "haw",
        "hu",
        "hy",
        "is",
    ),
    *(
        "ka",
        "kk",
        "km",
        "lo",
        "lt",
        "mn",
        "my",
        "nl",
        "nv",
        "oc",
        "pa",
        "ps",
        "ro",
        "si",
        "sk",
        "sl",
        "so",
        "sr-Latn",
        "ta",
    ),
    *("th", "ti", "uk", "ur", "uz", "vi", "yo"),
)
INVISIBLE = "\u200f\ufeff\u200b\u00ad\u200e\u2060"
KINDS = {"chatterbox": "bpe-json", "indextts2": "sentencepiece-unigram", "xtts": "xtts"}
PUBLISHED = {
    "chatterbox": "real/chatterbox/grapheme_mtl_merged_expanded_v1.json",
    "indextts2": "real/indextts2/bpe.model",
    "xtts": "real/xtts/xtts1_test_vocab.json",
}


def texts_of(language: str) -> tuple[str, ...]:
    """Names, numbers, dates, punctuation and invisible characters, among letters of the language."""
    entry = find_exemplar(language)
    assert entry is not None
    letters = [character for character in entry.letters if character.isalpha()] or ["a"]
    words = ["".join(letters[at : at + 4]) for at in range(0, min(len(letters), 40), 4)]
    own = " ".join(words)
    digits = [sign for sign in entry.numbers if sign.isdecimal() and not sign.isascii()]
    marks = [mark for mark in entry.punctuation if not mark.isspace()]
    return (
        entry.name,
        own,
        own.upper(),
        f"{words[0]} 2026 {words[-1]}.",
        f"12.05.2024, 2024-05-12, 12:30 {words[0]} 1,234.56 1.234,56 -5 20% 3–4 MP3 007",
        f"{words[0]} {''.join(digits)} {words[-1]}",
        *(f"{words[0]}{mark} {words[-1]}{mark}" for mark in marks),
        INVISIBLE.join(words),
        f"\ufeff{words[0]}\u200f {words[0][0]}\u00ad{words[0][1:]}\u200b{words[-1]}",
        words[0][0],
        f"  {words[0]}\u00a0\u2009{words[-1]}\n",
    )


def spelling_of(base: TextEncoder, language: str) -> Grown:
    """A graft of a language with rules that went through JSON, as those of a graft folder have."""
    rules = TextRules.from_json(json.loads(json.dumps(build_text_rules(language).to_json())))
    before = replace(base, language=language, stated_rules=rules)
    texts = TextCorpus(texts_of(language))
    learnt = learn_language_pieces(before, texts, VocabularySettings(pieces=20, min_count=2))
    return Grown(replace(before, grown=learnt.grown), learnt, texts)


@cache
def small(name: str, language: str) -> Grown:
    return spelling_of(small_base(KINDS[name]), language)


@cache
def published(name: str, language: str) -> Grown:
    kind, tokenizer = load_base_tokenizer(shared(PUBLISHED[name]), name)
    return spelling_of(TextEncoder.of(kind, tokenizer, None, None), language)


def write_package(folder: Path, name: str, rules: TextRules) -> None:
    kind, program, files = get_family(name), get_family(name).upstream(), None
    languages = [code for code in kind.languages if code not in program.unmixed_languages]
    for place, text in build_text_package(rules, languages, *program.text_step(files)).items():  # type: ignore[arg-type]
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")


READER = """
import importlib, json, sys
sys.modules["voxgraft"] = None  # every import of it fails, installed or not
found = {}
for folder, texts in json.loads(open(sys.argv[1], encoding="utf-8").read()).items():
    for name in [name for name in sys.modules if name.startswith("voxgraft_text")]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    prepared = importlib.import_module("voxgraft_text").prepared
    sys.path.pop(0)
    found[folder] = []
    for text in texts:
        try:
            found[folder].append(prepared(text))
        except ValueError as error:
            found[folder].append(["refused", str(error)])
json.dump(found, open(sys.argv[1] + ".out", "w", encoding="utf-8"))
"""


def read_without_voxgraft(folder: Path, texts: dict[str, list[str]]) -> dict[str, list[str | list[str]]]:
    """What the packages of exports make of texts, in a process that cannot import voxgraft."""
    (folder / "reader.py").write_text(READER)
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    words = [sys.executable, str(folder / "reader.py"), str(folder / "texts.json")]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str | list[str]]] = json.loads((folder / "texts.json.out").read_text(encoding="utf-8"))
    return found


def stock_ids(text_encoder: TextEncoder, given: str) -> list[int]:
    """The ids of the original program for a text that is handed to it: its front, the tag, the exported tokenizer."""
    assert text_encoder.grown is not None
    tag = [text_encoder.grown.ids[text_encoder.tag]] if text_encoder.tag else []
    return tag + text_encoder.grown.encode(text_encoder.front.prepare(text_encoder.front.clean(given), None))


def compare(made: dict[str, Grown], name: str, folder: Path, more: tuple[str, ...] = ()) -> None:
    """Ids of data, evaluation, synthesis and export, text by text."""
    for language, grown in made.items():
        write_package(folder / language, name, grown.text_encoder.rules)
    asked = {str(folder / language): [*texts_of(language), *more] for language in made}
    read = read_without_voxgraft(folder, asked)
    for language, grown in made.items():
        text_encoder = grown.text_encoder
        for text, handed in zip(asked[str(folder / language)], read[str(folder / language)], strict=True):
            ids = text_encoder.encode(text, language)
            pieces = split_into_chunks(text_encoder.normalize_lines(text, language), language, 1e6, 0.0)
            if len(pieces) == 1:
                assert text_encoder.encode(pieces[0][0], language) == ids, (language, text)
            assert text_encoder.encode(text, language.lower()) == ids
            if isinstance(handed, str):
                assert stock_ids(text_encoder, handed) == ids, (language, text, handed)
            else:
                # IndexTTS-2 would read digits in Chinese: it is never given any.
                assert name == "indextts2", handed
                assert any(map(str.isdecimal, text_encoder.normalize_lines(text, language)))


@pytest.mark.long(fast="chatterbox")
@pytest.mark.parametrize("name", KINDS)
def test_a_text_has_the_same_ids_in_data_synthesis_and_both_exports_for_forty_languages(
    name: str, tmp_path: Path
) -> None:
    assert len(LANGUAGES) >= 40
    compare({language: small(name, language) for language in LANGUAGES}, name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_the_same_with_the_published_tokenizers(name: str, tmp_path: Path) -> None:
    compare({language: published(name, language) for language in LANGUAGES}, name, tmp_path)


any_text = st.lists(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("0123456789.,:-/%'’ʼ“”…።፣⹁ \u200b\u200f\ufeff\u00ad\u00a0ሰላምaßİ"),
        st.sampled_from(["2026", "1,234.5", "12:30", "ዓ.ም", "...", " - "]),
    ),
    max_size=14,
).map("".join)


@pytest.mark.long(fast=("am", "nl"))
@pytest.mark.parametrize("language", ["am", "nl", "uk", "nv", "chr", "gez"])
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=any_text)
def test_any_text_is_normalised_once_and_for_all(language: str, text: str) -> None:
    rules = build_text_rules(language)
    once = rules.apply(text)
    assert rules.apply(once) == once
    assert not set(INVISIBLE) & set(once)
    for name in KINDS:
        text_encoder = small(name, language).text_encoder
        assert text_encoder.encode(once, language) == text_encoder.encode(text, language)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_random_unicode_has_the_same_ids_in_data_and_in_an_export(name: str, tmp_path: Path) -> None:
    drawn: list[str] = []

    @settings(max_examples=400, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(text=any_text)
    def draw(text: str) -> None:
        drawn.append(text)

    draw()
    texts = tuple(text for text in drawn if text.strip())
    compare({language: small(name, language) for language in ("am", "nl", "nv", "chr")}, name, tmp_path, texts)


# ---- letters and marks (B2, B5) --------------------------------------------------------------------------------------


def test_every_letter_that_cldr_gives_a_language_survives_its_normaliser() -> None:
    lost = []
    for language, entry in cldr().items():
        normaliser = build_text_rules(language).normalizer
        for letter in dict.fromkeys(unicodedata.normalize("NFC", entry["letters"])):
            text = f"q{letter}q"
            if not letter.isspace() and normaliser.normalise(text).text != text:
                lost.append((language, letter))
    assert lost == [("ti", "\u135f")]  # the mark of length, which no book of today has: docs/text.md


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("nv", "Diné bizaad dooʼ"),
        ("nv", "t’áá"),
        ("uk", "пʼять"),
        ("uz", "oʻzbek maʼno"),
        ("haw", "Hawaiʻi"),
        ("br", "cʼhoazh"),
        ("ca", "col·legi"),
        ("he", "בֵּית־סֵפֶר צ׳"),
        ("xx", "ʼ ʹ ʻ ʽ ˈ"),
    ],
)
def test_apostrophes_that_are_letters_stay(language: str, text: str) -> None:
    assert build_text_rules(language).normalizer.normalise(text).text == text


@pytest.mark.parametrize(
    ("language", "typed", "written"),
    [("uk", "п'ять п’ять 'так'", "пʼять пʼять 'так'"), ("br", "c’hoazh", "cʼhoazh"), ("haw", "Hawai'i", "Hawaiʻi")],
)
def test_an_apostrophe_inside_a_word_is_the_letter_that_it_stands_for(language: str, typed: str, written: str) -> None:
    """Else a text with the apostrophe of the keyboard would teach another row than the words of numbers use."""
    assert build_text_rules(language).apply(typed) == written


def test_no_mark_that_is_folded_is_a_letter() -> None:
    assert not [mark for mark in TYPOGRAPHIC_MARKS if mark.isalpha()]


def test_texts_with_the_letter_u02bc_teach_pieces_that_all_occur() -> None:
    """Text was learned raw and normalised on import: pieces with the letter never came up."""
    sentences = tuple(f"tʼáá {word} dooʼ naʼídíkid" for word in ("bitsʼą́ą́", "hólǫ́", "kʼad", "ayóo", "yáʼátʼééh")) * 4
    for name in KINDS:
        base = replace(small_base(KINDS[name]), language="nv", stated_rules=build_text_rules("nv"))
        learnt = learn_language_pieces(base, TextCorpus(sentences), VocabularySettings(pieces=40, min_count=2))
        text_encoder = replace(base, grown=learnt.grown)
        assert find_unreachable_pieces(base.base, learnt.grown, text_encoder.new_text(sentences)) == ()
        imported = [build_text_rules("nv").normalizer.normalise(sentence).text for sentence in sentences]
        used = {token for text in imported for token in text_encoder.encode(text, "nv")}
        new = {at for at in range(base.base.size, learnt.grown.size) if "ʼ" in str(learnt.grown.pieces[at])}
        assert new & used
        if name == "indextts2":  # learns no pieces on the way to others
            merges = {learnt.grown.ids[piece.text] for piece in learnt.additions.merges}
            assert merges <= used


@pytest.mark.parametrize("name", KINDS)
def test_the_comma_of_adlam_is_never_unknown(name: str) -> None:
    made = small(name, "ff-Adlm")
    ids = made.text_encoder.encode("𞤢𞤣𞤤⹁ 𞤥𞤦𞤧.", "ff-Adlm")
    assert made.tokenizer.unknown_id not in ids


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("language", ["am", "fo", "km"])
def test_invisible_characters_are_neither_unknown_nor_rows(name: str, language: str) -> None:
    made = small(name, language)
    assert not set(INVISIBLE) & made.new_characters
    plain = " ".join(texts_of(language)[1].split()[:2])
    assert made.text_encoder.encode(INVISIBLE + plain + INVISIBLE, language) == made.text_encoder.encode(
        plain, language
    )


# ---- numbers (B3) ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", NUM2WORDS_LANGUAGES)
def test_every_language_on_the_list_reads_numbers_in_words_of_its_own(language: str) -> None:
    words = NUM2WORDS_LANGUAGES[language]
    numbers = [*range(101), 110, 200, 345, 999, 1000, 1001, 1100, 1999, 2026, 11_000, 21_000, 123_456, words.largest]
    said = [num2words_cardinal(words.code, number) for number in numbers]
    assert len(set(said)) == len(numbers)
    assert not any(character.isdecimal() for text in said for character in text)
    normalise = build_text_rules(language).normalizer.normalise
    assert normalise("2026.").text == num2words_cardinal(words.code, 2026).replace("'", words.apostrophe) + "."
    for text in ("0", "007", "12:30", "12.05.2024", "2024-05-12", "3-4"):
        assert not any(map(str.isdecimal, normalise(text).text)), text


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("nl", "1.234,56", "duizendtweehonderdvierendertig komma vijf zes"),
        ("nl", "-5 en 20%", "min vijf en twintig procent"),
        ("he", "1,234.5", "אלף מאתיים שלושים וארבע נקודה חמש"),
        ("ru", "12 345 рублей", "двенадцать тысяч триста сорок пять рублей"),
        ("fa", "۲۰۲۶", "دو هزار و بیست و شش"),
        ("uk", "5", "пʼять"),
        ("es-MX", "3.500 y 1,500", "tres punto cinco cero cero y mil quinientos"),
        ("es-AR", "1.500", "mil quinientos"),
        ("de", "Es sind 2026. Danach", "Es sind zweitausendsechsundzwanzig. Danach"),
        ("de", "Er wurde 25. Danach zog er um.", "Er wurde fünfundzwanzig. Danach zog er um."),
        ("de", "Ich bin 25.", "Ich bin fünfundzwanzig."),
        ("nl", "20\u200b26", "tweeduizendzesentwintig"),
    ],
)
def test_numbers_are_read_with_the_separators_of_the_language(language: str, text: str, said: str) -> None:
    assert build_text_rules(language).normalizer.normalise(text).text == said


@pytest.mark.parametrize(
    ("language", "text"),
    [
        *[("nl", "MP3"), ("ru", "1-й"), ("fi", "2026:ssa"), ("ru", "3,14"), ("sw", "2026")],
        *[("nl", "3,1415926535897932384626"), ("nl", "50%-korting"), ("de-CH", "1'500"), ("de-CH", "3.500")],
        *[("cs", "3. května"), ("de", "am 3. Mai"), ("de", "am 25. Danach"), ("de", "1. Der Hund"), ("be", "3,5")],
    ],
)
def test_digits_that_cannot_be_read_stay_and_are_noted(language: str, text: str) -> None:
    done = build_text_rules(language).normalizer.normalise(text)
    assert done.text == text
    assert {note.rule for note in done.notes} == {"digits-left"}


# ---- rules of a graft ------------------------------------------------------------------------------------------------


def test_rules_of_another_version_and_other_number_words_are_refused() -> None:
    stated = build_text_rules("nl").to_json()
    with pytest.raises(TextRulesError, match="generic-99"):
        TextRules.from_json({**stated, "version": "generic-99"})
    other = TextRules.from_json({**stated, "edition": {"num2words": "0.1", "sha256": "0" * 64}})
    with pytest.raises(TextRulesError, match=r"num2words==0\.1"):
        other.require_edition()
    assert TextRules.from_json(None).is_raw


@pytest.fixture(scope="module")
def graft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graft of Amharic on the built-in base."""
    return made_graft(tmp_path_factory.mktemp("graft"), tiny_base(), "am", 3)


def tiny_base() -> Path:
    found = get_family("tiny").shipped_folder()
    assert found is not None
    return found


def changed_card(folder: Path, place: Path, **changes: object) -> Path:
    shutil.copytree(folder, place)
    path = place / "graft.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    del card["card_sha256"]
    path.write_text(json.dumps({**card, **changes}), encoding="utf-8")
    return place


@pytest.mark.long
def test_a_number_is_spoken_in_words_with_the_ids_of_training(graft_folder: Path, tmp_path: Path) -> None:
    words = (f"--graft={graft_folder}", "--max-seconds=0.4", "--language=am", "--codes", tmp_path / "codes.json")
    result = spoken("2026።", *words)
    assert [piece.text for piece in result.said[0].pieces] == ["ሁለት ሺህ ሃያ ስድስት."]
    assert result.said[0].findings == () or {item.code for item in result.said[0].findings} == {"speak-cut"}
    (shown,) = tokenizer_show(
        TokenizerShowSettings(
            base=tiny_base(), extended=graft_folder / "tokenizer.json", language="am", text=("2026።",)
        )
    ).to_json()["sentences"]
    graft = load_graft(graft_folder)
    tiny = get_family("tiny")
    text_encoder = TextEncoder.of(
        tiny, open_tokenizer(tiny.files(tiny_base()).tokenizer), graft.tokenizer, "am", graft.card.rules
    )
    ids = text_encoder.encode("2026።", "am")
    assert [token for _, token, _ in shown["extended"]] == ids == text_encoder.encode("ሁለት ሺህ ሃያ ስድስት.", "am")
    assert graft.tokenizer.unknown_id not in ids


@pytest.mark.long
def test_a_graft_from_before_reads_text_as_it_is_and_says_so(graft_folder: Path, tmp_path: Path) -> None:
    old = changed_card(graft_folder, tmp_path / "old", text=None)
    result = spoken("ሰላም 2026", f"--graft={old}", "--max-seconds=0.4", "--codes", tmp_path / "codes.json")
    assert [piece.text for piece in result.said[0].pieces] == ["ሰላም 2026"]
    assert "text-rules-missing" in {item.code for item in result.said[0].findings}


def test_a_graft_with_rules_that_are_not_known_here_is_refused(graft_folder: Path, tmp_path: Path) -> None:
    other = changed_card(graft_folder, tmp_path / "new", text={"version": "amharic-9", "language": "am"})
    error = error_of(lambda: load_graft(other))
    assert error.code == "text-rules"
    assert "amharic-9" in error.finding.found
    assert error.finding.cure


@pytest.mark.long
def test_sets_of_other_text_rules_are_refused(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    for name in ("train", "valid"):
        path = run.folder.data_set(name) / "set.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        document["made_from"]["text"] = "amharic-0"
        document.pop("checksum")
        document["checksum"] = compute_index_checksum(document)  # a sound set that other rules made
        path.write_text(json.dumps(document), encoding="utf-8")
    error = run.refused("set-stale")
    assert "amharic-0" in str(error)


def test_check_tells_of_digits_that_stay_and_of_clips_with_other_rules(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    texts = tmp_path / "more.txt"
    texts.write_text("ሰላም 1234567890123456789012 ለዓለም\n" * 3, encoding="utf-8")
    imports = run.path / "data" / "imports"
    imports.mkdir(parents=True)
    rules = {"cutting": 1, "text": "amharic-1+homophones"}
    source = {"source": {"options": {"language": "am"}, "rules": rules}}
    (imports / "one.jsonl").write_text(json.dumps(source) + "\n", encoding="utf-8")
    with open_check_subject(CheckSettings(run=run.path, base=run.base, language="am", texts=(texts,))) as subject:
        codes = {item.code for item in [*text_rule_findings(subject), *text_findings(subject)]}
    assert "text-rules-import" in codes
    card = json.loads((run.path / "graft" / "graft.json").read_text(encoding="utf-8"))
    del card["card_sha256"]
    card["text"] = {
        "version": "none",
        "language": "am",
    }  # tokenizer.normalise: false, with clips that import normalised
    (run.path / "graft" / "graft.json").write_text(json.dumps(card), encoding="utf-8")
    with open_check_subject(CheckSettings(run=run.path, base=run.base, language="am", texts=(texts,))) as subject:
        assert [item.code for item in text_rule_findings(subject)] == ["text-rules-import"]
    assert [item.code for item in digit_findings(build_text_rules("sw"), ("mwaka wa 2026", "habari"))] == [
        "text-digits"
    ]
    assert digit_findings(build_text_rules("nl"), ("in 2026",)) == []


def test_homophones_that_the_run_folds_are_folded_in_its_graft(tmp_path: Path) -> None:
    folded = build_text_rules("am", fold_homophones=True)
    assert TextRules.from_json(folded.to_json()).apply("ሠላም") == "ሰላም"
    assert folded.identity != build_text_rules("am").identity


@pytest.mark.long(fast="chatterbox")
@pytest.mark.parametrize("name", ["chatterbox", "indextts2"])  # of XTTS: tests/test_export_xtts.py
def test_load_py_reads_text_as_training_did_without_voxgraft(fixtures: Fixtures, tmp_path: Path, name: str) -> None:
    """Through the classes of the original programs, of which the stubs have the signatures."""
    run = fixtures.trained_run(name)
    exported(run.path, f"--to={name}", "--parts=merged", f"--output={tmp_path / 'out'}", "--accept-terms")
    for place, text in STUBS[name].items():
        (tmp_path / "stub" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stub" / place).write_text(text)
    texts = ["ሰላም 2026።", "ቤት፣ ውሃ፤ ዳቦ፧", "ሀ", "ሰላም፡፡ ነው፡ትልቅ", "hello ሰላም «ወንድም»", "ዶ/ር \u200fሰላም\ufeff", "3.5%"]
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS[name], json.dumps(texts)],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'out'}:{tmp_path / 'stub'}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    text_encoder = run.world.text_encoder
    for text, handed in zip(texts, json.loads(done.stdout), strict=True):
        assert stock_ids(text_encoder, handed) == text_encoder.encode(text, "am"), (text, handed)


STUBS = {
    "indextts2": {
        "indextts/__init__.py": "",
        "indextts/infer_v2.py": """
class IndexTTS2:
    def __init__(self, cfg_path, model_dir):
        pass

    def infer(self, spk_audio_prompt, text, output_path, emo_alpha=1.0):
        return text
""",
    },
    "chatterbox": {
        "chatterbox/models/t3/modules/t3_config.py": """
class T3Config:
    def __init__(self, text_tokens_dict_size=2454):
        self.text_tokens_dict_size = text_tokens_dict_size

    @classmethod
    def multilingual(cls):
        return cls()
""",
        "chatterbox/mtl_tts.py": """
from types import SimpleNamespace
from chatterbox.models.t3.modules.t3_config import T3Config

SUPPORTED_LANGUAGES = {}


class ChatterboxMultilingualTTS:
    @classmethod
    def from_local(cls, folder, device):
        model = cls()
        model.t3 = SimpleNamespace(hp=T3Config.multilingual())
        return model

    def generate(self, text, language_id, audio_prompt_path=None):
        if language_id and language_id.lower() not in SUPPORTED_LANGUAGES:
            raise ValueError(language_id)
        return text
""",
    },
}
_WITHOUT = "import sys; sys.modules['voxgraft'] = None; import json; from load import LANGUAGE, load; "
SPEAKS = {
    "indextts2": _WITHOUT
    + "tts = load(LANGUAGE); print(json.dumps([tts.infer(spk_audio_prompt='', text=t, output_path='') for t in json.loads(sys.argv[1])]))",
    "chatterbox": _WITHOUT
    + "tts = load(LANGUAGE); print(json.dumps([tts.generate(t, language_id='AM') for t in json.loads(sys.argv[1])]))",
}


def test_a_language_code_with_capitals_is_known_to_the_original_program_in_lower_case(fixtures: Fixtures) -> None:
    facts = ExportInfo("ff-Adlm", "Fula (Adlam)", "[ff-adlm]", 10, 5)
    text = get_family("chatterbox").upstream().loader(facts, fixtures.base("chatterbox"))
    assert text is not None
    assert "SUPPORTED_LANGUAGES.setdefault(LANGUAGE.lower(), NAME)" in text
    made = small("chatterbox", "ff-Adlm")
    assert made.text_encoder.tag == "[ff-adlm]"
    assert made.tokenizer.has_control_token("[ff-adlm]")
    assert resolve_language("ff-adlm", ["ff-Adlm"], ["en"]) == "ff-Adlm"


# ---- scripts that IndexTTS-2 takes for Chinese (B4) ------------------------------------------------------------------


def test_words_that_run_together_are_reported_and_dead_rows_are_counted() -> None:
    sentences = ("ꆈꌠ ꁱꂷ ꉬ ꆏꌠ", "ꉌꂵ ꆈꌠ ꁱꂷ", "ꆈꌠ ꉬ ꉌꂵ") * 5
    base = replace(small_base("sentencepiece-unigram"), language="ii", stated_rules=build_text_rules("ii"))
    learnt = learn_language_pieces(base, TextCorpus(sentences), VocabularySettings(pieces=60, min_count=2))
    new = replace(base, grown=learnt.grown).new_text(sentences)
    assert [item.code for item in check_word_boundaries(new)] == ["text-word-boundaries"]
    assert find_unreachable_pieces(base.base, learnt.grown, new) == ()
    names = {piece.text for piece in learnt.additions.pieces}
    assert {"▁ꉬ"} <= names
    assert "ꉬ" not in names


def test_cherokee_keeps_its_words_in_either_case() -> None:
    made = small("indextts2", "chr")
    text_encoder = made.text_encoder
    assert text_encoder.prepare("ꮳꮃꭹ ꭶꮼꮒꭿꮝꮧ") == text_encoder.prepare("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ") == "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ"
    assert check_word_boundaries(text_encoder.new_text(("ꮳꮃꭹ ꭶꮼꮒꭿꮝꮧ",))) == []
    assert made.tokenizer.unknown_id not in text_encoder.encode("ꮳꮃꭹ ꭶꮼꮒꭿꮝꮧ", "chr")
