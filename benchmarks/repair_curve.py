"""Phone errors along the way from a ruined body back to its base, on the tiny base: the curve, and the chosen point.

    python benchmarks/repair_curve.py                          as in docs/log.md
    python benchmarks/repair_curve.py --steps 20 --sentences 4  a minute, for trying the script
    python benchmarks/repair_curve.py --run demo/am            a trained adapter, folded in without its gate

The whole body is trained on Amharic alone at a high rate, with no replay and no bound: the mistake that loses English.
With --run nothing is trained: the adapter of a gated run is made a part of the body, for which it was not trained.
What training leaves is diagnosed, then repaired with `--choose` over many points. Everything runs through the verbs.
Prints JSON; with --picture it also draws the curve.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from voxgraft.config.base import deep_merge
from voxgraft.config.commands import DemoSettings, DiagnoseSettings, ExportSettings, RepairSettings
from voxgraft.demo.command import DEMO_BASE, DemoRunner, build_demo_settings, build_step_settings
from voxgraft.export.weights import BASE_DTYPE, open_export_source, write_merged_checkpoint
from voxgraft.graft.folder import MERGED_FOLDER_NAME
from voxgraft.inspect.diagnose import diagnose_checkpoint
from voxgraft.inspect.repair import RepairResult, repair

LANGUAGE = "am"


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="repair-curve-") as folder:
        began = time.monotonic()
        left = Path(folder) / "folded" if options.run else _trained(Path(folder), options)
        trained_seconds = time.monotonic() - began
        files = DemoRunner(Path(folder)).files
        tuned, tokenizer, base = left / files.checkpoint.name, left / files.tokenizer.name, files.folder
        if options.run:
            _fold(options.run, tuned, tokenizer)
        found = diagnose_checkpoint(DiagnoseSettings(checkpoint=tuned, base=base, tokenizer=tokenizer, report=False))
        began = time.monotonic()
        result = repair(
            RepairSettings(
                checkpoint=tuned,
                base=base,
                tokenizer=tokenizer,
                output=Path(folder) / "repaired.safetensors",
                choose=True,
                only=("body",),
                points=tuple(number / options.points for number in range(options.points + 1)),
                language=LANGUAGE,
                max_sentences=options.sentences,
            )
        )
        heard_seconds = time.monotonic() - began
        document = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "run": str(options.run) if options.run else None,
            "steps": options.steps,
            "lr_backbone": options.rate,
            "seed": options.seed,
            "sentences": options.sentences,
            "body_distance": found.distance,
            "verdict": found.verdict.to_json(),
            "points": [one.to_json() for one in result.tried_points],
            "chosen": result.repairs.share,
            "training_seconds": round(trained_seconds, 1),
            "choosing_seconds": round(heard_seconds, 1),
        }
        if options.picture:
            options.picture.write_bytes(_picture(result, found.distance or 0.0))
    print(json.dumps(document, indent=2))


def _fold(run: Path, tuned: Path, tokenizer: Path) -> None:
    """The adapter and the rows of a gated run as one ordinary checkpoint, and its tokenizer beside it."""
    source = open_export_source(ExportSettings(model=run, base=Path(DEMO_BASE), to="graft", accept_terms=True))
    tuned.parent.mkdir()
    write_merged_checkpoint(source, tuned, dtype=BASE_DTYPE)
    shutil.copyfile(source.graft.tokenizer.path, tokenizer)


def _trained(folder: Path, options: argparse.Namespace) -> Path:
    """The whole body at a high rate, and nothing of the old languages beside the new one. Gives what is left."""
    keyboard = DemoRunner(folder)
    train: dict[str, Any] = {
        "mode": "merged",
        "full_backbone": True,
        "lr_backbone": options.rate,
        "kl_weight": 0.0,
        "interpolate": [1.0],
        "retention_bound": 100.0,
    }
    usual = deep_merge(
        build_demo_settings(DemoSettings(folder=folder, seed=options.seed)), build_step_settings(options.steps)
    )
    keyboard.new(deep_merge(usual, {"data": {"self_replay": 0}, "train": train}))
    keyboard.graft()
    keyboard.prepare()
    keyboard.train()
    return keyboard.run.path / MERGED_FOLDER_NAME


def _picture(result: RepairResult, distance: float) -> bytes:
    import io

    import matplotlib
    from matplotlib.figure import Figure

    from voxgraft.training.plots import COLORS, DOTS_PER_INCH, MATPLOTLIB_STYLE, MUTED_COLOR

    names = {"en": "English", "fr": "French", LANGUAGE: "Amharic, the new language"}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(MATPLOTLIB_STYLE)
        figure = Figure(figsize=(6.4, 3.9), layout="constrained")
        axes = figure.subplots()
        shares = [one.share for one in result.tried_points]
        for colour, language in zip(COLORS, result.tried_points[0].errors, strict=False):
            errors = [100 * one.errors[language] for one in result.tried_points]
            axes.plot(shares, errors, marker="o", markersize=3.5, color=colour, label=names.get(language, language))
        assert result.repairs.share is not None
        axes.axvline(result.repairs.share, color=MUTED_COLOR, linestyle="--", label=f"chosen: {result.repairs.share:g}")
        axes.set_title(f"from the base (0) to a body that moved by {distance:.0%} of its length (1)")
        axes.set_xlabel("point")
        axes.set_ylabel("phone error, %")
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=4, borderaxespad=0)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
        return stream.getvalue()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--run", type=Path, help="a gated run on the tiny base, instead of training")
    parser.add_argument("--seed", type=int, default=0, help="of the training; the sentences that are heard stay")
    parser.add_argument("--points", type=int, default=10, help="steps from the base to the tuned body")
    parser.add_argument("--sentences", type=int, default=24, help="of each language, at each point")
    parser.add_argument("--folder", type=Path, help="where temporary files go")
    parser.add_argument("--picture", type=Path, help="file for the curve as PNG")
    return parser.parse_args()


if __name__ == "__main__":
    main()
