"""The tab Data: recordings and texts in, clips looked at and judged, and what is held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.amounts import brief_seconds
from voxgraft.errors import VoxgraftError
from voxgraft.ui.commands import ask
from voxgraft.ui.context import Context
from voxgraft.ui.controls import Control, Form
from voxgraft.ui.making import wait_for_project
from voxgraft.ui.pages import page_link
from voxgraft.ui.reading import clips, clips_folder, language, sources
from voxgraft.ui.roots import DATASETS, FOLDERS, TEXTS, Sought
from voxgraft.ui.sounds import sound
from voxgraft.ui.uploads import refuse_as_read, take_over
from voxgraft.ui.views import error_note, facts, note, table

SOURCES = Sought(endings=(".srt", ".vtt", ".ass", ".ssa", ".csv", ".tsv", ".psv", ".jsonl", ".parquet"), folders=True)
MEDIA = Sought(endings=(".mp4", ".mkv", ".avi", ".mov", ".webm", ".mp3", ".wav", ".m4a", ".flac", ".ogg", ".opus"))
VOICES = Sought(endings=("ve.safetensors", "ve.pt"))
QUALITY = (
    "shortest longest slowest fastest fastest_syllables silence pause snr clipped bandwidth script outlier same_text"
).split()
NOTHING_YET = "no clips yet: bring recordings in above"
NOT_SPLIT = "not split yet:"
Shown = Callable[[Path], list[Any]]


class ImportForm(Form):
    """The form of the import: an uploaded list was judged as UTF-8, and may be asked for in another encoding."""

    def command_of(self, folder: Path, typed: Mapping[str, Any]) -> list[str]:
        words = super().command_of(folder, typed)
        if encoding := str(typed.get("encoding") or "").strip():
            refuse_as_read(
                self.context.roots, self.command.plain(self.control("sources").leaf, typed["sources"]), encoding
            )
        return words


def build(context: Context) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "Recordings with subtitles or transcripts become clips: short pieces of speech, each with its text. "
        "Ten minutes are enough to try it, an hour to hear a difference; more is better. Nothing that you upload "
        "leaves the machine that this page runs on."
    )
    dataset = _import(context)
    _looking(context, dataset)
    _quality(context, dataset)
    _splitting(context, dataset)
    _speakers(context, dataset)
    _sets(context, dataset)
    _fetching(context)
    _texts(context)


def _import(context: Context) -> Control:
    with gr.Accordion("1. Bring recordings in", open=True, elem_id="data-in"):
        files = gr.File(
            file_count="multiple", elem_id="data-upload", height=140, interactive=False,
        )  # fmt: skip
        label = "Upload recordings (mp4, mp3, wav ...) with subtitles (srt, vtt) or transcripts (csv, jsonl, txt)"
        wait_for_project(context, files, label)
        landed = gr.HTML(elem_id="data-upload-state", elem_classes=["vg-live"])
        form = ImportForm(context, "data import")
        with gr.Row():
            came_from = form.add("sources", sought=SOURCES, default=sources, label="From")
            form.add("dataset", sought=DATASETS, default=clips_folder, label="Into the dataset")
            form.add("language", default=language)
            form.add("speaker", info="One speaker for everything (single speaker mode); empty: told by the labels.")
        with gr.Accordion("How clips are cut and cleaned", open=False):
            form.add_all(("shortest", "longest", "lead", "tail", "join_gap"))
            form.add_all(("cut", "activity", "rolling", "fold_homophones"))
            with gr.Row():
                form.add("media", sought=MEDIA)
                for key in ("family", "rate", "format", "encoding", "workers"):
                    form.add(key)
        form.finish("Import")
        context.wire(
            [files.upload],
            lambda project, given: _upload(context, project, given),
            [context.project, files],
            [landed, files, came_from],
        )
        form.follow(came_from)
    return form.control("dataset")


def _upload(context: Context, project: str, given: list[str] | None) -> list[Any]:
    try:
        folder = context.project_folder(project)
        taken = take_over(context.roots, folder, given or [])
    except VoxgraftError as error:
        return [error_note(error), None, gr.skip()]
    names = ", ".join(path.name for path in taken)
    folders = [context.roots.short(taken[0].parent)] if taken else gr.skip()
    return [note(f"in the project now: {names}", "good"), None, folders]


def _looking(context: Context, dataset: Control) -> None:
    with gr.Accordion("2. Look at the clips, and listen", open=False, elem_id="data-look"):
        state = gr.HTML(elem_id="data-facts")
        clip = gr.Dropdown(
            [], label="Clip", info="Its sound and its text; reasons against it stand behind it.", elem_id="data-clip",
            interactive=True,
        )  # fmt: skip
        heard = gr.Audio(label="Sound of the clip", interactive=False, elem_id="data-sound", buttons=["download"])
        said = gr.HTML(elem_id="data-said")
        form = Form(context, "data info")
        form.use("dataset", dataset)
        form.add_all(("problems", "clips"))
        form.finish("Show everything about the dataset")
        _follow(context, dataset, lambda folder: _facts(context, folder), [state, clip])
        context.wire(
            [clip.change],
            lambda project, name, chosen: _listen(context, project, name, chosen),
            [context.project, dataset.component, clip],
            [heard, said],
        )


def _follow(context: Context, dataset: Control, shown: Shown, outputs: list[Any]) -> None:
    """Show something of the dataset that is chosen: when it is chosen, and whenever a job has ended."""

    def now(project: str, name: str | None = None) -> list[Any]:
        return shown(dataset_of(context, project, name))

    def chosen(project: str, name: str | None) -> list[Any]:
        try:
            return now(project, name)
        except VoxgraftError:  # the command says what is wrong with what was typed
            return [gr.skip()] * len(outputs)

    context.on_project(now, outputs, slow=True)
    context.on_job_end(now, [dataset.component], outputs, slow=True)
    context.wire([dataset.component.change], chosen, [context.project, dataset.component], outputs)


def dataset_of(context: Context, project: str, name: str | None) -> Path:
    """The folder of the dataset that is chosen; the project's own where none is. It alone may lie outside the roots."""
    own = clips_folder(context.project_folder(project)).resolve()
    return own if not name or name == context.roots.short(own) else context.roots.inside(name)


def _facts(context: Context, folder: Path) -> list[Any]:
    """What the dataset holds, and its clips to choose from."""
    if not (folder / "manifest.jsonl").is_file():
        return [note(NOTHING_YET), gr.update(choices=[], value=None)]
    try:
        found = ask(["data", "info", context.roots.short(folder), "--json"])
        listed = [(_clip_line(clip), clip.id) for clip in clips(folder)]
    except VoxgraftError as error:
        return [error_note(error), gr.update(choices=[], value=None)]
    splits = ", ".join(
        f"{NOT_SPLIT if name == 'none' else name} {brief_seconds(seconds)}" for name, seconds in found["splits"].items()
    )
    reasons = ", ".join(f"{name} {count}" for name, count in found["reasons"].items())
    missing = len(found["missing_audio"])
    shown = facts(
        (
            ("clips", f"{found['clips']:,}, of which {found['used']:,} are used", "good" if found["used"] else "bad"),
            ("speech", brief_seconds(found["seconds"]), "good"),
            ("recordings, speakers", f"{len(found['recordings']):,}, {len(found['speakers']):,}", "note"),
            ("split", splits, "note" if "none" in found["splits"] else "good"),
            ("reasons against clips", reasons or "none", "note"),
            ("lines that were not used", f"{found['problems']:,}", "note"),
            ("sounds that are missing", f"{missing:,}", "bad" if missing else "good"),
        )
    )
    speakers = [(who, brief_seconds(seconds)) for who, seconds in found["speakers"].items()]
    return [shown + table(("speaker", "speech"), speakers[:50]), gr.update(choices=listed, value=None)]


def _clip_line(clip: Any) -> str:
    reasons = f" ✗ {', '.join(clip.rejected)}" if clip.rejected and not clip.taken_back else ""
    return f"{clip.id} ({clip.seconds:.1f} s, {clip.speaker}, {clip.split or 'no split'}){reasons}: {clip.text[:80]}"


def _listen(context: Context, project: str, name: str | None, chosen: str | None) -> list[Any]:
    if not chosen:
        return [None, ""]
    try:
        folder = dataset_of(context, project, name)
        clip = next(clip for clip in clips(folder) if clip.id == chosen)
        path = (folder / clip.audio).resolve()
        # A clip of the project's own dataset may lie outside the roots as that does, and no other.
        inside = path if folder in path.parents else context.roots.inside(path)
        return [sound(inside), note(clip.text)]
    except (VoxgraftError, StopIteration) as error:
        return [None, error_note(error) if isinstance(error, VoxgraftError) else note("the clip is gone", "bad")]


def _quality(context: Context, dataset: Control) -> None:
    with gr.Accordion("3. Quality: measure every clip, and reject the bad ones", open=False, elem_id="data-quality"):
        form = Form(context, "data report")
        form.use("dataset", dataset)
        with gr.Accordion("Thresholds", open=False):
            form.add_all([f"quality.{name}" for name in QUALITY])
        form.add_all(("take_back", "reject", "workers"))
        form.finish("Measure and judge")
        link = gr.HTML(elem_id="data-report-link")
        _follow(context, dataset, lambda folder: [_report_link(context, folder)], [link])


def _report_link(context: Context, folder: Path) -> str:
    path = folder / "report.html"
    try:
        context.roots.inside(path)
    except VoxgraftError:  # a dataset that run.yaml names elsewhere: no page of there is served
        return note(f"the report is {path}") if path.is_file() else ""
    return page_link(context.pages, context.roots, path, "Open the report, with histograms and players")


def _splitting(context: Context, dataset: Control) -> None:
    with gr.Accordion("4. Split: what is learnt from, what is held out", open=False, elem_id="data-splitting"):
        gr.Markdown(
            "Whole recordings go to one side, so that what is measured later can be believed. What is neither for "
            "validation nor for the test is for training."
        )
        form = Form(context, "data split")
        form.use("dataset", dataset)
        form.add_all(("validation", "test", "by", "seed"))
        form.finish("Split")


def _speakers(context: Context, dataset: Control) -> None:
    with gr.Accordion("Speakers: who speaks, other names, voices told apart", open=False, elem_id="data-who"):
        form = Form(context, "data speakers")
        form.use("dataset", dataset)
        with gr.Row():
            form.add("rename")
            form.add("voices", sought=VOICES)
        form.finish("Show or change speakers")


def _sets(context: Context, dataset: Control) -> None:
    with gr.Accordion("Datasets: list, merge, remove", open=False, elem_id="data-sets"):
        listing = Form(context, "data list")
        listing.add("folder", sought=FOLDERS, default=lambda project: project)
        listing.finish("List")
        merging = Form(context, "data merge")
        with gr.Row():
            merging.add("sets", sought=DATASETS)
            merging.add("dataset", sought=DATASETS, default=lambda project: project / "merged", label="Into")
            merging.add("used_only")
        merging.finish("Merge")
        removing = Form(context, "data remove")
        removing.use("dataset", dataset)
        removing.add_all(("recording", "speaker", "clip"))
        with gr.Row():
            removing.add("missing", label="Clips without sound")
            removing.add("yes", label="Yes, remove them", info="Without this tick nothing is removed.")
        removing.finish("Remove from the dataset of step 1")


def _fetching(context: Context) -> None:
    with gr.Accordion(
        "Fetch media and captions by address (needs a network and yt-dlp)", open=False, elem_id="data-net"
    ):
        form = Form(context, "data fetch")
        form.add("addresses", lines=3)
        with gr.Row():
            form.add("list", sought=TEXTS)
            form.add("folder", sought=FOLDERS, default=_fetched_folder, label="Into")
            form.add("language", default=language)
            form.add("automatic")
        form.finish("Fetch")


def _fetched_folder(project: Path) -> Path:
    return project / "uploads"


def _texts(context: Context) -> None:
    with gr.Accordion("Text as it is said: numbers, dates, abbreviations in words", open=False, elem_id="data-words"):
        form = Form(context, "data text")
        form.add("text", lines=3)
        with gr.Row():
            form.add("language", default=language)
            form.add("texts", sought=TEXTS)
            form.add("explain")
            form.add("fold_homophones")
        form.finish("Show how it is said")
