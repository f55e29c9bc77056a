"""Spearman's rank correlation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, equals sharing their mean."""
    return [sum(other < each for other in values) + (sum(other == each for other in values) + 1) / 2 for each in values]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The correlation of ranks; None where one of them does not vary, or of fewer than three."""
    if len(one) < 3 or len(set(one)) == 1 or len(set(other)) == 1:
        return None
    return statistics.correlation(ranks(one), ranks(other))
