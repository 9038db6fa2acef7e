"""A light evaluation inside training: a few sentences spoken and transcribed every N steps decide the best step.

A callback of the trainer. Its results are in the journal, from which alone a resumed run finds the best step again.
Where nothing can be transcribed the loss decides, and the journal has the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from voxgraft.checkpoints.steps import load_step
from voxgraft.core import progress
from voxgraft.core.run import as_finite_float
from voxgraft.dataset.run_data import HeldOutData
from voxgraft.evaluation.judge import measure_recorded_pace
from voxgraft.evaluation.scores import (
    CUT_OFF_RATIO,
    Transcriber,
    compute_error_rates,
    compute_stop_scores,
    expected_seconds,
    has_code_loop,
    open_transcriber,
)
from voxgraft.evaluation.sentences import EvalSentence, load_built_in_sentences, normalize_letters
from voxgraft.evaluation.synthesis import (
    MAX_EVAL_VOICES,
    SpeechRenderer,
    SpokenSentence,
    open_speech_renderer,
    synthesize_sentences,
)
from voxgraft.synthesis.engine import ModelContext, SpeakingModel
from voxgraft.synthesis.inputs import ReferenceVoice, choose_voices
from voxgraft.training.callbacks import Callback
from voxgraft.training.samples import collect_texts
from voxgraft.training.setup import TrainingSetup
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import ValidationMetrics

# The first of these that was measured decides.
DECIDING_MEASURES = ("phone_error", "cer")
# Measures in the journal, in the order in which processes exchange them.
JOURNAL_MEASURES = (*DECIDING_MEASURES, "runaway")
# Few, since training waits for them.
NUM_SENTENCES = 16
# Spoken by each of two steps at the end of training; texts are spoken several times where there are fewer.
UTTERANCES = 24
# Speech of more than this share of its usual length has said something else than its text.
LONGEST_SHARE = 1 / CUT_OFF_RATIO
# Standard errors from which a difference is more than chance.
CLEAR = 2.0
# One round: its step, the error that decides, and whether base languages were within their bound.
EvaluationRound = tuple[int, float, bool]


@dataclass
class InTrainingEvaluation(Callback):
    """Synthesises and transcribes every `listen_every` steps; the step with the lowest error is the best one."""

    loop: Trainer
    system: SpeakingModel
    sentences: Sequence[EvalSentence]
    voices: Sequence[ReferenceVoice]
    sound: SpeechRenderer
    ear: Transcriber
    seed: int = 0
    _rounds: list[EvaluationRound] | None = field(default=None, init=False)

    @property
    def why_unheard(self) -> str:
        """Why nothing can be transcribed; empty where something can."""
        nothing = "" if self.sentences else "no held-out text to speak"
        return self.sound.why or self.ear.why_unsupported(self.system.text_encoder.language or "") or nothing

    def on_validation(self, step: int, found: dict[str, ValidationMetrics]) -> dict[str, Any]:
        """The transcript, and the best step by it. Every process calls this at every validation."""
        noted: dict[str, Any] = {}
        heard: dict[str, Any] = {}
        if self.loop.is_due(step, self.loop.every.listen_every):
            bound, losses = self.loop.bound, {name: one.speech_loss for name, one in found.items()}
            within = bound is None or not bound.exceeded(self.loop.best_state.first, losses)
            noted["heard"] = heard = self._share_from_main(self._heard(f"step {step:,}"), within=within)
        new = [(step, heard)]
        if self._rounds is None:
            # Read late: a resumed run cuts its journal first. From then on kept up here.
            lines = [line for line in self.loop.journal.read() if line["kind"] == "valid" and line.get("heard")]
            new = [*((line["step"], line["heard"]) for line in lines if line["step"] < step), *new]
        self._rounds = rounds = [one for one in self._rounds or () if one[0] < step]
        for number, told in new:
            if (error := _find_deciding_error(told)) is not None:
                rounds.append((number, error, bool(told.get("within", True))))
        if self._update_best_step(step, rounds, found):
            noted["best_step"] = self.loop.best_state.best_step
        return noted

    def error(self, label: str) -> float | None:
        """The error that decides, with the current weights: the same in every process, None where nothing is
        transcribed."""
        return _find_deciding_error(self._share_from_main(self._heard(label), within=True))

    def _share_from_main(self, heard: dict[str, Any], *, within: bool) -> dict[str, Any]:
        """What the first process heard, sent to all of them: they must choose the same best step."""
        # A sum in which all others are 0 is a broadcast; NaN is a measure that is missing.
        group, device = self.loop.stepper.group, self.loop.stepper.trained.model.device
        own = [heard.get(name, math.nan) for name in JOURNAL_MEASURES] + [float(within)]
        said = torch.tensor(own if group.is_main_process else [0.0] * len(own), dtype=torch.float64, device=device)
        *values, are_within = group.all_reduce_sum(said).tolist()
        measured = {name: value for name, value in zip(JOURNAL_MEASURES, values, strict=True) if not math.isnan(value)}
        return {**heard, **measured, "within": bool(are_within)}

    def _heard(self, label: str) -> dict[str, Any]:
        """The transcript of the first process; nothing in the others."""
        if not self.loop.first:
            return {}
        if why := self.why_unheard:
            return {"why": why}
        language = self.system.text_encoder.language or ""
        said = synthesize_sentences(
            self.system, self.sentences, self.voices, self.seed, label, latents=self.sound.needs_latents
        )
        heard = self.ear.hear(self.sound.waves(said, label), self.sound.rate, language, label)
        scores = compute_error_rates(self.sentences, heard, self.seed) | compute_stop_scores(
            said, None, None, self.seed
        )
        measured = {name: scores[name].value for name in JOURNAL_MEASURES}
        return {"sentences": len(said), **{name: value for name, value in measured.items() if value is not None}}

    def _update_best_step(
        self, step: int, rounds: Sequence[EvaluationRound], found: dict[str, ValidationMetrics]
    ) -> bool:
        """Set the best step by the transcript; False if nothing that can decide has been transcribed yet."""
        # Step 0 is the base, which has learned nothing; a step past the bound has lost too much.
        usable = [(error, number) for number, error, within in rounds if within and number > 0]
        if not usable:
            return False
        _, best = min(usable)
        language = next(iter(found))  # the new one comes first
        loss: float | None = found[language].speech_loss
        if best != step:
            lines = [line for line in self.loop.journal.read() if line["kind"] == "valid" and line["step"] == best]
            losses = (as_finite_float(line.get("speech_loss")) for line in lines if line.get("set") == language)
            loss = next(losses, None)
        since = sum(number > best for number, _, _ in rounds)
        self.loop.best_state = replace(
            self.loop.best_state, best_step=best, best_loss=loss, rounds_without_better=since
        )
        return True


class SpokenSteps(Callback):
    """Synthesises held-out texts with two saved steps and counts failures. No recogniser is used.

    Both say the same texts with the same voices and the same seeds. Afterwards the weights are the last step's.
    """

    def __init__(
        self,
        loop: Trainer,
        system: SpeakingModel,
        sentences: Sequence[EvalSentence],
        voices: Sequence[ReferenceVoice],
        pace: float | None,
        seed: int = 0,
    ) -> None:
        self.loop, self.system, self.sentences, self.voices = loop, system, sentences, voices
        self.pace, self.seed = pace, seed  # the pace is in seconds per letter

    def compare_steps(self, best: int, last: int) -> dict[str, Any]:
        progress.report_event("doing", last, {"what": "sampling"})
        try:
            before = self._failures(best)
        finally:
            after = self._failures(last)  # also restores the weights of the last step
        better = clearly_fewer(before, after)
        shares = {"failed_before": sum(before) / max(1, len(before)), "failed": sum(after) / max(1, len(after))}
        return {"utterances": len(after), **{name: round(share, 4) for name, share in shares.items()}, "better": better}

    def _failures(self, step: int) -> list[bool]:
        state = load_step(self.loop.run_folder, step).state
        trained = self.loop.stepper.trained
        trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
        failures: list[bool] = []
        # Fewer texts than utterances are spoken again with other seeds.
        for turn in range(math.ceil(UTTERANCES / len(self.sentences)) if self.sentences else 0):
            said = synthesize_sentences(self.system, self.sentences, self.voices, self.seed + turn, f"step {step:,}")
            failures += [self._fails(one) for one in said]
        return failures[:UTTERANCES]

    def _fails(self, said: SpokenSentence) -> bool:
        if said.codes is None or said.is_runaway or has_code_loop(said.codes, said.code_hz):
            return True
        usual = said.seconds if self.pace is None else expected_seconds(self.pace, said.sentence)
        return not CUT_OFF_RATIO * usual <= said.seconds <= LONGEST_SHARE * usual


def clearly_fewer(before: Sequence[bool], after: Sequence[bool]) -> bool:
    """Whether fewer of the same utterances fail afterwards, by more than chance explains (a paired test)."""
    gains = [float(old) - float(new) for old, new in zip(before, after, strict=True)]
    if len(gains) < 2:
        return False
    mean = sum(gains) / len(gains)
    variance = sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1)
    return mean > CLEAR * math.sqrt(variance / len(gains))


def spoken_steps(setup: TrainingSetup, loop: Trainer) -> SpokenSteps:
    """The comparison of two steps, for a run that is about to be trained."""
    language = setup.graft.card.language
    system, sentences, voices = _speaking_parts(setup, loop)
    pace = measure_recorded_pace(HeldOutData({language: tuple(setup.valid[language])}), language)
    return SpokenSteps(loop, system, sentences, voices, pace, setup.options.seed)


def build_in_training_evaluation(setup: TrainingSetup, loop: Trainer, recognizer: str | None) -> InTrainingEvaluation:
    """Evaluation every `listen_every` steps, for a run that is about to be trained."""
    place = ModelContext(setup.family, setup.files, setup.device, next(loop.stepper.trained.model.parameters()).dtype)
    system, sentences, voices = _speaking_parts(setup, loop)
    sound = open_speech_renderer(place).restrict_to_voices([voice.clip for voice in voices])
    return InTrainingEvaluation(
        loop, system, sentences, voices, sound, open_transcriber(recognizer), setup.options.seed
    )


def _speaking_parts(
    setup: TrainingSetup, loop: Trainer
) -> tuple[SpeakingModel, list[EvalSentence], list[ReferenceVoice]]:
    """The model that is trained as a speaker, with held-out texts and voices."""
    trained, language = loop.stepper.trained, setup.graft.card.language
    system = SpeakingModel("graft", setup.family, trained.model, setup.text_encoder, trained.gate, setup.options.mode)
    valid = setup.valid[language]
    least, seed = setup.stream.options.min_prompt_seconds, setup.options.seed
    voices = choose_voices(valid, least, 4 * MAX_EVAL_VOICES, seed)[:MAX_EVAL_VOICES]
    return system, _choose_sentences(language, collect_texts(valid)), voices


def _choose_sentences(language: str, held_out: Sequence[str]) -> list[EvalSentence]:
    """Held-out texts of the run. Never a sentence by which `evaluate` judges: what chose a step cannot judge it too."""
    own = load_built_in_sentences(language)
    judged = {normalize_letters(one.text, language) for one in own.sentences} if own else set()
    texts = [text for text in dict.fromkeys(held_out) if normalize_letters(text, language) not in {"", *judged}]
    count = min(len(texts), NUM_SENTENCES)
    return [EvalSentence(language, texts[at * len(texts) // count]) for at in range(count)]


def _find_deciding_error(told: dict[str, Any]) -> float | None:
    errors = (as_finite_float(told.get(name)) for name in DECIDING_MEASURES)
    return next((one for one in errors if one is not None), None)
