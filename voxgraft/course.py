"""Everything that a training run is made of, opened and fitted together: base, graft, data, options.

Decides what the settings left open; trains nothing. `train.py` is the verb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from voxgraft.corpus.clips import ClipSet, Role
from voxgraft.corpus.community import open_pairs, split_language
from voxgraft.corpus.obstacles import prompt_findings, row_findings, spelling_findings
from voxgraft.corpus.set_checks import check_set
from voxgraft.corpus.set_header import read_set_file
from voxgraft.corpus.sets import open_set
from voxgraft.corpus.stream import Stream, StreamOptions
from voxgraft.errors import ConfigError, FileError, Finding, GraftError, finding
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.layout import Frame
from voxgraft.families.tensors import stored_shapes
from voxgraft.files import is_folder, is_there
from voxgraft.graft_folder import Graft, open_graft
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings, TrainSettings
from voxgraft.self_replay import SelfReplay, num_self_made
from voxgraft.spelling import Spelling
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.loop import Every
from voxgraft.training.options import Mode, Precision, TrainOptions
from voxgraft.training.replay import is_self_made, parts_of
from voxgraft.training.retention import Bound

__all__ = ["HALF", "Course", "chosen_device", "open_course"]

DEFAULT_STEPS = 10_000
SILENT_SHARE = 0.1
MOST_VOICES_CHECKED = 2_000
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Course:
    """A run that is ready to be trained."""

    run: RunFolder
    family: Family
    files: BaseFiles
    graft: Graft
    spelling: Spelling
    train: tuple[ClipSet, ...]
    """Sets of the new language, then those of replay."""
    weights: tuple[float, ...]
    valid: dict[str, tuple[ClipSet, ...]]
    """Held-out sets by language, the new one first."""
    stream: Stream
    options: TrainOptions
    every: Every
    device: str
    findings: tuple[Finding, ...]
    """What is wrong with the data, or worth knowing."""
    bound: Bound | None
    """What merged training may cost the base languages that are measured."""
    interpolate: tuple[float, ...]
    """Shares of merged training that are tried at its end."""

    @property
    def replay(self) -> frozenset[int]:
        """Which of the training sets are of base languages."""
        own = self.graft.card.language
        return frozenset(at for at, clips in enumerate(self.train) if clips.header.language != own)

    @property
    def near(self) -> frozenset[int]:
        """Sets on which the model is held near the base."""
        return self.replay if self.options.kl_weight > 0 else frozenset()

    @property
    def unscored(self) -> frozenset[int]:
        """Sets that the base made itself: held near the base there, the model has nothing else to learn from them."""
        return frozenset(at for at in self.near if is_self_made(self.train[at]))

    @property
    def identity(self) -> dict[str, Any]:
        """What a saved step belongs to, as JSON gives it back."""
        return {
            "family": self.family.name,
            "language": self.graft.card.language,
            "base_sha256": self.graft.card.base["checkpoint_sha256"],
            "tokenizer_sha256": self.graft.card.tokenizer_sha256,
            "num_rows": self.graft.card.num_rows,
            "sets": {clips.name: clips.fingerprint for clips in self.train},
            "held_out": {clips.name: clips.fingerprint for clips in self.valid[self.graft.card.language]},
            "options": _plain(asdict(self.options)),
        }


def open_course(
    run: RunFolder, settings: RunSettings, family: Family, files: BaseFiles, *, as_in_the_seeds: bool = False
) -> Course:
    """Open a run's parts and decide what its settings left open. What does not belong is refused.

    Replay that the base makes itself is made here if it is not there yet, so the run must be locked.
    """
    mode: Mode = "as-in-the-seeds" if as_in_the_seeds else settings.train.mode
    graft = open_graft(run.graft)
    spelling = Spelling.of(family, open_tokenizer(files.tokenizer), graft.tokenizer, graft.card.language)
    size = family.size_of(files, stored_shapes(files.checkpoint))
    frame = family.frame(graft.tokenizer.size, size)
    opener = _Opener(run, settings, graft, spelling, frame)
    train = opener.open(settings.data.train or (run.data_set("train"),), "train")
    replay = opener.open(settings.data.replay, "replay", of_base=True) if mode == "merged" else ()
    valid = opener.open(settings.data.valid or (run.data_set("valid"),), "valid")
    measured = opener.open(settings.data.replay_valid, "valid", of_base=True)
    device = chosen_device(settings.train.device)
    learnt, held_out = _self_made(opener, mode, files, train, device)
    replay = (*replay, *learnt)
    weights = _weights(train, replay, settings.data.replay_share)
    stream = _stream((*train, *replay), weights, settings, family, frame)
    opener.look_at_order(train, replay, stream)
    by_language = {graft.card.language: valid, **_by_language((*measured, *held_out))}
    bound = _bound(opener, mode, replay, frozenset(by_language) - {graft.card.language})
    return Course(
        run,
        family,
        files,
        graft,
        spelling,
        (*train, *replay),
        weights,
        by_language,
        stream,
        replace(_options(settings.train, family, stream, device), mode=mode),
        _every(settings.train),
        device,
        tuple(opener.findings),
        bound,
        settings.train.interpolate,
    )


def chosen_device(asked: str | None) -> str:
    """The device that was asked for, if it is there; else CUDA where there is one."""
    if asked is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise ConfigError("device", f"train.device is {asked!r}", expected="cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"train.device is {asked!r}, and {torch.cuda.device_count()} CUDA devices are there"
        raise ConfigError("device", found, expected="a device that is there")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError("device", f"train.device is {asked!r}", expected="cpu, cuda or cuda:N")
    return asked


@dataclass
class _Opener:
    """Opens sets and collects what is wrong with them."""

    run: RunFolder
    settings: RunSettings
    graft: Graft
    spelling: Spelling
    frame: Frame

    def __post_init__(self) -> None:
        self.findings: list[Finding] = []

    def open(self, places: Sequence[Path], role: Role, *, of_base: bool = False) -> tuple[ClipSet, ...]:
        """Sets of the new language, or those that must be of base languages."""
        return tuple(self._open_one(place, role, of_base) for place in places)

    def _open_one(self, place: Path, role: Role, of_base: bool) -> ClipSet:
        if is_folder(place):
            stated = read_set_file(place).header.language
            self._refuse_new_language(place, stated, of_base)
            clips = open_set(place, expected=self._expected(of_base))
        else:
            clips = self._adopt(place, role, of_base)
            self._refuse_new_language(place, clips.header.language, of_base)
        unknown = self.graft.tokenizer.unknown_id if role != "replay" else None
        frame = self.frame if clips.header.language == self.graft.card.language else self.base_frame()
        self.findings += check_set(
            clips, frame, clips.header.code_hz, unknown_id=unknown, max_voices=MOST_VOICES_CHECKED
        )
        self.findings += spelling_findings(clips, lambda text: self.spelling.encode(text, clips.header.language))
        return clips

    def _refuse_new_language(self, place: Path, language: str, of_base: bool) -> None:
        if of_base and language == self.graft.card.language:
            found = f"{place.name} is in {language}, the new language"
            raise GraftError("replay-language", found, expected="a base language", where=place)

    def _expected(self, of_base: bool) -> dict[str, Any]:
        """A set of a base language is spelled by the base's own tokenizer."""
        card, own = self.graft.card, {} if of_base else {"language": self.graft.card.language}
        tokenizer = self.spelling.base.sha256 if of_base else card.tokenizer_sha256
        made_from = {"tokenizer_sha256": tokenizer, "base_sha256": card.base["checkpoint_sha256"]}
        return {"family": card.family, **own, "made_from": made_from}

    def _adopt(self, place: Path, role: Role, of_base: bool) -> ClipSet:
        manifest, language = split_language(str(place))
        self._refuse_what_is_no_manifest(place, manifest, role)
        own = None if of_base else self.graft.card.language
        clips = open_pairs(
            manifest,
            lambda text: self.spelling.encode(text, own),
            self.frame,
            language=language or own,
            role=role,
            name=f"{manifest.parent.name}/{manifest.stem}",
        )
        self.findings += clips.findings
        return clips

    def _refuse_what_is_no_manifest(self, place: Path, manifest: Path, role: Role) -> None:
        expected = f"a set for {role}: a folder that `prepare` made, or for indextts2 a manifest of pairs (*.jsonl)"
        if not is_there(manifest):
            raise FileError("set-missing", f"{place.name} is not there", expected=expected, where=place)
        if manifest.suffix != ".jsonl" or self.graft.card.family != "indextts2":
            found = f"{place.name}, for a run of {self.graft.card.family}"
            raise FileError("set-missing", found, expected=expected, where=place)

    def look_at_order(self, train: Sequence[ClipSet], replay: Sequence[ClipSet], stream: Stream) -> None:
        """What is wrong with the sets as they will be met."""
        for report in stream.report():
            self.findings += report.findings()
        self.findings += row_findings(train, self.graft.card.base_pieces, self.graft.card.num_rows)
        self.findings += prompt_findings((*train, *replay), stream)

    def base_frame(self) -> Frame:
        return replace(self.frame, num_text_ids=self.spelling.base.size)


def _by_language(sets: Sequence[ClipSet]) -> dict[str, tuple[ClipSet, ...]]:
    found: dict[str, tuple[ClipSet, ...]] = {}
    for clips in sets:
        language = clips.header.language
        found[language] = (*found.get(language, ()), clips)
    return found


def _self_made(
    opener: _Opener, mode: Mode, files: BaseFiles, train: Sequence[ClipSet], device: str
) -> tuple[tuple[ClipSet, ...], tuple[ClipSet, ...]]:
    """What the base said itself: sets to learn from, and held-out ones. Not made for a run that will be refused."""
    settings = opener.settings
    count = num_self_made(settings.data, mode)
    if not count or any(item.level == "error" for item in opener.findings):
        return (), ()
    dtype = HALF.get(settings.train.precision or _precision(device), torch.float32)
    graft, spelling, frame = opener.graft, opener.spelling, opener.base_frame()
    replay = SelfReplay(opener.run, settings.data, files, graft, spelling, frame, settings.train.seed)
    made, item = replay.have(count, train, device, dtype)
    opener.findings.append(item)
    learnt, held_out = parts_of(made)
    return (learnt,) if learnt is not None and mode == "merged" else (), tuple(held_out.values())


def _bound(opener: _Opener, mode: Mode, replay: Sequence[ClipSet], measured: frozenset[str]) -> Bound | None:
    """What base languages may lose in merged mode; says so where nothing protects or measures them."""
    share = opener.settings.train.retention_bound
    if mode != "merged":
        return None
    if not replay:
        opener.findings.append(finding("replay-missing", "merged mode, and no set of a base language is learnt from"))
    if not measured:
        opener.findings.append(finding("retention-unmeasured", "no set of a base language is held out"))
    return Bound(share, measured) if share is not None and measured else None


def _weights(train: Sequence[ClipSet], replay: Sequence[ClipSet], replay_share: float) -> tuple[float, ...]:
    """Sets of the same kind share by their length; replay as a whole has its share of every step."""
    share = replay_share if replay else 0.0
    own, old = _by_length(train), _by_length(replay)
    return tuple([(1 - share) * part for part in own] + [share * part for part in old])


def _by_length(sets: Sequence[ClipSet]) -> list[float]:
    lengths = [float(clips.num_codes.sum() + clips.num_text.sum()) for clips in sets]
    return [length / sum(lengths) for length in lengths]


def _stream(
    sets: Sequence[ClipSet], weights: Sequence[float], settings: RunSettings, family: Family, frame: Frame
) -> Stream:
    train, data = settings.train, settings.data
    order = StreamOptions(
        silent_share=_silent_share(train, family),
        min_prompt_seconds=data.min_prompt_seconds,
        lone_clips=data.lone_clips,
        num_conditioning=frame.num_conditioning,
    )
    return Stream(sets, weights, train.tokens_per_step, train.seed, order)


def _silent_share(train: TrainSettings, family: Family) -> float:
    if train.silent_share is not None:
        return train.silent_share
    return SILENT_SHARE if family.stock_sampling().guidance > 0 else 0.0


def _options(train: TrainSettings, family: Family, stream: Stream, device: str) -> TrainOptions:
    text_weight, speech_weight = family.loss_weights
    longest = stream.longest[0]
    return TrainOptions(
        mode=train.mode,
        full_body=train.full_body,
        rank=train.rank,
        alpha=train.alpha or float(train.rank),
        rates={"rows": train.row_rate, "adapter": train.adapter_rate, "body": train.body_rate},
        weight_decay=train.weight_decay,
        clip=train.clip,
        schedule=train.schedule,
        steps=_num_steps(train, stream),
        warmup_steps=train.warmup_steps,
        final_share=train.final_share,
        text_weight=text_weight if train.text_weight is None else train.text_weight,
        speech_weight=speech_weight if train.speech_weight is None else train.speech_weight,
        kl_weight=train.kl_weight,
        tokens_per_step=train.tokens_per_step,
        pack_tokens=train.pack_tokens or max(longest, min(train.tokens_per_step, 8_192)),
        silent_share=_silent_share(train, family),
        emotion_from=train.emotion_from,
        seed=train.seed,
        precision=train.precision or _precision(device),
        chunk=2_048 if device.startswith("cuda") else None,
        checkpointing=train.checkpointing,
        compile=device.startswith("cuda") if train.compile is None else train.compile,
        deterministic=train.deterministic,
    )


def _num_steps(train: TrainSettings, stream: Stream) -> int:
    if train.steps is not None and train.epochs is not None:
        found = f"train.steps is {train.steps:,} and train.epochs is {train.epochs:g}"
        raise ConfigError("config-value", found, expected="one of the two")
    return stream.steps_for(train.epochs) if train.epochs is not None else train.steps or DEFAULT_STEPS


def _precision(device: str) -> Precision:
    if not device.startswith("cuda"):
        return "float32"
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"


def _every(train: TrainSettings) -> Every:
    return Every(
        log=train.log_every,
        validate=train.valid_every,
        save=train.save_every,
        sample=train.sample_every,
        keep_last=train.keep_last,
        patience=train.patience,
        min_delta=train.min_delta,
        min_steps=train.min_steps,
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
