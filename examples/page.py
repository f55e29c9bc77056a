"""The demo's page: one HTML file with its figures inside."""

from __future__ import annotations

import base64
import platform
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import matplotlib as mpl
import torch
from curves import BLACK, BLUE, GREEN, LINE, ORANGE, PALE, SETTINGS, Curve, as_svg, panel
from digits import BATCH, GOAL, SEED, TIMED_BATCH, Run
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter

import dcnets

STYLES: tuple[dict[str, Any], ...] = (
    {"color": LINE, "linewidth": 5, "marker": "o", "markersize": 7},
    {"color": BLUE, "linewidth": 2.6, "marker": "s", "markersize": 5},
    {"color": ORANGE, "linewidth": 1.3, "marker": "^", "markersize": 4.5},
    {"color": GREEN, "linewidth": 1.6, "marker": "D", "markersize": 4.5},
    {"color": BLACK, "linewidth": 1.3, "marker": "o", "markersize": 3.5, "linestyle": "--"},
)
"""How the networks are drawn in turn: the later the thinner, so that curves on top of each other are all seen."""

PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def write_page(folder: Path, runs: list[Run], tested: int, magnitudes: list[Curve], angulars: list[Curve]) -> Path:
    """Write index.html into the folder and return its path."""
    footer = (
        f"dcnets {dcnets.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} thread, seed {SEED}, batches of {BATCH}, Adam. The digits are scikit-learn’s."
    )
    curves = [accuracy_plot(runs), loss_plot(runs)]
    text = PAGE.substitute(
        rows="\n".join(row(run) for run in runs),
        goal=f"{GOAL:.0%}",
        test=tested,
        timed=TIMED_BATCH,
        convergence="".join(image(svg, alt) for svg, alt in curves),
        bounded=key(BLUE),
        unbounded=key(ORANGE),
        learned=key(GREEN),
        magnitudes=panels(magnitudes, "h over the norm"),
        angulars=panels(angulars, "g over the angle"),
        footer=escape(footer),
    )
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


def row(run: Run) -> str:
    """A network's line of the table."""
    name, _, rest = run.contestant.name.partition(", ")
    cells = [
        f"<b>{escape(name)}</b><small>{escape(rest) or 'with ReLU'}</small>",
        f"{run.accuracies[-1]:.1%}",
        f"{run.epochs_to_goal or '–'} of {len(run.accuracies)}",
        f"{run.seconds:.1f}",
        f"{run.step_ratio:.2f}",
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def key(colour: str) -> str:
    """A small square of a colour."""
    return f'<span class="key" style="background:{colour}"></span>'


def panels(curves: list[Curve], alt: str) -> str:
    """A plot of each curve before all others."""
    return "".join(image(panel(curve, curves), f"{curve.name}: {alt}") for curve in curves)


def image(svg: str, alt: str) -> str:
    """An SVG inside the page."""
    data = base64.b64encode(svg.encode()).decode()
    return f'<figure><img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}"></figure>\n'


def accuracy_plot(runs: list[Run]) -> tuple[str, str]:
    """Test accuracy by epoch."""
    lowest = min(run.accuracies[0] for run in runs)
    return plot(
        [(run, run.accuracies) for run in runs], "test accuracy", (max(0.0, lowest - 0.05), 1.01)
    ), "test accuracy by epoch"


def loss_plot(runs: list[Run]) -> tuple[str, str]:
    """Training loss by epoch, on a logarithmic axis."""
    return plot([(run, run.losses) for run in runs], "training loss", None), "training loss by epoch"


def plot(lines: list[tuple[Run, list[float]]], label: str, limits: tuple[float, float] | None) -> str:
    """Numbers by epoch; an axis with limits is in percent, one without is logarithmic."""
    with mpl.rc_context(SETTINGS | {"font.size": 11}):
        figure = Figure(figsize=(4.8, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for (run, values), style in zip(lines, STYLES, strict=True):
            axes.plot(range(1, len(values) + 1), values, label=run.contestant.name, **style)
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=PALE, linewidth=0.7)
        if limits:
            axes.set_ylim(limits)
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        else:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(loc="outside lower center", frameon=False, fontsize=9.5, ncols=2)
        return as_svg(figure)
