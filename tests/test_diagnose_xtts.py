"""Checkpoints as community scripts for XTTS leave them: each fault gets its verdict, and what can be repaired is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.cli import run_cli
from voxgraft.config.commands import DiagnoseSettings
from voxgraft.core.errors import TokenizerError
from voxgraft.inspect.diagnose import Diagnosis, diagnose_checkpoint
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.formats import BpeJsonTokenizer

State = dict[str, torch.Tensor]
TABLES = ("gpt.text_embedding.weight", "gpt.text_head.weight", "gpt.text_head.bias")
LETTERS = [chr(0x1200 + number) for number in range(23)]
NUM_NEW = len(LETTERS) + 1


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_base("xtts", tmp_path_factory.mktemp("xtts"), size=RandomBaseSize(64, 2, 640)).folder


def read_state(path: Path) -> State:
    return dict(torch.load(path, weights_only=True)["model"])


def grow(base: Path, count: int = NUM_NEW, *, noise: bool = False) -> State:
    """New rows of the base's size, or from N(0, 1) with a bias of zero as the scripts draw them."""
    state, chance = read_state(base / "model.pth"), torch.Generator().manual_seed(3)
    for name in TABLES:
        table = state[name]
        new = torch.randn((count, *table.shape[1:]), generator=chance)
        new = new * (1.0 if noise and table.dim() == 2 else 0.0 if noise else float(table.std()))
        # Learnt rows have something in common.
        state[name] = torch.cat([table, new if noise else new + table[300 : 300 + count].mean(0)])
    return state


def overwrite_last(base: Path, state: State) -> State:
    own = read_state(base / "model.pth")
    for name in TABLES:
        state[name][-1] = own[name][-1]
    return state


def grow_vocabulary(base: Path, *, recount: bool = False, unknown: bool = True) -> dict[str, Any]:
    """The tag and letters behind the base's ids; or all ids renumbered, as if there were no holes."""
    document: dict[str, Any] = json.loads((base / "vocab.json").read_text(encoding="utf-8"))
    vocab = dict(sorted(document["model"]["vocab"].items(), key=lambda pair: int(pair[1])))
    if recount:
        vocab = {piece: number for number, piece in enumerate(vocab)}
    first = max(vocab.values()) + 1
    vocab |= {piece: first + number for number, piece in enumerate(["[am]", *LETTERS])}
    document["model"]["vocab"] = vocab
    added = [{**token, "id": vocab[token["content"]]} for token in document["added_tokens"]]
    document["added_tokens"] = [*added, {**added[-1], "id": vocab["[am]"], "content": "[am]"}]
    if not unknown:
        document["model"]["unk_token"] = None
    return document


def rebuild_vocabulary(base: Path) -> dict[str, Any]:
    """As the usual recipe does it: the model is built again and put into the old file, whose added tokens keep their ids."""
    document = grow_vocabulary(base, recount=True, unknown=False)
    written = json.loads((base / "vocab.json").read_text(encoding="utf-8"))["added_tokens"]
    document["added_tokens"] = [*written, document["added_tokens"][-1]]
    return document


def add_tokens(base: Path) -> dict[str, Any]:
    """Letters and tag by the library's `add_tokens`, which counts on from the number of entries: the base's has holes."""
    tokenizer = Tokenizer.from_file(str(base / "vocab.json"))
    tokenizer.add_tokens(LETTERS)
    tokenizer.add_special_tokens(["[am]"])
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    return document


def cut(base: Path, count: int) -> State:
    """Tables of a vocabulary that somebody took for a smaller one: their last rows are lost."""
    state = read_state(base / "model.pth")
    return {name: tensor[:-count].clone() if name in TABLES else tensor for name, tensor in state.items()}


def without_tables(base: Path) -> State:
    return {name: tensor for name, tensor in read_state(base / "model.pth").items() if name not in TABLES}


def as_trainer(state: State) -> Mapping[str, Any]:
    """What the original's trainer saves: the model inside another one, with its own spectrograms and DVAE."""
    other = {"torch_mel_spectrogram_style_encoder.mel_stats": torch.ones(80), "dvae.codebook.embed": torch.ones(4, 4)}
    model = {f"xtts.{name}": tensor for name, tensor in state.items()} | other
    beside = {"config": {"run_name": "ft", "languages": ["en"]}, "scaler": None, "step": 500, "epoch": 3}
    return {**beside, "model": model, "model_loss": {"train_loss": 2.5, "eval_loss": None}, "date": "June 1"}


def diagnose(base: Path, folder: Path, saved: Mapping[str, Any], vocabulary: Mapping[str, Any]) -> Diagnosis:
    torch.save(saved, folder / "best_model.pth")
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    settings = DiagnoseSettings(
        checkpoint=folder / "best_model.pth", base=base, tokenizer=folder / "vocab.json", report=False
    )
    return diagnose_checkpoint(settings)


Case = Callable[[Path], tuple[Mapping[str, Any], Mapping[str, Any]]]
CASES: dict[str, tuple[str, set[str], Case]] = {
    "sound": ("RESUME", set(), lambda base: ({"model": grow(base)}, grow_vocabulary(base))),
    "rows from N(0, 1)": (
        "RESUME",
        {"new-rows-scale"},
        lambda base: ({"model": grow(base, noise=True)}, grow_vocabulary(base)),
    ),
    "ids renumbered": (
        "START FRESH",
        {"tokenizer-not-grown", "proof-changed"},
        lambda base: ({"model": grow(base, NUM_NEW - 2)}, grow_vocabulary(base, recount=True)),
    ),
    "unknown token lost": (
        "REPAIR",
        {"unknown-token-lost"},
        lambda base: ({"model": grow(base)}, grow_vocabulary(base, unknown=False)),
    ),
    "last row overwritten": (
        "RESUME",
        {"last-row-copied"},
        lambda base: ({"model": overwrite_last(base, grow(base))}, grow_vocabulary(base)),
    ),
    "saved by the trainer": (
        "RESUME",
        {"checkpoint-prefixed"},
        lambda base: (as_trainer(grow(base)), grow_vocabulary(base)),
    ),
    "the whole recipe": (
        "START FRESH",
        {"tokenizer-not-grown", "proof-changed", "unknown-token-lost", "new-rows-scale", "last-row-copied"},
        lambda base: (
            as_trainer(overwrite_last(base, grow(base, NUM_NEW - 2, noise=True))),
            grow_vocabulary(base, recount=True, unknown=False),
        ),
    ),
    "vocabulary rebuilt in the old file": (
        "START FRESH",
        {"tokenizer-duplicate-id", "tokenizer-not-grown", "unknown-token-lost"},
        lambda base: (as_trainer(grow(base, NUM_NEW - 2)), rebuild_vocabulary(base)),
    ),
    "tokens added by the library": (
        "START FRESH",
        {"tokenizer-duplicate-id", "tokenizer-not-grown"},
        lambda base: ({"model": grow(base, NUM_NEW - 2)}, add_tokens(base)),
    ),
    "rows cut off": (
        "REPAIR",
        {"ids-past-table"},
        lambda base: ({"model": cut(base, 60)}, json.loads((base / "vocab.json").read_text(encoding="utf-8"))),
    ),
    "text tables left out": (
        "START FRESH",
        {"tensor-missing"},
        lambda base: (as_trainer(without_tables(base)), grow_vocabulary(base)),
    ),
    "table not extended": (
        "REPAIR",
        {"ids-past-table"},
        lambda base: ({"model": read_state(base / "model.pth")}, grow_vocabulary(base)),
    ),
}


@pytest.mark.long(fast="unknown*")
@pytest.mark.parametrize("name", CASES)
def test_every_fault_of_the_usual_recipe_gets_its_verdict(name: str, base: Path, tmp_path: Path) -> None:
    word, expected, make = CASES[name]
    found = diagnose(base, tmp_path, *make(base))
    codes = {item.code for item in found.findings if item.level != "note"} | (
        {"checkpoint-prefixed"} & {item.code for item in found.findings}
    )
    assert found.verdict.word == word, (found.verdict, codes)
    assert expected <= codes
    if word == "RESUME":
        assert codes <= expected, codes
    if name == "ids renumbered":
        (item,) = (one for one in found.findings if one.code == "tokenizer-not-grown")
        assert "id 632" in item.found
        assert "the new numbering skipped" in item.found
    if name == "text tables left out":
        assert "checkpoint-family" not in codes
        assert found.verdict.sentence.startswith("its text embedding was left out: gpt.text_embedding.weight")


@pytest.mark.long
def test_a_file_with_little_of_the_base_is_another_model(base: Path, tmp_path: Path) -> None:
    names = list(without_tables(base))
    state = {name: tensor for name, tensor in without_tables(base).items() if name in names[: len(names) // 3]}
    found = diagnose(base, tmp_path, {"model": state}, grow_vocabulary(base))
    assert found.verdict.word == "START FRESH"
    assert found.verdict.sentence.startswith("this is another model")
    assert "tensor-missing" not in {item.code for item in found.findings}


def test_every_case_is_in_the_manual_with_its_verdict() -> None:
    page = (Path(__file__).parent.parent / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}
    for name, (word, codes, _) in CASES.items():
        if name != "sound":
            assert f"| {word} |" in rows[name]
            assert any(f"`{code}`" in rows[name] for code in codes)


def test_a_lost_unknown_token_is_named_and_restored_by_the_printed_fix(base: Path, tmp_path: Path) -> None:
    document = grow_vocabulary(base, unknown=False)
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(TokenizerError) as error:  # for everything but judging, the file is broken
        open_tokenizer(path)
    assert error.value.code == "tokenizer-broken"
    judged = open_tokenizer(path, judged=True)
    assert judged.unknown_id == 1
    assert judged.encode("ꡀ") == [1]
    document["model"]["unk_token"] = "[UNK]"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert open_tokenizer(path).encode("ꡀ") == [1]


def test_a_file_whose_added_tokens_get_other_ids_is_refused_unless_it_is_judged(base: Path, tmp_path: Path) -> None:
    """Its ids would mean one piece while it is trained, and another one here."""
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(add_tokens(base)), encoding="utf-8")
    with pytest.raises(TokenizerError) as error:
        open_tokenizer(path)
    assert error.value.code == "tokenizer-duplicate-id"
    library, judged = Tokenizer.from_file(str(path)), open_tokenizer(path, judged=True)
    assert isinstance(judged, BpeJsonTokenizer)
    assert len(judged.moved_tokens) == NUM_NEW
    assert all(library.token_to_id(token) == used for token, (_, used) in judged.moved_tokens.items())
    text = "[am]" + "".join(LETTERS)
    assert judged.encode(text) == library.encode(text).ids


@pytest.mark.long
@pytest.mark.parametrize("extended", [False, True])
def test_rows_that_were_cut_off_come_back_from_the_base(base: Path, tmp_path: Path, *, extended: bool) -> None:
    """With an extended vocabulary, the new pieces get rows as well."""
    own, output = read_state(base / "model.pth"), tmp_path / "model.pth"
    vocabulary = grow_vocabulary(base) if extended else json.loads((base / "vocab.json").read_text(encoding="utf-8"))
    assert diagnose(base, tmp_path, {"model": cut(base, 60)}, vocabulary).verdict.word == "REPAIR"
    words = ["repair", str(tmp_path / "best_model.pth"), "--base", str(base), "--output", str(output)]
    assert run_cli([*words, "--tokenizer", str(tmp_path / "vocab.json"), "--quiet"]) == 0
    written = read_state(output)
    for name in TABLES:
        assert len(written[name]) == len(own[name]) + (NUM_NEW if extended else 0)
        assert torch.equal(written[name][: len(own[name])], own[name])
    assert all(torch.equal(written[name], own[name]) for name in own if name not in TABLES)


@pytest.mark.long
def test_tables_filled_with_small_random_numbers_were_overwritten_and_did_not_shrink(
    base: Path, tmp_path: Path
) -> None:
    state, chance = read_state(base / "model.pth"), torch.Generator().manual_seed(3)
    state |= {name: 1e-4 * torch.randn(state[name].shape, generator=chance) for name in TABLES}
    vocabulary = json.loads((base / "vocab.json").read_text(encoding="utf-8"))
    found = diagnose(base, tmp_path, as_trainer(state), vocabulary)
    codes = {item.code for item in found.findings}
    assert found.verdict.word == "REPAIR"
    assert "base-rows-changed" in codes
    assert "base-rows-shrunk" not in codes


@pytest.mark.long
def test_repair_writes_a_trainers_checkpoint_as_the_original_program_loads_it(base: Path, tmp_path: Path) -> None:
    state = grow(base)
    found = diagnose(base, tmp_path, as_trainer(state), grow_vocabulary(base))
    assert found.verdict.word == "RESUME"
    output = tmp_path / "model.pth"
    words = ["repair", str(tmp_path / "best_model.pth"), "--base", str(base), "--output", str(output)]
    assert run_cli([*words, "--tokenizer", str(tmp_path / "vocab.json"), "--quiet"]) == 0
    written = read_state(output)
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], state[name]) for name in state)
