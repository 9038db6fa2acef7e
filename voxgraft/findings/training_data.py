"""What a run is to learn from: what of it `train` would refuse, and what is worth knowing of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from voxgraft.errors import Finding, VoxgraftError
from voxgraft.findings.subject import Subject
from voxgraft.run import RunFolder
from voxgraft.run_data import (
    RunData,
    Wanted,
    has_no_data,
    num_steps,
    open_data,
    order_findings,
    order_of,
    require_room,
    retention_findings,
    shares,
    steps_findings,
)


def data_findings(subject: Subject) -> list[Finding]:
    """The findings that `train` looks at, by the same functions; nothing is made that is not there yet."""
    wanted = _wanted(subject)
    if wanted is None:
        return []
    merged = subject.settings.train.mode == "merged"
    data = open_data(wanted, merged=merged)
    if has_no_data(wanted):  # a run whose data is still to come is not a wrong one
        return [replace(item, level="note") for item in data.findings]
    if not data.is_whole:
        return data.findings
    return [*data.findings, *_further(subject, wanted, data, merged)]


def _wanted(subject: Subject) -> Wanted | None:
    run, graft, family, base = subject.run, subject.graft, subject.family, subject.base
    tokenizer, checkpoint = subject.base_tokenizer, subject.base_checkpoint
    if run is None or graft is None or family is None or base is None or tokenizer is None or checkpoint is None:
        return None
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    return Wanted.of(RunFolder(run), subject.settings, graft, (family, base, tokenizer), shapes)


def _further(subject: Subject, wanted: Wanted, data: RunData, merged: bool) -> Iterator[Finding]:
    """What is wrong with the order of the data and with the length of the run."""
    settings, sets = wanted.settings, (*data.train, *data.replay)
    try:
        spoken = _num_spoken(subject, wanted) if merged else 0
        if merged:
            yield from retention_findings(replayed=bool(data.replay or spoken), measured=bool(data.measured or spoken))
        require_room(wanted, data, replay_to_come=bool(spoken))
        stream = order_of(settings, wanted.frame, sets, shares(data.train, data.replay, settings.data.replay_share))
        yield from order_findings(wanted, data, stream)
        yield from steps_findings(settings.train, num_steps(settings.train, stream))
        if settings.train.sample_texts:
            _spell_samples(wanted)
    except VoxgraftError as error:
        yield error.finding


def _spell_samples(wanted: Wanted) -> None:
    from voxgraft.sample_texts import sentences_of  # torch, and it is needed for who asks for sentences alone

    train = wanted.settings.train
    sentences_of(wanted.spelling, train.sample_texts, (), train.seed)


def _num_spoken(subject: Subject, wanted: Wanted) -> int:
    """Sentences that the base is to speak itself as replay. That there are any is seen without speaking them."""
    from voxgraft.self_replay import SelfReplay, num_self_made  # torch, and this needs it in merged mode alone

    settings = wanted.settings
    count = num_self_made(settings.data, "merged")
    if not count or subject.base is None:
        return 0
    frame, seed = wanted.base_frame, settings.train.seed
    replay = SelfReplay(wanted.run, settings.data, subject.base, wanted.graft, wanted.spelling, frame, seed)
    return len(replay.plan(count))
