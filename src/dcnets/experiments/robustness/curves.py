"""Robust accuracy over ε."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from dcnets.experiments.robustness.accuracy import Withstood, clean, withstood
from dcnets.experiments.robustness.trials import SPOKEN, Trial, Watch, unwatched

GRID = tuple(levels / 255 for levels in (0, 1, 2, 4, 8, 16, 32))
"""The ε of the usual curve, in pixels of [0, 1]."""


@dataclass(frozen=True, eq=False)
class Curve:
    """What withstood an attack at each ε; at ε = 0 what is right as it is."""

    name: str
    eps: tuple[float, ...]
    outcomes: tuple[Withstood, ...]

    @property
    def accuracies(self) -> tuple[float, ...]:
        """The robust accuracy at each ε."""
        return tuple(outcome.accuracy for outcome in self.outcomes)


def curve(
    model: nn.Module, x: Tensor, y: Tensor, trials: Sequence[Trial], *, batch: int, before: Withstood | None = None,
    falling: bool = False, watch: Watch = unwatched,
) -> Curve:  # fmt: skip
    """The accuracy under trials of one attack, one for each ε, from the smallest on; `over` makes them.

    With `falling`, an image that fell to a smaller ε counts as fallen and is not attacked again: what is within reach of a
    small ε is within reach of a larger one, and it saves time. Without it, a curve that rises shows an attack that fails.
    """
    check_rising([trial.eps for trial in trials])
    left = before or clean(model, x, y, batch=batch)
    outcomes = []
    for trial in trials:
        after = withstood(model, x, y, trial, batch=batch, among=left, watch=watch) if trial.eps else left
        outcomes.append(after)
        left = after if falling else left
    return Curve(SPOKEN[trials[0].attack], tuple(trial.eps for trial in trials), tuple(outcomes))


def over(trial: Trial, grid: Iterable[float] = GRID) -> list[Trial]:
    """The trial at each ε of a grid, its step in proportion to ε."""
    return [trial.at(eps) for eps in grid]


def worst_curve(curves: Iterable[Curve]) -> Curve:
    """What withstood every attack at an ε and at all smaller ones; it never rises."""
    curves = tuple(curves)
    if not curves:
        raise ValueError("there are no curves, so none is the worst; give one or more of curve")
    grid = curves[0].eps
    if any(each.eps != grid for each in curves):
        raise ValueError("the curves have different ε; draw them on one grid")
    outcomes: list[Withstood] = []
    for at in range(len(grid)):
        for each in curves:
            now = each.outcomes[at]
            if len(outcomes) > at:
                outcomes[at] = outcomes[at] & now
            else:
                outcomes.append(now & outcomes[-1] if outcomes else now)
    return Curve("worst case", grid, tuple(outcomes))


def check_rising(grid: Sequence[float]) -> None:
    """Refuse an empty grid, and one that does not rise."""
    if not grid or any(low >= high for low, high in pairwise(grid)):
        raise ValueError(f"a curve needs one ε or more, each larger than the one before, got {list(grid)}")
