"""The attack settings of the study: ours, and the one of a grid under which the baseline is nearest to the paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dcnets.experiments.paper import TABLES
from dcnets.experiments.robustness.trials import Trial

GREY = 1 / 255
"""One grey level, in pixels of [0, 1]."""


def by_parts(steps: int, parts: int) -> Callable[[float], tuple[int, float]]:
    """So many steps, each a part of ε."""
    return lambda levels: (steps, levels / parts)


def kurakin(levels: float) -> tuple[int, float]:
    """Kurakin et al. (2017): steps of one grey level, min(ε + 4, 1.25 ε) of them, ε in grey levels."""
    return math.ceil(min(levels + 4, 1.25 * levels)), 1.0


RULES: dict[str, Callable[[float], tuple[int, float]]] = {
    "10 steps of ε/4": by_parts(10, 4),
    "10 steps of ε/10": by_parts(10, 10),
    "5 steps of ε/5": by_parts(5, 5),
    "2 steps of ε/2": by_parts(2, 2),
    "steps of 1/255, 1.25 ε of them": kurakin,
}
"""BIM's steps by ε in grey levels: how many, and how long in grey levels."""
LEVELS = (1, 1.5, 2, 3, 4, 6, 8, 16)
"""The ε that are tried, in grey levels."""


@dataclass(frozen=True)
class Setting:
    """What FGSM and BIM do: ε in grey levels, and the rule of BIM's steps."""

    levels: float
    rule: str

    @property
    def fgsm(self) -> Trial:
        """One step of ε."""
        return Trial("fgsm", self.levels * GREY)

    @property
    def bim(self) -> Trial:
        """Steps by the rule."""
        steps, length = RULES[self.rule](self.levels)
        return Trial("bim", self.levels * GREY, step=length * GREY, steps=steps)

    @property
    def trials(self) -> tuple[Trial, Trial]:
        """Both."""
        return self.fgsm, self.bim

    def __str__(self) -> str:
        return f"ε = {self.levels:g}/255, BIM: {self.rule}"


@dataclass(frozen=True)
class Frozen:
    """A setting that was sought, and the first of the test images that it was sought on: numbers in it end before that."""

    setting: Setting
    first: int


MAIN = Setting(8, "10 steps of ε/4")
"""Ours: the paper tells neither ε nor steps."""
GRID = tuple(Setting(levels, rule) for levels in LEVELS for rule in RULES)
"""All that is tried to come near the paper's baseline."""


def published() -> tuple[float, float]:
    """The paper's natural baseline under FGSM and BIM, in percent."""
    cells = (TABLES["table7"].cell(f"Natural, {attack}", "Baseline").published for attack in ("FGSM", "BIM"))
    fgsm, bim = (float(value) for value in cells if isinstance(value, float))
    return fgsm, bim


def distance(fgsm: float, bim: float) -> float:
    """How far two accuracies in percent are from the paper's: the root of the sum of squares."""
    return math.hypot(fgsm - published()[0], bim - published()[1])


def nearest(found: Mapping[Setting, tuple[float, float]]) -> Setting:
    """The setting whose accuracies in percent, FGSM's and BIM's, are nearest to the paper's; the first of equals."""
    return min(found, key=lambda setting: distance(*found[setting]))
