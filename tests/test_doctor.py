"""`voxgraft doctor`: a report that never fails for what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.run_folders import error_of
from voxgraft.inspect.show import describe_abilities, missing_requirements
from voxgraft.models.speech_model import choose_device, choose_dtype


def run_doctor(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "voxgraft", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)


@pytest.mark.long
def test_it_reports_machine_devices_packages_and_abilities() -> None:
    done = run_doctor("--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["packages"]["torch"]
    assert [one["kind"] for one in found["devices"]][-1] == "cpu"
    assert {one["what"]: one["answer"] for one in found["abilities"]}["train the tiny base"] == "yes"
    assert str(Path.home()) not in done.stdout  # it is made to be pasted into an issue


def test_a_torch_that_cannot_be_imported_is_reported_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.99: cannot open shared object file')")
    root = str(Path(__file__).parent.parent)
    done = run_doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{root}")
    assert done.returncode == 1
    assert "libcudart.so.99" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("memory", "gated", "full"), [(6e9, "no", "no"), (12e9, "yes", "no"), (80e9, "yes", "yes")])
def test_a_card_can_train_what_fits_into_its_memory(memory: float, gated: str, full: str) -> None:
    card = {"name": "a card", "kind": "cuda:0", "memory": memory, "note": ""}
    answers = [one["answer"] for one in describe_abilities([card])]
    assert answers[1:3] == [gated, full]


def test_an_extra_names_only_the_packages_that_are_not_installed() -> None:
    assert missing_requirements("parquet") == []
    assert missing_requirements("no-such-extra") == []


def test_an_apple_gpu_speaks_and_trains_nothing_large() -> None:
    devices = [{"name": "Apple GPU", "kind": "mps", "memory": None, "note": ""}]
    answers = {one["what"]: (one["answer"], one["why"]) for one in describe_abilities(devices)}
    assert answers["speak with any base"] == ("yes", "with --device mps (not tested)")
    assert answers["train the whole backbone"][0] == "no"


def test_devices_are_named_and_refused_where_there_are_none() -> None:
    for name in ("mps", "xpu", "gpu", "cuda:99"):
        assert error_of(lambda name=name: choose_device(name)).code == "device"
    assert choose_device("cpu") == "cpu"
    assert choose_dtype(None, "mps") == choose_dtype("float32", "mps") == torch.float32
    assert error_of(lambda: choose_dtype("bf16", "mps")).code == "device"


@pytest.mark.long
def test_speaking_imports_nothing_that_only_cuda_has() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"  # an import of it fails
        "import voxgraft\n"
        "wav = voxgraft.load('tiny', device='cpu').speak('a cup', language='en', max_seconds=0.5)\n"
        "from voxgraft.synthesis.batching import DecodeBatch\n"
        "assert len(wav) and not {'voxgraft.nn.decode_kernels', 'voxgraft.nn.training_kernels'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
