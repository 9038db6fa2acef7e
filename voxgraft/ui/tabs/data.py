"""The tab Data: recordings and texts in, clips to look at and judge, and what is held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from voxgraft.audio.files import MEDIA_SUFFIXES
from voxgraft.core.errors import AudioError, VoxgraftError
from voxgraft.core.files import format_error_reason, require_file
from voxgraft.core.results import format_duration, format_names, pluralize
from voxgraft.data.lists import COLUMNAR_SUFFIXES, TABLE_SUFFIXES, find_sidecar
from voxgraft.data.manifest import read_manifest
from voxgraft.data.sources import find_sources
from voxgraft.data.subtitles import SUBTITLE_SUFFIXES
from voxgraft.ui.commands import recording_sources, run_command_in_process, run_dataset_folder, run_language
from voxgraft.ui.files import DATASET_PATHS, FOLDER_PATHS, TEXT_PATHS, PathFilter, check_uploaded_lists, move_uploads
from voxgraft.ui.forms import CommandForm, FormControl, disable_until_project_open
from voxgraft.ui.html import details_html, error_html, facts_html, file_link, note_html, table_html
from voxgraft.ui.page import PageContext, add_page_target

SOURCE_PATHS = PathFilter(endings=(*SUBTITLE_SUFFIXES, *TABLE_SUFFIXES, *COLUMNAR_SUFFIXES), folders=True)
MEDIA_PATHS = PathFilter(endings=MEDIA_SUFFIXES)
VOICE_ENCODER_PATHS = PathFilter(endings=("ve.safetensors", "ve.pt"))
QUALITY_KEYS = ("shortest longest slowest fastest silence pause snr clipped bandwidth script outlier same_text").split()
NO_CLIPS_YET = "no clips yet: import recordings above"
NOT_SPLIT = "not split yet:"
# Clips of a dataset that can be chosen; a longer list would be slow to send.
MAX_CLIPS = 2000
MAX_PLAYER_SECONDS = 600
# Of an upload: pairs that are listed, and names that are in the first line.
MAX_SHOWN_PAIRS, MAX_NAMED = 500, 3

# A page of its own: thousands of rows as gradio components would take minutes.
OPEN_REVIEW_JS = """(project, dataset) => {
  window.location.assign(`voxgraft/review?${new URLSearchParams({ project, dataset: dataset || "" })}`);
}"""


class ImportForm(CommandForm):
    """The form of the import. Uploaded lists were checked as UTF-8; with another encoding they are checked again."""

    def words(self, project: str, values: Sequence[Any]) -> list[str]:
        words, typed = super().words(project, values), self.typed_values(values)
        if encoding := str(typed.get("encoding") or "").strip():
            check_uploaded_lists(
                self.context.roots, self.command.plain(self.control("sources").leaf, typed["sources"]), encoding
            )
        return words


def build_data_tab(context: PageContext) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "Recordings with subtitles or transcripts become clips: short pieces of speech, each with its text. "
        "Ten minutes are enough for a first try, an hour for a clear result; more is better. Nothing that you upload "
        "leaves the machine that this page runs on."
    )
    with gr.Accordion("1. Import recordings", open=True, elem_id="data-in"):
        files = gr.File(
            file_count="multiple", elem_id="data-upload", height=140, interactive=False,
        )  # fmt: skip
        label = "Upload recordings (mp4, mp3, wav ...) with subtitles (srt, vtt) or transcripts (csv, jsonl, txt)"
        disable_until_project_open(context, files, label)
        add_page_target(context, "data import", "upload", files, "Upload recordings")
        landed = gr.HTML(elem_id="data-upload-state", elem_classes=["vg-live"])
        form: CommandForm = ImportForm(context, "data import")
        with gr.Row():
            came_from = form.add("sources", sought=SOURCE_PATHS, default=recording_sources, label="From")
            form.add("dataset", sought=DATASET_PATHS, default=run_dataset_folder, label="Into the dataset")
            form.add("language", default=run_language)
            form.add("speaker", info="Speaker name, if all recordings have one speaker. Empty: from the labels.")
        with gr.Accordion("How clips are cut and cleaned", open=False):
            form.add_all(("shortest", "longest", "lead", "tail", "join_gap"))
            form.add_all(("cut", "activity", "rolling", "fold_homophones"))
            with gr.Row():
                form.add("media", sought=MEDIA_PATHS)
                form.add("speaker_from", label="Speakers from")
                for key in ("family", "rate", "format", "encoding", "workers"):
                    form.add(key)
        form.finish("Import")

    def receive(project: str, given: list[str] | None) -> list[Any]:
        try:
            taken = move_uploads(context.roots, context.project_folder(project), given or [])
        except VoxgraftError as error:
            return [error_html(error), None, gr.skip()]
        if not taken:
            return [gr.skip(), None, gr.skip()]
        project_folder, folder = context.project_folder(project), taken[0].parent
        moved = note_html(f"in the run now: {format_names([path.name for path in taken])}", "good")
        shown = sources_html([folder], run_language(project_folder) or "")
        return [moved + shown, None, [context.roots.short(folder)]]

    context.wire([files.upload], receive, [context.project, files], [landed, files, came_from])
    form.follow(came_from)
    dataset = form.control("dataset")
    with gr.Accordion("2. Review the clips", open=False, elem_id="data-look"):
        state = gr.HTML(elem_id="data-facts")
        review = gr.Button("Review transcripts", elem_id="data-review", elem_classes=["vg-act"])
        review.click(
            None, [context.project, dataset.component], None, js=OPEN_REVIEW_JS, api_visibility="private"
        )  # fmt: skip
        clip = gr.Dropdown(
            [], label="Clip", info="Audio and text; reasons for a rejection follow.", elem_id="data-clip",
            interactive=True,
        )  # fmt: skip
        heard = gr.Audio(label="Audio of the clip", interactive=False, elem_id="data-sound", buttons=["download"])
        said = gr.HTML(elem_id="data-said")
        form = CommandForm(context, "data info")
        form.add("dataset", shared=dataset)
        form.add_all(("problems", "clips"))
        form.finish("Show everything about the dataset")
        _show_dataset(context, dataset, lambda folder: _dataset_facts(context, folder), [state, clip])
        context.wire(
            [clip.change],
            lambda project, name, chosen: _load_clip(context, project, name, chosen),
            [context.project, dataset.component, clip],
            [heard, said],
        )
    with gr.Accordion("3. Quality: measure every clip, and reject the bad ones", open=False, elem_id="data-quality"):
        form = CommandForm(context, "data report")
        form.add("dataset", shared=dataset)
        with gr.Accordion("Thresholds", open=False):
            form.add_all([f"quality.{name}" for name in QUALITY_KEYS])
        form.add_all(("take_back", "reject", "workers"))
        form.finish("Measure and filter")
        link = gr.HTML(elem_id="data-report-link")

        def show_link(folder: Path) -> list[Any]:
            path = folder / "report.html"
            try:
                context.roots.resolve_inside(path)
            except VoxgraftError:  # a dataset outside the roots: its files are not served
                return [note_html(f"report: {path}") if path.is_file() else ""]
            return [file_link(context, path, "Open the report, with histograms and players")]

        _show_dataset(context, dataset, show_link, [link])
    with gr.Accordion("4. Split into training and held-out data", open=False, elem_id="data-splitting"):
        gr.Markdown(
            "Whole recordings go to one split, so that later measurements are valid. Everything except validation and "
            "test is used for training."
        )
        form = CommandForm(context, "data split")
        form.add("dataset", shared=dataset)
        form.add_all(("validation", "test", "by", "seed"))
        form.finish("Split")
    with gr.Accordion("Speakers: show, rename, separate voices", open=False, elem_id="data-who"):
        form = CommandForm(context, "data speakers")
        form.add("dataset", shared=dataset)
        with gr.Row():
            form.add("rename")
            form.add("voices", sought=VOICE_ENCODER_PATHS)
        form.finish("Show or change speakers")
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
        removing.add("dataset", shared=dataset)
        removing.add_all(("recording", "speaker", "clip"))
        with gr.Row():
            removing.add("missing", label="Clips without audio")
            removing.add("yes", label="Yes, remove them", info="Nothing is removed unless this is ticked.")
        removing.finish("Remove from the dataset of step 1")
    with gr.Accordion("Normalize text: numbers, dates, abbreviations as words", open=False, elem_id="data-words"):
        form = CommandForm(context, "data text")
        form.add("text", lines=3)
        with gr.Row():
            form.add("language", default=run_language)
            form.add("texts", sought=TEXT_PATHS)
            form.add("explain")
            form.add("fold_homophones")
        form.finish("Normalize")


def sources_html(places: Sequence[Path], language: str) -> str:
    """What an import of these files and folders would find: how many recordings and texts, and what has no partner."""
    try:
        sources, problems = find_sources(places, language)
    except VoxgraftError as error:
        return note_html(f"no recording with text so far: {error.finding.found}", "warn")
    pairs: list[tuple[str, str]] = []
    missing: list[str] = []
    for source in sources:
        if source.kind == "subtitles" and source.media is not None:
            pairs.append((source.media.name, source.text.name))
        elif source.kind == "folder":
            pairs += [(path.name, text.name if (text := find_sidecar(path)) else "") for path in source.files]
        elif source.kind == "columns":
            pairs.append((f"recordings of {source.text.name}", source.text.name))
        else:
            pairs += [(name, source.text.name) for name, path in source.sounds if path is not None]
            missing += [f"{name} ({source.text.name})" for name, path in source.sounds if path is None]
    texts = len({text for _, text in pairs})
    parts = [f"{pluralize(len(pairs), 'recording')} with text, from {pluralize(texts, 'text file')}"]
    alone = {
        "recordings without a text": [Path(one.file).name for one in problems if one.code == "text-missing"],
        "texts without a recording": [Path(one.file).name for one in problems if one.code == "media-missing"],
        "recordings that a list names and that are missing": missing,
        "not used": [one.found for one in problems if one.code not in ("text-missing", "media-missing")],
    }
    parts += [f"{what} ({len(names):,}): {format_names(names)}" for what, names in alone.items() if names]
    said = note_html("\n".join(parts), "warn" if any(alone.values()) else "good")
    shown = table_html(("recording", "text"), sorted(pairs)[:MAX_SHOWN_PAIRS])
    everything = "".join(details_html(f"All {what}", names) for what, names in alone.items() if len(names) > MAX_NAMED)
    return f"{said}<details><summary>Pairs of recordings and texts</summary>{shown}</details>{everything}"


def _show_dataset(
    context: PageContext, dataset: FormControl, show: Callable[[Path], list[Any]], outputs: list[Any]
) -> None:
    """Show something of the chosen dataset: when it is chosen, and whenever a job has ended."""

    def show_now(project: str, name: str | None = None) -> list[Any]:
        return show(resolve_dataset_folder(context, project, name))

    def show_chosen(project: str, name: str | None) -> list[Any]:
        try:
            return show_now(project, name)
        except VoxgraftError:  # the command line says what is wrong with the typed name
            return [gr.skip()] * len(outputs)

    context.on_project(show_now, outputs, slow=True)
    context.on_job_end(show_now, [dataset.component], outputs, slow=True)
    context.wire([dataset.component.change], show_chosen, [context.project, dataset.component], outputs)


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
        listed = []
        for clip in islice(read_manifest(folder / "manifest.jsonl"), MAX_CLIPS):
            reasons = f" ✗ {', '.join(clip.rejected)}" if clip.rejected and not clip.taken_back else ""
            about = f"{clip.seconds:.1f} s, {clip.speaker}, {clip.split or 'no split'}"
            listed.append((f"{clip.id} ({about}){reasons}: {clip.text[:80]}", clip.id))
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
            ("reasons for rejection", reasons or "none", "note"),
            ("unused lines", f"{found['problems']:,}", "note"),
            ("missing audio files", f"{missing:,}", "bad" if missing else "good"),
        )
    )
    speakers = [(who, format_duration(seconds)) for who, seconds in found["speakers"].items()]
    return [shown + table_html(("speaker", "speech"), speakers[:50]), gr.update(choices=listed, value=None)]


def _load_clip(context: PageContext, project: str, name: str | None, chosen: str | None) -> list[Any]:
    import soundfile

    if not chosen:
        return [None, ""]
    try:
        folder = resolve_dataset_folder(context, project, name)
        clips = islice(read_manifest(folder / "manifest.jsonl"), MAX_CLIPS)
        clip = next(clip for clip in clips if clip.id == chosen)
        path = (folder / clip.audio).resolve()
        # Clips of the project's own dataset may be outside the roots if the dataset is; no others may.
        inside = path if folder in path.parents else context.roots.resolve_inside(path)
        require_file(inside)
        try:
            with soundfile.SoundFile(inside) as stream:
                samples = stream.read(MAX_PLAYER_SECONDS * stream.samplerate, dtype="float32", always_2d=True)
                rate = int(stream.samplerate)
        except (soundfile.LibsndfileError, RuntimeError, ValueError) as error:
            found = f"{inside.name}: {format_error_reason(error)}"
            raise AudioError("sound-broken", found, where=inside) from None
        # Gradio's players take a sample rate and 16-bit samples.
        return [(rate, (np.clip(samples.mean(axis=1), -1, 1) * 32767).astype(np.int16)), note_html(clip.text)]
    except (VoxgraftError, StopIteration) as error:
        return [
            None,
            error_html(error) if isinstance(error, VoxgraftError) else note_html("the clip no longer exists", "bad"),
        ]
