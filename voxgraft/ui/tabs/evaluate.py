"""The tabs Evaluate and Speak: the base and what was made of it, side by side, in scores and by ear.

Evaluate also compares several evaluations, and draws curves of runs. Speak makes sound of texts, with a run, grafts or
the base alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.files import read_json, read_text
from voxgraft.core.run import RunFolder
from voxgraft.ui.commands import CommandBuilder, find_command, run_base_folder, run_language
from voxgraft.ui.files import FOLDER_PATHS, PROJECT_PATHS, WAV_PATHS, PathFilter, modified_time, next_free_path
from voxgraft.ui.forms import (
    CommandForm,
    PageContext,
    add_upload,
    build_job_controls,
    last_job_result,
    recognizer_choices,
    start_job,
)
from voxgraft.ui.html import (
    audio_card_html,
    audio_cards_html,
    audio_file_html,
    download_link,
    error_html,
    file_link,
    finding_html,
    findings_html,
    image_html,
    note_html,
    table_html,
)

SENTENCE_PATHS = PathFilter(endings=(".txt", ".tsv"))
EVALUATION_PATHS = PathFilter(mark="scores.json")
MAX_REPORT_BYTES = 256 << 20
ANSWER_KINDS = {"yes": "good", "no": "bad"}
# Points of which a no breaks nothing: not yet. As in `voxgraft/evaluation/verdicts.py`, compared by the same test.
GOAL_POINTS = ("near-mark",)
RECOGNIZER_HELP = (
    "Who writes down what is said. automatic: the built-in one, where it understands the language. none: nobody; "
    "lengths and losses are measured all the same. whisper:FOLDER is offered for a model of faster-whisper in a folder "
    "of this page; a program of your own can only be named on a command line."
)
# Titles and forms as in `voxgraft/evaluation/scores.py`, which cannot be had without torch; a test compares them.
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
AUDIO_DATA_URL = re.compile(r"data:audio/wav;base64,[A-Za-z0-9+/=]+")
EMOTION_PATHS = PathFilter(endings=(".wav", ".npy"))
GRAFT_PATHS = PathFilter(mark="graft.json")
# Settings of the speaker that the base alone has no use for.
RUN_ONLY_KEYS = ("run", "graft", "variant", "step", "output", "codes")
# The job of the base alone, beside the one of `speak`.
BASE_JOB = "speak base"
STOP_WORDS = {"ended": "", "limit": "cut at its limit", "loop": "cut: it went round in a loop"}


def build_evaluate_tab(context: PageContext) -> None:
    """Lay the tab Evaluate out."""
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
    _build_results_section(context)
    with gr.Accordion("3. Compare several evaluations", open=False, elem_id="evaluate-compare"):
        form = CommandForm(
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
        form.show_result("compare-shown", lambda found: _comparison_html(context, found))
    with gr.Accordion("4. Curves of one or several runs as a picture", open=False, elem_id="evaluate-plot"):
        form = CommandForm(context, "plot", json=True,
                           fresh={"output": lambda project: next_free_path(project / "plotted.png")})  # fmt: skip
        with gr.Row():
            form.add("runs", sought=PROJECT_PATHS, default=lambda project: [project])
            form.add(
                "output", sought=FOLDER_PATHS, label="Name of the picture", info="Empty: a new one in the project."
            )
        form.finish("Draw")
        form.show_result("plot-shown", lambda found: _result_image(context, found, "curves of the runs"))


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
        outputs = [shown, language, heard]
        context.wire([chosen.input], lambda folder: _show_evaluation(context, folder), [chosen], outputs)

    def play(folder: str | None, spoken: str | None) -> str:
        try:
            return _report_players(context, folder, spoken)
        except VoxgraftError as error:
            return error_html(error)

    context.wire([language.input], play, [chosen, language], [heard])


def list_evaluations(run: RunFolder) -> list[Path]:
    """Folders of the project's evaluations, the newest first."""
    found = [path.parent for path in run.eval.glob("*/scores.json")] if run.eval.is_dir() else []
    return sorted(found, key=lambda folder: modified_time(folder / "scores.json"), reverse=True)


def _open_evaluations(context: PageContext, project: str) -> list[Any]:
    folder = context.project_folder(project)
    names = [context.roots.short(found) for found in list_evaluations(RunFolder(folder))]
    last = last_job_result(folder, "evaluate") or {}
    if "error" not in last and last.get("folder") and str(last["folder"]) not in names:
        names.insert(0, str(last["folder"]))  # an evaluation of something else than a run is in its own folder
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
        report = place / "report.html"
        links = [
            file_link(context, report, "open the report"),
            file_link(context, report, "listen without knowing who speaks", "#blind"),
        ]
        said = f"<p>{' &nbsp; '.join(links)}</p>" if report.is_file() else ""
        said += _checklist_html(scores) + _scores_table(scores)
        return [said, gr.update(choices=languages, value=first), _report_players(context, folder, first)]
    except VoxgraftError as error:
        return [error_html(error), gr.update(choices=[], value=None), ""]
    except (KeyError, TypeError, AttributeError):
        return [note_html(f"scores.json in {folder} is not one of ours", "bad"), gr.update(choices=[], value=None), ""]


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
    """Every score that at least one row has."""
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
    cards = []
    for one in parser.found:
        who, text = one.get("data-who", "?"), one.get("data-text", "")
        if one.get("data-language") == language:
            about = told.get((language, who, text), "")
            cards.append(
                audio_card_html(f"{who} ({language})", text, language=language, about=about, address=one["src"])
            )
    return audio_cards_html(
        cards, note_html("the report plays nothing in this language: there was no waveform end, or no sound")
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


def _comparison_html(context: PageContext, found: dict[str, Any]) -> str:
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


def _result_image(context: PageContext, found: dict[str, Any], words: str) -> str:
    drawn = next((name for name in found["files"] if str(name).endswith(".png")), None)
    return image_html(context, context.roots.resolve_inside(drawn), words) if drawn else ""


def build_speak_tab(context: PageContext) -> None:
    """Lay the tab Speak out."""
    speak_form = _build_speak_form(context)
    # The same texts from the base alone, in its own job, and all sounds side by side.
    view, button = build_job_controls(context, BASE_JOB, "Hear the base", is_json=True)

    def speak_base(project: str, *values: Any) -> str:
        return start_job(context, project, view, lambda: build_base_argv(context, speak_form, project, values))

    context.wire([button.click], speak_base, [context.project, *speak_form.components], [view.shown])
    shown = gr.HTML(elem_id="speak-heard", elem_classes=["vg-live"])
    context.on_change(lambda project: [_spoken_html(context, project)], [shown])
    with gr.Accordion("The stock program of Chatterbox, to compare with", open=False):
        gr.Markdown(
            "Makes an environment for the stock program once; it needs a network and some gigabytes. For IndexTTS-2, "
            "whose source you have to fetch yourself, and for other environments, use the command line."
        )
        form = CommandForm(context, "companion", given=lambda _: {"name": "chatterbox"})
        form.add("force")
        form.finish("Make it")


def _build_speak_form(context: PageContext) -> CommandForm:
    form = CommandForm(
        context, "speak", json=True, path_keys=("voice",), given=lambda _: {},
        fresh={"output": lambda project: next_free_path(project / "spoken" / "speech")}, unless={"output": "codes"},
        one_of=("text", "file"),
    )  # fmt: skip
    form.add("text", lines=4)
    with gr.Row():
        form.add("language", default=run_language)
        form.add("voice", sought=WAV_PATHS)
        form.add("run", sought=PROJECT_PATHS, default=lambda project: project, label="Who speaks: a run")
        form.add("seed")
    with gr.Accordion("A voice of your own", open=False, elem_id="speak-voice-own"):
        gr.Markdown("A few seconds of one speaker, for bases that imitate a recording. Ask whoever it belongs to.")
        add_upload(context, form, "voice", "Upload a voice to imitate (WAV)", (".wav",))
    with gr.Accordion("How it is drawn: temperature and the like", open=False, elem_id="speak-drawing"):
        form.add_all(("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_seconds"))
    with gr.Accordion("Manner: emotion, guidance, pauses", open=False, elem_id="speak-manner"):
        with gr.Row():
            form.add("exaggeration", info="Chatterbox: how strong the emotion is; 0.5 is its usual strength.")
            form.add("guidance", label="Guidance (CFG, pace)")
            form.add("emotion", sought=EMOTION_PATHS)
            form.add("emotion_weight")
        form.add_all(("split", "pause"))
        add_upload(
            context, form, "emotion", "Upload a recording whose emotion is taken on (IndexTTS-2)", (".wav", ".npy")
        )
    with gr.Accordion("Many texts at once, from a file", open=False, elem_id="speak-many"):
        gr.Markdown("A text on each line, or a table (tsv) with the columns text, language, voice and name.")
        with gr.Row():
            form.add("file", sought=SENTENCE_PATHS)
            form.add("batch")
        add_upload(context, form, "file", "Upload texts", (".txt", ".tsv"))
    with gr.Accordion("Another speaker, other outputs, the machine", open=False, elem_id="speak-more"):
        with gr.Row():
            form.add("variant")
            form.add("step")
            form.add("graft", sought=GRAFT_PATHS)
            form.add("base", sought=FOLDER_PATHS)
        with gr.Row():
            form.add("output", sought=FOLDER_PATHS, info="NAME.wav for one file with everything, else a folder. "
                     "Empty: a new folder in the project.")  # fmt: skip
            form.add("codes", sought=PathFilter(endings=(".json", ".npy")))
            for key in ("family", "device", "precision"):
                form.add(key)
    form.finish("Say it")
    return form


def build_base_argv(context: PageContext, form: CommandForm, project: str, values: Sequence[Any]) -> list[str]:
    """The argv for the base alone: the same texts, voice and sampling, without the graft."""
    folder = context.project_folder(project)
    typed = form.typed_values(values)
    base = typed.pop("base", None) or run_base_folder(folder)
    if base is None:
        raise ConfigError("config-missing", "the project has no base yet", expected="a base in run.yaml")
    form.require(typed)
    kept = {key: value for key, value in typed.items() if key not in RUN_ONLY_KEYS}
    output = next_free_path(folder / "spoken" / "base")
    command = CommandBuilder(find_command("speak"), context.roots, json=True, path_keys=("voice",))
    return command.words({**kept, "base": str(base)}, folder, {"output": output})


def _spoken_html(context: PageContext, project: str) -> str:
    """The utterances of the newest job, and beside them those of the base."""
    folder = context.project_folder(project)
    found = {
        who: last_job_result(folder, verb) for verb, who in (("speak", "with the graft"), (BASE_JOB, "the base alone"))
    }
    errors = [finding_html(one["error"]) for one in found.values() if one and "error" in one]
    spoken = {who: one["utterances"] for who, one in found.items() if one and "utterances" in one}
    longest = max((len(said) for said in spoken.values()), default=0)
    sounds = [
        _utterance_html(context, said[at], who)
        for at in range(longest)
        for who, said in spoken.items()
        if at < len(said)
    ]
    findings = "".join(findings_html(one) for one in found.values() if one)
    codes = [context.roots.resolve_inside(one["codes"]) for one in found.values() if one and one.get("codes")]
    links = "".join(f"<p>{download_link(context, path, f'save the codes ({path.name})')}</p>" for path in codes)
    return "".join(errors) + audio_cards_html(sounds) + links + findings


def _utterance_html(context: PageContext, one: dict[str, Any], who: str) -> str:
    words = [f"{one['seconds']:.1f} s", str(one["voice"]), STOP_WORDS.get(str(one["stop"]), str(one["stop"]))]
    about = ", ".join(word for word in words if word)
    title, language = f"{who} ({one['language']})", str(one["language"])
    path = context.roots.resolve_inside(one["file"]) if one.get("file") else None
    if path is None or not path.is_file():
        return audio_card_html(title, str(one["text"]), language=language, about=about)
    return audio_file_html(context, path, title, str(one["text"]), language=language, about=about)
