"""The table of romanised characters is uroman's own word, and stands in for it without a difference."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

from voxgraft.core.languages import SHARED_SCRIPTS, is_letter, script_of
from voxgraft.text.encoder import TABLE_SCRIPTS, _load_romanization_table, _load_uroman, romanize


def words(code: str) -> list[str]:
    text = resources.files("voxgraft").joinpath(f"assets/demo/{code}.txt").read_text(encoding="utf-8")
    letters = ("".join(filter(is_letter, word)) for word in text.split())
    return sorted({word for word in letters if word and {*map(script_of, word)} - SHARED_SCRIPTS <= {*TABLE_SCRIPTS}})


@pytest.mark.long(fast="vi")
@pytest.mark.parametrize("code", ["am", "ti", "vi", "yo", "sw"])
def test_the_table_gives_what_uroman_gives_for_whole_words(code: str) -> None:
    chosen = words(code)[:1500]
    assert len(chosen) > 200
    assert [romanize(word) for word in chosen] == [_load_uroman().romanize_string(word).strip() for word in chosen]


def test_every_entry_of_the_table_is_uromans_own() -> None:
    table = _load_romanization_table()
    assert len(table) > 1900
    assert {key: str(_load_uroman().romanize_string(key)) for key in table} == table


def test_other_scripts_are_left_to_uroman() -> None:
    assert romanize("ក្រ") == _load_uroman().romanize_string("ក្រ").strip() != ""


def test_amharic_does_not_wait_for_uroman() -> None:
    code = "import sys; from voxgraft.text.encoder import romanize; print(romanize('ሰላም'), 'uroman' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["salaame", "False"]
