"""What a run has, opened once: its base, graft and tokenizers (`RunContext`), and its sets of clips.

`load_run_data` opens the sets that are trained on and held out and checks them; all faults are reported at once, as
findings, so that `check` shows what `train` would refuse. `open_held_out_data` opens only held-out sets, for
evaluation. Needs no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from voxgraft.checkpoints.base import Checkpoint, Shape
from voxgraft.checkpoints.load import open_checkpoint
from voxgraft.config.run import RunSettings, TrainSettings
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import compute_sha256, is_file, is_folder, path_exists, read_json, require_file
from voxgraft.core.languages import can_be_new_token
from voxgraft.core.results import format_names
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.data.manifest import MANIFEST_NAME, ROLE_BY_SPLIT, read_manifest, resolve_manifest_path
from voxgraft.dataset.indextts2_manifest import PairDataset, open_pair_dataset, split_manifest_language
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler, require_clip_fits
from voxgraft.dataset.sets import (
    check_clip_dataset,
    check_held_out_overlap,
    check_prompt_copies,
    check_text_tokenization,
    check_unused_rows,
    is_unknown_share_serious,
    open_clip_dataset,
)
from voxgraft.dataset.shards import ClipDataset, DatasetRole, DatasetSubset, read_dataset_index
from voxgraft.graft.folder import (
    RUN_CARD_NAME,
    Graft,
    build_language_rules,
    collect_graft_settings,
    find_text_rules,
    load_graft,
    read_graft_card,
)
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, Family, SequenceSpec
from voxgraft.text.encoder import TextEncoder, text_rules_identity
from voxgraft.text.normalize import NO_RULES, TextRules
from voxgraft.text.spans import closing_codes
from voxgraft.tokenizers import Tokenizer, compute_texts_sha256, open_tokenizer

DEFAULT_STEPS = TrainOptions().steps
# Voices are large arrays. This many, spread over a set, are enough to find a broken front end.
MAX_VOICES_CHECKED = 2_000
# What a set may have been made for, by what it is given as. A training set of another run may be replayed here.
ACCEPTED_ROLES: dict[DatasetRole, tuple[DatasetRole, ...]] = {
    "train": ("train",),
    "valid": ("valid",),
    "replay": ("replay", "train"),
}
ROLE_SETTING_KEYS: dict[DatasetRole, str] = {"train": "data.train", "valid": "data.valid", "replay": "data.replay"}
SELF_REPLAY_NAME = "self-replay"
# `made_from.front_end.codes` of a set that the base has spoken itself.
SELF_REPLAY_ORIGIN = "self-made"
# The recording of an utterance of such a set. Validation holds out whole recordings, here it holds out sentences.
HELD_OUT_RECORDING, TRAIN_RECORDING = "held out", "training"
NO_RUN_REASON = "no run was given, so there are no held-out recordings"
PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True)
class DataRequirements:
    """What the sets of a run must fit: its graft, how it spells, what its sequences may hold."""

    run: RunFolder
    settings: RunSettings
    graft: Graft
    family: Family
    text_encoder: TextEncoder
    spec: SequenceSpec

    @classmethod
    def of(
        cls,
        run: RunFolder,
        settings: RunSettings,
        graft: Graft,
        base: tuple[Family, BaseFiles, Tokenizer],
        shapes: Mapping[str, Shape],
    ) -> DataRequirements:
        """By the graft and the base that a run has; `shapes` are those of the base's tensors."""
        family, files, tokenizer = base
        text_encoder = TextEncoder.of(family, tokenizer, graft.tokenizer, graft.card.language, graft.card.rules)
        spec = family.sequence_spec(graft.tokenizer.size, family.infer_size(files, shapes))
        return cls(run, settings, graft, family, text_encoder, spec)

    @property
    def base_spec(self) -> SequenceSpec:
        """What sequences of base languages may hold."""
        return replace(self.spec, num_text_ids=self.text_encoder.base.size)

    @property
    def language(self) -> str:
        return self.graft.card.language

    def header(self, *, of_base: bool) -> dict[str, Any]:
        """What a set must say of itself. One of a base language is encoded by the base's own tokenizer."""
        card, own = self.graft.card, {} if of_base else {"language": self.language}
        tokenizer = self.text_encoder.base.sha256 if of_base else card.tokenizer_sha256
        text = "" if of_base else text_rules_identity(card.rules)
        # Texts of base languages are taken as they are: the base's own rules are not known.
        made_from = {"tokenizer_sha256": tokenizer, "base_sha256": card.base["checkpoint_sha256"], "text": text}
        return {"family": card.family, **own, "code_hz": self.family.code_hz, "made_from": made_from}


@dataclass(slots=True)
class RunData:
    """A run's sets, as far as they could be opened."""

    train: tuple[ClipDataset, ...] = ()
    replay: tuple[ClipDataset, ...] = ()
    """Of base languages, in merged mode."""
    valid: tuple[ClipDataset, ...] = ()
    measured: tuple[ClipDataset, ...] = ()
    """Held out, of base languages."""
    findings: list[Finding] = field(default_factory=list)
    all_sets_opened: bool = True
    """Whether every set could be opened."""

    @property
    def can_train(self) -> bool:
        return not any(item.level == "error" for item in self.findings)


# In place of the folder that a user has to give.
RECORDINGS_WORD = "RECORDINGS"


def _has_clips(run: RunFolder, settings: RunSettings) -> bool:
    """Whether the run's recordings were imported."""
    return is_file(resolve_manifest_path(settings.data.dataset, run.data))


def lacks_recordings(run: RunFolder, settings: RunSettings) -> bool:
    """Whether a run has neither clips nor sources to import them from."""
    return not settings.data.sources and not _has_clips(run, settings)


def format_prepare_command(run: RunFolder, settings: RunSettings) -> str:
    """The command that leads from what a run has now to prepared clips, as a user would type it."""
    folder = shlex.quote(str(run.path))
    if _has_clips(run, settings):
        return f"voxgraft prepare {folder}"
    # `prepare` needs clips; `go` imports them first, and then prepares and trains.
    return f"voxgraft go {folder}" + (f" --data.sources {RECORDINGS_WORD}" if lacks_recordings(run, settings) else "")


def describe_prepare_step(run: RunFolder, settings: RunSettings) -> str:
    """The fix for a run without prepared clips."""
    command = format_prepare_command(run, settings)
    if _has_clips(run, settings):
        return f"run `{command}`."
    imported = "the recordings in that folder" if lacks_recordings(run, settings) else "data.sources"
    return f"the run has no clips yet: run `{command}`; it imports {imported}, prepares the clips and trains."


def describe_remake_step(run: RunFolder, settings: RunSettings, audio: Path) -> str:
    """The fix for the file of a clip that is missing or broken; empty where it was not cut from a recording."""
    from voxgraft.data.folder import CLIPS_FOLDER, IMPORTS_FOLDER  # it loads what cuts audio, seldom needed

    clips = audio.parent.parent
    if clips.name != CLIPS_FOLDER or not is_folder(clips.parent / IMPORTS_FOLDER):
        return ""
    folder, dataset = shlex.quote(str(run.path)), resolve_manifest_path(settings.data.dataset, run.data).parent
    if settings.data.sources and dataset == clips.parent:
        again = f"run `voxgraft go {folder} --reimport`, which writes such clips again and prepares them"
    else:
        language = f" --language {settings.language}" if settings.language else ""
        command = f"voxgraft data import {shlex.quote(str(clips.parent))} {RECORDINGS_WORD}{language}"
        again = f"run `{command}`, which writes such clips again. Then run `voxgraft prepare {folder}` again"
    return f"{again}. Without the recordings, restore the file or remove the clip."


def has_no_data(requirements: DataRequirements) -> bool:
    """Whether no one has named or made any data for the run yet."""
    data, run = requirements.settings.data, requirements.run
    named = data.train or data.valid or data.replay or data.replay_valid
    return not named and not any(path_exists(run.data_set(name)) for name in ("train", "valid"))


def load_run_data(requirements: DataRequirements, *, merged: bool, verify: bool = True) -> RunData:
    """Open and check every set that the settings name. A fault in one does not hide those of the others.

    Without `verify` the hashes of the shards are left to the caller, to be compared while training starts.
    """
    data, run, run_data = requirements.settings.data, requirements.run, RunData()

    def open_sets(paths: Sequence[Path], role: DatasetRole, *, of_base: bool = False) -> tuple[ClipDataset, ...]:
        sets: list[ClipDataset] = []
        for path in paths:
            try:
                sets.append(
                    _open_checked_set(requirements, path, role, run_data.findings, of_base=of_base, verify=verify)
                )
            except VoxgraftError as error:
                run_data.findings.append(error.finding)
                run_data.all_sets_opened = False
        return tuple(sets)

    run_data.train = open_sets(data.train or (run.data_set("train"),), "train")
    run_data.replay = open_sets(data.replay, "replay", of_base=True) if merged else ()
    run_data.valid = open_sets(data.valid or (run.data_set("valid"),), "valid")
    run_data.measured = open_sets(data.replay_valid, "valid", of_base=True)
    # Pair manifests do not state what they are for; but what is trained on is not held out.
    trained_names = {clips.fingerprint: clips.name for clips in (*run_data.train, *run_data.replay)}
    overlaps: list[Finding] = []
    for clips in (*run_data.valid, *run_data.measured):
        if clips.fingerprint in trained_names:
            text = f"{clips.name} is held out, but has the same clips as {trained_names[clips.fingerprint]}"
            overlaps.append(finding("set-not-held-out", text))
        else:
            overlaps += check_held_out_overlap((*run_data.train, *run_data.replay), clips)
    if data.allow_overlap:
        overlaps = [replace(item, level="warning") if item.level == "error" else item for item in overlaps]
    run_data.findings += overlaps
    return run_data


def _open_checked_set(
    requirements: DataRequirements,
    path: Path,
    role: DatasetRole,
    findings: list[Finding],
    *,
    of_base: bool,
    verify: bool,
) -> ClipDataset:
    """One set of the new language, or of a base language (`of_base`); adds to `findings`."""
    manifest, _ = split_manifest_language(str(path))
    if is_folder(path):
        header = read_dataset_index(path).header
        language = header.language
    else:
        family = requirements.graft.card.family
        if not path_exists(manifest):
            # What the user has named is not made by `prepare`.
            named = path not in (requirements.run.data_set("train"), requirements.run.data_set("valid"))
            cure = f"set {ROLE_SETTING_KEYS[role]} to a folder that `voxgraft prepare` wrote."
            if not named:
                cure = describe_prepare_step(requirements.run, requirements.settings)
                cure += " If the clips are in other folders, set data.train and data.valid to these folders."
            raise FileError("set-missing", f"there are no prepared {role} clips at {path}", where=path, cure=cure)
        if manifest.suffix != ".jsonl" or family != "indextts2":
            found = f"{path.name} is not a folder of prepared {role} clips for {family}"
            expected = "a folder that `voxgraft prepare` wrote"
            cure = f"set {ROLE_SETTING_KEYS[role]} to a folder that `voxgraft prepare` wrote."
            raise FileError("set-missing", found, expected=expected, where=path, cure=cure)
        name = f"{manifest.parent.name}/{manifest.stem}"
        pairs = _open_pairs(requirements, path, role, name, of_base=of_base)
        findings += pairs.findings
        language = pairs.header.language
    if of_base and language == requirements.language:
        found = f"{path.name} is in {language}, the new language"
        raise GraftError("replay-language", found, expected="a base language", where=path)
    clips: ClipDataset
    if is_folder(path):
        if header.role not in ACCEPTED_ROLES[role]:
            key = "data.replay_valid" if role == "valid" and of_base else ROLE_SETTING_KEYS[role]
            found = f"{key} names {path.name}, which was prepared for {ROLE_SETTING_KEYS[header.role]}"
            cure = f"name {path.name} in {ROLE_SETTING_KEYS[header.role]}, and another folder in {key}."
            expected = f"data that was prepared for {' or '.join(ACCEPTED_ROLES[role])}"
            findings.append(finding("set-role", found, expected=expected, where=path, cure=cure))
        required = requirements.header(of_base=of_base)
        clips = open_clip_dataset(path, expected=required, verify="hashes" if verify else "sizes")
    else:
        clips = pairs
    unknown = requirements.graft.tokenizer.unknown_id if role != "replay" else None
    spec = requirements.spec if language == requirements.language else requirements.base_spec
    faults = check_clip_dataset(clips, spec, clips.header.code_hz, unknown_id=unknown, max_voices=MAX_VOICES_CHECKED)
    if language == requirements.language:
        texts = [info.text for info in clips.infos]
        faults = [_explain_unknown(requirements, it, texts) if it.code == "clips-text-unknown" else it for it in faults]
    findings += faults
    findings += check_text_tokenization(clips, lambda text: requirements.text_encoder.encode(text, language))
    return clips


def _explain_unknown(requirements: DataRequirements, item: Finding, texts: Iterable[str]) -> Finding:
    """The finding with the characters that have no token, and the fix that works for them.

    No graft gives a token to ASCII digits and general symbols: only other texts help there.
    """
    text_encoder = requirements.text_encoder
    tokenizer = text_encoder.grown or text_encoder.base
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.unknown_text(text_encoder.prepare(text)))
    signs = [one for one in counts if not one.isspace() and not can_be_new_token(one)]
    if not signs:
        return item
    shown = format_names([f"{one} ({counts[one]:,}x)" for one in sorted(signs, key=lambda one: -counts[one])])
    run = shlex.quote(str(requirements.run.path))
    cure = (
        "in the texts of the recordings, write these digits and symbols as words, or remove them: `voxgraft graft` "
        "gives tokens to letters only. "
    )
    again = f"`voxgraft go {run} --reimport`"
    if requirements.settings.data.sources:
        cure += f"Then run {again}, which imports the texts again."
    else:
        cure += f"Import the texts again with `voxgraft data import`, then run `voxgraft go {run}`."
    if any(can_be_new_token(one) for one in counts):
        cure += f" For letters without a token, run `voxgraft graft {run}` and `voxgraft prepare {run}` again."
    return replace(item, found=f"{item.found}; digits and symbols without a token: {shown}", cure=cure)


def check_clip_texts(requirements: DataRequirements, texts_by_role: Mapping[str, Sequence[str]]) -> Finding | None:
    """The error that prepared clips would be refused with, by their texts alone; None if there is none."""
    unknown_id = requirements.graft.tokenizer.unknown_id
    for role, texts in texts_by_role.items():
        num_tokens = num_unknown = num_texts = 0
        for text in texts:
            try:
                ids = list(requirements.text_encoder.encode(text, requirements.language))
            except VoxgraftError:  # `prepare` reports it and leaves the clip out
                continue
            num_tokens, num_unknown = num_tokens + len(ids), num_unknown + ids.count(unknown_id)
            num_texts += unknown_id in ids
        if is_unknown_share_serious(num_unknown, num_tokens):
            found = f"{num_texts:,} of {len(texts):,} texts have {num_unknown:,} unknown tokens"
            item = finding("clips-text-unknown", found, where=role, level="error")
            return _explain_unknown(requirements, item, texts)
    return None


def _open_pairs(
    requirements: DataRequirements, path: Path, role: DatasetRole, name: str, *, of_base: bool
) -> PairDataset:
    """A pair manifest of an IndexTTS-2 trainer, with texts encoded by the run's tokenizer."""
    manifest, manifest_language = split_manifest_language(str(path))
    run_language = None if of_base else requirements.language
    pairs = open_pair_dataset(
        manifest,
        lambda text: requirements.text_encoder.encode(text, run_language),
        requirements.spec,
        language=manifest_language or run_language,
        role=role,
        name=name,
    )
    for text in filter(closing_codes, {info.text for info in pairs.infos}):
        closed = requirements.text_encoder.encode_text(text, run_language).closed
        if closed is not None:
            pairs.closed_texts[text] = np.asarray(closed, dtype=np.int32)
    return pairs


def compute_set_weights(
    train: Sequence[ClipDataset], replay: Sequence[ClipDataset], replay_share: float
) -> tuple[float, ...]:
    """Sets of the same kind share by their length; replay as a whole has its share of every step."""
    share = replay_share if replay else 0.0
    weights: list[float] = []
    for sets, part in ((train, 1 - share), (replay, share)):
        # In tokens, not in clips: a step is filled by tokens.
        lengths = [float(clips.num_codes.sum() + clips.num_text.sum()) for clips in sets]
        weights += [part * (length / sum(lengths)) for length in lengths]
    return tuple(weights)


def build_sampler(
    settings: RunSettings,
    spec: SequenceSpec,
    sets: Sequence[ClipDataset],
    weights: Sequence[float],
    text_dropout: float = 0.0,
    *,
    left_for_others: float = 0.0,
) -> DeterministicSampler:
    """The order in which the sets are trained on."""
    train, data = settings.train, settings.data
    rules = DataSamplerOptions(
        text_dropout=text_dropout,
        min_prompt_seconds=data.min_prompt_seconds,
        single_clip_speakers=data.single_clip_speakers,
        num_conditioning=spec.num_conditioning,
        num_framing=spec.text_framing + spec.speech_framing,
    )
    return DeterministicSampler(sets, weights, train.batch_tokens, train.seed, rules, left_for_others=left_for_others)


def require_batches_fit(requirements: DataRequirements, data: RunData, *, replay_pending: bool = False) -> None:
    """Raise if steps or packs are too small for the clips, before replay is made, which takes minutes.

    The new language must fill every step on its own with the share that replay leaves it: how long the utterances of
    the base will be is not known yet.
    """
    settings = requirements.settings
    sets = data.train if replay_pending else (*data.train, *data.replay)
    share = settings.data.replay_share
    weights = compute_set_weights(data.train, sets[len(data.train) :], share)
    stream = build_sampler(settings, requirements.spec, sets, weights, left_for_others=share if replay_pending else 0.0)
    if settings.train.microbatch_tokens is not None:
        longest, clip = stream.longest
        require_clip_fits(longest, settings.train.microbatch_tokens, f"clip {clip!r}")


def sampling_findings(
    requirements: DataRequirements, data: RunData, stream: DeterministicSampler, others: Sequence[ClipDataset] = ()
) -> list[Finding]:
    """What is wrong with the sets as they will be met; `others` follow the run's own in the stream."""
    card = requirements.graft.card
    has_tag_row = card.tag is not None and requirements.graft.tokenizer.ids.get(card.tag) == card.base_pieces
    return [
        *(item for set_stream in stream.streams for item in set_stream.findings()),
        *check_unused_rows(data.train, card.base_pieces, card.num_rows, tag=has_tag_row),
        *check_prompt_copies((*data.train, *data.replay, *others), stream),
    ]


def retention_findings(*, replayed: bool, measured: bool) -> list[Finding]:
    """What nothing protects, and what nothing measures, in merged mode."""
    found = []
    if not replayed:
        found.append(finding("replay-missing", "merged mode without training data of a base language"))
    if not measured:
        found.append(finding("retention-unmeasured", "no held-out data of a base language"))
    return found


def train_setting_findings(train: TrainSettings, where: Path | str = "") -> list[Finding]:
    """Settings that contradict each other; they show without data or a graft."""
    found = _both_lengths_findings(train, where)
    if train.full_backbone and train.mode != "merged":
        text = f"train.full_backbone is on, but train.mode is {train.mode}, which never trains the backbone"
        cure = (
            "for a new run, turn train.full_backbone off. Or set train.mode to merged: then the backbone is trained, "
            "and old languages can change. A run with checkpoints ignores train.full_backbone; no action is needed."
        )
        # A warning: it has no effect, and runs that were trained with it can be resumed and exported.
        expected = "train.mode merged"
        found.append(finding("config-value", text, expected=expected, where=where, level="warning", cure=cure))
    return found


def _both_lengths_findings(train: TrainSettings, where: Path | str = "") -> list[Finding]:
    if train.steps is None or train.epochs is None:
        return []
    text = f"train.steps ({train.steps:,}) and train.epochs ({train.epochs:g}) are both set"
    cure = "keep one of these settings. In run.yaml, write the other one without a value: `steps:` or `epochs:`."
    return [finding("config-value", text, expected="only one of them", where=where, cure=cure)]


def resolve_num_steps(train: TrainSettings, stream: DeterministicSampler) -> int:
    """Steps that the run is to have."""
    for item in _both_lengths_findings(train):
        raise ConfigError.of(item)
    return stream.steps_for_epochs(train.epochs) if train.epochs is not None else train.steps or DEFAULT_STEPS


def warmup_findings(train: TrainSettings, steps: int) -> list[Finding]:
    """Rates that never reach their height."""
    warmup = train.warmup_steps
    if warmup <= steps:
        return []
    found = (
        f"the warm-up has {warmup:,} steps, but the run has {steps:,}; "
        f"the learning rates reach {steps / warmup:.1%} of their peak"
    )
    return [finding("warmup-too-long", found, expected=f"at most {steps:,}")]


def find_recordings(run: RunFolder, dataset: Path | None) -> dict[str, Path]:
    """Audio files of the clips of a run's own sets, by set and id ("valid/clip-1"); only those that still exist.

    Prepared sets have codes and no samples, which a vocoder that imitates a recording needs too. `dataset` is the
    setting of that name. A manifest that cannot be read is no error here: without a recording there is no sound.
    """
    manifest = resolve_manifest_path(dataset, run.data)
    found: dict[str, Path] = {}
    with contextlib.suppress(VoxgraftError):
        for clip in read_manifest(manifest) if is_file(manifest) else ():
            path = clip.resolve_audio(manifest.parent)
            if clip.split in ROLE_BY_SPLIT and is_file(path):
                found[f"{ROLE_BY_SPLIT[clip.split]}/{clip.id}"] = path
    return found


@dataclass
class HeldOutData:
    """Sets by language; and by language, or of all (""), why there are none."""

    sets: dict[str, tuple[ClipDataset, ...]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    min_prompt_seconds: float = 3.0
    seed: int = 0
    recordings: Mapping[str, Path] = field(default_factory=dict)
    """Audio files of clips (`find_recordings`)."""

    def reason(self, language: str) -> str:
        return self.why.get(language) or self.why.get("") or f"the run has no held-out recordings in {language}"

    @property
    def all_sets(self) -> list[ClipDataset]:
        return [clips for sets in self.sets.values() for clips in sets]


def open_held_out_data(
    run: RunFolder, settings: RunSettings, family: Family, files: BaseFiles, graft: Graft
) -> HeldOutData:
    """What a run holds out: of the new language, of base languages, and of what the base has spoken itself.

    A set that cannot be opened is a reason, not an error: speech can be judged without it.
    """
    with open_checkpoint(files.checkpoint) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    requirements = DataRequirements.of(run, settings, graft, (family, files, open_tokenizer(files.tokenizer)), shapes)
    held_out = HeldOutData(
        min_prompt_seconds=settings.data.min_prompt_seconds,
        seed=settings.train.seed,
        recordings=find_recordings(run, settings.data.dataset),
    )
    sources = [(path, False) for path in settings.data.valid or (run.data_set("valid"),)]
    for path, of_base in [*sources, *((path, True) for path in settings.data.replay_valid)]:
        manifest, _ = split_manifest_language(str(path))
        clips: ClipDataset
        try:
            if is_folder(path) or manifest.suffix != ".jsonl":
                clips = open_clip_dataset(path, expected=requirements.header(of_base=of_base))
            else:
                clips = _open_pairs(requirements, path, "valid", manifest.stem, of_base=of_base)
        except VoxgraftError as error:
            language = "" if of_base else requirements.language
            held_out.why[language] = f"held-out recordings cannot be used: {error.finding.found}"
            continue
        name = clips.header.language
        held_out.sets[name] = (*held_out.sets.get(name, ()), clips)
    replay_folder = run.data_set(SELF_REPLAY_NAME)
    if path_exists(replay_folder):
        try:
            _, parts = split_self_replay(open_clip_dataset(replay_folder, expected=requirements.header(of_base=True)))
        except VoxgraftError as error:
            held_out.why[""] = f"the replay that the base created cannot be used: {error.finding.found}"
        else:
            for language, part in parts.items():
                held_out.sets.setdefault(language, (part,))
    return held_out


def is_self_replay(clips: ClipDataset) -> bool:
    """Whether a set holds what the base said itself."""
    return clips.header.made_from.front_end.get("codes") == SELF_REPLAY_ORIGIN


def split_self_replay(clips: ClipDataset) -> tuple[ClipDataset | None, dict[str, ClipDataset]]:
    """A self-made set as what is trained on, and what is held out by language; either may be nothing."""
    training: list[int] = []
    held_out: dict[str, list[int]] = {}
    for index, info in enumerate(clips.infos):
        # Ids are LANGUAGE-NUMBER.
        if info.recording == HELD_OUT_RECORDING:
            held_out.setdefault(info.id.rpartition("-")[0], []).append(index)
        else:
            training.append(index)
    training_set = DatasetSubset(clips, training, clips.name, "replay", clips.header.language) if training else None
    return training_set, {
        language: DatasetSubset(clips, indices, f"{clips.name}-{language}", "valid", language)
        for language, indices in held_out.items()
    }


@dataclass(slots=True)
class RunContext:
    """The parts of a run; None where a part was not given or could not be opened."""

    settings: RunSettings
    run: Path | None
    family: Family | None = None
    base: BaseFiles | None = None
    base_tokenizer: Tokenizer | None = None
    base_checkpoint: Checkpoint | None = None
    graft: Graft | None = None
    grown: Tokenizer | None = None
    pending_rules: TextRules | None = None
    """Text rules that the graft of the run will have, while there is none."""
    findings: list[Finding] = field(default_factory=list)
    """What went wrong while the parts were opened."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The extended tokenizer, or the base's where there is no other."""
        return self.grown or self.base_tokenizer

    @property
    def base_pieces(self) -> int | None:
        """The base's number of pieces."""
        return self.base_tokenizer.size if self.base_tokenizer else None

    @property
    def text_encoder(self) -> TextEncoder | None:
        """How the new language is spelled; without the base's own tokenizer the grown one takes its place."""
        if self.family is None or self.tokenizer is None:
            return None
        base = self.base_tokenizer or self.tokenizer
        return TextEncoder.of(self.family, base, self.tokenizer, self.settings.language, self.rules)

    @property
    def rules(self) -> TextRules:
        """Text rules of the graft. How others normalized their texts is not known: those are read as they are."""
        if self.graft is not None and (self.grown is None or self.grown.sha256 == self.graft.tokenizer.sha256):
            return self.graft.card.rules
        if self.grown is None and self.pending_rules is not None:
            return self.pending_rules
        tokenizer_rules = find_text_rules(self.grown.path) if self.grown is not None else None
        return tokenizer_rules or TextRules(NO_RULES, self.settings.language or "")

    @property
    def data_requirements(self) -> DataRequirements | None:
        """What the run's sets of clips must fit; None unless base and graft exist."""
        run, graft, family, base = self.run, self.graft, self.family, self.base
        tokenizer, checkpoint = self.base_tokenizer, self.base_checkpoint
        if run is None or graft is None or family is None or base is None or tokenizer is None or checkpoint is None:
            return None
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        return DataRequirements.of(RunFolder(run), self.settings, graft, (family, base, tokenizer), shapes)

    def require_base(self) -> tuple[Family, BaseFiles]:
        """The base; an error where none is named."""
        if self.family is None or self.base is None:
            where = self.run / RUN_FILE if self.run is not None else ""
            raise ConfigError("config-missing", "`base` is not given", where=where)
        return self.family, self.base

    def require_data(self) -> DataRequirements:
        """What the run's sets must fit; an error where the base or the graft is missing."""
        self.require_base()
        if self.graft is None and self.run is not None:
            load_graft(RunFolder(self.run).graft)  # raises what is wrong with it
        required = self.data_requirements
        assert required is not None  # what could not be opened is among the findings, which the caller has looked at
        return required

    def try_or_report(self, make: Callable[[], PartT]) -> PartT | None:
        """What `make` gives; None, and a finding, if it meets one of our errors."""
        try:
            return make()
        except VoxgraftError as error:
            self.findings.append(error.finding)
            return None


@contextlib.contextmanager
def open_run_context(settings: RunSettings, run: Path) -> Iterator[RunContext]:
    """Base, graft and tokenizers of a run, open until the block ends."""
    context = RunContext(settings, run)
    with contextlib.ExitStack() as stack:
        open_run_parts(context, stack)
        yield context


def open_run_parts(context: RunContext, stack: contextlib.ExitStack) -> None:
    """Open what the settings name; the stack closes the base's checkpoint."""
    settings, attempt = context.settings, context.try_or_report
    if settings.base is not None:
        folder = resolve_base_folder(settings.base)
        family = context.family = attempt(lambda: resolve_base_family(folder, settings.family))
        if family is not None:
            files = context.base = attempt(lambda: family.files(folder))
            if files is not None:
                context.base_tokenizer = attempt(lambda: open_tokenizer(files.tokenizer))
                context.base_checkpoint = attempt(lambda: stack.enter_context(open_checkpoint(files.checkpoint)))
    if (named := settings.tokenizer.file) is not None:
        context.grown = attempt(lambda: open_tokenizer(named, judged=True))
    if (run := context.run) is None:
        return
    graft_folder = RunFolder(run).graft
    if not os.path.isdir(graft_folder):
        cure = ""
        if lacks_recordings(RunFolder(run), settings):
            quoted = shlex.quote(str(run))
            cure = f"create the graft from the texts: `voxgraft graft {quoted}`. To train it, add recordings: "
            cure += f"`voxgraft go {quoted} --data.sources {RECORDINGS_WORD}`."
        context.findings.append(finding("graft-missing", f"{run} has no graft yet", where=run, cure=cure))
        if named is None and (language := settings.language) is not None:
            context.pending_rules = attempt(lambda: build_language_rules(settings, run, language))
        return
    context.graft = attempt(lambda: load_graft(graft_folder))
    if named is None and context.graft is not None:
        context.grown = context.graft.tokenizer
    elif named is None and (card := attempt(lambda: read_graft_card(graft_folder))) is not None:
        # A graft whose parts do not fit together still has a tokenizer.
        context.grown = attempt(lambda: open_tokenizer(graft_folder / card.tokenizer))


def provenance_findings(context: RunContext) -> list[Finding]:
    """Hashes and settings that the run and its graft state, against what exists now."""
    run, base, graft, grown = context.run, context.base, context.graft, context.grown
    if run is None or base is None:
        return []
    card: dict[str, Any] = {}
    if os.path.exists(run / RUN_CARD_NAME) or graft:
        path = run / RUN_CARD_NAME
        card = read_json(require_file(path))
        if not isinstance(card, dict):
            raise GraftError("graft-broken", f"{path.name} has no keys", where=path)
    hashes: dict[str, dict[str, str]] = {}
    for key in ("base", "texts"):
        hashes[key] = card.get(key, {})
        if not isinstance(hashes[key], dict) or not all(isinstance(value, str) for value in hashes[key].values()):
            raise GraftError("graft-broken", f"`{key}` in {RUN_CARD_NAME} is not a list of files with their SHA-256")
    # The run's card and the graft's card may both state the base; the run's counts.
    expected_hashes = {(base.folder / name, "base-other"): digest for name, digest in hashes["base"].items()}
    if graft is not None:
        for part in ("checkpoint", "tokenizer"):
            name, digest = (graft.card.base.get(key) for key in (part, f"{part}_sha256"))
            if isinstance(name, str) and isinstance(digest, str):
                expected_hashes.setdefault((base.folder / name, "base-other"), digest)
    expected_hashes |= {(run / name, "texts-changed"): digest for name, digest in hashes["texts"].items()}
    findings = []
    for (path, code), digest in expected_hashes.items():
        if not os.path.isfile(path):
            findings.append(finding(code, f"{path.name}, which the run was created from, does not exist", where=path))
        elif (actual := compute_sha256(path)) != digest and (
            # Cards of older versions have the hash of the whole manifest.
            code != "texts-changed" or (actual := compute_texts_sha256(path)) != digest
        ):
            expected = f"sha256 {digest[:12]}, as when the graft was created"
            changed_file = f"{path.name} has changed (sha256 {actual[:12]})"
            if code == "texts-changed" and path.name == MANIFEST_NAME:
                changed_file = f"texts of {path.name} were added, edited or rejected (sha256 {actual[:12]})"
            findings.append(finding(code, changed_file, expected=expected, where=path))
    recorded, current = card.get("settings"), collect_graft_settings(context.settings)
    if graft is not None and isinstance(recorded, dict):
        changed = []
        for key in current:
            if recorded.get(key) != current[key]:
                old_text, new_text = (
                    json.dumps(value, ensure_ascii=False, default=str) for value in (recorded.get(key), current[key])
                )
                old_text, new_text = (text if len(text) <= 80 else text[:77] + "..." for text in (old_text, new_text))
                changed.append(f"{key} was {old_text}, is {new_text}")
        texts = {os.path.realpath(graft.folder.parent / path) for path in hashes["texts"]}
        if context.settings.texts and texts != {os.path.realpath(path) for path in context.settings.texts}:
            changed.append("texts are different files")
        if changed:
            found = f"settings have changed since the graft was created: {'; '.join(changed)}"
            findings.append(finding("run-changed", found, where=graft.folder.parent))
    if graft is not None and grown is not None and graft.tokenizer.sha256 != grown.sha256:
        found = (
            f"{grown.path} has sha256 {grown.sha256[:12]}, but the graft's tokenizer has {graft.tokenizer.sha256[:12]}"
        )
        findings.append(finding("graft-other-tokenizer", found, where=graft.folder))
    return findings
