"""The tab Tokenizer spells every line as its language is read: the new one by its tag, one of the base by its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, tab_of

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
from voxgraft.ui.tabs import model


@pytest.fixture
def context(made_home: Path) -> Iterator[Any]:
    with tab_of(made_home, "tokenizer") as found:
        yield found


def test_a_line_of_a_base_language_has_its_own_tag_and_the_same_ids_old_and_new(context: Any) -> None:
    new, old = model._tokenize_html(context, PROJECT, model.EXAMPLE_TEXT).split("Hello world.")
    assert "[am]" in new
    assert "[am]" not in old
    first, second = re.findall(r"<tr><td>(?:old|new)</td>(.*?)</tr>", old)
    assert first == second


def test_the_command_of_each_language_is_shown(context: Any) -> None:
    lines = model._preview_tokenize(context, PROJECT, "ሰላም\nfr: bonjour\nam: ቤት\nen: one: two").splitlines()
    assert [line.partition("--language ")[2].split()[0] for line in lines] == ["am", "fr", "en"]
    assert "ሰላም ቤት" in lines[0].replace("'", "")
    assert "'one: two'" in lines[2]


@pytest.mark.parametrize("typed", ["xx: not a language of the base", "12:30", "en:"])
def test_a_colon_alone_makes_no_other_language(context: Any, typed: str) -> None:
    (argv,) = model._tokenize_argvs(context, PROJECT, typed)
    assert typed in argv
    assert argv[argv.index("--language") + 1] == "am"


def test_nothing_typed_is_reported_and_breaks_nothing(context: Any) -> None:
    assert "vg-bad" in model._tokenize_html(context, PROJECT, "")
    assert model._preview_tokenize(context, PROJECT, "")
