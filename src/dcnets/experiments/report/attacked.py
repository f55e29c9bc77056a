"""Accuracies under attack from the lines of attacks, for the cells of Tables 7 and 8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dcnets.experiments import recipes
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.jsonlines import plain
from dcnets.experiments.paper import Cell
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.reproduce.job import TRIALS
from dcnets.experiments.reproduce.lines import Line, origin
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.scaling import scale_of

SETTING = (
    f"Ours are trained for {recipes.ATTACKED['iterations']:,} updates and measured at {MAIN}; the paper’s main text tells "
    "neither schedule nor setting."
)


@dataclass(frozen=True)
class Measured:
    """An accuracy in percent, and why it would not count."""

    value: float
    why: tuple[str, ...]


def is_attack(line: Line) -> bool:
    """Whether a line has accuracies under attack of the tables' kind."""
    return line.get("part") == "tables" and isinstance(line.get("attacks"), list) and isinstance(line.get("recipe"), dict)


def is_curve(line: Line) -> bool:
    """Whether a line, of a study or of `dcnets attack`, may have accuracies at several ε."""
    there = isinstance(line.get("attacks"), list) and isinstance(line.get("recipe"), dict)
    return there and line.get("part", "curves") == "curves"


def measured(cell: Cell, line: Line) -> Iterator[Measured]:
    """What a line says of a cell under attack, in the main setting and on images of the cell's maker."""
    trial = TRIALS[str(cell.attack)]
    wanted = plain({"attack": trial.attack, **trial.settings()})
    for each in line["attacks"]:
        if {name: each.get(name) for name in wanted} == wanted and made_on(cell, line, each):
            yield Measured(round(100 * float(each["accuracy"]), 3), tuple(shortfalls(line)))


def made_on(cell: Cell, line: Line, attack: dict[str, Any]) -> bool:
    """Whether an attack's images were made where the cell wants them: on the network itself, or on its substitute."""
    maker = line.get("makers", {}).get(attack.get("made_on"))
    if cell.substitute is None or maker is None:
        return cell.substitute is None and maker is None
    recipe = maker["recipe"]
    same_scale = scale_of(str(recipe["name"])) == scale_of(str(line["recipe"]["name"]))
    stem = origin(str(recipe["name"]), recipes.recipes())
    return bool(stem == cell.substitute and recipe.get("seed") == SUBSTITUTE_SEED and same_scale)


def shortfalls(line: Line) -> Iterator[str]:
    """Why a measurement is not the table's: other images than the whole test set, or an unfinished network."""
    recipe = line["recipe"]
    entry = CATALOGUE.get(recipe.get("data", ""))
    if line.get("first", 0) != 0 or (entry is not None and line.get("images") != entry.test):
        yield f"{line.get('images')} test images, not all"
    if recipe.get("iterations") is not None and line.get("step") != recipe["iterations"]:
        yield f"after {line.get('step')} of {recipe['iterations']} updates"
