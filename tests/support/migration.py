"""Old configs and command lines for tests, and what `new --from` makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import NewSettings
from voxgraft.config.run import RunSettings
from voxgraft.inspect.legacy import (
    CHATTERBOX_KEYS,
    INDEXTTS2_KEYS,
    INDEXTTS2_SECTIONS,
    SCRIPTS,
    KeyTranslation,
    LegacyKeyRule,
)
from voxgraft.pipeline.command import NewResult, create_run

CONFIG = """\
model:
  name: mine
  n_vocab: 2535
  freeze_original_embeddings: true
  freeze_until_index: 2454
data:
  dataset_path: data/mine
  batch_size: 16
training:
  learning_rate: 1e-5      # YAML takes this for a text
  weight_decay: 0.02
  warmup_steps: 4000
  max_steps: 50000
  betas: [0.9, 0.999]
  patience: 20
  lerning_rate: 3
finetuning:
  pretrained_model: models/chatterbox/t3_mtl23ls_v2.safetensors
logging:
  wandb_entity: null
paths:
  tokenizer: models/Am_tokenizer_merged.json
"""
SCRIPT = r"""#!/bin/bash
# python trainers/train_gpt_v2.py --learning-rate 1   (a comment)
set -e
OUT="runs/out"; TOKENIZER=tokenizers/amharic_extended_bpe.model
RATE='5e-5'
HERE="$(cd "$(dirname "$0")" && pwd)"
if [ -f "$TOKENIZER" ]; then uv run python tools/preprocess_data.py --language am --tokenizer "$TOKENIZER"; fi
CUDA_VISIBLE_DEVICES=0 python -u trainers/train_gpt_v2.py \
  --train-manifest data/train_pairs.jsonl::am \
  --tokenizer "${TOKENIZER}" \
  --base-checkpoint "$HERE/checkpoints/gpt.pth" \
  --learning-rate "$RATE"   \
  --text-loss-weight=0.4 \
  --mel-loss 0.6 \
  --warmup-steps ${WARMUP:-2000} \
  --max-steps 0 \
  --output-dir "$OUT" \
  --amp > log.txt 2>&1 &
python scripts/other.py --x 1
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def made_from(folder: Path, text: str, name: str = "old.yaml", **given_by_hand: Any) -> NewResult:
    """A new run from an old file of that text."""
    return create_run(NewSettings(run=folder / "run", old=write(folder, name, text), **given_by_hand))


def rows_by_name(result: NewResult) -> dict[str, KeyTranslation]:
    return {row.old: row for row in result.rows}


def settings_of(run: Path) -> RunSettings:
    return parse_settings(RunSettings, read_settings_values(RunSettings, run / "run.yaml"), run)


def codes(result: NewResult) -> list[str]:
    return [item.code for item in result.findings]


def every_rule() -> list[tuple[str, LegacyKeyRule]]:
    config = [*CHATTERBOX_KEYS.items(), *INDEXTTS2_KEYS.items(), *INDEXTTS2_SECTIONS.items()]
    flags = [
        (f"{script.name} {flag}", script.rules.get(flag, script.rest)) for script in SCRIPTS for flag in script.flags
    ]
    return config + [(name, rule) for name, rule in flags if rule]
