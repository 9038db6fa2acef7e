"""The tab Model: the base, what of it is fixed, and the graft that is made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.amounts import brief_bytes
from voxgraft.errors import VoxgraftError
from voxgraft.files import read_json
from voxgraft.run import RunFolder
from voxgraft.run_yaml import keep
from voxgraft.ui import reading
from voxgraft.ui.commands import ask
from voxgraft.ui.context import Context
from voxgraft.ui.controls import Form
from voxgraft.ui.roots import FOLDERS, TEXTS, Roots, Sought
from voxgraft.ui.tabs.tokenizer import TOKENIZERS
from voxgraft.ui.views import error_note, facts, note, table

CHECKPOINTS = Sought(endings=(".safetensors", ".pt", ".pth"))
BASE_MARKS = ("t3_mtl23ls_v2.safetensors", "t3_cfg.safetensors", "gpt.pth", "t3.safetensors", "tiny.json")
FIXED = (
    ("the base's files", "only read: nothing here writes to them", "good"),
    ("the base's rows (freeze)", "in no optimizer: nothing can move them, not even weight decay", "good"),
    ("ids of old text", "the same as before: new pieces come after the old ones", "good"),
)
"""Facts, where other trainers have check boxes."""


def build(context: Context) -> None:
    """Lay the tab out."""
    _base(context)
    _download(context)
    _graft(context)
    _extend(context)


def _base(context: Context) -> None:
    with gr.Accordion("The base, and what is fixed", open=True, elem_id="model-base"):
        gr.HTML(facts(FIXED), elem_id="model-fixed")
        with gr.Row():
            choice = gr.Dropdown(
                [], label="Base of this project", info="Folder of the base, as its makers publish it. It is only read.",
                allow_custom_value=True, interactive=True, elem_id="model-choice", scale=3,
            )  # fmt: skip
            button = gr.Button("Use this base", elem_id="model-use", scale=1, elem_classes=["vg-act"])
        said = gr.HTML(elem_id="model-use-state", elem_classes=["vg-live"])
        shown = gr.HTML(elem_id="model-shown")
        context.on_change(lambda project: _choices(context, project), [choice])
        context.wire(
            [button.click], lambda project, name: _use(context, project, name), [context.project, choice], [said, shown]
        )
        form = Form(context, "show")
        with gr.Row():
            form.add("base", sought=FOLDERS, default=lambda project: project, label="What to show")
            form.add("family")
            form.add("fingerprint")
        form.finish("Show what is in it")
        context.on_change(lambda project: [_inventory(context, project)], [shown], slow=True)


def _choices(context: Context, project: str) -> list[Any]:
    folder = context.project_folder(project)
    now = reading.base(folder)
    known = [context.roots.short(path) for path in bases(context.roots)]
    value = context.roots.short(now.resolve()) if now is not None else None
    return [gr.update(choices=[("the small built-in one", "tiny"), *known], value=value)]


def bases(roots: Roots) -> list[Path]:
    """Folders inside the roots that look like a base."""
    found = roots.find(Sought(endings=BASE_MARKS))
    folders = dict.fromkeys((roots.home / name).parent for name in found)
    return [folder for folder in folders if not {"graft", "export"} & {*roots.parts(folder)}]


def _use(context: Context, project: str, name: str | None) -> list[Any]:
    """Write the base into run.yaml; the command line has no verb for it, since there one edits the file."""
    try:
        folder = context.project_folder(project)
        place = "tiny" if name == "tiny" else str(context.roots.inside(name or ""))
        ask(["show", "--no-fingerprint", "--json", "--", place])
        keep(folder, {"base": _quoted(place)})
    except VoxgraftError as error:
        return [error_note(error), gr.skip()]
    return [note(f"written into run.yaml: base: {place}", "good"), _inventory(context, project)]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _inventory(context: Context, project: str) -> str:
    """What the base and the graft of the project hold."""
    folder = context.project_folder(project)
    if reading.base(folder) is None:
        return note("this project has no base yet: choose one, or download one below", "warn")
    try:
        found = ask(["show", "--no-fingerprint", "--json", "--", context.roots.short(folder)])
    except VoxgraftError as error:
        return error_note(error)
    rows = ", ".join(f"{name} {count:,}" for name, count in found.get("text_rows", {}).items())
    checkpoint, tokenizer = found.get("checkpoint") or {}, found.get("tokenizer") or {}
    shown_facts = [
        ("kind", f"{found.get('family', '?')}, {found.get('release') or 'unknown release'}", "note"),
        ("size", f"{checkpoint.get('values', 0):,} values, {brief_bytes(checkpoint.get('bytes', 0))}", "note"),
        ("speaks", ", ".join(found.get("languages", [])), "note"),
        ("text rows", rows, "good"),
        ("tokenizer", f"{tokenizer.get('pieces', 0):,} pieces", "note"),
        *_graft_facts(folder),
    ]
    missing = [item for item in found.get("files", []) if not item.get("there") and item.get("needed_for")]
    lacks = table(("missing file", "what", "needed for"), [
        (item["name"], item["what"], ", ".join(item["needed_for"])) for item in missing
    ]) if missing else ""  # fmt: skip
    return facts(shown_facts) + lacks


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


def _download(context: Context) -> None:
    with gr.Accordion("Download a published base", open=False, elem_id="model-download"):
        terms = gr.HTML(elem_id="download-terms")
        form = Form(context, "download")
        with gr.Row():
            name = form.add("name")
            form.add("folder", sought=FOLDERS)
            form.add("optional")
            form.add("list_only", label="Only list the files and the licence")
        agreed = gr.Checkbox(
            label="I have read the licence above and accept it", elem_id="download-agreed", info="Nothing is fetched "
            "before. On the command line, giving the command says the same.",
        )  # fmt: skip
        form.finish("Download")
        form.button.interactive = False
        # Another base has another licence, which nobody has accepted yet.
        context.wire([name.change], lambda chosen: [_terms(chosen), False], [name], [terms, agreed])
        context.on_project(lambda _: [_terms(name.value)], [terms], slow=True)
        listing = form.control("list_only").component
        gate = [agreed, listing]
        context.wire(
            [agreed.change, listing.change],
            lambda yes, only: gr.update(interactive=bool(yes or only)),
            gate,
            [form.button],
        )


def _terms(chosen: str | None) -> str:
    if not chosen:
        return ""
    try:
        found = ask(["download", str(chosen), "--list", "--json"])
    except VoxgraftError as error:
        return error_note(error)
    total = sum(item.get("bytes") or 0 for item in found["files"] if not item["there"])
    return facts(
        (
            (found["title"], f"{brief_bytes(total)} to fetch into {found['folder']}", "note"),
            ("licence", found["licence"], "warn"),
            ("room on the disk", brief_bytes(found["free_bytes"]) if found.get("free_bytes") else "unknown", "note"),
        )
    )


def _graft(context: Context) -> None:
    with gr.Accordion("Make the graft: tokenizer and new rows", open=True, elem_id="model-graft"):
        gr.Markdown(
            "Learns the letters and pieces that the base lacks from your texts, puts them after the old ones, proves "
            "that old text reads the same, and gives each its row. Elsewhere: extend the tokenizer and the embeddings."
        )
        form = Form(context, "graft")
        with gr.Row():
            form.add("texts", sought=TEXTS, default=reading.texts)
            form.add("tokenizer.pieces")
            form.add("rows.init")
        with gr.Accordion("More", open=False):
            form.add_all(("tokenizer.min_count", "tokenizer.max_piece_characters", "rows.noise", "rows.seed"))
            with gr.Row():
                form.add("tokenizer.file", sought=TOKENIZERS, label="Ready-made tokenizer")
                form.add("proof_texts", sought=TEXTS)
                form.add("language").placeholder = "a code, such as am"  # nothing finds it out by itself
                form.add("family")
        form.finish("Make the graft", keep=True)


def _extend(context: Context) -> None:
    with gr.Accordion("Only extend a checkpoint file by rows", open=False, elem_id="model-extend"):
        form = Form(context, "extend")
        with gr.Row():
            form.add("checkpoint", sought=CHECKPOINTS)
            form.add("tokenizer", sought=TOKENIZERS, default=reading.grown_tokenizer)
            form.add("output", sought=CHECKPOINTS, default=lambda project: project / "extended.safetensors")
        with gr.Row():
            form.add("base_tokenizer", sought=TOKENIZERS)
            for key in ("family", "rows.init", "rows.noise", "rows.seed", "verify", "hash", "overwrite"):
                form.add(key)
        form.finish("Extend the file")
