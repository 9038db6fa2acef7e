"""Count the phrases that the style sheet avoids, and measure the docs. Run `python tools/measure_words.py [--list]`.

Text for users: strings of the package, its TOML catalogues and templates, README, docs and the READMEs of recipes. Text
for developers: comments and docstrings, and the code of recipes. Left out: the log (a record of its day), generated
pages (their words come from the package), licence texts (SOURCES.md), and
names that are part of a contract (codes, JSON keys, file names, flags): one word without spaces, or `code` in a page.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {"cli.md", "errors.md", "log.md"}
USERS, DEVELOPERS = "users", "developers"
AVOIDED = {
    # The style sheet's "not" column.
    "go on": r"\b(?:goes|go|gone|went|going) on\b(?! (?:to|the|a)\b)",
    "told": r"\b(?:is|are|was|were|be|being|as|who|unless|been|not|what) told\b",
    "stands": r"\b(?:stands|stood)\b|\bstand (?:in|on|for|under|among|behind|beside)\b",
    "shall": r"\bshall\b",
    "of anyone's": r"\banyone's\b",
    "anew": r"\banew\b|\bafresh\b",
    "is not there": r"\b(?:is|are|was|were) (?:not )?there(?: already| yet)?\b(?! (?:a|an|any|no)\b)",
    "empty means": r"\bempty means\b",
    "has said no": r"\bsaid no\b|\bsays? no\b",
    "mended": r"\bmend(?:s|ed|ing)?\b|\bput right\b",
    "learnt": r"\blearnt\b",
    "what it tells": r"\bwhat it tells\b|\bhow it stands\b|\btells? of\b",
    "wherefrom": r"\b(?:wherefrom|whereof|thereof|therein|hereby|whence)\b",
    "listener": r"\blisteners?\b",
    "verb": r"\bverbs?\b",
    "on the way": r"\bon the way\b",
    # Our own idioms, and the field's word for each.
    "stock program (original program)": r"\bstock programs?\b",
    "spelled (encoded)": r"\b(?:spelled|spells) (?:by|as|otherwise|again|the|with)\b|\bspelling the\b",
    "grown (extended)": r"(?<![-\w`.{\"])grown (?:tokenizer|table|file|layer|checkpoint|pieces)s?\b",
    "body (backbone)": r"\bthe (?:whole |base's |model's )?body\b|\bbody's\b",
    "hear, ear (transcribe)": r"\bhears?\b|\b(?:is|was|were|be) heard\b|\bby ear\b",
    "manner (style)": r"\bmanner\b",
    "waveform end (vocoder)": r"\bwaveform ends?\b",
    "by itself (automatically, alone)": r"\bby (?:itself|themselves)\b",
    "is said (is stated, spoken)": r"\b(?:is|are|was|were|be|been) said\b",
    "at work (running)": r"\bat work\b",
    "held against (compared with)": r"\bheld against\b",
    "nobody is there": r"\bnobody (?:is|was|has|keeps|here)\b",
    "all the same (anyway)": r"\ball the same\b",
    "of ours": r"\bof ours\b",
    "what is left": r"\bwhat (?:is|was) left\b(?! (?:out|of|in|is)\b)",
    "asked for (requested, set)": r"\b(?:is|are|was|were) asked for\b",
    "the very": r"\b(?:the|this) very\b",
}
"""Phrases as patterns, matched without regard to case."""
LONG_SENTENCE = 30


def texts_of_code(path: Path) -> Iterator[tuple[str, int, str]]:
    """Texts of a Python file: for whom, line, text. Values in f-strings and names without a space are left out."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    # A string that is a statement documents what is before it. In `config` these are help texts.
    for_users = path.parent.name == "config"
    docs = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, scopes)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield DEVELOPERS if id(node) in docs and not for_users else USERS, node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield DEVELOPERS, token.start[0], token.string


def iter_texts() -> Iterator[tuple[str, str, int, str]]:
    """Every text that people read: for whom, place, line, text."""
    for path in sorted((ROOT / "voxgraft").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            yield from ((who, name, line, text) for who, line, text in texts_of_code(path))
        elif path.suffix == ".toml":
            for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if not text.startswith("["):
                    yield USERS, name, line, text
        elif path.suffix in (".html", ".js", ".md") and path.name != "SOURCES.md":
            for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                yield USERS, name, line, re.sub(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", " ", text)
    for path in sorted((ROOT / "recipes").rglob("*.py")):
        yield from (
            (DEVELOPERS, path.relative_to(ROOT).as_posix(), line, text) for _, line, text in texts_of_code(path)
        )
    for path in [*manual_pages(), *sorted((ROOT / "recipes").rglob("*.md"))]:
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield USERS, path.relative_to(ROOT).as_posix(), line, re.sub(r"`[^`]*`", "`code`", text)


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
    found: dict[str, Counter[str]] = {USERS: Counter(), DEVELOPERS: Counter()}
    for who, name, line, text in iter_texts():
        for phrase, pattern in AVOIDED.items():
            for match in re.finditer(pattern, text, re.IGNORECASE):
                found[who][phrase] += 1
                if "--list" in sys.argv:
                    around = text[max(0, match.start() - 40) : match.end() + 40].replace("\n", " ")
                    print(f"{who}: {name}:{line}: {phrase}: {around}")
    for who, counts in found.items():
        print(f"avoided phrases, text for {who}: {counts.total()} {dict(counts.most_common())}")
    pages = manual_pages()
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages}
    total = [one for text in texts.values() for one in sentences(text)]
    long = [one for one in total if len(one) > LONG_SENTENCE]
    if "--list" in sys.argv:
        print("\n".join(f"{len(one)} words: {' '.join(one)[:160]}" for one in long))
    # Bars and dashes of tables are no words.
    words = sum(bool(re.search(r"\w", word)) for text in texts.values() for word in text.split())
    print(f"pages by hand: {len(pages) - 1} and CONTRIBUTING.md, words: {words:,}")
    print(f"sentences: {len(total):,}, over {LONG_SENTENCE} words: {len(long):,} ({len(long) / len(total):.1%})")


if __name__ == "__main__":
    main()
