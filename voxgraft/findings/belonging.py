"""Whether a run's parts belong together: the base it was made from, its texts, its tokenizer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from voxgraft.errors import Finding, GraftError, finding
from voxgraft.files import compute_sha256, read_json, require_file
from voxgraft.findings.subject import CheckSubject
from voxgraft.graft_folder import RUN_CARD_NAME, collect_graft_settings


def provenance_findings(subject: CheckSubject) -> list[Finding]:
    """Hashes that the run and its graft state, against the files that are there now."""
    run, base = subject.run, subject.base
    if run is None or base is None:
        return []
    card = _read_run_card(run / RUN_CARD_NAME) if os.path.exists(run / RUN_CARD_NAME) or subject.graft else {}
    stated: dict[Path, str] = {base.folder / name: digest for name, digest in _stated_hashes(card, "base").items()}
    if subject.graft is not None:
        for part in ("checkpoint", "tokenizer"):
            name, digest = (subject.graft.card.base.get(key) for key in (part, f"{part}_sha256"))
            if isinstance(name, str) and isinstance(digest, str):
                stated.setdefault(base.folder / name, digest)
    findings = [item for path, digest in stated.items() for item in _hash_findings(path, digest, "base-other")]
    for path, digest in _stated_hashes(card, "texts").items():
        findings += _hash_findings(run / path, digest, "texts-changed")
    return findings + _changed_settings_findings(subject, card) + _graft_tokenizer_findings(subject)


def _changed_settings_findings(subject: CheckSubject, card: dict[str, Any]) -> list[Finding]:
    """Settings that were changed after the graft was made."""
    stated, now = card.get("settings"), collect_graft_settings(subject.settings)
    if subject.graft is None or not isinstance(stated, dict):
        return []
    changed = [
        f"{key} was {_shorten_json(stated.get(key))}, is {_shorten_json(now[key])}"
        for key in now
        if stated.get(key) != now[key]
    ]
    texts = {os.path.realpath(subject.graft.folder.parent / path) for path in _stated_hashes(card, "texts")}
    if subject.settings.texts and texts != {os.path.realpath(path) for path in subject.settings.texts}:
        changed.append("texts are other files")
    found = f"settings have changed since the graft was made: {'; '.join(changed)}"
    return [finding("run-changed", found, where=subject.graft.folder.parent)] if changed else []


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


def _graft_tokenizer_findings(subject: CheckSubject) -> list[Finding]:
    graft, named = subject.graft, subject.grown
    if graft is None or named is None or graft.tokenizer.sha256 == named.sha256:
        return []
    found = f"{named.path} has sha256 {named.sha256[:12]}, the graft's tokenizer {graft.tokenizer.sha256[:12]}"
    return [finding("graft-other-tokenizer", found, where=graft.folder)]
