"""`check RUN` says of the training data what `train RUN` refuses: the same codes, before anything is trained."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.support.datasets import make_pairs, write_document
from tests.support.families import PUBLISHED
from tests.support.fixtures import Fixtures
from tests.support.run_folders import PIECES, WholeRun, error_of
from tests.support.runs import flip_bit
from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import CheckSettings
from voxgraft.core.errors import Finding, raise_first_error
from voxgraft.evaluation.in_training import build_sample_sentences
from voxgraft.inspect.check import check, training_data_findings
from voxgraft.inspect.subject import open_check_subject
from voxgraft.models import get_family
from voxgraft.training.setup import build_training_setup

WIDTH = 64
"""Of the tiny bases."""


@pytest.fixture(scope="module")
def made(fixtures: Fixtures) -> dict[str, WholeRun]:
    return {name: fixtures.whole_run(name) for name in PUBLISHED}


@pytest.fixture
def run(made: dict[str, WholeRun], tmp_path: Path) -> WholeRun:
    return made["chatterbox"].copied(tmp_path / "run")


def words(run: WholeRun, *flags: str, **changed: Any) -> list[str]:
    """The command line of a short training, for `check`."""
    return ["check", *run.words(*flags, **changed)[1:], f"--tokenizer.pieces={PIECES}"]


def settings(run: WholeRun, *flags: str, **changed: Any) -> CheckSettings:
    line = parse_command_line(words(run, *flags, **changed), COMMANDS)
    return cast(CheckSettings, resolve_settings(cast(CommandLine, line)))


def looked(run: WholeRun, *flags: str, **changed: Any) -> list[Finding]:
    """What `check` finds in the data; everything else that it looks at is left out, since that takes its time."""
    with open_check_subject(settings(run, *flags, **changed)) as subject:
        assert not subject.findings
        return training_data_findings(subject)


def said(findings: Sequence[Finding], code: str) -> str:
    return "\n".join(item.found for item in findings if item.code == code)


def assert_both_refuse(run: WholeRun, code: str, *flags: str, **changed: Any) -> str:
    """`check` has it as an error, and `train` ends with it, or with another one of `check`; gives what `check` says."""
    findings = looked(run, *flags, **changed)
    errors = [item.code for item in findings if item.level == "error"]
    assert code in errors

    def start() -> None:
        kind, asked = get_family(run.family_name), run.settings(*flags, **changed)
        setup = build_training_setup(run.folder, asked, kind, run.files)
        raise_first_error(setup.findings)
        build_sample_sentences(setup.text_encoder, asked.train.sample_texts, (), 0)

    assert error_of(start).code == errors[0]
    return said(findings, code)


@pytest.mark.long
def test_a_run_that_can_be_trained_passes_and_nothing_is_loaded_that_only_training_needs(run: WholeRun) -> None:
    line = words(run, train_sample_texts=None)
    program = f"import sys; from voxgraft.cli import run_cli; code = run_cli({line!r}); sys.exit(9 if 'torch' in sys.modules else code)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "training data" in next(line for line in done.stdout.splitlines() if line.startswith("checked:"))
    assert "0 errors, 0 warnings" in done.stdout


@pytest.mark.parametrize("name", PUBLISHED)
def test_healthy_data_is_no_matter_for_a_warning(made: dict[str, WholeRun], name: str) -> None:
    assert {item.code for item in looked(made[name])} == {"rows-unused"}


def test_check_and_train_end_with_the_same_error(run: WholeRun) -> None:
    shutil.rmtree(run.folder.data_set("valid"))
    result = check(settings(run))
    error = run.refused("set-missing")
    assert result.exit_code == 1
    assert [item for item in result.findings if item.code == "set-missing"] == [error.finding]


def test_a_run_without_any_data_yet_is_reported_in_a_note(run: WholeRun) -> None:
    shutil.rmtree(run.folder.data)
    findings = looked(run)
    assert [(item.code, item.level) for item in findings] == [("set-missing", "note")] * 2
    assert str(run.folder.data / "train") in findings[0].found
    assert str(run.folder.data / "valid") in findings[1].found
    run.refused("set-missing")


def test_all_sets_that_are_missing_are_named_at_once(run: WholeRun, tmp_path: Path) -> None:
    shutil.rmtree(run.folder.data_set("valid"))
    both = assert_both_refuse(run, "set-missing", f"--data.train={tmp_path / 'nowhere'}")
    assert str(tmp_path / "nowhere") in both
    assert str(run.folder.data_set("valid")) in both


def test_a_stale_and_a_foreign_set_are_refused_by_both(run: WholeRun) -> None:
    for key, code in (("tokenizer_sha256", "set-stale"), ("base_sha256", "set-foreign")):
        world = run.world
        strange: dict[str, Any] = {key: "0" * 64}
        other = replace(world, made_from=replace(world.made_from, **strange))
        other.write("train", other.clips(8, 3))
        assert f"made_from.{key}" in assert_both_refuse(run, code)


@pytest.mark.parametrize(
    ("made_for", "given_as"), [("replay", "train"), ("valid", "train"), ("train", "valid"), ("replay", "valid")]
)
def test_a_set_that_was_made_for_another_use_is_refused(run: WholeRun, made_for: Any, given_as: Any) -> None:
    world = run.world
    world.write("other", world.clips(8, 3), made_for)
    flag = f"--data.{given_as}={run.folder.data_set('other')}"
    found = assert_both_refuse(run, "set-role", flag)
    assert f"data.{made_for}" in found
    assert f"data.{given_as}" in found
    (item,) = [item for item in looked(run, flag) if item.code == "set-role"]
    assert f"data.{made_for}" in item.cure


def test_what_is_learnt_from_is_not_held_out(run: WholeRun) -> None:
    path = run.folder.data_set("same") / "set.json"
    shutil.copytree(run.folder.data_set("train"), path.parent)
    write_document(path.parent, {**json.loads(path.read_text()), "role": "valid"})
    reported = assert_both_refuse(run, "set-not-held-out", f"--data.valid={path.parent}")
    assert reported == "same is held out, but has the same clips as train"


def mixed(run: WholeRun, **changed: Any) -> None:
    """A held-out set of the run with two clips of its training set in it, changed in what people know of them."""
    world = run.world
    twins = islice(world.clips(16, 1), 2)
    renamed = (replace(one, id=f"other-{one.id}", **changed) for one in twins)
    world.write("valid", chain(world.clips(4, 2), renamed), "valid")


def test_held_out_clips_that_are_also_learnt_from_are_counted_named_and_refused(run: WholeRun) -> None:
    """Under another id, speaker, recording and text: what they sound like tells."""
    mixed(run, speaker="somebody", recording="another", text="")
    reported = assert_both_refuse(run, "clips-not-held-out")
    pairs = "other-clip1-00000 is the same as train/clip1-00000, other-clip1-00001 is the same as train/clip1-00001"
    assert reported == f"2 of 6 held-out clips are also in training: {pairs}"


def test_clips_that_were_encoded_again_are_known_by_text_and_recording(run: WholeRun) -> None:
    world = run.world
    twins = islice(world.clips(16, 1), 2)
    again = (replace(one, codes=np.asarray(one.codes)[::-1].copy()) for one in twins)
    world.write("valid", chain(world.clips(4, 2), again), "valid")
    assert assert_both_refuse(run, "clips-not-held-out").startswith("2 of 6 held-out clips are also in training")


def test_a_text_that_is_said_again_in_another_recording_is_a_note(run: WholeRun) -> None:
    world = run.world
    twin = next(world.clips(16, 1))
    said_again = replace(twin, recording="another", codes=np.asarray(twin.codes)[::-1].copy())
    world.write("valid", chain(world.clips(7, 2), [said_again]), "valid")
    (item,) = [item for item in looked(run) if item.code == "texts-not-held-out"]
    assert item.level == "note"
    assert item.found.startswith("1 of 8 held-out clips have a text that is also in training: clip1-00000 has the text")
    assert not [item for item in looked(run) if item.level == "error"]


def test_an_overlap_is_a_warning_for_who_asks_for_it(run: WholeRun) -> None:
    mixed(run)
    (item,) = [item for item in looked(run, data_allow_overlap="true") if item.code == "clips-not-held-out"]
    assert item.level == "warning"
    assert run.train(data_allow_overlap="true").outcome.step == 4


@pytest.mark.long(fast="0.6-train")
@pytest.mark.parametrize("name", ["train", "valid"])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_flipped_byte_of_a_shard_is_found_by_check_and_stops_train(run: WholeRun, name: str, share: float) -> None:
    path = run.folder.data_set(name) / "shard-00000.safetensors"
    flip_bit(path, int(share * path.stat().st_size))
    (item,) = [item for item in looked(run) if item.level == "error"]
    assert (item.code, item.where) == ("set-damaged", str(path))
    error = error_of(lambda: run.train())
    assert (error.code, error.finding.where) == ("set-damaged", str(path))
    assert "voxgraft prepare" in error.finding.cure
    assert run.steps in ([], [0])  # nothing that was trained on it; the first step may be saved before it is found


@pytest.mark.parametrize(
    ("changed", "code"),
    [({"train_batch_tokens": 70}, "step-too-small"), ({"train_microbatch_tokens": 64}, "pack-too-small")],
)
def test_steps_and_packs_that_are_too_small_are_refused_before_replay_is_made(
    run: WholeRun, changed: dict[str, Any], code: str
) -> None:
    """This base never ends what it says, so that making replay would be another error."""
    error = error_of(lambda: run.train(train_mode="merged", data_self_replay=8, **changed))
    assert error.code == code
    assert not run.folder.data_set("self-replay").exists()
    assert code in [item.code for item in looked(run, train_mode="merged", data_self_replay=8, **changed)]


def drop_codes(folder: Path) -> str:
    next(iter((folder / "codes").glob("*.npy"))).unlink()
    return "pairs-files"


def break_line(folder: Path) -> str:
    manifest = folder / "train_pairs.jsonl"
    manifest.write_text(manifest.read_text() + '{"id": "x"}\n')
    return "pairs-line"


def empty(folder: Path) -> str:
    (folder / "train_pairs.jsonl").write_text("\n")
    return "pairs-empty"


@pytest.mark.parametrize("spoil", [drop_codes, break_line, empty])
def test_manifests_of_the_forks_are_looked_at(
    made: dict[str, WholeRun], tmp_path: Path, spoil: Callable[[Path], str]
) -> None:
    run = made["indextts2"].copied(tmp_path / "run")
    pairs = make_pairs(tmp_path / "pairs", clips=12, lengths=[40 + 5 * at for at in range(12)], width=WIDTH, batch=4)
    flag = f"--data.train={pairs.manifest}"
    healthy = looked(run, flag)
    assert "error" not in {item.level for item in healthy}
    assert said(healthy, "pairs-padded")
    assert_both_refuse(run, spoil(pairs.manifest.parent), flag)


def test_one_manifest_for_both_uses_is_refused(made: dict[str, WholeRun], tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path / "pairs", clips=12, lengths=[60] * 12, width=WIDTH)
    flags = (f"--data.train={pairs.manifest}", f"--data.valid={pairs.manifest}")
    assert_both_refuse(made["indextts2"], "set-not-held-out", *flags)


def test_a_step_too_small_for_the_longest_clip_is_refused_by_both(run: WholeRun) -> None:
    assert_both_refuse(run, "step-too-small", train_batch_tokens=64)


def test_steps_and_epochs_together_are_refused_by_both(run: WholeRun) -> None:
    assert "train.epochs" in assert_both_refuse(run, "config-value", train_epochs=2)


def test_a_sentence_in_a_language_that_nobody_speaks_is_refused_by_both(run: WholeRun) -> None:
    assert "'xx'" in assert_both_refuse(run, "sample-text", train_sample_texts="xx:hello")


def test_a_warm_up_longer_than_the_run_is_a_warning(run: WholeRun) -> None:
    findings = looked(run, train_warmup_steps=500)
    reported = said([item for item in findings if item.level == "warning"], "warmup-too-long")
    assert reported == "the warm-up has 500 steps, but the run has 4; the learning rates reach 0.8% of their peak"
    assert not said(looked(run, train_warmup_steps=4), "warmup-too-long")


def test_merged_mode_without_protection_is_reported(run: WholeRun) -> None:
    alone = looked(run, train_mode="merged", data_self_replay=0)
    assert {item.code for item in alone if item.level == "warning"} == {"replay-missing", "retention-unmeasured"}
    assert {item.code for item in looked(run, train_mode="merged")} == {"rows-unused"}
