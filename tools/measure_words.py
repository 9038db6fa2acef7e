"""Count the words that the style sheet avoids, and measure the manual. Run `python tools/measure_words.py [--list]`.

Looked at: comments, docstrings and strings of the package, its TOML catalogues and templates, README and docs. The log
is a record of its day and is left out; so are the generated pages, whose words come from the package.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {"cli.md", "errors.md", "log.md"}
AVOIDED = {
    "go on": r"\b(?:goes|go|gone|went|going) on\b(?! (?:to|the|a)\b)",
    "told": r"\b(?:is|are|was|were|be|being|as|who|unless|been) told\b",
    "stands": r"\b(?:stands|stood)\b",
    "shall": r"\bshall\b",
    "of anyone's": r"\banyone's\b",
    "anew": r"\banew\b",
    "is not there": r"\b(?:is|are|was|were) not there\b",
    "empty means": r"\bempty means\b",
    "has said no": r"\bsaid no\b",
    "mended": r"\bmend(?:s|ed|ing)?\b",
    "learnt": r"\blearnt\b",
    "told apart": r"\btold apart\b",
    "what it tells": r"\bwhat it tells\b|\bhow it stands\b",
    "wherefrom": r"\b(?:wherefrom|whereof|thereof|therein|hereby)\b",
    "stock program": r"\bstock programs?\b",
    "listener": r"\blisteners?\b",
    "verb": r"\bverbs?\b",
}
"""Phrases of the style sheet's "not" column, as patterns; matched without regard to case."""
LONG_SENTENCE = 30


def texts_of_code(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and strings (docstrings too) of a Python file, with their lines."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(io.StringIO(file.read()).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(
                tokenize, "FSTRING_MIDDLE", -1
            ):
                yield token.start[0], token.string


def iter_texts() -> Iterator[tuple[str, int, str]]:
    """Every text that people read: place, line, text."""
    for path in sorted((ROOT / "voxgraft").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            yield from ((name, line, text) for line, text in texts_of_code(path))
        elif path.suffix in (".toml", ".html", ".js", ".css") and "assets/base" not in name:
            yield from (
                (name, line, text) for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            )
    for path in manual_pages():
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        yield from ((path.relative_to(ROOT).as_posix(), line, text) for line, text in lines)


def manual_pages() -> list[Path]:
    """The pages that are written by hand."""
    pages = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in GENERATED]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]


def sentences(page: str) -> list[list[str]]:
    """The sentences of a page's prose and table cells, as lists of words. Code blocks do not count."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    # A blank line, a list item, a heading and a cell of a table each end a sentence.
    parts = re.split(r"\n\s*\n|\n\s*[-*#\d]+[.]?\s|\s\|\s|(?<=[.!?:])\s+(?=[A-Z`*\[])", prose)
    words = [re.findall(r"[A-Za-z][\w'-]*|`[^`]*`", part) for part in parts]
    return [one for one in words if one]


def main() -> None:
    found: Counter[str] = Counter()
    places: list[str] = []
    for name, line, text in iter_texts():
        for phrase, pattern in AVOIDED.items():
            for match in re.finditer(pattern, text, re.IGNORECASE):
                found[phrase] += 1
                around = text[max(0, match.start() - 40) : match.end() + 40].replace("\n", " ")
                places.append(f"{name}:{line}: {phrase}: {around}")
    if "--list" in sys.argv:
        print("\n".join(places))
    print(f"avoided phrases: {sum(found.values())} {dict(found.most_common())}")
    pages = manual_pages()
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages}
    total = [one for text in texts.values() for one in sentences(text)]
    long = [one for one in total if len(one) > LONG_SENTENCE]
    print(f"pages by hand: {len(pages)}, words: {sum(len(text.split()) for text in texts.values()):,}")
    print(f"sentences: {len(total):,}, over {LONG_SENTENCE} words: {len(long):,} ({len(long) / len(total):.1%})")


if __name__ == "__main__":
    main()
