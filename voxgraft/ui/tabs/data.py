"""The tab Data: recordings and texts in, clips looked at and judged, and what is held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.results import format_duration
from voxgraft.ui.commands import (
    PageContext,
    read_first_clips,
    recording_sources,
    run_command_in_process,
    run_dataset_folder,
    run_language,
)
from voxgraft.ui.files import (
    DATASET_PATHS,
    FOLDER_PATHS,
    TEXT_PATHS,
    PathFilter,
    check_uploaded_lists,
    file_link,
    move_uploads,
)
from voxgraft.ui.forms import CommandForm, FormControl, disable_until_project_open
from voxgraft.ui.html import error_html, facts_html, note_html, read_player_audio, table_html

SOURCE_PATHS = PathFilter(
    endings=(".srt", ".vtt", ".ass", ".ssa", ".csv", ".tsv", ".psv", ".jsonl", ".parquet"), folders=True
)
MEDIA_PATHS = PathFilter(
    endings=(".mp4", ".mkv", ".avi", ".mov", ".webm", ".mp3", ".wav", ".m4a", ".flac", ".ogg", ".opus")
)
VOICE_ENCODER_PATHS = PathFilter(endings=("ve.safetensors", "ve.pt"))
QUALITY_KEYS = (
    "shortest longest slowest fastest fastest_syllables silence pause snr clipped bandwidth script outlier same_text"
).split()
NO_CLIPS_YET = "no clips yet: bring recordings in above"
NOT_SPLIT = "not split yet:"
DatasetHandler = Callable[[Path], list[Any]]


class ImportForm(CommandForm):
    """The form of the import: an uploaded list was judged as UTF-8, and may be asked for in another encoding."""

    def build_command_argv(self, folder: Path, typed: Mapping[str, Any]) -> list[str]:
        words = super().build_command_argv(folder, typed)
        if encoding := str(typed.get("encoding") or "").strip():
            check_uploaded_lists(
                self.context.roots, self.command.plain(self.control("sources").leaf, typed["sources"]), encoding
            )
        return words


def build(context: PageContext) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "Recordings with subtitles or transcripts become clips: short pieces of speech, each with its text. "
        "Ten minutes are enough to try it, an hour to hear a difference; more is better. Nothing that you upload "
        "leaves the machine that this page runs on."
    )
    dataset = _build_import_section(context)
    _build_clips_section(context, dataset)
    _build_quality_section(context, dataset)
    _build_split_section(context, dataset)
    _build_speakers_section(context, dataset)
    _build_datasets_section(context, dataset)
    _build_texts_section(context)


def _build_import_section(context: PageContext) -> FormControl:
    with gr.Accordion("1. Bring recordings in", open=True, elem_id="data-in"):
        files = gr.File(
            file_count="multiple", elem_id="data-upload", height=140, interactive=False,
        )  # fmt: skip
        label = "Upload recordings (mp4, mp3, wav ...) with subtitles (srt, vtt) or transcripts (csv, jsonl, txt)"
        disable_until_project_open(context, files, label)
        landed = gr.HTML(elem_id="data-upload-state", elem_classes=["vg-live"])
        form = ImportForm(context, "data import")
        with gr.Row():
            came_from = form.add("sources", sought=SOURCE_PATHS, default=recording_sources, label="From")
            form.add("dataset", sought=DATASET_PATHS, default=run_dataset_folder, label="Into the dataset")
            form.add("language", default=run_language)
            form.add("speaker", info="One speaker for everything (single speaker mode); empty: told by the labels.")
        with gr.Accordion("How clips are cut and cleaned", open=False):
            form.add_all(("shortest", "longest", "lead", "tail", "join_gap"))
            form.add_all(("cut", "activity", "rolling", "fold_homophones"))
            with gr.Row():
                form.add("media", sought=MEDIA_PATHS)
                for key in ("family", "rate", "format", "encoding", "workers"):
                    form.add(key)
        form.finish("Import")
        context.wire(
            [files.upload],
            lambda project, given: _receive_upload(context, project, given),
            [context.project, files],
            [landed, files, came_from],
        )
        form.follow(came_from)
    return form.control("dataset")


def _receive_upload(context: PageContext, project: str, given: list[str] | None) -> list[Any]:
    try:
        folder = context.project_folder(project)
        taken = move_uploads(context.roots, folder, given or [])
    except VoxgraftError as error:
        return [error_html(error), None, gr.skip()]
    names = ", ".join(path.name for path in taken)
    folders = [context.roots.short(taken[0].parent)] if taken else gr.skip()
    return [note_html(f"in the project now: {names}", "good"), None, folders]


def _build_clips_section(context: PageContext, dataset: FormControl) -> None:
    with gr.Accordion("2. Look at the clips, and listen", open=False, elem_id="data-look"):
        state = gr.HTML(elem_id="data-facts")
        clip = gr.Dropdown(
            [], label="Clip", info="Its sound and its text; reasons against it stand behind it.", elem_id="data-clip",
            interactive=True,
        )  # fmt: skip
        heard = gr.Audio(label="Sound of the clip", interactive=False, elem_id="data-sound", buttons=["download"])
        said = gr.HTML(elem_id="data-said")
        form = CommandForm(context, "data info")
        form.share_control("dataset", dataset)
        form.add_all(("problems", "clips"))
        form.finish("Show everything about the dataset")
        _show_dataset(context, dataset, lambda folder: _dataset_facts(context, folder), [state, clip])
        context.wire(
            [clip.change],
            lambda project, name, chosen: _load_clip(context, project, name, chosen),
            [context.project, dataset.component, clip],
            [heard, said],
        )


def _show_dataset(context: PageContext, dataset: FormControl, shown: DatasetHandler, outputs: list[Any]) -> None:
    """Show something of the dataset that is chosen: when it is chosen, and whenever a job has ended."""

    def now(project: str, name: str | None = None) -> list[Any]:
        return shown(resolve_dataset_folder(context, project, name))

    def chosen(project: str, name: str | None) -> list[Any]:
        try:
            return now(project, name)
        except VoxgraftError:  # the command says what is wrong with what was typed
            return [gr.skip()] * len(outputs)

    context.on_project(now, outputs, slow=True)
    context.on_job_end(now, [dataset.component], outputs, slow=True)
    context.wire([dataset.component.change], chosen, [context.project, dataset.component], outputs)


def resolve_dataset_folder(context: PageContext, project: str, name: str | None) -> Path:
    """The folder of the dataset that is chosen; the project's own where none is. It alone may lie outside the roots."""
    own = run_dataset_folder(context.project_folder(project)).resolve()
    return own if not name or name == context.roots.short(own) else context.roots.resolve_inside(name)


def _dataset_facts(context: PageContext, folder: Path) -> list[Any]:
    """What the dataset holds, and its clips to choose from."""
    if not (folder / "manifest.jsonl").is_file():
        return [note_html(NO_CLIPS_YET), gr.update(choices=[], value=None)]
    try:
        found = run_command_in_process(["data", "info", context.roots.short(folder), "--json"])
        listed = [(_format_clip(clip), clip.id) for clip in read_first_clips(folder)]
    except VoxgraftError as error:
        return [error_html(error), gr.update(choices=[], value=None)]
    splits = ", ".join(
        f"{NOT_SPLIT if name == 'none' else name} {format_duration(seconds)}"
        for name, seconds in found["splits"].items()
    )
    reasons = ", ".join(f"{name} {count}" for name, count in found["reasons"].items())
    missing = len(found["missing_audio"])
    shown = facts_html(
        (
            ("clips", f"{found['clips']:,}, of which {found['used']:,} are used", "good" if found["used"] else "bad"),
            ("speech", format_duration(found["seconds"]), "good"),
            ("recordings, speakers", f"{len(found['recordings']):,}, {len(found['speakers']):,}", "note"),
            ("split", splits, "note" if "none" in found["splits"] else "good"),
            ("reasons against clips", reasons or "none", "note"),
            ("lines that were not used", f"{found['problems']:,}", "note"),
            ("sounds that are missing", f"{missing:,}", "bad" if missing else "good"),
        )
    )
    speakers = [(who, format_duration(seconds)) for who, seconds in found["speakers"].items()]
    return [shown + table_html(("speaker", "speech"), speakers[:50]), gr.update(choices=listed, value=None)]


def _format_clip(clip: Any) -> str:
    reasons = f" ✗ {', '.join(clip.rejected)}" if clip.rejected and not clip.taken_back else ""
    return f"{clip.id} ({clip.seconds:.1f} s, {clip.speaker}, {clip.split or 'no split'}){reasons}: {clip.text[:80]}"


def _load_clip(context: PageContext, project: str, name: str | None, chosen: str | None) -> list[Any]:
    if not chosen:
        return [None, ""]
    try:
        folder = resolve_dataset_folder(context, project, name)
        clip = next(clip for clip in read_first_clips(folder) if clip.id == chosen)
        path = (folder / clip.audio).resolve()
        # A clip of the project's own dataset may lie outside the roots as that does, and no other.
        inside = path if folder in path.parents else context.roots.resolve_inside(path)
        return [read_player_audio(inside), note_html(clip.text)]
    except (VoxgraftError, StopIteration) as error:
        return [None, error_html(error) if isinstance(error, VoxgraftError) else note_html("the clip is gone", "bad")]


def _build_quality_section(context: PageContext, dataset: FormControl) -> None:
    with gr.Accordion("3. Quality: measure every clip, and reject the bad ones", open=False, elem_id="data-quality"):
        form = CommandForm(context, "data report")
        form.share_control("dataset", dataset)
        with gr.Accordion("Thresholds", open=False):
            form.add_all([f"quality.{name}" for name in QUALITY_KEYS])
        form.add_all(("take_back", "reject", "workers"))
        form.finish("Measure and judge")
        link = gr.HTML(elem_id="data-report-link")
        _show_dataset(context, dataset, lambda folder: [_report_link_html(context, folder)], [link])


def _report_link_html(context: PageContext, folder: Path) -> str:
    path = folder / "report.html"
    try:
        context.roots.resolve_inside(path)
    except VoxgraftError:  # a dataset that run.yaml names elsewhere: no page of there is served
        return note_html(f"the report is {path}") if path.is_file() else ""
    return file_link(context.pages, context.roots, path, "Open the report, with histograms and players")


def _build_split_section(context: PageContext, dataset: FormControl) -> None:
    with gr.Accordion("4. Split: what is learnt from, what is held out", open=False, elem_id="data-splitting"):
        gr.Markdown(
            "Whole recordings go to one side, so that what is measured later can be believed. What is neither for "
            "validation nor for the test is for training."
        )
        form = CommandForm(context, "data split")
        form.share_control("dataset", dataset)
        form.add_all(("validation", "test", "by", "seed"))
        form.finish("Split")


def _build_speakers_section(context: PageContext, dataset: FormControl) -> None:
    with gr.Accordion("Speakers: who speaks, other names, voices told apart", open=False, elem_id="data-who"):
        form = CommandForm(context, "data speakers")
        form.share_control("dataset", dataset)
        with gr.Row():
            form.add("rename")
            form.add("voices", sought=VOICE_ENCODER_PATHS)
        form.finish("Show or change speakers")


def _build_datasets_section(context: PageContext, dataset: FormControl) -> None:
    with gr.Accordion("Datasets: list, merge, remove", open=False, elem_id="data-sets"):
        listing = CommandForm(context, "data list")
        listing.add("folder", sought=FOLDER_PATHS, default=lambda project: project)
        listing.finish("List")
        merging = CommandForm(context, "data merge")
        with gr.Row():
            merging.add("sets", sought=DATASET_PATHS)
            merging.add("dataset", sought=DATASET_PATHS, default=lambda project: project / "merged", label="Into")
            merging.add("used_only")
        merging.finish("Merge")
        removing = CommandForm(context, "data remove")
        removing.share_control("dataset", dataset)
        removing.add_all(("recording", "speaker", "clip"))
        with gr.Row():
            removing.add("missing", label="Clips without sound")
            removing.add("yes", label="Yes, remove them", info="Without this tick nothing is removed.")
        removing.finish("Remove from the dataset of step 1")


def _build_texts_section(context: PageContext) -> None:
    with gr.Accordion("Text as it is said: numbers, dates, abbreviations in words", open=False, elem_id="data-words"):
        form = CommandForm(context, "data text")
        form.add("text", lines=3)
        with gr.Row():
            form.add("language", default=run_language)
            form.add("texts", sought=TEXT_PATHS)
            form.add("explain")
            form.add("fold_homophones")
        form.finish("Show how it is said")
