"""The tab Export: give the graft back to stock programs or to others, with its terms; zips to send and to take in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.results import format_bytes
from voxgraft.core.run import RunFolder
from voxgraft.export.share import read_terms
from voxgraft.graft.folder import GRAFT_CARD_NAME, read_graft_card
from voxgraft.models import get_family
from voxgraft.ui.commands import find_grown_tokenizer
from voxgraft.ui.files import FOLDER_PATHS, ZIP_PATHS, PathFilter, modified_time, next_free_path
from voxgraft.ui.forms import CommandForm, PageContext, add_upload
from voxgraft.ui.html import download_link, facts_html, finding_html, findings_html, note_html, table_html

EXPORT_PATHS = PathFilter(mark="terms.json")
TERM_KEYS = ("data_licence", "consent", "accept_terms")
TERMS_NOT_STATED = (
    "needed before anything is exported here: all three terms. (A command line asks for them too; what it is not told "
    "is marked as not stated in the export, and such an export cannot be published.)"
)


def build_export_tab(context: PageContext) -> None:
    """Lay the tab out."""
    _build_export_section(context)
    with gr.Accordion("2. Pack it into one zip, or send it to a hub", open=False, elem_id="export-push"):
        form = CommandForm(
            context, "push", json=True, path_keys=("to",),
            fresh={"to": lambda project: next_free_path(project / f"{project.name}.zip")},
        )  # fmt: skip
        with gr.Row():
            form.add(
                "folder",
                sought=EXPORT_PATHS,
                default=_find_newest_export,
                label="Folder",
                info="Of an export, or of a graft.",
            )
            form.add("to", label="To", info="Empty: a new zip in the project. NAME.zip, or OWNER/NAME on the hub that "
                     "huggingface_hub of this machine is signed in to.")  # fmt: skip
            form.add("private")
        form.finish("Pack, or send")
        form.show_result("push-shown", lambda found: _push_html(context, found))
    with gr.Accordion("3. Take in what somebody gave you", open=False, elem_id="export-pull"):
        gr.Markdown("Unpacks a graft or an export, and checks that it is whole. Nothing in it is run.")
        form = CommandForm(
            context, "pull", json=True, path_keys=("source",),
            fresh={"folder": lambda project: next_free_path(project / "pulled")},
        )  # fmt: skip
        with gr.Row():
            form.add("source", sought=ZIP_PATHS, label="From")
            form.add("folder", sought=FOLDER_PATHS, label="Into the folder", info="Empty: a new one in the project.")
            form.add("revision")
        add_upload(context, form, "source", "Upload a zip", (".zip",))
        form.finish("Unpack and check")
        form.show_result("pull-shown", _pull_html)


def _build_export_section(context: PageContext) -> None:
    with gr.Accordion("1. Export", open=True, elem_id="export-make"):
        gr.Markdown(
            "For the base's own program: *grown* speaks the old languages exactly as before, *merged* the new one. "
            "*peft* is the adapter alone, *graft* the small folder to share with others who have voxgraft."
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
                default=_previous_term("data_licence"),
                info="Under which licence are the recordings and texts that it was trained on?",
            )  # fmt: skip
            consent = form.add(
                "consent", label="Consent of the speakers (required)", default=_previous_term("consent"),
                info="How have the speakers consented to a voice model of their speech?",
            )  # fmt: skip
            licence.placeholder, consent.placeholder = "CC BY 4.0", "all speakers have agreed in writing"
        terms = gr.HTML(elem_id="export-terms")
        form.add("accept_terms", label="I pass on the terms of the base (required)")
        with gr.Accordion("More", open=False), gr.Row():
            form.add("output", sought=FOLDER_PATHS)
            form.add("overwrite")
            form.add("copy_files")
        lacking = gr.HTML(note_html(TERMS_NOT_STATED, "warn"), elem_id="export-lacking", elem_classes=["vg-live"])
        form.finish("Export")
        # The button works only once all three terms are stated.
        parts = [form.control(key).component for key in TERM_KEYS]
        form.button.interactive = False
        context.wire([part.change for part in parts], check_terms_stated, parts, [form.button, lacking])
        context.on_change(lambda project: [_base_license_html(context, project)], [terms])
        form.show_result("export-shown", _export_html)


def check_terms_stated(*said: Any) -> list[Any]:
    """Whether the button can be pressed, and a note while it cannot."""
    whole = all(isinstance(part, bool) or str(part or "").strip() for part in said) and all(said)
    return [gr.update(interactive=whole), "" if whole else note_html(TERMS_NOT_STATED, "warn")]


def _previous_term(term: str) -> Callable[[Path], str | None]:
    """The same term in the newest export."""

    def read_term(project: Path) -> str | None:
        folder = _find_newest_export(project)
        try:
            terms = read_terms(folder) if folder is not None else None
        except VoxgraftError:
            return None
        return getattr(terms, term, None)

    return read_term


def _find_newest_export(project: Path) -> Path | None:
    """The folder of the newest export."""
    exports = [path.parent for path in RunFolder(project).export.glob("*/terms.json")]
    whole = [path for path in exports if not path.name.endswith(".previous")]
    return max(whole, key=modified_time, default=None)


def _base_license_html(context: PageContext, project: str) -> str:
    """The base's licence, which binds whoever shares the graft."""
    path = RunFolder(context.project_folder(project)).graft / GRAFT_CARD_NAME
    if not path.is_file():
        return note_html("the graft is not made yet: see the tab Model", "warn")
    try:
        card = read_graft_card(path.parent)
        return facts_html([("terms of the base", card.licence or get_family(card.family).licence, "warn")])
    except VoxgraftError as error:
        return finding_html(error.finding.to_json())


def _export_html(found: dict[str, Any]) -> str:
    rows = [
        (
            name,
            f"{one['names']} of {one['expected']}",
            one["kept"],
            one["changed"],
            f"{one['dtype']}, {one['precision']}",
        )
        for name, one in found.get("checkpoints", {}).items()
    ]
    head = note_html(f"{format_bytes(found['bytes'])} in {found['folder']}: pack it below to send it", "good")
    checked = table_html(("checkpoint", "names and shapes", "the same as the base", "changed", "numbers"), rows)
    return head + (checked if rows else "") + findings_html(found)


def _push_html(context: PageContext, found: dict[str, Any]) -> str:
    place = str(found["place"])
    if not place.endswith(".zip"):
        return note_html(f"sent to {place}", "good") + findings_html(found)
    path = context.roots.resolve_inside(place)
    size = format_bytes(path.stat().st_size) if path.is_file() else ""
    return f"<p>{download_link(context, path, f'save {path.name} ({size})')}</p>" + findings_html(found)


def _pull_html(found: dict[str, Any]) -> str:
    head = note_html(f"whole, in {found['place']}: the tab Speak can speak with a graft in it", "good")
    return head + findings_html(found)
