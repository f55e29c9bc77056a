"""A finding about a network, and the differences and shares that are more than chance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from dcnets.experiments.robustness.accuracy import Withstood

ERRORS = 2.0
"""The standard errors that a difference or a share has to be away from what is to be expected."""


@dataclass(frozen=True)
class Finding:
    """What one check found: its numbers, whether they speak of masking (None: it was not made), and a sentence."""

    name: str
    masking: bool | None
    told: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Gap:
    """How much more of the images withstood one thing than another, and one standard error of it, image by image."""

    value: float
    error: float

    def exceeds(self, floor: float) -> bool:
        """Whether the gap is above a floor and above two standard errors."""
        return self.value > floor and self.value > ERRORS * self.error


def gap(weak: Withstood, strong: Withstood) -> Gap:
    """The share that withstood `weak` less that which withstood `strong`.

    With b images that withstood the first alone and c the second alone: (b − c)/n ± √(b + c + 1 − (b − c)²/n)/n, the 1
    keeping it from being sure of a handful of images.
    """
    n = weak.count
    only_weak = int((weak.survived & ~strong.survived).sum())
    only_strong = int((strong.survived & ~weak.survived).sum())
    lead = only_weak - only_strong
    return Gap(lead / n, math.sqrt(only_weak + only_strong + 1 - lead**2 / n) / n)


def at_least(count: int, total: int) -> float:
    """What a share surely is: two standard errors below it, by Agresti and Coull, who add two of each kind."""
    share = (count + 2) / (total + 4)
    return max(0.0, share - ERRORS * math.sqrt(share * (1 - share) / (total + 4)))


def how_many(which: Tensor) -> tuple[int, int]:
    """The number of those, and of all."""
    return int(which.sum()), len(which)


def percent(share: float) -> str:
    """A share of 1 in percent, with one decimal."""
    return f"{100 * share:.1f} %"
