"""Build the tiny base and its recognizer (`listener`) from packages: corpus, codec, recognizer, base, scores.

Every stage writes its result when it is finished. Stages with an existing result are skipped, so an interrupted build
resumes. torch is imported only in the stages, because every synthesis process imports this file.

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
    from recipes.tiny_base.fitting import TrainingSetup
    from voxgraft.asr import BuiltInRecognizer
    from voxgraft.models.tiny.model import TinyCodec

STAGES = ("corpus", "codec", "listener", "base", "score", "pocketsphinx")
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
    "what": "a small CTC recognizer of synthetic English, French and Amharic; made by recipes/tiny_base",
    "licence": "Apache-2.0",
    "from": "speech of espeak-ng (phones from it too) and flite; sources of the texts: recipes/tiny_base/README.md",
    "command": MAKE_COMMAND,
}


@dataclass(frozen=True)
class Making:
    """Settings of the build, and data that several stages need."""

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

    def setup(self, stage: str) -> TrainingSetup:
        from recipes.tiny_base.fitting import TrainingSetup

        return TrainingSetup(self.spec.size, self.seconds[stage], self.device, self.spec.seed, log)

    @cached_property
    def device(self) -> torch.device:
        import torch

        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if self.device_name == "auto" else self.device_name
        return torch.device(chosen)

    @cached_property
    def corpus(self) -> list[Utterance]:
        return make_corpus(self.spec, log)

    @cached_property
    def codec(self) -> TinyCodec:
        from voxgraft.models.tiny.model import TinyCodec

        return TinyCodec.open(self.base_folder / "codec.safetensors").to(self.device)

    @cached_property
    def listener(self) -> BuiltInRecognizer:
        from voxgraft.asr import BuiltInRecognizer

        return BuiltInRecognizer.open(self.listener_folder)


def main() -> None:
    """Run the requested stages."""
    making, stages = asked()
    making.out.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        began = time.monotonic()
        RUNNERS[stage](making)
        log(f"{stage}: stage done in {time.monotonic() - began:.0f} s")


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
    only_scores = set(stages) <= {"score", "pocketsphinx"}
    splits: tuple[Split, ...] = TEST_SPLITS if only_scores else (*LEARNT_SPLITS, *TEST_SPLITS)
    folder = given.corpus or given.out / "corpus"
    spec = CorpusSpec(given.packages, folder, given.size, given.seed, given.processes, splits)
    seconds = {stage: getattr(given, f"seconds_{stage}") or SECONDS[given.size][stage] for stage in SECONDS["full"]}
    return Making(given.out, spec, seconds, given.device), stages


def run_corpus(making: Making) -> None:
    """Synthesize the corpus; later stages use it from memory."""
    assert making.corpus


def run_codec(making: Making) -> None:
    """Train the codec, unless its file exists."""
    from recipes.tiny_base.train_codec import train_codec

    path = making.base_folder / "codec.safetensors"
    if path.exists():
        log(f"codec: {path} exists already")
        return
    codec, report = train_codec(making.corpus, making.setup("codec"))
    path.parent.mkdir(parents=True, exist_ok=True)
    codec.save(path)
    write_json(making.out / "codec-training.json", report)


def run_listener(making: Making) -> None:
    """Train the recognizer, unless its files exist."""
    from recipes.tiny_base.train_recognizer import train_recognizer

    folder = making.listener_folder
    if (folder / "listener.safetensors").exists():
        log(f"listener: {folder} exists already")
        return
    listener, report = train_recognizer(making.corpus, making.codec, making.setup("listener"))
    listener.save(folder)
    write_json(folder / "card.json", LISTENER_CARD | {"trained": report, "files": hashes(folder)})


def run_base(making: Making) -> None:
    """Train the base on the codes of its two languages, unless its files exist."""
    from recipes.tiny_base import train_base as base

    folder = making.base_folder
    if (folder / "t3.safetensors").exists():
        log(f"base: {folder} exists already")
        return
    began = time.monotonic()
    codec, device = making.codec, making.device
    own = [one for one in making.corpus if one.language in BASE_LANGUAGES]
    train, valid = (_examples([one for one in own if one.split == split], codec, device) for split in LEARNT_SPLITS)
    log(f"base: {len(train):,} utterances as codes, {time.monotonic() - began:.0f} s")
    usual = base.BaseSettings() if making.spec.size == "full" else base.TOY
    size = replace(usual.size, speech_rows=codec.num_codes + 2, speaker_width=len(codec.speakers))
    settings = replace(
        usual, size=size, seconds=making.seconds["base"], seed=making.spec.seed, device=str(making.device)
    )
    base.write_card(folder, base.train_on(train, valid, codec.speakers, folder, settings))


def _examples(utterances: list[Utterance], codec: TinyCodec, device: torch.device) -> list[Example]:
    from recipes.tiny_base.train_base import Example
    from recipes.tiny_base.utterance_buffer import encode_corpus

    return [
        Example(one.language, one.text, codes, codec.speakers.index(one.speaker))
        for one, codes in zip(utterances, encode_corpus(utterances, codec, device), strict=True)
    ]


def run_score(making: Making) -> None:
    """Measure error rates with the recognizer, and write them into the cards."""
    from recipes.tiny_base.measure import measure

    base = making.base_folder if (making.base_folder / "t3.safetensors").exists() else None
    scores = measure(making.corpus, making.codec, making.listener, base, making.device, log)
    write_scores(making, {"built-in": scores})


def run_pocketsphinx(making: Making) -> None:
    """Error rates of English by PocketSphinx, on the CPU."""
    from recipes.tiny_base.measure import score_with_pocketsphinx

    base = making.base_folder if (making.base_folder / "t3.safetensors").exists() else None
    scores = score_with_pocketsphinx(making.corpus, making.codec.to("cpu"), base, log)
    if scores:
        write_scores(making, {"pocketsphinx": scores})


RUNNERS = {
    "corpus": run_corpus,
    "codec": run_codec,
    "listener": run_listener,
    "base": run_base,
    "score": run_score,
    "pocketsphinx": run_pocketsphinx,
}


def write_scores(making: Making, more: dict[str, Any]) -> None:
    """Add scores to scores.json and to the existing cards."""
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
    """Write an indented JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def log(line: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f}] {line}", flush=True)


if __name__ == "__main__":
    main()
