"""The rule by which a cell is green or red, and the words that stand beside it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dcnets.experiments.paper import TABLES
from dcnets.experiments.report.cells import Result

TOLERANCE = 0.7
"""Points that the mean of our runs may lie from the paper's number."""
ROUNDING = 1e-9
RULE = (
    f"Green ✓: the mean of our runs lies within {TOLERANCE:g} points of the paper’s number, or neither converged. "
    "Red ✗: it does not, be it better or worse. Runs with a shortened schedule stand below the table, with those of another "
    "version or other settings, and in their cell while that has no other; they judge nothing."
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


def agrees(difference: float) -> bool:
    """Whether a mean of ours that is so far from the paper's number agrees with it."""
    return abs(difference) <= TOLERANCE + ROUNDING


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
    if agrees(difference):
        return Judged("green", difference)
    return Judged("red", difference, "better" if is_better(result, difference) else "worse")


def is_better(result: Result, difference: float) -> bool:
    """Whether a difference is on the good side: errors fall, accuracies rise."""
    return (difference > 0) == more_is_better(result)


def more_is_better(result: Result) -> bool:
    """Whether a cell is an accuracy, and not an error."""
    return TABLES[f"table{result.cell.table}"].metric == "accuracy"


def printed(number: float | str | None) -> str:
    """A number as the paper prints it."""
    return "–" if number is None else number if isinstance(number, str) else f"{number:.2f}"


def mean_of(values: Sequence[float | str | None]) -> str:
    """The mean of the runs that converged ± their standard deviation, and how many did not; N/C where none did."""
    held = [each for each in values if isinstance(each, float | int)]
    if not held:
        return "N/C"
    spread = f" ± {statistics.stdev(held):.2f}" if len(held) > 1 else ""
    lost = f", {len(values) - len(held)} × N/C" if len(held) < len(values) else ""
    return f"{statistics.fmean(held):.2f}{spread}{lost}"


def ours(result: Result) -> str:
    """The mean of our runs, or that there are none."""
    return mean_of([each.value for each in result.samples]) if result.samples else "not run"


def counted(count: int, noun: str) -> str:
    """So many of something."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def signed(difference: float | None) -> str:
    """A difference with its sign; a true minus."""
    return "" if difference is None else f"{difference:+.2f}".replace("-", "−")


def runs(result: Result) -> str:
    """How many runs a number is of, and their seeds."""
    count = len(result.samples)
    if not count:
        return ""
    seeds = ", ".join(map(str, result.seeds))
    return f"{counted(count, 'run')}, {'seed' if count == 1 else 'seeds'} {seeds}"


def shortened(result: Result) -> Iterator[str]:
    """What shortened schedules gave, and attacks on fewer images, in a cell that has nothing else: each on its own."""
    for (scale, images), own in () if result.samples else result.shorter.items():
        schedule = f"schedule × {scale:g}" if scale != 1 else "whole schedule"
        count = runs(own).partition(",")[0] + (f", {images:,} images" if images else "")
        yield f"{schedule}: {ours(own)} ({count})"
