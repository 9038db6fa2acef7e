"""The Ray engine: the same stage on Ray Data, on the cluster that RAY_ADDRESS names or on this machine.

Batches are written by the workers, so all machines must see the run's folder and the sound under the same paths.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from voxgraft.errors import ConfigError
from voxgraft.preparing.stage import EncodeJob, EncodeResult, EncodeWorker, EncodeWorkerConfig

__all__ = ["encode_on_ray"]

RAY_ADDRESS_VARIABLE = "RAY_ADDRESS"


def encode_on_ray(settings: EncodeWorkerConfig, jobs: Sequence[EncodeJob], workers: int) -> Iterator[EncodeResult]:
    """Outcomes as they come. A worker that dies is replaced by Ray, and its batch given to another."""
    try:
        ray: Any = import_module("ray")
        data: Any = import_module("ray.data")
    except ImportError as error:
        found = f"--engine ray needs the package {error.name}"
        raise ConfigError("package-missing", found, cure="pip install 'voxgraft[ray]'.") from None
    # Ray reports its use to its makers unless told otherwise, and talks a lot.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    own = not ray.is_initialized()
    if own:
        here = {} if os.environ.get(RAY_ADDRESS_VARIABLE) else {"num_cpus": workers, "include_dashboard": False}
        ray.init(logging_level="error", log_to_driver=False, **here)
    try:
        yield from _iter_ray_results(data, settings, jobs, min(workers, len(jobs)))
    finally:
        if own:
            ray.shutdown()


def _iter_ray_results(
    data: Any, settings: EncodeWorkerConfig, jobs: Sequence[EncodeJob], workers: int
) -> Iterator[EncodeResult]:
    data.DataContext.get_current().enable_progress_bars = False
    rows = data.from_items([{"job": job.to_json()} for job in jobs], override_num_blocks=len(jobs))
    gpus = {"num_gpus": 1} if settings.device.startswith("cuda") else {"num_cpus": 1}
    done = rows.map_batches(
        RayEncodeWorker,
        fn_constructor_args=(settings.to_json(),),
        batch_size=1,
        compute=data.ActorPoolStrategy(size=workers),
        **gpus,
    )
    for row in done.iter_rows():
        yield EncodeResult.from_json(row["outcome"])


class RayEncodeWorker:
    """The stage as Ray Data calls it."""

    def __init__(self, settings: str) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        self._stage = EncodeWorker(EncodeWorkerConfig.from_json(settings))

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        return {"outcome": [self._stage.run(EncodeJob.from_json(str(job))).to_json() for job in rows["job"]]}
