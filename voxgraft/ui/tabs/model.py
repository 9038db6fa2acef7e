"""The tab Model: the base, what of it is fixed, and the graft that is made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import read_json
from voxgraft.core.results import format_bytes
from voxgraft.core.run import RunFolder
from voxgraft.ui import commands
from voxgraft.ui.commands import PageContext, run_command_in_process
from voxgraft.ui.files import FOLDER_PATHS, TEXT_PATHS, PathFilter, Roots
from voxgraft.ui.forms import CommandForm
from voxgraft.ui.html import error_html, facts_html, note_html, table_html
from voxgraft.ui.tabs.tokenizer import TOKENIZER_PATHS

CHECKPOINT_PATHS = PathFilter(endings=(".safetensors", ".pt", ".pth"))
BASE_FILE_NAMES = ("t3_mtl23ls_v2.safetensors", "t3_cfg.safetensors", "gpt.pth", "t3.safetensors", "tiny.json")
FROZEN_FACTS = (
    ("the base's files", "only read: nothing here writes to them", "good"),
    ("the base's rows (freeze)", "in no optimizer: nothing can move them, not even weight decay", "good"),
    ("ids of old text", "the same as before: new pieces come after the old ones", "good"),
)
"""Facts, where other trainers have check boxes."""


def build(context: PageContext) -> None:
    """Lay the tab out."""
    _build_base_section(context)
    _build_download_section(context)
    _build_graft_section(context)
    _build_extend_section(context)


def _build_base_section(context: PageContext) -> None:
    with gr.Accordion("The base, and what is fixed", open=True, elem_id="model-base"):
        gr.HTML(facts_html(FROZEN_FACTS), elem_id="model-fixed")
        with gr.Row():
            choice = gr.Dropdown(
                [], label="Base of this project", info="Folder of the base, as its makers publish it. It is only read.",
                allow_custom_value=True, interactive=True, elem_id="model-choice", scale=3,
            )  # fmt: skip
            button = gr.Button("Use this base", elem_id="model-use", scale=1, elem_classes=["vg-act"])
        said = gr.HTML(elem_id="model-use-state", elem_classes=["vg-live"])
        shown = gr.HTML(elem_id="model-shown")
        context.on_change(lambda project: _base_choices(context, project), [choice])
        context.wire(
            [button.click],
            lambda project, name: _use_base(context, project, name),
            [context.project, choice],
            [said, shown],
        )
        form = CommandForm(context, "show")
        with gr.Row():
            form.add("base", sought=FOLDER_PATHS, default=lambda project: project, label="What to show")
            form.add("family")
            form.add("fingerprint")
        form.finish("Show what is in it")
        context.on_change(lambda project: [_inventory_html(context, project)], [shown], slow=True)


def _base_choices(context: PageContext, project: str) -> list[Any]:
    folder = context.project_folder(project)
    now = commands.run_base_folder(folder)
    known = [context.roots.short(path) for path in find_bases(context.roots)]
    value = context.roots.short(now.resolve()) if now is not None else None
    return [gr.update(choices=[("the small built-in one", "tiny"), *known], value=value)]


def find_bases(roots: Roots) -> list[Path]:
    """Folders inside the roots that look like a base."""
    found = roots.find(PathFilter(endings=BASE_FILE_NAMES))
    folders = dict.fromkeys((roots.home / name).parent for name in found)
    return [folder for folder in folders if not {"graft", "export"} & {*roots.parts(folder)}]


def _use_base(context: PageContext, project: str, name: str | None) -> list[Any]:
    """Write the base into run.yaml; the command line has no verb for it, since there one edits the file."""
    try:
        folder = context.project_folder(project)
        place = "tiny" if name == "tiny" else str(context.roots.resolve_inside(name or ""))
        run_command_in_process(["show", "--no-fingerprint", "--json", "--", place])
        set_run_yaml_values(folder, {"base": _quote_yaml(place)})
    except VoxgraftError as error:
        return [error_html(error), gr.skip()]
    return [note_html(f"written into run.yaml: base: {place}", "good"), _inventory_html(context, project)]


def _quote_yaml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _inventory_html(context: PageContext, project: str) -> str:
    """What the base and the graft of the project hold."""
    folder = context.project_folder(project)
    if commands.run_base_folder(folder) is None:
        return note_html("this project has no base yet: choose one, or download one below", "warn")
    try:
        found = run_command_in_process(["show", "--no-fingerprint", "--json", "--", context.roots.short(folder)])
    except VoxgraftError as error:
        return error_html(error)
    rows = ", ".join(f"{name} {count:,}" for name, count in found.get("text_rows", {}).items())
    checkpoint, tokenizer = found.get("checkpoint") or {}, found.get("tokenizer") or {}
    shown_facts = [
        ("kind", f"{found.get('family', '?')}, {found.get('release') or 'unknown release'}", "note"),
        ("size", f"{checkpoint.get('values', 0):,} values, {format_bytes(checkpoint.get('bytes', 0))}", "note"),
        ("speaks", ", ".join(found.get("languages", [])), "note"),
        ("text rows", rows, "good"),
        ("tokenizer", f"{tokenizer.get('pieces', 0):,} pieces", "note"),
        *_graft_facts(folder),
    ]
    missing = [item for item in found.get("files", []) if not item.get("there") and item.get("needed_for")]
    lacks = table_html(("missing file", "what", "needed for"), [
        (item["name"], item["what"], ", ".join(item["needed_for"])) for item in missing
    ]) if missing else ""  # fmt: skip
    return facts_html(shown_facts) + lacks


def _graft_facts(folder: Path) -> list[tuple[str, str, str]]:
    path = RunFolder(folder).graft / "graft.json"
    if not path.is_file():
        return [("graft", "not made yet", "note")]
    try:
        graft = read_json(path)
    except VoxgraftError as error:
        return [("graft", error.finding.found, "bad")]
    trained = (graft.get("method") or {}).get("trained")
    rows = graft.get("rows", graft.get("num_rows", "?"))
    return [("graft", f"{rows} new rows{', trained' if trained else ', not trained yet'}", "good")]


def _build_download_section(context: PageContext) -> None:
    with gr.Accordion("Download a published base", open=False, elem_id="model-download"):
        terms = gr.HTML(elem_id="download-terms")
        form = CommandForm(context, "download")
        with gr.Row():
            name = form.add("name")
            form.add("folder", sought=FOLDER_PATHS)
            form.add("optional")
            form.add("list_only", label="Only list the files and the licence")
        agreed = gr.Checkbox(
            label="I have read the licence above and accept it", elem_id="download-agreed", info="Nothing is fetched "
            "before. On the command line, giving the command says the same.",
        )  # fmt: skip
        form.finish("Download")
        form.button.interactive = False
        # Another base has another licence, which nobody has accepted yet.
        context.wire([name.change], lambda chosen: [_download_terms_html(chosen), False], [name], [terms, agreed])
        context.on_project(lambda _: [_download_terms_html(name.value)], [terms], slow=True)
        listing = form.control("list_only").component
        gate = [agreed, listing]
        context.wire(
            [agreed.change, listing.change],
            lambda yes, only: gr.update(interactive=bool(yes or only)),
            gate,
            [form.button],
        )


def _download_terms_html(chosen: str | None) -> str:
    if not chosen:
        return ""
    try:
        found = run_command_in_process(["download", str(chosen), "--list", "--json"])
    except VoxgraftError as error:
        return error_html(error)
    total = sum(item.get("bytes") or 0 for item in found["files"] if not item["there"])
    return facts_html(
        (
            (found["title"], f"{format_bytes(total)} to fetch into {found['folder']}", "note"),
            ("licence", found["licence"], "warn"),
            ("room on the disk", format_bytes(found["free_bytes"]) if found.get("free_bytes") else "unknown", "note"),
        )
    )


def _build_graft_section(context: PageContext) -> None:
    with gr.Accordion("Make the graft: tokenizer and new rows", open=True, elem_id="model-graft"):
        gr.Markdown(
            "Learns the letters and pieces that the base lacks from your texts, puts them after the old ones, proves "
            "that old text reads the same, and gives each its row. Elsewhere: extend the tokenizer and the embeddings."
        )
        form = CommandForm(context, "graft")
        with gr.Row():
            form.add("texts", sought=TEXT_PATHS, default=commands.default_texts)
            form.add("tokenizer.pieces")
            form.add("rows.init")
        with gr.Accordion("More", open=False):
            form.add_all(("tokenizer.min_count", "tokenizer.max_piece_characters", "rows.noise", "rows.seed"))
            with gr.Row():
                form.add("tokenizer.file", sought=TOKENIZER_PATHS, label="Ready-made tokenizer")
                form.add("proof_texts", sought=TEXT_PATHS)
                form.add("language").placeholder = "a code, such as am"  # nothing finds it out by itself
                form.add("family")
        form.finish("Make the graft", keep=True)


def _build_extend_section(context: PageContext) -> None:
    with gr.Accordion("Only extend a checkpoint file by rows", open=False, elem_id="model-extend"):
        form = CommandForm(context, "extend")
        with gr.Row():
            form.add("checkpoint", sought=CHECKPOINT_PATHS)
            form.add("tokenizer", sought=TOKENIZER_PATHS, default=commands.find_grown_tokenizer)
            form.add("output", sought=CHECKPOINT_PATHS, default=lambda project: project / "extended.safetensors")
        with gr.Row():
            form.add("base_tokenizer", sought=TOKENIZER_PATHS)
            for key in ("family", "rows.init", "rows.noise", "rows.seed", "verify", "hash", "overwrite"):
                form.add(key)
        form.finish("Extend the file")
