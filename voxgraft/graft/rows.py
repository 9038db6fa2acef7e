"""Initialise new rows from the base's own rows, and report what they are near.

It is planned once from which base tokens a new token starts; the same plan fills embedding, head and bias. Also here:
how many rows a text table must have for a tokenizer, and whether those of a checkpoint fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxgraft.checkpoints import Checkpoint
from voxgraft.checkpoints.base import FLOAT_DTYPES
from voxgraft.config.run import RowInit, RowSettings
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, FileError, Finding, TokenizerError, finding
from voxgraft.core.languages import SHARED_SCRIPTS, find_exemplar, is_letter, script_of
from voxgraft.core.results import Table
from voxgraft.models import family_names, get_family
from voxgraft.models.base import Family
from voxgraft.text.encoder import TextEncoder, romanize
from voxgraft.tokenizers import WORD_START, Tokenizer
from voxgraft.tokenizers.prove import check_tokenizer_structure
from voxgraft.tokenizers.train import find_surviving_text

Float32Array = npt.NDArray[np.float32]
_LANGUAGE_TAG_PATTERN = re.compile(r"\[[a-z]{2,3}\]")


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Where one new row comes from: the base tokens whose rows are averaged."""

    token: int
    piece: str
    how: str
    """romanised, tags, script-mean, mean or random."""
    romanised: str
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowReport:
    """What a person looks at: is ሰ near s?"""

    piece: str
    how: str
    romanised: str
    norm: float
    base_norm: float
    nearest: tuple[tuple[str, float], ...]
    """Base pieces with the highest cosine, and that cosine."""


def plan_rows(text_encoder: TextEncoder, init: RowInit) -> list[RowPlan]:
    """One plan for each token that the extended tokenizer has and the base has not."""
    base, grown = text_encoder.base, text_encoder.grown
    assert grown is not None
    everything = tuple(at for at in range(base.size) if at not in base.control_ids and base.pieces[at] is not None)
    by_script: dict[str, list[int]] = {"": []}  # base pieces made of letters; all of them under the empty name
    for at in everything:
        word = base.shown(at).removeprefix(WORD_START)
        if word and all(map(is_letter, word)):
            by_script[""].append(at)
            by_script.setdefault(script_of(word[0]), []).append(at)
    scripts = {script: tuple(tokens) for script, tokens in by_script.items()}
    tags = tuple(at for at in sorted(base.control_ids) if _LANGUAGE_TAG_PATTERN.fullmatch(base.shown(at)))

    def plan(token: int) -> RowPlan:
        piece, roman = grown.shown(token), ""
        if init in ("random", "mean"):
            return RowPlan(token, piece, init, "", everything)
        if token in grown.control_ids and tags:
            return RowPlan(token, piece, "tags", "", tags)
        if init == "romanised":
            roman = romanize(piece.removeprefix(WORD_START))
            prepared = find_surviving_text(base, text_encoder.prepare, roman).strip()
            if prepared:
                # The base's spelling of the romanized piece. BPE files have no sign for the start of a word.
                starts_word = piece.startswith(WORD_START) and base.kind != "bpe-json"
                ids = base.encode_exact((WORD_START if starts_word else "") + prepared)
                sources = tuple(one for one in ids if one != base.unknown_id and one not in base.control_ids)
                if sources:
                    return RowPlan(token, piece, "romanised", roman, sources)
        script = next((script_of(c) for c in piece if script_of(c) not in SHARED_SCRIPTS), "")
        letters = scripts.get(script) or scripts[""]
        if letters:
            return RowPlan(token, piece, "script-mean", roman, letters)
        return RowPlan(token, piece, "mean", "", everything)

    plans: list[RowPlan] = []
    with progress.progress_task("planning new rows", grown.size - base.size) as advance:
        for token in range(base.size, grown.size):
            plans.append(plan(token))
            advance(1)
    return plans


def init_rows(table: Float32Array, plans: list[RowPlan], settings: RowSettings, role: str) -> Float32Array:
    """New rows for one table of base rows ([pieces, width], or [pieces] for a bias). Reproducible by seed and role."""
    rows = np.empty((len(plans), *table.shape[1:]), dtype=np.float32)
    spread = table.std(axis=0, dtype=np.float64).astype(np.float32)
    middle = table.mean(axis=0, dtype=np.float64).astype(np.float32)
    # A generator for each role, and a draw for each row whether it is used or not: rows of one table do not depend on
    # other tables, nor on how other rows start.
    generator = np.random.default_rng([settings.seed, *role.encode()])
    means: dict[tuple[int, ...], Float32Array] = {}
    for at, plan in enumerate(plans):
        drawn = generator.standard_normal(table.shape[1:]).astype(np.float32)
        if plan.how == "random":
            rows[at] = middle + drawn * spread
            continue
        if plan.sources not in means:
            means[plan.sources] = table[list(plan.sources)].mean(axis=0, dtype=np.float64).astype(np.float32)
        rows[at] = means[plan.sources] + settings.noise * drawn * spread
    return rows


def build_row_reports(
    table: Float32Array, rows: Float32Array, plans: list[RowPlan], text_encoder: TextEncoder, limit: int = 12
) -> list[RowReport]:
    """A sample of new rows, the language's own letters if there are any, with norms and nearest base tokens."""
    norms = np.linalg.norm(table, axis=1)
    unit = table / np.maximum(norms, 1e-12)[:, None]
    # Evenly spaced among the letters that CLDR gives for the language, else among all letters, else among all rows.
    entry = find_exemplar(text_encoder.language) if text_encoder.language else None
    own = set(entry.letters + entry.letters.upper()) if entry else set()
    letters = [at for at, plan in enumerate(plans) if len(plan.piece) == 1 and is_letter(plan.piece)]
    candidates = [at for at in letters if plans[at].piece in own] or letters or list(range(len(plans)))
    reports: list[RowReport] = []
    for at in candidates[:: max(1, len(candidates) // limit)][:limit]:
        plan, norm = plans[at], float(np.linalg.norm(rows[at]))
        cosines = unit @ (rows[at] / max(norm, 1e-12))
        best = np.argsort(-cosines)[:3]
        nearest = tuple((text_encoder.base.shown(int(token)), round(float(cosines[token]), 3)) for token in best)
        reports.append(RowReport(plan.piece, plan.how, plan.romanised, norm, float(norms.mean()), nearest))
    return reports


@dataclass(frozen=True, slots=True)
class RowCount:
    """The numbers that people look for, for one growth of a text table."""

    base_pieces: int
    new_pieces: int
    spare_rows: int

    @property
    def pieces(self) -> int:
        return self.base_pieces + self.new_pieces

    @property
    def rows(self) -> int:
        return self.pieces + self.spare_rows

    def table(self) -> Table:
        """Base pieces, new pieces, total, table rows, fixed, trained."""
        names = ("base tokens", "new tokens", "total", "spare", "table rows", "fixed", "trained")
        fixed = self.base_pieces + self.spare_rows
        values = (self.base_pieces, self.new_pieces, self.pieces, self.spare_rows, self.rows, fixed, self.new_pieces)
        return Table(names, (tuple(f"{value:,}" for value in values),))

    def spare_note(self) -> str | None:
        """Why there is a row more than pieces, where that is so."""
        if not self.spare_rows:
            return None
        return (
            f"{self.rows:,} rows for {self.pieces:,} tokens is correct: no text uses the last row. "
            "This row stays last, and no new token is initialized from it."
        )

    def to_json(self) -> dict[str, int]:
        return {
            "base_pieces": self.base_pieces,
            "new_pieces": self.new_pieces,
            "pieces": self.pieces,
            "spare_rows": self.spare_rows,
            "table_rows": self.rows,
        }


def detect_checkpoint_family(checkpoint: Checkpoint, name: str | None) -> Family:
    """The family that was named, else the one whose text tables are in the file."""
    if name is not None:
        return get_family(name)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    families = list(map(get_family, family_names()))
    recognised = (candidate for candidate in families if candidate.matches_tensors(shapes))
    # The embedding: all call their head alike, and a file without a whole body can be grown too.
    tables = (candidate for candidate in families if candidate.graft_points[0].tensor in shapes)
    for candidate in (*recognised, *tables):
        return candidate
    looked = ", ".join(f"{kind}: {get_family(kind).graft_points[0].tensor}" for kind in family_names())
    found = (
        f"none of {len(checkpoint.tensors):,} tensors is the text embedding of a supported family (looked for {looked})"
    )
    raise CheckpointError("checkpoint-family", found, where=checkpoint.path)


def text_table_findings(checkpoint: Checkpoint, family: Family, pieces: int) -> list[Finding]:
    """Every way in which the file's text tables do not fit a tokenizer of that many pieces."""
    expected = pieces + family.spare_rows
    rows: dict[str, int] = {}
    findings: list[Finding] = []
    where = checkpoint.path
    for point in family.graft_points:
        info = checkpoint.tensors.get(point.tensor)
        if info is None:
            findings.append(finding("tensor-missing", f"{point.tensor} is not in the file", where=where))
            continue
        if info.dtype not in FLOAT_DTYPES or len(info.shape) != (1 if point.role == "head-bias" else 2):
            found = f"{point.tensor} is {info.dtype} {list(info.shape)}"
            findings.append(finding("tensor-shape", found, expected="floating-point rows", where=where))
            continue
        rows[point.tensor] = info.shape[0]
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{name} has {count:,} rows" for name, count in rows.items())
        short = {point.role for point in family.graft_points if rows.get(point.tensor, 0) < max(rows.values())}
        code = "embedding-not-grown" if "embedding" in short else "head-not-grown"
        if short == {"head-bias"}:
            code = "bias-not-grown"
        findings.append(finding(code, found, expected="the same number of rows", where=where))
    for name, count in rows.items():
        if count != expected:
            code = "ids-past-table" if count < pieces else "rows-vs-tokenizer"
            spare = f", {family.spare_rows} of them unused" if family.spare_rows else ""
            found = f"{name} has {count:,} rows, but the tokenizer has {pieces:,} tokens"
            findings.append(finding(code, found, expected=f"{expected:,} rows{spare}", where=where))
            break
    return findings


def require_extended_tokenizer(base: Tokenizer, grown: Tokenizer) -> None:
    """The extended tokenizer must be the base's with pieces appended, without gaps: raise the first finding else."""
    for item in check_tokenizer_structure(base, grown, None):
        raise TokenizerError.of(item)


def iter_base_tables(checkpoint: Checkpoint, family: Family, pieces: int) -> Iterator[tuple[str, str, Float32Array]]:
    """Tensor name, role and base rows (without the spare) of each text table, one at a time."""
    for point in family.graft_points:
        values = checkpoint.read_rows(point.tensor, 0, pieces)
        table = values.astype(np.float32, copy=False)
        if not np.isfinite(table).all():
            found = f"{point.tensor} contains values that are not finite"
            raise CheckpointError("tensor-not-finite", found, where=checkpoint.path)
        yield point.tensor, point.role, table


def find_tokenizer_beside(checkpoint: Path, family: Family) -> Path:
    """The tokenizer that lies in one base folder with its checkpoint."""
    try:
        return family.find_tokenizer(checkpoint)
    except FileError as error:
        found = f"the base's tokenizer is not next to {checkpoint.name}: {error.finding.found}"
        expected, cure = error.finding.expected, "set --base-tokenizer."
        raise FileError(error.code, found, expected=expected, where=checkpoint.parent, cure=cure) from None


@dataclass(frozen=True, slots=True)
class NewRows:
    """New rows by tensor, how many were made which way, and a sample to look at."""

    rows: dict[str, Float32Array]
    methods: dict[str, int]
    samples: tuple[RowReport, ...]


def build_new_rows(checkpoint: Checkpoint, text_encoder: TextEncoder, settings: RowSettings) -> NewRows:
    """New rows for every text table of a base checkpoint; an error if its rows do not fit the base's tokenizer."""
    family = get_family(text_encoder.family.name)
    for item in text_table_findings(checkpoint, family, text_encoder.base.size):
        raise CheckpointError.of(item)
    plans = plan_rows(text_encoder, settings.init)
    rows: dict[str, Float32Array] = {}
    samples: tuple[RowReport, ...] = ()
    for tensor, role, table in iter_base_tables(checkpoint, family, text_encoder.base.size):
        rows[tensor] = init_rows(table, plans, settings, role)
        if role == "embedding":
            samples = tuple(build_row_reports(table, rows[tensor], plans, text_encoder))
    return NewRows(rows, dict(Counter(plan.how for plan in plans).most_common()), samples)
