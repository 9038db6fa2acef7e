"""The commands `push`, `pull` and `download`: grafts and exports as zip files or hub repositories, and published bases.

What comes from outside is untrusted: names, links, sizes and hashes are checked before anything is kept. An interrupted
download of a base is continued.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from voxgraft.config.commands import DownloadSettings, PullSettings, PushSettings
from voxgraft.config.run import LANGUAGE_PATTERN
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, finding
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import (
    CHUNK_BYTES,
    atomic_write,
    atomic_write_folder,
    build_write_error,
    compute_sha256,
    format_error_reason,
    free_disk_bytes,
    is_encodable_text,
    is_file,
    is_folder,
    read_bytes,
    read_json,
    require_disk_space,
    require_file,
    require_folder,
    require_output_path,
    write_json,
)
from voxgraft.core.results import Line, Table, format_bytes, format_names, style_line
from voxgraft.core.run import RUN_FILE
from voxgraft.graft.folder import (
    ADAPTER_NAME,
    GRAFT_CARD_NAME,
    PRONUNCIATIONS_NAME,
    README_NAME,
    ROWS_NAME,
    load_graft,
)
from voxgraft.models import family_names, get_family

EXPORT_FORMAT = "voxgraft-export-1"
EXPORT_CARD_NAME, EXPORT_README_NAME, LOADER_NAME = "export.json", "README.md", "load.py"
# Not hashed in the card: the card itself, the page, which people and hubs edit, and what a hub adds on its own.
UNHASHED_FILES = (EXPORT_CARD_NAME, EXPORT_README_NAME, ".gitattributes")
TERMS_NAME = "terms.json"
TERMS_FORMAT = "voxgraft-terms-1"
NOT_STATED = "not stated"
# Words that such terms often have, after their flags.
TERM_EXAMPLES = {"--data-licence": " 'CC BY 4.0'", "--consent": " 'all speakers have agreed in writing'"}
MAX_TERM_CHARACTERS = 2000
EMPTY_SHA256 = hashlib.sha256().hexdigest()
"""`compute_sha256` refuses empty files."""
ADAPTER_CARD = "adapter_config.json"
# What `voxgraft export --to peft` writes.
ADAPTER_FILES = (ADAPTER_CARD, "adapter_model.safetensors", ROWS_NAME, "tokenizer.json", "bpe.model")
TOKENIZER_ENDINGS = (".json", ".model")
# In the base folder while files are fetched; an interrupted download resumes from what is in it.
PARTIAL_FOLDER_NAME = ".download"
DOWNLOAD_SLACK_BYTES = 256 << 20
# A hub keeps larger files outside git, and states their SHA-256.
MAX_GIT_FILE_BYTES = 256 << 20
DOWNLOAD_CARD_NAME = "download.json"
DOWNLOAD_FORMAT = "voxgraft-download-1"
ZIP_SUFFIX = ".zip"
MAX_FILES_NAMED = 8
# Text for people, and what a hub adds on its own.
DOCUMENT_NAMES = (README_NAME, TERMS_NAME, "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", ".gitattributes")


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """What was stated; None where nothing was."""

    base: str
    """What the base's licence asks of whoever shares what was made of it."""
    accepted: bool
    """Whether whoever exports has said that they pass it on."""
    data_licence: str | None
    consent: str | None

    @property
    def missing_flags(self) -> list[str]:
        """Flags that would state what is missing."""
        flags = {"--data-licence": self.data_licence, "--consent": self.consent, "--accept-terms": self.accepted}
        return [flag for flag, value in flags.items() if not value]

    def findings(self, export: str = "voxgraft export ...") -> list[Finding]:
        """What is not stated; `export` is the command that made it, to be given once more with the rest."""
        if not self.missing_flags:
            return []
        missing = " ".join(f"{flag}{TERM_EXAMPLES.get(flag, '')}" for flag in self.missing_flags)
        cure = f"export again, with your own text in quotes: {export} --overwrite {missing}"
        return [finding("terms-not-stated", "the export does not state its terms", cure=cure)]

    def to_json(self) -> dict[str, Any]:
        return {"format": TERMS_FORMAT, **asdict(self)}

    def lines(self) -> list[str]:
        """For a README."""
        accepted = "accepted; they also apply to this folder" if self.accepted else "**not accepted**"
        return [
            "## Terms",
            "",
            f"- Terms of the base ({accepted}): {self.base}",
            f"- Licence of the recordings and texts: {self.data_licence or f'**{NOT_STATED}**'}",
            f"- Consent of the speakers: {self.consent or f'**{NOT_STATED}**'}",
            *([] if not self.missing_flags else ["", "Clarify what is not stated before you share this."]),
        ]


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


def confirm_base_licence(family: str, licence: str, question: str, *, accepted: bool) -> bool:
    """Whether the user accepts the licence of a base: by flag, or asked in a terminal.

    An error if a licence was not accepted that allows non-commercial use only.
    """
    agreed = accepted or bool(progress.confirm_with_user([licence], question))
    if not agreed and FAMILIES[family].non_commercial:
        found = f"the licence of {FAMILIES[family].title} was not accepted: {licence}"
        raise ConfigError("licence-not-accepted", found)
    return agreed


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """What was found in a folder; after `push` and `pull` also where it went, which is their result."""

    kind: str
    """graft, export or adapter."""
    language: str
    family: str
    terms: ShareTerms | None
    num_bytes: int
    base: str = ""
    """What it has to be used with, in words."""
    programs: tuple[str, ...] = ()
    """Files that run when somebody uses it."""
    others: tuple[str, ...] = ()
    """Files that lie in the folder and are no part of it. Nothing says what they are, so they are not shared."""
    place: str = ""
    is_sent: bool = False
    findings: tuple[Finding, ...] = ()
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "language": self.language,
            "family": self.family,
            "bytes": self.num_bytes,
            "terms": self.terms.to_json() if self.terms else None,
            "place": self.place,
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        about = self.kind + (f" of {self.language}" if self.language else "")
        about += f" for {self.family}" if self.family else ""
        where = f"{'written to' if self.is_sent else 'in'} {self.place}"
        lines: list[Line] = [f"{about}, {self.num_bytes / 1e6:,.1f} MB: {where}"]
        if not self.is_sent and self.kind == "graft":
            lines.append(f"speak with it: voxgraft speak TEXT --graft {self.place} --base BASE ({self.base})")
        if not self.is_sent and self.terms:
            lines += [line for line in self.terms.lines()[2:] if line]
        return [*lines, *(text for item in self.findings for text in item.lines())]


def inspect_shared_folder(folder: Path) -> SharedFolder:
    """The folder's contents, checked; an error if it is neither graft, export nor adapter, or not whole."""
    require_folder(folder)
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    size = sum(path.stat().st_size for path in files.values())
    terms = read_terms(folder)
    if is_file(folder / GRAFT_CARD_NAME):
        card = load_graft(folder).card
        base = f"{card.base.get('checkpoint')} with sha256 {str(card.base.get('checkpoint_sha256'))[:12]}"
        unexpected = [name for name in card.adapter or () if name not in ADAPTER_FILES]
        unexpected += [card.tokenizer] if Path(card.tokenizer).suffix not in TOKENIZER_ENDINGS else []
        if unexpected:
            found = f"{GRAFT_CARD_NAME} lists {unexpected[0]!r:.80}, which does not belong to a graft"
            raise GraftError("share-broken", found, expected=", ".join(ADAPTER_FILES), where=folder)
        named = {GRAFT_CARD_NAME, ROWS_NAME, PRONUNCIATIONS_NAME, card.tokenizer}
        named |= {f"{ADAPTER_NAME}/{name}" for name in card.adapter or ()}
        others = _unlisted_files(files, named)
        size -= sum(files[name].stat().st_size for name in others)
        return SharedFolder("graft", card.language, card.family, terms, size, base, others=others)
    if is_file(folder / EXPORT_CARD_NAME):
        language, family = _verify_export(folder, files)
        programs = tuple(path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.py")))
        return SharedFolder("export", language, family, terms, size, programs=programs)
    if is_file(folder / ADAPTER_CARD):
        from voxgraft.nn.adapter import read_peft_folder  # needs torch, which takes seconds

        read_peft_folder(folder)
        others = _unlisted_files(files, ADAPTER_FILES)
        size -= sum(files[name].stat().st_size for name in others)
        return SharedFolder("adapter", "", "", terms, size, others=others)
    found = f"{folder.name} has neither {GRAFT_CARD_NAME} nor {EXPORT_CARD_NAME}"
    raise GraftError("share-nothing", found, expected="a graft, or what `voxgraft export` wrote", where=folder)


def _unlisted_files(files: Iterable[str], named: Collection[str]) -> tuple[str, ...]:
    """Files that are neither named nor pages for people."""
    return tuple(sorted(name for name in files if name not in named and name not in DOCUMENT_NAMES))


def _verify_export(folder: Path, there: Mapping[str, Path]) -> tuple[str, str]:
    """Language and family of an export whose files are exactly those that its card names, byte for byte."""
    card = read_json(folder / EXPORT_CARD_NAME)
    if not isinstance(card, dict) or card.get("format") != EXPORT_FORMAT:
        raise GraftError("share-broken", f"{EXPORT_CARD_NAME} is not in the format {EXPORT_FORMAT!r}", where=folder)
    files, language, family = card.get("files"), card.get("language"), card.get("family")
    if not isinstance(language, str) or not re.fullmatch(LANGUAGE_PATTERN, language) or family not in family_names():
        found = f"{EXPORT_CARD_NAME} has the language {language!r:.40} and the family {family!r:.40}"
        raise GraftError("share-broken", found, where=folder)
    if not isinstance(files, dict) or not files or not all(isinstance(digest, str) for digest in files.values()):
        raise GraftError("share-broken", f"{EXPORT_CARD_NAME} has no hashes of the files", where=folder)
    for name in sorted({*files, *there}.difference(UNHASHED_FILES)):
        digest, path = files.get(name), there.get(name)
        if path is None:
            raise GraftError("share-broken", f"{name!r:.80} does not exist", where=folder)
        if digest is None:
            found = f"{name!r:.80} exists, but {EXPORT_CARD_NAME} does not list it"
            raise GraftError("share-broken", found, where=folder)
        actual = compute_sha256(path) if path.stat().st_size else EMPTY_SHA256
        if actual != digest:
            expected = f"{digest[:12]}, as in {EXPORT_CARD_NAME}"
            raise GraftError("share-broken", f"{name!r:.80} has sha256 {actual[:12]}", expected=expected, where=folder)
    checkpoints = set()
    parts = card.get("checkpoints")
    for part, one in parts.items() if isinstance(parts, dict) else ():
        name = one.get("file") if isinstance(one, dict) else None
        checkpoints.add(str(name) if card.get("drop_in") else f"{part}/{name}")
    if not checkpoints or not checkpoints <= files.keys():
        raise GraftError("share-broken", f"{EXPORT_CARD_NAME} lists no checkpoint with a hash", where=folder)
    return language, str(family)


# The earliest date that a zip file can hold: equal folders give equal zip files.
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
# Files of numbers, which do not compress.
UNCOMPRESSED_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".npy", ".zip")
MAX_UNPACKED_BYTES = 64 << 30
MAX_ZIP_FILES = 20_000
# A text of a thousand equal letters shrinks to a hundredth; a bomb to a thousandth.
MAX_COMPRESSION_RATIO = 200
UNIX_SYSTEM, ENCRYPTED_FLAG = 3, 1
# What `pack_zip` writes; other methods are refused.
COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What zipfile raises for a damaged file. Errors of our own disk have become FileErrors before they get here.
ZIP_DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OverflowError,
    ValueError,
    OSError,
)


def pack_zip(folder: Path, path: Path, *, overwrite: bool = False, leave_out: Collection[str] = ()) -> int:
    """Write the folder's files as a zip file, whole or not at all; how many bytes it has."""
    files = sorted(
        file
        for file in require_folder(folder).rglob("*")
        if file.is_file() and file.relative_to(folder).as_posix() not in leave_out
    )
    total = sum(file.stat().st_size for file in files)
    with (
        atomic_write(path, overwrite=overwrite) as stream,
        progress.progress_task(f"packing {path.name}", total) as advance,
        zipfile.ZipFile(stream, "w", allowZip64=True) as archive,
    ):
        for file in files:
            name = file.relative_to(folder).as_posix()
            info = zipfile.ZipInfo(name, ZIP_EPOCH)
            info.create_system, info.external_attr = UNIX_SYSTEM, 0o644 << 16
            info.compress_type = zipfile.ZIP_STORED if file.suffix in UNCOMPRESSED_SUFFIXES else zipfile.ZIP_DEFLATED
            # Stated before writing: zipfile then chooses ZIP64 for files over 4 GB.
            info.file_size = file.stat().st_size
            with file.open("rb") as source, archive.open(info, "w") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    advance(len(chunk))
    return path.stat().st_size


def unpack_zip(path: Path, folder: Path) -> None:
    """Write the files of a zip file into a new folder, whole or not at all."""
    try:
        with zipfile.ZipFile(require_file(path)) as archive, atomic_write_folder(folder) as new:
            members = list(_check_zip_members(archive, path))
            with progress.progress_task(f"unpacking {path.name}", sum(info.file_size for info in members)) as advance:
                for info in members:
                    target, left = new / info.filename, info.file_size
                    target.parent.mkdir(parents=True, exist_ok=True)
                    # The sizes in the directory were checked; the data itself must not be longer than they say.
                    with archive.open(info) as source, target.open("wb") as stream:
                        while chunk := source.read(CHUNK_BYTES):
                            left -= len(chunk)
                            if left < 0:
                                raise _zip_error(path, f"{info.filename!r:.80} is longer than stated")
                            stream.write(chunk)
                    if left:
                        raise _zip_error(path, f"{info.filename!r:.80} is shorter than stated")
                    advance(info.file_size)
    except ZIP_DAMAGE_ERRORS as error:
        raise _zip_error(path, format_error_reason(error)) from None


def _check_zip_members(archive: zipfile.ZipFile, path: Path) -> Iterator[zipfile.ZipInfo]:
    """The files in it; an error for a name that leads out, a link, a file named twice, or sizes that are absurd."""
    # All names and sizes are checked before the first byte is written.
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > MAX_ZIP_FILES or sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES:
        raise _zip_error(path, f"{len(infos):,} files that expand to {sum(info.file_size for info in infos):,} bytes")
    seen: set[str] = set()
    for info in infos:
        parts = PurePosixPath(info.filename)
        if parts.is_absolute() or ".." in parts.parts or "\\" in info.filename or not parts.name:
            raise _zip_error(path, f"the name {info.filename!r:.80} is outside the folder")
        if not info.filename.isprintable() or info.filename != str(parts):
            raise _zip_error(path, f"the name {info.filename!r:.80} is not one that voxgraft writes")
        if info.compress_type not in COMPRESSION_METHODS or info.flag_bits & ENCRYPTED_FLAG:
            raise _zip_error(path, f"{info.filename!r:.80} uses a compression that voxgraft does not write")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _zip_error(path, f"{info.filename!r:.80} is a link")
        if (same := normalize_file_name(info.filename)) in seen:
            raise _zip_error(path, f"{info.filename!r:.80} appears twice, or differs from another only in case")
        if info.file_size > CHUNK_BYTES and info.file_size > MAX_COMPRESSION_RATIO * max(info.compress_size, 1):
            raise _zip_error(path, f"{info.filename!r:.80} expands {info.compress_size:,} bytes to {info.file_size:,}")
        seen.add(same)
        yield info


def normalize_file_name(name: str) -> str:
    """Equal for names that are one file on some systems: those that differ in case, or in how accents are written."""
    return unicodedata.normalize("NFC", name).casefold()


def _zip_error(path: Path, found: str) -> FileError:
    return FileError("zip-broken", f"{path.name}: {found}", where=path)


# OWNER/NAME, or hub:OWNER/NAME.
_REPOSITORY = re.compile(r"(?:hub:)?([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})")


def parse_hub_repository(text: str) -> str:
    """OWNER/NAME."""
    found = _REPOSITORY.fullmatch(text)
    if found is None:
        raise ConfigError("hub-name", f"{text!r:.80} is not the name of a repository", expected="OWNER/NAME")
    return found[1]


def download_from_hub(repository: str, folder: Path, revision: str | None) -> None:
    """Download a repository into a folder."""
    seen: dict[str, str] = {}
    for name in list_hub_files(
        repository, revision
    ):  # names that lead out of it are refused before anything is written
        if (other := seen.setdefault(normalize_file_name(name), name)) != name:
            found = f"{repository} lists {other!r:.80} and {name!r:.80}, which are the same file on some systems"
            raise FileError(
                "hub-refused", found, cure="inform the owners of the repository, and download nothing from it."
            )
    with _hub_client("fetch", repository) as hub:
        hub.snapshot_download(parse_hub_repository(repository), revision=revision, local_dir=folder)
    # huggingface_hub leaves its notes on the download there.
    cache = folder / ".cache"
    if cache.is_dir():
        shutil.rmtree(cache)


def list_hub_files(repository: str, revision: str | None = None) -> dict[str, tuple[int, str | None, str | None]]:
    """The files of a repository by name: bytes, SHA-256 (of large files) and git id (of small ones)."""
    with _hub_client("list the files of", repository) as hub:
        info = hub.HfApi().model_info(parse_hub_repository(repository), revision=revision, files_metadata=True)
    files = {}
    for one in info.siblings or []:
        name = PurePosixPath(one.rfilename)
        if name.is_absolute() or ".." in name.parts or "\\" in one.rfilename:
            found = f"{repository} lists a file {one.rfilename!r:.80}, which is outside the repository"
            raise FileError(
                "hub-refused", found, cure="inform the owners of the repository, and download nothing from it."
            )
        git_id = None if one.lfs else one.blob_id
        files[one.rfilename] = (int(one.size or 0), getattr(one.lfs, "sha256", None), git_id)
    return files


def download_hub_file(repository: str, name: str, folder: Path) -> Path:
    """One file into a folder, under its own name; what was fetched of it before is not fetched again."""
    with _hub_client("fetch", f"{repository} {name}") as hub:
        return Path(hub.hf_hub_download(parse_hub_repository(repository), name, local_dir=folder))


@contextmanager
def _hub_client(doing: str, what: str) -> Iterator[Any]:
    try:
        hub = import_module("huggingface_hub")
        errors = import_module("huggingface_hub.errors")
    except ModuleNotFoundError:
        raise FileError("hub-missing", f"cannot {doing} {what}: huggingface_hub is not installed") from None
    # Its HTTP library changes with its version; the bases of its own error are those of that library.
    network: tuple[type[BaseException], ...] = (OSError, *errors.HfHubHTTPError.__bases__)
    refusals = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.GatedRepoError)
    try:
        yield hub
    except (*refusals, errors.HfHubHTTPError, errors.HFValidationError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        code = "hub-refused" if status is None or status < 500 else "hub-unreachable"
        raise FileError(code, f"cannot {doing} {what}: {format_error_reason(error)}") from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, *network) as error:
        if isinstance(error, OSError) and error.filename is not None:  # of our own disk, and not of the network
            raise build_write_error(error, Path(str(error.filename))) from None
        raise FileError("hub-unreachable", f"cannot {doing} {what}: {format_error_reason(error)}") from None


def push(settings: PushSettings) -> SharedFolder:
    """Send a folder. To a hub only with stated terms; a zip file stays where it is, and is only warned about.

    Of a non-commercial base, nothing is sent anywhere before its licence was accepted.
    """
    to = settings.to
    if not to.endswith(ZIP_SUFFIX) and not _REPOSITORY.fullmatch(to):
        raise ConfigError(
            "hub-name", f"{to!r:.80} is neither a zip file nor a repository", expected="NAME.zip or OWNER/NAME"
        )
    if to.endswith(ZIP_SUFFIX):
        require_output_path(Path(to), overwrite=settings.overwrite)
    found = inspect_shared_folder(settings.folder)
    findings = tuple((found.terms or ShareTerms("", False, None, None)).findings())
    others = tuple(_unlisted_file_findings(found, settings.folder, "do not belong to it and were not sent"))
    facts = FAMILIES.get(found.family)
    if facts is not None and facts.non_commercial and (found.terms is None or not found.terms.accepted):
        message = f"the licence of {facts.title} (non-commercial use only) was not accepted for this folder"
        raise GraftError("push-terms", message, where=settings.folder)
    if to.endswith(ZIP_SUFFIX):
        pack_zip(settings.folder, Path(to), overwrite=settings.overwrite, leave_out=found.others)
        return replace(found, place=to, is_sent=True, findings=(*findings, *others))
    if findings:
        raise GraftError("push-terms", findings[0].found, where=settings.folder)
    with _hub_client("send to", to) as hub:
        api, repository = hub.HfApi(), parse_hub_repository(to)
        api.create_repo(repository, private=settings.private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=settings.folder,
            commit_message="voxgraft push",
            ignore_patterns=[glob.escape(name) for name in sorted(found.others)],
        )
    return replace(found, place=str(getattr(done, "commit_url", done)), is_sent=True, findings=others)


def pull(settings: PullSettings) -> SharedFolder:
    """Fetch a folder and look at it; what is not whole is not kept."""
    source = settings.source
    is_zip = source.endswith(ZIP_SUFFIX)
    if not is_zip and not _REPOSITORY.fullmatch(source):
        raise ConfigError(
            "hub-name", f"{source!r:.80} is neither a zip file nor a repository", expected="NAME.zip or OWNER/NAME"
        )
    folder = settings.folder or Path(Path(source).name.removesuffix(ZIP_SUFFIX))
    require_output_path(folder)
    with atomic_write_folder(folder) as new:
        # Below a folder of its own, so that nothing in it can collide with the folder that is being made.
        inside = new / "inside"
        if is_zip:
            unpack_zip(Path(source), inside)
        else:
            download_from_hub(source, inside, settings.revision)
        require_plain_files(inside)
        found = inspect_shared_folder(inside)
        for path in inside.rglob("*"):
            # The settings of a run can name programs and files of this machine; nobody else's are followed here.
            if path.name.lower() == RUN_FILE:
                named = f"{path.relative_to(inside)} contains settings of a run"
                raise GraftError("share-broken", named, expected="only files of a graft or an export")
        for name in found.others:
            (inside / name).unlink()
        for path in sorted((path for path in inside.rglob("*") if path.is_dir()), reverse=True):
            if not any(path.iterdir()):
                path.rmdir()
        for path in list(inside.iterdir()):
            path.rename(new / path.name)
        inside.rmdir()
    findings = found.terms.findings() if found.terms else []
    if found.programs:  # hashes show damage in transit, and nothing of whoever wrote both the file and the card
        named = format_names(found.programs, MAX_FILES_NAMED)
        findings.append(finding("share-program", f"the files include programs: {named}", where=folder))
    findings += _unlisted_file_findings(found, folder, "do not belong to it and were not kept")
    return replace(found, place=str(folder), findings=tuple(findings))


def require_plain_files(folder: Path) -> None:
    """A link in what came from outside can lead anywhere on this machine."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            found = f"{path.relative_to(folder).as_posix()!r:.80} is a link or a device"
            raise GraftError("share-broken", found, expected="only files and folders")


def _unlisted_file_findings(found: SharedFolder, folder: Path, what: str) -> list[Finding]:
    if not found.others:
        return []
    named = format_names([f"{name!r:.80}" for name in found.others], MAX_FILES_NAMED)
    return [finding("share-other-files", f"{len(found.others):,} files {what}: {named}", where=folder)]


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """What the base is made of, and whether it exists."""

    base: Mapping[str, str]
    """Title, family and licence."""
    folder: Path
    files: list[dict[str, Any]]
    """Each with repository, name, place, bytes, sha256, there and what."""
    free_bytes: int | None
    problem: Finding | None = None
    listed: bool = False

    @property
    def exit_code(self) -> int:
        return 1 if self.problem and not all(one["there"] for one in self.files) else 0

    def to_json(self) -> dict[str, Any]:
        return {
            **self.base,
            "folder": str(self.folder),
            "free_bytes": self.free_bytes,
            "files": self.files,
            "problem": self.problem.to_json() if self.problem else None,
        }

    def lines(self) -> list[Line]:
        rows = []
        for one in self.files:
            there = "there" if one["there"] else "missing"
            rows.append((one["place"], format_bytes(one["bytes"]), there, one["repository"], one["what"]))
        lines: list[Line] = [style_line((self.base["title"], "bold")), f"licence: {self.base['licence']}"]
        lines.append(Table(("file in the folder", "size", "", "from", "what"), tuple(rows)))
        free = f"; {format_bytes(self.free_bytes)} free" if self.free_bytes is not None else ""
        lines.append(f"{format_bytes(sum(one['bytes'] for one in self.files))} in total{free}")
        if self.problem is not None:
            missing = [one for one in self.files if not one["there"]]
            lines += self.problem.lines()
            if not missing:
                return [*lines, f"all files exist; their hashes were not checked: {self.folder}"]
            these = "this file" if len(missing) == 1 else f"these {len(missing)} files"
            lines.append(f"Put {these} into {self.folder} by hand, under the names above:")
            for one in missing:
                lines.append(f"  https://huggingface.co/{one['repository']}  {one['name']}  ->  {one['place']}")
            return lines
        done = (
            "nothing was downloaded; target folder"
            if self.listed
            else "all files exist, with the hashes in download.json"
        )
        return [*lines, f"{done}: {self.folder}"]


def download(settings: DownloadSettings) -> DownloadResult:
    """Fetch a base, or say what it is made of."""
    family, facts = next(
        (entry.name, entry.downloads[settings.name]) for entry in FAMILIES.values() if settings.name in entry.downloads
    )
    base = {"title": str(facts["title"]), "family": family, "licence": str(facts["licence"])}
    folder = settings.folder or Path("models") / settings.name
    if (taken := next((path for path in (folder, *folder.parents) if is_file(path)), None)) is not None:
        found = f"{taken} is a file, but the base needs a folder"
        cure = f"give a folder that is new or empty: `voxgraft download {settings.name} FOLDER`."
        raise FileError("not-a-file", found, expected="a folder", where=taken, cure=cure)
    free = free_disk_bytes(folder)
    files = [
        {"repository": facts["repository"], **file, "place": file.get("prefix", "") + file["name"]}
        for file in facts["files"]
        if file.get("needed", True) or settings.optional
    ]
    # The built-in list, for use without a network: its sizes are about right.
    planned = []
    for file in files:
        path = folder / file["place"]
        is_present = is_file(path) or (is_folder(path) and any(path.iterdir()))
        planned.append(_describe_file(file, file["name"], file["place"], file["about_bytes"], there=is_present))
    if settings.list_only:
        return DownloadResult(base, folder, planned, free, listed=True)
    try:
        listings = {entry: list_hub_files(entry) for entry in dict.fromkeys(file["repository"] for file in files)}
    except FileError as error:
        if error.code not in ("hub-missing", "hub-unreachable"):
            raise
        first = "run `pip install huggingface_hub`"
        if error.code == "hub-unreachable":
            first = "check the network and the proxy (HTTPS_PROXY), then run the command again"
        problem = replace(error.finding, cure=f"{first}; or copy the files as listed below.")
        return DownloadResult(base, folder, planned, free, problem)
    # The files as the hub has them, folders file by file; with the git id of those that have no SHA-256 there.
    requested_files = []
    for file in files:
        listing, is_tree = listings[file["repository"]], file.get("is_folder", False)
        names = [name for name in listing if name.startswith(file["name"])] if is_tree else [file["name"]]
        if not names or any(name not in listing for name in names):
            found = f"{file['repository']} has no {file['name']}"
            raise FileError("download-missing", found, expected=file["what"])
        for name in names:
            num_bytes, sha256, git_id = listing[name]
            relative_path = file["place"] + name.removeprefix(file["name"]) if is_tree else file["place"]
            is_present = is_file(folder / relative_path) and (folder / relative_path).stat().st_size == num_bytes
            requested_files.append(
                (_describe_file(file, name, relative_path, num_bytes, sha256, there=is_present), git_id)
            )
    if FAMILIES[family].non_commercial and not all(entry["there"] for entry, _ in requested_files):
        confirm_base_licence(family, base["licence"], "Do you accept this licence?", accepted=settings.accept_terms)
    hashes = _download_missing_files(requested_files, folder)
    get_family(family).files(folder)  # raises if the folder is not a whole base now
    card = {"format": DOWNLOAD_FORMAT, "title": base["title"], "licence": base["licence"], "files": hashes}
    write_json(folder / DOWNLOAD_CARD_NAME, card, overwrite=True)
    described = [{**entry, "sha256": hashes[entry["place"]], "there": True} for entry, _ in requested_files]
    return DownloadResult(base, folder, described, free)


def _describe_file(
    file: Mapping[str, Any], name: str, place: str, num_bytes: int, sha256: str | None = None, *, there: bool
) -> dict[str, Any]:
    found = {"repository": file["repository"], "name": name, "place": place, "bytes": num_bytes, "sha256": sha256}
    return {**found, "there": there, "what": file["what"]}


def _download_missing_files(
    requested_files: Sequence[tuple[dict[str, Any], str | None]], folder: Path
) -> dict[str, str]:
    """Fetch what is missing; SHA-256 of all files by place."""
    total = sum(entry["bytes"] for entry, _ in requested_files if not entry["there"])
    require_disk_space(folder, total, "the download", slack=DOWNLOAD_SLACK_BYTES)
    hashes: dict[str, str] = {}
    with progress.progress_task("fetching", total) as advance:
        for entry, git_id in requested_files:
            target = folder / entry["place"]
            if entry["there"]:
                hashes[entry["place"]] = _verify_hash(entry, git_id, target)
                continue
            parts = folder / PARTIAL_FOLDER_NAME / entry["repository"].replace("/", "--")
            fetched = download_hub_file(entry["repository"], entry["name"], parts)
            # A file gets its name only after it was verified; a wrong one is removed, so that the next call fetches it.
            try:
                hashes[entry["place"]] = _verify_hash(entry, git_id, fetched)
            except FileError:
                fetched.unlink(missing_ok=True)
                raise
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(fetched, target)
            except OSError as error:
                raise build_write_error(error, target) from None
            advance(entry["bytes"])
    shutil.rmtree(folder / PARTIAL_FOLDER_NAME, ignore_errors=True)
    return hashes


def _verify_hash(entry: dict[str, Any], git_id: str | None, path: Path) -> str:
    actual = compute_sha256(path)
    expected_hash, found = entry["sha256"], actual
    if expected_hash is None and git_id is not None:
        # Git names a file by the SHA-1 of "blob SIZE\\0" and its bytes.
        data = read_bytes(path, MAX_GIT_FILE_BYTES)
        expected_hash, found = git_id, hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if expected_hash is not None and found != expected_hash:
        kind = "sha256" if entry["sha256"] else "git id"
        expected = f"{expected_hash[:12]}, as in {entry['repository']}"
        raise FileError("download-hash", f"{entry['place']} has {kind} {found[:12]}", expected=expected, where=path)
    return actual
