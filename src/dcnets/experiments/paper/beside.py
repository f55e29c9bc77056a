"""Networks that are no part of the paper's tables: a row of our own in Table 3, what stands beside Tables 7 and 8, and the
networks of figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from dcnets.experiments.paper.cells import Cell
from dcnets.experiments.paper.figures import FIGURES
from dcnets.experiments.paper.tables import ATTACKED, BASELINE, TABLES, TARGETS, operator

FC_RELU = Cell(
    3, "Ours: baseline, ReLU after the fully connected layer alone", "Cosine without ReLU", 58.24,
    "cifar100-cnn9-no_relu-fc_relu",
)  # fmt: skip
"""The paper does not tell whether its baseline without ReLU had one after the fully connected layer: both are run."""
OWN_ROWS: dict[str, tuple[Cell, ...]] = {"table3": (FC_RELU,)}
"""Rows that the paper does not have, by the table that they are run and shown with."""
VARIANTS = {"without batch norm": "-no_bn", "without augmentation": "-no_augmentation", "absolute radius": "-absolute"}
"""Ways of training that could explain the paper's numbers, and what they add to the name of a recipe."""
TRAININGS = {"Natural": "", "FGSM-trained": "-fgsm"}
ATTACKS = ("no attack", "FGSM", "BIM")


def rows(training: str, columns: tuple[str, ...], ending: str) -> Iterator[Cell]:
    """The cells of some networks, without attack and under both, as Table 7 has them."""
    for attack in ATTACKS:
        for column in columns:
            recipe = f"{ATTACKED}{operator(column)}{ending}"
            name = "none" if attack == "no attack" else attack.lower()
            yield Cell(7, f"{training}, {attack}", column, None, recipe, attack=name)  # type: ignore[arg-type]


def variants() -> Iterator[Cell]:
    """Natural and FGSM-trained networks of each variant; an absolute radius needs an operator that has one."""
    for variant, ending in VARIANTS.items():
        columns = tuple(each for each in TARGETS if variant != "absolute radius" or each not in (BASELINE, "SphereConv"))
        for training, suffix in TRAININGS.items():
            yield from rows(f"{training} {variant}", columns, ending + suffix)


def features(number: int) -> Iterator[Cell]:
    """The networks of Fig. 6 or 7, one an operator, as cells of no table."""
    figure = FIGURES[number]
    for column, recipe in zip(TARGETS, figure.recipes, strict=True):
        yield Cell(0, "FGSM-trained" if recipe.endswith("-fgsm") else "Natural", column, None, recipe, figure=number)


EXTRA: dict[str, tuple[Cell, ...]] = {
    "pgd": tuple(rows("PGD-trained", TARGETS, "-pgd")),
    "variants": tuple(variants()),
    "fig4": tuple(cell for cell in TABLES["table4"].cells if cell.recipe in FIGURES[4].recipes),
    "fig6": tuple(features(6)),
    "fig7": tuple(features(7)),
}
"""What the command line can be asked for besides the tables."""
