"""The verb `graft`: train, merge and prove the tokenizer of a run, make the new rows, write `RUN/graft/`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.bases import resolve_base_family
from voxgraft.checkpoints import open_checkpoint, write_rows_file
from voxgraft.errors import ConfigError
from voxgraft.families.base import BaseFiles
from voxgraft.files import atomic_write, atomic_write_folder, compute_sha256, make_path_relative, write_json, write_text
from voxgraft.graft_folder import (
    GRAFT_CARD_NAME,
    README_NAME,
    ROWS_NAME,
    RUN_CARD_NAME,
    GraftCard,
    collect_graft_settings,
    collect_versions,
    format_graft_card,
    format_graft_readme,
)
from voxgraft.normalising import build_text_rules
from voxgraft.preparing.choosing import resolve_text_files
from voxgraft.reports import additions_to_json, format_additions, format_new_rows, format_proof
from voxgraft.results import Line
from voxgraft.rows import RowReport
from voxgraft.run import RUN_FILE
from voxgraft.run_settings import RowSettings
from voxgraft.settings import GraftSettings
from voxgraft.spelling import TextEncoder, learn_language_pieces, prove_text_encoder
from voxgraft.tables import NewRows, RowCount, build_new_rows, require_extended_tokenizer
from voxgraft.text.characters import find_exemplar
from voxgraft.text.texts import TextCorpus, read_texts
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer
from voxgraft.tokenizers.prove import TokenizerProof
from voxgraft.tokenizers.train import LearnedAdditions


@dataclass(frozen=True, slots=True)
class GraftResult:
    """The proof, and the graft if the proof holds."""

    chosen: str
    """Which tokenizer was taken, from where."""
    sha256: str
    """Of the grown tokenizer."""
    learnt: LearnedAdditions | None
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
            "learnt": additions_to_json(self.learnt.additions, self.learnt.plan) if self.learnt else None,
            "proof": self.proof.to_json(),
            "rows": self.counts.to_json(),
            "methods": self.methods,
            "samples": [sample.to_json() for sample in self.samples],
            "graft": str(self.folder) if self.folder else None,
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [f"tokenizer: {self.chosen}", f"  its sha256: {self.sha256}"]
        if self.learnt:
            lines += format_additions(self.learnt.additions, self.learnt.plan, self.texts)
        lines += format_proof(self.proof)
        if self.folder is None:
            return [*lines, "nothing was written, since the proof does not hold"]
        lines += [self.counts.table(), *filter(None, [self.counts.spare_note()])]
        lines += [*format_new_rows(self.methods, self.samples), f"graft: {self.folder}"]
        return [*lines, f"next: voxgraft check {shlex.quote(str(self.folder.parent))}"]


def graft(settings: GraftSettings) -> GraftResult:
    """Tokenizer, proof and rows of one run in one go. Nothing is written unless the proof holds."""
    base_folder, language = _require_graft_inputs(settings)
    settings = settings.model_copy(update={"texts": resolve_text_files(settings, settings.run)})
    family = resolve_base_family(base_folder, settings.family)
    files = family.files(base_folder)
    base = open_tokenizer(files.tokenizer)
    texts = read_texts(settings.texts) if settings.texts else TextCorpus(())
    own = settings.tokenizer
    rules = build_text_rules(language, normalize=own.normalise, fold_homophones=own.fold_homophones)
    grown, learnt, chosen = _load_or_train_tokenizer(
        settings, TextEncoder.of(family, base, None, language, rules), texts
    )
    spelling = TextEncoder.of(family, base, grown, language, rules)
    proof = prove_text_encoder(spelling, texts, settings.proof_texts)
    counts = RowCount(base.size, grown.size - base.size, family.spare_rows)
    if not proof.holds:
        return GraftResult(chosen, grown.sha256, learnt, texts, proof, counts, {}, (), None)
    require_extended_tokenizer(base, grown)
    with open_checkpoint(files.checkpoint) as checkpoint:
        made = build_new_rows(checkpoint, spelling, settings.rows)
    folder = settings.run / "graft"
    base_card = _describe_base(spelling, files)
    _write_graft_folder(folder, spelling, base_card, made, settings.rows, proof)
    _write_run_card(settings, spelling, base_card)
    return GraftResult(chosen, grown.sha256, learnt, texts, proof, counts, made.methods, made.samples, folder)


def _require_graft_inputs(settings: GraftSettings) -> tuple[Path, str]:
    for name in ("base", "language"):
        if getattr(settings, name) is None:
            raise ConfigError("config-missing", f"`{name}` is not given", where=settings.run / RUN_FILE)
    if not resolve_text_files(settings, settings.run) and settings.tokenizer.file is None:
        found = "neither `texts` nor `tokenizer.file` is given, and the run has no manifest of clips"
        cure = "name texts in run.yaml, or import recordings first: `voxgraft go` does that with data.sources."
        raise ConfigError("config-missing", found, where=settings.run / RUN_FILE, cure=cure)
    assert settings.base is not None
    assert settings.language is not None
    return settings.base, settings.language


def _load_or_train_tokenizer(
    settings: GraftSettings, spelling: TextEncoder, texts: TextCorpus
) -> tuple[Tokenizer, LearnedAdditions | None, str]:
    """The ready-made file if one is named, else one that is learnt from the texts. There is no third way."""
    if settings.tokenizer.file is not None:
        grown = open_tokenizer(settings.tokenizer.file)
        return grown, None, f"{settings.tokenizer.file}, brought along"
    learnt = learn_language_pieces(spelling, texts, settings.tokenizer)
    names = ", ".join(path.name for path in settings.texts)
    return learnt.grown, learnt, f"{spelling.base.path.name}, grown by what was learnt from {names}"


def _describe_base(spelling: TextEncoder, files: BaseFiles) -> dict[str, Any]:
    """The base that a graft belongs to. Hashes the checkpoint, which takes a while for gigabytes."""
    return {
        "checkpoint": files.checkpoint.name,
        "checkpoint_sha256": compute_sha256(files.checkpoint),
        "tokenizer": files.tokenizer.name,
        "tokenizer_sha256": spelling.base.sha256,
        "pieces": spelling.base.size,
    }


def _write_graft_folder(
    folder: Path,
    spelling: TextEncoder,
    base: dict[str, Any],
    made: NewRows,
    settings: RowSettings,
    proof: TokenizerProof,
) -> None:
    grown, language = spelling.grown, spelling.language
    assert grown is not None
    assert language is not None
    name = f"tokenizer{spelling.base.path.suffix}"
    counts = {key: getattr(proof.counts, key) for key in ("same", "base_unknown", "holds_tag", "changed", "total")}
    with atomic_write_folder(folder) as temporary:
        with atomic_write(temporary / name) as stream:
            stream.write(grown.data)
        note = {"family": spelling.family.name, "language": language, "base_sha256": base["checkpoint_sha256"]}
        write_rows_file(temporary / ROWS_NAME, made.rows, note)
        card = GraftCard(
            family=spelling.family.name,
            language=language,
            tag=spelling.tag,
            num_rows=grown.size - spelling.base.size,
            base=base,
            tokenizer=name,
            tokenizer_sha256=grown.sha256,
            rows_sha256=compute_sha256(temporary / ROWS_NAME),
            method={**settings.model_dump(), "made": made.methods},
            proof=counts,
            licence=spelling.family.licence,
            versions=collect_versions(),
            text=spelling.rules.to_json(),
        )
        write_text(temporary / GRAFT_CARD_NAME, format_graft_card(card))
        entry = find_exemplar(language)
        write_text(
            temporary / README_NAME,
            format_graft_readme(card, entry.name if entry else language, _format_row_samples(made)),
        )


def _format_row_samples(made: NewRows) -> list[str]:
    if not made.samples:
        return []
    near = ", ".join(f"{sample.piece} near {sample.nearest[0][0]}" for sample in made.samples[:6])
    return [f"For a look: {near}."]


def _write_run_card(settings: GraftSettings, spelling: TextEncoder, base: dict[str, Any]) -> None:
    """RUN/card.json: what the run was made from."""
    card = {
        "format": "voxgraft-run-1",
        "family": spelling.family.name,
        "base": {base[part]: base[f"{part}_sha256"] for part in ("checkpoint", "tokenizer")},
        "texts": {str(_make_portable_path(settings.run, path)): compute_sha256(path) for path in settings.texts},
        "settings": collect_graft_settings(settings),
        "versions": collect_versions(),
    }
    write_json(settings.run / RUN_CARD_NAME, card, overwrite=True)


def _make_portable_path(run: Path, path: Path) -> Path:
    """A text that lies in the run moves with it."""
    inside = path.resolve().is_relative_to(run.resolve())
    return path.resolve().relative_to(run.resolve()) if inside else make_path_relative(run, path)
