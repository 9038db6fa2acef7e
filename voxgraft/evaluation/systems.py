"""What is judged: a base, and the same base with a graft, a merged checkpoint, a saved step, or another checkpoint.

Opens models and says how each of them reads a text; speaks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from voxgraft.audio.files import read_audio
from voxgraft.core import files, progress
from voxgraft.core.errors import CheckpointError, FileError, GraftError
from voxgraft.core.files import compute_sha256, is_file, is_folder
from voxgraft.core.run import RunFolder
from voxgraft.dataset.shards import ClipDataset
from voxgraft.evaluation.sentences import EvalSentence
from voxgraft.graft.folder import ADAPTER_NAME, Graft, find_text_rules, load_graft, parse_text_rules
from voxgraft.models.base import BaseFiles, Family, encode_recording, unknown_voice_error
from voxgraft.models.generate import GenerationPrompt, SpeechGenerator
from voxgraft.models.load import grow_model, iter_tensors, load_model
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.adapter import Gate
from voxgraft.nn.freeze import load_new_rows
from voxgraft.nn.peft import load_peft_adapter, read_peft_folder
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import NO_RULES, TextRules
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.checkpoint import load_step
from voxgraft.training.options import TrainOptions
from voxgraft.training.outputs import read_merged_card
from voxgraft.training.replay import ReferenceVoice, choose_voices
from voxgraft.training.samples import MAX_PAUSE_SECONDS, MAX_SECONDS_PER_CHARACTER
from voxgraft.training.trainable import MASKED_BASELINE_LABEL, TrainableModel, make_trainable


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The base that everything is measured against, and where its model computes."""

    family: Family
    files: BaseFiles
    device: str
    dtype: torch.dtype

    def model(self, files: BaseFiles | None = None) -> SpeechModel:
        return load_model(self.family, files or self.files, device=self.device, dtype=self.dtype)

    def spelling(self) -> TextEncoder:
        return TextEncoder.of(self.family, open_tokenizer(self.files.tokenizer), None, None)


@dataclass(frozen=True)
class SpeakingModel:
    """One way to speak: a model, how it reads, and whether its adapter acts only for the new language."""

    name: str
    family: Family
    model: SpeechModel
    spelling: TextEncoder
    gate: Gate | None = None
    mode: str = "base"
    """base, gated, rows-only, merged, as-in-the-seeds or checkpoint."""
    step: int | None = None
    label: str = ""
    """What has to be said of it wherever it is shown; empty where nothing has."""
    checkpoint: Path | None = None
    """The file that holds all its values; None where more than one file went into them."""

    @property
    def keeps_base(self) -> bool:
        """Whether the old languages are promised to be the base's, bit for bit."""
        return self.mode in ("base", "gated", "rows-only")

    @property
    def trained(self) -> TrainableModel:
        """The same for what measures a model that is trained."""
        return TrainableModel(self.model, {}, self.gate)

    def is_open(self, language: str) -> bool:
        """Whether the adapter acts when that language is spoken."""
        return self.mode != "gated" or self.spelling.is_new_language(language)

    def set_gate_for(self, language: str) -> AbstractContextManager[None]:
        """The gate as that language needs it, inside this block."""
        if self.gate is None:
            return nullcontext()
        return self.gate.opened() if self.is_open(language) else self.gate.closed()

    def ids(self, text: str, language: str) -> list[int]:
        """The text as this system reads it. What the stock program takes out of a text is taken out here too."""
        barred = self.model.frame.forbidden_text_ids
        return [one for one in self.spelling.encode(text, language) if one not in barred]


def open_base_model(place: ModelContext) -> SpeakingModel:
    """The base alone, as it was published."""
    return SpeakingModel("base", place.family, place.model(), place.spelling(), checkpoint=place.files.checkpoint)


def open_grafted_model(place: ModelContext, graft: Graft) -> SpeakingModel:
    """The base with a graft: its rows, and its adapter behind a gate if it has one."""
    _require_same_base(place, graft.card.base, graft.folder)
    model = place.model()
    grow_model(model, graft.card.num_rows)
    load_new_rows(model, {name: torch.from_numpy(values) for name, values in graft.rows.items()})
    folder = graft.folder / ADAPTER_NAME
    gate = load_peft_adapter(model, read_peft_folder(folder)) if is_folder(folder) else None
    trained = graft.card.method.get("trained")
    step = trained.get("step") if isinstance(trained, dict) else None
    label = "" if step is not None else "not trained yet"
    model.requires_grad_(False).eval()
    return SpeakingModel(
        "graft",
        place.family,
        model,
        _build_text_encoder(place, graft.tokenizer.path, graft.card.language, graft.card.rules),
        gate,
        "gated" if gate else "rows-only",
        step,
        label,
    )


def open_merged_model(place: ModelContext, folder: Path) -> SpeakingModel:
    """What merged training, or one as in the seeds, has left: one ordinary checkpoint."""
    card = read_merged_card(folder)
    _require_same_base(place, card["base"], folder)
    mode = "merged" if card.get("keeps_base_rows") else "as-in-the-seeds"
    rules = parse_text_rules(card.get("text"), folder)
    spelling = _build_text_encoder(place, folder / card["tokenizer"], str(card["language"]), rules)
    label = str(card.get("label") or "")
    path = folder / card["checkpoint"]
    model = _load_extended_checkpoint(place, path, int(card["num_rows"]))
    return SpeakingModel(mode, place.family, model, spelling, None, mode, int(card["step"]), label, path)


def open_step_model(place: ModelContext, run: RunFolder, step: int | None) -> SpeakingModel:
    """What a saved step of a run says: that one, or the newest."""
    graft = load_graft(run.graft)
    _require_same_base(place, graft.card.base, run.graft)
    state = load_step(run, step).state
    options = _read_train_options(state.values, run)
    rows = {name: values.float() for name, values in state.tensors.get("rows", {}).items()}
    if not rows:  # those of a graft that were trained as part of the body
        rows = {name: torch.from_numpy(values) for name, values in graft.rows.items()}
    trained = make_trainable(place.model(), rows, options)
    trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
    model = trained.model.requires_grad_(False).eval()
    spelling = _build_text_encoder(place, graft.tokenizer.path, graft.card.language, graft.card.rules)
    label = MASKED_BASELINE_LABEL if options.mode == "as-in-the-seeds" else ""
    return SpeakingModel(
        f"step {state.step:,}", place.family, model, spelling, trained.gate, options.mode, state.step, label
    )


def open_checkpoint_model(place: ModelContext, folder: Path, language: str | None) -> SpeakingModel:
    """Another checkpoint of the base's family, with the tokenizer beside it."""
    files = place.family.files(folder)
    grown = open_tokenizer(files.tokenizer).size > open_tokenizer(place.files.tokenizer).size
    if grown and language is None:
        found = f"{files.tokenizer.name} has more pieces than the base's, and which language has them is not said"
        raise GraftError("evaluate-language", found, expected="--language", where=folder)
    spelling = TextEncoder.of(place.family, open_tokenizer(files.tokenizer), None, None)
    if grown:
        # Nothing is known of how others normalised their texts, so they are read as they are.
        spelling = _build_text_encoder(
            place, files.tokenizer, str(language), find_text_rules(files.tokenizer) or TextRules(NO_RULES)
        )
    name, model = folder.resolve().name, place.model(files)
    return SpeakingModel(name, place.family, model, spelling, None, "checkpoint", checkpoint=files.checkpoint)


def _load_extended_checkpoint(place: ModelContext, path: Path, num_rows: int) -> SpeechModel:
    """A checkpoint with more rows than the base's own config, where there is one, knows of."""
    model = place.model()
    grow_model(model, num_rows)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state = {name: tensor.to(place.device) for name, tensor in iter_tensors(path, shapes, dtype=place.dtype)}
    model.load_state_dict(state)
    return model.requires_grad_(False).eval()


def _build_text_encoder(place: ModelContext, tokenizer: Path, language: str, rules: TextRules) -> TextEncoder:
    """Base languages by the base's own tokenizer, the new one by the grown."""
    base = open_tokenizer(place.files.tokenizer)
    return TextEncoder.of(place.family, base, open_tokenizer(tokenizer), language, rules)


def _require_same_base(place: ModelContext, stated: dict[str, Any], where: Path) -> None:
    """Raise unless the base is the one that something was made on: on another its rows mean nothing."""
    for name, path in (("checkpoint", place.files.checkpoint), ("tokenizer", place.files.tokenizer)):
        wanted, actual = str(stated.get(f"{name}_sha256")), compute_sha256(path)
        if actual != wanted:
            found = f"{path.name} has sha256 {actual[:12]}"
            raise GraftError("base-other", found, expected=f"{wanted[:12]}, on which {where.name} was made", where=path)


def _read_train_options(values: Mapping[str, Any], run: RunFolder) -> TrainOptions:
    """How a step was trained; the rest of what it holds is for going on with it."""
    stated = values.get("identity", {}).get("options")
    known = TrainOptions.__slots__
    if not isinstance(stated, dict) or not {"mode", "rank", "alpha"} <= stated.keys():
        raise CheckpointError("step-damaged", "the step does not say how it was trained", where=run.steps)
    return TrainOptions(**{name: value for name, value in stated.items() if name in known})


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
        found = choose_voices(held_out, min_seconds, MAX_EVAL_VOICES * 4, seed)
        return _limit_voices(found)
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


def _limit_voices(found: Sequence[ReferenceVoice]) -> list[ReferenceVoice]:
    """`choose_voices` has one clip of every speaker first, so the first ones are of as many speakers as there are."""
    return list(found[:MAX_EVAL_VOICES])


SYNTHESIS_BATCH_SIZE = 32
"""Utterances that are spoken at once."""


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

    @property
    def is_runaway(self) -> bool:
        return self.codes is not None and not self.stopped


@dataclass(frozen=True, slots=True)
class _SentenceRequest:
    """One sentence on its way."""

    place: int
    sentence: EvalSentence
    voice: ReferenceVoice
    ids: tuple[int, ...]
    max_codes: int
    seed: int
    why: str
    """Why it cannot be said; empty where it can."""


def synthesize_sentences(
    system: SpeakingModel, sentences: Sequence[EvalSentence], voices: Sequence[ReferenceVoice], seed: int, who: str
) -> list[SpokenSentence]:
    """Every sentence, in its order; the voices take turns. All must be of one language."""
    every = [_build_request(system, at, one, voices[at % len(voices)], seed) for at, one in enumerate(sentences)]
    said = {
        one.place: SpokenSentence(one.sentence, one.voice, None, False, 0.0, one.why, ids=one.ids)
        for one in every
        if one.why
    }
    asked = [one for one in every if not one.why]
    asked.sort(key=lambda one: (len(one.sentence.text), one.place))  # who speaks together ends together
    speaker = SpeechGenerator(system.model)
    with progress.progress_task(f"{who} speaks", len(asked)) as advance:
        for first in range(0, len(asked), SYNTHESIS_BATCH_SIZE):
            group = asked[first : first + SYNTHESIS_BATCH_SIZE]
            said |= _synthesize_batch(system, speaker, group)
            advance(len(group))
    return [said[place] for place in range(len(sentences))]


def _build_request(
    system: SpeakingModel, place: int, sentence: EvalSentence, voice: ReferenceVoice, seed: int
) -> _SentenceRequest:
    ids = tuple(system.ids(sentence.text, sentence.language))
    stock = system.family.stock_sampling()
    seconds = MAX_PAUSE_SECONDS + MAX_SECONDS_PER_CHARACTER * len(sentence.text)
    limit = min(round(seconds * system.family.code_hz), stock.max_codes, system.model.frame.max_codes)
    drawn = files.hash_int("evaluate", seed, sentence.language, sentence.text) >> 1  # torch takes 63 bits
    return _SentenceRequest(place, sentence, voice, ids, limit, drawn, _why_unspeakable(system, ids))


def _synthesize_batch(
    system: SpeakingModel, speaker: SpeechGenerator, group: Sequence[_SentenceRequest]
) -> dict[int, SpokenSentence]:
    longest = max(one.max_codes for one in group)
    sampling = replace(system.family.stock_sampling(), max_codes=longest)
    prompts = [GenerationPrompt(one.ids, system.family.condition(one.voice.clip), one.seed) for one in group]
    with system.set_gate_for(group[0].sentence.language):
        spoken = speaker.speak(prompts, sampling)
    found = {}
    for one, heard in zip(group, spoken, strict=True):
        # A neighbour may have had more time: whoever went past its own limit has run away.
        stopped = heard.stopped and len(heard.codes) <= one.max_codes
        codes = tuple(heard.codes[: one.max_codes])
        seconds, code_hz = len(codes) / system.family.code_hz, system.family.code_hz
        found[one.place] = SpokenSentence(
            one.sentence, one.voice, codes, stopped, seconds, code_hz=code_hz, ids=one.ids
        )
    return found


def _why_unspeakable(system: SpeakingModel, ids: Sequence[int]) -> str:
    if not ids:
        return "the tokenizer has no piece for any of its letters"
    if len(ids) > system.model.frame.max_text:
        return f"it has {len(ids):,} text tokens, and the model takes {system.model.frame.max_text:,}"
    return ""
