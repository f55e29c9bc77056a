"""The seam for cells that are accuracies under attack: their networks are trained by now, and are attacked here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dcnets.experiments.paper import Cell
from dcnets.experiments.reproduce.plan import SUBSTITUTE_SEED, Plan


@dataclass(frozen=True)
class Target:
    """A cell's trained network of one seed, in its folder, and that of the network which its images are made on."""

    cell: Cell
    seed: int
    network: Path
    maker: Path


def targets(plan: Plan) -> Iterator[Target]:
    """All that is to be attacked, in the order of the cells, as far as the networks are there."""
    makers = {job.recipe.name: job for job in plan.jobs if job.recipe.seed == SUBSTITUTE_SEED}
    for cell, jobs in plan.cells.items():
        if cell.attack not in ("fgsm", "bim"):
            continue
        for job in jobs:
            maker = job
            if cell.substitute is not None:
                maker = next(each for name, each in makers.items() if name.startswith(cell.substitute))
            if all(each in plan.there and each.done for each in (job, maker)):
                yield Target(cell, job.recipe.seed, job.folder, maker.folder)


def examine(target: Target) -> str | None:
    """Attack a network and record the accuracy; what is told of it, or None while nobody can: evaluation plugs in here."""
    return None
