"""The tabs Evaluate and Export.

Evaluate shows the base and what was made of it side by side, compares evaluations, and draws curves of runs. Export
writes the graft for original programs or for others, with its terms, and packs and unpacks zips.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import read_json, read_text
from voxgraft.core.results import format_bytes
from voxgraft.core.run import RunFolder
from voxgraft.evaluation.report import ChecklistItem, is_unreached_goal
from voxgraft.evaluation.scores import Score, ScoreRow, format_score, measure_title, tabulate_scores
from voxgraft.export.share import read_terms
from voxgraft.graft.folder import GRAFT_CARD_NAME, read_graft_card
from voxgraft.models import get_family
from voxgraft.pipeline.stages import are_scores_current
from voxgraft.ui.commands import find_grown_tokenizer
from voxgraft.ui.files import FOLDER_PATHS, PROJECT_PATHS, ZIP_PATHS, PathFilter, modified_time, next_free_path
from voxgraft.ui.forms import CommandForm, add_upload, recognizer_choices
from voxgraft.ui.html import (
    PAGE_TARGETS,
    audio_card_html,
    audio_cards_html,
    download_link,
    error_html,
    facts_html,
    file_link,
    finding_html,
    findings_html,
    image_html,
    label_flags,
    note_html,
    table_html,
    target_button,
)
from voxgraft.ui.live import journal_ends
from voxgraft.ui.page import PageContext, last_job_result

SENTENCE_PATHS = PathFilter(endings=(".txt", ".tsv"))
EVALUATION_PATHS = PathFilter(mark="scores.json")
# Reports hold their sounds, so they are large.
MAX_REPORT_BYTES = 256 << 20
RECOGNIZER_HELP = "Transcribes the speech. automatic: the built-in one, if it knows the language; none: no transcripts."
# Only sounds inside a report are played: it may come from elsewhere, and name addresses elsewhere.
AUDIO_DATA_URL = re.compile(r"data:audio/wav;base64,[A-Za-z0-9+/=]+")
EXPORT_PATHS = PathFilter(mark="terms.json")
TERM_KEYS = ("data_licence", "consent", "accept_terms")
TERMS_NOT_STATED = "All three terms are required here: an export without them cannot be published."


def build_evaluate_tab(context: PageContext) -> None:
    """Lay the tab Evaluate out."""
    with gr.Accordion("Results", open=True, elem_id="evaluate-found"):
        with gr.Row():
            chosen = gr.Dropdown(
                [], label="Evaluation", info="Those of this run, the newest first.", interactive=True,
                elem_id="evaluate-chosen",
            )  # fmt: skip
            language = gr.Dropdown(
                [], label="Language to listen to", interactive=True, elem_id="evaluate-language",
                info="The same sentences from the base and from your model.",
            )  # fmt: skip
        shown = gr.HTML(elem_id="evaluate-scores", elem_classes=["vg-live"])
        heard = gr.HTML(elem_id="evaluate-players")
        judged = gr.HTML(elem_id="evaluate-checklist", elem_classes=["vg-live"])
        outputs = [shown, language, heard, judged]
        context.on_change(lambda project: _open_evaluations(context, project), [chosen, *outputs], slow=True)
        context.wire([chosen.input], lambda folder: _show_evaluation(context, folder), [chosen], outputs)

    def play(folder: str | None, spoken: str | None) -> str:
        try:
            return _report_players(context, folder, spoken)
        except VoxgraftError as error:
            return error_html(error)

    context.wire([language.input], play, [chosen, language], [heard])
    with gr.Accordion("Evaluate: before and after", open=True, elem_id="evaluate-run"):
        gr.Markdown(
            "The base and your model speak the same sentences; a recognizer transcribes them. If something cannot be "
            "measured, the reason is shown. With the built-in tiny base this takes about a minute."
        )
        form = CommandForm(
            context, "evaluate", json=True,
            choices={"recognizer": recognizer_choices(context.roots)}, path_keys=("voices",),
        )  # fmt: skip
        with gr.Row():
            form.add("model", sought=PROJECT_PATHS, default=lambda project: project, label="Model to evaluate",
                     info="A run, a graft, or a checkpoint of the base's family.")  # fmt: skip
            form.add("max_sentences", label="Sentences per language")
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
    with gr.Accordion("Compare several evaluations", open=False, elem_id="evaluate-compare"):
        form = CommandForm(
            context, "compare", json=True, fresh={"output": lambda project: next_free_path(project / "compared.png")}
        )  # fmt: skip
        with gr.Row():
            form.add(
                "runs", sought=EVALUATION_PATHS, label="Evaluations", info="Folders with a scores.json, two or more."
            )
            form.add("measure")
            form.add("output", sought=FOLDER_PATHS, default=lambda _: "", label="Name of the chart",
                     info="Empty: a new one in the run.")  # fmt: skip
        form.finish("Compare")
        form.show_result("compare-shown", lambda found: _comparison_html(context, found))
    with gr.Accordion("Plot the curves of one or several runs", open=False, elem_id="evaluate-plot"):
        form = CommandForm(context, "plot", json=True,
                           fresh={"output": lambda project: next_free_path(project / "plotted.png")})  # fmt: skip
        with gr.Row():
            form.add("runs", sought=PROJECT_PATHS, default=lambda project: [project])
            form.add("output", sought=FOLDER_PATHS, label="Name of the chart", info="Empty: a new one in the run.")
        form.finish("Draw")
        form.show_result("plot-shown", lambda found: _result_image(context, found, "curves of the runs"))


def _open_evaluations(context: PageContext, project: str) -> list[Any]:
    folder = context.project_folder(project)
    found = [path.parent for path in RunFolder(folder).eval.glob("*/scores.json")]
    newest = sorted(found, key=lambda place: modified_time(place / "scores.json"), reverse=True)
    names = [context.roots.short(place) for place in newest]
    last = last_job_result(folder, "evaluate") or {}
    if "error" not in last and last.get("folder") and str(last["folder"]) not in names:
        names.insert(0, str(last["folder"]))  # an evaluation of something else than a run is in its own folder
    first = names[0] if names else None
    shown, *others = _show_evaluation(context, first)
    refused = finding_html(last["error"], "evaluate") if "error" in last else ""
    return [gr.update(choices=names, value=first), refused + shown, *others]


def _show_evaluation(context: PageContext, folder: str | None) -> list[Any]:
    """Links and scores; the languages that can be listened to, players of the first; the checklist."""
    if not folder:
        return [note_html("no evaluation yet"), gr.update(choices=[], value=None), "", ""]
    try:
        place = context.roots.resolve_inside(folder)
        scores = read_json(place / "scores.json")
        languages = list(dict.fromkeys(str(row["language"]) for row in scores["rows"]))
        first = scores.get("language") or (languages[0] if languages else None)
        report = place / "report.html"
        links = [
            file_link(context, report, "open the report"),
            file_link(context, report, "blind listening test", "#blind"),
        ]
        said = f"<p>{' &nbsp; '.join(links)}</p>" if report.is_file() else ""
        said += _scored_step_html(place, scores)
        word = str(scores["retention"]["word"])
        kind = {"equal": "good", "not equal": "bad"}.get(word, "warn")
        said += note_html(f"old languages: speech logits of the base with and without the graft are {word}", kind)
        judged = ""
        for given in scores["checklist"]:
            texts = [str(given[key]) for key in ("name", "question", "answer", "found")]
            point = ChecklistItem(*texts)  # type: ignore[arg-type]
            kind = {"yes": "good", "no": "bad"}.get(point.answer, "unmeasured")
            found = label_flags(point.found, "evaluate")
            judged += note_html(f"{point.question} {found}", "yet" if is_unreached_goal(point) else kind)
        rows = []
        for row in scores["rows"]:
            values = {name: Score.from_json(score) for name, score in row["scores"].items()}
            rows.append(ScoreRow(row["language"], row["who"], row["title"], values))
        said += table_html(*tabulate_scores(rows))
        players = _report_players(context, folder, first)
        return [said, gr.update(choices=languages, value=first), players, judged]
    except VoxgraftError as error:
        return [error_html(error), gr.update(choices=[], value=None), "", ""]
    except (KeyError, TypeError, AttributeError):
        return [
            note_html(f"scores.json in {folder} was not written by voxgraft", "bad"),
            gr.update(choices=[], value=None),
            "",
            "",
        ]


def _scored_step_html(place: Path, scores: Mapping[str, Any]) -> str:
    """The step that scores belong to, and a mark if the run has something newer."""
    subject = scores["subject"]
    step, run = subject.get("step"), RunFolder(place.parent.parent)
    history = journal_ends(run)
    last = history.last_step
    words = (
        f"these scores belong to step {step:,}" if isinstance(step, int) else "these scores belong to no training step"
    )
    if isinstance(step, int) and step == history.best_step < last:
        words += f", the best: training continued to step {last:,}"
    what = note_html(words)
    # What was made by hand from one saved step stays true; the scores of the run's result may not.
    is_result = subject.get("kind") == "run" and (subject.get("graft_sha256") or subject.get("checkpoint_sha256"))
    if not is_result or not run.settings.is_file():
        return what
    with contextlib.suppress(VoxgraftError):
        if not are_scores_current(run, scores):
            words = f"out of date: these scores belong to step {step}, and the run has trained to step {last:,} since"
            again = target_button(PAGE_TARGETS["evaluate", ""], "Evaluate again")
            return f'<div class="vg-note vg-warn vg-old" role="status">{escape(words)}{again}</div>'
    return what


class _ReportAudioParser(HTMLParser):
    """The players of a report: whose, which language, which text, and the sound itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag == "audio" and AUDIO_DATA_URL.fullmatch(given.get("src", "")):
            self.found.append(given)


def _report_players(context: PageContext, folder: str | None, language: str | None) -> str:
    """The sentences that the report plays, in one language."""
    if not folder or not language:
        return ""
    report = context.roots.resolve_inside(folder) / "report.html"
    if not report.is_file():
        return ""
    parser = _ReportAudioParser()
    parser.feed(read_text(report, MAX_REPORT_BYTES))
    # By language, who and text: how long it is, and the transcript, as far as scores.json says it.
    scores = read_json(path) if (path := report.with_name("scores.json")).is_file() else {}
    spoken = scores.get("utterances") if isinstance(scores, dict) else None
    message = {}
    for said in (one for one in (spoken if isinstance(spoken, list) else ()) if isinstance(one, dict)):
        seconds, words = said.get("seconds"), said.get("heard")
        parts = [
            f"{seconds:.1f} s" if isinstance(seconds, int | float) else "",
            f"transcript: {words}" if words else "",
        ]
        message[str(said.get("language")), str(said.get("who")), str(said.get("text"))] = "; ".join(filter(None, parts))
    cards: dict[str, list[str]] = {}  # by sentence, so that each has its own row
    for one in parser.found:
        who, text = one.get("data-who", "?"), one.get("data-text", "")
        if one.get("data-language") == language:
            about = message.get((language, who, text), "")
            title = f"{who} ({language})"
            card = audio_card_html(title, text, language=language, about=about, address=one["src"])
            cards.setdefault(text, []).append(card)
    nothing = note_html("the report has no audio in this language: no vocoder, or no speech")
    return "".join(map(audio_cards_html, cards.values())) or nothing


def _comparison_html(context: PageContext, found: dict[str, Any]) -> str:
    measure = str(found["measure"])
    rows = []
    for name, one in found["runs"].items():
        error = format_score(measure, Score(one["error"]["value"]))
        rows.append((name, one["mode"], one["step"], error, one["worst_language"], one["logits"]))
    error = f"{measure_title(measure)}, new language"
    columns = ("run", "mode", "step", error, "most degraded old language", "logits of old languages")
    differing = "".join(note_html(f"different {what}: the error rates are not comparable", "warn")
                        for what in found["differing"])  # fmt: skip
    return (
        differing + table_html(columns, rows) + _result_image(context, found, "improvement and degradation of the runs")
    )


def _result_image(context: PageContext, found: dict[str, Any], words: str) -> str:
    drawn = next((name for name in found["files"] if str(name).endswith(".png")), None)
    return image_html(context, context.roots.resolve_inside(drawn), words) if drawn else ""


def build_export_tab(context: PageContext) -> None:
    """Lay the tab Export out."""
    with gr.Accordion("1. Export", open=True, elem_id="export-make"):
        gr.Markdown(
            "*graft* is the small folder for others who use voxgraft, *peft* the adapter only. For the original "
            "program, *extended* speaks the old languages exactly as before, and *merged* the new one."
        )
        form = CommandForm(context, "export", given=lambda project: {"model": project}, json=True)
        with gr.Row():
            form.add("to", default=lambda project: "graft" if find_grown_tokenizer(project) is not None else None)
            form.add("dtype", label="Number format")
            form.add("parts")
            form.add("drop_in")
        with gr.Row():
            licence = form.add(
                "data_licence", label="Licence of the recordings and texts (required)",
                default=lambda project: _previous_term(project, "data_licence"),
                info="Under which licence are the recordings and texts that it was trained on?",
            )  # fmt: skip
            consent = form.add(
                "consent", label="Consent of the speakers (required)",
                default=lambda project: _previous_term(project, "consent"),
                info="How have the speakers consented to a voice model of their speech?",
            )  # fmt: skip
            licence.placeholder, consent.placeholder = "CC BY 4.0", "all speakers have agreed in writing"
        terms = gr.HTML(elem_id="export-terms")
        form.add(
            "accept_terms", label="I accept the licence of the base (required)", info="It also applies to the export.",
        )  # fmt: skip
        with gr.Accordion("More", open=False), gr.Row():
            form.add("output", sought=FOLDER_PATHS)
            form.add("overwrite")
            form.add("copy_files")
        lacking = gr.HTML(note_html(TERMS_NOT_STATED, "warn"), elem_id="export-lacking", elem_classes=["vg-live"])
        form.finish("Export", own_button=True)
        # The button works only once all three terms are stated.
        parts = [form.control(key).component for key in TERM_KEYS]
        form.button.interactive = False
        context.wire([part.change for part in parts], check_terms_stated, parts, [form.button, lacking])
        context.on_change(lambda project: [_base_license_html(context, project)], [terms])
        form.show_result("export-shown", _export_html)
    with gr.Accordion("2. Pack it into one zip, or send it to a hub", open=False, elem_id="export-push"):
        form = CommandForm(
            context, "push", json=True, path_keys=("to",),
            fresh={"to": lambda project: next_free_path(project / f"{project.name}.zip")},
        )  # fmt: skip
        with gr.Row():
            about = "Of an export, or of a graft."
            form.add("folder", sought=EXPORT_PATHS, default=_find_newest_export, label="Folder", info=about)
            form.add("to", label="To", info="Empty: a new zip in the run. NAME.zip, or OWNER/NAME on the hub that "
                     "huggingface_hub of this machine is signed in to.")  # fmt: skip
            form.add("private")
        form.finish("Pack, or send")

        def show_pushed(found: dict[str, Any]) -> str:
            place = str(found["place"])
            if not place.endswith(".zip"):
                return note_html(f"sent to {place}", "good") + findings_html(found)
            path = context.roots.resolve_inside(place)
            size = format_bytes(path.stat().st_size) if path.is_file() else ""
            return f"<p>{download_link(context, path, f'save {path.name} ({size})')}</p>" + findings_html(found)

        form.show_result("push-shown", show_pushed)
    with gr.Accordion("3. Import a graft or an export", open=False, elem_id="export-pull"):
        gr.Markdown("Unpacks a graft or an export and checks that it is complete. Nothing in it is executed.")
        form = CommandForm(
            context, "pull", json=True, path_keys=("source",),
            fresh={"folder": lambda project: next_free_path(project / "pulled")},
        )  # fmt: skip
        with gr.Row():
            form.add("source", sought=ZIP_PATHS, label="From")
            form.add("folder", sought=FOLDER_PATHS, label="Into the folder", info="Empty: a new one in the run.")
            form.add("revision")
        add_upload(context, form, "source", "Upload a zip", (".zip",))
        form.finish("Unpack and check")
        whole = "complete, in {}: a graft can be used in the tab Speak"
        form.show_result(
            "pull-shown", lambda found: note_html(whole.format(found["place"]), "good") + findings_html(found)
        )


def check_terms_stated(*said: Any) -> list[Any]:
    """Whether the button can be pressed, and a note while it cannot."""
    whole = all(isinstance(part, bool) or str(part or "").strip() for part in said) and all(said)
    return [gr.update(interactive=whole), "" if whole else note_html(TERMS_NOT_STATED, "warn")]


def _previous_term(project: Path, term: str) -> str | None:
    """What the newest export says of a term."""
    folder = _find_newest_export(project)
    try:
        return getattr(read_terms(folder), term, None) if folder is not None else None
    except VoxgraftError:
        return None


def _find_newest_export(project: Path) -> Path | None:
    exports = [path.parent for path in RunFolder(project).export.glob("*/terms.json")]
    # `export --overwrite` sets the old folder aside under this name.
    whole = [path for path in exports if not path.name.endswith(".previous")]
    return max(whole, key=modified_time, default=None)


def _base_license_html(context: PageContext, project: str) -> str:
    """The base's licence, which binds whoever shares the graft."""
    path = RunFolder(context.project_folder(project)).graft / GRAFT_CARD_NAME
    if not path.is_file():
        return note_html("there is no graft yet: see the tab Model", "warn")
    try:
        card = read_graft_card(path.parent)
        return facts_html([("terms of the base", card.licence or get_family(card.family).licence, "warn")])
    except VoxgraftError as error:
        return finding_html(error.finding.to_json())


def _export_html(found: dict[str, Any]) -> str:
    rows = []
    for name, one in found.get("checkpoints", {}).items():
        numbers = f"{one['dtype']}, {one['precision']}"
        rows.append((name, f"{one['names']} of {one['expected']}", one["kept"], one["changed"], numbers))
    head = note_html(f"{format_bytes(found['bytes'])} in {found['folder']}: pack it below to send it", "good")
    checked = table_html(("checkpoint", "names and shapes", "the same as the base", "changed", "numbers"), rows)
    return head + (checked if rows else "") + findings_html(found)
