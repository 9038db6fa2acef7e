"""The pages of the manual as data: their code blocks, the commands in them, and the links between them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
GENERATED = ("cli.md", "errors.md")
PAGES = {
    path.name: path for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}
_FENCE = re.compile(r"^```(\S*)\s*$")
_INLINE = re.compile(r"(?<!`)`((?:voxgraft|python -m|make) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One fenced block, or one that is indented and so has no language."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Every block of a page, in order."""
    found: list[Block] = []
    lines = PAGES[page].read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = lines.index("```", at + 1)
            found.append(Block(page, at + 1, fence[1], "\n".join(lines[at + 1 : end])))
            at = end
        elif lines[at].startswith("    ") and not lines[at - 1].strip():
            found.append(Block(page, at + 1, "", lines[at]))
        at += 1
    return found


def commands(block: Block) -> list[str]:
    """The commands of a shell block, a backslash at the end of a line joined with the next, comments taken off."""
    joined = block.text.replace("\\\n", " ")
    lines = (line.strip() for line in joined.splitlines())
    if block.language == "console":
        lines = (line[2:] for line in lines if line.startswith("$ "))
    found = (shlex.join(shlex.split(line, comments=True)) if _is_plain(line) else line for line in lines)
    return [line for line in found if line]


def _is_plain(line: str) -> bool:
    """Whether no shell is needed to understand it."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line.partition(" #")[0])
    return not re.search(r"[|<>&;]|\$\(", bare)


def inline_commands(page: str) -> Iterator[str]:
    """Commands that stand in the text, between backticks."""
    text = re.sub(r"^```.*?^```", "", PAGES[page].read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return (match.replace("\n", " ") for match in _INLINE.findall(text))


def anchors(page: Path) -> set[str]:
    """What can stand behind # in a link to the page, as GitHub makes it of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Target and anchor of every link and picture that leads to a file of ours."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if "://" not in target:
            yield target, anchor
