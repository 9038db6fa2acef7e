"""`report.html`: one page that opens in any browser without a network, with everything that was measured and heard.

Puts the parts together; what stands in each is in `report_parts`. All text is escaped, since texts are data.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from voxgraft.core.journal import History
from voxgraft.core.languages import find_exemplar
from voxgraft.evaluation.audio import WHO_CODEC, WHO_RECORDINGS
from voxgraft.evaluation.charts import draw_history_charts
from voxgraft.evaluation.judge import WHO_AFTER, WHO_BEFORE, WHO_ORIGINAL, WHO_SHUFFLED, EvaluatedUtterance, Evaluation
from voxgraft.evaluation.scores import SCORE_MEASURES, Score, ScoreRow, select_shown_measures
from voxgraft.evaluation.verdicts import (
    ChecklistItem,
    choose_main_error,
    format_score,
    is_unreached_goal,
    measure_title,
    summarize_retention,
)

ANSWER_SIGNS = {"yes": ("✓", "good", "yes"), "no": ("✗", "bad", "no"), "unknown": ("–", "soft", "not measured")}
NOT_YET_SIGN = ("○", "soft", "not yet")
ROW_NAMES = {
    WHO_BEFORE: "base, before",
    WHO_AFTER: "after",
    WHO_SHUFFLED: "control: other sentences' text",
    WHO_CODEC: "held-out clips through the codec",
}
PLAYER_TITLES = {WHO_ORIGINAL: "original recording"}
"""Of players, where they are not called as in scores.json."""


def _row_name(row: ScoreRow) -> str:
    return ROW_NAMES.get(row.who) or row.title.removeprefix("mark: ")


def language_name(code: str | None) -> str:
    """A language as people call it in English."""
    entry = find_exemplar(code) if code else None
    return entry.name if entry else str(code)


def render_figures(document: Mapping[str, Any], found: Evaluation) -> str:
    """The few numbers that matter most, large."""
    cards = [
        _render_new_language_figure(document, found),
        _render_retention_figure(found),
        _render_reference_figure(found),
        _render_stop_figure(found),
    ]
    return f'<div class="figures">{"".join(card for card in cards if card)}</div>'


def render_checklist(points: Sequence[ChecklistItem]) -> str:
    """The checklist."""
    items = []
    for point in points:
        sign, style, word = NOT_YET_SIGN if is_unreached_goal(point) else ANSWER_SIGNS[point.answer]
        items.append(
            f'<li><span class="sign {style}" aria-label="{word}">{sign}</span><div>{escape(point.question)}'
            f'<div class="said">{_join_percent_signs(escape(point.found))}</div></div></li>'
        )
    lead = '<p class="lead">Each point is answered by a measurement alone: ✓ yes, ✗ no, ○ not yet, – not measured.</p>'
    return f'{lead}<div class="card"><ul class="checks">{"".join(items)}</ul></div>'


def render_error_bars(found: Evaluation) -> str:
    """The main error of everybody, as bars with their intervals; nothing where nothing was heard."""
    name = choose_main_error(found)
    if name is None:
        return ""
    highest = max((row.score(name).high or row.score(name).value or 0.0 for row in found.rows), default=0.0)
    scale = max(1.0, min(highest, 1.6)) if highest > 0.5 else max(highest * 1.15, 0.05)
    parts = []
    for language in found.languages:
        parts.append(f"<h3>{escape(language_name(language))}</h3>")
        heard = [row for row in found.rows if row.language == language and row.score(name).value is not None]
        parts += [_render_bar(row, row.score(name), name, scale) for row in heard]
    lead = f"{measure_title(name).capitalize()}: {_describe_measure(name)} The thin line holds 95 of 100 draws of the sentences."
    return f'<p class="lead">{escape(lead)}</p><div class="card"><div class="bars">{"".join(parts)}</div></div>'


def render_score_table(found: Evaluation) -> str:
    """Every score that anybody has."""
    shown = select_shown_measures(found.rows)
    head = "".join(f'<th class="num" title="{escape(one.about)}">{escape(one.title)}</th>' for one in shown)
    body = []
    for language in found.languages:
        name = escape(language_name(language))
        body.append(f'<tr class="group"><th colspan="{len(shown) + 1}">{name}</th></tr>')
        for row in (row for row in found.rows if row.language == language):
            cells = "".join(f'<td class="num">{_render_cell(one.name, row.score(one.name))}</td>' for one in shown)
            body.append(f"<tr><td>{escape(_row_name(row))}</td>{cells}</tr>")
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="card scroll">{table}</div>{_render_word_kinds_table(found)}'


def render_players(document: Mapping[str, Any], found: Evaluation) -> str:
    """Players for the same sentences before and after; or, in plain words, why there is nothing to hear."""
    if not any(one.wav for one in found.utterances):
        why = document["listener"]["why"] or "no sentence was chosen to be played"
        return f'<div class="card"><b>Nothing was listened to.</b> {escape(str(why)).capitalize()}.</div>'
    heard = any(one.heard for one in found.utterances)
    original = any(one.who == WHO_ORIGINAL for one in found.utterances)
    lead = "The same sentences and voices, before and after." + (" Beside them the original recordings." * original)
    parts = [f'<p class="lead">{lead}{" Beside each: what the recogniser heard." * heard}</p>']
    if why := document["listener"]["why"]:
        how = _render_code(escape(str(document["listener"].get("how", ""))))
        parts.append(f'<div class="card">No recogniser: {escape(str(why))}. Listen, and {how}.</div>')
    for language in found.languages:
        cards = "".join(
            _render_sentence(language, number, *pair)
            for number, pair in enumerate(_list_played_sentences(found, language))
        )
        if cards:
            parts.append(f'<h3>{escape(language_name(language))}</h3><div class="says">{cards}</div>')
    return "".join(parts)


def render_proofs(document: Mapping[str, Any], found: Evaluation) -> str:
    """What is proven, in words, with the numbers."""
    assert found.change is not None
    change, word = found.change, summarize_retention(found)
    system = escape(str(document["subject"]["system"]))
    style = {"equal": "good", "not equal": "bad"}.get(word, "soft")
    lines = [
        f"Of {change.total:,} values in the base's tensors, <b>{change.changed:,}</b> are others with {system}. "
        f"Bit for bit were compared: {escape(change.compared)}.",
        f"Base speech logits with and without {system}: <b class='{style}'>{word}</b>.",
    ]
    for kept in found.kept:
        name = escape(language_name(kept.language))
        if kept.equal is None:
            lines.append(f"{name}: not measured, because {escape(kept.why)}.")
            continue
        same = (
            "equal by <code>torch.equal</code>" if kept.equal else f"not equal, by up to {kept.largest_difference:.3g}"
        )
        kl = f"; KL to the base {format_score('kl', kept.kl)} nats a code" if kept.kl.value is not None else ""
        lines.append(
            f"{name}: at {kept.positions:,} positions of what the base said, all logits are {same}; spoken again, "
            f"{kept.same_codes:,} of {kept.spoken:,} sentences came out code for code the same{kl}."
        )
    lines.append(
        "Both were computed on this machine, one after the other and in the same shapes; on another machine both may "
        "round otherwise, and still be equal to each other."
    )
    return f'<div class="card proofs">{"".join(f"<p>{line}</p>" for line in lines)}</div>'


def render_blind_test(found: Evaluation, digest: str) -> str:
    """A page for human ears: rate without knowing who speaks, or choose between two."""
    if not any(one.wav for one in found.utterances):
        return ""
    buttons = "".join(
        f'<button class="pill" type="button" data-mode="{mode}" aria-pressed="false">{title}</button>'
        for mode, title in (("rate", "Rate 1 to 5"), ("choose", "A or B"), ("results", "Results"))
    )
    return (
        '<div class="blind"><p class="lead">Recognisers are not people. Rate what you hear without knowing who speaks; '
        "the order is drawn anew for every browser. Your answers stay in this browser until you download them.</p>"
        f'<div class="tabs">{buttons}<button class="pill" type="button" id="download">Download as JSON</button>'
        '<button class="pill" type="button" id="again">Start again</button></div>'
        f'<div class="card stage" id="stage" data-report="{digest}"></div></div>'
    )


def render_method(document: Mapping[str, Any], found: Evaluation) -> str:
    """Who listened, to which sentences, in which voices; what was not measured, and why."""
    listener = document["listener"]
    heard = listener["name"] or f"nobody: {listener['why']}"
    sets = "; ".join(_format_sentence_set(language, one) for language, one in document["sentences"].items())
    sampling = ", ".join(f"{name} {value}" for name, value in document["sampling"].items())
    rows = {
        "recogniser": heard,
        "sentences": sets,
        "voices": ", ".join(document["voices"]),
        "drawn with": f"{sampling}; seed {document['seed']}",
        "lengths": "; ".join(f"{language_name(name)}: {words}" for name, words in found.paces.items()),
        "base": document["base"],
        "computed on": f"{document['device']} in {document['dtype']}, torch {document['versions']['torch']}",
    }
    facts = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in rows.items())
    meanings = "".join(f"<dt>{escape(one.title)}</dt><dd>{escape(one.about)}</dd>" for one in SCORE_MEASURES)
    missing = "".join(
        f"<dt>{escape(_shorten_list(entry['what']))}</dt><dd>{escape(entry['why'])}</dd>"
        for entry in document["not_measured"]
    )
    return (
        f'<div class="card"><dl>{facts}</dl></div>'
        f'<div id="words">{_render_details("What the words mean", meanings)}</div>'
        f"{_render_details('What was not measured, and why', missing)}"
    )


def _render_details(title: str, entries: str) -> str:
    """A list that opens when it is asked for; nothing of nothing."""
    return f'<details class="card"><summary>{title}</summary><dl>{entries}</dl></details>' if entries else ""


def _render_figure(what: str, big: str, note: str, style: str = "") -> str:
    return (
        f'<div class="card figure"><div class="what">{escape(what)}</div>'
        f'<div class="big {style}">{_join_percent_signs(escape(big))}</div><div class="note">{_join_percent_signs(escape(note))}</div></div>'
    )


def _render_new_language_figure(document: Mapping[str, Any], found: Evaluation) -> str:
    if found.language is None:
        return ""
    name, now = choose_main_error(found), found.row(found.language, WHO_AFTER)
    if now is None:
        return ""
    what = language_name(found.language)
    if name is None:
        return _render_unrecognized_figure(document, now, what)
    before = found.row(found.language, WHO_BEFORE)
    old = f", before {format_score(name, before.score(name))}" if before else ""
    own = now.score(name)
    between = _format_bare_interval(name, own)
    return _render_figure(
        f"{what}, {measure_title(name)}", format_score(name, own), f"{between}{old}".removeprefix(", ")
    )


def _render_unrecognized_figure(document: Mapping[str, Any], now: ScoreRow, what: str) -> str:
    """Without a recogniser: whether the text is used at all, which is what can be known."""
    why = f"No error rate: {document['listener']['why']}"
    for name, note in (
        ("text_use", "nats that another sentence's text costs a code of held-out speech; 0 is speech without its text"),
        ("length_fit", "correlation of the length of the speech with that of the text; 0 is speech without its text"),
    ):
        if (score := now.score(name)).value is not None:
            return _render_figure(f"{what}, {measure_title(name)}", format_score(name, score), f"{note}. {why}")
    return _render_figure(f"{what}, recognised", "–", why)


def _render_retention_figure(found: Evaluation) -> str:
    word = summarize_retention(found)
    names = ", ".join(language_name(kept.language) for kept in found.kept) or "no language of the base"
    assert found.change is not None
    style = {"equal": "good", "not equal": "bad"}.get(word, "soft")
    return _render_figure(
        f"{names}: speech logits", word, f"{found.change.changed:,} of {found.change.total:,} values changed", style
    )


def _render_reference_figure(found: Evaluation) -> str:
    """The mark of the headline's own error; else of letters, beside what the graft has of that."""
    main = choose_main_error(found)
    marks = [row for row in found.rows if row.who in (WHO_RECORDINGS, WHO_CODEC) and row.language == found.language]
    for name in dict.fromkeys(filter(None, (main, "cer"))):
        row = next((row for row in marks if row.score(name).value is not None), None)
        if row is None:
            continue
        told = f"of {_row_name(row)}"
        if name != main and main is not None and (now := found.row(row.language, WHO_AFTER)) is not None:
            told += f"; now {format_score(name, now.score(name))} (no mark for {measure_title(main)})"
        return _render_figure(f"the mark, {measure_title(name)}", format_score(name, row.score(name)), told)
    return ""


def _render_stop_figure(found: Evaluation) -> str:
    now = found.row(found.language, WHO_AFTER) if found.language else None
    if now is None or now.score("runaway").value is None:
        return ""
    runaway, cut = now.score("runaway"), now.score("cut")
    failures = max(runaway.value or 0.0, cut.value or 0.0)
    return _render_figure(
        "stop failures",
        f"{100 * failures:.0f} %",
        f"{format_score('runaway', runaway)} ran on, {format_score('cut', cut)} were cut off",
    )


def _format_bare_interval(name: str, score: Score) -> str:
    """An interval in words, without signs that stand beside the value already."""
    if score.low is None or score.high is None or score.low == score.high:
        return ""
    low, high = (format_score(name, Score(value)).removesuffix(" %") for value in (score.low, score.high))
    return f"{low} to {high}"


def _join_percent_signs(text: str) -> str:
    """A number and its sign stay on one line."""
    return text.replace(" %", "\u00a0%")


def _describe_measure(name: str) -> str:
    return next((one.about[0].lower() + one.about[1:] for one in SCORE_MEASURES if one.name == name), "")


def _render_bar(row: ScoreRow, score: Score, name: str, scale: float) -> str:
    label = escape(_row_name(row))
    if score.value is None:
        track = f'<div class="track" title="{escape(score.why)}"></div>'
        return f'<div class="bar"><div class="name">{label}</div>{track}<div class="value soft">–</div></div>'

    def place(value: float) -> float:
        return min(100.0, 100 * value / scale)

    whisker = ""
    if score.low is not None and score.high is not None:
        left = place(score.low)
        whisker = (
            f'<div class="whisker" style="left:{left:.2f}%;width:{max(0.3, place(score.high) - left):.2f}%"></div>'
        )
    fill = f'<div class="fill {row.who}" style="width:{place(score.value):.2f}%"></div>'
    return (
        f'<div class="bar"><div class="name">{label}</div><div class="track">{fill}{whisker}</div>'
        f'<div class="value">{_join_percent_signs(format_score(name, score))}</div></div>'
    )


def _render_cell(name: str, score: Score) -> str:
    if score.value is None:
        return f'<span class="soft" title="{escape(score.why)}">–</span>'
    between = _format_bare_interval(name, score)
    return _join_percent_signs(format_score(name, score)) + (f"<small>{between}</small>" if between else "")


def _render_word_kinds_table(found: Evaluation) -> str:
    """Words that training may have heard, and words that it cannot have heard, apart."""
    rows = []
    for row in found.rows:
        kinds = [row.scores.get(f"{name}_{kind}") for name in ("phone_error", "cer") for kind in ("common", "rare")]
        if row.who in (WHO_BEFORE, WHO_AFTER) and any(score is not None and score.value is not None for score in kinds):
            cells = "".join(f'<td class="num">{_render_cell("cer", score or Score(None))}</td>' for score in kinds)
            rows.append(f"<tr><td>{escape(language_name(row.language))}</td><td>{ROW_NAMES[row.who]}</td>{cells}</tr>")
    if not rows:
        return ""
    head = "".join(
        f'<th class="num">{error}, {kind}</th>'
        for error in ("phone error", "letter error")
        for kind in ("common words", "rare words")
    )
    table = f"<table><thead><tr><th>language</th><th>who</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="card scroll">{table}</div>'


def _render_code(text: str) -> str:
    """Commands between backquotes as such."""
    parts = text.split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _list_played_sentences(
    found: Evaluation, language: str
) -> Iterator[tuple[EvaluatedUtterance | None, EvaluatedUtterance | None, EvaluatedUtterance | None]]:
    """Before, after and original of every sentence of which at least one can be heard."""
    by_text: dict[str, dict[str, EvaluatedUtterance]] = {}
    for one in found.utterances:
        if one.sentence.language == language:
            by_text.setdefault(one.sentence.text, {})[one.who] = one
    for pair in by_text.values():
        if any(one.wav for one in pair.values()):
            yield pair.get(WHO_BEFORE), pair.get(WHO_AFTER), pair.get(WHO_ORIGINAL)


def _render_sentence(
    language: str,
    number: int,
    before: EvaluatedUtterance | None,
    after: EvaluatedUtterance | None,
    original: EvaluatedUtterance | None,
) -> str:
    one = after or before
    assert one is not None
    rare = ' <span class="tag">rare words</span>' if one.sentence.rare else ""
    text = f'<div class="text" lang="{escape(language)}" dir="auto">{escape(one.sentence.text)}{rare}</div>'
    spoken = [(said, said.who) for said in (before, after) if said is not None]
    if before is not None and after is not None and before.wav is not None and before.wav == after.wav:
        spoken = [(after, "before and after, code for code the same")]
    if original is not None:
        spoken.append((original, PLAYER_TITLES[WHO_ORIGINAL]))
    players = "".join(_render_player(said, number, title) for said, title in spoken)
    return f'<div class="card say">{text}{players}</div>'


def _render_player(one: EvaluatedUtterance, number: int, title: str) -> str:
    language = one.sentence.language
    error = next((value for name in ("phone_error", "cer") if (value := one.errors.get(name)) is not None), None)
    facts = [f"{one.seconds:.1f} s"]
    facts += [] if error is None else [f"{100 * error:.0f} % wrong"]
    facts += [] if one.stopped or one.num_codes is None else ["ran on"]
    heard = (
        f'<span class="heard" lang="{escape(language)}" dir="auto">“{escape(one.heard.text)}”</span>'
        if one.heard
        else ""
    )
    who = f'<span><span class="dot {one.who}"></span> {escape(title)}</span>'
    head = f'<div class="who">{who}{heard}<span>{", ".join(facts)}</span></div>'
    if one.wav is None:
        return head + f'<div class="soft">{escape(one.why or "no sound")}</div>'
    source = base64.b64encode(one.wav).decode()
    data = {
        "clip": f"{language}-{number}-{one.who}",
        "sentence": f"{language}-{number}",
        "language": language,
        "who": one.who,
        "text": one.sentence.text,
    }
    marked = " ".join(f'data-{key}="{escape(value)}"' for key, value in data.items())
    return f'{head}<audio controls preload="none" {marked} src="data:audio/wav;base64,{source}"></audio>'


def _format_sentence_set(language: str, one: Mapping[str, Any]) -> str:
    words = f"{language_name(language)}: {one['count']} sentences, {one['rare']} with rare words ({one['source']}); "
    if "training" in one:
        return words + str(one["training"])
    seen, heard = len(one["seen_in_training"]), one["rare_words_in_training"]
    return f"{words}{seen} of the sentences and {len(heard)} of the rare words stand in the training texts"


def _shorten_list(what: Sequence[str]) -> str:
    return ", ".join(what[:6]) + (f" and {len(what) - 6} more" if len(what) > 6 else "")


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
    return resources.files("voxgraft").joinpath(f"assets/report/{name}").read_text(encoding="utf-8")


def _hash_utterances(document: Mapping[str, Any]) -> str:
    """A name for what was heard, so that a browser keeps the answers of one report apart from those of another."""
    text = json.dumps(document["utterances"], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
