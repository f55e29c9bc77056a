"""A recipe in words: its operator, how it was trained, and in what it is a variant of the network of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.paper.tables import BASELINE, MAGNITUDES, TARGETS
from dcnets.experiments.recipe import DEFAULTS, FAST

ROWS = {magnitude: row for row, magnitude in MAGNITUDES.items()}
SPOKEN = {None: "natural", "fgsm": "FGSM-trained", "pgd": "PGD-trained", "trades": "TRADES-trained"}


class Words(NamedTuple):
    """`variant` is empty where there is nothing to say."""

    operator: str
    training: str
    variant: str

    @property
    def place(self) -> tuple[object, ...]:
        """Where it stands: those of the tables first, natural before adversarial, in the order of the paper's columns."""
        training = list(SPOKEN.values()).index(self.training)
        return bool(self.variant), training, self.variant, column_of(self.operator), self.operator


def title_of(data: str) -> str:
    """A data set as people call it."""
    return CATALOGUE[data].title.split()[0].rstrip(",") if data in CATALOGUE else data


def column_of(operator: str) -> int:
    """The column of an operator in the paper's tables; those that have none come after."""
    return TARGETS.index(operator) if operator in TARGETS else len(TARGETS)


def lagging(recipe: Mapping[str, Any]) -> str:
    """What is told of examples that were made by running statistics which span more updates than those of our recipes."""
    share, has = recipe.get("bn_momentum", DEFAULTS["bn_momentum"]), recipe.get("batch_norm", True)
    return f"batch norm over {1 / share:,.0f} updates" if has and recipe.get("adversary") and 0 < share < FAST else ""


def words_for(recipe: Mapping[str, Any]) -> Words:
    """The words for the fields of a recipe."""
    operator = recipe.get("operator") or ""
    told = {
        "without batch norm": not recipe.get("batch_norm", True), "without ReLU": not recipe.get("relu", True),
        "without augmentation": not (recipe.get("pad", 4) or recipe.get("flip", True)),
        "absolute radius": "radius=absolute" in operator, "SGD": recipe.get("optimiser") == "sgd",
        (late := lagging(recipe)): late != "",
    }  # fmt: skip
    magnitude = operator.split("-")[0].split("(")[0]
    name = ROWS.get(magnitude, operator) if operator else BASELINE
    return Words(name, SPOKEN[recipe.get("adversary")], ", ".join(word for word, yes in told.items() if yes))
