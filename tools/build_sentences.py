"""Write the phones of the built-in sentence sets (voxgraft/assets/sentences) anew with espeak-ng.

The sentences themselves were written for this project by hand; only their last column is made. `PACKAGES` is the folder
that `python -m recipes.tiny_base.gather` makes. Not run by the tests.

    python -m tools.build_sentences PACKAGES
"""

import sys
from pathlib import Path

from recipes.tiny_base.speech import Voices

FOLDER = Path(__file__).parents[1] / "voxgraft" / "assets" / "sentences"
COLUMNS = ["text", "rare", "phones"]


def main() -> None:
    voices = Voices(Path(sys.argv[1]))
    for path in sorted(FOLDER.glob("*.tsv")):
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        if header.split("\t") != COLUMNS:
            raise SystemExit(f"{path}: expected the columns {COLUMNS}")
        made = [header]
        for line in lines:
            text, rare = line.split("\t")[:2]
            made.append("\t".join([text, rare, " ".join(voices.phones(text, path.stem))]))
        path.write_text("\n".join(made) + "\n", encoding="utf-8")
        print(f"{path.name}: {len(lines)} sentences")


if __name__ == "__main__":
    main()
