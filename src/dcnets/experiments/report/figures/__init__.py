"""The figures of the report by the name that the command line takes; torch is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dcnets.experiments.report.cells import Collected
    from dcnets.experiments.report.charts import Picture

NAMES = ("agreement", "1", "2", "3", "4", "6", "7", "curves", "attacks", "robustness", "filters", "radii")
"""The paper's figures that can be drawn again, and six more."""
FROM_LINES = ("agreement", "4", "curves", "attacks", "robustness")
"""Those that are drawn from lines of results."""


@dataclass(frozen=True)
class Sources:
    """What figures are drawn from: the lines, the folder of runs where there is one, and that of the data."""

    lines: Collected
    runs: Path | None = None
    data: Path | None = None


def picture(name: str, of: Sources) -> Picture:
    """A figure by its name."""
    from dcnets.experiments.report.figures import agreement, attacks, curves, features, networks, operators, robustness

    made: dict[str, Callable[[], Picture]] = {
        "agreement": lambda: agreement.tables(of.lines),
        "1": lambda: features.ordinary(of.runs, of.data),
        "2": operators.geometry,
        "3": operators.functions,
        "4": lambda: curves.resnet32(of.lines),
        "6": lambda: features.natural(of.runs, of.data),
        "7": lambda: features.adversarial(of.runs, of.data),
        "curves": lambda: curves.cnn9(of.lines),
        "attacks": lambda: attacks.tables(of.lines),
        "robustness": lambda: robustness.curves(of.lines.attacked, of.lines.version),
        "filters": lambda: networks.filters(of.runs),
        "radii": lambda: networks.radii(of.runs),
    }
    return made[name]()
