"""The table of what is fuzzed. Each target is imported only in the process that needs it."""

from __future__ import annotations

from importlib import import_module

from tests.fuzz.target import Target

_TARGETS = {
    "safetensors": "checkpoints:SafetensorsTarget",
    "torch-zip": "checkpoints:TorchZipTarget",
    "torch-pickle": "checkpoints:TorchPickleTarget",
    "torch-legacy": "checkpoints:LegacyTarget",
    "shards": "checkpoints:ShardsTarget",
    "tokenizer-json": "tokenizers:BpeJsonTarget",
    "flat-map": "tokenizers:FlatMapTarget",
    "additions": "tokenizers:AdditionsTarget",
    "sentencepiece": "sentencepiece_models:SentencePieceTarget",
    "graft-card": "grafts:CardTarget",
    "rows": "grafts:RowsTarget",
    "run-yaml": "settings:RunYamlTarget",
    "base-config": "settings:BaseConfigTarget",
    "old-config": "settings:OldConfigTarget",
    "old-command": "settings:OldCommandTarget",
    "text": "texts:TextTarget",
    "cangjie": "texts:CangjieTarget",
    "npy": "texts:NpyTarget",
    "subtitles": "importing:SubtitleTarget",
    "recording-list": "importing:ListTarget",
    "corpus": "importing:CorpusTarget",
    "media": "importing:MediaTarget",
    "manifest": "importing:ManifestTarget",
    "bring": "bringing:BringTarget",
    "verbs": "verbs:VerbTarget",
    "command-line": "verbs:CommandLineTarget",
    "bombs": "bombs:BombTarget",
}
_FOR_THE_HARNESS = {"faulty": "faulty:FaultyTarget"}


def target_names() -> list[str]:
    """Names of all targets that must survive."""
    return list(_TARGETS)


def make_target(name: str) -> Target:
    """The target of that name."""
    module, _, kind = (_TARGETS | _FOR_THE_HARNESS)[name].partition(":")
    made = getattr(import_module(f"tests.fuzz.targets.{module}"), kind)()
    assert isinstance(made, Target)
    return made
