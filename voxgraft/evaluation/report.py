"""Curves of a run as charts inside a page. Draws what a `History` holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from voxgraft.core.journal import SPEECH_LOSS, History
from voxgraft.core.languages import find_exemplar
from voxgraft.core.results import LEVEL_COLOR, SERIES_COLORS, data_url, draw_inline_chart, render_page
from voxgraft.evaluation.audio import WHO_CODEC, WHO_RECORDINGS
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

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes


MAX_CHART_POINTS = 240
MAX_MARKED_POINTS = 30
"""A curve of more points is a line alone."""


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One curve."""

    label: str
    points: Sequence[tuple[int, float]]
    color: int = 0
    faint: bool = False


def draw_history_charts(history: History) -> list[Markup]:
    """The curves that a reader of a report asks for, each as a card; none that has no points."""
    speech = [
        ChartSeries("training", history.train(SPEECH_LOSS), 1, faint=True),
        ChartSeries("held out", history.held_out(SPEECH_LOSS), 0),
    ]
    uses = [
        ChartSeries(use.partition("_")[0], history.held_out(use), number)
        for number, use in enumerate(("text_use", "voice_use"))
    ]
    old = [
        ChartSeries(name, [(step, 100 * share) for step, share in history.retention(name)], number)
        for number, name in enumerate(history.base_languages)
    ]
    heard = [
        ChartSeries(title, [(step, 100 * value) for step, value in history.held_out("heard", name)], number)
        for number, (name, title) in enumerate((("phone_error", "phone error"), ("cer", "letter error")))
    ]
    level = history.initial_loss(SPEECH_LOSS)
    return [
        *draw_chart("Speech loss, nats a code", speech, [] if level is None else [level]),
        *draw_chart("Use of text and voice: loss when swapped, less loss", uses, [0.0]),
        *draw_chart("Error heard while training, %", heard, [0.0]),
        *draw_chart("Old languages: rise of the speech loss, %", old, [0.0]),
    ]


def draw_chart(title: str, series: Sequence[ChartSeries], levels: Sequence[float] = ()) -> list[Markup]:
    """One picture with its legend, or nothing where there is nothing to draw. `levels` are drawn as dashed lines."""
    drawn = tuple(replace(one, points=tuple(_thin_points(one.points))) for one in series if one.points)
    return [_draw_lines(title, drawn, tuple(levels))] if drawn else []


@lru_cache(maxsize=64)  # a page that follows a run asks for the same picture every few seconds
def _draw_lines(title: str, series: tuple[ChartSeries, ...], levels: tuple[float, ...]) -> Markup:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def draw(axes: Axes) -> None:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))  # there is no half a step
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.margins(x=0.01, y=0.06)
        for level in levels:
            axes.axhline(level, color=LEVEL_COLOR, linestyle=(0, (3, 4)), linewidth=1)
        for one in sorted(series, key=lambda one: not one.faint):
            steps, values = zip(*one.points, strict=True)
            dots = "o" if len(steps) == 1 or (len(steps) <= MAX_MARKED_POINTS and not one.faint) else ""
            color = SERIES_COLORS[one.color % len(SERIES_COLORS)]
            axes.plot(steps, values, color=color, alpha=0.45 if one.faint else 1, marker=dots, markersize=4.5)

    return draw_inline_chart(title, draw, [(one.color % len(SERIES_COLORS), one.label) for one in series])


def _thin_points(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """At most so many as can be seen, each the mean of its neighbours."""
    if len(points) <= MAX_CHART_POINTS:
        return points
    size = -(-len(points) // MAX_CHART_POINTS)
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


ANSWER_SIGNS = {"yes": ("✓", "good", "yes"), "no": ("✗", "bad", "no"), "unknown": ("–", "soft", "not measured")}
NOT_YET_SIGN = ("○", "soft", "not yet")
RETENTION_STYLES = {"equal": "good", "not equal": "bad"}
ROW_NAMES = {
    WHO_BEFORE: "base, before",
    WHO_AFTER: "after",
    WHO_SHUFFLED: "control: other sentences' text",
    WHO_CODEC: "held-out clips through the codec",
}
ORIGINAL_TITLE = "original recording"
Figure = tuple[str, str, str, str]
"""One large number of the page: what it is, the number, a note, and a style."""


def render_report(
    document: Mapping[str, Any], found: Evaluation, points: Sequence[ChecklistItem], history: History | None
) -> str:
    """The whole page. `document` is what scores.json holds."""
    main = choose_main_error(found)
    played = [(language, cards) for language in found.languages if (cards := _list_sentence_cards(found, language))]
    return render_page(
        "evaluation.html",
        document=document,
        found=found,
        points=points,
        figures=list_figures(document, found),
        main_error=main,
        about_main_error=next((one.about[0].lower() + one.about[1:] for one in SCORE_MEASURES if one.name == main), ""),
        scale=_choose_bar_scale(found, main),
        measures=select_shown_measures(found.rows),
        word_kinds=_list_word_kinds(found),
        played=played,
        has_heard=any(one.heard for one in found.utterances),
        has_original=any(one.who == WHO_ORIGINAL for one in found.utterances),
        listener_cure=str(document["listener"].get("how", "")).split("`"),
        charts=draw_history_charts(history) if history is not None else [],
        retention=summarize_retention(found),
        retention_style=RETENTION_STYLES.get(summarize_retention(found), "soft"),
        digest=_hash_utterances(document),
        method=_describe_method(document, found),
        meanings=[(one.title, one.about) for one in SCORE_MEASURES],
        missing=[(_shorten_list(entry["what"]), entry["why"]) for entry in document["not_measured"]],
        answer_sign=lambda point: NOT_YET_SIGN if is_unreached_goal(point) else ANSWER_SIGNS[point.answer],
        language_name=language_name,
        row_name=_row_name,
        format_score=format_score,
        format_interval=_format_interval,
        measure_title=measure_title,
    )


def language_name(code: str | None) -> str:
    """A language as people call it in English."""
    entry = find_exemplar(code) if code else None
    return entry.name if entry else str(code)


def _row_name(row: ScoreRow) -> str:
    return ROW_NAMES.get(row.who) or row.title.removeprefix("mark: ")


def _format_interval(name: str, score: Score) -> str:
    """An interval in words, without signs that stand beside the value already."""
    if score.low is None or score.high is None or score.low == score.high:
        return ""
    low, high = (format_score(name, Score(value)).removesuffix(" %") for value in (score.low, score.high))
    return f"{low} to {high}"


# ---- the large numbers ----------------------------------------------------------------------------------------------


def list_figures(document: Mapping[str, Any], found: Evaluation) -> list[Figure]:
    """The few numbers that matter most."""
    assert found.change is not None
    word = summarize_retention(found)
    names = ", ".join(language_name(kept.language) for kept in found.kept) or "no language of the base"
    changed = f"{found.change.changed:,} of {found.change.total:,} values changed"
    now = found.row(found.language, WHO_AFTER) if found.language else None
    figures = [] if now is None else [_new_language_figure(document, found, now)]
    figures.append((f"{names}: speech logits", word, changed, RETENTION_STYLES.get(word, "soft")))
    figures += _reference_figures(found)
    if now is not None and now.score("runaway").value is not None:
        runaway, cut = now.score("runaway"), now.score("cut")
        failures = f"{100 * max(runaway.value or 0.0, cut.value or 0.0):.0f} %"
        note = f"{format_score('runaway', runaway)} ran on, {format_score('cut', cut)} were cut off"
        figures.append(("stop failures", failures, note, ""))
    return figures


def _new_language_figure(document: Mapping[str, Any], found: Evaluation, now: ScoreRow) -> Figure:
    """The main error before and after. Without a recogniser: whether the text is used at all."""
    what = language_name(found.language)
    if (name := choose_main_error(found)) is not None:
        before = found.row(now.language, WHO_BEFORE)
        notes = [_format_interval(name, now.score(name))]
        notes += [f"before {format_score(name, before.score(name))}"] if before else []
        return f"{what}, {measure_title(name)}", format_score(name, now.score(name)), ", ".join(filter(None, notes)), ""
    why = f"No error rate: {document['listener']['why']}"
    for name, note in (
        ("text_use", "nats that another sentence's text costs a code of held-out speech; 0 is speech without its text"),
        ("length_fit", "correlation of the length of the speech with that of the text; 0 is speech without its text"),
    ):
        if (score := now.score(name)).value is not None:
            return f"{what}, {measure_title(name)}", format_score(name, score), f"{note}. {why}", ""
    return f"{what}, recognised", "–", why, ""


def _reference_figures(found: Evaluation) -> list[Figure]:
    """The mark of the headline's own error; else of letters, beside what the graft has of that."""
    main = choose_main_error(found)
    marks = [row for row in found.rows if row.who in (WHO_RECORDINGS, WHO_CODEC) and row.language == found.language]
    for name in dict.fromkeys(filter(None, (main, "cer"))):
        row = next((row for row in marks if row.score(name).value is not None), None)
        if row is None:
            continue
        note = f"of {_row_name(row)}"
        if name != main and main is not None and (now := found.row(row.language, WHO_AFTER)) is not None:
            note += f"; now {format_score(name, now.score(name))} (no mark for {measure_title(main)})"
        return [(f"the mark, {measure_title(name)}", format_score(name, row.score(name)), note, "")]
    return []


# ---- scores ---------------------------------------------------------------------------------------------------------


def _choose_bar_scale(found: Evaluation, main: str | None) -> float:
    """The error at which a bar is full: 100 % where errors are large, so that they can be compared across reports."""
    if main is None:
        return 1.0
    highest = max((row.score(main).high or row.score(main).value or 0.0 for row in found.rows), default=0.0)
    return max(1.0, min(highest, 1.6)) if highest > 0.5 else max(highest * 1.15, 0.05)


def _list_word_kinds(found: Evaluation) -> list[tuple[ScoreRow, list[Score]]]:
    """Words that training may have heard, and words that it cannot have heard, apart."""
    rows = []
    for row in found.rows:
        kinds = [row.scores.get(f"{name}_{kind}") for name in ("phone_error", "cer") for kind in ("common", "rare")]
        if row.who in (WHO_BEFORE, WHO_AFTER) and any(score is not None and score.value is not None for score in kinds):
            rows.append((row, [score or Score(None) for score in kinds]))
    return rows


# ---- players --------------------------------------------------------------------------------------------------------


def _list_sentence_cards(found: Evaluation, language: str) -> list[dict[str, Any]]:
    """Before, after and original of every sentence of which at least one can be heard."""
    by_text: dict[str, dict[str, EvaluatedUtterance]] = {}
    for one in found.utterances:
        if one.sentence.language == language:
            by_text.setdefault(one.sentence.text, {})[one.who] = one
    heard = [spoken for spoken in by_text.values() if any(one.wav for one in spoken.values())]
    cards = []
    for number, spoken in enumerate(heard):
        before, after, original = (spoken.get(who) for who in (WHO_BEFORE, WHO_AFTER, WHO_ORIGINAL))
        either = after or before
        assert either is not None
        players = [(said, said.who) for said in (before, after) if said is not None]
        if before is not None and after is not None and before.wav is not None and before.wav == after.wav:
            players = [(after, "before and after, code for code the same")]
        if original is not None:
            players.append((original, ORIGINAL_TITLE))
        described = [_describe_player(said, number, title) for said, title in players]
        cards.append({"text": either.sentence.text, "rare": either.sentence.rare, "players": described})
    return cards


def _describe_player(one: EvaluatedUtterance, number: int, title: str) -> dict[str, Any]:
    language = one.sentence.language
    error = next((value for name in ("phone_error", "cer") if (value := one.errors.get(name)) is not None), None)
    facts = [f"{one.seconds:.1f} s"]
    facts += [] if error is None else [f"{100 * error:.0f} % wrong"]
    facts += [] if one.stopped or one.num_codes is None else ["ran on"]
    return {
        "who": one.who,
        "title": title,
        "language": language,
        "heard": one.heard.text if one.heard else None,
        "facts": facts,
        "why": one.why or "no sound",
        "source": None if one.wav is None else data_url(one.wav, "audio/wav"),
        "data": {  # what the blind listening test knows of a player
            "data-clip": f"{language}-{number}-{one.who}",
            "data-sentence": f"{language}-{number}",
            "data-language": language,
            "data-who": one.who,
            "data-text": one.sentence.text,
        },
    }


def _hash_utterances(document: Mapping[str, Any]) -> str:
    """A name for what was heard, so that a browser keeps the answers of one report apart from those of another."""
    text = json.dumps(document["utterances"], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- how it was measured --------------------------------------------------------------------------------------------


def _describe_method(document: Mapping[str, Any], found: Evaluation) -> list[tuple[str, str]]:
    """Who listened, to which sentences, in which voices."""
    listener = document["listener"]
    sampling = ", ".join(f"{name} {value}" for name, value in document["sampling"].items())
    return [
        ("recogniser", listener["name"] or f"nobody: {listener['why']}"),
        ("sentences", "; ".join(_format_sentence_set(name, one) for name, one in document["sentences"].items())),
        ("voices", ", ".join(document["voices"])),
        ("drawn with", f"{sampling}; seed {document['seed']}"),
        ("lengths", "; ".join(f"{language_name(name)}: {words}" for name, words in found.paces.items())),
        ("base", str(document["base"])),
        ("computed on", f"{document['device']} in {document['dtype']}, torch {document['versions']['torch']}"),
    ]


def _format_sentence_set(language: str, one: Mapping[str, Any]) -> str:
    words = f"{language_name(language)}: {one['count']} sentences, {one['rare']} with rare words ({one['source']}); "
    if "training" in one:
        return words + str(one["training"])
    seen, heard = len(one["seen_in_training"]), one["rare_words_in_training"]
    return f"{words}{seen} of the sentences and {len(heard)} of the rare words stand in the training texts"


def _shorten_list(what: Sequence[str]) -> str:
    return ", ".join(what[:6]) + (f" and {len(what) - 6} more" if len(what) > 6 else "")
