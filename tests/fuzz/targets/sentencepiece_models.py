"""SentencePiece models. The library behind them is C++ and trusts what it is given: a crash ends the process."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import sentencepiece

from tests.fuzz import byte_mutations, protobuf_mutations
from tests.fuzz.target import Mutant, Random, Target
from tests.fuzz.targets.tokenizers import tokenizer_meaning
from voxgraft.tokenizers import load_proof_corpus

RULES = "41\t61\nC9\t45 301\nFB01\t66 69\n2122\t54 4D\n20 20\t20\n"
"""A normaliser with a table of its own: A to a, É apart, ligatures, two spaces to one."""


class SentencePieceTarget(Target):
    """Unigram and BPE models, with and without a normaliser's table."""

    name: ClassVar[str] = "sentencepiece"
    count: ClassVar[int] = 3000

    def make_seeds(self, folder: Path) -> None:
        rules = folder / "rules"
        rules.mkdir()
        (rules / "rules.tsv").write_text(RULES)
        (folder / "unigram.model").write_bytes(_trained("unigram", normalization_rule_tsv=str(rules / "rules.tsv")))
        (folder / "bpe.model").write_bytes(_trained("bpe", normalization_rule_tsv=str(rules / "rules.tsv")))
        (folder / "plain.model").write_bytes(_trained("unigram", normalization_rule_name="identity"))

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        choice = rng.random()
        if choice < 0.1:
            made, how = protobuf_mutations.reformed(data, rng)
            return Mutant(seed, how, made, same=True)
        if choice < 0.65:
            made, how = protobuf_mutations.edited(data, rng)
        elif choice < 0.8:
            made, how = protobuf_mutations.damaged_wire(data, rng)
        else:
            made, how = byte_mutations.damaged(data, rng)
        return Mutant(seed, how, made)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "bpe.model"
        path.write_bytes(data)
        return tokenizer_meaning(path)


def _trained(kind: str, **normaliser: Any) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=islice((text.upper() for code, text in load_proof_corpus() if code == "en"), 60),
        model_writer=written,
        model_type=kind,
        vocab_size=110,
        hard_vocab_limit=False,
        user_defined_symbols=["[ZH]", "我"],
        bos_id=0,
        eos_id=1,
        unk_id=2,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
        **normaliser,
    )
    return written.getvalue()
