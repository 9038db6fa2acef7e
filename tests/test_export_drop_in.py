"""A drop-in: a folder of the base's own size, in which ids that the new language never uses carry its pieces."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from importlib import resources
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.fixtures import Fixtures
from tests.support.run_folders import error_of
from tests.support.shared import shared
from tests.support.synthesis import give_adapter, prompts
from tests.test_export import bits, exported, settings_of
from tools.random_bases import make_random_base
from voxgraft.config.commands import GraftSettings, NewSettings
from voxgraft.config.run import TokenizerSettings
from voxgraft.export.weights import build_drop_in_tokenizer, open_export_source
from voxgraft.graft.command import graft
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.base import build_sequence
from voxgraft.models.chatterbox.family import ChatterboxTextFrontend
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states, load_model, pack_batch
from voxgraft.pipeline.command import create_run
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer

TEXTS = Path(str(resources.files("voxgraft") / "assets" / "demo" / "am.txt"))
SENTENCES = ["ሰላም ለዓለም።", "ቤቱ ትልቅ ነው፣ ውሃውም ቀዝቃዛ", "hello ሰላም"]


def stock_ids(tokenizer: Path, text: str) -> list[int]:
    """What the package makes of a text whose tag is typed in front, where no language is given."""
    front = ChatterboxTextFrontend()
    return open_tokenizer(tokenizer).encode(front.prepare(front.clean(text), None))


def make_run(base: Path, path: Path, pieces: int) -> Path:
    create_run(NewSettings(run=path, base=base, language="am", texts=(TEXTS,)))
    chosen = TokenizerSettings(pieces=pieces)
    graft(GraftSettings(run=path, base=base, language="am", texts=(TEXTS,), tokenizer=chosen))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Narrow, with the published number of rows."""
    folder = tmp_path_factory.mktemp("drop-in") / "base"
    make_random_base("chatterbox", folder, size="small", seed=3)
    return folder


@pytest.fixture(scope="module")
def run(base: Path) -> Path:
    path = make_run(base, base.parent / "run", 40)
    give_adapter(path / "graft", base, seed=1, strength=0.02)
    return path


@pytest.fixture(scope="module")
def dropped(run: Path) -> Path:
    result = exported(run, "--to=chatterbox", "--drop-in")
    assert result.folder == run / "export" / "chatterbox-drop-in"
    return result.folder


@pytest.mark.long
def test_a_drop_in_is_the_base_but_for_reused_rows_and_layers_with_the_adapter_and_needs_no_loader(
    base: Path, run: Path, dropped: Path
) -> None:
    kind = get_family("chatterbox")
    before, after = bits(kind.files(base).checkpoint), bits(kind.files(dropped).checkpoint)
    assert {name: value.shape for name, value in before.items()} == {name: value.shape for name, value in after.items()}
    card = json.loads((dropped / "export.json").read_text(encoding="utf-8"))
    taken = sorted(card["reused_ids"].values())
    assert len(set(taken)) == len(taken) > 300
    kept = np.ones(2454, dtype=bool)
    kept[taken] = False
    tables = {point.tensor for point in kind.graft_points}
    layers = {f"{name}.weight" for name in load_model(kind, kind.files(base)).adapter_layers()}
    assert len(layers) > 4
    for name in before.keys() - tables:
        assert np.array_equal(before[name], after[name]) is (name not in layers), name
    rows, pieces = load_graft(run / "graft").rows, len(kept)
    places = {int(new): old for new, old in card["reused_ids"].items()}
    for name in tables:
        assert len(before[name]) == pieces
        assert np.array_equal(before[name][kept], after[name][kept])
        assert all(np.array_equal(after[name][old], rows[name][new - pieces]) for new, old in places.items())
    assert card["checkpoints"]["drop-in"]["changed"] == len(layers)
    assert not (dropped / "load.py").exists()
    assert not set(taken) & {0, 1, 2, 255}


@pytest.mark.long
def test_the_package_reads_text_of_the_language_there_as_it_was_learnt(run: Path, base: Path, dropped: Path) -> None:
    grown = load_graft(run / "graft").tokenizer
    kind = get_family("chatterbox")
    text_encoder = TextEncoder.of(kind, open_tokenizer(kind.files(base).tokenizer), grown, "am")
    card = json.loads((dropped / "export.json").read_text(encoding="utf-8"))
    places = {int(new): old for new, old in card["reused_ids"].items()}
    tokenizer = kind.files(dropped).tokenizer
    assert open_tokenizer(tokenizer).size == 2454
    assert open_tokenizer(tokenizer).has_control_token("[am]")
    for text in SENTENCES:
        found = stock_ids(tokenizer, f"[am]{prepared_there(dropped, text)}")
        assert found == [places.get(one, one) for one in text_encoder.encode(text, "am")]
        assert open_tokenizer(tokenizer).unknown_id not in found


@pytest.mark.long
def test_a_drop_in_speaks_with_the_very_logits_of_the_merged_checkpoint(
    run: Path, dropped: Path, tmp_path: Path
) -> None:
    exported(run, "--to=chatterbox", "--parts=merged", f"--output={tmp_path / 'pair'}")
    kind = get_family("chatterbox")
    small, large = (load_model(kind, kind.files(folder)) for folder in (dropped, tmp_path / "pair" / "merged"))
    text_encoder = TextEncoder.of(
        kind, open_tokenizer(kind.files(dropped).tokenizer), load_graft(run / "graft").tokenizer, "am"
    )
    for text in SENTENCES:
        typed = f"[am]{prepared_there(dropped, text)}"
        one = speech_logits(small, stock_ids(kind.files(dropped).tokenizer, typed))
        two = speech_logits(large, text_encoder.encode(text, "am"))
        assert torch.equal(one, two)


def prepared_there(folder: Path, text: str) -> str:
    """By the package that is in the export, as its README says."""
    place = folder / "voxgraft_text" / "__init__.py"
    spec = spec_from_file_location("dropped_text", place, submodule_search_locations=[str(place.parent)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
    return str(package.prepared(text))


def speech_logits(model: SpeechModel, ids: list[int]) -> torch.Tensor:
    (prompt,) = prompts(model, (1,))
    batch = pack_batch(model, [build_sequence(model.spec, ids, [5, 17, 900])], [prompt.condition])
    with torch.no_grad():
        return model.speech_logits(compute_hidden_states(model, batch)[-4:])


@pytest.mark.long
def test_an_id_that_only_the_last_of_thousands_of_sentences_needs_is_not_taken(run: Path, tmp_path: Path) -> None:
    source = open_export_source(settings_of(run, "--to=chatterbox"))
    many = [f"{one} {other}" for one in SENTENCES[:1] for other in TEXTS.read_text(encoding="utf-8").splitlines()[:700]]
    many += [f"{one} {other}" for one in ("ቤት", "ውሃ") for other in many]
    room = []
    for name, more in {"without": [], "with": ["ሰላም αβγ"]}.items():
        path = tmp_path / f"{name}.txt"
        path.write_text("\n".join([*many, *more]) + "\n", encoding="utf-8")
        made = build_drop_in_tokenizer(replace(source, texts=(path,)))
        assert made.num_proven_sentences > 2000
        room.append(made.num_reusable_ids)
    assert room[1] == room[0] - len("αβγ")


def test_a_language_that_does_not_fit_is_refused_with_the_numbers(fixtures: Fixtures, tmp_path: Path) -> None:
    narrow = fixtures.trained_run("chatterbox")  # a base of few rows
    error = error_of(lambda: exported(narrow.path, "--to=chatterbox", "--drop-in", f"--output={tmp_path / 'out'}"))
    assert error.code == "drop-in-no-room"
    assert "--tokenizer.pieces" in error.finding.cure
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_published_tokenizer_has_room_for_amharic_with_a_thousand_pieces(base: Path, tmp_path: Path) -> None:
    real = shared("real/chatterbox/grapheme_mtl_merged_expanded_v1.json")
    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    (folder / real.name).chmod(0o644)
    shutil.copyfile(real, folder / real.name)
    run = make_run(folder, tmp_path / "run", 1000)
    made = build_drop_in_tokenizer(open_export_source(settings_of(run, "--to=chatterbox")))
    assert len(made.places) > 1280
    assert made.num_reusable_ids >= len(made.places)
    assert made.num_proven_sentences > 1000
    letters = {piece for piece in made.replaced_pieces if len(piece) == 1 and piece.isascii()}
    assert not letters & set("abcdefghijklmnopqrstuvwxyz0123456789.,?!'-")  # Latin words can still be said
