"""Files made to take for ever or to fill memory, each just within the sizes that are read, or just past them."""

from __future__ import annotations

import io
import os
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sentencepiece import sentencepiece_model_pb2 as schema

from tests.fuzz import pickle_mutations, zip_mutations
from tests.fuzz.target import Mutant, Random, Refused, Target
from tests.fuzz.targets.checkpoints import checkpoint_meaning
from tests.fuzz.targets.tokenizers import bpe_document, write_documents
from voxgraft.checkpoints import find_dangerous_globals
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.run import RunSettings, VocabularySettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import MAX_JSON_BYTES, MAX_LINE_BYTES, MAX_YAML_BYTES
from voxgraft.inspect.check import read_npy_ids
from voxgraft.inspect.legacy import UserOverrides, read_legacy_config, translate_legacy_config
from voxgraft.models import get_family
from voxgraft.models.chatterbox.family import read_cangjie
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.tokenizers import open_tokenizer, read_texts

GIB = 1 << 30
LOADED = "loaded"


def _read_text(path: Path) -> None:
    for sentence in read_texts([path]).sentences:
        for name in ("chatterbox", "indextts2"):
            front = get_family(name).front(None)
            front.prepare(front.clean(sentence), "am")


def _learn(path: Path) -> None:
    """Learn from a text on a small tokenizer."""
    write_documents(path.parent, [("tokenizer.json", bpe_document())])
    base = open_tokenizer(path.parent / "tokenizer.json")
    text_encoder = TextEncoder.of(get_family("chatterbox"), base, None, "am")
    learn_language_pieces(text_encoder, read_texts([path]), VocabularySettings(pieces=50, min_count=2))


def _read_settings(path: Path) -> None:
    parse_settings(RunSettings, read_settings_values(RunSettings, path), path)


def _read_old(path: Path) -> None:
    translate_legacy_config(read_legacy_config(path), UserOverrides())


def _read_tokenizer(path: Path) -> None:
    tokenizer = open_tokenizer(path)
    for text in ("a" * 100_000, "a " * 50_000, "ሰላም" * 20_000):
        tokenizer.encode(text)
        tokenizer.units(text)


def _read_checkpoint(path: Path) -> None:
    checkpoint_meaning(path)


def _read_bare_pickle(path: Path) -> None:
    find_dangerous_globals(path)
    checkpoint_meaning(path)


def _sparse(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return make


def _bytes(make: Callable[[], bytes]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(make())

    return write


def _header(text: bytes, size: int | None = None) -> bytes:
    return (len(text) if size is None else size).to_bytes(8, "little") + text


def _many_empty_tensors(count: int) -> bytes:
    entries = (f'"t{at}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for at in range(count))
    return _header(("{" + ",".join(entries) + "}").encode())


def _torch(pickle: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/version", "3\n")
    return made.getvalue()


def _many_records(count: int) -> bytes:
    return zip_mutations.Archive([zip_mutations.Entry(b"archive/data/%d" % at, b"") for at in range(count)]).render()


def _shared_entries(count: int) -> bytes:
    ops = [b"\x80\x02", b"}", b"(", b"u", b"."]
    pickle_mutations.shared_entries(ops, random.Random(0), count)
    return b"".join(ops)


def _colliding_keys(count: int) -> bytes:
    """Numbers that all have the same hash."""
    prime = 2**61 - 1
    return b"\x80\x02}(" + b"".join(pickle_mutations.number(prime * at) + b"N" for at in range(1, count)) + b"u."


def _pieces(texts: list[str], kind: int, piece_type: int = 1) -> bytes:
    model = schema.ModelProto()
    for name, special in (("<s>", 3), ("</s>", 3), ("<unk>", 2)):
        model.pieces.add(piece=name, score=0.0, type=special)
    model.pieces.add(piece="a", score=-1.0, type=1)
    for at, text in enumerate(texts):
        model.pieces.add(piece=text, score=-float(at % 1000), type=piece_type)
    model.trainer_spec.model_type = kind
    model.trainer_spec.bos_id, model.trainer_spec.eos_id, model.trainer_spec.unk_id = 0, 1, 2
    return bytes(model.SerializeToString())


def _yaml(start: str, repeated: str, end: str = "") -> bytes:
    room = MAX_YAML_BYTES - len(start.encode()) - len(end.encode())
    return (start + repeated * (room // len(repeated.encode())) + end).encode()


def _json(start: str, repeated: str, end: str, share: int = 1) -> bytes:
    return (start + repeated * ((MAX_JSON_BYTES // share - 100) // len(repeated)) + end).encode()


@dataclass(frozen=True, slots=True)
class Bomb:
    """How the file is made, who reads it, and what must come of it."""

    file: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]
    outcome: str


def _bomb(file: str, make: Callable[[], bytes], read: Callable[[Path], object], outcome: str) -> Bomb:
    return Bomb(file, _bytes(make), read, outcome)


LINE = MAX_LINE_BYTES - 1
BOMBS: dict[str, Bomb] = {
    "a line of a gigabyte": Bomb("a.txt", _sparse(GIB), _read_text, "text-line-too-long"),
    "a text of three gigabytes": Bomb("a.txt", _sparse(3 * GIB), _read_text, "file-too-large"),
    "a JSON of three gigabytes": Bomb("t.json", _sparse(3 * GIB), _read_tokenizer, "file-too-large"),
    "a YAML of a gigabyte": Bomb("run.yaml", _sparse(GIB), _read_settings, "file-too-large"),
    "a checkpoint of nothing": Bomb("m.pth", _sparse(3 * GIB), _read_checkpoint, "checkpoint-unknown"),
    "ids of a gigabyte": Bomb("a.npy", _sparse(GIB), read_npy_ids, "file-too-large"),
    "a megabyte of marks": _bomb(
        "a.txt", lambda: ("a" + "\u0315\u0300" * (LINE // 4)).encode()[:LINE], _read_text, "text-marks"
    ),
    "a word of a megabyte": _bomb("a.txt", lambda: b"a" * LINE, _read_text, LOADED),
    "a line of marks inside words": _bomb("a.txt", lambda: ("a՞" * (LINE // 3)).encode(), _read_text, LOADED),
    "a line of spaces": _bomb("a.txt", lambda: b"a" + b" " * (LINE - 2) + b"a", _read_text, LOADED),
    "a line of dots": _bomb("a.txt", lambda: b"a" + b"." * (LINE - 2), _read_text, LOADED),
    "a line of Han": _bomb("a.txt", lambda: "我".encode() * (LINE // 3), _read_text, LOADED),
    "learning from a long word": _bomb("a.txt", lambda: "ሰላ".encode() * (LINE // 30), _learn, LOADED),
    "learning from every character": _bomb(
        "a.txt",
        lambda: "\n".join(
            f"ሰላም {chr(at)}" for at in [*range(0xA0, 0xD800, 29), *range(0x10000, 0x30000, 101)]
        ).encode(),
        _learn,
        LOADED,
    ),
    "brackets": _bomb("t.json", lambda: _json("", "[", ""), _read_tokenizer, "tokenizer-broken"),
    "objects in objects": _bomb("t.json", lambda: _json("", '{"a":', ""), _read_tokenizer, "json-too-deep"),
    "empty objects": _bomb("t.json", lambda: _json('{"a":[', "{},", "{}]}", 4), _read_tokenizer, "tokenizer-broken"),
    "a long number": _bomb("t.json", lambda: _json('{"a":', "9", "}"), _read_tokenizer, "json-broken"),
    "a long fraction": _bomb("t.json", lambda: _json('{"a":0.', "9", "}"), _read_tokenizer, "tokenizer-broken"),
    "escaped halves": _bomb("t.json", lambda: _json('{"a":"', "\\ud800", '"}'), _read_tokenizer, "json-broken"),
    "characters of one code": _bomb(
        "c.json",
        lambda: ("[" + ",".join(f'"{chr(at)}\\tabc"' for at in range(0x20000, 0x30000)) + "]").encode(),
        read_cangjie,
        LOADED,
    ),
    "a flat list": _bomb("run.yaml", lambda: _yaml("texts: [", "a,", "a]"), _read_settings, LOADED),
    "many keys, the last one twice": _bomb(
        "run.yaml",
        lambda: "".join(f"k{at}: 1\n" for at in [*range(12_000), 11_999]).encode(),
        _read_settings,
        "yaml-duplicate-key",
    ),
    "lists in lists": _bomb("run.yaml", lambda: _yaml("texts: ", "["), _read_settings, "yaml-broken"),
    "dashes": _bomb("run.yaml", lambda: _yaml("texts:\n", "- "), _read_settings, "yaml-broken"),
    "questions": _bomb("run.yaml", lambda: _yaml("", "? "), _read_settings, "yaml-broken"),
    "a scalar of escapes": _bomb(
        "run.yaml", lambda: _yaml('language: "', "\\u1234", '"'), _read_settings, "config-value"
    ),
    "a key without end": _bomb("run.yaml", lambda: _yaml('"', "a", '": 1'), _read_settings, "yaml-broken"),
    "colons": _bomb("run.yaml", lambda: _yaml("a: ", ":"), _read_settings, "yaml-broken"),
    "a number with colons": _bomb("run.yaml", lambda: _yaml("a: 1", ":1"), _read_settings, "yaml-broken"),
    "comments": _bomb("run.yaml", lambda: _yaml("", "#\n"), _read_settings, LOADED),
    "documents": _bomb("run.yaml", lambda: _yaml("", "---\n"), _read_settings, "yaml-broken"),
    "anchors": _bomb("run.yaml", lambda: _yaml("a: [", "&a x,", "]"), _read_settings, "yaml-alias"),
    "a header of brackets": _bomb(
        "m.safetensors", lambda: _header(b"{" + b"[" * (15 << 20)), _read_checkpoint, "safetensors-header"
    ),
    "a header of objects": _bomb(
        "m.safetensors", lambda: _header(b'{"a":' * (3 << 20)), _read_checkpoint, "safetensors-header"
    ),
    "a header of an exabyte": _bomb(
        "m.safetensors", lambda: _header(b"{}", 1 << 60), _read_checkpoint, "safetensors-header"
    ),
    "many empty tensors": _bomb("m.safetensors", lambda: _many_empty_tensors(30_000), _read_checkpoint, LOADED),
    "dictionaries": _bomb(
        "m.pth", lambda: _torch(b"\x80\x02" + b"}" * (16 << 20) + b"."), _read_checkpoint, "torch-pickle"
    ),
    "tuples in tuples": _bomb(
        "m.pth", lambda: _torch(b"\x80\x02N" + b"\x85" * 200_000 + b"."), _read_checkpoint, "torch-contents"
    ),
    "a dictionary in itself": _bomb(
        "m.pth", lambda: _torch(b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."), _read_checkpoint, "torch-contents"
    ),
    "shared entries": _bomb("m.pth", lambda: _torch(_shared_entries(40_000)), _read_checkpoint, "torch-contents"),
    "keys with one hash": _bomb("m.pth", lambda: _torch(_colliding_keys(60_000)), _read_checkpoint, "torch-contents"),
    "a long text": _bomb(
        "m.pth",
        lambda: _torch(b"\x80\x02X\x00\x00\xf0\x00" + b"a" * 0xF00000 + b"."),
        _read_checkpoint,
        "torch-contents",
    ),
    "a number of a megabyte": _bomb(
        "m.pth",
        lambda: _torch(b"\x80\x02\x8b\x00\x00\x10\x00" + b"\x7f" * (1 << 20) + b"."),
        _read_checkpoint,
        "torch-contents",
    ),
    "a pickle of names": _bomb(
        "m.pth", lambda: b"\x80\x02" + b"ca\nb\n0" * 100_000 + b".", _read_bare_pickle, "checkpoint-pickle"
    ),
    "many pickles": _bomb("m.pth", lambda: b"\x80\x02N." * 60_000, _read_bare_pickle, "checkpoint-pickle"),
    "many records": _bomb("m.pth", lambda: _many_records(20_000), _read_checkpoint, "torch-archive"),
    "pieces of growing length": _bomb(
        "u.model", lambda: _pieces(["a" * at for at in range(2, 700)], 1), _read_tokenizer, LOADED
    ),
    "unused pieces of growing length": _bomb(
        "b.model", lambda: _pieces(["a" * at for at in range(2, 700)], 2, 5), _read_tokenizer, LOADED
    ),
    "pieces without number": _bomb(
        "u.model", lambda: _pieces([f"a{at}" for at in range(100_000)], 1), _read_tokenizer, LOADED
    ),
    "a piece of a megabyte": _bomb(
        "u.model", lambda: _pieces(["b" * (1 << 20)], 1), _read_tokenizer, "tokenizer-broken"
    ),
    "separators": _bomb("a.sh", lambda: b"python x.py " + b";" * 130_000, _read_old, "old-unknown"),
    "separators with slashes": _bomb("a.sh", lambda: b"cd x; x.py " + b";/" * 65_000, _read_old, "old-unknown"),
    "backslashes": _bomb("a.sh", lambda: b"\\" * 130_000 + b"x", _read_old, "old-unknown"),
    "prompts": _bomb(
        "a.sh", lambda: b"x.py" + b"- " * 65_000 + b"\n" + b"> " * 100 + b"x.py", _read_old, "old-unknown"
    ),
    "doubling variables": _bomb(
        "a.sh",
        lambda: b"A=xxxxxxxx\n" + b"A=$A$A$A$A\n" * 10_000 + b"python train_gpt_v2.py --tokenizer $A",
        _read_old,
        LOADED,
    ),
    "fences": _bomb("a.md", lambda: b"```yaml\n~~~yaml\n" * 8_000, _read_old, "old-unknown"),
    "one fence": _bomb("a.md", lambda: b"```yaml\n" + b"~~~ yml\nx\n" * 12_000, _read_old, "old-unknown"),
    "quotes": _bomb("a.sh", lambda: b"python train_gpt_v2.py --tokenizer " + b"'a'\"b\"" * 20_000, _read_old, LOADED),
    "back quotes": _bomb("a.sh", lambda: b"`python x.py`" * 10_000, _read_old, "old-unknown"),
}


class BombTarget(Target):
    """A fixed list; its seeds are their names."""

    name: ClassVar[str] = "bombs"
    count: ClassVar[int] = len(BOMBS)
    fixed: ClassVar[bool] = True

    def make_seeds(self, folder: Path) -> None:
        """There are none: each file is made where it is read."""

    def numbered(self, seed: int, number: int) -> Mutant:
        name = list(BOMBS)[number % len(BOMBS)]
        return Mutant(name, "made by hand", name.encode())

    def mutant(self, rng: Random) -> Mutant:
        return self.numbered(0, rng.randrange(len(BOMBS)))

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        bomb = BOMBS[seed]
        path = scratch / bomb.file
        bomb.make(path)
        outcome = LOADED
        try:
            bomb.read(path)
        except VoxgraftError as error:
            outcome = error.code
        finally:
            path.unlink()
        assert outcome == bomb.outcome, f"{outcome} came of it, and not {bomb.outcome}"
        if outcome != LOADED:
            raise Refused(outcome)
        return outcome
