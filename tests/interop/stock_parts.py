"""In the companion environment: voice encoder, S3Gen and a built-in voice of random weights, by the package's own classes.

python stock_parts.py BASE
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

torch: Any = import_module("torch")
VoiceEncoder: Any = import_module("chatterbox.models.voice_encoder").VoiceEncoder
S3Gen: Any = import_module("chatterbox.models.s3gen").S3Gen

PROMPT_CODES, REFERENCE_CODES = 150, 50


def main(folder: Path) -> None:
    torch.manual_seed(0)
    torch.save(VoiceEncoder().state_dict(), folder / "ve.pt")
    torch.save(S3Gen().state_dict(), folder / "s3gen.pt")
    t3 = {
        "speaker_emb": torch.nn.functional.normalize(torch.rand(1, 256)),
        "clap_emb": None,
        "cond_prompt_speech_tokens": torch.randint(0, 6561, (1, PROMPT_CODES)),
        "cond_prompt_speech_emb": None,
        "emotion_adv": torch.full((1, 1, 1), 0.5),
    }
    gen = {
        "prompt_token": torch.randint(0, 6561, (1, REFERENCE_CODES)),
        "prompt_token_len": torch.tensor([REFERENCE_CODES]),
        "prompt_feat": torch.randn(1, 2 * REFERENCE_CODES, 80),
        "prompt_feat_len": None,
        "embedding": torch.randn(1, 192),
    }
    torch.save({"t3": t3, "gen": gen}, folder / "conds.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
