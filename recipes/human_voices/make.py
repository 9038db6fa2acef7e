"""Train codec, recognizer and base on human and synthetic voices, within a number of minutes on one GPU.

    python -m recipes.human_voices.make --pack human.npz --packages packages --out made --minutes 25

Needs torch, NumPy and safetensors only. `--packages` is the folder of recipes.tiny_base.gather; without it there is no
synthetic speech. The minutes cover all stages; the time after making the corpus is divided by --codec-share and so on.
`--smoke` runs all stages with small networks on a CPU, without a useful result.

Writes OUT/tiny (a base that clones voices), OUT/listener, OUT/report.json, and OUT/resynthesised.npz: held-out and
unseen clips through the codec, each in the voice of another clip, to be transcribed by an independent recognizer
(recipes.human_voices.measure_pack --pack).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recipes.human_voices.pack import HumanClip, read_pack, write_pack
from recipes.tiny_base import train_base as base_training
from recipes.tiny_base.base_batches import Example
from recipes.tiny_base.corpus import SPEAKERS, CorpusSpec, Utterance, make_corpus
from recipes.tiny_base.fitting import TrainingSetup
from recipes.tiny_base.texts import Split, normalize_letters
from recipes.tiny_base.train_codec import CODEC_SIZES, train_codec
from recipes.tiny_base.train_recognizer import train_recognizer
from recipes.tiny_base.utterance_buffer import WaveBuffer, encode_corpus, iter_batches
from voxgraft.audio.features import exact_float32
from voxgraft.models.tiny.family import Tiny
from voxgraft.models.tiny.model import SAMPLE_RATE, SAMPLES_PER_CODE, TinyCodec

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["main", "utterances_of"]

LEVELS = (8, 8, 8, 5, 5)
"""12,800 codes, 13.6 bits; the codec for synthetic voices has 11.3. A larger table would have many rarely used rows."""
VOICE_VECTOR = 128
SHARES = {"codec": 0.45, "listener": 0.15, "base": 0.40}
HUMAN_SHARE = 0.5
COMMAND = "python -m recipes.human_voices.make --pack human.npz --packages packages --out made"
RESERVED_SECONDS = 100.0
"""Time reserved for encoding, resynthesis and files."""
EMBEDDING_SECONDS = 600
LEARNED_SPLITS: tuple[Split, ...] = ("train", "valid")
STARTED = time.monotonic()
SMOKE_BASE = replace(base_training.TOY, steps=60, dropout=0.0)


@dataclass(frozen=True)
class HumanMaking:
    """Settings and data of all stages."""

    out: Path
    clips: list[HumanClip]
    synthetic: list[Utterance]
    shares: dict[str, float]
    deadline: float
    """Time at which the last training must end."""
    device: torch.device
    seed: int
    is_smoke: bool

    def seconds(self, part: str) -> float:
        """The part's share of the remaining time."""
        later = list(self.shares.values())[list(self.shares).index(part) :]
        left = max(self.deadline - time.monotonic(), 1.0)
        return left * self.shares[part] / max(sum(later), 1e-6)

    def setup(self, part: str) -> TrainingSetup:
        return TrainingSetup("toy" if self.is_smoke else "full", self.seconds(part), self.device, self.seed, log)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="pack of recipes.human_voices.gather")
    parser.add_argument("--packages", type=Path, help="folder of recipes.tiny_base.gather, for synthetic speech")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25.0)
    for part, share in SHARES.items():
        parser.add_argument(
            f"--{part}-share", type=float, default=share, help="share of the time (default: %(default)s)"
        )
    parser.add_argument(
        "--human-share", type=float, default=HUMAN_SHARE, help="share of human speech in the codec's batches"
    )
    parser.add_argument(
        "--levels", default=",".join(map(str, LEVELS)), help="quantizer levels of a code (default: %(default)s)"
    )
    parser.add_argument(
        "--code-hz", type=int, choices=[25, 50], default=25, help="50: train only the codec, for comparison"
    )
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if given.device == "auto" else given.device
    began = time.monotonic()
    clips = read_pack(given.pack)
    synthetic: list[Utterance] = []
    if given.packages is not None:
        size = "toy" if given.smoke else "full"
        spec = CorpusSpec(given.packages, given.out / "corpus", size, given.seed, given.processes, LEARNED_SPLITS)
        synthetic = make_corpus(spec, log)
    deadline = began + 60 * given.minutes - (0 if given.smoke else RESERVED_SECONDS)
    shares = {part: getattr(given, f"{part}_share") for part in SHARES}
    making = HumanMaking(given.out, clips, synthetic, shares, deadline, torch.device(chosen), given.seed, given.smoke)
    log(f"{len(clips):,} human clips, {len(synthetic):,} synthetic, {deadline - time.monotonic():.0f} s to train")
    report = _make(making, tuple(map(int, given.levels.split(","))), given.code_hz, given.human_share)
    report["minutes"] = round((time.monotonic() - began) / 60, 2)
    (given.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    log(f"done in {report['minutes']} minutes")


def utterances_of(clips: Sequence[HumanClip], *, as_phones: bool) -> list[Utterance]:
    """Training and validation clips in the format of the synthetic corpus, without the held-out ones.

    `as_phones`: letters as phones, the targets of the codec's CTC head. The recognizer gets no phones of human clips.
    """
    made = []
    for clip in clips:
        if clip.split in ("train", "valid"):
            letters = normalize_letters(clip.text, clip.language).replace(" ", "") if as_phones else ""
            phones = tuple(f"{clip.language}.{letter}" for letter in letters)
            split: Split = "valid" if clip.split == "valid" else "train"
            made.append(Utterance(clip.language, clip.speaker, clip.text, phones, clip.wave, split))
    return made


def _make(making: HumanMaking, levels: tuple[int, ...], code_hz: int, human_share: float) -> dict[str, Any]:
    usual = CODEC_SIZES["toy" if making.is_smoke else "full"]
    config = replace(usual.config, speakers=(), levels=levels, voice_vector=VOICE_VECTOR)
    if making.is_smoke:
        config = replace(config, speaker_width=32, speaker_blocks=1)
    if code_hz == 50:  # one stage less: the rate is halved once
        config = replace(config, encoder_blocks=config.encoder_blocks[:2], decoder_blocks=config.decoder_blocks[1:])
    corpus = [*making.synthetic, *utterances_of(making.clips, as_phones=True)]
    codec, found = train_codec(corpus, making.setup("codec"), replace(usual, config=config), human_share)
    folder = making.out / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "codec.safetensors").unlink(missing_ok=True)
    codec.save(folder / "codec.safetensors")
    # The shipped codec has half precision, so all later stages use it.
    codec = TinyCodec.open(folder / "codec.safetensors").to(making.device)
    report: dict[str, Any] = {"codec": found, "levels": list(levels), "code_hz": code_hz, "human_share": human_share}
    write_pack(making.out / "resynthesised.npz", resynthesise(codec, making.clips))
    if codec.samples_per_code != SAMPLES_PER_CODE:
        log("a base needs 25 codes per second: recognizer and base are not trained")
        return report
    corpus = [*making.synthetic, *utterances_of(making.clips, as_phones=False)]
    listener, report["listener"] = train_recognizer(corpus, codec, making.setup("listener"))
    listener.save(making.out / "listener")
    report["base"] = _train_base(making, codec, folder)
    return report


def _train_base(making: HumanMaking, codec: TinyCodec, folder: Path) -> dict[str, Any]:
    """Train the base on English and French: synthetic clips, and human training clips if the pack has some."""
    everything = [*making.synthetic, *utterances_of(making.clips, as_phones=False)]
    own = [one for one in everything if one.language in Tiny.languages]
    if not any(one.split == "train" for one in own):
        log("base: no clip in its languages, so it is not trained")
        return {}
    vectors = embed_all(codec, own, making.device)
    names = (*SPEAKERS, *sorted({one.speaker for one in own} - set(SPEAKERS)))
    speakers = np.array([names.index(one.speaker) for one in own])
    by_speaker = {name: np.flatnonzero(speakers == number) for number, name in enumerate(names)}
    others = np.arange(len(own))
    rng = np.random.default_rng(making.seed)
    for places in by_speaker.values():
        # As in synthesis, the voice comes from another recording: the next in a random cycle of the speaker's clips.
        circle = rng.permutation(places)
        others[circle] = np.roll(circle, 1)
    examples = [
        Example(one.language, one.text, codes, int(speakers[at]), vectors[others[at]])
        for at, (one, codes) in enumerate(zip(own, encode_corpus(own, codec, making.device), strict=True))
    ]
    train, valid = (
        [example for example, one in zip(examples, own, strict=True) if one.split == split]
        for split in ("train", "valid")
    )
    named = {name: _mean_voice(vectors[places]) for name, places in by_speaker.items() if len(places)}
    usual = SMOKE_BASE if making.is_smoke else base_training.BaseSettings()
    size = replace(usual.size, speech_rows=codec.num_codes + 2, speaker_width=codec.config.voice_vector)
    settings = replace(usual, size=size, seconds=making.seconds("base"), seed=making.seed, device=str(making.device))
    found = base_training.train_on(train, valid or train[:8], named, folder, settings)
    about = {"from": "speech of espeak-ng and flite, and of people; sources: recipes/human_voices/README.md"}
    base_training.write_card(folder, {**found, **about, "command": COMMAND})
    return found


@torch.no_grad()
def embed_all(codec: TinyCodec, clips: Sequence[Utterance | HumanClip], device: torch.device) -> NDArray[np.float32]:
    """One voice vector per clip, computed in large batches. [clips, V]"""
    assert codec.speaker_encoder is not None
    found = np.zeros((len(clips), codec.config.voice_vector), np.float32)
    if not clips:
        return found
    waves = WaveBuffer(clips, device)
    for places, num_samples in iter_batches(waves.lengths, EMBEDDING_SECONDS * SAMPLE_RATE, None):
        with exact_float32():
            found[places] = codec.speaker_encoder(*waves.waves(places, num_samples)).cpu().numpy()
    return found


def _mean_voice(vectors: NDArray[np.float32]) -> list[float]:
    mean = vectors.mean(0)
    unit: list[float] = (mean / np.linalg.norm(mean)).tolist()
    return unit


@torch.no_grad()
def resynthesise(codec: TinyCodec, clips: Sequence[HumanClip]) -> list[HumanClip]:
    """Encode and decode held-out and unseen clips, each in the voice of the speaker's next clip."""
    own = [clip for clip in clips if clip.split in ("test", "unseen")]
    device = next(codec.parameters()).device
    vectors = embed_all(codec, own, device)
    made = []
    for at, clip in enumerate(own):
        same = [other for other, one in enumerate(own) if one.speaker == clip.speaker]
        reference = same[(same.index(at) + 1) % len(same)]
        with exact_float32():
            wave = torch.from_numpy(clip.wave.astype(np.float32) / 32768).to(device)
            codes, _ = codec.encode(wave[None])
            sound = codec.decode(codes[0], torch.from_numpy(vectors[reference]).to(device))
        samples = (sound[: len(clip.wave)].clamp(-1, 1) * 32767).round().to(torch.int16).cpu().numpy()
        made.append(replace(clip, wave=samples))
    return made


def log(line: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.0f} s] {line}", flush=True)


if __name__ == "__main__":
    main()
