"""What a stage of a run is: whether it has to run, why, and how it is run. Knows no verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from voxgraft.config import AnySettings, merged_values, read_settings, settings_from
from voxgraft.errors import ConfigError, FileError, GraftError
from voxgraft.files import is_file
from voxgraft.going.settings import GoSettings, StageName
from voxgraft.graft_folder import CARD_NAME, GraftCard, read_card
from voxgraft.results import Result
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.run_yaml import settings_of
from voxgraft.training.step_folders import StepFolder, damage_of, step_folders

__all__ = ["Decision", "Stage", "Work"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a stage runs, and the reason that its user is told."""

    runs: bool
    why: str
    was: str = ""
    """The same reason once the stage is done; empty where `why` is true then as well."""

    @property
    def why_done(self) -> str:
        return self.was or self.why


class Work:
    """A run as it is at this moment, and what `go` was told."""

    def __init__(self, settings: GoSettings) -> None:
        self.told, self.run = settings, RunFolder(settings.run)
        if not is_file(self.run.settings):
            cure = f"make a run with `voxgraft new {self.run.path}`, or check the path."
            raise FileError("file-missing", f"{self.run.path} has no {RUN_FILE}", where=self.run.settings, cure=cure)
        self.settings  # noqa: B018 (what cannot be read is said before anything runs)

    @cached_property
    def settings(self) -> RunSettings:
        """What run.yaml says, and what `go` was given of the same keys over it."""
        values = merged_values(read_settings(RunSettings, self.run.settings), self.told.given)
        return settings_from(RunSettings, values, self.run.settings)

    def settings_of(self, kind: type[AnySettings], **flags: Any) -> AnySettings:
        """A verb's settings as its command line would have them, with what `go` was given."""
        return settings_of(kind, self.run, **self.told.given, **flags)

    @property
    def language(self) -> str:
        if self.settings.language is None:
            raise ConfigError("config-missing", "`language` is not given", where=self.run.settings)
        return self.settings.language

    @property
    def card(self) -> GraftCard | None:
        """What the run's graft says of itself; None where there is none yet."""
        return read_card(self.run.graft) if is_file(self.run.graft / CARD_NAME) else None

    @property
    def last_step(self) -> StepFolder | None:
        """The newest saved step that is whole, by its sizes."""
        whole = (folder for folder in reversed(step_folders(self.run)) if damage_of(folder, quick=True) is None)
        return next(whole, None)

    @property
    def is_trained(self) -> bool:
        """Whether some training would be lost with another graft."""
        card, step = self.card, self.last_step
        return (card is not None and "trained" in card.method) or (step is not None and step.step > 0)

    def changed(self, what: str) -> Decision:
        """A trained run asks for something else now: what is done about it is for its user to say."""
        if self.told.when_changed == "stop":
            found = f"the run was trained, and {what}"
            raise GraftError("trained-otherwise", found, where=self.run.path)
        fresh = self.told.when_changed == "fresh"
        flag = f"(--when-changed {self.told.when_changed})"
        if not fresh:
            return Decision(False, f"{what}; kept as it is {flag}")
        return Decision(True, f"{what}; begins again {flag}", f"{what}; began again {flag}")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: decides by what lies in the run, and runs one verb."""

    name: StageName
    decide: Callable[[Work], Decision]
    work: Callable[[Work], Result]
