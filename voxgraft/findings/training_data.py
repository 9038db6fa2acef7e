"""What a run is to learn from: what of it `train` would refuse, and what is worth knowing of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from voxgraft.errors import Finding, VoxgraftError
from voxgraft.findings.subject import CheckSubject
from voxgraft.run import RunFolder
from voxgraft.run_data import (
    DataRequirements,
    RunData,
    build_sampler,
    compute_set_weights,
    has_no_data,
    load_run_data,
    require_batches_fit,
    resolve_num_steps,
    retention_findings,
    sampling_findings,
    warmup_findings,
)


def training_data_findings(subject: CheckSubject) -> list[Finding]:
    """The findings that `train` looks at, by the same functions; nothing is made that is not there yet."""
    wanted = _data_requirements(subject)
    if wanted is None:
        return []
    merged = subject.settings.train.mode == "merged"
    data = load_run_data(wanted, merged=merged)
    if has_no_data(wanted):  # a run whose data is still to come is not a wrong one
        return [replace(item, level="note") for item in data.findings]
    if not data.all_sets_opened:
        return data.findings
    return [*data.findings, *_order_and_length_findings(subject, wanted, data, merged)]


def _data_requirements(subject: CheckSubject) -> DataRequirements | None:
    run, graft, family, base = subject.run, subject.graft, subject.family, subject.base
    tokenizer, checkpoint = subject.base_tokenizer, subject.base_checkpoint
    if run is None or graft is None or family is None or base is None or tokenizer is None or checkpoint is None:
        return None
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    return DataRequirements.of(RunFolder(run), subject.settings, graft, (family, base, tokenizer), shapes)


def _order_and_length_findings(
    subject: CheckSubject, wanted: DataRequirements, data: RunData, merged: bool
) -> Iterator[Finding]:
    """What is wrong with the order of the data and with the length of the run."""
    settings, sets = wanted.settings, (*data.train, *data.replay)
    try:
        spoken = _count_self_replay_sentences(subject, wanted) if merged else 0
        if merged:
            yield from retention_findings(replayed=bool(data.replay or spoken), measured=bool(data.measured or spoken))
        require_batches_fit(wanted, data, replay_pending=bool(spoken))
        stream = build_sampler(
            settings, wanted.frame, sets, compute_set_weights(data.train, data.replay, settings.data.replay_share)
        )
        yield from sampling_findings(wanted, data, stream)
        yield from warmup_findings(settings.train, resolve_num_steps(settings.train, stream))
        if settings.train.sample_texts:
            _encode_sample_texts(wanted)
    except VoxgraftError as error:
        yield error.finding


def _encode_sample_texts(wanted: DataRequirements) -> None:
    from voxgraft.sample_texts import build_sample_sentences  # torch, and it is needed for who asks for sentences alone

    train = wanted.settings.train
    build_sample_sentences(wanted.spelling, train.sample_texts, (), train.seed)


def _count_self_replay_sentences(subject: CheckSubject, wanted: DataRequirements) -> int:
    """Sentences that the base is to speak itself as replay. That there are any is seen without speaking them."""
    from voxgraft.self_replay import (  # torch, and this needs it in merged mode alone
        SelfReplayBuilder,
        resolve_self_replay_count,
    )

    settings = wanted.settings
    count = resolve_self_replay_count(settings.data, "merged")
    if not count or subject.base is None:
        return 0
    frame, seed = wanted.base_frame, settings.train.seed
    replay = SelfReplayBuilder(wanted.run, settings.data, subject.base, wanted.graft, wanted.spelling, frame, seed)
    return len(replay.plan(count))
