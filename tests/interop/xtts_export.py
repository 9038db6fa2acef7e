"""`make interop`: the real coqui-tts package loads what `voxgraft export` writes, and computes as voxgraft does.

    python -m tests.interop.xtts_export [--size small|full] [--work FOLDER]

Weights are random, in the published format. Text ids of both folders in old and new languages, the logits of given
codes, and a spoken text are compared. Needs the companion environment (`voxgraft companion xtts`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.support.synthesis import give_adapter
from tools.random_bases import make_random_base, random_blocks
from voxgraft.checkpoints.write import TensorBytes, write_torch
from voxgraft.cli.app import run_cli
from voxgraft.companions.environments import CompanionEnvironment, find_environment
from voxgraft.config.commands import ExportSettings
from voxgraft.core.files import atomic_write, read_json, write_text
from voxgraft.export.command import export
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.speech_model import compute_speech_latents, load_model
from voxgraft.models.xtts.model import XTTSModel
from voxgraft.models.xtts.shapes import COUNTER_SUFFIX, VOICE_LATENTS, XTTSSize, xtts_shapes
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer

SIZES = {"small": (64, 2), "full": (1024, 30)}
"""Width and layers. The package's vocoder and speaker encoder have one size."""
NEW_TEXTS = (
    "ሰላም ለዓለም። ቤቱ ትልቅ ነው።",
    "በ2015 ዓ.ም. 12 መጻሕፍት ገዛሁ፤ ዋጋቸው 3.5 ብር ነው!",
    "ይህ [en]Computer No. 5[/en] ጥሩ ነው።",
    "[am] ውስጥ [en] የለም",
)
OLD_TEXTS = (
    ("en", "Dr. Smith paid $20.50 for 3 apples on the 1st of May."),
    ("de", "Das kostet 12,5 Mark & mehr."),
    ("tr", "İstanbul'da 50 öğrenci"),
    ("ru", "Г-н Иванов купил 5 книг."),
    ("zh", "我有50个苹果。"),
    ("ko", "기차는 50 명"),
    ("ja", "私は夜に本を読む"),
)
CODES = (17, 342, 600, 5, 999, 1, 1023)
# Float32 in two programs, with other kernels for attention.
TOLERANCE = 2e-3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    environment = find_environment("xtts")
    if environment is None:
        print("there is no companion environment: run `voxgraft companion xtts` first", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="voxgraft-interop-") as scratch:
        faults = list_faults(environment, arguments.size, arguments.work or Path(scratch))
    for fault in faults:
        print(f"FAULT {fault}")
    print("interop: not as it should be" if faults else "interop: all as it should be")
    return 1 if faults else 0


def list_faults(environment: CompanionEnvironment, size: str, work: Path) -> list[str]:
    """What differs between the package and voxgraft, in words; nothing where all is equal."""
    base, run = make_base(size, work / "base"), work / "run"
    texts = str(resources.files("voxgraft") / "assets" / "demo" / "am.txt")
    for words in (
        ["new", str(run), "--base", str(base), "--language", "am", "--texts", texts],
        ["graft", str(run), "--tokenizer.pieces=40"],
    ):
        assert run_cli([*words, "--quiet"]) == 0, words
    give_adapter(run / "graft", base, seed=1, strength=0.02)
    folder = export(ExportSettings(model=run, to="xtts", accept_terms=True)).folder
    graft, family = load_graft(run / "graft"), get_family("xtts")
    base_tokenizer = open_tokenizer(family.files(base).tokenizer)
    encoder = TextEncoder.of(family, base_tokenizer, graft.tokenizer, "am", graft.card.rules)
    faults: list[str] = []
    for part, language, own in (
        ("merged", "am", [("am", text) for text in NEW_TEXTS] + list(OLD_TEXTS)),
        ("extended", "en", list(OLD_TEXTS)),
    ):
        expected = [encoder.encode(text, code) for code, text in own]
        scored = [(ids, CODES) for ids in expected[:2]]
        stock = ask_package(
            environment, folder, work, language, own, scored, speak=own[0][1] if size == "small" else ""
        )
        faults += [
            f"{part}: {text!r} is {found}, and {ids} here"
            for (_, text), ids, found in zip(own, expected, stock["ids"], strict=True)
            if ids != found
        ]
        if "am" not in stock["languages"]:
            faults.append(f"{part}: config.json lists {stock['languages']}")
        logits = compute_logits(folder / part, scored)
        for number, ours in enumerate(logits):
            distance = float(np.abs(ours - stock[f"logits{number}"]).max())
            print(f"{part}, text {number}: logits {list(ours.shape)} differ by up to {distance:.2g}")
            if not distance < TOLERANCE:
                faults.append(f"{part}: logits of text {number} differ by {distance:.2g}")
        print(f"{part}: {len(own)} texts, {stock['tensors']} tensors, {stock['peak']:.1f} GiB")
        if "wave" in stock and not (len(stock["wave"]) and np.isfinite(stock["wave"]).all()):
            faults.append(f"{part}: no sound, or sound that is not finite")
    return faults


def make_base(size: str, folder: Path) -> Path:
    """A random base whose vocoder and speaker encoder have the published size."""
    width, layers = SIZES[size]
    files = make_random_base("xtts", folder)
    assert files.config is not None
    config = read_json(files.config, constants=True)
    config["model_args"] |= {"gpt_n_model_channels": width, "gpt_layers": layers, "decoder_input_dim": width}
    config["model_args"]["gpt_n_heads"] = heads = max(4, width // 64)
    write_text(files.config, json.dumps(config), overwrite=True)
    shape = XTTSSize(open_tokenizer(files.tokenizer).size, width, layers, heads)

    def values(name: str, shape: tuple[int, ...]) -> list[bytes]:
        if name.endswith(COUNTER_SUFFIX):
            return [np.zeros(shape, dtype=np.int64).tobytes()]
        if name.endswith("running_var"):
            return [np.ones(shape, dtype=np.float32).tobytes()]
        return [block.astype(np.float32).tobytes() for block in random_blocks(name, shape, 0)]

    tensors = {
        name: TensorBytes("I64" if name.endswith(COUNTER_SUFFIX) else "F32", own, partial(values, name, own))
        for name, own in xtts_shapes(shape).items()
    }
    with atomic_write(files.checkpoint, overwrite=True) as stream:
        write_torch(stream, tensors, wrapper="model")
    return folder


def ask_package(
    environment: CompanionEnvironment,
    folder: Path,
    work: Path,
    language: str,
    texts: Sequence[tuple[str, str]],
    scored: Sequence[tuple[Sequence[int], Sequence[int]]],
    speak: str,
) -> dict[str, Any]:
    """The package's ids, logits and sound."""
    given, output = work / "asked.json", work / "stock.npz"
    voice = {"latents": make_latents(folder).tolist(), "speaker": np.eye(512, dtype=np.float32)[3].tolist()}
    request = {"language": language, "texts": texts, "scored": scored, "speak": speak, **voice}
    given.write_text(json.dumps(request), encoding="utf-8")
    script = Path(__file__).with_name("xtts_speaks.py")
    done = subprocess.run(
        [environment.python, "-P", script, folder, given, output], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    with np.load(output) as arrays:
        return {**json.loads(str(arrays["about"])), **{name: arrays[name] for name in arrays.files if name != "about"}}


def make_latents(folder: Path) -> NDArray[np.float32]:
    width = int(read_json(folder / "merged" / "config.json", constants=True)["model_args"]["gpt_n_model_channels"])
    return np.random.default_rng(5).standard_normal((VOICE_LATENTS, width)).astype(np.float32)


@torch.inference_mode()
def compute_logits(folder: Path, scored: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[NDArray[np.float32]]:
    """voxgraft's own, of the same folder."""
    family = get_family("xtts")
    model = load_model(family, family.files(folder))
    condition = make_latents(folder.parent)
    logits = []
    for ids, codes in scored:
        (states,) = compute_speech_latents(model, [ids], [condition], [codes])
        assert isinstance(model, XTTSModel)
        logits.append(model.gpt.mel_head(states[: len(codes)]).float().numpy())  # the states are normed already
    return logits


if __name__ == "__main__":
    sys.exit(main())
