"""The tabs Model and Tokenizer: the base, what of it is fixed, the graft that is made for it; spelling and proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import read_json, text_lines
from voxgraft.core.results import format_bytes
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import MANIFEST_NAME, read_manifest
from voxgraft.graft.folder import GRAFT_CARD_NAME
from voxgraft.models import resolve_base_family
from voxgraft.ui.commands import (
    CommandBuilder,
    default_texts,
    find_command,
    find_grown_tokenizer,
    format_command,
    load_run_settings,
    run_base_folder,
    run_base_word,
    run_command_in_process,
    run_dataset_folder,
    run_language,
)
from voxgraft.ui.files import CHECKPOINT_PATHS, FOLDER_PATHS, TEXT_PATHS, TOKENIZER_PATHS, PathFilter, Roots
from voxgraft.ui.forms import CommandForm
from voxgraft.ui.html import error_html, facts_html, findings_html, note_html, table_html
from voxgraft.ui.page import PageContext, add_page_target, build_command_fold

# Files by which a folder is known to be a base, of every family.
BASE_FILE_NAMES = tuple(name for facts in FAMILIES.values() for name in facts.base_files)
# Facts, where other trainers have check boxes.
FROZEN_FACTS = (
    ("the base's files", "never changed", "good"),
    ("the base's rows (freeze)", "in no optimizer: nothing can change them, not even weight decay", "good"),
    ("ids of old text", "the same as before: new tokens come after the old ones", "good"),
)
ADDITIONS_PATHS = PathFilter(endings=("additions.json",))
EXAMPLE_TEXT = "ሰላም ለዓለም።\nen: Hello world."


def build_model_tab(context: PageContext) -> None:
    """Lay the tab Model out."""
    with gr.Accordion("The base, and what never changes", open=True, elem_id="model-base"):
        gr.HTML(facts_html(FROZEN_FACTS), elem_id="model-fixed")
        with gr.Row():
            choice = gr.Dropdown(
                [], label="Base of this run", info="Folder of the base as published. It is never changed.",
                allow_custom_value=True, interactive=True, elem_id="model-choice", scale=3,
            )  # fmt: skip
            button = gr.Button("Use this base", elem_id="model-use", scale=1, elem_classes=["vg-act"])
            add_page_target(context, "model", "choice", choice)
        said = gr.HTML(elem_id="model-use-state", elem_classes=["vg-live"])
        shown = gr.HTML(elem_id="model-shown")
        form = CommandForm(context, "show")
        with gr.Row():
            form.add("base", sought=FOLDER_PATHS, default=lambda project: project, label="Base to show")
            form.add("family")
            form.add("fingerprint")
        form.finish("Show details")
        context.on_change(lambda project: [_inventory_html(context, project)], [shown], slow=True)

    def list_bases(project: str) -> list[Any]:
        now = run_base_word(context.project_folder(project))
        known = [context.roots.short(path) for path in find_bases(context.roots)]
        value = context.roots.short(now.resolve()) if isinstance(now, Path) else now
        return [gr.update(choices=[("the built-in tiny base", "tiny"), *known], value=value)]

    def use_base(project: str, name: str | None) -> list[Any]:
        """Write the base into run.yaml. There is no command for it: in a terminal one edits the file."""
        try:
            folder = context.project_folder(project)
            place = "tiny" if name == "tiny" else str(context.roots.resolve_inside(name or ""))
            run_command_in_process(["show", "--no-fingerprint", "--json", "--", place])
            # A double-quoted YAML text.
            quoted = '"' + place.replace("\\", "\\\\").replace('"', '\\"') + '"'
            set_run_yaml_values(folder, {"base": quoted})
        except VoxgraftError as error:
            return [error_html(error), gr.skip()]
        return [note_html(f"written into run.yaml: base: {place}", "good"), _inventory_html(context, project)]

    context.on_change(list_bases, [choice])
    context.wire([button.click], use_base, [context.project, choice], [said, shown])
    with gr.Accordion("Download a published base", open=False, elem_id="model-download"):
        terms = gr.HTML(elem_id="download-terms")
        form = CommandForm(context, "download")
        with gr.Row():
            name = form.add("name")
            form.add("folder", sought=FOLDER_PATHS)
            form.add("optional")
            form.add("list_only", label="Only list the files and the licence")
        agreed = form.add(
            "accept_terms",
            label="I have read the licence above and accept it",
            info="Nothing is downloaded before that.",
        )
        form.finish("Download", own_button=True)
        form.button.interactive = False
        # Another base has another licence, which no one has accepted yet.
        form.follow(agreed)
        context.wire([name.change], lambda chosen: [_download_terms_html(chosen), False], [name], [terms, agreed])
        context.on_project(lambda _: [_download_terms_html(name.value)], [terms], slow=True)
        listing = form.control("list_only").component
        context.wire(
            [agreed.change, listing.change],
            lambda yes, only: gr.update(interactive=bool(yes or only)),
            [agreed, listing],
            [form.button],
        )
    with gr.Accordion("Create the graft: tokenizer and new rows", open=True, elem_id="model-graft"):
        gr.Markdown(
            "Trains the tokens that the base lacks on your texts, appends them, verifies that old text keeps its ids, "
            "and creates the new rows. Other tools call this extending the tokenizer and the embeddings."
        )
        form = CommandForm(context, "graft")
        with gr.Row():
            form.add("texts", sought=TEXT_PATHS, default=default_texts)
            form.add("tokenizer.pieces")
            form.add("rows.init", label="Initial values of new rows")
        with gr.Accordion("More", open=False):
            form.add_all(("tokenizer.min_count", "tokenizer.max_piece_characters", "rows.noise", "rows.seed"))
            with gr.Row():
                form.add("tokenizer.file", sought=TOKENIZER_PATHS, label="Existing tokenizer")
                form.add("proof_texts", sought=TEXT_PATHS)
                form.add("language").placeholder = "a code, such as am"  # it cannot be detected
                form.add("family")
        form.finish("Create the graft", keep=True)
    with gr.Accordion("Only add rows to a checkpoint file", open=False, elem_id="model-extend"):
        form = CommandForm(context, "extend")
        with gr.Row():
            form.add("checkpoint", sought=CHECKPOINT_PATHS)
            form.add("tokenizer", sought=TOKENIZER_PATHS, default=find_grown_tokenizer)
            form.add("output", sought=CHECKPOINT_PATHS, default=lambda project: project / "extended.safetensors")
        with gr.Row():
            form.add("base_tokenizer", sought=TOKENIZER_PATHS)
            for key in ("family", "rows.init", "rows.noise", "rows.seed", "verify", "hash", "overwrite"):
                form.add(key)
        form.finish("Extend the file")


def find_bases(roots: Roots) -> list[Path]:
    """Folders inside the roots that look like a base."""
    found = roots.find(PathFilter(endings=BASE_FILE_NAMES))
    folders = dict.fromkeys((roots.home / name).parent for name in found)
    # A run's own folders hold such files too.
    return [folder for folder in folders if not {"graft", "export"} & {*roots.parts(folder)}]


def _inventory_html(context: PageContext, project: str) -> str:
    """What the base and the graft of the project hold."""
    folder = context.project_folder(project)
    if run_base_folder(folder) is None:
        return note_html("this run has no base yet: choose one, or download one below", "warn")
    try:
        found = run_command_in_process(["show", "--no-fingerprint", "--json", "--", context.roots.short(folder)])
    except VoxgraftError as error:
        return error_html(error)
    rows = ", ".join(f"{name} {count:,}" for name, count in found.get("text_rows", {}).items())
    checkpoint, tokenizer = found.get("checkpoint") or {}, found.get("tokenizer") or {}
    graft = ("graft", "not created yet", "note")
    if (path := RunFolder(folder).graft / GRAFT_CARD_NAME).is_file():
        try:
            card = read_json(path)
            trained = ", trained" if (card.get("method") or {}).get("trained") else ", not trained yet"
            graft = ("graft", f"{card.get('rows', card.get('num_rows', '?'))} new rows{trained}", "good")
        except VoxgraftError as error:
            graft = ("graft", error.finding.found, "bad")
    shown_facts = [
        ("kind", f"{found.get('family', '?')}, {found.get('release') or 'unknown release'}", "note"),
        ("size", f"{checkpoint.get('values', 0):,} values, {format_bytes(checkpoint.get('bytes', 0))}", "note"),
        ("speaks", ", ".join(found.get("languages", [])), "note"),
        ("text rows", rows, "good"),
        ("tokenizer", f"{tokenizer.get('pieces', 0):,} tokens", "note"),
        graft,
    ]
    missing = [item for item in found.get("files", []) if not item.get("there") and item.get("needed_for")]
    lacks = table_html(("missing file", "what", "needed for"), [
        (item["name"], item["what"], ", ".join(item["needed_for"])) for item in missing
    ]) if missing else ""  # fmt: skip
    return facts_html(shown_facts) + lacks


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
            (found["title"], f"{format_bytes(total)} to download into {found['folder']}", "note"),
            ("licence", found["licence"], "warn"),
            ("free disk space", format_bytes(found["free_bytes"]) if found.get("free_bytes") else "unknown", "note"),
        )
    )


def build_tokenizer_tab(context: PageContext) -> None:
    """Lay the tab Tokenizer out."""
    gr.Markdown(
        "A tokenizer splits text into tokens that the model knows. The old tokens keep their ids: new tokens "
        "are appended. Creating the graft (tab Model) does all of this automatically. Here you can inspect the result, "
        "prove that old text is unchanged, or do it step by step."
    )
    with gr.Accordion("Old and new side by side", open=True, elem_id="tokenizer-spelling"):
        text = gr.Textbox(
            EXAMPLE_TEXT, label="Text", lines=2, elem_id="spell-text",
            info="One sentence per line, in the new language. For a language of the base, start with its code: en: "
                 "Hello world.",
        )  # fmt: skip
        button = gr.Button("Tokenize", variant="primary", elem_id="spell-start", elem_classes=["vg-act"])
        state = gr.HTML(elem_id="spell-state", elem_classes=["vg-live"])
        command = build_command_fold("spell")
        inputs = [context.project, text]
        context.wire(
            [text.change], lambda project, typed: _preview_tokenize(context, project, typed), inputs, [command]
        )
        context.on_project(lambda project, typed: [_preview_tokenize(context, project, typed)], [command], [text])
        context.on_project(lambda project, typed: [_offer_text(context, project, typed)], [text], [text])
        context.on_job_end(lambda project, typed: [_preview_tokenize(context, project, typed)], [text], [command])
        context.wire(
            [button.click], lambda project, typed: _tokenize_html(context, project, typed), inputs, [state],
            show_progress="minimal", show_progress_on=[state],
        )  # fmt: skip
    with gr.Accordion("Proof: does old text keep its ids?", open=False, elem_id="tokenizer-proof"):
        form = CommandForm(context, "tokenizer prove", json=True)
        with gr.Row():
            form.add("base", sought=TOKENIZER_PATHS, default=run_base_folder)
            form.add("extended", sought=TOKENIZER_PATHS, default=find_grown_tokenizer)
            form.add("language", default=run_language)
        with gr.Row():
            form.add("texts", sought=TEXT_PATHS, default=_default_proof_texts)
            form.add("proof_texts", sought=TEXT_PATHS)
            form.add("family")
        form.finish("Prove")
        form.show_result("proof-shown", _proof_html)
    with gr.Accordion("Step by step: train tokens on texts, and append them to the base's", open=False):
        learning = CommandForm(context, "tokenizer train")
        with gr.Row():
            learning.add("base", sought=TOKENIZER_PATHS, default=run_base_folder)
            learning.add("texts", sought=TEXT_PATHS, default=_default_proof_texts)
            learning.add("language", default=run_language)
            learning.add("output", sought=ADDITIONS_PATHS, default=lambda project: project / "additions.json")
        learning.add_all(("tokenizer.pieces", "tokenizer.min_count", "tokenizer.max_piece_characters"))
        learning.add_all(("family", "overwrite"))
        learning.finish("Train the tokens")
        merging = CommandForm(context, "tokenizer merge")
        with gr.Row():
            merging.add("base", sought=TOKENIZER_PATHS, default=run_base_folder)
            merging.add("additions", sought=ADDITIONS_PATHS, default=lambda project: project / "additions.json")
            merging.add("output", sought=TOKENIZER_PATHS, default=lambda project: project / "tokenizer.json")
        merging.add_all(("family", "overwrite"))
        merging.finish("Merge them")


def _tokenize_argvs(context: PageContext, project: str, typed: str) -> list[list[str]]:
    """The argv of one command for each language of the text: the one whose code begins a line, else the new one."""
    folder = context.project_folder(project)
    base, new = run_base_folder(folder), run_language(folder)
    family = resolve_base_family(base, load_run_settings(folder).family) if base is not None else None
    spoken = (new, *(family.languages if family else ()))
    lines: dict[str | None, list[str]] = {}
    for line in text_lines(typed):
        code, colon, rest = (part.strip() for part in line.partition(":"))
        is_said = bool(colon and rest) and code in spoken
        lines.setdefault(code if is_said else new, []).append(rest if is_said else line)
    command = CommandBuilder(find_command("tokenizer show"), context.roots, json=True)
    argvs = []
    for language, texts in (lines or {new: []}).items():
        fixed = {"base": base, "extended": find_grown_tokenizer(folder), "language": language}
        known = {key: value for key, value in fixed.items() if value}
        argvs.append(command.words({"text": "\n".join(texts)}, None, known))
    return argvs


def _offer_text(context: PageContext, project: str, typed: str) -> Any:
    """A sentence of the run's own clips in place of the example, which is Amharic."""
    manifest = run_dataset_folder(context.project_folder(project)) / MANIFEST_NAME
    if typed != EXAMPLE_TEXT or not manifest.is_file():
        return gr.skip()
    first = next((clip.text for clip in read_manifest(manifest) if clip.text), "")
    return EXAMPLE_TEXT.replace(EXAMPLE_TEXT.splitlines()[0], first) if first else gr.skip()


def _preview_tokenize(context: PageContext, project: str, typed: str) -> str:
    try:
        return "\n".join(map(format_command, _tokenize_argvs(context, project, typed)))
    except VoxgraftError as error:
        return str(error)


def _tokenize_html(context: PageContext, project: str, typed: str) -> str:
    try:
        argvs = _tokenize_argvs(context, project, typed)
        found = [sentence for argv in argvs for sentence in run_command_in_process(argv)["sentences"]]
    except VoxgraftError as error:
        return error_html(error)
    shown = []
    for sentence in found:
        rows = []
        for name, pieces in (("old", sentence["base"]), ("new", sentence.get("extended"))):
            if pieces or name == "old":
                unknown = sum(bool(piece[2]) for piece in pieces)
                marked = (f"{'✗' if missing else ''}{piece} ({number})" for piece, number, missing in pieces)
                rows.append((name, f"{len(pieces):,}", f"{unknown:,}", "  ".join(marked)))
        shown += [note_html(sentence["text"]), table_html(("", "count", "unknown", "tokens (ids)"), rows)]
    return "".join(shown) or note_html("enter a text")


def _default_proof_texts(project: Path) -> list[Path] | None:
    return default_texts(project) or list(load_run_settings(project).texts) or None


def _proof_html(found: dict[str, Any]) -> str:
    counts = found["sentences"]
    kept = found["old_text_same"]
    shown_facts = [
        ("ids of old text", "kept" if kept else "BROKEN", "good" if kept else "bad"),
        ("base sentences compared", f"{counts['total']:,}", "note"),
        ("the same ids", f"{counts['same']:,}", "good"),
        ("base had unknowns itself", f"{counts['base_unknown']:,}", "note"),
        ("changed", f"{counts['changed']:,}", "bad" if counts["changed"] else "good"),
        ("tokens before, after", f"{found['base_pieces']:,}, {found['grown_pieces']:,}", "note"),
    ]
    for when in ("before", "after"):
        if isinstance(part := found.get(when), dict) and "unknown_share" in part:
            share = part["unknown_share"]
            good = "good" if share == 0 else "bad"
            shown_facts.append((f"unknown in the new language {when}", f"{share:.1%} of the tokens", good))
    return facts_html(shown_facts) + findings_html(found)
