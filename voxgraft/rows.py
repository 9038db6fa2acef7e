"""First values of new rows, made from the base's own rows, and what they sit near.

Plans once which base tokens a new token starts from; the same plan then fills embedding, head and bias alike.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxgraft import progress
from voxgraft.run_settings import RowInit, RowSettings
from voxgraft.spelling import TextEncoder
from voxgraft.text.characters import SHARED_SCRIPTS, find_exemplar, is_letter, script_of
from voxgraft.text.romanise import romanize
from voxgraft.tokenizers.base import WORD_START, Tokenizer
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

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def plan_rows(spelling: TextEncoder, init: RowInit) -> list[RowPlan]:
    """One plan for each token that the grown tokenizer has and the base has not."""
    base, grown = spelling.base, spelling.grown
    assert grown is not None
    everything = _spellable_ids(base)
    scripts = _group_by_script(base)
    tags = _language_tag_ids(base)

    def plan(token: int) -> RowPlan:
        piece = grown.shown(token)
        if init in ("random", "mean"):
            return RowPlan(token, piece, init, "", everything)
        if token in grown.control_ids and tags:
            return RowPlan(token, piece, "tags", "", tags)
        made = _plan_from_text(spelling, token, piece, init == "romanised", scripts)
        return made or RowPlan(token, piece, "mean", "", everything)

    plans: list[RowPlan] = []
    with progress.progress_task("planning new rows", grown.size - base.size) as advance:
        for token in range(base.size, grown.size):
            plans.append(plan(token))
            advance(1)
    return plans


def _plan_from_text(
    spelling: TextEncoder, token: int, piece: str, romanised: bool, scripts: dict[str, tuple[int, ...]]
) -> RowPlan | None:
    roman = ""
    if romanised:
        roman = romanize(piece.removeprefix(WORD_START))
        if sources := _encode_romanized(spelling, roman, piece.startswith(WORD_START)):
            return RowPlan(token, piece, "romanised", roman, sources)
    script = next((script_of(c) for c in piece if script_of(c) not in SHARED_SCRIPTS), "")
    letters = scripts.get(script) or scripts[""]
    return RowPlan(token, piece, "script-mean", roman, letters) if letters else None


def _encode_romanized(spelling: TextEncoder, roman: str, starts_word: bool) -> tuple[int, ...]:
    """The base's spelling of a romanised piece, unknowns left out."""
    base = spelling.base
    prepared = find_surviving_text(base, spelling.prepare, roman).strip()
    if not prepared:
        return ()
    ids = base.encode_exact((WORD_START if starts_word and base.kind != "bpe-json" else "") + prepared)
    return tuple(token for token in ids if token != base.unknown_id and token not in base.control_ids)


def init_rows(table: Float32Array, plans: list[RowPlan], settings: RowSettings, role: str) -> Float32Array:
    """New rows for one table of base rows ([pieces, width], or [pieces] for a bias). Reproducible by seed and role."""
    rows = np.empty((len(plans), *table.shape[1:]), dtype=np.float32)
    spread = table.std(axis=0, dtype=np.float64).astype(np.float32)
    middle = table.mean(axis=0, dtype=np.float64).astype(np.float32)
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
    table: Float32Array, rows: Float32Array, plans: list[RowPlan], spelling: TextEncoder, limit: int = 12
) -> list[RowReport]:
    """A sample of new rows, the language's own letters if there are any, with norms and nearest base tokens."""
    norms = np.linalg.norm(table, axis=1)
    unit = table / np.maximum(norms, 1e-12)[:, None]
    reports: list[RowReport] = []
    for at in _choose_sample_rows(plans, spelling.language, limit):
        plan, norm = plans[at], float(np.linalg.norm(rows[at]))
        cosines = unit @ (rows[at] / max(norm, 1e-12))
        best = np.argsort(-cosines)[:3]
        nearest = tuple((spelling.base.shown(int(token)), round(float(cosines[token]), 3)) for token in best)
        reports.append(RowReport(plan.piece, plan.how, plan.romanised, norm, float(norms.mean()), nearest))
    return reports


def _choose_sample_rows(plans: list[RowPlan], language: str | None, limit: int) -> list[int]:
    """Evenly spaced among the letters that CLDR gives for the language, else among all letters, else among all rows."""
    entry = find_exemplar(language) if language else None
    own = set(entry.letters + entry.letters.upper()) if entry else set()
    letters = [at for at, plan in enumerate(plans) if len(plan.piece) == 1 and is_letter(plan.piece)]
    candidates = [at for at in letters if plans[at].piece in own] or letters or list(range(len(plans)))
    step = max(1, len(candidates) // limit)
    return candidates[::step][:limit]


def count_by_method(plans: list[RowPlan]) -> dict[str, int]:
    """How many rows were made which way."""
    return dict(Counter(plan.how for plan in plans).most_common())


def _spellable_ids(base: Tokenizer) -> tuple[int, ...]:
    return tuple(at for at in range(base.size) if at not in base.control_ids and base.pieces[at] is not None)


def _language_tag_ids(base: Tokenizer) -> tuple[int, ...]:
    return tuple(at for at in sorted(base.control_ids) if _LANGUAGE_TAG_PATTERN.fullmatch(base.shown(at)))


def _group_by_script(base: Tokenizer) -> dict[str, tuple[int, ...]]:
    """Base pieces made of letters, by script; all of them under the empty name."""
    found: dict[str, list[int]] = {"": []}
    for at in _spellable_ids(base):
        word = base.shown(at).removeprefix(WORD_START)
        if word and all(map(is_letter, word)):
            found[""].append(at)
            found.setdefault(script_of(word[0]), []).append(at)
    return {script: tuple(tokens) for script, tokens in found.items()}
