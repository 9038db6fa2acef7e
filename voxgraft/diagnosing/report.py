"""`report.html` of a diagnosis: one page that opens in any browser without a network. All text is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from voxgraft import __version__
from voxgraft.diagnosing.looking import Diagnosis
from voxgraft.diagnosing.picture import ROW_KIND_COLORS, VERDICT_COLORS
from voxgraft.diagnosing.rows import RowTable
from voxgraft.errors import Finding

__all__ = ["diagnosis_report_html"]

LEVEL_SIGNS = {"error": ("✗", "bad"), "warning": ("!", "bad"), "note": ("✓", "soft")}
REPORT_CSS = """
header.top .card { margin-top: .9rem; }
.verdict { font-size: 1.5rem; font-weight: 700; }
.strip { display: flex; height: 14px; border-radius: 4px; overflow: hidden; margin: .3rem 0; }
.key { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .3rem; }
.commands code { display: block; padding: .5rem .7rem; margin: .3rem 0; overflow-x: auto; }
img.whole { width: 100%; height: auto; background: #fff; border-radius: 8px; }
"""


def diagnosis_report_html(found: Diagnosis, picture: bytes | None) -> str:
    """The whole page; `picture` is a PNG."""
    sections = [
        ("rows", "Rows", _row_tables_html(found)),
        ("body", "Body", _layers_html(found)),
        ("optimizer", "Optimizer", _optimizer_html(found)),
        ("heard", "Heard", _phone_errors_html(found)),
        ("picture", "Picture", _image_html(picture)),
        ("findings", "Findings", _findings_html(found.findings)),
        ("looked", "What was looked at", _coverage_html(found)),
    ]
    shown = [(name, title, content) for name, title, content in sections if content]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in shown)
    body = "".join(
        f'<section id="{name}"><h2>{title}</h2>{_wrap_in_card(name, content)}</section>'
        for name, title, content in shown
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(found.verdict.word)}: {escape(found.path.name)}</title>",
            f"<style>{_read_asset('report.css')}{REPORT_CSS}</style></head><body>",
            _header_html(found),
            f'<nav aria-label="Sections"><div>{links}<button id="theme" type="button">theme</button></div></nav>',
            f"<main>{body}<footer>Made by voxgraft {__version__}. Nothing on this page was loaded from a network."
            "</footer></main>",
            f"<script>{_read_asset('report.js')}</script></body></html>\n",
        ]
    )


def _wrap_in_card(name: str, content: str) -> str:
    return content if name == "picture" else f'<div class="card scroll">{content}</div>'


def _header_html(found: Diagnosis) -> str:
    verdict = found.verdict
    commands = "".join(f"<code>{escape(command)}</code>" for command in verdict.commands)
    return (
        f'<header class="top"><h1>{escape(found.path.name)}</h1><p>{escape(found.what)}.</p>'
        f'<div class="card"><div class="verdict" style="color:{VERDICT_COLORS[verdict.word]}">{verdict.word}</div>'
        f"<p><b>{escape(_as_sentence(verdict.sentence))}</b></p><p>{escape(_as_sentence(verdict.reason))}</p>"
        f'<div class="commands">{commands}</div></div></header>'
    )


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def _row_tables_html(found: Diagnosis) -> str:
    return "".join(map(_row_table_html, found.tables))


def _row_table_html(table: RowTable) -> str:
    total, counts = len(table.kinds), table.counts
    strip = "".join(
        f'<div style="width:{100 * count / total:.3f}%;background:{ROW_KIND_COLORS[kind]}" title="{escape(kind)}"></div>'
        for kind, count in counts.items()
    )
    keys = " ".join(
        f'<span><span class="key" style="background:{ROW_KIND_COLORS[kind]}"></span>{escape(kind)}: {count:,}</span>'
        for kind, count in counts.items()
    )
    form = ", in a shorter number format" if table.rounded else ""
    return (
        f"<h3>{escape(table.tensor)}</h3><p>{total:,} rows, {table.num_base:,} of them the base's{form}.</p>"
        f'<div class="strip">{strip}</div><p>{keys}</p>'
    )


def _layers_html(found: Diagnosis) -> str:
    if not found.layers:
        return ""
    rows = [
        (layer.name, f"{layer.tensors:,}", f"{layer.changed:,}", _format_distance(layer.distance))
        for layer in found.layers
        if layer.changed
    ]
    whole = f"{sum(layer.tensors for layer in found.layers):,} tensors"
    if not rows:
        return f"<p>All {whole} behind the text tables are the base's own.</p>"
    far = f"<p>Together they moved by {_format_distance(found.distance or 0.0)} of their length.</p>"
    return far + _html_table(("layer", "tensors", "changed", "moved"), rows)


def _format_distance(value: float) -> str:
    return "not finite" if value == float("inf") else f"{100 * value:.3g} %"


def _optimizer_html(found: Diagnosis) -> str:
    one = found.optimizer
    if one is None:
        return ""
    facts = {
        "parameters with moments": f"{len(one.moments):,}",
        "steps of the optimizer": "unknown" if one.step is None else f"{one.step:,}",
        "step of the file": "unknown" if one.file_step is None else f"{one.file_step:,}",
        "learning rates": ", ".join(f"{rate:.3g}" for rate in one.rates) or "unknown",
        "rates at the start": ", ".join(f"{rate:.3g}" for rate in one.first_rates) or "unknown",
        "weight decay": ", ".join(f"{decay:g}" for decay in one.weight_decay) or "unknown",
        "step of the schedule": "unknown" if one.last_epoch is None else f"{one.last_epoch:,}",
    }
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(value)}</dd>' for name, value in facts.items())}</dl>"


def _phone_errors_html(found: Diagnosis) -> str:
    if found.not_heard:
        return f"<p>Nothing was listened to: {escape(found.not_heard)}.</p>"
    rows = [(one["language"], one["who"], f"{one['sentences']}", f"{one['phone_error']:.1%}") for one in found.heard]
    return _html_table(("language", "who", "sentences", "phone error"), rows) if rows else ""


def _image_html(picture: bytes | None) -> str:
    if picture is None:
        return ""
    source = base64.b64encode(picture).decode()
    return f'<img class="whole" alt="rows, layers and optimizer" src="data:image/png;base64,{source}">'


def _findings_html(findings: Iterable[Finding]) -> str:
    order = {level: at for at, level in enumerate(LEVEL_SIGNS)}
    items = []
    for item in sorted(findings, key=lambda item: order[item.level]):
        sign, style = LEVEL_SIGNS[item.level]
        expected = f" (expected: {escape(item.expected)})" if item.expected else ""
        cure = "" if item.cure.startswith("none is needed") else f'<div class="said">{escape(item.cure)}</div>'
        items.append(
            f'<li><span class="sign {style}" aria-label="{item.level}">{sign}</span><div><code>{item.code}</code> '
            f"{escape(item.found)}{expected}{cure}</div></li>"
        )
    return f'<ul class="checks">{"".join(items)}</ul>' if items else "<p>None.</p>"


def _coverage_html(found: Diagnosis) -> str:
    skipped = "".join(
        f"<dt>{escape(topic)}</dt><dd>{escape(reason)}</dd>" for topic, reason in found.not_checked.items()
    )
    left = f"<details><summary>Not looked at, and why</summary><dl>{skipped}</dl></details>" if skipped else ""
    return f"<p>{escape(', '.join(found.checked) or 'nothing')}.</p>{left}"


def _html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _read_asset(name: str) -> str:
    return resources.files("voxgraft").joinpath(f"data/report/{name}").read_text(encoding="utf-8")
