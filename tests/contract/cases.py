"""A small random base of each family, and what the contract tests ask of it through the family's interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.random_bases import random_condition
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles, Family, TokenSequence, build_sequence
from voxgraft.models.generate import GenerationPrompt
from voxgraft.models.speech_model import PackedBatch, SpeechModel, grow_model, load_model, pack_batch
from voxgraft.nn.adapter import Gate, adapter_state, add_adapter, load_adapter_state
from voxgraft.nn.rows import collect_new_rows, load_new_rows

NUM_NEW = 7
RANK = 4
SPREAD = 0.1
"""Of random rows and adapters: far from nothing, and not so far that rounding is all one sees."""
TOLERANCE = 5e-5


@dataclass(frozen=True)
class Case:
    """A tiny random base of one family on disk."""

    family: Family
    files: BaseFiles

    def open(self) -> SpeechModel:
        """The base as published."""
        return load_model(self.family, self.files)

    def grafted(self, seed: int = 0) -> tuple[SpeechModel, Gate]:
        """The base with rows and an adapter whose every number is random, so that nothing hides behind a zero."""
        model = self.open()
        grow_model(model, NUM_NEW)
        gate = add_adapter(model, model.adapter_layers(), rank=RANK, alpha=RANK, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        rows = {
            name: SPREAD * torch.randn(rows.shape, generator=generator)
            for name, rows in collect_new_rows(model).items()
        }
        load_new_rows(model, rows)
        adapter = {
            name: SPREAD * torch.randn(weight.shape, generator=generator)
            for name, weight in adapter_state(model).items()
        }
        load_adapter_state(model, adapter)
        return model, gate

    def condition(self, model: SpeechModel, seed: int) -> Any:
        return random_condition(self.family.name, model, np.random.default_rng(seed))


CLONING_TINY = "tiny-cloning"
"""The tiny family's second form: voices are vectors of recordings."""


def case_of(name: str, base: Path) -> Case:
    found = get_family(name.partition("-")[0])
    return Case(found, found.files(base))


def text_ids(model: SpeechModel, count: int, seed: int, *, below: int | None = None) -> list[int]:
    """Ids that a text of this model may hold."""
    draw = np.random.default_rng([seed, count])
    ids = draw.integers(0, below or model.num_text_ids, 4 * count).tolist()
    return [token for token in ids if token not in model.spec.forbidden_text_ids][:count]


def layout(model: SpeechModel, num_text: int, num_codes: int, seed: int, *, below: int | None = None) -> TokenSequence:
    draw = np.random.default_rng([seed, num_codes, 1])
    codes = draw.integers(0, model.spec.num_codes, num_codes)
    return build_sequence(model.spec, text_ids(model, num_text, seed, below=below), codes)


LENGTHS = ((5, 30), (17, 9), (3, 64), (11, 31), (6, 29))


def batch(case: Case, model: SpeechModel, *, below: int | None = None, **options: Any) -> PackedBatch:
    """Five utterances of different lengths. `below` keeps to the base's own ids."""
    layouts = [layout(model, *lengths, seed, below=below) for seed, lengths in enumerate(LENGTHS)]
    return pack_batch(model, layouts, [case.condition(model, seed) for seed in range(len(layouts))], **options)


def prompts(case: Case, model: SpeechModel, *, below: int | None = None) -> list[GenerationPrompt]:
    """Three utterances to speak."""
    return [
        GenerationPrompt(text_ids(model, count, seed, below=below), case.condition(model, seed), seed)
        for seed, count in enumerate((4, 12, 7))
    ]
