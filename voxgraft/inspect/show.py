"""The commands `show` (one base on one screen) and `doctor` (what this machine has, and what it can train and speak).

`show` reads headers, and values only for the fingerprint. `doctor` does not fail because something is missing: a
missing part is a line of its report. Its output names no user and no path outside the working folder, so that it can be
pasted into an issue. Neither writes anything.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from voxgraft.checkpoints import Checkpoint, open_checkpoint
from voxgraft.checkpoints.base import ALL_FLOAT_DTYPES, combine_digests, tensor_digests
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import DoctorSettings, ShowSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import CheckpointError, ConfigError, FileError, Finding, VoxgraftError, finding
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import is_file, is_folder, path_exists
from voxgraft.core.results import Line, SimpleResult, Table, format_bytes, format_names, pluralize, style_line
from voxgraft.core.run import RUN_FILE
from voxgraft.graft.rows import detect_checkpoint_family, text_table_findings
from voxgraft.models import (
    CheckpointScan,
    check_tensor_prefix,
    family_names,
    get_family,
    resolve_base_family,
    resolve_base_folder,
)
from voxgraft.models.base import BaseFiles, Family, ModelSize
from voxgraft.tokenizers import Tokenizer, open_tokenizer


@dataclass(frozen=True, slots=True)
class BaseReport:
    """Everything that looking at a base gives; exit 1 if something is wrong with it."""

    family: str
    place: Path
    release: str
    licence: str
    languages: tuple[str, ...]
    others: tuple[str, ...]
    """Checkpoints of other releases in the same folder."""
    checkpoint: str
    format: str
    parts: tuple[tuple[str, int, int], ...]
    """Name, tensors and values of each part of the model."""
    dtypes: dict[str, int]
    """Tensors by number format."""
    num_bytes: int
    num_aliases: int
    """Second names of tensors, which are not counted."""
    size: ModelSize | None
    """None where the tensors make no whole model; the findings say why."""
    text_rows: dict[str, int]
    spare_rows: int
    tokenizer: Tokenizer | None
    files: tuple[dict[str, Any], ...]
    """Files of the base: `name`, `what` it is, `needed_for` (nothing: optional), and whether it is `there`."""
    fingerprint: str | None
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        return 1 if any(item.level == "error" for item in self.findings) else 0

    def to_json(self) -> dict[str, Any]:
        size, tokenizer = self.size, self.tokenizer
        return {
            "family": self.family,
            "release": self.release,
            "licence": self.licence,
            "place": str(self.place),
            "checkpoint": {
                "file": self.checkpoint,
                "format": self.format,
                "tensors": sum(tensors for _, tensors, _ in self.parts),
                "values": sum(values for _, _, values in self.parts),
                "bytes": self.num_bytes,
                "dtypes": self.dtypes,
                "aliases": self.num_aliases,
            },
            "size": {"width": size.width, "layers": size.layers, "heads": size.heads} if size else None,
            "parts": [{"part": part, "tensors": tensors, "values": values} for part, tensors, values in self.parts],
            "text_rows": self.text_rows,
            "spare_rows": self.spare_rows,
            "tokenizer": {
                "file": tokenizer.path.name,
                "kind": tokenizer.kind,
                "pieces": tokenizer.size,
                "sha256": tokenizer.sha256,
            }
            if tokenizer
            else None,
            "languages": list(self.languages),
            "others": list(self.others),
            "files": list(self.files),
            "fingerprint": self.fingerprint,
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [style_line((f"{self.family}, {self.release}", "bold"), f": {self.place}")]
        total = ("all", sum(tensors for _, tensors, _ in self.parts), sum(values for _, _, values in self.parts))
        parts = (
            (part, f"{tensors:,}", f"{values:,}", f"{100 * values / max(total[2], 1):.1f} %")
            for part, tensors, values in (*self.parts, total)
        )
        lines.append(Table(("part", "tensors", "values", "share"), tuple(parts)))
        size = self.size
        line = f"size: width {size.width:,}, layers {size.layers}, heads {size.heads}; " if size else ""
        dtypes = ", ".join(f"{dtype} ({count:,} tensors)" for dtype, count in self.dtypes.items())
        aliases = f"; {self.num_aliases:,} aliases are skipped" if self.num_aliases else ""
        lines.append(f"{line}{dtypes}, {self.num_bytes:,} bytes, {self.format}{aliases}")
        rows = " or ".join(f"{count:,}" for count in sorted(set(self.text_rows.values()))) or "none"
        spare = f", of which {self.spare_rows} is a spare that no text uses" if self.spare_rows else ""
        lines.append(f"text rows: {rows}{spare}")
        if self.tokenizer is not None:
            kind, num_tokens = self.tokenizer.kind, f"{self.tokenizer.size:,} tokens"
            gaps = f" ({len(self.tokenizer.gaps)} ids without one)" if self.tokenizer.gaps else ""
            lines.append(f"tokenizer: {kind}, {num_tokens}{gaps}, sha256 {self.tokenizer.sha256}")
        lines.append(f"languages ({len(self.languages)}): {' '.join(self.languages)}")
        if self.others:
            lines.append(f"also in this folder: {', '.join(self.others)} (give the file itself to show it)")
        if self.fingerprint is not None:
            lines.append(f"fingerprint: {self.fingerprint}")
        lines.append(f"licence: {self.licence}")
        file_rows = []
        for file in self.files:
            style = "green" if file["there"] else "yellow" if file["needed_for"] else ""
            state = style_line(("exists" if file["there"] else "missing", style))
            file_rows.append((file["name"], state, ", ".join(file["needed_for"]) or "optional", file["what"]))
        lines.append(Table(("file", "state", "needed for", "what it is"), tuple(file_rows)))
        for item in self.findings:
            first, *rest = item.lines()
            lines += [style_line((first, "bold red" if item.level == "error" else "yellow")), *rest]
        if self.findings:
            number, style = len(self.findings), "bold red" if self.exit_code else "yellow"
            return [*lines, style_line((f"{number} finding{'s' * (number != 1)}", style))]
        num_missing = {
            purpose: sum(purpose in file["needed_for"] and not file["there"] for file in self.files)
            for purpose in ("grafting", "preparing", "speaking")
        }
        whole = ", ".join(purpose for purpose, number in num_missing.items() if not number)
        missing = [f"{number} missing for {purpose}" for purpose, number in num_missing.items() if number]
        found = [f"all files for {whole} exist"] if whole else []
        return [*lines, style_line(("; ".join([*found, *missing]), "yellow" if missing else "bold green"))]


TOKENIZER_SUFFIXES = (".json", ".model")
# By a file that is in them: what they are, and what to do instead.
NON_BASE_FOLDERS = {
    "graft.json": ("a graft", "see its README.md; `voxgraft check RUN` checks the graft of a run."),
    "set.json": ("a set of clips", "`voxgraft check RUN` checks the sets of a run."),
}
MAX_TENSORS_NAMED = 3
Made = TypeVar("Made")


def show_base(settings: ShowSettings) -> BaseReport:
    """Look at a base folder, at the base of a run, or at one checkpoint file.

    What is wrong with a base is in the report's findings; what is no base of voxgraft at all is an error.
    """
    findings: list[Finding] = []
    settings = settings.model_copy(update={"base": resolve_base_folder(settings.base)})
    with _open_base(settings, findings) as (family, files, checkpoint):
        own = {name: info for name, info in checkpoint.tensors.items() if family.get_part_name(name) is not None}
        tables = [own[point.tensor] for point in family.graft_points if point.tensor in own]
        rows = {info.name: info.shape[0] for info in tables if info.shape}
        description = family.describe(files, next(iter(rows.values()), 0))
        shapes = {name: info.shape for name, info in own.items()}
        size = _attempt(lambda: family.infer_size(files, shapes), findings)
        non_float = [
            info for info in own.values() if info.dtype not in ALL_FLOAT_DTYPES and not family.is_computed(info.name)
        ]
        if non_float:  # whole numbers or eight bits, as quantized files have them: no layer computes with those
            first = f"{non_float[0].name} is {non_float[0].dtype}"
            message = f"{len(non_float):,} of {len(own):,} tensors are not floating point: {first}"
            expected = " or ".join(ALL_FLOAT_DTYPES)
            findings.append(finding("tensors-mismatch", message, expected=expected, where=files.checkpoint))
        tokenizer = _attempt(lambda: open_tokenizer(files.tokenizer), findings) if is_file(files.tokenizer) else None
        if tokenizer is not None:
            findings += text_table_findings(checkpoint, family, tokenizer.size)
        not_finite: dict[str, int] = {}
        digests = tensor_digests(checkpoint, own, not_finite) if settings.fingerprint else None
        if not_finite:  # a model that holds any NaN or infinite value gives noise or nothing
            num_bad, num_total = sum(not_finite.values()), sum(info.num_values for info in own.values())
            worst = sorted(not_finite, key=lambda name: (-not_finite[name], name))
            counts = [f"{name} ({not_finite[name]:,} of {own[name].num_values:,})" for name in worst]
            share = f"all {num_total:,}" if num_bad == num_total else f"{num_bad:,} of {num_total:,}"
            where = f"in {len(worst):,} of {len(own):,} tensors: {format_names(counts, MAX_TENSORS_NAMED)}"
            message = f"{share} values are NaN or infinite, {where}"
            findings.append(finding("weights-not-finite", message, expected="finite values", where=files.checkpoint))
        by_part: dict[str, list[int]] = {}
        for name, info in own.items():
            by_part.setdefault(family.get_part_name(name) or "", []).append(info.num_values)
        # The base itself, then the files that preparing and speaking need beside it.
        listed: list[tuple[str, str, tuple[str, ...], bool]] = [
            (files.checkpoint.name, "the language model", ("grafting",), True),
            (files.tokenizer.name, "tokenizer: from text to ids", ("grafting",), is_file(files.tokenizer)),
        ]
        if files.config is not None:
            listed.append((files.config.name, "sizes, and names of the other files", ("grafting",), True))
        for side in description.side_files:
            there = next((name for name in side.names if path_exists(files.folder / name)), None)
            listed.append((there or side.names[0], side.what, side.purposes, there is not None))
        return BaseReport(
            family=family.name,
            place=files.folder if is_folder(settings.base) else files.checkpoint,
            release=description.release,
            licence=family.licence,
            languages=description.languages,
            others=description.others,
            checkpoint=files.checkpoint.name,
            format=checkpoint.format,
            parts=tuple((part, len(sizes), sum(sizes)) for part, sizes in by_part.items()),
            dtypes=dict(Counter(info.dtype for info in own.values())),
            num_bytes=sum(info.num_bytes for info in own.values()),
            num_aliases=len(checkpoint.tensors) - len(own),
            size=size,
            text_rows=rows,
            spare_rows=family.spare_rows,
            tokenizer=tokenizer,
            files=tuple(dict(zip(("name", "what", "needed_for", "there"), entry, strict=True)) for entry in listed),
            fingerprint=combine_digests(digests) if digests is not None else None,
            findings=tuple(findings),
        )


@contextlib.contextmanager
def _open_base(settings: ShowSettings, findings: list[Finding]) -> Iterator[tuple[Family, BaseFiles, Checkpoint]]:
    """The family, the base's files, and the checkpoint, open until the block ends. Refuses what says that it is
    something else: a graft, a dataset, a tokenizer, a model of another kind.
    """
    path, run_file = settings.base, settings.base / RUN_FILE
    if is_file(run_file):
        base = parse_settings(RunSettings, read_settings_values(RunSettings, run_file), run_file).base
        if base is None:
            raise ConfigError("config-missing", "`base` is not given", where=run_file)
        path = base
    if is_folder(path) or not path_exists(path):
        if is_folder(path) and not any(path.iterdir()):
            cure = "check the path; a base is a folder with the published files."
            raise FileError("base-unknown", f"{path} is an empty folder", where=path, cure=cure)
        for name, (what, cure) in NON_BASE_FOLDERS.items():
            if is_file(path / name):
                message, expected = f"{path} is {what} ({name} is in it)", "the folder of a base, or a run"
                raise FileError("base-unknown", message, expected=expected, where=path, cure=cure)
        family = resolve_base_family(path, settings.family)
        files = family.files(path)
        with open_checkpoint(files.checkpoint) as checkpoint:
            yield family, files, checkpoint
        return
    # A tokenizer is next to every checkpoint, and easily mistaken for it.
    tokenizer = _attempt(lambda: open_tokenizer(path), []) if path.suffix in TOKENIZER_SUFFIXES else None
    if tokenizer is not None:
        message, expected = f"{path.name} is a tokenizer ({tokenizer.kind}, {tokenizer.size:,} tokens)", "a checkpoint"
        cure = f'use `voxgraft tokenizer show "TEXT" --base {path}`, or give the folder of the base.'
        raise CheckpointError("checkpoint-unknown", message, expected=f"{expected}, or a folder", where=path, cure=cure)
    with open_checkpoint(path) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        families = [get_family(name) for name in family_names()]
        items = [candidate.check_lookalike(path, shapes) for candidate in families]
        if not any(candidate.matches_tensors(shapes) for candidate in families):
            tables = tuple(candidate.graft_points[0].tensor for candidate in families)
            items.append(check_tensor_prefix(CheckpointScan(path, shapes), tables))
        for item in filter(None, items):
            raise CheckpointError.of(item)
        family = detect_checkpoint_family(checkpoint, settings.family)
        config = path.with_name(family.config_name) if family.config_name else None
        config = config if config is not None and is_file(config) else None
        # The base that one file belongs to. A tokenizer that is not beside it gets the published name, and is missing.
        tokenizer_path = path.with_name(family.tokenizer_names[0])
        try:
            tokenizer_path = family.find_tokenizer(path)
        except VoxgraftError as error:
            item = error.finding
            if error.code == "base-file-missing":  # one file alone, perhaps a grown one, has no base to download again
                cure = "copy the tokenizer of this checkpoint into its folder (for an extended file: from RUN/graft)."
                item = replace(item, cure=cure)
            findings.append(item)
        yield family, BaseFiles(path.parent, path, tokenizer_path, config), checkpoint


def _attempt(make: Callable[[], Made], findings: list[Finding]) -> Made | None:
    """What `make` gives; None, and a finding, if it meets one of our errors."""
    try:
        return make()
    except VoxgraftError as error:
        findings.append(error.finding)
        return None


# Packages whose versions decide most reports of problems; the rest is in `pip freeze`.
MAIN_PACKAGES = ("torch", "triton", "numpy", "safetensors", "tokenizers", "sentencepiece", "soundfile", "av", "gradio")
OPTIONAL_PARTS = {
    "ui": "web UI (`voxgraft ui`)",
    "server": "speech server (`voxgraft serve`)",
    "hub": "download bases, push and pull grafts",
    **{
        extra: ", ".join(
            f"{facts.extras[extra]} for {facts.title}" for facts in FAMILIES.values() if extra in facts.extras
        )
        for extra in sorted({extra for facts in FAMILIES.values() for extra in facts.extras})
    },
    "tensorboard": "TensorBoard files",
    "vad": "speech detection with Silero",
    "ray": "prepare data on several machines",
    "parquet": "read Parquet tables",
}
"""Extras of the package, as `pip install 'voxgraft[NAME]'` takes them, and what each is for."""
OTHER_PARTS = {
    "faster-whisper": "recognizer for most languages (`--recognizer whisper:small`)",
    "espeakng-loader": "synthetic voices for tests and recipes",
}
MPS_NOTE = "use --device mps: float32, vocoder on the CPU; not tested with voxgraft"
# Free memory of a card, in bytes, that training needs at the published sizes: the smallest cards on which a whole step
# was measured to pass (docs/log.md, "What fits").
GATED_TRAINING_BYTES = 8e9
FULL_TRAINING_BYTES = 16e9


def doctor(settings: DoctorSettings) -> SimpleResult:
    """Report device, memory, versions, optional parts, free disk, and what this machine can train and speak."""
    memory, available = read_memory()
    machine = {
        "voxgraft": installed_version("voxgraft"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": memory and f"{format_bytes(memory)}, {format_bytes(available or 0)} available",
        "free disk": f"{format_bytes(shutil.disk_usage(settings.folder).free)} in {settings.folder}",
    }
    devices, torch_error = find_devices()
    packages = {name: installed_version(name) for name in MAIN_PACKAGES}
    extras = {name: missing_requirements(name) for name in OPTIONAL_PARTS}
    others = {name: installed_version(name) for name in OTHER_PARTS}
    abilities = describe_abilities(devices)
    found: dict[str, Any] = {
        "machine": machine,
        "devices": devices,
        "torch_error": torch_error,
        "packages": packages,
        "missing_of_extras": extras,
        "other_packages": others,
        "abilities": abilities,
    }
    rows = tuple((name, str(value or "unknown")) for name, value in machine.items())
    lines: list[Line] = [Table(("machine", ""), rows), ""]
    if torch_error:
        lines.append(f"torch cannot be imported: {torch_error}")
    device_rows = tuple(
        (one["name"], one["kind"], format_bytes(one["memory"]) if one["memory"] else "", one["note"]) for one in devices
    )
    lines += [Table(("device", "kind", "memory", "note"), device_rows), ""]
    rows = tuple((name, version or "not installed") for name, version in packages.items())
    lines += [Table(("package", "version"), rows), ""]
    parts = [
        (f"voxgraft[{name}]", "installed" if not extras[name] else f"missing: {', '.join(extras[name])}", what)
        for name, what in OPTIONAL_PARTS.items()
    ]
    parts += [(name, others[name] or "not installed", what) for name, what in OTHER_PARTS.items()]
    lines += [Table(("optional part", "status", "for"), tuple(parts)), ""]
    answers = tuple((one["what"], one["answer"], one["why"]) for one in abilities)
    lines.append(Table(("this machine can", "answer", "why"), answers))
    return SimpleResult(found, tuple(lines), exit_code=1 if torch_error else 0)


def installed_version(name: str) -> str | None:
    """The version of an installed package, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def missing_requirements(extra: str) -> list[str]:
    """The packages of one of our extras that are not installed, by the package's own metadata."""
    try:
        requirements = metadata.requires("voxgraft") or []
    except metadata.PackageNotFoundError:
        return ["voxgraft itself is not installed as a package"]
    # A line of the metadata: `silero-vad>=5; extra == "vad"`
    extra_lines = [line.partition(";")[0] for line in requirements if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    names = [re.match(r"[A-Za-z0-9._-]+", line.strip()) for line in extra_lines]
    return [name.group() for name in names if name and installed_version(name.group()) is None]


def read_memory() -> tuple[int | None, int | None]:
    """Memory of the machine and what of it is available, in bytes; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None, None
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    total, available = values.get("MemTotal"), values.get("MemAvailable")
    return int(total) * 1024 if total else None, int(available) * 1024 if available else None


def find_devices() -> tuple[list[dict[str, Any]], str]:
    """The devices that torch can use, the best first, and why torch cannot be imported (empty if it can)."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of CUDA that is not found
        return [], str(error).splitlines()[0]
    devices: list[dict[str, Any]] = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            values = torch.cuda.get_device_properties(index)
            # Triton compiles for compute capability 7.0 and later; bf16 has units from 8.0 on.
            notes = [f"compute capability {values.major}.{values.minor}"]
            notes += [] if values.major >= 8 else ["no bf16: trains in fp16"]
            notes += [] if importlib.util.find_spec("triton") else ["triton not installed: slower kernels"]
            if torch.version.hip is not None:
                notes = [f"ROCm {torch.version.hip}: not tested with voxgraft; fused kernels are off"]
            devices.append(
                {"name": values.name, "kind": f"cuda:{index}", "memory": values.total_memory, "note": ", ".join(notes)}
            )
    elif torch.version.cuda is None and shutil.which("nvidia-smi"):
        note = "an NVIDIA driver is installed, but this torch was built without CUDA: install a CUDA build of torch"
        devices.append({"name": "NVIDIA", "kind": "unusable", "memory": None, "note": note})
    if torch.backends.mps.is_available():
        devices.append({"name": "Apple GPU", "kind": "mps", "memory": None, "note": MPS_NOTE})
    name = platform.processor() or platform.machine()
    note = f"{pluralize(torch.get_num_threads(), 'thread')}, torch {torch.__version__}"
    devices.append({"name": name, "kind": "cpu", "memory": read_memory()[0], "note": note})
    return devices, ""


def describe_abilities(devices: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What can be trained and spoken here, each with the reason."""
    card = max((one["memory"] for one in devices if one["kind"].startswith("cuda")), default=0)
    has_torch, has_mps = bool(devices), any(one["kind"] == "mps" for one in devices)

    def training(needed: float) -> tuple[str, str]:
        if not card:
            return "no", "no CUDA device"
        enough = card >= needed
        return "yes" if enough else "no", f"{format_bytes(card)} of {format_bytes(needed)} needed"

    published = " or ".join(facts.title for facts in FAMILIES.values() if facts.downloads)
    rows = [
        ("train the tiny base", "yes" if has_torch else "no", "two CPU cores are enough"),
        (f"train {published}, gated", *training(GATED_TRAINING_BYTES)),
        ("train the whole backbone", *training(FULL_TRAINING_BYTES)),
        (
            "speak with any base",
            "yes" if has_torch else "no",
            "on the GPU"
            if card
            else "with --device mps (not tested)"
            if has_mps
            else "on the CPU slower than real time",
        ),
    ]
    return [{"what": what, "answer": answer, "why": why} for what, answer, why in rows]
