"""`report.html`: one page that opens in any browser without a network, with everything that was measured and heard.

Puts the parts together; what stands in each is in `report_parts`. All text is escaped, since texts are data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from voxgraft.evaluating.charts import draw_history_charts
from voxgraft.evaluating.judging import Evaluation
from voxgraft.evaluating.report_parts import (
    language_name,
    render_blind_test,
    render_checklist,
    render_error_bars,
    render_figures,
    render_method,
    render_players,
    render_proofs,
    render_score_table,
)
from voxgraft.evaluating.verdicts import ChecklistItem
from voxgraft.history import History

__all__ = ["render_report"]

REPORT_SECTIONS = (
    ("checklist", "Checklist"),
    ("scores", "Before and after"),
    ("listen", "Listen"),
    ("curves", "Curves"),
    ("proofs", "Proofs"),
    ("blind", "Blind listening"),
    ("about", "How it was measured"),
)


PRIVACY_NOTE = "Nothing on this page was loaded from a network, and nothing that you do on it is sent anywhere."


def render_report(
    document: Mapping[str, Any], found: Evaluation, points: Sequence[ChecklistItem], history: History | None
) -> str:
    """The whole page. `document` is what scores.json holds."""
    charts = draw_history_charts(history) if history is not None else []
    parts = {
        "checklist": render_checklist(points),
        "scores": render_error_bars(found) + render_score_table(found),
        "listen": render_players(document, found),
        "curves": f'<div class="charts">{"".join(charts)}</div>' if charts else "",
        "proofs": render_proofs(document, found),
        "blind": render_blind_test(found, _hash_utterances(document)),
        "about": render_method(document, found),
    }
    shown = [(name, title) for name, title in REPORT_SECTIONS if parts[name]]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in (*shown, ("words", "Words")))
    body = "".join(_render_section(name, title, parts[name]) for name, title in shown)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(_format_title(document, found))}</title>",
            f"<style>{_read_asset('report.css')}</style></head><body>",
            _render_header(document, found),
            f'<nav aria-label="Sections"><div>{links}<button id="theme" type="button">theme</button></div></nav>',
            f"<main>{body}<footer>{escape(_format_footer(document))}</footer></main>",
            f"<script>{_read_asset('report.js')}</script></body></html>\n",
        ]
    )


def _format_title(document: Mapping[str, Any], found: Evaluation) -> str:
    subject = document["subject"]
    new = f"{language_name(found.language)} on {subject['family']}" if found.language else subject["title"]
    return f"{new}: {subject['title']}" if found.language else str(new)


def _render_header(document: Mapping[str, Any], found: Evaluation) -> str:
    subject = document["subject"]
    step = f", step {subject['step']:,}" if subject["step"] is not None else ""
    what = f"{subject['system']} ({subject['mode']}{step}) against the base it was made on"
    new = f"{language_name(found.language)} on {subject['family']}" if found.language else subject["title"]
    label = ""
    if subject["label"]:
        label = f'<div class="card banner"><b>Trained {escape(str(subject["label"]))}.</b></div>'
        if subject["label"] == "not trained yet":
            label = '<div class="card banner"><b>This graft is not trained yet.</b></div>'
    return (
        f'<header class="top"><h1>{escape(str(new))}</h1>'
        f"<p>{escape(str(subject['title']))}: {escape(what)}. Every sentence was spoken by both, with the same voice "
        f"and the same draws.</p>{label}{render_figures(document, found)}</header>"
    )


def _format_footer(document: Mapping[str, Any]) -> str:
    return f"Made by voxgraft {document['versions']['voxgraft']}. {PRIVACY_NOTE}"


def _render_section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>'


def _read_asset(name: str) -> str:
    return resources.files("voxgraft").joinpath(f"data/report/{name}").read_text(encoding="utf-8")


def _hash_utterances(document: Mapping[str, Any]) -> str:
    """A name for what was heard, so that a browser keeps the answers of one report apart from those of another."""
    text = json.dumps(document["utterances"], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
