"""How the demonstration trains: the values that it writes into run.yaml, and nothing else.

Found by experiment on two cores for a run of a few hundred steps; docs/demo.md has the figures. A run of your own is
longer, and the defaults are for that.
"""

from __future__ import annotations

from typing import Any

from voxgraft.settings import DemoSettings

__all__ = ["DEMO_STEPS", "build_demo_settings", "build_step_settings"]

DEMO_STEPS = 560
"""About three and a half minutes on two cores."""
NUM_VALIDATIONS, MIN_VALIDATION_INTERVAL = 3, 20
"""Validations after step 0, and the fewest steps between two of them, each of which takes as long as some steps."""
WARMUP_RATIO = 0.05


def build_demo_settings(settings: DemoSettings) -> dict[str, dict[str, Any]]:
    """Sections of run.yaml with what is other than usual."""
    return {
        # Sixty minutes are too few to learn pieces of several letters well: letters alone, and each often.
        "tokenizer": {"pieces": 0},
        # A voice of the built-in base is a number: there is no prompt that could be too short.
        "data": {"min_prompt_seconds": 0.0},
        "train": {
            "adapter_rate": 2e-3,
            "final_share": 0.02,
            "tokens_per_step": 800,
            "pack_tokens": 2048,
            "seed": settings.seed,
            "tensorboard": False,
            "keep_last": 1,
            **build_step_settings(settings.steps or DEMO_STEPS)["train"],
        },
    }


def build_step_settings(steps: int) -> dict[str, dict[str, Any]]:
    """The length of the run, and all that is counted in steps."""
    look = max(MIN_VALIDATION_INTERVAL, -(-steps // NUM_VALIDATIONS))
    return {
        "train": {
            "steps": steps,
            "warmup_steps": max(1, round(WARMUP_RATIO * steps)),
            "valid_every": look,
            "save_every": look,
            "sample_every": look,
            "log_every": max(1, min(10, steps // 12)),
        }
    }
