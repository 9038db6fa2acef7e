"""What an export says of itself: `export.json` for machines, `README.md` for people and for model hubs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from voxgraft.core.files import compute_sha256
from voxgraft.export.drop_in import DropInTokenizer
from voxgraft.export.sources import EXPORT_FORMAT, ExportSource, LanguageCost, ShareTerms
from voxgraft.export.weights import ExportedCheckpoint
from voxgraft.graft.folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.graft.folder import ROWS_NAME, collect_versions
from voxgraft.models.base import GROWN, MERGED, StockFolder

__all__ = [
    "ExportDraft",
    "adapter_usage_lines",
    "build_adapter_page",
    "build_export_card",
    "build_export_readme",
    "build_share_readme",
    "graft_usage_lines",
]


@dataclass(frozen=True)
class ExportDraft:
    """An export on its way: what it is made of and what was written."""

    source: ExportSource
    kind: str
    terms: ShareTerms
    folder: StockFolder
    cost: Sequence[LanguageCost] = ()
    drop_in: DropInTokenizer | None = None
    checkpoints: dict[str, ExportedCheckpoint] = field(default_factory=dict)
    """By folder."""
    files: dict[str, str] = field(default_factory=dict)
    """Of the base: linked or copied."""
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of every file that was written, by its place."""


def build_export_card(made: ExportDraft) -> dict[str, Any]:
    """Everything, for machines."""
    source, card = made.source, made.source.graft.card
    return {
        "format": EXPORT_FORMAT,
        "kind": made.kind,
        "drop_in": made.drop_in is not None,
        "family": source.family.name,
        "program": source.family.stock().title,
        "language": source.language,
        "tag": card.tag,
        "base": card.base,
        "pieces": card.base_pieces if made.drop_in else source.graft.tokenizer.size,
        "step": source.trained_step,
        "made_of": _source_hashes(source),
        "checkpoints": {name: written.to_json() for name, written in made.checkpoints.items()},
        "files": made.hashes,
        "files_of_the_base": made.files,
        "missing": list(made.folder.missing),
        "measured_cost": [cost.to_json() for cost in made.cost],
        "reused_ids": {str(new): old for new, old in made.drop_in.places.items()} if made.drop_in else None,
        "terms": made.terms.to_json(),
        "versions": collect_versions(),
    }


def _source_hashes(source: ExportSource) -> dict[str, str]:
    """Hashes of what was exported, by which it is known whether an export is still that of its run."""
    made_of = {"graft_sha256": compute_sha256(source.graft.folder / GRAFT_CARD)}
    return made_of if source.merged is None else {**made_of, "checkpoint_sha256": source.merged["checkpoint_sha256"]}


def build_export_readme(made: ExportDraft) -> str:
    """The page for people."""
    source = made.source
    title = f"# {source.language_name} for {source.family.stock().title}"
    how = "drop-in" if made.drop_in else "grown and merged"
    lines = [
        *build_front_matter(source, made.terms),
        title,
        "",
        f"Written by voxgraft: {how}. Trained: {_format_training_state(source)}.",
        "",
    ]
    lines += _drop_in_lines(made) if made.drop_in else _checkpoint_lines(made)
    usage = source.family.stock().usage(source.facts, source.files, drop_in=made.drop_in is not None)
    lines += ["", "```python", *usage, "```", "", "## What the program reads", "", "| file | what |", "| --- | --- |"]
    lines += [f"| {name} | {what} |" for name, what in made.folder.read.items()]
    if made.folder.missing:
        lines += ["", f"Not in the base folder, and so not here: {', '.join(made.folder.missing)}."]
    return "\n".join([*lines, "", *made.terms.lines()]) + "\n"


def build_share_readme(source: ExportSource, terms: ShareTerms, body: str, usage: Sequence[str]) -> str:
    """The page of a graft or an adapter: what it says of itself, how it is used, and its terms."""
    lines = [*build_front_matter(source, terms), body.rstrip(), "", "## Use", "", *usage, "", *terms.lines()]
    return "\n".join(lines) + "\n"


def graft_usage_lines(name: str) -> list[str]:
    """How a graft is used by whoever gets it."""
    return [f"    voxgraft speak TEXT --graft {name} --base BASE", "", "BASE is the folder of the base above."]


def build_adapter_page(source: ExportSource) -> str:
    """What stands in the folder of an adapter."""
    card = source.graft.card
    return "\n".join(
        [
            f"# {source.language_name} for {source.family.name}: a PEFT adapter",
            "",
            f"Trained on {card.base['checkpoint']} (sha256 {card.base['checkpoint_sha256']}): {_format_training_state(source)}.",
            "",
            "| file | what |",
            "| --- | --- |",
            "| adapter_config.json, adapter_model.safetensors | the adapter, as PEFT reads it |",
            f"| {card.tokenizer} | the base's tokenizer with the new pieces appended |",
            f"| {ROWS_NAME} | the new rows of each text table, float32 |",
        ]
    )


def adapter_usage_lines(source: ExportSource) -> list[str]:
    """How an adapter is used by a program of one's own."""
    return [
        "`PeftModel.from_pretrained(MODEL, FOLDER)`, where MODEL has the base's own module names. The new text rows "
        f"belong behind row {source.graft.card.base_pieces - 1:,} of each table."
    ]


def build_front_matter(source: ExportSource, terms: ShareTerms) -> list[str]:
    """What model hubs read: language, kind, licence."""
    return [
        "---",
        f"language: [{source.language}]",
        "tags: [voxgraft, text-to-speech]",
        f"library_name: {source.family.name}",
        "license: other",
        f"license_name: {'stated-below' if not terms.missing_flags else 'not-stated'}",
        "---",
        "",
    ]


def _format_training_state(source: ExportSource) -> str:
    step = source.trained_step
    return "**not yet: its rows are the first ones, and it speaks no word**" if step is None else f"step {step:,}"


def _checkpoint_lines(made: ExportDraft) -> list[str]:
    about = {
        GROWN: "the base with more text rows: old languages are spoken by the base's own weights",
        MERGED: f"the same with {made.source.language_name} in its body: for the new language",
    }
    lines = ["| folder | what | names and shapes | the same as the base | numbers |", "| --- | --- | --- | --- | --- |"]
    for name, one in made.checkpoints.items():
        lines.append(
            f"| {name}/ | {about[name]} | {one.names} of {one.expected} | {_format_kept(one)} | {_format_number_type(one)} |"
        )
    if MERGED in made.checkpoints:
        lines += ["", "## What the merged one costs the old languages", "", *_cost_lines(made)]
    return lines


def _format_kept(one: ExportedCheckpoint) -> str:
    return f"{one.kept}; {one.changed} tensors changed" if one.changed else one.kept


def _format_number_type(one: ExportedCheckpoint) -> str:
    return f"{one.dtype}, {one.precision}"


def _cost_lines(made: ExportDraft) -> list[str]:
    if not made.cost:
        return [
            "Not measured. The merged weights are for the new language; speak the others with grown/. To measure:",
            "",
            f"    voxgraft evaluate {MERGED} --base BASE --language {made.source.language} --output FOLDER",
        ]
    lines = ["| language | measure | before | after | measured by |", "| --- | --- | --- | --- | --- |"]
    for one in made.cost:
        before = "" if one.before is None else f"{one.before:.4f}"
        lines.append(f"| {one.language} | {one.measure} | {before} | {one.after:.4f} | {one.source} |")
    return lines


def _drop_in_lines(made: ExportDraft) -> list[str]:
    drop_in = made.drop_in
    assert drop_in is not None
    (one,), name = made.checkpoints.values(), made.source.language_name
    return [
        f"A folder of the base's own size for {name} **alone**: {len(drop_in.places):,} ids that it never uses carry "
        f"its pieces, so that {made.source.family.stock().title} loads it as it is. Languages whose ids were taken "
        "are gone here; speak them with the base itself.",
        "",
        f"- {one.names} of {one.expected} names and shapes; {_format_kept(one)}; {_format_number_type(one)}.",
        f"- {drop_in.num_proven_sentences:,} sentences of {name} are spelled as before, id for id.",
        "- The package's alignment analyzer stays on at this size. It watches heads that were found for the old "
        "languages; if speech ends too early or too late, take the export with load.py, where it is off.",
    ]
