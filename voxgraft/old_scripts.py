"""What is known of one script of a fork: its flags, and what becomes of each. The scripts: `old_flags.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from voxgraft.old_keys import LegacyKeyRule

__all__ = ["LegacyScript", "parse_flag_names"]


@dataclass(frozen=True, slots=True)
class LegacyScript:
    """One script of a fork: its flags, and the rule for each; flags without a rule of their own share `rest`."""

    path: str
    """As much of its path as is needed to tell it from scripts of the same name."""
    family: str
    now: str
    """What to type today, or why nothing."""
    flags: tuple[str, ...]
    rest: LegacyKeyRule
    rules: dict[str, LegacyKeyRule] = field(default_factory=dict)
    words: bool = False
    """Whether words without a flag mean something to it, such as `import` and `list`."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".py")

    def rule(self, flag: str) -> LegacyKeyRule | None:
        """The rule of a flag, or None where the script has no such flag."""
        if not flag:  # a word without a flag, which only chooses what the script does
            return self.rest if self.words else None
        return self.rules.get(flag) or (self.rest if flag in self.flags else None)


def parse_flag_names(words: str) -> tuple[str, ...]:
    """Words as flags, two dashes before each."""
    return tuple(f"--{word}" for word in words.split())
