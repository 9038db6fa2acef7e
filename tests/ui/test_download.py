"""The tab Model downloads a published base only once its licence is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import form_of, tab_of, words_of
from voxgraft.core.families import FAMILIES

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
from voxgraft.ui.html import find_targets
from voxgraft.ui.tabs import model


@pytest.fixture
def context(home: Path) -> Iterator[Any]:
    with tab_of(home, "model") as found:
        yield found


def test_the_licence_is_shown_and_its_box_is_the_flag_of_the_command(context: Any) -> None:
    assert form_of(context, "download").button.interactive is False
    assert form_of(context, "download").control("accept_terms").component.value is False
    assert FAMILIES["xtts"].downloads["xtts"]["licence"] in model._download_terms_html("xtts")
    assert words_of(context, "download", name="xtts", accept_terms=True) == ["download", "xtts", "--accept-terms"]
    assert "--accept-terms" not in words_of(context, "download", name="xtts")


def test_a_refused_export_leads_to_the_box_on_the_tab_export(home: Path) -> None:
    with tab_of(home, "export"):
        targets = list(find_targets({"code": "licence-not-accepted"}, "go"))
    assert [target.elem_id for target in targets] == ["export-accept-terms"]
