"""From logits to the next code, in the order of the stock programs, without ever waiting for the device.

Order: guidance, repetition penalty, temperature, top-k, min-p, top-p, draw. Needs torch only.

Shapes: N streams, V speech rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxgraft.core.errors import ConfigError

__all__ = ["SamplingParams", "apply_guidance", "apply_repetition_penalty", "filter_logits", "sample_codes"]

# Below this, logits divided by it could leave the range of numbers; 0 asks for the best code outright.
MIN_TEMPERATURE = 0.001


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How codes are drawn. Temperature 0 takes the best one."""

    temperature: float = 0.8
    top_k: int = 0
    """Only this many of the best codes; 0 is all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    guidance: float = 0.0
    """How far to go from the reading without text towards the one with it; 0 is the plain reading."""
    max_codes: int = 1000
    readable: bool = True
    """Only codes that the speech decoder can read, and stop. Off, the stock program's own choice."""
    stock: bool = True
    """Begin and count positions as the stock program does."""

    def __post_init__(self) -> None:
        wrong = {
            "temperature": self.temperature != 0 and not MIN_TEMPERATURE <= self.temperature < float("inf"),
            "top_k": self.top_k < 0,
            "top_p": not 0 < self.top_p <= 1,
            "min_p": not 0 <= self.min_p < 1,
            "repetition_penalty": not 0 < self.repetition_penalty < float("inf"),
            "guidance": not 0 <= self.guidance < float("inf"),
            "max_codes": self.max_codes < 1,
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError("sampling", f"{name} is {getattr(self, name)}", expected=_EXPECTED_RANGES[name])


_EXPECTED_RANGES = {
    "temperature": f"0, or {MIN_TEMPERATURE} or more",
    "top_k": "0 or more",
    "top_p": "above 0, at most 1",
    "min_p": "0 or more, below 1",
    "repetition_penalty": "above 0 (1 is none)",
    "guidance": "0 or more",
    "max_codes": "1 or more",
}


def apply_guidance(logits: Tensor, guidance: float) -> Tensor:
    """Rows with text, then the same rows without it -> one row a stream. [2 N, V] -> [N, V]"""
    with_text, without = logits.chunk(2)
    return with_text + guidance * (with_text - without)


def apply_repetition_penalty(logits: Tensor, heard: Tensor, penalty: float) -> Tensor:
    """Codes heard before are made less likely, once each. [N, V], [N, V] bool -> [N, V]"""
    if penalty == 1.0:
        return logits
    return torch.where(heard, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def filter_logits(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Logits after temperature and the cuts; what is cut is minus infinity. [N, V] -> [N, V]"""
    if sampling.temperature == 0:
        return logits
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        # Ties with the last of the k stay, as in transformers.
        lowest = logits.topk(sampling.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    if sampling.min_p > 0:
        shares = logits.softmax(-1)
        logits = logits.masked_fill(shares < sampling.min_p * shares.amax(-1, keepdim=True), -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(descending=True)
        shares = ordered.softmax(-1)
        beyond = shares.cumsum(-1) - shares >= sampling.top_p  # what is needed to reach the share stays
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    return logits


def sample_codes(logits: Tensor, noise: Tensor | None) -> Tensor:
    """The code of each stream. `noise` holds exponential draws; without it the best code is taken. [N, V] -> [N]"""
    if noise is None:
        return logits.argmax(-1)
    # argmax(p / exponential noise) draws with probability p, like torch.multinomial but without waiting for the device.
    return (logits.softmax(-1) / noise).argmax(-1)
