"""The tab Speak: texts to sound with a run, grafts or the base; the base alone beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.ui import reading
from voxgraft.ui.commands import Command, verb_named
from voxgraft.ui.context import Context
from voxgraft.ui.controls import Form, job_parts
from voxgraft.ui.jobs import Jobs
from voxgraft.ui.making import MakingForm, free, last_result, uploading
from voxgraft.ui.players import Sound, download, players, sound_of
from voxgraft.ui.roots import FOLDERS, PROJECTS, Sought
from voxgraft.ui.views import error_note, finding_note, job_html

TEXT_FILES = Sought(endings=(".txt", ".tsv"))
WAVES = Sought(endings=(".wav",))
EMOTIONS = Sought(endings=(".wav", ".npy"))
GRAFTS = Sought(mark="graft.json")
OF_THE_RUN = ("run", "graft", "which", "step", "output", "codes")
"""Settings of the speaker that the base alone has no use for."""
BESIDE = "speak base"
"""The job of the base alone: it stands beside the one of `speak`."""
STOPS = {"ended": "", "limit": "cut at its limit", "loop": "cut: it went round in a loop"}


def build(context: Context) -> None:
    """Lay the tab out."""
    form = _form(context)
    _beside(context, form)
    _companion(context)


def _form(context: Context) -> MakingForm:
    form = MakingForm(
        context, "speak", json=True, path_keys=("voice",), given=lambda _: {},
        fresh={"output": lambda project: free(project / "spoken" / "speech")}, unless={"output": "codes"},
        one_of=("text", "file"),
    )  # fmt: skip
    form.add("text", lines=4)
    with gr.Row():
        form.add("language", default=reading.language)
        form.add("voice", sought=WAVES)
        form.add("run", sought=PROJECTS, default=lambda project: project, label="Who speaks: a run")
        form.add("seed")
    with gr.Accordion("A voice of your own", open=False, elem_id="speak-voice-own"):
        gr.Markdown("A few seconds of one speaker, for bases that imitate a recording. Ask whoever it belongs to.")
        uploading(context, form, "voice", "Upload a voice to imitate (WAV)", (".wav",))
    _more(context, form)
    form.finish("Say it")
    return form


def _more(context: Context, form: MakingForm) -> None:
    with gr.Accordion("How it is drawn: temperature and the like", open=False, elem_id="speak-drawing"):
        form.add_all(("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_seconds"))
    with gr.Accordion("Manner: emotion, guidance, pauses", open=False, elem_id="speak-manner"):
        with gr.Row():
            form.add("exaggeration", info="Chatterbox: how strong the emotion is; 0.5 is its usual strength.")
            form.add("guidance", label="Guidance (CFG, pace)")
            form.add("emotion", sought=EMOTIONS)
            form.add("emotion_weight")
        form.add_all(("split", "pause"))
        uploading(
            context, form, "emotion", "Upload a recording whose emotion is taken on (IndexTTS-2)", (".wav", ".npy")
        )
    with gr.Accordion("Many texts at once, from a file", open=False, elem_id="speak-many"):
        gr.Markdown("A text on each line, or a table (tsv) with the columns text, language, voice and name.")
        with gr.Row():
            form.add("file", sought=TEXT_FILES)
            form.add("batch")
        uploading(context, form, "file", "Upload texts", (".txt", ".tsv"))
    with gr.Accordion("Another speaker, other outputs, the machine", open=False, elem_id="speak-more"):
        with gr.Row():
            form.add("which")
            form.add("step")
            form.add("graft", sought=GRAFTS)
            form.add("base", sought=FOLDERS)
        with gr.Row():
            form.add("output", sought=FOLDERS, info="NAME.wav for one file with everything, else a folder. "
                     "Empty: a new folder in the project.")  # fmt: skip
            form.add("codes", sought=Sought(endings=(".json", ".npy")))
            for key in ("family", "device", "precision"):
                form.add(key)


def _beside(context: Context, form: MakingForm) -> None:
    """The same texts from the base alone, in a job of its own, and all sounds side by side."""
    view, button, stop = job_parts(context, BESIDE, "Hear the base", for_machines=True)
    inputs = [context.project, *(control.component for control in form.controls)]
    context.wire([button.click], lambda project, *values: _start(context, form, project, values), inputs, [view.shown])
    context.wire([stop.click], lambda project: _stop(context, project), [context.project], [view.shown])
    shown = gr.HTML(elem_id="speak-heard", elem_classes=["vg-live"])
    context.on_change(lambda project: [_heard(context, project)], [shown])


def base_words(context: Context, form: Form, project: str, values: Sequence[Any]) -> list[str]:
    """The command of the base alone: the same texts, voice and draws, without what was made of it."""
    folder = context.project_folder(project)
    typed = {control.leaf.key: value for control, value in zip(form.controls, values, strict=True)}
    base = typed.pop("base", None) or reading.base(folder)
    if base is None:
        raise ConfigError("config-missing", "the project has no base yet", expected="a base in run.yaml")
    form.require(typed)
    kept = {key: value for key, value in typed.items() if key not in OF_THE_RUN}
    output = free(folder / "spoken" / "base")
    command = Command(verb_named("speak"), context.roots, json=True, path_keys=("voice",))
    return command.words({**kept, "base": str(base)}, folder, {"output": output})


def _start(context: Context, form: Form, project: str, values: Sequence[Any]) -> str:
    try:
        words = base_words(context, form, project, values)
        job = Jobs(context.project_folder(project)).start(BESIDE, words, context.roots.home)
    except VoxgraftError as error:
        return error_note(error)
    return job_html(job, for_machines=True)


def _stop(context: Context, project: str) -> str:
    try:
        job = Jobs(context.project_folder(project)).stop(BESIDE)
    except VoxgraftError as error:
        return error_note(error)
    return job_html(job, for_machines=True)


def _heard(context: Context, project: str) -> str:
    """What the newest job said, and beside it what the base said of the same."""
    folder = context.project_folder(project)
    found = {who: last_result(folder, verb) for verb, who in (("speak", "with the graft"), (BESIDE, "the base alone"))}
    told = [finding_note(one["error"]) for one in found.values() if one and "error" in one]
    spoken = {who: one["utterances"] for who, one in found.items() if one and "utterances" in one}
    longest = max((len(said) for said in spoken.values()), default=0)
    sounds = [_sound(context, said[at], who) for at in range(longest) for who, said in spoken.items() if at < len(said)]
    findings = [item for one in found.values() if one for item in one.get("findings", ())]
    codes = [context.roots.inside(one["codes"]) for one in found.values() if one and one.get("codes")]
    links = "".join(f"<p>{download(context, path, f'save the codes ({path.name})')}</p>" for path in codes)
    return "".join(told) + players(sounds) + links + "".join(map(finding_note, findings))


def _sound(context: Context, one: dict[str, Any], who: str) -> Sound:
    words = [f"{one['seconds']:.1f} s", str(one["voice"]), STOPS.get(str(one["stop"]), str(one["stop"]))]
    about = ", ".join(word for word in words if word)
    title, language = f"{who} ({one['language']})", str(one["language"])
    path = context.roots.inside(one["file"]) if one.get("file") else None
    if path is None or not path.is_file():
        return Sound(title, str(one["text"]), language, about)
    return sound_of(context, path, title, str(one["text"]), language=language, about=about)


def _companion(context: Context) -> None:
    with gr.Accordion("No sound with Chatterbox? Its waveform end is a program of its own", open=False):
        gr.Markdown(
            "Makes an environment for the stock program once; it needs a network and some gigabytes. For IndexTTS-2, "
            "whose source you have to fetch yourself, and for other environments, use the command line."
        )
        form = Form(context, "companion", given=lambda _: {"name": "chatterbox"})
        form.add("anew")
        form.finish("Make it")
