"""The lines of `results/` beside a run or an accuracy that is wanted: the same, or in what they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dcnets
from dcnets.experiments import jsonlines
from dcnets.experiments.paper import Cell, Published
from dcnets.experiments.recipe import DEFAULTS, Recipe
from dcnets.experiments.reproduce.job import Job, Target
from dcnets.experiments.same_recipe import differences

Line = Mapping[str, Any]


def runs_in(path: Path) -> tuple[list[Line], list[str]]:
    """The lines of training runs in a file, and what is told of torn ones."""
    lines, told = jsonlines.read_and_tell(path)
    return [line for line in lines if isinstance(line.get("recipe"), dict) and "top1_error" in line], told


def unlike(line: Line, recipe: Recipe, arithmetic: str) -> dict[str, tuple[Any, Any]]:
    """In what a line is not the run of a recipe in this arithmetic, with its value and the wanted one; empty where it is.

    Every field counts, the version of dcnets, and the number of processes, each of which has its own batch norm. Device,
    compilation and capture do not: they change rounding alone. Of the precision its arithmetic counts, whether it was asked
    for or `auto` came to it. A field that the line lacks is younger than the line, which had its default.
    """
    had = {"dcnets": line.get("dcnets"), "precision": line.get("precision"), "processes": line.get("processes", 1)}
    wanted = {"dcnets": dcnets.__version__, "precision": arithmetic, "processes": 1}
    return differences({**DEFAULTS, **line["recipe"], **had}, {**dataclasses.asdict(recipe), **wanted})


def origin(name: str, known: Iterable[str]) -> str | None:
    """The recipe that a run's name begins with: `dcnets train` adds what was changed after a hyphen."""
    return max((each for each in known if name == each or name.startswith(f"{each}-")), key=len, default=None)


def value(cell: Cell, line: Line) -> Published:
    """A cell's number in percent from its run's line; None where it takes more than the line: an attack."""
    if cell.under_attack:
        return None
    found: Published = line["top5_error" if cell.table == 6 else "top1_error"]
    if cell.attack == "none" and isinstance(found, float | int):
        return round(100 - found, 3)
    return found


def accuracy(target: Target, maker: Job, attacks: Sequence[Line], images: int | None) -> float | None:
    """A target's accuracy in percent, on images made on one of its makers, from lines; None where it is not there."""
    wanted = jsonlines.plain({"attack": target.trial.attack, **target.trial.settings()})
    for line in attacks:
        same = (line.get("dcnets"), line.get("first"), line.get("images")) == (dcnets.__version__, 0, target.count(images))
        if not (same and ended(line, target.job)):
            continue
        for each in line.get("attacks", []):
            made_on = line["makers"].get(each["made_on"])
            own = ended(made_on, maker) if made_on else maker == target.job
            if own and {name: each.get(name) for name in wanted} == wanted:
                return round(100 * float(each["accuracy"]), 3)
    return None


def ended(line: Line, job: Job) -> bool:
    """Whether what a line of attacks describes is a run's network, at its end."""
    recipe = jsonlines.plain({**DEFAULTS, **line["recipe"]})
    return bool(line["step"] == job.updates) and recipe == jsonlines.plain(dataclasses.asdict(job.recipe))
