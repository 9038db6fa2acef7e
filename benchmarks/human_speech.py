"""Human recordings of Debian packages as datasets, to measure commands with voices that no synthesizer made.

    apt-get download festvox-ru asterisk-core-sounds-{en,fr,es,it,ru}{,-g722} asterisk-prompt-{es-co,fr-armelle} \
        asterisk-prompt-it-menardi-wav fillets-ng-data{,-cs,-nl}
    for package in *.deb; do dpkg-deb -x "$package" packages; done
    python -m benchmarks.human_speech packages sets

writes one dataset for each package: `sets/festvox-ru` and so on. The recordings are only for measuring; some are under
GPL-2 or CC-BY-SA-3.0 and must not be committed. Prompts of three packages have no texts: they only serve as voices.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from voxgraft.audio.files import MediaReader, write_clip_audio
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import ManifestClip, write_manifest

RATE_HZ = 16_000
MIN_SECONDS = 0.8
NO_TEXT = "-"
# Name, language, and the folder below usr/share/asterisk/sounds.
PROMPTS = (
    ("asterisk-en", "en", "en_US_f_Allison"),
    ("asterisk-fr", "fr", "fr_CA_f_June"),
    ("asterisk-es", "es", "es_MX_f_Allison"),
    ("asterisk-it", "it", "it_IT_m_Carlo"),
    ("asterisk-ru", "ru", "ru_RU_f_IvrvoiceRU"),
    ("prompt-es-co", "es", "es"),
    ("prompt-fr-armelle", "fr", "fr"),
    ("prompt-it-menardi", "it", "it_IT_f_Menardi"),
)
_LUA_DIALOG = re.compile(r'dialogId\("([^"]+)".*?\)\s*dialogStr\("((?:[^"\\]|\\.)*)"\)', re.DOTALL)


def festvox(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Audio, text and speaker of festvox-ru. A plus marks stress."""
    folder = root / "usr/share/festival/voices/russian/msu_ru_nsh_clunits"
    for line in (folder / "etc/txt.done.data").read_text(encoding="utf-8").splitlines():
        name, _, text = line.strip("() \n").partition(" ")
        yield folder / "wav" / f"{name}.wav", text.strip(' "').replace("+", ""), "nsh"


def asterisk(root: Path, name: str, below: str) -> Iterator[tuple[Path, str, str]]:
    """Prompts with their texts, if the package has them. Spelled letters, digits and silence are left out."""
    listed = root / f"usr/share/doc/asterisk-core-sounds-{name[-2:]}/core-sounds-{name[-2:]}.txt.gz"
    texts: dict[str, str] = {}
    if name.startswith("asterisk-"):
        for line in gzip.decompress(listed.read_bytes()).decode("utf-8-sig", "replace").splitlines():
            stem, colon, text = line.partition(":")
            # Notes in brackets say how a prompt sounds, not what is spoken.
            if colon and not line.startswith(";") and not re.search(r"[\[\](<>]", text):
                texts[stem.strip()] = " ".join(text.split())
    folder = root / "usr/share/asterisk/sounds" / below
    for path in sorted(folder.glob("**/*")):
        if path.suffix not in {".g722", ".gsm", ".wav"} or path.parent.name in {"silence", "letters", "phonetic"}:
            continue
        stem = str(path.relative_to(folder).with_suffix(""))
        if not texts or stem in texts:
            yield path, texts.get(stem, NO_TEXT), name


def fillets(root: Path, language: str) -> Iterator[tuple[Path, str, str]]:
    """Dialogues of a game by its two main actors: a name with -m- is the small fish, one with -v- the large one."""
    game = root / "usr/share/games/fillets-ng"
    for script in sorted(game.glob(f"script/*/dialogs_{language}.lua")):
        for name, text in _LUA_DIALOG.findall(script.read_text(encoding="utf-8")):
            path = game / "sound" / script.parent.name / language / f"{name}.ogg"
            actor = re.search(r"-([mv])-", name)
            if path.is_file() and actor:
                yield path, text.replace('\\"', '"'), f"{language}-{actor[1]}"


def write_dataset(folder: Path, language: str, clips: Iterator[tuple[Path, str, str]]) -> None:
    rows = []
    for number, (path, text, speaker) in enumerate(clips):
        try:
            wave = np.concatenate(list(MediaReader(path, RATE_HZ).blocks()))
        except VoxgraftError as error:
            print(f"left out: {error.finding.found}")
            continue
        if len(wave) < MIN_SECONDS * RATE_HZ or float(np.abs(wave).max()) < 1e-3:
            continue
        name = f"{number:04d}-{path.stem}"
        row = ManifestClip(
            name,
            f"clips/{name}.flac",
            len(wave) / RATE_HZ,
            text,
            language,
            speaker,
            path.stem,
            RATE_HZ,
            source=str(path),
        )
        write_clip_audio(folder / row.audio, wave, RATE_HZ)
        rows.append(row)
    write_manifest(folder / "manifest.jsonl", rows)
    print(f"{folder.name}: {len(rows)} clips, {sum(row.seconds for row in rows) / 60:.1f} minutes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, help="folder into which the packages were extracted")
    parser.add_argument("sets", type=Path, help="folder for the datasets")
    given = parser.parse_args()
    write_dataset(given.sets / "festvox-ru", "ru", festvox(given.packages))
    for language in ("cs", "nl"):
        write_dataset(given.sets / f"fillets-{language}", language, fillets(given.packages, language))
    for name, language, below in PROMPTS:
        write_dataset(given.sets / name, language, asterisk(given.packages, name, below))


if __name__ == "__main__":
    main()
