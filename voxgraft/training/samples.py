"""Speech of a few fixed sentences on the way: how the new language comes on, and that old ones stay.

One file a sentence and round, `samples/step-000500/am.json`, which holds all that a waveform end needs to make sound of
it: the codes, their rate, and whose voice it is; where there is such an end, `am.wav` beside it. Nothing is drawn from
torch's or NumPy's own generators, so that training goes on as if nobody had spoken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from voxgraft.audio.wav import wav_bytes
from voxgraft.corpus import chance
from voxgraft.errors import VoxgraftError
from voxgraft.families.encoding import Clip
from voxgraft.families.generate import Prompt, Spoken, generate
from voxgraft.families.sounding import Vocoder
from voxgraft.files import is_file, read_json, replacing, write_text
from voxgraft.run import RunFolder, step_name
from voxgraft.training.loop import Loop
from voxgraft.training.validation import Validation

__all__ = ["Sampler", "Sentence"]

PAUSE_SECONDS, SECONDS_PER_CHARACTER = 2.0, 0.4
"""A sentence is cut off when it takes longer than slow speech does."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One text that is spoken every time, always drawn with the same seed. Its name is that of its files."""

    name: str
    language: str
    text: str
    ids: tuple[int, ...]
    is_new: bool
    """In the language that is being learnt."""
    seed: int

    def max_seconds(self) -> float:
        return PAUSE_SECONDS + SECONDS_PER_CHARACTER * len(self.text)


class Sampler:
    """Speaks the sentences of a training; a `Loop` calls it. The voice is a held-out one, fixed by the seed."""

    def __init__(self, loop: Loop, sentences: Sequence[Sentence], vocoder: Vocoder | None = None) -> None:
        self._run, self._sentences, self._stepper = loop.run_folder, tuple(sentences), loop.stepper
        held_out = next(iter(loop.validations.values()))
        self._voice_name, voice = _voice(held_out, loop.stepper.options.seed)
        self._condition = loop.stepper.examples.family.condition(voice)
        self._voice, self._vocoder = voice, vocoder
        self._silent_because = vocoder.why_not(voice) if vocoder else ""

    def __call__(self, step: int) -> dict[str, Any]:
        """Speak all, write their files, and give what the journal says of them."""
        folder = _folder(self._run, step)
        heard = [(sentence, self._spoken(sentence)) for sentence in self._sentences]
        spoken = [self._told(sentence, said, step) for sentence, said in heard]
        told = {"folder": folder.relative_to(self._run.path).as_posix(), "spoken": spoken}
        if self._vocoder is not None:
            self._sound(self._vocoder, folder, heard)
            told["silent_because"] = self._silent_because
        return told

    def _sound(self, vocoder: Vocoder, folder: Path, heard: Sequence[tuple[Sentence, Spoken]]) -> None:
        """Sound beside the codes. A waveform end that fails is told of and asked no more: training goes on."""
        if self._silent_because:
            return
        try:
            waves = vocoder.sound([said.codes for _, said in heard], [self._voice] * len(heard))
        except VoxgraftError as error:
            self._silent_because = error.finding.found
            return
        for (sentence, _), wave in zip(heard, waves, strict=True):
            with replacing(folder / f"{sentence.name}.wav", overwrite=True) as stream:
                stream.write(wav_bytes(wave, vocoder.sample_rate))

    def _spoken(self, sentence: Sentence) -> Spoken:
        model, family = self._stepper.trained.model, self._stepper.examples.family
        stock = family.stock_sampling()
        limit = min(round(sentence.max_seconds() * family.code_hz), stock.max_codes, model.frame.max_codes)
        prompt = Prompt(sentence.ids, self._condition, sentence.seed)
        with self._gate(sentence):
            return generate(model, [prompt], replace(stock, max_codes=limit))[0]

    def _gate(self, sentence: Sentence) -> AbstractContextManager[None]:
        """Open for the new language, closed for old ones; an adapter that will be folded in acts on all."""
        gate = self._stepper.trained.gate
        if gate is None:
            return nullcontext()
        return gate.opened() if sentence.is_new or self._stepper.options.mode == "merged" else gate.closed()

    def _told(self, sentence: Sentence, spoken: Spoken, step: int) -> dict[str, Any]:
        seconds = round(len(spoken.codes) / self._stepper.examples.family.code_hz, 2)
        said = {"language": sentence.language, "text": sentence.text}
        kept = {
            **said,
            "text_ids": list(sentence.ids),
            "codes": spoken.codes,
            "stopped": spoken.stopped,
            "seconds": seconds,
            "code_hz": self._stepper.examples.family.code_hz,
            "voice": self._voice_name,
            "seed": sentence.seed,
        }
        path = _folder(self._run, step) / f"{sentence.name}.json"
        write_text(path, json.dumps(kept, ensure_ascii=False) + "\n", overwrite=True)
        told = {
            "name": sentence.name,
            **said,
            "codes": len(spoken.codes),
            "seconds": seconds,
            "stopped": spoken.stopped,
            "repeats": max((len(list(run)) for _, run in groupby(spoken.codes)), default=0),
        }
        if sentence.is_new or not step:
            return told
        return {**told, "same_as_step_0": self._is_same(sentence, spoken)}

    def _is_same(self, sentence: Sentence, spoken: Spoken) -> bool | None:
        """Whether an old language was spoken code for code as before the first step; None where that is not kept."""
        path = _folder(self._run, 0) / f"{sentence.name}.json"
        kept = read_json(path) if is_file(path) else None
        if not isinstance(kept, dict) or kept.get("text") != sentence.text:
            return None
        return bool(kept.get("codes") == spoken.codes)


def _folder(run: RunFolder, step: int) -> Path:
    return run.samples / step_name(step)


def _voice(held_out: Validation, seed: int) -> tuple[str, Clip]:
    """Name and voice of one held-out prompt."""
    item = held_out.items[chance.number("voice", seed) % len(held_out.items)]
    where, clip = item.prompt
    clips = held_out.examples.sets[where]
    return f"{clips.name}/{clips.infos[clip].id}", Clip(clips.codes(clip), clips.voice(clip))
