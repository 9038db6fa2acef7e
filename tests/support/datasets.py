"""Prepared sets of random clips that fit a family, and manifests of pairs as the community's IndexTTS-2 preprocessing writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.dataset.sets import open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import (
    AnyArray,
    ClipDataset,
    DatasetHeader,
    DatasetProvenance,
    DatasetRole,
    Int32Array,
    compute_index_checksum,
)
from voxgraft.models.base import Clip, SequenceSpec

CODE_HZ = {"chatterbox": 25.0, "indextts2": 50.0, "tiny": 25.0, "xtts": 22_050 / 1024}
MAX_PROMPT = 150
SPEAKER_WIDTH = 256
NUM_LATENTS = 32
VECTOR_WIDTH = 512
TABLE_SPEAKERS = 4
LETTERS = [chr(code) for code in range(0x1208, 0x1248)]
MADE_FROM = DatasetProvenance("a" * 64, "b" * 64, {"codec": "made up"}, {"min_seconds": 1.0})


def make_set(
    folder: Path,
    family_name: str,
    spec: SequenceSpec,
    *,
    clips: int = 12,
    speakers: int = 3,
    seed: int = 0,
    language: str = "am",
    role: DatasetRole = "train",
    width: int = 64,
    seconds: tuple[float, float] = (1.0, 6.0),
    made_from: DatasetProvenance = MADE_FROM,
    shard_clips: int = 2000,
) -> ClipDataset:
    """Write a set and open it. `width` is the model's, for families whose voices have it."""
    header = DatasetHeader(family_name, language, role, CODE_HZ[family_name], made_from)
    made = made_clips(family_name, spec, clips=clips, speakers=speakers, seed=seed, width=width, seconds=seconds)
    write_clip_dataset(folder, header, made, shard_clips)
    return open_clip_dataset(folder)


def made_clips(
    family_name: str,
    spec: SequenceSpec,
    *,
    clips: int,
    speakers: int,
    seed: int,
    width: int = 64,
    seconds: tuple[float, float] = (1.0, 6.0),
) -> Iterator[Clip]:
    """Clips whose voices are alike within a speaker, two to a recording."""
    random = np.random.default_rng(seed)
    voices = [_voice(family_name, width, random) for _ in range(speakers)]
    for number in range(clips):
        speaker = number % speakers
        length = int(random.uniform(*seconds) * CODE_HZ[family_name])
        length = min(max(4, length), spec.max_codes)
        codes = random.integers(0, spec.num_codes, length)
        text_ids = _text_ids(spec, min(spec.max_text, max(2, length // 6)), random)
        voice = {name: _near(array, random) for name, array in voices[speaker].items()}
        if family_name == "tiny":
            voice["speaker"] = np.array([speaker % TABLE_SPEAKERS], dtype=np.int32)
        if family_name == "chatterbox":
            voice["speaker"] /= np.linalg.norm(voice["speaker"])
            voice["prompt"] = codes[:MAX_PROMPT].astype(np.int32)
        text = "".join(random.choice(LETTERS, len(text_ids)))
        names = f"clip{number:06d}", f"speaker{speaker}", f"recording{number // 2}"
        yield Clip(codes, voice, text_ids, *names, length / CODE_HZ[family_name], text)


def _voice(family_name: str, width: int, random: np.random.Generator) -> dict[str, AnyArray]:
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "chatterbox": {"speaker": (SPEAKER_WIDTH,)},
        "indextts2": {"latents": (NUM_LATENTS, width), "emotion": (width,)},
        "tiny": {},
        "xtts": {"latents": (NUM_LATENTS, width), "speaker": (VECTOR_WIDTH,)},
    }
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes[family_name].items()}


def _near(array: AnyArray, random: np.random.Generator) -> AnyArray:
    moved: AnyArray = array + 0.1 * random.standard_normal(array.shape, np.float32)
    return moved.astype(np.float32)


def _text_ids(spec: SequenceSpec, count: int, random: np.random.Generator) -> AnyArray:
    """Ordinary ids: not the ones that begin and end a text, nor the ones that the original program takes out."""
    special = {spec.text_start, spec.text_stop, *spec.forbidden_text_ids}
    ordinary = np.array([one for one in range(spec.num_text_ids) if one not in special])
    return random.choice(ordinary, count)


def write_document(folder: Path, document: Mapping[str, Any]) -> None:
    """Another set.json, with the checksum that `write_set` would have given it."""
    values = {key: value for key, value in document.items() if key != "checksum"}
    (folder / "set.json").write_text(json.dumps({**values, "checksum": compute_index_checksum(values)}))


class ListedSet(ClipDataset):
    """A set in memory, for orders of data that are asked about by the thousand: speakers, seconds and lengths alone."""

    def __init__(self, name: str, speakers: Sequence[str], seconds: Sequence[float], ids: Sequence[str] = ()) -> None:
        self.name = name
        self.header = DatasetHeader("chatterbox", "am", "train", CODE_HZ["chatterbox"], MADE_FROM)
        ids = ids or [f"{name}-{number:04d}" for number in range(len(speakers))]
        self.infos = [
            Clip(id=one, speaker=speaker, recording=one, seconds=length)
            for one, speaker, length in zip(ids, speakers, seconds, strict=True)
        ]
        self.num_codes = np.array([round(length * CODE_HZ["chatterbox"]) for length in seconds], dtype=np.int64)
        self.num_text = np.array([1 + round(length * 3) for length in seconds], dtype=np.int64)
        self.fingerprint = ""

    def text_ids(self, clip: int) -> Int32Array:
        return np.full(self.num_text[clip], 3, dtype=np.int32)

    def codes(self, clip: int) -> Int32Array:
        return np.full(self.num_codes[clip], 3, dtype=np.int32)

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return {"speaker": np.ones(SPEAKER_WIDTH, dtype=np.float32)}


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
