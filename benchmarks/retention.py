"""What each way of training costs the language that a base knew: with and without replay, KL to the base, as in the seeds.

    OMP_NUM_THREADS=1 python -m benchmarks.retention FOLDER [--steps 200] [--base-steps 500] [--ways seeds-1e-3 gated ...]

A tiny T3 that reads made-up English aloud is taught made-up Amharic by the real verb, 200 steps each way. Told are the
speech losses on held-out clips of both languages, in nats a code. Needs no GPU; about a minute a way on one core.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.made_language import World, make_speaking_base, make_world
from voxgraft.corpus.sets import open_set
from voxgraft.corpus.stream import StreamOptions, items_of
from voxgraft.families import family
from voxgraft.families.opening import open_model
from voxgraft.journal import Journal
from voxgraft.results import Table
from voxgraft.run_settings import DataSettings, TrainSettings
from voxgraft.settings import TrainVerbSettings
from voxgraft.train import train
from voxgraft.training.examples import Examples
from voxgraft.training.parts import Trained
from voxgraft.training.validation import Validation

FAMILY = "chatterbox"
CLIPS, HELD_OUT, SENTENCES = 400, 32, 300
BODY = {"full_body": True, "body_rate": 1e-3}


@dataclass(frozen=True)
class Way:
    """Settings of one way, and whether the English clips, or texts for the base to speak, are used."""

    settings: dict[str, Any]
    recorded: bool = False
    self_made: bool = False
    as_in_the_seeds: bool = False


WAYS = {
    "adapter, no replay": Way({}),
    "adapter, replay": Way({"kl_weight": 0.0}, recorded=True),
    "adapter, replay, KL": Way({}, recorded=True),
    "adapter, self-made replay by cross-entropy": Way({"kl_weight": 0.0}, self_made=True),
    "adapter, self-made replay, KL": Way({}, self_made=True),
    "adapter, self-made replay, KL weight 4": Way({"kl_weight": 4.0}, self_made=True),
    "body 1e-3, no replay": Way(BODY),
    "body 1e-3, replay, KL": Way(BODY, recorded=True),
    "body 1e-3, self-made replay, KL": Way(BODY, self_made=True),
    "as in the seeds, 1e-3": Way({"mode": "gated", "body_rate": 1e-3}, as_in_the_seeds=True),
    "as in the seeds, 1e-4": Way({"mode": "gated", "body_rate": 1e-4}, as_in_the_seeds=True),
    "gated": Way({"mode": "gated"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--base-steps", type=int, default=500)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    asked = parser.parse_args()
    world = _world(asked.folder, asked.base_steps)
    before = _english_loss(world, world.files.checkpoint)
    rows = []
    for name in asked.ways:
        found = _trained(world, asked.folder / name.replace(" ", "-").replace(",", ""), WAYS[name], asked.steps)
        rows.append([name, f"{found['am']:.3f}", f"{found['en']:.3f}", f"{found['en'] / before:.1f}"])
        print(json.dumps({"way": name, "before": before, **found}), flush=True)
    table = Table(("way", "Amharic", "English", "times before"), tuple(map(tuple, rows)))
    print("\n".join(table.lines()))


def _world(folder: Path, base_steps: int) -> World:
    """The base, a run with a graft, and sets of both languages; what is there already is used again."""
    if not (folder / "base").is_dir():
        make_speaking_base(FAMILY, folder, steps=base_steps)
    shutil.rmtree(folder / "world", ignore_errors=True)
    world = make_world(FAMILY, folder / "world", folder / "base")
    world.write_healthy(clips=CLIPS, held_out=HELD_OUT)
    of_base = replace(world, made_from=replace(world.made_from, tokenizer_sha256=world.spelling.base.sha256))
    of_base.write("english", of_base.clips(CLIPS, 11, "en"), "replay", "en")
    of_base.write("english-valid", of_base.clips(HELD_OUT, 12, "en"), "valid", "en")
    texts = [clip.info.text for clip in of_base.clips(SENTENCES, 13, "en")]
    (folder / "en.txt").write_text("\n".join(texts) + "\n")
    return world


def _trained(world: World, run: Path, way: Way, steps: int) -> dict[str, float]:
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(world.run, run)
    data: dict[str, Any] = {"min_prompt_seconds": 0.1, "self_replay": None if way.self_made else 0}
    if way.recorded:
        data["replay"] = (run / "data" / "english",)
    if way.self_made:
        data["replay_texts"] = (run.parent / "en.txt",)
    common: dict[str, Any] = {"mode": "merged", "steps": steps, "warmup_steps": 20, "tokens_per_step": 2_000}
    rare = {"valid_every": steps, "save_every": steps, "sample_every": 10 * steps, "interpolate": (1.0,)}
    settings = TrainVerbSettings(
        run=run,
        base=world.files.folder,
        language="am",
        data=DataSettings(**data),
        train=TrainSettings(**{**common, **rare, "retention_bound": None, **way.settings}),
        as_in_the_seeds=way.as_in_the_seeds,
    )
    result = train(settings)
    valid = [entry for entry in Journal(run / "journal.jsonl").read() if entry["kind"] == "valid"]
    own = [entry["speech_loss"] for entry in valid if entry["set"] == "am"][-1]
    checkpoint = result.merged.folder / world.files.checkpoint.name if result.merged else world.files.checkpoint
    return {"am": own, "en": _english_loss(world, checkpoint)}


@torch.no_grad()
def _english_loss(world: World, checkpoint: Path) -> float:
    """Of a checkpoint as stock software has it, gate or no gate."""
    kind = family(FAMILY)
    model = open_model(kind, replace(world.files, checkpoint=checkpoint))
    sets = [open_set(world.run / "data" / "english-valid")]
    order = StreamOptions(min_prompt_seconds=0.1, num_conditioning=model.frame.num_conditioning)
    return (
        Validation(Trained(model, {}, None), Examples(kind, model, sets), items_of(sets, 0, order), 2_000)
        .run()
        .speech_loss
    )


if __name__ == "__main__":
    main()
