"""XTTS's text steps give what the original package gives, refuse what it refuses, and leave new languages alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.support.shared import shared
from voxgraft.core.errors import TextError
from voxgraft.models import get_family
from voxgraft.models.xtts.text import (
    LANGUAGES,
    XTTSTextFrontend,
    clean_text,
    find_language,
    language_tag,
    read_chinese_number,
    romanize_korean,
    spell_chinese_numbers,
)

DATA = Path(__file__).parent / "data" / "families" / "xtts_sentences.jsonl"
# What each of these languages is read with.
PACKAGES = {"ja": "cutlet", "zh": "pypinyin"}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def require_package(language: str) -> None:
    package = PACKAGES.get(language)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"NOT TESTED: needs {package} (pip install 'voxgraft[languages]')")


# ---- against the original package ---------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_generated_sentences_are_cleaned_as_the_original_does(language: str) -> None:
    require_package(language)
    sentences = [row for row in rows(DATA) if row["language"] == language]
    assert len(sentences) >= 20
    for row in sentences:
        if "refused" in row:
            with pytest.raises(TextError) as error:
                clean_text(row["text"], language)
            assert error.value.finding.code == "text-unread"
        else:
            assert clean_text(row["text"], language) == row["cleaned"], row["text"]


@pytest.mark.parametrize("asian", [False, True])
def test_golden_sentences_get_the_originals_text_and_ids(asian: bool) -> None:
    front, refused = XTTSTextFrontend(), 0
    sentences = rows(shared("golden/xtts/sentences.jsonl"))
    tokenizer = Tokenizer.from_file(str(shared("golden/xtts/vocab_like.json")))
    assert len(sentences) == 100
    for row in sentences:
        language = find_language(row["language"])
        if (language in PACKAGES) is not asian:
            continue
        require_package(language or "")
        if "error" in row:
            refused += 1
            with pytest.raises(TextError) as error:
                front.prepare(row["text"], row["language"])
            assert error.value.finding.code == "text-unread"
            continue
        assert language is not None
        assert clean_text(row["text"], language) == row["cleaned"], row["text"]
        prepared = front.prepare(row["text"], row["language"])
        assert tokenizer.encode(prepared).ids == row["ids"], row["text"]
        spoken = front.prepare(front.clean(row["text"]), row["language"])
        assert tokenizer.encode(spoken).ids == (row["ids_of_inference"] or row["ids"]), row["text"]
    assert refused == (0 if asian else 4)


# ---- rule by rule -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "text", "cleaned"),
    [
        ("en", "1.000.000 or 1,000,000", "one.zero or one million"),
        ("en", "$1 $1.01 $0.50", "one dollar one dollar, one cent zero dollars, fifty cents"),
        ("en", "St. MR. drs.", "saint mister doctors"),
        ("de", "12,5 und 3€", "zwölf Komma fünf und drei Euro"),
        ("tr", "İSTANBUL 1,5", "istanbul bir,beş"),
        ("ru", "Д-р Иванов", "доктор иванов"),
        ("cs", "p. Novák", "pan novák"),
        ("hi", "% और @", "प्रतिशत और ऐट दी रेट"),
        ("es", 'dijo "sí"', "dijo sí"),
        ("fr", "a\t\n b", "a b"),
    ],
)
def test_text_is_cleaned_by_the_rules_of_its_language(language: str, text: str, cleaned: str) -> None:
    assert clean_text(text, language) == cleaned


@pytest.mark.parametrize("language", ["en", "es", "tr", "ko", "zh"])
def test_long_numbers_are_read_or_refused_at_once(language: str) -> None:
    require_package(language)
    # Where a number is looked for from each of its digits, this takes minutes, in which a server answers nobody.
    for text in ("1" * 5_000, "1," * 2_500, "1" * 45_000 + "年"):
        began = time.process_time()
        with suppress(TextError):
            clean_text(text, language)
        assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("number", "read"),
    [
        ("0", "零"),
        ("10", "十"),
        ("12", "十二"),
        ("05", "零五"),
        ("22", "二十二"),
        ("200", "两百"),
        ("2022", "两千零二十二"),
        ("1200000", "一百二十万"),
        ("3000000000000", "三兆"),
        ("2.50", "二点五零"),
        ("000.5", "零点五"),
    ],
)
def test_chinese_numbers_have_units_and_the_second_two(number: str, read: str) -> None:
    assert read_chinese_number(number) == read


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("2024年3月1日", "二零二四年三月一日"),
        ("电话13812345678。", "电话一三八一二三四五六七八,"),
        ("1/2的12.5%", "二分之一的百分之十二点五"),
        ("3元5角", "三元五角"),
        ("12345", "一二三四五"),
        ("b2b", "b2b"),
    ],
)
def test_chinese_numbers_are_read_by_what_they_count(text: str, spelled: str) -> None:
    assert spell_chinese_numbers(text) == spelled


@pytest.mark.parametrize(
    ("text", "romanized"),
    [
        ("것을", "geos-eul"),
        ("드릴까요", "deulilkka-yo"),
        ("었습", "eoss-seub"),
        ("어떠한", "eo-tteohan"),
        ("가ㄱ까", "gaㄱkka"),
    ],
)
def test_korean_syllables_that_could_be_divided_otherwise_have_a_hyphen(text: str, romanized: str) -> None:
    assert romanize_korean(text) == romanized


# ---- languages and tags -------------------------------------------------------------------------------------


def test_regions_are_cut_off_and_chinese_has_its_own_tag() -> None:
    assert [language_tag(code) for code in ("en-US", "zh", "zh-cn", "am", "am-ET")] == [
        "[en]",
        "[zh-cn]",
        "[zh-cn]",
        "[am]",
        "[am-et]",
    ]
    assert set(get_family("xtts").languages) == set(LANGUAGES)
    assert get_family("xtts").tag("zh") == "[zh-cn]"


def test_a_new_language_gets_lower_case_and_nothing_else() -> None:
    front = XTTSTextFrontend()
    text = 'Dr. 5 & "ሰላም"\n ÀB'
    assert front.prepare(text, None) == 'dr.[SPACE]5[SPACE]&[SPACE]"ሰላም"[SPACE]àb'
    assert front.prepare(" ", None) == "[SPACE]"
    assert front.prepare_part("Dr. 5", "am", is_first=True, is_last=True) == "dr.[SPACE]5"
    assert front.prepare_part("Dr. 5", "en", is_first=False, is_last=True) == "doctor[SPACE]five"


def test_a_vocabulary_with_more_tags_knows_more_languages(tmp_path: Path) -> None:
    data = json.loads(shared("golden/xtts/vocab_like.json").read_text(encoding="utf-8"))
    data["model"]["vocab"]["[am]"] = 1020
    data["added_tokens"].append({**data["added_tokens"][-1], "id": 1020, "content": "[am]"})
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert get_family("xtts").front(path).prepare("A", "am") == "[am]a"
    with pytest.raises(TextError) as error:
        get_family("xtts").front(shared("golden/xtts/vocab_like.json")).prepare("A", "am")
    assert error.value.finding.code == "text-unread"


@given(st.text(), st.sampled_from([code for code in LANGUAGES if code not in PACKAGES]))
def test_any_text_is_cleaned_or_refused_and_no_space_is_left(text: str, language: str) -> None:
    prepared = f"[{language}]"
    with suppress(TextError):
        prepared = XTTSTextFrontend().prepare(text, language)
    assert prepared.startswith(f"[{language}]")
    assert " " not in prepared
    assert '"' not in prepared


@pytest.mark.parametrize(("language", "package"), sorted(PACKAGES.items()))
def test_without_its_package_a_language_is_refused_with_the_extra(language: str, package: str) -> None:
    program = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "from voxgraft.core.errors import ConfigError\n"
        "from voxgraft.models.xtts.text import clean_text\n"
        "try:\n"
        f"    clean_text('中文', {language!r})\n"
        "except ConfigError as error:\n"
        "    print(error.finding.code, error.finding.cure)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "package-missing"
    assert "voxgraft[languages]" in done.stdout
