"""What is exported: the graft of a run or one by itself, the base that it belongs to, and what merged training left.

Nothing is exported that does not pass `check`, and nothing that was made on another base.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import CheckSettings, ExportSettings
from voxgraft.config.run import RunSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, Finding, GraftError, VoxgraftError, finding, raise_first_error
from voxgraft.core.files import (
    compute_sha256,
    is_encodable_text,
    is_file,
    is_folder,
    read_json,
    require_file,
    require_folder,
)
from voxgraft.core.journal import RunJournal
from voxgraft.core.languages import find_exemplar
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import resolve_text_files
from voxgraft.evaluation.judge import WHO_AFTER, WHO_BEFORE
from voxgraft.evaluation.report import SCORES_NAME, read_scores
from voxgraft.graft.folder import ADAPTER_NAME, GRAFT_CARD_NAME, MERGED_FOLDER_NAME, Graft, load_graft, read_merged_card
from voxgraft.inspect.check import run_checks
from voxgraft.inspect.subject import open_check_subject
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, ExportInfo, Family
from voxgraft.synthesis.engine import detect_trained_output
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer


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
    path = require_folder(settings.model)
    run = RunFolder(path)
    if is_file(run.settings):
        return _open_run_source(run, settings)
    if is_file(path / GRAFT_CARD_NAME):
        graft = load_graft(path)
        source = _build_source(settings.base or Path(graft.card.family), settings.family or graft.card.family, path)
        given = {"base": source.files.folder, "tokenizer": {"file": graft.tokenizer.path}}
        given |= {"family": source.family.name, "language": graft.card.language}
        _require_passing_check(parse_settings(CheckSettings, given, path))
        return source
    found = f"{path.name} holds neither run.yaml nor {GRAFT_CARD_NAME}"
    raise GraftError("export-subject", found, expected="the folder of a run or of a graft", where=path)


def _open_run_source(run: RunFolder, settings: ExportSettings) -> ExportSource:
    values = read_settings_values(RunSettings, run.settings)
    if settings.base is not None:
        values["base"] = resolve_base_folder(settings.base)
    own = parse_settings(RunSettings, values, run.settings)
    _require_passing_check(parse_settings(CheckSettings, {**values, "run": run.path}, run.settings))
    which = detect_trained_output(run, RunJournal(run.journal).read())
    if which == "masked-finetune":
        found = "the last training was the masked-finetune baseline, whose rows and body are not the base's"
        raise GraftError("export-seeds", found, where=run.path)
    merged = read_merged_card(run.path / MERGED_FOLDER_NAME) if which == "merged" else None
    source = _build_source(own.base, settings.family or own.family, run.graft)
    return replace(source, run=run, texts=resolve_text_files(own, run.path), merged=merged)


def _build_source(base: Path | None, name: str | None, place: Path) -> ExportSource:
    """The graft in a folder with the base that it was made on; an error for any other base."""
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
    for part, path in (("checkpoint", files.checkpoint), ("tokenizer", files.tokenizer)):
        actual, wanted = compute_sha256(path), str(card.base.get(f"{part}_sha256"))
        if actual != wanted:
            expected = f"{wanted[:12]}, on which the graft was made"
            raise GraftError("base-other", f"{path.name} has sha256 {actual[:12]}", expected=expected, where=path)
    return ExportSource(family, files, open_tokenizer(files.tokenizer), graft)


def _require_passing_check(settings: CheckSettings) -> None:
    """Refuse what `check` says no to. Training data is no part of an export."""
    with open_check_subject(settings) as subject:
        raise_first_error(run_checks(subject, with_data=False).findings)


TERMS_NAME = "terms.json"
TERMS_FORMAT = "voxgraft-terms-1"
NOT_STATED = "not stated"
# Words that such terms often have, after their flags.
TERM_EXAMPLES = {"--data-licence": " 'CC BY 4.0'", "--consent": " 'all speakers have agreed in writing'"}
MAX_TERM_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """What was said; None where nothing was."""

    base: str
    """What the base's licence asks of whoever shares what was made of it."""
    accepted: bool
    """Whether whoever exports has said that they pass it on."""
    data_licence: str | None
    consent: str | None

    @property
    def missing_flags(self) -> list[str]:
        """Flags that would state what is not stated."""
        flags = {"--data-licence": self.data_licence, "--consent": self.consent, "--accept-terms": self.accepted}
        return [flag for flag, value in flags.items() if not value]

    def findings(self, export: str = "voxgraft export ...") -> list[Finding]:
        """What is not stated; `export` is the command that made it, to be given once more with the rest."""
        if not self.missing_flags:
            return []
        missing = " ".join(f"{flag}{TERM_EXAMPLES.get(flag, '')}" for flag in self.missing_flags)
        cure = f"with your own words in quotes, once more: {export} --overwrite {missing}"
        return [finding("terms-not-stated", "the export does not say under which terms it may be shared", cure=cure)]

    def to_json(self) -> dict[str, Any]:
        return {"format": TERMS_FORMAT, **asdict(self)}

    def lines(self) -> list[str]:
        """For a README."""
        accepted = "accepted and passed on" if self.accepted else "**not stated that they are passed on**"
        return [
            "## Terms",
            "",
            f"- Of the base, {accepted}: {self.base}",
            f"- Licence of the recordings and texts: {self.data_licence or f'**{NOT_STATED}**'}",
            f"- Consent of the speakers: {self.consent or f'**{NOT_STATED}**'}",
            *([] if not self.missing_flags else ["", "What is not stated must be found out before this is shared."]),
        ]


def resolve_terms(settings: ExportSettings, licence: str) -> ShareTerms:
    """What the flags say; what they leave open is asked, if somebody is there."""
    data_licence = settings.data_licence or progress.ask_user(
        ["Terms go into the card of the export; an empty answer leaves one open."],
        "Under which licence are the recordings and texts that it was trained on?",
    )
    consent = settings.consent or progress.ask_user(
        [], "How have the speakers consented to a voice model of their speech?"
    )
    accepted = settings.accept_terms or progress.confirm_with_user([licence], "Do you pass these terms of the base on?")
    return ShareTerms(licence, bool(accepted), data_licence or None, consent or None)


def read_terms(folder: Path) -> ShareTerms | None:
    """The terms in a folder; None where there are none."""
    path = folder / TERMS_NAME
    if not is_file(path):
        return None
    value = read_json(require_file(path))
    texts = {key: value.get(key) for key in ("base", "data_licence", "consent")} if isinstance(value, dict) else {}
    sound = all(
        text is None or (is_encodable_text(text) and len(text) <= MAX_TERM_CHARACTERS) for text in texts.values()
    )
    if not texts or value.get("format") != TERMS_FORMAT or not sound:
        raise GraftError("terms-broken", f"{TERMS_NAME} is not in the format {TERMS_FORMAT!r}", where=path)
    return ShareTerms(texts["base"] or "", value.get("accepted") is True, texts["data_licence"], texts["consent"])


COST_MEASURES = {"phone_error": "phone error", "cer": "letter error", "speech_loss": "speech loss"}


@dataclass(frozen=True, slots=True)
class LanguageCost:
    """One language before and after, and who measured it."""

    language: str
    measure: str
    before: float | None
    after: float
    source: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def collect_language_costs(source: ExportSource) -> list[LanguageCost]:
    """All that was measured of the merged checkpoint that is exported."""
    if source.merged is None or source.run is None:
        return []
    card, costs = source.merged, []
    first = card.get("speech_losses_before") or {}
    for point in card.get("points") or []:
        for language, loss in (
            (point.get("speech_losses") or {}).items() if point.get("share") == card.get("share") else ()
        ):
            cost = (str(language), "speech loss", first.get(language), float(loss), "held out in training")
            costs.append(LanguageCost(*cost))
    folder = source.run.eval
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not is_file(place / SCORES_NAME):
            continue
        try:
            scores = read_scores(place / SCORES_NAME)
        except VoxgraftError:  # of another version, or half of one: it says nothing then
            continue
        # A step alone would not do: merging again with another share leaves another checkpoint of the same step.
        same = scores.about.get("checkpoint_sha256") == str(card["checkpoint_sha256"])
        if scores.about.get("mode") != "merged" or not same:
            continue
        for language in dict.fromkeys(language for language, _ in scores.scores):
            before, after = (scores.scores.get((language, who), {}) for who in (WHO_BEFORE, WHO_AFTER))
            for key, title in COST_MEASURES.items():
                if key in after and (value := after[key].value) is not None:
                    was = before[key].value if key in before else None
                    costs.append(LanguageCost(language, title, was, value, f"evaluation {place.name}"))
    return costs


EXPORT_FORMAT = "voxgraft-export-1"
EXPORT_CARD_NAME, EXPORT_README_NAME, LOADER_NAME = "export.json", "README.md", "load.py"
# Files without a hash in the card: itself, the page, which people and hubs edit, and what a hub adds of its own.
UNHASHED_FILES = (EXPORT_CARD_NAME, EXPORT_README_NAME, ".gitattributes")
