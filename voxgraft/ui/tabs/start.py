"""How a run begins on Home: the demo, or own recordings, a language and a base; then `go` as its first job."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.files import is_folder
from voxgraft.core.languages import base_language, canonical_language_code, find_exemplar, find_language_code
from voxgraft.core.run import RUN_FILE
from voxgraft.data.sources import find_sources
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.ui.commands import CommandBuilder, find_command, load_run_settings, run_command_in_process
from voxgraft.ui.files import PROJECT_PATHS, link_uploads, move_uploads, next_free_path, return_uploads
from voxgraft.ui.html import NEEDED_CODE, error_html, finding_html, note_html
from voxgraft.ui.jobs import JOBS_FOLDER, UPLOADS_FOLDER, ProjectJobs
from voxgraft.ui.page import PageContext, add_page_target
from voxgraft.ui.tabs.data import SOURCE_PATHS, sources_html
from voxgraft.ui.tabs.model import find_bases
from voxgraft.ui.tabs.speak import read_base_languages

BUILT_IN_BASE = "tiny"
_LANGUAGE_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
_SUBTITLE_LANGUAGE = re.compile(r"[._-]([A-Za-z]{2,3})\.(?:srt|vtt)$")
# The button that had the focus is replaced by the list of files, two tab stops each: the next field gets it.
FOCUS_LANGUAGE_JS = """() => {
  setTimeout(() => {
    if (document.activeElement === document.body) {
      document.querySelector("#new-language textarea, #new-language input")?.focus({ preventScroll: true });
    }
  }, 300);
  return [];
}"""
DEMO_NAME, DEMO_LANGUAGE, DEMO_FOLDER = "demo", "am", "recordings"


def build_new_run(context: PageContext) -> None:
    """The cards of somebody who has no run yet: the demo, and own recordings."""
    with gr.Accordion("Start a new run", open=True, elem_id="new-project") as fold, gr.Row(equal_height=False):
        with gr.Column(elem_classes=["vg-start"], min_width=280, scale=1):
            gr.Markdown(
                "### Try the demo\nAmharic on the built-in tiny base, with thirteen minutes of synthetic recordings. "
                "It takes about ten minutes on two cores. The first sample comes before training; better ones "
                "follow while it trains."
            )
            demo = gr.Button("Start the demo", elem_id="home-demo", elem_classes=["vg-act"])
        with gr.Column(elem_classes=["vg-start"], min_width=280, scale=2):
            gr.Markdown(
                "### Start with my recordings\nRecordings (mp3, wav, mp4 ...) with subtitles (srt, vtt), a text file "
                "each (talk.wav, talk.txt) or one table (csv, tsv, jsonl). Ten minutes are enough for a first try."
            )
            with gr.Row():
                files = gr.File(
                    file_count="multiple", elem_id="new-upload", height=140,
                    label="1. Recordings and their texts",
                )  # fmt: skip
                folder = gr.Dropdown(
                    [], value=None, label="or a folder on this machine", allow_custom_value=True, interactive=True,
                    elem_id="new-sources", info="Inside the folder that this page was started in.",
                )  # fmt: skip
            with gr.Row():
                language = gr.Textbox(
                    label="2. Language", elem_id="new-language", placeholder="Amharic, or its code: am",
                    info="The new language, by name or code.",
                )  # fmt: skip
                base = gr.Dropdown(
                    [("tiny (built in, for trials)", BUILT_IN_BASE)], value=BUILT_IN_BASE, label="3. Base",
                    info="The pretrained model. It is never changed. To get another one: tab Model, Download.",
                    elem_id="new-base", interactive=True, allow_custom_value=True,
                )  # fmt: skip
            with gr.Accordion("Advanced", open=False, elem_id="new-advanced"), gr.Row():
                name = gr.Textbox(
                    label="Name", elem_id="new-name", max_length=80, info="Folder of the run. Empty: the language."
                )
                steps = gr.Textbox(
                    label="Training steps", elem_id="new-steps", placeholder="automatic",
                    info="Fewer steps are faster, with lower quality. Empty: the default of the base.",
                )  # fmt: skip
            preview = gr.HTML(elem_id="new-preview", elem_classes=["vg-live"])
            state = gr.HTML(elem_id="new-state", elem_classes=["vg-live"])
            start = gr.Button("Continue", variant="primary", elem_id="new-start", elem_classes=["vg-act"])
    for key, component, label in (
        ("upload", files, "Recordings"), ("language", language, "Language"), ("base", base, "Base"),
        ("sources", folder, "Folder"), ("run", name, "Name"),
    ):  # fmt: skip
        add_page_target(context, "new", key, component, label)
    outputs = [*context.opener, state, fold]
    inputs = [files, folder, language, base, name, steps]
    quiet = {"show_progress": "minimal", "show_progress_on": [state]}
    context.wire([start.click], lambda *values: start_run(context, *values), inputs, outputs, **quiet)
    context.wire([demo.click], lambda: start_demo(context), [], outputs, **quiet)

    # What was uploaded is counted and paired before anything is imported; an error disappears when its value is given.
    sources = [files, folder, language, base]
    context.wire(
        [files.change, folder.change, language.blur, base.change],
        lambda *values: preview_sources(context, *values),
        sources,
        [preview],
        trigger_mode="always_last",
    )
    files.upload(None, None, None, js=FOCUS_LANGUAGE_JS, api_visibility="private", show_progress="hidden")
    edits = [files.change, folder.change, language.input, base.input, name.input, steps.input]
    context.wire(edits, _shorten_error, [state, files, folder, language, base], [state], trigger_mode="always_last")

    def offer(project: str) -> list[Any]:
        bases = [context.roots.short(path) for path in find_bases(context.roots)]
        known = context.roots.find(PROJECT_PATHS)
        return [
            gr.update(choices=context.roots.find(SOURCE_PATHS)),
            gr.update(choices=[("tiny (built in, for trials)", BUILT_IN_BASE), *bases]),
            gr.update(open=not known and not project),
        ]

    context.on_load(offer, [folder, base, fold])


def start_run(
    context: PageContext, files: list[str] | None, folder: str | None, language: str | None, base: str | None,
    name: str | None, steps: str | None,
) -> list[Any]:  # fmt: skip
    """Make a run from recordings and continue it; the parts of the page that show it, a message, and the fold."""
    # A text in a fold that was never opened is None.
    language, name, steps = language or "", name or "", steps or ""
    try:
        _require_start(files, folder, language, base)
        word, code = language.strip(), _find_code(language)
        if code is None and not _LANGUAGE_CODE.fullmatch(word):
            expected = "the English name or the code of a language, such as Amharic or am"
            raise ConfigError("config-value", f"`--language` is {word!r}", expected=expected, cure="change the name.")
        _require_texts(context, files, folder, code or word)
        named = name.strip() or re.sub(r"\W+", "-", word.lower()).strip("-")
        if not name.strip() and (context.roots.home / named).exists():
            named = next_free_path(context.roots.home / named).name
        values: dict[str, Any] = {"run": named, "language": code or word, "base": base or ""}
        if folder and not files:
            values["sources"] = [folder]
        command = CommandBuilder(find_command("new"), context.roots, json=True)
        made = run_command_in_process(command.words(values, None, {}))
        run = context.roots.resolve_inside(named)
        moved: list[Path] = []
        warnings = [item for item in made.get("findings", ()) if item.get("level") != "note"]
        try:
            changes = {"train.steps": str(int(steps))} if steps.strip() else {}
            if files:
                moved = move_uploads(context.roots, run, files)
                changes |= {"data.sources": f'["{UPLOADS_FOLDER}"]', "texts": '["data/manifest.jsonl"]'}
            set_run_yaml_values(run, changes)
            return _continue_run(context, run, "".join(finding_html(item, "new") for item in warnings))
        except (VoxgraftError, ValueError) as error:
            # Nothing of a run that cannot start is left, so that the same name and the uploads can be used again. The
            # folder is of this call: `new` refuses one that exists.
            return_uploads(files or (), moved)
            (run / RUN_FILE).unlink(missing_ok=True)
            shutil.rmtree(run / JOBS_FOLDER, ignore_errors=True)
            with contextlib.suppress(OSError):
                run.rmdir()
            if isinstance(error, VoxgraftError):
                raise
            raise ConfigError("config-value", f"`steps` is {steps!r}", expected="a whole number") from None
    except VoxgraftError as error:
        return [*[gr.skip()] * len(context.opener), error_html(error, "new"), gr.skip()]


def _require_start(files: list[str] | None, folder: str | None, language: str | None, base: str | None) -> None:
    given = {"Recordings": files or folder, "Language": (language or "").strip(), "Base": base}
    if needed := [label for label, value in given.items() if not value]:
        raise ConfigError(NEEDED_CODE, f"still needed: {', '.join(needed)}")


def _find_code(language: str) -> str | None:
    """The code of a language that was typed as a name or a code."""
    word = language.strip()
    return (word if find_exemplar(word) else None) or canonical_language_code(word) or find_language_code(word)


def _shorten_error(shown: str | None, *given: Any) -> Any:
    """The error that is shown, without what was given since."""
    if not shown:
        return gr.skip()
    try:
        _require_start(*given)
    except VoxgraftError as error:
        return error_html(error, "new")
    return ""


def _require_texts(context: PageContext, files: list[str] | None, folder: str | None, language: str) -> None:
    """Refuse recordings without any text before there is a run of them."""
    with _chosen_sources(context, files, folder) as place:
        try:
            find_sources([place], language)
        except VoxgraftError as error:
            if files:  # the folder is a temporary one, which says nothing to anybody
                raise type(error)(error.code, error.finding.found) from None
            raise


@contextlib.contextmanager
def _chosen_sources(context: PageContext, files: list[str] | None, folder: str | None) -> Iterator[Path]:
    """A folder with what was uploaded, by the names that it had; or the folder that was chosen."""
    with tempfile.TemporaryDirectory() as made:
        if files:
            link_uploads(context.roots, files, Path(made))
        yield Path(made) if files else context.roots.resolve_inside(folder or "")


def preview_sources(
    context: PageContext, files: list[str] | None, folder: str | None, language: str | None, base: str | None = None
) -> str:
    """How many recordings and texts were chosen, which belong together, and what has no partner.

    Also a warning about a language that the base speaks already.
    """
    code, shown = _find_code(language or ""), ""
    try:
        if code and base_language(code) in base_languages(context, base):
            name = entry.name if (entry := find_exemplar(code)) is not None else code
            shown = note_html(
                f"This base speaks {name} already. A graft would add little, and may speak it worse.", "warn"
            )
        if not files and not folder:
            return shown
        with _chosen_sources(context, files, folder) as place:
            # Before a language is named: that of the subtitles, so that `talk.am.srt` has its recording.
            named = sorted(place.iterdir()) if place.is_dir() else [place]
            codes = (_SUBTITLE_LANGUAGE.search(path.name) for path in named) if not code else ()
            return sources_html([place], code or next((found[1] for found in codes if found), "")) + shown
    except (VoxgraftError, OSError) as error:
        return error_html(error, "new") if isinstance(error, VoxgraftError) else ""


def base_languages(context: PageContext, base: str | None) -> tuple[str, ...]:
    """The languages that a base speaks, by its word or folder; none if that is not known."""
    if not base:
        return ()
    with contextlib.suppress(VoxgraftError):
        folder = resolve_base_folder(Path(base)) if base == BUILT_IN_BASE else context.roots.resolve_inside(base)
        return read_base_languages(resolve_base_family(folder, None), folder)
    return ()


def start_demo(context: PageContext) -> list[Any]:
    """Make a run for the bundled recordings and continue it."""
    try:
        run = next_free_path(context.roots.home / DEMO_NAME)
        words = ["new", context.roots.short(run), "--base", BUILT_IN_BASE, "--language", DEMO_LANGUAGE, "--json"]
        run_command_in_process(words)
        set_run_yaml_values(run, {"data.sources": json.dumps([DEMO_FOLDER]), "texts": '["data/manifest.jsonl"]'})
        return _continue_run(context, run, "")
    except VoxgraftError as error:
        return [*[gr.skip()] * len(context.opener), error_html(error, "new"), gr.skip()]


def _continue_run(context: PageContext, run: Path, message: str) -> list[Any]:
    """Open a new run, and start its first job."""
    project = context.roots.short(run)
    ProjectJobs(run).start("go", go_argv(context, run), context.roots.home, demo_recordings(run))
    return [*context.open_project(project, message), "", gr.update(open=False)]


def go_argv(context: PageContext, run: Path) -> list[str]:
    """The argv of `go` with the run's own settings."""
    return CommandBuilder(find_command("go"), context.roots).words({}, run, {"run": run})


def demo_recordings(run: Path) -> list[str]:
    """The module that writes the recordings of the demo, with its argument, if the run needs them and has none."""
    wanted = run / DEMO_FOLDER
    with contextlib.suppress(VoxgraftError):
        named = [path.resolve() for path in load_run_settings(run).data.sources]
        if named == [wanted.resolve()] and not is_folder(wanted) and run.name.startswith(DEMO_NAME):
            return ["voxgraft.demo.data", str(wanted)]
    return []
