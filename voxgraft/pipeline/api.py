"""The Python interface to the commands `graft`, `train` and `evaluate`: they take settings by name, return results.

A setting has its name in run.yaml: `train(run, train={"steps": 900})` is `voxgraft train RUN --train.steps 900`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxgraft.config.base import AnySettings, deep_merge, parse_settings, read_settings_values
from voxgraft.config.commands import EvaluateSettings, GraftSettings, TrainCommandSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.files import require_file
from voxgraft.core.run import RUN_FILE

if TYPE_CHECKING:
    from voxgraft.evaluation.command import EvaluateResult
    from voxgraft.evaluation.listening import ListeningTestResult
    from voxgraft.graft.command import GraftResult
    from voxgraft.pipeline.train import TrainResult


def graft(run: str | Path, **settings: Any) -> GraftResult:
    """Extend the tokenizer of a run's base for its language, verify it, and initialize the new rows."""
    from voxgraft.graft.command import graft as command

    return command(_read_run(GraftSettings, run, settings))


def train(run: str | Path, **settings: Any) -> TrainResult:
    """Train the graft of a run, or resume its training."""
    from voxgraft.pipeline.train import train as command

    return command(_read_run(TrainCommandSettings, run, settings))


def evaluate(model: str | Path, **settings: Any) -> EvaluateResult | ListeningTestResult:
    """Compare a run, a graft or a checkpoint with its base, and write the report."""
    from voxgraft.evaluation.command import evaluate as command

    return command(parse_settings(EvaluateSettings, {**settings, "model": Path(model)}, "evaluate"))


def _read_run(kind: type[AnySettings], run: str | Path, settings: dict[str, Any]) -> AnySettings:
    """The settings of run.yaml, and over them those that are given."""
    path = require_file(Path(run) / RUN_FILE)
    values = read_settings_values(RunSettings, path)
    parse_settings(RunSettings, values, path)
    return parse_settings(kind, deep_merge(values, {**settings, "run": Path(run)}), "settings")
