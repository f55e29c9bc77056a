"""Robust accuracy over ε as a picture: a panel for each attack, a line for each network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dcnets.experiments.palette import DASHES, LIGHT, PALE
from dcnets.experiments.plotting import SETTINGS, check, drawing, write
from dcnets.experiments.robustness.curves import Curve
from dcnets.experiments.robustness.findings import percent
from dcnets.experiments.robustness.trials import eps_told

MARKERS = "os^Dv<>P*X"
"""As many as colours; markers and dashes tell the lines apart without colour."""
WIDE = 8
"""The ratio of the largest to the smallest ε from which their axis is logarithmic."""


def draw(curves: Mapping[str, Sequence[Curve]], path: Path, *, norm: str = "linf", images: int) -> None:
    """Write the curves of some networks to an SVG, PNG or PDF file; one network's attacks share a panel."""
    check(path)
    if not curves:
        raise ValueError(f"{path.name} is not drawn: there is no network of which all attacks could be made")
    mpl = drawing()
    if len(curves) == 1:
        panels = {only: [(each.name, each) for each in own] for only, own in curves.items()}
    else:
        first = next(iter(curves.values()))
        panels = {each.name: [(name, some[at]) for name, some in curves.items()] for at, each in enumerate(first)}
    with mpl.rc_context(SETTINGS):
        longest = max(len(name) for some in panels.values() for name, _ in some)
        beside = 2 if longest <= 22 and len(panels) == 1 else 1
        rows = -(-max(map(len, panels.values())) // (3 if longest <= 14 else beside))
        figure = mpl.figure.Figure(figsize=(max(4.8, 3.4 * len(panels)), 3.5 + 0.24 * rows), layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (title, lines) in zip(grid, panels.items(), strict=True):
            panel(axes, lines, norm)
            axes.set_title(title if len(panels) > 1 else "")
        if len(panels) == 1:
            figure.suptitle(title, fontsize=min(12, 460 / len(title)))  # over the whole width, which a long name needs
        grid[0].set_ylabel(f"right of {images:,} images")
        handles, names = grid[0].get_legend_handles_labels()
        columns = -(-len(names) // rows)
        figure.legend(handles, names, loc="outside lower center", frameon=False, handlelength=3, ncols=columns)
        write(figure, path)


def panel(axes: Any, lines: Sequence[tuple[str, Curve]], norm: str) -> None:
    """One plot: a line for each name, with bars of one standard error."""
    for at, (name, each) in enumerate(lines):
        dash = DASHES[at % len(DASHES)]
        style = {
            "color": LIGHT[at % len(LIGHT)],
            "marker": MARKERS[at % len(MARKERS)],
            "linestyle": (0, dash) if dash else "-",
        }
        errors = [outcome.error for outcome in each.outcomes]
        axes.errorbar(each.eps, each.accuracies, yerr=errors, label=name, linewidth=1.9, markersize=5, elinewidth=1, **style)
    grid = lines[0][1].eps
    above = [eps for eps in grid if eps]
    if len(above) > 2 and above[-1] / above[0] > WIDE:
        axes.set_xscale("symlog", base=2, linthresh=above[0], linscale=0.6)
    if all("/255" in eps_told(eps) or not eps for eps in grid):
        axes.set_xlabel(f"ε · 255 ({'L∞' if norm == 'linf' else 'L2'})")
        axes.set_xticks(grid, [f"{round(255 * eps, 3):g}" for eps in grid], minor=False)
    else:
        axes.set_xlabel(f"ε ({'L∞' if norm == 'linf' else 'L2'})")
        axes.set_xticks(grid, [f"{eps:.3g}" for eps in grid], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], [percent(share).replace(".0", "") for share in (0, 0.25, 0.5, 0.75, 1)])
    axes.grid(axis="y", color=PALE, linewidth=0.7)
