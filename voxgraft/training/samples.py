"""Samples: a few fixed sentences, spoken during training to follow how the new language improves and the old ones stay.

One file for each sentence and round, `samples/step-000500/am.json`, holds all that a vocoder needs: the codes, their
rate, and the voice; where there is a vocoder, `am.wav` lies beside it. Nothing is drawn from torch's or NumPy's own
generators, so training is the same with and without samples.
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
from voxgraft.core.run import step_folder_name
from voxgraft.dataset.shards import ClipDataset
from voxgraft.models.base import Vocoder
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


class SampleCallback(Callback):
    """Speaks the sentences of a training; a `Trainer` calls it. The voice is a held-out one, fixed by the seed."""

    def __init__(self, loop: Trainer, sentences: Sequence[SampleSentence], vocoder: Vocoder | None = None) -> None:
        self._run, self._sentences, self._train_step = loop.run_folder, tuple(sentences), loop.stepper
        held_out = next(iter(loop.validations.values()))
        item = held_out.items[rng.hash_int("voice", loop.stepper.options.seed) % len(held_out.items)]
        where, clip = item.prompt
        clips = held_out.batch_builder.sets[where]
        self._voice_name = f"{clips.name}/{clips.infos[clip].id}"
        self._voice, self._vocoder = clips.voice_clip(clip), vocoder
        self._condition = loop.stepper.batch_builder.family.condition(self._voice)
        self._no_audio_reason = vocoder.why_not(self._voice) if vocoder else ""

    def on_sample(self, step: int) -> dict[str, Any]:
        """Speak all sentences, write their files, and return the values of the journal's line."""
        folder = self._run.samples / step_folder_name(step)
        spoken = [(sentence, self._speak(sentence)) for sentence in self._sentences]
        lines = [self._write_codes(sentence, result, step, folder) for sentence, result in spoken]
        values = {"folder": folder.relative_to(self._run.path).as_posix(), "spoken": lines}
        if self._vocoder is None:
            return values
        if not self._no_audio_reason:
            try:
                latents = [said.latents for _, said in spoken if said.latents is not None]
                codes, voices = [said.codes for _, said in spoken], [self._voice] * len(spoken)
                waves = self._vocoder.sound(codes, voices, latents if self._vocoder.needs_latents else None)
            except VoxgraftError as error:
                # A vocoder that fails is reported and not asked again; training continues.
                self._no_audio_reason, waves = error.finding.found, []
            for (sentence, _), wave in zip(spoken if waves else [], waves, strict=True):
                with atomic_write(folder / f"{sentence.name}.wav", overwrite=True) as stream:
                    stream.write(encode_audio(wave, self._vocoder.sample_rate))
        return {**values, "silent_because": self._no_audio_reason}

    def _speak(self, sentence: SampleSentence) -> SynthesisResult:
        """One sentence, by an engine of its own, so that no memory stays taken beside training.

        Sentences never share a batch, so codes stay comparable with step 0 when the list of sentences changes.
        """
        model, family = self._train_step.trained.model, self._train_step.batch_builder.family
        stock, gate = family.stock_sampling(), self._train_step.trained.gate
        most = min(stock.max_codes, model.frame.max_codes)
        limit = limit_codes(max_sentence_seconds(sentence.text), family.code_hz, most)
        request = SynthesisRequest(sentence.ids, self._condition, sentence.seed, limit, sentence.language, ())

        def set_gate(_language: str) -> AbstractContextManager[None]:
            if gate is None:
                return nullcontext()
            # Closed for old languages, unless the adapter will be merged and then acts on all.
            return gate.opened() if sentence.is_new or self._train_step.options.mode == "merged" else gate.closed()

        # Without a recording of the voice there is no sound, and nothing to compute latents for.
        latents = self._vocoder is not None and self._vocoder.needs_latents and not self._no_audio_reason
        [[(_, result)]] = SynthesisEngine(model, stock, set_gate=set_gate, latents=latents).iterate([request])
        return result

    def _write_codes(
        self, sentence: SampleSentence, spoken: SynthesisResult, step: int, folder: Path
    ) -> dict[str, Any]:
        """Write the file of one sentence; returns what the journal says of it."""
        code_hz = self._train_step.batch_builder.family.code_hz
        seconds = round(len(spoken.codes) / code_hz, 2)
        said = {"language": sentence.language, "text": sentence.text}
        content = {
            **said,
            "text_ids": list(sentence.ids),
            "codes": list(spoken.codes),
            "stopped": spoken.ended,
            "seconds": seconds,
            "code_hz": code_hz,
            "voice": self._voice_name,
            "seed": sentence.seed,
        }
        name = f"{sentence.name}.json"
        write_text(folder / name, json.dumps(content, ensure_ascii=False) + "\n", overwrite=True)
        line: dict[str, Any] = {
            "name": sentence.name,
            **said,
            "codes": len(spoken.codes),
            "seconds": seconds,
            "stopped": spoken.ended,
            # The longest run of one code: speech that hangs shows here first.
            "repeats": max((len(list(run)) for _, run in groupby(spoken.codes)), default=0),
        }
        if not sentence.is_new and step:
            # Whether an old language is spoken code for code as before the first step; None where that is not kept.
            path = self._run.samples / step_folder_name(0) / name
            first = read_json(path) if is_file(path) else None
            line["same_as_step_0"] = None
            if isinstance(first, dict) and first.get("text") == sentence.text:
                line["same_as_step_0"] = first.get("codes") == list(spoken.codes)
        return line


NEW_LANGUAGE_SAMPLES = {"am": "ሰላም ለዓለም"}
# By language; the first two that the base speaks are spoken.
BASE_LANGUAGE_SAMPLES = {"en": "Hello world", "fr": "Bonjour le monde", "zh": "你好，世界"}
NUM_BASE_SAMPLES = 2
# Of a held-out sentence that is used for a language without a sentence above.
MIN_SAMPLE_CHARACTERS = 8


def build_sample_sentences(
    text_encoder: TextEncoder, requested: Sequence[str], held_out: Sequence[str], seed: int
) -> list[SampleSentence]:
    """The texts that are requested as LANGUAGE:TEXT, or the usual ones, encoded as their language is.

    `held_out` are texts of recordings that are never trained on; the shortest is in where we have none.
    """
    wanted: list[tuple[str, str]] = []
    for text in requested:
        language, colon, content = (part.strip() for part in text.partition(":"))
        if not colon or not language or not content:
            raise ConfigError("sample-text", f"{text!r:.80}", expected="LANGUAGE:TEXT, such as en:Hello world")
        wanted.append((language, content))
    if not requested:
        own = str(text_encoder.language)
        long_enough = [text for text in held_out if len(text) >= MIN_SAMPLE_CHARACTERS]
        shortest = min(long_enough, key=lambda text: (len(text), text), default=None)
        if new := NEW_LANGUAGE_SAMPLES.get(own) or shortest:
            wanted.append((own, new))
        old = [pair for pair in BASE_LANGUAGE_SAMPLES.items() if pair[0] in text_encoder.family.languages]
        wanted += [pair for pair in old if pair[0] != own][:NUM_BASE_SAMPLES]
    found: list[SampleSentence] = []
    for language, text in wanted:
        is_new = text_encoder.is_new_language(language)
        language = str(text_encoder.language) if is_new else language  # ff-adlm is ff-Adlm
        if not is_new and language not in text_encoder.family.languages:
            spoken = ", ".join((str(text_encoder.language), *text_encoder.family.languages))
            raise ConfigError("sample-text", f"a sentence in {language!r}: {text!r:.80}", expected=f"one of {spoken}")
        same = sum(one.language == language for one in found)
        name = f"{language}-{same + 1}" if same else language
        ids = tuple(text_encoder.encode(text, language))
        own_seed = rng.hash_int("sample", seed, language, text) % 2**31
        found.append(SampleSentence(name, language, text, ids, is_new, own_seed))
    return found


def collect_texts(sets: Sequence[ClipDataset]) -> list[str]:
    """Texts of some sets, as people write them."""
    return [info.text.strip() for clips in sets for info in clips.infos[: len(clips)]]
