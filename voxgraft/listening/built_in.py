"""The listener that ships with voxgraft: a small network for the demo's languages, on the CPU, by greedy CTC.

Hears synthetic voices as they come out of the tiny codec; it was taught nothing else. Trained by recipes/tiny_base.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.audio.exact import exact_float32
from voxgraft.audio.waves import Limits, length_batches, mono_waves
from voxgraft.errors import AudioError, CheckpointError, ConfigError
from voxgraft.listening.interface import Heard
from voxgraft.listening.network import BLANK, SAMPLES_A_STEP, Network, NetworkConfig, num_steps
from voxgraft.nn.unfilled import undrawn

__all__ = ["LISTENER_FOLDER", "BuiltIn", "Symbols"]

RATE_HZ = 16_000
LISTENER_FOLDER = Path(__file__).resolve().parent.parent / "data" / "listener"
WEIGHTS_NAME, NOTES_NAME = "listener.safetensors", "listener.json"
FORMAT = "voxgraft-listener-1"
LIMITS = Limits(RATE_HZ, min_samples=SAMPLES_A_STEP)
BATCH_SAMPLES = 40 * RATE_HZ


@dataclass(frozen=True, slots=True)
class Symbols:
    """What the two heads can write; symbol k has the number k + 1, since 0 is the blank."""

    letters: tuple[str, ...]
    phones: tuple[str, ...]
    by_language: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    """The letters and the phones of each language; the order is the languages' numbering."""

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.by_language)

    def allowed(self, language: str) -> tuple[Tensor, Tensor]:
        """Which letters and which phones, blank first, the language has."""
        letters, phones = self.by_language[language]
        return (
            torch.tensor([True, *(letter in letters for letter in self.letters)]),
            torch.tensor([True, *(phone in phones for phone in self.phones)]),
        )

    def to_json(self) -> dict[str, Any]:
        languages = {
            language: {"letters": sorted(letters), "phones": sorted(phones)}
            for language, (letters, phones) in self.by_language.items()
        }
        return {"letters": list(self.letters), "phones": list(self.phones), "languages": languages}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        by_language = {
            language: (frozenset(own["letters"]), frozenset(own["phones"]))
            for language, own in values["languages"].items()
        }
        return cls(tuple(values["letters"]), tuple(values["phones"]), by_language)


class BuiltIn:
    """The network with its symbols."""

    sample_rate: int | None = RATE_HZ

    def __init__(self, network: Network, symbols: Symbols, name: str = "built-in") -> None:
        self.network, self.symbols = network.eval(), symbols
        self.name = name
        self.languages = frozenset(symbols.languages)

    @classmethod
    def open(cls, folder: Path | None = None) -> Self:
        """From a folder with listener.safetensors and listener.json; the one that ships unless another is named."""
        from voxgraft.families.tensors import part_file, read_tensors

        place = LISTENER_FOLDER if folder is None else folder
        symbols, config = _read_notes(part_file(place, (NOTES_NAME,)))
        with undrawn():
            network = Network(config)
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        network.load_state_dict(read_tensors(part_file(place, (WEIGHTS_NAME,)), shapes))
        return cls(network.requires_grad_(False), symbols)

    def save(self, folder: Path) -> None:
        """Write the weights in half precision, and beside them symbols and sizes."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.detach().to("cpu", torch.float16) for name, tensor in self.network.state_dict().items()}
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / WEIGHTS_NAME)
        notes = {"format": FORMAT, "network": asdict(self.network.config), **self.symbols.to_json()}
        (folder / NOTES_NAME).write_text(json.dumps(notes, ensure_ascii=False, indent=1), encoding="utf-8")

    def hear(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Heard]:
        """Letters and phones of every wave; those of about one length go through together."""
        if language not in self.languages:
            expected = ", ".join(sorted(self.languages))
            raise ConfigError("listener-language", f"language {language!r}", expected=expected, where=self.name)
        if rate != RATE_HZ:
            raise AudioError("listener-rate", f"{rate:,} Hz", expected=f"{RATE_HZ:,} Hz", where=self.name)
        checked = mono_waves(waves, LIMITS)
        heard: dict[int, Heard] = {}
        for places in length_batches([len(wave) for wave in checked], BATCH_SAMPLES):
            found = self._hear([checked[place] for place in places], language)
            heard.update(zip(places, found, strict=True))
        return [heard[place] for place in range(len(checked))]

    @torch.no_grad()
    def _hear(self, waves: list[Tensor], language: str) -> list[Heard]:
        device = next(self.network.parameters()).device
        lengths = torch.tensor([len(wave) for wave in waves], device=device)
        batch = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True).to(device)
        batch = torch.nn.functional.pad(batch, (0, -batch.shape[1] % SAMPLES_A_STEP))
        languages = torch.full_like(lengths, self.symbols.languages.index(language))
        with exact_float32():
            letters, phones = self.network(batch, lengths, languages)
        allowed_letters, allowed_phones = self.symbols.allowed(language)
        steps = num_steps(lengths).tolist()
        spelled = written(letters, allowed_letters, steps)
        spoken = written(phones, allowed_phones, steps)
        return [
            Heard(
                " ".join("".join(self.symbols.letters[k - 1] for k in own).split()),
                tuple(self.symbols.phones[k - 1] for k in said),
            )
            for own, said in zip(spelled, spoken, strict=True)
        ]


def written(scores: Tensor, allowed: Tensor, steps: Sequence[int]) -> list[list[int]]:
    """The likeliest symbol of every step, repeats and blanks removed. [B, T, symbols] -> one list for each clip"""
    best = scores.float().cpu().masked_fill(~allowed, -torch.inf).argmax(-1)  # [B, T]
    rows = [torch.unique_consecutive(row[:count]).tolist() for row, count in zip(best, steps, strict=True)]
    return [[symbol for symbol in row if symbol != BLANK] for row in rows]


def _read_notes(path: Path) -> tuple[Symbols, NetworkConfig]:
    from voxgraft.files import read_json

    notes = read_json(path)
    try:
        if not isinstance(notes, dict) or notes.get("format") != FORMAT:
            raise ValueError(f"not {FORMAT}")
        symbols, config = Symbols.of_json(notes), NetworkConfig(**notes["network"])
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        expected = f"the notes of a listener ({FORMAT}: network, letters, phones, languages)"
        raise CheckpointError("codec-notes", f"{fault}", expected=expected, where=path) from fault
    found = (len(symbols.letters), len(symbols.phones), len(symbols.languages))
    stated = (config.num_letters, config.num_phones, config.num_languages)
    if found != stated:
        expected = f"{stated} of them"
        told = f"{found} letters, phones and languages"
        raise CheckpointError("codec-notes", told, expected=expected, where=path)
    return symbols, config
