"""Runs whose schedule was shortened in proportion: their names tell it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

TOLD = re.compile(r"-scale_([0-9.e+-]+?)(?=-from_|$)")


def scaled_name(name: str, scale: float) -> str:
    """The name of a recipe's run at a scale."""
    return name if scale == 1 else f"{name}-scale_{scale:g}"


def scale_of(name: str) -> float:
    """The scale that a run's name tells; 1 where it tells none."""
    found = TOLD.search(name)
    return float(found[1]) if found else 1.0


def stem_of(name: str) -> str:
    """The name of a recipe, whatever its scale."""
    return TOLD.sub("", name)


def telling(found: Mapping[float, Set[str]]) -> list[float]:
    """The scales, longest first, that have something which no longer schedule has."""
    known: set[str] = set()
    scales = []
    for scale in sorted(found, reverse=True):
        if not found[scale] <= known:
            scales.append(scale)
        known |= found[scale]
    return scales
