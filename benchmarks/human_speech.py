"""Human recordings of Debian packages as datasets, to measure commands with voices that no synthesizer made.

    python -m benchmarks.human_speech downloads sets

fetches the packages and writes one dataset for each source: `sets/festvox-ru` and so on. The recordings are only for
measuring; some are under GPL-2 or CC-BY-SA-3.0 and must not be committed. Prompts of three packages have no texts: they
only serve as voices, and are used if they were unpacked into `downloads/root` (asterisk-prompt-es-co and others).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from recipes.human_voices.packages import PROMPTS, Recording, asterisk, festvox, fetch, fillets
from voxgraft.audio.files import MediaReader, write_clip_audio
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import ManifestClip, write_manifest

RATE_HZ = 16_000
MIN_SECONDS = 0.8


def write_dataset(folder: Path, language: str, clips: Iterator[Recording]) -> None:
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
    parser.add_argument("downloads", type=Path, help="folder for the packages; those that are there are not fetched")
    parser.add_argument("sets", type=Path, help="folder for the datasets")
    given = parser.parse_args()
    root = fetch(given.downloads)
    write_dataset(given.sets / "festvox-ru", "ru", festvox(root))
    for language in ("cs", "nl"):
        write_dataset(given.sets / f"fillets-{language}", language, fillets(root, language))
    for name, language, below in PROMPTS:
        if (root / "usr/share/asterisk/sounds" / below).is_dir():
            write_dataset(given.sets / name, language, asterisk(root, name, below))


if __name__ == "__main__":
    main()
