"""What is exported: the graft of a run or one by itself, the base that it belongs to, and what merged training left.

Nothing is exported that does not pass `check`, and nothing that was made on another base.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.bases import resolve_base_family, resolve_base_folder
from voxgraft.config import parse_settings, read_settings_values
from voxgraft.errors import ConfigError, GraftError, raise_first_error
from voxgraft.evaluating.subjects import detect_trained_output
from voxgraft.exchange_settings import ExportSettings
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.stock import ExportInfo
from voxgraft.files import compute_sha256, is_file, is_folder, require_folder
from voxgraft.findings import open_check_subject, run_checks
from voxgraft.graft_folder import ADAPTER_NAME, GRAFT_CARD_NAME, Graft, load_graft
from voxgraft.journal import RunJournal
from voxgraft.merged_folder import MERGED_FOLDER_NAME, read_merged_card
from voxgraft.preparing.choosing import resolve_text_files
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.settings import CheckSettings
from voxgraft.text.characters import find_exemplar
from voxgraft.tokenizers.base import Tokenizer

__all__ = ["ExportSource", "open_export_source"]


@dataclass(frozen=True)
class ExportSource:
    """One graft, its base, and the run that it comes from if there is one."""

    family: Family
    files: BaseFiles
    base_tokenizer: Tokenizer
    graft: Graft
    run: RunFolder | None = None
    texts: tuple[Path, ...] = ()
    """Texts of the new language that the run names."""
    merged: dict[str, Any] | None = None
    """The card of what merged training has left, if that was the last one."""

    @property
    def language(self) -> str:
        return self.graft.card.language

    @property
    def language_name(self) -> str:
        entry = find_exemplar(self.language)
        return entry.name if entry else self.language

    @property
    def adapter(self) -> Path | None:
        folder = self.graft.folder / ADAPTER_NAME
        return folder if is_folder(folder) else None

    @property
    def merged_checkpoint(self) -> Path | None:
        if self.merged is None or self.run is None:
            return None
        return self.run.path / MERGED_FOLDER_NAME / str(self.merged["checkpoint"])

    @property
    def facts(self) -> ExportInfo:
        card = self.graft.card
        return ExportInfo(self.language, self.language_name, card.tag, self.graft.tokenizer.size, card.base_pieces)

    @property
    def trained_step(self) -> int | None:
        """None where nothing was trained yet."""
        if self.merged is not None:
            return int(self.merged["step"])
        trained = self.graft.card.method.get("trained")
        return int(trained["step"]) if isinstance(trained, dict) else None


def open_export_source(settings: ExportSettings) -> ExportSource:
    """What the path names, checked; an error that says what could stand there for anything else."""
    path = require_folder(settings.subject)
    run = RunFolder(path)
    if is_file(run.settings):
        return _open_run_source(run, settings)
    if is_file(path / GRAFT_CARD_NAME):
        return _open_graft_source(path, settings)
    found = f"{path.name} holds neither run.yaml nor {GRAFT_CARD_NAME}"
    raise GraftError("export-subject", found, expected="the folder of a run or of a graft", where=path)


def _open_run_source(run: RunFolder, settings: ExportSettings) -> ExportSource:
    values = read_settings_values(RunSettings, run.settings)
    if settings.base is not None:
        values["base"] = resolve_base_folder(settings.base)
    own = parse_settings(RunSettings, values, run.settings)
    _require_passing_check(parse_settings(CheckSettings, {**values, "run": run.path}, run.settings))
    which = detect_trained_output(run, RunJournal(run.journal).read())
    if which == "as-in-the-seeds":
        found = "the last training was one as in the seeds, whose rows and body are not the base's"
        raise GraftError("export-seeds", found, where=run.path)
    merged = read_merged_card(run.path / MERGED_FOLDER_NAME) if which == "merged" else None
    return _build_source(
        own.base, settings.family or own.family, run.graft, (run, resolve_text_files(own, run.path), merged)
    )


def _open_graft_source(path: Path, settings: ExportSettings) -> ExportSource:
    graft = load_graft(path)
    base = settings.base or Path(graft.card.family)
    source = _build_source(base, settings.family or graft.card.family, path, (None, (), None))
    given = {"base": source.files.folder, "tokenizer": {"file": graft.tokenizer.path}, "family": source.family.name}
    _require_passing_check(parse_settings(CheckSettings, {**given, "language": graft.card.language}, path))
    return source


def _build_source(
    base: Path | None,
    name: str | None,
    place: Path,
    of_run: tuple[RunFolder | None, tuple[Path, ...], dict[str, Any] | None],
) -> ExportSource:
    if base is None:
        raise ConfigError("config-missing", "`base` is not given", expected="--base FOLDER", where=place)
    folder = resolve_base_folder(base)
    if not is_folder(folder):
        cure = "name the base that it was made on: --base FOLDER."
        raise ConfigError("config-missing", f"the base {folder} is not there", where=place, cure=cure)
    family = resolve_base_family(folder, name)
    files = family.files(folder)
    graft = load_graft(place)
    card = graft.card
    if card.family != family.name:
        raise GraftError("base-other", f"a base of {family.name}", expected=card.family, where=folder)
    from voxgraft.tokenizers import open_tokenizer

    for part, path in (("checkpoint", files.checkpoint), ("tokenizer", files.tokenizer)):
        actual, wanted = compute_sha256(path), str(card.base.get(f"{part}_sha256"))
        if actual != wanted:
            expected = f"{wanted[:12]}, on which the graft was made"
            raise GraftError("base-other", f"{path.name} has sha256 {actual[:12]}", expected=expected, where=path)
    return ExportSource(family, files, open_tokenizer(files.tokenizer), graft, *of_run)


def _require_passing_check(settings: CheckSettings) -> None:
    """Refuse what `check` says no to. Training data is no part of an export."""
    with open_check_subject(settings) as subject:
        raise_first_error(run_checks(subject, with_data=False).findings)
