"""The verbs `tokenizer train | merge | prove | show` and `extend`: files in, files and reports out, without a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.checkpoints import (
    GrowthPlan,
    TableGrowth,
    grow_checkpoint,
    open_checkpoint,
    verify_growth,
)
from voxgraft.config.commands import (
    ExtendSettings,
    TokenizerMergeSettings,
    TokenizerProveSettings,
    TokenizerShowSettings,
    TokenizerTrainSettings,
)
from voxgraft.core.errors import CheckpointError, TextError, TokenizerError
from voxgraft.core.files import atomic_write, is_encodable_text, require_output_path
from voxgraft.core.results import Line, SimpleResult, style_line
from voxgraft.graft.command import additions_to_json, format_additions, format_growth, format_new_rows, format_proof
from voxgraft.graft.folder import find_text_rules, load_base_tokenizer, load_text_encoder
from voxgraft.graft.rows import (
    RowCount,
    build_new_rows,
    detect_checkpoint_family,
    find_tokenizer_beside,
    require_extended_tokenizer,
)
from voxgraft.models.base import Family
from voxgraft.text import TextFamily
from voxgraft.text.encoder import TextEncoder, learn_language_pieces, prove_text_encoder
from voxgraft.text.normalize import build_text_rules
from voxgraft.tokenizers import open_tokenizer, parse_tokenizer
from voxgraft.tokenizers.base import TextCorpus, Tokenizer, TokenizerAdditions, read_texts
from voxgraft.tokenizers.prove import TokenizerProof


@dataclass(frozen=True, slots=True)
class TokenizerProveResult:
    """A proof, as a verb's result: exit 1 when it does not hold."""

    proof: TokenizerProof

    @property
    def exit_code(self) -> int:
        return 0 if self.proof.holds else 1

    def to_json(self) -> dict[str, Any]:
        return self.proof.to_json()

    def lines(self) -> list[Line]:
        return format_proof(self.proof)


def tokenizer_train(settings: TokenizerTrainSettings) -> SimpleResult:
    """Learn the characters and pieces that a base lacks for a language, and write them down."""
    require_output_path(settings.output, overwrite=settings.overwrite)
    family, base = load_base_tokenizer(settings.base, settings.family)
    texts = read_texts(settings.texts)
    own = settings.tokenizer
    rules = build_text_rules(settings.language, normalize=own.normalise, fold_homophones=own.fold_homophones)
    spelling = TextEncoder.of(family, base, None, settings.language, rules)
    learnt = learn_language_pieces(spelling, texts, settings.tokenizer)
    learnt.additions.save(settings.output, overwrite=settings.overwrite)
    values = {**additions_to_json(learnt.additions, learnt.plan), "output": str(settings.output)}
    lines = [*format_additions(learnt.additions, learnt.plan, texts), f"written to {settings.output}"]
    return SimpleResult(values, tuple(lines))


def tokenizer_merge(settings: TokenizerMergeSettings) -> SimpleResult:
    """Append additions to the base's tokenizer; every old id stays."""
    family, base = load_base_tokenizer(settings.base, settings.family)
    additions = TokenizerAdditions.load(settings.additions)
    grown = extend_tokenizer(family, base, additions, settings.additions)
    with atomic_write(settings.output, overwrite=settings.overwrite) as stream:
        stream.write(grown.data)
    new = grown.size - base.size
    values = {
        "base_pieces": base.size,
        "new_pieces": new,
        "pieces": grown.size,
        "sha256": grown.sha256,
        "output": str(settings.output),
    }
    lines = (
        f"{base.size:,} base pieces + {new:,} new = {grown.size:,}; every old id stays",
        f"written to {settings.output} (sha256 {grown.sha256})",
    )
    return SimpleResult(values, lines)


def extend_tokenizer(family: Family, base: Tokenizer, additions: TokenizerAdditions, where: Path) -> Tokenizer:
    """The grown tokenizer in memory, after checking that the additions belong to this base."""
    if additions.base_sha256 != base.sha256 or additions.kind != base.kind:
        found = f"learnt on a base with sha256 {additions.base_sha256[:12]}, this one has {base.sha256[:12]}"
        raise TokenizerError("additions-other-base", found, where=where)
    if additions.family != family.name:
        found = f"learnt for family {additions.family}, this base is {family.name}"
        raise TokenizerError("additions-other-base", found, where=where)
    if additions.tag not in (None, family.tag(additions.language)):
        found = f"the tag of {additions.language} is {additions.tag!r:.40}"
        expected = family.tag(additions.language) or f"none: {family.name} has no tags"
        raise TokenizerError("additions-broken", found, expected=expected, where=where)
    names = [*([additions.tag] if additions.tag else []), *(piece.text for piece in additions.pieces)]
    if len(set(names)) != len(names) or any(name in base.ids for name in names):
        raise TokenizerError("additions-broken", "a piece stands twice, or the base has it already", where=where)
    for piece in additions.pieces:
        if not set(piece.text) - base.characters:
            found = f"piece {piece.text!r} holds no character that is new to the base"
            raise TokenizerError("additions-broken", found, where=where)
    return parse_tokenizer(base.grown(additions), Path(f"{base.path.name} + {additions.language}"))


def tokenizer_prove(settings: TokenizerProveSettings) -> TokenizerProveResult:
    """Spell thousands of sentences of base languages with both tokenizers, id for id."""
    spelling = load_text_encoder(settings.base, settings.family, settings.grown, settings.language)
    texts = read_texts(settings.texts) if settings.texts else TextCorpus(())
    return TokenizerProveResult(prove_text_encoder(spelling, texts, settings.proof_texts))


def tokenizer_show(settings: TokenizerShowSettings) -> SimpleResult:
    """Spell sentences piece by piece, old against new. A piece is (text, id, is unknown)."""
    spelling = load_text_encoder(settings.base, settings.family, settings.grown, settings.language)
    is_new = spelling.grown is not None and _is_new(settings, spelling.family)

    def pieces(tokenizer: Tokenizer, ids: list[int]) -> tuple[tuple[str, int, bool], ...]:
        return tuple((tokenizer.shown(token), token, token == tokenizer.unknown_id) for token in ids)

    sentences: list[dict[str, Any]] = []
    lines: list[Line] = []
    for text in settings.text:
        if not is_encodable_text(text):  # bytes of the command line that are no character arrive as halves of one
            raise TextError("text-not-utf8", f"the sentence {text!a:.80} is not UTF-8", where="command line")
        prepared = spelling.prepare(text) if is_new else spelling.prepare_base(text, settings.language)
        old, new = pieces(spelling.base, spelling.base.encode(prepared)), None
        lines += [text, f"  read as: {prepared}", _format_pieces("base ", old)]
        if spelling.grown is not None:
            ids = spelling.encode(text, settings.language) if is_new else spelling.grown.encode(prepared)
            new = pieces(spelling.grown, ids)
            lines.append(_format_pieces("grown", new))
        sentences.append({"text": text, "prepared": prepared, "base": old, "grown": new})
    return SimpleResult({"sentences": sentences}, tuple(lines))


def _is_new(settings: TokenizerShowSettings, family: TextFamily) -> bool:
    """Whether the language is the graft's own, which may be one that the base speaks too.

    Other languages keep the base's reading: the text rules are those of the new language.
    """
    if settings.language is None or settings.grown is None:
        return False
    stated = find_text_rules(settings.grown)
    if stated is not None and stated.language:
        return stated.language.lower() == settings.language.lower()
    return settings.language not in family.languages


def _format_pieces(title: str, pieces: tuple[tuple[str, int, bool], ...]) -> Line:
    parts: list[str | tuple[str, str]] = [f"  {title} ({len(pieces)}): "]
    for piece, token, unknown in pieces:
        parts += [(f"{piece}·{token}" if not unknown else f"??·{token}", "bold red" if unknown else ""), " "]
    return style_line(*parts)


def extend(settings: ExtendSettings) -> SimpleResult:
    """Grow the text tables of a checkpoint. The input is only read; the output appears whole or not at all."""
    require_output_path(settings.output, overwrite=settings.overwrite)
    grown = open_tokenizer(settings.tokenizer)
    with open_checkpoint(settings.checkpoint) as checkpoint:
        # The format is kept, so a name that promises the other one would mislead every loader.
        others = (".pt", ".pth", ".bin", ".ckpt") if checkpoint.format == "safetensors" else (".safetensors",)
        if settings.output.suffix in others:
            found = f"the output is called {settings.output.name}, and the input is a {checkpoint.format} file"
            raise CheckpointError("output-suffix", found, where=settings.output)
        family = detect_checkpoint_family(checkpoint, settings.family)
        base_path = settings.base_tokenizer or find_tokenizer_beside(settings.checkpoint, family)
        base = open_tokenizer(base_path)
        require_extended_tokenizer(base, grown)
        made = build_new_rows(checkpoint, TextEncoder.of(family, base, grown, None), settings.rows)
        counts = RowCount(base.size, grown.size - base.size, family.spare_rows)
        plan = GrowthPlan({name: TableGrowth(base.size, family.spare_rows, rows) for name, rows in made.rows.items()})
        report = grow_checkpoint(checkpoint, plan, settings.output, overwrite=settings.overwrite, hashed=settings.hash)
        proof = None
        if settings.verify:
            try:
                with open_checkpoint(settings.output) as written:
                    proof = verify_growth(checkpoint, written, plan)
            except CheckpointError:  # a file that is not proven must not be left behind
                settings.output.unlink(missing_ok=True)
                raise
    chosen = f"{base_path} (sha256 {base.sha256})"
    values = {
        "base_tokenizer": chosen,
        "rows": counts.to_json(),
        "methods": made.methods,
        "samples": [sample.to_json() for sample in made.samples],
        "growth": report.to_json(),
        "read_back": proof.to_json() if proof else None,
        "output": str(settings.output),
    }
    lines: list[Line] = [f"base tokenizer: {chosen}", counts.table(), *filter(None, [counts.spare_note()])]
    lines += [*format_new_rows(made.methods, made.samples), *format_growth(report)]
    if proof:
        lines.append(
            f"old rows are the same bits: {proof.rows_identical:,} old rows and {proof.tensors_identical:,} other "
            f"tensors read back, {proof.bytes_compared:,} bytes"
        )
    return SimpleResult(values, (*lines, f"written to {settings.output}"))
