"""What a stage of a run is: whether it has to run, why, and how it is run. Knows no verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from voxgraft.config import AnySettings, deep_merge, parse_settings, read_settings_values
from voxgraft.errors import ConfigError, FileError, GraftError
from voxgraft.files import is_file
from voxgraft.going.settings import GoSettings, StageName
from voxgraft.graft_folder import GRAFT_CARD_NAME, GraftCard, read_graft_card
from voxgraft.results import CommandResult
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.run_yaml import load_command_settings
from voxgraft.training.step_folders import StepFolder, find_step_damage, list_step_folders

__all__ = ["PipelineContext", "PipelineStage", "StageDecision"]


@dataclass(frozen=True, slots=True)
class StageDecision:
    """Whether a stage runs, and the reason that its user is told."""

    runs: bool
    why: str
    was: str = ""
    """The same reason once the stage is done; empty where `why` is true then as well."""

    @property
    def why_done(self) -> str:
        return self.was or self.why


class PipelineContext:
    """A run as it is at this moment, and what `run_pipeline` was told."""

    def __init__(self, settings: GoSettings) -> None:
        self.told, self.run = settings, RunFolder(settings.run)
        if not is_file(self.run.settings):
            cure = f"make a run with `voxgraft new {self.run.path}`, or check the path."
            raise FileError("file-missing", f"{self.run.path} has no {RUN_FILE}", where=self.run.settings, cure=cure)
        self.settings  # noqa: B018 (what cannot be read is said before anything runs)

    @cached_property
    def settings(self) -> RunSettings:
        """What run.yaml says, and what `run_pipeline` was given of the same keys over it."""
        values = deep_merge(read_settings_values(RunSettings, self.run.settings), self.told.given)
        return parse_settings(RunSettings, values, self.run.settings)

    def verb_settings(self, kind: type[AnySettings], **flags: Any) -> AnySettings:
        """A verb's settings as its command line would have them, with what `run_pipeline` was given."""
        return load_command_settings(kind, self.run, **self.told.given, **flags)

    @property
    def language(self) -> str:
        if self.settings.language is None:
            raise ConfigError("config-missing", "`run_language` is not given", where=self.run.settings)
        return self.settings.language

    @property
    def card(self) -> GraftCard | None:
        """What the run's graft says of itself; None where there is none yet."""
        return read_graft_card(self.run.graft) if is_file(self.run.graft / GRAFT_CARD_NAME) else None

    @property
    def last_step(self) -> StepFolder | None:
        """The newest saved step that is whole, by its sizes."""
        whole = (
            folder for folder in reversed(list_step_folders(self.run)) if find_step_damage(folder, quick=True) is None
        )
        return next(whole, None)

    @property
    def is_trained(self) -> bool:
        """Whether some training would be lost with another graft."""
        card, step = self.card, self.last_step
        return (card is not None and "trained" in card.method) or (step is not None and step.step > 0)

    def changed(self, what: str) -> StageDecision:
        """A trained run asks for something else now: what is done about it is for its user to say."""
        if self.told.when_changed == "stop":
            found = f"the run was trained, and {what}"
            raise GraftError("trained-otherwise", found, where=self.run.path)
        fresh = self.told.when_changed == "fresh"
        flag = f"(--when-changed {self.told.when_changed})"
        if not fresh:
            return StageDecision(False, f"{what}; kept as it is {flag}")
        return StageDecision(True, f"{what}; begins again {flag}", f"{what}; began again {flag}")


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One stage: decides by what lies in the run, and runs one verb."""

    name: StageName
    decide: Callable[[PipelineContext], StageDecision]
    work: Callable[[PipelineContext], CommandResult]
