"""A figure as an SVG, PNG or PDF file, drawn by matplotlib."""

from __future__ import annotations

import math
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from dcnets.experiments.palette import DASHES, LIGHT, LINE, PALE
from dcnets.experiments.plotting import SETTINGS, check, drawing, write
from dcnets.experiments.report.charts import Axis, Chart, Image, Picture, Series

BESIDE = 4
"""Panels in a row, at most."""
FEW = 30
"""Dots and rings below this number are drawn larger, to be looked at one by one."""
LETTERS = 9
"""Letters to an inch, about."""


def draw(picture: Picture, path: Path) -> None:
    """Write a figure; one with nothing to draw is a ValueError that says what is missing."""
    check(path)
    if picture.empty:
        raise ValueError(f"nothing to draw: {' '.join(picture.missing)}")
    mpl = drawing()
    panels: list[Chart | Image] = [*picture.charts, *picture.images]
    columns = min(len(panels), BESIDE if picture.charts and picture.charts[0].equal else picture.beside)
    rows = math.ceil(len(panels) / columns)
    side = 3.2 if picture.charts and picture.charts[0].equal else 4.8
    with mpl.rc_context(SETTINGS):
        height = (
            side if picture.charts else 0.4 + side * max(len(each.pixels) / len(each.pixels[0]) for each in picture.images)
        )
        figure = mpl.figure.Figure(figsize=(side * columns + 0.4, height * rows + 0.9), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, panel in zip(grid, panels, strict=False):
            if isinstance(panel, Chart):
                plot(axes, panel, int(side * LETTERS))
            else:
                show(axes, panel)
        for axes in grid[len(panels) :]:
            axes.axis("off")
        legend(figure, grid, picture)
        wide = figure.get_size_inches()[0]
        figure.suptitle("\n".join(textwrap.wrap(picture.title, int(wide * LETTERS))), fontsize=13)
        write(figure, path)


def legend(figure: Any, grid: Any, picture: Picture) -> None:
    """The names of all series below the panels, each once; in the panels where one colour has several names."""
    found: dict[str, Any] = {}
    for axes, chart in zip(grid, picture.charts, strict=False):
        if not any(each.sign for each in chart.series):  # else their signs stand in the panel
            found |= {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if not found:
        return
    named = {(each.kind, each.colour, each.name) for chart in picture.charts for each in chart.series}
    if len(named) > len({(kind, colour) for kind, colour, _ in named}):
        for axes in grid[: len(picture.charts)]:
            axes.legend(frameon=False, fontsize=9)
        return
    wide, tall = figure.get_size_inches()
    columns = max(1, min(4, int(wide * LETTERS / (max(map(len, found)) + 6))))
    figure.set_size_inches(wide, tall + 0.22 * math.ceil(len(found) / columns))
    figure.legend(found.values(), found.keys(), loc="outside lower center", frameon=False, ncols=columns)


def plot(axes: Any, chart: Chart, letters: int) -> None:
    """One chart, whose title has so many letters in a row at most."""
    for series in chart.series:
        mark(axes, series)
    axes.set_title("\n".join(line for told in (chart.title, chart.mark) for line in textwrap.wrap(told, letters)))
    axes.set(xlabel=chart.x.label, ylabel=chart.y.label)
    for axis, name in ((chart.x, "x"), (chart.y, "y")):
        settle(axes, axis, name)
    if chart.equal:
        axes.set_aspect("equal")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=True, color=PALE)
    else:
        axes.grid(axis="y", color=PALE, linewidth=0.7)


def settle(axes: Any, axis: Axis, name: str) -> None:
    """An axis's scale, reach and ticks."""
    own = getattr(axes, f"{name}axis")
    if axis.log:
        getattr(axes, f"set_{name}scale")("log")
        ticker = import_module("matplotlib.ticker")
        own.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        own.set_minor_formatter(ticker.NullFormatter())
    own.set_major_formatter("{x:,g}")
    if axis.reach:
        getattr(axes, f"set_{name}lim")(*axis.reach)
    if axis.ticks:
        getattr(axes, f"set_{name}ticks")([at for at, _ in axis.ticks], [text for _, text in axis.ticks])


def mark(axes: Any, series: Series) -> None:
    """One series."""
    colour = LIGHT[series.colour % len(LIGHT)]
    xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
    if series.kind == "arrows":
        for at in range(0, len(xs), 2):
            axes.plot(xs[at : at + 2], ys[at : at + 2], color=PALE, linewidth=1, zorder=1)
    elif series.kind == "rings":
        size = 48 if len(xs) < FEW else 26
        axes.scatter(xs, ys, s=size, facecolors="none", edgecolors=colour, label=series.name, linewidths=1.1, zorder=3)
    elif series.kind == "dots":
        size = 30 if len(xs) < FEW else 10
        axes.scatter(xs, ys, s=size, color=colour, label=series.name, alpha=0.75, linewidths=0, zorder=3)
        if series.sign and xs:
            middle = sum(xs) / len(xs), sum(ys) / len(ys)
            box = {"facecolor": "white", "edgecolor": colour, "boxstyle": "circle,pad=0.15", "alpha": 0.9}
            axes.text(*middle, series.sign, fontsize=12, fontweight="bold", ha="center", va="center", zorder=4, bbox=box)
    elif series.kind == "circle":
        axes.plot(xs, ys, color=LINE, linewidth=1, label=series.name, zorder=2)
    else:
        dash = DASHES[series.colour % len(DASHES)]
        axes.plot(xs, ys, color=colour, linewidth=1.8, label=series.name, linestyle=(0, dash) if dash else "-")
        if series.band:
            axes.fill_between(xs, [low for low, _ in series.band], [high for _, high in series.band], color=colour,
                              alpha=0.15, linewidth=0)  # fmt: skip


def show(axes: Any, image: Image) -> None:
    """One image."""
    axes.imshow(image.pixels, interpolation="nearest")
    axes.set_title(image.title, fontsize=9)
    axes.axis("off")
