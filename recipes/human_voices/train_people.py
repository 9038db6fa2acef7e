"""Train the codec on people beside synthetic voices: an ear first, then the codec, in a given time on one GPU.

    python -m recipes.human_voices.train_people --pack people.npz --opus libopus.so.0 --packages packages --out made

needs torch, NumPy and safetensors only. Writes OUT/codec.safetensors (a mean of the weights, half precision) every
minute and at the end, OUT/ear.safetensors, OUT/reader.safetensors, OUT/state.pt to continue with, and OUT/report.json.
`--start FOLDER` begins with the weights that an earlier call left there; with --start-share its schedule, too.

A step on CUDA is one captured graph: drawing of pieces, rooms, noise, all networks and losses, and the optimizer.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recipes.human_voices.network import Ear, PeopleCodec, PeopleCodecConfig, Reader
from recipes.human_voices.opus import Opus, read_opus_pack
from recipes.human_voices.pack import HumanClip
from recipes.human_voices.sound_row import SPEEDS, SoundRow, Spoken, disturbed, filtered
from recipes.human_voices.train_ear import error_by_language, greedy, symbols_of, train_ear
from recipes.tiny_base.codec_losses import Critic, SpectralLoss, feature_distance
from recipes.tiny_base.corpus import CorpusSpec, Utterance, make_corpus
from recipes.tiny_base.fitting import Average, Course, quick_arithmetic
from recipes.tiny_base.texts import plain_letters

__all__ = ["main"]

RATE, CRITIC_RATE = 1e-3, 3e-4
WARM_STEPS, LAST_SHARE = 400, 0.03
MEL_WEIGHT, SPECTRAL_WEIGHT = 2.0, 1.0
EAR_WEIGHT, EAR_SCORES_WEIGHT = 1.0, 0.15
READER_WEIGHT, READER_SCORES_WEIGHT = 0.6, 0.15
CRITIC_WEIGHT, FEATURE_WEIGHT = 0.1, 0.5
CRITIC_FROM = 0.5
"""Share of the time after which the critic comes in."""
AVERAGE_EVERY, AVERAGE_OVER = 10, 1_000
LOOK_EVERY = 100
SAVE_SECONDS = 60.0
PLAIN_STEPS = 3
"""Before a step is captured."""
HUMAN_WEIGHTS = {"festvox-ru": 2.0, "ktuberling": 0.7, "klettres": 0.5, "qabcs": 0.7}
"""By package, beside the minutes; others 1."""
SYNTHETIC_SHARE = 0.25
"""Of all pieces."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of networks and of a step."""

    config: PeopleCodecConfig = field(default_factory=PeopleCodecConfig)
    ear_width: int = 320
    ear_blocks: int = 6
    ear_seconds_a_batch: int = 300
    rows: int = 128
    piece_samples: int = 51_200
    reference_samples: int = 48_000
    critic_rows: int = 32
    critic_samples: int = 12_800
    critic_channels: int = 32


SMALL = Sizes(
    PeopleCodecConfig(
        encoder_fast=(1, 96),
        encoder_slow=(1, 128),
        decoder_slow=(1, 128),
        decoder_fast=(1, 128),
        decoder_frames=(2, 128),
        voice=(1, 64),
        voice_vector=32,
    ),
    ear_width=128,
    ear_blocks=3,
    ear_seconds_a_batch=40,
    rows=8,
    piece_samples=25_600,
    reference_samples=25_600,
    critic_rows=2,
    critic_samples=6_400,
    critic_channels=4,
)
"""For a CPU: to see that everything runs and that losses fall."""


class Training:
    """Networks, optimizers, and a step with or without the critic."""

    def __init__(self, sizes: Sizes, row: SoundRow, ear: Ear, num_symbols: int) -> None:
        self.sizes, self.row, self.device = sizes, row, row.device
        self.codec = PeopleCodec(sizes.config).to(self.device)
        self.reader = Reader(len(sizes.config.levels), sizes.ear_width, num_symbols).to(self.device)
        self.critic = Critic(sizes.critic_channels).to(self.device)
        self.ear = ear.eval().requires_grad_(False)
        self.spectral = SpectralLoss().to(self.device)
        self.samples = torch.tensor(float(sizes.rows * sizes.piece_samples), device=self.device)
        self.rate = torch.zeros((), device=self.device)
        self.critic_rate = torch.zeros((), device=self.device)
        self.parameters = [*self.codec.parameters(), *self.reader.parameters()]
        self.critic_parameters = list(self.critic.parameters())
        self.gradients = _kept_gradients(self.parameters)
        self.critic_gradients = _kept_gradients(self.critic_parameters)
        self.optimizer = _optimizer(self.parameters, self.rate, 0.98)
        self.critic_optimizer = _optimizer(self.critic_parameters, self.critic_rate, 0.95)
        self.average = Average(self.codec)
        self.losses: dict[str, Tensor] = {}
        self.step = 0
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self._plain: dict[bool, int] = {False: 0, True: 0}
        self._told: dict[bool, dict[str, Tensor]] = {}
        self._aside = torch.cuda.Stream() if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def take_step(self, share: float, tell: object) -> None:
        """One step at this share of the whole time."""
        fall = LAST_SHARE + (1 - LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        self.rate.fill_(RATE * min(1.0, (self.step + 1) / WARM_STEPS) * fall)
        self.critic_rate.fill_(CRITIC_RATE * max(fall, 0.1))
        judged = share > CRITIC_FROM
        if judged in self._graphs:
            self._graphs[judged].replay()
            self.losses = self._told[judged]
        elif self._aside is None:
            self._once(judged)
        elif self._plain[judged] < PLAIN_STEPS:
            self._plain[judged] += 1
            self._aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._aside):
                self._once(judged)
            torch.cuda.current_stream().wait_stream(self._aside)
        else:
            self._capture(judged, tell)
        self.step += 1
        if self.step % AVERAGE_EVERY == 0:
            with torch.no_grad():
                weight = max(AVERAGE_EVERY / AVERAGE_OVER, 8 * AVERAGE_EVERY / (8 * AVERAGE_EVERY + self.step))
                torch._foreach_lerp_(list(self.average.model.parameters()), list(self.codec.parameters()), weight)

    @torch.no_grad()
    def look(self, held: Tensor) -> dict[str, float]:
        """How far the averaged codec's speech is from pieces that nothing learns from: in mel bands, and by ear."""
        codec = self.average.model
        with self._half():
            digits = codec.digits.rounded(codec.latents(held))
            made = codec.decoder(digits, codec.speaker_encoder(held))
            (_, *true), (_, *own) = self.ear(held)[0], self.ear(made)[0]
        mel, _ = self.spectral(made, held, torch.tensor(float(held.numel())))
        away = torch.stack([(one - other).abs().mean() for one, other in zip(true, own, strict=True)]).mean()
        return {"mel": round(float(mel), 4), "ear": round(float(away), 4)}

    def _capture(self, judged: bool, tell: object) -> None:
        """Record a step and take it; where that cannot be, all steps stay plain."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._once(judged)
        except RuntimeError as error:
            assert callable(tell)
            tell(f"codec: a step was not captured: {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            self._plain[judged] = -(10**9)
            self._once(judged)
            return
        self._graphs[judged], self._told[judged] = graph, self.losses
        graph.replay()

    def _once(self, judged: bool) -> None:
        sizes = self.sizes
        torch._foreach_zero_(self.gradients)
        with torch.no_grad():
            true, reference = filtered(*self.row.draw(sizes.rows, sizes.piece_samples, sizes.reference_samples))
            heard = disturbed(true)
            with self._half():
                seen_true, scores_true = self.ear(true)
                wanted = scores_true.float().softmax(-1)
        with self._half():
            digits = self.codec.digits.rounded(self.codec.latents(heard))
            voices = self.codec.speaker_encoder(reference)
            made = self.codec.decoder(digits, voices)
            middle, last, read = self.reader(self.codec.digits.scale_digits(digits))
            seen_made, scores_made = self.ear(made)
        mel, spectral = self.spectral(made, true, self.samples)
        ear = torch.stack([(m - t).abs().mean() for m, t in zip(seen_made, seen_true, strict=True)]).mean()
        reader = ((middle.float() - seen_true[1]).abs().mean() + (last.float() - seen_true[2]).abs().mean()) / 2
        ear_scores, reader_scores = _away(scores_made, wanted), _away(read, wanted)
        loss = MEL_WEIGHT * mel + SPECTRAL_WEIGHT * spectral + EAR_WEIGHT * ear + EAR_SCORES_WEIGHT * ear_scores
        loss = loss + READER_WEIGHT * reader + READER_SCORES_WEIGHT * reader_scores
        losses = {
            "mel": mel,
            "spectral": spectral,
            "ear": ear,
            "said": ear_scores,
            "reader": reader,
            "read": reader_scores,
        }
        if judged:
            more, told = self._judged(made, true)
            loss, losses = loss + more, losses | told
        torch.autograd.backward(loss)
        losses["gradient"] = nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.losses = {name: value.detach() for name, value in losses.items()}

    def _judged(self, made: Tensor, true: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        sizes = self.sizes
        room = made.shape[1] - sizes.critic_samples
        starts = (torch.rand(sizes.critic_rows, 1, device=self.device) * room).long()
        span = starts + torch.arange(sizes.critic_samples, device=self.device)
        fake, real = (waves[: sizes.critic_rows].gather(1, span) for waves in (made, true))
        torch._foreach_zero_(self.critic_gradients)
        with self._half():
            for_real, for_fake = self.critic(real), self.critic(fake.detach())
            verdicts = [
                (r[-1].float() - 1).square().mean() + f[-1].float().square().mean()
                for r, f in zip(for_real, for_fake, strict=True)
            ]
        judging = torch.stack(verdicts).sum()
        # Named inputs: nothing else may get gradients here.
        torch.autograd.backward(judging, inputs=self.critic_parameters)
        nn.utils.clip_grad_norm_(self.critic_parameters, 1.0, foreach=True)
        self.critic_optimizer.step()
        self.critic.requires_grad_(False)
        with self._half():
            for_fake = self.critic(fake)
            with torch.no_grad():
                for_real = self.critic(real)
        self.critic.requires_grad_(True)
        fooled = torch.stack([(f[-1].float() - 1).square().mean() for f in for_fake]).sum()
        alike = feature_distance(for_fake, for_real).float()
        return CRITIC_WEIGHT * fooled + FEATURE_WEIGHT * alike, {"critic": judging, "fooled": fooled, "alike": alike}

    def _half(self) -> torch.autocast:
        kind = self.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False)


def _away(scores: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy towards the ear's own probabilities, a step."""
    return -(wanted * scores.float().log_softmax(-1)).sum(-1).mean()


def _kept_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """A captured step writes to places, so gradients stay where they are for good."""
    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return gradients


def _optimizer(parameters: Sequence[nn.Parameter], rate: Tensor, beta2: float) -> torch.optim.AdamW:
    matrices, others = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    on_cuda = rate.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, beta2), fused=True, capturable=on_cuda)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train everything that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="pack of recipes.human_voices.opus")
    parser.add_argument("--opus", default="libopus.so.0", help="libopus, to read the pack")
    parser.add_argument("--packages", type=Path, help="folder of recipes.tiny_base.gather, for synthetic speech")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=900.0, help="from start to end (default: %(default)s)")
    parser.add_argument("--ear-seconds", type=float, default=110.0)
    parser.add_argument("--start", type=Path, help="folder with codec, ear and reader of an earlier call")
    parser.add_argument("--start-share", type=float, default=0.0, help="where the schedule begins")
    parser.add_argument("--small", action="store_true", help="small networks, as on a CPU")
    parser.add_argument("--only", type=int, help="so many of the pack's clips, to see whether they can be learned")
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)

    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(given.seed)
    quick_arithmetic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    people = read_opus_pack(given.pack, Opus(given.opus))[: given.only]
    synthetic: list[Utterance] = []
    if given.packages is not None:
        size = "toy" if given.small else "some"
        spec = CorpusSpec(given.packages, given.out / "corpus", size, given.seed, given.processes, ("train", "valid"))
        synthetic = make_corpus(spec, tell)
    clips = spoken(people, synthetic, "train")
    valid = spoken(people, synthetic, "valid") or clips[:4]
    tell(f"{len(people):,} clips of people, {len(synthetic):,} synthetic")
    row = SoundRow(clips, device, SPEEDS)
    tell(f"{len(row.row) / 16_000 / 3600:.1f} h in {len(row.begins)} regions on {device}")
    symbols = symbols_of(clips)
    sizes = SMALL if given.small else Sizes()
    ear = Ear(len(symbols), sizes.ear_blocks, sizes.ear_width).to(device)
    (given.out / "symbols.json").write_text(json.dumps(symbols, ensure_ascii=False), encoding="utf-8")
    report: dict[str, object] = {}
    if given.start is not None and (given.start / "ear.safetensors").exists():
        ear.load_state_dict(load_file(given.start / "ear.safetensors"))
    else:
        course = Course("", given.ear_seconds, device, given.seed, tell)
        ear, report["ear"] = train_ear(ear, clips, row, course, sizes.ear_seconds_a_batch)
    _save(ear, given.out / "ear.safetensors", {"symbols": symbols})
    training = Training(sizes, row, ear, len(symbols))
    if given.start is not None:
        for name, part in (("codec", training.codec), ("reader", training.reader), ("codec", training.average.model)):
            part.load_state_dict(load_file(given.start / f"{name}.safetensors"))
    held = pieces([clip for clip in valid if clip.has_speeds] or valid, sizes.piece_samples).to(device)
    report["codec"] = run(training, given.out, began + given.seconds, given.start_share, held, tell)
    report["valid"] = measured(training.average.model, ear, valid, symbols, device)
    tell(json.dumps(report))
    (given.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (given.out / "done").touch()


def pieces(clips: Sequence[Spoken], num_samples: int) -> Tensor:
    """The first samples of each clip, zeros behind a shorter one."""
    rows = [torch.from_numpy(clip.wave[:num_samples]).float() / 32768 for clip in clips]
    return torch.stack([F.pad(row, (0, num_samples - len(row))) for row in rows])


def run(
    training: Training, out: Path, deadline: float, start_share: float, held: Tensor, tell: object
) -> dict[str, object]:
    """Steps until the deadline; the averaged codec is saved now and then."""
    assert callable(tell)
    started = saved = told = time.monotonic()
    share = start_share
    while share < 1.0:
        training.take_step(share, tell)
        if training.step % LOOK_EVERY == 0 or training.device.type == "cpu":
            if training.device.type == "cuda":
                torch.cuda.synchronize()
            now = time.monotonic()
            share = start_share + (1 - start_share) * (now - started) / max(1.0, deadline - started)
            if now - told > 10:
                told = now
                values = {name: round(float(value), 4) for name, value in training.losses.items()}
                tell(f"codec: step {training.step:,}, {1000 * (now - started) / training.step:.1f} ms a step, {values}")
                if not all(math.isfinite(value) for value in values.values()):
                    raise RuntimeError(f"codec: a loss is not finite at step {training.step}")
            if now - saved > SAVE_SECONDS:
                saved = now
                save(training, out)
                tell(f"codec: step {training.step:,}, held out: {training.look(held)}")
    save(training, out)
    return {"steps": training.step, "seconds": round(time.monotonic() - started)}


def save(training: Training, out: Path) -> None:
    """The averaged codec and the reader in half precision."""
    _save(training.average.model, out / "codec.safetensors", asdict(training.sizes.config))
    _save(training.reader, out / "reader.safetensors", {})


def _save(model: nn.Module, path: Path, notes: dict[str, object]) -> None:
    state = {name: tensor.detach().to("cpu", torch.float16).contiguous() for name, tensor in model.state_dict().items()}
    made = path.with_suffix(".part")
    save_file(state, made, metadata={"notes": json.dumps(notes)})
    made.replace(path)


def spoken(people: Sequence[HumanClip], synthetic: Sequence[Utterance], split: str) -> list[Spoken]:
    """The clips of a split as the row takes them; the synthetic share is of all pieces."""
    found = [
        Spoken(
            clip.speaker,
            clip.wave,
            tuple(f"{clip.language}.{c}" for c in plain_letters(clip.text, clip.language).replace(" ", "")),
            HUMAN_WEIGHTS.get(clip.package, 1.0),
            has_speeds=True,
        )
        for clip in people
        if clip.split == split
    ]
    human = sum(clip.weight * len(clip.wave) for clip in found)
    own = [one for one in synthetic if one.split == split]
    total = sum(len(one.wave) for one in own)
    weight = SYNTHETIC_SHARE / (1 - SYNTHETIC_SHARE) * human / total if total and human else 1.0
    return found + [
        Spoken(
            f"{one.language}+{one.speaker}",
            one.wave,
            tuple(f"{one.language}.{phone}" for phone in one.phones),
            weight,
            has_speeds=False,
        )
        for one in own
    ]


@torch.no_grad()
def measured(
    codec: PeopleCodec, ear: Ear, valid: Sequence[Spoken], symbols: tuple[str, ...], device: torch.device
) -> dict[str, object]:
    """The ear's error on held-out clips, as recorded and through the codec, by language; how evenly codes are used."""
    spectral = SpectralLoss().to(device)
    pairs: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
    used = torch.zeros(codec.num_codes, device=device)
    mels = []
    for clip in valid:
        if not clip.symbols:
            continue
        count = len(clip.wave) - len(clip.wave) % 640
        wave = torch.from_numpy(clip.wave[:count]).to(device).float()[None] / 32768
        codes, _ = codec.encode(wave)
        used.index_add_(0, codes[0], torch.ones_like(codes[0], dtype=used.dtype))
        made = codec.decode(codes, codec.speaker_encoder(wave))
        mels.append(float(spectral(made, wave, torch.tensor(float(count)))[0]))
        language = clip.symbols[0].partition(".")[0]
        for kind, sound in (("recorded", wave), ("codec", made)):
            _, scores = ear(sound)
            said = greedy(scores, [count // 320], symbols)[0]
            pairs.setdefault(f"{language} {kind}", []).append((clip.symbols, said))
    shares = used[used > 0] / used.sum()
    return {
        "mel_distance": round(sum(mels) / max(1, len(mels)), 4),
        "ear_errors": error_by_language(pairs),
        "codes_used": int((used > 0).sum()),
        "bits_a_code": round(float(-(shares * shares.log2()).sum()), 2),
    }


if __name__ == "__main__":
    main()
