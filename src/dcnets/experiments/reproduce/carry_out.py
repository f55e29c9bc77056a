"""Run after run through an engine, a line appended for each; what fails is told, and the rest go on."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dcnets.experiments import results
from dcnets.experiments.progress import Progress
from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.lines import Line, runs_in, unlike
from dcnets.experiments.reproduce.overall import Overall
from dcnets.experiments.reproduce.perform import Ended, Order
from dcnets.experiments.reproduce.place import Place
from dcnets.experiments.signals import StoppedError, Wish, watched

LOOK = 0.5
"""Seconds from one look at the runs to the next."""
TRIES = 3
"""How often a run is begun whose process is killed each time."""


class Engine(Protocol):
    """Where runs are done: `Local` on this machine, `Ray` on many."""

    lanes: int

    @property
    def width(self) -> int:
        """How many runs there is room for at once, on all devices together."""

    def place(self, device: str) -> Place:
        """The device of the runs."""

    @property
    def free(self) -> bool:
        """Whether another run can be started."""

    def start(self, job: Job, order: Order) -> None:
        """Begin a run."""

    def wait(self, seconds: float) -> list[Ended]:
        """The runs that have ended, after so many seconds at most."""

    def stop(self) -> None:
        """Let all runs save their state and end."""

    def close(self) -> None:
        """End what still runs."""


@dataclass
class Outcome:
    """What came of the runs: the line of each that came to its end, and what is told of each that failed."""

    lines: dict[Job, Line] = field(default_factory=dict)
    failed: dict[Job, str] = field(default_factory=dict)


def carry_out(
    expected: Mapping[Job, float | None], engine: Engine, order: Order, results_file: Path, *, title: str = "reproduce",
    told: Callable[[Job, Line], str] = lambda job, line: f"{job.title}: {line['top1_error']}", quiet: bool = False,
) -> Outcome:  # fmt: skip
    """Do the runs, each with the seconds that it is expected to take; `told` says in a line what came of one.

    Ctrl-C or SIGTERM lets the runs on their way save their state and raises `StoppedError`.
    """
    walk = Walk(expected, engine, order, results_file, told)
    if not expected:
        return walk.outcome
    bar = Overall(title, expected, engine.width)
    with watched() as wish, redirect_stdout(sys.stderr), Progress(title, bar.total, quiet=quiet) as walk.progress:
        walk.progress.bars[0] = bar
        try:
            walk.go(wish, bar)  # what Ray prints meanwhile is no part of a command's answer
        finally:
            engine.close()
    return walk.outcome


def longest_first(jobs: Mapping[Job, float | None]) -> dict[Job, float | None]:
    """The order in which several at once are done soonest: no long run is left for the end.

    Those whose time is unknown come first, by how much there is to do.
    """
    return dict(sorted(jobs.items(), key=lambda job: (-math.inf, -job[0].work) if job[1] is None else (-job[1], 0)))


class Walk:
    """Some runs on their way: those that wait, those that run, how often each was begun, and what came of the others."""

    progress: Progress

    def __init__(
        self, jobs: Mapping[Job, float | None], engine: Engine, order: Order, results_file: Path,
        told: Callable[[Job, Line], str],
    ) -> None:  # fmt: skip
        self.engine, self.order, self.results_file, self.told = engine, order, results_file, told
        self.waiting, self.running = list(jobs), list[Job]()
        self.begun: Counter[Job] = Counter()
        self.outcome, self.stopping = Outcome(), False

    def go(self, wish: Wish, bar: Overall) -> None:
        """Until all have ended, or to a signal."""
        while self.waiting or self.running:
            self.begin()
            for ended in self.engine.wait(LOOK):
                self.note(ended)
            self.progress.update(bar.see(self.running, {*self.outcome.lines, *self.outcome.failed}))
            if wish.signal is not None:
                self.stopping = True
                self.progress.note("stopping: the runs on their way save their state")
                self.engine.stop()
                for ended in self.engine.wait(0):
                    self.note(ended)
                count, total = len(self.outcome.lines), len(bar.steps)
                raise StoppedError(wish.signal, f"stopped after {count} of {total} runs; the same command goes on")

    def begin(self) -> None:
        """Start what the engine has room for; a run whose first weights are still in the making waits."""
        for job in list(self.waiting):
            if not self.engine.free:
                return
            if job.start in {other.folder for other in [*self.waiting, *self.running]}:
                continue
            self.waiting.remove(job)
            source = next((other for other in self.outcome.failed if other.folder == job.start), None)
            if source is not None:
                self.fail(job, f"its first weights were to come from {source.title}, which failed")
                continue
            self.begun[job] += 1
            self.running.append(job)
            self.engine.start(job, self.order)

    def note(self, ended: Ended) -> None:
        """Book a run that has ended."""
        job, line = ended.job, ended.line
        self.running.remove(job)
        if line is not None:
            if not self.is_there(job, line):
                results.append(self.results_file, line)
            self.outcome.lines[job] = line
            self.progress.note(self.told(job, line))
        elif self.stopping:
            self.waiting.insert(0, job)
        elif ended.how != "failed" and self.begun[job] < TRIES:  # somebody else has killed or stopped it
            self.progress.note(f"{job.title}: {ended.told}; it is run again")
            self.waiting.insert(0, job)
        else:
            self.fail(job, ended.told)

    def is_there(self, job: Job, line: Line) -> bool:
        """Whether the file has the line of such a run: that of a kept run, or another command's."""
        return any(not unlike(each, job.recipe, line["precision"]) for each in runs_in(self.results_file)[0])

    def fail(self, job: Job, told: str) -> None:
        """Book and tell a failure."""
        self.outcome.failed[job] = told
        self.progress.note(f"{job.title}: failed: {told}")
