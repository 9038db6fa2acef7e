"""Whole verbs on damaged inputs, through the command line: an exit code, and an output that is whole or absent.

The command line has the one handler that catches everything; its exit code is a failure here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from tests.fuzz import (
    byte_mutations,
    json_mutations,
    pickle_mutations,
    protobuf_mutations,
    safetensors_mutations,
    text_mutations,
    yaml_mutations,
    zip_mutations,
)
from tests.fuzz.target import Mutant, Random, Refused, Target
from tests.fuzz.targets.settings import CHATTERBOX_CONFIG, COMMANDS, INDEX_CONFIG
from tools.random_bases import RandomBaseSize, make_random_base
from tools.random_bases.indextts2 import RANDOM_BASE_SPEC
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_torch
from voxgraft.cli import run_cli
from voxgraft.core.results import EXIT_BAD_INPUT, EXIT_BUG
from voxgraft.graft.folder import load_graft
from voxgraft.tokenizers import TokenizerAdditions, open_tokenizer

SENTENCES = "ሰላም ለዓለም ነው።\nእንደምን አደሩ ሰላም?\nቡና እፈልጋለሁ ሰላም።\n" * 3
RUN = "base: ../t3\nlanguage: am\ntexts: [../am.txt]\nrows: {init: mean}\ntokenizer: {pieces: 20, min_count: 2}\n"
Damage = Callable[[bytes, Random], tuple[bytes, str]]
OUT = "out"


@dataclass(frozen=True, slots=True)
class Case:
    """One command, the file of its inputs that is damaged, and how its output is opened."""

    words: tuple[str, ...]
    damaged: str
    damage: tuple[Damage, ...]
    output: str = ""
    open_output: Callable[[Path], object] = os.stat


def _in_pickle(data: bytes, rng: Random) -> tuple[bytes, str]:
    made, how = pickle_mutations.edited(zip_mutations.record(data, "data.pkl"), rng)
    return zip_mutations.with_record(data, "data.pkl", made), how


def _read_checkpoint(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        for name in checkpoint.tensors:
            checkpoint.read(name)


T3, T3_TOKENIZER = "t3/t3_mtl23ls_v2.safetensors", "t3/grapheme_mtl_merged_expanded_v1.json"
SAFETENSORS = (safetensors_mutations.lying, safetensors_mutations.edited_header, byte_mutations.damaged)
TORCH = (zip_mutations.lying, zip_mutations.damaged_tail, _in_pickle, _in_pickle, byte_mutations.damaged)
JSON = (json_mutations.edited, json_mutations.edited, byte_mutations.damaged)
MODEL = (protobuf_mutations.edited, protobuf_mutations.damaged_wire, byte_mutations.damaged)
TEXT = (text_mutations.edited, byte_mutations.damaged)
YAML = (yaml_mutations.edited, byte_mutations.damaged)
EXTEND_T3 = ("extend", T3, "--tokenizer", "t3_am.json", "--output", "out/deep/new.safetensors", "--rows.init", "mean")
EXTEND_INDEX = (
    "extend",
    "index/gpt.pth",
    "--tokenizer",
    "index_am.model",
    "--output",
    "out/deep/new.pth",
    "--rows.init",
    "mean",
)
MERGE = ("tokenizer", "merge", "--base", "t3", "--additions", "am.json", "--output", "out/deep/grown.json")
TRAIN = (
    "tokenizer",
    "train",
    "--base",
    "t3",
    "--language",
    "am",
    "--texts",
    "am.txt",
    "--output",
    "out/deep/additions.json",
)
TRAIN_INDEX = (
    "tokenizer",
    "train",
    "--base",
    "index",
    "--language",
    "am",
    "--texts",
    "am.txt",
    "--output",
    "out/deep/additions.json",
)
SHOW = ("tokenizer", "show", "ሰላም the cat", "--base", "t3", "--extended", "t3_am.json", "--language", "am")
SHOW_BASE, SHOW_INDEX = ("show", "t3"), ("show", "index")
NEW = ("new", "out/deep/run", "--language", "am", "--from")
CHECK = ("check", "run", "--checkpoint", "index/gpt.pth", "--training-config", "old.yaml")
CHECK_FILES = (
    "check",
    "--checkpoint",
    "index/gpt.pth",
    "--tokenizer",
    "index_am.model",
    "--training-config",
    "old.yaml",
)
CHECK_PREPARED = ("check", "--prepared", "prepared", "--tokenizer", "index_am.model", "--family", "indextts2")
CHECK_GRAFT = ("check", "grafted")
PROVE = (
    "tokenizer",
    "prove",
    "--base",
    "index",
    "--extended",
    "index_am.model",
    "--language",
    "am",
    "--texts",
    "am.txt",
)

CASES: dict[str, Case] = {
    "extend": Case(EXTEND_T3, T3, SAFETENSORS, "out/deep/new.safetensors", _read_checkpoint),
    "extend a pickle": Case(EXTEND_INDEX, "index/gpt.pth", TORCH, "out/deep/new.pth", _read_checkpoint),
    "extend by a tokenizer": Case(EXTEND_T3, "t3_am.json", JSON, "out/deep/new.safetensors", _read_checkpoint),
    "extend by a model": Case(EXTEND_INDEX, "index_am.model", MODEL, "out/deep/new.pth", _read_checkpoint),
    "extend from a tokenizer": Case(EXTEND_T3, T3_TOKENIZER, JSON, "out/deep/new.safetensors", _read_checkpoint),
    "merge": Case(MERGE, "am.json", JSON, "out/deep/grown.json", open_tokenizer),
    "merge into a tokenizer": Case(MERGE, T3_TOKENIZER, JSON, "out/deep/grown.json", open_tokenizer),
    "train": Case(TRAIN, "am.txt", TEXT, "out/deep/additions.json", TokenizerAdditions.load),
    "train on a model": Case(TRAIN_INDEX, "index/bpe.model", MODEL, "out/deep/additions.json", TokenizerAdditions.load),
    "train on a config": Case(
        TRAIN_INDEX, "index/config.yaml", YAML, "out/deep/additions.json", TokenizerAdditions.load
    ),
    "train with a table": Case(TRAIN, "t3/Cangjie5_TC.json", JSON, "out/deep/additions.json", TokenizerAdditions.load),
    "show": Case(SHOW, "t3_am.json", JSON),
    "show a base": Case(SHOW_BASE, T3, SAFETENSORS),
    "show a tokenizer": Case(SHOW_BASE, T3_TOKENIZER, JSON),
    "show a pickle": Case(SHOW_INDEX, "index/gpt.pth", TORCH),
    "show a config": Case(SHOW_INDEX, "index/config.yaml", YAML),
    "check a checkpoint": Case(CHECK_FILES, "index/gpt.pth", TORCH),
    "check a model": Case(CHECK_FILES, "index_am.model", MODEL),
    "check an old config": Case(CHECK_FILES, "old.yaml", YAML),
    "check a manifest": Case(CHECK_PREPARED, "prepared/train_manifest.jsonl", (json_mutations.edited_lines, *TEXT)),
    "check ids": Case(CHECK_PREPARED, "prepared/text_ids/1.npy", (byte_mutations.damaged,)),
    "new from a config": Case((*NEW, "old.yaml"), "old.yaml", YAML, "out/deep/run/run.yaml"),
    "new from commands": Case((*NEW, "old.sh"), "old.sh", TEXT, "out/deep/run/run.yaml"),
}
SLOW_SHARE = 0.05
SLOW_CASES: dict[str, Case] = {
    "graft": Case(("graft", "run"), "run/run.yaml", YAML, "run/graft", load_graft),
    "graft on a checkpoint": Case(("graft", "run"), T3, SAFETENSORS, "run/graft", load_graft),
    "graft on a tokenizer": Case(("graft", "run"), T3_TOKENIZER, JSON, "run/graft", load_graft),
    "graft from texts": Case(("graft", "run"), "am.txt", TEXT, "run/graft", load_graft),
    "check a pickle": Case(CHECK, "index/gpt.pth", TORCH),
    "check a graft": Case(CHECK_GRAFT, "grafted/graft/graft.json", JSON),
    "check rows": Case(CHECK_GRAFT, "grafted/graft/rows.safetensors", SAFETENSORS),
    "check a card": Case(CHECK_GRAFT, "grafted/card.json", JSON),
    "check a base": Case(CHECK, T3, SAFETENSORS),
    "prove a model": Case(PROVE, "index_am.model", MODEL),
}
"""Those that look at the whole built-in corpus."""


class VerbTarget(Target):
    """Every verb that reads files."""

    name: ClassVar[str] = "verbs"
    count: ClassVar[int] = 240
    cases: ClassVar[dict[str, Case]] = CASES | SLOW_CASES
    least: ClassVar[int] = len(cases)

    def numbered(self, seed: int, number: int) -> Mutant:
        """The first ones go through all cases, so that the smallest campaign has each of them."""
        rng = Random(f"{self.name}:{seed}:{number}")
        return self._damaged(list(self.cases)[number], rng) if number < self.least else self.mutant(rng)

    def make_seeds(self, folder: Path) -> None:
        inputs = folder / "inputs"
        make_random_base("chatterbox", inputs / "t3", size=RandomBaseSize(width=4, layers=1, pieces=640))
        (inputs / "am.txt").write_text(SENTENCES, encoding="utf-8")
        (inputs / "old.yaml").write_text(CHATTERBOX_CONFIG)
        (inputs / "old.sh").write_text(COMMANDS)
        (inputs / "run").mkdir()
        (inputs / "run/run.yaml").write_text(RUN)
        (inputs / OUT).mkdir()
        _make_index_base(inputs / "index")
        with contextlib.chdir(inputs):
            _grow("t3", "am.json", "t3_am.json")
            _grow("index", "index_am.json", "index_am.model")
            _make_prepared(Path("prepared"))
            shutil.copytree("run", "grafted")
            status, _, shown = _run(("graft", "grafted"))
            assert status == 0, shown

    def load(self, folder: Path) -> None:
        self.inputs = folder / "inputs"
        self.seeds = {name: (self.inputs / case.damaged).read_bytes() for name, case in self.cases.items()}

    def pick(self, rng: Random) -> tuple[str, bytes]:
        name = rng.choice(list(SLOW_CASES if rng.random() < SLOW_SHARE else CASES))
        return name, self.seeds[name]

    def mutant(self, rng: Random) -> Mutant:
        return self._damaged(self.pick(rng)[0], rng)

    def _damaged(self, name: str, rng: Random) -> Mutant:
        if rng.random() < 0.03:
            return Mutant(name, "not damaged", self.seeds[name], same=True)
        made, how = rng.choice(self.cases[name].damage)(self.seeds[name], rng)
        return Mutant(name, how, made)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        case = self.cases[seed]
        place = scratch / "inputs"
        shutil.copytree(self.inputs, place, copy_function=os.link)
        (place / case.damaged).unlink()
        (place / case.damaged).write_bytes(data)
        before = _listing(place)
        with contextlib.chdir(place):
            status, code, shown = _run(case.words)
        made = _listing(place) - before
        assert not [name for name in made if name.endswith(".part")], f"unfinished files: {made}"
        if status == EXIT_BUG:
            raise AssertionError(f"the handler for everything was reached: {shown[-3000:]}")
        if status != 0:
            assert not made, f"exit {status}, and yet there is {made}"
        if status == EXIT_BAD_INPUT:
            raise Refused(code)
        assert status in (0, 1), shown
        if status == 0 and case.output:
            case.open_output(place / case.output)
        return status, sorted(made)


def _run(words: tuple[str, ...]) -> tuple[int, str, str]:
    """Exit status, code of the error if there was one, and everything that was printed."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        status = run_cli([*words, "--json"])
    reported = json.loads(stdout.getvalue())
    return status, reported.get("error", {}).get("code", ""), stderr.getvalue()


def _listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _grow(base: str, additions: str, grown: str) -> None:
    texts = ("--texts", "am.txt", "--tokenizer.pieces", "20", "--tokenizer.min-count", "2")
    for words in (
        ("tokenizer", "train", "--base", base, "--language", "am", *texts, "--output", additions),
        ("tokenizer", "merge", "--base", base, "--additions", additions, "--output", grown),
    ):
        status, _, shown = _run(words)
        assert status == 0, shown


def _make_index_base(folder: Path) -> None:
    """The tokenizer that random bases have, with a checkpoint that is much smaller than theirs."""
    folder.mkdir()
    size = RandomBaseSize(width=4, layers=1, pieces=400)
    RANDOM_BASE_SPEC.write_side_files(folder, size)
    (folder / "config.yaml").write_text(json.dumps({**INDEX_CONFIG, "gpt": {"number_text_tokens": size.pieces}}))
    values = np.random.default_rng(0)
    shapes = {
        "text_embedding.weight": (401, 4),
        "text_head.weight": (401, 4),
        "text_head.bias": (401,),
        "gpt.ln.weight": (4,),
    }
    tensors = {name: TensorBytes.of(values.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    with (folder / "gpt.pth").open("wb") as stream:
        write_torch(stream, tensors, wrapper="model", extras={"epoch": 3})


def _make_prepared(folder: Path) -> None:
    """Data as the forks prepare it: a manifest, and the ids of each sentence in a file."""
    (folder / "text_ids").mkdir(parents=True)
    tokenizer = open_tokenizer(Path("index_am.model"))
    lines = []
    for number, text in enumerate(SENTENCES.splitlines()[:3]):
        name = f"text_ids/{number}.npy"
        np.save(folder / name, np.array(tokenizer.encode(text), dtype=np.int32))
        lines.append(json.dumps({"id": number, "text": text, "text_ids_path": name}, ensure_ascii=False))
    (folder / "train_manifest.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


class CommandLineTarget(Target):
    """Command lines of real and odd words, read to the end and not run."""

    name: ClassVar[str] = "command-line"
    count: ClassVar[int] = 200
    _odd: ClassVar[tuple[str, ...]] = (
        *(
            "",
            " ",
            "-",
            "--",
            "---",
            "--=",
            "=",
            "-x",
            "--x",
            "--json=",
            "--json=maybe",
            "--no-json",
            "--texts",
            "--rows.seed",
        ),
        *(
            "--config",
            "x" * 300,
            "x" * 5000,
            "/",
            "..",
            "~",
            "\x00",
            "\ud800",
            "\udcff",
            "é",
            "\x1b[31m",
            "[am]",
            "nan",
            "inf",
        ),
        *("-1", "1e999", "9" * 50, "9" * 5000, "true", "null", "[]", "{}", "am", "AM", "a-b-c", "--rows.noise", "0.5"),
        *("--tokenizer.pieces", "--help", "--version", "tokenizer", "--rows", "--rows.", "--.", "--tokenizer.file="),
    )

    def make_seeds(self, folder: Path) -> None:
        commands = [case.words for case in (*CASES.values(), *SLOW_CASES.values())]
        (folder / "commands.json").write_text(json.dumps(sorted(set(commands)), ensure_ascii=True))

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        commands = json.loads(data)
        words = list(rng.choice(commands))
        everything = sorted({word for command in commands for word in command})
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(words) + 1)
            words[at : at + rng.randrange(2)] = [rng.choice((*self._odd, rng.choice(everything)))]
        return Mutant(seed, "odd words", json.dumps(words).encode())

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        words = json.loads(data)
        if seed == "commands.json" and words and isinstance(words[0], list):
            return "the seed itself"
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.chdir(scratch), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            status = run_cli([*words, "--dry-run"])
        assert status in (0, EXIT_BAD_INPUT), stderr.getvalue()[-3000:]
        assert not list(scratch.iterdir())
        if status == EXIT_BAD_INPUT:
            raise Refused(stderr.getvalue().split()[1].rstrip(":"))
        return status
