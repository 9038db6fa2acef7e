"""Settings that had another name before: the new name for the error message, and for options in saved steps.

Imports nothing, so that training can read old steps where pydantic is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RENAMED_SETTINGS", "rename_saved_mode", "rename_saved_options", "rename_saved_values"]

RENAMED_SETTINGS = {
    "train.row_rate": "train.lr_rows",
    "train.adapter_rate": "train.lr_adapter",
    "train.body_rate": "train.lr_backbone",
    "train.clip": "train.max_grad_norm",
    "train.final_share": "train.min_lr_ratio",
    "train.checkpointing": "train.gradient_checkpointing",
    "train.silent_share": "train.text_dropout",
    "train.tokens_per_step": "train.batch_tokens",
    "train.pack_tokens": "train.microbatch_tokens",
    "train.listener": "train.recognizer",
    "data.lone_clips": "data.single_clip_speakers",
    "evaluate.recogniser": "evaluate.recognizer",
    "recogniser": "recognizer",
    "listener": "recognizer",
    "most": "max_sentences",
    "anew": "force",
    "which": "variant",
    "as_in_the_seeds": "baseline",
}
"""Old key -> new key, as in run.yaml or, with hyphens, as a flag. Old keys are refused; the error names the new one."""
_RATES_BY_PART = {"rows": "lr_rows", "adapter": "lr_adapter", "body": "lr_backbone"}
"""Format 1 had one option with the rates of all parts."""
_OLD_BASELINE, _BASELINE = "as-in-the-seeds", "masked-finetune"


def rename_saved_mode(mode: Any) -> Any:
    """The mode in a journal or a saved step, by today's name."""
    return _BASELINE if mode == _OLD_BASELINE else mode


def rename_saved_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Training options of a saved step or of a trained graft's card, by today's names."""
    renamed = {_new_option_name(name): value for name, value in options.items() if name != "rates"}
    if isinstance(rates := options.get("rates"), Mapping):
        renamed |= {new: rates[part] for part, new in _RATES_BY_PART.items() if part in rates}
    return {**renamed, "mode": rename_saved_mode(renamed["mode"])} if "mode" in renamed else renamed


def rename_saved_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a step of state format 1 with the option names of format 2."""
    renamed = {_new_option_name(name): value for name, value in values.items()}
    identity = values.get("identity")
    if isinstance(identity, Mapping) and isinstance(options := identity.get("options"), Mapping):
        renamed["identity"] = {**identity, "options": rename_saved_options(options)}
    return renamed


def _new_option_name(name: str) -> str:
    """Options in a step have the names of the settings in `train`, without the section."""
    return RENAMED_SETTINGS.get(f"train.{name}", f"train.{name}").removeprefix("train.")
