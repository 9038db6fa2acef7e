"""Sentences of an evaluation as a model speaks them, and the voices that it speaks with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from voxgraft.audio.files import read_audio
from voxgraft.core.errors import FileError
from voxgraft.core.files import is_file
from voxgraft.dataset.shards import ClipDataset
from voxgraft.evaluation.sentences import EvalSentence
from voxgraft.models.base import BaseFiles, Latents, encode_recording, unknown_voice_error
from voxgraft.synthesis.engine import (
    SpeakingModel,
    SynthesisEngine,
    SynthesisRequest,
    draw_seed,
    limit_codes,
    max_sentence_seconds,
)
from voxgraft.synthesis.voices import ReferenceVoice, choose_voices

MAX_EVAL_VOICES = 4


def choose_eval_voices(
    base: SpeakingModel,
    files: BaseFiles,
    names: Sequence[str],
    held_out: Sequence[ClipDataset],
    min_seconds: float,
    seed: int,
) -> list[ReferenceVoice]:
    """Some voices to take turns with; an error that says how to name one where there is none."""
    if names:
        return [_load_requested_voice(base, files, name) for name in names]
    if held_out:
        # One clip of every speaker comes first, so the first voices are of as many speakers as there are.
        return choose_voices(held_out, min_seconds, MAX_EVAL_VOICES * 4, seed)[:MAX_EVAL_VOICES]
    own = base.family.voices(files)
    if own:
        return [ReferenceVoice(name, clip) for name, clip in list(own.items())[:MAX_EVAL_VOICES]]
    found_nothing = f"nothing to take a voice from: no held-out clips, and {base.family.name} has no voices of its own"
    raise FileError("evaluate-voice", found_nothing, expected="--voices FILE.wav", where=files.folder)


def _load_requested_voice(base: SpeakingModel, files: BaseFiles, name: str) -> ReferenceVoice:
    own = base.family.voices(files)
    if name in own:
        return ReferenceVoice(name, own[name])
    path = Path(name)
    if not is_file(path):
        raise unknown_voice_error(name, own, files.folder) if own else FileError("file-missing", f"{name} is not there")
    wave, rate = read_audio(path, code="wav-form")
    return ReferenceVoice(path.name, encode_recording(base.family.encoder(files, base.model), wave, rate))


@dataclass(frozen=True, slots=True)
class SpokenSentence:
    """One sentence as one system said it. Without codes it could not be said at all, and `why` tells."""

    sentence: EvalSentence
    voice: ReferenceVoice
    codes: tuple[int, ...] | None
    stopped: bool
    """Came to its end by itself, before its limit."""
    seconds: float
    why: str = ""
    code_hz: float = 25.0
    ids: tuple[int, ...] = ()
    """Text tokens that the model was given."""
    latents: Latents | None = None
    """For a waveform end that needs them. [codes, width]"""

    @property
    def is_runaway(self) -> bool:
        return self.codes is not None and not self.stopped


def synthesize_sentences(
    system: SpeakingModel,
    sentences: Sequence[EvalSentence],
    voices: Sequence[ReferenceVoice],
    seed: int,
    who: str,
    *,
    latents: bool = False,
) -> list[SpokenSentence]:
    """Every sentence, in its order; the voices take turns. Loops are kept: they are among what is measured."""
    code_hz = system.family.code_hz
    said: list[SpokenSentence] = []
    requests: dict[int, SynthesisRequest] = {}
    for at, sentence in enumerate(sentences):
        voice = voices[at % len(voices)]
        request = _build_request(system, at, sentence, voice, seed)
        why = system.why_unspeakable(request.text_ids)
        said.append(SpokenSentence(sentence, voice, None, False, 0.0, why, ids=tuple(request.text_ids)))
        if not why:
            requests[at] = request
    # A new engine for every call: inside training its memory must be given back.
    stock = system.family.stock_sampling()
    engine = SynthesisEngine(system.model, stock, set_gate=system.set_gate_for, latents=latents)
    results = engine.run(list(requests.values()), f"{who} speaks")
    for at, result in zip(requests, results, strict=True):
        seconds = len(result.codes) / code_hz
        said[at] = replace(
            said[at],
            codes=result.codes,
            stopped=result.ended,
            seconds=seconds,
            code_hz=code_hz,
            latents=result.latents,
        )
    return said


def _build_request(
    system: SpeakingModel, at: int, sentence: EvalSentence, voice: ReferenceVoice, seed: int
) -> SynthesisRequest:
    family, stock = system.family, system.family.stock_sampling()
    seconds, most = max_sentence_seconds(sentence.text), min(stock.max_codes, system.model.frame.max_codes)
    return SynthesisRequest(
        tuple(system.ids(sentence.text, sentence.language)),
        family.condition(voice.clip),
        draw_seed("evaluate", seed, sentence.language, sentence.text),
        limit_codes(seconds, family.code_hz, most),
        sentence.language,
        sort_key=(len(sentence.text), at),
    )
