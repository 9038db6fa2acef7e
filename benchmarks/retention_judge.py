"""Judging for the retention benchmark: sentences spoken, sounded and heard, many at once, and what the errors are.

The sampling is the family's own. Every sentence has a voice and, for each draw, a seed of its own, the same for every
model: models that compute alike say the same codes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.retention_training import Bench, Sentence, as_without_compiling, held_out
from voxgraft.asr import BuiltInRecognizer, Transcript
from voxgraft.asr.transcripts import edit_distance
from voxgraft.audio.features import exact_float32
from voxgraft.core import rng
from voxgraft.evaluation.scores import compute_error_rate
from voxgraft.evaluation.sentences import normalize_letters, normalize_phones
from voxgraft.models.generate import GenerationPrompt, SpeechGenerator
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states
from voxgraft.models.tiny.model import SAMPLE_RATE, SAMPLES_PER_CODE, build_tiny_condition, build_voice_clip, load_codec
from voxgraft.nn.adapter import Gate
from voxgraft.synthesis.engine import max_sentence_seconds
from voxgraft.training.trainable import TrainableModel
from voxgraft.training.validation import Validator

__all__ = ["Judge", "Speech"]

Wave = NDArray[np.float32]
# Edits that lead from what was meant to what was heard, and the length of the former.
EditCount = tuple[int, int]
NOTHING = Transcript("", ())
SHORTEST = SAMPLE_RATE // 4
PACK = 8_192


@dataclass(frozen=True, slots=True)
class Speech:
    """One sentence as it was said."""

    sentence: Sentence
    codes: tuple[int, ...]
    stopped: bool


class Judge:
    """A codec, a listener, and the sentences of all languages."""

    def __init__(self, bench: Bench, most: int | None = None, draws: int = 1) -> None:
        """At most so many sentences of each language; each is said `draws` times."""
        self.bench, self.draws = bench, draws
        self.codec, self.speakers = load_codec(bench.base, bench.device)
        self.listener = BuiltInRecognizer.open()
        self.listener.network.to(bench.device)
        languages = ("am", *bench.kind.languages)
        self.sentences = {language: bench.material.sentences(language, most) for language in languages}
        self.built_in = self.sentences["am"][: len(self.sentences["am"]) // 2]
        """Of Amharic, for a quick look."""

    def scores(self, model: SpeechModel, gate: Gate | None, *, gated: bool, draws: int | None = None) -> dict[str, Any]:
        """Of all languages. `gated` says whether the adapter acts in the new one alone."""
        return {
            language: self.of_language(model, _acting(gate, language == "am" or not gated), language, draws)
            for language in self.sentences
        }

    def of_language(
        self, model: SpeechModel, acting: AbstractContextManager[None], language: str, draws: int | None = None
    ) -> dict[str, Any]:
        """Every sentence of one language, as often as it is drawn."""
        sentences = self.sentences[language]
        with as_without_compiling(model), acting:
            speaker = SpeechGenerator(model)
            said = [self._said(speaker, sentences, draw) for draw in range(draws or self.draws)]
        return self.judged(said)

    def quick(self, trained: TrainableModel) -> float:
        """Phone error of half the Amharic sentences, each said once."""
        with as_without_compiling(trained.model), _acting(trained.gate, True):
            said = self._said(SpeechGenerator(trained.model), self.built_in, 0)
        pairs = zip(said, self._heard(said), strict=True)
        return float(compute_error_rate([_phones(one.sentence, heard) for one, heard in pairs], 0).value or 0.0)

    def marks(self) -> dict[str, Any]:
        """The errors that the listener makes of the synthesiser's own voice, as the codec gives it back."""
        return {
            language: self.judged([[Speech(one, one.codes, True) for one in sentences]])
            for language, sentences in self.sentences.items()
        }

    def judged(self, draws: Sequence[Sequence[Speech]]) -> dict[str, Any]:
        """Errors over all draws, with the interval that other sentences would give, and of each draw."""
        heard = [self._heard(said) for said in draws]
        said, words = [one for draw in draws for one in draw], [one for draw in heard for one in draw]
        pairs = [(one.sentence, what) for one, what in zip(said, words, strict=True)]
        phones, count = [_phones(*pair) for pair in pairs], len(draws[0])
        by_sentence = [_summed(phones[at::count]) for at in range(count)]
        unheard = [bool(one.sentence.unheard) for one in draws[0]]
        found = {
            "phone_error": compute_error_rate(by_sentence, 0).to_json(),
            "cer": compute_error_rate(
                [_summed([_letters(*pair) for pair in pairs[at::count]]) for at in range(count)], 0
            ).to_json(),
            "by_draw": [_rate(phones[at * count : (at + 1) * count]) for at in range(len(draws))],
            "runaway": sum(not one.stopped for one in said) / len(said),
            "codes": _digest(said),
        }
        for name, wanted in (("heard_words", False), ("unheard_words", True)):
            found[name] = _rate(
                one for one, is_unheard in zip(by_sentence, unheard, strict=True) if is_unheard == wanted
            )
        return found

    def losses(self, trained: TrainableModel, *, gated: bool) -> dict[str, Any]:
        """Held-out speech losses of all languages, and how much of the text is used in the new one."""
        found: dict[str, Any] = {}
        with as_without_compiling(trained.model):
            for language in self.sentences:
                examples, items = held_out(self.bench, trained.model, language)
                is_open = language == "am" or not gated
                measured = Validator(trained, examples, items, PACK, is_open=is_open).run()
                found[language] = measured.speech_loss
                if language == "am":
                    found["text_use"] = measured.text_use
        return found

    @torch.no_grad()
    def is_base(self, trained: TrainableModel) -> dict[str, bool]:
        """Whether, its gate closed, a model's speech logits are the base's, bit for bit, over held-out recordings."""
        base, found = self.bench.model(), {}
        for language in self.bench.kind.languages:
            logits = []
            for model, gate in ((base, None), (trained.model, trained.gate)):
                examples, items = held_out(self.bench, model, language)
                with as_without_compiling(model), _acting(gate, False):
                    logits.append(model.speech_logits(compute_hidden_states(model, examples.batch(items[:64]))))
            found[language] = torch.equal(*logits)
        return found

    def _said(self, speaker: SpeechGenerator, sentences: Sequence[Sentence], draw: int) -> list[Speech]:
        stock = self.bench.kind.upstream_sampling()
        limits = [
            min(
                round(max_sentence_seconds(one.text) * self.bench.kind.code_hz),
                stock.max_codes,
            )
            for one in sentences
        ]
        prompts = [
            GenerationPrompt(
                one.ids,
                build_tiny_condition(build_voice_clip(one.speaker)),
                rng.hash_int("retention", draw, one.text) >> 1,
            )
            for one in sentences
        ]
        spoken = speaker.speak(prompts, replace(stock, max_codes=max(limits)))
        return [
            Speech(one, tuple(said.codes[:limit]), said.stopped and len(said.codes) <= limit)
            for one, said, limit in zip(sentences, spoken, limits, strict=True)
        ]

    def _heard(self, said: Sequence[Speech]) -> list[Transcript]:
        waves = self._waves(said)
        heard = [NOTHING] * len(said)
        sounding = [at for at, wave in enumerate(waves) if len(wave)]
        filled = [np.pad(waves[at], (0, max(0, SHORTEST - len(waves[at])))) for at in sounding]
        if filled:
            found = self.listener.transcribe(filled, SAMPLE_RATE, said[0].sentence.language)
            for at, one in zip(sounding, found, strict=True):
                heard[at] = one
        return heard

    @torch.no_grad()
    def _waves(self, said: Sequence[Speech]) -> list[Wave]:
        """All of one voice at once: the decoder sees nothing behind the end of a clip."""
        waves: dict[int, Wave] = {}
        for number, name in enumerate(self.speakers):
            places = [at for at, one in enumerate(said) if one.sentence.speaker == number and one.codes]
            if not places:
                continue
            rows = [torch.tensor(said[at].codes) for at in places]
            lengths = torch.tensor([len(row) for row in rows], device=self.bench.device)
            codes = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.bench.device)
            with exact_float32():
                made = self.codec.decode(codes, name, lengths).float().cpu().numpy()
            waves.update(
                (at, wave[: SAMPLES_PER_CODE * len(row)]) for at, wave, row in zip(places, made, rows, strict=True)
            )
        return [waves.get(at, np.zeros(0, np.float32)) for at in range(len(said))]


def _acting(gate: Gate | None, acts: bool) -> AbstractContextManager[None]:
    if gate is None:
        return nullcontext()
    return gate.opened() if acts else gate.closed()


def _phones(meant: Sentence, heard: Transcript) -> EditCount:
    phones = normalize_phones(meant.phones)
    return edit_distance(phones, normalize_phones(heard.phones or ())), len(phones)


def _letters(meant: Sentence, heard: Transcript) -> EditCount:
    letters = normalize_letters(meant.text, meant.language)
    return edit_distance(letters, normalize_letters(heard.text, meant.language)), len(letters)


def _summed(counts: Sequence[EditCount]) -> EditCount:
    return sum(edits for edits, _ in counts), sum(length for _, length in counts)


def _rate(counts: Iterable[EditCount]) -> float:
    edits, length = _summed(list(counts))
    return edits / max(1, length)


def _digest(said: Sequence[Speech]) -> str:
    lines = "\n".join(" ".join(map(str, one.codes)) for one in said)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]
