"""A worker process of the local engine: settings and batches come in as lines of JSON, outcomes go out the same way.

It ends when nobody writes to it any more, so none is left over when the program that started it is killed.
"""

from __future__ import annotations

import os
import sys

from voxgraft.preprocess.encode import EncodeJob, EncodeWorker, EncodeWorkerConfig


def main() -> None:
    """Encode batches until there are no more."""
    # Whatever a library prints must not come between the outcomes.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as outcomes:
        os.dup2(2, 1)
        stage = EncodeWorker(EncodeWorkerConfig.from_json(sys.stdin.readline()))
        for line in sys.stdin:
            outcomes.write(stage.run(EncodeJob.from_json(line)).to_json() + "\n")
            outcomes.flush()


if __name__ == "__main__":
    main()
