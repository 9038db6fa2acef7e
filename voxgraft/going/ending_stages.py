"""Stages after training: evaluation and export. Decides by the hashes that both keep of what they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxgraft.errors import GraftError
from voxgraft.evaluate import EvaluateResult, evaluate
from voxgraft.evaluating.scores_file import SCORES_NAME
from voxgraft.evaluating.sentences import sets_of
from voxgraft.evaluating.subjects import left_by
from voxgraft.exchange_settings import ExportKind, ExportSettings
from voxgraft.export import ExportResult, default_kind, export
from voxgraft.exporting.names import CARD_NAME as EXPORT_CARD
from voxgraft.exporting.terms import read_terms
from voxgraft.files import is_file, is_there, read_json, sha256_of
from voxgraft.going.settings import GoSettings
from voxgraft.going.stage import Decision, Stage, Work
from voxgraft.graft_folder import CARD_NAME as GRAFT_CARD
from voxgraft.graft_folder import ROWS_NAME
from voxgraft.journal import Journal
from voxgraft.merged_folder import MERGED_NAME, read_merged
from voxgraft.settings import EvaluateSettings

__all__ = ["EVALUATE", "EXPORT"]

NAME = "default"
MAX_BYTES = 64 << 20


def _made_of(work: Work) -> dict[str, str]:
    """What the last training has left, by the names under which scores and exports keep its hash."""
    if left_by(work.run, Journal(work.run.journal).read()) == "merged":
        return {"checkpoint_sha256": str(read_merged(work.run.path / MERGED_NAME)["checkpoint_sha256"])}
    return {"graft_sha256": sha256_of(work.run.graft / GRAFT_CARD)}


def _decide_evaluate(work: Work) -> Decision:
    path = work.run.eval / NAME / SCORES_NAME
    if not is_file(path):
        return Decision(True, "not evaluated yet", "it was not evaluated yet")
    scores = _keys(path, MAX_BYTES)
    subject, spoken = scores.get("subject"), scores.get("sentences")
    if not (isinstance(subject, dict) and _holds(subject, _made_of(work))):
        return Decision(True, "its scores are of another model", "its scores were of another model")
    if other := _other_sentences(work.told, spoken if isinstance(spoken, dict) else {}):
        return Decision(True, f"its scores are {other}", f"its scores were {other}")
    if other := _other_recogniser(work, scores.get("listener")):
        return Decision(True, other)
    return Decision(False, "its scores are of this very model")


def _other_recogniser(work: Work, listener: Any) -> str:
    """Where one is named now, and is not the one that the scores were made with."""
    wanted = work.settings.evaluate.recogniser
    known = listener.get("named") if isinstance(listener, dict) else None
    return f"its recogniser was {known or 'not named'}, and is {wanted} now" if wanted not in (None, known) else ""


def _other_sentences(told: GoSettings, spoken: dict[str, Any]) -> str:
    """What the scores were made with, where something else was told now; who tells nothing asks for nothing else."""
    if told.model_fields_set.isdisjoint(("sentences", "most")):
        return ""
    languages = list(dict.fromkeys([*spoken, *(path.stem for path in told.sentences)]))
    for language, wanted in sets_of(languages, told.sentences, told.most).items():
        one = spoken.get(language)
        known = one if isinstance(one, dict) else {}
        if known.get("sha256") != wanted.sha256:
            return f"not of the sentences of {language} that are asked for now ({wanted.source})"
        if known.get("count") != len(wanted.sentences):
            return f"of {known.get('count')} sentences of {language}, not of {len(wanted.sentences)}"
    return ""


def _evaluate(work: Work) -> EvaluateResult:
    told = work.told
    return evaluate(EvaluateSettings(subject=work.run.path, sentences=told.sentences, most=told.most, name=NAME))


def _kind(work: Work) -> ExportKind:
    if work.told.to is not None:
        return work.told.to
    card = work.card
    merged = left_by(work.run, Journal(work.run.journal).read()) == "merged"
    return default_kind(card.family if card is not None else "", merged=merged and card is not None)


def _decide_export(work: Work) -> Decision:
    kind = _kind(work)
    folder = work.run.export / kind
    if not is_there(folder):
        return Decision(True, f"no export for {kind} yet", f"there was no export for {kind} yet")
    if not _is_same(work, kind, folder):
        return Decision(True, f"{folder.name} was made of another model")
    if other := _other_terms(work, folder):
        return Decision(True, f"it did not say this {other}")
    return Decision(False, f"{folder} is of this very model")


def _is_same(work: Work, kind: ExportKind, folder: Path) -> bool:
    if kind == "graft":
        return is_file(folder / GRAFT_CARD) and sha256_of(folder / GRAFT_CARD) == sha256_of(work.run.graft / GRAFT_CARD)
    if kind == "peft":
        card = work.card
        wanted = {} if card is None else {ROWS_NAME: card.rows_sha256, **(card.adapter or {})}
        return all(is_file(folder / name) and sha256_of(folder / name) == digest for name, digest in wanted.items())
    made_of = _keys(folder / EXPORT_CARD, MAX_BYTES).get("made_of") if is_file(folder / EXPORT_CARD) else None
    return isinstance(made_of, dict) and _holds(made_of, _made_of(work))


def _other_terms(work: Work, folder: Path) -> str:
    """What was told now, and is not what the export says."""
    terms, told = read_terms(folder), work.told
    if told.data_licence is not None and (terms is None or terms.data_licence != told.data_licence):
        return "licence of the data"
    if told.consent is not None and (terms is None or terms.consent != told.consent):
        return "consent of the speakers"
    return "yes to the terms of the base" if told.accept_terms and (terms is None or not terms.accepted) else ""


def _export(work: Work) -> ExportResult:
    told, kind = work.told, _kind(work)
    terms = {"data_licence": told.data_licence, "consent": told.consent, "accept_terms": told.accept_terms}
    values = {"subject": work.run.path, "to": kind, "overwrite": is_there(work.run.export / kind), **terms}
    return export(ExportSettings.model_validate(values))


def _keys(path: Path, most: int) -> dict[str, Any]:
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise GraftError("json-shape", f"{path.name} holds no keys", where=path)
    return value


def _holds(keys: dict[str, Any], wanted: dict[str, str]) -> bool:
    return all(keys.get(name) == digest for name, digest in wanted.items())


EVALUATE = Stage("evaluate", _decide_evaluate, _evaluate)
EXPORT = Stage("export", _decide_export, _export)
