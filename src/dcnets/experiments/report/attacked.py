"""Accuracies under attack from the lines of attacks, for the cells of Tables 7 and 8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dcnets.experiments import recipes
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.paper import Cell
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.report.cells import Standard, Told
from dcnets.experiments.reproduce.job import TRIALS
from dcnets.experiments.reproduce.lines import Line, under_attack
from dcnets.experiments.reproduce.plan import folder_of, named
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.scaling import scale_of

SETTING = (
    f"Ours are measured at {MAIN}, and a whole schedule has {recipes.ATTACKED['iterations']:,} updates; the paper’s main "
    "text tells neither."
)


def is_attack(line: Line) -> bool:
    """Whether a line is of accuracies under attack of the tables' kind."""
    return line.get("part") == "tables"


def is_curve(line: Line) -> bool:
    """Whether a line, of a study or of `dcnets attack`, is of accuracies at several ε."""
    return line.get("part") == "curves" or ("part" not in line and "attacks" in line)


def as_told(line: Line, recipe: str, start: str | None = None) -> Recipe:
    """The whole recipe of a name with the seed and at the scale that a line tells; `start` is what its run begins with."""
    seed, scale = int(line["recipe"].get("seed", 0)), scale_of(str(line["recipe"]["name"]))
    first = folder_of(named(recipes.get(start), scale, seed), Path()) if start else None
    return named(recipes.get(recipe), scale, seed, first)


def measured(cell: Cell, line: Line, standard: Standard | None, runs: Sequence[Line]) -> Iterator[Told]:
    """What a line says of a cell under attack, in the main setting, on images of the cell's maker at the same scale."""
    recipe, scale = as_told(line, str(cell.recipe)), scale_of(line["recipe"]["name"])
    maker = named(recipes.get(cell.substitute), scale, SUBSTITUTE_SEED) if cell.substitute else None
    whole, arithmetic = CATALOGUE[recipe.data].test, standard.arithmetic if standard else ""
    for value, differs in under_attack(line, TRIALS[str(cell.attack)], recipe, maker, whole, arithmetic, runs):
        some = {name: pair for name, pair in differs.items() if name not in ("dcnets", "images")}
        if standard is None:
            some = {name: pair for name, pair in some.items() if not name.endswith("precision")}
        images = differs["images"][0] if "images" in differs else None
        yield Told(value, tuple(reason(name, *pair) for name, pair in some.items()), images)


def reason(name: str, came: Any, wanted: Any) -> str:
    """Why a measurement does not count, in words."""
    if name == "updates":
        return f"after {came} of {wanted} updates"
    if name == "precision":
        return f"trained in {came or 'an arithmetic that no line tells'}"
    return f"{name} {came!r}, not {wanted!r}"
