"""What evaluation will need after training. Its lack stops no training, so that it is a warning here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from voxgraft.errors import Finding, VoxgraftError
from voxgraft.findings.subject import CheckSubject
from voxgraft.preparing.choosing import resolve_manifest_path
from voxgraft.run import RunFolder


def evaluation_findings(subject: CheckSubject) -> list[Finding]:
    """A recogniser that cannot be opened or does not know the language, and sentences that will be missing."""
    from voxgraft.evaluating.sentences import require_sentences

    settings, language = subject.settings, subject.settings.language
    if subject.run is None or language is None:
        return []
    run = RunFolder(subject.run)
    manifest = resolve_manifest_path(settings.data.dataset, run.data)
    valid = settings.data.valid or (run.data_set("valid"),)
    looks: list[Callable[[], None]] = [lambda: require_sentences(manifest, valid, language, ())]
    if settings.evaluate.recogniser is not None:
        from voxgraft.evaluating.hearing import require_recognizer  # loads torch, which `check` needs for little else

        looks.append(lambda: require_recognizer(settings.evaluate.recogniser, language))
    found = []
    for look in looks:
        try:
            look()
        except VoxgraftError as error:
            found.append(replace(error.finding, level="warning"))
    return found
