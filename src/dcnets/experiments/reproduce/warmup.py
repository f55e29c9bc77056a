"""How long runs take on this device: a few updates of each kind of network, and whether several at once are quicker."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dcnets.experiments import jsonlines, results
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.reproduce.local import GRACE, PRELOADED, apart
from dcnets.experiments.reproduce.mps import PIPES
from dcnets.experiments.reproduce.perform import Order
from dcnets.experiments.reproduce.plan import Job
from dcnets.experiments.reproduce.sharing import variables

FILE, LOG = "warmup.jsonl", "warmup.txt"
"""Where measurements are kept, beside the runs: the same command does not measure again; and what their processes say."""
SPENT = 1.0
"""Seconds of updates that are timed, one update at least."""
PATIENCE = 1800.0
"""Seconds that a measurement may take, compilation included."""
PAYS = 1.1
"""How much more several runs at once have to do than one at a time."""
SLOW = ("network", "width", "data", "batch", "precision", "adversary", "adversary_steps")
"""The fields that decide how long an update takes, beside whether the network is a decoupled one."""


class WarmupError(RuntimeError):
    """A recipe could not be measured; the message says where to look."""


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


def kind(recipe: Recipe) -> tuple[Any, ...]:
    """What recipes of about the same speed have in common."""
    return (*(getattr(recipe, name) for name in SLOW), recipe.operator is not None)


def paces(jobs: Iterable[Job], order: Order, folder: Path, told: Callable[[str], None]) -> dict[Job, Pace | None]:
    """The pace of each run; one of each kind is measured, in a process of its own.

    It is None for streams, where the disk decides, and for what cannot be measured. What is measured is `told`.
    """
    known: dict[tuple[Any, ...], Pace | None] = {}
    found: dict[Job, Pace | None] = {}
    for job in jobs:
        which = kind(job.recipe)
        if which not in known:
            try:
                known[which] = measured(job.recipe, order, folder, told=told)[0] if job.recipe.data in CATALOGUE else None
            except WarmupError as error:
                known[which] = None
                told(str(error))
        found[job] = known[which]
    return found


def gain(recipe: Recipe, order: Order, folder: Path, lanes: int, told: Callable[[str], None]) -> float:
    """How much more `lanes` runs at once do than one at a time, by the updates of a recipe."""
    alone, *together = measured(recipe, order, folder, lanes, told=told)
    return sum(alone.update / each.update for each in together)


def measured(recipe: Recipe, order: Order, folder: Path, lanes: int = 1, *, told: Callable[[str], None]) -> list[Pace]:
    """The pace of a recipe alone and, where `lanes` are several, in each of so many processes at once, just after it.

    It comes from the file of measurements where it is there.
    """
    place = results.environment(order.device)
    key = {
        "device": place["device"], "dcnets": place["dcnets"], "torch": place["torch"], "kind": list(kind(recipe)),
        "compiled": order.settings.compiled, "captured": order.settings.captured, "threads": order.threads, "lanes": lanes,
        "shared": lanes > 1 and bool(variables()[PIPES]),
    }  # fmt: skip
    path = folder / FILE
    for line in jsonlines.read(path) if path.exists() else ():
        if all(line.get(name) == value for name, value in key.items()):
            return [Pace(**pace) for pace in line["paces"]]
    told(f"warm-up: a few updates of {recipe.name}" + (f", {lanes} at once" if lanes > 1 else ""))
    found = apart_together(recipe, order, folder, 1)
    if lanes > 1:
        found += apart_together(recipe, order, folder, lanes)
    jsonlines.append(path, {**place, **key, "recipe": recipe.name, "paces": [dataclasses.asdict(each) for each in found]})
    return found


def apart_together(recipe: Recipe, order: Order, folder: Path, lanes: int) -> list[Pace]:
    """Measure in processes that begin to count at the same moment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    barrier, started = context.Barrier(lanes), []
    try:
        for _ in range(lanes):
            own, its = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(recipe, order, folder / LOG, variables(), barrier, its))
            process.start()
            its.close()
            started.append((process, own))
        if not all(own.poll(PATIENCE) for _, own in started):
            raise EOFError
        return [own.recv() for _, own in started]
    except EOFError:
        raise WarmupError(f"{recipe.name} could not be measured; why is in {folder / LOG}") from None
    finally:
        for process, own in started:
            own.close()
            process.kill()
            process.join(GRACE)


def work(
    recipe: Recipe, order: Order, log: Path, variables: Mapping[str, str | None], barrier: Any, answer: Connection
) -> None:  # fmt: skip
    """The life of a measuring process."""
    apart(log, variables)
    try:
        answer.send(measure(recipe, order, barrier))
    except BaseException:
        barrier.abort()
        raise


def measure(recipe: Recipe, order: Order, barrier: Any) -> Pace:
    """Prepare as a run does, wait for the others, time updates on random images, then a test."""
    import torch

    from dcnets.experiments.bench import Timed
    from dcnets.experiments.evaluate import evaluate
    from dcnets.experiments.run import chosen_precision, tune_gpu

    if order.threads is not None:
        torch.set_num_threads(order.threads)
    place, begin = torch.device(order.device), time.perf_counter()
    if place.type == "cuda":
        tune_gpu()
    timed = Timed(recipe, place, order.settings.compiled, order.settings.captured)
    timed.wait()
    preparation = time.perf_counter() - begin
    barrier.wait(PATIENCE)
    timed.round(1)
    if timed.times[-1] < 1000 * SPENT:
        timed.round(round(1000 * SPENT / timed.times[-1]))
    update = timed.times[-1] / 1000
    timed.source.begin(0)
    timed.source.advance()
    batch, precision = timed.source.batch(), chosen_precision(recipe, place)
    evaluate(timed.update.model, [batch], precision)
    begin = time.perf_counter()
    evaluate(timed.update.model, [batch], precision)
    test = (time.perf_counter() - begin) * CATALOGUE[recipe.data].test / len(batch[1])
    return Pace(update, test, preparation)
