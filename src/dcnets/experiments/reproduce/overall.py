"""The one bar of a plan: how many updates of all its runs are done, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from dcnets.experiments import jsonlines
from dcnets.experiments.bar import Bar, clock
from dcnets.experiments.reproduce.job import Job

ENOUGH = 0.02
"""The share of the work after which the time left goes by what this command has done, and no longer by what it expected."""


class Overall(Bar):
    """Updates of all runs. Each counts by the seconds that its run was expected to take, or all alike."""

    def __init__(self, title: str, expected: Mapping[Job, float | None], lanes: int) -> None:
        self.before = {job: min(job.done, job.updates) for job in expected}
        super().__init__(title, sum(job.updates for job in expected), "update", None)
        self.steps = dict(self.before)
        self.measured = all(seconds is not None for seconds in expected.values())
        self.seconds = {job: float(seconds if seconds is not None else job.updates) for job, seconds in expected.items()}
        self.lanes, self.ended, self.now_running = lanes, 0, ""

    def see(self, running: list[Job], ended: set[Job]) -> int:
        """Look how far the runs are; the updates done by all of them."""
        for job in running:
            self.steps[job] = max(self.steps[job], progress_of(job))
        for job in ended:
            self.steps[job] = job.updates
        self.ended = len(ended)
        shown = [f"{job.title} {100 * self.steps[job] // max(job.updates, 1)} %" for job in running]
        self.now_running = ", ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")
        return sum(self.steps.values())

    def time_told(self) -> str:
        """The time left: as expected at first, by the pace of this command soon after."""
        if self.finished:
            return super().time_told()
        share = {job: (self.steps[job] - start) / max(job.updates - start, 1) for job, start in self.before.items()}
        all_work, done = sum(self.seconds.values()), sum(self.seconds[job] * part for job, part in share.items())
        if done > ENOUGH * all_work:
            return f"{clock((time.perf_counter() - self.begin) * (all_work - done) / done)} left"
        return f"{clock((all_work - done) / self.lanes)} left" if self.measured else "– left"

    def numbers(self) -> list[str]:
        """Runs, updates, and what runs now."""
        told = [f"run {self.ended}/{len(self.steps)}", f"update {self.step:,}/{self.total:,}"]
        return [*told, self.now_running] if self.now_running else told


def progress_of(job: Job) -> int:
    """The last update that a run has told of, by a test or a checkpoint."""
    step = job.done
    with suppress(OSError):
        with open(job.folder / "metrics.jsonl", "rb") as file:
            file.seek(max(file.seek(0, 2) - 4096, 0))
            lines = [jsonlines.decode(line) for line in file.read().split(b"\n")]
        step = max([step, *(int(line["step"]) for line in lines if line and "step" in line)])
    return min(step, job.updates)
