"""Models, front ends, training and benchmarks run where nothing but torch, numpy and safetensors is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ABSENT = (
    "pydantic",
    "rich",
    "yaml",
    "regex",
    "cyclopts",
    "sentencepiece",
    "tokenizers",
    "transformers",
    "uroman",
    "av",
    "soundfile",
    "soxr",
    "jinja2",
    "matplotlib",
)
NEEDED = (
    "voxgraft.models.generate",
    "voxgraft.models.speech_model",
    "voxgraft.models.chatterbox.encoder",
    "voxgraft.models.chatterbox.model",
    "voxgraft.models.indextts2.encoder",
    "voxgraft.models.indextts2.model",
    "voxgraft.models.tiny.model",
    "voxgraft.models.tiny.model",
    "voxgraft.models.tiny.model",
    "voxgraft.nn.adapter",
    "voxgraft.nn.adapter",
    "voxgraft.training.trainer",
    "voxgraft.training.trainer",
    "benchmarks.decode",
    "benchmarks.train_step",
    "recipes.tiny_base.train_base",
    "recipes.human_voices.make",
)


def test_models_and_training_import_on_a_bare_machine() -> None:
    lines = [
        "import sys",
        *(f"sys.modules[{name!r}] = None" for name in ABSENT),
        *(f"import {name}" for name in NEEDED),
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_help_and_families_do_not_import_torch() -> None:
    code = "import sys, voxgraft.cli, voxgraft.models as f; [f.get_family(n) for n in f.family_names()]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr[-2000:]
