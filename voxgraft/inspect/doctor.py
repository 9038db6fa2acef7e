"""The command `doctor`: what this machine has, and what it can train and speak.

Nothing here fails because something is missing: a missing part is a line of the report. The output names no user and
no path outside the working folder, so that it can be pasted into an issue.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from voxgraft.config.commands import DoctorSettings
from voxgraft.core.families import FAMILIES
from voxgraft.core.results import Line, SimpleResult, Table, format_bytes

# Packages whose versions decide most reports of problems; the rest is in `pip freeze`.
MAIN_PACKAGES = ("torch", "triton", "numpy", "safetensors", "tokenizers", "sentencepiece", "soundfile", "av", "gradio")
OPTIONAL_PARTS = {
    "ui": "web UI (`voxgraft ui`)",
    "hub": "download bases, push and pull grafts",
    "indextts2": "prepare data for IndexTTS-2",
    "languages": "Japanese text for Chatterbox",
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
    wanted = [line.partition(";")[0] for line in requirements if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    names = [re.match(r"[A-Za-z0-9._-]+", line.strip()) for line in wanted]
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
            devices.append(
                {"name": values.name, "kind": f"cuda:{index}", "memory": values.total_memory, "note": ", ".join(notes)}
            )
    elif torch.version.cuda is None and shutil.which("nvidia-smi"):
        note = "an NVIDIA driver is installed, but this torch was built without CUDA: install a CUDA build of torch"
        devices.append({"name": "NVIDIA", "kind": "unusable", "memory": None, "note": note})
    if torch.backends.mps.is_available():
        devices.append({"name": "Apple GPU", "kind": "mps", "memory": None, "note": "not tested with voxgraft"})
    name = platform.processor() or platform.machine()
    note = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    devices.append({"name": name, "kind": "cpu", "memory": read_memory()[0], "note": note})
    return devices, ""


def describe_abilities(devices: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What can be trained and spoken here, each with the reason."""
    card = max((one["memory"] for one in devices if one["kind"].startswith("cuda")), default=0)
    has_torch = bool(devices)

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
            "on the CPU slower than real time" if not card else "on the GPU",
        ),
    ]
    return [{"what": what, "answer": answer, "why": why} for what, answer, why in rows]
