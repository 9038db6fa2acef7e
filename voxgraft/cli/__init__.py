"""The command line: the only part of voxgraft that prints. It holds no knowledge of models or tokenizers."""

from voxgraft.cli.app import main, run
from voxgraft.cli.verbs import VERBS, Verb

__all__ = ["VERBS", "Verb", "main", "run"]
