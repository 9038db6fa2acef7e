"""Runs for tests of merged mode: a tiny base that ends what it says, a graft on it, sets in the new and in old languages."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.made_language import World, make_world
from tools.random_bases import make_random_base
from voxgraft.config.commands import TrainCommandSettings
from voxgraft.config.run import DataSettings, TrainSettings
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles
from voxgraft.models.load import load_model, save_model

STOP_BIAS = 0.45
"""Makes a random IndexTTS-2 stop after some dozens of codes, now and then before the first."""


def make_stopping_base(folder: Path) -> BaseFiles:
    """A random IndexTTS-2 whose speech comes to an end."""
    silent = make_random_base("indextts2", folder / "silent", size="tiny", seed=1)
    model = load_model(get_family("indextts2"), silent)
    with torch.no_grad():
        model.get_parameter("mel_head.bias")[model.frame.speech_stop] += STOP_BIAS
    shutil.copytree(folder / "silent", folder / "base", ignore=lambda _folder, _names: [silent.checkpoint.name])
    save_model(model, folder / "base" / silent.checkpoint.name)
    return get_family("indextts2").files(folder / "base")


def make_run(family_name: str, folder: Path, base: Path) -> World:
    """A run with a graft, small sets of the new language, and two of English."""
    world = make_world(family_name, folder, base)
    world.write_healthy(clips=32, held_out=6)
    of_base = replace(world, made_from=replace(world.made_from, tokenizer_sha256=world.spelling.base.sha256))
    of_base.write("english", of_base.clips(24, 11, "en"), "replay", "en")
    of_base.write("english-valid", of_base.clips(6, 12, "en"), "valid", "en")
    return world


def copied(world: World, folder: Path) -> Path:
    """The run, to be trained without touching the one that other tests use."""
    shutil.copytree(world.run, folder)
    return folder


def train_settings(world: World, run: Path, **changed: Any) -> TrainCommandSettings:
    """A short training of a run; names of the data settings, of the train settings, or of the command's own."""
    data: dict[str, Any] = {"min_prompt_seconds": 0.1, "self_replay": 0}
    train: dict[str, Any] = {
        "steps": 4,
        "warmup_steps": 1,
        "batch_tokens": 600,
        "save_every": 2,
        "valid_every": 2,
        "log_every": 1,
        "sample_every": 1000,
        "sample_texts": ("am:ሰ",),
        "rank": 4,
        "lr_rows": 5e-3,
        "lr_adapter": 3e-3,
        "lr_backbone": 1e-4,
        "weight_decay": 0.1,
    }
    verb: dict[str, Any] = {}
    for name, value in changed.items():
        place = data if name in DataSettings.model_fields else train if name in TrainSettings.model_fields else verb
        place[name] = value
    return TrainCommandSettings(
        run=run,
        base=world.files.folder,
        language="am",
        data=DataSettings(**data),
        train=TrainSettings(**train),
        **verb,
    )
