"""The tab Speak: texts to sound with a run, grafts or the base; the base alone beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.ui import commands
from voxgraft.ui.commands import CommandBuilder, PageContext, find_command
from voxgraft.ui.files import FOLDER_PATHS, PROJECT_PATHS, PathFilter
from voxgraft.ui.forms import CommandForm, OutputForm, add_upload, build_job_controls, last_job_result, next_free_path
from voxgraft.ui.html import (
    AudioCard,
    audio_card_for_file,
    audio_cards_html,
    download_link,
    error_html,
    finding_html,
    job_html,
)
from voxgraft.ui.jobs import ProjectJobs

SPEAK_TEXT_PATHS = PathFilter(endings=(".txt", ".tsv"))
WAV_PATHS = PathFilter(endings=(".wav",))
EMOTION_PATHS = PathFilter(endings=(".wav", ".npy"))
GRAFT_PATHS = PathFilter(mark="graft.json")
RUN_ONLY_KEYS = ("run", "graft", "variant", "step", "output", "codes")
"""Settings of the speaker that the base alone has no use for."""
BASE_JOB = "speak base"
"""The job of the base alone: it stands beside the one of `speak`."""
STOP_WORDS = {"ended": "", "limit": "cut at its limit", "loop": "cut: it went round in a loop"}


def build(context: PageContext) -> None:
    """Lay the tab out."""
    form = _build_speak_form(context)
    _build_base_section(context, form)
    _build_companion_section(context)


def _build_speak_form(context: PageContext) -> OutputForm:
    form = OutputForm(
        context, "speak", json=True, path_keys=("voice",), given=lambda _: {},
        fresh={"output": lambda project: next_free_path(project / "spoken" / "speech")}, unless={"output": "codes"},
        one_of=("text", "file"),
    )  # fmt: skip
    form.add("text", lines=4)
    with gr.Row():
        form.add("language", default=commands.run_language)
        form.add("voice", sought=WAV_PATHS)
        form.add("run", sought=PROJECT_PATHS, default=lambda project: project, label="Who speaks: a run")
        form.add("seed")
    with gr.Accordion("A voice of your own", open=False, elem_id="speak-voice-own"):
        gr.Markdown("A few seconds of one speaker, for bases that imitate a recording. Ask whoever it belongs to.")
        add_upload(context, form, "voice", "Upload a voice to imitate (WAV)", (".wav",))
    _add_more_options(context, form)
    form.finish("Say it")
    return form


def _add_more_options(context: PageContext, form: OutputForm) -> None:
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
            form.add("file", sought=SPEAK_TEXT_PATHS)
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


def _build_base_section(context: PageContext, form: OutputForm) -> None:
    """The same texts from the base alone, in a job of its own, and all sounds side by side."""
    view, button, stop = build_job_controls(context, BASE_JOB, "Hear the base", is_json=True)
    inputs = [context.project, *(control.component for control in form.controls)]
    context.wire(
        [button.click], lambda project, *values: _start_base_job(context, form, project, values), inputs, [view.shown]
    )
    context.wire([stop.click], lambda project: _stop_base_job(context, project), [context.project], [view.shown])
    shown = gr.HTML(elem_id="speak-heard", elem_classes=["vg-live"])
    context.on_change(lambda project: [_spoken_html(context, project)], [shown])


def build_base_argv(context: PageContext, form: CommandForm, project: str, values: Sequence[Any]) -> list[str]:
    """The command of the base alone: the same texts, voice and draws, without what was made of it."""
    folder = context.project_folder(project)
    typed = {control.leaf.key: value for control, value in zip(form.controls, values, strict=True)}
    base = typed.pop("base", None) or commands.run_base_folder(folder)
    if base is None:
        raise ConfigError("config-missing", "the project has no base yet", expected="a base in run.yaml")
    form.require(typed)
    kept = {key: value for key, value in typed.items() if key not in RUN_ONLY_KEYS}
    output = next_free_path(folder / "spoken" / "base")
    command = CommandBuilder(find_command("speak"), context.roots, json=True, path_keys=("voice",))
    return command.words({**kept, "base": str(base)}, folder, {"output": output})


def _start_base_job(context: PageContext, form: CommandForm, project: str, values: Sequence[Any]) -> str:
    try:
        words = build_base_argv(context, form, project, values)
        job = ProjectJobs(context.project_folder(project)).start(BASE_JOB, words, context.roots.home)
    except VoxgraftError as error:
        return error_html(error)
    return job_html(job, is_json=True)


def _stop_base_job(context: PageContext, project: str) -> str:
    try:
        job = ProjectJobs(context.project_folder(project)).stop(BASE_JOB)
    except VoxgraftError as error:
        return error_html(error)
    return job_html(job, is_json=True)


def _spoken_html(context: PageContext, project: str) -> str:
    """What the newest job said, and beside it what the base said of the same."""
    folder = context.project_folder(project)
    found = {
        who: last_job_result(folder, verb) for verb, who in (("speak", "with the graft"), (BASE_JOB, "the base alone"))
    }
    told = [finding_html(one["error"]) for one in found.values() if one and "error" in one]
    spoken = {who: one["utterances"] for who, one in found.items() if one and "utterances" in one}
    longest = max((len(said) for said in spoken.values()), default=0)
    sounds = [
        _build_audio_card(context, said[at], who)
        for at in range(longest)
        for who, said in spoken.items()
        if at < len(said)
    ]
    findings = [item for one in found.values() if one for item in one.get("findings", ())]
    codes = [context.roots.resolve_inside(one["codes"]) for one in found.values() if one and one.get("codes")]
    links = "".join(f"<p>{download_link(context, path, f'save the codes ({path.name})')}</p>" for path in codes)
    return "".join(told) + audio_cards_html(sounds) + links + "".join(map(finding_html, findings))


def _build_audio_card(context: PageContext, one: dict[str, Any], who: str) -> AudioCard:
    words = [f"{one['seconds']:.1f} s", str(one["voice"]), STOP_WORDS.get(str(one["stop"]), str(one["stop"]))]
    about = ", ".join(word for word in words if word)
    title, language = f"{who} ({one['language']})", str(one["language"])
    path = context.roots.resolve_inside(one["file"]) if one.get("file") else None
    if path is None or not path.is_file():
        return AudioCard(title, str(one["text"]), language, about)
    return audio_card_for_file(context, path, title, str(one["text"]), language=language, about=about)


def _build_companion_section(context: PageContext) -> None:
    with gr.Accordion("No sound with Chatterbox? Its waveform end is a program of its own", open=False):
        gr.Markdown(
            "Makes an environment for the stock program once; it needs a network and some gigabytes. For IndexTTS-2, "
            "whose source you have to fetch yourself, and for other environments, use the command line."
        )
        form = CommandForm(context, "companion", given=lambda _: {"name": "chatterbox"})
        form.add("force")
        form.finish("Make it")
