"""In the companion environment: the real package loads an export, reads a text, speaks, and shows its logits.

    python stock_speaks.py FOLDER LANGUAGE TEXT OUTPUT.npz --codes 1,2,3 [--layers 14 --mlp 64] [--drop-in] [--steps 6]

`--layers` and `--mlp` are for small models: they change the package's table of sizes, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
np: Any = import_module("numpy")
torch: Any = import_module("torch")
mtl: Any = import_module("chatterbox.mtl_tts")
sizes: Any = import_module("chatterbox.models.t3.llama_configs")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("folder", "language", "text", "output"):
        parser.add_argument(name)
    parser.add_argument("--codes", required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--mlp", type=int)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--drop-in", action="store_true")
    return parser.parse_args()


def load(arguments: argparse.Namespace) -> Any:
    if arguments.layers:
        sizes.LLAMA_CONFIGS["Llama_520M"].update(num_hidden_layers=arguments.layers, intermediate_size=arguments.mlp)
    if arguments.drop_in:
        return mtl.ChatterboxMultilingualTTS.from_local(arguments.folder, "cpu")
    sys.path.insert(0, arguments.folder)
    return import_module("load").load(arguments.language)


@contextmanager
def forced(codes: list[int]) -> Iterator[None]:
    """Draws give these codes, one after another."""
    left, draw = iter(codes), torch.multinomial
    torch.multinomial = lambda *_, **__: torch.tensor([[next(left)]])
    try:
        yield
    finally:
        torch.multinomial = draw


def logits_of(model: Any, ids: Any, codes: list[int]) -> Any:
    """The speech head's output at every step, for the row with text and the row without, while codes are forced."""
    rows = []
    hook = model.t3.speech_head.register_forward_hook(
        lambda _m, _i, out: rows.append(out[:, -1].detach().float().numpy())
    )
    with torch.inference_mode(), forced(codes):
        model.t3.inference(t3_cond=model.conds.t3, text_tokens=ids, max_new_tokens=len(codes), cfg_weight=0.5)
    hook.remove()
    return np.stack(rows)


def main() -> None:
    arguments = read_arguments()
    began = time.time()
    model = load(arguments)
    loaded, tensors = time.time() - began, len(model.t3.state_dict())  # speaking adds second names
    language = None if arguments.drop_in else arguments.language
    text = arguments.text
    if arguments.drop_in:
        sys.path.insert(0, arguments.folder)
        text = f"[{arguments.language}]{import_module('voxgraft_text').prepared(text)}"
    elif (own := import_module("load")).is_new_language(arguments.language):
        text = own.prepared(text)  # as `generate` does itself
    ids = model.tokenizer.text_to_tokens(mtl.punc_norm(text), language_id=language)
    framed = torch.nn.functional.pad(torch.nn.functional.pad(torch.cat([ids, ids]), (1, 0), value=255), (0, 1), value=0)
    analyzer = bool(model.t3.hp.is_multilingual)
    codes = [int(code) for code in arguments.codes.split(",")]
    logits = logits_of(model, framed, codes)
    inner = model.t3.inference
    model.t3.inference = lambda **words: inner(**{**words, "max_new_tokens": arguments.steps})
    torch.manual_seed(0)
    began = time.time()
    wave = model.generate(text, language_id=language)
    about = {
        "rows": model.t3.text_emb.num_embeddings,
        "tensors": tensors,
        "pieces": model.tokenizer.tokenizer.get_vocab_size(),
        "analyzer": analyzer,
        "ids": ids[0].int().tolist(),
        "load_seconds": round(loaded, 1),
        "speak_seconds": round(time.time() - began, 1),
        "audio_seconds": round(wave.shape[-1] / model.sr, 2),
        "finite": bool(torch.isfinite(wave).all()),
        "loudest": float(wave.abs().max()),
        "gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    np.savez(arguments.output, logits=logits)
    Path(arguments.output).with_suffix(".json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
