"""In the companion environment: the real package loads an export, reads texts, shows its logits, and speaks.

    python xtts_speaks.py FOLDER INPUT.json OUTPUT.npz

The input names the language to load, texts by language, text ids and codes to score, and whether to speak a text.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
np: Any = import_module("numpy")
torch: Any = import_module("torch")


def main() -> None:
    folder, given, output = sys.argv[1:]
    asked = json.loads(Path(given).read_text(encoding="utf-8"))
    sys.path.insert(0, folder)
    loader = import_module("load")
    model = loader.load(asked["language"])
    ids = []
    for language, text in asked["texts"]:
        # As `inference` does: text is lower-cased before the tokenizer sees it, that of the new language prepared.
        text = loader.prepared(text) if language == loader.LANGUAGE else text
        ids.append(model.tokenizer.encode(text.strip().lower(), lang=language))
    latents = torch.tensor(asked["latents"])[None]
    arrays = {}
    with torch.inference_mode():
        for number, (own, codes) in enumerate(asked["scored"]):
            text, spoken = torch.tensor([own]), torch.tensor([codes])
            lengths = torch.tensor([text.shape[1]]), torch.tensor([spoken.shape[1] * model.gpt.code_stride_len])
            options = {"cond_latents": latents, "return_attentions": False, "return_latent": True}
            states = model.gpt(text, lengths[0], spoken, lengths[1], **options)
            arrays[f"logits{number}"] = model.gpt.mel_head(states)[0].numpy()
    if asked["speak"]:
        voice = torch.tensor(asked["speaker"])[None, :, None]
        torch.manual_seed(0)
        # Random weights rarely stop by themselves; a second of sound is enough.
        model.gpt.max_gen_mel_tokens = 24
        arrays["wave"] = model.inference(asked["speak"], asked["language"], latents, voice)["wav"]
    about = {
        "ids": ids,
        "tensors": len(model.state_dict()),
        "languages": list(model.config.languages),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    np.savez(output, about=json.dumps(about), **arrays)


if __name__ == "__main__":
    main()
