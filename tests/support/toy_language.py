"""Made-up languages that a tiny model can learn in a few hundred steps, for tests of whether training is seen to work.

Texts are real words, spelled by the real tokenizer. Each text id has a sound of two speech codes, and every code also
tells who speaks: whoever reads the text and hears the prompt can say what comes next, and nobody else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import islice
from pathlib import Path

import numpy as np

from tools.random_bases import make_random_base
from voxgraft.config.commands import GraftSettings
from voxgraft.config.run import TokenizerSettings
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.rng import hash_int
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler
from voxgraft.dataset.sets import open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import (
    AnyArray,
    ClipDataset,
    DatasetHeader,
    DatasetProvenance,
    DatasetRole,
)
from voxgraft.graft.command import graft
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles, Clip
from voxgraft.models.speech_model import load_model, save_model
from voxgraft.text.encoder import TextEncoder, text_rules_identity
from voxgraft.tokenizers import load_proof_corpus, open_tokenizer
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.step import TrainStep
from voxgraft.training.trainable import build_optimizer, make_trainable

NUM_SOUNDS = 24
CODES_PER_SOUND = 2
NUM_SPEAKERS = 4
NUM_WORDS = 60
FIRST_CODE = 100
WIDTH = 64
"""Of the tiny bases, whose voices have it."""


@dataclass(frozen=True, slots=True)
class Speech:
    """How a seed's world sounds: its voices, and who says what."""

    family_name: str
    seed: int

    def codes(self, ids: Sequence[int], speaker: int) -> AnyArray:
        sounds = [hash_int("sound", token) % NUM_SOUNDS for token in ids]
        spoken = [sound * CODES_PER_SOUND + part for sound in sounds for part in range(CODES_PER_SOUND)]
        return FIRST_CODE + np.array(spoken) * NUM_SPEAKERS + speaker

    def voice(self, codes: AnyArray, speaker: int, random: np.random.Generator) -> dict[str, AnyArray]:
        """A speaker's voice, a little different in each clip."""
        fixed = np.random.default_rng([self.seed, speaker])
        if self.family_name == "chatterbox":
            vector = _near(fixed.standard_normal(256), random)
            return {"speaker": vector / np.linalg.norm(vector), "prompt": codes[:150].astype(np.int32)}
        if self.family_name == "tiny":
            return {"speaker": np.array([speaker], dtype=np.int32)}
        if self.family_name == "xtts":
            latents = _near(fixed.standard_normal((32, WIDTH)), random)
            return {"latents": latents, "speaker": _near(fixed.standard_normal(512), random)}
        # The emotion is the target's own and must not tell who speaks.
        return {"latents": _near(fixed.standard_normal((32, WIDTH)), random), "emotion": _near(np.zeros(WIDTH), random)}


@dataclass(frozen=True, slots=True)
class World:
    """A base, and a run onto it with a real graft. Sets are made from it."""

    family_name: str
    files: BaseFiles
    run: Path
    text_encoder: TextEncoder
    made_from: DatasetProvenance
    seed: int = 0

    @property
    def speech(self) -> Speech:
        return Speech(self.family_name, self.seed)

    def header(self, language: str, role: DatasetRole) -> DatasetHeader:
        made_from = self.made_from if language == "am" else replace(self.made_from, text="")
        return DatasetHeader(self.family_name, language, role, get_family(self.family_name).code_hz, made_from)

    def clips(self, number: int, seed: int, language: str = "am") -> Iterator[Clip]:
        """Sentences of a few words, read by the speakers in turn."""
        random = np.random.default_rng([self.seed, seed])
        words = _words(language)
        for at in range(number):
            speaker = at % NUM_SPEAKERS
            text = " ".join(random.choice(words, random.integers(2, 4)))
            ids = self.text_encoder.encode(text, language)
            codes = self.speech.codes(ids, speaker)
            seconds = len(codes) / get_family(self.family_name).code_hz
            names = f"clip{seed}-{at:05d}", f"speaker{speaker}", f"recording{seed}-{at}"
            yield Clip(np.asarray(codes), self.speech.voice(codes, speaker, random), ids, *names, seconds, text)

    def write(self, name: str, clips: Iterator[Clip], role: DatasetRole = "train", language: str = "am") -> ClipDataset:
        """A set of the run."""
        write_clip_dataset(self.run / "data" / name, self.header(language, role), clips)
        return open_clip_dataset(self.run / "data" / name)

    def write_healthy(self, *, clips: int = 800, held_out: int = 48) -> None:
        """Sets from which the language can be learned."""
        self.write("train", self.clips(clips, 1))
        # A text that one speaker says twice has the same codes twice here, and what is learned is not held out.
        said = {(clip.text, clip.speaker) for clip in self.clips(clips, 1)}
        others = (clip for clip in self.clips(50 * held_out, 2) if (clip.text, clip.speaker) not in said)
        self.write("valid", islice(others, held_out), "valid")


def make_world(family_name: str, folder: Path, base: Path, *, seed: int = 0, pieces: int = 40) -> World:
    """A run with a graft of Amharic onto a base."""
    run = folder / "run"
    run.mkdir(parents=True)
    (run / "run.yaml").write_text("{}\n")
    texts = resources.files("voxgraft") / "assets" / "demo" / "am.txt"
    settings = GraftSettings(
        run=run, base=base, language="am", texts=(Path(str(texts)),), tokenizer=TokenizerSettings(pieces=pieces)
    )
    graft(settings)
    return open_world(family_name, run, base, seed=seed)


def open_world(family_name: str, run: Path, base: Path, *, seed: int = 0) -> World:
    """A run that was made so."""
    made = load_graft(run / "graft")
    files = get_family(family_name).files(base)
    text_encoder = TextEncoder.of(get_family(family_name), open_tokenizer(files.tokenizer), made.tokenizer, "am")
    hashes = made.card.tokenizer_sha256, made.card.base["checkpoint_sha256"]
    made_from = DatasetProvenance(*hashes, {"codec": "made up"}, {}, text_rules_identity(made.card.rules))
    return World(family_name, files, run, text_encoder, made_from, seed)


def make_speaking_base(family_name: str, folder: Path, *, steps: int = 500, seed: int = 0) -> BaseFiles:
    """A tiny base that has learned to read made-up English aloud, so that a graft finds a reader."""
    silent = make_random_base(family_name, folder / "silent", size="tiny", seed=seed)
    kind = get_family(family_name)
    text_encoder = TextEncoder.of(kind, open_tokenizer(silent.tokenizer), None, None)
    world = World(family_name, silent, folder, text_encoder, DatasetProvenance("a" * 64, "b" * 64), seed)
    clips = world.write("english", world.clips(2_000, 0, "en"), language="en")
    options = TrainOptions(
        mode="merged",
        full_backbone=True,
        lr_rows=3e-3,
        lr_adapter=3e-3,
        lr_backbone=3e-3,
        steps=steps,
        warmup_steps=20,
        microbatch_tokens=4_000,
        batch_tokens=2_000,
    )
    model = load_model(kind, silent)
    trained = make_trainable(model, {}, options)
    order = DataSamplerOptions(
        0.1,
        min_prompt_seconds=0.1,
        num_conditioning=model.spec.num_conditioning,
        num_framing=model.spec.text_framing + model.spec.speech_framing,
    )
    stream = DeterministicSampler([clips], [1.0], options.batch_tokens, seed, order)
    stepper = TrainStep(trained, build_optimizer(trained, options), BatchBuilder(kind, model, [clips]), options)
    for number in range(1, steps + 1):
        stepper.step(number, stream.step(number))
    shutil.copytree(folder / "silent", folder / "base", ignore=lambda _folder, _names: [silent.checkpoint.name])
    save_model(model, folder / "base" / silent.checkpoint.name)
    return kind.files(folder / "base")


def with_unknowns(clips: Iterator[Clip], unknown: int, share: float, seed: int) -> Iterator[Clip]:
    """As a tokenizer without many of the letters spells: part of every text is unknown."""
    random = np.random.default_rng(seed)
    for clip in clips:
        ids = np.array(clip.text_ids)
        yield replace(clip, text_ids=np.where(random.random(len(ids)) < share, unknown, ids))


def padded(clips: Sequence[Clip], code: int, batch: int) -> Iterator[Clip]:
    """As batched preprocessing stores codes: each at the length of the longest of its batch."""
    for at, clip in enumerate(clips):
        mates = clips[at // batch * batch :][:batch]
        longest = max(len(mate.codes) for mate in mates)
        yield replace(clip, codes=np.concatenate([clip.codes, np.full(longest - len(clip.codes), code)]))


def with_other_tokenizer(clips: Iterator[Clip], base_pieces: int, size: int, seed: int) -> Iterator[Clip]:
    """As a tokenizer of the same size with its new pieces in another order spells."""
    order = np.arange(size)
    order[base_pieces:] = base_pieces + np.random.default_rng(seed).permutation(size - base_pieces)
    for clip in clips:
        yield replace(clip, text_ids=order[np.array(clip.text_ids)])


def twice(clips: Sequence[Clip]) -> Iterator[Clip]:
    """Every recording under two ids, each by a speaker of its own: the only prompt is the target."""
    for at, clip in enumerate(clips):
        for copy in range(2):
            yield replace(clip, id=f"{clip.id}-{copy}", speaker=f"speaker{at}")


def alone(clips: Iterator[Clip]) -> Iterator[Clip]:
    """Every clip by a speaker of its own, as where each file was taken for a speaker."""
    for clip in clips:
        yield replace(clip, speaker=f"speaker of {clip.id}")


def with_other_texts(clips: Sequence[Clip]) -> Iterator[Clip]:
    """Every clip with the text of the one before: recordings and texts that have slipped by a line."""
    for at, clip in enumerate(clips):
        other = clips[at - 1]
        yield replace(clip, text_ids=other.text_ids, text=other.text)


def with_codes_at_random(clips: Iterator[Clip], seed: int) -> Iterator[Clip]:
    """Every clip with codes that say nothing, as many as before: recordings of noise."""
    random = np.random.default_rng(seed)
    for clip in clips:
        codes = FIRST_CODE + random.integers(0, NUM_SOUNDS * CODES_PER_SOUND * NUM_SPEAKERS, len(clip.codes))
        yield replace(clip, codes=codes)


def with_one_voice(clips: Sequence[Clip], voice: Mapping[str, AnyArray]) -> Iterator[Clip]:
    """Every clip with one and the same voice, as where a prompt was taken for all."""
    for clip in clips:
        yield replace(clip, voice=voice)


def with_voices_at_random(clips: Sequence[Clip], seed: int) -> Iterator[Clip]:
    """Every clip with the voice of some other one, so that no prompt tells who speaks."""
    order = np.random.default_rng(seed).permutation(len(clips))
    for at, clip in zip(order, clips, strict=True):
        yield replace(clip, voice=clips[at].voice)


def _words(language: str) -> list[str]:
    if language == "am":
        text = (resources.files("voxgraft") / "assets" / "demo" / "am.txt").read_text(encoding="utf-8")
        sentences = text.splitlines()
    else:
        sentences = [sentence for code, sentence in load_proof_corpus() if code == language]
    words = dict.fromkeys(word for sentence in sentences for word in sentence.split() if word.isalpha())
    short = [word for word in words if 2 <= len(word) <= 5]
    return short[:NUM_WORDS]


def _near(array: AnyArray, random: np.random.Generator) -> AnyArray:
    moved: AnyArray = array + 0.05 * random.standard_normal(array.shape)
    return moved.astype(np.float32)
