"""Train the tiny base: a small T3 on the English and French utterances of the corpus, and write its folder.

`python -m recipes.tiny_base.train_base --size toy OUT` tests the training in a minute, on artificial codes.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipes.tiny_base.base_batches import Example, buckets, concatenate_examples
from recipes.tiny_base.base_speech import BaseSpeech
from recipes.tiny_base.base_steps import BaseSettings, Trainer, Validation, print_flushed
from recipes.tiny_base.corpus import MAKE_COMMAND
from recipes.tiny_base.tokenizer import Speller
from tools.random_bases.tiny import build_tokenizer_json
from voxgraft.core.files import compute_sha256, write_json
from voxgraft.models.speech_model import save_model
from voxgraft.models.tiny.family import (
    CARD_NAME,
    CHECKPOINT_NAME,
    CODEC_NAME,
    SHIPPED_SIZE,
    TOKENIZER_NAME,
    VOICES_NAME,
    Tiny,
    TinyTextFrontend,
    write_voice_vectors,
    write_voices,
)
from voxgraft.models.tiny.model import TinyT3

__all__ = ["TOY", "BaseSettings", "Example", "toy_examples", "train_on", "write_card"]

TOY = BaseSettings(
    size=replace(SHIPPED_SIZE, text_rows=96, width=64, heads=1, layers=2, mlp=176, speech_rows=66, speaker_width=2),
    steps=500,
    seconds=40.0,
    batch_positions=1_000,
    rate=4e-3,
    dropout=0.0,
    min_count=1,
)


def train_on(
    train: Sequence[Example],
    valid: Sequence[Example],
    speakers: Sequence[str] | Mapping[str, Sequence[float]],
    out: Path,
    settings: BaseSettings,
) -> dict[str, Any]:
    """Train on existing codes; write tokenizer, voices and model. Returns the facts for the card.

    `speakers`: the table of speakers, or the named voice vectors of a base that clones voices.
    """
    started = time.monotonic()
    document = _tokenizer(train, settings)
    size = replace(settings.size, text_rows=len(document["model"]["vocab"]))
    speller = Speller(document)
    torch.manual_seed(settings.seed)
    model = _initialised(TinyT3(size, clones_voices=isinstance(speakers, Mapping))).to(settings.device)
    learnt = [*train, *concatenate_examples(train, settings.joined_share, settings.seed)]
    rng = random.Random(f"spelt out {settings.seed}")
    trainer = Trainer(model, buckets(learnt, speller, size, settings.batch_positions, rng), settings)
    measure = Validation(valid, speller, size, settings)
    print_flushed(f"base: {trainer.about()}, ready after {time.monotonic() - started:.0f} s")
    steps = trainer.run(lambda: measure(model), settings.seconds - (time.monotonic() - started))
    scores = measure(model)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / TOKENIZER_NAME, document, overwrite=True)
    if isinstance(speakers, Mapping):
        write_voice_vectors(out, size.speaker_width, speakers)
    else:
        write_voices(out, speakers)
    (out / CHECKPOINT_NAME).unlink(missing_ok=True)
    save_model(model.half().cpu(), out / CHECKPOINT_NAME)
    seconds = round(time.monotonic() - started, 1)
    made = {"utterances": len(train), "steps": steps, "seconds": seconds, "seed": settings.seed}
    print_flushed(f"base: {steps} steps, {seconds} s, held out: {scores}")
    return {"trained": {**made, "device": settings.device, "torch": torch.__version__}, "held_out_loss": scores}


def write_card(out: Path, more: Mapping[str, Any]) -> dict[str, Any]:
    """Write the card of a base folder: description, training, hashes of the files. Scores can be added later."""
    names = (CHECKPOINT_NAME, TOKENIZER_NAME, VOICES_NAME, CODEC_NAME)
    there = [out / name for name in names if (out / name).exists()]
    card = {
        "family": Tiny.name,
        "what": "a small speech language model for English and French, with its codec; made by recipes/tiny_base",
        "languages": list(Tiny.languages),
        "licence": "Apache-2.0",
        "from": "English and French speech of espeak-ng and flite as codes of its codec, which has heard Amharic too; "
        "sources of the texts: recipes/tiny_base/README.md",
        "command": MAKE_COMMAND,
        **more,
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": compute_sha256(path)} for path in there},
    }
    write_json(out / CARD_NAME, card, overwrite=True)
    return card


@torch.no_grad()
def _initialised(model: TinyT3) -> TinyT3:
    """Initialize with small tables and heads; residual projections are scaled down with depth."""
    for name, parameter in model.named_parameters():
        if parameter.dim() <= 1:
            continue
        deviation = parameter.shape[-1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= (2 * model.size.layers) ** 0.5
        elif "emb" in name or "head" in name or "query" in name:
            deviation = 0.02
        parameter.normal_(0.0, deviation)
    model.tfmr.embed_tokens.weight.zero_()
    return model


def _tokenizer(train: Sequence[Example], settings: BaseSettings) -> dict[str, Any]:
    front = TinyTextFrontend()
    texts = (front.prepare(front.clean(example.text), None) for example in train)
    return build_tokenizer_json(texts, settings.size.text_rows, settings.min_count)


def toy_examples(count: int, seed: int, letters: str = "abcdefgh") -> list[Example]:
    """Artificial speech: every letter has two codes, which depend on speaker and language."""
    draw = np.random.default_rng(seed)
    words = ["".join(draw.choice(list(letters), 2)) for _ in range(40)]
    examples = []
    for _ in range(count):
        language, speaker = str(draw.choice(Tiny.languages)), int(draw.integers(2))
        text = " ".join(draw.choice(words, 3))
        shift = 16 * speaker + 32 * Tiny.languages.index(language)
        places = [ord(letter) - ord("a") for letter in text if letter != " "]
        codes = np.array([shift + 2 * at + half for at in places for half in (0, 1)], dtype=np.int32)
        examples.append(Example(language, text, codes, speaker))
    return examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=["toy"], default="toy", help="the full size is made by make.py")
    parser.add_argument("--seconds", type=float, default=TOY.seconds)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    settings = replace(TOY, seconds=given.seconds, device=given.device)
    examples = toy_examples(2_000, 0)
    card = train_on(examples[100:], examples[:100], ("one", "two"), given.out, settings)
    print(json.dumps(write_card(given.out, card), indent=2))
    print(f"unseen texts spoken right: {_spoken_right(given.out, examples[:32], given.device)} of 32")


def _spoken_right(folder: Path, examples: Sequence[Example], device: str) -> int:
    speech = BaseSpeech(folder, device)
    right = 0
    for example in examples:
        spoken = speech.codes([example.text], example.language, ("one", "two")[example.speaker])[0]
        right += spoken.codes == example.codes.tolist()
    return right


if __name__ == "__main__":
    main()
