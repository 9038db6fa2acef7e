"""What is read beside models: texts of a language, lists of ids, tables of the stock programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import numpy as np

from tests.fuzz import byte_mutations, text_mutations
from tests.fuzz.target import Mutant, Random, Target
from tests.fuzz.targets.tokenizers import json_mutant, write_documents
from voxgraft.core.languages import count_scripts, describe_character
from voxgraft.inspect.check import read_npy_ids
from voxgraft.models import get_family
from voxgraft.models.chatterbox.family import ChatterboxTextFrontend, read_cangjie
from voxgraft.tokenizers import read_texts, read_user_corpus


class TextTarget(Target):
    """Files of sentences."""

    name: ClassVar[str] = "text"
    count: ClassVar[int] = 2500

    def make_seeds(self, folder: Path) -> None:
        (folder / "am.txt").write_text("ሰላም ለዓለም፡፡\nእንደምን አደሩ?\nቡና እፈልጋለሁ።\n", encoding="utf-8")
        (folder / "vi.txt").write_text(
            "Xin chào thế giới.\nTôi thích cà phê.\nCảm ơn bạn rất nhiều!\n", encoding="utf-8"
        )

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        choice = rng.random()
        if choice < 0.15:
            made, how = text_mutations.reformed(data, rng)
            return Mutant(seed, how, made, same=True)
        made, how = text_mutations.edited(data, rng) if choice < 0.7 else byte_mutations.damaged(data, rng)
        return Mutant(seed, how, made)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "am.txt"
        path.write_bytes(data)
        texts = read_texts([path])
        assert list(read_user_corpus([path], frozenset({"am"})))
        for name in ("chatterbox", "indextts2"):
            front = get_family(name).front(None)
            for sentence in texts.sentences:
                prepared = front.prepare(front.clean(sentence), "am")
                count_scripts(prepared[:50])
        _ = [describe_character(character) for sentence in texts.sentences for character in sentence[:5]]
        return texts.sentences


class CangjieTarget(Target):
    """Chatterbox's table of Chinese characters."""

    name: ClassVar[str] = "cangjie"
    count: ClassVar[int] = 1500

    def make_seeds(self, folder: Path) -> None:
        write_documents(folder, [("table.json", ["我\thqi", "你\tonf", "他\topd", "她\topd", "a\tb\tc"])])

    def mutant(self, rng: Random) -> Mutant:
        return json_mutant(self, rng)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "Cangjie5_TC.json"
        path.write_bytes(data)
        table = read_cangjie(path)
        return sorted(table.items()), ChatterboxTextFrontend(table).prepare("我你她", "zh")


class NpyTarget(Target):
    """Lists of ids in NumPy's format."""

    name: ClassVar[str] = "npy"
    count: ClassVar[int] = 2500
    _odd: ClassVar[tuple[bytes, ...]] = (
        *(
            b"'|O'",
            b"'<f4'",
            b"'<i8'",
            b"'>i4'",
            b"'<u8'",
            b"'<i3'",
            b"'<M8[ns]'",
            b"[('a', '<i4')]",
            b"'|V8'",
            b"'<U4'",
            b"True",
        ),
        *(
            b"False",
            b"(4,)",
            b"()",
            b"(-1,)",
            b"(4, 1)",
            b"(99999999999999999999,)",
            b"(4",
            b"(1e9,)",
            b"__import__('os')",
            b"'shape'",
        ),
        *(b"'descr'", b"{", b"}", b"\n", b" ", b"\x00", b"(0,)", b"(1, 2, 3)", b"'='", b"'i'"),
    )

    def make_seeds(self, folder: Path) -> None:
        np.save(folder / "int32.npy", np.array([5, 7, 12000, 3], dtype=np.int32))
        np.save(folder / "int64.npy", np.arange(9))
        np.save(folder / "none.npy", np.zeros(0, dtype=np.int32))

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        if rng.random() < 0.5:
            made, how = byte_mutations.damaged(data, rng)
            return Mutant(seed, how, made)
        words = data[10:].split(b" ")
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(min(12, len(words)))
            words[at : at + rng.randrange(2)] = [rng.choice(self._odd)]
        body = b" ".join(words)
        length = rng.choice(
            (data[8:10], len(body).to_bytes(4, "little")[:2], (body.find(b"\n") + 1).to_bytes(2, "little"))
        )
        return Mutant(seed, "odd header", data[:8] + length + body)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "ids.npy"
        path.write_bytes(data)
        return json.dumps(read_npy_ids(path).tolist())
