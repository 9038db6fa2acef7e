"""The verb `demo`: the story so far on bases of random weights, as a user would run it, with its proofs.

The one verb that calls others: it stands in for the person at the keyboard.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from voxgraft.errors import FileError
from voxgraft.extend import ExtendResult, extend
from voxgraft.families import family, family_names
from voxgraft.families.base import Role
from voxgraft.families.random_base import make_random_base
from voxgraft.files import is_file, is_there, write_text
from voxgraft.graft import GraftResult, graft
from voxgraft.graft_folder import open_graft
from voxgraft.new import new
from voxgraft.reports import growth_lines
from voxgraft.results import Line, styled
from voxgraft.run_settings import FamilyName
from voxgraft.settings import DemoSettings, ExtendSettings, GraftSettings, NewSettings

LANGUAGE = "am"
STEPS = 200
_MARK = "made-by-voxgraft-demo"


@dataclass(frozen=True, slots=True)
class Trained:
    """Promise 2 on the grown layers, after real optimizer steps with weight decay."""

    steps: int
    base_rows_same: bool
    base_logits_same: bool
    new_rows_moved: bool


@dataclass(frozen=True, slots=True)
class Story:
    """One family's part of the demonstration."""

    family: str
    graft: GraftResult
    extend: ExtendResult
    trained: Trained


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Every family's story; fails if a promise is not kept."""

    stories: tuple[Story, ...]
    folder: Path

    @property
    def exit_code(self) -> int:
        kept = all(
            story.graft.exit_code == 0
            and story.extend.proof is not None
            and story.trained.base_rows_same
            and story.trained.base_logits_same
            and story.trained.new_rows_moved
            for story in self.stories
        )
        return 0 if kept else 1

    def to_json(self) -> dict[str, Any]:
        return {
            story.family: {
                "graft": story.graft.to_json(),
                "extend": story.extend.to_json(),
                "trained": {name: getattr(story.trained, name) for name in story.trained.__slots__},
            }
            for story in self.stories
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        for story in self.stories:
            lines += [*_story_lines(story), ""]
        return [*lines, f"everything is in {self.folder}; the weights are random, so nothing here can speak yet"]


def demo(settings: DemoSettings) -> DemoResult:
    """Make a random base of each family, graft Amharic onto it, grow the checkpoint, and try to move the base."""
    folder = settings.folder
    if is_there(folder):
        if not is_file(folder / _MARK):
            found, cure = f"{folder} is there already and is no demo of ours", "choose another folder."
            raise FileError("file-exists", found, where=folder, cure=cure)
        shutil.rmtree(folder)
    write_text(folder / _MARK, "Made by `voxgraft demo`, which replaces this folder.\n")
    with resources.as_file(resources.files("voxgraft").joinpath(f"data/demo/{LANGUAGE}.txt")) as text:
        stories = tuple(_story(name, folder / name, text) for name in _families())
    return DemoResult(stories, folder)


def _families() -> Iterator[FamilyName]:
    yield from family_names()  # type: ignore[misc]


def _story(name: FamilyName, folder: Path, text: Path) -> Story:
    base = make_random_base(name, folder / "base", size="small")
    run = folder / LANGUAGE
    new(NewSettings(run=run, base=base.folder, family=name, language=LANGUAGE, texts=(text,)))
    made = graft(GraftSettings(run=run, base=base.folder, family=name, language=LANGUAGE, texts=(text,)))
    grown = open_graft(run / "graft")
    output = folder / f"grown{base.checkpoint.suffix}"
    extended = extend(
        ExtendSettings(checkpoint=base.checkpoint, tokenizer=grown.folder / grown.card.tokenizer, output=output)
    )
    return Story(name, made, extended, _train(name, output, grown.card.base_pieces))


def _train(name: str, checkpoint: Path, base_pieces: int) -> Trained:
    """AdamW with weight decay on the grown text tables of the file, trying to predict random ids, old and new."""
    import torch
    from torch.nn import functional

    from voxgraft.checkpoints import open_checkpoint
    from voxgraft.nn.grown import GrownEmbedding, GrownHead, RowLayout

    spare = family(name).spare_rows
    with open_checkpoint(checkpoint) as opened:
        values = {point.role: torch.from_numpy(opened.read(point.tensor)) for point in family(name).graft_points}
    rows = RowLayout.of_grown(len(values["embedding"]), base_pieces, spare)
    embedding = GrownEmbedding.from_grown(values["embedding"], base_pieces, spare)
    head = GrownHead.from_grown(values["head"], base_pieces, spare, bias=values.get("head-bias"))
    optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()], lr=1e-2, weight_decay=0.1)
    draws = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        ids = torch.randint(rows.num_ids, (64,), generator=draws)
        optimizer.zero_grad()
        functional.cross_entropy(head(embedding(ids)), ids.roll(-1)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    after: dict[Role, torch.Tensor] = {
        "embedding": embedding.state_dict()["weight"],
        "head": head.state_dict()["weight"],
    }
    halves = {role: (rows.split(values[role]), rows.split(after[role])) for role in after}
    hidden = torch.randn(33, values["head"].shape[1], generator=draws)
    base_bias = rows.split(values["head-bias"])[0] if "head-bias" in values else None
    return Trained(
        STEPS,
        all(torch.equal(old[0], new[0]) for old, new in halves.values()),
        torch.equal(head.base_logits(hidden), functional.linear(hidden, halves["head"][0][0], base_bias)),
        all(not torch.equal(old[1], new[1]) for old, new in halves.values()),
    )


def _story_lines(story: Story) -> list[Line]:
    trained = story.trained

    def verdict(kept: bool) -> tuple[str, str]:
        return ("kept", "bold green") if kept else ("BROKEN", "bold red")

    return [
        styled((f"== {story.family} ==", "bold")),
        *story.graft.lines(),
        styled("extend, old rows are the same bits in the new file: ", verdict(story.extend.proof is not None)),
        *growth_lines(story.extend.report),
        styled(
            f"promise 2, base rows after {trained.steps} AdamW steps with weight decay: ",
            verdict(trained.base_rows_same),
        ),
        styled("base logits of the grown head equal the base's own, bit for bit: ", verdict(trained.base_logits_same)),
        f"new rows moved: {'yes' if trained.new_rows_moved else 'NO'}",
    ]
