"""Make the tiny base and its listener from packages: corpus, codec, listener, base, scores; one command for all.

Every stage writes its result at once and is skipped where its result is there already, so that a run that was cut goes
on. Imports torch only in the stages, because every process that speaks reads this file again.

    python -m recipes.tiny_base.make --out made --packages packages
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.tiny_base.corpus import MAKE_COMMAND, CorpusSpec, Utterance, make_corpus
from recipes.tiny_base.texts import Split
from voxgraft.core.files import compute_sha256

if TYPE_CHECKING:
    import torch

    from recipes.tiny_base.base_batches import Example
    from recipes.tiny_base.fitting import Course
    from voxgraft.asr import BuiltInRecognizer
    from voxgraft.models.tiny.model import TinyCodec

STAGES = ("corpus", "codec", "listener", "base", "score", "second-ear")
USUAL_STAGES = "corpus,codec,listener,base,score"
BASE_LANGUAGES = ("en", "fr")
LEARNT_SPLITS: tuple[Split, ...] = ("train", "valid")
TEST_SPLITS: tuple[Split, ...] = ("test", "test-unheard")
SECONDS = {
    "toy": {"codec": 12.0, "listener": 12.0, "base": 20.0},
    "full": {"codec": 200.0, "listener": 230.0, "base": 340.0},
}
STARTED = time.monotonic()
LISTENER_CARD = {
    "what": "a small CTC recogniser of synthetic English, French and Amharic; made by recipes/tiny_base",
    "licence": "Apache-2.0",
    "from": "speech of espeak-ng (phones from it too) and flite; sources of the texts: recipes/tiny_base/README.md",
    "command": MAKE_COMMAND,
}


@dataclass(frozen=True)
class Making:
    """What was asked for, and what several stages need."""

    out: Path
    spec: CorpusSpec
    seconds: dict[str, float]
    device_name: str

    @property
    def base_folder(self) -> Path:
        return self.out / "tiny"

    @property
    def listener_folder(self) -> Path:
        return self.out / "listener"

    def setup(self, stage: str) -> Course:
        from recipes.tiny_base.fitting import Course

        return Course(self.spec.size, self.seconds[stage], self.device, self.spec.seed, tell)

    @cached_property
    def device(self) -> torch.device:
        import torch

        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if self.device_name == "auto" else self.device_name
        return torch.device(chosen)

    @cached_property
    def corpus(self) -> list[Utterance]:
        return make_corpus(self.spec, tell)

    @cached_property
    def codec(self) -> TinyCodec:
        from voxgraft.models.tiny.model import TinyCodec

        return TinyCodec.open(self.base_folder / "codec.safetensors").to(self.device)

    @cached_property
    def listener(self) -> BuiltInRecognizer:
        from voxgraft.asr import BuiltInRecognizer

        return BuiltInRecognizer.open(self.listener_folder)


def main() -> None:
    """Run the stages that were asked for."""
    making, stages = asked()
    making.out.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        began = time.monotonic()
        RUNNERS[stage](making)
        tell(f"{stage}: stage done in {time.monotonic() - began:.0f} s")


def asked() -> tuple[Making, list[str]]:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, cards and scores")
    parser.add_argument("--packages", type=Path, required=True, help="folder that gather.py made")
    parser.add_argument("--corpus", type=Path, help="folder for the speech, 6 GB at full size (default: OUT/corpus)")
    parser.add_argument("--size", choices=["toy", "full"], default="full")
    parser.add_argument("--stages", default=USUAL_STAGES, help=f"of {','.join(STAGES)} (default: %(default)s)")
    for stage in SECONDS["full"]:
        parser.add_argument(f"--seconds-{stage}", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    stages = given.stages.split(",")
    if unknown := set(stages) - set(STAGES):
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    only_scores = set(stages) <= {"score", "second-ear"}
    splits: tuple[Split, ...] = TEST_SPLITS if only_scores else (*LEARNT_SPLITS, *TEST_SPLITS)
    folder = given.corpus or given.out / "corpus"
    spec = CorpusSpec(given.packages, folder, given.size, given.seed, given.processes, splits)
    seconds = {stage: getattr(given, f"seconds_{stage}") or SECONDS[given.size][stage] for stage in SECONDS["full"]}
    return Making(given.out, spec, seconds, given.device), stages


def run_corpus(making: Making) -> None:
    """Speak everything; later stages take it from memory."""
    assert making.corpus


def run_codec(making: Making) -> None:
    """Train the codec, unless it is there."""
    from recipes.tiny_base.train_codec import train_codec

    path = making.base_folder / "codec.safetensors"
    if path.exists():
        tell(f"codec: {path} is there already")
        return
    codec, report = train_codec(making.corpus, making.setup("codec"))
    path.parent.mkdir(parents=True, exist_ok=True)
    codec.save(path)
    write_json(making.out / "codec-training.json", report)


def run_listener(making: Making) -> None:
    """Train the listener, unless it is there."""
    from recipes.tiny_base.train_listener import train_listener

    folder = making.listener_folder
    if (folder / "listener.safetensors").exists():
        tell(f"listener: {folder} is there already")
        return
    listener, report = train_listener(making.corpus, making.codec, making.setup("listener"))
    listener.save(folder)
    write_json(folder / "card.json", LISTENER_CARD | {"trained": report, "files": hashes(folder)})


def run_base(making: Making) -> None:
    """Train the base on the codes of its two languages, unless it is there."""
    from recipes.tiny_base import train_base as base

    folder = making.base_folder
    if (folder / "t3.safetensors").exists():
        tell(f"base: {folder} is there already")
        return
    began = time.monotonic()
    codec, device = making.codec, making.device
    own = [one for one in making.corpus if one.language in BASE_LANGUAGES]
    train, valid = (_examples([one for one in own if one.split == split], codec, device) for split in LEARNT_SPLITS)
    tell(f"base: {len(train):,} utterances as codes, {time.monotonic() - began:.0f} s")
    usual = base.BaseSettings() if making.spec.size == "full" else base.TOY
    size = replace(usual.size, speech_rows=codec.num_codes + 2, speaker_width=len(codec.speakers))
    settings = replace(
        usual, size=size, seconds=making.seconds["base"], seed=making.spec.seed, device=str(making.device)
    )
    base.write_card(folder, base.train_on(train, valid, codec.speakers, folder, settings))


def _examples(utterances: list[Utterance], codec: TinyCodec, device: torch.device) -> list[Example]:
    from recipes.tiny_base.pile import codes_of
    from recipes.tiny_base.train_base import Example

    return [
        Example(one.language, one.text, codes, codec.speakers.index(one.speaker))
        for one, codes in zip(utterances, codes_of(utterances, codec, device), strict=True)
    ]


def run_score(making: Making) -> None:
    """Listen to everything that is there, and write what was heard into the cards."""
    from recipes.tiny_base.measure import measure

    base = making.base_folder if (making.base_folder / "t3.safetensors").exists() else None
    scores = measure(making.corpus, making.codec, making.listener, base, making.device, tell)
    write_scores(making, {"built-in": scores})


def run_second_ear(making: Making) -> None:
    """English by PocketSphinx, on the CPU."""
    from recipes.tiny_base.measure import second_ear

    base = making.base_folder if (making.base_folder / "t3.safetensors").exists() else None
    scores = second_ear(making.corpus, making.codec.to("cpu"), base, tell)
    if scores:
        write_scores(making, {"pocketsphinx": scores})


RUNNERS = {
    "corpus": run_corpus,
    "codec": run_codec,
    "listener": run_listener,
    "base": run_base,
    "score": run_score,
    "second-ear": run_second_ear,
}


def write_scores(making: Making, more: dict[str, Any]) -> None:
    """Add to scores.json, and to the cards that are there."""
    path = making.out / "scores.json"
    scores = (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}) | more
    write_json(path, scores)
    for card in (making.base_folder / "card.json", making.listener_folder / "card.json"):
        if card.exists():
            content = json.loads(card.read_text(encoding="utf-8"))
            write_json(card, content | {"scores": scores})


def hashes(folder: Path) -> dict[str, dict[str, object]]:
    """Sizes and hashes of a folder's files, without its card."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "card.json")
    return {path.name: {"bytes": path.stat().st_size, "sha256": compute_sha256(path)} for path in files}


def write_json(path: Path, content: object) -> None:
    """Write a document for people to read too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def tell(line: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f}] {line}", flush=True)


if __name__ == "__main__":
    main()
