"""Train the codec on human and synthetic voices within a time limit on one GPU: first a CTC teacher, then the codec.

    python -m recipes.human_voices.train_people --pack people.npz --opus libopus.so.0 --packages packages --out made

Needs torch, NumPy and safetensors only. Writes OUT/codec.safetensors (EMA of the weights, half precision) and
OUT/predictor.safetensors every minute and at the end, OUT/teacher.safetensors, OUT/symbols.json and OUT/report.json.
`--start FOLDER` loads the weights that an earlier call wrote there, and `--start-share` continues its schedule. The
optimizer state is not saved.

A step on CUDA is one captured graph: sampling of segments, augmentation, all networks and losses, and the optimizer.
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

from recipes.human_voices.network import CTCTeacher, PeopleCodec, PeopleCodecConfig, TeacherPredictor
from recipes.human_voices.opus import Opus, read_opus_pack
from recipes.human_voices.pack import HumanClip
from recipes.human_voices.speech_buffer import SPEEDS, SpeechBuffer, TrainingClip, add_noise, augment_channel
from recipes.human_voices.train_teacher import collect_symbols, compute_error_rates, decode_greedy, train_teacher
from recipes.tiny_base.codec_losses import Discriminator, SpectralLoss, feature_matching_loss
from recipes.tiny_base.corpus import CorpusSpec, Utterance, make_corpus
from recipes.tiny_base.fitting import TrainingSetup, WeightEMA, allow_tf32
from recipes.tiny_base.texts import normalize_letters

__all__ = ["main"]

LEARNING_RATE, DISCRIMINATOR_RATE = 1e-3, 3e-4
WARMUP_STEPS, MIN_LR_RATIO = 400, 0.03
MEL_WEIGHT, SPECTRAL_WEIGHT = 2.0, 1.0
TEACHER_FEATURE_WEIGHT, TEACHER_LOGIT_WEIGHT = 1.0, 0.15
PREDICTOR_FEATURE_WEIGHT, PREDICTOR_LOGIT_WEIGHT = 0.6, 0.15
ADVERSARIAL_WEIGHT, FEATURE_MATCHING_WEIGHT = 0.1, 0.5
DISCRIMINATOR_START = 0.5
"""Share of the training time after which the discriminator is used."""
EMA_EVERY, EMA_STEPS = 10, 1_000
CHECK_EVERY = 100
SAVE_SECONDS = 60.0
EAGER_STEPS = 3
"""Eager warm-up steps before a step is captured as a graph."""
HUMAN_WEIGHTS = {"festvox-ru": 2.0, "ktuberling": 0.7, "klettres": 0.5, "qabcs": 0.7}
"""Sampling weight by package, multiplied with its duration. Default: 1."""
SYNTHETIC_SHARE = 0.25
"""Share of segments that are synthetic speech."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the networks and of a batch."""

    config: PeopleCodecConfig = field(default_factory=PeopleCodecConfig)
    teacher_width: int = 320
    teacher_blocks: int = 6
    teacher_batch_seconds: int = 300
    rows: int = 128
    segment_samples: int = 51_200
    reference_samples: int = 48_000
    discriminator_rows: int = 32
    discriminator_samples: int = 12_800
    discriminator_channels: int = 32


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
    teacher_width=128,
    teacher_blocks=3,
    teacher_batch_seconds=40,
    rows=8,
    segment_samples=25_600,
    reference_samples=25_600,
    discriminator_rows=2,
    discriminator_samples=6_400,
    discriminator_channels=4,
)
"""For tests on a CPU: enough to see the losses fall."""


class Training:
    """Networks and optimizers, and a training step with or without the discriminator."""

    def __init__(self, sizes: Sizes, buffer: SpeechBuffer, teacher: CTCTeacher, num_symbols: int) -> None:
        self.sizes, self.buffer, self.device = sizes, buffer, buffer.device
        self.codec = PeopleCodec(sizes.config).to(self.device)
        self.predictor = TeacherPredictor(len(sizes.config.levels), sizes.teacher_width, num_symbols).to(self.device)
        self.discriminator = Discriminator(sizes.discriminator_channels).to(self.device)
        self.teacher = teacher.eval().requires_grad_(False)
        self.spectral = SpectralLoss().to(self.device)
        self.samples = torch.tensor(float(sizes.rows * sizes.segment_samples), device=self.device)
        self.rate = torch.zeros((), device=self.device)
        self.discriminator_rate = torch.zeros((), device=self.device)
        self.parameters = [*self.codec.parameters(), *self.predictor.parameters()]
        self.discriminator_parameters = list(self.discriminator.parameters())
        self.gradients = _allocate_gradients(self.parameters)
        self.discriminator_gradients = _allocate_gradients(self.discriminator_parameters)
        self.optimizer = _build_optimizer(self.parameters, self.rate, 0.98)
        self.discriminator_optimizer = _build_optimizer(self.discriminator_parameters, self.discriminator_rate, 0.95)
        self.ema = WeightEMA(self.codec)
        self.losses: dict[str, Tensor] = {}
        self.step = 0
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self._eager_steps: dict[bool, int] = {False: 0, True: 0}
        self._captured_losses: dict[bool, dict[str, Tensor]] = {}
        self._side_stream = torch.cuda.Stream() if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def take_step(self, share: float, log: object) -> None:
        """Take one optimizer step. `share`: elapsed share of the training time, which sets the learning rate."""
        fall = MIN_LR_RATIO + (1 - MIN_LR_RATIO) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        self.rate.fill_(LEARNING_RATE * min(1.0, (self.step + 1) / WARMUP_STEPS) * fall)
        self.discriminator_rate.fill_(DISCRIMINATOR_RATE * max(fall, 0.1))
        adversarial_phase = share > DISCRIMINATOR_START
        if adversarial_phase in self._graphs:
            self._graphs[adversarial_phase].replay()
            self.losses = self._captured_losses[adversarial_phase]
        elif self._side_stream is None:
            self._step_eagerly(adversarial_phase)
        elif self._eager_steps[adversarial_phase] < EAGER_STEPS:
            self._eager_steps[adversarial_phase] += 1
            self._side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side_stream):
                self._step_eagerly(adversarial_phase)
            torch.cuda.current_stream().wait_stream(self._side_stream)
        else:
            self._capture(adversarial_phase, log)
        self.step += 1
        if self.step % EMA_EVERY == 0:
            with torch.no_grad():
                weight = max(EMA_EVERY / EMA_STEPS, 8 * EMA_EVERY / (8 * EMA_EVERY + self.step))
                torch._foreach_lerp_(list(self.ema.model.parameters()), list(self.codec.parameters()), weight)

    @torch.no_grad()
    def validate(self, held_out: Tensor) -> dict[str, float]:
        """Distance of held-out segments and their reconstructions by the EMA codec: mel bands, and teacher features."""
        codec = self.ema.model
        with self._half():
            digits = codec.digits.rounded(codec.latents(held_out))
            generated = codec.decoder(digits, codec.speaker_encoder(held_out))
            (_, *clean), (_, *own) = self.teacher(held_out)[0], self.teacher(generated)[0]
        mel, _ = self.spectral(generated, held_out, torch.tensor(float(held_out.numel())))
        distance = torch.stack([(one - other).abs().mean() for one, other in zip(clean, own, strict=True)]).mean()
        return {"mel": round(float(mel), 4), "teacher": round(float(distance), 4)}

    def _capture(self, adversarial_phase: bool, log: object) -> None:
        """Capture a step as a graph and replay it. If capturing fails, all steps stay eager."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._step_eagerly(adversarial_phase)
        except RuntimeError as error:
            assert callable(log)
            log(f"codec: capturing a step failed: {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            self._eager_steps[adversarial_phase] = -(10**9)
            self._step_eagerly(adversarial_phase)
            return
        self._graphs[adversarial_phase], self._captured_losses[adversarial_phase] = graph, self.losses
        graph.replay()

    def _step_eagerly(self, adversarial_phase: bool) -> None:
        sizes = self.sizes
        torch._foreach_zero_(self.gradients)
        with torch.no_grad():
            clean, reference = augment_channel(
                *self.buffer.sample_segments(sizes.rows, sizes.segment_samples, sizes.reference_samples)
            )
            noisy = add_noise(clean)
            with self._half():
                teacher_real, logits_real = self.teacher(clean)
                target = logits_real.float().softmax(-1)
        with self._half():
            digits = self.codec.digits.rounded(self.codec.latents(noisy))
            voices = self.codec.speaker_encoder(reference)
            generated = self.codec.decoder(digits, voices)
            middle, last, predicted_logits = self.predictor(self.codec.digits.scale_digits(digits))
            teacher_fake, logits_fake = self.teacher(generated)
        mel, spectral = self.spectral(generated, clean, self.samples)
        teacher = torch.stack([(m - t).abs().mean() for m, t in zip(teacher_fake, teacher_real, strict=True)]).mean()
        predictor = (
            (middle.float() - teacher_real[1]).abs().mean() + (last.float() - teacher_real[2]).abs().mean()
        ) / 2
        teacher_logits, predictor_logits = (
            _soft_cross_entropy(logits_fake, target),
            _soft_cross_entropy(predicted_logits, target),
        )
        loss = (
            MEL_WEIGHT * mel
            + SPECTRAL_WEIGHT * spectral
            + TEACHER_FEATURE_WEIGHT * teacher
            + TEACHER_LOGIT_WEIGHT * teacher_logits
        )
        loss = loss + PREDICTOR_FEATURE_WEIGHT * predictor + PREDICTOR_LOGIT_WEIGHT * predictor_logits
        losses = {
            "mel": mel,
            "spectral": spectral,
            "teacher": teacher,
            "teacher_logits": teacher_logits,
            "predictor": predictor,
            "predictor_logits": predictor_logits,
        }
        if adversarial_phase:
            more, adversarial_losses = self._adversarial_step(generated, clean)
            loss, losses = loss + more, losses | adversarial_losses
        torch.autograd.backward(loss)
        losses["gradient"] = nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.losses = {name: value.detach() for name, value in losses.items()}

    def _adversarial_step(self, generated: Tensor, clean: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        sizes = self.sizes
        free_samples = generated.shape[1] - sizes.discriminator_samples
        starts = (torch.rand(sizes.discriminator_rows, 1, device=self.device) * free_samples).long()
        span = starts + torch.arange(sizes.discriminator_samples, device=self.device)
        fake, real = (waves[: sizes.discriminator_rows].gather(1, span) for waves in (generated, clean))
        torch._foreach_zero_(self.discriminator_gradients)
        with self._half():
            real_maps, fake_maps = self.discriminator(real), self.discriminator(fake.detach())
            discriminator_losses = [
                (r[-1].float() - 1).square().mean() + f[-1].float().square().mean()
                for r, f in zip(real_maps, fake_maps, strict=True)
            ]
        discriminator_loss = torch.stack(discriminator_losses).sum()
        # Only the discriminator may get gradients here.
        torch.autograd.backward(discriminator_loss, inputs=self.discriminator_parameters)
        nn.utils.clip_grad_norm_(self.discriminator_parameters, 1.0, foreach=True)
        self.discriminator_optimizer.step()
        self.discriminator.requires_grad_(False)
        with self._half():
            fake_maps = self.discriminator(fake)
            with torch.no_grad():
                real_maps = self.discriminator(real)
        self.discriminator.requires_grad_(True)
        adversarial = torch.stack([(f[-1].float() - 1).square().mean() for f in fake_maps]).sum()
        feature_matching = feature_matching_loss(fake_maps, real_maps).float()
        return ADVERSARIAL_WEIGHT * adversarial + FEATURE_MATCHING_WEIGHT * feature_matching, {
            "discriminator": discriminator_loss,
            "adversarial": adversarial,
            "feature_matching": feature_matching,
        }

    def _half(self) -> torch.autocast:
        kind = self.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False)


def _soft_cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy with the teacher's probabilities as targets, mean over steps."""
    return -(target * scores.float().log_softmax(-1)).sum(-1).mean()


def _allocate_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Allocate gradients once: a captured graph writes to fixed addresses."""
    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return gradients


def _build_optimizer(parameters: Sequence[nn.Parameter], rate: Tensor, beta2: float) -> torch.optim.AdamW:
    matrices, others = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    on_cuda = rate.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, beta2), fused=True, capturable=on_cuda)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the teacher and the codec, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="pack of recipes.human_voices.opus")
    parser.add_argument("--opus", default="libopus.so.0", help="libopus, to read the pack")
    parser.add_argument("--packages", type=Path, help="folder of recipes.tiny_base.gather, for synthetic speech")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=900.0, help="total run time (default: %(default)s)")
    parser.add_argument("--teacher-seconds", type=float, default=110.0)
    parser.add_argument("--start", type=Path, help="folder with codec, teacher and predictor of an earlier call")
    parser.add_argument("--start-share", type=float, default=0.0, help="position in the schedule at the start, 0 to 1")
    parser.add_argument("--small", action="store_true", help="small networks, for a CPU")
    parser.add_argument("--only", type=int, help="use only this number of clips, to test overfitting")
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    started_at = time.monotonic()

    def log(line: str) -> None:
        print(f"[{time.monotonic() - started_at:6.1f} s] {line}", flush=True)

    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    allow_tf32()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    people = read_opus_pack(args.pack, Opus(args.opus))[: args.only]
    synthetic: list[Utterance] = []
    if args.packages is not None:
        size = "toy" if args.small else "some"
        spec = CorpusSpec(args.packages, args.out / "corpus", size, args.seed, args.processes, ("train", "valid"))
        synthetic = make_corpus(spec, log)
    clips = build_training_clips(people, synthetic, "train")
    valid = build_training_clips(people, synthetic, "valid") or clips[:4]
    log(f"{len(people):,} human clips, {len(synthetic):,} synthetic")
    buffer = SpeechBuffer(clips, device, SPEEDS)
    log(f"{len(buffer.samples) / 16_000 / 3600:.1f} h in {len(buffer.region_starts)} regions on {device}")
    symbols = collect_symbols(clips)
    sizes = SMALL if args.small else Sizes()
    teacher = CTCTeacher(len(symbols), sizes.teacher_blocks, sizes.teacher_width).to(device)
    (args.out / "symbols.json").write_text(json.dumps(symbols, ensure_ascii=False), encoding="utf-8")
    report: dict[str, object] = {}
    if args.start is not None and (args.start / "teacher.safetensors").exists():
        teacher.load_state_dict(load_file(args.start / "teacher.safetensors"))
    else:
        setup = TrainingSetup("", args.teacher_seconds, device, args.seed, log)
        teacher, report["teacher"] = train_teacher(teacher, clips, buffer, setup, sizes.teacher_batch_seconds)
    _save(teacher, args.out / "teacher.safetensors", {"symbols": symbols})
    training = Training(sizes, buffer, teacher, len(symbols))
    if args.start is not None:
        for name, part in (("codec", training.codec), ("predictor", training.predictor), ("codec", training.ema.model)):
            part.load_state_dict(load_file(args.start / f"{name}.safetensors"))
    held_out = crop_clips([clip for clip in valid if clip.has_speeds] or valid, sizes.segment_samples).to(device)
    report["codec"] = run(training, args.out, started_at + args.seconds, args.start_share, held_out, log)
    report["valid"] = evaluate_codec(training.ema.model, teacher, valid, symbols, device)
    log(json.dumps(report))
    (args.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (args.out / "done").touch()


def crop_clips(clips: Sequence[TrainingClip], num_samples: int) -> Tensor:
    """The first samples of each clip, zero-padded."""
    rows = [torch.from_numpy(clip.wave[:num_samples]).float() / 32768 for clip in clips]
    return torch.stack([F.pad(row, (0, num_samples - len(row))) for row in rows])


def run(
    training: Training, out: Path, deadline: float, start_share: float, held_out: Tensor, log: object
) -> dict[str, object]:
    """Train until the deadline, and save the EMA codec every minute."""
    assert callable(log)
    started = saved = last_log = time.monotonic()
    share = start_share
    while share < 1.0:
        training.take_step(share, log)
        if training.step % CHECK_EVERY == 0 or training.device.type == "cpu":
            if training.device.type == "cuda":
                torch.cuda.synchronize()
            now = time.monotonic()
            share = start_share + (1 - start_share) * (now - started) / max(1.0, deadline - started)
            if now - last_log > 10:
                last_log = now
                values = {name: round(float(value), 4) for name, value in training.losses.items()}
                log(f"codec: step {training.step:,}, {1000 * (now - started) / training.step:.1f} ms a step, {values}")
                if not all(math.isfinite(value) for value in values.values()):
                    raise RuntimeError(f"codec: a loss is not finite at step {training.step}")
            if now - saved > SAVE_SECONDS:
                saved = now
                save(training, out)
                log(f"codec: step {training.step:,}, held out: {training.validate(held_out)}")
    save(training, out)
    return {"steps": training.step, "seconds": round(time.monotonic() - started)}


def save(training: Training, out: Path) -> None:
    """Save the EMA codec and the predictor in half precision."""
    _save(training.ema.model, out / "codec.safetensors", asdict(training.sizes.config))
    _save(training.predictor, out / "predictor.safetensors", {})


def _save(model: nn.Module, path: Path, notes: dict[str, object]) -> None:
    state = {name: tensor.detach().to("cpu", torch.float16).contiguous() for name, tensor in model.state_dict().items()}
    partial = path.with_suffix(".part")
    save_file(state, partial, metadata={"notes": json.dumps(notes)})
    partial.replace(path)


def build_training_clips(people: Sequence[HumanClip], synthetic: Sequence[Utterance], split: str) -> list[TrainingClip]:
    """Human and synthetic clips of a split, weighted so that SYNTHETIC_SHARE of the segments are synthetic."""
    found = [
        TrainingClip(
            clip.speaker,
            clip.wave,
            tuple(f"{clip.language}.{c}" for c in normalize_letters(clip.text, clip.language).replace(" ", "")),
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
        TrainingClip(
            f"{one.language}+{one.speaker}",
            one.wave,
            tuple(f"{one.language}.{phone}" for phone in one.phones),
            weight,
            has_speeds=False,
        )
        for one in own
    ]


@torch.no_grad()
def evaluate_codec(
    codec: PeopleCodec,
    teacher: CTCTeacher,
    valid: Sequence[TrainingClip],
    symbols: tuple[str, ...],
    device: torch.device,
) -> dict[str, object]:
    """Error of the teacher on held-out clips, original and reconstructed, by language; mel distance; code usage."""
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
        generated = codec.decode(codes, codec.speaker_encoder(wave))
        mels.append(float(spectral(generated, wave, torch.tensor(float(count)))[0]))
        language = clip.symbols[0].partition(".")[0]
        for kind, sound in (("original", wave), ("codec", generated)):
            _, scores = teacher(sound)
            hypothesis = decode_greedy(scores, [count // 320], symbols)[0]
            pairs.setdefault(f"{language} {kind}", []).append((clip.symbols, hypothesis))
    probabilities = used[used > 0] / used.sum()
    return {
        "mel_distance": round(sum(mels) / max(1, len(mels)), 4),
        "teacher_errors": compute_error_rates(pairs),
        "codes_used": int((used > 0).sum()),
        "bits_a_code": round(float(-(probabilities * probabilities.log2()).sum()), 2),
    }


if __name__ == "__main__":
    main()
