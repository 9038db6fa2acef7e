"""The sets of a run, opened and looked at: those that are learnt from, and those that are held out.

All that is wrong with them is said at once, as findings. Needs no torch: `check` says here what `train` would refuse.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from voxgraft.checkpoints.base import Checkpoint
from voxgraft.checkpoints.load import open_checkpoint
from voxgraft.checkpoints.tensors import read_tensor_shapes
from voxgraft.config.run import RunSettings, TrainSettings
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import compute_sha256, is_folder, path_exists, read_json, require_file
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.dataset.checks import (
    check_clip_dataset,
    check_held_out_overlap,
    check_prompt_copies,
    check_text_tokenization,
    check_unused_rows,
)
from voxgraft.dataset.indextts2_manifest import open_pair_dataset, split_manifest_language
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler, require_clip_fits
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.dataset.shards import ClipDataset, DatasetRole, DatasetSubset, read_dataset_index
from voxgraft.graft.folder import (
    RUN_CARD_NAME,
    Graft,
    collect_graft_settings,
    find_text_rules,
    load_graft,
    read_graft_card,
)
from voxgraft.models import resolve_base_family
from voxgraft.models.base import BaseFiles, Family, SequenceSpec, Shape
from voxgraft.text.encoder import TextEncoder, text_rules_identity
from voxgraft.text.normalize import NO_RULES, TextRules
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer

DEFAULT_STEPS = TrainOptions().steps
MAX_VOICES_CHECKED = 2_000
ACCEPTED_ROLES: dict[DatasetRole, tuple[DatasetRole, ...]] = {
    "train": ("train",),
    "valid": ("valid",),
    "replay": ("replay", "train"),
}
"""What a set may have been made for, by what it is given as. Who trains on English elsewhere may replay it here."""
ROLE_SETTING_KEYS: dict[DatasetRole, str] = {"train": "data.train", "valid": "data.valid", "replay": "data.replay"}


@dataclass(frozen=True, slots=True)
class DataRequirements:
    """What the sets of a run must fit: its graft, how it spells, what its sequences may hold."""

    run: RunFolder
    settings: RunSettings
    graft: Graft
    family: Family
    spelling: TextEncoder
    frame: SequenceSpec

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
        spelling = TextEncoder.of(family, tokenizer, graft.tokenizer, graft.card.language, graft.card.rules)
        frame = family.frame(graft.tokenizer.size, family.infer_size(files, shapes))
        return cls(run, settings, graft, family, spelling, frame)

    @property
    def base_frame(self) -> SequenceSpec:
        """What sequences of base languages may hold."""
        return replace(self.frame, num_text_ids=self.spelling.base.size)

    @property
    def language(self) -> str:
        return self.graft.card.language

    def header(self, *, of_base: bool) -> dict[str, Any]:
        """What a set must say of itself. One of a base language is spelled by the base's own tokenizer."""
        card, own = self.graft.card, {} if of_base else {"language": self.language}
        tokenizer = self.spelling.base.sha256 if of_base else card.tokenizer_sha256
        text = "" if of_base else text_rules_identity(card.rules)
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


def has_no_data(wanted: DataRequirements) -> bool:
    """Whether nobody has named or made any data for the run yet."""
    data, run = wanted.settings.data, wanted.run
    named = data.train or data.valid or data.replay or data.replay_valid
    return not named and not any(path_exists(run.data_set(name)) for name in ("train", "valid"))


def load_run_data(wanted: DataRequirements, *, merged: bool, verify: bool = True) -> RunData:
    """Open and look at every set that the settings name. What is wrong with one does not hide what is with others.

    Without `verify` the hashes of the shards are left to who asked, to be compared beside other work.
    """
    data, run = wanted.settings.data, wanted.run
    opener = _ClipSetOpener(wanted, verify)
    found = RunData(
        train=opener.open(data.train or (run.data_set("train"),), "train"),
        replay=opener.open(data.replay, "replay", of_base=True) if merged else (),
        valid=opener.open(data.valid or (run.data_set("valid"),), "valid"),
        measured=opener.open(data.replay_valid, "valid", of_base=True),
        findings=opener.findings,
    )
    found.all_sets_opened = not opener.failed
    overlaps = _held_out_findings(found)
    if data.allow_overlap:
        overlaps = [replace(item, level="warning") if item.level == "error" else item for item in overlaps]
    found.findings += overlaps
    return found


def compute_set_weights(
    train: Sequence[ClipDataset], replay: Sequence[ClipDataset], replay_share: float
) -> tuple[float, ...]:
    """Sets of the same kind share by their length; replay as a whole has its share of every step."""
    share = replay_share if replay else 0.0
    own, old = _weights_by_length(train), _weights_by_length(replay)
    return tuple([(1 - share) * part for part in own] + [share * part for part in old])


def build_sampler(
    settings: RunSettings,
    frame: SequenceSpec,
    sets: Sequence[ClipDataset],
    weights: Sequence[float],
    text_dropout: float = 0.0,
    *,
    left_for_others: float = 0.0,
) -> DeterministicSampler:
    """The order in which the sets are learnt from."""
    train, data = settings.train, settings.data
    rules = DataSamplerOptions(
        text_dropout=text_dropout,
        min_prompt_seconds=data.min_prompt_seconds,
        single_clip_speakers=data.single_clip_speakers,
        num_conditioning=frame.num_conditioning,
    )
    return DeterministicSampler(sets, weights, train.batch_tokens, train.seed, rules, left_for_others=left_for_others)


def require_batches_fit(wanted: DataRequirements, data: RunData, *, replay_pending: bool = False) -> None:
    """Raise if steps or packs are too small for the clips, before replay is made, which takes minutes.

    The new language must fill every step by itself with the share that replay leaves it: how long the utterances of
    the base will be is not known yet.
    """
    settings = wanted.settings
    sets = data.train if replay_pending else (*data.train, *data.replay)
    share = settings.data.replay_share
    weights = compute_set_weights(data.train, sets[len(data.train) :], share)
    stream = build_sampler(settings, wanted.frame, sets, weights, left_for_others=share if replay_pending else 0.0)
    if settings.train.microbatch_tokens is not None:
        longest, clip = stream.longest
        require_clip_fits(longest, settings.train.microbatch_tokens, f"clip {clip!r}")


def sampling_findings(
    wanted: DataRequirements, data: RunData, stream: DeterministicSampler, others: Sequence[ClipDataset] = ()
) -> list[Finding]:
    """What is wrong with the sets as they will be met; `others` stand behind the run's own in the stream."""
    card = wanted.graft.card
    return [
        *(item for report in stream.report() for item in report.findings()),
        *check_unused_rows(data.train, card.base_pieces, card.num_rows),
        *check_prompt_copies((*data.train, *data.replay, *others), stream),
    ]


def retention_findings(*, replayed: bool, measured: bool) -> list[Finding]:
    """What nothing protects, and what nothing measures, in merged mode."""
    found = []
    if not replayed:
        found.append(finding("replay-missing", "merged mode, and no set of a base language is learnt from"))
    if not measured:
        found.append(finding("retention-unmeasured", "no set of a base language is held out"))
    return found


def resolve_num_steps(train: TrainSettings, stream: DeterministicSampler) -> int:
    """Steps that the run is to have."""
    if train.steps is not None and train.epochs is not None:
        found = f"train.steps is {train.steps:,} and train.epochs is {train.epochs:g}"
        raise ConfigError("config-value", found, expected="one of the two")
    return stream.steps_for_epochs(train.epochs) if train.epochs is not None else train.steps or DEFAULT_STEPS


def warmup_findings(train: TrainSettings, steps: int) -> list[Finding]:
    """Rates that never reach their height."""
    warmup = train.warmup_steps
    if warmup <= steps:
        return []
    found = f"a warm-up of {warmup:,} steps, and the run has {steps:,}: the rates end at {steps / warmup:.1%} of theirs"
    return [finding("warmup-too-long", found, expected=f"at most {steps:,}")]


@dataclass(slots=True)
class _ClipSetOpener:
    """Opens sets, and collects what is wrong with them."""

    wanted: DataRequirements
    verify: bool
    findings: list[Finding] = field(default_factory=list)
    failed: bool = False

    def open(self, places: Sequence[Path], role: DatasetRole, *, of_base: bool = False) -> tuple[ClipDataset, ...]:
        """Sets of the new language, or those that must be of base languages."""
        found: list[ClipDataset] = []
        for place in places:
            try:
                found.append(self._open_one(place, role, of_base))
            except VoxgraftError as error:
                self.findings.append(error.finding)
                self.failed = True
        return tuple(found)

    def _open_one(self, place: Path, role: DatasetRole, of_base: bool) -> ClipDataset:
        wanted = self.wanted
        if is_folder(place):
            header = read_dataset_index(place).header
            self._refuse_new_language(place, header.language, of_base)
            self._check_role(place, header.role, role)
            expected = wanted.header(of_base=of_base)
            clips = open_clip_dataset(place, expected=expected, verify="hashes" if self.verify else "sizes")
        else:
            clips = self._open_pair_manifest(place, role, of_base)
            self._refuse_new_language(place, clips.header.language, of_base)
        unknown = wanted.graft.tokenizer.unknown_id if role != "replay" else None
        frame = wanted.frame if clips.header.language == wanted.language else wanted.base_frame
        self.findings += check_clip_dataset(
            clips, frame, clips.header.code_hz, unknown_id=unknown, max_voices=MAX_VOICES_CHECKED
        )
        self.findings += check_text_tokenization(
            clips, lambda text: wanted.spelling.encode(text, clips.header.language)
        )
        return clips

    def _check_role(self, place: Path, made_for: DatasetRole, role: DatasetRole) -> None:
        if made_for not in ACCEPTED_ROLES[role]:
            found = f"{place.name} was made for {made_for}, and is given for {role}"
            cure = f"name it with {ROLE_SETTING_KEYS[made_for]}, or give a set that was made for {role}."
            self.findings.append(
                finding("set-role", found, expected=" or ".join(ACCEPTED_ROLES[role]), where=place, cure=cure)
            )

    def _refuse_new_language(self, place: Path, language: str, of_base: bool) -> None:
        if of_base and language == self.wanted.language:
            found = f"{place.name} is in {language}, the new language"
            raise GraftError("replay-language", found, expected="a base language", where=place)

    def _open_pair_manifest(self, place: Path, role: DatasetRole, of_base: bool) -> ClipDataset:
        wanted = self.wanted
        manifest, language = split_manifest_language(str(place))
        self._require_pair_manifest(place, manifest, role)
        own = None if of_base else wanted.language
        clips = open_pair_dataset(
            manifest,
            lambda text: wanted.spelling.encode(text, own),
            wanted.frame,
            language=language or own,
            role=role,
            name=f"{manifest.parent.name}/{manifest.stem}",
        )
        self.findings += clips.findings
        return clips

    def _require_pair_manifest(self, place: Path, manifest: Path, role: DatasetRole) -> None:
        family = self.wanted.graft.card.family
        expected = f"a set for {role}: a folder that `prepare` made, or for indextts2 a manifest of pairs (*.jsonl)"
        if not path_exists(manifest):
            raise FileError("set-missing", f"{place.name} is not there", expected=expected, where=place)
        if manifest.suffix != ".jsonl" or family != "indextts2":
            found = f"{place.name}, for a run of {family}"
            raise FileError("set-missing", found, expected=expected, where=place)


def _held_out_findings(data: RunData) -> list[Finding]:
    """Manifests do not say what they are for; but what is learnt from is not held out."""
    learnt = {clips.fingerprint: clips.name for clips in (*data.train, *data.replay)}
    found = []
    for clips in (*data.valid, *data.measured):
        if clips.fingerprint in learnt:
            text = f"{clips.name} is held out, and has the very clips of {learnt[clips.fingerprint]}"
            found.append(finding("set-not-held-out", text))
        else:
            found += check_held_out_overlap((*data.train, *data.replay), clips)
    return found


def _weights_by_length(sets: Sequence[ClipDataset]) -> list[float]:
    lengths = [float(clips.num_codes.sum() + clips.num_text.sum()) for clips in sets]
    return [length / sum(lengths) for length in lengths]


SELF_REPLAY_NAME = "self-replay"
SELF_REPLAY_ORIGIN = "self-made"
"""What such a set says of where its codes come from."""
HELD_OUT_RECORDING, TRAIN_RECORDING = "held out", "learnt from"
"""The recording that an utterance is said to be of: validation is held out by sentence."""
NO_RUN_REASON = "no run was given, so there are no held-out recordings"


@dataclass
class HeldOutData:
    """Sets by language; and by language, or of all (""), why there are none."""

    sets: dict[str, tuple[ClipDataset, ...]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    min_prompt_seconds: float = 3.0
    seed: int = 0

    def reason(self, language: str) -> str:
        return self.why.get(language) or self.why.get("") or f"the run has no held-out recordings in {language}"

    @property
    def all_sets(self) -> list[ClipDataset]:
        return [clips for sets in self.sets.values() for clips in sets]


def open_held_out_data(
    run: RunFolder, settings: RunSettings, family: Family, files: BaseFiles, graft: Graft
) -> HeldOutData:
    """What a run holds out: of the new language, of base languages, and of what the base said itself."""
    base = (family, files, open_tokenizer(files.tokenizer))
    wanted = DataRequirements.of(run, settings, graft, base, read_tensor_shapes(files.checkpoint))
    held_out = HeldOutData(min_prompt_seconds=settings.data.min_prompt_seconds, seed=settings.train.seed)
    for path in settings.data.valid or (run.data_set("valid"),):
        _add_set(held_out, wanted, path, wanted.language)
    for path in settings.data.replay_valid:
        _add_set(held_out, wanted, path, None)
    made = run.data_set(SELF_REPLAY_NAME)
    if path_exists(made):
        _add_self_replay(held_out, wanted, made)
    return held_out


def _add_set(held_out: HeldOutData, wanted: DataRequirements, path: Path, language: str | None) -> None:
    """One set; `language` is the new one's, or None for a set of a base language, which states its own."""
    try:
        clips = _open_set(wanted, path, language)
    except VoxgraftError as error:
        held_out.why[language or ""] = f"held-out recordings cannot be used: {error.finding.found}"
        return
    name = clips.header.language
    held_out.sets[name] = (*held_out.sets.get(name, ()), clips)


def _open_set(wanted: DataRequirements, path: Path, language: str | None) -> ClipDataset:
    manifest, stated = split_manifest_language(str(path))
    if is_folder(path) or manifest.suffix != ".jsonl":
        return open_clip_dataset(path, expected=wanted.header(of_base=language is None))
    return open_pair_dataset(
        manifest,
        lambda text: wanted.spelling.encode(text, language),
        wanted.frame,
        language=stated or language,
        role="valid",
        name=manifest.stem,
    )


def _add_self_replay(held_out: HeldOutData, wanted: DataRequirements, path: Path) -> None:
    try:
        _, parts = split_self_replay(open_clip_dataset(path, expected=wanted.header(of_base=True)))
    except VoxgraftError as error:
        held_out.why[""] = f"what the base said itself cannot be used: {error.finding.found}"
        return
    for language, clips in parts.items():
        held_out.sets.setdefault(language, (clips,))


def is_self_replay(clips: ClipDataset) -> bool:
    """Whether a set holds what the base said itself."""
    return clips.header.made_from.front_end.get("codes") == SELF_REPLAY_ORIGIN


def split_self_replay(clips: ClipDataset) -> tuple[ClipDataset | None, dict[str, ClipDataset]]:
    """A self-made set as what is learnt from, and what is held out by language; either may be nothing."""
    learnt: list[int] = []
    held_out: dict[str, list[int]] = {}
    for place, info in enumerate(clips.infos):
        if info.recording == HELD_OUT_RECORDING:
            held_out.setdefault(info.id.rpartition("-")[0], []).append(place)
        else:
            learnt.append(place)
    own = DatasetSubset(clips, learnt, clips.name, "replay", clips.header.language) if learnt else None
    return own, {
        language: DatasetSubset(clips, places, f"{clips.name}-{language}", "valid", language)
        for language, places in held_out.items()
    }


PartT = TypeVar("PartT")


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
    findings: list[Finding] = field(default_factory=list)
    """What went wrong while the parts were opened."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The grown tokenizer, or the base's where there is no other."""
        return self.grown or self.base_tokenizer

    @property
    def base_pieces(self) -> int | None:
        """The base's number of pieces."""
        return self.base_tokenizer.size if self.base_tokenizer else None

    @property
    def spelling(self) -> TextEncoder | None:
        """How the new language is spelled; without the base's own tokenizer the grown one takes its place."""
        if self.family is None or self.tokenizer is None:
            return None
        base = self.base_tokenizer or self.tokenizer
        return TextEncoder.of(self.family, base, self.tokenizer, self.settings.language, self.rules)

    @property
    def rules(self) -> TextRules:
        """Text rules of the graft. How others normalised their texts is not known: those are read as they are."""
        if self.graft is not None and (self.grown is None or self.grown.sha256 == self.graft.tokenizer.sha256):
            return self.graft.card.rules
        beside = find_text_rules(self.grown.path) if self.grown is not None else None
        return beside or TextRules(NO_RULES, self.settings.language or "")

    @property
    def data_requirements(self) -> DataRequirements | None:
        """What the run's sets of clips must fit; None unless base and graft are there."""
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
        wanted = self.data_requirements
        assert wanted is not None  # what could not be opened is among the findings, which the caller has looked at
        return wanted

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
    _open_base(context, stack)
    _open_tokenizer_and_graft(context)


def _open_base(context: RunContext, stack: contextlib.ExitStack) -> None:
    settings = context.settings
    if settings.base is None:
        return
    folder = settings.base
    found = context.family = context.try_or_report(lambda: resolve_base_family(folder, settings.family))
    if found is None:
        return
    files = context.base = context.try_or_report(lambda: found.files(folder))
    if files is not None:
        context.base_tokenizer = context.try_or_report(lambda: open_tokenizer(files.tokenizer))
        context.base_checkpoint = context.try_or_report(lambda: stack.enter_context(open_checkpoint(files.checkpoint)))


def _open_tokenizer_and_graft(context: RunContext) -> None:
    """The tokenizer that is named, else the graft's. A graft whose parts do not fit still has a tokenizer."""
    named, run = context.settings.tokenizer.file, context.run
    if named is not None:
        context.grown = context.try_or_report(lambda: open_tokenizer(named))
    if run is None:
        return
    folder = RunFolder(run).graft
    if not os.path.isdir(folder):
        context.findings.append(finding("graft-missing", f"{run} has no {folder.name} folder", where=run))
        return
    context.graft = context.try_or_report(lambda: load_graft(folder))
    if named is None:
        context.grown = context.graft.tokenizer if context.graft else _open_graft_tokenizer(context, folder)


def _open_graft_tokenizer(context: RunContext, folder: Path) -> Tokenizer | None:
    card = context.try_or_report(lambda: read_graft_card(folder))
    return context.try_or_report(lambda: open_tokenizer(folder / card.tokenizer)) if card else None


def provenance_findings(context: RunContext) -> list[Finding]:
    """Hashes that the run and its graft state, against the files that are there now."""
    run, base = context.run, context.base
    if run is None or base is None:
        return []
    card = _read_run_card(run / RUN_CARD_NAME) if os.path.exists(run / RUN_CARD_NAME) or context.graft else {}
    stated: dict[Path, str] = {base.folder / name: digest for name, digest in _stated_hashes(card, "base").items()}
    if context.graft is not None:
        for part in ("checkpoint", "tokenizer"):
            name, digest = (context.graft.card.base.get(key) for key in (part, f"{part}_sha256"))
            if isinstance(name, str) and isinstance(digest, str):
                stated.setdefault(base.folder / name, digest)
    findings = [item for path, digest in stated.items() for item in _hash_findings(path, digest, "base-other")]
    for path, digest in _stated_hashes(card, "texts").items():
        findings += _hash_findings(run / path, digest, "texts-changed")
    return findings + _changed_settings_findings(context, card) + _graft_tokenizer_findings(context)


def _changed_settings_findings(context: RunContext, card: dict[str, Any]) -> list[Finding]:
    """Settings that were changed after the graft was made."""
    stated, now = card.get("settings"), collect_graft_settings(context.settings)
    if context.graft is None or not isinstance(stated, dict):
        return []
    changed = [
        f"{key} was {_shorten_json(stated.get(key))}, is {_shorten_json(now[key])}"
        for key in now
        if stated.get(key) != now[key]
    ]
    texts = {os.path.realpath(context.graft.folder.parent / path) for path in _stated_hashes(card, "texts")}
    if context.settings.texts and texts != {os.path.realpath(path) for path in context.settings.texts}:
        changed.append("texts are other files")
    found = f"settings have changed since the graft was made: {'; '.join(changed)}"
    return [finding("run-changed", found, where=context.graft.folder.parent)] if changed else []


def _shorten_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _read_run_card(path: Path) -> dict[str, Any]:
    card = read_json(require_file(path))
    if not isinstance(card, dict):
        raise GraftError("graft-broken", f"{path.name} holds no keys", where=path)
    return card


def _stated_hashes(card: dict[str, Any], key: str) -> dict[str, str]:
    """File names with their SHA-256, as the card states them."""
    value = card.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(digest, str) for digest in value.values()):
        raise GraftError("graft-broken", f"`{key}` in {RUN_CARD_NAME} is no list of files with their SHA-256")
    return value


def _hash_findings(path: Path, stated: str, code: str) -> list[Finding]:
    if not os.path.isfile(path):
        return [finding(code, f"{path.name}, from which the run was made, is not there", where=path)]
    actual = compute_sha256(path)
    if actual == stated:
        return []
    found = f"{path.name} has sha256 {actual[:12]}"
    return [finding(code, found, expected=f"{stated[:12]}, as when the graft was made", where=path)]


def _graft_tokenizer_findings(context: RunContext) -> list[Finding]:
    graft, named = context.graft, context.grown
    if graft is None or named is None or graft.tokenizer.sha256 == named.sha256:
        return []
    found = f"{named.path} has sha256 {named.sha256[:12]}, the graft's tokenizer {graft.tokenizer.sha256[:12]}"
    return [finding("graft-other-tokenizer", found, where=graft.folder)]
