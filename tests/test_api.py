"""The Python interface: light to import, it speaks what the commands speak, and every example of its page runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import voxgraft
from tests.support.docs import blocks
from tests.support.fixtures import Fixtures
from tests.support.run_folders import FLAGS, WholeRun, error_of
from tests.support.synthesis import made_graft, spoken
from voxgraft.audio.files import read_audio
from voxgraft.config.run import rewrite_run_yaml
from voxgraft.models import get_family
from voxgraft.nn.rows import GrownEmbedding

AMHARIC, ENGLISH = "ሰላም ለዓለም። ቤቱ ትልቅ ነው", "Take it! Bring me a cup"


@pytest.fixture(scope="module")
def grafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    folder = tmp_path_factory.mktemp("grafts")
    return {language: made_graft(folder, base, language, seed) for seed, language in enumerate(("am", "ti"), 3)}


def test_importing_voxgraft_imports_no_torch_and_names_are_found_whatever_was_imported_before() -> None:
    code = (
        "import sys, voxgraft\n"
        "assert set(voxgraft.__all__) <= {*dir(voxgraft), '__version__'}\n"
        "assert issubclass(voxgraft.Error, Exception) and not hasattr(voxgraft, 'nothing')\n"
        "assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert callable(voxgraft.graft) and 'torch' not in sys.modules\n"
        "import voxgraft.graft.folder\n"  # the package of the same name must not hide the function
        "assert callable(voxgraft.graft) and voxgraft.graft.folder.GRAFT_CARD_NAME\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_built_in_base_speaks_as_the_command_does_whole_and_in_chunks(tmp_path: Path) -> None:
    tts = voxgraft.load("tiny", device="cpu")
    assert tts.languages == ("en", "fr")
    assert "f2" in tts.voices
    wav = tts.speak(ENGLISH, language="en", voice="f2", seed=3, max_seconds=1.0, batch=1)
    spoken(
        *(ENGLISH, "--language=en", "--voice=f2", "--seed=3", "--max-seconds=1", "--batch=1"),
        *("--output", tmp_path / "cup.wav"),
    )
    written, rate = read_audio(tmp_path / "cup.wav")
    assert rate == tts.sample_rate
    assert wav.dtype == np.float32
    np.testing.assert_allclose(wav, written, atol=1e-4)  # the file has 16 bits
    chunks = list(tts.stream(ENGLISH, language="en", voice="f2", seed=3, max_seconds=1.0))
    assert len(chunks) >= 3, "two sentences, and a pause between them"
    assert np.array_equal(np.concatenate(chunks), wav)


def test_mistakes_are_errors_of_voxgraft_with_their_codes(tmp_path: Path) -> None:
    assert error_of(lambda: voxgraft.load(tmp_path / "nowhere")).code == "file-missing"
    tts = voxgraft.load(device="cpu")
    assert error_of(lambda: tts.speak("hello")).code == "speak-language"
    assert error_of(lambda: tts.speak("hello", language="xx")).code == "speak-language"
    assert error_of(lambda: tts.speak("hello", language="en", voice="nobody")).code == "voice-unknown"
    assert error_of(lambda: tts.speak(" ", language="en")).code == "speak-nothing"
    assert error_of(lambda: tts.speak("hello", language="en", temprature=1)).code == "config-unknown-key"
    assert error_of(lambda: tts.speak("hello", language="en", output="x.wav")).code == "config-unknown-key"
    assert error_of(lambda: tts.speak("hello", language="en", seed=-1)).code == "config-value"
    with pytest.raises(voxgraft.Error):
        voxgraft.train(tmp_path)


@pytest.mark.long
def test_grafts_in_a_list_share_one_base_and_each_language_sounds_as_alone(grafts: dict[str, Path]) -> None:
    tts = voxgraft.load([grafts["am"].parent, grafts["ti"]], device="cpu")  # a run and a graft
    assert tts.languages == ("am", "ti", "en", "fr")
    assert (tts.detect_language("ሰላም hello"), tts.detect_language("bonjour"), tts.detect_language("12")) == (None,) * 3
    base, *others = (one.model.get_submodule(one.model.text_embedding_name) for one in tts.models.all[::-1])
    for table in others:
        assert isinstance(table, GrownEmbedding)
        assert table.base_weight.data_ptr() == base.weight.data_ptr()  # type: ignore[operator]
    for source, language, text in (
        (grafts["am"], "am", AMHARIC),
        (grafts["ti"], "ti", AMHARIC),
        ("tiny", "en", ENGLISH),
    ):
        alone = voxgraft.load(source, device="cpu")
        first, second = (one.speak(text, language=language, max_seconds=1.0) for one in (tts, alone))
        assert np.array_equal(first, second), language
    assert voxgraft.load(grafts["am"]).detect_language("ሰላም hello ለዓለም") == "am"
    assert error_of(lambda: voxgraft.load([grafts["am"], grafts["am"]])).code == "speak-grafts"


@pytest.mark.long
def test_an_export_speaks_the_new_language_merged_and_the_others_by_the_base(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    from voxgraft.config.commands import ExportSettings
    from voxgraft.export.command import export

    run = fixtures.trained_run("tiny").copied(tmp_path / "run")
    export(ExportSettings(model=run.path, to="tiny"))
    folder = run.folder.export / "tiny"
    assert error_of(lambda: voxgraft.load(folder)).code == "config-missing"
    exported, base = voxgraft.load(folder, base=run.base, device="cpu"), voxgraft.load(run.base, device="cpu")
    first, second = (one.speak("ha no", language="en", max_seconds=0.5) for one in (exported, base))
    assert np.array_equal(first, second)
    assert len(exported.speak("ሰላም", language="am", max_seconds=0.5))
    shutil.rmtree(folder / "merged")
    assert error_of(lambda: voxgraft.load(folder, base=run.base)).code == "speak-grafts"


def short(**train: object) -> dict[str, dict[str, object]]:
    """Settings of a training of a second, as run.yaml nests them."""
    nested: dict[str, dict[str, object]] = {}
    for key, value in FLAGS.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    nested["train"] |= {**train, "sample_texts": ("am:ሰ",), "tensorboard": False}
    return nested


@pytest.mark.long
def test_graft_and_train_are_the_commands_and_return_their_results(fixtures: Fixtures, tmp_path: Path) -> None:
    made = fixtures.whole_run("tiny")
    run = WholeRun("tiny", made.copied(tmp_path / "run").path, made.base)
    result = voxgraft.train(run.path, **short(steps=2))
    assert run.steps[-1] == 2
    assert result.exit_code == 0
    assert result.to_json()
    shutil.rmtree(run.folder.graft)
    assert voxgraft.graft(run.path, tokenizer={"pieces": 20}).exit_code == 0
    assert run.folder.graft.is_dir()


@pytest.mark.long
def test_every_example_of_the_page_runs(
    fixtures: Fixtures, grafts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All python blocks of docs/synthesis.md, in their order and in one session, in a folder with what the page names."""
    run = fixtures.trained_run("tiny").copied(tmp_path / "runs" / "amharic")
    for language, graft in grafts.items():
        shutil.copytree(graft, tmp_path / "grafts" / language)
    rewrite_run_yaml(run.folder.settings, short())
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {}
    examples = [block for block in blocks("synthesis.md") if block.language == "python" and "openai" not in block.text]
    assert len(examples) == 3
    for block in examples:
        text = block.text.replace('"f2"', '"one"')  # the base of the test's run has other voices
        exec(compile(text, str(block), "exec"), session)
    assert os.path.exists("selam.wav")
