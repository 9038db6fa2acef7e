"""Write a base with random weights: `python -m tools.random_bases FAMILY FOLDER [--size SIZE] [--seed N]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from tools.random_bases import RandomSizeName, make_random_base
from voxgraft.models import family_names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.random_bases", description=__doc__)
    parser.add_argument("family", choices=family_names())
    parser.add_argument("folder", type=Path, help="new folder for the base")
    sizes = "tiny for tests, small for a demonstration, full with the published shapes"
    parser.add_argument("--size", choices=get_args(RandomSizeName), default="tiny", help=sizes)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    arguments = parser.parse_args()
    files = make_random_base(arguments.family, arguments.folder, size=arguments.size, seed=arguments.seed)
    for path in (files.checkpoint, files.tokenizer, files.config):
        if path is not None:
            print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
