"""Robust accuracy over ε as a picture: a panel for each attack, a line for each network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dcnets.experiments.robustness.curves import Curve
from dcnets.experiments.robustness.findings import percent
from dcnets.experiments.robustness.trials import eps_told

# Okabe and Ito's colours, which colour-blind eyes tell apart; markers and dashes tell the lines apart without colour.
COLOURS = ("#222222", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS, DASHES = "os^Dv<>", ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), "-", (0, (5, 2)), (0, (2, 1.5)))
PALE, LINE, INK = "#d5dae1", "#8a93a0", "#222222"
SETTINGS: Any = {
    "svg.hashsalt": "dcnets", "svg.fonttype": "path", "font.size": 11, "axes.edgecolor": LINE, "axes.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 12, "xtick.color": LINE, "ytick.color": LINE,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK,
}  # fmt: skip
FORMATS = (".svg", ".png", ".pdf")
WIDE = 8
"""The ratio of the largest to the smallest ε from which their axis is logarithmic."""


def draw(curves: Mapping[str, Sequence[Curve]], path: Path, *, norm: str = "linf", images: int) -> None:
    """Write the curves of some networks to an SVG, PNG or PDF file; one network's attacks share a panel."""
    if path.suffix not in FORMATS:
        raise ValueError(f"a picture is one of {', '.join(FORMATS)}, got {path.name!r}; name the file so")
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
        path.parent.mkdir(parents=True, exist_ok=True)
        fixed = {"metadata": {"Date": None, "Creator": None}} if path.suffix == ".svg" else {}
        figure.savefig(path, facecolor="white", dpi=160, **fixed)


def drawing() -> Any:
    """matplotlib, or an ImportError that says how to install it."""
    try:
        return import_module("matplotlib.figure") and import_module("matplotlib")
    except ImportError as error:
        raise ImportError(f"a picture needs matplotlib ({error}); pip install 'dcnets[demo]'") from error


def panel(axes: Any, lines: Sequence[tuple[str, Curve]], norm: str) -> None:
    """One plot: a line for each name, with bars of one standard error."""
    for at, (name, each) in enumerate(lines):
        style = {"color": COLOURS[at % 7], "marker": MARKERS[at % 7], "linestyle": DASHES[at % 7]}
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
