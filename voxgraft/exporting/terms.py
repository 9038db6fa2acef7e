"""Under which terms an export may be shared: what the base passes on, the data's licence, and the speakers' consent.

Nobody but the person who exports can know the last two, so they are asked for, and never made up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voxgraft import asking
from voxgraft.errors import Finding, GraftError, finding
from voxgraft.exchange_settings import ExportSettings
from voxgraft.files import is_encodable_text, is_file, read_json, require_file

__all__ = ["TERMS_NAME", "ShareTerms", "read_terms", "resolve_terms"]

TERMS_NAME = "terms.json"
TERMS_FORMAT = "voxgraft-terms-1"
NOT_STATED = "not stated"
TERM_EXAMPLES = {"--data-licence": " 'CC BY 4.0'", "--consent": " 'all speakers have agreed in writing'"}
"""Words that such terms often have, after their flags."""
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
    data_licence = settings.data_licence or asking.ask_user(
        ["Terms go into the card of the export; an empty answer leaves one open."],
        "Under which licence are the recordings and texts that it was trained on?",
    )
    consent = settings.consent or asking.ask_user(
        [], "How have the speakers consented to a voice model of their speech?"
    )
    accepted = settings.accept_terms or asking.confirm_with_user([licence], "Do you pass these terms of the base on?")
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
