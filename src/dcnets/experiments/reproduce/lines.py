"""The lines of `results/` beside a run or an accuracy that is wanted: the same, or in what they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dcnets
from dcnets.experiments import jsonlines
from dcnets.experiments.paper import Cell, Published
from dcnets.experiments.recipe import DEFAULTS, Recipe
from dcnets.experiments.reproduce.job import Job, Target, updates
from dcnets.experiments.robustness.trials import Trial
from dcnets.experiments.same_recipe import differences

Line = Mapping[str, Any]
Differences = dict[str, tuple[Any, Any]]
"""Names, each with the value that came and the wanted one."""
MAKER = "the maker’s"
"""What the names of differences begin with that are those of the network which images were made on."""


def runs_in(path: Path) -> tuple[list[Line], list[str]]:
    """The lines of training runs in a file, and what is told of torn ones."""
    lines, told = jsonlines.read_and_tell(path)
    return [line for line in lines if is_run(line)], told


def is_run(line: Line) -> bool:
    """Whether a line is that of a training run."""
    return isinstance(line.get("recipe"), dict) and "name" in line["recipe"] and "top1_error" in line


def unlike(line: Line, recipe: Recipe, arithmetic: str) -> Differences:
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


def under_attack(
    line: Line, trial: Trial, recipe: Recipe, maker: Recipe | None, images: int, arithmetic: str, runs: Sequence[Line]
) -> Iterator[tuple[float, Differences]]:
    """The accuracies in percent of a line of attacks under a trial, and in what each is not the wanted measurement.

    That is one of the first `images` test images, by this version, of the network of `recipe` at its end; of images that
    were made on it, or on the network of `maker`, of whose name and seed they have to be. `arithmetic` is that of both
    networks' training, which is told by its own line in `runs`.
    """
    wanted = jsonlines.plain({"attack": trial.attack, **trial.settings()})
    said = {"dcnets": (line.get("dcnets"), dcnets.__version__), "first image": (line.get("first"), 0),
            "images": (line.get("images"), images)}  # fmt: skip
    own = {name: (old, new) for name, (old, new) in said.items() if old != new} | not_of(line, recipe, arithmetic, runs)
    for each in line.get("attacks", []):
        made_on = line.get("makers", {}).get(each["made_on"])
        if {name: each.get(name) for name in wanted} != wanted or who(made_on) != (maker and (maker.name, maker.seed)):
            continue
        its = not_of(made_on, maker, arithmetic, runs) if made_on and maker else {}
        yield round(100 * float(each["accuracy"]), 3), own | {f"{MAKER} {name}": pair for name, pair in its.items()}


def who(network: Line | None) -> tuple[str, int] | None:
    """The name and the seed of a network's recipe."""
    return (network["recipe"]["name"], network["recipe"].get("seed", 0)) if network else None


def not_of(network: Line, recipe: Recipe, arithmetic: str, runs: Sequence[Line]) -> Differences:
    """In what a network, as a line of attacks describes it, is not that of a recipe at its end, trained in an arithmetic."""
    had = {"precision": trained_in(network, runs), "updates": network["step"]}
    wanted = {"precision": arithmetic, "updates": updates(recipe)}
    return differences({**DEFAULTS, **network["recipe"], **had}, {**dataclasses.asdict(recipe), **wanted})


def trained_in(network: Line, runs: Sequence[Line]) -> str | None:
    """The arithmetic of a network's training, by the lines of its run; None where there are none, or they differ."""
    near = [run for run in runs if who(run) == who(network)]
    own = jsonlines.plain({**DEFAULTS, **network["recipe"]})
    found = {str(run.get("precision")) for run in near if jsonlines.plain({**DEFAULTS, **run["recipe"]}) == own}
    return found.pop() if len(found) == 1 else None


def accuracy(
    target: Target, maker: Job, attacks: Iterable[Line], images: int | None, arithmetic: str, runs: Sequence[Line]
) -> float | None:
    """A target's accuracy in percent, on images made on one of its makers, from lines; None where it is not there."""
    recipe, other = target.job.recipe, None if maker == target.job else maker.recipe
    for line in attacks:
        if who(line) == (recipe.name, recipe.seed):
            found = under_attack(line, target.trial, recipe, other, target.count(images), arithmetic, runs)
            for share, differs in found:
                if not differs:
                    return share
    return None
