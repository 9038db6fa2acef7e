"""The sets of a run, opened and looked at: those that are learnt from, and those that are held out.

All that is wrong with them is said at once, as findings. Needs no torch: `check` says here what `train` would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxgraft.checkpoints.base import Shape
from voxgraft.config.run import RunSettings, TrainSettings
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import is_folder, path_exists
from voxgraft.core.run import RunFolder
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
from voxgraft.dataset.shards import ClipDataset, DatasetRole, read_dataset_index
from voxgraft.graft.folder import Graft
from voxgraft.models.base import BaseFiles, Family, SequenceSpec
from voxgraft.text.encoder import TextEncoder, text_rules_identity
from voxgraft.tokenizers.base import Tokenizer

__all__ = [
    "DataRequirements",
    "RunData",
    "build_sampler",
    "compute_set_weights",
    "has_no_data",
    "load_run_data",
    "require_batches_fit",
    "resolve_num_steps",
    "retention_findings",
    "sampling_findings",
    "warmup_findings",
]

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
