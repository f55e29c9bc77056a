"""Runs timed on this device: all are prepared at once, each in a process of its own, and then timed in turns."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING

from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.local import GRACE, PRELOADED, apart
from dcnets.experiments.reproduce.perform import Order
from dcnets.experiments.reproduce.sharing import variables

if TYPE_CHECKING:
    import torch

    from dcnets.experiments.bench import Timed

SPENT = 1.0
"""Seconds of updates that are timed, one update at least."""
PATIENCE = 1800.0
"""Seconds that a measurement may take, compilation included."""


@dataclass(frozen=True)
class Pace:
    """Seconds of an update, of a whole test, and of what comes before the first update."""

    update: float
    test: float
    preparation: float

    def seconds(self, job: Job) -> float:
        """What is left of a run."""
        recipe, entry = job.recipe, CATALOGUE[job.recipe.data]
        left = max(job.updates - job.done, 0)
        every = max(1, round(recipe.evaluate_every * (entry.train // recipe.batch)))
        return self.preparation + left * self.update + math.ceil(left / every) * self.test


def timed(
    recipes: Sequence[Recipe], turns: Sequence[Sequence[int]], order: Order, log: Path
) -> list[list[Pace] | None]:  # fmt: skip
    """The paces of each turn, which names recipes by their places: those of a turn run at the same time, and no others.

    A turn of which a process fails is None; what the process had to say is in the log.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    started: list[tuple[ForkServerProcess, Connection]] = []
    try:
        for recipe in recipes:
            own, its = context.Pipe()
            process = context.Process(target=work, args=(recipe, order, log, variables(), its))
            process.start()
            its.close()
            started.append((process, own))
        lines = [own for _, own in started]
        ready = [answered(own) is not None for own in lines]  # all are, or have failed, before anything is timed
        return [together([lines[at] for at in turn]) if all(ready[at] for at in turn) else None for turn in turns]
    finally:
        for process, own in started:
            own.close()
            process.kill()
            process.join(GRACE)


def together(lines: Sequence[Connection]) -> list[Pace] | None:
    """The paces of some processes that are told to begin at the same moment."""
    try:
        for own in lines:
            own.send(None)
    except BrokenPipeError:
        return None
    paces = [answered(own) for own in lines]
    return [pace for pace in paces if pace] if all(paces) else None


def answered(own: Connection) -> Pace | None:
    """A process's answer; None where it has ended without one, or takes too long."""
    try:
        answer: Pace | None = own.recv() if own.poll(PATIENCE) else None
    except (EOFError, ConnectionResetError):
        return None
    return answer


def work(recipe: Recipe, order: Order, log: Path, variables: Mapping[str, str | None], line: Connection) -> None:
    """The life of a process: prepare as a run does, say so, and time updates on random images each time that it is asked."""
    apart(log, variables)
    import torch

    from dcnets.experiments.bench import Timed
    from dcnets.experiments.run import tune_gpu

    if order.threads is not None:
        torch.set_num_threads(order.threads)
    place, begin = torch.device(order.device), time.perf_counter()
    if place.type == "cuda":
        tune_gpu()
    subject = Timed(recipe, place, order.settings.compiled, order.settings.captured)
    subject.wait()
    preparation = time.perf_counter() - begin
    line.send(Pace(0.0, 0.0, preparation))
    while True:
        line.recv()
        subject.round(1)
        if subject.times[-1] < 1000 * SPENT:
            subject.round(round(1000 * SPENT / subject.times[-1]))
        line.send(Pace(subject.times[-1] / 1000, seconds_of_test(subject, recipe, place), preparation))


def seconds_of_test(subject: Timed, recipe: Recipe, place: torch.device) -> float:
    """The seconds of a whole test, by one batch."""
    from dcnets.experiments.evaluate import evaluate
    from dcnets.experiments.run import chosen_precision

    subject.source.begin(0)
    subject.source.advance()
    batch, precision = subject.source.batch(), chosen_precision(recipe, place)
    evaluate(subject.update.model, [batch], precision)
    begin = time.perf_counter()
    evaluate(subject.update.model, [batch], precision)
    return (time.perf_counter() - begin) * CATALOGUE[recipe.data].test / len(batch[1])
