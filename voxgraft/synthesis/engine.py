"""Models that speak (a base, a graft, a merged checkpoint, a saved step, several grafts), and what runs them.

Reads what training saved without importing the trainer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import EvaluatedVariant, SpeakSettings
from voxgraft.config.run import RunSettings
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, ConfigError, GraftError, exclusive_error
from voxgraft.core.files import compute_sha256, is_file, is_folder, require_file, require_folder
from voxgraft.core.rng import hash_int
from voxgraft.core.run import RunFolder, missing_run_error
from voxgraft.models import get_family, resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, Family, Latents, Vocoder
from voxgraft.models.generate import GenerationPrompt, SpeechGenerator, StopCause, StoppingCriteria
from voxgraft.models.speech_model import (
    SpeechModel,
    choose_device,
    choose_dtype,
    compute_speech_latents,
    grow_model,
    iter_model_tensors,
    list_base_parameters,
    load_model,
    require_same_backbone,
)
from voxgraft.nn.adapter import Gate, add_adapter, load_adapter_state
from voxgraft.nn.decode import SamplingParams
from voxgraft.nn.rows import GrownLayer, to_plain_layer
from voxgraft.text.encoder import EncodedText, TextEncoder
from voxgraft.text.spans import find_spans
from voxgraft.tokenizers import open_tokenizer

if TYPE_CHECKING:
    from voxgraft.dataset.run_data import HeldOutData
    from voxgraft.graft.folder import Graft
    from voxgraft.text.normalize import TextRules


# A base alone speaks without anything of grafts, runs or data sets, so these are imported where they are needed.

BUILT_IN_FAMILY = "tiny"
STEP_OPTIONS = ("mode", "rank", "alpha")
"""Training options without which the model of a saved step cannot be built."""


@dataclass(frozen=True, slots=True)
class ModelContext:
    """A base, and the device and number format in which its models compute."""

    family: Family
    files: BaseFiles
    device: str
    dtype: torch.dtype
    vocoder_dtype: torch.dtype | None = None
    """Half precision of the vocoder, if requested; None is float32, which equals the original programs."""
    opened: SpeechModel | None = None
    """The base, if it was loaded once for several models: they share its tensors, each with layers of its own."""

    def model(self, files: BaseFiles | None = None) -> SpeechModel:
        """The base, or another checkpoint of its family."""
        if files is not None or self.opened is None:
            return load_model(self.family, files or self.files, device=self.device, dtype=self.dtype)
        # New layers around the same tensors: growing or adapting the copy leaves the original as it is.
        tensors = chain(self.opened.parameters(), self.opened.buffers())
        return copy.deepcopy(self.opened, {id(tensor): tensor for tensor in tensors})

    def vocoder(self) -> Vocoder | None:
        """The base's vocoder on the same device; beside an Apple GPU on the CPU, since vocoders need float64."""
        device = "cpu" if self.device.startswith("mps") else self.device
        return self.family.vocoder(self.files, device, self.vocoder_dtype)

    def languages(self) -> tuple[str, ...]:
        """Languages that the base speaks, by its release."""
        rows = open_tokenizer(self.files.tokenizer).size + self.family.spare_rows
        return tuple(self.family.describe(self.files, rows).languages)


def open_model_context(base: Path, family: str | None, device: str | None, precision: str | None) -> ModelContext:
    """The base in a folder, or the built-in base by its family's name; where and in what format it computes."""
    folder = require_folder(resolve_base_folder(base))
    found = resolve_base_family(folder, family or (str(base) if folder != base else None))
    device = choose_device(device)
    dtype = choose_dtype(precision, device)
    # Only on request: half precision is outside of the tolerances that hold for float32.
    half = dtype if precision is not None and device.startswith("cuda") and dtype != torch.float32 else None
    return ModelContext(found, found.files(folder), device, dtype, half)


@dataclass(frozen=True)
class SpeakingModel:
    """One way to speak: a model, how it reads, and whether its adapter acts only for the new language."""

    name: str
    family: Family
    model: SpeechModel
    text_encoder: TextEncoder
    gate: Gate | None = None
    mode: str = "base"
    """base, gated, rows-only, merged, masked-finetune or checkpoint."""
    step: int | None = None
    label: str = ""
    """A warning to show wherever the model is shown; usually empty."""
    checkpoint: Path | None = None
    """The file that holds all its values; None where more than one file went into them."""

    @property
    def keeps_base(self) -> bool:
        """Whether the old languages are promised to be the base's, bit for bit."""
        return self.mode in ("base", "gated", "rows-only")

    def is_open(self, language: str) -> bool:
        """Whether the adapter acts when that language is spoken."""
        return self.mode != "gated" or self.text_encoder.is_new_language(language)

    def set_gate_for(self, language: str) -> AbstractContextManager[None]:
        """The gate as that language needs it, inside this block."""
        if self.gate is None:
            return nullcontext()
        return self.gate.opened() if self.is_open(language) else self.gate.closed()

    def encode(self, text: str, language: str) -> EncodedText:
        """The text as this model reads it. What the original program removes from a text is removed here too."""
        forbidden_ids, found = self.model.spec.forbidden_text_ids, self.text_encoder.encode_text(text, language)
        kept = [at for at, token_id in enumerate(found.ids) if token_id not in forbidden_ids]
        # Without a gate a span is only encoded by its language.
        closed = [found.closed[at] for at in kept] if found.closed is not None and self.mode == "gated" else None
        return EncodedText([found.ids[at] for at in kept], found.language, closed)

    def ids(self, text: str, language: str) -> list[int]:
        return self.encode(text, language).ids

    def why_unspeakable(self, ids: Sequence[int]) -> str:
        """Why a text with these ids cannot be spoken; empty where it can."""
        if not ids:
            return "the tokenizer has no token for any of its letters"
        if len(ids) > self.model.spec.max_text:
            return f"it has {len(ids):,} text tokens; the model's maximum is {self.model.spec.max_text:,}"
        return ""


def open_base_model(context: ModelContext) -> SpeakingModel:
    """The base alone, as it was published."""
    text_encoder = TextEncoder.of(context.family, open_tokenizer(context.files.tokenizer), None, None)
    return SpeakingModel("base", context.family, context.model(), text_encoder, checkpoint=context.files.checkpoint)


def open_grafted_model(context: ModelContext, graft: Graft) -> SpeakingModel:
    """The base with a graft: its rows, and its adapter behind a gate if it has one."""
    from voxgraft.graft.folder import ADAPTER_NAME
    from voxgraft.nn.adapter import load_peft_adapter, read_peft_folder
    from voxgraft.nn.rows import load_new_rows

    _require_same_base(context, graft.card.base, graft.folder)
    model = context.model()
    for name, grown in grow_model(model, graft.card.num_rows).items():
        if context.opened is not None:  # the copy of the base's rows gives way to the rows that all models share
            plain = context.opened.get_submodule(name)
            for tensor, value in plain.named_parameters():
                grown.register_buffer(f"base_{tensor}", value.detach())
    load_new_rows(model, {name: torch.from_numpy(values) for name, values in graft.rows.items()})
    folder = graft.folder / ADAPTER_NAME
    gate = load_peft_adapter(model, read_peft_folder(folder)) if is_folder(folder) else None
    trained = graft.card.method.get("trained")
    step = trained.get("step") if isinstance(trained, dict) else None
    label = "" if step is not None else "not trained yet"
    model.requires_grad_(False).eval()
    text_encoder = _build_text_encoder(context, graft.tokenizer.path, graft.card.language, graft.card.rules)
    mode = "gated" if gate else "rows-only"
    return SpeakingModel("graft", context.family, model, text_encoder, gate, mode, step, label)


def open_merged_model(context: ModelContext, folder: Path) -> SpeakingModel:
    """What merged training, or the masked-finetune baseline, has left: one ordinary checkpoint."""
    from voxgraft.graft.folder import add_pronunciations, parse_text_rules, read_merged_card

    card = read_merged_card(folder)
    _require_same_base(context, card["base"], folder)
    mode = "merged" if card.get("keeps_base_rows") else "masked-finetune"
    rules = parse_text_rules(add_pronunciations(card.get("text"), folder), folder)
    text_encoder = _build_text_encoder(context, folder / card["tokenizer"], str(card["language"]), rules)
    label = str(card.get("label") or "")
    path = folder / card["checkpoint"]
    # The checkpoint has more rows than the base's own config, where there is one, states.
    model = context.model()
    grow_model(model, int(card["num_rows"]))
    state = {name: tensor.to(context.device) for name, tensor in iter_model_tensors(path, model, context.dtype)}
    model.load_state_dict(state)
    model.requires_grad_(False).eval()
    return SpeakingModel(mode, context.family, model, text_encoder, None, mode, int(card["step"]), label, path)


def _open_step_model(context: ModelContext, run: RunFolder, step: int) -> SpeakingModel:
    from voxgraft.checkpoints.steps import load_step
    from voxgraft.graft.folder import MASKED_BASELINE_LABEL, load_graft

    graft = load_graft(run.graft)
    _require_same_base(context, graft.card.base, run.graft)
    state = load_step(run, step).state
    options = state.values.get("identity", {}).get("options")
    if not isinstance(options, dict) or not options.keys() >= set(STEP_OPTIONS):
        raise CheckpointError("step-damaged", "the step does not state how it was trained", where=run.steps)
    rows = {name: values.float() for name, values in state.tensors.get("rows", {}).items()}
    if not rows:  # the rows of a graft that was trained as part of the backbone
        rows = {name: torch.from_numpy(values) for name, values in graft.rows.items()}
    model = context.model()
    gate = _load_trained_parts(model, rows, state.tensors, options)
    model.requires_grad_(False).eval()
    text_encoder = _build_text_encoder(context, graft.tokenizer.path, graft.card.language, graft.card.rules)
    mode = str(options["mode"])
    label = MASKED_BASELINE_LABEL if mode == "masked-finetune" else ""
    return SpeakingModel(f"step {state.step:,}", context.family, model, text_encoder, gate, mode, state.step, label)


def open_checkpoint_model(context: ModelContext, folder: Path, language: str | None) -> SpeakingModel:
    """Another checkpoint of the base's family, with the tokenizer beside it."""
    from voxgraft.graft.folder import find_text_rules
    from voxgraft.text.normalize import NO_RULES, TextRules

    files = context.family.files(folder)
    grown = open_tokenizer(files.tokenizer).size > open_tokenizer(context.files.tokenizer).size
    if grown and language is None:
        found = f"{files.tokenizer.name} has more tokens than the base's, but its language is not known"
        raise GraftError("evaluate-language", found, expected="--language", where=folder)
    text_encoder = TextEncoder.of(context.family, open_tokenizer(files.tokenizer), None, None)
    if grown:
        # How others normalized their texts is not known, so texts are read as they are.
        text_encoder = _build_text_encoder(
            context, files.tokenizer, str(language), find_text_rules(files.tokenizer) or TextRules(NO_RULES)
        )
    name, model = folder.resolve().name, context.model(files)
    return SpeakingModel(name, context.family, model, text_encoder, None, "checkpoint", checkpoint=files.checkpoint)


def open_run_model(
    context: ModelContext, run: RunFolder, graft: Graft, which: EvaluatedVariant | None, step: int | None
) -> SpeakingModel:
    """What a run speaks with: a saved step, one of its outputs, or what its last training left."""
    from voxgraft.core.run import RunJournal
    from voxgraft.graft.folder import BASELINE_FOLDER_NAME, MERGED_FOLDER_NAME

    if step is not None:
        if which is not None:
            raise exclusive_error("--step", "--variant")
        return _open_step_model(context, run, step)
    which = which or detect_trained_output(run, RunJournal(run.journal).read())
    if which == "graft":
        return open_grafted_model(context, graft)
    return open_merged_model(context, run.path / (MERGED_FOLDER_NAME if which == "merged" else BASELINE_FOLDER_NAME))


def detect_trained_output(run: RunFolder, journal: list[dict[str, object]]) -> EvaluatedVariant:
    """What the last training of a run has left, by its mode. An older output is never taken in its place."""
    from voxgraft.config.train_options import rename_saved_mode
    from voxgraft.graft.folder import BASELINE_FOLDER_NAME, MERGED_FOLDER_NAME, find_merged_card, is_of_last_training

    mode = rename_saved_mode(next((entry.get("mode") for entry in reversed(journal) if entry["kind"] == "start"), None))
    which: EvaluatedVariant = (
        "merged" if mode == "merged" else "masked-finetune" if mode == "masked-finetune" else "graft"
    )
    name = {"merged": MERGED_FOLDER_NAME, "masked-finetune": BASELINE_FOLDER_NAME}.get(which)
    if name is not None and not is_folder(run.path / name):
        found = f"the last training was {which}, but the run has no {name}/"
        raise GraftError("merged-missing", found, expected=f"{name}/, or --variant graft", where=run.path)
    card = find_merged_card(run.path / name / "checkpoint") if name is not None else None
    if card is not None and not is_of_last_training(card, journal):
        step = card.get("step")
        found = (
            f"{name}/ belongs to an earlier training (step {step}); the last training has not written its result yet"
        )
        raise GraftError("merged-stale", found, where=run.path / str(name))
    return which


def _load_trained_parts(
    model: SpeechModel,
    rows: Mapping[str, Tensor],
    groups: Mapping[str, Mapping[str, Tensor]],
    options: Mapping[str, Any],
) -> Gate | None:
    """Put the tensors of a saved step into a base, in the layers that they were trained in; the gate of an adapter."""
    from voxgraft.nn.rows import freeze_base, load_new_rows

    grow_model(model, len(next(iter(rows.values()))))
    load_new_rows(model, rows)
    mode, full_backbone = options["mode"], bool(options.get("full_backbone"))
    has_body = mode == "masked-finetune" or (mode == "merged" and full_backbone)
    has_adapter = mode == "gated" or (mode == "merged" and not full_backbone)
    needed = {"body": has_body, "adapter": has_adapter, "rows": mode != "masked-finetune"}
    if missing := sorted(part for part, is_needed in needed.items() if is_needed and not groups.get(part)):
        expected = ", ".join(part for part, is_needed in needed.items() if is_needed)
        raise CheckpointError("step-parts", f"the checkpoint has no {', '.join(missing)}", expected=expected)
    gate = None
    if has_adapter:
        gate = add_adapter(model, model.adapter_layers(), options["rank"], options["alpha"], options.get("seed", 0))
        load_adapter_state(model, groups["adapter"])
    if mode == "masked-finetune":  # the rows were part of ordinary tables, which the backbone holds whole
        for name in (model.text_embedding_name, model.text_head_name):
            grown = model.get_submodule(name)
            assert isinstance(grown, GrownLayer)
            model.set_submodule(name, to_plain_layer(grown))
    if has_body:
        body = list_base_parameters(model, freeze_base(model))
        require_same_backbone(groups["body"], body)
        with torch.no_grad():
            for name, value in body.items():
                value.copy_(groups["body"][name])
    return gate


def _build_text_encoder(context: ModelContext, tokenizer: Path, language: str, rules: TextRules) -> TextEncoder:
    """Base languages by the base's own tokenizer, the new one by the grown."""
    base = open_tokenizer(context.files.tokenizer)
    return TextEncoder.of(context.family, base, open_tokenizer(tokenizer), language, rules)


def _require_same_base(context: ModelContext, base_hashes: dict[str, Any], where: Path) -> None:
    """Raise unless the base is the one that something was made on: on another its rows mean nothing."""
    for name, path in (("checkpoint", context.files.checkpoint), ("tokenizer", context.files.tokenizer)):
        expected, actual = str(base_hashes.get(f"{name}_sha256")), compute_sha256(path)
        if actual != expected:
            found = f"{path.name} has sha256 {actual[:12]}"
            raise GraftError(
                "base-other",
                found,
                expected=f"{expected[:12]}, as in the base that {where.name} was created from",
                where=path,
            )


@dataclass(frozen=True)
class SynthesisModels:
    """The models of one `speak`, by the languages that they speak."""

    context: ModelContext
    base_languages: tuple[str, ...]
    grafts: tuple[SpeakingModel, ...]
    """Of new languages; one of them may speak the old ones too, if there is no base beside it."""
    base: SpeakingModel | None
    held_out: Callable[[], HeldOutData] | None = None
    """Recordings of a run, whose voices can be borrowed."""

    @property
    def new_languages(self) -> list[str]:
        return [str(one.text_encoder.language) for one in self.grafts]

    @property
    def all(self) -> list[SpeakingModel]:
        return [*self.grafts, *([self.base] if self.base else [])]

    def language(self, requested: str | None) -> str:
        """The language that was requested, or the only one that can be meant."""
        return resolve_language(requested, self.new_languages, self.base_languages)

    def system(self, language: str) -> SpeakingModel:
        """The model for a language: its graft, else the base, whose gate is closed."""
        own = next((one for one in self.grafts if one.text_encoder.language == language), None)
        return own or self.base or self.grafts[0]

    def system_for(self, text: str, language: str) -> SpeakingModel:
        """The model for a text: that of its language, or of the new language that its spans are in."""
        codes = {code.lower(): code for code in (*self.base_languages, *self.new_languages)}
        spans = [codes[code] for code, _ in find_spans(text, codes.__contains__) or [] if code is not None]
        new = [code for code in (language, *spans) if code in self.new_languages]
        return self.system(new[0] if new else language)


def open_synthesis_models(settings: SpeakSettings, languages: Collection[str | None] = ()) -> SynthesisModels:
    """What the settings name; an error where that is more than one thing, or does not fit together.

    If one of `languages` is not spoken here, it is refused before any weights are read.
    """
    if settings.run is not None:
        if settings.graft:
            raise exclusive_error("--run", "--graft")
        from voxgraft.dataset.run_data import open_held_out_data
        from voxgraft.graft.folder import load_graft, require_graft_language

        run = RunFolder(require_folder(settings.run))
        if not is_file(run.settings):
            raise missing_run_error(run.path)
        own = parse_settings(RunSettings, read_settings_values(RunSettings, require_file(run.settings)), run.settings)
        base = settings.base or own.base
        if base is None:
            raise ConfigError("config-missing", "`base` is not given", where=run.settings)
        context = open_model_context(base, settings.family or own.family, settings.device, settings.precision)
        graft, base_languages = load_graft(run.graft), context.languages()
        require_graft_language(graft, own.language)
        for language in languages:
            resolve_language(language, [graft.card.language], base_languages)
        system = open_run_model(context, run, graft, settings.variant, settings.step)
        return SynthesisModels(
            context,
            base_languages,
            (system,),
            None,
            lambda: open_held_out_data(run, own, context.family, context.files, graft),
        )
    if settings.variant is not None or settings.step is not None:
        found = "--variant or --step is given without a run"
        raise ConfigError("config-value", found, expected="--run RUN")
    grafts: list[Graft] = []
    if settings.graft:  # of different languages, on one base
        from voxgraft.graft.folder import load_graft

        grafts = [load_graft(folder) for folder in settings.graft]
        new = [graft.card.language for graft in grafts]
        if twice := sorted({name for name in new if new.count(name) > 1}):
            raise GraftError(
                "speak-grafts", f"{new.count(twice[0])} grafts are for {twice[0]}", expected="one per language"
            )
        kinds = sorted({graft.card.family for graft in grafts})
        if len(kinds) > 1:
            raise GraftError(
                "speak-grafts", f"the grafts are for different bases: {', '.join(kinds)}", expected="grafts on one base"
            )
    kind = grafts[0].card.family if grafts else None
    base, family = settings.base, settings.family or kind
    if base is None:
        # The base that comes with voxgraft, for grafts of its family and where nothing else is named.
        base, family = get_family(kind or BUILT_IN_FAMILY).shipped_folder(), family or BUILT_IN_FAMILY
        if base is None:
            found = f"`base` is not given, and {kind} is not bundled with voxgraft"
            cure = "give the base that the graft was created on: --base FOLDER."
            raise ConfigError("config-missing", found, cure=cure)
    context = open_model_context(base, family, settings.device, settings.precision)
    base_languages = context.languages()
    for language in languages:
        resolve_language(language, [graft.card.language for graft in grafts], base_languages)
    shared = replace(context, opened=context.model())
    systems = tuple(open_grafted_model(shared, graft) for graft in grafts)
    return SynthesisModels(shared, base_languages, systems, open_base_model(shared))


def resolve_language(requested: str | None, new: Sequence[str], old: Sequence[str]) -> str:
    """The language that was requested, in the spelling of its owner, or the only one that can be meant."""
    languages = list(dict.fromkeys([*new, *old]))
    if requested is None:
        if len(new) == 1 or len(languages) == 1:
            return languages[0]
        raise ConfigError("speak-language", "no language is given", expected=f"one of {', '.join(languages)}")
    # Codes such as ff-Adlm are often typed in lower case.
    found = next((name for name in languages if name.lower() == requested.lower()), None)
    if found is None:
        found = f"the model does not speak {requested!r}"
        raise ConfigError("speak-language", found, expected=f"one of {', '.join(languages)}")
    return found


BATCH_SIZE = 32
# Slow speech takes less than this; a measured sentence that takes longer is cut off. Not the estimate by letters that
# `speak` uses: the limit decides what counts as a runaway, so results of earlier versions stay comparable.
MAX_PAUSE_SECONDS, MAX_SECONDS_PER_CHARACTER = 2.0, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisRequest(GenerationPrompt):
    """One utterance to generate, with what its batch depends on.

    `condition` is `family.condition(clip)`, with the speaking style applied.
    """

    max_codes: int
    language: str
    """Selects the gate; requests of one language share batches."""
    sort_key: tuple[Any, ...] = ()
    """Neighbours in this order share a batch: those that end together waste no steps."""


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """The codes of one utterance, cut to its limit or behind the first round of a loop, and why it ended."""

    codes: tuple[int, ...]
    stop: StopCause
    latents: Latents | None = None
    """For a vocoder that needs them. [codes, width]"""

    @property
    def ended(self) -> bool:
        """Whether the model itself ended the utterance within its limit."""
        return self.stop == "ended"


class SynthesisEngine:
    """A model that generates requests batch by batch.

    It keeps packed weights, caches and CUDA graphs; all of that memory is freed with the engine.
    """

    def __init__(
        self,
        model: SpeechModel,
        sampling: SamplingParams,
        *,
        set_gate: Callable[[str], AbstractContextManager[None]] = lambda _language: nullcontext(),
        batch_size: int = BATCH_SIZE,
        loop_code_hz: float | None = None,
        latents: bool = False,
    ) -> None:
        """`loop_code_hz` is the code rate of a model whose loops are cut off; without it loops are generated too.

        `latents` are for a vocoder that needs them: only codes that it can read are drawn then.
        """
        self._generator, self._latents = SpeechGenerator(model), latents
        self._sampling = replace(sampling, readable=True) if latents else sampling
        self._set_gate, self._batch_size, self._loop_code_hz = set_gate, batch_size, loop_code_hz

    def run(self, requests: Sequence[SynthesisRequest], label: str) -> list[SynthesisResult]:
        """Generate all requests; the results are in the order of the requests."""
        found: dict[int, SynthesisResult] = {}
        with progress.progress_task(label, len(requests)) as advance:
            for batch in self.iterate(requests):
                found.update(batch)
                advance(len(batch))
        return [found[position] for position in range(len(requests))]

    def iterate(self, requests: Sequence[SynthesisRequest]) -> Iterator[list[tuple[int, SynthesisResult]]]:
        """Generate batch by batch: the position of each request with its result."""
        for language in dict.fromkeys(item.language for item in requests):
            own = [index for index, item in enumerate(requests) if item.language == language]
            own.sort(key=lambda index: requests[index].sort_key)
            for first in range(0, len(own), self._batch_size):
                positions = own[first : first + self._batch_size]
                batch = [requests[index] for index in positions]
                sampling = replace(self._sampling, max_codes=max(item.max_codes for item in batch))
                spec = self._generator.model.spec
                criteria = None
                if self._loop_code_hz is not None:
                    limits = [item.max_codes for item in batch]
                    criteria = StoppingCriteria(limits, spec.speech_stop, self._loop_code_hz)
                with self._set_gate(language):
                    outputs = self._generator.speak(batch, sampling, criteria)
                results = []
                for row, (item, generated) in enumerate(zip(batch, outputs, strict=True)):
                    codes: Sequence[int]
                    stop: StopCause
                    if criteria is None:
                        # The batch runs up to its longest limit, so an utterance can end after its own.
                        ended = generated.stopped and len(generated.codes) <= item.max_codes
                        codes, stop = generated.codes[: item.max_codes], "ended" if ended else "limit"
                    else:
                        codes, stop = criteria.outcome(row, generated.codes, by_itself=generated.stopped)
                        assert not sampling.readable or all(0 <= code < spec.num_codes for code in codes)
                    results.append(SynthesisResult(tuple(codes), stop))
                if self._latents:
                    # A second pass over text and codes, with the gate as it was in the first.
                    with self._set_gate(language):
                        texts, conditions = [item.text_ids for item in batch], [item.condition for item in batch]
                        codes_of, closed = [item.codes for item in results], [item.closed for item in batch]
                        is_ended = [item.ended for item in results]
                        found = compute_speech_latents(
                            self._generator.model, texts, conditions, codes_of, closed, is_ended
                        )
                    rows = [item.float().cpu().numpy() for item in found]
                    results = [replace(item, latents=row) for item, row in zip(results, rows, strict=True)]
                yield list(zip(positions, results, strict=True))

    def stream(self, request: SynthesisRequest) -> Iterator[tuple[list[int], StopCause]]:
        """Generate one request: each time the codes that are new, and why they end if they do.

        Codes that were returned cannot be taken back, so a loop is cut where it is noticed, behind its third round.
        """
        spec = self._generator.model.spec
        limits, most = [request.max_codes], replace(self._sampling, max_codes=request.max_codes)
        criteria = StoppingCriteria(limits, spec.speech_stop, self._loop_code_hz) if self._loop_code_hz else None
        # The gate is set while a step runs and not while the caller has its turn.
        with self._set_gate(request.language):
            steps = self._generator.advance([request], most, criteria)
        num_given = 0
        while True:
            with self._set_gate(request.language):
                codes = next(steps, None)
            if codes is None:
                return
            (row,) = codes.tolist()
            ended = spec.speech_stop in row
            known = row[: row.index(spec.speech_stop)] if ended else row
            cause: StopCause = "ended" if ended else "limit"
            if criteria is not None:
                cause = criteria.stopped.get(0, cause)
            yield known[num_given:], cause
            num_given = len(known)


def draw_seed(purpose: str, *parts: int | str) -> int:
    """The seed of one utterance, a function of its purpose and of what identifies it. torch takes 63 bits."""
    return hash_int(purpose, *parts) >> 1


def limit_codes(seconds: float, code_hz: float, most: int) -> int:
    """The number of codes that so many seconds take: at least 1, at most `most`."""
    return min(max(1, round(seconds * code_hz)), most)


def max_sentence_seconds(text: str) -> float:
    """The longest that a sentence may take while it is measured."""
    return MAX_PAUSE_SECONDS + MAX_SECONDS_PER_CHARACTER * len(text)
