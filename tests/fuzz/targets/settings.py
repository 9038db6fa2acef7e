"""Settings files: a run's run.yaml, a base's config.yaml, and what other trainers were told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import yaml

from tests.fuzz import byte_mutations, text_mutations, yaml_mutations
from tests.fuzz.target import Mutant, Random, Target
from voxgraft.config.base import format_commented_yaml, parse_settings, read_settings_values
from voxgraft.config.run import RunSettings
from voxgraft.inspect.legacy import UserOverrides, read_legacy_config, translate_legacy_config
from voxgraft.inspect.subject import read_old_config_numbers
from voxgraft.models import detect_family, get_family

CHATTERBOX_CONFIG = """\
# Training of the Amharic voice
model:
  name: "chatterbox-am"
  n_vocab: 3000
  original_vocab_size: 2454
  freeze_original_embeddings: true
  freeze_until_index: 2454
  d_model: 512
data:
  dataset_path: data/amharic
  metadata_file: metadata.csv
  sampling_rate: 24000
  batch_size: 8
training:
  learning_rate: 2e-4
  weight_decay: 0.01
  warmup_steps: 500
  max_steps: 50000
  betas: [0.9, 0.98]
  use_amp: true
finetuning:
  enabled: true
  pretrained_model: models/t3_23lang.safetensors
paths:
  tokenizer: models/Am_tokenizer_merged.json
  checkpoints: models/checkpoints
"""
COMMANDS = """\
# Train the tokenizer first
BASE=checkpoints
LANG="am"
python tools/tokenizer/train_bpe.py --manifest data/am_train.jsonl --output-prefix $BASE/am_bpe \\
    --vocab-size 24000 --base-tokenizer "$BASE/bpe.model"
python tools/preprocess_data.py --manifest data/am.jsonl --output-dir processed --tokenizer $BASE/am_bpe.model --language am
python trainers/train_gpt_v2.py --train-manifest "processed/train.jsonl::am" --val-manifest processed/val.jsonl::am \\
    --tokenizer $BASE/am_bpe.model --config $BASE/config.yaml --base-checkpoint $BASE/gpt.pth --batch-size 4 \\
    --grad-accumulation 8 --epochs 10 --learning-rate 5e-5 --text-loss-weight 0.2 --mel-loss-weight 0.8 --amp
```yaml
model:
  n_vocab: 3000
training:
  learning_rate: 0.0002
```
"""
INDEX_CONFIG = {
    "dataset": {"bpe_model": "bpe.model", "sample_rate": 24000},
    "gpt": {"model_dim": 1280, "number_text_tokens": 12000, "layers": 24, "condition_module": {"output_size": 512}},
    "gpt_checkpoint": "gpt.pth",
    "version": 2.0,
}


class YamlTarget(Target):
    """What all YAML files share."""

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        choice = rng.random()
        if choice < 0.12:
            made, how = yaml_mutations.reformed(data, rng)
            return Mutant(seed, how, made, same=True)
        if choice < 0.85:
            made, how = yaml_mutations.edited(data, rng)
        else:
            made, how = byte_mutations.damaged(data, rng)
        return Mutant(seed, how, made)


class RunYamlTarget(YamlTarget):
    """run.yaml, as `voxgraft new` writes it and as people shorten it."""

    name: ClassVar[str] = "run-yaml"
    count: ClassVar[int] = 2000

    def make_seeds(self, folder: Path) -> None:
        settings = RunSettings(base=Path("base"), language="am", texts=(Path("a.txt"), Path("b.txt")))
        (folder / "whole.yaml").write_text(format_commented_yaml(settings, "A run"), encoding="utf-8")
        short = (
            "base: ../base\nlanguage: am\ntexts: [texts.txt]\ntokenizer:\n  pieces: 200\ntrain:\n  lr_rows: 1.0e-3\n"
        )
        (folder / "short.yaml").write_text(short, encoding="utf-8")

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "run.yaml"
        path.write_bytes(data)
        settings = parse_settings(RunSettings, read_settings_values(RunSettings, path), path)
        again = format_commented_yaml(settings, "again")
        assert isinstance(again, str)
        return json.dumps(settings.model_dump(mode="json"), allow_nan=False).replace(str(scratch), "")


class BaseConfigTarget(YamlTarget):
    """IndexTTS-2's config.yaml, which says which files the base has."""

    name: ClassVar[str] = "base-config"
    count: ClassVar[int] = 1500

    def make_seeds(self, folder: Path) -> None:
        (folder / "config.yaml").write_text(yaml.safe_dump(INDEX_CONFIG, sort_keys=False))

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "config.yaml"
        path.write_bytes(data)
        for name in ("bpe.model", "gpt.pth"):
            (scratch / name).write_bytes(b"x")
        pieces = get_family("indextts2").read_config_pieces(path)
        files = detect_family(scratch).files(scratch)
        return pieces, files.checkpoint.name, files.tokenizer.name


def _old_meaning(path: Path) -> object:
    old = read_legacy_config(path)
    rows, _, _ = translate_legacy_config(old, UserOverrides(language="am"))
    for row in rows:
        json.dumps(row.to_json(), allow_nan=False)
    read_old_config_numbers(path)
    return old.kind, [(row.old, row.value, row.outcome) for row in rows]


class OldConfigTarget(YamlTarget):
    """Configs of other trainers."""

    name: ClassVar[str] = "old-config"
    count: ClassVar[int] = 1500

    def make_seeds(self, folder: Path) -> None:
        (folder / "chatterbox.yaml").write_text(CHATTERBOX_CONFIG)
        (folder / "index.yaml").write_text(yaml.safe_dump(INDEX_CONFIG, sort_keys=False))

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "training_config.yaml"
        path.write_bytes(data)
        return _old_meaning(path)


class OldCommandTarget(Target):
    """Shell scripts and READMEs with the commands of other trainers."""

    name: ClassVar[str] = "old-command"
    count: ClassVar[int] = 1500
    _odd: ClassVar[tuple[str, ...]] = (
        *(
            "'",
            '"',
            "\\",
            "`",
            "$",
            "${",
            "$(",
            "|",
            "&&",
            ";",
            "#",
            ">",
            "<",
            "--",
            "-",
            "=",
            "\\\n",
            "$BASE",
            "${LANG:-x}",
            "*",
        ),
        *(
            "--tokenizer",
            "--learning-rate",
            "--vocab-size",
            "1e999",
            "nan",
            "-1",
            "9" * 5000,
            "x" * 5000,
            "~/x",
            "/",
            "A=$A$A",
        ),
        *(
            "python",
            "python x.py",
            "~~~yaml\na: &x 1\n~~~",
            "```yaml",
            "\t",
            "::am",
            "am=",
            "é",
            "\x1b",
            "\u2028",
            "export ",
        ),
    )

    def make_seeds(self, folder: Path) -> None:
        (folder / "train.sh").write_text(COMMANDS)

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        choice = rng.random()
        if choice < 0.15:
            return Mutant(seed, "byte damage", byte_mutations.damaged(data, rng)[0])
        if choice < 0.3:
            return Mutant(seed, "text damage", text_mutations.edited(data, rng)[0])
        words = data.decode().split(" ")
        for _ in range(rng.choice((1, 2, 5, 30))):
            at = rng.randrange(len(words))
            words[at : at + rng.randrange(2)] = [rng.choice((*self._odd, rng.choice(words)))]
        return Mutant(seed, "odd words", " ".join(words).encode())

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "train.sh"
        path.write_bytes(data)
        return _old_meaning(path)
