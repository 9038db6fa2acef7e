"""The verbs `tokenizer train | merge | prove | show`: files in, files and reports out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.base import Checkpoint
from voxgraft.checkpoints.grow import GrowthPlan, GrowthProof, GrowthReport, TableGrowth, grow_checkpoint, verify_growth
from voxgraft.config.commands import (
    ExtendSettings,
    TokenizerMergeSettings,
    TokenizerProveSettings,
    TokenizerShowSettings,
    TokenizerTrainSettings,
)
from voxgraft.core.errors import CheckpointError, TextError, TokenizerError
from voxgraft.core.files import atomic_write, is_encodable_text, require_output_path
from voxgraft.core.results import Line, style_line
from voxgraft.graft.command import additions_to_json, format_additions, format_growth, format_new_rows, format_proof
from voxgraft.graft.folder import find_text_rules, load_base_tokenizer, load_text_encoder
from voxgraft.graft.rows import (
    RowCount,
    RowReport,
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
from voxgraft.tokenizers.train import CharacterPlan


@dataclass(frozen=True, slots=True)
class TokenizerTrainResult:
    """What was learnt and where it was written."""

    additions: TokenizerAdditions
    plan: CharacterPlan
    texts: TextCorpus
    output: Path
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**additions_to_json(self.additions, self.plan), "output": str(self.output)}

    def lines(self) -> list[Line]:
        return [*format_additions(self.additions, self.plan, self.texts), f"written to {self.output}"]


@dataclass(frozen=True, slots=True)
class TokenizerMergeResult:
    """The grown tokenizer's size and place."""

    base: Tokenizer
    grown: Tokenizer
    output: Path
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "base_pieces": self.base.size,
            "new_pieces": self.grown.size - self.base.size,
            "pieces": self.grown.size,
            "sha256": self.grown.sha256,
            "output": str(self.output),
        }

    def lines(self) -> list[Line]:
        new = self.grown.size - self.base.size
        return [
            f"{self.base.size:,} base pieces + {new:,} new = {self.grown.size:,}; every old id stays",
            f"written to {self.output} (sha256 {self.grown.sha256})",
        ]


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


@dataclass(frozen=True, slots=True)
class TokenizedSentence:
    """One sentence, piece by piece: (piece, id, is unknown), by the base and by the grown tokenizer."""

    text: str
    prepared: str
    base: tuple[tuple[str, int, bool], ...]
    grown: tuple[tuple[str, int, bool], ...] | None


@dataclass(frozen=True, slots=True)
class TokenizerShowResult:
    """Sentences spelled old against new."""

    sentences: tuple[TokenizedSentence, ...]
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"sentences": [{name: getattr(item, name) for name in item.__slots__} for item in self.sentences]}

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        for item in self.sentences:
            lines += [item.text, f"  read as: {item.prepared}", _format_pieces("base ", item.base)]
            if item.grown is not None:
                lines.append(_format_pieces("grown", item.grown))
        return lines


def tokenizer_train(settings: TokenizerTrainSettings) -> TokenizerTrainResult:
    """Learn the characters and pieces that a base lacks for a language, and write them down."""
    require_output_path(settings.output, overwrite=settings.overwrite)
    family, base = load_base_tokenizer(settings.base, settings.family)
    texts = read_texts(settings.texts)
    own = settings.tokenizer
    rules = build_text_rules(settings.language, normalize=own.normalise, fold_homophones=own.fold_homophones)
    spelling = TextEncoder.of(family, base, None, settings.language, rules)
    learnt = learn_language_pieces(spelling, texts, settings.tokenizer)
    learnt.additions.save(settings.output, overwrite=settings.overwrite)
    return TokenizerTrainResult(learnt.additions, learnt.plan, texts, settings.output)


def tokenizer_merge(settings: TokenizerMergeSettings) -> TokenizerMergeResult:
    """Append additions to the base's tokenizer; every old id stays."""
    family, base = load_base_tokenizer(settings.base, settings.family)
    additions = TokenizerAdditions.load(settings.additions)
    grown = extend_tokenizer(family, base, additions, settings.additions)
    with atomic_write(settings.output, overwrite=settings.overwrite) as stream:
        stream.write(grown.data)
    return TokenizerMergeResult(base, grown, settings.output)


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


def tokenizer_show(settings: TokenizerShowSettings) -> TokenizerShowResult:
    """Spell sentences piece by piece, old against new."""
    spelling = load_text_encoder(settings.base, settings.family, settings.grown, settings.language)
    is_new = spelling.grown is not None and _is_new(settings, spelling.family)

    def pieces(tokenizer: Tokenizer, ids: list[int]) -> tuple[tuple[str, int, bool], ...]:
        return tuple((tokenizer.shown(token), token, token == tokenizer.unknown_id) for token in ids)

    shown = []
    for text in settings.text:
        if not is_encodable_text(text):  # bytes of the command line that are no character arrive as halves of one
            raise TextError("text-not-utf8", f"the sentence {text!a:.80} is not UTF-8", where="command line")
        prepared = spelling.prepare(text) if is_new else spelling.prepare_base(text, settings.language)
        old = pieces(spelling.base, spelling.base.encode(prepared))
        new = None
        if spelling.grown is not None:
            ids = spelling.encode(text, settings.language) if is_new else spelling.grown.encode(prepared)
            new = pieces(spelling.grown, ids)
        shown.append(TokenizedSentence(text, prepared, old, new))
    return TokenizerShowResult(tuple(shown))


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


@dataclass(frozen=True, slots=True)
class ExtendResult:
    """What was copied, what grew, and whether every old bit was read back."""

    base_tokenizer: str
    counts: RowCount
    methods: dict[str, int]
    samples: tuple[RowReport, ...]
    report: GrowthReport
    proof: GrowthProof | None
    """What was read back and found the same bits; None where that was not asked for."""
    output: Path
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "base_tokenizer": self.base_tokenizer,
            "rows": self.counts.to_json(),
            "methods": self.methods,
            "samples": [sample.to_json() for sample in self.samples],
            "growth": self.report.to_json(),
            "read_back": self.proof.to_json() if self.proof else None,
            "output": str(self.output),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [f"base tokenizer: {self.base_tokenizer}"]
        lines += [self.counts.table(), *filter(None, [self.counts.spare_note()])]
        lines += format_new_rows(self.methods, self.samples)
        lines += format_growth(self.report)
        if self.proof:
            rows, tensors, compared = (
                f"{count:,}"
                for count in (self.proof.rows_identical, self.proof.tensors_identical, self.proof.bytes_compared)
            )
            lines.append(
                f"old rows are the same bits: {rows} old rows and {tensors} other tensors read back, {compared} bytes"
            )
        return [*lines, f"written to {self.output}"]


def extend(settings: ExtendSettings) -> ExtendResult:
    """Grow the text tables of a checkpoint. The input is only read; the output appears whole or not at all."""
    require_output_path(settings.output, overwrite=settings.overwrite)
    grown = open_tokenizer(settings.tokenizer)
    with open_checkpoint(settings.checkpoint) as checkpoint:
        _require_matching_suffix(checkpoint, settings.output)
        family = detect_checkpoint_family(checkpoint, settings.family)
        base_path = settings.base_tokenizer or find_tokenizer_beside(settings.checkpoint, family)
        base = open_tokenizer(base_path)
        require_extended_tokenizer(base, grown)
        made = build_new_rows(checkpoint, TextEncoder.of(family, base, grown, None), settings.rows)
        counts = RowCount(base.size, grown.size - base.size, family.spare_rows)
        plan = GrowthPlan({name: TableGrowth(base.size, family.spare_rows, rows) for name, rows in made.rows.items()})
        report = grow_checkpoint(checkpoint, plan, settings.output, overwrite=settings.overwrite, hashed=settings.hash)
        proof = _verify_extended(checkpoint, plan, settings.output) if settings.verify else None
    chosen = f"{base_path} (sha256 {base.sha256})"
    return ExtendResult(chosen, counts, made.methods, made.samples, report, proof, settings.output)


def _require_matching_suffix(checkpoint: Checkpoint, output: Path) -> None:
    """The format is kept, so a name that promises the other one would mislead every loader."""
    others = (".pt", ".pth", ".bin", ".ckpt") if checkpoint.format == "safetensors" else (".safetensors",)
    if output.suffix in others:
        found = f"the output is called {output.name}, and the input is a {checkpoint.format} file"
        raise CheckpointError("output-suffix", found, where=output)


def _verify_extended(checkpoint: Checkpoint, plan: GrowthPlan, output: Path) -> GrowthProof:
    """Prove the written file; one that fails is not left lying about."""
    try:
        with open_checkpoint(output) as written:
            return verify_growth(checkpoint, written, plan)
    except CheckpointError:
        output.unlink(missing_ok=True)
        raise
