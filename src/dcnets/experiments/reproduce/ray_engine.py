"""The engine of many devices and machines: each run is a task of Ray, which finds it a place."""

from __future__ import annotations

import importlib
import os
from typing import Any

from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.local import GRACE
from dcnets.experiments.reproduce.perform import Ended, Order, attempt
from dcnets.experiments.reproduce.place import Place, here


class Ray:
    """Runs on the cluster at RAY_ADDRESS, or on this machine; `lanes` at a time on each GPU, or on this machine's CPU.

    A run on another machine needs the folders of runs and data at the same path there, as on a shared disk.
    """

    free = True  # Ray keeps what has no place yet

    def __init__(self, lanes: int = 1) -> None:
        self.lanes = lanes
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will have it; else it warns
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError(f"--engine ray needs the package ray ({error}); pip install 'dcnets[ray]'") from None
        cluster = os.environ.get("RAY_ADDRESS")
        alone = {"include_dashboard": False, "num_cpus": max(lanes, os.cpu_count() or 1)}
        self.ray.init(log_to_driver=False, logging_level="ERROR", **({"address": cluster} if cluster else alone))
        self.needs: dict[str, float] = {}
        self.running: dict[Job, Any] = {}

    def place(self, device: str) -> Place:
        """The device of the runs, as one of them sees it: GPUs where the cluster has any, unless told otherwise."""
        gpus = self.ray.cluster_resources().get("GPU", 0)
        if device == "cuda" and not gpus:
            raise ValueError("Ray has no GPU here; use --device cpu, or give the address of a cluster in RAY_ADDRESS")
        chosen = "cuda" if gpus and device != "cpu" else "cpu"
        cpus = (os.cpu_count() or 1) / self.lanes if chosen == "cpu" else 1.0
        self.needs = {"num_cpus": max(1, int(cpus)), "num_gpus": 1 / self.lanes if chosen == "cuda" else 0}
        found: Place = self.ray.get(self.ray.remote(here).options(**self.needs).remote(chosen))
        return found

    @property
    def width(self) -> int:
        """How many runs the cluster has room for, as large as it is now."""
        kind = "GPU" if self.needs["num_gpus"] else "CPU"
        return max(1, int(self.ray.cluster_resources().get(kind, 0) / self.needs[f"num_{kind.lower()}s"]))

    def start(self, job: Job, order: Order) -> None:
        """Hand a run to Ray; who tries again after a crash is the caller."""
        task = self.ray.remote(attempt).options(max_retries=0, name=job.title, **self.needs)
        self.running[job] = task.remote(job, order)

    def wait(self, seconds: float) -> list[Ended]:
        """The runs that have ended, after so many seconds at most."""
        if not self.running:
            return []
        ready, _ = self.ray.wait(list(self.running.values()), num_returns=1, timeout=seconds)
        return [self.ended(job) for job, task in list(self.running.items()) if task in ready]

    def ended(self, job: Job) -> Ended:
        """What a task says, or what Ray tells of one that ended without a word."""
        task, failures = self.running.pop(job), self.ray.exceptions
        try:
            found: Ended = self.ray.get(task)
        except failures.TaskCancelledError:
            return Ended(job, "stopped", told="cancelled")
        except failures.RayError as error:
            return Ended(job, "lost", told=str(error).strip().splitlines()[0])
        return found

    def stop(self) -> None:
        """Let all runs save their state and end."""
        for task in self.running.values():
            self.ray.cancel(task, force=False)
        if self.running:
            self.ray.wait(list(self.running.values()), num_returns=len(self.running), timeout=GRACE)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self.running.clear()
        self.ray.shutdown()
