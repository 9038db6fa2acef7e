"""Measure a model against its base: what both say of the same sentences, and what the base has kept.

Retention is proven bit for bit on speech logits. Held-out recordings give losses and the usual pace of speech; the
recognizer's error on recordings and on codec output is the mark that speech can reach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from voxgraft.asr import Transcript
from voxgraft.audio.files import encode_audio, resample
from voxgraft.checkpoints import Checkpoint, open_checkpoint
from voxgraft.checkpoints.load import read_stored_tensor
from voxgraft.core import rng
from voxgraft.core.errors import VoxgraftError
from voxgraft.dataset.run_data import HeldOutData
from voxgraft.dataset.sampler import DataSamplerOptions, list_samples
from voxgraft.dataset.shards import AnyArray, ClipDataset, Int32Array
from voxgraft.evaluation.scores import (
    ERROR_MEASURES,
    MAX_RECORDINGS,
    ReferenceRecording,
    Score,
    ScoreRow,
    SpeechRenderer,
    SpokenSentence,
    Transcriber,
    Wave,
    compute_error_rates,
    compute_sentence_errors,
    compute_stop_scores,
    compute_voice_similarity,
    measure_spoken_pace,
    score_without_interval,
    synthesize_sentences,
    unmeasured_score,
)
from voxgraft.evaluation.sentences import EvalSentence, SentenceSet, normalize_letters
from voxgraft.models.base import REFERENCE_AUDIO, ClipEncoder, build_sequence
from voxgraft.models.speech_model import compute_hidden_states, pack_batch
from voxgraft.synthesis.engine import ModelContext, SpeakingModel
from voxgraft.synthesis.inputs import ReferenceVoice
from voxgraft.training.prefetch import BatchBuilder, kl_sum
from voxgraft.training.trainable import TrainableModel
from voxgraft.training.validation import Validator

LOSS_MEASURES = ("speech_loss", "text_loss", "text_use", "voice_use")
VALIDATION_MICROBATCH_TOKENS = 4_096
PROOF_BATCH_SIZE = 16
# A shorter sound is too short for a voice encoder.
MIN_SIMILARITY_SECONDS = 0.5
WHO_BEFORE, WHO_AFTER, WHO_SHUFFLED, WHO_ORIGINAL = "before", "after", "shuffled", "original"
WHO_RECORDINGS, WHO_CODEC = "recordings", "codec"
GIVEN_RECORDINGS_TITLE, ORIGINAL_RECORDINGS_TITLE = "given recordings", "original recordings of the sentences"
CONTROL_TITLE = "control: texts of other sentences"
NEW_LANGUAGE_KL_REASON = "the base is compared only in its own languages"
# What one system said in one language; no waves without a vocoder, nothing heard without a recognizer.
SystemSpeech = tuple[Sequence[SpokenSentence], Sequence[Wave] | None, Sequence[Transcript] | None]


@dataclass
class Evaluation:
    """Everything that was measured."""

    language: str | None
    """The new one, if there is one."""
    rows: list[ScoreRow] = field(default_factory=list)
    kept: list[LanguageRetention] = field(default_factory=list)
    change: Mapping[str, Any] | None = None
    """How many values of the base's tensors differ (`compare_base_values`)."""
    utterances: list[dict[str, Any]] = field(default_factory=list)
    """As in scores.json, and `wav` with the sound of the few that the report plays."""
    paces: dict[str, str] = field(default_factory=dict)
    """By language: what lengths are compared with, in words."""

    def row(self, language: str, role: str) -> ScoreRow | None:
        return next((row for row in self.rows if (row.language, row.who) == (language, role)), None)

    def score(self, language: str, role: str, name: str) -> Score:
        row = self.row(language, role)
        return unmeasured_score("not evaluated") if row is None else row.score(name)

    @property
    def languages(self) -> list[str]:
        """The new one first."""
        return list(dict.fromkeys(row.language for row in self.rows))


@dataclass
class Evaluator:
    """Compares a model with its base, language by language."""

    base: SpeakingModel
    after: SpeakingModel
    sentences: Mapping[str, SentenceSet]
    voices: Sequence[ReferenceVoice]
    sound: SpeechRenderer
    transcriber: Transcriber
    voice_encoder: ClipEncoder | str
    """Or the reason why there is none."""
    held_out: HeldOutData
    seed: int = 0
    players: int = 8
    originals: Mapping[str, Sequence[ReferenceRecording]] = field(default_factory=dict)
    """Recordings of the sentences by language, to be played beside what was spoken."""

    def run(self) -> Evaluation:
        """All languages, the new one first."""
        language = self.after.text_encoder.language
        found = Evaluation(language, change=compare_base_values(self.base, self.after))
        for name in sorted(self.sentences, key=lambda name: name != language):  # sorting keeps the order of the others
            self._evaluate_language(found, name)
        return found

    def _evaluate_language(self, found: Evaluation, language: str) -> None:
        is_new = language == found.language
        sentences = self.sentences[language].sentences
        before = self._speak(self.base, sentences, f"the base, {language}")
        after = self._speak(self.after, sentences, f"{self.after.name}, {language}", like=before)
        # The usual length of speech is known from recordings; else, in its own languages, from the base.
        pace, pace_source = measure_recorded_pace(self.held_out, language), "the held-out recordings"
        is_base_pace = pace is None and not is_new
        if is_base_pace:
            pace, pace_source = measure_spoken_pace(before[0]), "the base's own speech"
        if pace is None:
            found.paces[language] = "the usual length is not known"
        elif is_new:
            found.paces[language] = f"lengths are compared with {pace_source}"
        else:
            found.paces[language] = (
                "lengths are compared with the base's speech of the same sentence; "
                f"cut-off speech is detected with {pace_source}"
            )
        scores = self._compute_scores(self.base, before)
        scores |= compute_stop_scores(before[0], pace, None, self.seed, is_own_pace=is_base_pace)
        scores["kl"] = unmeasured_score("this is the base")
        found.rows.append(ScoreRow(language, WHO_BEFORE, "base", scores))
        scores = self._compute_scores(self.after, after)
        scores |= compute_stop_scores(after[0], pace, None if is_new else before[0], self.seed)
        if is_new:
            scores["kl"] = unmeasured_score(NEW_LANGUAGE_KL_REASON)
        else:
            found.kept.append(retention := measure_retention(self.base, self.after, before[0], after[0]))
            scores["kl"] = retention.kl
        found.rows.append(ScoreRow(language, WHO_AFTER, self.after.name, scores))
        transcripts = after[2]
        if is_new and transcripts is not None:
            control = dict.fromkeys(ERROR_MEASURES, unmeasured_score("there is no other sentence to compare with"))
            if len(sentences) > 1:
                # Each sentence is replaced by its successor on a random circle, so that none stays in its place.
                order = rng.hash_permutation(len(sentences), "shuffled", self.seed).tolist()
                moved = dict(zip(order, [*order[1:], order[0]], strict=True))
                others = [sentences[moved[index]] for index in range(len(sentences))]
                control = compute_error_rates(others, transcripts, self.seed)
            found.rows.append(ScoreRow(language, WHO_SHUFFLED, CONTROL_TITLE, control))
        count = len(sentences)
        played = (
            {index * count // self.players for index in range(self.players)}
            if count > self.players
            else set(range(count))
        )
        for (utterances, waves, transcripts), role in ((before, WHO_BEFORE), (after, WHO_AFTER)):
            for index, utterance in enumerate(utterances):
                sound = waves[index] if waves is not None and index in played and len(waves[index]) else None
                wav = None if sound is None else encode_audio(sound, self.sound.rate)
                found.utterances.append(
                    _describe_utterance(utterance, role, transcripts[index] if transcripts else None, wav)
                )
        recordings = {sentence: (wave, rate) for sentence, wave, rate in self.originals.get(language, ())}
        for index in sorted(played):
            if sentences[index] in recordings and self.sound.vocoder is not None:
                # No higher rate than the speech beside it: otherwise the rate gives the recording away.
                wave, own_rate = recordings[sentences[index]]
                rate = min(own_rate, self.sound.rate)
                wav = encode_audio(resample(wave, own_rate, rate), rate)
                original = SpokenSentence(sentences[index], self.voices[0], None, True, len(wave) / own_rate)
                entry = _describe_utterance(original, WHO_ORIGINAL, None, wav)
                found.utterances.append({**entry, "voice": ""})  # a person's own voice

    def _speak(
        self, system: SpeakingModel, sentences: Sequence[EvalSentence], label: str, like: SystemSpeech | None = None
    ) -> SystemSpeech:
        """Synthesise, render and transcribe. The same codes in the same voice are the same sound: taken from `like`."""
        utterances = synthesize_sentences(
            system, sentences, self.voices, self.seed, label, latents=self.sound.needs_latents
        )
        if self.sound.vocoder is None:
            return utterances, None, None
        # Behind an adapter equal codes may have other latents.
        if like is not None and all(
            new.codes == old.codes
            and (new.latents is None) == (old.latents is None)
            and (new.latents is None or old.latents is None or np.array_equal(new.latents, old.latents))
            for new, old in zip(utterances, like[0], strict=True)
        ):
            return utterances, *like[1:]
        waves = self.sound.waves(utterances, label)
        language = sentences[0].language
        reason = self.transcriber.why_unsupported(language)
        return (
            utterances,
            waves,
            None if reason else self.transcriber.transcribe(waves, self.sound.rate, language, label),
        )

    def _compute_scores(self, system: SpeakingModel, speech: SystemSpeech) -> dict[str, Score]:
        """Errors, likeness of the voice and losses: what does not depend on the other system."""
        utterances, waves, transcripts = speech
        language = utterances[0].sentence.language
        if transcripts is None:
            why = self.sound.why or self.transcriber.why_unsupported(language)
            scores = dict.fromkeys(ERROR_MEASURES, unmeasured_score(why))
        else:
            scores = compute_error_rates([utterance.sentence for utterance in utterances], transcripts, self.seed)
        scores["likeness"] = (
            unmeasured_score(self.sound.why)
            if waves is None
            else score_voices(self.voice_encoder, utterances, waves, self.sound.rate, self.seed)
        )
        return scores | compute_held_out_losses(system, self.held_out, language)


def _describe_utterance(
    utterance: SpokenSentence, role: str, transcript: Transcript | None, wav: bytes | None
) -> dict[str, Any]:
    """One sentence as one system said it, for whoever looks or listens: its entry in scores.json, and the sound."""
    errors = {} if transcript is None else compute_sentence_errors(utterance.sentence, transcript)
    return {
        "language": utterance.sentence.language,
        "who": role,
        "text": utterance.sentence.text,
        "text_ids": list(utterance.ids),
        "rare": list(utterance.sentence.rare),
        "voice": utterance.voice.name,
        "codes": None if utterance.codes is None else len(utterance.codes),
        "seconds": round(utterance.seconds, 3),
        "stopped": utterance.stopped,
        "heard": None if transcript is None else transcript.text,
        "heard_phones": None if transcript is None or transcript.phones is None else " ".join(transcript.phones),
        **{name: None if value is None else round(value, 4) for name, value in errors.items()},
        **({"why": utterance.why} if utterance.why else {}),
        "wav": wav,
    }


def compute_held_out_losses(system: SpeakingModel, held_out: HeldOutData, language: str) -> dict[str, Score]:
    """Losses of a system on the held-out recordings of a language, with what it makes of the text and the voice."""
    sets = held_out.sets.get(language)
    if not sets:
        return dict.fromkeys(LOSS_MEASURES, unmeasured_score(held_out.reason(language)))
    usable_sets = tuple(filter(len, (_RetokenizedClipSet(clips, system, language) for clips in sets)))
    if not usable_sets:
        why = f"{system.name} has no token for any letter of the held-out texts"
        return dict.fromkeys(LOSS_MEASURES, unmeasured_score(why))
    spec = system.model.spec
    order = DataSamplerOptions(
        min_prompt_seconds=held_out.min_prompt_seconds,
        num_conditioning=spec.num_conditioning,
        num_framing=spec.text_framing + spec.speech_framing,
    )
    metrics = Validator(
        TrainableModel(system.model, {}, system.gate),
        BatchBuilder(system.family, system.model, usable_sets, gated=system.mode == "gated"),
        list_samples(usable_sets, held_out.seed, order),
        VALIDATION_MICROBATCH_TOKENS,
        is_open=system.is_open(language),
    ).run()
    swapped = {
        "text_use": unmeasured_score("there are fewer than two texts to swap"),
        "voice_use": unmeasured_score("there are fewer than two speakers to swap"),
    }
    return {
        name: swapped[name]
        if (value := getattr(metrics, name)) is None
        else score_without_interval(value, metrics.num_clips)
        for name in LOSS_MEASURES
    }


def measure_recorded_pace(held_out: HeldOutData, language: str) -> float | None:
    """Median seconds per letter in the held-out recordings of a language; None without any."""
    paces = []
    for clips in held_out.sets.get(language, ()):
        for index in range(len(clips)):
            count = len(normalize_letters(clips.infos[index].text, language))
            if count:
                paces.append(float(clips.num_codes[index]) / clips.header.code_hz / count)
    return median(paces) if paces else None


class _RetokenizedClipSet(ClipDataset):
    """The clips of a set as a system reads their texts: the base alone has no rows for an extended tokenizer's ids.

    Clips whose text it cannot read at all are left out.
    """

    def __init__(self, whole: ClipDataset, system: SpeakingModel, language: str) -> None:
        self._whole, self.name, self.header = whole, whole.name, whole.header
        encoded = {index: system.encode(whole.infos[index].text, language) for index in range(len(whole))}
        max_tokens = system.model.spec.max_text
        clips = [index for index, own in encoded.items() if 0 < len(own.ids) <= max_tokens]
        self._ids = [np.asarray(encoded[index].ids, dtype=np.int32) for index in clips]
        self._closed = [encoded[index].closed for index in clips]
        # A set may bring voices that are no clips: their infos come after those of the clips, and stay there.
        self._places = [*clips, *range(len(whole), len(whole.infos))]
        self._moved: Mapping[int, int] = {clip_index: index for index, clip_index in enumerate(self._places)}
        self.infos = [whole.infos[clip_index] for clip_index in self._places]
        self.num_text = np.array([len(ids) for ids in self._ids], dtype=np.int64)
        self.num_codes = whole.num_codes[clips]
        self.fingerprint = whole.fingerprint

    def text_ids(self, clip: int) -> Int32Array:
        return self._ids[clip]

    def closed(self, clip: int) -> Int32Array | None:
        own = self._closed[clip]
        return None if own is None else np.asarray(own, dtype=np.int32)

    def codes(self, clip: int) -> Int32Array:
        return self._whole.codes(self._places[clip])

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._whole.voice(self._places[clip])

    def prompt_of(self, clip: int) -> int | None:
        given = self._whole.prompt_of(self._places[clip])
        return None if given is None else self._moved.get(given)


class LanguageRetention(NamedTuple):
    """What one base language has kept: logits over all positions of what the base said, and the codes themselves."""

    language: str
    equal: bool | None
    """None where it could not be measured; `why` is the reason."""
    largest_difference: float | None
    positions: int
    same_codes: int
    spoken: int
    kl: Score
    why: str = ""


def compare_base_values(base: SpeakingModel, after: SpeakingModel) -> dict[str, Any]:
    """How many values of the base's tensors differ from what they were, bit for bit; new rows do not count.

    Two checkpoints are compared as they are stored: in memory both may be rounded, and small changes lost. What has no
    checkpoint of its own is the base's, opened from the same file, and is compared where it computes.
    """
    with contextlib.ExitStack() as stack:
        old: Callable[[str], Tensor | None]
        new: Callable[[str], Tensor | None]
        if base.checkpoint is None or after.checkpoint is None:
            old, new = base.model.state_dict().get, after.model.state_dict().get
            dtype = str(next(base.model.parameters()).dtype).removeprefix("torch.")
            compared = f"the base alone and with {after.name}, in memory, in {dtype}"
        else:
            one, two = (stack.enter_context(open_checkpoint(path)) for path in (base.checkpoint, after.checkpoint))
            old, new = partial(_read_stored_tensor, one), partial(_read_stored_tensor, two)
            compared = f"{one.path.name} of the base and {two.path.name} of {after.name}, both as stored"
        changed, total, tensors = 0, 0, []
        for name in base.model.state_dict():
            was, now = old(name), new(name)
            assert was is not None
            total += was.numel()
            count = was.numel() if now is None else _count_different_values(was, now, base.model.spare_rows)
            changed += count
            tensors += [name] if count else []
        return {"changed": changed, "total": total, "tensors": tensors, "compared": compared}


def _read_stored_tensor(checkpoint: Checkpoint, name: str) -> Tensor | None:
    return read_stored_tensor(checkpoint, name) if name in checkpoint.tensors else None


def _count_different_values(old: Tensor, new: Tensor, spare_rows: int) -> int:
    """Values that differ in any bit."""
    parts = [(old, new)]
    if old.shape != new.shape:
        if old.shape[1:] != new.shape[1:] or len(new) < len(old):
            return old.numel()
        # Rows were added: the base's own rows come first, then the new ones, then the base's spare rows.
        own = len(old) - spare_rows
        parts = [(old[:own], new[:own]), (old[own:], new[len(new) - spare_rows :] if spare_rows else new[:0])]
    count = 0
    for one, two in parts:
        if one.numel():
            # Compared as integers, so that -0.0 and NaN count too, in the wider of the two types: a value that the
            # narrower one cannot hold has changed.
            wide = torch.promote_types(one.dtype, two.dtype)
            whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[wide.itemsize]
            count += int((one.to(wide).contiguous().view(whole) != two.to(wide).contiguous().view(whole)).sum())
    return count


@torch.no_grad()
def measure_retention(
    base: SpeakingModel, after: SpeakingModel, before: Sequence[SpokenSentence], now: Sequence[SpokenSentence]
) -> LanguageRetention:
    """Whether a base language is spoken as before. `before` and `now` are what both said of the same sentences."""
    language = before[0].sentence.language if before else ""
    spoken = [utterance for utterance in before if utterance.codes]
    same = sum(old.codes == new.codes for old, new in zip(before, now, strict=True) if old.codes is not None)
    if not spoken:
        why = "the base could not speak any sentence"
        return LanguageRetention(language, None, None, 0, same, 0, unmeasured_score(why), why)
    equal, largest, positions, kl = True, 0.0, 0, 0.0
    for first in range(0, len(spoken), PROOF_BATCH_SIZE):
        batch = spoken[first : first + PROOF_BATCH_SIZE]
        old_hidden, old = _compute_speech_logits(base, batch, language)
        new_hidden, new = _compute_speech_logits(after, batch, language)
        equal = equal and torch.equal(old, new)
        largest = max(largest, float((old.float() - new.float()).abs().max()))
        positions += len(old)
        kl += float(kl_sum(after.model.speech_logits, new_hidden, base.model.speech_logits, old_hidden, chunk=None))
    return LanguageRetention(
        language, equal, largest, positions, same, len(spoken), score_without_interval(kl / positions, positions)
    )


def _compute_speech_logits(
    system: SpeakingModel, utterances: Sequence[SpokenSentence], language: str
) -> tuple[Tensor, Tensor]:
    """Hidden states and logits of what the base said: text as this system reads it, voice and codes as they were."""
    spec = system.model.spec
    encoded = [system.encode(utterance.sentence.text, language) for utterance in utterances]
    layouts = [
        build_sequence(spec, own.ids, utterance.codes, closed=own.closed, spoken=True)
        for own, utterance in zip(encoded, utterances, strict=True)
    ]
    batch = pack_batch(
        system.model, layouts, [system.family.condition(utterance.voice.clip) for utterance in utterances]
    )
    with system.set_gate_for(language):
        hidden = compute_hidden_states(system.model, batch)[batch.speech.scored]  # (positions, width)
        return hidden, system.model.speech_logits(hidden)


def score_voices(
    encoder: ClipEncoder | str, utterances: Sequence[SpokenSentence], waves: Sequence[Wave], rate: int, seed: int
) -> Score:
    """Similarity of the spoken voices to the requested ones."""
    if isinstance(encoder, str):
        return unmeasured_score(encoder)
    long_indices = [index for index, wave in enumerate(waves) if len(wave) >= MIN_SIMILARITY_SECONDS * rate]
    if not long_indices:
        return unmeasured_score("no utterance is long enough to compare voices")
    try:
        clips = encoder.encode([resample(waves[index], rate, encoder.sample_rate) for index in long_indices])
    except VoxgraftError as error:
        return unmeasured_score(f"the voice encoder rejected the speech: {error.finding.found}")
    requested = [np.asarray(utterances[index].voice.clip.voice["speaker"]) for index in long_indices]
    return compute_voice_similarity([np.asarray(clip.voice["speaker"]) for clip in clips], requested, seed)


def open_voice_encoder(
    base: SpeakingModel, context: ModelContext, voices: Sequence[ReferenceVoice]
) -> ClipEncoder | str:
    """The base's voice encoder, where a voice is a vector that it computes and the sound has the requested voices.

    Else the reason why voices cannot be compared.
    """
    vector = voices[0].clip.voice.get("speaker")
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype.kind != "f":
        return f"{context.family.name} has no voice encoder to compare voices"
    try:
        encoder = context.family.encoder(context.files, base.model)
    except VoxgraftError as error:
        return f"the base's voice encoder cannot be opened: {error.finding.found}"
    # A vocoder that needs a reference sound speaks with the base's own voice where a held-out clip has none stored.
    own = context.family.voices(context.files)
    sounding = all(voice.name in own or REFERENCE_AUDIO in voice.clip.voice for voice in voices)
    if context.family.clones_voices and not sounding:
        return "held-out clips give only part of the voice, and the base's own voice is used (--voices FILE.wav)"
    return encoder


def score_recordings(
    recordings: Sequence[ReferenceRecording], transcriber: Transcriber, seed: int, title: str = GIVEN_RECORDINGS_TITLE
) -> ScoreRow | None:
    """The recognizer's error on recordings themselves; None where it does not know their language."""
    language = recordings[0][0].language if recordings else ""
    if not recordings or transcriber.why_unsupported(language):
        return None
    sentences: list[EvalSentence] = []
    transcripts: list[Transcript] = []
    # A recognizer takes a batch of one sample rate.
    for rate in sorted({rate for _, _, rate in recordings}):
        batch = [(sentence, wave) for sentence, wave, own_rate in recordings if own_rate == rate]
        sentences += [sentence for sentence, _ in batch]
        transcripts += transcriber.transcribe([wave for _, wave in batch], rate, language, "recordings")
    errors = compute_error_rates(sentences, transcripts, seed)
    return ScoreRow(language, WHO_RECORDINGS, f"reference: {title}", errors)


def score_codec_clips(
    sets: Sequence[ClipDataset],
    language: str,
    sound: SpeechRenderer,
    transcriber: Transcriber,
    known: Mapping[str, SentenceSet],
    seed: int,
) -> ScoreRow | None:
    """The recognizer's error on held-out clips after the codec's round trip; None where that makes no sound."""
    # Codes of a recording have no latents: those are of a model that speaks.
    if sound.vocoder is None or sound.needs_latents or transcriber.why_unsupported(language):
        return None
    chosen = [(clips, clip_index) for clips in sets for clip_index in range(len(clips))]
    if not chosen:
        return None
    if len(chosen) > MAX_RECORDINGS:
        chosen = [chosen[index * len(chosen) // MAX_RECORDINGS] for index in range(MAX_RECORDINGS)]
    phones = {sentence.text: sentence.phones for sentence_set in known.values() for sentence in sentence_set.sentences}
    texts = [clips.infos[clip_index].text.strip() for clips, clip_index in chosen]
    sentences = [EvalSentence(language, text, phones=phones.get(text)) for text in texts]
    voices = [clips.voice_clip(clip_index) for clips, clip_index in chosen]
    if (vocoder := sound.restrict_to_voices(voices).vocoder) is None:
        return None
    waves = vocoder.sound([clips.codes(clip_index).tolist() for clips, clip_index in chosen], voices)
    transcripts = transcriber.transcribe(waves, sound.rate, language, "held-out clips")
    errors = compute_error_rates(sentences, transcripts, seed)
    return ScoreRow(language, WHO_CODEC, "reference: held-out clips through the codec", errors)
