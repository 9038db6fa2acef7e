"""The tab Evaluate: before and after, in scores and by ear; the report; several runs beside each other."""

from __future__ import annotations

import html
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import read_json, read_text
from voxgraft.core.run import RunFolder
from voxgraft.ui import commands
from voxgraft.ui.commands import PageContext
from voxgraft.ui.files import FOLDER_PATHS, PROJECT_PATHS, PathFilter, file_link
from voxgraft.ui.forms import CommandForm, OutputForm, last_job_result, next_free_path
from voxgraft.ui.html import (
    AUDIO_DATA_URL,
    AudioCard,
    audio_cards_html,
    error_html,
    finding_html,
    image_html,
    note_html,
    recognizer_choices,
    table_html,
    versioned_file_url,
)

SENTENCE_PATHS = PathFilter(endings=(".txt", ".tsv"))
EVALUATION_PATHS = PathFilter(mark="scores.json")
MAX_REPORT_BYTES = 256 << 20
ANSWER_KINDS = {"yes": "good", "no": "bad"}
GOAL_POINTS = ("near-mark",)
"""Points of which a no breaks nothing: not yet. As in `voxgraft/evaluation/verdicts.py`, compared by the same test."""
RECOGNIZER_HELP = (
    "Who writes down what is said. automatic: the built-in one, where it understands the language. none: nobody; "
    "lengths and losses are measured all the same. whisper:FOLDER is offered for a model of faster-whisper in a folder "
    "of this page; a program of your own can only be named on a command line."
)
SCORE_FORMATS = {
    "phone_error": ("phone error", "percent"),
    "cer": ("letter error", "percent"),
    "wer": ("word error", "percent"),
    "unsaid": ("not said", "percent"),
    "runaway": ("runaway", "percent"),
    "cut": ("cut off", "percent"),
    "duration": ("length", "ratio"),
    "repeats": ("repeats", "percent"),
    "length_fit": ("length fit", "number"),
    "distinct": ("distinct", "percent"),
    "likeness": ("voice", "number"),
    "speech_loss": ("speech loss", "nats"),
    "text_use": ("text use", "nats"),
    "kl": ("KL to base", "nats"),
}
"""Titles and forms as in `voxgraft/evaluation/scores.py`, which cannot be had without torch; a test compares them."""


def build(context: PageContext) -> None:
    """Lay the tab out."""
    _build_evaluate_section(context)
    _build_results_section(context)
    _build_compare_section(context)
    _build_plot_section(context)


def _build_evaluate_section(context: PageContext) -> None:
    with gr.Accordion("1. Speak and listen, before and after", open=True, elem_id="evaluate-run"):
        gr.Markdown(
            "The base and what you made of it say the same sentences; a listener writes down what it hears. What "
            "cannot be measured says why. With the small built-in base this takes about a minute."
        )
        form = CommandForm(
            context, "evaluate", json=True,
            choices={"recognizer": recognizer_choices(context.roots)}, path_keys=("voices",),
        )  # fmt: skip
        with gr.Row():
            form.add("model", sought=PROJECT_PATHS, default=lambda project: project, label="What is judged")
            form.add("max_sentences", label="Sentences of each language")
            form.add("recognizer", info=RECOGNIZER_HELP)
            form.add("name", label="Name of the evaluation")
        with gr.Accordion("More", open=False):
            form.add_all(("variant", "step", "language", "languages"))
            with gr.Row():
                form.add("sentences", sought=SENTENCE_PATHS)
                form.add("recordings", sought=FOLDER_PATHS)
                form.add("voices")
                form.add("players")
            with gr.Row():
                form.add("base", sought=FOLDER_PATHS)
                form.add("output", sought=FOLDER_PATHS)
                for key in ("family", "seed", "device", "precision"):
                    form.add(key)
        form.finish("Evaluate")


def _build_results_section(context: PageContext) -> None:
    with gr.Accordion("2. What was found", open=True, elem_id="evaluate-found"):
        with gr.Row():
            chosen = gr.Dropdown(
                [], label="Evaluation", info="Those of this project, the newest first.", interactive=True,
                elem_id="evaluate-chosen",
            )  # fmt: skip
            language = gr.Dropdown(
                [], label="Language to listen to", interactive=True, elem_id="evaluate-language",
                info="The same sentences from the base and from what you made.",
            )  # fmt: skip
        shown = gr.HTML(elem_id="evaluate-scores", elem_classes=["vg-live"])
        heard = gr.HTML(elem_id="evaluate-players")
        context.on_change(
            lambda project: _open_evaluations(context, project), [chosen, shown, language, heard], slow=True
        )
        context.wire(
            [chosen.input],
            lambda folder: _show_evaluation(context, folder),
            [chosen],
            [shown, language, heard],
        )
        context.wire(
            [language.input],
            lambda folder, spoken: _players_or_error(context, folder, spoken),
            [chosen, language],
            [heard],
        )


def list_evaluations(run: RunFolder) -> list[Path]:
    """Folders of the project's evaluations, the newest first."""
    found = [path.parent for path in run.eval.glob("*/scores.json")] if run.eval.is_dir() else []
    return sorted(found, key=lambda folder: commands.modified_time(folder / "scores.json"), reverse=True)


def _open_evaluations(context: PageContext, project: str) -> list[Any]:
    folder = context.project_folder(project)
    names = [context.roots.short(found) for found in list_evaluations(RunFolder(folder))]
    last = last_job_result(folder, "evaluate") or {}
    if "error" not in last and last.get("folder") and str(last["folder"]) not in names:
        names.insert(0, str(last["folder"]))  # of something else than a run, in a folder of its own
    first = names[0] if names else None
    shown, *others = _show_evaluation(context, first)
    refused = finding_html(last["error"]) if "error" in last else ""
    return [gr.update(choices=names, value=first), refused + shown, *others]


def _show_evaluation(context: PageContext, folder: str | None) -> list[Any]:
    """Scores, checklist and links; the languages that can be listened to."""
    if not folder:
        return [note_html("nothing was evaluated yet"), gr.update(choices=[], value=None), ""]
    try:
        place = context.roots.resolve_inside(folder)
        scores = read_json(place / "scores.json")
        languages = list(dict.fromkeys(str(row["language"]) for row in scores["rows"]))
        first = scores.get("language") or (languages[0] if languages else None)
        said = _report_links(context, place) + _checklist_html(scores) + _scores_table(scores)
        return [said, gr.update(choices=languages, value=first), _report_players(context, folder, first)]
    except VoxgraftError as error:
        return [error_html(error), gr.update(choices=[], value=None), ""]
    except (KeyError, TypeError, AttributeError):
        return [note_html(f"scores.json in {folder} is not one of ours", "bad"), gr.update(choices=[], value=None), ""]


def _report_links(context: PageContext, folder: Path) -> str:
    report = folder / "report.html"
    if not report.is_file():
        return ""
    whole = file_link(context.pages, context.roots, report, "open the report")
    blind = html.escape(versioned_file_url(context, report) + "#blind", quote=True)
    alone = f'<a class="vg-link" href="{blind}" target="_blank" rel="noopener">listen without knowing who speaks</a>'
    return f"<p>{whole} &nbsp; {alone}</p>"


def _checklist_html(scores: dict[str, Any]) -> str:
    word = str(scores["retention"]["word"])
    kind = {"equal": "good", "not equal": "bad"}.get(word, "warn")
    head = note_html(f"old languages, base speech logits with and without what was added: {word}", kind)
    points = [
        note_html(f"{point['question']} {point['found']}", checklist_kind(point)) for point in scores["checklist"]
    ]
    return head + "".join(points)


def checklist_kind(point: dict[str, Any]) -> str:
    """How a point of the checklist is shown: a goal that is not reached yet is no fault."""
    answer = str(point["answer"])
    return "yet" if answer == "no" and point["name"] in GOAL_POINTS else ANSWER_KINDS.get(answer, "unmeasured")


def _scores_table(scores: dict[str, Any]) -> str:
    """Every score that somebody has, as people read it."""
    rows = scores["rows"]
    shown = [name for name in SCORE_FORMATS if any(_score_value(row, name) is not None for row in rows)]
    dull = {"unsaid": 0.0, "distinct": 1.0}  # of which a column would say nothing
    shown = [
        name
        for name in shown
        if name not in dull or any(_score_value(row, name) not in (None, dull[name]) for row in rows)
    ]
    cells = [
        (row["language"], row["title"], *(format_score_cell(name, _score_value(row, name)) for name in shown))
        for row in rows
    ]
    return table_html(("language", "who", *(SCORE_FORMATS[name][0] for name in shown)), cells)


def _score_value(row: dict[str, Any], name: str) -> float | None:
    value = row["scores"].get(name, {}).get("value")
    return float(value) if isinstance(value, int | float) else None


def format_score_cell(name: str, value: float | None) -> str:
    """A score as people read it; a dash where there is none."""
    if value is None:
        return "–"
    form = SCORE_FORMATS.get(name, ("", "percent"))[1]
    return f"{100 * value:.1f} %" if form == "percent" else f"{value:.{3 if form == 'nats' else 2}f}"


class _ReportAudioParser(HTMLParser):
    """The players of a report: whose, which language, which text, and the sound itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag == "audio" and AUDIO_DATA_URL.fullmatch(given.get("src", "")):
            self.found.append(given)


def _players_or_error(context: PageContext, folder: str | None, language: str | None) -> str:
    try:
        return _report_players(context, folder, language)
    except VoxgraftError as error:
        return error_html(error)


def _report_players(context: PageContext, folder: str | None, language: str | None) -> str:
    """The sentences that the report plays, in one language."""
    if not folder or not language:
        return ""
    report = context.roots.resolve_inside(folder) / "report.html"
    if not report.is_file():
        return ""
    parser = _ReportAudioParser()
    parser.feed(read_text(report, MAX_REPORT_BYTES))
    told = _read_utterance_notes(report.with_name("scores.json"))
    sounds = []
    for one in parser.found:
        who, text = one.get("data-who", "?"), one.get("data-text", "")
        if one.get("data-language") == language:
            about = told.get((language, who, text), "")
            sounds.append(AudioCard(f"{who} ({language})", text, language, about, address=one["src"]))
    return audio_cards_html(
        sounds, note_html("the report plays nothing in this language: there was no waveform end, or no sound")
    )


def _read_utterance_notes(path: Path) -> dict[tuple[str, str, str], str]:
    """By language, who and text: how long it is, and what was heard; nothing where the file does not say it."""
    scores = read_json(path) if path.is_file() else {}
    spoken = scores.get("utterances") if isinstance(scores, dict) else None
    found = {}
    for one in (one for one in (spoken if isinstance(spoken, list) else ()) if isinstance(one, dict)):
        seconds, heard = one.get("seconds"), one.get("heard")
        parts = [f"{seconds:.1f} s" if isinstance(seconds, int | float) else "", f"heard: {heard}" if heard else ""]
        found[str(one.get("language")), str(one.get("who")), str(one.get("text"))] = "; ".join(filter(None, parts))
    return found


def _build_compare_section(context: PageContext) -> None:
    with gr.Accordion("3. Compare several evaluations", open=False, elem_id="evaluate-compare"):
        form = OutputForm(
            context, "compare", json=True, fresh={"output": lambda project: next_free_path(project / "compared.png")}
        )  # fmt: skip
        with gr.Row():
            form.add(
                "runs", sought=EVALUATION_PATHS, label="Evaluations", info="Folders with a scores.json, two or more."
            )
            form.add("measure")
            form.add("output", sought=FOLDER_PATHS, default=lambda _: "", label="Name of the picture",
                     info="Empty: a new one in the project.")  # fmt: skip
        form.finish("Compare")
        shown = gr.HTML(elem_id="compare-shown", elem_classes=["vg-live"])
        context.on_change(lambda project: [_comparison_html(context, project)], [shown])


def _comparison_html(context: PageContext, project: str) -> str:
    found = last_job_result(context.project_folder(project), "compare")
    if found is None:
        return ""
    if "error" in found:
        return finding_html(found["error"])
    measure = str(found["measure"])
    rows = [
        (
            name,
            one["mode"],
            one["step"],
            format_score_cell(measure, one["error"]["value"]),
            one["worst_language"],
            one["logits"],
        )
        for name, one in found["runs"].items()
    ]
    title = SCORE_FORMATS.get(measure, (measure, ""))[0]
    columns = ("run", "way", "step", f"{title}, new language", "old language that lost most", "logits of old ones")
    differing = "".join(note_html(f"not the same {what} in all: their errors were not measured alike", "warn")
                        for what in found["differing"])  # fmt: skip
    return differing + table_html(columns, rows) + _result_image(context, found, "what runs learnt, and what it cost")


def _build_plot_section(context: PageContext) -> None:
    with gr.Accordion("4. Curves of one or several runs as a picture", open=False, elem_id="evaluate-plot"):
        form = OutputForm(context, "plot", json=True,
                          fresh={"output": lambda project: next_free_path(project / "plotted.png")})  # fmt: skip
        with gr.Row():
            form.add("runs", sought=PROJECT_PATHS, default=lambda project: [project])
            form.add(
                "output", sought=FOLDER_PATHS, label="Name of the picture", info="Empty: a new one in the project."
            )
        form.finish("Draw")
        shown = gr.HTML(elem_id="plot-shown", elem_classes=["vg-live"])
        context.on_change(lambda project: [_plot_html(context, project)], [shown])


def _plot_html(context: PageContext, project: str) -> str:
    found = last_job_result(context.project_folder(project), "plot")
    if found is None:
        return ""
    return finding_html(found["error"]) if "error" in found else _result_image(context, found, "curves of the runs")


def _result_image(context: PageContext, found: dict[str, Any], words: str) -> str:
    drawn = next((name for name in found["files"] if str(name).endswith(".png")), None)
    return image_html(context, context.roots.resolve_inside(drawn), words) if drawn else ""
