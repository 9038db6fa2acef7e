"""The command `graft`: train, merge and prove the tokenizer of a run, build the new rows, write `RUN/graft/`.

Also the reports about additions, proofs, rows and growth that the `tokenizer` commands and `extend` share.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import (
    GrowthPlan,
    TableGrowth,
    grow_checkpoint,
    verify_growth,
    write_rows_file,
)
from voxgraft.config.commands import (
    ExtendSettings,
    GraftSettings,
    TokenizerMergeSettings,
    TokenizerProveSettings,
    TokenizerShowSettings,
    TokenizerTrainSettings,
)
from voxgraft.config.run import RowSettings
from voxgraft.core.errors import CheckpointError, ConfigError, GraftError, TextError, TokenizerError
from voxgraft.core.files import (
    atomic_write,
    atomic_write_folder,
    compute_sha256,
    is_encodable_text,
    make_path_relative,
    require_output_path,
    write_json,
    write_text,
)
from voxgraft.core.languages import describe_character, find_exemplar, printable_text
from voxgraft.core.results import Line, SimpleResult, Table, pluralize, style_line
from voxgraft.core.run import RUN_FILE
from voxgraft.data.manifest import resolve_text_files
from voxgraft.graft.folder import (
    README_NAME,
    ROWS_NAME,
    RUN_CARD_NAME,
    GraftCard,
    build_language_rules,
    collect_graft_settings,
    collect_versions,
    find_text_rules,
    format_graft_readme,
    load_base_tokenizer,
    load_text_encoder,
    write_graft_card,
)
from voxgraft.graft.rows import (
    NewRows,
    RowCount,
    RowReport,
    build_new_rows,
    detect_checkpoint_family,
    find_tokenizer_beside,
    require_extended_tokenizer,
)
from voxgraft.models import get_family, resolve_base_family
from voxgraft.models.base import BaseFiles, Family
from voxgraft.text.encoder import TextEncoder, check_text_language, learn_language_pieces, prove_text_encoder
from voxgraft.text.normalize import build_text_rules
from voxgraft.tokenizers import (
    TextCorpus,
    Tokenizer,
    TokenizerAdditions,
    compute_texts_sha256,
    open_tokenizer,
    parse_tokenizer,
    read_texts,
)
from voxgraft.tokenizers.prove import TokenizerProof
from voxgraft.tokenizers.train import CharacterPlan, LearnedAdditions


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
    lines: list[Line] = [f"texts in {name}: {pluralize(len(texts.sentences), 'sentence')}"]
    lines += [line for item in check_text_language(additions.language, texts.sentences) for line in item.lines()]
    if texts.repeated or texts.renormalized:
        lines.append(f"  {texts.repeated:,} repeated lines left out, {texts.renormalized:,} converted to NFC")
    if not additions.pieces:
        tag = f"the tag {additions.tag}" if additions.tag else "nothing"
        lines.append(f"  the base already has every letter of {name}; added: {tag}")
        lines.append("  this is fine: its text is encoded with the base's own tokens")
    else:
        scripts = f" (whole script: {', '.join(plan.whole_scripts)})" if plan.whole_scripts else ""
        tag = f", the tag {additions.tag}" if additions.tag else ""
        longer = f"{len(additions.merges):,} tokens of several characters"
        lines.append(f"  added: {len(additions.characters):,} characters{scripts}, {longer}{tag}")
        # Why a language adds so little, as one in Latin script does, where the base has most of its letters.
        letters = {sign for text in texts.sentences for sign in text.lower() if sign.isalpha()}
        known = len(letters - {sign.lower() for sign in (*plan.new, *plan.left_unknown)})
        if 2 * known > len(letters):
            lines.append(
                f"  this is fine: the base's tokenizer already covers {known:,} of the {len(letters):,} letters in the "
                f"texts, and only tokens with a letter that it lacks are added ({len(additions.pieces):,})"
            )
    if plan.left_unknown:
        signs = "; ".join(
            f"{describe_character(sign)} ({count:,}×)" for sign, count in list(plan.left_unknown.items())[:6]
        )
        more = f" and {len(plan.left_unknown) - 6} more" if len(plan.left_unknown) > 6 else ""
        lines.append(f"  left unknown, because they do not belong to the language: {signs}{more}")
    return lines


# Where the rows start, by the name of the method; the other names can be read after a count as they are.
_ROW_ORIGINS = {"tags": "from the mean of the base's language tags"}


def format_new_rows(methods: dict[str, int], samples: tuple[RowReport, ...]) -> list[Line]:
    """How the rows were made, and what a few of them sit near."""
    if not methods:
        return ["no new rows: the base already has every token"]
    method_counts = ", ".join(f"{count:,} {_ROW_ORIGINS.get(how, how)}" for how, count in methods.items())
    rows = tuple(
        (
            printable_text(sample.piece),
            sample.romanised or {"tags": "mean of tags"}.get(sample.how, sample.how),
            f"{sample.norm:.3f}",
            f"{sample.base_norm:.3f}",
            "  ".join(f"{piece} {cosine:.2f}" for piece, cosine in sample.nearest),
        )
        for sample in samples
    )
    table = Table(("new row", "romanised", "norm", "base norm", "nearest base tokens (cosine)"), rows)
    return [f"new rows: {method_counts}", table]


@dataclass(frozen=True, slots=True)
class GraftResult:
    """The proof, and the graft if the proof holds."""

    chosen: str
    """Which tokenizer was taken, from where."""
    sha256: str
    """Of the extended tokenizer."""
    learned: LearnedAdditions | None
    texts: TextCorpus
    proof: TokenizerProof
    counts: RowCount
    methods: dict[str, int]
    samples: tuple[RowReport, ...]
    folder: Path | None

    @property
    def exit_code(self) -> int:
        return 0 if self.folder is not None else 1

    def to_json(self) -> dict[str, Any]:
        return {
            "tokenizer": {"chosen": self.chosen, "sha256": self.sha256},
            "learnt": additions_to_json(self.learned.additions, self.learned.plan) if self.learned else None,
            "proof": self.proof.to_json(),
            "rows": self.counts.to_json(),
            "methods": self.methods,
            "samples": [asdict(sample) for sample in self.samples],
            "graft": str(self.folder) if self.folder else None,
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [f"tokenizer: {self.chosen}", f"  sha256: {self.sha256}"]
        if self.learned:
            lines += format_additions(self.learned.additions, self.learned.plan, self.texts)
        lines += self.proof.lines()
        if self.folder is None:
            return [*lines, "nothing was written, because the proof failed"]
        lines += [self.counts.table(), *filter(None, [self.counts.spare_note()])]
        lines += [*format_new_rows(self.methods, self.samples), f"graft: {self.folder}"]
        return [*lines, f"next: voxgraft check {shlex.quote(str(self.folder.parent))}"]


def graft(settings: GraftSettings, trained: Mapping[str, Any] | None = None) -> GraftResult:
    """Tokenizer, proof and rows of one run in one go. Nothing is written unless the proof holds.

    `trained` is the identity of saved steps whose rows the graft is to get: one that they do not fit is not written.
    """
    base_folder, language = settings.base, settings.language
    if base_folder is None or language is None:
        missing = "base" if base_folder is None else "language"
        raise ConfigError("config-missing", f"`{missing}` is not given", where=settings.run / RUN_FILE)
    settings = settings.model_copy(update={"texts": resolve_text_files(settings, settings.run)})
    if not settings.texts and settings.tokenizer.file is None:
        found = "neither `texts` nor `tokenizer.file` is given, and the run has no manifest of clips"
        cure = "set texts in run.yaml, or set data.sources and run `voxgraft go RUN`, which imports the recordings."
        if settings.data.sources:
            found = "the sources of the run are not imported yet, so there are no texts"
            cure = "run `voxgraft go RUN`, which imports the sources first."
        raise ConfigError("config-missing", found, where=settings.run / RUN_FILE, cure=cure)
    family = resolve_base_family(base_folder, settings.family)
    files = family.files(base_folder)
    base = open_tokenizer(files.tokenizer)
    texts = read_texts(settings.texts) if settings.texts else TextCorpus(())
    tokenizer_settings = settings.tokenizer
    rules = build_language_rules(settings, settings.run, language)
    learned = None
    if tokenizer_settings.file is not None:
        grown, chosen = open_tokenizer(tokenizer_settings.file), f"{tokenizer_settings.file}, as given"
    else:
        learned = learn_language_pieces(TextEncoder.of(family, base, None, language, rules), texts, tokenizer_settings)
        names = ", ".join(path.name for path in settings.texts)
        grown, chosen = learned.grown, f"{base.path.name}, extended with tokens trained on {names}"
    text_encoder = TextEncoder.of(family, base, grown, language, rules)
    proof = prove_text_encoder(text_encoder, texts, settings.proof_texts)
    counts = RowCount(base.size, grown.size - base.size, family.spare_rows)
    if not proof.holds:
        return GraftResult(chosen, grown.sha256, learned, texts, proof, counts, {}, (), None)
    require_extended_tokenizer(base, grown)
    with open_checkpoint(files.checkpoint) as checkpoint:
        new_rows = build_new_rows(checkpoint, text_encoder, settings.rows)
    folder = settings.run / "graft"
    base_card = describe_base(text_encoder, files)
    now = {
        "tokenizer_sha256": grown.sha256,
        "base_sha256": base_card["checkpoint_sha256"],
        "num_rows": counts.new_pieces,
    }
    if trained is not None and any(trained.get(name) != value for name, value in now.items()):
        raise other_graft_error(folder)
    write_graft_folder(folder, text_encoder, base_card, new_rows, settings.rows, proof)
    # RUN/card.json: what the run was made from.
    run, hashes = settings.run.resolve(), {}
    for path in settings.texts:
        inside = path.resolve().is_relative_to(run)  # a text in the run moves with it
        stored_path = path.resolve().relative_to(run) if inside else make_path_relative(settings.run, path)
        hashes[str(stored_path)] = compute_texts_sha256(path)
    card = {
        "format": "voxgraft-run-1",
        "family": family.name,
        "base": {base_card[part]: base_card[f"{part}_sha256"] for part in ("checkpoint", "tokenizer")},
        "texts": hashes,
        "settings": collect_graft_settings(settings),
        "versions": collect_versions(),
    }
    write_json(settings.run / RUN_CARD_NAME, card, overwrite=True)
    return GraftResult(chosen, grown.sha256, learned, texts, proof, counts, new_rows.methods, new_rows.samples, folder)


def other_graft_error(folder: Path) -> GraftError:
    """A damaged graft whose replacement would not fit the rows that were trained."""
    found = "the graft is damaged, and cannot be created again as it was trained: its tokenizer is another one now"
    expected = "the texts, settings and base of the training; nothing was replaced"
    cure = (
        f"restore the texts and the settings of the run as they were, or {folder.name}/ from a copy. "
        f"`voxgraft go {shlex.quote(str(folder.parent))} --when-changed fresh` creates another graft and trains it "
        "from the start."
    )
    return GraftError("trained-otherwise", found, expected=expected, where=folder, cure=cure)


def describe_base(text_encoder: TextEncoder, files: BaseFiles) -> dict[str, Any]:
    """The base that a graft belongs to. Hashes the checkpoint, which takes a while for gigabytes."""
    return {
        "checkpoint": files.checkpoint.name,
        "checkpoint_sha256": compute_sha256(files.checkpoint),
        "tokenizer": files.tokenizer.name,
        "tokenizer_sha256": text_encoder.base.sha256,
        "pieces": text_encoder.base.size,
    }


def write_graft_folder(
    folder: Path,
    text_encoder: TextEncoder,
    base: dict[str, Any],
    new_rows: NewRows,
    settings: RowSettings,
    proof: TokenizerProof,
) -> None:
    """Write tokenizer, rows, graft.json and README.md of a graft atomically."""
    grown, language = text_encoder.grown, text_encoder.language
    assert grown is not None
    assert language is not None
    name = f"tokenizer{text_encoder.base.path.suffix}"
    counts = {key: getattr(proof.counts, key) for key in ("same", "base_unknown", "holds_tag", "changed", "total")}
    with atomic_write_folder(folder) as temporary:
        with atomic_write(temporary / name) as stream:
            stream.write(grown.data)
        note = {"family": text_encoder.family.name, "language": language, "base_sha256": base["checkpoint_sha256"]}
        write_rows_file(temporary / ROWS_NAME, new_rows.rows, note)
        card = GraftCard(
            family=text_encoder.family.name,
            language=language,
            tag=text_encoder.tag,
            num_rows=grown.size - text_encoder.base.size,
            base=base,
            tokenizer=name,
            tokenizer_sha256=grown.sha256,
            rows_sha256=compute_sha256(temporary / ROWS_NAME),
            method={**settings.model_dump(), "made": new_rows.methods},
            proof=counts,
            licence=get_family(text_encoder.family.name).licence,
            versions=collect_versions(),
            text=text_encoder.rules.to_json(),
        )
        write_graft_card(temporary, card)
        entry = find_exemplar(language)
        examples = ", ".join(f"{sample.piece} near {sample.nearest[0][0]}" for sample in new_rows.samples[:6])
        readme = format_graft_readme(
            card, entry.name if entry else language, [f"Examples: {examples}."] if examples else []
        )
        write_text(temporary / README_NAME, readme)


def tokenizer_train(settings: TokenizerTrainSettings) -> SimpleResult:
    """Learn the characters and pieces that a base lacks for a language, and write them down."""
    require_output_path(settings.output, overwrite=settings.overwrite)
    family, base = load_base_tokenizer(settings.base, settings.family)
    texts = read_texts(settings.texts)
    tokenizer_settings = settings.tokenizer
    rules = build_text_rules(
        settings.language, normalize=tokenizer_settings.normalise, fold_homophones=tokenizer_settings.fold_homophones
    )
    text_encoder = TextEncoder.of(family, base, None, settings.language, rules)
    learned = learn_language_pieces(text_encoder, texts, settings.tokenizer)
    learned.additions.save(settings.output, overwrite=settings.overwrite)
    values = {**additions_to_json(learned.additions, learned.plan), "output": str(settings.output)}
    lines = [*format_additions(learned.additions, learned.plan, texts), f"written to {settings.output}"]
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
        f"{base.size:,} base tokens + {new:,} new = {grown.size:,}; every old id stays",
        f"written to {settings.output} (sha256 {grown.sha256})",
    )
    return SimpleResult(values, lines)


def extend_tokenizer(family: Family, base: Tokenizer, additions: TokenizerAdditions, where: Path) -> Tokenizer:
    """The extended tokenizer in memory, after checking that the additions belong to this base."""
    if additions.base_sha256 != base.sha256 or additions.kind != base.kind:
        was = additions.base_sha256[:12]
        found = f"the new tokens were trained for a base with sha256 {was}; this base has {base.sha256[:12]}"
        raise TokenizerError("additions-other-base", found, where=where)
    if additions.family != family.name:
        found = (
            f"the new tokens were trained for the family {additions.family}; this base is of the family {family.name}"
        )
        raise TokenizerError("additions-other-base", found, where=where)
    if additions.tag not in (None, family.tag(additions.language)):
        found = f"the tag of {additions.language} is {additions.tag!r:.40}"
        expected = family.tag(additions.language) or f"none: {family.name} has no tags"
        raise TokenizerError("additions-broken", found, expected=expected, where=where)
    names = [*([additions.tag] if additions.tag else []), *(piece.text for piece in additions.pieces)]
    if len(set(names)) != len(names) or any(name in base.ids for name in names):
        raise TokenizerError("additions-broken", "a token appears twice, or the base has it already", where=where)
    for piece in additions.pieces:
        if not set(piece.text) - base.characters:
            found = f"token {piece.text!r} contains no character that is new to the base"
            raise TokenizerError("additions-broken", found, where=where)
    return parse_tokenizer(base.grown(additions), Path(f"{base.path.name} + {additions.language}"))


def tokenizer_prove(settings: TokenizerProveSettings) -> TokenizerProof:
    """Spell thousands of sentences of base languages with both tokenizers, id for id."""
    text_encoder = load_text_encoder(settings.base, settings.family, settings.extended, settings.language)
    texts = read_texts(settings.texts) if settings.texts else TextCorpus(())
    return prove_text_encoder(text_encoder, texts, settings.proof_texts)


def tokenizer_show(settings: TokenizerShowSettings) -> SimpleResult:
    """Spell sentences piece by piece, old against new. A piece is (text, id, is unknown)."""
    text_encoder = load_text_encoder(settings.base, settings.family, settings.extended, settings.language)
    # Whether the language is the graft's own, which may be one that the base speaks too. Other languages keep the
    # base's reading: the text rules are those of the new language.
    is_new, spans_encoder = False, text_encoder
    if text_encoder.grown is not None and settings.extended is not None and settings.language is not None:
        rules = find_text_rules(settings.extended)
        if rules is not None and rules.language:
            is_new = rules.language.lower() == settings.language.lower()
            spans_encoder = replace(text_encoder, language=rules.language)
        else:
            is_new = settings.language not in text_encoder.family.languages

    def pieces(tokenizer: Tokenizer, ids: list[int]) -> tuple[tuple[str, int, bool], ...]:
        return tuple((tokenizer.shown(token), token, token == tokenizer.unknown_id) for token in ids)

    sentences: list[dict[str, Any]] = []
    lines: list[Line] = []
    for text in settings.text:
        if not is_encodable_text(text):  # bytes of the command line that are no character arrive as halves of one
            cure = "use a terminal with UTF-8 (for example LC_ALL=C.UTF-8), or put the sentence into a UTF-8 file."
            raise TextError("text-not-utf8", f"the sentence {text!a:.80} is not UTF-8", where="command line", cure=cure)
        spans_encoder.require_spans(text, "command line")
        main, parts = spans_encoder.split(text, settings.language)
        if len(parts) > 1 or main != settings.language:  # each part is encoded as its language is
            spelled, extended = spans_encoder.encode_text(text, settings.language), spans_encoder.grown
            shown = pieces(extended or spans_encoder.base, spelled.ids)
            lines += [text, *(f"  {code}: {part.strip()}" for code, part in parts if part.strip())]
            lines.append(_format_pieces("extended" if extended else "base ", shown))
            old, new = (None, shown) if extended else (shown, None)
            spans = [{"language": code, "text": part} for code, part in parts]
            sentences.append({"text": text, "spans": spans, "closed": spelled.closed, "base": old, "extended": new})
            continue
        prepared = text_encoder.prepare(text) if is_new else text_encoder.prepare_base(text, settings.language)
        old, new = pieces(text_encoder.base, text_encoder.base.encode(prepared)), None
        lines += [text, f"  read as: {prepared}", _format_pieces("base ", old)]
        if text_encoder.grown is not None:
            ids = text_encoder.encode(text, settings.language) if is_new else text_encoder.grown.encode(prepared)
            new = pieces(text_encoder.grown, ids)
            lines.append(_format_pieces("extended", new))
        sentences.append({"text": text, "prepared": prepared, "base": old, "extended": new})
    return SimpleResult({"sentences": sentences}, tuple(lines))


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
            found = f"the output is named {settings.output.name}, but the input is a {checkpoint.format} file"
            raise CheckpointError("output-suffix", found, where=settings.output)
        family = detect_checkpoint_family(checkpoint, settings.family)
        base_path = settings.base_tokenizer or find_tokenizer_beside(settings.checkpoint, family)
        base = open_tokenizer(base_path)
        require_extended_tokenizer(base, grown)
        new_rows = build_new_rows(checkpoint, TextEncoder.of(family, base, grown, None), settings.rows)
        counts = RowCount(base.size, grown.size - base.size, family.spare_rows)
        plan = GrowthPlan(
            {name: TableGrowth(base.size, family.spare_rows, rows) for name, rows in new_rows.rows.items()}
        )
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
        "methods": new_rows.methods,
        "samples": [asdict(sample) for sample in new_rows.samples],
        "growth": report.to_json(),
        "read_back": proof.to_json() if proof else None,
        "output": str(settings.output),
    }
    lines: list[Line] = [f"base tokenizer: {chosen}", counts.table(), *filter(None, [counts.spare_note()])]
    lines += format_new_rows(new_rows.methods, new_rows.samples)
    lines.append(f"{report.tensors_copied:,} tensors copied bit for bit, {report.bytes_written:,} bytes written")
    for item in report.grown:
        old, new = list(item["old_shape"]), list(item["new_shape"])
        lines.append(f"  {item['name']} ({item['dtype']}): {old} -> {new}")
    for extra in report.left_out:
        lines.append(f"  left out, because it does not fit an extended table: {extra.name} ({extra.description})")
    if report.input_sha256 and report.output_sha256:
        lines += [f"  input  sha256 {report.input_sha256}", f"  output sha256 {report.output_sha256}"]
    if proof:
        lines.append(
            f"verified: {proof.rows_identical:,} old rows and {proof.tensors_identical:,} other tensors are "
            f"bit-identical to the input ({proof.bytes_compared:,} bytes read again)"
        )
    return SimpleResult(values, (*lines, f"written to {settings.output}"))
