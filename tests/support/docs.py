"""The pages of the manual as data (code blocks, commands, links), and the folders in which their commands are run."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import soundfile
import torch

from tests.support.fixtures import Fixtures
from tests.support.migration import CONFIG, SCRIPT
from tests.support.run_folders import WholeRun
from voxgraft.cli import run_cli
from voxgraft.config.run import rewrite_run_yaml
from voxgraft.demo.data import write_talks
from voxgraft.evaluation.listening import ANSWERS_FORMAT, KEY_NAME
from voxgraft.models import get_family

ROOT = Path(__file__).resolve().parents[2]
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


SHORT: dict[str, dict[str, Any]] = {
    "tokenizer": {"pieces": 20},
    "data": {"min_prompt_seconds": 0.1},
    "train": {
        **{"steps": 2, "warmup_steps": 1, "batch_tokens": 256, "rank": 4, "sample_every": 1000},
        **{"sample_texts": ["am:ሰ"], "tensorboard": False, "valid_every": 2, "save_every": 2},
    },
}
"""What a run.yaml gets as soon as a page has made it: a training of a second."""


@dataclass(frozen=True)
class Scene:
    """The folder in which a page is walked."""

    page: str
    folder: Path
    made: Fixtures

    def base(self, name: str, place: str) -> Path:
        shutil.copytree(self.made.base(name).folder, self.folder / place, dirs_exist_ok=True)
        return self.folder / place

    def run(self, name: str, place: str) -> WholeRun:
        """A trained run."""
        made = self.made.trained_run(name)
        copied = made.copied(self.folder / place)
        rewrite_run_yaml(copied.folder.settings, {key: value for key, value in SHORT.items() if key == "train"})
        return copied

    def talks(self, place: str) -> None:
        shutil.copytree(self.made.folder("talks", lambda at: write_talks(at, 6, 3)), self.folder / place)

    def texts(self, place: str, count: int = 200) -> None:
        text = resources.files("voxgraft").joinpath("assets/demo/am.txt").read_text(encoding="utf-8")
        self.write(place, "\n".join(text.splitlines()[:count]) + "\n")

    def write(self, place: str, text: str) -> None:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _readme(scene: Scene) -> None:
    scene.talks("talks")


def _forks(scene: Scene) -> None:
    scene.base("chatterbox", "models/chatterbox")
    base = scene.base("indextts2", "checkpoints")
    scene.base("indextts2", "BASE")
    scene.texts("amharic.txt")
    scene.write("config/training_config.yaml", CONFIG)
    scene.write("train_amharic.sh", SCRIPT)
    scene.write("metadata.csv", "clip1|ሰላም ለዓለም|ሰላም ለዓለም\n")
    scene.write("manifest.jsonl", json.dumps({"id": "a", "text": "ሰላም ለዓለም"}) + "\n")
    tokenizer = scene.made.base("chatterbox").tokenizer
    shutil.copy(tokenizer, scene.folder / "Am_tokenizer_merged.json")
    shutil.copy(get_family("indextts2").files(base).tokenizer, scene.folder / "amharic_extended_bpe.model")
    from safetensors.torch import load_file

    torch.save(load_file(scene.made.base("chatterbox").checkpoint), scene.folder / "chatterbox_extended.pt")


def _data(scene: Scene) -> None:
    scene.talks("recordings")
    folder = scene.folder / "recordings"
    for number, name in enumerate(("film", "film-2")):
        for path in sorted(folder.glob(f"talk{number}.*")):
            path.rename(path.with_stem(name))
        text = folder / f"{name}.srt"
        text.write_text(
            re.sub(r"(?m)^(?=[\u1200-\u137f])", "አበበ፦ ", text.read_text(encoding="utf-8")), encoding="utf-8"
        )
    samples, rate = soundfile.read(folder / "talk3.flac", dtype="float32")
    soundfile.write(scene.folder / "book.mp3", samples, rate)
    lines = (folder / "talk3.srt").read_text(encoding="utf-8").splitlines()
    scene.write("book.txt", "\n\n".join(line for line in lines if re.search(r"[\u1200-\u137f]", line)))
    scene.base("chatterbox", "models/chatterbox")


def _diagnosing(scene: Scene) -> None:
    base = scene.base("indextts2", "checkpoints")
    files = get_family("indextts2").files(base)
    shutil.copy(files.checkpoint, scene.folder / "model_step38000.pth")
    shutil.copy(files.tokenizer, scene.folder / "amharic.model")
    scene.run("chatterbox", "runs/amharic")


def _judged(scene: Scene) -> None:
    scene.run("tiny", "RUN")
    scene.run("tiny", "RUN2")
    shutil.copytree(scene.made.whole_run("tiny").base, scene.folder / "BASE")
    shutil.copytree(scene.folder / "RUN" / "graft", scene.folder / "GRAFT")
    scene.base("tiny", "OTHER")


def _exporting(scene: Scene) -> None:
    scene.run("chatterbox", "RUN")
    scene.run("indextts2", "INDEX_RUN")
    shutil.copytree(scene.made.whole_run("chatterbox").base, scene.folder / "BASE")
    shutil.copytree(scene.folder / "RUN" / "graft", scene.folder / "GRAFT")


def _tutorial(scene: Scene) -> None:
    scene.talks("talks")
    scene.base("chatterbox", "models/chatterbox")


def _several(scene: Scene) -> None:
    scene.run("chatterbox", "runs/amharic")


def _speaking(scene: Scene) -> None:
    scene.texts("am.txt")
    for words in (["new", "RUN", "--base", "tiny", "--language", "am", "--texts", "am.txt"], ["graft", "RUN"]):
        assert run_cli([*words, "--quiet"]) == 0
    scene.write("book.txt", "le chat\nun ami\n")
    scene.write("texts.txt", "a cup\n")
    shutil.copytree(scene.folder / "RUN" / "graft", scene.folder / "am" / "graft")
    scene.texts("ti.txt")
    for words in (["new", "ti", "--base", "tiny", "--language", "ti", "--texts", "ti.txt"], ["graft", "ti"]):
        assert run_cli([*words, "--quiet"]) == 0
    scene.write("texts.tsv", "text\tlanguage\nሰላም\tam\nሰላም\tti\n")


def _nothing(scene: Scene) -> None:
    """The page needs nothing."""


SCENES: dict[str, Callable[[Scene], None]] = {
    "README.md": _readme,
    "data.md": _data,
    "diagnosis.md": _diagnosing,
    "evaluation.md": _judged,
    "export.md": _exporting,
    "hardware.md": _several,
    "migration.md": _forks,
    "synthesis.md": _speaking,
    "tutorial.md": _tutorial,
}


def _sets_of_amharic(scene: Scene) -> None:
    WholeRun("chatterbox", scene.folder / "runs/amharic", scene.folder / "models/chatterbox").write_sets()


def _radio(scene: Scene) -> None:
    assert (
        run_cli(["data", "import", str(scene.folder / "sets/radio"), "recordings/talk3.srt", "--language", "am"]) == 0
    )


def _second_scores(scene: Scene) -> None:
    shutil.copytree(scene.folder / "RUN" / "eval", scene.folder / "RUN2" / "eval")


def _answers(scene: Scene) -> None:
    """Two raters, who always prefer the first sound."""
    key = json.loads((scene.folder / "RUN/eval/default-listening" / KEY_NAME).read_text(encoding="utf-8"))
    answers = [{"pair": pair["id"], "choice": "a", "faults": {"a": [], "b": []}} for pair in key["pairs"]]
    for rater in ("anna", "ben"):
        document = {"format": ANSWERS_FORMAT, "test": key["test"], "rater": rater, "started": rater, "answers": answers}
        scene.write(f"{rater}.json", json.dumps(document))


HOOKS: dict[str, Callable[[Scene], None]] = {
    "voxgraft preference RUN/eval/default-listening anna.json ben.json": _answers,
    "voxgraft train runs/amharic": _sets_of_amharic,
    "voxgraft data merge sets/all sets/films sets/radio": _radio,
    "voxgraft compare RUN RUN2": _second_scores,
}
"""What a page takes for granted before a command: sets, another dataset, another run that was evaluated."""


def scene_of(page: str, folder: Path, made: Fixtures) -> Scene:
    scene = Scene(page, folder, made)
    with contextlib.chdir(folder):
        SCENES.get(page, _nothing)(scene)
    return scene
