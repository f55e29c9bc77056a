"""What is to run: the runs of some cells, less those that have their line in `results/` and whose networks nothing needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcnets.experiments import recipes
from dcnets.experiments.paper import Cell
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.reproduce.job import Job, Target
from dcnets.experiments.reproduce.lines import Differences, Line, accuracy, origin, unlike
from dcnets.experiments.scaling import scaled_name


@dataclass(frozen=True)
class Other:
    """A line that stems from a wanted recipe and is not the same: its value and the wanted one for each difference."""

    line: Line
    differences: Differences


@dataclass(frozen=True)
class Plan:
    """The runs of each cell, seed by seed; every run once; the lines that are there, and those that are not the same.

    `measured` has the accuracies under attack, in percent, that are there; `unmeasured` is what has yet to be attacked,
    which a network that did not converge never is. `networks`: those that converged are wanted, and not their lines alone.
    """

    cells: dict[Cell, tuple[Job, ...]]
    jobs: tuple[Job, ...]
    there: dict[Job, Line]
    others: tuple[Other, ...]
    measured: dict[tuple[Cell, Job], float]
    unmeasured: tuple[Target, ...]
    networks: bool = False

    @property
    def missing(self) -> list[Job]:
        """The runs to do: without a line, or with one but without their network, which an attack or another run needs."""
        needed = {each for target in self.unmeasured for each in (target.job, *target.makers)}
        if self.networks:
            needed |= {*self.jobs} - lost(self.there)
        missing = {job for job in self.jobs if job not in self.there or (job in needed and not self.at_hand(job))}
        starts = {job.start for job in missing}
        return [job for job in self.jobs if job in missing or (job.folder in starts and not self.at_hand(job))]

    def at_hand(self, job: Job) -> bool:
        """Whether a run's network, at its end, is in the folder."""
        return job in self.there and job.done >= self.there[job]["steps"]


def make(
    cells: Iterable[Cell], lines: Sequence[Line], attacks: Sequence[Line] = (), *, seeds: int, folder: Path,
    arithmetic: Callable[[Recipe], str], scale: float = 1.0, precision: str = "auto", images: int | None = None,
    networks: bool = False, get: Callable[[str], Recipe] = recipes.get,
) -> Plan:  # fmt: skip
    """The plan of all cells that have a recipe, with seeds 0 … `seeds` − 1; runs that others begin with come first.

    All cells have their first seed before any has its second: what a stopped command has is broad, and a later seed finds
    its network compiled.
    `lines` are those of runs, `attacks` those of attacks, which count if they are of the first `images` test images.
    """
    jobs: dict[Recipe, Job] = {}
    known: dict[str, Recipe] = {}

    def add(name: str, seed: int, start: Job | None = None) -> Job:
        known[name] = get(name)
        origin = start.folder if start else None
        recipe = named(known[name], scale, seed, origin).override({"precision": precision})
        return jobs.setdefault(recipe, Job(recipe, folder_of(recipe, folder), origin))

    runs: dict[Cell, list[Job]] = {}
    targets: list[Target] = []
    wanted = [cell for cell in cells if cell.recipe]
    for seed in range(seeds):
        for cell in wanted:
            assert cell.recipe
            start = add(cell.start, seed) if cell.start else None
            maker, beside = (add(each, SUBSTITUTE_SEED) if each else None for each in (cell.substitute, cell.beside))
            job = add(cell.recipe, seed, start)
            runs.setdefault(cell, []).append(job)
            if cell.under_attack:
                targets.append(Target(cell, job, maker or job, beside))
    every = tuple(jobs.values())
    there, others = sorted_out(lines, every, arithmetic, known)
    found = {
        each: [accuracy(each, maker, attacks, images, arithmetic(each.job.recipe), lines) for maker in each.makers]
        for each in targets
    }
    measured = {(each.cell, each.job): shares[0] for each, shares in found.items() if shares[0] is not None}
    never = lost(there)
    unmeasured = tuple(each for each, shares in found.items() if None in shares and not never & {each.job, each.maker})
    return Plan({cell: tuple(found) for cell, found in runs.items()}, every, there, others, measured, unmeasured, networks)


def lost(there: Mapping[Job, Line]) -> set[Job]:
    """The runs that did not converge."""
    return {job for job, line in there.items() if line["top1_error"] == "N/C"}


def named(recipe: Recipe, scale: float, seed: int, start: Path | None = None) -> Recipe:
    """A recipe shortened and seeded; its name tells the scale and the run that it begins with, as `dcnets train` would."""
    name = scaled_name(recipe.name, scale)
    name = f"{name}-from_{start.name}" if start else name
    return dataclasses.replace(recipe if scale == 1 else recipe.scaled(scale), name=name, seed=seed)


def folder_of(recipe: Recipe, folder: Path) -> Path:
    """Where a run is kept: where `dcnets train` keeps it too, so that one goes on with the other's."""
    return folder / f"{recipe.name}-seed{recipe.seed}"


def sorted_out(
    lines: Sequence[Line], jobs: Sequence[Job], arithmetic: Callable[[Recipe], str], known: Iterable[str]
) -> tuple[dict[Job, Line], tuple[Other, ...]]:
    """The line of each run that has one, and the lines that stem from the same recipes but are not the same."""
    names = {*known, *recipes.recipes()}
    stems: dict[str, list[Job]] = {}
    for job in jobs:
        stems.setdefault(origin(job.recipe.name, names) or "", []).append(job)
    there: dict[Job, Line] = {}
    others = []
    for line in lines:
        near = stems.get(origin(str(line["recipe"].get("name")), names) or "", [])
        found = {job: unlike(line, job.recipe, arithmetic(job.recipe)) for job in near}
        same = next((job for job, differs in found.items() if not differs), None)
        if same is not None:
            there.setdefault(same, line)
        elif found:
            closest = min(found.values(), key=lambda differs: ("seed" in differs, len(differs)))
            if told := {name: pair for name, pair in closest.items() if name != "seed"}:
                others.append(Other(line, told))
    return there, tuple(others)
