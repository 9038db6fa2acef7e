"""Stages after training: evaluation and export. Decides by the hashes that both keep of what they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxgraft.errors import GraftError
from voxgraft.evaluate import EvaluateResult, evaluate
from voxgraft.evaluating.scores_file import SCORES_NAME
from voxgraft.evaluating.sentences import load_sentence_sets
from voxgraft.evaluating.subjects import detect_trained_output
from voxgraft.exchange_settings import ExportKind, ExportSettings
from voxgraft.export import ExportResult, choose_export_kind, export
from voxgraft.exporting.names import EXPORT_CARD_NAME as EXPORT_CARD
from voxgraft.exporting.terms import read_terms
from voxgraft.files import compute_sha256, is_file, path_exists, read_json
from voxgraft.going.settings import GoSettings
from voxgraft.going.stage import PipelineContext, PipelineStage, StageDecision
from voxgraft.graft_folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.graft_folder import ROWS_NAME
from voxgraft.journal import RunJournal
from voxgraft.merged_folder import MERGED_FOLDER_NAME, read_merged_card
from voxgraft.settings import EvaluateSettings

__all__ = ["EVALUATE_STAGE", "EXPORT_STAGE"]

EVALUATION_NAME = "default"
MAX_CARD_BYTES = 64 << 20


def _hash_trained_output(work: PipelineContext) -> dict[str, str]:
    """What the last training has left, by the names under which scores and exports keep its hash."""
    if detect_trained_output(work.run, RunJournal(work.run.journal).read()) == "merged":
        return {"checkpoint_sha256": str(read_merged_card(work.run.path / MERGED_FOLDER_NAME)["checkpoint_sha256"])}
    return {"graft_sha256": compute_sha256(work.run.graft / GRAFT_CARD)}


def _decide_evaluate(work: PipelineContext) -> StageDecision:
    path = work.run.eval / EVALUATION_NAME / SCORES_NAME
    if not is_file(path):
        return StageDecision(True, "not evaluated yet", "it was not evaluated yet")
    scores = _read_json_object(path, MAX_CARD_BYTES)
    subject, spoken = scores.get("subject"), scores.get("sentences")
    if not (isinstance(subject, dict) and _contains_hashes(subject, _hash_trained_output(work))):
        return StageDecision(True, "its scores are of another model", "its scores were of another model")
    if other := _why_sentences_differ(work.told, spoken if isinstance(spoken, dict) else {}):
        return StageDecision(True, f"its scores are {other}", f"its scores were {other}")
    if other := _why_recognizer_differs(work, scores.get("listener")):
        return StageDecision(True, other)
    return StageDecision(False, "its scores are of this very model")


def _why_recognizer_differs(work: PipelineContext, listener: Any) -> str:
    """Where one is named now, and is not the one that the scores were made with."""
    wanted = work.settings.evaluate.recogniser
    known = listener.get("named") if isinstance(listener, dict) else None
    return f"its recogniser was {known or 'not named'}, and is {wanted} now" if wanted not in (None, known) else ""


def _why_sentences_differ(told: GoSettings, spoken: dict[str, Any]) -> str:
    """What the scores were made with, where something else was told now; who tells nothing asks for nothing else."""
    if told.model_fields_set.isdisjoint(("sentences", "most")):
        return ""
    languages = list(dict.fromkeys([*spoken, *(path.stem for path in told.sentences)]))
    for language, wanted in load_sentence_sets(languages, told.sentences, told.most).items():
        one = spoken.get(language)
        known = one if isinstance(one, dict) else {}
        if known.get("sha256") != wanted.sha256:
            return f"not of the sentences of {language} that are asked for now ({wanted.source})"
        if known.get("count") != len(wanted.sentences):
            return f"of {known.get('count')} sentences of {language}, not of {len(wanted.sentences)}"
    return ""


def _run_evaluate(work: PipelineContext) -> EvaluateResult:
    told = work.told
    return evaluate(
        EvaluateSettings(subject=work.run.path, sentences=told.sentences, most=told.most, name=EVALUATION_NAME)
    )


def _choose_export_kind(work: PipelineContext) -> ExportKind:
    if work.told.to is not None:
        return work.told.to
    card = work.card
    merged = detect_trained_output(work.run, RunJournal(work.run.journal).read()) == "merged"
    return choose_export_kind(card.family if card is not None else "", merged=merged and card is not None)


def _decide_export(work: PipelineContext) -> StageDecision:
    kind = _choose_export_kind(work)
    folder = work.run.export / kind
    if not path_exists(folder):
        return StageDecision(True, f"no export for {kind} yet", f"there was no export for {kind} yet")
    if not _is_export_current(work, kind, folder):
        return StageDecision(True, f"{folder.name} was made of another model")
    if other := _why_terms_differ(work, folder):
        return StageDecision(True, f"it did not say this {other}")
    return StageDecision(False, f"{folder} is of this very model")


def _is_export_current(work: PipelineContext, kind: ExportKind, folder: Path) -> bool:
    if kind == "graft":
        return is_file(folder / GRAFT_CARD) and compute_sha256(folder / GRAFT_CARD) == compute_sha256(
            work.run.graft / GRAFT_CARD
        )
    if kind == "peft":
        card = work.card
        wanted = {} if card is None else {ROWS_NAME: card.rows_sha256, **(card.adapter or {})}
        return all(
            is_file(folder / name) and compute_sha256(folder / name) == digest for name, digest in wanted.items()
        )
    made_of = (
        _read_json_object(folder / EXPORT_CARD, MAX_CARD_BYTES).get("made_of")
        if is_file(folder / EXPORT_CARD)
        else None
    )
    return isinstance(made_of, dict) and _contains_hashes(made_of, _hash_trained_output(work))


def _why_terms_differ(work: PipelineContext, folder: Path) -> str:
    """What was told now, and is not what the export says."""
    terms, told = read_terms(folder), work.told
    if told.data_licence is not None and (terms is None or terms.data_licence != told.data_licence):
        return "licence of the data"
    if told.consent is not None and (terms is None or terms.consent != told.consent):
        return "consent of the speakers"
    return "yes to the terms of the base" if told.accept_terms and (terms is None or not terms.accepted) else ""


def _run_export(work: PipelineContext) -> ExportResult:
    told, kind = work.told, _choose_export_kind(work)
    terms = {"data_licence": told.data_licence, "consent": told.consent, "accept_terms": told.accept_terms}
    values = {"subject": work.run.path, "to": kind, "overwrite": path_exists(work.run.export / kind), **terms}
    return export(ExportSettings.model_validate(values))


def _read_json_object(path: Path, most: int) -> dict[str, Any]:
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise GraftError("json-shape", f"{path.name} holds no keys", where=path)
    return value


def _contains_hashes(keys: dict[str, Any], wanted: dict[str, str]) -> bool:
    return all(keys.get(name) == digest for name, digest in wanted.items())


EVALUATE_STAGE = PipelineStage("evaluate", _decide_evaluate, _run_evaluate)
EXPORT_STAGE = PipelineStage("export", _decide_export, _run_export)
