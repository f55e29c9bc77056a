"""How long runs take on this device: a few updates of each kind of network, and whether several at once are quicker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dcnets.experiments import jsonlines, results
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.mps import PIPES
from dcnets.experiments.reproduce.perform import Order
from dcnets.experiments.reproduce.sharing import variables
from dcnets.experiments.reproduce.timing import Pace, timed

FILE, LOG = "warmup.jsonl", "warmup.txt"
"""Where measurements are kept, beside the runs: the same command does not measure again; and what their processes say."""
AT_ONCE = 4
"""Networks that are prepared at once, as that may take a minute each; all of them have to fit into the memory."""
PAYS = 1.1
"""How much more several runs at once have to do than one at a time."""
SLOW = ("network", "width", "data", "batch", "precision", "adversary", "adversary_steps")
"""The fields that decide how long an update takes, beside whether the network is a decoupled one."""
Kind = tuple[Any, ...]
Tell = Callable[[str], None]


class WarmupError(RuntimeError):
    """A recipe could not be measured; the message says where to look."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        super().__init__(f"{recipe.name} could not be measured; why is in {folder / LOG}")


def kind(recipe: Recipe) -> Kind:
    """What recipes of about the same speed have in common."""
    return (*(getattr(recipe, name) for name in SLOW), recipe.operator is not None)


def paces(jobs: Iterable[Job], order: Order, folder: Path, told: Tell) -> dict[Job, Pace | None]:
    """The pace of each run; one of each kind is measured, in a process of its own.

    It is None for streams, where the disk decides, and for what cannot be measured. What is measured is `told`.
    """
    jobs, notes = list(jobs), Notes(order, folder)
    first: dict[Kind, Recipe] = {}
    for job in jobs:
        if job.recipe.data in CATALOGUE:
            first.setdefault(kind(job.recipe), job.recipe)
    known: dict[Kind, Pace | None] = {which: found[0] for which, recipe in first.items() if (found := notes.read(recipe))}
    missing = [recipe for which, recipe in first.items() if which not in known]
    for at in range(0, len(missing), AT_ONCE):
        some = missing[at : at + AT_ONCE]
        told(f"warm-up: a few updates of {', '.join(recipe.name for recipe in some)}")
        measured = timed(some, [[own] for own in range(len(some))], order, folder / LOG)
        for recipe, pace in zip(some, measured, strict=True):
            known[kind(recipe)] = pace[0] if pace else None
            if pace:
                notes.write(recipe, pace)
            else:
                told(str(WarmupError(recipe, folder)))
    return {job: known.get(kind(job.recipe)) for job in jobs}


def gain(recipe: Recipe, order: Order, folder: Path, lanes: int, told: Tell) -> float:
    """How much more `lanes` runs at once do than one at a time, by the updates of a recipe."""
    notes = Notes(order, folder, lanes)
    measured = notes.read(recipe)
    if measured is None:
        told(f"warm-up: a few updates of {recipe.name}, {lanes} at once")
        alone, together = timed([recipe] * lanes, [[0], range(lanes)], order, folder / LOG)
        if alone is None or together is None:
            raise WarmupError(recipe, folder)
        measured = notes.write(recipe, [*alone, *together])
    return sum(measured[0].update / each.update for each in measured[1:])


class Notes:
    """The measurements in the folder's file that were made here and in this way, `lanes` at once."""

    def __init__(self, order: Order, folder: Path, lanes: int = 1) -> None:
        self.path, self.place = folder / FILE, results.environment(order.device)
        self.key = {
            "device": self.place["device"], "dcnets": self.place["dcnets"], "torch": self.place["torch"],
            "compiled": order.settings.compiled, "captured": order.settings.captured, "threads": order.threads,
            "lanes": lanes, "shared": lanes > 1 and bool(variables()[PIPES]),
        }  # fmt: skip

    def read(self, recipe: Recipe) -> list[Pace] | None:
        """The paces of a recipe's kind: alone, then those of all lanes where there are several; None where it has none."""
        key = self.key | {"kind": list(kind(recipe))}
        for line in jsonlines.read_and_tell(self.path)[0]:  # what is torn is measured again
            if all(line.get(name) == value for name, value in key.items()):
                return [Pace(**pace) for pace in line["paces"]]
        return None

    def write(self, recipe: Recipe, paces: list[Pace]) -> list[Pace]:
        """Keep them."""
        told = {"kind": list(kind(recipe)), "recipe": recipe.name, "paces": [dataclasses.asdict(each) for each in paces]}
        jsonlines.append(self.path, {**self.place, **self.key, **told})
        return paces
