"""Runs commands on the demonstration's run, one after another: prints each command line, and measures its time.

It does what a person would type. The settings are in the run's own run.yaml.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from voxgraft.config.commands import (
    CheckSettings,
    DemoSettings,
    EvaluateSettings,
    ExportSettings,
    GraftSettings,
    NewSettings,
    TrainCommandSettings,
)
from voxgraft.config.run import load_command_settings, rewrite_run_yaml
from voxgraft.core import progress
from voxgraft.core.errors import Finding
from voxgraft.core.files import write_text
from voxgraft.core.journal import RunJournal
from voxgraft.core.results import LEVEL_STYLES, Line, style_line
from voxgraft.core.run import RunFolder
from voxgraft.demo.data import DEMO_LANGUAGE, RECORDINGS_FOLDER, DemoSetWriter, load_bundled_clips
from voxgraft.evaluation.command import EvaluateResult, evaluate
from voxgraft.export.command import export
from voxgraft.graft.command import GraftResult, graft
from voxgraft.graft.folder import load_graft
from voxgraft.inspect.check import CheckResult, check
from voxgraft.models import get_family
from voxgraft.models.speech_model import load_model
from voxgraft.pipeline.command import create_run
from voxgraft.pipeline.train import TrainResult, train
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.setup import build_training_setup
from voxgraft.training.step import TrainStep
from voxgraft.training.trainable import build_optimizer, make_trainable

# About three and a half minutes on two cores.
DEMO_STEPS = 560
# Validations after step 0, and the fewest steps between two: a validation takes as long as some steps.
NUM_VALIDATIONS, MIN_VALIDATION_INTERVAL = 3, 20
WARMUP_RATIO = 0.05
DEMO_BASE = "tiny"
DEMO_DATA_LICENSE = "freely shareable texts (recipes/tiny_base), spoken by espeak-ng"
DEMO_CONSENT = "no real speakers: the voices are synthetic"
# Below, more than a fifth of the Amharic phones are wrong (docs/log.md, rows by steps to a given error).
MIN_USEFUL_STEPS = 150
RunYamlChanges = Mapping[str, Mapping[str, Any]]
# Steps that are run before the timed ones, and steps of which the median is taken.
WARMUP_STEPS, TIMED_STEPS = 2, 4


class DemoRunner:
    """The demonstration's run, and how long each command took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, RunFolder(folder / DEMO_LANGUAGE)
        # The texts of the training clips, one sentence on each line.
        self.texts = folder / f"{DEMO_LANGUAGE}.txt"
        self.family = get_family(DEMO_BASE)
        shipped = self.family.shipped_folder()
        assert shipped is not None
        self.files = self.family.files(shipped)
        self.seconds: dict[str, float] = {}

    def new(self, changes: RunYamlChanges) -> None:
        """A run for Amharic on the built-in base, with the demonstration's own values in its run.yaml."""
        write_text(self.texts, "\n".join(clip.text for clip in load_bundled_clips("train", DEMO_LANGUAGE)) + "\n")
        with self._run_command(
            "new", f"--base {DEMO_BASE} --language {DEMO_LANGUAGE} --texts {shlex.quote(str(self.texts))}"
        ):
            create_run(
                NewSettings(run=self.run.path, base=Path(DEMO_BASE), language=DEMO_LANGUAGE, texts=(self.texts,))
            )
        self.edit(changes)

    def edit(self, changes: RunYamlChanges) -> None:
        """Change values in run.yaml."""
        rewrite_run_yaml(self.run.settings, changes)
        lines = [f"in {self.run.settings}:"]
        for part, some in changes.items():
            words = []
            for key, value in some.items():
                values = value if isinstance(value, list) else [value]
                shown = [f"{one:g}" if isinstance(one, float) else str(one) for one in values]
                words.append(f"{key} {' and '.join(shown)}")
            lines.append(f"  {part}: {', '.join(words)}")
        progress.report_lines(lines)

    def graft(self) -> GraftResult:
        with self._run_command("graft"):
            result = graft(load_command_settings(GraftSettings, self.run))
        counts, proof = result.counts, result.proof.counts
        # Nothing is promised for sentences that the base itself cannot spell in full.
        kept = (
            f"old text reads the same: {proof.same:,} of {proof.same + proof.changed:,} sentences that the base encodes"
        )
        kept += f" in full; {proof.base_unknown:,} more contain characters that it cannot encode and are not counted"
        progress.report_lines([f"{counts.new_pieces:,} new rows; {kept}"] if result.folder else result.lines())
        return result

    def prepare(self) -> None:
        """Write the sets of the run from the bundled codes; run.yaml names those of base languages."""
        with self._run_command("prepare", shown=False):
            writer = self.writer
            writer.write("train", "train", load_bundled_clips("train", DEMO_LANGUAGE))
            writer.write("valid", "valid", load_bundled_clips("valid", DEMO_LANGUAGE))
            held_out_clips = {name: load_bundled_clips("valid", name) for name in self.family.languages}
            old = [writer.write(f"valid-{name}", "valid", clips) for name, clips in held_out_clips.items() if clips]
        train_set, held_out = load_bundled_clips("train", DEMO_LANGUAGE), load_bundled_clips("valid", DEMO_LANGUAGE)
        minutes = sum(len(clip.codes) for clip in train_set) / self.family.code_hz / 60
        names = ", ".join(path.name.removeprefix("valid-") for path in old)
        found = f"{minutes:.0f} min of Amharic in {len(train_set):,} clips, {len(held_out):,} held out; also {names}"
        self.chapter("the bundled speech, as sets of this run", [found])
        self.edit({"data": {"replay_valid": [str(path.relative_to(self.run.path)) for path in old]}})

    @property
    def writer(self) -> DemoSetWriter:
        return DemoSetWriter(self.run, self.family, self.files, load_graft(self.run.graft))

    def choose_steps(self, minutes: float) -> None:
        """Set as many steps as the time allows, by the time of a few of them on this machine."""
        progress.report_lines(["a few steps of a temporary model are timed first"])
        with self._run_command("measure", shown=False):
            # Steps with the run's own settings and data; the first ones warm up.
            settings = load_command_settings(TrainCommandSettings, self.run)
            setup = build_training_setup(self.run, settings, self.family, self.files)
            model = load_model(self.family, self.files, device=setup.device)
            rows = {name: torch.from_numpy(values) for name, values in setup.graft.rows.items()}
            trained = make_trainable(model, rows, setup.options)
            examples = BatchBuilder(self.family, trained.model, setup.train)
            stepper = TrainStep(trained, build_optimizer(trained, setup.options), examples, setup.options)
            taken = []
            for number in range(1, WARMUP_STEPS + TIMED_STEPS + 1):
                began = time.perf_counter()
                stepper.step(number, setup.stream.step(number))
                taken.append(time.perf_counter() - began)
        seconds = sorted(taken[WARMUP_STEPS:])[TIMED_STEPS // 2]
        steps = max(1, round(minutes * 60 / seconds))
        progress.report_lines([f"a step takes {seconds:.2f} s here: {steps:,} steps in {minutes:g} min"])
        if steps < MIN_USEFUL_STEPS:
            progress.report_lines(
                [f"fewer than {MIN_USEFUL_STEPS} steps: every part runs, but do not expect to understand the Amharic"]
            )
        self.edit(build_step_settings(steps))

    def check(self, flags: str = "", settings: CheckSettings | None = None, shown: Sequence[str] = ()) -> CheckResult:
        """Check the run, or files with other settings. Notes are printed only if their code is in `shown`."""
        with self._run_command("check", flags, of_run=settings is None):
            result = check(settings or load_command_settings(CheckSettings, self.run))
        wanted = [item for item in result.outcome.findings if item.level != "note" or item.code in shown]
        lines: list[Line] = []
        for level, style in LEVEL_STYLES.items():  # worst first
            for item in wanted:
                if item.level == level:
                    first, *rest = item.lines()
                    lines += [style_line((first, style)), *rest]
        progress.report_lines([*lines, result.verdict])
        return result

    def train(self, flags: str = "", **more: Any) -> TrainResult:
        with self._run_command("train", flags):
            result = train(load_command_settings(TrainCommandSettings, self.run, **more))
        progress.report_lines(result.lines())
        if result.was_interrupted:
            progress.report_lines(
                [f"`voxgraft train {shlex.quote(str(self.run.path))}` continues this training; the demo starts over"]
            )
            raise KeyboardInterrupt
        return result

    def evaluate(self, sentences: int, seed: int) -> EvaluateResult:
        """Evaluate the trained graft against the base; the bundled sounds serve as recordings of people."""
        values = {"recordings": RECORDINGS_FOLDER, "max_sentences": sentences, "seed": seed}
        usual = EvaluateSettings(model=self.run.path)
        other = {name: value for name, value in values.items() if value != getattr(usual, name)}
        flags = " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in other.items())
        with self._run_command("evaluate", flags):
            return evaluate(EvaluateSettings(model=self.run.path, **other))

    def export(self) -> Path:
        """Export the graft to share: tokenizer, trained rows, the adapter in PEFT's format, and its terms."""
        output = self.folder / "export"
        flags = f"--to graft --output {shlex.quote(str(output))} --accept-terms"
        flags += f" --data-licence {shlex.quote(DEMO_DATA_LICENSE)} --consent {shlex.quote(DEMO_CONSENT)}"
        settings = ExportSettings(
            model=self.run.path,
            to="graft",
            output=output,
            data_licence=DEMO_DATA_LICENSE,
            consent=DEMO_CONSENT,
            accept_terms=True,
        )
        with self._run_command("export", flags):
            result = export(settings)
        progress.report_lines([*result.lines(), "it contains nothing of the base"])
        return output

    def watched(self) -> list[Finding]:
        """Findings of the training, each as it was reported last."""
        lines = [line for line in RunJournal(self.run.journal).read() if line["kind"] == "finding"]
        keys = ("code", "found", "expected", "where", "cure", "level")
        found = (Finding(**{key: line[key] for key in keys if line.get(key)}) for line in lines)
        return list({(item.code, item.where): item for item in found}.values())

    def chapter(self, title: str, lines: Sequence[Line] = ()) -> None:
        progress.report_lines([style_line((title, "bold")), *lines])

    @contextmanager
    def _run_command(self, verb: str, flags: str = "", *, of_run: bool = True, shown: bool = True) -> Iterator[None]:
        """Print the command line unless it is not to be `shown`, and add up the seconds of the command."""
        words = ["voxgraft", verb, *([shlex.quote(str(self.run.path))] if of_run else []), flags]
        if shown:
            self.chapter(f"$ {' '.join(word for word in words if word)}")
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[verb] = self.seconds.get(verb, 0.0) + time.monotonic() - began


def build_demo_settings(settings: DemoSettings) -> dict[str, dict[str, Any]]:
    """Sections of run.yaml with values other than the defaults."""
    return {
        # An hour of speech is too little for pieces of several letters: letters alone, each of them often.
        "tokenizer": {"pieces": 0},
        # A voice of the built-in base is a number, so no prompt can be too short.
        "data": {"min_prompt_seconds": 0.0},
        "train": {
            "lr_adapter": 2e-3,
            "min_lr_ratio": 0.02,
            "batch_tokens": 800,
            "microbatch_tokens": 2048,
            "seed": settings.seed,
            "tensorboard": False,
            "keep_last": 1,
            **build_step_settings(settings.steps or DEMO_STEPS)["train"],
        },
    }


def build_step_settings(steps: int) -> dict[str, dict[str, Any]]:
    """The length of the run, and everything that is counted in steps."""
    look = max(MIN_VALIDATION_INTERVAL, -(-steps // NUM_VALIDATIONS))
    return {
        "train": {
            "steps": steps,
            "warmup_steps": max(1, round(WARMUP_RATIO * steps)),
            "valid_every": look,
            "save_every": look,
            "sample_every": look,
            "log_every": max(1, min(10, steps // 12)),
        }
    }
