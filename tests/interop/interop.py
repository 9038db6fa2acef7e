"""`make interop`: the real Chatterbox package loads what `voxgraft export` writes, speaks, and computes as voxgraft does.

    python -m tests.interop.interop [--size small|full] [--work FOLDER]

Weights are random, in the published format; voice encoder, S3Gen and the built-in voice are made by the package's own
classes. Needs the companion environment (`voxgraft companion chatterbox`), and is no part of the tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.support.companion_vocoder import CompanionVocoder
from tests.support.synthesis import give_adapter
from tools.random_bases import RandomBaseSize, make_random_base, random_blocks
from voxgraft.cli.app import run_cli
from voxgraft.companions.environments import CompanionEnvironment, find_environment
from voxgraft.config.commands import ExportSettings
from voxgraft.export.command import export
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles, SequencePart, TokenSequence, build_sequence
from voxgraft.models.chatterbox.family import T3Size, t3_shapes
from voxgraft.models.chatterbox.model import read_built_in_voice
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states, load_model, pack_batch
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import TextRules
from voxgraft.tokenizers import open_tokenizer

S3GEN_RATE_HZ = 24_000
SIZES = {"small": (14, 64, 40), "full": (30, 4096, 40)}
"""Layers, width of the MLP, and learned pieces. The package's analyzer looks at the fourteenth layer."""
PUBLISHED = (30, 4096)
STEPS = {"small": 12, "full": 6}
CODES = (17, 4242, 6000, 5, 999)
"""Forced one after another, so that both models are asked the same."""
AMHARIC, ENGLISH = "ሰላም ለዓለም። ቤቱ ትልቅ ነው።", "Bring me the blue cup, please."
TOLERANCE = 2e-3
VALID = 6561
STEER = 8.0


@dataclass(frozen=True)
class Case:
    """One export as the package is given it, and the same weights as voxgraft opens them."""

    title: str
    folder: Path
    files: BaseFiles
    language: str
    text: str
    drop_in: bool = False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    environment = find_environment("chatterbox")
    if environment is None:
        print("there is no companion environment: run `voxgraft companion chatterbox` first", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="voxgraft-interop-") as scratch:
        return interop(environment, arguments.size, arguments.work or Path(scratch))


def interop(environment: CompanionEnvironment, size: str, work: Path) -> int:
    base = make_base(environment, size, work / "base")
    run = work / "run"
    texts = str(resources.files("voxgraft") / "assets" / "demo" / "am.txt")
    pieces = SIZES[size][2]
    for words in (
        ["new", str(run), "--base", str(base), "--language", "am", "--texts", texts],
        ["graft", str(run), f"--tokenizer.pieces={pieces}"],
    ):
        assert run_cli([*words, "--quiet"]) == 0, words
    give_adapter(run / "graft", base, seed=1, strength=0.02)
    pair, dropped = (
        timed(
            f"export {name}",
            lambda drop_in=drop_in: export(ExportSettings(model=run, to="chatterbox", drop_in=drop_in)),
        )
        for name, drop_in in (("grown and merged", False), ("drop-in", True))
    )
    chatterbox = get_family("chatterbox")
    cases = [
        Case("merged, load.py, Amharic", pair.folder, chatterbox.files(pair.folder / "merged"), "am", AMHARIC),
        Case("extended, load.py, English", pair.folder, chatterbox.files(pair.folder / "extended"), "en", ENGLISH),
        Case(
            "drop-in, nothing, Amharic", dropped.folder, chatterbox.files(dropped.folder), "am", AMHARIC, drop_in=True
        ),
    ]
    faults = [fault for case in cases for fault in compare(environment, case, size, run, work)]
    faults += companion_speaks(base)
    for fault in faults:
        print(f"FAULT {fault}")
    print("interop: not as it should be" if faults else "interop: all as it should be")
    return 1 if faults else 0


def make_base(environment: CompanionEnvironment, size: str, folder: Path) -> Path:
    """Random weights that only draw codes which S3Gen can read, and parts by the package itself."""
    layers, mlp, _ = SIZES[size]
    made = timed("random base", lambda: make_random_base("chatterbox", folder, size=RandomBaseSize(64, 2, 2454)))
    made.checkpoint.unlink()
    timed("random T3", lambda: write_t3(made.checkpoint, T3Size(2454, 1024, layers, mlp)))
    script = Path(__file__).with_name("stock_parts.py")
    for name in ("ve.pt", "s3gen.pt"):
        (folder / name).unlink()
    timed(
        "parts by the package",
        lambda: subprocess.run([environment.python, script, folder], check=True, capture_output=True),
    )
    return folder


def write_t3(path: Path, size: T3Size) -> None:
    from safetensors.numpy import save_file

    tensors = {
        name: np.concatenate(list(random_blocks(name, shape, 0))).reshape(shape)
        for name, shape in t3_shapes(size).items()
    }
    for name in ("speech_emb.weight", "speech_pos_emb.emb.weight"):
        tensors[name][:, 0] = STEER
    tensors["speech_head.weight"][:, 0] = np.where(np.arange(8194) < VALID, 1.0, -1.0)
    save_file(tensors, path)


def compare(environment: CompanionEnvironment, case: Case, size: str, run: Path, work: Path) -> list[str]:
    """Let the package load and speak; hold its ids and logits against ours."""
    output = work / "stock.npz"
    script = Path(__file__).with_name("stock_speaks.py")
    layers, mlp, _ = SIZES[size]
    words = [
        script,
        case.folder,
        case.language,
        case.text,
        output,
        "--codes",
        ",".join(map(str, CODES)),
        "--steps",
        STEPS[size],
    ]
    words += [] if (layers, mlp) == PUBLISHED else ["--layers", layers, "--mlp", mlp]
    words += ["--drop-in"] if case.drop_in else []
    done = subprocess.run([environment.python, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        return [f"{case.title}: {done.stderr[-1500:]}"]
    about = json.loads(output.with_suffix(".json").read_text())
    ids = our_ids(case, run)
    stock = np.load(output)["logits"]  # [steps, 2 rows, V]
    ours = our_logits(load_model(get_family("chatterbox"), case.files), ids, case.files)
    difference = float(np.abs(stock - ours).max())
    ids_told = "the same ids" if ids == about["ids"] else "other ids"
    print(
        f"{case.title}: {about['tensors']} tensors, {about['rows']} rows, analyzer {'on' if about['analyzer'] else 'off'}; "
        f"{ids_told} ({len(ids)}, {ids.count(1)} unknown); largest logit difference {difference:.2e} of {np.abs(ours).max():.2f} over {stock.shape[0]} steps; "
        f"spoke {about['audio_seconds']} s, loudest {about['loudest']:.3f}, in {about['speak_seconds']} s; loaded in {about['load_seconds']} s, {about['gigabytes']} GB"
    )
    faults = []
    if ids != about["ids"] or 1 in ids:
        faults.append(f"{case.title}: ids {about['ids']}, ours {ids}")
    if not difference < TOLERANCE:
        faults.append(f"{case.title}: logits differ by {difference}")
    if not about["finite"] or about["audio_seconds"] <= 0:
        faults.append(f"{case.title}: no sound")
    if about["analyzer"] != (case.language == "en" or case.drop_in):
        faults.append(f"{case.title}: analyzer {about['analyzer']}")
    return faults


def our_ids(case: Case, run: Path) -> list[int]:
    """As voxgraft spells it: base languages by the base's own tokenizer, the new one by the grown."""
    card = json.loads((run / "graft" / "graft.json").read_text(encoding="utf-8"))
    base, grown = (
        open_tokenizer(path)
        for path in (run.parent / "base" / card["base"]["tokenizer"], run / "graft" / card["tokenizer"])
    )
    rules = TextRules.from_json(card["text"])
    ids = TextEncoder.of(get_family("chatterbox"), base, grown, "am", rules).encode(case.text, case.language)
    if not case.drop_in:
        return ids
    places = json.loads((case.folder / "export.json").read_text(encoding="utf-8"))["reused_ids"]
    return [places.get(str(one), one) for one in ids]


@torch.no_grad()
def our_logits(model: SpeechModel, ids: list[int], files: BaseFiles) -> NDArray[np.float32]:
    """At every step of the original program, with text and without: two starts at position 0, then the forced codes."""
    condition = get_family("chatterbox").condition(read_built_in_voice(files.folder / "conds.pt"))
    start = model.spec.speech_start
    spoken = np.array([start, start, *CODES])
    positions = np.array([0, 0, *range(1, len(CODES) + 1)])
    layout = build_sequence(model.spec, ids)
    whole = TokenSequence(
        layout.num_conditioning, layout.text, SequencePart(spoken, positions, np.full(len(spoken), -100))
    )
    rows = []
    for silent in (False, True):
        hidden = compute_hidden_states(model, pack_batch(model, [whole], [condition], silent=[silent]))
        rows.append(model.speech_logits(hidden[-len(CODES) - 1 :]).numpy())
    return np.stack(rows, axis=1)


def companion_speaks(base: Path) -> list[str]:
    """Our own way to sound: codes through the worker, with the built-in voice and with a recording."""
    vocoder = CompanionVocoder.find(base)
    if vocoder is None:
        return ["the companion finds no S3Gen"]
    voice = read_built_in_voice(base / "conds.pt")
    began = time.monotonic()
    wave = vocoder.sound(list(range(100, 112)), voice)
    vocoder.companion.close()
    print(
        f"companion: {len(wave) / S3GEN_RATE_HZ:.2f} s of sound for 12 codes in {time.monotonic() - began:.1f} s, finite {np.isfinite(wave).all()}"
    )
    return [] if len(wave) else ["the companion gave no samples"]


def timed(what: str, call: Any) -> Any:
    began = time.monotonic()
    result = call()
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
