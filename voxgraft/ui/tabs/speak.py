"""The tab Speak: sound of texts with a run, grafts or the base alone, in a voice that the base can use.

A base with fixed voices offers those by name. One that imitates recordings also offers speakers of the run's own clips,
uploads and a microphone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.audio.files import AUDIO_SUFFIXES
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.languages import base_language
from voxgraft.data.manifest import MANIFEST_NAME, read_manifest
from voxgraft.evaluation.sentences import load_sentence_sets
from voxgraft.models import resolve_base_family
from voxgraft.models.base import Family
from voxgraft.tokenizers import open_tokenizer
from voxgraft.ui.commands import (
    CommandBuilder,
    find_command,
    load_run_settings,
    run_base_folder,
    run_dataset_folder,
    run_language,
)
from voxgraft.ui.files import (
    FOLDER_PATHS,
    PROJECT_PATHS,
    PathFilter,
    file_stamp,
    move_uploads,
    next_free_path,
    safe_name,
)
from voxgraft.ui.forms import CommandForm, add_upload
from voxgraft.ui.html import (
    NEEDED_CODE,
    PAGE_TARGETS,
    audio_card_html,
    audio_cards_html,
    audio_file_html,
    download_link,
    error_html,
    finding_html,
    findings_html,
    note_html,
    target_button,
)
from voxgraft.ui.jobs import UPLOADS_FOLDER, ProjectJobs
from voxgraft.ui.page import PageContext, build_job_controls, last_job_result, start_job
from voxgraft.ui.tabs.evaluate import SENTENCE_PATHS

VOICE_PATHS = PathFilter(endings=AUDIO_SUFFIXES)
EMOTION_PATHS = PathFilter(endings=(*AUDIO_SUFFIXES, ".npy"))
GRAFT_PATHS = PathFilter(mark="graft.json")
# Settings of the speaker that the base alone has no use for.
RUN_ONLY_KEYS = ("run", "graft", "variant", "step", "output", "codes")
# Jobs of the same command beside the one of the form: the base alone, and one sentence in a voice.
BASE_JOB, VOICE_JOB = "speak base", "speak voice"
SPEAKERS = {"speak": "with the graft", BASE_JOB: "the base alone"}
STOP_WORDS = {"ended": "", "limit": "cut at the length limit", "loop": "cut: it repeated itself"}
# Clips to imitate: long enough to know a voice by, and so many of them.
MIN_CLIP_SECONDS, MAX_CLIP_SECONDS, MAX_CLIPS, MAX_READ_CLIPS = 2.0, 15.0, 20, 2000


def build_speak_tab(context: PageContext) -> None:
    """Lay the tab out."""
    form = CommandForm(
        context, "speak", json=True, path_keys=("voice",), given=lambda _: {},
        fresh={"output": lambda project: next_free_path(project / "spoken" / "speech")}, unless={"output": "codes"},
        one_of=("text", "file"),
    )  # fmt: skip
    form.add("text", lines=3)
    with gr.Row():
        form.add("language", default=run_language)
        form.add(
            "voice", sought=VOICE_PATHS, options=lambda project: voice_choices(context, project),
            info="Only voices that this base can use. Automatic: its first voice, or one of the run.",
        )  # fmt: skip
        form.add("run", sought=PROJECT_PATHS, default=lambda project: project, label="Model: a run")
        form.add("seed")
    controls: list[Any] = []

    def add_below() -> None:
        """What was spoken comes first, so that it is in view; then the base alone, the voice and the rest."""
        heard = gr.HTML(elem_id="speak-heard", elem_classes=["vg-live"])
        context.on_change(lambda project: [spoken_html(context, project, SPEAKERS)], [heard])
        controls.extend(build_job_controls(context, BASE_JOB, "Speak with the base", is_json=True, is_primary=False))
        _offer_base(context, form, controls[1])
        form.also_starts.append((controls[0], lambda *given: build_base_argv(context, form, *given)))
        _add_voices(context, form)
        with gr.Accordion("Advanced", open=False, elem_id="speak-advanced"):
            _add_advanced(context, form)

    form.finish("Speak", add_below=add_below)
    # The same texts from the base alone, in its own job, and all sounds side by side.
    alone, button = controls
    context.wire(
        [button.click],
        lambda project, *values: start_job(
            context, project, alone, lambda: build_base_argv(context, form, project, values)
        ),
        [context.project, *form.components],
        [alone.shown, alone.button],
    )


def _offer_base(context: PageContext, form: CommandForm, button: Any) -> None:
    """The button for the base alone, only while the chosen language is one that it speaks; else a note says why."""
    note = gr.HTML(elem_id="speak-base-note", elem_classes=["vg-live"])
    chosen = form.control("language").component

    def offer(project: str, language: str | None) -> list[Any]:
        spoken, code = run_base_languages(context.project_folder(project)), (language or "").strip()
        if not spoken or not code or base_language(code) in spoken:
            return [gr.update(visible=True), ""]
        words = f"To compare with the base alone, choose a language that it speaks: {', '.join(spoken)}."
        target = target_button(PAGE_TARGETS["speak", "language"])
        return [gr.update(visible=False), f'<div class="vg-note" role="status">{escape(words)}{target}</div>']

    context.on_project(lambda project: offer(project, run_language(context.project_folder(project))), [button, note])
    context.wire([chosen.change], offer, [context.project, chosen], [button, note])


def _add_voices(context: PageContext, form: CommandForm) -> None:
    """The player of the chosen voice, and a voice of one's own."""
    with gr.Row(equal_height=False):
        shown = gr.HTML(elem_id="speak-voice-player", elem_classes=["vg-live"], min_width=280)
        with gr.Column(min_width=280):
            view, hear = build_job_controls(context, VOICE_JOB, "Play this voice", is_json=True, is_primary=False)
    with gr.Accordion(
        "Imitate a voice: upload or record it", open=False, visible=False, elem_id="speak-voice-own"
    ) as own:
        gr.Markdown("A few seconds of one speaker, without music. You need the speaker's consent.")
        with gr.Row():
            add_upload(context, form, "voice", "Upload a voice to imitate", AUDIO_SUFFIXES)
            recorded = gr.Audio(
                sources=["microphone"], type="filepath", format="wav", label="Record a voice to imitate",
                elem_id="speak-voice-record",
            )  # fmt: skip
    _wire_voices(context, form, own, recorded, shown, (view, hear))


def _add_advanced(context: PageContext, form: CommandForm) -> None:
    with gr.Accordion("Sampling: temperature and more", open=False, elem_id="speak-drawing"):
        form.add_all(("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_seconds"))
    with gr.Accordion("Style: emotion, guidance, pauses", open=False, elem_id="speak-manner"):
        with gr.Row():
            form.add("exaggeration", info="Chatterbox: how strong the emotion is; 0.5 is its usual strength.")
            form.add("guidance", label="Guidance (CFG, pace)")
            form.add("emotion", sought=EMOTION_PATHS)
            form.add("emotion_weight")
        form.add_all(("split", "pause"))
        emotion = "Upload a recording with the emotion to use (IndexTTS-2)"
        add_upload(context, form, "emotion", emotion, EMOTION_PATHS.endings)
    with gr.Accordion("Many texts at once, from a file", open=False, elem_id="speak-many"):
        gr.Markdown("One text per line, or a table (tsv) with the columns text, language, voice and name.")
        with gr.Row():
            form.add("file", sought=SENTENCE_PATHS)
            form.add("batch")
        add_upload(context, form, "file", "Upload texts", (".txt", ".tsv"))
    with gr.Accordion("Other models, outputs, device", open=False, elem_id="speak-more"):
        with gr.Row():
            form.add("variant")
            form.add("step")
            form.add("graft", sought=GRAFT_PATHS)
            form.add("base", sought=FOLDER_PATHS)
        with gr.Row():
            form.add("output", sought=FOLDER_PATHS, info="NAME.wav for one file with everything, else a folder. "
                     "Empty: a new folder in the run.")  # fmt: skip
            form.add("codes", sought=PathFilter(endings=(".json", ".npy")))
            for key in ("family", "device", "precision"):
                form.add(key)


def _wire_voices(
    context: PageContext, form: CommandForm, own: Any, recorded: Any, shown: Any, controls: tuple[Any, Any]
) -> None:
    """The player of the chosen voice; a recording of the microphone becomes a voice."""
    voice, (view, hear) = form.control("voice").component, controls

    def show(project: str, name: str | None) -> str:
        try:
            return voice_player_html(context, project, name)
        except VoxgraftError as error:
            return error_html(error, "speak")

    def receive(project: str, given: str | None) -> list[Any]:
        if not given:
            return [gr.skip(), gr.skip(), gr.skip()]
        try:
            (taken,) = move_uploads(context.roots, context.project_folder(project), [given])
        except VoxgraftError as error:
            return [error_html(error), None, gr.skip()]
        return [note_html(f"recorded: {taken.name}", "good"), None, context.roots.short(taken)]

    context.wire([voice.change], show, [context.project, voice], [shown])
    context.on_project(lambda project, name: [show(project, name)], [shown], [voice])
    context.on_job_end(lambda project, name: [show(project, name)], [voice], [shown])
    context.wire([recorded.stop_recording], receive, [context.project, recorded], [shown, recorded, voice])
    context.wire(
        [hear.click],
        lambda project, name: start_job(context, project, view, lambda: build_voice_argv(context, project, name)),
        [context.project, voice],
        [view.shown, view.button],
    )

    def offer(project: str) -> list[Any]:
        return [gr.update(visible=run_clones_voices(context.project_folder(project)))]

    context.on_change(offer, [own])


def run_family(folder: Path) -> Family | None:
    """The family of the run's base; None if run.yaml names no base that can be read."""
    with contextlib.suppress(VoxgraftError):
        base = run_base_folder(folder)
        if base is not None:
            return resolve_base_family(base, load_run_settings(folder).family)
    return None


def run_base_languages(folder: Path) -> tuple[str, ...]:
    """The languages that the run's base speaks; none if that is not known."""
    family, base = run_family(folder), run_base_folder(folder)
    with contextlib.suppress(VoxgraftError):
        if family is not None and base is not None:
            return read_base_languages(family, base)
    return ()


def read_base_languages(family: Family, base: Path) -> tuple[str, ...]:
    """The languages that a base speaks, by its tokenizer."""
    return _read_base_languages(family, base, file_stamp(family.files(base).tokenizer))


@lru_cache(maxsize=16)
def _read_base_languages(family: Family, base: Path, _stamp: str) -> tuple[str, ...]:
    files = family.files(base)
    rows = open_tokenizer(files.tokenizer).size + family.spare_rows
    return tuple(family.describe(files, rows).languages)


def run_clones_voices(folder: Path) -> bool:
    """Whether the run's base speaks in the voice of any recording."""
    family, base = run_family(folder), run_base_folder(folder)
    with contextlib.suppress(VoxgraftError):
        if family is not None and base is not None:
            return family.can_clone_voices(family.files(base))
    return False


def named_voices(folder: Path) -> list[str]:
    """The voices that the run's base has by name."""
    family, base = run_family(folder), run_base_folder(folder)
    with contextlib.suppress(VoxgraftError):
        if family is not None and base is not None:
            return list(family.voices(family.files(base)))
    return []


def voice_choices(context: PageContext, folder: Path) -> list[tuple[str, str]]:
    """What can be chosen as a voice: the base's own, and for bases that imitate, speakers of the run and recordings."""
    found = {name: f"{name} (voice of the base)" for name in named_voices(folder)}
    if run_family(folder) is None or run_clones_voices(folder):
        dataset = run_dataset_folder(folder)
        with contextlib.suppress(VoxgraftError):
            speakers: dict[str, None] = {}
            clips = read_manifest(dataset / MANIFEST_NAME) if (dataset / MANIFEST_NAME).is_file() else ()
            for _, clip in zip(range(MAX_READ_CLIPS), clips, strict=False):
                is_long = MIN_CLIP_SECONDS <= clip.seconds <= MAX_CLIP_SECONDS
                if is_long and clip.is_used and clip.speaker not in speakers and len(speakers) < MAX_CLIPS:
                    # A clip outside the roots cannot be played; the speaker may have another one.
                    with contextlib.suppress(VoxgraftError):
                        path = context.roots.short(context.roots.resolve_inside(clip.resolve_audio(dataset)))
                        speakers[clip.speaker] = None
                        found[path] = f"{clip.speaker} (clip of the run)"
        uploads = folder / UPLOADS_FOLDER
        for name in context.roots.find(VOICE_PATHS, uploads if uploads.is_dir() else folder):
            found.setdefault(name, name)
    return [("automatic", ""), *((label, value) for value, label in found.items())]


def voice_player_html(context: PageContext, project: str, name: str | None) -> str:
    """A player of the chosen voice: the recording itself, or the sentence that was spoken in a voice of the base."""
    folder = context.project_folder(project)
    known = named_voices(folder)
    chosen = name or (known[0] if known else "")
    if not chosen:
        return ""
    if chosen not in known:
        path = context.roots.resolve_inside(chosen)
        if not path.is_file():
            return ""
        return audio_cards_html([audio_file_html(context, path, "Voice", path.name)])
    path = _voice_sample(folder, chosen)
    if not file_stamp(path):
        return note_html(f"“{chosen}” is a voice of the base. Press “Play this voice” to listen.")
    return audio_cards_html([audio_file_html(context, path, "Voice", f"{chosen}, spoken by the base")])


def _voice_sample(folder: Path, name: str) -> Path:
    return folder / "spoken" / "voices" / f"{safe_name(name)}.wav"


def build_voice_argv(context: PageContext, project: str, name: str | None) -> list[str]:
    """The argv that lets the base speak one sentence in one of its voices."""
    folder = context.project_folder(project)
    family, base, known = run_family(folder), run_base_folder(folder), named_voices(folder)
    chosen = name or (known[0] if known else "")
    if family is None or base is None or chosen not in known:
        raise ConfigError(NEEDED_CODE, "still needed: Voice (one that the base has by name)")
    language = family.languages[0]
    sentences = load_sentence_sets([language], (), 2)
    text = sentences[language].sentences[0].text if language in sentences else "Hello."
    command = CommandBuilder(find_command("speak"), context.roots, json=True)
    fixed = {"base": str(base), "language": language, "voice": chosen, "output": _voice_sample(folder, chosen)}
    return command.words({"text": text}, None, {**fixed, "overwrite": True})


def build_base_argv(context: PageContext, form: CommandForm, project: str, values: Sequence[Any]) -> list[str]:
    """The argv for the base alone: the same texts, voice and sampling, without the graft."""
    folder = context.project_folder(project)
    typed = form.typed_values(values)
    spoken, code = run_base_languages(folder), str(typed.get("language") or "").strip()
    if spoken and code and base_language(code) not in spoken:
        raise ConfigError(NEEDED_CODE, f"still needed: Language (one that the base speaks: {', '.join(spoken)})")
    base = typed.pop("base", None) or run_base_folder(folder)
    if base is None:
        raise ConfigError("config-missing", "`base` is not given: the run has no base yet")
    form.require(typed)
    kept = {key: value for key, value in typed.items() if key not in RUN_ONLY_KEYS}
    output = next_free_path(folder / "spoken" / "base")
    command = CommandBuilder(find_command("speak"), context.roots, json=True, path_keys=("voice",))
    return command.words({**kept, "base": str(base)}, folder, {"output": output})


def spoken_html(context: PageContext, project: str, speakers: Mapping[str, str]) -> str:
    """The utterances of the newest jobs side by side; `speakers` says who speaks, by job."""
    folder = context.project_folder(project)
    found = {who: last_job_result(folder, verb) for verb, who in speakers.items()}
    # An error counts until something was spoken after it.
    failed = [one for verb, one in zip(speakers, found.values(), strict=True) if one and "error" in one
              and (job := ProjectJobs(folder).latest(verb)) is not None and not job.is_superseded]  # fmt: skip
    errors = [finding_html(one["error"], "speak") for one in failed]
    spoken = {who: one["utterances"] for who, one in found.items() if one and "utterances" in one}
    longest = max((len(said) for said in spoken.values()), default=0)
    cards = []
    for at, (who, said) in product(range(longest), spoken.items()):
        if at < len(said):
            one = said[at]
            title, text, language = f"{who} ({one['language']})".strip(), str(one["text"]), str(one["language"])
            stop = STOP_WORDS.get(str(one["stop"]), str(one["stop"]))
            about = ", ".join(filter(None, (f"{one['seconds']:.1f} s", str(one["voice"]), stop)))
            path = context.roots.resolve_inside(one["file"]) if one.get("file") else None
            if path is None or not path.is_file():
                cards.append(audio_card_html(title, text, language=language, about=about))
            else:
                cards.append(audio_file_html(context, path, title, text, language=language, about=about))
    findings = "".join(findings_html(one, "speak") for one in found.values() if one)
    codes = [context.roots.resolve_inside(one["codes"]) for one in found.values() if one and one.get("codes")]
    links = "".join(f"<p>{download_link(context, path, f'save the codes ({path.name})')}</p>" for path in codes)
    return "".join(errors) + audio_cards_html(cards) + links + findings
