"""Folders of both real families at their published size, with random weights and with everything that makes sound.

    python -m tests.support.full_size chatterbox|indextts2 FOLDER

Names and shapes are those of the published files (`golden/*/names.json`), 3.2 GB for Chatterbox and 6.9 GB for
IndexTTS-2. No test uses it: the log has what was measured with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import yaml

from tests.support import s2mel, s3gen
from tests.test_s3gen import write_conditions
from tools.random_bases import make_random_base
from tools.random_bases.indextts2 import random_tensors
from voxgraft.models.campplus import CAMPPlus, CAMPPlusSize
from voxgraft.models.chatterbox.encoder import SpeechTokenizer
from voxgraft.models.chatterbox.s3gen import S3GenSize
from voxgraft.models.indextts2.encoder import VECTORS_PER_EMOTION, import_transformers

BIGVGAN = "bigvgan_v2_22khz_80band_256x"


def make_chatterbox(folder: Path) -> None:
    make_random_base("chatterbox", folder, size="full", seed=0)
    model = s3gen.random_model(S3GenSize())
    torch.save(s3gen.published_state(model, SpeechTokenizer.load(folder)), folder / "s3gen.pt")
    write_conditions(folder / "conds.pt", codes=150)


def make_indextts2(folder: Path) -> None:
    make_random_base("indextts2", folder, size="full", seed=0)
    net: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in random_tensors(s2mel.shapes("s2mel_full"), 1).items():
        table, _, rest = name.partition(".")
        net.setdefault(table, {})[rest] = tensor
    net["cfm"]["estimator.input_pos"] = torch.arange(len(net["cfm"]["estimator.input_pos"]))
    torch.save({"net": net}, folder / "s2mel.pth")
    (folder / BIGVGAN).mkdir()
    generator = random_tensors(s2mel.shapes("bigvgan_full"), 2)
    torch.save({"generator": generator}, folder / BIGVGAN / "bigvgan_generator.pt")
    torch.manual_seed(3)
    torch.save(CAMPPlus(CAMPPlusSize()).state_dict(), folder / "campplus_cn_common.bin")
    rows = sum(VECTORS_PER_EMOTION)
    torch.save(torch.randn(rows, 192), folder / "feat1.pt")
    torch.save(torch.randn(rows, 1280), folder / "feat2.pt")
    library = import_transformers()
    library.Wav2Vec2BertModel(library.Wav2Vec2BertConfig()).save_pretrained(folder / "w2v-bert-2.0")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config |= {"s2mel": {"DiT": {"num_heads": 8}}, "vocoder": {"name": f"nvidia/{BIGVGAN}"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


if __name__ == "__main__":
    {"chatterbox": make_chatterbox, "indextts2": make_indextts2}[sys.argv[1]](Path(sys.argv[2]))
