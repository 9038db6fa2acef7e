"""Small models with random weights that speak, one of each family, and grafts with adapters on the built-in base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from tools.random_bases import random_condition
from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import GraftSettings, NewSettings, SpeakSettings
from voxgraft.graft.command import graft
from voxgraft.graft.folder import GRAFT_CARD_NAME, format_graft_card, hash_adapter_files, read_graft_card
from voxgraft.models import get_family
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.chatterbox.model import T3
from voxgraft.models.generate import GenerationPrompt
from voxgraft.models.indextts2.model import UnifiedVoice
from voxgraft.models.indextts2.shapes import ConditioningEncoderSize, UnifiedVoiceSize
from voxgraft.models.speech_model import SpeechModel, load_model
from voxgraft.nn.adapter import adapter_state, add_adapter, load_adapter_state, write_peft_folder
from voxgraft.pipeline.command import create_run
from voxgraft.synthesis.command import SpeakResult, speak

SHARPNESS = 4.0
"""How far apart the random heads' scores are, so that one code in some dozens is likely, as in a trained model."""
HEADS = ("speech_head.weight", "mel_head.weight")
STOP_BIAS = 10.0
"""UnifiedVoice's head has a bias: with this one most utterances stop by themselves, early or late."""


def small_t3(seed: int = 0, *, width: int = 128) -> T3:
    model = T3(T3Size(layers=2, width=width, mlp=2 * width, speech_positions=128))
    _fill(model, seed)
    return model


def small_voice(seed: int = 0, *, stop_bias: float = 0.0, width: int = 128) -> UnifiedVoice:
    encoder = ConditioningEncoderSize(width=32, mlp=64, heads=4, blocks=1, perceiver_mult=2)
    size = UnifiedVoiceSize(width=width, layers=2, heads=width // 32, max_speech=120, speaker=encoder, emotion=encoder)
    model = UnifiedVoice(size)
    _fill(model, seed)
    with torch.no_grad():
        model.mel_head.bias[model.spec.speech_stop] += stop_bias
    return model


def prompts(
    model: SpeechModel, num_texts: Sequence[int] = (5, 12, 3), *, first_seed: int = 0
) -> list[GenerationPrompt]:
    """Utterances of so many text ids."""
    made = []
    for seed, num_text in enumerate(num_texts, first_seed):
        draw = np.random.default_rng(seed)
        ids = draw.integers(300, 2000, num_text).tolist()
        made.append(GenerationPrompt(ids, _condition(model, draw), seed))
    return made


def _condition(model: SpeechModel, draw: np.random.Generator) -> Any:
    return random_condition(type(model).__module__.split(".")[2], model, draw)  # voxgraft.models.FAMILY.model


def _fill(model: SpeechModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(values * (SHARPNESS if name in HEADS else 1.0) / parameter.shape[-1] ** 0.5)
            elif name.endswith("weight"):
                parameter.copy_(1 + 0.1 * values)
            else:
                parameter.copy_(0.05 * values)
    model.requires_grad_(False).eval()


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


def made_graft(folder: Path, base: Path, language: str, seed: int, *, rank: int = 4) -> Path:
    """A graft of a language, with an adapter of random values, as a training of a few steps leaves it."""
    texts = Path(str(resources.files("voxgraft") / "assets" / "demo" / f"{language}.txt"))
    run = folder / f"run-{language}"
    create_run(NewSettings(run=run, base=base, language=language, texts=(texts,)))
    line = parse_command_line(["graft", str(run), f"--tokenizer.pieces={PIECES}"], COMMANDS)
    assert graft(cast(GraftSettings, resolve_settings(cast(CommandLine, line)))).exit_code == 0
    give_adapter(run / "graft", base, seed, rank=rank)
    return run / "graft"


def give_adapter(place: Path, base: Path, seed: int, strength: float = STRENGTH, *, rank: int = 4) -> None:
    """Put an adapter of random values into a graft."""
    card = read_graft_card(place)
    kind = get_family(card.family)
    model = load_model(kind, kind.files(base))
    add_adapter(model, model.adapter_layers(), rank=rank, alpha=rank, seed=seed)
    draw = np.random.default_rng(seed)
    state = {
        name: tensor if name.endswith(".down") else tensor.new_tensor(strength * draw.standard_normal(tensor.shape))
        for name, tensor in adapter_state(model).items()
    }
    load_adapter_state(model, state)
    write_peft_folder(place / "adapter", model, base_name=card.family)
    text = format_graft_card(replace(card, adapter=hash_adapter_files(place)))
    (place / GRAFT_CARD_NAME).write_text(text, encoding="utf-8")
