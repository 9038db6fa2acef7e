"""Manifests of pairs with their `.npy` files, as the community's IndexTTS-2 preprocessing writes them. Own code.

`batch` pads the codes of neighbours to the longest of them, which is what its batched versions do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.dataset.shards import AnyArray

WIDTH = 16
PADDING_CODE = 77
TEXTS = ("ሰላም ለዓለም", "ሀገሬ ቆንጆ ነች", "በሰላም ግቡ", "ደህና ነህ ወይ")


def spell(text: str) -> list[int]:
    """A tokenizer for tests: one id for each character, from 10 on."""
    return [10 + ord(character) % 200 for character in text]


def spell_otherwise(text: str) -> list[int]:
    """Another of the same size, with other pieces on the same ids."""
    return [10 + (ord(character) * 7 + 3) % 200 for character in text]


@dataclass
class MadePairs:
    """What was written, for comparison."""

    manifest: Path
    records: list[dict[str, Any]]
    codes: dict[str, AnyArray]
    """The clips' own codes, without padding."""
    conditions: dict[str, AnyArray] = field(default_factory=dict)
    emotions: dict[str, AnyArray] = field(default_factory=dict)

    def rewrite(self) -> None:
        lines = [json.dumps(record, ensure_ascii=False) for record in self.records]
        self.manifest.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_pairs(
    folder: Path,
    *,
    clips: int = 12,
    speakers: int = 3,
    seed: int = 0,
    batch: int = 1,
    durations: bool = True,
    lengths: Sequence[int] = (),
    ends: Mapping[int, int] | None = None,
    codes_stated: bool = False,
    width: int = WIDTH,
) -> MadePairs:
    """Two prompts for each target. `ends` gives clips a silence of so many codes; `codes_stated` the true code_len."""
    random = np.random.default_rng(seed)
    for name in ("codes", "condition", "emo_vec", "text_ids"):
        (folder / name).mkdir(parents=True)
    made = MadePairs(folder / "train_pairs.jsonl", [], {})
    names = [f"spk{number % speakers:03d}_{number:06d}" for number in range(clips)]
    for number, name in enumerate(names):
        length = lengths[number] if lengths else int(random.integers(50, 400))
        codes = random.integers(100, 8192, length).astype(np.int32)
        if silence := (ends or {}).get(number):
            codes[-silence:] = PADDING_CODE
        made.codes[name] = codes
        made.conditions[name] = random.standard_normal((32, width), np.float32)
        made.emotions[name] = random.standard_normal(width, np.float32)
        np.save(folder / "condition" / f"{name}.npy", made.conditions[name])
        np.save(folder / "emo_vec" / f"{name}.npy", made.emotions[name])
        np.save(folder / "text_ids" / f"{name}.npy", np.array(spell(_text(number)), np.int32))
    stored = _stored(made.codes, names, batch)
    for name, codes in stored.items():
        np.save(folder / "codes" / f"{name}.npy", codes)
    made.records = list(_records(made, names, speakers, stored, durations, codes_stated))
    made.rewrite()
    return made


def _text(number: int) -> str:
    return f"{TEXTS[number % len(TEXTS)]} {number}"


def _stored(codes: Mapping[str, AnyArray], names: Sequence[str], batch: int) -> dict[str, AnyArray]:
    stored = {}
    for start in range(0, len(names), batch):
        mates = names[start : start + batch]
        longest = max(len(codes[name]) for name in mates)
        for name in mates:
            padding = np.full(longest - len(codes[name]), PADDING_CODE, np.int32)
            stored[name] = np.concatenate([codes[name], padding])
    return stored


def _records(
    made: MadePairs,
    names: Sequence[str],
    speakers: int,
    stored: Mapping[str, AnyArray],
    durations: bool,
    codes_stated: bool,
) -> list[dict[str, Any]]:
    records = []
    for number, target in enumerate(names):
        mates = [*names[number + speakers :: speakers], *names[number % speakers : number : speakers]]
        for prompt in mates[:2]:
            record = {
                "id": f"{target}__{prompt}",
                "speaker": target.split("_")[0],
                "prompt_id": prompt,
                "prompt_audio_path": f"audio/{prompt}.wav",
                "prompt_condition_path": f"condition/{prompt}.npy",
                "prompt_condition_len": 32,
                "prompt_emo_vec_path": f"emo_vec/{prompt}.npy",
                "target_id": target,
                "target_audio_path": f"audio/{target}.wav",
                "target_text": _text(number),
                "target_text_ids_path": f"text_ids/{target}.npy",
                "target_text_len": len(spell(_text(number))),
                "target_codes_path": f"codes/{target}.npy",
                "target_code_len": len((made.codes if codes_stated else stored)[target]),
                "target_emo_vec_path": f"emo_vec/{target}.npy",
            }
            if durations:
                record["prompt_duration"] = round(len(made.codes[prompt]) / 50, 3)
            records.append(record)
    return records
