"""The verbs `push` and `pull`: a graft or an export to a zip file or a hub repository, and from there.

What is sent and what is received is looked at whole, with its hashes; nothing that comes in is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.amounts import format_names
from voxgraft.errors import ConfigError, Finding, GraftError, finding
from voxgraft.exchange_settings import PullSettings, PushSettings
from voxgraft.exporting.terms import ShareTerms
from voxgraft.files import atomic_write_folder, require_output_path
from voxgraft.results import Line
from voxgraft.run import RUN_FILE
from voxgraft.sharing import hub, zips
from voxgraft.sharing.contents import SharedFolder, inspect_shared_folder

__all__ = ["ShareResult", "pull", "push"]

ZIP_SUFFIX = ".zip"
MAX_FILES_NAMED = 8


@dataclass(frozen=True, slots=True)
class ShareResult:
    """What went where."""

    contents: SharedFolder
    place: str
    sent: bool
    findings: tuple[Finding, ...] = ()
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        found = self.contents
        return {
            "kind": found.kind,
            "language": found.language,
            "family": found.family,
            "bytes": found.num_bytes,
            "terms": found.terms.to_json() if found.terms else None,
            "place": self.place,
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        found = self.contents
        about = " ".join(
            filter(
                None, [found.kind, found.language and f"of {found.language}", found.family and f"for {found.family}"]
            )
        )
        lines: list[Line] = [
            f"{about}, {found.num_bytes / 1e6:,.1f} MB: {'sent to' if self.sent else 'in'} {self.place}"
        ]
        if not self.sent and found.kind == "graft":
            lines.append(f"speak with it: voxgraft speak TEXT --graft {self.place} --base BASE ({found.base})")
        if not self.sent and found.terms:
            lines += [line for line in found.terms.lines()[2:] if line]
        return [*lines, *(text for item in self.findings for text in item.lines())]


def push(settings: PushSettings) -> ShareResult:
    """Send a folder. To a hub only with stated terms; a zip file stays where it is, and is only warned about."""
    to = settings.to
    if not to.endswith(ZIP_SUFFIX) and not hub.is_hub_repository(to):
        raise ConfigError(
            "hub-name", f"{to!r:.80} is neither a zip file nor a repository", expected="NAME.zip or OWNER/NAME"
        )
    if to.endswith(ZIP_SUFFIX):
        require_output_path(Path(to), overwrite=settings.overwrite)
    found = inspect_shared_folder(settings.folder)
    findings = tuple((found.terms or ShareTerms("", False, None, None)).findings())
    others = tuple(_unlisted_file_findings(found, settings.folder, "are no part of it and were not sent"))
    if to.endswith(ZIP_SUFFIX):
        zips.pack_zip(settings.folder, Path(to), overwrite=settings.overwrite, leave_out=found.others)
        return ShareResult(found, to, True, (*findings, *others))
    if findings:
        told = findings[0]
        raise GraftError("push-terms", told.found, where=settings.folder)
    place = hub.upload_to_hub(settings.folder, to, private=settings.private, leave_out=found.others)
    return ShareResult(found, place, True, others)


def pull(settings: PullSettings) -> ShareResult:
    """Fetch a folder and look at it; what is not whole is not kept."""
    source = settings.source
    is_zip = source.endswith(ZIP_SUFFIX)
    if not is_zip and not hub.is_hub_repository(source):
        raise ConfigError(
            "hub-name", f"{source!r:.80} is neither a zip file nor a repository", expected="NAME.zip or OWNER/NAME"
        )
    folder = settings.folder or Path(Path(source).name.removesuffix(ZIP_SUFFIX))
    require_output_path(folder)
    with atomic_write_folder(folder) as new:
        inside = new / "inside"
        if is_zip:
            zips.unpack_zip(Path(source), inside)
        else:
            hub.download_from_hub(source, inside, settings.revision)
        _require_plain_files(inside)
        found = inspect_shared_folder(inside)
        _require_no_run_file(inside)
        _remove_unlisted_files(inside, found.others)
        for path in list(inside.iterdir()):
            path.rename(new / path.name)
        inside.rmdir()
    findings = [*(found.terms.findings() if found.terms else ()), *_program_findings(found, folder)]
    findings += _unlisted_file_findings(found, folder, "are no part of it and were not kept")
    return ShareResult(found, str(folder), False, tuple(findings))


def _require_plain_files(inside: Path) -> None:
    """A link in what came from outside can lead anywhere on this machine."""
    for path in inside.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            found = f"{path.relative_to(inside).as_posix()!r:.80} is a link or a device"
            raise GraftError("share-broken", found, expected="files and folders alone")


def _remove_unlisted_files(inside: Path, names: Sequence[str]) -> None:
    """Remove files that the card does not name, and folders that are empty then."""
    for name in names:
        (inside / name).unlink()
    for path in sorted((path for path in inside.rglob("*") if path.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()


def _unlisted_file_findings(found: SharedFolder, folder: Path, what: str) -> list[Finding]:
    if not found.others:
        return []
    named = format_names([f"{name!r:.80}" for name in found.others], MAX_FILES_NAMED)
    return [finding("share-other-files", f"{len(found.others):,} files {what}: {named}", where=folder)]


def _require_no_run_file(inside: Path) -> None:
    """The settings of a run can name programs and files of this machine, and nobody else's are to be followed here."""
    for path in inside.rglob("*"):
        if path.name.lower() == RUN_FILE:
            found = f"{path.relative_to(inside)} is no part of a graft or an export"
            raise GraftError("share-broken", found, expected="no settings of a run")


def _program_findings(found: SharedFolder, folder: Path) -> list[Finding]:
    """Hashes tell of damage on the way, and nothing of whoever wrote both the file and the card."""
    if not found.programs:
        return []
    named = format_names(found.programs, MAX_FILES_NAMED)
    return [finding("share-program", f"programs are among the files: {named}", where=folder)]
