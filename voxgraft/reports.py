"""What several verbs tell people in the same words: additions, proofs, new rows, growth."""

from __future__ import annotations

from typing import Any

from voxgraft.checkpoints import GrowthReport
from voxgraft.results import Line, Table, style_line
from voxgraft.rows import RowReport
from voxgraft.text.characters import describe_character, find_exemplar, printable_text
from voxgraft.text.suits import check_text_language
from voxgraft.text.texts import TextCorpus
from voxgraft.tokenizers.base import TokenizerAdditions
from voxgraft.tokenizers.prove import TokenizerCoverage, TokenizerProof
from voxgraft.tokenizers.train import CharacterPlan


def additions_to_json(additions: TokenizerAdditions, plan: CharacterPlan) -> dict[str, Any]:
    """Counts for machines."""
    return {
        "language": additions.language,
        "tag": additions.tag,
        "new_characters": len(additions.characters),
        "new_pieces": len(additions.merges),
        "new_rows": len(additions),
        "whole_scripts": list(plan.whole_scripts),
        "left_unknown": plan.left_unknown,
    }


def format_additions(additions: TokenizerAdditions, plan: CharacterPlan, texts: TextCorpus) -> list[Line]:
    """What a language adds, for people."""
    entry = find_exemplar(additions.language)
    name = entry.name if entry else additions.language
    lines: list[Line] = [f"{name}: {len(texts.sentences):,} sentence{'s' if len(texts.sentences) != 1 else ''}"]
    lines += [line for item in check_text_language(additions.language, texts.sentences) for line in item.lines()]
    if texts.repeated or texts.renormalized:
        lines.append(f"  {texts.repeated:,} repeated lines left out, {texts.renormalized:,} brought into NFC")
    if not additions.pieces:
        tag = f"the tag {additions.tag}" if additions.tag else "nothing"
        lines.append(f"  the base has every letter of {name} already: {tag} is added, and no piece")
        lines.append("  that is fine: its text is spelled with the pieces of the base's own tokenizer")
    else:
        scripts = f" (all of {', '.join(plan.whole_scripts)})" if plan.whole_scripts else ""
        tag = f", the tag {additions.tag}" if additions.tag else ""
        lines.append(f"  {len(additions.characters):,} characters{scripts}, {len(additions.merges):,} pieces{tag}")
        lines += _mostly_known(additions, plan, texts)
    if plan.left_unknown:
        signs = "; ".join(
            f"{describe_character(sign)} ({count:,}×)" for sign, count in list(plan.left_unknown.items())[:6]
        )
        more = f" and {len(plan.left_unknown) - 6} more" if len(plan.left_unknown) > 6 else ""
        lines.append(f"  left unknown, since they are not the language's own: {signs}{more}")
    return lines


def _mostly_known(additions: TokenizerAdditions, plan: CharacterPlan, texts: TextCorpus) -> list[Line]:
    """Why a language adds so little, as one in Latin script does, where the base has most of its letters."""
    letters = {sign for text in texts.sentences for sign in text.lower() if sign.isalpha()}
    new = {sign.lower() for sign in (*plan.new, *plan.left_unknown)}
    known = len(letters - new)
    if 2 * known <= len(letters):
        return []
    return [
        f"  that is fine: the base's tokenizer already covers {known:,} of the {len(letters):,} letters in the texts, "
        f"and only pieces with a letter that it lacks are added ({len(additions.pieces):,})"
    ]


def format_proof(proof: TokenizerProof) -> list[Line]:
    """A proof, for people."""
    counts = proof.counts
    kept = ("kept", "bold green") if proof.old_text_same else ("BROKEN", "bold red")
    lines: list[Line] = [
        style_line("promise 1, old text reads the same: ", kept),
        Table(
            ("base sentences", "same", "base had unknowns", "hold the tag", "changed"),
            (
                tuple(
                    f"{n:,}" for n in (counts.total, counts.same, counts.base_unknown, counts.holds_tag, counts.changed)
                ),
            ),
        ),
    ]
    if counts.base_unknown:
        still = counts.base_unknown - counts.base_unknown_moved
        lines.append(
            f"{counts.base_unknown:,} hold signs that the base cannot spell: {still:,} keep their ids all the same, "
            f"{counts.base_unknown_moved:,} are spelled better now"
        )
    if proof.before is not None and proof.after is not None:
        lines.append(
            Table(
                ("new language", "tokens", "unknown", "share", "unknown characters", "tokens per character"),
                (_format_coverage_row("before", proof.before), _format_coverage_row("after", proof.after)),
            )
        )
    lines.append(f"pieces that can never occur: {len(proof.unreachable):,}")
    for item in proof.findings:
        lines += item.lines()
    return lines


def _format_coverage_row(name: str, coverage: TokenizerCoverage) -> tuple[str, ...]:
    tokens, unknown, characters = (
        f"{count:,}" for count in (coverage.tokens, coverage.unknown, coverage.unknown_characters)
    )
    return name, tokens, unknown, f"{coverage.unknown_share:.1%}", characters, f"{coverage.tokens_per_character:.2f}"


def format_new_rows(methods: dict[str, int], samples: tuple[RowReport, ...]) -> list[Line]:
    """How the rows were made, and what a few of them sit near."""
    if not methods:
        return ["no new rows: the base has every piece already"]
    made = ", ".join(f"{count:,} {how}" for how, count in methods.items())
    rows = tuple(
        (
            printable_text(sample.piece),
            sample.romanised or sample.how,
            f"{sample.norm:.3f}",
            f"{sample.base_norm:.3f}",
            "  ".join(f"{piece} {cosine:.2f}" for piece, cosine in sample.nearest),
        )
        for sample in samples
    )
    table = Table(("new row", "romanised", "norm", "base norm", "nearest base tokens (cosine)"), rows)
    return [f"new rows: {made}", table]


def format_growth(report: GrowthReport) -> list[Line]:
    """What was copied, what grew, what was left out."""
    copied = f"{report.tensors_copied:,} tensors copied bit for bit, {report.bytes_written:,} bytes written"
    lines: list[Line] = [copied]
    lines += [
        f"  {item.name} ({item.dtype}): {list(item.old_shape)} -> {list(item.new_shape)}" for item in report.grown
    ]
    lines += [
        f"  left out, since it does not fit a grown table: {extra.name} ({extra.description})"
        for extra in report.left_out
    ]
    if report.input_sha256 and report.output_sha256:
        lines += [f"  input  sha256 {report.input_sha256}", f"  output sha256 {report.output_sha256}"]
    return lines
