"""The demo's figures as SVG: how the networks converge, what their two features look like, what an attack leaves."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import torch
from curves import BLACK, BLUE, LINE, ORANGE, PALE, SETTINGS, as_svg
from features import Run
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from torch import Tensor

STYLES: tuple[dict[str, Any], ...] = (
    {"color": LINE, "linewidth": 3.5, "marker": "o", "markersize": 6},
    {"color": BLUE, "linewidth": 2, "marker": "s", "markersize": 5},
    {"color": ORANGE, "linewidth": 1.5, "marker": "^", "markersize": 5},
)
"""How the networks are drawn in turn: the later the thinner, so that curves on top of each other are all seen."""
DIGIT_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#6b7280", "#a8a800", "#17becf",
)  # fmt: skip
LABEL_GAP = 0.17
"""The least angle between two digits on the rim, so that they do not lie on each other."""


def accuracy_plot(runs: list[Run]) -> str:
    """Test accuracy by epoch, in percent."""
    figure, axes = plot(runs, "test_top1", "test accuracy")
    lowest = min(min(run.column("test_top1")) for run in runs)
    axes.set_ylim(max(0.0, math.floor(10 * lowest) / 10 - 0.02), 1.01)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    return as_svg(figure)


def loss_plot(runs: list[Run]) -> str:
    """Training loss by epoch, on a logarithmic axis."""
    figure, axes = plot(runs, "loss", "training loss")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    return as_svg(figure)


def robustness_plot(runs: list[Run]) -> str:
    """The share of digits that PGD leaves right, by ε, with bars of one standard error."""
    with mpl.rc_context(SETTINGS | {"font.size": 11}):
        figure = Figure(figsize=(4.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for run, style in zip(runs, STYLES, strict=True):
            found = run.withstood
            errors = [outcome.error for outcome in found.outcomes]
            axes.errorbar(found.eps, found.accuracies, errors, label=run.name, elinewidth=1, **style)
        axes.set(xlabel="largest change of a pixel, ε", ylabel="digits still right", ylim=(-0.02, 1.02))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        finish(figure, axes, len(runs))
    return as_svg(figure)


def plot(runs: list[Run], column: str, label: str) -> tuple[Figure, Any]:
    """One number of every test by epoch."""
    with mpl.rc_context(SETTINGS | {"font.size": 11}):
        figure = Figure(figsize=(4.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for run, style in zip(runs, STYLES, strict=True):
            axes.plot(run.epochs, run.column(column), label=run.name, **style)
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=max(runs[0].epochs) >= 2))
        finish(figure, axes, len(runs))
    return figure, axes


def finish(figure: Figure, axes: Any, lines: int) -> None:
    """Lines across, and the names below."""
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    spacing = {"columnspacing": 0.9, "handlelength": 1.3, "handletextpad": 0.5}
    figure.legend(loc="outside lower center", frameon=False, fontsize=10.5, ncols=lines, **spacing)


def feature_plot(run: Run) -> str:
    """The test digits in the plane of their two features: a colour for each digit, a line to its centre, × a mistake."""
    with mpl.rc_context(SETTINGS | {"font.size": 11}):
        figure = Figure(figsize=(3.6, 3.6))
        axes = figure.add_axes((0, 0, 1, 1))
        reach = run.norms().max().item()
        axes.set(xlim=(-1.24 * reach, 1.24 * reach), ylim=(-1.24 * reach, 1.24 * reach), aspect="equal")
        axes.axis("off")
        directions = torch.atan2(*run.centres().T.flip(0))
        places = spread(directions, LABEL_GAP)
        for digit, (angle, place) in enumerate(zip(directions.tolist(), places.tolist(), strict=True)):
            colour, own = DIGIT_COLOURS[digit], run.labels == digit
            axes.plot(*ray(angle, reach), color=colour, linewidth=1.1, alpha=0.6, zorder=1)
            axes.scatter(*run.features[own].T, s=9, color=colour, alpha=0.6, linewidths=0, zorder=2)
            axes.text(*(end[1] for end in ray(place, 1.12 * reach)), str(digit), color=colour, fontsize=13,
                      fontweight="bold", ha="center", va="center")  # fmt: skip
        wrong = run.guesses != run.labels
        axes.scatter(*run.features[wrong].T, s=14, marker="x", color=BLACK, linewidths=0.8, zorder=3)
        axes.plot(0, 0, marker="+", color=BLACK, markersize=8, zorder=4)
        return as_svg(figure)


def ray(angle: float, length: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The line from the origin in a direction, as matplotlib takes it: both x, both y."""
    return (0.0, length * math.cos(angle)), (0.0, length * math.sin(angle))


def spread(angles: Tensor, gap: float) -> Tensor:
    """Angles on a circle moved apart until neighbours have a gap between them; where they have, none is moved."""
    order = angles.argsort()
    moved = angles[order]
    for _ in range(200):
        gaps = moved.roll(-1) - moved
        gaps[-1] += 2 * math.pi
        short = (gap - gaps).clamp(min=0) / 2
        moved = moved - short + short.roll(1)
    return torch.empty_like(angles).index_copy(0, order, moved)
