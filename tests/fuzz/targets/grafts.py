"""The graft folder: its card and its rows."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import ClassVar

import numpy as np

from tests.fuzz import byte_mutations, safetensors_mutations
from tests.fuzz.target import Mutant, Random, Target
from tests.fuzz.targets.tokenizers import PIECES, bpe_document, json_mutant, write_documents
from voxgraft.checkpoints.write import read_rows_file, write_rows_file
from voxgraft.graft.folder import (
    GRAFT_CARD_NAME,
    ROWS_NAME,
    SUM_KEY,
    GraftCard,
    collect_versions,
    format_graft_card,
    load_graft,
    read_graft_card,
)

NUM_ROWS = 3


class GraftTarget(Target):
    """A whole graft folder, of which one file is damaged."""

    def make_seeds(self, folder: Path) -> None:
        graft = folder / "graft"
        graft.mkdir()
        values = np.random.default_rng(0).normal(size=(NUM_ROWS, 4)).astype(np.float32)
        write_rows_file(graft / ROWS_NAME, {"text_emb.weight": values, "text_head.weight": -values}, {"language": "am"})
        write_documents(graft, [("tokenizer.json", bpe_document())])
        card = GraftCard(
            family="chatterbox",
            language="am",
            tag="[am]",
            num_rows=NUM_ROWS,
            base={"checkpoint": "t3.safetensors", "checkpoint_sha256": "0" * 64, "pieces": len(PIECES) - NUM_ROWS},
            tokenizer="tokenizer.json",
            tokenizer_sha256=_hash(graft / "tokenizer.json"),
            rows_sha256=_hash(graft / ROWS_NAME),
            method={"init": "mean", "noise": 0.05, "seed": 0},
            proof={"same": 1, "total": 1},
            licence="free",
            versions=collect_versions(),
        )
        (graft / GRAFT_CARD_NAME).write_text(format_graft_card(card), encoding="utf-8")

    def linked(self, scratch: Path, *without: str) -> Path:
        """The graft folder again, without the files that are to be written anew."""
        for path in (self.folder / "graft").iterdir():
            if path.name not in without:
                os.link(path, scratch / path.name)
        return scratch

    def load(self, folder: Path) -> None:
        self.folder = folder
        super().load(folder)


class CardTarget(GraftTarget):
    """graft.json."""

    name: ClassVar[str] = "graft-card"
    count: ClassVar[int] = 2000

    def load(self, folder: Path) -> None:
        super().load(folder)
        card = (folder / "graft" / GRAFT_CARD_NAME).read_bytes()
        plain = {name: value for name, value in json.loads(card).items() if name != SUM_KEY}
        # Without its own sum, as grafts from before have it, a damaged card gets as far as the checks of its values.
        self.seeds = {GRAFT_CARD_NAME: card, "plain": json.dumps(plain, indent=2).encode()}

    def mutant(self, rng: Random) -> Mutant:
        return json_mutant(self, rng)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        folder = self.linked(scratch, GRAFT_CARD_NAME)
        (folder / GRAFT_CARD_NAME).write_bytes(data)
        card = read_graft_card(folder)
        assert json.loads(format_graft_card(card))
        graft = load_graft(folder)
        return graft.card, sorted(graft.rows)


class RowsTarget(GraftTarget):
    """rows.safetensors, with a card that has its hash."""

    name: ClassVar[str] = "rows"
    count: ClassVar[int] = 2000

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.seeds = {ROWS_NAME: (folder / "graft" / ROWS_NAME).read_bytes()}
        self.card = json.loads((folder / "graft" / GRAFT_CARD_NAME).read_bytes())
        del self.card[SUM_KEY]

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        choice = rng.random()
        if choice < 0.15:
            made, how = safetensors_mutations.reformed(data, rng)
            return Mutant(seed, how, made, same=True)
        if choice < 0.5:
            made, how = safetensors_mutations.lying(data, rng)
        else:
            damage = byte_mutations.damaged if choice < 0.8 else safetensors_mutations.edited_header
            made, how = damage(data, rng)
        return Mutant(seed, how, made)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        folder = self.linked(scratch, GRAFT_CARD_NAME, ROWS_NAME)
        (folder / ROWS_NAME).write_bytes(data)
        read_rows_file(folder / ROWS_NAME)
        (folder / GRAFT_CARD_NAME).write_text(json.dumps({**self.card, "rows_sha256": _hash(folder / ROWS_NAME)}))
        graft = load_graft(folder)
        return {name: rows.tobytes() for name, rows in sorted(graft.rows.items())}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
