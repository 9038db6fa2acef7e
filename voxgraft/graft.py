"""The verb `graft`: train, merge and prove the tokenizer of a run, make the new rows, write `RUN/graft/`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.bases import base_family
from voxgraft.checkpoints import open_checkpoint, write_rows
from voxgraft.errors import ConfigError
from voxgraft.families.base import BaseFiles
from voxgraft.files import replacing, replacing_folder, seen_from, sha256_of, write_json, write_text
from voxgraft.graft_folder import (
    CARD_NAME,
    README_NAME,
    ROWS_NAME,
    RUN_CARD_NAME,
    GraftCard,
    card_text,
    made_with,
    readme,
    versions,
)
from voxgraft.normalising import rules_of
from voxgraft.preparing.choosing import run_texts
from voxgraft.reports import additions_json, additions_lines, proof_lines, row_lines
from voxgraft.results import Line
from voxgraft.rows import RowReport
from voxgraft.run import RUN_FILE
from voxgraft.run_settings import RowSettings
from voxgraft.settings import GraftSettings
from voxgraft.spelling import Spelling, learn_language, prove_spelling
from voxgraft.tables import MadeRows, RowCount, make_tables, require_grown
from voxgraft.text.characters import exemplar
from voxgraft.text.texts import Texts, read_texts
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer
from voxgraft.tokenizers.prove import Proof
from voxgraft.tokenizers.train import Learnt


@dataclass(frozen=True, slots=True)
class GraftResult:
    """The proof, and the graft if the proof holds."""

    chosen: str
    """Which tokenizer was taken, from where."""
    sha256: str
    """Of the grown tokenizer."""
    learnt: Learnt | None
    texts: Texts
    proof: Proof
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
            "learnt": additions_json(self.learnt.additions, self.learnt.plan) if self.learnt else None,
            "proof": self.proof.to_json(),
            "rows": self.counts.to_json(),
            "methods": self.methods,
            "samples": [sample.to_json() for sample in self.samples],
            "graft": str(self.folder) if self.folder else None,
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [f"tokenizer: {self.chosen}", f"  its sha256: {self.sha256}"]
        if self.learnt:
            lines += additions_lines(self.learnt.additions, self.learnt.plan, self.texts)
        lines += proof_lines(self.proof)
        if self.folder is None:
            return [*lines, "nothing was written, since the proof does not hold"]
        lines += [self.counts.table(), *filter(None, [self.counts.spare_note()])]
        lines += [*row_lines(self.methods, self.samples), f"graft: {self.folder}"]
        return [*lines, f"next: voxgraft check {shlex.quote(str(self.folder.parent))}"]


def graft(settings: GraftSettings) -> GraftResult:
    """Tokenizer, proof and rows of one run in one go. Nothing is written unless the proof holds."""
    base_folder, language = _required(settings)
    settings = settings.model_copy(update={"texts": run_texts(settings, settings.run)})
    family = base_family(base_folder, settings.family)
    files = family.files(base_folder)
    base = open_tokenizer(files.tokenizer)
    texts = read_texts(settings.texts) if settings.texts else Texts(())
    own = settings.tokenizer
    rules = rules_of(language, normalise=own.normalise, fold_homophones=own.fold_homophones)
    grown, learnt, chosen = _grown_tokenizer(settings, Spelling.of(family, base, None, language, rules), texts)
    spelling = Spelling.of(family, base, grown, language, rules)
    proof = prove_spelling(spelling, texts, settings.proof_texts)
    counts = RowCount(base.size, grown.size - base.size, family.spare_rows)
    if not proof.holds:
        return GraftResult(chosen, grown.sha256, learnt, texts, proof, counts, {}, (), None)
    require_grown(base, grown)
    with open_checkpoint(files.checkpoint) as checkpoint:
        made = make_tables(checkpoint, spelling, settings.rows)
    folder = settings.run / "graft"
    base_card = _base_card(spelling, files)
    _write(folder, spelling, base_card, made, settings.rows, proof)
    _write_card(settings, spelling, base_card)
    return GraftResult(chosen, grown.sha256, learnt, texts, proof, counts, made.methods, made.samples, folder)


def _required(settings: GraftSettings) -> tuple[Path, str]:
    for name in ("base", "language"):
        if getattr(settings, name) is None:
            raise ConfigError("config-missing", f"`{name}` is not given", where=settings.run / RUN_FILE)
    if not run_texts(settings, settings.run) and settings.tokenizer.file is None:
        found = "neither `texts` nor `tokenizer.file` is given, and the run has no manifest of clips"
        cure = "name texts in run.yaml, or import recordings first: `voxgraft go` does that with data.sources."
        raise ConfigError("config-missing", found, where=settings.run / RUN_FILE, cure=cure)
    assert settings.base is not None
    assert settings.language is not None
    return settings.base, settings.language


def _grown_tokenizer(settings: GraftSettings, spelling: Spelling, texts: Texts) -> tuple[Tokenizer, Learnt | None, str]:
    """The ready-made file if one is named, else one that is learnt from the texts. There is no third way."""
    if settings.tokenizer.file is not None:
        grown = open_tokenizer(settings.tokenizer.file)
        return grown, None, f"{settings.tokenizer.file}, brought along"
    learnt = learn_language(spelling, texts, settings.tokenizer)
    names = ", ".join(path.name for path in settings.texts)
    return learnt.grown, learnt, f"{spelling.base.path.name}, grown by what was learnt from {names}"


def _base_card(spelling: Spelling, files: BaseFiles) -> dict[str, Any]:
    """The base that a graft belongs to. Hashes the checkpoint, which takes a while for gigabytes."""
    return {
        "checkpoint": files.checkpoint.name,
        "checkpoint_sha256": sha256_of(files.checkpoint),
        "tokenizer": files.tokenizer.name,
        "tokenizer_sha256": spelling.base.sha256,
        "pieces": spelling.base.size,
    }


def _write(
    folder: Path, spelling: Spelling, base: dict[str, Any], made: MadeRows, settings: RowSettings, proof: Proof
) -> None:
    grown, language = spelling.grown, spelling.language
    assert grown is not None
    assert language is not None
    name = f"tokenizer{spelling.base.path.suffix}"
    counts = {key: getattr(proof.counts, key) for key in ("same", "base_unknown", "holds_tag", "changed", "total")}
    with replacing_folder(folder) as temporary:
        with replacing(temporary / name) as stream:
            stream.write(grown.data)
        note = {"family": spelling.family.name, "language": language, "base_sha256": base["checkpoint_sha256"]}
        write_rows(temporary / ROWS_NAME, made.rows, note)
        card = GraftCard(
            family=spelling.family.name,
            language=language,
            tag=spelling.tag,
            num_rows=grown.size - spelling.base.size,
            base=base,
            tokenizer=name,
            tokenizer_sha256=grown.sha256,
            rows_sha256=sha256_of(temporary / ROWS_NAME),
            method={**settings.model_dump(), "made": made.methods},
            proof=counts,
            licence=spelling.family.licence,
            versions=versions(),
            text=spelling.rules.to_json(),
        )
        write_text(temporary / CARD_NAME, card_text(card))
        entry = exemplar(language)
        write_text(temporary / README_NAME, readme(card, entry.name if entry else language, _sample_lines(made)))


def _sample_lines(made: MadeRows) -> list[str]:
    if not made.samples:
        return []
    near = ", ".join(f"{sample.piece} near {sample.nearest[0][0]}" for sample in made.samples[:6])
    return [f"For a look: {near}."]


def _write_card(settings: GraftSettings, spelling: Spelling, base: dict[str, Any]) -> None:
    """RUN/card.json: what the run was made from."""
    card = {
        "format": "voxgraft-run-1",
        "family": spelling.family.name,
        "base": {base[part]: base[f"{part}_sha256"] for part in ("checkpoint", "tokenizer")},
        "texts": {str(_stated(settings.run, path)): sha256_of(path) for path in settings.texts},
        "settings": made_with(settings),
        "versions": versions(),
    }
    write_json(settings.run / RUN_CARD_NAME, card, overwrite=True)


def _stated(run: Path, path: Path) -> Path:
    """A text that lies in the run moves with it."""
    inside = path.resolve().is_relative_to(run.resolve())
    return path.resolve().relative_to(run.resolve()) if inside else seen_from(run, path)
