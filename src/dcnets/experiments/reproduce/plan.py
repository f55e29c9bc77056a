"""What is to run: the runs of some cells, less those that have their line in `results/`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcnets.experiments import checkpoint, recipes
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.paper import Cell
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.reproduce.lines import Line, origin, unlike
from dcnets.experiments.scaling import scaled_name


@dataclass(frozen=True)
class Job:
    """One run, its recipe named, scaled and seeded, and its folder.

    `start` is the folder of the run whose weights it begins with. A `kept` run is wanted for its network too, so that its
    line is not enough.
    """

    recipe: Recipe
    folder: Path
    start: Path | None = None
    kept: bool = False

    @property
    def title(self) -> str:
        """The run in words."""
        return f"{self.recipe.name}, seed {self.recipe.seed}"

    @property
    def updates(self) -> int:
        """Updates of the whole run; a stream does not tell beforehand how many an epoch has, and counts as one."""
        entry = CATALOGUE.get(self.recipe.data)
        return self.recipe.length(entry.train // self.recipe.batch if entry else 1)

    @property
    def done(self) -> int:
        """Updates whose outcome is in the folder."""
        return max((checkpoint.step_of(path) for path in checkpoint.found(self.folder)), default=0)


@dataclass(frozen=True)
class Other:
    """A line that stems from a wanted recipe and is not the same: its value and the wanted one for each difference."""

    line: Line
    differences: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Plan:
    """The runs of each cell, seed by seed; every run once; the lines that are there, and those that are not the same."""

    cells: dict[Cell, tuple[Job, ...]]
    jobs: tuple[Job, ...]
    there: dict[Job, Line]
    others: tuple[Other, ...]

    @property
    def missing(self) -> list[Job]:
        """The runs to do: without a line, or kept and without their network."""
        return [job for job in self.jobs if job not in self.there or (job.kept and job.done < self.there[job]["steps"])]


def make(
    cells: Iterable[Cell], lines: Sequence[Line], *, seeds: int, folder: Path, arithmetic: Callable[[Recipe], str],
    scale: float = 1.0, precision: str = "auto", get: Callable[[str], Recipe] = recipes.get,
) -> Plan:  # fmt: skip
    """The plan of all cells that have a recipe, with seeds 0 … `seeds` − 1; runs that others begin with come first."""
    jobs: dict[Recipe, Job] = {}
    known: dict[str, Recipe] = {}

    def add(name: str, seed: int, *, kept: bool, start: Path | None = None) -> Recipe:
        known[name] = get(name)
        recipe = named(known[name], scale, seed, start).override({"precision": precision})
        before = jobs.get(recipe)
        jobs[recipe] = Job(recipe, folder_of(recipe, folder), start, kept or (before is not None and before.kept))
        return recipe

    runs: dict[Cell, list[Recipe]] = {}
    for cell in cells:
        if cell.recipe is None:
            continue
        for seed in range(seeds):
            start = folder_of(add(cell.start, seed, kept=True), folder) if cell.start else None
            for substitute in filter(None, (cell.substitute, cell.beside)):
                add(substitute, SUBSTITUTE_SEED, kept=True)
            attacked = cell.attack in ("fgsm", "bim")
            runs.setdefault(cell, []).append(add(cell.recipe, seed, kept=attacked, start=start))
    every = tuple(jobs.values())
    there, others = sorted_out(lines, every, arithmetic, known)
    return Plan({cell: tuple(jobs[each] for each in found) for cell, found in runs.items()}, every, there, others)


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
