"""Whole run folders for tests of `train`, made as a user makes them (base, `new`, `graft`, sets, run.yaml), and runs for merged mode."""

from __future__ import annotations

import shlex
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from tests.support.toy_language import World, make_world
from tools.random_bases import make_random_base
from voxgraft.checkpoints.steps import TrainState, list_complete_steps, list_step_folders, load_step
from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import GraftSettings, NewSettings, TrainCommandSettings
from voxgraft.config.run import DataSettings, TrainSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.dataset.shards import DatasetProvenance
from voxgraft.graft.command import graft
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles, Clip
from voxgraft.models.speech_model import load_model, save_model
from voxgraft.pipeline.command import create_run
from voxgraft.pipeline.train import TrainResult, train
from voxgraft.text.encoder import TextEncoder, text_rules_identity
from voxgraft.tokenizers import NewPiece, TokenizerAdditions, open_tokenizer

TEXTS = Path(str(resources.files("voxgraft") / "assets" / "demo" / "am.txt"))
PIECES = 20
FLAGS = {
    "train.steps": 4,
    "train.warmup_steps": 1,
    "train.batch_tokens": 400,
    "train.save_every": 2,
    "train.valid_every": 2,
    "train.log_every": 1,
    "train.sample_every": 1000,
    "train.rank": 4,
    "train.sample_texts": "am:ሰ",
    "train.tensorboard": "false",
    "data.min_prompt_seconds": 0.1,
}
"""A training of a second."""


@dataclass(frozen=True)
class WholeRun:
    """A run that can be trained at once."""

    family_name: str
    path: Path
    base: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    def copied(self, folder: Path) -> WholeRun:
        """The run as it is now, elsewhere; the base stays where it is."""
        shutil.copytree(self.path, folder)
        return replace(self, path=folder)

    @property
    def files(self) -> BaseFiles:
        return get_family(self.family_name).files(self.base)

    @property
    def world(self) -> World:
        """What sets of this run are made with: its tokenizer and base, as they are now."""
        made = load_graft(self.folder.graft)
        base, rules = open_tokenizer(self.files.tokenizer), made.card.rules
        text_encoder = TextEncoder.of(get_family(self.family_name), base, made.tokenizer, "am", rules)
        hashes = made.card.tokenizer_sha256, made.card.base["checkpoint_sha256"]
        made_from = DatasetProvenance(*hashes, {"codec": "made up"}, {}, text_rules_identity(rules))
        return World(self.family_name, self.files, self.path, text_encoder, made_from)

    def write_sets(self) -> None:
        self.world.write_healthy(clips=16, held_out=4)

    def write_train_set(self, clips: Iterable[Clip]) -> None:
        """Another training set; the one before it is removed."""
        shutil.rmtree(self.folder.data_set("train"), ignore_errors=True)
        self.world.write("train", iter(clips))

    # ---- training ---------------------------------------------------------------------------------------------------

    def words(self, *flags: str, **changed: Any) -> list[str]:
        """The command line of a short training; `changed` are keys of train and data with _ for the dot."""
        named = {key.replace("_", ".", 1): value for key, value in changed.items()}
        chosen = {key: value for key, value in {**FLAGS, **named}.items() if value is not None}
        settings = [f"--{key.replace('_', '-')}={value}" for key, value in chosen.items()]
        return ["train", str(self.path), *settings, *flags]

    def settings(self, *flags: str, **changed: Any) -> TrainCommandSettings:
        line = parse_command_line(self.words(*flags, **changed), COMMANDS)
        return cast(TrainCommandSettings, resolve_settings(cast(CommandLine, line)))

    def train(self, *flags: str, **changed: Any) -> TrainResult:
        return train(self.settings(*flags, **changed))

    def refused(self, code: str, *flags: str, **changed: Any) -> VoxgraftError:
        """The error that training ends with; it says everything that an error of ours says, and costs no saved step."""
        before = self.saved()
        error = error_of(lambda: self.train(*flags, **changed))
        assert error.code == code, error
        assert error.finding.found
        assert error.finding.cure
        assert self.saved() == before
        return error

    # ---- what is there ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[int]:
        """Saved steps that are whole."""
        return list_complete_steps(self.folder)

    def saved(self) -> dict[str, bytes]:
        """Every byte of every saved step."""
        files = [path for folder in list_step_folders(self.folder) for path in sorted(folder.path.iterdir())]
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files}

    def state(self, step: int | None = None) -> TrainState:
        return load_step(self.folder, step).state

    def rows(self) -> dict[str, np.ndarray[Any, Any]]:
        """The rows in the graft folder."""
        return load_graft(self.folder.graft).rows

    def journal(self, kind: str | None = None) -> list[dict[str, Any]]:
        lines = RunJournal(self.folder.journal).read()
        return [line for line in lines if kind in (None, line["kind"])]

    def logged(self) -> list[int]:
        """The steps that the journal has."""
        return [line["step"] for line in self.journal("step")]


def make_run(family_name: str, folder: Path, *, seed: int = 1) -> WholeRun:
    """A run with a graft of Amharic onto a tiny random base, and two small sets."""
    base, path = folder / "base", folder / "run"
    make_random_base(family_name, base, size="tiny", seed=seed)
    create_run(NewSettings(run=path, base=base, language="am", texts=(TEXTS,)))
    run = WholeRun(family_name, path, base)
    graft_anew(run, pieces=PIECES)
    run.write_sets()
    return run


def graft_anew(run: WholeRun, *, pieces: int = PIECES, longest: int = 12, noise_seed: int = 0) -> None:
    """`voxgraft graft` on the run, with so many pieces of so many characters, and another noise on the rows."""
    flags = [f"--tokenizer.pieces={pieces}", f"--tokenizer.max-piece-characters={longest}", f"--rows.seed={noise_seed}"]
    _graft(run, *flags)


def grow_tokenizer(run: WholeRun, folder: Path) -> int:
    """Put pieces behind those that the graft has, and make the graft with them; how many."""
    world, tokenizer = run.world, load_graft(run.folder.graft).tokenizer
    spelled = [tokenizer.pieces[one] for one in world.text_encoder.encode(TEXTS.read_text(encoding="utf-8"), "am")]
    # Letters that stand beside each other once everything else is merged.
    pairs = Counter((str(one), str(two)) for one, two in pairwise(spelled) if len(f"{one}{two}") == 2)
    letters = [
        pair for pair, _ in pairs.most_common() if "".join(pair).isalpha() and "".join(pair) not in tokenizer.ids
    ]
    pieces = tuple(NewPiece("".join(pair), pair, score=0.0) for pair in letters[:5])
    data = tokenizer.grown(TokenizerAdditions(run.family_name, "am", tokenizer.kind, tokenizer.sha256, None, pieces))
    file = folder / f"grown{tokenizer.path.suffix}"
    file.write_bytes(data)
    _graft(run, f"--tokenizer.file={file}")
    return len(pieces)


def _graft(run: WholeRun, *flags: str) -> None:
    line = parse_command_line(["graft", str(run.path), *flags], COMMANDS)
    result = graft(cast(GraftSettings, resolve_settings(cast(CommandLine, line))))
    assert result.exit_code == 0, shlex.join(flags)


def error_of(call: Any) -> VoxgraftError:
    """The error of ours that a call ends with."""
    try:
        call()
    except VoxgraftError as error:
        return error
    raise AssertionError("no error was raised")


STOP_BIAS = 0.45
"""Makes a random IndexTTS-2 stop after some dozens of codes, now and then before the first."""


def make_stopping_base(folder: Path) -> BaseFiles:
    """A random IndexTTS-2 whose speech comes to an end."""
    silent = make_random_base("indextts2", folder / "silent", size="tiny", seed=1)
    model = load_model(get_family("indextts2"), silent)
    with torch.no_grad():
        model.get_parameter("mel_head.bias")[model.spec.speech_stop] += STOP_BIAS
    shutil.copytree(folder / "silent", folder / "base", ignore=lambda _folder, _names: [silent.checkpoint.name])
    save_model(model, folder / "base" / silent.checkpoint.name)
    return get_family("indextts2").files(folder / "base")


def make_merged_run(family_name: str, folder: Path, base: Path) -> World:
    """A run with a graft, small sets of the new language, and two of English."""
    world = make_world(family_name, folder, base)
    world.write_healthy(clips=32, held_out=6)
    of_base = replace(world, made_from=replace(world.made_from, tokenizer_sha256=world.text_encoder.base.sha256))
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
