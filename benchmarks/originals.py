"""Collect the original programs' modules that the benchmarks import, in one small folder to carry to a GPU machine.

    python -m benchmarks.originals FOLDER
    python -m benchmarks.vocoders --originals FOLDER --device cuda
    python -m benchmarks.xtts --originals FOLDER --device cuda

Downloads pinned packages with pip, without their dependencies, and keeps only Python modules. index-tts is not on PyPI:
put its `indextts` folder into FOLDER yourself; without it, IndexTTS-2's vocoder has no peer. FOLDER must not be
committed: the packages have licences of their own.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# Package, and the folders of it that are imported.
PACKAGES = {
    "chatterbox-tts==0.1.7": ("chatterbox/",),
    "coqui-tts==0.28.0": ("TTS/",),
    "coqui-tts-trainer==0.3.1": ("trainer/",),
    "diffusers==0.29.0": ("diffusers/",),
    "einops==0.8.1": ("einops/",),
    "conformer==0.3.2": ("conformer/",),
    "omegaconf==2.3.0": ("omegaconf/",),
    "antlr4-python3-runtime==4.9.3": ("antlr4/",),
    "munch==4.0.0": ("munch/",),
    "coqpit-config==0.2.0": ("coqpit/",),
}
SUFFIXES = (".py", ".json", ".txt", "METADATA")


def unpack_package(archive: Path, prefixes: tuple[str, ...], folder: Path) -> int:
    """Copy the modules of a wheel or source archive; return how many."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            files = {name: wheel.read(name) for name in wheel.namelist() if is_needed(name, prefixes)}
    else:
        with tarfile.open(archive) as source:
            files = {}
            for member in source:
                name = member.name.partition("/")[2].removeprefix("src/")
                if member.isfile() and name.startswith(prefixes) and (content := source.extractfile(member)):
                    files[name] = content.read()
    return write_modules(files, folder)


def is_needed(name: str, prefixes: tuple[str, ...]) -> bool:
    # Some packages ask for their own version when they are imported.
    return name.startswith(prefixes) or name.endswith(".dist-info/METADATA")


def write_modules(files: dict[str, bytes], folder: Path) -> int:
    kept = {name: content for name, content in files.items() if name.endswith(SUFFIXES) and ".ipynb" not in name}
    for name, content in kept.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return len(kept)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.originals", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists already; choose another folder or remove it")
    # Built beside its place and renamed, so that an interrupted call leaves no half folder.
    made = arguments.folder.with_name(f"{arguments.folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for package, prefixes in PACKAGES.items():
        with tempfile.TemporaryDirectory() as downloads:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", downloads, package]
            subprocess.run(command, check=True)
            (archive,) = Path(downloads).iterdir()
            print(f"{package}: {unpack_package(archive, prefixes, made)} files", flush=True)
    made.rename(arguments.folder)
    size = sum(path.stat().st_size for path in arguments.folder.rglob("*") if path.is_file())
    print(f"{arguments.folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
