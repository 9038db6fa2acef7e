"""Parts for tests of speaking: settings from a command line, and grafts with adapters that act on the built-in base."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import cast

import numpy as np

from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import GraftSettings, NewSettings, SpeakSettings
from voxgraft.graft.command import graft
from voxgraft.graft.folder import GRAFT_CARD_NAME, format_graft_card, hash_adapter_files, read_graft_card
from voxgraft.models import get_family
from voxgraft.models.load import load_model
from voxgraft.nn.adapter import adapter_state, add_adapter, load_adapter_state, write_peft_folder
from voxgraft.pipeline.command import create_run
from voxgraft.synthesis.command import SpeakResult, speak

PIECES = 30
STRENGTH = 0.3
"""Enough for an adapter to change what is said."""


def settings_of(*words: object) -> SpeakSettings:
    """The settings that a command line makes."""
    line = cast(CommandLine, parse_command_line(["speak", *map(str, words)], COMMANDS))
    return cast(SpeakSettings, resolve_settings(line))


def spoken(*words: object) -> SpeakResult:
    return speak(settings_of(*words, "--device=cpu"))


def codes_of(result: SpeakResult) -> dict[str, list[tuple[int, ...]]]:
    """What was said, by the names of the utterances."""
    return {one.utterance.name: [piece.codes for piece in one.pieces] for one in result.said}


def made_graft(folder: Path, base: Path, language: str, seed: int) -> Path:
    """A graft of a language, with an adapter of random values, as a training of a few steps leaves it."""
    texts = Path(str(resources.files("voxgraft") / "assets" / "demo" / f"{language}.txt"))
    run = folder / f"run-{language}"
    create_run(NewSettings(run=run, base=base, language=language, texts=(texts,)))
    line = parse_command_line(["graft", str(run), f"--tokenizer.pieces={PIECES}"], COMMANDS)
    assert graft(cast(GraftSettings, resolve_settings(cast(CommandLine, line)))).exit_code == 0
    give_adapter(run / "graft", base, seed)
    return run / "graft"


def give_adapter(place: Path, base: Path, seed: int, strength: float = STRENGTH) -> None:
    """Put an adapter of random values into a graft."""
    card = read_graft_card(place)
    kind = get_family(card.family)
    model = load_model(kind, kind.files(base))
    add_adapter(model, model.adapter_layers(), rank=4, alpha=4, seed=seed)
    draw = np.random.default_rng(seed)
    state = {
        name: tensor if name.endswith(".down") else tensor.new_tensor(strength * draw.standard_normal(tensor.shape))
        for name, tensor in adapter_state(model).items()
    }
    load_adapter_state(model, state)
    write_peft_folder(place / "adapter", model, base_name=card.family)
    text = format_graft_card(replace(card, adapter=hash_adapter_files(place)))
    (place / GRAFT_CARD_NAME).write_text(text, encoding="utf-8")
