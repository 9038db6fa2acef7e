"""Speech of a few fixed sentences on the way: how the new language comes on, and that old ones stay.

One file a sentence and round, `samples/step-000500/am.json`, which holds all that a waveform end needs to make sound of
it: the codes, their rate, and whose voice it is; where there is such an end, `am.wav` beside it. Nothing is drawn from
torch's or NumPy's own generators, so that training goes on as if nobody had spoken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from voxgraft.audio.files import encode_audio
from voxgraft.core import rng
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.files import atomic_write, is_file, read_json, write_text
from voxgraft.core.run import RunFolder, step_folder_name
from voxgraft.dataset.shards import ClipDataset
from voxgraft.models.base import Clip, Vocoder
from voxgraft.synthesis.engine import (
    SynthesisEngine,
    SynthesisRequest,
    SynthesisResult,
    limit_codes,
    max_sentence_seconds,
)
from voxgraft.text.encoder import TextEncoder
from voxgraft.training.callbacks import Callback
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import Validator


@dataclass(frozen=True, slots=True)
class SampleSentence:
    """One text that is spoken every time, always drawn with the same seed. Its name is that of its files."""

    name: str
    language: str
    text: str
    ids: tuple[int, ...]
    is_new: bool
    """In the language that is being learnt."""
    seed: int


class SampleCallback(Callback):
    """Speaks the sentences of a training; a `Trainer` calls it. The voice is a held-out one, fixed by the seed."""

    def __init__(self, loop: Trainer, sentences: Sequence[SampleSentence], vocoder: Vocoder | None = None) -> None:
        self._run, self._sentences, self._train_step = loop.run_folder, tuple(sentences), loop.stepper
        held_out = next(iter(loop.validations.values()))
        self._voice_name, voice = _choose_held_out_voice(held_out, loop.stepper.options.seed)
        self._condition = loop.stepper.batch_builder.family.condition(voice)
        self._voice, self._vocoder = voice, vocoder
        self._no_audio_reason = vocoder.why_not(voice) if vocoder else ""

    def on_sample(self, step: int) -> dict[str, Any]:
        """Speak all, write their files, and give what the journal says of them."""
        folder = _sample_folder(self._run, step)
        heard = [(sentence, self._spoken(sentence)) for sentence in self._sentences]
        spoken = [self._told(sentence, said, step) for sentence, said in heard]
        told = {"folder": folder.relative_to(self._run.path).as_posix(), "spoken": spoken}
        if self._vocoder is not None:
            self._sound(self._vocoder, folder, heard)
            told["silent_because"] = self._no_audio_reason
        return told

    def _sound(self, vocoder: Vocoder, folder: Path, heard: Sequence[tuple[SampleSentence, SynthesisResult]]) -> None:
        """Sound beside the codes. A waveform end that fails is told of and asked no more: training goes on."""
        if self._no_audio_reason:
            return
        try:
            latents = [said.latents for _, said in heard if said.latents is not None]
            codes, voices = [said.codes for _, said in heard], [self._voice] * len(heard)
            waves = vocoder.sound(codes, voices, latents if vocoder.needs_latents else None)
        except VoxgraftError as error:
            self._no_audio_reason = error.finding.found
            return
        for (sentence, _), wave in zip(heard, waves, strict=True):
            with atomic_write(folder / f"{sentence.name}.wav", overwrite=True) as stream:
                stream.write(encode_audio(wave, vocoder.sample_rate))

    def _spoken(self, sentence: SampleSentence) -> SynthesisResult:
        """One sentence, by an engine of its own: nothing is kept in memory beside training.

        Sentences never share a batch, so codes stay comparable with step 0 when the list of sentences changes.
        """
        model, family = self._train_step.trained.model, self._train_step.batch_builder.family
        stock = family.stock_sampling()
        most = min(stock.max_codes, model.frame.max_codes)
        limit = limit_codes(max_sentence_seconds(sentence.text), family.code_hz, most)
        request = SynthesisRequest(sentence.ids, self._condition, sentence.seed, limit, sentence.language, ())
        # Without a recording of the voice there is no sound, and nothing to compute latents for.
        latents = self._vocoder is not None and self._vocoder.needs_latents and not self._no_audio_reason
        engine = SynthesisEngine(model, stock, set_gate=lambda _language: self._set_gate(sentence), latents=latents)
        [[(_, result)]] = engine.iterate([request])
        return result

    def _set_gate(self, sentence: SampleSentence) -> AbstractContextManager[None]:
        """Open for the new language, closed for old ones; an adapter that will be folded in acts on all."""
        gate = self._train_step.trained.gate
        if gate is None:
            return nullcontext()
        return gate.opened() if sentence.is_new or self._train_step.options.mode == "merged" else gate.closed()

    def _told(self, sentence: SampleSentence, spoken: SynthesisResult, step: int) -> dict[str, Any]:
        seconds = round(len(spoken.codes) / self._train_step.batch_builder.family.code_hz, 2)
        said = {"language": sentence.language, "text": sentence.text}
        kept = {
            **said,
            "text_ids": list(sentence.ids),
            "codes": list(spoken.codes),
            "stopped": spoken.ended,
            "seconds": seconds,
            "code_hz": self._train_step.batch_builder.family.code_hz,
            "voice": self._voice_name,
            "seed": sentence.seed,
        }
        path = _sample_folder(self._run, step) / f"{sentence.name}.json"
        write_text(path, json.dumps(kept, ensure_ascii=False) + "\n", overwrite=True)
        told = {
            "name": sentence.name,
            **said,
            "codes": len(spoken.codes),
            "seconds": seconds,
            "stopped": spoken.ended,
            "repeats": max((len(list(run)) for _, run in groupby(spoken.codes)), default=0),
        }
        if sentence.is_new or not step:
            return told
        return {**told, "same_as_step_0": self._matches_step_zero(sentence, spoken)}

    def _matches_step_zero(self, sentence: SampleSentence, spoken: SynthesisResult) -> bool | None:
        """Whether an old language was spoken code for code as before the first step; None where that is not kept."""
        path = _sample_folder(self._run, 0) / f"{sentence.name}.json"
        kept = read_json(path) if is_file(path) else None
        if not isinstance(kept, dict) or kept.get("text") != sentence.text:
            return None
        return bool(kept.get("codes") == list(spoken.codes))


def _sample_folder(run: RunFolder, step: int) -> Path:
    return run.samples / step_folder_name(step)


def _choose_held_out_voice(held_out: Validator, seed: int) -> tuple[str, Clip]:
    """Name and voice of one held-out prompt."""
    item = held_out.items[rng.hash_int("voice", seed) % len(held_out.items)]
    where, clip = item.prompt
    clips = held_out.batch_builder.sets[where]
    return f"{clips.name}/{clips.infos[clip].id}", Clip(clips.codes(clip), clips.voice(clip))


NEW_LANGUAGE_SAMPLES = {"am": "ሰላም ለዓለም"}
BASE_LANGUAGE_SAMPLES = {"en": "Hello world", "fr": "Bonjour le monde", "zh": "你好，世界"}
"""By language; the first two that the base speaks are spoken."""
NUM_BASE_SAMPLES = 2
MIN_SAMPLE_CHARACTERS = 8
"""Of a held-out sentence that stands in for a language that we have no sentence of."""


def build_sample_sentences(
    spelling: TextEncoder, requested: Sequence[str], held_out: Sequence[str], seed: int
) -> list[SampleSentence]:
    """The texts that are asked for as LANGUAGE:TEXT, or the usual ones, spelled as their language is.

    `held_out` are texts of recordings that are never learnt from; the shortest stands in where we have none.
    """
    found: list[SampleSentence] = []
    for language, text in (
        [_parse_sample_text(text) for text in requested] if requested else _default_samples(spelling, held_out)
    ):
        is_new = spelling.is_new_language(language)
        language = str(spelling.language) if is_new else language  # ff-adlm is ff-Adlm
        if not is_new and language not in spelling.family.languages:
            spoken = ", ".join((str(spelling.language), *spelling.family.languages))
            raise ConfigError("sample-text", f"a sentence in {language!r}: {text!r:.80}", expected=f"one of {spoken}")
        same = sum(one.language == language for one in found)
        name = f"{language}-{same + 1}" if same else language
        ids = tuple(spelling.encode(text, language))
        own_seed = rng.hash_int("sample", seed, language, text) % 2**31
        found.append(SampleSentence(name, language, text, ids, is_new, own_seed))
    return found


def collect_texts(sets: Sequence[ClipDataset]) -> list[str]:
    """Texts of some sets, as people write them."""
    return [info.text.strip() for clips in sets for info in clips.infos[: len(clips)]]


def _parse_sample_text(asked: str) -> tuple[str, str]:
    language, colon, text = asked.partition(":")
    if not colon or not language.strip() or not text.strip():
        raise ConfigError("sample-text", f"{asked!r:.80}", expected="LANGUAGE:TEXT, such as en:Hello world")
    return language.strip(), text.strip()


def _default_samples(spelling: TextEncoder, held_out: Sequence[str]) -> list[tuple[str, str]]:
    own = str(spelling.language)
    long_enough = sorted(
        (text for text in held_out if len(text) >= MIN_SAMPLE_CHARACTERS), key=lambda text: (len(text), text)
    )
    new = NEW_LANGUAGE_SAMPLES.get(own) or next(iter(long_enough), None)
    old = [
        (language, BASE_LANGUAGE_SAMPLES[language])
        for language in BASE_LANGUAGE_SAMPLES
        if language in spelling.family.languages and language != own
    ]
    return ([(own, new)] if new else []) + old[:NUM_BASE_SAMPLES]
