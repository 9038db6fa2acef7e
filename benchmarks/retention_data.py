"""What the retention benchmark learns from and speaks: Amharic of an hour, English and French for replay, sentences.

    python -m recipes.tiny_base.gather --out packages          # once; needs a network
    python -m benchmarks.retention_data --packages packages --out retention.safetensors

Speech comes from the recipe's own voices, held-out lines are those that its listener and base never heard, and codes
from the shipped codec. Minutes on one core. The file (under 2 MB) is for one base and says so; no text is in it but that
of the sentences. Trains nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from benchmarks.retention_training import FORMAT, STARTS, VOICES
from recipes.tiny_base.corpus import ESPEAK_SHARES, ETHIOPIC_PAUSES, MAX_SECONDS, MIN_SECONDS, SHARES, SIZES
from recipes.tiny_base.speech import RATE_HZ, Voices
from recipes.tiny_base.texts import EVALUATED, FOLDED, LANGUAGES, Line, plan_lines
from voxgraft.checkpoints import open_checkpoint
from voxgraft.config.run import RowSettings, VocabularySettings
from voxgraft.core.files import compute_sha256
from voxgraft.graft.rows import build_new_rows
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles
from voxgraft.models.tiny.model import TinyClipEncoder, load_codec
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.tokenizers import TextCorpus, open_tokenizer

NEW, OLD = "am", ("en", "fr")
BATCH = 64


@dataclass(frozen=True)
class Amounts:
    """How much of everything."""

    minutes: float = 62.0
    """Of Amharic; a little more than is asked for, since subsets are cut by minutes."""
    valid: int = 150
    replay: int = 600
    """Utterances of each old language, and as many texts for the base to say itself."""
    test: int = 100
    """Of each language beside the built-in sentences, half of them of unheard words."""


@dataclass
class Maker:
    """The recipe's voices and codec, and the spelling of the base with its graft."""

    packages: Path
    files: BaseFiles
    amounts: Amounts
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.voices = Voices(self.packages)
        self.encoder = TinyClipEncoder(*load_codec(self.files.folder))
        self.kind = get_family("tiny")
        self.base = open_tokenizer(self.files.tokenizer)
        self.text_encoder = TextEncoder.of(self.kind, self.base, None, NEW)

    def plan(self, language: str) -> list[Line]:
        """Every line of the recipe: what is held out there is held out here."""
        shares = SHARES[language] if self.voices.has_flite else ESPEAK_SHARES
        texts = self.packages / "texts"
        return plan_lines(texts, language, SIZES["full"][language], shares, self.voices.phones, 0)

    def spoken(self, lines: Iterable[Line]) -> Iterator[tuple[Line, NDArray[np.float32]]]:
        """Lines with their waves, without those that the recipe leaves out for their length."""
        for line in lines:
            wave = self.voices.speak(line.text.translate(ETHIOPIC_PAUSES), line.language, line.speaker)
            if MIN_SECONDS <= len(wave) / RATE_HZ <= MAX_SECONDS:
                yield line, wave.astype(np.float32) / np.float32(32768)

    def add(self, name: str, spoken: Sequence[tuple[Line, NDArray[np.float32]]]) -> None:
        """Keep a set of clips: codes, text ids, speakers."""
        codes = []
        for first in range(0, len(spoken), BATCH):
            some = spoken[first : first + BATCH]
            clips = self.encoder.encode([wave for _, wave in some], [line.speaker for line, _ in some])
            codes += [np.asarray(clip.codes) for clip in clips]
        self._keep(f"{name}.codes", codes)
        self.add_texts(name, [line for line, _ in spoken])
        numbers = [self.encoder.speakers.index(line.speaker) for line, _ in spoken]
        self.arrays[f"{name}.speakers"] = np.array(numbers, np.uint16)

    def add_texts(self, name: str, lines: Sequence[Line]) -> None:
        self._keep(f"{name}.ids", [np.array(self.text_encoder.encode(line.text, line.language)) for line in lines])

    def _keep(self, name: str, rows: Sequence[NDArray[Any]]) -> None:
        self.arrays[name] = np.concatenate(rows).astype(np.uint16)
        self.arrays[f"{name}.counts"] = np.array([len(row) for row in rows], np.uint16)

    def learn(self, lines: Sequence[Line]) -> None:
        """Grow the tokenizer by the letters of the training texts, and make the first rows in every way."""
        learnt = learn_language_pieces(
            self.text_encoder, TextCorpus(tuple(line.text for line in lines)), VocabularySettings(pieces=0)
        )
        self.text_encoder = TextEncoder.of(self.kind, self.base, learnt.grown, NEW)
        with open_checkpoint(self.files.checkpoint) as checkpoint:
            for start in STARTS:
                made = build_new_rows(checkpoint, self.text_encoder, RowSettings(init=start))
                for tensor, rows in made.rows.items():
                    self.arrays[f"rows.{start}.{tensor}"] = rows.astype(np.float16)
                print(f"rows, {start}: {made.methods}", flush=True)

    def sentences(self, planned: Sequence[Line], language: str) -> list[dict[str, Any]]:
        """The built-in sentences, then held-out lines of the recipe; each with who says it."""
        with (EVALUATED / f"{language}.tsv").open(encoding="utf-8", newline="") as stream:
            built_in = [(row["text"], bool(row["rare"])) for row in csv.DictReader(stream, delimiter="\t")]
        half = self.amounts.test // 2
        drawn = [
            (line.text, split == "test-unheard")
            for split in ("test", "test-unheard")
            for line in islice((one for one in planned if one.split == split), half)
        ]
        found = []
        for place, (text, unheard) in enumerate([*built_in, *drawn]):
            # Amharic texts of the recipe have one letter for each sound; letters that sound alike are none of the matter.
            written = text.translate(FOLDED) if language == NEW else text
            phones = [one for one in self.voices.phones(written.translate(ETHIOPIC_PAUSES), language) if "(" not in one]
            speaker = VOICES[place % len(VOICES)]
            found.append({"text": written, "phones": phones, "unheard": unheard, "speaker": speaker})
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder that recipes.tiny_base.gather made")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", type=Path, help="folder of the base (default: the one that ships)")
    parser.add_argument("--minutes", type=float, default=Amounts.minutes)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kind = get_family("tiny")
    folder = asked.base or kind.shipped_folder()
    assert folder is not None
    maker = Maker(asked.packages, kind.files(folder), Amounts(minutes=asked.minutes))
    notes = made(maker)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(maker.arrays, asked.out, metadata={"retention": json.dumps(notes, ensure_ascii=False)})
    print(f"{asked.out}: {asked.out.stat().st_size / 1e6:.2f} MB; {notes['seconds']}")


def made(maker: Maker) -> dict[str, Any]:
    """Fill a maker's arrays; gives what the file says of itself."""
    amounts, sentences, seconds = maker.amounts, {}, {}
    plans = {language: maker.plan(language) for language in LANGUAGES}
    lines = {
        (one, split): [x for x in plans[one] if x.split == split] for one in LANGUAGES for split in ("train", "valid")
    }
    own = _of_length(maker.spoken(lines[NEW, "train"]), 60 * amounts.minutes)
    seconds["am.train"] = round(sum(len(wave) for _, wave in own) / RATE_HZ)
    maker.learn([line for line, _ in own])
    maker.add("am.train", own)
    for language in OLD:
        train = lines[language, "train"]
        recorded = list(islice(maker.spoken(train), amounts.replay))
        seconds[f"{language}.replay"] = round(sum(len(wave) for _, wave in recorded) / RATE_HZ)
        maker.add(f"{language}.replay", recorded)
        maker.add_texts(f"{language}.said", train[-amounts.replay :])
    for language in LANGUAGES:
        maker.add(f"{language}.valid", list(islice(maker.spoken(lines[language, "valid"]), amounts.valid)))
        sentences[language] = maker.sentences(plans[language], language)
        said = [Line(language, one["speaker"], one["text"], "test") for one in sentences[language]]
        waves = [(line, wave) for line in said for _, wave in maker.spoken([line])]
        if len(waves) != len(said):
            raise RuntimeError(f"{len(said) - len(waves)} sentences of {language} are too long to be said")
        maker.add(f"{language}.sentences", waves)
        print(f"{language}: {len(said)} sentences", flush=True)
    return {
        "format": FORMAT,
        "base_sha256": compute_sha256(maker.files.checkpoint),
        "codec_sha256": compute_sha256(maker.files.folder / "codec.safetensors"),
        "pieces": maker.base.size,
        "seconds": seconds,
        "sentences": sentences,
    }


def _of_length(
    spoken: Iterator[tuple[Line, NDArray[np.float32]]], seconds: float
) -> list[tuple[Line, NDArray[np.float32]]]:
    """The first clips that come to so many seconds."""
    found: list[tuple[Line, NDArray[np.float32]]] = []
    samples = 0
    for line, wave in spoken:
        found.append((line, wave))
        samples += len(wave)
        if samples >= seconds * RATE_HZ:
            break
    return found


if __name__ == "__main__":
    main()
