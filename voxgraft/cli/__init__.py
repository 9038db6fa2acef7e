"""The command line: the only part of voxgraft that prints. It holds no knowledge of models or tokenizers."""

from voxgraft.cli.app import main, run_cli
from voxgraft.cli.commands import COMMANDS, CliCommand

__all__ = ["COMMANDS", "CliCommand", "main", "run_cli"]
