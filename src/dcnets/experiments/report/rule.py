"""The rule by which a cell is green or red, and the words that stand beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dcnets.experiments.paper import TABLES
from dcnets.experiments.report.cells import Result

TOLERANCE = 0.7
"""Points that the mean of our runs may lie from the paper's number."""
ROUNDING = 1e-9
RULE = (
    f"Green ✓: the mean of our runs lies within {TOLERANCE:g} points of the paper’s number, or neither converged. "
    "Red ✗: it does not, be it better or worse. Shortened runs, and runs of another version or other settings, are shown "
    "below the cell and judge nothing."
)

METRICS = {
    "top1_error": "Top-1 error in percent: less is better.",
    "top5_error": "Top-5 error in percent: less is better.",
    "accuracy": "Accuracy in percent: more is better.",
}
"""What the numbers of a table are."""

Colour = Literal["green", "red", "grey"]


@dataclass(frozen=True)
class Judged:
    """A cell's colour, how far it is from the paper, and that in words."""

    colour: Colour
    difference: float | None = None
    words: str = ""

    @property
    def mark(self) -> str:
        """The sign that says the colour to those who do not see it."""
        return {"green": "✓", "red": "✗", "grey": ""}[self.colour]


def judge(result: Result) -> Judged:
    """A cell by the rule; grey where there is nothing to compare."""
    published, mean = result.cell.published, result.mean
    if published is None or not result.samples:
        return Judged("grey")
    if published == "N/C":
        if mean is None:
            return Judged("green", words="neither converged")
        return Judged("red", words="converged here, not in the paper")
    assert not isinstance(published, str)
    if mean is None:
        return Judged("red", words="converged in the paper, not here")
    difference = mean - published
    if result.lost:
        return Judged("red", difference, f"{result.lost} of {len(result.samples)} did not converge")
    if abs(difference) <= TOLERANCE + ROUNDING:
        return Judged("green", difference)
    return Judged("red", difference, "better" if is_better(result, difference) else "worse")


def is_better(result: Result, difference: float) -> bool:
    """Whether a difference is on the good side: errors fall, accuracies rise."""
    return (difference > 0) == (TABLES[f"table{result.cell.table}"].metric == "accuracy")


def printed(number: float | str | None) -> str:
    """A number as the paper prints it."""
    return "–" if number is None else number if isinstance(number, str) else f"{number:.2f}"


def ours(result: Result) -> str:
    """The mean of our runs ± their standard deviation, N/C where none converged."""
    if result.mean is None:
        return "N/C" if result.samples else "not run"
    spread = f" ± {result.std:.2f}" if result.std is not None else ""
    lost = f", {result.lost} × N/C" if result.lost else ""
    return f"{result.mean:.2f}{spread}{lost}"


def signed(difference: float | None) -> str:
    """A difference with its sign; a true minus."""
    return "" if difference is None else f"{difference:+.2f}".replace("-", "−")


def runs(result: Result) -> str:
    """How many runs a number is of, and their seeds."""
    count = len(result.samples)
    if not count:
        return ""
    seeds = ", ".join(map(str, result.seeds))
    return f"{count} {'run' if count == 1 else 'runs'}, {'seed' if count == 1 else 'seeds'} {seeds}"
