"""The tab Tokenizer: old and new spelling side by side, what the letters of a language need, the proof."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import text_lines
from voxgraft.models import resolve_base_family
from voxgraft.ui.commands import (
    CommandBuilder,
    PageContext,
    default_texts,
    find_command,
    find_grown_tokenizer,
    format_command,
    load_run_settings,
    run_base_folder,
    run_command_in_process,
    run_language,
)
from voxgraft.ui.files import TEXT_PATHS, PathFilter
from voxgraft.ui.forms import CommandForm
from voxgraft.ui.html import error_html, facts_html, finding_html, note_html, table_html
from voxgraft.ui.jobs import ProjectJobs

TOKENIZER_PATHS = PathFilter(endings=("tokenizer.json", ".model", "_expanded_v1.json"))
ADDITIONS_PATHS = PathFilter(endings=("additions.json",))
EXAMPLE_TEXT = "ሰላም ለዓለም።\nen: Hello world."


def build(context: PageContext) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "A tokenizer cuts text into pieces that the model knows. The old one stays as it is: new letters and pieces "
        "are put *after* it, so that old text keeps its ids. Making the graft (tab Model) does all of this by itself; "
        "here you can look at it, prove it, or do it step by step."
    )
    _build_tokenize_section(context)
    _build_proof_section(context)
    _build_training_section(context)


def _build_tokenize_section(context: PageContext) -> None:
    with gr.Accordion("Old and new side by side", open=True, elem_id="tokenizer-spelling"):
        text = gr.Textbox(
            EXAMPLE_TEXT, label="Text", lines=2, elem_id="spell-text",
            info="One sentence on each line, in the new language; one in a language of the base begins with its code, "
            "as in en: Hello world.",
        )  # fmt: skip
        command = gr.Textbox(
            label="The same on a command line", interactive=False, elem_classes=["vg-command"], elem_id="spell-command",
        )  # fmt: skip
        button = gr.Button("Spell it", variant="primary", elem_id="spell-start", elem_classes=["vg-act"])
        state = gr.HTML(elem_id="spell-state", elem_classes=["vg-live"])
        inputs = [context.project, text]
        context.wire(
            [text.change], lambda project, typed: _preview_tokenize(context, project, typed), inputs, [command]
        )
        context.on_project(lambda project, typed: [_preview_tokenize(context, project, typed)], [command], [text])
        context.on_job_end(lambda project, typed: [_preview_tokenize(context, project, typed)], [text], [command])
        context.wire(
            [button.click], lambda project, typed: _tokenize_html(context, project, typed), inputs, [state],
            show_progress="minimal", show_progress_on=[state],
        )  # fmt: skip


def _tokenize_argvs(context: PageContext, project: str, typed: str) -> list[list[str]]:
    """The words of one command for each language that the text is in."""
    folder = context.project_folder(project)
    command = CommandBuilder(find_command("tokenizer show"), context.roots, json=True)
    commands = []
    for language, texts in _lines_by_language(folder, typed).items():
        fixed = {
            "base": run_base_folder(folder),
            "grown": find_grown_tokenizer(folder),
            "language": language,
        }
        known = {key: value for key, value in fixed.items() if value}
        commands.append(command.words({"text": "\n".join(texts)}, None, known))
    return commands


def _lines_by_language(folder: Path, typed: str) -> dict[str | None, list[str]]:
    """The lines by their language: the one whose code stands before them, else the new one."""
    base, new = run_base_folder(folder), run_language(folder)
    spoken = (
        new,
        *(resolve_base_family(base, load_run_settings(folder).family).languages if base is not None else ()),
    )
    found: dict[str | None, list[str]] = {}
    for line in text_lines(typed):
        code, colon, rest = (part.strip() for part in line.partition(":"))
        is_said = bool(colon and rest) and code in spoken
        found.setdefault(code if is_said else new, []).append(rest if is_said else line)
    return found or {new: []}


def _preview_tokenize(context: PageContext, project: str, typed: str) -> str:
    try:
        return "\n".join(map(format_command, _tokenize_argvs(context, project, typed)))
    except VoxgraftError as error:
        return str(error)


def _tokenize_html(context: PageContext, project: str, typed: str) -> str:
    try:
        found = [
            sentence
            for words in _tokenize_argvs(context, project, typed)
            for sentence in run_command_in_process(words)["sentences"]
        ]
    except VoxgraftError as error:
        return error_html(error)
    return "".join(map(_sentence_html, found)) or note_html("type something")


def _sentence_html(sentence: dict[str, Any]) -> str:
    rows = [("old", *_token_columns(sentence["base"]))]
    if sentence.get("grown"):
        rows.append(("new", *_token_columns(sentence["grown"])))
    return note_html(sentence["text"]) + table_html(("", "tokens", "unknown", "pieces (ids)"), rows)


def _token_columns(pieces: Iterable[list[Any]]) -> tuple[str, str, str]:
    listed = list(pieces)
    unknown = sum(bool(piece[2]) for piece in listed)
    words = "  ".join(f"{'✗' if is_unknown else ''}{piece} ({number})" for piece, number, is_unknown in listed)
    return f"{len(listed):,}", f"{unknown:,}", words


def _build_proof_section(context: PageContext) -> None:
    with gr.Accordion("The proof: does old text still read the same?", open=False, elem_id="tokenizer-proof"):
        form = CommandForm(context, "tokenizer prove", json=True)
        with gr.Row():
            form.add("base", sought=TOKENIZER_PATHS, default=run_base_folder)
            form.add("grown", sought=TOKENIZER_PATHS, default=find_grown_tokenizer)
            form.add("language", default=run_language)
        with gr.Row():
            form.add("texts", sought=TEXT_PATHS, default=_default_proof_texts)
            form.add("proof_texts", sought=TEXT_PATHS)
            form.add("family")
        form.finish("Prove it")
        shown_proof = gr.HTML(elem_id="proof-shown")
        context.on_change(lambda project: [_proof_html(context, project)], [shown_proof])


def _default_proof_texts(project: Path) -> list[Path] | None:
    return default_texts(project) or list(load_run_settings(project).texts) or None


def _proof_html(context: PageContext, project: str) -> str:
    job = ProjectJobs(context.project_folder(project)).latest("tokenizer prove")
    found = job.result() if job is not None and not job.alive else None
    if found is None:
        return ""
    if "error" in found:
        return finding_html(found["error"])
    counts = found["sentences"]
    kept = found["old_text_same"]
    shown_facts = [
        ("old text reads the same", "kept" if kept else "BROKEN", "good" if kept else "bad"),
        ("base sentences compared", f"{counts['total']:,}", "note"),
        ("the same ids", f"{counts['same']:,}", "good"),
        ("base had unknowns itself", f"{counts['base_unknown']:,}", "note"),
        ("changed", f"{counts['changed']:,}", "bad" if counts["changed"] else "good"),
        ("pieces before, after", f"{found['base_pieces']:,}, {found['grown_pieces']:,}", "note"),
    ]
    for when in ("before", "after"):
        if isinstance(part := found.get(when), dict) and "unknown_share" in part:
            share = part["unknown_share"]
            good = "good" if share == 0 else "bad"
            shown_facts.append((f"unknown in the new language {when}", f"{share:.1%} of the tokens", good))
    return facts_html(shown_facts) + "".join(finding_html(item) for item in found.get("findings", []))


def _build_training_section(context: PageContext) -> None:
    with gr.Accordion("Step by step: learn pieces from texts, and put them after the base's", open=False):
        learning = CommandForm(context, "tokenizer train")
        with gr.Row():
            learning.add("base", sought=TOKENIZER_PATHS, default=run_base_folder)
            learning.add("texts", sought=TEXT_PATHS, default=_default_proof_texts)
            learning.add("language", default=run_language)
            learning.add("output", sought=ADDITIONS_PATHS, default=lambda project: project / "additions.json")
        learning.add_all(("tokenizer.pieces", "tokenizer.min_count", "tokenizer.max_piece_characters"))
        learning.add_all(("family", "overwrite"))
        learning.finish("Learn the pieces")
        merging = CommandForm(context, "tokenizer merge")
        with gr.Row():
            merging.add("base", sought=TOKENIZER_PATHS, default=run_base_folder)
            merging.add("additions", sought=ADDITIONS_PATHS, default=lambda project: project / "additions.json")
            merging.add("output", sought=TOKENIZER_PATHS, default=lambda project: project / "tokenizer.json")
        merging.add_all(("family", "overwrite"))
        merging.finish("Merge them")
