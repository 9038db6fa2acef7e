"""The tiny family: voices by name, a codec at both ends, told from Chatterbox by its tensors; and how its base is trained."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import voxgraft
from recipes.tiny_base.base_batches import buckets, concatenate_examples, order
from recipes.tiny_base.base_steps import BaseSettings, RowContext, Trainer, row_losses
from recipes.tiny_base.corpus import MAKE_COMMAND
from recipes.tiny_base.make import LISTENER_CARD
from recipes.tiny_base.tokenizer import Speller
from recipes.tiny_base.train_base import TOY, toy_examples, train_on, write_card
from tests.contract.test_encoders import clip
from tools.random_bases import make_random_base
from tools.random_bases.tiny import build_tokenizer_json
from voxgraft.checkpoints import open_checkpoint
from voxgraft.config.commands import CheckSettings, NewSettings, ShowSettings
from voxgraft.config.run import load_command_settings
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import compute_sha256
from voxgraft.core.run import RunFolder
from voxgraft.graft.rows import detect_checkpoint_family
from voxgraft.inspect.show import show_base
from voxgraft.models import detect_family, get_family
from voxgraft.models.base import BaseFiles, build_sequence
from voxgraft.models.generate import GenerationPrompt, generate_codes
from voxgraft.models.speech_model import compute_losses, load_model, pack_batch
from voxgraft.models.tiny.family import TinyTextFrontend
from voxgraft.models.tiny.model import TinyClipEncoder, TinyT3, load_codec
from voxgraft.pipeline.command import create_run
from voxgraft.tokenizers import load_proof_corpus, open_tokenizer

TINY = get_family("tiny")
SAMPLES_A_CODE = 640


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> BaseFiles:
    return make_random_base("tiny", tmp_path_factory.mktemp("base") / "base")


@pytest.fixture
def copied(files: BaseFiles, tmp_path: Path) -> Path:
    return Path(shutil.copytree(files.folder, tmp_path / "base"))


# ---- which base it is ----------------------------------------------------------------------------------------------


def test_a_tiny_folder_is_no_chatterbox_and_a_chatterbox_folder_no_tiny_one(files: BaseFiles, tmp_path: Path) -> None:
    other = make_random_base("chatterbox", tmp_path / "chatterbox")
    assert (detect_family(files.folder).name, detect_family(other.folder).name) == ("tiny", "chatterbox")
    for folder, wrong in ((files.folder, "chatterbox"), (other.folder, "tiny")):
        with pytest.raises(FileError):
            get_family(wrong).files(folder)


def test_a_checkpoint_by_itself_is_reported_by_its_tensors(files: BaseFiles, tmp_path: Path) -> None:
    other = make_random_base("chatterbox", tmp_path / "chatterbox")
    for path, name in ((files.checkpoint, "tiny"), (other.checkpoint, "chatterbox")):
        with open_checkpoint(path) as checkpoint:
            assert detect_checkpoint_family(checkpoint, None).name == name
        assert show_base(ShowSettings(base=path, fingerprint=False)).family == name


@pytest.mark.parametrize("name", ["t3.safetensors", "tokenizer.json", "voices.json"])
def test_a_missing_file_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(FileError, match=name.replace(".", r"\.")):
        TINY.files(copied)


def test_the_word_tiny_means_the_built_in_base(tmp_path: Path) -> None:
    settings = NewSettings(run=tmp_path / "run", base=Path("tiny"), language="am")
    folder = Path(voxgraft.__file__).parent / "assets" / "tiny"
    if folder.is_dir():
        create_run(settings)
        assert 'base: "tiny"' in (tmp_path / "run" / "run.yaml").read_text(encoding="utf-8")
        assert load_command_settings(CheckSettings, RunFolder(tmp_path / "run")).base == folder == TINY.shipped_folder()
        return
    with pytest.raises(FileError) as caught:
        create_run(settings)
    assert caught.value.code == "base-not-shipped"


def test_a_folder_of_that_name_comes_before_the_built_in_base(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.rename(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    made = create_run(NewSettings(run=Path("run"), base=Path("tiny"), language="am"))
    assert made.settings.base == Path("../tiny")


# ---- text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "language", "prepared"),
    [
        ("Hello,  World!", "en", "[en]hello,[SPACE]world!"),
        ("L’Été — c'est “là”; oui", "fr", "[fr]l'été[SPACE]-[SPACE]c'est[SPACE]là,[SPACE]oui"),
        ("ሰላም። እንዴት ነህ?", None, "ሰላም።[SPACE]እንዴት[SPACE]ነህ?"),
        ("a [en] & <b> → c", None, "a[SPACE]en[SPACE]b[SPACE]c"),
        ("e\u0301te\u0301", "fr", "[fr]été"),
    ],
)
def test_text_is_brought_into_lower_case_letters_and_simple_punctuation(
    text: str, language: str | None, prepared: str
) -> None:
    front = TinyTextFrontend()
    assert front.prepare(front.clean(text), language) == prepared


def test_the_recipe_spells_as_the_tokenizer_library_does(files: BaseFiles) -> None:
    library = open_tokenizer(files.tokenizer)
    speller = Speller(json.loads(files.tokenizer.read_text(encoding="utf-8")))
    front, merged = TinyTextFrontend(), 0
    sentences = [(code, sentence) for code, sentence in load_proof_corpus() if code in TINY.languages]
    assert len(sentences) > 50
    for code, sentence in sentences:
        ids = speller.ids(sentence, code)
        assert ids == library.encode(front.prepare(front.clean(sentence), code))
        merged += sum(len(library.pieces[token] or "") == 2 for token in ids)
    assert merged > 100


def test_pieces_that_occur_too_rarely_are_left_out() -> None:
    vocabulary = build_tokenizer_json(["aba[SPACE]aba"] * 9 + ["x"], 40, min_count=5)["model"]["vocab"]
    assert {"aba", "[en]"} <= set(vocabulary)
    assert "x" not in vocabulary
    assert len(vocabulary) == 40


# ---- voices, codes and sound ---------------------------------------------------------------------------------------


def test_a_voice_that_is_not_in_the_table_is_refused_with_the_names_that_are(files: BaseFiles) -> None:
    with pytest.raises(ConfigError, match="one of one, two, three, four") as caught:
        TINY.voice(files, "thre")
    assert caught.value.code == "voice-unknown"
    assert "`three`" in caught.value.finding.cure


def test_families_without_voices_of_their_own_say_so(tmp_path: Path) -> None:
    other = make_random_base("chatterbox", tmp_path / "chatterbox")
    kind = get_family("chatterbox")
    assert kind.vocoder(other) is None
    with pytest.raises(ConfigError) as error:
        kind.voice(other, "one")
    assert error.value.code == "voice-unknown"


def test_clips_have_the_speaker_that_was_named(files: BaseFiles) -> None:
    encoder = TINY.encoder(files, load_model(TINY, files))
    assert isinstance(encoder, TinyClipEncoder)
    waves = [clip(1.0, 0), clip(0.6, 1)]
    found = encoder.encode(waves, ["three", "one"])
    assert [one.voice["speaker"].tolist() for one in found] == [[2], [0]]
    assert [len(one.codes) for one in found] == [25, 15]
    with pytest.raises(VoxgraftError, match="one, two, three, four"):
        encoder.encode(waves, ["three", "nobody"])


def test_codes_become_sound_and_each_utterance_sounds_as_if_alone(files: BaseFiles) -> None:
    vocoder = TINY.vocoder(files)
    assert vocoder is not None
    voices = [TINY.voice(files, name) for name in ("one", "four", "one", "two")]
    codes: list[list[int]] = [[5, 6, 7], [5, 6, 7], [], [2559] * 9]
    waves = vocoder.sound(codes, voices)
    assert [len(wave) for wave in waves] == [SAMPLES_A_CODE * len(own) for own in codes]
    assert all(np.isfinite(wave).all() and wave.dtype == np.float32 for wave in waves)
    assert not np.array_equal(waves[0], waves[1])
    assert np.array_equal(vocoder.sound(codes[:1], voices[:1])[0], waves[0])


def test_a_table_of_other_speakers_than_the_codecs_is_refused(copied: Path) -> None:
    table = json.loads((copied / "voices.json").read_text())
    (copied / "voices.json").write_text(json.dumps({**table, "speakers": ["two", "one", "three", "four"]}))
    with pytest.raises(FileError) as caught:
        load_codec(copied)
    assert caught.value.code == "voices-broken"


@pytest.mark.parametrize("speakers", [[], ["one", "one"], "one", [1, 2], None])
def test_a_table_that_names_nobody_or_one_twice_is_refused(copied: Path, speakers: object) -> None:
    table = json.loads((copied / "voices.json").read_text())
    (copied / "voices.json").write_text(json.dumps({**table, "speakers": speakers}))
    with pytest.raises(FileError) as caught:
        TINY.voices(TINY.files(copied))
    assert caught.value.code == "voices-broken"


# ---- the recipe ----------------------------------------------------------------------------------------------------


def toy_speller(settings: BaseSettings = TOY) -> tuple[Speller, TinyT3]:
    front = TinyTextFrontend()
    texts = [front.prepare(front.clean(example.text), None) for example in toy_examples(40, 0)]
    document = build_tokenizer_json(texts, settings.size.text_rows)
    torch.manual_seed(0)
    return Speller(document), TinyT3(settings.size)


@torch.no_grad()
def test_rows_of_fixed_length_have_the_losses_of_a_pack() -> None:
    speller, model = toy_speller()
    examples = toy_examples(40, 0) + concatenate_examples(toy_examples(40, 0), 0.3, 0)
    sums = torch.zeros(2)
    for bucket in buckets(examples, speller, TOY.size, 1_000):
        context = RowContext(len(bucket), bucket.rows.ids.shape[1], torch.device("cpu"))
        sums += torch.stack(row_losses(model, bucket.rows, context))
    laid_out = [build_sequence(model.spec, speller.ids(one.text, one.language), one.codes) for one in examples]
    conditions = [np.array([one.speaker]) for one in examples]
    packed = compute_losses(model, pack_batch(model, laid_out, conditions))
    assert sums.tolist() == pytest.approx([float(packed.text_sum), float(packed.speech_sum)], rel=1e-5)


def test_an_epoch_shows_almost_every_utterance_once_and_the_next_in_another_order() -> None:
    speller, _ = toy_speller()
    kept = buckets(toy_examples(200, 1), speller, TOY.size, 1_000)
    batches = sum(len(bucket) // bucket.batch for bucket in kept)
    source = order(kept, seed=3)
    epochs = [[next(source) for _ in range(batches)] for _ in range(2)]
    for epoch in epochs:
        seen = [(bucket, int(place)) for bucket, places in epoch for place in places]
        assert len(set(seen)) == len(seen) >= 150
    assert [shelf_and_first(one) for one in epochs[0]] != [shelf_and_first(one) for one in epochs[1]]


def shelf_and_first(batch: tuple[int, torch.Tensor]) -> tuple[int, int]:
    return batch[0], int(batch[1][0])


def test_training_leaves_neither_dropout_nor_another_name_in_the_model() -> None:
    speller, model = toy_speller()
    names = list(model.state_dict())
    settings = replace(TOY, steps=2, dropout=0.5)
    trainer = Trainer(model, buckets(toy_examples(40, 0), speller, TOY.size, 1_000), settings)
    before = model.speech_head.weight.detach().clone()
    assert trainer.run(dict, 60.0, lambda _line: None) == 2
    assert list(model.state_dict()) == names
    assert not torch.equal(model.speech_head.weight, before)
    assert not any(module._forward_hooks for module in model.modules())


def test_what_ships_says_from_what_and_by_which_command_it_was_made(tmp_path: Path) -> None:
    shipped = TINY.shipped_folder()
    assert shipped is not None
    made = write_card(tmp_path / "base", {})
    cards = {
        folder: json.loads((folder / "card.json").read_text(encoding="utf-8"))
        for folder in (shipped, shipped.parent / "listener")
    }
    assert cards[shipped]["from"] == made["from"]
    for folder, card in cards.items():
        assert card["command"] == made["command"] == MAKE_COMMAND
        assert card["from"]
        for name, one in card["files"].items():
            assert compute_sha256(folder / name) == one["sha256"], name
    assert LISTENER_CARD.items() <= cards[shipped.parent / "listener"].items()


@pytest.mark.long
def test_a_trained_base_is_a_base_that_says_what_it_learnt(tmp_path: Path) -> None:
    """Languages of three letters are learned in seconds, and what was held out is then spoken code by code."""
    examples = toy_examples(500, 0, "abc")
    settings = replace(TOY, steps=200, seconds=120.0, batch_positions=600, joined_share=0.0, spoiled=0.0)
    card = write_card(
        tmp_path / "base", train_on(examples[8:], examples[:8], ("one", "two"), tmp_path / "base", settings)
    )
    files = TINY.files(tmp_path / "base")
    assert card["trained"]["steps"] == 200
    assert set(card["files"]) == {"t3.safetensors", "tokenizer.json", "voices.json"}
    model = load_model(TINY, files)
    assert show_base(ShowSettings(base=files.folder)).exit_code == 0
    library, front = open_tokenizer(files.tokenizer), TinyTextFrontend()
    prompts = [
        GenerationPrompt(
            library.encode(front.prepare(front.clean(one.text), one.language)),
            TINY.condition(TINY.voice(files, ("one", "two")[one.speaker])),
        )
        for one in examples[:8]
    ]
    spoken = generate_codes(model, prompts, replace(TINY.upstream_sampling(), temperature=0.0))
    right = sum(said.codes == one.codes.tolist() for said, one in zip(spoken, examples, strict=False))
    assert right >= 6
