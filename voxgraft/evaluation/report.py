"""Results of an evaluation: the checklist that the scores tick, scores.json, and the HTML report.

Every point of the checklist is answered by measurements alone. A point that was not measured is neither ticked nor
crossed, and says why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from voxgraft.core.errors import FileError
from voxgraft.core.files import read_json, require_file
from voxgraft.core.languages import find_exemplar
from voxgraft.core.results import LEVEL_COLOR, SERIES_COLORS, data_url, draw_inline_chart, render_page
from voxgraft.core.run import SPEECH_LOSS, History
from voxgraft.evaluation.judge import (
    WHO_AFTER,
    WHO_BEFORE,
    WHO_CODEC,
    WHO_ORIGINAL,
    WHO_RECORDINGS,
    WHO_SHUFFLED,
    Evaluation,
    LanguageRetention,
)
from voxgraft.evaluation.scores import (
    ERROR_MEASURES,
    SCORE_MEASURES,
    Score,
    ScoreRow,
    format_score,
    measure_title,
    select_shown_measures,
)
from voxgraft.synthesis.engine import SpeakingModel
from voxgraft.training.validation import LearningThresholds

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

# Written into scores.json; `compare` and `export` refuse any other.
SCORES_FORMAT = "voxgraft-scores-1"
SCORES_NAME = "scores.json"
MAX_SCORES_BYTES = 64 << 20
ChecklistAnswer = Literal["yes", "no", "unknown"]
# Within three points of the recognizer's own error on recordings, the mark counts as reached.
REFERENCE_TOLERANCE = 0.03
# A recognizer that gets half of the recordings wrong says nothing about speech.
MAX_RECOGNIZER_ERROR = 0.5
# Share of the sentences that may run on, be cut off or repeat themselves: 2 of 100.
MAX_FAILURE_RATE = 0.02
# Length against the usual one: a quarter slower, or the same ratio faster.
PACE_RANGE = (0.8, 1.25)
# Of an old language's error where it is not proven equal: another seed changes about a point.
MAX_ERROR_RISE = 0.01
MAX_CHART_POINTS = 240
# A curve of more points is a line alone.
MAX_MARKED_POINTS = 30
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
# What tells whether the text is used where no recognizer does, the more telling first.
TEXT_USE_NOTES = {
    "text_use": "Increase of the loss with another sentence's text, nats per code; 0: the text is not used",
    "length_fit": "Correlation of speech length and text length; 0: the text is not used",
}
# One large number of the page: what it is, the number, a note, and a style.
Figure = tuple[str, str, str, str]
# One curve of a chart: its label, steps with values, number of its colour, and whether it is drawn faintly.
ChartSeries = tuple[str, Sequence[tuple[int, float]], int, bool]


class ChecklistItem(NamedTuple):
    """One line of the checklist."""

    name: str
    question: str
    answer: ChecklistAnswer
    found: str


def choose_main_error(found: Evaluation) -> str | None:
    """The error that is looked at first: of phones if the new language has it, else of letters; None without any."""
    row = found.row(found.language or next(iter(found.languages), ""), WHO_AFTER)
    return next((name for name in ERROR_MEASURES[:2] if row is not None and row.score(name).value is not None), None)


def summarize_retention(found: Evaluation) -> str:
    """Equal, not equal, or not measured: base speech logits with and without what was added."""
    answers = [retention.equal for retention in found.kept]
    if not answers or None in answers:
        return "not measured"
    return "equal" if all(answers) else "not equal"


def find_worst_change(found: Evaluation, name: str) -> tuple[tuple[str, float] | None, list[str]]:
    """The base language whose score rose most, and by how much; and those without a score.

    A language that is proven equal has not changed at all, whatever chance drew.
    """
    rises: dict[str, float] = {}
    for retention in found.kept:
        old, new = (found.score(retention.language, role, name).value for role in (WHO_BEFORE, WHO_AFTER))
        if retention.equal:
            rises[retention.language] = 0.0
        elif old is not None and new is not None:
            rises[retention.language] = new - old
    missing = [retention.language for retention in found.kept if retention.language not in rises]
    return max(rises.items(), key=lambda item: item[1], default=None), missing


def is_unreached_goal(point: ChecklistItem) -> bool:
    """Whether a no is only a goal that is not reached yet: nothing is broken."""
    return point.name == "near-mark" and point.answer == "no"


def build_checklist(found: Evaluation, after: SpeakingModel) -> list[ChecklistItem]:
    """Every point, in the order in which a reader asks."""
    assert found.change is not None
    change = found.change
    message = f"{change['changed']:,} of {change['total']:,} values of the base changed"
    if change["changed"] and not after.keeps_base:
        message += f": this is {after.mode}, not a graft"
    elif after.gate is not None and not after.keeps_base:
        message += ", but its adapter is active for every language"
    base_item = ChecklistItem(
        "base-values", "Is the base itself unchanged?", "no" if change["changed"] else "yes", message
    )
    points = [base_item, _check_old_languages(found, after)]
    now = found.row(found.language, WHO_AFTER) if found.language is not None else None
    if now is not None:
        points += [_check_intelligible(found, now), _check_near_reference(found, now), *_check_delivery(found, now)]
    return points


def _check_old_languages(found: Evaluation, after: SpeakingModel) -> ChecklistItem:
    question = "Do the old languages sound as before?"
    word = summarize_retention(found)
    if word == "equal":
        names = ", ".join(retention.language for retention in found.kept)
        positions = sum(retention.positions for retention in found.kept)
        message = f"speech logits are equal at all {positions:,} positions: {names}"
        return ChecklistItem("old-languages", question, "yes", message)
    if word == "not measured":
        return ChecklistItem("old-languages", question, "unknown", "no base language was evaluated")
    # Not proven equal: then the change of the error decides, or of the loss where nothing was transcribed.
    name = choose_main_error(found) or "speech_loss"
    if after.keeps_base:
        largest = max(retention.largest_difference or 0.0 for retention in found.kept)
        return ChecklistItem("old-languages", question, "no", f"speech logits differ by up to {largest:.3g}")
    worst, missing = find_worst_change(found, name)
    if worst is None:
        message = "logits differ; the effect on speech was not measured"
        return ChecklistItem("old-languages", question, "unknown", message)
    language, rise = worst
    change = f"{rise:+.3f} nats" if name == "speech_loss" else f"{100 * rise:+.1f} points"
    message = f"{measure_title(name)} of {language} has changed by {change}"
    if missing:
        message += f"; not measured: {', '.join(missing)}"
    answer: ChecklistAnswer = "no" if rise > MAX_ERROR_RISE else "unknown" if missing else "yes"
    return ChecklistItem("old-languages", question, answer, message)


def _check_intelligible(found: Evaluation, now: ScoreRow) -> ChecklistItem:
    """Better than the base without a graft, and than the same speech compared with other texts, beyond chance."""
    question, name = "Is the new language understood better than by chance?", choose_main_error(found)
    if name is None:
        return ChecklistItem("speaks", question, "unknown", f"not transcribed: {now.score('cer').why}")
    own = now.score(name)
    titles = {WHO_BEFORE: "the base without the graft", WHO_SHUFFLED: "compared with texts of other sentences"}
    controls = [row for row in found.rows if row.language == now.language and row.who in titles]
    known = {row.who: row.score(name) for row in controls if row.score(name).low is not None}
    # Beyond chance: the two intervals do not overlap.
    better = bool(known) and all((own.high or 0.0) < (score.low or 0.0) for score in known.values())
    against = ", ".join(f"{titles[role]} {format_score(name, score)}" for role, score in known.items())
    message = f"{measure_title(name)} {format_with_interval(name, own)}; {against or 'no control was measured'}"
    return ChecklistItem("speaks", question, "yes" if better else "no" if known else "unknown", message)


def _check_near_reference(found: Evaluation, now: ScoreRow) -> ChecklistItem:
    question = "Is it as clear as recordings, for the same recognizer?"
    for name in ERROR_MEASURES[:2]:  # phones, else letters: words are too coarse for a mark
        own = now.score(name)
        marks = [found.row(now.language, role) for role in (WHO_RECORDINGS, WHO_CODEC)]
        mark = next((row for row in marks if row is not None and row.score(name).value is not None), None)
        if own.value is None or mark is None:
            continue
        goal = mark.score(name)
        reference = f"{mark.title.removeprefix('reference: ')} {format_score(name, goal)}"
        message = f"{measure_title(name)} {format_score(name, own)}; {reference}"
        if (goal.value or 0.0) > MAX_RECOGNIZER_ERROR:
            message += ": the recognizer does not understand the recordings either"
            return ChecklistItem("near-mark", question, "unknown", message)
        if own.value <= (goal.value or 0.0) + REFERENCE_TOLERANCE:
            return ChecklistItem("near-mark", question, "yes", message)
        message = (
            f"not yet: {message}; {100 * REFERENCE_TOLERANCE:.0f} points above the recordings still count as clear"
        )
        return ChecklistItem("near-mark", question, "no", message)
    return ChecklistItem("near-mark", question, "unknown", "no recordings were transcribed (--recordings FOLDER)")


def _check_delivery(found: Evaluation, now: ScoreRow) -> list[ChecklistItem]:
    """Whether speech follows its text, ends, does not repeat itself, and keeps the pace."""
    use, fit = now.score("text_use"), now.score("length_fit")
    reads = use.why
    if use.value is not None:
        reads = f"with another sentence's text, the loss on held-out speech changes by {use.value:+.3f} nats per code"
    if fit.value is not None:
        reads += f"; the correlation of spoken length and text length is {fit.value:.2f}"

    runaway, cut = now.score("runaway"), now.score("cut")
    ends = f"{format_score('runaway', runaway)} did not stop, {format_score('cut', cut)} were cut off"
    stops = runaway.why if runaway.value is None else f"{ends}, of {runaway.count} sentences"
    failures = max(runaway.value or 0.0, cut.value or 0.0)

    share, distinct = now.score("repeats"), now.score("distinct")
    loops = share.why
    if share.value is not None:
        loops = f"{format_score('repeats', share)} of {share.count} sentences repeat the same sounds for "
        loops += "two seconds or more"
        if distinct.value is not None and distinct.value < 1:
            same = format_score("distinct", Score(1 - distinct.value))
            loops += f"; {same} are identical to the speech of another sentence"

    ratio, (low, high) = now.score("duration"), PACE_RANGE
    pace = ratio.why
    if ratio.value is not None:
        pace = f"{ratio.value:.2f} times the usual length ({low} to {high} counts as kept)"
        pace += f"; {found.paces[now.language]}" if found.paces.get(now.language) else ""

    good_text_use = LearningThresholds().good_text_use
    return [
        ChecklistItem(name, question, "unknown" if score.value is None else "yes" if good else "no", message)
        for name, question, score, good, message in (
            ("reads", "Does it read the text?", use, (use.value or 0.0) >= good_text_use, reads),
            ("stops", "Does the speech end?", runaway, failures <= MAX_FAILURE_RATE, stops),
            ("repeats", "Is it free of loops?", share, (share.value or 0.0) <= MAX_FAILURE_RATE, loops),
            ("pace", "Does it keep the pace?", ratio, low <= (ratio.value or 0.0) <= high, pace),
        )
    ]


def build_scores_json(about: dict[str, Any], found: Evaluation, points: list[ChecklistItem]) -> dict[str, Any]:
    """The whole of scores.json."""
    assert found.change is not None
    by_reason: dict[str, list[str]] = {}
    for row in found.rows:
        for name, score in row.scores.items():
            if score.value is None:
                by_reason.setdefault(score.why, []).append(f"{row.language} {row.who} {name}")
    return {
        "format": SCORES_FORMAT,
        **about,
        "language": found.language,
        "rows": [
            {
                "language": row.language,
                "who": row.who,
                "title": row.title,
                "scores": {name: score.to_json() for name, score in row.scores.items()},
            }
            for row in found.rows
        ],
        "retention": {
            "word": summarize_retention(found),
            "base_values": found.change,
            "languages": {
                retention.language: {
                    **{name: value for name, value in retention._asdict().items() if name != "language"},
                    "kl": retention.kl.to_json(),
                }
                for retention in found.kept
            },
        },
        "lengths": found.paces,
        "checklist": [point._asdict() for point in points],
        "not_measured": [{"why": why, "what": what} for why, what in by_reason.items()],
        "utterances": [
            {key: value for key, value in utterance.items() if key != "wav"} for utterance in found.utterances
        ],
    }


def read_scores(path: Path) -> tuple[Evaluation, dict[str, Any], dict[str, str]]:
    """A scores.json of this format, checked: reports are edited by hand and written by other versions.

    Gives the scores and whether languages are equal; what was evaluated; and what must be the same for two evaluations
    to be measured alike (language, sentences, recognizer, base).
    """
    value = read_json(require_file(path), MAX_SCORES_BYTES)
    if not isinstance(value, dict) or value.get("format") != SCORES_FORMAT:
        format_name = value.get("format") if isinstance(value, dict) else None
        raise FileError(
            "scores-format", f"{path.name} has the format {format_name!r}", expected=repr(SCORES_FORMAT), where=path
        )
    rows, retention = value.get("rows"), value.get("retention")
    if not isinstance(rows, list) or not isinstance(retention, dict):
        raise FileError("scores-format", f"`rows` or `retention` is missing in {path.name}", where=path)
    found = Evaluation(value["language"] if isinstance(value.get("language"), str) else None)
    for number, row in enumerate(rows, 1):
        values = row.get("scores") if isinstance(row, dict) else None
        if not isinstance(values, dict):
            raise FileError("scores-format", f"row {number} of {path.name} has no `scores`", where=path)
        for name, score in values.items():
            if not isinstance(score, dict) or not isinstance(score.get("count", 0), int):
                wrong = f"in row {number} of {path.name}, the score {name!r:.60} is {score!r:.80}"
                raise FileError(
                    "scores-format", wrong, expected="an object with `value` and `count`, or with `why`", where=path
                )
        scores = {str(name): Score.from_json(score) for name, score in values.items()}
        language, role, title = (str(row.get(key)) for key in ("language", "who", "title"))
        found.rows.append(ScoreRow(language, role, title, scores))
    languages = retention.get("languages")
    for name, entry in (languages if isinstance(languages, dict) else {}).items():
        equal = entry.get("equal") if isinstance(entry, dict) else None
        found.kept.append(LanguageRetention(str(name), equal, None, 0, 0, 0, Score(None)))
    about = value.get("subject")
    if not isinstance(about, dict) or not isinstance(about.get("mode"), str | None):
        raise FileError("scores-format", f"`subject` (what was evaluated) is missing in {path.name}", where=path)
    recognizer, sentences, base = value.get("listener"), value.get("sentences"), Path(str(value.get("base") or ""))
    sets, digest = sentences if isinstance(sentences, dict) else {}, value.get("base_sha256")
    set_texts = (
        f"{language} {entry.get('count')} of {str(entry.get('sha256'))[:8]}"
        for language, entry in sorted(sets.items())
        if isinstance(entry, dict)
    )
    how = {
        "language": str(value.get("language")),
        "sentences": ", ".join(set_texts) or "?",
        "listener": str(recognizer.get("name") or "nobody") if isinstance(recognizer, dict) else "?",
        "base": f"{base.name} {digest[:8]}" if isinstance(digest, str) else str(base),
    }
    return found, about, how


def render_report(
    document: Mapping[str, Any], found: Evaluation, points: Sequence[ChecklistItem], history: History | None
) -> str:
    """The whole page. `document` is what scores.json holds."""
    main = choose_main_error(found)
    # The error at which a bar is full: 100 % where errors are large, so that they can be compared across reports.
    errors = [row.score(main) for row in found.rows] if main else []
    highest = max((score.high or score.value or 0.0 for score in errors), default=0.0)
    scale = max(1.0, min(highest, 1.6)) if highest > 0.5 else max(highest * 1.15, 0.05)
    # Words that training may have heard, and words that it cannot have heard, apart.
    word_kinds = []
    for row in found.rows:
        kinds = [row.scores.get(f"{name}_{kind}") for name in ("phone_error", "cer") for kind in ("common", "rare")]
        if row.who in (WHO_BEFORE, WHO_AFTER) and any(score is not None and score.value is not None for score in kinds):
            word_kinds.append((row, [score or Score(None) for score in kinds]))
    missing = []
    for entry in document["not_measured"]:
        what = entry["what"]
        more = f" and {len(what) - 6} more" if len(what) > 6 else ""
        missing.append((", ".join(what[:6]) + more, entry["why"]))
    utterances_json = json.dumps(document["utterances"], sort_keys=True, ensure_ascii=False)
    return render_page(
        "evaluation.html",
        document=document,
        found=found,
        points=points,
        figures=list_figures(document, found),
        main_error=main,
        about_main_error=SCORE_MEASURES[main][2][0].lower() + SCORE_MEASURES[main][2][1:] if main else "",
        scale=scale if main else 1.0,
        measures=[(name, *SCORE_MEASURES[name]) for name in select_shown_measures(found.rows)],
        word_kinds=word_kinds,
        played=[(name, cards) for name in found.languages if (cards := _list_sentence_cards(found, name))],
        has_heard=any(utterance["heard"] for utterance in found.utterances),
        has_original=any(utterance["who"] == WHO_ORIGINAL for utterance in found.utterances),
        listener_cure=str(document["listener"].get("how", "")).split("`"),
        charts=draw_history_charts(history) if history is not None else [],
        retention=summarize_retention(found),
        retention_style=RETENTION_STYLES.get(summarize_retention(found), "soft"),
        # A browser keeps the answers of a listening test under this name.
        digest=hashlib.sha256(utterances_json.encode()).hexdigest()[:16],
        method=_describe_method(document, found),
        meanings=[(title, about) for title, _, about in SCORE_MEASURES.values()],
        missing=missing,
        answer_sign=lambda point: NOT_YET_SIGN if is_unreached_goal(point) else ANSWER_SIGNS[point.answer],
        language_name=language_name,
        row_name=_row_name,
        format_score=format_score,
        format_interval=format_interval,
        measure_title=measure_title,
    )


def language_name(code: str | None) -> str:
    """A language as people call it in English."""
    entry = find_exemplar(code) if code else None
    return entry.name if entry else str(code)


def _row_name(row: ScoreRow) -> str:
    return ROW_NAMES.get(row.who) or row.title.removeprefix("reference: ")


def format_interval(name: str, score: Score) -> str:
    """An interval in words, without signs that are next to the value already."""
    if score.low is None or score.high is None or score.low == score.high:
        return ""
    low, high = (format_score(name, Score(value)).removesuffix(" %") for value in (score.low, score.high))
    return f"{low} to {high}"


def format_with_interval(name: str, score: Score) -> str:
    """A score with its interval in brackets."""
    between = format_interval(name, score)
    return f"{format_score(name, score)} ({between})" if between else format_score(name, score)


def list_figures(document: Mapping[str, Any], found: Evaluation) -> list[Figure]:
    """The few numbers that matter most."""
    assert found.change is not None
    word = summarize_retention(found)
    names = ", ".join(language_name(retention.language) for retention in found.kept) or "no language of the base"
    changed = f"{found.change['changed']:,} of {found.change['total']:,} values changed"
    main, now = choose_main_error(found), found.row(found.language, WHO_AFTER) if found.language else None
    figures: list[Figure] = []
    if now is not None and main is not None:
        before = found.row(now.language, WHO_BEFORE)
        notes = [format_interval(main, now.score(main))]
        notes += [f"before {format_score(main, before.score(main))}"] if before else []
        what = f"{language_name(found.language)}, {measure_title(main)}"
        figures.append((what, format_score(main, now.score(main)), ", ".join(filter(None, notes)), ""))
    elif now is not None:
        # Without a recognizer: whether the text is used at all.
        what, big, note = "recognized", "–", f"No error rate: {document['listener']['why']}"
        if name := next((name for name in TEXT_USE_NOTES if now.score(name).value is not None), None):
            what, big = measure_title(name), format_score(name, now.score(name))
            note = f"{TEXT_USE_NOTES[name]}. {note}"
        figures.append((f"{language_name(found.language)}, {what}", big, note, ""))
    figures.append((f"{names}: speech logits", word, changed, RETENTION_STYLES.get(word, "soft")))
    # The mark of the headline's own error; else of letters, beside what the graft has of that.
    marks = [row for row in found.rows if row.who in (WHO_RECORDINGS, WHO_CODEC) and row.language == found.language]
    for name in dict.fromkeys(filter(None, (main, "cer"))):
        if mark := next((row for row in marks if row.score(name).value is not None), None):
            note = f"of {_row_name(mark)}"
            if name != main and main is not None and now is not None:
                note += f"; now {format_score(name, now.score(name))} (no reference for {measure_title(main)})"
            figures.append((f"reference, {measure_title(name)}", format_score(name, mark.score(name)), note, ""))
            break
    if now is not None and now.score("runaway").value is not None:
        runaway, cut = now.score("runaway"), now.score("cut")
        failures = f"{100 * max(runaway.value or 0.0, cut.value or 0.0):.0f} %"
        note = f"{format_score('runaway', runaway)} did not stop, {format_score('cut', cut)} were cut off"
        figures.append(("stop failures", failures, note, ""))
    return figures


def _list_sentence_cards(found: Evaluation, language: str) -> list[dict[str, Any]]:
    """Before, after and original of every sentence of which at least one can be played."""
    by_text: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in found.utterances:
        if entry["language"] == language:
            by_text.setdefault(entry["text"], {})[entry["who"]] = entry
    playable = [by_role for by_role in by_text.values() if any(entry["wav"] for entry in by_role.values())]
    cards = []
    for number, by_role in enumerate(playable):
        before, after, original = (by_role.get(role) for role in (WHO_BEFORE, WHO_AFTER, WHO_ORIGINAL))
        either = after or before
        assert either is not None
        players = [(utterance, utterance["who"]) for utterance in (before, after) if utterance is not None]
        # The same sound needs one player only: there is no difference.
        if before is not None and after is not None and before["wav"] is not None and before["wav"] == after["wav"]:
            players = [(after, "before and after, identical codes")]
        if original is not None:
            players.append((original, ORIGINAL_TITLE))
        described = []
        for entry, title in players:
            errors = (entry.get(name) for name in ("phone_error", "cer"))
            error = next((value for value in errors if value is not None), None)
            facts = [f"{entry['seconds']:.1f} s"]
            facts += [] if error is None else [f"{100 * error:.0f} % wrong"]
            facts += [] if entry["stopped"] or entry["codes"] is None else ["ran on"]
            described.append(
                {
                    "who": entry["who"],
                    "title": title,
                    "language": language,
                    "heard": entry["heard"],
                    "facts": facts,
                    "why": entry.get("why", "no sound"),
                    "source": None if entry["wav"] is None else data_url(entry["wav"], "audio/wav"),
                    "data": {  # what the blind listening test knows of a player
                        "data-clip": f"{language}-{number}-{entry['who']}",
                        "data-sentence": f"{language}-{number}",
                        "data-language": language,
                        "data-who": entry["who"],
                        "data-text": entry["text"],
                    },
                }
            )
        cards.append({"text": either["text"], "rare": either["rare"], "players": described})
    return cards


def _describe_method(document: Mapping[str, Any], found: Evaluation) -> list[tuple[str, str]]:
    """Who listened, to which sentences, in which voices."""
    recognizer = document["listener"]
    sampling = ", ".join(f"{name} {value}" for name, value in document["sampling"].items())
    sets = []
    for name, entry in document["sentences"].items():
        text = (
            f"{language_name(name)}: {entry['count']} sentences, {entry['rare']} with rare words ({entry['source']}); "
        )
        if "training" in entry:
            sets.append(text + str(entry["training"]))
        else:
            num_seen, num_rare = len(entry["seen_in_training"]), len(entry["rare_words_in_training"])
            sets.append(f"{text}{num_seen} of the sentences and {num_rare} of the rare words are in the training texts")
    return [
        ("recognizer", recognizer["name"] or f"none: {recognizer['why']}"),
        ("sentences", "; ".join(sets)),
        ("voices", ", ".join(document["voices"])),
        ("sampled with", f"{sampling}; seed {document['seed']}"),
        ("lengths", "; ".join(f"{language_name(name)}: {text}" for name, text in found.paces.items())),
        ("base", str(document["base"])),
        ("computed on", f"{document['device']} in {document['dtype']}, torch {document['versions']['torch']}"),
    ]


def draw_history_charts(history: History) -> list[Markup]:
    """The curves that a reader of a report asks for, each as a card; none that has no points."""
    speech = [
        ("training", history.train(SPEECH_LOSS), 1, True),
        ("held out", history.held_out(SPEECH_LOSS), 0, False),
    ]
    uses = [
        (use.partition("_")[0], history.held_out(use), number, False)
        for number, use in enumerate(("text_use", "voice_use"))
    ]
    old = [
        (name, [(step, 100 * share) for step, share in history.retention(name)], number, False)
        for number, name in enumerate(history.base_languages)
    ]
    error_curves = [
        (title, [(step, 100 * value) for step, value in history.held_out("heard", name)], number, False)
        for number, (name, title) in enumerate((("phone_error", "phone error"), ("cer", "letter error")))
    ]
    level = history.initial_loss(SPEECH_LOSS)
    return [
        *draw_chart("Speech loss, nats per code", speech, [] if level is None else [level]),
        *draw_chart("Use of text and voice: loss when swapped, minus loss", uses, [0.0]),
        *draw_chart("Error rate during training, %", error_curves, [0.0]),
        *draw_chart("Old languages: rise of the speech loss, %", old, [0.0]),
    ]


def draw_chart(title: str, series: Sequence[ChartSeries], levels: Sequence[float] = ()) -> list[Markup]:
    """One picture with its legend, or nothing where there is nothing to draw. `levels` are drawn as dashed lines."""
    drawn: list[ChartSeries] = []
    for label, points, color, faint in series:
        if points:
            # At most as many points as can be seen, each the mean of its neighbours.
            size = -(-len(points) // MAX_CHART_POINTS)
            groups = [points[first : first + size] for first in range(0, len(points), size)]
            thinned = tuple((group[-1][0], sum(value for _, value in group) / len(group)) for group in groups)
            drawn.append((label, thinned, color % len(SERIES_COLORS), faint))
    return [_draw_lines(title, tuple(drawn), tuple(levels))] if drawn else []


@lru_cache(maxsize=64)  # a page that follows a run asks for the same picture every few seconds
def _draw_lines(title: str, series: tuple[ChartSeries, ...], levels: tuple[float, ...]) -> Markup:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def draw(axes: Axes) -> None:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))  # there is no half a step
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step + 0:,.0f}" if step == round(step) else ""))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.margins(x=0.01, y=0.06)
        for level in levels:
            axes.axhline(level, color=LEVEL_COLOR, linestyle=(0, (3, 4)), linewidth=1)
        for _, points, color, faint in sorted(series, key=lambda one: not one[3]):
            steps, values = zip(*points, strict=True)
            dots = "o" if len(steps) == 1 or (len(steps) <= MAX_MARKED_POINTS and not faint) else ""
            alpha = 0.45 if faint else 1
            axes.plot(steps, values, color=SERIES_COLORS[color], alpha=alpha, marker=dots, markersize=4.5)

    return draw_inline_chart(title, draw, [(color, label) for label, _, color, _ in series])
