"""Write voxgraft/assets/romanised.json: uroman's romanization of every Ethiopic and Latin character, one by one.

    python tools/build_romanised.py

In these two scripts uroman reads a text character by character, so that the table gives its own result without loading
its rules, which takes seconds. A test compares the table with uroman itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import uroman

from voxgraft.core.languages import script_characters
from voxgraft.text.encoder import TABLE_SCRIPTS

OUTPUT = Path(__file__).parent.parent / "voxgraft/assets/romanised.json"
MARKS = "".join(map(chr, range(0x300, 0x370)))


def main() -> None:
    romaniser = uroman.Uroman()
    ascii_letters = (chr(code) for code in range(0x21, 0x7F) if chr(code).isalpha())
    characters = [
        *ascii_letters,
        *MARKS,
        *(character for script in TABLE_SCRIPTS for character in script_characters(script)),
    ]
    table = {character: str(romaniser.romanize_string(character)) for character in characters}
    lines = (
        f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in table.items()
    )
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
