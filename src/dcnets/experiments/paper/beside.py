"""Networks that are no part of the paper's tables, and stand beside Tables 7 and 8: cells without a published number."""

from __future__ import annotations

from collections.abc import Iterator

from dcnets.experiments.paper.cells import Cell
from dcnets.experiments.paper.tables import ATTACKED, BASELINE, TARGETS, operator

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


EXTRA: dict[str, tuple[Cell, ...]] = {
    "pgd": tuple(rows("PGD-trained", TARGETS, "-pgd")),
    "variants": tuple(variants()),
}
"""What the command line can be asked for besides the tables."""
