"""Speech during training: fixed sentences to listen to (samples), and a light evaluation that decides the best step.

Samples follow how the new language improves and the old ones stay. One file for each sentence and round,
`samples/step-000500/am.json`, holds all that a vocoder needs: the codes, their rate, and the voice; where there is a
vocoder, `am.wav` lies beside it. Nothing is drawn from torch's or NumPy's own generators, so training is the same with
and without samples.

The evaluation speaks and transcribes a few sentences every N steps. Its results are in the journal, from which alone a
resumed run finds the best step again. Where nothing can be transcribed the loss decides, and the journal says why.

All are callbacks of the trainer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from voxgraft.audio.files import encode_audio
from voxgraft.checkpoints.steps import load_step
from voxgraft.core import progress, rng
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.files import atomic_write, is_file, read_json, write_text
from voxgraft.core.run import as_finite_float, step_folder_name
from voxgraft.dataset.run_data import HeldOutData, find_recordings
from voxgraft.dataset.shards import ClipDataset
from voxgraft.evaluation.judge import measure_recorded_pace
from voxgraft.evaluation.scores import (
    CUT_OFF_RATIO,
    MAX_EVAL_VOICES,
    SpeechRenderer,
    SpokenSentence,
    Transcriber,
    compute_error_rates,
    compute_stop_scores,
    expected_seconds,
    has_code_loop,
    open_speech_renderer,
    open_transcriber,
    synthesize_sentences,
)
from voxgraft.evaluation.sentences import EvalSentence, load_built_in_sentences, normalize_letters
from voxgraft.models.base import Vocoder
from voxgraft.synthesis.engine import (
    ModelContext,
    SpeakingModel,
    SynthesisEngine,
    SynthesisRequest,
    SynthesisResult,
    limit_codes,
    max_sentence_seconds,
)
from voxgraft.synthesis.inputs import ReferenceVoice, add_recordings, choose_voices
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.spans import remove_markers
from voxgraft.tokenizers import load_proof_corpus
from voxgraft.training.callbacks import Callback
from voxgraft.training.setup import TrainingSetup
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import ValidationMetrics


@dataclass(frozen=True, slots=True)
class SampleSentence:
    """One text that is spoken every time, always drawn with the same seed. Its name is that of its files."""

    name: str
    language: str
    text: str
    ids: tuple[int, ...]
    is_new: bool
    """In the language that is being learned."""
    seed: int
    closed: Sequence[bool] | None = None
    """By id: where an open gate is closed."""


class SampleCallback(Callback):
    """Speaks the sentences of a training; a `Trainer` calls it. The voice is a held-out one, fixed by the seed."""

    def __init__(
        self,
        loop: Trainer,
        sentences: Sequence[SampleSentence],
        vocoder: Vocoder | None = None,
        recordings: Mapping[str, Path] | None = None,
    ) -> None:
        """`recordings` are the audio files of held-out clips, for a vocoder that imitates a recording."""
        self._run, self._sentences, self._train_step = loop.run_folder, tuple(sentences), loop.stepper
        held_out = next(iter(loop.validations.values()))
        item = held_out.items[rng.hash_int("voice", loop.stepper.options.seed) % len(held_out.items)]
        where, clip = item.prompt
        clips = held_out.batch_builder.sets[where]
        voice = ReferenceVoice(f"{clips.name}/{clips.infos[clip].id}", clips.voice_clip(clip))
        (voice,) = add_recordings([voice], recordings or {}, vocoder)
        self._voice_name, self._voice, self._vocoder = voice.name, voice.clip, vocoder
        self._condition = loop.stepper.batch_builder.family.condition(self._voice)
        self._no_audio_reason = vocoder.why_not(self._voice) if vocoder else ""

    def on_sample(self, step: int) -> dict[str, Any]:
        """Speak all sentences, write their files, and return the values of the journal's line."""
        folder = self._run.samples / step_folder_name(step)
        results = [(sentence, self._speak(sentence)) for sentence in self._sentences]
        lines = [self._write_codes(sentence, result, step, folder) for sentence, result in results]
        values = {"folder": folder.relative_to(self._run.path).as_posix(), "spoken": lines}
        if self._vocoder is None:
            return values
        if not self._no_audio_reason:
            try:
                latents = [synthesis.latents for _, synthesis in results if synthesis.latents is not None]
                codes, voices = [synthesis.codes for _, synthesis in results], [self._voice] * len(results)
                waves = self._vocoder.sound(codes, voices, latents if self._vocoder.needs_latents else None)
            except VoxgraftError as error:
                # A vocoder that fails is reported and not asked again; training continues.
                self._no_audio_reason, waves = error.finding.found, []
            for (sentence, _), wave in zip(results if waves else [], waves, strict=True):
                with atomic_write(folder / f"{sentence.name}.wav", overwrite=True) as stream:
                    stream.write(encode_audio(wave, self._vocoder.sample_rate))
        return {**values, "silent_because": self._no_audio_reason}

    def _speak(self, sentence: SampleSentence) -> SynthesisResult:
        """One sentence, by an engine of its own, so that no memory stays taken beside training.

        Sentences never share a batch, so codes stay comparable with step 0 when the list of sentences changes.
        """
        model, family = self._train_step.trained.model, self._train_step.batch_builder.family
        sampling, gate = family.upstream_sampling(), self._train_step.trained.gate
        most = min(sampling.max_codes, model.spec.max_codes)
        limit = limit_codes(max_sentence_seconds(remove_markers(sentence.text)), family.code_hz, most)
        closed = sentence.closed if self._train_step.options.mode == "gated" else None
        request = SynthesisRequest(
            sentence.ids, self._condition, sentence.seed, closed, max_codes=limit, language=sentence.language
        )

        def set_gate(_language: str) -> AbstractContextManager[None]:
            if gate is None:
                return nullcontext()
            # Closed for old languages, unless the adapter will be merged and then acts on all.
            return gate.opened() if sentence.is_new or self._train_step.options.mode == "merged" else gate.closed()

        # Without a recording of the voice there is no sound, and nothing to compute latents for.
        latents = self._vocoder is not None and self._vocoder.needs_latents and not self._no_audio_reason
        [[(_, result)]] = SynthesisEngine(model, sampling, set_gate=set_gate, latents=latents).iterate([request])
        return result

    def _write_codes(
        self, sentence: SampleSentence, result: SynthesisResult, step: int, folder: Path
    ) -> dict[str, Any]:
        """Write the file of one sentence; returns what the journal says of it."""
        code_hz = self._train_step.batch_builder.family.code_hz
        seconds = round(len(result.codes) / code_hz, 2)
        sentence_info = {"language": sentence.language, "text": sentence.text}
        content = {
            **sentence_info,
            "text_ids": list(sentence.ids),
            "codes": list(result.codes),
            "stopped": result.ended,
            "seconds": seconds,
            "code_hz": code_hz,
            "voice": self._voice_name,
            "seed": sentence.seed,
        }
        name = f"{sentence.name}.json"
        write_text(folder / name, json.dumps(content, ensure_ascii=False) + "\n", overwrite=True)
        line: dict[str, Any] = {
            "name": sentence.name,
            **sentence_info,
            "codes": len(result.codes),
            "seconds": seconds,
            "stopped": result.ended,
            # The longest run of one code: speech that hangs shows here first.
            "repeats": max((len(list(run)) for _, run in groupby(result.codes)), default=0),
        }
        if not sentence.is_new and step:
            # Whether an old language is spoken code for code as before the first step; None where that is not kept.
            path = self._run.samples / step_folder_name(0) / name
            first = read_json(path) if is_file(path) else None
            line["same_as_step_0"] = None
            if isinstance(first, dict) and first.get("text") == sentence.text:
                line["same_as_step_0"] = first.get("codes") == list(result.codes)
        return line


NEW_LANGUAGE_SAMPLES = {"am": "ሰላም ለዓለም"}
# By language; the first two that the base speaks are spoken. A base that speaks fewer of them gets proof sentences.
BASE_LANGUAGE_SAMPLES = {"en": "Hello world", "fr": "Bonjour le monde", "zh": "你好，世界"}
NUM_BASE_SAMPLES = 2
# Of a held-out sentence that is used for a language without a sentence above.
MIN_SAMPLE_CHARACTERS = 8


def _find_base_samples(languages: Collection[str]) -> list[tuple[str, str]]:
    """Languages of a base, each with a sentence: the usual ones first, then the shortest proof sentences."""
    found = dict(BASE_LANGUAGE_SAMPLES)
    for language, text in sorted(load_proof_corpus(), key=lambda pair: (pair[0], len(pair[1]))):
        if len(text) >= MIN_SAMPLE_CHARACTERS:
            found.setdefault(language, text)
    return [pair for pair in found.items() if pair[0] in languages]


def build_sample_sentences(
    text_encoder: TextEncoder, requested: Sequence[str], held_out: Sequence[str], seed: int
) -> list[SampleSentence]:
    """The texts that are requested as LANGUAGE:TEXT, or the usual ones, encoded as their language is.

    `held_out` are texts of recordings that are never trained on; the shortest is in where we have none.
    """
    sentences: list[tuple[str, str]] = []
    for text in requested:
        language, colon, content = (part.strip() for part in text.partition(":"))
        if not colon or not language or not content:
            raise ConfigError(
                "sample-text", f"{text!r:.80} has no language code", expected="LANGUAGE:TEXT, such as en:Hello world"
            )
        sentences.append((language, content))
    if not requested:
        new_language = str(text_encoder.language)
        long_enough = [text for text in held_out if len(text) >= MIN_SAMPLE_CHARACTERS]
        shortest = min(long_enough, key=lambda text: (len(text), text), default=None)
        if new := NEW_LANGUAGE_SAMPLES.get(new_language) or shortest:
            sentences.append((new_language, new))
        old = _find_base_samples(text_encoder.family.languages)
        sentences += [pair for pair in old if pair[0] != new_language][:NUM_BASE_SAMPLES]
    samples: list[SampleSentence] = []
    for language, text in sentences:
        is_new = text_encoder.is_new_language(language)
        language = str(text_encoder.language) if is_new else language  # ff-adlm is ff-Adlm
        if not is_new and language not in text_encoder.family.languages:
            known_languages = ", ".join((str(text_encoder.language), *text_encoder.family.languages))
            raise ConfigError(
                "sample-text",
                f"a sample sentence is in {language!r}: {text!r:.80}",
                expected=f"one of {known_languages}",
            )
        same = sum(sample.language == language for sample in samples)
        name = f"{language}-{same + 1}" if same else language
        text_encoder.require_spans(text, f"sample sentence {name}")
        encoded = text_encoder.encode_text(text, language)
        is_new = text_encoder.is_new_language(encoded.language)
        own_seed = rng.hash_int("sample", seed, language, text) % 2**31
        samples.append(SampleSentence(name, language, text, tuple(encoded.ids), is_new, own_seed, encoded.closed))
    return samples


def collect_texts(sets: Sequence[ClipDataset]) -> list[str]:
    """Texts of some sets, as people write them."""
    return [info.text.strip() for clips in sets for info in clips.infos[: len(clips)]]


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
    transcriber: Transcriber
    seed: int = 0
    _rounds: list[EvaluationRound] | None = field(default=None, init=False)

    @property
    def why_unheard(self) -> str:
        """Why nothing can be transcribed; empty where something can."""
        nothing = "" if self.sentences else "no held-out text to speak"
        return self.sound.why or self.transcriber.why_unsupported(self.system.text_encoder.language or "") or nothing

    def on_validation(self, step: int, found: dict[str, ValidationMetrics]) -> dict[str, Any]:
        """The transcript, and the best step by it. Every process calls this at every validation."""
        journal_values: dict[str, Any] = {}
        measures: dict[str, Any] = {}
        if self.loop.is_due(step, self.loop.intervals.listen_every):
            bound, losses = self.loop.bound, {name: entry.speech_loss for name, entry in found.items()}
            within = bound is None or not bound.exceeded(self.loop.best_state.first, losses)
            journal_values["heard"] = measures = self._share_from_main(self._heard(f"step {step:,}"), within=within)
        new = [(step, measures)]
        if self._rounds is None:
            # Read late: a resumed run cuts its journal first. From then on kept up here.
            lines = [line for line in self.loop.journal.read() if line["kind"] == "valid" and line.get("heard")]
            new = [*((line["step"], line["heard"]) for line in lines if line["step"] < step), *new]
        self._rounds = rounds = [entry for entry in self._rounds or () if entry[0] < step]
        for number, round_measures in new:
            if (error := _find_deciding_error(round_measures)) is not None:
                rounds.append((number, error, bool(round_measures.get("within", True))))
        if self._update_best_step(step, rounds, found):
            journal_values["best_step"] = self.loop.best_state.best_step
        return journal_values

    def error(self, label: str) -> float | None:
        """The error that decides, with the current weights: the same in every process, None where nothing is
        transcribed."""
        return _find_deciding_error(self._share_from_main(self._heard(label), within=True))

    def _share_from_main(self, measures: dict[str, Any], *, within: bool) -> dict[str, Any]:
        """What the first process heard, sent to all of them: they must choose the same best step."""
        # A sum in which all others are 0 is a broadcast; NaN is a measure that is missing.
        group, device = self.loop.stepper.group, self.loop.stepper.trained.model.device
        own_values = [measures.get(name, math.nan) for name in JOURNAL_MEASURES] + [float(within)]
        shared = torch.tensor(
            own_values if group.is_main_process else [0.0] * len(own_values), dtype=torch.float64, device=device
        )
        *values, are_within = group.all_reduce_sum(shared).tolist()
        measured = {name: value for name, value in zip(JOURNAL_MEASURES, values, strict=True) if not math.isnan(value)}
        return {**measures, **measured, "within": bool(are_within)}

    def _heard(self, label: str) -> dict[str, Any]:
        """The transcript of the first process; nothing in the others."""
        if not self.loop.first:
            return {}
        if why := self.why_unheard:
            return {"why": why}
        language = self.system.text_encoder.language or ""
        utterances = synthesize_sentences(
            self.system, self.sentences, self.voices, self.seed, label, latents=self.sound.needs_latents
        )
        transcripts = self.transcriber.transcribe(self.sound.waves(utterances, label), self.sound.rate, language, label)
        scores = compute_error_rates(self.sentences, transcripts, self.seed) | compute_stop_scores(
            utterances, None, None, self.seed
        )
        measured = {name: scores[name].value for name in JOURNAL_MEASURES}
        return {"sentences": len(utterances), **{name: value for name, value in measured.items() if value is not None}}

    def _update_best_step(
        self, step: int, rounds: Sequence[EvaluationRound], found: dict[str, ValidationMetrics]
    ) -> bool:
        """Set the best step by the transcript; False if nothing that can decide has been transcribed yet."""
        # Step 0 is the base, which has learned nothing; a step past the bound has lost too much.
        candidates = [(error, number) for number, error, within in rounds if within and number > 0]
        if not candidates:
            return False
        _, best = min(candidates)
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
    """Synthesises held-out texts with two saved steps and counts failures. No recognizer is used.

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
            utterances = synthesize_sentences(
                self.system, self.sentences, self.voices, self.seed + turn, f"step {step:,}"
            )
            failures += [self._fails(utterance) for utterance in utterances]
        return failures[:UTTERANCES]

    def _fails(self, utterance: SpokenSentence) -> bool:
        if utterance.codes is None or utterance.is_runaway or has_code_loop(utterance.codes, utterance.code_hz):
            return True
        usual = utterance.seconds if self.pace is None else expected_seconds(self.pace, utterance.sentence)
        return not CUT_OFF_RATIO * usual <= utterance.seconds <= LONGEST_SHARE * usual


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
    context = ModelContext(setup.family, setup.files, setup.device, next(loop.stepper.trained.model.parameters()).dtype)
    system, sentences, voices = _speaking_parts(setup, loop)
    sound = open_speech_renderer(context)
    voices = add_recordings(voices, find_recordings(setup.run, setup.settings.data.dataset), sound.vocoder)
    sound = sound.restrict_to_voices([voice.clip for voice in voices])
    transcriber = open_transcriber(recognizer, name="train.recognizer")
    return InTrainingEvaluation(loop, system, sentences, voices, sound, transcriber, setup.options.seed)


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


def _find_deciding_error(measures: dict[str, Any]) -> float | None:
    errors = (as_finite_float(measures.get(name)) for name in DECIDING_MEASURES)
    return next((error for error in errors if error is not None), None)
