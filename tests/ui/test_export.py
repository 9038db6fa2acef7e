"""The tab Export asks for the terms, exports what is asked for, and packs it into a zip that others can take in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, done, form_of, tab_of, words_of

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
from voxgraft.ui.tabs import evaluate as export

TERMS = {"data_licence": "CC BY 4.0", "consent": "all have agreed", "accept_terms": True}


@pytest.fixture
def context(home: Path) -> Iterator[Any]:
    with tab_of(home, "export") as found:
        yield found


@pytest.mark.parametrize("lacking", ["data_licence", "consent", "accept_terms", None])
def test_the_button_can_be_pressed_once_all_terms_are_stated(context: Any, lacking: str | None) -> None:
    assert form_of(context, "export").button.interactive is False
    said = {**TERMS, **({lacking: False if lacking == "accept_terms" else "  "} if lacking else {})}
    button, words = export.check_terms_stated(*said.values())
    assert button["interactive"] is (lacking is None)
    assert ("are required" in words) is (lacking is not None)


def test_the_graft_is_exported_unless_something_else_is_chosen(context: Any) -> None:
    words = words_of(context, "export", **TERMS)
    assert words == ["export", PROJECT, "--to", "graft", "--data-licence", "CC BY 4.0", "--consent",
                     "all have agreed", "--accept-terms", "--json"]  # fmt: skip
    other = words_of(context, "export", to="chatterbox", drop_in=True, dtype="bf16", parts="extended", **TERMS)
    assert other[2:8] == ["--to", "chatterbox", "--drop-in", "--parts", "extended", "--dtype"]


def test_the_terms_of_the_base_stand_before_the_tick(context: Any) -> None:
    assert "Apache-2.0" in export._base_license_html(context, PROJECT)


def test_an_export_is_packed_and_taken_in_again(context: Any, home: Path) -> None:
    done(home, "export", words_of(context, "export", **TERMS))
    shown = form_of(context, "export").result_html(PROJECT)
    assert f"in {PROJECT}/export/graft" in shown
    assert "terms-not-stated" not in shown
    words = words_of(context, "push")
    assert words[1] == f"{PROJECT}/export/graft"
    job = done(home, "push", words)
    assert f'download="{PROJECT}.zip"' in form_of(context, "push").result_html(PROJECT), job.tail()
    done(home, "pull", words_of(context, "pull", source=f"{PROJECT}/{PROJECT}.zip"))
    assert f"complete, in {PROJECT}/pulled" in form_of(context, "pull").result_html(PROJECT)
    assert (home / PROJECT / "pulled" / "graft.json").is_file()


def test_checkpoints_for_the_stock_program_are_listed_with_what_changed(context: Any, home: Path) -> None:
    done(home, "export", words_of(context, "export", to="tiny", **TERMS))
    shown = form_of(context, "export").result_html(PROJECT)
    assert "<td>extended</td>" in shown
    assert "<td>merged</td>" in shown


def test_what_is_not_an_export_of_ours_is_refused_with_a_cure(context: Any, home: Path) -> None:
    (home / "bad.zip").write_bytes(b"PK not a zip")
    done(home, "pull", words_of(context, "pull", source="bad.zip"))
    shown = form_of(context, "pull").result_html(PROJECT)
    assert "vg-bad" in shown
    assert "fix:" in shown
    assert not (home / PROJECT / "pulled").exists()


def test_a_repository_is_named_as_it_is_typed_and_a_zip_outside_is_refused(context: Any) -> None:
    assert words_of(context, "push", folder=f"{PROJECT}/graft", to="owner/name")[2] == "owner/name"
    with pytest.raises(Exception, match="ui-outside"):
        words_of(context, "push", folder=f"{PROJECT}/graft", to="../../x.zip")


def test_terms_that_were_told_on_a_command_line_stand_in_the_form(context: Any, home: Path) -> None:
    assert "--consent" not in words_of(context, "export")
    done(home, "export", ["export", PROJECT, "--to", "graft", "--consent", "asked", "--json"])
    words = words_of(context, "export")
    assert words[words.index("--consent") + 1] == "asked"
    assert "--data-licence" not in words
    assert "--accept-terms" not in words
    (home / PROJECT / "export" / "graft" / "terms.json").write_text("[]")
    assert "--consent" not in words_of(context, "export")
